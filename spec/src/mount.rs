//! One mount of the sandbox's view, with the rule and the origin it comes from.

use std::path::{Path, PathBuf};

use crate::git::Access;
use crate::origin::Origin;

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A directory or file of the host.
    Bind {
        /// The host's path (real).
        source: PathBuf,
        /// Read-only (with everything mounted below it) or writable.
        access: Access,
    },
    /// An empty file system of its own.
    Tmpfs {
        /// Permission bits of its root.
        mode: u32,
        /// Whether device nodes in it work: for `/dev` only.
        devices: bool,
    },
    /// A host directory seen through a layer that hides, and with `upper` through one that keeps writes.
    Overlay {
        /// The layer of whiteouts: what it is called in [`crate::plan::Plan::covers`].
        cover: usize,
    },
    /// A new procfs.
    Proc,
    /// A new devpts.
    Devpts,
}

/// One mount of the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Where it appears in the sandbox.
    pub target: PathBuf,
    /// What it is.
    pub kind: Kind,
    /// The rule it enforces, as coverage and `explain` name it.
    pub rule: &'static str,
    /// Why it is there, in a few words.
    pub why: String,
    /// Where the rule comes from.
    pub origin: Origin,
}

impl Mount {
    /// Whether `path` is seen through this mount, if no later one covers it.
    #[must_use]
    pub fn covers(&self, path: &Path) -> bool {
        crate::paths::is_within(path, &self.target)
    }
}
