//! What the obvious way of building this sandbox gets wrong, one test for each. A: ways out. B: what breaks.
//! C: how the view is laid out.

#![cfg(test)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use codeoid_tests::{
    ABSTRACT_CONNECT, CONNECT, Identity, Layout, Listener, Place, Repo, Requires, Snapshot, each_identity,
};

fn name(path: &Path) -> String {
    path.to_str().expect("places have plain names").to_owned()
}

fn a1_a_secret_stays_hidden_when_the_host_replaces_it(place: &Place) {
    let workspace = place.make("home/w");
    place.write("home/.netrc", "SECRET old");
    place.write("home/.aws/credentials", "SECRET old");
    place.write("outside/hidden/file", "SECRET old");
    let hide = name(&place.at("outside/hidden"));
    let look = format!("cat ~/.netrc ~/.aws/credentials ~/.git-credentials {hide}/file; ls -A ~ {hide}");
    let mut running = place
        .turn(&workspace)
        .options(["--hide", &hide])
        .sh(&format!("{{ {look}; }} 2>&1; echo ready; read go; {{ {look}; }} 2>&1; true"))
        .spawn();
    running.expect("ready");
    // As `docker login` and every careful editor do it: a new file, renamed over the old one.
    place.write("home/.netrc.new", "SECRET new");
    fs::rename(place.at("home/.netrc.new"), place.at("home/.netrc")).unwrap();
    fs::remove_dir_all(place.at("home/.aws")).unwrap();
    place.write("home/.aws/credentials", "SECRET new");
    fs::rename(place.at("outside/hidden"), place.at("outside/gone")).unwrap();
    place.write("outside/hidden/file", "SECRET new");
    // One that did not exist when the turn began.
    place.write("home/.git-credentials", "SECRET new");
    running.say("go");
    let outcome = running.finish();
    assert!(!outcome.expect_ok().out().contains("SECRET"), "{outcome}");
}

fn a1_a_socket_in_a_directory_that_the_host_makes_anew_stays_dead(place: &Place) {
    let workspace = place.make("home/w");
    let directory = place.make("home/.daemon");
    let socket = directory.join("s");
    let first = Listener::at(&socket);
    let program = format!(
        "import sys; sys.argv = ['', '{}']; print('ready', flush=True); sys.stdin.readline()\n{CONNECT}",
        socket.display()
    );
    let mut running = place.turn(&workspace).python(&program, &[]).spawn();
    running.expect("ready");
    fs::remove_dir_all(&directory).unwrap();
    place.make("home/.daemon");
    let second = Listener::at(&socket);
    running.say("go");
    let outcome = running.finish();
    let last = outcome.expect_ok().out().lines().last().unwrap().to_owned();
    assert!(["ECONNREFUSED", "ENOENT"].contains(&last.as_str()), "{outcome}");
    assert_eq!(first.served() + second.served(), 0);
}

fn a2_a_socket_that_appears_during_the_turn_is_dead(place: &Place) {
    let workspace = place.make("home/w");
    let socket = place.make("home/s").join("late.sock");
    for home in ["overlay", "readonly"] {
        let program = format!(
            "import sys; sys.argv = ['', '{}']; print('ready', flush=True); sys.stdin.readline()\n{CONNECT}",
            socket.display()
        );
        let mut running = place.turn(&workspace).options(["--home", home]).python(&program, &[]).spawn();
        running.expect("ready");
        let listener = Listener::at(&socket);
        running.say("go");
        let outcome = running.finish();
        let last = outcome.expect_ok().out().lines().last().unwrap().to_owned();
        assert!(["ECONNREFUSED", "ENOENT"].contains(&last.as_str()), "{home}: {outcome}");
        assert_eq!(listener.served(), 0, "{home}");
        fs::remove_file(&socket).unwrap();
    }
}

fn a3_uid_0_cannot_write_the_kernels_settings(place: &Place) {
    let workspace = place.make("home/w");
    let before = fs::read_to_string("/proc/sys/vm/swappiness").unwrap();
    let script = "for f in kernel/core_pattern vm/swappiness vm/drop_caches net/ipv4/ip_forward kernel/hostname; do \
         (echo 1 >/proc/sys/$f) 2>/dev/null && echo WROTE $f; done; \
         (echo h >/proc/sysrq-trigger) 2>/dev/null && echo WROTE sysrq; \
         unshare -Ur sh -c '(echo 1 >/proc/sys/vm/swappiness) 2>/dev/null && \
         echo WROTE in a user namespace'; true";
    let outcome = place.turn(&workspace).sh(script).run();
    assert!(!outcome.expect_ok().out().contains("WROTE"), "{outcome}");
    assert_eq!(fs::read_to_string("/proc/sys/vm/swappiness").unwrap(), before);
}

fn a4_the_init_process_cannot_be_reached_through_proc(place: &Place) {
    let workspace = place.make("home/w");
    let mode = fs::metadata(codeoid_tests::shim()).unwrap().permissions().mode();
    let script = "for d in /proc/[0-9]*; do chmod 777 $d/exe 2>/dev/null; for f in $d/fd/*; do n=${f##*/}; \
         [ $n -gt 2 ] 2>/dev/null && [ $d != /proc/$$ ] && [ $d != /proc/self ] && \
         echo FD $f $(readlink $f); done; done; \
         readlink /proc/1/exe /proc/1/root /proc/1/cwd && echo LEAK; true";
    let outcome = place.turn(&workspace).sh(script).run();
    let out = outcome.expect_ok().out();
    // uid 0 sees the number of the one socket on which init tells the end, and cannot open it.
    let mut of_init = out.lines().filter(|line| line.starts_with("FD /proc/1/"));
    assert!(!out.contains("LEAK") && of_init.all(|line| line.trim_end() == "FD /proc/1/fd/3"), "{outcome}");
    assert_eq!(
        fs::metadata(codeoid_tests::shim()).unwrap().permissions().mode(),
        mode,
        "the shim's own binary"
    );
}

// A5, killing the shim, and A6, LISTEN_FDS: turn.rs.

fn a7_a_hidden_file_is_absent_not_an_empty_device(place: &Place) {
    let workspace = place.make("home/w");
    place.write("home/.netrc", "SECRET");
    place.write("home/.npmrc", "SECRET");
    let script = "cat ~/.netrc && echo READABLE; test -e ~/.npmrc && echo EXISTS; \
         echo x 2>/dev/null >>~/.netrc; stat -c %F ~/.netrc";
    let outcome = place.turn(&workspace).options(["--home", "readonly"]).sh(script).run();
    assert_eq!(outcome.out(), "", "{outcome}");
    assert_eq!(fs::read_to_string(place.at("home/.netrc")).unwrap(), "SECRET");
}

fn a8_a_write_beside_the_workspace_fails_instead_of_vanishing(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let script = format!(
        "for f in {0}/src/third {0}/new {1}/../new; do (echo x >$f) 2>&1; done; true",
        repo.human.display(),
        repo.remote.join("refs").display()
    );
    let outcome = place.turn(&repo.workspace).sh(&script).run();
    assert!(outcome.expect_ok().out().matches("Read-only file system").count() >= 2, "{outcome}");
    repo.assert_sound(place);
}

fn a9_nothing_in_run_can_be_renamed(place: &Place) {
    let workspace = place.make("home/w");
    let script = "for d in /run/*; do mv $d /run/moved 2>&1 && echo MOVED $d; done; mv /run /r 2>&1 && \
         echo MOVED run; true";
    let outcome = place.turn(&workspace).sh(script).run();
    assert!(!outcome.expect_ok().out().contains("MOVED"), "{outcome}");
}

fn b1_the_command_is_not_pid_1(place: &Place) {
    let workspace = place.make("home/w");
    let outcome = place.turn(&workspace).sh("test $$ -ne 1 && kill -TERM $$").run();
    outcome.expect_code(143);
}

fn b2_a_closed_network_fails_fast(place: &Place) {
    let workspace = place.make("home/w");
    let program = "\
import socket, time
start = time.time()
try: socket.getaddrinfo('example.org', 80)
except OSError: pass
print(time.time() - start < 5)
";
    let outcome = place.turn(&workspace).options(["--network", "off"]).python(program, &[]).run();
    assert_eq!(outcome.expect_ok().out(), "True", "{outcome}");
}

fn b3_a_file_system_mounted_in_the_home_is_no_obstacle(place: &Place) {
    if !Requires::Root.met() {
        return;
    }
    let workspace = place.make("home/w");
    let data = place.make("home/data");
    place.write("home/.netrc", "SECRET");
    let turn = || {
        place.turn(&workspace).sh("cat ~/data/on-it; cat ~/.netrc ~/.local/state/codeoid-shim/audit.jsonl 2>/dev/null; touch made; echo end")
    };
    let mounts = format!("mount -t tmpfs tmpfs {0}; echo there >{0}/on-it", data.display());
    // The first one finds no state of ours to hide.
    let turns = [turn(), turn()];
    for turn in &turns {
        let finished = place.finish_with_mounts(&mounts, &turn.to_command());
        assert_eq!(finished.expect_ok().out(), "there\nend\n", "{finished}");
    }
    if place.identity() == Identity::Ordinary {
        // The kernel gives an ordinary user no overlay there (locked mounts): never weakened in silence.
        let report = fs::read_to_string(turns[1].report_path()).unwrap();
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let home = report["coverage"].as_array().unwrap().iter().find(|rule| rule["rule"] == "home").unwrap();
        assert_eq!(home["status"], "weaker", "{report}");
    }
    assert!(workspace.join("made").exists());
}

fn b3_two_turns_of_one_session_share_one_home_layer(place: &Place) {
    let workspace = place.make("home/w");
    let mut first =
        place.turn(&workspace).sh("echo one >~/shared; echo ready; read go; cat ~/answer").spawn();
    first.expect("ready");
    let second = place.turn(&workspace).sh("cat ~/shared; echo two >~/answer").run();
    assert_eq!(second.expect_ok().out(), "one", "{second}");
    first.say("go");
    let outcome = first.finish();
    assert!(outcome.expect_ok().out().ends_with("two"), "{outcome}");
    assert!(!place.at("home/shared").exists());
}

fn b4_a_file_system_mounted_in_the_workspace_is_no_obstacle(place: &Place) {
    if !Requires::Root.met() {
        return;
    }
    let workspace = place.make("outside/w");
    let data = place.make("outside/w/data");
    let owner = format!("{}:{}", place.identity().uid(), place.identity().gid());
    let mounts = format!(
        "mount -t tmpfs -o mode=755 tmpfs {0}; echo there >{0}/on-it; chown {owner} {0}",
        data.display()
    );
    let turn = place.turn(&workspace).sh("cat data/on-it; touch data/made && echo writable; touch made");
    assert_eq!(place.finish_with_mounts(&mounts, &turn.to_command()).expect_ok().out(), "there\nwritable\n");
}

fn b4_sources_with_restrictive_mount_flags(place: &Place) {
    if !Requires::Root.met() {
        return;
    }
    let workspace = place.make("outside/w");
    let owner = format!("{}:{}", place.identity().uid(), place.identity().gid());
    for flags in ["nosuid,nodev", "nosuid,nodev,noexec", "ro"] {
        let mounts = format!(
            "mount -t tmpfs tmpfs {0}; chown {owner} {0}; mount -o remount,bind,{flags} {0}",
            workspace.display()
        );
        let finished = place.finish_with_mounts(
            &mounts,
            &place.turn(&workspace).sh("touch x 2>/dev/null; echo ran").to_command(),
        );
        assert_eq!(finished.expect_ok().out(), "ran\n", "{flags}");
    }
}

// B5, uid and gid inside: turn.rs; a bundle that runc takes: bundle.rs.

fn b6_secondary_groups_can_read(place: &Place) {
    let workspace = place.make("home/w");
    let outcome = place.turn(&workspace).sh("id; ls -ln /etc/passwd").run();
    outcome.expect_ok();
}

fn b7_a_workspace_of_another_user(place: &Place) {
    if place.identity() != Identity::Root || !Requires::Identity(Identity::Ordinary).met() {
        return;
    }
    let workspace = place.make("outside/w");
    chown(&workspace, Some(Identity::Ordinary.uid().as_raw()), Some(Identity::Ordinary.gid().as_raw()))
        .unwrap();
    let outcome = place.turn(&workspace).sh("touch made").run();
    // Either it works, or it is refused with a reason; never a turn that cannot write its workspace.
    if outcome.code() == 125 {
        outcome.expect_refusal(&["own"]);
    } else {
        outcome.expect_ok();
        assert!(workspace.join("made").exists());
    }
}

fn b9_a_workspace_in_a_hidden_home(place: &Place) {
    let workspace = place.make("home/deep/er/w");
    place.write("home/deep/other", "SECRET");
    let outcome =
        place.turn(&workspace).options(["--home", "hidden"]).sh("pwd -P; touch made; ls ~ ~/deep").run();
    let out = outcome.expect_ok().out();
    assert!(out.starts_with(&name(&workspace)) && !out.contains("other"), "{outcome}");
    assert!(workspace.join("made").exists());
}

fn b9_long_paths(place: &Place) {
    // Mount options are limited to 255 bytes in the new mount interface; a home may be longer.
    let long = format!("home/{}/{}", "l".repeat(150), "m".repeat(150));
    let home = place.make(&long);
    place.write(format!("{long}/.gitconfig"), "");
    let workspace = place.make(format!("{long}/w"));
    let state = home.join(".local/state");
    let outcome = place
        .turn(&workspace)
        .env("HOME", &home)
        .env("XDG_STATE_HOME", state)
        .sh("touch ~/x made; echo ran")
        .run();
    assert_eq!(outcome.expect_ok().out(), "ran", "{outcome}");
    assert!(!home.join("x").exists() && workspace.join("made").exists());
}

fn b9_a_home_with_a_difficult_name(place: &Place) {
    for odd in ["with space", "co,mma", "col:on", "back\\slash"] {
        let home = place.make(format!("home/{odd}"));
        let workspace = place.make(format!("home/{odd}/w"));
        let outcome = place
            .turn(&workspace)
            .session("odd")
            .env("HOME", &home)
            .env("XDG_STATE_HOME", place.at("outside/state"))
            .sh("touch ~/x && echo ran")
            .run();
        assert_eq!(outcome.expect_ok().out(), "ran", "{odd}: {outcome}");
        assert!(!home.join("x").exists(), "{odd}");
    }
}

fn b11_a_mount_source_that_is_missing_is_refused_before_the_start(place: &Place) {
    let workspace = place.make("home/w");
    let missing = name(&place.at("outside/missing"));
    for option in ["--read", "--write"] {
        place
            .turn(&workspace)
            .options([option, &missing])
            .sh("touch ran")
            .run()
            .expect_refusal(&["missing", option.trim_start_matches('-')]);
    }
    assert!(!workspace.join("ran").exists());
}

fn b12_a_workspace_that_is_replaced_during_the_turn_is_reported(place: &Place) {
    let workspace = place.make("home/w");
    let mut running = place.turn(&workspace).sh("echo ready; read go; touch inside; true").spawn();
    running.expect("ready");
    fs::rename(&workspace, place.at("home/moved")).unwrap();
    place.make("home/w");
    running.say("go");
    let outcome = running.finish();
    let report = outcome.report();
    let said = format!("{} {} {}", report["warnings"], report["findings"], outcome.err());
    assert!(said.contains("workspace"), "{outcome}");
}

// C1, terminals: terminal.rs. C6, refused workspaces: view.rs.

fn c3_abstract_sockets_of_the_host_are_out_of_reach(place: &Place) {
    if !Requires::Landlock(6).met() {
        return;
    }
    let workspace = place.make("home/w");
    let label = format!("codeoid-tests-{}-{}", std::process::id(), place.identity().uid());
    let listener = Listener::named(&label);
    let control = place.command("/usr/bin/python3").args(["-c", ABSTRACT_CONNECT, &label]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&control.stdout).trim(), "hello");
    for network in ["host", "off"] {
        let outcome =
            place.turn(&workspace).options(["--network", network]).python(ABSTRACT_CONNECT, &[&label]).run();
        if outcome.expect_ok().out() == "hello" {
            // The kernel may lack Landlock; then it must not be silent.
            let coverage = outcome.report()["coverage"].to_string();
            assert!(coverage.contains("abstract") && !coverage.is_empty(), "{network}: {outcome}");
        }
    }
    assert!(listener.served() >= 1);
}

fn c4_the_resolver_and_the_usual_links_work(place: &Place) {
    let workspace = place.make("home/w");
    let script = "for f in /etc/resolv.conf /etc/mtab /etc/localtime /var/run/lock /var/lock /dev/shm /dev/fd/0 /proc/self/exe; do \
         test -e $f || echo missing $f; done; locale >/dev/null 2>&1; true";
    let outside = place.sh(&workspace, script).out();
    let outcome = place.turn(&workspace).sh(script).run();
    for line in outcome.expect_ok().out().lines() {
        assert!(outside.contains(line), "{line} (here, not outside): {outcome}");
    }
}

fn c5_sandboxes_nest_for_an_ordinary_user(place: &Place) {
    if place.identity() == Identity::Root || !Requires::Tool("bwrap").met() {
        return;
    }
    let workspace = place.make("home/w");
    let script = "bwrap --ro-bind / / --dev /dev --proc /proc --unshare-all sh -c 'echo bwrap; \
         ls -d /proc/[0-9]* | wc -l'";
    let outcome = place.turn(&workspace).sh(script).run();
    assert!(outcome.expect_ok().out().starts_with("bwrap\n"), "{outcome}");
    let shim = name(codeoid_tests::shim());
    // The outer sandbox has mounts in the home, above which the inner one gets no overlay.
    let script = format!(
        "XDG_STATE_HOME=$HOME/state {shim} run --session inner --home hidden -- sh -c 'echo inner; touch made'"
    );
    let outcome = place.turn(&workspace).sh(&script).run();
    assert_eq!(outcome.expect_ok().out(), "inner", "{outcome}");
    assert!(workspace.join("made").exists());
}

fn fallback_is_never_silent(place: &Place) {
    let workspace = place.make("home/w");
    let outcome = place.turn(&workspace).command(["true"]).run();
    let report = outcome.expect_ok().report();
    let coverage = report["coverage"].as_array().unwrap();
    assert!(!coverage.is_empty(), "{outcome}");
    for rule in coverage {
        assert!(rule["rule"].is_string() && rule["why"].is_string(), "{outcome}");
        assert!(
            ["enforced", "weaker", "not-enforced"].contains(&rule["status"].as_str().unwrap()),
            "{outcome}"
        );
        if rule["status"] == "not-enforced" {
            let limits = report["limits"].to_string() + &report["warnings"].to_string();
            assert!(limits.len() > 4, "a rule that does not hold is said in a sentence: {outcome}");
        }
    }
}

fn files_made_in_the_sandbox_have_no_odd_owner(place: &Place) {
    let workspace = place.make("home/w");
    place.turn(&workspace).sh("mkdir -p d && touch d/f && ln -s f d/l && mkfifo d/p").run().expect_ok();
    for entry in ["d", "d/f", "d/l", "d/p"] {
        let meta = fs::symlink_metadata(workspace.join(entry)).unwrap();
        assert_eq!(
            (meta.uid(), meta.gid()),
            (place.identity().uid().as_raw(), place.identity().gid().as_raw()),
            "{entry}"
        );
    }
    let snapshot = Snapshot::of(&workspace);
    assert!(snapshot.contains(PathBuf::from("d/p")));
}

each_identity! {
    a1_a_secret_stays_hidden_when_the_host_replaces_it,
    a1_a_socket_in_a_directory_that_the_host_makes_anew_stays_dead,
    a2_a_socket_that_appears_during_the_turn_is_dead,
    a3_uid_0_cannot_write_the_kernels_settings,
    a4_the_init_process_cannot_be_reached_through_proc,
    a7_a_hidden_file_is_absent_not_an_empty_device,
    a8_a_write_beside_the_workspace_fails_instead_of_vanishing,
    a9_nothing_in_run_can_be_renamed,
    b1_the_command_is_not_pid_1,
    b2_a_closed_network_fails_fast,
    b3_a_file_system_mounted_in_the_home_is_no_obstacle,
    b3_two_turns_of_one_session_share_one_home_layer,
    b4_a_file_system_mounted_in_the_workspace_is_no_obstacle,
    b4_sources_with_restrictive_mount_flags,
    b6_secondary_groups_can_read,
    b7_a_workspace_of_another_user,
    b9_a_workspace_in_a_hidden_home,
    b9_long_paths,
    b9_a_home_with_a_difficult_name,
    b11_a_mount_source_that_is_missing_is_refused_before_the_start,
    b12_a_workspace_that_is_replaced_during_the_turn_is_reported,
    c3_abstract_sockets_of_the_host_are_out_of_reach,
    c4_the_resolver_and_the_usual_links_work,
    c5_sandboxes_nest_for_an_ordinary_user,
    fallback_is_never_silent,
    files_made_in_the_sandbox_have_no_odd_owner,
}
