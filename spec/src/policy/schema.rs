//! The configuration file's JSON schema, for editors. The parser does not go by it; a test holds the two, and
//! the documentation, together.

#![expect(dead_code, reason = "of these types only the shape is used")]

use std::collections::BTreeMap;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;

use super::value::{DockerSocket, Executor, Fallback, Home, Network};
use crate::git::Protection;

/// The schema of `~/.codeoid/config.json` (JSON Schema, draft 2020-12).
#[must_use]
pub fn schema() -> serde_json::Value {
    // Every key may be left out. (An Option would say that, and that null is allowed too.)
    let optional = RecursiveTransform(|schema: &mut schemars::Schema| {
        schema.remove("required");
    });
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.transforms.push(Box::new(optional));
    });
    settings.into_generator().into_root_schema_for::<File>().to_value()
}

/// The configuration file of codeoid. Keys other than `sandbox` belong to other programs.
#[derive(JsonSchema)]
#[schemars(title = "~/.codeoid/config.json")]
struct File {
    sandbox: Sandbox,
}

/// What a turn of an agent may do. Options on the command line go before variables of the environment, and
/// those before this file; lists add up. Paths are absolute, or begin with `~/`.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Sandbox {
    /// What runs the bundle (default: auto).
    executor: Executor,
    network: NetworkGroup,
    /// Sockets of services that the turn may connect to.
    sockets: Vec<String>,
    docker: DockerGroup,
    /// Further directories in which sessions may have worktrees.
    worktree_roots: Vec<String>,
    git: GitGroup,
    /// What a turn sees of the home directory (default: overlay).
    home: Home,
    /// Paths that are readable as they are on the host.
    read: Vec<String>,
    /// Paths that are writable.
    write: Vec<String>,
    /// Paths that do not exist for the turn. No option and no variable takes one of them back.
    hide: Vec<String>,
    env: EnvGroup,
    limits: LimitsGroup,
    /// Rules that may be weaker where this host cannot enforce them; without an entry the turn is refused.
    fallback: BTreeMap<String, Fallback>,
}

/// Which network a turn has.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct NetworkGroup {
    /// The network (default: host).
    mode: Network,
    /// The destinations that `allowlist` lets through: HOST or HOST:PORT, where HOST is a name, `*.NAME`, an address or a network.
    allow: Vec<String>,
}

/// Docker access.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct DockerGroup {
    /// Docker access (default: off). `true` is `raw`, which reaches the whole machine.
    socket: DockerAccess,
    /// The images that a brokered socket may run; empty: any.
    images: Vec<String>,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum DockerAccess {
    Switch(bool),
    Mode(DockerSocket),
}

/// Git's bookkeeping.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct GitGroup {
    /// How git's bookkeeping is protected (default: shared).
    protection: Protection,
}

/// The turn's environment.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct EnvGroup {
    /// Variables, or patterns with `*`, that are handed on although they are dropped by default.
    pass: Vec<String>,
    /// Variables, or patterns with `*`, that are dropped, whatever else is said.
    drop: Vec<String>,
    /// Variables that are set.
    set: BTreeMap<String, String>,
}

/// The most that a turn may use.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct LimitsGroup {
    /// Memory.
    memory: Size,
    /// Processor time, in processors.
    #[schemars(range(min = 0.001, max = 65536.0))]
    cpus: f64,
    /// Processes and threads.
    #[schemars(range(min = 1, max = 4_194_304))]
    pids: u64,
    /// Time: a number with h, m, s or ms, or several, as in 1h30m.
    timeout: String,
    /// What the session's copy of the home may hold.
    home: Size,
}

/// A number of bytes, or a string such as 512M or 2GiB.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum Size {
    Bytes(#[schemars(range(min = 1))] u64),
    Text(String),
}
