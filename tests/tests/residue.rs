//! Nothing new in the checkout, the home or `/tmp`: while a turn runs, afterwards, and after kill -9.

#![cfg(test)]

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use codeoid_tests::{Layout, Place, Repo, Requires, Snapshot, each_identity, processes_with, wait_until};
use nix::sys::signal::Signal;

/// The home without the state directory, which is where everything of the shim belongs.
fn home(place: &Place) -> Snapshot {
    Snapshot::filtered(&place.home(), false, &|path| {
        path != Path::new(".local") && path != Path::new("src/repo-worktrees")
    })
}

fn checkout(repo: &Repo) -> Snapshot {
    Snapshot::of(&repo.workspace)
}

/// A home in which nothing that a sandbox likes to place stand-ins for exists, and one thing that it hides.
fn furnish(place: &Place) {
    place.write("home/.ssh/id", "SECRET");
    place.write("home/.local/keep", "x");
}

fn nothing_is_left_during_and_after_a_turn(place: &Place) {
    furnish(place);
    let repo = Repo::new(place, Layout::Main);
    let (home_before, before) = (home(place), checkout(&repo));
    let mut running = place.turn(&repo.workspace).sh("echo ready; read go; true").spawn();
    running.expect("ready");
    home_before.assert_same(&home(place), "the home, during the turn");
    before.assert_same(&checkout(&repo), "the checkout, during the turn");
    running.say("go");
    running.finish().expect_ok();
    home_before.assert_same(&home(place), "the home, after the turn");
    before.assert_same(&checkout(&repo), "the checkout, after the turn");
    assert!(!repo.top.join("repo-worktrees").exists());
}

fn nothing_is_left_after_a_kill(place: &Place) {
    furnish(place);
    let repo = Repo::new(place, Layout::Main);
    let (home_before, before) = (home(place), checkout(&repo));
    let mut running = place.turn(&repo.workspace).sh("echo ready; sleep 600").spawn();
    running.expect("ready");
    running.signal(Signal::SIGKILL);
    assert_eq!(running.finish().signal(), Some(9));
    home_before.assert_same(&home(place), "the home, after the kill");
    before.assert_same(&checkout(&repo), "the checkout, after the kill");
    place
        .sh(&repo.workspace, "git config a.b c && git status && git commit -q --allow-empty -m x")
        .expect_ok();
    place.turn(&repo.workspace).command(["true"]).run().expect_ok();
    assert!(!repo.top.join("repo-worktrees").exists(), "the next turn clears up");
}

fn nothing_is_left_after_a_refusal_or_a_failure(place: &Place) {
    furnish(place);
    let repo = Repo::new(place, Layout::Main);
    let (home_before, before) = (home(place), checkout(&repo));
    let missing = place.at("outside/missing").display().to_string();
    place.turn(&repo.workspace).options(["--write", &missing]).command(["true"]).run().expect_code(125);
    place.turn(&repo.workspace).options(["--worktree-root", "/etc"]).command(["true"]).run().expect_code(125);
    place.turn(&repo.workspace).command(["/no/such/program"]).run().expect_code(127);
    place.turn(&repo.workspace).sh("exit 9").run().expect_code(9);
    home_before.assert_same(&home(place), "the home");
    before.assert_same(&checkout(&repo), "the checkout");
    assert!(!repo.top.join("repo-worktrees").exists());
    assert_eq!(fs::read_dir(place.state().join("turns")).map_or(0, Iterator::count), 0);
}

fn nothing_is_left_in_tmp(place: &Place) {
    if !Requires::Root.met() {
        return;
    }
    let repo = Repo::new(place, Layout::Main);
    // A mount namespace whose /tmp, /var/tmp and /dev/shm are empty shows everything that is made there.
    for (script, kill) in [
        ("touch /tmp/x /var/tmp/x /dev/shm/x", ""),
        ("touch /tmp/x; sleep 600", "& sleep 1; kill -9 $!; wait $! 2>/dev/null"),
    ] {
        let turn = place.turn(&repo.workspace).sh(script).to_command();
        let mut command = std::process::Command::new("unshare");
        let look = format!(
            "for d in /tmp /var/tmp /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs $d; done; \"$@\" {kill}; \
             find /tmp /var/tmp /dev/shm -mindepth 1"
        );
        command.args(["-m", "--propagation", "private", "sh", "-c", &look, "look"]);
        command
            .arg(turn.get_program())
            .args(turn.get_args())
            .env_clear()
            .envs(place.environment())
            .stdin(Stdio::null());
        let finished = place.finish(command);
        assert_eq!(finished.expect_ok().out(), "", "{finished}");
    }
}

fn no_process_is_left(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    place.turn(&repo.workspace).sh("sleep 600 & echo started").run().expect_ok();
    let home = format!("HOME={}", place.home().display());
    assert!(
        wait_until(Duration::from_secs(3), || processes_with(&home).is_empty()),
        "{:?}",
        processes_with(&home)
    );
}

fn no_mount_is_left(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let mounts = || {
        fs::read_to_string("/proc/self/mountinfo")
            .unwrap()
            .lines()
            .filter(|line| line.contains("codeoid"))
            .count()
    };
    let before = mounts();
    place.turn(&repo.workspace).command(["true"]).run().expect_ok();
    assert_eq!(mounts(), before);
}

fn the_runtime_directory_does_not_grow(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let find = "find \"$XDG_RUNTIME_DIR\" -mindepth 1 | sort";
    // Twice: the first turn makes the state directory, which the second one has to hide.
    for _ in 0..2 {
        place.turn(&repo.workspace).command(["true"]).run().expect_ok();
    }
    let first = place.sh(&place.home(), find).out();
    place.turn(&repo.workspace).command(["true"]).run().expect_ok();
    place.turn(&repo.workspace).session("s2").command(["false"]).run().expect_code(1);
    let later = place.sh(&place.home(), find).out();
    let new: Vec<&str> = later.lines().filter(|line| !first.lines().any(|known| known == *line)).collect();
    assert!(new.is_empty(), "{new:?}");
}

fn the_state_directory_does_not_grow(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let turn = || place.turn(&repo.workspace).command(["true"]).run().expect_ok().code();
    turn();
    let first = Snapshot::filtered(&place.state(), false, &|path| !path.ends_with("audit.jsonl"));
    for _ in 0..3 {
        turn();
    }
    let later = Snapshot::filtered(&place.state(), false, &|path| !path.ends_with("audit.jsonl"));
    assert!(first.added(&later).is_empty(), "{:?}", first.added(&later));
}

fn a_tracked_dotfile_does_not_get_in_the_way(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    place
        .sh(
            &repo.workspace,
            "mkdir .vscode .claude && echo x >.vscode/settings.json && \
         echo x >.claude/settings.json && echo x >.mcp.json && git add . && \
         git commit -qm dotfiles",
        )
        .expect_ok();
    let script = "git worktree add -q -b dots \"$CODEOID_WORKTREE_DIR/dots\" && \
         git -C \"$CODEOID_WORKTREE_DIR/dots\" status --porcelain | wc -l";
    let outcome = place.turn(&repo.workspace).sh(script).run();
    assert_eq!(outcome.expect_ok().out(), "0", "{outcome}");
}

each_identity! {
    nothing_is_left_during_and_after_a_turn,
    nothing_is_left_after_a_kill,
    nothing_is_left_after_a_refusal_or_a_failure,
    nothing_is_left_in_tmp,
    no_process_is_left,
    no_mount_is_left,
    the_runtime_directory_does_not_grow,
    the_state_directory_does_not_grow,
    a_tracked_dotfile_does_not_get_in_the_way,
}
