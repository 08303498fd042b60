//! Remote-tracking refs and configuration: what means the same on both sides comes, and nothing else.

use codeoid_tests::{Layout, Place, Repo, each_identity};

use crate::{around, assert_no_findings, assert_sound, does, host, said, shadow, subjects};

const TRACKED: &str = "git for-each-ref --format='%(refname) %(objectname)' refs/remotes; git remote";

/// Somebody else pushes a branch.
fn push(place: &Place, repo: &Repo, name: &str) {
    let script = format!(
        "git clone -q {} ../elsewhere 2>/dev/null || :; cd ../elsewhere
         git commit -q --allow-empty -m {name}; git push -q origin HEAD:refs/heads/{name}",
        repo.remote.display()
    );
    host(place, &repo.workspace, &script);
}

fn rule_21_a_remote_that_the_session_removes_keeps_its_branches_on_the_host(place: &Place) {
    let control = Repo::below(place, Layout::Main, "home/control");
    host(place, &control.workspace, "git remote remove origin");
    assert_eq!(host(place, &control.workspace, TRACKED), "", "git takes them all away");

    let repo = Repo::new(place, Layout::Main);
    let before = host(place, &repo.workspace, TRACKED);
    let outcome =
        does(place, &repo, "git remote remove origin; git branch agent; git for-each-ref refs/remotes");
    assert_eq!(outcome.out(), "", "{outcome}");
    assert_eq!(host(place, &repo.workspace, TRACKED), before, "{outcome}");
    subjects(place, &repo, "agent");
    // Another place under the same name.
    push(place, &repo, "pushed");
    let other = repo.top.join("other.git");
    host(
        place,
        &repo.top,
        &format!("git clone -q --bare remote.git {}; git -C {0} branch evil feature", other.display()),
    );
    let again = format!(
        "git remote add origin {}; git fetch -q origin; git rev-parse -q --verify origin/evil >/dev/null",
        other.display()
    );
    does(place, &repo, &again);
    assert_eq!(host(place, &repo.workspace, TRACKED), before);
    assert_sound(place, &repo);
}

fn rule_21_a_remote_of_the_session_leaves_no_orphans(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let before = host(place, &repo.workspace, TRACKED);
    let outcome = does(
        place,
        &repo,
        "git remote add o2 \"$REMOTE\"; git fetch -q o2; git branch agent o2/remote-only; git branch -r | grep -q o2",
    );
    assert_eq!(host(place, &repo.workspace, TRACKED), before, "{outcome}");
    assert_eq!(subjects(place, &repo, "agent")[0], "Feature two", "{outcome}");
    assert!(said(&outcome).contains("remote.o2.url"), "what stays with the session is not named: {outcome}");
    // It is still there in the next turn.
    assert_eq!(does(place, &repo, "git remote; git branch -r | grep -c o2").out(), "o2\norigin\n4");
    // And is the host's too, once the host has it.
    host(place, &repo.workspace, &format!("git remote add o2 {}; git fetch -q o2", repo.remote.display()));
    assert_no_findings(&does(place, &repo, "git branch -r | grep -c o2"));
    assert_sound(place, &repo);
}

fn rule_21_what_is_fetched_and_pushed_comes_where_the_remote_is_the_same(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    push(place, &repo, "pushed");
    let script = "git fetch -q origin; git branch -q agent origin/pushed; git remote set-head origin pushed
        git config branch.agent.description text";
    let outcome =
        around(place, &repo, script, "git push -q origin :remote-only || git fetch -q --prune origin", || {});
    assert_no_findings(&outcome);
    let state = "git log -1 --format=%s origin/pushed; git symbolic-ref refs/remotes/origin/HEAD
        git config branch.agent.remote; git config branch.agent.merge; git status -sb | head -1";
    assert_eq!(
        host(place, &repo.workspace, state),
        "pushed\nrefs/remotes/origin/pushed\norigin\nrefs/heads/pushed\n## main",
        "{outcome}"
    );
    // Both fetch: the host wins in silence.
    push(place, &repo, "more");
    let outcome = around(place, &repo, "git fetch -q origin; git tag seen origin/more", "", || {
        push(place, &repo, "more");
        host(place, &repo.workspace, "git fetch -q origin");
    });
    assert_no_findings(&outcome);
    assert_eq!(
        host(
            place,
            &repo.workspace,
            "git rev-list --count origin/more..seen; git rev-list --count seen..origin/more"
        ),
        "0\n1",
        "{outcome}"
    );
    let outcome = does(place, &repo, "git rev-list --count seen..origin/more");
    assert_eq!(outcome.out(), "1", "{outcome}");
    assert_sound(place, &repo);
}

fn rule_24_hooks_are_the_session_s_own_and_never_come(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let hooks = codeoid_tests::Snapshot::of(&repo.common.join("hooks"));
    let script = "printf '#!/bin/sh\\ntouch ../ran 2>/dev/null; echo hook ran\\n' >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit
        git config core.hooksPath .githooks; git config --unset core.hooksPath
        git commit -q --allow-empty -m agent 2>&1";
    let outcome = does(place, &repo, script);
    assert_eq!(outcome.out(), "hook ran", "{outcome}");
    hooks.assert_same(&codeoid_tests::Snapshot::of(&repo.common.join("hooks")), "the host's hooks");
    assert!(said(&outcome).contains("hooks"), "that a hook stays with the session is not said: {outcome}");
    assert_eq!(host(place, &repo.workspace, "git commit -q --allow-empty -m human"), "");
    // It is there in the next turn, and so is what the tools of hooks set up.
    let outcome = does(place, &repo, "git commit -q --allow-empty -m again 2>&1; mkdir -p .githooks; git config core.hooksPath .githooks
        printf '#!/bin/sh\\necho other hook\\n' >.githooks/pre-commit; chmod +x .githooks/pre-commit; git commit -q --allow-empty -m third 2>&1");
    assert_eq!(outcome.out(), "hook ran\nother hook", "{outcome}");
    assert!(said(&outcome).to_lowercase().contains("core.hookspath"), "{outcome}");
    let quiet = "git commit -q --allow-empty -m human 2>&1; git config core.hooksPath || :";
    assert_eq!(host(place, &repo.workspace, quiet), "");
    assert_sound(place, &repo);
}

fn configuration_stays_and_is_told_by_name(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let before = std::fs::read(repo.common.join("config")).unwrap();
    let set = "git config core.pager evil; git config alias.x '!evil'; git config user.name Agent; git config include.path /tmp/x
        git config filter.f.clean evil; git config core.fsmonitor evil; git config remote.origin.pushurl evil; git branch agent";
    let outcome = does(place, &repo, &format!("git config commit.gpgSign false; {set}"));
    assert_eq!(std::fs::read(repo.common.join("config")).unwrap(), before, "{outcome}");
    for name in [
        "core.pager",
        "alias.x",
        "user.name",
        "include.path",
        "filter.f.clean",
        "core.fsmonitor",
        "remote.origin.pushurl",
    ] {
        assert!(said(&outcome).contains(name), "{name}: {outcome}");
    }
    assert_eq!(
        does(place, &repo, "git config --unset core.fsmonitor; git config user.name; git config alias.x")
            .out(),
        "Agent\n!evil"
    );
    // What the host sets is seen, beside it.
    host(place, &repo.workspace, "git config human.key value");
    assert_eq!(does(place, &repo, "git config human.key; git config user.name").out(), "value\nAgent");
    assert_sound(place, &repo);
}

fn everything_that_only_this_protection_allows_works(place: &Place) {
    // What is read-only with protection `shared`, without an error line.
    let repo = Repo::new(place, Layout::Main);
    let script = "git config a.b c; git branch -q -D rival; git branch -q rival origin/rival
        git worktree add -q --track -b t \"$CODEOID_WORKTREE_DIR/t\" origin/remote-only
        git -C \"$CODEOID_WORKTREE_DIR/t\" commit -q --allow-empty -m t; git gc -q; git gc -q --prune=now; git reflog expire --expire=now --all
        git pack-refs --all; git repack -q -a -d; git maintenance run --quiet --task=commit-graph; git multi-pack-index write 2>/dev/null
        git rm -q -r docs; git stash -q; git stash pop -q --index; git notes add -m note; git prune; git fsck --no-progress --no-dangling
        git log --oneline --all >/dev/null; git status --porcelain | wc -l; git worktree list | wc -l";
    let outcome = does(place, &repo, script);
    assert_eq!((outcome.out(), outcome.err()), ("1\n3".to_owned(), String::new()), "{outcome}");
    assert_no_findings(&outcome);
    let state = "git log -1 --format=%s t; git config branch.t.merge; git notes show; git log -1 --format=%s rival; git status --porcelain";
    assert_eq!(
        host(place, &repo.workspace, state),
        "t\nrefs/heads/remote-only\nnote\nRival\nD  docs/notes.md",
        "{outcome}"
    );
    assert_no_findings(&does(
        place,
        &repo,
        "git fsck --no-progress --no-dangling; git -C \"$CODEOID_WORKTREE_DIR/t\" status",
    ));
    assert!(shadow(place).is_dir());
    repo.assert_sound(place);
    assert_sound(place, &repo);
}

each_identity! {
    rule_21_a_remote_that_the_session_removes_keeps_its_branches_on_the_host,
    rule_21_a_remote_of_the_session_leaves_no_orphans,
    rule_21_what_is_fetched_and_pushed_comes_where_the_remote_is_the_same,
    rule_24_hooks_are_the_session_s_own_and_never_come,
    configuration_stays_and_is_told_by_name,
    everything_that_only_this_protection_allows_works,
}
