//! Opening and closing sessions.

use std::path::{Path, PathBuf};

use codeoid_hooks::finish::{self, Outcome};
use codeoid_hooks::shared::baseline;
use codeoid_hooks::shared::check::Depth;
use codeoid_hooks::{folder, layout, shadow, shared};
use codeoid_spec::audit::Event;
use codeoid_spec::host::Host;
use codeoid_spec::id::SessionId;
use codeoid_spec::plan::Plan;
use codeoid_spec::report::Finding;
use serde::Serialize;

use super::Planned;
use crate::diagnostic::{Doing, Failure};
use crate::session::{Locked, Record, Session};
use crate::{audit, layers};

/// What closing a session did.
#[derive(Debug, Serialize)]
pub struct Closed {
    /// The session.
    pub session: SessionId,
    /// Folders that were empty and are gone.
    pub removed: Vec<PathBuf>,
    /// Folders that hold worktrees still.
    pub kept: Vec<PathBuf>,
    /// What the check of its repository found.
    pub findings: Vec<Finding>,
}

/// Opens a session for a plan that is not run yet, or returns what is known of it.
pub fn open_session(planned: &Planned) -> Result<Record, Failure> {
    let Planned { host, plan, .. } = planned;
    layers::make_state(&host.state)?;
    let session = Session::new(&host.state, &plan.session);
    let lock = session.lock()?;
    let mut record = open(&lock, &session, host, plan)?;
    fill(&mut record, plan);
    lock.write(&record)?;
    Ok(record)
}

/// Remembers a turn that is about to run.
pub fn remember(lock: &Locked<'_>, session: &Session, host: &Host, plan: &Plan) -> Result<(), Failure> {
    let mut record = open(lock, session, host, plan)?;
    fill(&mut record, plan);
    record.turns += 1;
    lock.write(&record)
}

fn open(_lock: &Locked<'_>, session: &Session, host: &Host, plan: &Plan) -> Result<Record, Failure> {
    if let Some(record) = session.record()? {
        return Ok(record);
    }
    let record = Record::new(plan.session.clone());
    let repository = plan.guard.as_ref().map(|guard| guard.repository.common_dir.as_path());
    let event = Event::SessionOpened;
    audit::append(&host.state, event, Some(&plan.session), None, repository, serde_json::Value::Null)?;
    Ok(record)
}

fn fill(record: &mut Record, plan: &Plan) {
    record.workspace = Some(plan.workspace.clone());
    if let Some(guard) = &plan.guard {
        record.repository = Some(guard.repository.common_dir.clone());
        record.worktree_folders.clone_from(&guard.repository.session_folders);
    }
}

/// The folders for worktrees that a fork of a session will have: in the same places, under its own name.
pub fn forked_folders(record: &Record, fork: &SessionId) -> Vec<PathBuf> {
    let Some(common_dir) = &record.repository else { return Vec::new() };
    let name = fork.worktree_folder(common_dir);
    record.worktree_folders.iter().map(|folder| folder.with_file_name(&name)).collect()
}

/// Judges the repository around a directory against git's own layout, with every entry looked at.
pub fn check_repository(
    host: &Host,
    place: &Path,
    session: &SessionId,
) -> Result<Option<(PathBuf, Outcome)>, Failure> {
    let what = || format!("check the repository around {}", place.display());
    let Some(repository) = layout::find(place, session, &[]).doing(what())? else { return Ok(None) };
    let common_dir = repository.common_dir.clone();
    let guard = shared::guard(&repository).doing(what())?;
    let baseline = baseline::capture(&guard, &[]).doing(what())?;
    layers::make_state(&host.state)?;
    let label = format!("check-{session}");
    let outcome =
        finish::check_now(&baseline, Depth::Everything, &host.state, &label, Some(session.as_str()));
    Ok(Some((common_dir, outcome.doing(what())?)))
}

/// Closes a session: its repository is checked, its home layer and its record go, and its folders where they are empty. Worktrees that are
/// still there stay, as ordinary worktrees.
pub fn close_session(host: &Host, id: &SessionId) -> Result<Closed, Failure> {
    let what = || format!("close session {id}");
    let session = Session::new(&host.state, id);
    if !session.dir().exists() {
        return Err(Failure::new(what(), "there is no such session").hint("see `codeoid-shim session list`"));
    }
    let lock = session.lock()?;
    if session.is_alive() {
        return Err(Failure::new(what(), "one of its turns is running").hint("wait for its end, or stop it"));
    }
    let record = session.record()?;
    let imported = shadow::close(session.dir(), &host.state).doing(what())?;
    for warning in &imported.warnings {
        super::say(&format!("note: {warning}"));
    }
    // A workspace that is gone has nothing to check.
    let workspace = record.as_ref().and_then(|record| record.workspace.clone()).filter(|path| path.is_dir());
    let findings = match workspace {
        Some(workspace) => {
            check_repository(host, &workspace, id)?.map_or(Vec::new(), |(_, outcome)| outcome.findings)
        }
        None => Vec::new(),
    };
    let findings: Vec<Finding> = findings.into_iter().chain(imported.findings).collect();
    let folders = record.as_ref().map(|record| record.worktree_folders.clone()).unwrap_or_default();
    let removed = folder::release(&folders, &host.state, id, None).doing(what())?;
    let kept = folders.into_iter().filter(|folder| folder.exists()).collect();
    layers::remove_session(session.dir()).doing(what())?;
    let repository = record.and_then(|record| record.repository);
    let event = Event::SessionClosed;
    audit::append(&host.state, event, Some(id), None, repository.as_deref(), serde_json::Value::Null)?;
    drop(lock);
    Ok(Closed { session: id.clone(), removed, kept, findings })
}
