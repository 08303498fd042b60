//! Every layout of a repository: what a turn does there comes, what the host does there is seen.

use codeoid_tests::{Git, Layout, Place, Repo, each_identity};

use crate::{SHADOW, assert_clean, assert_no_findings, does, host, turn};

fn what_a_turn_does_comes_in_every_layout(place: &Place) {
    for layout in Layout::REPOSITORIES {
        if layout == Layout::Reftable {
            continue;
        }
        let repo = Repo::below(place, layout, &format!("home/{}", layout.name()));
        let name = layout.name();
        let script = format!(
            "echo 1 >f1; git add f1; git commit -q -m agent; echo s >s; git add s; git branch other; git tag t
             git worktree add -q -b mine \"$CODEOID_WORKTREE_DIR/mine-{name}\"
             cd \"$CODEOID_WORKTREE_DIR/mine-{name}\"; echo m >m; git add m; git commit -q -m mine; pwd -P"
        );
        let outcome = does(place, &repo, &script);
        assert_no_findings(&outcome);
        let state = "git log -1 --format=%s; git diff --cached --name-only --relative; git diff --name-only; git log -1 --format=%s other";
        assert_eq!(host(place, &repo.workspace, state), "agent\ns\nagent", "{name}: {outcome}");
        let mine = std::path::PathBuf::from(outcome.out());
        assert_eq!(
            host(place, &mine, "git status --porcelain; git log -1 --format=%s"),
            "mine",
            "{name}: {outcome}"
        );
        // The other way.
        host(place, &mine, "git commit -q --allow-empty -m human");
        host(place, &repo.workspace, "echo h >h; git add h; git commit -q -m human; git branch new");
        let look = format!(
            "git log -1 --format=%s; git status --porcelain; git ls-files h s f1 | tr '\\n' ' '; git rev-parse -q --verify new >/dev/null
             cd \"$CODEOID_WORKTREE_DIR/mine-{name}\"; git log -1 --format=%s; git status --porcelain"
        );
        let outcome = does(place, &repo, &look);
        assert_no_findings(&outcome);
        assert_eq!(outcome.out(), "human\nf1 h s human", "{name}: {outcome}");
        repo.assert_sound(place);
        assert_clean(place, &repo);
    }
}

fn a_repository_that_keeps_refs_in_tables_is_refused_by_name(place: &Place) {
    if Layout::Reftable.gits().is_empty() {
        return;
    }
    let repo = Repo::new(place, Layout::Reftable);
    turn(place, &repo).sh("true").run().expect_refusal(&["reftable", "--git-protection shared"]);
    assert!(
        !place.state().join("sessions").exists()
            || place.sh(&place.state(), "ls sessions/*/shadow").out().is_empty()
    );
}

fn without_a_repository_there_is_nothing_to_protect(place: &Place) {
    let workspace = place.make("home/w");
    let outcome = place
        .turn(&workspace)
        .options(SHADOW)
        .sh("touch made; git init -q x; git -C x status --porcelain")
        .run();
    outcome.expect_ok();
    assert_no_findings(&outcome);
    assert!(workspace.join("made").exists());
}

fn a_repository_without_a_commit_gets_its_first_from_a_turn(place: &Place) {
    let workspace = place.make("home/w");
    host(place, &workspace, "git init -q; echo h >h; git add h");
    let outcome = place
        .turn(&workspace)
        .options(SHADOW)
        .sh("set -e; echo a >a; git add a; git commit -q -m first; git ls-files")
        .run();
    assert_eq!(outcome.expect_ok().out(), "a\nh", "{outcome}");
    assert_no_findings(&outcome);
    assert_eq!(
        host(
            place,
            &workspace,
            "git log --format=%s; git status --porcelain; git ls-files; git fsck --no-progress"
        ),
        "first\na\nh",
        "{outcome}"
    );
}

fn every_git_on_this_machine_agrees(place: &Place) {
    for git in Git::all() {
        let mut place = Place::new(place.identity(), &format!("git-{}-{}", git.version.0, git.version.1));
        place.prefer(&git.directory);
        let repo = Repo::new(&place, Layout::Main);
        let outcome = does(
            &place,
            &repo,
            "echo 1 >f1; git add f1; git commit -q -m agent; git worktree add -q -b mine \"$CODEOID_WORKTREE_DIR/mine\"; git stash -q 2>/dev/null || :",
        );
        assert_no_findings(&outcome);
        assert_eq!(
            host(
                &place,
                &repo.workspace,
                "git log -1 --format=%s; git status --porcelain; git worktree list | grep -c mine"
            ),
            "agent\n1",
            "{git:?}: {outcome}"
        );
        repo.assert_sound(&place);
    }
}

each_identity! {
    what_a_turn_does_comes_in_every_layout,
    a_repository_that_keeps_refs_in_tables_is_refused_by_name,
    without_a_repository_there_is_nothing_to_protect,
    a_repository_without_a_commit_gets_its_first_from_a_turn,
    every_git_on_this_machine_agrees,
}
