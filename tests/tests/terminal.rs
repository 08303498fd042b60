//! A turn on a terminal: it has one of its own, job control and window size work, and the caller's terminal is
//! as before afterwards.

#![cfg(test)]

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use codeoid_tests::{Place, Terminal, descendants, each_identity, is_alive, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::LocalFlags;

fn the_command_has_a_terminal_of_its_own(place: &Place) {
    let workspace = place.make("home/w");
    let turn = place
        .turn(&workspace)
        .sh("tty; test -t 0 && test -t 1 && test -t 2 && echo all three; : </dev/tty && echo controlling");
    let mut terminal = Terminal::start(place, &turn.to_command());
    terminal.expect("/dev/pts/");
    terminal.expect("all three");
    terminal.expect("controlling");
    assert_eq!(terminal.wait().code(), Some(0), "{}", terminal.screen());
}

fn the_exit_code_passes_through(place: &Place) {
    let workspace = place.make("home/w");
    for (script, code) in [("exit 5", 5), ("kill -TERM $$", 143)] {
        let mut terminal = Terminal::start(place, &place.turn(&workspace).sh(script).to_command());
        assert_eq!(terminal.wait().code(), Some(code), "{}", terminal.screen());
    }
}

fn the_window_has_its_size_before_the_start_and_after_a_change(place: &Place) {
    let workspace = place.make("home/w");
    let turn = place
        .turn(&workspace)
        .sh("stty size; trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done");
    let mut terminal = Terminal::start(place, &turn.to_command());
    terminal.expect("24 80");
    terminal.expect("ready");
    terminal.resize(40, 100);
    terminal.expect("40 100");
    assert_eq!(terminal.wait().code(), Some(0), "{}", terminal.screen());
}

fn ctrl_c_interrupts_the_command_not_the_shim(place: &Place) {
    let workspace = place.make("home/w");
    let turn = place.turn(&workspace).command([
        "bash",
        "-c",
        "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done",
    ]);
    let mut terminal = Terminal::start(place, &turn.to_command());
    terminal.expect("ready");
    terminal.type_in("\x03");
    terminal.expect("caught");
    assert_eq!(terminal.wait().code(), Some(9), "{}", terminal.screen());
    let mut terminal =
        Terminal::start(place, &place.turn(&workspace).sh("echo ready; exec sleep 600").to_command());
    terminal.expect("ready");
    terminal.type_in("\x03");
    assert_eq!(terminal.wait().code(), Some(130), "{}", terminal.screen());
}

fn job_control_works_in_an_inner_shell(place: &Place) {
    let workspace = place.make("home/w");
    let turn = place.turn(&workspace).command(["bash", "--norc", "--noprofile", "-i"]);
    let mut terminal = Terminal::start(place, &turn.to_command());
    terminal.type_in("PS1='$ '; echo st''arted\r");
    terminal.expect("started");
    terminal.type_in("sleep 300\r");
    assert!(wait_until(Duration::from_secs(10), || {
        descendants(terminal.pid()).iter().any(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.contains("sleep\x00300"))
        })
    }));
    terminal.type_in("\x1a");
    terminal.expect("Stopped");
    terminal.type_in("jobs; fg\r");
    terminal.expect("sleep 300");
    terminal.expect("sleep 300");
    terminal.type_in("\x03");
    terminal.type_in("echo co''de $?\r");
    terminal.expect("code 130");
    terminal.type_in("exit 4\r");
    assert_eq!(terminal.wait().code(), Some(4), "{}", terminal.screen());
    assert!(!terminal.screen().contains("no job control"), "{}", terminal.screen());
}

fn end_of_file_ends_a_reader(place: &Place) {
    let workspace = place.make("home/w");
    let mut terminal =
        Terminal::start(place, &place.turn(&workspace).sh("echo ready; cat; echo after").to_command());
    terminal.expect("ready");
    terminal.type_in("typed\r");
    terminal.expect("typed");
    terminal.expect("typed");
    terminal.type_in("\x04");
    terminal.expect("after");
    assert_eq!(terminal.wait().code(), Some(0), "{}", terminal.screen());
}

fn the_callers_terminal_is_as_before_afterwards(place: &Place) {
    let workspace = place.make("home/w");
    // A caller that stays, as a shell does.
    for (script, code) in [("stty raw -echo; exit 3", 3), ("stty -echo; kill -KILL $$", 137)] {
        let turn = place.turn(&workspace).sh(script).called_by("\"$@\"; echo code $?; read end");
        let mut terminal = Terminal::start(place, &turn.to_command());
        let before = terminal.modes();
        terminal.expect(&format!("code {code}"));
        let after = terminal.modes();
        assert_eq!(before.local_flags, after.local_flags, "{script}");
        assert_eq!(before.input_flags, after.input_flags, "{script}");
        assert_eq!(before.output_flags, after.output_flags, "{script}");
        assert!(after.local_flags.contains(LocalFlags::ECHO | LocalFlags::ICANON), "{script}");
        terminal.type_in("\r");
        terminal.wait();
    }
}

fn the_callers_terminal_is_restored_when_the_shim_is_told_to_end(place: &Place) {
    let workspace = place.make("home/w");
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        // Job control in the caller, so that the shim is in the foreground as from a shell.
        let turn = place
            .turn(&workspace)
            .sh("echo ready; exec sleep 600")
            .called_by("set -m; \"$@\"; echo code $?; read end");
        let command = turn.to_command();
        let mut terminal = Terminal::start(place, &command);
        let before = terminal.modes();
        terminal.expect("ready");
        let shim = descendants(terminal.pid()).into_iter().find(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.contains("codeoid-shim\x00run"))
        });
        kill(shim.expect("it runs"), signal).expect("it runs");
        terminal.expect("code ");
        let after = terminal.modes();
        assert_eq!(before.local_flags, after.local_flags, "{signal}: {}", terminal.screen());
        assert_eq!(before.output_flags, after.output_flags, "{signal}");
        terminal.type_in("\r");
        terminal.wait();
    }
}

fn a_terminal_that_is_closed_ends_the_turn(place: &Place) {
    let workspace = place.make("home/w");
    let mut terminal =
        Terminal::start(place, &place.turn(&workspace).sh("echo ready; sleep 600").to_command());
    terminal.expect("ready");
    let all = descendants(terminal.pid());
    assert!(!all.is_empty());
    // What the kernel does to the leader of a session whose terminal is gone.
    kill(terminal.pid(), Signal::SIGHUP).expect("it runs");
    let status = terminal.wait();
    assert!(status.code() == Some(129) || status.signal() == Some(1), "{status}");
    assert!(wait_until(Duration::from_secs(2), || !all.iter().any(|pid| is_alive(*pid))));
}

fn output_that_is_redirected_has_no_carriage_returns(place: &Place) {
    let workspace = place.make("home/w");
    let turn = place
        .turn(&workspace)
        .sh("printf 'one\\ntwo\\n'; test -t 1 || echo no terminal; test -t 0 && echo input is one")
        .called_by("\"$@\" | od -An -c | tr -d ' \\n'; echo; echo over");
    let mut terminal = Terminal::start(place, &turn.to_command());
    terminal.expect("over");
    let screen = terminal.screen();
    assert!(screen.contains("one\\ntwo\\nnoterminal\\ninputisone\\n"), "{screen}");
    terminal.wait();
}

each_identity! {
    the_command_has_a_terminal_of_its_own,
    the_exit_code_passes_through,
    the_window_has_its_size_before_the_start_and_after_a_change,
    ctrl_c_interrupts_the_command_not_the_shim,
    job_control_works_in_an_inner_shell,
    end_of_file_ends_a_reader,
    the_callers_terminal_is_as_before_afterwards,
    the_callers_terminal_is_restored_when_the_shim_is_told_to_end,
    a_terminal_that_is_closed_ends_the_turn,
    output_that_is_redirected_has_no_carriage_returns,
}
