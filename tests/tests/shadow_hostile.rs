//! Protection `shadow` against a turn that wants out, or that throws away what is not its own.

#![cfg(test)]

use std::time::{Duration, Instant};

use codeoid_tests::{Finished, Identity, Layout, Outcome, Place, Repo, each_identity};

fn turn(place: &Place, repo: &Repo, script: &str) -> Outcome {
    let outcome = place.turn(&repo.workspace).options(["--git-protection", "shadow"]).sh(script).run();
    outcome.expect_ok();
    outcome
}

fn close(place: &Place) -> Finished {
    let closed = place.shim(&["session", "close", "s1"]);
    closed.expect_ok();
    closed
}

/// A commit of the human's on a branch of its own, which is then not checked out.
fn human_commit(place: &Place, repo: &Repo, branch: &str) -> String {
    place.git(&repo.workspace, &["checkout", "-q", "-b", branch, "v1"]);
    place.git(&repo.workspace, &["commit", "-q", "--allow-empty", "-m", branch]);
    let id = place.git(&repo.workspace, &["rev-parse", "HEAD"]);
    place.git(&repo.workspace, &["checkout", "-q", "main"]);
    id
}

/// That a ref reaches the commit, whatever the reflogs say.
#[track_caller]
fn assert_named(place: &Place, repo: &Repo, id: &str, outcome: &impl std::fmt::Display) {
    let named = place.git(&repo.workspace, &["for-each-ref", "--contains", id]);
    assert!(!named.is_empty(), "{id} is lost: {outcome}");
}

fn a_branch_of_somebody_else_is_not_lost_by_what_happens_to_its_name(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    for (name, script) in [
        ("moved", "git branch -q -f moved main"),
        ("deleted", "git branch -q -D deleted"),
        ("covered", "git branch -q -D covered; git branch covered/x main"),
        ("renamed", "git branch -q -m renamed other; git branch -q -f other main"),
    ] {
        let id = human_commit(place, &repo, name);
        let outcome = turn(place, &repo, script);
        assert_named(place, &repo, &id, &outcome);
    }
    assert_eq!(
        place.git(&repo.workspace, &["rev-parse", "covered/x"]),
        place.git(&repo.workspace, &["rev-parse", "main"])
    );

    // A branch that the session made is its own, until somebody else works on it.
    turn(place, &repo, "git branch ours main");
    place.git(&repo.workspace, &["checkout", "-q", "ours"]);
    place.git(&repo.workspace, &["commit", "-q", "--allow-empty", "-m", "human"]);
    let id = place.git(&repo.workspace, &["rev-parse", "HEAD"]);
    place.git(&repo.workspace, &["checkout", "-q", "main"]);
    let outcome = turn(place, &repo, "git branch -q -D ours");
    assert_named(place, &repo, &id, &outcome);
    let before = place.git(&repo.workspace, &["for-each-ref", "refs/codeoid"]);
    turn(
        place,
        &repo,
        "git branch own main; git checkout -q own; git commit -q --allow-empty -m x; git checkout -q main",
    );
    turn(place, &repo, "git branch -q -D own");
    assert_eq!(
        place.git(&repo.workspace, &["for-each-ref", "refs/codeoid"]),
        before,
        "its own rubbish is not kept"
    );
    repo.assert_sound(place);
}

fn a_stash_of_somebody_else_outlives_its_drop(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    for content in ["one", "two"] {
        place.write(repo.workspace.join("README.md"), content);
        place.git(&repo.workspace, &["stash", "push", "-q", "-m", content]);
    }
    let ids = place.git(&repo.workspace, &["stash", "list", "--format=%H"]);
    let (two, one) = ids.split_once('\n').unwrap();
    let outcome =
        turn(place, &repo, "git stash drop -q stash@{1}; echo mine >README.md; git stash push -q -m mine");
    assert_named(place, &repo, one, &outcome);
    let list = place.git(&repo.workspace, &["stash", "list", "--format=%gs %H"]);
    assert!(
        list.starts_with("On main: mine ") && list.ends_with(two) && !list.contains(one),
        "{list}\n{outcome}"
    );
    let outcome = turn(place, &repo, "git stash clear");
    assert_named(place, &repo, two, &outcome);
    assert_eq!(place.git(&repo.workspace, &["stash", "list"]), "");
    let kept = place.git(&repo.workspace, &["for-each-ref", "--format=%(objectname)", "refs/codeoid"]);
    assert_eq!(kept.lines().count(), 2, "the session's own is its to drop: {kept}");
    repo.assert_sound(place);
}

fn a_detached_head_of_somebody_else_is_kept(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    turn(place, &repo, "git worktree add -q --detach $CODEOID_WORKTREE_DIR/w main");
    let list = place.git(&repo.workspace, &["worktree", "list", "--porcelain"]);
    let worktree =
        list.lines().filter_map(|line| line.strip_prefix("worktree ")).find(|path| path.ends_with("/w"));
    let worktree = std::path::Path::new(worktree.unwrap()).to_owned();
    place.git(&worktree, &["commit", "-q", "--allow-empty", "-m", "human"]);
    let id = place.git(&worktree, &["rev-parse", "HEAD"]);
    let outcome = turn(place, &repo, "git worktree remove --force $CODEOID_WORKTREE_DIR/w");
    assert!(!worktree.exists());
    assert_named(place, &repo, &id, &outcome);
    repo.assert_sound(place);
}

/// A worktree goes, and its branch with it, in one turn.
fn a_worktree_and_its_branch_go_together(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    turn(place, &repo, "git worktree add -q -b w $CODEOID_WORKTREE_DIR/w");
    turn(place, &repo, "git worktree remove $CODEOID_WORKTREE_DIR/w && git branch -q -D w");
    assert_eq!(place.git(&repo.workspace, &["branch", "--list", "w"]), "");
    repo.assert_sound(place);
}

/// What a rebase that was never ended has put aside comes out when the session is closed.
fn an_operation_that_was_never_ended_loses_nothing(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let outcome = turn(
        place,
        &repo,
        "git worktree add -q --detach $CODEOID_WORKTREE_DIR/w main; cd $CODEOID_WORKTREE_DIR/w
         echo 1 >x; git add x; git commit -q -m x; git rev-parse HEAD; echo 2 >x
         git rebase -q --autostash -f -x false HEAD~1 >/dev/null 2>&1; cat $(git rev-parse --git-path rebase-merge/autostash)",
    );
    close(place);
    assert_eq!(outcome.out().lines().count(), 2, "{outcome}");
    for id in outcome.out().lines() {
        assert_named(place, &repo, id, &outcome);
    }
    repo.assert_sound(place);
}

/// Whatever a turn puts where git keeps its things: the import ends, in time, the next turn runs, the session can be
/// closed, and nothing of it is in anybody's way.
fn endures(place: &Place, attack: &str) {
    let repo = Repo::new(place, Layout::Main);
    let started = Instant::now();
    let outcome = turn(place, &repo, attack);
    let took = started.elapsed();
    assert!(took < Duration::from_secs(30), "{took:?}: {outcome}");
    // A directory without permissions is in the way of the session's own git, which has no capability, and of nobody else.
    let next = turn(
        place,
        &repo,
        "chmod -R u+rwX .git 2>/dev/null; git commit -q --allow-empty -m next && git rev-parse HEAD",
    );
    assert_eq!(place.git(&repo.workspace, &["log", "-1", "--format=%s"]), "next", "{outcome}{next}");
    close(place);
    let locks = place.sh(&repo.common, "find . -name '*.lock' -o -name gc.pid");
    assert_eq!(locks.out(), "", "{outcome}");
    repo.assert_sound(place);
}

fn refs_that_name_nothing(place: &Place) {
    endures(
        place,
        "i=0; while [ $i -lt 3000 ]; do i=$((i + 1)); printf '%040x refs/heads/x%d\\n' $i $i; done >>.git/packed-refs",
    );
}

fn refs_that_are_in_the_way_of_each_other(place: &Place) {
    endures(
        place,
        "c=$(git rev-parse HEAD); i=0; while [ $i -lt 3000 ]; do i=$((i + 1)); echo \"$c refs/heads/main/$i\"; done \
         >>.git/packed-refs",
    );
}

fn stash_entries_that_are_none(place: &Place) {
    endures(
        place,
        "c=$(git rev-parse HEAD); z=$(printf '%040d' 0); mkdir -p .git/logs/refs; i=0
         while [ $i -lt 3000 ]; do i=$((i + 1)); printf '%s %s a <a> 1 +0000\\tx\\n%s %040x a <a> 1 +0000\\tx\\n' $z $c $z $i; done \
         >.git/logs/refs/stash",
    );
}

fn a_configuration_of_a_hundred_thousand_lines(place: &Place) {
    endures(
        place,
        "{ echo '[a]'; i=0; while [ $i -lt 60000 ]; do i=$((i + 1)); echo \"a$i=\"; done; } >>.git/config",
    );
}

fn packed_refs_beyond_all_measure(place: &Place) {
    endures(place, "truncate -s 600M .git/packed-refs");
}

fn directories_that_nobody_may_read(place: &Place) {
    endures(place, "git branch x; chmod 000 .git/refs/heads .git/objects .git/logs");
}

fn a_git_dir_that_nobody_may_write(place: &Place) {
    endures(place, "touch .git/refs/heads/a.lock; chmod 555 .git/refs/heads .git");
}

fn directories_without_end(place: &Place) {
    endures(
        place,
        "cd .git/refs/heads; i=0; while [ $i -lt 1500 ]; do i=$((i + 1)); mkdir d && cd -P d; done",
    );
}

fn other_kinds_of_files(place: &Place) {
    endures(
        place,
        "git worktree add -q -b w1 $CODEOID_WORKTREE_DIR/w1; git worktree add -q -b w2 $CODEOID_WORKTREE_DIR/w2
         git worktree add -q -b w3 $CODEOID_WORKTREE_DIR/w3; sleep 0.5; cd .git/worktrees
         rm w1/index; mkfifo w1/index; rm w2/HEAD; mkfifo w2/HEAD; rm -r w3; ln -s /etc w3
         cd ..; mkfifo refs/heads/fifo; ln -s /etc/passwd refs/heads/link; mkdir -p logs/refs; rm -f logs/refs/stash
         mkfifo logs/refs/stash; mkdir HEAD.lock; mkfifo index.lock; rm -f config; mkfifo config; ln -s / refs/tags/root",
    );
}

/// An entry by a name that git does not give gets one that it does: git's `fsck` and `gc` look after no other.
fn entries_by_names_that_are_none(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let outcome = turn(
        place,
        &repo,
        "g=$PWD/.git/worktrees; n=0
         for id in 'a b' x.lock -x .hidden a..b \"$(printf 'a\\nb')\"; do
             n=$((n + 1)); w=$CODEOID_WORKTREE_DIR/$n; git worktree add -q --detach $w
             mv -- $g/$n \"$g/$id\"; echo \"gitdir: $g/$id\" >$w/.git
             git --git-dir=\"$g/$id\" --work-tree=$w commit -q --allow-empty -m $n
         done",
    );
    let ids = place.sh(&repo.common, "ls worktrees");
    assert!(
        ids.out()
            .lines()
            .all(|id| id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))),
        "{ids}"
    );
    assert_eq!(ids.out().lines().count(), 7, "{ids}{outcome}");
    let fsck = place.sh(&repo.common, "git fsck 2>&1");
    assert!(fsck.ok() && !fsck.out().contains("error"), "{fsck}");
    let list = place.git(&repo.workspace, &["worktree", "list", "--porcelain"]);
    for worktree in
        list.lines().filter_map(|line| line.strip_prefix("worktree ")).filter(|path| path.contains("s1-"))
    {
        assert_eq!(place.git(std::path::Path::new(worktree), &["status", "--porcelain"]), "", "{worktree}");
    }
    repo.assert_sound(place);
}

/// A second entry for a worktree would have the host's `gc` delete one of the two.
fn two_entries_for_one_worktree(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    turn(
        place,
        &repo,
        "git worktree add -q --detach $CODEOID_WORKTREE_DIR/w; cd $CODEOID_WORKTREE_DIR/w; git commit -q --allow-empty -m w",
    );
    let id = place.sh(&repo.common, "cat worktrees/w/HEAD").out();
    let outcome = turn(
        place,
        &repo,
        "cd .git/worktrees; cp -r w 0w; cp -r w x; git rev-parse main >0w/HEAD; git rev-parse main >x/HEAD
         echo \"gitdir: $PWD/0w\" >$CODEOID_WORKTREE_DIR/w/.git",
    );
    let entries = place.sh(&repo.common, "cat worktrees/*/gitdir | sort | uniq -d");
    assert_eq!(entries.out(), "", "{outcome}");
    place.git(&repo.workspace, &["gc", "-q", "--prune=now"]);
    assert_eq!(place.sh(&repo.common, "cat worktrees/w/HEAD").out(), id, "{outcome}");
    place.git(&repo.workspace, &["cat-file", "-e", id.trim()]);
    repo.assert_sound(place);
}

/// The host collects garbage, and keeps nothing, while a session commits.
fn objects_on_their_way_are_not_collected_serial(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let mut running = place
        .turn(&repo.workspace)
        .options(["--git-protection", "shadow"])
        .sh("git worktree add -q -b w $CODEOID_WORKTREE_DIR/w; cd $CODEOID_WORKTREE_DIR/w
             for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo $i >f; git add f; git commit -q -m $i; sleep 0.2; done")
        .spawn();
    while !running.has_ended() {
        let collected = place.sh(&repo.workspace, "git gc -q --prune=now");
        assert!(!collected.err().contains("bad object"), "{collected}");
    }
    running.finish().expect_ok();
    assert_eq!(place.git(&repo.workspace, &["rev-list", "--count", "main..w"]), "12");
    let fsck = place.sh(&repo.common, "git fsck --strict --no-dangling --no-progress 2>&1");
    assert_eq!(fsck.out(), "", "{fsck}");
    if place.identity() == Identity::Root {
        close(place);
    }
    repo.assert_sound(place);
}

each_identity!(
    a_branch_of_somebody_else_is_not_lost_by_what_happens_to_its_name,
    a_stash_of_somebody_else_outlives_its_drop,
    a_detached_head_of_somebody_else_is_kept,
    a_worktree_and_its_branch_go_together,
    an_operation_that_was_never_ended_loses_nothing,
    refs_that_name_nothing,
    refs_that_are_in_the_way_of_each_other,
    stash_entries_that_are_none,
    a_configuration_of_a_hundred_thousand_lines,
    packed_refs_beyond_all_measure,
    directories_that_nobody_may_read,
    a_git_dir_that_nobody_may_write,
    directories_without_end,
    other_kinds_of_files,
    entries_by_names_that_are_none,
    two_entries_for_one_worktree,
    objects_on_their_way_are_not_collected_serial,
);
