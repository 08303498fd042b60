//! The `process` of a configuration, or of an `exec`: read as runc reads it (a missing member is its zero value, an
//! unknown capability a warning) and judged before anything is done.

use std::collections::HashSet;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use caps::Capability;
use nix::sys::resource::Resource;
use serde::Deserialize;
use serde_json::Value;

use super::error::{Error, Result};

/// A process as it is to be started.
#[derive(Debug, Clone, Default)]
pub struct Process {
    /// The command and its arguments.
    pub args: Vec<CString>,
    /// The environment, in its order.
    pub env: Vec<CString>,
    /// The working directory.
    pub cwd: PathBuf,
    /// The user, in the container's numbers.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// File mode creation mask.
    pub umask: Option<u32>,
    /// What it may do; `None`: not said.
    pub capabilities: Option<Capabilities>,
    /// Whether execve(2) may add privileges; `None`: not said.
    pub no_new_privileges: Option<bool>,
    /// Limits of the process, soft and hard.
    pub rlimits: Option<Vec<(Resource, u64, u64)>>,
    /// How readily it is killed where memory runs out.
    pub oom_score_adj: Option<i32>,
    /// AppArmor's profile.
    pub apparmor: Option<String>,
    /// SELinux's label.
    pub selinux: Option<String>,
    /// Whether it gets a terminal.
    pub terminal: bool,
    /// The terminal's size (rows, columns).
    pub size: Option<(u16, u16)>,
    /// Class and level of its disk accesses (ioprio_set(2)).
    pub io_priority: Option<(u8, u8)>,
    /// Its scheduling.
    pub scheduler: Option<Scheduler>,
    /// CPUs of an `exec`, before and after it has joined the cgroup.
    pub affinity: Affinity,
}

/// The five sets (capabilities(7)).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// What can ever be had.
    pub bounding: HashSet<Capability>,
    /// What holds.
    pub effective: HashSet<Capability>,
    /// What can be made to hold.
    pub permitted: HashSet<Capability>,
    /// What execve(2) of a marked file keeps.
    pub inheritable: HashSet<Capability>,
    /// What every execve(2) keeps.
    pub ambient: HashSet<Capability>,
}

/// `execCPUAffinity`: lists of CPUs.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Affinity {
    /// Before.
    pub initial: Option<String>,
    /// After.
    #[serde(rename = "final")]
    pub last: Option<String>,
}

/// `scheduler` (sched_setattr(2)).
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scheduler {
    /// `SCHED_*`
    pub policy: String,
    /// Of the fair policies.
    #[serde(default)]
    pub nice: i32,
    /// Of the real-time policies.
    #[serde(default)]
    pub priority: i32,
    /// `SCHED_FLAG_*`
    #[serde(default)]
    pub flags: Vec<String>,
    /// Of the deadline policy, in nanoseconds.
    #[serde(default)]
    pub runtime: u64,
    /// The same.
    #[serde(default)]
    pub deadline: u64,
    /// The same.
    #[serde(default)]
    pub period: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Written {
    terminal: Option<bool>,
    console_size: Option<Size>,
    user: Option<User>,
    args: Option<Vec<String>>,
    env: Option<Vec<String>>,
    cwd: Option<String>,
    capabilities: Option<Sets>,
    rlimits: Option<Vec<Rlimit>>,
    no_new_privileges: Option<bool>,
    apparmor_profile: Option<String>,
    oom_score_adj: Option<i32>,
    selinux_label: Option<String>,
    io_priority: Option<IoPriority>,
    scheduler: Option<Scheduler>,
    #[serde(rename = "execCPUAffinity")]
    affinity: Option<Affinity>,
}

#[derive(Debug, Deserialize)]
struct Size {
    height: u16,
    width: u16,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct User {
    uid: u32,
    gid: u32,
    umask: Option<u32>,
    additional_gids: Option<Vec<u32>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Sets {
    bounding: Option<Vec<String>>,
    effective: Option<Vec<String>>,
    permitted: Option<Vec<String>>,
    inheritable: Option<Vec<String>>,
    ambient: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct Rlimit {
    #[serde(rename = "type")]
    kind: String,
    soft: u64,
    hard: u64,
}

#[derive(Debug, Deserialize)]
struct IoPriority {
    class: String,
    #[serde(default)]
    priority: u8,
}

impl Process {
    /// Reads it. What is left out of it with a warning is added to `warnings`.
    pub fn parse(value: &Value, warnings: &mut Vec<String>) -> Result<Self> {
        let written =
            Written::deserialize(value).map_err(|error| Error::config("process", error.to_string()))?;
        let usage = |text: &str| Error::Usage(text.to_owned());
        let args = written.args.unwrap_or_default();
        if args.is_empty() {
            return Err(usage("args must not be empty"));
        }
        let cwd = PathBuf::from(written.cwd.unwrap_or_default());
        if cwd.as_os_str().is_empty() {
            return Err(usage("Cwd property must not be empty"));
        }
        if !cwd.is_absolute() {
            return Err(usage("Cwd must be an absolute path"));
        }
        let user = written.user.unwrap_or_default();
        if user.umask.is_some_and(|mask| mask > 0o7777) {
            return Err(Error::config("process.user.umask", "it is no mode"));
        }
        let label = |text: Option<String>| text.filter(|text| !text.is_empty());
        let selinux = label(written.selinux_label);
        if selinux.is_some() && !Path::new("/sys/fs/selinux/enforce").exists() {
            return Err(usage(
                "selinux label is specified in config, but selinux is disabled or not supported",
            ));
        }
        let apparmor = label(written.apparmor_profile);
        if apparmor.is_some() && !apparmor_enabled() {
            return Err(usage("apparmor profile is specified in config, but apparmor is not enabled"));
        }
        Ok(Self {
            args: strings(&args, "process.args")?,
            env: strings(&written.env.unwrap_or_default(), "process.env")?,
            cwd,
            uid: user.uid,
            gid: user.gid,
            groups: user.additional_gids.unwrap_or_default(),
            umask: user.umask,
            capabilities: written.capabilities.map(|sets| capabilities(sets, warnings)),
            no_new_privileges: written.no_new_privileges,
            rlimits: written.rlimits.map(rlimits).transpose()?,
            oom_score_adj: written.oom_score_adj,
            apparmor,
            selinux,
            terminal: written.terminal.unwrap_or(false),
            size: written.console_size.map(|size| (size.height, size.width)),
            io_priority: written.io_priority.map(io_priority).transpose()?,
            scheduler: written.scheduler,
            affinity: written.affinity.unwrap_or_default(),
        })
    }

    /// The value of a variable; the last one counts, as for getenv(3) of what runc starts.
    pub fn variable(&self, name: &str) -> Option<&[u8]> {
        self.env
            .iter()
            .rev()
            .find_map(|entry| entry.as_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }
}

fn strings(list: &[String], what: &str) -> Result<Vec<CString>> {
    list.iter()
        .map(|text| CString::new(text.as_bytes()).map_err(|_| Error::config(what, "it contains a NUL byte")))
        .collect()
}

fn apparmor_enabled() -> bool {
    std::fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.starts_with('Y'))
}

/// A capability by its name; `None` where this kernel, or this program, does not know it.
pub fn capability(name: &str) -> Option<Capability> {
    Capability::from_str(&name.to_ascii_uppercase()).ok()
}

fn capabilities(sets: Sets, warnings: &mut Vec<String>) -> Capabilities {
    let mut unknown: Vec<String> = Vec::new();
    let mut set = |names: Option<Vec<String>>| -> HashSet<Capability> {
        let mut known = HashSet::new();
        for name in names.into_iter().flatten() {
            match capability(&name) {
                Some(capability) => drop(known.insert(capability)),
                None if unknown.contains(&name) => {}
                None => unknown.push(name),
            }
        }
        known
    };
    let sets = Capabilities {
        bounding: set(sets.bounding),
        effective: set(sets.effective),
        permitted: set(sets.permitted),
        inheritable: set(sets.inheritable),
        ambient: set(sets.ambient),
    };
    if !unknown.is_empty() {
        warnings.push(format!("ignoring unknown or unavailable capabilities: [{}]", unknown.join(" ")));
    }
    sets
}

fn rlimits(list: Vec<Rlimit>) -> Result<Vec<(Resource, u64, u64)>> {
    let mut seen = HashSet::new();
    list.into_iter()
        .map(|limit| {
            if !seen.insert(limit.kind.clone()) {
                return Err(Error::config("process.rlimits", format!("{} is there twice", limit.kind)));
            }
            let resource = resource(&limit.kind).ok_or_else(|| {
                Error::config("process.rlimits", format!("wrong rlimit value: {}", limit.kind))
            })?;
            Ok((resource, limit.soft, limit.hard))
        })
        .collect()
}

fn resource(name: &str) -> Option<Resource> {
    Some(match name {
        "RLIMIT_AS" => Resource::RLIMIT_AS,
        "RLIMIT_CORE" => Resource::RLIMIT_CORE,
        "RLIMIT_CPU" => Resource::RLIMIT_CPU,
        "RLIMIT_DATA" => Resource::RLIMIT_DATA,
        "RLIMIT_FSIZE" => Resource::RLIMIT_FSIZE,
        "RLIMIT_LOCKS" => Resource::RLIMIT_LOCKS,
        "RLIMIT_MEMLOCK" => Resource::RLIMIT_MEMLOCK,
        "RLIMIT_MSGQUEUE" => Resource::RLIMIT_MSGQUEUE,
        "RLIMIT_NICE" => Resource::RLIMIT_NICE,
        "RLIMIT_NOFILE" => Resource::RLIMIT_NOFILE,
        "RLIMIT_NPROC" => Resource::RLIMIT_NPROC,
        "RLIMIT_RSS" => Resource::RLIMIT_RSS,
        "RLIMIT_RTPRIO" => Resource::RLIMIT_RTPRIO,
        "RLIMIT_RTTIME" => Resource::RLIMIT_RTTIME,
        "RLIMIT_SIGPENDING" => Resource::RLIMIT_SIGPENDING,
        "RLIMIT_STACK" => Resource::RLIMIT_STACK,
        _ => return None,
    })
}

fn io_priority(written: IoPriority) -> Result<(u8, u8)> {
    let class = match written.class.as_str() {
        "IOPRIO_CLASS_RT" => 1,
        "IOPRIO_CLASS_BE" => 2,
        "IOPRIO_CLASS_IDLE" => 3,
        other => {
            return Err(Error::config("process.ioPriority", format!("invalid ioPriority.Class: {other:?}")));
        }
    };
    if written.priority > 7 {
        return Err(Error::config("process.ioPriority", "invalid ioPriority.Priority: it is above 7"));
    }
    Ok((class, written.priority))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(value: Value) -> Result<Process> {
        Process::parse(&value, &mut Vec::new())
    }

    #[test]
    fn what_is_missing_is_zero() {
        let process = parse(json!({ "args": ["a"], "cwd": "/", "env": null })).unwrap();
        assert_eq!((process.uid, process.gid, process.terminal), (0, 0, false));
        assert_eq!(process.capabilities, None);
        for bad in [
            json!({ "cwd": "/" }),
            json!({ "args": [], "cwd": "/" }),
            json!({ "args": ["a"] }),
            json!({ "args": ["a"], "cwd": "x" }),
            json!({ "args": ["a\u{0}"], "cwd": "/" }),
            json!({ "args": "a", "cwd": "/" }),
            json!({ "args": ["a"], "cwd": "/", "user": { "uid": -1 } }),
            json!({ "args": ["a"], "cwd": "/", "rlimits": [{ "type": "RLIMIT_X", "soft": 1, "hard": 1 }] }),
            json!([]),
        ] {
            assert!(parse(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_unknown_capability_is_a_warning() {
        let mut warnings = Vec::new();
        let value = json!({ "args": ["a"], "cwd": "/",
            "capabilities": { "bounding": ["CAP_KILL", "CAP_UNHEARD_OF"], "effective": ["CAP_UNHEARD_OF"] } });
        let process = Process::parse(&value, &mut warnings).unwrap();
        let sets = process.capabilities.unwrap();
        assert_eq!(sets.bounding, HashSet::from([Capability::CAP_KILL]));
        assert!(sets.effective.is_empty() && sets.ambient.is_empty());
        assert_eq!(warnings, ["ignoring unknown or unavailable capabilities: [CAP_UNHEARD_OF]"]);
    }

    #[test]
    fn the_last_of_two_variables_counts() {
        let process =
            parse(json!({ "args": ["a"], "cwd": "/", "env": ["A=1", "AB=2", "A=3", "x"] })).unwrap();
        assert_eq!(process.variable("A"), Some(&b"3"[..]));
        assert_eq!(process.variable("B"), None);
    }
}
