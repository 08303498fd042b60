//! The command line: what can be said, and which verb says it. A file for each verb.

pub mod run;
pub mod turn_options;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::diagnostic::{Failure, REFUSED};

/// Runs one turn of a coding agent inside a sandbox described by an OCI bundle.
#[derive(Debug, Parser)]
#[command(name = "codeoid-shim", version, max_term_width = 100)]
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
}

/// Parses the arguments and does what they say.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; they go to stdout and end with 0.
            let code = if error.use_stderr() { REFUSED } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let result = match cli.verb {
        Verb::Run(run) => run.run(cli.root.as_deref()),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => report(&failure),
    }
}

/// Prints a failure and gives its exit code.
#[expect(clippy::print_stderr, reason = "the one place where errors are printed")]
pub fn report(failure: &Failure) -> ExitCode {
    eprintln!("{failure}");
    ExitCode::from(failure.code)
}
