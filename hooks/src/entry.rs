//! What git writes into a worktree entry and into a worktree's `.git` file, and how git reads it
//! (gitrepository-layout(5), git-worktree(1) "DETAILS"). Parsing and comparing only: nothing here decides what
//! happens to an entry.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use crate::read::{self, Kind, Stamp};

/// The content of an entry's `commondir` as git writes it.
pub const COMMONDIR: &[u8] = b"../..\n";
/// What a `.git` file starts with.
const GITFILE: &[u8] = b"gitdir: ";

/// A path as git takes it from a pointer file: everything but the white space at the end. `None` where that is
/// no path: nothing left, or a NUL byte in it.
#[must_use]
pub fn pointed_path(bytes: &[u8]) -> Option<&Path> {
    let path = bytes.trim_ascii_end();
    let path = (!path.is_empty() && !path.contains(&0)).then_some(path)?;
    Some(Path::new(OsStr::from_bytes(path)))
}

/// The path in a `.git` file, as written. `None` where it is no such file.
#[must_use]
pub fn gitfile_path(bytes: &[u8]) -> Option<&Path> {
    // Here git strips line ends only, so that a directory name may end in a space.
    let mut path = bytes.strip_prefix(GITFILE)?;
    while let [rest @ .., b'\n' | b'\r'] = path {
        path = rest;
    }
    (!path.is_empty() && !path.contains(&0)).then(|| Path::new(OsStr::from_bytes(path)))
}

/// The `.git` file for a worktree whose entry lies here.
#[must_use]
pub fn gitfile(entry: &Path) -> Vec<u8> {
    [GITFILE, entry.as_os_str().as_bytes(), b"\n"].concat()
}

/// The path that an entry's `gitdir` names: absolute, or relative to the entry (`worktree.useRelativePaths`),
/// with `.` and `..` taken away. `None` where it does not end in `/.git`.
#[must_use]
pub fn gitdir_target(entry: &Path, bytes: &[u8]) -> Option<PathBuf> {
    let path = normal(&entry.join(pointed_path(bytes)?));
    (path.file_name() == Some(OsStr::new(".git")) && path.parent().is_some()).then_some(path)
}

/// A path without `.` and `..`, by its text alone. (What the kernel would make of `..` behind a symlink can
/// differ; so this is for naming, and inodes are for comparing.)
#[must_use]
pub fn normal(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                result.pop();
            }
            other => result.push(other),
        }
    }
    result
}

/// The real path of something that may not exist (a worktree that was deleted): the nearest ancestor that
/// exists is resolved, the rest stays as it is.
#[must_use]
pub fn real(path: &Path) -> PathBuf {
    let mut rest: Vec<OsString> = Vec::new();
    let mut head = path.to_owned();
    loop {
        if let Ok(found) = head.canonicalize() {
            return rest.iter().rev().fold(found, |path, name| path.join(name));
        }
        match (head.file_name().map(OsStr::to_owned), head.parent().map(Path::to_owned)) {
            (Some(name), Some(parent)) => {
                rest.push(name);
                head = parent;
            }
            _ => return normal(path),
        }
    }
}

/// What a worktree's `.git` says about an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackPointer {
    /// It points at this entry.
    Agrees,
    /// It points at something else, which may not exist.
    Elsewhere(PathBuf),
    /// There is none.
    Missing,
    /// It is neither a `.git` file nor a symlink to an entry: a directory with a repository of its own, or
    /// something that git never makes.
    Other(Kind),
}

/// Reads a worktree's `.git` (by its full path) and compares it with an entry. One that cannot be read is
/// missing, to git as well.
#[must_use]
pub fn back_pointer(git_file: &Path, entry: &Stamp) -> BackPointer {
    let is_entry = |path: &Path| read::stat(path).is_some_and(|found| found.same_inode(entry));
    match read::file(git_file, read::POINTER_LIMIT) {
        Ok(Some(content)) => {
            let base = git_file.parent().unwrap_or(Path::new("/"));
            match gitfile_path(&content.bytes) {
                Some(path) if is_entry(&base.join(path)) => BackPointer::Agrees,
                Some(path) => BackPointer::Elsewhere(normal(&base.join(path))),
                None => BackPointer::Other(Kind::File),
            }
        }
        // git-annex turns a worktree's `.git` file into a symlink to the entry.
        Err(read::Error::NotRegular { kind: Kind::Symlink, .. }) if is_entry(git_file) => BackPointer::Agrees,
        Err(read::Error::NotRegular { kind, .. }) => BackPointer::Other(kind),
        Err(read::Error::TooBig { .. }) => BackPointer::Other(Kind::File),
        Ok(None) | Err(_) => BackPointer::Missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_taken_as_git_takes_them() {
        assert_eq!(pointed_path(b"/a/.git\n"), Some(Path::new("/a/.git")));
        assert_eq!(pointed_path(b"/a b/.git \r\n\n"), Some(Path::new("/a b/.git")));
        assert_eq!(pointed_path(b"\n"), None);
        assert_eq!(pointed_path(b"/a\0b\n"), None);
        assert_eq!(gitfile_path(b"gitdir: ../x \n"), Some(Path::new("../x ")));
        assert_eq!(gitfile_path(b"gitdir:x\n"), None);
        assert_eq!(gitfile_path(b"gitdir: \n"), None);
    }

    #[test]
    fn gitdir_may_be_relative_and_must_name_dot_git() {
        let entry = Path::new("/r/.git/worktrees/w");
        assert_eq!(gitdir_target(entry, b"/x/w/.git\n"), Some("/x/w/.git".into()));
        assert_eq!(gitdir_target(entry, b"../../../../w/.git\n"), Some("/w/.git".into()));
        assert_eq!(gitdir_target(entry, b"/x/w\n"), None);
        assert_eq!(gitdir_target(entry, b"/x/w/.git/..\n"), None);
        assert_eq!(gitdir_target(entry, b"\xff/.git").unwrap().file_name().unwrap(), ".git");
    }

    #[test]
    fn the_missing_end_of_a_path_stays() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(&root, root.join("l")).unwrap();
        assert_eq!(real(&root.join("l/no/such")), root.join("no/such"));
    }
}
