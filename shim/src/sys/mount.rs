//! The mount API of Linux 5.2 and later: open_tree(2), mount_setattr(2) (5.12), move_mount(2). Working on
//! descriptors instead of paths means that what was judged is what is mounted, whatever a concurrent
//! process does to the names in between.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::mount::{MsFlags, mount};

use super::{Context, Result};

/// Attributes of a mount, as mount_setattr(2) takes them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// `MOUNT_ATTR_*` bits to set.
    pub set: u64,
    /// `MOUNT_ATTR_*` bits to clear.
    pub clear: u64,
    /// Apply to all mounts of the tree.
    pub recursive: bool,
}

impl Attributes {
    /// Nothing changes.
    pub const NONE: Self = Self { set: 0, clear: 0, recursive: false };

    /// Read-only, for the whole tree.
    #[cfg(test)]
    pub const READ_ONLY: Self = Self { set: libc::MOUNT_ATTR_RDONLY, clear: 0, recursive: true };
}

/// Opens a path for use as a mount source or target. No component may be a symbolic link: the plan holds
/// real paths, so a link here means that somebody changed the path since.
pub fn open_path(root: Option<BorrowedFd<'_>>, path: &Path) -> Result<OwnedFd> {
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC);
    let opened = match root {
        // Inside a staged tree the path is relative, and must stay below its root.
        Some(root) => {
            let how = how.resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH);
            openat2(root, relative(path), how)
        }
        None => openat2(nix::fcntl::AT_FDCWD, path, how.resolve(ResolveFlag::RESOLVE_NO_SYMLINKS)),
    };
    opened.on("openat2", path.display())
}

/// `path` without its leading slash; "." for the root itself.
pub fn relative(path: &Path) -> &Path {
    match path.strip_prefix("/") {
        Ok(rest) if rest.as_os_str().is_empty() => Path::new("."),
        Ok(rest) => rest,
        Err(_) => path,
    }
}

/// Clones the mount at `fd` as a detached mount; with `recursive`, everything mounted below it too.
pub fn open_tree(fd: BorrowedFd<'_>, recursive: bool, what: &Path) -> Result<OwnedFd> {
    let mut flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_EMPTY_PATH as u32;
    if recursive {
        flags |= libc::AT_RECURSIVE as u32;
    }
    // SAFETY: the path is a valid NUL-terminated string, the descriptor is borrowed for the call.
    let tree = unsafe { libc::syscall(libc::SYS_open_tree, fd.as_raw_fd(), c"".as_ptr(), flags) };
    let tree = Errno::result(tree).on("open_tree", what.display())?;
    // SAFETY: the kernel has just returned this descriptor to us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(tree as i32) })
}

/// Changes a mount's attributes. Fails rather than doing less than it was asked.
pub fn set_attributes(fd: BorrowedFd<'_>, attributes: Attributes, what: &Path) -> Result<()> {
    if attributes.set == 0 && attributes.clear == 0 {
        return Ok(());
    }
    let attr = libc::mount_attr {
        attr_set: attributes.set,
        attr_clr: attributes.clear,
        propagation: 0,
        userns_fd: 0,
    };
    let mut flags = libc::AT_EMPTY_PATH;
    if attributes.recursive {
        flags |= libc::AT_RECURSIVE;
    }
    // SAFETY: `attr` lives for the call and its size is passed along; the path is NUL-terminated.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    Errno::result(done).map(drop).on("mount_setattr", what.display())
}

/// Sets how a mount propagates (`MS_PRIVATE`, `MS_UNBINDABLE`: left out when a tree above it is cloned).
pub fn set_propagation(fd: BorrowedFd<'_>, propagation: MsFlags, what: &Path) -> Result<()> {
    let link = fd_path(fd);
    mount(None::<&str>, link.as_str(), None::<&str>, propagation, None::<&str>)
        .on("mount", format_args!("{}, {propagation:?}", what.display()))
}

/// Attaches a detached mount on the directory or file at `target`.
pub fn move_mount(tree: BorrowedFd<'_>, target: BorrowedFd<'_>, what: &Path) -> Result<()> {
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH;
    // SAFETY: both paths are valid NUL-terminated strings, both descriptors are borrowed for the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            target.as_raw_fd(),
            c"".as_ptr(),
            flags,
        )
    };
    Errno::result(done).map(drop).on("move_mount", what.display())
}

/// Binds the file or directory at `source` on `target`, with these attributes from the first moment on: the
/// mount is changed while it is detached, so it is never visible with weaker attributes.
pub fn bind(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    recursive: bool,
    attributes: Attributes,
    what: &Path,
) -> Result<()> {
    let tree = open_tree(source, recursive, what)?;
    set_attributes(tree.as_fd(), attributes, what)?;
    move_mount(tree.as_fd(), target, what)
}

/// Binds a file or an empty directory read-only. Without mount_setattr(2), before Linux 5.12, the mount is made
/// read-only once it is attached: for namespaces in which nobody looks yet.
pub fn bind_read_only(source: BorrowedFd<'_>, target: BorrowedFd<'_>, what: &Path) -> Result<()> {
    let tree = open_tree(source, false, what)?;
    let read_only = Attributes { set: libc::MOUNT_ATTR_RDONLY, clear: 0, recursive: false };
    match set_attributes(tree.as_fd(), read_only, what) {
        Err(error) if error.errno == Errno::ENOSYS => {
            move_mount(tree.as_fd(), target, what)?;
            let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
            // The descriptor stands for this very mount, whatever lies above it by now.
            let link = fd_path(tree.as_fd());
            mount(None::<&str>, link.as_str(), None::<&str>, flags, None::<&str>)
                .on("mount", format_args!("{}, MS_REMOUNT|MS_BIND|MS_RDONLY", what.display()))
        }
        other => other.and_then(|()| move_mount(tree.as_fd(), target, what)),
    }
}

/// Mounts a new file system on the directory at `target` (mount(2)); `data` is what the file system takes.
pub fn mount_new(
    fstype: &str,
    source: &str,
    target: BorrowedFd<'_>,
    flags: MsFlags,
    data: &str,
    what: &Path,
) -> Result<()> {
    let data = CString::new(data).map_err(|_| Errno::EINVAL).on("mount", what.display())?;
    let link = fd_path(target);
    mount(Some(source), link.as_str(), Some(fstype), flags, Some(data.as_c_str()))
        .on("mount", format_args!("{fstype} on {}", what.display()))
}

/// Whether a directory or file is the root of a mount (statx(2), STATX_ATTR_MOUNT_ROOT, Linux 5.8).
pub fn is_mount_root(fd: BorrowedFd<'_>, what: &Path) -> Result<bool> {
    // SAFETY: all-zero is a valid value of this plain structure.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is NUL-terminated, the descriptor is borrowed for the call, the kernel writes one structure.
    let done = unsafe { libc::statx(fd.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, 0, &raw mut found) };
    Errno::result(done).on("statx", what.display())?;
    Ok(found.stx_attributes & libc::STATX_ATTR_MOUNT_ROOT as u64 != 0)
}

/// Whether this kernel has mount_setattr(2) (Linux 5.12): asked with a descriptor that there is not.
pub fn has_set_attributes() -> bool {
    let attr = libc::mount_attr { attr_set: 0, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: `attr` lives for the call and its size is passed along; the path is NUL-terminated.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            -1,
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    Errno::result(done) != Err(Errno::ENOSYS)
}

/// Stops all propagation between this mount namespace and the one it was copied from.
pub fn make_private() -> Result<()> {
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .on("mount", "/, MS_REC|MS_PRIVATE")
}

/// The path by which mount(2), which knows no descriptors, reaches one.
pub fn fd_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Makes a new file system as a detached mount (fsopen(2), fsmount(2)), with these options.
pub fn new_tree(fstype: &str, source: &str, options: &[(&str, &str)], what: &Path) -> Result<OwnedFd> {
    let text = |text: &str| CString::new(text).map_err(|_| Errno::EINVAL).on("fsconfig", what.display());
    let name = text(fstype)?;
    // SAFETY: the name is NUL-terminated and alive.
    let context = unsafe { libc::syscall(libc::SYS_fsopen, name.as_ptr(), FSOPEN_CLOEXEC) };
    let context = Errno::result(context).on("fsopen", format_args!("{fstype} for {}", what.display()))?;
    // SAFETY: the kernel has just returned this descriptor to us; nobody else owns it.
    let context = unsafe { OwnedFd::from_raw_fd(context as i32) };
    for (key, value) in std::iter::once(&("source", source)).chain(options) {
        let (key, value) = (text(key)?, text(value)?);
        // SAFETY: both strings are NUL-terminated and alive, the descriptor is ours.
        let done = unsafe {
            libc::syscall(
                libc::SYS_fsconfig,
                context.as_raw_fd(),
                FSCONFIG_SET_STRING,
                key.as_ptr(),
                value.as_ptr(),
                0,
            )
        };
        Errno::result(done).on("fsconfig", format_args!("{fstype} for {}", what.display()))?;
    }
    // SAFETY: this command takes no key and no value.
    let done = unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            context.as_raw_fd(),
            FSCONFIG_CMD_CREATE,
            std::ptr::null::<libc::c_char>(),
            std::ptr::null::<libc::c_char>(),
            0,
        )
    };
    Errno::result(done).on("fsconfig", format_args!("create {fstype} for {}", what.display()))?;
    // SAFETY: plain integers, the descriptor is ours.
    let tree = unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, 0) };
    let tree = Errno::result(tree).on("fsmount", what.display())?;
    // SAFETY: the kernel has just returned this descriptor to us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(tree as i32) })
}

// linux/mount.h; libc does not have them.
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_SET_STRING: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
