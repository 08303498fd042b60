//! From a file to entries.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use gix::ObjectId;
use gix::bstr::{BStr, ByteSlice as _};
use gix::hash::Kind;
use nix::errno::Errno;

use super::{DIRECTORY, EXECUTABLE, Entries, Entry, Error, FILE, GITLINK, INTENT_TO_ADD, SKIP_WORKTREE};
use super::{STAGE, SYMLINK, Stat};
use crate::index::{self, LIMIT, PATHS, be32, hostile, raw};
use crate::read::{self, Dir};

/// The most bytes that an index of a session may have. A million files take about a hundred.
const UNTRUSTED: u64 = 256 * 1024 * 1024;
/// The longest path that open(2) takes (`PATH_MAX`, its NUL left out).
const PATH: usize = 4095;
/// `CE_EXTENDED_FLAGS`: git dies of any other.
const EXTENDED: u32 = INTENT_TO_ADD | SKIP_WORKTREE;

/// One file, its extensions apart.
struct Part {
    entries: Entries,
    link: Option<Link>,
    /// The last bytes, where the checksum is.
    trailer: Vec<u8>,
}

/// What to do to a shared index; positions are those of its entries.
struct Link {
    shared: ObjectId,
    /// Ascending.
    deleted: Vec<usize>,
    /// Ascending; the first entries of the index stand for these.
    replaced: Vec<usize>,
}

/// Reads a file, and the shared index that it builds upon; `None` where there is no such file.
pub(super) fn read(dir: &Dir, name: &OsStr, kind: Kind, trusted: bool) -> Result<Option<Entries>, Error> {
    let Some(part) = part(dir, name, kind, trusted)? else { return Ok(None) };
    let path = dir.path().join(name);
    let entries = match part.link {
        Some(link) => {
            let shared = format!("sharedindex.{}", link.shared);
            let at = dir.path().join(&shared);
            let gone = || Error::Shared { path: at.clone(), why: "the shared index does not exist" };
            let base = self::part(dir, shared.as_ref(), kind, trusted)?.ok_or_else(gone)?;
            // As git: it compares what both files say, not what the content is.
            if base.trailer != link.shared.as_slice() {
                return Err(Error::Shared {
                    path: at,
                    why: "it is not the shared index that it is named for",
                });
            }
            if base.link.is_some() {
                return Err(Error::Shared { path: at, why: "a shared index cannot build upon another" });
            }
            joined(base.entries, part.entries, &link, &path)?
        }
        None => part.entries,
    };
    ordered(&entries, &path)?;
    Ok(Some(entries))
}

fn part(dir: &Dir, name: &OsStr, kind: Kind, trusted: bool) -> Result<Option<Part>, Error> {
    let Some((file, stamp)) = dir.open_file(name)? else { return Ok(None) };
    let path = || dir.path().join(name);
    let failed = |error: std::io::Error| {
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32));
        read::Error::os("fstat", &path(), errno)
    };
    let modified = file.metadata().map_err(failed)?.mtime();
    let limit = if trusted { LIMIT } else { UNTRUSTED };
    let bytes = read::read_open(file, stamp, path, limit)?.bytes;
    decode(&bytes, kind, modified, &path()).map(Some)
}

fn decode(bytes: &[u8], kind: Kind, modified: i64, path: &Path) -> Result<Part, Error> {
    let format = |source| Error::Format { path: path.to_owned(), source };
    if bytes.get(..4) != Some(b"DIRC") {
        return Err(format(index::Error::Signature));
    }
    let version = be32(bytes, 4).map_err(format)?;
    if !(2..=4).contains(&version) {
        return Err(format(index::Error::Version(version)));
    }
    let count = be32(bytes, 8).map_err(format)? as usize;
    let hash = kind.len_in_bytes();
    let Some(end) = bytes.len().checked_sub(hash).filter(|end| *end >= 12) else {
        return Err(format(index::Error::Damaged(bytes.len())));
    };
    let (body, trailer) = bytes.split_at(end);
    let mut entries = Entries::empty(kind);
    entries.compressed = version == 4;
    entries.unhashed = trailer.iter().all(|byte| *byte == 0);
    entries.modified = modified;
    // An entry has at least 44 bytes and its id; what is only claimed is not reserved.
    entries.entries.reserve(count.min(body.len() / (44 + hash)));
    entries.paths.reserve(body.len() / 2);
    let (mut at, mut previous) = (12, 0..0);
    for _ in 0..count {
        let raw = raw(body, at, hash, version, previous.len()).map_err(format)?;
        let start = entries.paths.len();
        if start + raw.kept + raw.name.len() > PATHS {
            return Err(Error::TooLong { path: path.to_owned(), limit: PATHS });
        }
        entries.paths.extend_from_within(previous.start..previous.start + raw.kept);
        entries.paths.extend_from_slice(raw.name);
        previous = start..entries.paths.len();
        let flags = u32::from(raw.flags) & 0xb000 | u32::from(raw.extended) << 16;
        let id = ObjectId::try_from(raw.id).map_err(|_| format(index::Error::Damaged(at)))?;
        if u32::from(raw.extended) << 16 & !EXTENDED != 0 {
            return Err(format(index::Error::Damaged(at)));
        }
        let mut stat = Stat::NONE;
        stat.0[..24].copy_from_slice(&raw.stat[..24]);
        stat.0[24..].copy_from_slice(&raw.stat[28..]);
        // Both fit: there are fewer bytes than PATHS.
        let (start, length) = (start as u32, previous.len() as u32);
        entries.entries.push(Entry { start, length, stat, mode: raw.mode, id, flags });
        at = raw.next;
    }
    let link = extensions(body, at, hash, &mut entries, path)?;
    Ok(Part { entries, link, trailer: trailer.to_vec() })
}

/// Reads what stands after the entries: the link, and whether directories may be left out. The rest are caches.
fn extensions(
    body: &[u8],
    mut at: usize,
    hash: usize,
    entries: &mut Entries,
    path: &Path,
) -> Result<Option<Link>, Error> {
    let damaged = |at| Error::Format { path: path.to_owned(), source: index::Error::Damaged(at) };
    let mut link = None;
    while at < body.len() {
        let size = be32(body, at + 4).map_err(|_| damaged(at))? as usize;
        let (name, content) =
            (&body[at..at + 4], body.get(at + 8..at + 8 + size).ok_or_else(|| damaged(at))?);
        match name {
            b"link" if link.is_none() => link = Some(self::link(content, hash).ok_or_else(|| damaged(at))?),
            b"sdir" => entries.sparse = true,
            [first, ..] if first.is_ascii_uppercase() => {}
            _ => {
                let name = crate::text::printable(&String::from_utf8_lossy(name));
                return Err(Error::Extension { path: path.to_owned(), name });
            }
        }
        at += 8 + size;
    }
    if at > body.len() {
        return Err(damaged(body.len()));
    }
    // All zero: split, but nothing is shared.
    Ok(link.filter(|link: &Link| !link.shared.is_null()))
}

fn link(content: &[u8], hash: usize) -> Option<Link> {
    let (id, rest) = content.split_at_checked(hash)?;
    let mut link = Link { shared: ObjectId::try_from(id).ok()?, deleted: Vec::new(), replaced: Vec::new() };
    if rest.is_empty() || link.shared.is_null() {
        return Some(link);
    }
    let (deleted, rest) = gix_bitmap::ewah::decode(rest).ok()?;
    let (replaced, rest) = gix_bitmap::ewah::decode(rest).ok()?;
    let positions = |bitmap: gix_bitmap::ewah::Vec, into: &mut Vec<usize>| {
        // A run of ones costs no bytes: more than a shared index can have entries is an attack.
        bitmap.for_each_set_bit(|bit| (bit < PATHS / 64).then(|| into.push(bit)))
    };
    positions(deleted, &mut link.deleted)?;
    positions(replaced, &mut link.replaced)?;
    rest.is_empty().then_some(link)
}

/// The shared entries with the changes of the index that builds upon them (merge_base_index() in git's
/// split-index.c).
fn joined(mut base: Entries, top: Entries, link: &Link, path: &Path) -> Result<Entries, Error> {
    let damaged = || Error::Format { path: path.to_owned(), source: index::Error::Damaged(12) };
    let beyond = |positions: &[usize]| positions.last().is_some_and(|last| *last >= base.len());
    if beyond(&link.deleted) || beyond(&link.replaced) || link.replaced.len() > top.len() {
        return Err(damaged());
    }
    let (replacements, added) = top.entries.split_at(link.replaced.len());
    for (at, new) in link.replaced.iter().zip(replacements) {
        let old = &mut base.entries[*at];
        // Their paths are those of what they replace, and may be left out.
        let named = new.length != 0;
        let (start, length) = (old.start as usize, old.length as usize);
        if named && top.path(new) != base.paths[start..start + length].as_bstr() {
            return Err(damaged());
        }
        *old = Entry { start: old.start, length: old.length, ..*new };
    }
    let mut result = Entries {
        compressed: top.compressed,
        sparse: base.sparse || top.sparse,
        unhashed: top.unhashed,
        modified: top.modified,
        ..Entries::empty(base.kind)
    };
    let mut deleted = link.deleted.iter().copied().peekable();
    for (at, (path, entry)) in base.iter().enumerate() {
        if deleted.next_if_eq(&at).is_none() {
            result.push(path, *entry)?;
        }
    }
    for entry in added {
        result.push(top.path(entry), *entry)?;
    }
    let mut order = std::mem::take(&mut result.entries);
    order.sort_by(|a, b| result.cmp(a, b));
    result.entries = order;
    Ok(result)
}

/// Refuses what git dies of: entries out of order, without a path, twice, or merged and unmerged at once.
fn ordered(entries: &Entries, file: &Path) -> Result<(), Error> {
    let refuse = |path: &BStr, why: &str| {
        Err(Error::Entry { path: file.to_owned(), entry: path.to_owned(), why: why.to_owned() })
    };
    let mut previous: Option<(&BStr, &Entry)> = None;
    for (path, entry) in entries.iter() {
        if path.is_empty() {
            return refuse(path, "its path is empty");
        }
        if let Some((before, old)) = previous {
            match before.cmp(path) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal if old.stage() != 0 && old.stage() < entry.stage() => {}
                std::cmp::Ordering::Equal => return refuse(path, "it is there twice"),
                std::cmp::Ordering::Greater => return refuse(path, "the entries are not sorted"),
            }
        }
        previous = Some((path, entry));
    }
    Ok(())
}

/// Refuses what git does not write, or what it must not check out.
pub(super) fn check(entries: &Entries, file: &Path) -> Result<(), Error> {
    let mut previous = BStr::new("");
    // Paths that the following ones start with, byte by byte: a file among them must not be their directory.
    let mut open: Vec<&BStr> = Vec::new();
    for (path, entry) in entries.iter() {
        let refuse = |why: &str| {
            Err(Error::Entry { path: file.to_owned(), entry: path.to_owned(), why: why.to_owned() })
        };
        if path.len() > PATH {
            return refuse("its path is too long");
        }
        // Directories that the previous path has as well were looked at then.
        let common = previous.iter().zip(path.iter()).take_while(|(a, b)| a == b).count();
        let from = path[..common].rfind_byte(b'/').map_or(0, |slash| slash + 1);
        let rest = if from == path.len() { path } else { path[from..].as_bstr() };
        if let Some(why) = hostile(rest, entry.mode) {
            return refuse(&why);
        }
        if !matches!(entry.mode, FILE | EXECUTABLE | SYMLINK | GITLINK | DIRECTORY) {
            return refuse(&format!("git does not write the mode {:o}", entry.mode));
        }
        if path.ends_with(b"/") != entry.is_directory() {
            return refuse("only directories end in a slash");
        }
        if entry.is_directory() && !entry.skipped() {
            return refuse("a directory stands only for files that are left out");
        }
        if entry.id.is_null() {
            return refuse("it has no object");
        }
        if entry.flags & STAGE == 0 {
            while open.pop_if(|top| !path.starts_with(top)).is_some() {}
            if open.iter().any(|top| top.ends_with(b"/") || path[top.len()] == b'/') {
                return refuse("a part of its path is a file");
            }
            open.push(path);
        }
        previous = path;
    }
    Ok(())
}
