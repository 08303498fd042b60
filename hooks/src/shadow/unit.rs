//! The unit of a checkout: its HEAD, the branch that names, its index, and the operation in progress. It travels
//! whole or not at all: a branch that moves without its index makes the next commit undo what was done.

use std::ffi::OsStr;

use gix::bstr::BString;

use super::refs::Target;
use super::write;
use crate::read::{self, Dir, POINTER_LIMIT};
use crate::tree;

/// What says that an operation is in progress (`wt_status_get_state()` in git's wt-status.c), with the command that
/// ends it.
const MARKS: [(&str, &str); 7] = [
    ("rebase-merge", "git rebase --continue (or --abort)"),
    ("rebase-apply", "git rebase --continue or git am --continue (or --abort)"),
    ("MERGE_HEAD", "git merge --continue (or --abort)"),
    ("CHERRY_PICK_HEAD", "git cherry-pick --continue (or --abort)"),
    ("REVERT_HEAD", "git revert --continue (or --abort)"),
    ("sequencer", "git cherry-pick --continue (or --abort)"),
    ("BISECT_LOG", "git bisect reset"),
];

/// Files of an operation, beside its marks.
const FILES: [&str; 20] = [
    "MERGE_HEAD",
    "MERGE_MSG",
    "MERGE_MODE",
    "MERGE_RR",
    "AUTO_MERGE",
    "SQUASH_MSG",
    "ORIG_HEAD",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "REBASE_HEAD",
    "BISECT_LOG",
    "BISECT_START",
    "BISECT_TERMS",
    "BISECT_NAMES",
    "BISECT_EXPECTED_REV",
    "BISECT_ANCESTORS_OK",
    "BISECT_FIRST_PARENT",
    "BISECT_HEAD",
    "BISECT_RUN",
    "FETCH_HEAD",
];

const DIRECTORIES: [&str; 3] = ["rebase-merge", "rebase-apply", "sequencer"];
/// Refs of a single checkout, below `refs/`.
const REFS: [&str; 3] = ["bisect", "worktree", "rewritten"];

/// The command that ends the operation in progress in a checkout's git dir, if there is one.
pub(crate) fn in_progress(dir: &Dir) -> Result<Option<&'static str>, read::Error> {
    for (mark, command) in MARKS {
        if dir.lstat(mark)?.is_some() {
            return Ok(Some(command));
        }
    }
    Ok(None)
}

/// A checkout's HEAD; `None` where it is missing or is none.
pub(crate) fn head(dir: &Dir, kind: gix::hash::Kind) -> Result<Option<Target>, read::Error> {
    match dir.read("HEAD".as_ref(), POINTER_LIMIT) {
        Ok(Some(content)) => Ok(Target::parse(&content.bytes, kind)),
        Ok(None) | Err(read::Error::NotRegular { .. } | read::Error::TooBig { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The branches that a checkout's git dir holds fast: that of HEAD, and what a rebase or a bisection will come back to
/// (`find_shared_symref()` in git's worktree.c).
pub(crate) fn branches(dir: &Dir, kind: gix::hash::Kind) -> Result<Vec<BString>, read::Error> {
    let mut found = Vec::new();
    if let Some(Target::Symbolic(name)) = head(dir, kind)? {
        found.push(name);
    }
    let text = |dir: &Dir, name: &str| match dir.read(name.as_ref(), POINTER_LIMIT) {
        Ok(content) => content.map(|content| BString::from(content.bytes.trim_ascii())),
        Err(_) => None,
    };
    for (place, name) in [("rebase-merge", "head-name"), ("rebase-apply", "head-name")] {
        if dir.lstat(place)?.is_some()
            && let Ok(Some(below)) = dir.child(place.as_ref())
        {
            found.extend(text(&below, name));
        }
    }
    if dir.lstat("BISECT_START")?.is_some()
        && let Some(start) = text(dir, "BISECT_START")
    {
        let full = [b"refs/heads/".as_slice(), &start].concat();
        found.push(if start.starts_with(b"refs/") { start } else { full.into() });
    }
    Ok(found)
}

/// Commits that an operation in progress has put aside, and that `--abort` or its end will bring back: where HEAD was,
/// and what was not committed (`--autostash`).
pub(crate) fn put_aside(dir: &Dir, kind: gix::hash::Kind) -> Result<Vec<gix::ObjectId>, read::Error> {
    let mut found = Vec::new();
    let mut add = |dir: &Dir, name: &str| {
        if let Ok(Some(content)) = dir.read(name.as_ref(), POINTER_LIMIT) {
            found.extend(Target::parse(&content.bytes, kind).and_then(|target| target.object()));
        }
    };
    for place in ["rebase-merge", "rebase-apply"] {
        if dir.lstat(place)?.is_some()
            && let Ok(Some(below)) = dir.child(place.as_ref())
        {
            add(&below, "orig-head");
            add(&below, "autostash");
        }
    }
    for name in ["MERGE_AUTOSTASH", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD"] {
        add(dir, name);
    }
    Ok(found)
}

/// Makes the operation in progress of a shadow's checkout that of the host's. No turn of the session lives.
pub(crate) fn copy_operation(from: &Dir, to: &Dir) -> Result<(), write::Error> {
    for name in FILES {
        let name = OsStr::new(name);
        if from.lstat(name)?.is_some() {
            write::copy(from, name, to)?;
        } else if to.lstat(name)?.is_some() {
            tree::remove(to, name)?;
        }
    }
    for name in DIRECTORIES {
        let name = OsStr::new(name);
        if from.lstat(name)?.is_some() {
            write::copy_tree(from, name, to)?;
        } else if to.lstat(name)?.is_some() {
            tree::remove(to, name)?;
        }
    }
    let source = from.child("refs".as_ref())?;
    let target = write::directory(to, "refs".as_ref())?;
    for name in REFS {
        let name = OsStr::new(name);
        match &source {
            Some(source) if source.lstat(name)?.is_some() => drop(write::copy_tree(source, name, &target)?),
            _ if target.lstat(name)?.is_some() => tree::remove(&target, name)?,
            _ => {}
        }
    }
    Ok(())
}
