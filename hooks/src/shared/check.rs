//! The check at the end of a turn (and whenever somebody asks): compares git's bookkeeping with the baseline
//! and with git's own layout, and puts right what has one right value.
//!
//! Judging only reads. It is done again after every restore, until nothing is left to be put right: what was
//! hidden behind a symlink is judged when the symlink is gone, and a check that was killed and runs again does
//! what was left.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use codeoid_spec::git::Checkout;
use codeoid_spec::report::Finding;

use super::area;
use super::baseline::{Baseline, since};
pub use super::case::Depth;
use super::case::{Case, attempt};
use super::fault::{Fault, Step};
use super::keys::Verdict;
use super::restore::{self, chain};
use super::{modules, planted, pointers};
use crate::bytes::Bytes;
use crate::index;
use crate::read::{self, Dir, Kind};
use crate::text::printable;
use crate::tree::Keep;

/// How many findings of one kind are listed. A turn can plant any number.
const MOST: usize = 1_000;
/// How often is judged at most. Each round uncovers what the one before put back.
const ROUNDS: usize = 5;

/// What a check has done.
#[derive(Debug, Default)]
#[must_use]
pub struct Checked {
    /// What was found.
    pub findings: Vec<Finding>,
    /// What the user should know besides.
    pub warnings: Vec<String>,
    /// What could not be put right. As long as there is any, the check has to run again.
    pub failed: Vec<restore::Error>,
}

/// Why nothing could be judged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bookkeeping cannot be read.
    #[error(transparent)]
    Read(#[from] read::Error),
    /// The refs cannot be read.
    #[error(transparent)]
    Refs(#[from] super::refs::Error),
}

/// Checks a repository against its baseline and puts right what is not. `record` is told of every finding
/// before anything is changed, so that a finding survives a kill.
///
/// The caller holds the repository's lock.
///
/// # Errors
/// Only if nothing could be judged; what could not be put right is in [`Checked::failed`].
pub fn run(
    baseline: &Baseline,
    depth: Depth,
    keep: &Keep,
    record: &mut dyn FnMut(&Finding),
) -> Result<Checked, Error> {
    let case = Case::new(baseline, depth);
    let mut checked = Checked::default();
    let mut known: HashSet<(String, PathBuf)> = HashSet::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for round in 0..ROUNDS {
        let mut warnings = Vec::new();
        let mut faults = judge(&case, round == 0, &mut warnings)?;
        if round == 0 {
            checked.warnings.append(&mut warnings);
        }
        for fault in &mut faults {
            let Some(finding) = &mut fault.finding else { continue };
            for path in fault.steps.iter().filter_map(Step::keeps) {
                if read::lstat(path).is_ok_and(|stamp| stamp.is_some()) {
                    let kept = printable(&keep.target(path).to_string_lossy());
                    finding.detail = format!("{}; kept: {kept}", finding.detail);
                }
            }
            if !known.insert((finding.kind.clone(), finding.path.clone())) {
                continue;
            }
            let count = counts.entry(finding.kind.clone()).or_insert(0usize);
            *count += 1;
            if *count <= MOST {
                record(finding);
                checked.findings.push(finding.clone());
            }
        }
        faults.retain(|fault| !fault.steps.is_empty());
        if faults.is_empty() {
            checked.failed.clear();
            name_planted(&case, &mut checked, record);
            checked.warnings.extend(left_out(&counts));
            return Ok(checked);
        }
        // What only takes away comes first: it works on a full disk, and makes room.
        faults.sort_by_key(|fault| {
            !fault.steps.iter().all(|step| matches!(step, Step::Remove { .. } | Step::Unlock { .. }))
        });
        checked.failed.clear();
        let mut done = false;
        for fault in &faults {
            match fault.steps.iter().try_for_each(|step| restore::apply(step, keep, &mut checked.warnings)) {
                Ok(()) => done = true,
                Err(error) => checked.failed.push(error),
            }
        }
        if !done {
            checked.warnings.extend(left_out(&counts));
            return Ok(checked);
        }
    }
    let left = judge(&case, false, &mut Vec::new())?;
    for finding in left.into_iter().filter(|f| !f.steps.is_empty()).filter_map(|fault| fault.finding) {
        checked.failed.push(restore::Error::Stubborn { path: finding.path });
    }
    checked.warnings.extend(left_out(&counts));
    Ok(checked)
}

/// What to say of findings that are too many to be listed.
fn left_out(counts: &BTreeMap<String, usize>) -> Vec<String> {
    let many = counts.iter().filter(|(_, count)| **count > MOST);
    many.map(|(kind, count)| format!("{} more findings of {kind}, dealt with like the others", count - MOST))
        .collect()
}

/// Takes away a `commondir` that was planted in a main git dir, for which no baseline can be taken because
/// [`crate::layout::find`] refuses the repository ([`crate::layout::Error::CommondirPlanted`] has the path).
///
/// # Errors
/// It cannot be removed.
pub fn disarm(commondir: &Path, keep: &Keep) -> Result<Checked, restore::Error> {
    let mut fault = area::commondir_planted(commondir.to_owned());
    let mut checked = Checked::default();
    if let Some(finding) = &mut fault.finding {
        finding.detail = format!("{}; kept: {}", finding.detail, keep.target(commondir).display());
        checked.findings.push(finding.clone());
    }
    fault.steps.iter().try_for_each(|step| restore::apply(step, keep, &mut checked.warnings))?;
    Ok(checked)
}

/// Judges everything once. Only reads.
fn judge(case: &Case<'_>, first: bool, warnings: &mut Vec<String>) -> Result<Vec<Fault>, Error> {
    let mut faults = Vec::new();
    area::judge_all(case, first, &mut faults, warnings)?;
    pointers::judge(case, &mut faults);
    Ok(faults)
}

/// Names repositories that a turn has planted in the checkouts. Done when all else is as it should be: a `.git`
/// file that was put right does not lead anywhere else any more.
fn name_planted(case: &Case<'_>, checked: &mut Checked, record: &mut dyn FnMut(&Finding)) {
    let mut faults = Vec::new();
    let repository = &case.baseline.repository;
    let mut tops: Vec<&Path> = Vec::new();
    match &repository.checkout {
        Checkout::Main { top } | Checkout::Linked { top, .. } => tops.push(top),
        Checkout::Bare => {}
    }
    tops.extend(repository.session_folders.iter().map(PathBuf::as_path));
    let base = &repository.common_dir;
    attempt(planted::judge(case, &tops, &mut faults), base, &mut faults);
    for area in &case.baseline.areas {
        if let (Some(top), Ok(dir)) = (&area.checkout, Dir::open(&area.path)) {
            attempt(planted::judge_links(case, &dir, top, &area.gitlinks, &mut faults), base, &mut faults);
        }
    }
    for finding in faults.into_iter().filter_map(|fault| fault.finding) {
        if !checked.findings.iter().any(|known| known.kind == finding.kind && known.path == finding.path) {
            record(&finding);
            checked.findings.push(finding);
        }
    }
}

/// The faults of a configuration file.
pub(super) fn verdict(
    path: &Path,
    existed: bool,
    mode: u32,
    verdict: Verdict,
    entry: Option<&str>,
) -> Vec<Fault> {
    let mut faults = Vec::new();
    for what in verdict.reported {
        faults.push(Fault::reported("remote-changed", path, what).entry(entry));
    }
    let Some(bytes) = verdict.bytes else { return faults };
    let what = verdict.undone.join(", ");
    let fault = if existed || !bytes.trim_ascii().is_empty() {
        let detail = format!("{what}; undone");
        Fault::restored("config-changed", path, detail).write(path, bytes, mode)
    } else {
        Fault::removed("config-added", path, format!("{what}; removed")).set_aside(path)
    };
    faults.push(fault.entry(entry));
    faults
}

/// Judges the index of a git dir or an entry. `gitlinks` are those that were in it, where that is known.
///
/// An index is never rewritten: it may hold somebody's staged work, and git refuses most of what is wrong.
pub(super) fn index(
    case: &Case<'_>,
    dir: &Dir,
    checkout: Option<&Path>,
    entry: Option<&str>,
    gitlinks: Option<&[Bytes]>,
    faults: &mut Vec<Fault>,
) -> Result<(), read::Error> {
    let path = dir.path().join("index");
    let Some(stamp) = dir.lstat("index")? else { return Ok(()) };
    if stamp.kind() != Kind::File || (!since(&stamp, case.taken()) && case.depth == Depth::Changed) {
        return Ok(());
    }
    let place = checkout.map_or_else(String::new, |top| format!(" -C {}", top.display()));
    let rebuild = format!("`git{place} read-tree HEAD` rebuilds it");
    let mut report = |kind: &str, detail: String| {
        faults.push(Fault::reported(kind, &path, detail).entry(entry));
    };
    let mut names = vec![std::ffi::OsString::from("index")];
    let mut links = Vec::new();
    while let Some(name) = names.pop() {
        let content = match dir.read(&name, index::LIMIT) {
            Ok(Some(content)) => content,
            Ok(None) => continue,
            Err(read::Error::TooBig { size, .. }) => {
                report("index-too-large", format!("an index of {size} bytes was not judged; {rebuild}"));
                continue;
            }
            Err(read::Error::NotRegular { .. }) => continue,
            Err(error) => return Err(error),
        };
        match index::parse(&content.bytes, case.hash) {
            Ok(found) => {
                if !found.hostile.is_empty() {
                    let list = found.hostile.iter().map(|(path, why)| format!("{path:?} ({why})"));
                    let list = list.collect::<Vec<_>>().join(", ");
                    report(
                        "index-hostile-path",
                        format!(
                            "the index would make a checkout write {list}: do not run checkout or restore before {rebuild}"
                        ),
                    );
                }
                links.extend(found.gitlinks);
                // A shared index does not build upon another one.
                names.extend(found.shared.filter(|_| name == "index").map(Into::into));
            }
            Err(error) => report("index-damaged", format!("{error}; {rebuild}")),
        }
    }
    for link in links {
        let bytes = Bytes(link.into());
        if gitlinks.is_some_and(|known| known.contains(&bytes)) {
            continue;
        }
        let Some(top) = checkout else { continue };
        let nested = top.join(bytes.path()).join(".git");
        if is_submodule(&nested, case, dir)? {
            continue;
        }
        let shown = String::from_utf8_lossy(&bytes.0).escape_debug().to_string();
        report(
            "gitlink-added",
            format!(
                "{shown} is a repository of its own in the index, and `git status` runs what it is configured to: `git{place} update-index --force-remove -- {shown}` takes it out"
            ),
        );
    }
    Ok(())
}

/// Whether a nested `.git` is absent, or that of a submodule whose git dir is judged with the others.
pub(super) fn is_submodule(nested: &Path, case: &Case<'_>, dir: &Dir) -> Result<bool, read::Error> {
    let content = match read::file(nested, read::POINTER_LIMIT) {
        Ok(None) => return Ok(true),
        Ok(Some(content)) => content.bytes,
        // What cannot be read now can be made readable later.
        Err(_) => return Ok(false),
    };
    let Some(named) = crate::entry::gitfile_path(&content) else { return Ok(false) };
    let git_dir = crate::entry::real(&nested.parent().unwrap_or(Path::new("/")).join(named));
    let common = &case.baseline.repository.common_dir;
    Ok(modules::discover(dir.path())?.contains(&git_dir) || modules::discover(common)?.contains(&git_dir))
}

/// An error and its causes, for reports.
#[must_use]
pub fn explain(error: &restore::Error) -> String {
    chain(error)
}
