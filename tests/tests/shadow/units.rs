//! A checkout's HEAD, branch, index and operation in progress travel together, both ways, or not at all.

use codeoid_tests::{Layout, Place, Repo, each_identity};

use crate::{
    around, assert_no_findings, assert_sound, commands, does, finding, host, kept, said, subjects, turn,
};

fn rule_1_a_branch_comes_with_its_index_and_undoes_nothing(place: &Place) {
    // The control: the branch alone, beside an index in which the human has something staged.
    let control = Repo::below(place, Layout::Main, "home/control");
    let alone = "echo h >h; git add h; blob=$(echo 1 | git hash-object -w --stdin)
        tree=$( (git ls-tree main; printf '100644 blob %s\\tf1\\n' $blob) | git mktree)
        git update-ref refs/heads/main $(git commit-tree -p main -m agent $tree)
        git commit -q -m human; git diff --name-status HEAD~1 HEAD";
    assert_eq!(
        host(place, &control.workspace, alone),
        "D\tf1\nA\th",
        "the human's commit undoes the agent's"
    );

    let repo = Repo::new(place, Layout::Main);
    let commit = |name: &str| format!("echo 1 >{name}; git add {name}; git commit -q -m agent-{name}");
    let outcome = around(place, &repo, &commit("f1"), &commit("f2"), || {
        host(place, &repo.workspace, "echo h >h; git add h");
    });
    assert_no_findings(&outcome);
    assert_eq!(host(place, &repo.workspace, "git status --porcelain"), "A  h", "{outcome}");
    let commit = "git commit -q -m human; git diff --name-status HEAD~1 HEAD";
    assert_eq!(host(place, &repo.workspace, commit), "A\th", "{outcome}");
    assert_eq!(subjects(place, &repo, "main")[..3], ["human", "agent-f2", "agent-f1"]);
    assert_sound(place, &repo);
}

fn rule_1_the_checkout_that_people_share_changes_at_the_end_only(place: &Place) {
    // A human's commit whose editor is open fails if its branch moves meanwhile.
    let repo = Repo::new(place, Layout::Main);
    let editor = place.write("outside/editor", "#!/bin/sh\nsleep 1.5\necho human >\"$1\"\n");
    std::fs::set_permissions(&editor, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let before = "git branch seen; echo 1 >f1; git add f1; git commit -q -m agent";
    let outcome = around(place, &repo, before, "sleep 0.5", || {
        let script = format!(
            "old=$(git rev-parse main); echo h >h; git add h
             GIT_EDITOR={} git commit -q
             test $(git rev-parse main~1) = $old; git rev-parse -q --verify seen >&2",
            editor.display()
        );
        host(place, &repo.workspace, &script);
    });
    // Both have committed: that is a conflict, and nobody's commit is lost.
    assert_eq!(subjects(place, &repo, "main")[0], "human");
    let kept = kept(place, &repo);
    assert_eq!(kept.len(), 1, "{outcome}");
    assert_eq!(subjects(place, &repo, &kept[0])[0], "agent");
    assert_sound(place, &repo);
}

fn rule_1_what_a_human_commits_comes_with_its_index_too(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    // Staged and not committed: it is on the host afterwards, and still in the session.
    does(place, &repo, "echo s >staged; git add staged");
    assert_eq!(host(place, &repo.workspace, "git status --porcelain"), "A  staged");
    host(place, &repo.workspace, "echo h >h; git add h; git commit -q -m human h");
    let agent = "git commit -q -m agent; git diff --name-status HEAD~1 HEAD; git status --porcelain";
    let outcome = does(place, &repo, agent);
    assert_eq!(outcome.out(), "A\tstaged", "the agent's commit undoes the human's: {outcome}");
    assert_eq!(host(place, &repo.workspace, "git status --porcelain"), "");
    // While the turn runs it is a matter of the session's unit as a whole: its next commit undoes nothing either.
    let outcome = around(place, &repo, "", "echo 2 >f2; git add f2; git commit -q -m second", || {
        host(place, &repo.workspace, "echo i >i; git add i; git commit -q -m 'human too'");
    });
    finding(&outcome, "conflict");
    let kept = kept(place, &repo);
    let changed = place.git(&repo.common, &["diff", "--name-status", &format!("{0}~1", kept[0]), &kept[0]]);
    assert_eq!(changed, "A\tf2", "{outcome}");
    assert_eq!(host(place, &repo.workspace, "git ls-files h i staged f2"), "h\ni\nstaged");
    assert_sound(place, &repo);
}

fn a_conflict_is_told_everywhere_with_the_command_that_ends_it(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let commit = "echo a >a; git add a; git commit -q -m agent";
    let outcome = around(place, &repo, commit, "git branch other", || {
        host(place, &repo.workspace, "echo h >h; git add h; git commit -q -m human");
    });
    let conflict = finding(&outcome, "conflict");
    let merge = commands(&conflict).remove(0);
    let kept = kept(place, &repo);
    assert_eq!(merge, format!("git merge {}", kept[0]), "{outcome}");
    assert!(kept[0].starts_with("refs/codeoid/s1"), "{kept:?}");
    assert!(outcome.err().contains(&merge), "{outcome}");
    let audit = std::fs::read_to_string(place.state().join("audit.jsonl")).unwrap();
    assert!(audit.contains(&merge), "{audit}");
    let promoted = outcome.report()["promoted"].to_string();
    assert!(promoted.contains(&kept[0]) && promoted.contains("refs/heads/other"), "{promoted}");
    assert_eq!(host(place, &repo.workspace, "git status --porcelain"), "?? a", "{outcome}");
    // The folder is shared, so the agent's file is there already.
    host(place, &repo.workspace, &format!("rm a; {merge} -q -m merged; cat a h"));
    assert_eq!(host(place, &repo.workspace, "git status --porcelain"), "");
    // What is merged is no conflict any more, and the session goes on from there.
    let outcome =
        does(place, &repo, "git status --porcelain; cat a h; echo b >b; git add b; git commit -q -m next");
    assert_no_findings(&outcome);
    assert_eq!(outcome.out(), "a\nh");
    assert_eq!(subjects(place, &repo, "main")[0], "next");
    assert_eq!(host(place, &repo.workspace, "git status --porcelain"), "");
    assert_sound(place, &repo);
}

fn rule_6_a_rebase_of_the_human_can_be_continued(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let rebase = "git rebase -q feature >&2 || :; test -d .git/rebase-merge";
    let control = Repo::below(place, Layout::Main, "home/control");
    host(place, &control.workspace, "echo mine >src/text; git commit -q -a -m mine");
    host(place, &control.workspace, rebase);
    let moved = "git update-ref refs/heads/main feature; echo both >src/text; git add src/text
        ! GIT_EDITOR=true git rebase --continue 2>&1 | grep -q 'could not update' && exit 1; :";
    host(place, &control.workspace, moved);

    host(place, &repo.workspace, "echo mine >src/text; git commit -q -a -m mine");
    let outcome = around(place, &repo, "", "echo g >g; git add g; git commit -q -m agent", || {
        host(place, &repo.workspace, rebase);
    });
    let conflict = finding(&outcome, "conflict");
    host(
        place,
        &repo.workspace,
        "echo both >src/text; git add src/text; GIT_EDITOR=true git rebase --continue",
    );
    assert_eq!(subjects(place, &repo, "main")[..3], ["mine", "Third", "Feature two"], "{outcome}");
    // The agent's has the commits from before the rebase below it.
    let merge = format!(
        "rm g; {} -q >&2 || {{ echo both >src/text; git add src/text; git commit -q -m merged; }}; cat g",
        commands(&conflict)[0]
    );
    assert_eq!(host(place, &repo.workspace, &merge), "g");
    assert_sound(place, &repo);
}

fn rule_6_a_merge_of_the_human_removes_nothing_of_the_agent(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let outcome = around(place, &repo, "", "echo g >g; git add g; git commit -q -m agent", || {
        host(place, &repo.workspace, "git merge -q --no-ff --no-commit feature; test -f .git/MERGE_HEAD");
    });
    let conflict = finding(&outcome, "conflict");
    host(place, &repo.workspace, "test -f .git/MERGE_HEAD; git commit -q -m merge; git rev-parse -q HEAD^2");
    let changed = "git diff --name-status HEAD~1 HEAD";
    assert_eq!(host(place, &repo.workspace, changed), "A\tsrc/feature\nM\tsrc/text", "{outcome}");
    host(place, &repo.workspace, &format!("rm g; {} -q -m both; cat g src/feature", commands(&conflict)[0]));
    assert_eq!(subjects(place, &repo, "main")[0], "both");
    assert_sound(place, &repo);
}

fn rule_6_a_lock_of_the_human_is_waited_for_and_then_respected(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let outcome = around(place, &repo, "", "echo g >g; git add g; git commit -q -m agent", || {
        host(place, &repo.workspace, "touch .git/index.lock");
    });
    assert!(said(&outcome).contains("index.lock"), "{outcome}");
    assert_eq!(host(place, &repo.workspace, "ls .git/index.lock; rm .git/index.lock"), ".git/index.lock");
    assert_eq!(subjects(place, &repo, &kept(place, &repo)[0])[0], "agent");
    // The next turn brings it over.
    assert_no_findings(&does(place, &repo, "true"));
    assert_eq!(subjects(place, &repo, "main")[0], "agent");
    assert_eq!(host(place, &repo.workspace, "git status --porcelain"), "");
}

fn a_human_who_changes_branches_meanwhile_keeps_theirs(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let outcome = around(place, &repo, "", "echo g >g; git add g; git commit -q -m agent", || {
        host(place, &repo.workspace, "git switch -q feature");
    });
    let merge = commands(&finding(&outcome, "conflict")).remove(0);
    assert_eq!(
        host(place, &repo.workspace, "git symbolic-ref HEAD; git status --porcelain"),
        "refs/heads/feature\n?? g",
        "{outcome}"
    );
    assert_eq!(subjects(place, &repo, "main")[0], "Third");
    host(
        place,
        &repo.workspace,
        &format!("rm g; git switch -q main; {merge} -q; git status --porcelain; cat g"),
    );
    assert_eq!(subjects(place, &repo, "main")[0], "agent");
    // And back in step with the session.
    let outcome = does(place, &repo, "git symbolic-ref HEAD; git status --porcelain");
    assert_no_findings(&outcome);
    assert_eq!(outcome.out(), "refs/heads/main");
    assert_sound(place, &repo);
}

fn rule_7_a_rebase_of_the_session_stays_with_it(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let state = "git symbolic-ref HEAD; git rev-parse main feature; git ls-files -s; ls .git | grep -v index";
    let before = host(place, &repo.workspace, state);
    let rebase = "git checkout -q feature; git rebase -q rival >&2 || :; test -d .git/rebase-merge";
    let outcome = does(place, &repo, rebase);
    let frozen = finding(&outcome, "operation-in-progress");
    let words = frozen["detail"].as_str().unwrap();
    assert!(words.contains("git rebase --continue") && words.contains("--abort"), "{outcome}");
    assert!(outcome.err().contains("git rebase --continue"), "{outcome}");
    assert_eq!(host(place, &repo.workspace, state), before, "{outcome}");
    assert_sound(place, &repo);
    // It goes on where it was.
    let go_on = "test -d .git/rebase-merge; echo both >src/text; git add src/text
        GIT_EDITOR=true git rebase --continue >&2; git status --porcelain";
    let outcome = does(place, &repo, go_on);
    assert_no_findings(&outcome);
    assert_eq!(outcome.out(), "");
    assert_eq!(
        host(place, &repo.workspace, "git symbolic-ref HEAD; git status --porcelain"),
        "refs/heads/feature"
    );
    assert_eq!(subjects(place, &repo, "feature")[..3], ["Feature two", "Feature one", "Rival"]);
    assert_sound(place, &repo);
}

fn rule_7_the_branch_of_a_rebase_in_a_worktree_stays_in_use(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let outcome = does(
        place,
        &repo,
        "git worktree add -q -b mine \"$CODEOID_WORKTREE_DIR/mine\" feature
        cd \"$CODEOID_WORKTREE_DIR/mine\"; pwd -P",
    );
    let mine = std::path::PathBuf::from(outcome.out());
    let cd = format!("cd {}\n", mine.display());
    let outcome =
        does(place, &repo, &format!("{cd} git rebase -q rival >&2 || :; git status | grep -q rebase"));
    let frozen = finding(&outcome, "operation-in-progress");
    assert_eq!(frozen["entry"], "mine", "{outcome}");
    assert_eq!(host(place, &mine, "git symbolic-ref HEAD; git ls-files -u"), "refs/heads/mine");
    let delete = place.sh(&repo.workspace, "git branch -D mine");
    assert!(!delete.ok(), "a branch in use could be deleted: {delete}");
    let go_on =
        format!("{cd} echo both >src/text; git add src/text; GIT_EDITOR=true git rebase --continue >&2");
    assert_no_findings(&does(place, &repo, &go_on));
    assert_eq!(subjects(place, &repo, "mine")[..3], ["Feature two", "Feature one", "Rival"]);
    assert_eq!(host(place, &mine, "git status --porcelain; git symbolic-ref HEAD"), "refs/heads/mine");
    assert_sound(place, &repo);
}

fn rule_7_an_operation_that_is_aborted_leaves_nothing(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    does(place, &repo, "git checkout -q -b x feature; git merge -q rival >&2 || :; test -f .git/MERGE_HEAD");
    let outcome = does(place, &repo, "git merge --abort; git checkout -q main; git branch -q -D x");
    assert_no_findings(&outcome);
    assert_eq!(
        host(place, &repo.workspace, "git symbolic-ref HEAD; git status --porcelain"),
        "refs/heads/main"
    );
    assert_sound(place, &repo);
}

fn rule_7_an_index_with_conflicts_is_never_imported(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    // Without MERGE_HEAD, so that nothing but the index says it.
    let pop = "echo x >src/text; git stash -q; echo y >src/text; git commit -q -a -m agent
        git stash pop -q >&2 || :; git ls-files -u | grep -q .; ! test -e .git/MERGE_HEAD";
    let outcome = does(place, &repo, pop);
    finding(&outcome, "operation-in-progress");
    let state = "git ls-files -u; git log -1 --format=%s; git stash list --format=%s";
    assert_eq!(
        host(place, &repo.workspace, state),
        "Third\nWIP on main: 0000000 Third"
            .replace("0000000", &place.git(&repo.common, &["rev-parse", "--short", "main"])),
        "{outcome}"
    );
    let outcome = does(place, &repo, "git add src/text; git stash drop -q; git commit -q -m resolved");
    assert_no_findings(&outcome);
    assert_eq!(subjects(place, &repo, "main")[..2], ["resolved", "agent"]);
    assert_eq!(host(place, &repo.workspace, "git status --porcelain; git stash list"), "", "{outcome}");
    assert_sound(place, &repo);
}

fn a_turn_that_changes_branches_moves_head_and_index_together(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let script =
        "git checkout -q -b new feature; git rm -q src/feature; echo n >n; git add n; git commit -q -m new
        echo staged >staged; git add staged; git rm -q --cached docs/notes.md";
    let outcome = turn(place, &repo).sh(&format!("set -e; {script}; git status --porcelain -b")).run();
    let inside = outcome.expect_ok().out();
    assert_no_findings(&outcome);
    assert_eq!(host(place, &repo.workspace, "git status --porcelain -b"), inside);
    assert_eq!(subjects(place, &repo, "new")[..2], ["new", "Feature two"]);
    assert_eq!(
        host(place, &repo.workspace, "git reflog -1 --format=%H; git write-tree >/dev/null").len(),
        40
    );
    assert_sound(place, &repo);
}

each_identity! {
    rule_1_a_branch_comes_with_its_index_and_undoes_nothing,
    rule_1_the_checkout_that_people_share_changes_at_the_end_only,
    rule_1_what_a_human_commits_comes_with_its_index_too,
    a_conflict_is_told_everywhere_with_the_command_that_ends_it,
    rule_6_a_rebase_of_the_human_can_be_continued,
    rule_6_a_merge_of_the_human_removes_nothing_of_the_agent,
    rule_6_a_lock_of_the_human_is_waited_for_and_then_respected,
    a_human_who_changes_branches_meanwhile_keeps_theirs,
    rule_7_a_rebase_of_the_session_stays_with_it,
    rule_7_the_branch_of_a_rebase_in_a_worktree_stays_in_use,
    rule_7_an_operation_that_is_aborted_leaves_nothing,
    rule_7_an_index_with_conflicts_is_never_imported,
    a_turn_that_changes_branches_moves_head_and_index_together,
}
