//! Every git operation of an agent in every layout of a repository, with every git on this machine, and what
//! the host sees afterwards; and the session's folder for worktrees.

#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use codeoid_tests::{Layout, Place, Repo, Requires, docs, each_identity};

/// Operations that protection `shared` cannot allow, because they write the repository's configuration, and
/// `docs/sandbox.md` says so: (operation, layouts in which it works all the same).
const SHARED_LIMITS: [(&str, &[Layout]); 4] = [
    ("branch_rename", &[]),
    ("push_upstream", &[]),
    ("sparse_checkout", &[Layout::WorktreeConfig]),
    ("submodule_update", &[]),
];

/// Operations whose effect the host does not see with protection `shadow`, and `docs/sandbox.md` says so. Inside the
/// sandbox they all work.
const SHADOW_LIMITS: [&str; 3] = ["worktree_lock", "submodule_add", "submodule_update"];

const SCRIPT: &str = include_str!("../fixtures/operations.sh");

/// Runs each operation by itself; prints `== NAME CODE` and, for a failure, what it said.
const RUN: &str = r#"
file=$1 kind=$2
export W="${W:-$CODEOID_WORKTREE_DIR}" HUMAN REMOTE
. "$file"
for name in $OPERATIONS; do
    said=$(sh -e -c '. "$0"; "$1"' "$file" "${kind}_$name" 2>&1)
    code=$?
    echo "== $name $code"
    [ "$code" -eq 0 ] || echo "$said"
done
"#;

/// What failed, with what it said.
fn failures(printed: &str) -> Vec<(String, String)> {
    let mut failed = vec![];
    let mut count = 0;
    for part in printed.split("== ").skip(1) {
        let (head, said) = part.split_once('\n').unwrap_or((part, ""));
        let (name, code) = head.split_once(' ').unwrap_or((head, "?"));
        count += 1;
        if code != "0" {
            failed.push((name.to_owned(), format!("{name} ended with {code}: {said}")));
        }
    }
    assert!(count >= 50, "only {count} operations ran:\n{printed}");
    failed
}

/// The session's folder, as the turn itself sees it.
fn folder(place: &Place, repo: &Repo, session: &str) -> PathBuf {
    let outcome = place.turn(&repo.workspace).session(session).sh("echo $CODEOID_WORKTREE_DIR").run();
    PathBuf::from(outcome.expect_ok().out())
}

/// All operations in one layout, with every git that can make it.
fn matrix(place: &Place, layout: Layout, protection: &str) {
    for git in layout.gits() {
        let mut place = Place::new(place.identity(), layout.name());
        place.prefer(&git.directory);
        let repo = Repo::new(&place, layout);
        let script = place.write("outside/operations.sh", SCRIPT);
        let file = script.to_str().expect("places have plain names");
        let outcome = place
            .turn(&repo.workspace)
            .options(["--git-protection", protection, "--write"])
            .options([&repo.remote])
            .env("HUMAN", &repo.human)
            .env("REMOTE", &repo.remote)
            .command(["sh", "-c", &format!("echo \"$CODEOID_WORKTREE_DIR\"; {RUN}"), "run", file, "op"])
            .run();
        outcome.expect_ok();
        let printed = outcome.out();
        let folder = printed.lines().next().unwrap_or_default().to_owned();
        let inside = failures(&printed);
        let after = place.sh(
            &repo.workspace,
            &format!(
                "W='{folder}' HUMAN='{}' REMOTE='{}'; set -- '{file}' host; {RUN}",
                repo.human.display(),
                repo.remote.display()
            ),
        );
        let outside = failures(&after.out());
        let shared = protection == "shared";
        let limited: BTreeSet<&str> = if shared {
            SHARED_LIMITS
                .iter()
                .filter(|(_, works)| !works.contains(&layout))
                .map(|(name, _)| *name)
                .collect()
        } else {
            SHADOW_LIMITS.into()
        };
        let outside_only = |name: &str, inside: bool| limited.contains(name) && (shared || !inside);
        let unexpected: Vec<&str> = inside
            .iter()
            .map(|failed| (failed, true))
            .chain(outside.iter().map(|failed| (failed, false)))
            .filter(|((name, _), inside)| !outside_only(name, *inside))
            .map(|(failed, _)| failed)
            .map(|(_, said)| said.as_str())
            .collect();
        assert!(
            unexpected.is_empty(),
            "{layout:?}, git {:?}, {:?}:\n{}\n{outcome}",
            git.version,
            place.identity(),
            unexpected.join("\n")
        );
        // A limit that is none any more must leave the list and the documentation.
        for name in limited {
            let fails = inside.iter().chain(&outside).any(|(failed, _)| failed == name);
            assert!(fails, "{name} works in {layout:?} with git {:?}: it is no limit any more", git.version);
        }
        let findings = outcome.findings();
        let known = |finding: &serde_json::Value| {
            !shared && finding["entry"].as_str().is_some_and(|entry| entry.starts_with("submodule"))
        };
        assert!(findings.iter().all(known), "honest work is no finding: {findings:?}");
        repo.assert_sound(&place);
    }
}

/// The control: the list of operations is right where there is no sandbox.
fn operations_without_a_sandbox(place: &Place) {
    let layout = Layout::Main;
    {
        for git in layout.gits() {
            let mut place = Place::new(place.identity(), layout.name());
            place.prefer(&git.directory);
            let repo = Repo::new(&place, layout);
            let script = place.write("outside/operations.sh", SCRIPT);
            let folder = place.make("outside/worktrees");
            let tmp = place.make("outside/tmp");
            let set = format!(
                "W='{}' HUMAN='{}' REMOTE='{}' file='{}'",
                folder.display(),
                repo.human.display(),
                repo.remote.display(),
                script.display()
            );
            fs::write(&script, SCRIPT.replace("/tmp/", &format!("{}/", tmp.display()))).unwrap();
            for kind in ["op", "host"] {
                let run = place.sh(&repo.workspace, &format!("{set}; set -- \"$file\" {kind}; {RUN}"));
                let failed: Vec<String> = failures(&run.out()).into_iter().map(|(_, said)| said).collect();
                assert!(failed.is_empty(), "{layout:?}, git {:?}:\n{}", git.version, failed.join("\n"));
            }
            repo.assert_sound(&place);
        }
    }
}

fn operations_main(place: &Place) {
    matrix(place, Layout::Main, "shared");
}
fn operations_below(place: &Place) {
    matrix(place, Layout::Below, "shared");
}
fn operations_linked(place: &Place) {
    matrix(place, Layout::Linked, "shared");
}
fn operations_bare(place: &Place) {
    matrix(place, Layout::Bare, "shared");
}
fn operations_submodule(place: &Place) {
    matrix(place, Layout::Submodule, "shared");
}
fn operations_gitfile(place: &Place) {
    matrix(place, Layout::GitFile, "shared");
}
fn operations_relative(place: &Place) {
    matrix(place, Layout::Relative, "shared");
}
fn operations_sha256(place: &Place) {
    matrix(place, Layout::Sha256, "shared");
}
fn operations_reftable(place: &Place) {
    matrix(place, Layout::Reftable, "shared");
}
fn operations_worktree_config(place: &Place) {
    matrix(place, Layout::WorktreeConfig, "shared");
}

fn shadow_main(place: &Place) {
    matrix(place, Layout::Main, "shadow");
}
fn shadow_below(place: &Place) {
    matrix(place, Layout::Below, "shadow");
}
fn shadow_linked(place: &Place) {
    matrix(place, Layout::Linked, "shadow");
}
fn shadow_bare(place: &Place) {
    matrix(place, Layout::Bare, "shadow");
}
fn shadow_submodule(place: &Place) {
    matrix(place, Layout::Submodule, "shadow");
}
fn shadow_gitfile(place: &Place) {
    matrix(place, Layout::GitFile, "shadow");
}
fn shadow_relative(place: &Place) {
    matrix(place, Layout::Relative, "shadow");
}
fn shadow_sha256(place: &Place) {
    matrix(place, Layout::Sha256, "shadow");
}
fn shadow_worktree_config(place: &Place) {
    matrix(place, Layout::WorktreeConfig, "shadow");
}

fn shadow_refuses_reftable_by_name(place: &Place) {
    let layout = Layout::Reftable;
    for git in layout.gits() {
        let mut place = Place::new(place.identity(), layout.name());
        place.prefer(&git.directory);
        let repo = Repo::new(&place, layout);
        let outcome =
            place.turn(&repo.workspace).options(["--git-protection", "shadow"]).sh("touch ran").run();
        outcome.expect_refusal(&["reftable", "--git-protection shared"]);
        assert!(!repo.workspace.join("ran").exists());
    }
}

fn limits_of_shared_are_documented(place: &Place) {
    let text = docs("docs/sandbox.md");
    for (name, _) in SHARED_LIMITS {
        assert!(text.contains(&format!("`{name}`")), "docs/sandbox.md does not name {name}");
    }
    for name in SHADOW_LIMITS {
        assert!(text.contains(&format!("`{name}`")), "docs/sandbox.md does not name {name}");
    }
    drop(place.home());
}

fn without_a_repository_git_init_works(place: &Place) {
    let repo = Repo::new(place, Layout::None);
    let outcome = place
        .turn(&repo.workspace)
        .sh("test -z \"$CODEOID_WORKTREE_DIR\" && git init -q . && git add . && git commit -qm First && \
             git worktree add -q inner && git init -q sub && git log --oneline | wc -l")
        .run();
    assert_eq!(outcome.expect_ok().out(), "1", "{outcome}");
    assert_eq!(place.git(&repo.workspace, &["log", "-1", "--format=%s"]), "First");
}

fn the_folder_lies_beside_the_checkout_and_depends_on_session_and_repository_alone(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let main = repo.main.clone().unwrap();
    let first = folder(place, &repo, "s1");
    assert_eq!(first.parent().unwrap(), main.with_file_name("repo-worktrees"));
    assert!(first.file_name().unwrap().to_str().unwrap().starts_with("s1-"));
    assert_eq!(folder(place, &repo, "s1"), first, "the same after a resume");
    assert_ne!(folder(place, &repo, "s2"), first, "another for another session");
    let linked = Repo {
        workspace: repo.human.clone(),
        ..Repo::new(&Place::new(place.identity(), "other"), Layout::Main)
    };
    assert_eq!(folder(place, &linked, "s1"), first, "the same from any worktree of the repository");
}

fn the_folder_of_a_bare_repository_lies_beside_it(place: &Place) {
    let repo = Repo::new(place, Layout::Bare);
    let folder = folder(place, &repo, "s1");
    assert!(folder.starts_with(&repo.top) && !folder.starts_with(&repo.common), "{}", folder.display());
}

fn an_empty_folder_is_removed_and_one_in_use_stays(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let made = folder(place, &repo, "s1");
    assert!(!made.exists() && !made.parent().unwrap().exists(), "{}", made.display());
    place
        .turn(&repo.workspace)
        .sh("git worktree add -q -b kept \"$CODEOID_WORKTREE_DIR/kept\"")
        .run()
        .expect_ok();
    assert!(made.join("kept/README.md").exists());
    place.turn(&repo.workspace).sh("git worktree remove \"$CODEOID_WORKTREE_DIR/kept\"").run().expect_ok();
    assert!(!made.parent().unwrap().exists());
    // A parent that somebody else made stays.
    place.make("home/src/repo-worktrees");
    place.turn(&repo.workspace).command(["true"]).run().expect_ok();
    assert!(made.parent().unwrap().exists() && !made.exists());
}

fn the_checkout_stays_as_it_is(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    place.turn(&repo.workspace).sh("git worktree add -q -b x \"$CODEOID_WORKTREE_DIR/x\"").run().expect_ok();
    assert_eq!(place.git(&repo.workspace, &["status", "--porcelain", "--ignored"]), "");
}

fn a_session_may_work_in_its_worktree_and_sees_others_read_only(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    place
        .turn(&repo.workspace)
        .session("a")
        .sh("git worktree add -q -b a \"$CODEOID_WORKTREE_DIR/a\"")
        .run()
        .expect_ok();
    let tree = folder(place, &repo, "a").join("a");
    let script = format!(
        "cat {0}/README.md >/dev/null && (echo x >{0}/x) 2>&1; \
             git -C {0} commit --allow-empty -qm x 2>&1; git worktree remove --force {0} 2>&1; true",
        tree.display()
    );
    let outcome = place.turn(&repo.workspace).session("b").sh(&script).run();
    assert!(outcome.expect_ok().out().contains("Read-only"), "{outcome}");
    assert!(tree.join("README.md").exists() && !tree.join("x").exists());
    assert_eq!(place.git(&tree, &["log", "-1", "--format=%s"]), "Third");
}

fn another_sessions_worktree_as_workspace_is_own(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    place
        .turn(&repo.workspace)
        .session("a")
        .sh("git worktree add -q -b a \"$CODEOID_WORKTREE_DIR/a\"")
        .run()
        .expect_ok();
    let tree = folder(place, &repo, "a").join("a");
    let script = "echo more >more && git add more && git commit -qm 'Continued' && \
         git worktree add -q -b b \"$CODEOID_WORKTREE_DIR/b\" && echo $CODEOID_WORKTREE_DIR";
    let outcome = place.turn(&tree).session("b").sh(script).run();
    assert_ne!(Path::new(&outcome.expect_ok().out()), tree.parent().unwrap(), "a folder of its own");
    assert_eq!(place.git(&tree, &["log", "-1", "--format=%s"]), "Continued");
    assert!(outcome.findings().is_empty(), "{outcome}");
    repo.assert_sound(place);
}

fn worktree_roots_hold_further_folders(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let root = place.make("outside/trees");
    let root_name = root.to_str().unwrap();
    let script = format!(
        "git worktree add -q -b far \"$(echo {root_name}/*/s1-*)/far\" && \
             git worktree add -q -b near \"$CODEOID_WORKTREE_DIR/near\" && \
         (mkdir {root_name}/x) 2>&1; true"
    );
    let outcome = place.turn(&repo.workspace).options(["--worktree-root", root_name]).sh(&script).run();
    assert!(outcome.expect_ok().out().contains("Read-only"), "only the session's folder: {outcome}");
    let list = place.git(&repo.workspace, &["worktree", "list", "--porcelain"]);
    assert!(list.contains("branch refs/heads/far") && list.contains("branch refs/heads/near"), "{list}");
    assert!(outcome.findings().is_empty(), "{outcome}");
}

fn worktree_roots_that_are_refused(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let link = place.at("outside/innocent");
    std::os::unix::fs::symlink(place.home(), &link).unwrap();
    for directory in [".config", ".local", "bin", ".cargo/bin", ".vscode", ".ssh"] {
        place.make(format!("home/{directory}"));
    }
    let home = place.home();
    let below_home = [
        ".config",
        ".local/share",
        "bin",
        ".cargo/bin",
        ".config/systemd/user",
        ".vscode",
        ".codeoid",
        ".ssh",
        ".local/state/codeoid-shim",
    ]
    .map(|d| home.join(d));
    let fixed = ["/", "/etc", "/usr", "/usr/local", "/opt", "/home"].map(PathBuf::from);
    let odd = [
        home.clone(),
        home.join("x/.."),
        link,
        repo.common.clone(),
        repo.common.join("worktrees"),
        place.at("run"),
    ];
    for root in below_home.iter().chain(&fixed).chain(&odd) {
        let outcome =
            place.turn(&repo.workspace).options(["--worktree-root"]).options([root]).sh("touch ran").run();
        outcome.expect_refusal(&["worktree"]);
    }
    assert!(!repo.workspace.join("ran").exists());
}

fn a_thousand_worktrees_are_no_obstacle_serial(place: &Place) {
    if !Requires::Tool("git").met() {
        return;
    }
    let repo = Repo::new(place, Layout::Main);
    repo.add_worktrees(place, 1000);
    let start = std::time::Instant::now();
    let outcome = place
        .turn(&repo.workspace)
        .sh("git worktree list | wc -l; git worktree add -q -b x \"$CODEOID_WORKTREE_DIR/x\"")
        .run();
    assert_eq!(outcome.expect_ok().out(), "1002");
    assert!(start.elapsed() < std::time::Duration::from_secs(10), "{:?}", start.elapsed());
    let script = format!(
        "echo x >{}/evil 2>/dev/null; echo ../../../evil >.git/worktrees/w500/commondir; true",
        repo.top.join("many/w500").display()
    );
    place.turn(&repo.workspace).sh(&script).run().expect_ok();
    assert_eq!(fs::read_to_string(repo.common.join("worktrees/w500/commondir")).unwrap(), "../..\n");
    assert!(!repo.top.join("many/w500/evil").exists());
}

each_identity! {
    operations_without_a_sandbox,
    operations_main,
    operations_below,
    operations_linked,
    operations_bare,
    operations_submodule,
    operations_gitfile,
    operations_relative,
    operations_sha256,
    operations_reftable,
    operations_worktree_config,
    shadow_main,
    shadow_below,
    shadow_linked,
    shadow_bare,
    shadow_submodule,
    shadow_gitfile,
    shadow_relative,
    shadow_sha256,
    shadow_worktree_config,
    shadow_refuses_reftable_by_name,
    limits_of_shared_are_documented,
    without_a_repository_git_init_works,
    the_folder_lies_beside_the_checkout_and_depends_on_session_and_repository_alone,
    the_folder_of_a_bare_repository_lies_beside_it,
    an_empty_folder_is_removed_and_one_in_use_stays,
    the_checkout_stays_as_it_is,
    a_session_may_work_in_its_worktree_and_sees_others_read_only,
    another_sessions_worktree_as_workspace_is_own,
    worktree_roots_hold_further_folders,
    worktree_roots_that_are_refused,
    a_thousand_worktrees_are_no_obstacle_serial,
}
