//! The layers put together.
//!
//! One value: the command line over the environment over the file over what is built in.
//!
//! Lists add up, the file's part first. An empty value (`--allow=`, `CODEOID_SANDBOX_ALLOW=`) takes back what
//! stands before it, so that a turn can also have less than the file gives. Two lists close where all others
//! open, `hide` and `env.drop`, and there nothing is ever taken back: no source un-hides what another hides.
//! What stands twice counts once, with the origin of the lowest source: what the owner's file already says is
//! no widening when a flag repeats it. Of `env.set` each name counts once, with the highest source's value.

use std::collections::HashSet;
use std::hash::Hash;
use std::path::PathBuf;

use super::error::Error;
use super::layer::{Layer, List};
use super::value::{DockerSocket, Executor, Home, Network, ReportTarget, expand};
use super::{DEFAULT_PROTECTION, DEFAULT_SESSION, Owner, Policy};
use crate::origin::Sourced;

/// Where relative paths and `~` lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// The current directory: the workspace where nobody says otherwise, and what relative paths in the
    /// environment and on the command line are relative to.
    pub cwd: PathBuf,
    /// The caller's home.
    pub home: PathBuf,
}

impl Context {
    fn path(&self, path: Sourced<PathBuf>) -> Result<Sourced<PathBuf>, Error> {
        if path.value.starts_with("~") && !self.home.is_absolute() {
            return Err(Error::NoHome { place: path.origin.to_string() });
        }
        Ok(Sourced::new(expand(&path.value, &self.home, &self.cwd), path.origin))
    }

    fn paths(&self, paths: Vec<Sourced<PathBuf>>) -> Result<Vec<Sourced<PathBuf>>, Error> {
        let paths: Vec<_> = paths.into_iter().map(|path| self.path(path)).collect::<Result<_, _>>()?;
        Ok(distinct(paths))
    }
}

/// The policy that the three sources make together.
///
/// # Errors
/// A `~` where the home is not known; a current directory that is not absolute.
pub fn resolve(
    flags: Layer,
    environment: Layer,
    file: Option<Layer>,
    context: &Context,
) -> Result<Policy, Error> {
    if !context.cwd.is_absolute() {
        return Err(Error::NoDirectory { path: context.cwd.clone() });
    }
    let file = file.unwrap_or_default();

    /// The value of the highest layer that has one.
    macro_rules! one {
        ($field:ident) => {
            flags.$field.or(environment.$field).or(file.$field)
        };
        ($field:ident, $default:expr) => {
            one!($field).unwrap_or_else(|| Sourced::default_rule($default))
        };
    }
    /// The values of all layers, the lowest first.
    macro_rules! all {
        ($field:ident) => {
            stacked([file.$field, environment.$field, flags.$field])
        };
    }

    let report = match one!(report) {
        Some(Sourced { value: ReportTarget::File(path), origin }) => {
            let path = context.path(Sourced::new(path, origin))?;
            Some(Sourced::new(ReportTarget::File(path.value), path.origin))
        }
        other => other,
    };
    let mut fallback = file.fallback;
    fallback.extend(environment.fallback);
    fallback.extend(flags.fallback);

    let owner = Owner {
        network: file.network.as_ref().map(|network| network.value),
        home: file.home.as_ref().map(|home| home.value),
        protection: file.protection.as_ref().map(|protection| protection.value),
    };
    Ok(Policy {
        owner,
        session: one!(session, DEFAULT_SESSION.parse().expect("it is made of letters")),
        workspace: context.path(one!(workspace, context.cwd.clone()))?,
        executor: one!(executor, Executor::Auto),
        image: one!(image),
        network: one!(network, Network::Host),
        allow: distinct(all!(allow)),
        sockets: context.paths(all!(sockets))?,
        docker_socket: one!(docker_socket, DockerSocket::Off),
        docker_images: distinct(all!(docker_images)),
        confirm_widening: flags.confirm_widening.is_some_and(|confirm| confirm.value),
        worktree_roots: context.paths(all!(worktree_roots))?,
        protection: one!(protection, DEFAULT_PROTECTION),
        home: one!(home, Home::Overlay),
        read: context.paths(all!(read))?,
        write: context.paths(all!(write))?,
        hide: context.paths(kept([file.hide, environment.hide, flags.hide]))?,
        env_set: last_by_name(all!(env_set)),
        env_pass: distinct(all!(env_pass)),
        env_drop: distinct(kept([file.env_drop, environment.env_drop, flags.env_drop])),
        memory: one!(memory),
        cpus: one!(cpus),
        pids: one!(pids),
        timeout: one!(timeout),
        home_limit: one!(home_limit),
        fallback,
        report,
        config: file.config.map(|config| config.value),
        keep_bundle: one!(keep_bundle).is_some_and(|keep| keep.value),
        quiet: one!(quiet).is_some_and(|quiet| quiet.value),
    })
}

fn stacked<T>(layers: [List<T>; 3]) -> Vec<Sourced<T>> {
    let mut values = Vec::new();
    for layer in layers {
        if layer.reset {
            values.clear();
        }
        values.extend(layer.values);
    }
    values
}

/// As [`stacked`], for lists that only grow.
fn kept<T>(layers: [List<T>; 3]) -> Vec<Sourced<T>> {
    layers.into_iter().flat_map(|layer| layer.values).collect()
}

/// Each value once, where it stands first.
fn distinct<T: Clone + Eq + Hash>(mut values: Vec<Sourced<T>>) -> Vec<Sourced<T>> {
    let mut seen = HashSet::new();
    values.retain(|value| seen.insert(value.value.clone()));
    values
}

/// Each name once, with the value that stands last.
fn last_by_name(mut values: Vec<Sourced<(String, String)>>) -> Vec<Sourced<(String, String)>> {
    let mut seen = HashSet::new();
    values.reverse();
    values.retain(|value| seen.insert(value.value.0.clone()));
    values.reverse();
    values
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::origin::Source;
    use crate::policy::Key;

    fn context() -> Context {
        Context { cwd: "/w".into(), home: "/home/u".into() }
    }

    fn flags(values: &[(Key, &str)]) -> Layer {
        let mut layer = Layer::default();
        for (key, value) in values {
            layer.flag(*key, value).unwrap();
        }
        layer
    }

    fn environment(variables: &[(&str, &str)]) -> Layer {
        Layer::from_environment(variables.iter().map(|(name, value)| (name.into(), value.into()))).unwrap()
    }

    fn file(text: &str) -> Option<Layer> {
        Some(Layer::from_file(Path::new("/home/u/.codeoid/config.json"), text).unwrap())
    }

    fn values<T: Clone>(list: &[Sourced<T>]) -> Vec<T> {
        list.iter().map(|item| item.value.clone()).collect()
    }

    #[test]
    fn nothing_written_gives_the_defaults() {
        let policy = resolve(Layer::default(), Layer::default(), None, &context()).unwrap();
        assert_eq!(policy.session.value.as_str(), "default");
        assert_eq!(policy.workspace, Sourced::default_rule(PathBuf::from("/w")));
        assert_eq!(policy.network, Sourced::default_rule(Network::Host));
        assert_eq!(policy.docker_socket.value, DockerSocket::Off);
        assert_eq!(policy.home.value, Home::Overlay);
        assert_eq!(policy.protection.value, DEFAULT_PROTECTION);
        assert!(!policy.confirm_widening && !policy.quiet && !policy.keep_bundle && policy.config.is_none());
    }

    #[test]
    fn flag_over_environment_over_file() {
        let text = r#"{"sandbox": {"network": {"mode": "off"}, "home": "hidden", "limits": {"pids": 5}}}"#;
        let policy = resolve(
            flags(&[(Key::Network, "host")]),
            environment(&[("CODEOID_SANDBOX_NETWORK", "allowlist"), ("CODEOID_SANDBOX_HOME", "readonly")]),
            file(text),
            &context(),
        )
        .unwrap();
        assert_eq!((policy.network.value, policy.network.origin.source), (Network::Host, Source::Flag));
        assert_eq!((policy.home.value, policy.home.origin.source), (Home::Readonly, Source::Environment));
        assert_eq!(policy.pids.unwrap().origin.source, Source::File);
        assert_eq!(policy.config.as_deref(), Some(Path::new("/home/u/.codeoid/config.json")));
    }

    #[test]
    fn lists_add_up_and_what_stands_twice_keeps_its_lowest_origin() {
        let policy = resolve(
            flags(&[(Key::Read, "c"), (Key::Read, "/home/u/a")]),
            environment(&[("CODEOID_SANDBOX_READ", "b")]),
            file(r#"{"sandbox": {"read": ["~/a"]}}"#),
            &context(),
        )
        .unwrap();
        assert_eq!(values(&policy.read), ["/home/u/a", "/w/b", "/w/c"].map(PathBuf::from));
        assert_eq!(policy.read[0].origin.source, Source::File);
    }

    #[test]
    fn an_empty_value_takes_back_what_stands_before_it() {
        let text = r#"{"sandbox": {"read": ["/a"], "sockets": ["/s"], "network": {"allow": ["a.org"]}}}"#;
        let policy = resolve(
            flags(&[(Key::Socket, ""), (Key::Read, ""), (Key::Read, "/c")]),
            environment(&[("CODEOID_SANDBOX_READ", "/b"), ("CODEOID_SANDBOX_ALLOW", "")]),
            file(text),
            &context(),
        )
        .unwrap();
        assert_eq!(values(&policy.read), [PathBuf::from("/c")]);
        assert!(policy.sockets.is_empty() && policy.allow.is_empty());
    }

    #[test]
    fn what_one_source_hides_no_other_shows() {
        let mut low = file(r#"{"sandbox": {"hide": ["/a"], "env": {"drop": ["X"]}}}"#).unwrap();
        let mut high = flags(&[(Key::Hide, "/b"), (Key::DropEnv, "Y")]);
        // Not even a layer that was filled by hand.
        high.hide.reset = true;
        high.env_drop.reset = true;
        low.hide.reset = true;
        let policy = resolve(high, Layer::default(), Some(low), &context()).unwrap();
        assert_eq!(values(&policy.hide), ["/a", "/b"].map(PathBuf::from));
        assert_eq!(values(&policy.env_drop), ["X", "Y"]);
    }

    #[test]
    fn a_variable_is_set_once() {
        let policy = resolve(
            flags(&[(Key::Env, "A=flag")]),
            environment(&[("CODEOID_SANDBOX_ENV", "A=env\nB=env")]),
            file(r#"{"sandbox": {"env": {"set": {"A": "file", "C": "file"}}}}"#),
            &context(),
        )
        .unwrap();
        let mut set = values(&policy.env_set);
        set.sort();
        let pairs: Vec<_> = set.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(pairs, [("A", "flag"), ("B", "env"), ("C", "file")]);
    }

    #[test]
    fn paths_become_absolute() {
        let policy = resolve(
            flags(&[(Key::Workspace, "sub/.."), (Key::Report, "r.json"), (Key::Hide, "~")]),
            Layer::default(),
            None,
            &context(),
        )
        .unwrap();
        assert_eq!(policy.workspace.value, Path::new("/w/sub/.."));
        assert_eq!(policy.report.unwrap().value, ReportTarget::File("/w/r.json".into()));
        assert_eq!(values(&policy.hide), [PathBuf::from("/home/u")]);
        let policy = resolve(flags(&[(Key::Report, "fd:3")]), Layer::default(), None, &context()).unwrap();
        assert_eq!(policy.report.unwrap().value, ReportTarget::Fd(3));
    }

    #[test]
    fn unknown_directories_are_errors() {
        let nowhere = Context { home: PathBuf::new(), ..context() };
        let error = resolve(flags(&[(Key::Hide, "~/x")]), Layer::default(), None, &nowhere).unwrap_err();
        assert!(matches!(&error, Error::NoHome { place } if place == "option --hide"), "{error}");
        resolve(flags(&[(Key::Hide, "x")]), Layer::default(), None, &nowhere).unwrap();
        let nowhere = Context { cwd: "w".into(), ..context() };
        assert!(matches!(
            resolve(Layer::default(), Layer::default(), None, &nowhere),
            Err(Error::NoDirectory { .. })
        ));
    }

    #[test]
    fn only_a_flag_confirms_a_widening() {
        let policy =
            resolve(flags(&[(Key::ConfirmWidening, "1")]), Layer::default(), None, &context()).unwrap();
        assert!(policy.confirm_widening);
        let policy =
            resolve(Layer::default(), flags(&[(Key::ConfirmWidening, "1")]), None, &context()).unwrap();
        assert!(!policy.confirm_widening);
    }
}
