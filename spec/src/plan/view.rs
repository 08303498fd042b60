//! The sandbox's view, mount by mount, in the order in which an executor makes them.

mod hide;
mod links;
mod plain;
mod skeleton;
mod sockets;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use super::cover::Cover;
use super::{Error, Limits, Plan, Request, environment, never_writable};
use crate::git::Access;
use crate::host::{Host, Node, Tree};
use crate::mount::{Kind, Mount};
use crate::origin::{Origin, Sourced};
use crate::paths::{depth, is_within};
use crate::policy::{Home, Policy};
use plain::Plain;
use skeleton::{KEPT_IN_RUN, OWN_TOP, skeleton};

pub(super) fn build(
    policy: &Policy,
    host: &Host,
    tree: &dyn Tree,
    request: Request,
    secrets: &[Sourced<PathBuf>],
) -> Result<Plan, Error> {
    if request.command.first().is_none_or(String::is_empty) {
        return Err(Error::NoCommand);
    }
    let home = host.home.clone().ok_or(Error::NoHome)?;
    let mut view = View {
        policy,
        host,
        tree,
        request: &request,
        mounts: Vec::new(),
        covers: Vec::new(),
        hidden: Vec::new(),
        masked: Vec::new(),
        watched: Vec::new(),
        sockets: Vec::new(),
        plain: BTreeMap::new(),
        widened: Vec::new(),
        top_hidden: HashSet::new(),
        warnings: refused_variables(host),
        plain_home: None,
        home_read_only: false,
    };
    view.system();
    view.home(&home)?;
    view.collect_plain()?;
    view.hide(secrets)?;
    view.hide_sockets();
    view.place_overlays();
    view.place_plain();
    // Parents first, whatever the rule; of two on the same path the later rule is on top.
    view.mounts.sort_by_key(|mount| depth(&mount.target));
    view.place_guard();
    view.place_masks();
    view.open_sockets()?;
    view.check_reachable()?;
    let View { mounts, covers, hidden, masked, watched, sockets, .. } = view;
    let View { top_hidden, widened, warnings, plain_home, home_read_only, .. } = view;
    let environment::Built { env, dropped: env_dropped } = environment::build(policy, host, &request);
    let root = host.is_root();
    Ok(Plan {
        session: policy.session.value.clone(),
        turn: request.turn.clone(),
        workspace: request.workspace.clone(),
        command: request.command.clone(),
        env,
        env_dropped,
        uid: host.uid,
        gid: host.gid,
        umask: host.umask,
        skeleton: skeleton(host, tree, &top_hidden, &mounts),
        mounts,
        covers,
        readonly_paths: if root { paths(ROOT_READ_ONLY) } else { Vec::new() },
        masked_paths: if root { paths(ROOT_MASKED) } else { Vec::new() },
        hidden,
        masked,
        watched,
        sockets,
        widened,
        home: policy.home.clone(),
        network: policy.network.clone(),
        allow: policy.allow.clone(),
        limits: Limits {
            memory: policy.memory.clone(),
            cpus: policy.cpus.clone(),
            pids: policy.pids.clone(),
            timeout: policy.timeout.clone(),
        },
        fallback: policy.fallback.keys().cloned().collect(),
        guard: request.guard,
        executor: policy.executor.clone(),
        terminal: host.terminal,
        window: host.window,
        warnings,
        home_masked: plain_home.is_some(),
        home_read_only,
    })
}

fn refused_variables(host: &Host) -> Vec<String> {
    host.env_refused.iter().map(|name| format!("variable {name} is not UTF-8 and was dropped")).collect()
}

/// Uid 0 may write these even without a capability: `/proc/sys/kernel/core_pattern` is a program that the
/// kernel runs as root on the host.
const ROOT_READ_ONLY: &[&str] = &[
    "/proc/sys",
    "/proc/sysrq-trigger",
    "/proc/irq",
    "/proc/bus",
    "/proc/fs",
    "/proc/acpi",
    "/proc/scsi",
    "/proc/asound",
];

/// What runc and Docker mask; all of it describes or addresses the host.
const ROOT_MASKED: &[&str] = &[
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

fn paths(list: &[&str]) -> Vec<PathBuf> {
    list.iter().map(PathBuf::from).collect()
}

struct View<'a> {
    policy: &'a Policy,
    host: &'a Host,
    tree: &'a dyn Tree,
    request: &'a Request,
    mounts: Vec<Mount>,
    covers: Vec<Cover>,
    hidden: Vec<Sourced<PathBuf>>,
    masked: Vec<PathBuf>,
    watched: Vec<PathBuf>,
    /// Sockets of the host that are masked.
    sockets: Vec<PathBuf>,
    plain: BTreeMap<PathBuf, Plain>,
    /// What is shown although it is hidden by default.
    widened: Vec<Sourced<PathBuf>>,
    /// Names in the root directory that are hidden.
    top_hidden: HashSet<PathBuf>,
    warnings: Vec<String>,
    /// The home was to keep changes to itself, and cannot.
    home_read_only: bool,
    /// The home, where it cannot be covered: then what is hidden in it is masked.
    plain_home: Option<PathBuf>,
}

impl View<'_> {
    fn push(
        &mut self,
        target: impl Into<PathBuf>,
        kind: Kind,
        rule: &'static str,
        why: &str,
        origin: Origin,
    ) {
        self.mounts.push(Mount { target: target.into(), kind, rule, why: why.to_owned(), origin });
    }

    fn bind(&mut self, path: &Path, access: Access, rule: &'static str, why: &str, origin: Origin) {
        self.push(path, Kind::Bind { source: path.to_owned(), access }, rule, why, origin);
    }

    fn system(&mut self) {
        let root = Origin::default_rule;
        for (name, node) in &self.host.top {
            if !OWN_TOP.contains(&name.as_str()) && matches!(node, Node::Directory { .. } | Node::File) {
                self.bind(&Path::new("/").join(name), Access::Read, "root", "the host's, read-only", root());
            }
        }
        self.push("/proc", Kind::Proc, "proc", "processes of the sandbox only", root());
        self.push(
            "/dev",
            Kind::Tmpfs { mode: 0o755, devices: true },
            "dev",
            "a minimal set of devices",
            root(),
        );
        self.push("/dev/pts", Kind::Devpts, "dev", "terminals of its own", root());
        for path in ["/dev/shm", "/tmp", "/var/tmp", "/run/lock"] {
            if path != "/var/tmp" || self.tree.node(Path::new(path)).is_some() {
                self.push(
                    path,
                    Kind::Tmpfs { mode: 0o1777, devices: false },
                    "tmp",
                    "private to the turn",
                    root(),
                );
            }
        }
        let user = format!("/run/user/{}", self.host.uid);
        self.push(user, Kind::Tmpfs { mode: 0o700, devices: false }, "run", "private to the turn", root());
        // Wherever the caller's runtime directory is, its sockets are its session's.
        if let Some(real) = self.host.session_runtime.clone() {
            let apart = !real.starts_with("/run") && never_writable(&real, self.host).is_some();
            let above_home = self.host.home.as_ref().is_some_and(|home| home.starts_with(&real));
            if apart && !above_home && real != Path::new("/") {
                let kind = Kind::Tmpfs { mode: 0o700, devices: false };
                self.push(real, kind, "run", "private to the turn", Origin::environment("XDG_RUNTIME_DIR"));
            }
        }
        for path in KEPT_IN_RUN {
            if self.tree.node(Path::new(path)).is_some() {
                self.bind(Path::new(path), Access::Read, "run", "the system's programs", Origin::host(*path));
            }
        }
    }

    /// The covers that every sandbox has: the home, a second home, as root `/etc`, the resolver's directory.
    fn home(&mut self, home: &Path) -> Result<(), Error> {
        let origin = self.policy.home.origin.clone();
        let mode = |path: &Path| match self.tree.node(path) {
            Some(Node::Directory { mode }) => Some(mode),
            _ => None,
        };
        let home_mode = mode(home).ok_or(Error::NoHome)?;
        let mounted = (!self.host.is_root()).then(|| self.host.mounts_below(home).next()).flatten();
        match (self.policy.home.value, mounted) {
            (Home::Overlay | Home::Readonly, Some(mounted)) => {
                // In a user namespace the kernel refuses a lower layer with mounts on it (EINVAL).
                let why = "the home, read-only; what is hidden is masked";
                self.bind(home, Access::Read, "home", why, origin);
                self.plain_home = Some(home.to_owned());
                self.warnings.push(format!(
                    "{} is mounted in the home, and an ordinary user cannot lay an overlay over that: the home is \
                     read-only, and what is hidden in it is masked",
                    mounted.display()
                ));
            }
            (mode, _) => self.cover_home(mode, home, home_mode, origin),
        }
        let mode = |path: &Path| match self.tree.node(path) {
            Some(Node::Directory { mode }) => Some(mode),
            _ => None,
        };
        let apart = |other: &&PathBuf| !other.starts_with(home) && !home.starts_with(other);
        let others = self.host.other_home.iter().filter(apart).chain(&self.host.resolver);
        for other in others {
            if let Some(mode) = mode(other) {
                self.covers.push(Cover::new(other.clone(), mode, false));
            }
        }
        Ok(())
    }

    fn cover_home(&mut self, mode: Home, home: &Path, home_mode: u32, origin: Origin) {
        match mode {
            Home::Overlay if !self.host.writable_layers => {
                self.covers.push(Cover::new(home.to_owned(), home_mode, false));
                self.home_read_only = true;
                self.warnings.push(format!(
                    "overlayfs cannot write to a layer on the file system of {} (as in a container): the home is \
                     read-only; a state directory on a disk of this machine (XDG_STATE_HOME) mends that",
                    self.host.state.path().display()
                ));
            }
            Home::Overlay => self.covers.push(Cover::new(home.to_owned(), home_mode, true)),
            Home::Readonly => self.covers.push(Cover::new(home.to_owned(), home_mode, false)),
            Home::Hidden => {
                let kind = Kind::Tmpfs { mode: home_mode, devices: false };
                self.push(home, kind, "home", "an empty home", origin);
            }
        }
    }

    fn place_overlays(&mut self) {
        let mut order: Vec<usize> = (0..self.covers.len()).collect();
        order.sort_by_key(|&index| depth(&self.covers[index].root));
        for index in order {
            let root = self.covers[index].root.clone();
            if self.top_hidden.iter().any(|hidden| root.starts_with(hidden)) {
                // A name that the sandbox's root directory does not have.
                continue;
            }
            let home = self.host.home.as_ref() == Some(&root);
            let (rule, why) = match (home, self.covers[index].upper) {
                (true, true) => ("home", "the home, copy-on-write"),
                (true, false) => ("home", "the home, read-only"),
                _ => ("hide", "read-only, without what is hidden"),
            };
            let origin = if home { self.policy.home.origin.clone() } else { Origin::default_rule() };
            self.push(root.clone(), Kind::Overlay { cover: index }, rule, why, origin);
            // What is mounted below is not part of an overlay's lower layer.
            let below: Vec<PathBuf> = self.host.mounts_below(&root).map(Path::to_owned).collect();
            for at in below {
                // A plain bind brings along what is mounted in it, as it is.
                let plain = self.plain.keys().any(|plain| at.starts_with(plain) && plain.starts_with(&root));
                let hidden = plain || self.hidden.iter().any(|hidden| is_within(&at, &hidden.value));
                let inner = self.covers.iter().any(|other| at.starts_with(&other.root) && other.root != root);
                if !hidden
                    && !inner
                    && matches!(self.tree.node(&at), Some(Node::Directory { .. } | Node::File))
                {
                    let origin = Origin::host("mount point");
                    self.bind(&at, Access::Read, "home", "a file system mounted there", origin);
                }
            }
        }
    }

    fn place_guard(&mut self) {
        let Some(guard) = self.request.guard.as_ref() else { return };
        for bind in &guard.binds {
            let kind = Kind::Bind { source: bind.source.clone(), access: bind.access };
            let origin = Origin::git(guard.protection.as_str());
            self.mounts.push(Mount {
                target: bind.target.clone(),
                kind,
                rule: "git.protection",
                why: bind.reason.clone(),
                origin,
            });
        }
    }
}

/// Whether a mount is the sandbox's own, with nothing of the host's in it.
fn is_fresh(mount: &Mount) -> bool {
    matches!(mount.kind, Kind::Tmpfs { .. } | Kind::Proc | Kind::Devpts)
}
