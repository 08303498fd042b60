//! The attack suite (`tests/attacks/*.sh`): what a hostile turn can do to git's bookkeeping, so that the user's
//! own git runs its code, loses work, or overwrites files. Each attack is first shown to work without a
//! sandbox; then it runs inside a turn, and then the user does the same as before.
//!
//! An attack that says `# limit:` is one that the sandbox does not prevent. `docs/sandbox.md` names it, and a
//! limit that holds after all fails here, so that list and documentation stay true.

#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use codeoid_tests::{Finished, Layout, Place, Repo, docs, each_identity};

/// Declares the tests; the name of each is that of its file, with `_` for `-`.
macro_rules! attacks {
    ($($name:ident),* $(,)?) => {
        mod bodies {
            $(pub(super) fn $name(place: &codeoid_tests::Place) { super::attack(place, &stringify!($name).replace('_', "-")); })*
        }
        use bodies::*;
        each_identity! { $($name),* }

        /// The same attacks with protection `shadow`.
        mod shadow {
            mod bodies {
                $(pub(super) fn $name(place: &codeoid_tests::Place) {
                    super::super::attack_shadow(place, &stringify!($name).replace('_', "-"));
                })*
            }
            use bodies::*;
            codeoid_tests::each_identity! { $($name),* }
        }

        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

attacks! {
    alternates, branch_of_a_worktree, commondir_created, config_fsmonitor, config_hooks_path,
    config_include, config_replaced, config_worktree_foreign, config_worktree_main,
    entry_commondir_deleted, entry_commondir, entry_duplicate, entry_elsewhere, entry_gitdir_dangling,
    entry_gitdir_removed, entry_head, entry_index, entry_locked, entry_rebase_todo, entry_removed,
    entry_symlink_index, entry_symlink_log, entry_symlink, foreign_worktree_edited,
    foreign_worktree_removed, git_deleted, git_file, git_moved, gitlink, grafts, hook_added,
    hook_replaced, hooks_created, hooks_symlink, index_skip_worktree, index_traversal, locks, merge_head,
    object_replaced, objects_deleted, own_worktree_gitfile, planted_repository, rebase_todo, refs_replace,
    remotes_file, rerere, shallow, submodule_config, submodule_gitfile, submodule_hooks,
    symlink_commit_editmsg, symlink_config, symlink_fetch_head, symlink_index, symlink_log_of_branch,
    symlink_log, symlink_logs_directory, symlink_merge_msg, symlink_objects, symlink_packed_refs,
    symlink_rebase_merge, symlink_refs, worktrees_moved, worktrees_symlink,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("attacks")
}

fn text(name: &str) -> String {
    fs::read_to_string(directory().join(format!("{name}.sh")))
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// One repository under attack.
struct Scene<'a> {
    place: &'a Place,
    repo: Repo,
    script: PathBuf,
    variables: Vec<(&'static str, PathBuf)>,
}

impl<'a> Scene<'a> {
    fn new(place: &'a Place, name: &str, directory: &str) -> Self {
        let repo = Repo::below(place, Layout::Main, &format!("home/{directory}"));
        let at = |file: &str| place.at(format!("outside/{directory}/{file}"));
        place.write(at("precious"), "precious\n");
        place.write(at("precious-dir/file"), "precious\n");
        let script = place.write(at("attack.sh"), text("prelude") + &text(name));
        let variables = vec![
            ("REPO", repo.workspace.clone()),
            ("COMMON", repo.common.clone()),
            ("VICTIM", repo.human.clone()),
            ("ENTRY", repo.human_entry()),
            ("REMOTE", repo.remote.clone()),
            ("MARK", at("mark")),
            ("PRECIOUS", at("precious")),
            ("PRECIOUS_DIR", at("precious-dir")),
            ("PRECIOUS_REFS", at("precious-refs")),
            ("PRECIOUS_CONFIG", at("precious-config")),
        ];
        Self { place, repo, script, variables }
    }

    /// Runs one of the script's functions on the host, in the workspace.
    fn host(&self, function: &str, folder: &Path) -> Finished {
        let mut command = self.place.command("/bin/sh");
        command.current_dir(&self.repo.workspace).env("W", folder);
        command.envs(self.variables.iter().map(|(name, value)| (*name, value)));
        command.args(["-c", ". \"$0\"; if command -v \"$1\" >/dev/null; then \"$1\"; fi"]);
        command.arg(&self.script).arg(function);
        self.place.finish(command)
    }
}

fn attack(place: &Place, name: &str) {
    let limit = text(name).lines().find_map(|line| line.strip_prefix("# limit: ").map(str::to_owned));

    // The control: without a sandbox the attack works, or the test shows nothing.
    let control = Scene::new(place, name, "control");
    let folder = place.make("outside/control/worktrees");
    control.host("prepare", &folder).expect_ok();
    let attacked = control.host("attack", &folder);
    let done = control.host("human", &folder);
    let harmed = control.host("harmed", &folder);
    assert!(harmed.ok(), "{name} does no harm even without a sandbox\n{attacked}\n{done}\n{harmed}");

    let scene = Scene::new(place, name, "turn");
    scene.host("prepare", &folder).expect_ok();
    let mut turn = place.turn(&scene.repo.workspace).options(["--git-protection", "shared"]);
    for (variable, value) in &scene.variables {
        turn = turn.env(variable, value);
    }
    let script = scene.script.to_str().expect("places have plain names");
    let run = "echo \"$CODEOID_WORKTREE_DIR\"; W=$CODEOID_WORKTREE_DIR; export W; . \"$0\"; \
         attack >/dev/null; true";
    let outcome = turn.command(["sh", "-c", run, script]).run();
    outcome.expect_ok();
    let folder = PathBuf::from(outcome.out());
    let unsound = text(name).lines().any(|line| line.starts_with("# unsound: "));
    if limit.is_none() && !unsound && !name.starts_with("entry-rebase") {
        scene.repo.assert_sound(place);
    }
    let done = scene.host("human", &folder);
    let harmed = scene.host("harmed", &folder);
    if unsound {
        assert!(
            docs("docs/sandbox.md").contains(&format!("`{name}`")),
            "docs/sandbox.md does not name {name}"
        );
    }
    match limit {
        None => assert!(!harmed.ok(), "{name} did harm:\n{outcome}\n{done}\n{harmed}"),
        Some(reason) => {
            if let Some(kind) = text(name).lines().find_map(|line| line.strip_prefix("# finding: ")) {
                assert!(
                    outcome.findings().iter().any(|finding| finding["kind"] == kind),
                    "no {kind}: {outcome}"
                );
            }
            assert!(
                harmed.ok(),
                "{name} does no harm: it is no limit any more ({reason})\n{outcome}\n{done}\n{harmed}"
            );
            assert!(
                docs("docs/sandbox.md").contains(&format!("`{name}`")),
                "docs/sandbox.md does not name {name}"
            );
        }
    }
    // What was put back is told to everybody who should know.
    for finding in outcome.findings() {
        if finding["action"] == "restored" {
            assert!(outcome.err().contains("codeoid-shim: "), "restored without a word: {outcome}");
            let audit = fs::read_to_string(place.state().join("audit.jsonl")).unwrap_or_default();
            assert!(audit.contains("session.worktree_entry_restored"), "{audit}");
        }
    }
}

/// What protection `shadow` does not prevent either: what lies in directories that the turn writes, and git on the host
/// that is told to work there.
const SHADOW_LIMITS: [&str; 1] = ["planted-repository"];

/// The attack in a turn with protection `shadow`. That it works without a sandbox is shown by the other test.
fn attack_shadow(place: &Place, name: &str) {
    let scene = Scene::new(place, name, "turn");
    let folder = place.make("outside/turn/worktrees");
    scene.host("prepare", &folder).expect_ok();
    let mut turn = place.turn(&scene.repo.workspace).options(["--git-protection", "shadow"]);
    for (variable, value) in &scene.variables {
        turn = turn.env(variable, value);
    }
    let script = scene.script.to_str().expect("places have plain names");
    let run = "echo \"$CODEOID_WORKTREE_DIR\"; W=$CODEOID_WORKTREE_DIR; export W; . \"$0\"; \
         attack >/dev/null; true";
    let outcome = turn.command(["sh", "-c", run, script]).run();
    if name.starts_with("submodule-") {
        // Refused by name: nothing has run.
        outcome.expect_refusal(&["submodules", "--git-protection shared"]);
    } else {
        outcome.expect_ok();
    }
    let folder = PathBuf::from(outcome.out());
    let limited = SHADOW_LIMITS.contains(&name);
    // There the human's worktree is in the middle of something to begin with.
    if !limited && !name.starts_with("entry-rebase") {
        scene.repo.assert_sound(place);
    }
    let done = scene.host("human", &folder);
    let harmed = scene.host("harmed", &folder);
    if limited {
        assert!(harmed.ok(), "{name} does no harm: it is no limit any more\n{outcome}\n{done}\n{harmed}");
        let text = docs("docs/sandbox.md");
        assert!(text.contains(&format!("`{name}`")), "docs/sandbox.md does not name {name}");
    } else {
        assert!(!harmed.ok(), "{name} did harm:\n{outcome}\n{done}\n{harmed}");
    }
}

#[test]
fn every_attack_is_a_test() {
    let listed: BTreeSet<String> = NAMES.iter().map(|name| name.replace('_', "-")).collect();
    let files: BTreeSet<String> = fs::read_dir(directory())
        .expect("the directory of attacks")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".sh").map(str::to_owned))
        .filter(|name| name != "prelude")
        .collect();
    assert_eq!(listed, files);
}
