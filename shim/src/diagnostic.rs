//! What goes wrong, as a person reads it: `codeoid-shim: what: why`, then `hint: …` (DESIGN §7).

use std::error::Error as StdError;
use std::fmt;

/// Exit code of the shim's own refusals and failures.
pub const REFUSED: u8 = 125;

/// A refusal or failure that ends the program.
#[derive(Debug)]
pub struct Failure {
    /// What was being done.
    pub what: String,
    /// Why it did not work.
    pub why: String,
    /// What the user can do.
    pub hint: Option<String>,
    /// The exit code.
    pub code: u8,
}

impl Failure {
    /// A refusal, exit code 125.
    pub fn new(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), why: why.into(), hint: None, code: REFUSED }
    }

    /// A failure with an error and all its causes as the reason.
    pub fn from_error(what: impl Into<String>, error: &dyn StdError) -> Self {
        Self::new(what, chain(error))
    }

    /// Adds what the user can do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Another exit code than 125.
    #[must_use]
    pub fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "codeoid-shim: {}", one_line(&self.what))?;
        if !self.why.is_empty() {
            write!(f, ": {}", one_line(&self.why))?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\nhint: {}", one_line(hint))?;
        }
        Ok(())
    }
}

impl StdError for Failure {}

/// An error and its causes, joined by colons; a cause that its parent already spells out is not repeated.
pub fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// Names of files and sessions reach the terminal here: control characters would let them write what they
/// like there.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Attaches what was being done to a result.
pub trait Doing<T> {
    /// Names what was being done.
    fn doing(self, what: impl Into<String>) -> Result<T, Failure>;
}

impl<T, E: StdError> Doing<T> for Result<T, E> {
    fn doing(self, what: impl Into<String>) -> Result<T, Failure> {
        self.map_err(|error| Failure::from_error(what, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_write_to_the_terminal() {
        let failure = Failure::new("workspace /a\u{1b}[2J\nx", "no").hint("do\rthis");
        let text = failure.to_string();
        assert_eq!(text.lines().count(), 2, "{text:?}");
        assert!(!text.contains('\u{1b}') && !text.contains('\r'));
    }
}
