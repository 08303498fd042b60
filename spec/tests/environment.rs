//! The variables that are dropped, against the git that is installed.

use std::process::Command;

use codeoid_spec::secrets::env_verdict;

/// What git itself clears before it turns to another repository leads git elsewhere. `GIT_CONFIG_COUNT` is among
/// it and stays: it carries the caller's settings.
#[test]
fn what_leads_git_elsewhere_is_dropped() {
    let output =
        Command::new("git").args(["rev-parse", "--local-env-vars"]).output().expect("git is installed");
    let names = String::from_utf8(output.stdout).expect("names are text");
    assert!(names.lines().count() > 10, "{names}");
    for name in names.lines().filter(|name| *name != "GIT_CONFIG_COUNT") {
        assert!(env_verdict(name, false).is_some(), "{name}");
    }
}
