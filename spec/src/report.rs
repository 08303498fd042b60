//! What comes back from a turn: coverage, findings, the turn report (DESIGN §7, version 1).

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::id::{SessionId, TurnId};

/// How far an executor enforces one rule on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// The rule holds by construction.
    Enforced,
    /// The rule holds with a stated weakness.
    Weaker,
    /// The rule does not hold.
    NotEnforced,
}

/// The rules that coverage and `fallback` name.
pub const RULES: [&str; 14] = [
    "docker.socket",
    "git.protection",
    "hide",
    "home",
    "limits.cpus",
    "limits.home",
    "limits.memory",
    "limits.pids",
    "network",
    "processes",
    "root",
    "sockets",
    "sockets.abstract",
    "workspace",
];

/// One rule's coverage: what was asked for and what this executor gives on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// The rule's name, as `fallback.{rule}` in the configuration spells it.
    pub rule: String,
    /// What holds.
    pub status: Status,
    /// One sentence: the mechanism, or what is missing.
    pub why: String,
}

/// What a check found in git's bookkeeping.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What it is, in kebab-case (`entry-commondir-changed`, `hook-added`, `symlink-planted`, …).
    pub kind: String,
    /// The worktree entry concerned, where it is one.
    pub entry: Option<String>,
    /// The path concerned.
    pub path: PathBuf,
    /// What was done about it.
    pub action: Action,
    /// One sentence for a person.
    pub detail: String,
}

/// What was done about a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Put back as the baseline (or git's own layout) has it.
    Restored,
    /// Removed; a copy is kept in the state directory where it could be somebody's work.
    Removed,
    /// Left as it is, because only its owner can judge it.
    Reported,
}

/// How the command ended: exactly one of the two is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Exit {
    /// Its own exit code.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

impl Exit {
    /// The exit code that the shim hands on: the command's own, or 128+n.
    #[must_use]
    pub fn shell_code(self) -> i32 {
        match (self.code, self.signal) {
            (Some(code), _) => code,
            (None, Some(signal)) => 128 + signal,
            (None, None) => 125,
        }
    }
}

/// Wall-clock milliseconds of a turn's stages.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Timing {
    /// Policy, host, git: until the plan stands.
    pub resolve: f64,
    /// Baseline and bundle written.
    pub build: f64,
    /// Executor started until the command ended.
    pub run: f64,
    /// Check, restore, promote, clean up.
    pub finish: f64,
}

/// The turn report, version 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnReport {
    /// The format's version: 1.
    pub version: u32,
    /// The session.
    pub session: SessionId,
    /// The turn.
    pub turn: TurnId,
    /// The executor that ran it.
    pub executor: String,
    /// `sandboxed`, or `sandboxed, Docker access`.
    pub sandbox: String,
    /// What this sandbox does not protect, in sentences.
    pub limits: Vec<String>,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// How it ended.
    pub exit: Exit,
    /// Rule by rule.
    pub coverage: Vec<Coverage>,
    /// What the check found.
    pub findings: Vec<Finding>,
    /// Refs and entries brought to the host by value.
    pub promoted: Vec<String>,
    /// Containers that were removed at the end.
    pub containers_removed: u32,
    /// What the user should know and nothing else says.
    pub warnings: Vec<String>,
    /// How long it took.
    pub timing_ms: Timing,
}
