//! Variables that a turn does not inherit: each leads out of the sandbox, or into a git repository of
//! somebody's choice. All others are handed on, among them `XDG_RUNTIME_DIR`, which names a fresh directory
//! inside, and logins: the agent's commands are given those on purpose more often than not, so they are
//! dropped only where the policy says so (`env.drop`); they are listed here for `explain`.

use super::pattern::matches;

/// What is wrong with a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It names a socket, a service, a file descriptor or a hidden file outside.
    Reaches,
    /// It leads git, or a tool that starts containers, elsewhere than the sandbox does.
    Redirects,
    /// It is a login, or names its file.
    Login,
}

/// When a rule applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum When {
    /// In every sandbox.
    Always,
    /// Where the network is `off` or `allowlist`.
    NetworkClosed,
}

/// A variable that is dropped, or a pattern of such.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EnvRule {
    /// The name; `*` stands for any characters.
    pub pattern: &'static str,
    /// What is wrong with it.
    pub reason: Reason,
    /// When the rule applies.
    pub when: When,
    /// One sentence for a person.
    pub why: &'static str,
}

const fn reaches(pattern: &'static str, why: &'static str) -> EnvRule {
    EnvRule { pattern, reason: Reason::Reaches, when: When::Always, why }
}

const fn redirects(pattern: &'static str, why: &'static str) -> EnvRule {
    EnvRule { pattern, reason: Reason::Redirects, when: When::Always, why }
}

const fn login(pattern: &'static str, why: &'static str) -> EnvRule {
    EnvRule { pattern, reason: Reason::Login, when: When::Always, why }
}

const fn closed(pattern: &'static str, why: &'static str) -> EnvRule {
    EnvRule { pattern, reason: Reason::Reaches, when: When::NetworkClosed, why }
}

const WHY_AGENT: &str = "names the socket of an agent that signs or logs in";
const WHY_ASKPASS: &str = "names a program that asks for passwords, mostly by a socket outside";
const WHY_BUS: &str = "names a message bus, which starts programs outside";
const WHY_DAEMON: &str = "names a daemon that reaches the whole machine; Docker access sets its own";
const WHY_DESCRIPTOR: &str = "speaks of file descriptors that are closed inside";
const WHY_DESKTOP: &str = "names a socket by which the desktop is driven, programs started included";
const WHY_DISPLAY: &str = "names a display; whoever reaches it reads the keyboard";
const WHY_EDITOR: &str = "names a socket by which an editor outside opens files and runs commands";
const WHY_TERMINAL: &str = "names a socket by which a terminal outside types and runs commands";
const WHY_GIT: &str = "leads git elsewhere than the workspace does (git-rev-parse(1), --local-env-vars)";
const WHY_OWN: &str = "speaks to the sandbox that is around this turn, not to one inside";
const WHY_LOGIN: &str = "a login; its file is hidden too, pass the variable where a turn needs it";
const WHY_LOGIN_FILE: &str = "names a file with a login, which is hidden";
const WHY_MODEL: &str = "an agent's own login; a turn is its command, not the agent";
const WHY_SERVICE: &str = "names a local service, which a closed network does not reach";
const WHY_PROXY: &str = "names a proxy that a closed network does not reach; an allowlist sets its own";

const RULES: &[EnvRule] = &[
    // git: everything that git itself clears when it turns to another repository, except GIT_CONFIG_COUNT and
    // what belongs to it: those are the caller's settings, and lead nowhere else.
    redirects("GIT_ALTERNATE_OBJECT_DIRECTORIES", WHY_GIT),
    redirects("GIT_COMMON_DIR", WHY_GIT),
    redirects("GIT_CONFIG", WHY_GIT),
    redirects("GIT_CONFIG_PARAMETERS", WHY_GIT),
    redirects("GIT_DIR", WHY_GIT),
    redirects("GIT_GRAFT_FILE", WHY_GIT),
    redirects("GIT_IMPLICIT_WORK_TREE", WHY_GIT),
    redirects("GIT_INDEX_FILE", WHY_GIT),
    redirects("GIT_INTERNAL_SUPER_PREFIX", WHY_GIT),
    redirects("GIT_NAMESPACE", WHY_GIT),
    redirects("GIT_NO_REPLACE_OBJECTS", WHY_GIT),
    redirects("GIT_OBJECT_DIRECTORY", WHY_GIT),
    redirects("GIT_PREFIX", WHY_GIT),
    redirects("GIT_QUARANTINE_PATH", WHY_GIT),
    redirects("GIT_REF_URI", WHY_GIT),
    redirects("GIT_REFERENCE_BACKEND", WHY_GIT),
    redirects("GIT_REPLACE_REF_BASE", WHY_GIT),
    redirects("GIT_SHALLOW_FILE", WHY_GIT),
    redirects("GIT_SUPER_PREFIX", WHY_GIT),
    redirects("GIT_WORK_TREE", WHY_GIT),
    redirects("TESTCONTAINERS_DOCKER_SOCKET_OVERRIDE", WHY_DAEMON),
    redirects("TESTCONTAINERS_HOST_OVERRIDE", WHY_DAEMON),
    redirects("CODEOID_SANDBOX_*", WHY_OWN),
    // Daemons that are root, or as good as.
    reaches("BUILDKIT_HOST", WHY_DAEMON),
    reaches("CONTAINERD_ADDRESS", WHY_DAEMON),
    reaches("CONTAINER_CONNECTION", WHY_DAEMON),
    reaches("CONTAINER_HOST", WHY_DAEMON),
    reaches("CONTAINER_SSHKEY", WHY_DAEMON),
    reaches("DOCKER_CERT_PATH", WHY_DAEMON),
    reaches("DOCKER_CONFIG", WHY_DAEMON),
    reaches("DOCKER_CONTEXT", WHY_DAEMON),
    reaches("DOCKER_HOST", WHY_DAEMON),
    reaches("DOCKER_TLS*", WHY_DAEMON),
    reaches("INCUS_*", WHY_DAEMON),
    reaches("LIBVIRT_DEFAULT_URI", WHY_DAEMON),
    reaches("LXD_*", WHY_DAEMON),
    reaches("NIX_REMOTE", "names the Nix daemon, which builds outside"),
    reaches("WSL_INTEROP", "names the socket by which Windows programs are started"),
    // Sockets of the caller's session.
    reaches("DBUS_*", WHY_BUS),
    reaches("AT_SPI_BUS_ADDRESS", WHY_BUS),
    reaches("SSH_AGENT_PID", WHY_AGENT),
    reaches("SSH_AUTH_SOCK", WHY_AGENT),
    reaches("GPG_AGENT_INFO", WHY_AGENT),
    reaches("GNOME_KEYRING_*", WHY_AGENT),
    reaches("SSH_ASKPASS*", WHY_ASKPASS),
    reaches("SUDO_ASKPASS", WHY_ASKPASS),
    reaches("GIT_ASKPASS", WHY_ASKPASS),
    reaches("VSCODE_*IPC*", WHY_EDITOR),
    reaches("VSCODE_GIT_*", WHY_EDITOR),
    reaches("EMACS_SERVER_FILE", WHY_EDITOR),
    reaches("EMACS_SOCKET_NAME", WHY_EDITOR),
    reaches("NVIM", WHY_EDITOR),
    reaches("NVIM_LISTEN_ADDRESS", WHY_EDITOR),
    reaches("KITTY_LISTEN_ON", WHY_TERMINAL),
    reaches("STY", WHY_TERMINAL),
    reaches("TMUX", WHY_TERMINAL),
    reaches("TMUX_PANE", WHY_TERMINAL),
    reaches("WEZTERM_UNIX_SOCKET", WHY_TERMINAL),
    reaches("ZELLIJ*", WHY_TERMINAL),
    reaches("GHOSTTY_SOCKET*", WHY_TERMINAL),
    reaches("HYPRLAND_INSTANCE_SIGNATURE", WHY_DESKTOP),
    reaches("I3SOCK", WHY_DESKTOP),
    reaches("ICEAUTHORITY", WHY_DESKTOP),
    reaches("NIRI_SOCKET", WHY_DESKTOP),
    reaches("SESSION_MANAGER", WHY_DESKTOP),
    reaches("SWAYSOCK", WHY_DESKTOP),
    reaches("DISPLAY", WHY_DISPLAY),
    reaches("WAYLAND_DISPLAY", WHY_DISPLAY),
    reaches("XAUTHORITY", WHY_DISPLAY),
    reaches("PIPEWIRE_REMOTE", "names the socket of the microphone and the screen"),
    reaches("PULSE_SERVER", "names the socket of the microphone"),
    reaches("*_SOCK", "names a socket outside, by its name"),
    // File descriptors: all above 2 are closed, and a program that believes these either fails or takes its
    // own descriptor of that number for the promised one.
    reaches("LISTEN_FDNAMES", WHY_DESCRIPTOR),
    reaches("LISTEN_FDS", WHY_DESCRIPTOR),
    reaches("LISTEN_PID", WHY_DESCRIPTOR),
    reaches("LISTEN_PIDFDID", WHY_DESCRIPTOR),
    reaches("NODE_CHANNEL_*", WHY_DESCRIPTOR),
    reaches("WAYLAND_SOCKET", WHY_DESCRIPTOR),
    reaches("CREDENTIALS_DIRECTORY", "names a service's credentials (systemd.exec(5))"),
    reaches("JOURNAL_STREAM", "speaks of a stream to the journal (systemd.exec(5))"),
    reaches("MANAGERPID", "speaks of a process outside (systemd.exec(5))"),
    reaches("NOTIFY_SOCKET", "names the socket of the service manager (sd_notify(3))"),
    reaches("WATCHDOG_*", "speaks of a process outside (sd_watchdog_enabled(3))"),
    // Logins.
    reaches("DOCKER_AUTH_CONFIG", WHY_LOGIN),
    reaches("REGISTRY_AUTH_FILE", WHY_LOGIN_FILE),
    reaches("KRB5CCNAME", "names a Kerberos ticket"),
    reaches("KUBECONFIG", WHY_LOGIN_FILE),
    reaches("GOOGLE_APPLICATION_CREDENTIALS", WHY_LOGIN_FILE),
    login("AWS_ACCESS_KEY_ID", WHY_LOGIN),
    login("AWS_SECRET_ACCESS_KEY", WHY_LOGIN),
    login("AWS_SESSION_TOKEN", WHY_LOGIN),
    login("AWS_SECURITY_TOKEN", WHY_LOGIN),
    login("AWS_CONTAINER_*", WHY_LOGIN),
    reaches("AWS_WEB_IDENTITY_TOKEN_FILE", WHY_LOGIN_FILE),
    login("AZURE_CLIENT_SECRET", WHY_LOGIN),
    login("AZURE_DEVOPS_EXT_PAT", WHY_LOGIN),
    login("ARM_CLIENT_SECRET", WHY_LOGIN),
    login("CLOUDFLARE_API_KEY", WHY_LOGIN),
    login("CLOUDFLARE_API_TOKEN", WHY_LOGIN),
    login("CLOUDSDK_AUTH_ACCESS_TOKEN", WHY_LOGIN),
    login("DIGITALOCEAN_ACCESS_TOKEN", WHY_LOGIN),
    login("FLY_API_TOKEN", WHY_LOGIN),
    login("HCLOUD_TOKEN", WHY_LOGIN),
    login("HEROKU_API_KEY", WHY_LOGIN),
    login("NETLIFY_AUTH_TOKEN", WHY_LOGIN),
    login("VERCEL_TOKEN", WHY_LOGIN),
    login("VAULT_TOKEN", WHY_LOGIN),
    login("CONSUL_HTTP_TOKEN", WHY_LOGIN),
    login("NOMAD_TOKEN", WHY_LOGIN),
    login("TF_TOKEN_*", WHY_LOGIN),
    login("PULUMI_ACCESS_TOKEN", WHY_LOGIN),
    login("OP_SERVICE_ACCOUNT_TOKEN", WHY_LOGIN),
    login("OP_SESSION_*", WHY_LOGIN),
    login("BW_SESSION", WHY_LOGIN),
    login("SOPS_AGE_KEY*", WHY_LOGIN),
    login("GITHUB_TOKEN", WHY_LOGIN),
    login("GH_TOKEN", WHY_LOGIN),
    login("GITHUB_ENTERPRISE_TOKEN", WHY_LOGIN),
    login("GH_ENTERPRISE_TOKEN", WHY_LOGIN),
    login("GITHUB_PAT", WHY_LOGIN),
    login("GITLAB_TOKEN", WHY_LOGIN),
    login("GITEA_TOKEN", WHY_LOGIN),
    login("BITBUCKET_TOKEN", WHY_LOGIN),
    login("NPM_TOKEN", WHY_LOGIN),
    login("NODE_AUTH_TOKEN", WHY_LOGIN),
    login("YARN_NPM_AUTH_TOKEN", WHY_LOGIN),
    login("CARGO_REGISTRY_TOKEN", WHY_LOGIN),
    login("CARGO_REGISTRIES_*_TOKEN", WHY_LOGIN),
    login("TWINE_PASSWORD", WHY_LOGIN),
    login("UV_PUBLISH_TOKEN", WHY_LOGIN),
    login("UV_PUBLISH_PASSWORD", WHY_LOGIN),
    login("POETRY_PYPI_TOKEN_*", WHY_LOGIN),
    login("GEM_HOST_API_KEY", WHY_LOGIN),
    login("HF_TOKEN", WHY_LOGIN),
    login("HUGGING_FACE_HUB_TOKEN", WHY_LOGIN),
    login("KAGGLE_KEY", WHY_LOGIN),
    login("SENTRY_AUTH_TOKEN", WHY_LOGIN),
    login("STRIPE_API_KEY", WHY_LOGIN),
    login("SLACK_BOT_TOKEN", WHY_LOGIN),
    login("ANTHROPIC_API_KEY", WHY_MODEL),
    login("ANTHROPIC_AUTH_TOKEN", WHY_MODEL),
    login("CLAUDE_CODE_OAUTH_TOKEN", WHY_MODEL),
    login("CODEX_API_KEY", WHY_MODEL),
    login("OPENAI_API_KEY", WHY_MODEL),
    login("OPENROUTER_API_KEY", WHY_MODEL),
    login("GEMINI_API_KEY", WHY_MODEL),
    login("GOOGLE_API_KEY", WHY_MODEL),
    login("MISTRAL_API_KEY", WHY_MODEL),
    login("XAI_API_KEY", WHY_MODEL),
    login("CURSOR_API_KEY", WHY_MODEL),
    login("COPILOT_GITHUB_TOKEN", WHY_MODEL),
    // Only where the network is closed.
    closed("PGHOST", WHY_SERVICE),
    closed("PGHOSTADDR", WHY_SERVICE),
    closed("PGSERVICE", WHY_SERVICE),
    closed("PGSERVICEFILE", WHY_SERVICE),
    closed("MYSQL_HOST", WHY_SERVICE),
    closed("MYSQL_UNIX_PORT", WHY_SERVICE),
    closed("CUPS_SERVER", WHY_SERVICE),
    closed("MPD_HOST", WHY_SERVICE),
    closed("ALL_PROXY", WHY_PROXY),
    closed("FTP_PROXY", WHY_PROXY),
    closed("HTTPS_PROXY", WHY_PROXY),
    closed("HTTP_PROXY", WHY_PROXY),
    closed("NO_PROXY", WHY_PROXY),
    closed("all_proxy", WHY_PROXY),
    closed("ftp_proxy", WHY_PROXY),
    closed("https_proxy", WHY_PROXY),
    closed("http_proxy", WHY_PROXY),
    closed("no_proxy", WHY_PROXY),
];

/// Every rule, those that name a variable outright before those that only guess by its ending.
#[must_use]
pub fn env_dropped_by_default() -> &'static [EnvRule] {
    RULES
}

/// The rule by which this variable is dropped, or `None` where it is handed on, as logins are.
/// `network_closed`: the network is `off` or `allowlist`.
#[must_use]
pub fn env_verdict(name: &str, network_closed: bool) -> Option<&'static EnvRule> {
    RULES.iter().find(|rule| {
        let applies = network_closed || rule.when == When::Always;
        applies && rule.reason != Reason::Login && matches(rule.pattern, name)
    })
}

/// Whether a variable is a login by its name: handed on, unless `env.drop` names it.
#[must_use]
pub fn is_login(name: &str) -> bool {
    RULES.iter().any(|rule| rule.reason == Reason::Login && matches(rule.pattern, name))
}
