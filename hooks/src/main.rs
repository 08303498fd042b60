//! `codeoid-hook`: the `poststop` hook of a turn's bundle. Reads the container's state as JSON from its standard
//! input (runtime-spec runtime.md, "State"), checks the repository against the baseline in the bundle, and says
//! on standard error what it found.
//!
//! Exit 0: checked, and what had to be put right is; 1: it is not.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use codeoid_hooks::finish::{self, Outcome, Unfinished};
use codeoid_hooks::journal::BASELINE;
use codeoid_hooks::text::printable;
use codeoid_hooks::{read, shadow};
use codeoid_spec::id::SessionId;
use codeoid_spec::report::Action;
use codeoid_spec::state::StateDir;
use serde::Deserialize;

/// The most that is read of the state, in bytes.
const STATE_LIMIT: u64 = 1024 * 1024;
/// The most that is read of a bundle's configuration, in bytes.
const CONFIG_LIMIT: u64 = 64 * 1024 * 1024;
/// The annotation that names the state directory.
const STATE_DIR: &str = "dev.codeoid.state-dir";

/// The annotation that names the session.
const SESSION: &str = "dev.codeoid.session";

/// What matters of a container's state; other fields are the runtime's business.
#[derive(Deserialize)]
struct State {
    bundle: PathBuf,
}

/// What matters of a bundle's configuration.
#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

#[allow(clippy::print_stderr)]
fn main() -> std::process::ExitCode {
    let result = run();
    let outcome = match &result {
        Ok(outcome) => Some(outcome),
        Err(error) => error.downcast_ref::<Box<Unfinished>>().map(|unfinished| &unfinished.outcome),
    };
    if let Some(outcome) = outcome {
        for finding in &outcome.findings {
            let action = match finding.action {
                Action::Restored => "restored",
                Action::Removed => "removed",
                Action::Reported => "found",
            };
            let path = printable(&finding.path.to_string_lossy());
            eprintln!("codeoid-hook: {action} {path}: {}", finding.detail);
        }
        for warning in &outcome.warnings {
            eprintln!("codeoid-hook: {}", printable(warning));
        }
    }
    match result {
        Ok(_) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("codeoid-hook: {}", printable(&format!("{error:#}")));
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<Outcome> {
    let mut text = Vec::new();
    std::io::stdin().take(STATE_LIMIT + 1).read_to_end(&mut text).context("read the state")?;
    ensure!(text.len() as u64 <= STATE_LIMIT, "the state has more than {STATE_LIMIT} bytes");
    let state: State = serde_json::from_slice(&text).context("the state is not that of a container")?;
    ensure!(state.bundle.is_absolute(), "the bundle's path {} is not absolute", state.bundle.display());
    let nothing = |name: &str| Ok::<_, read::Error>(read::lstat(&state.bundle.join(name))?.is_none());
    if nothing(BASELINE)? && nothing(shadow::FILE)? {
        // A turn outside a repository.
        return Ok(Outcome::default());
    }
    let (state_dir, session) = annotated(&state.bundle)?;
    Ok(finish::bundle(&state.bundle, &StateDir::new(state_dir), session.as_ref())?)
}

/// The state directory and the session that the bundle names.
fn annotated(bundle: &Path) -> anyhow::Result<(PathBuf, Option<SessionId>)> {
    let path = bundle.join("config.json");
    let Some(content) = read::file(&path, CONFIG_LIMIT)? else { bail!("{} is missing", path.display()) };
    let mut config: Config = serde_json::from_slice(&content.bytes)
        .with_context(|| format!("{} is not a bundle's configuration", path.display()))?;
    let Some(named) = config.annotations.remove(STATE_DIR) else {
        bail!("{} has no annotation {STATE_DIR}", path.display())
    };
    let named = PathBuf::from(named);
    ensure!(named.is_absolute(), "the annotation {STATE_DIR} is not an absolute path: {}", named.display());
    let session = config.annotations.remove(SESSION).map(|text| text.parse()).transpose()?;
    Ok((named, session))
}
