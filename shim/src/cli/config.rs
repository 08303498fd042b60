//! `config`: about the configuration file.

use clap::{Args, Subcommand};

use super::explain::print_json;
use crate::diagnostic::Failure;

/// `config schema`
#[derive(Debug, Args)]
pub struct Config {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Print the JSON schema of the `sandbox` object in ~/.codeoid/config.json
    Schema,
}

impl Config {
    /// Prints what was asked for.
    pub fn run(self) -> Result<u8, Failure> {
        match self.what {
            What::Schema => print_json(&mut std::io::stdout().lock(), &codeoid_spec::policy::schema())?,
        }
        Ok(0)
    }
}
