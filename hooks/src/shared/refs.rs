//! Replacement refs (git-replace(1)): each makes git read another object in place of one, everywhere and
//! silently. They lie as files below `refs/replace/` or as lines in `packed-refs`.
//!
//! A repository that keeps its refs in `reftable/` is not covered here; that is a stated limit.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::fault::{Fault, Step};
use crate::bytes::Bytes;
use crate::read::{self, Dir, Kind};

const PREFIX: &[u8] = b"refs/replace/";
/// The first name that sorts behind all replacement refs.
const BEHIND: &[u8] = b"refs/replace0";
/// The most that is rewritten of a `packed-refs`.
const PACKED_LIMIT: u64 = 512 * 1024 * 1024;
/// A sorted `packed-refs` is searched by halves down to this many bytes.
const STRIDE: u64 = 64 * 1024;
/// The longest line: an object id, a space and a ref's name.
const LINE: u64 = 8 * 1024;

/// Why `packed-refs` could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not a regular file, or cannot be opened.
    #[error(transparent)]
    Read(#[from] read::Error),
    /// Reading failed on the way.
    #[error("read {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        source: std::io::Error,
    },
}

/// Object ids by the full name of the replacement ref.
pub(crate) type Replacements = BTreeMap<Bytes, Bytes>;

/// All replacement refs of a git dir.
pub(crate) fn replacements(dir: &Dir) -> Result<Replacements, Error> {
    let mut all = packed(dir)?;
    all.extend(loose(dir)?);
    Ok(all)
}

fn loose(dir: &Dir) -> Result<Replacements, Error> {
    let mut found = Replacements::new();
    let replace = match dir.beneath(Path::new("refs/replace")) {
        Ok(Some(replace)) => replace,
        Ok(None) | Err(read::Error::NotDirectory { .. }) => return Ok(found),
        Err(error) => return Err(error.into()),
    };
    for item in replace.list()? {
        // What is no regular file is not read by git as a ref either, or is found as what it is.
        if item.kind == Kind::File
            && let Ok(Some(content)) = replace.read(&item.name, read::POINTER_LIMIT)
        {
            let name = [PREFIX, item.name.as_bytes()].concat();
            found.insert(Bytes(name), Bytes(content.bytes.trim_ascii_end().to_vec()));
        }
    }
    Ok(found)
}

fn packed(dir: &Dir) -> Result<Replacements, Error> {
    let (file, stamp) = match dir.open_file("packed-refs".as_ref()) {
        Ok(Some(found)) => found,
        Ok(None) | Err(read::Error::NotRegular { .. }) => return Ok(Replacements::new()),
        Err(error) => return Err(error.into()),
    };
    let failed = |source| Error::Io { path: dir.path().join("packed-refs"), source };
    let mut head = [0; 256];
    let length = file.read_at(&mut head, 0).map_err(failed)?;
    let header = head[..length].split(|b| *b == b'\n').next().unwrap_or_default();
    // git, too, believes the header and searches by halves (packed-refs "sorted").
    let sorted = header.starts_with(b"# pack-refs with:")
        && header.split(|b| *b == b' ').any(|word| word == b"sorted");
    let start = if sorted { search(&file, stamp.size).map_err(failed)? } else { 0 };
    scan(file, start, sorted).map_err(failed)
}

/// A line's start at or before the first replacement ref of a sorted file.
fn search(file: &File, size: u64) -> std::io::Result<u64> {
    let (mut low, mut high) = (0, size);
    let mut buffer = vec![0; usize::try_from(LINE).unwrap_or(0) * 2];
    while high - low > STRIDE {
        let middle = low + (high - low) / 2;
        let length = file.read_at(&mut buffer, middle)?;
        let piece = &buffer[..length];
        let mut at = middle;
        let mut decided = false;
        // The first line is cut; a peeled line ("^id") has no name.
        for (count, line) in piece.split_inclusive(|b| *b == b'\n').enumerate() {
            if count > 0
                && let Some((_, name)) = fields(line)
            {
                if name < PREFIX {
                    low = at;
                } else {
                    high = middle;
                }
                decided = true;
                break;
            }
            at += line.len() as u64;
        }
        if !decided {
            // Lines longer than a ref's name can be: read it all.
            return Ok(0);
        }
    }
    Ok(low)
}

fn scan(mut file: File, start: u64, sorted: bool) -> std::io::Result<Replacements> {
    let mut found = Replacements::new();
    file.seek(SeekFrom::Start(start))?;
    let mut reader = BufReader::with_capacity(64 * 1024, file);
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.by_ref().take(LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(found);
        }
        let Some((id, name)) = fields(&line) else { continue };
        if name.starts_with(PREFIX) {
            found.insert(Bytes(name.to_vec()), Bytes(id.to_vec()));
        } else if sorted && name >= BEHIND {
            return Ok(found);
        }
    }
}

/// The object id and the name in a line of `packed-refs`.
fn fields(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    if line.starts_with(b"#") || line.starts_with(b"^") {
        return None;
    }
    let space = line.iter().position(|b| *b == b' ')?;
    Some((&line[..space], &line[space + 1..]))
}

/// The content of `packed-refs` without these refs, and its permissions; `None` where they are not in it.
pub(super) fn without(dir: &Dir, names: &[Vec<u8>]) -> Result<Option<(Vec<u8>, u32)>, Error> {
    let Some(content) = dir.read("packed-refs".as_ref(), PACKED_LIMIT)? else { return Ok(None) };
    let mut rest = Vec::with_capacity(content.bytes.len());
    let mut dropped = false;
    for line in content.bytes.split_inclusive(|b| *b == b'\n') {
        // What follows a ref with "^" belongs to it.
        if !line.starts_with(b"^") {
            dropped = fields(line).is_some_and(|(_, name)| names.iter().any(|drop| drop == name));
        }
        if !dropped {
            rest.extend_from_slice(line);
        }
    }
    Ok((rest.len() != content.bytes.len()).then_some((rest, content.stamp.mode)))
}

/// Compares the replacement refs with those that were there.
pub(super) fn judge(dir: &Dir, before: &Replacements, faults: &mut Vec<Fault>) -> Result<(), Error> {
    let (loose, packed) = (loose(dir)?, packed(dir)?);
    let at = |name: &Bytes| dir.path().join(OsStr::from_bytes(&name.0));
    let mut names: Vec<&Bytes> = loose.keys().chain(packed.keys()).chain(before.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let now = loose.get(name).or_else(|| packed.get(name));
        let was = before.get(name);
        if now == was {
            continue;
        }
        let what = String::from_utf8_lossy(&name.0[PREFIX.len()..]).escape_debug().to_string();
        let by = |id: Option<&Bytes>| {
            String::from_utf8_lossy(&id.cloned().unwrap_or_default().0).escape_debug().to_string()
        };
        let path = at(name);
        faults.push(match was {
            Some(id) => {
                let detail = format!("the replacement of object {what} by {} was taken back", by(Some(id)));
                let mut bytes = id.0.clone();
                bytes.push(b'\n');
                let parent = path.parent().map(Path::to_owned).unwrap_or_default();
                Fault::restored("replacement-changed", &path, detail)
                    .step(Step::MakeDirectory { path: parent })
                    .write(&path, bytes, 0o644)
            }
            None => {
                let detail = format!(
                    "object {what} was replaced by {}: `git replace {what} {}` makes that again",
                    by(now),
                    by(now)
                );
                let mut fault = Fault::removed("replacement-added", &path, detail);
                if loose.contains_key(name) {
                    fault = fault.drop(&path);
                }
                if packed.contains_key(name) {
                    let git_dir = dir.path().to_owned();
                    fault = fault.step(Step::DropPacked { git_dir, names: vec![name.0.clone()] });
                }
                fault
            }
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Scratch;
    use std::fmt::Write as _;

    fn names(found: &Replacements) -> Vec<String> {
        found.keys().map(|name| String::from_utf8(name.0.clone()).unwrap()).collect()
    }

    #[test]
    fn loose_and_packed_replacements_are_found() {
        let s = Scratch::new();
        let git = s.repository("repo").join(".git");
        let one = s.git("repo", ["rev-parse", "HEAD"]);
        s.git("repo", ["commit", "-q", "--allow-empty", "-m", "two"]);
        let two = s.git("repo", ["rev-parse", "HEAD"]);
        s.git("repo", ["tag", "-a", "-m", "x", "annotated"]);
        s.git("repo", ["replace", &two, &one]);
        let dir = Dir::open(&git).unwrap();
        let loose = replacements(&dir).unwrap();
        s.git("repo", ["pack-refs", "--all"]);
        assert_eq!(replacements(&dir).unwrap(), loose);
        assert_eq!(names(&loose), [format!("refs/replace/{two}")]);
        assert_eq!(loose.values().next().unwrap().0, one.as_bytes());

        let (rest, _) = without(&dir, &[format!("refs/replace/{two}").into_bytes()]).unwrap().unwrap();
        std::fs::write(git.join("packed-refs"), rest).unwrap();
        assert_eq!(s.git("repo", ["replace", "-l"]), "");
        assert_eq!(s.git("repo", ["rev-parse", "annotated^{commit}"]), two);
        assert_eq!(without(&dir, &[b"refs/heads/none".to_vec()]).unwrap(), None);
    }

    #[test]
    fn a_large_sorted_file_is_searched() {
        let s = Scratch::new();
        let mut text = String::from("# pack-refs with: peeled fully-peeled sorted \n");
        let id = "0123456789012345678901234567890123456789";
        for number in 0..40_000 {
            writeln!(text, "{id} refs/heads/branch-{number:05}").unwrap();
        }
        for number in 0..3 {
            writeln!(text, "{id} refs/replace/{number:040}").unwrap();
        }
        for number in 0..40_000 {
            writeln!(text, "{id} refs/tags/tag-{number:05}\n^{id}").unwrap();
        }
        s.write("git/packed-refs", &text);
        let dir = Dir::open(&s.path("git")).unwrap();
        let found = names(&replacements(&dir).unwrap());
        assert_eq!(found.len(), 3);
        // Without the word all of it is read, with the same result.
        s.write("git/packed-refs", &text.replacen(" sorted", "", 1));
        assert_eq!(names(&replacements(&dir).unwrap()), found);
        s.write("git/packed-refs", &"x".repeat(300_000));
        assert_eq!(names(&replacements(&dir).unwrap()), [""; 0]);
    }
}
