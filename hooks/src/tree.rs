//! Removing whole directories, and keeping copies, without ever following a symlink. What lies there may have
//! been made by a turn: any depth, any modes, any kinds of files.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::renameat;
#[cfg(target_os = "linux")]
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat};
#[cfg(target_os = "linux")]
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::os::{OsError, WriteError};
use crate::read::{self, Dir, Kind};

/// The most that is copied to keep what a restore takes away, in bytes.
const KEEP_BYTES: u64 = 16 * 1024 * 1024;
/// The most files that are copied.
const KEEP_FILES: usize = 2_000;
/// The deepest directory that is copied.
const KEEP_DEPTH: usize = 16;
/// How often a directory is looked at again because somebody keeps filling it.
const ROUNDS: usize = 16;

/// Why something could not be removed or kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] read::Error),
    /// A system call failed.
    #[error(transparent)]
    Os(#[from] OsError),
    /// A copy could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Somebody fills the directory while it is being removed.
    #[error("{path} is being filled while it is removed")]
    Filling {
        /// The directory.
        path: PathBuf,
    },
    /// More than is copied to keep it.
    #[error("{path} is too large to keep a copy of it")]
    TooLarge {
        /// What was to be kept.
        path: PathBuf,
    },
}

/// Removes a name from a directory, and all that is below it. Nothing there is no error.
///
/// Descriptors and memory do not grow with the depth: a directory that lies too deep is first moved up.
///
/// # Errors
/// The first thing that could not be removed. A mount point is such a thing.
pub fn remove(parent: &Dir, name: &OsStr) -> Result<(), Error> {
    match unlinkat(parent, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        // Linux answers EISDIR for a directory, POSIX says EPERM (unlink(2)).
        Err(Errno::EISDIR | Errno::EPERM) => {}
        Err(errno) => return Err(os("unlinkat", parent, name, errno)),
    }
    for _ in 0..ROUNDS {
        let Some(top) = enter(parent, name)? else { return Ok(()) };
        empty(&top)?;
        match unlinkat(parent, name, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => return Ok(()),
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => {}
            Err(errno) => return Err(os("unlinkat", parent, name, errno)),
        }
    }
    Err(Error::Filling { path: parent.path().join(name) })
}

fn os(call: &'static str, parent: &Dir, name: &OsStr, errno: Errno) -> Error {
    OsError::new(call, parent.path().join(name), errno).into()
}

/// Opens a directory that is to be emptied, and makes that possible where its owner took the permission away.
fn enter(parent: &Dir, name: &OsStr) -> Result<Option<Dir>, Error> {
    let opened = match parent.child(name) {
        Err(read::Error::Os(OsError { errno: Errno::EACCES, .. })) => {
            allow(parent, name, Mode::S_IRWXU).map_err(|errno| os("chmod", parent, name, errno))?;
            parent.child(name)?
        }
        other => other?,
    };
    if let Some(dir) = &opened
        && dir.stamp()?.mode & 0o700 != 0o700
    {
        nix::sys::stat::fchmod(dir, Mode::S_IRWXU).map_err(|errno| os("fchmod", parent, name, errno))?;
    }
    Ok(opened)
}

/// Sets the mode of what cannot be opened, without following a symlink.
#[cfg(target_os = "linux")]
pub(crate) fn allow(parent: &Dir, name: &OsStr, mode: Mode) -> Result<(), Errno> {
    use std::os::fd::AsRawFd as _;
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let fd = openat(parent, name, flags, Mode::empty())?;
    if SFlag::from_bits_truncate(fstat(&fd)?.st_mode) & SFlag::S_IFMT == SFlag::S_IFLNK {
        return Err(Errno::ELOOP);
    }
    // fchmod(2) refuses a descriptor that was opened with O_PATH; its name in /proc is accepted.
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    fchmodat(AT_FDCWD, path.as_str(), mode, FchmodatFlags::FollowSymlink)
}

/// Sets the mode of what cannot be opened, without following a symlink.
#[cfg(not(target_os = "linux"))]
pub(crate) fn allow(parent: &Dir, name: &OsStr, mode: Mode) -> Result<(), Errno> {
    fchmodat(parent, name, mode, FchmodatFlags::NoFollowSymlink)
}

fn empty(top: &Dir) -> Result<(), Error> {
    let mut waiting: VecDeque<OsString> = VecDeque::new();
    sweep(top, |name| {
        waiting.push_back(name.to_owned());
        Ok(())
    })?;
    let mut number = 0u64;
    while let Some(name) = waiting.pop_front() {
        let Some(dir) = enter(top, &name)? else { continue };
        sweep(&dir, |inner| {
            waiting.push_back(lift(top, &dir, inner, &mut number)?);
            Ok(())
        })?;
        match unlinkat(top, name.as_os_str(), UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            // The caller looks again.
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => {}
            Err(errno) => return Err(os("unlinkat", top, &name, errno)),
        }
    }
    Ok(())
}

/// Unlinks all that is not a directory and hands the directories over.
fn sweep(dir: &Dir, mut directory: impl FnMut(&OsStr) -> Result<(), Error>) -> Result<(), Error> {
    for item in dir.list()? {
        if item.kind == Kind::Directory {
            directory(&item.name)?;
            continue;
        }
        match unlinkat(dir, item.name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(os("unlinkat", dir, &item.name, errno)),
        }
    }
    Ok(())
}

/// Moves a directory up to `top`, under a name that is free there.
fn lift(top: &Dir, dir: &Dir, name: &OsStr, number: &mut u64) -> Result<OsString, Error> {
    let mut tried_mode = false;
    loop {
        *number += 1;
        let free = OsString::from(format!(".codeoid-removed-{number}"));
        match renameat(dir, name, top, free.as_os_str()) {
            Ok(()) => return Ok(free),
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => {}
            // Moving a directory rewrites its `..`, which needs write permission on it (rename(2)).
            Err(Errno::EACCES) if !tried_mode => {
                tried_mode = true;
                enter(dir, name)?;
            }
            Err(errno) => return Err(os("renameat", dir, name, errno)),
        }
    }
}

/// Copies of what a restore takes away: it may be somebody's work.
#[derive(Debug, Clone)]
pub struct Keep {
    directory: PathBuf,
}

impl Keep {
    /// Copies go into this directory, which is made (0700) when the first one is.
    #[must_use]
    pub const fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Where the copy of this path goes. Another content (ctime) gets another name, the same one the same, so
    /// that a check that was killed and runs again does not keep everything twice.
    #[must_use]
    pub fn target(&self, path: &Path) -> PathBuf {
        let ctime = read::lstat(path).ok().flatten().map_or(0, |stamp| stamp.ctime);
        let hash = codeoid_spec::id::hex8(&[path.as_os_str().as_bytes(), &ctime.to_le_bytes()]);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.directory.join(format!("{}-{hash}", codeoid_spec::id::slug(&name)))
    }

    /// Copies what lies at this name, and what is below it. Nothing there is no error.
    ///
    /// # Errors
    /// [`Error::TooLarge`] beyond 16 MiB or 2,000 files; whatever fails on the way.
    pub fn copy(&self, parent: &Dir, name: &OsStr) -> Result<PathBuf, Error> {
        let source = parent.path().join(name);
        let target = self.target(&source);
        if parent.lstat(name)?.is_none() {
            return Ok(target);
        }
        let mut builder = std::fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(builder.recursive(true), 0o700);
        let write = |source| Error::from(WriteError::new(&target, source));
        builder.create(&self.directory).map_err(write)?;
        let mut left = Left { bytes: KEEP_BYTES, files: KEEP_FILES };
        copy_into(parent, name, &target, &mut left, 0)?;
        Ok(target)
    }
}

struct Left {
    bytes: u64,
    files: usize,
}

fn copy_into(parent: &Dir, name: &OsStr, target: &Path, left: &mut Left, depth: usize) -> Result<(), Error> {
    let too_large = || Error::TooLarge { path: parent.path().join(name) };
    let write = |source| Error::from(WriteError::new(target, source));
    let Some(stamp) = parent.lstat(name)? else { return Ok(()) };
    left.files = left.files.checked_sub(1).ok_or_else(too_large)?;
    match stamp.kind() {
        Kind::File => {
            let content = match parent.read(name, left.bytes) {
                Err(read::Error::TooBig { .. }) => return Err(too_large()),
                other => other?,
            };
            let Some(content) = content else { return Ok(()) };
            left.bytes = left.bytes.saturating_sub(content.bytes.len() as u64);
            let mut file = std::fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC)
                .open(target)
                .map_err(write)?;
            file.write_all(&content.bytes).map_err(write)
        }
        Kind::Symlink => {
            let to = parent.read_link(name)?.unwrap_or_default();
            match std::os::unix::fs::symlink(to, target) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(write(error)),
                _ => Ok(()),
            }
        }
        Kind::Directory if depth < KEEP_DEPTH => {
            match std::fs::create_dir(target) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(write(error)),
                _ => {}
            }
            let Some(dir) = parent.child(name)? else { return Ok(()) };
            for item in dir.list()? {
                copy_into(&dir, &item.name, &target.join(&item.name), left, depth + 1)?;
            }
            Ok(())
        }
        Kind::Directory => Err(too_large()),
        // A pipe, a socket or a device has no content to keep.
        Kind::Fifo | Kind::Socket | Kind::Device | Kind::Unknown => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn scratch() -> (tempfile::TempDir, PathBuf, Dir) {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        let dir = Dir::open(&root).unwrap();
        (temp, root, dir)
    }

    #[test]
    fn what_symlinks_point_at_stays() {
        let (_temp, root, dir) = scratch();
        fs::create_dir_all(root.join("outside")).unwrap();
        fs::write(root.join("outside/precious"), "x").unwrap();
        fs::create_dir_all(root.join("t/a/b")).unwrap();
        symlink(root.join("outside"), root.join("t/a/link")).unwrap();
        symlink(root.join("outside"), root.join("top-link")).unwrap();
        remove(&dir, "t".as_ref()).unwrap();
        remove(&dir, "top-link".as_ref()).unwrap();
        remove(&dir, "absent".as_ref()).unwrap();
        assert!(!root.join("t").exists() && root.join("top-link").symlink_metadata().is_err());
        assert!(root.join("outside/precious").exists());
    }

    #[test]
    fn modes_do_not_stop_it() {
        let (_temp, root, dir) = scratch();
        fs::create_dir_all(root.join("t/closed/deeper/deepest")).unwrap();
        fs::write(root.join("t/closed/deeper/file"), "x").unwrap();
        for name in ["t/closed/deeper/deepest", "t/closed/deeper", "t/closed"] {
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o000)).unwrap();
        }
        remove(&dir, "t".as_ref()).unwrap();
        assert!(!root.join("t").exists());
    }

    #[test]
    fn depth_does_not_stop_it() {
        let (_temp, root, dir) = scratch();
        fs::create_dir(root.join("t")).unwrap();
        let mut at = dir.child("t".as_ref()).unwrap().unwrap();
        for _ in 0..3_000 {
            nix::sys::stat::mkdirat(&at, "directory", Mode::S_IRWXU).unwrap();
            at = at.child("directory".as_ref()).unwrap().unwrap();
        }
        drop(at);
        remove(&dir, "t".as_ref()).unwrap();
        assert!(!root.join("t").exists());
    }

    #[test]
    fn a_copy_is_complete_or_refused() {
        let (_temp, root, dir) = scratch();
        fs::create_dir_all(root.join("t/sub")).unwrap();
        fs::write(root.join("t/sub/file"), "text").unwrap();
        symlink("/nowhere", root.join("t/link")).unwrap();
        nix::unistd::mkfifo(&root.join("t/fifo"), Mode::S_IRWXU).unwrap();
        let keep = Keep::new(root.join("kept"));
        let copy = keep.copy(&dir, "t".as_ref()).unwrap();
        assert_eq!(fs::read_to_string(copy.join("sub/file")).unwrap(), "text");
        assert_eq!(fs::read_link(copy.join("link")).unwrap(), Path::new("/nowhere"));
        assert_eq!(keep.copy(&dir, "t".as_ref()).unwrap(), copy, "again, into the same place");
        let mode = fs::metadata(root.join("kept")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);

        fs::File::create(root.join("big")).unwrap().set_len(1 << 30).unwrap();
        assert!(matches!(keep.copy(&dir, "big".as_ref()), Err(Error::TooLarge { .. })));
    }
}
