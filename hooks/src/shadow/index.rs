//! git's index (gitformat-index(5)) as entries: read whole from a file, compared, merged three ways and written
//! afresh.
//!
//! An index is never copied from one side to the other. Its bytes depend on what the other side does not have (a
//! shared index, an untracked cache, the stat data of files), and git rewrites them all the time without changing
//! what is staged. What travels are entries: path, mode, object id, and the flags that are kept on disk.
//!
//! The attacker is the turn, which wrote the shadow's index. It may name `.git/hooks/x`, the same path twice, a file
//! and a directory of one name; claim entries that are not there; expand a few bytes to gigabytes; mark the user's
//! edited files as not worth looking at; state stat data that make an edited file look clean. So what is not trusted
//! is refused whole unless git itself could have written it, every bound is one of the file's own length or a
//! constant, its stat data and caches are not taken over, and its flags only as [`Flags`] says.
//!
//! gix reads an index by path, through symlinks, expands version 4 without bound, and writes neither that version
//! nor `sdir`; it is not used here.
//!
//! ```no_run
//! # use codeoid_hooks::{read::Dir, shadow::index::{Entries, Flags, merge}};
//! # fn import(host: &Dir, shadow: &Dir, base: &Dir) -> Result<(), codeoid_hooks::shadow::index::Error> {
//! # let kind = gix::hash::Kind::Sha1;
//! let name = "index".as_ref();
//! let base = Entries::read(base, name, kind, true)?;
//! let theirs = Entries::read(shadow, name, kind, false)?;
//! if theirs.unmerged() || theirs.same(&base) {
//!     return Ok(());
//! }
//! // … import `theirs.objects_since(&base)`, take the host's index.lock, then:
//! let ours = Entries::read(host, name, kind, true)?;
//! let merged = merge(Some(&base), &ours, &theirs, Flags::Drop)?;
//! if merged.conflicts.is_empty() && !merged.is_noop() {
//!     let index = merged.bytes()?; // into index.lock
//! }
//! let base = merged.base(Some(&base), &theirs)?.fresh(Flags::Keep)?; // the next merge's base
//! # Ok(())
//! # }
//! ```

mod decode;
mod encode;
mod error;
mod merge;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::ffi::OsStr;

use gix::ObjectId;
use gix::bstr::{BStr, ByteSlice as _};
use gix::hash::Kind;
use gix::object;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::index::{GITLINK, SYMLINK};
use crate::read::{self, Dir};

pub use error::{Error, Side};
pub use merge::{Merged, merge};

/// Files, executable files (S_IFREG with the two permissions that git knows).
const FILE: u32 = 0o100_644;
const EXECUTABLE: u32 = 0o100_755;
/// A directory outside a sparse checkout, as one entry.
const DIRECTORY: u32 = 0o040_000;

/// The flags of an entry, the extended ones in the upper half (read-cache-ll.h).
const ASSUME_VALID: u32 = 0x8000;
const STAGE: u32 = 0x3000;
const INTENT_TO_ADD: u32 = 1 << 29;
const SKIP_WORKTREE: u32 = 1 << 30;

/// Which flags of an index are taken over. `assume-unchanged` and `skip-worktree` both hide what is edited in the
/// checkout from `git status` and `git diff`; `intent-to-add` does not, and is always kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flags {
    /// All: for what the host itself says (host to shadow, the base's own file).
    Keep,
    /// `skip-worktree` only: where the session's sparse checkout is taken over as well, and for its own worktrees.
    Sparse,
    /// None: an entry has the flags that the host's has. For a checkout that is not the session's own. Only what
    /// the host's index leaves out already stays left out, whatever form the session's has for it.
    Drop,
}

impl Flags {
    const fn mask(self) -> u32 {
        match self {
            Self::Keep => SKIP_WORKTREE | ASSUME_VALID,
            Self::Sparse => SKIP_WORKTREE,
            Self::Drop => 0,
        }
    }
}

/// The fields of stat(2) in their order on disk, the mode left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat([u8; 36]);

impl Stat {
    /// git looks at the content of such a file whatever the file system says about it: an entry of size 0 that is
    /// not the empty blob has never been looked at (ie_modified() in git's read-cache.c).
    const NONE: Self = Self([0; 36]);

    fn modified(&self) -> u32 {
        u32::from_be_bytes([self.0[8], self.0[9], self.0[10], self.0[11]])
    }

    /// What git does to an entry that is as young as the index which it is in ("smudge", its racy-git.txt): a new
    /// index file is younger, and would vouch for a file that was written after the old one.
    fn smudge(&mut self) {
        self.0[32..].fill(0);
    }
}

/// One entry. Its path stands in [`Entries`].
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    start: u32,
    length: u32,
    stat: Stat,
    mode: u32,
    id: ObjectId,
    flags: u32,
}

impl Entry {
    /// The mode, as in a tree.
    #[must_use]
    pub const fn mode(&self) -> u32 {
        self.mode
    }

    /// The object: a blob, the commit of a gitlink, the tree of a directory that is left out.
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// 0, or 1 to 3 while the path is unmerged.
    #[must_use]
    pub const fn stage(&self) -> u32 {
        (self.flags & STAGE) >> 12
    }

    /// Whether it is a submodule, or another repository that was added.
    #[must_use]
    pub const fn is_gitlink(&self) -> bool {
        self.mode & 0o170_000 == GITLINK
    }

    /// What its object is, where that lies in this repository.
    const fn object(&self) -> Option<object::Kind> {
        match self.mode & 0o170_000 {
            GITLINK => None,
            DIRECTORY => Some(object::Kind::Tree),
            _ => Some(object::Kind::Blob),
        }
    }

    const fn is_directory(&self) -> bool {
        self.mode & 0o170_000 == DIRECTORY
    }

    const fn skipped(&self) -> bool {
        self.flags & SKIP_WORKTREE != 0
    }

    const fn intended(&self) -> bool {
        self.flags & INTENT_TO_ADD != 0
    }

    /// What is staged, without the flags that concern the checkout only.
    fn content(&self) -> (u32, ObjectId, u32) {
        (self.mode, self.id, self.flags & (STAGE | INTENT_TO_ADD))
    }

    fn same(&self, other: &Self) -> bool {
        (self.mode, self.id, self.flags) == (other.mode, other.id, other.flags)
    }
}

/// A value that two lists of entries have in common exactly where they are equal: path, mode, object id, stage and
/// flags; stat data and extensions do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Digest(pub [u8; 32]);

/// An index that was read whole: its entries, sorted by path and stage.
#[derive(Debug, Clone)]
pub struct Entries {
    kind: Kind,
    /// The version to write: 4 is kept, between 2 and 3 the entries decide.
    compressed: bool,
    /// Whether the file says that it may have directories as entries.
    sparse: bool,
    /// Whether the file has no checksum (`index.skipHash`).
    unhashed: bool,
    /// When the file was last modified, in seconds since the epoch.
    modified: i64,
    paths: Vec<u8>,
    entries: Vec<Entry>,
}

impl Entries {
    /// No entries: the index of a repository without one.
    #[must_use]
    pub const fn empty(kind: Kind) -> Self {
        Self {
            kind,
            compressed: false,
            sparse: false,
            unhashed: false,
            modified: 0,
            paths: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// Reads the index `name` in `dir`, and the shared index that it may build upon from the same directory. There
    /// are no entries where there is no file. What is not `trusted` is held to what git writes: plain paths without
    /// `.git` in any disguise, known modes, no file where a directory is.
    ///
    /// # Errors
    /// [`Error::Read`] for what is not a regular file, [`Error::Format`], [`Error::Extension`], [`Error::Shared`],
    /// [`Error::Entry`] and [`Error::TooLong`] for what is in it.
    pub fn read(dir: &Dir, name: &OsStr, kind: Kind, trusted: bool) -> Result<Self, Error> {
        let entries = decode::read(dir, name, kind, trusted)?.unwrap_or_else(|| Self::empty(kind));
        if !trusted {
            decode::check(&entries, &dir.path().join(name))?;
        }
        Ok(entries)
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries with their paths, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&BStr, &Entry)> + Clone {
        self.entries.iter().map(|entry| (self.path(entry), entry))
    }

    /// The entry at this path, at stage 0.
    #[must_use]
    pub fn get(&self, path: &BStr) -> Option<&Entry> {
        let entry = self.entries.get(self.position(path))?;
        (self.path(entry) == path && entry.stage() == 0).then_some(entry)
    }

    /// Whether a merge, rebase or the like is unfinished: such an index is never taken over.
    #[must_use]
    pub fn unmerged(&self) -> bool {
        self.entries.iter().any(|entry| entry.stage() != 0)
    }

    /// The objects that the entries need: blobs, and the trees of directories that are left out. The commits of
    /// gitlinks lie in repositories of their own; the cache tree is never taken over.
    pub fn oids(&self) -> impl Iterator<Item = ObjectId> {
        self.entries.iter().filter(|entry| !entry.is_gitlink()).map(|entry| entry.id)
    }

    /// As [`Entries::oids`], of the entries only that are not in `base` with the same content, and with the type that
    /// each must have: git does not look at it before it needs the object.
    pub fn objects_since<'a>(
        &'a self,
        base: &'a Self,
    ) -> impl Iterator<Item = (ObjectId, object::Kind)> + 'a {
        let rows = merge::join([base, self]).filter_map(|(_, row)| match row {
            [Some(old), Some(new)] if old.content() == new.content() => None,
            [_, new] => new,
        });
        rows.filter_map(|entry| Some((entry.id, entry.object()?)))
    }

    /// Whether both have the same entries; stat data do not count.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.len() == other.len()
            && self.iter().zip(other.iter()).all(|((a, left), (b, right))| left.same(right) && a == b)
    }

    /// See [`Digest`].
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut hasher = Sha256::new();
        hasher.update([u8::from(self.kind == Kind::Sha1)]);
        for (path, entry) in self.iter() {
            hasher.update(entry.length.to_be_bytes());
            hasher.update(path);
            hasher.update(entry.mode.to_be_bytes());
            hasher.update(entry.flags.to_be_bytes());
            hasher.update(entry.id.as_slice());
        }
        Digest(hasher.finalize().into())
    }

    /// The bytes of a new index file with these entries alone, none of which git takes for looked at. Without
    /// [`Flags::Keep`] it is as if it were merged: `assume-unchanged` is dropped, with [`Flags::Drop`] `skip-worktree`
    /// as well, and no file is intended to be added where others are left out.
    ///
    /// # Errors
    /// [`Error::Sparse`] where a directory is left out and [`Flags::Drop`] forbids that; [`Error::Checksum`],
    /// [`Error::TooLarge`].
    pub fn fresh(&self, flags: Flags) -> Result<Vec<u8>, Error> {
        let mut fresh = Self { unhashed: false, ..self.clone() };
        if flags != Flags::Keep {
            let partial = self.sparse || self.entries.iter().any(Entry::skipped);
            fresh.entries.retain(|entry| !(partial && entry.intended()));
        }
        for entry in &mut fresh.entries {
            if entry.is_directory() && flags == Flags::Drop {
                return Err(Error::Sparse(self.path(entry).to_owned()));
            }
            entry.stat = Stat::NONE;
            entry.flags &= STAGE | INTENT_TO_ADD | flags.mask();
        }
        encode::bytes(&fresh)
    }

    fn path(&self, entry: &Entry) -> &BStr {
        let start = entry.start as usize;
        self.paths[start..start + entry.length as usize].as_bstr()
    }

    /// Where an entry with this path is or would be.
    fn position(&self, path: &BStr) -> usize {
        self.entries.partition_point(|entry| self.path(entry) < path)
    }

    /// The entries whose paths start so.
    fn below(&self, prefix: &BStr) -> &[Entry] {
        let rest = &self.entries[self.position(prefix)..];
        let end = rest.partition_point(|entry| self.path(entry).starts_with(prefix));
        &rest[..end]
    }

    /// Adds an entry, which has to come after all others; its own range is another list's.
    fn push(&mut self, path: &BStr, entry: Entry) -> Result<(), Error> {
        let start = u32::try_from(self.paths.len()).map_err(|_| Error::TooLarge)?;
        self.paths.extend_from_slice(path);
        self.entries.push(Entry { start, ..entry });
        Ok(())
    }

    fn cmp(&self, left: &Entry, right: &Entry) -> Ordering {
        self.path(left).cmp(self.path(right)).then_with(|| left.stage().cmp(&right.stage()))
    }
}

/// Whether the file `name` in `dir` has exactly these bytes: then it need not be parsed.
///
/// # Errors
/// [`read::Error`] for what is not a regular file.
pub fn same_bytes(dir: &Dir, name: &OsStr, bytes: &[u8]) -> Result<bool, read::Error> {
    let length = bytes.len() as u64;
    match dir.open_file(name)? {
        Some((file, stamp)) if stamp.size == length => {
            // One that grows meanwhile is another one.
            match read::read_open(file, stamp, || dir.path().join(name), length) {
                Ok(content) => Ok(content.bytes == bytes),
                Err(read::Error::TooBig { .. }) => Ok(false),
                Err(error) => Err(error),
            }
        }
        _ => Ok(false),
    }
}
