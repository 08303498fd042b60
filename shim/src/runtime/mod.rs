//! The program as an OCI runtime: the verbs that Docker, containerd, podman and others call, as runc has them. A
//! file for each verb.
//!
//! libcontainer makes the namespaces, mounts and devices and joins the cgroup. Around it: the configuration is
//! normalised before ([`normalise`]), the container's first process finishes what libcontainer leaves
//! ([`inside`], [`payload`]), state and cgroup are looked at afterwards without it ([`record`], [`cgroup`]).
//! Where that differs from libcontainer or from runc stands in docs/spec-deviations.md.
//!
//! Nothing here may start a thread: libcontainer forks without exec.

pub mod cgroup;
pub mod cli;
pub mod create;
pub mod delete;
pub mod devices;
pub mod error;
pub mod events;
pub mod exec;
pub mod features;
pub mod foreground;
pub mod hooks;
pub mod inside;
pub mod kill;
pub mod list;
pub mod log;
pub mod mounts;
pub mod normalise;
pub mod pause;
pub mod payload;
pub mod process;
pub mod ps;
pub mod record;
pub mod run;
pub mod scheduling;
pub mod seal;
pub mod seccomp;
pub mod spec;
pub mod start;
pub mod state;
pub mod unmanaged;
pub mod update;
pub mod userns;

use std::io::Write;
use std::path::{Path, PathBuf};

use self::error::{Error, Result};
use self::log::Log;

/// What holds for every verb.
#[derive(Debug)]
pub struct Runtime {
    /// Where the containers' state lies.
    pub root: PathBuf,
    /// Where errors go.
    pub log: Log,
    /// Whether systemd keeps the cgroups.
    pub systemd: bool,
    /// How many descriptors a service manager passed on (sd_listen_fds(3)).
    pub listen_fds: u32,
}

/// Prints what a verb says: whole, or an error.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::io("write the output"))
}

/// Says on a container's own standard error why its process could not be executed. There is no other way left: the
/// caller of `start` has gone.
pub fn say_inside(text: &str) {
    let mut line = log::plain(text);
    line.push('\n');
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Writes a process's number to a file, whole: an engine that sees the file reads all of it.
pub fn write_pid(path: &Path, pid: i32) -> Result<()> {
    record::write_whole(path, pid.to_string().as_bytes())
}

/// Whether this process is root in a user namespace only, which is how rootless engines run a runtime
/// (user_namespaces(7): the first one maps all numbers to themselves).
pub fn in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_ascii_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"]
}

/// Where containers of this caller are kept, unless `--root` says otherwise: beside what turns keep, not among it.
/// Root of a user namespace is asked for whose root it is, as runc does.
pub fn default_root() -> PathBuf {
    let root = nix::unistd::geteuid().is_root();
    let user = std::env::var_os("USER").is_some_and(|name| name == "root");
    let base = match std::env::var_os("XDG_RUNTIME_DIR") {
        _ if root && (!in_user_namespace() || user) => PathBuf::from("/run"),
        Some(dir) if Path::new(&dir).is_absolute() => dir.into(),
        _ => std::env::temp_dir().join(format!("codeoid-shim-{}", nix::unistd::geteuid())),
    };
    base.join("codeoid-shim").join("containers")
}
