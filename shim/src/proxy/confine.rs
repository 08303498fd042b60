//! What the process that serves gives up before it reads the first byte of a turn: the supervisor's descriptors and
//! streams, capabilities, the right to write, make or execute a file. It ends with the supervisor.

use std::os::fd::RawFd;

use landlock::{ABI, AccessFs, Ruleset, RulesetAttr, Scope};
use nix::fcntl::{OFlag, open};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::{Pid, chdir, dup2_stderr, dup2_stdin, dup2_stdout, getppid};

use crate::sys::{self, Context, process};

/// Confines this process, which was forked from `supervisor`, to these descriptors.
pub fn confine(keep: &[RawFd], supervisor: Pid) -> sys::Result<()> {
    process::close_all_but(keep).on("close_range", "the supervisor's descriptors")?;
    let null = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()).on("open", "/dev/null")?;
    // The caller's streams must end when the turn's command closes them.
    dup2_stdin(&null)
        .and_then(|()| dup2_stdout(&null))
        .and_then(|()| dup2_stderr(&null))
        .on("dup2", "null")?;
    // The caller's directory is not ours to keep.
    chdir("/").on("chdir", "/")?;
    let _ = prctl::set_name(c"codeoid-proxy");
    prctl::set_dumpable(false).on("prctl", "PR_SET_DUMPABLE")?;
    prctl::set_no_new_privs().on("prctl", "PR_SET_NO_NEW_PRIVS")?;
    for set in [caps::CapSet::Effective, caps::CapSet::Permitted, caps::CapSet::Inheritable] {
        caps::clear(None, set).map_err(|_| sys::Error::new("capset", "self", nix::errno::Errno::EPERM))?;
    }
    // Beyond what is promised: a kernel without Landlock has one wall less here.
    let _ = close_files();
    // Two descriptors for each connection; what the caller's soft limit allows is made for select(2).
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).on("getrlimit", "RLIMIT_NOFILE")?;
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(4096), hard).on("setrlimit", "RLIMIT_NOFILE")?;
    // Last: a change of credentials would clear it (prctl(2)).
    prctl::set_pdeathsig(Signal::SIGKILL).on("prctl", "PR_SET_PDEATHSIG")?;
    if getppid() != supervisor {
        process::exit_now(0);
    }
    Ok(())
}

/// Files can be read from now on (the resolver's), and nothing else: not written, made or executed.
fn close_files() -> Result<(), landlock::RulesetError> {
    let but_read = AccessFs::from_write(ABI::V5) | AccessFs::Execute;
    Ruleset::default()
        .handle_access(but_read)?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()?
        .restrict_self()
        .map(drop)
}
