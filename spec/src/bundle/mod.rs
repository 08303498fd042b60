//! The bundle: the plan written down as an OCI `config.json` (runtime-spec 1.0.2), which is all that an
//! executor reads. What the format cannot say stands in annotations `dev.codeoid.*`; a runtime that does not
//! know them runs the bundle too, with the differences that `docs/executors.md` lists.

mod masks;
mod seccomp;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use oci_spec::runtime::{
    BoxBuilder, Capabilities, HookBuilder, HooksBuilder, Linux, LinuxBuilder, LinuxCapabilitiesBuilder,
    LinuxCpuBuilder, LinuxIdMappingBuilder, LinuxMemoryBuilder, LinuxNamespaceBuilder, LinuxNamespaceType,
    LinuxPidsBuilder, LinuxResources, LinuxResourcesBuilder, MountBuilder, Process, ProcessBuilder,
    RootBuilder, Spec, SpecBuilder, UserBuilder,
};

use crate::git::Access;
use crate::mount::Kind;
use crate::paths::is_within;
use crate::plan::Plan;
use crate::policy::Network;
use masks::mask;

pub use masks::{Fleeting, Watched, hold_masks, late_masks, unwritten};

/// Names of the annotations.
pub mod annotation {
    /// The version of this list: `1`.
    pub const VERSION: &str = "dev.codeoid.version";
    /// The session's id.
    pub const SESSION: &str = "dev.codeoid.session";
    /// The turn's id.
    pub const TURN: &str = "dev.codeoid.turn";
    /// The state directory.
    pub const STATE_DIR: &str = "dev.codeoid.state-dir";
    /// The user id that the command runs with (the bundle's user namespace, where there is one, maps 0 to the
    /// caller, because runc refuses a map without 0).
    pub const UID: &str = "dev.codeoid.uid";
    /// The group id that the command runs with.
    pub const GID: &str = "dev.codeoid.gid";
    /// Where all turns of the session find the home layer mounted.
    pub const HOME_MERGED: &str = "dev.codeoid.home-merged";
    /// A digest of what the home layer hides: turns of one session share it only if this is the same.
    pub const HOME_HIDES: &str = "dev.codeoid.home-hides";
    /// Which of the standard streams are a new terminal's: a subset of `012`.
    pub const TERMINAL: &str = "dev.codeoid.terminal";
    /// How git's bookkeeping is protected: `shared` or `shadow`.
    pub const GIT_PROTECTION: &str = "dev.codeoid.git.protection";
    /// Wall-clock limit in milliseconds.
    pub const TIMEOUT: &str = "dev.codeoid.timeout-ms";
    /// Rules that the owner accepts to be weaker, as a JSON array.
    pub const FALLBACK: &str = "dev.codeoid.fallback";
    /// Which network: `host`, `off`, `allowlist`.
    pub const NETWORK: &str = "dev.codeoid.network";
    /// With `allowlist`: the destinations that the proxy lets through, as a JSON array.
    pub const NETWORK_ALLOW: &str = "dev.codeoid.network.allow";
    /// With `allowlist`: where the proxy listens in the sandbox's network namespace, `ADDRESS:PORT`.
    pub const NETWORK_PROXY: &str = "dev.codeoid.network.proxy";
    /// Paths whose mask lies on a path that the host may replace, as a JSON array: to be watched.
    pub const WATCH_MASKS: &str = "dev.codeoid.watch.masks";
    /// The host's sockets that are hidden, as a JSON array: to be watched likewise, if the turn is not over before.
    /// Those that lie in a directory that the turn may write have no mask among the mounts; executors add it.
    pub const WATCH_SOCKETS: &str = "dev.codeoid.watch.sockets";
    /// Mount points whose loss ends git's protection, as a JSON array: to be watched.
    pub const WATCH_PINS: &str = "dev.codeoid.watch.pins";
    /// Paths that must not appear while the turn runs, as a JSON array.
    pub const WATCH_ABSENT: &str = "dev.codeoid.watch.absent";
}

/// Where the pieces lie that a bundle refers to. All absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The root directory's skeleton; as `root.path` (relative to the bundle, or absolute).
    pub rootfs: PathBuf,
    /// For each of the plan's covers, its layer of whiteouts.
    pub masks: Vec<PathBuf>,
    /// The session's home layer: upper, work directory, and where it is mounted for all turns.
    pub home: Option<HomeLayer>,
    /// An empty regular file of mode 0000.
    pub no_file: PathBuf,
    /// An empty directory of mode 0000.
    pub no_directory: PathBuf,
    /// The state directory.
    pub state_dir: PathBuf,
    /// The program for the `poststop` hook, if it was found.
    pub hook: Option<PathBuf>,
    /// Which of the masked paths are directories.
    pub masked_directories: Vec<PathBuf>,
    /// Which of the bind mounts' sources are not directories.
    pub files: HashSet<PathBuf>,
}

/// The session's copy-on-write layer of the home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HomeLayer {
    /// What the turns wrote.
    pub upper: PathBuf,
    /// overlayfs's own.
    pub work: PathBuf,
    /// Where it is mounted, once for all turns of the session.
    pub merged: PathBuf,
}

/// Why a bundle could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The OCI types refuse a value.
    #[error("the runtime configuration refuses a value")]
    Oci(#[from] oci_spec::OciSpecError),
    /// A path is not UTF-8: JSON cannot carry it.
    #[error("path {} is not UTF-8, which an OCI bundle cannot carry", .0.display())]
    NotUtf8(PathBuf),
    /// An annotation that an executor needs is missing or malformed.
    #[error("annotation {0} is missing or malformed")]
    Annotation(&'static str),
}

/// Writes the plan down.
///
/// # Errors
/// When a path cannot be expressed in JSON.
pub fn config(plan: &Plan, layout: &Layout) -> Result<Spec, Error> {
    let mut spec = SpecBuilder::default()
        .version("1.0.2")
        .root(RootBuilder::default().path(&layout.rootfs).readonly(true).build()?)
        .process(process(plan)?)
        .mounts(mounts(plan, layout)?)
        .annotations(annotations(plan, layout)?)
        .linux(linux(plan)?)
        .build()?;
    spec.set_hostname(None);
    if let Some(hook) = &layout.hook {
        let hook =
            HookBuilder::default().path(hook).args(vec!["codeoid-hook".to_owned()]).timeout(60).build()?;
        spec.set_hooks(Some(HooksBuilder::default().poststop(vec![hook]).build()?));
    }
    Ok(spec)
}

fn process(plan: &Plan) -> Result<Process, Error> {
    let nothing = || Capabilities::new();
    let capabilities = LinuxCapabilitiesBuilder::default()
        .bounding(nothing())
        .effective(nothing())
        .inheritable(nothing())
        .permitted(nothing())
        .ambient(nothing())
        .build()?;
    let user = UserBuilder::default().uid(0u32).gid(0u32).umask(plan.umask).build()?;
    let terminal = plan.terminal.contains(&true);
    let mut process = ProcessBuilder::default()
        .terminal(terminal)
        .user(user)
        .args(plan.command.clone())
        .env(plan.env.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>())
        .cwd(&plan.workspace)
        .capabilities(capabilities)
        .no_new_privileges(true)
        .build()?;
    process.set_rlimits(None);
    if let (true, Some((rows, columns))) = (terminal, plan.window) {
        let size = BoxBuilder::default().height(u64::from(rows)).width(u64::from(columns)).build()?;
        process.set_console_size(Some(size));
    }
    Ok(process)
}

fn mounts(plan: &Plan, layout: &Layout) -> Result<Vec<oci_spec::runtime::Mount>, Error> {
    let mut list = Vec::with_capacity(plan.mounts.len() + plan.masked.len());
    for mount in &plan.mounts {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let (kind, source, options) = match &mount.kind {
            Kind::Bind { source, access } => {
                // Nothing is mounted below a file, and crun takes no recursive bind of one.
                let options: &[&str] = match (access, layout.files.contains(source)) {
                    (Access::Read, false) => &["rbind", "rro"],
                    (Access::Read, true) => &["bind", "ro"],
                    (Access::Write, false) => &["rbind"],
                    (Access::Write, true) => &["bind"],
                };
                ("bind", source.clone(), words(options))
            }
            Kind::Tmpfs { mode, devices } => {
                let mut options = words(if *devices { &["nosuid"] } else { &["nosuid", "nodev"] });
                options.push(format!("mode={mode:o}"));
                ("tmpfs", PathBuf::from("tmpfs"), options)
            }
            Kind::Overlay { cover } => ("overlay", PathBuf::from("overlay"), overlay(plan, layout, *cover)?),
            Kind::Proc => ("proc", PathBuf::from("proc"), words(&["nosuid", "noexec", "nodev"])),
            Kind::Devpts => {
                let options = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"];
                ("devpts", PathBuf::from("devpts"), words(&options))
            }
        };
        utf8(&mount.target)?;
        utf8(&source)?;
        let mount =
            MountBuilder::default().destination(&mount.target).typ(kind).source(source).options(options);
        list.push(mount.build()?);
    }
    let late = unwritten(plan);
    for path in plan.masked.iter().filter(|path| !late.contains(path)) {
        let directory = layout.masked_directories.contains(path);
        list.push(mask(path, if directory { &layout.no_directory } else { &layout.no_file })?);
    }
    Ok(list)
}

fn overlay(plan: &Plan, layout: &Layout, cover: usize) -> Result<Vec<String>, Error> {
    let escape = |path: &Path| -> Result<String, Error> {
        // overlayfs splits lowerdir at colons, mount data at commas; a backslash quotes either.
        Ok(utf8(path)?.chars().fold(String::new(), |mut text, c| {
            if matches!(c, ':' | ',' | '\\') {
                text.push('\\');
            }
            text.push(c);
            text
        }))
    };
    let mask = &layout.masks[cover];
    let cover = &plan.covers[cover];
    let mut options = vec!["nosuid".to_owned(), "nodev".to_owned()];
    options.push(format!("lowerdir={}:{}", escape(mask)?, escape(&cover.root)?));
    match layout.home.as_ref().filter(|_| cover.upper) {
        Some(home) => {
            options.push(format!("upperdir={}", escape(&home.upper)?));
            options.push(format!("workdir={}", escape(&home.work)?));
        }
        None => options.insert(0, "ro".to_owned()),
    }
    if plan.uid != 0 {
        // In a user namespace the trusted.* attributes are out of reach (overlayfs.rst, "User xattr").
        options.push("userxattr".to_owned());
    }
    Ok(options)
}

fn linux(plan: &Plan) -> Result<Linux, Error> {
    let mut kinds = vec![
        LinuxNamespaceType::Pid,
        LinuxNamespaceType::Ipc,
        LinuxNamespaceType::Uts,
        LinuxNamespaceType::Mount,
        LinuxNamespaceType::Cgroup,
    ];
    if plan.uid != 0 {
        kinds.push(LinuxNamespaceType::User);
    }
    if plan.network.value != Network::Host {
        kinds.push(LinuxNamespaceType::Network);
    }
    let namespaces = kinds
        .into_iter()
        .map(|kind| LinuxNamespaceBuilder::default().typ(kind).build())
        .collect::<Result<Vec<_>, _>>()?;
    let text = |paths: &[PathBuf]| -> Result<Vec<String>, Error> {
        paths.iter().map(|path| utf8(path).map(str::to_owned)).collect()
    };
    let mut linux = LinuxBuilder::default()
        .namespaces(namespaces)
        .rootfs_propagation("private")
        .readonly_paths(text(&plan.readonly_paths)?)
        .masked_paths(text(&plan.masked_paths)?)
        .seccomp(seccomp::profile(plan.uid == 0)?)
        .build()?;
    if plan.uid != 0 {
        let map = |id: u32| {
            LinuxIdMappingBuilder::default()
                .host_id(id)
                .container_id(0u32)
                .size(1u32)
                .build()
                .map(|map| vec![map])
        };
        linux.set_uid_mappings(Some(map(plan.uid)?));
        linux.set_gid_mappings(Some(map(plan.gid)?));
    }
    linux.set_resources(resources(plan)?);
    Ok(linux)
}

fn resources(plan: &Plan) -> Result<Option<LinuxResources>, Error> {
    if !plan.limits.any_resource() {
        return Ok(None);
    }
    let mut resources = LinuxResourcesBuilder::default().build()?;
    if let Some(memory) = &plan.limits.memory {
        let limit = i64::try_from(memory.value).unwrap_or(i64::MAX);
        resources.set_memory(Some(LinuxMemoryBuilder::default().limit(limit).build()?));
    }
    if let Some(cpus) = &plan.limits.cpus {
        let period = 100_000u64;
        let quota = (cpus.value * period as f64).ceil() as i64;
        resources.set_cpu(Some(LinuxCpuBuilder::default().quota(quota).period(period).build()?));
    }
    if let Some(pids) = &plan.limits.pids {
        let limit = i64::try_from(pids.value).unwrap_or(i64::MAX);
        resources.set_pids(Some(LinuxPidsBuilder::default().limit(limit).build()?));
    }
    Ok(Some(resources))
}

fn annotations(plan: &Plan, layout: &Layout) -> Result<HashMap<String, String>, Error> {
    let mut map = HashMap::new();
    let mut put = |name: &str, value: String| drop(map.insert(name.to_owned(), value));
    put(annotation::VERSION, "1".to_owned());
    put(annotation::SESSION, plan.session.to_string());
    put(annotation::TURN, plan.turn.to_string());
    put(annotation::STATE_DIR, utf8(&layout.state_dir)?.to_owned());
    put(annotation::UID, plan.uid.to_string());
    put(annotation::GID, plan.gid.to_string());
    put(annotation::NETWORK, plan.network.value.as_str().to_owned());
    if plan.network.value == Network::Allowlist {
        let allow: Vec<&str> = plan.allow.iter().map(|destination| destination.value.as_str()).collect();
        put(annotation::NETWORK_ALLOW, serde_json::Value::from(allow).to_string());
        put(annotation::NETWORK_PROXY, crate::network::PROXY.to_string());
    }
    if let Some(home) = &layout.home {
        put(annotation::HOME_MERGED, utf8(&home.merged)?.to_owned());
        put(annotation::HOME_HIDES, home_digest(plan));
    }
    let terminal: String = (0..3).filter(|&n| plan.terminal[n]).map(|n| n.to_string()).collect();
    if !terminal.is_empty() {
        put(annotation::TERMINAL, terminal);
    }
    if let Some(timeout) = &plan.limits.timeout {
        put(annotation::TIMEOUT, timeout.value.as_millis().to_string());
    }
    if !plan.fallback.is_empty() {
        put(annotation::FALLBACK, serde_json::Value::from(plan.fallback.clone()).to_string());
    }
    let lines = |paths: &mut dyn Iterator<Item = &PathBuf>| -> Result<Option<String>, Error> {
        let list = paths.map(|path| utf8(path)).collect::<Result<Vec<_>, _>>()?;
        Ok((!list.is_empty()).then(|| serde_json::Value::from(list).to_string()))
    };
    if let Some(masks) = lines(&mut plan.watched.iter())? {
        put(annotation::WATCH_MASKS, masks);
    }
    if let Some(sockets) = lines(&mut plan.sockets.iter())? {
        put(annotation::WATCH_SOCKETS, sockets);
    }
    if let Some(guard) = &plan.guard {
        put(annotation::GIT_PROTECTION, guard.protection.as_str().to_owned());
        if let Some(absent) = lines(&mut guard.watch.iter())? {
            put(annotation::WATCH_ABSENT, absent);
        }
        // What lies in the sandbox's own `/run` is no path of the host's.
        let host =
            guard.binds.iter().map(|bind| &bind.target).filter(|target| !target.starts_with("/run/codeoid"));
        if let Some(pins) = lines(&mut host.into_iter())? {
            put(annotation::WATCH_PINS, pins);
        }
    }
    Ok(map)
}

fn home_digest(plan: &Plan) -> String {
    let Some(cover) = plan.covers.iter().find(|cover| cover.upper) else { return String::new() };
    let hidden = plan.hidden.iter().map(|hidden| &hidden.value).filter(|path| is_within(path, &cover.root));
    let text = hidden.fold(format!("{}\0", cover.root.display()), |mut text, path| {
        text.push_str(&path.to_string_lossy());
        text.push('\0');
        text
    });
    crate::id::hex8(&[text.as_bytes()]) + &crate::id::hex8(&[b"home", text.as_bytes()])
}

fn utf8(path: &Path) -> Result<&str, Error> {
    path.to_str().ok_or_else(|| Error::NotUtf8(path.to_owned()))
}

/// An annotation of a bundle.
#[must_use]
pub fn annotation<'a>(spec: &'a Spec, name: &str) -> Option<&'a str> {
    spec.annotations().as_ref().and_then(|map| map.get(name)).map(String::as_str)
}

/// The ids that the command of a bundle runs with.
///
/// # Errors
/// When the bundle was not written by codeoid-shim.
pub fn ids(spec: &Spec) -> Result<(u32, u32), Error> {
    let number =
        |name| annotation(spec, name).and_then(|text| text.parse().ok()).ok_or(Error::Annotation(name));
    Ok((number(annotation::UID)?, number(annotation::GID)?))
}

/// A list of paths in an annotation; empty where there is none.
///
/// # Errors
/// When it is not a JSON array of strings.
pub fn paths(spec: &Spec, name: &'static str) -> Result<Vec<PathBuf>, Error> {
    Ok(strings(spec, name)?.into_iter().map(PathBuf::from).collect())
}

/// A list of strings in an annotation; empty where there is none.
///
/// # Errors
/// When it is not a JSON array of strings.
pub fn strings(spec: &Spec, name: &'static str) -> Result<Vec<String>, Error> {
    annotation(spec, name)
        .map_or(Ok(Vec::new()), |text| serde_json::from_str(text).map_err(|_| Error::Annotation(name)))
}
