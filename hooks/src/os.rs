//! What the kernel refused, as all modules here say it.

use std::path::{Path, PathBuf};

use nix::errno::Errno;

/// A system call failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{call} {path}")]
pub struct OsError {
    /// The system call.
    pub call: &'static str,
    /// What it was asked for.
    pub path: PathBuf,
    /// What the kernel answered.
    #[source]
    pub errno: Errno,
}

impl OsError {
    pub(crate) fn new(call: &'static str, path: impl AsRef<Path>, errno: Errno) -> Self {
        Self { call, path: path.as_ref().to_owned(), errno }
    }
}

/// A file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("write {path}")]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// What the kernel answered.
    #[source]
    pub source: std::io::Error,
}

impl WriteError {
    pub(crate) fn new(path: impl AsRef<Path>, source: std::io::Error) -> Self {
        Self { path: path.as_ref().to_owned(), source }
    }
}
