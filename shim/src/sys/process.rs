//! Processes: fork(2) of a single-threaded program, pidfds, namespaces, descriptors.

use std::ffi::{CStr, c_char};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::{ForkResult, Pid};

use super::{Context, Result};

/// Whether this process has exactly one thread. fork(2) copies only the calling thread: a lock that another
/// one holds stays locked in the child for ever.
pub fn is_single_threaded() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1)
}

/// fork(2). Refused (EBUSY) when another thread exists.
pub fn fork() -> Result<ForkResult> {
    if !is_single_threaded() {
        return Err(super::Error::new("fork", "a process with several threads", Errno::EBUSY));
    }
    // SAFETY: this is the only thread, so no lock (the allocator's among them) can be left held in the child.
    unsafe { nix::unistd::fork() }.on("fork", "self")
}

/// fork(2) without the look at /proc, for the init process: it was cloned from a single-threaded process,
/// has started no thread, and may not be able to read /proc any more.
pub fn fork_in_init() -> nix::Result<ForkResult> {
    // SAFETY: the caller is the init process of the sandbox, which has only one thread (see above).
    unsafe { nix::unistd::fork() }
}

/// Overwrites this process's command line as /proc/PID/cmdline shows it to everybody. Nothing happens where the
/// kernel does not say where it lies (proc_pid_stat(5), `arg_start` and `arg_end`).
pub fn forget_command_line() {
    let Ok(text) = std::fs::read_to_string("/proc/self/stat") else { return };
    // The second field is the name in parentheses, and may hold anything.
    let Some(rest) = text.rfind(')').map(|end| &text[end + 1..]) else { return };
    let number = |field: usize| rest.split_ascii_whitespace().nth(field - 3)?.parse::<usize>().ok();
    let (Some(start), Some(end)) = (number(48), number(49)) else { return };
    if start == 0 || end <= start || end - start > 16 << 20 {
        return;
    }
    // SAFETY: the kernel placed the arguments there at execve(2), writable, and they are never moved. This is the
    // only thread, and nobody reads them any more: the standard library hands out copies.
    unsafe { std::ptr::write_bytes(start as *mut u8, 0, end - start) };
}

/// Takes the pages of this program's code out of its memory; what is needed again comes back from the page cache. After
/// the start a supervisor runs through a few functions only, and stands beside every turn.
pub fn give_back_code() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    // proc_pid_maps(5): start-end perms offset dev inode path.
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some("r-xp"), Some(path)) = (fields.next(), fields.next(), fields.nth(3)) else {
            continue;
        };
        let bounds = range.split_once('-').and_then(|(from, to)| {
            Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
        });
        if let (Some((from, to)), true) = (bounds, path.starts_with('/')) {
            // SAFETY: a private mapping of a file that is executable and not writable has no pages of its own (there are
            // no text relocations in this program); the kernel maps the file's again at the next access (madvise(2)).
            unsafe { libc::madvise(from as *mut libc::c_void, to - from, libc::MADV_DONTNEED) };
        }
    }
}

/// pidfd_open(2): a handle on a child that no reuse of its pid can redirect.
pub fn pidfd_open(pid: Pid) -> Result<OwnedFd> {
    // SAFETY: plain integers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    let fd = Errno::result(fd).on("pidfd_open", pid)?;
    // SAFETY: the kernel has just returned this descriptor to us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// pidfd_send_signal(2).
pub fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: Signal) -> Result<()> {
    // SAFETY: a null siginfo means "as kill(2) would"; the descriptor is borrowed for the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal as libc::c_int,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    Errno::result(done).map(drop).on("pidfd_send_signal", signal.as_str())
}

/// setns(2): joins a namespace.
pub fn setns(namespace: BorrowedFd<'_>, kind: nix::sched::CloneFlags) -> Result<()> {
    nix::sched::setns(namespace, kind).on("setns", format_args!("{kind:?}"))
}

/// close_range(2) from `first` up. Allocates nothing: the init process calls it.
pub fn close_from(first: RawFd) -> nix::Result<()> {
    // SAFETY: plain integers. Whoever calls this owns no descriptor at or above `first` any more.
    Errno::result(unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) }).map(drop)
}

/// dup3(2) onto a known number, close-on-exec, replacing what had it. For the init process, which owns its
/// descriptor table and never returns to code that believes to own one of the numbers.
pub fn duplicate_to(from: RawFd, to: RawFd) -> nix::Result<()> {
    // SAFETY: plain integers; see above for who may call this.
    Errno::result(unsafe { libc::dup3(from, to, libc::O_CLOEXEC) }).map(drop)
}

/// Closes every descriptor above the standard streams but these (close_range(2)). For a forked child that
/// never returns: its copies of its parent's locks and sockets must not outlive the parent.
pub fn close_all_but(keep: &[RawFd]) -> nix::Result<()> {
    let mut keep: Vec<RawFd> = keep.iter().copied().filter(|fd| *fd > 2).collect();
    keep.sort_unstable();
    let mut first = 3;
    for fd in keep {
        if fd > first {
            // SAFETY: plain integers; the caller never uses what it has not named.
            Errno::result(unsafe { libc::syscall(libc::SYS_close_range, first, fd - 1, 0) })?;
        }
        first = fd + 1;
    }
    close_from(first)
}

/// fcntl(2) F_DUPFD_CLOEXEC: a copy with a number of at least `lowest`, which stays open until exec or exit.
pub fn duplicate_above(fd: RawFd, lowest: RawFd) -> nix::Result<RawFd> {
    // SAFETY: plain integers.
    Errno::result(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest) })
}

/// Removes variables from this process's environment.
pub fn remove_variables(names: &[&str]) -> Result<()> {
    if !is_single_threaded() {
        return Err(super::Error::new("unsetenv", "a process with several threads", Errno::EBUSY));
    }
    for name in names {
        // SAFETY: this is the only thread, so nobody reads the environment meanwhile.
        unsafe { std::env::remove_var(name) };
    }
    Ok(())
}

/// Takes ownership of a descriptor that somebody has just handed to us by number (SCM_RIGHTS).
pub fn received(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: recvmsg(2) has installed this descriptor for us, and nobody else knows its number.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A borrowed view of a descriptor number.
pub fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: a stale number gives EBADF from the kernel, nothing worse; -1 is never passed.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// execve(2) with vectors prepared beforehand. Allocates nothing; returns only on failure.
pub fn execve(path: &CStr, argv: &[*const c_char], envp: &[*const c_char]) -> Errno {
    debug_assert!(argv.last().is_some_and(|last| last.is_null()));
    debug_assert!(envp.last().is_some_and(|last| last.is_null()));
    // SAFETY: all strings are NUL-terminated and alive, both vectors end with a null pointer.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    Errno::last()
}

/// Sets every signal that can be set back to its default action (they survive execve(2) when ignored).
pub fn reset_signal_actions() {
    for number in 1..=libc::SIGRTMAX() {
        // SAFETY: SIG_DFL is always valid; SIGKILL, SIGSTOP and the two that glibc keeps just fail.
        unsafe { libc::signal(number, libc::SIG_DFL) };
    }
}

/// _exit(2): ends this process without running destructors or exit handlers that belong to its parent.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

/// Lets a descriptor survive execve(2).
pub fn keep_on_exec(fd: RawFd) -> nix::Result<()> {
    // SAFETY: plain integers.
    Errno::result(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }).map(drop)
}

/// Loads a compiled system call filter (seccomp(2)); needs no_new_privs.
pub fn load_filter(program: &[u8]) -> nix::Result<()> {
    load_filter_with(program, 0)
}

/// The same, with `SECCOMP_FILTER_FLAG_*`; needs no_new_privs or CAP_SYS_ADMIN.
pub fn load_filter_with(program: &[u8], flags: u64) -> nix::Result<()> {
    let instructions: Vec<libc::sock_filter> = program
        .chunks_exact(8)
        .map(|bytes| libc::sock_filter {
            code: u16::from_ne_bytes([bytes[0], bytes[1]]),
            jt: bytes[2],
            jf: bytes[3],
            k: u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        })
        .collect();
    let length = u16::try_from(instructions.len()).map_err(|_| Errno::EINVAL)?;
    let filter = libc::sock_fprog { len: length, filter: instructions.as_ptr().cast_mut() };
    // SAFETY: the kernel copies `len` instructions from a live vector of that length.
    let done =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter) };
    Errno::result(done).map(drop)
}

/// The user namespace that owns another namespace (ioctl_ns(2), NS_GET_USERNS, Linux 4.9).
pub fn owning_user_namespace(namespace: BorrowedFd<'_>) -> Result<OwnedFd> {
    const NS_GET_USERNS: libc::c_ulong = 0xb701;
    // SAFETY: takes no argument and returns a new descriptor.
    let fd = Errno::result(unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS as _) })
        .on("ioctl(NS_GET_USERNS)", "namespace")?;
    // SAFETY: the kernel has just returned this descriptor to us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A timer that interrupts system calls that block (EINTR), again and again until it is dropped (setitimer(2)). For a
/// call that cannot be waited for together with signals.
#[derive(Debug)]
pub struct Interruptions(());

impl Interruptions {
    /// Interrupts once in such a time.
    pub fn every(period: std::time::Duration) -> Result<Self> {
        use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, sigaction};
        extern "C" fn nothing(_: libc::c_int) {}
        // No SA_RESTART: the call is to end.
        let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler does nothing.
        unsafe { sigaction(Signal::SIGALRM, &action) }.on("sigaction", "SIGALRM")?;
        let this = Self(());
        let mut alarm = SigSet::empty();
        alarm.add(Signal::SIGALRM);
        alarm.thread_unblock().on("sigprocmask", "SIGALRM")?;
        set_timer(period)?;
        Ok(this)
    }
}

impl Drop for Interruptions {
    fn drop(&mut self) {
        // The timer first: the signal's own action ends the process.
        let _ = set_timer(std::time::Duration::ZERO);
        // SAFETY: SIG_DFL is always valid.
        unsafe { libc::signal(libc::SIGALRM, libc::SIG_DFL) };
    }
}

fn set_timer(period: std::time::Duration) -> Result<()> {
    let time = libc::timeval {
        tv_sec: libc::time_t::try_from(period.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_usec: libc::suseconds_t::from(period.subsec_micros() as i32),
    };
    let timer = libc::itimerval { it_interval: time, it_value: time };
    // SAFETY: the kernel reads a live structure.
    let done = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    Errno::result(done).map(drop).on("setitimer", "ITIMER_REAL")
}

/// Joins a new session keyring of this name (keyctl(2), KEYCTL_JOIN_SESSION_KEYRING): that of the caller holds the
/// caller's secrets. A kernel without keyrings has nothing to hide.
pub fn join_session_keyring(name: &CStr) -> Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: the name is NUL-terminated and alive.
    let done = unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, name.as_ptr()) };
    match Errno::result(done) {
        Ok(_) | Err(Errno::ENOSYS) => Ok(()),
        Err(errno) => Err(super::Error::new("keyctl", "KEYCTL_JOIN_SESSION_KEYRING", errno)),
    }
}

/// prlimit(2): sets a limit of a process, 0 being this one.
pub fn set_limit(pid: Pid, resource: nix::sys::resource::Resource, soft: u64, hard: u64) -> nix::Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the kernel reads one `rlimit` from a live value.
    let done = unsafe { libc::prlimit(pid.as_raw(), resource as _, &raw const limit, std::ptr::null_mut()) };
    Errno::result(done).map(drop)
}

/// ioprio_set(2) for this process: class and level.
pub fn set_io_priority(class: u8, level: u8) -> nix::Result<()> {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    let value = (libc::c_int::from(class) << 13) | libc::c_int::from(level);
    // SAFETY: plain integers.
    Errno::result(unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, value) }).map(drop)
}

/// The attributes of sched_setattr(2), as of Linux 3.14.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct SchedulerAttributes {
    /// The structure's size, 48 bytes.
    pub size: u32,
    /// `SCHED_*`
    pub policy: u32,
    /// `SCHED_FLAG_*`
    pub flags: u64,
    /// Of the fair policies.
    pub nice: i32,
    /// Of the real-time policies.
    pub priority: u32,
    /// Of the deadline policy, in nanoseconds, as the two that follow.
    pub runtime: u64,
    /// See above.
    pub deadline: u64,
    /// See above.
    pub period: u64,
}

/// sched_setattr(2) for this process.
pub fn set_scheduler(mut attributes: SchedulerAttributes) -> nix::Result<()> {
    attributes.size = u32::try_from(size_of::<SchedulerAttributes>()).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the kernel reads as many bytes as `size` says, from a live value.
    Errno::result(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) }).map(drop)
}

/// Sends a signal by its number, which may be a real-time signal or 0 (pidfd_send_signal(2)).
pub fn pidfd_send_number(pidfd: BorrowedFd<'_>, signal: i32) -> nix::Result<()> {
    // SAFETY: a null siginfo means "as kill(2) would"; the descriptor is borrowed for the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    Errno::result(done).map(drop)
}

/// kill(2) by the signal's number.
pub fn kill_number(pid: Pid, signal: i32) -> nix::Result<()> {
    // SAFETY: plain integers.
    Errno::result(unsafe { libc::kill(pid.as_raw(), signal) }).map(drop)
}

/// Lets no descriptor from `first` up survive execve(2) (close_range(2), CLOSE_RANGE_CLOEXEC, Linux 5.11). They stay
/// open until then.
pub fn close_on_exec_from(first: u32) -> nix::Result<()> {
    // SAFETY: plain integers; no descriptor is closed.
    let done =
        unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    Errno::result(done).map(drop)
}

/// execveat(2) of an open file, with this process's own arguments and this environment variable added. Returns only
/// on failure.
pub fn execute_again(program: BorrowedFd<'_>, variable: &CStr) -> Errno {
    use std::os::unix::ffi::OsStrExt;
    let own = |text: &std::ffi::OsStr| std::ffi::CString::new(text.as_bytes()).unwrap_or_default();
    let args: Vec<_> = std::env::args_os().map(|word| own(&word)).collect();
    let mut env: Vec<_> = std::env::vars_os()
        .map(|(name, value)| {
            let mut entry = name;
            entry.push("=");
            entry.push(value);
            own(&entry)
        })
        .collect();
    env.push(variable.to_owned());
    let pointers = |list: &[std::ffi::CString]| -> Vec<*const c_char> {
        list.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, envp) = (pointers(&args), pointers(&env));
    // SAFETY: all strings are NUL-terminated and alive, both vectors end with a null pointer.
    unsafe {
        libc::execveat(
            program.as_raw_fd(),
            c"".as_ptr(),
            argv.as_ptr().cast(),
            envp.as_ptr().cast(),
            libc::AT_EMPTY_PATH,
        )
    };
    Errno::last()
}
