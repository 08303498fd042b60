//! Where things lie in the state directory (`${XDG_STATE_HOME:-~/.local/state}/codeoid-shim`). Paths only;
//! whoever creates one of them makes it mode 0700.

use std::path::{Path, PathBuf};

use crate::id::{SessionId, TurnId};

/// The state directory: session records, journals, the audit log. Never visible inside a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDir(PathBuf);

impl StateDir {
    /// The state directory at this absolute path.
    #[must_use]
    pub const fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The audit log, one JSON object per line.
    #[must_use]
    pub fn audit_log(&self) -> PathBuf {
        self.0.join("audit.jsonl")
    }

    /// All sessions, a directory each.
    #[must_use]
    pub fn sessions(&self) -> PathBuf {
        self.0.join("sessions")
    }

    /// One session: `session.json`, `lock`, `home/`, `shadow/`.
    #[must_use]
    pub fn session(&self, id: &SessionId) -> PathBuf {
        self.sessions().join(id.directory_name())
    }

    /// All unfinished turns, a directory each.
    #[must_use]
    pub fn turns(&self) -> PathBuf {
        self.0.join("turns")
    }

    /// One turn: the bundle (`config.json`, `baseline.json`, `rootfs/`…), `journal.json`, and `lock`, on
    /// which the living supervisor holds an exclusive flock(2).
    #[must_use]
    pub fn turn(&self, id: &TurnId) -> PathBuf {
        self.turns().join(id.to_string())
    }

    /// One lock file per repository, named by a hash of its common dir.
    #[must_use]
    pub fn repository_lock(&self, common_dir: &Path) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        let hash = crate::id::hex8(&[common_dir.as_os_str().as_bytes()]);
        self.0.join("locks").join(format!("repository-{hash}"))
    }
}
