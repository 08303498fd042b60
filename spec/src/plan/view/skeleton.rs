//! The sandbox's root directory.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use crate::host::{Host, Node, Tree};
use crate::mount::{Kind, Mount};

/// Names in `/` that are the sandbox's own.
pub(super) const OWN_TOP: [&str; 4] = ["proc", "dev", "run", "tmp"];

/// What programs need of the host's `/run` on distributions that keep their system there.
pub(super) const KEPT_IN_RUN: &[&str] = &[
    "/run/current-system",
    "/run/booted-system",
    "/run/wrappers",
    "/run/opengl-driver",
    "/run/systemd/timesync",
];

/// The sandbox's root directory: a name for each of the host's, and a `/run` of its own. Read-only.
pub(super) fn skeleton(
    host: &Host,
    tree: &dyn Tree,
    hidden: &HashSet<PathBuf>,
    mounts: &[Mount],
) -> Vec<(PathBuf, Node)> {
    let directory = |mode| Node::Directory { mode };
    let mut entries: BTreeMap<PathBuf, Node> = host
        .top
        .iter()
        .filter(|(name, _)| !OWN_TOP.contains(&name.as_str()))
        .filter(|(_, node)| !matches!(node, Node::Other))
        .map(|(name, node)| {
            // Mounted over: the modes come from the host.
            let node = if matches!(node, Node::Directory { .. }) { directory(0o755) } else { node.clone() };
            (Path::new("/").join(name), node)
        })
        .filter(|(path, _)| !hidden.contains(path))
        .collect();
    for (path, mode) in [("/proc", 0o555), ("/dev", 0o755), ("/run", 0o755), ("/tmp", 0o1777)] {
        entries.insert(PathBuf::from(path), directory(mode));
    }
    for (path, mode) in [("/run/lock", 0o1777), ("/run/user", 0o755)] {
        entries.insert(PathBuf::from(path), directory(mode));
    }
    entries.insert(PathBuf::from(format!("/run/user/{}", host.uid)), directory(0o700));
    entries.insert(PathBuf::from("/run/shm"), Node::Link(PathBuf::from("/dev/shm")));
    let resolver = host.resolver.iter().map(PathBuf::as_path);
    let kept = KEPT_IN_RUN.iter().map(Path::new).filter(|path| tree.node(path).is_some());
    // What is mounted below `/run` needs a place there, unless a file system of its own is around it.
    let mounted = mounts.iter().map(|mount| mount.target.as_path()).filter(|at| at.starts_with("/run"));
    let mounted = mounted.filter(|at| {
        !mounts
            .iter()
            .any(|around| around.target != *at && around.target.starts_with("/run") && around.covers(at))
    });
    let is_file = |path: &Path| {
        let node = mounts.iter().find(|mount| mount.target == path).and_then(|mount| match &mount.kind {
            Kind::Bind { source, .. } => tree.node(source),
            _ => None,
        });
        matches!(node, Some(Node::File | Node::Other))
    };
    for path in resolver.chain(kept).chain(mounted) {
        if is_file(path) {
            entries.insert(path.to_owned(), Node::File);
        }
        for ancestor in path.ancestors().filter(|at| at.starts_with("/run") && *at != Path::new("/run")) {
            entries.entry(ancestor.to_owned()).or_insert(directory(0o755));
        }
    }
    entries.into_iter().collect()
}
