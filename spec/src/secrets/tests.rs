//! The lists against what is known to leak: each of these names was found in a public report, or in what a
//! comparable sandbox hides.

use std::collections::HashMap;

use super::*;

const HOME: &str = "/home/u";

fn hidden(variables: &[(&str, &str)]) -> Vec<Hidden> {
    let variables: HashMap<_, _> = variables.iter().copied().collect();
    places(Path::new(HOME), |name| variables.get(name).map(OsString::from))
}

/// Whether the pattern matches the path or a directory above it, component by component.
fn covers(pattern: &Path, path: &Path) -> bool {
    let mut path = path.components();
    pattern.components().all(|part| {
        let text = |part: std::path::Component<'_>| part.as_os_str().to_string_lossy().into_owned();
        path.next().is_some_and(|name| matches(&text(part), &text(name)))
    })
}

fn is_hidden(list: &[Hidden], path: &str) -> bool {
    let path = expanded(path, Path::new(HOME));
    list.iter().any(|place| covers(&place.path, &path))
}

#[test]
fn known_secrets_are_hidden() {
    let list = hidden(&[]);
    for path in [
        "~/.codeoid/config.json",
        "~/.local/state/codeoid-shim/audit.jsonl",
        "~/.ssh/id_ed25519",
        "~/.gnupg/private-keys-v1.d",
        "~/.aws/credentials",
        "~/.azure",
        "~/.config/gcloud",
        "~/.gcloud",
        "~/.kube/config",
        "~/.docker/config.json",
        "~/.docker/contexts/meta",
        "~/.docker/contexts/tls",
        "~/.docker/key.pem",
        "~/.docker/run/docker.sock",
        "~/.docker/desktop/docker.sock",
        "~/.dockercfg",
        "~/.config/containers/auth.json",
        "~/.config/helm/registry/config.json",
        "~/.git-credentials",
        "~/.config/git/credentials",
        "~/.netrc",
        "~/.npmrc",
        "~/.pypirc",
        "~/.cargo/credentials",
        "~/.cargo/credentials.toml",
        "~/.gem/credentials",
        "~/.m2/settings.xml",
        "~/.gradle/gradle.properties",
        "~/.config/gh/hosts.yml",
        "~/.config/hub",
        "~/.vault-token",
        "~/.credentials",
        "~/.secrets",
        "~/.keys",
        "~/.pki",
        "~/.terraform.d/credentials.tfrc.json",
        "~/.config/op",
        "~/.env",
        "~/.envrc",
        "~/.password-store",
        "~/.local/share/keyrings/login.keyring",
        "~/Library/Keychains",
        "/Library/Keychains",
        "~/Library/Group Containers/2BUA8C4S2C.com.1password",
        "~/.config/1Password",
        "~/.config/google-chrome/Default/Cookies",
        "~/.config/google-chrome-beta",
        "~/.config/chromium",
        "~/.config/microsoft-edge",
        "~/.config/BraveSoftware",
        "~/.config/vivaldi",
        "~/.config/opera",
        "~/.mozilla/firefox",
        "~/.thunderbird",
        "~/snap/firefox/common/.mozilla",
        "~/snap/chromium/common/chromium",
        "~/.var/app/org.mozilla.firefox/.mozilla",
        "~/.var/app/com.google.Chrome/config",
        "~/Library/Application Support/Google/Chrome",
        "~/Library/Application Support/Firefox",
        "~/Library/Application Support/Arc",
        "~/Library/Safari",
        "~/Library/Messages",
        "~/Library/Mail",
        "~/Library/Cookies",
        "~/.bash_history",
        "~/.zsh_history",
        "~/.history",
        "~/.python_history",
        "~/.local/share/fish/fish_history",
        "~/.claude/.credentials.json",
        "~/.claude.json",
        "~/.codex/auth.json",
        "~/.gemini/oauth_creds.json",
        "~/.kimi-code",
        "~/.sparrow",
        "~/.pgpass",
        "~/.my.cnf",
        "~/passwords.kdbx",
        "/etc/shadow",
        "/etc/shadow-",
        "/etc/gshadow",
        "/etc/gshadow-",
        "/etc/ssh/ssh_host_ed25519_key",
        "/etc/sudoers",
        "/etc/sudoers.d/x",
        "/etc/ssl/private/x.key",
        "/var/lib/libvirt/images",
        "/root/.bashrc",
    ] {
        assert!(is_hidden(&list, path), "{path}");
    }
}

#[test]
fn what_everyday_commands_need_is_visible() {
    let list = hidden(&[]);
    let needed = LEFT_VISIBLE.iter().map(|secret| secret.path).chain([
        "~",
        "~/.cache/pip",
        "~/.cargo/bin/cargo",
        "~/.cargo/registry",
        "~/.claude/shell-snapshots/x.sh",
        "~/.config",
        "~/.config/fish/config.fish",
        "~/.docker/cli-plugins/docker-compose",
        "~/.gradle/caches",
        "~/.local/bin/x",
        "~/.local/share/pnpm",
        "~/.local/share/uv/tools",
        "~/.m2/repository",
        "~/.nvm",
        "~/.rustup",
        "/etc/passwd",
        "/etc/ssh/ssh_config",
        "/etc/ssh/ssh_host_ed25519_key.pub",
        "/etc/ssl/certs",
    ]);
    for path in needed {
        assert!(!is_hidden(&list, path), "{path}");
    }
}

#[test]
fn every_entry_is_well_formed_and_stands_once() {
    let mut seen = std::collections::HashSet::new();
    for secret in defaults().iter().chain(LEFT_VISIBLE) {
        let start = match secret.place {
            Place::Home => "~/",
            Place::System => "/",
        };
        assert!(secret.path.starts_with(start), "{}", secret.path);
        assert!(!secret.path.ends_with('/') && !secret.path.contains("//"), "{}", secret.path);
        assert!(!secret.why.is_empty() && !secret.why.ends_with('.'), "{}", secret.path);
        assert!(seen.insert(secret.path), "{} stands twice", secret.path);
    }
    for secret in defaults() {
        let covered = defaults()
            .iter()
            .find(|other| other.path != secret.path && covers(Path::new(other.path), Path::new(secret.path)));
        assert_eq!(covered, None, "{} is hidden anyway", secret.path);
    }
}

#[test]
fn the_callers_own_home_is_not_hidden() {
    let root = places(Path::new("/root"), |_| None);
    assert!(root.iter().all(|place| place.path != Path::new("/root")));
    assert!(root.iter().any(|place| place.path == Path::new("/root/.ssh")));
    let list = hidden(&[("GNUPGHOME", "/home"), ("DOCKER_CONFIG", "/"), ("XDG_CONFIG_HOME", "/home/u")]);
    assert!(!is_hidden(&list, "~/project"));
    for place in &list {
        assert!(!Path::new(HOME).starts_with(&place.path), "{place:?}");
    }
}

#[test]
fn variables_move_secrets() {
    let list = hidden(&[
        ("XDG_CONFIG_HOME", "/data/config"),
        ("CARGO_HOME", "/data/cargo"),
        ("GNUPGHOME", "/data/gpg"),
        ("KUBECONFIG", "/data/one:/data/two"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/data/key.json"),
        ("NETRC", "/dev/null"),
        ("PGPASSFILE", "relative"),
    ]);
    for path in [
        "/data/config/gcloud/x",
        "/data/config/gh/hosts.yml",
        "/data/cargo/credentials.toml",
        "/data/gpg",
        "/data/one",
        "/data/two",
        "/data/key.json",
        // Whoever unsets the variable finds the usual place again.
        "~/.config/gh/hosts.yml",
    ] {
        assert!(is_hidden(&list, path), "{path}");
    }
    for path in ["/data/config", "/data/cargo/bin", "/dev/null", "/data/config/git/config"] {
        assert!(!is_hidden(&list, path), "{path}");
    }
    let moved = list.iter().find(|place| place.path == Path::new("/data/gpg")).unwrap();
    assert_eq!(moved.variable, Some("GNUPGHOME"));
    for relocation in RELOCATIONS {
        let to = Path::new("/data");
        let any = defaults().iter().any(|secret| relocated(secret.path, relocation.from, to).is_some());
        assert!(any, "{} moves nothing", relocation.variable);
    }
}

#[test]
fn variables_that_lead_out_are_dropped() {
    for name in [
        "SSH_AUTH_SOCK",
        "GPG_AGENT_INFO",
        "DBUS_SESSION_BUS_ADDRESS",
        "DOCKER_HOST",
        "DOCKER_CONFIG",
        "DOCKER_AUTH_CONFIG",
        "CONTAINER_HOST",
        "VSCODE_GIT_IPC_HANDLE",
        "VSCODE_IPC_HOOK_CLI",
        "INCUS_SOCKET",
        "INCUS_DIR",
        "LXD_DIR",
        "LISTEN_FDS",
        "LISTEN_PID",
        "LISTEN_FDNAMES",
        "NOTIFY_SOCKET",
        "KRB5CCNAME",
        "WSL_INTEROP",
        "REGISTRY_AUTH_FILE",
        "SOMEBODYS_SOCK",
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_COMMON_DIR",
        "CODEOID_SANDBOX_NETWORK",
    ] {
        assert!(env_verdict(name, false).is_some(), "{name}");
    }
    for name in [
        "PATH",
        "HOME",
        "LANG",
        "TERM",
        "XDG_RUNTIME_DIR",
        "XDG_CONFIG_HOME",
        "TMPDIR",
        "GIT_AUTHOR_NAME",
        "GIT_EDITOR",
        "GIT_SSH_COMMAND",
        "DOCKER_BUILDKIT",
        "AWS_REGION",
        "CODEOID_SESSION",
        "DATABASE_URL",
        "",
    ] {
        assert_eq!(env_verdict(name, true), None, "{name}");
    }
    for name in ["AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "ANTHROPIC_API_KEY"] {
        assert!(
            env_verdict(name, true).is_none() && is_login(name),
            "{name}: handed on unless env.drop names it"
        );
    }
    for name in ["PGHOST", "https_proxy"] {
        assert!(env_verdict(name, false).is_none() && env_verdict(name, true).is_some(), "{name}");
    }
    assert_eq!(env_verdict("SSH_AUTH_SOCK", false).unwrap().pattern, "SSH_AUTH_SOCK");
}

#[test]
fn no_rule_is_unreachable() {
    for (index, rule) in env_dropped_by_default().iter().enumerate() {
        let shadow =
            env_dropped_by_default()[..index].iter().find(|other| matches(other.pattern, rule.pattern));
        assert_eq!(shadow, None, "{} never applies", rule.pattern);
    }
}

/// The class of a known socket that is this path, or is a directory above it.
fn class(path: &str) -> Option<Class> {
    known_sockets()
        .iter()
        .find(|socket| match socket.path.strip_suffix('/') {
            Some(directory) => covers(Path::new(directory), Path::new(path)),
            None => {
                let components = |path: &str| Path::new(path).components().count();
                components(socket.path) == components(path) && covers(Path::new(socket.path), Path::new(path))
            }
        })
        .map(|socket| socket.class)
}

#[test]
fn known_ways_out_are_classified() {
    for path in [
        "/run/docker.sock",
        "/var/run/docker.sock",
        "/private/var/run/docker.sock",
        "/run/docker/containerd/containerd.sock",
        "/run/docker/plugins/x.sock",
        "/run/containerd/containerd.sock",
        "/run/k3s/containerd/containerd.sock",
        "/run/rke2/containerd/containerd.sock",
        "/run/k0s/containerd.sock",
        "/var/snap/microk8s/common/run/containerd.sock",
        "/var/snap/microk8s/common/run/containerd.sock.ttrpc",
        "/run/crio/crio.sock",
        "/run/cri-dockerd.sock",
        "/run/dockershim.sock",
        "/run/nri/nri.sock",
        "/var/lib/kubelet/device-plugins/kubelet.sock",
        "/run/buildkit/buildkitd.sock",
        "/run/podman/podman.sock",
        "/run/nerdctl/x",
        "/run/libvirt/libvirt-sock",
        "/run/libvirt/virtqemud-sock",
        "/var/lib/libvirt/qemu/x.monitor",
        "/run/qemu/x",
        "/run/firecracker/x",
        "/run/lxd/x",
        "/var/lib/lxd/unix.socket",
        "/var/snap/lxd/common/lxd/unix.socket",
        "/var/snap/lxd/common/lxd-user/unix.socket.user",
        "/run/incus/x",
        "/var/lib/incus/unix.socket.user",
        "/run/lxc/x",
        "/run/lxcfs.sock",
        "/run/multipass_socket",
        "/var/snap/multipass/common/multipass_socket",
        "/run/systemd/private",
        "/run/dbus/system_bus_socket",
        "/run/systemd/io.systemd.Manager",
        "/run/systemd/machine/io.systemd.Machine",
        "/run/systemd/ask-password/x",
        "/run/systemd/coredump",
        "/run/systemd/shutdown/x",
        "/run/systemd/report/x",
        "/run/systemd/netif/x",
        "/run/udev/control",
        "/run/udev/io.systemd.Udev",
        "/run/polkit/agent-helper.socket",
        "/run/snapd.socket",
        "/run/snapd-snap.socket",
        "/run/cockpit/session",
        "/run/acpid.socket",
        "/run/rpcbind.sock",
        "/run/tailscale/tailscaled.sock",
        "/nix/var/nix/daemon-socket/socket",
        "/run/pcscd/pcscd.comm",
        "@/org/kernel/linux/storage/multipathd",
        "$XDG_RUNTIME_DIR/bus",
        "$XDG_RUNTIME_DIR/systemd/private",
        "$XDG_RUNTIME_DIR/docker.sock",
        "$XDG_RUNTIME_DIR/docker/x",
        "$XDG_RUNTIME_DIR/dockerd-rootless/api.sock",
        "$XDG_RUNTIME_DIR/podman/podman.sock",
        "$XDG_RUNTIME_DIR/containerd/x",
        "$XDG_RUNTIME_DIR/containerd-rootless/x",
        "$XDG_RUNTIME_DIR/buildkit/x",
        "$XDG_RUNTIME_DIR/lxd/x",
        "$XDG_RUNTIME_DIR/incus/x",
        "$XDG_RUNTIME_DIR/libvirt/libvirt-sock",
        "$XDG_RUNTIME_DIR/snapd-session-agent.socket",
        "$XDG_RUNTIME_DIR/.flatpak/x",
        "$XDG_RUNTIME_DIR/.dbus-proxy/x",
        "~/.docker/run/docker.sock",
        "~/.docker/desktop/docker.sock",
        "~/.colima/docker.sock",
        "~/.colima/default/docker.sock",
        "~/.config/colima/default/docker.sock",
        "~/.lima/default/sock/docker.sock",
        "~/.lima/default/ha.sock",
        "~/.rd/docker.sock",
        "~/.orbstack/run/docker.sock",
        "~/.local/share/containers/podman/machine/a/podman.sock",
        "~/.config/containers/podman/machine/x",
        "$TMPDIR/podman/podman-machine-default-api.sock",
        "~/Library/Containers/com.docker.docker/Data/docker.raw.sock",
        "/Applications/Finch/lima/data/finch/sock/finch.sock",
        "/Users/Shared/.docker/x",
    ] {
        assert_eq!(class(path), Some(Class::RootEquivalent), "{path}");
    }
    for path in [
        "$XDG_RUNTIME_DIR/gvfs/x",
        "$XDG_RUNTIME_DIR/i3/ipc-socket.1",
        "$XDG_RUNTIME_DIR/sway-ipc.1000.1.sock",
        "$XDG_RUNTIME_DIR/hypr/x/.socket.sock",
        "$XDG_RUNTIME_DIR/vscode-ipc-1.sock",
        "/tmp/tmux-1000/default",
        "/run/screens/S-u/1.pts",
        "$XDG_RUNTIME_DIR/emacs/server",
        ".git/fsmonitor--daemon.ipc",
        "/private/tmp/com.apple.launchd.x/Listeners",
        "~/.ssh/agent/s.x",
        "~/.gnupg/S.gpg-agent",
        "$XDG_RUNTIME_DIR/gnupg/S.gpg-agent",
        "/tmp/ssh-x/agent.1",
        "$XDG_RUNTIME_DIR/openssh_agent",
        "$XDG_RUNTIME_DIR/keyring/ssh",
        "$XDG_RUNTIME_DIR/gcr/ssh",
        "/tmp/.X11-unix/X0",
        "@/tmp/.X11-unix/X0",
        "$XDG_RUNTIME_DIR/wayland-0",
        "$XDG_RUNTIME_DIR/pipewire-0",
        "$XDG_RUNTIME_DIR/pulse/native",
        "$XDG_RUNTIME_DIR/at-spi/bus_0",
    ] {
        assert_eq!(class(path), Some(Class::Session), "{path}");
    }
    for path in [
        "/run/postgresql/.s.PGSQL.5432",
        "/tmp/.s.PGSQL.5432",
        "/run/mysqld/mysqld.sock",
        "/var/run/mysql/mysql.sock",
        "/var/lib/mysql/mysql.sock",
        "/var/lib/mysqld/mysql.sock",
        "/tmp/mysql.sock",
        "/run/redis/redis.sock",
        "/tmp/redis.sock",
        "/run/memcached/x",
        "/tmp/mongodb-27017.sock",
        "/run/mpd/socket",
        "/run/clamav/x",
        "/run/nscd/socket",
        "/run/cups/cups.sock",
        "/run/avahi-daemon/socket",
        "/run/uwsgi/x",
        "/run/php/x.sock",
    ] {
        assert_eq!(class(path), Some(Class::Service), "{path}");
    }
    for path in ["/run/systemd/resolve/stub-resolv.conf", "/run/systemd", "/tmp/mine.sock", "/run"] {
        assert_eq!(class(path), None, "{path}");
    }
}

#[test]
fn sockets_and_protected_paths_are_well_formed() {
    let mut seen = std::collections::HashSet::new();
    for socket in known_sockets() {
        assert!(seen.insert(socket.path), "{} stands twice", socket.path);
        let starts = ["/", "~/", "$XDG_RUNTIME_DIR/", "$TMPDIR/", "@", ".git/"];
        assert!(starts.iter().any(|start| socket.path.starts_with(start)), "{}", socket.path);
    }
    let mut seen = std::collections::HashSet::new();
    for protected in protected() {
        assert!(seen.insert(protected.path), "{} stands twice", protected.path);
        assert!(
            Path::new(protected.path).is_relative() && !protected.path.contains(".."),
            "{}",
            protected.path
        );
    }
}
