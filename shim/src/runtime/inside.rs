//! What the container's first process does in its own namespaces, after libcontainer has built them and before it
//! drops its privileges: what libcontainer leaves out or does wrongly. No process of the container runs yet, its
//! root is this process's root, so paths cannot lead out of it; but they may be anything, links included.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::MsFlags;
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::{Gid, Uid};
use serde::Deserialize;

use super::error::{Error, Result};
use crate::sys::mount::{self as m, Attributes};
use crate::sys::net;

/// What is left to do.
#[derive(Debug, Clone, Default)]
pub struct Rest {
    /// Paths that nobody inside may read.
    pub masked: Vec<PathBuf>,
    /// Paths that nobody inside may write.
    pub read_only: Vec<PathBuf>,
    /// Mounts and how they propagate.
    pub propagation: Vec<Propagation>,
    /// tmpfs mounts that begin with what they cover.
    pub copy_up: Vec<PathBuf>,
    /// Symbolic links: what they say, and where they are.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// Mounts that become read-only.
    pub sealed: Vec<PathBuf>,
    /// Devices outside of `/dev`.
    pub devices: Vec<Device>,
    /// A directory from outside on `/dev`.
    pub dev: Option<Dev>,
    /// Whether the loopback device is to be raised.
    pub loopback: bool,
    /// Whether the root becomes read-only.
    pub read_only_root: bool,
}

/// How a mount propagates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Propagation {
    /// The mount.
    pub path: PathBuf,
    /// `MS_PRIVATE` and the like.
    pub flags: MsFlags,
}

/// A device to be made (`linux.devices`).
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    path: PathBuf,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    major: u64,
    #[serde(default)]
    minor: u64,
    file_mode: Option<u32>,
    #[serde(default)]
    uid: u32,
    #[serde(default)]
    gid: u32,
}

/// A directory from outside that is to be `/dev`.
#[derive(Debug, Clone)]
pub struct Dev {
    /// Where it is outside.
    pub source: PathBuf,
    /// With what is mounted in it.
    pub recursive: bool,
    /// `MOUNT_ATTR_*`
    pub flags: u64,
    /// What is mounted in it inside, in this order.
    pub above: Vec<PathBuf>,
    /// The directory, opened as long as the outside could be seen.
    pub tree: Option<Rc<OwnedFd>>,
}

impl Dev {
    /// Opens the directory.
    pub fn open(&mut self) -> Result<()> {
        let source = follow(&self.source).map_err(Error::errno(format!("open {}", self.source.display())))?;
        let tree = m::open_tree(source.as_fd(), self.recursive, &self.source)?;
        m::set_attributes(tree.as_fd(), Attributes { set: self.flags, ..Attributes::NONE }, &self.source)?;
        self.tree = Some(Rc::new(tree));
        Ok(())
    }

    /// Puts it in the place of libcontainer's.
    fn replace(&self, terminal: bool) -> Result<()> {
        let Some(tree) = &self.tree else { return Ok(()) };
        let dev = Path::new("/dev");
        let console = terminal.then(|| PathBuf::from("/dev/console"));
        let mut above = Vec::new();
        for path in self.above.iter().chain(&console) {
            let at = follow(path).map_err(Error::errno(format!("open {}", path.display())))?;
            above.push((path, m::open_tree(at.as_fd(), true, path)?));
        }
        nix::mount::umount2(dev, nix::mount::MntFlags::MNT_DETACH).map_err(Error::errno("umount /dev"))?;
        let at = follow(dev).map_err(Error::errno("open /dev"))?;
        m::move_mount(tree.as_fd(), at.as_fd(), dev)?;
        for (path, tree) in above {
            let made = match fstat(&tree).map_err(Error::errno("fstat"))?.st_mode & libc::S_IFMT {
                libc::S_IFDIR => fs::create_dir_all(path),
                _ => fs::OpenOptions::new().create(true).append(true).open(path).map(drop),
            };
            // What cannot be made may be there.
            let _ = made;
            let at = follow(path).map_err(Error::errno(format!("open {}", path.display())))?;
            m::move_mount(tree.as_fd(), at.as_fd(), path)?;
        }
        Ok(())
    }
}

impl Device {
    fn make(&self) -> Result<()> {
        let what = || format!("mknod {}", self.path.display());
        let kind = match self.kind.as_str() {
            "b" => SFlag::S_IFBLK,
            "c" | "u" => SFlag::S_IFCHR,
            "p" => SFlag::S_IFIFO,
            other => return Err(Error::config("linux.devices", format!("unknown type {other:?}"))),
        };
        // A name that ends with a slash is that of what lies before it.
        let path: PathBuf = Path::new("/").join(&self.path).components().collect();
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(Error::io(what()))?;
        }
        let device = nix::sys::stat::makedev(self.major, self.minor);
        let mode = Mode::from_bits_truncate(self.file_mode.unwrap_or(0o666));
        match nix::sys::stat::mknod(&path, kind, mode, device) {
            Ok(()) => {}
            Err(Errno::EEXIST) => return Ok(()),
            Err(errno) => return Err(Error::errno(what())(errno)),
        }
        // Whatever the umask is.
        fs::set_permissions(&path, fs::Permissions::from_mode(mode.bits())).map_err(Error::io(what()))?;
        nix::unistd::chown(&path, Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))
            .map_err(Error::errno(what()))
    }
}

const READ_ONLY: Attributes = Attributes { set: libc::MOUNT_ATTR_RDONLY, clear: 0, recursive: false };

impl Rest {
    /// Does it. `cwd` is made where it is missing, as runc does.
    pub fn finish(&self, cwd: &Path, terminal: bool) -> Result<()> {
        if let Some(dev) = &self.dev {
            dev.replace(terminal)?;
        }
        for device in &self.devices {
            device.make()?;
        }
        if self.loopback {
            net::raise_loopback()?;
        }
        for path in &self.copy_up {
            copy_up(path)?;
        }
        for propagation in &self.propagation {
            nix::mount::mount(None::<&str>, &propagation.path, None::<&str>, propagation.flags, None::<&str>)
                .map_err(Error::errno(format!("propagation of {}", propagation.path.display())))?;
        }
        for (target, at) in &self.links {
            symlink(target, at).map_err(Error::io(format!("symlink {}", at.display())))?;
        }
        make_cwd(cwd);
        for path in &self.sealed {
            let at = follow(path).map_err(Error::errno(format!("open {}", path.display())))?;
            m::set_attributes(at.as_fd(), Attributes { recursive: true, ..READ_ONLY }, path)?;
        }
        for path in &self.read_only {
            read_only(path)?;
        }
        for path in &self.masked {
            mask(path)?;
        }
        if self.read_only_root {
            let root = follow(Path::new("/")).map_err(Error::errno("open /"))?;
            m::set_attributes(root.as_fd(), READ_ONLY, Path::new("/"))?;
        }
        Ok(())
    }
}

/// Opens what a path leads to, links followed: what is masked is the file, not a name of it.
fn follow(path: &Path) -> nix::Result<OwnedFd> {
    open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
}

/// What is not there needs no mask.
fn existing(path: &Path) -> Result<Option<OwnedFd>> {
    match follow(path) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
        Err(errno) => Err(Error::errno(format!("open {}", path.display()))(errno)),
    }
}

fn read_only(path: &Path) -> Result<()> {
    let Some(at) = existing(path)? else { return Ok(()) };
    // Its own flags stay (runc's too): a file system without `noexec` does not get it here.
    m::bind(at.as_fd(), at.as_fd(), true, READ_ONLY, path)?;
    Ok(())
}

fn mask(path: &Path) -> Result<()> {
    let Some(at) = existing(path)? else { return Ok(()) };
    let kind = fstat(&at).map_err(Error::errno(format!("fstat {}", path.display())))?.st_mode;
    if kind & SFlag::S_IFMT.bits() == SFlag::S_IFDIR.bits() {
        let empty = m::new_tree("tmpfs", "tmpfs", &[("size", "0k"), ("mode", "755")], path)?;
        m::set_attributes(empty.as_fd(), READ_ONLY, path)?;
        return Ok(m::move_mount(empty.as_fd(), at.as_fd(), path)?);
    }
    Ok(m::bind(null_device()?.as_fd(), at.as_fd(), false, Attributes::NONE, path)?)
}

/// The container's null device, if it is one: a link in its place would put any file over the masked one
/// (CVE-2025-31133).
fn null_device() -> Result<OwnedFd> {
    let null = Path::new("/dev/null");
    let fd = open(null, OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW, Mode::empty())
        .map_err(Error::errno("open /dev/null"))?;
    let stat = fstat(&fd).map_err(Error::errno("fstat /dev/null"))?;
    let character = stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFCHR.bits();
    if !character || stat.st_rdev != nix::sys::stat::makedev(1, 3) {
        return Err(Error::config("/dev/null", "it is not the null device"));
    }
    Ok(fd)
}

/// Makes the working directory where it is missing. Where that fails, the change into it says so.
fn make_cwd(cwd: &Path) {
    if fs::metadata(cwd).is_err() {
        let _ = fs::DirBuilder::new().recursive(true).mode(0o755).create(cwd);
    }
}

/// Fills a tmpfs with what it covers. That is seen through a copy of the mount below it.
fn copy_up(target: &Path) -> Result<()> {
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else { return Ok(()) };
    let at = follow(parent).map_err(Error::errno(format!("open {}", parent.display())))?;
    let below = m::open_tree(at.as_fd(), false, parent)?;
    let failed = |error: std::io::Error| Error::io(format!("tmpcopyup of {}", target.display()))(error);
    nix::unistd::fchdir(&below).map_err(|errno| failed(errno.into()))?;
    let copied = match fs::symlink_metadata(name) {
        Ok(meta) if meta.is_dir() => copy_dir(Path::new(name), target),
        _ => Ok(()),
    };
    nix::unistd::chdir("/").map_err(|errno| failed(errno.into()))?;
    copied.map_err(failed)
}

/// Copies a directory's contents, owners and modes. No link is followed.
fn copy_dir(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let meta = fs::symlink_metadata(&source)?;
        let kind = meta.file_type();
        let (uid, gid) = (Some(Uid::from_raw(meta.uid())), Some(Gid::from_raw(meta.gid())));
        let own = |path: &Path| {
            nix::unistd::fchownat(
                nix::fcntl::AT_FDCWD,
                path,
                uid,
                gid,
                nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW,
            )
            .map_err(std::io::Error::from)
        };
        let mode = fs::Permissions::from_mode(meta.permissions().mode() & 0o7777);
        if kind.is_symlink() {
            symlink(fs::read_link(&source)?, &target)?;
            own(&target)?;
        } else if kind.is_dir() {
            fs::create_dir(&target)?;
            copy_dir(&source, &target)?;
            own(&target)?;
            fs::set_permissions(&target, mode)?;
        } else if kind.is_file() {
            fs::copy(&source, &target)?;
            own(&target)?;
            fs::set_permissions(&target, mode)?;
        } else {
            let device = nix::sys::stat::mknod(
                &target,
                SFlag::from_bits_truncate(meta.mode() & SFlag::S_IFMT.bits()),
                Mode::from_bits_truncate(meta.mode() & 0o7777),
                meta.rdev(),
            );
            // A socket is a name of a process that is not in here.
            if device.is_ok() {
                own(&target)?;
            }
        }
    }
    Ok(())
}

/// The home directory of a user, by the container's own list; "/" where it has none. Read as text: the name service
/// of the container would be code of the container.
pub fn home(uid: u32) -> PathBuf {
    let text = fs::read(Path::new("/etc/passwd")).unwrap_or_default();
    home_in(&text, uid).unwrap_or_else(|| PathBuf::from("/"))
}

fn home_in(passwd: &[u8], uid: u32) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    passwd.split(|byte| *byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
        let found = std::str::from_utf8(fields.get(2)?).ok()?.parse::<u32>().ok()? == uid;
        let home = *fields.get(5)?;
        (found && !home.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(home)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_is_the_one_in_the_list() {
        let list = b"root:x:0:0:root:/root:/bin/sh\nbroken\nu:x:7:7::/home/u:\nv:x:8:8:::\n";
        assert_eq!(home_in(list, 7), Some(PathBuf::from("/home/u")));
        assert_eq!(home_in(list, 8), None);
        assert_eq!(home_in(list, 9), None);
    }
}
