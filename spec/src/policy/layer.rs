//! One source's part of the policy, and the options that there are.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::value::{DockerSocket, Executor, Fallback, Home, Network, ReportTarget};
use crate::git::Protection;
use crate::id::SessionId;
use crate::origin::Sourced;

/// The values that one source gives for an option that takes several.
#[derive(Debug, Clone, PartialEq)]
pub struct List<T> {
    /// An empty value was given: what lower sources (and earlier values of this one) said does not count.
    pub reset: bool,
    /// The values, in the order in which they were written.
    pub values: Vec<Sourced<T>>,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { reset: false, values: Vec::new() }
    }
}

/// What one source (the command line, the environment, a configuration file) says; all of it optional.
#[derive(Debug, Clone, Default, PartialEq)]
#[expect(
    missing_docs,
    reason = "each field is the part that one source has in the field of Policy of that name"
)]
pub struct Layer {
    pub session: Option<Sourced<SessionId>>,
    pub workspace: Option<Sourced<PathBuf>>,
    pub executor: Option<Sourced<Executor>>,
    pub image: Option<Sourced<String>>,
    pub network: Option<Sourced<Network>>,
    pub allow: List<String>,
    pub sockets: List<PathBuf>,
    pub docker_socket: Option<Sourced<DockerSocket>>,
    pub docker_images: List<String>,
    pub confirm_widening: Option<Sourced<bool>>,
    pub worktree_roots: List<PathBuf>,
    pub protection: Option<Sourced<Protection>>,
    pub home: Option<Sourced<Home>>,
    pub read: List<PathBuf>,
    pub write: List<PathBuf>,
    pub hide: List<PathBuf>,
    pub env_set: List<(String, String)>,
    pub env_pass: List<String>,
    pub env_drop: List<String>,
    pub memory: Option<Sourced<u64>>,
    pub cpus: Option<Sourced<f64>>,
    pub pids: Option<Sourced<u64>>,
    pub timeout: Option<Sourced<Duration>>,
    pub home_limit: Option<Sourced<u64>>,
    pub fallback: BTreeMap<String, Sourced<Fallback>>,
    pub report: Option<Sourced<ReportTarget>>,
    /// The configuration file to read instead of the usual one.
    pub config: Option<Sourced<PathBuf>>,
    pub keep_bundle: Option<Sourced<bool>>,
    pub quiet: Option<Sourced<bool>>,
}

/// An option of a turn, whatever source gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each variant is the option of that name")]
pub enum Key {
    Session,
    Workspace,
    Executor,
    Image,
    Network,
    Allow,
    Socket,
    DockerSocket,
    DockerImages,
    ConfirmWidening,
    WorktreeRoot,
    GitProtection,
    Home,
    Read,
    Write,
    Hide,
    Env,
    PassEnv,
    DropEnv,
    Memory,
    Cpus,
    Pids,
    Timeout,
    HomeLimit,
    Fallback,
    Report,
    Config,
    KeepBundle,
    Quiet,
}
