//! Every way that is known to get out of a writable `.git`, with real git.
//!
//! Each test first plants the attack and shows that git on the host obeys it (the control: an attack that does
//! not work proves nothing). Then it does the same between baseline and check, and shows that git on the host
//! does not obey it any more, that a second check finds nothing, and that everything a person did in that time
//! is still there, byte for byte.

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::type_complexity, missing_docs)]

#[path = "../fixture/mod.rs"]
mod fixture;

mod config;
mod entries;
mod files;
mod hostile;
mod index;
mod journal;
mod modules;
mod peace;

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use codeoid_hooks::shared::baseline::{self, Baseline};
use codeoid_hooks::shared::check::{self, Checked, Depth};
use codeoid_hooks::tree::Keep;
use codeoid_hooks::{layout, shared};
use codeoid_spec::report::{Action, Finding};
use fixture::Scratch;

/// A repository `repo` with the worktree `feat` of somebody else.
pub fn usual() -> Scratch {
    let s = Scratch::new();
    s.repository("repo");
    s.write("repo/.gitignore", "*.tmp\n");
    s.git("repo", ["add", "."]);
    s.git("repo", ["commit", "-q", "-m", "two"]);
    s.git("repo", ["worktree", "add", "-q", "../feat"]);
    s.git("repo", ["worktree", "add", "-q", "../other"]);
    s
}

/// What a turn plants in a git dir, for whoever runs git there afterwards: a hook, another common dir for it and for
/// the worktree `feat`, a program in the configuration.
pub fn plant(s: &Scratch, git_dir: &str) {
    s.trap(format!("{git_dir}/hooks/pre-commit"), "PWNED");
    s.write(format!("{git_dir}/commondir"), "/nowhere\n");
    s.write(format!("{git_dir}/worktrees/feat/commondir"), "/nowhere\n");
    let mut config = s.text(format!("{git_dir}/config"));
    config.push_str("[core]\n\tfsmonitor = /nowhere\n");
    s.write(format!("{git_dir}/config"), &config);
}

/// What a person does in the repository while a turn runs.
pub fn human(s: &Scratch) {
    s.git("repo", ["worktree", "add", "-q", "../human", "-b", "human"]);
    s.git("repo", ["config", "user.name", "A Human"]);
    s.git("repo", ["config", "branch.main.description", "mine"]);
    s.git("repo", ["worktree", "lock", "--reason", "mine", "../other"]);
    s.write("feat/by-human", "work\n");
    s.git("feat", ["add", "by-human"]);
    s.write("human/by-human", "work\n");
    s.git("human", ["add", "by-human"]);
    s.git("human", ["commit", "-q", "-m", "by a human"]);
}

/// All files below a directory: kind, permissions and content (or target).
pub type Picture = BTreeMap<PathBuf, (u32, Vec<u8>)>;

/// Takes a picture of everything below the scratch directory.
pub fn picture(root: &Path) -> Picture {
    let mut picture = Picture::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            let content = if metadata.is_dir() {
                waiting.push(path.clone());
                Vec::new()
            } else if metadata.is_symlink() {
                std::fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()
            } else if metadata.is_file() && metadata.len() < 1 << 24 {
                std::fs::read(&path).unwrap()
            } else {
                Vec::new()
            };
            picture.insert(path.strip_prefix(root).unwrap().to_owned(), (metadata.mode(), content));
        }
    }
    picture
}

/// Compares two pictures, and says what differs rather than all there is.
#[track_caller]
pub fn same(now: &Picture, before: &Picture) {
    let text = |picture: &Picture, path: &Path| match picture.get(path) {
        Some((mode, content)) => format!("{mode:o} {:?}", String::from_utf8_lossy(content)),
        None => "nothing".to_owned(),
    };
    let paths = before.keys().chain(now.keys().filter(|path| !before.contains_key(*path)));
    let differences: Vec<_> = paths
        .filter(|path| now.get(*path) != before.get(*path))
        .map(|path| format!("{}\n  was {}\n  is  {}", path.display(), text(before, path), text(now, path)))
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// The baseline of a workspace, as a finish reads it.
pub fn capture(s: &Scratch, workspace: &str) -> Baseline {
    let session = "s1".parse().unwrap();
    let repository = layout::find(&s.path(workspace), &session, &[]).unwrap().unwrap();
    let guard = shared::guard(&repository).unwrap();
    let baseline = baseline::capture(&guard, &[]).unwrap();
    let json = serde_json::to_vec(&baseline).unwrap();
    let again: Baseline = serde_json::from_slice(&json).unwrap();
    assert_eq!(again, baseline, "a baseline survives being stored");
    again
}

/// Checks, and checks again: the second time nothing may be left to be done.
pub fn checked(s: &Scratch, baseline: &Baseline) -> Vec<Finding> {
    let keep = Keep::new(s.path("kept"));
    let run = || {
        let mut recorded = Vec::new();
        let Checked { findings, failed, .. } =
            check::run(baseline, Depth::Changed, &keep, &mut |finding| recorded.push(finding.clone()))
                .unwrap();
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!(findings, recorded);
        findings
    };
    let findings = run();
    let before = picture(&s.root);
    let again = run();
    let changing: Vec<_> = again.iter().filter(|f| f.action != Action::Reported).collect();
    assert!(changing.is_empty(), "a second check changes nothing: {changing:#?}");
    same(&picture(&s.root), &before);
    findings
}

/// An attack: what is there before, what a turn plants, and what a person then runs.
pub struct Attack<'a> {
    pub setup: &'a dyn Fn() -> Scratch,
    pub workspace: &'a str,
    pub plant: &'a dyn Fn(&Scratch),
    pub host: &'a dyn Fn(&Scratch),
    /// Whether the host was hit.
    pub hit: &'a dyn Fn(&Scratch) -> bool,
    /// Paths that the attack destroys beyond repair, and paths that it leaves behind without harm.
    pub lost: &'a [&'a str],
}

impl Default for Attack<'_> {
    fn default() -> Self {
        Self {
            setup: &usual,
            workspace: "repo",
            plant: &|_| (),
            host: &|s| {
                s.try_git("repo", ["status"]);
            },
            hit: &|s| s.path("PWNED").exists(),
            lost: &[],
        }
    }
}

impl Attack<'_> {
    /// Shows that the attack works without a check and not with one. Returns what the check has found.
    #[track_caller]
    pub fn fails(&self) -> Vec<Finding> {
        let (findings, scratch) = self.undone();
        (self.host)(&scratch);
        assert!(!(self.hit)(&scratch), "the host was hit in spite of {findings:#?}");
        findings
    }

    /// As [`Attack::fails`], but the host's command is left to the caller.
    #[track_caller]
    pub fn undone(&self) -> (Vec<Finding>, Scratch) {
        let s = (self.setup)();
        (self.plant)(&s);
        assert!(!(self.hit)(&s), "the mark is there before anything has run");
        (self.host)(&s);
        assert!((self.hit)(&s), "control: the attack does not work on this git");

        let s = (self.setup)();
        let baseline = capture(&s, self.workspace);
        human(&s);
        let before = picture(&s.root);
        (self.plant)(&s);
        let findings = checked(&s, &baseline);
        assert!(!findings.is_empty(), "nothing was found");
        let after = picture(&s.root);
        let lost = |path: &Path| self.lost.iter().any(|lost| path.starts_with(lost));
        for (path, was) in &before {
            if !lost(path) {
                assert_eq!(after.get(path), Some(was), "{}: {findings:#?}", path.display());
            }
        }
        (findings, s)
    }
}

/// The kinds of findings, sorted, each once.
pub fn kinds(findings: &[Finding]) -> Vec<&str> {
    let mut kinds: Vec<_> = findings.iter().map(|finding| finding.kind.as_str()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}
