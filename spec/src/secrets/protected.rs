//! Files of a workspace that something outside runs or obeys later.

/// A file or directory of a workspace through which code that a turn wrote could run outside, later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Protected {
    /// The path below a checkout's top, or below any directory of it where `nested`; `*` stands for any
    /// characters but `/`.
    pub path: &'static str,
    /// It has the same meaning in every directory of the checkout.
    pub nested: bool,
    /// What runs or obeys it.
    pub why: &'static str,
}

const fn top(path: &'static str, why: &'static str) -> Protected {
    Protected { path, nested: false, why }
}

const fn nested(path: &'static str, why: &'static str) -> Protected {
    Protected { path, nested: true, why }
}

const WHY_SHELL: &str = "a shell that takes this directory for its home runs it at its start";
const WHY_AGENT: &str = "an agent that is started here later obeys it";

const PROTECTED: &[Protected] = &[
    nested(".gitconfig", "git runs what a configuration names, where this directory is a home"),
    nested(".gitmodules", "git takes the addresses and paths of submodules from it"),
    nested(".gitattributes", "git runs the filters and drivers that it selects, where they are configured"),
    nested(".bashrc", WHY_SHELL),
    nested(".bash_profile", WHY_SHELL),
    nested(".zshrc", WHY_SHELL),
    nested(".zprofile", WHY_SHELL),
    nested(".profile", WHY_SHELL),
    nested(".ripgreprc", "ripgrep runs the program that --pre names"),
    nested(".mcp.json", "agents start the servers that it names"),
    nested(".envrc", "direnv runs it once allowed"),
    nested(".vscode", "the editor runs tasks, and the programs that settings name"),
    nested(".idea", "the editor runs configurations, and the programs that settings name"),
    nested(".devcontainer", "the editor runs its commands, some of them on the host"),
    nested(".claude/agents", WHY_AGENT),
    nested(".claude/commands", WHY_AGENT),
    nested(".claude/hooks", "an agent that is started here later runs it outside"),
    nested(".claude/launch.json", WHY_AGENT),
    nested(".claude/loop.md", WHY_AGENT),
    nested(".claude/settings*.json", WHY_AGENT),
    nested(".claude/skills", WHY_AGENT),
    nested(".claude/workflows", WHY_AGENT),
    nested(".codex", WHY_AGENT),
    nested(".agents", WHY_AGENT),
    nested(".cursor", WHY_AGENT),
    nested(".gemini", WHY_AGENT),
    top(".husky", "git runs it at the next commit, where core.hooksPath leads there"),
    top(".pre-commit-config.yaml", "pre-commit runs what it names at the next commit"),
    top(".git/hooks", "git runs it at the next commit"),
    top(".git/config", "git runs what it names: fsmonitor, hooksPath, sshCommand, filters, aliases"),
    top(".git/config.worktree", "as .git/config"),
    top(".git/commondir", "git takes another directory for the repository"),
    top(".git/worktrees/*/commondir", "git takes another directory for the repository"),
    top(".git/info/attributes", "git runs the filters and drivers that it selects"),
    top(".git/modules", "submodules: their hooks, configuration, commondir, attributes"),
    nested(".git", "a file of this name points git to another repository"),
    nested(".gitignore", "hides files from the owner's review"),
    nested(".geminiignore", "hides files from an agent's review"),
    nested(".env", "programs that are started here later take their settings and secrets from it"),
    nested(".env.*", "as .env"),
];

/// What comparable sandboxes make read-only in a workspace. Not used by default: a checkout with such files
/// tracked could then be neither checked out nor rebased halfway cleanly, and an agent's work often *is* on
/// them. It is here so that a person can be told which of them a turn changed. Git's own bookkeeping is not
/// decided by this list but by [`crate::git::Protection`].
#[must_use]
pub fn protected() -> &'static [Protected] {
    PROTECTED
}
