//! One source's part of the policy, filled value by value.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use super::destination::Destination;
use super::error::{Error, Place};
use super::key::{Key, Kind, SESSION_VARIABLE, VARIABLE_PREFIX, nearest};
use super::value::{self, DockerSocket, Executor, Fallback, Home, Network, ReportTarget};
use crate::git::Protection;
use crate::id::SessionId;
use crate::origin::{Origin, Sourced};

/// The values that one source gives for an option that takes several.
#[derive(Debug, Clone, PartialEq)]
pub struct List<T> {
    /// An empty value was given: what lower sources (and earlier values of this one) said does not count.
    pub reset: bool,
    /// The values, in the order in which they were written.
    pub values: Vec<Sourced<T>>,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { reset: false, values: Vec::new() }
    }
}

/// What one source (the command line, the environment, a configuration file) says; all of it optional. Paths
/// are as written: relative, or with `~`.
///
/// The command line fills its layer with [`Layer::flag`], option by option; the environment and the file have
/// [`Layer::from_environment`] and [`Layer::from_file`].
#[derive(Debug, Clone, Default, PartialEq)]
#[expect(missing_docs, reason = "each field is one source's part in the field of Policy with that name")]
pub struct Layer {
    pub session: Option<Sourced<SessionId>>,
    pub workspace: Option<Sourced<PathBuf>>,
    pub executor: Option<Sourced<Executor>>,
    pub image: Option<Sourced<String>>,
    pub network: Option<Sourced<Network>>,
    pub allow: List<String>,
    pub sockets: List<PathBuf>,
    pub docker_socket: Option<Sourced<DockerSocket>>,
    pub docker_images: List<String>,
    pub confirm_widening: Option<Sourced<bool>>,
    pub worktree_roots: List<PathBuf>,
    pub protection: Option<Sourced<Protection>>,
    pub home: Option<Sourced<Home>>,
    pub read: List<PathBuf>,
    pub write: List<PathBuf>,
    pub hide: List<PathBuf>,
    pub env_set: List<(String, String)>,
    pub env_pass: List<String>,
    pub env_drop: List<String>,
    pub memory: Option<Sourced<u64>>,
    pub cpus: Option<Sourced<f64>>,
    pub pids: Option<Sourced<u64>>,
    pub timeout: Option<Sourced<Duration>>,
    pub home_limit: Option<Sourced<u64>>,
    pub fallback: BTreeMap<String, Sourced<Fallback>>,
    pub report: Option<Sourced<ReportTarget>>,
    /// The configuration file to read instead of the usual one; in the layer of a file: that file.
    pub config: Option<Sourced<PathBuf>>,
    pub keep_bundle: Option<Sourced<bool>>,
    pub quiet: Option<Sourced<bool>>,
}

impl Layer {
    /// Takes one value of a command line option, as the user wrote it. A switch takes `1` or `0`, so does the
    /// bare `--docker-socket`. Options that may be repeated take one value a call; an empty one drops what was
    /// said before it and in the environment and the file.
    ///
    /// # Errors
    /// A value that the option does not take, or that is not UTF-8.
    pub fn flag(&mut self, key: Key, value: impl AsRef<OsStr>) -> Result<(), Error> {
        let name = key.option().or(key.path()).unwrap_or_default();
        let place = || Place::Flag(name.to_owned());
        let text = value.as_ref().to_str().ok_or_else(|| Error::Encoding { place: place() })?;
        self.set(key, text, &Origin::flag(name)).map_err(|fault| Error::Value { place: place(), fault })
    }

    /// The part of the environment: `CODEOID_SESSION` and `CODEOID_SANDBOX_…`. Other variables do not matter.
    ///
    /// # Errors
    /// A variable `CODEOID_SANDBOX_…` that there is not (a typing error would weaken the sandbox unnoticed), a
    /// value that the option does not take, or one that is not UTF-8.
    pub fn from_environment(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Error> {
        let mut layer = Self::default();
        for (name, value) in variables {
            let printable = name.to_string_lossy();
            if printable != SESSION_VARIABLE && !printable.starts_with(VARIABLE_PREFIX) {
                continue;
            }
            let Some(key) = Key::ALL.iter().find(|key| key.variable().is_some_and(|known| name == *known))
            else {
                return Err(unknown_variable(&printable));
            };
            layer.variable(*key, &printable, &value)?;
        }
        Ok(layer)
    }

    fn variable(&mut self, key: Key, name: &str, value: &OsStr) -> Result<(), Error> {
        let place = || Place::Variable(name.to_owned());
        let text = value.to_str().ok_or_else(|| Error::Encoding { place: place() })?;
        let origin = Origin::environment(name);
        // A variable outlives the turn that it was meant for, and a confirmation must not.
        if key == Key::ConfirmWidening {
            return Err(Error::StandingConfirmation { name: name.to_owned() });
        }
        let separator = match key.kind() {
            Kind::Paths => ':',
            Kind::Texts => ',',
            Kind::Assignments => '\n',
            _ => '\0',
        };
        let mut set =
            |text: &str| self.set(key, text, &origin).map_err(|fault| Error::Value { place: place(), fault });
        if separator == '\0' || text.is_empty() {
            return set(text);
        }
        for part in text.split(separator) {
            let part = if separator == ',' { part.trim_ascii() } else { part };
            if part.is_empty() {
                let fault = value::Error::Empty { allowed: separated(separator) };
                return Err(Error::Value { place: place(), fault });
            }
            set(part)?;
        }
        Ok(())
    }

    /// Takes one value of any option.
    pub(super) fn set(&mut self, key: Key, text: &str, origin: &Origin) -> Result<(), value::Error> {
        match key {
            Key::Session => one(&mut self.session, text.parse()?, origin),
            Key::Workspace => one(&mut self.workspace, value::path(text)?, origin),
            Key::Executor => one(&mut self.executor, text.parse()?, origin),
            Key::Image => one(&mut self.image, value::image(text)?, origin),
            Key::Network => one(&mut self.network, text.parse()?, origin),
            Key::Allow => many(&mut self.allow, text, origin, |text| {
                text.parse().map(|destination: Destination| destination.to_string())
            })?,
            Key::Socket => many(&mut self.sockets, text, origin, value::path)?,
            Key::DockerSocket => one(&mut self.docker_socket, text.parse()?, origin),
            Key::DockerImages => many(&mut self.docker_images, text, origin, value::image)?,
            Key::ConfirmWidening => one(&mut self.confirm_widening, value::switch(text)?, origin),
            Key::WorktreeRoot => many(&mut self.worktree_roots, text, origin, value::path)?,
            Key::GitProtection => one(&mut self.protection, value::protection(text)?, origin),
            Key::Home => one(&mut self.home, text.parse()?, origin),
            Key::Read => many(&mut self.read, text, origin, value::path)?,
            Key::Write => many(&mut self.write, text, origin, value::path)?,
            Key::Hide => self.hide.values.push(Sourced::new(value::path(text)?, origin.clone())),
            Key::Env => many(&mut self.env_set, text, origin, value::assignment)?,
            Key::PassEnv => many(&mut self.env_pass, text, origin, value::name_pattern)?,
            Key::DropEnv => {
                self.env_drop.values.push(Sourced::new(value::name_pattern(text)?, origin.clone()));
            }
            Key::Memory => one(&mut self.memory, value::size(text)?, origin),
            Key::Cpus => one(&mut self.cpus, value::cpus(text)?, origin),
            Key::Pids => one(&mut self.pids, value::count(text)?, origin),
            Key::Timeout => one(&mut self.timeout, value::duration(text)?, origin),
            Key::HomeLimit => one(&mut self.home_limit, value::size(text)?, origin),
            Key::Fallback => {
                let (rule, fallback) = value::fallback(text)?;
                self.fallback.insert(rule, Sourced::new(fallback, origin.clone()));
            }
            Key::Report => one(&mut self.report, text.parse()?, origin),
            Key::Config => one(&mut self.config, value::path(text)?, origin),
            Key::KeepBundle => one(&mut self.keep_bundle, value::switch(text)?, origin),
            Key::Quiet => one(&mut self.quiet, value::switch(text)?, origin),
        }
        Ok(())
    }
}

fn one<T>(slot: &mut Option<Sourced<T>>, value: T, origin: &Origin) {
    *slot = Some(Sourced::new(value, origin.clone()));
}

fn many<T>(
    list: &mut List<T>,
    text: &str,
    origin: &Origin,
    parse: impl Fn(&str) -> Result<T, value::Error>,
) -> Result<(), value::Error> {
    if text.is_empty() {
        *list = List { reset: true, values: Vec::new() };
    } else {
        list.values.push(Sourced::new(parse(text)?, origin.clone()));
    }
    Ok(())
}

const fn separated(separator: char) -> &'static str {
    match separator {
        ':' => "paths with ':' between them, or nothing at all",
        ',' => "values with ',' between them, or nothing at all",
        _ => "NAME=VALUE, one a line, or nothing at all",
    }
}

fn unknown_variable(name: &str) -> Error {
    let known: Vec<String> = Key::ALL.iter().filter_map(|key| key.variable()).collect();
    // Without the common beginning, which would make every two names alike.
    let tail =
        |name: &str| name.trim_start_matches(VARIABLE_PREFIX).trim_start_matches("CODEOID_").to_owned();
    let tails: Vec<String> = known.iter().map(|name| tail(name)).collect();
    let nearest = nearest(&tail(name), tails.iter().map(String::as_str))
        .and_then(|tail| tails.iter().position(|known| known == tail))
        .map(|index| known[index].clone());
    Error::UnknownVariable { name: name.escape_debug().to_string(), nearest }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Result<Layer, Error> {
        Layer::from_environment(variables.iter().map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn the_environment_fills_a_layer() {
        let layer = environment(&[
            ("PATH", "/bin"),
            ("CODEOID_SESSION", "s1"),
            ("CODEOID_WORKTREE_DIR", "/w"),
            ("CODEOID_SANDBOX_NETWORK", "allowlist"),
            ("CODEOID_SANDBOX_ALLOW", "a.org:443, B.org"),
            ("CODEOID_SANDBOX_WORKTREE_ROOT", "~/w:/v"),
            ("CODEOID_SANDBOX_DOCKER_SOCKET", "1"),
            ("CODEOID_SANDBOX_ENV", "A=1:2,3\nB="),
            ("CODEOID_SANDBOX_QUIET", "0"),
        ])
        .unwrap();
        let name = |name: &str| Origin::environment(name);
        assert_eq!(layer.session.unwrap().origin, name("CODEOID_SESSION"));
        assert_eq!(layer.network.unwrap().value, Network::Allowlist);
        let allow: Vec<_> = layer.allow.values.into_iter().map(|allow| allow.value).collect();
        assert_eq!(allow, ["a.org:443", "b.org"]);
        let roots: Vec<_> = layer.worktree_roots.values.into_iter().map(|root| root.value).collect();
        assert_eq!(roots, [PathBuf::from("~/w"), PathBuf::from("/v")]);
        assert_eq!(layer.docker_socket.unwrap().value, DockerSocket::Raw);
        let set: Vec<_> = layer.env_set.values.into_iter().map(|set| set.value.1).collect();
        assert_eq!(set, ["1:2,3", ""]);
        assert!(!layer.quiet.unwrap().value);
    }

    #[test]
    fn a_typing_error_in_a_variable_is_not_ignored() {
        for (name, meant) in [
            ("CODEOID_SANDBOX_NETWROK", Some("CODEOID_SANDBOX_NETWORK")),
            ("CODEOID_SANDBOX_SESSION", Some("CODEOID_SESSION")),
            ("CODEOID_SANDBOX_HIDES", Some("CODEOID_SANDBOX_HIDE")),
            ("CODEOID_SANDBOX_network", Some("CODEOID_SANDBOX_NETWORK")),
            ("CODEOID_SANDBOX_", None),
            ("CODEOID_SANDBOX_COLOUR", None),
        ] {
            match environment(&[(name, "off")]) {
                Err(Error::UnknownVariable { name: named, nearest }) => {
                    assert_eq!((named.as_str(), nearest.as_deref()), (name, meant));
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn faulty_variables_are_named() {
        for (name, value, message) in [
            (
                "CODEOID_SANDBOX_HOME",
                "",
                r#"CODEOID_SANDBOX_HOME: "" is not one of overlay, readonly, hidden"#,
            ),
            ("CODEOID_SESSION", "../x", "CODEOID_SESSION: a session id consists of"),
            (
                "CODEOID_SANDBOX_READ",
                "/a::/b",
                "CODEOID_SANDBOX_READ: the value is empty; allowed is paths with ':'",
            ),
            ("CODEOID_SANDBOX_HIDE", "", "CODEOID_SANDBOX_HIDE: the value is empty; allowed is a path"),
            ("CODEOID_SANDBOX_QUIET", "maybe", "CODEOID_SANDBOX_QUIET: \"maybe\" is not one of 1, true"),
            ("CODEOID_SANDBOX_CONFIRM_WIDENING", "1", "CODEOID_SANDBOX_CONFIRM_WIDENING: a widening cannot"),
        ] {
            let error = environment(&[(name, value)]).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
        let bytes = OsString::from_vec(b"/a\xff".to_vec());
        let error = Layer::from_environment([("CODEOID_SANDBOX_READ".into(), bytes.clone())]).unwrap_err();
        assert_eq!(error.to_string(), "CODEOID_SANDBOX_READ: the value is not UTF-8");
        let name = OsString::from_vec(b"CODEOID_SANDBOX_\xff".to_vec());
        assert!(matches!(Layer::from_environment([(name, "1".into())]), Err(Error::UnknownVariable { .. })));
        Layer::from_environment([(bytes.clone(), bytes)]).unwrap();
    }

    #[test]
    fn flags_fill_a_layer() {
        let mut layer = Layer::default();
        layer.flag(Key::Memory, "2GiB").unwrap();
        layer.flag(Key::Hide, "a").unwrap();
        layer.flag(Key::Hide, "b").unwrap();
        assert_eq!(layer.memory, Some(Sourced::new(2 << 30, Origin::flag("--memory"))));
        assert_eq!(layer.hide.values.len(), 2);
        let error = layer.flag(Key::Executor, "podman").unwrap_err().to_string();
        assert!(error.starts_with("--executor: \"podman\" is not one of auto, libcontainer"), "{error}");
        let bytes = OsString::from_vec(b"/a\xff".to_vec());
        assert_eq!(
            layer.flag(Key::Workspace, bytes).unwrap_err().to_string(),
            "--workspace: the value is not UTF-8"
        );
    }

    #[test]
    fn every_key_takes_some_value_as_a_flag() {
        for key in Key::ALL {
            let text = match (key, key.kind()) {
                (_, Kind::Switch) => "1",
                (_, Kind::Words(words) | Kind::WordsOrSwitch(words)) => words[0],
                (_, Kind::Size) => "1M",
                (_, Kind::Duration) => "1m",
                (_, Kind::Count | Kind::Number | Kind::Text | Kind::Texts) => "1",
                (_, Kind::Path | Kind::Paths) => "/a",
                (_, Kind::Assignments) => "A=1",
                (_, Kind::Fallbacks) => "home=weaker",
            };
            let text = if *key == Key::Allow { "a.org" } else { text };
            let mut layer = Layer::default();
            layer.flag(*key, text).unwrap();
            assert_ne!(layer, Layer::default(), "{key:?} is stored nowhere");
        }
    }

    #[test]
    fn an_empty_value_resets_a_list_that_opens_and_never_one_that_closes() {
        let mut layer = Layer::default();
        layer.flag(Key::Read, "/a").unwrap();
        layer.flag(Key::Read, "").unwrap();
        layer.flag(Key::Read, "/b").unwrap();
        assert!(layer.read.reset && layer.read.values.len() == 1);
        for key in Key::ALL.iter().filter(|key| key.only_grows()) {
            assert!(layer.flag(*key, "").is_err(), "{key:?}");
        }
    }
}
