//! `bundle`: writes a turn's bundle, without running it.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::turn_options::TurnOptions;
use crate::diagnostic::Failure;
use crate::turn;

/// `bundle [TURN options] --output DIR [--format FORMAT] -- COMMAND [ARG]...`
#[derive(Debug, Args)]
pub struct Bundle {
    #[command(flatten)]
    options: TurnOptions,
    /// Directory to write to; must not exist, or be empty
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// What to write
    #[arg(long, value_enum, default_value_t = Format::Oci)]
    format: Format,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// The formats of a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// An OCI bundle, which runc, crun and youki run too
    Oci,
    /// An OCI bundle and the arguments for bubblewrap, one a line
    Bwrap,
    /// A Seatbelt profile
    Seatbelt,
    /// Settings for srt
    Srt,
}

impl Bundle {
    /// Writes the bundle.
    pub fn run(self, root: Option<&Path>) -> Result<u8, Failure> {
        let policy = self.options.policy()?;
        turn::write_bundle(&policy, self.command, root, &self.output, self.format)?;
        Ok(0)
    }
}
