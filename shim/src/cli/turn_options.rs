//! The options of a turn, as `run`, `bundle` and `explain` take them. They are handed on as they were
//! written; what they mean is the policy's business.

use std::ffi::{OsStr, OsString};

use clap::Args;
use codeoid_spec::policy::{self, Context, Key, Layer, Policy};

use crate::diagnostic::{Doing, Failure};

/// The options of a turn. Each has a key in the configuration file and an environment variable; an option
/// goes before a variable, a variable before the file.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Turn options")]
pub struct TurnOptions {
    /// Session that the turn belongs to [env: CODEOID_SESSION] [default: default]
    #[arg(long, value_name = "ID")]
    session: Option<OsString>,
    /// Directory that the turn works in [default: the current directory]
    #[arg(long, value_name = "DIR")]
    workspace: Option<OsString>,
    /// What runs the bundle: auto, libcontainer, bwrap, seatbelt, docker, srt [default: auto]
    #[arg(long, value_name = "EXECUTOR")]
    executor: Option<OsString>,
    /// Image for the docker executor
    #[arg(long, value_name = "IMAGE")]
    image: Option<OsString>,
    /// Network: host, off, allowlist [default: host]
    #[arg(long, value_name = "MODE")]
    network: Option<OsString>,
    /// Destination that `--network allowlist` lets through: a name, *.NAME, an address or a network; may be repeated
    #[arg(long, value_name = "HOST[:PORT]")]
    allow: Vec<OsString>,
    /// Socket of a service that the turn may connect to; may be repeated
    #[arg(long, value_name = "PATH")]
    socket: Vec<OsString>,
    /// Docker access: raw (the whole machine) or brokered; a widening [bare: raw]
    #[arg(long, value_name = "MODE", num_args = 0..=1, require_equals = true, default_missing_value = "raw")]
    docker_socket: Option<OsString>,
    /// Confirm this turn's widening of the sandbox where there is no terminal to ask at
    #[arg(long)]
    confirm_widening: bool,
    /// Further directory in which the session may have worktrees; may be repeated
    #[arg(long, value_name = "DIR")]
    worktree_root: Vec<OsString>,
    /// How git's bookkeeping is protected: shared or shadow [default: shared]
    #[arg(long, value_name = "LEVEL")]
    git_protection: Option<OsString>,
    /// The home in the sandbox: overlay (copy-on-write, kept for the session), readonly, hidden
    /// [default: overlay]
    #[arg(long, value_name = "MODE")]
    home: Option<OsString>,
    /// Path that is readable as it is on the host; may be repeated
    #[arg(long, value_name = "PATH")]
    read: Vec<OsString>,
    /// Path that is writable; may be repeated
    #[arg(long, value_name = "PATH")]
    write: Vec<OsString>,
    /// Path that does not exist for the turn; may be repeated
    #[arg(long, value_name = "PATH")]
    hide: Vec<OsString>,
    /// Set a variable of the command's environment; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<OsString>,
    /// Hand a variable on that is dropped by default; may be repeated
    #[arg(long, value_name = "NAME")]
    pass_env: Vec<OsString>,
    /// Memory limit (512M, 2GiB)
    #[arg(long, value_name = "SIZE")]
    memory: Option<OsString>,
    /// Processor limit, in processors
    #[arg(long, value_name = "N")]
    cpus: Option<OsString>,
    /// Limit for processes and threads
    #[arg(long, value_name = "N")]
    pids: Option<OsString>,
    /// Wall-clock limit (90s, 5m, 1h30m)
    #[arg(long, value_name = "DURATION")]
    timeout: Option<OsString>,
    /// Where the turn report goes: a file, or `fd:N`
    #[arg(long, value_name = "FILE|fd:N")]
    report: Option<OsString>,
    /// Configuration file [default: ~/.codeoid/config.json]
    #[arg(long, value_name = "FILE")]
    config: Option<OsString>,
    /// Keep the bundle after the turn
    #[arg(long)]
    keep_bundle: bool,
    /// Print nothing but errors
    #[arg(long)]
    quiet: bool,
}

impl TurnOptions {
    /// Whether any was given: then the verb is about a turn.
    pub fn layer(&self) -> Result<Layer, policy::Error> {
        let mut layer = Layer::default();
        let single = [
            (Key::Session, &self.session),
            (Key::Workspace, &self.workspace),
            (Key::Executor, &self.executor),
            (Key::Image, &self.image),
            (Key::Network, &self.network),
            (Key::DockerSocket, &self.docker_socket),
            (Key::GitProtection, &self.git_protection),
            (Key::Home, &self.home),
            (Key::Memory, &self.memory),
            (Key::Cpus, &self.cpus),
            (Key::Pids, &self.pids),
            (Key::Timeout, &self.timeout),
            (Key::Report, &self.report),
            (Key::Config, &self.config),
        ];
        for (key, value) in single {
            if let Some(value) = value {
                layer.flag(key, value)?;
            }
        }
        let several = [
            (Key::Allow, &self.allow),
            (Key::Socket, &self.socket),
            (Key::WorktreeRoot, &self.worktree_root),
            (Key::Read, &self.read),
            (Key::Write, &self.write),
            (Key::Hide, &self.hide),
            (Key::Env, &self.env),
            (Key::PassEnv, &self.pass_env),
        ];
        for (key, values) in several {
            for value in values {
                layer.flag(key, value)?;
            }
        }
        let switches = [
            (Key::ConfirmWidening, self.confirm_widening),
            (Key::KeepBundle, self.keep_bundle),
            (Key::Quiet, self.quiet),
        ];
        for (key, on) in switches {
            if on {
                layer.flag(key, OsStr::new("1"))?;
            }
        }
        Ok(layer)
    }

    /// The policy that these options, the environment and the configuration file make together.
    pub fn policy(&self) -> Result<Policy, Failure> {
        let failed = |error: policy::Error| {
            let failure = Failure::new("read the policy", crate::diagnostic::chain(&error));
            match error.hint() {
                Some(hint) => failure.hint(hint),
                None => failure,
            }
        };
        let cwd = std::env::current_dir().doing("find the current directory")?;
        let home = crate::probe::home().unwrap_or_default();
        let flags = self.layer().map_err(failed)?;
        let environment = Layer::from_environment(std::env::vars_os()).map_err(failed)?;
        policy::load(flags, environment, &Context { cwd, home }).map_err(failed)
    }
}
