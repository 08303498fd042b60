//! Names: what a path is once its symbolic links are followed, as far as it exists. A rule holds for a thing, whatever
//! name it was given by.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::View;
use crate::host::Node;
use crate::paths::split;

impl View<'_> {
    /// The names under which a hidden thing is to be found: its own, with the directories above it resolved,
    /// and where it is a symbolic link, also what it leads to.
    pub(super) fn places(&self, path: &Path, known: &mut HashMap<OsString, PathBuf>) -> Vec<PathBuf> {
        let named = match split(path) {
            Some((parent, name)) => self.resolved(parent, known).join(name),
            // It ends in `..`.
            _ => self.resolved(path, known),
        };
        let mut places = vec![named];
        // Where a link leads, even if nothing is there yet; as many as the kernel follows (path_resolution(7)).
        while places.len() <= 40 {
            let last = &places[places.len() - 1];
            let Some(Node::Link(to)) = self.tree.node(last) else { break };
            if let Some(real) = self.tree.real(last) {
                places.push(real);
                break;
            }
            let to = last.parent().unwrap_or(last).join(to);
            let next = match (to.parent(), to.file_name()) {
                (Some(parent), Some(name)) => self.resolved(parent, known).join(name),
                _ => break,
            };
            if places.contains(&next) {
                break;
            }
            places.push(next);
        }
        places
    }

    /// A directory with `..` and its symbolic links resolved, as far as it exists; what is missing stays as
    /// written.
    pub(super) fn resolved(&self, dir: &Path, known: &mut HashMap<OsString, PathBuf>) -> PathBuf {
        if let Some(real) = known.get(dir.as_os_str()) {
            return real.clone();
        }
        let real = match split(dir)
            .map_or_else(|| (dir.parent(), None), |(parent, name)| (Some(parent), Some(name)))
        {
            (Some(parent), Some(name)) => {
                let at = self.resolved(parent, known).join(name);
                match self.tree.node(&at) {
                    Some(Node::Link(_)) => self.tree.real(&at).unwrap_or(at),
                    _ => at,
                }
            }
            (Some(parent), None) => {
                let mut at = self.resolved(parent, known);
                at.pop();
                at
            }
            (None, _) => dir.to_owned(),
        };
        known.insert(dir.as_os_str().to_owned(), real.clone());
        real
    }
}
