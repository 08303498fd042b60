//! `exec`: a further process in a container. libcontainer's own way does it without the container's filter, outside
//! of its user namespace, and in a running container only; so it is done here: a process joins the cgroup and the
//! namespaces of the container's first process by a handle on that process, and its child takes the same last
//! stretch as that one did ([`super::payload`]).

use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use ::libcontainer::syscall::syscall::create_syscall;
use ::libcontainer::tty;
use caps::Capability;
use nix::sched::CloneFlags;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Gid, Pid, Uid};
use serde_json::{Value, json};

use super::cgroup::Cgroup;
use super::create::{check_terminal, filter};
use super::error::{Error, Result};
use super::payload::Payload;
use super::process::{Process, capability};
use super::record::{Container, Status};
use super::scheduling::{pin, schedule};
use super::{Runtime, foreground, write_pid};
use crate::supervise::Signals;
use crate::sys::process as sys;

/// Runs a process; returns its exit code, or 0 where it was detached.
pub fn exec(runtime: &Runtime, args: &liboci_cli::Exec) -> Result<u8> {
    let signals = (!args.detach).then(Signals::take).transpose()?;
    let container = Container::load(&runtime.root, &args.container_id)?;
    match container.status() {
        Status::Stopped => return Err(Error::ExecStopped),
        Status::Paused if !args.ignore_paused => return Err(Error::ExecPaused),
        _ => {}
    }
    let config = container.config()?;
    let mut warnings = Vec::new();
    let payload = payload(args, &config, &mut warnings)?;
    warnings.iter().for_each(|warning| runtime.log.warning(warning));
    check_terminal(payload.process.terminal, args.detach, args.console_socket.is_some())?;
    let mut master = None;
    let console = match (payload.process.terminal, &args.console_socket) {
        (false, _) => None,
        (true, Some(path)) => Some(OwnedFd::from(connect(path)?)),
        (true, None) => {
            let (ours, theirs) = UnixStream::pair().map_err(Error::io("socketpair"))?;
            master = Some(ours);
            Some(OwnedFd::from(theirs))
        }
    };
    if !args.detach {
        // The process is started by a child that does not wait for it; it becomes ours then.
        nix::sys::prctl::set_child_subreaper(true).map_err(Error::errno("prctl(PR_SET_CHILD_SUBREAPER)"))?;
    }
    let entry = Entry::into(&container, args.cgroup.as_deref())?;
    let preserve = u32::try_from(args.preserve_fds).unwrap_or(0);
    let pid = enter(&entry, &payload, console, preserve)?;
    if let Some(path) = &args.pid_file {
        write_pid(path, pid.as_raw())?;
    }
    let Some(signals) = signals else { return Ok(0) };
    let master = master.map(|socket| foreground::receive_master(socket.as_fd())).transpose()?;
    foreground::wait(pid, &signals, master)
}

/// What is to be run: a process file, or the container's own process with what the options say.
fn payload(args: &liboci_cli::Exec, config: &Value, warnings: &mut Vec<String>) -> Result<Payload> {
    let base = config.get("process").cloned().unwrap_or_default();
    let written = match &args.process {
        Some(path) => {
            let text = fs::read(path).map_err(Error::io(format!("open {}", path.display())))?;
            serde_json::from_slice(&text)
                .map_err(|error| Error::config(path.display().to_string(), error.to_string()))?
        }
        None => adapted(args, base.clone())?,
    };
    let mut process = Process::parse(&written, warnings)?;
    // What a process file leaves unsaid is as for the container's own.
    let own = Process::parse(&base, &mut Vec::new()).unwrap_or_default();
    let mut capabilities = process.capabilities.clone().or(own.capabilities).unwrap_or_default();
    for name in &args.cap {
        let Some(added) = capability(name) else {
            warnings.push(format!("ignoring unknown or unavailable capabilities: [{name}]"));
            continue;
        };
        let Sets { bounding, effective, permitted } = Sets::of(&mut capabilities);
        bounding.insert(added);
        effective.insert(added);
        permitted.insert(added);
        // Never inheritable (CVE-2022-29162).
    }
    process.rlimits = process.rlimits.take().or(own.rlimits);
    process.apparmor = args.apparmor.clone().or(process.apparmor.take()).or(own.apparmor);
    process.selinux = args.process_label.clone().or(process.selinux.take()).or(own.selinux);
    process.affinity.initial = process.affinity.initial.take().or(own.affinity.initial);
    process.affinity.last = process.affinity.last.take().or(own.affinity.last);
    let no_new_privileges =
        args.no_new_privs || process.no_new_privileges.or(own.no_new_privileges).unwrap_or(false);
    Ok(Payload { capabilities, no_new_privileges, filter: filter(config)?, process, ..Payload::default() })
}

struct Sets<'a> {
    bounding: &'a mut std::collections::HashSet<Capability>,
    effective: &'a mut std::collections::HashSet<Capability>,
    permitted: &'a mut std::collections::HashSet<Capability>,
}

impl<'a> Sets<'a> {
    fn of(sets: &'a mut super::process::Capabilities) -> Self {
        Self { bounding: &mut sets.bounding, effective: &mut sets.effective, permitted: &mut sets.permitted }
    }
}

/// The container's process, as the options change it.
fn adapted(args: &liboci_cli::Exec, mut process: Value) -> Result<Value> {
    let members = process.as_object_mut().ok_or_else(|| Error::config("process", "it is no object"))?;
    members.insert("args".to_owned(), json!(args.command));
    members.insert("terminal".to_owned(), json!(args.tty));
    members.remove("consoleSize");
    if let Some(cwd) = &args.cwd {
        members.insert("cwd".to_owned(), json!(cwd));
    }
    let env = members.entry("env").or_insert_with(|| json!([]));
    if let Some(env) = env.as_array_mut() {
        for (name, value) in &args.env {
            env.retain(|entry| {
                entry.as_str().and_then(|entry| entry.split_once('=')).is_none_or(|e| e.0 != name)
            });
            env.push(json!(format!("{name}={value}")));
        }
    }
    if args.user.is_some() || !args.additional_gids.is_empty() {
        let user = members.entry("user").or_insert_with(|| json!({}));
        if let Some(user) = user.as_object_mut() {
            if let Some((uid, gid)) = args.user {
                user.insert("uid".to_owned(), json!(uid));
                user.insert("gid".to_owned(), json!(gid.unwrap_or(0)));
            }
            let groups = user.entry("additionalGids").or_insert_with(|| json!([]));
            if let Some(groups) = groups.as_array_mut() {
                groups.extend(args.additional_gids.iter().map(|gid| json!(gid)));
            }
        }
        if args.user.is_some()
            && let Some(env) = members.get_mut("env").and_then(Value::as_array_mut)
        {
            // The container's user's home is not this user's.
            let given = args.env.iter().any(|(name, _)| name == "HOME");
            env.retain(|entry| given || !entry.as_str().is_some_and(|entry| entry.starts_with("HOME=")));
        }
    }
    Ok(process)
}

/// Connects to a socket whose path may be longer than a socket's address (unix(7)).
fn connect(path: &Path) -> Result<UnixStream> {
    let what = || format!("connect to {}", path.display());
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = fs::File::open(parent).map_err(Error::io(what()))?;
    let name = path.file_name().unwrap_or(OsStr::new(""));
    let short = Path::new(&crate::sys::mount::fd_path(dir.as_fd())).join(name);
    UnixStream::connect(short).map_err(Error::io(what()))
}

/// Where to go: what is needed is opened outside, before anything is joined.
struct Entry {
    init: OwnedFd,
    namespaces: CloneFlags,
    cgroups: Vec<fs::File>,
}

impl Entry {
    fn into(container: &Container, sub: Option<&str>) -> Result<Self> {
        let init = container.process().ok_or(Error::ExecStopped)?;
        let pid = container.record.pid;
        let mut namespaces = CloneFlags::empty();
        for (name, flag) in [
            ("user", CloneFlags::CLONE_NEWUSER),
            ("mnt", CloneFlags::CLONE_NEWNS),
            ("pid", CloneFlags::CLONE_NEWPID),
            ("net", CloneFlags::CLONE_NEWNET),
            ("ipc", CloneFlags::CLONE_NEWIPC),
            ("uts", CloneFlags::CLONE_NEWUTS),
            ("cgroup", CloneFlags::CLONE_NEWCGROUP),
            ("time", CloneFlags::from_bits_retain(libc::CLONE_NEWTIME)),
        ] {
            let number =
                |process: &str| fs::metadata(format!("/proc/{process}/ns/{name}")).map(|meta| meta.ino());
            // A kernel without this kind has neither.
            let (Ok(own), Ok(theirs)) = (number("self"), number(&pid.to_string())) else { continue };
            if own != theirs {
                namespaces |= flag;
            }
        }
        // Judged by number: that it is still the process of the handle is looked at once more.
        if container.process().is_none() {
            return Err(Error::ExecStopped);
        }
        let mut cgroups = Vec::new();
        let cgroup = container.cgroup()?;
        let moved = (cgroup.is_unified() && sub.is_none()).then(|| Cgroup::of_process(pid)).flatten();
        let moved = moved.filter(|dir| dir.is_dir());
        for dir in cgroup.existing().map(|dir| moved.as_ref().unwrap_or(dir)) {
            let dir = match sub {
                Some(sub) => {
                    dir.join(super::cgroup::clean(Path::new(sub)).strip_prefix("/").unwrap_or(Path::new("")))
                }
                None => dir.clone(),
            };
            // Of one thread "0" to `tasks` says the same as to `cgroup.procs`, and takes a fiftieth of the time.
            let tasks = dir.join("tasks");
            let path = if tasks.exists() { tasks } else { dir.join("cgroup.procs") };
            match fs::OpenOptions::new().write(true).open(&path) {
                Ok(file) => cgroups.push(file),
                // Not ours to change, where an ordinary user runs containers.
                Err(error) if error.kind() == ErrorKind::PermissionDenied && sub.is_none() => {}
                Err(error) => return Err(Error::io(format!("open {}", path.display()))(error)),
            }
        }
        Ok(Self { init, namespaces, cgroups })
    }

    /// Goes there. Irrevocable, so only a process that was forked for it does.
    fn join(&mut self, process: &Process) -> Result<()> {
        if let Some(list) = &process.affinity.initial {
            pin(list)?;
        }
        for cgroup in &mut self.cgroups {
            cgroup.write_all(b"0").map_err(Error::io("join the container's cgroup"))?;
        }
        if let Some(list) = &process.affinity.last {
            pin(list)?;
        }
        if let Some(score) = process.oom_score_adj {
            fs::write("/proc/self/oom_score_adj", score.to_string())
                .map_err(Error::io("set oom_score_adj"))?;
        }
        for (resource, soft, hard) in process.rlimits.iter().flatten() {
            sys::set_limit(Pid::from_raw(0), *resource, *soft, *hard)
                .map_err(Error::errno(format!("error setting {resource:?}")))?;
        }
        if let Some((class, level)) = process.io_priority {
            sys::set_io_priority(class, level).map_err(Error::errno("ioprio_set"))?;
        }
        if let Some(scheduler) = &process.scheduler {
            schedule(scheduler)?;
        }
        // From here on processes of the container could look at this one (CVE-2016-9962).
        nix::sys::prctl::set_dumpable(false).map_err(Error::errno("prctl(PR_SET_DUMPABLE)"))?;
        if !self.namespaces.is_empty() {
            sys::setns(self.init.as_fd(), self.namespaces)?;
        }
        if self.namespaces.contains(CloneFlags::CLONE_NEWUSER) {
            // Root in there, if there is one; else whoever we are has to do.
            let _ = nix::unistd::setgroups(&[]);
            let _ = nix::unistd::setresgid(Gid::from_raw(0), Gid::from_raw(0), Gid::from_raw(0));
            let _ = nix::unistd::setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0));
        }
        Ok(())
    }
}

/// Starts the process inside; returns its number out here.
fn enter(entry: &Entry, payload: &Payload, console: Option<OwnedFd>, preserve: u32) -> Result<Pid> {
    let pipe = || nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(Error::errno("pipe"));
    // One for the number, one for what goes wrong; the second ends with execve(2).
    let (number, tell_number) = pipe()?;
    let (words, tell_words) = pipe()?;
    let child = match sys::fork()? {
        ForkResult::Child => {
            let code = match go(entry, payload, console, preserve, &tell_number) {
                Ok(()) => 0,
                Err(error) => {
                    let text = match error {
                        Error::Process(text) => text,
                        other => other.to_string(),
                    };
                    let _ = nix::unistd::write(&tell_words, text.as_bytes());
                    255
                }
            };
            sys::exit_now(code)
        }
        ForkResult::Parent { child } => child,
    };
    drop((tell_number, tell_words, console));
    let mut pid = String::new();
    fs::File::from(number).read_to_string(&mut pid).map_err(Error::io("start the process"))?;
    waitpid(child, None).map_err(Error::errno("wait for the process"))?;
    let mut said = String::new();
    fs::File::from(words).read_to_string(&mut said).map_err(Error::io("start the process"))?;
    if !said.is_empty() {
        return Err(Error::Process(said));
    }
    pid.parse().map(Pid::from_raw).map_err(|_| Error::Process("it ended early".to_owned()))
}

fn go(
    entry: &Entry,
    payload: &Payload,
    console: Option<OwnedFd>,
    preserve: u32,
    tell_number: &OwnedFd,
) -> Result<()> {
    let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(Error::io("dup"));
    let mut entry = Entry {
        init: copy(entry.init.as_fd())?,
        namespaces: entry.namespaces,
        cgroups: entry
            .cgroups
            .iter()
            .map(|file| copy(file.as_fd()).map(fs::File::from))
            .collect::<Result<_>>()?,
    };
    entry.join(&payload.process)?;
    // A pid namespace holds for children only.
    match sys::fork_in_init().map_err(Error::errno("fork"))? {
        ForkResult::Parent { child } => nix::unistd::write(tell_number, child.to_string().as_bytes())
            .map(drop)
            .map_err(Error::errno("start the process")),
        ForkResult::Child => {
            let inside = || -> Result<()> {
                nix::unistd::setsid().map_err(Error::errno("setsid"))?;
                if let Some(console) = console {
                    tty::setup_console(&*create_syscall(), console.into_raw_fd(), false)
                        .map_err(|error| Error::Usage(crate::diagnostic::chain(&error)))?;
                }
                sys::close_on_exec_from(3 + preserve).map_err(Error::errno("close_range"))?;
                payload.prepare()?;
                Err(payload.execute())
            };
            // Its parent's way out would be the wrong one: the number is not ours to tell.
            let text = match inside() {
                Ok(()) => String::new(),
                Err(Error::Process(text)) => text,
                Err(other) => other.to_string(),
            };
            Err(Error::Process(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec(words: &[&str]) -> liboci_cli::Exec {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            exec: liboci_cli::Exec,
        }
        <Line as clap::Parser>::parse_from([&["x"], words].concat()).exec
    }

    #[test]
    fn options_change_the_containers_own_process() {
        let base = json!({ "args": ["sh"], "cwd": "/", "env": ["A=1", "B=2", "HOME=/root"], "terminal": true,
            "user": { "uid": 0, "gid": 0, "additionalGids": [4] } });
        let changed =
            adapted(&exec(&["-e", "A=3", "-u", "7:8", "-g", "9", "c", "ls", "-l"]), base.clone()).unwrap();
        assert_eq!(
            changed,
            json!({ "args": ["ls", "-l"], "cwd": "/", "env": ["B=2", "A=3"], "terminal": false,
                "user": { "uid": 7, "gid": 8, "additionalGids": [4, 9] } })
        );
        let same = adapted(&exec(&["c", "ls"]), base).unwrap();
        assert_eq!(same["env"], json!(["A=1", "B=2", "HOME=/root"]));
    }

    #[test]
    fn an_added_capability_is_never_inheritable() {
        let config = json!({ "process": { "args": ["sh"], "cwd": "/",
            "capabilities": { "bounding": ["CAP_KILL"], "inheritable": ["CAP_KILL"] } } });
        let payload = payload(&exec(&["--cap", "CAP_CHOWN", "c", "ls"]), &config, &mut Vec::new()).unwrap();
        assert!(payload.capabilities.permitted.contains(&Capability::CAP_CHOWN));
        assert!(!payload.capabilities.inheritable.contains(&Capability::CAP_CHOWN));
        assert!(!payload.capabilities.ambient.contains(&Capability::CAP_CHOWN));
    }
}
