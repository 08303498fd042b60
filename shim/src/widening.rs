//! Widening: what weakens the sandbox is its owner's to allow (DESIGN §6). The owner speaks through the
//! configuration file, which no turn can write; or confirms, at the terminal or by `--confirm-widening`.

use std::io::{BufRead, Write};

use codeoid_spec::origin::Source;
use codeoid_spec::plan::Plan;
use codeoid_spec::policy::Policy;

use crate::diagnostic::{Doing, Failure, one_line};

/// Refuses the turn unless each widening is the owner's; returns what was allowed, in sentences.
pub fn judge(policy: &Policy, plan: &Plan) -> Result<Vec<String>, Failure> {
    let mut allowed = Vec::new();
    for shown in &plan.widened {
        let sentence =
            format!("{} is shown, which is hidden by default ({})", shown.value.display(), shown.origin);
        let owner = shown.origin.source == Source::File || policy.confirm_widening;
        let asked = plan.terminal[0] && plan.terminal[2];
        let confirmed = owner || asked && confirm(&sentence)?;
        if !confirmed {
            return Err(Failure::new("widen the sandbox", sentence).hint(
                "put the rule into ~/.codeoid/config.json, or confirm this turn with --confirm-widening",
            ));
        }
        allowed.push(sentence);
    }
    Ok(allowed)
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
