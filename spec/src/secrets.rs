//! What no turn sees unless its owner says so: places of secrets, variables that lead out of the sandbox, and
//! the sockets that are known to. Data, each with its reason; what of it exists on this host, and how it is
//! hidden, is the plan's business.
//!
//! A turn is a command of an agent, not the agent: it needs the toolchain and the caches in the home, and none
//! of the logins there. What a list cannot know (a token in a file of one's own) its owner adds with `hide` and
//! `env.drop`; what is hidden here and wanted after all is shown with `read` and `env.pass`.

mod environment;
mod home;
mod pattern;
mod protected;
mod sockets;
mod system;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::paths::{is_same, is_within};

pub use environment::{EnvRule, Reason, When, env_dropped_by_default, env_verdict, is_login};
pub use home::LEFT_VISIBLE;
pub use pattern::matches;
pub use protected::{Protected, protected};
pub use sockets::{Class, KnownSocket, known_socket, known_sockets, root_equivalent_places};

/// Where a secret lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// Below the home; the path begins with `~/`.
    Home,
    /// Elsewhere; the path is absolute.
    System,
}

/// A file or directory (with all that is in it) that a turn does not see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Secret {
    /// `~/…` or an absolute path; `*` stands for any characters but `/`.
    pub path: &'static str,
    /// What is in it, and what no longer works without it where that is noticed.
    pub why: &'static str,
    /// Where it lies.
    pub place: Place,
}

impl Secret {
    /// Whether the path stands for several names.
    #[must_use]
    pub fn is_pattern(&self) -> bool {
        self.path.contains('*')
    }
}

/// A secret at a place of this host: absolute, but perhaps a pattern, and perhaps not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hidden {
    /// The absolute path; `*` stands for any characters but `/`.
    pub path: PathBuf,
    /// Why it is hidden.
    pub why: &'static str,
    /// The variable that moved it there.
    pub variable: Option<&'static str>,
}

/// The variable is a directory or file that stands for `from`, and so for every secret at or below it.
struct Relocation {
    variable: &'static str,
    from: &'static str,
    /// Several paths, with `:` between them.
    list: bool,
}

const fn moved(variable: &'static str, from: &'static str) -> Relocation {
    Relocation { variable, from, list: false }
}

/// The variables by which programs are told that a secret lies elsewhere: the XDG base directories, and those
/// of the programs' own manuals.
const RELOCATIONS: &[Relocation] = &[
    moved("XDG_CONFIG_HOME", "~/.config"),
    moved("XDG_DATA_HOME", "~/.local/share"),
    moved("XDG_STATE_HOME", "~/.local/state"),
    moved("XDG_CACHE_HOME", "~/.cache"),
    moved("AWS_CONFIG_FILE", "~/.aws/config"),
    moved("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    moved("AZURE_CONFIG_DIR", "~/.azure"),
    moved("BOTO_CONFIG", "~/.boto"),
    moved("BUNDLE_USER_CONFIG", "~/.bundle/config"),
    moved("CARGO_HOME", "~/.cargo"),
    moved("CLAUDE_CONFIG_DIR", "~/.claude"),
    moved("CLOUDSDK_CONFIG", "~/.config/gcloud"),
    moved("CODEX_HOME", "~/.codex"),
    moved("COMPOSER_HOME", "~/.config/composer"),
    moved("DATABRICKS_CONFIG_FILE", "~/.databrickscfg"),
    moved("DOCKER_CERT_PATH", "~/.docker/machine"),
    moved("DOCKER_CONFIG", "~/.docker"),
    moved("GH_CONFIG_DIR", "~/.config/gh"),
    moved("GLAB_CONFIG_DIR", "~/.config/glab-cli"),
    moved("GNUPGHOME", "~/.gnupg"),
    moved("GOOGLE_APPLICATION_CREDENTIALS", "~/.config/gcloud/application_default_credentials.json"),
    moved("GRADLE_USER_HOME", "~/.gradle"),
    moved("HELM_REGISTRY_CONFIG", "~/.config/helm/registry/config.json"),
    moved("HELM_REPOSITORY_CONFIG", "~/.config/helm/repositories.yaml"),
    moved("HF_HOME", "~/.cache/huggingface"),
    moved("HISTFILE", "~/.bash_history"),
    moved("KAGGLE_CONFIG_DIR", "~/.kaggle"),
    Relocation { variable: "KUBECONFIG", from: "~/.kube/config", list: true },
    moved("MYSQL_HISTFILE", "~/.mysql_history"),
    moved("MYSQL_TEST_LOGIN_FILE", "~/.mylogin.cnf"),
    moved("NETRC", "~/.netrc"),
    moved("NODE_REPL_HISTORY", "~/.node_repl_history"),
    moved("NPM_CONFIG_USERCONFIG", "~/.npmrc"),
    moved("npm_config_userconfig", "~/.npmrc"),
    moved("OP_CONFIG_DIR", "~/.config/op"),
    moved("PASSWORD_STORE_DIR", "~/.password-store"),
    moved("PGPASSFILE", "~/.pgpass"),
    moved("PSQL_HISTORY", "~/.psql_history"),
    moved("PULUMI_HOME", "~/.pulumi"),
    moved("PYTHON_HISTORY", "~/.python_history"),
    moved("RCLONE_CONFIG", "~/.config/rclone/rclone.conf"),
    moved("REGISTRY_AUTH_FILE", "~/.config/containers/auth.json"),
    moved("SOPS_AGE_KEY_FILE", "~/.config/sops/age/keys.txt"),
    moved("SQLITE_HISTORY", "~/.sqlite_history"),
    moved("TF_CLI_CONFIG_FILE", "~/.terraformrc"),
    moved("XAUTHORITY", "~/.Xauthority"),
];

/// Every secret that is hidden by default, those of the home first.
#[must_use]
pub fn defaults() -> &'static [Secret] {
    const { &joined::<{ home::SECRETS.len() + system::SECRETS.len() }>(home::SECRETS, system::SECRETS) }
}

const fn joined<const N: usize>(first: &[Secret], second: &[Secret]) -> [Secret; N] {
    let mut all = [first[0]; N];
    let mut index = 0;
    while index < N {
        all[index] = if index < first.len() { first[index] } else { second[index - first.len()] };
        index += 1;
    }
    all
}

/// Where the secrets of this caller lie: the defaults below `home`, and wherever else `variable` (the caller's
/// environment) puts them. What would hide the home itself is left out: `/root` for root, or a variable that
/// names a directory above the home.
#[must_use]
pub fn places(home: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Vec<Hidden> {
    let usual = defaults().iter().map(|secret| Hidden {
        path: expanded(secret.path, home),
        why: secret.why,
        variable: None,
    });
    let mut hidden: Vec<Hidden> = usual.collect();
    for relocation in RELOCATIONS {
        let Some(value) = variable(relocation.variable) else { continue };
        let values: Vec<PathBuf> = if relocation.list {
            std::env::split_paths(&value).collect()
        } else {
            vec![PathBuf::from(value)]
        };
        // Taken apart and put together, `//` and `/.` are gone from it.
        let values = values.iter().map(|to| to.components().collect::<PathBuf>());
        for to in values.filter(|to| may_hide(to)) {
            let there = defaults().iter().filter_map(|secret| {
                let path = relocated(secret.path, relocation.from, &to)?;
                Some(Hidden { path, why: secret.why, variable: Some(relocation.variable) })
            });
            for place in there {
                if !hidden.iter().any(|known| is_same(&known.path, &place.path)) {
                    hidden.push(place);
                }
            }
        }
    }
    hidden.retain(|place| !is_within(home, &place.path));
    hidden
}

/// Whether what a variable names can be hidden at all: people write /dev/null to say "none".
fn may_hide(path: &Path) -> bool {
    path.is_absolute() && !["/dev", "/proc", "/sys"].iter().any(|kernel| path.starts_with(kernel))
}

/// The secret `path` where `from` lies at `to`: below it, or `to` itself where `from` is at or in the secret.
fn relocated(path: &str, from: &str, to: &Path) -> Option<PathBuf> {
    if let Some(rest) = below(path, from) {
        return Some(if rest.is_empty() { to.to_owned() } else { to.join(rest) });
    }
    below(from, path).map(|_| to.to_owned())
}

/// What is left of `path` below `dir`, both as they stand in the list.
fn below<'a>(path: &'a str, dir: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(dir)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
}

fn expanded(path: &str, home: &Path) -> PathBuf {
    match path.strip_prefix("~/") {
        Some(rest) => home.join(rest),
        None => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests;
