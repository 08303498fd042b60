//! Finding the repository around a workspace, as git finds it (git(1) "--git-dir", gitrepository-layout(5)),
//! but without following what a turn may have planted: environment variables are never looked at, a
//! `commondir` in a main git dir is refused by name, a `.git` file counts only if the entry that it names
//! points back.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use codeoid_spec::git::{Checkout, Entry, Repository};
use codeoid_spec::id::{SessionId, hex8, slug};

use crate::config;
use crate::entry::{self, BackPointer};
use crate::read::{self, Dir, Kind, POINTER_LIMIT};

/// Why a workspace's repository is not one that a turn can be given.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something could not be read.
    #[error(transparent)]
    Read(#[from] read::Error),
    /// The workspace does not exist, or cannot be reached.
    #[error("workspace {path}")]
    Workspace {
        /// The workspace.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        source: std::io::Error,
    },
    /// The repository's configuration is not one that git would accept.
    #[error("{path}")]
    Config {
        /// The configuration file.
        path: PathBuf,
        /// The line.
        #[source]
        source: config::Error,
    },
    /// A main git dir has a `commondir`: git would take configuration, hooks and objects from elsewhere.
    #[error(
        "{path} makes git use another repository's configuration and hooks, and git itself never writes it in a main git dir: remove it"
    )]
    CommondirPlanted {
        /// The file.
        path: PathBuf,
    },
    /// A `.git` file that names no git dir.
    #[error("{pointer} does not name a git dir, but {target}")]
    BrokenPointer {
        /// The `.git` file.
        pointer: PathBuf,
        /// What it names.
        target: PathBuf,
    },
    /// A `.git` file that names an entry which belongs to another worktree.
    #[error(
        "{pointer} names the worktree entry {entry}, which belongs to {owner}: if the worktree was moved, `git worktree repair` sets that right"
    )]
    NotPointedBack {
        /// The `.git` file.
        pointer: PathBuf,
        /// The entry that it names.
        entry: PathBuf,
        /// The worktree that the entry names.
        owner: PathBuf,
    },
    /// A git dir with a `commondir` that is not an entry of that common dir.
    #[error("{git_dir} says that its common dir is {common_dir}, but it is not one of its worktree entries")]
    NotAnEntry {
        /// The git dir.
        git_dir: PathBuf,
        /// What its `commondir` names.
        common_dir: PathBuf,
    },
    /// `core.worktree` in the shared configuration together with `extensions.worktreeConfig`.
    #[error(
        "core.worktree in {config} together with extensions.worktreeConfig maps every worktree to {top}: move core.worktree to the main checkout's config.worktree"
    )]
    WorktreesMapped {
        /// The shared configuration file.
        config: PathBuf,
        /// Where `core.worktree` points.
        top: PathBuf,
    },
    /// `core.worktree` names a directory that the workspace does not lie in.
    #[error("core.worktree of {git_dir} is {top}, and the workspace does not lie there")]
    TopElsewhere {
        /// The git dir.
        git_dir: PathBuf,
        /// Where `core.worktree` points.
        top: PathBuf,
    },
    /// The workspace lies in the git dir of a repository that is not bare.
    #[error("the workspace lies inside the git dir {git_dir}: use the checkout, not its bookkeeping")]
    InsideGitDir {
        /// The git dir.
        git_dir: PathBuf,
    },
    /// A part of the git dir is a symlink, so that pinning the git dir would not pin it.
    #[error(
        "{path} is a symlink: a repository whose bookkeeping lies elsewhere (git-new-workdir, repo) cannot be protected"
    )]
    Scattered {
        /// The symlink.
        path: PathBuf,
    },
    /// A path of the repository that no OCI bundle can carry, because it is not UTF-8.
    #[error("{path:?} is not UTF-8, and a bundle's paths have to be")]
    NotUtf8 {
        /// The path.
        path: PathBuf,
    },
    /// The checkout is the root directory: there is no place beside it.
    #[error("the checkout is the root directory, so there is no place beside it for worktrees")]
    TopIsRoot,
}

/// What of a git dir must not be a symlink: git follows it, and a pin on the git dir would not cover it.
const PARTS: [&str; 6] = ["config", "config.worktree", "modules", "objects", "refs", "worktrees"];

/// Finds the repository of a workspace (a real path), or `None` where there is none.
///
/// `roots` are worktree roots that [`crate::roots::validate`] has accepted.
///
/// # Errors
/// A repository is there, but it is broken, has been tampered with, or cannot be protected.
pub fn find(workspace: &Path, session: &SessionId, roots: &[PathBuf]) -> Result<Option<Repository>, Error> {
    let metadata = std::fs::metadata(workspace)
        .map_err(|source| Error::Workspace { path: workspace.to_owned(), source })?;
    let device = std::os::unix::fs::MetadataExt::dev(&metadata);
    for directory in workspace.ancestors() {
        // git, too, stops at a mount's edge (GIT_DISCOVERY_ACROSS_FILESYSTEM).
        if read::stat(directory).is_none_or(|stamp| stamp.dev != device) {
            return Ok(None);
        }
        if let Some(found) = at(directory, workspace)? {
            return finish(found, session, roots).map(Some);
        }
    }
    Ok(None)
}

/// A repository before its entries are read.
struct Found {
    common_dir: PathBuf,
    git_dir: PathBuf,
    checkout: Checkout,
    main_checkout: Option<PathBuf>,
}

fn at(directory: &Path, workspace: &Path) -> Result<Option<Found>, Error> {
    let dot_git = directory.join(".git");
    match read::lstat(&dot_git)?.map(|stamp| stamp.kind()) {
        Some(Kind::Directory) => main(directory, &dot_git, workspace),
        Some(Kind::File) => by_pointer(directory, &dot_git, workspace).map(Some),
        Some(Kind::Symlink) => match dot_git.canonicalize() {
            Ok(real) if real.is_dir() && is_entry(&real)? => linked(directory, &dot_git, &real).map(Some),
            Ok(real) if real.is_dir() => main(directory, &real, workspace),
            _ => Err(Error::BrokenPointer {
                target: std::fs::read_link(&dot_git).unwrap_or_default(),
                pointer: dot_git,
            }),
        },
        _ => bare(directory),
    }
}

/// Whether git would take this for a git dir (is_git_directory() in its setup.c).
fn is_git_dir(path: &Path) -> Result<bool, Error> {
    let Ok(dir) = Dir::open(path) else { return Ok(false) };
    let head = match dir.read(OsStr::new("HEAD"), POINTER_LIMIT) {
        Ok(Some(content)) => content.bytes,
        // preferSymlinkRefs: HEAD is a symlink to the branch.
        Err(read::Error::NotRegular { kind: Kind::Symlink, .. }) => match dir.read_link("HEAD".as_ref())? {
            Some(target) if target.starts_with("refs") => b"ref: ".to_vec(),
            _ => return Ok(false),
        },
        Ok(None) | Err(read::Error::NotRegular { .. } | read::Error::TooBig { .. }) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let detached = head.len() >= 40 && head[..40].iter().all(u8::is_ascii_hexdigit);
    if !head.starts_with(b"ref:") && !detached {
        return Ok(false);
    }
    let exists = |name: &str| Ok::<_, Error>(dir.lstat(name)?.is_some());
    Ok(exists("commondir")? || (exists("objects")? && exists("refs")?))
}

fn is_entry(git_dir: &Path) -> Result<bool, Error> {
    Ok(read::lstat(&git_dir.join("commondir"))?.is_some()
        && git_dir.parent().is_some_and(|p| p.file_name() == Some(OsStr::new("worktrees"))))
}

fn main(directory: &Path, git_dir: &Path, workspace: &Path) -> Result<Option<Found>, Error> {
    if !is_git_dir(git_dir)? {
        return Ok(None);
    }
    let settings = settings(git_dir)?;
    if settings.bare {
        // `git clone --bare URL project/.git`: the worktrees lie in project/, which is no checkout itself.
        return Ok(Some(Found {
            common_dir: git_dir.to_owned(),
            git_dir: git_dir.to_owned(),
            checkout: Checkout::Bare,
            main_checkout: None,
        }));
    }
    let top = settings.top(git_dir, directory)?;
    if !workspace.starts_with(&top) {
        return Err(Error::TopElsewhere { git_dir: git_dir.to_owned(), top });
    }
    Ok(Some(Found {
        common_dir: git_dir.to_owned(),
        git_dir: git_dir.to_owned(),
        checkout: Checkout::Main { top: top.clone() },
        main_checkout: Some(top),
    }))
}

fn by_pointer(directory: &Path, dot_git: &Path, workspace: &Path) -> Result<Found, Error> {
    let broken = |target: PathBuf| Error::BrokenPointer { pointer: dot_git.to_owned(), target };
    let content = read::file(dot_git, POINTER_LIMIT)?.ok_or_else(|| broken(PathBuf::new()))?;
    let target = entry::gitfile_path(&content.bytes)
        .ok_or_else(|| broken(PathBuf::from(OsString::from_vec(content.bytes.clone()))))?;
    let target = directory.join(target);
    let git_dir = target.canonicalize().map_err(|_| broken(target.clone()))?;
    if !is_git_dir(&git_dir)? {
        return Err(broken(target));
    }
    if is_entry(&git_dir)? {
        return linked(directory, dot_git, &git_dir);
    }
    main(directory, &git_dir, workspace)?.ok_or_else(|| broken(target))
}

fn linked(directory: &Path, dot_git: &Path, git_dir: &Path) -> Result<Found, Error> {
    let dir = Dir::open(git_dir)?;
    let common = dir.read("commondir".as_ref(), POINTER_LIMIT)?.map(|content| content.bytes);
    let common = common.as_deref().and_then(entry::pointed_path).unwrap_or(Path::new(""));
    let common_dir = git_dir.join(common).canonicalize().unwrap_or_else(|_| git_dir.join(common));
    let id = git_dir.file_name().unwrap_or_default();
    if git_dir != common_dir.join("worktrees").join(id) || !is_git_dir(&common_dir)? {
        return Err(Error::NotAnEntry { git_dir: git_dir.to_owned(), common_dir });
    }
    let named = dir.read("gitdir".as_ref(), POINTER_LIMIT)?.map(|content| content.bytes).unwrap_or_default();
    let named = entry::gitdir_target(git_dir, &named).unwrap_or_default();
    let agrees = entry::back_pointer(dot_git, &dir.stamp()?) == BackPointer::Agrees
        && entry::real(named.parent().unwrap_or(Path::new(""))) == directory;
    if !agrees {
        let owner = named.parent().unwrap_or(Path::new("nobody")).to_owned();
        return Err(Error::NotPointedBack { pointer: dot_git.to_owned(), entry: git_dir.to_owned(), owner });
    }
    let settings = settings(&common_dir)?;
    let main_checkout = if settings.bare {
        None
    } else if settings.worktree.is_some() {
        Some(settings.top(&common_dir, Path::new("/"))?)
    } else if common_dir.file_name() == Some(OsStr::new(".git")) {
        common_dir.parent().map(Path::to_owned)
    } else {
        // A separate git dir does not say where its checkout is.
        None
    };
    Ok(Found {
        common_dir,
        git_dir: git_dir.to_owned(),
        checkout: Checkout::Linked { top: directory.to_owned(), entry: utf8(Path::new(id))? },
        main_checkout,
    })
}

fn bare(directory: &Path) -> Result<Option<Found>, Error> {
    if !is_git_dir(directory)? {
        return Ok(None);
    }
    if is_entry(directory)? || !settings(directory)?.bare {
        return Err(Error::InsideGitDir { git_dir: directory.to_owned() });
    }
    Ok(Some(Found {
        common_dir: directory.to_owned(),
        git_dir: directory.to_owned(),
        checkout: Checkout::Bare,
        main_checkout: None,
    }))
}

/// What a common dir's own configuration says about its layout. git reads these keys without includes, too
/// (read_repository_format() in its setup.c).
struct Settings {
    bare: bool,
    worktree: Option<PathBuf>,
}

impl Settings {
    /// The top of the main checkout: `core.worktree`, or where the `.git` was found.
    fn top(&self, git_dir: &Path, found: &Path) -> Result<PathBuf, Error> {
        let Some(worktree) = &self.worktree else { return Ok(found.to_owned()) };
        let top = git_dir.join(worktree);
        top.canonicalize()
            .map_err(|_| Error::TopElsewhere { git_dir: git_dir.to_owned(), top: entry::normal(&top) })
    }
}

fn settings(git_dir: &Path) -> Result<Settings, Error> {
    let dir = Dir::open(git_dir)?;
    if dir.lstat("commondir")?.is_some() {
        return Err(Error::CommondirPlanted { path: git_dir.join("commondir") });
    }
    for part in PARTS {
        if dir.lstat(part)?.is_some_and(|stamp| stamp.kind() == Kind::Symlink) {
            return Err(Error::Scattered { path: git_dir.join(part) });
        }
    }
    let shared = configuration(&dir, "config")?;
    let per_worktree = shared.is_true("extensions", "worktreeconfig");
    let path = |value: Option<Option<&[u8]>>| {
        value.flatten().filter(|v| !v.is_empty()).map(|v| PathBuf::from(OsStr::from_bytes(v)))
    };
    let shared_worktree = path(shared.last("core", "worktree"));
    if !per_worktree {
        return Ok(Settings { bare: shared.is_true("core", "bare"), worktree: shared_worktree });
    }
    if let Some(worktree) = shared_worktree {
        let top = entry::real(&git_dir.join(worktree));
        return Err(Error::WorktreesMapped { config: git_dir.join("config"), top });
    }
    let own = configuration(&dir, "config.worktree")?;
    let bare = if own.last("core", "bare").is_some() { &own } else { &shared }.is_true("core", "bare");
    Ok(Settings { bare, worktree: path(own.last("core", "worktree")) })
}

fn configuration(dir: &Dir, name: &str) -> Result<config::File, Error> {
    let bytes = dir.read(name.as_ref(), POINTER_LIMIT)?.map(|content| content.bytes).unwrap_or_default();
    config::File::parse(&bytes).map_err(|source| Error::Config { path: dir.path().join(name), source })
}

fn utf8(path: &Path) -> Result<String, Error> {
    path.to_str().map(str::to_owned).ok_or_else(|| Error::NotUtf8 { path: path.to_owned() })
}

/// The name of the repository, for folders: that of the checkout or of the bare repository. A bare repository
/// with a hidden name (`project/.bare`) is called after the directory that it lies in.
fn place(found: &Found) -> Result<(PathBuf, String), Error> {
    let mut place = found.main_checkout.as_deref().unwrap_or(&found.common_dir);
    if found.main_checkout.is_none()
        && place.file_name().is_some_and(|name| name.as_bytes().starts_with(b"."))
        && let Some(parent) = place.parent().filter(|parent| parent.file_name().is_some())
    {
        place = parent;
    }
    let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
        return Err(Error::TopIsRoot);
    };
    let name = utf8(Path::new(name))?;
    let name = match found.main_checkout {
        None => name.strip_suffix(".git").filter(|rest| !rest.is_empty()).unwrap_or(&name).to_owned(),
        Some(_) => name,
    };
    Ok((parent.to_owned(), name))
}

fn finish(found: Found, session: &SessionId, roots: &[PathBuf]) -> Result<Repository, Error> {
    utf8(&found.common_dir)?;
    utf8(&found.git_dir)?;
    let (parent, name) = place(&found)?;
    let worktrees_root = parent.join(format!("{name}-worktrees"));
    utf8(&worktrees_root)?;
    let folder = session.worktree_folder(&found.common_dir);
    let hash = hex8(&[found.common_dir.as_os_str().as_bytes()]);
    let other_roots: Vec<_> = roots.iter().map(|root| root.join(format!("{}-{hash}", slug(&name)))).collect();
    let session_folders: Vec<_> =
        std::iter::once(&worktrees_root).chain(&other_roots).map(|root| root.join(&folder)).collect();
    let workspace_entry = match &found.checkout {
        Checkout::Linked { entry, .. } => Some(entry.as_str()),
        Checkout::Main { .. } | Checkout::Bare => None,
    };
    let entries = entries(&found.common_dir, &session_folders, workspace_entry)?;
    Ok(Repository {
        common_dir: found.common_dir,
        git_dir: found.git_dir,
        checkout: found.checkout,
        main_checkout: found.main_checkout,
        entries,
        worktrees_root,
        session_folders,
        other_roots,
    })
}

/// Reads the list of worktree entries, sorted by name. Of each only `gitdir` is read: thousands may be
/// registered, and a start must not feel them.
///
/// # Errors
/// [`Error::NotUtf8`] for an entry whose name no bundle can carry; an entry that is not readable as one is
/// listed without a worktree.
pub fn entries(
    common_dir: &Path,
    session_folders: &[PathBuf],
    workspace_entry: Option<&str>,
) -> Result<Vec<Entry>, Error> {
    let Some(worktrees) = Dir::open(common_dir)?.child("worktrees".as_ref())? else {
        return Ok(Vec::new());
    };
    let mut parents = Resolved::default();
    let mut entries = Vec::new();
    let mut names = Vec::new();
    worktrees.visit(|name, kind, _| names.push((name.to_owned(), kind)))?;
    for (name, kind) in names {
        let name = OsStr::from_bytes(name.to_bytes());
        if kind == Kind::File {
            continue;
        }
        let id = utf8(Path::new(name)).map_err(|_| Error::NotUtf8 { path: worktrees.path().join(name) })?;
        let worktree =
            if kind == Kind::Directory { worktree_of(&worktrees, &id, &mut parents) } else { None };
        let own = workspace_entry == Some(id.as_str())
            || worktree
                .as_ref()
                .is_some_and(|path| session_folders.iter().any(|f| path != f && path.starts_with(f)));
        // A path that no bundle can carry is as good as unknown, but it has an owner all the same.
        entries.push(Entry { id, worktree: worktree.filter(|path| path.to_str().is_some()), own });
    }
    entries.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(entries)
}

fn worktree_of(worktrees: &Dir, id: &str, parents: &mut Resolved) -> Option<PathBuf> {
    // The listing said that the entry is a directory; should somebody exchange it for a symlink right now, the
    // content that is then read is no more theirs than what they could have written into the entry.
    let content = worktrees.read(Path::new(id).join("gitdir").as_os_str(), POINTER_LIMIT).ok()??;
    let target = entry::gitdir_target(&worktrees.path().join(id), &content.bytes)?;
    Some(parents.real(target.parent()?))
}

/// Real paths of directories, each resolved once: a thousand worktrees lie in a handful of directories.
#[derive(Default)]
pub(crate) struct Resolved(HashMap<PathBuf, PathBuf>);

impl Resolved {
    pub(crate) fn real(&mut self, path: &Path) -> PathBuf {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return path.to_owned();
        };
        let parent = match self.0.get(parent) {
            Some(real) => real.clone(),
            None => {
                let real = entry::real(parent);
                self.0.insert(parent.to_owned(), real.clone());
                real
            }
        };
        let path = parent.join(name);
        match read::lstat(&path) {
            Ok(Some(stamp)) if stamp.kind() == Kind::Symlink => entry::real(&path),
            _ => path,
        }
    }
}

#[cfg(test)]
mod tests;
