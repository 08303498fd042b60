//! Git dirs of submodules: `modules/<name>` in the common dir or in a worktree's entry. A name may have
//! slashes, and a submodule may have submodules.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::config;
use crate::entry;
use crate::read::{self, Dir, Kind, POINTER_LIMIT};

/// The most git dirs that are looked for. A repository with more of them is not one.
const MOST: usize = 10_000;
/// The deepest directory below `modules` that is looked into.
const DEPTH: usize = 32;

/// All git dirs below a git dir's or an entry's `modules`, sorted, outer before inner.
pub(crate) fn discover(git_dir: &Path) -> Result<Vec<PathBuf>, read::Error> {
    let mut found = Vec::new();
    let mut waiting = vec![(git_dir.join("modules"), 0)];
    while let Some((path, depth)) = waiting.pop() {
        let dir = match Dir::open(&path) {
            Ok(dir) => dir,
            // None of that name, or a symlink, which is found as one.
            Err(read::Error::NotDirectory { .. }) => continue,
            Err(error) if error.errno() == Some(nix::errno::Errno::ENOENT) => continue,
            Err(error) => return Err(error),
        };
        if depth > 0 && is_git_dir(&dir)? {
            if found.len() == MOST {
                return Err(read::Error::TooMany { path });
            }
            waiting.push((path.join("modules"), depth + 1));
            found.push(path);
            continue;
        }
        if depth == DEPTH {
            continue;
        }
        for item in dir.list()? {
            if item.kind == Kind::Directory {
                waiting.push((path.join(&item.name), depth + 1));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Whether it is a git dir, or would be taken for one.
fn is_git_dir(dir: &Dir) -> Result<bool, read::Error> {
    Ok(dir.lstat("HEAD")?.is_some() && (dir.lstat("objects")?.is_some() || dir.lstat("commondir")?.is_some()))
}

/// The checkout of a submodule, by its `core.worktree`; `None` where it has none or where it does not say.
pub(crate) fn checkout(git_dir: &Dir) -> Result<Option<PathBuf>, read::Error> {
    let content = match git_dir.read("config".as_ref(), POINTER_LIMIT) {
        Ok(Some(content)) => content,
        Ok(None) | Err(read::Error::NotRegular { .. } | read::Error::TooBig { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let file = config::File::parse(&content.bytes).unwrap_or_default();
    let worktree = file.last("core", "worktree").flatten().filter(|path| !path.is_empty());
    Ok(worktree.map(|path| entry::real(&git_dir.path().join(OsStr::from_bytes(path)))))
}
