//! Input that is wrong, hostile or enormous: a clear error and 125, or a finding; no panic, no change on the
//! host. (Workspaces that are refused: view.rs. Worktree roots that are refused: worktrees.rs.)

#![cfg(test)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use codeoid_tests::{Finished, Identity, Layout, Place, Repo, Requires, Snapshot, each_identity};

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Asserts that a turn is refused, that nothing of it ran, and that the state directory's owner is as before.
#[track_caller]
fn refused(place: &Place, words: &[&str]) {
    let workspace = place.make("home/w");
    place.turn(&workspace).sh("touch ran").run().expect_refusal(words);
    assert!(!workspace.join("ran").exists());
}

/// The same in a mount namespace in which something is mounted. Needs root.
fn mounted(place: &Place, mounts: &str, script: &str) -> Finished {
    let workspace = place.make("home/w");
    place.finish_with_mounts(mounts, &place.turn(&workspace).sh(script).to_command())
}

fn a_configuration_that_is_not_json(place: &Place) {
    for (text, words) in [
        ("{", vec!["config.json", "1"]),
        ("not json", vec!["config.json:1:"]),
        ("", vec!["empty"]),
        ("[]", vec!["config.json"]),
        ("{\"sandbox\": 7}", vec!["sandbox"]),
        ("{\"sandbox\": {\"netwrok\": {}}}", vec!["netwrok", "network"]),
        (
            "{\n \"sandbox\": {\n  \"network\": {\"mode\": \"sometimes\"}}}",
            vec![":3:", "sometimes", "allowlist"],
        ),
        ("{\"sandbox\": {\"home\": \"overlay\", \"home\": \"hidden\"}}", vec!["home"]),
        ("{\"sandbox\": {\"write\": [\"relative/path\"]}}", vec!["relative/path"]),
        ("{\"sandbox\": {\"limits\": {\"memory\": \"a lot\"}}}", vec!["memory"]),
    ] {
        place.write("home/.codeoid/config.json", text);
        refused(place, &words);
    }
    let mut deep = "{\"sandbox\": ".to_owned();
    deep.push_str(&"[".repeat(200_000));
    place.write("home/.codeoid/config.json", deep);
    refused(place, &[]);
    place.write("home/.codeoid/config.json", b"{\"sandbox\": {\"hide\": [\"/\xff\"]}}");
    refused(place, &["UTF-8"]);
}

fn a_configuration_that_is_no_ordinary_file(place: &Place) {
    let path = place.write("home/.codeoid/config.json", "{}");
    refused_after(place, &path, "rm \"$1\"; mkdir \"$1\"", &["regular"]);
    refused_after(place, &path, "rm -r \"$1\"; mkfifo \"$1\"", &["regular"]);
    refused_after(place, &path, "rm \"$1\"; ln -s /nowhere \"$1\"", &["config.json"]);
    refused_after(place, &path, "rm \"$1\"; ln -s /dev/zero \"$1\"", &["regular"]);
    refused_after(place, &path, "rm \"$1\"; truncate -s 3G \"$1\"", &["larger"]);
}

fn a_configuration_that_others_can_write(place: &Place) {
    let path = place.write("home/.codeoid/config.json", "{}");
    chmod(&path, 0o666);
    refused(place, &["chmod"]);
    chmod(&path, 0o600);
    chmod(&place.at("home/.codeoid"), 0o777);
    refused(place, &["chmod"]);
    chmod(&place.at("home/.codeoid"), 0o755);
    place.turn(place.make("home/w")).command(["true"]).run().expect_ok();
    if nix::unistd::geteuid().is_root() && place.identity() == Identity::Ordinary {
        chmod(&path, 0o644);
        chown(&path, Some(65534), Some(65534)).unwrap();
        refused(place, &["belongs"]);
    }
}

fn a_configuration_that_cannot_be_read(place: &Place) {
    if place.identity() == Identity::Root {
        return;
    }
    let path = place.write("home/.codeoid/config.json", "{}");
    chmod(&path, 0);
    refused(place, &["config.json"]);
}

fn a_configuration_that_is_named_and_missing(place: &Place) {
    let workspace = place.make("home/w");
    let missing = place.at("home/none.json").display().to_string();
    place
        .turn(&workspace)
        .options(["--config", &missing])
        .command(["true"])
        .run()
        .expect_refusal(&["none.json"]);
}

fn a_configuration_in_the_workspace_widens_nothing(place: &Place) {
    let workspace = place.make("home/w");
    place.write("home/w/.codeoid/config.json", "{\"sandbox\": {\"write\": [\"/etc\"], \"unknown\": 1}}");
    place.turn(&workspace).sh("touch /etc/x 2>/dev/null && exit 1; exit 0").run().expect_ok();
    let file = workspace.join(".codeoid/config.json").display().to_string();
    place.write("home/w/.codeoid/config.json", "{}");
    place
        .turn(&workspace)
        .options(["--config", &file])
        .command(["true"])
        .run()
        .expect_refusal(&["config.json"]);
}

fn environment_variables_that_there_are_not(place: &Place) {
    let workspace = place.make("home/w");
    let outcome = place.turn(&workspace).env("CODEOID_SANDBOX_NETWROK", "off").command(["true"]).run();
    outcome.expect_refusal(&["CODEOID_SANDBOX_NETWROK"]);
    let outcome = place.turn(&workspace).env("CODEOID_SANDBOX_NETWORK", "sometimes").command(["true"]).run();
    outcome.expect_refusal(&["CODEOID_SANDBOX_NETWORK", "sometimes"]);
}

fn hostile_session_ids(place: &Place) {
    let workspace = place.make("home/w");
    let before = Snapshot::content_of(&place.home());
    let long = "x".repeat(10_000);
    for id in [
        "",
        "..",
        "../x",
        "/etc",
        "a/b",
        "-rf",
        ".hidden",
        "a b",
        "new\nline",
        "esc\u{1b}[31m",
        "ä",
        long.as_str(),
    ] {
        let outcome = place.turn(&workspace).session(id).sh("touch ran").run();
        outcome.expect_refusal(&["session"]);
        assert!(!outcome.err().contains('\u{1b}'), "control characters are not repeated");
        assert!(outcome.err().len() < 2000, "{} bytes", outcome.err().len());
    }
    before.assert_same(&Snapshot::content_of(&place.home()), "the home");
    for id in ["a", "A.b_c:d@e+f-g", "_x", &"x".repeat(128)] {
        place.turn(&workspace).session(id).command(["true"]).run().expect_ok();
    }
}

fn entries_that_are_no_entries(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let hostile = "cd .git/worktrees && mkdir a b c d e f g h && \
         mkfifo a/gitdir b/HEAD && ln -s /dev/zero c/gitdir && ln -s /etc/passwd d/commondir && \
         ln -s ../human e/link && \
         truncate -s 1G f/gitdir && printf '/x\\377\\376/.git\\n' >g/gitdir && mkdir h/gitdir h/HEAD && \
         ln -s /nowhere dangling && ln -s ../.. loop && echo file >plain && mkfifo fifo && \
         mkdir 'new\nline' && printf '\\0\\0\\0' >'new\nline/gitdir' && mkdir empty";
    place.sh(&repo.workspace, hostile).expect_ok();
    let before = Snapshot::content_of(&repo.common.join("worktrees"));
    let outcome = place.turn(&repo.workspace).sh("git commit -q --allow-empty -m x; echo ran").run();
    if outcome.code() == 125 {
        outcome.expect_refusal(&["worktrees"]);
    } else {
        assert_eq!(outcome.expect_ok().out(), "ran");
    }
    assert!(!outcome.err().contains("panicked"), "{outcome}");
    // What the host has made is the host's, however odd; only what git never makes is put right, and said.
    let entries = repo.common.join("worktrees");
    let found = outcome.report.as_ref().map(|_| outcome.findings()).unwrap_or_default();
    for path in
        before.changed(&Snapshot::content_of(&entries)).into_iter().filter(|path| path != Path::new(""))
    {
        let changed = entries.join(&path);
        let said = found.iter().any(|finding| {
            finding["path"]
                .as_str()
                .is_some_and(|at| changed.starts_with(at) || Path::new(at).starts_with(&changed))
        });
        assert!(said, "{}: changed without a word: {outcome}", path.display());
    }
}

fn hostile_files_in_the_git_directory(place: &Place) {
    for hostile in [
        "rm .git/HEAD && mkfifo .git/HEAD",
        "rm .git/HEAD && ln -s /dev/zero .git/HEAD",
        "rm .git/config && mkfifo .git/config",
        "truncate -s 1G .git/config",
        "printf '\\0\\377' >.git/HEAD",
        "rm .git/index && mkfifo .git/index",
        "truncate -s 1G .git/packed-refs",
        "rm -rf .git && echo 'gitdir: /nowhere' >.git",
        "rm -rf .git && echo 'gitdir: .' >.git",
        "rm -rf .git && truncate -s 1G .git",
        "rm -rf .git && mkfifo .git",
        "rm -rf .git && ln -s .git .git",
        "rm -rf .git && mkdir .git",
    ] {
        let place = Place::new(place.identity(), "hostile");
        let repo = Repo::new(&place, Layout::Main);
        place.sh(&repo.workspace, hostile).expect_ok();
        let outcome = place.turn(&repo.workspace).sh("echo ran").run();
        assert!(outcome.code() == 125 || outcome.out() == "ran", "{hostile}: {outcome}");
        if outcome.code() == 125 {
            outcome.expect_refusal(&[]);
        }
        assert!(!outcome.err().contains("panicked"), "{hostile}: {outcome}");
    }
}

fn a_corrupt_journal(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    place.turn(&repo.workspace).command(["true"]).run().expect_ok();
    let turns = place.state().join("turns");
    for (number, content) in ["", "{", "[]", "{\"version\": 99}", "\0\0\0"].iter().enumerate() {
        let turn = turns.join(format!("0193a000-0000-7000-8000-00000000000{number}"));
        place.write(turn.join("journal.json"), content);
    }
    place.make(turns.join("not-a-turn"));
    place.write(turns.join("file"), "x");
    let outcome = place.turn(&repo.workspace).sh("echo ran").run();
    assert!(!outcome.err().contains("panicked"), "{outcome}");
    if outcome.code() == 125 {
        outcome.expect_refusal(&["journal"]);
    } else {
        assert_eq!(outcome.expect_ok().out(), "ran");
    }
    let check = place.shim(&["check", "--repo", repo.workspace.to_str().unwrap()]);
    assert!(!check.err().contains("panicked") && check.code() >= 0, "{check}");
    repo.assert_sound(place);
}

fn a_corrupt_session_record(place: &Place) {
    let workspace = place.make("home/w");
    place.turn(&workspace).command(["true"]).run().expect_ok();
    let find = place.sh(&place.state(), "find sessions -name session.json");
    for record in find.out().lines() {
        let path = place.state().join(record);
        fs::write(&path, "{ not json").unwrap();
        let outcome = place.turn(&workspace).sh("echo ran").run();
        assert!(!outcome.err().contains("panicked"), "{outcome}");
        assert!(outcome.code() == 125 || outcome.out() == "ran", "{outcome}");
    }
}

fn a_state_directory_of_somebody_else(place: &Place) {
    if !Requires::Root.met() {
        return;
    }
    let state = place.make("home/.local/state/codeoid-shim");
    let stranger = if place.identity() == Identity::Root { 65534 } else { 0 };
    chown(&state, Some(stranger), Some(stranger)).unwrap();
    chmod(&state, 0o777);
    let before = Snapshot::of(&state);
    refused(place, &["codeoid-shim"]);
    before.assert_same(&Snapshot::of(&state), "somebody else's directory");
}

fn a_state_directory_that_is_a_symbolic_link_or_a_file(place: &Place) {
    let elsewhere = place.make("outside/elsewhere");
    place.make("home/.local/state");
    symlink(&elsewhere, place.state()).unwrap();
    let workspace = place.make("home/w");
    let outcome = place.turn(&workspace).sh("ls ~/.local/state/codeoid-shim 2>/dev/null; touch ran").run();
    assert!(outcome.code() == 125 || !outcome.out().contains("sessions"), "its state is in sight: {outcome}");
    fs::remove_file(place.state()).unwrap();
    place.write(place.state(), "a file");
    refused_again(place);
}

fn a_state_directory_that_cannot_be_written(place: &Place) {
    if place.identity() == Identity::Root {
        return;
    }
    chmod(&place.make("home/.local/state"), 0o555);
    refused(place, &["state"]);
}

fn a_state_directory_where_nothing_can_be_made(place: &Place) {
    let workspace = place.make("home/w");
    for base in ["/proc", "/proc/self", "/sys"] {
        let outcome = place.turn(&workspace).env("XDG_STATE_HOME", base).sh("touch ran").run();
        outcome.expect_refusal(&["state directory"]);
        let mut check = place.command(codeoid_tests::shim());
        check.args(["session", "open"]).env("XDG_STATE_HOME", base).current_dir(&workspace);
        assert_eq!(place.finish(check).code(), 125, "{base}");
    }
}

fn a_full_disk(place: &Place) {
    if !Requires::Root.met() {
        return;
    }
    let state = place.make("home/.local/state");
    let owner = format!("{}:{}", place.identity().uid(), place.identity().gid());
    let mounts = format!(
        "mount -t tmpfs -o size=64k tmpfs {0}; chown {owner} {0}; \
             dd if=/dev/zero of={0}/fill bs=1k 2>/dev/null || :",
        state.display()
    );
    let finished = mounted(place, &mounts, "touch ran");
    assert_eq!(finished.code(), 125, "{finished}");
    assert!(
        finished.err().starts_with("codeoid-shim: ") && !finished.err().contains("panicked"),
        "{finished}"
    );
    assert!(!place.at("home/w/ran").exists());
}

fn a_report_that_cannot_be_written(place: &Place) {
    let workspace = place.make("home/w");
    for target in ["/nowhere/report", "/dev/full", "fd:77", "fd:x", "/"] {
        let outcome = place.turn(&workspace).report_to(target).sh("echo ran").run();
        assert!(!outcome.err().contains("panicked"), "{target}: {outcome}");
        assert!(outcome.code() == 125 || outcome.err().contains("report"), "{target}: not silent: {outcome}");
    }
}

fn a_home_that_is_not_one(place: &Place) {
    let workspace = place.make("outside/w");
    for home in ["/nonexistent", "relative", "", "/etc/passwd"] {
        let outcome = place.turn(&workspace).env("HOME", home).sh("echo ran").run();
        assert!(!outcome.err().contains("panicked"), "{home}: {outcome}");
        if outcome.code() == 125 {
            outcome.expect_refusal(&[]);
        } else {
            assert_eq!(outcome.out(), "ran", "{home}: {outcome}");
        }
    }
}

fn an_environment_that_is_not_utf_8(place: &Place) {
    let workspace = place.make("home/w");
    let value: std::ffi::OsString = std::os::unix::ffi::OsStringExt::from_vec(vec![b'a', 0xff]);
    let outcome = place.turn(&workspace).env("ODD", &value).sh("echo ran").run();
    if outcome.code() == 125 {
        outcome.expect_refusal(&["ODD"]);
    } else {
        assert_eq!(outcome.expect_ok().out(), "ran");
        assert!(
            outcome.err().contains("ODD") || outcome.report()["warnings"].to_string().contains("ODD"),
            "{outcome}"
        );
    }
}

fn very_many_rules(place: &Place) {
    let workspace = place.make("home/w");
    let directory = place.make("home/many");
    let options: Vec<String> = (0..400)
        .flat_map(|number| {
            let path = place.write(directory.join(format!("{number}")), "SECRET");
            ["--hide".to_owned(), path.display().to_string()]
        })
        .collect();
    let outcome = place.turn(&workspace).options(options).sh("ls ~/many | wc -l").run();
    assert_eq!(outcome.expect_ok().out(), "0", "{outcome}");
}

fn a_very_long_command_line(place: &Place) {
    let workspace = place.make("home/w");
    let word = "x".repeat(100_000);
    let outcome = place.turn(&workspace).command(["sh", "-c", "echo ${#1} ${#2}", "sh", &word, &word]).run();
    assert_eq!(outcome.expect_ok().out(), "100000 100000");
}

each_identity! {
    a_configuration_that_is_not_json,
    a_configuration_that_is_no_ordinary_file,
    a_configuration_that_others_can_write,
    a_configuration_that_cannot_be_read,
    a_configuration_that_is_named_and_missing,
    a_configuration_in_the_workspace_widens_nothing,
    environment_variables_that_there_are_not,
    hostile_session_ids,
    entries_that_are_no_entries,
    hostile_files_in_the_git_directory,
    a_corrupt_journal,
    a_corrupt_session_record,
    a_state_directory_of_somebody_else,
    a_state_directory_that_is_a_symbolic_link_or_a_file,
    a_state_directory_that_cannot_be_written,
    a_state_directory_where_nothing_can_be_made,
    a_full_disk,
    a_report_that_cannot_be_written,
    a_home_that_is_not_one,
    an_environment_that_is_not_utf_8,
    very_many_rules,
    a_very_long_command_line,
}

#[track_caller]
fn refused_after(place: &Place, path: &Path, change: &str, words: &[&str]) {
    let mut command = place.command("/bin/sh");
    command.args(["-c", change, "sh"]).arg(path);
    place.finish(command).expect_ok();
    refused(place, words);
}

#[track_caller]
fn refused_again(place: &Place) {
    let workspace = place.make("home/w");
    let _ = fs::remove_file(workspace.join("ran"));
    refused(place, &["codeoid-shim"]);
}
