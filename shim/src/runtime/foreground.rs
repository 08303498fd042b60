//! Waiting for a process in the foreground: its caller's signals and terminal are its own until it ends.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, isatty};

use super::error::{Error, Result};
use crate::supervise::Signals;
use crate::sys::process;
use crate::terminal::Relay;

/// Where the master of a new terminal arrives that is to be relayed to the caller's.
pub struct Console {
    listener: UnixListener,
    /// The socket.
    pub path: PathBuf,
}

impl Console {
    /// Opens the socket, in a container's own directory. Refused where the caller has no terminal.
    pub fn listen(dir: &Path) -> Result<Self> {
        if !streams().contains(&true) {
            return Err(Error::Usage(
                "cannot use a terminal: none of the standard streams is one".to_owned(),
            ));
        }
        let path = dir.join("tty.sock");
        // By a short name: the path of a socket has 108 bytes (unix(7)), a container's directory may have more.
        let here = std::env::current_dir().map_err(Error::io("getcwd"))?;
        let bound = std::env::set_current_dir(dir).and_then(|()| UnixListener::bind("tty.sock"));
        let back = std::env::set_current_dir(here);
        let listener = bound.map_err(Error::io(format!("listen at {}", path.display())))?;
        back.map_err(Error::io("chdir"))?;
        Ok(Self { listener, path })
    }

    /// Takes the master, which has been sent by now.
    pub fn receive(self) -> Result<OwnedFd> {
        let _ = std::fs::remove_file(&self.path);
        self.listener.set_nonblocking(true).map_err(Error::io("receive the terminal"))?;
        let (stream, _) = self.listener.accept().map_err(Error::io("receive the terminal"))?;
        receive_master(stream.as_fd())
    }
}

/// Takes a descriptor from a socket.
pub fn receive_master(socket: BorrowedFd<'_>) -> Result<OwnedFd> {
    let mut text = [0; 256];
    let mut parts = [IoSliceMut::new(&mut text)];
    let mut space = nix::cmsg_space!([i32; 1]);
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)
        .map_err(Error::errno("receive the terminal"))?;
    let received = message.cmsgs().ok().into_iter().flatten().find_map(|message| match message {
        ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
        _ => None,
    });
    received.and_then(process::received).ok_or_else(|| Error::Usage("no terminal was received".to_owned()))
}

/// Which of the standard streams are terminals.
fn streams() -> [bool; 3] {
    [0, 1, 2].map(|number| isatty(process::borrow(number)).unwrap_or(false))
}

/// Waits for a child, and gives its exit code: 128 + n where signal n ended it.
pub fn wait(pid: Pid, signals: &Signals, master: Option<OwnedFd>) -> Result<u8> {
    // A child's number is its own until it is waited for, which nobody else does.
    let handle = process::pidfd_open(pid)?;
    let mut relay = master.and_then(|master| Relay::new(master, streams()));
    loop {
        let idle = PollFlags::empty();
        let interests = relay.as_ref().map(Relay::interests);
        let mut fds = vec![
            PollFd::new(handle.as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        ];
        let wanted: Vec<_> = interests.iter().flatten().collect();
        // A descriptor that nothing is wanted of would still wake us when it is hung up.
        let asked = |interest: &&&(BorrowedFd<'_>, PollFlags)| !interest.1.is_empty();
        fds.extend(wanted.iter().filter(asked).map(|(fd, events)| PollFd::new(*fd, *events)));
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::errno("wait for the process")(errno)),
        }
        let ready: Vec<PollFlags> = fds.iter().map(|fd| fd.revents().unwrap_or(idle)).collect();
        let mut answers = ready[2..].iter();
        let mut relayed = [idle; 3];
        for (place, interest) in relayed.iter_mut().zip(&wanted) {
            if asked(&interest) {
                *place = answers.next().copied().unwrap_or(idle);
            }
        }
        drop(fds);
        drop(wanted);
        if let Some(relay) = &mut relay {
            relay.advance(relayed);
        }
        while let Some(signal) = signals.next() {
            match (signal, &mut relay) {
                (Signal::SIGWINCH, Some(relay)) => relay.copy_window_size(),
                (Signal::SIGCONT, Some(relay)) => relay.resume(),
                // Ended already: the next round sees it.
                _ => drop(process::pidfd_send_signal(handle.as_fd(), signal)),
            }
        }
        if ready[0].contains(PollFlags::POLLIN) {
            break;
        }
    }
    if let Some(relay) = &mut relay {
        let _ = relay.drain();
    }
    drop(relay);
    match waitpid(pid, None) {
        Ok(WaitStatus::Exited(_, code)) => Ok(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
        Ok(WaitStatus::Signaled(_, signal, _)) => Ok(128 + u8::try_from(signal as i32).unwrap_or(0)),
        Ok(other) => Err(Error::Usage(format!("the process is in an unexpected state: {other:?}"))),
        Err(errno) => Err(Error::errno("wait for the process")(errno)),
    }
}
