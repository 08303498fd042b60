//! Whatever form git gives an index, on either side.

use super::*;

const FORMS: [&str; 8] =
    ["plain", "split", "split-empty", "untracked", "fsmonitor", "v4", "v4-split", "unhashed"];

/// Gives an index this form; `run` is git there.
fn form(form: &str, run: &dyn Fn(&[&str])) {
    match form {
        "split" => {
            run(&["config", "core.splitIndex", "true"]);
            run(&["config", "splitIndex.maxPercentChange", "100"]);
            run(&["update-index", "--split-index"]);
        }
        "split-empty" => run(&["update-index", "--split-index"]),
        "untracked" => {
            run(&["config", "core.untrackedCache", "true"]);
            run(&["status"]);
        }
        "fsmonitor" => {
            run(&["config", "core.fsmonitor", "/bin/true"]);
            run(&["update-index", "--fsmonitor"]);
        }
        "v4" => {
            run(&["config", "index.version", "4"]);
            run(&["update-index", "--index-version", "4"]);
        }
        "v4-split" => {
            run(&["config", "splitIndex.maxPercentChange", "100"]);
            run(&["update-index", "--index-version", "4"]);
            run(&["update-index", "--split-index"]);
        }
        "unhashed" => {
            run(&["config", "index.skipHash", "true"]);
            run(&["update-index", "--force-write-index"]);
        }
        _ => {}
    }
}

fn mark(form: &str) -> &'static [u8] {
    match form {
        "split" | "split-empty" | "v4-split" => b"link",
        "untracked" => b"UNTR",
        "fsmonitor" => b"FSMN",
        "v4" => b"DIRC\0\0\0\x04",
        "unhashed" => &[0; 20],
        _ => b"DIRC",
    }
}

fn has(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

fn through(inside: &str, outside: &str, kind: Kind) {
    let t = Turn::new(kind, |_| ());
    form(inside, &|args| drop(t.inside(args)));
    form(outside, &|args| drop(t.host(args)));
    t.write("dir/in", "in\n");
    t.inside(&["add", "dir/in"]);
    t.inside(&["rm", "-q", "--cached", "a"]);
    t.write("z", "edited inside\n");
    t.inside(&["add", "z"]);
    t.write("out", "out\n");
    t.host(&["add", "out"]);
    t.host(&["rm", "-q", "--cached", "file"]);
    let name = format!("{inside} in, {outside} out, {kind}");
    for (path, what) in [("shadow.git", inside), ("host/.git", outside)] {
        let bytes = std::fs::read(t.s.path(path).join("index")).unwrap();
        assert!(has(&bytes, mark(what)), "{name}: {path} does not have the form");
    }
    let merged = t.import(Flags::Drop);
    assert_eq!(merged.changed, ["a", "dir/in", "z"], "{name}");
    assert!(merged.conflicts.is_empty(), "{name}");
    assert_eq!(t.staged(), ["D a", "A dir/in", "D file", "A out", "M z"], "{name}");
    let bytes = merged.bytes().unwrap();
    for extension in [b"link", b"UNTR", b"FSMN", b"TREE", b"EOIE", b"IEOT", b"REUC"] {
        assert!(!has(&bytes, extension), "{name}");
    }
    assert_eq!(bytes[7], if outside.starts_with("v4") { 4 } else { 2 }, "{name}");
    let zero = bytes[bytes.len() - kind.len_in_bytes()..].iter().all(|byte| *byte == 0);
    assert_eq!(zero, outside == "unhashed", "{name}");
}

#[test]
fn every_form_inside() {
    for inside in FORMS {
        through(inside, "plain", Kind::Sha1);
    }
}

#[test]
fn every_form_outside() {
    for outside in FORMS {
        through("split", outside, Kind::Sha1);
    }
    through("v4-split", "v4", Kind::Sha256);
    through("unhashed", "split", Kind::Sha256);
}

#[test]
fn entries_are_those_that_git_lists() {
    for what in FORMS {
        let t = Turn::sha1();
        form(what, &|args| drop(t.inside(args)));
        let long = format!("dir/{}/{}", "d".repeat(200), "long".repeat(60));
        for path in ["dir/0", "dir/zz", &long, &format!("{long}er"), "-", "dir.x", "dir-x/y", "e\u{301}"] {
            t.write(path, path);
            t.inside(&["add", "--", path]);
        }
        t.inside(&["rm", "-q", "--cached", "dir/b"]);
        t.inside(&["update-index", "--chmod=+x", "dir/c"]);
        t.write("planned", "");
        t.inside(&["add", "-N", "planned"]);
        let listed = t.inside(&["ls-files", "-z", "--stage"]);
        let read: String = t
            .shadow_index()
            .iter()
            .map(|(path, entry)| format!("{:o} {} {}\t{path}\0", entry.mode(), entry.id(), entry.stage()))
            .collect();
        assert_eq!(read, listed, "{what}");
    }
}

#[test]
fn a_linked_worktree_has_its_shared_index_beside_its_index() {
    let t = Turn::sha1();
    t.host(&["worktree", "add", "-q", "../tree", "-b", "tree"]);
    let git_dir = t.git_dir().join("worktrees/tree");
    t.s.git("tree", ["update-index", "--split-index"]);
    t.s.git("tree", ["update-index", "--chmod=+x", "a"]);
    assert!(has(&std::fs::read(git_dir.join("index")).unwrap(), b"link"));
    let read = entries(&git_dir, t.kind, false).unwrap();
    assert_eq!(read.len(), 5);
    assert_eq!(read.get("a".into()).unwrap().mode(), EXECUTABLE);
}

#[test]
fn a_refresh_by_git_changes_bytes_but_no_entry() {
    let t = Turn::sha1();
    let (git_dir, before) = (t.git_dir(), t.host_index());
    let bytes = std::fs::read(git_dir.join("index")).unwrap();
    assert!(same_bytes(&dir(&git_dir), "index".as_ref(), &bytes).unwrap());
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(100);
    std::fs::File::options().write(true).open(t.s.path("host/a")).unwrap().set_modified(then).unwrap();
    t.host(&["status"]);
    assert!(!same_bytes(&dir(&git_dir), "index".as_ref(), &bytes).unwrap());
    assert!(!same_bytes(&dir(&git_dir), "absent".as_ref(), &bytes).unwrap());
    assert!(t.host_index().same(&before));
    assert_eq!(t.host_index().digest(), before.digest());
    for args in [["update-index", "--skip-worktree", "a"], ["update-index", "--chmod=+x", "a"]] {
        let digest = t.host_index().digest();
        t.host(&args);
        assert_ne!(t.host_index().digest(), digest);
    }
}

#[test]
fn a_checkout_that_leaves_directories_out() {
    let t = Turn::new(Kind::Sha1, |s| {
        s.write("host/keep/x", "x\n");
        s.write("host/out/deep/y", "y\n");
        s.git("host", ["add", "."]);
        s.git("host", ["commit", "-q", "-m", "more"]);
        s.git("host", ["sparse-checkout", "set", "--sparse-index", "keep"]);
    });
    assert!(t.host_index().get("out/".into()).is_some());
    t.write("keep/x", "in\n");
    t.inside(&["add", "keep/x"]);
    let merged = t.import(Flags::Drop);
    assert_eq!(merged.changed, ["keep/x"]);
    assert!(has(&merged.bytes().unwrap(), b"sdir"));
    assert_eq!(t.status(), ["M  keep/x"]);
    assert!(t.host_index().get("out/".into()).is_some());
    // git crashes on such an entry here, the user's own as well.
    t.write("out/planned", "planned\n");
    t.inside(&["-c", "index.sparse=false", "add", "--sparse", "-N", "out/planned"]);
    assert!(t.shadow_index().get("out/planned".into()).is_some());
    let base = merged.base(Some(&t.base), &t.shadow_index()).unwrap();
    let again = merge(Some(&base), &t.host_index(), &t.shadow_index(), Flags::Drop).unwrap();
    assert!(again.entries().get("out/planned".into()).is_none());
    let file = t.s.path("own");
    std::fs::create_dir(&file).unwrap();
    std::fs::write(file.join("index"), t.shadow_index().fresh(Flags::Sparse).unwrap()).unwrap();
    assert_eq!(entries(&file, t.kind, false).unwrap().len(), t.shadow_index().len() - 1);
    t.inside(&["-c", "index.sparse=false", "rm", "-q", "--sparse", "--cached", "out/planned"]);
    std::fs::remove_file(t.s.path("host/out/planned")).unwrap();
    std::fs::remove_dir(t.s.path("host/out")).unwrap();
    // As files instead of as a directory: they are left out all the same.
    t.inside(&["sparse-checkout", "reapply", "--no-sparse-index"]);
    let base = merged.base(Some(&t.base), &t.shadow_index()).unwrap();
    assert!(base.get("out/".into()).is_some());
    let t = Turn { base, ..t };
    t.import(Flags::Drop);
    assert!(t.host_index().get("out/deep/y".into()).unwrap().skipped());
    assert_eq!(t.status(), ["M  keep/x"]);
}

#[test]
fn a_directory_left_out_by_the_session_alone() {
    let t = Turn::sha1();
    t.inside(&["sparse-checkout", "set", "--sparse-index", "none"]);
    assert!(t.shadow_index().get("dir/".into()).is_some());
    assert!(matches!(t.merge(Flags::Drop), Err(Error::Sparse(path)) if path == "dir/"));
    assert!(matches!(t.shadow_index().fresh(Flags::Drop), Err(Error::Sparse(_))));
    // With the session's patterns it is a sparse checkout on the host as well.
    for key in ["core.sparseCheckout", "core.sparseCheckoutCone", "index.sparse"] {
        t.host(&["config", key, "true"]);
    }
    std::fs::create_dir_all(t.git_dir().join("info")).unwrap();
    std::fs::copy(t.s.path("shadow.git/info/sparse-checkout"), t.git_dir().join("info/sparse-checkout"))
        .unwrap();
    let merged = t.import(Flags::Sparse);
    assert_eq!(merged.changed, ["dir/", "dir/b", "dir/c"]);
    assert_eq!(t.status(), Vec::<String>::new());

    // The host's change below it is not lost.
    let t = Turn::sha1();
    t.inside(&["sparse-checkout", "set", "--sparse-index", "none"]);
    t.write("dir/new", "new\n");
    t.host(&["add", "dir/new"]);
    let merged = t.merge(Flags::Sparse).unwrap();
    assert_eq!(merged.conflicts, ["dir/", "dir/b", "dir/c"]);
    assert!(merged.is_noop());
}
