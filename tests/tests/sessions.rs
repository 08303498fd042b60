//! What outlives a turn: sessions, the audit log, the policy and where each rule comes from.

#![cfg(test)]

use std::fs;

use codeoid_tests::{Finished, Layout, Place, Repo, each_identity};
use serde_json::Value;

/// Runs `codeoid-shim` with these words in this directory.
fn shim(place: &Place, directory: &std::path::Path, words: &[&str]) -> Finished {
    let mut command = place.command(codeoid_tests::shim());
    command.args(words).current_dir(directory);
    place.finish(command)
}

fn audit(place: &Place) -> Vec<Value> {
    let text = fs::read_to_string(place.state().join("audit.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

fn a_session_is_opened_shown_listed_forked_and_closed(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    shim(place, &repo.workspace, &["session", "open", "--session", "s1"]).expect_ok();
    place
        .turn(&repo.workspace)
        .sh("git worktree add -q -b x \"$CODEOID_WORKTREE_DIR/x\"; echo kept >~/kept")
        .run()
        .expect_ok();
    let list = shim(place, &repo.workspace, &["session", "list", "--json"]);
    assert!(list.expect_ok().json().to_string().contains("\"s1\""), "{list}");
    let show = shim(place, &repo.workspace, &["session", "show", "s1", "--json"]);
    let text = show.expect_ok().json().to_string();
    assert!(text.contains("repo-worktrees/s1-"), "the folder, for an agent's prompt: {show}");
    shim(place, &repo.workspace, &["session", "fork", "s1", "s2"]).expect_ok();
    let outcome = place.turn(&repo.workspace).session("s2").sh("echo $CODEOID_WORKTREE_DIR").run();
    assert!(outcome.expect_ok().out().contains("/s2-"), "a fork has a folder of its own: {outcome}");
    shim(place, &repo.workspace, &["session", "close", "s1"]).expect_ok();
    let list = shim(place, &repo.workspace, &["session", "list", "--json"]);
    assert!(!list.expect_ok().out().contains("\"session\": \"s1\""), "{list}");
    let events: Vec<String> =
        audit(place).iter().map(|line| line["event"].as_str().unwrap_or_default().to_owned()).collect();
    for event in ["session.opened", "session.closed"] {
        assert!(events.iter().any(|seen| seen == event), "{event}: {events:?}");
    }
    // What the session made stays; only its state is gone.
    assert!(repo.top.join("repo-worktrees").exists());
    let outcome = place.turn(&repo.workspace).sh("cat ~/kept 2>/dev/null; true").run();
    assert_eq!(outcome.expect_ok().out(), "", "the home layer of a closed session is gone: {outcome}");
}

fn a_fork_needs_a_name_of_its_own_and_a_session_to_fork(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    shim(place, &repo.workspace, &["session", "open", "--session", "one"]).expect_ok();
    let same = shim(place, &repo.workspace, &["session", "fork", "one", "one"]);
    assert_eq!((same.code(), same.err().contains("another name")), (125, true), "{same}");
    let nobody = shim(place, &repo.workspace, &["session", "fork", "nobody", "two"]);
    assert_eq!((nobody.code(), nobody.err().contains("no such session")), (125, true), "{nobody}");
    let left = shim(place, &repo.workspace, &["session", "close", "nobody"]);
    assert_eq!(left.code(), 125, "the refused fork left a session: {left}");
    // The fork knows its own folder before its first turn.
    let fork = shim(place, &repo.workspace, &["session", "fork", "one", "two", "--json"]);
    let opened = shim(place, &repo.workspace, &["session", "open", "--session", "two", "--json"]);
    assert_eq!(fork.json()["prompt"], opened.json()["prompt"]);
    assert!(fork.json()["prompt"].as_str().unwrap().contains("two-"), "{fork}");
}

fn what_the_owner_s_file_forbids_is_the_owner_s_to_allow(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let config = |text: &str| place.write("home/.codeoid/config.json", text);
    let turn = |options: &[&str]| place.turn(&repo.workspace).options(options.iter().copied()).sh("true");
    config(r#"{"sandbox": {"network": {"mode": "off"}, "home": "hidden"}}"#);
    turn(&["--network", "host"]).run().expect_refusal(&["widen", "network", "off"]);
    turn(&["--home", "overlay"]).run().expect_refusal(&["widen", "home", "hidden"]);
    turn(&[])
        .env("CODEOID_SANDBOX_NETWORK", "host")
        .run()
        .expect_refusal(&["widen", "CODEOID_SANDBOX_NETWORK"]);
    turn(&["--network", "off", "--home", "hidden"]).run().expect_ok();
    turn(&["--network", "host", "--confirm-widening"]).run().expect_ok();
    let widened = || audit(place).iter().filter(|line| line["event"] == "session.sandbox_widened").count();
    assert_eq!(widened(), 1);
    // A bundle that is only written is run later: the same holds for it.
    let output = place.at("outside/bundle");
    let words = ["bundle", "--output", output.to_str().unwrap(), "--network", "host"];
    let write = |more: &[&str]| shim(place, &repo.workspace, &[&words[..], more, &["--", "true"]].concat());
    let refused = write(&[]);
    assert_eq!((refused.code(), refused.err().contains("widen")), (125, true), "{refused}");
    assert!(!output.exists());
    write(&["--confirm-widening"]).expect_ok();
    assert_eq!(widened(), 2);
    // Stricter than the file is nobody's business.
    config(r#"{"sandbox": {"network": {"mode": "host"}}}"#);
    turn(&["--network", "off", "--home", "hidden"]).run().expect_ok();
}

fn a_protection_is_not_taken_for_a_lower_one(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    place.write("home/.codeoid/config.json", r#"{"sandbox": {"git": {"protection": "shadow"}}}"#);
    let turn = || place.turn(&repo.workspace).sh("git config made.by turn");
    turn().run().expect_ok();
    assert_eq!(place.git(&repo.workspace, &["config", "--local", "--default", "none", "made.by"]), "none");
    turn().options(["--git-protection", "shared"]).run().expect_refusal(&["widen", "shadow"]);
}

fn limits_that_no_cgroup_can_hold_are_weaker_where_the_owner_accepts_it(place: &Place) {
    if place.identity().uid().is_root() {
        return;
    }
    let workspace = place.make("home/w");
    place.write(
        "home/.codeoid/config.json",
        r#"{"sandbox": {"fallback": {"limits.memory": "weaker", "limits.pids": "weaker", "limits.cpus": "weaker"}}}"#,
    );
    for executor in ["libcontainer", "bwrap"] {
        let options = ["--executor", executor, "--memory", "64M", "--pids", "30", "--cpus", "0.5"];
        let program = "import os\ntry: bytearray(100 << 20); print('memory')\nexcept MemoryError: pass\n\
                       made = 0\ntry:\n    for i in range(60):\n        if os.fork() == 0: os.execlp('sleep', 'sleep', '5')\n\
                       \x20       made += 1\nexcept OSError: pass\nprint('pids' if made == 60 else 'held')";
        let outcome = place.turn(&workspace).options(options).python(program, &[]).run();
        assert_eq!(outcome.expect_ok().out(), "held", "{outcome}");
    }
}

fn a_session_that_is_running_is_not_closed(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let mut running = place.turn(&repo.workspace).sh("echo ready; read go; echo x >~/x && cat ~/x").spawn();
    running.expect("ready");
    let close = shim(place, &repo.workspace, &["session", "close", "s1"]);
    assert_ne!(close.code(), 0, "{close}");
    running.say("go");
    assert!(running.finish().expect_ok().out().ends_with('x'));
}

fn sessions_that_there_are_not(place: &Place) {
    let workspace = place.make("home/w");
    for words in [["session", "show", "none"], ["session", "close", "none"], ["session", "show", "../x"]] {
        let finished = shim(place, &workspace, &words);
        assert_ne!(finished.code(), 0, "{words:?}: {finished}");
        assert!(finished.err().starts_with("codeoid-shim: "), "{words:?}: {finished}");
    }
}

fn the_audit_log_has_a_line_for_each_event(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    place.turn(&repo.workspace).sh("exit 3").run().expect_code(3);
    let lines = audit(place);
    for event in ["turn.started", "turn.finished"] {
        let line =
            lines.iter().find(|line| line["event"] == event).unwrap_or_else(|| panic!("{event}: {lines:?}"));
        assert_eq!(line["session"], "s1");
        assert_eq!(line["repo"], repo.common.to_str().unwrap());
        let time = line["time"].as_str().unwrap();
        assert!(time.ends_with('Z') && time.contains('T'), "RFC 3339, UTC: {time}");
        assert!(line["turn"].is_string());
    }
    let printed = shim(place, &repo.workspace, &["audit", "--session", "s1", "--json"]);
    assert!(printed.expect_ok().out().contains("turn.finished"), "{printed}");
    let other = shim(place, &repo.workspace, &["audit", "--session", "s2", "--json"]);
    assert!(!other.expect_ok().out().contains("turn.finished"), "{other}");
}

fn a_check_of_a_sound_repository_finds_nothing(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let repo_name = repo.workspace.to_str().unwrap();
    let check = shim(place, &place.home(), &["check", "--repo", repo_name, "--json"]);
    let json = check.expect_ok().json();
    assert_eq!(json["findings"].as_array().map(Vec::len), Some(0), "{check}");
}

fn flags_win_over_the_environment_and_that_over_the_file(place: &Place) {
    let workspace = place.make("home/w");
    let mode = |turn: codeoid_tests::Turn<'_>| {
        let outcome = turn.sh("touch ~/probe 2>/dev/null && echo overlay || echo readonly").run();
        outcome.expect_ok().out()
    };
    assert_eq!(mode(place.turn(&workspace)), "overlay");
    place.write("home/.codeoid/config.json", r#"{"sandbox": {"home": "readonly"}}"#);
    assert_eq!(mode(place.turn(&workspace)), "readonly");
    assert_eq!(mode(place.turn(&workspace).env("CODEOID_SANDBOX_HOME", "overlay")), "overlay");
    let flagged = place.turn(&workspace).env("CODEOID_SANDBOX_HOME", "overlay");
    assert_eq!(mode(flagged.options(["--home", "readonly"])), "readonly");
}

fn explain_names_the_rule_and_where_it_was_written(place: &Place) {
    let workspace = place.make("home/w");
    let workspace_name = workspace.to_str().unwrap();
    let hidden = place.write("home/private/diary", "x");
    let config = format!("{{\"sandbox\": {{\n  \"hide\": [{:?}]\n}}}}", place.at("home/private"));
    let file = place.write("home/.codeoid/config.json", config);
    let explain = |subject: &str| {
        let words = ["explain", "--workspace", workspace_name, subject, "--json"];
        shim(place, &workspace, &words).expect_ok().json()
    };
    let json = explain(hidden.to_str().unwrap());
    assert_eq!((&json["kind"], &json["access"]), (&"path".into(), &"none".into()), "{json}");
    assert_eq!(json["origin"]["file"], file.to_str().unwrap(), "{json}");
    assert_eq!(json["origin"]["line"], 2, "{json}");
    assert_eq!(explain(workspace_name)["access"], "write");
    assert_eq!(explain("/etc/passwd")["access"], "read");
    let ssh = explain(place.home().join(".ssh").to_str().unwrap());
    assert_eq!(ssh["access"], "none", "{ssh}");
}

fn doctor_says_what_this_host_can_enforce(place: &Place) {
    let doctor = shim(place, &place.home(), &["doctor", "--json"]);
    assert!(doctor.expect_ok().json().to_string().contains("libcontainer"), "{doctor}");
}

fn limits_hold_or_are_refused(place: &Place) {
    let workspace = place.make("home/w");
    let allocate =
        "import sys\nx = bytearray(400 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('got it')";
    let fork = "\
import os, time
made = 0
try:
    for i in range(200):
        if os.fork() == 0:
            time.sleep(5); os._exit(0)
        made += 1
except OSError: pass
print('got it' if made == 200 else 'stopped')
";
    for (options, program) in [(["--memory", "64M"], allocate), (["--pids", "50"], fork)] {
        let outcome = place.turn(&workspace).options(options).python(program, &[]).run();
        if outcome.code() == 125 {
            // Without delegation an ordinary user has no cgroup to put the turn into: said, not ignored.
            outcome.expect_refusal(&[options[0].trim_start_matches('-')]);
            assert!(!place.identity().uid().is_root(), "root can always limit: {outcome}");
        } else {
            assert!(!outcome.out().contains("got it"), "{options:?}: {outcome}");
        }
    }
    let all = ["--memory", "1G", "--pids", "500", "--cpus", "1"];
    let outcome = place.turn(&workspace).options(all).sh("exit 4").run();
    assert!(outcome.code() == 4 || outcome.code() == 125 && !place.identity().uid().is_root(), "{outcome}");
}

fn a_turn_cannot_reach_its_limits_or_other_cgroups(place: &Place) {
    // Mounts the hierarchies anew, in namespaces of its own, and looks for anything there that it could write.
    let program = "\
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
uid = os.getuid()
NEWUSER, NEWNS, NEWCGROUP = 0x10000000, 0x20000, 0x2000000
if libc.unshare(NEWUSER | NEWNS | NEWCGROUP) != 0:
    print('no namespaces'); raise SystemExit
for kind, options in [(b'cgroup', b'memory'), (b'cgroup', b'pids'), (b'cgroup2', None)]:
    at = b'/tmp/' + kind + (options or b'')
    os.mkdir(at) if not os.path.isdir(at) else None
    if libc.mount(b'c', at, kind, 0, options) != 0: continue
    for name in ['memory.limit_in_bytes', 'pids.max', 'memory.max']:
        try: text = open(os.path.join(at.decode(), name)).read().strip()
        except OSError: continue
        if text in ('67108864', '51'): print('sees its limit')
    for name in ['cgroup.kill', 'cgroup.procs']:
        if uid == 0 and os.access(os.path.join(at.decode(), name), os.W_OK): print('may write')
";
    let workspace = place.make("home/w");
    for options in [&["--memory", "64M", "--pids", "50"][..], &[]] {
        let outcome = place.turn(&workspace).options(options).python(program, &[]).run();
        if outcome.code() == 125 {
            assert!(!place.identity().uid().is_root() && !options.is_empty(), "{outcome}");
            continue;
        }
        outcome.expect_ok();
        let root = place.identity().uid().is_root();
        assert_eq!(outcome.out().trim(), if root { "no namespaces" } else { "" }, "{outcome}");
    }
}

each_identity! {
    a_fork_needs_a_name_of_its_own_and_a_session_to_fork,
    what_the_owner_s_file_forbids_is_the_owner_s_to_allow,
    a_protection_is_not_taken_for_a_lower_one,
    limits_that_no_cgroup_can_hold_are_weaker_where_the_owner_accepts_it,
    a_session_is_opened_shown_listed_forked_and_closed,
    a_session_that_is_running_is_not_closed,
    sessions_that_there_are_not,
    the_audit_log_has_a_line_for_each_event,
    a_check_of_a_sound_repository_finds_nothing,
    flags_win_over_the_environment_and_that_over_the_file,
    explain_names_the_rule_and_where_it_was_written,
    doctor_says_what_this_host_can_enforce,
    limits_hold_or_are_refused,
    a_turn_cannot_reach_its_limits_or_other_cgroups,
}
