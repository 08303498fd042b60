//! `session`: what is known of sessions; opening, forking and closing them.

use std::io::Write;
use std::path::Path;

use clap::{Args, Subcommand};
use codeoid_spec::audit::Event;
use codeoid_spec::id::SessionId;
use serde::Serialize;

use super::explain::print_json;
use super::turn_options::TurnOptions;
use crate::diagnostic::{Doing, Failure, one_line};
use crate::session::{Record, Session};
use crate::{audit, layers, probe, turn};

/// `session open|show|list|fork|close`
#[derive(Debug, Args)]
pub struct Sessions {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Open a session (a turn opens its session by itself)
    Open {
        #[command(flatten)]
        options: Box<TurnOptions>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a session, and the sentence about its folder for an agent's prompt
    Show {
        /// The session
        #[arg(value_name = "ID", default_value = "default")]
        session: SessionId,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the sessions
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Open a session that starts with another's home layer, and has worktrees of its own
    Fork {
        /// The session to fork
        #[arg(value_name = "ID")]
        from: SessionId,
        /// The new session
        #[arg(value_name = "NEW_ID")]
        to: SessionId,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Close a session: check its repository, remove its home layer and its empty folders
    Close {
        /// The session
        #[arg(value_name = "ID", default_value = "default")]
        session: SessionId,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// A session as it is shown.
#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    record: Record,
    /// Whether a turn of it is running.
    running: bool,
    /// A sentence for an agent's prompt.
    prompt: String,
}

impl Shown {
    fn new(record: Record, session: &Session) -> Self {
        let prompt = match record.worktree_folders.first() {
            Some(folder) => format!(
                "You work in a sandbox. Make git worktrees only below {} (also in $CODEOID_WORKTREE_DIR), for \
                 example: git worktree add \"$CODEOID_WORKTREE_DIR/NAME\" -b BRANCH.",
                folder.display()
            ),
            None => "You work in a sandbox. There is no git repository in the workspace.".to_owned(),
        };
        Self { running: session.is_alive(), record, prompt }
    }

    fn print(&self, json: bool) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        if json {
            return print_json(&mut out, self);
        }
        let workspace =
            self.record.workspace.as_ref().map_or("-".to_owned(), |path| path.display().to_string());
        let text = format!(
            "session    {}\nsandbox    {}\nopened     {}\nturns      {}\nrunning    {}\nworkspace  {}\nprompt     {}\n",
            self.record.session,
            self.record.sandbox,
            self.record.opened,
            self.record.turns,
            if self.running { "yes" } else { "no" },
            one_line(&workspace),
            one_line(&self.prompt),
        );
        out.write_all(text.as_bytes()).doing("print")
    }
}

impl Sessions {
    /// Does what was asked.
    pub fn run(self, root: Option<&Path>) -> Result<u8, Failure> {
        let host = probe::host(root)?;
        match self.what {
            What::Open { options, json } => {
                let policy = options.policy()?;
                let planned = turn::Planned::resolve(&policy, vec!["true".to_owned()], root)?;
                let record = turn::open_session(&planned)?;
                let session = Session::new(&host.state, &record.session);
                Shown::new(record, &session).print(json)?;
            }
            What::Show { session: id, json } => {
                let session = Session::new(&host.state, &id);
                let record = session.record()?.ok_or_else(|| unknown(&id))?;
                Shown::new(record, &session).print(json)?;
            }
            What::List { json } => {
                let mut shown = Vec::new();
                for entry in std::fs::read_dir(host.state.sessions()).into_iter().flatten().flatten() {
                    let session = Session::at(entry.path());
                    if let Some(record) = session.record()? {
                        shown.push(Shown::new(record, &session));
                    }
                }
                shown.sort_by_key(|session| session.record.opened);
                let mut out = std::io::stdout().lock();
                if json {
                    print_json(&mut out, &shown)?;
                } else {
                    for session in &shown {
                        let state = if session.running { "running" } else { "idle" };
                        let workspace = session.record.workspace.as_ref();
                        let workspace = workspace.map_or("-".to_owned(), |path| path.display().to_string());
                        writeln!(out, "{}\t{state}\t{}", session.record.session, one_line(&workspace))
                            .doing("print")?;
                    }
                }
            }
            What::Fork { from, to, json } => {
                let source = Session::new(&host.state, &from);
                if from == to {
                    return Err(Failure::new(format!("fork session {from}"), "a fork needs another name"));
                }
                // Before its lock, which would make its directory.
                source.record()?.ok_or_else(|| unknown(&from))?;
                let _source_lock = source.lock()?;
                let record = source.record()?.ok_or_else(|| unknown(&from))?;
                if source.is_alive() {
                    return Err(Failure::new(format!("fork session {from}"), "one of its turns is running")
                        .hint("wait for its end"));
                }
                let session = Session::new(&host.state, &to);
                let lock = session.lock()?;
                if session.record()?.is_some() {
                    return Err(Failure::new(format!("fork session {from}"), format!("session {to} exists"))
                        .hint("choose another name, or close it first"));
                }
                layers::copy_home(source.dir(), session.dir())?;
                let mut forked = Record::new(to);
                forked.forked_from = Some(from);
                forked.workspace.clone_from(&record.workspace);
                forked.repository.clone_from(&record.repository);
                forked.worktree_folders = turn::forked_folders(&record, &forked.session);
                lock.write(&forked)?;
                let detail = serde_json::json!({ "forked_from": record.session });
                audit::append(&host.state, Event::SessionOpened, Some(&forked.session), None, None, detail)?;
                Shown::new(forked, &session).print(json)?;
            }
            What::Close { session: id, json } => {
                let closed = turn::close_session(&host, &id)?;
                let mut out = std::io::stdout().lock();
                if json {
                    return print_json(&mut out, &closed).map(|()| 0);
                }
                turn::say_restored(&closed.findings);
                writeln!(out, "session {} is closed", closed.session).doing("print")?;
                for folder in &closed.kept {
                    let folder = one_line(&folder.display().to_string());
                    writeln!(out, "kept {folder}: there are worktrees in it").doing("print")?;
                }
            }
        }
        Ok(0)
    }
}

fn unknown(id: &SessionId) -> Failure {
    Failure::new(format!("session {id}"), "there is no such session").hint("see `codeoid-shim session list`")
}
