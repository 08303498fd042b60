//! A turn's use of a shadow: built before it, imported after it, whatever becomes of the turn.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use codeoid_spec::git::{Checkout, Repository};
use codeoid_spec::id::SessionId;
use codeoid_spec::state::StateDir;
use serde::{Deserialize, Serialize};

use super::git::Git;
use super::import::{self, Imported, When};
use super::place::{Claim, Place};
use super::{Error, LOCKED, build, recovery, write};
use crate::journal;
use crate::os::WriteError;
use crate::read::{self, Dir, Kind, POINTER_LIMIT};

/// The version of the record.
pub const VERSION: u32 = 1;
/// Its name in the shadow's directory, and in a turn's.
pub const FILE: &str = "shadow.json";
/// The most that is read of it, in bytes.
const LIMIT: u64 = 64 * 1024 * 1024;

/// All that an import needs to know, written down for whoever finishes the turn.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// [`VERSION`].
    pub version: u32,
    /// Where the shadow is.
    pub place: Place,
    /// The session.
    pub session: SessionId,
    /// The repository, as it was when the turn began.
    pub repository: Repository,
    /// Directories that the turn can write: no program is taken from there.
    pub writable: Vec<PathBuf>,
}

impl Record {
    /// Writes it into a directory, whole or not at all.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn store(&self, directory: &Path) -> Result<(), WriteError> {
        let path = directory.join(FILE);
        let text = serde_json::to_vec(self).map_err(|error| WriteError::new(&path, error.into()))?;
        journal::replace(&path, &text).map_err(|source| WriteError::new(&path, source))
    }

    /// [`Record::store`], unless it is there already.
    fn keep(&self, directory: &Path) -> Result<(), Error> {
        let text =
            serde_json::to_vec(self).map_err(|error| WriteError::new(directory.join(FILE), error.into()))?;
        Ok(write::keep(&Dir::open(directory)?, FILE.as_ref(), &text)?)
    }

    /// Reads it from a directory; `None` where there is none.
    ///
    /// # Errors
    /// It is damaged, or of another version.
    pub fn load(directory: &Path) -> Result<Option<Self>, Error> {
        let path = directory.join(FILE);
        let Some(content) = read::file(&path, LIMIT)? else { return Ok(None) };
        let damaged = |source: serde_json::Error| Error::File(WriteError::new(&path, source.into()));
        let record: Self = serde_json::from_slice(&content.bytes).map_err(damaged)?;
        if record.version != VERSION {
            let why = format!("its record has version {}, this program reads {VERSION}", record.version);
            return Err(Error::Unsupported { why });
        }
        Ok(Some(record))
    }

    fn git(&self) -> Result<Git, Error> {
        let checkout = match &self.repository.checkout {
            Checkout::Main { top } | Checkout::Linked { top, .. } => Some(top),
            Checkout::Bare => None,
        };
        let avoid = self.writable.iter().chain(checkout).chain(&self.repository.session_folders);
        let avoid: Vec<PathBuf> = avoid.cloned().collect();
        Ok(Git::find(&self.repository.common_dir, &avoid)?)
    }

    fn name(&self) -> String {
        self.session.directory_name()
    }
}

/// Builds the shadow, or refreshes it, and claims it for a turn. Where another turn of the session lives, it is left as
/// it is. Returns the claim, and what is to be said.
///
/// # Errors
/// The shadow cannot be written, or the host's repository cannot be read.
pub fn prepare(record: &Record, state: &StateDir) -> Result<(Claim, Vec<String>), Error> {
    let root = record.place.root();
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(root)
        .map_err(|source| WriteError::new(root, source))?;
    let _lock = record.place.lock()?;
    let (claim, alone) = record.place.claim()?;
    if !alone {
        return Ok((claim, Vec::new()));
    }
    let git = record.git()?;
    let lock = state.repository_lock(&record.repository.common_dir);
    recovery::recover(&record.place, &record.repository, &git, &lock)?;
    let warnings = build::refresh(&record.place, &record.repository, &git)?;
    record.keep(root)?;
    mark(record, true)?;
    Ok((claim, warnings))
}

/// Imports what a turn did, and all that the session did since the last import. `claim` is the turn's own, `None`
/// where its supervisor is dead.
///
/// # Errors
/// The host's repository could not be read or written; what was done stays done, and it can be tried again.
pub fn finish(record: &Record, state: &StateDir, claim: Option<Claim>) -> Result<Imported, Error> {
    if read::lstat(&record.place.base())?.is_none() {
        return Ok(Imported::default());
    }
    let _lock = record.place.lock()?;
    if let Some(claim) = claim {
        claim.end();
    }
    let when = if record.place.is_idle()? { When::Ended } else { When::Live };
    let imported = import_now(record, state, when)?;
    if when == When::Ended {
        mark(record, false)?;
    }
    Ok(imported)
}

/// Imports while the turn runs: what the session made of its own worktrees, branches and tags.
///
/// # Errors
/// As [`finish`].
pub(crate) fn live(record: &Record, state: &StateDir) -> Result<(), Error> {
    let _lock = record.place.lock()?;
    // What came is told by the import at the end.
    import_now(record, state, When::Live).map(drop)
}

fn import_now(record: &Record, state: &StateDir, when: When) -> Result<Imported, Error> {
    let lock = state.repository_lock(&record.repository.common_dir);
    let git = record.git()?;
    recovery::recover(&record.place, &record.repository, &git, &lock)?;
    import::run(&record.place, &record.repository, &git, &record.name(), &lock, when)
}

/// Imports a session's shadows for the last time, and keeps under refs of their own what cannot go where the session
/// has it. Whoever calls it removes the session's directory afterwards.
///
/// # Errors
/// As [`finish`]; then the session's directory has to stay.
pub fn close(session: &Path, state: &StateDir) -> Result<Imported, Error> {
    let mut all = Imported::default();
    let Ok(shadows) = Dir::open(&session.join("shadow")) else { return Ok(all) };
    for item in shadows.list()? {
        let directory = shadows.path().join(&item.name);
        let Some(record) = Record::load(&directory)? else { continue };
        if read::lstat(&record.repository.common_dir)?.is_none() {
            all.warnings.push(format!("{} is gone", record.repository.common_dir.display()));
            continue;
        }
        let mut imported = finish(&record, state, None)?;
        let lock = record.place.lock()?;
        let rescued = import::rescue(&record.place, &record.repository, &record.git()?, &record.name())?;
        let damaged = read::lstat(&directory.join("damaged"))?.is_some();
        if imported.left || rescued.left || damaged {
            // It is somebody's work, and who closes a session does not mean to throw it away.
            let kept = state.path().join("kept");
            let name = format!("{}-{}-{}", record.name(), item.name.to_string_lossy(), std::process::id());
            let target = kept.join(name);
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&kept)
                .and_then(|()| std::fs::rename(&directory, &target))
                .map_err(|source| WriteError::new(&target, source))?;
            imported.warnings.push(format!(
                "something of the session's view of {} could not be brought to it; the view is kept in {}",
                record.repository.common_dir.display(),
                target.display()
            ));
        }
        drop(lock);
        imported.promoted.extend(rescued.promoted);
        imported.warnings.extend(rescued.warnings);
        all.promoted.extend(imported.promoted);
        all.findings.extend(imported.findings);
        all.warnings.extend(imported.warnings);
    }
    Ok(all)
}

/// Locks the session's worktrees on the host while it works in them (git-worktree(1), `lock`), so that nobody's
/// `prune` takes them for gone; and unlocks them. A lock that somebody else has put there stays.
fn mark(record: &Record, lock: bool) -> Result<(), Error> {
    let common = Dir::open(&record.repository.common_dir)?;
    let Some(worktrees) = common.child("worktrees".as_ref())? else { return Ok(()) };
    let workspace = match &record.repository.checkout {
        Checkout::Linked { entry, .. } => Some(entry.as_str()),
        Checkout::Main { .. } | Checkout::Bare => None,
    };
    let text = super::locked(&record.name());
    // By the folder that it lies in: the session may have made it in this very turn.
    let entries =
        crate::layout::entries(&record.repository.common_dir, &record.repository.session_folders, None);
    let Ok(entries) = entries else { return Ok(()) };
    for entry in entries.iter().filter(|entry| entry.own && workspace != Some(entry.id.as_str())) {
        let Some(dir) = worktrees.child(entry.id.as_ref())? else { continue };
        let there = match dir.read("locked".as_ref(), POINTER_LIMIT) {
            Ok(content) => content.map(|content| content.bytes),
            Err(read::Error::NotRegular { kind: Kind::Directory, .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        match there {
            None if lock => write::put(&dir, "locked".as_ref(), text.as_bytes())?,
            Some(bytes) if !lock && bytes.starts_with(LOCKED.as_bytes()) => {
                write::unlink(&dir, "locked".as_ref())?;
            }
            _ => {}
        }
    }
    Ok(())
}
