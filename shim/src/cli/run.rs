//! `run`: a turn.

use std::path::Path;

use clap::Args;

use super::turn_options::TurnOptions;
use crate::diagnostic::Failure;
use crate::turn;

/// `run [TURN options] -- COMMAND [ARG]...`
#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    options: TurnOptions,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Run {
    /// Runs the turn and returns its exit code.
    pub fn run(self, root: Option<&Path>) -> Result<u8, Failure> {
        let policy = self.options.policy()?;
        turn::run(&policy, self.command, root)
    }
}
