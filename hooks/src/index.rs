//! Reading git's index (gitformat-index(5)) as far as it matters whether a checkout from it is harmless: the
//! paths and the modes of its entries.
//!
//! Entries are taken exactly as git takes them from the file, checksum or not: git verifies that only in
//! `fsck`, so a crafted index need not have a right one. A full decoder would refuse what git follows.

use gix::bstr::{BStr, BString, ByteSlice as _};
use gix::validate::path::component;

/// The most that is read of an index, in bytes; some hundred bytes per file of a checkout.
pub const LIMIT: u64 = 512 * 1024 * 1024;
/// The most bytes that all paths may have together: version 4 says in a byte that a path starts as the one before.
pub(crate) const PATHS: usize = 512 * 1024 * 1024;
/// The mode of a submodule, or of any nested repository that was added (S_IFGITLINK).
pub(crate) const GITLINK: u32 = 0o160_000;
pub(crate) const SYMLINK: u32 = 0o120_000;

/// Why an index could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It does not start as one.
    #[error("not an index file")]
    Signature,
    /// A version that git does not write either.
    #[error("index version {0} is not known")]
    Version(u32),
    /// It ends in the middle of an entry, or an entry is not one.
    #[error("the index is damaged at byte {0}")]
    Damaged(usize),
}

/// What an index would put into a checkout.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    /// Paths that must never be checked out, with the reason, at most [`Index::MOST`] of them.
    pub hostile: Vec<(BString, String)>,
    /// Paths of nested repositories, sorted.
    pub gitlinks: Vec<BString>,
    /// The name of the shared index that it builds upon (`core.splitIndex`), where it does.
    pub shared: Option<String>,
    /// The number of entries.
    pub entries: usize,
}

impl Index {
    /// How many hostile paths are named.
    pub const MOST: usize = 8;
}

/// Reads an index. `hash` is the length of the repository's object ids in bytes: 20 or 32.
///
/// # Errors
/// What git would refuse as well.
pub fn parse(bytes: &[u8], hash: usize) -> Result<Index, Error> {
    if bytes.get(..4) != Some(b"DIRC") {
        return Err(Error::Signature);
    }
    let version = be32(bytes, 4)?;
    if !(2..=4).contains(&version) {
        return Err(Error::Version(version));
    }
    let count = be32(bytes, 8)?;
    let mut index = Index::default();
    let mut budget = PATHS;
    let at = run(bytes, 12, count, hash, version, &mut index, &mut budget)?;
    index.entries = count as usize;
    let mut left = count;
    for (name, content) in (Extensions { bytes, at, hash }) {
        let content = content?;
        match name {
            b"link" => index.shared = shared(content, hash).ok_or(Error::Damaged(at))?,
            // git reads a large index by several threads, each from where this table says, which need not be what
            // stands in the file from start to end.
            b"IEOT" => {
                for block in content.get(4..).unwrap_or_default().as_chunks::<8>().0 {
                    let [start, entries] = [be32(block, 0)?, be32(block, 4)?.min(left)];
                    left -= entries;
                    // What git could not read either harms nobody.
                    let _ = run(bytes, start as usize, entries, hash, version, &mut index, &mut budget);
                }
            }
            _ => {}
        }
    }
    index.gitlinks.sort();
    index.gitlinks.dedup();
    Ok(index)
}

/// Judges entries that follow each other; where the last one ends.
fn run(
    bytes: &[u8],
    mut at: usize,
    count: u32,
    hash: usize,
    version: u32,
    index: &mut Index,
    budget: &mut usize,
) -> Result<usize, Error> {
    let mut previous = BString::default();
    for _ in 0..count {
        let raw = raw(bytes, at, hash, version, previous.len())?;
        *budget = budget.checked_sub(raw.kept + raw.name.len()).ok_or(Error::Damaged(at))?;
        let mut path = BString::from(&previous[..raw.kept]);
        path.extend_from_slice(raw.name);
        if raw.mode & 0o170_000 == GITLINK {
            index.gitlinks.push(path.clone());
        }
        if index.hostile.len() < Index::MOST
            && let Some(why) = hostile(path.as_bstr(), raw.mode)
        {
            let found = (path.clone(), why);
            if !index.hostile.contains(&found) {
                index.hostile.push(found);
            }
        }
        previous = path;
        at = raw.next;
    }
    Ok(at)
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> Result<u32, Error> {
    let slice = bytes.get(at..at + 4).and_then(|s| s.try_into().ok());
    slice.map(u32::from_be_bytes).ok_or(Error::Damaged(at))
}

/// One entry as it lies in the file.
pub(crate) struct Raw<'a> {
    /// The fields of stat(2) with the mode among them, 40 bytes.
    pub(crate) stat: &'a [u8],
    pub(crate) mode: u32,
    pub(crate) id: &'a [u8],
    pub(crate) flags: u16,
    pub(crate) extended: u16,
    /// How many bytes of the previous entry's path come before the name.
    pub(crate) kept: usize,
    pub(crate) name: &'a [u8],
    /// Where the next entry starts.
    pub(crate) next: usize,
}

/// The entry at `start`; `previous` is the length of the path before it.
pub(crate) fn raw(
    bytes: &[u8],
    start: usize,
    hash: usize,
    version: u32,
    previous: usize,
) -> Result<Raw<'_>, Error> {
    let damaged = || Error::Damaged(start);
    let mode = be32(bytes, start + 24)?;
    let flags_at = start + 40 + hash;
    let be16 =
        |at: usize| bytes.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]])).ok_or_else(damaged);
    let flags = be16(flags_at)?;
    // Version 2 has no such flag, but git does not ask for the version (create_from_disk() in its read-cache.c).
    let has_extended = flags & 0x4000 != 0;
    let extended = if has_extended { be16(flags_at + 2)? } else { 0 };
    let mut name_at = flags_at + if has_extended { 4 } else { 2 };
    let mut kept = 0;
    if version == 4 {
        let (strip, after) = varint(bytes, name_at).ok_or_else(damaged)?;
        kept = previous.checked_sub(strip).ok_or_else(damaged)?;
        name_at = after;
    }
    // The flags hold the length of the whole name, or say that it is longer than they can.
    let stated = usize::from(flags & 0x0fff);
    let rest = bytes.get(name_at..).ok_or_else(damaged)?;
    let length = if stated == 0x0fff {
        rest.find_byte(0).ok_or_else(damaged)?
    } else {
        stated.checked_sub(kept).ok_or_else(damaged)?
    };
    let name = rest.get(..length).ok_or_else(damaged)?;
    if rest.get(length) != Some(&0) || name.contains(&0) {
        return Err(damaged());
    }
    let end = name_at + length + 1;
    // Up to version 3, entries are padded with 1 to 8 NUL bytes to a multiple of eight.
    let next = if version == 4 { end } else { start + ((end - start + 7) & !7) };
    let (stat, id) = (&bytes[start..start + 40], &bytes[start + 40..flags_at]);
    Ok(Raw { stat, mode, id, flags, extended, kept, name, next })
}

/// The variable-width number of gitformat-pack(5), "offset encoding".
fn varint(bytes: &[u8], mut at: usize) -> Option<(usize, usize)> {
    let mut byte = *bytes.get(at)?;
    let mut value = usize::from(byte & 0x7f);
    while byte & 0x80 != 0 {
        at += 1;
        byte = *bytes.get(at)?;
        value = value.checked_add(1)?.checked_mul(128)?.checked_add(usize::from(byte & 0x7f))?;
    }
    Some((value, at + 1))
}

/// What stands after the entries: signatures with their content.
struct Extensions<'a> {
    bytes: &'a [u8],
    at: usize,
    hash: usize,
}

impl<'a> Iterator for Extensions<'a> {
    type Item = (&'a [u8; 4], Result<&'a [u8], Error>);

    fn next(&mut self) -> Option<Self::Item> {
        let (bytes, at) = (self.bytes, self.at);
        if at.checked_add(8 + self.hash)? > bytes.len() {
            return None;
        }
        let name = bytes[at..].first_chunk()?;
        let size = be32(bytes, at + 4).ok()? as usize;
        let content = bytes.get(at + 8..at + 8 + size).ok_or(Error::Damaged(at));
        self.at = if content.is_ok() { at + 8 + size } else { bytes.len() };
        Some((name, content))
    }
}

/// The shared index that a link names; `None` where it is damaged.
fn shared(link: &[u8], hash: usize) -> Option<Option<String>> {
    let id: String = link.get(..hash)?.iter().map(|byte| format!("{byte:02x}")).collect();
    // All zero: split, but nothing is shared.
    Some(id.bytes().any(|b| b != b'0').then(|| format!("sharedindex.{id}")))
}

/// Why a checkout must not write this path. git has the same rules (verify_path() in its read-cache.c), but
/// some of its commands do not apply them to what is in the index already.
pub(crate) fn hostile(path: &BStr, mode: u32) -> Option<String> {
    // A sparse index has directories as entries, which end in a slash.
    let path = path.strip_suffix(b"/").map_or(path, |rest| rest.as_bstr());
    let options = component::Options { protect_windows: false, protect_hfs: true, protect_ntfs: true };
    let mut parts = path.split_str("/").peekable();
    while let Some(part) = parts.next() {
        let leaf_link = parts.peek().is_none() && mode & 0o170_000 == SYMLINK;
        let kind = leaf_link.then_some(component::Mode::Symlink);
        if let Err(error) = gix::validate::path::component(part.as_bstr(), kind, options) {
            return Some(error.to_string());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Scratch;

    /// An index of version 2 with these paths, and no checksum worth the name.
    pub(crate) fn crafted(paths: &[(&str, u32)]) -> Vec<u8> {
        let mut bytes = b"DIRC\0\0\0\x02".to_vec();
        bytes.extend_from_slice(&u32::try_from(paths.len()).unwrap().to_be_bytes());
        for (path, mode) in paths {
            let start = bytes.len();
            bytes.extend_from_slice(&[0; 24]);
            bytes.extend_from_slice(&mode.to_be_bytes());
            bytes.extend_from_slice(&[0; 32]);
            bytes.extend_from_slice(&u16::try_from(path.len()).unwrap().to_be_bytes());
            bytes.extend_from_slice(path.as_bytes());
            let size = (bytes.len() - start + 8) & !7;
            bytes.resize(start + size, 0);
        }
        bytes.extend_from_slice(&[0; 20]);
        bytes
    }

    #[test]
    fn it_reads_what_git_writes() {
        let s = Scratch::new();
        for (hash, length) in [("sha1", 20), ("sha256", 32)] {
            let name = format!("repo-{hash}");
            s.repository_with(&name, &[&format!("--object-format={hash}")]);
            s.write(format!("{name}/dir/{}", "long".repeat(60)), "x");
            s.write(format!("{name}/dir/later"), "x");
            s.git(&name, ["add", "."]);
            // Intent to add needs the extended flags of version 3.
            s.write(format!("{name}/planned"), "x");
            s.git(&name, ["add", "-N", "planned"]);
            let commit = s.git(&name, ["rev-parse", "HEAD"]);
            s.git(&name, ["update-index", "--add", "--cacheinfo", &format!("160000,{commit},sub")]);
            for version in ["2", "3", "4"] {
                s.git(&name, ["update-index", "--index-version", version]);
                let bytes = std::fs::read(s.path(&name).join(".git/index")).unwrap();
                let index = parse(&bytes, length).unwrap();
                assert_eq!(index.entries, 5, "{hash} {version}");
                assert_eq!(index.gitlinks, ["sub"], "{hash} {version}");
                assert_eq!(index.hostile, [], "{hash} {version}");
            }
        }
    }

    #[test]
    fn a_split_index_names_the_shared_one() {
        let s = Scratch::new();
        let top = s.repository("repo");
        s.git("repo", ["update-index", "--split-index"]);
        let index = parse(&std::fs::read(top.join(".git/index")).unwrap(), 20).unwrap();
        let shared = index.shared.unwrap();
        assert!(top.join(".git").join(&shared).exists(), "{shared}");
    }

    #[test]
    fn hostile_paths_are_named() {
        let paths = [
            "../x",
            "a/../../x",
            ".git/hooks/x",
            "a/.GIT/x",
            "/etc/x",
            "a//b",
            "a/./b",
            "git~1/x",
            ".g\u{200c}it/x",
        ];
        for path in paths {
            let index = parse(&crafted(&[("ok", 0o100_644), (path, 0o100_644)]), 20).unwrap();
            assert_eq!(index.hostile.len(), 1, "{path}");
            assert_eq!(index.hostile[0].0, path);
        }
        let index = parse(&crafted(&[(".gitmodules", SYMLINK), (".gitignore", SYMLINK)]), 20).unwrap();
        assert_eq!(index.hostile.len(), 1);
        let fine = ["a b", "-x", "a\\b", "con", "x.", "a:b", ".github/x", "dir/"];
        let fine = parse(&crafted(&fine.map(|p| (p, 0o100_644))), 20).unwrap();
        assert_eq!(fine.hostile, []);
    }

    #[test]
    fn flags_are_read_in_every_version_as_git_does() {
        let s = Scratch::new();
        let top = s.repository("repo");
        let mut bytes = crafted(&[("xx.git/hooks/x", 0o100_644)]);
        // The flag that two more bytes of flags follow, which are the start of the path to who does not know it.
        let at = bytes.windows(2).position(|w| w == b"xx").unwrap();
        bytes[at - 2] |= 0x40;
        bytes[at - 1] -= 2;
        bytes[at..at + 2].fill(0);
        std::fs::write(top.join(".git/index"), &bytes).unwrap();
        assert_eq!(s.git("repo", ["ls-files"]), ".git/hooks/x");
        assert_eq!(parse(&bytes, 20).unwrap().hostile.len(), 1);
    }

    #[test]
    fn what_several_threads_of_git_would_read_is_judged_as_well() {
        let entry = |suffix: &[u8], length: u16| {
            let stat = [&[0; 24][..], &0o100_644u32.to_be_bytes(), &[0; 12], &[7; 20]].concat();
            // Nothing of the previous path is taken away.
            [&stat, &length.to_be_bytes()[..], &[0], suffix, &[0]].concat()
        };
        let mut bytes = b"DIRC\0\0\0\x04\0\0\0\x02".to_vec();
        bytes.extend(entry(b"xx", 2));
        let second = u32::try_from(bytes.len()).unwrap();
        bytes.extend(entry(b".git/hooks/x", 0xfff));
        let end = u32::try_from(bytes.len()).unwrap();
        assert_eq!(parse(&[&bytes[..], &[0; 20]].concat(), 20).unwrap().hostile, []);

        let table = [1, 12, 1, second, 1].map(u32::to_be_bytes).concat();
        let head = [&b"IEOT"[..], &20u32.to_be_bytes()].concat();
        let mut hasher = gix::hash::hasher(gix::hash::Kind::Sha1);
        hasher.update(&head);
        let sum = hasher.try_finalize().unwrap();
        bytes.extend(
            [&head[..], &table, b"EOIE", &24u32.to_be_bytes(), &end.to_be_bytes(), sum.as_slice()].concat(),
        );
        bytes.extend([0; 20]);
        let s = Scratch::new();
        std::fs::write(s.repository("repo").join(".git/index"), &bytes).unwrap();
        assert_eq!(s.git("repo", ["-c", "index.threads=1", "ls-files"]), "xx\nxx.git/hooks/x");
        assert_eq!(s.git("repo", ["-c", "index.threads=4", "ls-files"]), "xx\n.git/hooks/x");
        let index = parse(&bytes, 20).unwrap();
        assert_eq!((index.hostile.len(), index.entries), (1, 2));
        assert_eq!(index.hostile[0].0, ".git/hooks/x");
    }

    #[test]
    fn version_4_does_not_expand_to_gigabytes() {
        let mut bytes = b"DIRC\0\0\0\x04\0\0\x08\0".to_vec();
        for n in 0..2048 {
            bytes.extend_from_slice(&[0; 24]);
            bytes.extend_from_slice(&GITLINK.to_be_bytes());
            bytes.extend_from_slice(&[7; 32]);
            bytes.extend_from_slice(&[0x0f, 0xff, 0]);
            bytes.extend_from_slice("a".repeat(if n == 0 { 1 << 20 } else { 1 }).as_bytes());
            bytes.push(0);
        }
        bytes.extend_from_slice(&[0; 20]);
        assert!(matches!(parse(&bytes, 20), Err(Error::Damaged(_))));
    }

    #[test]
    fn damaged_bytes_never_panic() {
        let whole = crafted(&[("a/b", 0o100_644), ("sub", GITLINK), ("z", 0o100_755)]);
        for end in 0..whole.len() {
            let _ = parse(&whole[..end], 20);
            let _ = parse(&whole[..end], 32);
        }
        let mut seed = 7u32;
        for version in 2..=4 {
            for _ in 0..20_000 {
                let mut bytes = whole.clone();
                bytes[7] = version;
                for _ in 0..3 {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let at = (seed >> 8) as usize % bytes.len();
                    bytes[at] = (seed >> 24) as u8;
                }
                let _ = parse(&bytes, 20);
            }
        }
        assert_eq!(parse(b"DIRC\0\0\0\x09\0\0\0\0", 20), Err(Error::Version(9)));
        assert_eq!(parse(b"", 20), Err(Error::Signature));
    }
}
