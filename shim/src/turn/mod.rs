//! The turn, from what was asked to what is reported: policy, plan, bundle, executor, check. Read from top to
//! bottom; every decision is made here or above, none below.

use std::path::{Path, PathBuf};
use std::time::Instant;

use codeoid_spec::bundle;
use codeoid_spec::plan::Plan;
use codeoid_spec::policy::Policy;
use codeoid_spec::report::{Timing, TurnReport};

use crate::cgroup::{Cgroups, Hierarchies};
use crate::diagnostic::{Doing, Failure};
use crate::executor::{self, coverage};
use crate::report::Target;
use crate::session::{self, Neighbours, Record, Session};
use crate::supervise::Signals;
use crate::watch::{Alarm, Watch};
use crate::{layers, seccomp, widening};

mod planned;
mod written;

pub use planned::Planned;
pub use written::write_bundle;

/// Runs a turn and returns the exit code.
pub fn run(policy: &Policy, command: Vec<String>, runtime: Option<&Path>) -> Result<u8, Failure> {
    let started = Instant::now();
    let signals = Signals::take()?;
    let target = policy.report.as_ref().map(|report| Target::open(&report.value)).transpose()?;
    let Planned { host, plan } = Planned::resolve(policy, command, runtime)?;
    let turn = plan.turn.clone();
    let choice = executor::choose(policy)?;
    let coverage = coverage::linux(&plan, policy);
    let weaker = coverage::judge(&coverage, policy, choice.name())?;
    let widened = widening::judge(policy, &plan)?;
    let resolved = started.elapsed();

    // Plan -> bundle.
    let dir = host.state.turn(&turn);
    let stage = dir.join("stage");
    layers::private_dir(host.state.path()).doing(format!("use the state directory {}", host.state.path().display()))?;
    layers::private_dir(&host.state.turns()).doing("make the state directory")?;
    layers::private_dir(&dir).doing("make the turn's directory")?;
    layers::private_dir(&stage).doing("make the turn's directory")?;
    let session = Session::new(&host.state, &plan.session);
    let lock = session.lock()?;
    let layout = layers::make(&plan, &host, None)?;
    let spec = bundle::config(&plan, &layout).doing("write the bundle")?;
    spec.save(dir.join("config.json")).doing("write the bundle")?;
    let profile = spec.linux().as_ref().and_then(|linux| linux.seccomp().as_ref());
    let filter =
        profile.map(|profile| seccomp::program(profile, &host.runtime.join("layers"))).transpose()?;
    let cgroups = cgroups(&plan)?;
    let home = home_digest(&plan);
    let join = match lock.neighbours(&home) {
        Neighbours::None => None,
        Neighbours::Join(engine) => Some(engine),
        Neighbours::Differs => {
            return Err(Failure::new(
                format!("start a turn of session {}", plan.session),
                "another of its turns is running whose home hides something else",
            )
            .hint("wait for it, use the same rules, or use another session"));
        }
    };
    let mut warnings = plan.warnings.clone();
    if let (None, Some(cover)) = (&join, plan.covers.iter().find(|cover| cover.upper)) {
        let taken = layers::take_out_hidden(session.dir(), cover).doing("update the home layer")?;
        warnings.extend(taken.iter().map(|path| {
            format!("{} is hidden now; what the session had made of it is kept in the session's state", path.display())
        }));
    }
    remember(&lock, &session, &plan)?;
    let built = started.elapsed();

    // Bundle -> executor.
    let running = executor::Start {
        bundle: &dir,
        spec: &spec,
        stage,
        join,
        cgroups: cgroups.entrances.clone(),
        filter,
        runtime: choice.runtime(),
    }
    .run()?;
    let timeout = plan.limits.timeout.as_ref().map(|limit| limit.value);
    let joinable = |engine| {
        let registered = lock.register(&turn, engine, &home);
        drop(lock);
        registered
    };
    let quiet = policy.quiet;
    let mut watch = Watch::new(watched(&plan), absent(&plan), plan.watched.clone(), Box::new(move |alarm| warn(quiet, &sentence(alarm))));
    let ended = running.wait(joinable, &signals, plan.terminal, timeout, &mut watch);
    let ran = started.elapsed();

    // Executor -> check.
    session::unregister(&session, &turn);
    std::fs::remove_dir_all(&dir).doing("clean up")?;
    let ended = ended?;
    warnings.extend(weaker.iter().chain(&widened).cloned());
    warnings.extend(watch.alarms().map(sentence));
    if ended.timed_out {
        warnings.push("the time limit ended the command".to_owned());
    }
    if cgroups.out_of_memory() {
        warnings.push("the memory limit ended a process of the turn".to_owned());
    }
    drop(cgroups);
    let finished = started.elapsed();
    if let Some(target) = target {
        let ms = |from: std::time::Duration, to: std::time::Duration| (to - from).as_secs_f64() * 1000.0;
        target.write(&TurnReport {
            version: 1,
            session: plan.session.clone(),
            turn,
            executor: choice.name().to_owned(),
            sandbox: "sandboxed".to_owned(),
            limits: weaker,
            command: plan.command.clone(),
            exit: ended.exit,
            coverage,
            findings: Vec::new(),
            promoted: Vec::new(),
            containers_removed: 0,
            warnings,
            timing_ms: Timing {
                resolve: ms(std::time::Duration::ZERO, resolved),
                build: ms(resolved, built),
                run: ms(built, ran),
                finish: ms(ran, finished),
            },
        })?;
    }
    match ended.exec_error {
        Some(errno) => Err(not_executed(&plan.command[0], errno)),
        None => Ok(u8::try_from(ended.exit.shell_code()).unwrap_or(255)),
    }
}

/// The mount points whose loss weakens the sandbox: the workspace, git's pins.
fn watched(plan: &Plan) -> Vec<PathBuf> {
    let pins = plan.guard.iter().flat_map(|guard| guard.binds.iter().map(|bind| bind.target.clone()));
    std::iter::once(plan.workspace.clone()).chain(pins).collect()
}

fn absent(plan: &Plan) -> Vec<PathBuf> {
    plan.guard.iter().flat_map(|guard| guard.watch.iter().cloned()).collect()
}

fn sentence(alarm: &Alarm) -> String {
    match alarm {
        Alarm::Lost(path) => format!(
            "{} was replaced on the host while the turn ran; the sandbox's mount there is gone",
            path.display()
        ),
        Alarm::Masked(path) => {
            format!("{} is hidden and was made or replaced on the host; it is hidden again", path.display())
        }
        Alarm::Unmasked(path) => {
            format!("{} is hidden and was made or replaced on the host; THE TURN CAN SEE IT NOW", path.display())
        }
        Alarm::Appeared(path) => {
            format!("{} appeared while the turn ran; git follows or runs what is there", path.display())
        }
    }
}

/// Says something that cannot wait for the report.
#[expect(clippy::print_stderr, reason = "an alarm is for the person at the terminal, now")]
fn warn(quiet: bool, text: &str) {
    if !quiet {
        eprintln!("codeoid-shim: warning: {}", crate::diagnostic::one_line(text));
    }
}

fn cgroups(plan: &Plan) -> Result<Cgroups, Failure> {
    if !plan.limits.any_resource() {
        return Ok(Cgroups::default());
    }
    let hierarchies = Hierarchies::read().doing("look at the cgroups of this host")?;
    Cgroups::make(&plan.limits, &plan.turn, &hierarchies).map_err(|error| {
        Failure::new(format!("rule {}", error.rule), format!("it cannot be enforced here: {}", error.why)).hint(
            "drop the limit, or start codeoid-shim in a cgroup of yours: `systemd-run --user --scope -p Delegate=yes …`",
        )
    })
}

/// What the home layer hides, in short: turns share it only if this is the same.
fn home_digest(plan: &Plan) -> String {
    let Some(cover) = plan.covers.iter().find(|cover| cover.upper) else { return String::new() };
    let hidden: Vec<&PathBuf> =
        plan.hidden.iter().map(|hidden| &hidden.value).filter(|path| path.starts_with(&cover.root)).collect();
    let text = format!("{} {hidden:?}", cover.root.display());
    codeoid_spec::id::hex8(&[text.as_bytes()]) + &codeoid_spec::id::hex8(&[b"home", text.as_bytes()])
}

fn remember(lock: &session::Locked<'_>, session: &Session, plan: &Plan) -> Result<(), Failure> {
    let mut record = session.record()?.unwrap_or_else(|| Record::new(plan.session.clone()));
    record.workspace = Some(plan.workspace.clone());
    if let Some(guard) = &plan.guard {
        record.repository = Some(guard.repository.common_dir.clone());
        record.worktree_folders.clone_from(&guard.repository.session_folders);
    }
    record.turns += 1;
    lock.write(&record)
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
