//! Containers of an OCI runtime: a bundle with a small root file system, run by this project's program or by the
//! reference.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::{Finished, Place, wait_until};

/// Whose runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Oci {
    /// This project's program.
    Own,
    /// Debian's runc, the reference: a check that it does not pass is no check.
    Runc,
}

/// The programs in the root file system.
const APPLETS: [&str; 24] = [
    "sh", "ls", "cat", "echo", "sleep", "id", "mount", "env", "touch", "true", "false", "grep", "kill",
    "stat", "pwd", "head", "wc", "dd", "mkdir", "mknod", "hostname", "stty", "ip", "nc",
];

/// A bundle in a place, with its own state directory for the runtime's containers.
#[derive(Debug)]
pub struct Bundle<'a> {
    place: &'a Place,
    runtime: Oci,
    /// The configuration, to be changed and then written.
    pub config: Value,
}

impl<'a> Bundle<'a> {
    /// A bundle whose process is a shell script.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn new(place: &'a Place, runtime: Oci, script: &str) -> Self {
        for directory in ["bin", "proc", "sys", "dev", "tmp", "etc", "mnt"] {
            fs::create_dir_all(place.at("b/rootfs").join(directory)).expect("a new place");
        }
        let bin = place.at("b/rootfs/bin");
        fs::copy("/bin/busybox", bin.join("busybox")).expect("busybox-static is installed");
        for applet in APPLETS {
            // Hard links: what changes one changes nothing of the host.
            fs::hard_link(bin.join("busybox"), bin.join(applet)).expect("a new place");
        }
        fs::set_permissions(place.at("b/rootfs/tmp"), fs::Permissions::from_mode(0o1777)).expect("just made");
        let passwd = "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n";
        fs::write(place.at("b/rootfs/etc/passwd"), passwd).expect("just made");
        let mut bundle = Self { place, runtime, config: config() };
        bundle.config["linux"]["cgroupsPath"] = json!(format!("/codeoid-tests/{}", bundle.id()));
        bundle.script(script);
        bundle
    }

    /// Another script.
    pub fn script(&mut self, script: &str) {
        self.config["process"]["args"] = json!(["sh", "-c", script]);
    }

    /// The container's name, one for each place.
    #[must_use]
    pub fn id(&self) -> String {
        let name = self.place.at("").file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_default()
    }

    /// The bundle's directory.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.place.at("b")
    }

    /// A path of the container's root file system.
    #[must_use]
    pub fn root(&self, path: &str) -> PathBuf {
        self.place.at("b/rootfs").join(path.trim_start_matches('/'))
    }

    /// Whose runtime runs it.
    #[must_use]
    pub fn runtime(&self) -> Oci {
        self.runtime
    }

    /// The runtime's own directory of containers.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.place.at("state")
    }

    /// Writes the configuration.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self) {
        fs::write(self.dir().join("config.json"), self.config.to_string()).expect("the bundle is there");
    }

    /// A command of the runtime: `words` after the global options.
    #[must_use]
    pub fn command(&self, words: &[&str]) -> Command {
        let program = match self.runtime {
            Oci::Own => crate::shim().to_owned(),
            Oci::Runc => crate::requires::find("runc").expect("runc is installed"),
        };
        let mut command = self.place.command(program);
        command.arg("--root").arg(self.state_dir()).args(words).current_dir(self.dir());
        command
    }

    /// Runs a command of the runtime to its end.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn oci(&self, words: &[&str]) -> Finished {
        self.place.finish(self.command(words))
    }

    /// Writes the configuration and runs the container in the foreground.
    pub fn run(&self) -> Finished {
        self.write();
        self.oci(&["run", &self.id()])
    }

    /// Writes the configuration and starts the container detached; what it prints goes to the file `out`.
    #[track_caller]
    pub fn start(&self) -> Finished {
        self.write();
        self.detached(&["run", "--detach", &self.id()])
    }

    /// Runs a command of the runtime that leaves something running: its output goes to the file `out`, since a pipe
    /// would stay open as long as the container runs.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn detached(&self, words: &[&str]) -> Finished {
        let file = || {
            fs::OpenOptions::new()
                .append(true)
                .create(true)
                .open(self.place.at("out"))
                .expect("the place is ours")
        };
        let log = self.place.at("log");
        let line = self.command(words);
        let mut command = self.place.command(line.get_program());
        command.arg("--log").arg(&log).args(line.get_args()).current_dir(self.dir());
        command.stdin(Stdio::null()).stdout(file()).stderr(file());
        let status = command.status().expect("the runtime starts");
        let stderr = fs::read(&log).unwrap_or_default();
        Finished(Output { status, stdout: Vec::new(), stderr })
    }

    /// What a detached container has printed.
    #[must_use]
    pub fn output(&self) -> String {
        fs::read_to_string(self.place.at("out")).unwrap_or_default()
    }

    /// Waits until a detached container has printed this.
    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        let seen = wait_until(Duration::from_secs(10), || self.output().contains(text));
        assert!(seen, "{:?} never came: {:?}", text, self.output());
    }

    /// The container's state.
    #[track_caller]
    pub fn state(&self) -> Value {
        self.oci(&["state", &self.id()]).expect_ok().json()
    }

    /// The container's status, or an empty text where there is no such container.
    #[must_use]
    pub fn status(&self) -> String {
        let state = self.oci(&["state", &self.id()]);
        if !state.ok() {
            return String::new();
        }
        state.json()["status"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits for a status.
    #[track_caller]
    pub fn wait_status(&self, status: &str) {
        let seen = wait_until(Duration::from_secs(10), || self.status() == status);
        assert!(seen, "{status} never came: {:?}", self.status());
    }

    /// Asserts that nothing of the container is left: no state, no cgroup, no mount.
    #[track_caller]
    pub fn expect_gone(&self) {
        let left: Vec<_> = fs::read_dir(self.state_dir()).into_iter().flatten().flatten().collect();
        assert!(left.is_empty(), "state is left: {left:?}");
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
        let root = self.dir().to_string_lossy().into_owned();
        assert!(!mounts.contains(&root), "a mount is left: {mounts}");
        let below = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
        for hierarchy in below.chain(["/sys/fs/cgroup".into()]) {
            let cgroup = hierarchy.join("codeoid-tests").join(self.id());
            assert!(!cgroup.exists(), "{} is left", cgroup.display());
        }
    }
}

impl Drop for Bundle<'_> {
    fn drop(&mut self) {
        let _ = self.oci(&["delete", "--force", &self.id()]);
    }
}

/// A configuration as engines write it.
fn config() -> Value {
    let capabilities = json!(["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"]);
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": 0, "gid": 0 },
            "args": ["sh"],
            "env": ["PATH=/bin", "TERM=xterm"],
            "cwd": "/",
            "capabilities": { "bounding": capabilities, "effective": capabilities, "permitted": capabilities },
            "noNewPrivileges": true
        },
        "root": { "path": "rootfs" },
        "hostname": "inside",
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
              "options": ["nosuid", "strictatime", "mode=755", "size=65536k"] },
            { "destination": "/dev/pts", "type": "devpts", "source": "devpts",
              "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"] },
            { "destination": "/sys", "type": "sysfs", "source": "sysfs",
              "options": ["nosuid", "noexec", "nodev", "ro"] },
            { "destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
              "options": ["nosuid", "noexec", "nodev", "relatime", "ro"] }
        ],
        "linux": {
            "resources": { "devices": [{ "allow": false, "access": "rwm" }] },
            "namespaces": [{ "type": "pid" }, { "type": "network" }, { "type": "ipc" }, { "type": "uts" },
                { "type": "mount" }],
            "maskedPaths": ["/proc/kcore", "/proc/acpi"],
            "readonlyPaths": ["/proc/sys"]
        }
    })
}

/// Declares functions as checks of an OCI runtime that run against this project's program and against the
/// reference, each time as root with a fresh [`Place`].
#[macro_export]
macro_rules! each_runtime {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            use $crate::{Identity, Oci, Place, Requires};

            fn check(runtime: Oci) {
                if !Requires::Root.met() || !Requires::Path("/bin/busybox").met() {
                    return;
                }
                if runtime == Oci::Runc && !Requires::Tool("runc").met() {
                    return;
                }
                super::$name(&Place::new(Identity::Root, stringify!($name)), runtime);
            }

            #[test]
            fn own() {
                check(Oci::Own);
            }

            #[test]
            fn reference() {
                check(Oci::Runc);
            }
        }
    )*};
}
