//! Writing below an open directory, following nothing: a shadow's names are the turn's, and may be anything.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write as _;
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};

use crate::os::{OsError, WriteError};
use crate::read::{self, Dir, Kind};
use crate::tree;

/// What a file is called until it is whole. One that a kill left behind is replaced, or swept away by recovery. No ref has
/// a name with such an end (git-check-ref-format(1)), so that none among the refs is ever taken for a branch.
pub(crate) const DRAFT: &str = ".codeoid.lock";

/// The deepest directory that is copied.
const DEPTH: usize = 32;
/// The largest file that is copied, in bytes.
const LARGEST: u64 = 1024 * 1024 * 1024;

/// Why something could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something could not be read.
    #[error(transparent)]
    Read(#[from] read::Error),
    /// A system call failed.
    #[error(transparent)]
    Os(#[from] OsError),
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// What was in the way could not be removed.
    #[error(transparent)]
    Tree(#[from] tree::Error),
}

fn os(call: &'static str, dir: &Dir, name: &OsStr, errno: Errno) -> Error {
    OsError::new(call, dir.path().join(name), errno).into()
}

/// Writes a file, whole or not at all: under another name, then renamed. What is in the way goes, whatever it is.
pub(crate) fn put(dir: &Dir, name: &OsStr, bytes: &[u8]) -> Result<(), Error> {
    put_mode(dir, name, bytes, 0o644)
}

/// [`put`] with the file's permissions.
pub(crate) fn put_mode(dir: &Dir, name: &OsStr, bytes: &[u8], mode: u32) -> Result<(), Error> {
    let draft = draft_name(name);
    let mut file = create(dir, &draft, mode)?;
    file.write_all(bytes).map_err(|source| WriteError::new(dir.path().join(&draft), source))?;
    drop(file);
    rename(dir, &draft, name)
}

/// [`put`], unless the file has this content already: replacing a file makes some file systems wait for the disk.
pub(crate) fn keep(dir: &Dir, name: &OsStr, bytes: &[u8]) -> Result<(), Error> {
    let same = matches!(dir.read(name, bytes.len() as u64), Ok(Some(content)) if content.bytes == bytes);
    if same { Ok(()) } else { put(dir, name, bytes) }
}

/// The name under which a file is written.
pub(crate) fn draft_name(name: &OsStr) -> OsString {
    let mut draft = name.to_owned();
    draft.push(DRAFT);
    draft
}

/// Makes a new, empty file; what is in the way goes.
pub(crate) fn create(dir: &Dir, name: &OsStr, mode: u32) -> Result<File, Error> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mode = Mode::from_bits_truncate(mode as nix::libc::mode_t);
    match openat(dir, name, flags, mode) {
        Ok(fd) => Ok(File::from(fd)),
        Err(Errno::EEXIST) => {
            tree::remove(dir, name)?;
            openat(dir, name, flags, mode).map(File::from).map_err(|errno| os("openat", dir, name, errno))
        }
        Err(errno) => Err(os("openat", dir, name, errno)),
    }
}

/// Renames within a directory; a directory in the way goes.
pub(crate) fn rename(dir: &Dir, from: &OsStr, to: &OsStr) -> Result<(), Error> {
    match renameat(dir, from, dir, to) {
        Err(Errno::EISDIR | Errno::ENOTEMPTY | Errno::EEXIST) => {
            tree::remove(dir, to)?;
            renameat(dir, from, dir, to).map_err(|errno| os("renameat", dir, to, errno))
        }
        other => other.map_err(|errno| os("renameat", dir, to, errno)),
    }
}

/// Opens a directory, which is made where there is none; anything else in the way goes.
pub(crate) fn directory(dir: &Dir, name: &OsStr) -> Result<Dir, Error> {
    for _ in 0..2 {
        match mkdirat(dir, name, Mode::from_bits_truncate(0o755)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(os("mkdirat", dir, name, errno)),
        }
        match dir.child(name) {
            Ok(Some(found)) => return Ok(found),
            Err(read::Error::NotDirectory { .. }) | Ok(None) => tree::remove(dir, name)?,
            Err(error) => return Err(error.into()),
        }
    }
    Err(os("mkdirat", dir, name, Errno::EEXIST))
}

/// [`directory`] for each component of a relative path. `None` for an empty path.
pub(crate) fn directories(dir: &Dir, relative: &Path) -> Result<Option<Dir>, Error> {
    let mut held: Option<Dir> = None;
    for part in relative.components() {
        let Component::Normal(name) = part else {
            return Err(read::Error::NotPlain { path: dir.path().join(relative) }.into());
        };
        held = Some(directory(held.as_ref().unwrap_or(dir), name)?);
    }
    Ok(held)
}

/// Makes a symlink; what is in the way goes.
pub(crate) fn link(dir: &Dir, name: &OsStr, target: &Path) -> Result<(), Error> {
    match symlinkat(target, dir, name) {
        Err(Errno::EEXIST) => {
            tree::remove(dir, name)?;
            symlinkat(target, dir, name).map_err(|errno| os("symlinkat", dir, name, errno))
        }
        other => other.map_err(|errno| os("symlinkat", dir, name, errno)),
    }
}

/// Removes a file; nothing there is no error.
pub(crate) fn unlink(dir: &Dir, name: &OsStr) -> Result<(), Error> {
    match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(os("unlinkat", dir, name, errno)),
    }
}

/// Copies a regular file, with whether it may be executed; anything else of that name is not there in the copy.
pub(crate) fn copy(from: &Dir, name: &OsStr, to: &Dir) -> Result<bool, Error> {
    let (mut source, stamp) = match from.open_file(name) {
        Ok(Some(found)) => found,
        Ok(None) | Err(read::Error::NotRegular { .. }) => {
            tree::remove(to, name)?;
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    };
    if stamp.size > LARGEST {
        let path = from.path().join(name);
        return Err(read::Error::TooBig { path, size: stamp.size, limit: LARGEST }.into());
    }
    let draft = draft_name(name);
    let mut file = create(to, &draft, if stamp.mode & 0o100 == 0 { 0o644 } else { 0o755 })?;
    std::io::copy(&mut source, &mut file)
        .map_err(|source| WriteError::new(to.path().join(&draft), source))?;
    drop(file);
    rename(to, &draft, name)?;
    Ok(true)
}

/// Copies a directory with the regular files and symlinks in it; what was there before goes.
pub(crate) fn copy_tree(from: &Dir, name: &OsStr, to: &Dir) -> Result<bool, Error> {
    tree::remove(to, name)?;
    let source = match from.child(name) {
        Ok(Some(source)) => source,
        Ok(None) | Err(read::Error::NotDirectory { .. }) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    fill(&source, &directory(to, name)?, DEPTH)?;
    Ok(true)
}

fn fill(from: &Dir, to: &Dir, depth: usize) -> Result<(), Error> {
    for item in from.list()? {
        match item.kind {
            Kind::File => drop(copy(from, &item.name, to)?),
            Kind::Symlink => {
                if let Some(target) = from.read_link(&item.name)? {
                    link(to, &item.name, &target)?;
                }
            }
            Kind::Directory if depth > 0 => {
                if let Some(source) = from.child(&item.name)? {
                    fill(&source, &directory(to, &item.name)?, depth - 1)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}
