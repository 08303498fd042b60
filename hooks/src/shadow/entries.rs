//! Worktree entries in a shadow (git-worktree(1) "DETAILS"). The session's own are private copies that come back by
//! value. Those of others are directories of links to the host's entries, which the sandbox sees read-only: always
//! true, and nothing that is written there reaches anybody.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::Error;
use super::build::Build;
use super::write;
use crate::entry::{self, COMMONDIR};
use crate::layout::Resolved;
use crate::read::{self, Dir, Kind, POINTER_LIMIT};
use crate::tree;

/// What a linked entry has of the host's.
const LINKED: [&str; 3] = ["gitdir", "commondir", "index"];
/// What an own entry has besides its unit and pointers.
const OWN_FILES: [&str; 1] = ["config.worktree"];

/// Copies an own entry of the host into the shadow, without its unit; returns the content of its `gitdir`.
pub(crate) fn carry(host: &Dir, shadow: &Dir) -> Result<Vec<u8>, Error> {
    let gitdir =
        host.read("gitdir".as_ref(), POINTER_LIMIT)?.map(|content| content.bytes).unwrap_or_default();
    write::put(shadow, "gitdir".as_ref(), &gitdir)?;
    write::put(shadow, "commondir".as_ref(), COMMONDIR)?;
    for name in OWN_FILES {
        write::copy(host, name.as_ref(), shadow)?;
    }
    if let Some(info) = host.child("info".as_ref())? {
        write::copy(&info, "sparse-checkout".as_ref(), &write::directory(shadow, "info".as_ref())?)?;
    }
    Ok(gitdir)
}

/// Makes the shadow's list of entries follow the host's: foreign ones linked, those that are gone removed.
pub(crate) fn follow(build: &mut Build<'_>) -> Result<(), Error> {
    let foreign: BTreeSet<&str> =
        build.repository.entries.iter().filter(|entry| !entry.own).map(|entry| entry.id.as_str()).collect();
    let own: BTreeSet<&str> =
        build.repository.entries.iter().filter(|entry| entry.own).map(|entry| entry.id.as_str()).collect();
    let there = build.shadow.child("worktrees".as_ref());
    let worktrees = match there {
        Ok(Some(there)) => there,
        Ok(None) | Err(_) if !foreign.is_empty() => write::directory(&build.shadow, "worktrees".as_ref())?,
        _ => return Ok(()),
    };
    let mut seen = BTreeSet::new();
    for item in worktrees.list()? {
        let Some(id) = item.name.to_str() else { continue };
        seen.insert(id.to_owned());
        if own.contains(id) {
            continue;
        }
        if item.kind == Kind::Symlink && !foreign.contains(id) {
            write::unlink(&worktrees, &item.name)?;
            continue;
        }
        let linked = is_linked(&worktrees, id)?;
        if foreign.contains(id) {
            if linked {
                copy_head(build, &worktrees, id)?;
            } else if !is_sessions(build, &worktrees, id)? {
                // What the session made of its view of somebody else's entry.
                link(build, &worktrees, id)?;
            }
        } else if linked {
            tree::remove(&worktrees, &item.name)?;
        } else if build.base.own.contains_key(id) {
            // The human removed it. What only the session had of it was brought over at its turn's end.
            tree::remove(&worktrees, &item.name)?;
            build.base.own.remove(id);
            build.base.units.remove(id);
        }
    }
    for id in foreign.iter().filter(|id| !seen.contains(**id)) {
        link(build, &worktrees, id)?;
    }
    let gone: Vec<String> = build.base.own.keys().filter(|id| !own.contains(id.as_str())).cloned().collect();
    for id in gone {
        build.base.own.remove(&id);
        build.base.units.remove(&id);
    }
    Ok(())
}

/// Whether an entry of a shadow is somebody else's.
pub(crate) fn is_linked(worktrees: &Dir, id: &str) -> Result<bool, Error> {
    let pointer = worktrees.lstat(Path::new(id).join("gitdir").as_os_str())?;
    Ok(pointer.is_some_and(|stamp| stamp.kind() == Kind::Symlink))
}

/// Whether an entry of a foreign one's name is the session's own, which could not be imported under that name yet.
fn is_sessions(build: &Build<'_>, worktrees: &Dir, id: &str) -> Result<bool, Error> {
    let Ok(Some(dir)) = worktrees.child(id.as_ref()) else { return Ok(false) };
    Ok(named(&dir, &build.repository.common_dir, id, &build.repository.session_folders)?.is_some())
}

fn link(build: &mut Build<'_>, worktrees: &Dir, id: &str) -> Result<(), Error> {
    tree::remove(worktrees, id.as_ref())?;
    let dir = write::directory(worktrees, id.as_ref())?;
    for name in LINKED {
        write::link(&dir, name.as_ref(), &build.entry_link(id, name))?;
    }
    build.base.copied.remove(&head_key(id));
    copy_head(build, worktrees, id)
}

fn head_key(id: &str) -> String {
    format!("worktrees/{id}/HEAD")
}

/// Copies HEAD of somebody else's entry, if it is another file than when it was last copied.
fn copy_head(build: &mut Build<'_>, worktrees: &Dir, id: &str) -> Result<(), Error> {
    let relative = Path::new("worktrees").join(id);
    let stamp = build.host.lstat(relative.join("HEAD").as_os_str())?;
    let key = head_key(id);
    if stamp.is_some() && build.base.copied.get(&key) == stamp.as_ref() {
        return Ok(());
    }
    if let (Ok(Some(from)), Ok(Some(to))) = (build.host.beneath(&relative), worktrees.child(id.as_ref())) {
        write::copy(&from, "HEAD".as_ref(), &to)?;
        if let Some(stamp) = stamp {
            build.base.copied.insert(key, stamp);
        }
    }
    Ok(())
}

/// Whether git itself could have given an entry this name (`sanitize_refname_component()` in its refs.c): it is a part
/// of the name of a ref, `worktrees/<id>/HEAD`, and git on the host looks after no commit by any other.
pub(crate) fn is_plain(id: &str) -> bool {
    let name = format!("refs/heads/{id}");
    // Room for a number behind it.
    id.len() <= 200 && !id.starts_with('-') && gix::validate::reference::name(name.as_str().into()).is_ok()
}

/// Where the worktree of an entry that a session has made is: its `gitdir` names a `.git` in one of the session's
/// folders, in a directory that is there. `None`: it is none that may come to the host.
pub(crate) fn worktree(
    entry: &Dir,
    common_dir: &Path,
    id: &str,
    folders: &[PathBuf],
) -> Result<Option<PathBuf>, read::Error> {
    let content = match entry.read("gitdir".as_ref(), POINTER_LIMIT) {
        Ok(Some(content)) => content.bytes,
        Ok(None) | Err(read::Error::NotRegular { .. } | read::Error::TooBig { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let place = common_dir.join("worktrees").join(id);
    let Some(git_file) = entry::gitdir_target(&place, &content) else { return Ok(None) };
    let Some(worktree) = git_file.parent() else { return Ok(None) };
    let real = Resolved::default().real(worktree);
    let inside = folders.iter().any(|folder| real != *folder && real.starts_with(folder));
    // No component may be a symlink: it could be turned elsewhere later.
    let plain = real == worktree && git_file.to_str().is_some() && Dir::open(&real).is_ok();
    Ok((inside && plain).then_some(real))
}

/// [`worktree`], where its `.git` points back.
pub(crate) fn named(
    entry: &Dir,
    common_dir: &Path,
    id: &str,
    folders: &[PathBuf],
) -> Result<Option<PathBuf>, read::Error> {
    let Some(real) = worktree(entry, common_dir, id, folders)? else { return Ok(None) };
    let Ok(dir) = Dir::open(&real) else { return Ok(None) };
    let Ok(Some(pointer)) = dir.read(".git".as_ref(), POINTER_LIMIT) else { return Ok(None) };
    let back = entry::gitfile_path(&pointer.bytes).map(|path| entry::normal(&real.join(path)));
    Ok((back.as_deref() == Some(&common_dir.join("worktrees").join(id))).then_some(real))
}

#[cfg(test)]
mod tests {
    use super::is_plain;

    #[test]
    fn only_names_that_git_gives_are_plain() {
        for id in ["w", "é", "a.b", "@", "HEAD", "main1"] {
            assert!(is_plain(id), "{id}");
        }
        let long = "n".repeat(201);
        for id in ["a b", "x.lock", "-x", "a\nb", ".hidden", "a..b", "a~b", "@{x}", "a\\b", "\x1b[31m", &long]
        {
            assert!(!is_plain(id), "{id}");
        }
    }
}
