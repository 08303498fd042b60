//! What this host offers, as data: read once by the shim, so that a plan is a function of its inputs and can
//! be tested without the host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::state::StateDir;

/// What a path is, without following it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A directory, with its permission bits.
    Directory {
        /// Permission bits (07777).
        mode: u32,
    },
    /// A regular file.
    File,
    /// A symbolic link and what it holds.
    Link(PathBuf),
    /// A socket, FIFO or device.
    Other,
}

/// Looks at the host's directory tree.
pub trait Tree {
    /// What is at this path; `None` where nothing is, or where we may not look.
    fn node(&self, path: &Path) -> Option<Node>;

    /// The path with all symbolic links resolved; `None` where it does not exist.
    fn real(&self, path: &Path) -> Option<PathBuf>;
}

/// The host's own tree.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostTree;

impl Tree for HostTree {
    fn node(&self, path: &Path) -> Option<Node> {
        use std::os::unix::fs::MetadataExt;
        let meta = std::fs::symlink_metadata(path).ok()?;
        let kind = meta.file_type();
        Some(if kind.is_dir() {
            Node::Directory { mode: meta.mode() & 0o7777 }
        } else if kind.is_file() {
            Node::File
        } else if kind.is_symlink() {
            Node::Link(std::fs::read_link(path).ok()?)
        } else {
            Node::Other
        })
    }

    fn real(&self, path: &Path) -> Option<PathBuf> {
        std::fs::canonicalize(path).ok()
    }
}

/// Remembers what another tree said: a plan asks for the same directories many times over.
#[derive(Debug, Default)]
pub struct Cached<T> {
    tree: T,
    /// By the path's bytes: hashing a path component by component costs more than asking the kernel.
    nodes: std::cell::RefCell<std::collections::HashMap<std::ffi::OsString, Option<Node>>>,
}

impl<T: Tree> Cached<T> {
    /// A memory of what this tree says from now on.
    pub fn new(tree: T) -> Self {
        Self { tree, nodes: std::cell::RefCell::default() }
    }
}

impl<T: Tree> Tree for Cached<T> {
    fn node(&self, path: &Path) -> Option<Node> {
        if let Some(node) = self.nodes.borrow().get(path.as_os_str()) {
            return node.clone();
        }
        // Below what is missing, everything is.
        let parent_missing = path.parent().is_some_and(|at| self.nodes.borrow().get(at.as_os_str()) == Some(&None));
        let node = if parent_missing { None } else { self.tree.node(path) };
        self.nodes.borrow_mut().insert(path.as_os_str().to_owned(), node.clone());
        node
    }

    fn real(&self, path: &Path) -> Option<PathBuf> {
        self.tree.real(path)
    }
}

/// This host and this caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The caller's user id.
    pub uid: u32,
    /// The caller's group id.
    pub gid: u32,
    /// The caller's umask.
    pub umask: u32,
    /// The caller's home directory (real path), if it has one.
    pub home: Option<PathBuf>,
    /// A further home: what the password database says, where `$HOME` says something else.
    pub other_home: Option<PathBuf>,
    /// The state directory.
    pub state: StateDir,
    /// The runtime directory (`--root`).
    pub runtime: PathBuf,
    /// The names in `/`, with what they are.
    pub top: BTreeMap<String, Node>,
    /// All mount points, as /proc/self/mountinfo lists them.
    pub mount_points: Vec<PathBuf>,
    /// The directory below `/run` that `/etc/resolv.conf` leads into, if any.
    pub resolver: Option<PathBuf>,
    /// The caller's environment, as far as it is UTF-8.
    pub env: Vec<(String, String)>,
    /// Names (made printable) of variables that are not UTF-8: an OCI bundle cannot carry them.
    pub env_refused: Vec<String>,
    /// Which of the standard streams are terminals.
    pub terminal: [bool; 3],
    /// The terminal's size (rows, columns).
    pub window: Option<(u16, u16)>,
}

impl Host {
    /// The mount points strictly below a directory.
    pub fn mounts_below<'a>(&'a self, dir: &'a Path) -> impl Iterator<Item = &'a Path> {
        self.mount_points.iter().map(PathBuf::as_path).filter(move |at| *at != dir && at.starts_with(dir))
    }

    /// Whether the caller is root: no user namespace then, and `/proc` needs protection.
    #[must_use]
    pub const fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// A variable of the caller's environment.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.env.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}
