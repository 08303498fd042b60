//! Protection `shadow`, with the program and real git. Most tests are a loss, a breakage or an escape that a simpler
//! import suffered: `rule_N` names it. Each shows first that the situation is the dangerous one, and then that nothing
//! is lost, on the host, in the session, or of anybody's work.

#![cfg(test)]

mod borrowed;
mod ends;
mod hostile;
mod indexes;
mod kills;
mod layouts;
mod references;
mod remotes;
mod sessions;
mod units;
mod worktrees;

use std::path::{Path, PathBuf};

use codeoid_tests::{Outcome, Place, Repo, Turn};
use serde_json::Value;

/// The option.
const SHADOW: [&str; 2] = ["--git-protection", "shadow"];

/// A turn of session `s1`.
fn turn<'a>(place: &'a Place, repo: &Repo) -> Turn<'a> {
    place.turn(&repo.workspace).options(SHADOW).env("REMOTE", &repo.remote)
}

/// A turn that runs a script, waits until the host has acted, and runs another one. Every command of both has to work.
#[track_caller]
fn around(place: &Place, repo: &Repo, before: &str, after: &str, host: impl FnOnce()) -> Outcome {
    around_with(turn(place, repo), before, after, host)
}

#[track_caller]
fn around_with(turn: Turn<'_>, before: &str, after: &str, host: impl FnOnce()) -> Outcome {
    let script = format!("set -e\n{before}\necho ready; read go\n{after}\n:");
    let mut running = turn.sh(&script).spawn();
    running.expect("ready");
    host();
    running.say("go");
    let outcome = running.finish();
    outcome.expect_ok();
    outcome
}

/// A turn that runs a script, every command of which has to work.
#[track_caller]
fn does(place: &Place, repo: &Repo, script: &str) -> Outcome {
    let outcome = turn(place, repo).sh(&format!("set -e\n{script}\n:")).run();
    outcome.expect_ok();
    outcome
}

/// Runs a script on the host, every command of which has to work; what it printed.
#[track_caller]
fn host(place: &Place, directory: &Path, script: &str) -> String {
    let finished = place.sh(directory, &format!("set -e\n{script}\n:"));
    finished.expect_ok().out().trim_end().to_owned()
}

/// What the user is told.
fn said(outcome: &Outcome) -> String {
    format!("{} {} {}", outcome.report()["findings"], outcome.report()["warnings"], outcome.err())
}

#[track_caller]
fn assert_no_findings(outcome: &Outcome) {
    assert!(outcome.findings().is_empty(), "{outcome}");
}

/// The one finding of this kind.
#[track_caller]
fn finding(outcome: &Outcome, kind: &str) -> Value {
    let mut found: Vec<Value> =
        outcome.findings().into_iter().filter(|finding| finding["kind"] == kind).collect();
    assert_eq!(found.len(), 1, "findings of kind {kind}: {outcome}");
    found.remove(0)
}

/// The commands that a finding names, as a person would copy them.
#[track_caller]
fn commands(finding: &Value) -> Vec<String> {
    let detail = finding["detail"].as_str().expect("a detail");
    detail.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The refs under which the host keeps what it could not take over.
fn kept(place: &Place, repo: &Repo) -> Vec<String> {
    let refs = place.git(&repo.common, &["for-each-ref", "--format=%(refname)", "refs/codeoid/"]);
    refs.lines().map(str::to_owned).collect()
}

/// The folder of a session's worktrees.
#[track_caller]
fn folder(repo: &Repo, session: &str) -> PathBuf {
    let all = repo.top.join("repo-worktrees");
    let mut entries = std::fs::read_dir(&all).unwrap_or_else(|error| panic!("{}: {error}", all.display()));
    let found = entries.find_map(|entry| {
        let path = entry.expect("readable").path();
        let name = path.file_name().and_then(|name| name.to_str())?.to_owned();
        name.starts_with(&format!("{session}-")).then_some(path)
    });
    found.unwrap_or_else(|| panic!("session {session} has no folder in {}", all.display()))
}

/// The session's shadows.
fn shadow(place: &Place) -> PathBuf {
    let found = place.sh(&place.state(), "ls -d sessions/*/shadow/*");
    place.state().join(found.expect_ok().out().lines().next().expect("there is one"))
}

/// The subjects of a branch's commits, the latest first.
#[track_caller]
fn subjects(place: &Place, repo: &Repo, branch: &str) -> Vec<String> {
    place.git(&repo.common, &["log", "--format=%s", branch]).lines().map(str::to_owned).collect()
}

/// Nothing is wrong with the repository, and nothing of an import lies in it.
#[track_caller]
fn assert_sound(place: &Place, repo: &Repo) {
    let fsck = place.sh(&repo.common, "git fsck --strict --no-progress --no-dangling 2>&1");
    assert!(fsck.ok() && !fsck.out().contains("error"), "{fsck}");
    assert_clean(place, repo);
}

/// Nothing of an import lies in the repository or in the workspace.
#[track_caller]
fn assert_clean(place: &Place, repo: &Repo) {
    let residue =
        "find . '(' -name '*.lock' -o -name '*.keep' -o -name '*.codeoid*' -o -name 'tmp_*' ')' -print";
    assert_eq!(host(place, &repo.common, residue), "", "left in the repository");
    assert_eq!(host(place, &repo.workspace, residue), "", "left in the workspace");
}
