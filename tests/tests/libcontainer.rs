//! The faults of libcontainer 0.7, one test for each: what it would do to a turn is worked round, or refused
//! before the start. What is said of each is in docs/spec-deviations.md.

#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use codeoid_tests::{Finished, Layout, Place, Repo, Requires, each_identity, processes_with, wait_until};
use serde_json::Value;

/// What /proc/PID/FILE says after `name`.
fn field(pid: nix::unistd::Pid, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field of proc(5)");
    line.trim().to_owned()
}

fn b1_what_the_host_mounts_later_does_not_appear(place: &Place) {
    if !Requires::Root.met() {
        return;
    }
    let (workspace, shared) = (place.make("outside/w"), place.make("outside/shared"));
    let (workspace, shared) = (workspace.display(), shared.display());
    // A host whose mounts are shared, as systemd makes them.
    let host = format!(
        "mount --make-rshared /
        {{ until [ -e {workspace}/up ]; do sleep 0.02; done; mount -t tmpfs tmpfs {shared}; touch {shared}/late
        test -e {shared}/late && touch {workspace}/mounted; }} &"
    );
    let script =
        format!("touch up; until [ -e mounted ]; do sleep 0.02; done; ls -A {shared}; touch {shared}/x");
    let turn = place.turn(Path::new(&workspace.to_string())).sh(&format!("chmod 777 . ; {script}"));
    let finished = place.finish_with_mounts(&host, &turn.to_command());
    assert_eq!(finished.out(), "", "{finished}");
    assert_eq!(finished.code(), 1, "the place stays what it was, and read-only: {finished}");
}

fn b2_a_hidden_symbolic_link_hides_what_it_leads_to(place: &Place) {
    let workspace = place.make("home/w");
    place.write("outside/real.env", "SECRET");
    symlink(place.at("outside/real.env"), place.at("home/.env")).unwrap();
    let script = format!("cat ~/.env {}; true", place.at("outside/real.env").display());
    let outcome = place.turn(&workspace).sh(&script).run();
    assert!(!outcome.expect_ok().out().contains("SECRET"), "{outcome}");
}

/// B3 and B4: the filter is loaded whatever libcontainer was built with, and goes with dropped capabilities.
fn b3_b4_the_filter_is_loaded(place: &Place) {
    let workspace = place.make("home/w");
    let script =
        "grep -E '^(Seccomp|NoNewPrivs|CapEff|CapPrm|CapInh|CapAmb):' /proc/self/status | tr -d '\\t'";
    let outcome = place.turn(&workspace).options(["--executor", "libcontainer"]).sh(script).run();
    let none = "0000000000000000";
    let expected =
        format!("CapInh:{none}\nCapPrm:{none}\nCapEff:{none}\nCapAmb:{none}\nNoNewPrivs:1\nSeccomp:2");
    assert_eq!(outcome.expect_ok().out(), expected);
    // And it filters: kernel keyrings are not per namespace.
    let program = "import ctypes; libc = ctypes.CDLL(None, use_errno=True); \
                   print(libc.syscall(250, 0, -3, 0), ctypes.get_errno())";
    let outcome = place.turn(&workspace).python(program, &[]).run();
    assert!(outcome.expect_ok().out().starts_with("-1 "), "keyctl(2) is refused: {outcome}");
}

/// Bundles as somebody might write them by hand: what libcontainer gets wrong is done right or refused.
fn b4_b5_b11_b12_b17_a_bundle_that_asks_for_what_it_gets_wrong(place: &Place) {
    let workspace = place.make("home/w");
    let bundle = place.at("outside/bundle");
    let run = |change: &dyn Fn(&mut Value), script: &str| {
        let _ = fs::remove_dir_all(&bundle);
        let (at, output) = (workspace.to_str().unwrap(), bundle.to_str().unwrap());
        let words =
            ["bundle", "--session", "b", "--workspace", at, "--output", output, "--", "sh", "-c", script];
        place.shim(&words).expect_ok();
        let path = bundle.join("config.json");
        let mut config = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut config);
        fs::write(&path, serde_json::to_vec(&config).unwrap()).unwrap();
        place.shim(&["run", "--bundle", output, "b"])
    };
    let option = |at: &'static str, option: &'static str| {
        move |config: &mut Value| {
            let mounts = config["mounts"].as_array_mut().unwrap();
            let mount = mounts.iter_mut().find(|mount| mount["destination"] == at).expect("it is mounted");
            mount["options"].as_array_mut().unwrap().push(option.into());
        }
    };
    run(&|_| (), "true").expect_ok();
    let refused = |finished: Finished, what: &str| {
        assert_eq!(finished.code(), 125, "{what}: {finished}");
        assert!(finished.err().starts_with("codeoid-shim: "), "{what}: {finished}");
        assert!(!workspace.join("ran").exists(), "{what}");
    };
    refused(run(&option("/dev", "ro"), "touch ran"), "ro of /dev");
    refused(run(&option("/usr", "nosymfollow"), "touch ran"), "an option that it ignores");
    refused(run(&option("/usr", "rshared"), "touch ran"), "a propagation that it ignores");
    for propagation in ["rprivate", "rslave"] {
        let change = |config: &mut Value| config["linux"]["rootfsPropagation"] = propagation.into();
        refused(run(&change, "touch ran"), propagation);
    }
    let finished =
        run(&|config| config["process"]["noNewPrivileges"] = false.into(), "grep Seccomp: /proc/self/status");
    assert!(finished.code() == 125 || finished.out().trim_end().ends_with('2'), "never without: {finished}");
    let mut bystander = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    run(&|config| config["linux"]["cgroupsPath"] = "".into(), "true").expect_ok();
    let alive = bystander.try_wait().unwrap().is_none();
    let _ = bystander.kill();
    let _ = bystander.wait();
    assert!(alive, "everything in the caller's cgroup was killed");
}

fn b6_programs_below_read_only_paths_run(place: &Place) {
    let workspace = place.make("home/w");
    place.write("outside/tool", "#!/bin/sh\necho ran\n");
    fs::set_permissions(place.at("outside/tool"), fs::Permissions::from_mode(0o755)).unwrap();
    let directory = place.at("outside");
    let script = format!("{0}/tool; touch {0}/made", directory.display());
    let outcome = place.turn(&workspace).options(["--read", directory.to_str().unwrap()]).sh(&script).run();
    assert_eq!(outcome.out(), "ran", "{outcome}");
    outcome.expect_code(1);
}

fn b7_a_program_that_only_its_owner_may_run_runs(place: &Place) {
    let workspace = place.make("home/w");
    for mode in [0o700, 0o750, 0o500] {
        let tool = place.write("home/w/tool", "#!/bin/sh\necho ran\n");
        fs::set_permissions(&tool, fs::Permissions::from_mode(mode)).unwrap();
        let outcome = place.turn(&workspace).command([tool.to_str().unwrap()]).run();
        assert_eq!(outcome.expect_ok().out(), "ran", "{mode:o}: {outcome}");
        fs::remove_file(&tool).unwrap();
    }
}

fn b8_an_environment_without_path_is_no_obstacle(place: &Place) {
    let workspace = place.make("home/w");
    let outcome = place.turn(&workspace).without_env("PATH").command(["/bin/echo", "ran"]).run();
    assert_eq!(outcome.expect_ok().out(), "ran");
}

// B9, mount data longer than 255 bytes: rules.rs (`b9_long_paths`).

fn b10_the_hosts_dev_is_not_touched(place: &Place) {
    let names = || -> BTreeSet<_> {
        let entries = fs::read_dir("/dev").unwrap().flatten();
        entries.map(|entry| (entry.file_name(), fs::read_link(entry.path()).ok())).collect()
    };
    let before = names();
    let workspace = place.make("home/w");
    place.turn(&workspace).command(["true"]).run().expect_ok();
    assert_eq!(before, names());
    let dev = Path::new("/dev");
    place.turn(dev).command(["true"]).run().expect_refusal(&["/dev"]);
}

/// B13: what a failed start leaves behind ends with the engine.
fn b13_failed_starts_leave_no_process(place: &Place) {
    let workspace = place.make("home/w");
    for _ in 0..5 {
        place.turn(&workspace).command(["/nonexistent/program"]).run().expect_code(127);
    }
    let home = format!("HOME={}", place.home().display());
    assert!(
        wait_until(Duration::from_secs(3), || processes_with(&home).is_empty()),
        "{:?}",
        processes_with(&home)
    );
}

/// B14, B15, B16: what it does to its caller, it does to the engine; the supervisor stays as it was started.
fn b14_b15_b16_the_supervisor_is_left_as_it_was(place: &Place) {
    let workspace = place.make("home/w");
    let elsewhere = place.make("home/elsewhere");
    let mut running =
        place.turn(&workspace).cwd(&elsewhere).sh("echo up; cat /proc/self/oom_score_adj; read line").spawn();
    running.expect("up");
    let shim = running.pid();
    assert_eq!(field(shim, "Threads:"), "1", "libcontainer forks without exec");
    assert_eq!(fs::read_link(format!("/proc/{shim}/cwd")).unwrap(), elsewhere);
    // What is not dumpable belongs to root in /proc (proc(5)).
    assert_eq!(fs::metadata(format!("/proc/{shim}/stat")).unwrap().uid(), place.identity().uid().as_raw());
    let ours = fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    assert_eq!(fs::read_to_string(format!("/proc/{shim}/oom_score_adj")).unwrap(), ours);
    running.say("go");
    let outcome = running.finish();
    assert_eq!(outcome.expect_ok().out(), format!("up\n{}", ours.trim()));
}

// B18, a container that is left running: turn.rs, recovery.rs (whatever dies, nothing is left).
/// B19: an ordinary user has no cgroup, on any kind of host; here each kind is what the turn's own mount namespace
/// shows. As root they have to work likewise.
fn b19_cgroups_of_every_layout(place: &Place) {
    if !Requires::Root.met() {
        return;
    }
    let workspace = place.make("home/w");
    let v2 = "mount -t cgroup2 none /sys/fs/cgroup";
    let layouts = [
        ("as it is", "true".to_owned()),
        ("none", "umount -R /sys/fs/cgroup".to_owned()),
        ("v2 alone", format!("umount -R /sys/fs/cgroup; {v2}")),
        (
            "hybrid",
            "umount -R /sys/fs/cgroup; mount -t tmpfs none /sys/fs/cgroup; \
             mkdir /sys/fs/cgroup/unified; mount -t cgroup2 none /sys/fs/cgroup/unified"
                .to_owned(),
        ),
    ];
    for (what, mounts) in layouts {
        for executor in ["libcontainer", "bwrap"] {
            let turn = || place.turn(&workspace).options(["--executor", executor]);
            let finished = place.finish_with_mounts(&mounts, &turn().sh("echo ran").to_command());
            assert_eq!(finished.expect_ok().out(), "ran\n", "{what}, {executor}: {finished}");
            if what != "as it is" {
                // No controller is to be had there: the limit is refused, not ignored.
                let limited = turn().options(["--memory", "64M"]).sh("echo ran");
                let finished = place.finish_with_mounts(&mounts, &limited.to_command());
                assert_eq!((finished.code(), finished.out().as_str()), (125, ""), "{what}: {finished}");
                assert!(finished.err().contains("limits.memory"), "{what}: {finished}");
            }
        }
    }
}

fn b20_no_helper_program_maps_the_ids(place: &Place) {
    let workspace = place.make("home/w");
    let outcome = place
        .turn(&workspace)
        .sh("read a b c </proc/self/uid_map; echo $a $b $c; read a b c </proc/self/gid_map; echo $a $b $c")
        .run();
    let (uid, gid) = (place.identity().uid(), place.identity().gid());
    // As root there is no user namespace.
    let expected = match uid.as_raw() {
        0 => "0 0 4294967295\n0 0 4294967295".to_owned(),
        _ => format!("{uid} {uid} 1\n{gid} {gid} 1"),
    };
    assert_eq!(outcome.expect_ok().out(), expected, "{outcome}");
}

/// Y1: a command that ends before its end is waited for.
fn y1_short_commands_never_hang(place: &Place) {
    let repo = Repo::new(place, Layout::None);
    for _ in 0..5 {
        let turns: Vec<_> = (0..8).map(|_| place.turn(&repo.workspace).command(["true"]).spawn()).collect();
        for turn in turns {
            turn.finish().expect_ok();
        }
    }
}

each_identity! {
    b1_what_the_host_mounts_later_does_not_appear,
    b2_a_hidden_symbolic_link_hides_what_it_leads_to,
    b3_b4_the_filter_is_loaded,
    b4_b5_b11_b12_b17_a_bundle_that_asks_for_what_it_gets_wrong,
    b6_programs_below_read_only_paths_run,
    b7_a_program_that_only_its_owner_may_run_runs,
    b8_an_environment_without_path_is_no_obstacle,
    b10_the_hosts_dev_is_not_touched,
    b13_failed_starts_leave_no_process,
    b14_b15_b16_the_supervisor_is_left_as_it_was,
    b19_cgroups_of_every_layout,
    b20_no_helper_program_maps_the_ids,
    y1_short_commands_never_hang,
}
