//! kill -9 in the middle of a turn or of its import: what comes next, a turn or `check`, brings everything over once.

use std::time::Duration;

use codeoid_tests::{Layout, Place, Repo, Turn, each_identity, processes_with, wait_until};
use nix::sys::signal::Signal;

use crate::{SHADOW, assert_no_findings, assert_sound, does, folder, host, subjects, turn};

/// Commits in the checkout and in a worktree, and everything else that an import brings.
const WORK: &str = "echo 1 >f1; git add f1; git commit -q -m agent; echo s >s; git add s
    git worktree add -q -b mine \"$CODEOID_WORKTREE_DIR/mine\"; cd \"$CODEOID_WORKTREE_DIR/mine\"; echo m >m; git add m; git commit -q -m mine
    git branch other; git tag t; cd - >/dev/null; git branch -q -D rival";

/// Nothing of a sandbox of this place is running.
fn assert_quiet(place: &Place) {
    let home = format!("HOME={}", place.home().display());
    let quiet = wait_until(Duration::from_secs(5), || processes_with(&home).is_empty());
    assert!(quiet, "still running: {:?}", processes_with(&home));
}

fn recover(place: &Place, repo: &Repo, how: &str) {
    match how {
        "check" => {
            let check = place.shim(&["check", "--repo", repo.workspace.to_str().unwrap(), "--json"]);
            assert!(check.code() < 125, "{check}");
        }
        "other" => {
            turn(place, repo).session("other").sh("true").run().expect_ok();
        }
        _ => {
            assert_no_findings(&does(place, repo, "git status --porcelain >/dev/null"));
        }
    }
}

/// All of [`WORK`] is on the host, once, and nothing else is left.
fn assert_there(place: &Place, repo: &Repo, what: &str) {
    let state = "git log --format=%s main; git status --porcelain; git branch --format='%(refname:short)' | tr '\\n' ' '; git tag | tr '\\n' ' '";
    assert_eq!(
        host(place, &repo.workspace, state),
        "agent\nThird\nSecond\nFirst\nA  s\nfeature human main mine other t v1 v2",
        "{what}"
    );
    let mine = folder(repo, "s1").join("mine");
    assert_eq!(host(place, &mine, "git status --porcelain; git log -2 --format=%s"), "mine\nagent", "{what}");
    let list = host(place, &repo.workspace, "git worktree list --porcelain");
    assert!(!list.contains("locked") && !list.contains("prunable"), "{what}: {list}");
    assert_eq!(std::fs::read_dir(place.state().join("turns")).map_or(0, Iterator::count), 0, "{what}");
    assert_sound(place, repo);
    assert_quiet(place);
}

fn a_killed_shim_loses_no_commit(place: &Place) {
    for how in ["turn", "other", "check"] {
        let place = Place::new(place.identity(), how);
        let repo = Repo::new(&place, Layout::Main);
        let mut running = turn(&place, &repo).sh(&format!("set -e; {WORK}\necho ready; sleep 600")).spawn();
        running.expect("ready");
        running.signal(Signal::SIGKILL);
        assert_eq!(running.finish().signal(), Some(9));
        assert_quiet(&place);
        // The control: what belongs to the checkout is not on the host yet.
        assert_eq!(subjects(&place, &repo, "main")[0], "Third");
        recover(&place, &repo, how);
        assert_there(&place, &repo, how);
    }
}

fn a_kill_at_any_step_is_recovered(place: &Place) {
    for step in ["shadow", "bundle", "started", "running", "finishing", "restored", "cleaned"] {
        let how = if step == "restored" { "check" } else { "turn" };
        let place = Place::new(place.identity(), step);
        let repo = Repo::new(&place, Layout::Main);
        let killed =
            turn(&place, &repo).env("CODEOID_TEST_STOP_AT", step).sh(&format!("set -e; {WORK}")).run();
        assert_eq!(killed.signal(), Some(9), "{step} is not reached: {killed}");
        assert_quiet(&place);
        recover(&place, &repo, how);
        if ["finishing", "restored", "cleaned"].contains(&step) {
            assert_there(&place, &repo, step);
        } else if step != "running" {
            // The command never ran; the session begins as if it had not been.
            assert_no_findings(&does(&place, &repo, WORK));
            assert_there(&place, &repo, step);
        }
        assert_sound(&place, &repo);
    }
}

fn an_import_that_is_killed_anywhere_is_finished_by_the_next_serial(place: &Place) {
    // Again and again, at other moments: each finds what the one before left, locks and half-made entries included.
    let repo = Repo::new(place, Layout::Main);
    let mut expected = vec![];
    for number in 0..14_u64 {
        let script = format!(
            "echo {number} >f{number}; git add f{number}; git commit -q -m n{number}; git branch b{number}; git tag t{number}
             git worktree add -q -b w{number} \"$CODEOID_WORKTREE_DIR/w{number}\"; git -C \"$CODEOID_WORKTREE_DIR/w{number}\" commit -q --allow-empty -m w{number}
             echo done; exec sleep 0"
        );
        expected.push(number);
        let mut running = turn(place, &repo).sh(&script).spawn();
        running.expect("done");
        std::thread::sleep(Duration::from_millis(number * number / 2));
        if !running.has_ended() {
            running.signal(Signal::SIGKILL);
        }
        let _ = running.finish();
    }
    assert_quiet(place);
    let check = place.shim(&["check", "--repo", repo.workspace.to_str().unwrap(), "--json"]);
    assert!(check.code() < 125, "{check}");
    assert_no_findings(&does(place, &repo, "git status --porcelain; git fsck --no-progress --no-dangling"));
    let found = subjects(place, &repo, "main");
    for number in &expected {
        assert!(found.contains(&format!("n{number}")), "n{number} is lost: {found:?}");
        host(
            place,
            &repo.workspace,
            &format!("git rev-parse -q --verify b{number}; git rev-parse -q --verify t{number}"),
        );
        assert_eq!(subjects(place, &repo, &format!("w{number}"))[0], format!("w{number}"));
        let worktree = folder(&repo, "s1").join(format!("w{number}"));
        assert_eq!(
            host(place, &worktree, "git status --porcelain; git symbolic-ref --short HEAD"),
            format!("w{number}")
        );
    }
    assert_eq!(host(place, &repo.workspace, "git status --porcelain"), "");
    assert_eq!(host(place, &repo.workspace, "git worktree list --porcelain | grep -c '^worktree '"), "16");
    repo.assert_sound(place);
    assert_sound(place, &repo);
}

fn locks_of_a_killed_import_do_not_stop_the_human(place: &Place) {
    // What an import holds, left by hand as a kill leaves it.
    let repo = Repo::new(place, Layout::Main);
    let text = "codeoid-shim imports what a session did; this lock is held for milliseconds";
    let leave = format!(
        "echo '{text}' >.git/index.lock; cp .git/index.lock .git/HEAD.lock; cp .git/index.lock .git/refs/heads/main.lock; touch .git/index.codeoid .git/HEAD.codeoid"
    );
    does(place, &repo, "true");
    host(place, &repo.workspace, &leave);
    let state = place.state().join("sessions");
    host(place, &state, "for shadow in */shadow/*; do touch \"$shadow/importing\"; done");
    let outcome = does(place, &repo, WORK);
    assert_no_findings(&outcome);
    assert_there(place, &repo, "locks");
}

fn nothing_is_left_in_the_checkout_or_the_repository(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let tree = |repo: &Repo| {
        codeoid_tests::Snapshot::filtered(&repo.workspace, false, &|path| {
            path != std::path::Path::new(".git")
        })
    };
    let names = |repo: &Repo| host(place, &repo.common, "find . -not -path './objects/*' | sort");
    let (before, listed) = (tree(&repo), names(&repo));
    let mut running = turn(place, &repo).sh("echo ready; sleep 600").spawn();
    running.expect("ready");
    before.assert_same(&tree(&repo), "the checkout, during the turn");
    assert_eq!(names(&repo), listed, "the repository, during the turn");
    running.signal(Signal::SIGKILL);
    let _ = running.finish();
    before.assert_same(&tree(&repo), "the checkout, after the kill");
    assert_eq!(names(&repo), listed, "the repository, after the kill");
    assert_no_findings(&does(place, &repo, "true"));
    before.assert_same(&tree(&repo), "the checkout, afterwards");
    assert_eq!(names(&repo), listed, "the repository, afterwards");
    assert!(!repo.top.join("repo-worktrees").exists());
}

fn the_same_with_bubblewrap(place: &Place) {
    let bwrap = |turn: Turn<'_>, script: &str| {
        turn.options(SHADOW).options(["--executor", "bwrap"]).sh(script).spawn()
    };
    let repo = Repo::new(place, Layout::Main);
    let mut running = bwrap(place.turn(&repo.workspace), &format!("set -e; {WORK}\necho ready; sleep 600"));
    running.expect("ready");
    running.signal(Signal::SIGKILL);
    assert_eq!(running.finish().signal(), Some(9));
    assert_quiet(place);
    let outcome =
        bwrap(place.turn(&repo.workspace), "git log -1 --format=%s; git status --porcelain").finish();
    assert_eq!(outcome.expect_ok().out(), "agent\nA  s", "{outcome}");
    assert_eq!(outcome.report()["executor"], "bwrap", "{outcome}");
    assert_no_findings(&outcome);
    assert_there(place, &repo, "bwrap");
}

each_identity! {
    a_killed_shim_loses_no_commit,
    a_kill_at_any_step_is_recovered,
    an_import_that_is_killed_anywhere_is_finished_by_the_next_serial,
    locks_of_a_killed_import_do_not_stop_the_human,
    nothing_is_left_in_the_checkout_or_the_repository,
    the_same_with_bubblewrap,
}
