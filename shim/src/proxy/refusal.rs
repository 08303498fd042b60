//! What was refused, and how the process that serves tells the supervisor.

use std::collections::HashSet;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use nix::sys::socket::{MsgFlags, send};
use serde::{Deserialize, Serialize};

/// The longest notice: two names of 255 bytes, with room for words around them.
pub const MAX: usize = 2048;

/// How many destinations of a turn are told of: the turn chooses them, and could fill the disk with them.
const MOST: usize = 100;

/// A destination that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What was asked for, `HOST:PORT`.
    pub destination: String,
    /// Why it was refused, as a clause.
    pub why: String,
    /// The rule that would let it through.
    pub allow: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was refused: {}; `--allow {}` lists it", self.destination, self.why, self.allow)
    }
}

/// What the supervisor is told, one datagram each.
#[derive(Debug, Serialize, Deserialize)]
pub enum Notice {
    /// A destination was refused, for the first time.
    Refused(Refusal),
    /// There were so many that others are not told of.
    More,
}

/// Tells the supervisor of each refused destination once.
pub struct Log {
    to: OwnedFd,
    told: Mutex<HashSet<String>>,
}

impl Log {
    /// A log that goes to this socket.
    pub fn new(to: OwnedFd) -> Self {
        Self { to, told: Mutex::default() }
    }

    /// Tells of a refusal, before the turn hears of it.
    pub fn tell(&self, refusal: &Refusal) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() > MOST || !told.insert(refusal.destination.clone()) {
            return;
        }
        let notice = if told.len() > MOST { Notice::More } else { Notice::Refused(refusal.clone()) };
        let bytes = serde_json::to_vec(&notice).expect("plain data serializes");
        // The supervisor may be gone, and the turn with it.
        let _ = send(self.to.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL);
    }
}
