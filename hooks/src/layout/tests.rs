use super::*;
use crate::fixture::Scratch;
use std::os::unix::fs::symlink;

fn session() -> SessionId {
    "s1".parse().unwrap()
}

fn found(path: &Path) -> Repository {
    find(path, &session(), &[]).unwrap().unwrap()
}

#[test]
fn a_main_checkout_from_its_top_and_from_below() {
    let s = Scratch::new();
    let top = s.repository("repo");
    std::fs::create_dir_all(top.join("a/b")).unwrap();
    for workspace in [top.clone(), top.join("a/b")] {
        let repository = found(&workspace);
        assert_eq!(repository.common_dir, top.join(".git"));
        assert_eq!(repository.git_dir, top.join(".git"));
        assert_eq!(repository.checkout, Checkout::Main { top: top.clone() });
        assert_eq!(repository.main_checkout, Some(top.clone()));
        assert_eq!(repository.worktrees_root, s.path("repo-worktrees"));
        assert_eq!(
            repository.session_folders,
            [s.path("repo-worktrees").join(session().worktree_folder(&top.join(".git")))]
        );
    }
    assert_eq!(find(&s.root, &session(), &[]).unwrap(), None);
}

#[test]
fn a_linked_worktree_and_its_siblings() {
    let s = Scratch::new();
    let top = s.repository("repo");
    s.git("repo", ["worktree", "add", "-q", "../feat"]);
    s.git("repo", ["worktree", "add", "-q", "../gone"]);
    std::fs::remove_dir_all(s.path("gone")).unwrap();
    let folder = found(&top).session_folders[0].clone();
    s.git("repo", ["worktree", "add", "-q", folder.join("mine").to_str().unwrap()]);
    let repository = found(&s.path("feat"));
    assert_eq!(repository.common_dir, top.join(".git"));
    assert_eq!(repository.git_dir, top.join(".git/worktrees/feat"));
    assert_eq!(repository.checkout, Checkout::Linked { top: s.path("feat"), entry: "feat".to_owned() });
    assert_eq!(repository.main_checkout, Some(top));
    assert_eq!(
        repository.entries,
        [
            Entry { id: "feat".into(), worktree: Some(s.path("feat")), own: true },
            Entry { id: "gone".into(), worktree: Some(s.path("gone")), own: false },
            Entry { id: "mine".into(), worktree: Some(folder.join("mine")), own: true },
        ]
    );
}

#[test]
fn relative_pointers() {
    let s = Scratch::new();
    let top = s.repository("repo");
    s.git("repo", ["worktree", "add", "-q", "../feat"]);
    s.write("repo/.git/worktrees/feat/gitdir", "../../../../feat/.git\n");
    s.write("feat/.git", "gitdir: ../repo/.git/worktrees/feat\n");
    let repository = found(&s.path("feat"));
    assert_eq!(repository.git_dir, top.join(".git/worktrees/feat"));
    assert_eq!(repository.entries[0].worktree, Some(s.path("feat")));
}

#[test]
fn bare_repositories() {
    let s = Scratch::new();
    s.repository("seed");
    s.git("", ["clone", "-q", "--bare", "seed", "foo.git"]);
    let repository = found(&s.path("foo.git/refs"));
    assert_eq!(repository.checkout, Checkout::Bare);
    assert_eq!(repository.main_checkout, None);
    assert_eq!(repository.worktrees_root, s.path("foo-worktrees"));
    s.git("foo.git", ["worktree", "add", "-q", "../w", "main"]);
    let linked = found(&s.path("w"));
    assert_eq!(linked.common_dir, s.path("foo.git"));
    assert_eq!((linked.main_checkout, linked.worktrees_root), (None, s.path("foo-worktrees")));
    // The two usual ways to keep a bare repository and its worktrees in one directory.
    s.git("", ["clone", "-q", "--bare", "seed", "project/.git"]);
    assert_eq!(found(&s.path("project")).worktrees_root, s.path("project-worktrees"));
    s.git("", ["clone", "-q", "--bare", "seed", "other/.bare"]);
    s.write("other/.git", "gitdir: ./.bare\n");
    let repository = found(&s.path("other"));
    assert_eq!(repository.common_dir, s.path("other/.bare"));
    assert_eq!(repository.checkout, Checkout::Bare);
    assert_eq!(repository.worktrees_root, s.path("other-worktrees"));
}

#[test]
fn a_bare_repository_that_keeps_its_worktrees_configuration_apart() {
    let s = Scratch::new();
    s.repository("seed");
    s.git("", ["clone", "-q", "--bare", "seed", "foo.git"]);
    s.git("foo.git", ["worktree", "add", "-q", "../w", "main"]);
    s.git("w", ["sparse-checkout", "set", "x"]);
    assert!(s.text("foo.git/config.worktree").contains("bare = true"));
    assert_eq!(found(&s.path("w")).main_checkout, None);
    assert_eq!(found(&s.path("foo.git")).checkout, Checkout::Bare);
}

#[test]
fn a_submodule_and_a_separate_git_dir() {
    let s = Scratch::new();
    s.repository("lib");
    let top = s.repository("super");
    s.git("super", ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "../lib", "sub"]);
    let repository = found(&s.path("super/sub"));
    assert_eq!(repository.common_dir, top.join(".git/modules/sub"));
    assert_eq!(repository.checkout, Checkout::Main { top: top.join("sub") });
    assert_eq!(repository.worktrees_root, top.join("sub-worktrees"));
    s.git("super/sub", ["worktree", "add", "-q", "../../subfeat"]);
    let linked = found(&s.path("subfeat"));
    assert_eq!(linked.main_checkout, Some(top.join("sub")));

    s.git("", ["init", "-q", "--separate-git-dir", "apart.git", "apart"]);
    let repository = found(&s.path("apart"));
    assert_eq!(repository.common_dir, s.path("apart.git"));
    assert_eq!(repository.checkout, Checkout::Main { top: s.path("apart") });
}

#[test]
fn sha256_and_reftable() {
    let s = Scratch::new();
    s.repository_with("new", &["--object-format=sha256"]);
    assert_eq!(found(&s.path("new")).common_dir, s.path("new/.git"));
    if s.has_git(2, 45) {
        s.repository_with("table", &["--ref-format=reftable"]);
        s.git("table", ["worktree", "add", "-q", "../tabled"]);
        assert_eq!(found(&s.path("tabled")).common_dir, s.path("table/.git"));
    }
}

#[test]
fn a_planted_commondir_is_refused() {
    let s = Scratch::new();
    s.repository("repo");
    s.repository("evil");
    s.write("repo/.git/commondir", "../../evil/.git\n");
    match find(&s.path("repo"), &session(), &[]) {
        Err(Error::CommondirPlanted { path }) => assert_eq!(path, s.path("repo/.git/commondir")),
        other => panic!("{other:?}"),
    }
    // The same behind a `.git` file, where it could be taken for an entry.
    s.git("", ["init", "-q", "--separate-git-dir", "apart.git", "apart"]);
    s.write("apart.git/commondir", "../evil/.git\n");
    assert!(matches!(find(&s.path("apart"), &session(), &[]), Err(Error::CommondirPlanted { .. })));
}

#[test]
fn somebody_elses_entry_is_refused_by_name() {
    let s = Scratch::new();
    s.repository("repo");
    s.git("repo", ["worktree", "add", "-q", "../feat"]);
    s.write("thief/.git", &s.text("feat/.git"));
    match find(&s.path("thief"), &session(), &[]) {
        Err(Error::NotPointedBack { owner, entry, .. }) => {
            assert_eq!(owner, s.path("feat"));
            assert_eq!(entry, s.path("repo/.git/worktrees/feat"));
        }
        other => panic!("{other:?}"),
    }
    // An entry that claims a worktree whose `.git` names another entry.
    s.git("repo", ["worktree", "add", "-q", "../other"]);
    s.write("feat/.git", &s.text("other/.git"));
    assert!(matches!(find(&s.path("feat"), &session(), &[]), Err(Error::NotPointedBack { .. })));
}

#[test]
fn an_entry_of_another_common_dir_is_refused() {
    let s = Scratch::new();
    s.repository("repo");
    s.repository("evil");
    s.git("repo", ["worktree", "add", "-q", "../feat"]);
    s.write("repo/.git/worktrees/feat/commondir", &format!("{}\n", s.path("evil/.git").display()));
    match find(&s.path("feat"), &session(), &[]) {
        Err(Error::NotAnEntry { common_dir, .. }) => assert_eq!(common_dir, s.path("evil/.git")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn core_worktree_for_all_worktrees_is_refused() {
    let s = Scratch::new();
    let top = s.repository("repo");
    s.git("repo", ["worktree", "add", "-q", "../feat"]);
    s.git("repo", ["config", "core.worktree", top.to_str().unwrap()]);
    assert_eq!(found(&top).main_checkout, Some(top.clone()), "harmless without the extension");
    s.git("repo", ["config", "extensions.worktreeConfig", "true"]);
    for workspace in ["repo", "feat"] {
        match find(&s.path(workspace), &session(), &[]) {
            Err(Error::WorktreesMapped { top: found, .. }) => assert_eq!(found, top),
            other => panic!("{workspace}: {other:?}"),
        }
    }
}

#[test]
fn core_worktree_elsewhere_is_refused() {
    let s = Scratch::new();
    s.repository("repo");
    std::fs::create_dir(s.path("else")).unwrap();
    s.git("repo", ["config", "core.worktree", s.path("else").to_str().unwrap()]);
    assert!(matches!(find(&s.path("repo"), &session(), &[]), Err(Error::TopElsewhere { .. })));
}

#[test]
fn bookkeeping_is_no_workspace() {
    let s = Scratch::new();
    s.repository("repo");
    s.git("repo", ["worktree", "add", "-q", "../feat"]);
    for inside in ["repo/.git", "repo/.git/refs/heads", "repo/.git/worktrees/feat"] {
        assert!(
            matches!(find(&s.path(inside), &session(), &[]), Err(Error::InsideGitDir { .. })),
            "{inside}"
        );
    }
}

#[test]
fn scattered_bookkeeping_is_refused() {
    let s = Scratch::new();
    s.repository("repo");
    std::fs::rename(s.path("repo/.git/refs"), s.path("refs")).unwrap();
    symlink(s.path("refs"), s.path("repo/.git/refs")).unwrap();
    assert!(matches!(find(&s.path("repo"), &session(), &[]), Err(Error::Scattered { .. })));
}

#[test]
fn a_dot_git_symlink_is_resolved() {
    let s = Scratch::new();
    s.repository("repo");
    std::fs::rename(s.path("repo/.git"), s.path("real.git")).unwrap();
    symlink(s.path("real.git"), s.path("repo/.git")).unwrap();
    let repository = found(&s.path("repo"));
    assert_eq!(repository.common_dir, s.path("real.git"));
    assert_eq!(repository.main_checkout, Some(s.path("repo")));
}

#[test]
fn hostile_entries_are_listed_as_nobodys() {
    let s = Scratch::new();
    let top = s.repository("repo");
    s.git("repo", ["worktree", "add", "-q", "../feat"]);
    let entries = top.join(".git/worktrees");
    symlink("feat", entries.join("link")).unwrap();
    for name in ["empty", "fifo", "sparse", "latin", "loop"] {
        std::fs::create_dir(entries.join(name)).unwrap();
    }
    nix::unistd::mkfifo(&entries.join("fifo/gitdir"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::File::create(entries.join("sparse/gitdir")).unwrap().set_len(1 << 30).unwrap();
    std::fs::write(entries.join("latin/gitdir"), b"/x/\xff/.git\n").unwrap();
    symlink("gitdir", entries.join("loop/gitdir")).unwrap();
    std::fs::write(entries.join("a file"), "").unwrap();
    let repository = found(&top);
    let list: Vec<_> =
        repository.entries.iter().map(|e| (e.id.as_str(), e.worktree.is_some(), e.own)).collect();
    assert_eq!(
        list,
        [
            ("empty", false, false),
            ("feat", true, false),
            ("fifo", false, false),
            ("latin", false, false),
            ("link", false, false),
            ("loop", false, false),
            ("sparse", false, false),
        ]
    );
    std::fs::create_dir(entries.join(OsStr::from_bytes(b"\xff"))).unwrap();
    assert!(matches!(find(&top, &session(), &[]), Err(Error::NotUtf8 { .. })));
}

#[test]
fn the_environment_is_not_looked_at() {
    // Another process, because the environment of a running test belongs to all tests.
    let s = Scratch::new();
    let top = s.repository("repo");
    s.repository("evil");
    let this = std::env::current_exe().unwrap();
    let status = std::process::Command::new(this)
        .args(["--exact", "layout::tests::found_despite_the_environment", "--ignored"])
        .env("GIT_DIR", s.path("evil/.git"))
        .env("GIT_COMMON_DIR", s.path("evil/.git"))
        .env("GIT_WORK_TREE", s.path("evil"))
        .env("LAYOUT_TEST_TOP", &top)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
#[ignore = "run by the_environment_is_not_looked_at"]
fn found_despite_the_environment() {
    let top = PathBuf::from(std::env::var_os("LAYOUT_TEST_TOP").unwrap());
    assert_eq!(found(&top).common_dir, top.join(".git"));
}

#[test]
fn roots_get_a_folder_per_repository() {
    let s = Scratch::new();
    let top = s.repository("repo");
    s.repository("sub/repo");
    let roots = [s.path("roots")];
    let one = find(&top, &session(), &roots).unwrap().unwrap();
    let two = find(&s.path("sub/repo"), &session(), &roots).unwrap().unwrap();
    assert_ne!(one.session_folders[1], two.session_folders[1]);
    assert!(one.session_folders[1].starts_with(&one.other_roots[0]));
    assert_ne!(one.other_roots, two.other_roots, "two repositories of one name");
}
