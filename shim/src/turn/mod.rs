//! The turn, from what was asked to what is reported: policy, plan, bundle, executor, check. Read from top to
//! bottom; every decision is made here or above, none below.

use std::path::Path;
use std::time::{Duration, Instant};

use codeoid_spec::bundle;
use codeoid_spec::plan::Plan;
use codeoid_spec::policy::Policy;
use codeoid_spec::report::{Timing, TurnReport};

use crate::diagnostic::{Doing, Failure};
use crate::executor::{self, coverage};
use crate::report::Target;
use crate::session::{Locked, Record, Session};
use crate::supervise::Signals;
use crate::{layers, widening};

mod execute;
mod oci;
mod planned;
mod stop;
mod written;

pub use oci::run_bundle;
pub use planned::Planned;

use execute::Execution;
pub use written::write_bundle;

/// Runs a turn and returns the exit code.
pub fn run(policy: &Policy, command: Vec<String>, runtime: Option<&Path>) -> Result<u8, Failure> {
    let started = Instant::now();
    let signals = Signals::take()?;
    let target = policy.report.as_ref().map(|report| Target::open(&report.value)).transpose()?;
    let Planned { host, plan } = Planned::resolve(policy, command, runtime)?;
    let turn = plan.turn.clone();
    let choice = executor::choose(policy.executor.value)?;
    let coverage = coverage::linux(&plan, policy);
    let weaker = coverage::judge(&coverage, policy, choice.name())?;
    let widened = widening::judge(policy, &plan)?;
    let resolved = started.elapsed();

    // Plan -> bundle.
    let dir = host.state.turn(&turn);
    let stage = dir.join("stage");
    let state = host.state.path();
    layers::private_dir(state).doing(format!("use the state directory {}", state.display()))?;
    layers::private_dir(&host.state.turns()).doing("make the state directory")?;
    layers::private_dir(&dir).doing("make the turn's directory")?;
    layers::private_dir(&stage).doing("make the turn's directory")?;
    let layout = layers::make(&plan, &host, None)?;
    let spec = bundle::config(&plan, &layout).doing("write the bundle")?;
    spec.save(dir.join("config.json")).doing("write the bundle")?;
    let built = started.elapsed();

    // Bundle -> executor.
    let session = Session::new(&host.state, &plan.session);
    let execution = Execution {
        host: &host,
        dir: &dir,
        spec: &spec,
        stage,
        choice: &choice,
        signals: &signals,
        quiet: policy.quiet,
    };
    let mut warnings = plan.warnings.clone();
    let executed = execution.run(&plan.session, &turn, |lock, shared| {
        let home = plan.covers.iter().find(|cover| cover.upper).filter(|_| !shared);
        if let Some(cover) = home {
            let taken = layers::take_out_hidden(session.dir(), cover).doing("update the home layer")?;
            warnings.extend(taken.iter().map(|path| {
                format!("{} is hidden now; what the session had made of it is kept in its state", path.display())
            }));
        }
        remember(lock, &session, &plan)
    });
    let ran = started.elapsed();

    // Executor -> check.
    std::fs::remove_dir_all(&dir).doing("clean up")?;
    let executed = executed?;
    warnings.extend(weaker.iter().chain(&widened).chain(&executed.warnings).cloned());
    let finished = started.elapsed();
    if let Some(target) = target {
        let ms = |from: Duration, to: Duration| (to - from).as_secs_f64() * 1000.0;
        target.write(&TurnReport {
            version: 1,
            session: plan.session.clone(),
            turn,
            executor: choice.name().to_owned(),
            sandbox: "sandboxed".to_owned(),
            limits: weaker,
            command: plan.command.clone(),
            exit: executed.exit,
            coverage,
            findings: Vec::new(),
            promoted: Vec::new(),
            containers_removed: 0,
            warnings,
            timing_ms: Timing {
                resolve: ms(Duration::ZERO, resolved),
                build: ms(resolved, built),
                run: ms(built, ran),
                finish: ms(ran, finished),
            },
        })?;
    }
    executed.code(&plan.command[0])
}

fn remember(lock: &Locked<'_>, session: &Session, plan: &Plan) -> Result<(), Failure> {
    let mut record = session.record()?.unwrap_or_else(|| Record::new(plan.session.clone()));
    record.workspace = Some(plan.workspace.clone());
    if let Some(guard) = &plan.guard {
        record.repository = Some(guard.repository.common_dir.clone());
        record.worktree_folders.clone_from(&guard.repository.session_folders);
    }
    record.turns += 1;
    lock.write(&record)
}
