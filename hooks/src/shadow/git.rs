//! git on the host, for one repository, called so that it executes nothing that anybody planted.
//!
//! Owns how git is found, what it is told whatever it does, and the pipes to it. The repository that it works on is
//! the host's own, never a shadow; what it reads on its standard input may be the turn's.
//!
//! The attacker is the turn: it may put a program named `git` where it can write, fill a pipe so that two processes
//! wait for each other, make git talk to a server, or print control sequences by way of an error message.

mod pipes;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

pub(super) use pipes::{Keep, Pipes};

use crate::text::printable;

/// How long one call of git may take. Packing and checking 10 GB takes some two minutes.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);
/// The most that git may allocate at once (`GIT_ALLOC_LIMIT`, git's wrapper.c). A few bytes of a delta can ask for
/// gigabytes; git itself stops making deltas at 512 MB (`core.bigFileThreshold`).
const ALLOCATION: &str = "1g";
/// Set for every call, in front of the verb.
const SETTINGS: [&str; 6] = [
    // The hooks of a repository may lie in its checkout (`core.hooksPath=.husky`), which the turn writes.
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "gc.auto=0",
    "maintenance.auto=false",
    // Larger objects are streamed instead of held.
    "core.bigFileThreshold=32m",
    // `GIT_GRAFT_FILE` alone makes git print advice.
    "advice.graftFileDeprecated=false",
];

/// Why git did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no `git` on `PATH`, or only where a turn can write.
    #[error("no git on PATH outside the directories that the turn can write")]
    NotFound,
    /// It could not be started.
    #[error("start {program}")]
    Start {
        /// The program.
        program: PathBuf,
        /// What the kernel answered.
        #[source]
        source: std::io::Error,
    },
    /// Its pipes failed.
    #[error("talk to git {verb}")]
    Pipe {
        /// git's subcommand.
        verb: String,
        /// What the kernel answered.
        #[source]
        source: std::io::Error,
    },
    /// It ran longer than ten minutes and was ended.
    #[error("git {verb} did not end within {} seconds", PATIENCE.as_secs())]
    TooLong {
        /// git's subcommand.
        verb: String,
    },
    /// It failed.
    #[error("git {verb}: {status}: {said}")]
    Failed {
        /// git's subcommand.
        verb: String,
        /// How it ended.
        status: ExitStatus,
        /// The last lines that it printed on standard error, made printable.
        said: String,
    },
}

/// git on the host, for one repository.
#[derive(Debug, Clone)]
pub struct Git {
    program: PathBuf,
    path: OsString,
    common_dir: PathBuf,
}

impl Git {
    /// Finds `git` on `PATH`. Relative entries are left out, and so is what lies, itself or by way of symlinks, in one
    /// of the directories `avoid`: those that a turn can write. `common_dir` is the host's own, by its real path.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn find(common_dir: &Path, avoid: &[PathBuf]) -> Result<Self, Error> {
        Self::find_on(&std::env::var_os("PATH").unwrap_or_default(), common_dir, avoid)
    }

    fn find_on(path: &OsStr, common_dir: &Path, avoid: &[PathBuf]) -> Result<Self, Error> {
        let avoid: Vec<PathBuf> =
            avoid.iter().map(|dir| dir.canonicalize().unwrap_or_else(|_| dir.clone())).collect();
        let outside = |path: &Path| !avoid.iter().any(|dir| path.starts_with(dir));
        // An entry may be a symlink; it is resolved once, so that nothing on the way matters afterwards.
        let entries: Vec<PathBuf> = std::env::split_paths(path)
            .filter(|entry| entry.is_absolute())
            .filter_map(|entry| entry.canonicalize().ok())
            .filter(|entry| outside(entry))
            .collect();
        let program = entries.iter().find_map(|entry| {
            let program = entry.join("git").canonicalize().ok()?;
            let metadata = program.metadata().ok()?;
            let runs = metadata.is_file() && metadata.permissions().mode() & 0o111 != 0;
            (runs && outside(&program)).then_some(program)
        });
        let Some(program) = program else { return Err(Error::NotFound) };
        let path = std::env::join_paths(&entries).unwrap_or_default();
        Ok(Self { program, path, common_dir: common_dir.to_owned() })
    }

    /// The common dir that it works on.
    #[must_use]
    pub fn common_dir(&self) -> &Path {
        &self.common_dir
    }

    /// The directory of the host's objects.
    #[must_use]
    pub fn objects(&self) -> PathBuf {
        self.common_dir.join("objects")
    }

    /// A command with everything set; `args` are a subcommand and what follows it. It reads no terminal, starts no
    /// hook, opens no connection, takes no optional lock, and sees the history as it is (no replacements, no grafts).
    pub fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(&self.program);
        // Programs that stand for many look at the name that they were called by.
        command.arg0("git").current_dir("/").stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if name.as_bytes().starts_with(b"GIT_") {
                command.env_remove(name);
            }
        }
        command
            .env("PATH", &self.path)
            .env("LC_ALL", "C")
            .env("GIT_DIR", &self.common_dir)
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .env("GIT_GRAFT_FILE", "/dev/null")
            .env("GIT_TERMINAL_PROMPT", "0")
            // git before 2.45 does not know the first; none talks to anybody with the second.
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_ALLOW_PROTOCOL", "none")
            // A commit-graph may still name commits that were pruned.
            .env("GIT_COMMIT_GRAPH_PARANOIA", "1")
            .env("GIT_ALLOC_LIMIT", ALLOCATION);
        command.args(["--no-pager", "--no-optional-locks"]);
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        command.args(args);
        command
    }

    /// Runs a subcommand with `input` on its standard input, and returns what it printed.
    ///
    /// # Errors
    /// [`Error::Failed`] where it did not succeed; the others where it could not be run to its end.
    pub fn run<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
        input: &[u8],
    ) -> Result<Vec<u8>, Error> {
        self.run_command(self.command(args), input)
    }

    /// As [`Git::run`], for a command of [`Git::command`] to which something was added.
    ///
    /// # Errors
    /// As [`Git::run`].
    pub fn run_command(&self, mut command: Command, input: &[u8]) -> Result<Vec<u8>, Error> {
        if !input.is_empty() {
            command.stdin(Stdio::piped());
        }
        command.stdout(Stdio::piped());
        let mut call = Call::start(command)?;
        let mut pipes = Pipes::new();
        if let Some(stdin) = call.child.stdin.take() {
            pipes.feed(stdin, input);
        }
        let stdout = call.child.stdout.take().map(|pipe| pipes.drain(pipe, Keep::All));
        let stderr = call.said(&mut pipes);
        pipes.run(&call.verb, |_| false)?;
        call.end(&pipes, stderr)?;
        Ok(stdout.map(|at| pipes.take(at)).unwrap_or_default())
    }
}

/// A git that runs. It is ended when this is dropped before [`Call::end`].
#[derive(Debug)]
pub(super) struct Call {
    pub(super) verb: String,
    pub(super) child: Child,
    ended: Option<ExitStatus>,
}

impl Call {
    /// Starts it, with its standard error on a pipe.
    pub(super) fn start(mut command: Command) -> Result<Self, Error> {
        // The subcommand is the first word behind the options that every call has.
        let skip = 2 + 2 * SETTINGS.len();
        let verb = command.get_args().nth(skip).map(|a| a.to_string_lossy().into_owned()).unwrap_or_default();
        let child = command
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| Error::Start { program: PathBuf::from(command.get_program()), source })?;
        Ok(Self { verb, child, ended: None })
    }

    /// Has its standard error drained; the answer is for [`Call::end`].
    pub(super) fn said(&mut self, pipes: &mut Pipes<'_>) -> Option<usize> {
        self.child.stderr.take().map(|pipe| pipes.drain(pipe, Keep::Tail))
    }

    /// Waits for its end, which has to be a success.
    pub(super) fn end(&mut self, pipes: &Pipes<'_>, stderr: Option<usize>) -> Result<(), Error> {
        let status = self.child.wait().map_err(|source| Error::Pipe { verb: self.verb.clone(), source })?;
        self.ended = Some(status);
        if status.success() {
            return Ok(());
        }
        let said = stderr.map(|at| last_lines(pipes.kept(at))).unwrap_or_default();
        Err(Error::Failed { verb: self.verb.clone(), status, said })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.ended.is_none() {
            // It may have ended by itself; there is nothing else to do about it.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The last three lines, printable, on one line.
fn last_lines(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let last = lines.len().saturating_sub(3);
    lines[last..].iter().map(|line| printable(line)).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;
