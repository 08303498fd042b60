//! Judging one git dir: the common dir, or that of a submodule.

use std::path::{Path, PathBuf};

use super::baseline::{Area, FILES, TREES, hash_length, saved, settled, since};
use super::case::{Case, attempt};
use super::check::{Error, index, verdict};
use super::fault::{Fault, Step};
use super::keys::{self, Pair};
use super::survey::{Survey, survey};
use super::{modules, objects, refs, todo, trees, worktrees};
use crate::bytes::Bytes;
use crate::os::OsError;
use crate::read::{self, Dir, Kind};
use nix::errno::Errno;

/// Judges the common dir, and then the git dirs of all submodules.
pub(super) fn judge_all(
    case: &Case<'_>,
    first: bool,
    faults: &mut Vec<Fault>,
    warnings: &mut Vec<String>,
) -> Result<(), Error> {
    let Some(common) = case.baseline.areas.first() else { return Ok(()) };
    let dir = match Dir::open(&common.path) {
        Ok(dir) => dir,
        Err(error @ read::Error::Os(OsError { errno: Errno::EACCES, .. })) => {
            attempt::<(), _>(Err(error), &common.path, faults);
            return Ok(());
        }
        Err(error @ (read::Error::NotDirectory { .. } | read::Error::Os(_))) => {
            let detail = format!("the repository cannot be reached any more ({error}); nothing was judged");
            faults.push(Fault::reported("common-dir-missing", &common.path, detail));
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let stamp = dir.stamp()?;
    if (stamp.dev, stamp.ino) != common.inode {
        let detail =
            "this is another directory than before the turn; it was judged by the old one's baseline";
        faults.push(Fault::reported("common-dir-replaced", &common.path, detail));
    }
    let mut places = vec![common.path.clone()];
    places.extend(judge(case, common, false, &dir, first, faults, warnings));
    // Those that are known first: no number of new ones keeps them from being judged.
    let mut paths: Vec<PathBuf> = case.baseline.areas.iter().skip(1).map(|area| area.path.clone()).collect();
    for place in places {
        let found = attempt(modules::discover(&place), &place, faults);
        paths.extend(found.into_iter().filter(|path| !case.baseline.areas.iter().any(|a| a.path == *path)));
    }
    for path in paths {
        let opened = match Dir::open(&path) {
            // A submodule that was removed.
            Err(read::Error::Os(OsError { errno: Errno::ENOENT, .. }) | read::Error::NotDirectory { .. }) => {
                continue;
            }
            other => attempt(other.map(Some), &common.path, faults),
        };
        let Some(dir) = opened else { continue };
        match case.baseline.areas.iter().find(|area| area.path == path) {
            Some(area) => judge(case, area, false, &dir, first, faults, warnings),
            None => {
                let checkout = attempt(modules::checkout(&dir), &path, faults);
                let area = Area { path, checkout, ..Area::default() };
                judge(case, &area, true, &dir, first, faults, warnings)
            }
        };
    }
    case.judge_locks(faults);
    Ok(())
}

/// Judges one git dir. Returns the entries that may have submodules.
fn judge(
    case: &Case<'_>,
    area: &Area,
    new: bool,
    dir: &Dir,
    first: bool,
    faults: &mut Vec<Fault>,
    warnings: &mut Vec<String>,
) -> Vec<PathBuf> {
    let base = dir.path();
    let survey = survey(dir);
    let surveyed = survey.is_ok();
    let survey = attempt(survey, base, faults);
    if attempt(dir.lstat("commondir"), base, faults).is_some() {
        faults.push(commondir_planted(base.join("commondir")));
    }
    let known = |path: &Path, target: Option<&Path>| match target {
        Some(target) => area.links.get(&Bytes::of_path(path)).is_some_and(|was| was.path() == target),
        None => area.special.contains(&Bytes::of_path(path)),
    };
    case.oddities(dir, &survey, None, known, faults);
    attempt(case.locks(dir, &survey, None), base, faults);
    let moved = if surveyed { directories(area, dir, &survey, faults) } else { Vec::new() };
    attempt(files(case, area, dir, faults), base, faults);
    attempt(configuration(case, area, new, dir, faults), base, faults);
    let known_trees = TREES.iter().map(|(name, noun)| (*name, *noun));
    for (name, noun) in known_trees.chain(area.hooks_path.iter().map(|name| (name.as_str(), "hook"))) {
        let linked = area.links.contains_key(&Bytes::of_path(Path::new(name)));
        if !linked && !moved.contains(&name) {
            let before = area.trees.get(name);
            attempt(trees::judge(dir, name, noun, before, case.taken(), faults), base, faults);
        }
    }
    attempt(refs::judge(dir, &area.replacements, faults), base, faults);
    let checkout = area.checkout.as_deref();
    attempt(todo::judge(dir, None, checkout, &area.commands, case.taken(), faults), base, faults);
    let gitlinks = (!new).then_some(area.gitlinks.as_slice());
    attempt(index(case, dir, checkout, None, gitlinks, faults), base, faults);
    if first {
        attempt(resolutions(case, dir, faults), base, faults);
        let left_out = attempt(objects::judge(dir, case.hash, case.taken(), faults), base, faults);
        if left_out > 0 {
            let place = base.display();
            warnings
                .push(format!("{left_out} new objects in {place} were not hashed again: `git fsck` does"));
        }
    }
    let entries = worktrees::judge(case, area, dir, &survey, faults);
    attempt(entries, base, faults)
}

/// A `commondir` where git never makes one.
pub(super) fn commondir_planted(path: PathBuf) -> Fault {
    let detail = "git would have taken configuration, hooks and objects from elsewhere";
    Fault::removed("commondir-planted", &path, detail).set_aside(path)
}

/// Puts back directories that were moved aside. Returns their names.
fn directories(area: &Area, dir: &Dir, survey: &Survey, faults: &mut Vec<Fault>) -> Vec<&'static str> {
    const NAMES: [&str; 10] = [
        "branches",
        "hooks",
        "info",
        "logs",
        "modules",
        "objects",
        "refs",
        "reftable",
        "remotes",
        "worktrees",
    ];
    let mut moved = Vec::new();
    for name in NAMES {
        let Some(inode) = area.directories.get(&Bytes(name.as_bytes().to_vec())) else { continue };
        let now = survey.top.iter().find(|item| item.name == name);
        if now.is_some_and(|item| item.kind == Kind::Directory && item.ino == *inode) {
            continue;
        }
        let original = survey.top.iter().find(|item| item.kind == Kind::Directory && item.ino == *inode);
        let path = dir.path().join(name);
        match (original, now.map(|item| item.kind)) {
            (Some(original), now) if now != Some(Kind::Directory) => {
                let from = dir.path().join(&original.name);
                let detail = format!("this directory had been moved to {}", from.display());
                let mut fault = Fault::restored("directory-moved", &path, detail);
                if now.is_some() {
                    fault = fault.set_aside(&path);
                }
                faults.push(fault.step(Step::Rename { from, to: path }));
                moved.push(name);
            }
            (Some(original), _) => {
                let detail = format!(
                    "another directory was put in its place; the one that was there is {}",
                    dir.path().join(&original.name).display()
                );
                faults.push(Fault::reported("directory-replaced", path, detail));
            }
            (None, None) if ["objects", "refs"].contains(&name) => {
                let detail = "this directory is gone, and with it a part of the repository";
                faults.push(Fault::reported("directory-deleted", path, detail));
            }
            (None, _) => {}
        }
    }
    moved
}

/// Judges the files that are remembered with their content, except configuration.
fn files(case: &Case<'_>, area: &Area, dir: &Dir, faults: &mut Vec<Fault>) -> Result<(), read::Error> {
    for name in FILES.into_iter().chain(area.includes.iter().map(String::as_str)) {
        if ["config", "config.worktree"].contains(&name)
            || area.links.contains_key(&Bytes(name.as_bytes().to_vec()))
        {
            continue;
        }
        let relative = Path::new(name);
        let path = dir.path().join(relative);
        let was = area.files.get(name);
        let now = match stamp(dir, relative)? {
            Some(now) if now.kind() != Kind::File && now.kind() != Kind::Directory => continue,
            now => now,
        };
        match name {
            // git rewrites it all the time; only its absence is judged.
            "HEAD" => {
                if let Some(was) = was
                    && now.is_none_or(|now| now.kind() == Kind::Directory)
                {
                    let detail = "HEAD was missing; it is what it was before the turn";
                    let fault = Fault::restored("head-missing", &path, detail);
                    faults.push(fault.write(&path, was.content.0.clone(), was.stamp.mode));
                }
                continue;
            }
            "shallow" => {
                faults.extend(shallow(dir, was.map(|was| was.content.0.as_slice()))?);
                continue;
            }
            _ => {}
        }
        match (was, now) {
            (None, None) => {}
            (None, Some(_)) => {
                let detail = "this file was not there before the turn";
                faults.push(Fault::removed("file-added", &path, detail).set_aside(&path));
            }
            (Some(was), now) => {
                let untouched = now.is_some_and(|now| now == was.stamp && settled(&was.stamp, case.taken()));
                let same = untouched
                    || saved(dir, relative)?
                        .is_some_and(|now| now.content == was.content && now.stamp.nlink <= was.stamp.nlink);
                if !same {
                    let what = if now.is_some() { "changed" } else { "removed" };
                    let detail = format!("this file was {what}");
                    let parent = path.parent().map(Path::to_owned).unwrap_or_default();
                    let fault = Fault::restored(&format!("file-{what}"), &path, detail)
                        .step(Step::MakeDirectory { path: parent });
                    faults.push(fault.write(&path, was.content.0.clone(), was.stamp.mode));
                }
            }
        }
    }
    Ok(())
}

fn stamp(dir: &Dir, relative: &Path) -> Result<Option<read::Stamp>, read::Error> {
    let parent = relative.parent().unwrap_or(Path::new(""));
    match dir.beneath(parent) {
        Ok(Some(parent)) => parent.lstat(relative.file_name().unwrap_or_default()),
        Ok(None) | Err(read::Error::NotDirectory { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The list of commits without parents. Every fetch with a depth changes it, and a wrong list put back would
/// break the repository; so it is only named. What it can hide is history, which whoever writes refs can too.
fn shallow(dir: &Dir, was: Option<&[u8]>) -> Result<Option<Fault>, read::Error> {
    let now = saved(dir, Path::new("shallow"))?.map(|now| now.content.0);
    if now.as_deref() == was {
        return Ok(None);
    }
    let detail = "the list of commits whose parents are left out was changed; \
        if nobody fetched with a depth, `git fetch --unshallow` brings the history back";
    Ok(Some(Fault::reported("shallow-changed", dir.path().join("shallow"), detail)))
}

fn configuration(
    case: &Case<'_>,
    area: &Area,
    new: bool,
    dir: &Dir,
    faults: &mut Vec<Fault>,
) -> Result<(), read::Error> {
    let names = ["config", "config.worktree"];
    let mut untouched = true;
    let (mut before, mut now) = (Vec::new(), Vec::new());
    for name in names {
        let was = area.files.get(name);
        let stamp = dir.lstat(name)?;
        untouched &= match (was, stamp) {
            (None, None) => true,
            (Some(was), Some(stamp)) => stamp == was.stamp && settled(&stamp, case.taken()),
            _ => false,
        };
        before.push(was);
        now.push(stamp);
    }
    if untouched {
        return Ok(());
    }
    let mut contents = Vec::new();
    for (index, name) in names.into_iter().enumerate() {
        let saved = saved(dir, Path::new(name))?;
        let path = dir.path().join(name);
        // Missing, a directory, or larger than any configuration: there is nothing in it to be kept.
        if saved.is_none()
            && let Some(was) = before[index]
            && now[index].is_none_or(|stamp| [Kind::File, Kind::Directory].contains(&stamp.kind()))
            && (name == "config" || now[index].is_some())
        {
            let fault = Fault::restored("config-replaced", &path, "the configuration was gone");
            faults.push(fault.write(&path, was.content.0.clone(), was.stamp.mode));
            return Ok(());
        }
        if let (Some(saved), Some(was)) = (&saved, before[index])
            && saved.stamp.nlink > was.stamp.nlink
        {
            let detail = "the configuration had a second name, by which it could be changed later";
            let fault = Fault::restored("config-linked", &path, detail);
            faults.push(fault.write(&path, saved.content.0.clone(), was.stamp.mode));
        }
        contents.push(saved.map(|saved| saved.content.0));
    }
    let reftable = stamp(dir, Path::new("reftable/tables.list"))?.is_some();
    let tops = if new { case.tops() } else { Vec::new() };
    let context = keys::Context {
        writable: &case.writable,
        urls: &case.urls,
        git_dir: dir.path(),
        tops: &tops,
        reftable,
    };
    let content = |index: usize| before[index].map(|was| was.content.0.as_slice());
    let (shared, own) = keys::judge_pair(
        Pair { shared: content(0), own: content(1) },
        Pair { shared: contents[0].as_deref(), own: contents[1].as_deref() },
        &context,
    );
    for (index, found) in [shared, own].into_iter().enumerate() {
        let mode = before[index].map_or(0o644, |was| was.stamp.mode);
        faults.extend(verdict(&dir.path().join(names[index]), before[index].is_some(), mode, found, None));
    }
    Ok(())
}

/// Resolutions of conflicts that git replays (git-rerere(1)): what the turn recorded becomes part of the next
/// merge of anybody. Its own merges record some, so they are named, not taken away.
fn resolutions(case: &Case<'_>, dir: &Dir, faults: &mut Vec<Fault>) -> Result<(), read::Error> {
    let Ok(Some(cache)) = dir.child("rr-cache".as_ref()) else { return Ok(()) };
    let mut count = 0;
    for item in cache.list()? {
        let name = Path::new(&item.name).join("postimage");
        let new = cache.lstat(name.as_os_str())?.is_some_and(|stamp| since(&stamp, case.taken()));
        count += usize::from(item.kind == Kind::Directory && new);
    }
    if count > 0 {
        let detail = format!(
            "{count} resolutions of merge conflicts were recorded, which git may replay; `git rerere forget` takes one back"
        );
        faults.push(Fault::reported("resolution-recorded", cache.path(), detail));
    }
    Ok(())
}

/// The length of object ids of a git dir, in bytes.
pub(super) fn hash_of(area: &Area) -> usize {
    hash_length(area.files.get("config").map(|file| file.content.0.as_slice()))
}
