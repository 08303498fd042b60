//! `run`: a turn, or a bundle.

use std::path::{Path, PathBuf};

use clap::Args;

use super::turn_options::TurnOptions;
use crate::diagnostic::Failure;
use crate::turn;

/// `run [TURN options] -- COMMAND [ARG]...`, or `run [--bundle DIR] CONTAINER_ID`
#[derive(Debug, Args)]
#[command(
    override_usage = "codeoid-shim run [OPTIONS] -- COMMAND [ARG]...\n       codeoid-shim run [--bundle DIR] CONTAINER_ID"
)]
pub struct Run {
    #[command(flatten)]
    options: TurnOptions,
    /// Run the bundle in this directory, which `codeoid-shim bundle` wrote [default: .]
    #[arg(long, short, value_name = "DIR")]
    bundle: Option<PathBuf>,
    /// Name of the running bundle
    #[arg(value_name = "CONTAINER_ID")]
    id: Option<String>,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Run {
    /// Runs the turn or the bundle and returns its exit code.
    pub fn run(self, root: Option<&Path>) -> Result<u8, Failure> {
        let usage = |why: &str| {
            Failure::new("read the command line", why).hint(
                "`codeoid-shim run -- COMMAND` runs a turn, `codeoid-shim run --bundle DIR ID` a bundle",
            )
        };
        match (self.id, self.command.is_empty()) {
            (None, false) if self.bundle.is_none() => {
                let policy = self.options.policy()?;
                turn::run(&policy, self.command, root)
            }
            (Some(_), true) => {
                let dir = self.bundle.unwrap_or_else(|| PathBuf::from("."));
                turn::run_bundle(&dir, root)
            }
            (None, true) => Err(usage("there is no command")),
            (Some(id), false) => Err(usage(&format!("unexpected argument {id:?} before `--`"))),
            (None, false) => Err(usage("a turn has no --bundle")),
        }
    }
}
