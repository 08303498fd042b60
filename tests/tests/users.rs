//! What users of such sandboxes have run into elsewhere, each as they would do it.

#![cfg(test)]

use codeoid_tests::{Layout, Place, Repo, each_identity};

fn a_host_command_works_right_after_a_turn(place: &Place) {
    // A `config.lock` or an empty placeholder that is left behind stops every later write.
    let repo = Repo::new(place, Layout::Linked);
    place.turn(&repo.workspace).command(["true"]).run().expect_ok();
    let script = "git config a.b c && git add -A && git commit -q --allow-empty -m x && \
         git worktree add -q --detach ../fresh && git worktree remove ../fresh && git gc -q";
    place.sh(&repo.workspace, script).expect_ok();
    place.sh(repo.main.as_ref().unwrap(), "git status && git branch new && git branch -d new").expect_ok();
}

fn a_write_grant_on_git_is_honoured_or_refused(place: &Place) {
    let repo = Repo::new(place, Layout::Linked);
    let common = repo.common.display().to_string();
    let turn = place.turn(&repo.workspace).options(["--write", &common]);
    let outcome =
        turn.sh("echo x >\"$(git rev-parse --git-common-dir)/written\" && git add -A && echo ran").run();
    if outcome.code() == 125 {
        outcome.expect_refusal(&["write"]);
    } else {
        assert_eq!(outcome.expect_ok().out(), "ran");
    }
    // The grant opens nothing else.
    let outcome = place
        .turn(&repo.workspace)
        .options(["--write", &common])
        .sh("git config core.fsmonitor /bin/evil; echo x >\"$(git rev-parse --git-common-dir)/hooks/x\"; true")
        .run();
    assert!(outcome.code() == 125 || !repo.common.join("hooks/x").exists(), "{outcome}");
    assert_ne!(place.sh(&repo.workspace, "git config core.fsmonitor").out(), "/bin/evil\n", "{outcome}");
}

fn worktrees_that_are_mapped_to_the_main_checkout(place: &Place) {
    // `core.worktree` in the shared configuration makes every worktree show the main checkout's files.
    let repo = Repo::new(place, Layout::Linked);
    let main = repo.main.clone().unwrap();
    place.git(&main, &["config", "core.worktree", main.to_str().unwrap()]);
    let outcome = place
        .turn(&repo.workspace)
        .sh("git checkout -q -f -- . ; git clean -qfd; git status --porcelain")
        .run();
    assert!([0, 1, 125, 128].contains(&outcome.code()), "{outcome}");
    assert_eq!(place.git(&main, &["status", "--porcelain"]), "", "{outcome}");
}

fn git_init_and_clone_work_below_the_workspace(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let script = "git init -q nested && git -C nested commit -q --allow-empty -m x && git clone -q nested copy && \
         ls nested/.git/hooks | wc -l && printf '#!/bin/sh\\nexit 0\\n' >nested/.git/hooks/pre-commit && \
         git -C nested config a.b c && rm -rf nested copy";
    place.turn(&repo.workspace).sh(script).run().expect_ok();
}

fn an_unwritable_directory_that_is_no_repository(place: &Place) {
    let workspace = place.make("home/w");
    place.sh(&workspace, "echo x >file; chmod 555 .").expect_ok();
    let outcome = place.turn(&workspace).sh("cat file").run();
    assert_eq!(outcome.expect_ok().out(), "x");
    place.sh(&workspace, "chmod 755 .").expect_ok();
}

fn the_turns_own_git_hooks_run(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let script =
        "printf '#!/bin/sh\\necho hook ran >&2\\n' >.git/hooks/pre-commit && chmod +x .git/hooks/pre-commit";
    place.sh(&repo.workspace, script).expect_ok();
    let outcome = place.turn(&repo.workspace).sh("git commit -q --allow-empty -m x").run();
    assert!(outcome.expect_ok().err().contains("hook ran"), "{outcome}");
}

fn signed_commits_fail_with_a_reason_not_a_hang(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let outcome =
        place.turn(&repo.workspace).sh("git -c gpg.program=/bin/false commit -q -S --allow-empty -m x").run();
    assert_ne!(outcome.code(), 0, "{outcome}");
}

fn caches_in_the_home_work_and_stay_warm(place: &Place) {
    let workspace = place.make("home/w");
    place.write("home/.cache/pip/http/entry", "warm");
    place.write("home/.npm/_cacache/index", "warm");
    place.write("home/.cargo/registry/index", "warm");
    let script = "cat ~/.cache/pip/http/entry ~/.npm/_cacache/index ~/.cargo/registry/index && \
         echo new >~/.cache/pip/http/entry && mkdir -p ~/.cache/new && mv ~/.cache/new ~/.cache/renamed";
    place.turn(&workspace).sh(script).run().expect_ok();
    let outcome =
        place.turn(&workspace).sh("cat ~/.cache/pip/http/entry; ls -d ~/.cache/renamed >/dev/null").run();
    assert_eq!(outcome.expect_ok().out(), "new");
}

fn what_needs_the_session_bus_or_the_init_system_fails(place: &Place) {
    let workspace = place.make("home/w");
    let script = "for c in 'systemd-run --user true' 'systemctl --user status' 'systemctl status' \
         'docker ps' 'podman --remote ps' 'dbus-send --system --print-reply --dest=org.freedesktop.DBus / \
         org.freedesktop.DBus.ListNames'; do timeout 20 $c >/dev/null 2>&1 && echo \"REACHED $c\"; done; true";
    let outcome = place.turn(&workspace).sh(script).run();
    assert!(!outcome.expect_ok().out().contains("REACHED"), "{outcome}");
}

fn a_language_runtime_starts(place: &Place) {
    let workspace = place.make("home/w");
    let program = "import json, multiprocessing, os, ssl, subprocess, tempfile, threading\n\
         with tempfile.NamedTemporaryFile() as f: f.write(b'x')\n\
         assert subprocess.run(['true']).returncode == 0\n\
         q = multiprocessing.Queue(); p = multiprocessing.Process(target=q.put, args=(1,)); p.start()\n\
         print(q.get(timeout=20), os.cpu_count() > 0)";
    let outcome = place.turn(&workspace).python(program, &[]).run();
    assert_eq!(outcome.expect_ok().out(), "1 True", "{outcome}");
}

each_identity! {
    a_host_command_works_right_after_a_turn,
    a_write_grant_on_git_is_honoured_or_refused,
    worktrees_that_are_mapped_to_the_main_checkout,
    git_init_and_clone_work_below_the_workspace,
    an_unwritable_directory_that_is_no_repository,
    the_turns_own_git_hooks_run,
    signed_commits_fail_with_a_reason_not_a_hang,
    caches_in_the_home_work_and_stay_warm,
    what_needs_the_session_bus_or_the_init_system_fails,
    a_language_runtime_starts,
}
