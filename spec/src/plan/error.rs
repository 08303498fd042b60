//! Why a plan cannot be made.

use std::path::PathBuf;

use crate::origin::Origin;

/// Why a plan cannot be made. Each names the rule, where it was written, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The workspace cannot be used.
    #[error("workspace {} ({origin}): {why}", .path.display())]
    Workspace {
        /// As written.
        path: PathBuf,
        /// The reason.
        why: String,
        /// Where it was written.
        origin: Origin,
    },
    /// A path of a rule cannot be used.
    #[error("{rule} {} ({origin}): {why}", .path.display())]
    Path {
        /// The rule: `read`, `write`, `hide`.
        rule: &'static str,
        /// As written.
        path: PathBuf,
        /// The reason.
        why: String,
        /// Where it was written.
        origin: Origin,
    },
    /// The workspace lies in something that is hidden.
    #[error("workspace {} lies in {}, which is hidden ({origin})", .workspace.display(), .hidden.display())]
    WorkspaceHidden {
        /// The workspace.
        workspace: PathBuf,
        /// What is hidden.
        hidden: PathBuf,
        /// Where that was written.
        origin: Origin,
    },
    /// There is no home directory to protect.
    #[error(
        "no home directory is known: $HOME is unset or not a directory, and the user database names none"
    )]
    NoHome,
    /// The file that the owner's rules come from could be changed by the turn.
    #[error("the configuration file {} lies in {}, which the turn may write", .file.display(), .writable.display())]
    ConfigWritable {
        /// The file.
        file: PathBuf,
        /// The writable directory.
        writable: PathBuf,
    },
    /// No command was given.
    #[error("the command is empty")]
    NoCommand,
}

impl Error {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Workspace { .. } => "name another directory with --workspace",
            Self::Path { .. } => "correct or remove the rule",
            Self::WorkspaceHidden { .. } => "work elsewhere, or take the path out of what is hidden",
            Self::NoHome => "set HOME to an existing directory",
            Self::ConfigWritable { .. } => "keep the configuration outside the workspace",
            Self::NoCommand => "put the command after `--`",
        })
    }
}
