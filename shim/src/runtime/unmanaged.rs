//! Cgroups that are not the caller's to change: an ordinary user's containers on cgroup v1. runc leaves such a
//! container in the cgroup where its caller is. libcontainer insists on one of its own, so it is shown a hierarchy
//! that cannot be written, which it puts up with; that takes a mount namespace, in which the container's hooks run
//! too.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Map, Value};

use super::cgroup::{Cgroup, Hierarchy, ROOT};
use super::error::{Error, Result};
use crate::executor::cover_cgroups;

/// The host's hierarchies, put aside.
#[derive(Debug)]
pub struct Aside {
    dir: PathBuf,
    own: String,
}

/// Whether a container has to stay in its caller's cgroup.
pub fn is_needed(cgroup: &Cgroup) -> bool {
    let rootless = super::in_user_namespace() || !nix::unistd::geteuid().is_root();
    rootless && !cgroup.is_unified() && !cgroup.is_writable()
}

/// Refuses limits that nobody would keep.
pub fn refuse_limits(config: &Value) -> Result<()> {
    let none = Map::new();
    let limits = config.pointer("/linux/resources").and_then(Value::as_object).unwrap_or(&none);
    let empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    };
    // Devices cannot be made in a user namespace, whatever a cgroup says.
    match limits.iter().find(|(name, value)| *name != "devices" && !empty(value)) {
        None => Ok(()),
        Some((name, _)) => Err(Error::Cgroup(format!(
            "rootless needs no limits when no permission is granted for cgroups: linux.resources.{name}"
        ))),
    }
}

impl Aside {
    /// Puts them aside, in a container's directory, for this process and what it starts.
    pub fn put(dir: &Path) -> Result<Self> {
        // Before the new cgroup namespace, whose root is where we are.
        let own = fs::read_to_string("/proc/self/cgroup");
        let dir = dir.join("cgroups");
        fs::create_dir(&dir).map_err(Error::io(format!("mkdir {}", dir.display())))?;
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWCGROUP)
            .map_err(Error::errno("no cgroup can be made, and no namespace to do without"))?;
        let mounted = |what: &'static str| move |errno| Error::errno(what)(errno);
        // What is mounted in the caller's namespace later is still seen.
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
            .map_err(mounted("mount /"))?;
        mount(Some(ROOT), &dir, None::<&str>, MsFlags::MS_REC | MsFlags::MS_BIND, None::<&str>)
            .map_err(mounted("bind the cgroups"))?;
        // Its list of processes is empty: libcontainer kills what is on it where a create fails.
        cover_cgroups()?;
        Ok(Self { dir, own: own.unwrap_or_default() })
    }

    /// Where the caller's part of a hierarchy is to be found now.
    pub fn part(&self, hierarchy: &Hierarchy) -> PathBuf {
        let at = self.dir.join(hierarchy.point.file_name().unwrap_or_default());
        let own = self.own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let controllers = fields.next()?;
            let first = hierarchy.controllers.first()?;
            controllers.split(',').any(|name| name == first).then(|| fields.next()).flatten()
        });
        let own = at.join(own.unwrap_or("/").trim_start_matches('/'));
        if own.is_dir() { own } else { at }
    }

    /// Lets go of them: nobody who clears up the directory may come upon them.
    pub fn forget(self) {
        let _ = umount2(&self.dir, MntFlags::MNT_DETACH);
        let _ = fs::remove_dir(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limits_that_nobody_keeps_are_refused() {
        for fine in [json!({}), json!({ "devices": [{ "allow": false }], "memory": {}, "pids": null })] {
            refuse_limits(&json!({ "linux": { "resources": fine } })).unwrap();
        }
        refuse_limits(&json!({})).unwrap();
        assert!(refuse_limits(&json!({ "linux": { "resources": { "pids": { "limit": 1 } } } })).is_err());
    }
}
