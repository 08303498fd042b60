//! The audit log's lines (DESIGN §7): one JSON object each, appended, never rewritten.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A turn's command is about to run.
    #[serde(rename = "turn.started")]
    TurnStarted,
    /// A turn has been checked and cleaned up.
    #[serde(rename = "turn.finished")]
    TurnFinished,
    /// A turn whose shim died was finished by a later start.
    #[serde(rename = "turn.recovered")]
    TurnRecovered,
    /// A session's record was made.
    #[serde(rename = "session.opened")]
    SessionOpened,
    /// A session was closed.
    #[serde(rename = "session.closed")]
    SessionClosed,
    /// A worktree entry (or what git executes beside it) was put back.
    #[serde(rename = "session.worktree_entry_restored")]
    WorktreeEntryRestored,
    /// A worktree entry was not accepted.
    #[serde(rename = "session.worktree_entry_rejected")]
    WorktreeEntryRejected,
    /// The sandbox was weakened by its owner.
    #[serde(rename = "session.sandbox_widened")]
    SandboxWidened,
    /// The Docker broker refused a request.
    #[serde(rename = "session.docker_request_refused")]
    DockerRequestRefused,
    /// The network proxy refused a destination.
    #[serde(rename = "network.refused")]
    NetworkRefused,
}

/// One line of the audit log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// When, UTC, RFC 3339.
    pub time: Timestamp,
    /// What.
    pub event: Event,
    /// Whose session, where it is known.
    pub session: Option<String>,
    /// Which turn.
    pub turn: Option<String>,
    /// The repository's common dir.
    pub repo: Option<PathBuf>,
    /// Whatever else belongs to the event.
    pub detail: serde_json::Value,
}
