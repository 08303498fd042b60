//! Building a session's shadow from the host, and carrying into it what the host changed since.
//!
//! It runs while no turn of the session lives. What the session has not touched becomes what the host has; what it
//! has touched, and the host does not have yet, stays as the session left it.

mod units;

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use codeoid_spec::git::Repository;
use gix::bstr::{BString, ByteSlice as _};

use super::base::{self, Base};
use super::git::Git;
use super::place::{ENTRIES, KEPT, NO_ALTERNATES, OBJECTS, Place};
use super::refs::{self, Refs, Target};
use super::{Error, entries, kept, stash, unit, write};
use crate::bytes::Bytes;
use crate::config;
use crate::read::{self, Dir, Kind, POINTER_LIMIT};

/// Where a session sees what the host has where the two went different ways.
pub(crate) const HOST_VIEW: &str = "refs/codeoid/host/";

/// Files of the common dir that are copied when the host changed them.
const FILES: [&str; 3] = ["config.worktree", "description", "shallow"];
/// Files of `info/`.
const INFO: [&str; 4] = ["exclude", "attributes", "sparse-checkout", "grafts"];
/// Directories that are copied whole when the host changed them.
const DIRECTORIES: [&str; 3] = ["hooks", "branches", "remotes"];
/// What the larger file of a split index is called (`core.splitIndex`).
const SHARED_INDEX: &[u8] = b"sharedindex.";
/// How often a checkout is looked at again because git is changing it.
const TRIES: u32 = 200;

/// Builds the shadow, or refreshes it. Returns what is to be said of it.
pub(crate) fn refresh(place: &Place, repository: &Repository, git: &Git) -> Result<Vec<String>, Error> {
    let root = Dir::open(place.root())?;
    write::directory(&root, "base".as_ref())?;
    let known = match Base::load(place) {
        Err(base::Error::Damaged { .. }) => None,
        other => other?,
    };
    let whole = match root.child("git".as_ref()) {
        Ok(Some(shadow)) => super::is_whole(&shadow).unwrap_or(false),
        _ => false,
    };
    if let Some(base) = known.clone().filter(|_| whole) {
        match attempt(place, repository, git, &root, base) {
            // What a turn has put there must not keep the next one from its work.
            Err(error) if error.is_below(&place.git()) => {}
            other => return other,
        }
    }
    set_aside(&root)?;
    let base = Base::new();
    let mut warnings = attempt(place, repository, git, &root, base)?;
    if known.is_some() {
        warnings.push(
            "the session destroyed its view of the repository's git dir; it was made anew from the host's"
                .to_owned(),
        );
    }
    Ok(warnings)
}

fn attempt(
    place: &Place,
    repository: &Repository,
    git: &Git,
    root: &Dir,
    base: Base,
) -> Result<Vec<String>, Error> {
    let host = Dir::open(&repository.common_dir)?;
    let kind = super::hash_kind(&host)?;
    let shadow = write::directory(root, "git".as_ref())?;
    sweep(&shadow, repository)?;
    let headless = unit::head(&shadow, kind)?.is_none();
    let warnings = Vec::new();
    let mut build = Build { place, repository, git, host, shadow, kind, base, warnings, headless };
    build.small_files()?;
    build.configuration()?;
    build.objects()?;
    let held = build.units()?;
    build.refs(&held)?;
    build.entries()?;
    build.stash()?;
    build.base.store(place)?;
    Ok(build.warnings)
}

/// What the session left of a shadow that cannot be used any more is kept for a person, until the session is closed.
fn set_aside(root: &Dir) -> Result<(), Error> {
    if root.lstat("git")?.is_none() {
        return Ok(());
    }
    let mut name = "damaged".to_owned();
    for number in 1..100 {
        if root.lstat(&name)?.is_none() {
            break;
        }
        name = format!("damaged-{number}");
    }
    Ok(write::rename(root, "git".as_ref(), name.as_ref())?)
}

/// Removes lock files that killed processes of earlier turns left in the shadow; nobody else writes it.
fn sweep(shadow: &Dir, repository: &Repository) -> Result<(), Error> {
    sweep_directory(shadow, 0)?;
    for name in ["refs", "logs"] {
        if let Ok(Some(below)) = shadow.child(name.as_ref()) {
            sweep_directory(&below, 64)?;
        }
    }
    if let Ok(Some(objects)) = shadow.child("objects".as_ref()) {
        sweep_directory(&objects, 0)?;
    }
    if let Ok(Some(worktrees)) = shadow.child("worktrees".as_ref()) {
        let foreign: BTreeSet<&str> =
            repository.entries.iter().filter(|entry| !entry.own).map(|entry| entry.id.as_str()).collect();
        for item in worktrees.list()? {
            if item.name.to_str().is_some_and(|name| foreign.contains(name)) {
                continue;
            }
            if let Ok(Some(entry)) = worktrees.child(&item.name) {
                sweep_directory(&entry, 8)?;
            }
        }
    }
    Ok(())
}

fn sweep_directory(dir: &Dir, depth: usize) -> Result<(), Error> {
    for item in dir.list()? {
        let name = item.name.as_bytes();
        if item.kind == Kind::Directory {
            if depth > 0
                && let Ok(Some(below)) = dir.child(&item.name)
            {
                sweep_directory(&below, depth - 1)?;
            }
        } else if name.ends_with(b".lock") || name == b"gc.pid" || name.ends_with(write::DRAFT.as_bytes()) {
            write::unlink(dir, &item.name)?;
        }
    }
    Ok(())
}

/// The directories of objects that a repository borrows from, absolute, in git's order (gitrepository-layout(5),
/// `objects/info/alternates`).
pub(crate) fn alternates(objects: &Path) -> Result<Vec<PathBuf>, read::Error> {
    let mut found = Vec::new();
    let mut waiting = vec![(objects.to_owned(), 0)];
    while let Some((dir, depth)) = waiting.pop() {
        // As deep as git follows (link_alt_odb_entry() in its object-file.c).
        if depth > 5 {
            continue;
        }
        let Ok(info) = Dir::open(&dir.join("info")) else { continue };
        let Some(content) = info.read("alternates".as_ref(), POINTER_LIMIT)? else { continue };
        for line in content.bytes.split(|byte| *byte == b'\n') {
            if line.is_empty() || line[0] == b'#' {
                continue;
            }
            let path = dir.join(OsStr::from_bytes(line));
            let Ok(real) = path.canonicalize() else { continue };
            if !found.contains(&real) {
                found.push(real.clone());
                waiting.push((real, depth + 1));
            }
        }
    }
    Ok(found)
}

/// What changes when anything in a small directory does: each name with its stamp.
fn state_of(dir: &Dir, name: &str) -> Result<String, Error> {
    let mut text = format!("{:?}", dir.lstat(name)?);
    if let Ok(Some(below)) = dir.child(name.as_ref()) {
        for item in below.list()? {
            text.push_str(&format!("\0{:?} {:?}", item.name, below.lstat(&item.name)?));
        }
    }
    Ok(codeoid_spec::id::hex8(&[text.as_bytes()]) + &codeoid_spec::id::hex8(&[b"state", text.as_bytes()]))
}

pub(crate) struct Build<'a> {
    pub place: &'a Place,
    pub repository: &'a Repository,
    pub git: &'a Git,
    pub host: Dir,
    pub shadow: Dir,
    pub kind: gix::hash::Kind,
    pub base: Base,
    pub warnings: Vec<String>,
    /// The shadow has no HEAD: what it lacks besides was not deleted by git.
    pub headless: bool,
}

impl Build<'_> {
    /// Whether the host's file is another one than when it was last copied; remembers it.
    fn changed(&mut self, key: &str, dir: &Dir, name: &OsStr) -> Result<bool, Error> {
        let now = dir.lstat(name)?;
        let before = self.base.copied.get(key).copied();
        if now == before {
            return Ok(false);
        }
        match now {
            Some(stamp) => drop(self.base.copied.insert(key.to_owned(), stamp)),
            None => drop(self.base.copied.remove(key)),
        }
        Ok(true)
    }

    fn small_files(&mut self) -> Result<(), Error> {
        for name in FILES {
            let host = Dir::open(self.host.path())?;
            if self.changed(name, &host, name.as_ref())? {
                write::copy(&host, name.as_ref(), &self.shadow)?;
            }
        }
        let info = write::directory(&self.shadow, "info".as_ref())?;
        if let Some(host) = self.host.child("info".as_ref())? {
            for name in INFO {
                if self.changed(&format!("info/{name}"), &host, name.as_ref())? {
                    write::copy(&host, name.as_ref(), &info)?;
                }
            }
        }
        for name in DIRECTORIES {
            let host = Dir::open(self.host.path())?;
            let now = state_of(&host, name)?;
            if self.base.directories.get(name) == Some(&now) {
                continue;
            }
            match host.read_link(name.as_ref())? {
                Some(target) => write::link(&self.shadow, name.as_ref(), &target)?,
                None => drop(write::copy_tree(&host, name.as_ref(), &self.shadow)?),
            }
            self.base.directories.insert(name.to_owned(), now);
        }
        Ok(())
    }

    fn configuration(&mut self) -> Result<(), Error> {
        let read = |dir: &Dir| -> Result<Vec<u8>, Error> {
            match dir.read("config".as_ref(), POINTER_LIMIT) {
                Ok(content) => Ok(content.map(|content| content.bytes).unwrap_or_default()),
                Err(read::Error::NotRegular { .. } | read::Error::TooBig { .. }) => Ok(Vec::new()),
                Err(error) => Err(error.into()),
            }
        };
        let host = read(&self.host)?;
        let ours = read(&self.shadow)?;
        if host == self.base.host_config.0 && !ours.is_empty() {
            return Ok(());
        }
        // What the session added stays with it: all that is in its own and was not the host's. Where the host has an
        // upstream of its own by now, it wins, as it does at the import.
        let added = config::File::parse(&ours).ok().map(|ours| {
            let old = config::File::parse(&self.base.host_config.0).unwrap_or_default();
            let new = config::File::parse(&host).unwrap_or_default();
            let pair = |variable: &config::Variable| (variable.name.clone(), variable.value.clone());
            let pairs: HashSet<_> = old.variables().iter().chain(new.variables()).map(pair).collect();
            let upstreams: HashSet<&config::Name> = new
                .variables()
                .iter()
                .map(|variable| &variable.name)
                .filter(|name| name.section == "branch")
                .collect();
            let stays = |variable: &&config::Variable| {
                !pairs.contains(&pair(variable)) && !upstreams.contains(&variable.name)
            };
            ours.variables().iter().filter(stays).cloned().collect::<Vec<_>>()
        });
        let next = match added {
            Some(added) if !added.is_empty() => config::with(host.clone(), &added),
            _ => host.clone(),
        };
        write::put(&self.shadow, "config".as_ref(), &next)?;
        self.base.config = Bytes(host.clone());
        self.base.host_config = Bytes(host);
        Ok(())
    }

    fn objects(&mut self) -> Result<(), Error> {
        let objects = write::directory(&self.shadow, "objects".as_ref())?;
        write::directory(&objects, "pack".as_ref())?;
        let info = write::directory(&objects, "info".as_ref())?;
        let host = self
            .host
            .child("objects".as_ref())?
            .ok_or_else(|| Error::NotARepository { path: self.host.path().join("objects") })?;
        let linked = kept::link(&host, self.place, &mut self.base)?;
        if !linked {
            self.warnings.push(
                "the host's objects cannot be linked into the state directory: if the host deletes a branch and \
                 collects garbage at once, the session loses its objects"
                    .to_owned(),
            );
        }
        let mut text = format!("{OBJECTS}\n{KEPT}\n").into_bytes();
        for path in alternates(host.path())? {
            text.extend_from_slice(path.as_os_str().as_bytes());
            text.push(b'\n');
        }
        write::keep(&info, "alternates".as_ref(), &text)?;
        // What lies over the host's own list inside: that one is relative to another place, and adds to the depth.
        write::keep(&Dir::open(self.place.root())?, NO_ALTERNATES.as_ref(), b"")?;
        Ok(())
    }

    fn refs(&mut self, held: &BTreeSet<BString>) -> Result<(), Error> {
        let host = refs::read(&self.host, self.kind)?;
        let mut ours = refs::read(&self.shadow, self.kind)?;
        let mut base = Refs::from_text(&self.base.refs.0);
        ours.damaged |= self.headless;
        if ours.damaged {
            // What cannot be read was not deleted.
            for (name, target) in &base.map {
                ours.map.entry(name.clone()).or_insert_with(|| target.clone());
            }
        }
        let mut next = ours.clone();
        next.map.retain(|name, _| !name.starts_with(HOST_VIEW.as_bytes()));
        let names: BTreeSet<BString> =
            [&host, &ours, &base].iter().flat_map(|refs| refs.map.keys()).cloned().collect();
        let mut diverged = Vec::new();
        for name in names {
            if name.starts_with(HOST_VIEW.as_bytes()) || host.broken.contains(&name) || held.contains(&name) {
                continue;
            }
            let (h, b, s) = (host.map.get(&name), base.map.get(&name).cloned(), ours.map.get(&name));
            let follow = if s == b.as_ref() && !ours.broken.contains(&name) {
                true
            } else if h == s {
                set(&mut base, &name, h);
                continue;
            } else if h == b.as_ref() {
                continue;
            } else {
                match (h.and_then(Target::object), s.and_then(Target::object)) {
                    (Some(h), Some(s)) => self.git.is_ancestor(s, h),
                    _ => false,
                }
            };
            if follow {
                if h != b.as_ref() {
                    // Somebody else's by now.
                    let shown = name.to_str_lossy();
                    self.base.created.remove(shown.as_ref());
                    self.base.theirs.remove(shown.as_ref());
                }
                set(&mut next, &name, h);
                set(&mut base, &name, h);
            } else if let Some(Target::Object(h)) = h {
                diverged.push((name, *h));
            }
        }
        for (name, h) in diverged {
            let view = [HOST_VIEW.as_bytes(), name.strip_prefix(b"refs/").unwrap_or(&name)].concat();
            next.map.insert(view.into(), Target::Object(h));
        }
        next.broken.clear();
        next.damaged = false;
        if next != ours || ours.map.is_empty() || self.shadow.lstat("packed-refs")?.is_none() {
            refs::write(&self.shadow, &next)?;
        }
        self.base.refs = Bytes(base.to_text());
        Ok(())
    }

    fn entries(&mut self) -> Result<(), Error> {
        entries::follow(self)
    }

    fn stash(&mut self) -> Result<(), Error> {
        let host = stash::read(&self.host, self.kind)?;
        let ours = stash::read(&self.shadow, self.kind)?;
        let known: Vec<_> = self.base.stash.iter().map(|id| BString::from(id.as_str())).collect();
        let ids = |list: &[stash::Entry]| -> Vec<BString> {
            list.iter().map(|entry| BString::from(entry.id.to_string())).collect()
        };
        if ids(&ours) == known && ids(&host) != known {
            stash::copy(&self.host, &self.shadow)?;
            self.base.stash = host.iter().map(|entry| entry.id.to_string()).collect();
        }
        Ok(())
    }

    /// The directory of entries in the shadow, for [`entries::follow`].
    pub(crate) fn entry_link(&self, id: &str, name: &str) -> PathBuf {
        Path::new(ENTRIES).join(id).join(name)
    }
}

fn set(refs: &mut Refs, name: &BString, target: Option<&Target>) {
    match target {
        Some(target) => drop(refs.map.insert(name.clone(), target.clone())),
        None => drop(refs.map.remove(name)),
    }
}
