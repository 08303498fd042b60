//! `delete`: removes what is left of a container: its processes, its cgroup, its state.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::cgroup::Cgroup;
use super::error::{Error, Result};
use super::record::{self, Container, Record, Status};
use super::{Runtime, hooks};
use crate::sys::process;

/// How long a killed process may take to go.
const PATIENCE: Duration = Duration::from_secs(10);

/// Deletes a container.
pub fn delete(runtime: &Runtime, args: &liboci_cli::Delete) -> Result<()> {
    let id = &args.container_id;
    let container = match Container::locked(&runtime.root, id) {
        Ok(container) => container,
        Err(Error::NotExist) => {
            // What a create left that was killed half way.
            leftovers(&runtime.root.join(id))?;
            return if args.force { Ok(()) } else { Err(Error::NotExist) };
        }
        Err(error) => return Err(error),
    };
    match container.status() {
        Status::Stopped | Status::Created => {}
        status if !args.force => return Err(Error::NotStopped { id: id.clone(), status }),
        Status::Running | Status::Paused => {}
    }
    remove(runtime, &container)
}

/// Ends what lives and removes the rest.
pub fn remove(runtime: &Runtime, container: &Container) -> Result<()> {
    let cgroup = container.cgroup();
    if let Some(handle) = container.process() {
        process::pidfd_send_number(handle.as_fd(), libc::SIGKILL).map_err(Error::errno("kill"))?;
        if let Ok(cgroup) = &cgroup
            && cgroup.is_frozen()
        {
            cgroup.freeze(false)?;
        }
        let limit = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX);
        let mut ended = [PollFd::new(handle.as_fd(), PollFlags::POLLIN)];
        if poll(&mut ended, limit).map_err(Error::errno("wait for the process"))? == 0 {
            return Err(Error::Usage("container init still running".to_owned()));
        }
    }
    if let Ok(cgroup) = &cgroup {
        // With a pid namespace they are dying already; without one they would live on.
        cgroup.kill_all()?;
        cgroup.remove()?;
    }
    let hooks = container.record.hooks.as_ref().and_then(|hooks| hooks.poststop().as_ref());
    let state = container.state(Status::Stopped, None).to_string();
    hooks::run_all(hooks, state.as_bytes(), "poststop", &runtime.log);
    fs::remove_dir_all(&container.dir).map_err(Error::io(format!("remove {}", container.dir.display())))
}

/// Clears up after a `create` that never came to an end: it has written down which cgroup it was about to use.
fn leftovers(dir: &Path) -> Result<()> {
    let pending = dir.join("pending.json");
    let text = match fs::read(&pending) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
        Err(error) => return Err(Error::io(format!("read {}", pending.display()))(error)),
    };
    // Whoever still writes holds the lock.
    let _lock = record::lock(dir)?;
    if dir.join("state.json").exists() {
        return Ok(());
    }
    let record: Record =
        serde_json::from_slice(&text).map_err(|source| Error::State { path: pending, source })?;
    let cgroup = Cgroup::of_container(&record)?;
    let begun = Instant::now();
    cgroup.kill_all()?;
    while cgroup.remove().is_err() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    fs::remove_dir_all(dir).map_err(Error::io(format!("remove {}", dir.display())))
}
