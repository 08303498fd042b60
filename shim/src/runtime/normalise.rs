//! What libcontainer is given instead of the engine's configuration. It refuses or ignores parts of what runc
//! takes; here such parts are put into a form that it takes, set aside for our own hands ([`Rest`]), or refused. A
//! pure function of the configuration but for one look at the root file system. The reasons, one by one, are in
//! docs/spec-deviations.md.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::cgroup::{self, Hierarchy};
use super::error::{Error, Result};
use super::hooks;
use super::inside::{Device, Rest};
use super::mounts::{cgroup_mounts, dev_from_outside, normalise_mount};
use super::unmanaged::Aside;

/// A configuration for libcontainer, and what it leaves to do.
#[derive(Debug, Default)]
pub struct Normalised {
    /// What libcontainer reads.
    pub config: Value,
    /// What the container's first process does itself, before it drops its privileges.
    pub rest: Rest,
    /// The container's cgroup.
    pub cgroup: PathBuf,
    /// Whether the container has a pid namespace of its own.
    pub own_pids: bool,
}

/// Where a container is made.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The engine's bundle.
    pub bundle: &'a Path,
    /// The root file system, absolute.
    pub rootfs: &'a Path,
    /// The container's name.
    pub id: &'a str,
    /// Whether systemd keeps the cgroups.
    pub systemd: bool,
    /// The hierarchies of this host.
    pub hierarchies: &'a [Hierarchy],
    /// Where they were put aside, if the container stays in its caller's cgroup.
    pub aside: Option<&'a Aside>,
}

/// Normalises a configuration.
pub fn normalise(config: &Value, place: Place<'_>) -> Result<Normalised> {
    let mut done = Normalised { config: config.clone(), ..Normalised::default() };
    let top = object(&mut done.config, "config.json")?;
    if top.get("ociVersion").and_then(Value::as_str).unwrap_or_default().is_empty() {
        top.insert("ociVersion".to_owned(), json!("1.0.2"));
    }
    let root = member(top, "root")?;
    root.insert("path".to_owned(), json!(place.rootfs));
    // Made read-only at the very end, once everything that lies in it is there.
    done.rest.read_only_root = root.remove("readonly") == Some(Value::Bool(true));
    process(member(top, "process")?);
    if !matches!(top.get("linux"), Some(Value::Object(_))) {
        top.insert("linux".to_owned(), json!({}));
    }
    let linux = member(top, "linux")?;
    let kinds = namespaces(linux, &mut done.rest)?;
    done.own_pids = kinds.contains("pid");
    linux_rest(linux, &mut done.rest)?;
    done.cgroup = cgroup_path(linux, place.id, place.systemd)?;
    if place.aside.is_some() {
        linux.remove("resources");
        // The root of what libcontainer is shown: it is there, and so nothing is made.
        linux.insert("cgroupsPath".to_owned(), json!("/"));
    }
    if let Some(mounts) = top.get_mut("mounts").and_then(Value::as_array_mut) {
        for (index, mount) in mounts.iter_mut().enumerate() {
            normalise_mount(object(mount, &format!("mounts[{index}]"))?, place.rootfs, &mut done.rest)?;
        }
        dev_from_outside(mounts, &mut done.rest);
        *mounts = std::mem::take(mounts)
            .into_iter()
            .flat_map(|mount| cgroup_mounts(mount, &done.cgroup, place, &mut done.rest))
            .collect();
    }
    if let Some(hooks) = top.get_mut("hooks").and_then(Value::as_object_mut) {
        for kind in ["prestart", "createRuntime", "createContainer"] {
            for hook in hooks.get_mut(kind).and_then(Value::as_array_mut).into_iter().flatten() {
                *hook = hooks::wrapped(hook, place.bundle);
            }
        }
        for kind in ["startContainer", "poststart", "poststop"] {
            hooks.remove(kind);
        }
    }
    Ok(done)
}

fn object<'a>(value: &'a mut Value, what: &str) -> Result<&'a mut Map<String, Value>> {
    value.as_object_mut().ok_or_else(|| Error::config(what, "it is no object"))
}

fn member<'a>(top: &'a mut Map<String, Value>, name: &str) -> Result<&'a mut Map<String, Value>> {
    let value = top.get_mut(name).filter(|value| !value.is_null());
    object(value.ok_or_else(|| Error::Usage(format!("{name} property must not be empty")))?, name)
}

/// The process that libcontainer starts is ours: root, with everything it was given, which becomes the engine's
/// process itself (`payload.rs`). What remains is what libcontainer does well.
fn process(process: &mut Map<String, Value>) {
    let remaining = ["args", "terminal", "ioPriority", "scheduler"];
    process.retain(|name, value| remaining.contains(&name.as_str()) && !value.is_null());
    process.insert("user".to_owned(), json!({ "uid": 0, "gid": 0 }));
    process.insert("cwd".to_owned(), json!("/"));
    // HOME, or libcontainer would ask the container's own name service for it.
    process.insert("env".to_owned(), json!(["PATH=/", "HOME=/"]));
}

fn namespaces(linux: &mut Map<String, Value>, rest: &mut Rest) -> Result<BTreeSet<String>> {
    let mut kinds = BTreeSet::new();
    for namespace in linux.get("namespaces").and_then(Value::as_array).into_iter().flatten() {
        let kind = namespace.get("type").and_then(Value::as_str).unwrap_or_default();
        if !kinds.insert(kind.to_owned()) {
            return Err(Error::Usage(format!("malformed spec file: duplicated ns {namespace}")));
        }
        let joined = namespace.get("path").and_then(Value::as_str).is_some_and(|path| !path.is_empty());
        if kind == "network" && !joined {
            rest.loopback = true;
        }
    }
    // An empty path means none; libcontainer would open it.
    for namespace in linux.get_mut("namespaces").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(members) = namespace.as_object_mut()
            && members.get("path").is_some_and(|path| path.is_null() || path == "")
        {
            members.remove("path");
        }
    }
    if !kinds.contains("mount") {
        // libcontainer would change how the host's own mounts propagate.
        return Err(Error::Unsupported("a container without a mount namespace of its own".to_owned()));
    }
    Ok(kinds)
}

fn linux_rest(linux: &mut Map<String, Value>, rest: &mut Rest) -> Result<()> {
    let names = |value: Option<Value>| -> Vec<PathBuf> {
        let list = value.and_then(|value| value.as_array().cloned()).unwrap_or_default();
        list.iter().filter_map(Value::as_str).map(PathBuf::from).collect()
    };
    rest.masked = names(linux.remove("maskedPaths"));
    rest.read_only = names(linux.remove("readonlyPaths"));
    linux.remove("seccomp");
    devices(linux, rest)?;
    let propagation = linux.get("rootfsPropagation").and_then(Value::as_str).unwrap_or_default().to_owned();
    let known = match propagation.as_str() {
        "" => None,
        "private" | "rprivate" => Some("private"),
        "slave" | "rslave" => Some("slave"),
        "shared" | "rshared" => Some("shared"),
        "unbindable" | "runbindable" => Some("unbindable"),
        other => {
            return Err(Error::Usage(format!("rootfsPropagation={other} is not supported")));
        }
    };
    match known {
        Some(known) => linux.insert("rootfsPropagation".to_owned(), json!(known)),
        None => linux.remove("rootfsPropagation"),
    };
    Ok(())
}

/// libcontainer makes devices below `/dev` only; the others are made once the container's root stands.
fn devices(linux: &mut Map<String, Value>, rest: &mut Rest) -> Result<()> {
    let Some(list) = linux.get_mut("devices").and_then(Value::as_array_mut) else { return Ok(()) };
    let below = |device: &Value| {
        let path = device.get("path").and_then(Value::as_str).unwrap_or_default();
        Path::new(path).starts_with("/dev") && !path.ends_with('/')
    };
    let (ours, theirs): (Vec<Value>, Vec<Value>) = list.drain(..).partition(|device| !below(device));
    *list = theirs;
    for device in ours {
        let device =
            Device::deserialize(device).map_err(|error| Error::config("linux.devices", error.to_string()))?;
        rest.devices.push(device);
    }
    Ok(())
}

/// The path of a container's cgroup, which `linux` has from now on. An empty path would be the caller's own cgroup,
/// and what is in it gets killed at the end.
pub fn cgroup_path(linux: &mut Map<String, Value>, id: &str, systemd: bool) -> Result<PathBuf> {
    let written = linux.get("cgroupsPath").and_then(Value::as_str).unwrap_or_default();
    let path = if systemd {
        match written {
            "" => format!(":codeoid:{id}").into(),
            written if written.split(':').count() == 3 => PathBuf::from(written),
            _ => {
                return Err(Error::Usage(format!(
                    "expected cgroupsPath to be of format \"slice:prefix:name\" for systemd cgroups, got \
                     {written:?} instead"
                )));
            }
        }
    } else {
        match written {
            "" => Path::new("/").join(id),
            // Not absolute, it would bring libcontainer to ask systemd wherever there is a user namespace.
            written => cgroup::clean(Path::new(written)),
        }
    };
    if path == Path::new("/") {
        return Err(Error::Usage("cgroupsPath is the root of the hierarchy".to_owned()));
    }
    linux.insert("cgroupsPath".to_owned(), json!(path));
    Ok(path)
}

#[cfg(test)]
mod tests {
    use nix::mount::MsFlags;

    use super::super::inside::Propagation;
    use super::super::mounts::IGNORED;
    use super::*;

    fn base() -> Value {
        json!({ "ociVersion": "1.0.2", "root": { "path": "r", "readonly": true },
            "process": { "args": ["sh"], "cwd": "/x", "user": { "uid": 7 }, "noNewPrivileges": false,
                "capabilities": { "bounding": ["CAP_UNHEARD_OF"] }, "env": ["A=B"] },
            "linux": { "namespaces": [{ "type": "mount" }, { "type": "network", "path": "" }] } })
    }

    fn with(change: impl Fn(&mut Value)) -> Result<Normalised> {
        let mut config = base();
        change(&mut config);
        let place = Place {
            bundle: Path::new("/b"),
            rootfs: Path::new("/nosuch"),
            id: "id",
            systemd: false,
            hierarchies: &[],
            aside: None,
        };
        normalise(&config, place)
    }

    fn mount(mount: Value) -> Result<Normalised> {
        with(|config| config["mounts"] = json!([mount]))
    }

    #[test]
    fn the_process_that_libcontainer_starts_is_ours() {
        let done = with(|_| ()).unwrap();
        assert_eq!(
            done.config["process"],
            json!({ "args": ["sh"], "cwd": "/", "user": { "uid": 0, "gid": 0 }, "env": ["PATH=/", "HOME=/"] })
        );
        assert_eq!(done.config["root"], json!({ "path": "/nosuch" }));
        assert!(done.rest.read_only_root && done.rest.loopback);
        assert_eq!(done.config["linux"]["namespaces"][1], json!({ "type": "network" }));
    }

    #[test]
    fn propagation_of_the_root_is_in_the_words_that_libcontainer_knows() {
        for (written, passed) in [("rprivate", "private"), ("rslave", "slave"), ("shared", "shared")] {
            let done = with(|config| config["linux"]["rootfsPropagation"] = json!(written)).unwrap();
            assert_eq!(done.config["linux"]["rootfsPropagation"], json!(passed));
        }
        assert!(with(|config| config["linux"]["rootfsPropagation"] = json!("x")).is_err());
    }

    #[test]
    fn options_that_libcontainer_ignores_are_kept_for_later_or_refused() {
        let written = json!({ "destination": "t", "type": "tmpfs", "options": ["tmpcopyup", "ro", "rslave", "size=1m"] });
        let done = mount(written).unwrap();
        let expected =
            json!({ "destination": "/t", "type": "tmpfs", "source": "tmpfs", "options": ["size=1m"] });
        assert_eq!(done.config["mounts"][0], expected);
        assert_eq!(done.rest.copy_up, [PathBuf::from("/t")]);
        assert_eq!(done.rest.sealed, [PathBuf::from("/t")]);
        let flags = MsFlags::MS_REC | MsFlags::MS_SLAVE;
        assert_eq!(done.rest.propagation, [Propagation { path: "/t".into(), flags }]);
        for option in IGNORED {
            let written = json!({ "destination": "/t", "type": "tmpfs", "options": [option] });
            assert!(matches!(mount(written), Err(Error::Unsupported(_))), "{option}");
        }
        for refused in [
            json!({ "destination": "/m", "type": "bind", "source": "/x", "options": ["bind", "idmap"] }),
            json!({ "destination": "/m", "source": "/x", "options": ["bind"],
                "uidMappings": [{ "containerID": 0, "hostID": 1, "size": 1 }] }),
            json!({ "destination": "/m", "type": "bind", "options": ["bind"] }),
            json!({ "type": "tmpfs" }),
        ] {
            assert!(mount(refused.clone()).is_err(), "{refused}");
        }
        let cgroup =
            json!({ "destination": "/sys/fs/cgroup", "type": "cgroup", "options": ["ro", "nosuid"] });
        assert_eq!(mount(cgroup).unwrap().rest.sealed, [PathBuf::from("/sys/fs/cgroup")]);
    }

    #[test]
    fn no_cgroup_is_the_callers_own() {
        for (written, passed) in [("", "/id"), ("a/b", "/a/b"), ("/../../a", "/a")] {
            let done = with(|config| config["linux"]["cgroupsPath"] = json!(written)).unwrap();
            assert_eq!(done.cgroup, PathBuf::from(passed));
            assert_eq!(done.config["linux"]["cgroupsPath"], json!(passed));
        }
        assert!(with(|config| config["linux"]["cgroupsPath"] = json!("/a/..")).is_err());
    }

    #[test]
    fn without_a_mount_namespace_nothing_is_made() {
        assert!(with(|config| config["linux"]["namespaces"] = json!([{ "type": "pid" }])).is_err());
        assert!(with(|config| config["linux"] = Value::Null).is_err());
        let twice = json!([{ "type": "mount" }, { "type": "mount" }]);
        assert!(with(|config| config["linux"]["namespaces"] = twice.clone()).is_err());
    }

    #[test]
    fn hooks_before_the_start_get_the_engines_bundle() {
        let hook = json!([{ "path": "/h", "timeout": 3, "env": ["A=b"] }]);
        let done = with(|config| config["hooks"] = json!({ "prestart": hook, "poststop": hook })).unwrap();
        assert_eq!(
            done.config["hooks"],
            json!({ "prestart": [{ "path": "/proc/self/exe", "timeout": 3, "env": ["A=b"],
                "args": ["codeoid-shim", hooks::REEXEC, "/b", "/h", "/h"] }] })
        );
    }
}
