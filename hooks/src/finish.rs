//! Finishing a turn: check, restore, clean up. The same steps run from the turn's own pipeline, from the
//! `poststop` hook, from `codeoid-shim check`, and at the next start after a kill; they may run any number of
//! times, at once or one after the other, and end in the same state of the host.

use std::collections::HashSet;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use codeoid_spec::audit::{Event, Line};
use codeoid_spec::id::SessionId;
use codeoid_spec::report::{Action, Finding};
use codeoid_spec::state::StateDir;
use serde::{Deserialize, Serialize};

use crate::audit;
use crate::folder::{self, Prepared};
use crate::journal::{self, BASELINE, DONE, Journal, NEW, Record};
use crate::lock::{self, Mode};
use crate::read::{self, Dir, Kind};
use crate::shadow::{self, Claim};
use crate::shared::baseline::{self, Baseline};
use crate::shared::check::{self, Depth};
use crate::shared::restore::{self, chain};
use crate::tree::{self, Keep};

/// The most that is read of a baseline, in bytes.
const BASELINE_LIMIT: u64 = 256 * 1024 * 1024;
/// Findings of a check, one JSON object per line, written before anything is put right.
const FINDINGS: &str = "findings.jsonl";
/// How often a turn is tried to be finished before it is set aside.
const ATTEMPTS: u32 = 8;
/// How old a directory is that somebody stopped making, in seconds.
const ABANDONED: u64 = 60;

/// Why a turn could not be finished. It stays, and is tried again at the next start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something could not be read.
    #[error(transparent)]
    Read(#[from] read::Error),
    /// The journal could not be read or written.
    #[error(transparent)]
    Journal(#[from] journal::Error),
    /// The repository could not be locked.
    #[error(transparent)]
    Lock(#[from] lock::Error),
    /// The baseline is not one.
    #[error("baseline {path} is damaged")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        #[source]
        source: serde_json::Error,
    },
    /// The baseline was written by another version of this program.
    #[error("baseline {path} has version {version}, this program reads version {}", baseline::VERSION)]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The repository could not be judged.
    #[error(transparent)]
    Check(#[from] check::Error),
    /// What the session did in its shadow could not be brought over.
    #[error(transparent)]
    Shadow(#[from] shadow::Error),
    /// Something could not be put right.
    #[error("{count} changes in {common_dir} could not be undone, the first of them")]
    NotRestored {
        /// The repository.
        common_dir: PathBuf,
        /// How many.
        count: usize,
        /// The first.
        #[source]
        source: restore::Error,
    },
    /// A session folder could not be removed.
    #[error(transparent)]
    Folder(#[from] folder::Error),
    /// A directory could not be removed.
    #[error(transparent)]
    Tree(#[from] tree::Error),
    /// A directory that is to be removed is not below the state directory.
    #[error("{path} is not below the state directory, so it is not removed")]
    Outside {
        /// The directory.
        path: PathBuf,
    },
    /// A directory could not be renamed.
    #[error("rename {path}")]
    Rename {
        /// The directory.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        source: std::io::Error,
    },
    /// The lock of a turn is held by another process.
    #[error("{path} is being finished by another process, or its turn still runs")]
    Busy {
        /// The turn's directory.
        path: PathBuf,
    },
}

/// A finish that did not come to its end. What it has found and done is in it all the same.
#[derive(Debug)]
pub struct Unfinished {
    /// What was found and done.
    pub outcome: Outcome,
    /// The first thing that failed.
    pub error: Error,
}

impl std::fmt::Display for Unfinished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Unfinished {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// Nothing was found or done before it failed.
impl<E: Into<Error>> From<E> for Box<Unfinished> {
    fn from(error: E) -> Self {
        Self::new(Unfinished { outcome: Outcome::default(), error: error.into() })
    }
}

/// What comes of a finish.
pub type Finished = Result<Outcome, Box<Unfinished>>;

/// What a finish has done.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Outcome {
    /// What was found, in this run and in those that were killed.
    pub findings: Vec<Finding>,
    /// What the user should know besides.
    pub warnings: Vec<String>,
    /// Session folders, and directories above them, that were removed.
    pub removed: Vec<PathBuf>,
    /// Refs and entries that were brought to the host by value.
    pub promoted: Vec<String>,
}

/// A turn that a later start has finished, or has tried to.
#[derive(Debug)]
#[must_use]
pub struct Recovered {
    /// The name of the turn's directory.
    pub turn: String,
    /// The session, where the journal could be read.
    pub session: Option<String>,
    /// What was done.
    pub outcome: Finished,
    /// Where the turn's directory was set aside, because it cannot be finished.
    pub quarantined: Option<PathBuf>,
}

/// What a turn holds as long as it lives; nothing of it where its supervisor is dead.
#[derive(Debug, Default)]
pub struct Claims {
    /// The session folders.
    pub folders: Option<Prepared>,
    /// The session's shadow of the repository.
    pub shadow: Option<Claim>,
}

/// Finishes a turn whose supervisor this process is.
///
/// # Errors
/// The first thing that failed, after everything was tried; the journal stays for [`recover`].
pub fn finish(journal: Journal, state: &StateDir, claims: Claims) -> Finished {
    finish_stepwise(journal, state, claims, || ())
}

/// [`finish`], with something in between the check and the clean-up: tests of recovery end the process there.
///
/// # Errors
/// As [`finish`].
pub fn finish_stepwise(
    mut journal: Journal,
    state: &StateDir,
    claims: Claims,
    between: impl FnOnce(),
) -> Finished {
    let mut outcome = Outcome::default();
    let record = Some(journal.record());
    let checked = check_directory(journal.directory(), state, record, &mut outcome);
    let imported = import(journal.directory(), state, record, claims.shadow, &mut outcome);
    let checked = checked.and(imported);
    between();
    let cleaned = clean_up(journal.record(), state, claims.folders, &mut outcome);
    if let Err(error) = checked.and(cleaned) {
        // The journal is what matters; that it could not count is no reason to lose the error.
        let _ = journal.update(|record| record.attempts = record.attempts.saturating_add(1));
        return unfinished(outcome, error);
    }
    let ended = if journal.record().keep_bundle {
        journal.update(|record| record.finished = true).map_err(Error::from)
    } else {
        discard(journal.directory(), state)
    };
    match ended {
        Ok(()) => Ok(outcome),
        Err(error) => unfinished(outcome, error),
    }
}

fn unfinished(outcome: Outcome, error: Error) -> Finished {
    Err(Box::new(Unfinished { outcome, error }))
}

/// Finishes a turn whose supervisor is dead.
///
/// # Errors
/// [`Error::Busy`] while it is not; else as [`finish`].
pub fn turn(directory: &Path, state: &StateDir) -> Finished {
    match Journal::open(directory)? {
        None => unfinished(Outcome::default(), Error::Busy { path: directory.to_owned() }),
        Some(locked) => finish(locked.journal?, state, Claims::default()),
    }
}

/// Checks the repository of a bundle: what the `poststop` hook does. A turn's own clean-up is left to its
/// supervisor, which may be the very process that waits for the hook.
///
/// # Errors
/// As [`finish`].
pub fn bundle(directory: &Path, state: &StateDir, session: Option<&SessionId>) -> Finished {
    let mut outcome = Outcome::default();
    let record = Journal::peek(directory).ok();
    let checked = check_directory(directory, state, record.as_ref(), &mut outcome);
    // A turn's supervisor imports at its end, and its claim is still held.
    let imported = match &record {
        Some(_) => Ok(()),
        None => import(directory, state, None, None, &mut outcome),
    };
    if let Err(error) = checked.and(imported) {
        return unfinished(outcome, error);
    }
    if let (None, Some(session)) = (&record, session) {
        // Written by hand and run by whomever: nobody else takes the empty folders away.
        match release_of(directory, state, session) {
            Ok(removed) => outcome.removed = removed,
            Err(error) => return unfinished(outcome, error),
        }
    }
    let findings = directory.join(FINDINGS);
    // Without a supervisor nobody else will read them, and the bundle may run again.
    if record.is_none() {
        let _ = std::fs::remove_file(findings);
    }
    Ok(outcome)
}

/// Removes the empty session folders of a bundle's baseline.
fn release_of(directory: &Path, state: &StateDir, session: &SessionId) -> Result<Vec<PathBuf>, Error> {
    let path = directory.join(BASELINE);
    let folders = match read::file(&path, BASELINE_LIMIT)? {
        Some(content) => load(&path, &content.bytes)?.repository.session_folders,
        None => match shadow::Record::load(directory)? {
            Some(record) => record.repository.session_folders,
            None => return Ok(Vec::new()),
        },
    };
    Ok(folder::release(&folders, state, session, None)?)
}

/// Checks a repository against a baseline right now: when a pin was lost, when a session is closed, when
/// somebody asks. Findings go to the audit log, copies below the state directory.
///
/// # Errors
/// As [`finish`].
pub fn check_now(
    baseline: &Baseline,
    depth: Depth,
    state: &StateDir,
    label: &str,
    session: Option<&str>,
) -> Finished {
    let mut outcome = Outcome::default();
    let keep = Keep::new(state.path().join("kept").join(codeoid_spec::id::slug(label)));
    let (checked, _lock) = locked_check(baseline, depth, state, &keep, &mut |_| ())?;
    outcome.warnings.extend(checked.warnings);
    outcome.findings = checked.findings;
    for finding in &outcome.findings {
        note(state, finding, session, None, &baseline.repository.common_dir, &mut outcome.warnings);
    }
    match fail(checked.failed, baseline) {
        Ok(()) => Ok(outcome),
        Err(error) => unfinished(outcome, error),
    }
}

fn locked_check(
    baseline: &Baseline,
    depth: Depth,
    state: &StateDir,
    keep: &Keep,
    record: &mut dyn FnMut(&Finding),
) -> Result<(check::Checked, Option<File>), Error> {
    let lock = lock::file(&state.repository_lock(&baseline.repository.common_dir), Mode::Exclusive)?;
    Ok((check::run(baseline, depth, keep, record)?, lock))
}

fn fail(mut failed: Vec<restore::Error>, baseline: &Baseline) -> Result<(), Error> {
    if failed.is_empty() {
        return Ok(());
    }
    let count = failed.len();
    let common_dir = baseline.repository.common_dir.clone();
    Err(Error::NotRestored { common_dir, count, source: failed.swap_remove(0) })
}

/// A line of [`FINDINGS`].
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Noted {
    Found(Finding),
    /// The finding is in the audit log.
    Audited {
        kind: String,
        path: PathBuf,
    },
}

fn check_directory(
    directory: &Path,
    state: &StateDir,
    record: Option<&Record>,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let path = directory.join(BASELINE);
    let Some(content) = read::file(&path, BASELINE_LIMIT)? else { return Ok(()) };
    let baseline = load(&path, &content.bytes)?;
    let mut audited = HashSet::new();
    let log = directory.join(FINDINGS);
    let noted = read::file(&log, BASELINE_LIMIT)?.map(|content| content.bytes).unwrap_or_default();
    // A line that a kill has cut is not one.
    for line in noted.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()) {
        match line {
            Noted::Found(finding) => outcome.findings.push(finding),
            Noted::Audited { kind, path } => {
                audited.insert((kind, path));
            }
        }
    }
    let mut failures = Vec::new();
    let mut remember = |line: &Noted| {
        if let Err(error) = append(&log, line) {
            failures.push(format!("{}: {error}", log.display()));
        }
    };
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let keep = Keep::new(state.path().join("kept").join(codeoid_spec::id::slug(&name)));
    let (checked, _lock) = locked_check(&baseline, Depth::Changed, state, &keep, &mut |finding| {
        remember(&Noted::Found(finding.clone()));
    })?;
    outcome.warnings.extend(checked.warnings);
    for finding in checked.findings {
        let known = |other: &Finding| other.kind == finding.kind && other.path == finding.path;
        if !outcome.findings.iter().any(known) {
            outcome.findings.push(finding);
        }
    }
    let session = record.map(|record| record.session.as_str());
    let turn = record.map(|record| record.turn.to_string());
    let common_dir = &baseline.repository.common_dir;
    for finding in &outcome.findings {
        let key = (finding.kind.clone(), finding.path.clone());
        if !audited.contains(&key)
            && note(state, finding, session, turn.as_deref(), common_dir, &mut outcome.warnings)
        {
            remember(&Noted::Audited { kind: key.0, path: key.1 });
        }
    }
    // A full disk keeps findings from being written down, not from being put right.
    outcome.warnings.extend(failures.into_iter().take(1));
    fail(checked.failed, &baseline)
}

/// Brings what the turn did in its session's shadow to the host, where that is how the repository is protected.
fn import(
    directory: &Path,
    state: &StateDir,
    record: Option<&Record>,
    claim: Option<Claim>,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let Some(shadowed) = shadow::Record::load(directory)? else { return Ok(()) };
    let imported = shadow::finish(&shadowed, state, claim)?;
    outcome.promoted.extend(imported.promoted);
    outcome.warnings.extend(imported.warnings);
    let turn = record.map(|record| record.turn.to_string());
    let session = Some(shadowed.session.as_str());
    for finding in imported.findings {
        note(
            state,
            &finding,
            session,
            turn.as_deref(),
            &shadowed.repository.common_dir,
            &mut outcome.warnings,
        );
        outcome.findings.push(finding);
    }
    Ok(())
}

fn load(path: &Path, bytes: &[u8]) -> Result<Baseline, Error> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let damaged = |source| Error::Damaged { path: path.to_owned(), source };
    let Versioned { version } = serde_json::from_slice(bytes).map_err(damaged)?;
    if version != baseline::VERSION {
        return Err(Error::Version { path: path.to_owned(), version });
    }
    serde_json::from_slice(bytes).map_err(damaged)
}

fn append(path: &Path, line: &Noted) -> std::io::Result<()> {
    let mut bytes = serde_json::to_vec(line).map_err(std::io::Error::other)?;
    bytes.push(b'\n');
    std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC | nix::libc::O_NONBLOCK)
        .open(path)?
        .write_all(&bytes)
}

/// Writes a finding to the audit log. What cannot be written there is said.
fn note(
    state: &StateDir,
    finding: &Finding,
    session: Option<&str>,
    turn: Option<&str>,
    common_dir: &Path,
    warnings: &mut Vec<String>,
) -> bool {
    let event = match finding.action {
        Action::Restored | Action::Removed => Event::WorktreeEntryRestored,
        Action::Reported => Event::WorktreeEntryRejected,
    };
    let line = Line {
        time: jiff::Timestamp::now(),
        event,
        session: session.map(str::to_owned),
        turn: turn.map(str::to_owned),
        repo: Some(common_dir.to_owned()),
        // A finding is plain data; a path that is not UTF-8 is the one thing that can be wrong with it.
        detail: serde_json::to_value(finding).unwrap_or_else(|_| finding.detail.clone().into()),
    };
    match audit::append(state, &line) {
        Ok(()) => true,
        Err(error) => {
            warnings.push(chain(&error));
            false
        }
    }
}

fn clean_up(
    record: &Record,
    state: &StateDir,
    prepared: Option<Prepared>,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let mut first = None;
    match folder::release(&record.folders, state, &record.session, prepared) {
        Ok(removed) => outcome.removed = removed,
        Err(error) => first = Some(error.into()),
    }
    for path in &record.cleanup {
        if let Err(error) = remove_below(state, path) {
            first = first.or(Some(error));
        }
    }
    first.map_or(Ok(()), Err)
}

/// Removes a directory below the state directory, following nothing on the way.
fn remove_below(state: &StateDir, path: &Path) -> Result<(), Error> {
    let outside = || Error::Outside { path: path.to_owned() };
    let relative = path.strip_prefix(state.path()).map_err(|_| outside())?;
    if !relative.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(outside());
    }
    let (Some(name), Some(parent)) = (relative.file_name(), relative.parent()) else {
        return Err(outside());
    };
    let top = real_state(state)?;
    let Some(top) = top else { return Ok(()) };
    match top.beneath(parent)? {
        Some(parent) => Ok(tree::remove(&parent, name)?),
        None => Ok(()),
    }
}

/// The state directory, opened. The way to it is the owner's own, and may have symlinks.
fn real_state(state: &StateDir) -> Result<Option<Dir>, Error> {
    match state.path().canonicalize() {
        Ok(real) => Ok(Some(Dir::open(&real)?)),
        Err(_) => Ok(None),
    }
}

/// Removes a turn's directory that has nothing left to be done.
fn discard(directory: &Path, state: &StateDir) -> Result<(), Error> {
    let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let done = directory.with_file_name(format!("{DONE}{name}"));
    std::fs::rename(directory, &done)
        .map_err(|source| Error::Rename { path: directory.to_owned(), source })?;
    remove_below(state, &state.turns().join(done.file_name().unwrap_or_default()))
}

/// Finishes all turns whose supervisor is dead. What cannot be read is set aside, so that it is tried once.
pub fn recover(state: &StateDir) -> Vec<Recovered> {
    let Ok(Some(top)) = real_state(state) else { return Vec::new() };
    let Ok(Some(turns)) = top.child("turns".as_ref()) else { return Vec::new() };
    let Ok(items) = turns.list() else { return Vec::new() };
    let mut recovered = Vec::new();
    for item in items {
        let name = item.name.to_string_lossy().into_owned();
        let directory = state.turns().join(&item.name);
        if name.starts_with(DONE) {
            let _ = tree::remove(&turns, &item.name);
        } else if name.starts_with(NEW) {
            if abandoned(&directory) {
                let _ = tree::remove(&turns, &item.name);
            }
        } else if item.kind == Kind::Directory {
            recovered.extend(recover_one(&directory, &name, state));
        } else {
            let quarantined = quarantine(&directory, state);
            let error = read::Error::NotDirectory { path: directory, kind: item.kind };
            let outcome = unfinished(Outcome::default(), error.into());
            recovered.push(Recovered { turn: name, session: None, outcome, quarantined });
        }
    }
    recovered
}

fn abandoned(directory: &Path) -> bool {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let maker = name.strip_prefix(NEW).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
    if maker
        .is_some_and(|pid| Path::new("/proc/self").exists() && !Path::new(&format!("/proc/{pid}")).exists())
    {
        return true;
    }
    let old = std::fs::symlink_metadata(directory)
        .and_then(|metadata| metadata.modified())
        .is_ok_and(|time| time.elapsed().is_ok_and(|age| age.as_secs() > ABANDONED));
    old && Journal::open(directory).is_ok_and(|journal| journal.is_some())
}

fn recover_one(directory: &Path, name: &str, state: &StateDir) -> Option<Recovered> {
    let locked = match Journal::open(directory) {
        // It lives.
        Ok(None) => return None,
        Ok(Some(locked)) => locked,
        Err(error) => {
            let outcome = unfinished(Outcome::default(), error.into());
            return Some(Recovered { turn: name.to_owned(), session: None, outcome, quarantined: None });
        }
    };
    // Held until the directory has been set aside, too.
    let _lock = locked.lock;
    let journal = match locked.journal {
        Ok(journal) if journal.record().finished => return None,
        Ok(journal) => journal,
        Err(error) => return Some(damaged(directory, name, state, error)),
    };
    let session = journal.record().session.to_string();
    let turn = journal.record().turn.to_string();
    let repo = journal.record().common_dir.clone();
    let attempts = journal.record().attempts;
    let outcome = finish(journal, state, Claims::default());
    let hopeless = match outcome.as_ref().map_err(|unfinished| &unfinished.error) {
        Ok(_) => false,
        Err(Error::Damaged { .. } | Error::Version { .. }) => true,
        Err(_) => attempts + 1 >= ATTEMPTS,
    };
    let quarantined = if hopeless { quarantine(directory, state) } else { None };
    let mut outcome = outcome;
    let line = Line {
        time: jiff::Timestamp::now(),
        event: Event::TurnRecovered,
        session: Some(session.clone()),
        turn: Some(turn),
        repo,
        detail: match &outcome {
            Ok(outcome) => serde_json::json!({ "findings": outcome.findings.len() }),
            Err(error) => serde_json::json!({ "error": chain(error.as_ref()) }),
        },
    };
    if let Err(error) = audit::append(state, &line)
        && let Ok(outcome) = &mut outcome
    {
        outcome.warnings.push(chain(&error));
    }
    Some(Recovered { turn: name.to_owned(), session: Some(session), outcome, quarantined })
}

/// A turn whose journal cannot be read: its repository is checked all the same, if there is a baseline.
fn damaged(directory: &Path, name: &str, state: &StateDir, error: journal::Error) -> Recovered {
    let mut outcome = Outcome::default();
    let checked = check_directory(directory, state, None, &mut outcome).and(import(
        directory,
        state,
        None,
        None,
        &mut outcome,
    ));
    outcome.warnings.push(chain(&error));
    let quarantined = quarantine(directory, state);
    let outcome = match checked {
        Ok(()) => Ok(outcome),
        Err(error) => unfinished(outcome, error),
    };
    Recovered { turn: name.to_owned(), session: None, outcome, quarantined }
}

/// Sets a directory aside, where nothing looks for turns.
fn quarantine(directory: &Path, state: &StateDir) -> Option<PathBuf> {
    let place = state.path().join("quarantine");
    let mut builder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(builder.recursive(true), 0o700).create(&place).ok()?;
    let name = directory.file_name()?.to_owned();
    for number in 0..1_000 {
        let mut target = name.clone();
        if number > 0 {
            target.push(format!(".{number}"));
        }
        let target = place.join(target);
        if std::fs::symlink_metadata(&target).is_err() {
            return std::fs::rename(directory, &target).ok().map(|()| target);
        }
    }
    None
}
