//! The relay between the caller's terminal and the sandbox's own (pty(7)). The command never holds a
//! descriptor of the caller's terminal: whoever does can type into the caller's shell.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, read, tcgetpgrp, write};

use crate::sys::{process, tty};

/// Bytes that wait in one direction, at most.
const BUFFER: usize = 64 * 1024;

/// A running relay.
pub struct Relay {
    master: OwnedFd,
    /// The caller's terminal.
    host: BorrowedFd<'static>,
    reads_stdin: bool,
    writes_to: BorrowedFd<'static>,
    saved: Option<Termios>,
    to_command: Vec<u8>,
    to_host: Vec<u8>,
    ended: bool,
}

impl Relay {
    /// A relay for these of the standard streams.
    pub fn new(master: OwnedFd, terminal: [bool; 3]) -> Option<Self> {
        let stream = |number: usize| process::borrow(i32::try_from(number).expect("0, 1 or 2"));
        let first = terminal.iter().position(|&is| is)?;
        let output = [1, 2, 0].into_iter().find(|&number| terminal[number])?;
        let mut relay = Self {
            master,
            host: stream(first),
            reads_stdin: terminal[0],
            writes_to: stream(output),
            saved: None,
            to_command: Vec::new(),
            to_host: Vec::new(),
            ended: false,
        };
        relay.resume();
        Some(relay)
    }

    /// Takes the caller's terminal over: raw, so that Ctrl-C and the like reach the sandbox's terminal. Only
    /// while we are in its foreground; a background job that touches it is stopped (SIGTTOU).
    pub fn resume(&mut self) {
        self.copy_window_size();
        let foreground = tcgetpgrp(self.host).is_ok_and(|group| group == getpgrp());
        if !self.reads_stdin || !foreground || self.saved.is_some() {
            return;
        }
        if let Ok(saved) = tcgetattr(self.host) {
            let mut raw = saved.clone();
            cfmakeraw(&mut raw);
            if tcsetattr(self.host, SetArg::TCSADRAIN, &raw).is_ok() {
                self.saved = Some(saved);
            }
        }
    }

    /// Gives the caller's terminal back as it was.
    pub fn suspend(&mut self) {
        if let Some(saved) = self.saved.take() {
            let _ = tcsetattr(self.host, SetArg::TCSADRAIN, &saved);
        }
    }

    /// The sandbox's terminal gets the size of the caller's.
    pub fn copy_window_size(&self) {
        if let Ok(size) = tty::window_size(self.host) {
            let _ = tty::set_window_size(self.master.as_fd(), &size);
        }
    }

    /// What to wait for: the descriptor and events of each direction.
    pub fn interests(&self) -> [(BorrowedFd<'_>, PollFlags); 3] {
        let on = |condition, flag| if condition { flag } else { PollFlags::empty() };
        let stdin = process::borrow(0);
        [
            (
                self.master.as_fd(),
                on(!self.ended && self.to_host.len() < BUFFER, PollFlags::POLLIN)
                    | on(!self.ended && !self.to_command.is_empty(), PollFlags::POLLOUT),
            ),
            (
                stdin,
                on(
                    self.saved.is_some() && self.reads_stdin && !self.ended && self.to_command.len() < BUFFER,
                    PollFlags::POLLIN,
                ),
            ),
            (self.writes_to, on(!self.to_host.is_empty(), PollFlags::POLLOUT)),
        ]
    }

    /// Moves what can be moved.
    pub fn advance(&mut self, ready: [PollFlags; 3]) {
        let mut bytes = [0u8; 4096];
        let [master, stdin, output] = ready;
        if master.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
            match read(&self.master, &mut bytes) {
                Ok(count) if count > 0 => self.to_host.extend_from_slice(&bytes[..count]),
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                // EIO: nobody has the sandbox's terminal open any more.
                _ => self.ended = true,
            }
        }
        if master.contains(PollFlags::POLLOUT) {
            push(self.master.as_fd(), &mut self.to_command);
        }
        if stdin.intersects(PollFlags::POLLIN | PollFlags::POLLHUP) {
            match read(process::borrow(0), &mut bytes) {
                Ok(count) if count > 0 => self.to_command.extend_from_slice(&bytes[..count]),
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                _ => self.reads_stdin = false,
            }
        }
        if output.contains(PollFlags::POLLOUT) {
            push(self.writes_to, &mut self.to_host);
        }
    }

    /// Writes out what the command wrote before it ended.
    pub fn drain(&mut self) -> io::Result<()> {
        let mut bytes = [0u8; 4096];
        loop {
            while !self.to_host.is_empty() {
                let count = write(self.writes_to, &self.to_host)?;
                self.to_host.drain(..count);
            }
            let mut fds = [nix::poll::PollFd::new(self.master.as_fd(), PollFlags::POLLIN)];
            if self.ended || nix::poll::poll(&mut fds, nix::poll::PollTimeout::ZERO)? == 0 {
                return Ok(());
            }
            match read(&self.master, &mut bytes) {
                Ok(count) if count > 0 => self.to_host.extend_from_slice(&bytes[..count]),
                _ => return Ok(()),
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.suspend();
    }
}

fn push(fd: BorrowedFd<'_>, bytes: &mut Vec<u8>) {
    // A terminal that is ready takes some bytes without blocking, but perhaps not all.
    let chunk = bytes.len().min(1024);
    match write(fd, &bytes[..chunk]) {
        Ok(count) => drop(bytes.drain(..count)),
        Err(Errno::EINTR | Errno::EAGAIN) => {}
        Err(_) => bytes.clear(),
    }
}
