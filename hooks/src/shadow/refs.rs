//! Refs of a git dir with the files backend (gitrepository-layout(5), git-pack-refs(1)): read without git, and written
//! into a shadow.
//!
//! The loose files are read before `packed-refs`: git writes the latter first when it packs, so that a ref is seen in
//! at least one of the two. (The other way round, a `pack-refs` between the two readings makes every branch look
//! deleted, and an import would delete them.)

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use gix::ObjectId;
use gix::bstr::{BStr, BString, ByteSlice as _};

use super::write;
use crate::read::{self, Dir, Kind};
use crate::tree;

/// The most that is read of a loose ref: a name of the length that a file system allows, or an object id.
const LOOSE_LIMIT: u64 = 8 * 1024;
/// The most that is read of `packed-refs`, in bytes: some million refs.
const PACKED_LIMIT: u64 = 512 * 1024 * 1024;
/// The deepest directory below `refs/`.
const DEPTH: usize = 64;
/// The most refs that are read of a shadow; the turn pays for them before we do.
const MOST: usize = 4_000_000;

/// What a ref holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// An object.
    Object(ObjectId),
    /// The name of another ref.
    Symbolic(BString),
}

impl Target {
    /// As a loose ref's file has it.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        match self {
            Self::Object(id) => format!("{id}\n").into_bytes(),
            Self::Symbolic(name) => [b"ref: ", name.as_slice(), b"\n"].concat(),
        }
    }

    /// From the content of a loose ref, or of `HEAD`.
    #[must_use]
    pub fn parse(bytes: &[u8], kind: gix::hash::Kind) -> Option<Self> {
        if let Some(rest) = bytes.strip_prefix(b"ref:") {
            let name = rest.trim_ascii();
            return is_valid(name.as_bstr()).then(|| Self::Symbolic(name.into()));
        }
        // git reads the hexadecimal digits, and wants white space or nothing behind them.
        let length = kind.len_in_hex();
        let digits = bytes.get(..length)?;
        if bytes.get(length).is_some_and(|byte| !byte.is_ascii_whitespace()) {
            return None;
        }
        ObjectId::from_hex(digits).ok().filter(|id| !id.is_null()).map(Self::Object)
    }

    /// The object, where it is one.
    #[must_use]
    pub const fn object(&self) -> Option<ObjectId> {
        match self {
            Self::Object(id) => Some(*id),
            Self::Symbolic(_) => None,
        }
    }
}

/// Refs by their full names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refs {
    /// What could be read.
    pub map: BTreeMap<BString, Target>,
    /// Names at which something lies that is no ref: it says nothing, and certainly not that a ref was deleted.
    pub broken: BTreeSet<BString>,
    /// `packed-refs` has lines that git takes for an error. What is not in it was not deleted by git.
    pub damaged: bool,
}

impl Refs {
    /// What a ref holds.
    #[must_use]
    pub fn get(&self, name: &BStr) -> Option<&Target> {
        self.map.get(name)
    }

    /// The object of a ref that is not symbolic.
    #[must_use]
    pub fn object(&self, name: &BStr) -> Option<ObjectId> {
        self.map.get(name).and_then(Target::object)
    }

    /// As lines, for a record.
    #[must_use]
    pub fn to_text(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(self.map.len() * 64);
        for (name, target) in &self.map {
            match target {
                Target::Object(id) => drop(write!(text, "{id} ")),
                Target::Symbolic(to) => {
                    text.extend_from_slice(b"ref:");
                    text.extend_from_slice(to);
                    text.push(b' ');
                }
            }
            text.extend_from_slice(name);
            text.push(b'\n');
        }
        text
    }

    /// From the lines that [`Refs::to_text`] made.
    #[must_use]
    pub fn from_text(text: &[u8]) -> Self {
        let mut refs = Self::default();
        for line in text.split(|byte| *byte == b'\n') {
            let Some(space) = line.find_byte(b' ') else { continue };
            let (value, name) = (&line[..space], &line[space + 1..]);
            let target = match value.strip_prefix(b"ref:") {
                Some(to) => Target::Symbolic(to.into()),
                None => match ObjectId::from_hex(value) {
                    Ok(id) => Target::Object(id),
                    Err(_) => continue,
                },
            };
            refs.map.insert(name.into(), target);
        }
        refs
    }
}

/// Whether git takes this for a ref's full name (git-check-ref-format(1)).
#[must_use]
pub fn is_valid(name: &BStr) -> bool {
    name.starts_with(b"refs/") && name.len() < 4096 && gix::validate::reference::name(name).is_ok()
}

/// Whether a ref of this name may come from a session: branches, tags, notes, the stash, remote-tracking refs.
/// What git allows and whoever types it takes for something else (`refs/heads/HEAD`, `refs/heads/-x`) is none.
#[must_use]
pub fn is_importable(name: &BStr) -> bool {
    let kinds = ["refs/heads/", "refs/tags/", "refs/notes/", "refs/remotes/"];
    let known = kinds.iter().any(|kind| name.starts_with(kind.as_bytes()) && name.len() > kind.len());
    let plain = name.split(|byte| *byte == b'/').all(|part| !part.starts_with(b"-"));
    let head = name.ends_with(b"/HEAD") && !name.starts_with(b"refs/remotes/");
    is_valid(name) && known && plain && !head
}

/// Per-worktree refs (git-worktree(1) "REFS"): they belong to a checkout, not to the repository.
#[must_use]
pub fn is_per_worktree(name: &BStr) -> bool {
    [&b"refs/bisect/"[..], b"refs/worktree/", b"refs/rewritten/"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// All refs of a git dir but those of single worktrees.
///
/// # Errors
/// The directory or `packed-refs` cannot be read.
pub fn read(dir: &Dir, kind: gix::hash::Kind) -> Result<Refs, read::Error> {
    let mut loose = Refs::default();
    match dir.child("refs".as_ref()) {
        Ok(Some(refs)) => walk(&refs, &mut BString::from("refs"), kind, DEPTH, &mut loose)?,
        Ok(None) | Err(read::Error::NotDirectory { .. }) => {}
        Err(error) => return Err(error),
    }
    let mut all = packed(dir, kind)?;
    all.map.append(&mut loose.map);
    all.broken.append(&mut loose.broken);
    all.damaged |= loose.damaged;
    let broken = &all.broken;
    all.map.retain(|name, _| !broken.contains(name));
    Ok(all)
}

fn walk(
    dir: &Dir,
    name: &mut BString,
    kind: gix::hash::Kind,
    depth: usize,
    refs: &mut Refs,
) -> Result<(), read::Error> {
    let mut items = Vec::new();
    dir.visit(|item, kind, _| items.push((item.to_owned(), kind)))?;
    for (item, what) in items {
        let item = item.to_bytes();
        if item.ends_with(b".lock") || refs.map.len() + refs.broken.len() > MOST {
            continue;
        }
        let length = name.len();
        name.push(b'/');
        name.extend_from_slice(item);
        match what {
            _ if is_per_worktree([name.as_slice(), b"/"].concat().as_bstr()) => {}
            Kind::Directory if depth > 0 => match dir.child(OsStr::from_bytes(item)) {
                Ok(Some(below)) => walk(&below, name, kind, depth - 1, refs)?,
                Ok(None) | Err(read::Error::NotDirectory { .. }) => {}
                Err(error) => return Err(error),
            },
            Kind::File => match dir.read(OsStr::from_bytes(item), LOOSE_LIMIT) {
                Ok(Some(content)) => match Target::parse(&content.bytes, kind) {
                    Some(target) => drop(refs.map.insert(name.clone(), target)),
                    None => drop(refs.broken.insert(name.clone())),
                },
                // It has just been packed or deleted.
                Ok(None) => {}
                Err(_) => drop(refs.broken.insert(name.clone())),
            },
            // `core.preferSymlinkRefs`: the link says the name.
            Kind::Symlink => match dir.read_link(OsStr::from_bytes(item))? {
                Some(to) if is_valid(to.as_os_str().as_bytes().as_bstr()) => {
                    let to = BString::from(to.as_os_str().as_bytes());
                    refs.map.insert(name.clone(), Target::Symbolic(to));
                }
                _ => drop(refs.broken.insert(name.clone())),
            },
            _ => drop(refs.broken.insert(name.clone())),
        }
        name.truncate(length);
    }
    Ok(())
}

pub(crate) fn packed(dir: &Dir, kind: gix::hash::Kind) -> Result<Refs, read::Error> {
    let mut refs = Refs::default();
    let content = match dir.read("packed-refs".as_ref(), PACKED_LIMIT) {
        Ok(Some(content)) => content.bytes,
        Ok(None) => return Ok(refs),
        Err(error) => return Err(error),
    };
    let length = kind.len_in_hex();
    for line in content.split(|byte| *byte == b'\n') {
        if line.is_empty() || line[0] == b'#' || line[0] == b'^' {
            continue;
        }
        let id = line.get(..length).and_then(|id| ObjectId::from_hex(id).ok());
        let (Some(id), Some([b' ', name @ ..])) = (id, line.get(length..).filter(|rest| rest.len() > 1))
        else {
            refs.damaged = true;
            continue;
        };
        let name = name.as_bstr();
        if !is_per_worktree(name) {
            refs.map.insert(name.into(), Target::Object(id));
        }
    }
    Ok(refs)
}

/// Writes all refs of a shadow, and nothing else is one afterwards. No turn of the session lives.
///
/// # Errors
/// What could not be written.
pub fn write(dir: &Dir, refs: &Refs) -> Result<(), write::Error> {
    let mut text = b"# pack-refs with: sorted \n".to_vec();
    let mut symbolic = Vec::new();
    for (name, target) in &refs.map {
        match target {
            Target::Object(id) => {
                let _ = write!(text, "{id} ");
                text.extend_from_slice(name);
                text.push(b'\n');
            }
            Target::Symbolic(_) => symbolic.push((name, target)),
        }
    }
    write::put(dir, "packed-refs".as_ref(), &text)?;
    // What belongs to the main checkout stays.
    let top = write::directory(dir, "refs".as_ref())?;
    for item in top.list()? {
        let name = BString::from([b"refs/", item.name.as_bytes(), b"/"].concat());
        if !is_per_worktree(name.as_bstr()) {
            tree::remove(&top, &item.name)?;
        }
    }
    for name in ["heads", "tags"] {
        write::directory(&top, name.as_ref())?;
    }
    for (name, target) in symbolic {
        put_loose(dir, name.as_bstr(), target)?;
    }
    Ok(())
}

/// Writes one loose ref of a shadow.
pub(crate) fn put_loose(dir: &Dir, name: &BStr, target: &Target) -> Result<(), write::Error> {
    let path = Path::new(OsStr::from_bytes(name));
    let (Some(parent), Some(last)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let held = write::directories(dir, parent)?;
    write::put(held.as_ref().unwrap_or(dir), last, &target.text())
}
