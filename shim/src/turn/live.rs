//! Import while the turn runs, in a process of its own: git takes its time, and the supervisor's is the terminal's.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use codeoid_hooks::shadow;
use codeoid_spec::state::StateDir;

/// The first argument that makes this program import a turn's shadow while the turn runs; behind it are the turn's
/// directory and the state directory.
pub const REEXEC: &str = "codeoid-import";

/// The process. It ends when this is dropped: after what it is doing.
pub struct Importer(Child);

impl Importer {
    /// Starts it. Without it everything is imported at the turn's end.
    pub fn start(turn: &Path, state: &StateDir) -> Option<Self> {
        let program = std::env::current_exe().ok()?;
        let child = Command::new(program)
            .arg(REEXEC)
            .args([turn, state.path()])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        child.ok().map(Self)
    }
}

impl Drop for Importer {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It has ended, or does so now.
        let _ = self.0.wait();
    }
}

/// What the process does, until its standard input is closed: by the supervisor's end, too.
pub fn import(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let (Some(turn), Some(state)) = (args.next(), args.next()) else {
        return ExitCode::from(crate::diagnostic::REFUSED);
    };
    let Ok(Some(record)) = shadow::Record::load(Path::new(&turn)) else {
        return ExitCode::from(crate::diagnostic::REFUSED);
    };
    shadow::follow(&record, &StateDir::new(state.into()), std::io::stdin().as_fd());
    ExitCode::SUCCESS
}
