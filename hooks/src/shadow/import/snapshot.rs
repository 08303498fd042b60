//! What the shadow has, checkout by checkout, each as it was at one moment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use codeoid_spec::git::Checkout;
use codeoid_spec::report::{Action, Finding};
use gix::ObjectId;
use gix::bstr::ByteSlice as _;
use gix::object;

use super::{Import, When, finding};
use crate::entry::{self};
use crate::read::{self, Dir, Stamp};
use crate::shadow::base::MAIN;
use crate::shadow::index::{self, Entries};
use crate::shadow::refs::{Refs, Target};
use crate::shadow::{Error, entries, unit, write};

/// A checkout of the shadow, as it was at one moment.
pub(super) struct Snapshot {
    pub(super) name: String,
    pub(super) relative: PathBuf,
    pub(super) dir: Dir,
    pub(super) head: Option<Target>,
    /// What the branch of its HEAD holds.
    branch: Option<ObjectId>,
    /// The index, where something differs from what both sides agreed on.
    pub(super) index: Result<Entries, index::Error>,
    pub(super) index_stamp: Option<Stamp>,
    pub(super) in_progress: Option<&'static str>,
    /// Where the worktree is, for one that the host does not have yet.
    pub(super) new: Option<PathBuf>,
    /// What `gitdir` has to say from now on, where the worktree was moved.
    pub(super) moved: Option<Vec<u8>>,
    /// Whether it is not what both sides agreed on.
    pub(super) touched: bool,
}

impl Import<'_> {
    /// The checkouts in the shadow that are the session's: the main one where the session works in it, and its
    /// worktrees, also those that the host does not know yet.
    pub(super) fn snapshots(&mut self) -> Result<Vec<Snapshot>, Error> {
        let mut list = Vec::new();
        if matches!(self.repository.checkout, Checkout::Main { .. }) && self.when == When::Ended {
            list.extend(self.snapshot(MAIN, PathBuf::new(), None)?);
        }
        let worktrees = match self.shadow.child("worktrees".as_ref()) {
            Ok(Some(worktrees)) => worktrees,
            _ => return Ok(list),
        };
        let workspace = match &self.repository.checkout {
            Checkout::Linked { entry, .. } => Some(entry.as_str()),
            _ => None,
        };
        let items = worktrees.list()?;
        // Each worktree has one entry: the one that its `.git` names. A second one would have the host's `git gc` take
        // one of them for a duplicate, and delete it.
        let mut claimed = BTreeMap::new();
        for item in &items {
            if let (Some(id), Ok(Some(dir))) = (item.name.to_str(), worktrees.child(&item.name))
                && let Some(worktree) =
                    entries::named(&dir, &self.repository.common_dir, id, &self.repository.session_folders)?
            {
                claimed.insert(worktree, id.to_owned());
            }
        }
        for (id, gitdir) in &self.base.own {
            let place = self.host.path().join("worktrees").join(id);
            let worktree = match worktrees.child(id.as_ref()) {
                // As the session has it: it may have been moved.
                Ok(Some(dir)) => entries::worktree(
                    &dir,
                    &self.repository.common_dir,
                    id,
                    &self.repository.session_folders,
                )?,
                // One that the session removed makes room at the turn's end.
                _ if self.when == When::Live => {
                    entry::gitdir_target(&place, &gitdir.0).and_then(|file| file.parent().map(Path::to_owned))
                }
                _ => None,
            };
            claimed.extend(worktree.map(|worktree| (worktree, id.clone())));
        }
        for item in items {
            let Some(id) = item.name.to_str() else { continue };
            if item.kind == read::Kind::Symlink {
                // The old name of an entry that got another one: see `reserve`.
                if self.when == When::Ended {
                    write::unlink(&worktrees, &item.name)?;
                }
                continue;
            }
            if entries::is_linked(&worktrees, id)? {
                continue;
            }
            let Ok(Some(dir)) = worktrees.child(&item.name) else { continue };
            let relative = Path::new("worktrees").join(id);
            if workspace == Some(id) {
                // The human works there, too.
                if self.when == When::Ended {
                    list.extend(self.snapshot(id, relative, None)?);
                }
                continue;
            }
            let folders = &self.repository.session_folders;
            let mut named = entries::named(&dir, &self.repository.common_dir, id, folders)?;
            if named.is_none()
                && self.when == When::Ended
                && let Some(worktree) = entries::worktree(&dir, &self.repository.common_dir, id, folders)?
                && claimed.get(&worktree).is_none_or(|owner| owner == id)
            {
                self.put_back_pointer(id, &worktree)?;
                named = entries::named(&dir, &self.repository.common_dir, id, folders)?;
            }
            match (named, self.base.own.contains_key(id)) {
                (Some(worktree), true) => {
                    let pointer = pointer_to(&worktree);
                    let place = self.repository.common_dir.join("worktrees").join(id);
                    let before =
                        self.base.own.get(id).and_then(|known| entry::gitdir_target(&place, &known.0));
                    let moved = before.is_some_and(|before| before != worktree.join(".git"));
                    let snapshot = self.snapshot(id, relative, None)?;
                    list.extend(
                        snapshot.map(|snapshot| Snapshot { moved: moved.then_some(pointer), ..snapshot }),
                    );
                }
                (Some(worktree), false) if claimed.get(&worktree).is_some_and(|owner| owner != id) => {}
                (Some(worktree), false) => list.extend(self.snapshot(id, relative, Some(worktree))?),
                // Its folder is gone, or it was moved out of the session's.
                (None, _) => {}
            }
        }
        Ok(list)
    }

    /// Makes the `.git` of one of the session's worktrees what git makes it: it was pointed elsewhere, and git on the
    /// host would follow it.
    pub(super) fn put_back_pointer(&mut self, id: &str, worktree: &Path) -> Result<(), Error> {
        let Ok(dir) = Dir::open(worktree) else { return Ok(()) };
        let Some(stamp) = dir.lstat(".git")? else { return Ok(()) };
        if stamp.kind() == read::Kind::Directory {
            // A repository of its own, whatever it is; it may be somebody's work.
            write::rename(&dir, ".git".as_ref(), "git-dir-of-the-session".as_ref())?;
        }
        let pointer = entry::gitfile(&self.host.path().join("worktrees").join(id));
        write::put(&dir, ".git".as_ref(), &pointer)?;
        let detail =
            "the .git of the session's worktree pointed elsewhere; it points to the worktree's entry again";
        let path = worktree.join(".git");
        let action = Action::Restored;
        let found = finding("gitfile-changed", Some(id), &path, detail);
        self.done.findings.push(Finding { action, ..found });
        Ok(())
    }

    pub(super) fn snapshot(
        &self,
        name: &str,
        relative: PathBuf,
        new: Option<PathBuf>,
    ) -> Result<Option<Snapshot>, Error> {
        let dir = if name == MAIN { self.shadow.child(".".as_ref()) } else { self.shadow.beneath(&relative) };
        let Ok(Some(dir)) = dir else { return Ok(None) };
        // git writes the index, the branch and HEAD one after the other.
        for _ in 0..50 {
            let before = self.moment(&dir)?;
            let locked = self.when == When::Live && is_locked(&dir)?;
            let touched = new.is_some() || self.is_touched(name, &dir)?;
            let index = if touched {
                Entries::read(&dir, "index".as_ref(), self.kind, false)
            } else {
                Ok(Entries::empty(self.kind))
            };
            if !locked && self.moment(&dir)? == before {
                let (head, branch, index_stamp, in_progress) = before;
                let name = name.to_owned();
                return Ok(Some(Snapshot {
                    name,
                    relative,
                    dir,
                    head,
                    branch,
                    index,
                    index_stamp,
                    in_progress,
                    new,
                    moved: None,
                    touched,
                }));
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        Ok(None)
    }

    /// What git changes one after the other.
    #[expect(clippy::type_complexity, reason = "what has to be the same at two moments")]
    fn moment(
        &self,
        dir: &Dir,
    ) -> Result<(Option<Target>, Option<ObjectId>, Option<Stamp>, Option<&'static str>), Error> {
        let head = unit::head(dir, self.kind)?;
        let branch = match &head {
            Some(Target::Symbolic(name)) => crate::shadow::read_ref(&self.shadow, name.as_bstr(), self.kind)?,
            _ => None,
        };
        Ok((head, branch, dir.lstat("index")?, unit::in_progress(dir)?))
    }

    /// Whether a checkout still is what the snapshot says, and the refs that were read belong to it. Of git's steps
    /// (the index, then the branch, then HEAD) the first alone would undo or foretell a commit on the host.
    pub(super) fn is_current(&self, snapshot: &Snapshot, ours: &Refs) -> Result<bool, Error> {
        let then = (snapshot.head.clone(), snapshot.branch, snapshot.index_stamp, snapshot.in_progress);
        let read = match &snapshot.head {
            Some(Target::Symbolic(name)) => ours.object(name.as_bstr()),
            _ => None,
        };
        Ok(read == snapshot.branch && !is_locked(&snapshot.dir)? && self.moment(&snapshot.dir)? == then)
    }

    pub(super) fn is_touched(&self, name: &str, dir: &Dir) -> Result<bool, Error> {
        if crate::shadow::touched(self.place, &self.base, name, dir, self.kind)? {
            return Ok(true);
        }
        let Some(Target::Symbolic(branch)) = unit::head(dir, self.kind)? else { return Ok(false) };
        let (now, base) = (
            crate::shadow::read_ref(&self.shadow, branch.as_bstr(), self.kind)?,
            self.base_refs.object(branch.as_bstr()),
        );
        Ok(now != base)
    }

    /// Whether a unit is that of the checkout that the session works in, where others work, too.
    pub(super) fn is_workspace(&self, name: &str) -> bool {
        match &self.repository.checkout {
            Checkout::Linked { entry, .. } => entry == name,
            Checkout::Main { .. } => name == MAIN,
            Checkout::Bare => false,
        }
    }

    /// Own entries that are gone in the shadow.
    pub(super) fn removed(&self, snapshots: &[Snapshot]) -> Vec<String> {
        if self.when == When::Live {
            return Vec::new();
        }
        let workspace = match &self.repository.checkout {
            Checkout::Linked { entry, .. } => Some(entry.as_str()),
            _ => None,
        };
        self.base
            .own
            .keys()
            .filter(|id| {
                workspace != Some(id.as_str())
                    && !snapshots.iter().any(|snapshot| snapshot.name == **id)
                    && self
                        .shadow
                        .lstat(Path::new("worktrees").join(id).as_os_str())
                        .is_ok_and(|stamp| stamp.is_none())
            })
            .cloned()
            .collect()
    }

    /// Objects that the index names and that of the base did not, with the types that they must have.
    pub(super) fn new_objects(&self, snapshot: &Snapshot) -> Result<Vec<(ObjectId, object::Kind)>, Error> {
        let Ok(ours) = &snapshot.index else { return Ok(Vec::new()) };
        let base = self.base.index(self.place, &snapshot.name, self.kind)?;
        Ok(ours.objects_since(&base).collect())
    }

    /// Why an index must not come as it is, if so: `.gitmodules` names repositories and directories, and is judged only
    /// as part of a commit. The commit is on the host.
    pub(super) fn uncommitted_modules(
        &self,
        snapshot: &Snapshot,
        head: &Target,
        ours: &Refs,
    ) -> Result<bool, Error> {
        let Ok(index) = &snapshot.index else { return Ok(false) };
        let name = b".gitmodules".as_bstr();
        let Some(entry) = index.get(name) else { return Ok(false) };
        let base = self.base.index(self.place, &snapshot.name, self.kind)?;
        if base.get(name).is_some_and(|known| known.id() == entry.id()) {
            return Ok(false);
        }
        let commit = match head {
            Target::Object(id) => Some(*id),
            Target::Symbolic(branch) => ours.object(branch.as_bstr()),
        };
        let Some(commit) = commit else { return Ok(true) };
        let found = self.git.run(["rev-parse", "--verify", "-q", &format!("{commit}:.gitmodules")], b"");
        Ok(found.map_or(true, |id| id.trim_ascii() != entry.id().to_string().as_bytes()))
    }
}

/// Whether git is changing a checkout.
fn is_locked(dir: &Dir) -> Result<bool, read::Error> {
    Ok(dir.lstat("index.lock")?.is_some() || dir.lstat("HEAD.lock")?.is_some())
}

/// The content of an entry's `gitdir`.
pub(super) fn pointer_to(worktree: &Path) -> Vec<u8> {
    let mut pointer = worktree.join(".git").into_os_string().into_encoded_bytes();
    pointer.push(b'\n');
    pointer
}
