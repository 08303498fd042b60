//! Covers: directories that the sandbox sees through a layer of whiteouts.
//!
//! A mask mounted on a host path disappears when the host replaces that path, and a host socket behind a
//! plain bind answers. An overlay has neither fault: the whiteout is in a layer of ours, and a socket seen
//! through an overlay is another inode that nobody listens on (kernel, overlayfs.rst).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::Bound;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::host::{Node, Tree};
use crate::paths::{is_same, is_within};

/// A directory seen through a layer of whiteouts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cover {
    /// The host's directory (real path).
    pub root: PathBuf,
    /// Its permission bits, which the layers on top have to repeat.
    pub mode: u32,
    /// Whether writes go to a layer of the session; else the cover is read-only.
    pub upper: bool,
    /// What the layer holds, by path relative to `root`: a whiteout, or a directory with its permission bits.
    /// Ordered by bytes (comparing paths component by component is ten times slower, and there are hundreds),
    /// so a directory comes before what is in it.
    pub entries: BTreeMap<OsString, Entry>,
}

/// One name in a layer of whiteouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Nothing is there (a character device 0:0).
    Whiteout,
    /// A directory that the host has, so that names in it can be whited out.
    Directory {
        /// Permission bits of the host's directory.
        mode: u32,
    },
}

impl Cover {
    /// A cover that hides nothing yet.
    #[must_use]
    pub const fn new(root: PathBuf, mode: u32, upper: bool) -> Self {
        Self { root, mode, upper, entries: BTreeMap::new() }
    }

    /// Hides a path below the root (real path up to its last component).
    ///
    /// Directories are made in the layer only where the host has them: otherwise a ghost of the directory
    /// would appear. Where one is missing, the missing name itself is whited out, so that it stays hidden if
    /// the host makes it later.
    pub fn hide(&mut self, path: &Path, tree: &dyn Tree) {
        if !is_within(path, &self.root) || is_same(path, &self.root) {
            return;
        }
        let relative = &path.as_os_str().as_bytes()[self.root.as_os_str().len()..];
        let relative = relative.strip_prefix(b"/").unwrap_or(relative);
        let ends = relative.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
        for end in ends.chain([relative.len()]) {
            let at = std::ffi::OsStr::from_bytes(&relative[..end]);
            let last = end == relative.len();
            match self.entries.get(at) {
                Some(Entry::Whiteout) => return,
                Some(Entry::Directory { .. }) if !last => continue,
                _ => {}
            }
            match tree.node(&self.root.join(at)) {
                Some(Node::Directory { mode }) if !last => {
                    self.entries.insert(at.to_owned(), Entry::Directory { mode });
                }
                _ => {
                    self.white_out(at.to_owned());
                    return;
                }
            }
        }
    }

    fn white_out(&mut self, at: OsString) {
        // Whatever was hidden below it before is part of it now.
        let mut from = at.clone().into_vec();
        from.push(b'/');
        let mut to = at.clone().into_vec();
        to.push(b'/' + 1);
        let range = (Bound::Included(OsString::from_vec(from)), Bound::Excluded(OsString::from_vec(to)));
        let below: Vec<_> = self.entries.range(range).map(|(known, _)| known.clone()).collect();
        for known in below {
            self.entries.remove(&known);
        }
        self.entries.insert(at, Entry::Whiteout);
    }

    /// A name for the layer's content: equal layers have equal names.
    #[must_use]
    pub fn content_name(&self) -> String {
        use sha2::{Digest, Sha256};
        let mut hash = Sha256::new();
        hash.update(self.mode.to_le_bytes());
        for (path, entry) in &self.entries {
            hash.update(path.as_bytes());
            hash.update(b"\0");
            match entry {
                Entry::Whiteout => hash.update(b"w"),
                Entry::Directory { mode } => {
                    hash.update(b"d");
                    hash.update(mode.to_le_bytes());
                }
            }
        }
        hash.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    struct Fake(BTreeMap<&'static str, u32>);

    impl Tree for Fake {
        fn node(&self, path: &Path) -> Option<Node> {
            self.0.get(path.to_str().unwrap()).map(|mode| Node::Directory { mode: *mode })
        }
        fn real(&self, path: &Path) -> Option<PathBuf> {
            Some(path.to_owned())
        }
    }

    fn entries(cover: &Cover) -> Vec<(&str, Entry)> {
        cover.entries.iter().map(|(path, entry)| (path.to_str().unwrap(), *entry)).collect()
    }

    #[test]
    fn a_missing_directory_is_whited_out_itself_so_that_no_ghost_of_it_appears() {
        let tree = Fake(BTreeMap::from([("/h/.config", 0o700)]));
        let mut cover = Cover::new(PathBuf::from("/h"), 0o755, true);
        cover.hide(Path::new("/h/.config/gcloud/key"), &tree);
        cover.hide(Path::new("/h/.config/op"), &tree);
        cover.hide(Path::new("/h/.ssh"), &tree);
        let directory = Entry::Directory { mode: 0o700 };
        let expected = [
            (".config", directory),
            (".config/gcloud", Entry::Whiteout),
            (".config/op", Entry::Whiteout),
            (".ssh", Entry::Whiteout),
        ];
        assert_eq!(entries(&cover), expected);
    }

    #[test]
    fn hiding_a_directory_takes_what_was_hidden_in_it_but_not_its_neighbours() {
        let tree = Fake(BTreeMap::from([("/h/a", 0o755), ("/h/a-b", 0o755)]));
        let mut cover = Cover::new(PathBuf::from("/h"), 0o755, true);
        for path in ["/h/a/x", "/h/a-b/y", "/h/a"] {
            cover.hide(Path::new(path), &tree);
        }
        let expected =
            [("a", Entry::Whiteout), ("a-b", Entry::Directory { mode: 0o755 }), ("a-b/y", Entry::Whiteout)];
        assert_eq!(entries(&cover), expected);
        cover.hide(Path::new("/h/a/z"), &tree);
        assert_eq!(entries(&cover), expected, "below a whiteout there is nothing to hide");
    }
}
