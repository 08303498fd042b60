//! The turn, from what was asked to what is reported: policy, plan, bundle, executor, check. Read from top to
//! bottom; every decision is made here or above, none below.

use std::path::Path;

use codeoid_spec::bundle;
use codeoid_spec::host::HostTree;
use codeoid_spec::id::TurnId;
use codeoid_spec::plan;
use codeoid_spec::policy::Policy;

use crate::diagnostic::{Doing, Failure};
use crate::executor::libcontainer;
use crate::supervise::Signals;
use crate::{layers, probe};

/// Runs a turn and returns the exit code.
pub fn run(policy: &Policy, command: Vec<String>, runtime: Option<&Path>) -> Result<u8, Failure> {
    let signals = Signals::take()?;
    let host = probe::host(runtime)?;
    let workspace = plan::workspace(policy, &host, &HostTree).map_err(refused)?;
    let turn = TurnId::now();
    let request =
        plan::Request { turn: turn.clone(), command, workspace, guard: None, config_file: None };
    let plan = plan::resolve(policy, &host, &HostTree, request, &[]).map_err(refused)?;
    let dir = host.state.turn(&turn);
    layers::private_dir(&host.state.turns()).doing("make the state directory")?;
    layers::private_dir(&dir).doing("make the turn's directory")?;
    let layout = layers::make(&plan, &host, None)?;
    let spec = bundle::config(&plan, &layout).doing("write the bundle")?;
    spec.save(dir.join("config.json")).doing("write the bundle")?;
    let stage = dir.join("stage");
    layers::private_dir(&stage).doing("make the turn's directory")?;
    let mut running = libcontainer::start(&dir, &spec, stage, None)?;
    running.wait_started()?;
    let timeout = plan.limits.timeout.as_ref().map(|limit| limit.value);
    let ended = running.wait(&signals, plan.terminal, timeout, &mut [])?;
    std::fs::remove_dir_all(&dir).doing("clean up")?;
    if let Some(errno) = ended.exec_error {
        return Err(not_executed(&plan.command[0], errno));
    }
    Ok(u8::try_from(ended.exit.shell_code()).unwrap_or(255))
}

fn refused(error: plan::Error) -> Failure {
    let failure = Failure::new("plan the turn", error.to_string());
    match error.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn not_executed(command: &str, errno: i32) -> Failure {
    let errno = nix::errno::Errno::from_raw(errno);
    let what = format!("run {command:?}");
    match errno {
        nix::errno::Errno::ENOENT if command.contains('/') => {
            Failure::new(what, "no such file or directory").code(127)
        }
        nix::errno::Errno::ENOENT => Failure::new(what, "executable file not found in $PATH").code(127),
        other => Failure::new(what, other.desc().to_lowercase()).code(126),
    }
}
