//! What goes wrong with a container. The wording is runc's wherever an engine acts upon it: Docker and podman
//! decide by it whether they end with 125, 126 or 127, and whether a container is "gone".

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;

use super::record::Status;

/// The result of a verb.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no state of a container of this name.
    #[error("container does not exist")]
    NotExist,
    /// There is one already.
    #[error("container with given ID already exists")]
    Exists,
    /// No name at all.
    #[error("container ID cannot be empty")]
    EmptyId,
    /// A name that is no file name, or holds what runc does not take.
    #[error("invalid container ID format")]
    InvalidId,
    /// Its process has ended, or was never started.
    #[error("container not running")]
    NotRunning,
    /// A verb that this status does not allow.
    #[error("cannot {verb} a container in the {status} state")]
    Status {
        /// The verb.
        verb: &'static str,
        /// The status.
        status: Status,
    },
    /// `delete` of what lives, without `--force`.
    #[error("cannot delete container {id} that is not stopped: {status}")]
    NotStopped {
        /// The container.
        id: String,
        /// Its status.
        status: Status,
    },
    /// `start` of a container that is not `created`.
    #[error("cannot start a container that has {0}")]
    CannotStart(&'static str),
    /// `exec` in one that is paused.
    #[error("cannot exec in a paused container (use --ignore-paused to override)")]
    ExecPaused,
    /// `exec` in one that has ended.
    #[error("cannot exec in a stopped container")]
    ExecStopped,
    /// The bundle has no configuration.
    #[error("JSON specification file {0} not found")]
    NoConfig(&'static str),
    /// The configuration cannot be read as one.
    #[error("{what}: {why}")]
    Config {
        /// The file or the member.
        what: String,
        /// What is wrong.
        why: String,
    },
    /// Something that libcontainer would ignore, and so is refused.
    #[error("{0} is not supported by this runtime")]
    Unsupported(String),
    /// The start of a process inside, in the words of the process itself.
    #[error("unable to start container process: {0}")]
    Process(String),
    /// A hook failed where that ends the container.
    #[error("{0}")]
    Hook(#[from] super::hooks::Error),
    /// The system said no.
    #[error("{what}: {source}")]
    Io {
        /// What was done.
        what: String,
        /// What it said.
        source: io::Error,
    },
    /// Unreadable state.
    #[error("state of the container {path}: {source}")]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The cgroup is in use.
    #[error("{0}")]
    Cgroup(String),
    /// An argument that makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A system call of ours.
    #[error(transparent)]
    System(#[from] crate::sys::Error),
    /// The system call filter.
    #[error("seccomp: {0}")]
    Filter(#[from] crate::seccomp::Error),
    /// The caller's signals or terminal.
    #[error("{0}")]
    Caller(#[from] crate::diagnostic::Failure),
}

impl Error {
    /// A failed step, with the system's reason.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Io { what: what.into(), source }
    }

    /// The same for an errno.
    pub fn errno(what: impl Into<String>) -> impl FnOnce(Errno) -> Self {
        |errno| Self::Io { what: what.into(), source: errno.into() }
    }

    /// A member of the configuration that cannot stand as it is.
    pub fn config(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Config { what: what.into(), why: why.into() }
    }
}
