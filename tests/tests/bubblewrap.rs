//! What is particular to the executor `bwrap`.

#![cfg(test)]

use std::fs;
use std::time::Duration;

use codeoid_tests::{Place, Requires, each_identity, wait_until};

fn nothing_of_ours_is_in_the_sandbox(place: &Place) {
    let workspace = place.make("home/w");
    if !Requires::Tool("bwrap").met() {
        return;
    }
    let script = "ls /run; ls -l /proc/1/exe 2>&1 | grep -o 'codeoid.*' || :; grep -c codeoid-init /proc/self/mountinfo || :";
    let outcome = place.turn(&workspace).options(["--executor", "bwrap"]).sh(script).run();
    let out = outcome.expect_ok().out();
    assert!(!out.contains("codeoid"), "{outcome}");
    assert!(out.ends_with("\n0"), "{outcome}");
}

fn no_capability_is_left_in_any_set(place: &Place) {
    let workspace = place.make("home/w");
    if !Requires::Tool("bwrap").met() {
        return;
    }
    let script = "grep ^Cap /proc/self/status; grep ^Cap /proc/1/status; \
                  unshare -U true 2>/dev/null; sh -c 'grep ^Cap /proc/self/status'";
    let outcome = place.turn(&workspace).options(["--executor", "bwrap"]).sh(script).run();
    let out = outcome.expect_ok().out();
    assert_eq!(out.lines().count(), 15, "{outcome}");
    assert!(out.lines().all(|line| line.ends_with("\t0000000000000000")), "{outcome}");
}

/// Between plan and start the host may remove what is bound; bubblewrap ends then, with a line of its own.
fn a_path_that_goes_away_during_the_start_is_an_error_of_ours(place: &Place) {
    let workspace = place.make("home/w");
    if !Requires::Tool("bwrap").met() {
        return;
    }
    let gone = place.make("outside/gone");
    let go = place.home().join("go");
    let turn = place
        .turn(&workspace)
        .options(["--executor", "bwrap", "--read", gone.to_str().unwrap(), "--write", gone.to_str().unwrap()])
        .env("CODEOID_TEST_WAIT_AT", "arguments")
        .env("CODEOID_TEST_WAIT_FOR", &go)
        .sh("echo ran")
        .spawn();
    // Long enough for the engine to come to where it waits; too early is a path that is left out.
    assert!(wait_until(Duration::from_secs(5), || {
        codeoid_tests::descendants(turn.pid()).iter().any(|pid| {
            fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().any(|fd| {
                fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().contains("memfd:arguments"))
            })
        })
    }));
    fs::remove_dir(&gone).unwrap();
    fs::write(&go, "").unwrap();
    let outcome = turn.finish();
    outcome.expect_refusal(&["start the sandbox: ", "outside/gone", "hint: "]);
    assert_eq!(outcome.err().lines().count(), 2, "somebody else's words: {outcome}");
    assert_eq!(outcome.out(), "", "{outcome}");
}

/// Python: runs a program as on Linux before 5.12, without mount_setattr(2).
const OLD_KERNEL: &str = "\
import ctypes, os, struct, sys
program = b''.join(struct.pack('HBBI', *line) for line in [
    (0x20, 0, 0, 0), (0x15, 0, 1, 442), (0x06, 0, 0, 0x50000 | 38), (0x06, 0, 0, 0x7fff0000)])
buffer = ctypes.create_string_buffer(program)
filter = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 4, ctypes.addressof(buffer)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, filter, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[1], sys.argv[1:])
";

fn an_old_kernel_is_enough(place: &Place) {
    let workspace = place.make("home/w");
    if !Requires::Tool("bwrap").met() {
        return;
    }
    let secret = place.write("home/w/secret", "SECRET");
    let late = workspace.join("late");
    let input = place.write("home/input", "input\n");
    let turn = |executor: &str| {
        let hide = [secret.to_str().unwrap(), late.to_str().unwrap()];
        let caller = format!("exec /usr/bin/python3 -c {} \"$@\" <{}", quoted(OLD_KERNEL), input.display());
        let options = ["--executor", executor, "--hide", hide[0], "--hide", hide[1]];
        let script = "cat; cat secret; (echo x >secret); echo up; \
                      while [ ! -e appeared ]; do sleep 0.02; done; sleep 0.3; cat late; echo done";
        place.turn(&workspace).options(options).called_by(&caller).sh(script)
    };
    turn("libcontainer").run().expect_refusal(&["mount_setattr"]);
    let mut running = turn("auto").spawn();
    running.expect("input");
    running.expect("up");
    place.write("home/w/late", "SECRET");
    place.write("home/w/appeared", "");
    let outcome = running.finish();
    assert_eq!(outcome.expect_ok().out(), "input\nup\ndone", "{outcome}");
    assert_eq!(outcome.report()["executor"], "bwrap", "{outcome}");
    assert_eq!(fs::read_to_string(secret).unwrap(), "SECRET");
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn standard_error_is_the_callers(place: &Place) {
    let workspace = place.make("home/w");
    if !Requires::Tool("bwrap").met() {
        return;
    }
    let script = "echo to stderr >&2; readlink /proc/self/fd/2 | cut -d: -f1; ls /proc/self/fd | wc -l";
    let outcome = place.turn(&workspace).options(["--executor", "bwrap"]).sh(script).run();
    assert_eq!(outcome.expect_ok().err(), "to stderr\n", "{outcome}");
    assert_eq!(outcome.out(), "pipe\n4", "{outcome}");
}

each_identity! {
    an_old_kernel_is_enough,
    nothing_of_ours_is_in_the_sandbox,
    no_capability_is_left_in_any_set,
    a_path_that_goes_away_during_the_start_is_an_error_of_ours,
    standard_error_is_the_callers,
}
