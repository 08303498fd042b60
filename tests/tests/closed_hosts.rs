//! Hosts that lack something, or forbid it: a filter refuses the system call, as an old kernel, a container's profile or
//! a hardened system does. A turn says so once, with what to do about it, or states what is weaker; it is never weaker in
//! silence.

#![cfg(test)]

use codeoid_tests::{Identity, Listener, Outcome, Place, Requires, Turn, each_identity};
use nix::libc;

/// Python: runs a program with a system call filter. The first argument is a list of `NUMBER:ERRNO` or
/// `NUMBER:ERRNO:FLAGS`, which refuses the call where its first argument has one of the flags (seccomp(2)).
const REFUSING: &str = "\
import ctypes, os, struct, sys
program = []
for rule in sys.argv[1].split(','):
    number, errno, *flags = map(int, rule.split(':'))
    body = [(0x06, 0, 0, 0x50000 | errno)]
    if flags: body = [(0x20, 0, 0, 16), (0x45, 0, 1, flags[0])] + body
    program += [(0x20, 0, 0, 0), (0x15, 0, len(body), number)] + body
program = b''.join(struct.pack('HBBI', *line) for line in program + [(0x06, 0, 0, 0x7fff0000)])
buffer = ctypes.create_string_buffer(program)
filter = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', len(program) // 8, ctypes.addressof(buffer)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, filter, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[2], sys.argv[2:])
";

/// A rule for [`REFUSING`].
fn refuse(call: libc::c_long, errno: i32, flags: i32) -> String {
    if flags == 0 { format!("{call}:{errno}") } else { format!("{call}:{errno}:{flags}") }
}

/// A turn of this place on such a host. The script is quoted for a shell.
fn turn<'a>(place: &'a Place, rule: &str) -> Turn<'a> {
    let caller = format!("exec /usr/bin/python3 -c '{}' {rule} \"$@\"", REFUSING.replace('\'', "'\\''"));
    place.turn(place.make("home/w")).called_by(&caller)
}

/// Asserts that the turn was refused in one sentence and one hint, and that its command has not run.
#[track_caller]
fn refused(outcome: &Outcome, words: &[&str]) {
    outcome.expect_refusal(words).expect_refusal(&["hint: "]);
    assert_eq!(outcome.err().lines().count(), 2, "one message: {outcome}");
    assert_eq!(outcome.out(), "", "it has not run: {outcome}");
}

fn coverage(outcome: &Outcome, rule: &str) -> String {
    let list = outcome.report()["coverage"].as_array().cloned().unwrap_or_default();
    let found = list
        .iter()
        .filter(|item| item["rule"] == rule)
        .map(|item| item["status"].as_str().unwrap_or_default());
    found.collect::<Vec<_>>().join(" ")
}

fn without_landlock_abstract_sockets_are_said_to_be_open(place: &Place) {
    for errno in [libc::ENOSYS, libc::EOPNOTSUPP] {
        let rule = refuse(libc::SYS_landlock_create_ruleset, errno, 0);
        let outcome = turn(place, &rule).sh("echo ran").run();
        assert_eq!(outcome.expect_ok().out(), "ran", "{outcome}");
        assert_eq!(coverage(&outcome, "sockets.abstract"), "weaker", "{outcome}");
        assert!(outcome.report()["limits"].to_string().contains("sockets.abstract: weaker"), "{outcome}");
        // With a network of its own it needs none.
        for network in ["off", "allowlist"] {
            let outcome = turn(place, &rule).options(["--network", network]).sh("echo ran").run();
            assert_eq!(outcome.expect_ok().out(), "ran", "{outcome}");
            assert_eq!(coverage(&outcome, "sockets.abstract"), "", "{outcome}");
        }
    }
}

fn a_landlock_that_fails_ends_the_start(place: &Place) {
    if !Requires::Landlock(6).met() {
        return;
    }
    let label = format!("codeoid-tests-closed-{}-{}", std::process::id(), place.identity().uid());
    let _listener = Listener::named(&label);
    let outcome = turn(place, &refuse(libc::SYS_landlock_restrict_self, libc::EPERM, 0)).sh("echo ran").run();
    outcome.expect_refusal(&["start the command", "landlock"]);
    assert_eq!(outcome.out(), "", "it has not run: {outcome}");
}

fn without_user_namespaces_an_ordinary_user_is_told_what_to_do(place: &Place) {
    for errno in [libc::EPERM, libc::ENOSPC, libc::EUSERS, libc::EINVAL] {
        let rule = refuse(libc::SYS_unshare, errno, libc::CLONE_NEWUSER);
        let outcome = turn(place, &rule).sh("echo ran").run();
        if place.identity() == Identity::Root {
            assert_eq!(outcome.expect_ok().out(), "ran", "root needs none: {outcome}");
            continue;
        }
        outcome.expect_refusal(&["namespaces"]);
        assert_eq!(outcome.out(), "", "it has not run: {outcome}");
        if errno == libc::EPERM {
            refused(&outcome, &["namespaces"]);
        }
    }
}

fn without_namespaces_or_mounts_nobody_gets_a_turn(place: &Place) {
    for call in [libc::SYS_unshare, libc::SYS_mount] {
        refused(&turn(place, &refuse(call, libc::EPERM, 0)).sh("echo ran").run(), &["permitted"]);
    }
    for call in [libc::SYS_open_tree, libc::SYS_move_mount] {
        for errno in [libc::EPERM, libc::ENOSYS] {
            let outcome = turn(place, &refuse(call, errno, 0)).sh("echo ran").run();
            outcome.expect_refusal(&[]);
            assert_eq!(outcome.out(), "", "it has not run: {outcome}");
        }
    }
}

fn a_closed_network_that_cannot_be_had_is_no_open_one(place: &Place) {
    let rule = refuse(libc::SYS_unshare, libc::EPERM, libc::CLONE_NEWNET);
    for network in ["off", "allowlist"] {
        for executor in ["libcontainer", "bwrap"] {
            let options = ["--network", network, "--executor", executor];
            refused(&turn(place, &rule).options(options).sh("echo ran").run(), &["namespaces"]);
        }
    }
    let outcome = turn(place, &rule).sh("echo ran").run();
    assert_eq!(outcome.expect_ok().out(), "ran", "the host's network needs none: {outcome}");
}

fn without_filters_nothing_runs(place: &Place) {
    let rule = refuse(libc::SYS_seccomp, libc::ENOSYS, 0);
    let outcome = turn(place, &rule).options(["--executor", "libcontainer"]).sh("echo ran").run();
    outcome.expect_refusal(&["seccomp"]);
    assert_eq!(outcome.out(), "", "it has not run: {outcome}");
}

fn without_watches_what_is_hidden_is_looked_at_every_now_and_then(place: &Place) {
    for errno in [libc::EMFILE, libc::ENOSYS] {
        let rule = refuse(libc::SYS_inotify_init1, errno, 0);
        let path = place.make("home/w").join("late");
        let _ = std::fs::remove_file(&path);
        let script = "echo up; read go; cat late 2>/dev/null; echo done";
        let mut running = turn(place, &rule).options(["--hide", path.to_str().unwrap()]).sh(script).spawn();
        running.expect("up");
        place.write("home/w/late", "SECRET");
        std::thread::sleep(std::time::Duration::from_millis(1500));
        // It does not turn in circles meanwhile: clock ticks of the shim, user and system (proc_pid_stat(5)).
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", running.pid())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        assert!(ticks < 60, "{ticks} hundredths of a second in a second and a half");
        running.say("go");
        let outcome = running.finish();
        assert_eq!(outcome.expect_ok().out(), "up\ndone", "{outcome}");
    }
}

fn doctor_names_what_is_missing(place: &Place) {
    let doctor = |rule: &str| {
        let mut command = place.command("/usr/bin/python3");
        command.args(["-c", REFUSING, rule]).arg(codeoid_tests::shim()).args(["doctor", "--json"]);
        let finished = place.finish(command);
        finished.expect_ok();
        let probes = finished.json();
        let missing = probes.as_array().unwrap().iter().filter(|probe| probe["works"] == false);
        let names: Vec<String> = missing
            .inspect(|probe| assert!(probe["remedy"].is_string(), "{probe}"))
            .map(|probe| probe["name"].as_str().unwrap().to_owned())
            .collect();
        names
    };
    let before = doctor(&refuse(libc::SYS_kexec_load, libc::EPERM, 0));
    for (rule, name) in [
        (refuse(libc::SYS_landlock_create_ruleset, libc::ENOSYS, 0), "abstract sockets"),
        (refuse(libc::SYS_unshare, libc::EPERM, 0), "namespaces"),
        (refuse(libc::SYS_mount_setattr, libc::ENOSYS, 0), "mount_setattr(2)"),
        (refuse(libc::SYS_mount, libc::EPERM, 0), "overlay with whiteouts"),
    ] {
        assert!(!before.contains(&name.to_owned()), "the control: {before:?}");
        assert!(doctor(&rule).contains(&name.to_owned()), "{name}");
    }
}

each_identity! {
    without_landlock_abstract_sockets_are_said_to_be_open,
    a_landlock_that_fails_ends_the_start,
    without_user_namespaces_an_ordinary_user_is_told_what_to_do,
    without_namespaces_or_mounts_nobody_gets_a_turn,
    a_closed_network_that_cannot_be_had_is_no_open_one,
    without_filters_nothing_runs,
    without_watches_what_is_hidden_is_looked_at_every_now_and_then,
    doctor_names_what_is_missing,
}
