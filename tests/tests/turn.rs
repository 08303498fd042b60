//! The command inside a turn: its exit code, streams, arguments, environment, identity and processes, and its
//! end with the shim (DESIGN §4 and §7).

#![cfg(test)]

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use codeoid_tests::{Place, descendants, each_identity, is_alive, wait_until};
use nix::sys::signal::Signal;

/// A signal ended the command: `(script, code of the shim, signal in the report)`.
const SIGNALLED: [(&str, i32, i64); 5] = [
    ("kill -TERM $$", 143, 15),
    ("kill -INT $$", 130, 2),
    ("kill -KILL $$", 137, 9),
    ("exec /usr/bin/python3 -c 'import os; os.abort()'", 134, 6),
    ("kill -SEGV $$", 139, 11),
];

fn exit_code_is_the_commands_own(place: &Place) {
    let workspace = place.make("home/w");
    for code in [0, 1, 5, 42, 124, 125, 126, 127, 200, 255] {
        let outcome = place.turn(&workspace).sh(&format!("exit {code}")).run();
        outcome.expect_code(code);
        assert_eq!(outcome.report()["exit"]["code"], code, "{outcome}");
        assert!(outcome.report()["exit"]["signal"].is_null(), "{outcome}");
        assert_eq!(outcome.err(), "", "nothing but the command's own on standard error");
    }
}

fn exit_code_passes_through_shells_that_wrap_the_command(place: &Place) {
    let workspace = place.make("home/w");
    for wrapper in ["bash", "dash", "bash --norc --noprofile", "busybox sh"] {
        let line = format!("{wrapper} -c 'exit 5'");
        place.turn(&workspace).sh(&line).run().expect_code(5);
        place.turn(&workspace).sh(&format!("exec {line}")).run().expect_code(5);
    }
    place.turn(&workspace).command(["bash", "-lc", "set -o pipefail; exit 5 | cat"]).run().expect_code(5);
}

fn a_signal_gives_128_plus_its_number(place: &Place) {
    let workspace = place.make("home/w");
    for (script, code, signal) in SIGNALLED {
        let outcome = place.turn(&workspace).sh(script).run();
        outcome.expect_code(code);
        assert_eq!(outcome.report()["exit"]["signal"], signal, "{script}: {outcome}");
        assert!(outcome.report()["exit"]["code"].is_null(), "{script}: {outcome}");
    }
}

fn a_command_that_is_missing_or_not_executable(place: &Place) {
    let workspace = place.make("home/w");
    let missing = place.turn(&workspace).command(["no-such-command-anywhere"]).run();
    missing.expect_code(127);
    assert!(
        missing.err().contains("codeoid-shim: ") && missing.err().contains("no-such-command"),
        "{missing}"
    );
    place.turn(&workspace).command(["/no/such/file"]).run().expect_code(127);
    let file = place.write("home/w/not-executable", "#!/bin/sh\nexit 0\n");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let denied = place.turn(&workspace).command([&file]).run();
    denied.expect_code(126);
    assert!(denied.err().contains("codeoid-shim: "), "{denied}");
    place.turn(&workspace).command([workspace.as_os_str()]).run().expect_code(126);
    // Only its owner may execute it: the owner is who runs the turn.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o700)).unwrap();
    place.turn(&workspace).command([&file]).run().expect_ok();
    place.turn(&workspace).command(["./not-executable"]).run().expect_ok();
}

fn usage_errors_are_125(place: &Place) {
    let workspace = place.make("home/w");
    for options in [
        vec!["--no-such-option"],
        vec!["--network", "sometimes"],
        vec!["--home", "sweet"],
        vec!["--git-protection", "none"],
        vec!["--timeout", "soon"],
        vec!["--memory", "-1"],
        vec!["--env", "without-a-value"],
        vec!["--executor", "magic"],
    ] {
        let outcome = place.turn(&workspace).options(&options).command(["true"]).run();
        outcome.expect_refusal(&[]);
        assert!(!outcome.err().contains("RUST_BACKTRACE"), "{outcome}");
    }
    let nothing = place.turn(&workspace).command::<&str>([]).run();
    nothing.expect_code(125);
}

fn standard_input_is_a_pipe(place: &Place) {
    let workspace = place.make("home/w");
    let outcome = place.turn(&workspace).command(["cat"]).stdin("to be echoed\n").run();
    assert_eq!(outcome.expect_ok().out(), "to be echoed");
    let outcome = place.turn(&workspace).sh("cat | wc -c").stdin(vec![b'x'; 3_000_000]).run();
    assert_eq!(outcome.expect_ok().out(), "3000000");
}

fn an_open_standard_input_does_not_delay_the_end(place: &Place) {
    let workspace = place.make("home/w");
    let mut running = place.turn(&workspace).sh("echo ready").spawn();
    running.expect("ready");
    assert!(wait_until(Duration::from_secs(10), || running.has_ended()), "waits for its standard input");
    running.finish().expect_ok();
}

fn standard_output_and_error_are_separate_and_unchanged(place: &Place) {
    let workspace = place.make("home/w");
    // Every byte value, ten megabytes, both streams at once.
    let program = "import os, sys, threading\n\
         out = bytes(range(256)) * 40960\n\
         def write(fd, data):\n    view = memoryview(data)\n    while view: view = view[os.write(fd, view):]\n\
         t = threading.Thread(target=write, args=(2, b'\\xffe\\r\\n\\0' * 200000))\n\
         t.start(); write(1, out); t.join()";
    let outcome = place.turn(&workspace).python(program, &[]).run();
    assert_eq!(outcome.code(), 0);
    let expected: Vec<u8> = (0..=255).cycle().take(256 * 40960).collect();
    assert!(outcome.stdout == expected, "{} bytes arrived", outcome.stdout.len());
    assert!(outcome.stderr == b"\xffe\r\n\0".repeat(200_000), "{} bytes arrived", outcome.stderr.len());
}

fn arguments_arrive_as_they_are(place: &Place) {
    let workspace = place.make("home/w");
    let words =
        ["", " ", "two words", "new\nline", "tab\t", "Grüße 🦀", "--help", "--", "-c", "*", "$HOME", "'\"\\"];
    let program = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))";
    let outcome = place.turn(&workspace).python(program, &words).run();
    assert_eq!(outcome.expect_ok().stdout, words.join("\0").into_bytes());
    assert_eq!(outcome.report()["command"].as_array().unwrap().last().unwrap(), "'\"\\");
}

fn an_argument_that_is_not_utf_8_is_refused_by_name(place: &Place) {
    let workspace = place.make("home/w");
    let word = std::ffi::OsString::from_vec(vec![b'a', 0xff]);
    place.turn(&workspace).command([std::ffi::OsStr::new("echo"), &word]).run().expect_refusal(&["UTF-8"]);
}

fn the_environment_is_scrubbed(place: &Place) {
    let workspace = place.make("home/w");
    let secret = [
        "DOCKER_HOST",
        "CONTAINER_HOST",
        "DBUS_SESSION_BUS_ADDRESS",
        "SSH_AUTH_SOCK",
        "GPG_AGENT_INFO",
        "INCUS_SOCKET",
        "LXD_DIR",
        "VSCODE_GIT_IPC_HANDLE",
        "DOCKER_AUTH_CONFIG",
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_COMMON_DIR",
        "GIT_OBJECT_DIRECTORY",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "LISTEN_FDS",
        "LISTEN_PID",
        "CODEOID_SANDBOX_KEEP_OUT_TEST",
    ];
    let mut turn = place.turn(&workspace).sh("env -0").env("ORDINARY", "kept").env("HANDED_ON", "1");
    for name in secret.iter().filter(|name| !name.starts_with("CODEOID")) {
        turn = turn.env(name, "must-not-arrive");
    }
    let outcome = turn.options(["--env", "SET=by the caller", "--pass-env", "HANDED_ON"]).run();
    let text = outcome.expect_ok().out();
    let variables: Vec<&str> = text.split('\0').collect();
    assert!(!text.contains("must-not-arrive"), "{outcome}");
    for expected in ["ORDINARY=kept", "HANDED_ON=1", "SET=by the caller", "CODEOID_SESSION=s1"] {
        assert!(variables.contains(&expected), "{expected}: {outcome}");
    }
    let home = format!("HOME={}", place.home().display());
    assert!(variables.contains(&home.as_str()), "{outcome}");
    assert!(variables.iter().any(|pair| pair.starts_with("PATH=/")), "{outcome}");
}

fn the_command_starts_in_the_workspace_as_its_caller(place: &Place) {
    let workspace = place.make("home/deep/er/w");
    let outcome = place.turn(&workspace).sh("pwd -P; id -u; id -g; umask; stat -c %u:%g .").run();
    let (uid, gid) = (place.identity().uid(), place.identity().gid());
    let lines: Vec<String> = outcome.expect_ok().out().lines().map(str::to_owned).collect();
    assert_eq!(lines[0], workspace.to_str().unwrap());
    assert_eq!(lines[1], uid.to_string());
    assert_eq!(lines[2], gid.to_string());
    assert_eq!(lines[4], format!("{uid}:{gid}"));
    // What it makes belongs to the caller outside too.
    place.turn(&workspace).sh("umask 027; touch made; mkdir dir").run().expect_ok();
    let made = fs::metadata(workspace.join("made")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&made), uid.as_raw());
    assert_eq!(std::os::unix::fs::MetadataExt::gid(&made), gid.as_raw());
    assert_eq!(made.permissions().mode() & 0o777, 0o640);
}

fn the_current_directory_is_the_default_workspace(place: &Place) {
    let workspace = place.make("home/here");
    let outcome = codeoid_tests::Turn::new(place, None).cwd(&workspace).sh("pwd -P; touch made").run();
    assert_eq!(outcome.expect_ok().out(), workspace.to_str().unwrap());
    assert!(workspace.join("made").exists());
}

fn no_capabilities_no_new_privileges_and_a_seccomp_filter(place: &Place) {
    let workspace = place.make("home/w");
    let outcome = place.turn(&workspace).sh("cat /proc/self/status").run();
    let status = outcome.expect_ok().out();
    let value = |name: &str| {
        let line =
            status.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {outcome}"));
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(value(set), "0000000000000000", "{set}");
    }
    assert_eq!(value("NoNewPrivs:"), "1");
    assert_eq!(value("Seccomp:"), "2");
}

fn dangerous_system_calls_are_refused(place: &Place) {
    let workspace = place.make("home/w");
    // x86_64 and aarch64 numbers by name, through libc's syscall(2); TIOCSTI by ioctl(2).
    let program = "\
import ctypes, errno, fcntl, os, platform
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == 'x86_64'
calls = {'kexec_load': (246, 104), 'init_module': (175, 105), 'bpf': (321, 280), 'perf_event_open': (298, 241),
         'add_key': (248, 217), 'keyctl': (250, 219), 'swapon': (167, 224), 'reboot': (169, 142),
         'open_by_handle_at': (304, 265)}
for name, numbers in calls.items():
    ctypes.set_errno(0)
    result = libc.syscall(numbers[0 if x86 else 1], 0, 0, 0, 0, 0)
    print(name, result, errno.errorcode.get(ctypes.get_errno(), 0))
try:
    master, slave = os.openpty()
    fcntl.ioctl(slave, 0x5412, b'x')
    print('TIOCSTI', 0, 0)
except OSError as e:
    print('TIOCSTI', -1, errno.errorcode[e.errno])
";
    let outcome = place.turn(&workspace).python(program, &[]).run();
    for line in outcome.expect_ok().out().lines() {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words[1], "-1", "{line}: {outcome}");
        assert!(["EPERM", "ENOSYS", "EIO", "EACCES"].contains(&words[2]), "{line}: {outcome}");
    }
}

fn processes_of_the_host_are_invisible(place: &Place) {
    let workspace = place.make("home/w");
    let outcome = place
        .turn(&workspace)
        .sh("ls -d /proc/[0-9]* | wc -l; cat /proc/1/comm; kill -0 $OUTSIDE 2>/dev/null && echo reached; \
             ps -ef 2>/dev/null | grep -c codeoid-tests-outside || :")
        .env("OUTSIDE", std::process::id().to_string())
        .options(["--pass-env", "OUTSIDE"])
        .run();
    let text = outcome.expect_ok().out();
    let count: u32 = text.lines().next().unwrap().trim().parse().unwrap();
    assert!(count <= 6, "{outcome}");
    assert!(!text.contains("reached"), "{outcome}");
}

fn the_init_of_the_sandbox_gives_nothing_away(place: &Place) {
    let workspace = place.make("home/w");
    let outcome = place
        .turn(&workspace)
        .sh("for what in exe cwd root fd/0 fd/3 fd/5; do readlink /proc/1/$what && echo LEAK $what; done; \
             cat /proc/1/environ && echo LEAK environ; cat /proc/1/mem && echo LEAK mem; \
             (echo x >/proc/1/exe) && echo LEAK write; \
             chmod 777 /proc/1/exe && echo LEAK chmod; true")
        .run();
    assert!(!outcome.expect_ok().out().contains("LEAK"), "{outcome}");
}

fn descriptors_above_two_are_closed(place: &Place) {
    let workspace = place.make("home/w");
    let outcome = place
        .turn(&workspace)
        .sh("ls -l /proc/self/fd/ | sed -n 's/.* \\([0-9]*\\) -> \\(.*\\)/\\1 \\2/p'")
        .called_by(
            "exec 7</etc/passwd 9<>/dev/null 200</etc/group; export LISTEN_FDS=7 LISTEN_PID=$$; exec \"$@\"",
        )
        .run();
    for line in outcome.expect_ok().out().lines() {
        let number: u32 = line.split(' ').next().unwrap().parse().unwrap();
        assert!(number <= 2 || line.contains("/proc/"), "{outcome}");
    }
}

fn the_host_name_is_kept_and_cannot_be_changed(place: &Place) {
    let workspace = place.make("home/w");
    let outside = place.sh(&workspace, "uname -n").out();
    let outcome =
        place.turn(&workspace).sh("uname -n; hostname elsewhere 2>/dev/null && echo CHANGED; true").run();
    assert_eq!(outcome.expect_ok().out(), outside.trim());
    assert_eq!(place.sh(&workspace, "uname -n").out(), outside);
}

fn namespaces_are_the_turns_own(place: &Place) {
    let workspace = place.make("home/w");
    let script = "for n in pid ipc uts mnt cgroup net user; do echo $n $(readlink /proc/self/ns/$n); done";
    let outside = place.sh(&workspace, script).out();
    let outcome = place.turn(&workspace).sh(script).run();
    let inside = outcome.expect_ok().out();
    let differs = |name: &str| {
        let of = |text: &str| text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        of(&outside) != of(&inside)
    };
    for name in ["pid", "ipc", "uts", "mnt", "cgroup"] {
        assert!(differs(name), "{name}: {outcome}");
    }
    assert!(!differs("net"), "the network is the host's by default: {outcome}");
    if !place.identity().uid().is_root() {
        assert!(differs("user"), "{outcome}");
    }
}

fn network_off_is_an_empty_namespace_with_loopback(place: &Place) {
    let workspace = place.make("home/w");
    let program = "\
import socket
s = socket.create_server(('127.0.0.1', 0))
c = socket.create_connection(s.getsockname(), 2)
print('loopback')
print(sorted(l.split(':')[0].strip() for l in open('/proc/net/dev').readlines()[2:]))
try:
    socket.create_connection(('192.0.2.1', 9), 1)
    print('reached')
except OSError as e:
    print(e.errno in (101, 113))
";
    let outcome = place.turn(&workspace).options(["--network", "off"]).python(program, &[]).run();
    let out = outcome.expect_ok().out();
    assert_eq!(out.lines().next(), Some("loopback"), "{outcome}");
    assert!(out.contains("'lo'") && !out.contains("eth") && out.ends_with("True"), "{outcome}");
}

fn a_thousand_orphans_leave_no_zombie_and_no_survivor_serial(place: &Place) {
    let workspace = place.make("home/w");
    let program = "\
import os, time
for i in range(1000):
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            if i % 2: time.sleep(600)
        os._exit(0)
    os.waitpid(pid, 0)
time.sleep(0.5)
zombies = living = 0
for name in os.listdir('/proc'):
    if name.isdigit():
        try: state = open(f'/proc/{name}/stat').read().rsplit(')', 1)[1].split()[0]
        except OSError: continue
        zombies += state == 'Z'
        living += state != 'Z'
print(zombies, living >= 500, flush=True)
";
    let mut running = place
        .turn(&workspace)
        .command(["sh", "-c", "/usr/bin/python3 -c \"$1\"; echo done; read go; exit 0", "sh", program])
        .spawn();
    running.expect("0 True");
    running.expect("done");
    let all = descendants(running.pid());
    assert!(all.len() > 500, "{} processes", all.len());
    running.finish().expect_ok();
    assert!(wait_until(Duration::from_secs(2), || !all.iter().any(|pid| is_alive(*pid))), "survivors");
}

fn background_processes_end_with_the_command(place: &Place) {
    let workspace = place.make("home/w");
    let start = Instant::now();
    let outcome =
        place.turn(&workspace).sh("sleep 600 & (setsid sleep 600 >/dev/null 2>&1 &) ; echo started").run();
    assert_eq!(outcome.expect_ok().out(), "started");
    assert!(start.elapsed() < Duration::from_secs(30));
}

fn signals_to_the_shim_reach_the_command(place: &Place) {
    let workspace = place.make("home/w");
    for (signal, name) in [
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGINT, "INT"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGQUIT, "QUIT"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
    ] {
        let script = format!("trap 'echo got; exit 7' {name}; echo ready; while :; do sleep 0.02; done");
        let mut running = place.turn(&workspace).sh(&script).spawn();
        running.expect("ready");
        running.signal(signal);
        let outcome = running.finish();
        outcome.expect_code(7);
        assert_eq!(outcome.out(), "ready\ngot", "{name}");
    }
}

fn a_signal_that_the_command_does_not_catch_ends_it(place: &Place) {
    let workspace = place.make("home/w");
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let mut running = place.turn(&workspace).sh("echo ready; exec sleep 600").spawn();
        running.expect("ready");
        let all = descendants(running.pid());
        assert!(!all.is_empty());
        running.signal(signal);
        running.finish().expect_code(code);
        assert!(wait_until(Duration::from_secs(2), || !all.iter().any(|pid| is_alive(*pid))));
    }
}

fn killing_the_shim_ends_the_turn_at_once(place: &Place) {
    let workspace = place.make("home/w");
    let mut running = place
        .turn(&workspace)
        .sh("sleep 600 & setsid sleep 600 & (setsid sh -c 'trap \"\" TERM HUP INT; sleep 600' &) ; \
             echo ready; wait")
        .spawn();
    running.expect("ready");
    let all = descendants(running.pid());
    assert!(all.len() >= 4, "{all:?}");
    running.signal(Signal::SIGKILL);
    let start = Instant::now();
    assert!(
        wait_until(Duration::from_secs(3), || !all.iter().any(|pid| is_alive(*pid))),
        "still there after {:?}: {:?}",
        start.elapsed(),
        all.iter().filter(|pid| is_alive(**pid)).collect::<Vec<_>>()
    );
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(running.finish().signal(), Some(9));
}

fn a_turn_that_takes_too_long_is_ended(place: &Place) {
    let workspace = place.make("home/w");
    let start = Instant::now();
    let outcome =
        place.turn(&workspace).options(["--timeout", "1s"]).sh("echo started; exec sleep 600").run();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(outcome.out(), "started");
    assert_ne!(outcome.code(), 0, "{outcome}");
    let said = format!("{} {}", outcome.err(), outcome.report());
    assert!(said.contains("timeout") || said.contains("time limit"), "{outcome}");
    // One that ignores the polite signal is ended as well.
    let start = Instant::now();
    let stubborn = "trap '' TERM INT HUP; while :; do sleep 0.1; done";
    let outcome = place.turn(&workspace).options(["--timeout", "1s"]).sh(stubborn).run();
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    assert_ne!(outcome.code(), 0, "{outcome}");
    place.turn(&workspace).options(["--timeout", "30s"]).sh("exit 3").run().expect_code(3);
}

fn signals_that_the_caller_ignores_are_not_ignored_inside(place: &Place) {
    let workspace = place.make("home/w");
    let outcome = place
        .turn(&workspace)
        .sh("grep SigIgn /proc/self/status; (exec true); false; echo $?; \
             (kill -PIPE $(sh -c 'echo $PPID')); echo $?; exit 4")
        .called_by("trap '' CHLD PIPE INT TERM; exec \"$@\"")
        .run();
    outcome.expect_code(4);
    let out = outcome.out();
    // 32 and 33 are glibc's own (signal(7)), and no program can reset them through it.
    let ignored = out.lines().next().and_then(|line| u64::from_str_radix(line.rsplit('\t').next()?, 16).ok());
    assert_eq!(ignored.map(|set| set & !(0b11 << 31)), Some(0), "{outcome}");
    assert!(out.ends_with("1\n141"), "{outcome}");
}

fn a_closed_standard_input_is_no_obstacle(place: &Place) {
    let workspace = place.make("home/w");
    let outcome = place.turn(&workspace).sh("echo ran; exit 6").called_by("exec \"$@\" <&-").run();
    outcome.expect_code(6);
    assert_eq!(outcome.out(), "ran");
}

fn a_closed_standard_output_is_no_obstacle(place: &Place) {
    let workspace = place.make("home/w");
    let outcome =
        place.turn(&workspace).sh("echo lost; touch ran; exit 6").called_by("exec \"$@\" >&-").run();
    outcome.expect_code(6);
    assert!(workspace.join("ran").exists());
    // Nothing of ours may end up on a descriptor that looks like standard output.
    let outcome = place.turn(&workspace).sh("exit 6").called_by("exec \"$@\" <&- >&- 2>&-").run();
    outcome.expect_code(6);
}

fn a_reader_that_goes_away_ends_the_writer(place: &Place) {
    let workspace = place.make("home/w");
    let line = place.turn(&workspace).command(["yes"]);
    let mut command = line.to_command();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let mut code = None;
    assert!(wait_until(Duration::from_secs(20), || {
        code = child.try_wait().unwrap();
        code.is_some()
    }));
    assert_ne!(code.unwrap().code(), Some(0));
}

fn a_report_goes_to_a_file_or_a_descriptor(place: &Place) {
    let workspace = place.make("home/w");
    let outcome = place.turn(&workspace).sh("exit 3").run();
    let report = outcome.report();
    assert_eq!(report["version"], 1);
    assert_eq!(report["session"], "s1");
    let executor = std::env::var("CODEOID_TESTS_EXECUTOR").unwrap_or_else(|_| "libcontainer".to_owned());
    assert_eq!(report["executor"], executor.as_str(), "{outcome}");
    assert_eq!(report["sandbox"], "sandboxed");
    assert_eq!(report["command"], serde_json::json!(["sh", "-c", "exit 3"]));
    for list in ["limits", "coverage", "findings", "promoted", "warnings"] {
        assert!(report[list].is_array(), "{list}: {outcome}");
    }
    for stage in ["resolve", "build", "run", "finish"] {
        assert!(report["timing_ms"][stage].as_f64().is_some_and(|ms| ms >= 0.0), "{stage}: {outcome}");
    }
    let file = place.at("reports/by-descriptor.json");
    let script = format!("exec 8>'{}'; exec \"$@\"", file.display());
    place.turn(&workspace).report_to("fd:8").sh("exit 3").called_by(&script).run().expect_code(3);
    let report: serde_json::Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(report["exit"]["code"], 3);
}

each_identity! {
    exit_code_is_the_commands_own,
    exit_code_passes_through_shells_that_wrap_the_command,
    a_signal_gives_128_plus_its_number,
    a_command_that_is_missing_or_not_executable,
    usage_errors_are_125,
    standard_input_is_a_pipe,
    an_open_standard_input_does_not_delay_the_end,
    standard_output_and_error_are_separate_and_unchanged,
    arguments_arrive_as_they_are,
    an_argument_that_is_not_utf_8_is_refused_by_name,
    the_environment_is_scrubbed,
    the_command_starts_in_the_workspace_as_its_caller,
    the_current_directory_is_the_default_workspace,
    no_capabilities_no_new_privileges_and_a_seccomp_filter,
    dangerous_system_calls_are_refused,
    processes_of_the_host_are_invisible,
    the_init_of_the_sandbox_gives_nothing_away,
    descriptors_above_two_are_closed,
    the_host_name_is_kept_and_cannot_be_changed,
    namespaces_are_the_turns_own,
    network_off_is_an_empty_namespace_with_loopback,
    a_thousand_orphans_leave_no_zombie_and_no_survivor_serial,
    background_processes_end_with_the_command,
    signals_to_the_shim_reach_the_command,
    a_signal_that_the_command_does_not_catch_ends_it,
    killing_the_shim_ends_the_turn_at_once,
    a_turn_that_takes_too_long_is_ended,
    signals_that_the_caller_ignores_are_not_ignored_inside,
    a_closed_standard_input_is_no_obstacle,
    a_closed_standard_output_is_no_obstacle,
    a_reader_that_goes_away_ends_the_writer,
    a_report_goes_to_a_file_or_a_descriptor,
}
