//! What is known of a container between two commands: `ROOT/ID/state.json`, and the configuration it was created
//! with, beside it. What a container *does* is never taken from there: a pid may be somebody else's by now, so it
//! counts only together with the time at which its process started.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, fcntl};
use nix::unistd::Pid;
use oci_spec::runtime::Hooks;
use serde::{Deserialize, Serialize};

use super::cgroup::Cgroup;
use super::error::{Error, Result};
use crate::sys::process;

/// The longest name: that of a file in every file system.
const MAX_ID: usize = 255;

/// A container's status, as `state` says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Its process waits for `start`.
    Created,
    /// It runs.
    Running,
    /// It is frozen.
    Paused,
    /// It has ended.
    Stopped,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
        })
    }
}

/// The written state.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// `ociVersion` of the configuration.
    pub oci_version: String,
    /// The name.
    pub id: String,
    /// The bundle's directory, absolute.
    pub bundle: PathBuf,
    /// The root file system, absolute.
    pub rootfs: PathBuf,
    /// The container's first process.
    pub pid: i32,
    /// When that started, in clock ticks since boot (proc_pid_stat(5), field 22).
    pub start_time: u64,
    /// When the container was created (RFC 3339).
    pub created: String,
    /// Who created it.
    pub owner: u32,
    /// Whether systemd keeps its cgroup.
    pub systemd: bool,
    /// Its cgroup, as libcontainer was told.
    pub cgroup: PathBuf,
    /// Where systemd has put it (cgroup v2).
    #[serde(default)]
    pub joined: Option<PathBuf>,
    /// Whether its processes have a pid namespace of their own, and so die with the first.
    pub own_pids: bool,
    /// The annotations of the configuration.
    #[serde(default)]
    pub annotations: HashMap<String, String>,
    /// The hooks that are still to be run.
    #[serde(default)]
    pub hooks: Option<Hooks>,
}

/// A container's directory, locked: no second command changes it at the same time.
#[derive(Debug)]
pub struct Container {
    /// The directory.
    pub dir: PathBuf,
    /// What stands in it.
    pub record: Record,
    lock: Option<File>,
}

/// Judges a name: it becomes a directory, and engines put it into paths of their own.
pub fn check_id(id: &str) -> Result<()> {
    if id.is_empty() {
        return Err(Error::EmptyId);
    }
    let usual = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '+' | '-' | '.');
    if id.len() > MAX_ID || id == "." || id == ".." || !id.chars().all(usual) {
        return Err(Error::InvalidId);
    }
    Ok(())
}

/// Makes the directory of a new container. Of two that ask at the same time one gets it.
pub fn make_dir(root: &Path, id: &str) -> Result<PathBuf> {
    check_id(id)?;
    let private = |path: &Path| DirBuilder::new().mode(0o700).create(path);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(root)
        .map_err(Error::io(format!("mkdir {}", root.display())))?;
    let dir = root.join(id);
    match private(&dir) {
        Ok(()) => Ok(dir),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(Error::Exists),
        Err(error) => Err(Error::Io { what: format!("mkdir {}", dir.display()), source: error }),
    }
}

/// Locks a container's directory, until the file is closed. A lock of the process, not of the open file: what
/// libcontainer forks inherits every descriptor, and would keep one of the other kind until it is started.
pub fn lock(dir: &Path) -> Result<File> {
    let what = || format!("lock {}", dir.display());
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(dir.join("lock"));
    let file = file.map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Error::NotExist,
        _ => Error::io(what())(error),
    })?;
    let whole = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_SETLKW(&whole)).map_err(Error::errno(what()))?;
    Ok(file)
}

impl Container {
    /// Loads a container to look at it.
    pub fn load(root: &Path, id: &str) -> Result<Self> {
        check_id(id)?;
        let dir = root.join(id);
        let path = dir.join("state.json");
        let text = fs::read(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => Error::NotExist,
            _ => Error::Io { what: format!("read {}", path.display()), source: error },
        })?;
        let record = serde_json::from_slice(&text).map_err(|source| Error::State { path, source })?;
        Ok(Self { dir, record, lock: None })
    }

    /// Loads a container to change it: nobody else does until this is dropped.
    pub fn locked(root: &Path, id: &str) -> Result<Self> {
        check_id(id)?;
        let lock = lock(&root.join(id))?;
        let mut container = Self::load(root, id)?;
        container.lock = Some(lock);
        Ok(container)
    }

    /// A container whose directory was just made.
    pub fn new(dir: PathBuf, record: Record, lock: File) -> Self {
        Self { dir, record, lock: Some(lock) }
    }

    /// Lets others change it again.
    pub fn unlock(&mut self) {
        self.lock = None;
    }

    /// The state as hooks and callers get it (runtime-spec runtime.md, "State").
    pub fn state(&self, status: Status, pid: Option<i32>) -> serde_json::Value {
        let record = &self.record;
        let mut state = serde_json::json!({
            "ociVersion": record.oci_version,
            "id": record.id,
            "pid": pid.unwrap_or(0),
            "status": status.to_string(),
            "bundle": record.bundle,
        });
        if let Some(members) = state.as_object_mut()
            && !record.annotations.is_empty()
        {
            members.insert("annotations".to_owned(), serde_json::json!(record.annotations));
        }
        state
    }

    /// Writes the state: a reader sees the old or the new one, never half of it.
    pub fn save(&self) -> Result<()> {
        let text = serde_json::to_vec(&self.record)
            .map_err(|source| Error::State { path: self.dir.clone(), source })?;
        write_whole(&self.dir.join("state.json"), &text)
    }

    /// A handle on the container's first process, if it lives: no reuse of its pid can redirect it.
    pub fn process(&self) -> Option<OwnedFd> {
        let pid = self.record.pid;
        let handle = process::pidfd_open(Pid::from_raw(pid)).ok()?;
        // Asked after the handle was opened: from here on the pid cannot change its meaning unnoticed.
        (start_time(pid)? == self.record.start_time).then_some(handle)
    }

    /// What the container does now.
    pub fn status(&self) -> Status {
        if self.process().is_none() {
            return Status::Stopped;
        }
        // A created one can be frozen too, and has to be thawed first.
        if self.cgroup().is_ok_and(|cgroup| cgroup.is_frozen()) {
            return Status::Paused;
        }
        if self.start_socket().exists() { Status::Created } else { Status::Running }
    }

    /// The socket at which the process waits for `start`; `start` removes it.
    pub fn start_socket(&self) -> PathBuf {
        self.dir.join("init").join(&self.record.id).join("notify.sock")
    }

    /// The container's cgroup.
    pub fn cgroup(&self) -> Result<Cgroup> {
        Cgroup::of_container(&self.record)
    }

    /// The configuration that the container was created with.
    pub fn config(&self) -> Result<serde_json::Value> {
        let path = self.dir.join("config.json");
        let text = fs::read(&path).map_err(Error::io(format!("read {}", path.display())))?;
        serde_json::from_slice(&text).map_err(|source| Error::State { path, source })
    }
}

/// Writes a file under another name first.
pub fn write_whole(path: &Path, text: &[u8]) -> Result<()> {
    let what = || format!("write {}", path.display());
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let draft = path.with_file_name(format!(".{name}-{}", std::process::id()));
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&draft)?;
        file.write_all(text)?;
        fs::rename(&draft, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&draft);
        Error::io(what())(error)
    })
}

/// When a process started; `None` where it is gone, or waits for its parent to ask how it ended.
pub fn start_time(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses, and may hold anything.
    let mut fields = text[text.rfind(')')? + 1..].split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The names of all containers below a root, in order.
pub fn names(root: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(format!("read {}", root.display()))(error)),
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.path().join("state.json").is_file())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_file_names_that_runc_takes() {
        for good in ["a", "A.b_c+d-e", "...", "0"] {
            check_id(good).unwrap();
        }
        for bad in ["", ".", "..", "a/b", "../x", "a b", "a\n", "ä", "a\0", &"x".repeat(256)] {
            assert!(check_id(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn of_two_that_ask_for_a_name_one_gets_it() {
        let root = tempfile::tempdir().unwrap();
        make_dir(&root.path().join("deep/er"), "x").unwrap();
        assert!(matches!(make_dir(&root.path().join("deep/er"), "x"), Err(Error::Exists)));
    }

    #[test]
    fn a_process_is_known_by_its_start() {
        let own = start_time(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(own > 0);
        assert_eq!(start_time(i32::MAX), None);
    }
}
