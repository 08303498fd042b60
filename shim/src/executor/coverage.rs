//! What an executor enforces of a plan on this host, rule by rule, and what follows from it: a rule that is
//! not enforced refuses the turn, unless the policy accepts a weaker sandbox for it by name (DESIGN §3).

use codeoid_spec::plan::Plan;
use codeoid_spec::policy::{DockerSocket, Network, Policy};
use codeoid_spec::report::{Coverage, Status};

use crate::diagnostic::Failure;

/// The rules that the executors for Linux share: they build the same view.
pub fn linux(plan: &Plan, policy: &Policy, executor: &str) -> Vec<Coverage> {
    let mut list = vec![
        enforced("root", "the host's file system is bound read-only, recursively"),
        if executor == "bwrap" {
            weaker(
                "workspace",
                "bubblewrap binds by path: it follows what is put there between plan and start",
            )
        } else {
            enforced("workspace", "bound writable by descriptor")
        },
        weaker(
            "sockets",
            "a socket that appears during the turn in a directory that is bound as it is (the workspace, read, write) \
             answers for up to a quarter of a second, until it is found and hidden",
        ),
        enforced(
            "processes",
            "own pid, ipc, uts, mount and cgroup namespaces; no capabilities, no_new_privs, seccomp",
        ),
    ];
    list.push(match policy.home.value {
        _ if plan.home_masked => Coverage {
            rule: "home".to_owned(),
            status: Status::Weaker,
            why: "something is mounted in the home, so it is read-only instead of covered, and what is hidden in it \
                  is masked"
                .to_owned(),
        },
        _ if plan.home_read_only => weaker(
            "home",
            "read-only overlay with whiteouts: the state directory's file system cannot hold a writable layer",
        ),
        codeoid_spec::policy::Home::Overlay => enforced("home", "copy-on-write overlay with whiteouts"),
        codeoid_spec::policy::Home::Readonly => enforced("home", "read-only overlay with whiteouts"),
        codeoid_spec::policy::Home::Hidden => enforced("home", "an empty file system"),
    });
    list.push(if plan.watched.is_empty() {
        enforced("hide", "whiteouts in a layer that the host cannot replace")
    } else {
        Coverage {
            rule: "hide".to_owned(),
            status: Status::Weaker,
            why: format!(
                "{} lies in a directory that is bound as it is: hidden by a mount, which is renewed when the host \
                 makes or replaces the path, but not at the same instant",
                plan.watched[0].display()
            ),
        }
    });
    match policy.network.value {
        Network::Host => {
            list.push(enforced("network", "the host's, as asked"));
            list.push(if crate::sys::landlock_abi() >= super::LANDLOCK_SCOPE {
                enforced("sockets.abstract", "Landlock refuses abstract sockets of the host")
            } else {
                Coverage {
                    rule: "sockets.abstract".to_owned(),
                    status: Status::Weaker,
                    why:
                        "abstract sockets of the host can be reached: it needs Linux 6.12 with Landlock, or \
                          `--network off`"
                            .to_owned(),
                }
            });
        }
        Network::Off => list.push(enforced("network", "an empty network namespace with loopback")),
        Network::Allowlist => list.push(enforced(
            "network",
            "an empty network namespace; a proxy outside of it connects to what network.allow lists",
        )),
    }
    if policy.docker_socket.value != DockerSocket::Off {
        list.push(missing("docker.socket", "Docker access is not available in this version"));
    }
    if let Some(guard) = &plan.guard {
        list.push(if policy.protection.value == guard.protection {
            enforced(
                "git.protection",
                &format!("{}: see docs/sandbox.md for what that covers", guard.protection.as_str()),
            )
        } else {
            let asked = policy.protection.value.as_str();
            missing("git.protection", &format!("{asked} is not available in this version"))
        });
    }
    if policy.home_limit.is_some() {
        list.push(missing("limits.home", "a limit on the home layer is not available in this version"));
    }
    list
}

/// A rule that holds.
pub fn enforced(rule: &str, why: &str) -> Coverage {
    Coverage { rule: rule.to_owned(), status: Status::Enforced, why: why.to_owned() }
}

/// A rule that holds with a weakness.
fn weaker(rule: &str, why: &str) -> Coverage {
    Coverage { rule: rule.to_owned(), status: Status::Weaker, why: why.to_owned() }
}

/// A rule that does not hold.
pub fn missing(rule: &str, why: &str) -> Coverage {
    Coverage { rule: rule.to_owned(), status: Status::NotEnforced, why: why.to_owned() }
}

/// Refuses the turn for the first rule that is not enforced and not given up by the policy; returns the
/// sentences for what is given up.
pub fn judge(list: &[Coverage], policy: &Policy, executor: &str) -> Result<Vec<String>, Failure> {
    let mut weaker = Vec::new();
    for item in list.iter().filter(|item| item.status == Status::NotEnforced) {
        if policy.fallback.contains_key(&item.rule) {
            weaker.push(format!("{}: not enforced ({})", item.rule, item.why));
            continue;
        }
        return Err(Failure::new(
            format!("rule {}", item.rule),
            format!("executor {executor} does not enforce it here: {}", item.why),
        )
        .hint(format!(
            "drop the rule, or accept a weaker sandbox for it with \"fallback\": {{\"{}\": \"weaker\"}} in the \
             configuration file",
            item.rule
        )));
    }
    weaker.extend(
        list.iter()
            .filter(|item| item.status == Status::Weaker)
            .map(|item| format!("{}: weaker ({})", item.rule, item.why)),
    );
    Ok(weaker)
}
