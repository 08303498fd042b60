//! Worktree entries: which of them changed, and what of that is not git's or its owner's doing.
//!
//! An entry in a directory that a turn can write is byte for byte the same whether its owner or the turn wrote
//! it. So only that is put back which has a truth independent of the writer: `commondir` (there is one right
//! value), `gitdir` (the worktree says whose it is), symlinks and special files (git makes none), duplicates
//! (the worktree points at one of them). `HEAD`, the index, `locked` and the logs are never touched as long as
//! they are what git makes of them.

use std::ffi::OsStr;
use std::hash::{Hash as _, Hasher as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use codeoid_spec::git::Entry;
use serde::{Deserialize, Serialize};

use super::baseline::{Saved, saved, settled};
use super::todo;
use crate::bytes::Bytes;
use crate::read::{self, Dir, Kind, POINTER_LIMIT, Stamp};

/// A worktree entry as it was. What is as git usually has it is left out, because there may be a thousand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntryRecord {
    /// Its name.
    pub(crate) id: String,
    /// Its inode.
    pub(crate) inode: u64,
    /// What stat(2) said of everything that matters in it; `None` where that proves nothing, so that it is
    /// judged in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) digest: Option<u64>,
    /// Its worktree, resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) worktree: Option<PathBuf>,
    /// `gitdir`, where it is not just the worktree's path and `/.git`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gitdir: Option<Bytes>,
    /// `HEAD`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) head: Option<Bytes>,
    /// Whether it is the session's own.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) own: bool,
    /// Whether it has submodules.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) modules: bool,
    /// `config.worktree`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) config: Option<Saved>,
    /// Commands that a rebase in progress was going to run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) commands: Vec<Bytes>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl EntryRecord {
    /// The content of `gitdir`, where there was a readable one.
    pub(crate) fn gitdir(&self) -> Option<Vec<u8>> {
        match (&self.gitdir, &self.worktree) {
            (Some(bytes), _) => Some(bytes.0.clone()),
            (None, Some(worktree)) => Some(usual_gitdir(worktree)),
            (None, None) => None,
        }
    }
}

fn usual_gitdir(worktree: &Path) -> Vec<u8> {
    [worktree.as_os_str().as_bytes(), b"/.git\n"].concat()
}

/// What is compared of an entry: the entry itself (its ctime changes when a name in it does), what is written
/// in place, and the directories in it.
const JUDGED: [&str; 6] = ["", "/gitdir", "/commondir", "/index", "/logs", "/refs"];
/// What only some entries have. Where one of them exists, the entry is judged whole every time. All but the
/// first are directories.
const UNUSUAL: [&str; 6] =
    ["/config.worktree", "/rebase-merge", "/sequencer", "/modules", "/refs/bisect", "/refs/worktree"];

/// An entry's stamps in one number, and its latest change.
#[derive(Clone, Copy)]
pub(super) struct Digest {
    pub(super) number: u64,
    pub(super) latest: i64,
    /// The entry itself.
    pub(super) stamp: Stamp,
    /// `gitdir` itself.
    gitdir: Option<Stamp>,
    /// Whether no directory lies in it but `logs` and an empty `refs`: where the file system tells that by the number
    /// of links (ext4, xfs, tmpfs do, btrfs does not).
    plain: bool,
}

/// Names in an entry, without an allocation for each of them.
struct Names(Vec<u8>);

impl Names {
    fn of(&mut self, id: &OsStr, name: &str) -> &OsStr {
        self.0.clear();
        self.0.extend_from_slice(id.as_bytes());
        self.0.extend_from_slice(name.as_bytes());
        OsStr::from_bytes(&self.0)
    }
}

/// Looks at an entry without reading anything in it; `None` where there is none of that name.
pub(super) fn digest(worktrees: &Dir, id: &OsStr) -> Result<Option<Digest>, read::Error> {
    let mut names = Names(Vec::with_capacity(256));
    // Fixed keys: the number is compared across processes. Nobody can choose a ctime.
    let mut hasher = std::hash::DefaultHasher::new();
    let (mut itself, mut latest, mut gitdir) = (None, i64::MIN, None);
    let (mut expected, mut refs_are_empty) = (0, true);
    for name in JUDGED {
        let stamp = worktrees.lstat(names.of(id, name))?;
        match (name, &stamp) {
            ("", None) => return Ok(None),
            ("", _) => itself = stamp,
            ("/gitdir", _) => gitdir = stamp,
            ("/logs" | "/refs", Some(stamp)) if stamp.kind() == Kind::Directory => {
                expected += 1;
                refs_are_empty &= name == "/logs" || stamp.nlink == 2;
            }
            _ => {}
        }
        if let Some(stamp) = &stamp {
            latest = latest.max(stamp.ctime);
        }
        stamp.hash(&mut hasher);
    }
    let Some(stamp) = itself else { return Ok(None) };
    let plain = refs_are_empty && stamp.nlink.checked_sub(2) == Some(expected);
    Ok(Some(Digest { number: hasher.finish(), stamp, latest, gitdir, plain }))
}

/// Remembers the entries of a git dir.
pub(super) fn capture(git_dir: &Dir, list: &[Entry], taken: i64) -> Result<Vec<EntryRecord>, read::Error> {
    let worktrees = match git_dir.child("worktrees".as_ref()) {
        Ok(Some(worktrees)) => worktrees,
        Ok(None) | Err(read::Error::NotDirectory { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Names(Vec::with_capacity(256));
    let mut records = Vec::with_capacity(list.len());
    for Entry { id, worktree, own } in list {
        let name = OsStr::new(id);
        let Some(digest) = digest(&worktrees, name)? else { continue };
        let usual = worktree.as_deref().map(usual_gitdir);
        // The same length as usual, and it resolved to that worktree: it is the usual one.
        let as_usual = digest
            .gitdir
            .is_some_and(|stamp| usual.as_ref().is_some_and(|usual| usual.len() as u64 == stamp.size));
        let gitdir = if as_usual { None } else { small(&worktrees, names.of(name, "/gitdir")) };
        let mut record = EntryRecord {
            id: id.clone(),
            inode: digest.stamp.ino,
            digest: settled_number(&digest, taken),
            worktree: worktree.clone(),
            gitdir,
            head: small(&worktrees, names.of(name, "/HEAD")),
            own: *own,
            modules: false,
            config: None,
            commands: Vec::new(),
        };
        let mut unusual = false;
        for extra in if digest.plain { &UNUSUAL[..1] } else { &UNUSUAL[..] } {
            unusual |= worktrees.lstat(names.of(name, extra))?.is_some();
        }
        if unusual && let Ok(Some(dir)) = worktrees.child(name) {
            record.digest = None;
            record.config = saved(&dir, Path::new("config.worktree"))?;
            record.commands = todo::commands(&dir)?;
            record.modules = dir.lstat("modules")?.is_some();
        }
        records.push(record);
    }
    Ok(records)
}

fn settled_number(digest: &Digest, taken: i64) -> Option<u64> {
    let latest = Stamp { dev: 0, ino: 0, ctime: digest.latest, size: 0, mode: 0, nlink: 0, uid: 0 };
    settled(&latest, taken).then_some(digest.number)
}

/// A small file's content; `None` where there is none that can be read as one.
fn small(worktrees: &Dir, name: &OsStr) -> Option<Bytes> {
    worktrees.read(name, POINTER_LIMIT).ok().flatten().map(|content| Bytes(content.bytes))
}
