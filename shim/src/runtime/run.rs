//! `run`: `create`, `start`, and in the foreground the wait for the end and `delete`.

use std::path::Path;

use codeoid_spec::bundle::{self, annotation};
use nix::unistd::Pid;
use oci_spec::runtime::Spec;

use super::create::{CONFIG, Made, Request, make};
use super::error::Result;
use super::{Runtime, delete, foreground, start};
use crate::supervise::Signals;

/// Whether a bundle is a turn's, which is run as a turn.
pub fn is_turn(bundle: &Path) -> bool {
    // A quick look first: engines' configurations are long.
    std::fs::read(bundle.join(CONFIG)).is_ok_and(|text| {
        let name = annotation::VERSION.as_bytes();
        text.windows(name.len()).any(|part| part == name)
            && serde_json::from_slice::<Spec>(&text)
                .is_ok_and(|spec| bundle::annotation(&spec, annotation::VERSION).is_some())
    })
}

/// Runs a container; returns the exit code of its process, or 0 where it was detached.
pub fn run(runtime: &Runtime, args: &liboci_cli::Run) -> Result<u8> {
    // From the first moment on: a child that ends at once must not be missed.
    let signals = (!args.detach).then(Signals::take).transpose()?;
    let request = Request {
        id: args.container_id.clone(),
        bundle: args.bundle.clone(),
        console_socket: args.console_socket.clone(),
        pid_file: args.pid_file.clone(),
        no_pivot: args.no_pivot,
        no_new_keyring: args.no_new_keyring,
        preserve_fds: u32::try_from(args.preserve_fds).unwrap_or(0),
        foreground: !args.detach,
    };
    let Made { mut container, master } = make(runtime, request)?;
    let started = start::release(runtime, &container);
    if let Err(error) = started {
        let _ = delete::remove(runtime, &container);
        return Err(error);
    }
    // Others may kill, pause or look at it while we wait.
    container.unlock();
    let Some(signals) = signals else { return Ok(0) };
    let code = foreground::wait(Pid::from_raw(container.record.pid), &signals, master);
    if !args.keep {
        delete::remove(runtime, &container)?;
    }
    code
}
