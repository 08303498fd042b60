//! What every judgement needs to know besides the git dir at hand.

use std::path::{Path, PathBuf};

use codeoid_spec::git::{Checkout, Entry};
use nix::errno::Errno;

use super::baseline::{Baseline, since};
use super::check::Error;
use super::fault::{Fault, Step};
use super::survey::Survey;
use crate::entry::BackPointer;
use crate::os::OsError;
use crate::process::{Answer, Work, gits, held};
use crate::read::{self, Dir, Stamp};

/// How long after the first look a lock that nobody seems to need is looked at again.
const SECOND_LOOK: std::time::Duration = std::time::Duration::from_millis(50);

/// How often entries that do not come to rest are waited for, all together: there may be thousands.
const PATIENCE: u32 = 20;

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
    /// Lock files that are still to be judged.
    locks: std::cell::RefCell<Vec<Lock>>,
    /// How often an entry that does not come to rest is still waited for.
    patience: std::cell::Cell<u32>,
}

/// A lock file that appeared since the baseline.
struct Lock {
    path: PathBuf,
    stamp: Stamp,
    entry: Option<String>,
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
        let (locks, patience) = (std::cell::RefCell::default(), std::cell::Cell::new(PATIENCE));
        Self { baseline, depth, writable, urls, hash, locks, patience }
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
            let stamp = read::lstat(&path).ok().flatten();
            let back = stamp.map(|stamp| crate::entry::back_pointer(&worktree.join(".git"), &stamp));
            if back == Some(BackPointer::Agrees) {
                tops.push(worktree);
            }
        }
        tops
    }

    pub(super) fn taken(&self) -> i64 {
        self.baseline.taken
    }

    /// Notes lock files that appeared since the baseline; [`Self::judge_locks`] judges them, all at once: to ask
    /// who holds them means to look at every process.
    pub(super) fn locks(&self, dir: &Dir, survey: &Survey, entry: Option<&str>) -> Result<(), read::Error> {
        for path in &survey.locks {
            if let Some(stamp) = dir.lstat(path)?.filter(|stamp| since(stamp, self.taken())) {
                let lock = Lock { path: dir.path().join(path), stamp, entry: entry.map(str::to_owned) };
                self.locks.borrow_mut().push(lock);
            }
        }
        Ok(())
    }

    /// Judges lock files that were left behind: new ones that nobody holds open, while no git works in any
    /// checkout. (A `git commit -a` whose editor is open has closed its `index.lock` and still needs it.)
    pub(super) fn judge_locks(&self, faults: &mut Vec<Fault>) {
        let mut locks = self.locks.take();
        if locks.is_empty() {
            return;
        }
        let mut busy = self.git_at_work(Work::Locking);
        if busy == Answer::Nobody {
            // A git that has just begun or is just ending is not seen at every instant.
            self.wait();
            locks.retain(|lock| read::lstat(&lock.path).is_ok_and(|now| now.as_ref() == Some(&lock.stamp)));
            busy = self.git_at_work(Work::Locking);
        }
        if matches!(busy, Answer::Somebody(_)) {
            return;
        }
        let held = held(&locks.iter().map(|lock| (lock.stamp.dev, lock.stamp.ino)).collect());
        // Whoever has just closed one is about to rename it.
        self.wait();
        locks.retain(|lock| read::lstat(&lock.path).is_ok_and(|now| now.as_ref() == Some(&lock.stamp)));
        for Lock { path, stamp, entry } in locks {
            let fault = match &held {
                Some(held) if held.contains(&(stamp.dev, stamp.ino)) => continue,
                Some(_) if busy == Answer::Nobody && stamp.uid == nix::unistd::geteuid().as_raw() => {
                    let detail = "this lock was left behind and nobody holds it";
                    let step = Step::Unlock { path: path.clone(), stamp };
                    Fault::removed("lock-left-behind", &path, detail).step(step)
                }
                _ => {
                    let detail = "this lock appeared during the turn; if no git is running, remove it";
                    Fault::reported("lock-left-behind", &path, detail)
                }
            };
            faults.push(fault.entry(entry.as_deref()));
        }
    }

    /// Whether a git process does such work in any checkout of the repository, in worktrees that were made
    /// meanwhile too.
    pub(super) fn git_at_work(&self, work: Work) -> Answer {
        let Some(gits) = gits() else { return Answer::Unknown };
        if gits.is_empty() {
            // Where the checkouts are does not matter then, and there may be thousands.
            return Answer::Nobody;
        }
        let repository = &self.baseline.repository;
        let mut places = self.tops();
        places.push(repository.common_dir.clone());
        places.push(repository.worktrees_root.clone());
        places.extend(repository.other_roots.iter().cloned());
        let found = gits.into_iter().find(|git| git.is_at_work(&places, work));
        found.map_or(Answer::Nobody, |git| Answer::Somebody(git.process))
    }

    /// Gives whoever is in the middle of something a moment.
    pub(super) fn wait(&self) {
        std::thread::sleep(SECOND_LOOK);
    }

    /// The same for an entry that does not come to rest, if there have not been too many of them.
    pub(super) fn wait_patiently(&self) -> bool {
        let left = self.patience.get();
        if left > 0 {
            self.patience.set(left - 1);
            self.wait();
        }
        left > 0
    }

    /// How many lock files are noted.
    pub(super) fn locks_noted(&self) -> usize {
        self.locks.borrow().len()
    }

    /// Forgets the lock files that were noted since: what they lie in is looked at again.
    pub(super) fn forget_locks_since(&self, noted: usize) {
        self.locks.borrow_mut().truncate(noted);
    }

    /// Whether some git works on this repository now.
    pub(super) fn git_works(&self) -> bool {
        matches!(self.git_at_work(Work::Locking), Answer::Somebody(_))
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
            let detail = format!("this was {kind}, which git never makes here");
            let fault = Fault::removed("special-file-planted", &full, detail).entry(entry);
            let keep = *kind == read::Kind::Directory;
            faults.push(fault.step(Step::Remove { path: full, keep }));
        }
        for path in &survey.leftovers {
            faults.push(Fault::leftover(dir.path().join(path)));
        }
        for path in &survey.unreadable {
            let full = dir.path().join(path);
            faults.push(unreadable(dir.path(), &full).entry(entry));
        }
    }
}

/// Something that a turn has made unreadable, so that it would not be judged.
fn unreadable(base: &Path, path: &Path) -> Fault {
    let detail = "its permissions kept it from being judged";
    let step = Step::Allow { base: base.to_owned(), path: path.to_owned() };
    Fault::restored("unreadable", path, detail).step(step)
}

/// Takes a result, or makes a fault of its error: what cannot be judged must not keep the rest from being judged.
pub(super) fn attempt<T: Default, E: Into<Error>>(
    result: Result<T, E>,
    base: &Path,
    faults: &mut Vec<Fault>,
) -> T {
    match result.map_err(Into::into) {
        Ok(value) => value,
        Err(Error::Read(read::Error::Os(OsError { errno: Errno::EACCES, path, .. })))
            if path.starts_with(base) =>
        {
            faults.push(unreadable(base, &path));
            T::default()
        }
        Err(error) => {
            let detail = format!("a part of it was not judged: {}", super::restore::chain(&error));
            faults.push(Fault::reported("not-judged", base, detail));
            T::default()
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
