//! The engine: a process forked from the supervisor that enters the namespaces, mounts what only it can
//! mount (the home layer, shared by the turns of a session), and then starts the sandbox in the executor's own
//! way. It dies with the supervisor, and the sandbox's init with it.
//!
//! It maps the user namespace itself, because libcontainer can neither map an id onto itself nor avoid a
//! cgroup manager that an ordinary user has no rights for; the bundle says `0 -> caller`, which every runtime
//! accepts, and names the wanted ids in annotations.

use std::io::{IoSlice, IoSliceMut};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use codeoid_spec::bundle::{self, annotation};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recv, recvmsg, send, sendmsg};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, chdir, getpid, getppid};
use oci_spec::runtime::{LinuxNamespaceType, Spec};

use super::init::Init;
use super::message::Message;
use super::stage::{self, Overlay};
use super::{bubblewrap, libcontainer, streams};
use crate::layers::{self, Whiteouts};
use crate::session::Shared;
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
    /// The namespaces of a living turn of the same session.
    pub join: Option<Shared>,
    /// The supervisor.
    pub supervisor: Pid,
    /// The socket to the supervisor.
    pub status: OwnedFd,
    /// The place of the engine's handle on itself, for init.
    pub alive: OwnedFd,
    /// What becomes process 1.
    pub init: Init,
    /// The unique name that libcontainer gets.
    pub id: String,
    /// The cgroups to enter: files that take a `0`.
    pub cgroups: Vec<PathBuf>,
    /// For bubblewrap: the caller's standard error, for init, and what takes its place meanwhile.
    pub stderr: Option<OwnedFd>,
    /// What the runtime says on its standard error.
    pub said: Option<OwnedFd>,
    /// The bundle's system call filter, for bubblewrap; with libcontainer init has it.
    pub filter: Option<Vec<u8>>,
    /// What starts the sandbox.
    pub runtime: Runtime,
}

/// What starts the sandbox from inside the engine's namespaces.
#[derive(Debug, Clone)]
pub enum Runtime {
    /// youki's library, in this process.
    Libcontainer,
    /// bubblewrap.
    Bubblewrap {
        /// The program.
        program: PathBuf,
    },
}

/// Why the engine could not start the sandbox.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The limits could not be entered.
    #[error("enter the cgroup of the turn's limits")]
    Cgroup(#[source] sys::Error),
    /// Namespaces could not be entered.
    #[error("enter the namespaces")]
    Namespaces(#[source] sys::Error),
    /// The id map could not be written.
    #[error("write the user namespace's id map")]
    Map(#[source] sys::Error),
    /// Something of our own could not be mounted.
    #[error("prepare the mount namespace")]
    Mounts(#[source] sys::Error),
    /// A mount of the bundle could not be made.
    #[error("build the sandbox's view")]
    Stage(#[from] stage::Error),
    /// The runtime's configuration could not be written.
    #[error("write the runtime's configuration")]
    Config(#[source] Box<dyn std::error::Error>),
    /// libcontainer failed.
    #[error("start the sandbox")]
    Libcontainer(#[from] ::libcontainer::error::LibcontainerError),
    /// The bundle cannot be put into bubblewrap's words.
    #[error("put the bundle into bubblewrap's words")]
    Translate(#[from] bubblewrap::Error),
    /// bubblewrap could not be started.
    #[error("start bubblewrap")]
    Bubblewrap(#[source] sys::Error),
    /// The supervisor died meanwhile.
    #[error("the supervisor is gone")]
    Orphaned,
}

impl Engine<'_> {
    /// Runs as the engine process; never returns.
    pub fn run(self) -> ! {
        let shared = self.join.iter().flat_map(|join| join.user.iter().chain([&join.mount]));
        let shared = shared.map(|fd| fd.as_raw_fd());
        let own = [&self.status, &self.alive].into_iter().chain(&self.stderr).chain(&self.said);
        let needed: Vec<_> = own.map(AsRawFd::as_raw_fd).chain(shared).collect();
        let _ = process::close_all_but(&needed);
        let mut stdin = None;
        let init = match self.start(&mut stdin) {
            Ok(init) => init,
            Err(error) => {
                self.send(&failure(&error));
                process::exit_now(125);
            }
        };
        // Later turns of the session join these namespaces by our pid, which a process that is not dumpable
        // does not allow (ptrace(2), PTRACE_MODE_READ); libcontainer has made us so.
        let _ = nix::sys::prctl::set_dumpable(true);
        self.send(&Message::Joinable);
        loop {
            match waitpid(init, None) {
                Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD) => break,
                _ => {}
            }
        }
        if let Some(stdin) = &stdin {
            stdin.advance();
        }
        process::exit_now(0)
    }

    /// Tells the supervisor something.
    pub fn send(&self, message: &Message) {
        let _ = send(self.status.as_raw_fd(), &message.encode(), MsgFlags::MSG_NOSIGNAL);
    }

    /// Tells the supervisor something, with a descriptor.
    fn hand_over(&self, message: &Message, fd: BorrowedFd<'_>) -> sys::Result<()> {
        let (bytes, fds) = (message.encode(), [fd.as_raw_fd()]);
        let rights = [ControlMessage::ScmRights(&fds)];
        let to = self.status.as_raw_fd();
        sendmsg::<()>(to, &[IoSlice::new(&bytes)], &rights, MsgFlags::MSG_NOSIGNAL, None)
            .map(drop)
            .on("sendmsg", "the supervisor")
    }

    /// Waits until the supervisor has done what must be done before the command runs. Everything up to here can
    /// go on beside it.
    pub fn wait_for_go(&self) -> Result<(), Error> {
        let mut byte = [0u8];
        loop {
            match recv(self.status.as_raw_fd(), &mut byte, MsgFlags::empty()) {
                Ok(1) => return Ok(()),
                Err(Errno::EINTR) => {}
                _ => return Err(Error::Orphaned),
            }
        }
    }

    fn start(&self, stdin: &mut Option<streams::Kept>) -> Result<Pid, Error> {
        // libcontainer asks for the working directory and comes back to it.
        chdir("/").on("chdir", "/").map_err(Error::Mounts)?;
        nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
        for entrance in &self.cgroups {
            std::fs::write(entrance, "0").on("write", entrance.display()).map_err(Error::Cgroup)?;
        }
        self.enter_namespaces()?;
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)
            .on("prctl", "PR_SET_PDEATHSIG")
            .map_err(Error::Namespaces)?;
        if getppid() != self.supervisor {
            return Err(Error::Orphaned);
        }
        // Its number is known to init; what it stands for is known only now. A pipe would not do: its other end would
        // be held by libcontainer's intermediate process as well, for a moment that can be too long.
        let own = process::pidfd_open(getpid()).map_err(Error::Namespaces)?;
        process::duplicate_to(own.as_raw_fd(), self.alive.as_raw_fd())
            .on("dup3", "pidfd")
            .map_err(Error::Namespaces)?;
        self.cover_stage().map_err(Error::Mounts)?;
        *stdin = streams::protect_stdin(&self.stage).map_err(Error::Mounts)?;
        match &self.runtime {
            Runtime::Libcontainer => libcontainer::start(self),
            Runtime::Bubblewrap { program } => bubblewrap::start(self, program),
        }
    }

    /// Puts a private tmpfs on the stage directory: it is seen by nobody else and goes with this process.
    fn cover_stage(&self) -> sys::Result<()> {
        let stage = m::open_path(None, &self.stage)?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        m::mount_new("tmpfs", "codeoid", stage.as_fd(), flags, "mode=0700", &self.stage)?;
        // Neither this nor the home layer of an earlier turn is to be cloned along with the host's tree.
        leave_out(&self.stage)?;
        match &self.merged {
            Some(merged) if self.join.is_some() && is_mounted(merged)? => leave_out(merged),
            _ => Ok(()),
        }
    }

    /// Takes the stage away again, beside the command that runs by now, and not at its end.
    pub fn uncover_stage(&self) {
        let _ = umount2(&self.stage, MntFlags::MNT_DETACH);
    }

    fn enter_namespaces(&self) -> Result<(), Error> {
        let failed = Error::Namespaces;
        let user = if self.uid == 0 { CloneFlags::empty() } else { CloneFlags::CLONE_NEWUSER };
        let mut layer = None;
        if let Some(other) = &self.join {
            layer = self.borrow_layer(other).map_err(failed)?;
            if let Some(user) = &other.user {
                process::setns(user.as_fd(), CloneFlags::CLONE_NEWUSER).map_err(failed)?;
            }
            // A copy of the host's mounts as they are now, not of those of the other turn's start.
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
            self.listen().map_err(failed)?;
        }
        m::make_private().map_err(Error::Mounts)?;
        if let (Some(layer), Some(merged)) = (&layer, &self.merged) {
            let target = m::open_path(None, merged).map_err(Error::Mounts)?;
            m::move_mount(layer.as_fd(), target.as_fd(), merged).map_err(Error::Mounts)?;
        }
        Ok(())
    }

    /// The home layer as another turn of the session has mounted it: a child enters that turn's namespaces and
    /// sends a clone of the mount. `None` where it has none.
    fn borrow_layer(&self, other: &Shared) -> sys::Result<Option<OwnedFd>> {
        let Some(merged) = &self.merged else { return Ok(None) };
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().on("socketpair", "AF_UNIX")?;
        let child = match process::fork()? {
            ForkResult::Child => {
                let send = || -> sys::Result<()> {
                    if let Some(user) = &other.user {
                        process::setns(user.as_fd(), CloneFlags::CLONE_NEWUSER)?;
                    }
                    process::setns(other.mount.as_fd(), CloneFlags::CLONE_NEWNS)?;
                    if !is_mounted(merged)? {
                        return Ok(());
                    }
                    let mounted = m::open_path(None, merged)?;
                    let clone = m::open_tree(mounted.as_fd(), false, merged)?;
                    let fds = [clone.as_raw_fd()];
                    let rights = [ControlMessage::ScmRights(&fds)];
                    sendmsg::<()>(
                        theirs.as_raw_fd(),
                        &[IoSlice::new(b"x")],
                        &rights,
                        MsgFlags::MSG_NOSIGNAL,
                        None,
                    )
                    .map(drop)
                    .on("sendmsg", merged.display())
                };
                process::exit_now(i32::from(send().is_err()));
            }
            ForkResult::Parent { child } => child,
        };
        drop(theirs);
        let mut byte = [0u8];
        let mut space = nix::cmsg_space!([i32; 1]);
        let mut iov = [IoSliceMut::new(&mut byte)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let received =
            recvmsg::<()>(ours.as_raw_fd(), &mut iov, Some(&mut space), flags).on("recvmsg", "layer")?;
        let mut layer = None;
        for control in received.cmsgs().on("recvmsg", "layer")? {
            if let ControlMessageOwned::ScmRights(fds) = control {
                layer = fds.first().and_then(|&fd| process::received(fd));
            }
        }
        match waitpid(child, None).on("waitpid", child)? {
            WaitStatus::Exited(_, 0) => Ok(layer),
            _ => Err(sys::Error::new("setns", "the namespaces of the session's other turn", Errno::ESRCH)),
        }
    }

    /// Makes the proxy's socket, which belongs to the network namespace that it is made in, and gives it to the
    /// supervisor: whoever connects to it in there is served from outside.
    fn listen(&self) -> sys::Result<()> {
        let Some(at) = bundle::annotation(self.spec, annotation::NETWORK_PROXY) else { return Ok(()) };
        let listener = TcpListener::bind(at).on("bind", at)?;
        self.hand_over(&Message::Listening, listener.as_fd())
    }

    fn map_ids(&self) -> sys::Result<()> {
        // Without this an unprivileged process may not write gid_map (user_namespaces(7), CVE-2014-8989).
        std::fs::write("/proc/self/setgroups", "deny").on("write", "/proc/self/setgroups")?;
        std::fs::write("/proc/self/uid_map", format!("{0} {0} 1", self.uid))
            .on("write", "/proc/self/uid_map")?;
        std::fs::write("/proc/self/gid_map", format!("{0} {0} 1", self.gid)).on("write", "/proc/self/gid_map")
    }

    fn wants_new(&self, kind: LinuxNamespaceType) -> bool {
        let namespaces = self.spec.linux().as_ref().and_then(|linux| linux.namespaces().as_ref());
        namespaces.is_some_and(|list| list.iter().any(|ns| ns.typ() == kind && ns.path().is_none()))
    }

    /// Mounts an overlay and returns where. One with an upper layer is the session's home: mounting the same
    /// upper twice is undefined (kernel, overlayfs.rst "Sharing and copying layers"), so it is mounted once,
    /// where every turn of the session finds it.
    pub fn overlay(&self, overlay: &Overlay<'_>, number: u32) -> sys::Result<PathBuf> {
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
        match self.mount_layers(overlay, &at, &format!("links{number}"), false) {
            // overlayfs takes no lower layer that lies in another one, by whatever name: then ours is copied.
            Err(error) if error.errno == Errno::ELOOP => {
                self.mount_layers(overlay, &at, &format!("copies{number}"), true)
            }
            other => other,
        }?;
        Ok(at)
    }

    /// Mounts the layers on `at`; `copy`: the topmost lower layer, which is whiteouts, as a copy.
    fn mount_layers(&self, overlay: &Overlay<'_>, at: &Path, name: &str, copy: bool) -> sys::Result<()> {
        // Short relative names: mount data has no room for long paths and no quoting for all characters, and
        // the sandbox's own mountinfo then says nothing about where things lie on the host.
        let links = self.stage.join(name);
        std::fs::create_dir(&links).on("mkdir", links.display())?;
        let link = |name: &str, to: &Path| {
            std::os::unix::fs::symlink(to, links.join(name)).on("symlink", to.display())
        };
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        let mut lower = Vec::new();
        for (index, layer) in overlay.lower.iter().enumerate() {
            let name = format!("l{index}");
            if copy && index == 0 {
                // On a file system of its own: the stage cannot be bound, and so cannot hold a layer (EINVAL).
                let place = links.join(&name);
                std::fs::create_dir(&place).on("mkdir", place.display())?;
                let target = m::open_path(None, &place)?;
                m::mount_new("tmpfs", "codeoid", target.as_fd(), flags, "mode=0700", &place)?;
                copy_whiteouts(layer, &place.join("l"), &mut Whiteouts::default())?;
                lower.push(format!("{name}/l"));
            } else {
                link(&name, layer)?;
                lower.push(name);
            }
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
        let target = m::open_path(None, at)?;
        chdir(&links).on("chdir", links.display())?;
        let mount = |data: &str| m::mount_new("overlay", "home", target.as_fd(), flags, data, at);
        let mounted = match &overlay.upper {
            // Without `volatile` the turn's end would wait until the whole file system that the layer lies on,
            // with everybody's data, is written to disk (kernel, overlayfs.rst, "Volatile mount").
            Some((_, work)) if layers::forget_volatile(work) => match mount(&format!("{data},volatile")) {
                // Linux before 5.10 does not know it.
                Err(error) if error.errno == Errno::EINVAL => mount(&data),
                other => other,
            },
            _ => mount(&data),
        };
        chdir("/").on("chdir", "/")?;
        mounted
    }
}

fn leave_out(path: &Path) -> sys::Result<()> {
    let mount = m::open_path(None, path)?;
    m::set_propagation(mount.as_fd(), MsFlags::MS_UNBINDABLE, path)
}

/// Copies a layer of whiteouts: directories and character devices 0:0, nothing else.
fn copy_whiteouts(from: &Path, to: &Path, whiteouts: &mut Whiteouts) -> sys::Result<()> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let mode = std::fs::symlink_metadata(from).on("lstat", from.display())?.mode();
    std::fs::create_dir(to).on("mkdir", to.display())?;
    for entry in std::fs::read_dir(from).on("open", from.display())? {
        let entry = entry.on("readdir", from.display())?;
        let kind = entry.file_type().on("lstat", entry.path().display())?;
        let place = to.join(entry.file_name());
        if kind.is_dir() {
            copy_whiteouts(&entry.path(), &place, whiteouts)?;
        } else if kind.is_char_device() {
            whiteouts.make(place).on("mknod", from.display())?;
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
        Error::Namespaces(source)
        | Error::Map(source)
        | Error::Mounts(source)
        | Error::Bubblewrap(source) => source.errno,
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
        if std::fs::read_to_string("/proc/sys/kernel/unprivileged_userns_clone")
            .is_ok_and(|t| t.trim() == "0")
        {
            return Some(
                "user namespaces are off; run `sysctl kernel.unprivileged_userns_clone=1`".to_owned(),
            );
        }
        if std::fs::read_to_string("/proc/sys/user/max_user_namespaces").is_ok_and(|t| t.trim() == "0") {
            return Some("user namespaces are off; run `sysctl user.max_user_namespaces=10000`".to_owned());
        }
    }
    match errno {
        Errno::ELOOP | Errno::ENOTDIR if matches!(error, Error::Stage(_)) => Some(
            "if the path lies in the home, the session's home layer has something else there: use another session, \
             or forget the layer with `codeoid-shim session close`"
                .to_owned(),
        ),
        Errno::ENOSYS => Some("Linux 5.12 or later is needed (mount_setattr(2))".to_owned()),
        Errno::EPERM | Errno::EACCES if matches!(error, Error::Namespaces(_) | Error::Map(_) | Error::Mounts(_)) => {
            Some(
                "something around this process forbids namespaces or mounts, as the default profiles of a container \
                 do; there, `--security-opt seccomp=unconfined --security-opt apparmor=unconfined` allow them (and \
                 for root `--cap-add SYS_ADMIN`); `codeoid-shim doctor` shows what is missing"
                    .to_owned(),
            )
        }
        _ => None,
    }
}
