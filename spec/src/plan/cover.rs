//! Covers: directories that the sandbox sees through a layer of whiteouts.
//!
//! A mask mounted on a host path disappears when the host replaces that path, and a host socket behind a
//! plain bind answers. An overlay has neither fault: the whiteout is in a layer of ours, and a socket seen
//! through an overlay is another inode that nobody listens on (kernel, overlayfs.rst).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::host::{Node, Tree};

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
    pub entries: BTreeMap<PathBuf, Entry>,
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
        let Ok(relative) = path.strip_prefix(&self.root) else { return };
        let mut at = PathBuf::new();
        let parts: Vec<_> = relative.iter().collect();
        for (index, part) in parts.iter().enumerate() {
            at.push(part);
            if self.entries.get(&at) == Some(&Entry::Whiteout) {
                return;
            }
            let node = tree.node(&self.root.join(&at));
            match node {
                Some(Node::Directory { mode }) if index + 1 < parts.len() => {
                    self.entries.insert(at.clone(), Entry::Directory { mode });
                }
                _ => {
                    // Whatever was hidden below it before is part of it now.
                    let below = self.entries.range(at.clone()..).map(|(known, _)| known.clone());
                    let below: Vec<_> = below.take_while(|known| known.starts_with(&at)).collect();
                    for known in below {
                        self.entries.remove(&known);
                    }
                    self.entries.insert(at, Entry::Whiteout);
                    return;
                }
            }
        }
    }

    /// A name for the layer's content: equal layers have equal names.
    #[must_use]
    pub fn content_name(&self) -> String {
        use sha2::{Digest, Sha256};
        use std::os::unix::ffi::OsStrExt;
        let mut hash = Sha256::new();
        hash.update(self.mode.to_le_bytes());
        for (path, entry) in &self.entries {
            hash.update(path.as_os_str().as_bytes());
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
