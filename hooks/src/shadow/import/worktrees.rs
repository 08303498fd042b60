//! Worktree entries on their way to the host: names are reserved, moves followed, removals repeated.

use std::path::{Path, PathBuf};

use super::Import;
use super::snapshot::Snapshot;
use crate::bytes::Bytes;
use crate::entry::{self};
use crate::read::{Dir, POINTER_LIMIT};
use crate::shadow::index::Entries;
use crate::shadow::{Error, entries, unit, write};
use crate::tree;

impl Import<'_> {
    /// Whether an entry of the host names this worktree.
    pub(super) fn is_named(&self, worktree: &Path, id: &str) -> Result<bool, Error> {
        let Some(worktrees) = self.host.child("worktrees".as_ref())? else { return Ok(false) };
        for item in worktrees.list()? {
            let Ok(Some(dir)) = worktrees.child(&item.name) else { continue };
            let begun = item.name == id && self.is_begun(&dir, worktree)?;
            if !begun && named(&dir).as_deref() == Some(worktree) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether an entry of the host is one that a killed import of this session began for this worktree: it is locked for
    /// the session, and names the worktree or nothing yet.
    pub(super) fn is_begun(&self, entry: &Dir, worktree: &Path) -> Result<bool, Error> {
        let locked = entry.read("locked".as_ref(), POINTER_LIMIT).ok().flatten();
        let ours =
            locked.is_some_and(|content| content.bytes == crate::shadow::locked(self.session).as_bytes());
        Ok(ours && (entry.lstat("gitdir")?.is_none() || named(entry).as_deref() == Some(worktree)))
    }

    /// Makes the host's entry for a worktree that the session has made: a directory of that name is the reservation.
    /// Where the name is taken, the session's entry gets another one, in the shadow and in the worktree's `.git`.
    pub(super) fn reserve(
        &mut self,
        snapshot: &Snapshot,
        worktree: &Path,
    ) -> Result<Option<(Dir, String)>, Error> {
        let worktrees = write::directory(&self.host, "worktrees".as_ref())?;
        let stem = if entries::is_plain(&snapshot.name) {
            snapshot.name.clone()
        } else {
            codeoid_spec::id::slug(&snapshot.name)
        };
        let mut id = stem.clone();
        for number in 0..1000 {
            if number > 0 {
                id = format!("{stem}{number}");
            }
            if id != snapshot.name
                && self.shadow.lstat(Path::new("worktrees").join(&id).as_os_str())?.is_some()
            {
                continue;
            }
            match nix::sys::stat::mkdirat(
                &worktrees,
                id.as_str(),
                nix::sys::stat::Mode::from_bits_truncate(0o755),
            ) {
                Ok(()) => break,
                Err(nix::errno::Errno::EEXIST) => {
                    if let Some(there) = worktrees.child(id.as_ref())?
                        && self.is_begun(&there, worktree)?
                    {
                        break;
                    }
                }
                Err(errno) => {
                    return Err(crate::os::OsError::new("mkdirat", worktrees.path().join(&id), errno).into());
                }
            }
            if number == 999 {
                return Ok(None);
            }
        }
        let Some(dir) = worktrees.child(id.as_ref())? else { return Ok(None) };
        // Before anything else: git prunes what has no lock and no place.
        write::put(&dir, "locked".as_ref(), crate::shadow::locked(self.session).as_bytes())?;
        if id != snapshot.name {
            let ours = self.shadow.child("worktrees".as_ref())?;
            let Some(ours) = ours else { return Ok(None) };
            write::rename(&ours, snapshot.name.as_ref(), id.as_ref())?;
            // A git that is at work in there, perhaps still making it, knows it by the old name.
            write::link(&ours, snapshot.name.as_ref(), Path::new(&id))?;
            let pointer = entry::gitfile(&self.host.path().join("worktrees").join(&id));
            write::put(&Dir::open(worktree)?, ".git".as_ref(), &pointer)?;
        }
        Ok(Some((dir, id)))
    }

    /// Has the host's entry name the place that a worktree was moved to, unless the host moved it, too.
    pub(super) fn follow_move(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let Some(pointer) = &snapshot.moved else { return Ok(()) };
        let Ok(Some(host)) = self.host.beneath(&snapshot.relative) else { return Ok(()) };
        let there =
            host.read("gitdir".as_ref(), POINTER_LIMIT)?.map(|content| content.bytes).unwrap_or_default();
        let id = &snapshot.name;
        if there != *pointer && self.base.own.get(id).is_none_or(|known| known.0 != there) {
            return Ok(());
        }
        write::put(&host, "gitdir".as_ref(), pointer)?;
        self.base.own.insert(id.clone(), Bytes(pointer.clone()));
        self.done.promoted.push(format!("worktree {id} moved"));
        Ok(())
    }

    /// Removes the host's entry of a worktree that the session removed, if the host did not change it meanwhile.
    /// `replaced`: the session has another one for the same directory.
    pub(super) fn remove_entry(&mut self, id: &str, replaced: &[&Path]) -> Result<(), Error> {
        let Some(worktrees) = self.host.child("worktrees".as_ref())? else { return Ok(()) };
        let Some(dir) = worktrees.child(id.as_ref())? else {
            self.base.own.remove(id);
            self.base.units.remove(id);
            return Ok(());
        };
        let base = self.base.units.get(id).cloned().unwrap_or_default();
        let gitdir =
            dir.read("gitdir".as_ref(), POINTER_LIMIT)?.map(|content| content.bytes).unwrap_or_default();
        let place = dir.path().to_owned();
        let target = entry::gitdir_target(&place, &gitdir);
        let worktree = target.as_deref().and_then(Path::parent);
        let there = worktree.is_some_and(|worktree| worktree.exists() && !replaced.contains(&worktree));
        let head = unit::head(&dir, self.kind)?.map(|head| head.text()).unwrap_or_default();
        let index = Entries::read(&dir, "index".as_ref(), self.kind, true)?;
        let same = head == base.head.0
            && unit::in_progress(&dir)?.is_none()
            && index.same(&self.base.index(self.place, id, self.kind)?);
        let why = if there {
            "its directory is still there"
        } else if !same {
            "it was changed on the host meanwhile"
        } else if !self.spare_detached(id, None)? {
            "others have commits there that could not be kept"
        } else {
            tree::remove(&worktrees, id.as_ref())?;
            // git, too, removes the directory with the last of them.
            let _ = nix::unistd::unlinkat(&self.host, "worktrees", nix::unistd::UnlinkatFlags::RemoveDir);
            self.base.own.remove(id);
            self.base.units.remove(id);
            self.done.promoted.push(format!("worktree {id} removed"));
            return Ok(());
        };
        let detail = format!("the session removed worktree {id}, and the host's entry stays: {why}");
        self.report("conflict", Some(id), &place, id, why, &detail);
        Ok(())
    }
}

/// The worktree that an entry names.
fn named(entry: &Dir) -> Option<PathBuf> {
    let content = entry.read("gitdir".as_ref(), POINTER_LIMIT).ok()??;
    entry::gitdir_target(entry.path(), &content.bytes)?.parent().map(Path::to_owned)
}
