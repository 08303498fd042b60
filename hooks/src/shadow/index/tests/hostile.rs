//! What a turn may put where an index belongs.

use std::os::unix::fs::symlink;

use super::*;

fn read(bytes: &[u8]) -> Result<Entries, Error> {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("index"), bytes).unwrap();
    entries(temp.path(), Kind::Sha1, false)
}

fn refused(crafted: &Crafted) -> String {
    read(&crafted.bytes()).unwrap_err().to_string()
}

#[test]
fn harmless_entries_are_read() {
    // The control of all that follows.
    let mut crafted = Crafted::new(&[
        (".github/x", FILE),
        ("-x", FILE),
        ("a b", EXECUTABLE),
        ("a-", FILE),
        ("a/b", SYMLINK),
        ("con", FILE),
        ("sub", GITLINK),
    ]);
    crafted.entries.sort();
    assert_eq!(read(&crafted.bytes()).unwrap().len(), 7);
    crafted.version = 4;
    assert_eq!(read(&crafted.bytes()).unwrap().len(), 7);
    crafted.entries.push((b"tree/".to_vec(), DIRECTORY, 7, SKIP_WORKTREE));
    assert_eq!(
        read(&crafted.extension(b"sdir", b"").extension(b"ZZZZ", b"ignored").bytes()).unwrap().len(),
        8
    );
}

#[test]
fn paths_that_leave_the_checkout_are_refused() {
    let long = "a/".repeat(2048) + "b";
    for path in [
        "..",
        "../x",
        "a/../../x",
        ".git",
        ".git/hooks/x",
        ".GIT/x",
        "a/.Git/x",
        "/etc/x",
        "a//b",
        "a/./b",
        "a/",
        "/",
        "git~1/x",
        ".g\u{200c}it/x",
        ".git /x",
        ".git::$INDEX_ALLOCATION/x",
        "",
        &long,
    ] {
        // Whether another entry is in the same directory or not.
        let before = path.rfind('/').map_or(String::new(), |at| format!("{}/!", &path[..at]));
        for paths in [
            vec![(path, FILE)],
            vec![("!", FILE), (path, FILE), ("~", FILE)],
            vec![(&before[..], FILE), (path, FILE)],
        ] {
            let mut crafted = Crafted::new(&paths);
            crafted.entries.sort();
            let why = refused(&crafted);
            assert!(why.contains("is refused"), "{path}: {why}");
        }
    }
    assert!(refused(&Crafted::new(&[(".gitmodules", SYMLINK)])).contains(".gitmodules"));
    assert!(refused(&Crafted::new(&[("a/.gitmodules", SYMLINK)])).contains(".gitmodules"));
}

#[test]
fn entries_that_git_does_not_write_are_refused() {
    for mode in [0, 0o100_600, 0o104_755, 0o100_777, 0o060_000, 0o010_644, 0o140_000, 0o120_777, 0o1_100_644]
    {
        let why = refused(&Crafted::new(&[("a", mode)]));
        assert!(why.contains("mode"), "{mode:o}: {why}");
    }
    for (paths, wanted) in [
        (vec!["a", "a"], "twice"),
        (vec!["b", "a"], "not sorted"),
        (vec!["a", "a/b"], "is a file"),
        (vec!["a", "a-", "a.x", "a/b"], "is a file"),
        (vec!["a/b", "a/b/c/d"], "is a file"),
    ] {
        let crafted = Crafted::new(&paths.iter().map(|path| (*path, FILE)).collect::<Vec<_>>());
        let why = refused(&crafted);
        assert!(why.contains(wanted), "{paths:?}: {why}");
    }
    let one = |path: &str, mode, id, flags| {
        let mut crafted = Crafted::new(&[]);
        crafted.entries.push((path.into(), mode, id, flags));
        crafted
    };
    assert!(refused(&one("a", FILE, 0, 0)).contains("no object"));
    assert!(refused(&one("a/", DIRECTORY, 7, 0)).contains("left out"));
    assert!(refused(&one("a", DIRECTORY, 7, SKIP_WORKTREE)).contains("slash"));
    assert!(refused(&one("a/", FILE, 7, 0)).contains("slash"));
    assert!(refused(&one("a", FILE, 7, 1 << 31)).contains("damaged"));
    assert!(refused(&one("a", FILE, 7, 1 << 16)).contains("damaged"));
    let mut twice = one("a/", DIRECTORY, 7, SKIP_WORKTREE);
    twice.entries.push((b"a/b".to_vec(), FILE, 7, 0));
    assert!(refused(&twice).contains("is a file"));
    // Merged and unmerged at once, and a stage twice.
    for stages in [[0, 2], [2, 2], [3, 1]] {
        let mut crafted = Crafted::new(&[]);
        crafted.entries.extend(stages.map(|stage: u32| (b"a".to_vec(), FILE, 7, stage << 12)));
        assert!(refused(&crafted).contains("twice"), "{stages:?}");
    }
    let mut unmerged = Crafted::new(&[]);
    unmerged.entries.extend([1, 2, 3].map(|stage: u32| (b"a".to_vec(), FILE, 7, stage << 12)));
    assert!(read(&unmerged.bytes()).unwrap().unmerged());
}

#[test]
fn what_is_claimed_costs_nothing() {
    let mut crafted = Crafted::new(&[("a", FILE)]);
    for count in [2, 1 << 20, 1 << 30, u32::MAX] {
        crafted.count = Some(count);
        assert!(refused(&crafted).contains("damaged"), "{count}");
    }
    crafted.count = Some(0);
    assert!(read(&crafted.bytes()).is_err());
    let huge = Crafted::new(&[("a", FILE)]);
    let mut bytes = huge.extension(b"TREE", b"x").bytes();
    let at = bytes.windows(4).position(|w| w == b"TREE").unwrap() + 4;
    bytes[at..at + 4].copy_from_slice(&u32::MAX.to_be_bytes());
    assert!(read(&bytes).unwrap_err().to_string().contains("damaged"));
    // A file without blocks, of more than any index has.
    let temp = tempfile::tempdir().unwrap();
    std::fs::File::create(temp.path().join("index")).unwrap().set_len(1 << 40).unwrap();
    let error = entries(temp.path(), Kind::Sha1, false).unwrap_err();
    assert!(matches!(error, Error::Read(read::Error::TooBig { .. })), "{error}");
}

#[test]
fn version_4_does_not_expand_to_gigabytes() {
    // Each entry says that its path starts with all of the path before, which has a megabyte.
    let mut bytes = b"DIRC\0\0\0\x04".to_vec();
    bytes.extend_from_slice(&20_000u32.to_be_bytes());
    for n in 0..20_000 {
        bytes.extend_from_slice(&[0; 24]);
        bytes.extend_from_slice(&FILE.to_be_bytes());
        bytes.extend_from_slice(&[7; 32]);
        bytes.extend_from_slice(&[0x0f, 0xff, 0]);
        bytes.extend_from_slice("a".repeat(if n == 0 { 1 << 20 } else { 1 }).as_bytes());
        bytes.push(0);
    }
    bytes.extend_from_slice(&[0; 20]);
    assert!(bytes.len() < 3 << 20);
    assert!(matches!(read(&bytes), Err(Error::TooLong { .. })));
}

#[test]
fn other_formats_are_refused() {
    assert!(read(b"").is_err());
    assert!(read(b"DIRC").is_err());
    assert!(read(&[0; 64]).unwrap_err().to_string().contains("not an index"));
    for version in [0, 1, 5, u32::MAX] {
        let crafted = Crafted { version, ..Crafted::new(&[]) };
        assert!(refused(&crafted).contains("version"));
    }
    let why = refused(&Crafted::new(&[]).extension(b"zzzz", b""));
    assert!(why.contains("zzzz"), "{why}");
    let why = refused(&Crafted::new(&[]).extension(b"\x1b[2J", b""));
    assert!(!why.contains('\x1b'), "{why}");
    // Of another hash function.
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("index"), Crafted::new(&[("a", FILE), ("b", FILE)]).bytes()).unwrap();
    assert!(entries(temp.path(), Kind::Sha256, false).is_err());
    let (one, other) = (Entries::empty(Kind::Sha1), Entries::empty(Kind::Sha256));
    assert!(matches!(merge(None, &one, &other, Flags::Drop), Err(Error::Hash)));
}

#[test]
fn only_regular_files_are_read() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    std::fs::write(at("real"), Crafted::new(&[("a", FILE)]).bytes()).unwrap();
    let not_regular = || {
        let error = entries(temp.path(), Kind::Sha1, false).unwrap_err();
        assert!(matches!(error, Error::Read(read::Error::NotRegular { .. })), "{error}");
        assert!(same_bytes(&dir(temp.path()), "index".as_ref(), b"x").is_err());
        std::fs::remove_file(at("index")).unwrap();
    };
    symlink("real", at("index")).unwrap();
    not_regular();
    symlink("/etc/passwd", at("index")).unwrap();
    not_regular();
    nix::unistd::mkfifo(&at("index"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    not_regular();
    std::fs::create_dir(at("index")).unwrap();
    assert!(entries(temp.path(), Kind::Sha1, false).is_err());
}

/// A bitmap of these words (gitformat-bitmap(5), "ewah").
fn bitmap(bits: u32, words: &[u64]) -> Vec<u8> {
    let mut out = bits.to_be_bytes().to_vec();
    out.extend_from_slice(&u32::try_from(words.len()).unwrap().to_be_bytes());
    out.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    out.extend_from_slice(&[0; 4]);
    out
}

/// Literal words after their head.
fn bits(set: &[u32]) -> Vec<u8> {
    let word = set.iter().fold(0u64, |word, bit| word | 1 << bit);
    set.iter().max().map_or_else(|| bitmap(0, &[0]), |bit| bitmap(bit + 1, &[1 << 33, word]))
}

#[test]
fn a_shared_index_is_the_one_that_is_named_and_nothing_else() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    let id = [0xab; 20];
    let name = format!("sharedindex.{}", "ab".repeat(20));
    let shared = || Crafted { trailer: id, ..Crafted::new(&[("a", FILE), ("b", FILE), ("c", FILE)]) };
    let top = |delete: &[u32], replace: &[u32], paths: &[(&str, u32)]| {
        let link = [&id[..], &bits(delete), &bits(replace)].concat();
        std::fs::write(at("index"), Crafted::new(paths).extension(b"link", &link).bytes()).unwrap();
    };
    let read = || entries(temp.path(), Kind::Sha1, false);
    let listed = || {
        read().unwrap().iter().map(|(path, entry)| format!("{path}{:o} ", entry.mode())).collect::<String>()
    };
    std::fs::write(at(&name), shared().bytes()).unwrap();

    // The control.
    top(&[1], &[2], &[("", EXECUTABLE), ("aa", FILE)]);
    assert_eq!(listed(), "a100644 aa100644 c100755 ");
    top(&[], &[0], &[("a", EXECUTABLE)]);
    assert_eq!(listed(), "a100755 b100644 c100644 ");

    // Positions that are none, too few entries, another name, the same path again, no path.
    for (delete, replace, paths) in [
        (vec![3], vec![], vec![]),
        (vec![], vec![3], vec![("", FILE)]),
        (vec![], vec![0, 1], vec![("", FILE)]),
        (vec![], vec![0], vec![("../x", FILE)]),
        (vec![], vec![], vec![("a", FILE)]),
        (vec![], vec![], vec![("", FILE)]),
        (vec![], vec![], vec![(".git/x", FILE)]),
        (vec![], vec![], vec![("a/b", FILE)]),
    ] {
        top(&delete, &replace, &paths);
        assert!(read().is_err(), "{delete:?} {replace:?} {paths:?}");
    }
    top(&[], &[], &[]);
    assert!(read().is_ok());

    // Runs of ones without end, and bitmaps that are none.
    let ones = bitmap(u32::MAX, &[u64::from(u32::MAX) << 1 | 1]);
    for link in [
        [&id[..], &ones, &bits(&[])].concat(),
        [&id[..], &bits(&[]), &ones].concat(),
        id[..19].to_vec(),
        [&id[..], &[1]].concat(),
    ] {
        std::fs::write(at("index"), Crafted::new(&[]).extension(b"link", &link).bytes()).unwrap();
        assert!(read().unwrap_err().to_string().contains("damaged"));
    }
    let twice = Crafted::new(&[]).extension(b"link", &id).extension(b"link", &id);
    std::fs::write(at("index"), twice.bytes()).unwrap();
    assert!(read().is_err());

    // The name is made of the id alone; the file has to say the same, and stand on its own.
    top(&[], &[], &[]);
    for wrong in [Crafted { trailer: [1; 20], ..shared() }, shared().extension(b"link", &id)] {
        std::fs::write(at(&name), wrong.bytes()).unwrap();
        assert!(matches!(read(), Err(Error::Shared { .. })));
    }
    let mut hostile = shared();
    hostile.entries[0].0 = b".git/config".to_vec();
    std::fs::write(at(&name), hostile.bytes()).unwrap();
    assert!(matches!(read(), Err(Error::Entry { .. })));
    std::fs::remove_file(at(&name)).unwrap();
    assert!(matches!(read(), Err(Error::Shared { .. })));
    std::fs::write(at("real"), shared().bytes()).unwrap();
    symlink("real", at(&name)).unwrap();
    assert!(matches!(read(), Err(Error::Read(read::Error::NotRegular { .. }))));
    std::fs::remove_file(at(&name)).unwrap();
    nix::unistd::mkfifo(&at(&name), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(matches!(read(), Err(Error::Read(read::Error::NotRegular { .. }))));
}

#[test]
fn damaged_bytes_never_panic() {
    let s = Scratch::new();
    let top = s.repository("repo");
    s.write("repo/dir/one", "x");
    s.git("repo", ["add", "."]);
    s.git("repo", ["update-index", "--split-index"]);
    s.write("repo/dir/two", "x");
    s.git("repo", ["add", "."]);
    let git_dir = top.join(".git");
    let split = std::fs::read(git_dir.join("index")).unwrap();
    let mut crafted = Crafted::new(&[("a", FILE), ("a/b", FILE), ("sub", GITLINK)]);
    crafted.entries.push((b"z".to_vec(), FILE, 7, INTENT_TO_ADD | 2 << 12));
    let plain = crafted.extension(b"sdir", b"").extension(b"TREE", b"abc").bytes();
    crafted = Crafted::new(&[("a", FILE), ("b/c", FILE), ("b/d", FILE)]);
    crafted.version = 4;
    let at = git_dir.join("index");
    let attempt = |bytes: &[u8]| {
        std::fs::write(&at, bytes).unwrap();
        for trusted in [false, true] {
            if let Ok(read) = entries(&git_dir, Kind::Sha1, trusted) {
                let _ = read.fresh(Flags::Keep);
                let _ = merge(None, &Entries::empty(Kind::Sha1), &read, Flags::Drop).map(|m| m.bytes());
                let _ = merge(None, &read, &read, Flags::Drop).map(|m| m.bytes());
            }
        }
    };
    let mut seed = 7u32;
    let mut random = move || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        seed >> 8
    };
    for whole in [split, plain, crafted.bytes()] {
        for end in 0..whole.len() {
            attempt(&whole[..end]);
        }
        for _ in 0..600 {
            let mut bytes = whole.clone();
            for _ in 0..=random() % 3 {
                let at = random() as usize % bytes.len();
                bytes[at] = (random() >> 8) as u8;
            }
            attempt(&bytes);
        }
    }
}
