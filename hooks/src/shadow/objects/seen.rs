//! What of a shadow was read already: packs, and what was refused. Kept beside the quarantine, which is worth as much.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::os::WriteError;
use crate::read::{self, Stamp};

/// The most that is remembered of what was refused.
const MOST: usize = 10_000;
/// The most that is read of the file, in bytes.
const LIMIT: u64 = 64 * 1024 * 1024;

/// Names in the shadow's `objects` directory, with the stamp of the file that was read.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    packs: BTreeMap<String, Stamp>,
    refused: BTreeMap<String, Stamp>,
    #[serde(skip)]
    changed: bool,
}

fn path(quarantine: &Path) -> PathBuf {
    quarantine.with_file_name("gathered.json")
}

impl Seen {
    /// A file that is absent or damaged says that nothing was seen, which costs time only.
    pub(super) fn load(quarantine: &Path) -> Self {
        let content = read::file(&path(quarantine), LIMIT).ok().flatten();
        content.and_then(|content| serde_json::from_slice(&content.bytes).ok()).unwrap_or_default()
    }

    pub(super) fn store(&self, quarantine: &Path) -> Result<(), WriteError> {
        if !self.changed {
            return Ok(());
        }
        let path = path(quarantine);
        let new = path.with_extension("json.new");
        let text = serde_json::to_vec(self).map_err(|e| WriteError::new(&path, e.into()))?;
        std::fs::write(&new, text).map_err(|e| WriteError::new(&new, e))?;
        std::fs::rename(&new, &path).map_err(|e| WriteError::new(&path, e))
    }

    pub(super) fn has(&self, name: &str, stamp: &Stamp) -> bool {
        self.packs.get(name) == Some(stamp) || self.refused.get(name) == Some(stamp)
    }

    pub(super) fn pack(&mut self, name: String, stamp: Stamp) {
        self.packs.insert(name, stamp);
        self.changed = true;
    }

    pub(super) fn refuse(&mut self, name: String, stamp: Stamp) {
        if self.refused.len() < MOST {
            self.refused.insert(name, stamp);
            self.changed = true;
        }
    }
}

/// Forgets everything.
pub(super) fn forget(quarantine: &Path) -> Result<(), WriteError> {
    let path = path(quarantine);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(WriteError::new(&path, error)),
        _ => Ok(()),
    }
}
