//! Sockets that lead out of a sandbox: a real one listens at each place that is known, in a private copy of the system's
//! directories, and none of them answers a turn: not those that are there when it starts, not those that a daemon
//! makes anew meanwhile, not those that appear.

#![cfg(test)]

use std::fs;
use std::path::Path;

use codeoid_tests::{CONNECT, Finished, Listener, Place, Requires, each_identity};

/// The system's, as the daemons have them.
const SYSTEM: &[&str] = &[
    "/run/docker.sock",
    "/run/docker/metrics.sock",
    "/run/docker/containerd/containerd.sock",
    "/run/docker/plugins/x.sock",
    "/run/docker-second.sock",
    "/run/containerd/containerd.sock",
    "/run/containerd/s/1",
    "/run/k3s/containerd/containerd.sock",
    "/run/rke2/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock.ttrpc",
    "/var/snap/docker/common/run/docker.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/run/dockershim.sock",
    "/run/nri/nri.sock",
    "/var/lib/kubelet/device-plugins/kubelet.sock",
    "/run/buildkit/buildkitd.sock",
    "/run/podman/podman.sock",
    "/run/nerdctl/x.sock",
    "/run/libvirt/libvirt-sock",
    "/run/libvirt/libvirt-sock-ro",
    "/run/libvirt/virtqemud-sock",
    "/run/libvirt/virtnetworkd-sock",
    "/run/libvirt/virtstoraged-sock",
    "/run/libvirt/virtnodedevd-sock",
    "/run/libvirt/virtsecretd-sock",
    "/var/lib/libvirt/qemu/monitor.sock",
    "/run/qemu/x.sock",
    "/run/firecracker/x.sock",
    "/run/lxd/unix.socket",
    "/var/lib/lxd/unix.socket",
    "/var/snap/lxd/common/lxd/unix.socket",
    "/var/snap/lxd/common/lxd-user/unix.socket.user",
    "/run/incus/unix.socket",
    "/var/lib/incus/unix.socket",
    "/var/lib/incus/unix.socket.user",
    "/run/lxc/x",
    "/run/lxcfs.sock",
    "/run/multipass_socket",
    "/var/snap/multipass/common/multipass_socket",
    "/run/systemd/private",
    "/run/dbus/system_bus_socket",
    "/run/systemd/io.systemd.Manager",
    "/run/systemd/io.systemd.Login",
    "/run/systemd/io.systemd.Import",
    "/run/systemd/io.systemd.Credentials",
    "/run/systemd/io.systemd.Hostname",
    "/run/systemd/io.systemd.Shutdown",
    "/run/systemd/io.systemd.sysext",
    "/run/systemd/io.systemd.Repart",
    "/run/systemd/io.systemd.BootControl",
    "/run/systemd/machine/io.systemd.Machine",
    "/run/systemd/ask-password/sck.1",
    "/run/systemd/coredump",
    "/run/systemd/shutdown/x",
    "/run/systemd/report/x",
    "/run/systemd/netif/io.systemd.Network",
    "/run/systemd/resolve/io.systemd.Resolve",
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
    "/run/screens/S-x/1.x",
    "/run/WSL/1_interop",
    "/mnt/wslg/runtime-dir/bus",
    "/tmp/tmux-0/default",
    "/private/var/run/docker.sock",
    "/Applications/Finch/lima/data/finch/sock/finch.sock",
    "/Users/Shared/.docker/docker.sock",
];

/// The caller's, below the runtime directory.
const RUNTIME: &[&str] = &[
    "bus",
    "systemd/private",
    "docker.sock",
    "docker/x.sock",
    "dockerd-rootless/api.sock",
    "podman/podman.sock",
    "containerd/containerd.sock",
    "containerd-rootless/api.sock",
    "buildkit/buildkitd.sock",
    "lxd/unix.socket",
    "incus/unix.socket",
    "libvirt/virtqemud-sock",
    "gvfsd/socket-1",
    "i3/ipc-socket.1",
    "sway-ipc.1.sock",
    "hypr/.socket.sock",
    "snapd-session-agent.socket",
    ".flatpak/1/x",
    ".dbus-proxy/x",
    "vscode-ipc-1.sock",
];

/// The caller's, below the home.
const HOME: &[&str] = &[
    ".docker/run/docker.sock",
    ".docker/desktop/docker.sock",
    ".colima/docker.sock",
    ".colima/p/docker.sock",
    ".config/colima/docker.sock",
    ".lima/p/sock/docker.sock",
    ".lima/p/ha.sock",
    ".rd/docker.sock",
    ".orbstack/run/docker.sock",
    ".local/share/containers/podman/machine/q/podman.sock",
    ".config/containers/podman/machine/q/podman.sock",
    "Library/Containers/com.docker.docker/Data/docker.sock",
];

/// Other names of the same.
const SPELLINGS: &[&str] = &[
    "/var/run/docker.sock",
    "/run/../run/docker.sock",
    "//run//docker.sock",
    "/proc/self/root/run/docker.sock",
    "/proc/1/root/run/docker.sock",
    "/var/lib/../lib/incus/unix.socket",
];

/// Python: listens at every path of the file `paths` in the directory that is its first argument, at once if there is a
/// second one; and once the file `first` appears in there, makes all of them, with their directories, anew. Answers
/// `hello`. Says when by the files `ready` and `second`.
const LISTEN: &str = "\
import os, selectors, shutil, socket, sys, time
place = sys.argv[1]
paths = open(place + '/paths').read().split('\\n')
sel = selectors.DefaultSelector()
def listen():
    for path in paths:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try: os.unlink(path)
        except OSError: pass
        s = socket.socket(socket.AF_UNIX); s.bind(path); s.listen(64); os.chmod(path, 0o777)
        sel.register(s, selectors.EVENT_READ)
def say(name): open(place + '/' + name, 'w').close()
if len(sys.argv) > 2: listen()
say('ready')
while True:
    for key, _ in sel.select(0.05):
        c, _ = key.fileobj.accept(); c.sendall(b'hello'); c.close()
    if os.path.exists(place + '/first') and not os.path.exists(place + '/second'):
        for key in list(sel.get_map().values()): sel.unregister(key.fileobj); key.fileobj.close()
        for path in paths:
            parent = os.path.dirname(path)
            if parent not in ('/run', '/tmp', '/run/systemd', '/private/var/run', os.path.realpath(place + '/../../run')):
                shutil.rmtree(parent, ignore_errors=True)
        listen(); time.sleep(0.3); say('second')
";

/// Python: connects to every path of the file `paths` and to those of the other arguments, and prints each that
/// answers; then writes `first`, waits for `second`, and does it again. With `once` as second argument, only once.
const ASK: &str = "\
import os, socket, sys, time
place = sys.argv[1]
paths = open(place + '/paths').read().split('\\n') + sys.argv[3:]
def ask():
    for path in paths:
        s = socket.socket(socket.AF_UNIX); s.settimeout(5)
        try:
            s.connect(path); print('ANSWERS', path, s.recv(5).decode())
        except OSError: pass
    print(len(paths), 'asked', flush=True)
ask()
if sys.argv[2] != 'once':
    open(place + '/first', 'w').close()
    until = time.time() + 20
    while not os.path.exists(place + '/second') and time.time() < until: time.sleep(0.05)
    ask()
";

/// Shell: makes the mount namespace that it runs in one with directories of its own, in which anything can be made.
const PRIVATE_ROOT: &str = "\
new=$(mktemp -d); mount -t tmpfs private \"$new\"; mkdir \"$new/u\" \"$new/w\" \"$new/root\"
mount -t overlay root -o \"lowerdir=/,upperdir=$new/u,workdir=$new/w\" \"$new/root\"
for dir in proc sys dev home; do mount --rbind /$dir \"$new/root/$dir\"; done
for dir in run tmp; do mount -t tmpfs -o mode=1777 $dir \"$new/root/$dir\"; done
chmod 755 \"$new/root/run\"; cd \"$new/root\"; mkdir old; PATH=\"$PATH:/usr/sbin:/sbin\" pivot_root . old; cd /; umount -l old; rmdir old
mkdir -p /run/lock /run/systemd/resolve
mkdir -p /var/snap /var/lib /nix/var/nix /mnt/wslg /private/var/run /Applications/Finch /Users/Shared
";

/// What a turn reaches of them. `there`: they listen when it starts.
fn reached(place: &Place, there: bool, options: &[&str]) -> Finished {
    let workspace = place.make("home/w");
    let at = |below: &str, name: &&str| place.at(below).join(name).display().to_string();
    let system = SYSTEM.iter().map(|&name| name.to_owned());
    let all: Vec<String> = system
        .chain(RUNTIME.iter().map(|name| at("run", name)))
        .chain(HOME.iter().map(|name| at("home", name)))
        .collect();
    // What is the caller's belongs to the caller.
    for name in RUNTIME
        .iter()
        .map(|name| Path::new("run").join(name))
        .chain(HOME.iter().map(|n| Path::new("home").join(n)))
    {
        place.make(name.parent().unwrap());
    }
    place.write("home/w/paths", all.join("\n"));
    for name in ["first", "second", "ready"] {
        let _ = fs::remove_file(workspace.join(name));
    }
    let directory = workspace.to_str().unwrap();
    let mut arguments = vec![directory, "twice"];
    arguments.extend(SPELLINGS);
    let turn = place.turn(&workspace).options(options).python(ASK, &arguments);
    let mut control = place.command("/usr/bin/python3");
    control.args(["-c", ASK, directory, "once"]).args(SPELLINGS);
    let words = |command: &std::process::Command| {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let quoted = words.map(|word| format!("'{}'", word.to_str().unwrap().replace('\'', "'\\''")));
        quoted.collect::<Vec<_>>().join(" ")
    };
    let (control, at_once) =
        (if there { words(&control) } else { "true".to_owned() }, if there { "now" } else { "" });
    let listen = LISTEN.replace('\'', "'\\''");
    let script = format!(
        "{PRIVATE_ROOT}\
         python3 -c '{listen}' '{directory}' {at_once} </dev/null >/dev/null 2>'{directory}/listen' & pid=$!\n\
         until test -e '{directory}/ready'; do kill -0 $pid; sleep 0.05; done\n\
         {control} >'{directory}/control'\n\
         set +e; \"$@\"; code=$?; kill $pid; exit $code\n"
    );
    let finished = place.finish_with_mounts(&script, &turn.to_command());
    let said = fs::read_to_string(workspace.join("listen")).unwrap_or_default();
    assert_eq!(said, "", "the sockets: {finished}");
    assert_eq!(finished.out().matches("asked").count(), 2, "both times: {finished}");
    if there {
        let control = fs::read_to_string(workspace.join("control")).unwrap();
        // Outside everything answers, but what only a sandbox has under that name.
        let answered = control.matches("ANSWERS").count();
        assert!(answered >= all.len() + 3, "the control: {control}");
    }
    finished
}

fn no_known_socket_answers(place: &Place) {
    if !Requires::Root.met() {
        return;
    }
    for there in [true, false] {
        for options in [&[][..], &["--executor", "bwrap"], &["--home", "readonly", "--network", "off"]] {
            let finished = reached(place, there, options);
            assert_eq!(finished.out().matches("ANSWERS").count(), 0, "{there} {options:?}: {finished}");
            assert!(Path::new("/usr").exists() && !Path::new("/private").exists(), "only in there");
        }
    }
}

fn a_socket_that_appears_under_a_new_name_is_soon_hidden(place: &Place) {
    let workspace = place.make("home/w");
    let elsewhere = place.make("outside/srv");
    let program = "\
import os, socket, sys, time
def ask(path):
    s = socket.socket(socket.AF_UNIX); s.settimeout(5)
    try: s.connect(path); return s.recv(5)
    except OSError: return b''
def serve(path):
    try: os.unlink(path)
    except OSError: pass
    s = socket.socket(socket.AF_UNIX); s.bind(path); s.listen()
    if os.fork() == 0:
        while True: c, _ = s.accept(); c.sendall(b'own'); c.close()
serve('own')
print('ready', flush=True); sys.stdin.readline()
until = time.time() + 10
closed = set()
while len(closed) < len(sys.argv) - 1 and time.time() < until:
    closed = {path for path in sys.argv[1:] if not ask(path)}
    time.sleep(0.05)
time.sleep(0.6)
print('closed', len(closed), any(map(ask, sys.argv[1:])), ask('own').decode(), flush=True)
serve('own'); print(ask('own').decode())
";
    for executor in ["libcontainer", "bwrap"] {
        let paths = [workspace.join("new"), elsewhere.join("new")];
        for path in &paths {
            let _ = fs::remove_file(path);
        }
        let names: Vec<&str> = paths.iter().map(|path| path.to_str().unwrap()).collect();
        let turn = place.turn(&workspace).options(["--executor", executor]);
        let mut running = turn.python(program, &names).spawn();
        running.expect("ready");
        let listeners: Vec<_> = paths.iter().map(|path| Listener::at(path)).collect();
        for path in &names {
            let control = place.command("/usr/bin/python3").args(["-c", CONNECT, path]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&control.stdout).trim(), "hello", "the control");
        }
        running.say("go");
        let outcome = running.finish();
        let out = outcome.expect_ok().out();
        assert_eq!(out, "ready\nclosed 2 False own\nown", "{outcome}");
        assert!(listeners.iter().all(|listener| listener.served() >= 1));
        let report = outcome.warnings();
        for name in &names {
            assert!(report.contains(&format!("{name} is a socket of the host that appeared")), "{outcome}");
        }
        assert!(!outcome.err().contains("appeared"), "nothing to act upon: {outcome}");
    }
}

fn explain_does_not_make_light_of_a_way_out(place: &Place) {
    let workspace = place.make("home/w");
    let explain = |subject: &str| {
        let answer = place.shim(&["explain", "--workspace", workspace.to_str().unwrap(), "--json", subject]);
        answer.expect_ok();
        answer.json()
    };
    let runtime = place.at("run/podman/podman.sock").display().to_string();
    for subject in [
        "/run/docker.sock",
        "/var/run/docker.sock",
        "~/.docker/run/docker.sock",
        &runtime,
        "/run/systemd/private",
        "/run/dbus/system_bus_socket",
        "/var/lib/incus/unix.socket",
    ] {
        let answer = explain(subject);
        assert_eq!((&answer["kind"], &answer["access"]), (&"socket".into(), &"none".into()), "{answer}");
        let remedy = answer["remedy"].as_str().unwrap();
        assert!(!remedy.contains("--read") && remedy.starts_with("--socket /"), "{answer}");
        assert!(remedy.contains("more than its own files"), "{answer}");
    }
    let service = place.make("outside/srv").join("s");
    let _listener = Listener::at(&service);
    let answer = explain(service.to_str().unwrap());
    assert_eq!((&answer["access"], &answer["rule"]), (&"none".into(), &"sockets".into()), "{answer}");
    assert_eq!(answer["remedy"], format!("--socket {}", service.display()), "{answer}");
}

each_identity! {
    no_known_socket_answers,
    explain_does_not_make_light_of_a_way_out,
    a_socket_that_appears_under_a_new_name_is_soon_hidden,
}
