//! Carrying out what a judgement asks for. Every step may be carried out twice, and a kill between any two
//! system calls leaves something that the next check finds and finishes.
//!
//! A turn can fill the disk before it ends, so nothing that takes a power away from it may need space: what
//! only has to go is removed first, a copy that cannot be kept stops nothing, and a file that cannot be written
//! anew is overwritten in place.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};

use super::fault::Step;
use super::refs;
use crate::os::{OsError, WriteError};
use crate::read::{self, Dir, Kind, Stamp};
use crate::tree::{self, Keep};

/// What a file that is being written is called until it is complete. One that a killed run left behind is
/// known by this name.
pub(crate) const SUFFIX: &str = ".codeoid-restore";
/// How often git's own lock on a file is asked for.
const LOCK_TRIES: u32 = 20;
/// How long is waited between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// Why something could not be put right.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] read::Error),
    /// It could not be removed.
    #[error(transparent)]
    Tree(#[from] tree::Error),
    /// A system call failed.
    #[error(transparent)]
    Os(#[from] OsError),
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Somebody else holds git's lock on `packed-refs`: without it a ref that is being packed would be lost.
    #[error("{path} stays locked")]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// It was put right again and again, and is not right.
    #[error("{path} does not stay as it was put")]
    Stubborn {
        /// The path.
        path: PathBuf,
    },
    /// `packed-refs` is not one.
    #[error(transparent)]
    Refs(#[from] refs::Error),
}

/// Carries out one step. Copies that could not be kept are added to `warnings`.
pub(super) fn apply(step: &Step, keep: &Keep, warnings: &mut Vec<String>) -> Result<(), Error> {
    if let Some(path) = step.keeps()
        && let Some((parent, name)) = parent(path)?
        && let Err(error) = keep.copy(&parent, name)
    {
        warnings.push(format!("no copy of {} could be kept: {}", path.display(), chain(&error)));
    }
    match step {
        Step::Remove { path, .. } => match parent(path)? {
            Some((parent, name)) => Ok(tree::remove(&parent, name)?),
            None => Ok(()),
        },
        Step::Write { path, bytes, mode, .. } => write(path, bytes, *mode),
        Step::Create { path, bytes, mode } => match parent(path)? {
            Some((dir, name)) => create_new(&dir, name, bytes, *mode),
            None => Ok(()),
        },
        Step::Recreate { path, files } => recreate(path, files),
        Step::Rename { from, to } => rename(from, to),
        Step::Link { path, target } => link(path, target),
        Step::MakeDirectory { path } => match parent(path)? {
            Some((parent, name)) => match mkdirat(&parent, name, Mode::from_bits_truncate(0o777)) {
                Ok(()) | Err(Errno::EEXIST) => Ok(()),
                Err(errno) => Err(os("mkdirat", path, errno)),
            },
            None => Err(os("mkdirat", path, Errno::ENOENT)),
        },
        Step::Allow { base, path } => allow(base, path),
        Step::Unlock { path, stamp } => unlock(path, stamp),
        Step::DropPacked { git_dir, names } => drop_packed(git_dir, names),
    }
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn os(call: &'static str, path: &Path, errno: Errno) -> Error {
    OsError::new(call, path, errno).into()
}

/// The directory of a path, opened without following anything, and the name in it. `None` where the directory
/// is gone.
fn parent(path: &Path) -> Result<Option<(Dir, &OsStr)>, Error> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    match Dir::open(parent) {
        Ok(dir) => Ok(Some((dir, name))),
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    let Some((dir, name)) = parent(path)? else { return Err(os("open", path, Errno::ENOENT)) };
    if dir.lstat(name)?.is_some_and(|stamp| stamp.kind() == Kind::Directory) {
        tree::remove(&dir, name)?;
    }
    // git takes `config.lock` before it writes `config`; so does this, or one of the two writes is lost.
    let locked = ["config", "config.worktree"].iter().any(|config| name == *config);
    let mut temporary = name.to_owned();
    temporary.push(".lock");
    // A lock that does not go away must not keep what a turn has planted in place; what its holder writes is
    // judged again.
    let file = match if locked { create(&dir, &temporary, LOCK_TRIES) } else { Err(Errno::EEXIST) } {
        Err(Errno::EEXIST) => {
            temporary = name.to_owned();
            temporary.push(SUFFIX);
            tree::remove(&dir, &temporary)?;
            create(&dir, &temporary, 1)
        }
        other => other,
    };
    let result = match file {
        Ok(file) => fill(file, bytes, mode, path).and_then(|()| {
            renameat(&dir, temporary.as_os_str(), &dir, name).map_err(|errno| os("renameat", path, errno))
        }),
        Err(errno) => Err(os("openat", &dir.path().join(&temporary), errno)),
    };
    match result {
        Err(error) if no_space(&error) => {
            let _ = unlinkat(&dir, temporary.as_os_str(), UnlinkatFlags::NoRemoveDir);
            overwrite(&dir, name, bytes, mode)
        }
        other => other,
    }
}

/// Makes a file that is not there; what is there by now is somebody's own.
fn create_new(dir: &Dir, name: &OsStr, bytes: &[u8], mode: u32) -> Result<(), Error> {
    let path = dir.path().join(name);
    match create(dir, name, 1) {
        Ok(file) => fill(file, bytes, mode, &path),
        Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(os("openat", &path, errno)),
    }
}

fn recreate(path: &Path, files: &[(&'static str, Vec<u8>)]) -> Result<(), Error> {
    let Some((above, name)) = parent(path)? else { return Err(os("mkdirat", path, Errno::ENOENT)) };
    match mkdirat(&above, name, Mode::from_bits_truncate(0o777)) {
        Ok(()) => {}
        Err(Errno::EEXIST) => return Ok(()),
        Err(errno) => return Err(os("mkdirat", path, errno)),
    }
    let Some(dir) = above.child(name)? else { return Ok(()) };
    files.iter().try_for_each(|(name, bytes)| create_new(&dir, OsStr::new(name), bytes, 0o644))
}

fn create(dir: &Dir, name: &OsStr, tries: u32) -> Result<File, Errno> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    for rest in (0..tries).rev() {
        match openat(dir, name, flags, Mode::S_IRUSR | Mode::S_IWUSR) {
            Err(Errno::EEXIST) if rest > 0 => std::thread::sleep(PAUSE),
            other => return other.map(File::from),
        }
    }
    Err(Errno::EEXIST)
}

fn fill(mut file: File, bytes: &[u8], mode: u32, path: &Path) -> Result<(), Error> {
    let failed = |source| Error::from(WriteError::new(path, source));
    file.write_all(bytes).map_err(failed)?;
    fchmod(&file, Mode::from_bits_truncate(mode as nix::libc::mode_t))
        .map_err(|errno| os("fchmod", path, errno))?;
    file.sync_all().map_err(failed)
}

fn no_space(error: &Error) -> bool {
    let errno = match error {
        Error::Os(OsError { errno, .. }) => Some(*errno as i32),
        Error::Write(WriteError { source, .. }) => source.raw_os_error(),
        _ => None,
    };
    errno.is_some_and(|errno| [Errno::ENOSPC as i32, Errno::EDQUOT as i32].contains(&errno))
}

/// Writes over a file that exists, which needs no space where it is long enough already.
fn overwrite(dir: &Dir, name: &OsStr, bytes: &[u8], mode: u32) -> Result<(), Error> {
    let path = dir.path().join(name);
    let failed = |source| Error::from(WriteError::new(&path, source));
    let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    match dir.lstat(name)? {
        Some(stamp) if stamp.kind() == Kind::File && stamp.nlink == 1 => {}
        _ => return Err(os("openat", &path, Errno::ENOSPC)),
    }
    let mut file =
        openat(dir, name, flags, Mode::empty()).map(File::from).map_err(|e| os("openat", &path, e))?;
    file.rewind().map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    file.set_len(bytes.len() as u64).map_err(failed)?;
    fchmod(&file, Mode::from_bits_truncate(mode as nix::libc::mode_t))
        .map_err(|errno| os("fchmod", &path, errno))
}

fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    let (Some((from_dir, from_name)), Some((to_dir, to_name))) = (parent(from)?, parent(to)?) else {
        return Ok(());
    };
    match renameat(&from_dir, from_name, &to_dir, to_name) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(os("renameat", from, errno)),
    }
}

fn link(path: &Path, target: &Path) -> Result<(), Error> {
    let Some((dir, name)) = parent(path)? else { return Err(os("open", path, Errno::ENOENT)) };
    tree::remove(&dir, name)?;
    match symlinkat(target, &dir, name) {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(os("symlinkat", path, errno)),
    }
}

fn allow(base: &Path, path: &Path) -> Result<(), Error> {
    let (Some(parent), Ok(rest)) = (base.parent(), path.strip_prefix(base)) else { return Ok(()) };
    let mut at = Dir::open(parent)?;
    let way = base.file_name().into_iter().chain(rest.iter());
    for name in way {
        let Some(stamp) = at.lstat(name)? else { return Ok(()) };
        let needed = match stamp.kind() {
            Kind::Directory => 0o700,
            Kind::File => 0o600,
            _ => return Ok(()),
        };
        if stamp.mode & needed != needed {
            let mode = Mode::from_bits_truncate(((stamp.mode | needed) & 0o7777) as nix::libc::mode_t);
            tree::allow(&at, name, mode).map_err(|errno| os("chmod", &at.path().join(name), errno))?;
        }
        match at.passage(name) {
            Ok(Some(next)) => at = next,
            // The last one may be a file.
            Ok(None) | Err(read::Error::NotDirectory { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn unlock(path: &Path, stamp: &Stamp) -> Result<(), Error> {
    let Some((dir, name)) = parent(path)? else { return Ok(()) };
    if dir.lstat(name)?.as_ref() != Some(stamp) {
        return Ok(());
    }
    match unlinkat(&dir, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(os("unlinkat", path, errno)),
    }
}

fn drop_packed(git_dir: &Path, names: &[Vec<u8>]) -> Result<(), Error> {
    let dir = Dir::open(git_dir)?;
    let (name, lock) = (OsStr::new("packed-refs"), OsStr::new("packed-refs.lock"));
    let path = git_dir.join(name);
    let file = match create(&dir, lock, LOCK_TRIES) {
        Err(Errno::EEXIST) => return Err(Error::Locked { path: git_dir.join(lock) }),
        other => other.map_err(|errno| os("openat", &git_dir.join(lock), errno))?,
    };
    let result = refs::without(&dir, names).map_err(Error::from).and_then(|rest| match rest {
        Some((bytes, mode)) => fill(file, &bytes, mode, &path)
            .and_then(|()| renameat(&dir, lock, &dir, name).map_err(|errno| os("renameat", &path, errno))),
        None => Ok(()),
    });
    match unlinkat(&dir, lock, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => result,
        Err(errno) => result.and(Err(os("unlinkat", &git_dir.join(lock), errno))),
    }
}
