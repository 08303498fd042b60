//! Lines for the audit log, made here and appended by `codeoid_hooks::audit`.

use std::path::Path;

use codeoid_spec::audit::{Event, Line};
use codeoid_spec::id::{SessionId, TurnId};
use codeoid_spec::state::StateDir;
use jiff::Timestamp;

use crate::diagnostic::{Doing, Failure};

/// Appends what happened. A log that cannot be written is an error: a turn that leaves no trace is not run.
pub fn append(
    state: &StateDir,
    event: Event,
    session: Option<&SessionId>,
    turn: Option<&TurnId>,
    repo: Option<&Path>,
    detail: serde_json::Value,
) -> Result<(), Failure> {
    let line = Line {
        time: Timestamp::now(),
        event,
        session: session.map(ToString::to_string),
        turn: turn.map(ToString::to_string),
        repo: repo.map(Path::to_owned),
        detail,
    };
    codeoid_hooks::audit::append(state, &line).doing("write the audit log")
}
