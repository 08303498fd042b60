//! One directory per turn, so that whatever a turn has begun is finished: by the turn itself, or by the next
//! start after a kill.
//!
//! The directory appears under its name only when it is complete and locked, and disappears under it before
//! anything in it is removed; so whoever finds one without a lock may finish it.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use codeoid_spec::id::{SessionId, TurnId};
use codeoid_spec::state::StateDir;
use serde::{Deserialize, Serialize};

use crate::lock::{self, Mode};
use crate::read;
use crate::shared::baseline::Baseline;

/// The version of the format; another one is not read.
pub const VERSION: u32 = 1;
/// What a turn's directory is called while it is being made.
pub(crate) const NEW: &str = ".new-";
/// What it is called while it is being removed.
pub(crate) const DONE: &str = ".done-";
const RECORD: &str = "journal.json";
const LOCK: &str = "lock";

/// Why a journal could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] read::Error),
    /// It could not be locked.
    #[error(transparent)]
    Lock(#[from] lock::Error),
    /// It could not be written.
    #[error("journal {path}")]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        source: std::io::Error,
    },
    /// It is not JSON of the right form.
    #[error("journal {path} is damaged")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        #[source]
        source: serde_json::Error,
    },
    /// There is none, or an empty one.
    #[error("journal {path} is missing")]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// It was written by another version of this program.
    #[error("journal {path} has version {version}, this program reads version {VERSION}")]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The descriptor that was handed over is not the turn's lock, or does not have it.
    #[error("the descriptor is not the lock of {path}")]
    NotTheLock {
        /// The lock file.
        path: PathBuf,
    },
}

/// What has to be finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The version of the format: [`VERSION`].
    pub version: u32,
    /// The session.
    pub session: SessionId,
    /// The turn.
    pub turn: TurnId,
    /// The repository, where there is one.
    pub common_dir: Option<PathBuf>,
    /// Session folders that may have been made.
    pub folders: Vec<PathBuf>,
    /// Directories below the state directory that are removed, with all that is in them.
    pub cleanup: Vec<PathBuf>,
    /// Whether the turn's directory stays.
    pub keep_bundle: bool,
    /// Whether all is done, and only the directory stays.
    pub finished: bool,
    /// How often a finish has failed.
    pub attempts: u32,
}

impl Record {
    /// A record of a turn that has done nothing yet.
    #[must_use]
    pub fn new(session: SessionId, turn: TurnId) -> Self {
        Self {
            version: VERSION,
            session,
            turn,
            common_dir: None,
            folders: Vec::new(),
            cleanup: Vec::new(),
            keep_bundle: false,
            finished: false,
            attempts: 0,
        }
    }
}

/// A turn's directory under its lock, with a journal that may be damaged.
#[derive(Debug)]
pub struct Locked {
    /// The lock; it is held as long as this or the journal lives.
    pub lock: File,
    /// The journal.
    pub journal: Result<Journal, Error>,
}

/// A turn's directory, locked.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    record: Record,
    lock: File,
}

impl Journal {
    /// Makes a turn's directory and locks it.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn begin(state: &StateDir, record: Record) -> Result<Self, Error> {
        let directory = state.turn(&record.turn);
        // Whose it is, so that one that was left by a kill is known for it at once.
        let new = state.turns().join(format!("{NEW}{}-{}", std::process::id(), record.turn));
        let failed = |source| Error::Write { path: new.clone(), source };
        let mut builder = std::fs::DirBuilder::new();
        builder.mode(0o700).recursive(true).create(state.turns()).map_err(failed)?;
        builder.recursive(false).create(&new).map_err(failed)?;
        // Nobody else knows the name, so the lock is free.
        let lock = lock::file(&new.join(LOCK), Mode::Exclusive)?
            .ok_or_else(|| Error::NotTheLock { path: new.join(LOCK) })?;
        write(&new.join(RECORD), &record)?;
        std::fs::rename(&new, &directory).map_err(failed)?;
        Ok(Self { directory, record, lock })
    }

    /// Takes over a turn's directory together with a descriptor of its lock that was inherited.
    ///
    /// # Errors
    /// [`Error::NotTheLock`] where the descriptor is something else.
    pub fn adopt_lock(directory: &Path, descriptor: OwnedFd) -> Result<Self, Error> {
        let path = directory.join(LOCK);
        let lock = File::from(descriptor);
        let same = match (lock.metadata(), std::fs::symlink_metadata(&path)) {
            (Ok(held), Ok(there)) => held.dev() == there.dev() && held.ino() == there.ino(),
            _ => false,
        };
        // On the same open file this succeeds at once; on another one somebody else has it.
        if !same || !lock::take(&lock, Mode::TryExclusive).is_ok_and(|taken| taken) {
            return Err(Error::NotTheLock { path });
        }
        Ok(Self { directory: directory.to_owned(), record: load(directory)?, lock })
    }

    /// Locks a turn's directory that exists; `None` while somebody else has it.
    ///
    /// # Errors
    /// It cannot be locked.
    pub fn open(directory: &Path) -> Result<Option<Locked>, Error> {
        let Some(lock) = lock::file(&directory.join(LOCK), Mode::TryExclusive)? else { return Ok(None) };
        let held = lock.try_clone().map_err(|source| Error::Write { path: directory.join(LOCK), source })?;
        let journal = load(directory).map(|record| Self { directory: directory.to_owned(), record, lock });
        Ok(Some(Locked { lock: held, journal }))
    }

    /// The record of a turn's directory that somebody else may have locked.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn peek(directory: &Path) -> Result<Record, Error> {
        load(directory)
    }

    /// The turn's directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What is recorded.
    #[must_use]
    pub const fn record(&self) -> &Record {
        &self.record
    }

    /// The lock, to be handed on to a process that outlives this one.
    #[must_use]
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    /// Changes the record. Call it before doing what it says.
    ///
    /// # Errors
    /// It cannot be written; then it is as it was.
    pub fn update(&mut self, change: impl FnOnce(&mut Record)) -> Result<(), Error> {
        let mut record = self.record.clone();
        change(&mut record);
        write(&self.directory.join(RECORD), &record)?;
        self.record = record;
        Ok(())
    }

    /// Stores the baseline beside the record. Call it before the turn's command can run.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn store_baseline(&self, baseline: &Baseline) -> Result<(), Error> {
        store_baseline(&self.directory, baseline)
    }
}

/// Stores a baseline in a bundle's directory, 0600.
///
/// # Errors
/// It cannot be written.
pub fn store_baseline(directory: &Path, baseline: &Baseline) -> Result<(), Error> {
    write(&directory.join(BASELINE), baseline)
}

/// The name of a baseline in a bundle's directory.
pub const BASELINE: &str = "baseline.json";

fn load(directory: &Path) -> Result<Record, Error> {
    let path = directory.join(RECORD);
    let content = read::file(&path, read::POINTER_LIMIT)?.map(|content| content.bytes).unwrap_or_default();
    if content.is_empty() {
        return Err(Error::Missing { path });
    }
    // The version first: another one may have other fields.
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let damaged = |source| Error::Damaged { path: path.clone(), source };
    let Versioned { version } = serde_json::from_slice(&content).map_err(damaged)?;
    if version != VERSION {
        return Err(Error::Version { path, version });
    }
    serde_json::from_slice(&content).map_err(damaged)
}

fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), Error> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    let text = serde_json::to_vec(value).map_err(|error| failed(std::io::Error::other(error)))?;
    replace(path, &text).map_err(failed)
}

/// Writes a file of the state directory so that it is there whole or not at all.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let temporary = path.with_file_name(name);
    // One that a kill left behind; nobody else writes here, the directory is ours and locked.
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC)
        .open(&temporary)?;
    file.write_all(bytes)?;
    drop(file);
    std::fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> (tempfile::TempDir, StateDir) {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::new(temp.path().join("state"));
        (temp, state)
    }

    /// What a kill does; dropping alone may leave a copy of the lock in another test's fork.
    fn die(journal: Journal) {
        lock::give_back(&journal.lock);
    }

    fn record() -> Record {
        Record::new("s1".parse().unwrap(), TurnId::now())
    }

    #[test]
    fn a_turn_is_locked_while_its_journal_lives() {
        let (_temp, state) = state();
        let mut journal = Journal::begin(&state, record()).unwrap();
        journal.update(|record| record.cleanup.push("/x".into())).unwrap();
        let directory = journal.directory().to_owned();
        assert!(Journal::open(&directory).unwrap().is_none());
        let expected = journal.record().clone();
        die(journal);
        let again = Journal::open(&directory).unwrap().unwrap();
        assert_eq!(*again.journal.unwrap().record(), expected);
        let mode = std::fs::metadata(&directory).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert_eq!(std::fs::metadata(directory.join(RECORD)).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_lock_that_was_handed_on_is_adopted() {
        let (temp, state) = state();
        let journal = Journal::begin(&state, record()).unwrap();
        let directory = journal.directory().to_owned();
        let copy = journal.lock().try_clone_to_owned().unwrap();
        drop(journal);
        let adopted = Journal::adopt_lock(&directory, copy).unwrap();
        assert!(Journal::open(&directory).unwrap().is_none());
        let stranger = File::create(temp.path().join("x")).unwrap();
        assert!(matches!(Journal::adopt_lock(&directory, stranger.into()), Err(Error::NotTheLock { .. })));
        // Another open file of the right name, while the lock is held.
        let rival = File::open(directory.join(LOCK)).unwrap();
        assert!(matches!(Journal::adopt_lock(&directory, rival.into()), Err(Error::NotTheLock { .. })));
        drop(adopted);
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let (_temp, state) = state();
        let journal = Journal::begin(&state, record()).unwrap();
        let directory = journal.directory().to_owned();
        die(journal);
        let read = |text: &str| {
            std::fs::write(directory.join(RECORD), text).unwrap();
            loop {
                if let Some(locked) = Journal::open(&directory).unwrap() {
                    return locked.journal.unwrap_err();
                }
            }
        };
        assert!(matches!(read(""), Error::Missing { .. }));
        assert!(matches!(read("{"), Error::Damaged { .. }));
        assert!(matches!(read("{\"version\":99,\"new\":1}"), Error::Version { version: 99, .. }));
        assert!(matches!(read("{\"version\":1}"), Error::Damaged { .. }));
        assert!(matches!(read(&"x".repeat(2_000_000)), Error::Read(read::Error::TooBig { .. })));
    }
}
