//! What every judgement needs to know besides the git dir at hand.

use std::path::{Path, PathBuf};

use codeoid_spec::git::{Checkout, Entry};

use super::baseline::{Baseline, since};
use super::fault::Fault;
use super::survey::Survey;
use crate::entry::BackPointer;
use crate::process::{Answer, git_at_work, holder};
use crate::read::{self, Dir, Stamp};

/// How long after the first look a lock that nobody seems to need is looked at again.
pub(super) const SECOND_LOOK: std::time::Duration = std::time::Duration::from_millis(50);

/// How much is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// What has changed since the baseline: at the end of a turn.
    Changed,
    /// Every worktree entry, changed or not: `codeoid-shim check`, and when a session is closed.
    Everything,
}

/// A baseline, and what follows from it.
pub(super) struct Case<'a> {
    pub(super) baseline: &'a Baseline,
    pub(super) depth: Depth,
    /// All that the turn can write.
    pub(super) writable: Vec<PathBuf>,
    /// The URLs of the repository's remotes before the turn.
    pub(super) urls: Vec<Vec<u8>>,
    /// The length of object ids, in bytes.
    pub(super) hash: usize,
}

impl<'a> Case<'a> {
    pub(super) fn new(baseline: &'a Baseline, depth: Depth) -> Self {
        let repository = &baseline.repository;
        let mut writable = baseline.writable.clone();
        writable.extend(repository.session_folders.iter().cloned());
        match &repository.checkout {
            Checkout::Main { top } | Checkout::Linked { top, .. } => writable.push(top.clone()),
            Checkout::Bare => {}
        }
        writable.push(repository.common_dir.clone());
        let hash = baseline.areas.first().map_or(20, super::area::hash_of);
        let config = baseline.areas.first().and_then(|area| area.files.get("config"));
        let urls = config.map_or(Vec::new(), |saved| super::keys::remote_urls(&saved.content.0));
        Self { baseline, depth, writable, urls, hash }
    }

    /// The tops of all checkouts.
    pub(super) fn tops(&self) -> Vec<PathBuf> {
        let repository = &self.baseline.repository;
        let mut tops: Vec<PathBuf> = repository.main_checkout.iter().cloned().collect();
        if let Checkout::Linked { top, .. } = &repository.checkout {
            tops.push(top.clone());
        }
        tops.extend(repository.session_folders.iter().cloned());
        let entries = self.baseline.areas.first().map(|area| area.entries.as_slice()).unwrap_or_default();
        tops.extend(entries.iter().filter_map(|record| record.worktree.clone()));
        // Those that were made meanwhile, if the worktree says so, too.
        let now = crate::layout::entries(&repository.common_dir, &[], None).unwrap_or_default();
        for Entry { id, worktree, .. } in now {
            let Some(worktree) = worktree.filter(|worktree| !tops.contains(worktree)) else { continue };
            let path = repository.common_dir.join("worktrees").join(id);
            let agrees = |stamp| crate::entry::back_pointer(&worktree.join(".git"), &stamp);
            let stamp = read::lstat(&path).ok().flatten();
            if stamp.is_some_and(|stamp| agrees(stamp).is_ok_and(|back| back == BackPointer::Agrees)) {
                tops.push(worktree);
            }
        }
        tops
    }

    pub(super) fn taken(&self) -> i64 {
        self.baseline.taken
    }

    /// Judges lock files that were left behind: new ones that nobody holds open, while no git works in any
    /// checkout. (A `git commit -a` whose editor is open has closed its `index.lock` and still needs it.)
    pub(super) fn locks(
        &self,
        dir: &Dir,
        survey: &Survey,
        entry: Option<&str>,
        faults: &mut Vec<Fault>,
    ) -> Result<(), read::Error> {
        for path in &survey.locks {
            let Some(stamp) = dir.lstat(path)? else { continue };
            if !since(&stamp, self.taken()) {
                continue;
            }
            let full = dir.path().join(path);
            let mut busy = self.who_holds(&stamp);
            if busy == Answer::Nobody {
                // A git that has just begun or is just ending is not seen at every instant.
                std::thread::sleep(SECOND_LOOK);
                match dir.lstat(path)? {
                    Some(now) if now == stamp => busy = self.who_holds(&stamp),
                    _ => continue,
                }
            }
            let fault = match busy {
                Answer::Somebody(_) => continue,
                Answer::Nobody if stamp.uid == nix::unistd::geteuid().as_raw() => {
                    let detail = "this lock was left behind and nobody holds it";
                    let step = super::fault::Step::Unlock { path: full.clone(), stamp };
                    Fault::removed("lock-left-behind", &full, detail).step(step)
                }
                Answer::Nobody | Answer::Unknown => {
                    let detail = "this lock appeared during the turn; if no git is running, remove it";
                    Fault::reported("lock-left-behind", &full, detail)
                }
            };
            faults.push(fault.entry(entry));
        }
        Ok(())
    }

    /// Who may still need a lock: whoever has it open, and any git that works on this repository.
    fn who_holds(&self, stamp: &Stamp) -> Answer {
        match holder(stamp.dev, stamp.ino) {
            Answer::Nobody => self.who_works(),
            other => other,
        }
    }

    /// The git that works on this repository, in worktrees that were made meanwhile too.
    fn who_works(&self) -> Answer {
        let repository = &self.baseline.repository;
        let mut places = self.tops();
        places.push(repository.common_dir.clone());
        places.push(repository.worktrees_root.clone());
        places.extend(repository.other_roots.iter().cloned());
        git_at_work(&places.iter().map(PathBuf::as_path).collect::<Vec<_>>())
    }

    /// Whether some git works on this repository now.
    pub(super) fn git_works(&self) -> bool {
        matches!(self.who_works(), Answer::Somebody(_))
    }

    /// Judges what a survey has found, except locks: `known` tells what was there before the turn.
    pub(super) fn oddities(
        &self,
        dir: &Dir,
        survey: &Survey,
        entry: Option<&str>,
        known: impl Fn(&Path, Option<&Path>) -> bool,
        faults: &mut Vec<Fault>,
    ) {
        for (path, target) in &survey.links {
            if known(path, Some(target)) || is_symbolic_head(path, target) {
                continue;
            }
            let full = dir.path().join(path);
            let lost = match path.to_str() {
                Some("index") => "; `git reset` rebuilds the index",
                Some("packed-refs") => "; branches that were packed come back from the reflog",
                _ => "",
            };
            let detail = format!("git makes no symlink here; it pointed to {}{lost}", target.display());
            faults.push(Fault::removed("symlink-planted", &full, detail).entry(entry).drop(full));
        }
        for (path, kind) in &survey.special {
            if known(path, None) {
                continue;
            }
            let full = dir.path().join(path);
            let detail = format!("this was {kind}, which git never makes");
            faults.push(Fault::removed("special-file-planted", &full, detail).entry(entry).drop(full));
        }
        for path in &survey.leftovers {
            faults.push(Fault::leftover(dir.path().join(path)));
        }
        for path in &survey.unreadable {
            let full = dir.path().join(path);
            let detail = "this directory cannot be read, so it was not judged";
            faults.push(Fault::reported("unreadable", full, detail).entry(entry));
        }
    }
}

/// `HEAD` as a symlink to a branch: how git wrote it long ago, and still does with `core.preferSymlinkRefs`.
fn is_symbolic_head(path: &Path, target: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt as _;
    let name = gix::bstr::BStr::new(target.as_os_str().as_bytes());
    path == Path::new("HEAD")
        && name.starts_with(b"refs/heads/")
        && gix::validate::reference::name(name).is_ok()
}
