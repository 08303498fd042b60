//! Worktrees of the session are ordinary ones on the host, under a name of their own, and those of others are theirs.

use codeoid_tests::{Layout, Place, Repo, each_identity};

use crate::{
    around, assert_no_findings, assert_sound, commands, does, finding, folder, host, kept, said, subjects,
    turn,
};

/// For a script inside: waits until a condition holds, for as long as a live import may take on a busy machine.
const AWAIT: &str =
    "await() { for n in $(seq 150); do if \"$@\"; then return 0; fi; sleep 0.1; done; return 1; }\n";
const ADD: &str =
    "git worktree add -q -b agent \"$CODEOID_WORKTREE_DIR/hw\"; cd \"$CODEOID_WORKTREE_DIR/hw\"\n";
const COMMIT: &str = "echo x >x; git add x; git commit -q -m agent\n";

/// Waits on the host.
fn until(place: &Place, repo: &Repo, condition: &str) {
    let script = format!("for n in $(seq 150); do {{ {condition}; }} && exit 0; sleep 0.1; done; exit 1");
    place.sh(&repo.workspace, &script).expect_ok();
}

fn assert_worktrees_are_their_own(place: &Place, repo: &Repo) {
    let ours = folder(repo, "s1").join("hw");
    let theirs = repo.top.join("hw");
    let state = "git symbolic-ref HEAD; git status --porcelain; git log -1 --format=%s";
    assert_eq!(host(place, &ours, state), "refs/heads/agent\nagent");
    assert_eq!(host(place, &theirs, state), "refs/heads/human-too\nThird");
    host(place, &ours, "echo y >y; git add y; git commit -q -m 'human in the session'");
    assert_eq!(host(place, &theirs, state), "refs/heads/human-too\nThird");
    assert_eq!(subjects(place, repo, "agent")[..2], ["human in the session", "agent"]);
    assert_sound(place, repo);
}

fn rule_14_a_name_that_the_host_has_taken_is_left_to_it(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    // What the session cannot see is there first, so git inside takes the same name.
    let after = format!(
        "{AWAIT}{ADD}cat .git; renamed() {{ ! grep -q 'worktrees/hw$' .git; }}; await renamed\n{COMMIT}git status --porcelain"
    );
    let outcome = around(place, &repo, "", &after, || {
        host(place, &repo.workspace, "git worktree add -q -b human-too ../hw");
    });
    // The control: for a moment the session's folder named the human's entry, if that was not quicker.
    let named = format!("ready\ngitdir: {}/worktrees/hw", repo.common.display());
    assert!([named.clone(), format!("{named}1")].contains(&outcome.out()), "{outcome}");
    assert_no_findings(&outcome);
    assert_worktrees_are_their_own(place, &repo);
    assert_no_findings(&does(
        place,
        &repo,
        "cd \"$CODEOID_WORKTREE_DIR/hw\"; git log -1 --format=%s | grep -q human; git status --porcelain | wc -l",
    ));
}

fn rule_14_a_name_of_the_session_is_taken_on_the_host_at_once(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let outcome = around(place, &repo, ADD, COMMIT, || {
        until(place, &repo, "test -d .git/worktrees/hw");
        host(place, &repo.workspace, "git worktree add -q -b human-too ../hw");
    });
    assert_no_findings(&outcome);
    assert_worktrees_are_their_own(place, &repo);
}

fn rule_14_a_pointer_that_is_turned_to_somebody_else_is_turned_back(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let human = repo.human_entry();
    let script = format!("{ADD}{COMMIT} echo 'gitdir: {}' >.git", human.display());
    let before = codeoid_tests::Snapshot::content_of(&human);
    let outcome = does(place, &repo, &script);
    let ours = folder(&repo, "s1").join("hw");
    assert_eq!(
        host(place, &ours, "git symbolic-ref HEAD; git status --porcelain"),
        "refs/heads/agent",
        "{outcome}"
    );
    before.assert_same(&codeoid_tests::Snapshot::content_of(&human), "the human's entry");
    finding(&outcome, "gitfile-changed");
    assert_sound(place, &repo);
}

fn rule_5_a_branch_in_use_on_the_host_is_never_moved(place: &Place) {
    // The control: git itself, told to, moves it, and the worktree shows what nobody did.
    let control = Repo::below(place, Layout::Main, "home/control");
    let move_it = "git worktree add -q ../used feature; git update-ref refs/heads/feature rival; git -C ../used status --porcelain";
    assert_ne!(host(place, &control.workspace, move_it), "");

    let repo = Repo::new(place, Layout::Main);
    let used = repo.top.join("used");
    let after = "git update-ref refs/heads/feature $(git commit-tree -p feature -m agent feature^{tree})
        git branch -q -D rival; git branch other; sleep 0.5";
    let outcome = around(place, &repo, "", after, || {
        host(
            place,
            &repo.workspace,
            "git worktree add -q ../used feature; git worktree add -q ../used-too rival",
        );
    });
    assert_eq!(
        host(place, &used, "git status --porcelain; git log -1 --format=%s"),
        "Feature two",
        "{outcome}"
    );
    assert_eq!(
        host(place, &repo.top.join("used-too"), "git status --porcelain; git log -1 --format=%s"),
        "Rival"
    );
    subjects(place, &repo, "other");
    let merge = commands(&finding(&outcome, "conflict")).remove(0);
    host(place, &used, &format!("{merge} -q; git log -1 --format=%s | grep agent"));
    assert_sound(place, &repo);
}

fn rule_5_a_branch_under_rebase_or_bisection_is_never_moved(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let used = repo.top.join("used");
    let after = "for b in feature rival; do
        git update-ref refs/heads/$b $(git commit-tree -p $b -m agent-$b $b^{tree}); done; sleep 0.5";
    let old = host(place, &repo.workspace, "git rev-parse feature rival");
    let outcome = around(place, &repo, "", after, || {
        let script = "git worktree add -q ../used feature; git worktree add -q ../bisect rival
            cd ../used; git rebase -q rival >&2 || :; test $(git rev-parse --symbolic-full-name HEAD) = HEAD
            cd ../bisect; git bisect start HEAD HEAD~2 >&2; test \"$(git rev-parse --symbolic-full-name HEAD)\" = HEAD";
        host(place, &repo.workspace, script);
    });
    assert_eq!(host(place, &repo.workspace, "git rev-parse feature rival"), old, "{outcome}");
    assert_eq!(kept(place, &repo).len(), 2, "{outcome}");
    host(place, &used, "echo both >src/text; git add src/text; GIT_EDITOR=true git rebase --continue >&2");
    host(place, &repo.top.join("bisect"), "git bisect reset >&2; git symbolic-ref HEAD | grep rival");
    assert_sound(place, &repo);
}

fn rule_5_a_branch_that_both_check_out_is_the_host_s(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let after = "git worktree add -q \"$CODEOID_WORKTREE_DIR/f\" feature; cd \"$CODEOID_WORKTREE_DIR/f\"
        echo x >x; git add x; git commit -q -m agent";
    let outcome = around(place, &repo, "", after, || {
        host(place, &repo.workspace, "git worktree add -q ../used feature");
    });
    let merge = commands(&finding(&outcome, "conflict")).remove(0);
    let used = repo.top.join("used");
    assert_eq!(
        host(place, &used, "git status --porcelain; git log -1 --format=%s"),
        "Feature two",
        "{outcome}"
    );
    host(place, &used, &format!("{merge} -q; cat x"));
    assert_sound(place, &repo);
}

fn rule_25_a_lock_crosses_in_neither_direction(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let outcome = around(place, &repo, ADD, "git worktree remove \"$CODEOID_WORKTREE_DIR/hw\"", || {
        // While the session is at work, its worktree is locked on the host, and says why.
        until(place, &repo, "test -f .git/worktrees/hw/HEAD");
        let list = host(place, &repo.workspace, "git worktree list --porcelain");
        assert!(list.contains("locked codeoid-shim: session s1"), "{list}");
        let remove = place.sh(&repo.workspace, "git worktree remove ../repo-worktrees/*/hw");
        assert!(!remove.ok(), "{remove}");
    });
    assert_no_findings(&outcome);
    assert!(!repo.common.join("worktrees/hw").exists(), "{outcome}");
    // Another turn, so that it is there from the start, and locked by the human, too.
    does(place, &repo, &format!("git branch -q -D agent; {ADD} git worktree lock --reason inside ."));
    let list = host(
        place,
        &repo.workspace,
        "git worktree list --porcelain; git worktree lock --reason mine ../repo-worktrees/*/hw",
    );
    assert!(!list.contains("locked"), "{list}");
    let outcome = around(place, &repo, "", "git worktree unlock \"$CODEOID_WORKTREE_DIR/hw\"", || {
        let list = host(place, &repo.workspace, "git worktree list --porcelain");
        assert!(list.contains("locked mine"), "{list}");
    });
    let list = host(
        place,
        &repo.workspace,
        "git worktree list --porcelain; git worktree unlock ../repo-worktrees/*/hw",
    );
    assert!(list.contains("locked mine"), "{list}\n{outcome}");
    assert_sound(place, &repo);
}

fn a_worktree_of_the_session_is_an_ordinary_one_on_the_host(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let outcome = around(
        place,
        &repo,
        &format!("{ADD}{COMMIT}"),
        "git log -1 --format=%s; echo z >z; git add z; git commit -q -m last",
        || {
            until(place, &repo, "git log -1 --format=%s agent 2>/dev/null | grep -q agent");
            let ours = folder(&repo, "s1").join("hw");
            assert_eq!(host(place, &ours, "git status --porcelain; git log -1 --format=%s"), "agent");
            let taken = place.sh(&repo.workspace, "git branch -D agent || git checkout agent");
            assert!(!taken.ok(), "{taken}");
            host(place, &repo.workspace, "git gc -q --prune=now; git worktree prune; git fsck --strict");
        },
    );
    assert_no_findings(&outcome);
    let ours = folder(&repo, "s1").join("hw");
    assert_eq!(host(place, &ours, "git status --porcelain; git log -1 --format=%s"), "last");
    host(place, &repo.workspace, &format!("git worktree remove {}; git branch -D agent", ours.display()));
    // The human's removal is seen inside.
    let outcome = turn(place, &repo).sh("git worktree list | wc -l; git branch --list agent | wc -l").run();
    assert_eq!(outcome.expect_ok().out(), "2\n0", "{outcome}");
    assert_no_findings(&outcome);
    assert_sound(place, &repo);
}

fn a_worktree_that_the_session_removes_or_moves_is_so_on_the_host(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    does(place, &repo, &format!("{ADD}{COMMIT}"));
    let outcome = does(
        place,
        &repo,
        "cd \"$CODEOID_WORKTREE_DIR\"; git -C hw worktree move ../hw ../moved || git -C hw worktree move . ../moved; cd moved; git status --porcelain",
    );
    assert_no_findings(&outcome);
    let moved = folder(&repo, "s1").join("moved");
    assert_eq!(host(place, &moved, "git status --porcelain; git log -1 --format=%s"), "agent", "{outcome}");
    let list = host(place, &repo.workspace, "git worktree list --porcelain");
    assert!(
        list.contains(&format!("worktree {}\n", moved.display())) && !list.contains("prunable"),
        "{list}"
    );
    let outcome = does(place, &repo, "git worktree remove \"$CODEOID_WORKTREE_DIR/moved\"");
    assert_no_findings(&outcome);
    assert_eq!(
        host(place, &repo.workspace, "git worktree list | wc -l; git log -1 --format=%s agent"),
        "2\nagent"
    );
    assert_sound(place, &repo);
}

fn worktrees_of_a_repository_with_submodules_that_are_not_there(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    host(
        place,
        &repo.workspace,
        "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),lib; git commit -q -m lib; mkdir lib",
    );
    let outcome = does(
        place,
        &repo,
        "git worktree add -q -b w \"$CODEOID_WORKTREE_DIR/w\"; cd \"$CODEOID_WORKTREE_DIR/w\"
         echo w >w; git add w; git commit -q -m w",
    );
    assert_no_findings(&outcome);
    assert_eq!(subjects(place, &repo, "w")[0], "w");
    assert_eq!(host(place, &folder(&repo, "s1").join("w"), "git status --porcelain"), "");
    // One that the main checkout does not have stays with the session.
    let outcome = does(
        place,
        &repo,
        "git worktree add -q -b x \"$CODEOID_WORKTREE_DIR/x\"; cd \"$CODEOID_WORKTREE_DIR/x\"
         git init -q evil; git -C evil commit -q --allow-empty -m evil; git add evil 2>/dev/null; git commit -q -m x",
    );
    assert!(said(&outcome).contains("evil is a repository of its own"), "{outcome}");
    assert_sound(place, &repo);
}

each_identity! {
    worktrees_of_a_repository_with_submodules_that_are_not_there,
    rule_14_a_name_that_the_host_has_taken_is_left_to_it,
    rule_14_a_name_of_the_session_is_taken_on_the_host_at_once,
    rule_14_a_pointer_that_is_turned_to_somebody_else_is_turned_back,
    rule_5_a_branch_in_use_on_the_host_is_never_moved,
    rule_5_a_branch_under_rebase_or_bisection_is_never_moved,
    rule_5_a_branch_that_both_check_out_is_the_host_s,
    rule_25_a_lock_crosses_in_neither_direction,
    a_worktree_of_the_session_is_an_ordinary_one_on_the_host,
    a_worktree_that_the_session_removes_or_moves_is_so_on_the_host,
}
