//! `audit`: the log of what happened.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

use clap::Args;
use codeoid_spec::audit::Line;
use codeoid_spec::id::SessionId;

use crate::diagnostic::{Doing, Failure, one_line};
use crate::probe;

/// `audit [--session ID] [--follow] [--json]`
#[derive(Debug, Args)]
pub struct Audit {
    /// Only what concerns this session
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,
    /// Go on as lines are added
    #[arg(long)]
    follow: bool,
    /// Print the lines as they are, a JSON object each
    #[arg(long)]
    json: bool,
}

impl Audit {
    /// Prints the log.
    pub fn run(self, root: Option<&Path>) -> Result<u8, Failure> {
        let host = probe::host(root)?;
        let path = host.state.audit_log();
        let what = format!("read the audit log ({})", path.display());
        let mut reader = loop {
            match File::open(&path) {
                Ok(file) => break BufReader::new(file),
                Err(error) if error.kind() == ErrorKind::NotFound && !self.follow => return Ok(0),
                Err(error) if error.kind() == ErrorKind::NotFound => std::thread::sleep(POLL),
                Err(error) => return Err(Failure::from_error(what, &error)),
            }
        };
        let mut text = Vec::new();
        loop {
            let count = reader.read_until(b'\n', &mut text).doing(what.clone())?;
            if !text.ends_with(b"\n") {
                // The end, or a line that is being written.
                if count == 0 && !self.follow {
                    return Ok(0);
                }
                if !self.follow && !text.is_empty() {
                    return Ok(0);
                }
                std::thread::sleep(POLL);
                continue;
            }
            match self.print(&text) {
                Ok(()) => {}
                // Whoever reads us has had enough (`| head`).
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(0),
                Err(error) => return Err(Failure::from_error("print", &error)),
            }
            text.clear();
        }
    }

    fn print(&self, text: &[u8]) -> std::io::Result<()> {
        let Ok(line) = serde_json::from_slice::<Line>(text) else { return Ok(()) };
        let of_session = |id: &SessionId| line.session.as_deref() == Some(id.as_str());
        if self.session.as_ref().is_some_and(|id| !of_session(id)) {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        if self.json {
            out.write_all(text)?;
        } else {
            let event = serde_json::to_value(line.event).unwrap_or_default();
            let session = line.session.as_deref().unwrap_or("-");
            let detail =
                if line.detail.is_null() { String::new() } else { one_line(&line.detail.to_string()) };
            let event = event.as_str().unwrap_or("-");
            writeln!(out, "{} {event} session={} {detail}", line.time, one_line(session))?;
        }
        out.flush()
    }
}

/// How often a followed log is looked at.
const POLL: Duration = Duration::from_millis(200);
