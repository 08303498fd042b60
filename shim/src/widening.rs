//! Widening: what weakens the sandbox is its owner's to allow (DESIGN §6). The owner speaks through the
//! configuration file, which no turn can write; or confirms, at the terminal or by `--confirm-widening`.

use std::io::{BufRead, Write};

use codeoid_spec::git::Protection;
use codeoid_spec::origin::{Origin, Source};
use codeoid_spec::plan::Plan;
use codeoid_spec::policy::{Home, Network, Policy};

use crate::diagnostic::{Doing, Failure, one_line};

/// Refuses the turn unless each widening is the owner's; returns what was allowed, in sentences.
pub fn judge(policy: &Policy, plan: &Plan) -> Result<Vec<String>, Failure> {
    let shown = plan.widened.iter().map(|shown| {
        let sentence =
            format!("{} is shown, which is hidden by default ({})", shown.value.display(), shown.origin);
        (sentence, shown.origin.source == Source::File)
    });
    let mut allowed = Vec::new();
    for (sentence, by_owner) in shown.chain(loosened(policy).into_iter().map(|sentence| (sentence, false))) {
        let may_ask = plan.terminal[0] && plan.terminal[2];
        let confirmed = by_owner || policy.confirm_widening || may_ask && confirm(&sentence)?;
        if !confirmed {
            return Err(Failure::new("widen the sandbox", sentence).hint(
                "put the rule into ~/.codeoid/config.json, or confirm this turn with --confirm-widening",
            ));
        }
        allowed.push(sentence);
    }
    Ok(allowed)
}

/// What the environment or the command line sets less strictly than the owner's file does.
fn loosened(policy: &Policy) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut compare = |what: &str, owner: Option<(u8, &str)>, now: (u8, &str), origin: &Origin| {
        if let Some((strict, word)) = owner
            && now.0 < strict
        {
            let now = now.1;
            sentences.push(format!("{what} is {now} ({origin}), where the configuration file says {word}"));
        }
    };
    let network = |network: Network| match network {
        Network::Host => (0, network.as_str()),
        Network::Allowlist => (1, network.as_str()),
        Network::Off => (2, network.as_str()),
    };
    compare(
        "the network",
        policy.owner.network.map(network),
        network(policy.network.value),
        &policy.network.origin,
    );
    // A home that is read-only and one that keeps changes to itself show the same.
    let home = |home: Home| (u8::from(home == Home::Hidden), home.as_str());
    compare("the home", policy.owner.home.map(home), home(policy.home.value), &policy.home.origin);
    let protection =
        |protection: Protection| (u8::from(protection == Protection::Shadow), protection.as_str());
    compare(
        "the protection of git",
        policy.owner.protection.map(protection),
        protection(policy.protection.value),
        &policy.protection.origin,
    );
    // A list of destinations that stands there is the whole of it.
    if policy.owner.network == Some(Network::Allowlist) && policy.network.value == Network::Allowlist {
        let others = policy.allow.iter().filter(|allowed| allowed.origin.source != Source::File);
        sentences.extend(others.map(|allowed| {
            let (destination, origin) = (&allowed.value, &allowed.origin);
            format!("{destination} is let through ({origin}), which the configuration file does not list")
        }));
    }
    sentences
}

#[expect(clippy::print_stderr, reason = "a question to the person at the terminal")]
fn confirm(sentence: &str) -> Result<bool, Failure> {
    let what = "ask for confirmation";
    eprint!("codeoid-shim: {}. Allow it for this turn? [y/N] ", one_line(sentence));
    std::io::stderr().flush().doing(what)?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).doing(what)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
