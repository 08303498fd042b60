//! Two sessions and a human in one repository at the same time: nothing is lost, nothing is undone.

#![cfg(test)]

use std::time::Duration;

use codeoid_tests::{Layout, Place, Repo, each_identity, wait_until};

/// How often each of them commits.
const COMMITS: u32 = 15;

/// Adds a worktree and commits in it, again and again, with everything that runs into the others on the way.
///
/// git itself has races here: it writes a new entry's `commondir` in place, and another git that reads it in that
/// instant dies ("failed to read …/commondir: Success"); and it does not wait for the lock of a ref. So each
/// step may be repeated, as a person would (`-B`: the first try may have made the branch).
fn work(name: &str, folder: &str) -> String {
    format!(
        r#"set -e
        again() {{ for pause in 0.02 0.05 0.1 0.2 0.5; do "$@" && return 0; sleep $pause; done; "$@"; }}
        again git worktree add -q -B {name} {folder}/{name} v2; cd {folder}/{name}; i=0
        while [ $i -lt {COMMITS} ]; do
            i=$((i + 1)); echo $i >{name}.$i; again git add .; again git commit -q -m '{name} '$i
            again git tag -f {name}-$i >/dev/null; again git branch -q -f {name}-side HEAD
            [ $((i % 5)) -ne 0 ] || git pack-refs --all 2>/dev/null || :
            if [ $((i % 4)) -eq 0 ]; then
                again git worktree add -q --detach {folder}/{name}-$i
                again git worktree remove {folder}/{name}-$i
            fi
            [ $((i % 6)) -ne 0 ] || again git worktree prune
        done"#
    )
}

fn all_commits_are_there(place: &Place, repo: &Repo, name: &str) {
    let subjects = place.git(&repo.workspace, &["log", "--format=%s", name]);
    for number in 1..=COMMITS {
        assert!(
            subjects.lines().any(|line| line == format!("{name} {number}")),
            "{name} {number} is lost:\n{subjects}"
        );
        place.git(&repo.workspace, &["rev-parse", &format!("{name}-{number}")]);
    }
}

fn two_sessions_and_a_human_serial(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let mut turns: Vec<_> = ["one", "two"]
        .map(|session| {
            place
                .turn(&repo.workspace)
                .session(session)
                .sh(&work(session, "\"$CODEOID_WORKTREE_DIR\""))
                .spawn()
        })
        .into();
    let elsewhere = place.make("home/elsewhere");
    let human = place.sh(&repo.workspace, &work("hand", elsewhere.to_str().unwrap()));
    human.expect_ok();
    assert!(wait_until(Duration::from_secs(60), || turns.iter_mut().all(codeoid_tests::Running::has_ended)));
    for turn in turns {
        let outcome = turn.finish();
        outcome.expect_ok();
        for finding in outcome.findings() {
            assert_eq!(finding["action"], "reported", "somebody's work was undone: {outcome}");
        }
    }
    for name in ["one", "two", "hand"] {
        all_commits_are_there(place, &repo, name);
    }
    repo.assert_sound(place);
    let list = place.git(&repo.workspace, &["worktree", "list", "--porcelain"]);
    assert_eq!(list.matches("worktree ").count(), 5, "{list}");
}

fn turns_of_one_session_overlap_serial(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let turns: Vec<_> = ["one", "two"]
        .map(|name| {
            place.turn(&repo.workspace).session("same").sh(&work(name, "\"$CODEOID_WORKTREE_DIR\"")).spawn()
        })
        .into();
    for turn in turns {
        turn.finish().expect_ok();
    }
    for name in ["one", "two"] {
        all_commits_are_there(place, &repo, name);
    }
    repo.assert_sound(place);
}

fn many_short_turns_at_once_serial(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let turns: Vec<_> = (0..20)
        .map(|number| {
            let script = format!(
                "add() {{ git worktree add -q -B t{number} \"$CODEOID_WORKTREE_DIR/t{number}\"; }}; \
                 add || {{ sleep 0.2; add; }} || {{ sleep 0.5; add; }}"
            );
            place.turn(&repo.workspace).session(format!("s{}", number % 5)).sh(&script).spawn()
        })
        .collect();
    for turn in turns {
        let outcome = turn.finish();
        outcome.expect_ok();
        assert!(outcome.findings().is_empty(), "{outcome}");
    }
    assert_eq!(place.git(&repo.workspace, &["worktree", "list"]).lines().count(), 22);
    repo.assert_sound(place);
}

/// A human makes and removes a worktree under one name, again and again, beside turns that touch nothing: each look of
/// the shim finds the entry whole, half made, half removed, gone, or another one. Nothing is put back.
fn a_worktree_that_comes_and_goes_is_the_humans_own_serial(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let stop = place.home().join("stop");
    let elsewhere = place.make("home/elsewhere").join("w");
    let script = format!(
        "i=0; while [ ! -e {stop} ]; do i=$((i + 1)); git worktree add -q -b come-$i {at} || exit 1; sleep 0.03
         [ \"$(git -C {at} branch --show-current)\" = come-$i ] || exit 2
         git worktree remove --force {at} || exit 3; sleep 0.01; done",
        stop = stop.display(),
        at = elsewhere.display(),
    );
    let mut human = place.command("/bin/sh");
    human.args(["-c", &script]).current_dir(&repo.workspace).stdin(std::process::Stdio::null());
    let mut human = human.spawn().unwrap();
    let outcomes: Vec<_> = (0..30)
        .map(|number| {
            let script = format!("sleep 0.0{}", number % 9);
            place.turn(&repo.workspace).session(format!("s{}", number % 3)).sh(&script).run()
        })
        .collect();
    std::fs::write(&stop, "").unwrap();
    assert_eq!(
        human.wait().unwrap().code(),
        Some(0),
        "the human's git failed, or its worktree is on another branch"
    );
    for outcome in outcomes {
        for finding in outcome.expect_ok().findings() {
            assert_eq!(finding["action"], "reported", "the human's work was undone: {outcome}");
        }
    }
    repo.assert_sound(place);
}

/// A turn takes the home layer over from one that ends before it stands itself; a third one finds it there. Each
/// mount of an overlay has a device number of its own: mounting the layer twice is undefined (overlayfs.rst).
fn the_home_layer_is_handed_on_while_a_turn_starts_serial(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let turn = || place.turn(&repo.workspace).session("same");
    let device = "stat -c %d ~";
    let mut first = turn().sh(&format!("{device}; echo up; read line || :")).spawn();
    first.expect("up");
    let go = place.home().join("go");
    let held = turn().env("CODEOID_TEST_WAIT_AT", "running").env("CODEOID_TEST_WAIT_FOR", &go);
    let second = held.sh(device).spawn();
    // It has the neighbour's namespaces, and is held before it says that it has its own.
    let alive = || {
        std::fs::read_dir(place.state().join("sessions")).into_iter().flatten().flatten().any(|session| {
            std::fs::read_dir(session.path().join("alive")).is_ok_and(|turns| turns.count() == 2)
        })
    };
    assert!(wait_until(Duration::from_secs(10), alive), "the second turn is not registered while it starts");
    let first = first.finish();
    let third = turn().sh(device).run();
    std::fs::write(&go, "").unwrap();
    let second = second.finish();
    let devices = [&first, &second, &third]
        .map(|outcome| outcome.expect_ok().out().lines().next().unwrap_or_default().to_owned());
    assert_eq!(devices[0], devices[1], "the second took the first one's mount");
    assert_eq!(devices[1], devices[2], "the third mounted the layer a second time");
}

/// Whoever has the session's lock may be slow, or stopped; a turn that waits for it is still the caller's.
fn a_turn_that_waits_for_its_session_obeys(place: &Place) {
    use nix::fcntl::{Flock, FlockArg};
    use nix::sys::signal::Signal;
    let repo = Repo::new(place, Layout::Main);
    place.turn(&repo.workspace).sh("true").run().expect_ok();
    let sessions = std::fs::read_dir(place.state().join("sessions")).unwrap().flatten();
    let lock = sessions.map(|session| session.path().join("lock")).next().unwrap();
    let held = Flock::lock(std::fs::File::open(&lock).unwrap(), FlockArg::LockExclusive).unwrap();
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&lock).unwrap());
    let waits = |pid: nix::unistd::Pid| {
        let line = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.contains(&"->")
                && fields.contains(&pid.to_string().as_str())
                && fields.iter().any(|field| field.ends_with(&format!(":{inode}")))
        };
        wait_until(Duration::from_secs(10), || {
            std::fs::read_to_string("/proc/locks").unwrap_or_default().lines().any(line)
        })
    };
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130), (Signal::SIGHUP, 129)] {
        let turn = place.turn(&repo.workspace).sh("echo ran").spawn();
        assert!(waits(turn.pid()), "it does not wait for the lock");
        turn.signal(Signal::SIGWINCH);
        std::thread::sleep(Duration::from_millis(100));
        let sent = std::time::Instant::now();
        turn.signal(signal);
        let outcome = turn.finish();
        assert!(sent.elapsed() < Duration::from_secs(3), "{:?}", sent.elapsed());
        outcome.expect_code(code);
        assert_eq!(outcome.out(), "", "{outcome}");
        assert_eq!(outcome.report()["exit"]["signal"], signal as i32, "{outcome}");
        assert!(outcome.report()["warnings"].to_string().contains(signal.as_str()), "{outcome}");
    }
    let outcome = place.turn(&repo.workspace).options(["--timeout", "1s"]).sh("echo ran").run();
    outcome.expect_code(137);
    assert_eq!(outcome.out(), "", "{outcome}");
    assert!(outcome.report()["warnings"].to_string().contains("time limit"), "{outcome}");
    // The wait is part of the time, and what is left of it is the command's.
    let turn = place.turn(&repo.workspace).options(["--timeout", "3s"]).sh("echo ran; sleep 600").spawn();
    assert!(waits(turn.pid()));
    std::thread::sleep(Duration::from_millis(1000));
    let released = std::time::Instant::now();
    drop(held);
    let outcome = turn.finish();
    assert!(released.elapsed() < Duration::from_millis(2800), "{:?}", released.elapsed());
    assert_eq!((outcome.out().as_str(), outcome.code() > 128), ("ran", true), "{outcome}");
    assert!(place.sh(&place.state(), "ls turns").out().is_empty(), "something is left unfinished");
    repo.assert_sound(place);
}

each_identity! {
    a_turn_that_waits_for_its_session_obeys,
    a_worktree_that_comes_and_goes_is_the_humans_own_serial,
    the_home_layer_is_handed_on_while_a_turn_starts_serial,
    two_sessions_and_a_human_serial,
    turns_of_one_session_overlap_serial,
    many_short_turns_at_once_serial,
}
