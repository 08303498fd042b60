//! Names of sessions and turns. A session id comes from outside (a flag, an environment variable, a daemon)
//! and ends up in paths, ref names and log lines; so it is checked once, here, and is a type afterwards.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The longest session id that is accepted, in bytes.
pub const MAX_SESSION_ID: usize = 128;
/// The longest slug that is made of a session id, in bytes: a folder name stays readable and short.
const MAX_SLUG: usize = 40;

/// Why a session id was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing was given.
    #[error("a session id must not be empty")]
    Empty,
    /// More than [`MAX_SESSION_ID`] bytes.
    #[error("a session id has at most {MAX_SESSION_ID} bytes, this one has {0}")]
    TooLong(usize),
    /// It starts with a dot or a dash: a path or an option to somebody downstream.
    #[error("a session id starts with a letter, a digit or '_', not with {0:?}")]
    Start(char),
    /// A character that is not safe in a path, a ref name and a log line alike.
    #[error("a session id consists of letters, digits and '._:@+-' (ASCII); {0:?} is not among them")]
    Character(char),
}

/// A session's name, as given by its owner: 1 to 128 of `[A-Za-z0-9._:@+-]`, not starting with `.` or `-`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(String);

impl SessionId {
    /// The id as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A directory name for this session, unique among sessions: `<slug>-<8 hex of the id>`.
    #[must_use]
    pub fn directory_name(&self) -> String {
        format!("{}-{}", slug(&self.0), hex8(&[self.0.as_bytes()]))
    }

    /// The name of this session's folder for worktrees of the repository with this common dir:
    /// `<slug>-<8 hex>`, a pure function of both, so that it survives a resume and differs for a fork.
    #[must_use]
    pub fn worktree_folder(&self, common_dir: &Path) -> String {
        use std::os::unix::ffi::OsStrExt;
        format!("{}-{}", slug(&self.0), hex8(&[self.0.as_bytes(), b"\0", common_dir.as_os_str().as_bytes()]))
    }
}

impl FromStr for SessionId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let first = text.chars().next().ok_or(Error::Empty)?;
        if text.len() > MAX_SESSION_ID {
            return Err(Error::TooLong(text.len()));
        }
        if let Some(bad) = text.chars().find(|c| !c.is_ascii_alphanumeric() && !"._:@+-".contains(*c)) {
            return Err(Error::Character(bad));
        }
        if !first.is_ascii_alphanumeric() && first != '_' {
            return Err(Error::Start(first));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for SessionId {
    type Error = Error;
    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> Self {
        id.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One turn's name: unique, and sortable by time of start (UUID version 7, RFC 9562 §5.7).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TurnId(uuid::Uuid);

impl TurnId {
    /// A new name, for a turn that starts now.
    #[must_use]
    pub fn now() -> Self {
        Self(uuid::Uuid::now_v7())
    }
}

impl FromStr for TurnId {
    type Err = uuid::Error;
    fn from_str(text: &str) -> Result<Self, uuid::Error> {
        text.parse().map(Self)
    }
}

impl fmt::Display for TurnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Letters, digits, `.`, `_` and `-` of a name; all else becomes `-`. Never empty, never starts with a dot or a
/// dash, and is a valid component of a ref.
#[must_use]
pub fn slug(name: &str) -> String {
    let mut text: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' })
        .take(MAX_SLUG)
        .collect();
    // The folder's name is what people name branches by, and git refuses a ref with ".." in it or a component
    // that ends in ".lock" (git-check-ref-format(1)).
    while text.contains("..") {
        text = text.replace("..", ".");
    }
    let mut text = text.as_str();
    loop {
        let trimmed = text.trim_matches(['.', '-']);
        let trimmed = trimmed.strip_suffix(".lock").unwrap_or(trimmed);
        if trimmed == text {
            break;
        }
        text = trimmed;
    }
    if text.is_empty() { "session".to_owned() } else { text.to_owned() }
}

/// The first 8 hexadecimal digits of the SHA-256 of the concatenated parts.
#[must_use]
pub fn hex8(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_session_ids_are_refused() {
        for (text, error) in [
            ("", Error::Empty),
            ("../x", Error::Character('/')),
            ("..", Error::Start('.')),
            ("-rf", Error::Start('-')),
            ("a\nb", Error::Character('\n')),
            ("a\u{1b}[31m", Error::Character('\u{1b}')),
            ("a b", Error::Character(' ')),
            ("ä", Error::Character('ä')),
        ] {
            assert_eq!(text.parse::<SessionId>(), Err(error), "{text:?}");
        }
        assert_eq!("x".repeat(10_000).parse::<SessionId>(), Err(Error::TooLong(10_000)));
    }

    #[test]
    fn folder_is_a_pure_function_of_session_and_common_dir() {
        let id: SessionId = "fix:login".parse().unwrap();
        let folder = id.worktree_folder(Path::new("/r/.git"));
        assert_eq!(folder, id.worktree_folder(Path::new("/r/.git")));
        assert_ne!(folder, id.worktree_folder(Path::new("/other/.git")));
        assert!(folder.starts_with("fix-login-") && folder.len() == "fix-login-".len() + 8, "{folder}");
        let twin: SessionId = "fix-login".parse().unwrap();
        assert_ne!(folder, twin.worktree_folder(Path::new("/r/.git")), "same slug, other session");
    }

    #[test]
    fn slug_never_makes_a_dangerous_name() {
        assert_eq!(slug(".."), "session");
        assert_eq!(slug("a.lock"), "a");
        assert_eq!(slug("-x-"), "x");
        assert_eq!(slug("a...b"), "a.b");
        assert_eq!(slug("a.-.lock.lock"), "a");
    }
}
