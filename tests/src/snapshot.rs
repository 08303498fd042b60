//! A directory tree as it is at one instant, to be compared with what it is later: for "nothing is left
//! behind" and "nothing is lost".

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What one path is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Item {
    kind: &'static str,
    mode: u32,
    owner: (u32, u32),
    /// Bytes of a file; 0 for all else, because a directory's size depends on its history.
    size: u64,
    /// Nanoseconds since 1970; 0 where times are ignored.
    changed: i128,
    /// Of a file's content or a link's target.
    hash: u64,
}

/// A tree at one instant. Symbolic links are not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<PathBuf, Item>);

impl Snapshot {
    /// Everything at and below this path, modification times included.
    #[must_use]
    pub fn of(root: &Path) -> Self {
        Self::filtered(root, true, &|_| true)
    }

    /// As [`Snapshot::of`], without modification times: for trees that are rewritten with equal content.
    #[must_use]
    pub fn content_of(root: &Path) -> Self {
        Self::filtered(root, false, &|_| true)
    }

    /// Everything for which `keep` is true, given the path below `root`; what is not kept is not entered.
    #[must_use]
    pub fn filtered(root: &Path, times: bool, keep: &dyn Fn(&Path) -> bool) -> Self {
        let mut items = BTreeMap::new();
        let mut open = vec![PathBuf::new()];
        while let Some(name) = open.pop() {
            let path = root.join(&name);
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            items.insert(name.clone(), item(&path, &meta, times));
            if !meta.is_dir() {
                continue;
            }
            let Ok(entries) = fs::read_dir(&path) else { continue };
            open.extend(
                entries.flatten().map(|entry| name.join(entry.file_name())).filter(|below| keep(below)),
            );
        }
        Self(items)
    }

    /// What is different later, one line each: `+ path`, `- path`, `~ path: what`.
    #[must_use]
    pub fn changes(&self, later: &Self) -> Vec<String> {
        let mut lines = vec![];
        for (path, before) in &self.0 {
            match later.0.get(path) {
                None => lines.push(format!("- {}", path.display())),
                Some(after) if after != before => {
                    lines.push(format!("~ {}: {before:?} -> {after:?}", path.display()));
                }
                Some(_) => {}
            }
        }
        lines.extend(
            later.0.keys().filter(|path| !self.0.contains_key(*path)).map(|p| format!("+ {}", p.display())),
        );
        lines
    }

    /// The paths that are different later, or are not there any more, or are new.
    #[must_use]
    pub fn changed(&self, later: &Self) -> Vec<PathBuf> {
        let gone =
            self.0.iter().filter(|(path, before)| later.0.get(*path) != Some(before)).map(|(path, _)| path);
        gone.cloned().chain(self.added(later)).collect()
    }

    /// Asserts that nothing is different later.
    ///
    /// # Panics
    /// With the differences, if there are any.
    #[track_caller]
    pub fn assert_same(&self, later: &Self, what: &str) {
        let changes = self.changes(later);
        assert!(changes.is_empty(), "{what} changed:\n{}", changes.join("\n"));
    }

    /// The paths that are there later and were not before.
    #[must_use]
    pub fn added(&self, later: &Self) -> Vec<PathBuf> {
        later.0.keys().filter(|path| !self.0.contains_key(*path)).cloned().collect()
    }

    /// Whether this path, below the root, is part of it.
    #[must_use]
    pub fn contains(&self, path: impl AsRef<Path>) -> bool {
        self.0.contains_key(path.as_ref())
    }
}

fn item(path: &Path, meta: &fs::Metadata, times: bool) -> Item {
    let kind = meta.file_type();
    let mut hash = DefaultHasher::new();
    // A file that a test makes enormous is sparse, and its size says enough.
    if kind.is_file() && meta.len() < 64 << 20 {
        fs::read(path).unwrap_or_default().hash(&mut hash);
    } else if kind.is_symlink() {
        fs::read_link(path).unwrap_or_default().hash(&mut hash);
    }
    Item {
        kind: match () {
            () if kind.is_dir() => "directory",
            () if kind.is_file() => "file",
            () if kind.is_symlink() => "symlink",
            () if kind.is_fifo() => "fifo",
            () if kind.is_socket() => "socket",
            () => "device",
        },
        mode: meta.mode() & 0o7777,
        owner: (meta.uid(), meta.gid()),
        size: if kind.is_file() { meta.len() } else { 0 },
        changed: if times {
            i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec())
        } else {
            0
        },
        hash: hash.finish(),
    }
}
