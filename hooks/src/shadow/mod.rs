//! Protection `shadow`: the turn is treated as an untrusted remote. The sandbox sees a private shadow of the common
//! dir; what the turn did there comes back by import: parsed, checked, compared and swapped, under git's own locks.
//!
//! The attacker is the turn: everything in the shadow may have been made by it, in any form. So no process of the host
//! ever runs git on a shadow; it is read with [`crate::read`], and only objects that were hashed and checked, and
//! values that were parsed, reach the host's repository.
//!
//! In the order of a turn: [`guard`] says what the sandbox sees, [`prepare`] builds or refreshes the shadow,
//! [`finish`] imports it, [`close`] does so for the last time and removes it.

mod base;
mod build;
mod entries;
pub mod git;
mod guard;
mod import;
pub mod index;
mod kept;
mod lfs;
mod live;
pub mod objects;
pub mod place;
mod recovery;
pub mod refs;
mod settings;
mod stash;
mod transaction;
mod turn;
mod unit;
mod write;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use gix::ObjectId;
use gix::bstr::BStr;

use crate::config;
use crate::read::{self, Dir, Kind, POINTER_LIMIT};

pub use guard::{guard, limits};
pub use import::{Imported, When};
pub use live::follow;
pub use place::{Claim, Place};
pub use turn::{FILE, Record, VERSION, close, finish, prepare};

/// What the lock of a session's worktree on the host says (git-worktree(1), `lock`).
pub(crate) const LOCKED: &str = "codeoid-shim: ";

pub(crate) fn locked(session: &str) -> String {
    format!("{LOCKED}session {session} is at work here\n")
}

/// Whether a finding of this kind is for the person at the terminal, now: something of the session did not come.
#[must_use]
pub fn is_told(kind: &str) -> bool {
    matches!(kind, "conflict" | "operation-in-progress" | "refused" | "shadow-destroyed")
}

/// Why a shadow could not be made, refreshed or imported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something could not be read.
    #[error(transparent)]
    Read(#[from] read::Error),
    /// Something could not be written.
    #[error(transparent)]
    Write(#[from] write::Error),
    /// The record of what both sides agree on.
    #[error(transparent)]
    Base(#[from] base::Error),
    /// git on the host.
    #[error(transparent)]
    Git(#[from] git::Error),
    /// Objects could not be brought over.
    #[error(transparent)]
    Objects(#[from] objects::Error),
    /// An index could not be read or written.
    #[error(transparent)]
    Index(#[from] index::Error),
    /// A lock file of ours.
    #[error(transparent)]
    Lock(#[from] crate::lock::Error),
    /// A system call failed.
    #[error(transparent)]
    Os(#[from] crate::os::OsError),
    /// A file could not be written.
    #[error(transparent)]
    File(#[from] crate::os::WriteError),
    /// A directory could not be removed.
    #[error(transparent)]
    Tree(#[from] crate::tree::Error),
    /// git on the host does not come to an end in a checkout.
    #[error("git on the host keeps changing {path}, or a lock file was left there")]
    Busy {
        /// The git dir.
        path: PathBuf,
    },
    /// A part of the repository is missing.
    #[error("{path} is missing")]
    NotARepository {
        /// What is missing.
        path: PathBuf,
    },
    /// A repository that this protection does not cover.
    #[error("protection shadow does not cover this repository: {why}")]
    Unsupported {
        /// Why.
        why: String,
    },
}

impl Error {
    /// Whether it is about something below this directory: a shadow that a turn made unreadable.
    pub(crate) fn is_below(&self, directory: &std::path::Path) -> bool {
        let path = match self {
            Self::Read(error) | Self::Write(write::Error::Read(error)) => error.path(),
            Self::Os(error) | Self::Write(write::Error::Os(error)) => &error.path,
            Self::File(error) | Self::Write(write::Error::Write(error)) => &error.path,
            Self::Tree(error) | Self::Write(write::Error::Tree(error)) => match error {
                crate::tree::Error::Read(error) => error.path(),
                crate::tree::Error::Os(error) => &error.path,
                crate::tree::Error::Write(error) => &error.path,
                crate::tree::Error::Filling { path } | crate::tree::Error::TooLarge { path } => path,
            },
            _ => return false,
        };
        path.starts_with(directory)
    }
}

/// The repository's object format (`extensions.objectFormat`).
pub(crate) fn hash_kind(common: &Dir) -> Result<gix::hash::Kind, Error> {
    let bytes =
        common.read("config".as_ref(), POINTER_LIMIT)?.map(|content| content.bytes).unwrap_or_default();
    let file = config::File::parse(&bytes).unwrap_or_default();
    match file.last("extensions", "objectformat").flatten() {
        None => Ok(gix::hash::Kind::Sha1),
        Some(name) if name.eq_ignore_ascii_case(b"sha1") => Ok(gix::hash::Kind::Sha1),
        Some(name) if name.eq_ignore_ascii_case(b"sha256") => Ok(gix::hash::Kind::Sha256),
        Some(name) => Err(Error::Unsupported {
            why: format!("its object format {:?} is not known", String::from_utf8_lossy(name)),
        }),
    }
}

/// Whether a shadow still is a git dir. One that is not says nothing about what was deleted in it.
pub(crate) fn is_whole(shadow: &Dir) -> Result<bool, read::Error> {
    for (name, kind) in [
        ("HEAD", Kind::File),
        ("config", Kind::File),
        ("packed-refs", Kind::File),
        ("objects", Kind::Directory),
        ("refs", Kind::Directory),
    ] {
        if shadow.lstat(name)?.is_none_or(|stamp| stamp.kind() != kind) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What one ref of a git dir holds, where it is no symbolic one: its loose file, else `packed-refs`.
pub(crate) fn read_ref(
    common: &Dir,
    name: &BStr,
    kind: gix::hash::Kind,
) -> Result<Option<ObjectId>, read::Error> {
    let path = Path::new(OsStr::from_bytes(name));
    let (Some(parent), Some(file)) = (path.parent(), path.file_name()) else { return Ok(None) };
    for _ in 0..2 {
        let loose = match common.beneath(parent) {
            Ok(Some(dir)) => match dir.read(file, 8192) {
                Ok(content) => content,
                Err(read::Error::NotRegular { .. } | read::Error::TooBig { .. }) => None,
                Err(error) => return Err(error),
            },
            Ok(None) | Err(read::Error::NotDirectory { .. }) => None,
            Err(error) => return Err(error),
        };
        if let Some(content) = loose {
            return Ok(refs::Target::parse(&content.bytes, kind).and_then(|target| target.object()));
        }
        if let Some(id) = refs::packed(common, kind)?.object(name) {
            return Ok(Some(id));
        }
        // Unpacked between the two looks, perhaps: once more.
    }
    Ok(None)
}

/// Whether a unit of the shadow is not what both sides agreed on.
pub(crate) fn touched(
    place: &Place,
    base: &base::Base,
    name: &str,
    shadow: &Dir,
    kind: gix::hash::Kind,
) -> Result<bool, Error> {
    let Some(known) = base.units.get(name) else { return Ok(true) };
    let head = unit::head(shadow, kind)?.map(|head| head.text()).unwrap_or_default();
    Ok(head != known.head.0
        || unit::in_progress(shadow)?.is_some() != known.operation
        || base.index_changed(place, name, shadow, kind)?)
}

impl git::Git {
    /// Whether the history of the second commit has the first one in it. Where that cannot be known it has not.
    pub(crate) fn is_ancestor(&self, ancestor: ObjectId, of: ObjectId) -> bool {
        ancestor == of
            || self.run(["merge-base", "--is-ancestor", &ancestor.to_string(), &of.to_string()], b"").is_ok()
    }
}
