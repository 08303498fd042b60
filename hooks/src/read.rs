//! Reading files that somebody else may have prepared. This is the only module that opens a path inside a
//! repository, a worktree or a session folder for reading.
//!
//! The attacker is a turn that shares our uid: it may have put a symlink, a FIFO, a device, a socket, a
//! directory or a file of any size where git keeps a small regular file, and another session's turn may
//! exchange it while we read. So every step is relative to an open directory, follows no symlink
//! (`O_NOFOLLOW`), waits for nobody (`O_NONBLOCK`), accepts regular files only and reads up to a limit.
//! Ownership proves nothing and is not asked for here.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use serde::{Deserialize, Serialize};

use crate::os::OsError;

/// The most that is read of a pointer or configuration file, in bytes.
pub const POINTER_LIMIT: u64 = 1024 * 1024;
/// The most names that one directory may hold. A directory of loose refs in a very large repository has some
/// hundred thousand; beyond that somebody wants the check to run out of memory.
const NAME_LIMIT: usize = 2_000_000;

/// Opens a directory only to walk through it: `O_PATH` needs no read permission on it (open(2)).
#[cfg(target_os = "linux")]
const THROUGH: OFlag = OFlag::O_PATH;
#[cfg(not(target_os = "linux"))]
const THROUGH: OFlag = OFlag::O_RDONLY;
/// Opens a file for reading: follows no symlink, waits for nobody, takes no terminal.
const READ: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_NONBLOCK)
    .union(OFlag::O_NOCTTY)
    .union(OFlag::O_CLOEXEC);

/// Why something could not be read. `NotDirectory`, `NotRegular` and `TooBig` say what is there instead of
/// what git would have put there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    Os(#[from] OsError),
    /// A directory was expected.
    #[error("{path} is not a directory but {kind}")]
    NotDirectory {
        /// The path.
        path: PathBuf,
        /// What is there.
        kind: Kind,
    },
    /// A regular file was expected.
    #[error("{path} is not a regular file but {kind}")]
    NotRegular {
        /// The path.
        path: PathBuf,
        /// What is there.
        kind: Kind,
    },
    /// The file has more bytes than its kind ever has.
    #[error("{path} has {size} bytes, more than the {limit} that are read of such a file")]
    TooBig {
        /// The path.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The directory has more names than are listed.
    #[error("{path} has more than {NAME_LIMIT} names")]
    TooMany {
        /// The directory.
        path: PathBuf,
    },
    /// A path that is not absolute, or that has `..` in it.
    #[error("{path} is not an absolute path without '..'")]
    NotPlain {
        /// The path.
        path: PathBuf,
    },
}

impl Error {
    pub(crate) fn os(call: &'static str, path: &Path, errno: Errno) -> Self {
        Self::Os(OsError::new(call, path, errno))
    }

    /// What could not be read.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Os(error) => &error.path,
            Self::NotDirectory { path, .. }
            | Self::NotRegular { path, .. }
            | Self::TooBig { path, .. }
            | Self::TooMany { path }
            | Self::NotPlain { path } => path,
        }
    }

    /// The kernel's answer, where it was the kernel who refused.
    #[must_use]
    pub const fn errno(&self) -> Option<Errno> {
        match self {
            Self::Os(OsError { errno, .. }) => Some(*errno),
            _ => None,
        }
    }
}

/// What a directory entry is (inode(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe: opening it without `O_NONBLOCK` waits for the other end.
    Fifo,
    /// A socket.
    Socket,
    /// A character or block device.
    Device,
    /// Something that this program does not know.
    Unknown,
}

impl Kind {
    fn of_mode(mode: u32) -> Self {
        let format = SFlag::from_bits_truncate(mode as nix::libc::mode_t) & SFlag::S_IFMT;
        match format {
            SFlag::S_IFREG => Self::File,
            SFlag::S_IFDIR => Self::Directory,
            SFlag::S_IFLNK => Self::Symlink,
            SFlag::S_IFIFO => Self::Fifo,
            SFlag::S_IFSOCK => Self::Socket,
            SFlag::S_IFCHR | SFlag::S_IFBLK => Self::Device,
            _ => Self::Unknown,
        }
    }

    fn of_entry(kind: nix::dir::Type) -> Self {
        match kind {
            nix::dir::Type::File => Self::File,
            nix::dir::Type::Directory => Self::Directory,
            nix::dir::Type::Symlink => Self::Symlink,
            nix::dir::Type::Fifo => Self::Fifo,
            nix::dir::Type::Socket => Self::Socket,
            nix::dir::Type::CharacterDevice | nix::dir::Type::BlockDevice => Self::Device,
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::File => "a regular file",
            Self::Directory => "a directory",
            Self::Symlink => "a symbolic link",
            Self::Fifo => "a named pipe",
            Self::Socket => "a socket",
            Self::Device => "a device",
            Self::Unknown => "something unknown",
        })
    }
}

/// What stat(2) says about a file, as far as it is compared: two equal stamps of a file that was not changed
/// within the clock's tick mean equal content, because nobody can set a ctime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Packed", into = "Packed")]
pub struct Stamp {
    /// The file system.
    pub dev: u64,
    /// The inode.
    pub ino: u64,
    /// The last change of content or attributes, in nanoseconds since the epoch.
    pub ctime: i64,
    /// The size in bytes.
    pub size: u64,
    /// Type and permissions.
    pub mode: u32,
    /// The number of names.
    pub nlink: u64,
    /// The owner.
    pub uid: u32,
}

/// A stamp in JSON: a list, because a baseline holds many.
type Packed = (u64, u64, i64, u64, u32, u64, u32);

impl From<Packed> for Stamp {
    fn from((dev, ino, ctime, size, mode, nlink, uid): Packed) -> Self {
        Self { dev, ino, ctime, size, mode, nlink, uid }
    }
}

impl From<Stamp> for Packed {
    fn from(s: Stamp) -> Self {
        (s.dev, s.ino, s.ctime, s.size, s.mode, s.nlink, s.uid)
    }
}

impl Stamp {
    // The widths of these fields differ between systems.
    #[allow(clippy::unnecessary_cast, clippy::cast_lossless)]
    fn of(stat: &FileStat) -> Self {
        Self {
            dev: stat.st_dev as u64,
            ino: stat.st_ino as u64,
            ctime: (stat.st_ctime as i64)
                .saturating_mul(1_000_000_000)
                .saturating_add(stat.st_ctime_nsec as i64),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mode: stat.st_mode as u32,
            nlink: stat.st_nlink as u64,
            uid: stat.st_uid as u32,
        }
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        Kind::of_mode(self.mode)
    }

    /// Whether both are the same inode.
    #[must_use]
    pub const fn same_inode(&self, other: &Self) -> bool {
        self.dev == other.dev && self.ino == other.ino
    }
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The name: never empty, never `.` or `..`, no slash.
    pub name: OsString,
    /// What it is.
    pub kind: Kind,
    /// Its inode.
    pub ino: u64,
}

/// A regular file that was read whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// What stat(2) said of the very file that was read.
    pub stamp: Stamp,
}

/// An open directory, and its path for messages.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Dir {
    /// Opens a directory by its real, absolute path; no component may be a symlink.
    ///
    /// # Errors
    /// [`Error::NotPlain`] for a relative path or one with `..`, [`Error::NotDirectory`] where a component is
    /// something else, [`Error::Os`] otherwise (with `ENOENT` where it does not exist).
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut components = path.components();
        if components.next() != Some(Component::RootDir) {
            return Err(Error::NotPlain { path: path.to_owned() });
        }
        let rest = components.as_path();
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let first = if rest.as_os_str().is_empty() { OFlag::O_RDONLY } else { THROUGH };
        let root =
            open("/", flags | first, Mode::empty()).map_err(|e| Error::os("open", Path::new("/"), e))?;
        let root = Self { fd: root, path: PathBuf::from("/") };
        if rest.as_os_str().is_empty() {
            return Ok(root);
        }
        root.beneath(rest)?.ok_or_else(|| Error::os("open", path, Errno::ENOENT))
    }

    /// The directory's path as it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a directory below this one, component by component; `None` where one does not exist.
    ///
    /// # Errors
    /// [`Error::NotDirectory`] where a component is a symlink or anything else, [`Error::NotPlain`] for `..`.
    pub fn beneath(&self, relative: &Path) -> Result<Option<Self>, Error> {
        let mut held: Option<Self> = None;
        let mut components = relative.components().peekable();
        while let Some(component) = components.next() {
            let Component::Normal(name) = component else {
                return Err(Error::NotPlain { path: self.path.join(relative) });
            };
            let how = if components.peek().is_some() { THROUGH } else { OFlag::O_RDONLY };
            match held.as_ref().unwrap_or(self).step(name, how)? {
                Some(next) => held = Some(next),
                None => return Ok(None),
            }
        }
        match held {
            Some(dir) => Ok(Some(dir)),
            None => self.step(OsStr::new("."), OFlag::O_RDONLY),
        }
    }

    /// Opens a directory in this one; `None` where there is none of that name.
    ///
    /// # Errors
    /// [`Error::NotDirectory`] where it is something else.
    pub fn child(&self, name: &OsStr) -> Result<Option<Self>, Error> {
        self.step(name, OFlag::O_RDONLY)
    }

    /// As [`Dir::child`], but only to walk through it or to look at what is in it: it cannot be listed.
    ///
    /// # Errors
    /// [`Error::NotDirectory`] where it is something else.
    pub fn passage(&self, name: &OsStr) -> Result<Option<Self>, Error> {
        self.step(name, THROUGH)
    }

    fn step(&self, name: &OsStr, how: OFlag) -> Result<Option<Self>, Error> {
        let path = if name == "." { self.path.clone() } else { self.path.join(name) };
        let flags = how | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => Ok(Some(Self { fd, path })),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno @ (Errno::ENOTDIR | Errno::ELOOP)) => match self.lstat(name)? {
                Some(stamp) => Err(Error::NotDirectory { path, kind: stamp.kind() }),
                None => Err(Error::os("openat", &path, errno)),
            },
            Err(errno) => Err(Error::os("openat", &path, errno)),
        }
    }

    /// What the directory itself is.
    ///
    /// # Errors
    /// What fstat(2) answers.
    pub fn stamp(&self) -> Result<Stamp, Error> {
        fstat(&self.fd).map(|s| Stamp::of(&s)).map_err(|e| Error::os("fstat", &self.path, e))
    }

    /// What lies at this name (or relative path; intermediate symlinks are followed, so give single names
    /// where they matter); `None` where nothing does.
    ///
    /// # Errors
    /// What fstatat(2) answers.
    pub fn lstat<P: AsRef<OsStr> + ?Sized>(&self, name: &P) -> Result<Option<Stamp>, Error> {
        match fstatat(&self.fd, name.as_ref(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Stamp::of(&stat))),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            Err(errno) => Err(Error::os("fstatat", &self.path.join(name.as_ref()), errno)),
        }
    }

    /// Reads a regular file of at most `limit` bytes; `None` where there is none of that name.
    ///
    /// # Errors
    /// [`Error::NotRegular`] and [`Error::TooBig`] say what is there instead.
    pub fn read(&self, name: &OsStr, limit: u64) -> Result<Option<Content>, Error> {
        match self.open_file(name)? {
            Some((file, stamp)) => read_open(file, stamp, || self.path.join(name), limit).map(Some),
            None => Ok(None),
        }
    }

    /// Opens a regular file of any size, for reading piece by piece; `None` where there is none of that name.
    ///
    /// # Errors
    /// [`Error::NotRegular`] says what is there instead.
    pub fn open_file(&self, name: &OsStr) -> Result<Option<(File, Stamp)>, Error> {
        match openat(&self.fd, name, READ, Mode::empty()) {
            Ok(fd) => opened(File::from(fd), || self.path.join(name)).map(Some),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            Err(errno) => refused(errno, self.path.join(name), self.lstat(name)?),
        }
    }

    /// The target of a symlink; `None` where there is no symlink of that name.
    ///
    /// # Errors
    /// What readlinkat(2) answers.
    pub fn read_link(&self, name: &OsStr) -> Result<Option<PathBuf>, Error> {
        match readlinkat(&self.fd, name) {
            Ok(target) => Ok(Some(PathBuf::from(target))),
            Err(Errno::ENOENT | Errno::EINVAL | Errno::ENOTDIR) => Ok(None),
            Err(errno) => Err(Error::os("readlinkat", &self.path.join(name), errno)),
        }
    }

    /// Calls `visit` for every name, in the directory's own order.
    ///
    /// # Errors
    /// [`Error::TooMany`] for a directory beyond all measure.
    pub fn visit(&self, mut visit: impl FnMut(&CStr, Kind, u64)) -> Result<(), Error> {
        let fail = |errno| Error::os("readdir", &self.path, errno);
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        // A descriptor of its own: the position in a directory belongs to the open file.
        let mut listing = nix::dir::Dir::openat(&self.fd, ".", flags, Mode::empty()).map_err(fail)?;
        for (count, entry) in listing.iter().enumerate() {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if count > NAME_LIMIT {
                return Err(Error::TooMany { path: self.path.clone() });
            }
            let kind = match entry.file_type() {
                Some(kind) => Kind::of_entry(kind),
                // Some file systems do not say (readdir(3), DT_UNKNOWN).
                None => self.lstat(OsStr::from_bytes(name.to_bytes()))?.map_or(Kind::Unknown, |s| s.kind()),
            };
            visit(name, kind, entry.ino());
        }
        Ok(())
    }

    /// All names, sorted.
    ///
    /// # Errors
    /// As [`Dir::visit`].
    pub fn list(&self) -> Result<Vec<Item>, Error> {
        let mut items = Vec::new();
        self.visit(|name, kind, ino| {
            items.push(Item { name: OsString::from_vec(name.to_bytes().to_vec()), kind, ino });
        })?;
        items.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(items)
    }
}

/// Reads a regular file by path. The last component is not followed; the others are, so this is for paths
/// whose directory is trusted (the state directory) or whose content proves nothing (a back pointer).
///
/// # Errors
/// As [`Dir::read`].
pub fn file(path: &Path, limit: u64) -> Result<Option<Content>, Error> {
    match open(path, READ, Mode::empty()) {
        Ok(fd) => {
            let (file, stamp) = opened(File::from(fd), || path.to_owned())?;
            read_open(file, stamp, || path.to_owned(), limit).map(Some)
        }
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
        Err(errno) => refused(errno, path.to_owned(), lstat(path)?),
    }
}

/// What lies at this path, the last component not followed; `None` where nothing does.
///
/// # Errors
/// What lstat(2) answers.
pub fn lstat(path: &Path) -> Result<Option<Stamp>, Error> {
    match nix::sys::stat::lstat(path) {
        Ok(stat) => Ok(Some(Stamp::of(&stat))),
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
        Err(errno) => Err(Error::os("lstat", path, errno)),
    }
}

/// When what lies at this path was made, in nanoseconds since the epoch; `None` where the file system does not
/// say (statx(2), `stx_btime`).
#[must_use]
pub fn born(path: &Path) -> Option<i64> {
    let made = path.symlink_metadata().ok()?.created().ok()?;
    i64::try_from(made.duration_since(std::time::UNIX_EPOCH).ok()?.as_nanos()).ok()
}

/// What lies at this path, symlinks followed; `None` where nothing does or where it cannot be reached.
#[must_use]
pub fn stat(path: &Path) -> Option<Stamp> {
    nix::sys::stat::stat(path).ok().map(|stat| Stamp::of(&stat))
}

fn opened(file: File, path: impl Fn() -> PathBuf) -> Result<(File, Stamp), Error> {
    let stamp = Stamp::of(&fstat(&file).map_err(|e| Error::os("fstat", &path(), e))?);
    match stamp.kind() {
        Kind::File => Ok((file, stamp)),
        kind => Err(Error::NotRegular { path: path(), kind }),
    }
}

/// Why an open was refused: a symlink answers ELOOP, a socket ENXIO (open(2)).
fn refused<T>(errno: Errno, path: PathBuf, found: Option<Stamp>) -> Result<Option<T>, Error> {
    match found.map(|stamp| stamp.kind()) {
        None if errno == Errno::ELOOP => Ok(None),
        Some(kind) if kind != Kind::File => Err(Error::NotRegular { path, kind }),
        _ => Err(Error::os("openat", &path, errno)),
    }
}

/// Reads what [`Dir::open_file`] opened, whole.
pub(crate) fn read_open(
    mut file: File,
    stamp: Stamp,
    path: impl Fn() -> PathBuf,
    limit: u64,
) -> Result<Content, Error> {
    if stamp.size > limit {
        return Err(Error::TooBig { path: path(), size: stamp.size, limit });
    }
    let failed = |error: std::io::Error| {
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32));
        Error::os("read", &path(), errno)
    };
    // One byte more than it has: a regular file that gives less is at its end, and one that gives that much
    // is growing.
    let expected = usize::try_from(stamp.size).unwrap_or(0);
    let mut bytes = vec![0; expected.saturating_add(1)];
    let mut length = 0;
    loop {
        match file.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        }
        if length == expected || length == bytes.len() {
            break;
        }
    }
    bytes.truncate(length);
    if length > expected {
        (&mut file).take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    }
    match bytes.len() as u64 {
        size if size > limit => Err(Error::TooBig { path: path(), size, limit }),
        _ => Ok(Content { bytes, stamp }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn scratch() -> (tempfile::TempDir, Dir) {
        let temp = tempfile::tempdir().unwrap();
        let real = temp.path().canonicalize().unwrap();
        let dir = Dir::open(&real).unwrap();
        (temp, dir)
    }

    #[test]
    fn only_small_regular_files_are_read() {
        let (temp, dir) = scratch();
        let at = |name: &str| temp.path().join(name);
        std::fs::write(at("plain"), "text").unwrap();
        symlink("plain", at("link")).unwrap();
        nix::unistd::mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        File::create(at("sparse")).unwrap().set_len(1 << 30).unwrap();

        assert_eq!(dir.read("plain".as_ref(), 4).unwrap().unwrap().bytes, b"text");
        assert!(dir.read("absent".as_ref(), 4).unwrap().is_none());
        for (name, kind) in [
            ("link", Kind::Symlink),
            ("fifo", Kind::Fifo),
            ("socket", Kind::Socket),
            ("directory", Kind::Directory),
        ] {
            match dir.read(name.as_ref(), 4) {
                Err(Error::NotRegular { kind: found, .. }) => assert_eq!(found, kind, "{name}"),
                other => panic!("{name}: {other:?}"),
            }
        }
        assert!(matches!(dir.read("plain".as_ref(), 3), Err(Error::TooBig { size: 4, limit: 3, .. })));
        assert!(matches!(dir.read("sparse".as_ref(), POINTER_LIMIT), Err(Error::TooBig { .. })));
    }

    #[test]
    fn a_device_is_not_read() {
        let error = file(Path::new("/dev/zero"), 10).unwrap_err();
        assert!(matches!(error, Error::NotRegular { kind: Kind::Device, .. }), "{error:?}");
    }

    #[test]
    fn no_component_is_followed() {
        let (temp, dir) = scratch();
        std::fs::create_dir_all(temp.path().join("a/b")).unwrap();
        symlink("a", temp.path().join("l")).unwrap();
        assert!(dir.beneath(Path::new("a/b")).unwrap().is_some());
        assert!(dir.beneath(Path::new("a/c")).unwrap().is_none());
        assert!(matches!(
            dir.beneath(Path::new("l/b")),
            Err(Error::NotDirectory { kind: Kind::Symlink, .. })
        ));
        assert!(matches!(dir.beneath(Path::new("a/../a")), Err(Error::NotPlain { .. })));
        let real = temp.path().canonicalize().unwrap();
        assert!(matches!(Dir::open(&real.join("l/b")), Err(Error::NotDirectory { .. })));
        assert!(matches!(Dir::open(Path::new("relative")), Err(Error::NotPlain { .. })));
    }

    #[test]
    fn names_that_are_not_utf8_are_listed() {
        let (temp, dir) = scratch();
        let name = OsStr::from_bytes(b"\xff\xfe");
        std::fs::write(temp.path().join(name), "").unwrap();
        let items = dir.list().unwrap();
        assert_eq!(items.len(), 1);
        assert_eq!(items[0].name, name);
        assert_eq!(items[0].kind, Kind::File);
    }

    #[test]
    fn a_stamp_survives_json() {
        let (_temp, dir) = scratch();
        let stamp = dir.stamp().unwrap();
        let text = serde_json::to_string(&stamp).unwrap();
        assert_eq!(serde_json::from_str::<Stamp>(&text).unwrap(), stamp);
    }
}
