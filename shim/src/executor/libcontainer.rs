//! Starts the sandbox with youki's libcontainer: the mount tree is built beforehand, libcontainer makes the
//! remaining namespaces, `/proc`, the devices and the filter, drops everything, and hands over to our init.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use ::libcontainer::container::builder::ContainerBuilder;
use ::libcontainer::syscall::syscall::SyscallType;
use codeoid_spec::bundle::Fleeting;
use nix::errno::Errno;
use nix::mount::MsFlags;
use nix::unistd::Pid;
use oci_spec::runtime::{LinuxNamespaceType, Mount, Spec};

use super::engine::{Engine, Error};
use super::stage::{Overlay, Stage};
use crate::sys::{self, Context, mount as m};

/// Where libcontainer looks for cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Starts the sandbox; returns its process 1.
pub fn start(engine: &Engine<'_>) -> Result<Pid, Error> {
    let dir = prepare(engine)?;
    let mut container = ContainerBuilder::new(engine.id.clone(), SyscallType::Linux)
        .with_executor(engine.init.clone())
        .with_root_path(dir.join("state"))?
        .as_init(dir.join("bundle"))
        .with_systemd(false)
        .with_detach(true)
        .build()?;
    engine.wait_for_go()?;
    container.start()?;
    let init = Pid::from_raw(container.pid().ok_or(Error::Orphaned)?.as_raw());
    engine.uncover_stage();
    Ok(init)
}

/// Builds the mount tree and writes the configuration that libcontainer reads. Returns the directory of both.
fn prepare<'a>(engine: &'a Engine<'_>) -> Result<&'a Path, Error> {
    let dir = engine.stage.as_path();
    for name in ["root", "bundle", "state"] {
        std::fs::create_dir(dir.join(name)).on("mkdir", dir.join(name).display()).map_err(Error::Mounts)?;
    }
    let rootfs = engine.spec.root().as_ref().map_or_else(|| Path::new("rootfs"), |root| root.path());
    let fleeting = Fleeting::of(engine.spec).map_err(|error| Error::Config(Box::new(error)))?;
    let staged = Stage::new(dir, &engine.bundle.join(rootfs), fleeting)?;
    let mut rest = Vec::new();
    let mut layers = 0;
    for mount in engine.spec.mounts().as_deref().unwrap_or_default() {
        let mut home = |overlay: &Overlay<'_>| {
            layers += 1;
            engine.overlay(overlay, layers)
        };
        if !staged.mount(mount, &mut home)? {
            rest.push(mount.clone());
        }
    }
    if engine.spec.root().as_ref().is_some_and(|root| root.readonly().unwrap_or(false)) {
        staged.seal()?;
    }
    cover_cgroups().map_err(Error::Mounts)?;
    let config = derive(engine.spec, staged.root(), rest, engine.uid, engine.gid);
    config.save(dir.join("bundle/config.json")).map_err(|error| Error::Config(Box::new(error)))?;
    Ok(dir)
}

/// Gives libcontainer a cgroup hierarchy to look at that costs nothing and can harm nobody: joining a cgroup
/// takes about 10 ms, an ordinary user may not, and a manager with an empty path would kill the caller's
/// whole cgroup on its way out. Limits are the supervisor's: it puts the engine into a cgroup beforehand.
pub fn cover_cgroups() -> sys::Result<()> {
    let root = Path::new(CGROUPS);
    let mount = |kind: &str| {
        let at = m::open_path(None, root)?;
        m::mount_new(kind, kind, at.as_fd(), MsFlags::MS_RDONLY, "", root)
    };
    match mount("cgroup2") {
        // Where it is the host's only hierarchy it lies there already, and no file system is mounted over itself
        // (mount(2), EBUSY): something else has to lie between.
        Err(error) if error.errno == Errno::EBUSY => {
            mount("tmpfs")?;
            mount("cgroup2")?;
        }
        other => other?,
    }
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
        // Init loads it, compiled beforehand.
        linux.set_seccomp(None);
        // The root of the hierarchy that `cover_cgroups` shows; it exists, so nothing is made.
        linux.set_cgroups_path(Some(PathBuf::from("/")));
        let done = [LinuxNamespaceType::User, LinuxNamespaceType::Cgroup, LinuxNamespaceType::Network];
        let rest = linux.namespaces().clone().unwrap_or_default();
        linux.set_namespaces(Some(rest.into_iter().filter(|ns| !done.contains(&ns.typ())).collect()));
    }
    spec
}
