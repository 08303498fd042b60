//! `kill`: sends a signal to a container's first process, or to all of them.

use std::os::fd::AsFd;
use std::str::FromStr;

use clap::Args;
use nix::errno::Errno;
use nix::sys::signal::Signal;

use super::Runtime;
use super::error::{Error, Result};
use super::record::{Container, Status};
use crate::sys::process;

/// As runc has it; liboci-cli knows no default signal.
#[derive(Debug, Args)]
pub struct Kill {
    /// Name of the container
    #[arg(value_name = "CONTAINER_ID")]
    pub id: String,
    /// A name, with or without SIG, or a number
    #[arg(default_value = "SIGTERM")]
    pub signal: String,
    /// Every process of the container, not only the first
    #[arg(long, short)]
    pub all: bool,
    /// Accepted and unused: the process is always addressed by a handle
    #[arg(long, hide = true)]
    pub pid: Option<i32>,
}

/// Sends it.
pub fn kill(runtime: &Runtime, args: &Kill) -> Result<()> {
    let container = Container::load(&runtime.root, &args.id)?;
    let signal = parse(&args.signal)?;
    if args.all {
        return kill_all(&container, signal);
    }
    let Some(process) = container.process() else { return Err(Error::NotRunning) };
    let sent = process::pidfd_send_number(process.as_fd(), signal);
    if signal == libc::SIGKILL {
        // A frozen process dies only once it is thawed, with cgroup v1.
        if container.cgroup().is_ok_and(|cgroup| cgroup.is_frozen()) {
            container.cgroup()?.freeze(false)?;
        }
        // Without a pid namespace the others would live on.
        if !container.record.own_pids {
            kill_all(&container, signal)?;
        }
    }
    match sent {
        Ok(()) => Ok(()),
        Err(Errno::ESRCH) => Err(Error::NotRunning),
        Err(errno) => Err(Error::errno("kill")(errno)),
    }
}

fn kill_all(container: &Container, signal: i32) -> Result<()> {
    let cgroup = container.cgroup()?;
    if signal == libc::SIGKILL {
        return cgroup.kill_all();
    }
    // Frozen meanwhile: what forks cannot slip through between two looks.
    let froze = container.status() == Status::Running && cgroup.freeze(true).is_ok();
    for pid in cgroup.processes() {
        // It may have ended.
        let _ = process::kill_number(pid, signal);
    }
    if froze { cgroup.freeze(false) } else { Ok(()) }
}

/// A signal by its number or its name.
pub fn parse(text: &str) -> Result<i32> {
    if let Ok(number) = text.parse::<i32>() {
        return match number {
            0..=64 => Ok(number),
            _ => Err(Error::Usage(format!("invalid signal: {text:?}"))),
        };
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Some(offset) = name.strip_prefix("RTMIN") {
        let number = if offset.is_empty() { Some(0) } else { offset.parse::<i32>().ok() };
        if let Some(number) = number.map(|n| libc::SIGRTMIN() + n).filter(|n| *n <= libc::SIGRTMAX()) {
            return Ok(number);
        }
    }
    Signal::from_str(&format!("SIG{name}"))
        .map(|signal| signal as i32)
        .map_err(|_| Error::Usage(format!("unknown signal {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in [("9", 9), ("KILL", 9), ("SIGKILL", 9), ("sigterm", 15), ("Hup", 1), ("0", 0)] {
            assert_eq!(parse(text).unwrap(), number, "{text}");
        }
        assert_eq!(parse("RTMIN+1").unwrap(), libc::SIGRTMIN() + 1);
        for bad in ["", "SIG", "FOO", "-1", "65", "RTMIN+99"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
