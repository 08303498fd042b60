//! Repositories inside a checkout that run something as soon as somebody's git looks at them: a nested
//! `.git`, or a bare repository in a directory of the checkout. They are inherent in a tree that a turn can
//! write, so they are only named; and only as many directories are looked at as cost next to nothing.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::baseline::since;
use super::case::Case;
use super::check::is_submodule;
use super::fault::Fault;
use super::keys;
use crate::bytes::Bytes;
use crate::entry;
use crate::read::{self, Dir, Kind, POINTER_LIMIT};

/// How many directories are looked at.
const DIRECTORIES: usize = 512;
/// How deep, below the top of a checkout.
const DEPTH: usize = 4;

/// Looks for planted repositories below these directories.
pub(super) fn judge(case: &Case<'_>, tops: &[&Path], faults: &mut Vec<Fault>) -> Result<(), read::Error> {
    let mut waiting: VecDeque<(PathBuf, usize)> = tops.iter().map(|top| ((*top).to_owned(), 0)).collect();
    let mut looked_at = 0;
    while let Some((path, depth)) = waiting.pop_front() {
        looked_at += 1;
        if looked_at > DIRECTORIES {
            return Ok(());
        }
        // What a turn removes or forbids meanwhile is not there for anybody's git either.
        let Ok(dir) = Dir::open(&path) else { continue };
        let Ok(items) = dir.list() else { continue };
        let has = |name: &str| items.iter().any(|item| item.name == name);
        if depth > 0 {
            let git_dir = if has(".git") {
                nested(&dir)?
            } else if has("HEAD") && has("objects") && has("refs") {
                Some(path.clone())
            } else {
                None
            };
            if let Some(git_dir) = git_dir
                && !git_dir.starts_with(&case.baseline.repository.common_dir)
                && let Some(why) = armed(case, &git_dir)?
            {
                let detail = format!("git that runs in this directory or below it {why}");
                faults.push(Fault::reported("repository-planted", &path, detail));
            }
        }
        if depth < DEPTH {
            let below = items.into_iter().filter(|item| item.kind == Kind::Directory && item.name != ".git");
            waiting.extend(below.map(|item| (path.join(item.name), depth + 1)));
        }
    }
    Ok(())
}

/// Judges nested repositories that were in an index before the turn and are not submodules with a git dir of
/// their own: `git status` goes into them.
pub(super) fn judge_links(
    case: &Case<'_>,
    git_dir: &Dir,
    top: &Path,
    links: &[Bytes],
    faults: &mut Vec<Fault>,
) -> Result<(), read::Error> {
    for link in links {
        let path = top.join(link.path());
        let dot_git = path.join(".git");
        // A submodule's pointer is remembered and judged with the others.
        let remembered = case.baseline.pointers.iter().any(|pointer| pointer.path == dot_git);
        if remembered || is_submodule(&dot_git, case, git_dir)? {
            continue;
        }
        if let Ok(dir) = Dir::open(&path)
            && let Some(git_dir) = nested(&dir)?
            && let Some(why) = armed(case, &git_dir)?
        {
            let detail = format!("`git status` looks into this directory, and git there {why}");
            faults.push(Fault::reported("repository-planted", &path, detail));
        }
    }
    Ok(())
}

/// The git dir that a nested `.git` is or names.
fn nested(dir: &Dir) -> Result<Option<PathBuf>, read::Error> {
    match dir.lstat(".git")?.map(|stamp| stamp.kind()) {
        Some(Kind::Directory) => Ok(Some(dir.path().join(".git"))),
        Some(Kind::File) => {
            let content = match dir.read(".git".as_ref(), POINTER_LIMIT) {
                Ok(Some(content)) => content.bytes,
                _ => return Ok(None),
            };
            Ok(entry::gitfile_path(&content).map(|to| entry::real(&dir.path().join(to))))
        }
        Some(Kind::Symlink) => Ok(dir.path().join(".git").canonicalize().ok()),
        _ => Ok(None),
    }
}

/// What git would run in this git dir, if the turn has put that there.
fn armed(case: &Case<'_>, git_dir: &Path) -> Result<Option<String>, read::Error> {
    let Ok(dir) = Dir::open(git_dir) else { return Ok(None) };
    let new = |stamp: Option<read::Stamp>| stamp.is_some_and(|stamp| since(&stamp, case.taken()));
    if new(dir.lstat("commondir")?) {
        return Ok(Some("uses another repository's configuration (commondir)".to_owned()));
    }
    for name in ["config", "config.worktree"] {
        let Ok(Some(content)) = dir.read(OsStr::new(name), POINTER_LIMIT) else { continue };
        if !new(Some(content.stamp)) {
            continue;
        }
        let context = keys::Context { writable: &[], git_dir, tops: &[PathBuf::from("/")], reftable: true };
        let verdict = keys::judge_one(None, Some(&content.bytes), &content.bytes, &context);
        let alarming = verdict.undone.iter().find(|what| !what.starts_with("core.bare"));
        if let Some(what) = alarming {
            return Ok(Some(format!("obeys its {name}: {what}")));
        }
    }
    if let Ok(Some(hooks)) = dir.child("hooks".as_ref()) {
        let hook = hooks.list()?.into_iter().find(|item| {
            item.kind != Kind::Directory
                && Path::new(&item.name).extension() != Some(OsStr::new("sample"))
                && new(hooks.lstat(&item.name).ok().flatten())
        });
        if let Some(hook) = hook {
            return Ok(Some(format!("runs its hook {}", hook.name.to_string_lossy())));
        }
    }
    Ok(None)
}
