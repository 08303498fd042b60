//! The policy: exactly what a person wrote, in the configuration file, in the environment and on the command
//! line, put together by fixed rules. It touches no system: paths are absolute but not resolved, nothing is
//! looked up. What it means on this host is the plan's business.
//!
//! The attacker here is whoever can write one of these sources, or profits when one of them is misread. So
//! nothing is skipped: an unknown key, a key given twice, a variable with a typing error, a file that others
//! can write are errors, because each of them would be a sandbox weaker than its owner believes.

mod destination;
mod error;
mod file;
mod key;
mod layer;
mod read;
mod resolve;
mod schema;
pub mod value;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::git::Protection;
use crate::id::SessionId;
use crate::origin::Sourced;

pub use destination::{Destination, DestinationFault, Host};
pub use error::{Error, Place};
pub use key::{Key, Kind, SECTION, SESSION_VARIABLE, VARIABLE_PREFIX};
pub use layer::{Layer, List};
pub use read::{MAX_FILE, load, read_config};
pub use resolve::{Context, resolve};
pub use schema::schema;
pub use value::{DockerSocket, Executor, Fallback, Home, Network, ReportTarget};

/// The session that a turn belongs to where nobody says otherwise.
pub const DEFAULT_SESSION: &str = "default";
/// The configuration file, below the home.
pub const CONFIG_FILE: &str = ".codeoid/config.json";
/// How git's bookkeeping is protected where nobody says otherwise.
pub const DEFAULT_PROTECTION: Protection = Protection::Shared;

/// What the owner's configuration file says of what only its owner may weaken (DESIGN §6).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owner {
    /// The network.
    pub network: Option<Network>,
    /// What is seen of the home.
    pub home: Option<Home>,
    /// How git's bookkeeping is protected.
    pub protection: Option<Protection>,
}

/// What a turn may do, as written: one value for each option, with the place where it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// The session that the turn belongs to.
    pub session: Sourced<SessionId>,
    /// The directory that the turn works in: absolute, not yet resolved.
    pub workspace: Sourced<PathBuf>,
    /// What runs the bundle.
    pub executor: Sourced<Executor>,
    /// The image that the docker executor runs the turn in.
    pub image: Option<Sourced<String>>,
    /// What the owner's file says, whatever else is said.
    pub owner: Owner,
    /// Which network the turn has.
    pub network: Sourced<Network>,
    /// The destinations that [`Network::Allowlist`] lets through: `host` or `host:port`, in lower case.
    pub allow: Vec<Sourced<String>>,
    /// Sockets of services that the turn may connect to.
    pub sockets: Vec<Sourced<PathBuf>>,
    /// Docker access.
    pub docker_socket: Sourced<DockerSocket>,
    /// The images that a brokered Docker socket may run; empty: any.
    pub docker_images: Vec<Sourced<String>>,
    /// The caller confirms this turn's widening where there is no terminal to ask at.
    pub confirm_widening: bool,
    /// Further directories in which the session may have worktrees.
    pub worktree_roots: Vec<Sourced<PathBuf>>,
    /// How git's bookkeeping is protected.
    pub protection: Sourced<Protection>,
    /// What the turn sees of the home directory.
    pub home: Sourced<Home>,
    /// Paths that are readable as they are on the host.
    pub read: Vec<Sourced<PathBuf>>,
    /// Paths that are writable.
    pub write: Vec<Sourced<PathBuf>>,
    /// Paths that do not exist for the turn.
    pub hide: Vec<Sourced<PathBuf>>,
    /// Variables that are set for the turn; each name once.
    pub env_set: Vec<Sourced<(String, String)>>,
    /// Variables (names, or patterns with `*`) that are handed on although they are dropped by default.
    pub env_pass: Vec<Sourced<String>>,
    /// Variables (names, or patterns with `*`) that are dropped, whatever else is said.
    pub env_drop: Vec<Sourced<String>>,
    /// The most memory that the turn may use, in bytes.
    pub memory: Option<Sourced<u64>>,
    /// The most processor time, in processors.
    pub cpus: Option<Sourced<f64>>,
    /// The most processes and threads.
    pub pids: Option<Sourced<u64>>,
    /// How long the turn may take.
    pub timeout: Option<Sourced<Duration>>,
    /// The most that the session's home layer may hold, in bytes.
    pub home_limit: Option<Sourced<u64>>,
    /// Rules that may be weaker on a host that cannot enforce them.
    pub fallback: BTreeMap<String, Sourced<Fallback>>,
    /// Where the turn report goes.
    pub report: Option<Sourced<ReportTarget>>,
    /// The configuration file that was read: its real path. A turn must never be able to write it.
    pub config: Option<PathBuf>,
    /// The bundle stays after the turn.
    pub keep_bundle: bool,
    /// Nothing is written to stderr but errors.
    pub quiet: bool,
}
