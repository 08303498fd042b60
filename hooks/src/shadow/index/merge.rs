//! The three-way merge by entries.

use gix::ObjectId;
use gix::bstr::{BStr, BString, ByteSlice as _};
use gix::object;

use super::encode;
use super::{ASSUME_VALID, Entries, Entry, Error, Flags, INTENT_TO_ADD, SKIP_WORKTREE, STAGE, Side, Stat};

/// What the session changed, laid over the host's index. Path by path the host wins: where both changed what is
/// staged, and differently, the host's entry stays and the path is a conflict.
///
/// An index belongs to the commit that is checked out. With a conflict in it, the session's commit must not become
/// the host's `HEAD`: the host's entry would then undo the session's work in the next commit.
#[derive(Debug, Clone)]
pub struct Merged {
    /// Paths whose entries are others than in the host's index, sorted.
    pub changed: Vec<BString>,
    /// Paths where the host's entry, or its absence, stayed against a change of the session; sorted.
    pub conflicts: Vec<BString>,
    /// Paths among the changed ones that are gitlinks and were none on the host: git fails on these in a checkout
    /// as long as the repository that they need is not there.
    pub new_gitlinks: Vec<BString>,
    /// Paths among the changed ones that are gitlinks on the host, too, with another commit.
    pub moved_gitlinks: Vec<BString>,
    objects: Vec<(ObjectId, object::Kind)>,
    flags: Flags,
    result: Entries,
}

impl Merged {
    /// Whether the host's index has all entries already: then it need not be written.
    #[must_use]
    pub const fn is_noop(&self) -> bool {
        self.changed.is_empty()
    }

    /// The bytes of the new index file. What was not changed keeps its stat data. What was has none, so that git
    /// looks at these files: a turn could state stat data that make an edited file look clean.
    ///
    /// # Errors
    /// [`Error::Checksum`], [`Error::TooLarge`].
    pub fn bytes(&self) -> Result<Vec<u8>, Error> {
        encode::bytes(&self.result)
    }

    /// The entries of the new index.
    #[must_use]
    pub const fn entries(&self) -> &Entries {
        &self.result
    }

    /// The objects that the session's entries need where the host's do not, gitlinks left out, and what each is.
    #[must_use]
    pub fn objects(&self) -> &[(ObjectId, object::Kind)] {
        &self.objects
    }

    /// What is the same on both sides once the new index is written: the base of the next merge. Where they still
    /// differ it is the old base, so that a conflict stays one, and what only one side changed stays its change.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn base(&self, old: Option<&Entries>, shadow: &Entries) -> Result<Entries, Error> {
        let mask = self.flags.mask();
        let none = Entries::empty(shadow.kind);
        let mut base = Entries { compressed: shadow.compressed, sparse: shadow.sparse, ..none.clone() };
        for (path, [old, result, shadow]) in join([old.unwrap_or(&none), &self.result, shadow]) {
            let entry = if content(result) != content(shadow) {
                old.copied()
            } else {
                // Flags that are not merged are the shadow's, so that an unchanged shadow equals its base.
                shadow.zip(result).map(|(shadow, result)| {
                    let apart = (shadow.flags ^ result.flags) & mask;
                    let was = old.map_or(0, |old| old.flags);
                    Entry { flags: shadow.flags & !apart | was & apart, ..*shadow }
                })
            };
            if let Some(entry) = entry {
                base.push(path, Entry { stat: Stat::NONE, ..entry })?;
            }
        }
        Ok(base)
    }
}

/// A change to the host's index.
struct Change<'a> {
    path: &'a BStr,
    host: Option<&'a Entry>,
    result: Option<Entry>,
    refused: bool,
}

/// Lays what the session changed (`shadow` against `base`) over the host's index. With another order of the
/// arguments it carries the host's changes into the shadow: `merge(base, shadow, host, Flags::Keep)`; then the
/// shadow wins. An unknown base is as an empty one: whatever both sides have is a conflict where it differs, and
/// nothing is deleted.
///
/// # Errors
/// [`Error::Unmerged`] where one side has an unfinished merge, [`Error::Hash`], [`Error::Sparse`] where a directory
/// would be left out that `flags` does not allow to leave out, [`Error::TooLarge`].
pub fn merge(
    base: Option<&Entries>,
    host: &Entries,
    shadow: &Entries,
    flags: Flags,
) -> Result<Merged, Error> {
    let none = Entries::empty(host.kind);
    let base = base.unwrap_or(&none);
    for (side, entries) in [(Side::Base, base), (Side::Host, host), (Side::Shadow, shadow)] {
        if entries.kind != host.kind {
            return Err(Error::Hash);
        }
        if entries.unmerged() {
            return Err(Error::Unmerged(side));
        }
    }
    let (mut changes, mut conflicts) = (Vec::new(), Vec::new());
    for (path, [base, host_entry, shadow]) in join([base, host, shadow]) {
        match resolve(base, host_entry, shadow, flags) {
            Resolved::Same => {}
            Resolved::Conflict => conflicts.push(path.to_owned()),
            Resolved::Changed(mut result) => {
                if let (Some(result), Some(shadow)) = (&mut result, shadow) {
                    leave_out(path, result, shadow, host, flags)?;
                }
                if !result.as_ref().zip(host_entry).is_some_and(|(new, old)| new.same(old)) {
                    changes.push(Change { path, host: host_entry, result, refused: false });
                }
            }
        }
    }
    refuse_intended(&mut changes, host);
    refuse_clashes(&mut changes, host);
    conflicts.extend(changes.iter().filter(|change| change.refused).map(|change| change.path.to_owned()));
    conflicts.sort();
    changes.retain(|change| !change.refused);
    built(&changes, conflicts, host, flags)
}

enum Resolved {
    /// The host's entry stays.
    Same,
    /// The host's entry stays against another change.
    Conflict,
    Changed(Option<Entry>),
}

fn content(entry: Option<&Entry>) -> Option<(u32, ObjectId, u32)> {
    entry.map(Entry::content)
}

fn resolve(base: Option<&Entry>, host: Option<&Entry>, shadow: Option<&Entry>, flags: Flags) -> Resolved {
    let (was, ours, theirs) = (content(base), content(host), content(shadow));
    let taken = theirs != was && theirs != ours;
    if taken && ours != was {
        return Resolved::Conflict;
    }
    let chosen = if taken { shadow } else { host };
    let (Some(chosen), Some(shadow)) = (chosen, shadow) else {
        return if taken { Resolved::Changed(None) } else { Resolved::Same };
    };
    // A flag is merged by itself: who toggled it against the base has it.
    let of = |entry: Option<&Entry>| entry.map_or(0, |entry| entry.flags & (SKIP_WORKTREE | ASSUME_VALID));
    let toggled = (shadow.flags ^ of(base)) & flags.mask();
    let merged = of(host) & !toggled | shadow.flags & toggled;
    let flags = chosen.flags & (STAGE | INTENT_TO_ADD) | merged;
    let stat = if taken { Stat::NONE } else { chosen.stat };
    let result = Entry { flags, stat, ..*chosen };
    if host.is_some_and(|host| host.same(&result)) { Resolved::Same } else { Resolved::Changed(Some(result)) }
}

/// Sees to `skip-worktree` where an entry has another form than the host's: as a directory that stands for files, or
/// as files for which the host has a directory.
fn leave_out(
    path: &BStr,
    result: &mut Entry,
    shadow: &Entry,
    host: &Entries,
    flags: Flags,
) -> Result<(), Error> {
    if result.is_directory() {
        let below = host.below(path);
        // One that is new to the host is outside of its patterns, if it has any.
        let new = host.sparse && host.get(path[..path.len() - 1].as_bstr()).is_none();
        let out = below.iter().all(Entry::skipped) && (new || !below.is_empty());
        if flags == Flags::Drop && !out {
            return Err(Error::Sparse(path.to_owned()));
        }
        result.flags |= SKIP_WORKTREE;
    } else if shadow.skipped() && directories(path).any(|dir| host.get(dir).is_some()) {
        result.flags |= SKIP_WORKTREE;
    }
    Ok(())
}

/// The directories above a path, each with its slash.
fn directories(path: &BStr) -> impl Iterator<Item = &BStr> {
    let stem = path.strip_suffix(b"/").unwrap_or(path);
    stem.find_iter("/").map(move |slash| path[..=slash].as_bstr())
}

/// Refuses files that are only intended to be added where something is left out of the checkout: with `index.sparse`
/// such an index crashes git (2.47), whoever made it. Where the host has no such file, it is merely untracked then.
fn refuse_intended(changes: &mut Vec<Change<'_>>, host: &Entries) {
    let skipped = |entry: Option<&Entry>| usize::from(entry.is_some_and(Entry::skipped));
    let mut left_out = host.entries.iter().filter(|entry| entry.skipped()).count();
    for change in changes.iter() {
        left_out = left_out + skipped(change.result.as_ref()) - skipped(change.host);
    }
    if left_out == 0 && !host.sparse {
        return;
    }
    changes.retain_mut(|change| {
        change.refused = change.result.as_ref().is_some_and(Entry::intended);
        !change.refused || change.host.is_some()
    });
}

/// Refuses what would put a file where a directory is. Both sides are free of that by themselves, so it takes an
/// entry of the session and one that stays on the host; with a file of the session that the host has a directory for,
/// all that the session did below is refused: half of it is nobody's state.
fn refuse_clashes(changes: &mut [Change<'_>], host: &Entries) {
    let find = |changes: &[Change<'_>], path: &BStr| changes.binary_search_by(|c| c.path.cmp(path)).ok();
    for at in 0..changes.len() {
        // Where the host has an entry of that name, it has none in the way of it.
        let Change { path, host: None, result: Some(_), refused: false } = changes[at] else { continue };
        let stem = path.strip_suffix(b"/").unwrap_or(path).as_bstr();
        let tree = [stem.as_bytes(), b"/"].concat();
        let tree = tree.as_bstr();
        let stays = |leaf: &BStr| {
            leaf != path
                && host.get(leaf).is_some()
                && find(changes, leaf).is_none_or(|c| changes[c].result.is_some() || changes[c].refused)
        };
        // Above: a file, or a directory that is left out; and the same name in the other form.
        let above =
            stays(stem) || directories(path).any(|dir| stays(dir) || stays(dir[..dir.len() - 1].as_bstr()));
        let below = host.below(tree).iter().any(|entry| stays(host.path(entry)));
        if above {
            changes[at].refused = true;
        }
        if below {
            changes[at].refused = true;
            let first = changes.partition_point(|change| change.path < tree);
            for change in changes[first..].iter_mut().take_while(|change| change.path.starts_with(tree)) {
                change.refused = true;
            }
        }
    }
}

/// The host's entries with the changes among them.
fn built(
    changes: &[Change<'_>],
    conflicts: Vec<BString>,
    host: &Entries,
    flags: Flags,
) -> Result<Merged, Error> {
    let mut result = Entries { paths: Vec::with_capacity(host.paths.len()), entries: Vec::new(), ..*host };
    result.entries.reserve(host.len() + changes.len());
    let mut merged = Merged {
        changed: changes.iter().map(|change| change.path.to_owned()).collect(),
        conflicts,
        new_gitlinks: Vec::new(),
        moved_gitlinks: Vec::new(),
        objects: Vec::new(),
        flags,
        result: Entries::empty(host.kind),
    };
    let mut pending = changes.iter().peekable();
    for (path, entry) in host.iter() {
        while let Some(change) = pending.next_if(|change| change.path < path) {
            apply(change, &mut result)?;
        }
        match pending.next_if(|change| change.path == path) {
            Some(change) => apply(change, &mut result)?,
            None => {
                let mut entry = *entry;
                // The new file will be younger than these entries, which the old one was not.
                if i64::from(entry.stat.modified()) >= host.modified {
                    entry.stat.smudge();
                }
                result.push(path, entry)?;
            }
        }
    }
    for change in pending {
        apply(change, &mut result)?;
    }
    for Change { path, host, result, .. } in changes {
        match (result, host) {
            (Some(new), Some(old)) if new.id == old.id && new.mode == old.mode => {}
            (Some(new), Some(old)) if new.is_gitlink() && old.is_gitlink() => {
                merged.moved_gitlinks.push((*path).to_owned());
            }
            (Some(new), _) => match new.object() {
                Some(kind) => merged.objects.push((new.id, kind)),
                None => merged.new_gitlinks.push((*path).to_owned()),
            },
            (None, _) => {}
        }
    }
    merged.result = result;
    Ok(merged)
}

fn apply(change: &Change<'_>, result: &mut Entries) -> Result<(), Error> {
    match change.result {
        Some(entry) => result.push(change.path, entry),
        None => Ok(()),
    }
}

/// Walks several lists at once: each path that any of them has, with the entries of all, in order.
pub(super) fn join<const N: usize>(
    sides: [&Entries; N],
) -> impl Iterator<Item = (&BStr, [Option<&Entry>; N])> {
    let mut heads = sides.map(|side| side.iter().peekable());
    std::iter::from_fn(move || {
        let path = heads.iter_mut().filter_map(|head| head.peek().map(|(path, _)| *path)).min()?;
        let row =
            heads.each_mut().map(|head| head.next_if(|(next, _)| *next == path).map(|(_, entry)| entry));
        Some((path, row))
    })
}
