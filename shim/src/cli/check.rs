//! `check`: the integrity check now. Finishes turns whose shim was killed, then judges the repository against
//! git's own layout.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use codeoid_spec::id::SessionId;
use codeoid_spec::report::{Action, Finding};
use serde::Serialize;

use super::explain::print_json;
use crate::diagnostic::{Doing, Failure, one_line};
use crate::session::Session;
use crate::{probe, turn};

/// `check [--repo DIR] [--session ID] [--json]`
#[derive(Debug, Args)]
pub struct Check {
    /// Directory in the repository to check [default: the session's workspace, else the current directory]
    #[arg(long, value_name = "DIR")]
    repo: Option<PathBuf>,
    /// Session whose repository is checked, and whose worktrees are its own
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What the check has done.
#[derive(Debug, Serialize)]
struct Checked {
    /// The repository's common dir, where there is one.
    repository: Option<PathBuf>,
    findings: Vec<Finding>,
    warnings: Vec<String>,
}

impl Check {
    /// Checks. The exit code is 0 also when something was put right; 125 when that was not possible.
    pub fn run(self, root: Option<&Path>) -> Result<u8, Failure> {
        let host = probe::host(root)?;
        let mut warnings = turn::recover(&host.state);
        let recorded = match (&self.repo, &self.session) {
            (None, Some(id)) => {
                Session::new(&host.state, id)
                    .record()?
                    .ok_or_else(|| {
                        Failure::new(format!("session {id}"), "there is no such session")
                            .hint("see `codeoid-shim session list`")
                    })?
                    .workspace
            }
            _ => None,
        };
        let place = match self.repo.clone().or(recorded) {
            Some(place) => place,
            None => std::env::current_dir().doing("find the current directory")?,
        };
        let place = std::fs::canonicalize(&place).doing(format!("look at {}", place.display()))?;
        let session = match &self.session {
            Some(session) => session.clone(),
            None => "default".parse().doing("name the session")?,
        };
        let checked = turn::check_repository(&host, &place, &session)?;
        let (repository, findings) = match checked {
            Some((repository, outcome)) => {
                warnings.extend(outcome.warnings);
                (Some(repository), outcome.findings)
            }
            None => (None, Vec::new()),
        };
        let mut out = std::io::stdout().lock();
        if self.json {
            print_json(&mut out, &Checked { repository, findings, warnings })?;
            return Ok(0);
        }
        for finding in &findings {
            let word = match finding.action {
                Action::Restored => "restored",
                Action::Removed => "removed",
                Action::Reported => "found",
            };
            let text = format!("{word} {}: {}", finding.path.display(), finding.detail);
            writeln!(out, "{}", one_line(&text)).doing("print")?;
        }
        for warning in &warnings {
            writeln!(out, "note: {}", one_line(warning)).doing("print")?;
        }
        let place = repository.map_or("no repository here".to_owned(), |path| path.display().to_string());
        writeln!(out, "{}: {} findings", one_line(&place), findings.len()).doing("print")?;
        Ok(0)
    }
}
