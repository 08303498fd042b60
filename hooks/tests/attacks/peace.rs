//! What people do while a turn runs must never be undone, nor even be found.

use super::{capture, checked, human, picture, usual};
use crate::fixture::Scratch;

/// Checks that nothing is found and nothing is changed.
#[track_caller]
fn peaceful(setup: impl Fn() -> Scratch, workspace: &str, work: impl Fn(&Scratch)) {
    let s = setup();
    let baseline = capture(&s, workspace);
    work(&s);
    let before = picture(&s.root);
    let findings = checked(&s, &baseline);
    assert_eq!(findings, []);
    super::same(&super::picture(&s.root), &before);
}

#[test]
fn nothing_at_all() {
    peaceful(usual, "repo", |_| ());
    peaceful(usual, "feat", |_| ());
}

#[test]
fn the_usual() {
    peaceful(usual, "repo", human);
}

#[test]
fn worktrees_come_and_go() {
    peaceful(usual, "repo", |s| {
        s.git("repo", ["worktree", "add", "-q", "../new"]);
        s.git("repo", ["worktree", "remove", "../feat"]);
        s.git("repo", ["worktree", "move", "../other", "../moved"]);
        s.git("repo", ["worktree", "lock", "../moved"]);
    });
    // The last one goes, and git removes the directory with it.
    peaceful(usual, "repo", |s| {
        s.git("repo", ["worktree", "remove", "../feat"]);
        s.git("repo", ["worktree", "remove", "../other"]);
        assert!(!s.path("repo/.git/worktrees").exists());
    });
    // Removed and made again under the same name.
    peaceful(usual, "repo", |s| {
        s.git("repo", ["worktree", "remove", "../feat"]);
        s.git("repo", ["worktree", "add", "-q", "../feat", "feat"]);
    });
    // Deleted by hand and pruned.
    peaceful(usual, "repo", |s| {
        std::fs::remove_dir_all(s.path("feat")).unwrap();
        s.git("repo", ["worktree", "prune"]);
    });
    // Deleted by hand and not pruned.
    peaceful(usual, "repo", |s| std::fs::remove_dir_all(s.path("feat")).unwrap());
}

#[test]
fn a_worktree_that_is_just_being_made() {
    peaceful(usual, "repo", |s| {
        s.write("repo/.git/worktrees/young/locked", "initializing");
    });
    peaceful(usual, "repo", |s| {
        s.write("repo/.git/worktrees/young/locked", "initializing");
        s.write("repo/.git/worktrees/young/gitdir", &format!("{}\n", s.path("young/.git").display()));
        s.write("repo/.git/worktrees/young/commondir", "../..\n");
    });
}

#[test]
fn worktrees_moved_by_hand_and_repaired() {
    peaceful(usual, "repo", |s| {
        std::fs::rename(s.path("feat"), s.path("elsewhere")).unwrap();
        s.git("elsewhere", ["worktree", "repair"]);
    });
    peaceful(usual, "repo", |s| {
        std::fs::rename(s.path("feat"), s.path("elsewhere")).unwrap();
        s.git("repo", ["worktree", "repair", "../elsewhere"]);
    });
    // Moved, and not repaired yet: the entry names a worktree that is gone.
    peaceful(usual, "repo", |s| std::fs::rename(s.path("feat"), s.path("elsewhere")).unwrap());
}

#[test]
fn pointers_made_relative() {
    peaceful(usual, "repo", |s| {
        s.write("repo/.git/worktrees/feat/gitdir", "../../../../feat/.git\n");
        s.write("feat/.git", "gitdir: ../repo/.git/worktrees/feat\n");
    });
    // libgit2 writes an absolute commondir.
    peaceful(usual, "repo", |s| {
        let common = format!("{}/\n", s.path("repo/.git").display());
        s.write("repo/.git/worktrees/feat/commondir", &common);
    });
}

#[test]
fn collecting_garbage() {
    peaceful(usual, "repo", |s| {
        s.git("repo", ["gc", "-q"]);
        s.git("repo", ["pack-refs", "--all"]);
        s.git("repo", ["reflog", "expire", "--all", "--expire=now"]);
        s.git("repo", ["repack", "-a", "-d", "-q"]);
        s.git("repo", ["commit-graph", "write"]);
        s.git("repo", ["prune", "--expire=now"]);
        s.git("repo", ["maintenance", "run"]);
    });
}

#[test]
fn commits_branches_and_merges() {
    peaceful(usual, "repo", |s| {
        s.write("repo/file", "two\n");
        s.git("repo", ["commit", "-q", "-a", "-m", "three"]);
        s.git("repo", ["switch", "-q", "-c", "topic"]);
        s.git("repo", ["branch", "-m", "topic", "renamed"]);
        s.git("repo", ["tag", "-a", "-m", "t", "v1"]);
        s.git("feat", ["commit", "-q", "--allow-empty", "-m", "there"]);
        s.git("repo", ["merge", "-q", "--no-edit", "feat"]);
        s.git("repo", ["stash", "list"]);
        s.write("repo/file", "three\n");
        s.git("repo", ["stash"]);
        s.git("repo", ["notes", "add", "-m", "n"]);
        s.git("repo", ["branch", "-D", "main"]);
    });
}

#[test]
fn an_operation_in_progress() {
    peaceful(usual, "repo", |s| {
        s.write("repo/file", "ours\n");
        s.git("repo", ["commit", "-q", "-a", "-m", "ours"]);
        s.write("feat/file", "theirs\n");
        s.git("feat", ["commit", "-q", "-a", "-m", "theirs"]);
        assert!(!s.try_git("repo", ["merge", "feat"]).status.success());
        assert!(!s.try_git("feat", ["rebase", "main"]).status.success());
        s.git("other", ["bisect", "start"]);
    });
}

#[test]
fn remotes_and_upstreams() {
    let setup = || {
        let s = usual();
        s.git("", ["clone", "-q", "--bare", "repo", "upstream.git"]);
        s
    };
    peaceful(setup, "repo", |s| {
        s.git("repo", ["remote", "add", "origin", s.path("upstream.git").to_str().unwrap()]);
        s.git("repo", ["fetch", "-q", "origin"]);
        s.git("repo", ["branch", "-q", "--set-upstream-to=origin/main", "main"]);
        s.git("repo", ["switch", "-q", "-c", "x", "--track", "origin/feat"]);
        s.git("repo", ["push", "-q", "-u", "origin", "x"]);
        s.git("repo", ["remote", "rename", "origin", "up"]);
        s.git("repo", ["pull", "-q", "up", "main"]);
    });
}

#[test]
fn sparse_checkouts() {
    peaceful(usual, "repo", |s| {
        s.git("repo", ["sparse-checkout", "set", "dir"]);
        s.git("feat", ["sparse-checkout", "set", "dir"]);
        s.git("repo", ["sparse-checkout", "disable"]);
    });
    let bare = || {
        let s = usual();
        s.git("", ["clone", "-q", "--bare", "repo", "bare.git"]);
        s.git("bare.git", ["worktree", "add", "-q", "../w", "feat"]);
        s
    };
    // git moves core.bare to config.worktree.
    peaceful(bare, "w", |s| {
        s.git("w", ["sparse-checkout", "set", "dir"]);
        assert!(s.text("bare.git/config.worktree").contains("bare"));
    });
}

#[test]
fn submodules() {
    let setup = || {
        let s = usual();
        s.repository("lib");
        let add = ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "../lib", "sub"];
        s.git("repo", add);
        s.git("repo", ["commit", "-q", "-m", "sub"]);
        s
    };
    peaceful(setup, "repo", |s| {
        s.git("repo/sub", ["commit", "-q", "--allow-empty", "-m", "in it"]);
        s.git("repo/sub", ["switch", "-q", "-c", "topic"]);
        s.git("repo", ["submodule", "--quiet", "sync"]);
        s.git("repo", ["add", "sub"]);
    });
    peaceful(setup, "repo", |s| {
        s.git("repo", ["submodule", "--quiet", "deinit", "-f", "sub"]);
        s.git("repo", ["rm", "-q", "sub"]);
    });
    peaceful(setup, "repo", |s| {
        s.git("repo", ["worktree", "add", "-q", "../linked"]);
        s.git("linked", ["-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init"]);
    });
}

#[test]
fn initialised_again_and_maintained() {
    peaceful(usual, "repo", |s| {
        std::fs::remove_dir_all(s.path("repo/.git/hooks")).unwrap();
        s.git("repo", ["init", "-q"]);
        assert!(s.path("repo/.git/hooks").exists());
        s.write("repo/.git/info/exclude", "*.log\n");
        s.write("repo/.git/description", "mine\n");
    });
}

#[test]
fn other_formats() {
    let sha256 = || {
        let s = Scratch::new();
        s.repository_with("repo", &["--object-format=sha256"]);
        s.git("repo", ["worktree", "add", "-q", "../feat"]);
        s.git("repo", ["worktree", "add", "-q", "../other"]);
        s
    };
    peaceful(sha256, "repo", human);
    let s = Scratch::new();
    if s.has_git(2, 45) {
        let reftable = || {
            let s = Scratch::new();
            s.repository_with("repo", &["--ref-format=reftable"]);
            s.git("repo", ["worktree", "add", "-q", "../feat"]);
            s.git("repo", ["worktree", "add", "-q", "../other"]);
            s
        };
        peaceful(reftable, "repo", |s| {
            human(s);
            s.git("repo", ["pack-refs", "--all"]);
            s.git("repo", ["gc", "-q"]);
        });
    }
}

#[test]
fn another_session_at_work() {
    peaceful(usual, "repo", |s| {
        s.git("repo", ["worktree", "add", "-q", "../repo-worktrees/other-12345678/w"]);
        s.write("repo-worktrees/other-12345678/w/x", "x\n");
        s.git("repo-worktrees/other-12345678/w", ["add", "x"]);
        s.git("repo-worktrees/other-12345678/w", ["commit", "-q", "-m", "x"]);
    });
}

#[test]
fn a_person_who_uses_symlinks() {
    use std::os::unix::fs::symlink;
    let setup = || {
        let s = usual();
        s.write("home/exclude", "*.o\n");
        std::fs::remove_file(s.path("repo/.git/info/exclude")).unwrap();
        symlink(s.path("home/exclude"), s.path("repo/.git/info/exclude")).unwrap();
        std::fs::rename(s.path("repo/.git/hooks"), s.path("home/hooks")).unwrap();
        symlink(s.path("home/hooks"), s.path("repo/.git/hooks")).unwrap();
        symlink(s.path("home"), s.path("repo/.git/rr-cache")).unwrap();
        symlink(s.path("home/exclude"), s.path("repo/.git/worktrees/feat/mine")).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        s
    };
    peaceful(setup, "repo", human);
}
