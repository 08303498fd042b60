//! `codeoid-shim`: runs one turn of a coding agent inside a sandbox that an OCI bundle describes.

mod appearing;
mod audit;
mod cgroup;
mod cli;
mod diagnostic;
mod executor;
mod hidden;
mod layers;
mod probe;
mod proxy;
mod remask;
mod report;
mod runtime;
mod seccomp;
mod session;
mod supervise;
mod sys;
mod terminal;
mod turn;
mod watch;
mod widening;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let word = args.nth(1);
    if word.as_ref().is_some_and(|word| word == turn::live::REEXEC) {
        return turn::live::import(args);
    }
    if word.is_some_and(|word| word == executor::init::REEXEC) {
        let fd = args.next().and_then(|fd| fd.to_str()?.parse().ok());
        let init = fd.and_then(executor::init::Init::from_descriptor);
        match init {
            Some(init) => init.run(),
            None => return ExitCode::from(diagnostic::REFUSED),
        }
    }
    let mut args = std::env::args_os();
    if args.nth(1).is_some_and(|word| word == runtime::hooks::REEXEC) {
        return runtime::hooks::become_hook(args);
    }
    let args: Vec<_> = std::env::args_os().collect();
    if let Err(error) = runtime::cli::seal(&args) {
        return cli::report(&diagnostic::Failure::from_error("start", &error));
    }
    runtime::cli::remember_listen_fds();
    // libcontainer would hand on descriptors that a service manager meant for its own child (sd_listen_fds(3)).
    if let Err(error) =
        sys::process::remove_variables(&["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "_CODEOID_SEALED"])
    {
        return cli::report(&diagnostic::Failure::from_error("prepare the environment", &error));
    }
    cli::main(args)
}
