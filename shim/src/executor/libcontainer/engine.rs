//! The engine: a process forked from the supervisor that enters the namespaces, builds the mount tree, lets
//! libcontainer start the sandbox's init, and waits for it. It dies with the supervisor, and init with it.
//!
//! It maps the user namespace itself, because libcontainer can neither map an id onto itself nor avoid a
//! cgroup manager that an ordinary user has no rights for; the bundle says `0 -> caller`, which every runtime
//! accepts, and names the wanted ids in annotations.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use nix::sys::socket::{MsgFlags, send};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, chdir, getppid};
use oci_spec::runtime::{LinuxNamespaceType, Mount, Spec};

use super::init::Init;
use super::message::Message;
use super::stage::{self, Overlay, Stage};
use crate::sys::{self, Context, mount as m, process};

/// All that the engine needs, prepared by the supervisor.
pub struct Engine<'a> {
    /// The bundle's directory.
    pub bundle: &'a Path,
    /// Its config.json.
    pub spec: &'a Spec,
    /// The ids that the command runs with.
    pub uid: u32,
    /// The ids that the command runs with.
    pub gid: u32,
    /// An empty directory that the engine may cover with a private tmpfs.
    pub stage: PathBuf,
    /// Where the session's home layer is mounted for all its turns.
    pub merged: Option<PathBuf>,
    /// A living engine of the same session.
    pub join: Option<OwnedFd>,
    /// The supervisor.
    pub supervisor: Pid,
    /// The socket to the supervisor.
    pub status: OwnedFd,
    /// Read end of a pipe whose write end is `holding`.
    pub alive: OwnedFd,
    /// Kept open for as long as the engine lives.
    pub holding: OwnedFd,
    /// What becomes process 1.
    pub init: Init,
    /// The unique name that libcontainer gets.
    pub id: String,
}

/// Why the engine could not start the sandbox.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("enter the namespaces")]
    Namespaces(#[source] sys::Error),
    #[error("write the user namespace's id map")]
    Map(#[source] sys::Error),
    #[error("prepare the mount namespace")]
    Mounts(#[source] sys::Error),
    #[error("build the sandbox's view")]
    Stage(#[from] stage::Error),
    #[error("write the runtime's configuration")]
    Config(#[source] Box<dyn std::error::Error>),
    #[error("start the sandbox")]
    Libcontainer(#[from] libcontainer::error::LibcontainerError),
    #[error("the supervisor is gone")]
    Orphaned,
}

impl Engine<'_> {
    /// Runs as the engine process; never returns.
    pub fn run(self) -> ! {
        let init = match self.start() {
            Ok(init) => init,
            Err(error) => {
                self.send(&failure(&error));
                process::exit_now(125);
            }
        };
        self.send(&Message::Started { init: init.as_raw() });
        // Later turns of the session join these namespaces by our pid, which a process that is not dumpable
        // does not allow (ptrace(2), PTRACE_MODE_READ); libcontainer has made us so.
        let _ = nix::sys::prctl::set_dumpable(true);
        loop {
            match waitpid(init, None) {
                Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD) => break,
                _ => {}
            }
        }
        process::exit_now(0)
    }

    fn send(&self, message: &Message) {
        let _ = send(self.status.as_raw_fd(), &message.encode(), MsgFlags::MSG_NOSIGNAL);
    }

    fn start(&self) -> Result<Pid, Error> {
        // libcontainer asks for the working directory and comes back to it.
        chdir("/").on("chdir", "/").map_err(Error::Mounts)?;
        nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
        self.enter_namespaces()?;
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)
            .on("prctl", "PR_SET_PDEATHSIG")
            .map_err(Error::Namespaces)?;
        if getppid() != self.supervisor {
            return Err(Error::Orphaned);
        }
        let config = self.prepare()?;
        let mut container = ContainerBuilder::new(self.id.clone(), SyscallType::Linux)
            .with_executor(self.init.clone())
            .with_root_path(config.join("state"))?
            .as_init(config.join("bundle"))
            .with_systemd(false)
            .with_detach(true)
            .build()?;
        container.start()?;
        let init = Pid::from_raw(container.pid().ok_or(Error::Orphaned)?.as_raw());
        // What follows in these namespaces is a later turn of the session: it must find them as we did.
        let _ = umount2("/sys/fs/cgroup", MntFlags::MNT_DETACH);
        let _ = umount2(&self.stage, MntFlags::MNT_DETACH);
        Ok(init)
    }

    fn enter_namespaces(&self) -> Result<(), Error> {
        let failed = Error::Namespaces;
        let user = if self.uid == 0 { CloneFlags::empty() } else { CloneFlags::CLONE_NEWUSER };
        if let Some(other) = &self.join {
            process::setns(other.as_fd(), user | CloneFlags::CLONE_NEWNS).map_err(failed)?;
            unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWCGROUP)
                .on("unshare", "CLONE_NEWNS|CLONE_NEWCGROUP")
                .map_err(failed)?;
        } else {
            let flags = user | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWCGROUP;
            unshare(flags).on("unshare", format_args!("{flags:?}")).map_err(failed)?;
            if !user.is_empty() {
                self.map_ids().map_err(Error::Map)?;
            }
        }
        if self.wants_new(LinuxNamespaceType::Network) {
            unshare(CloneFlags::CLONE_NEWNET).on("unshare", "CLONE_NEWNET").map_err(failed)?;
            sys::net::raise_loopback().map_err(failed)?;
        }
        m::make_private().map_err(Error::Mounts)
    }

    fn map_ids(&self) -> sys::Result<()> {
        // Without this an unprivileged process may not write gid_map (user_namespaces(7), CVE-2014-8989).
        std::fs::write("/proc/self/setgroups", "deny").on("write", "/proc/self/setgroups")?;
        std::fs::write("/proc/self/uid_map", format!("{0} {0} 1", self.uid)).on("write", "/proc/self/uid_map")?;
        std::fs::write("/proc/self/gid_map", format!("{0} {0} 1", self.gid)).on("write", "/proc/self/gid_map")
    }

    fn wants_new(&self, kind: LinuxNamespaceType) -> bool {
        let namespaces = self.spec.linux().as_ref().and_then(|linux| linux.namespaces().as_ref());
        namespaces.is_some_and(|list| list.iter().any(|ns| ns.typ() == kind && ns.path().is_none()))
    }

    /// Builds the mount tree and writes the configuration that libcontainer reads. Returns the directory of
    /// both, a tmpfs that nobody else sees and that goes with this process.
    fn prepare(&self) -> Result<PathBuf, Error> {
        let dir = &self.stage;
        let stage = m::open_path(None, dir).map_err(Error::Mounts)?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        m::mount_new("tmpfs", "codeoid", stage.as_fd(), flags, "mode=0700", dir).map_err(Error::Mounts)?;
        // Neither this nor the home layer of an earlier turn is to be cloned along with the host's tree.
        leave_out(dir).map_err(Error::Mounts)?;
        if let Some(merged) = &self.merged {
            if self.join.is_some() && is_mounted(merged).map_err(Error::Mounts)? {
                leave_out(merged).map_err(Error::Mounts)?;
            }
        }
        let make = |name: &str| -> Result<(), Error> {
            std::fs::create_dir(dir.join(name)).on("mkdir", dir.join(name).display()).map_err(Error::Mounts)
        };
        for name in ["root", "bundle", "state"] {
            make(name)?;
        }
        let rootfs = self.spec.root().as_ref().map_or_else(|| Path::new("rootfs"), |root| root.path());
        let staged = Stage::new(dir, &self.bundle.join(rootfs))?;
        let mut rest = Vec::new();
        let mut layers = 0;
        for mount in self.spec.mounts().as_deref().unwrap_or_default() {
            let mut home = |overlay: &Overlay<'_>| {
                layers += 1;
                self.overlay(overlay, layers)
            };
            if !staged.mount(mount, &mut home)? {
                rest.push(mount.clone());
            }
        }
        if self.spec.root().as_ref().is_some_and(|root| root.readonly().unwrap_or(false)) {
            staged.seal()?;
        }
        cover_cgroups().map_err(Error::Mounts)?;
        let config = derive(self.spec, staged.root(), rest, self.uid, self.gid);
        config.save(dir.join("bundle/config.json")).map_err(|error| Error::Config(Box::new(error)))?;
        Ok(dir.clone())
    }

    /// Mounts an overlay and returns where. One with an upper layer is the session's home: mounting the same
    /// upper twice is undefined (kernel, overlayfs.rst "Sharing and copying layers"), so it is mounted once,
    /// where every turn of the session finds it.
    fn overlay(&self, overlay: &Overlay<'_>, number: u32) -> sys::Result<PathBuf> {
        let shared = overlay.upper.is_some().then_some(self.merged.as_ref()).flatten();
        let at = match shared {
            Some(merged) => {
                if self.join.is_some() && is_mounted(merged)? {
                    let mount = m::open_path(None, merged)?;
                    m::set_propagation(mount.as_fd(), MsFlags::MS_PRIVATE, merged)?;
                    return Ok(merged.clone());
                }
                merged.clone()
            }
            None => {
                let at = self.stage.join(format!("overlay{number}"));
                std::fs::create_dir(&at).on("mkdir", at.display())?;
                at
            }
        };
        // Short relative names: mount data has no room for long paths and no quoting for all characters, and
        // the sandbox's own mountinfo then says nothing about where things lie on the host.
        let links = self.stage.join(format!("links{number}"));
        std::fs::create_dir(&links).on("mkdir", links.display())?;
        let link = |name: &str, to: &Path| {
            std::os::unix::fs::symlink(to, links.join(name)).on("symlink", to.display())
        };
        let mut lower = Vec::new();
        for (index, layer) in overlay.lower.iter().enumerate() {
            let name = format!("l{index}");
            if overlay.lower.iter().any(|other| other != layer && layer.starts_with(other)) {
                // overlayfs takes no lower layer that lies in another one (ELOOP).
                copy_whiteouts(layer, &links.join(&name))?;
            } else {
                link(&name, layer)?;
            }
            lower.push(format!("l{index}"));
        }
        let mut data = format!("lowerdir={}", lower.join(":"));
        if let Some((upper, work)) = &overlay.upper {
            link("u", upper)?;
            link("w", work)?;
            data.push_str(",upperdir=u,workdir=w");
        }
        for option in &overlay.rest {
            data.push(',');
            data.push_str(option);
        }
        let target = m::open_path(None, &at)?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        chdir(&links).on("chdir", links.display())?;
        let mounted = m::mount_new("overlay", "home", target.as_fd(), flags, &data, &at);
        chdir("/").on("chdir", "/")?;
        mounted?;
        Ok(at)
    }
}

fn leave_out(path: &Path) -> sys::Result<()> {
    let mount = m::open_path(None, path)?;
    m::set_propagation(mount.as_fd(), MsFlags::MS_UNBINDABLE, path)
}

/// Copies a layer of whiteouts: directories and character devices 0:0, nothing else.
fn copy_whiteouts(from: &Path, to: &Path) -> sys::Result<()> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let mode = std::fs::symlink_metadata(from).on("lstat", from.display())?.mode();
    std::fs::create_dir(to).on("mkdir", to.display())?;
    for entry in std::fs::read_dir(from).on("open", from.display())? {
        let entry = entry.on("readdir", from.display())?;
        let kind = entry.file_type().on("lstat", entry.path().display())?;
        let place = to.join(entry.file_name());
        if kind.is_dir() {
            copy_whiteouts(&entry.path(), &place)?;
        } else if kind.is_char_device() {
            use nix::sys::stat::{Mode, SFlag, mknod};
            mknod(&place, SFlag::S_IFCHR, Mode::empty(), 0).on("mknod", place.display())?;
        }
    }
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode & 0o7777);
    std::fs::set_permissions(to, permissions).on("chmod", to.display())
}

fn is_mounted(path: &Path) -> sys::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let parent = path.parent().unwrap_or(path);
    let here = std::fs::metadata(path).on("stat", path.display())?.dev();
    let above = std::fs::metadata(parent).on("stat", parent.display())?.dev();
    Ok(here != above)
}

/// Gives libcontainer a cgroup hierarchy to look at that costs nothing and can harm nobody: joining a cgroup
/// takes about 10 ms, an ordinary user may not, and a manager with an empty path would kill the caller's
/// whole cgroup on its way out. Limits are the supervisor's: it puts the engine into a cgroup beforehand.
fn cover_cgroups() -> sys::Result<()> {
    let root = Path::new("/sys/fs/cgroup");
    let at = m::open_path(None, root)?;
    m::mount_new("cgroup2", "cgroup2", at.as_fd(), MsFlags::MS_RDONLY, "", root)?;
    let procs = root.join("cgroup.procs");
    let null = m::open_path(None, Path::new("/dev/null"))?;
    let target = m::open_path(None, &procs)?;
    m::bind(null.as_fd(), target.as_fd(), false, m::Attributes::NONE, &procs)
}

/// The configuration for libcontainer: the bundle's, without what the engine has done already.
fn derive(bundle: &Spec, root: PathBuf, mounts: Vec<Mount>, uid: u32, gid: u32) -> Spec {
    let mut spec = bundle.clone();
    if let Some(at) = spec.root_mut() {
        at.set_path(root);
        at.set_readonly(None);
    }
    spec.set_mounts(Some(mounts));
    spec.set_hooks(None);
    spec.set_annotations(None);
    if let Some(process) = spec.process_mut() {
        process.set_terminal(None);
        process.set_console_size(None);
        let user = process.user_mut();
        user.set_uid(uid);
        user.set_gid(gid);
        user.set_additional_gids(None);
    }
    if let Some(linux) = spec.linux_mut() {
        linux.set_uid_mappings(None);
        linux.set_gid_mappings(None);
        linux.set_resources(None);
        // The root of the hierarchy that `cover_cgroups` shows; it exists, so nothing is made.
        linux.set_cgroups_path(Some(PathBuf::from("/")));
        let done = [LinuxNamespaceType::User, LinuxNamespaceType::Cgroup, LinuxNamespaceType::Network];
        let rest = linux.namespaces().clone().unwrap_or_default();
        linux.set_namespaces(Some(rest.into_iter().filter(|ns| !done.contains(&ns.typ())).collect()));
    }
    spec
}

fn failure(error: &Error) -> Message {
    let mut why = Vec::new();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let text = cause.to_string();
        // libcontainer repeats its causes in its own text.
        if !why.iter().any(|known: &String| known.contains(&text)) {
            why.push(text);
        }
        source = cause.source();
    }
    Message::Failed { what: error.to_string(), why: why.join(": "), hint: hint(error) }
}

fn hint(error: &Error) -> Option<String> {
    let errno = match error {
        Error::Namespaces(source) | Error::Map(source) | Error::Mounts(source) => source.errno,
        Error::Stage(stage::Error::Mount { source, .. }) => source.errno,
        _ => return None,
    };
    let is_one = |path: &str| std::fs::read_to_string(path).is_ok_and(|text| text.trim() == "1");
    if matches!(errno, Errno::EPERM | Errno::EACCES | Errno::ENOSPC | Errno::EUSERS) {
        if is_one("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") {
            return Some(
                "AppArmor forbids user namespaces to programs without a profile; give codeoid-shim a profile \
                 with `userns,` or run `sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
                    .to_owned(),
            );
        }
        if std::fs::read_to_string("/proc/sys/kernel/unprivileged_userns_clone").is_ok_and(|t| t.trim() == "0") {
            return Some("user namespaces are off; run `sysctl kernel.unprivileged_userns_clone=1`".to_owned());
        }
        if std::fs::read_to_string("/proc/sys/user/max_user_namespaces").is_ok_and(|t| t.trim() == "0") {
            return Some("user namespaces are off; run `sysctl user.max_user_namespaces=10000`".to_owned());
        }
    }
    match errno {
        Errno::ENOSYS => Some("Linux 5.12 or later is needed (mount_setattr(2))".to_owned()),
        _ => None,
    }
}
