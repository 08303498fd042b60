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
        clap_complete::generate(
            self.shell,
            &mut super::Cli::command(),
            "codeoid-shim",
            &mut std::io::stdout(),
        );
        Ok(0)
    }
}
