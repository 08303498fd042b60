//! Building a session's shadow from the host, and carrying into it what the host changed since.
//!
//! It runs while no turn of the session lives. What the session has not touched becomes what the host has; what it
//! has touched, and the host does not have yet, stays as the session left it.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use codeoid_spec::git::{Checkout, Repository};
use gix::bstr::{BString, ByteSlice as _};

use super::base::{self, Base, MAIN, UnitBase};
use super::git::Git;
use super::index::{Entries, Flags};
use super::place::{ENTRIES, KEPT, NO_ALTERNATES, OBJECTS, Place};
use super::refs::{self, Refs, Target};
use super::{Error, entries, kept, stash, unit, write};
use crate::bytes::Bytes;
use crate::config;
use crate::read::{self, Dir, Kind, POINTER_LIMIT};
use crate::tree;

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
            if !self.changed(name, &host, name.as_ref())? {
                continue;
            }
            match host.read_link(name.as_ref())? {
                Some(target) => write::link(&self.shadow, name.as_ref(), &target)?,
                None => drop(write::copy_tree(&host, name.as_ref(), &self.shadow)?),
            }
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

    /// The names of the units that are the session's, with the directories of each: host's, shadow's.
    fn own_units(&self) -> Vec<(String, PathBuf)> {
        let mut units = Vec::new();
        if matches!(self.repository.checkout, Checkout::Main { .. }) {
            units.push((MAIN.to_owned(), PathBuf::new()));
        }
        for entry in self.repository.entries.iter().filter(|entry| entry.own) {
            units.push((entry.id.clone(), Path::new("worktrees").join(&entry.id)));
        }
        units
    }

    /// Refreshes the units; returns the branches that must stay as the session has them.
    fn units(&mut self) -> Result<BTreeSet<BString>, Error> {
        let mut held = BTreeSet::new();
        for (name, relative) in self.own_units() {
            let host = if name == MAIN {
                Some(Dir::open(self.host.path())?)
            } else {
                self.host.beneath(&relative)?
            };
            let Some(host) = host else { continue };
            let is_new = !self.base.units.contains_key(&name);
            if name != MAIN && is_new {
                if self.shadow.beneath(&relative).is_ok_and(|dir| dir.is_some()) {
                    // The session made one of that name, and the host has it from somewhere else: see `import`.
                    continue;
                }
                let worktrees = write::directory(&self.shadow, "worktrees".as_ref())?;
                let entry = write::directory(&worktrees, name.as_ref())?;
                let gitdir = entries::carry(&host, &entry)?;
                self.base.own.insert(name.clone(), Bytes(gitdir));
            }
            let shadow = if name == MAIN {
                Some(Dir::open(self.shadow.path())?)
            } else {
                // Removed by the session, and kept on the host: it stays removed inside.
                self.shadow.beneath(&relative).ok().flatten()
            };
            let Some(shadow) = shadow else { continue };
            // One without a HEAD is of no use to git.
            if is_new
                || unit::head(&shadow, self.kind)?.is_none()
                || self.may_follow(&name, &host, &shadow)?
            {
                self.rewrite_unit(&name, &host, &shadow)?;
            } else {
                held.extend(unit::branches(&shadow, self.kind)?);
            }
        }
        if !matches!(self.repository.checkout, Checkout::Main { .. }) {
            // Somebody else's: what it shows inside is the host's of now.
            let (host, shadow) = (Dir::open(self.host.path())?, Dir::open(self.shadow.path())?);
            let mut changed = self.shadow.lstat("HEAD")?.is_none();
            for name in ["HEAD", "index", "logs/HEAD"] {
                changed |= self.changed(name, &host, name.as_ref())?;
            }
            if changed {
                self.copy_unit(&host, &shadow)?;
            }
        }
        Ok(held)
    }

    /// Whether a unit of the shadow becomes what the host has. `false`: the host's is the same, or the session has
    /// something in it that the host does not have.
    fn may_follow(&mut self, name: &str, host: &Dir, shadow: &Dir) -> Result<bool, Error> {
        let base = self.base.units.get(name).cloned().unwrap_or_default();
        let head = unit::head(host, self.kind)?.map(|head| head.text()).unwrap_or_default();
        let touched = super::touched(self.place, &self.base, name, shadow, self.kind)?;
        let host_refs = |target: &Option<Target>| match target {
            Some(Target::Symbolic(branch)) => super::read_ref(&self.host, branch.as_bstr(), self.kind),
            _ => Ok(None),
        };
        let branch = unit::head(shadow, self.kind)?;
        let base_refs = Refs::from_text(&self.base.refs.0);
        let of = |refs: &Refs, target: &Option<Target>| match target {
            Some(Target::Symbolic(branch)) => refs.object(branch.as_bstr()),
            Some(Target::Object(id)) => Some(*id),
            None => None,
        };
        let ours = match &branch {
            Some(Target::Symbolic(name)) => super::read_ref(&self.shadow, name.as_bstr(), self.kind)?,
            Some(Target::Object(id)) => Some(*id),
            None => None,
        };
        let theirs = host_refs(&branch)?;
        let moved = ours != of(&base_refs, &branch);
        if !touched && !moved {
            let index = host.lstat("index")?;
            let same = head == base.head.0
                && base.host_index.is_some()
                && index == base.host_index
                && unit::in_progress(host)?.is_some() == base.operation
                && theirs == ours;
            return Ok(!same);
        }
        // The session's is on the host by now, as a merge or as it is: nothing is left that only the session has.
        let contained = match (ours, theirs) {
            (Some(ours), Some(theirs)) => ours == theirs || self.git.is_ancestor(ours, theirs),
            _ => false,
        };
        Ok(moved
            && contained
            && branch.as_ref().map(Target::text).unwrap_or_default() == head
            && unit::in_progress(shadow)?.is_none())
    }

    fn rewrite_unit(&mut self, name: &str, host: &Dir, shadow: &Dir) -> Result<(), Error> {
        let (head, bytes, stamp) = self.copy_unit(host, shadow)?;
        let mut split = false;
        host.visit(|name, _, _| split |= name.to_bytes().starts_with(SHARED_INDEX))?;
        let bytes = match bytes {
            // In two files: put together.
            Some(_) if split => {
                let entries = Entries::read(shadow, "index".as_ref(), self.kind, true)?;
                Some(entries.fresh(Flags::Keep)?)
            }
            other => other,
        };
        let index = self.base.keep_index(self.place, name, bytes.as_deref())?;
        if self.base.units.get(name).is_none_or(|known| known.head.0 != head) {
            // Somebody else's doing.
            let theirs = Target::parse(&head, self.kind).and_then(|head| head.object());
            match theirs {
                Some(id) => drop(self.base.theirs.insert(base::detached(name), id.to_string())),
                None => drop(self.base.theirs.remove(&base::detached(name))),
            }
        }
        let unit = UnitBase {
            head: Bytes(head),
            index,
            shadow_index: shadow.lstat("index")?,
            host_index: stamp,
            operation: unit::in_progress(host)?.is_some(),
        };
        self.base.units.insert(name.to_owned(), unit);
        Ok(())
    }

    /// Copies a checkout's unit as it was at one moment: git writes the index, the branch and HEAD one after the
    /// other, and holds lock files meanwhile.
    #[expect(clippy::type_complexity, reason = "HEAD, the index and its stamp, of the one moment")]
    fn copy_unit(
        &mut self,
        host: &Dir,
        shadow: &Dir,
    ) -> Result<(Vec<u8>, Option<Vec<u8>>, Option<read::Stamp>), Error> {
        for attempt in 0..TRIES {
            let locked = host.lstat("index.lock")?.is_some() || host.lstat("HEAD.lock")?.is_some();
            // One that a killed git left behind does not go by waiting.
            if locked && attempt + 1 < TRIES / 4 {
                std::thread::sleep(std::time::Duration::from_millis(2));
                continue;
            }
            let before = self.moment(host)?;
            let content = host.read("index".as_ref(), crate::index::LIMIT)?;
            let (bytes, stamp) = match content {
                Some(content) => (Some(content.bytes), Some(content.stamp)),
                None => (None, None),
            };
            if self.moment(host)? != before {
                continue;
            }
            match &bytes {
                Some(bytes) => {
                    write::put(shadow, "index".as_ref(), bytes)?;
                    for item in host.list()? {
                        if item.name.as_bytes().starts_with(SHARED_INDEX) {
                            write::copy(host, &item.name, shadow)?;
                        }
                    }
                }
                None => tree::remove(shadow, "index".as_ref())?,
            }
            write::put(shadow, "HEAD".as_ref(), &before.0)?;
            unit::copy_operation(host, shadow)?;
            self.copy_logs(host, shadow, &before.0)?;
            return Ok((before.0, bytes, stamp));
        }
        Err(Error::Busy { path: host.path().to_owned() })
    }

    #[expect(clippy::type_complexity, reason = "what has to be the same at two moments")]
    fn moment(&self, host: &Dir) -> Result<(Vec<u8>, Option<gix::ObjectId>, Option<read::Stamp>), Error> {
        let head = match host.read("HEAD".as_ref(), POINTER_LIMIT) {
            Ok(content) => content.map(|content| content.bytes).unwrap_or_default(),
            // `core.preferSymlinkRefs`.
            Err(read::Error::NotRegular { kind: Kind::Symlink, .. }) => {
                let to = host.read_link("HEAD".as_ref())?.unwrap_or_default();
                Target::Symbolic(to.as_os_str().as_bytes().into()).text()
            }
            Err(error) => return Err(error.into()),
        };
        let value = match Target::parse(&head, self.kind) {
            Some(Target::Symbolic(branch)) => super::read_ref(&self.host, branch.as_bstr(), self.kind)?,
            Some(Target::Object(id)) => Some(id),
            None => None,
        };
        Ok((head, value, host.lstat("index")?))
    }

    fn copy_logs(&self, host: &Dir, shadow: &Dir, head: &[u8]) -> Result<(), Error> {
        let copy = |from: &Dir, to: &Dir, relative: &Path| -> Result<(), Error> {
            let (Some(parent), Some(name)) = (relative.parent(), relative.file_name()) else { return Ok(()) };
            let Ok(Some(source)) = from.beneath(parent) else { return Ok(()) };
            if let Some(target) = write::directories(to, parent)? {
                write::copy(&source, name, &target)?;
            }
            Ok(())
        };
        copy(host, shadow, Path::new("logs/HEAD"))?;
        if let Some(Target::Symbolic(branch)) = Target::parse(head, self.kind) {
            copy(&self.host, &self.shadow, &Path::new("logs").join(OsStr::from_bytes(&branch)))?;
        }
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
