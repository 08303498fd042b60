//! Import: what a session did in its shadow comes to the host, by value.
//!
//! The order is that of which a kill at any point leaves nothing worse than work that is staged already: objects,
//! connectivity, locks, then of each unit the index, the branch, HEAD; then other refs, creations before deletions; then
//! the record of what both sides agree on. Everything is a comparison with that record, so it can be done again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use codeoid_spec::git::{Checkout, Repository};
use codeoid_spec::report::{Action, Finding};
use gix::ObjectId;
use gix::bstr::{BStr, BString, ByteSlice as _};

use super::base::{Base, MAIN, UnitBase};
use super::git::Git;
use super::index::{self, Entries, Flags};
use super::objects::Store;
use super::place::Place;
use super::refs::{self, Refs, Target};
use super::transaction::{self, LockedRef};
use super::{Error, entries, settings, stash, unit, write};
use crate::bytes::Bytes;
use crate::entry::{self, COMMONDIR};
use crate::lock::{self, Mode};
use crate::read::{self, Dir, POINTER_LIMIT, Stamp};
use crate::text::printable;
use crate::tree;

/// What git on the host calls the changes in its reflogs.
const MESSAGE: &str = "codeoid-shim: import from a session";
/// Below it, for each session, is what could not be brought to where the session has it.
const KEPT: &str = "refs/codeoid/";

/// When an import runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// A turn of the session lives: no deletions, and nothing of the checkout that its user works in, too.
    Live,
    /// No turn of the session lives.
    Ended,
}

/// What an import did.
#[derive(Debug, Default)]
#[must_use]
pub struct Imported {
    /// Refs and entries that came to the host, each in a few words.
    pub promoted: Vec<String>,
    /// What could not come, and why.
    pub findings: Vec<Finding>,
    /// What the user should know besides.
    pub warnings: Vec<String>,
}

/// What is needed to import a shadow.
pub(crate) struct Import<'a> {
    place: &'a Place,
    repository: &'a Repository,
    git: &'a Git,
    /// The session's name in refs.
    session: &'a str,
    when: When,
    host: Dir,
    shadow: Dir,
    kind: gix::hash::Kind,
    base: Base,
    base_refs: Refs,
    done: Imported,
    /// Branches that belong to a unit that was not brought over.
    held: BTreeSet<BString>,
    refused: BTreeMap<ObjectId, String>,
}

/// A checkout of the shadow, as it was at one moment.
struct Snapshot {
    name: String,
    relative: PathBuf,
    dir: Dir,
    head: Option<Target>,
    /// The index, where something differs from what both sides agreed on.
    index: Result<Entries, index::Error>,
    index_stamp: Option<Stamp>,
    in_progress: Option<&'static str>,
    /// Where the worktree is, for one that the host does not have yet.
    new: Option<PathBuf>,
    /// Whether it is not what both sides agreed on.
    touched: bool,
}

/// Why a unit stays with the session.
enum Stays {
    /// Nothing is to be done.
    Same,
    /// It came over.
    Moved,
    /// An operation is in progress in it; the command that ends it.
    Frozen(&'static str),
    /// The host is in the way.
    Conflict(String),
    /// Something in it may not come.
    Refused(String),
}

/// Imports a shadow. The caller has its lock.
pub(crate) fn run(
    place: &Place,
    repository: &Repository,
    git: &Git,
    session: &str,
    repository_lock: &Path,
    when: When,
) -> Result<Imported, Error> {
    let Some(base) = Base::load(place)? else { return Ok(Imported::default()) };
    let host = Dir::open(&repository.common_dir)?;
    let kind = super::hash_kind(&host)?;
    let shadow = match Dir::open(&place.git()) {
        Ok(shadow) if super::is_whole(&shadow)? => shadow,
        Ok(_) | Err(read::Error::NotDirectory { .. }) => return Ok(destroyed(repository)),
        Err(error) if error.errno() == Some(nix::errno::Errno::ENOENT) => return Ok(destroyed(repository)),
        Err(error) => return Err(error.into()),
    };
    let base_refs = Refs::from_text(&base.refs.0);
    let mut import = Import {
        place,
        repository,
        git,
        session,
        when,
        host,
        shadow,
        kind,
        base,
        base_refs,
        done: Imported::default(),
        held: BTreeSet::new(),
        refused: BTreeMap::new(),
    };
    import.all(repository_lock)?;
    Ok(import.done)
}

fn destroyed(repository: &Repository) -> Imported {
    let detail = "the session destroyed its view of the git dir; the host's was never touched, and what was not \
                  brought over before is kept in the session's state";
    Imported { findings: vec![finding("shadow-destroyed", None, &repository.common_dir, detail)], ..Imported::default() }
}

fn finding(kind: &str, entry: Option<&str>, path: &Path, detail: &str) -> Finding {
    Finding {
        kind: kind.to_owned(),
        entry: entry.map(str::to_owned),
        path: crate::text::reportable(path),
        action: Action::Reported,
        detail: printable(detail),
    }
}

impl Import<'_> {
    fn all(&mut self, repository_lock: &Path) -> Result<(), Error> {
        let ours = refs::read(&self.shadow, self.kind)?;
        let stashed = stash::read(&self.shadow, self.kind)?;
        let config = self.shadow.read("config".as_ref(), POINTER_LIMIT).ok().flatten();
        let config = config.map(|content| content.bytes).unwrap_or_default();
        let snapshots = self.snapshots()?;
        let removed = self.removed(&snapshots);
        let moved: Vec<BString> = self.moved(&ours);
        let new_stash: Vec<&stash::Entry> = {
            let known: BTreeSet<&str> = self.base.stash.iter().map(String::as_str).collect();
            stashed.iter().filter(|entry| !known.contains(entry.id.to_string().as_str())).collect()
        };
        let dropped: Vec<String> = {
            let there: BTreeSet<String> = stashed.iter().map(|entry| entry.id.to_string()).collect();
            self.base.stash.iter().filter(|id| !there.contains(*id)).cloned().collect()
        };
        let touched: Vec<&Snapshot> = snapshots.iter().filter(|snapshot| snapshot.touched).collect();
        let settings = settings::wanted(&config, &self.base.config.0);
        let nothing = moved.is_empty()
            && new_stash.is_empty()
            && dropped.is_empty()
            && touched.is_empty()
            && removed.is_empty()
            && settings.is_empty();
        if nothing {
            if self.when == When::Ended && !self.base.promoted.is_empty() {
                self.done.promoted = std::mem::take(&mut self.base.promoted);
                self.base.store(self.place)?;
            }
            return Ok(());
        }

        // Objects first, outside the lock: packing takes as long as it takes.
        let mut tips: BTreeSet<ObjectId> = moved.iter().filter_map(|name| ours.object(name.as_bstr())).collect();
        tips.extend(new_stash.iter().map(|entry| entry.id));
        for snapshot in &touched {
            if let Some(Target::Object(id)) = snapshot.head {
                tips.insert(id);
            }
            tips.extend(self.new_blobs(snapshot)?);
        }
        let shadow = Dir::open(self.shadow.path())?;
        let store = Store::new(self.git, &shadow, &self.place.quarantine(), self.kind, self.is_promisor()?)
            .borrowing(vec![self.place.kept()]);
        if !tips.is_empty() {
            let _ = store.gather()?;
            let tips: Vec<ObjectId> = tips.into_iter().collect();
            for (id, why) in store.admit(&tips)?.refused() {
                self.refused.insert(*id, why.to_owned());
            }
        }

        let _lock = lock::file(repository_lock, Mode::Exclusive)?;
        let host_refs = refs::read(&self.host, self.kind)?;
        self.settle_pending(&host_refs);
        let mut used = self.used()?;
        for snapshot in &touched {
            self.unit(snapshot, &ours, &host_refs, &mut used)?;
        }
        self.refs(&moved, &ours, &used)?;
        self.stash(&new_stash, &dropped)?;
        if !settings.is_empty() {
            self.settings(&settings, &config, &ours)?;
        }
        for id in removed {
            self.remove_entry(&id)?;
        }
        self.base.refs = Bytes(self.base_refs.to_text());
        self.base.promoted.append(&mut self.done.promoted);
        if self.when == When::Ended {
            self.done.promoted = std::mem::take(&mut self.base.promoted);
        }
        self.base.store(self.place)?;
        store.release()?;
        Ok(())
    }

    /// Refs that a killed import has moved already.
    fn settle_pending(&mut self, host: &Refs) {
        for (name, value) in std::mem::take(&mut self.base.pending) {
            let name = BString::from(name);
            if let Ok(id) = ObjectId::from_hex(value.as_bytes())
                && host.object(name.as_bstr()) == Some(id)
            {
                self.base_refs.map.insert(name, Target::Object(id));
            }
        }
    }

    /// Refs that differ from what both sides agreed on, and that may come at all.
    fn moved(&self, ours: &Refs) -> Vec<BString> {
        let names: BTreeSet<&BString> = ours.map.keys().chain(self.base_refs.map.keys()).collect();
        names
            .into_iter()
            .filter(|name| {
                !ours.broken.contains(*name)
                    && ours.map.get(*name) != self.base_refs.map.get(*name)
                    && refs::is_importable(name.as_bstr())
                    && (self.when == When::Ended || ours.map.contains_key(*name))
            })
            .cloned()
            .collect()
    }

    fn is_promisor(&self) -> Result<bool, Error> {
        let config = self.host.read("config".as_ref(), POINTER_LIMIT)?.map(|content| content.bytes);
        let file = crate::config::File::parse(&config.unwrap_or_default()).unwrap_or_default();
        Ok(file.last("extensions", "partialclone").is_some())
    }

    /// The checkouts in the shadow that are the session's: the main one where the session works in it, and its
    /// worktrees, also those that the host does not know yet.
    fn snapshots(&mut self) -> Result<Vec<Snapshot>, Error> {
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
        for item in worktrees.list()? {
            let Some(id) = item.name.to_str() else { continue };
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
            {
                self.put_back_pointer(id, &worktree)?;
                named = entries::named(&dir, &self.repository.common_dir, id, folders)?;
            }
            match (named, self.base.own.contains_key(id)) {
                (Some(_), true) => list.extend(self.snapshot(id, relative, None)?),
                (Some(worktree), false) => list.extend(self.snapshot(id, relative, Some(worktree))?),
                // Its folder is gone, or it was moved out of the session's.
                (None, _) => {}
            }
        }
        Ok(list)
    }

    /// Makes the `.git` of one of the session's worktrees what git makes it: it was pointed elsewhere, and git on the
    /// host would follow it.
    fn put_back_pointer(&mut self, id: &str, worktree: &Path) -> Result<(), Error> {
        let Ok(dir) = Dir::open(worktree) else { return Ok(()) };
        let Some(stamp) = dir.lstat(".git")? else { return Ok(()) };
        if stamp.kind() == read::Kind::Directory {
            // A repository of its own, whatever it is; it may be somebody's work.
            write::rename(&dir, ".git".as_ref(), "git-dir-of-the-session".as_ref())?;
        }
        let pointer = entry::gitfile(&self.host.path().join("worktrees").join(id));
        write::put(&dir, ".git".as_ref(), &pointer)?;
        let detail = "the .git of the session's worktree pointed elsewhere; it points to the worktree's entry again";
        let path = worktree.join(".git");
        let action = Action::Restored;
        let found = finding("gitfile-changed", Some(id), &path, detail);
        self.done.findings.push(Finding { action, ..found });
        Ok(())
    }

    fn snapshot(&self, name: &str, relative: PathBuf, new: Option<PathBuf>) -> Result<Option<Snapshot>, Error> {
        let dir = if name == MAIN { self.shadow.child(".".as_ref()) } else { self.shadow.beneath(&relative) };
        let Ok(Some(dir)) = dir else { return Ok(None) };
        // git writes the index, the branch and HEAD one after the other.
        for _ in 0..50 {
            let moment = || -> Result<_, Error> {
                Ok((unit::head(&dir, self.kind)?, dir.lstat("index")?, unit::in_progress(&dir)?))
            };
            let before = moment()?;
            let locked = self.when == When::Live
                && (dir.lstat("index.lock")?.is_some() || dir.lstat("HEAD.lock")?.is_some());
            let touched = new.is_some() || self.is_touched(name, &dir)?;
            let index = if touched {
                Entries::read(&dir, "index".as_ref(), self.kind, false)
            } else {
                Ok(Entries::empty(self.kind))
            };
            if !locked && moment()? == before {
                let (head, index_stamp, in_progress) = before;
                let name = name.to_owned();
                return Ok(Some(Snapshot { name, relative, dir, head, index, index_stamp, in_progress, new, touched }));
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        Ok(None)
    }

    fn is_touched(&self, name: &str, dir: &Dir) -> Result<bool, Error> {
        if super::touched(self.place, &self.base, name, dir, self.kind)? {
            return Ok(true);
        }
        let Some(Target::Symbolic(branch)) = unit::head(dir, self.kind)? else { return Ok(false) };
        let (now, base) = (super::read_ref(&self.shadow, branch.as_bstr(), self.kind)?, self.base_refs.object(branch.as_bstr()));
        Ok(now != base)
    }

    /// Whether a unit is that of the checkout that the session works in, where others work, too.
    fn is_workspace(&self, name: &str) -> bool {
        match &self.repository.checkout {
            Checkout::Linked { entry, .. } => entry == name,
            Checkout::Main { .. } => name == MAIN,
            Checkout::Bare => false,
        }
    }

    /// Own entries that are gone in the shadow.
    fn removed(&self, snapshots: &[Snapshot]) -> Vec<String> {
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

    /// Objects that the index names and that of the base did not.
    fn new_blobs(&self, snapshot: &Snapshot) -> Result<Vec<ObjectId>, Error> {
        let Ok(ours) = &snapshot.index else { return Ok(Vec::new()) };
        let base = self.base.index(self.place, &snapshot.name, self.kind)?;
        Ok(ours.oids_since(&base).collect())
    }

    /// Which branches a checkout of the host holds fast, and which checkout: an entry's name, or none for the main one.
    fn used(&self) -> Result<BTreeMap<BString, Vec<String>>, Error> {
        let mut used: BTreeMap<BString, Vec<String>> = BTreeMap::new();
        let mut add = |name: &str, dir: &Dir| -> Result<(), Error> {
            for branch in unit::branches(dir, self.kind)? {
                used.entry(branch).or_default().push(name.to_owned());
            }
            Ok(())
        };
        if self.repository.main_checkout.is_some() {
            add(MAIN, &self.host)?;
        }
        if let Some(worktrees) = self.host.child("worktrees".as_ref())? {
            for item in worktrees.list()? {
                let Some(id) = item.name.to_str() else { continue };
                if let Ok(Some(dir)) = worktrees.child(&item.name) {
                    add(id, &dir)?;
                }
            }
        }
        Ok(used)
    }

    fn unit(
        &mut self,
        snapshot: &Snapshot,
        ours: &Refs,
        host_refs: &Refs,
        used: &mut BTreeMap<BString, Vec<String>>,
    ) -> Result<(), Error> {
        let stays = self.try_unit(snapshot, ours, host_refs, used)?;
        let entry = (snapshot.name != MAIN).then_some(snapshot.name.as_str());
        let path = self.host.path().join(&snapshot.relative);
        let what = entry.map_or("the checkout".to_owned(), |id| format!("worktree {id}"));
        match stays {
            Stays::Same | Stays::Moved => return Ok(()),
            // The turn goes on; its end decides.
            _ if self.when == When::Live => {}
            Stays::Frozen(command) => {
                let detail = format!(
                    "{what}: an operation is in progress in the session's view, and the host's stays as it was \
                     before it; it ends with {command} in a turn of the session"
                );
                self.report("operation-in-progress", entry, &path, &snapshot.name, command, &detail);
            }
            Stays::Conflict(why) | Stays::Refused(why) => {
                let mut kept = Vec::new();
                for name in self.unit_refs(snapshot) {
                    if ours.map.get(&name) != self.base_refs.map.get(&name)
                        && let Some(tip) = ours.object(name.as_bstr())
                    {
                        kept.extend(self.keep(name.as_bstr(), tip)?);
                    }
                }
                if let Some(Target::Object(tip)) = snapshot.head {
                    let name = if snapshot.name == MAIN { "HEAD".to_owned() } else { format!("{}/HEAD", snapshot.name) };
                    kept.extend(self.keep(format!("refs/detached/{name}").as_bytes().as_bstr(), tip)?);
                }
                let merge = kept.iter().map(|name| format!("`git merge {name}`")).collect::<Vec<_>>().join(", ");
                let merge = if merge.is_empty() { String::new() } else { format!("; to take it over: {merge}") };
                let detail = format!("{what} stays as the host has it: {why}{merge}");
                let tips = kept.join(" ");
                self.report("conflict", entry, &path, &snapshot.name, &format!("{why} {tips}"), &detail);
            }
        }
        let branches = unit::branches(&snapshot.dir, self.kind)?;
        self.held.extend(branches);
        self.held.extend(self.unit_refs(snapshot));
        Ok(())
    }

    /// Reports something once, as long as it stays the same.
    fn report(&mut self, kind: &str, entry: Option<&str>, path: &Path, key: &str, state: &str, detail: &str) {
        let key = format!("{kind} {key}");
        if self.when == When::Live {
            return;
        }
        self.base.reported.insert(key, state.to_owned());
        self.done.findings.push(finding(kind, entry, path, detail));
    }

    /// The branches that belong to a unit: that which HEAD named before, and that which it names now.
    fn unit_refs(&self, snapshot: &Snapshot) -> BTreeSet<BString> {
        let base = self.base.units.get(&snapshot.name).and_then(|unit| Target::parse(&unit.head.0, self.kind));
        [base.as_ref(), snapshot.head.as_ref()]
            .into_iter()
            .flatten()
            .filter_map(|target| match target {
                Target::Symbolic(name) => Some(name.clone()),
                Target::Object(_) => None,
            })
            .collect()
    }

    fn try_unit(
        &mut self,
        snapshot: &Snapshot,
        ours: &Refs,
        host_refs: &Refs,
        used: &mut BTreeMap<BString, Vec<String>>,
    ) -> Result<Stays, Error> {
        let Some(head) = snapshot.head.clone() else {
            return Ok(Stays::Refused("its HEAD is none that git writes".to_owned()));
        };
        if let Some(command) = snapshot.in_progress {
            let known = self.base.units.get(&snapshot.name).is_some_and(|unit| unit.operation);
            if !(known && self.when == When::Live) {
                return Ok(Stays::Frozen(command));
            }
            return Ok(Stays::Same);
        }
        let theirs = match &snapshot.index {
            Ok(entries) if entries.unmerged() => {
                return Ok(Stays::Frozen("git add or git checkout of the paths that conflict"));
            }
            Ok(entries) => entries,
            Err(error) => return Ok(Stays::Refused(format!("its index is not brought over: {error}"))),
        };
        if let Target::Symbolic(name) = &head
            && !(refs::is_importable(name.as_bstr()) && name.starts_with(b"refs/heads/"))
        {
            return Ok(Stays::Refused("its HEAD names no branch".to_owned()));
        }
        for id in self.new_blobs(snapshot)? {
            if let Some(why) = self.refused.get(&id) {
                return Ok(Stays::Refused(format!("object {id} of its index is not brought over: {why}")));
            }
        }
        if let Target::Object(id) = head
            && let Some(why) = self.refused.get(&id)
        {
            return Ok(Stays::Refused(format!("commit {id} is not brought over: {why}")));
        }
        let (host, id) = match &snapshot.new {
            None => {
                let host = if snapshot.name == MAIN {
                    self.host.child(".".as_ref())?
                } else {
                    self.host.beneath(&snapshot.relative)?
                };
                let Some(host) = host else {
                    return Ok(Stays::Conflict("the host has removed the worktree".to_owned()));
                };
                (host, snapshot.name.clone())
            }
            Some(worktree) => match self.reserve(snapshot, worktree)? {
                Some(reserved) => reserved,
                None => return Ok(Stays::Conflict("no name is free for its entry".to_owned())),
            },
        };
        let base = self.base.units.get(&id).cloned();
        let stays = self.write_unit(snapshot, &id, &host, &head, theirs, base.as_ref(), ours, host_refs, used)?;
        if snapshot.new.is_some() && !matches!(stays, Stays::Moved) {
            // Nothing of it stands on the host; the name is given back.
            if let Some(worktrees) = self.host.child("worktrees".as_ref())? {
                tree::remove(&worktrees, id.as_ref())?;
            }
        }
        Ok(stays)
    }

    /// Makes the host's entry for a worktree that the session has made: a directory of that name is the reservation.
    /// Where the name is taken, the session's entry gets another one, in the shadow and in the worktree's `.git`.
    fn reserve(&mut self, snapshot: &Snapshot, worktree: &Path) -> Result<Option<(Dir, String)>, Error> {
        let worktrees = write::directory(&self.host, "worktrees".as_ref())?;
        let mut id = snapshot.name.clone();
        for number in 0..1000 {
            if number > 0 {
                id = format!("{}{number}", snapshot.name);
                if self.shadow.lstat(Path::new("worktrees").join(&id).as_os_str())?.is_some() {
                    continue;
                }
            }
            match nix::sys::stat::mkdirat(
                &worktrees,
                id.as_str(),
                nix::sys::stat::Mode::from_bits_truncate(0o755),
            ) {
                Ok(()) => break,
                Err(nix::errno::Errno::EEXIST) => {
                    // One of ours that a killed import began: no `HEAD` yet, and it names this worktree.
                    let ours = worktrees.child(id.as_ref())?.is_some_and(|dir| {
                        dir.lstat("HEAD").is_ok_and(|stamp| stamp.is_none())
                            && dir.read("locked".as_ref(), POINTER_LIMIT).ok().flatten().is_some_and(|content| {
                                content.bytes.starts_with(super::LOCKED.as_bytes())
                            })
                    });
                    if ours {
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
        write::put(&dir, "locked".as_ref(), super::locked(self.session).as_bytes())?;
        if id != snapshot.name {
            let ours = self.shadow.child("worktrees".as_ref())?;
            let Some(ours) = ours else { return Ok(None) };
            write::rename(&ours, snapshot.name.as_ref(), id.as_ref())?;
            let pointer = entry::gitfile(&self.host.path().join("worktrees").join(&id));
            write::put(&Dir::open(worktree)?, ".git".as_ref(), &pointer)?;
        }
        Ok(Some((dir, id)))
    }

    #[expect(clippy::too_many_arguments, reason = "a unit is what it is")]
    fn write_unit(
        &mut self,
        snapshot: &Snapshot,
        id: &str,
        host: &Dir,
        head: &Target,
        ours_index: &Entries,
        base: Option<&UnitBase>,
        ours: &Refs,
        host_refs: &Refs,
        used: &mut BTreeMap<BString, Vec<String>>,
    ) -> Result<Stays, Error> {
        transaction::sweep(host)?;
        let conflict = |why: &str| Ok(Stays::Conflict(why.to_owned()));
        let (Some(_index), Some(_head)) =
            (transaction::lock(host, "index".as_ref())?, transaction::lock(host, "HEAD".as_ref())?)
        else {
            return conflict("another git holds its index.lock or HEAD.lock");
        };
        let there = unit::head(host, self.kind)?;
        if snapshot.new.is_none() {
            if unit::in_progress(host)?.is_some() {
                return conflict("an operation of git is in progress there");
            }
            let agreed = base.and_then(|base| Target::parse(&base.head.0, self.kind));
            if there != agreed && there.as_ref() != Some(head) {
                return conflict("its HEAD was changed on the host meanwhile");
            }
        }
        // The branches.
        let mut locked: Vec<(LockedRef, ObjectId)> = Vec::new();
        for name in self.unit_refs(snapshot) {
            let (s, b) = (ours.object(name.as_bstr()), self.base_refs.object(name.as_bstr()));
            let elsewhere = used.get(&name).is_some_and(|users| users.iter().any(|user| user != id));
            let is_head = matches!(head, Target::Symbolic(branch) if *branch == name);
            if elsewhere && (s != b || is_head) {
                let h = host_refs.object(name.as_bstr());
                if !(s == h && !is_head) {
                    let name = name.strip_prefix(b"refs/heads/").unwrap_or(&name).to_str_lossy().into_owned();
                    return conflict(&format!("branch {name} is checked out somewhere else"));
                }
            }
            let Some(s) = s else { continue };
            if let Some(why) = self.refused.get(&s) {
                return Ok(Stays::Refused(format!("commit {s} is not brought over: {why}")));
            }
            if Some(s) == b && host_refs.object(name.as_bstr()) == b {
                continue;
            }
            let Some(lock) = transaction::lock_ref(&self.host, name.as_bstr(), host_refs, self.kind)? else {
                return conflict("its branch cannot be locked, or another ref is in the way");
            };
            let h = lock.old();
            if h == Some(s) || Some(s) == b {
                continue;
            }
            let forward = h == b || h.is_some_and(|h| self.git.is_ancestor(h, s));
            if !forward {
                return conflict("its branch has moved on the host meanwhile");
            }
            locked.push((lock, s));
        }
        // The index.
        let base_entries = self.base.index(self.place, id, self.kind)?;
        let there_entries = Entries::read(host, "index".as_ref(), self.kind, true)?;
        if there_entries.unmerged() {
            return conflict("its index on the host has conflicts that are not resolved");
        }
        let is_workspace = self.is_workspace(id);
        let flags = if is_workspace { Flags::Drop } else { Flags::Sparse };
        let merged = match index::merge(Some(&base_entries), &there_entries, ours_index, flags) {
            Ok(merged) => merged,
            Err(error) => return Ok(Stays::Refused(format!("its index is not brought over: {error}"))),
        };
        if !merged.conflicts.is_empty() && (!locked.is_empty() || there.as_ref() != Some(head)) {
            // The next commit on the host would undo what the session did with these paths.
            let names: Vec<_> = merged.conflicts.iter().take(4).map(|path| path.to_str_lossy()).collect();
            return conflict(&format!("{} is staged on the host with another content", names.join(", ")));
        }
        if !merged.new_gitlinks.is_empty() {
            let names: Vec<_> = merged.new_gitlinks.iter().map(|name| name.to_str_lossy().into_owned()).collect();
            return Ok(Stays::Refused(format!(
                "{} is a repository of its own (a submodule), which does not come with it",
                names.join(", ")
            )));
        }
        // From here on nothing is asked any more. Index, branch, HEAD: a kill in between leaves what is staged.
        if snapshot.new.is_some() {
            write::put(host, "commondir".as_ref(), COMMONDIR)?;
        }
        if !merged.is_noop() || snapshot.new.is_some() && snapshot.index_stamp.is_some() {
            write::put(host, "index".as_ref(), &merged.bytes()?)?;
        }
        for (lock, new) in &locked {
            self.base.pending.insert(lock.name().to_str_lossy().into_owned(), new.to_string());
        }
        if !locked.is_empty() {
            self.base.store(self.place)?;
        }
        for (lock, new) in &locked {
            let name = lock.name();
            lock.set(*new)?;
            transaction::log(&self.host, Path::new(OsStr::from_bytes(name)), lock.old(), *new, MESSAGE)?;
            self.base_refs.map.insert(name.into(), Target::Object(*new));
            self.done.promoted.push(format!("{} {new}", name.to_str_lossy()));
        }
        if there.as_ref() != Some(head) {
            write::put(host, "HEAD".as_ref(), &head.text())?;
        }
        let value = |target: Option<&Target>, refs: &Refs| match target {
            Some(Target::Object(id)) => Some(*id),
            Some(Target::Symbolic(name)) => refs.object(name.as_bstr()),
            None => None,
        };
        let (from, to) = (value(there.as_ref(), host_refs), value(Some(head), ours));
        if let Some(to) = to
            && (from != Some(to) || there.as_ref() != Some(head))
        {
            transaction::log(host, Path::new("HEAD"), from, to, MESSAGE)?;
        }
        if let Some(worktree) = &snapshot.new {
            let mut pointer = worktree.join(".git").into_os_string().into_encoded_bytes();
            pointer.push(b'\n');
            write::put(host, "gitdir".as_ref(), &pointer)?;
            self.base.own.insert(id.to_owned(), Bytes(pointer));
            self.done.promoted.push(format!("worktree {id}"));
        }
        if let Target::Symbolic(name) = head {
            let users = used.entry(name.clone()).or_default();
            if !users.iter().any(|user| user == id) {
                users.push(id.to_owned());
            }
        }
        if let Some(Target::Symbolic(old)) = &there
            && there.as_ref() != Some(head)
            && let Some(users) = used.get_mut(old)
        {
            users.retain(|user| user != id);
            if users.is_empty() {
                used.remove(old);
            }
        }
        let agreed = merged.base(Some(&base_entries), ours_index)?.fresh(Flags::Keep)?;
        let index = self.base.keep_index(self.place, id, Some(&agreed))?;
        // Where the host has more than the session, the next turn's refresh has to look at it.
        let host_index = if merged.entries().same(ours_index) { host.lstat("index")? } else { None };
        let head = Bytes(head.text());
        let shadow_index = if merged.conflicts.is_empty() { snapshot.index_stamp } else { None };
        self.base
            .units
            .insert(id.to_owned(), UnitBase { head, index, shadow_index, host_index, operation: false });
        self.base.reported.retain(|key, _| key.split_once(' ').is_none_or(|(_, name)| name != id));
        if !merged.conflicts.is_empty() {
            let paths: Vec<_> =
                merged.conflicts.iter().take(8).map(|path| path.to_str_lossy().into_owned()).collect();
            self.done.warnings.push(printable(&format!(
                "the index of the host keeps its own version of {} (staged there while the session changed it, too)",
                paths.join(", ")
            )));
        }
        Ok(Stays::Moved)
    }

    /// Keeps a tip that cannot go where the session has it; returns the ref that was made for it.
    fn keep(&mut self, name: &BStr, tip: ObjectId) -> Result<Option<String>, Error> {
        if self.refused.contains_key(&tip) {
            return Ok(None);
        }
        let rest = name.strip_prefix(b"refs/").unwrap_or(name).to_str_lossy().into_owned();
        let plain = format!("{KEPT}{}/{rest}", self.session);
        for candidate in [plain.clone(), format!("{plain}-{}", &tip.to_string()[..8])] {
            let there = super::read_ref(&self.host, candidate.as_bytes().as_bstr(), self.kind)?;
            if there == Some(tip) {
                return Ok(Some(candidate));
            }
            let may = there.is_none_or(|there| self.git.is_ancestor(there, tip));
            let old = there.unwrap_or_else(|| ObjectId::null(self.kind)).to_string();
            let args = ["update-ref", "--no-deref", "-m", MESSAGE, &candidate, &tip.to_string(), &old];
            if may && self.git.run(args, b"").is_ok() {
                self.done.promoted.push(format!("{candidate} {tip}"));
                return Ok(Some(candidate));
            }
        }
        self.done.warnings.push(format!("{tip} could not be kept on the host; the session's state has it"));
        Ok(None)
    }

    fn refs(&mut self, moved: &[BString], ours: &Refs, used: &BTreeMap<BString, Vec<String>>) -> Result<(), Error> {
        let remotes = settings::Remotes::compare(&self.host, &self.shadow)?;
        let (gone, here): (Vec<&BString>, Vec<&BString>) =
            moved.iter().partition(|name| !ours.map.contains_key(*name));
        // The host's of now: the units have moved some.
        let host = refs::read(&self.host, self.kind)?;
        let mut updates = Vec::new();
        for name in here {
            let (s, b) = (&ours.map[name], self.base_refs.map.get(name).cloned());
            let h = host.map.get(name);
            if h == Some(s) || Some(s) == b.as_ref() {
                self.base_refs.map.insert(name.clone(), s.clone());
                continue;
            }
            if self.held.contains(name) || host.broken.contains(name) {
                continue;
            }
            let Target::Object(new) = s else {
                self.symbolic(name.as_bstr(), s, h, &remotes)?;
                continue;
            };
            if matches!(h, Some(Target::Symbolic(_))) {
                self.stays(name.as_bstr(), *new, "it is symbolic on the host")?;
                continue;
            }
            if let Some(why) = self.refused.get(new).cloned() {
                let path = self.host.path().join(OsStr::from_bytes(name));
                let detail = format!("{} stays with the session: {why}", name.to_str_lossy());
                self.report("refused", None, &path, &name.to_str_lossy(), &why, &detail);
                continue;
            }
            if name.starts_with(b"refs/heads/") && used.contains_key(name) {
                if self.when == When::Ended {
                    self.stays(name.as_bstr(), *new, "it is checked out on the host")?;
                }
                continue;
            }
            if name.starts_with(b"refs/tags/") && h.is_some() {
                self.stays(name.as_bstr(), *new, "a tag that the host has is never moved")?;
                continue;
            }
            if let Some(remote) = remotes.of(name.as_bstr()) {
                if !remote.agrees || h != b.as_ref() {
                    continue;
                }
            }
            let h = h.and_then(Target::object);
            let b = b.as_ref().and_then(Target::object);
            if h == b || h.is_some_and(|h| self.git.is_ancestor(h, *new)) {
                updates.push((name.clone(), *new, h));
            } else if h.is_some_and(|h| self.git.is_ancestor(*new, h)) {
                // The host has it, and more.
            } else {
                self.stays(name.as_bstr(), *new, "it has moved on the host meanwhile")?;
            }
        }
        self.update(&updates, &gone, &host, used)?;
        for name in gone {
            self.delete(name.as_bstr(), &host, used, &remotes)?;
        }
        Ok(())
    }

    fn stays(&mut self, name: &BStr, tip: ObjectId, why: &str) -> Result<(), Error> {
        if self.when == When::Live {
            // The turn goes on; its end decides.
            return Ok(());
        }
        let kept = self.keep(name, tip)?;
        let shown = name.to_str_lossy();
        let merge = kept.map(|kept| format!("; the session's is {kept}, to take it over: `git merge {kept}`"));
        let detail = format!("{shown} stays as the host has it: {why}{}", merge.unwrap_or_default());
        let path = self.host.path().join(OsStr::from_bytes(name));
        self.report("conflict", None, &path, &shown, &tip.to_string(), &detail);
        Ok(())
    }

    /// Moves refs by compare-and-swap: all in one transaction, and each alone where that fails.
    fn update(
        &mut self,
        updates: &[(BString, ObjectId, Option<ObjectId>)],
        gone: &[&BString],
        host: &Refs,
        used: &BTreeMap<BString, Vec<String>>,
    ) -> Result<(), Error> {
        if updates.is_empty() {
            return Ok(());
        }
        for (name, new, _) in updates {
            self.base.pending.insert(name.to_str_lossy().into_owned(), new.to_string());
        }
        self.base.store(self.place)?;
        let null = ObjectId::null(self.kind);
        let line = |(name, new, old): &(BString, ObjectId, Option<ObjectId>)| {
            format!("option no-deref\nupdate {} {new} {}\n", name.to_str_lossy(), old.unwrap_or(null))
        };
        let plain = updates.iter().all(|(name, ..)| name.to_str().is_ok());
        let all: String = updates.iter().map(line).collect();
        let together = plain && self.git.run(["update-ref", "--stdin", "-m", MESSAGE], all.as_bytes()).is_ok();
        for update in updates {
            let (name, new, old) = update;
            let one = |import: &Self| import.git.run(["update-ref", "--stdin", "-m", MESSAGE], line(update).as_bytes());
            let mut moved = together || one(self).is_ok();
            if !moved {
                // `feat` was deleted and `feat/x` made: the one has to go before the other can come.
                let above = gone.iter().find(|above| {
                    name.starts_with(&[above.as_slice(), b"/"].concat())
                        || above.starts_with(&[name.as_slice(), b"/"].concat())
                });
                if let Some(above) = above
                    && !used.contains_key(*above)
                    && let Some(old) = host.object(above.as_bstr())
                    && self.base_refs.object(above.as_bstr()) == Some(old)
                    && self.remove_ref(above.as_bstr(), old)
                {
                    moved = one(self).is_ok();
                    if moved {
                        self.base_refs.map.remove(*above);
                    } else {
                        let back = format!("option no-deref\ncreate {} {old}\n", above.to_str_lossy());
                        let _ = self.git.run(["update-ref", "--stdin", "-m", MESSAGE], back.as_bytes());
                    }
                }
            }
            if moved {
                if old.is_none() {
                    self.base.created.insert(name.to_str_lossy().into_owned());
                }
                self.base_refs.map.insert(name.clone(), Target::Object(*new));
                self.done.promoted.push(format!("{} {new}", name.to_str_lossy()));
            } else {
                self.stays(name.as_bstr(), *new, "it has just moved on the host, or another ref is in its way")?;
            }
        }
        Ok(())
    }

    fn remove_ref(&self, name: &BStr, old: ObjectId) -> bool {
        let text = name.to_str_lossy();
        self.git.run(["update-ref", "--no-deref", "-m", MESSAGE, "-d", text.as_ref(), &old.to_string()], b"").is_ok()
    }

    fn symbolic(
        &mut self,
        name: &BStr,
        target: &Target,
        host: Option<&Target>,
        remotes: &settings::Remotes,
    ) -> Result<(), Error> {
        let Target::Symbolic(to) = target else { return Ok(()) };
        let below = name.strip_suffix(b"HEAD").filter(|prefix| prefix.starts_with(b"refs/remotes/"));
        let fits = below.is_some_and(|prefix| to.starts_with(prefix))
            && refs::is_importable(to.as_bstr())
            && remotes.of(name).is_some_and(|remote| remote.agrees)
            && host == self.base_refs.map.get(name);
        if fits {
            let (name_text, to_text) = (name.to_str_lossy(), to.to_str_lossy());
            if self.git.run(["symbolic-ref", "-m", MESSAGE, name_text.as_ref(), to_text.as_ref()], b"").is_ok() {
                self.base_refs.map.insert(name.into(), target.clone());
            }
        }
        Ok(())
    }

    fn delete(
        &mut self,
        name: &BStr,
        host: &Refs,
        used: &BTreeMap<BString, Vec<String>>,
        remotes: &settings::Remotes,
    ) -> Result<(), Error> {
        let Some(old) = self.base_refs.object(name) else { return Ok(()) };
        let shown = name.to_str_lossy().into_owned();
        let Some(there) = host.object(name) else {
            self.base_refs.map.remove(name);
            return Ok(());
        };
        if self.held.contains(name) || there != old || !self.base_refs.map.contains_key(name) {
            return Ok(());
        }
        let is_remote = name.starts_with(b"refs/remotes/");
        if is_remote && !remotes.of(name).is_some_and(|remote| remote.agrees) {
            return Ok(());
        }
        if name.starts_with(b"refs/tags/") {
            self.done.warnings.push(printable(&format!("{shown} was deleted in the session; the host keeps it")));
            return Ok(());
        }
        if used.contains_key(name) {
            let why = format!("{shown} was deleted in the session; it is checked out on the host, and stays");
            self.done.warnings.push(printable(&why));
            return Ok(());
        }
        if !is_remote && !self.base.created.contains(&shown) && !self.is_reachable(name, old) {
            // Somebody else's work, merged nowhere: deleting its name must not lose it.
            let deleted = format!("refs/deleted/{}", shown.strip_prefix("refs/").unwrap_or(&shown));
            if let Some(kept) = self.keep(deleted.as_bytes().as_bstr(), old)? {
                self.done.warnings.push(printable(&format!(
                    "{shown} was deleted by the session; its commits are nowhere else, so they are kept as {kept}"
                )));
            }
        }
        if self.remove_ref(name, old) {
            self.base_refs.map.remove(name);
            self.done.promoted.push(format!("{shown} deleted"));
            if let Some(branch) = name.strip_prefix(b"refs/heads/") {
                settings::forget_branch(self.git, &branch.to_str_lossy());
            }
        }
        Ok(())
    }

    /// Whether a commit can be reached by another ref of the host.
    fn is_reachable(&self, name: &BStr, id: ObjectId) -> bool {
        let contains = format!("--contains={id}");
        let args = ["for-each-ref", "--count=2", "--format=%(refname)", &contains];
        let Ok(found) = self.git.run(args, b"") else { return false };
        found.split(|byte| *byte == b'\n').any(|line| !line.is_empty() && line != name.as_bytes())
    }

    fn stash(&mut self, new: &[&stash::Entry], dropped: &[String]) -> Result<(), Error> {
        if new.is_empty() && dropped.is_empty() {
            return Ok(());
        }
        for entry in new.iter().rev() {
            if let Some(why) = self.refused.get(&entry.id).cloned() {
                self.done.warnings.push(printable(&format!("stash entry {} stays with the session: {why}", entry.id)));
            } else if stash::store(self.git, &self.host, self.kind, entry)? {
                self.base.stash.insert(0, entry.id.to_string());
                self.done.promoted.push(format!("stash {}", entry.id));
            }
        }
        if self.when == When::Ended {
            for id in dropped {
                let Ok(object) = ObjectId::from_hex(id.as_bytes()) else { continue };
                if stash::drop_entry(self.git, &self.host, self.kind, object) {
                    self.base.stash.retain(|known| known != id);
                }
            }
        }
        // The ref is a matter of the list.
        match super::read_ref(&self.host, stash::REF.as_bytes().as_bstr(), self.kind)? {
            Some(id) => drop(self.base_refs.map.insert(stash::REF.into(), Target::Object(id))),
            None => drop(self.base_refs.map.remove(BStr::new(stash::REF))),
        }
        Ok(())
    }

    fn settings(&mut self, wanted: &[settings::Setting], config: &[u8], ours: &Refs) -> Result<(), Error> {
        let remotes = settings::Remotes::compare(&self.host, &self.shadow)?;
        let mut kept = Vec::new();
        for setting in wanted {
            if setting.is_importable(&remotes, ours) {
                if setting.write(self.git, &self.host)? {
                    self.done.promoted.push(setting.name());
                }
            } else if self.when == When::Ended {
                kept.push(setting.name());
            }
        }
        if self.when == When::Ended {
            self.base.config = Bytes(config.to_vec());
            if !kept.is_empty() {
                kept.sort();
                kept.dedup();
                self.done.warnings.push(printable(&format!(
                    "configuration that the session changed stays with it: {}",
                    kept.join(", ")
                )));
            }
        }
        Ok(())
    }

    /// Removes the host's entry of a worktree that the session removed, if the host did not change it meanwhile.
    fn remove_entry(&mut self, id: &str) -> Result<(), Error> {
        let Some(worktrees) = self.host.child("worktrees".as_ref())? else { return Ok(()) };
        let Some(dir) = worktrees.child(id.as_ref())? else {
            self.base.own.remove(id);
            self.base.units.remove(id);
            return Ok(());
        };
        let base = self.base.units.get(id).cloned().unwrap_or_default();
        let gitdir = dir.read("gitdir".as_ref(), POINTER_LIMIT)?.map(|content| content.bytes).unwrap_or_default();
        let place = dir.path().to_owned();
        let there = entry::gitdir_target(&place, &gitdir).is_some_and(|file| file.parent().is_some_and(Path::exists));
        let head = unit::head(&dir, self.kind)?.map(|head| head.text()).unwrap_or_default();
        let index = Entries::read(&dir, "index".as_ref(), self.kind, true)?;
        let same = head == base.head.0
            && unit::in_progress(&dir)?.is_none()
            && index.same(&self.base.index(self.place, id, self.kind)?);
        let why = if there {
            "its directory is still there"
        } else if !same {
            "it was changed on the host meanwhile"
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

/// Keeps what only the shadow has under refs of the session on the host: branches, detached HEADs, stash entries.
pub(crate) fn rescue(
    place: &Place,
    repository: &Repository,
    git: &Git,
    session: &str,
) -> Result<Imported, Error> {
    let Some(base) = Base::load(place)? else { return Ok(Imported::default()) };
    let host = Dir::open(&repository.common_dir)?;
    let kind = super::hash_kind(&host)?;
    let shadow = match Dir::open(&place.git()) {
        Ok(shadow) if super::is_whole(&shadow)? => shadow,
        _ => return Ok(destroyed(repository)),
    };
    let base_refs = Refs::from_text(&base.refs.0);
    let mut import = Import {
        place,
        repository,
        git,
        session,
        when: When::Ended,
        host,
        shadow,
        kind,
        base,
        base_refs,
        done: Imported::default(),
        held: BTreeSet::new(),
        refused: BTreeMap::new(),
    };
    import.rescue()?;
    Ok(import.done)
}

impl Import<'_> {
    fn rescue(&mut self) -> Result<(), Error> {
        let ours = refs::read(&self.shadow, self.kind)?;
        let mut left: Vec<(BString, ObjectId)> = self
            .moved(&ours)
            .into_iter()
            .filter_map(|name| Some((name.clone(), ours.object(name.as_bstr())?)))
            .collect();
        for snapshot in self.snapshots()? {
            if let (true, Some(Target::Object(id))) = (snapshot.touched, &snapshot.head) {
                let name = if snapshot.name == MAIN { "HEAD" } else { snapshot.name.as_str() };
                left.push((format!("refs/detached/{name}").into(), *id));
            }
        }
        let known: BTreeSet<&str> = self.base.stash.iter().map(String::as_str).collect();
        for (number, entry) in stash::read(&self.shadow, self.kind)?.iter().enumerate() {
            if !known.contains(entry.id.to_string().as_str()) {
                left.push((format!("refs/stash/{number}").into(), entry.id));
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        let tips: Vec<ObjectId> = left.iter().map(|(_, id)| *id).collect();
        let shadow = Dir::open(self.shadow.path())?;
        let store = Store::new(self.git, &shadow, &self.place.quarantine(), self.kind, self.is_promisor()?)
            .borrowing(vec![self.place.kept()]);
        let _ = store.gather()?;
        let refused: BTreeMap<ObjectId, String> =
            store.admit(&tips)?.refused().map(|(id, why)| (*id, why.to_owned())).collect();
        self.refused = refused;
        for (name, tip) in left {
            match self.keep(name.as_bstr(), tip)? {
                Some(kept) => self.done.warnings.push(printable(&format!(
                    "{} of the session is not on the host; it is kept as {kept}",
                    name.to_str_lossy()
                ))),
                None => self.done.warnings.push(printable(&format!("{tip} could not be kept"))),
            }
        }
        store.release()?;
        Ok(())
    }
}
