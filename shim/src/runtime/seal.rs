//! The program as containers may meet it. A container's process can be made to execute the runtime itself
//! (`/proc/self/exe` as its program, its interpreter or its loader), and through that get hold of the host's file and
//! overwrite it (CVE-2019-5736). So what enters a container is executed anew from a read-only mount of its own file,
//! which is in no mount namespace and that nobody can make writable; or from a sealed copy in memory.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::Mode;
use nix::sys::statvfs::{FsFlags, statvfs};

use super::error::{Error, Result};
use crate::sys::mount::{self as m, Attributes};
use crate::sys::process;

/// The program that runs.
const OWN: &str = "/proc/self/exe";

/// Says that it was executed anew; without it a host on which neither way works would do so for ever.
const AGAIN: &std::ffi::CStr = c"_CODEOID_SEALED=1";

/// Goes on only as a program that nothing in a container can change.
pub fn seal() -> Result<()> {
    if is_sealed().map_err(Error::errno("look at the own program"))? {
        return Ok(());
    }
    if std::env::var_os("_CODEOID_SEALED").is_some() {
        return Err(Error::Usage("the own program cannot be protected from containers".to_owned()));
    }
    let program = read_only().or_else(|_| copy())?;
    let errno = process::execute_again(program.as_fd(), AGAIN);
    Err(Error::errno("execute the protected program")(errno))
}

fn is_sealed() -> nix::Result<bool> {
    if statvfs(OWN)?.flags().contains(FsFlags::ST_RDONLY) {
        return Ok(true);
    }
    let own = open(OWN, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    match fcntl(&own, FcntlArg::F_GET_SEALS) {
        Ok(seals) => Ok(SealFlag::from_bits_truncate(seals).contains(SealFlag::F_SEAL_WRITE)),
        // No file of memory.
        Err(Errno::EINVAL) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// A mount of the program's file that is attached nowhere.
fn read_only() -> Result<OwnedFd> {
    let what = Path::new(OWN);
    let own = open(OWN, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(Error::errno("open it"))?;
    let tree = m::open_tree(own.as_fd(), false, what)?;
    let set = libc::MOUNT_ATTR_RDONLY;
    m::set_attributes(tree.as_fd(), Attributes { set, ..Attributes::NONE }, what)?;
    Ok(tree)
}

/// Where mounts are not the caller's to make.
fn copy() -> Result<OwnedFd> {
    let what = || Error::errno("copy the own program");
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut copy = File::from(memfd_create("codeoid-shim", flags).map_err(what())?);
    let mut own = File::open(OWN).map_err(Error::io("open the own program"))?;
    std::io::copy(&mut own, &mut copy).map_err(Error::io("copy the own program"))?;
    let seals =
        SealFlag::F_SEAL_SEAL | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
    fcntl(&copy, FcntlArg::F_ADD_SEALS(seals)).map_err(what())?;
    Ok(copy.into())
}
