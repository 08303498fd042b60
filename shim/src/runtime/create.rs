//! `create`: makes a container whose process waits for `start`.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use ::libcontainer::container::builder::ContainerBuilder;
use ::libcontainer::syscall::syscall::SyscallType;
use nix::sys::resource::Resource;
use nix::sys::stat::Mode;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use oci_spec::runtime::{Hooks, LinuxSeccomp};
use serde_json::Value;

use super::cgroup::{self, Cgroup};
use super::error::{Error, Result};
use super::foreground::Console;
use super::inside::{Dev, Rest};
use super::log::{Cause, Trail};
use super::normalise::{self, Normalised, Place};
use super::payload::{self, Payload};
use super::process::Process;
use super::record::{self, Container, Record, Status};
use super::unmanaged::{self, Aside};
use super::{Runtime, devices, hooks, seccomp, userns, write_pid};
use crate::sys::process as sys;

/// The configuration's name in a bundle.
pub const CONFIG: &str = "config.json";

/// No configuration is longer: it is read into memory, as runc does too.
const MAX_CONFIG: u64 = 512 << 20;

/// What `create` and `run` are asked for.
#[derive(Debug, Clone)]
pub struct Request {
    /// The container's name.
    pub id: String,
    /// The bundle.
    pub bundle: PathBuf,
    /// Who gets the terminal's master.
    pub console_socket: Option<PathBuf>,
    /// Where the process's number is written.
    pub pid_file: Option<PathBuf>,
    /// chroot(2) instead of pivot_root(2).
    pub no_pivot: bool,
    /// The caller's session keyring stays.
    pub no_new_keyring: bool,
    /// Descriptors above the standard streams that are passed on.
    pub preserve_fds: u32,
    /// The caller waits for the process, and is its terminal.
    pub foreground: bool,
}

/// Makes the container.
pub fn create(runtime: &Runtime, args: &liboci_cli::Create) -> Result<()> {
    let request = Request {
        id: args.container_id.clone(),
        bundle: args.bundle.clone(),
        console_socket: args.console_socket.clone(),
        pid_file: args.pid_file.clone(),
        no_pivot: args.no_pivot,
        no_new_keyring: args.no_new_keyring,
        preserve_fds: u32::try_from(args.preserve_fds).unwrap_or(0),
        foreground: false,
    };
    make(runtime, request).map(drop)
}

/// A container that was made.
#[derive(Debug)]
pub struct Made {
    /// It, locked.
    pub container: Container,
    /// The master of its terminal, where the caller is that terminal.
    pub master: Option<OwnedFd>,
}

/// A bundle, read and judged.
struct Bundle {
    dir: PathBuf,
    rootfs: PathBuf,
    text: Vec<u8>,
    config: Value,
}

/// Makes a container: all of it, or nothing is left.
pub fn make(runtime: &Runtime, mut request: Request) -> Result<Made> {
    record::check_id(&request.id)?;
    for path in [&mut request.console_socket, &mut request.pid_file].into_iter().flatten() {
        *path = std::path::absolute(&*path).map_err(Error::io("resolve a path"))?;
    }
    plain(&runtime.root)?;
    // As runc: what says `--systemd-cgroup` writes paths of cgroups that mean nothing without it.
    if runtime.systemd && !Path::new("/run/systemd/system").is_dir() {
        return Err(Error::Usage("systemd cgroup flag passed, but systemd is not running".to_owned()));
    }
    let bundle = read(&request.bundle)?;
    let mut warnings = Vec::new();
    let process = bundle.config.get("process").filter(|process| !process.is_null());
    let process = process.ok_or_else(|| Error::Usage("process property must not be empty".to_owned()))?;
    let process = Process::parse(process, &mut warnings)?;
    let process_terminal = process.terminal;
    check_terminal(process.terminal, !request.foreground, request.console_socket.is_some())?;
    let hooks: Hooks = match bundle.config.get("hooks").filter(|hooks| !hooks.is_null()) {
        Some(hooks) => serde_json::from_value(hooks.clone())
            .map_err(|error| Error::config("hooks", error.to_string()))?,
        None => Hooks::default(),
    };
    let annotations: HashMap<String, String> = match bundle.config.get("annotations") {
        None | Some(Value::Null) => HashMap::new(),
        Some(list) => serde_json::from_value(list.clone())
            .map_err(|error| Error::config("annotations", error.to_string()))?,
    };
    let record = Record {
        oci_version: bundle.config["ociVersion"].as_str().unwrap_or("1.0.2").to_owned(),
        id: request.id.clone(),
        bundle: bundle.dir.clone(),
        rootfs: bundle.rootfs.clone(),
        pid: 0,
        start_time: 0,
        created: jiff::Timestamp::now().to_string(),
        owner: nix::unistd::getuid().as_raw(),
        systemd: runtime.systemd,
        cgroup: cgroup_path(&bundle, &request.id, runtime.systemd)?,
        joined: None,
        own_pids: false,
        annotations,
        hooks: Some(hooks),
    };
    let cgroup = Cgroup::of_container(&record)?;
    let filter = filter(&bundle.config)?;
    warnings.iter().for_each(|warning| runtime.log.warning(warning));

    let dir = record::make_dir(&runtime.root, &request.id)?;
    // What is in that cgroup is somebody else's: nothing of it is touched.
    let lock = cgroup.refuse_if_used().and_then(|()| record::lock(&dir)).inspect_err(|_| {
        let _ = fs::remove_dir_all(&dir);
    })?;
    let mut container = Container::new(dir, record, lock);
    let normalised = normalise_here(&bundle, &mut container, &cgroup, runtime.systemd).inspect_err(|_| {
        let _ = fs::remove_dir_all(&container.dir);
    })?;
    let Here { normalised, aside, users } = normalised;
    let payload = prepared(runtime, &request, &container, process, filter, normalised.rest);
    let console = (request.foreground && process_terminal).then(|| Console::listen(&container.dir));
    let made = console.transpose().and_then(|console| {
        request.console_socket =
            console.as_ref().map(|console| console.path.clone()).or(request.console_socket);
        build(&mut container, &bundle, &normalised.config, &request, payload)?;
        console.map(Console::receive).transpose()
    });
    drop(users);
    if let Some(aside) = aside {
        aside.forget();
    }
    match made {
        Ok(master) => Ok(Made { container, master }),
        Err(error) => {
            abandon(runtime, &container, &cgroup);
            Err(error)
        }
    }
}

fn read(dir: &Path) -> Result<Bundle> {
    let dir = fs::canonicalize(dir).map_err(Error::io(format!("chdir {}", dir.display())))?;
    // The caller's relative paths are resolved by now; hooks find themselves in the bundle, as with runc.
    std::env::set_current_dir(&dir).map_err(Error::io(format!("chdir {}", dir.display())))?;
    let path = dir.join(CONFIG);
    let missing = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::NoConfig(CONFIG),
        _ => Error::io(format!("open {}", path.display()))(error),
    };
    let meta = fs::metadata(&path).map_err(missing)?;
    if !meta.is_file() {
        return Err(Error::config(CONFIG, "it is no regular file"));
    }
    let mut text = Vec::new();
    File::open(&path)
        .and_then(|file| file.take(MAX_CONFIG + 1).read_to_end(&mut text))
        .map_err(Error::io(format!("read {}", path.display())))?;
    if text.len() as u64 > MAX_CONFIG {
        return Err(Error::config(CONFIG, "it is too long"));
    }
    let config: Value =
        serde_json::from_slice(&text).map_err(|error| Error::config(CONFIG, error.to_string()))?;
    let version = config.get("ociVersion").and_then(Value::as_str).unwrap_or_default();
    // Nothing that a later 1.x adds may be needed to understand it (runtime-spec config.md, "Specification
    // version"); another major version says something else.
    if !version.is_empty() && !version.starts_with("1.") {
        return Err(Error::config("ociVersion", format!("version {version:?} is not supported")));
    }
    let root = config.get("root").and_then(|root| root.get("path")).and_then(Value::as_str);
    let root = root.ok_or_else(|| Error::Usage("root must be specified".to_owned()))?;
    let rootfs = fs::canonicalize(dir.join(root)).map_err(Error::io(format!("invalid rootfs: {root}")))?;
    if !rootfs.is_dir() {
        return Err(Error::config("invalid rootfs", format!("{} is not a directory", rootfs.display())));
    }
    // libcontainer makes links in it by its path outside.
    if fs::symlink_metadata(rootfs.join("dev")).is_ok_and(|meta| !meta.is_dir()) {
        return Err(Error::config("invalid rootfs", "its /dev is not a directory"));
    }
    if rootfs == Path::new("/") {
        return Err(Error::config("invalid rootfs", "it is the host's root"));
    }
    for path in [&dir, &rootfs] {
        plain(path)?;
    }
    Ok(Bundle { dir, rootfs, text, config })
}

/// JSON, in which paths are passed on, knows no other names.
fn plain(path: &Path) -> Result<()> {
    match path.to_str() {
        Some(_) => Ok(()),
        None => Err(Error::config(path.display().to_string(), "it is not UTF-8")),
    }
}

fn cgroup_path(bundle: &Bundle, id: &str, systemd: bool) -> Result<PathBuf> {
    let mut linux = bundle.config.get("linux").and_then(Value::as_object).cloned().unwrap_or_default();
    normalise::cgroup_path(&mut linux, id, systemd)
}

/// A configuration for libcontainer, and the host's cgroups where it must not see them.
struct Here {
    normalised: Normalised,
    aside: Option<Aside>,
    /// Open until the container's process is in it.
    users: Option<OwnedFd>,
}

fn normalise_here(
    bundle: &Bundle,
    container: &mut Container,
    cgroup: &Cgroup,
    systemd: bool,
) -> Result<Here> {
    let hierarchies = cgroup::host()?;
    let aside = match unmanaged::is_needed(cgroup) {
        true => {
            unmanaged::refuse_limits(&bundle.config)?;
            Some(Aside::put(&container.dir)?)
        }
        false => None,
    };
    let place = Place {
        bundle: &bundle.dir,
        rootfs: &bundle.rootfs,
        id: &container.record.id,
        systemd,
        hierarchies: &hierarchies,
        aside: aside.as_ref(),
    };
    let normalised = normalise::normalise(&bundle.config, place).and_then(|mut normalised| {
        normalised.rest.dev.as_mut().map_or(Ok(()), Dev::open)?;
        let users = userns::make(&mut normalised.config)?;
        Ok((normalised, users))
    });
    match normalised {
        Ok((normalised, users)) => {
            container.record.own_pids = normalised.own_pids;
            Ok(Here { normalised, aside, users })
        }
        Err(error) => {
            if let Some(aside) = aside {
                aside.forget();
            }
            Err(error)
        }
    }
}

/// A terminal needs somebody at its other end.
pub fn check_terminal(terminal: bool, detached: bool, socket: bool) -> Result<()> {
    let usage = |text: &str| Err(Error::Usage(text.to_owned()));
    if detached && terminal && !socket {
        return usage("cannot allocate tty if runtime will detach without setting console socket");
    }
    if (!detached || !terminal) && socket {
        return usage("cannot use console socket if runtime will not detach or allocate tty");
    }
    Ok(())
}

/// The compiled filter of a configuration.
pub fn filter(config: &Value) -> Result<Option<seccomp::Filter>> {
    let profile = config.get("linux").and_then(|linux| linux.get("seccomp")).filter(|value| !value.is_null());
    let Some(profile) = profile else { return Ok(None) };
    let profile: LinuxSeccomp = serde_json::from_value(profile.clone())
        .map_err(|error| Error::config("linux.seccomp", error.to_string()))?;
    seccomp::compile(&profile)
}

fn prepared(
    runtime: &Runtime,
    request: &Request,
    container: &Container,
    mut process: Process,
    filter: Option<seccomp::Filter>,
    rest: Rest,
) -> Payload {
    if runtime.listen_fds > 0 {
        for entry in [format!("LISTEN_FDS={}", runtime.listen_fds), "LISTEN_PID=1".to_owned()] {
            process.env.extend(CString::new(entry));
        }
    }
    let start_hooks = container.record.hooks.as_ref().and_then(|hooks| hooks.start_container().clone());
    Payload {
        capabilities: process.capabilities.clone().unwrap_or_default(),
        no_new_privileges: process.no_new_privileges.unwrap_or(false),
        filter,
        rest: Some(rest),
        start_hooks: (start_hooks.unwrap_or_default(), container.state(Status::Created, None)),
        keyring: match request.no_new_keyring {
            true => None,
            false => CString::new(format!("_ses.{}", request.id)).ok(),
        },
        process,
        ..Payload::default()
    }
}

fn build(
    container: &mut Container,
    bundle: &Bundle,
    config: &Value,
    request: &Request,
    payload: Payload,
) -> Result<()> {
    let dir = container.dir.clone();
    // Before anything is started: who finds this directory after a crash can clean up by it.
    let pending =
        serde_json::to_vec(&container.record).map_err(|source| Error::State { path: dir.clone(), source })?;
    record::write_whole(&dir.join("pending.json"), &pending)?;
    record::write_whole(&dir.join(CONFIG), &bundle.text)?;
    let own = dir.join("bundle");
    fs::create_dir(&own).map_err(Error::io(format!("mkdir {}", own.display())))?;
    let text =
        serde_json::to_vec(config).map_err(|source| Error::State { path: own.join(CONFIG), source })?;
    record::write_whole(&own.join(CONFIG), &text)?;

    let trail = Trail::begin().map_err(Error::io("begin the log"))?;
    let process = payload.process.clone();
    // Whatever the caller's is: cgroups and mount points are made with it.
    nix::sys::stat::umask(Mode::from_bits_truncate(0o022));
    let made = ContainerBuilder::new(request.id.clone(), SyscallType::Linux)
        .with_executor(payload)
        .with_preserved_fds(i32::try_from(request.preserve_fds).unwrap_or(0))
        .with_console_socket(request.console_socket.clone())
        .with_root_path(dir.join("init"))
        .and_then(|builder| {
            builder
                .as_init(own)
                .with_systemd(container.record.systemd)
                .with_detach(true)
                .with_no_pivot(request.no_pivot)
                .build()
        });
    let left = trail.left(payload::LIMIT);
    let made = made.map_err(|error| {
        let top = crate::diagnostic::chain(&error);
        match trail.cause() {
            Some(Cause::Own(text)) => Error::Process(text),
            Some(Cause::Theirs(text)) if !top.contains(&text) => Error::Process(format!("{top}: {text}")),
            _ => Error::Process(top),
        }
    })?;
    let pid = made.pid().ok_or_else(|| Error::Process("it has no number".to_owned()))?.as_raw();
    let gone = || Error::Process("it ended before it was started".to_owned());
    container.record.pid = pid;
    container.record.start_time = record::start_time(pid).ok_or_else(gone)?;
    if container.record.systemd {
        container.record.joined = Cgroup::of_process(pid);
    }
    adjust(container, &process, &left, bundle)?;
    container.save()?;
    if let Some(path) = &request.pid_file {
        write_pid(path, pid)?;
    }
    let _ = fs::remove_file(dir.join("pending.json"));
    Ok(())
}

/// What has to be done to the process from outside, where the runtime's privileges count and not those of its user
/// namespace.
fn adjust(container: &Container, process: &Process, limits: &[String], bundle: &Bundle) -> Result<()> {
    let pid = container.record.pid;
    let left = |resource: &Resource| limits.contains(&format!("{resource:?}"));
    for (resource, soft, hard) in process.rlimits.iter().flatten().filter(|limit| left(&limit.0)) {
        sys::set_limit(Pid::from_raw(pid), *resource, *soft, *hard)
            .map_err(|errno| Error::Process(format!("error setting {resource:?}: {}", errno.desc())))?;
    }
    if let Some(score) = process.oom_score_adj {
        let path = format!("/proc/{pid}/oom_score_adj");
        fs::write(&path, score.to_string()).map_err(Error::io(format!("write {path}")))?;
    }
    let cgroup = container.cgroup()?;
    // In a user namespace no program may be loaded, and no node of a device be made.
    if cgroup.is_unified() && nix::unistd::geteuid().is_root() && !super::in_user_namespace() {
        for dir in cgroup.existing() {
            devices::limit(&bundle.config, dir)?;
        }
    }
    // libcontainer does not look at it.
    let no_killer =
        bundle.config.pointer("/linux/resources/memory/disableOOMKiller") == Some(&Value::Bool(true));
    if no_killer {
        cgroup.disable_oom_killer()?;
    }
    Ok(())
}

/// Takes back what was made.
fn abandon(runtime: &Runtime, container: &Container, cgroup: &Cgroup) {
    let mut left = Vec::new();
    left.extend(cgroup.kill_all().err());
    kill_children();
    left.extend(cgroup.remove().err());
    // libcontainer clears up on its way out, in part; what was removed by it is fine.
    if let Err(error) = fs::remove_dir_all(&container.dir)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        left.push(Error::io(format!("remove {}", container.dir.display()))(error));
    }
    // runtime-spec runtime.md, "Lifecycle": a failure on the way up goes on with the end.
    let hooks = container.record.hooks.as_ref().and_then(|hooks| hooks.poststop().as_ref());
    let state = container.state(Status::Stopped, None).to_string();
    hooks::run_all(hooks, state.as_bytes(), "poststop", &runtime.log);
    for error in left {
        runtime.log.warning(&format!("clean up: {error}"));
    }
}

/// Ends and reaps whatever libcontainer has started and not told us about.
fn kill_children() {
    let own = std::process::id();
    let children = fs::read_to_string(format!("/proc/self/task/{own}/children")).unwrap_or_default();
    for pid in children.split_ascii_whitespace().filter_map(|word| word.parse().ok()) {
        let pid = Pid::from_raw(pid);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::SIGKILL);
        let _ = waitpid(pid, None);
    }
    while waitpid(None, Some(WaitPidFlag::WNOHANG)).is_ok_and(|status| status.pid().is_some()) {}
}
