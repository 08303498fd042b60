//! What engine and init tell the supervisor, one datagram each on a SOCK_SEQPACKET socket.

use serde::{Deserialize, Serialize};

/// The longest message; longer error texts are cut.
pub const MAX: usize = 4096;

/// A message to the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Engine: the namespaces are as later turns of the session must find them.
    Joinable,
    /// Engine: here is the proxy's socket, listening in the sandbox's network namespace (one descriptor, SCM_RIGHTS).
    Listening,
    /// Init: the sandbox stands, and the command is about to run. The sender's pid is init's.
    Up,
    /// Engine: the sandbox could not be made.
    Failed {
        /// What was being done.
        what: String,
        /// Why it failed.
        why: String,
        /// What to do about it.
        hint: Option<String>,
    },
    /// Init: a step before the command failed.
    InitFailed {
        /// The step.
        step: String,
        /// errno(3).
        errno: i32,
    },
    /// Init: the command could not be executed.
    ExecFailed {
        /// errno(3).
        errno: i32,
    },
    /// Init: here is the terminal's master (one descriptor, SCM_RIGHTS).
    Terminal,
    /// Init: the command was stopped (job control).
    Stopped {
        /// By this signal.
        signal: i32,
    },
    /// Init: the command ended.
    Exited {
        /// Its exit code…
        code: Option<i32>,
        /// …or the signal that ended it.
        signal: Option<i32>,
    },
}

impl Message {
    /// The datagram.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("plain data serializes");
        if bytes.len() > MAX {
            let short = Self::Failed {
                what: "start the sandbox".to_owned(),
                why: "the error text is too long to hand on".to_owned(),
                hint: None,
            };
            bytes = serde_json::to_vec(&short).expect("plain data serializes");
        }
        bytes
    }

    /// The message in a datagram.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}
