//! Advisory locks on whole files (flock(2)). A lock lives as long as a descriptor of its open file does, in
//! whatever process; so a process that forks hands it on, and a kill releases it.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::FlockArg;

/// Why a lock could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The lock file could not be opened.
    #[error("lock file {path}")]
    Open {
        /// The lock file.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        source: std::io::Error,
    },
    /// The file system or the kernel refused.
    #[error("flock {path}")]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        errno: Errno,
    },
}

/// How a lock is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// With others that share it; waits for one that does not.
    Shared,
    /// Alone; waits.
    Exclusive,
    /// Alone, or not at all.
    TryExclusive,
}

/// Takes a lock on an open file; `false` where somebody else has it ([`Mode::TryExclusive`]).
///
/// # Errors
/// What flock(2) answers.
pub fn take(file: &File, mode: Mode) -> Result<bool, Errno> {
    let how = match mode {
        Mode::Shared => FlockArg::LockShared,
        Mode::Exclusive => FlockArg::LockExclusive,
        Mode::TryExclusive => FlockArg::LockExclusiveNonblock,
    };
    loop {
        match flock(file, how) {
            Ok(()) => return Ok(true),
            Err(Errno::EWOULDBLOCK) => return Ok(false),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Gives a lock back, in every process that has a descriptor of this open file.
pub fn give_back(file: &File) {
    // Fails only for what is no descriptor.
    let _ = flock(file, FlockArg::Unlock);
}

// nix's `Flock` unlocks when it is dropped; in a forked process that would take the lock from the parent.
#[allow(deprecated, reason = "the replacement unlocks on drop")]
fn flock(file: &File, how: FlockArg) -> Result<(), Errno> {
    nix::fcntl::flock(file.as_raw_fd(), how)
}

/// Opens a lock file, which is made (0600) where there is none, and the directories above it (0700) with it.
///
/// # Errors
/// [`Error::Open`]; a symlink is not followed.
pub fn open(path: &Path) -> Result<File, Error> {
    let failed = |source| Error::Open { path: path.to_owned(), source };
    if let Some(parent) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(failed)?;
    }
    std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC | nix::libc::O_NONBLOCK)
        .open(path)
        .map_err(failed)
}

/// Opens a lock file and takes the lock; `None` where somebody else has it ([`Mode::TryExclusive`]).
///
/// # Errors
/// As [`open`] and [`take`].
pub fn file(path: &Path, mode: Mode) -> Result<Option<File>, Error> {
    let file = open(path)?;
    match take(&file, mode) {
        Ok(taken) => Ok(taken.then_some(file)),
        Err(errno) => Err(Error::Lock { path: path.to_owned(), errno }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the lock can be taken. Another test's thread may just be forking, with a copy of all descriptors
    /// until it has executed something else.
    fn is_free(path: &Path) -> bool {
        let started = std::time::Instant::now();
        while started.elapsed().as_secs() < 10 {
            if file(path, Mode::TryExclusive).unwrap().is_some() {
                return true;
            }
        }
        false
    }

    #[test]
    fn one_at_a_time() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a/lock");
        let first = file(&path, Mode::Shared).unwrap().unwrap();
        let second = file(&path, Mode::Shared).unwrap().unwrap();
        assert!(file(&path, Mode::TryExclusive).unwrap().is_none());
        drop(first);
        assert!(file(&path, Mode::TryExclusive).unwrap().is_none());
        give_back(&second);
        assert!(is_free(&path));
        let alone = loop {
            if let Some(file) = file(&path, Mode::TryExclusive).unwrap() {
                break file;
            }
        };
        let copy = alone.try_clone().unwrap();
        drop(alone);
        assert!(file(&path, Mode::TryExclusive).unwrap().is_none(), "the copy has it still");
        drop(copy);
        assert!(is_free(&path));
    }
}
