//! Branches, tags and symbolic refs that belong to no checkout: by compare-and-swap, creations before deletions, each
//! alone where all together fail.

use std::process::Child;

use codeoid_tests::{Layout, Place, Repo, each_identity};

use crate::{
    SHADOW, around, assert_no_findings, assert_sound, commands, does, finding, folder, host, kept, said,
    shadow, subjects, turn,
};

/// A program of the host that goes on until the file `stop` beside the repository exists.
struct Beside(Child, std::path::PathBuf);

impl Beside {
    fn start(place: &Place, repo: &Repo, script: &str) -> Self {
        let stop = repo.top.join("stop");
        let text = format!("while ! test -e {}; do {script}\ndone", stop.display());
        let mut command = place.command("/bin/sh");
        let child = command.args(["-c", &text]).current_dir(&repo.workspace).spawn().unwrap();
        Self(child, stop)
    }

    fn end(mut self) {
        std::fs::write(&self.1, "").unwrap();
        self.0.wait().unwrap();
        std::fs::remove_file(&self.1).unwrap();
    }
}

const BRANCHES: &str =
    "git for-each-ref --format='%(refname) %(objectname)' refs/heads refs/tags | grep -v agent";

fn rule_2_a_build_beside_pack_refs_deletes_no_branch(place: &Place) {
    // The control: copied at the wrong moment, in the order of a simple copy, there is no branch at all.
    let control = Repo::below(place, Layout::Main, "home/control");
    let copy =
        "git init -q --bare ../copy; cp .git/packed-refs ../copy/ 2>/dev/null || :; git pack-refs --all
        rm -r ../copy/refs; cp -r .git/refs ../copy/; git -C ../copy for-each-ref refs/heads | wc -l";
    assert_eq!(host(place, &control.workspace, copy), "0");

    let repo = Repo::new(place, Layout::Main);
    let before = host(place, &repo.workspace, BRANCHES);
    let names = host(
        place,
        &repo.workspace,
        "git for-each-ref --format='%(refname:short)' refs/heads | sort | tr '\\n' ' '",
    );
    host(place, &repo.workspace, "for b in feature rival; do git update-ref refs/keep/$b $b; done");
    // Packed and loose again, all the time.
    let toggle = "git pack-refs --all; for b in feature rival; do \
         git update-ref refs/heads/$b refs/keep/$b^ && git update-ref refs/heads/$b refs/keep/$b; done";
    let beside = Beside::start(place, &repo, toggle);
    let mut outcomes = vec![];
    for number in 0..10 {
        // A session of its own each time, so that each is a build; and something to import.
        let script = format!(
            "git for-each-ref --format='%(refname:short)' refs/heads | grep -v agent | sort | tr '\\n' ' '; git branch agent-{number}"
        );
        outcomes.push(
            place.turn(&repo.workspace).session(format!("b{number}")).options(SHADOW).sh(&script).run(),
        );
    }
    beside.end();
    for outcome in outcomes {
        assert_eq!(
            outcome.expect_ok().out(),
            names.trim_end(),
            "the session does not see them all: {outcome}"
        );
        assert_no_findings(&outcome);
    }
    assert_eq!(host(place, &repo.workspace, BRANCHES), before);
    assert_eq!(host(place, &repo.workspace, "git branch --list 'agent-*' | wc -l"), "10");
}

fn rule_3_a_deletion_comes_at_the_end_only(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let before = host(place, &repo.workspace, BRANCHES);
    // Renamed to and fro: in between there is neither.
    let rename = "git branch -D -q rival; n=0; while [ $n -lt 60 ]; do n=$((n+1))
        git branch -m feature agent-x; git branch -m agent-x feature; done; git branch agent; sleep 0.5";
    let outcome = around(place, &repo, rename, "git branch rival origin/rival", || {
        assert_eq!(host(place, &repo.workspace, BRANCHES), before, "deleted while the turn runs");
        assert_eq!(host(place, &repo.workspace, "git branch --list agent | wc -l"), "1");
    });
    assert_no_findings(&outcome);
    assert_eq!(host(place, &repo.workspace, BRANCHES), before, "{outcome}");
    // At the end it comes, with what only it held kept.
    let outcome = does(place, &repo, "git branch -q -D agent rival feature; git branch agent-done");
    assert_eq!(
        host(place, &repo.workspace, "git branch --list agent rival feature agent-done"),
        "  agent-done",
        "{outcome}"
    );
    assert_sound(place, &repo);
}

fn a_deletion_of_what_only_the_host_has_loses_nothing(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    host(place, &repo.workspace, "git branch precious $(git commit-tree -p main -m precious main^{tree})");
    let outcome = does(place, &repo, "git branch -q -D precious");
    let kept = kept(place, &repo);
    assert_eq!(kept.len(), 1, "{outcome}");
    assert!(said(&outcome).contains(&kept[0]), "{outcome}");
    assert_eq!(subjects(place, &repo, &kept[0])[0], "precious");
    // Moved on the host meanwhile: it stays.
    let outcome = around(place, &repo, "git branch -q -D feature", "", || {
        host(
            place,
            &repo.workspace,
            "git update-ref refs/heads/feature $(git commit-tree -p feature -m human feature^{tree})",
        );
    });
    assert_eq!(subjects(place, &repo, "feature")[0], "human", "{outcome}");
    assert_sound(place, &repo);
}

fn rule_4_a_symbolic_ref_is_never_written_through(place: &Place) {
    let alias = "git symbolic-ref refs/heads/alias refs/heads/rival";
    let control = Repo::below(place, Layout::Main, "home/control");
    let through = format!("{alias}; git update-ref refs/heads/alias feature; git log -1 --format=%s rival");
    assert_eq!(host(place, &control.workspace, &through), "Feature two", "update-ref writes through it");

    let repo = Repo::new(place, Layout::Main);
    host(place, &repo.workspace, alias);
    let state =
        "git symbolic-ref refs/heads/alias; git log -1 --format=%s rival; git log -1 --format=%s main";
    let script = "git symbolic-ref refs/heads/alias refs/heads/feature; git branch agent";
    let outcome = does(place, &repo, script);
    assert_eq!(host(place, &repo.workspace, state), "refs/heads/rival\nRival\nThird", "{outcome}");
    subjects(place, &repo, "agent");
    // Symbolic on the host, and not in the session.
    let script =
        "git update-ref --no-deref refs/heads/alias $(git commit-tree -p feature -m agent feature^{tree})";
    let outcome = does(place, &repo, script);
    assert_eq!(host(place, &repo.workspace, state), "refs/heads/rival\nRival\nThird", "{outcome}");
    let merge = commands(&finding(&outcome, "conflict")).remove(0);
    host(
        place,
        &repo.workspace,
        &format!("git checkout -q -b all; {merge} -q; git log --format=%s | grep agent"),
    );
    // And the other way round.
    let outcome = does(
        place,
        &repo,
        "git symbolic-ref refs/heads/feature refs/heads/main; git symbolic-ref refs/heads/new refs/heads/main",
    );
    let after = "git log -1 --format=%s feature; git symbolic-ref -q refs/heads/feature || echo plain";
    assert_eq!(host(place, &repo.workspace, after), "Feature two\nplain", "{outcome}");
    assert_sound(place, &repo);
}

fn rule_19_a_branch_makes_way_for_one_below_it(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let script = "git branch -q -D rival; git branch rival/new feature; git checkout -q -b feature/mine; git status -s";
    // `feature` is in the way of `feature/mine`, in the session as on the host.
    let outcome = turn(place, &repo).sh(script).run();
    assert!(outcome.err().contains("feature/mine"), "{outcome}");
    assert_eq!(subjects(place, &repo, "refs/heads/rival/new")[0], "Feature two", "{outcome}");
    assert!(!place.sh(&repo.workspace, "git rev-parse -q --verify refs/heads/rival").ok());
    // Back again.
    let outcome = does(place, &repo, "git branch -q -D rival/new; git branch rival origin/rival");
    assert_no_findings(&outcome);
    assert_eq!(subjects(place, &repo, "refs/heads/rival")[0], "Rival", "{outcome}");
    assert_sound(place, &repo);
}

fn rule_19_a_directory_in_the_way_is_a_conflict_of_one_ref(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let commit =
        |name: &str| format!("git branch {name} $(git commit-tree -p main -m agent-{name} main^{{tree}});");
    let script = ["topic/x", "good", "feature"]
        .map(|name| commit(name).replace("branch feature", "branch -f feature"));
    let outcome = around(place, &repo, "", &script.concat(), || {
        host(place, &repo.workspace, "git branch topic rival; git branch -q -f feature rival");
    });
    assert_eq!(
        subjects(place, &repo, "good")[0],
        "agent-good",
        "one conflict holds up everything: {outcome}"
    );
    assert_eq!(
        host(place, &repo.workspace, "git log -1 --format=%s topic; git log -1 --format=%s feature"),
        "Rival\nRival"
    );
    let tips: Vec<String> =
        kept(place, &repo).iter().map(|name| subjects(place, &repo, name).remove(0)).collect();
    assert_eq!(tips, ["agent-feature", "agent-topic/x"], "{outcome}");
    assert_eq!(outcome.findings().len(), 2, "{outcome}");
    assert_sound(place, &repo);
}

fn rule_20_an_import_that_was_killed_before_its_record_is_no_conflict(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let add = "git worktree add -q -b mine \"$CODEOID_WORKTREE_DIR/mine\"; git branch side";
    does(place, &repo, add);
    let base = shadow(place).join("base");
    let old = place.at("outside/base");
    host(place, &place.home(), &format!("cp -a {} {}", base.display(), old.display()));
    // base = A, host = B, which is ours, and the session goes on to C.
    let commit = |text: &str| {
        format!(
            "cd \"$CODEOID_WORKTREE_DIR/mine\"; echo {text} >{text}; git add {text}; git commit -q -m {text}
             git branch -q -f side $(git commit-tree -p side -m {text} side^{{tree}})\n"
        )
    };
    let outcome = around(place, &repo, &commit("B"), &commit("C"), || {
        let arrived = "for n in $(seq 150); do git log -1 --format=%s mine | grep -q B && git log -1 --format=%s side | grep -q B && exit 0; sleep 0.1; done; exit 1";
        host(place, &repo.workspace, arrived);
        host(
            place,
            &place.home(),
            &format!("sleep 0.3; rm {0}/*; cp -a {1}/. {0}/", base.display(), old.display()),
        );
    });
    assert_no_findings(&outcome);
    assert_eq!(
        (&subjects(place, &repo, "mine")[..2], &subjects(place, &repo, "side")[..2]),
        (&["C".to_owned(), "B".to_owned()][..], &["C".to_owned(), "B".to_owned()][..]),
        "{outcome}"
    );
    assert_eq!(host(place, &folder(&repo, "s1").join("mine"), "git status --porcelain"), "", "{outcome}");
    assert!(kept(place, &repo).is_empty());
    assert_sound(place, &repo);
}

fn rule_21_a_tag_of_the_host_is_never_moved(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let old = host(place, &repo.workspace, "git rev-parse v1 v2");
    let outcome = does(
        place,
        &repo,
        "git tag -f v1 $(git commit-tree -m agent main^{tree}) >/dev/null; git tag -d v2 >/dev/null; git tag -a -m new new; git tag light",
    );
    assert_eq!(host(place, &repo.workspace, "git rev-parse v1 v2"), old, "{outcome}");
    assert!(said(&outcome).contains("refs/tags/v1") && said(&outcome).contains("refs/tags/v2"), "{outcome}");
    assert_eq!(host(place, &repo.workspace, "git cat-file -t new; git cat-file -t light"), "tag\ncommit");
    assert_eq!(subjects(place, &repo, &kept(place, &repo)[0])[0], "agent");
    // A tag of the session's own is its own, until it is on the host.
    assert_sound(place, &repo);
}

fn rule_22_what_has_diverged_stays_so_until_one_contains_the_other(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let move_to = |who: &str| {
        format!("git branch -q -f feature $(git commit-tree -p feature -m {who} feature^{{tree}})")
    };
    let outcome = around(place, &repo, "", &move_to("agent"), || {
        host(place, &repo.workspace, &move_to("human"));
    });
    finding(&outcome, "conflict");
    let look = "git log -1 --format=%s feature; git log -1 --format=%s refs/codeoid/host/heads/feature";
    let outcome = does(place, &repo, &format!("{look}; git branch other"));
    assert_eq!(outcome.out(), "agent\nhuman", "{outcome}");
    assert_eq!(subjects(place, &repo, "feature")[0], "human");
    assert_eq!(kept(place, &repo).len(), 1, "what the host has is not kept again: {:?}", kept(place, &repo));
    // The session merges: the host's follows.
    let merge = "git checkout -q feature; git merge -q -m merged refs/codeoid/host/heads/feature; git checkout -q main";
    let outcome = does(place, &repo, merge);
    assert_no_findings(&outcome);
    assert_eq!(subjects(place, &repo, "feature")[0], "merged", "{outcome}");
    let outcome = does(place, &repo, "git for-each-ref refs/codeoid/host");
    assert_eq!(outcome.out(), "", "{outcome}");
    // The other way round: the host merges, and the session follows.
    around(place, &repo, "", &move_to("agent2"), || {
        host(place, &repo.workspace, &move_to("human2"));
    });
    let tip = kept(place, &repo).pop().unwrap();
    host(
        place,
        &repo.human,
        &format!(
            "git stash -q -u; git checkout -q feature; git merge -q -m by-human {tip}; git checkout -q human; git stash pop -q"
        ),
    );
    let outcome = does(place, &repo, "git log -1 --format=%s feature; git for-each-ref refs/codeoid/host");
    assert_no_findings(&outcome);
    assert_eq!(outcome.out(), "by-human", "{outcome}");
    repo.assert_sound(place);
    assert_sound(place, &repo);
}

fn what_the_host_does_to_other_branches_is_seen_in_the_next_turn(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    does(place, &repo, "git branch agent");
    host(
        place,
        &repo.workspace,
        "git branch -q -f feature main; git branch -q -D rival; git branch new; git tag t; git worktree add -q ../late new; git pack-refs --all; git gc -q --prune=now",
    );
    let outcome = does(
        place,
        &repo,
        "git for-each-ref --format='%(refname:short)' refs/heads refs/tags; git log -1 --format=%s feature; git worktree list | grep -c late",
    );
    assert_no_findings(&outcome);
    assert_eq!(outcome.out(), "agent\nfeature\nhuman\nmain\nnew\nt\nv1\nv2\nThird\n1", "{outcome}");
    assert_sound(place, &repo);
}

fn rule_18_a_bisection_of_the_session_leaves_the_host_s_alone(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let mine =
        host(place, &repo.workspace, "git update-ref refs/bisect/mine main; git for-each-ref refs/bisect");
    let outcome = does(place, &repo, "git bisect start main main~2 >/dev/null");
    finding(&outcome, "operation-in-progress");
    assert_eq!(host(place, &repo.workspace, "git for-each-ref refs/bisect; test ! -e .git/BISECT_LOG"), mine);
    assert_no_findings(&does(place, &repo, "git bisect reset >/dev/null 2>&1"));
    assert_eq!(host(place, &repo.workspace, "git for-each-ref refs/bisect; test ! -e .git/BISECT_LOG"), mine);
    assert_sound(place, &repo);
}

fn names_that_are_no_branches_stay_outside(place: &Place) {
    // What git refuses to make, and what would mean something to the host: as files, in the session's view.
    let repo = Repo::new(place, Layout::Main);
    let before = host(place, &repo.workspace, "git for-each-ref");
    let script = "id=$(git rev-parse feature); mkdir -p .git/refs/bisect .git/refs/worktree .git/refs/replace .git/refs/codeoid/other .git/refs/heads/a
        for name in heads/HEAD heads/-x heads/a/.b heads/a..b heads/x.lock 'heads/sp ace' bisect/bad worktree/w replace/$id codeoid/other/x codeoid/host/y; do
            mkdir -p \".git/refs/$(dirname \"$name\")\"; echo $id >\".git/refs/$name\"; done; git branch agent";
    let outcome = does(place, &repo, script);
    let after = host(place, &repo.workspace, "git for-each-ref | grep -v refs/heads/agent");
    assert_eq!(after, before, "{outcome}");
    subjects(place, &repo, "agent");
}

each_identity! {
    rule_2_a_build_beside_pack_refs_deletes_no_branch,
    rule_3_a_deletion_comes_at_the_end_only,
    a_deletion_of_what_only_the_host_has_loses_nothing,
    rule_4_a_symbolic_ref_is_never_written_through,
    rule_19_a_branch_makes_way_for_one_below_it,
    rule_19_a_directory_in_the_way_is_a_conflict_of_one_ref,
    rule_20_an_import_that_was_killed_before_its_record_is_no_conflict,
    rule_21_a_tag_of_the_host_is_never_moved,
    rule_22_what_has_diverged_stays_so_until_one_contains_the_other,
    what_the_host_does_to_other_branches_is_seen_in_the_next_turn,
    rule_18_a_bisection_of_the_session_leaves_the_host_s_alone,
    names_that_are_no_branches_stay_outside,
}
