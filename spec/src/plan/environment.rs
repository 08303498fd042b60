//! The command's environment: the caller's, without what leads to agents, sockets or other repositories.

use crate::host::Host;
use crate::network;
use crate::policy::{Network, Policy};
use crate::secrets;

use super::Request;

/// Variables that say where git finds things; handled here because a rule of the policy cannot pass them:
/// they would point git in the sandbox at another repository (git(1), "The Git Repository").
const GIT_REDIRECTS: &[&str] = &[
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_SHALLOW_FILE",
    "GIT_GRAFT_FILE",
    "GIT_REPLACE_REF_BASE",
    "GIT_PREFIX",
    "GIT_INTERNAL_SUPER_PREFIX",
    "GIT_QUARANTINE_PATH",
];

/// The environment that the command gets.
pub(super) struct Built {
    /// Names and values.
    pub(super) env: Vec<(String, String)>,
    /// Names that were left out, and why.
    pub(super) dropped: Vec<(String, String)>,
}

/// The environment that the command gets, and what was left out.
pub(super) fn build(policy: &Policy, host: &Host, request: &Request) -> Built {
    let closed = policy.network.value != Network::Host;
    let mut env: Vec<(String, String)> = Vec::new();
    let mut dropped = Vec::new();
    let git = request.guard.as_ref().map(|guard| guard.env.as_slice()).unwrap_or_default();
    for (name, value) in &host.env {
        if let Some(why) = verdict(policy, name, closed) {
            dropped.push((name.clone(), why));
        } else if !is_config_pair(name) || git.is_empty() {
            env.push((name.clone(), value.clone()));
        }
    }
    if !git.is_empty() {
        merge_git_config(&mut env, host, git);
    }
    let folder = request.guard.as_ref().and_then(|guard| guard.repository.session_folders.first());
    if let Some(folder) = folder.and_then(|folder| folder.to_str()) {
        set(&mut env, "CODEOID_WORKTREE_DIR", folder);
    }
    set(&mut env, "CODEOID_SESSION", policy.session.value.as_str());
    set(&mut env, "CODEOID_TURN", &request.turn.to_string());
    if let Some(home) = host.home.as_ref().and_then(|home| home.to_str()) {
        set(&mut env, "HOME", home);
    }
    // The sandbox has its own; the host's may lie where nothing is.
    if env.iter().any(|(name, _)| name == "TMPDIR") {
        set(&mut env, "TMPDIR", "/tmp");
    }
    if env.iter().any(|(name, _)| name == "XDG_RUNTIME_DIR") {
        set(&mut env, "XDG_RUNTIME_DIR", &format!("/run/user/{}", host.uid));
    }
    if !env.iter().any(|(name, _)| name == "PATH") {
        set(&mut env, "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    }
    if let Some(workspace) = request.workspace.to_str() {
        set(&mut env, "PWD", workspace);
    }
    env.retain(|(name, _)| name != "OLDPWD");
    if policy.network.value == Network::Allowlist {
        let proxy = format!("http://{}", network::PROXY);
        let variables = network::PROXY_VARIABLES.map(|name| (name, proxy.as_str()));
        for (name, value) in variables.into_iter().chain([("NO_PROXY", network::NO_PROXY)]) {
            // curl and what uses it read HTTP_PROXY in lower case only: a server's CGI programs have it otherwise from
            // a client's header (httpoxy.org).
            set(&mut env, name, value);
            set(&mut env, &name.to_ascii_lowercase(), value);
        }
    }
    for pair in &policy.env_set {
        set(&mut env, &pair.value.0, &pair.value.1);
    }
    Built { env, dropped }
}

fn verdict(policy: &Policy, name: &str, closed: bool) -> Option<String> {
    if GIT_REDIRECTS.contains(&name) {
        return Some("it points git at another repository".to_owned());
    }
    if name.starts_with("CODEOID_") {
        return Some("it configures codeoid-shim itself".to_owned());
    }
    let named = |list: &[crate::origin::Sourced<String>]| {
        list.iter()
            .find(|pattern| secrets::matches(&pattern.value, name))
            .map(|pattern| pattern.origin.to_string())
    };
    if let Some(origin) = named(&policy.env_drop) {
        return Some(format!("the policy drops it ({origin})"));
    }
    if named(&policy.env_pass).is_some() {
        return None;
    }
    secrets::env_verdict(name, closed).map(|rule| rule.why.to_owned())
}

fn is_config_pair(name: &str) -> bool {
    name == "GIT_CONFIG_COUNT" || name.starts_with("GIT_CONFIG_KEY_") || name.starts_with("GIT_CONFIG_VALUE_")
}

/// Appends our settings to those that the caller gives by `GIT_CONFIG_COUNT` (git-config(1), ENVIRONMENT).
fn merge_git_config(env: &mut Vec<(String, String)>, host: &Host, ours: &[(String, String)]) {
    let count =
        host.variable("GIT_CONFIG_COUNT").and_then(|text| text.trim().parse::<usize>().ok()).unwrap_or(0);
    let mut number = 0;
    for index in 0..count.min(1000) {
        let key = host.variable(&format!("GIT_CONFIG_KEY_{index}"));
        let value = host.variable(&format!("GIT_CONFIG_VALUE_{index}"));
        if let (Some(key), Some(value)) = (key, value) {
            set(env, &format!("GIT_CONFIG_KEY_{number}"), key);
            set(env, &format!("GIT_CONFIG_VALUE_{number}"), value);
            number += 1;
        }
    }
    let our_count = ours
        .iter()
        .find(|(name, _)| name == "GIT_CONFIG_COUNT")
        .and_then(|(_, value)| value.parse::<usize>().ok())
        .unwrap_or(0);
    let find = |name: String| ours.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
    for index in 0..our_count {
        let key = find(format!("GIT_CONFIG_KEY_{index}"));
        let value = find(format!("GIT_CONFIG_VALUE_{index}"));
        if let (Some(key), Some(value)) = (key, value) {
            set(env, &format!("GIT_CONFIG_KEY_{number}"), key);
            set(env, &format!("GIT_CONFIG_VALUE_{number}"), value);
            number += 1;
        }
    }
    set(env, "GIT_CONFIG_COUNT", &number.to_string());
    for (name, value) in ours.iter().filter(|(name, _)| !is_config_pair(name)) {
        set(env, name, value);
    }
}

fn set(env: &mut Vec<(String, String)>, name: &str, value: &str) {
    match env.iter_mut().find(|(known, _)| known == name) {
        Some((_, old)) => value.clone_into(old),
        None => env.push((name.to_owned(), value.to_owned())),
    }
}
