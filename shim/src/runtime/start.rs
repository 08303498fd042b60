//! `start`: lets a created container's process go on.

use std::fs;

use ::libcontainer::notify_socket::NotifySocket;

use super::Runtime;
use super::error::{Error, Result};
use super::hooks;
use super::record::{Container, Status};

/// Starts a container.
pub fn start(runtime: &Runtime, id: &str) -> Result<()> {
    let container = Container::locked(&runtime.root, id)?;
    match container.status() {
        Status::Created => release(runtime, &container),
        Status::Stopped => Err(Error::CannotStart("stopped")),
        Status::Paused => Err(Error::CannotStart("been paused")),
        Status::Running => Err(Error::Usage("cannot start an already running container".to_owned())),
    }
}

/// Tells the process that it may go on, and runs the hooks of that moment.
pub fn release(runtime: &Runtime, container: &Container) -> Result<()> {
    let socket = container.start_socket();
    NotifySocket::new(&socket).notify_container_start().map_err(|_| Error::CannotStart("stopped"))?;
    // From here on it is not `created` any more.
    fs::remove_file(&socket).map_err(Error::io(format!("remove {}", socket.display())))?;
    let hooks = container.record.hooks.as_ref().and_then(|hooks| hooks.poststart().as_ref());
    let state = container.state(Status::Running, Some(container.record.pid)).to_string();
    hooks::run_all(hooks, state.as_bytes(), "poststart", &runtime.log);
    Ok(())
}
