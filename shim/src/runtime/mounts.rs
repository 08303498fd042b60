//! The mounts of a configuration, normalised: a part of [`super::normalise`].

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::mount::MsFlags;
use serde_json::{Map, Value, json};

use super::cgroup::Hierarchy;
use super::error::{Error, Result};
use super::inside::{Dev, Propagation, Rest};
use super::normalise::Place;

/// Options of mounts that libcontainer passes over without a word.
pub const IGNORED: [&str; 5] = ["sync", "dirsync", "mand", "nosymfollow", "remount"];

/// A cgroup mount of v1 is a tmpfs with one mount for each hierarchy, of what is the container's in it. libcontainer
/// looks for that by a number of the process in another pid namespace than the one that it asks.
pub fn cgroup_mounts(mount: Value, cgroup: &Path, place: Place<'_>, rest: &mut Rest) -> Vec<Value> {
    let legacy: Vec<&Hierarchy> = place.hierarchies.iter().filter(|hierarchy| !hierarchy.unified).collect();
    if mount["type"] != "cgroup" || legacy.is_empty() {
        return vec![mount];
    }
    let destination = Path::new(mount["destination"].as_str().unwrap_or_default()).to_owned();
    let options = |last: &str| ["nosuid", "noexec", "nodev", last].map(str::to_owned);
    let mut mounts = vec![json!({ "destination": destination, "type": "tmpfs", "source": "tmpfs",
        "options": options("mode=755") })];
    for hierarchy in legacy {
        let Some(name) = hierarchy.point.file_name() else { continue };
        let at = destination.join(name);
        let source = match place.aside {
            Some(aside) => aside.part(hierarchy),
            None => hierarchy.point.join(cgroup.strip_prefix("/").unwrap_or(cgroup)),
        };
        mounts.push(json!({ "destination": at, "type": "bind", "source": source,
            "options": options("bind") }));
        // Controllers that share a hierarchy are known by their own names too.
        let others = hierarchy.controllers.iter().filter(|other| name != other.as_str());
        rest.links.extend(others.map(|other| (PathBuf::from(name), destination.join(other))));
    }
    mounts
}

/// A directory from outside on `/dev`. libcontainer makes its devices and links in there whatever that is; so it gets a
/// tmpfs to make them in, and the directory, opened beforehand, takes its place in the end, below what was mounted there.
pub fn dev_from_outside(mounts: &mut [Value], rest: &mut Rest) {
    let at = |mount: &Value| mount["destination"].as_str().map(PathBuf::from).unwrap_or_default();
    let Some(index) = mounts.iter().rposition(|mount| at(mount) == Path::new("/dev") && is_bind(mount))
    else {
        return;
    };
    let options: Vec<&str> =
        mounts[index]["options"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut flags = 0;
    for (option, flag) in [
        ("ro", libc::MOUNT_ATTR_RDONLY),
        ("nosuid", libc::MOUNT_ATTR_NOSUID),
        ("nodev", libc::MOUNT_ATTR_NODEV),
        ("noexec", libc::MOUNT_ATTR_NOEXEC),
    ] {
        if options.contains(&option) {
            flags |= flag;
        }
    }
    let later = mounts[index + 1..].iter().map(at).filter(|path| path.starts_with("/dev"));
    rest.dev = Some(Dev {
        source: mounts[index]["source"].as_str().map(PathBuf::from).unwrap_or_default(),
        recursive: options.contains(&"rbind"),
        flags,
        above: later.collect(),
        tree: None,
    });
    // As runc: whoever brings `/dev` brings the devices.
    rest.devices.clear();
    mounts[index] = json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
        "options": ["nosuid", "mode=755", "size=65536k"] });
}

fn is_bind(mount: &Value) -> bool {
    let options = mount["options"].as_array().into_iter().flatten();
    mount["type"] == "bind"
        || options.filter_map(Value::as_str).any(|option| matches!(option, "bind" | "rbind"))
}

/// Puts one mount into a form that libcontainer takes, and what is left of it into `rest`.
pub fn normalise_mount(mount: &mut Map<String, Value>, rootfs: &Path, rest: &mut Rest) -> Result<()> {
    let text = |mount: &Map<String, Value>, name: &str| {
        mount.get(name).and_then(Value::as_str).map(str::to_owned).filter(|text| !text.is_empty())
    };
    let destination = text(mount, "destination").ok_or_else(|| Error::config("mounts", "no destination"))?;
    let destination = within(rootfs, Path::new(&destination));
    let mapped = |name: &str| mount.get(name).and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    let mut options: Vec<String> = mount
        .get("options")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|option| option.as_str().map(str::to_owned))
        .collect();
    let has = |options: &[String], name: &str| options.iter().any(|option| option == name);
    if mapped("uidMappings") || mapped("gidMappings") || has(&options, "idmap") || has(&options, "ridmap") {
        return Err(Error::Unsupported(format!("an id-mapped mount ({})", destination.display())));
    }
    let kind = text(mount, "type");
    let bind = kind.as_deref() == Some("bind") || has(&options, "bind") || has(&options, "rbind");
    if let Some(option) = options.iter().find(|option| IGNORED.contains(&option.as_str())) {
        return Err(Error::Unsupported(format!("the mount option {option} ({})", destination.display())));
    }
    options.retain(|option| match propagation(option) {
        Some(flags) => {
            rest.propagation.push(Propagation { path: destination.clone(), flags });
            false
        }
        None => true,
    });
    let read_only = options.iter().rev().find(|option| matches!(option.as_str(), "ro" | "rw"));
    let read_only = read_only.is_some_and(|option| option == "ro");
    match kind.as_deref() {
        _ if bind => {}
        // It makes these writable whatever the options say.
        Some("cgroup") if read_only => rest.sealed.push(destination.clone()),
        Some("tmpfs") => {
            let copy = has(&options, "tmpcopyup");
            options.retain(|option| option != "tmpcopyup");
            if copy {
                rest.copy_up.push(destination.clone());
            }
            if read_only && (copy || destination == Path::new("/dev")) {
                options.retain(|option| option != "ro");
                rest.sealed.push(destination.clone());
            }
            if !options.iter().any(|option| option.starts_with("mode="))
                && let Some(mode) = mode_below(rootfs, &destination)
            {
                options.push(format!("mode={mode:o}"));
            }
        }
        _ => {}
    }
    if text(mount, "source").is_none() {
        if bind {
            return Err(Error::config(
                "mounts",
                format!("the bind on {} has no source", destination.display()),
            ));
        }
        mount.insert("source".to_owned(), json!(kind.as_deref().unwrap_or("none")));
    }
    mount.insert("destination".to_owned(), json!(destination));
    mount.insert("options".to_owned(), json!(options));
    Ok(())
}

/// How many links are followed (path_resolution(7) has 40).
const MAX_LINKS: usize = 40;

/// Where a destination is in the root file system, links followed as if that were the root already. libcontainer
/// finds such a place only where it exists; runc makes it. That nothing leads out of the root is libcontainer's to
/// ensure, which looks again.
fn within(rootfs: &Path, destination: &Path) -> PathBuf {
    let mut found = PathBuf::from("/");
    let mut left: Vec<std::ffi::OsString> =
        destination.components().rev().map(|part| part.as_os_str().to_owned()).collect();
    let mut links = 0;
    while let Some(part) = left.pop() {
        if part == "/" {
            found = PathBuf::from("/");
        } else if part == ".." {
            found.pop();
        } else if part != "." {
            let next = found.join(&part);
            match std::fs::read_link(rootfs.join(next.strip_prefix("/").unwrap_or(&next))) {
                Ok(target) if links < MAX_LINKS => {
                    links += 1;
                    left.extend(target.components().rev().map(|part| part.as_os_str().to_owned()));
                }
                _ => found = next,
            }
        }
    }
    found
}

fn propagation(option: &str) -> Option<MsFlags> {
    let (recursive, name) = match option.strip_prefix('r') {
        Some(name @ ("private" | "shared" | "slave" | "unbindable")) => (MsFlags::MS_REC, name),
        _ => (MsFlags::empty(), option),
    };
    let flag = match name {
        "private" => MsFlags::MS_PRIVATE,
        "shared" => MsFlags::MS_SHARED,
        "slave" => MsFlags::MS_SLAVE,
        "unbindable" => MsFlags::MS_UNBINDABLE,
        _ => return None,
    };
    Some(recursive | flag)
}

/// The mode of what a tmpfs will cover: it takes that over, as with runc, unless its options name one. Nothing is
/// changed by it, so a link that leads elsewhere leads to a wrong mode only.
fn mode_below(rootfs: &Path, destination: &Path) -> Option<u32> {
    let path = rootfs.join(destination.strip_prefix("/").ok()?);
    let meta = std::fs::symlink_metadata(path).ok()?;
    meta.is_dir().then(|| meta.permissions().mode() & 0o7777)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::cgroup;
    use super::*;

    #[test]
    fn a_cgroup_mount_of_v1_shows_the_containers_part() {
        let hierarchies = cgroup::hierarchies(
            "30 1 0:20 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             31 1 0:21 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
             32 1 0:22 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n",
        );
        let mount = json!({ "destination": "/c", "type": "cgroup", "source": "cgroup" });
        let mut rest = Rest::default();
        let (bundle, rootfs) = (Path::new("/b"), Path::new("/r"));
        let place =
            Place { bundle, rootfs, id: "id", systemd: false, hierarchies: &hierarchies, aside: None };
        let mounts = cgroup_mounts(mount, Path::new("/id"), place, &mut rest);
        let flags = ["nosuid", "noexec", "nodev", "bind"];
        assert_eq!(mounts.len(), 3, "{mounts:?}");
        assert_eq!(
            mounts[1],
            json!({ "destination": "/c/memory", "type": "bind", "source": "/sys/fs/cgroup/memory/id", "options": flags })
        );
        let link = |name: &str| (PathBuf::from("cpu,cpuacct"), PathBuf::from(name));
        assert_eq!(rest.links, [link("/c/cpu"), link("/c/cpuacct")]);
    }

    #[test]
    fn destinations_stay_in_the_root() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("dir")).unwrap();
        symlink("/absent/../dir", root.path().join("absolute")).unwrap();
        symlink("../../../etc", root.path().join("dir/out")).unwrap();
        symlink("loop", root.path().join("loop")).unwrap();
        for (written, found) in [
            ("/absolute/x", "/dir/x"),
            ("dir/out/passwd", "/etc/passwd"),
            ("/../../x", "/x"),
            ("/a/b/c", "/a/b/c"),
        ] {
            assert_eq!(within(root.path(), Path::new(written)), PathBuf::from(found), "{written}");
        }
        assert!(within(root.path(), Path::new("/loop/x")).starts_with("/"));
    }
}
