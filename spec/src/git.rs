//! The repository around a workspace, and what a protection asks of the sandbox. The types are filled in by
//! `codeoid-hooks`; a plan only places them among its other mounts, so that every protection (`shared`,
//! `shadow`) fills the same place.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// How git's bookkeeping is protected (DESIGN §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protection {
    /// The sandbox sees a private shadow of the common dir; results are imported by value.
    Shadow,
    /// The sandbox writes the host's common dir; what git executes or follows is pinned, checked, restored.
    Shared,
}

impl Protection {
    /// The word that policy, report and bundle use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Shadow => "shadow",
            Self::Shared => "shared",
        }
    }
}

/// What the workspace is to its repository (gitrepository-layout(5), gitglossary(7)).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Checkout {
    /// The main checkout, or a directory below its top.
    Main {
        /// Its top directory.
        top: PathBuf,
    },
    /// A linked worktree, or a directory below its top.
    Linked {
        /// Its top directory.
        top: PathBuf,
        /// The name of its entry under `<common dir>/worktrees/`.
        entry: String,
    },
    /// A bare repository, or a directory in it.
    Bare,
}

/// One registered worktree: an entry under `<common dir>/worktrees/`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The directory name under `worktrees/`.
    pub id: String,
    /// The worktree's top directory as the entry's `gitdir` resolves (without the trailing `/.git`), or
    /// `None` where the entry is not readable as one.
    pub worktree: Option<PathBuf>,
    /// Own: it lies in the session's folder(s), or is the workspace's. Everything else is foreign.
    pub own: bool,
}

/// The repository of a workspace, as found on this host. All paths are real paths (no symlinks, no `..`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repository {
    /// `$GIT_COMMON_DIR`: what all worktrees share.
    pub common_dir: PathBuf,
    /// `$GIT_DIR` of the workspace's checkout.
    pub git_dir: PathBuf,
    /// What the workspace is.
    pub checkout: Checkout,
    /// The top of the main checkout, where there is one.
    pub main_checkout: Option<PathBuf>,
    /// All registered worktrees.
    pub entries: Vec<Entry>,
    /// The directory beside the main checkout (or bare repository) that holds all sessions' folders:
    /// `<repo>-worktrees`.
    pub worktrees_root: PathBuf,
    /// This session's folders for worktrees, the preferred one first: beside the checkout, then one for
    /// each usable worktree root.
    pub session_folders: Vec<PathBuf>,
    /// Further directories that hold worktrees or folders of other sessions (`<root>/<repo-slug>`).
    pub other_roots: Vec<PathBuf>,
}

/// Read-only or writable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Readable.
    Read,
    /// Readable and writable.
    Write,
}

/// A bind mount that a protection asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// What is bound; a real path on the host.
    pub source: PathBuf,
    /// Where it appears in the sandbox; exists there.
    pub target: PathBuf,
    /// How.
    pub access: Access,
    /// Why, in a few words: what `explain` says.
    pub reason: String,
}

/// What a protection asks of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guard {
    /// Which protection.
    pub protection: Protection,
    /// The repository that is guarded.
    pub repository: Repository,
    /// Bind mounts, in this order, after the workspace and the session folders are in place.
    pub binds: Vec<Bind>,
    /// Environment for the turn.
    pub env: Vec<(String, String)>,
    /// Paths that do not exist and must not appear while the turn runs (`.git/commondir`, `.git/hooks`).
    pub watch: Vec<PathBuf>,
}
