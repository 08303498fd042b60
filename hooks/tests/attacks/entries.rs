//! Worktree entries: their pointers, copies of them, and what is put in their place.

use std::os::unix::fs::symlink;

use super::{Attack, capture, checked, human, kinds, picture, usual};
use crate::fixture::Scratch;

/// A repository whose configuration runs the trap.
fn evil(s: &Scratch) {
    s.git("", ["init", "-q", "-b", "main", "evil"]);
    let trap = s.trap("trap.sh", "PWNED");
    drop(trap);
    s.git("evil", ["config", "core.fsmonitor", s.path("trap.sh").to_str().unwrap()]);
    s.git("evil", ["config", "core.repositoryformatversion", "0"]);
}

fn status_in_feat(s: &Scratch) {
    s.try_git("feat", ["status"]);
}

#[test]
fn commondir_of_an_entry_changed() {
    let plant = |s: &Scratch| {
        evil(s);
        s.write("repo/.git/worktrees/feat/commondir", "../../../../evil/.git\n");
    };
    let remove = |s: &Scratch| {
        s.try_git("repo", ["worktree", "remove", "../feat"]);
    };
    for host in [&status_in_feat as &dyn Fn(&Scratch), &remove] {
        let findings = Attack { plant: &plant, host, ..Attack::default() }.fails();
        assert_eq!(kinds(&findings), ["entry-commondir-changed"]);
        assert_eq!(findings[0].entry.as_deref(), Some("feat"));
    }
}

#[test]
fn commondir_of_an_entry_deleted_and_configuration_planted() {
    let findings = Attack {
        plant: &|s| {
            s.trap("trap.sh", "PWNED");
            let entry = s.path("repo/.git/worktrees/feat");
            std::fs::remove_file(entry.join("commondir")).unwrap();
            std::fs::create_dir_all(entry.join("objects")).unwrap();
            std::fs::create_dir_all(entry.join("refs/heads")).unwrap();
            let text = format!("[core]\n\tfsmonitor = {}\n", s.path("trap.sh").display());
            s.write("repo/.git/worktrees/feat/config", &text);
        },
        host: &status_in_feat,
        ..Attack::default()
    }
    .fails();
    assert_eq!(kinds(&findings), ["entry-commondir-changed"]);
}

#[test]
fn an_entry_replaced_by_a_symlink() {
    // The original is moved aside, or is gone for good.
    for gone in [false, true] {
        let findings = Attack {
            plant: &|s| {
                evil(s);
                let entry = s.path("repo/.git/worktrees/feat");
                let copy = s.path("evil-entry");
                copy_tree(&entry, &copy);
                s.write("evil-entry/commondir", &format!("{}\n", s.path("evil/.git").display()));
                if gone {
                    std::fs::remove_dir_all(&entry).unwrap();
                } else {
                    std::fs::rename(&entry, s.path("repo/.git/aside")).unwrap();
                }
                symlink(&copy, &entry).unwrap();
            },
            host: &status_in_feat,
            lost: if gone { &["repo/.git/worktrees/feat"] } else { &[] },
            ..Attack::default()
        }
        .fails();
        let expected: &[&str] =
            if gone { &["entry-deleted", "entry-replaced"] } else { &["entry-moved", "entry-replaced"] };
        assert!(kinds(&findings).iter().all(|kind| expected.contains(kind)), "{findings:#?}");
    }
}

#[test]
fn worktrees_replaced_by_a_symlink() {
    let findings = Attack {
        plant: &|s| {
            evil(s);
            let worktrees = s.path("repo/.git/worktrees");
            copy_tree(&worktrees, &s.path("evil-worktrees"));
            s.write("evil-worktrees/feat/commondir", &format!("{}\n", s.path("evil/.git").display()));
            std::fs::rename(&worktrees, s.path("repo/.git/aside")).unwrap();
            symlink(s.path("evil-worktrees"), &worktrees).unwrap();
        },
        host: &status_in_feat,
        ..Attack::default()
    }
    .fails();
    assert!(kinds(&findings).contains(&"directory-moved"), "{findings:#?}");
}

#[test]
fn a_new_entry_elsewhere() {
    let findings = Attack {
        plant: &|s| {
            evil(s);
            let entry = s.path("repo/.git/worktrees/zz");
            copy_tree(&s.path("repo/.git/worktrees/feat"), &entry);
            std::fs::remove_file(entry.join("index")).unwrap();
            std::fs::create_dir(s.path("elsewhere")).unwrap();
            s.write("elsewhere/.git", &format!("gitdir: {}\n", entry.display()));
            s.write("repo/.git/worktrees/zz/gitdir", &format!("{}\n", s.path("elsewhere/.git").display()));
            s.write("repo/.git/worktrees/zz/commondir", &format!("{}\n", s.path("evil/.git").display()));
        },
        host: &|s| {
            s.try_git("repo", ["worktree", "remove", "../elsewhere"]);
        },
        ..Attack::default()
    }
    .fails();
    assert!(kinds(&findings).contains(&"entry-commondir-changed"), "{findings:#?}");
}

#[test]
fn a_duplicate_makes_gc_delete_the_victims_entry() {
    let findings = Attack {
        plant: &|s| {
            let entry = s.path("repo/.git/worktrees/0dup");
            std::fs::create_dir(&entry).unwrap();
            for name in ["gitdir", "commondir", "HEAD"] {
                std::fs::copy(s.path("repo/.git/worktrees/feat").join(name), entry.join(name)).unwrap();
            }
        },
        host: &|s| {
            s.try_git("repo", ["worktree", "prune"]);
        },
        hit: &|s| !s.path("repo/.git/worktrees/feat").exists(),
        ..Attack::default()
    }
    .fails();
    assert_eq!(kinds(&findings), ["entry-duplicate"]);
    assert_eq!(findings[0].entry.as_deref(), Some("0dup"));
}

#[test]
fn an_entry_that_claims_the_main_checkout() {
    let s = usual();
    let baseline = capture(&s, "repo");
    copy_tree(&s.path("repo/.git/worktrees/feat"), &s.path("repo/.git/worktrees/main"));
    s.write("repo/.git/worktrees/main/gitdir", &format!("{}\n", s.path("repo/.git").display()));
    let findings = checked(&s, &baseline);
    assert_eq!(kinds(&findings), ["entry-duplicate"]);
    assert!(!s.path("repo/.git/worktrees/main").exists());
}

#[test]
fn a_gitdir_that_is_missing_or_leads_nowhere() {
    let garbage: &[Option<&str>] =
        &[None, Some("/no/where/.git\n"), Some("garbage"), Some(""), Some("\0/.git\n")];
    for content in garbage {
        let findings = Attack {
            plant: &|s| {
                let path = s.path("repo/.git/worktrees/feat/gitdir");
                std::fs::remove_file(&path).unwrap();
                if let Some(text) = content {
                    std::fs::write(path, text).unwrap();
                }
            },
            host: &|s| {
                s.try_git("repo", ["worktree", "prune", "--expire=now"]);
            },
            hit: &|s| !s.path("repo/.git/worktrees/feat").exists(),
            ..Attack::default()
        }
        .fails();
        assert_eq!(kinds(&findings), ["entry-gitdir-changed"], "{content:?}");
    }
}

#[test]
fn a_gitdir_that_claims_another_worktree() {
    let s = usual();
    let baseline = capture(&s, "repo");
    let before = picture(&s.path("repo/.git/worktrees"));
    s.write("repo/.git/worktrees/feat/gitdir", &s.text("repo/.git/worktrees/other/gitdir"));
    let findings = checked(&s, &baseline);
    assert!(kinds(&findings).contains(&"entry-gitdir-changed"), "{findings:#?}");
    super::same(&super::picture(&s.path("repo/.git/worktrees")), &before);
}

#[test]
fn a_worktree_that_was_copied_does_not_take_the_entry_over() {
    let s = usual();
    let baseline = capture(&s, "repo");
    copy_tree(&s.path("feat"), &s.path("repo/thief"));
    s.write("repo/.git/worktrees/feat/gitdir", &format!("{}\n", s.path("repo/thief/.git").display()));
    let findings = checked(&s, &baseline);
    assert_eq!(kinds(&findings), ["entry-gitdir-changed"]);
    assert_eq!(s.text("repo/.git/worktrees/feat/gitdir"), format!("{}\n", s.path("feat/.git").display()));
}

#[test]
fn a_deleted_entry_is_made_again() {
    let s = usual();
    let head = s.text("repo/.git/worktrees/feat/HEAD");
    let baseline = capture(&s, "repo");
    human(&s);
    std::fs::remove_dir_all(s.path("repo/.git/worktrees/feat")).unwrap();
    assert!(!s.try_git("feat", ["status"]).status.success(), "control");
    let findings = checked(&s, &baseline);
    assert_eq!(kinds(&findings), ["entry-deleted"]);
    assert_eq!(s.text("repo/.git/worktrees/feat/HEAD"), head);
    s.git("feat", ["reset", "-q"]);
    assert_eq!(s.git("feat", ["status", "--short"]), "?? by-human");
    assert!(s.git("repo", ["worktree", "list"]).contains("feat"));
}

#[test]
fn all_entries_deleted_with_their_directory() {
    let s = usual();
    let baseline = capture(&s, "repo");
    std::fs::remove_dir_all(s.path("repo/.git/worktrees")).unwrap();
    let findings = checked(&s, &baseline);
    assert_eq!(kinds(&findings), ["entry-deleted"]);
    assert_eq!(findings.len(), 2);
    s.git("feat", ["reset", "-q"]);
    s.git("other", ["reset", "-q"]);
}

#[test]
fn entries_moved_aside_or_exchanged() {
    let s = usual();
    let baseline = capture(&s, "repo");
    let before = picture(&s.path("repo/.git/worktrees"));
    let at = |name: &str| s.path("repo/.git/worktrees").join(name);
    std::fs::rename(at("feat"), at("x")).unwrap();
    let findings = checked(&s, &baseline);
    assert_eq!(kinds(&findings), ["entry-moved"]);
    super::same(&super::picture(&s.path("repo/.git/worktrees")), &before);
    // Moved up, and something else in its place.
    std::fs::rename(at("feat"), s.path("repo/.git/x")).unwrap();
    copy_tree(&at("other"), &at("feat"));
    let findings = checked(&s, &baseline);
    assert!(kinds(&findings).contains(&"entry-moved"), "{findings:#?}");
    super::same(&super::picture(&s.path("repo/.git/worktrees")), &before);
}

#[test]
fn head_and_index_of_an_entry_are_nobodys_to_judge() {
    let s = usual();
    let baseline = capture(&s, "repo");
    s.write("repo/.git/worktrees/feat/HEAD", "ref: refs/heads/main\n");
    s.write("repo/.git/worktrees/feat/locked", "by whom?");
    s.write("repo/.git/worktrees/feat/logs/HEAD", "");
    let before = picture(&s.root);
    assert_eq!(checked(&s, &baseline), []);
    super::same(&super::picture(&s.root), &before);
}

#[test]
fn hooks_in_an_entry_have_no_effect() {
    let s = usual();
    let mark = s.trap("repo/.git/worktrees/feat/hooks/post-index-change", "PWNED");
    s.write("feat/new", "x\n");
    s.git("feat", ["add", "new"]);
    assert!(!mark.exists(), "git runs hooks of an entry now: judge them");
}

#[test]
fn symlinks_in_an_entry() {
    let overwritten = |s: &Scratch| s.text("victim") != "precious\n";
    let victim = || {
        let s = usual();
        s.write("victim", "precious\n");
        s
    };
    let link = |name: &'static str| {
        move |s: &Scratch| {
            let path = s.path("repo/.git/worktrees/feat").join(name);
            let _ = std::fs::remove_file(&path);
            symlink(s.path("victim"), path).unwrap();
        }
    };
    let commit = |s: &Scratch| {
        s.try_git("feat", ["commit", "--allow-empty", "-m", "x"]);
    };
    let repair = |s: &Scratch| {
        s.try_git("repo", ["worktree", "repair", "../feat"]);
    };
    let cases: [(&str, &dyn Fn(&Scratch), &[&str]); 3] = [
        ("COMMIT_EDITMSG", &commit, &[]),
        ("logs/HEAD", &commit, &["repo/.git/worktrees/feat/logs/HEAD"]),
        ("gitdir", &repair, &[]),
    ];
    for (name, host, lost) in cases {
        println!("{name}");
        let plant = link(name);
        let attack =
            Attack { setup: &victim, plant: &plant, host, hit: &overwritten, lost, ..Attack::default() };
        let findings = attack.fails();
        assert!(kinds(&findings).contains(&"symlink-planted"), "{name}: {findings:#?}");
    }
}

#[test]
fn a_symlink_in_place_of_an_entrys_index() {
    let findings = Attack {
        plant: &|s| {
            let index = s.path("repo/.git/worktrees/feat/index");
            std::fs::copy(s.path("repo/.git/index"), s.path("victim")).unwrap();
            std::fs::remove_file(&index).unwrap();
            symlink(s.path("victim"), index).unwrap();
        },
        host: &|s| {
            s.write("feat/new", "x\n");
            s.try_git("feat", ["add", "new"]);
        },
        hit: &|s| std::fs::read(s.path("victim")).unwrap_or_default().windows(3).any(|w| w == b"new"),
        lost: &["repo/.git/worktrees/feat/index"],
        ..Attack::default()
    }
    .fails();
    assert_eq!(kinds(&findings), ["symlink-planted"]);
    assert!(findings[0].detail.contains("git reset"), "{findings:?}");
}

#[test]
fn the_git_file_of_an_own_worktree() {
    let setup = || {
        let s = usual();
        let folder = own_folder(&s);
        s.git("repo", ["worktree", "add", "-q", folder.join("mine").to_str().unwrap(), "-b", "mine"]);
        s
    };
    let own = |s: &Scratch| own_folder(s).join("mine");
    let status = |s: &Scratch| {
        s.try_git(own(s), ["status"]);
    };
    let point = |s: &Scratch| {
        evil(s);
        std::fs::write(own(s).join(".git"), format!("gitdir: {}\n", s.path("evil/.git").display())).unwrap();
    };
    let become_a_repository = |s: &Scratch| {
        evil(s);
        std::fs::remove_file(own(s).join(".git")).unwrap();
        copy_tree(&s.path("evil/.git"), &own(s).join(".git"));
    };
    let link = |s: &Scratch| {
        evil(s);
        std::fs::remove_file(own(s).join(".git")).unwrap();
        symlink(s.path("evil/.git"), own(s).join(".git")).unwrap();
    };
    for plant in [&point as &dyn Fn(&Scratch), &become_a_repository, &link] {
        let findings = Attack { setup: &setup, plant, host: &status, ..Attack::default() }.fails();
        assert_eq!(kinds(&findings), ["pointer-changed"], "{findings:#?}");
    }
}

#[test]
fn the_git_file_of_the_workspace() {
    let findings = Attack {
        workspace: "feat",
        plant: &|s| {
            evil(s);
            s.write("feat/.git", &format!("gitdir: {}\n", s.path("evil/.git").display()));
        },
        host: &status_in_feat,
        ..Attack::default()
    }
    .fails();
    assert_eq!(kinds(&findings), ["pointer-changed"]);
}

/// The session's folder beside the repository.
pub(crate) fn own_folder(s: &Scratch) -> std::path::PathBuf {
    let session: codeoid_spec::id::SessionId = "s1".parse().unwrap();
    s.path("repo-worktrees").join(session.worktree_folder(&s.path("repo/.git")))
}

/// Copies a directory as `cp -a` would, as far as tests need it.
pub(crate) fn copy_tree(from: &std::path::Path, to: &std::path::Path) {
    let status = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}
