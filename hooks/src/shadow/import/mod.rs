//! Import: what a session did in its shadow comes to the host, by value.
//!
//! The order is that of which a kill at any point leaves nothing worse than work that is staged already: objects,
//! connectivity, locks, then of each unit the index, the branch, HEAD; then other refs, creations before deletions; then
//! the record of what both sides agree on. Everything is a comparison with that record, so it can be done again.

mod aside;
mod references;
mod rescue;
mod snapshot;
mod units;
mod worktrees;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use codeoid_spec::git::{Checkout, Repository};
use codeoid_spec::report::{Action, Finding};
use gix::ObjectId;
use gix::bstr::{BString, ByteSlice as _};
use gix::object;
use nix::errno::Errno;

pub(crate) use rescue::rescue;
use snapshot::Snapshot;

use super::base::{Base, MAIN};
use super::git::Git;
use super::objects::Store;
use super::place::Place;
use super::refs::{self, Refs, Target};
use super::{Error, lfs, recovery, settings, stash, unit};
use crate::bytes::Bytes;
use crate::lock::{self, Mode};
use crate::read::{self, Dir, Kind, POINTER_LIMIT};
use crate::text::printable;

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
    /// Whether the session has something that the host has not.
    pub(crate) left: bool,
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
    /// Steps that were taken for single refs.
    steps: u32,
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
    let mut import = match Import::open(place, repository, git, session, when)? {
        Opened::Ready(import) => *import,
        Opened::Nothing(imported) => return Ok(imported),
    };
    match import.all(repository_lock) {
        Ok(()) => Ok(import.done),
        // Whatever a turn has put there (a `packed-refs` beyond all measure, a directory that nobody may read), it
        // must not keep the host from going on.
        Err(error) if error.is_below(&place.git()) => Ok(destroyed(repository)),
        Err(error) => Err(error),
    }
}

/// How many names a sentence lists.
const SHOWN: usize = 20;
/// The most entries that one import brings to the stash.
const STASHED: usize = 200;
/// The most findings of one import.
const FINDINGS: usize = 20;
/// The most steps for single refs in one import, each of which may start git a few times.
const STEPS: u32 = 500;

/// How [`Base::created`] names an entry of the stash.
fn own_stash(id: &str) -> String {
    format!("stash {id}")
}

fn destroyed(repository: &Repository) -> Imported {
    let detail = "the session destroyed its view of the git dir; the host's was never touched, and what was not \
                  brought over before is kept in the session's state";
    Imported {
        left: true,
        findings: vec![finding("shadow-destroyed", None, &repository.common_dir, detail)],
        ..Imported::default()
    }
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

/// An import that can begin, or what there is to say where there is nothing to import.
enum Opened<'a> {
    Ready(Box<Import<'a>>),
    Nothing(Imported),
}

impl<'a> Import<'a> {
    fn open(
        place: &'a Place,
        repository: &'a Repository,
        git: &'a Git,
        session: &'a str,
        when: When,
    ) -> Result<Opened<'a>, Error> {
        let Some(base) = Base::load(place)? else { return Ok(Opened::Nothing(Imported::default())) };
        let host = Dir::open(&repository.common_dir)?;
        let kind = super::hash_kind(&host)?;
        let shadow = match Dir::open(&place.git()) {
            Ok(shadow) if super::is_whole(&shadow).unwrap_or(false) => shadow,
            Ok(_) | Err(read::Error::NotDirectory { .. }) => {
                return Ok(Opened::Nothing(destroyed(repository)));
            }
            Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::EACCES)) => {
                return Ok(Opened::Nothing(destroyed(repository)));
            }
            Err(error) => return Err(error.into()),
        };
        let base_refs = Refs::from_text(&base.refs.0);
        Ok(Opened::Ready(Box::new(Self {
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
            steps: 0,
        })))
    }
}

impl Import<'_> {
    pub(super) fn all(&mut self, repository_lock: &Path) -> Result<(), Error> {
        let ours = refs::read(&self.shadow, self.kind)?;
        let stashed = stash::read(&self.shadow, self.kind)?;
        let config = self.shadow.read("config".as_ref(), POINTER_LIMIT).ok().flatten();
        let config = config.map(|content| content.bytes).unwrap_or_default();
        let snapshots = self.snapshots()?;
        let removed = self.removed(&snapshots);
        let moved: Vec<BString> = self.moved(&ours);
        let new_stash: Vec<&stash::Entry> = {
            let known: BTreeSet<&str> = self.base.stash.iter().map(String::as_str).collect();
            let mut seen = BTreeSet::new();
            let is_new = |entry: &&stash::Entry| {
                !known.contains(entry.id.to_string().as_str()) && seen.insert(entry.id)
            };
            stashed.iter().filter(is_new).take(STASHED).collect()
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
            && snapshots.iter().all(|snapshot| snapshot.moved.is_none())
            && settings.is_empty();
        let named = self.when == When::Ended && self.name_hooks();
        if nothing {
            if self.when == When::Ended && (named || !self.base.promoted.is_empty()) {
                self.done.promoted = std::mem::take(&mut self.base.promoted);
                self.base.store(self.place)?;
            }
            return Ok(());
        }

        recovery::begin(self.place)?;
        // Objects first, outside the lock: packing takes as long as it takes.
        let mut tips: BTreeSet<ObjectId> =
            moved.iter().filter_map(|name| ours.object(name.as_bstr())).collect();
        tips.extend(new_stash.iter().map(|entry| entry.id));
        let mut typed = Vec::new();
        for snapshot in &touched {
            if let Some(Target::Object(id)) = snapshot.head {
                tips.insert(id);
            }
            let objects = self.new_objects(snapshot)?;
            tips.extend(objects.iter().map(|(id, _)| *id));
            typed.extend(objects);
        }
        let shadow = Dir::open(self.shadow.path())?;
        let store = Store::new(self.git, &shadow, &self.place.quarantine(), self.kind, self.is_promisor()?)
            .borrowing(vec![self.place.kept()]);
        let tips: Vec<ObjectId> = tips.into_iter().collect();
        if !tips.is_empty() {
            let _ = store.gather()?;
            for (id, why) in store.admit(&tips)?.refused() {
                self.refused.insert(*id, why.to_owned());
            }
            self.judge_types(&typed)?;
        }

        lfs::import(&self.host, &self.shadow)?;
        let _lock = lock::file(repository_lock, Mode::Exclusive)?;
        let host_refs = refs::read(&self.host, self.kind)?;
        self.settle_pending(&host_refs);
        for snapshot in &snapshots {
            self.follow_move(snapshot)?;
        }
        if self.when == When::Live {
            self.hold_workspace()?;
        }
        let mut used = self.used()?;
        if !removed.is_empty() {
            let replaced: Vec<&Path> =
                touched.iter().filter_map(|snapshot| snapshot.new.as_deref()).collect();
            for id in removed {
                self.remove_entry(&id, &replaced)?;
            }
            // The branches that they held may be used now.
            used = self.used()?;
        }
        for snapshot in &touched {
            self.unit(snapshot, &ours, &host_refs, &mut used)?;
        }
        self.refs(&moved, &ours, &used)?;
        self.stash(&new_stash, &dropped)?;
        if !settings.is_empty() {
            self.settings(&settings, &config, &ours)?;
        }
        self.base.refs = Bytes(self.base_refs.to_text());
        self.base.promoted.append(&mut self.done.promoted);
        if self.when == When::Ended {
            self.done.promoted = std::mem::take(&mut self.base.promoted);
        }
        self.base.store(self.place)?;
        if !tips.is_empty() && !store.is_settled() {
            let tips: Vec<ObjectId> =
                tips.into_iter().filter(|tip| !self.refused.contains_key(tip)).collect();
            store.secure(&tips, host_refs.map.values().filter_map(Target::object).collect())?;
        }
        store.release()?;
        recovery::end(self.place)
    }

    /// While a turn runs, the branches of the checkout that it works in stay, even one that the human has left meanwhile:
    /// a branch comes with its index, at the turn's end.
    fn hold_workspace(&mut self) -> Result<(), Error> {
        let (name, dir) = match &self.repository.checkout {
            Checkout::Main { .. } => (MAIN, self.shadow.child(".".as_ref())),
            Checkout::Linked { entry, .. } => {
                (entry.as_str(), self.shadow.beneath(&Path::new("worktrees").join(entry)))
            }
            Checkout::Bare => return Ok(()),
        };
        let base = self.base.units.get(name).and_then(|unit| Target::parse(&unit.head.0, self.kind));
        if let Some(Target::Symbolic(branch)) = base {
            self.held.insert(branch);
        }
        if let Ok(Some(dir)) = dir {
            self.held.extend(unit::branches(&dir, self.kind)?);
        }
        Ok(())
    }

    /// Refuses objects that an index names as something else than they are: git finds that out when it needs them.
    fn judge_types(&mut self, typed: &[(ObjectId, object::Kind)]) -> Result<(), Error> {
        if typed.is_empty() {
            return Ok(());
        }
        let asked: String = typed.iter().map(|(id, _)| format!("{id}\n")).collect();
        let answers = self.git.run(["cat-file", "--batch-check=%(objecttype)"], asked.as_bytes())?;
        let mut answers = answers.split(|byte| *byte == b'\n');
        for (id, kind) in typed {
            let answer = answers.next().unwrap_or_default();
            if answer != kind.as_bytes() && !self.refused.contains_key(id) {
                self.refused.insert(*id, format!("it is no {kind}"));
            }
        }
        Ok(())
    }

    /// Names the hooks that the session has made or changed, once: they run for it, and never on the host. Whether
    /// there is something new.
    fn name_hooks(&mut self) -> bool {
        let hooks = |dir: &Dir| dir.child("hooks".as_ref()).ok().flatten();
        let Some(ours) = hooks(&self.shadow) else { return false };
        let host = hooks(&self.host);
        let read =
            |dir: &Dir, name: &OsStr| dir.read(name, POINTER_LIMIT).ok().flatten().map(|file| file.bytes);
        let mut names: Vec<String> = ours
            .list()
            .unwrap_or_default()
            .iter()
            .filter(|item| item.kind == Kind::File && !item.name.as_bytes().ends_with(b".sample"))
            .filter(|item| host.as_ref().and_then(|host| read(host, &item.name)) != read(&ours, &item.name))
            .map(|item| item.name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        let names = names.join(", ");
        let known = self.base.reported.get("hooks").map_or("", String::as_str);
        if names == known {
            return false;
        }
        if !names.is_empty() {
            self.done.warnings.push(printable(&format!(
                "hooks of the session stay with it, and run in its turns only: {names}"
            )));
        }
        self.base.reported.insert("hooks".to_owned(), names);
        true
    }

    /// Refs that a killed import has moved already.
    pub(super) fn settle_pending(&mut self, host: &Refs) {
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
    pub(super) fn moved(&self, ours: &Refs) -> Vec<BString> {
        let names: BTreeSet<&BString> = ours.map.keys().chain(self.base_refs.map.keys()).collect();
        // Without a HEAD, or with a `packed-refs` that is none, git does nothing there: what is missing was not deleted
        // by it.
        let head = unit::head(&self.shadow, self.kind).ok().flatten();
        let deletions = self.when == When::Ended && head.is_some() && !ours.damaged;
        names
            .into_iter()
            .filter(|name| {
                !ours.broken.contains(*name)
                    && ours.map.get(*name) != self.base_refs.map.get(*name)
                    && refs::is_importable(name.as_bstr())
                    && (deletions || ours.map.contains_key(*name))
            })
            .cloned()
            .collect()
    }

    pub(super) fn is_promisor(&self) -> Result<bool, Error> {
        let config = self.host.read("config".as_ref(), POINTER_LIMIT)?.map(|content| content.bytes);
        let file = crate::config::File::parse(&config.unwrap_or_default()).unwrap_or_default();
        Ok(file.last("extensions", "partialclone").is_some())
    }

    /// Which branches a checkout of the host holds fast, and which checkout: an entry's name, or none for the main one.
    pub(super) fn used(&self) -> Result<BTreeMap<BString, Vec<String>>, Error> {
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

    /// Reports something once, as long as it stays the same.
    pub(super) fn report(
        &mut self,
        kind: &str,
        entry: Option<&str>,
        path: &Path,
        key: &str,
        state: &str,
        detail: &str,
    ) {
        let key = format!("{kind} {key}");
        if self.when == When::Live {
            return;
        }
        self.base.reported.insert(key, state.to_owned());
        match self.done.findings.len() {
            ..FINDINGS => self.done.findings.push(finding(kind, entry, path, detail)),
            FINDINGS => {
                let detail = "there is more of this kind; what does not come stays with the session";
                self.done.findings.push(finding(kind, None, self.host.path(), detail));
            }
            _ => {}
        }
    }

    /// Whether one more step may be taken for a single ref. A turn can make a million refs that stand in the way of each
    /// other; what is not looked at stays with the session.
    pub(super) fn may_try(&mut self) -> bool {
        self.steps += 1;
        self.steps <= STEPS
    }
}
