//! Directories whose files git executes (`hooks/`) or takes addresses from (the older `branches/` and
//! `remotes/`): remembered whole, and put back whole.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::baseline::settled;
use super::fault::{Fault, Step};
use super::restore::SUFFIX;
use crate::bytes::Bytes;
use crate::read::{self, Dir, Kind, POINTER_LIMIT, Stamp};

/// The most files that are remembered of one directory.
const FILES: usize = 2_000;
/// The deepest directory in it.
const DEPTH: usize = 8;
/// The most that is remembered of all contents together, in bytes.
const CONTENTS: u64 = 8 * 1024 * 1024;

/// What lay at one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Node {
    /// A directory.
    Directory,
    /// A regular file; without content where that was too large to remember.
    File { stamp: Stamp, content: Option<Bytes> },
    /// A symlink.
    Link(Bytes),
}

/// A directory as it was, by paths relative to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Tree(#[serde(with = "crate::bytes::pairs")] BTreeMap<Bytes, Node>);

/// Remembers a directory of a git dir; `None` where there is none of that name, or where it is a symlink.
pub(crate) fn capture(git_dir: &Dir, name: &str) -> Result<Option<Tree>, read::Error> {
    let mut tree = BTreeMap::new();
    let mut left = CONTENTS;
    let found = walk(git_dir, name, |path, dir, file, kind| {
        let node = match kind {
            Kind::Directory => Node::Directory,
            Kind::Symlink => Node::Link(Bytes::of_path(&dir.read_link(file)?.unwrap_or_default())),
            Kind::File => match dir.read(file, POINTER_LIMIT.min(left)) {
                Ok(Some(content)) => {
                    left -= content.bytes.len() as u64;
                    Node::File { stamp: content.stamp, content: Some(Bytes(content.bytes)) }
                }
                Ok(None) => return Ok(()),
                Err(read::Error::TooBig { .. }) => match dir.lstat(file)? {
                    Some(stamp) => Node::File { stamp, content: None },
                    None => return Ok(()),
                },
                Err(error) => return Err(error),
            },
            // Not there as far as git is concerned; found by the survey's rules when it is new.
            _ => return Ok(()),
        };
        tree.insert(Bytes::of_path(path), node);
        Ok(())
    })?;
    Ok(found.then_some(Tree(tree)))
}

/// Calls `visit` for all that lies below a directory of a git dir, samples excepted. Tells whether the
/// directory exists.
fn walk(
    git_dir: &Dir,
    name: &str,
    mut visit: impl FnMut(&Path, &Dir, &OsStr, Kind) -> Result<(), read::Error>,
) -> Result<bool, read::Error> {
    let top = match git_dir.beneath(Path::new(name)) {
        Ok(Some(top)) => top,
        Ok(None) | Err(read::Error::NotDirectory { .. }) => return Ok(false),
        Err(error) => return Err(error),
    };
    let mut count = 0;
    let mut waiting = vec![(PathBuf::new(), 0)];
    while let Some((at, depth)) = waiting.pop() {
        let Ok(Some(dir)) = top.beneath(&at) else { continue };
        for item in dir.list()? {
            let path = at.join(&item.name);
            // What git copies from its templates is never run under that name.
            let sample = item.kind == Kind::File && path.extension() == Some(OsStr::new("sample"));
            if sample {
                continue;
            }
            count += 1;
            if count > FILES {
                return Err(read::Error::TooMany { path: top.path().to_owned() });
            }
            if item.kind == Kind::Directory && depth < DEPTH {
                waiting.push((path.clone(), depth + 1));
            }
            visit(&path, &dir, &item.name, item.kind)?;
        }
    }
    Ok(true)
}

/// Compares a directory with what it was. `noun` is what a file in it is called in findings.
pub(super) fn judge(
    git_dir: &Dir,
    name: &str,
    noun: &str,
    before: Option<&Tree>,
    taken: i64,
    faults: &mut Vec<Fault>,
) -> Result<(), read::Error> {
    let base = git_dir.path().join(name);
    let empty = BTreeMap::new();
    let before = before.map_or(&empty, |tree| &tree.0);
    let mut seen: HashSet<Bytes> = HashSet::new();
    let mut found = Vec::new();
    let walked = walk(git_dir, name, |path, dir, file, kind| {
        let key = Bytes::of_path(path);
        let full = base.join(path);
        if file.as_encoded_bytes().ends_with(SUFFIX.as_bytes()) {
            found.push(Fault::leftover(full));
            return Ok(());
        }
        let was = before.get(&key);
        if was.is_some() {
            seen.insert(key.clone());
        }
        found.extend(compare(dir, file, kind, was, &full, noun, taken)?);
        Ok(())
    });
    if let Err(read::Error::TooMany { path }) = &walked {
        // Nobody has that many, and what was there comes back in the next round.
        let detail = format!("this directory was flooded with more than {FILES} files");
        faults.push(Fault::removed(&format!("{noun}s-flooded"), path, detail).set_aside(&base));
        return Ok(());
    }
    walked?;
    faults.append(&mut found);
    let missing: Vec<_> = before.iter().filter(|(path, _)| !seen.contains(path)).collect();
    let is_there = matches!(git_dir.beneath(Path::new(name)), Ok(Some(_)));
    if !missing.is_empty() && !is_there {
        // A directory that only was moved is put back whole; see the area's own rules.
        let fault = Fault::restored(&format!("{noun}s-removed"), &base, format!("{name} was removed"));
        faults.push(fault.step(Step::MakeDirectory { path: base.clone() }));
    }
    for (path, node) in missing {
        let full = base.join(path.path());
        let fault = Fault::restored(&format!("{noun}-removed"), &full, format!("this {noun} was removed"));
        match node {
            Node::File { content: Some(content), stamp } => {
                faults.push(fault.write(&full, content.0.clone(), stamp.mode));
            }
            Node::Link(target) => faults.push(fault.step(link(&full, target))),
            Node::File { content: None, .. } => faults.push(Fault::reported(
                &format!("{noun}-removed"),
                &full,
                format!("this {noun} was removed and cannot be put back from here"),
            )),
            Node::Directory => faults.push(fault.step(Step::MakeDirectory { path: full.clone() })),
        }
    }
    Ok(())
}

fn link(path: &Path, target: &Bytes) -> Step {
    Step::Link { path: path.to_owned(), target: target.path().to_owned() }
}

fn compare(
    dir: &Dir,
    file: &OsStr,
    kind: Kind,
    was: Option<&Node>,
    path: &Path,
    noun: &str,
    taken: i64,
) -> Result<Option<Fault>, read::Error> {
    let added = || {
        let detail = format!("this {noun} was not there before the turn");
        Fault::removed(&format!("{noun}-added"), path, detail)
    };
    let changed = || {
        let detail = format!("this {noun} was changed");
        Fault::restored(&format!("{noun}-changed"), path, detail)
    };
    match (was, kind) {
        (Some(Node::Directory), Kind::Directory) => Ok(None),
        // A directory alone does nothing; what is in it is judged on its own.
        (None, Kind::Directory) => Ok(None),
        (Some(Node::Link(target)), Kind::Symlink) => {
            let same = dir.read_link(file)?.is_none_or(|now| Bytes::of_path(&now) == *target);
            Ok((!same).then(|| changed().step(link(path, target))))
        }
        (Some(Node::File { stamp, content }), Kind::File) => {
            let Some(now) = dir.lstat(file)? else { return Ok(None) };
            if now == *stamp && settled(stamp, taken) {
                return Ok(None);
            }
            let Some(content) = content else {
                let aside = path.with_file_name(format!("{}.set-aside", file.to_string_lossy()));
                let aside = Step::Rename { from: path.to_owned(), to: aside };
                return Ok((now != *stamp).then(|| changed().step(aside)));
            };
            let same = match dir.read(file, POINTER_LIMIT) {
                Ok(Some(read)) => read.bytes == content.0 && read.stamp.mode == stamp.mode,
                Ok(None) => return Ok(None),
                Err(read::Error::TooBig { .. } | read::Error::NotRegular { .. }) => false,
                Err(error) => return Err(error),
            };
            // Another name for the same file is a way to change it later.
            let linked = now.nlink > stamp.nlink;
            Ok((!same || linked).then(|| changed().write(path, content.0.clone(), stamp.mode)))
        }
        (Some(Node::File { stamp, content: Some(content) }), _) => {
            Ok(Some(changed().write(path, content.0.clone(), stamp.mode)))
        }
        (Some(Node::Link(target)), _) => Ok(Some(changed().set_aside(path).step(link(path, target)))),
        (_, Kind::File | Kind::Directory) => Ok(Some(added().set_aside(path))),
        (_, Kind::Symlink) => {
            let target = dir.read_link(file)?.unwrap_or_default();
            let mut fault = added();
            if let Some(finding) = &mut fault.finding {
                finding.detail = format!("{}, and is a symlink to {}", finding.detail, target.display());
            }
            Ok(Some(fault.drop(path)))
        }
        _ => Ok(Some(added().drop(path))),
    }
}
