//! Packs that a partial clone's turn says it has fetched (rule 15).
//!
//! git takes a pack beside which a `.promisor` lies for fetched, and all that its objects name for kept by the remote:
//! what is missing may be missing, and what nothing else reaches may go at the next `gc`. So a turn that says it of
//! a pack of its own would have the host lose commits that only the host has (git 2.39 to 2.47, reproduced in the
//! tests). A pack is believed only where none of its objects is, or names, something that the host has otherwise
//! than promised, and where no commit's parent is missing. What is not believed is taken as made by the turn.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use gix::ObjectId;
use gix::objs::Find as _;
use gix::objs::{CommitRefIter, Kind, TagRefIter, TreeRefIter};
use gix::odb::Header as _;
use gix::odb::pack::index;

use super::admit::answer;
use super::stage::Stage;
use super::{Admitted, Error, HELD, Host, Store};
use crate::os::WriteError;

/// Beside a pack in the quarantine: the turn says that it was fetched. git does not know this name.
const CLAIM: &str = "claimed";

/// Notes the turn's word for a pack of the quarantine.
pub(super) fn claim(pack: &Path) -> Result<(), WriteError> {
    let path = pack.with_extension(CLAIM);
    std::fs::write(&path, "").map_err(|e| WriteError::new(&path, e))
}

impl Store<'_> {
    /// Takes in the packs that were fetched, whole: what is promised by them belongs to the pack.
    pub(super) fn promised(&self, host: &Host, done: &mut Admitted) -> Result<(), Error> {
        let mut claimed = with_extension(&self.quarantine.join("pack"), CLAIM);
        if claimed.is_empty() {
            return Ok(());
        }
        let mut promised: Vec<index::File> = with_extension(&self.git.objects().join("pack"), "promisor")
            .iter()
            .filter_map(|path| index::File::at(path.with_extension("idx"), self.kind).ok())
            .collect();
        // A pack may name what another one brings.
        loop {
            let before = claimed.len();
            let mut later = Vec::new();
            for claim in std::mem::take(&mut claimed) {
                let pack = claim.with_extension("pack");
                match self.believed(&pack, host, &promised) {
                    Some(index) if self.receive(&pack, done)? => {
                        promised.push(index);
                        remove(&claim)?;
                    }
                    _ => later.push(claim),
                }
            }
            if later.is_empty() || later.len() == before {
                return later.iter().try_for_each(|claim| remove(claim));
            }
            claimed = later;
        }
    }

    /// The pack's index, if the pack is believed to be fetched.
    fn believed(&self, pack: &Path, host: &Host, promised: &[index::File]) -> Option<index::File> {
        let index = index::File::at(pack.with_extension("idx"), self.kind).ok()?;
        let options = gix::odb::store::init::Options {
            alloc_limit_bytes: usize::try_from(HELD).ok(),
            ..gix::odb::store::init::Options::default()
        };
        let quarantine = gix::odb::at_opts(&self.quarantine, self.kind, None, options).ok()?;
        let is_promised = |id: &ObjectId| promised.iter().any(|index| index.lookup(id).is_some());
        let is_hosts_own = |id: &ObjectId| !is_promised(id) && host.has(id);
        let mut judged = HashSet::new();
        let mut buffer = Vec::new();
        for entry in index.iter() {
            if is_hosts_own(&entry.oid) {
                return None;
            }
            let kind = quarantine.try_header(&entry.oid).ok()??.kind();
            if kind == Kind::Blob {
                continue;
            }
            let data = quarantine.try_find(&entry.oid, &mut buffer).ok()??.data;
            let (links, parents) = links(kind, data, self.kind)?;
            let here = |id: &ObjectId| index.lookup(id).is_some();
            let is_astray = |id: &ObjectId| !here(id) && judged.insert(*id) && is_hosts_own(id);
            if !parents.iter().all(|id| here(id) || is_promised(id)) || links.iter().any(is_astray) {
                return None;
            }
        }
        Some(index)
    }

    /// Has the host's git check such a pack; whether it is on the host now.
    fn receive(&self, pack: &Path, done: &mut Admitted) -> Result<bool, Error> {
        let Ok(file) = File::open(pack) else { return Ok(false) };
        let stage = Stage::new(&self.git.objects(), &self.token())?;
        let mut command = self.git.command([
            "index-pack".to_owned(),
            "--stdin".to_owned(),
            format!("--keep={}", self.keep_text()),
            self.check_argument(),
            "--promisor=".to_owned(),
        ]);
        stage.direct(&mut command);
        command.stdin(Stdio::from(file));
        if answer(self.git.run_command(command, b""))?.is_err() {
            return Ok(false);
        }
        stage.migrate()?;
        done.keep = true;
        // From here on git leaves its objects out of what it lists as made by the turn.
        let path = pack.with_extension("promisor");
        std::fs::write(&path, "").map_err(|e| WriteError::new(&path, e))?;
        Ok(true)
    }
}

/// What an object names, and which of that are a commit's parents; `None` where it cannot be parsed.
fn links(kind: Kind, data: &[u8], hash: gix::hash::Kind) -> Option<(Vec<ObjectId>, Vec<ObjectId>)> {
    match kind {
        Kind::Commit => {
            let tree = CommitRefIter::from_bytes(data, hash).tree_id().ok()?;
            let parents: Vec<ObjectId> = CommitRefIter::from_bytes(data, hash).parent_ids().collect();
            Some((vec![tree], parents))
        }
        Kind::Tag => Some((vec![TagRefIter::from_bytes(data, hash).target_id().ok()?], Vec::new())),
        Kind::Tree => {
            let mut links = Vec::new();
            for entry in TreeRefIter::from_bytes(data, hash) {
                let entry = entry.ok()?;
                if !entry.mode.is_commit() {
                    links.push(entry.oid.to_owned());
                }
            }
            Some((links, Vec::new()))
        }
        Kind::Blob => Some((Vec::new(), Vec::new())),
    }
}

/// The files in a directory with that extension; none where it cannot be read.
fn with_extension(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let list = std::fs::read_dir(directory).into_iter().flatten().flatten();
    list.map(|item| item.path()).filter(|path| path.extension() == Some(OsStr::new(extension))).collect()
}

fn remove(path: &Path) -> Result<(), Error> {
    std::fs::remove_file(path).map_err(|e| WriteError::new(path, e).into())
}
