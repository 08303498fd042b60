//! The supervisor's loop: from the started engine to the end of the command. One thread, one poll(2).

use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use codeoid_spec::report::Exit;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, send};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::diagnostic::{Doing, Failure, one_line};
use crate::executor::message::{MAX, Message};
use crate::proxy::Network;
use crate::remask::Sandbox;
use crate::sys::process;
use crate::terminal::Relay;
use crate::watch::Watch;

/// How long a command has after SIGTERM before it is killed.
const GRACE: Duration = Duration::from_secs(10);

/// How long a turn runs before names are watched.
const ARM_AFTER: Duration = Duration::from_millis(150);

/// Signals that are handed on to the command, or that the terminal relay needs.
const FORWARDED: [Signal; 8] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCONT,
];

/// Signals, taken as events from the first moment on: none is lost between two steps of the start.
pub struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Blocks the signals and opens a descriptor for them. Actions that the caller has set to "ignore" are
    /// reset: SIGCHLD ignored would take every exit status away (wait(2)).
    pub fn take() -> Result<Self, Failure> {
        process::reset_signal_actions();
        let mut set = SigSet::empty();
        FORWARDED.into_iter().for_each(|signal| set.add(signal));
        // Never acted upon by stopping: the relay decides when to stop, and gives the terminal back first.
        for signal in [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU, Signal::SIGPIPE] {
            set.add(signal);
        }
        set.thread_block().doing("block signals")?;
        let mut watched = SigSet::empty();
        FORWARDED.into_iter().for_each(|signal| watched.add(signal));
        let fd = SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK);
        Ok(Self { fd: fd.doing("open a descriptor for signals")? })
    }

    /// A signal that has arrived and asks for the end, before there is a command that it could be handed on to.
    pub fn ending(&self) -> Option<Signal> {
        while let Ok(Some(info)) = self.fd.read_signal() {
            match Signal::try_from(info.ssi_signo as i32) {
                // A terminal that has changed is looked at again when the command starts.
                Ok(Signal::SIGWINCH | Signal::SIGCONT) | Err(_) => {}
                Ok(signal) => return Some(signal),
            }
        }
        None
    }
}

impl Signals {
    /// The next signal that has arrived, if any.
    pub fn next(&self) -> Option<Signal> {
        loop {
            let info = self.fd.read_signal().ok().flatten()?;
            if let Ok(signal) = Signal::try_from(info.ssi_signo as i32) {
                return Some(signal);
            }
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What runs: an engine (or another child whose process group is the command) and its socket.
pub struct Running {
    /// The child.
    pub child: Pid,
    /// A handle on it.
    pub pidfd: OwnedFd,
    /// Its messages.
    pub socket: OwnedFd,
    /// Process 1 of the sandbox, once it stands.
    pub init: Option<OwnedFd>,
    /// What the runtime says while it makes the sandbox, where it is a program of its own.
    pub said: Option<File>,
}

/// How the supervised command ended.
#[derive(Debug, Default)]
pub struct Ended {
    /// Its exit.
    pub exit: Exit,
    /// Why it could not be executed, if so: errno.
    pub exec_error: Option<i32>,
    /// The time limit ended it.
    pub timed_out: bool,
}

impl Running {
    fn signal(&self, signal: Signal) {
        if let Some(init) = &self.init {
            let _ = process::pidfd_send_signal(init.as_fd(), signal);
        }
    }

    /// Lets the command start: all that must be done before has been done.
    pub fn go(&self) {
        // Where it fails the engine has ended, and has said why.
        let _ = send(self.socket.as_raw_fd(), b"g", MsgFlags::MSG_NOSIGNAL);
    }

    /// Ends what was started, before its command has run.
    pub fn abandon(self) {
        self.kill();
        let _ = waitpid(self.child, None);
    }

    fn kill(&self) {
        self.signal(Signal::SIGKILL);
        let _ = process::pidfd_send_signal(self.pidfd.as_fd(), Signal::SIGKILL);
    }

    /// Waits until the command has ended and nothing of the sandbox is left. `joinable` is called once, when
    /// later turns of the session may join this one's namespaces. `until`: the time limit.
    pub fn wait(
        mut self,
        joinable: impl FnOnce(Pid) -> Result<(), Failure>,
        signals: &Signals,
        terminal: [bool; 3],
        until: Option<Instant>,
        watch: &mut Watch,
        network: &mut Network,
    ) -> Result<Ended, Failure> {
        let started = Instant::now();
        let mut ended = Ended::default();
        let mut known = false;
        let mut up = false;
        let mut relay: Option<Relay> = None;
        let mut terminated: Option<Instant> = None;
        let mut socket_open = true;
        let mut joinable = Some(joinable);
        let mut failed: Option<Failure> = None;
        // What arrives before init can take it.
        let mut early: Vec<Signal> = Vec::new();
        loop {
            let deadline = terminated.map(|at| at + GRACE).or(until);
            let arm = (!watch.is_armed()).then(|| started + ARM_AFTER);
            let wait = deadline.into_iter().chain(arm).chain(watch.next_look()).min().map_or(
                PollTimeout::NONE,
                |at| {
                    let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
                    PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
                },
            );
            let idle = PollFlags::empty();
            let relayed = relay.as_ref().map(Relay::interests);
            let mut fds = vec![
                PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN),
                PollFd::new(signals.fd.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.socket.as_fd(), if socket_open { PollFlags::POLLIN } else { idle }),
            ];
            let first_watch = fds.len();
            fds.extend(watch.interests().into_iter().map(|(fd, events)| PollFd::new(fd, events)));
            let first_network = fds.len();
            fds.extend(network.interest().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
            let first_relay = fds.len();
            // A descriptor that nothing is wanted of would still wake us when it is hung up.
            let wanted = |interest: &&(BorrowedFd<'_>, PollFlags)| !interest.1.is_empty();
            let relayed: Vec<_> = relayed.iter().flatten().collect();
            fds.extend(relayed.iter().filter(|i| wanted(i)).map(|(fd, events)| PollFd::new(*fd, *events)));
            match poll(&mut fds, wait) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(Failure::new("wait for the command", errno.desc())),
            }
            let ready: Vec<PollFlags> = fds.iter().map(|fd| fd.revents().unwrap_or(idle)).collect();
            let mut answers = ready[first_relay..].iter();
            let mut relay_ready = [idle; 3];
            for (place, interest) in relay_ready.iter_mut().zip(&relayed) {
                if wanted(interest) {
                    *place = answers.next().copied().unwrap_or(idle);
                }
            }
            drop(fds);
            drop(relayed);
            if let Some(relay) = &mut relay {
                relay.advance(relay_ready);
            }
            if ready[first_network..first_relay].iter().any(|flags| !flags.is_empty()) {
                network.act();
            }
            if ready[first_watch..first_network].iter().any(|flags| !flags.is_empty()) {
                watch.act();
            }
            if watch.next_look().is_some_and(|at| Instant::now() >= at) {
                watch.look_for_sockets();
            }
            if arm.is_some_and(|at| Instant::now() >= at) {
                watch.arm();
            }
            if ready[1].contains(PollFlags::POLLIN) {
                while let Ok(Some(info)) = signals.fd.read_signal() {
                    let Ok(signal) = Signal::try_from(info.ssi_signo as i32) else { continue };
                    match (signal, &mut relay) {
                        (Signal::SIGWINCH, Some(relay)) => relay.copy_window_size(),
                        (Signal::SIGCONT, Some(relay)) => {
                            relay.resume();
                            self.signal(signal);
                        }
                        _ if !up => early.push(signal),
                        _ => self.signal(signal),
                    }
                }
            }
            if !ready[2].is_empty() && socket_open {
                match receive(self.socket.as_fd()) {
                    Ok(Some(received)) => match received.message {
                        Message::Exited { code, signal } => {
                            ended.exit = Exit { code, signal };
                            known = true;
                        }
                        Message::ExecFailed { errno } => ended.exec_error = Some(errno),
                        Message::Up => {
                            up = true;
                            // Gone already: the command was short. Then there is nothing to signal.
                            self.init = received.sender.and_then(|pid| process::pidfd_open(pid).ok());
                            if let Some(pid) = received.sender {
                                watch
                                    .started(pid.as_raw(), received.fds.into_iter().next().map(Sandbox::new));
                            }
                            early.drain(..).for_each(|signal| self.signal(signal));
                        }
                        Message::Terminal => {
                            relay = received.fds.into_iter().next().and_then(|fd| Relay::new(fd, terminal))
                        }
                        Message::Listening => {
                            let served = match received.fds.into_iter().next() {
                                Some(listener) => network.serve(listener),
                                None => Err(Failure::new("start the network proxy", "its socket is missing")),
                            };
                            if let Err(failure) = served {
                                self.kill();
                                failed = Some(failure);
                            }
                        }
                        Message::Stopped { .. } => stop_with_command(&mut relay, &self),
                        Message::Joinable => {
                            if let Some(joinable) = joinable.take()
                                && let Err(failure) = joinable(self.child)
                            {
                                self.kill();
                                failed = Some(failure);
                            }
                        }
                        Message::InitFailed { step, errno } => {
                            let what = format!("start the command: {step}");
                            failed = Some(Failure::new(what, describe(errno)));
                        }
                        Message::Failed { what, why, hint } => {
                            let failure = Failure::new(what, why);
                            failed = Some(match hint {
                                Some(hint) => failure.hint(hint),
                                None => failure,
                            });
                        }
                    },
                    // The engine has ended without taking the word to go on (unix(7)): what it said before is still to
                    // be read, and is why.
                    Err(Errno::EINTR | Errno::EAGAIN | Errno::ECONNRESET) => {}
                    Ok(None) | Err(_) => socket_open = false,
                }
                continue;
            }
            if ready[0].contains(PollFlags::POLLIN) {
                let status = waitpid(self.child, Some(WaitPidFlag::WNOHANG));
                if let Some(failure) = failed {
                    return Err(failure);
                }
                watch.look_at_end();
                if let Some(relay) = &mut relay {
                    let _ = relay.drain();
                }
                if !up {
                    if let Some(failure) = self.said.as_ref().and_then(complaint) {
                        return Err(failure);
                    }
                    let why = match status {
                        Ok(WaitStatus::Exited(_, code)) => format!("the executor ended with code {code}"),
                        Ok(WaitStatus::Signaled(_, signal, _)) => format!("{signal} ended the executor"),
                        _ => "the executor ended".to_owned(),
                    };
                    return Err(Failure::new("start the sandbox", why));
                }
                if !known {
                    // Init was killed before it could say how the command ended; with it, everything.
                    ended.exit = match status {
                        Ok(WaitStatus::Exited(_, code)) if code != 0 => {
                            Exit { code: Some(code), signal: None }
                        }
                        _ => Exit { code: None, signal: Some(libc::SIGKILL) },
                    };
                }
                return Ok(ended);
            }
            if deadline.is_some_and(|at| Instant::now() >= at) {
                ended.timed_out = true;
                if !up {
                    // Nobody is there yet who could end in good order.
                    self.kill();
                    let _ = waitpid(self.child, None);
                    ended.exit = Exit { code: None, signal: Some(libc::SIGKILL) };
                    return Ok(ended);
                }
                if terminated.is_none() {
                    self.signal(Signal::SIGTERM);
                    terminated = Some(Instant::now());
                } else {
                    self.kill();
                    self.init = None;
                }
            }
        }
    }
}

/// The command was stopped: so are we, with the whole job, and the terminal is the caller's until then.
fn stop_with_command(relay: &mut Option<Relay>, running: &Running) {
    let Some(relay) = relay else { return };
    relay.suspend();
    // The rest of the job (a pipeline's other commands); we have the signal blocked.
    let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
    let _ = raise(Signal::SIGSTOP);
    relay.resume();
    running.signal(Signal::SIGCONT);
}

/// What a runtime has said on its standard error, in our own form.
fn complaint(said: &File) -> Option<Failure> {
    let mut bytes = [0u8; 1024];
    let count = said.read_at(&mut bytes, 0).ok()?;
    let text = String::from_utf8_lossy(&bytes[..count]);
    let why = one_line(text.trim());
    if why.is_empty() {
        return None;
    }
    let gone = why.contains("No such file or directory");
    let failure = Failure::new("start the sandbox", why);
    Some(if gone {
        failure.hint("what it names went away while the sandbox was being made: start the turn again")
    } else {
        failure
    })
}

fn describe(errno: i32) -> String {
    Errno::from_raw(errno).desc().to_owned()
}

/// A message with what came along.
struct Received {
    message: Message,
    fds: Vec<OwnedFd>,
    sender: Option<Pid>,
}

/// Reads one message; `None` at the end.
fn receive(socket: BorrowedFd<'_>) -> nix::Result<Option<Received>> {
    let mut bytes = [0u8; MAX];
    let mut space = nix::cmsg_space!([i32; 2], nix::sys::socket::UnixCredentials);
    let (mut fds, mut sender) = (Vec::new(), None);
    let count = {
        let mut iov = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<()>(socket.as_raw_fd(), &mut iov, Some(&mut space), flags)?;
        for control in message.cmsgs()? {
            match control {
                ControlMessageOwned::ScmRights(numbers) => {
                    fds.extend(numbers.into_iter().filter_map(process::received));
                }
                ControlMessageOwned::ScmCredentials(credentials) => {
                    sender = Some(Pid::from_raw(credentials.pid()));
                }
                _ => {}
            }
        }
        message.bytes
    };
    let message = Message::decode(&bytes[..count]);
    Ok(message.map(|message| Received { message, fds, sender }))
}
