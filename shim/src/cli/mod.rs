//! The command line: what can be said, and which verb says it. A file for each verb.

pub mod audit;
pub mod bundle;
pub mod check;
pub mod completions;
pub mod config;
pub mod doctor;
pub mod explain;
pub mod run;
pub mod session;
pub mod turn_options;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::diagnostic::Failure;
use crate::runtime;

/// Runs one turn of a coding agent inside a sandbox described by an OCI bundle.
#[derive(Debug, Parser)]
#[command(
    name = "codeoid-shim",
    version,
    max_term_width = 100,
    after_help = "As an OCI runtime: create, start, state, kill, delete, run, exec, list, ps, pause, resume, events, \
                  update, spec, features; see `codeoid-shim create --help` and so on"
)]
pub struct Cli {
    /// Directory for the state of running sandboxes [default: /run/codeoid-shim, or
    /// $XDG_RUNTIME_DIR/codeoid-shim]
    #[arg(long, global = true, value_name = "DIR")]
    pub root: Option<PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a turn: `run [OPTIONS] -- COMMAND [ARG]...`
    Run(run::Run),
    /// Write a turn's bundle, without running it
    Bundle(bundle::Bundle),
    /// Explain the plan of a turn, or why one thing is allowed or not
    Explain(explain::Explain),
    /// Check the repository now; finish turns whose shim was killed
    Check(check::Check),
    /// Sessions: open, show, list, fork, close
    Session(session::Sessions),
    /// Say what this host can enforce, with remedies
    Doctor(doctor::Doctor),
    /// Print the audit log
    Audit(audit::Audit),
    /// Print a completion script for a shell
    Completions(completions::Completions),
    /// About the configuration file
    Config(config::Config),
}

/// Parses the arguments and does what they say.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    if let Some(code) = runtime::cli::main(&args) {
        return code;
    }
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            if !error.use_stderr() {
                // Help and version.
                let _ = error.print();
                return ExitCode::SUCCESS;
            }
            return report(&usage(&error));
        }
    };
    let result = match cli.verb {
        Verb::Run(run) => run.run(cli.root.as_deref()),
        Verb::Bundle(bundle) => bundle.run(cli.root.as_deref()),
        Verb::Explain(explain) => explain.run(cli.root.as_deref()),
        Verb::Check(check) => check.run(cli.root.as_deref()),
        Verb::Session(session) => session.run(cli.root.as_deref()),
        Verb::Doctor(doctor) => doctor.run(),
        Verb::Audit(audit) => audit.run(cli.root.as_deref()),
        Verb::Completions(completions) => completions.run(),
        Verb::Config(config) => config.run(),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => report(&failure),
    }
}

/// A usage error in our own form: clap's first paragraph, and where to read on.
fn usage(error: &clap::Error) -> Failure {
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or(&text);
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let why = first.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    Failure::new("read the command line", why).hint("see `codeoid-shim --help`")
}

/// Prints a failure and gives its exit code.
#[expect(clippy::print_stderr, reason = "the one place where errors are printed")]
pub fn report(failure: &Failure) -> ExitCode {
    eprintln!("{failure}");
    ExitCode::from(failure.code)
}
