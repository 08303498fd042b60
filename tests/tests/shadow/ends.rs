//! How a session's use of a repository ends, and what else can run its bundle.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use codeoid_tests::{Finished, Identity, Layout, Place, Repo, Requires, each_identity};

use crate::{
    SHADOW, around_with, assert_clean, assert_no_findings, assert_sound, commands, does, finding, folder,
    host, kept, subjects, turn,
};

fn close(place: &Place, session: &str) -> Finished {
    place.shim(&["session", "close", session])
}

fn closing_keeps_what_could_not_be_brought_over(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    // A rebase in progress in a worktree, with a commit that is on no branch yet; a conflict in the checkout's own; a
    // branch that has diverged; a stash entry.
    let script = "git worktree add -q -b mine \"$CODEOID_WORKTREE_DIR/mine\" feature; cd \"$CODEOID_WORKTREE_DIR/mine\"
        git checkout -q -b two; echo two >two; git add two; git commit -q -m picked; echo x >src/text; git commit -q -a -m stuck
        git rebase -q rival >&2 || :; git status | grep -q 'rebase in progress'; git log -1 --format=%s";
    let outcome = does(place, &repo, script);
    finding(&outcome, "operation-in-progress");
    let outcome = around_with(
        turn(place, &repo),
        "",
        "echo c >c; git add c; git commit -q -m agent; echo y >>src/text; git stash -q",
        || {
            host(place, &repo.workspace, "echo h >h; git add h; git commit -q -m human");
        },
    );
    finding(&outcome, "conflict");
    let closed = close(place, "s1");
    closed.expect_ok();
    let kept = kept(place, &repo);
    assert!(kept.iter().all(|name| name.starts_with("refs/codeoid/s1")), "{kept:?}");
    let tips: Vec<String> = kept.iter().map(|name| subjects(place, &repo, name).remove(0)).collect();
    assert!(
        tips.iter().any(|tip| tip == "agent") && tips.iter().any(|tip| tip == "stuck"),
        "{kept:?} {tips:?}\n{closed}"
    );
    for name in &kept {
        assert!(
            closed.err().contains(name) || closed.out().contains(name) || outcome.err().contains(name),
            "{name} is not told: {closed}"
        );
    }
    assert_eq!(subjects(place, &repo, "main")[0], "human");
    assert_eq!(host(place, &repo.workspace, "git stash list | wc -l"), "1");
    assert!(
        !place.state().join("sessions").join(folder(&repo, "s1").file_name().unwrap()).exists(),
        "{closed}"
    );
    host(place, &repo.workspace, "git gc -q --prune=now");
    assert_sound(place, &repo);
}

fn closing_brings_over_what_a_killed_turn_left(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let work = "echo a >a; git add a; git commit -q -m agent; git branch other";
    let killed = turn(place, &repo).env("CODEOID_TEST_STOP_AT", "finishing").sh(work).run();
    assert_eq!(killed.signal(), Some(9), "{killed}");
    close(place, "s1").expect_ok();
    assert_eq!(subjects(place, &repo, "main")[0], "agent");
    subjects(place, &repo, "other");
    assert_eq!(host(place, &repo.workspace, "git status --porcelain"), "");
    let left = place.sh(&place.state(), "find sessions turns -name '*s1*' 2>/dev/null");
    assert_eq!(left.out(), "", "the session's state is left");
    assert_sound(place, &repo);
}

fn a_session_after_its_end_begins_anew(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    does(
        place,
        &repo,
        "git worktree add -q -b mine \"$CODEOID_WORKTREE_DIR/mine\"; git config user.name Agent; git commit -q --allow-empty -m one",
    );
    close(place, "s1").expect_ok();
    let mine = folder(&repo, "s1").join("mine");
    assert_eq!(host(place, &mine, "git status --porcelain; git symbolic-ref HEAD"), "refs/heads/mine");
    let outcome = does(
        place,
        &repo,
        "git config user.name; git -C \"$CODEOID_WORKTREE_DIR/mine\" commit -q --allow-empty -m two; git log -1 --format=%s",
    );
    assert_eq!(outcome.out(), "Test User\none", "{outcome}");
    assert_no_findings(&outcome);
    assert_eq!(subjects(place, &repo, "mine")[0], "two");
    assert_sound(place, &repo);
}

fn a_session_whose_repository_is_gone_can_be_closed(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    does(place, &repo, "git branch agent");
    std::fs::rename(&repo.workspace, repo.top.join("elsewhere")).unwrap();
    close(place, "s1").expect_ok();
    host(place, &repo.top.join("elsewhere"), "git rev-parse -q --verify agent");
}

fn bundle(place: &Place, repo: &Repo, script: &str) -> PathBuf {
    let output = place.at("outside/bundle");
    let mut command = place.command(codeoid_tests::shim());
    command.args(["bundle", "--session", "s1"]).args(SHADOW).arg("--workspace").arg(&repo.workspace);
    command.arg("--output").arg(&output).args(["--", "sh", "-c", script]);
    place.finish(command).expect_ok();
    output
}

/// As in the tests of bundles.
fn run(runtime: &str, bundle: &std::path::Path, id: &str) -> Finished {
    let script = format!(
        "umount /sys/fs/cgroup/unified 2>/dev/null; root=$(mktemp -d); {runtime} --root \"$root\" run --bundle \"$0\" {id}; \
         code=$?; {runtime} --root \"$root\" delete --force {id} 2>/dev/null; rm -rf \"$root\"; exit $code"
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &script]).arg(bundle).stdin(Stdio::null());
    command
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env_remove("LISTEN_FDS");
    Place::new(Identity::Root, "runtime").finish(command)
}

fn the_hook_imports_what_other_runtimes_ran_serial(place: &Place) {
    if place.identity() != Identity::Root {
        return;
    }
    for runtime in ["runc", "crun"] {
        if !Requires::Tool(runtime).met() {
            continue;
        }
        let place = Place::new(Identity::Root, runtime);
        let repo = Repo::new(&place, Layout::Main);
        let script = "set -e; echo 1 >f1; git add f1; git commit -q -m agent; git config a.b c
            git worktree add -q -b mine \"$CODEOID_WORKTREE_DIR/mine\"; git -C \"$CODEOID_WORKTREE_DIR/mine\" commit -q --allow-empty -m mine
            git branch -q -D rival; exit 7";
        let bundle = bundle(&place, &repo, script);
        let finished = run(runtime, &bundle, &format!("codeoid-shadow-{runtime}-{}", std::process::id()));
        assert_eq!((finished.code(), finished.out().as_str()), (7, ""), "{runtime}: {finished}");
        assert_eq!(subjects(&place, &repo, "main")[0], "agent", "{runtime}: {finished}");
        assert_eq!(
            host(&place, &folder(&repo, "s1").join("mine"), "git status --porcelain; git log -1 --format=%s"),
            "mine"
        );
        assert_eq!(
            host(
                &place,
                &repo.workspace,
                "git status --porcelain; git branch --list rival; git config a.b || echo none"
            ),
            "none"
        );
        // A turn of the same session goes on from there.
        let outcome =
            does(&place, &repo, "git config a.b; git log -1 --format=%s; git worktree list | grep -c mine");
        assert_eq!(outcome.out(), "c\nagent\n1", "{runtime}: {outcome}");
        assert_no_findings(&outcome);
        repo.assert_sound(&place);
        assert_sound(&place, &repo);
    }
}

fn a_bundle_that_never_ran_leaves_nothing(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let before = codeoid_tests::Snapshot::of(&repo.common);
    let _ = bundle(place, &repo, "true");
    before.assert_same(&codeoid_tests::Snapshot::of(&repo.common), "the repository");
    close(place, "s1");
    before.assert_same(&codeoid_tests::Snapshot::of(&repo.common), "the repository");
    assert_clean(place, &repo);
}

fn bubblewrap_imports_live_and_at_the_end(place: &Place) {
    if !Requires::Tool("bwrap").met() {
        return;
    }
    let repo = Repo::new(place, Layout::Main);
    let add = "git worktree add -q -b agent \"$CODEOID_WORKTREE_DIR/hw\"; git -C \"$CODEOID_WORKTREE_DIR/hw\" commit -q --allow-empty -m live
        git config a.b c; git branch -q -D rival; echo f >f; git add f; git commit -q -m agent-1";
    let turn = || turn(place, &repo).options(["--executor", "bwrap"]);
    let outcome = around_with(turn(), add, "git branch last", || {
        let arrived = "for n in $(seq 150); do git log -1 --format=%s agent 2>/dev/null | grep -q live && exit 0; sleep 0.1; done; exit 1";
        host(place, &repo.workspace, arrived);
        host(
            place,
            &repo.workspace,
            "echo h >h; git add h; git commit -q -m human; git rev-parse -q --verify rival",
        );
    });
    assert_eq!(outcome.report()["executor"], "bwrap", "{outcome}");
    let merge = commands(&finding(&outcome, "conflict")).remove(0);
    host(
        place,
        &repo.workspace,
        &format!("git rev-parse -q --verify last; rm f; {merge} -q -m merged; cat f h"),
    );
    let outcome = turn()
        .sh("git log -1 --format=%s; git config a.b; git branch --list rival; git status --porcelain")
        .run();
    assert_eq!(outcome.expect_ok().out(), "merged\nc", "{outcome}");
    assert_no_findings(&outcome);
    assert_sound(place, &repo);
}

each_identity! {
    closing_keeps_what_could_not_be_brought_over,
    closing_brings_over_what_a_killed_turn_left,
    a_session_after_its_end_begins_anew,
    a_session_whose_repository_is_gone_can_be_closed,
    the_hook_imports_what_other_runtimes_ran_serial,
    a_bundle_that_never_ran_leaves_nothing,
    bubblewrap_imports_live_and_at_the_end,
}
