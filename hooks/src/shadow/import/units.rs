//! Units on their way to the host: index, branch, HEAD, in this order, under git's locks; and the worktree entries that
//! they belong to.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use gix::ObjectId;
use gix::bstr::{BString, ByteSlice as _};

use super::snapshot::{Snapshot, pointer_to};
use super::{Import, MESSAGE, When};
use crate::bytes::Bytes;
use crate::entry::COMMONDIR;
use crate::read::Dir;
use crate::shadow::base::{MAIN, UnitBase};
use crate::shadow::index::{self, Entries, Flags};
use crate::shadow::refs::{self, Refs, Target};
use crate::shadow::transaction::{self, LockedRef};
use crate::shadow::{Error, unit, write};
use crate::text::printable;
use crate::tree;

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

impl Import<'_> {
    pub(super) fn unit(
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
                    let name = if snapshot.name == MAIN {
                        "HEAD".to_owned()
                    } else {
                        format!("{}/HEAD", snapshot.name)
                    };
                    kept.extend(self.keep(format!("refs/detached/{name}").as_bytes().as_bstr(), tip)?);
                }
                let merge =
                    kept.iter().map(|name| format!("`git merge {name}`")).collect::<Vec<_>>().join(", ");
                let merge =
                    if merge.is_empty() { String::new() } else { format!("; to take it over: {merge}") };
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

    /// The branches that belong to a unit: that which HEAD named before, and that which it names now.
    pub(super) fn unit_refs(&self, snapshot: &Snapshot) -> BTreeSet<BString> {
        let base =
            self.base.units.get(&snapshot.name).and_then(|unit| Target::parse(&unit.head.0, self.kind));
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
        if self.when == When::Live && !self.is_current(snapshot, ours)? {
            return Ok(Stays::Conflict("the session is changing it".to_owned()));
        }
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
        for (id, _) in self.new_objects(snapshot)? {
            if let Some(why) = self.refused.get(&id) {
                return Ok(Stays::Refused(format!("object {id} of its index is not brought over: {why}")));
            }
        }
        if self.uncommitted_modules(snapshot, &head, ours)? {
            return Ok(Stays::Refused("a changed .gitmodules comes only with a commit".to_owned()));
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
            Some(worktree) if self.is_named(worktree, &snapshot.name)? => {
                return Ok(Stays::Conflict("the host has another entry for its directory".to_owned()));
            }
            Some(worktree) => match self.reserve(snapshot, worktree)? {
                Some(reserved) => reserved,
                None => return Ok(Stays::Conflict("no name is free for its entry".to_owned())),
            },
        };
        let base = self.base.units.get(&id).cloned();
        let stays =
            self.write_unit(snapshot, &id, &host, &head, theirs, base.as_ref(), ours, host_refs, used)?;
        if snapshot.new.is_some() && !matches!(stays, Stays::Moved) {
            // Nothing of it stands on the host; the name is given back.
            if let Some(worktrees) = self.host.child("worktrees".as_ref())? {
                tree::remove(&worktrees, id.as_ref())?;
            }
        }
        Ok(stays)
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
                if s != h || is_head {
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
            if self.when == When::Live && h.is_some_and(|h| self.loses(name.as_bstr(), h, s)) {
                return conflict("others have commits there that the session's history leaves out");
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
        // A new worktree has the submodules that the main checkout has.
        let known = match (&snapshot.new, merged.new_gitlinks.is_empty()) {
            (Some(_), false) => Entries::read(&self.host, "index".as_ref(), self.kind, true)?,
            _ => Entries::empty(self.kind),
        };
        let is_known = |name: &&BString| known.get(name.as_bstr()).is_some_and(index::Entry::is_gitlink);
        let new: Vec<&BString> = merged.new_gitlinks.iter().filter(|name| !is_known(name)).collect();
        if !new.is_empty() {
            let names: Vec<_> = new.iter().map(|name| name.to_str_lossy().into_owned()).collect();
            return Ok(Stays::Refused(format!(
                "{} is a repository of its own (a submodule), which does not come with it",
                names.join(", ")
            )));
        }
        // What others had in the branches, and the session's history leaves out.
        let moves: Vec<_> =
            locked.iter().map(|(lock, new)| (lock.name().to_owned(), *new, lock.old())).collect();
        self.spare(&moves, &[], host_refs)?;
        if moves.iter().any(|(name, ..)| self.held.contains(name)) {
            return conflict("others have commits there that could not be kept");
        }
        if matches!(there, Some(Target::Object(_))) && there.as_ref() != Some(head) {
            let new = match head {
                Target::Object(new) => Some(*new),
                Target::Symbolic(name) => ours.object(name.as_bstr()),
            };
            if !self.spare_detached(id, new)? {
                return conflict("others have commits there that could not be kept");
            }
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
            transaction::log(&self.host, Path::new(OsStr::from_bytes(name)), lock.old(), *new, MESSAGE);
            self.base_refs.map.insert(name.into(), Target::Object(*new));
            self.done.promoted.push(format!("{} {new}", name.to_str_lossy()));
            self.remember_theirs(lock.name(), lock.old());
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
            transaction::log(host, Path::new("HEAD"), from, to, MESSAGE);
        }
        if let Some(worktree) = &snapshot.new {
            let pointer = pointer_to(worktree);
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
}
