//! Changing a checkout of the host under git's own locks: `index.lock`, `HEAD.lock` and `<ref>.lock`
//! (lockfile.h in git). The locks are files of their own, with a text that says whose they are, so that those of a
//! killed import are known; what is written goes in by rename.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use gix::ObjectId;
use gix::bstr::{BStr, BString, ByteSlice as _};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::linkat;

use super::Error;
use super::refs::{Refs, Target};
use super::write;
use crate::os::OsError;
use crate::read::{self, Dir, Kind};

/// What a lock of ours says.
const MARK: &[u8] = b"codeoid-shim imports what a session did; this lock is held for milliseconds\n";
/// How long a lock that git holds is waited for: it holds an index for a `status`, not for an editor.
const PATIENCE: Duration = Duration::from_secs(3);

/// A lock file that is ours; gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    dir: Dir,
    name: std::ffi::OsString,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A lock that stays says whose it is, and recovery takes it away.
        let _ = write::unlink(&self.dir, &self.name);
    }
}

/// Takes the lock of a file in a directory. `None`: somebody else holds it, and goes on holding it.
pub(crate) fn lock(dir: &Dir, file: &OsStr) -> Result<Option<Lock>, Error> {
    let mut name = file.to_owned();
    name.push(".lock");
    let started = Instant::now();
    loop {
        match make(dir, &name) {
            Ok(()) => {
                let dir =
                    dir.child(".".as_ref())?.ok_or_else(|| Error::Busy { path: dir.path().to_owned() })?;
                return Ok(Some(Lock { dir, name }));
            }
            Err(Errno::EEXIST) if is_ours(dir, &name)? => write::unlink(dir, &name)?,
            Err(Errno::EEXIST) if started.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5))
            }
            Err(Errno::EEXIST) => return Ok(None),
            Err(errno) => return Err(OsError::new("linkat", dir.path().join(&name), errno).into()),
        }
    }
}

/// Makes a lock file with its text in it, in one step: a lock without the text could not be told from git's.
fn make(dir: &Dir, name: &OsStr) -> Result<(), Errno> {
    let mode = Mode::from_bits_truncate(0o644);
    match openat(dir, ".", OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC, mode) {
        Ok(fd) => {
            let mut file = File::from(fd);
            file.write_all(MARK)
                .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(nix::libc::EIO)))?;
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(AT_FDCWD, Path::new(&path), dir, name, AtFlags::AT_SYMLINK_FOLLOW)
        }
        // A file system that has none of these (NFS, FUSE): with a moment in between, then.
        Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::EINVAL | Errno::ENOENT) => {
            let flags =
                OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let mut file = File::from(openat(dir, name, flags, mode)?);
            file.write_all(MARK)
                .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(nix::libc::EIO)))
        }
        Err(errno) => Err(errno),
    }
}

/// Whether a lock file is one of ours. The caller holds the repository's lock, so it is a killed import's.
pub(crate) fn is_ours(dir: &Dir, name: &OsStr) -> Result<bool, Error> {
    match dir.read(name, 4096) {
        Ok(Some(content)) => Ok(content.bytes == MARK),
        Ok(None) | Err(read::Error::NotRegular { .. } | read::Error::TooBig { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Removes what a killed import left in a git dir: locks of ours, files that were not renamed yet.
pub(crate) fn sweep(dir: &Dir) -> Result<(), Error> {
    for file in ["index", "HEAD"] {
        let name = format!("{file}.lock");
        if dir.lstat(&name)?.is_some() && is_ours(dir, name.as_ref())? {
            write::unlink(dir, name.as_ref())?;
        }
        write::unlink(dir, &write::draft_name(file.as_ref()))?;
    }
    Ok(())
}

/// A loose ref of the host, locked.
#[derive(Debug)]
pub(crate) struct LockedRef {
    _lock: Lock,
    dir: Dir,
    file: std::ffi::OsString,
    name: BString,
    old: Option<ObjectId>,
}

/// Locks a branch, and reads what it holds. `None`: it cannot be locked, or a ref of that name cannot be (a directory
/// or a file is in the way), or it is symbolic.
pub(crate) fn lock_ref(
    common: &Dir,
    name: &BStr,
    all: &Refs,
    kind: gix::hash::Kind,
) -> Result<Option<LockedRef>, Error> {
    let path = Path::new(OsStr::from_bytes(name));
    let (Some(parent), Some(file)) = (path.parent(), path.file_name()) else { return Ok(None) };
    if conflicts(all, name) {
        return Ok(None);
    }
    let dir = match make_parents(common, parent)? {
        Some(dir) => dir,
        None => return Ok(None),
    };
    let Some(lock) = lock(&dir, file)? else { return Ok(None) };
    match dir.lstat(file)?.map(|stamp| stamp.kind()) {
        None | Some(Kind::File) => {}
        // git removes empty directories in the way of a ref; whoever leaves one has just deleted `name/x`.
        Some(Kind::Directory) => {
            let flags = nix::unistd::UnlinkatFlags::RemoveDir;
            if nix::unistd::unlinkat(&dir, file, flags).is_err() {
                return Ok(None);
            }
        }
        Some(_) => return Ok(None),
    }
    if let Some(content) = dir.read(file, 8192)?
        && !matches!(Target::parse(&content.bytes, kind), Some(Target::Object(_)))
    {
        return Ok(None);
    }
    let old = super::read_ref(common, name, kind)?;
    Ok(Some(LockedRef { _lock: lock, dir, file: file.to_owned(), name: name.into(), old }))
}

/// Whether another ref is in the way: `a` of `a/b`, or the other way round.
fn conflicts(all: &Refs, name: &BStr) -> bool {
    let below = [name.as_bytes(), b"/"].concat();
    let above =
        |other: &BString| name.strip_prefix(other.as_slice()).is_some_and(|rest| rest.starts_with(b"/"));
    all.map.keys().any(|other| other.starts_with(&below) || above(other))
}

fn make_parents(common: &Dir, parent: &Path) -> Result<Option<Dir>, Error> {
    let mut held: Option<Dir> = None;
    for part in parent.components() {
        let at = held.as_ref().unwrap_or(common);
        match nix::sys::stat::mkdirat(at, part.as_os_str(), Mode::from_bits_truncate(0o755)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(OsError::new("mkdirat", at.path().join(part), errno).into()),
        }
        match at.child(part.as_os_str()) {
            Ok(Some(next)) => held = Some(next),
            Ok(None) | Err(read::Error::NotDirectory { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(held)
}

impl LockedRef {
    /// What it held when it was locked.
    pub(crate) const fn old(&self) -> Option<ObjectId> {
        self.old
    }

    /// Its full name.
    pub(crate) fn name(&self) -> &BStr {
        self.name.as_bstr()
    }

    /// Writes the new value.
    pub(crate) fn set(&self, new: ObjectId) -> Result<(), Error> {
        Ok(write::put(&self.dir, &self.file, &Target::Object(new).text())?)
    }
}

/// Adds a line to a reflog of the host. A reflog that cannot be written is no reason to stop halfway: git, too, leaves
/// directories there (`x/` of a branch `x/y` that is gone), which go where they are empty.
pub(crate) fn log(dir: &Dir, relative: &Path, old: Option<ObjectId>, new: ObjectId, message: &str) {
    let logs = Path::new("logs").join(relative);
    let (Some(parent), Some(name)) = (logs.parent(), logs.file_name()) else { return };
    let Ok(Some(parent)) = make_parents(dir, parent) else { return };
    let flags = OFlag::O_WRONLY
        | OFlag::O_APPEND
        | OFlag::O_CREAT
        | OFlag::O_NOFOLLOW
        | OFlag::O_NONBLOCK
        | OFlag::O_CLOEXEC;
    let open = || openat(&parent, name, flags, Mode::from_bits_truncate(0o644));
    let fd = match open() {
        Err(Errno::EISDIR) => {
            let _ = nix::unistd::unlinkat(&parent, name, nix::unistd::UnlinkatFlags::RemoveDir);
            open()
        }
        other => other,
    };
    let Ok(fd) = fd else { return };
    let old = old.unwrap_or_else(|| ObjectId::null(new.kind()));
    let now = jiff::Timestamp::now().as_second();
    let line = format!("{old} {new} codeoid-shim <codeoid-shim@localhost> {now} +0000\t{message}\n");
    let _ = File::from(fd).write_all(line.as_bytes());
}
