//! One turn: `codeoid-shim run [options] -- COMMAND`, started, talked to, waited for, and its report read.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::Place;

/// How long any turn of a test may take.
const LIMIT: Duration = Duration::from_secs(45);

/// A turn that is not started yet.
#[derive(Debug)]
pub struct Turn<'a> {
    place: &'a Place,
    workspace: Option<PathBuf>,
    session: OsString,
    options: Vec<OsString>,
    command: Vec<OsString>,
    environment: Vec<(OsString, Option<OsString>)>,
    wrapper: Vec<OsString>,
    stdin: Option<Vec<u8>>,
    report: OsString,
    cwd: PathBuf,
}

impl<'a> Turn<'a> {
    /// A turn of session `s1`; without a workspace, the option is left out.
    #[must_use]
    pub fn new(place: &'a Place, workspace: Option<&Path>) -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let serial = COUNTER.fetch_add(1, Ordering::Relaxed);
        Self {
            place,
            workspace: workspace.map(Path::to_owned),
            session: "s1".into(),
            options: vec![],
            command: vec![],
            environment: vec![],
            wrapper: vec![],
            stdin: None,
            report: place.at(format!("reports/{serial}.json")).into(),
            cwd: place.home(),
        }
    }

    /// Of this session.
    #[must_use]
    pub fn session(mut self, id: impl AsRef<OsStr>) -> Self {
        id.as_ref().clone_into(&mut self.session);
        self
    }

    /// With these options before `--`.
    #[must_use]
    pub fn options<S: AsRef<OsStr>>(mut self, options: impl IntoIterator<Item = S>) -> Self {
        self.options.extend(options.into_iter().map(|option| option.as_ref().to_owned()));
        self
    }

    /// With its report sent there (`fd:N`, another file).
    #[must_use]
    pub fn report_to(mut self, target: impl AsRef<OsStr>) -> Self {
        target.as_ref().clone_into(&mut self.report);
        self
    }

    /// With this variable in the caller's environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.into(), Some(value.as_ref().to_owned())));
        self
    }

    /// Without this variable in the caller's environment.
    #[must_use]
    pub fn without_env(mut self, name: &str) -> Self {
        self.environment.push((name.into(), None));
        self
    }

    /// With this on its standard input, which is then closed.
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    /// Called from this directory.
    #[must_use]
    pub fn cwd(mut self, directory: impl AsRef<Path>) -> Self {
        directory.as_ref().clone_into(&mut self.cwd);
        self
    }

    /// Called by a shell script, which finds the shim's command line in `"$@"`.
    #[must_use]
    pub fn called_by(mut self, script: &str) -> Self {
        self.wrapper = ["/bin/bash", "-c", script, "caller"].map(OsString::from).to_vec();
        self
    }

    /// Runs this program with these arguments.
    #[must_use]
    pub fn command<S: AsRef<OsStr>>(mut self, command: impl IntoIterator<Item = S>) -> Self {
        self.command = command.into_iter().map(|word| word.as_ref().to_owned()).collect();
        self
    }

    /// Runs this shell script.
    #[must_use]
    pub fn sh(self, script: &str) -> Self {
        self.command(["sh", "-c", script])
    }

    /// Runs this Python program.
    #[must_use]
    pub fn python(self, program: &str, arguments: &[&str]) -> Self {
        self.command(["/usr/bin/python3", "-c", program].into_iter().chain(arguments.iter().copied()))
    }

    /// Where its report goes.
    #[must_use]
    pub fn report_path(&self) -> PathBuf {
        PathBuf::from(&self.report)
    }

    /// The shim's command line.
    #[must_use]
    pub fn line(&self) -> Vec<OsString> {
        // In one word: a hostile id may look like an option.
        let mut session = OsString::from("--session=");
        session.push(&self.session);
        let mut line: Vec<OsString> = vec![crate::shim().into(), "run".into(), session];
        if let Some(workspace) = &self.workspace {
            line.extend(["--workspace".into(), workspace.into()]);
        }
        line.extend(["--report".into(), self.report.clone()]);
        // The whole suite can be run with another executor of the same bundle.
        if let Some(executor) = std::env::var_os("CODEOID_TESTS_EXECUTOR")
            && !self.options.iter().any(|option| option == "--executor")
        {
            line.extend(["--executor".into(), executor]);
        }
        line.extend(self.options.iter().cloned());
        line.push("--".into());
        line.extend(self.command.iter().cloned());
        line
    }

    /// The environment that the shim is called with.
    fn apply_environment(&self, command: &mut std::process::Command) {
        for (name, value) in &self.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
    }

    /// The command that starts it, with nothing connected yet: for a caller with wishes of its own.
    #[must_use]
    pub fn to_command(&self) -> std::process::Command {
        let mut words = self.wrapper.clone();
        words.extend(self.line());
        let mut command = self.place.command(&words[0]);
        command.args(&words[1..]).current_dir(&self.cwd);
        self.apply_environment(&mut command);
        command
    }

    /// Starts it.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn spawn(self) -> Running {
        let mut command = self.to_command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdout = Stream::read(child.stdout.take().expect("piped"));
        let stderr = Stream::read(child.stderr.take().expect("piped"));
        let stdin = child.stdin.take();
        Running {
            child,
            stdin,
            stdout,
            stderr,
            report: self.report.into(),
            line: format!("{command:?}"),
            seen: 0,
        }
    }

    /// Starts it, feeds it, and waits for its end.
    ///
    /// # Panics
    /// If it cannot be started, or takes too long.
    #[must_use]
    #[track_caller]
    pub fn run(mut self) -> Outcome {
        let input = self.stdin.take().unwrap_or_default();
        let mut running = self.spawn();
        if let Some(mut pipe) = running.stdin.take() {
            // A command that does not read its input is no error.
            std::thread::spawn(move || pipe.write_all(&input));
        }
        running.finish()
    }
}

/// What a turn has printed so far; read by a thread, so that a full pipe never stops the turn.
#[derive(Debug)]
struct Stream {
    bytes: Arc<(Mutex<Vec<u8>>, Condvar)>,
    reader: JoinHandle<()>,
}

impl Stream {
    fn read(mut source: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new((Mutex::new(vec![]), Condvar::new()));
        let shared = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok(count @ 1..) = source.read(&mut buffer) {
                shared.0.lock().expect("no panic while held").extend_from_slice(&buffer[..count]);
                shared.1.notify_all();
            }
        });
        Self { bytes, reader }
    }

    fn so_far(&self) -> Vec<u8> {
        self.bytes.0.lock().expect("no panic while held").clone()
    }
}

/// A turn that is running.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Stream,
    stderr: Stream,
    report: PathBuf,
    line: String,
    seen: usize,
}

impl Running {
    /// The process id of the shim (of its caller, for a turn with one).
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"))
    }

    /// Waits until the turn has printed this on a line of its own, after what was waited for before.
    ///
    /// # Panics
    /// If that does not happen.
    #[track_caller]
    pub fn expect(&mut self, wanted: &str) {
        let deadline = Instant::now() + LIMIT;
        loop {
            // In this order: what was printed before the end is always seen.
            let over = self.stdout.reader.is_finished() || Instant::now() > deadline;
            let text = self.stdout.so_far();
            let mut end = self.seen;
            for line in text[self.seen..].split_inclusive(|byte| *byte == b'\n') {
                end += line.len();
                if line.ends_with(b"\n") && String::from_utf8_lossy(line).trim_end() == wanted {
                    self.seen = end;
                    return;
                }
            }
            assert!(
                !over,
                "{}: {wanted:?} was not printed:\n{}\n{}",
                self.line,
                String::from_utf8_lossy(&text),
                String::from_utf8_lossy(&self.stderr.so_far()),
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Writes a line to the turn's standard input.
    ///
    /// # Panics
    /// If it is closed.
    #[track_caller]
    pub fn say(&mut self, line: &str) {
        let pipe = self.stdin.as_mut().expect("still open");
        writeln!(pipe, "{line}").expect("the turn reads");
        pipe.flush().expect("the turn reads");
    }

    /// Sends a signal to the shim.
    ///
    /// # Panics
    /// If it has ended.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap_or_else(|error| panic!("{}: {error}", self.line));
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().ok().flatten().is_some()
    }

    /// Closes its standard input and waits for its end.
    ///
    /// # Panics
    /// If it takes too long.
    #[must_use]
    #[track_caller]
    pub fn finish(mut self) -> Outcome {
        drop(self.stdin.take());
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                break status;
            }
            if Instant::now() > deadline {
                let _ = self.child.kill();
                panic!(
                    "{}: no end after {LIMIT:?}\n{}\n{}",
                    self.line,
                    String::from_utf8_lossy(&self.stdout.so_far()),
                    String::from_utf8_lossy(&self.stderr.so_far()),
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        // A process that has survived the turn would hold the pipes open for ever.
        let drained = wait_until(Duration::from_secs(5), || {
            self.stdout.reader.is_finished() && self.stderr.reader.is_finished()
        });
        let written = fs::metadata(&self.report).is_ok_and(|meta| meta.is_file());
        let report = written.then(|| fs::read(&self.report).unwrap_or_default()).map(|bytes| {
            serde_json::from_slice(&bytes)
                .unwrap_or_else(|error| panic!("report: {error}: {}", String::from_utf8_lossy(&bytes)))
        });
        let outcome = Outcome {
            status,
            stdout: self.stdout.so_far(),
            stderr: self.stderr.so_far(),
            report,
            line: self.line.clone(),
        };
        assert!(drained, "something still holds the turn's output open: {outcome}");
        outcome
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A turn that has ended.
#[derive(Debug)]
pub struct Outcome {
    /// How the shim itself ended.
    pub status: ExitStatus,
    /// What the turn printed.
    pub stdout: Vec<u8>,
    /// What the turn and the shim printed on standard error.
    pub stderr: Vec<u8>,
    /// The turn's report, where one was written.
    pub report: Option<Value>,
    line: String,
}

impl Outcome {
    /// The exit code; -1 if a signal ended the shim.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }

    /// The signal that ended the shim itself.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    /// Standard output as text, without the newline at its end.
    #[must_use]
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end().to_owned()
    }

    /// Standard error as text.
    #[must_use]
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Asserts the exit code.
    ///
    /// # Panics
    /// If it is another.
    #[track_caller]
    pub fn expect_code(&self, code: i32) -> &Self {
        assert_eq!(self.code(), code, "{self}");
        self
    }

    /// Asserts the exit code 0.
    ///
    /// # Panics
    /// If it is another.
    #[track_caller]
    pub fn expect_ok(&self) -> &Self {
        self.expect_code(0)
    }

    /// Asserts that the shim refused: 125, `codeoid-shim: …` with these words on standard error, no panic.
    ///
    /// # Panics
    /// If it did not.
    #[track_caller]
    pub fn expect_refusal(&self, words: &[&str]) -> &Self {
        self.expect_code(125);
        let text = self.err();
        assert!(text.starts_with("codeoid-shim: "), "{self}");
        assert!(!text.contains("panicked"), "{self}");
        for word in words {
            assert!(text.to_lowercase().contains(&word.to_lowercase()), "no {word:?}: {self}");
        }
        self
    }

    /// The turn's report.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    #[must_use]
    pub fn report(&self) -> &Value {
        self.report.as_ref().unwrap_or_else(|| panic!("no report: {self}"))
    }

    /// The report's warnings, as one text.
    ///
    /// # Panics
    /// If there is no report.
    #[track_caller]
    #[must_use]
    pub fn warnings(&self) -> String {
        self.report()["warnings"].to_string()
    }

    /// The report's findings.
    ///
    /// # Panics
    /// If there is no report.
    #[track_caller]
    #[must_use]
    pub fn findings(&self) -> Vec<Value> {
        self.report()["findings"].as_array().cloned().unwrap_or_else(|| panic!("no findings: {self}"))
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let excerpt = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            text.chars().take(6000).collect::<String>()
        };
        writeln!(f, "{}\n{}", self.line, self.status)?;
        writeln!(f, "--- stdout\n{}\n--- stderr\n{}---", excerpt(&self.stdout), excerpt(&self.stderr))?;
        if let Some(report) = &self.report {
            writeln!(f, "findings {}\nwarnings {}", report["findings"], report["warnings"])?;
        }
        Ok(())
    }
}

/// Waits until something is true; whether it became true in time.
pub fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
