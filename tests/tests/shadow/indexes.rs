//! Indexes and stashes: all that they name comes with them, and they are merged by entries.

use codeoid_tests::{Layout, Place, Repo, each_identity};

use crate::{around, assert_no_findings, assert_sound, does, finding, host, said, subjects, turn};

fn rule_8_objects_that_only_an_index_names_come_too(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let outcome = does(place, &repo, "echo only-in-the-index >new; git add new; git rev-parse :new");
    // The control: nothing but the index names it.
    let blob = outcome.out();
    let named = format!("git rev-list --objects --all | grep -c {blob} || :");
    assert_eq!(host(place, &repo.workspace, &named), "0");
    assert_eq!(
        host(place, &repo.workspace, "git status --porcelain; git cat-file -p :new"),
        "A  new\nonly-in-the-index"
    );
    host(place, &repo.workspace, "git write-tree; git stash -q; git stash pop -q --index");
    assert_eq!(host(place, &repo.workspace, "git status --porcelain"), "A  new");
    assert_sound(place, &repo);
}

fn rule_8_every_entry_of_the_stash_comes(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let stash = |name: &str| format!("echo {name} >>src/text; git stash push -q -m {name}; ");
    let outcome = does(place, &repo, &[stash("one"), stash("two"), stash("three")].concat());
    assert_no_findings(&outcome);
    assert_eq!(
        host(place, &repo.workspace, "git stash list --format=%gs"),
        "On main: three\nOn main: two\nOn main: one"
    );
    // Two of the three live in the reflog only.
    assert_eq!(host(place, &repo.workspace, "git for-each-ref refs/stash | wc -l"), "1");
    assert_eq!(
        host(place, &repo.workspace, "git stash pop -q 'stash@{2}'; tail -n 1 src/text; git checkout -q src"),
        "one"
    );
    // Taken away on the host: the session sees that, and takes another one away itself.
    let outcome = does(place, &repo, "git stash list --format=%gs; git stash drop -q 'stash@{1}'");
    assert_eq!(outcome.out(), "On main: three\nOn main: two", "{outcome}");
    assert_eq!(host(place, &repo.workspace, "git stash list --format=%gs"), "On main: three", "{outcome}");
    host(place, &repo.workspace, "git stash pop -q; tail -n 1 src/text | grep three; git checkout -q src");
    assert_sound(place, &repo);
}

fn rule_8_stashes_of_both_sides_are_one_list(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let mine = repo.top.join("mine");
    host(place, &repo.workspace, &format!("git worktree add -q --detach {}", mine.display()));
    let outcome = around(
        place,
        &repo,
        "echo agent >>src/text; git stash push -q -m agent-1",
        "echo agent >>src/text; git stash push -q -m agent-2; git stash list --format=%gs",
        || {
            host(place, &mine, "echo human >>src/text; git stash push -q -m human");
        },
    );
    let list = host(place, &repo.workspace, "git stash list --format=%gs | sed 's/.*: //' | sort");
    assert_eq!(list, "agent-1\nagent-2\nhuman", "{outcome}");
    host(place, &mine, "for n in 0 1 2; do git stash show -p stash@{$n}; done; git stash list");
    let outcome = does(place, &repo, "git stash list --format=%gs | sed 's/.*: //' | sort");
    assert_eq!(outcome.out(), list, "{outcome}");
    assert_sound(place, &repo);
}

fn rule_9_an_index_in_two_files_comes_as_one(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let script = "git config core.splitIndex true; git config core.untrackedCache true
        git update-index --split-index --untracked-cache; echo 1 >f1; git add f1; git commit -q -m agent
        echo s >s; git add s; ls .git | grep -c ^sharedindex";
    let outcome = does(place, &repo, script);
    // The control: the session's is in two files, and a copy of it alone is broken.
    assert_ne!(outcome.out(), "0");
    let split = crate::shadow(place).join("git");
    let copy = format!(
        "cp {}/index ../copied; ! GIT_INDEX_FILE=$PWD/../copied git status 2>/dev/null",
        split.display()
    );
    host(place, &repo.workspace, &copy);

    let state = "git status --porcelain; ls .git | grep sharedindex || :; git config core.splitIndex || :; git write-tree >/dev/null";
    assert_eq!(host(place, &repo.workspace, state), "A  s", "{outcome}");
    assert_eq!(subjects(place, &repo, "main")[0], "agent");
    // A host that keeps its own index in two files is no hindrance.
    host(
        place,
        &repo.workspace,
        "git update-index --split-index; git commit -q -m human; ls .git | grep -q sharedindex",
    );
    let outcome =
        does(place, &repo, "git status --porcelain; echo 2 >f2; git add f2; git commit -q -m second");
    assert_no_findings(&outcome);
    assert_eq!(outcome.out(), "");
    assert_eq!(host(place, &repo.workspace, "git status --porcelain"), "");
    assert_eq!(subjects(place, &repo, "main")[..2], ["second", "human"]);
    assert_sound(place, &repo);
}

fn rule_9_an_editor_that_asks_for_the_status_is_no_conflict(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let stop = repo.top.join("stop");
    let ask = format!(
        "while ! test -e {0}; do touch src/text README.md; git status >/dev/null; done",
        stop.display()
    );
    let mut command = place.command("/bin/sh");
    let mut asking = command.args(["-c", &ask]).current_dir(&repo.workspace).spawn().unwrap();
    let mut outcomes = vec![];
    for number in 0..4 {
        let commits = format!(
            "for n in 1 2 3 4 5; do echo $n >f{number}$n; git add f{number}$n; git commit -q -m {number}$n; done; sleep 0.1"
        );
        outcomes.push(turn(place, &repo).sh(&commits).run());
    }
    std::fs::write(&stop, "").unwrap();
    asking.wait().unwrap();
    for outcome in &outcomes {
        assert_no_findings(outcome);
        assert_eq!(outcome.expect_ok().err(), "", "{outcome}");
    }
    assert_eq!(subjects(place, &repo, "main").len(), 20 + 3);
    assert_eq!(host(place, &repo.workspace, "git status --porcelain"), "");
    assert_sound(place, &repo);
}

fn rule_9_both_stage_and_the_host_wins_for_a_path(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let outcome = around(place, &repo, "echo agent >both; git add both; echo a >a; git add a", "", || {
        let script =
            "echo human >both; git add both; echo h >h; git add h; git update-index --chmod=+x README.md";
        host(place, &repo.workspace, script);
    });
    assert_eq!(
        host(place, &repo.workspace, "git diff --cached --name-only; git cat-file -p :both"),
        "README.md\na\nboth\nh\nhuman",
        "{outcome}"
    );
    assert!(said(&outcome).contains("both"), "{outcome}");
    // The session keeps its own as long as it stages it.
    let outcome = does(place, &repo, "git cat-file -p :both; git rm -q -f --cached both");
    assert_eq!(outcome.out(), "agent", "{outcome}");
    let outcome = does(place, &repo, "git cat-file -p :both; git ls-files a h");
    assert_eq!(outcome.out(), "human\na\nh", "{outcome}");
    // With a commit of the session, the human's next one would undo it: everything stays.
    let commit = "echo second >a; git add a; git commit -q -m agent";
    let outcome = around(place, &repo, commit, "", || {
        host(place, &repo.workspace, "echo humans >a; git add a");
    });
    finding(&outcome, "conflict");
    assert_eq!(
        host(place, &repo.workspace, "git cat-file -p :a; git log -1 --format=%s"),
        "humans\nThird",
        "{outcome}"
    );
    assert_sound(place, &repo);
}

fn rule_10_a_repository_with_submodules_is_refused_by_name(place: &Place) {
    let repo = Repo::new(place, Layout::Submodule);
    let top = repo.workspace.parent().unwrap();
    let outcome = place.turn(top).options(crate::SHADOW).sh("true").run();
    outcome.expect_refusal(&["submodules", "--git-protection shared"]);
    place.turn(top).options(["--git-protection", "shared"]).sh("git status").run().expect_ok();
}

fn rule_10_a_new_submodule_stays_with_the_session_and_git_works(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let script =
        "git -c protocol.file.allow=always submodule --quiet add \"$REMOTE\" sub; git commit -q -m 'Add sub'
        git branch other";
    let outcome = does(place, &repo, script);
    assert!(said(&outcome).contains("sub is a repository of its own"), "{outcome}");
    // The control: this is what an index with it, and without its git dir, would do.
    let index = "GIT_INDEX_FILE=$PWD/../index git read-tree other; ! GIT_INDEX_FILE=$PWD/../index git status 2>&1 | grep fatal";
    let control = place.sh(&repo.workspace, index);
    assert!(control.out().contains("fatal: not a git repository"), "{control}");

    let state = "git status --porcelain --ignore-submodules=none; git log -1 --format=%s";
    assert_eq!(host(place, &repo.workspace, state).lines().last(), Some("Third"), "{outcome}");
    assert_eq!(subjects(place, &repo, "other")[0], "Add sub", "{outcome}");
    host(place, &repo.workspace, "git checkout -q -b elsewhere; echo x >x; git add x; git commit -q -m x");
    // The session still has it whole.
    let outcome = does(place, &repo, "git -C sub log -1 --format=%s; git submodule status >/dev/null");
    assert_eq!(outcome.out(), "Third", "{outcome}");
    assert_sound(place, &repo);
}

each_identity! {
    rule_8_objects_that_only_an_index_names_come_too,
    rule_8_every_entry_of_the_stash_comes,
    rule_8_stashes_of_both_sides_are_one_list,
    rule_9_an_index_in_two_files_comes_as_one,
    rule_9_an_editor_that_asks_for_the_status_is_no_conflict,
    rule_9_both_stage_and_the_host_wins_for_a_path,
    rule_10_a_repository_with_submodules_is_refused_by_name,
    rule_10_a_new_submodule_stays_with_the_session_and_git_works,
}
