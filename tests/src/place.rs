//! Where one test happens: a directory of its own that looks like a user's machine: a home, a runtime
//! directory, a state directory. It is removed afterwards (`CODEOID_TESTS_KEEP=1` keeps it).
//!
//! It does not lie in `/tmp`: the sandbox has a private one, and what a test wants to see is the usual case.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::unistd::geteuid;

use crate::{Identity, Requires, Turn};

/// The directory that holds all tests' places, readable by everybody.
pub(crate) fn base() -> PathBuf {
    if geteuid().is_root() {
        return PathBuf::from("/home/codeoid-tests");
    }
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
    std::env::var_os("XDG_CACHE_HOME")
        .map_or_else(|| home.join(".cache"), PathBuf::from)
        .join("codeoid-tests")
}

/// One test's place.
#[derive(Debug)]
pub struct Place {
    identity: Identity,
    root: PathBuf,
    path: OsString,
}

impl Place {
    /// A fresh place for this test, or `None` where the identity is not to be had here (which was said, or is
    /// a failure, as [`Requires`] has it).
    #[must_use]
    pub fn for_test(identity: Identity, name: &str) -> Option<Self> {
        Requires::Identity(identity).met().then(|| Self::new(identity, name))
    }

    /// A fresh place.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn new(identity: Identity, name: &str) -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let base = base();
        fs::create_dir_all(&base).unwrap_or_else(|error| panic!("{}: {error}", base.display()));
        if geteuid().is_root() {
            fs::set_permissions(&base, fs::Permissions::from_mode(0o755)).expect("root may");
        }
        // Short, because sockets below it have 108 bytes in all (unix(7)).
        let short: String = name.chars().take(20).collect();
        let serial = COUNTER.fetch_add(1, Ordering::Relaxed);
        let root = base.join(format!("{short}-{}-{serial}", std::process::id()));
        let place = Self { identity, root, path: "/usr/local/bin:/usr/bin:/bin".into() };
        place.make("");
        for (directory, mode) in [("home", 0o700), ("run", 0o700), ("reports", 0o755), ("outside", 0o755)] {
            let made = place.make(directory);
            fs::set_permissions(&made, fs::Permissions::from_mode(mode)).expect("it was just made");
        }
        place.write("home/.gitconfig", GITCONFIG);
        place
    }

    /// As whom.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        self.identity
    }

    /// A path below the place.
    #[must_use]
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root.join(name)
    }

    /// The home directory.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.at("home")
    }

    /// codeoid-shim's state directory.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.at("home/.local/state/codeoid-shim")
    }

    /// PATH, as commands of this place have it.
    #[must_use]
    pub fn path(&self) -> &OsStr {
        &self.path
    }

    /// Puts a directory in front of PATH, to choose among several versions of git.
    pub fn prefer(&mut self, directory: &Path) {
        let mut path = directory.as_os_str().to_owned();
        path.push(":");
        path.push(&self.path);
        self.path = path;
    }

    /// Makes a directory (and those above it) that belongs to the identity.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn make(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.at(name);
        let mut missing = vec![];
        let mut ancestor = path.as_path();
        while !ancestor.exists() {
            missing.push(ancestor.to_owned());
            ancestor = ancestor.parent().expect("the root exists");
        }
        for directory in missing.into_iter().rev() {
            fs::create_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
            self.own(&directory);
        }
        path
    }

    /// Writes a file that belongs to the identity, and makes the directories above it.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(name);
        self.make(path.parent().expect("below the place"));
        fs::write(&path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        self.own(&path);
        path
    }

    /// Gives a file to the identity.
    ///
    /// # Panics
    /// If that is not allowed.
    pub fn own(&self, path: &Path) {
        if geteuid().is_root() {
            chown(path, Some(self.identity.uid().as_raw()), Some(self.identity.gid().as_raw()))
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }

    /// The environment of an ordinary login in this place.
    #[must_use]
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let mut environment: Vec<(OsString, OsString)> = [
            ("HOME", self.home()),
            ("XDG_RUNTIME_DIR", self.at("run")),
            ("XDG_STATE_HOME", self.at("home/.local/state")),
        ]
        .map(|(name, value)| (name.into(), value.into_os_string()))
        .into();
        let name = self.identity.name();
        for (key, value) in [
            ("USER", name.as_str()),
            ("LOGNAME", &name),
            ("SHELL", "/bin/sh"),
            ("LANG", "C.UTF-8"),
            ("TERM", "dumb"),
        ] {
            environment.push((key.into(), value.into()));
        }
        environment.push(("PATH".into(), self.path.clone()));
        // Coverage and sanitizer runs, and the crash points of debug builds, are handed on.
        for (key, value) in std::env::vars_os() {
            if key.to_string_lossy().starts_with("LLVM_PROFILE") {
                environment.push((key, value));
            }
        }
        environment
    }

    /// A command of the identity in this place, outside any sandbox.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.identity.command(program);
        command.envs(self.environment()).current_dir(self.home()).stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn finish(&self, mut command: Command) -> Finished {
        Finished(command.output().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Runs a turn's command line in a mount namespace in which a shell script has mounted something. Needs root.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn finish_with_mounts(&self, mounts: &str, line: &Command) -> Finished {
        let mut command = Command::new("unshare");
        let script = format!("set -e; {mounts}\nexec \"$@\"");
        command.args(["-m", "--propagation", "private", "sh", "-c", &script, "mounts"]);
        command.arg(line.get_program()).args(line.get_args()).env_clear().stdin(std::process::Stdio::null());
        command.envs(self.environment()).current_dir(self.home());
        self.finish(command)
    }

    /// Runs a shell script as the identity, outside any sandbox, in this directory.
    ///
    /// # Panics
    /// If no shell can be started.
    #[must_use]
    pub fn sh(&self, directory: &Path, script: &str) -> Finished {
        let mut command = self.command("/bin/sh");
        command.args(["-c", script]).current_dir(directory);
        Finished(command.output().expect("a shell starts"))
    }

    /// Runs git as the identity, outside any sandbox, and returns what it printed, without the last newline.
    ///
    /// # Panics
    /// If git fails.
    #[track_caller]
    pub fn git(&self, directory: &Path, arguments: &[&str]) -> String {
        let mut command = self.command("git");
        command.args(arguments).current_dir(directory);
        let finished = Finished(command.output().expect("git starts"));
        assert!(finished.ok(), "git {arguments:?} in {}: {finished}", directory.display());
        finished.out().trim_end().to_owned()
    }

    /// A turn of the session `s1` in this workspace.
    #[must_use]
    pub fn turn(&self, workspace: impl AsRef<Path>) -> Turn<'_> {
        Turn::new(self, Some(workspace.as_ref()))
    }

    /// A turn whose network proxy lets these destinations through, in a workspace of its own.
    #[must_use]
    pub fn allowlist(&self, destinations: &[&str]) -> Turn<'_> {
        let listed = destinations.iter().flat_map(|to| ["--allow", to]);
        self.turn(self.make("home/w")).options(["--network", "allowlist"].into_iter().chain(listed))
    }

    /// The process that serves the network of a turn which is running here.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn proxy(&self) -> nix::unistd::Pid {
        let named = |pid: &nix::unistd::Pid| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "codeoid-proxy")
        };
        let found = crate::processes_with(&self.home().display().to_string()).into_iter().find(named);
        found.expect("a turn with a proxy is running")
    }

    /// The lines of this place's audit log about one event.
    ///
    /// # Panics
    /// If a line is not JSON.
    #[must_use]
    pub fn audited(&self, event: &str) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(self.state().join("audit.jsonl")).unwrap_or_default();
        let parse = |line| serde_json::from_str::<serde_json::Value>(line).expect("a line of JSON");
        text.lines().map(parse).filter(|line| line["event"] == event).collect()
    }

    /// Any other command of codeoid-shim; it runs in the home.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn shim(&self, arguments: &[&str]) -> Finished {
        Finished(self.command(crate::shim()).args(arguments).output().expect("codeoid-shim starts"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::env::var_os("CODEOID_TESTS_KEEP").is_some() {
            return;
        }
        // overlayfs leaves a directory of mode 0000 in its work directory; its owner must open it first.
        let _ = Command::new("/bin/sh")
            .args(["-c", r#"rm -rf "$0" 2>/dev/null || { chmod -R u+rwX "$0"; rm -rf "$0"; }"#])
            .arg(&self.root)
            .stderr(Stdio::null())
            .status();
    }
}

/// A command that has ended.
#[derive(Debug)]
pub struct Finished(pub(crate) Output);

impl Finished {
    /// Whether it ended with 0.
    #[must_use]
    pub fn ok(&self) -> bool {
        self.0.status.success()
    }

    /// Its exit code, or -1 if a signal ended it.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.0.status.code().unwrap_or(-1)
    }

    /// What it printed.
    #[must_use]
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    /// What it printed on standard error.
    #[must_use]
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    /// What it printed, read as JSON.
    ///
    /// # Panics
    /// If it is not JSON.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.0.stdout).unwrap_or_else(|error| panic!("not JSON ({error}): {self}"))
    }

    /// Asserts that it ended with 0.
    ///
    /// # Panics
    /// If it did not.
    #[track_caller]
    pub fn expect_ok(&self) -> &Self {
        assert!(self.ok(), "{self}");
        self
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n--- stdout\n{}--- stderr\n{}---", self.0.status, self.out(), self.err())
    }
}

/// Local submodules are allowed; no editor ever waits; the identity is stated.
const GITCONFIG: &str = "\
[user]
\tname = Test User
\temail = test@example.org
[init]
\tdefaultBranch = main
[core]
\teditor = true
[protocol \"file\"]
\tallow = always
[advice]
\tdetachedHead = false
";
