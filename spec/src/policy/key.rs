//! The options that there are: under which name each stands on the command line, in the environment and in
//! the configuration file, and what it takes. Parser, messages, schema test and documentation test all go by
//! this one table.

use super::value::{DockerSocket, Executor, Home, Network, PROTECTION_WORDS};

/// The variable that names the session.
pub const SESSION_VARIABLE: &str = "CODEOID_SESSION";
/// What the variables of all other options begin with.
pub const VARIABLE_PREFIX: &str = "CODEOID_SANDBOX_";
/// The object in the configuration file that is ours.
pub const SECTION: &str = "sandbox";

/// What an option takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Yes or no.
    Switch,
    /// One of these words.
    Words(&'static [&'static str]),
    /// One of these words, or yes or no.
    WordsOrSwitch(&'static [&'static str]),
    /// Text with rules of its own.
    Text,
    /// A path.
    Path,
    /// A size in bytes.
    Size,
    /// A duration.
    Duration,
    /// A whole number.
    Count,
    /// A number.
    Number,
    /// Several paths; `:` between them in a variable.
    Paths,
    /// Several texts; `,` between them in a variable.
    Texts,
    /// Several NAME=VALUE, an object in the configuration file; a line each in a variable.
    Assignments,
    /// Rule by rule what may be weaker; an object in the configuration file.
    Fallbacks,
}

/// An option of a turn, whatever source gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each variant is the option of that name; names() says how it is written")]
pub enum Key {
    Session,
    Workspace,
    Executor,
    Image,
    Network,
    Allow,
    Socket,
    DockerSocket,
    DockerImages,
    ConfirmWidening,
    WorktreeRoot,
    GitProtection,
    Home,
    Read,
    Write,
    Hide,
    Env,
    PassEnv,
    DropEnv,
    Memory,
    Cpus,
    Pids,
    Timeout,
    HomeLimit,
    Fallback,
    Report,
    Config,
    KeepBundle,
    Quiet,
}

impl Key {
    /// Every option, in the order of the documentation.
    pub const ALL: &'static [Self] = &[
        Self::Session,
        Self::Workspace,
        Self::Executor,
        Self::Image,
        Self::Network,
        Self::Allow,
        Self::Socket,
        Self::DockerSocket,
        Self::DockerImages,
        Self::ConfirmWidening,
        Self::WorktreeRoot,
        Self::GitProtection,
        Self::Home,
        Self::Read,
        Self::Write,
        Self::Hide,
        Self::Env,
        Self::PassEnv,
        Self::DropEnv,
        Self::Memory,
        Self::Cpus,
        Self::Pids,
        Self::Timeout,
        Self::HomeLimit,
        Self::Fallback,
        Self::Report,
        Self::Config,
        Self::KeepBundle,
        Self::Quiet,
    ];

    /// Option, key below `sandbox`, and kind.
    const fn row(self) -> (Option<&'static str>, Option<&'static str>, Kind) {
        match self {
            Self::Session => (Some("--session"), None, Kind::Text),
            Self::Workspace => (Some("--workspace"), None, Kind::Path),
            Self::Executor => (Some("--executor"), Some("executor"), Kind::Words(Executor::WORDS)),
            Self::Image => (Some("--image"), None, Kind::Text),
            Self::Network => (Some("--network"), Some("network.mode"), Kind::Words(Network::WORDS)),
            Self::Allow => (Some("--allow"), Some("network.allow"), Kind::Texts),
            Self::Socket => (Some("--socket"), Some("sockets"), Kind::Paths),
            Self::DockerSocket => {
                (Some("--docker-socket"), Some("docker.socket"), Kind::WordsOrSwitch(DockerSocket::WORDS))
            }
            Self::DockerImages => (None, Some("docker.images"), Kind::Texts),
            Self::ConfirmWidening => (Some("--confirm-widening"), None, Kind::Switch),
            Self::WorktreeRoot => (Some("--worktree-root"), Some("worktreeRoots"), Kind::Paths),
            Self::GitProtection => {
                (Some("--git-protection"), Some("git.protection"), Kind::Words(PROTECTION_WORDS))
            }
            Self::Home => (Some("--home"), Some("home"), Kind::Words(Home::WORDS)),
            Self::Read => (Some("--read"), Some("read"), Kind::Paths),
            Self::Write => (Some("--write"), Some("write"), Kind::Paths),
            Self::Hide => (Some("--hide"), Some("hide"), Kind::Paths),
            Self::Env => (Some("--env"), Some("env.set"), Kind::Assignments),
            Self::PassEnv => (Some("--pass-env"), Some("env.pass"), Kind::Texts),
            Self::DropEnv => (None, Some("env.drop"), Kind::Texts),
            Self::Memory => (Some("--memory"), Some("limits.memory"), Kind::Size),
            Self::Cpus => (Some("--cpus"), Some("limits.cpus"), Kind::Number),
            Self::Pids => (Some("--pids"), Some("limits.pids"), Kind::Count),
            Self::Timeout => (Some("--timeout"), Some("limits.timeout"), Kind::Duration),
            Self::HomeLimit => (None, Some("limits.home"), Kind::Size),
            Self::Fallback => (None, Some("fallback"), Kind::Fallbacks),
            Self::Report => (Some("--report"), None, Kind::Path),
            Self::Config => (Some("--config"), None, Kind::Path),
            Self::KeepBundle => (Some("--keep-bundle"), None, Kind::Switch),
            Self::Quiet => (Some("--quiet"), None, Kind::Switch),
        }
    }

    /// The command line option, where there is one.
    #[must_use]
    pub const fn option(self) -> Option<&'static str> {
        self.row().0
    }

    /// The key in the configuration file, below `sandbox`, where there is one.
    #[must_use]
    pub const fn path(self) -> Option<&'static str> {
        self.row().1
    }

    /// What it takes.
    #[must_use]
    pub const fn kind(self) -> Kind {
        self.row().2
    }

    /// The environment variable: every command line option has one.
    #[must_use]
    pub fn variable(self) -> Option<String> {
        if self == Self::Session {
            return Some(SESSION_VARIABLE.to_owned());
        }
        let option = self.option()?.trim_start_matches('-');
        Some(format!("{VARIABLE_PREFIX}{}", option.replace('-', "_").to_ascii_uppercase()))
    }

    /// A higher source cannot take back what a lower one lists here: these close, all other lists open.
    #[must_use]
    pub const fn only_grows(self) -> bool {
        matches!(self, Self::Hide | Self::DropEnv)
    }
}

/// The candidate that `text` was probably meant to be: equal but for case and separators, or one typing error
/// in every four characters away.
pub(super) fn nearest<'c>(text: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    // Names are short; the distance costs the product of the lengths.
    const MAX_NAME: usize = 64;
    if text.len() > MAX_NAME {
        return None;
    }
    let plain = |text: &str| text.replace(['_', '-', '.'], "").to_lowercase();
    let wanted = plain(text);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&wanted, &plain(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= (plain(candidate).len() / 4).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_stands_twice() {
        let mut names: Vec<String> = Key::ALL
            .iter()
            .flat_map(|key| [key.option().map(str::to_owned), key.path().map(str::to_owned), key.variable()])
            .flatten()
            .collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn variables_follow_the_options() {
        assert_eq!(Key::Session.variable().as_deref(), Some("CODEOID_SESSION"));
        assert_eq!(Key::WorktreeRoot.variable().as_deref(), Some("CODEOID_SANDBOX_WORKTREE_ROOT"));
        assert_eq!(Key::HomeLimit.variable(), None);
    }

    #[test]
    fn nearest_finds_typing_errors_and_not_more() {
        let keys = ["network", "worktreeRoots", "read", "env"];
        assert_eq!(nearest("netwrok", keys), Some("network"));
        assert_eq!(nearest("worktree_roots", keys), Some("worktreeRoots"));
        assert_eq!(nearest("raed", keys), Some("read"));
        assert_eq!(nearest("colour", keys), None);
        assert_eq!(nearest("", keys), None);
        assert_eq!(nearest(&"x".repeat(1 << 20), keys), None);
    }
}
