//! Submodules: their git dirs, and the `.git` files in their checkouts.

use super::{Attack, capture, checked, kinds, picture};
use crate::fixture::Scratch;

fn setup() -> Scratch {
    let s = super::usual();
    s.repository("lib");
    let add = ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "--name", "deep/er"];
    s.git("repo", add.into_iter().chain(["../lib", "sub"]));
    s.git("repo", ["commit", "-q", "-m", "sub"]);
    s
}

fn trap(s: &Scratch) -> String {
    s.trap("trap.sh", "PWNED");
    s.path("trap.sh").to_str().unwrap().to_owned()
}

fn evil(s: &Scratch) {
    s.git("", ["clone", "-q", "lib", "repo/evil"]);
    let trap = trap(s);
    s.git("repo/evil", ["config", "core.fsmonitor", &trap]);
}

#[test]
fn the_configuration_and_the_hooks_of_a_submodule() {
    let findings = Attack {
        setup: &setup,
        plant: &|s| {
            let trap = trap(s);
            s.git("repo/sub", ["config", "core.fsmonitor", &trap]);
        },
        ..Attack::default()
    }
    .fails();
    assert_eq!(kinds(&findings), ["config-changed"]);
    let findings = Attack {
        setup: &setup,
        plant: &|s| {
            s.trap("repo/.git/modules/deep/er/hooks/pre-commit", "PWNED");
        },
        host: &|s| {
            s.try_git("repo/sub", ["commit", "--allow-empty", "-m", "x"]);
        },
        ..Attack::default()
    }
    .fails();
    assert_eq!(kinds(&findings), ["hook-added"]);
}

#[test]
fn a_commondir_in_a_submodules_git_dir() {
    let findings = Attack {
        setup: &setup,
        plant: &|s| {
            evil(s);
            let text = format!("{}\n", s.path("repo/evil/.git").display());
            s.write("repo/.git/modules/deep/er/commondir", &text);
        },
        ..Attack::default()
    }
    .fails();
    assert!(kinds(&findings).contains(&"commondir-planted"), "{findings:#?}");
}

#[test]
fn the_git_file_of_a_submodule_retargeted() {
    let retarget = |s: &Scratch| {
        evil(s);
        s.write("repo/sub/.git", "gitdir: ../evil/.git\n");
    };
    let replace = |s: &Scratch| {
        evil(s);
        std::fs::remove_file(s.path("repo/sub/.git")).unwrap();
        super::entries::copy_tree(&s.path("repo/evil/.git"), &s.path("repo/sub/.git"));
    };
    let hide = |s: &Scratch| {
        // Below a module's git dir, where it looks like one of the judged ones.
        evil(s);
        super::entries::copy_tree(&s.path("repo/evil/.git"), &s.path("repo/.git/modules/deep/er/x"));
        s.write("repo/sub/.git", "gitdir: ../.git/modules/deep/er/x\n");
    };
    for plant in [&retarget as &dyn Fn(&Scratch), &replace, &hide] {
        let findings = Attack { setup: &setup, plant, ..Attack::default() }.fails();
        assert!(kinds(&findings).contains(&"pointer-changed"), "{findings:#?}");
    }
}

#[test]
fn a_submodule_that_was_not_there_is_judged_by_what_git_writes() {
    let s = super::usual();
    s.repository("lib");
    let baseline = capture(&s, "repo");
    s.git("repo", ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "../lib", "sub"]);
    let before = picture(&s.root);
    assert_eq!(checked(&s, &baseline), [], "a person added a submodule");
    super::same(&super::picture(&s.root), &before);
    let trap = trap(&s);
    s.git("repo/sub", ["config", "core.fsmonitor", &trap]);
    s.trap("repo/.git/modules/sub/hooks/pre-commit", "PWNED");
    assert_eq!(kinds(&checked(&s, &baseline)), ["config-changed", "hook-added"]);
    s.git("repo", ["status"]);
    s.git("repo/sub", ["commit", "-q", "--allow-empty", "-m", "x"]);
    assert!(!s.path("PWNED").exists());
}

#[test]
fn a_repository_planted_where_a_submodule_is_not_checked_out() {
    let s = setup();
    s.git("repo", ["submodule", "--quiet", "deinit", "-f", "sub"]);
    let baseline = capture(&s, "repo");
    evil(&s);
    super::entries::copy_tree(&s.path("repo/evil/.git"), &s.path("repo/sub/.git"));
    let findings = checked(&s, &baseline);
    let planted: Vec<_> = findings.iter().filter(|f| f.path == s.path("repo/sub")).collect();
    assert!(!planted.is_empty(), "{findings:#?}");
}

#[test]
fn submodules_of_a_linked_worktree() {
    let setup = || {
        let s = setup();
        s.git("repo", ["worktree", "add", "-q", "../linked"]);
        s.git("linked", ["-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init"]);
        s
    };
    let findings = Attack {
        setup: &setup,
        workspace: "linked",
        plant: &|s| {
            let trap = trap(s);
            s.git("linked/sub", ["config", "core.fsmonitor", &trap]);
        },
        host: &|s| {
            s.try_git("linked", ["status"]);
        },
        ..Attack::default()
    }
    .fails();
    assert_eq!(kinds(&findings), ["config-changed"]);
}
