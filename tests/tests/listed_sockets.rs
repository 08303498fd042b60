//! `--socket`: exactly the one that is listed answers, and a turn can neither remove nor replace it.

#![cfg(test)]

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

use codeoid_tests::{Identity, Listener, Place, Requires, each_identity, wait_until};

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
    a_listed_socket_answers_and_no_other,
    what_is_listed_as_a_socket_has_to_be_one,
}
