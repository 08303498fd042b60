//! The sandbox's view, mount by mount, in the order in which an executor makes them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::cover::Cover;
use super::{Error, Limits, Plan, Request, environment, never_readable, never_writable};
use crate::git::{Access, Checkout};
use crate::host::{Host, Node, Tree};
use crate::mount::{Kind, Mount};
use crate::origin::{Origin, Sourced};
use crate::paths::is_within;
use crate::policy::{Home, Policy};
use crate::secrets;

/// Names in `/` that are the sandbox's own.
const OWN_TOP: [&str; 4] = ["proc", "dev", "run", "tmp"];

/// Worktrees elsewhere in the home, above which a common parent is bound instead of each of them.
const MANY_WORKTREES: usize = 16;

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

/// The sandbox's root directory: a name for each of the host's, and a `/run` of its own. Read-only.
fn skeleton(
    host: &Host,
    tree: &dyn Tree,
    hidden: &HashSet<PathBuf>,
    mounts: &[Mount],
) -> Vec<(PathBuf, Node)> {
    let directory = |mode| Node::Directory { mode };
    let mut entries: BTreeMap<PathBuf, Node> = host
        .top
        .iter()
        .filter(|(name, _)| !OWN_TOP.contains(&name.as_str()))
        .filter(|(_, node)| !matches!(node, Node::Other))
        .map(|(name, node)| {
            // Mounted over: the modes come from the host.
            let node = if matches!(node, Node::Directory { .. }) { directory(0o755) } else { node.clone() };
            (Path::new("/").join(name), node)
        })
        .filter(|(path, _)| !hidden.contains(path))
        .collect();
    for (path, mode) in [("/proc", 0o555), ("/dev", 0o755), ("/run", 0o755), ("/tmp", 0o1777)] {
        entries.insert(PathBuf::from(path), directory(mode));
    }
    for (path, mode) in [("/run/lock", 0o1777), ("/run/user", 0o755)] {
        entries.insert(PathBuf::from(path), directory(mode));
    }
    entries.insert(PathBuf::from(format!("/run/user/{}", host.uid)), directory(0o700));
    entries.insert(PathBuf::from("/run/shm"), Node::Link(PathBuf::from("/dev/shm")));
    let resolver = host.resolver.iter().map(PathBuf::as_path);
    let kept = KEPT_IN_RUN.iter().map(Path::new).filter(|path| tree.node(path).is_some());
    // What is mounted below `/run` needs a place there, unless a file system of its own is around it.
    let mounted = mounts.iter().map(|mount| mount.target.as_path()).filter(|at| at.starts_with("/run"));
    let mounted = mounted.filter(|at| {
        !mounts
            .iter()
            .any(|around| around.target != *at && around.target.starts_with("/run") && around.covers(at))
    });
    for path in resolver.chain(kept).chain(mounted) {
        for ancestor in path.ancestors().filter(|at| at.starts_with("/run") && *at != Path::new("/run")) {
            entries.entry(ancestor.to_owned()).or_insert(directory(0o755));
        }
    }
    entries.into_iter().collect()
}

/// What programs need of the host's `/run` on distributions that keep their system there.
const KEPT_IN_RUN: &[&str] = &[
    "/run/current-system",
    "/run/booted-system",
    "/run/wrappers",
    "/run/opengl-driver",
    "/run/systemd/timesync",
];

/// Where a plain bind comes from decides which of two rules for the same path wins; later variants win.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Git,
    Read,
    Write,
    Own,
}

struct Plain {
    rank: Rank,
    access: Access,
    rule: &'static str,
    why: String,
    origin: Origin,
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

    /// Collects what is seen as it is on the host: by path, so that parents are mounted before children.
    fn collect_plain(&mut self) -> Result<(), Error> {
        let workspace = self.request.workspace.clone();
        if let Some(guard) = self.request.guard.clone() {
            let repository = &guard.repository;
            let git = |what: &str| Origin::git(what);
            if let Some(top) = &repository.main_checkout {
                self.add(top, Rank::Git, Access::Read, "git", "the main checkout", git("main checkout"));
            }
            if let Checkout::Linked { top, .. } = &repository.checkout {
                self.add(top, Rank::Git, Access::Read, "git", "the workspace's checkout", git("worktree"));
            }
            let roots = std::iter::once(&repository.worktrees_root).chain(&repository.other_roots);
            // The session's own folders are made before the turn starts, and what is above them with them.
            let made = |root: &Path| repository.session_folders.iter().any(|folder| folder.starts_with(root));
            for root in roots {
                if self.tree.node(root).is_some() || made(root) {
                    let why = "worktrees of others";
                    self.add(root, Rank::Git, Access::Read, "git", why, git("worktrees"));
                }
            }
            // Where the protection puts something there itself, that is what counts.
            if !guard.binds.iter().any(|bind| bind.target == repository.common_dir) {
                let why = "git's common dir";
                self.add(&repository.common_dir, Rank::Git, Access::Read, "git", why, git("common dir"));
            }
            self.add_worktrees(&repository.entries);
            for folder in &repository.session_folders {
                let why = "the session's folder for worktrees";
                self.add(folder, Rank::Own, Access::Write, "session-folder", why, git("session folder"));
            }
        }
        for (list, rank, access, rule) in [
            (&self.policy.read, Rank::Read, Access::Read, "read"),
            (&self.policy.write, Rank::Write, Access::Write, "write"),
        ] {
            for asked in list {
                let refuse = |why: &str| Error::Path {
                    rule,
                    path: asked.value.clone(),
                    why: why.to_owned(),
                    origin: asked.origin.clone(),
                };
                let real = self.tree.real(&asked.value).ok_or_else(|| refuse("it does not exist"))?;
                if real.to_str().is_none() {
                    return Err(refuse("its path is not UTF-8, which an OCI bundle cannot carry"));
                }
                let refused = match access {
                    Access::Write => never_writable(&real, self.host),
                    Access::Read => never_readable(&real, self.host),
                };
                if let Some(why) = refused {
                    return Err(refuse(why));
                }
                self.add(&real, rank, access, rule, "as the policy says", asked.origin.clone());
            }
        }
        let origin = self.policy.workspace.origin.clone();
        self.add(&workspace, Rank::Own, Access::Write, "workspace", "the workspace", origin);
        if let Some(file) = &self.request.config_file {
            let real = self.tree.real(file).unwrap_or_else(|| file.clone());
            let writable = self.plain.iter().filter(|(_, plain)| plain.access == Access::Write);
            if let Some((at, _)) = writable.into_iter().find(|(at, _)| real.starts_with(at)) {
                return Err(Error::ConfigWritable { file: real, writable: at.clone() });
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        path: &Path,
        rank: Rank,
        access: Access,
        rule: &'static str,
        why: &str,
        origin: Origin,
    ) {
        let plain = Plain { rank, access, rule, why: why.to_owned(), origin };
        match self.plain.get(path) {
            Some(known) if known.rank > rank => {}
            _ => drop(self.plain.insert(path.to_owned(), plain)),
        }
    }

    /// Worktrees that lie elsewhere in the home are copy-on-write there unless they are bound; where there
    /// are very many, a parent directory that holds nothing hidden stands for them.
    fn add_worktrees(&mut self, entries: &[crate::git::Entry]) {
        let mut parents: BTreeMap<&Path, Vec<&Path>> = BTreeMap::new();
        for entry in entries {
            let Some(worktree) = entry.worktree.as_deref() else { continue };
            // Copy-on-write in the home, out of sight below a file system of the sandbox's own: git would take
            // a worktree that it cannot see for one that is gone, and prune its entry.
            let in_home = self.covers.iter().any(|cover| cover.upper && worktree.starts_with(&cover.root));
            let out_of_sight = self.mounts.iter().any(|mount| is_fresh(mount) && mount.covers(worktree));
            let bound = self.plain.keys().any(|known| worktree.starts_with(known));
            let real = self.tree.real(worktree).is_some_and(|real| real == worktree);
            if (in_home || out_of_sight) && !bound && real && never_writable(worktree, self.host).is_none() {
                parents.entry(worktree.parent().unwrap_or(worktree)).or_default().push(worktree);
            }
        }
        for (parent, worktrees) in parents {
            let coarse = worktrees.len() > MANY_WORKTREES && never_writable(parent, self.host).is_none();
            for path in if coarse { vec![parent] } else { worktrees } {
                let origin = Origin::git("worktree");
                self.add(path, Rank::Git, Access::Read, "git", "a worktree of others", origin);
            }
        }
    }

    /// Masks the host's sockets that would answer. An overlay shows another inode than the one that is listened
    /// on, and in `/run` and `/tmp` there is nothing of the host's; everywhere else a socket is seen as it is.
    /// Masks only: sockets come and go, and a layer over a directory that is gone could not be mounted.
    fn hide_sockets(&mut self) {
        let mut known = HashMap::new();
        for path in &self.host.sockets {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
            let path = self.resolved(parent, &mut known).join(name);
            let plain = self.plain.keys().any(|at| is_within(&path, at));
            // A longer rule wins: the workspace below `/tmp`, or in the home.
            let dead = is_within(&path, Path::new("/run"))
                || self.covers.iter().any(|cover| is_within(&path, &cover.root))
                || self.mounts.iter().any(|mount| is_fresh(mount) && mount.covers(&path))
                || self.hidden.iter().any(|hidden| is_within(&path, &hidden.value));
            if path.to_str().is_none() || self.sockets.contains(&path) || dead && !plain {
                continue;
            }
            match self.shown(&path) {
                Some(shown) => self.widened.push(shown),
                None => self.sockets.push(path),
            }
        }
    }

    /// Decides, for each hidden path, what hides it: a whiteout where a cover is possible, else a mask.
    fn hide(&mut self, secrets: &[Sourced<PathBuf>]) -> Result<(), Error> {
        let own = [self.host.state.path().to_owned(), self.host.runtime.clone()];
        let own = own.into_iter().map(Sourced::default_rule);
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        let mut known = HashMap::new();
        let asked: Vec<_> = self.policy.hide.iter().cloned().chain(own).collect();
        let explicit = asked.len();
        // Only where a file system is mounted twice can anything have a second name.
        let doubled = self.doubled();
        for (number, asked) in asked.into_iter().chain(secrets.iter().cloned()).enumerate() {
            let mut places = Vec::new();
            let by_policy = number < self.policy.hide.len();
            if by_policy && ["/proc", "/dev"].iter().any(|own| asked.value.starts_with(own)) {
                return Err(Error::Path {
                    rule: "hide",
                    path: asked.value,
                    why: "every sandbox has its own of what is in there".to_owned(),
                    origin: asked.origin,
                });
            }
            for path in self.places(&asked.value, &mut known) {
                if doubled {
                    let own_home = |alias: &PathBuf| {
                        !self.host.home.as_ref().is_some_and(|home| home.starts_with(alias))
                    };
                    places.extend(self.host.aliases(&path).into_iter().filter(own_home));
                }
                places.push(path);
            }
            for path in places {
                if number < explicit {
                    // What the policy hides, no other rule shows.
                    self.plain.retain(|at, plain| plain.rank == Rank::Own || !is_within(at, &path));
                } else if let Some(shown) = self.shown(&path) {
                    if shown.value == path {
                        self.widened.push(shown);
                        continue;
                    }
                    // Only a part of it is shown: all else of it is not there.
                    let kind = Kind::Tmpfs { mode: 0o700, devices: false };
                    self.push(path.clone(), kind, "hide", "hidden but for a part", asked.origin.clone());
                    self.widened.push(shown);
                }
                if seen.insert(path.as_os_str().to_owned()) {
                    found.push(Sourced::new(path, asked.origin.clone()));
                }
            }
        }
        // A cover of a directory serves for all that is hidden below it, so the highest come first.
        found.sort_by_cached_key(|place: &Sourced<PathBuf>| depth(&place.value));
        for place in found {
            let workspace = &self.request.workspace;
            if is_within(workspace, &place.value) {
                return Err(Error::WorkspaceHidden {
                    workspace: workspace.clone(),
                    hidden: place.value,
                    origin: place.origin,
                });
            }
            let home = self.host.home.as_ref().is_some_and(|home| is_within(home, &place.value));
            if home {
                return Err(Error::Path {
                    rule: "hide",
                    path: place.value,
                    why: "the home is in there; use `home: hidden` for an empty home".to_owned(),
                    origin: place.origin,
                });
            }
            self.hide_one(&place.value);
            self.hidden.push(place);
        }
        Ok(())
    }

    /// Whether some file system is mounted in more than one place.
    fn doubled(&self) -> bool {
        let mut devices = HashSet::new();
        self.host.mounts.iter().any(|mount| !devices.insert(mount.device.as_str()))
    }

    /// The rule that shows a path which is hidden by default, or something in it.
    fn shown(&self, hidden: &Path) -> Option<Sourced<PathBuf>> {
        let found = self
            .plain
            .iter()
            .find(|(at, plain)| matches!(plain.rank, Rank::Read | Rank::Write) && is_within(at, hidden));
        found.map(|(at, plain)| Sourced::new(at.clone(), plain.origin.clone()))
    }

    /// The names under which a hidden thing is to be found: its own, with the directories above it resolved,
    /// and where it is a symbolic link, also what it leads to.
    fn places(&self, path: &Path, known: &mut HashMap<OsString, PathBuf>) -> Vec<PathBuf> {
        let named = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => self.resolved(parent, known).join(name),
            // It ends in `..`.
            _ => self.resolved(path, known),
        };
        let mut places = vec![named];
        // Where a link leads, even if nothing is there yet; as many as the kernel follows (path_resolution(7)).
        while places.len() <= 40 {
            let last = &places[places.len() - 1];
            let Some(Node::Link(to)) = self.tree.node(last) else { break };
            if let Some(real) = self.tree.real(last) {
                places.push(real);
                break;
            }
            let to = last.parent().unwrap_or(last).join(to);
            let next = match (to.parent(), to.file_name()) {
                (Some(parent), Some(name)) => self.resolved(parent, known).join(name),
                _ => break,
            };
            if places.contains(&next) {
                break;
            }
            places.push(next);
        }
        places
    }

    /// A directory with `..` and its symbolic links resolved, as far as it exists; what is missing stays as
    /// written.
    fn resolved(&self, dir: &Path, known: &mut HashMap<OsString, PathBuf>) -> PathBuf {
        if let Some(real) = known.get(dir.as_os_str()) {
            return real.clone();
        }
        let real = match (dir.parent(), dir.file_name()) {
            (Some(parent), Some(name)) => {
                let at = self.resolved(parent, known).join(name);
                match self.tree.node(&at) {
                    Some(Node::Link(_)) => self.tree.real(&at).unwrap_or(at),
                    _ => at,
                }
            }
            (Some(parent), None) => {
                let mut at = self.resolved(parent, known);
                at.pop();
                at
            }
            (None, _) => dir.to_owned(),
        };
        known.insert(dir.as_os_str().to_owned(), real.clone());
        real
    }

    fn hide_one(&mut self, path: &Path) {
        // Below what is seen as it is, only a mask on the path itself is possible.
        let plain =
            self.plain.keys().filter(|at| is_within(path, at) && *at != path).max_by_key(|at| depth(at));
        let cover = self.covers.iter().position(|cover| is_within(path, &cover.root) && path != cover.root);
        let plain_wins = match (plain, cover) {
            (Some(plain), Some(cover)) => is_within(plain, &self.covers[cover].root),
            (Some(_), None) => true,
            (None, _) => false,
        };
        let in_plain_home = self.plain_home.as_ref().is_some_and(|home| is_within(path, home));
        if plain_wins || in_plain_home {
            self.masked.push(path.to_owned());
            return;
        }
        if let Some(cover) = cover {
            self.covers[cover].hide(path, self.tree);
            return;
        }
        if is_within(path, Path::new("/run"))
            || self.mounts.iter().any(|mount| is_fresh(mount) && mount.covers(path))
        {
            // Nothing of the host's is there.
            return;
        }
        if depth(path) == 2 {
            // A name in the root directory, which is ours: it is not made.
            self.mounts.retain(|mount| mount.target != path);
            self.top_hidden.insert(path.to_owned());
            return;
        }
        let parent = path.parent().unwrap_or(path);
        let is_socket = secrets::root_equivalent_places().any(|place| place == path);
        // Its daemon may make the directories above a socket as well; never a cover of all that is in `/var`.
        let existing = |at: &&Path| depth(at) > 2 && self.tree.node(at).is_some();
        let parent =
            if is_socket { path.ancestors().skip(1).find(existing).unwrap_or(parent) } else { parent };
        match self.tree.node(parent) {
            Some(Node::Directory { mode }) => {
                // An overlay shows nothing of what is mounted below; then the path itself is masked.
                // As root it does not matter: what is mounted below is bound again.
                if !self.host.is_root() && self.host.mounts_below(parent).next().is_some() {
                    let list = if is_socket { &mut self.sockets } else { &mut self.masked };
                    list.push(path.to_owned());
                    return;
                }
                let mut cover = Cover::new(parent.to_owned(), mode, false);
                cover.hide(path, self.tree);
                self.covers.push(cover);
            }
            Some(_) => self.masked.push(path.to_owned()),
            // The parent is out of the caller's sight, or does not exist; then nothing can be read there.
            None => {}
        }
    }

    fn place_overlays(&mut self) {
        let mut order: Vec<usize> = (0..self.covers.len()).collect();
        order.sort_by_key(|&index| depth(&self.covers[index].root));
        for index in order {
            let root = self.covers[index].root.clone();
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
                let hidden = plain || self.hidden.iter().any(|hidden| at.starts_with(&hidden.value));
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

    fn place_plain(&mut self) {
        let mut plain: Vec<(PathBuf, Plain)> = std::mem::take(&mut self.plain).into_iter().collect();
        plain.sort_by_key(|(path, _)| depth(path));
        for (path, rule) in plain {
            // Already so by the mount that is there: read-only below the read-only root.
            let known = self.mounts.iter().rev().find(|mount| mount.covers(&path));
            let same = known.is_some_and(|mount| match &mount.kind {
                Kind::Bind { access, .. } => *access == rule.access && path != self.request.workspace,
                _ => false,
            });
            if !same {
                self.bind(&path, rule.access, rule.rule, &rule.why, rule.origin);
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

    fn place_masks(&mut self) {
        self.masked.sort();
        self.masked.dedup();
        let masked = std::mem::take(&mut self.masked);
        self.watched.clone_from(&masked);
        // No mount can lie on a symbolic link; what it leads to is hidden under its own name.
        let link = |path: &PathBuf| matches!(self.tree.node(path), Some(Node::Link(_)));
        let masked = masked.into_iter().chain(self.sockets.iter().cloned());
        self.masked = masked.filter(|path| self.tree.exists(path) && !link(path)).collect();
    }

    /// The command has to be able to stand in the workspace.
    fn check_reachable(&self) -> Result<(), Error> {
        let workspace = &self.request.workspace;
        match self.hidden.iter().find(|hidden| workspace.starts_with(&hidden.value)) {
            Some(hidden) => Err(Error::WorkspaceHidden {
                workspace: workspace.clone(),
                hidden: hidden.value.clone(),
                origin: hidden.origin.clone(),
            }),
            None => Ok(()),
        }
    }
}

/// Whether a mount is the sandbox's own, with nothing of the host's in it.
fn is_fresh(mount: &Mount) -> bool {
    matches!(mount.kind, Kind::Tmpfs { .. } | Kind::Proc | Kind::Devpts)
}

fn depth(path: &Path) -> usize {
    path.components().count()
}
