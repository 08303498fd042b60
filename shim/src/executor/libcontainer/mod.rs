//! The executor for Linux: youki's libcontainer, with the mount tree built beforehand.
//!
//! Three processes: the supervisor (the program that the user started; stays on the host and keeps the
//! user's terminal), the engine (in the namespaces; waits for init), init (process 1 of the sandbox). Each
//! dies with the one before.

mod engine;
mod init;
pub mod message;
mod stage;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use codeoid_spec::bundle::{self, annotation};
use nix::fcntl::OFlag;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::{ForkResult, Pid, getpid, pipe2};
use oci_spec::runtime::Spec;

use crate::diagnostic::{Doing, Failure};
use crate::supervise::Running;
use crate::sys::process;
use engine::Engine;
use init::Init;

/// Starts a bundle.
///
/// `stage` is an empty directory for the engine's private tmpfs; `join` a living engine of the same session.
pub fn start(
    bundle: &Path,
    spec: &Spec,
    stage: PathBuf,
    join: Option<OwnedFd>,
) -> Result<Running, Failure> {
    let what = "start the sandbox";
    let (uid, gid) = bundle::ids(spec).doing("read the bundle")?;
    let process = spec.process().as_ref().ok_or_else(|| Failure::new("read the bundle", "it has no process"))?;
    let (ours, theirs) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )
    .doing(what)?;
    let (alive, holding) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).doing(what)?;
    let terminal = bundle::annotation(spec, annotation::TERMINAL).unwrap_or("");
    let terminal = ["0", "1", "2"].map(|number| terminal.contains(number));
    let window = process.console_size().map(|size| (clamp(size.height()), clamp(size.width())));
    let init = Init::new(
        process.args().as_deref().unwrap_or_default(),
        process.env().as_deref().unwrap_or_default(),
        theirs.as_raw_fd(),
        alive.as_raw_fd(),
        terminal,
        window,
    )
    .doing(what)?;
    let merged = bundle::annotation(spec, annotation::HOME_MERGED).map(PathBuf::from);
    let id = bundle::annotation(spec, annotation::TURN).unwrap_or("turn").to_owned();
    let engine = Engine {
        bundle,
        spec,
        uid,
        gid,
        stage,
        merged,
        join,
        supervisor: getpid(),
        status: theirs,
        alive,
        holding,
        init,
        id,
    };
    match process::fork().doing(what)? {
        ForkResult::Child => {
            drop(ours);
            engine.run()
        }
        ForkResult::Parent { child } => {
            drop(engine);
            Ok(Running { child, pidfd: process::pidfd_open(child).doing(what)?, socket: ours, init: None })
        }
    }
}

fn clamp(size: u64) -> u16 {
    u16::try_from(size).unwrap_or(u16::MAX)
}

/// A handle on the engine with this pid, for a later turn to join.
pub fn engine(pid: i32) -> Option<OwnedFd> {
    let pidfd = process::pidfd_open(Pid::from_raw(pid)).ok()?;
    let _ = pidfd.as_fd();
    Some(pidfd)
}
