//! A walk through a git dir or a worktree entry that looks for what git never makes there: symlinks, pipes,
//! devices, sockets; and for lock files. Contents are not read.
//!
//! Loose objects are not walked through: a symlink in place of one can only make git read something whose hash
//! is wrong. Their directories are looked at, because git writes into those.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::restore::SUFFIX;
use crate::read::{self, Dir, Item, Kind};

/// Directories that are walked through to the end.
const DEEP: [&str; 8] =
    ["info", "logs", "rebase-apply", "rebase-merge", "refs", "reftable", "rr-cache", "sequencer"];
/// The deepest directory that is looked into; a ref's name has some 4,096 bytes at most.
const DEPTH: usize = 128;

/// What a walk has found. All paths are relative to where it started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Survey {
    /// Symlinks and their targets.
    pub(crate) links: BTreeMap<PathBuf, PathBuf>,
    /// Pipes, devices, sockets.
    pub(crate) special: BTreeMap<PathBuf, Kind>,
    /// Lock files, `gc.pid` among them.
    pub(crate) locks: Vec<PathBuf>,
    /// What a killed restore left.
    pub(crate) leftovers: Vec<PathBuf>,
    /// Directories that cannot be read.
    pub(crate) unreadable: Vec<PathBuf>,
    /// What lies at the top.
    pub(crate) top: Vec<Item>,
}

/// Walks through a git dir or an entry.
pub(crate) fn survey(dir: &Dir) -> Result<Survey, read::Error> {
    let mut found = Survey { top: dir.list()?, ..Survey::default() };
    let top = found.top.clone();
    for item in &top {
        found.note(dir, Path::new(""), item.name.as_os_str(), item.kind)?;
        if item.kind != Kind::Directory {
            continue;
        }
        let name = Path::new(&item.name);
        if DEEP.iter().any(|deep| item.name == *deep) {
            found.walk(dir, name.to_owned(), DEPTH)?;
        } else if item.name == "objects" {
            found.walk(dir, name.to_owned(), 1)?;
            found.walk(dir, name.join("info"), DEPTH)?;
            found.walk(dir, name.join("pack"), 1)?;
        }
    }
    Ok(found)
}

impl Survey {
    fn note(&mut self, dir: &Dir, at: &Path, name: &OsStr, kind: Kind) -> Result<(), read::Error> {
        let path = at.join(name);
        match kind {
            // No lock of git's is a directory, and none can be taken where one is.
            Kind::Directory if name.as_bytes().ends_with(b".lock") => {
                self.special.insert(path, kind);
            }
            Kind::Directory => {}
            Kind::Symlink => {
                // Gone meanwhile: nothing to say.
                if let Some(target) = dir.read_link(name)? {
                    self.links.insert(path, target);
                }
            }
            Kind::File => {
                let bytes = name.as_bytes();
                if bytes.ends_with(SUFFIX.as_bytes()) {
                    self.leftovers.push(path);
                } else if bytes.ends_with(b".lock") || (at == Path::new("") && bytes == b"gc.pid") {
                    self.locks.push(path);
                }
            }
            // Where git's file system monitor listens.
            Kind::Socket if name.as_bytes().starts_with(b"fsmonitor--daemon") => {}
            Kind::Fifo | Kind::Socket | Kind::Device | Kind::Unknown => {
                self.special.insert(path, kind);
            }
        }
        Ok(())
    }

    /// Walks through a directory, `levels` deep.
    fn walk(&mut self, top: &Dir, from: PathBuf, levels: usize) -> Result<(), read::Error> {
        let mut waiting = vec![(from, levels)];
        while let Some((at, levels)) = waiting.pop() {
            let dir = match top.beneath(&at) {
                Ok(Some(dir)) => dir,
                // A directory that was exchanged for something else is found at its own name.
                Ok(None) | Err(read::Error::NotDirectory { .. }) => continue,
                Err(error) if error.errno() == Some(nix::errno::Errno::EACCES) => {
                    self.unreadable.push(at);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut failed = None;
            dir.visit(|name, kind, _| {
                let name = OsStr::from_bytes(name.to_bytes());
                if kind == Kind::Directory && !name.as_bytes().ends_with(b".lock") {
                    if levels > 1 {
                        waiting.push((at.join(name), levels - 1));
                    }
                } else if (kind != Kind::File || name.as_bytes().ends_with(b".lock") || is_leftover(name))
                    && let Err(error) = self.note(&dir, &at, name, kind)
                {
                    failed = Some(error);
                }
            })?;
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(())
    }
}

fn is_leftover(name: &OsStr) -> bool {
    name.as_bytes().ends_with(SUFFIX.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Scratch;
    use std::os::unix::fs::symlink;

    #[test]
    fn it_finds_what_git_never_makes_and_nothing_else() {
        let s = Scratch::new();
        let git = s.repository("repo").join(".git");
        s.git("repo", ["gc", "-q"]);
        let dir = Dir::open(&git).unwrap();
        let clean = survey(&dir).unwrap();
        assert_eq!(Survey { top: Vec::new(), ..clean }, Survey::default());

        symlink("/x", git.join("refs/heads/l")).unwrap();
        symlink("/x", git.join("objects/ab")).unwrap();
        symlink("/x", git.join("objects/info/commit-graph2")).unwrap();
        symlink("/x", git.join("COMMIT_EDITMSG2")).unwrap();
        nix::unistd::mkfifo(&git.join("info/f"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        s.write("repo/.git/refs/heads/a/b.lock", "");
        s.write("repo/.git/gc.pid", "");
        s.write("repo/.git/info/x.codeoid-restore", "");
        let found = survey(&dir).unwrap();
        let links: Vec<_> = found.links.keys().map(|p| p.to_str().unwrap()).collect();
        assert_eq!(links, ["COMMIT_EDITMSG2", "objects/ab", "objects/info/commit-graph2", "refs/heads/l"]);
        assert_eq!(found.special, BTreeMap::from([(PathBuf::from("info/f"), Kind::Fifo)]));
        let mut locks = found.locks.clone();
        locks.sort();
        assert_eq!(locks, [PathBuf::from("gc.pid"), PathBuf::from("refs/heads/a/b.lock")]);
        assert_eq!(found.leftovers, [PathBuf::from("info/x.codeoid-restore")]);
    }
}
