//! A pseudo-terminal with a command on it, as a terminal window has: the command is the leader of a session
//! whose controlling terminal it is (setsid(1) `--ctty`).

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::pty::{Winsize, openpty};
use nix::sys::termios::{Termios, tcgetattr};
use nix::unistd::ttyname;

use crate::{Place, wait_until};

/// A terminal, and what runs on it.
#[derive(Debug)]
pub struct Terminal {
    master: File,
    slave: OwnedFd,
    name: PathBuf,
    screen: Arc<Mutex<Vec<u8>>>,
    seen: usize,
    child: Child,
}

impl Terminal {
    /// Starts a command on a new terminal of 24 rows and 80 columns.
    ///
    /// # Panics
    /// If there is no terminal to be had, or the command cannot be started.
    #[must_use]
    pub fn start(place: &Place, command: &Command) -> Self {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).expect("a terminal is to be had");
        let name = ttyname(&pty.slave).expect("it is a terminal");
        place.own(&name);
        let on_terminal = || Stdio::from(pty.slave.try_clone().expect("descriptors are to be had"));
        // setsid first: it must be a child of ours that becomes the leader, and it executes the rest.
        let mut leader = Command::new("setsid");
        leader.args(["--ctty", "--"]).arg(command.get_program()).args(command.get_args()).env_clear();
        for (key, value) in command.get_envs() {
            if let Some(value) = value {
                leader.env(key, value);
            }
        }
        leader.env("TERM", "xterm");
        if let Some(directory) = command.get_current_dir() {
            leader.current_dir(directory);
        }
        leader.stdin(on_terminal()).stdout(on_terminal()).stderr(on_terminal());
        let child = leader.spawn().expect("setsid is part of util-linux");
        let screen = Arc::new(Mutex::new(vec![]));
        let shared = Arc::clone(&screen);
        let master = File::from(pty.master);
        let mut reader = master.try_clone().expect("descriptors are to be had");
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                shared.lock().expect("no panic while held").extend_from_slice(&buffer[..count]);
            }
        });
        Self { master, slave: pty.slave, name, screen, seen: 0, child }
    }

    /// The terminal's modes now.
    ///
    /// # Panics
    /// Never: it is a terminal.
    #[must_use]
    pub fn modes(&self) -> Termios {
        tcgetattr(&self.slave).expect("it is a terminal")
    }

    /// All that was printed.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().expect("no panic while held")).into_owned()
    }

    /// Waits until this has been printed, after what was waited for before.
    ///
    /// # Panics
    /// If that does not happen.
    #[track_caller]
    pub fn expect(&mut self, wanted: &str) {
        let mut end = None;
        wait_until(Duration::from_secs(30), || {
            let screen = self.screen.lock().expect("no panic while held").clone();
            let new = &screen[self.seen..];
            end = new
                .windows(wanted.len())
                .position(|part| part == wanted.as_bytes())
                .map(|at| at + wanted.len());
            end.is_some()
        });
        match end {
            Some(end) => self.seen += end,
            None => panic!("{wanted:?} did not appear on the terminal:\n{}", self.screen()),
        }
    }

    /// Types.
    ///
    /// # Panics
    /// If the terminal is gone.
    pub fn type_in(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("the terminal is open");
    }

    /// Changes the window's size, as a terminal window does: the foreground process group gets SIGWINCH.
    ///
    /// # Panics
    /// If stty(1) fails.
    pub fn resize(&self, rows: u16, columns: u16) {
        let stdin = Stdio::from(self.slave.try_clone().expect("descriptors are to be had"));
        let done = Command::new("stty")
            .args(["rows", &rows.to_string(), "cols", &columns.to_string()])
            .stdin(stdin)
            .status()
            .expect("stty is part of coreutils");
        assert!(done.success(), "stty on {}", self.name.display());
    }

    /// The process that leads the terminal's session: the command itself.
    #[must_use]
    pub fn pid(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"))
    }

    /// Waits for the command's end.
    ///
    /// # Panics
    /// If it takes too long.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until(Duration::from_secs(30), || {
            status = self.child.try_wait().expect("it is our child");
            status.is_some()
        });
        status.unwrap_or_else(|| panic!("no end:\n{}", self.screen()))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
