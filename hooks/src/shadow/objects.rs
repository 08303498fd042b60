//! A turn's objects on their way to the host: from the shadow's object files into a quarantine on the host's side,
//! and from there, checked by git, into the host's repository.
//!
//! [`Store::gather`] reads the shadow: nothing but loose objects and packs, by descriptor, each object hashed on the
//! way. What else lies there (indexes of packs, bitmaps, commit-graphs, alternates, configuration) is never looked
//! at. [`Store::admit`] has the host's git pack what the host's refs do not reach yet, check it (fsck, connectivity)
//! and take it in. Refs are the business of others.
//!
//! The attacker is the turn, and it may still be writing. It plants objects under foreign names, symlinks and devices
//! in their place, streams that inflate without end, packs that lie, objects that git would trip over later
//! (`.gitmodules`, `.git` in a tree), tips whose history is not there.
//!
//! # Limits
//!
//! - One [`Store::gather`] inflates at most [`INFLATED`] bytes of loose objects and takes at most half of the free
//!   space; a commit, tree or tag may have [`HELD`] bytes, because git holds those in memory. What is beyond is left
//!   in the shadow and counted.
//! - A pack may have as many objects as git can number with its allocations limited to 1 GB: some ten million.
//! - Of a directory of the shadow's, 200,000 names are looked at.
//! - No call of git takes longer than ten minutes, no gathering begins anything after as many.
//! - Objects that the shadow reaches only by alternates that the turn added are not taken.
//! - In a partial clone, a pack of which the turn says that it was fetched is believed where that takes nothing from
//!   the host (`promised.rs`); a turn that lies can have blobs and trees of its own go missing later. What is fetched
//!   on top of commits that only the host has is refused unless it is complete. git before 2.44 refuses the old faults
//!   there.
//! - A tree as tip is brought whole, unless commits that are tips, or the host's refs, reach its parts. So pass the
//!   commits and the blobs of an index, not its cached trees.

mod admit;
mod gather;
mod loose;
mod promised;
mod seen;
mod stage;

use std::cell::{Cell, OnceCell, RefCell};
use std::path::{Path, PathBuf};

use gix::ObjectId;
use gix::objs::Exists as _;
use gix::odb::Header as _;

pub use admit::{Admitted, Verdict};
pub use gather::Gathered;

use super::git::{self, Git};
use crate::os::WriteError;
use crate::read::{self, Dir};

/// The most that the loose objects of one [`Store::gather`] may inflate to, in bytes.
pub const INFLATED: u64 = 16 * 1024 * 1024 * 1024;
/// The most that a commit, a tree or a tag may have, inflated, in bytes.
pub const HELD: u64 = 256 * 1024 * 1024;

/// Why objects could not be brought over: the host's own trouble, never the shadow's content.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// git could not be run.
    #[error(transparent)]
    Git(#[from] git::Error),
    /// The shadow could not be read.
    #[error(transparent)]
    Read(#[from] read::Error),
    /// The quarantine, or a `.keep` file, could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A directory of the host's could not be read.
    #[error("read {path}")]
    Host {
        /// The path.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        source: std::io::Error,
    },
}

/// One shadow, its quarantine, and the host's repository. At most one call at a time may be under way per shadow, in
/// whatever process.
pub struct Store<'a> {
    git: &'a Git,
    shadow: &'a Dir,
    quarantine: PathBuf,
    kind: gix::hash::Kind,
    promisor: bool,
    borrowed: Vec<PathBuf>,
    /// Whether git's `--fsck-objects` takes no list of faults.
    plain_check: Cell<bool>,
    /// What the host has for certain, where its refs are not to be asked.
    negatives: Option<Vec<ObjectId>>,
    /// Loose objects that were moved to the host's.
    landed: RefCell<Vec<PathBuf>>,
}

impl<'a> Store<'a> {
    /// `shadow` is the private common dir; `quarantine` is a directory of the host's side, made where it is absent, in
    /// a directory that is this shadow's own (`gathered.json` is kept beside it). `kind` is the repository's object
    /// format, `promisor` whether it is a partial clone.
    #[must_use]
    pub fn new(
        git: &'a Git,
        shadow: &'a Dir,
        quarantine: &Path,
        kind: gix::hash::Kind,
        promisor: bool,
    ) -> Self {
        Self {
            git,
            shadow,
            quarantine: quarantine.to_owned(),
            kind,
            promisor,
            borrowed: Vec::new(),
            plain_check: Cell::new(false),
            negatives: None,
            landed: RefCell::default(),
        }
    }

    /// Further directories of the host's objects that the shadow borrows from: a snapshot that outlives a `gc` on the
    /// host. What a tip needs and the host has no longer comes from there.
    #[must_use]
    pub fn borrowing(mut self, directories: Vec<PathBuf>) -> Self {
        self.borrowed = directories;
        self
    }

    /// Whether all that was admitted is safe from the host's garbage collection. Objects that no ref names yet are prey
    /// to a `gc --prune=now`, which looks for what is named when it starts, and deletes all the rest when it ends. To be
    /// asked once the refs have moved.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        !self.is_collecting() && self.landed.borrow().iter().all(|path| path.symlink_metadata().is_ok())
    }

    /// Brings these tips once more, in packs that no garbage collection touches until [`Store::release`]. `had` are the
    /// tips that the host had before: its refs may name by now what is not there.
    ///
    /// # Errors
    /// As [`Store::gather`] and [`Store::admit`].
    pub fn secure(&self, tips: &[ObjectId], had: Vec<ObjectId>) -> Result<(), Error> {
        let again = Store {
            git: self.git,
            shadow: self.shadow,
            quarantine: self.quarantine.clone(),
            kind: self.kind,
            promisor: self.promisor,
            borrowed: self.borrowed.clone(),
            plain_check: self.plain_check.clone(),
            negatives: Some(had),
            landed: RefCell::default(),
        };
        let _ = again.gather()?;
        let _ = again.admit(tips)?;
        Ok(())
    }

    /// Whether a garbage collection runs on the host (`lock_repo_for_gc()` in git's builtin/gc.c; a lock older than
    /// twelve hours counts for nothing there, too).
    fn is_collecting(&self) -> bool {
        let lock = self.git.common_dir().join("gc.pid");
        let age = lock
            .symlink_metadata()
            .and_then(|meta| meta.modified())
            .map(|at| at.elapsed().unwrap_or_default());
        age.is_ok_and(|age| age.as_secs() < 12 * 3600)
    }

    /// Empties the quarantine, forgets what was seen, and removes what a crash left on the way. To be called at recovery too: nothing in it is synced to
    /// the disk, so that after a power failure it may have holes.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn clear(&self) -> Result<(), Error> {
        // What was seen first: a pack that counts as seen is not read again.
        seen::forget(&self.quarantine)?;
        stage::sweep(&self.git.objects(), &self.token())?;
        match std::fs::remove_dir_all(&self.quarantine) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(WriteError::new(&self.quarantine, error).into())
            }
            _ => Ok(()),
        }
    }

    /// Removes the `.keep` files that [`Store::admit`] left: after the refs have moved, and at recovery. Only those
    /// of this quarantine, never another session's or somebody else's.
    ///
    /// # Errors
    /// [`Error::Host`] where the directory of packs cannot be read, [`Error::Write`] where a file cannot be removed.
    pub fn release(&self) -> Result<(), Error> {
        let directory = self.git.objects().join("pack");
        let fail = |source| Error::Host { path: directory.clone(), source };
        let list = match std::fs::read_dir(&directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            list => list.map_err(fail)?,
        };
        let text = self.keep_text();
        for item in list {
            let path = item.map_err(fail)?.path();
            if path.extension().is_some_and(|extension| extension == "keep")
                && let Ok(Some(content)) = read::file(&path, 4096)
                && content.bytes.trim_ascii_end() == text.as_bytes()
                && let Err(error) = std::fs::remove_file(&path)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                return Err(WriteError::new(&path, error).into());
            }
        }
        Ok(())
    }

    /// What stands in a `.keep` file: whose it is, so that a later process knows it again.
    fn keep_text(&self) -> String {
        format!("codeoid-shim import {}", self.token())
    }

    /// Names this quarantine where others can see it.
    fn token(&self) -> String {
        use std::os::unix::ffi::OsStrExt as _;
        let mut hasher = gix::hash::hasher(gix::hash::Kind::Sha256);
        hasher.update(self.quarantine.as_os_str().as_bytes());
        hasher.try_finalize().map(|id| id.to_hex_with_len(16).to_string()).unwrap_or_default()
    }
}

/// The host's objects as they are found when first asked for; for one call only, because the host goes on.
struct Host {
    objects: PathBuf,
    kind: gix::hash::Kind,
    handle: OnceCell<Option<gix::odb::Handle>>,
}

impl Host {
    fn new(store: &Store<'_>) -> Self {
        Self::of(store.git.objects(), store.kind)
    }

    const fn of(objects: PathBuf, kind: gix::hash::Kind) -> Self {
        Self { objects, kind, handle: OnceCell::new() }
    }

    fn handle(&self) -> Option<&gix::odb::Handle> {
        let open = || {
            let mut handle = gix::odb::at(&self.objects, self.kind).ok()?;
            // Most of what is asked for is not there; the directory of packs need not be listed again each time.
            handle.refresh_never();
            Some(handle)
        };
        self.handle.get_or_init(open).as_ref()
    }

    /// Whether it has this object. Where that cannot be known it has not, which costs time only.
    fn has(&self, id: &gix::hash::oid) -> bool {
        self.handle().is_some_and(|host| host.exists(id))
    }

    /// Whether it has this object, and it is a blob, which is connected by itself.
    fn has_blob(&self, id: &ObjectId) -> bool {
        let header = self.handle().and_then(|host| host.try_header(id).ok().flatten());
        header.is_some_and(|header| header.kind() == gix::objs::Kind::Blob)
    }
}

#[cfg(test)]
mod tests;
