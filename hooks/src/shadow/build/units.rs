//! The units of the session's checkouts on their way into the shadow, each as it was at one moment.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use codeoid_spec::git::Checkout;
use gix::bstr::{BString, ByteSlice as _};

use super::{Build, SHARED_INDEX, TRIES};
use crate::bytes::Bytes;
use crate::read::{self, Dir, Kind, POINTER_LIMIT};
use crate::shadow::base::{self, MAIN, UnitBase};
use crate::shadow::index::{Entries, Flags};
use crate::shadow::refs::{Refs, Target};
use crate::shadow::{Error, entries, unit, write};
use crate::tree;

impl Build<'_> {
    /// The names of the units that are the session's, with the directories of each: host's, shadow's.
    pub(super) fn own_units(&self) -> Vec<(String, PathBuf)> {
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
    pub(super) fn units(&mut self) -> Result<BTreeSet<BString>, Error> {
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
    pub(super) fn may_follow(&mut self, name: &str, host: &Dir, shadow: &Dir) -> Result<bool, Error> {
        let base = self.base.units.get(name).cloned().unwrap_or_default();
        let head = unit::head(host, self.kind)?.map(|head| head.text()).unwrap_or_default();
        let touched = crate::shadow::touched(self.place, &self.base, name, shadow, self.kind)?;
        let host_refs = |target: &Option<Target>| match target {
            Some(Target::Symbolic(branch)) => {
                crate::shadow::read_ref(&self.host, branch.as_bstr(), self.kind)
            }
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
            Some(Target::Symbolic(name)) => crate::shadow::read_ref(&self.shadow, name.as_bstr(), self.kind)?,
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

    pub(super) fn rewrite_unit(&mut self, name: &str, host: &Dir, shadow: &Dir) -> Result<(), Error> {
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
    pub(super) fn copy_unit(
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
    pub(super) fn moment(
        &self,
        host: &Dir,
    ) -> Result<(Vec<u8>, Option<gix::ObjectId>, Option<read::Stamp>), Error> {
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
            Some(Target::Symbolic(branch)) => {
                crate::shadow::read_ref(&self.host, branch.as_bstr(), self.kind)?
            }
            Some(Target::Object(id)) => Some(id),
            None => None,
        };
        Ok((head, value, host.lstat("index")?))
    }

    pub(super) fn copy_logs(&self, host: &Dir, shadow: &Dir, head: &[u8]) -> Result<(), Error> {
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
}
