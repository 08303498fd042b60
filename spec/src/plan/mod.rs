//! The plan: the policy resolved against this host. Absolute paths, every rule with its origin, mounts in
//! the order in which they are made. Everything an executor will do is decided here; the bundle writes it
//! down.

mod cover;
mod environment;
mod error;
mod view;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use cover::{Cover, Entry};
pub use error::Error;

use crate::git::{Access, Guard};
use crate::host::{Host, Node, Tree};
use crate::id::{SessionId, TurnId};
use crate::mount::{Kind, Mount};
use crate::origin::{Origin, Sourced};
use crate::policy::{Executor, Home, Network, Policy};

/// What the sandbox looks like and what runs in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The session.
    pub session: SessionId,
    /// The turn.
    pub turn: TurnId,
    /// The workspace's real path; also the command's working directory.
    pub workspace: PathBuf,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The complete environment of the command.
    pub env: Vec<(String, String)>,
    /// Variables of the caller that were left out, and why.
    pub env_dropped: Vec<(String, String)>,
    /// The ids that the command runs with.
    pub uid: u32,
    /// The ids that the command runs with.
    pub gid: u32,
    /// The umask that the command runs with.
    pub umask: u32,
    /// What the sandbox's root directory holds before anything is mounted: directories to mount on, links.
    pub skeleton: Vec<(PathBuf, Node)>,
    /// The mounts, in order.
    pub mounts: Vec<Mount>,
    /// The layers of whiteouts that the overlay mounts use.
    pub covers: Vec<Cover>,
    /// Paths that are read-only although what they lie on is new (`/proc/sys`).
    pub readonly_paths: Vec<PathBuf>,
    /// Paths that are empty although what they lie on is new (`/proc/kcore`).
    pub masked_paths: Vec<PathBuf>,
    /// What is hidden, with origin: for `explain`.
    pub hidden: Vec<Sourced<PathBuf>>,
    /// Hidden paths that are covered by a mount on the host's own path, which the host can replace.
    pub masked: Vec<PathBuf>,
    /// Those, and the hidden paths that would be masked if they existed: to be watched.
    pub watched: Vec<PathBuf>,
    /// Sockets of the host that would answer where they are, and are masked.
    pub sockets: Vec<PathBuf>,
    /// What is shown although it is hidden by default: a widening, which is the owner's to allow.
    pub widened: Vec<Sourced<PathBuf>>,
    /// The home cannot be covered here: it is read-only, and what is hidden in it is masked.
    pub home_masked: bool,
    /// The home was to keep changes to itself, and is read-only instead.
    pub home_read_only: bool,
    /// What the home is.
    pub home: Sourced<Home>,
    /// Which network.
    pub network: Sourced<Network>,
    /// What the proxy of a network that is `allowlist` lets through.
    pub allow: Vec<Sourced<String>>,
    /// Limits.
    pub limits: Limits,
    /// Rules that the owner accepts to be weaker where this host cannot enforce them.
    pub fallback: Vec<String>,
    /// Git's part.
    pub guard: Option<Guard>,
    /// Which executor was asked for.
    pub executor: Sourced<Executor>,
    /// Which of the standard streams are a new terminal's.
    pub terminal: [bool; 3],
    /// The terminal's size (rows, columns).
    pub window: Option<(u16, u16)>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// What a turn may use at most.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Limits {
    /// Bytes of memory.
    pub memory: Option<Sourced<u64>>,
    /// Processors.
    pub cpus: Option<Sourced<f64>>,
    /// Processes and threads.
    pub pids: Option<Sourced<u64>>,
    /// Wall-clock time.
    pub timeout: Option<Sourced<Duration>>,
}

impl Limits {
    /// Whether a cgroup is needed.
    #[must_use]
    pub const fn any_resource(&self) -> bool {
        self.memory.is_some() || self.cpus.is_some() || self.pids.is_some()
    }
}

/// The turn that a plan is made for.
#[derive(Debug, Clone)]
pub struct Request {
    /// The turn's name.
    pub turn: TurnId,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The workspace, judged by [`workspace`].
    pub workspace: PathBuf,
    /// Git's part, if the workspace lies in a repository.
    pub guard: Option<Guard>,
    /// A file that the owner's rules come from, which must stay out of the turn's reach.
    pub config_file: Option<PathBuf>,
}

/// Resolves and judges the workspace (DESIGN §4, last paragraph).
///
/// # Errors
/// When it does not exist, is no directory, or is one that must not be writable as a whole.
pub fn workspace(policy: &Policy, host: &Host, tree: &dyn Tree) -> Result<PathBuf, Error> {
    let asked = &policy.workspace;
    let refuse = |why: &str| Error::Workspace {
        path: asked.value.clone(),
        why: why.to_owned(),
        origin: asked.origin.clone(),
    };
    let real = tree.real(&asked.value).ok_or_else(|| refuse("it does not exist"))?;
    if !matches!(tree.node(&real), Some(Node::Directory { .. })) {
        return Err(refuse("it is not a directory"));
    }
    if real.to_str().is_none() {
        return Err(refuse("its path is not UTF-8, which an OCI bundle cannot carry"));
    }
    if let Some(why) = never_writable(&real, host) {
        return Err(refuse(why));
    }
    Ok(real)
}

/// Why a directory must not be given to a turn as writable, if it must not.
#[must_use]
pub fn never_writable(path: &Path, host: &Host) -> Option<&'static str> {
    let runtime_dir = host.session_runtime.as_deref();
    for fixed in ["/tmp", "/var/tmp", "/run", "/dev/shm", "/dev", "/proc", "/sys"] {
        if path == Path::new(fixed) {
            return Some("everybody's files are in there; a directory below it is fine");
        }
    }
    if Some(path) == runtime_dir {
        return Some("the sockets of your session are in there; a directory below it is fine");
    }
    for kernel in ["/proc", "/sys", "/dev"] {
        if path.starts_with(kernel) && !path.starts_with("/dev/shm") {
            return Some("it belongs to the kernel");
        }
    }
    for home in host.home.iter().chain(&host.other_home) {
        if path == home {
            return Some("it is the home directory; a directory below it is fine");
        }
        if home.starts_with(path) {
            return Some("the home directory is in there");
        }
    }
    if path == Path::new("/") {
        return Some("it is the root directory");
    }
    let own = [host.state.path(), &host.runtime];
    if own.iter().any(|dir| path.starts_with(dir) || dir.starts_with(path)) {
        return Some("codeoid-shim's own state is in there");
    }
    None
}

/// Why a path must not be shown as it is on the host, if it must not: that would bring along the sockets and
/// devices that a sandbox is without by construction, or the state of other sessions.
#[must_use]
pub fn never_readable(path: &Path, host: &Host) -> Option<&'static str> {
    let runtime_dir = host.session_runtime.as_deref();
    let around = |fixed: &Path| fixed.starts_with(path);
    if [Path::new("/run"), Path::new("/dev"), Path::new("/proc")].into_iter().any(around) {
        return Some("the sandbox has its own of what is in there; name what you need in it");
    }
    if path.starts_with("/dev") || path.starts_with("/proc") {
        return Some("it belongs to the kernel");
    }
    if Some(path) == runtime_dir {
        return Some("the sockets of your session are in there; name what you need in it");
    }
    if path.starts_with(host.state.path()) || path.starts_with(&host.runtime) {
        return Some("codeoid-shim's own state is in there");
    }
    None
}

/// Makes the plan.
///
/// # Errors
/// When a path of the policy cannot be used; the error names the rule and where it was written.
pub fn resolve(
    policy: &Policy,
    host: &Host,
    tree: &dyn Tree,
    request: Request,
    secrets: &[Sourced<PathBuf>],
) -> Result<Plan, Error> {
    view::build(policy, host, tree, request, secrets)
}

impl Plan {
    /// The mount through which a path of the sandbox is seen: the last one that covers it.
    #[must_use]
    pub fn seen_through(&self, path: &Path) -> Option<&Mount> {
        self.mounts.iter().rev().find(|mount| mount.covers(path))
    }

    /// What the turn may do with a path, and the rule that decides it.
    #[must_use]
    pub fn access(&self, path: &Path) -> (Option<Access>, &'static str, Origin) {
        if let Some(hidden) = self.hidden.iter().find(|hidden| path.starts_with(&hidden.value)) {
            let plain = self.seen_through(path).is_some_and(|mount| {
                matches!(mount.kind, Kind::Bind { .. }) && mount.target.starts_with(&hidden.value)
            });
            if !plain {
                return (None, "hide", hidden.origin.clone());
            }
        }
        if self.sockets.iter().any(|socket| socket == path) {
            return (None, "sockets", Origin::host("socket"));
        }
        match self.seen_through(path) {
            Some(mount) => {
                let access = match &mount.kind {
                    Kind::Bind { access, .. } => *access,
                    Kind::Tmpfs { .. } | Kind::Devpts => Access::Write,
                    Kind::Proc => Access::Read,
                    Kind::Overlay { cover } if self.covers[*cover].upper => Access::Write,
                    Kind::Overlay { .. } => Access::Read,
                };
                (Some(access), mount.rule, mount.origin.clone())
            }
            None => {
                let there = self.skeleton.iter().any(|(at, _)| at == path);
                (there.then_some(Access::Read), "root", Origin::default_rule())
            }
        }
    }
}
