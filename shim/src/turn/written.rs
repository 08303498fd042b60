//! A bundle that is written down and not run: whoever runs it, and with which runtime, is the user's choice.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::rc::Rc;

use codeoid_hooks::shared::baseline;
use codeoid_hooks::{folder, journal, shadow};
use codeoid_spec::audit::Event;
use codeoid_spec::bundle;
use codeoid_spec::policy::{Home, Policy};

use super::Planned;
use crate::cli::bundle::Format;
use crate::diagnostic::{Doing, Failure};
use crate::executor::{bubblewrap, coverage};
use crate::session::Session;
use crate::{audit, layers, widening};

/// Writes a turn's bundle to a directory that does not exist yet, or is empty.
pub fn write_bundle(
    policy: &Policy,
    command: Vec<String>,
    runtime: Option<&Path>,
    output: &Path,
    format: Format,
) -> Result<(), Failure> {
    let what = || format!("write the bundle to {}", output.display());
    let output = std::path::absolute(output).doing(what())?;
    let mut planned = Planned::resolve(policy, command, runtime)?;
    let coverage = coverage::linux(&planned.plan, policy, "libcontainer");
    let weaker = coverage::judge(&coverage, policy, "libcontainer")?;
    let widened = widening::judge(policy, &planned.plan)?;
    // Whoever runs the bundle gives it its streams.
    Rc::make_mut(&mut planned.plan).terminal = [false; 3];
    let Planned { host, plan } = planned;
    let place = crate::probe::resolve_existing(&output);
    if place.starts_with(&plan.workspace) {
        return Err(Failure::new(what(), "it lies in the workspace, which the turn may write")
            .hint("choose a directory outside of it"));
    }
    let in_home = host.home.as_ref().is_some_and(|home| place.starts_with(home));
    if in_home && policy.home.value != Home::Hidden {
        return Err(Failure::new(
            what(),
            "it lies in the home, and overlayfs takes no layer from below the directory that it covers",
        )
        .hint("choose a directory outside of the home, for example below /tmp"));
    }
    if matches!(format, Format::Seatbelt | Format::Srt) {
        return Err(Failure::new(what(), "this format is not available in this version")
            .hint("use --format oci or --format bwrap"));
    }
    if fs::read_dir(&output).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Failure::new(what(), "it is not empty").hint("choose another directory"));
    }
    layers::make_state(&host.state)?;
    for sentence in weaker.iter().filter(|sentence| sentence.contains(": not enforced")) {
        super::say(&format!("warning: {sentence}"));
    }
    for sentence in widened {
        let repository = plan.guard.as_ref().map(|guard| guard.repository.common_dir.as_path());
        let detail = serde_json::json!({ "what": sentence, "bundle": output });
        audit::append(&host.state, Event::SandboxWidened, Some(&plan.session), None, repository, detail)?;
    }
    layers::private_dir(&output).doing(what())?;
    if let Some(guard) = &plan.guard {
        // The bundle binds them, so they have to be there; the hook takes empty ones away again.
        let prepared = folder::prepare(&guard.repository, &host.state, &plan.session).doing(what())?;
        if prepared.folders != guard.repository.session_folders {
            return Err(
                Failure::new(what(), prepared.warnings.join("; ")).hint("leave that worktree root out")
            );
        }
        match super::planned::shadow_record(&host, &plan) {
            Some(record) => {
                record.store(&output).doing(what())?;
                let (claim, warnings) = shadow::prepare(&record, &host.state).doing(what())?;
                claim.end();
                for warning in warnings {
                    super::say(&format!("warning: {warning}"));
                }
            }
            None => {
                let baseline = baseline::capture(guard, &[]).doing(what())?;
                journal::store_baseline(&output, &baseline).doing(what())?;
            }
        }
    }
    let layout = layers::make(&plan, &host, Some(&output))?;
    let session = Session::new(&host.state, &plan.session);
    if layout.home.is_some() && !session.is_alive() {
        // A turn that was killed may have left it.
        layers::forget_volatile(&session.home_work());
    }
    for socket in bundle::unwritten(&plan) {
        super::say(&format!(
            "warning: {}: this socket lies where the turn may write, and codeoid-shim alone hides it; run by another \
             runtime, the turn reaches what listens there",
            socket.display()
        ));
    }
    let spec = bundle::config(&plan, &layout).doing(what())?;
    spec.save(output.join("config.json")).doing(what())?;
    if format == Format::Bwrap {
        let text = bubblewrap::written(&spec, &output).doing(what())?;
        fs::File::create_new(output.join("bwrap.args"))
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .doing(what())?;
    }
    Ok(())
}
