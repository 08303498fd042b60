//! Loose objects that a turn wrote: each is read and hashed, because git does not do that when it uses one.
//! A file of the right name with another content would be checked out without a word.
//!
//! Objects in packs are not hashed again here; that is a stated limit (`git fsck` does it, and protection
//! `shadow` takes objects in by value only).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use super::baseline::since;
use super::fault::Fault;
use crate::read::{self, Dir, Kind};

/// The largest object that is hashed, inflated, in bytes.
const OBJECT: usize = 64 * 1024 * 1024;
/// How many new objects are hashed at most.
const MOST: usize = 4_000;
/// How much is inflated at most, in bytes.
const TOTAL: usize = 256 * 1024 * 1024;
/// How many objects in directories that did not change are looked at, in case one was written over in place.
/// git packs loose objects when there are some 6,700 (`gc.auto`).
const LOOKED_AT: usize = 8_192;

/// Hashes loose objects that appeared or changed since the baseline. Returns how many were left out because
/// there are too many or because they are too large.
pub(super) fn judge(
    git_dir: &Dir,
    hash: usize,
    taken: i64,
    faults: &mut Vec<Fault>,
) -> Result<usize, read::Error> {
    let objects = match git_dir.child("objects".as_ref()) {
        Ok(Some(objects)) => objects,
        Ok(None) | Err(read::Error::NotDirectory { .. }) => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut directories: Vec<OsString> = Vec::new();
    objects.visit(|name, kind, _| {
        let name = name.to_bytes();
        if kind == Kind::Directory && name.len() == 2 && name.iter().all(u8::is_ascii_hexdigit) {
            directories.push(OsStr::from_bytes(name).to_owned());
        }
    })?;
    let (mut hashed, mut inflated, mut left_out, mut looked_at) = (0, 0, 0, 0);
    for directory in directories {
        let Ok(Some(dir)) = objects.child(&directory) else { continue };
        // A file that was written over in place leaves its directory as it was.
        let unchanged = !since(&dir.stamp()?, taken);
        if unchanged && looked_at >= LOOKED_AT {
            continue;
        }
        let items = dir.list()?;
        if unchanged {
            looked_at += items.len();
        }
        for item in items {
            let is_object = item.kind == Kind::File
                && item.name.len() == 2 * hash - 2
                && item.name.as_bytes().iter().all(u8::is_ascii_hexdigit);
            if !is_object || dir.lstat(&item.name)?.is_none_or(|stamp| !since(&stamp, taken)) {
                continue;
            }
            if hashed >= MOST || inflated >= TOTAL {
                left_out += 1;
                continue;
            }
            let content = match dir.read(&item.name, OBJECT as u64) {
                Ok(Some(content)) => content.bytes,
                Ok(None) => continue,
                Err(read::Error::TooBig { .. } | read::Error::NotRegular { .. }) => {
                    left_out += 1;
                    continue;
                }
                // The turn could make it unreadable; git cannot read it either then.
                Err(error) if error.errno() == Some(nix::errno::Errno::EACCES) => continue,
                Err(error) => return Err(error),
            };
            hashed += 1;
            let name = [directory.as_bytes(), item.name.as_bytes()].concat();
            match object_id(&content, hash) {
                Inflated::Object { id, length } if id.as_bytes() == name => inflated += length,
                Inflated::TooLarge => left_out += 1,
                Inflated::Object { .. } | Inflated::Damaged => {
                    let path = dir.path().join(&item.name);
                    let detail = format!(
                        "the content of object {} is not what its name says; if it is missing now, `git fetch --refetch` or a backup has it",
                        String::from_utf8_lossy(&name)
                    );
                    faults.push(Fault::removed("object-forged", &path, detail).set_aside(path));
                }
            }
        }
    }
    Ok(left_out)
}

enum Inflated {
    /// A whole object.
    Object { id: String, length: usize },
    /// It says that it is larger than what is hashed here.
    TooLarge,
    /// It is none.
    Damaged,
}

/// The id of a loose object's content (gitformat-loose(5): zlib of "type size NUL content").
fn object_id(content: &[u8], hash: usize) -> Inflated {
    let mut inflate = gix::zlib::Inflate::default();
    let mut head = [0; 128];
    let Ok((_, read, written)) = inflate.prefix(content, &mut head) else { return Inflated::Damaged };
    let head = &head[..written];
    let Some(nul) = head.iter().position(|b| *b == 0) else { return Inflated::Damaged };
    let size = std::str::from_utf8(&head[..nul]).ok().and_then(|text| text.split_once(' '));
    let Some(size) = size.and_then(|(_, size)| size.parse::<usize>().ok()) else { return Inflated::Damaged };
    if size > OBJECT {
        return Inflated::TooLarge;
    }
    let length = nul + 1 + size;
    if length < written {
        return Inflated::Damaged;
    }
    let mut whole = Vec::new();
    let rest = content.get(read..).unwrap_or_default();
    match inflate.rest(rest, head, 0, &mut whole, length) {
        Ok(count) if count == length => {}
        _ => return Inflated::Damaged,
    }
    let kind = if hash == 32 { gix::hash::Kind::Sha256 } else { gix::hash::Kind::Sha1 };
    let mut hasher = gix::hash::hasher(kind);
    hasher.update(&whole);
    match hasher.try_finalize() {
        Ok(id) => Inflated::Object { id: id.to_string(), length },
        // A SHA-1 collision attack, found out by its disturbance vectors.
        Err(_) => Inflated::Damaged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Scratch;

    #[test]
    fn honest_objects_pass_and_forged_ones_do_not() {
        let s = Scratch::new();
        for (format, hash) in [("sha1", 20), ("sha256", 32)] {
            let git = s.repository_with(format, &[&format!("--object-format={format}")]).join(".git");
            s.write(format!("{format}/large"), &"text ".repeat(100_000));
            s.git(format, ["add", "."]);
            s.git(format, ["commit", "-q", "-m", "two"]);
            let dir = Dir::open(&git).unwrap();
            let mut faults = Vec::new();
            assert_eq!(judge(&dir, hash, 0, &mut faults).unwrap(), 0);
            assert_eq!(faults, []);
            let honest = s.git(format, ["rev-parse", "HEAD:file"]);
            let other = s.git(format, ["rev-parse", "HEAD:large"]);
            let at = |id: &str| git.join("objects").join(&id[..2]).join(&id[2..]);
            std::fs::remove_file(at(&honest)).unwrap();
            std::fs::copy(at(&other), at(&honest)).unwrap();
            judge(&dir, hash, 0, &mut faults).unwrap();
            assert_eq!(faults.len(), 1);
            assert_eq!(faults[0].finding.as_ref().unwrap().path, at(&honest));
            assert_eq!(judge(&dir, hash, i64::MAX, &mut Vec::new()).unwrap(), 0, "nothing is new");
        }
    }

    #[test]
    fn damaged_objects_never_panic() {
        for content in [&b""[..], b"x", &[0x78, 0x9c], &[0xff; 300], &[0; 300]] {
            assert!(matches!(object_id(content, 20), Inflated::Damaged));
        }
    }
}
