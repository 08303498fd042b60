//! Sessions and a human in one repository, at the same time and one after the other.

use std::time::Duration;

use codeoid_tests::{Layout, Place, Repo, Running, each_identity, wait_until};

use crate::{
    SHADOW, assert_no_findings, assert_sound, commands, does, finding, folder, host, kept, said, subjects,
    turn,
};

/// Commits on a branch in a worktree of its own.
fn work(branch: &str, text: &str) -> String {
    format!(
        "set -e; git worktree add -q -b {branch} \"$CODEOID_WORKTREE_DIR/{branch}\"; cd \"$CODEOID_WORKTREE_DIR/{branch}\"
         echo {text} >{text}; git add {text}; git commit -q -m {text}"
    )
}

fn two_sessions_and_a_human_make_a_branch_of_one_name(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let script = |text: &str| format!("echo ready; read go; {}; echo done; read go", work("work", text));
    let mut turns: Vec<Running> =
        ["a", "b"].map(|id| turn(place, &repo).session(id).sh(&script(id)).spawn()).into();
    for running in &mut turns {
        running.expect("ready");
    }
    host(
        place,
        &repo.workspace,
        "git worktree add -q -b work ../work; cd ../work; echo h >h; git add h; git commit -q -m h",
    );
    for running in &mut turns {
        running.say("go");
        running.expect("done");
    }
    for mut running in turns {
        running.say("go");
        let outcome = running.finish();
        let conflict = finding(outcome.expect_ok(), "conflict");
        assert!(outcome.err().contains(&commands(&conflict)[0]), "{outcome}");
        host(place, &repo.top.join("work"), &format!("{} -q -m merged", commands(&conflict)[0]));
    }
    assert_eq!(kept(place, &repo).len(), 2);
    assert_eq!(
        host(
            place,
            &repo.top.join("work"),
            "cat a b h; git status --porcelain; git log --format=%s | sort | tr '\\n' ' '"
        ),
        "a\nb\nh\nFirst Second Third a b h merged merged"
    );
    assert_sound(place, &repo);
}

fn the_first_of_two_sessions_has_the_branch_and_both_keep_their_work(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let script = |text: &str| format!("echo ready; read go; {}", work("work", text));
    let mut turns: Vec<Running> =
        ["a", "b"].map(|id| turn(place, &repo).session(id).sh(&script(id)).spawn()).into();
    for running in &mut turns {
        running.expect("ready");
    }
    let mut outcomes = vec![];
    for mut running in turns {
        running.say("go");
        outcomes.push(running.finish());
    }
    assert_no_findings(outcomes[0].expect_ok());
    let conflict = finding(outcomes[1].expect_ok(), "conflict");
    assert_eq!(subjects(place, &repo, "work")[0], "a");
    assert_eq!(subjects(place, &repo, &kept(place, &repo)[0])[0], "b");
    let ours = folder(&repo, "a").join("work");
    assert_eq!(host(place, &ours, "git status --porcelain; git log -1 --format=%s"), "a");
    // The second goes on with its own, under another name, and that comes.
    let rename = "cd \"$CODEOID_WORKTREE_DIR/work\"; git log -1 --format=%s; git branch -m work work-b; git status --porcelain";
    let outcome = turn(place, &repo).session("b").sh(rename).run();
    assert_eq!(outcome.expect_ok().out(), "b", "{outcome}");
    assert_no_findings(&outcome);
    assert_eq!(subjects(place, &repo, "work-b")[0], "b", "{outcome}");
    let theirs = folder(&repo, "b").join("work");
    assert_eq!(
        host(place, &theirs, "git symbolic-ref HEAD; git status --porcelain"),
        "refs/heads/work-b",
        "{outcome}"
    );
    assert_eq!(subjects(place, &repo, "work")[0], "a");
    host(place, &ours, &format!("{} -q -m merged; cat a b", commands(&conflict)[0]));
    assert_sound(place, &repo);
}

fn sessions_see_each_other_s_work_in_their_next_turn(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    turn(place, &repo).session("a").sh(&work("one", "a")).run().expect_ok();
    let look = "git log -1 --format=%s one; git worktree list | grep -c /one; git branch -q two one; git worktree remove --force \"$(git worktree list --porcelain | sed -n 's,^worktree \\(.*/one\\)$,\\1,p')\" 2>/dev/null || echo kept";
    let outcome = turn(place, &repo).session("b").sh(look).run();
    assert_eq!(outcome.expect_ok().out(), "a\n1\nkept", "{outcome}");
    let ours = folder(&repo, "a").join("one");
    assert_eq!(host(place, &ours, "git status --porcelain; cat a"), "a");
    let outcome = turn(place, &repo)
        .session("a")
        .sh("git log -1 --format=%s two; git -C \"$CODEOID_WORKTREE_DIR/one\" status --porcelain")
        .run();
    assert_eq!(outcome.expect_ok().out(), "a", "{outcome}");
    assert_sound(place, &repo);
}

fn turns_of_one_session_share_its_shadow(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let mut first = turn(place, &repo)
        .sh(&format!(
            "{}; echo ready; read go; git log -1 --format=%s two; git commit -q --allow-empty -m last",
            work("one", "a")
        ))
        .spawn();
    first.expect("ready");
    let second = turn(place, &repo)
        .sh(&format!("git log -1 --format=%s one; git branch -q -D rival; {}", work("two", "b")))
        .run();
    assert_eq!(second.expect_ok().out(), "a", "{second}");
    // A deletion waits for the last of them.
    assert_eq!(subjects(place, &repo, "rival")[0], "Rival");
    first.say("go");
    let first = first.finish();
    assert_eq!(first.expect_ok().out(), "ready\nb", "{first}");
    assert_eq!(
        (subjects(place, &repo, "one")[0].as_str(), subjects(place, &repo, "two")[0].as_str()),
        ("last", "b")
    );
    assert!(!place.sh(&repo.workspace, "git rev-parse -q --verify refs/heads/rival").ok(), "{first}");
    assert_sound(place, &repo);
}

/// Adds a worktree and commits in it, again and again, with what runs into the others on the way.
fn busy(name: &str, folder: &str) -> String {
    format!(
        r#"set -e
        again() {{ for pause in 0.02 0.05 0.1 0.2 0.5 1; do "$@" && return 0; sleep $pause; done; "$@"; }}
        again git worktree add -q -B {name} {folder}/{name} v2; cd {folder}/{name}; i=0
        while [ $i -lt 12 ]; do
            i=$((i + 1)); echo $i >{name}.$i; again git add .; again git commit -q -m "{name} $i"
            again git tag -f {name}-$i >/dev/null; again git branch -q -f {name}-side HEAD
            [ $((i % 5)) -ne 0 ] || git pack-refs --all 2>/dev/null || :
            [ $((i % 7)) -ne 0 ] || git gc -q --prune=now 2>/dev/null || :
            if [ $((i % 4)) -eq 0 ]; then
                again git worktree add -q --detach {folder}/{name}-$i
                again git worktree remove {folder}/{name}-$i
            fi
            [ $((i % 6)) -ne 0 ] || again git worktree prune
        done"#
    )
}

fn two_sessions_and_a_human_at_once_serial(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let mut turns: Vec<Running> = ["one", "two"]
        .map(|id| {
            place
                .turn(&repo.workspace)
                .session(id)
                .options(SHADOW)
                .sh(&busy(id, "\"$CODEOID_WORKTREE_DIR\""))
                .spawn()
        })
        .into();
    let elsewhere = place.make("home/elsewhere");
    place.sh(&repo.workspace, &busy("hand", elsewhere.to_str().unwrap())).expect_ok();
    assert!(wait_until(Duration::from_secs(90), || turns.iter_mut().all(Running::has_ended)));
    for running in turns {
        let outcome = running.finish();
        assert_no_findings(outcome.expect_ok());
    }
    for name in ["one", "two", "hand"] {
        let found = subjects(place, &repo, name);
        for number in 1..=12 {
            assert!(found.contains(&format!("{name} {number}")), "{name} {number} is lost: {found:?}");
            place.git(
                &repo.workspace,
                &["rev-parse", "-q", "--verify", &format!("refs/tags/{name}-{number}")],
            );
        }
        assert_eq!(subjects(place, &repo, &format!("{name}-side"))[0], format!("{name} 12"));
    }
    let list = place.git(&repo.workspace, &["worktree", "list", "--porcelain"]);
    assert_eq!(list.matches("worktree ").count(), 5, "{list}");
    repo.assert_sound(place);
    assert_sound(place, &repo);
}

fn a_turn_that_does_nothing_says_and_changes_nothing(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    for _ in 0..2 {
        let before = codeoid_tests::Snapshot::of(&repo.common);
        let outcome = does(place, &repo, "git status >/dev/null; git log --oneline --all >/dev/null");
        before.assert_same(&codeoid_tests::Snapshot::of(&repo.common), "the repository");
        assert_no_findings(&outcome);
        assert_eq!(
            (outcome.err().as_str(), outcome.report()["promoted"].to_string().as_str()),
            ("", "[]"),
            "{}",
            said(&outcome)
        );
    }
}

each_identity! {
    two_sessions_and_a_human_make_a_branch_of_one_name,
    the_first_of_two_sessions_has_the_branch_and_both_keep_their_work,
    sessions_see_each_other_s_work_in_their_next_turn,
    turns_of_one_session_share_its_shadow,
    two_sessions_and_a_human_at_once_serial,
    a_turn_that_does_nothing_says_and_changes_nothing,
}
