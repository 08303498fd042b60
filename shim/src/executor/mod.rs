//! What runs a bundle. Every executor reads `config.json`, never the policy.
//!
//! On Linux there are three processes: the supervisor (the program that the user started; it stays on the
//! host and keeps the user's terminal), the engine (in the session's namespaces), init (process 1 of the
//! sandbox). Each dies with the one before.

pub mod bubblewrap;
pub mod coverage;
pub mod engine;
pub mod init;
mod libcontainer;
pub mod message;
mod stage;
mod streams;

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use codeoid_spec::bundle::{self, annotation};
use codeoid_spec::policy;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};
use nix::unistd::{ForkResult, getpid};
use oci_spec::runtime::Spec;

pub use self::libcontainer::cover_cgroups;
use crate::diagnostic::{Doing, Failure};
use crate::session::Shared;
use crate::supervise::Running;
use crate::sys::{self, process};
use engine::{Engine, Runtime};
use init::{Init, Rlimits, Wiring};

/// The Landlock ABI that can scope abstract sockets (Linux 6.12).
pub const LANDLOCK_SCOPE: i32 = 6;

/// The executor of a turn.
#[derive(Debug, Clone)]
pub struct Choice {
    runtime: Runtime,
    name: &'static str,
    /// Why others were passed over.
    pub skipped: Vec<String>,
}

impl Choice {
    /// Its name, as the policy spells it.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What starts the sandbox.
    pub fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }
}

/// Chooses the executor that the policy asks for.
pub fn choose(executor: policy::Executor) -> Result<Choice, Failure> {
    let libcontainer = |skipped| Choice { runtime: Runtime::Libcontainer, name: "libcontainer", skipped };
    let refuse = |name: &str, why: &str| {
        Failure::new(format!("executor {name}"), why).hint("use --executor libcontainer or --executor bwrap")
    };
    match executor {
        policy::Executor::Libcontainer => Ok(libcontainer(Vec::new())),
        policy::Executor::Auto if sys::mount::has_set_attributes() => Ok(libcontainer(Vec::new())),
        policy::Executor::Auto => {
            let why = "executor libcontainer needs Linux 5.12 (mount_setattr(2))";
            let program = find_program("bwrap")
                .ok_or_else(|| Failure::new("choose an executor", why).hint("install bubblewrap"))?;
            let skipped = vec![format!("{why}; bwrap runs the turn")];
            Ok(Choice { runtime: Runtime::Bubblewrap { program }, name: "bwrap", skipped })
        }
        policy::Executor::Bwrap => match find_program("bwrap") {
            Some(program) => {
                Ok(Choice { runtime: Runtime::Bubblewrap { program }, name: "bwrap", skipped: Vec::new() })
            }
            None => Err(Failure::new("executor bwrap", "no program bwrap in the system's directories")
                .hint("install bubblewrap, or use --executor libcontainer")),
        },
        policy::Executor::Seatbelt => Err(refuse("seatbelt", "it exists on macOS only")),
        policy::Executor::Docker => Err(refuse("docker", "it is not available in this version")),
        policy::Executor::Srt => Err(refuse("srt", "it is not available in this version")),
    }
}

/// Where programs of the system are. Not the caller's `PATH`: an agent may have put something there.
const SYSTEM_PATH: [&str; 4] = ["/usr/local/bin", "/usr/bin", "/bin", "/run/current-system/sw/bin"];

/// A program of the system that nobody but root (or the caller) can have put there.
pub fn find_program(name: &str) -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    SYSTEM_PATH.iter().map(|dir| Path::new(dir).join(name)).find(|path| {
        let safe = |meta: &std::fs::Metadata| meta.uid() == 0 && meta.mode() & 0o022 == 0;
        std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && safe(&meta) && meta.mode() & 0o111 != 0)
    })
}

/// What a start needs beside the bundle.
pub struct Start<'a> {
    /// The bundle's directory.
    pub bundle: &'a Path,
    /// Its config.json.
    pub spec: &'a Spec,
    /// An empty directory for the engine's private tmpfs.
    pub stage: PathBuf,
    /// The namespaces of a living turn of the same session.
    pub join: Option<Shared>,
    /// The cgroups of the turn's limits: files that take a `0`.
    pub cgroups: Vec<PathBuf>,
    /// What stands for limits that no cgroup can hold here.
    pub rlimits: Rlimits,
    /// The bundle's system call filter as a program.
    pub filter: Option<Vec<u8>>,
    /// What starts the sandbox.
    pub runtime: Runtime,
}

impl Start<'_> {
    /// Forks the engine.
    pub fn run(self) -> Result<Running, Failure> {
        let what = "start the sandbox";
        streams::judge()?;
        let spec = self.spec;
        let (uid, gid) = bundle::ids(spec).doing("read the bundle")?;
        let process =
            spec.process().as_ref().ok_or_else(|| Failure::new("read the bundle", "it has no process"))?;
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).doing(what)?;
        // The kernel adds the sender's pid as we see it: init does not know that number itself.
        setsockopt(&ours, sockopt::PassCred, &true).doing(what)?;
        let alive = process::pidfd_open(getpid()).doing(what)?;
        let terminal = bundle::annotation(spec, annotation::TERMINAL).unwrap_or("");
        let terminal = ["0", "1", "2"].map(|number| terminal.contains(number));
        let clamp = |size: u64| u16::try_from(size).unwrap_or(u16::MAX);
        let window = process.console_size().map(|size| (clamp(size.height()), clamp(size.width())));
        let network = bundle::annotation(spec, annotation::NETWORK).unwrap_or("host");
        let by_bubblewrap = matches!(self.runtime, Runtime::Bubblewrap { .. });
        let (in_init, by_runtime) = if by_bubblewrap { (None, self.filter) } else { (self.filter, None) };
        let mut said = None;
        let mut stderr = None;
        if by_bubblewrap {
            said = Some(bubblewrap::memory_file("stderr", &[]).doing(what)?);
            stderr = process::received(process::duplicate_above(2, 64).doing(what)?);
        }
        let wiring = Wiring {
            status: theirs.as_raw_fd(),
            alive: alive.as_raw_fd(),
            terminal,
            window,
            umask: process.user().umask(),
            rlimits: self.rlimits,
            filter: in_init,
            scope_abstract: network == "host" && sys::landlock_abi() >= LANDLOCK_SCOPE,
            stderr: stderr.as_ref().map(AsRawFd::as_raw_fd),
            drop_capabilities: by_bubblewrap,
        };
        let args = process.args().as_deref().unwrap_or_default();
        let init = Init::new(args, process.env().as_deref().unwrap_or_default(), wiring).doing(what)?;
        let engine = Engine {
            bundle: self.bundle,
            spec,
            uid,
            gid,
            stage: self.stage,
            merged: bundle::annotation(spec, annotation::HOME_MERGED).map(PathBuf::from),
            join: self.join,
            supervisor: getpid(),
            status: theirs,
            alive,
            init,
            id: bundle::annotation(spec, annotation::TURN).unwrap_or("turn").to_owned(),
            cgroups: self.cgroups,
            stderr,
            said,
            filter: by_runtime,
            runtime: self.runtime,
        };
        match process::fork().doing(what)? {
            ForkResult::Child => {
                drop(ours);
                engine.run()
            }
            ForkResult::Parent { child } => {
                let pidfd = process::pidfd_open(child).doing(what)?;
                Ok(Running { child, pidfd, socket: ours, init: None, said: engine.said.map(Into::into) })
            }
        }
    }
}
