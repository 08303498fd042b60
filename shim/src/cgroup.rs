//! Limits of a turn. A cgroup is made only where a limit asks for one (joining takes about 10 ms), by the
//! supervisor; the engine enters it before it does anything else, and everything inherits it.
//!
//! Layouts: cgroup v1 and hybrid (a hierarchy for each controller), v2 (one hierarchy, whose controllers have
//! to be enabled from above: cgroups(7), kernel cgroup-v2.rst).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use codeoid_spec::id::TurnId;
use oci_spec::runtime::LinuxResources;

/// A limit that this host does not let the caller set, and what would help.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rule}: {why}")]
pub struct Unavailable {
    /// The rule: `limits.memory`, `limits.cpus`, `limits.pids`.
    pub rule: &'static str,
    /// Why.
    pub why: String,
}

/// One controller's settings: the file and what is written to it.
type Setting = (&'static str, String);

/// The cgroups of a turn; removed when dropped.
#[derive(Debug, Default)]
pub struct Cgroups {
    made: Vec<PathBuf>,
    /// The files that a process writes `0` to in order to enter.
    pub entrances: Vec<PathBuf>,
}

/// The controllers that the limits need, with their settings for v1 and v2.
fn settings(limits: &LinuxResources) -> Vec<(&'static str, &'static str, Vec<Setting>, Vec<Setting>)> {
    let mut list = Vec::new();
    if let Some(bytes) = limits.memory().as_ref().and_then(|memory| memory.limit()) {
        let bytes = bytes.to_string();
        list.push((
            "memory",
            "limits.memory",
            // With swap the limit would be no limit; a kernel without swap accounting has no such file.
            // Before Linux 5.11 a limit holds below its cgroup only where this is set.
            vec![
                ("memory.use_hierarchy", "1".to_owned()),
                ("memory.limit_in_bytes", bytes.clone()),
                ("memory.memsw.limit_in_bytes", bytes.clone()),
            ],
            vec![("memory.max", bytes), ("memory.swap.max", "0".to_owned())],
        ));
    }
    if let Some(cpu) = limits.cpu()
        && let (Some(quota), Some(period)) = (cpu.quota(), cpu.period())
    {
        list.push((
            "cpu",
            "limits.cpus",
            vec![
                ("cpu.cfs_period_us", period.to_string()),
                ("cpu.cfs_quota_us", quota.max(1_000).to_string()),
            ],
            vec![("cpu.max", format!("{} {period}", quota.max(1_000)))],
        ));
    }
    if let Some(pids) = limits.pids() {
        // Init is one of them.
        let count = pids.limit().saturating_add(1).to_string();
        list.push(("pids", "limits.pids", vec![("pids.max", count.clone())], vec![("pids.max", count)]));
    }
    list
}

/// Files that a kernel may lack without the limit being void.
const OPTIONAL: [&str; 3] = ["memory.memsw.limit_in_bytes", "memory.swap.max", "memory.use_hierarchy"];

/// Below the cgroup with the limits: where the processes are. A cgroup namespace that a turn makes has this as its
/// root (cgroup_namespaces(7)), so that a hierarchy that it mounts does not show the files of its limits.
const INNER: &str = "turn";

/// The hierarchies of this host, as /proc/self/cgroup and mountinfo show them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hierarchies {
    /// v1: controller to the directory of the caller's cgroup.
    v1: Vec<(String, PathBuf)>,
    /// v2: the mount point, and the directory of the caller's cgroup.
    v2: Option<(PathBuf, PathBuf)>,
}

impl Hierarchies {
    /// Reads this host's.
    pub fn read() -> io::Result<Self> {
        Ok(Self::parse(
            &fs::read_to_string("/proc/self/mountinfo")?,
            &fs::read_to_string("/proc/self/cgroup")?,
        ))
    }

    fn parse(mountinfo: &str, cgroup: &str) -> Self {
        let mut found = Self::default();
        for line in mountinfo.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let mut left = left.split(' ');
            let (Some(root), Some(point)) = (left.nth(3), left.next()) else { continue };
            let mut right = right.split(' ');
            let (kind, options) = (right.next().unwrap_or(""), right.nth(1).unwrap_or(""));
            let below = |own: &str| {
                let own = own.strip_prefix(root.trim_end_matches('/')).unwrap_or(own);
                Path::new(point).join(own.trim_start_matches('/'))
            };
            for entry in cgroup.lines() {
                let mut fields = entry.splitn(3, ':').skip(1);
                let (Some(controllers), Some(own)) = (fields.next(), fields.next()) else { continue };
                if kind == "cgroup2" && controllers.is_empty() {
                    found.v2 = Some((PathBuf::from(point), below(own)));
                } else if kind == "cgroup" {
                    let here = controllers.split(',').filter(|name| options.split(',').any(|o| o == *name));
                    found.v1.extend(here.map(|name| (name.to_owned(), below(own))));
                }
            }
        }
        found
    }
}

impl Cgroups {
    /// Makes the cgroups that the limits need. All or nothing.
    pub fn make(limits: &LinuxResources, turn: &TurnId, host: &Hierarchies) -> Result<Self, Unavailable> {
        let mut cgroups = Self::default();
        let name = format!("codeoid-{turn}");
        let wanted = settings(limits);
        let v2: Vec<_> = wanted
            .iter()
            .filter(|(controller, ..)| !host.v1.iter().any(|(known, _)| known == controller))
            .map(|(controller, rule, _, settings)| (*controller, *rule, settings))
            .collect();
        for (controller, rule, settings, _) in &wanted {
            let Some((_, own)) = host.v1.iter().find(|(known, _)| known == controller) else { continue };
            cgroups.make_one(own, &name, rule, settings, "tasks")?;
        }
        if let Some((_, rule, _)) = v2.first() {
            let (root, own) = host.v2.as_ref().ok_or_else(|| Unavailable {
                rule,
                why: "no cgroup hierarchy with this controller is mounted".to_owned(),
            })?;
            let controllers: Vec<_> = v2.iter().map(|(controller, ..)| *controller).collect();
            let parent = delegated(root, own, &controllers).map_err(|why| Unavailable { rule, why })?;
            let all: Vec<Setting> = v2.iter().flat_map(|(_, _, settings)| (*settings).clone()).collect();
            cgroups.make_one(&parent, &name, rule, &all, "cgroup.procs")?;
        }
        Ok(cgroups)
    }

    fn make_one(
        &mut self,
        parent: &Path,
        name: &str,
        rule: &'static str,
        settings: &[Setting],
        entrance: &str,
    ) -> Result<(), Unavailable> {
        let dir = parent.join(name);
        let failed = |path: &Path, error: &io::Error| Unavailable {
            rule,
            why: format!("{}: {error}", path.display()),
        };
        fs::create_dir(&dir).map_err(|error| failed(&dir, &error))?;
        self.made.push(dir.clone());
        for (file, value) in settings {
            let path = dir.join(file);
            match fs::write(&path, value) {
                Err(error) if OPTIONAL.contains(file) && error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if OPTIONAL.contains(file) && error.kind() == io::ErrorKind::PermissionDenied => {}
                other => other.map_err(|error| failed(&path, &error))?,
            }
        }
        let inner = dir.join(INNER);
        fs::create_dir(&inner).map_err(|error| failed(&inner, &error))?;
        self.entrances.push(inner.join(entrance));
        Ok(())
    }

    /// Whether the kernel killed something here for want of memory.
    pub fn out_of_memory(&self) -> bool {
        // A cgroup of v1 counts only what was killed in itself.
        let all = self.made.iter().flat_map(|dir| [dir.clone(), dir.join(INNER)]);
        all.into_iter().any(|dir| {
            [("memory.events", "oom_kill"), ("memory.oom_control", "oom_kill")].iter().any(|(file, key)| {
                fs::read_to_string(dir.join(file)).is_ok_and(|text| {
                    text.lines().any(|line| line.split_once(' ').is_some_and(|(k, n)| k == *key && n != "0"))
                })
            })
        })
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(1);
        for dir in &self.made {
            // The last process may still be on its way out.
            while let Err(error) = remove(dir) {
                if error.raw_os_error() != Some(libc::EBUSY) || Instant::now() > deadline {
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

/// Removes the cgroups of turns whose shim was killed: by now nothing is in them.
pub fn sweep(turn: &str, host: &Hierarchies) {
    let name = format!("codeoid-{turn}");
    let parents = host.v1.iter().map(|(_, own)| own.clone());
    let unified = host.v2.iter().flat_map(|(root, own)| [own.clone(), root.join("codeoid-shim")]);
    for parent in parents.chain(unified) {
        // Most turns have none; one that is in use is not removed (EBUSY).
        let _ = remove(&parent.join(&name));
    }
}

/// Removes a cgroup and those below it, which a turn may have made in a hierarchy that it mounted.
fn remove(dir: &Path) -> io::Result<()> {
    let mut all = vec![dir.to_owned()];
    let mut next = 0;
    while let Some(at) = all.get(next) {
        next += 1;
        if let Ok(items) = fs::read_dir(at) {
            let below = items.flatten().filter(|item| item.file_type().is_ok_and(|kind| kind.is_dir()));
            all.extend(below.map(|item| item.path()).collect::<Vec<_>>());
        }
    }
    // Parents stand before their children.
    all.iter().rev().try_for_each(fs::remove_dir)
}

/// A v2 cgroup below which the caller may make one with these controllers.
fn delegated(root: &Path, own: &Path, controllers: &[&str]) -> Result<PathBuf, String> {
    let enabled = |dir: &Path| {
        let text = fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap_or_default();
        controllers.iter().all(|wanted| text.split_whitespace().any(|known| known == *wanted))
    };
    let enable = |dir: &Path| -> io::Result<()> {
        for controller in controllers {
            fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"))?;
        }
        Ok(())
    };
    if nix::unistd::geteuid().is_root() {
        // The root cgroup is exempt from the rule that a cgroup with processes has no controllers below it.
        let shared = root.join("codeoid-shim");
        let made = enable(root).and_then(|()| match fs::create_dir(&shared) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => enable(&shared),
        });
        return made.map(|()| shared.clone()).map_err(|error| format!("{}: {error}", shared.display()));
    }
    if enabled(own) && nix::unistd::access(own, nix::unistd::AccessFlags::W_OK).is_ok() {
        return Ok(own.to_owned());
    }
    // A cgroup delegated to us in which we are alone: we step into a child, and then it may have controllers.
    let alone = fs::read_to_string(own.join("cgroup.procs"))
        .is_ok_and(|text| text.trim() == std::process::id().to_string());
    if alone && nix::unistd::access(&own.join("cgroup.procs"), nix::unistd::AccessFlags::W_OK).is_ok() {
        let child = own.join("codeoid-supervisor");
        let step = || -> io::Result<()> {
            if !child.exists() {
                fs::create_dir(&child)?;
            }
            fs::write(child.join("cgroup.procs"), "0")?;
            enable(own)
        };
        return step().map(|()| own.to_owned()).map_err(|error| format!("{}: {error}", own.display()));
    }
    Err(format!("the cgroup {} is not delegated to you", own.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_and_unified_hosts_are_told_apart() {
        let hybrid = "30 1 0:20 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      31 1 0:21 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                      32 1 0:22 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let own = "4:memory:/user\n3:cpu,cpuacct:/\n0::/init\n";
        let found = Hierarchies::parse(hybrid, own);
        assert!(found.v1.contains(&("memory".to_owned(), PathBuf::from("/sys/fs/cgroup/memory/user"))));
        assert!(found.v1.contains(&("cpu".to_owned(), PathBuf::from("/sys/fs/cgroup/cpu/"))));
        let unified =
            Hierarchies::parse("30 1 0:20 / /sys/fs/cgroup rw - cgroup2 c rw\n", "0::/user.slice/x\n");
        let expected = (PathBuf::from("/sys/fs/cgroup"), PathBuf::from("/sys/fs/cgroup/user.slice/x"));
        assert_eq!(unified.v2, Some(expected));
        assert!(unified.v1.is_empty());
    }

    #[test]
    fn a_mount_of_a_part_of_the_hierarchy_is_not_counted_twice() {
        let found = Hierarchies::parse("30 1 0:20 /a/b /sys/fs/cgroup rw - cgroup2 c rw\n", "0::/a/b/c\n");
        assert_eq!(found.v2.unwrap().1, PathBuf::from("/sys/fs/cgroup/c"));
    }
}
