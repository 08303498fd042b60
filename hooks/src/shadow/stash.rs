//! The stash is a list that lives in a reflog (git-stash(1)): only its latest entry is a ref. So it is compared and
//! brought over entry by entry.

use std::path::Path;

use gix::ObjectId;
use gix::bstr::{BString, ByteSlice as _};

use super::git::Git;
use super::refs::Refs;
use super::{transaction, write};
use crate::read::{self, Dir};
use crate::tree;

/// The most that is read of the stash's reflog, in bytes.
const LIMIT: u64 = 64 * 1024 * 1024;
/// The ref of the latest entry.
pub(crate) const REF: &str = "refs/stash";

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The commit that holds what was stashed.
    pub id: ObjectId,
    /// What `git stash list` says of it.
    pub message: BString,
}

/// The entries, the latest first. What is no line of a reflog is none.
pub(crate) fn read(dir: &Dir, kind: gix::hash::Kind) -> Result<Vec<Entry>, read::Error> {
    let logs = match dir.beneath(Path::new("logs/refs")) {
        Ok(Some(logs)) => logs,
        Ok(None) | Err(read::Error::NotDirectory { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let bytes = match logs.read("stash".as_ref(), LIMIT) {
        Ok(content) => content.map(|content| content.bytes).unwrap_or_default(),
        Err(read::Error::NotRegular { .. } | read::Error::TooBig { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let length = kind.len_in_hex();
    let mut entries: Vec<Entry> = bytes
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let id = ObjectId::from_hex(line.get(length + 1..2 * length + 1)?).ok()?;
            let tab = line.find_byte(b'\t').map_or(line.len(), |at| at + 1);
            let message: Vec<u8> =
                line[tab..].iter().copied().filter(|byte| !byte.is_ascii_control()).collect();
            (!id.is_null()).then(|| Entry { id, message: message.into() })
        })
        .collect();
    entries.reverse();
    Ok(entries)
}

/// Makes a shadow's stash the host's. Its ref is written with the others.
pub(crate) fn copy(host: &Dir, shadow: &Dir) -> Result<(), write::Error> {
    let to = write::directories(shadow, Path::new("logs/refs"))?;
    let Some(to) = to else { return Ok(()) };
    match host.beneath(Path::new("logs/refs")) {
        Ok(Some(from)) => drop(write::copy(&from, "stash".as_ref(), &to)?),
        _ => tree::remove(&to, "stash".as_ref())?,
    }
    Ok(())
}

/// Puts an entry on top of the host's stash. (`git stash store` does the same, and wants a checkout.)
pub(crate) fn store(
    git: &Git,
    host: &Dir,
    kind: gix::hash::Kind,
    entry: &Entry,
) -> Result<bool, read::Error> {
    let old = super::read_ref(host, REF.as_bytes().as_bstr(), kind)?.unwrap_or_else(|| ObjectId::null(kind));
    let message = entry.message.to_str_lossy();
    let message = if message.is_empty() { "stash".into() } else { message };
    let (new, old) = (entry.id.to_string(), old.to_string());
    let args = ["update-ref", "--no-deref", "--create-reflog", "-m", message.as_ref(), REF, &new, &old];
    Ok(git.run(args, b"").is_ok())
}

/// Takes an entry off the host's stash; it is looked for by its object, because the numbers move. (`git reflog delete`
/// takes a number, and somebody may put an entry on top meanwhile.) `false`: it is there still.
pub(crate) fn drop_entry(
    git: &Git,
    host: &Dir,
    kind: gix::hash::Kind,
    id: ObjectId,
) -> Result<bool, super::Error> {
    let name = REF.as_bytes().as_bstr();
    let Some(logs) = host.beneath(Path::new("logs/refs"))? else { return Ok(true) };
    let Some(lock) = transaction::lock_ref(host, name, &Refs::default(), kind)? else { return Ok(false) };
    let Some(content) = logs.read("stash".as_ref(), LIMIT)? else { return Ok(true) };
    let length = kind.len_in_hex();
    let mut previous = ObjectId::null(kind);
    let (mut text, mut found) = (Vec::with_capacity(content.bytes.len()), false);
    for line in content.bytes.split_inclusive(|byte| *byte == b'\n') {
        let new = line.get(length + 1..2 * length + 1).and_then(|hex| ObjectId::from_hex(hex).ok());
        let Some(new) = new else { continue };
        if new == id {
            found = true;
            continue;
        }
        // As `git reflog delete --rewrite`: each line names what came before it.
        text.extend_from_slice(previous.to_string().as_bytes());
        text.extend_from_slice(&line[length..]);
        previous = new;
    }
    if !found {
        return Ok(true);
    }
    if !previous.is_null() {
        write::put(&logs, "stash".as_ref(), &text)?;
        if lock.old() == Some(id) {
            lock.set(previous)?;
        }
        return Ok(true);
    }
    // The last one: the ref goes, and its log with it.
    drop(lock);
    Ok(git.run(["update-ref", "--no-deref", "-d", REF, &id.to_string()], b"").is_ok())
}
