//! Sockets of the host that appear while a turn runs, in a directory that it sees as it is on the host. No mount can be
//! there beforehand, and nobody knows the name; so the kernel's list is looked at again and again, and what is new and
//! would answer gets hidden. Between two looks it answers: a mitigation, with the window that `INTERVAL` is.
//!
//! With the host's network the turn's own sockets are in the same list. They are told apart by who holds them: a process
//! below the sandbox's init.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use codeoid_spec::paths::is_within;
use oci_spec::runtime::Spec;

use crate::probe::{self, Listening};

/// The time between two looks.
pub const INTERVAL: Duration = Duration::from_millis(250);

/// How many are told of in one look, and how many descriptors of the turn are read for it: the turn must not keep its
/// supervisor busy. What is not told of is told of at the next look; what was not found is taken for the host's.
const MOST: usize = 32;
const MOST_DESCRIPTORS: usize = 20_000;

/// What a turn sees of the host as it is, and the sockets in there that have been judged.
pub struct Appearing {
    /// Where something is mounted, topmost last, and whether it is the host's own directory under its own name.
    view: Vec<(PathBuf, bool)>,
    /// By inode: of the kernel's list, not of the file.
    judged: HashSet<u64>,
}

impl Appearing {
    /// For a turn with these mounts.
    pub fn new(spec: &Spec) -> Self {
        let view = spec.mounts().iter().flatten().map(|mount| {
            let bind = mount.typ().as_deref() == Some("bind");
            let place = mount.destination();
            (place.clone(), bind && mount.source().as_ref() == Some(place))
        });
        Self { view: view.collect(), judged: HashSet::new() }
    }

    /// The sockets of the host that answer the turn whose process 1 is `init`; each is returned once.
    pub fn look(&mut self, init: i32) -> Vec<PathBuf> {
        let listed = probe::listening();
        // An inode's number is used again.
        self.judged.retain(|inode| listed.iter().any(|socket| socket.inode == *inode));
        let unjudged = listed.into_iter().filter(|socket| !self.judged.contains(&socket.inode));
        let (visible, others): (Vec<Listening>, Vec<Listening>) =
            unjudged.filter_map(resolve).partition(|socket| self.is_visible(&socket.path));
        self.judged.extend(others.iter().map(|socket| socket.inode));
        if visible.is_empty() {
            return Vec::new();
        }
        let visible = &visible[..visible.len().min(MOST)];
        let wanted: HashSet<u64> = visible.iter().map(|socket| socket.inode).collect();
        let Some(own) = held_below(init, &wanted) else { return Vec::new() };
        // One whose process has ended meanwhile was nobody's to be found; its file may be the turn's.
        let still: HashSet<u64> = probe::listening().into_iter().map(|socket| socket.inode).collect();
        self.judged.extend(&wanted);
        let foreign = |socket: &Listening| !own.contains(&socket.inode) && still.contains(&socket.inode);
        visible.iter().filter(|socket| foreign(socket)).map(|socket| socket.path.clone()).collect()
    }

    /// Whether the turn sees the host's own directory there. Not what has a mount of its own: it is masked, or listed.
    fn is_visible(&self, path: &Path) -> bool {
        let around = self.view.iter().rev().find(|(place, _)| is_within(path, place));
        around.is_some_and(|(place, plain)| *plain && place != path)
    }
}

/// A socket with the directories above it resolved; `None` where nothing is any more.
fn resolve(socket: Listening) -> Option<Listening> {
    let path = fs::canonicalize(socket.path.parent()?).ok()?.join(socket.path.file_name()?);
    fs::symlink_metadata(&path).ok()?;
    Some(Listening { path, ..socket })
}

/// Those of the sockets that a process below this one holds. `None` where the kernel does not say who is below whom
/// (proc_pid_task(5), `children`).
fn held_below(init: i32, wanted: &HashSet<u64>) -> Option<HashSet<u64>> {
    let children = |pid: i32| -> Option<Vec<i32>> {
        let mut found = Vec::new();
        for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
            let text = fs::read_to_string(thread.path().join("children")).ok()?;
            found.extend(text.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        }
        Some(found)
    };
    let mut left = children(init)?;
    let mut held = HashSet::new();
    let mut budget = MOST_DESCRIPTORS;
    while let Some(pid) = left.pop() {
        if budget == 0 || held.len() == wanted.len() {
            break;
        }
        // Processes come and go.
        left.extend(children(pid).unwrap_or_default());
        for descriptor in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            if budget == 0 {
                break;
            }
            budget -= 1;
            let Ok(target) = fs::read_link(descriptor.path()) else { continue };
            let inode = target.to_str().and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']'));
            held.extend(inode.and_then(|inode| inode.parse().ok()).filter(|inode| wanted.contains(inode)));
        }
    }
    Some(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_bound_under_its_own_name_is_visible_and_what_has_its_own_mount_is_not() {
        let view = [("/srv", true), ("/srv/fresh", false), ("/srv/fresh/w", true), ("/srv/s", true)];
        let view = view.map(|(place, plain)| (PathBuf::from(place), plain)).to_vec();
        let appearing = Appearing { view, judged: HashSet::new() };
        for (path, visible) in [
            ("/srv/a", true),
            ("/srv/a/b", true),
            ("/srv/fresh/a", false),
            ("/srv/fresh/w/a", true),
            ("/srv/s", false),
            ("/run/a", false),
        ] {
            assert_eq!(appearing.is_visible(Path::new(path)), visible, "{path}");
        }
    }
}
