//! Judging `worktrees/` and the entries in it. See [`super::entries`] for what is judged and what never is.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::baseline::{Area, saved, settled};
use super::case::{Case, Depth, attempt};
use super::entries::{Digest, EntryRecord, digest};
use super::fault::{Fault, Step};
use super::survey::{Survey, survey};
use super::{check, keys, todo};
use crate::entry::{self, BackPointer};
use crate::process::{Answer, Work};
use crate::read::{self, Dir, Item, Kind, POINTER_LIMIT, Stamp};

/// An entry as it is now.
struct Seen<'a> {
    id: String,
    record: Option<&'a EntryRecord>,
    /// Where its `gitdir` leads, resolved; `None` where it leads nowhere.
    target: Option<PathBuf>,
    /// Whether anything in it changed.
    changed: bool,
}

/// Judges the entries of a git dir. Returns the entries that may have submodules.
pub(super) fn judge(
    case: &Case<'_>,
    area: &Area,
    git_dir: &Dir,
    top: &Survey,
    faults: &mut Vec<Fault>,
) -> Result<Vec<PathBuf>, read::Error> {
    let (worktrees, items) = match git_dir.child("worktrees".as_ref()) {
        Ok(Some(worktrees)) => {
            let items = worktrees.list()?;
            (Some(worktrees), items)
        }
        Ok(None) => (None, Vec::new()),
        Err(read::Error::NotDirectory { path, kind: Kind::File }) => {
            let detail = "there was a file where the worktree entries lie";
            faults.push(Fault::removed("worktrees-replaced", &path, detail).set_aside(&path));
            return Ok(Vec::new());
        }
        // Found as what it is; judged when it is a directory again.
        Err(read::Error::NotDirectory { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let base = git_dir.path().join("worktrees");
    let Joined { present, missing } = join(&items, &area.entries);
    let moved = moved(&base, &present, &missing, top, case.taken(), faults);
    let progress =
        worktrees.as_ref().map(|worktrees| progress(case, worktrees, &present)).unwrap_or_default();
    // Those that had to be looked into; the others are as their records say.
    let mut seen = Vec::new();
    if let Some(worktrees) = &worktrees {
        for (number, (item, record)) in present.into_iter().enumerate() {
            let handled = progress.moving.contains(item.name.as_os_str())
                || !moved.is_empty() && moved.contains(&base.join(&item.name));
            if !handled {
                let known = progress.digests.get(number).copied().flatten();
                let result = one(case, area, git_dir, worktrees, (item, record, known), &progress, faults);
                seen.extend(attempt(result, &base.join(&item.name), faults));
            }
        }
    }
    attempt(duplicates(case, git_dir, &area.entries, &seen, faults), &base, faults);
    let missing = missing.into_iter().filter(|record| !record.own && !moved.contains(&base.join(&record.id)));
    all_deleted(case, &base, missing.collect(), faults);
    Ok(seen.iter().map(|entry| base.join(&entry.id)).collect())
}

/// What is there, each with its record, and records of what is not there.
struct Joined<'a> {
    present: Vec<(&'a Item, Option<&'a EntryRecord>)>,
    missing: Vec<&'a EntryRecord>,
}

/// Both are sorted by name.
fn join<'a>(items: &'a [Item], records: &'a [EntryRecord]) -> Joined<'a> {
    let mut joined = Joined { present: Vec::with_capacity(items.len()), missing: Vec::new() };
    let mut records = records.iter().peekable();
    for item in items {
        let name = item.name.as_bytes();
        while let Some(record) = records.next_if(|record| record.id.as_bytes() < name) {
            joined.missing.push(record);
        }
        joined.present.push((item, records.next_if(|record| record.id.as_bytes() == name)));
    }
    joined.missing.extend(records);
    joined
}

/// Entries that lie under another name than before: a pin on an entry does not hold when its parent is moved.
/// Returns the paths that the faults take care of.
fn moved(
    base: &Path,
    present: &[(&Item, Option<&EntryRecord>)],
    missing: &[&EntryRecord],
    top: &Survey,
    baseline: i64,
    faults: &mut Vec<Fault>,
) -> Vec<PathBuf> {
    let strange = |item: &Item, record: Option<&EntryRecord>| {
        record.is_none_or(|record| record.inode != item.ino || item.kind != Kind::Directory)
    };
    // A name that was taken by something else, and names that nothing has any more.
    let replaced = present.iter().filter_map(|(item, record)| record.filter(|_| strange(item, *record)));
    let homeless: Vec<_> = replaced.map(|r| (r, true)).chain(missing.iter().map(|r| (*r, false))).collect();
    if homeless.is_empty() {
        return Vec::new();
    }
    let within = present.iter().filter(|(item, record)| strange(item, *record));
    let within = within.map(|(item, _)| (*item, base.join(&item.name)));
    let beside = top
        .top
        .iter()
        .filter(|item| item.name != "worktrees")
        .map(|item| (item, base.with_file_name(&item.name)));
    let strangers: HashMap<u64, PathBuf> = within
        .chain(beside)
        .filter(|(item, _)| item.kind == Kind::Directory)
        .map(|(item, path)| (item.ino, path))
        .collect();
    let mut handled = Vec::new();
    for (record, taken) in homeless {
        let Some(from) = strangers.get(&record.inode) else { continue };
        // A number that was free again: this one was made since. Or it is gone, or another one again, by now.
        let still = read::lstat(from).ok().flatten().is_some_and(|stamp| stamp.ino == record.inode);
        if !still || read::born(from).is_some_and(|born| born > baseline) {
            continue;
        }
        let home = base.join(&record.id);
        // Its owner may have renamed it, and told the worktree so.
        let told =
            record.gitdir().and_then(|gitdir| entry::gitdir_target(&home, &gitdir)).is_some_and(|to| {
                read::stat(from).is_some_and(|stamp| entry::back_pointer(&to, &stamp) == BackPointer::Agrees)
            });
        if told {
            continue;
        }
        let detail = format!("this entry had been moved to {}", from.display());
        let mut fault = Fault::restored("entry-moved", &home, detail).entry(Some(&record.id));
        if taken {
            fault = fault.set_aside(&home);
        }
        let parent = Step::MakeDirectory { path: base.to_owned() };
        faults.push(fault.step(parent).step(Step::Rename { from: from.clone(), to: home.clone() }));
        handled.extend([from.clone(), home]);
    }
    handled
}

fn one<'a>(
    case: &Case<'_>,
    area: &Area,
    git_dir: &Dir,
    worktrees: &Dir,
    (item, record, known): (&Item, Option<&'a EntryRecord>, Option<Digest>),
    progress: &Progress,
    faults: &mut Vec<Fault>,
) -> Result<Option<Seen<'a>>, read::Error> {
    let path = || worktrees.path().join(&item.name);
    let Some(id) = item.name.to_str() else {
        let detail = "an entry's name has to be UTF-8 for the next turn to start; rename or remove it";
        faults.push(Fault::reported("entry-name", path(), detail));
        return Ok(None);
    };
    match item.kind {
        Kind::Directory => {}
        // git does not take a file for an entry.
        Kind::File if record.is_none() => return Ok(None),
        // What was there before the turn is its owner's, however odd.
        _ if worktrees.lstat(&item.name)?.is_some_and(|stamp| settled(&stamp, case.taken())) => {
            return Ok(None);
        }
        kind => {
            let detail = format!("this entry was {kind}");
            let fault = Fault::removed("entry-replaced", path(), detail).entry(Some(id));
            faults.push(if kind == Kind::File { fault.set_aside(path()) } else { fault.drop(path()) });
            return Ok(None);
        }
    }
    let looked = known.map_or_else(|| digest(worktrees, &item.name), |known| Ok(Some(known)))?;
    let Some(digest) = looked else { return Ok(None) };
    let untouched = record.is_some_and(|record| record.digest == Some(digest.number));
    let own = record.is_some_and(|record| record.own);
    if untouched && !own && case.depth == Depth::Changed {
        return Ok(None);
    }
    let Some(dir) = worktrees.child(&item.name)? else { return Ok(None) };
    // Half of an entry is judged only as it was found twice: anything else is in somebody's hands by now.
    if is_incomplete(&dir)? && progress.stuck.get(&item.name) != Some(&dir.stamp()?) {
        return Ok(None);
    }
    let mut seen = Seen { id: id.to_owned(), record, target: None, changed: !untouched };
    let stuck = progress.stuck.contains_key(&item.name);
    let mut before: Option<Vec<Fault>> = None;
    let mut at = dir.stamp()?;
    for _ in 0..LOOKS {
        let (mut found, mark) = (Vec::new(), case.locks_noted());
        seen.target = None;
        inside(case, area, git_dir, &dir, &mut seen, &mut found)?;
        if found.is_empty() || stuck || dir.stamp()? == at && !is_incomplete(&dir)? {
            faults.append(&mut found);
            return Ok(Some(seen));
        }
        // Whoever began meanwhile is at it: what was found says nothing, unless it is found each time. Somebody may
        // want it never to be at rest.
        if let Some(before) = &before {
            found.retain(|fault| before.iter().any(|known| known.is_about_the_same(fault)));
        }
        if found.is_empty() {
            return Ok(None);
        }
        before = Some(found);
        if !case.wait_patiently() {
            let detail =
                "it changed whenever it was judged: `codeoid-shim check` judges it when nobody works in it";
            faults.push(Fault::reported("not-judged", path(), detail).entry(Some(id)));
            return Ok(None);
        }
        // Gone, or made anew: then it is another one, which is judged the next time.
        at = dir.stamp()?;
        if worktrees.lstat(&item.name)?.is_none_or(|now| !now.same_inode(&at)) {
            return Ok(None);
        }
        case.forget_locks_since(mark);
    }
    faults.extend(before.into_iter().flatten());
    Ok(Some(seen))
}

/// How often an entry that changes while it is judged is looked at.
const LOOKS: usize = 4;

/// What git has at work when it makes an entry again or takes one away.
const MAKING: Work = Work::Commands(&["worktree", "gc", "maintenance", "prune"]);

/// What is going on with entries that are not whole.
#[derive(Default)]
struct Progress {
    /// Somebody is at these.
    moving: HashSet<OsString>,
    /// Nobody is at these, and they do not change; with their stamps.
    stuck: HashMap<OsString, Stamp>,
    /// What was seen of each on the way, if nothing was waited for since.
    digests: Vec<Option<Digest>>,
}

/// Looks for entries that somebody's `git worktree add`, `move` or `remove` is at right now: git writes and removes
/// an entry's files one by one, and marks an entry that it makes as locked, "initializing" (git-worktree(1)). An
/// entry that stays exactly so, with no git at work on the repository, is judged. Who is at work is asked for all of
/// them at once: there may be thousands. With an entry that was there before the turn only the commands count that
/// touch entries.
fn progress(case: &Case<'_>, worktrees: &Dir, present: &[(&Item, Option<&EntryRecord>)]) -> Progress {
    // What cannot be looked into is judged like any other entry, and named then. None is kept open meanwhile.
    let incomplete = |name: &OsString| match worktrees.child(name) {
        Ok(Some(dir)) if is_incomplete(&dir).unwrap_or(false) => dir.stamp().ok(),
        _ => None,
    };
    let mut digests = vec![None; present.len()];
    let mut open: Vec<(&OsString, bool, Stamp)> = Vec::new();
    for (number, (item, record)) in present.iter().enumerate() {
        if item.kind != Kind::Directory {
            continue;
        }
        let judged = case.depth == Depth::Everything || record.is_none_or(|record| record.own);
        let mut changed = || match digest(worktrees, &item.name) {
            Ok(seen) => {
                digests[number] = seen;
                // A name in an entry that was added or taken away changes the entry's own ctime.
                seen.is_none_or(|seen| !settled(&seen.stamp, case.taken()))
            }
            Err(_) => false,
        };
        if (judged || changed())
            && let Some(stamp) = incomplete(&item.name)
        {
            open.push((&item.name, record.is_some(), stamp));
        }
    }
    if open.is_empty() {
        return Progress { digests, ..Progress::default() };
    }
    let at_work = || {
        let new = open.iter().any(|(_, known, _)| !known) && case.git_works();
        (new, open.iter().any(|(_, known, _)| *known) && case.git_at_work(MAKING) != Answer::Nobody)
    };
    let first = at_work();
    case.wait();
    let still: Vec<bool> =
        open.iter().map(|(name, _, stamp)| incomplete(name).as_ref() == Some(stamp)).collect();
    let second = at_work();
    let mut progress = Progress::default();
    for ((name, known, stamp), still) in open.iter().zip(still) {
        let busy = if *known { first.1 || second.1 } else { first.0 || second.0 };
        if busy || !still {
            progress.moving.insert((*name).clone());
        } else {
            progress.stuck.insert((*name).clone(), *stamp);
        }
    }
    progress
}

/// Whether an entry looks as one does that git is making or removing.
fn is_incomplete(dir: &Dir) -> Result<bool, read::Error> {
    // With these in it git would take the entry for a repository of its own; no git makes them here.
    let armed = ["config", "objects"].iter().any(|name| dir.lstat(name).is_ok_and(|there| there.is_some()));
    if armed {
        return Ok(false);
    }
    for name in ["gitdir", "commondir", "HEAD"] {
        // git writes the pointers in place: for an instant they are empty.
        if dir.lstat(name)?.is_none_or(|stamp| stamp.kind() == Kind::File && stamp.size == 0) {
            return Ok(true);
        }
    }
    let locked = dir.read("locked".as_ref(), POINTER_LIMIT).ok().flatten();
    Ok(locked.is_some_and(|content| content.bytes.trim_ascii() == b"initializing"))
}

/// Judges one entry whole.
fn inside(
    case: &Case<'_>,
    area: &Area,
    git_dir: &Dir,
    dir: &Dir,
    seen: &mut Seen<'_>,
    faults: &mut Vec<Fault>,
) -> Result<(), read::Error> {
    let id = seen.id.clone();
    let survey = survey(dir)?;
    let same = seen.record.is_some_and(|record| dir.stamp().is_ok_and(|stamp| stamp.ino == record.inode));
    case.oddities(dir, &survey, Some(&id), |path, _| same && older(case, dir, path), faults);
    case.locks(dir, &survey, Some(&id))?;
    let stamp = dir.stamp()?;
    if being_removed(case, dir, &stamp, seen) {
        return Ok(());
    }
    commondir(area, git_dir, dir, &id, faults)?;
    seen.target = gitdir(dir, &stamp, seen, faults)?;
    head(dir, seen, faults)?;
    configuration(case, git_dir, dir, seen, faults)?;
    let worktree = seen.target.as_deref().and_then(Path::parent).map(Path::to_owned);
    check::index(case, dir, worktree.as_deref(), Some(&id), None, faults)?;
    let commands = seen.record.map(|record| record.commands.as_slice()).unwrap_or_default();
    todo::judge(dir, Some(&id), worktree.as_deref(), commands, case.taken(), faults)?;
    if let Some(target) = &seen.target {
        own_pointer(case, dir, &stamp, target, seen, faults)?;
    }
    Ok(())
}

/// Whether git is just removing this entry: it removes the worktree first, and then the entry's files one by one.
fn being_removed(case: &Case<'_>, dir: &Dir, stamp: &Stamp, seen: &Seen<'_>) -> bool {
    let whole = ["HEAD", "commondir", "gitdir"].iter().all(|name| dir.lstat(name).is_ok_and(|s| s.is_some()));
    // A new one would have been found in progress.
    let Some(record) = seen.record else { return false };
    let target = record.gitdir();
    let target = target.and_then(|gitdir| entry::gitdir_target(dir.path(), &gitdir));
    let alive = target.is_some_and(|target| entry::back_pointer(&target, stamp) == BackPointer::Agrees);
    !whole && !alive && case.git_at_work(MAKING) != Answer::Nobody
}

/// Whether this and every directory above it were there before the turn: renaming a directory into place
/// changes its ctime.
fn older(case: &Case<'_>, dir: &Dir, path: &Path) -> bool {
    path.ancestors()
        .filter(|part| !part.as_os_str().is_empty())
        .all(|part| dir.lstat(part).ok().flatten().is_some_and(|stamp| settled(&stamp, case.taken())))
}

fn commondir(
    area: &Area,
    git_dir: &Dir,
    dir: &Dir,
    id: &str,
    faults: &mut Vec<Fault>,
) -> Result<(), read::Error> {
    let path = dir.path().join("commondir");
    let mut missing = false;
    let what = match dir.read("commondir".as_ref(), POINTER_LIMIT) {
        Ok(None) => {
            if dir.lstat("HEAD")?.is_none() && dir.lstat("gitdir")?.is_none() {
                // Somebody is about to make this entry.
                return Ok(());
            }
            missing = true;
            "was missing, so that git took the entry for a repository of its own".to_owned()
        }
        Ok(Some(content)) => match entry::pointed_path(&content.bytes) {
            Some(to) => {
                let resolved = dir.path().join(to);
                let common = git_dir.stamp()?;
                if read::stat(&resolved).is_some_and(|found| found.same_inode(&common)) {
                    return Ok(());
                }
                format!("pointed to {}", entry::normal(&resolved).display())
            }
            None => "was no path".to_owned(),
        },
        // A symlink or a special file is taken away as such, and is missing then.
        Err(read::Error::NotRegular { kind: Kind::Directory, .. } | read::Error::TooBig { .. }) => {
            "was no pointer file".to_owned()
        }
        Err(read::Error::NotRegular { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    let detail = format!("the entry's commondir {what}; it points to {} again", area.path.display());
    let write = put(missing, &path, entry::COMMONDIR.to_vec());
    faults.push(Fault::restored("entry-commondir-changed", path, detail).entry(Some(id)).step(write));
    Ok(())
}

/// Writes a pointer: only if nothing is there, where nothing was.
fn put(missing: bool, path: &Path, bytes: Vec<u8>) -> Step {
    let (path, mode) = (path.to_owned(), 0o644);
    if missing { Step::Create { path, bytes, mode } } else { Step::Write { path, bytes, mode, keep: false } }
}

/// Judges an entry's `gitdir` as `git worktree repair` would: the worktree says whose it is. Returns where it
/// leads.
fn gitdir(
    dir: &Dir,
    stamp: &Stamp,
    seen: &Seen<'_>,
    faults: &mut Vec<Fault>,
) -> Result<Option<PathBuf>, read::Error> {
    let path = dir.path().join("gitdir");
    let content = match dir.read("gitdir".as_ref(), POINTER_LIMIT) {
        Ok(content) => content.map(|content| content.bytes),
        Err(read::Error::NotRegular { .. } | read::Error::TooBig { .. }) => None,
        Err(error) => return Err(error),
    };
    let resolve = |bytes: &[u8]| entry::gitdir_target(dir.path(), bytes).map(|target| resolved(&target));
    let now = content.as_deref().and_then(resolve);
    let Some(old_content) = seen.record.and_then(EntryRecord::gitdir) else { return Ok(now) };
    let old = resolve(&old_content);
    if now == old && now.is_some() {
        return Ok(now);
    }
    let agrees = |target: &Option<PathBuf>| match target {
        Some(target) => entry::back_pointer(target, stamp) == BackPointer::Agrees,
        None => false,
    };
    // A worktree that was moved leaves no `.git` behind; a copy of one does not take the entry over.
    let back = match &now {
        None => old.is_some(),
        Some(_) => agrees(&old),
    };
    if !back {
        return Ok(now);
    }
    let was = match &now {
        Some(now) => format!("pointed to {}", now.display()),
        None => "was no pointer any more".to_owned(),
    };
    let owner = old.as_deref().unwrap_or(Path::new("")).display();
    let detail = format!("the entry's gitdir {was}; it points to {owner} again");
    let missing = dir.lstat("gitdir")?.is_none();
    let write = put(missing, &path, old_content);
    faults.push(Fault::restored("entry-gitdir-changed", path, detail).entry(Some(&seen.id)).step(write));
    Ok(old)
}

/// A `.git` path with its directory resolved.
fn resolved(target: &Path) -> PathBuf {
    match (target.parent(), target.file_name()) {
        (Some(parent), Some(name)) => entry::real(parent).join(name),
        _ => target.to_owned(),
    }
}

fn head(dir: &Dir, seen: &Seen<'_>, faults: &mut Vec<Fault>) -> Result<(), read::Error> {
    let Some(head) = seen.record.and_then(|record| record.head.as_ref()) else { return Ok(()) };
    let what = match dir.lstat("HEAD")?.map(|stamp| stamp.kind()) {
        None => "was missing",
        Some(Kind::Directory) => "was a directory",
        Some(_) => return Ok(()),
    };
    let path = dir.path().join("HEAD");
    let detail = format!("the entry's HEAD {what}; it is what it was before the turn");
    let missing = what == "was missing";
    let fault = Fault::restored("entry-head-missing", &path, detail).entry(Some(&seen.id));
    faults.push(if missing {
        fault.step(put(true, &path, head.0.clone()))
    } else {
        fault.write(path, head.0.clone(), 0o644)
    });
    Ok(())
}

fn configuration(
    case: &Case<'_>,
    git_dir: &Dir,
    dir: &Dir,
    seen: &Seen<'_>,
    faults: &mut Vec<Fault>,
) -> Result<(), read::Error> {
    let name = Path::new("config.worktree");
    let before =
        seen.record.and_then(|record| record.config.as_ref()).map(|saved| saved.content.0.as_slice());
    let now = saved(dir, name)?.map(|saved| saved.content.0);
    if before == now.as_deref() {
        return Ok(());
    }
    let shared = saved(git_dir, Path::new("config"))?.map(|saved| saved.content.0).unwrap_or_default();
    let context = keys::Context {
        writable: &case.writable,
        urls: &case.urls,
        git_dir: dir.path(),
        tops: &[],
        reftable: false,
    };
    let verdict = keys::judge_one(before, now.as_deref(), &shared, &context);
    faults.extend(check::verdict(&dir.path().join(name), before.is_some(), 0o644, verdict, Some(&seen.id)));
    Ok(())
}

/// The `.git` file of a worktree that the session can write: git in there follows it.
fn own_pointer(
    case: &Case<'_>,
    dir: &Dir,
    stamp: &Stamp,
    target: &Path,
    seen: &Seen<'_>,
    faults: &mut Vec<Fault>,
) -> Result<(), read::Error> {
    let in_folder = case.baseline.repository.session_folders.iter().any(|f| target.starts_with(f));
    if !in_folder && !seen.record.is_some_and(|record| record.own) {
        return Ok(());
    }
    let what = match entry::back_pointer(target, stamp) {
        BackPointer::Agrees | BackPointer::Missing => return Ok(()),
        BackPointer::Elsewhere(to) => {
            // Another entry may be the one that is right; then this one is its duplicate.
            if resolved_gitdir(&to).as_deref() == Some(target) {
                return Ok(());
            }
            format!("pointed to {}", to.display())
        }
        BackPointer::Other(kind) => format!("was {kind} that is no pointer"),
    };
    let detail = format!("the worktree's .git {what}; it points to its entry again");
    let fault = Fault::restored("pointer-changed", target, detail).entry(Some(&seen.id));
    faults.push(fault.write(target, entry::gitfile(dir.path()), 0o644));
    Ok(())
}

fn resolved_gitdir(entry_path: &Path) -> Option<PathBuf> {
    let content = read::file(&entry_path.join("gitdir"), POINTER_LIMIT).ok()??;
    entry::gitdir_target(entry_path, &content.bytes).map(|target| resolved(&target))
}

/// Entries that claim one worktree. `git gc` would remove all but one of them, and not the right one.
fn duplicates(
    case: &Case<'_>,
    git_dir: &Dir,
    records: &[EntryRecord],
    seen: &[Seen<'_>],
    faults: &mut Vec<Fault>,
) -> Result<(), read::Error> {
    if case.depth == Depth::Changed && seen.iter().all(|entry| !entry.changed) {
        return Ok(());
    }
    let looked_into: HashSet<&str> = seen.iter().map(|entry| entry.id.as_str()).collect();
    let base = git_dir.path().join("worktrees");
    let mut others = Vec::new();
    for record in records.iter().filter(|record| !looked_into.contains(record.id.as_str())) {
        if let Some(worktree) = &record.worktree
            && read::lstat(&base.join(&record.id))?.is_some()
        {
            let target = Some(worktree.join(".git"));
            others.push(Seen { id: record.id.clone(), record: Some(record), target, changed: false });
        }
    }
    let mut claims: BTreeMap<&Path, Vec<&Seen<'_>>> = BTreeMap::new();
    for entry in seen.iter().chain(&others) {
        if let Some(target) = &entry.target {
            claims.entry(target).or_default().push(entry);
        }
    }
    let main = case.baseline.repository.main_checkout.as_ref().map(|top| top.join(".git"));
    for (target, claimants) in claims {
        let is_main = main.as_deref() == Some(target);
        if claimants.len() < 2 && !is_main {
            continue;
        }
        let mut rightful = Vec::new();
        for entry in &claimants {
            let stamp = read::lstat(&base.join(&entry.id))?;
            let agrees = match stamp {
                Some(stamp) => entry::back_pointer(target, &stamp) == BackPointer::Agrees,
                None => false,
            };
            if agrees {
                rightful.push(entry.id.as_str());
            }
        }
        // Without a worktree that could say so, the one that was there first is right.
        let known = claimants.iter().any(|entry| entry.record.is_some());
        for entry in claimants.iter().filter(|entry| !rightful.contains(&entry.id.as_str())) {
            let path = base.join(&entry.id);
            let claim = format!("this entry claims {}", target.display());
            let fault = if entry.record.is_none() && (is_main || known || !rightful.is_empty()) {
                let detail = format!("{claim}, which belongs to another one");
                Fault::removed("entry-duplicate", &path, detail).set_aside(&path)
            } else if entry.changed || case.depth == Depth::Everything {
                Fault::reported("entry-duplicate", &path, format!("{claim}, and so does another one"))
            } else {
                continue;
            };
            faults.push(fault.entry(Some(&entry.id)));
        }
    }
    Ok(())
}

/// Entries of others that are gone and should not be. git removes a worktree before its entry, and may be making both
/// again under the same name: so it is looked twice, with nobody at it.
fn all_deleted(case: &Case<'_>, base: &Path, missing: Vec<&EntryRecord>, faults: &mut Vec<Fault>) {
    let gone = look_again(base, missing);
    if gone.is_empty() || matches!(case.git_at_work(MAKING), Answer::Somebody(_)) {
        return;
    }
    case.wait();
    let gone = look_again(base, gone.into_iter().map(|(record, _)| record).collect());
    if !gone.is_empty() && !matches!(case.git_at_work(MAKING), Answer::Somebody(_)) {
        for (_, fault) in gone {
            let fault = attempt(fault.map(Some), base, faults);
            faults.extend(fault);
        }
    }
}

fn look_again<'a>(
    base: &Path,
    missing: Vec<&'a EntryRecord>,
) -> Vec<(&'a EntryRecord, Result<Fault, read::Error>)> {
    let found = missing.into_iter().map(|record| (record, deleted(base, record).transpose()));
    found.filter_map(|(record, fault)| Some((record, fault?))).collect()
}

/// An entry of somebody else that is gone while its worktree still exists and points at it. git removes the
/// worktree first and the entry then, so this is not git's doing; what can be derived is made again.
fn deleted(base: &Path, record: &EntryRecord) -> Result<Option<Fault>, read::Error> {
    let path = base.join(&record.id);
    let Some(gitdir) = record.gitdir() else { return Ok(None) };
    let Some(target) = entry::gitdir_target(&path, &gitdir) else { return Ok(None) };
    let names = match read::file(&target, POINTER_LIMIT) {
        Ok(Some(content)) => entry::gitfile_path(&content.bytes)
            .map(|named| entry::real(&target.parent().unwrap_or(base).join(named))),
        _ => None,
    };
    // It may be there again by now.
    if names.as_deref() != Some(&path) || read::lstat(&path)?.is_some() {
        return Ok(None);
    }
    let worktree = target.parent().unwrap_or(base).display();
    let detail = format!(
        "the entry of {worktree} was deleted while the worktree was still there; its pointers and HEAD are back, `git -C {worktree} reset` rebuilds its index"
    );
    let mut files = vec![("commondir", entry::COMMONDIR.to_vec())];
    files.extend(record.head.as_ref().map(|head| ("HEAD", head.0.clone())));
    files.push(("gitdir", gitdir));
    let fault = Fault::restored("entry-deleted", &path, detail).entry(Some(&record.id));
    let above = Step::MakeDirectory { path: base.to_owned() };
    Ok(Some(fault.step(above).step(Step::Recreate { path, files })))
}
