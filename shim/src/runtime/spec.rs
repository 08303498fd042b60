//! `spec`: writes a configuration to start from, the same as runc's.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};

use serde_json::{Value, json};

use super::create::CONFIG;
use super::error::{Error, Result};

/// Writes it into the bundle. Never over one that is there.
pub fn spec(args: &liboci_cli::Spec) -> Result<()> {
    let dir = args.bundle.clone().unwrap_or_else(|| ".".into());
    let path = dir.join(CONFIG);
    let mut config = example();
    if args.rootless {
        rootless(&mut config);
    }
    let mut text = serde_json::to_string_pretty(&config).unwrap_or_default();
    text.push('\n');
    let mut file =
        OpenOptions::new().write(true).create_new(true).open(&path).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Error::Usage(format!("File {CONFIG} exists. Remove it first")),
            _ => Error::io(format!("open {}", path.display()))(error),
        })?;
    file.write_all(text.as_bytes()).map_err(Error::io(format!("write {}", path.display())))
}

fn example() -> Value {
    let capabilities = json!(["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"]);
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": true,
            "user": { "uid": 0, "gid": 0 },
            "args": ["sh"],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm"],
            "cwd": "/",
            "capabilities": { "bounding": capabilities, "effective": capabilities, "permitted": capabilities,
                "ambient": capabilities },
            "rlimits": [{ "type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024 }],
            "noNewPrivileges": true
        },
        "root": { "path": "rootfs", "readonly": true },
        "hostname": "codeoid",
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
              "options": ["nosuid", "strictatime", "mode=755", "size=65536k"] },
            { "destination": "/dev/pts", "type": "devpts", "source": "devpts",
              "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"] },
            { "destination": "/dev/shm", "type": "tmpfs", "source": "shm",
              "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"] },
            { "destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue",
              "options": ["nosuid", "noexec", "nodev"] },
            { "destination": "/sys", "type": "sysfs", "source": "sysfs",
              "options": ["nosuid", "noexec", "nodev", "ro"] },
            { "destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
              "options": ["nosuid", "noexec", "nodev", "relatime", "ro"] }
        ],
        "linux": {
            "resources": { "devices": [{ "allow": false, "access": "rwm" }] },
            "namespaces": [{ "type": "pid" }, { "type": "network" }, { "type": "ipc" }, { "type": "uts" },
                { "type": "mount" }, { "type": "cgroup" }],
            "maskedPaths": ["/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
                "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/sys/firmware", "/proc/scsi"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
        }
    })
}

/// What an ordinary user can run: with a user namespace, the host's network, and without limits (runc,
/// specconv/example.go, `ToRootless`).
fn rootless(config: &mut Value) {
    let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    if let Some(namespaces) = config.pointer_mut("/linux/namespaces").and_then(Value::as_array_mut) {
        namespaces.retain(|namespace| namespace["type"] != "network");
        namespaces.push(json!({ "type": "user" }));
    }
    config["linux"]["uidMappings"] = json!([{ "containerID": 0, "hostID": uid, "size": 1 }]);
    config["linux"]["gidMappings"] = json!([{ "containerID": 0, "hostID": gid, "size": 1 }]);
    if let Some(linux) = config["linux"].as_object_mut() {
        linux.remove("resources");
    }
    for mount in config["mounts"].as_array_mut().into_iter().flatten() {
        if mount["destination"] == "/sys" {
            *mount = json!({ "destination": "/sys", "type": "none", "source": "/sys",
                "options": ["rbind", "nosuid", "noexec", "nodev", "ro"] });
        }
        if let Some(options) = mount["options"].as_array_mut() {
            options.retain(|option| {
                !option.as_str().is_some_and(|o| o.starts_with("gid=") || o.starts_with("uid="))
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_is_a_configuration() {
        let mut config = example();
        serde_json::from_value::<oci_spec::runtime::Spec>(config.clone()).unwrap();
        rootless(&mut config);
        serde_json::from_value::<oci_spec::runtime::Spec>(config.clone()).unwrap();
        assert!(!config.to_string().contains("gid=5") && !config.to_string().contains("network"));
    }

    #[test]
    fn nothing_is_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let args = liboci_cli::Spec { bundle: Some(dir.path().to_owned()), rootless: false };
        spec(&args).unwrap();
        assert_eq!(spec(&args).unwrap_err().to_string(), "File config.json exists. Remove it first");
    }
}
