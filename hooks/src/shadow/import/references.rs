//! Refs that belong to no checkout, by compare-and-swap: creations and moves first, deletions last. The host wins a
//! conflict, and the session's tip is kept beside it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;

use gix::ObjectId;
use gix::bstr::{BStr, BString, ByteSlice as _};

use super::{Import, MESSAGE, When};
use crate::shadow::base::{self, MAIN};
use crate::shadow::refs::{self, Refs, Target};
use crate::shadow::{Error, settings};
use crate::text::printable;

impl Import<'_> {
    pub(super) fn refs(
        &mut self,
        moved: &[BString],
        ours: &Refs,
        used: &BTreeMap<BString, Vec<String>>,
    ) -> Result<(), Error> {
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
            if let Some(remote) = remotes.of(name.as_bstr())
                && (!remote.agrees || h != b.as_ref())
            {
                continue;
            }
            let h = h.and_then(Target::object);
            let b = b.as_ref().and_then(Target::object);
            if h == b || h.is_some_and(|h| self.git.is_ancestor(h, *new)) {
                if self.when == When::Live && h.is_some_and(|h| self.loses(name.as_bstr(), h, *new)) {
                    // The turn goes on; its end decides.
                    continue;
                }
                updates.push((name.clone(), *new, h));
            } else if h.is_some_and(|h| self.git.is_ancestor(*new, h)) {
                // The host has it, and more.
            } else {
                self.stays(name.as_bstr(), *new, "it has moved on the host meanwhile")?;
            }
        }
        let mut deletions = Vec::new();
        for name in gone {
            if let Some(old) = self.may_delete(name.as_bstr(), &host, used, &remotes) {
                deletions.push((name, old));
            }
        }
        self.spare(&updates, &deletions, &host)?;
        self.update(&updates, &deletions)?;
        for (name, old) in deletions {
            self.delete(name.as_bstr(), old);
        }
        Ok(())
    }

    /// What of a ref, that the session moves or deletes, others had there; `None` where it is the session's own.
    fn theirs(&self, name: &BStr, old: ObjectId) -> Option<ObjectId> {
        let shown = name.to_str_lossy();
        if name.starts_with(b"refs/remotes/") || self.base.created.contains(shown.as_ref()) {
            return None;
        }
        // What the session itself has put there since is its own.
        let last = self.base.theirs.get(shown.as_ref());
        Some(last.and_then(|id| ObjectId::from_hex(id.as_bytes()).ok()).unwrap_or(old))
    }

    /// Whether a move takes a name from what others have made.
    pub(super) fn loses(&self, name: &BStr, old: ObjectId, new: ObjectId) -> bool {
        self.theirs(name, old).is_some_and(|theirs| !self.git.is_ancestor(theirs, new))
    }

    /// Remembers who has made what a ref holds, once the session has moved it.
    pub(super) fn remember_theirs(&mut self, name: &BStr, old: Option<ObjectId>) {
        let shown = name.to_str_lossy().into_owned();
        match old {
            None => drop(self.base.created.insert(shown)),
            Some(_) if self.base.created.contains(&shown) => {}
            Some(old) => drop(self.base.theirs.entry(shown).or_insert_with(|| old.to_string())),
        }
    }

    /// Keeps what others had in refs that are moved or deleted, where no other ref reaches it.
    pub(super) fn spare(
        &mut self,
        updates: &[(BString, ObjectId, Option<ObjectId>)],
        deletions: &[(&BString, ObjectId)],
        host: &Refs,
    ) -> Result<(), Error> {
        let mut losing: Vec<(&BString, ObjectId, &str)> = Vec::new();
        for (name, _, old) in updates {
            if let Some(theirs) = old.and_then(|old| self.theirs(name.as_bstr(), old)) {
                losing.push((name, theirs, "replaced"));
            }
        }
        for (name, old) in deletions {
            if self.theirs(name.as_bstr(), *old).is_some() {
                losing.push((name, *old, "deleted"));
            }
        }
        if losing.is_empty() {
            return Ok(());
        }
        let changed: BTreeSet<&BString> =
            updates.iter().map(|(name, ..)| name).chain(deletions.iter().map(|(name, _)| *name)).collect();
        let stay =
            host.map.iter().filter(|(name, _)| !changed.contains(name)).filter_map(|(_, to)| to.object());
        let stay = stay.chain(updates.iter().map(|(_, new, _)| *new));
        let lost = self.unreached(losing.iter().map(|(_, tip, _)| *tip), stay);
        for (name, tip, how) in losing {
            if lost.as_ref().is_some_and(|lost| !lost.contains(&tip)) {
                continue;
            }
            // Somebody else's work, merged nowhere: what happens to its name must not lose it.
            let shown = name.to_str_lossy();
            let place = format!("refs/{how}/{}", shown.strip_prefix("refs/").unwrap_or(&shown));
            match self.keep(place.as_bytes().as_bstr(), tip)? {
                Some(kept) => self.done.warnings.push(printable(&format!(
                    "{shown} was {how} by the session; its commits are nowhere else, so they are kept as {kept}"
                ))),
                None => drop(self.held.insert(name.clone())),
            }
        }
        Ok(())
    }

    /// Keeps what others have in the detached HEAD of a checkout that the session takes elsewhere, or away. `false`: it
    /// could not be kept.
    pub(super) fn spare_detached(&mut self, unit: &str, new: Option<ObjectId>) -> Result<bool, Error> {
        let key = base::detached(unit);
        let theirs = self.base.theirs.get(&key).and_then(|id| ObjectId::from_hex(id.as_bytes()).ok());
        let Some(theirs) = theirs else { return Ok(true) };
        let host = refs::read(&self.host, self.kind)?;
        let stay = host.map.values().filter_map(Target::object).chain(new);
        if self.unreached(std::iter::once(theirs), stay).is_some_and(|lost| !lost.contains(&theirs)) {
            return Ok(true);
        }
        let name = if unit == MAIN { "HEAD" } else { unit };
        let Some(kept) = self.keep(format!("refs/detached/{name}").as_bytes().as_bstr(), theirs)? else {
            return Ok(false);
        };
        self.base.theirs.remove(&key);
        self.done.warnings.push(format!(
            "the session left commits of others that were checked out without a branch; they are kept as {kept}"
        ));
        Ok(true)
    }

    /// Which of these are in the history of none of those. `None` where that cannot be known.
    pub(super) fn unreached(
        &self,
        tips: impl Iterator<Item = ObjectId>,
        from: impl Iterator<Item = ObjectId>,
    ) -> Option<HashSet<ObjectId>> {
        // One git for all of them: there may be thousands.
        let mut input = String::new();
        for tip in tips {
            let _ = writeln!(input, "{tip}");
        }
        for tip in from {
            let _ = writeln!(input, "^{tip}");
        }
        let listed = self.git.run(["rev-list", "--ignore-missing", "--stdin"], input.as_bytes()).ok()?;
        Some(listed.split(|byte| *byte == b'\n').filter_map(|line| ObjectId::from_hex(line).ok()).collect())
    }

    pub(super) fn stays(&mut self, name: &BStr, tip: ObjectId, why: &str) -> Result<(), Error> {
        if self.when == When::Live {
            // The turn goes on; its end decides.
            return Ok(());
        }
        let kept = self.keep(name, tip)?;
        let shown = name.to_str_lossy();
        let merge =
            kept.map(|kept| format!("; the session's is {kept}, to take it over: `git merge {kept}`"));
        let detail = format!("{shown} stays as the host has it: {why}{}", merge.unwrap_or_default());
        let path = self.host.path().join(OsStr::from_bytes(name));
        self.report("conflict", None, &path, &shown, &tip.to_string(), &detail);
        Ok(())
    }

    /// Moves refs by compare-and-swap: all in one transaction, and each alone where that fails.
    pub(super) fn update(
        &mut self,
        updates: &[(BString, ObjectId, Option<ObjectId>)],
        deletions: &[(&BString, ObjectId)],
    ) -> Result<(), Error> {
        let updates: Vec<_> = updates.iter().filter(|(name, ..)| !self.held.contains(name)).collect();
        if updates.is_empty() {
            return Ok(());
        }
        for (name, new, _) in &updates {
            self.base.pending.insert(name.to_str_lossy().into_owned(), new.to_string());
        }
        self.base.store(self.place)?;
        let null = ObjectId::null(self.kind);
        let line = |(name, new, old): &(BString, ObjectId, Option<ObjectId>)| {
            let values = format!(" {new} {}\n", old.unwrap_or(null));
            [b"option no-deref\nupdate ", name.as_slice(), values.as_bytes()].concat()
        };
        let lines: Vec<Vec<u8>> = updates.iter().map(|update| line(update)).collect();
        let mut done = vec![false; lines.len()];
        self.by_halves(&lines, &mut done);
        for (update, mut moved) in updates.into_iter().zip(done) {
            let (name, new, old) = update;
            if !moved {
                // `feat` was deleted and `feat/x` made: the one has to go before the other can come.
                let above = deletions.iter().find(|(above, _)| {
                    name.starts_with(&[above.as_slice(), b"/"].concat())
                        || above.starts_with(&[name.as_slice(), b"/"].concat())
                });
                if let Some((above, old)) = above
                    && self.may_try()
                    && !self.held.contains(*above)
                    && self.remove_ref(above.as_bstr(), *old)
                {
                    moved = self.transact(&line(update));
                    if moved {
                        self.base_refs.map.remove(*above);
                        self.base.created.remove(above.to_str_lossy().as_ref());
                    } else {
                        let values = format!(" {old}\n");
                        let back =
                            [b"option no-deref\ncreate ", above.as_slice(), values.as_bytes()].concat();
                        self.transact(&back);
                    }
                }
            }
            if moved {
                self.remember_theirs(name.as_bstr(), *old);
                self.base_refs.map.insert(name.clone(), Target::Object(*new));
                self.done.promoted.push(format!("{} {new}", name.to_str_lossy()));
            } else {
                self.stays(
                    name.as_bstr(),
                    *new,
                    "it has just moved on the host, or another ref is in its way",
                )?;
            }
        }
        Ok(())
    }

    /// Commands for `git update-ref`: all at once, or by halves down to those that fail.
    fn by_halves(&mut self, lines: &[Vec<u8>], done: &mut [bool]) {
        if lines.is_empty() || !self.may_try() {
            return;
        }
        if self.transact(&lines.concat()) {
            done.fill(true);
        } else if lines.len() > 1 {
            let middle = lines.len() / 2;
            let (first, second) = done.split_at_mut(middle);
            self.by_halves(&lines[..middle], first);
            self.by_halves(&lines[middle..], second);
        }
    }

    /// Commands for `git update-ref`: all of them, or none.
    fn transact(&self, commands: &[u8]) -> bool {
        self.git.run(["update-ref", "--stdin", "-m", MESSAGE], commands).is_ok()
    }

    fn remove_ref(&self, name: &BStr, old: ObjectId) -> bool {
        let old = format!(" {old}\n");
        self.transact(&[b"option no-deref\ndelete ", name.as_bytes(), old.as_bytes()].concat())
    }

    pub(super) fn symbolic(
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
            if self
                .git
                .run(["symbolic-ref", "-m", MESSAGE, name_text.as_ref(), to_text.as_ref()], b"")
                .is_ok()
            {
                self.base_refs.map.insert(name.into(), target.clone());
            }
        }
        Ok(())
    }

    /// What a ref that the session deleted holds on the host, if it may be deleted there.
    fn may_delete(
        &mut self,
        name: &BStr,
        host: &Refs,
        used: &BTreeMap<BString, Vec<String>>,
        remotes: &settings::Remotes,
    ) -> Option<ObjectId> {
        let old = self.base_refs.object(name)?;
        let shown = name.to_str_lossy().into_owned();
        let Some(there) = host.object(name) else {
            self.base_refs.map.remove(name);
            self.base.created.remove(&shown);
            return None;
        };
        if self.held.contains(name) || there != old {
            return None;
        }
        if name.starts_with(b"refs/remotes/") && !remotes.of(name).is_some_and(|remote| remote.agrees) {
            return None;
        }
        if name.starts_with(b"refs/tags/") {
            self.done
                .warnings
                .push(printable(&format!("{shown} was deleted in the session; the host keeps it")));
            return None;
        }
        if used.contains_key(name) {
            let why = format!("{shown} was deleted in the session; it is checked out on the host, and stays");
            self.done.warnings.push(printable(&why));
            return None;
        }
        Some(old)
    }

    fn delete(&mut self, name: &BStr, old: ObjectId) {
        // One that could not be kept stays, and one that was in the way of another is gone.
        if self.held.contains(name) || !self.base_refs.map.contains_key(name) || !self.remove_ref(name, old) {
            return;
        }
        let shown = name.to_str_lossy().into_owned();
        self.base_refs.map.remove(name);
        self.base.created.remove(&shown);
        self.base.theirs.remove(&shown);
        self.done.promoted.push(format!("{shown} deleted"));
        if let Some(branch) = name.strip_prefix(b"refs/heads/") {
            settings::forget_branch(self.git, &branch.to_str_lossy());
        }
    }
}
