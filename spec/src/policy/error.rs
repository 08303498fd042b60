//! Why a policy was refused, and what its owner can do about it.

use std::fmt;
use std::path::{Path, PathBuf};

use super::value;

/// Where a faulty value stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A command line option (`--network`).
    Flag(String),
    /// An environment variable.
    Variable(String),
    /// A key of a configuration file.
    Key {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u32,
        /// The character in that line, from 1.
        column: u32,
        /// The key's full path (`sandbox.network.mode`).
        key: String,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) | Self::Variable(name) => f.write_str(name),
            Self::Key { file, line, column, key } => write!(f, "{}:{line}:{column}: {key}", file.display()),
        }
    }
}

/// Why a policy was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value that the option does not take.
    #[error("{place}: {fault}")]
    Value {
        /// Where.
        place: Place,
        /// What is wrong, and what is allowed.
        fault: value::Error,
    },
    /// A value of the wrong JSON type.
    #[error("{place}: this is {found}; allowed is {allowed}")]
    Type {
        /// Where.
        place: Place,
        /// What stands there.
        found: &'static str,
        /// What could.
        allowed: String,
    },
    /// A key that there is not.
    #[error("{place}: there is no such key; allowed are {}", allowed.join(", "))]
    UnknownKey {
        /// Where.
        place: Place,
        /// The keys that there are at this place.
        allowed: Vec<&'static str>,
        /// The full path of the key that was probably meant.
        nearest: Option<String>,
    },
    /// A key that stands twice in one object.
    #[error("{place}: this key stands a second time; the first is in line {first}")]
    DuplicateKey {
        /// Where the second one stands.
        place: Place,
        /// The line of the first one, from 1.
        first: u32,
    },
    /// Not JSON.
    #[error("{}:{line}:{column}: not JSON: {why}", file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u32,
        /// The character in that line, from 1.
        column: u32,
        /// What the parser says.
        why: String,
    },
    /// Not text.
    #[error("{}:{line}:{column}: not UTF-8", file.display())]
    FileEncoding {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u32,
        /// The character in that line, from 1.
        column: u32,
    },
    /// Nothing in it.
    #[error("{}: the file is empty", file.display())]
    FileEmpty {
        /// The file.
        file: PathBuf,
    },
    /// It begins with a byte order mark.
    #[error("{}:1:1: the file begins with a byte order mark, which JSON does not allow (RFC 8259 §8.1)", file.display())]
    ByteOrderMark {
        /// The file.
        file: PathBuf,
    },
    /// More than [`super::MAX_FILE`] bytes.
    #[error("{}: the file is larger than {} bytes", file.display(), super::MAX_FILE)]
    FileTooLarge {
        /// The file.
        file: PathBuf,
    },
    /// It was asked for and is not there.
    #[error("{}: there is no such file", file.display())]
    FileMissing {
        /// The file.
        file: PathBuf,
        /// Who asked for it.
        place: Place,
    },
    /// It is a symbolic link, or lies behind one, that leads nowhere.
    #[error("{}: {} is a symbolic link that leads nowhere", file.display(), link.display())]
    FileDangling {
        /// The file.
        file: PathBuf,
        /// The link.
        link: PathBuf,
    },
    /// It cannot be read.
    #[error("{}: cannot read it", file.display())]
    FileUnreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A directory, a FIFO, a device.
    #[error("{}: not a regular file", file.display())]
    FileKind {
        /// The file.
        file: PathBuf,
    },
    /// It belongs to somebody else, who could widen the sandbox through it.
    #[error("{}: it belongs to user {owner}, neither to you (user {caller}) nor to root", file.display())]
    FileOwner {
        /// The file.
        file: PathBuf,
        /// Its owner.
        owner: u32,
        /// Who reads it.
        caller: u32,
    },
    /// Others can write it, and could widen the sandbox through it.
    #[error("{}: others than its owner can write it (mode {mode:04o})", file.display())]
    FileWritable {
        /// The file.
        file: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Everybody can replace it.
    #[error("{}: everybody can replace it, because {} is writable by all (mode {mode:04o})", file.display(), directory.display())]
    DirectoryWritable {
        /// The file.
        file: PathBuf,
        /// The directory above it.
        directory: PathBuf,
        /// The directory's permission bits.
        mode: u32,
    },
    /// A variable `CODEOID_SANDBOX_…` that there is not.
    #[error("{name}: there is no such variable")]
    UnknownVariable {
        /// The variable, made printable.
        name: String,
        /// The variable that was probably meant.
        nearest: Option<String>,
    },
    /// A value that is not text.
    #[error("{place}: the value is not UTF-8")]
    Encoding {
        /// Where.
        place: Place,
    },
    /// A confirmation that would hold for every turn from now on.
    #[error("{name}: a widening cannot be confirmed by the environment, only for one turn at a time")]
    StandingConfirmation {
        /// The variable.
        name: String,
    },
    /// `~` without a home.
    #[error("{place}: ~ stands for the home directory, which is not known (HOME is not an absolute path)")]
    NoHome {
        /// Where `~` stands.
        place: String,
    },
    /// A relative path without a directory.
    #[error("the current directory {} is not an absolute path", path.display())]
    NoDirectory {
        /// What was given as current directory.
        path: PathBuf,
    },
}

impl Error {
    /// What the owner can do about it, where that does not go without saying.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownKey { nearest: Some(key), .. } => Some(format!("did you mean {key}?")),
            Self::UnknownVariable { nearest: Some(name), .. } => Some(format!("did you mean {name}?")),
            Self::UnknownVariable { nearest: None, .. } => {
                Some("unset it; a variable with a typing error would silently do nothing".to_owned())
            }
            Self::FileEmpty { .. } => {
                Some("write {} for an empty configuration, or remove the file".to_owned())
            }
            Self::ByteOrderMark { .. } => Some("save it as UTF-8 without a byte order mark".to_owned()),
            Self::FileEncoding { .. } => Some("save it as UTF-8".to_owned()),
            Self::FileDangling { link, .. } => {
                Some(format!("restore what it leads to, or rm {}", quoted(link)))
            }
            Self::FileOwner { file, caller, .. } => Some(format!("chown {caller} {}", quoted(file))),
            Self::FileWritable { file, .. } => Some(format!("chmod go-w {}", quoted(file))),
            Self::DirectoryWritable { directory, .. } => Some(format!("chmod o-w {}", quoted(directory))),
            Self::StandingConfirmation { .. } => {
                Some("unset it and give --confirm-widening with the turn".to_owned())
            }
            _ => None,
        }
    }
}

/// A path as a person can paste it into a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}
