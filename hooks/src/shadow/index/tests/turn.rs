//! Turns, with real git on both sides.

use super::*;

#[test]
fn a_commit_inside_and_a_staged_file_outside_do_not_undo_each_other() {
    for kind in [Kind::Sha1, Kind::Sha256] {
        let t = Turn::new(kind, |_| ());
        t.write("f1", "one\ntwo\n");
        t.inside(&["add", "f1"]);
        t.inside(&["commit", "-q", "-m", "f1"]);
        t.write("h", "h\n");
        t.host(&["add", "h"]);
        // The control: the commit alone, and the index says that f1 is to be removed again.
        let bytes = std::fs::read(t.git_dir().join("index")).unwrap();
        let merged = t.import(Flags::Drop);
        t.import_head();
        let merged_bytes = std::fs::read(t.git_dir().join("index")).unwrap();
        std::fs::write(t.git_dir().join("index"), bytes).unwrap();
        assert_eq!(t.staged(), ["D f1", "A h"]);
        std::fs::write(t.git_dir().join("index"), merged_bytes).unwrap();

        assert_eq!(merged.changed, ["f1"]);
        assert!(merged.conflicts.is_empty());
        assert_eq!(t.staged(), ["A h"]);
        assert_eq!(t.status(), ["A  h"]);
        t.host(&["commit", "-q", "-m", "h"]);
        assert_eq!(t.host(&["show", "--name-status", "--format="]), "A\th");
        assert_eq!(t.host(&["show", "HEAD:f1"]), "one\ntwo");
    }
}

#[test]
fn deletions_modes_and_renames_are_taken_over() {
    let t = Turn::sha1();
    t.inside(&["rm", "-q", "a"]);
    t.inside(&["mv", "dir/b", "moved"]);
    t.inside(&["update-index", "--chmod=+x", "z"]);
    std::fs::remove_file(t.s.path("host/dir/c")).unwrap();
    std::os::unix::fs::symlink("z", t.s.path("host/dir/c")).unwrap();
    t.inside(&["add", "dir/c"]);
    let wanted = t.inside(&["write-tree"]);
    let merged = t.import(Flags::Drop);
    assert_eq!(merged.changed, ["a", "dir/b", "dir/c", "moved", "z"]);
    assert_eq!(t.staged(), ["D a", "D dir/b", "T dir/c", "A moved", "M z"]);
    assert_eq!(t.host(&["write-tree"]), wanted);
}

#[test]
fn the_host_wins_where_both_changed_the_same() {
    let t = Turn::sha1();
    for (path, inside, outside) in [("a", "in", "out"), ("z", "same", "same"), ("dir/b", "in", "")] {
        t.write(path, inside);
        t.inside(&["add", path]);
        t.write(path, outside);
        match outside {
            "" => t.host(&["rm", "-q", "--cached", path]),
            _ => t.host(&["add", path]),
        };
    }
    t.inside(&["rm", "-q", "--cached", "dir/c"]);
    t.write("dir/c", "out");
    t.host(&["add", "dir/c"]);
    for side in ["in", "out"] {
        t.write("new", side);
        if side == "in" {
            t.inside(&["add", "new"])
        } else {
            t.host(&["add", "new"])
        };
    }
    t.inside(&["rm", "-q", "--cached", "file"]);
    t.host(&["rm", "-q", "--cached", "file"]);
    let before = t.host(&["ls-files", "--stage"]);
    let merged = t.import(Flags::Drop);
    assert!(merged.is_noop());
    assert_eq!(merged.conflicts, ["a", "dir/b", "dir/c", "new"]);
    assert_eq!(t.host(&["ls-files", "--stage"]), before);

    // It stays a conflict, and what both have is none of anybody's changes any more.
    let base = merged.base(Some(&t.base), &t.shadow_index()).unwrap();
    let again = merge(Some(&base), &t.host_index(), &t.shadow_index(), Flags::Drop).unwrap();
    assert_eq!(again.conflicts, merged.conflicts);
    assert!(base.get("file".into()).is_none());
    assert_eq!(base.get("a".into()).unwrap().id(), t.base.get("a".into()).unwrap().id());
}

#[test]
fn a_file_and_a_directory_of_one_name_are_a_conflict_as_a_whole() {
    // The session makes a directory of what is a file on the host, and the other way round.
    let t = Turn::sha1();
    let blob = t.host(&["rev-parse", "HEAD:z"]);
    let add = |t: &Turn, inside: bool, path: &str| {
        let args = ["update-index", "--add", "--cacheinfo", &format!("100644,{blob},{path}")];
        if inside {
            t.inside(&args)
        } else {
            t.host(&args)
        };
    };
    add(&t, true, "n/x/y");
    add(&t, true, "n-");
    add(&t, false, "n");
    t.inside(&["rm", "-q", "--cached", "-r", "dir"]);
    add(&t, true, "dir");
    add(&t, false, "dir/host");
    let merged = t.import(Flags::Drop);
    assert_eq!(merged.changed, ["n-"]);
    assert_eq!(merged.conflicts, ["dir", "dir/b", "dir/c", "n/x/y"]);
    assert_eq!(t.host(&["ls-files"]), "a\ndir/b\ndir/c\ndir/host\nfile\nn\nn-\nz");

    // Without the host's part in it, it is no conflict.
    let t = Turn::sha1();
    t.inside(&["rm", "-q", "-r", "dir", "a"]);
    t.write("dir", "a file now");
    t.write("a/b/c", "a directory now");
    t.inside(&["add", "dir", "a"]);
    let merged = t.import(Flags::Drop);
    assert!(merged.conflicts.is_empty());
    assert_eq!(t.host(&["ls-files"]), "a/b/c\ndir\nfile\nz");
}

#[test]
fn an_unfinished_merge_is_refused() {
    let t = Turn::sha1();
    t.inside(&["checkout", "-q", "-b", "other"]);
    t.write("a", "theirs\n");
    t.inside(&["commit", "-q", "-am", "theirs"]);
    t.inside(&["checkout", "-q", "main"]);
    t.write("a", "ours\n");
    t.inside(&["commit", "-q", "-am", "ours"]);
    assert!(!t.shadow_index().unmerged());
    let mut git = t.s.command("host");
    git.arg("--git-dir").arg(t.s.path("shadow.git")).args(["--work-tree=.", "merge", "-q", "other"]);
    assert!(!git.output().unwrap().status.success());
    let shadow = t.shadow_index();
    assert!(shadow.unmerged());
    assert_eq!(shadow.iter().filter(|(path, _)| *path == "a").count(), 3);
    assert!(matches!(t.merge(Flags::Drop), Err(Error::Unmerged(Side::Shadow))));
    let swapped = merge(Some(&t.base), &shadow, &t.host_index(), Flags::Keep);
    assert!(matches!(swapped, Err(Error::Unmerged(Side::Host))));
}

#[test]
fn gitlinks_are_named_apart() {
    let t = Turn::new(Kind::Sha1, |s| {
        let commit = s.git("host", ["rev-parse", "HEAD"]);
        s.git("host", ["update-index", "--add", "--cacheinfo", &format!("160000,{commit},old")]);
    });
    let commit = t.host(&["rev-parse", "HEAD~"]);
    for path in ["old", "new", "a"] {
        t.inside(&["update-index", "--add", "--cacheinfo", &format!("160000,{commit},{path}")]);
    }
    let merged = t.merge(Flags::Drop).unwrap();
    assert_eq!(merged.new_gitlinks, ["a", "new"]);
    assert_eq!(merged.moved_gitlinks, ["old"]);
    assert!(merged.objects().is_empty());
    let commit = ObjectId::from_hex(commit.as_bytes()).unwrap();
    assert!(t.shadow_index().oids().all(|id| id != commit));
}

#[test]
fn an_unknown_base_deletes_nothing() {
    let t = Turn::sha1();
    t.write("new", "new\n");
    t.write("a", "in\n");
    t.inside(&["add", "new", "a"]);
    t.inside(&["rm", "-q", "--cached", "z"]);
    let merged = merge(None, &t.host_index(), &t.shadow_index(), Flags::Drop).unwrap();
    assert_eq!(merged.changed, ["new"]);
    assert_eq!(merged.conflicts, ["a"]);
    assert!(merged.entries().get("z".into()).is_some());
}

#[test]
fn what_the_host_does_reaches_the_shadow_and_comes_back_as_nothing() {
    let t = Turn::sha1();
    t.write("in", "in\n");
    t.inside(&["add", "in"]);
    t.write("out", "out\n");
    t.host(&["add", "out"]);
    t.host(&["update-index", "--assume-unchanged", "z"]);
    let shadow = t.shadow_index();
    let merged = merge(Some(&t.base), &shadow, &t.host_index(), Flags::Keep).unwrap();
    assert_eq!(merged.changed, ["out", "z"]);
    let base = merged.base(Some(&t.base), &t.host_index()).unwrap();
    std::fs::write(t.s.path("shadow.git/index"), merged.bytes().unwrap()).unwrap();
    assert!(t.inside(&["ls-files", "-v"]).contains("h z"));
    let back = merge(Some(&base), &t.host_index(), &t.shadow_index(), Flags::Drop).unwrap();
    assert_eq!(back.changed, ["in"]);
    assert!(back.conflicts.is_empty());
}

#[test]
fn after_an_import_nothing_is_left_to_import() {
    let t = Turn::sha1();
    t.write("in", "in\n");
    t.inside(&["add", "in"]);
    t.inside(&["rm", "-q", "--cached", "a"]);
    t.inside(&["update-index", "--assume-unchanged", "z"]);
    t.write("out", "out\n");
    t.host(&["add", "out"]);
    let merged = t.import(Flags::Drop);
    let base = merged.base(Some(&t.base), &t.shadow_index()).unwrap();
    // The host's own change is still the host's alone.
    assert!(base.get("out".into()).is_none());
    assert!(t.shadow_index().same(&base));
    assert_eq!(t.shadow_index().objects_since(&base).count(), 0);
    assert!(merge(Some(&base), &t.host_index(), &t.shadow_index(), Flags::Drop).unwrap().is_noop());
    // The base survives its own file.
    let file = t.s.path("base");
    std::fs::create_dir(&file).unwrap();
    std::fs::write(file.join("index"), base.fresh(Flags::Keep).unwrap()).unwrap();
    let read = entries(&file, t.kind, true).unwrap();
    assert!(read.same(&base));
    assert_eq!(read.digest(), base.digest());
}

#[test]
fn only_new_objects_are_named() {
    let t = Turn::sha1();
    t.write("in", "in\n");
    t.inside(&["add", "in"]);
    t.inside(&["rm", "-q", "--cached", "a"]);
    t.inside(&["update-index", "--assume-unchanged", "z"]);
    let blob = ObjectId::from_hex(t.inside(&["rev-parse", ":in"]).as_bytes()).unwrap();
    assert!(t.shadow_index().objects_since(&t.base).eq([(blob, object::Kind::Blob)]));
    assert_eq!(t.shadow_index().oids().count(), 5);
    assert_eq!(t.merge(Flags::Drop).unwrap().objects(), [(blob, object::Kind::Blob)]);
}

#[test]
fn a_new_worktree_gets_an_index_of_its_own() {
    let t = Turn::sha1();
    t.host(&["worktree", "add", "-q", "../tree", "-b", "tree"]);
    let git_dir = t.git_dir().join("worktrees/tree");
    let read = entries(&git_dir, t.kind, false).unwrap();
    std::fs::write(git_dir.join("index"), read.fresh(Flags::Sparse).unwrap()).unwrap();
    assert_eq!(t.s.git("tree", ["status", "--porcelain"]), "");
    t.s.write("tree/a", "b\n");
    assert_eq!(t.s.git("tree", ["status", "--porcelain"]), " M a");
    // No index at all is no entries.
    std::fs::remove_file(git_dir.join("index")).unwrap();
    assert!(entries(&git_dir, t.kind, false).unwrap().is_empty());
}
