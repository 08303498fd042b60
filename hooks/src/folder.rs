//! The session folders: where a turn may create worktrees. They are made when a turn starts and removed, if
//! they are empty, when the session's last turn ends; a directory above them only if this session made it.
//!
//! What a session made is written down before it is made, so that a kill between the two leaves nothing that a
//! later finish does not know of. Turns of one session may overlap: each holds a shared lock while it lives, and
//! only who gets the lock alone removes anything.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};

use codeoid_spec::git::Repository;
use codeoid_spec::id::SessionId;
use codeoid_spec::state::StateDir;
use nix::errno::Errno;
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use serde::{Deserialize, Serialize};

use crate::lock::{self, Mode as Lock};
use crate::os::OsError;
use crate::read::{self, Dir, Kind};

/// How often a directory is made again that another session's end removed in that moment.
const TRIES: usize = 8;

/// Why a session folder could not be made or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something could not be read.
    #[error(transparent)]
    Read(#[from] read::Error),
    /// The session's lock could not be taken.
    #[error(transparent)]
    Lock(#[from] lock::Error),
    /// A system call failed.
    #[error(transparent)]
    Os(#[from] OsError),
    /// The record of what the session made could not be written.
    #[error("session record {path}")]
    Record {
        /// The file.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        source: std::io::Error,
    },
    /// Something else lies where the folder should.
    #[error("{path} is {kind}, so it cannot hold this session's worktrees")]
    NotADirectory {
        /// The path.
        path: PathBuf,
        /// What is there.
        kind: Kind,
    },
    /// Somebody else owns it.
    #[error("{path} belongs to uid {owner}, so it cannot hold this session's worktrees")]
    NotOwned {
        /// The path.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Others can write it.
    #[error("{path} is writable by others (mode {mode:o}), so it cannot hold this session's worktrees")]
    WritableByOthers {
        /// The path.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// None of the folders can be made.
    #[error(
        "no place for this session's worktrees: {preferred} cannot be made; name a directory of yours with --worktree-root"
    )]
    NoPlace {
        /// The folder beside the checkout.
        preferred: PathBuf,
        /// Why that cannot be made.
        #[source]
        source: Box<Error>,
    },
}

fn os(call: &'static str, path: &Path, errno: Errno) -> Error {
    OsError::new(call, path, errno).into()
}

/// The session folders of a turn. While this value lives, no other turn's end removes them.
#[derive(Debug)]
pub struct Prepared {
    /// Those that exist now, the preferred one first.
    pub folders: Vec<PathBuf>,
    /// Why others could not be made.
    pub warnings: Vec<String>,
    claim: File,
}

/// What a session made, in `folders.json` of its directory.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Made {
    /// Directories above session folders.
    parents: Vec<PathBuf>,
}

/// Makes the session folders that are absent.
///
/// # Errors
/// [`Error::NoPlace`] where not one of them can be made.
pub fn prepare(repository: &Repository, state: &StateDir, session: &SessionId) -> Result<Prepared, Error> {
    let directory = state.session(session);
    let claim = lock::open(&directory.join("folders.lock"))?;
    lock::take(&claim, Lock::Shared).map_err(|errno| os("flock", &directory, errno))?;
    let (mut folders, mut failed, mut warnings) = (Vec::new(), None, Vec::new());
    for folder in &repository.session_folders {
        match make(folder, &directory) {
            Ok(()) => folders.push(folder.clone()),
            Err(error @ Error::Record { .. }) => return Err(error),
            Err(error) => {
                warnings.push(crate::shared::restore::chain(&error));
                failed = failed.or(Some((folder.clone(), error)));
            }
        }
    }
    match (folders.is_empty(), failed) {
        (true, Some((preferred, source))) => Err(Error::NoPlace { preferred, source: Box::new(source) }),
        _ => Ok(Prepared { folders, warnings, claim }),
    }
}

/// Removes session folders that are empty, and what this session made above them, unless another turn of the
/// session lives. `prepared` is this turn's own claim; `None` where the turn's supervisor is dead.
///
/// Returns what was removed. A folder that is not empty is no error.
///
/// # Errors
/// What rmdir(2) answers, except that the folder is in use or gone.
pub fn release(
    folders: &[PathBuf],
    state: &StateDir,
    session: &SessionId,
    prepared: Option<Prepared>,
) -> Result<Vec<PathBuf>, Error> {
    if let Some(prepared) = &prepared {
        lock::give_back(&prepared.claim);
    }
    let directory = state.session(session);
    if folders.is_empty() || !folders.iter().any(|folder| read::lstat(folder).is_ok_and(|s| s.is_some())) {
        let made = load(&directory)?;
        if made.parents.is_empty() {
            return Ok(Vec::new());
        }
    }
    let Some(_claim) = lock::file(&directory.join("folders.lock"), Lock::TryExclusive)? else {
        return Ok(Vec::new());
    };
    let mut made = load(&directory)?;
    let mut removed = Vec::new();
    for folder in folders {
        if remove(folder)? {
            removed.push(folder.clone());
        }
        let Some(parent) = folder.parent() else { continue };
        if made.parents.iter().any(|known| known == parent) {
            if remove(parent)? {
                removed.push(parent.to_owned());
            }
            if read::lstat(parent)?.is_none() {
                made.parents.retain(|known| known != parent);
                store(&directory, &made)?;
            }
        }
    }
    Ok(removed)
}

fn load(directory: &Path) -> Result<Made, Error> {
    let content = read::file(&directory.join("folders.json"), read::POINTER_LIMIT)?;
    // A record that was cut by a power failure: what it said is not known, so nothing is removed for it.
    Ok(content.and_then(|content| serde_json::from_slice(&content.bytes).ok()).unwrap_or_default())
}

fn store(directory: &Path, made: &Made) -> Result<(), Error> {
    let path = directory.join("folders.json");
    let written = if made.parents.is_empty() {
        // Removing needs no space.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    } else {
        let text = serde_json::to_vec(made).map_err(std::io::Error::other);
        text.and_then(|text| crate::journal::replace(&path, &text))
    };
    written.map_err(|source| Error::Record { path, source })
}

fn make(folder: &Path, directory: &Path) -> Result<(), Error> {
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Err(os("mkdirat", folder, Errno::EINVAL));
    };
    let (Some(above), Some(parent_name)) = (parent.parent(), parent.file_name()) else {
        return Err(os("mkdirat", parent, Errno::EINVAL));
    };
    let mut tries = 0;
    loop {
        tries += 1;
        let above = Dir::open(above)?;
        if above.lstat(parent_name)?.is_none() {
            // Before it is made: see above. Other turns of the session hold the claim too, so what is written is
            // kept apart by a lock of its own.
            let _record = lock::file(&directory.join("folders.record.lock"), Lock::Exclusive)?;
            let mut made = load(directory)?;
            if !made.parents.iter().any(|known| known == parent) {
                made.parents.push(parent.to_owned());
                store(directory, &made)?;
            }
        }
        let holder = ensure(&above, parent_name)?;
        match ensure(&holder, name) {
            // Somebody's session ended and took the empty parent away.
            Err(Error::Os(OsError { errno: Errno::ENOENT, .. })) if tries < TRIES => {}
            other => return other.map(drop),
        }
    }
}

/// Makes a directory if it is absent, and opens it. It has to be ours.
fn ensure(parent: &Dir, name: &OsStr) -> Result<Dir, Error> {
    let path = parent.path().join(name);
    match mkdirat(parent, name, Mode::from_bits_truncate(0o755)) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(os("mkdirat", &path, errno)),
    }
    let dir = match parent.child(name) {
        Err(read::Error::NotDirectory { path, kind }) => return Err(Error::NotADirectory { path, kind }),
        Ok(None) => return Err(os("openat", &path, Errno::ENOENT)),
        other => other?,
    };
    let dir = dir.ok_or_else(|| os("openat", &path, Errno::ENOENT))?;
    let stamp = dir.stamp()?;
    if stamp.uid != geteuid().as_raw() {
        return Err(Error::NotOwned { path, owner: stamp.uid });
    }
    if stamp.mode & 0o002 != 0 {
        return Err(Error::WritableByOthers { path, mode: stamp.mode & 0o7777 });
    }
    Ok(dir)
}

fn remove(path: &Path) -> Result<bool, Error> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(false) };
    let parent = match Dir::open(parent) {
        Ok(parent) => parent,
        // Gone, or exchanged for a symlink: nothing of ours.
        Err(read::Error::NotDirectory { .. }) => return Ok(false),
        Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    match unlinkat(&parent, name, UnlinkatFlags::RemoveDir) {
        Ok(()) => Ok(true),
        Err(
            Errno::ENOENT
            | Errno::ENOTEMPTY
            | Errno::EEXIST
            | Errno::ENOTDIR
            | Errno::EBUSY
            | Errno::EROFS
            | Errno::EACCES
            | Errno::EPERM,
        ) => Ok(false),
        Err(errno) => Err(os("unlinkat", path, errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Scratch;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    struct Place {
        s: Scratch,
        state: StateDir,
    }

    impl Place {
        fn new() -> Self {
            let s = Scratch::new();
            s.repository("dir/repo");
            let state = StateDir::new(s.path("state"));
            Self { s, state }
        }

        fn repository(&self, session: &str, roots: &[PathBuf]) -> Repository {
            crate::layout::find(&self.s.path("dir/repo"), &session.parse().unwrap(), roots).unwrap().unwrap()
        }

        fn prepare(&self, session: &str) -> (Repository, Prepared) {
            let repository = self.repository(session, &[]);
            let prepared = prepare(&repository, &self.state, &session.parse().unwrap()).unwrap();
            (repository, prepared)
        }

        fn release(&self, repository: &Repository, session: &str, prepared: Option<Prepared>) {
            let folders = &repository.session_folders;
            release(folders, &self.state, &session.parse().unwrap(), prepared).unwrap();
        }
    }

    #[test]
    fn made_and_removed_with_the_parent() {
        let place = Place::new();
        let (repository, prepared) = place.prepare("a");
        assert_eq!(prepared.folders, repository.session_folders);
        let mode = fs::metadata(&prepared.folders[0]).unwrap().permissions().mode();
        assert_eq!(mode & 0o022, 0, "{mode:o}");
        place.release(&repository, "a", Some(prepared));
        assert!(!place.s.path("dir/repo-worktrees").exists());
    }

    #[test]
    fn what_is_not_empty_stays_and_goes_later() {
        let place = Place::new();
        let (repository, prepared) = place.prepare("a");
        let file = prepared.folders[0].join("work");
        fs::write(&file, "").unwrap();
        place.release(&repository, "a", Some(prepared));
        assert!(file.exists());
        // A later turn did not make the parent, but the session did.
        let (repository, prepared) = place.prepare("a");
        fs::remove_file(&file).unwrap();
        place.release(&repository, "a", Some(prepared));
        assert!(!place.s.path("dir/repo-worktrees").exists());
    }

    #[test]
    fn a_parent_that_the_user_made_stays() {
        let place = Place::new();
        fs::create_dir(place.s.path("dir/repo-worktrees")).unwrap();
        let (repository, prepared) = place.prepare("a");
        place.release(&repository, "a", Some(prepared));
        assert!(place.s.path("dir/repo-worktrees").exists());
        assert!(!repository.session_folders[0].exists());
    }

    #[test]
    fn a_turn_that_lives_keeps_the_folder() {
        let place = Place::new();
        let (repository, first) = place.prepare("a");
        let (_, second) = place.prepare("a");
        place.release(&repository, "a", Some(first));
        assert!(repository.session_folders[0].exists());
        place.release(&repository, "a", Some(second));
        assert!(!repository.session_folders[0].exists());
    }

    #[test]
    fn sessions_do_not_take_each_others_folders() {
        let place = Place::new();
        let (one, a) = place.prepare("a");
        let (two, b) = place.prepare("b");
        place.release(&one, "a", Some(a));
        assert!(two.session_folders[0].exists(), "a made the parent, but b is in it");
        place.release(&two, "b", Some(b));
        assert!(!two.session_folders[0].exists());
    }

    #[test]
    fn a_dead_turns_folder_is_removed() {
        let place = Place::new();
        let (repository, prepared) = place.prepare("a");
        // What a kill does; dropping alone may leave a copy in another test's fork.
        lock::give_back(&prepared.claim);
        place.release(&repository, "a", None);
        assert!(!place.s.path("dir/repo-worktrees").exists());
    }

    #[test]
    fn symlinks_and_open_directories_are_refused() {
        let place = Place::new();
        let session: SessionId = "a".parse().unwrap();
        let repository = place.repository("a", &[]);
        fs::create_dir(place.s.path("else")).unwrap();
        symlink(place.s.path("else"), place.s.path("dir/repo-worktrees")).unwrap();
        let refused = |expected: fn(&Error) -> bool| match prepare(&repository, &place.state, &session) {
            Err(Error::NoPlace { source, .. }) => assert!(expected(&source), "{source:?}"),
            other => panic!("{other:?}"),
        };
        refused(|e| matches!(e, Error::NotADirectory { kind: Kind::Symlink, .. }));
        assert_eq!(fs::read_dir(place.s.path("else")).unwrap().count(), 0);
        fs::remove_file(place.s.path("dir/repo-worktrees")).unwrap();
        fs::create_dir(place.s.path("dir/repo-worktrees")).unwrap();
        symlink(place.s.path("else"), &repository.session_folders[0]).unwrap();
        refused(|e| matches!(e, Error::NotADirectory { kind: Kind::Symlink, .. }));
        fs::remove_file(&repository.session_folders[0]).unwrap();
        fs::create_dir(&repository.session_folders[0]).unwrap();
        fs::set_permissions(&repository.session_folders[0], fs::Permissions::from_mode(0o777)).unwrap();
        refused(|e| matches!(e, Error::WritableByOthers { .. }));
        if geteuid().is_root() {
            fs::set_permissions(&repository.session_folders[0], fs::Permissions::from_mode(0o755)).unwrap();
            std::os::unix::fs::chown(&repository.session_folders[0], Some(12_345), None).unwrap();
            refused(|e| matches!(e, Error::NotOwned { owner: 12_345, .. }));
        }
    }

    #[test]
    fn a_root_helps_where_the_checkout_has_no_place_beside_it() {
        let place = Place::new();
        let session: SessionId = "a".parse().unwrap();
        // A file in the way: what a directory without write permission is to root as well.
        fs::write(place.s.path("dir/repo-worktrees"), "").unwrap();
        let repository = place.repository("a", &[]);
        let error = prepare(&repository, &place.state, &session).unwrap_err();
        assert!(error.to_string().contains("--worktree-root"), "{error}");
        fs::create_dir(place.s.path("roots")).unwrap();
        let repository = place.repository("a", &[place.s.path("roots")]);
        let prepared = prepare(&repository, &place.state, &session).unwrap();
        assert_eq!(prepared.folders, repository.session_folders[1..]);
        assert_eq!(prepared.warnings.len(), 1);
        release(&repository.session_folders, &place.state, &session, Some(prepared)).unwrap();
        assert_eq!(fs::read_dir(place.s.path("roots")).unwrap().count(), 0);
    }
}
