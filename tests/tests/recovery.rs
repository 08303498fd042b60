//! kill -9 at every step of a turn: what comes next, a turn or `check`, ends in the state of a clean finish.
//!
//! Builds with debug assertions honour `CODEOID_TEST_STOP_AT=STEP`: the shim kills itself there.

#![cfg(test)]

use std::fs;
use std::path::Path;
use std::time::Duration;

use codeoid_tests::{Layout, Place, Repo, Snapshot, each_identity, processes_with, wait_until};
use nix::sys::signal::Signal;

/// The steps of a turn at which it may die.
const STEPS: [&str; 9] =
    ["resolved", "journal", "bundle", "started", "recorded", "running", "finishing", "restored", "cleaned"];

/// What a turn does: honest work, and one thing that a finish has to undo.
const WORK: &str = "git worktree add -q -b work \"$CODEOID_WORKTREE_DIR/work\" && \
     cd \"$CODEOID_WORKTREE_DIR/work\" && \
     echo x >x && git add x && git commit -qm Work; cd \"$OLDPWD\"; \
     ln -sf ../../../outside/precious .git/FETCH_HEAD; \
     git clone -q --bare . /tmp/e; echo /tmp/e >.git/commondir; true";

/// The repository without what depends on time and names of the test.
fn state(repo: &Repo) -> Snapshot {
    let skip = |path: &Path| {
        let text = path.to_string_lossy();
        let volatile = ["logs", "index", "objects", "COMMIT_EDITMSG", "ORIG_HEAD"];
        !volatile.iter().any(|name| path.file_name().is_some_and(|file| file == *name))
            && !text.ends_with("gitdir")
    };
    Snapshot::filtered(&repo.common, false, &skip)
}

fn journals(place: &Place) -> usize {
    fs::read_dir(place.state().join("turns")).map_or(0, Iterator::count)
}

/// Nothing of a sandbox of this place is running.
fn assert_quiet(place: &Place) {
    let home = format!("HOME={}", place.home().display());
    let quiet = wait_until(Duration::from_secs(3), || processes_with(&home).is_empty());
    assert!(quiet, "still running: {:?}", processes_with(&home));
}

fn dies_at(place: &Place, step: &str, recover: impl Fn(&Place, &Repo)) {
    let repo = Repo::below(place, Layout::Main, "home/crash");
    let outcome = place.turn(&repo.workspace).env("CODEOID_TEST_STOP_AT", step).sh(WORK).run();
    assert_eq!(outcome.signal(), Some(9), "the step {step} is not reached: {outcome}");
    assert_quiet(place);
    recover(place, &repo);
    assert_eq!(journals(place), 0, "{step}: an unfinished turn is left");
    assert!(!repo.common.join("commondir").exists(), "{step}");
    assert!(!repo.common.join("FETCH_HEAD").is_symlink(), "{step}");
    repo.assert_sound(place);
    let ran = ["running", "finishing", "restored", "cleaned"].contains(&step);
    let worktrees = repo.top.join("repo-worktrees");
    // A turn that never ran leaves nothing; one that ran leaves its work.
    let work = place.sh(&repo.workspace, "git log -1 --format=%s work").out();
    if ran && step != "running" {
        assert_eq!(work, "Work\n", "{step}");
        assert_eq!(place.git(&repo.workspace, &["status", "--porcelain"]), "", "{step}");
    }
    if !ran {
        assert!(!worktrees.exists(), "{step}: an empty folder is left");
    }
    let audit = fs::read_to_string(place.state().join("audit.jsonl")).unwrap_or_default();
    if ran && step != "cleaned" {
        assert!(audit.contains("turn.recovered"), "{step}: {audit}");
    }
}

fn a_next_turn_recovers(place: &Place) {
    for step in STEPS {
        let place = Place::new(place.identity(), step);
        dies_at(&place, step, |place, repo| {
            let outcome = place.turn(&repo.workspace).sh("git status --porcelain").run();
            outcome.expect_ok();
        });
    }
}

fn a_turn_of_another_session_recovers(place: &Place) {
    for step in ["running", "finishing"] {
        let place = Place::new(place.identity(), step);
        dies_at(&place, step, |place, repo| {
            place.turn(&repo.workspace).session("other").command(["true"]).run().expect_ok();
        });
    }
}

fn check_recovers(place: &Place) {
    for step in STEPS {
        let place = Place::new(place.identity(), step);
        dies_at(&place, step, |place, repo| {
            let check = place.shim(&["check", "--repo", repo.workspace.to_str().unwrap(), "--json"]);
            assert!(check.code() < 125, "{check}");
            assert!(check.json().is_object() || check.json().is_array());
        });
    }
}

fn a_recovered_repository_equals_a_cleanly_finished_one(place: &Place) {
    let clean = Place::new(place.identity(), "clean");
    let expected = Repo::below(&clean, Layout::Main, "home/crash");
    clean.turn(&expected.workspace).sh(WORK).run().expect_ok();
    let expected = state(&expected);
    for step in ["finishing", "restored"] {
        let place = Place::new(place.identity(), step);
        let repo = Repo::below(&place, Layout::Main, "home/crash");
        let outcome = place.turn(&repo.workspace).env("CODEOID_TEST_STOP_AT", step).sh(WORK).run();
        assert_eq!(outcome.signal(), Some(9), "{outcome}");
        let check = place.shim(&["check", "--repo", repo.workspace.to_str().unwrap()]);
        assert!(check.code() < 125, "{check}");
        let names = |snapshot: &Snapshot| {
            let empty = Snapshot::of(Path::new("/nonexistent"));
            empty
                .added(snapshot)
                .into_iter()
                .filter(|path| path.file_name().is_some_and(|name| name != "packed-refs"))
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&expected), names(&state(&repo)), "{step}");
    }
}

fn a_killed_shim_is_recovered_whenever_it_dies(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    for milliseconds in [0, 3, 6, 10, 15, 25, 40, 60, 90, 150] {
        let mut command = place
            .turn(&repo.workspace)
            .sh("git worktree add -q --detach \"$CODEOID_WORKTREE_DIR/x$$\"; sleep 0.05")
            .to_command();
        command
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        let _ = child.kill();
        let _ = child.wait();
    }
    assert_quiet(place);
    place.turn(&repo.workspace).sh("git worktree list >/dev/null && git worktree prune").run().expect_ok();
    assert_eq!(journals(place), 0);
    assert_eq!(place.git(&repo.workspace, &["status", "--porcelain"]), "");
    place
        .sh(
            &repo.workspace,
            "git worktree add -q --detach ../free && git worktree remove ../free && git config a.b c",
        )
        .expect_ok();
    // A git that is killed in the middle of `worktree add` leaves half an entry, with or without a sandbox.
    place.sh(&repo.common, "rm -rf worktrees/x*").expect_ok();
    repo.assert_sound(place);
}

fn a_running_turn_is_not_taken_for_a_dead_one(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let mut running =
        place.turn(&repo.workspace).sh("echo ready; read go; git commit -q --allow-empty -m Alive").spawn();
    running.expect("ready");
    let check = place.shim(&["check", "--repo", repo.workspace.to_str().unwrap(), "--json"]);
    assert!(check.code() < 125, "{check}");
    assert_eq!(journals(place), 1);
    running.say("go");
    running.finish().expect_ok();
    assert_eq!(place.git(&repo.workspace, &["log", "-1", "--format=%s"]), "Alive");
}

fn ten_crashes_in_a_row_leave_nothing(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    for number in 0..10 {
        let script = format!(
            "git worktree add -q --detach \"$CODEOID_WORKTREE_DIR/w{number}\" && \
                 git worktree lock \"$CODEOID_WORKTREE_DIR/w{number}\"; echo ready; sleep 600"
        );
        let mut running = place.turn(&repo.workspace).sh(&script).spawn();
        running.expect("ready");
        running.signal(Signal::SIGKILL);
        assert_eq!(running.finish().signal(), Some(9));
    }
    let outcome = place
        .turn(&repo.workspace)
        .sh("for w in \"$CODEOID_WORKTREE_DIR\"/w*; \
         do git worktree remove --force --force \"$w\"; done; git worktree list | wc -l")
        .run();
    assert_eq!(outcome.expect_ok().out(), "2", "{outcome}");
    assert_eq!(journals(place), 0);
    assert!(!repo.top.join("repo-worktrees").exists());
    assert_quiet(place);
}

each_identity! {
    a_next_turn_recovers,
    a_turn_of_another_session_recovers,
    check_recovers,
    a_recovered_repository_equals_a_cleanly_finished_one,
    a_killed_shim_is_recovered_whenever_it_dies,
    a_running_turn_is_not_taken_for_a_dead_one,
    ten_crashes_in_a_row_leave_nothing,
}
