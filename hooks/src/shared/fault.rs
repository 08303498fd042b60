//! What a judgement finds, together with what puts it right.

use std::path::{Path, PathBuf};

use codeoid_spec::report::{Action, Finding};

use crate::read::Stamp;
use crate::text::{printable, reportable};

/// Something that is not as it was, or not as git would have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// What is reported; `None` for what this program itself left behind when it was killed.
    pub(crate) finding: Option<Finding>,
    /// What puts it right, in order. Empty where only its owner can judge it.
    pub(crate) steps: Vec<Step>,
}

/// One change on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Remove a file, a symlink, or a directory with all that is below it.
    Remove {
        path: PathBuf,
        /// Whether it may be somebody's work.
        keep: bool,
    },
    /// Make it a regular file with this content, whatever it is now.
    Write { path: PathBuf, bytes: Vec<u8>, mode: u32, keep: bool },
    /// Make it a regular file with this content, if nothing is there: git may be making it at the same time.
    Create { path: PathBuf, bytes: Vec<u8>, mode: u32 },
    /// Make a directory with these files, if nothing is there.
    Recreate { path: PathBuf, files: Vec<(&'static str, Vec<u8>)> },
    /// Rename it. What is at the new name, if anything, is not a directory with something in it.
    Rename { from: PathBuf, to: PathBuf },
    /// Make it a symlink with this target, whatever it is now.
    Link { path: PathBuf, target: PathBuf },
    /// Make a directory.
    MakeDirectory { path: PathBuf },
    /// Give its owner the permissions that git leaves them, from `base` (a git dir or an entry) down to it.
    Allow { base: PathBuf, path: PathBuf },
    /// Remove a lock file if it still is the one that was judged.
    Unlock { path: PathBuf, stamp: Stamp },
    /// Take these refs out of `packed-refs`.
    DropPacked { git_dir: PathBuf, names: Vec<Vec<u8>> },
}

impl Step {
    /// The path whose content is copied before the step takes it away.
    pub(crate) fn keeps(&self) -> Option<&Path> {
        match self {
            Self::Remove { path, keep: true } | Self::Write { path, keep: true, .. } => Some(path),
            _ => None,
        }
    }
}

impl Fault {
    /// Something that is put back.
    pub(crate) fn restored(kind: &str, path: impl Into<PathBuf>, detail: impl Into<String>) -> Self {
        Self::new(kind, path.into(), Action::Restored, detail.into())
    }

    /// Something that is taken away.
    pub(crate) fn removed(kind: &str, path: impl Into<PathBuf>, detail: impl Into<String>) -> Self {
        Self::new(kind, path.into(), Action::Removed, detail.into())
    }

    /// Something that is only said.
    pub(crate) fn reported(kind: &str, path: impl Into<PathBuf>, detail: impl Into<String>) -> Self {
        Self::new(kind, path.into(), Action::Reported, detail.into())
    }

    /// A file of this program's own making that a killed run left.
    pub(crate) fn leftover(path: PathBuf) -> Self {
        Self { finding: None, steps: vec![Step::Remove { path, keep: false }] }
    }

    fn new(kind: &str, path: PathBuf, action: Action, detail: String) -> Self {
        let (path, detail) = (reportable(&path), printable(&detail));
        let finding = Finding { kind: kind.to_owned(), entry: None, path, action, detail };
        Self { finding: Some(finding), steps: Vec::new() }
    }

    /// Whether two looks have found the same.
    pub(crate) fn is_about_the_same(&self, other: &Self) -> bool {
        let about =
            |fault: &Self| fault.finding.as_ref().map(|found| (found.kind.clone(), found.path.clone()));
        about(self) == about(other)
    }

    pub(crate) fn entry(mut self, id: Option<&str>) -> Self {
        if let Some(finding) = &mut self.finding {
            finding.entry = id.map(str::to_owned);
        }
        self
    }

    pub(crate) fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Remove it without a copy: there is nothing in it that could be anybody's work.
    pub(crate) fn drop(self, path: impl Into<PathBuf>) -> Self {
        self.step(Step::Remove { path: path.into(), keep: false })
    }

    /// Remove it, and keep a copy.
    pub(crate) fn set_aside(self, path: impl Into<PathBuf>) -> Self {
        self.step(Step::Remove { path: path.into(), keep: true })
    }

    /// Write it, and keep a copy of what was there.
    pub(crate) fn write(self, path: impl Into<PathBuf>, bytes: impl Into<Vec<u8>>, mode: u32) -> Self {
        self.step(Step::Write { path: path.into(), bytes: bytes.into(), mode: mode & 0o777, keep: true })
    }
}
