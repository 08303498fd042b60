//! Real engines with this project's program as their runtime, registered as docs/engines.md says.

#![cfg(test)]

use std::time::Duration;

use codeoid_tests::{Engine, EngineKind, Finished, IMAGE, Identity, Place, Requires, documented, wait_until};

#[track_caller]
fn says(finished: &Finished, code: i32, out: &str) {
    assert_eq!(finished.code(), code, "{finished}");
    assert!(finished.out().contains(out), "{out:?} is missing: {finished}");
}

fn met(tools: &[&'static str]) -> bool {
    Requires::Root.met()
        && Requires::Path("/bin/busybox").met()
        && Requires::Path("/usr/bin/python3").met()
        && tools.iter().all(|tool| Requires::Tool(tool).met())
}

/// What podman and Docker have in common: `run` takes the runtime's option, the rest knows the container's.
fn containers(engine: &Engine<'_>, runtime: &[&str]) {
    let run = |options: &[&str], command: &[&str]| {
        engine.run(&[runtime, &["run", "--rm", "--network", "none"], options, &[IMAGE], command].concat())
    };
    says(&run(&[], &["sh", "-c", "id -u; exit 7"]), 7, "0\n");
    says(&run(&[], &["nosuch"]), 127, "");
    says(&run(&[], &["/etc/passwd"]), 126, "");
    let status =
        "grep -E '^(Seccomp:|CapEff)' /proc/self/status; ip link show lo; cat /sys/fs/cgroup/*/pids.max";
    let finished = run(&["--cap-drop", "all", "--pids-limit", "77"], &["sh", "-c", status]);
    for expected in ["CapEff:\t0000000000000000", "Seccomp:\t2", "LOOPBACK,UP"] {
        says(&finished, finished.code(), expected);
    }
    let written = "touch /x 2>/dev/null || echo read-only; touch /t/x && echo writable";
    says(&run(&["--read-only", "--tmpfs", "/t"], &["sh", "-c", written]), 0, "read-only\nwritable\n");
    says(
        &run(&["--user", "user", "-w", "/tmp", "-e", "A=b"], &["sh", "-c", "id -u; pwd; echo $A"]),
        0,
        "1000\n/tmp\nb",
    );
    says(
        &run(&["-v", "/etc/hostname:/h:ro,rprivate"], &["sh", "-c", "wc -l </h; touch /h || echo no"]),
        0,
        "no",
    );
    says(&run(&["-t"], &["tty"]), 0, "/dev/pts/");

    let script = "trap 'exit 3' TERM; echo up; while true; do sleep 0.05; done";
    let started =
        [runtime, &["run", "-d", "--name", "c", "--network", "none", IMAGE, "sh", "-c", script]].concat();
    engine.run(&started).expect_ok();
    assert!(wait_until(Duration::from_secs(10), || engine.run(&["logs", "c"]).out().contains("up")));
    says(&engine.run(&["exec", "c", "sh", "-c", "echo inside; exit 5"]), 5, "inside");
    says(&engine.run(&["exec", "-u", "1000", "-e", "A=b", "c", "sh", "-c", "id -u; echo $A"]), 0, "1000\nb");
    says(&engine.run(&["exec", "-t", "c", "tty"]), 0, "/dev/pts/");
    let missing = engine.run(&["exec", "c", "nosuch"]);
    assert!(matches!(missing.code(), 126 | 127), "{missing}");
    says(&engine.run(&["top", "c"]), 0, "sleep");
    engine.run(&["pause", "c"]).expect_ok();
    says(&engine.run(&["inspect", "-f", "{{.State.Status}}", "c"]), 0, "paused");
    engine.run(&["unpause", "c"]).expect_ok();
    engine.run(&["restart", "-t", "5", "c"]).expect_ok();
    engine.run(&["stop", "-t", "5", "c"]).expect_ok();
    says(&engine.run(&["inspect", "-f", "{{.State.ExitCode}}", "c"]), 0, "3");
    engine.run(&["start", "c"]).expect_ok();
    engine.run(&["kill", "c"]).expect_ok();
    says(&engine.run(&["wait", "c"]), 0, "137");
    engine.run(&["rm", "c"]).expect_ok();
}

#[test]
fn podman() {
    if !met(&["podman", "conmon"]) {
        return;
    }
    let place = Place::new(Identity::Root, "podman");
    let engine = Engine::start(&place, EngineKind::Podman);
    let line = documented("podman --runtime");
    let mut words: Vec<&str> = line.iter().map(String::as_str).collect();
    words.splice(4..4, ["--network", "none"]);
    says(&engine.run(&words), 0, "hello");
    containers(&engine, &["--runtime", "codeoid"]);
}

#[test]
fn podman_without_root() {
    if !met(&["podman", "conmon", "newuidmap"]) || !Requires::Identity(Identity::Ordinary).met() {
        return;
    }
    let place = Place::new(Identity::Ordinary, "rootless");
    let engine = Engine::start(&place, EngineKind::Podman);
    let run = |command: &[&str]| {
        engine.run(&[&["--runtime", "codeoid", "run", "--rm", "--network", "none", IMAGE], command].concat())
    };
    says(&run(&["sh", "-c", "id -u; wc -l </proc/self/uid_map; ip link show lo; exit 7"]), 7, "LOOPBACK,UP");
    says(&run(&["nosuch"]), 127, "");
    let started =
        ["--runtime", "codeoid", "run", "-d", "--name", "c", "--network", "none", IMAGE, "sleep", "100"];
    engine.run(&started).expect_ok();
    says(&engine.run(&["exec", "c", "sh", "-c", "id -u; cat /proc/1/comm; exit 5"]), 5, "0\nsleep");
    engine.run(&["kill", "c"]).expect_ok();
    says(&engine.run(&["wait", "c"]), 0, "137");
    engine.run(&["rm", "c"]).expect_ok();
}

#[test]
fn docker() {
    if !met(&["dockerd", "docker", "containerd", "ip"]) {
        return;
    }
    let place = Place::new(Identity::Root, "docker");
    let engine = Engine::start(&place, EngineKind::Docker);
    let line = documented("docker run");
    says(&engine.run(&line.iter().map(String::as_str).collect::<Vec<_>>()), 0, "hello");
    // Here the runtime is an option of `run`; so each line is turned round.
    containers_of_docker(&engine);
}

fn containers_of_docker(engine: &Engine<'_>) {
    let run = |words: &[&str]| engine.run(&[&["run", "--rm", "--runtime", "codeoid"], words].concat());
    says(&run(&[IMAGE, "sh", "-c", "ip addr show eth0 | grep -c inet; exit 7"]), 7, "1");
    says(&run(&[IMAGE, "nosuch"]), 127, "");
    says(&run(&[IMAGE, "/etc/passwd"]), 126, "");
    let mounted = [
        "--read-only",
        "--tmpfs",
        "/t",
        "-v",
        "/etc/hostname:/h:ro",
        IMAGE,
        "sh",
        "-c",
        "touch /x 2>/dev/null || echo read-only; touch /t/x && cat /h >/dev/null && echo writable",
    ];
    says(&run(&mounted), 0, "read-only\nwritable\n");
    let script = "trap 'exit 3' TERM; echo up; while true; do sleep 0.05; done";
    engine.run(&["run", "-d", "--runtime", "codeoid", "--name", "cc", IMAGE, "sh", "-c", script]).expect_ok();
    assert!(wait_until(Duration::from_secs(10), || engine.run(&["logs", "cc"]).out().contains("up")));
    says(&engine.run(&["exec", "cc", "sh", "-c", "echo inside; exit 5"]), 5, "inside");
    says(&engine.run(&["exec", "-t", "cc", "tty"]), 0, "/dev/pts/");
    let sharing = ["--pid", "container:cc", "--network", "container:cc", IMAGE, "cat", "/proc/1/cmdline"];
    says(&run(&sharing), 0, "trap");
    engine
        .run(&["update", "--memory", "64m", "--memory-swap", "64m", "--pids-limit", "77", "cc"])
        .expect_ok();
    engine.run(&["pause", "cc"]).expect_ok();
    says(&engine.run(&["inspect", "-f", "{{.State.Status}}", "cc"]), 0, "paused");
    engine.run(&["unpause", "cc"]).expect_ok();
    engine.run(&["stop", "-t", "5", "cc"]).expect_ok();
    says(&engine.run(&["inspect", "-f", "{{.State.ExitCode}}", "cc"]), 0, "3");
    engine.run(&["rm", "cc"]).expect_ok();
}

#[test]
fn containerd() {
    if !met(&["containerd", "ctr"]) {
        return;
    }
    let place = Place::new(Identity::Root, "containerd");
    let engine = Engine::start(&place, EngineKind::Containerd);
    let line = documented("ctr run");
    says(&engine.run(&line.iter().map(String::as_str).collect::<Vec<_>>()), 0, "hello");
    let runtime = codeoid_tests::shim().to_str().unwrap();
    let run = |words: &[&str]| engine.run(&[&["run", "--rm", "--runc-binary", runtime], words].concat());
    says(&run(&[IMAGE, "a", "sh", "-c", "exit 7"]), 7, "");
    let finished = run(&[IMAGE, "b", "nosuch"]);
    assert!(finished.err().contains("executable file not found in $PATH"), "{finished}");
    let mount = "type=bind,src=/etc,dst=/e,options=rbind:ro:rslave";
    says(
        &run(&["--mount", mount, IMAGE, "d", "sh", "-c", "ls /e/passwd; ip link show lo"]),
        0,
        "LOOPBACK,UP",
    );
    engine.run(&["run", "-d", "--runc-binary", runtime, IMAGE, "c", "sleep", "100"]).expect_ok();
    says(
        &engine.run(&["task", "exec", "--exec-id", "e", "c", "sh", "-c", "echo inside; exit 5"]),
        5,
        "inside",
    );
    engine.run(&["task", "pause", "c"]).expect_ok();
    says(&engine.run(&["task", "ls"]), 0, "PAUSED");
    engine.run(&["task", "resume", "c"]).expect_ok();
    engine.run(&["task", "kill", "-s", "KILL", "c"]).expect_ok();
    assert!(wait_until(Duration::from_secs(10), || engine.run(&["task", "ls"]).out().contains("STOPPED")));
    engine.run(&["task", "rm", "c"]);
    engine.run(&["container", "rm", "c"]).expect_ok();
}
