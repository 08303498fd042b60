//! The turn, from what was asked to what is reported: policy, plan, bundle, executor, check. Read from top to
//! bottom; every decision is made here or above, none below.

mod execute;
pub mod live;
mod oci;
mod planned;
mod sessions;
pub mod stop;
mod written;

use std::cell::{OnceCell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use codeoid_hooks::finish::{self, Claims, Outcome};
use codeoid_hooks::folder;
use codeoid_hooks::journal::{self, Journal};
use codeoid_hooks::shared::baseline::{self, Baseline};
use codeoid_hooks::shared::check::Depth;
use codeoid_hooks::{shadow, shared};
use codeoid_spec::audit::Event;
use codeoid_spec::bundle;
use codeoid_spec::git::Protection;
use codeoid_spec::host::Host;
use codeoid_spec::id::{SessionId, TurnId};
use codeoid_spec::plan::Plan;
use codeoid_spec::policy::Policy;
use codeoid_spec::report::{Action, Finding, Timing, TurnReport};
use codeoid_spec::state::StateDir;
use oci_spec::runtime::Spec;

use crate::cgroup::{self, Hierarchies};
use crate::diagnostic::{Doing, Failure, one_line};
use crate::executor::{self, Choice, coverage};
use crate::proxy::Refusal;
use crate::report::Target;
use crate::session::{Locked, Session};
use crate::supervise::Signals;
use crate::{audit, layers, widening};

pub use oci::run_bundle;
pub use planned::Planned;
pub use sessions::{check_repository, close_session, forked_folders, open_session};
pub use written::write_bundle;

use execute::{Executed, Execution};
use live::Importer;

/// Runs a turn and returns the exit code.
pub fn run(policy: &Policy, command: Vec<String>, runtime: Option<&Path>) -> Result<u8, Failure> {
    let started = Instant::now();
    // First: what we open ourselves must not be taken for the caller's.
    let target = policy.report.as_ref().map(|report| Target::open(&report.value)).transpose()?;
    let signals = Signals::take()?;

    // Policy -> plan. Nothing is made yet.
    let planned = Planned::resolve(policy, command, runtime)?;
    let choice = executor::choose(policy.executor.value)?;
    let coverage = coverage::linux(&planned.plan, policy, choice.name());
    let weaker = coverage::judge(&coverage, policy, choice.name())?;
    let widened = widening::judge(policy, &planned.plan)?;
    stop::at("resolved");
    let resolved = started.elapsed();

    // Plan -> bundle. From here on there is a journal, so that whatever happens is finished.
    let state = planned.host.state.clone();
    let mut opened = Opened::begin(policy, planned)?;
    let plan = Rc::clone(&opened.planned.plan);
    let attempt = opened.bundle().and_then(|spec| {
        let built = started.elapsed();
        let executed = opened.execute(&spec, &choice, &signals, policy.quiet, &weaker, &widened)?;
        Ok((executed, built, started.elapsed()))
    });

    // Executor -> check.
    stop::at("finishing");
    let mut warnings = plan.warnings.clone();
    warnings.extend(choice.skipped.iter().cloned());
    warnings.append(&mut opened.warnings);
    let early = Rc::clone(&opened.early);
    let outcome = opened.finish();
    stop::at("cleaned");
    let (executed, built, ran) = attempt?;
    let weaker: Vec<String> = weaker.into_iter().chain(executed.weaker.iter().cloned()).collect();
    let (mut outcome, unfinished) = outcome;
    if let Some(failure) = unfinished {
        // The command's own end is still to be told; what is left is finished at the next start.
        say(&failure.to_string());
        warnings.push(format!("{}: {}", failure.what, failure.why));
    }
    say_restored(&outcome.findings);
    outcome.findings.splice(0..0, early.take());
    warnings
        .extend(weaker.iter().chain(&widened).chain(&executed.warnings).chain(&outcome.warnings).cloned());
    let finished = started.elapsed();
    let detail = serde_json::json!({ "exit": executed.exit, "findings": outcome.findings.len() });
    let repository = plan.guard.as_ref().map(|guard| guard.repository.common_dir.as_path());
    audit::append(&state, Event::TurnFinished, Some(&plan.session), Some(&plan.turn), repository, detail)?;
    if let Some(target) = target {
        let ms = |from: Duration, to: Duration| (to - from).as_secs_f64() * 1000.0;
        let mut limits = weaker;
        if let Some(guard) = &plan.guard {
            limits.extend(match guard.protection {
                Protection::Shared => shared::limits(guard).doing("state the limits")?,
                Protection::Shadow => shadow::limits(),
            });
        }
        let promoted = std::mem::take(&mut outcome.promoted);
        target.write(&TurnReport {
            version: 1,
            session: plan.session.clone(),
            turn: plan.turn.clone(),
            executor: choice.name().to_owned(),
            sandbox: "sandboxed".to_owned(),
            limits,
            command: plan.command.clone(),
            exit: executed.exit,
            coverage,
            findings: outcome.findings,
            promoted,
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

/// A turn that has a journal.
struct Opened {
    planned: Planned,
    journal: Journal,
    claims: Claims,
    warnings: Vec<String>,
    /// What was found while the turn ran.
    early: Rc<RefCell<Vec<Finding>>>,
    /// Imports while the turn runs.
    importer: Rc<RefCell<Option<Importer>>>,
}

/// Takes the baseline of git's bookkeeping, and writes it and the bundle to the turn's directory: from then on
/// whoever finds the directory can finish the turn.
fn record(plan: &Plan, journal: &Journal, spec: &Spec) -> Result<Option<Baseline>, Failure> {
    let what = "write the bundle";
    spec.save(journal.directory().join("config.json")).doing(what)?;
    let Some(guard) = plan.guard.as_ref().filter(|guard| guard.protection == Protection::Shared) else {
        return Ok(None);
    };
    let what = "take the baseline of git's bookkeeping";
    let writable = plan.mounts.iter().filter(|mount| mount.rule == "write");
    let writable: Vec<_> = writable.map(|mount| mount.target.clone()).collect();
    let baseline = baseline::capture(guard, &writable).doing(what)?;
    journal.store_baseline(&baseline).doing(what)?;
    stop::at("recorded");
    Ok(Some(baseline))
}

impl Opened {
    /// Finishes what earlier turns left, begins the journal, makes the session's folders.
    fn begin(policy: &Policy, planned: Planned) -> Result<Self, Failure> {
        let state = planned.host.state.clone();
        layers::make_state(&state)?;
        let mut warnings = recover(&state);
        let plan = &planned.plan;
        let mut record = journal::Record::new(plan.session.clone(), plan.turn.clone());
        record.keep_bundle = policy.keep_bundle;
        let repository = plan.guard.as_ref().map(|guard| guard.repository.clone());
        if let Some(repository) = &repository {
            record.common_dir = Some(repository.common_dir.clone());
            record.folders.clone_from(&repository.session_folders);
        }
        let journal = Journal::begin(&state, record).doing("begin the turn's journal")?;
        stop::at("journal");
        let prepared = match &repository {
            Some(repository) => {
                let what = "make the session's folder for worktrees";
                match folder::prepare(repository, &state, &plan.session).doing(what) {
                    Ok(prepared) => Some(prepared),
                    Err(failure) => {
                        // Nothing has run: what was made goes again.
                        let _ = finish::finish(journal, &state, Claims::default());
                        return Err(failure);
                    }
                }
            }
            None => None,
        };
        let claims = Claims { folders: prepared, shadow: None };
        let mut opened = Self {
            planned,
            journal,
            claims,
            warnings: Vec::new(),
            early: Rc::default(),
            importer: Rc::default(),
        };
        if let (Some(prepared), Some(repository)) = (&opened.claims.folders, &repository) {
            warnings.extend(prepared.warnings.iter().cloned());
            if prepared.folders != repository.session_folders {
                let folders = prepared.folders.clone();
                opened.planned = opened.planned.with_folders(policy, folders)?;
            }
        }
        opened.warnings = warnings;
        match opened.shadow() {
            Ok(()) => Ok(opened),
            Err(failure) => {
                let _ = opened.finish();
                Err(failure)
            }
        }
    }

    /// Builds or refreshes the session's shadow of the repository, where that is how it is protected.
    fn shadow(&mut self) -> Result<(), Failure> {
        let Planned { host, plan } = &self.planned;
        let Some(record) = planned::shadow_record(host, plan) else { return Ok(()) };
        let what = "make the session's view of the git dir";
        record.store(self.journal.directory()).doing(what)?;
        let (claim, warnings) = shadow::prepare(&record, &host.state).doing(what)?;
        self.claims.shadow = Some(claim);
        self.warnings.extend(warnings);
        stop::at("shadow");
        Ok(())
    }

    /// Makes what the bundle refers to.
    fn bundle(&self) -> Result<Spec, Failure> {
        let Planned { host, plan } = &self.planned;
        let what = "write the bundle";
        layers::private_dir(&self.journal.directory().join("stage")).doing(what)?;
        let layout = layers::make(plan, host, None)?;
        let spec = bundle::config(plan, &layout).doing(what)?;
        stop::at("bundle");
        Ok(spec)
    }

    fn execute(
        &mut self,
        spec: &Spec,
        choice: &Choice,
        signals: &Signals,
        quiet: bool,
        weaker: &[String],
        widened: &[String],
    ) -> Result<Executed, Failure> {
        let Planned { host, plan } = &self.planned;
        let state = host.state.clone();
        let session = Session::new(&state, &plan.session);
        let dir = self.journal.directory();
        let repository = plan.guard.as_ref().map(|guard| guard.repository.common_dir.as_path());
        let baseline = Rc::new(OnceCell::new());
        let on_loss = {
            let (state, id, turn) = (state.clone(), plan.session.to_string(), plan.turn.to_string());
            let (early, baseline) = (Rc::clone(&self.early), Rc::clone(&baseline));
            move || {
                // Without a repository there is nothing to check; before there is a baseline, nothing has run.
                let Some(baseline) = baseline.get() else { return };
                // What it finds is in the audit log, and found again at the end; a failure shows there too.
                if let Ok(outcome) =
                    finish::check_now(baseline, Depth::Changed, &state, &turn, Some(id.as_str()))
                {
                    say_restored(&outcome.findings);
                    early.borrow_mut().extend(outcome.findings);
                }
            }
        };
        let on_lasting = self.claims.shadow.is_some().then(|| {
            let (importer, dir, state) = (Rc::clone(&self.importer), dir.to_owned(), state.clone());
            Box::new(move || *importer.borrow_mut() = Importer::start(&dir, &state)) as Box<dyn FnOnce()>
        });
        let execution = Execution {
            host,
            dir,
            spec,
            stage: dir.join("stage"),
            choice,
            signals,
            quiet,
            on_loss: Box::new(on_loss),
            on_refusal: record_refusals(host, &plan.session, &plan.turn, repository),
            on_lasting,
        };
        let warnings = &mut self.warnings;
        let before = |shared: bool| {
            let home = plan.covers.iter().find(|cover| cover.upper).filter(|_| !shared);
            if let Some(cover) = home {
                let taken = layers::take_out_hidden(session.dir(), cover).doing("update the home layer")?;
                warnings.extend(taken.iter().map(|path| {
                    let path = path.display();
                    format!("{path} is hidden now; what the session had made of it is kept in its state")
                }));
            }
            Ok(())
        };
        let journal = &self.journal;
        let beside = |lock: &Locked<'_>, limits: &[String]| {
            if let Some(taken) = record(plan, journal, spec)? {
                let _ = baseline.set(taken);
            }
            sessions::remember(lock, &session, host, plan)?;
            for sentence in widened {
                let detail = serde_json::json!({ "what": sentence });
                let event = Event::SandboxWidened;
                audit::append(&state, event, Some(&plan.session), Some(&plan.turn), repository, detail)?;
            }
            let mut detail = serde_json::json!({ "command": plan.command, "workspace": plan.workspace });
            let weaker: Vec<&String> = weaker.iter().chain(limits).collect();
            if !weaker.is_empty() {
                detail["weaker"] = serde_json::json!(weaker);
            }
            let event = Event::TurnStarted;
            audit::append(&state, event, Some(&plan.session), Some(&plan.turn), repository, detail)
        };
        execution.run(&plan.session, &plan.turn, before, beside)
    }

    /// What was found and done, and what is left undone.
    fn finish(self) -> (Outcome, Option<Failure>) {
        // What it is doing it does to its end; nothing changes the shadow any more.
        drop(self.importer.take());
        let kept = self.journal.record().keep_bundle.then(|| self.journal.directory().to_owned());
        let state = &self.planned.host.state;
        let finished = finish::finish_stepwise(self.journal, state, self.claims, || stop::at("restored"));
        if let Some(kept) = kept {
            let _ = std::fs::remove_dir(kept.join("stage"));
            say(&format!("the bundle is kept in {}", kept.display()));
        }
        match finished {
            Ok(outcome) => (outcome, None),
            Err(unfinished) => {
                let failure = Failure::from_error("finish the turn", &unfinished.error)
                    .hint("`codeoid-shim check` tries again");
                (unfinished.outcome, Some(failure))
            }
        }
    }
}

/// A destination that the network proxy refused goes to the audit log at once; it is in the turn's report as well, so
/// that a log which cannot be written does not take the turn's end away.
fn record_refusals(
    host: &Host,
    session: &SessionId,
    turn: &TurnId,
    repository: Option<&Path>,
) -> Box<dyn FnMut(&Refusal)> {
    let (state, session, turn) = (host.state.clone(), session.clone(), turn.clone());
    let repository = repository.map(Path::to_owned);
    Box::new(move |refusal| {
        let detail = serde_json::json!(refusal);
        let event = Event::NetworkRefused;
        let repository = repository.as_deref();
        if let Err(failure) = audit::append(&state, event, Some(&session), Some(&turn), repository, detail) {
            say(&failure.to_string());
        }
    })
}

/// Finishes turns whose shim was killed; returns what is to be said of them.
pub fn recover(state: &StateDir) -> Vec<String> {
    let mut sentences = Vec::new();
    for recovered in finish::recover(state) {
        if let Ok(hierarchies) = Hierarchies::read() {
            cgroup::sweep(&recovered.turn, &hierarchies);
        }
        match recovered.outcome {
            Ok(outcome) => {
                say_restored(&outcome.findings);
                sentences
                    .push(format!("turn {} was not finished by its own shim; it is now", recovered.turn));
                sentences.extend(outcome.warnings);
            }
            Err(error) => {
                sentences.push(format!("turn {}: {}", recovered.turn, crate::diagnostic::chain(&error)));
                if let Some(place) = recovered.quarantined {
                    sentences.push(format!("turn {} is set aside in {}", recovered.turn, place.display()));
                }
            }
        }
    }
    sentences
}

/// Says what was put back or taken away: the person at the terminal must not find that out later.
pub fn say_restored(findings: &[Finding]) {
    for finding in findings {
        let word = match finding.action {
            Action::Restored => "restored",
            Action::Removed => "removed",
            Action::Reported if shadow::is_told(&finding.kind) => {
                say(&finding.detail);
                continue;
            }
            Action::Reported => continue,
        };
        say(&format!("{word} {}: {}", finding.path.display(), finding.detail));
    }
}

#[expect(clippy::print_stderr, reason = "what was changed on the host is for the person at the terminal")]
fn say(text: &str) {
    eprintln!("codeoid-shim: {}", one_line(text));
}
