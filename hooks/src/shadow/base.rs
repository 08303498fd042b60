//! What a shadow holds that both sides agree on: what was written into it, and what was imported from it since. All
//! that differs in the shadow is the session's doing, all that differs on the host is somebody else's.
//!
//! It is never a second reading of the host: a ref that was packed between two readings would look deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;

use serde::{Deserialize, Serialize};

use super::index::Entries;
use super::place::Place;
use super::write;
use crate::bytes::Bytes;
use crate::journal;
use crate::os::WriteError;
use crate::read::{self, Dir, Stamp};
use crate::tree;

/// The version of the format; a shadow with another one is built anew, once its own version has imported it.
pub(crate) const VERSION: u32 = 1;
const FILE: &str = "base.json";
/// The most that is read of it, in bytes.
const LIMIT: u64 = 1024 * 1024 * 1024;

/// The main checkout's unit; others have their entries' names.
pub(crate) const MAIN: &str = "";

/// The state that both sides agree on.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Base {
    /// [`VERSION`].
    pub version: u32,
    /// The refs, as [`super::refs::Refs::to_text`] writes them.
    pub refs: Bytes,
    /// The configuration.
    pub config: Bytes,
    /// The host's configuration that it was made from.
    pub host_config: Bytes,
    /// The stash's entries, the latest first.
    pub stash: Vec<String>,
    /// The units of the checkouts that are the session's to change, by the name of the entry.
    pub units: BTreeMap<String, UnitBase>,
    /// The session's own entries that the host has, with the worktree's `.git` that each names.
    pub own: BTreeMap<String, Bytes>,
    /// What was copied, with the stamp that it had on the host.
    pub copied: BTreeMap<String, Stamp>,
    /// Small directories that were copied, with what they held.
    #[serde(default)]
    pub directories: BTreeMap<String, String>,
    /// Directories of objects that were linked, with the stamp that they had on the host.
    pub kept: BTreeMap<String, Stamp>,
    /// What was reported already, and what it was: a conflict that stays is not told with every import.
    pub reported: BTreeMap<String, String>,
    /// Refs that an import is about to move, with the new values: a kill must not make its own work look like somebody
    /// else's.
    pub pending: BTreeMap<String, String>,
    /// What was imported while turns ran, for the report at the end.
    pub promoted: Vec<String>,
    /// Refs that the session made, and nobody else has moved since; and entries of the stash, as `stash <id>`.
    pub created: BTreeSet<String>,
    /// What refs held before the session moved them: what others had there. And what others have in the detached HEAD
    /// of a checkout, as `HEAD <unit>`.
    #[serde(default)]
    pub theirs: BTreeMap<String, String>,
    /// The record as it was read: one that is the same need not be written.
    #[serde(skip)]
    stored: Vec<u8>,
}

/// What both sides agree on of a checkout's unit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UnitBase {
    /// The content of HEAD.
    pub head: Bytes,
    /// The name of the index that both sides agree on, beside this record.
    pub index: Option<String>,
    /// The stamp of the shadow's index that says the same. Nobody can set a ctime, so an equal stamp is an equal file.
    pub shadow_index: Option<Stamp>,
    /// The stamp of the host's index that says the same; `None` where it has to be looked at.
    pub host_index: Option<Stamp>,
    /// An operation was in progress on both sides.
    pub operation: bool,
}

/// Why the record could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] read::Error),
    /// It could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A file beside it could not be written.
    #[error(transparent)]
    Put(#[from] write::Error),
    /// An old file beside it could not be removed.
    #[error(transparent)]
    Tree(#[from] tree::Error),
    /// It is not one.
    #[error("the record of the shadow in {path} is damaged")]
    Damaged {
        /// The directory.
        path: std::path::PathBuf,
        /// Where.
        #[source]
        source: serde_json::Error,
    },
}

/// How [`Base::theirs`] names the detached HEAD of a checkout.
pub(crate) fn detached(unit: &str) -> String {
    format!("HEAD {unit}")
}

impl Base {
    /// A record of nothing.
    pub fn new() -> Self {
        Self { version: VERSION, ..Self::default() }
    }

    /// The record of a shadow; `None` where there is none, or one of another version.
    pub fn load(place: &Place) -> Result<Option<Self>, Error> {
        let path = place.base().join(FILE);
        let Some(content) = read::file(&path, LIMIT)? else { return Ok(None) };
        let mut base: Self = serde_json::from_slice(&content.bytes)
            .map_err(|source| Error::Damaged { path: place.base(), source })?;
        base.stored = content.bytes;
        Ok((base.version == VERSION).then_some(base))
    }

    /// Writes the record, whole or not at all, and removes copies of indexes that it does not name.
    pub fn store(&mut self, place: &Place) -> Result<(), Error> {
        let path = place.base().join(FILE);
        let text =
            serde_json::to_vec(self).map_err(|source| Error::Damaged { path: place.base(), source })?;
        if text == self.stored {
            return Ok(());
        }
        journal::replace(&path, &text).map_err(|source| WriteError::new(&path, source))?;
        let named: std::collections::HashSet<&OsStr> =
            self.units.values().filter_map(|unit| unit.index.as_deref().map(OsStr::new)).collect();
        let dir = Dir::open(&place.base())?;
        for item in dir.list()? {
            if item.name != FILE && !named.contains(item.name.as_os_str()) {
                tree::remove(&dir, &item.name)?;
            }
        }
        self.stored = text;
        Ok(())
    }

    /// Keeps an index that both sides agree on, and returns its name. It counts once the record is stored.
    pub fn keep_index(
        &self,
        place: &Place,
        unit: &str,
        bytes: Option<&[u8]>,
    ) -> Result<Option<String>, Error> {
        let Some(bytes) = bytes else { return Ok(None) };
        let old = self.units.get(unit).and_then(|unit| unit.index.as_deref());
        let slug = if unit == MAIN { "main".to_owned() } else { codeoid_spec::id::hex8(&[unit.as_bytes()]) };
        let number = |name: &str| name.rsplit('.').next().and_then(|text| text.parse::<u64>().ok());
        let next = old.and_then(number).map_or(0, |number| number.wrapping_add(1));
        let name = format!("{slug}.index.{next}");
        write::put_mode(&Dir::open(&place.base())?, name.as_ref(), bytes, 0o600)?;
        Ok(Some(name))
    }

    /// The index of a unit that both sides agree on.
    pub fn index(&self, place: &Place, unit: &str, kind: gix::hash::Kind) -> Result<Entries, super::Error> {
        let Some(name) = self.units.get(unit).and_then(|unit| unit.index.as_deref()) else {
            return Ok(Entries::empty(kind));
        };
        Ok(Entries::read(&Dir::open(&place.base())?, name.as_ref(), kind, true)?)
    }

    /// Whether a shadow's index says something else than both sides agreed on.
    pub fn index_changed(
        &self,
        place: &Place,
        unit: &str,
        shadow: &Dir,
        kind: gix::hash::Kind,
    ) -> Result<bool, super::Error> {
        let known = self.units.get(unit).and_then(|unit| unit.shadow_index);
        if shadow.lstat("index")? == known {
            return Ok(false);
        }
        match Entries::read(shadow, "index".as_ref(), kind, false) {
            Ok(entries) => Ok(!entries.same(&self.index(place, unit, kind)?)),
            Err(_) => Ok(true),
        }
    }
}
