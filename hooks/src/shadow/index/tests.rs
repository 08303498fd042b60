mod flags;
mod format;
mod hostile;
mod property;
mod turn;

use std::path::{Path, PathBuf};

use gix::hash::Kind;

use super::*;
use crate::fixture::Scratch;

/// An index file with these entries: path, mode, the byte that fills the object id, flags. Nothing is checked.
pub(super) struct Crafted {
    pub(super) version: u32,
    pub(super) count: Option<u32>,
    pub(super) entries: Vec<(Vec<u8>, u32, u8, u32)>,
    pub(super) extensions: Vec<u8>,
    pub(super) trailer: [u8; 20],
}

impl Crafted {
    pub(super) fn new(paths: &[(&str, u32)]) -> Self {
        let entries = paths.iter().map(|(path, mode)| (path.as_bytes().to_vec(), *mode, 7, 0)).collect();
        Self { version: 2, count: None, entries, extensions: Vec::new(), trailer: [0; 20] }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut out = b"DIRC".to_vec();
        out.extend_from_slice(&self.version.to_be_bytes());
        let count = self.count.unwrap_or_else(|| u32::try_from(self.entries.len()).unwrap());
        out.extend_from_slice(&count.to_be_bytes());
        let mut previous = 0;
        for (path, mode, id, flags) in &self.entries {
            let start = out.len();
            out.extend_from_slice(&[0; 24]);
            out.extend_from_slice(&mode.to_be_bytes());
            out.extend_from_slice(&[0; 12]);
            out.extend_from_slice(&[*id; 20]);
            let high = (flags >> 16) as u16;
            let low = *flags as u16 | path.len().min(0xfff) as u16 | if high == 0 { 0 } else { 0x4000 };
            out.extend_from_slice(&low.to_be_bytes());
            if high != 0 {
                out.extend_from_slice(&high.to_be_bytes());
            }
            if self.version == 4 {
                assert!(previous < 128);
                out.push(u8::try_from(previous).unwrap());
                previous = path.len();
                out.extend_from_slice(path);
                out.push(0);
            } else {
                out.extend_from_slice(path);
                let size = (out.len() - start + 8) & !7;
                out.resize(start + size, 0);
            }
        }
        out.extend_from_slice(&self.extensions);
        out.extend_from_slice(&self.trailer);
        out
    }

    pub(super) fn extension(mut self, name: &[u8; 4], content: &[u8]) -> Self {
        self.extensions.extend_from_slice(name);
        self.extensions.extend_from_slice(&u32::try_from(content.len()).unwrap().to_be_bytes());
        self.extensions.extend_from_slice(content);
        self
    }
}

pub(super) fn dir(path: &Path) -> Dir {
    Dir::open(&path.canonicalize().unwrap()).unwrap()
}

pub(super) fn entries(git_dir: &Path, kind: Kind, trusted: bool) -> Result<Entries, Error> {
    Entries::read(&dir(git_dir), "index".as_ref(), kind, trusted)
}

/// A repository on the host, and a shadow of it with the same checkout.
pub(super) struct Turn {
    pub(super) s: Scratch,
    pub(super) kind: Kind,
    pub(super) base: Entries,
}

impl Turn {
    /// A repository with some files; `setup` runs on the host before the shadow is made.
    pub(super) fn new(kind: Kind, setup: impl FnOnce(&Scratch)) -> Self {
        let s = Scratch::new();
        s.repository_with("host", &[&format!("--object-format={kind}")]);
        for (path, text) in [("a", "a\n"), ("dir/b", "b\n"), ("dir/c", "c\n"), ("z", "z\n")] {
            s.write(Path::new("host").join(path), text);
        }
        s.git("host", ["add", "."]);
        s.git("host", ["commit", "-q", "-m", "two"]);
        setup(&s);
        let copied = std::process::Command::new("cp")
            .arg("-a")
            .args([s.path("host/.git"), s.path("shadow.git")])
            .status()
            .unwrap();
        assert!(copied.success());
        let base = entries(&s.path("shadow.git"), kind, true).unwrap();
        Self { s, kind, base }
    }

    pub(super) fn sha1() -> Self {
        Self::new(Kind::Sha1, |_| ())
    }

    pub(super) fn write(&self, path: &str, text: &str) {
        self.s.write(Path::new("host").join(path), text);
    }

    /// git on the host.
    pub(super) fn host(&self, args: &[&str]) -> String {
        self.s.git("host", args)
    }

    /// git inside: on the shadow, with the same checkout.
    pub(super) fn inside(&self, args: &[&str]) -> String {
        let (git_dir, top) = (self.s.path("shadow.git"), self.s.path("host"));
        let mut all = vec!["--git-dir", git_dir.to_str().unwrap(), "--work-tree", top.to_str().unwrap()];
        all.extend(args);
        self.s.git("host", all)
    }

    pub(super) fn host_index(&self) -> Entries {
        entries(&self.s.path("host/.git"), self.kind, true).unwrap()
    }

    pub(super) fn shadow_index(&self) -> Entries {
        entries(&self.s.path("shadow.git"), self.kind, false).unwrap()
    }

    pub(super) fn merge(&self, flags: Flags) -> Result<Merged, Error> {
        merge(Some(&self.base), &self.host_index(), &self.shadow_index(), flags)
    }

    /// Objects, then the index; what is merged is checked against git.
    pub(super) fn import(&self, flags: Flags) -> Merged {
        let merged = self.merge(flags).unwrap();
        let copied = std::process::Command::new("cp")
            .args(["-a", "--no-clobber"])
            .args([self.s.path("shadow.git/objects/."), self.s.path("host/.git/objects")])
            .status()
            .unwrap();
        assert!(copied.success());
        let bytes = merged.bytes().unwrap();
        std::fs::write(self.s.path("host/.git/index"), &bytes).unwrap();
        self.sane();
        assert!(self.host_index().same(merged.entries()));
        merged
    }

    /// The session's commit becomes the host's.
    pub(super) fn import_head(&self) {
        let tip = self.inside(&["rev-parse", "HEAD"]);
        self.host(&["update-ref", "HEAD", &tip]);
    }

    /// What git says of the index and all that it names.
    pub(super) fn sane(&self) {
        // First, because git's own fsck misses the trees of a sparse index that were not written yet.
        self.host(&["write-tree"]);
        let quiet = ["-c", "core.fsmonitor=false", "-c", "advice.sparseIndexExpanded=false"];
        let fsck = self.s.try_git("host", [&quiet[..], &["fsck", "--no-dangling", "--no-progress"]].concat());
        let said = String::from_utf8_lossy(&[fsck.stdout, fsck.stderr].concat()).into_owned();
        assert!(fsck.status.success() && said.is_empty(), "{said}");
        self.host(&["diff", "--cached"]);
    }

    pub(super) fn status(&self) -> Vec<String> {
        self.host(&["status", "--porcelain"]).lines().map(str::to_owned).collect()
    }

    pub(super) fn staged(&self) -> Vec<String> {
        let all = self.host(&["diff", "--cached", "--name-status", "--no-renames"]);
        all.lines().map(|line| line.replace('\t', " ")).collect()
    }

    pub(super) fn git_dir(&self) -> PathBuf {
        self.s.path("host/.git")
    }
}
