//! The network of a turn with `network: allowlist`, as the supervisor has it. The engine has made a listening socket
//! in the turn's network namespace; a process that is forked here serves it, from outside: nothing of it is in the
//! sandbox but the socket.
//!
//! It is a process of its own, because what it reads comes from the turn: it can neither hold the supervisor up nor
//! make it grow, and holds none of its descriptors. It has no thread and no async runtime before its fork, so that
//! libcontainer's rule (nothing may have started a thread before it) and the supervisor's own forks are untouched.

mod confine;
mod http;
mod names;
mod reach;
mod refusal;
mod serve;
mod socks;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use codeoid_spec::network::Rules;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socketpair};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, getpid};

use crate::diagnostic::{Doing, Failure};
use crate::sys::process;

pub use refusal::Refusal;
use refusal::{MAX, Notice};

/// The network of one turn.
pub struct Network {
    /// What is listed; `None`: there is no proxy.
    rules: Option<Rules>,
    serving: Option<Serving>,
    refusals: Vec<Refusal>,
    warnings: Vec<String>,
    /// Called for each destination that was refused, once.
    on_refusal: Box<dyn FnMut(&Refusal)>,
}

/// The process that serves.
struct Serving {
    child: Pid,
    notices: OwnedFd,
}

impl Network {
    /// The network of a turn that has not started.
    pub fn new(rules: Option<Rules>, on_refusal: Box<dyn FnMut(&Refusal)>) -> Self {
        Self { rules, serving: None, refusals: Vec::new(), warnings: Vec::new(), on_refusal }
    }

    /// Starts to serve the socket that the engine has made.
    pub fn serve(&mut self, listener: OwnedFd) -> Result<(), Failure> {
        let what = "start the network proxy";
        // A second socket, or one for a turn without a proxy, is none of the engine's.
        let Some(rules) = self.rules.take() else {
            return Err(Failure::new(what, "nobody has asked for it"));
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).doing(what)?;
        let supervisor = getpid();
        match process::fork().doing(what)? {
            ForkResult::Child => {
                let code = match confine::confine(&[listener.as_raw_fd(), theirs.as_raw_fd()], supervisor) {
                    Ok(()) => serve::run(listener, theirs, rules),
                    Err(_) => 1,
                };
                process::exit_now(code)
            }
            ForkResult::Parent { child } => {
                self.serving = Some(Serving { child, notices: ours });
                Ok(())
            }
        }
    }

    /// What to wait for.
    pub fn interest(&self) -> Option<BorrowedFd<'_>> {
        self.serving.as_ref().map(|serving| serving.notices.as_fd())
    }

    /// Takes what the process has to say.
    pub fn act(&mut self) {
        let mut bytes = [0; MAX];
        while let Some(serving) = &self.serving {
            match recv(serving.notices.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
                Ok(0) => {
                    self.end();
                    self.warnings.push("the network proxy ended before the turn did".to_owned());
                }
                Ok(count) => self.note(&bytes[..count]),
                Err(Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    }

    fn note(&mut self, bytes: &[u8]) {
        match serde_json::from_slice(bytes) {
            Ok(Notice::Refused(refusal)) => {
                (self.on_refusal)(&refusal);
                self.refusals.push(refusal);
            }
            Ok(Notice::More) => self.warnings.push("network: further destinations were refused".to_owned()),
            Err(_) => {}
        }
    }

    /// Ends the process, if it runs. What it has said before is taken.
    pub fn end(&mut self) {
        let Some(serving) = self.serving.take() else { return };
        let _ = kill(serving.child, Signal::SIGKILL);
        while waitpid(serving.child, None) == Err(Errno::EINTR) {}
        let mut bytes = [0; MAX];
        while let Ok(count @ 1..) = recv(serving.notices.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            self.note(&bytes[..count]);
        }
    }

    /// What the person should know, in sentences.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.refusals.iter().map(|refusal| format!("network: {refusal}")).chain(self.warnings.iter().cloned())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.end();
    }
}
