//! `run --bundle DIR ID`: runs a bundle that was written down before, as any OCI runtime would.

use std::path::Path;

use codeoid_hooks::finish::{self, Claims};
use codeoid_hooks::journal::{self, Journal};
use codeoid_spec::bundle::{self, annotation};
use codeoid_spec::id::{SessionId, TurnId};
use codeoid_spec::policy::Executor;
use oci_spec::runtime::Spec;

use super::execute::Execution;
use crate::diagnostic::{Doing, Failure};
use crate::supervise::Signals;
use crate::{executor, layers, probe};

/// Runs a bundle and returns the exit code.
pub fn run_bundle(dir: &Path, runtime: Option<&Path>) -> Result<u8, Failure> {
    let signals = Signals::take()?;
    let what = || format!("read the bundle {}", dir.display());
    let dir = std::fs::canonicalize(dir).doing(what())?;
    let spec = Spec::load(dir.join("config.json")).doing(what())?;
    if bundle::annotation(&spec, annotation::VERSION) != Some("1") {
        return Err(Failure::new(what(), "it was not written by `codeoid-shim bundle` of this version")
            .hint("bundles of others are not run by this version; use runc, crun or youki"));
    }
    let host = probe::host(runtime)?;
    let (uid, _) = bundle::ids(&spec).doing(what())?;
    if uid != host.uid {
        return Err(Failure::new(
            what(),
            format!("it was written for uid {uid}, and you are uid {}", host.uid),
        ));
    }
    let session: SessionId = bundle::annotation(&spec, annotation::SESSION)
        .ok_or_else(|| Failure::new(what(), "it names no session"))?
        .parse()
        .doing(what())?;
    // Its own name: a bundle may be run more than once, also at the same time.
    let turn = TurnId::now();
    layers::make_state(&host.state)?;
    let record = journal::Record::new(session.clone(), turn.clone());
    let journal = Journal::begin(&host.state, record).doing("begin the turn's journal")?;
    let stage = journal.directory().join("stage");
    layers::private_dir(&stage).doing(format!("make {}", stage.display()))?;
    // A bundle says nothing about who runs it.
    let choice = executor::choose(Executor::Auto)?;
    let execution = Execution {
        host: &host,
        dir: &dir,
        spec: &spec,
        stage,
        choice: &choice,
        signals: &signals,
        quiet: false,
        on_loss: Box::new(|| ()),
        on_refusal: super::record_refusals(&host, &session, &turn, None),
        on_lasting: None,
    };
    let executed = execution.run(&session, &turn, |_| Ok(()), |_, _| Ok(()));
    // The repository by the baseline in the bundle, then what this run made.
    let checked = finish::bundle(&dir, &host.state, Some(&session)).doing("check the repository");
    let cleaned = finish::finish(journal, &host.state, Claims::default()).doing("clean up");
    let command = spec.process().as_ref().and_then(|process| process.args().as_ref()?.first().cloned());
    let executed = executed?;
    for sentence in &executed.weaker {
        super::say(&format!("warning: {sentence}"));
    }
    super::say_restored(&checked?.findings);
    let _ = cleaned?;
    executed.code(&command.unwrap_or_default())
}
