//! `doctor`: what this host can enforce, found out by trying, and what to do about what it cannot.

use std::io::Write;
use std::path::Path;

use clap::Args;
use codeoid_spec::id::TurnId;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, mknod};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, getgid, getuid};
use oci_spec::runtime::{LinuxMemoryBuilder, LinuxPidsBuilder, LinuxResources, LinuxResourcesBuilder};
use serde::Serialize;

use super::explain::print_json;
use crate::cgroup::{Cgroups, Hierarchies};
use crate::diagnostic::{Doing, Failure};
use crate::executor::{self, LANDLOCK_SCOPE};
use crate::sys::{self, mount, process};

/// `doctor [--json]`
#[derive(Debug, Args)]
pub struct Doctor {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One thing that was tried.
#[derive(Debug, Serialize)]
struct Probe {
    /// What.
    name: &'static str,
    /// Whether it works here.
    works: bool,
    /// What depends on it, or why it does not work.
    detail: String,
    /// What would help.
    remedy: Option<String>,
}

impl Probe {
    fn new(name: &'static str, works: bool, detail: impl Into<String>, remedy: &str) -> Self {
        Self { name, works, detail: detail.into(), remedy: (!works).then(|| remedy.to_owned()) }
    }
}

impl Doctor {
    /// Looks and prints.
    pub fn run(self) -> Result<u8, Failure> {
        let probes = probes();
        let mut out = std::io::stdout().lock();
        if self.json {
            print_json(&mut out, &probes)?;
            return Ok(0);
        }
        for probe in &probes {
            let mark = if probe.works { "ok     " } else { "missing" };
            writeln!(out, "{mark} {}: {}", probe.name, probe.detail).doing("print")?;
            if let Some(remedy) = &probe.remedy {
                writeln!(out, "        {remedy}").doing("print")?;
            }
        }
        Ok(0)
    }
}

fn probes() -> Vec<Probe> {
    let namespaces = in_child(|| enter().is_ok());
    let overlay = in_child(|| enter().and_then(|()| try_overlay()).is_ok());
    let abi = sys::landlock_abi();
    let bwrap = executor::find_program("bwrap");
    let filters = Path::new("/proc/sys/kernel/seccomp/actions_avail").exists();
    vec![
        Probe::new(
            "executor libcontainer",
            mount::has_set_attributes() && namespaces && filters,
            "needs mount_setattr(2), namespaces and seccomp",
            "see the lines below",
        ),
        Probe::new(
            "executor bwrap",
            bwrap.is_some() && namespaces,
            bwrap.map_or("no program bwrap in the system's directories".to_owned(), |path| {
                path.display().to_string()
            }),
            "install bubblewrap",
        ),
        Probe::new(
            "mount_setattr(2)",
            mount::has_set_attributes(),
            "read-only trees are read-only from their first moment on",
            "Linux 5.12 or newer; with an older one bwrap runs the turns",
        ),
        Probe::new(
            "namespaces",
            namespaces,
            "user (unless root), mount and cgroup namespaces can be made",
            "where AppArmor or a sysctl forbids them: a profile with `userns,` for codeoid-shim, or \
             `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, `sysctl user.max_user_namespaces=10000`",
        ),
        Probe::new(
            "overlay with whiteouts",
            overlay,
            "the home can be copy-on-write, and what is hidden is not there",
            "Linux 5.11 or newer with overlayfs; `--home hidden` needs none",
        ),
        Probe::new("seccomp", filters, "system calls can be filtered", "a kernel with CONFIG_SECCOMP_FILTER"),
        Probe::new(
            "abstract sockets",
            abi >= LANDLOCK_SCOPE,
            format!(
                "Landlock ABI {abi}; with the host's network, ABI {LANDLOCK_SCOPE} refuses abstract sockets"
            ),
            "Linux 6.12 or newer with Landlock, or `--network off`",
        ),
        limits(),
    ]
}

fn limits() -> Probe {
    let wanted = || -> Option<LinuxResources> {
        let memory = LinuxMemoryBuilder::default().limit(1i64 << 30).build().ok()?;
        let pids = LinuxPidsBuilder::default().limit(100i64).build().ok()?;
        LinuxResourcesBuilder::default().memory(memory).pids(pids).build().ok()
    };
    let tried = match (wanted(), Hierarchies::read()) {
        (Some(resources), Ok(host)) => {
            Cgroups::make(&resources, &TurnId::now(), &host).map(drop).map_err(|error| error.to_string())
        }
        (_, Err(error)) => Err(error.to_string()),
        (None, _) => Err("no limits".to_owned()),
    };
    let why = tried.as_ref().err().cloned();
    Probe::new(
        "limits",
        tried.is_ok(),
        why.unwrap_or_else(|| "--memory, --cpus and --pids".to_owned()),
        "start codeoid-shim in a cgroup of yours: `systemd-run --user --scope -p Delegate=yes codeoid-shim …`",
    )
}

/// Tries something in a child, whose namespaces go with it.
fn in_child(attempt: impl FnOnce() -> bool) -> bool {
    match process::fork() {
        Ok(ForkResult::Child) => process::exit_now(i32::from(!attempt())),
        Ok(ForkResult::Parent { child }) => matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))),
        Err(_) => false,
    }
}

fn enter() -> nix::Result<()> {
    let (uid, gid) = (getuid(), getgid());
    let user = if uid.is_root() { CloneFlags::empty() } else { CloneFlags::CLONE_NEWUSER };
    unshare(user | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWCGROUP)?;
    if !uid.is_root() {
        let write =
            |file: &str, text: String| std::fs::write(file, text).map_err(|_| nix::errno::Errno::EPERM);
        write("/proc/self/setgroups", "deny".to_owned())?;
        write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    }
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    mount(Some("tmpfs"), "/tmp", Some("tmpfs"), MsFlags::MS_NOSUID, Some("mode=0700"))
}

fn try_overlay() -> nix::Result<()> {
    for dir in ["mask", "lower", "upper", "work", "merged"] {
        std::fs::create_dir(Path::new("/tmp").join(dir)).map_err(|_| nix::errno::Errno::EPERM)?;
    }
    mknod("/tmp/mask/hidden", SFlag::S_IFCHR, Mode::empty(), 0)?;
    let data = "lowerdir=/tmp/mask:/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work";
    let data = if getuid().is_root() { data.to_owned() } else { format!("{data},userxattr") };
    mount(Some("overlay"), "/tmp/merged", Some("overlay"), MsFlags::empty(), Some(data.as_str()))
}
