//! `codeoid-shim`: runs one turn of a coding agent inside a sandbox that an OCI bundle describes.

mod cli;
mod diagnostic;
mod executor;
mod layers;
mod probe;
mod supervise;
mod sys;
mod terminal;
mod turn;

use std::process::ExitCode;

fn main() -> ExitCode {
    // libcontainer would hand on descriptors that a service manager meant for its own child (sd_listen_fds(3)).
    if let Err(error) = sys::process::remove_variables(&["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"]) {
        return cli::report(&diagnostic::Failure::from_error("prepare the environment", &error));
    }
    cli::main(std::env::args_os())
}
