//! Where a session keeps its shadow of a repository, and who uses it at the moment.

use std::fs::File;
use std::path::{Path, PathBuf};

use codeoid_spec::id::{SessionId, hex8};
use codeoid_spec::state::StateDir;
use serde::{Deserialize, Serialize};

use crate::lock::{self, Mode};

/// Where the sandbox sees the host's objects; the first alternate of a shadow.
pub const OBJECTS: &str = "/run/codeoid/git/objects";
/// Where it sees the links that keep them if the host collects garbage meanwhile; the second alternate.
pub const KEPT: &str = "/run/codeoid/git/kept";
/// Where it sees the host's worktree entries.
pub const ENTRIES: &str = "/run/codeoid/git/worktrees";

/// Where it sees the host's large files (git-lfs looks for them beside an alternate).
pub const LFS: &str = "/run/codeoid/git/lfs";

/// An empty file beside the shadow; the list of what the host's objects borrow, as the sandbox sees it.
pub(crate) const NO_ALTERNATES: &str = "no-alternates";

/// A shadow's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    root: PathBuf,
}

impl Place {
    /// The shadow of a session for the repository with this common dir.
    #[must_use]
    pub fn of(state: &StateDir, session: &SessionId, common_dir: &Path) -> Self {
        use std::os::unix::ffi::OsStrExt as _;
        let key = hex8(&[common_dir.as_os_str().as_bytes()]);
        Self { root: state.session(session).join("shadow").join(key) }
    }

    /// The directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What the sandbox sees as the common dir.
    #[must_use]
    pub fn git(&self) -> PathBuf {
        self.root.join("git")
    }

    /// What was written into it, to tell what the session changed.
    #[must_use]
    pub fn base(&self) -> PathBuf {
        self.root.join("base")
    }

    /// Objects of the shadow that were verified, on their way to the host.
    #[must_use]
    pub fn quarantine(&self) -> PathBuf {
        self.root.join("quarantine")
    }

    /// Links to the host's objects.
    #[must_use]
    pub fn kept(&self) -> PathBuf {
        self.root.join("kept")
    }

    /// Takes the shadow for a change: a build, a refresh or an import. Waits for others.
    ///
    /// # Errors
    /// The lock file cannot be opened or locked.
    pub fn lock(&self) -> Result<File, lock::Error> {
        let path = self.root.join("lock");
        match lock::file(&path, Mode::Exclusive)? {
            Some(file) => Ok(file),
            None => Err(lock::Error::Lock { path, errno: nix::errno::Errno::EWOULDBLOCK }),
        }
    }

    fn turns(&self) -> PathBuf {
        self.root.join("turns")
    }

    /// Says that a turn uses the shadow; with whether it is the only one. The caller has [`Place::lock`].
    ///
    /// # Errors
    /// The lock file cannot be opened or locked.
    pub fn claim(&self) -> Result<(Claim, bool), lock::Error> {
        let path = self.turns();
        let file = lock::open(&path)?;
        let failed = |errno| lock::Error::Lock { path: path.clone(), errno };
        let alone = lock::take(&file, Mode::TryExclusive).map_err(failed)?;
        // To convert a lock is to give it up first (flock(2)); whoever could come in between needs our other lock.
        lock::take(&file, Mode::Shared).map_err(failed)?;
        Ok((Claim { file }, alone))
    }

    /// Whether no turn uses the shadow. The caller has [`Place::lock`].
    ///
    /// # Errors
    /// The lock file cannot be opened or locked.
    pub fn is_idle(&self) -> Result<bool, lock::Error> {
        Ok(lock::file(&self.turns(), Mode::TryExclusive)?.is_some())
    }
}

/// A turn's use of a shadow. It ends with this process and what it forked, or by [`Claim::end`].
#[derive(Debug)]
pub struct Claim {
    file: File,
}

impl Claim {
    /// Ends it, whoever has a copy of the descriptor.
    pub fn end(self) {
        lock::give_back(&self.file);
    }
}
