//! Renews masks in a running sandbox, from outside: a mask on a path of the host goes away when the host
//! replaces that path, and a path that did not exist has none. A short-lived child enters the sandbox's mount
//! namespace, as its owner may, and mounts.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::CloneFlags;
use nix::sys::stat::{Mode, fstat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, chdir, fchdir, geteuid};

use crate::sys::{self, Context, mount as m, process};

/// A directory of the sandbox that is its own, and empty but for what the turn put there.
const SCRATCH: &str = "/run/lock";

/// The mount namespace of a running sandbox.
#[derive(Debug)]
pub struct Sandbox(OwnedFd);

impl Sandbox {
    /// From what init sends.
    pub fn new(mount: OwnedFd) -> Self {
        Self(mount)
    }

    /// Masks a path of the sandbox. Returns whether it is masked now.
    pub fn mask(&self, path: &Path) -> bool {
        match process::fork() {
            Ok(ForkResult::Child) => {
                let code = i32::from(self.enter_and_mask(path).is_err());
                process::exit_now(code);
            }
            Ok(ForkResult::Parent { child }) => matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))),
            Err(_) => false,
        }
    }

    fn enter_and_mask(&self, path: &Path) -> sys::Result<()> {
        self.enter()?;
        mask(path)?;
        // It is hidden; what this adds is for the next turn.
        let _ = hold(path);
        Ok(())
    }

    fn enter(&self) -> sys::Result<()> {
        if !geteuid().is_root() {
            // Not init's own: bubblewrap puts one more below the one that owns the mounts.
            let owner = process::owning_user_namespace(self.0.as_fd())?;
            process::setns(owner.as_fd(), CloneFlags::CLONE_NEWUSER)?;
        }
        process::setns(self.0.as_fd(), CloneFlags::CLONE_NEWNS)?;
        chdir("/").on("chdir", "/")
    }
}

/// Hides what is at a path.
fn mask(path: &Path) -> sys::Result<()> {
    let target = m::open_path(None, path)?;
    let stat = fstat(&target).on("fstat", path.display())?;
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    if stat.st_mode & libc::S_IFMT == libc::S_IFDIR {
        // By way of the working directory: /proc in there knows nothing of us.
        fchdir(&target).on("fchdir", path.display())?;
        return mount(Some("tmpfs"), ".", Some("tmpfs"), flags, Some("mode=0000,size=4k"))
            .on("mount", path.display());
    }
    mount(Some("tmpfs"), SCRATCH, Some("tmpfs"), flags ^ MsFlags::MS_RDONLY, Some("mode=0700,size=4k"))
        .on("mount", SCRATCH)?;
    let made = std::fs::File::options()
        .write(true)
        .create_new(true)
        .open(Path::new(SCRATCH).join("nothing"))
        .on("open", SCRATCH)
        .and_then(|file| {
            nix::sys::stat::fchmod(&file, Mode::empty()).on("fchmod", SCRATCH)?;
            drop(file);
            // What is cloned from it is read-only as it is; mount_setattr(2) would ask for Linux 5.12.
            mount(
                None::<&str>,
                SCRATCH,
                None::<&str>,
                flags | MsFlags::MS_REMOUNT | MsFlags::MS_BIND,
                None::<&str>,
            )
            .on("mount", SCRATCH)?;
            let nothing = m::open_path(None, &Path::new(SCRATCH).join("nothing"))?;
            m::open_tree(nothing.as_fd(), false, path)
        });
    umount2(SCRATCH, MntFlags::MNT_DETACH).on("umount2", SCRATCH)?;
    m::move_mount(made?.as_fd(), target.as_fd(), path)
}

/// Puts a mount on every directory between a masked path and the mount around it, if the turn may write there, so that it
/// cannot rename it and the mask with it. After the mask: whoever is in such a directory already sees that one.
fn hold(path: &Path) -> sys::Result<()> {
    let mut between = Vec::new();
    for at in path.ancestors().skip(1) {
        let dir = m::open_path(None, at)?;
        let flags = fstatvfs(&dir).on("fstatvfs", at.display())?.flags();
        if m::is_mount_root(dir.as_fd(), at)? || flags.contains(FsFlags::ST_RDONLY) {
            break;
        }
        between.push(at);
    }
    for at in between.into_iter().rev() {
        let dir = m::open_path(None, at)?;
        let tree = m::open_tree(dir.as_fd(), true, at)?;
        m::move_mount(tree.as_fd(), dir.as_fd(), at)?;
    }
    Ok(())
}
