//! Any three indexes.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;

use super::*;

/// Paths with every order of a name and what starts with it.
const PATHS: [&str; 12] =
    ["a", "a-b", "a.b", "a/b", "a/b-", "a/b/c", "a/d", "b", "b/c/d", "b/c/e", "c", "sub"];

/// Mode, number of an object, flags.
type Value = (u32, u8, u32);
type Map = BTreeMap<&'static str, Value>;
/// A path, and what becomes of it.
type Edit = (&'static str, Option<Value>);

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(move |(at, _)| &path[..at])
}

/// Adds an entry unless a file is where a directory would be.
fn add(map: &mut Map, path: &'static str, value: Value) {
    let clash = parts(path).any(|dir| map.contains_key(dir))
        || map.keys().any(|other| parts(other).any(|dir| dir == path));
    if !clash {
        map.insert(path, value);
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
    let mut entries = Entries { modified: 1, ..Entries::empty(Kind::Sha1) };
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

fn all_hold(base: &Map, host: &Map, shadow: &Map, flags: Flags) -> Merged {
    let [base_file, host_file, shadow_file] = [base, host, shadow].map(|map| file(map, plain));
    let merged = merge(Some(&base_file), &host_file, &shadow_file, flags).unwrap();
    // What is written is what was merged, and an index that even an untrusting reader takes.
    let result = reread(&merged.bytes().unwrap());
    assert!(result.same(merged.entries()));

    let content = |entry: Option<&Entry>| entry.map(Entry::content);
    let at = |entries: &Entries, path: &str| content(entries.get(path.into()));
    let conflicts: BTreeSet<_> = merged.conflicts.iter().map(|path| path.to_string()).collect();
    for path in PATHS {
        let [was, ours, theirs, now] = [&base_file, &host_file, &shadow_file, &result].map(|e| at(e, path));
        if ours != was || theirs == was {
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
            let above = |dir: &str, path: &str| parts(path).any(|part| part == dir);
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
        if flags == Flags::Drop {
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
    assert!(quiet.is_noop(), "{:?}", quiet.changed);
    merged
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

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
    let real = |number: u8, mode: u32| if mode == GITLINK { commit } else { blobs[usize::from(number) - 1] };
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for case in 0..60u32 {
        let (base, host, shadow) = triple().new_tree(&mut runner).unwrap().current();
        let [base, host, shadow] = [base, host, shadow].map(|map| file(&map, real));
        let host = Entries { compressed: case % 2 == 0, unhashed: case % 3 == 0, ..host };
        let merged = merge(Some(&base), &host, &shadow, Flags::Keep).unwrap();
        std::fs::write(top.join(".git/index"), merged.bytes().unwrap()).unwrap();
        let listed = s.git("repo", ["ls-files", "--stage"]);
        let wanted: Vec<String> = merged
            .entries()
            .iter()
            .map(|(path, entry)| format!("{:06o} {} 0\t{path}", entry.mode(), entry.id()))
            .collect();
        assert_eq!(listed, wanted.join("\n"), "{case}");
        s.git("repo", ["write-tree"]);
        s.git("repo", ["fsck", "--no-dangling"]);
    }
}
