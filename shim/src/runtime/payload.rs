//! The last stretch of a container's process, from libcontainer's (or `exec`'s) namespaces to execve(2): user,
//! working directory, capabilities, system call filter. libcontainer's own way through it loses a filter where
//! `noNewPrivileges` is false, keeps the caller's groups, asks the container's name service, and cannot do it for
//! an `exec`; so both take this one.
//!
//! It runs in the container's root with every privilege of the runtime until [`Payload::prepare`] is done, and faces
//! whatever the root file system holds.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ::libcontainer::oci_spec::runtime::Spec;
use ::libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use caps::{CapSet, Capability};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{AccessFlags, Gid, Pid, Uid};
use oci_spec::runtime::Hook;
use serde_json::Value;

use super::error::{Error, Result};
use super::hooks;
use super::inside::{Rest, home};
use super::process::{Capabilities, Process};
use super::seccomp::Filter;
use crate::sys::{process as sys, tty};

/// Limits that could not be set inside are left under this name.
pub const LIMIT: &str = "limit";

/// A process that becomes the container's.
#[derive(Debug, Clone, Default)]
pub struct Payload {
    /// What is to be started.
    pub process: Process,
    /// What it may do in the end.
    pub capabilities: Capabilities,
    /// Whether execve(2) adds no privileges.
    pub no_new_privileges: bool,
    /// The system call filter.
    pub filter: Option<Filter>,
    /// For a container's first process: what libcontainer has left to do.
    pub rest: Option<Rest>,
    /// For the same: hooks that run when it is started, and the state they get.
    pub start_hooks: (Vec<Hook>, Value),
    /// The name of the new session keyring.
    pub keyring: Option<CString>,
    /// What `prepare` has found out.
    pub(super) ready: OnceCell<Ready>,
}

/// What is known once the process is prepared.
#[derive(Debug, Clone)]
pub(super) struct Ready {
    program: CString,
    env: Vec<CString>,
}

impl Payload {
    /// Everything up to the wait for `start`.
    pub fn prepare(&self) -> Result<()> {
        let process = &self.process;
        if let Some(rest) = &self.rest {
            rest.finish(&process.cwd, process.terminal)?;
        }
        if let Some(name) = &self.keyring {
            sys::join_session_keyring(name)?;
        }
        self.stdio()?;
        self.label()?;
        let caps = |error: caps::errors::CapsError| Error::Usage(format!("unable to apply caps: {error}"));
        let has = caps::read(None, CapSet::Bounding).map_err(caps)?;
        for capability in has.difference(&self.capabilities.bounding) {
            caps::drop(None, CapSet::Bounding, *capability).map_err(caps)?;
        }
        let allowed = self.enter_cwd()?;
        self.become_user()?;
        if !allowed {
            // The runtime may not go there, the user may: an NFS home with root squashed.
            self.chdir().map_err(|errno| self.no_cwd(errno))?;
        }
        self.verify_cwd()?;
        if self.no_new_privileges {
            nix::sys::prctl::set_no_new_privs().map_err(Error::errno("prctl(PR_SET_NO_NEW_PRIVS)"))?;
        }
        let mut env = process.env.clone();
        if process.variable("HOME").is_none_or(<[u8]>::is_empty) {
            env.retain(|entry| !entry.as_bytes().starts_with(b"HOME="));
            let mut entry = b"HOME=".to_vec();
            entry.extend_from_slice(home(process.uid).as_os_str().as_bytes());
            env.extend(CString::new(entry));
        }
        self.limit_capabilities(self.needs_admin()).map_err(caps)?;
        let program = find(process.args[0].as_bytes(), process.variable("PATH"))?;
        for (resource, soft, hard) in self.rest.iter().flat_map(|_| process.rlimits.iter().flatten()) {
            // Raising one is a privilege of the host's, not of a user namespace.
            if sys::set_limit(Pid::from_raw(0), *resource, *soft, *hard).is_err() {
                super::log::leave(LIMIT, &format!("{resource:?}"));
            }
        }
        let _ = self.ready.set(Ready { program, env });
        Ok(())
    }

    /// Loading a filter is a privilege where execve(2) may add others (seccomp(2)).
    fn needs_admin(&self) -> bool {
        self.filter.is_some() && !self.no_new_privileges
    }

    /// The rest of the way. Returns only where it failed.
    pub fn execute(&self) -> Error {
        let Some(ready) = self.ready.get() else {
            return Error::Usage("the process is not prepared".to_owned());
        };
        match self.last_steps(ready) {
            Err(error) => error,
            Ok(errno) => Error::Usage(format!("exec {}: {}", ready.program.to_string_lossy(), errno.desc())),
        }
    }

    fn last_steps(&self, ready: &Ready) -> Result<Errno> {
        let (hooks, state) = &self.start_hooks;
        let inherited: Vec<(OsString, OsString)> = ready
            .env
            .iter()
            .filter_map(|entry| {
                let bytes = entry.as_bytes();
                let at = bytes.iter().position(|byte| *byte == b'=')?;
                let os = |bytes| OsStr::from_bytes(bytes).to_owned();
                Some((os(&bytes[..at]), os(&bytes[at + 1..])))
            })
            .collect();
        if !hooks.is_empty() {
            let mut state = state.clone();
            if let Some(members) = state.as_object_mut() {
                // As it is called in here, which is where the hook runs.
                members.insert("pid".to_owned(), Value::from(std::process::id()));
            }
            for hook in hooks {
                hooks::run(hook, state.to_string().as_bytes(), &inherited)?;
            }
        }
        let caps = |error: caps::errors::CapsError| Error::Usage(format!("unable to apply caps: {error}"));
        // Made before the filter, which may know neither of the calls.
        let argv = pointers(&self.process.args);
        let envp = pointers(&ready.env);
        sys::reset_signal_actions();
        if let Some(filter) = &self.filter {
            sys::load_filter_with(&filter.program, filter.flags).map_err(Error::errno("load the filter"))?;
        }
        if self.needs_admin() {
            self.limit_capabilities(false).map_err(caps)?;
        }
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
        Ok(sys::execve(&ready.program, &argv, &envp))
    }

    /// The standard streams belong to the user: /dev/stdout is opened anew through them (runc,
    /// `fixStdioPermissions`). libcontainer opens the null device for reading only where one of them is that.
    fn stdio(&self) -> Result<()> {
        let null =
            open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW, Mode::empty()).ok();
        let device = null.as_ref().and_then(|null| fstat(null).ok()).map(|stat| stat.st_rdev);
        for number in 0..3 {
            let stream = sys::borrow(number);
            let Ok(stat) = fstat(stream) else { continue };
            if stat.st_mode & libc::S_IFMT == libc::S_IFCHR && Some(stat.st_rdev) == device {
                if let (Some(null), Some(_)) = (&null, &self.rest) {
                    let _ = match number {
                        0 => nix::unistd::dup2_stdin(null.as_fd()),
                        1 => nix::unistd::dup2_stdout(null.as_fd()),
                        _ => nix::unistd::dup2_stderr(null.as_fd()),
                    };
                }
                continue;
            }
            if stat.st_uid != self.process.uid {
                // Not every stream can change hands: it may be on a read-only mount, or of a user who is not mapped.
                let _ = nix::unistd::fchown(stream, Some(Uid::from_raw(self.process.uid)), None);
            }
        }
        if let (true, Some((rows, columns))) = (self.process.terminal, self.process.size)
            && (rows, columns) != (0, 0)
        {
            let size = nix::pty::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
            tty::set_window_size(sys::borrow(0), &size).map_err(Error::errno("set the terminal's size"))?;
        }
        Ok(())
    }

    /// Labels of security modules, for the next execve(2). Written to the real procfs only: a file that somebody has
    /// put there would take the label, and leave the process without (CVE-2019-16884).
    fn label(&self) -> Result<()> {
        let write = |path: &str, text: &str| -> Result<()> {
            let fd = open(path, OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())
                .map_err(Error::errno(format!("open {path}")))?;
            let found = nix::sys::statfs::fstatfs(&fd).map_err(Error::errno("fstatfs"))?.filesystem_type();
            if found != nix::sys::statfs::PROC_SUPER_MAGIC {
                return Err(Error::config(path, "it is not on procfs"));
            }
            nix::unistd::write(&fd, text.as_bytes()).map(drop).map_err(Error::errno(format!("write {path}")))
        };
        if let Some(profile) = &self.process.apparmor {
            let text = format!("exec {profile}");
            write("/proc/self/attr/apparmor/exec", &text)
                .or_else(|_| write("/proc/self/attr/exec", &text))?;
        }
        if let Some(label) = &self.process.selinux {
            write("/proc/self/attr/exec", label)?;
        }
        Ok(())
    }

    fn chdir(&self) -> nix::Result<()> {
        nix::unistd::chdir(&self.process.cwd)
    }

    fn no_cwd(&self, errno: Errno) -> Error {
        let cwd = self.process.cwd.display();
        Error::Usage(format!(
            "chdir to cwd ({:?}) set in config.json failed: {}",
            cwd.to_string(),
            errno.desc()
        ))
    }

    /// Goes there as the runtime; false where only the user may.
    fn enter_cwd(&self) -> Result<bool> {
        match self.chdir() {
            Ok(()) => Ok(true),
            Err(Errno::EACCES | Errno::EPERM) => Ok(false),
            Err(errno) => Err(self.no_cwd(errno)),
        }
    }

    /// A working directory outside of the root would be a way out (CVE-2024-21626). For such a one getcwd(2) gives a
    /// path that begins with "(unreachable)", which libc turns into an error.
    fn verify_cwd(&self) -> Result<()> {
        match nix::unistd::getcwd() {
            Ok(path) if path.is_absolute() => Ok(()),
            Err(errno) if errno != Errno::ENOENT => Err(Error::errno("getcwd")(errno)),
            _ => Err(Error::config("process.cwd", "it is outside of the container's root")),
        }
    }

    fn become_user(&self) -> Result<()> {
        let process = &self.process;
        let (uid, gid) = (Uid::from_raw(process.uid), Gid::from_raw(process.gid));
        let groups: Vec<Gid> = process.groups.iter().copied().map(Gid::from_raw).collect();
        match nix::unistd::setgroups(&groups) {
            // A user namespace in which groups may not be changed (user_namespaces(7), "setgroups").
            Err(Errno::EPERM) if groups.is_empty() => {}
            Err(errno) => return Err(Error::errno("setgroups")(errno)),
            Ok(()) => {}
        }
        nix::sys::prctl::set_keepcaps(true).map_err(Error::errno("prctl(PR_SET_KEEPCAPS)"))?;
        nix::unistd::setresgid(gid, gid, gid).map_err(Error::errno(format!("setgid {gid}")))?;
        nix::unistd::setresuid(uid, uid, uid).map_err(Error::errno(format!("setuid {uid}")))?;
        nix::sys::prctl::set_keepcaps(false).map_err(Error::errno("prctl(PR_SET_KEEPCAPS)"))?;
        nix::sys::stat::umask(Mode::from_bits_truncate(process.umask.unwrap_or(0o022)));
        Ok(())
    }

    /// The four sets besides the bounding one; with `admin`, what loading a filter needs is kept for now.
    fn limit_capabilities(&self, admin: bool) -> std::result::Result<(), caps::errors::CapsError> {
        let wanted = &self.capabilities;
        let with = |set: &HashSet<Capability>| {
            let mut set = set.clone();
            if admin {
                set.insert(Capability::CAP_SYS_ADMIN);
            }
            set
        };
        // Whoever was root has lost the effective ones on the way.
        let permitted = caps::read(None, CapSet::Permitted)?;
        caps::set(None, CapSet::Effective, &permitted)?;
        caps::set(None, CapSet::Inheritable, &wanted.inheritable)?;
        caps::set(None, CapSet::Effective, &with(&wanted.effective))?;
        caps::set(None, CapSet::Permitted, &with(&wanted.permitted))?;
        caps::clear(None, CapSet::Ambient)?;
        for capability in &wanted.ambient {
            // As runc: what is not both permitted and inheritable cannot be ambient, and is left out.
            if wanted.permitted.contains(capability) && wanted.inheritable.contains(capability) {
                caps::raise(None, CapSet::Ambient, *capability)?;
            }
        }
        Ok(())
    }
}

fn pointers(list: &[CString]) -> Vec<*const std::ffi::c_char> {
    list.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Looks a program up, as Go's `exec.LookPath` does and with its words: engines read them.
fn find(name: &[u8], path: Option<&[u8]>) -> Result<CString> {
    let shown = format!("{:?}", String::from_utf8_lossy(name));
    let fail = |why: String| Error::Process(format!("exec: {shown}: {why}"));
    if name.contains(&b'/') {
        let file = Path::new(OsStr::from_bytes(name));
        executable(file).map_err(|errno| match errno {
            Errno::EACCES => fail("permission denied".to_owned()),
            // The first half is what newer Go says, the second what engines know from the older.
            Errno::EISDIR => fail("is a directory: permission denied".to_owned()),
            errno => fail(format!("stat {}: {}", file.display(), errno.desc())),
        })?;
        return CString::new(name).map_err(|_| fail("it contains a NUL byte".to_owned()));
    }
    let mut denied = false;
    for dir in path.unwrap_or_default().split(|byte| *byte == b':') {
        // An empty entry is the working directory (environ(7)).
        let dir = if dir.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(dir)) };
        let file: PathBuf = dir.join(OsStr::from_bytes(name));
        match executable(&file) {
            Ok(()) => {
                let file = file.into_os_string().into_encoded_bytes();
                return CString::new(file).map_err(|_| fail("it contains a NUL byte".to_owned()));
            }
            Err(Errno::EACCES) => denied = true,
            Err(_) => {}
        }
        if path.is_none_or(<[u8]>::is_empty) {
            break;
        }
    }
    Err(fail(match denied {
        true => "permission denied".to_owned(),
        false => "executable file not found in $PATH".to_owned(),
    }))
}

fn executable(file: &Path) -> nix::Result<()> {
    let stat = nix::sys::stat::stat(file)?;
    if stat.st_mode & libc::S_IFMT == libc::S_IFDIR {
        return Err(Errno::EISDIR);
    }
    // The kernel's own answer, for the user that it has become; root passes with one x bit of the three.
    let flags = nix::fcntl::AtFlags::AT_EACCESS;
    nix::unistd::faccessat(nix::fcntl::AT_FDCWD, file, AccessFlags::X_OK, flags)
}

impl Executor for Payload {
    fn exec(&self, _: &Spec) -> std::result::Result<(), ExecutorError> {
        let error = self.execute();
        // Nobody listens any more but who reads the container's output.
        super::say_inside(&error.to_string());
        sys::exit_now(255)
    }

    fn validate(&self, _: &Spec) -> std::result::Result<(), ExecutorValidationError> {
        self.prepare().map_err(|error| {
            let text = match error {
                Error::Process(text) => text,
                other => other.to_string(),
            };
            super::log::own(&text);
            ExecutorValidationError::ArgValidationError(text)
        })
    }

    fn setup_envs(&self, _: HashMap<String, String>) -> std::result::Result<(), ExecutorSetEnvsError> {
        // execve(2) gets the environment as it was written.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str, path: Option<&str>) -> String {
        find(name.as_bytes(), path.map(str::as_bytes)).map_or_else(
            |error| super::super::log::plain(&error.to_string()),
            |found| found.to_str().unwrap().to_owned(),
        )
    }

    #[test]
    fn a_program_is_found_or_missed_in_the_words_that_engines_read() {
        let unable = "unable to start container process: exec: ";
        assert_eq!(text("sh", Some("/nosuch:/bin")), "/bin/sh");
        assert_eq!(
            text("nosuch", Some("/bin")),
            format!("{unable}\"nosuch\": executable file not found in $PATH")
        );
        assert_eq!(text("sh", None), format!("{unable}\"sh\": executable file not found in $PATH"));
        assert_eq!(
            text("/no/such", None),
            format!("{unable}\"/no/such\": stat /no/such: no such file or directory")
        );
        assert_eq!(text("/etc", None), format!("{unable}\"/etc\": is a directory: permission denied"));
        assert_eq!(text("/etc/passwd", None), format!("{unable}\"/etc/passwd\": permission denied"));
    }
}
