//! Sockets that lead out of a sandbox, wherever programs are known to put them. A socket needs no write access
//! to be used: a read-only mount does not stop connect(2). What is not in this list is found by looking at what
//! listens.

use std::path::{Path, PathBuf};

use super::pattern::matches;

/// What a socket gives to whoever connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Programs outside the sandbox, as root or as the caller: absent from every sandbox.
    RootEquivalent,
    /// The caller's desktop, keys and terminals: absent from every sandbox.
    Session,
    /// A local service: absent where the network is closed, and may be listed in `sockets`.
    Service,
}

/// A socket, or a directory of sockets, that is known to lead out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KnownSocket {
    /// Absolute, or beginning with `~`, `$XDG_RUNTIME_DIR` or `$TMPDIR`; with `@`: an abstract name (unix(7));
    /// with `.git/`: below any checkout.
    /// `*` stands for any characters but `/`. With `/` at the end: the directory and all that is in it, because
    /// its daemon removes the socket and makes another.
    pub path: &'static str,
    /// What it gives.
    pub class: Class,
    /// Whose it is, and what it gives, in a few words.
    pub why: &'static str,
}

const fn root(path: &'static str, why: &'static str) -> KnownSocket {
    KnownSocket { path, class: Class::RootEquivalent, why }
}

const fn session(path: &'static str, why: &'static str) -> KnownSocket {
    KnownSocket { path, class: Class::Session, why }
}

const fn service(path: &'static str, why: &'static str) -> KnownSocket {
    KnownSocket { path, class: Class::Service, why }
}

const DOCKER: &str = "Docker: a container with the host's root";
const CONTAINERD: &str = "containerd: a container with the host's root";
const PODMAN: &str = "podman: a container with all of the caller's files";
const MACHINES: &str = "virtual machines and system containers with the host's disks";
const SYSTEMD: &str = "systemd: starts services outside";
const BUS: &str = "a message bus: starts programs outside";
const SNAPD: &str = "snapd: installs and runs snaps";
const DESKTOP: &str = "the desktop: starts programs outside";
const DISPLAY: &str = "a display: reads the keyboard, types into other windows";
const EDITOR: &str = "an editor outside: opens files and runs commands";
const TERMINAL: &str = "a terminal outside: types and runs commands";
const KEYS: &str = "an agent that signs and logs in with the caller's keys";
const MEDIA: &str = "the microphone, the camera, the screen";

const SOCKETS: &[KnownSocket] = &[
    // Docker and what is like it, system-wide.
    root("/run/docker.sock", DOCKER),
    root("/var/run/docker.sock", DOCKER),
    root("/private/var/run/docker.sock", DOCKER),
    root("/var/run/docker.sock.raw", DOCKER),
    root("/run/docker-*.sock", DOCKER),
    root("/run/docker/", DOCKER),
    root("/var/snap/docker/", DOCKER),
    root("/run/containerd/", CONTAINERD),
    root("/run/k3s/", CONTAINERD),
    root("/run/rke2/", CONTAINERD),
    root("/run/k0s/", CONTAINERD),
    root("/var/snap/microk8s/common/run/", CONTAINERD),
    root("/run/crio/", "CRI-O: a container with the host's root"),
    root("/run/cri-dockerd.sock", DOCKER),
    root("/run/dockershim.sock", DOCKER),
    root("/run/nri/", "plugins of containerd and CRI-O: change every container"),
    root("/var/lib/kubelet/", "the kubelet's plugins: change every pod"),
    root("/run/buildkit/", "BuildKit: builds with the host's root"),
    root("/run/nerdctl/", CONTAINERD),
    root("/run/podman/", PODMAN),
    // Virtual machines and system containers.
    root("/run/libvirt/", MACHINES),
    root("/var/lib/libvirt/", MACHINES),
    root("/run/qemu/", MACHINES),
    root("/run/firecracker/", MACHINES),
    root("/run/firecracker*.sock", MACHINES),
    root("/run/lxd/", MACHINES),
    root("/var/lib/lxd/", MACHINES),
    root("/var/snap/lxd/common/lxd/", MACHINES),
    root("/var/snap/lxd/common/lxd-user/", MACHINES),
    root("/run/incus/", MACHINES),
    root("/var/lib/incus/", MACHINES),
    root("/run/lxc/", MACHINES),
    root("/run/lxcfs.sock", MACHINES),
    root("/run/multipass_socket", MACHINES),
    root("/var/snap/multipass/common/multipass_socket", MACHINES),
    root("/run/vmware/", MACHINES),
    root("/run/WSL/", "Windows: starts programs there"),
    root("/mnt/wslg/runtime-dir/", "Windows: its desktop"),
    // The system's own daemons.
    root("/run/systemd/private", SYSTEMD),
    root("/run/systemd/io.systemd.*", SYSTEMD),
    root("/run/systemd/machine/", SYSTEMD),
    root("/run/systemd/ask-password/", "systemd: answers password prompts"),
    root("/run/systemd/coredump", SYSTEMD),
    root("/run/systemd/shutdown/", SYSTEMD),
    root("/run/systemd/report/", SYSTEMD),
    root("/run/systemd/netif/", "systemd: changes the network"),
    root("/run/systemd/userdb/", "systemd: invents users"),
    root("/run/systemd/notify", "systemd: speaks for a service"),
    root("/run/dbus/", BUS),
    root("/run/udev/control", "udev: changes devices"),
    root("/run/udev/io.systemd.Udev", "udev: changes devices"),
    root("/run/polkit/", "polkit: answers for the administrator"),
    root("/run/snapd.socket", SNAPD),
    root("/run/snapd-snap.socket", SNAPD),
    root("/run/cockpit/", "Cockpit: a shell outside"),
    root("/run/acpid.socket", "acpid: power events"),
    root("/run/rpcbind.sock", "rpcbind: takes over network services"),
    root("/run/tailscale/", "Tailscale: the private network, its files and its ssh"),
    root(
        "/nix/var/nix/daemon-socket/",
        "the Nix daemon: builds outside, and trusts some users with all of the store",
    ),
    root("/run/pcscd/", "smart cards: signs with them"),
    root("/run/multipathd.sock", "multipathd: changes disks"),
    root("@/org/kernel/linux/storage/multipathd", "multipathd: changes disks"),
    // The same for one user.
    root("$XDG_RUNTIME_DIR/docker.sock", DOCKER),
    root("$XDG_RUNTIME_DIR/docker/", DOCKER),
    root("$XDG_RUNTIME_DIR/dockerd-rootless/", DOCKER),
    root("$XDG_RUNTIME_DIR/podman/", PODMAN),
    root("$XDG_RUNTIME_DIR/containerd/", CONTAINERD),
    root("$XDG_RUNTIME_DIR/containerd-rootless/", CONTAINERD),
    root("$XDG_RUNTIME_DIR/buildkit/", "BuildKit: builds with all of the caller's files"),
    root("$XDG_RUNTIME_DIR/buildkit-default/", "BuildKit: builds with all of the caller's files"),
    root("$XDG_RUNTIME_DIR/lxd/", MACHINES),
    root("$XDG_RUNTIME_DIR/incus/", MACHINES),
    root("$XDG_RUNTIME_DIR/libvirt/", MACHINES),
    root("$XDG_RUNTIME_DIR/bus", BUS),
    root("$XDG_RUNTIME_DIR/dbus-1/", BUS),
    root("$XDG_RUNTIME_DIR/.dbus-proxy/", BUS),
    root("@/tmp/dbus-*", BUS),
    root("$XDG_RUNTIME_DIR/systemd/", SYSTEMD),
    root("$XDG_RUNTIME_DIR/snapd-session-agent.socket", SNAPD),
    root("$XDG_RUNTIME_DIR/.flatpak/", "Flatpak: starts programs outside"),
    root("$XDG_RUNTIME_DIR/.flatpak-helper/", "Flatpak: starts programs outside"),
    root("$XDG_RUNTIME_DIR/codeoid-shim/", "this sandbox's own"),
    root("~/.docker/run/", DOCKER),
    root("~/.docker/desktop/", DOCKER),
    root("~/.config/colima/", DOCKER),
    root("~/.colima/", DOCKER),
    root("~/.lima/*/sock/", DOCKER),
    root("~/.lima/*/ha.sock", MACHINES),
    root("~/.rd/", DOCKER),
    root("~/.orbstack/run/", DOCKER),
    root("~/.finch/", CONTAINERD),
    root("/Applications/Finch/lima/data/finch/sock/", CONTAINERD),
    root("/Users/Shared/.docker/", DOCKER),
    root("~/Library/Containers/com.docker.docker/Data/", DOCKER),
    root("~/.local/share/containers/podman/machine/", PODMAN),
    root("~/.config/containers/podman/machine/", PODMAN),
    root("$TMPDIR/podman/", PODMAN),
    // The caller's session.
    session("$XDG_RUNTIME_DIR/gvfs/", "gvfs: reads the host's files"),
    session("$XDG_RUNTIME_DIR/gvfsd/", "gvfs: reads the host's files"),
    session("$XDG_RUNTIME_DIR/doc/", "the document portal: files that were given to other programs"),
    session("$XDG_RUNTIME_DIR/i3/", DESKTOP),
    session("$XDG_RUNTIME_DIR/sway-ipc.*", DESKTOP),
    session("$XDG_RUNTIME_DIR/hypr/", DESKTOP),
    session("$XDG_RUNTIME_DIR/niri.*", DESKTOP),
    session("/tmp/.ICE-unix/", DESKTOP),
    session("@/tmp/.ICE-unix/*", DESKTOP),
    session("/tmp/.X11-unix/", DISPLAY),
    session("@/tmp/.X11-unix/*", DISPLAY),
    session("$XDG_RUNTIME_DIR/wayland-*", DISPLAY),
    session("$XDG_RUNTIME_DIR/at-spi/", DISPLAY),
    session("$XDG_RUNTIME_DIR/pipewire-*", MEDIA),
    session("$XDG_RUNTIME_DIR/pulse/", MEDIA),
    session("$XDG_RUNTIME_DIR/vscode-*", EDITOR),
    session("/tmp/vscode-*", EDITOR),
    session("$XDG_RUNTIME_DIR/emacs/", EDITOR),
    session("/tmp/emacs*/", EDITOR),
    session("~/.emacs.d/server/", EDITOR),
    session("$XDG_RUNTIME_DIR/nvim.*", EDITOR),
    session("/tmp/tmux-*/", TERMINAL),
    session("$XDG_RUNTIME_DIR/tmux-*/", TERMINAL),
    session("/run/screen*/", TERMINAL),
    session("~/.screen/", TERMINAL),
    session("$XDG_RUNTIME_DIR/zellij/", TERMINAL),
    session("/tmp/zellij-*/", TERMINAL),
    session("$XDG_RUNTIME_DIR/kitty-*", TERMINAL),
    session("/tmp/kitty-*", TERMINAL),
    session("@mykitty*", TERMINAL),
    session("$XDG_RUNTIME_DIR/wezterm/", TERMINAL),
    session("~/.local/share/wezterm/", TERMINAL),
    session("~/.config/herdr/", TERMINAL),
    session("$XDG_RUNTIME_DIR/openssh_agent", KEYS),
    session("$XDG_RUNTIME_DIR/ssh-agent*", KEYS),
    session("$XDG_RUNTIME_DIR/keyring/", KEYS),
    session("$XDG_RUNTIME_DIR/gcr/", KEYS),
    session("$XDG_RUNTIME_DIR/gnupg/", KEYS),
    session("$XDG_RUNTIME_DIR/kwallet*", KEYS),
    session("$XDG_RUNTIME_DIR/rbw/", KEYS),
    session("$XDG_RUNTIME_DIR/yubikey-agent/", KEYS),
    session("/tmp/ssh-*/", KEYS),
    session("~/.ssh/", KEYS),
    session("~/.gnupg/S.*", KEYS),
    session("~/.1password/agent.sock", KEYS),
    session("~/.bitwarden-ssh-agent.sock", KEYS),
    session("/private/tmp/com.apple.launchd.*/", KEYS),
    session(".git/fsmonitor--daemon.ipc", "git's own watcher outside; git works without it"),
    session("~/.local/state/watchman/", "watchman: runs triggers outside"),
    session("/run/watchman/", "watchman: runs triggers outside"),
    session("/usr/local/var/run/watchman/", "watchman: runs triggers outside"),
    // Services.
    service("/run/postgresql/", "PostgreSQL, with peer authentication"),
    service("/tmp/.s.PGSQL.*", "PostgreSQL, with peer authentication"),
    service("/run/mysqld/", "MySQL or MariaDB"),
    service("/var/run/mysql/", "MySQL or MariaDB"),
    service("/var/lib/mysql/mysql.sock", "MySQL or MariaDB"),
    service("/var/lib/mysqld/mysql.sock", "MySQL or MariaDB"),
    service("/tmp/mysql.sock", "MySQL or MariaDB"),
    service("/run/redis/", "Redis"),
    service("/tmp/redis.sock", "Redis"),
    service("/run/valkey/", "Valkey"),
    service("/run/memcached/", "memcached"),
    service("/run/mongodb/", "MongoDB"),
    service("/tmp/mongodb-*.sock", "MongoDB"),
    service("/tmp/dolt*.sock", "Dolt"),
    service("/run/mpd/", "the music player"),
    service("$XDG_RUNTIME_DIR/mpd/", "the music player"),
    service("/run/clamav/", "the virus scanner"),
    service("/run/nscd/", "the name service cache"),
    service("/run/cups/", "the printers"),
    service("/run/avahi-daemon/", "names in the local network"),
    service("/run/uwsgi/", "web applications"),
    service("/run/php/", "web applications"),
    service("/run/gunicorn*", "web applications"),
    service("/run/rabbitmq/", "RabbitMQ"),
    service("/run/elasticsearch/", "Elasticsearch"),
];

/// Every socket that is known to lead out of a sandbox.
#[must_use]
pub fn known_sockets() -> &'static [KnownSocket] {
    SOCKETS
}

/// Where root-equivalent sockets lie that a sandbox would see as they are: neither in a directory that every sandbox has
/// for itself, nor in a home, which is seen through an overlay. Each stands for all that is in it.
pub fn root_equivalent_places() -> impl Iterator<Item = PathBuf> {
    const OWN: [&str; 4] = ["/run/", "/var/run/", "/tmp/", "/var/tmp/"];
    let seen = |socket: &&KnownSocket| {
        let own = OWN.iter().any(|own| socket.path.starts_with(own));
        socket.class == Class::RootEquivalent && socket.path.starts_with('/') && !own
    };
    SOCKETS.iter().filter(seen).map(|socket| PathBuf::from(socket.path.trim_end_matches('/')))
}

/// The known socket that a path is, or lies in. `home` and `runtime` are the caller's own directories.
#[must_use]
pub fn known_socket(
    path: &Path,
    home: Option<&Path>,
    runtime: Option<&Path>,
) -> Option<&'static KnownSocket> {
    SOCKETS.iter().find(|socket| {
        let (base, rest) = match socket.path.split_once('/') {
            Some(("~", rest)) => (home, rest),
            Some(("$XDG_RUNTIME_DIR", rest)) => (runtime, rest),
            Some(("$TMPDIR", rest)) => (Some(Path::new("/tmp")), rest),
            Some(("", rest)) => (Some(Path::new("/")), rest),
            // Abstract, or below a checkout.
            _ => return false,
        };
        let Some(below) = base.and_then(|base| path.strip_prefix(base).ok()) else { return false };
        let mut parts = below.iter();
        let all = rest.trim_end_matches('/').split('/').all(|pattern| {
            parts.next().and_then(|part| part.to_str()).is_some_and(|part| matches(pattern, part))
        });
        // A directory stands for what is in it, a socket for itself.
        all && (rest.ends_with('/') || parts.next().is_none())
    })
}
