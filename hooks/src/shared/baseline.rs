//! What git's bookkeeping was before a turn: enough to tell afterwards what changed, and to put back what a
//! turn must not have changed.
//!
//! A file that was not touched is known by what stat(2) says of it, so a check of an untouched repository reads
//! next to nothing. Only small files that may have to be put back are remembered with their content.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use codeoid_spec::git::{Checkout, Guard, Repository};
use serde::{Deserialize, Serialize};

use super::entries::{self, EntryRecord};
use super::refs::{self, Replacements};
use super::survey;
use super::trees::{self, Tree};
use super::{modules, todo};
use crate::bytes::Bytes;
use crate::config;
use crate::entry;
use crate::index;
use crate::read::{self, Dir, Kind, POINTER_LIMIT, Stamp};

/// The version of the format; another one is not read.
pub const VERSION: u32 = 1;
/// How coarse the kernel's clock for files is, in nanoseconds: two changes within that time can have one ctime
/// (inode_set_ctime_current(); at most a tick, which is 10 ms at HZ=100).
const TICK: i64 = 20_000_000;

/// Files that are remembered with their content, relative to the git dir. Each either makes git run or follow
/// something, or the repository is none without it.
pub(crate) const FILES: [&str; 8] = [
    "HEAD",
    "config",
    "config.worktree",
    "info/attributes",
    "info/grafts",
    "objects/info/alternates",
    "objects/info/http-alternates",
    "shallow",
];
/// Directories that are remembered whole, and what a file in them is called.
pub(crate) const TREES: [(&str, &str); 3] =
    [("hooks", "hook"), ("branches", "legacy-remote"), ("remotes", "legacy-remote")];

/// Why a baseline could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something could not be read.
    #[error(transparent)]
    Read(#[from] read::Error),
    /// The refs could not be read.
    #[error(transparent)]
    Refs(#[from] refs::Error),
}

/// The state of a repository's bookkeeping before a turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// The version of the format: [`VERSION`].
    pub version: u32,
    /// When it was taken, in nanoseconds since the epoch.
    pub taken: i64,
    /// The repository; its list of entries is left out, the common dir's area has it.
    pub repository: Repository,
    /// Further directories that the turn can write, real paths.
    pub writable: Vec<PathBuf>,
    /// The common dir first, then the git dir of every submodule.
    pub(crate) areas: Vec<Area>,
    /// `.git` files that are remembered: the workspace's, and every submodule's.
    pub(crate) pointers: Vec<Pointer>,
}

/// A file with its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Saved {
    pub(crate) stamp: Stamp,
    pub(crate) content: Bytes,
}

/// A git dir as it was: the common dir, or that of a submodule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Area {
    /// Where it lies.
    pub(crate) path: PathBuf,
    /// Its inode.
    pub(crate) inode: (u64, u64),
    /// The checkout that its index belongs to.
    pub(crate) checkout: Option<PathBuf>,
    /// Directories at its top and their inodes, to find one that was moved.
    #[serde(with = "crate::bytes::pairs")]
    pub(crate) directories: BTreeMap<Bytes, u64>,
    /// Symlinks that were there, and their targets.
    #[serde(with = "crate::bytes::pairs")]
    pub(crate) links: BTreeMap<Bytes, Bytes>,
    /// Pipes, sockets, devices that were there.
    pub(crate) special: Vec<Bytes>,
    /// [`FILES`] that were there.
    pub(crate) files: BTreeMap<String, Saved>,
    /// [`TREES`] that were there.
    pub(crate) trees: BTreeMap<String, Tree>,
    /// `core.hooksPath`, where that lies in the git dir and is not `hooks`.
    pub(crate) hooks_path: Option<String>,
    /// Configuration that is included from the git dir.
    pub(crate) includes: Vec<String>,
    /// Replacement refs.
    #[serde(with = "crate::bytes::pairs")]
    pub(crate) replacements: Replacements,
    /// Nested repositories in the index.
    pub(crate) gitlinks: Vec<Bytes>,
    /// Commands that a rebase in progress was going to run.
    pub(crate) commands: Vec<Bytes>,
    /// Its worktree entries, sorted by name.
    pub(crate) entries: Vec<EntryRecord>,
}

/// A `.git` file as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pointer {
    /// Where it lies.
    pub(crate) path: PathBuf,
    /// The git dir or entry that it names.
    pub(crate) git_dir: PathBuf,
    /// Its content; `None` where it is a symlink (git-annex).
    pub(crate) content: Option<Bytes>,
}

/// Whether equal stamps prove that a file was not changed after the baseline was taken.
pub(crate) const fn settled(stamp: &Stamp, taken: i64) -> bool {
    stamp.ctime < taken - TICK
}

/// Whether something was changed after the baseline was taken, or may have been.
pub(crate) const fn since(stamp: &Stamp, taken: i64) -> bool {
    !settled(stamp, taken)
}

/// Takes the baseline of a guarded repository. `writable` are directories that the turn can write besides the
/// workspace and the session folders (`write` in the policy): real paths.
///
/// # Errors
/// The bookkeeping cannot be read.
pub fn capture(guard: &Guard, writable: &[PathBuf]) -> Result<Baseline, Error> {
    let repository = &guard.repository;
    let taken = now();
    let common = Dir::open(&repository.common_dir)?;
    let mut areas = vec![area(&common, repository.main_checkout.clone())?];
    areas[0].entries = entries::capture(&common, &repository.entries, taken)?;
    let mut pointers = Vec::new();
    pointers.extend(workspace_pointer(repository)?);
    // Entries with submodules are few; the others have no such directory.
    let mut places = vec![repository.common_dir.clone()];
    let with_modules = areas[0].entries.iter().filter(|record| record.modules);
    places.extend(with_modules.map(|record| repository.common_dir.join("worktrees").join(&record.id)));
    for place in places {
        for path in modules::discover(&place)? {
            let dir = Dir::open(&path)?;
            let checkout = modules::checkout(&dir)?;
            let mut module = area(&dir, checkout.clone())?;
            let listed = crate::layout::entries(&path, &[], None).unwrap_or_default();
            module.entries = entries::capture(&dir, &listed, taken)?;
            areas.push(module);
            if let Some(checkout) = checkout {
                pointers.extend(pointer(&checkout.join(".git"), &path)?);
            }
        }
    }
    let repository = Repository { entries: Vec::new(), ..repository.clone() };
    Ok(Baseline { version: VERSION, taken, repository, writable: writable.to_vec(), areas, pointers })
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn area(dir: &Dir, checkout: Option<PathBuf>) -> Result<Area, Error> {
    let stamp = dir.stamp()?;
    let survey = survey::survey(dir)?;
    let inside = Inside::of(dir, checkout.as_deref())?;
    let mut files = BTreeMap::new();
    for name in FILES.into_iter().chain(inside.includes.iter().map(String::as_str)) {
        if let Some(file) = saved(dir, Path::new(name))? {
            files.insert(name.to_owned(), file);
        }
    }
    let mut trees = BTreeMap::new();
    for name in TREES.iter().map(|(name, _)| *name).chain(inside.hooks_path.as_deref()) {
        if let Some(tree) = trees::capture(dir, name)? {
            trees.insert(name.to_owned(), tree);
        }
    }
    let hash = hash_length(files.get("config").map(|file| file.content.0.as_slice()));
    let gitlinks = gitlinks(dir, hash)?;
    let directories = survey.top.iter().filter(|item| item.kind == Kind::Directory);
    Ok(Area {
        path: dir.path().to_owned(),
        inode: (stamp.dev, stamp.ino),
        checkout,
        directories: directories.map(|item| (Bytes::of_path(Path::new(&item.name)), item.ino)).collect(),
        links: survey.links.iter().map(|(l, t)| (Bytes::of_path(l), Bytes::of_path(t))).collect(),
        special: survey.special.keys().map(|path| Bytes::of_path(path)).collect(),
        files,
        trees,
        hooks_path: inside.hooks_path,
        includes: inside.includes,
        replacements: refs::replacements(dir)?,
        gitlinks,
        commands: todo::commands(dir)?,
        entries: Vec::new(),
    })
}

/// What a git dir's own configuration makes git run or include from that same git dir.
#[derive(Debug, Default)]
pub(crate) struct Inside {
    pub(crate) hooks_path: Option<String>,
    pub(crate) includes: Vec<String>,
}

impl Inside {
    pub(crate) fn of(dir: &Dir, checkout: Option<&Path>) -> Result<Self, read::Error> {
        let mut inside = Self::default();
        for name in ["config", "config.worktree"] {
            let Some(saved) = saved(dir, Path::new(name))? else { continue };
            let file = config::File::parse(&saved.content.0).unwrap_or_default();
            for config::Variable { name, value, .. } in file.variables() {
                let Some(value) = value.as_deref().filter(|value| !value.is_empty()) else { continue };
                let path = Path::new(OsStr::from_bytes(value));
                // A relative path of hooks starts where hooks run, that of an include where the file lies.
                if name.is("core", "hookspath") {
                    let base = checkout.unwrap_or(dir.path());
                    inside.hooks_path = within(dir.path(), &base.join(path));
                } else if name.section.starts_with("include") && name.key == "path" {
                    inside.includes.extend(within(dir.path(), &dir.path().join(path)));
                }
            }
        }
        // What is remembered anyway, and what is a whole git dir.
        inside.hooks_path.take_if(|path| TREES.iter().any(|(name, _)| path == name));
        inside.includes.retain(|path| !FILES.contains(&path.as_str()));
        inside.includes.sort();
        inside.includes.dedup();
        Ok(inside)
    }
}

fn within(git_dir: &Path, path: &Path) -> Option<String> {
    let path = entry::normal(path);
    let inside = path.strip_prefix(git_dir).ok().filter(|path| !path.as_os_str().is_empty())?;
    inside.to_str().map(str::to_owned)
}

/// The length of object ids in bytes, by a repository's configuration.
pub(crate) fn hash_length(config: Option<&[u8]>) -> usize {
    let file = config::File::parse(config.unwrap_or_default()).unwrap_or_default();
    match file.last("extensions", "objectformat").flatten() {
        Some(b"sha256") => 32,
        _ => 20,
    }
}

/// Reads a small file with its content; `None` where there is none, or where it is something else (which the
/// survey has noted) or too large to be remembered.
pub(crate) fn saved(dir: &Dir, name: &Path) -> Result<Option<Saved>, read::Error> {
    let parent = name.parent().unwrap_or(Path::new(""));
    let file = name.file_name().unwrap_or_default();
    let read = match dir.beneath(parent) {
        Ok(Some(parent)) => parent.read(file, POINTER_LIMIT),
        Ok(None) | Err(read::Error::NotDirectory { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    match read {
        Ok(content) => Ok(content.map(|c| Saved { stamp: c.stamp, content: Bytes(c.bytes) })),
        Err(read::Error::NotRegular { .. } | read::Error::TooBig { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn gitlinks(dir: &Dir, hash: usize) -> Result<Vec<Bytes>, read::Error> {
    let content = match dir.read("index".as_ref(), index::LIMIT) {
        Ok(Some(content)) => content,
        Ok(None) | Err(read::Error::NotRegular { .. } | read::Error::TooBig { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    // An index that is damaged now was so before the turn, and git will say it.
    let index = index::parse(&content.bytes, hash).unwrap_or_default();
    let mut links: Vec<_> = index.gitlinks.into_iter().map(|path| Bytes(path.into())).collect();
    if let Some(shared) = index.shared
        && let Ok(Some(content)) = dir.read(OsStr::new(&shared), index::LIMIT)
    {
        let index = index::parse(&content.bytes, hash).unwrap_or_default();
        links.extend(index.gitlinks.into_iter().map(|path| Bytes(path.into())));
    }
    Ok(links)
}

fn workspace_pointer(repository: &Repository) -> Result<Option<Pointer>, read::Error> {
    match &repository.checkout {
        Checkout::Main { top } | Checkout::Linked { top, .. } => {
            let path = top.join(".git");
            // A directory is the common dir itself.
            if path == repository.git_dir { Ok(None) } else { pointer(&path, &repository.git_dir) }
        }
        Checkout::Bare => Ok(None),
    }
}

/// Remembers a `.git` file that names this git dir.
fn pointer(path: &Path, git_dir: &Path) -> Result<Option<Pointer>, read::Error> {
    let content = match read::file(path, POINTER_LIMIT) {
        Ok(None) => return Ok(None),
        Ok(Some(content)) => Some(content.bytes),
        Err(read::Error::NotRegular { kind: Kind::Symlink, .. }) => None,
        Err(read::Error::NotRegular { .. } | read::Error::TooBig { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let names = match &content {
        Some(bytes) => entry::gitfile_path(bytes)
            .map(|named| entry::real(&path.parent().unwrap_or(Path::new("/")).join(named))),
        None => path.canonicalize().ok(),
    };
    let pointer = Pointer { path: path.to_owned(), git_dir: git_dir.to_owned(), content: content.map(Bytes) };
    Ok((names.as_deref() == Some(git_dir)).then_some(pointer))
}
