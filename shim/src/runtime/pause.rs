//! `pause` and `resume`: freeze and thaw a container.

use super::Runtime;
use super::error::{Error, Result};
use super::record::{Container, Status};

/// Freezes every process of a container.
pub fn pause(runtime: &Runtime, id: &str) -> Result<()> {
    let container = Container::locked(&runtime.root, id)?;
    match container.status() {
        Status::Running | Status::Created => container.cgroup()?.freeze(true),
        Status::Paused => Err(Error::Status { verb: "pause", status: Status::Paused }),
        Status::Stopped => Err(Error::NotRunning),
    }
}

/// Thaws them.
pub fn resume(runtime: &Runtime, id: &str) -> Result<()> {
    let container = Container::locked(&runtime.root, id)?;
    match container.status() {
        Status::Paused => container.cgroup()?.freeze(false),
        _ => Err(Error::Usage("container not paused".to_owned())),
    }
}
