//! Where a rule comes from. Every rule of a plan can name its origin, so that `explain` and a refusal can
//! point at the line that a person has to change.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The kind of place that a rule was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Built in.
    Default,
    /// The owner's configuration file.
    File,
    /// An environment variable `CODEOID_SANDBOX_…` or `CODEOID_SESSION`.
    Environment,
    /// A command line option.
    Flag,
    /// Found on this host (a mount, a socket, a directory).
    Host,
    /// Found in the repository's bookkeeping.
    Git,
}

/// Where one rule comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// The kind of place.
    pub source: Source,
    /// The file, where the source is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The line in that file, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The key, variable or option, as the user would write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Origin {
    /// A rule that is built in.
    #[must_use]
    pub const fn default_rule() -> Self {
        Self { source: Source::Default, file: None, line: None, name: None }
    }

    /// A rule that was found on this host.
    #[must_use]
    pub fn host(name: impl Into<String>) -> Self {
        Self { source: Source::Host, file: None, line: None, name: Some(name.into()) }
    }

    /// A rule that follows from the repository's bookkeeping.
    #[must_use]
    pub fn git(name: impl Into<String>) -> Self {
        Self { source: Source::Git, file: None, line: None, name: Some(name.into()) }
    }

    /// A command line option, written as the user writes it (`--network`).
    #[must_use]
    pub fn flag(name: impl Into<String>) -> Self {
        Self { source: Source::Flag, file: None, line: None, name: Some(name.into()) }
    }

    /// An environment variable.
    #[must_use]
    pub fn environment(name: impl Into<String>) -> Self {
        Self { source: Source::Environment, file: None, line: None, name: Some(name.into()) }
    }

    /// A key of a configuration file.
    #[must_use]
    pub fn file(file: impl Into<PathBuf>, line: u32, key: impl Into<String>) -> Self {
        Self { source: Source::File, file: Some(file.into()), line: Some(line), name: Some(key.into()) }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("");
        match (self.source, &self.file, self.line) {
            (Source::Default, ..) => write!(f, "built-in default"),
            (Source::File, Some(file), Some(line)) => write!(f, "{}:{line} ({name})", file.display()),
            (Source::File, ..) => write!(f, "configuration file ({name})"),
            (Source::Environment, ..) => write!(f, "environment variable {name}"),
            (Source::Flag, ..) => write!(f, "option {name}"),
            (Source::Host, ..) => write!(f, "this host ({name})"),
            (Source::Git, ..) => write!(f, "git ({name})"),
        }
    }
}

/// A value together with where it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Where it was written.
    pub origin: Origin,
}

impl<T> Sourced<T> {
    /// Pairs a value with its origin.
    pub const fn new(value: T, origin: Origin) -> Self {
        Self { value, origin }
    }

    /// A built-in value.
    pub const fn default_rule(value: T) -> Self {
        Self { value, origin: Origin::default_rule() }
    }
}
