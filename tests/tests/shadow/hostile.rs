//! Shadows that are attacks: nothing of them runs on the host, and nothing of the host is destroyed. The sandbox cannot
//! write the mark itself, so whoever leaves it runs outside.

use std::path::PathBuf;

use codeoid_tests::{Layout, Place, Repo, Snapshot, each_identity};

use crate::{assert_clean, assert_no_findings, assert_sound, does, host, said, shadow, subjects, turn};

fn mark(place: &Place) -> PathBuf {
    place.at("outside/mark")
}

fn rule_12_no_git_of_the_host_runs_on_a_shadow(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let mark = mark(place);
    let script = format!(
        "git config core.repositoryFormatVersion 1; git config extensions.partialClone o; git config remote.o.promisor true
         git config remote.o.url \"$REMOTE\"; git config remote.o.uploadpack 'touch {0}; git-upload-pack'
         git config core.fsmonitor 'touch {0}'; git config core.alternateRefsCommand 'touch {0}'
         missing=$(echo never made | git hash-object --stdin)
         tree=$(printf '100644 blob %s\\tx\\n' $missing | git mktree --missing)
         git update-ref refs/heads/evil $(git commit-tree -m evil $tree); git branch good; echo $missing",
        mark.display()
    );
    let outcome = does(place, &repo, &script);
    assert!(!mark.exists(), "the importer ran it: {outcome}");
    assert!(!place.sh(&repo.workspace, "git rev-parse -q --verify refs/heads/evil").ok(), "{outcome}");
    assert!(said(&outcome).contains("refs/heads/evil"), "{outcome}");
    subjects(place, &repo, "good");
    assert_sound(place, &repo);
    // The control: a git of the host that looks for the object in the shadow.
    let _ = place.sh(&shadow(place).join("git"), &format!("git --git-dir=. cat-file -e {}", outcome.out()));
    assert!(mark.exists(), "the attack does nothing here");
}

fn rule_12_links_in_a_shadow_are_not_followed(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let victim = Repo::below(place, Layout::Main, "home/victim");
    let old = host(place, &victim.workspace, "git rev-parse main; git pack-refs --all --no-prune");
    let before = Snapshot::content_of(&victim.common);
    let mine = host(place, &repo.workspace, "git for-each-ref refs/heads refs/tags");
    for (number, what) in
        ["refs/heads", "refs", "objects", "worktrees", "HEAD", "index", "packed-refs", "config", "logs"]
            .iter()
            .enumerate()
    {
        let script = format!(
            "git branch agent-{number}; git tag tag-{number}; mv .git/{what} .git/was 2>/dev/null || :
             ln -s {}/{what} .git/{what}; echo {number}",
            victim.common.display()
        );
        let outcome = turn(place, &repo).session(format!("v{number}")).sh(&script).run();
        assert!(!outcome.err().contains("panicked"), "{outcome}");
        before.assert_same(&Snapshot::content_of(&victim.common), what);
        let after =
            host(place, &repo.workspace, "git for-each-ref refs/heads refs/tags | grep -v 'agent-\\|tag-'");
        assert_eq!(after, mine, "{what}: {outcome}");
        assert_eq!(
            host(place, &repo.workspace, "git symbolic-ref HEAD; git status --porcelain"),
            "refs/heads/main",
            "{what}"
        );
        // The next turn of that session works.
        let outcome =
            turn(place, &repo).session(format!("v{number}")).sh(&format!("git branch again-{number}")).run();
        outcome.expect_ok();
        subjects(place, &repo, &format!("again-{number}"));
        host(
            place,
            &repo.workspace,
            "git for-each-ref --format='delete %(refname)' refs/heads/again-* refs/heads/agent-* refs/tags/tag-* | git update-ref --stdin",
        );
    }
    assert_eq!(old.len(), 40);
    assert_sound(place, &repo);
}

fn rule_12_hooks_of_the_workspace_do_not_run_at_the_import(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    host(place, &repo.workspace, "git config core.hooksPath .husky");
    let mark = mark(place);
    let script = format!(
        "mkdir .husky; for hook in reference-transaction post-index-change pre-auto-gc post-checkout; do
           printf '#!/bin/sh\\ntouch {}\\n' >.husky/$hook; chmod +x .husky/$hook; done
         git -c core.hooksPath=/dev/null commit -q --allow-empty -m agent; git -c core.hooksPath=/dev/null branch other",
        mark.display()
    );
    let outcome = does(place, &repo, &script);
    assert!(!mark.exists(), "the importer ran a hook: {outcome}");
    assert_eq!(subjects(place, &repo, "main")[0], "agent");
    subjects(place, &repo, "other");
    host(place, &repo.workspace, "git update-ref refs/heads/control main");
    assert!(mark.exists(), "the hook does nothing here");
}

fn a_git_that_the_session_plants_is_not_the_importer_s(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let mark = mark(place);
    let bin = repo.workspace.join("bin");
    let script = format!(
        "mkdir bin; printf '#!/bin/sh\\ntouch {}\\nexec /usr/local/bin/git \"$@\"\\n' >bin/git; chmod +x bin/git; git branch agent",
        mark.display()
    );
    let path = format!("{}:.:bin:/usr/local/bin:/usr/bin:/bin", bin.display());
    let outcome = turn(place, &repo).env("PATH", &path).cwd(&repo.workspace).sh(&script).run();
    outcome.expect_ok();
    let outcome = turn(place, &repo)
        .env("PATH", &path)
        .cwd(&repo.workspace)
        .command(["/usr/local/bin/git", "branch", "second"])
        .run();
    outcome.expect_ok();
    assert!(!mark.exists(), "{outcome}");
    subjects(place, &repo, "second");
    host(place, &repo.workspace, &format!("PATH={path} git status >/dev/null"));
    assert!(mark.exists(), "the program does nothing here");
}

fn a_shadow_that_is_destroyed_costs_the_host_nothing(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    does(place, &repo, "git worktree add -q -b mine \"$CODEOID_WORKTREE_DIR/mine\"; git branch early");
    let before = host(place, &repo.workspace, "git for-each-ref; git ls-files -s");
    for (number, destroy) in [
        "rm -rf .git/* 2>/dev/null || :",
        "rm -rf .git/refs .git/packed-refs",
        "rm -rf .git/objects",
        ": >.git/packed-refs; rm -rf .git/refs/*; : >.git/HEAD",
        "head -c 100000 /dev/urandom >.git/index; head -c 1000 /dev/urandom >.git/packed-refs",
        "rm .git/HEAD; mkdir .git/HEAD; rm .git/index; mkfifo .git/index; rm .git/config; mkfifo .git/config; mkfifo .git/refs/heads/pipe",
    ]
    .iter()
    .enumerate()
    {
        let outcome = turn(place, &repo).sh(destroy).run();
        assert!(!outcome.err().contains("panicked"), "{destroy}: {outcome}");
        outcome.expect_ok();
        let after = host(place, &repo.workspace, "git for-each-ref | grep -v refs/codeoid; git ls-files -s");
        assert_eq!(after, before, "{destroy}: {outcome}");
        let next = format!("git branch next-{number}; git -C \"$CODEOID_WORKTREE_DIR/mine\" status --porcelain; git log -1 --format=%s");
        let outcome = does(place, &repo, &next);
        assert_eq!(outcome.out(), "Third", "{destroy}: {outcome}");
        subjects(place, &repo, &format!("next-{number}"));
        host(place, &repo.workspace, &format!("git branch -q -D next-{number}"));
        does(place, &repo, "true");
    }
    assert_sound(place, &repo);
}

fn rule_23_locks_that_were_left_behind_go(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    does(place, &repo, "git worktree add -q -b mine \"$CODEOID_WORKTREE_DIR/mine\"");
    let lock = "touch .git/index.lock .git/HEAD.lock .git/config.lock .git/packed-refs.lock .git/refs/heads/main.lock .git/worktrees/mine/index.lock
        mkdir -p .git/refs/heads/a; touch .git/refs/heads/a/b.lock .git/objects/maintenance.lock; echo 1 >.git/gc.pid; sleep 0.3; ! git add . 2>/dev/null";
    let outcome = does(place, &repo, lock);
    assert_no_findings(&outcome);
    let work = "echo 1 >f1; git add f1; git commit -q -m agent; git config a.b c; git branch a/b; git pack-refs --all
        cd \"$CODEOID_WORKTREE_DIR/mine\"; git commit -q --allow-empty -m mine";
    assert_no_findings(&does(place, &repo, work));
    assert_eq!(
        (subjects(place, &repo, "main")[0].as_str(), subjects(place, &repo, "mine")[0].as_str()),
        ("agent", "mine")
    );
    assert_clean(place, &repo);
    assert_sound(place, &repo);
}

each_identity! {
    rule_12_no_git_of_the_host_runs_on_a_shadow,
    rule_12_links_in_a_shadow_are_not_followed,
    rule_12_hooks_of_the_workspace_do_not_run_at_the_import,
    a_git_that_the_session_plants_is_not_the_importer_s,
    a_shadow_that_is_destroyed_costs_the_host_nothing,
    rule_23_locks_that_were_left_behind_go,
}
