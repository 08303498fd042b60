//! What this host offers, as data: read once by the shim, so that a plan is a function of its inputs and can
//! be tested without the host.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::paths::{depth, is_same, is_within, split};
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

    /// All names in a directory; `None` where they cannot be known, or are more than `limit`.
    fn names(&self, dir: &Path, limit: usize) -> Option<HashSet<OsString>> {
        let _ = (dir, limit);
        None
    }

    /// Whether a socket is at this path.
    fn is_socket(&self, path: &Path) -> bool {
        matches!(self.node(path), Some(Node::Other))
    }

    /// How many names the file at this path has (hard links).
    fn links(&self, path: &Path) -> u64 {
        let _ = path;
        1
    }

    /// Whether something is at this path now, whatever was remembered.
    fn exists(&self, path: &Path) -> bool {
        self.node(path).is_some()
    }
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

    fn is_socket(&self, path: &Path) -> bool {
        use std::os::unix::fs::FileTypeExt;
        std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
    }

    fn links(&self, path: &Path) -> u64 {
        use std::os::unix::fs::MetadataExt;
        std::fs::symlink_metadata(path).map_or(1, |meta| meta.nlink())
    }

    fn names(&self, dir: &Path, limit: usize) -> Option<HashSet<OsString>> {
        let mut names = HashSet::new();
        for entry in std::fs::read_dir(dir).ok()? {
            names.insert(entry.ok()?.file_name());
            if names.len() > limit {
                return None;
            }
        }
        Some(names)
    }
}

/// After so many names of a directory were missing, all of its names are read instead: a plan asks for
/// hundreds of secrets, of which a host has few.
const MISSES_BEFORE_LISTING: u32 = 4;

/// A directory with more names is asked name by name.
const LONGEST_LISTING: usize = 2_000;

/// Remembers what another tree said: a plan asks for the same directories many times over.
#[derive(Debug, Default)]
pub struct Cached<T> {
    tree: T,
    /// By the path's bytes: hashing a path component by component costs more than asking the kernel.
    nodes: RefCell<HashMap<OsString, Option<Node>>>,
    directories: RefCell<HashMap<OsString, Names>>,
}

/// What is known of a directory's names.
#[derive(Debug)]
enum Names {
    /// So many were asked for and are missing.
    Missed(u32),
    /// All that there are.
    All(HashSet<OsString>),
    /// It has to be asked for each.
    TooMany,
}

impl<T: Tree> Cached<T> {
    /// A memory of what this tree says from now on.
    pub fn new(tree: T) -> Self {
        Self { tree, nodes: RefCell::default(), directories: RefCell::default() }
    }

    fn ask(&self, path: &Path) -> Option<Node> {
        let Some((parent, name)) = split(path) else {
            return self.tree.node(path);
        };
        // Below what is missing, everything is.
        if self.nodes.borrow().get(parent.as_os_str()) == Some(&None) {
            return None;
        }
        let mut directories = self.directories.borrow_mut();
        if let Some(Names::All(names)) = directories.get(parent.as_os_str())
            && !names.contains(name)
        {
            return None;
        }
        let node = self.tree.node(path);
        if node.is_some() {
            return node;
        }
        match directories.get_mut(parent.as_os_str()) {
            Some(Names::Missed(count)) if *count >= MISSES_BEFORE_LISTING => {
                let names = self.tree.names(parent, LONGEST_LISTING).map_or(Names::TooMany, Names::All);
                directories.insert(parent.as_os_str().to_owned(), names);
            }
            Some(Names::Missed(count)) => *count += 1,
            Some(_) => {}
            None => drop(directories.insert(parent.as_os_str().to_owned(), Names::Missed(1))),
        }
        None
    }
}

impl<T: Tree> Tree for Cached<T> {
    fn node(&self, path: &Path) -> Option<Node> {
        if let Some(node) = self.nodes.borrow().get(path.as_os_str()) {
            return node.clone();
        }
        let node = self.ask(path);
        self.nodes.borrow_mut().insert(path.as_os_str().to_owned(), node.clone());
        node
    }

    fn real(&self, path: &Path) -> Option<PathBuf> {
        self.tree.real(path)
    }

    fn names(&self, dir: &Path, limit: usize) -> Option<HashSet<OsString>> {
        self.tree.names(dir, limit)
    }

    fn is_socket(&self, path: &Path) -> bool {
        self.tree.is_socket(path)
    }

    fn links(&self, path: &Path) -> u64 {
        self.tree.links(path)
    }

    fn exists(&self, path: &Path) -> bool {
        self.tree.exists(path)
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
    /// The caller's own runtime directory (`XDG_RUNTIME_DIR`, its real path), where its session's sockets are.
    pub session_runtime: Option<PathBuf>,
    /// Where the layers of whiteouts lie that all turns share.
    pub layers: PathBuf,
    /// Whether overlayfs can write to a layer on the state directory's file system.
    pub writable_layers: bool,
    /// Where sockets can be connected to by a path, as their programs have named it (/proc/net/unix).
    pub sockets: Vec<PathBuf>,
    /// All mounts, as /proc/self/mountinfo lists them: later ones lie over earlier ones.
    pub mounts: Vec<Mounted>,
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

/// One mount of this host (proc_pid_mountinfo(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// Which file system: its device number, as text.
    pub device: String,
    /// Which directory of that file system.
    pub root: PathBuf,
    /// Where.
    pub at: PathBuf,
}

impl Host {
    /// The mount points strictly below a directory.
    pub fn mounts_below<'a>(&'a self, dir: &'a Path) -> impl Iterator<Item = &'a Path> {
        self.mounts.iter().map(|mount| mount.at.as_path()).filter(move |at| *at != dir && is_within(at, dir))
    }

    /// The other names of a path: where the same directory of the same file system is mounted once more
    /// (`mount --bind /home /mnt/home`). What is hidden under one name is hidden under all.
    #[must_use]
    pub fn aliases(&self, path: &Path) -> Vec<PathBuf> {
        let own = self.mounts.iter().rev().filter(|mount| is_within(path, &mount.at));
        let Some(own) = own.max_by_key(|mount| depth(&mount.at)) else { return Vec::new() };
        let others =
            self.mounts.iter().filter(|other| other.device == own.device && !is_same(&other.at, &own.at));
        let mut others = others.peekable();
        if others.peek().is_none() {
            return Vec::new();
        }
        let Ok(below) = path.strip_prefix(&own.at) else { return Vec::new() };
        let inside = own.root.join(below);
        others
            .filter_map(|other| Some((other, inside.strip_prefix(&other.root).ok()?)))
            // To join nothing would add a slash.
            .map(
                |(other, rest)| {
                    if rest.as_os_str().is_empty() { other.at.clone() } else { other.at.join(rest) }
                },
            )
            .filter(|alias| alias != path)
            .collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn host(mounts: &[(&str, &str, &str)]) -> Host {
        let mounts = mounts.iter().map(|(device, root, at)| Mounted {
            device: (*device).to_owned(),
            root: PathBuf::from(root),
            at: PathBuf::from(at),
        });
        Host {
            uid: 1000,
            gid: 1000,
            umask: 0o022,
            home: None,
            other_home: None,
            state: StateDir::new(PathBuf::from("/state")),
            runtime: PathBuf::from("/run/x"),
            top: BTreeMap::new(),
            session_runtime: None,
            layers: PathBuf::from("/run/x/layers"),
            writable_layers: true,
            sockets: Vec::new(),
            mounts: mounts.collect(),
            resolver: None,
            env: Vec::new(),
            env_refused: Vec::new(),
            terminal: [false; 3],
            window: None,
        }
    }

    /// Counts how often it is asked for a node.
    struct Counting(HashMap<PathBuf, Node>, RefCell<usize>);

    impl Tree for Counting {
        fn node(&self, path: &Path) -> Option<Node> {
            *self.1.borrow_mut() += 1;
            self.0.get(path).cloned()
        }

        fn real(&self, path: &Path) -> Option<PathBuf> {
            Some(path.to_owned())
        }

        fn names(&self, dir: &Path, limit: usize) -> Option<HashSet<OsString>> {
            let names = self.0.keys().filter(|path| path.parent() == Some(dir));
            let names: HashSet<_> = names.filter_map(|path| path.file_name()).map(OsString::from).collect();
            (names.len() <= limit).then_some(names)
        }
    }

    #[test]
    fn a_directory_with_many_missing_names_is_listed_and_asked_no_more() {
        let there = PathBuf::from("/home/u/.there");
        let nodes = [("/home/u".into(), Node::Directory { mode: 0o700 }), (there.clone(), Node::File)];
        let cached = Cached::new(Counting(nodes.into(), RefCell::default()));
        for number in 0..100 {
            assert_eq!(cached.node(&Path::new("/home/u").join(format!(".missing{number}"))), None);
        }
        assert_eq!(*cached.tree.1.borrow(), 1 + MISSES_BEFORE_LISTING as usize);
        assert_eq!(cached.node(&there), Some(Node::File), "what is there is still found");
    }

    #[test]
    fn a_directory_with_very_many_names_is_asked_for_each() {
        let mut nodes: HashMap<PathBuf, Node> =
            (0..=LONGEST_LISTING).map(|number| (PathBuf::from(format!("/d/{number}")), Node::File)).collect();
        nodes.insert(PathBuf::from("/d/last"), Node::Other);
        let cached = Cached::new(Counting(nodes, RefCell::default()));
        for number in 0..20 {
            assert_eq!(cached.node(Path::new(&format!("/d/missing{number}"))), None);
        }
        assert_eq!(cached.node(Path::new("/d/last")), Some(Node::Other));
    }

    #[test]
    fn a_second_mount_of_a_directory_gives_a_path_a_second_name() {
        let host = host(&[
            ("8:1", "/", "/"),
            ("8:2", "/", "/home"),
            ("8:2", "/u", "/mnt/u"),
            ("8:2", "/other", "/mnt/other"),
            ("8:3", "/", "/data"),
        ]);
        assert_eq!(host.aliases(Path::new("/home/u/.ssh")), [PathBuf::from("/mnt/u/.ssh")]);
        assert_eq!(host.aliases(Path::new("/mnt/u/.ssh")), [PathBuf::from("/home/u/.ssh")]);
        assert!(host.aliases(Path::new("/etc/shadow")).is_empty());
        // A mount of the very thing; compared as text, since a slash at the end makes no other path.
        let alias = host.aliases(Path::new("/home/u")).pop().unwrap();
        assert_eq!(alias.as_os_str(), "/mnt/u");
    }
}
