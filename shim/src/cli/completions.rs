//! `completions`: for the shells.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::diagnostic::Failure;

/// `completions SHELL`
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// Prints the script.
    pub fn run(self) -> Result<u8, Failure> {
        // Two command lines in one program: `run` is both, and is known as a turn's already.
        let runtime = crate::runtime::cli::Cli::command();
        let verbs = runtime.get_subcommands().filter(|verb| verb.get_name() != "run").cloned();
        let mut all = super::Cli::command().subcommands(verbs);
        clap_complete::generate(self.shell, &mut all, "codeoid-shim", &mut std::io::stdout());
        Ok(0)
    }
}
