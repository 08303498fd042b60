//! Process 1 of the sandbox. It starts the command, forwards signals to it, reaps whatever is orphaned, and
//! tells the supervisor how the command ended. A command that were process 1 itself would ignore every
//! signal without a handler (pid_namespaces(7)) and collect zombies.
//!
//! It runs after libcontainer has dropped everything, and faces the command: so it is not dumpable
//! (`/proc/1/{exe,fd,root}` stay closed, CVE-2019-5736), and holds one descriptor only: the socket on which it
//! tells how the command ended.

use std::ffi::{CStr, CString, c_char};
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use ::libcontainer::oci_spec::runtime::Spec;
use ::libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::Winsize;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::sys::stat::Mode;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stderr, dup2_stdin, dup2_stdout, getpid, setpgid, tcsetpgrp};
use serde::{Deserialize, Serialize};

use super::message::Message;
use crate::sys::{process, tty};

/// Number of the status socket in init; the first after the standard streams.
const STATUS: RawFd = 3;
/// Number of the handle on the engine.
const ALIVE: RawFd = 4;

/// What init needs to know. Everything is prepared before the fork, since libcontainer replaces the
/// environment on the way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Init {
    argv: Vec<CString>,
    envp: Vec<CString>,
    /// The paths to try, in the order of `PATH`.
    candidates: Vec<CString>,
    wiring: Wiring,
}

/// How init is connected to the world outside, and what it still has to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Wiring {
    /// The socket to the supervisor: a descriptor number, inherited through libcontainer's two forks.
    pub status: RawFd,
    /// A handle on the engine (pidfd_open(2)).
    pub alive: RawFd,
    /// Which of the standard streams are the new terminal; all false: no terminal.
    pub terminal: [bool; 3],
    /// The terminal's size (rows, columns).
    pub window: Option<(u16, u16)>,
    /// The command's umask.
    pub umask: Option<u32>,
    /// What stands for limits that no cgroup can hold here.
    pub rlimits: Rlimits,
    /// The system call filter as a program, if nobody has loaded it before.
    pub filter: Option<Vec<u8>>,
    /// Whether connections to abstract sockets outside are to be refused by Landlock.
    pub scope_abstract: bool,
    /// The caller's standard error, where ours is the runtime's.
    pub stderr: Option<RawFd>,
    /// Whether capabilities are left to be dropped.
    pub drop_capabilities: bool,
}

/// Limits of each process by itself, or of its user (getrlimit(2)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimits {
    /// The address space of each process, in bytes (`RLIMIT_AS`).
    pub memory: Option<u64>,
    /// The processes of the user namespace (`RLIMIT_NPROC`; before Linux 5.14: of the user).
    pub pids: Option<u64>,
}

impl Rlimits {
    fn set(self) -> nix::Result<()> {
        for (resource, limit) in [(Resource::RLIMIT_AS, self.memory), (Resource::RLIMIT_NPROC, self.pids)] {
            if let Some(limit) = limit {
                // Never above what the caller has.
                let (_, hard) = getrlimit(resource)?;
                setrlimit(resource, limit.min(hard), limit.min(hard))?;
            }
        }
        Ok(())
    }
}

/// The argument after which this program, run again as process 1 by a runtime that knows no init, is init.
pub const REEXEC: &str = "codeoid-init-from-fd";

/// A string of the command or its environment holds a NUL byte.
#[derive(Debug, thiserror::Error)]
#[error("{what} contains a NUL byte")]
pub struct NulByte {
    /// Which string.
    pub what: &'static str,
}

impl Init {
    /// Prepares init for a command: `command` and `env` as the bundle has them.
    pub fn new(command: &[String], env: &[String], wiring: Wiring) -> Result<Self, NulByte> {
        let strings = |list: &[String], what| {
            list.iter()
                .map(|text| CString::new(text.as_bytes()).map_err(|_| NulByte { what }))
                .collect::<Result<Vec<_>, _>>()
        };
        let path = env.iter().find_map(|entry| entry.strip_prefix("PATH="));
        let name = command.first().map(String::as_str).unwrap_or_default();
        Ok(Self {
            candidates: strings(&candidates(name, path), "the command")?,
            argv: strings(command, "the command")?,
            envp: strings(env, "the environment")?,
            wiring,
        })
    }

    /// Reads what it needs from a descriptor that was kept open for it.
    pub fn from_descriptor(fd: RawFd) -> Option<Self> {
        let mut text = Vec::new();
        let mut file = std::fs::File::from(process::received(fd)?);
        std::io::Read::read_to_end(&mut file, &mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Runs as process 1; never returns.
    pub fn run(&self) -> ! {
        let code = match self.start() {
            Ok(code) => code,
            Err((step, errno)) => {
                send(&Message::InitFailed { step: step.to_owned(), errno: errno as i32 });
                125
            }
        };
        process::exit_now(code)
    }

    fn start(&self) -> Result<i32, (&'static str, Errno)> {
        self.arrange_descriptors()?;
        if self.wiring.drop_capabilities {
            drop_capabilities().map_err(|_| ("drop capabilities", Errno::EPERM))?;
        }
        // For the supervisor, which renews masks from outside; soon nobody can ask us for it.
        let mounts = open("/proc/self/ns/mnt", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|errno| ("open(/proc/self/ns/mnt)", errno))?;
        let _ = nix::sys::prctl::set_name(c"codeoid-init");
        // The shim's own options name what is hidden.
        process::forget_command_line();
        nix::sys::prctl::set_dumpable(false).map_err(|errno| ("prctl(PR_SET_DUMPABLE)", errno))?;
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)
            .map_err(|errno| ("prctl(PR_SET_PDEATHSIG)", errno))?;
        // The engine may have died before the line above; getppid() is 0 in here and cannot tell.
        if is_orphaned(ALIVE) {
            return Ok(125);
        }
        let _ = nix::unistd::close(ALIVE);
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None).map_err(|e| ("sigprocmask", e))?;
        // Away from the caller's session, and with it from its terminal. libcontainer has done so already.
        match nix::unistd::setsid() {
            Ok(_) | Err(Errno::EPERM) => {}
            Err(errno) => return Err(("setsid", errno)),
        }
        if self.wiring.scope_abstract {
            scope_abstract_sockets().map_err(|errno| ("landlock_restrict_self", errno))?;
        }
        if let Some(filter) = &self.wiring.filter {
            process::load_filter(filter).map_err(|errno| ("seccomp", errno))?;
        }
        send_descriptor(&Message::Up, mounts.as_fd()).map_err(|errno| ("sendmsg", errno))?;
        drop(mounts);
        let terminal = self.open_terminal()?;
        if let Some(mask) = self.wiring.umask {
            nix::sys::stat::umask(Mode::from_bits_truncate(mask));
        }
        match process::fork_in_init().map_err(|errno| ("fork", errno))? {
            ForkResult::Child => self.become_command(terminal.as_ref()),
            ForkResult::Parent { child } => {
                // Both sides do this, so that neither has to wait for the other.
                let _ = setpgid(child, child);
                if let Some(terminal) = &terminal {
                    let _ = tcsetpgrp(terminal, child);
                }
                // The command's streams must end when the command closes them.
                self.detach_streams();
                drop(terminal);
                Ok(reap(child))
            }
        }
    }

    fn arrange_descriptors(&self) -> Result<(), (&'static str, Errno)> {
        if let Some(stderr) = self.wiring.stderr {
            dup2_stderr(process::borrow(stderr)).map_err(|errno| ("dup2", errno))?;
        }
        // By way of high numbers, so that neither overwrites the other.
        let high = |fd| process::duplicate_above(fd, 64).map_err(|errno| ("fcntl(F_DUPFD)", errno));
        for (from, to) in [(high(self.wiring.status)?, STATUS), (high(self.wiring.alive)?, ALIVE)] {
            process::duplicate_to(from, to).map_err(|errno| ("dup3", errno))?;
        }
        process::close_from(ALIVE + 1).map_err(|errno| ("close_range", errno))?;
        self.reopen_null()
    }

    /// libcontainer replaces each standard stream that is the null device by the sandbox's own, opened for
    /// reading only: nothing can be written to it then.
    fn reopen_null(&self) -> Result<(), (&'static str, Errno)> {
        let null = open_null().map_err(|errno| ("open(/dev/null)", errno))?;
        let device = nix::sys::stat::fstat(&null).map_err(|errno| ("fstat", errno))?.st_rdev;
        for number in 0..3 {
            let stat = nix::sys::stat::fstat(process::borrow(number)).map_err(|errno| ("fstat", errno))?;
            if stat.st_mode & libc::S_IFMT == libc::S_IFCHR && stat.st_rdev == device {
                let done = match number {
                    0 => dup2_stdin(&null),
                    1 => dup2_stdout(&null),
                    _ => dup2_stderr(&null),
                };
                done.map_err(|errno| ("dup2", errno))?;
            }
        }
        Ok(())
    }

    /// Makes a terminal in the sandbox's own devpts, so that its name is right in here, and sends its master
    /// to the supervisor (pty(7)).
    fn open_terminal(&self) -> Result<Option<OwnedFd>, (&'static str, Errno)> {
        if !self.wiring.terminal.contains(&true) {
            return Ok(None);
        }
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let master =
            open("/dev/pts/ptmx", flags, Mode::empty()).map_err(|errno| ("open(/dev/pts/ptmx)", errno))?;
        let slave = tty::open_peer(master.as_fd()).map_err(|errno| ("ioctl(TIOCGPTPEER)", errno))?;
        if let Some((rows, columns)) = self.wiring.window {
            let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
            tty::set_window_size(slave.as_fd(), &size).map_err(|errno| ("ioctl(TIOCSWINSZ)", errno))?;
        }
        tty::set_controlling(slave.as_fd()).map_err(|errno| ("ioctl(TIOCSCTTY)", errno))?;
        send_descriptor(&Message::Terminal, master.as_fd()).map_err(|errno| ("sendmsg", errno))?;
        Ok(Some(slave))
    }

    fn detach_streams(&self) {
        if let Ok(null) = open_null() {
            let _ = dup2_stdin(&null);
            let _ = dup2_stdout(&null);
            let _ = dup2_stderr(&null);
        }
    }

    fn become_command(&self, terminal: Option<&OwnedFd>) -> ! {
        let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
        if let Some(terminal) = terminal {
            // Signals are blocked still, so this does not stop us for being in the background (SIGTTOU).
            let _ = tcsetpgrp(terminal, getpid());
            let [stdin, stdout, stderr] = self.wiring.terminal;
            let done = (!stdin || dup2_stdin(terminal).is_ok())
                && (!stdout || dup2_stdout(terminal).is_ok())
                && (!stderr || dup2_stderr(terminal).is_ok());
            if !done {
                send(&Message::InitFailed { step: "dup2".to_owned(), errno: Errno::last_raw() });
                process::exit_now(125);
            }
        }
        if let Err(errno) = self.wiring.rlimits.set() {
            send(&Message::InitFailed { step: "setrlimit".to_owned(), errno: errno as i32 });
            process::exit_now(125);
        }
        process::reset_signal_actions();
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
        let errno = self.exec();
        send(&Message::ExecFailed { errno: errno as i32 });
        process::exit_now(if errno == Errno::ENOENT { 127 } else { 126 })
    }

    /// execvp(3), over the candidates found before the fork.
    fn exec(&self) -> Errno {
        let argv = pointers(&self.argv);
        let envp = pointers(&self.envp);
        let mut result = Errno::ENOENT;
        for path in &self.candidates {
            match process::execve(path, &argv, &envp) {
                Errno::ENOENT | Errno::ENOTDIR => {}
                // A script without an interpreter line is one for the shell, as execvp(3) and every shell have it.
                Errno::ENOEXEC => {
                    let mut script: Vec<*const c_char> = vec![c"sh".as_ptr(), path.as_ptr()];
                    script.extend(argv.iter().skip(1));
                    return process::execve(c"/bin/sh", &script, &envp);
                }
                Errno::EACCES => result = Errno::EACCES,
                other => return other,
            }
        }
        result
    }
}

/// The paths under which a command is looked for: itself if it has a slash, else one for each directory of
/// `PATH`; an empty entry is the working directory (environ(7)).
fn candidates(name: &str, path: Option<&str>) -> Vec<String> {
    if name.is_empty() {
        return Vec::new();
    }
    if name.contains('/') {
        return vec![name.to_owned()];
    }
    path.unwrap_or("/usr/local/bin:/usr/bin:/bin")
        .split(':')
        .map(|dir| if dir.is_empty() { format!("./{name}") } else { format!("{dir}/{name}") })
        .collect()
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|text: &CString| CStr::as_ptr(text)).chain([std::ptr::null()]).collect()
}

/// Refuses connections to abstract sockets that were made outside of the sandbox (landlock(7), ABI 6). They
/// have no path that a mount could hide, and belong to the network namespace, which is the host's here.
fn scope_abstract_sockets() -> Result<(), Errno> {
    use landlock::{CompatLevel, Compatible, Ruleset, RulesetAttr, Scope};
    let restrict = || {
        Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .scope(Scope::AbstractUnixSocket)?
            .create()?
            .restrict_self()
    };
    // The probe said that it is there, so what fails now is no matter of the kernel's version.
    restrict().map(drop).map_err(|_| Errno::EPERM)
}

/// Takes every capability away, also from what is executed later (capabilities(7)).
fn drop_capabilities() -> Result<(), caps::errors::CapsError> {
    use caps::CapSet::{Ambient, Bounding, Effective, Inheritable, Permitted};
    // The bounding set first: that takes a capability itself.
    [Bounding, Ambient, Inheritable, Effective, Permitted]
        .into_iter()
        .try_for_each(|set| caps::clear(None, set))
}

/// Whether the engine has ended: a handle on a process is readable then (pidfd_open(2)).
fn is_orphaned(engine: RawFd) -> bool {
    let mut fds = [PollFd::new(process::borrow(engine), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO) != Ok(0)
}

fn open_null() -> nix::Result<OwnedFd> {
    openat(nix::fcntl::AT_FDCWD, "/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())
}

/// Waits until the command ends, while reaping orphans and forwarding signals; then says how it ended. When
/// init exits, the kernel kills whatever is left in its pid namespace.
fn reap(command: Pid) -> i32 {
    let all = SigSet::all();
    loop {
        match all.wait() {
            Ok(Signal::SIGCHLD) => loop {
                match waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
                    Ok(WaitStatus::Exited(pid, code)) if pid == command => {
                        send(&Message::Exited { code: Some(code), signal: None });
                        return code;
                    }
                    Ok(WaitStatus::Signaled(pid, signal, _)) if pid == command => {
                        send(&Message::Exited { code: None, signal: Some(signal as i32) });
                        return 128 + signal as i32;
                    }
                    Ok(WaitStatus::Stopped(pid, signal)) if pid == command => {
                        send(&Message::Stopped { signal: signal as i32 });
                    }
                    Ok(WaitStatus::StillAlive) | Err(_) => break,
                    Ok(_) => {}
                }
            },
            Ok(signal) => {
                let _ = kill(Pid::from_raw(-command.as_raw()), signal);
                // A stopped command acts on a signal only when it runs again.
                if matches!(signal, Signal::SIGTERM | Signal::SIGHUP) {
                    let _ = kill(Pid::from_raw(-command.as_raw()), Signal::SIGCONT);
                }
            }
            Err(_) => {}
        }
    }
}

fn send(message: &Message) {
    // The supervisor may be gone; then so are we.
    let _ = nix::sys::socket::send(STATUS, &message.encode(), MsgFlags::MSG_NOSIGNAL);
}

fn send_descriptor(message: &Message, fd: BorrowedFd<'_>) -> nix::Result<()> {
    let fds = [fd.as_raw_fd()];
    let bytes = message.encode();
    sendmsg::<()>(
        STATUS,
        &[IoSlice::new(&bytes)],
        &[ControlMessage::ScmRights(&fds)],
        MsgFlags::MSG_NOSIGNAL,
        None,
    )
    .map(drop)
}

impl Executor for Init {
    fn exec(&self, _: &Spec) -> Result<(), ExecutorError> {
        self.run()
    }

    /// Whether the command can be executed is found out by executing it: libcontainer's own look at the mode
    /// bits refuses what the kernel allows.
    ///
    /// It is the last thing that libcontainer calls before it waits to be started: if the engine dies from here
    /// on, so do we.
    fn validate(&self, _: &Spec) -> Result<(), ExecutorValidationError> {
        let orphaned = || ExecutorValidationError::ArgValidationError("the engine is gone".to_owned());
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(|_| orphaned())?;
        if is_orphaned(self.wiring.alive) { Err(orphaned()) } else { Ok(()) }
    }

    /// The command's environment goes to execve(2) directly.
    fn setup_envs(&self, _: std::collections::HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_search_is_that_of_execvp() {
        assert_eq!(candidates("ls", Some("/a:/b")), ["/a/ls", "/b/ls"]);
        assert_eq!(candidates("./ls", Some("/a")), ["./ls"]);
        assert_eq!(candidates("ls", Some("")), ["./ls"]);
        assert_eq!(candidates("ls", None), ["/usr/local/bin/ls", "/usr/bin/ls", "/bin/ls"]);
        assert!(candidates("", Some("/a")).is_empty());
    }

    #[test]
    fn nul_bytes_are_refused() {
        let init = Init::new(
            &["a\0b".to_owned()],
            &[],
            Wiring {
                status: 3,
                alive: 4,
                terminal: [false; 3],
                window: None,
                umask: None,
                rlimits: Rlimits::default(),
                filter: None,
                scope_abstract: false,
                stderr: None,
                drop_capabilities: false,
            },
        );
        assert_eq!(init.unwrap_err().to_string(), "the command contains a NUL byte");
    }
}
