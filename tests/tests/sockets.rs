//! Sockets that lead out of a sandbox: a real one listens at each place that is known, in a private copy of the system's
//! directories, and none of them answers a turn: not those that are there when it starts, not those that a daemon
//! makes anew meanwhile, not those that appear.

#![cfg(test)]

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

use codeoid_tests::{CONNECT, Finished, Identity, Listener, Place, Requires, each_identity, wait_until};

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

/// Python: connects to the first path, tries to take it away in every way, and connects again; then to each of the
/// others. Prints what answers, or the error's name.
const TAKE: &str = "\
import errno, os, socket, sys
def ask(path):
    s = socket.socket(socket.AF_UNIX); s.settimeout(5)
    try: s.connect(path); return s.recv(5).decode()
    except OSError as e: return errno.errorcode[e.errno]
path = sys.argv[1]
got = [ask(path)]
def rename_above():
    above = os.path.dirname(path)
    while above != '/':
        try: os.rename(above, above + '.away'); os.mkdir(above)
        except OSError: pass
        above = os.path.dirname(above)
def replace():
    s = socket.socket(socket.AF_UNIX); s.bind(path + '.mine'); s.listen(); os.rename(path + '.mine', path)
for take in [lambda: os.unlink(path), lambda: os.rename(path, path + '.away'), rename_above, replace,
             lambda: os.chmod(path, 0), lambda: open(path, 'w'), lambda: os.symlink('/nowhere', path)]:
    try: take()
    except OSError: pass
got.append(ask(path))
print(*got, *map(ask, sys.argv[2:]))
";

fn a_listed_socket_answers_and_no_other(place: &Place) {
    let workspace = place.make("home/w");
    for directory in ["home/svc", "home/w/sub/deep", "outside/srv", "run/pg/deep"] {
        place.make(directory);
    }
    let names = ["home/svc", "home/w/sub/deep", "outside/srv", "run", "run/pg/deep"];
    let _all: Vec<Listener> = names
        .iter()
        .flat_map(|name| ["listed", "beside"].map(|end| Listener::at(&place.at(name).join(end))))
        .collect();
    let network_off: &[&str] = &["--network", "off"];
    for (executor, more) in [("libcontainer", &[][..]), ("bwrap", network_off)] {
        for name in names {
            let (listed, beside) = (place.at(name).join("listed"), place.at(name).join("beside"));
            let (listed, beside) = (listed.to_str().unwrap(), beside.to_str().unwrap());
            let options = ["--executor", executor, "--socket", listed];
            let turn = || place.turn(&workspace).options(options).options(more);
            let outcome = turn().options(["--confirm-widening"]).python(TAKE, &[listed, beside]).run();
            let out = outcome.expect_ok().out();
            let dead = ["ECONNREFUSED", "ENOENT", "EACCES"].map(|error| format!("hello hello {error}"));
            assert!(dead.contains(&out), "{outcome}");
            assert!(
                Path::new(listed).exists() && Path::new(beside).exists(),
                "{name}: on the host nothing changed"
            );
            // It is the owner's to say.
            turn().sh("true").run().expect_refusal(&["widen", listed]);
        }
    }
    let listed = place.at("outside/srv/listed");
    place.write("home/.codeoid/config.json", format!("{{\"sandbox\": {{\"sockets\": [{listed:?}]}}}}"));
    let outcome = place.turn(&workspace).python(TAKE, &[listed.to_str().unwrap()]).run();
    assert_eq!(outcome.expect_ok().out(), "hello hello", "{outcome}");
    assert!(outcome.warnings().contains("outside/srv/listed is shown"), "{outcome}");
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

fn what_is_listed_as_a_socket_has_to_be_one(place: &Place) {
    let workspace = place.make("home/w");
    let listener = place.make("outside/srv").join("real");
    let _listener = Listener::at(&listener);
    place
        .sh(&place.at("outside/srv"), "mkfifo fifo; echo x >file; ln -s real link; ln -s /dev/null null")
        .expect_ok();
    let confirmed = ["--confirm-widening", "--socket"];
    for (name, words) in [
        ("missing", "does not exist"),
        ("fifo", "not a socket"),
        ("file", "not a socket"),
        ("null", "not a socket"),
        ("", "not a socket"),
    ] {
        let path = place.at("outside/srv").join(name);
        place
            .turn(&workspace)
            .options(confirmed)
            .options([path])
            .sh("true")
            .run()
            .expect_refusal(&["sockets", words]);
    }
    // What a link leads to is opened, by either name.
    let link = place.at("outside/srv/link");
    let arguments = [listener.to_str().unwrap(), link.to_str().unwrap()];
    let outcome = place.turn(&workspace).options(confirmed).options([&link]).python(TAKE, &arguments).run();
    assert_eq!(outcome.expect_ok().out(), "hello hello hello", "{outcome}");
    // `hide` wins.
    let hide = ["--hide", place.at("outside/srv").to_str().unwrap()].map(str::to_owned);
    let turn = place.turn(&workspace).options(confirmed).options([&listener]).options(hide);
    turn.sh("true").run().expect_refusal(&["sockets", "hides"]);
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

/// A server of the test's own, ended with it.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // At once, and with its shared memory taken away (postgres(1)).
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.0.id()).expect("a pid"));
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGQUIT);
        let _ = self.0.wait();
    }
}

/// Not as root, as whom PostgreSQL does not run.
#[test]
fn a_real_database_answers_where_it_is_listed() {
    let Some(place) = Place::for_test(Identity::Ordinary, "database") else { return };
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let Some(programs) =
        installed.map(|entry| entry.path().join("bin")).find(|bin| bin.join("postgres").exists())
    else {
        return Requires::skip("no PostgreSQL is installed below /usr/lib/postgresql");
    };
    let (data, sockets) = (place.at("outside/data"), place.make("outside/db"));
    let mut initdb = place.command(programs.join("initdb"));
    initdb.args(["--no-sync", "--auth", "peer", "--encoding", "UTF8", "--no-locale", "-D"]).arg(&data);
    place.finish(initdb).expect_ok();
    let mut server = place.command(programs.join("postgres"));
    server.arg("-D").arg(&data).args(["-c", "listen_addresses=", "-c", "fsync=off", "-c"]);
    server.arg(format!("unix_socket_directories={}", sockets.display()));
    let _server = Server(server.stderr(Stdio::null()).spawn().unwrap());
    let socket = sockets.join(".s.PGSQL.5432");
    let ask = format!("/usr/bin/psql -h {} -d postgres -Atc 'select current_user' 2>&1", sockets.display());
    // Who connects is asked of the kernel (peer authentication): it is the caller, inside and outside.
    let name = place.identity().name();
    let answers = || place.sh(&place.home(), &ask).out().trim() == name;
    assert!(wait_until(std::time::Duration::from_secs(20), answers), "the control");
    for options in [&["--network", "off"][..], &["--network", "allowlist"], &[], &["--executor", "bwrap"]] {
        let turn = || place.turn(place.make("home/w")).options(options).sh(&ask);
        let outcome = turn().run();
        assert!(outcome.code() != 0 && outcome.out().contains("failed"), "{options:?}: {outcome}");
        let outcome = turn().options(["--confirm-widening", "--socket", socket.to_str().unwrap()]).run();
        assert_eq!(outcome.expect_ok().out(), name, "{options:?}: {outcome}");
    }
}

each_identity! {
    no_known_socket_answers,
    a_listed_socket_answers_and_no_other,
    explain_does_not_make_light_of_a_way_out,
    what_is_listed_as_a_socket_has_to_be_one,
    a_socket_that_appears_under_a_new_name_is_soon_hidden,
}
