//! What else lies in a git dir: hooks, a planted `commondir`, symlinks, older kinds of remotes, replaced objects,
//! operations in progress, locks.

use std::os::unix::fs::symlink;

use super::{Attack, capture, checked, human, kinds, picture, usual};
use crate::fixture::Scratch;

fn victim() -> Scratch {
    let s = usual();
    s.write("victim", "precious\n");
    s
}

fn overwritten(s: &Scratch) -> bool {
    s.text("victim") != "precious\n"
}

#[test]
fn hooks_added_changed_and_made_where_there_were_none() {
    let commit = |s: &Scratch| {
        s.try_git("repo", ["commit", "--allow-empty", "-m", "x"]);
    };
    let hook = |s: &Scratch| {
        s.trap("repo/.git/hooks/pre-commit", "PWNED");
    };
    let without = || {
        let s = usual();
        std::fs::remove_dir_all(s.path("repo/.git/hooks")).unwrap();
        s
    };
    let with = || {
        let s = usual();
        s.write("repo/.git/hooks/pre-commit", "#!/bin/sh\nexit 0\n");
        s
    };
    for (setup, kind) in
        [(&usual as &dyn Fn() -> Scratch, "hook-added"), (&without, "hook-added"), (&with, "hook-changed")]
    {
        let findings = Attack { setup, plant: &hook, host: &commit, ..Attack::default() }.fails();
        assert_eq!(kinds(&findings), [kind]);
        assert!(findings[0].detail.contains("kept: "), "{findings:?}");
    }
}

#[test]
fn a_hook_that_was_there_comes_back() {
    let s = usual();
    s.trap("repo/.git/hooks/pre-push", "ran");
    s.write("repo/.git/hooks/lib/common.sh", "true\n");
    symlink("../../script", s.path("repo/.git/hooks/commit-msg")).unwrap();
    let baseline = capture(&s, "repo");
    let before = picture(&s.path("repo/.git"));
    std::fs::remove_dir_all(s.path("repo/.git/hooks")).unwrap();
    let findings = checked(&s, &baseline);
    assert_eq!(kinds(&findings), ["hook-removed", "hooks-removed"]);
    let after = picture(&s.path("repo/.git"));
    let samples = |path: &std::path::Path| path.extension().is_some_and(|e| e == "sample");
    for (path, was) in before.iter().filter(|(path, _)| !samples(path)) {
        assert_eq!(after.get(path), Some(was), "{}", path.display());
    }
    // Retargeted, and replaced by something else.
    std::fs::remove_file(s.path("repo/.git/hooks/commit-msg")).unwrap();
    symlink("/elsewhere", s.path("repo/.git/hooks/commit-msg")).unwrap();
    std::fs::remove_file(s.path("repo/.git/hooks/pre-push")).unwrap();
    std::fs::create_dir(s.path("repo/.git/hooks/pre-push")).unwrap();
    assert_eq!(kinds(&checked(&s, &baseline)), ["hook-changed"]);
    super::same(&super::picture(&s.path("repo/.git")), &after);
    // Moved aside as a whole; the directory that was made anew is the one to be found.
    let baseline = capture(&s, "repo");
    std::fs::rename(s.path("repo/.git/hooks"), s.path("repo/.git/x")).unwrap();
    assert_eq!(kinds(&checked(&s, &baseline)), ["directory-moved"]);
    super::same(&super::picture(&s.path("repo/.git")), &after);
}

#[test]
fn a_commondir_planted_in_the_main_git_dir() {
    let findings = Attack {
        plant: &|s| {
            s.git("", ["init", "-q", "-b", "main", "evil"]);
            s.trap("trap.sh", "PWNED");
            s.git("evil", ["config", "core.fsmonitor", s.path("trap.sh").to_str().unwrap()]);
            s.write("repo/.git/commondir", "../../evil/.git\n");
        },
        ..Attack::default()
    }
    .fails();
    assert_eq!(kinds(&findings), ["commondir-planted"]);
}

#[test]
fn symlinks_that_git_writes_through() {
    let run = |args: &'static [&'static str]| {
        move |s: &Scratch| {
            s.try_git("repo", args);
        }
    };
    let commit = run(&["commit", "--allow-empty", "-m", "x"]);
    let branch = run(&["branch", "new"]);
    let merge = |s: &Scratch| {
        s.git("repo", ["branch", "-f", "side", "HEAD~"]);
        s.git("feat", ["commit", "-q", "--allow-empty", "-m", "y"]);
        s.try_git("repo", ["merge", "--no-commit", "--no-ff", "feat"]);
    };
    let squash = |s: &Scratch| {
        s.git("feat", ["commit", "-q", "--allow-empty", "-m", "y"]);
        s.try_git("repo", ["merge", "--squash", "feat"]);
    };
    let tag = |s: &Scratch| {
        s.command("repo").args(["tag", "-a", "t"]).env("GIT_EDITOR", "echo x >").output().unwrap();
    };
    let fetch = run(&["fetch", ".", "main"]);
    // Name, what a person runs, and what cannot be restored (the attacker destroyed it).
    let cases: [(&str, &dyn Fn(&Scratch), &[&str]); 8] = [
        ("COMMIT_EDITMSG", &commit, &["repo/.git/COMMIT_EDITMSG"]),
        ("FETCH_HEAD", &fetch, &[]),
        ("MERGE_MSG", &merge, &[]),
        ("SQUASH_MSG", &squash, &[]),
        ("TAG_EDITMSG", &tag, &[]),
        ("logs/HEAD", &commit, &["repo/.git/logs/HEAD"]),
        ("logs/refs/heads/main", &commit, &["repo/.git/logs/refs/heads/main"]),
        ("logs/refs/heads/new", &branch, &[]),
    ];
    for (name, host, lost) in cases {
        println!("{name}");
        let plant = |s: &Scratch| {
            let path = s.path("repo/.git").join(name);
            let _ = std::fs::remove_file(&path);
            symlink(s.path("victim"), path).unwrap();
        };
        let attack =
            Attack { setup: &victim, plant: &plant, host, hit: &overwritten, lost, ..Attack::default() };
        let findings = attack.fails();
        assert_eq!(kinds(&findings), ["symlink-planted"], "{name}");
    }
}

#[test]
fn symlinks_whose_target_git_replaces() {
    let sparse = |s: &Scratch| {
        s.try_git("repo", ["sparse-checkout", "set", "x"]);
    };
    let pack = |s: &Scratch| {
        s.try_git("repo", ["pack-refs", "--all"]);
    };
    let config = |s: &Scratch| {
        s.try_git("repo", ["config", "a.b", "c"]);
    };
    let plant = |name: &'static str| {
        move |s: &Scratch| {
            let path = s.path("repo/.git").join(name);
            if path.exists() {
                std::fs::copy(&path, s.path("victim")).unwrap();
                std::fs::remove_file(&path).unwrap();
            } else {
                std::fs::write(s.path("victim"), "").unwrap();
            }
            symlink(s.path("victim"), path).unwrap();
        }
    };
    let (linked_sparse, linked_refs, linked_config) =
        (plant("info/sparse-checkout"), plant("packed-refs"), plant("config"));
    let cases: [(&dyn Fn(&Scratch), &dyn Fn(&Scratch), &dyn Fn(&Scratch) -> bool); 3] = [
        (&linked_sparse, &sparse, &|s| s.path("victim").exists() && !s.text("victim").is_empty()),
        (&linked_refs, &pack, &|s| s.path("victim").exists() && !s.text("victim").is_empty()),
        (&linked_config, &config, &|s| s.path("victim").exists() && s.text("victim").contains("[a]")),
    ];
    for (number, (plant, host, hit)) in cases.into_iter().enumerate() {
        println!("{number}");
        // What a person added to the configuration is lost with it: it was in the file that is gone.
        let lost: &[&str] = if number == 2 { &["repo/.git/config"] } else { &[] };
        let findings = Attack { plant, host, hit, lost, ..Attack::default() }.fails();
        assert!(kinds(&findings).contains(&"symlink-planted"), "{findings:#?}");
    }
}

#[test]
fn the_main_index_as_a_symlink() {
    let findings = Attack {
        plant: &|s| {
            std::fs::copy(s.path("repo/.git/index"), s.path("victim")).unwrap();
            std::fs::remove_file(s.path("repo/.git/index")).unwrap();
            symlink(s.path("victim"), s.path("repo/.git/index")).unwrap();
        },
        host: &|s| {
            s.write("repo/new", "x\n");
            s.try_git("repo", ["add", "new"]);
        },
        hit: &|s| std::fs::read(s.path("victim")).unwrap_or_default().windows(3).any(|w| w == b"new"),
        lost: &["repo/.git/index"],
        ..Attack::default()
    }
    .fails();
    assert_eq!(kinds(&findings), ["symlink-planted"]);
}

#[test]
fn directories_that_are_symlinks() {
    let outside = |s: &Scratch| std::fs::read_dir(s.path("outside")).unwrap().count() > 0;
    let setup = || {
        let s = usual();
        std::fs::create_dir(s.path("outside")).unwrap();
        s
    };
    let link = |name: &'static str| {
        move |s: &Scratch| {
            let path = s.path("repo/.git").join(name);
            if path.exists() {
                std::fs::rename(&path, s.path("repo/.git/aside")).unwrap();
            }
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(s.path("outside"), path).unwrap();
        }
    };
    let branch = |s: &Scratch| {
        s.try_git("repo", ["branch", "d/new"]);
    };
    let blob = |s: &Scratch| {
        // Its id starts with ab.
        let mut number = 0;
        loop {
            s.write("blob", &number.to_string());
            let id = s.git("", ["hash-object", "blob"]);
            if id.starts_with("ab") {
                s.git("repo", ["hash-object", "-w", "../blob"]);
                return;
            }
            number += 1;
        }
    };
    let (refs, logs, objects) = (link("refs/heads/d"), link("logs/refs/heads/d"), link("objects/ab"));
    for (plant, host) in
        [(&refs as &dyn Fn(&Scratch), &branch as &dyn Fn(&Scratch)), (&logs, &branch), (&objects, &blob)]
    {
        // By chance one of the repository's own objects lies there, too.
        let lost = &["repo/.git/objects/ab"];
        let attack = Attack { setup: &setup, plant, host, hit: &outside, lost, ..Attack::default() };
        assert_eq!(kinds(&attack.fails()), ["symlink-planted"]);
    }
}

#[test]
fn a_rebase_directory_that_is_a_symlink_is_emptied() {
    let findings = Attack {
        setup: &|| {
            let s = usual();
            s.write("outside/git-rebase-todo", "x\n");
            s.write("outside/precious", "x\n");
            s
        },
        plant: &|s| symlink(s.path("outside"), s.path("repo/.git/rebase-merge")).unwrap(),
        host: &|s| {
            s.try_git("repo", ["rebase", "--quit"]);
            s.try_git("repo", ["rebase", "--abort"]);
        },
        hit: &|s| !s.path("outside/precious").exists(),
        ..Attack::default()
    }
    .fails();
    assert_eq!(kinds(&findings), ["symlink-planted"]);
}

#[test]
fn a_symbolic_head_is_how_git_once_wrote_it() {
    let s = usual();
    let baseline = capture(&s, "repo");
    std::fs::remove_file(s.path("repo/.git/HEAD")).unwrap();
    symlink("refs/heads/main", s.path("repo/.git/HEAD")).unwrap();
    assert_eq!(checked(&s, &baseline), []);
    // To anywhere else it is not.
    let head = s.text("repo/.git/HEAD");
    std::fs::remove_file(s.path("repo/.git/HEAD")).unwrap();
    s.write("elsewhere", &head);
    symlink(s.path("elsewhere"), s.path("repo/.git/HEAD")).unwrap();
    assert_eq!(kinds(&checked(&s, &baseline)), ["head-missing", "symlink-planted"]);
    assert_eq!(s.git("repo", ["symbolic-ref", "HEAD"]), "refs/heads/main");
}

#[test]
fn exec_in_a_rebase_in_progress() {
    let setup = || {
        let s = usual();
        for directory in ["repo", "feat"] {
            s.git(directory, ["commit", "-q", "--allow-empty", "-m", "three"]);
        }
        s
    };
    for (directory, git_dir) in [("repo", "repo/.git"), ("feat", "repo/.git/worktrees/feat")] {
        let start = |s: &Scratch| {
            let mut command = s.command(directory);
            command.env("GIT_SEQUENCE_EDITOR", "sed -i 1s/pick/edit/");
            let output = command.args(["rebase", "-i", "HEAD~"]).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            s.trap("trap.sh", "PWNED");
            let todo = format!("exec {}\n", s.path("trap.sh").display());
            s.write(format!("{git_dir}/rebase-merge/git-rebase-todo"), &todo);
        };
        let go_on = |s: &Scratch| {
            s.try_git(directory, ["rebase", "--continue"]);
        };
        let lost = [format!("{git_dir}/HEAD"), format!("{git_dir}/logs"), format!("{git_dir}/ORIG_HEAD")];
        let mut lost: Vec<&str> = lost.iter().map(String::as_str).collect();
        lost.push("repo/.git/logs");
        let index = format!("{git_dir}/index");
        lost.push(&index);
        // A person's staged work and a rebase do not go together.
        let attack = Attack { setup: &setup, plant: &start, host: &go_on, lost: &lost, ..Attack::default() };
        if directory == "repo" {
            assert_eq!(kinds(&attack.fails()), ["todo-exec-added"]);
        }
        let s = setup();
        let baseline = capture(&s, "repo");
        start(&s);
        let findings = checked(&s, &baseline);
        assert_eq!(kinds(&findings), ["todo-exec-added"]);
        s.git(directory, ["rebase", "--continue"]);
        assert!(!s.path("PWNED").exists());
    }
}

#[test]
fn exec_that_was_there_before_stays() {
    let s = usual();
    s.git("repo", ["commit", "-q", "--allow-empty", "-m", "three"]);
    let mut command = s.command("repo");
    command.env("GIT_SEQUENCE_EDITOR", "sed -i 1s/pick/edit/");
    assert!(command.args(["rebase", "-i", "-x", "true", "HEAD~"]).output().unwrap().status.success());
    let baseline = capture(&s, "repo");
    s.write("repo/file", "amended\n");
    s.git("repo", ["commit", "-q", "-a", "--amend", "--no-edit"]);
    assert_eq!(checked(&s, &baseline), []);
    s.git("repo", ["rebase", "--continue"]);
}

#[test]
fn a_strategy_that_is_a_program() {
    let s = usual();
    let baseline = capture(&s, "repo");
    s.write("repo/.git/rebase-merge/strategy", "evil\n");
    s.write("repo/.git/rebase-merge/interactive", "");
    assert_eq!(kinds(&checked(&s, &baseline)), ["strategy-added"]);
    s.write("repo/.git/rebase-merge/strategy", "ort\n");
    assert_eq!(checked(&s, &baseline), []);
}

#[test]
fn older_kinds_of_remotes() {
    let plant = |file: &'static str, content: fn(&Scratch) -> String| {
        move |s: &Scratch| {
            s.git("", ["init", "-q", "--bare", "repo/planted"]);
            s.trap("repo/planted/hooks/pre-receive", "PWNED");
            s.write(file, &content(s));
        }
    };
    let remotes = plant("repo/.git/remotes/foo", |s| format!("URL: {}\n", s.path("repo/planted").display()));
    let branches = plant("repo/.git/branches/foo", |s| format!("{}\n", s.path("repo/planted").display()));
    for plant in [&remotes as &dyn Fn(&Scratch), &branches] {
        let host = |s: &Scratch| {
            s.try_git("repo", ["push", "foo", "main"]);
        };
        let findings = Attack { plant, host: &host, ..Attack::default() }.fails();
        assert!(kinds(&findings).contains(&"legacy-remote-added"), "{findings:#?}");
    }
}

#[test]
fn attributes_that_wake_a_persons_own_filter() {
    let findings = Attack {
        setup: &|| {
            let s = usual();
            s.trap("trap.sh", "PWNED");
            let text = format!("[filter \"mine\"]\n\tclean = {}\n", s.path("trap.sh").display());
            s.write("home/.gitconfig", &text);
            s
        },
        plant: &|s| s.write("repo/.git/info/attributes", "* filter=mine\n"),
        host: &|s| {
            s.write("repo/new", "x\n");
            s.try_git("repo", ["add", "new"]);
        },
        ..Attack::default()
    }
    .fails();
    assert_eq!(kinds(&findings), ["file-added"]);
}

#[test]
fn a_loose_object_with_another_content() {
    let id = |s: &Scratch, name: &str| s.git("repo", ["rev-parse", name]);
    let at = |s: &Scratch, id: &str| s.path("repo/.git/objects").join(&id[..2]).join(&id[2..]);
    let findings = Attack {
        plant: &|s| {
            s.write("evil", "EVIL\n");
            let evil = s.git("repo", ["hash-object", "-w", "../evil"]);
            let good = id(s, "main:file");
            std::fs::remove_file(at(s, &good)).unwrap();
            std::fs::copy(at(s, &evil), at(s, &good)).unwrap();
        },
        host: &|s| {
            s.try_git("", ["clone", "-q", "--no-local", "repo", "clone"]);
            std::fs::remove_file(s.path("repo/file")).unwrap();
            s.try_git("repo", ["checkout", "--", "file"]);
        },
        hit: &|s| s.path("repo/file").exists() && s.text("repo/file") == "EVIL\n",
        lost: &["repo/.git/objects"],
        ..Attack::default()
    }
    .fails();
    assert_eq!(kinds(&findings), ["object-forged"]);
}

#[test]
fn replaced_objects_grafts_and_alternates() {
    let evil = |s: &Scratch| {
        s.write("evil", "EVIL\n");
        s.git("repo", ["hash-object", "-w", "../evil"])
    };
    let replace = |s: &Scratch| {
        let (good, evil) = (s.git("repo", ["rev-parse", "main:file"]), evil(s));
        s.git("repo", ["replace", &good, &evil]);
    };
    let replace_packed = |s: &Scratch| {
        replace(s);
        s.git("repo", ["pack-refs", "--all"]);
    };
    let host = |s: &Scratch| {
        std::fs::remove_file(s.path("repo/file")).unwrap();
        s.try_git("repo", ["checkout", "--", "file"]);
    };
    let hit = |s: &Scratch| s.path("repo/file").exists() && s.text("repo/file") == "EVIL\n";
    // Packing refs moves them from files to lines; nothing is lost.
    let lost = ["repo/.git/refs", "repo/.git/packed-refs"];
    for plant in [&replace as &dyn Fn(&Scratch), &replace_packed] {
        let attack = Attack { plant, host: &host, hit: &hit, lost: &lost, ..Attack::default() };
        let (findings, s) = attack.undone();
        assert_eq!(kinds(&findings), ["replacement-added"]);
        assert!(s.git("repo", ["branch", "--list", "human"]).contains("human"), "other refs are still there");
        host(&s);
        assert!(!hit(&s));
    }

    let findings = Attack {
        plant: &|s| {
            let head = s.git("repo", ["rev-parse", "HEAD"]);
            s.write("repo/.git/info/grafts", &format!("{head}\n"));
        },
        host: &|s| {
            let output = s.try_git("repo", ["rev-list", "--count", "main"]);
            s.write("count", &String::from_utf8_lossy(&output.stdout));
        },
        hit: &|s| s.path("count").exists() && s.text("count").trim() == "1",
        ..Attack::default()
    }
    .fails();
    assert_eq!(kinds(&findings), ["file-added"]);

    let findings = Attack {
        plant: &|s| {
            s.repository("evil-objects");
            s.write("evil-objects/only-there", "x\n");
            s.git("evil-objects", ["hash-object", "-w", "only-there"]);
            let objects = s.path("evil-objects/.git/objects");
            s.write("repo/.git/objects/info/alternates", &format!("{}\n", objects.display()));
        },
        host: &|s| {
            let id = s.git("evil-objects", ["hash-object", "only-there"]);
            if s.try_git("repo", ["cat-file", "-e", &id]).status.success() {
                s.write("found", "");
            }
        },
        hit: &|s| s.path("found").exists(),
        ..Attack::default()
    }
    .fails();
    assert_eq!(kinds(&findings), ["file-added"]);
}

#[test]
fn a_replacement_that_was_taken_away_comes_back() {
    let s = usual();
    let (one, two) = (s.git("repo", ["rev-parse", "HEAD"]), s.git("repo", ["rev-parse", "HEAD~"]));
    s.git("repo", ["replace", &one, &two]);
    s.git("repo", ["pack-refs", "--all"]);
    let baseline = capture(&s, "repo");
    s.git("repo", ["replace", "-d", &one]);
    assert_eq!(kinds(&checked(&s, &baseline)), ["replacement-changed"]);
    assert_eq!(s.git("repo", ["replace", "-l"]), one);
}

#[test]
fn shallow_and_recorded_resolutions_are_reported() {
    let s = usual();
    let baseline = capture(&s, "repo");
    let head = s.git("repo", ["rev-parse", "HEAD"]);
    s.write("repo/.git/shallow", &format!("{head}\n"));
    s.write("repo/.git/rr-cache/0123456789012345678901234567890123456789/postimage", "EVIL\n");
    let before = picture(&s.root);
    assert_eq!(kinds(&checked(&s, &baseline)), ["resolution-recorded", "shallow-changed"]);
    super::same(&super::picture(&s.root), &before);
}

#[test]
fn locks_left_behind() {
    let locks = [
        ("repo/.git/index.lock", vec!["add", "file"]),
        ("repo/.git/config.lock", vec!["config", "a.b", "c"]),
        ("repo/.git/HEAD.lock", vec!["commit", "--allow-empty", "-m", "x"]),
        ("repo/.git/packed-refs.lock", vec!["pack-refs", "--all"]),
        ("repo/.git/refs/heads/main.lock", vec!["commit", "--allow-empty", "-m", "x"]),
        ("repo/.git/shallow.lock", vec!["fetch", "--depth=1", "file:///nowhere"]),
    ];
    for (lock, args) in locks {
        println!("{lock}");
        let s = usual();
        let baseline = capture(&s, "repo");
        s.write(lock, "");
        let output = s.try_git("repo", &args);
        assert!(!output.status.success(), "control: {lock} does not matter");
        human_but_for_locks(&s);
        let findings = checked(&s, &baseline);
        assert_eq!(kinds(&findings), ["lock-left-behind"], "{lock}");
        if !lock.contains("shallow") {
            s.git("repo", &args);
        }
    }
}

fn human_but_for_locks(s: &Scratch) {
    s.write("feat/by-human", "work\n");
    s.git("feat", ["add", "by-human"]);
}

#[test]
fn a_lock_that_somebody_holds_or_that_was_there_stays() {
    let s = usual();
    s.write("repo/.git/old.lock", "");
    std::thread::sleep(std::time::Duration::from_millis(50));
    let baseline = capture(&s, "repo");
    let held = std::fs::File::create(s.path("repo/.git/index.lock")).unwrap();
    let mut holder = std::process::Command::new("sleep").arg("60").stdin(held).spawn().unwrap();
    let findings = checked(&s, &baseline);
    assert_eq!(findings, []);
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(kinds(&checked(&s, &baseline)), ["lock-left-behind"]);
    assert!(s.path("repo/.git/old.lock").exists());
}

#[test]
fn a_commit_whose_editor_is_open_keeps_its_lock() {
    let s = usual();
    let baseline = capture(&s, "repo");
    s.write("repo/file", "changed\n");
    let mut command = s.command("repo");
    let ready = s.path("ready");
    command.env("GIT_EDITOR", format!("touch {}; sleep 30; false", ready.display()));
    let mut git = command.args(["commit", "-a"]).spawn().unwrap();
    while !ready.exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(
        s.path("repo/.git/index.lock").exists(),
        "git commit -a holds the index while the editor is open"
    );
    let findings = checked(&s, &baseline);
    assert!(s.path("repo/.git/index.lock").exists(), "{findings:?}");
    git.kill().unwrap();
    git.wait().unwrap();
}

#[test]
fn the_common_dir_itself_exchanged() {
    let s = usual();
    let baseline = capture(&s, "repo");
    std::fs::rename(s.path("repo/.git"), s.path("repo/.aside")).unwrap();
    assert_eq!(kinds(&checked(&s, &baseline)), ["common-dir-missing"]);
    s.write("repo/.git", "gitdir: ../evil\n");
    assert_eq!(kinds(&checked(&s, &baseline)), ["common-dir-missing"]);
    std::fs::remove_file(s.path("repo/.git")).unwrap();
    super::entries::copy_tree(&s.path("repo/.aside"), &s.path("repo/.git"));
    s.trap("repo/.git/hooks/pre-commit", "PWNED");
    let findings = checked(&s, &baseline);
    assert_eq!(kinds(&findings), ["common-dir-replaced", "hook-added"]);
}

#[test]
fn names_that_would_rule_a_terminal() {
    let s = usual();
    let baseline = capture(&s, "repo");
    symlink("\u{1b}[2J", s.path("repo/.git/\u{1b}]0;x\u{7}")).unwrap();
    s.write("repo/.git/hooks/\u{1b}[31mred", "x");
    for finding in checked(&s, &baseline) {
        assert!(!finding.detail.chars().any(char::is_control), "{finding:?}");
    }
}

#[test]
fn a_commondir_that_refuses_every_turn_is_disarmed() {
    use codeoid_hooks::{layout, shared::check, tree::Keep};
    let s = usual();
    s.write("repo/.git/commondir", "../../nowhere\n");
    let session = "s1".parse().unwrap();
    let Err(layout::Error::CommondirPlanted { path }) = layout::find(&s.path("repo"), &session, &[]) else {
        panic!("it is refused");
    };
    let done = check::disarm(&path, &Keep::new(s.path("kept"))).unwrap();
    assert_eq!(kinds(&done.findings), ["commondir-planted"]);
    assert!(layout::find(&s.path("repo"), &session, &[]).unwrap().is_some());
    s.git("repo", ["status"]);
}

#[test]
fn everything_is_judged_when_somebody_asks() {
    use codeoid_hooks::finish::check_now;
    use codeoid_hooks::shared::check::Depth;
    let s = usual();
    // Planted before the baseline: by a turn that nobody finished.
    s.write("repo/.git/worktrees/feat/commondir", "/nowhere\n");
    std::thread::sleep(std::time::Duration::from_millis(50));
    let baseline = capture(&s, "repo");
    assert_eq!(checked(&s, &baseline), [], "it did not change");
    let state = codeoid_spec::state::StateDir::new(s.path("state"));
    let outcome = check_now(&baseline, Depth::Everything, &state, "check", Some("s1")).unwrap();
    assert_eq!(kinds(&outcome.findings), ["entry-commondir-changed"]);
    s.git("feat", ["status"]);
    assert!(s.text("state/audit.jsonl").contains("session.worktree_entry_restored"));
}

#[test]
fn objects_or_refs_moved_aside() {
    for name in ["objects", "refs", "logs", "info"] {
        let s = usual();
        let baseline = capture(&s, "repo");
        let before = picture(&s.root);
        std::fs::rename(s.path("repo/.git").join(name), s.path("repo/.git/aside")).unwrap();
        symlink("aside", s.path("repo/.git").join(name)).unwrap();
        let findings = checked(&s, &baseline);
        assert_eq!(kinds(&findings), ["directory-moved", "symlink-planted"], "{name}");
        let mut after = picture(&s.root);
        after.retain(|path, _| !path.starts_with("kept"));
        super::same(&after, &before);
    }
    let s = usual();
    let baseline = capture(&s, "repo");
    human(&s);
    std::fs::remove_dir_all(s.path("repo/.git/objects")).unwrap();
    assert!(kinds(&checked(&s, &baseline)).contains(&"directory-deleted"));
}
