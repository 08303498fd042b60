//! The values of options: the words, sizes, times and names that a person writes, and what they mean. Every
//! error says what is allowed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::destination::DestinationFault;
use crate::git::Protection;
use crate::id;
use crate::report::RULES;

/// The longest path that Linux takes in one call, in bytes without the final NUL (`PATH_MAX`, limits.h).
pub const MAX_PATH: usize = 4095;
/// How much of a wrong value a message repeats, in characters.
const MAX_SHOWN: usize = 60;

/// Why a value was refused. `given` is the value, quoted and shortened for a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not one of the words of this option.
    #[error("{given} is not one of {}", allowed.join(", "))]
    Word {
        /// What was written.
        given: String,
        /// What could have been.
        allowed: &'static [&'static str],
    },
    /// Nothing was written.
    #[error("the value is empty; allowed is {allowed}")]
    Empty {
        /// What could have been written.
        allowed: &'static str,
    },
    /// Not a size.
    #[error(
        "{given} is not a size; allowed is a number of bytes from 1, or a number with K, M, G or T (powers of 1024): 512M, 2GiB"
    )]
    Size {
        /// What was written.
        given: String,
    },
    /// Not a duration.
    #[error("{given} is not a duration; allowed is a number with h, m, s or ms, or several: 90s, 5m, 1h30m")]
    Duration {
        /// What was written.
        given: String,
    },
    /// Not a number of processors.
    #[error("{given} is not a number of processors; allowed is a number above 0 and up to 65536: 2, 0.5")]
    Cpus {
        /// What was written.
        given: String,
    },
    /// Not a number of processes.
    #[error("{given} is not a count; allowed is a whole number from 1 to 4194304")]
    Count {
        /// What was written.
        given: String,
    },
    /// Not an assignment.
    #[error("{given} is not an assignment; allowed is NAME=VALUE")]
    Assignment {
        /// What was written.
        given: String,
    },
    /// Not the name of a variable.
    #[error("{given} is not the name of a variable; allowed is a name without spaces and without '='{}", if *pattern { ", in which '*' stands for any characters" } else { " and '*'" })]
    Name {
        /// What was written.
        given: String,
        /// A pattern would have been fine.
        pattern: bool,
    },
    /// A variable that the sandbox itself decides.
    #[error("{name} is set by the sandbox itself and cannot be set here")]
    Reserved {
        /// The variable.
        name: &'static str,
    },
    /// A relative path where there is no directory that it could be relative to.
    #[error("{given} is relative; allowed is an absolute path, ~ or ~/…")]
    Relative {
        /// What was written.
        given: String,
    },
    /// Somebody else's home.
    #[error(
        "{given} begins with the home of a named user; allowed is ~ or ~/… for the own home, and ./~… for a file of that name"
    )]
    NamedHome {
        /// What was written.
        given: String,
    },
    /// A byte that no path and no argument can hold.
    #[error("{given} contains a NUL character")]
    Nul {
        /// What was written.
        given: String,
    },
    /// Longer than any path.
    #[error("a path has at most {MAX_PATH} bytes, this one has {length}")]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// Not a destination.
    #[error(
        "{given} is not a destination: {fault}; allowed is HOST or HOST:PORT, where HOST is a name, *.NAME, an IPv4 address or network, or an IPv6 address or network in brackets"
    )]
    Destination {
        /// What was written.
        given: String,
        /// What is wrong with it.
        fault: DestinationFault,
    },
    /// Not the name of an image.
    #[error(
        "{given} is not the name of an image; allowed is NAME[:TAG][@DIGEST], without spaces, at most 512 bytes"
    )]
    Image {
        /// What was written.
        given: String,
    },
    /// Not a place for a report.
    #[error("{given} is not a file descriptor; allowed is fd:N with N from 1 to 1048575, or a file")]
    Descriptor {
        /// What was written.
        given: String,
    },
    /// Not the name of a rule.
    #[error("{given} is not the name of a rule; allowed are {}", RULES.join(", "))]
    Rule {
        /// What was written.
        given: String,
    },
    /// Not a session id.
    #[error(transparent)]
    Session(#[from] id::Error),
}

/// A wrong value as a message repeats it: quoted, so that control characters do not reach a terminal, and
/// short, so that a value of 10 kB does not bury the message.
#[must_use]
pub(super) fn shown(text: &str) -> String {
    let mut end = text.char_indices().map(|(at, _)| at).skip(MAX_SHOWN);
    match end.next() {
        Some(at) => format!("{:?}…", &text[..at]),
        None => format!("{text:?}"),
    }
}

/// An enumeration whose variants are words that a person writes.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal $(| $alias:literal)*,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
        #[serde(rename_all = "lowercase")]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            /// Every word that stands for a value, in the order of the documentation.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word that policy, report and bundle use.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                match text {
                    $($word $(| $alias)* => Ok(Self::$variant),)+
                    _ => Err(Error::Word { given: shown(text), allowed: Self::WORDS }),
                }
            }
        }
    };
}

words! {
    /// What runs the bundle.
    Executor {
        /// The first of the others that can enforce the policy on this host.
        Auto = "auto",
        /// The built-in runtime (Linux).
        Libcontainer = "libcontainer",
        /// bubblewrap (Linux).
        Bwrap = "bwrap",
        /// `sandbox-exec` (macOS).
        Seatbelt = "seatbelt",
        /// A container of the Docker daemon.
        Docker = "docker",
        /// The sandbox that an agent brings along.
        Srt = "srt",
    }
}

words! {
    /// Which network a turn has.
    Network {
        /// The host's.
        Host = "host",
        /// None but its own loopback.
        Off = "off",
        /// Only the listed destinations, through a proxy.
        Allowlist = "allowlist",
    }
}

words! {
    /// Docker access. As a switch (`--docker-socket`, `"socket": true`) it is `raw`.
    DockerSocket {
        /// None.
        Off = "off" | "0" | "false" | "no",
        /// All of the daemon's API, and with it the whole machine.
        Raw = "raw" | "1" | "true" | "yes" | "on",
        /// The part of the API that a test suite needs.
        Brokered = "brokered",
    }
}

words! {
    /// What a turn sees of the home directory.
    Home {
        /// The host's home, copy-on-write, kept for the session.
        Overlay = "overlay",
        /// The host's home, not writable.
        Readonly = "readonly",
        /// An empty home.
        Hidden = "hidden",
    }
}

words! {
    /// What happens to a rule that the executor cannot enforce on this host. Without one the turn is refused.
    Fallback {
        /// The turn runs, and the report says what is weaker.
        Weaker = "weaker",
    }
}

/// The words for [`Protection`], which has its type beside the other types of git.
pub(super) const PROTECTION_WORDS: &[&str] = &[Protection::Shadow.as_str(), Protection::Shared.as_str()];

/// `shadow` or `shared`.
///
/// # Errors
/// Any other word.
pub fn protection(text: &str) -> Result<Protection, Error> {
    [Protection::Shadow, Protection::Shared]
        .into_iter()
        .find(|protection| protection.as_str() == text)
        .ok_or_else(|| Error::Word { given: shown(text), allowed: PROTECTION_WORDS })
}

/// A switch: `1`, `true`, `yes`, `on`, or `0`, `false`, `no`, `off`.
///
/// # Errors
/// Any other word.
pub fn switch(text: &str) -> Result<bool, Error> {
    match text {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(Error::Word {
            given: shown(text),
            allowed: &["1", "true", "yes", "on", "0", "false", "no", "off"],
        }),
    }
}

/// A size in bytes. A unit without `i` is a power of 1024 too, as in docker(1) and systemd.resource-control(5).
///
/// # Errors
/// Not a size, no bytes at all, or more than 64 bits.
pub fn size(text: &str) -> Result<u64, Error> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    // The crate reads more than this: digit groups, exponents, fractions of a byte. Nobody means those here.
    let digits = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let unit = unit.to_ascii_lowercase();
    let plain = match unit.as_str() {
        "" | "b" => !number.contains('.'),
        _ => matches!(unit.as_bytes()[0], b'k' | b'm' | b'g' | b't') && ["", "b", "ib"].contains(&&unit[1..]),
    };
    let bytes = parse_size::Config::new().with_binary().parse_size(text).ok();
    bytes.filter(|bytes| digits && plain && *bytes > 0).ok_or_else(|| Error::Size { given: shown(text) })
}

/// A duration: a number and a unit, or several (`1h30m`).
///
/// # Errors
/// Not a duration, none at all, or negative.
pub fn duration(text: &str) -> Result<Duration, Error> {
    let error = || Error::Duration { given: shown(text) };
    let duration: jiff::SignedDuration = text.parse().map_err(|_| error())?;
    Duration::try_from(duration).ok().filter(|duration| !duration.is_zero()).ok_or_else(error)
}

/// A number of processors.
///
/// # Errors
/// Not a number, or none that a scheduler could use.
pub fn cpus(text: &str) -> Result<f64, Error> {
    let cpus: Option<f64> = text.parse().ok();
    // cpu.max takes quotas from 1 ms and periods up to 1 s (kernel/sched/core.c: min_cfs_quota_period,
    // max_cfs_quota_period), so nothing below a thousandth can be set.
    cpus.filter(|cpus| (0.001..=65536.0).contains(cpus)).ok_or_else(|| Error::Cpus { given: shown(text) })
}

/// A number of processes, up to the kernel's own limit (`PID_MAX_LIMIT`, proc(5)).
///
/// # Errors
/// Not a whole number, or out of range.
pub fn count(text: &str) -> Result<u64, Error> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let count = text.parse().ok().filter(|count| digits && (1..=4_194_304).contains(count));
    count.ok_or_else(|| Error::Count { given: shown(text) })
}

/// A path as written; `~` is not yet expanded.
///
/// # Errors
/// Empty, longer than any path, with a NUL, or in a named user's home.
pub fn path(text: &str) -> Result<PathBuf, Error> {
    if text.is_empty() {
        return Err(Error::Empty { allowed: "a path" });
    }
    if text.len() > MAX_PATH {
        return Err(Error::TooLong { length: text.len() });
    }
    if text.contains('\0') {
        return Err(Error::Nul { given: shown(text) });
    }
    if text.starts_with('~') && text != "~" && !text.starts_with("~/") {
        return Err(Error::NamedHome { given: shown(text) });
    }
    Ok(PathBuf::from(text))
}

/// A path that means the same whatever the current directory is.
///
/// # Errors
/// As [`path`], and a relative path.
pub fn absolute_path(text: &str) -> Result<PathBuf, Error> {
    let path = path(text)?;
    if text.starts_with('/') || text.starts_with('~') {
        Ok(path)
    } else {
        Err(Error::Relative { given: shown(text) })
    }
}

/// A variable's assignment, `NAME=VALUE`.
///
/// # Errors
/// No `=`, not a name before it, a NUL, or a name that is the sandbox's own.
pub fn assignment(text: &str) -> Result<(String, String), Error> {
    let (name, value) = text.split_once('=').ok_or_else(|| Error::Assignment { given: shown(text) })?;
    assignment_of(name, value)
}

/// As [`assignment`], from its two parts.
pub(super) fn assignment_of(name: &str, value: &str) -> Result<(String, String), Error> {
    if !is_name(name) || name.contains('*') {
        return Err(Error::Name { given: shown(name), pattern: false });
    }
    if let Some(name) = RESERVED.iter().find(|reserved| **reserved == name) {
        return Err(Error::Reserved { name });
    }
    if value.contains('\0') {
        return Err(Error::Nul { given: shown(value) });
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Variables that say what the sandbox is; a value from elsewhere would be a lie.
const RESERVED: &[&str] = &["CODEOID_SESSION", "CODEOID_WORKTREE_DIR"];

/// The name of a variable, or a pattern of names in which `*` stands for any characters.
///
/// # Errors
/// Empty, or with a character that no name has.
pub fn name_pattern(text: &str) -> Result<String, Error> {
    if is_name(text) { Ok(text.to_owned()) } else { Err(Error::Name { given: shown(text), pattern: true }) }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c == '=' || c.is_whitespace() || c.is_control())
}

/// The name of an image.
///
/// # Errors
/// Empty, too long, or with a character that no image's name has.
pub fn image(text: &str) -> Result<String, Error> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-/:@*".contains(c);
    if !text.is_empty() && text.len() <= 512 && text.chars().all(allowed) && !text.starts_with('-') {
        Ok(text.to_owned())
    } else {
        Err(Error::Image { given: shown(text) })
    }
}

/// The name of a rule, as coverage reports it.
///
/// # Errors
/// There is no rule of that name.
pub fn rule(text: &str) -> Result<String, Error> {
    if RULES.contains(&text) { Ok(text.to_owned()) } else { Err(Error::Rule { given: shown(text) }) }
}

/// A rule and its fallback, `RULE=weaker`.
///
/// # Errors
/// Not the name of a rule, or another word.
pub(super) fn fallback(text: &str) -> Result<(String, Fallback), Error> {
    let (name, word) = text.split_once('=').unwrap_or((text, ""));
    Ok((rule(name)?, word.parse()?))
}

/// Where the turn report goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReportTarget {
    /// A file, replaced.
    File(PathBuf),
    /// An open file descriptor of the caller.
    Fd(i32),
}

impl FromStr for ReportTarget {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let Some(number) = text.strip_prefix("fd:") else {
            return path(text).map(Self::File);
        };
        let digits = number.bytes().all(|byte| byte.is_ascii_digit());
        let number = number.parse().ok().filter(|number| digits && (1..=1_048_575).contains(number));
        number.map(Self::Fd).ok_or_else(|| Error::Descriptor { given: shown(text) })
    }
}

/// The path with `~` replaced by `home` and, where it is relative, taken from `directory`.
#[must_use]
pub(super) fn expand(path: &Path, home: &Path, directory: &Path) -> PathBuf {
    match path.strip_prefix("~") {
        Ok(rest) if rest.as_os_str().is_empty() => home.to_owned(),
        Ok(rest) => home.join(rest),
        Err(_) => directory.join(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("1", 1),
            ("512M", 512 << 20),
            ("512m", 512 << 20),
            ("512MB", 512 << 20),
            ("2GiB", 2 << 30),
            ("1.5G", 3 << 29),
            ("1T", 1 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "0",
            "-1",
            "+1",
            "1 G",
            "M",
            "12X",
            "1e3",
            "1_000",
            "99999999999T",
            "½G",
            "1.2.3G",
            "nan",
            "0.5",
            "1.5B",
            "0.1K0",
            "1Kx",
            "1P",
            "éG",
            "1é",
        ] {
            assert!(matches!(size(text), Err(Error::Size { .. })), "{text}: {:?}", size(text));
        }
    }

    #[test]
    fn durations() {
        for (text, seconds) in [("90s", 90), ("5m", 300), ("1h30m", 5400), ("1h 30m", 5400), ("PT5M", 300)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for text in ["", "0s", "90", "-5m", "5m ago", "1mo", "1d", "5 parsecs", "99999999999999999999h"] {
            assert!(matches!(duration(text), Err(Error::Duration { .. })), "{text}: {:?}", duration(text));
        }
    }

    #[test]
    fn numbers() {
        assert_eq!(cpus("1.5"), Ok(1.5));
        for text in ["", "0", "-1", "nan", "inf", "1e9", "two", "0.0001"] {
            assert!(cpus(text).is_err(), "{text}");
        }
        assert_eq!(count("4194304"), Ok(4_194_304));
        for text in ["", "0", "+5", "-5", "1.0", "1e3", "4194305", "99999999999999999999999"] {
            assert!(count(text).is_err(), "{text}");
        }
    }

    #[test]
    fn words_name_the_allowed_ones() {
        assert_eq!("allowlist".parse(), Ok(Network::Allowlist));
        let error = "of".parse::<Network>().unwrap_err();
        assert_eq!(error.to_string(), r#""of" is not one of host, off, allowlist"#);
        assert_eq!("1".parse(), Ok(DockerSocket::Raw));
        assert_eq!("0".parse(), Ok(DockerSocket::Off));
        assert!("Raw".parse::<DockerSocket>().is_err());
        assert_eq!(protection("shadow"), Ok(Protection::Shadow));
        assert!(protection("none").unwrap_err().to_string().ends_with("shadow, shared"));
    }

    #[test]
    fn paths() {
        for text in ["/a", "a/b", "~", "~/x", "./~x", "/with space\nand newline", "/a/../b"] {
            assert_eq!(path(text), Ok(PathBuf::from(text)));
        }
        assert!(matches!(path(""), Err(Error::Empty { .. })));
        assert!(matches!(path("/a\0b"), Err(Error::Nul { .. })));
        assert!(matches!(path("~root/x"), Err(Error::NamedHome { .. })));
        assert!(matches!(path(&"/a".repeat(3000)), Err(Error::TooLong { length: 6000 })));
        assert!(matches!(absolute_path("a/b"), Err(Error::Relative { .. })));
        assert_eq!(absolute_path("~/b"), Ok(PathBuf::from("~/b")));
    }

    #[test]
    fn expansion() {
        let expand = |path: &str| expand(Path::new(path), Path::new("/home/u"), Path::new("/w"));
        assert_eq!(expand("~"), Path::new("/home/u"));
        assert_eq!(expand("~/a"), Path::new("/home/u/a"));
        assert_eq!(expand("a/~"), Path::new("/w/a/~"));
        assert_eq!(expand("./~x"), Path::new("/w/./~x"));
        assert_eq!(expand("/a"), Path::new("/a"));
    }

    #[test]
    fn environment_values() {
        assert_eq!(assignment("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert_eq!(assignment("A="), Ok(("A".to_owned(), String::new())));
        for text in ["A", "=b", "A B=c", "A*=c", "A=\0", "", "CODEOID_SESSION=x"] {
            assert!(assignment(text).is_err(), "{text:?}");
        }
        assert_eq!(name_pattern("AWS_*"), Ok("AWS_*".to_owned()));
        for text in ["", "A=b", "A B", "A\n"] {
            assert!(name_pattern(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn report_targets() {
        assert_eq!("fd:3".parse(), Ok(ReportTarget::Fd(3)));
        assert_eq!("./fd:3".parse(), Ok(ReportTarget::File("./fd:3".into())));
        for text in ["fd:", "fd:0", "fd:-1", "fd:+3", "fd:x", "fd:1048576", "fd:99999999999"] {
            assert!(matches!(text.parse::<ReportTarget>(), Err(Error::Descriptor { .. })), "{text}");
        }
    }

    #[test]
    fn a_wrong_value_is_quoted_and_shortened() {
        assert_eq!(shown("a\u{1b}[31m"), r#""a\u{1b}[31m""#);
        assert!(shown(&"ä".repeat(10_000)).chars().count() < 70);
    }
}
