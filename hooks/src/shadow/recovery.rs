//! What a killed import leaves: a stage and `.keep` files among the host's objects, lock files of ours, files that were
//! not renamed yet. A mark in the shadow's directory says that there may be any; whoever has the shadow next takes them
//! away.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use codeoid_spec::git::Repository;

use super::git::Git;
use super::objects::Store;
use super::place::Place;
use super::{Error, transaction, write};
use crate::lock::{self, Mode};
use crate::os::WriteError;
use crate::read::{self, Dir, Kind};

/// The deepest directory of refs that is looked into.
const DEPTH: usize = 64;

fn mark(place: &Place) -> PathBuf {
    place.root().join("importing")
}

/// Says that an import begins to write.
pub(crate) fn begin(place: &Place) -> Result<(), Error> {
    let path = mark(place);
    std::fs::write(&path, "").map_err(|source| WriteError::new(&path, source))?;
    Ok(())
}

/// Says that it has left nothing.
pub(crate) fn end(place: &Place) -> Result<(), Error> {
    let path = mark(place);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(WriteError::new(&path, error).into())
        }
        _ => Ok(()),
    }
}

/// Takes away what a killed import left, if there was one. The caller has the shadow's lock, so none is running.
pub(crate) fn recover(
    place: &Place,
    repository: &Repository,
    git: &Git,
    repository_lock: &Path,
) -> Result<(), Error> {
    if read::lstat(&mark(place))?.is_none() {
        return Ok(());
    }
    // Another session's import holds locks with the same text.
    let _lock = lock::file(repository_lock, Mode::Exclusive)?;
    let host = Dir::open(&repository.common_dir)?;
    let kind = super::hash_kind(&host)?;
    if let Ok(shadow) = Dir::open(&place.git()) {
        let store = Store::new(git, &shadow, &place.quarantine(), kind, false);
        store.clear()?;
        store.release()?;
    }
    sweep(&host, 0)?;
    for (name, depth) in [("refs", DEPTH), ("lfs", 3)] {
        if let Ok(Some(dir)) = host.child(name.as_ref()) {
            sweep(&dir, depth)?;
        }
    }
    if let Ok(Some(worktrees)) = host.child("worktrees".as_ref()) {
        for item in worktrees.list()? {
            if let Ok(Some(entry)) = worktrees.child(&item.name) {
                sweep(&entry, 0)?;
            }
        }
    }
    end(place)
}

fn sweep(dir: &Dir, depth: usize) -> Result<(), Error> {
    let mut found = Vec::new();
    dir.visit(|name, kind, _| found.push((name.to_owned(), kind)))?;
    for (name, kind) in found {
        let name = OsStr::from_bytes(name.to_bytes());
        let bytes = name.as_bytes();
        if kind == Kind::Directory {
            if depth > 0
                && let Ok(Some(below)) = dir.child(name)
            {
                sweep(&below, depth - 1)?;
            }
        } else if bytes.ends_with(write::DRAFT.as_bytes())
            || bytes.ends_with(b".lock") && transaction::is_ours(dir, name)?
        {
            write::unlink(dir, name)?;
        }
    }
    Ok(())
}
