//! A container's cgroup as seen from outside: its processes, freezing, removal. Joining it and setting limits is
//! libcontainer's; what is done here is what it does wrong (it kills the caller's own cgroup where the path is
//! empty) or slowly (it reads the mount table twenty-four times).

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use libcgroups::common::{AnyCgroupManager, CgroupConfig, create_cgroup_manager};
use nix::unistd::Pid;

use super::error::{Error, Result};
use super::record::Record;

/// Where hierarchies are mounted; libcontainer looks nowhere else.
pub const ROOT: &str = "/sys/fs/cgroup";

/// How long the kernel may take to freeze or to let go of a cgroup.
const PATIENCE: Duration = Duration::from_secs(5);

/// The controllers of cgroup v1 in which libcontainer puts a container.
const CONTROLLERS: [&str; 12] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
];

/// A mounted hierarchy of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Where it is mounted.
    pub point: PathBuf,
    /// Its controllers, with v1.
    pub controllers: Vec<String>,
    /// Whether it is that of v2.
    pub unified: bool,
}

/// The hierarchies in which containers are.
pub fn hierarchies(table: &str) -> Vec<Hierarchy> {
    let mut found = Vec::new();
    for line in table.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let Some(point) = left.split(' ').nth(4) else { continue };
        let mut right = right.split(' ');
        let (kind, options) = (right.next().unwrap_or(""), right.nth(1).unwrap_or(""));
        let controllers: Vec<String> =
            options.split(',').filter(|name| CONTROLLERS.contains(name)).map(str::to_owned).collect();
        let unified = kind == "cgroup2" && point == ROOT;
        if unified || kind == "cgroup" && point.starts_with(ROOT) && !controllers.is_empty() {
            let point = PathBuf::from(point);
            found.retain(|known: &Hierarchy| known.point != point);
            found.push(Hierarchy { point, controllers, unified });
        }
    }
    found
}

/// Those of this host.
pub fn host() -> Result<Vec<Hierarchy>> {
    let table = fs::read_to_string("/proc/self/mountinfo").map_err(Error::io("read the mount table"))?;
    Ok(hierarchies(&table))
}

/// The directories of one cgroup, one for each hierarchy.
#[derive(Debug)]
pub struct Cgroup {
    dirs: Vec<PathBuf>,
    freezer: Option<PathBuf>,
    unified: bool,
}

impl Cgroup {
    /// The cgroup at a path in every hierarchy where libcontainer puts a container.
    pub fn at(path: &Path) -> Result<Self> {
        let path = clean(path);
        if path == Path::new("/") {
            return Err(Error::Cgroup("the root of the hierarchy is no container's cgroup".to_owned()));
        }
        let table = fs::read_to_string("/proc/self/mountinfo").map_err(Error::io("read the mount table"))?;
        Ok(Self::within(&path, &table))
    }

    /// The same, with a mount table (proc_pid_mountinfo(5)).
    fn within(path: &Path, table: &str) -> Self {
        let below = |point: &Path| point.join(path.strip_prefix("/").unwrap_or(path));
        let found = hierarchies(table);
        let legacy: Vec<&Hierarchy> = found.iter().filter(|hierarchy| !hierarchy.unified).collect();
        let mut dirs: Vec<PathBuf> = match legacy.is_empty() {
            true => found.iter().map(|hierarchy| below(&hierarchy.point)).collect(),
            false => legacy.iter().map(|hierarchy| below(&hierarchy.point)).collect(),
        };
        let freezer = match legacy.is_empty() {
            true => dirs.first().cloned(),
            false => {
                let has =
                    |hierarchy: &&&Hierarchy| hierarchy.controllers.iter().any(|name| name == "freezer");
                legacy.iter().find(has).map(|hierarchy| below(&hierarchy.point))
            }
        };
        dirs.sort_unstable();
        dirs.dedup();
        Self { dirs, freezer, unified: legacy.is_empty() }
    }

    /// That of a container. Where systemd keeps it (which it does with v2 only), it is where the container's process was
    /// when it was created.
    pub fn of_container(record: &Record) -> Result<Self> {
        let cgroup = Self::at(&record.cgroup)?;
        if !record.systemd || record.cgroup.is_absolute() || !cgroup.unified {
            return Ok(cgroup);
        }
        let dir = record.joined.clone().into_iter().collect::<Vec<_>>();
        Ok(Self { freezer: dir.first().cloned(), dirs: dir, unified: true })
    }

    /// With v2, that in which a process is: it may have moved into one below its container's, and then nothing else can
    /// be in that (kernel, cgroup-v2.rst, "No Internal Process Constraint").
    pub fn of_process(pid: i32) -> Option<PathBuf> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
        Some(Path::new(ROOT).join(clean(Path::new(path)).strip_prefix("/").ok()?))
    }

    /// Whether there is one hierarchy only, v2.
    pub fn is_unified(&self) -> bool {
        self.unified
    }

    /// Whether the caller may make it, or change it where it is there.
    pub fn is_writable(&self) -> bool {
        self.dirs.iter().all(|dir| {
            let there = dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new(ROOT));
            nix::unistd::access(there, nix::unistd::AccessFlags::W_OK).is_ok()
        })
    }

    /// The directories that exist.
    pub fn existing(&self) -> impl Iterator<Item = &PathBuf> {
        self.dirs.iter().filter(|dir| dir.is_dir())
    }

    /// Every process in it and below it.
    pub fn processes(&self) -> Vec<Pid> {
        let mut found = BTreeSet::new();
        for dir in self.existing() {
            walk(dir, &mut |dir| {
                let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
                found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
            });
        }
        // 0: a process of another pid namespace, which has no number here.
        found.into_iter().filter(|pid| *pid > 0).map(Pid::from_raw).collect()
    }

    /// Whether it is frozen, or about to be.
    pub fn is_frozen(&self) -> bool {
        self.freezer.as_deref().is_some_and(|dir| {
            let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
            match self.unified {
                true => read("cgroup.freeze").trim() == "1",
                false => matches!(read("freezer.state").trim(), "FROZEN" | "FREEZING"),
            }
        })
    }

    /// Freezes or thaws it, and waits until that is done.
    pub fn freeze(&self, frozen: bool) -> Result<()> {
        let Some(dir) = self.freezer.as_deref() else {
            return Err(Error::Cgroup("this host has no freezer for containers".to_owned()));
        };
        let (file, value) = match (self.unified, frozen) {
            (true, true) => ("cgroup.freeze", "1"),
            (true, false) => ("cgroup.freeze", "0"),
            (false, true) => ("freezer.state", "FROZEN"),
            (false, false) => ("freezer.state", "THAWED"),
        };
        let path = dir.join(file);
        let write =
            |text: &str| fs::write(&path, text).map_err(Error::io(format!("write {}", path.display())));
        let done = || match self.unified {
            true => fs::read_to_string(dir.join("cgroup.events"))
                .unwrap_or_default()
                .lines()
                .any(|line| line == format!("frozen {}", u8::from(frozen))),
            false => fs::read_to_string(&path).unwrap_or_default().trim() == value,
        };
        let begun = Instant::now();
        write(value)?;
        let mut round = 0;
        while !done() {
            if begun.elapsed() > PATIENCE {
                // Half frozen is worse than not: what is in it could not even be killed.
                if frozen {
                    let _ = write(if self.unified { "0" } else { "THAWED" });
                }
                return Err(Error::Cgroup(format!("unable to {}", if frozen { "freeze" } else { "thaw" })));
            }
            round += 1;
            std::thread::sleep(Duration::from_millis(if round < 10 { 1 } else { 10 }));
            // With v1 a fork at the wrong moment leaves it FREEZING for ever; asking again helps, sometimes only
            // after a thaw (kernel, freezer-subsystem.rst).
            if !self.unified && frozen {
                if round % 50 == 0 {
                    write("THAWED")?;
                }
                write(value)?;
            }
        }
        Ok(())
    }

    /// Lets processes wait where memory runs out, instead of killing one. cgroup v2 has no such thing.
    pub fn disable_oom_killer(&self) -> Result<()> {
        for dir in self.existing() {
            let path = dir.join("memory.oom_control");
            if path.exists() {
                fs::write(&path, "1").map_err(Error::io(format!("write {}", path.display())))?;
            }
        }
        Ok(())
    }

    /// What keeps a new container from using this cgroup: a living one does already, or nobody could ever thaw it.
    pub fn refuse_if_used(&self) -> Result<()> {
        let count = self.processes().len();
        if count > 0 {
            return Err(Error::Cgroup(format!("container's cgroup is not empty: {count} process(es) found")));
        }
        if self.is_frozen() {
            return Err(Error::Cgroup("container's cgroup unexpectedly frozen".to_owned()));
        }
        Ok(())
    }

    /// Kills every process in it and waits for their end.
    pub fn kill_all(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let left = self.processes();
            if left.is_empty() {
                return Ok(());
            }
            for pid in &left {
                // It ended by itself, or is not ours to kill; what is left is looked at again.
                let _ = nix::sys::signal::kill(*pid, nix::sys::signal::SIGKILL);
            }
            if self.is_frozen() && !self.unified {
                self.freeze(false)?;
            }
            if begun.elapsed() > PATIENCE {
                return Err(Error::Cgroup(format!("{} process(es) cannot be killed", left.len())));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Removes it, where it exists. A process that has just ended is still counted for a moment.
    pub fn remove(&self) -> Result<()> {
        let begun = Instant::now();
        for dir in self.existing() {
            let mut below = Vec::new();
            walk(dir, &mut |dir| below.push(dir.to_owned()));
            // `walk` comes from above.
            for dir in below.into_iter().rev() {
                loop {
                    match fs::remove_dir(&dir) {
                        Ok(()) => break,
                        Err(error) if error.kind() == ErrorKind::NotFound => break,
                        Err(error) if begun.elapsed() > PATIENCE => {
                            return Err(Error::io(format!("rmdir {}", dir.display()))(error));
                        }
                        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                            std::thread::sleep(Duration::from_millis(5));
                        }
                        Err(error) => return Err(Error::io(format!("rmdir {}", dir.display()))(error)),
                    }
                }
            }
        }
        Ok(())
    }
}

/// libcontainer's own hands on the cgroup of a container, for limits and statistics.
pub fn limits(record: &Record) -> Result<AnyCgroupManager> {
    create_cgroup_manager(CgroupConfig {
        cgroup_path: record.cgroup.clone(),
        systemd_cgroup: record.systemd,
        container_name: record.id.clone(),
    })
    .map_err(|error| Error::Cgroup(crate::diagnostic::chain(&error)))
}

/// A path without `.` and `..`, absolute: what leads out of the hierarchy stays at its root.
pub fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            _ => {}
        }
    }
    clean
}

/// Calls `visit` for a directory and all below it, from above.
fn walk(dir: &Path, visit: &mut impl FnMut(&Path)) {
    visit(dir);
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), visit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_and_unified_hosts_are_told_apart() {
        let hybrid = "30 1 0:20 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      31 1 0:21 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n\
                      32 1 0:22 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let cgroup = Cgroup::within(Path::new("/a"), hybrid);
        assert!(!cgroup.unified);
        assert_eq!(cgroup.freezer, Some(PathBuf::from("/sys/fs/cgroup/freezer/a")));
        assert_eq!(cgroup.dirs.len(), 2, "the unified part of a hybrid holds no container: {cgroup:?}");
        let cgroup = Cgroup::within(Path::new("/a"), "30 1 0:20 / /sys/fs/cgroup rw - cgroup2 c rw\n");
        assert!(cgroup.unified);
        assert_eq!(cgroup.dirs, [PathBuf::from("/sys/fs/cgroup/a")]);
    }

    #[test]
    fn no_path_leads_out_of_the_hierarchy() {
        assert_eq!(clean(Path::new("../../x/./y/../z")), Path::new("/x/z"));
        assert_eq!(clean(Path::new("")), Path::new("/"));
        assert!(Cgroup::at(Path::new("")).is_err(), "the caller's own cgroup is nobody's container");
        assert!(Cgroup::at(Path::new("/a/..")).is_err());
    }
}
