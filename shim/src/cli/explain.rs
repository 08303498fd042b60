//! `explain`: the plan of a turn, or why one path, socket or destination is allowed or not.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use codeoid_spec::git::Access;
use codeoid_spec::host::Host;
use codeoid_spec::mount::Kind;
use codeoid_spec::network::{Rules, Target};
use codeoid_spec::origin::Origin;
use codeoid_spec::plan::Plan;
use codeoid_spec::policy::Network;
use codeoid_spec::secrets::{self, Class};
use serde::Serialize;

use super::turn_options::TurnOptions;
use crate::diagnostic::{Doing, Failure};
use crate::turn;

/// `explain [TURN options] [PATH|SOCKET|HOST:PORT]`
#[derive(Debug, Args)]
pub struct Explain {
    #[command(flatten)]
    options: TurnOptions,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// What to explain: a path, a socket's path, or HOST:PORT [default: the whole plan]
    #[arg(value_name = "PATH|SOCKET|HOST:PORT")]
    subject: Option<String>,
}

/// The answer for one subject (DESIGN §7).
#[derive(Debug, Serialize)]
struct Answer {
    subject: String,
    kind: &'static str,
    access: &'static str,
    rule: String,
    origin: Origin,
    remedy: Option<String>,
}

/// One line of the whole plan.
#[derive(Debug, Serialize)]
struct Line {
    path: PathBuf,
    access: &'static str,
    rule: &'static str,
    why: String,
    origin: Origin,
}

/// The whole plan.
#[derive(Debug, Serialize)]
struct Whole {
    session: String,
    workspace: PathBuf,
    executor: &'static str,
    network: &'static str,
    allow: Vec<Allowed>,
    view: Vec<Line>,
    hidden: Vec<Hidden>,
    environment_dropped: Vec<Dropped>,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Hidden {
    path: PathBuf,
    origin: Origin,
}

#[derive(Debug, Serialize)]
struct Allowed {
    destination: String,
    origin: Origin,
}

#[derive(Debug, Serialize)]
struct Dropped {
    name: String,
    why: String,
}

impl Explain {
    /// Explains.
    pub fn run(self, root: Option<&Path>) -> Result<u8, Failure> {
        let policy = self.options.policy()?;
        let planned = turn::Planned::resolve(&policy, vec!["true".to_owned()], root)?;
        let mut out = std::io::stdout().lock();
        match &self.subject {
            Some(subject) => {
                let answer = answer(subject, &planned.plan, &planned.host)?;
                if self.json {
                    print_json(&mut out, &answer)?;
                } else {
                    let Answer { subject, kind, access, rule, origin, remedy } = answer;
                    let mut text = format!("{kind} {subject}: {access}\nrule {rule}: {origin}\n");
                    if let Some(remedy) = remedy {
                        text.push_str(&format!("to change it: {remedy}\n"));
                    }
                    out.write_all(text.as_bytes()).doing("print")?;
                }
            }
            None => {
                let whole = whole(&planned.plan);
                if self.json {
                    print_json(&mut out, &whole)?;
                } else {
                    out.write_all(describe(&whole).as_bytes()).doing("print")?;
                }
            }
        }
        Ok(0)
    }
}

/// Prints a value as JSON.
pub fn print_json(out: &mut impl Write, value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value).doing("print")?;
    text.push('\n');
    out.write_all(text.as_bytes()).doing("print")
}

fn answer(subject: &str, plan: &Plan, host: &Host) -> Result<Answer, Failure> {
    if !subject.contains('/')
        && let Some((host, port)) = subject.rsplit_once(':')
        && let Ok(port) = port.parse()
        && let Some(target) = Target::parse(host, port)
    {
        return destination(subject, &target, plan);
    }
    let written = match subject.strip_prefix("~/") {
        Some(rest) => crate::probe::home().unwrap_or_default().join(rest),
        None => PathBuf::from(subject),
    };
    let absolute = std::path::absolute(&written).doing("resolve the path")?;
    // The last component as it is named: a link is explained, not what it leads to.
    let path = match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => crate::probe::resolve_existing(parent).join(name),
        _ => absolute.clone(),
    };
    let (access, rule, origin) = plan.access(&path);
    let there = std::fs::symlink_metadata(&absolute).ok();
    let is_socket =
        there.as_ref().is_some_and(|meta| std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()));
    // One that is known to lead out is explained also while its daemon is not there.
    let known = secrets::known_socket(&path, host.home.as_deref(), host.session_runtime.as_deref());
    if is_socket || known.is_some() && there.is_none() {
        let plain = plan.seen_through(&path).is_some_and(|mount| matches!(mount.kind, Kind::Bind { .. }));
        let connect = access.is_some() && plain && is_socket;
        let remedy = match known {
            Some(known) if known.class == Class::RootEquivalent => {
                format!(
                    "--socket {}, which gives the turn more than its own files ({})",
                    path.display(),
                    known.why
                )
            }
            _ => format!("--socket {}", path.display()),
        };
        return Ok(Answer {
            subject: subject.to_owned(),
            kind: "socket",
            access: if connect { "connect" } else { "none" },
            rule: if connect || rule == "hide" { rule.to_owned() } else { "sockets".to_owned() },
            origin,
            remedy: (!connect).then_some(remedy),
        });
    }
    let remedy = match (access, rule) {
        (None, "hide") => Some("take it out of what is hidden".to_owned()),
        (None, _) => Some(format!("--read {}", path.display())),
        (Some(Access::Read), "root" | "git" | "read" | "home") => Some(format!("--write {}", path.display())),
        _ => None,
    };
    Ok(Answer {
        subject: subject.to_owned(),
        kind: "path",
        access: access.map_or("none", word),
        rule: rule.to_owned(),
        origin,
        remedy,
    })
}

/// A name is judged by itself here; an address that it leads to, when it is connected to.
fn destination(subject: &str, target: &Target, plan: &Plan) -> Result<Answer, Failure> {
    let mode = &plan.network;
    let rules = Rules::parse(plan.allow.iter().map(|allowed| allowed.value.as_str()));
    let rules = rules.doing("read the list of destinations")?;
    let listed =
        rules.find(target).and_then(|rule| plan.allow.iter().find(|allowed| allowed.value == rule.text));
    let (access, rule, origin) = match (mode.value, listed) {
        (Network::Host, _) => ("connect", "network", &mode.origin),
        (Network::Allowlist, Some(allowed)) => ("connect", "network.allow", &allowed.origin),
        _ => ("none", "network", &mode.origin),
    };
    let remedy = match mode.value {
        Network::Allowlist => format!("--allow {target}"),
        _ => format!("--network allowlist --allow {target}"),
    };
    Ok(Answer {
        subject: subject.to_owned(),
        kind: "host",
        access,
        rule: rule.to_owned(),
        origin: origin.clone(),
        remedy: (access == "none").then_some(remedy),
    })
}

const fn word(access: Access) -> &'static str {
    match access {
        Access::Read => "read",
        Access::Write => "write",
    }
}

fn whole(plan: &Plan) -> Whole {
    let view = plan
        .mounts
        .iter()
        .map(|mount| Line {
            path: mount.target.clone(),
            access: match &mount.kind {
                Kind::Bind { access, .. } => word(*access),
                Kind::Overlay { cover } if !plan.covers[*cover].upper => "read",
                Kind::Proc => "read",
                _ => "write",
            },
            rule: mount.rule,
            why: mount.why.clone(),
            origin: mount.origin.clone(),
        })
        .collect();
    Whole {
        session: plan.session.to_string(),
        workspace: plan.workspace.clone(),
        executor: plan.executor.value.as_str(),
        network: plan.network.value.as_str(),
        allow: plan
            .allow
            .iter()
            .filter(|_| plan.network.value == Network::Allowlist)
            .map(|allowed| Allowed { destination: allowed.value.clone(), origin: allowed.origin.clone() })
            .collect(),
        view,
        hidden: plan
            .hidden
            .iter()
            .map(|hidden| Hidden { path: hidden.value.clone(), origin: hidden.origin.clone() })
            .collect(),
        environment_dropped: plan
            .env_dropped
            .iter()
            .map(|(name, why)| Dropped { name: name.clone(), why: why.clone() })
            .collect(),
        warnings: plan.warnings.clone(),
    }
}

fn describe(whole: &Whole) -> String {
    let mut text = format!(
        "session {}, workspace {}, network {}, executor {}\n\nwhat the turn sees, later lines over earlier ones:\n",
        whole.session,
        whole.workspace.display(),
        whole.network,
        whole.executor
    );
    for line in &whole.view {
        text.push_str(&format!(
            "  {:5} {}  ({}; {})\n",
            line.access,
            line.path.display(),
            line.why,
            line.origin
        ));
    }
    if !whole.allow.is_empty() {
        text.push_str("\nwhat the network proxy lets through:\n");
    }
    for allowed in &whole.allow {
        text.push_str(&format!("  {}  ({})\n", allowed.destination, allowed.origin));
    }
    text.push_str("\nwhat does not exist for the turn:\n");
    for hidden in &whole.hidden {
        text.push_str(&format!("  {}  ({})\n", hidden.path.display(), hidden.origin));
    }
    text.push_str("\nvariables that are dropped:\n");
    for dropped in &whole.environment_dropped {
        text.push_str(&format!("  {}  ({})\n", dropped.name, dropped.why));
    }
    text
}
