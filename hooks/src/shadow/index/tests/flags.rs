//! Nothing that a turn writes into an index hides a change from the user's git.

use super::*;

#[test]
fn a_stated_stat_does_not_hide_an_edit() {
    let t = Turn::sha1();
    // The session's index says that z is what it was, with the stat data of what it is.
    t.write("z", "evil\n");
    t.inside(&["add", "z"]);
    let (old, new) = (t.base.get("z".into()).unwrap().id(), t.shadow_index().get("z".into()).unwrap().id());
    let mut bytes = std::fs::read(t.s.path("shadow.git/index")).unwrap();
    let at = bytes.windows(20).position(|w| w == new.as_slice()).unwrap();
    bytes[at..at + 20].copy_from_slice(old.as_slice());
    // One more change, so that there is something to write: as if the file were the session's.
    let path = t.s.path("shadow.git/index");
    std::fs::write(&path, &bytes).unwrap();
    let future = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
    let set =
        |path: &Path| std::fs::File::options().write(true).open(path).unwrap().set_modified(future).unwrap();
    set(&path);
    // The control: that very file, used as it is, hides the edit.
    std::fs::copy(&path, t.git_dir().join("index")).unwrap();
    set(&t.git_dir().join("index"));
    assert_eq!(t.s.try_git("host", ["--no-optional-locks", "status", "--porcelain"]).stdout, b"");

    // To the host the entry is new: there it was removed before the turn.
    let shadow = t.shadow_index();
    let mut host = Entries::empty(t.kind);
    for (path, entry) in shadow.iter().filter(|(path, _)| *path != "z") {
        host.push(path, *entry).unwrap();
    }
    let merged = merge(Some(&host), &host, &shadow, Flags::Drop).unwrap();
    assert_eq!(merged.changed, ["z"]);
    for bytes in [merged.bytes().unwrap(), shadow.fresh(Flags::Sparse).unwrap()] {
        std::fs::write(t.git_dir().join("index"), bytes).unwrap();
        set(&t.git_dir().join("index"));
        assert_eq!(t.status(), [" M z"]);
    }
}

#[test]
fn a_new_index_does_not_vouch_for_files_as_young_as_the_old_one() {
    let t = Turn::sha1();
    t.host(&["config", "core.trustctime", "false"]);
    t.host(&["config", "core.checkStat", "minimal"]);
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(100);
    let set =
        |path: PathBuf| std::fs::File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
    t.write("z", "1\n");
    set(t.s.path("host/z"));
    t.host(&["add", "z"]);
    // Written again within the same second, with the same size: only the index's own time tells.
    t.write("z", "2\n");
    set(t.s.path("host/z"));
    set(t.git_dir().join("index"));
    let host = t.host_index();
    assert_eq!(t.s.try_git("host", ["--no-optional-locks", "status", "--porcelain"]).stdout, b"MM z\n");

    t.write("in", "in\n");
    t.inside(&["add", "in"]);
    // The control: the host's entry as it was, in a younger file.
    std::fs::write(t.git_dir().join("index"), encode::bytes(&host).unwrap()).unwrap();
    let status = t.s.try_git("host", ["--no-optional-locks", "status", "--porcelain", "-uno"]);
    assert_eq!(status.stdout, b"M  z\n");

    let merged = merge(Some(&t.base), &host, &t.shadow_index(), Flags::Drop).unwrap();
    std::fs::write(t.git_dir().join("index"), merged.bytes().unwrap()).unwrap();
    let status = t.s.try_git("host", ["--no-optional-locks", "status", "--porcelain", "-uno"]);
    assert_eq!(String::from_utf8_lossy(&status.stdout), "A  in\nMM z\n");
}

#[test]
fn untouched_entries_keep_their_stat_data() {
    let t = Turn::sha1();
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(100);
    for path in ["a", "z", "file", "dir/b", "dir/c"] {
        let file = std::fs::File::options().write(true).open(t.s.path("host").join(path)).unwrap();
        file.set_modified(then).unwrap();
    }
    t.host(&["update-index", "--refresh"]);
    t.write("in", "in\n");
    t.inside(&["add", "in"]);
    let host = t.host_index();
    let merged = t.merge(Flags::Drop).unwrap();
    let same =
        |path: &str| merged.entries().get(path.into()).unwrap().stat == host.get(path.into()).unwrap().stat;
    assert!(same("a") && same("dir/b"));
    assert_ne!(host.get("a".into()).unwrap().stat, Stat::NONE);
    assert_eq!(merged.entries().get("in".into()).unwrap().stat, Stat::NONE);
}

#[test]
fn flags_that_hide_edits_are_taken_only_where_they_are_asked_for() {
    // A file that is to be added is not taken beside files that are left out.
    for (flags, wanted, planned, changed) in [
        (Flags::Drop, "HHH", " A planned", &["new", "planned"][..]),
        (Flags::Sparse, "HSS", "?? planned", &["new", "z"]),
        (Flags::Keep, "hSs", "?? planned", &["a", "new", "z"]),
    ] {
        let t = Turn::sha1();
        t.inside(&["update-index", "--assume-unchanged", "a"]);
        t.inside(&["update-index", "--skip-worktree", "z"]);
        t.write("new", "new\n");
        t.inside(&["add", "new"]);
        t.inside(&["update-index", "--skip-worktree", "new"]);
        t.inside(&["update-index", "--assume-unchanged", "new"]);
        t.write("planned", "planned\n");
        t.inside(&["add", "-N", "planned"]);
        let merged = t.import(flags);
        let listed = t.host(&["ls-files", "-v", "a", "z", "new"]);
        let of =
            |name: &str| listed.lines().find(|l| l.ends_with(&format!(" {name}"))).unwrap()[..1].to_owned();
        assert_eq!(of("a") + &of("z") + &of("new"), wanted, "{flags:?}");
        assert_eq!(t.status().iter().find(|line| line.ends_with("planned")).unwrap(), planned);
        assert_eq!(merged.changed, changed);
        t.write("z", "edited\n");
        let seen = t.status().iter().any(|line| line == " M z");
        assert_eq!(seen, flags == Flags::Drop, "{flags:?}");
    }
}

#[test]
fn the_hosts_own_flags_stay() {
    let t = Turn::new(Kind::Sha1, |s| {
        s.git("host", ["update-index", "--assume-unchanged", "a"]);
        s.git("host", ["update-index", "--skip-worktree", "z"]);
    });
    for path in ["a", "z"] {
        t.inside(&["update-index", "--no-assume-unchanged", path]);
        t.inside(&["update-index", "--no-skip-worktree", path]);
        t.write(path, "edited\n");
        t.inside(&["add", path]);
    }
    let merged = t.import(Flags::Drop);
    assert_eq!(merged.changed, ["a", "z"]);
    assert_eq!(t.host(&["ls-files", "-v", "a", "z"]), "h a\nS z");
    assert_eq!(t.staged(), ["M a", "M z"]);
}
