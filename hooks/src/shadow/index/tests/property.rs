//! Any three indexes.

use std::collections::{BTreeMap, BTreeSet};

use gix::bstr::BString;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;

use super::*;

/// Paths with every order of a name and what starts with it; those with a slash at the end are directories that are
/// left out.
const PATHS: [&str; 14] =
    ["a", "a-b", "a.b", "a/", "a/b", "a/b-", "a/b/c", "a/d", "b", "b/c/", "b/c/d", "b/c/e", "c", "sub"];

/// Mode, number of an object, flags.
type Value = (u32, u8, u32);
type Map = BTreeMap<&'static str, Value>;
/// A path, and what becomes of it.
type Edit = (&'static str, Option<Value>);

fn stem(path: &str) -> &str {
    path.trim_end_matches('/')
}

/// Whether the one is a directory that the other is in, or both are one name.
fn above(dir: &str, path: &str) -> bool {
    let (dir, path) = (stem(dir), stem(path));
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Adds an entry unless a file is where a directory would be.
fn add(map: &mut Map, path: &'static str, value: Value) {
    if !map.keys().any(|other| above(other, path) || above(path, other)) {
        let left_out = (DIRECTORY, value.1, SKIP_WORKTREE);
        map.insert(path, if path.ends_with('/') { left_out } else { value });
    }
}

fn value() -> impl Strategy<Value = Value> {
    let mode = prop_oneof![8 => Just(FILE), 2 => Just(EXECUTABLE), 1 => Just(SYMLINK), 1 => Just(GITLINK)];
    let flags = prop_oneof![8 => Just(0), 1 => Just(SKIP_WORKTREE), 1 => Just(ASSUME_VALID), 1 => Just(INTENT_TO_ADD)];
    (mode, 1..4u8, flags)
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    prop::collection::vec((prop::sample::select(&PATHS[..]), prop::option::weighted(0.6, value())), 0..10)
}

fn edited(map: &Map, edits: &[Edit]) -> Map {
    let mut map = map.clone();
    for (path, value) in edits {
        match value {
            Some(value) => {
                map.remove(path);
                add(&mut map, path, *value);
            }
            None => drop(map.remove(path)),
        }
    }
    map
}

fn triple() -> impl Strategy<Value = (Map, Map, Map)> {
    (edits(), edits(), edits(), edits()).prop_map(|(one, two, host, shadow)| {
        let base = edited(&edited(&Map::new(), &one), &two);
        let (host, shadow) = (edited(&base, &host), edited(&base, &shadow));
        (base, host, shadow)
    })
}

fn file(map: &Map, id: impl Fn(u8, u32) -> ObjectId) -> Entries {
    let sparse = map.values().any(|(mode, ..)| *mode == DIRECTORY);
    let mut entries = Entries { modified: 1, sparse, ..Entries::empty(Kind::Sha1) };
    for (path, (mode, number, flags)) in map {
        let mut stat = Stat::NONE;
        stat.0[35] = 9;
        let length = u32::try_from(path.len()).unwrap();
        let entry = Entry { start: 0, length, stat, mode: *mode, id: id(*number, *mode), flags: *flags };
        entries.push((*path).into(), entry).unwrap();
    }
    entries
}

fn reread(bytes: &[u8]) -> Entries {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("index"), bytes).unwrap();
    entries(temp.path(), Kind::Sha1, false).unwrap()
}

fn plain(number: u8, _mode: u32) -> ObjectId {
    ObjectId::from_bytes_or_panic(&[number; 20])
}

fn all_hold(base: &Map, host: &Map, shadow: &Map, flags: Flags) {
    let [base_file, host_file, shadow_file] = [base, host, shadow].map(|map| file(map, plain));
    let merged = match merge(Some(&base_file), &host_file, &shadow_file, flags) {
        Err(Error::Sparse(path)) => {
            assert_eq!(flags, Flags::Drop);
            assert_ne!(
                base_file.get(path.as_bstr()).map(Entry::id),
                shadow_file.get(path.as_bstr()).map(Entry::id)
            );
            return;
        }
        merged => merged.unwrap(),
    };
    // What is written is what was merged, and an index that even an untrusting reader takes.
    let result = reread(&merged.bytes().unwrap());
    assert!(result.same(merged.entries()));

    let content = |entry: Option<&Entry>| entry.map(Entry::content);
    let at = |entries: &Entries, path: &str| content(entries.get(path.into()));
    let conflicts: BTreeSet<_> = merged.conflicts.iter().map(|path| path.to_string()).collect();
    for path in PATHS {
        let [was, ours, theirs, now] = [&base_file, &host_file, &shadow_file, &result].map(|e| at(e, path));
        let partial = |e: &Entries| e.sparse || e.entries.iter().any(Entry::skipped);
        let intended = theirs.is_some_and(|(.., flags)| flags & INTENT_TO_ADD != 0);
        if ours == was && theirs != was && intended && (partial(&host_file) || partial(&shadow_file)) {
            assert!(now == ours || now == theirs && !partial(&result), "{path}");
        } else if ours != was || theirs == was {
            // What the host changed stays; so does what nobody changed.
            assert_eq!(now, ours, "{path}");
        } else if conflicts.contains(path) {
            assert_eq!(now, ours, "{path}");
            // Only because the host has a file above, or something below, that the session does not have.
            let held = |other: &&str| {
                at(&host_file, other).is_some()
                    && at(&result, other).is_some()
                    && at(&shadow_file, other).is_none()
            };
            let about: Vec<&str> = PATHS.into_iter().filter(|other| *other != path).collect();
            let direct = about.iter().filter(|o| held(o)).any(|o| above(o, path) || above(path, o));
            // Or it belongs to a file of the session that could not be put there.
            let whole = about
                .iter()
                .any(|o| above(o, path) && conflicts.contains(*o) && at(&shadow_file, o).is_some());
            assert!(direct || whole, "{path}");
        } else {
            assert_eq!(now, theirs, "{path}");
        }
        let conflict = ours != was && theirs != was && ours != theirs;
        assert!(!conflict || conflicts.contains(path), "{path}");
        let changed = match (host_file.get(path.into()), result.get(path.into())) {
            (Some(old), Some(new)) => !old.same(new),
            (old, new) => old.is_some() != new.is_some(),
        };
        assert_eq!(changed, merged.changed.iter().any(|p| p == path), "{path}");
        // Flags that hide edits come from where they may.
        let hides = |e: &Entries| e.get(path.into()).map_or(0, |e| e.flags & (SKIP_WORKTREE | ASSUME_VALID));
        let left_out =
            |other: &str| other.ends_with('/') && host_file.get(other.into()).is_some() && above(other, path);
        // A directory is left out, or its files are, only where the host leaves the same out.
        let below = PATHS.iter().filter(|other| **other != path && above(path, other));
        let mut below = below.filter_map(|other| host_file.get((*other).into()));
        let same =
            PATHS.iter().any(|other| left_out(other)) || path.ends_with('/') && below.all(Entry::skipped);
        if flags == Flags::Drop && !same {
            assert_eq!(hides(&result) & !hides(&host_file), 0, "{path}");
        }
        if flags != Flags::Keep {
            assert_eq!(hides(&result) & ASSUME_VALID & !hides(&host_file), 0, "{path}");
        }
        // Stat data of the host's, or none.
        if let Some(entry) = result.get(path.into()) {
            let taken = at(&host_file, path) != now;
            assert_eq!(entry.stat.0[35] == 0, taken, "{path}");
        }
    }

    // The next merge finds the same conflicts and nothing else.
    let next = merged.base(Some(&base_file), &shadow_file).unwrap();
    assert!(reread(&next.fresh(Flags::Keep).unwrap()).same(&next));
    let again = merge(Some(&next), merged.entries(), &shadow_file, flags).unwrap();
    assert!(again.is_noop(), "{:?}", again.changed);
    assert_eq!(again.conflicts, merged.conflicts);
    // Carried the other way, what the host changed arrives where the session did not change it.
    let back = merge(Some(&next), &shadow_file, merged.entries(), Flags::Keep).unwrap();
    let done = back.base(Some(&next), merged.entries()).unwrap();
    let quiet = merge(Some(&done), merged.entries(), back.entries(), flags).unwrap();
    // A file that is to be added may come later: once nothing is left out any more.
    let late = |path: &BString| quiet.entries().get(path.as_bstr()).is_some_and(Entry::intended);
    assert!(quiet.changed.iter().all(late), "{:?}", quiet.changed);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_host_keeps_what_it_changed_and_gets_what_it_did_not(
        (base, host, shadow) in triple(),
        flags in prop::sample::select(&[Flags::Keep, Flags::Sparse, Flags::Drop][..]),
    ) {
        all_hold(&base, &host, &shadow, flags);
    }

    #[test]
    fn equal_entries_and_only_these_have_equal_digests((one, two, three) in triple()) {
        let files = [&one, &two, &three].map(|map| file(map, plain));
        for (a, left) in files.iter().zip([&one, &two, &three]) {
            for (b, right) in files.iter().zip([&one, &two, &three]) {
                prop_assert_eq!(a.same(b), left == right);
                prop_assert_eq!(a.digest() == b.digest(), left == right);
            }
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_version_survives_its_file((one, two, _) in triple(), compressed: bool, unhashed: bool) {
        for map in [one, two] {
            let entries = Entries { compressed, unhashed, ..file(&map, plain) };
            prop_assert!(reread(&encode::bytes(&entries).unwrap()).same(&entries));
        }
    }
}

#[test]
fn git_takes_every_merged_index() {
    let s = Scratch::new();
    let top = s.repository("repo");
    let blobs: Vec<ObjectId> = ["1", "2", "3"]
        .map(|text| {
            s.write("repo/blob", text);
            let id = s.git("repo", ["hash-object", "-w", "blob"]);
            ObjectId::from_hex(id.as_bytes()).unwrap()
        })
        .to_vec();
    let commit = ObjectId::from_hex(s.git("repo", ["rev-parse", "HEAD"]).as_bytes()).unwrap();
    let tree = ObjectId::from_hex(s.git("repo", ["rev-parse", "HEAD^{tree}"]).as_bytes()).unwrap();
    let real = |number: u8, mode: u32| match mode {
        GITLINK => commit,
        DIRECTORY => tree,
        _ => blobs[usize::from(number) - 1],
    };
    s.git("repo", ["sparse-checkout", "set", "--sparse-index", "none"]);
    s.git("repo", ["config", "--worktree", "core.sparseCheckout", "false"]);
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for case in 0..60u32 {
        let (mut base, mut host, mut shadow) = triple().new_tree(&mut runner).unwrap().current();
        let sparse =
            [&base, &host, &shadow].iter().any(|map| map.values().any(|(mode, ..)| *mode == DIRECTORY));
        for map in [&mut base, &mut host, &mut shadow] {
            // There git crashes on files to be added (see merge()), and makes directories of those that are left out.
            for (_, _, flags) in map.values_mut().filter(|(mode, ..)| sparse && *mode != DIRECTORY) {
                *flags &= ASSUME_VALID;
            }
        }
        let [base, host, shadow] = [base, host, shadow].map(|map| file(&map, real));
        let host = Entries { compressed: case % 2 == 0, unhashed: case % 3 == 0, ..host };
        let merged = merge(Some(&base), &host, &shadow, Flags::Keep).unwrap();
        std::fs::write(top.join(".git/index"), merged.bytes().unwrap()).unwrap();
        let setting = format!("core.sparseCheckout={sparse}");
        let git = |args: &[&str]| s.git("repo", [&["-c", &setting], args].concat());
        let listed = git(&["ls-files", "--sparse", "--stage"]);
        let wanted: Vec<String> = merged
            .entries()
            .iter()
            .map(|(path, entry)| format!("{:06o} {} 0\t{path}", entry.mode(), entry.id()))
            .collect();
        assert_eq!(listed, wanted.join("\n"), "{case}");
        git(&["write-tree"]);
        git(&["fsck", "--no-dangling"]);
    }
}
