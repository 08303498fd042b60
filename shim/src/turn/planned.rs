//! Policy -> plan: everything is known afterwards, nothing has been made.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use codeoid_hooks::shadow::Place;
use codeoid_hooks::{layout, roots, shadow, shared};
use codeoid_spec::git::{Guard, Protection};
use codeoid_spec::host::{Cached, Host, HostTree};
use codeoid_spec::id::TurnId;
use codeoid_spec::plan::{self, Plan};
use codeoid_spec::policy::Policy;

use crate::diagnostic::{Doing, Failure};
use crate::{hidden, probe};

/// A turn up to its plan.
pub struct Planned {
    /// This host.
    pub host: Host,
    /// The plan.
    pub plan: Rc<Plan>,
}

impl Planned {
    /// Policy -> plan.
    pub fn resolve(policy: &Policy, command: Vec<String>, runtime: Option<&Path>) -> Result<Self, Failure> {
        let host = probe::host(runtime)?;
        let workspace = plan::workspace(policy, &host, &HostTree).map_err(refused)?;
        judge_owner(&workspace, &host)?;
        let guard = guard(policy, &host, &workspace)?;
        let request = plan::Request {
            turn: TurnId::now(),
            command,
            workspace,
            guard,
            config_file: policy.config.clone(),
        };
        let plan = Rc::new(plan(policy, &host, request)?);
        Ok(Self { host, plan })
    }

    /// The same plan with fewer session folders: those that could be made.
    pub fn with_folders(self, policy: &Policy, folders: Vec<PathBuf>) -> Result<Self, Failure> {
        let Self { host, plan: old } = self;
        let mut guard = old.guard.clone();
        if let Some(guard) = &mut guard {
            guard.repository.session_folders = folders;
        }
        let request = plan::Request {
            turn: old.turn.clone(),
            command: old.command.clone(),
            workspace: old.workspace.clone(),
            guard,
            config_file: policy.config.clone(),
        };
        let plan = Rc::new(plan(policy, &host, request)?);
        Ok(Self { host, plan })
    }
}

fn plan(policy: &Policy, host: &Host, request: plan::Request) -> Result<Plan, Failure> {
    let tree = Cached::new(HostTree);
    plan::resolve(policy, host, &tree, request, &hidden::defaults(host)).map_err(refused)
}

/// Finds the repository around the workspace, and what its protection asks of the sandbox.
fn guard(policy: &Policy, host: &Host, workspace: &Path) -> Result<Option<Guard>, Failure> {
    let mut context = roots::Context {
        home: host.home.clone().unwrap_or_default(),
        state_dir: host.state.path().to_owned(),
        runtime_dir: host.runtime.clone(),
        config_file: policy.config.clone().unwrap_or_default(),
        common_dir: None,
    };
    let validate = |context: &roots::Context| {
        policy
            .worktree_roots
            .iter()
            .map(|root| {
                let what = || format!("worktree root ({})", root.origin);
                let hint = "name another directory, or leave the root out";
                let real = roots::validate(&root.value, context)
                    .map_err(|error| Failure::from_error(what(), &error).hint(hint))?;
                match plan::never_writable(&real, host) {
                    Some(why) => Err(Failure::new(what(), format!("{}: {why}", real.display())).hint(hint)),
                    None => Ok(real),
                }
            })
            .collect::<Result<Vec<_>, _>>()
    };
    let what = "look at the repository around the workspace";
    let roots = validate(&context)?;
    let Some(repository) = layout::find(workspace, &policy.session.value, &roots).doing(what)? else {
        return Ok(None);
    };
    // Now that it is known: a root inside git's own directory is none.
    context.common_dir = Some(repository.common_dir.clone());
    validate(&context)?;
    match policy.protection.value {
        Protection::Shared => shared::guard(&repository).doing(what).map(Some),
        Protection::Shadow => {
            let place = Place::of(&host.state, &policy.session.value, &repository.common_dir);
            let guard = shadow::guard(&repository, &place).doing(what);
            guard.map(Some).map_err(|failure| failure.hint("use --git-protection shared"))
        }
    }
}

/// What an import of the session's shadow has to know; `None` where the repository is not protected that way.
pub fn shadow_record(host: &Host, plan: &Plan) -> Option<shadow::Record> {
    let guard = plan.guard.as_ref().filter(|guard| guard.protection == Protection::Shadow)?;
    let writable =
        plan.mounts.iter().filter(|mount| matches!(mount.rule, "write" | "workspace" | "session-folder"));
    Some(shadow::Record {
        version: shadow::VERSION,
        place: Place::of(&host.state, &plan.session, &guard.repository.common_dir),
        session: plan.session.clone(),
        repository: guard.repository.clone(),
        writable: writable.map(|mount| mount.target.clone()).collect(),
    })
}

/// Without a single capability uid 0 is an ordinary user: it cannot write what belongs to others.
fn judge_owner(workspace: &Path, host: &Host) -> Result<(), Failure> {
    let meta = std::fs::metadata(workspace).doing("look at the workspace")?;
    if host.is_root() && meta.uid() != 0 && meta.mode() & 0o002 == 0 {
        return Err(Failure::new(
            format!("workspace {}", workspace.display()),
            format!("it belongs to uid {}, and a turn of root has no capability to write it", meta.uid()),
        )
        .hint(format!(
            "run codeoid-shim as its owner: `setpriv --reuid {} --regid {} --init-groups codeoid-shim run …`",
            meta.uid(),
            meta.gid()
        )));
    }
    Ok(())
}

fn refused(error: plan::Error) -> Failure {
    let failure = Failure::new("plan the turn", error.to_string());
    match error.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
