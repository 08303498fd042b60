//! `codeoid-shim bundle` writes an OCI bundle that other runtimes run too.

#![cfg(test)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use codeoid_tests::{CONNECT, Finished, Identity, Layout, Listener, Place, Repo, Requires, each_identity};
use serde_json::Value;

/// Writes the bundle of a turn of session `s1` with this script.
fn bundle(place: &Place, workspace: &Path, options: &[&str], script: &str) -> PathBuf {
    let output = place.at("outside/bundle");
    let mut command = place.command(codeoid_tests::shim());
    command.args(["bundle", "--session", "s1", "--workspace"]).arg(workspace).arg("--output").arg(&output);
    command.args(options).args(["--", "sh", "-c", script]);
    place.finish(command).expect_ok();
    output
}

fn config(bundle: &Path) -> Value {
    let text = fs::read(bundle.join("config.json")).expect("a bundle has a config.json");
    serde_json::from_slice(&text).expect("it is JSON")
}

/// Runs a bundle with another runtime, as root. crun refuses a host with both cgroup versions, unless the
/// second one is out of sight.
fn run(runtime: &str, bundle: &Path, id: &str) -> Finished {
    let script = format!(
        "umount /sys/fs/cgroup/unified 2>/dev/null; root=$(mktemp -d); \
             {runtime} --root \"$root\" run --bundle \"$0\" {id}; \
         code=$?; {runtime} --root \"$root\" delete --force {id} 2>/dev/null; rm -rf \"$root\"; exit $code"
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &script]).arg(bundle).stdin(Stdio::null());
    command
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env_remove("LISTEN_FDS");
    let place = Place::new(Identity::Root, "runtime");
    place.finish(command)
}

fn a_bundle_is_written_and_states_its_rules(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let bundle = bundle(place, &repo.workspace, &[], "exit 7");
    let config = config(&bundle);
    assert_eq!(config["process"]["args"], serde_json::json!(["sh", "-c", "exit 7"]));
    assert_eq!(config["process"]["cwd"], repo.workspace.to_str().unwrap());
    assert_eq!(config["process"]["noNewPrivileges"], true);
    assert_eq!(config["linux"]["rootfsPropagation"], "private");
    assert!(config["linux"]["seccomp"].is_object());
    assert_eq!(
        config["linux"]["cgroupsPath"],
        Value::Null,
        "a second run of the bundle must not share a cgroup"
    );
    for set in ["bounding", "effective", "permitted", "inheritable", "ambient"] {
        let capabilities = &config["process"]["capabilities"][set];
        assert!(
            capabilities.is_null() || capabilities.as_array().is_some_and(Vec::is_empty),
            "{set}: {capabilities}"
        );
    }
    let annotations = config["annotations"].as_object().expect("what OCI cannot say is in annotations");
    assert!(annotations.keys().all(|key| key.starts_with("dev.codeoid.")), "{annotations:?}");
    let hook = &config["hooks"]["poststop"][0]["path"];
    assert!(hook.as_str().is_some_and(|path| path.ends_with("/codeoid-hook")), "{hook}");
    let text = fs::read_to_string(bundle.join("config.json")).unwrap();
    assert!(text.len() < 100_000, "{} bytes", text.len());
}

fn writing_a_bundle_runs_nothing_and_leaves_nothing_else(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    bundle(place, &repo.workspace, &[], "touch ran");
    assert!(!repo.workspace.join("ran").exists());
    assert_eq!(place.git(&repo.workspace, &["status", "--porcelain"]), "");
}

fn an_output_that_exists_is_not_overwritten(place: &Place) {
    let workspace = place.make("home/w");
    place.write("outside/bundle/precious", "precious");
    let output = place.at("outside/bundle").display().to_string();
    let workspace = workspace.display().to_string();
    let finished = place.shim(&["bundle", "--workspace", &workspace, "--output", &output, "--", "true"]);
    assert_eq!(finished.code(), 125, "{finished}");
    assert_eq!(fs::read_dir(place.at("outside/bundle")).unwrap().count(), 1);
}

fn the_shim_runs_its_own_bundle_by_the_oci_way(place: &Place) {
    let workspace = place.make("home/w");
    let bundle = bundle(place, &workspace, &[], "echo from the bundle; touch made; exit 7");
    let mut command = place.command(codeoid_tests::shim());
    command.args(["run", "--bundle"]).arg(&bundle).arg(format!("own-{}", std::process::id()));
    let finished = place.finish(command);
    assert_eq!((finished.code(), finished.out().trim()), (7, "from the bundle"), "{finished}");
    assert!(workspace.join("made").exists());
}

fn other_runtimes_run_it_serial(place: &Place) {
    if place.identity() != Identity::Root {
        return;
    }
    for runtime in ["runc", "crun"] {
        if !Requires::Tool(runtime).met() {
            continue;
        }
        let place = Place::new(Identity::Root, runtime);
        let repo = Repo::new(&place, Layout::Main);
        place.write("home/.netrc", "SECRET");
        let script = "echo ran; pwd -P; git worktree add -q -b b \"$CODEOID_WORKTREE_DIR/b\" && \
             echo worktree; \
             (echo x >/etc/x) 2>/dev/null || echo read-only; cat ~/.netrc 2>/dev/null || echo hidden; \
             (echo evil >.git/config) 2>/dev/null || echo pinned; \
             grep -c 'CapEff:.0000000000000000' /proc/self/status; exit 7";
        let bundle = bundle(&place, &repo.workspace, &[], script);
        let finished = run(runtime, &bundle, &format!("codeoid-tests-{runtime}-{}", std::process::id()));
        let expected = format!("ran\n{}\nworktree\nread-only\nhidden\npinned\n1\n", repo.workspace.display());
        assert_eq!((finished.out(), finished.code()), (expected, 7), "{runtime}: {finished}");
        repo.assert_sound(&place);
    }
}

fn a_session_that_has_had_turns_is_run_by_others_too_serial(place: &Place) {
    let workspace = place.make("home/w");
    let dir = bundle(place, &workspace, &[], "echo one >>~/log; cat ~/log");
    place.turn(&workspace).session("s1").sh("echo zero >~/log").run().expect_ok();
    if place.identity().uid().is_root() && Requires::Tool("runc").met() {
        let finished = run("runc", &dir, &format!("had-turns-{}", std::process::id()));
        assert_eq!(finished.expect_ok().out(), "zero\none\n", "{finished}");
    }
    // A killed one leaves the kernel's mark; writing the next bundle takes it away.
    let outcome =
        place.turn(&workspace).session("s1").env("CODEOID_TEST_STOP_AT", "finishing").sh("true").run();
    assert_eq!(outcome.signal(), Some(9));
    let mark = |place: &Place| place.sh(&place.state(), "find sessions -name volatile").out();
    fs::remove_dir_all(&dir).unwrap();
    let _ = bundle(place, &workspace, &[], "true");
    assert_eq!(mark(place), "", "no other runtime could mount the layer");
}

/// A mask is a mount, and a runtime makes the mount point that it lacks: on the host, in the workspace.
fn a_socket_that_is_gone_leaves_nothing_in_the_workspace_serial(place: &Place) {
    let workspace = place.make("home/w");
    let socket = workspace.join("w.sock");
    let listener = Listener::at(&socket);
    let output = place.at("outside/bundle");
    let mut command = place.command(codeoid_tests::shim());
    command.args(["bundle", "--session", "s1", "--workspace"]).arg(&workspace).arg("--output").arg(&output);
    command.args(["--", "/usr/bin/python3", "-c", CONNECT]).arg(&socket);
    let written = place.finish(command);
    written.expect_ok();
    assert!(
        written.err().contains("warning") && written.err().contains(socket.to_str().unwrap()),
        "what others do not hide is not said: {written}"
    );
    let config = config(&output);
    let masked =
        config["mounts"].as_array().unwrap().iter().any(|m| m["destination"] == *socket.to_str().unwrap());
    assert!(!masked, "{config:#}");
    assert!(config["annotations"]["dev.codeoid.watch.sockets"].as_str().unwrap().contains("w.sock"));
    // Our own executor hides it all the same.
    let own = |number: u32| {
        let mut command = place.command(codeoid_tests::shim());
        command.args(["run", "--bundle"]).arg(&output).arg(format!("gone-{}-{number}", std::process::id()));
        place.finish(command)
    };
    let finished = own(1);
    assert!(["ECONNREFUSED", "ENOENT", "EACCES"].contains(&finished.expect_ok().out().trim()), "{finished}");
    assert_eq!(listener.served(), 0);
    fs::remove_file(&socket).unwrap();
    let finished = own(2);
    assert_eq!(finished.expect_ok().out().trim(), "ENOENT", "{finished}");
    assert_eq!(fs::read_dir(&workspace).unwrap().count(), 0, "a mount point was made on the host");
    for runtime in ["runc", "crun"] {
        if place.identity() != Identity::Root || !Requires::Tool(runtime).met() {
            continue;
        }
        let finished = run(runtime, &output, &format!("gone-{runtime}-{}", std::process::id()));
        assert_eq!(finished.expect_ok().out().trim(), "ENOENT", "{runtime}: {finished}");
        assert_eq!(fs::read_dir(&workspace).unwrap().count(), 0, "{runtime} made a mount point on the host");
    }
}

fn the_hook_finishes_a_turn_that_runc_ran_serial(place: &Place) {
    if place.identity() != Identity::Root || !Requires::Tool("runc").met() {
        return;
    }
    let repo = Repo::new(place, Layout::Main);
    let bundle =
        bundle(place, &repo.workspace, &[], "git clone -q --bare . /tmp/e; echo /tmp/e >.git/commondir");
    let finished = run("runc", &bundle, &format!("codeoid-tests-hook-{}", std::process::id()));
    finished.expect_ok();
    assert!(!repo.common.join("commondir").exists(), "the poststop hook has not restored: {finished}");
    assert!(!repo.top.join("repo-worktrees").exists(), "the empty folder is left: {finished}");
    repo.assert_sound(place);
}

fn a_turn_runs_exactly_such_a_bundle(place: &Place) {
    let workspace = place.make("home/w");
    let written = config(&bundle(place, &workspace, &[], "true"));
    let outcome = place.turn(&workspace).options(["--keep-bundle"]).sh("true").run();
    outcome.expect_ok();
    let found = place.sh(&place.home(), "find \"$XDG_STATE_HOME/codeoid-shim\" \"$XDG_RUNTIME_DIR\" /run/codeoid-shim -type f -name config.json 2>/dev/null");
    let kept = found
        .out()
        .lines()
        .next()
        .map(PathBuf::from)
        .unwrap_or_else(|| panic!("no bundle is kept: {outcome}"));
    let kept: Value = serde_json::from_slice(&fs::read(kept).unwrap()).unwrap();
    let targets = |config: &Value| {
        let mounts = config["mounts"].as_array().expect("mounts").iter();
        mounts.map(|mount| (mount["destination"].clone(), mount["type"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(targets(&kept), targets(&written));
    assert_eq!(kept["process"]["args"], written["process"]["args"]);
    assert_eq!(kept["linux"]["seccomp"], written["linux"]["seccomp"]);
}

fn the_bwrap_executor_runs_the_same_bundle(place: &Place) {
    let workspace = place.make("home/w");
    let workspace = workspace.display().to_string();
    if !Requires::Tool("bwrap").met() {
        return;
    }
    let outcome = place
        .turn(&workspace)
        .options(["--executor", "bwrap"])
        .sh("touch made; (echo x >/etc/x) 2>/dev/null || echo read-only; exit 5")
        .run();
    assert_eq!((outcome.code(), outcome.out().as_str()), (5, "read-only"), "{outcome}");
    assert_eq!(outcome.report()["executor"], "bwrap", "{outcome}");
    assert!(place.at("home/w/made").exists());
}

each_identity! {
    a_socket_that_is_gone_leaves_nothing_in_the_workspace_serial,
    a_session_that_has_had_turns_is_run_by_others_too_serial,
    a_bundle_is_written_and_states_its_rules,
    writing_a_bundle_runs_nothing_and_leaves_nothing_else,
    an_output_that_exists_is_not_overwritten,
    the_shim_runs_its_own_bundle_by_the_oci_way,
    other_runtimes_run_it_serial,
    the_hook_finishes_a_turn_that_runc_ran_serial,
    a_turn_runs_exactly_such_a_bundle,
    the_bwrap_executor_runs_the_same_bundle,
}
