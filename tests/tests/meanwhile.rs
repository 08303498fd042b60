//! What the host does while a turn is running: attacks that wait for it, and honest changes that no check may
//! take for an attack.

#![cfg(test)]

use std::fs;

use codeoid_tests::{Layout, Outcome, Place, Repo, Snapshot, each_identity};

/// A turn that says `ready`, waits until the host has acted, and then runs a script.
fn turn_around(place: &Place, repo: &Repo, script: &str, host: impl FnOnce()) -> Outcome {
    let script = format!("echo ready; read go; {script}\ntrue");
    let mut running = place
        .turn(&repo.workspace)
        .options(["--git-protection", "shared"])
        .env("REMOTE", &repo.remote)
        .sh(&script)
        .spawn();
    running.expect("ready");
    host();
    running.say("go");
    running.finish()
}

/// A program of the attacker in the workspace, and what shows that it ran.
fn evil(place: &Place, repo: &Repo) -> (String, std::path::PathBuf) {
    let mark = place.at("outside/mark");
    let program = place.write(repo.workspace.join("evil"), format!("#!/bin/sh\ntouch {}\n", mark.display()));
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("it was just made");
    (program.display().to_string(), mark)
}

fn said(outcome: &Outcome) -> String {
    format!("{} {} {}", outcome.report()["findings"], outcome.report()["warnings"], outcome.err())
}

fn an_entry_that_the_host_adds_is_foreign(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let (evil, mark) = evil(place, &repo);
    let late = repo.top.join("late");
    let script = format!(
        "git clone -q --bare . /tmp/e; cp -r /tmp/e .e; git config -f .e/config core.bare false; \
             git config -f .e/config core.fsmonitor {evil}; \
         echo $PWD/.e >.git/worktrees/late/commondir"
    );
    let outcome = turn_around(place, &repo, &script, || {
        place.git(&repo.workspace, &["worktree", "add", "-q", "-b", "late", late.to_str().unwrap()]);
    });
    outcome.expect_ok();
    let status = place.sh(&late, "git status --porcelain");
    assert!(!mark.exists(), "{outcome}");
    assert_eq!(status.expect_ok().out(), "", "{outcome}");
    assert_eq!(fs::read_to_string(repo.common.join("worktrees/late/commondir")).unwrap().trim(), "../..");
    repo.assert_sound(place);
}

fn an_entry_that_the_host_makes_anew_is_foreign(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let (evil, mark) = evil(place, &repo);
    let second = repo.top.join("second");
    let add = ["worktree", "add", "-q", "-f", "-B", "second", second.to_str().unwrap()];
    place.git(&repo.workspace, &add);
    let script = format!(
        "git clone -q --bare . /tmp/e; cp -r /tmp/e .e; git config -f .e/config core.bare false; \
             git config -f .e/config core.fsmonitor {evil}; \
         echo $PWD/.e >.git/worktrees/second/commondir"
    );
    let outcome = turn_around(place, &repo, &script, || {
        place.git(&repo.workspace, &["worktree", "remove", second.to_str().unwrap()]);
        place.git(&repo.workspace, &add);
    });
    outcome.expect_ok();
    let _ = place.sh(&second, "git status --porcelain");
    assert!(!mark.exists(), "{outcome}");
    repo.assert_sound(place);
}

fn a_configuration_that_the_host_replaces_stays_protected(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let (evil, mark) = evil(place, &repo);
    let script =
        format!("git config core.fsmonitor {evil}; printf '[core]\\n\\tfsmonitor = {evil}\\n' >>.git/config");
    let outcome = turn_around(place, &repo, &script, || {
        place.git(&repo.workspace, &["config", "user.email", "kept"]);
    });
    outcome.expect_ok();
    let _ = place.sh(&repo.workspace, "git status");
    assert!(!mark.exists(), "{outcome}");
    assert_eq!(
        place.git(&repo.workspace, &["config", "user.email"]),
        "kept",
        "the host's own change: {outcome}"
    );
    assert!(said(&outcome).contains("config"), "{outcome}");
}

fn hooks_that_the_host_replaces_stay_protected(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let (evil, mark) = evil(place, &repo);
    let hooks = repo.common.join("hooks");
    let script = format!("cp {evil} .git/hooks/pre-commit; cp {evil} .git/hooks/post-index-change");
    let outcome = turn_around(place, &repo, &script, || {
        place
            .sh(
                &repo.workspace,
                "cp -r .git/hooks .git/h && mv .git/hooks .git/gone && \
             mv .git/h .git/hooks && rm -r .git/gone",
            )
            .expect_ok();
    });
    outcome.expect_ok();
    assert!(hooks.exists());
    let _ = place.sh(&repo.workspace, "touch src/text; git status; git commit -q --allow-empty -m human");
    assert!(!mark.exists(), "{outcome}");
}

fn removing_the_last_entry_opens_nothing(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let (evil, mark) = evil(place, &repo);
    let script = format!(
        "mkdir -p .git/worktrees/human; cd .git/worktrees/human && git clone -q --bare ../../.. /tmp/e; \
             cp -r /tmp/e/. .; \
         git config -f config core.bare false; git config -f config core.fsmonitor {evil}; \
         echo ../.. >commondir"
    );
    let outcome = turn_around(place, &repo, &script, || {
        place.git(&repo.workspace, &["worktree", "remove", "--force", repo.human.to_str().unwrap()]);
    });
    outcome.expect_ok();
    place.git(&repo.workspace, &["worktree", "add", "-q", "-f", repo.human.to_str().unwrap(), "human"]);
    let status = place.sh(&repo.human, "git status --porcelain");
    assert!(!mark.exists() && status.ok(), "{outcome}\n{status}");
}

fn honest_work_of_the_host_is_kept_and_is_no_finding(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let outcome =
        turn_around(place, &repo, "git worktree add -q -b mine \"$CODEOID_WORKTREE_DIR/mine\"", || {
            let script = "git add -A && git commit -q -m 'by the human' && git switch -q -c elsewhere && \
                 git stash -q -u 2>/dev/null; \
             git worktree lock --reason mine . && git tag by-human && git branch side && \
             git config user.email value && \
             git remote add other /nowhere && git worktree add -q --detach ../another && \
             git pack-refs --all && \
             GIT_SEQUENCE_EDITOR=true git rebase -q -i HEAD~1";
            place.sh(&repo.human, script).expect_ok();
        });
    outcome.expect_ok();
    for finding in outcome.findings() {
        assert!(finding["action"] == "reported", "somebody's work was undone: {outcome}");
    }
    assert_eq!(place.git(&repo.human, &["symbolic-ref", "HEAD"]), "refs/heads/elsewhere");
    assert_eq!(place.git(&repo.human, &["log", "-1", "--format=%s"]), "by the human");
    let checks = "git rev-parse by-human side && git config user.email && git config remote.other.url && \
         git worktree list --porcelain";
    let after = place.sh(&repo.workspace, checks);
    let out = after.expect_ok().out();
    assert!(out.contains("locked mine") && out.contains("another") && out.contains("/mine\n"), "{out}");
}

fn a_hook_that_the_host_adds_is_kept_and_said(place: &Place) {
    // Who made it cannot be told at the end, and a hook runs on the host: it is set aside, never lost.
    let repo = Repo::new(place, Layout::Main);
    let hook = repo.common.join("hooks/pre-push");
    let outcome = turn_around(place, &repo, "echo evil >.git/hooks/pre-commit", || {
        place.write(&hook, "#!/bin/sh\nexit 7\n");
    });
    assert!(!hook.exists() && !repo.common.join("hooks/pre-commit").exists(), "{outcome}");
    let findings = outcome.findings();
    let finding = findings
        .iter()
        .find(|finding| finding["kind"] == "hook-added")
        .unwrap_or_else(|| panic!("nothing is said: {outcome}"));
    let detail = finding["detail"].as_str().expect("a detail");
    let kept = detail.rsplit_once("kept: ").unwrap_or_else(|| panic!("nothing is kept: {outcome}")).1;
    assert_eq!(fs::read_to_string(kept).expect("the copy"), "#!/bin/sh\nexit 7\n", "{outcome}");
}

fn a_merge_in_progress_of_a_human_is_left_alone(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    place
        .sh(
            &repo.human,
            "git stash -q -u; git reset -q --hard feature; git merge -q rival; \
         test -f \"$(git rev-parse --git-path MERGE_HEAD)\"",
        )
        .expect_ok();
    let before = Snapshot::content_of(&repo.human_entry());
    place
        .turn(&repo.workspace)
        .sh("git commit -q --allow-empty -m x; git worktree add -q -b y \"$CODEOID_WORKTREE_DIR/y\"")
        .run()
        .expect_ok();
    before.assert_same(&Snapshot::content_of(&repo.human_entry()), "the human's entry");
    place.sh(&repo.human, "echo both >src/text && git add src/text && git commit -q --no-edit").expect_ok();
}

fn ending_a_turn_does_not_touch_another_running_one(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let script = "git worktree add -q -b a \"$CODEOID_WORKTREE_DIR/a\"; echo ready; read go; \
         cd \"$CODEOID_WORKTREE_DIR/a\" && echo x >x && git add x && git commit -qm 'After the other ended'";
    let mut first = place.turn(&repo.workspace).session("a").sh(script).spawn();
    first.expect("ready");
    let second = place
        .turn(&repo.workspace)
        .session("b")
        .sh("git worktree add -q -b b \"$CODEOID_WORKTREE_DIR/b\" && \
             git worktree remove \"$CODEOID_WORKTREE_DIR/b\" && git worktree prune; git worktree list | \
             grep -c '/a '")
        .run();
    assert_eq!(second.expect_ok().out(), "1", "{second}");
    first.say("go");
    first.finish().expect_ok();
    assert_eq!(place.git(&repo.workspace, &["log", "-1", "--format=%s", "a"]), "After the other ended");
    repo.assert_sound(place);
}

each_identity! {
    an_entry_that_the_host_adds_is_foreign,
    an_entry_that_the_host_makes_anew_is_foreign,
    a_configuration_that_the_host_replaces_stays_protected,
    hooks_that_the_host_replaces_stay_protected,
    removing_the_last_entry_opens_nothing,
    honest_work_of_the_host_is_kept_and_is_no_finding,
    a_hook_that_the_host_adds_is_kept_and_said,
    a_merge_in_progress_of_a_human_is_left_alone,
    ending_a_turn_does_not_touch_another_running_one,
}
