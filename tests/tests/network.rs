//! The network of a turn with `allowlist`: what its proxy lets through, and how long it lives. The ways round it that a
//! turn may try are in proxy_attacks.rs.

#![cfg(test)]

use std::time::{Duration, Instant};

use codeoid_tests::{
    LISTED, Place, Requires, UNLISTED, Web, each_identity, is_alive, proxy_client, returning, wait_until,
};
use nix::sys::signal::{Signal, kill};

/// Asks for a URL in each way that there is: a plain request, CONNECT, SOCKS5.
fn ways(url: &str) -> String {
    format!(
        "for how in '' -p '--socks5-hostname 127.0.0.1:61080'; do \
         curl -sS -m 20 -o answer -w '%{{http_code}}/%{{http_connect}} ' $how {url} 2>error; \
         grep -qs SECRET answer && echo SECRET; grep -o 'response 403\\|(2)' error; rm -f answer error; done; echo"
    )
}

fn what_is_listed_answers_and_nothing_else(place: &Place) {
    let (listed, unlisted) =
        (Web::serving(LISTED, 0, "SECRET of the listed"), Web::serving(UNLISTED, 0, "SECRET of another"));
    // The control: outside, both answer.
    let outside = place.sh(&place.home(), &format!("curl -s {} {}", listed.url(), unlisted.url()));
    assert_eq!(outside.out().matches("SECRET").count(), 2, "{outside}");
    let script = format!("{}\n{}", ways(&listed.url()), ways(&unlisted.url()));
    let outcome = place.allowlist(&[&listed.address()]).sh(&script).run();
    let expected =
        "200/000 SECRET\n200/200 SECRET\n200/000 SECRET\n\n403/000 000/403 response 403\n000/000 (2)";
    assert_eq!(outcome.expect_ok().out(), expected, "{outcome}");
    assert_eq!(unlisted.heard().len(), 1, "the control's");
    let to = unlisted.address();
    assert!(
        outcome.warnings().contains(&format!("{to} was refused: it is not listed; `--allow {to}`")),
        "{outcome}"
    );
    let refused = place.audited("network.refused");
    assert_eq!(refused.len(), 1, "one destination, however often: {refused:?}");
    assert_eq!(refused[0]["detail"]["destination"], to.as_str());
    assert_eq!(refused[0]["detail"]["allow"], to.as_str());
    assert_eq!(refused[0]["turn"], outcome.report()["turn"]);
}

fn a_refusal_says_what_to_add(place: &Place) {
    let outcome = place.allowlist(&[]).sh("curl -sSi http://example.org/x").run();
    let out = outcome.expect_ok().out();
    for words in ["HTTP/1.1 403 Forbidden", "proxy-status: codeoid-shim; error=http_request_denied"] {
        assert!(out.contains(words), "{outcome}");
    }
    assert!(out.contains("example.org:80 is out of this sandbox's reach: it is not listed"), "{outcome}");
    assert!(out.contains("hint: ") && out.contains("--allow example.org:80"), "{outcome}");
}

fn the_variables_stand_in_both_cases(place: &Place) {
    let script = "env | grep -i _proxy= | sort";
    let turn = place.allowlist(&[]).env("HTTPS_PROXY", "http://elsewhere:1").env("no_proxy", "*");
    let outcome = turn.sh(script).run();
    let mut expected = Vec::new();
    for name in ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"] {
        let value = if name == "NO_PROXY" { "localhost,127.0.0.1,::1" } else { "http://127.0.0.1:61080" };
        expected.extend([format!("{name}={value}"), format!("{}={value}", name.to_lowercase())]);
    }
    let mut lines: Vec<String> = outcome.expect_ok().out().lines().map(str::to_owned).collect();
    lines.sort();
    expected.sort();
    assert_eq!(lines, expected, "{outcome}");
}

fn there_is_no_way_but_the_proxy(place: &Place) {
    let listed = Web::serving(LISTED, 0, "SECRET");
    let url = listed.url();
    let script = format!(
        "curl -sS -m 5 --noproxy '*' {url} 2>&1; curl -sS -m 5 --noproxy '*' http://192.0.2.1/ 2>&1; \
         ls /sys/class/net | tr '\\n' ' '; ip link add x type dummy 2>/dev/null && echo MADE; true"
    );
    let outcome = place.allowlist(&[&listed.address()]).sh(&script).run();
    let out = outcome.expect_ok().out();
    assert!(!out.contains("SECRET") && !out.contains("MADE"), "{outcome}");
    assert_eq!(out.matches("curl: (7)").count(), 2, "at once: {outcome}");
    // The turn's own servers answer, past the proxy.
    let program = "import http.server, threading, urllib.request\n\
         s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\n\
         threading.Thread(target=s.serve_forever, daemon=True).start()\n\
         print(urllib.request.urlopen(f'http://127.0.0.1:{s.server_port}/', timeout=5).status)";
    let outcome = place.allowlist(&[]).python(program, &[]).run();
    assert_eq!(outcome.expect_ok().out(), "200", "{outcome}");
}

fn ports_are_part_of_a_rule(place: &Place) {
    let (one, other) = (Web::serving(LISTED, 0, "one"), Web::serving(LISTED, 0, "other"));
    let program =
        proxy_client(&format!("print(connect('{}'), connect('{}'))", one.address(), other.address()));
    for (rule, expected) in [
        (one.address(), "200 403"),
        (LISTED.to_string(), "200 200"),
        ("127.0.0.0/30".to_owned(), "200 200"),
        (format!("127.0.0.0/8:{}", other.port()), "403 200"),
        ("10.0.0.0/8".to_owned(), "403 403"),
    ] {
        let outcome = place.allowlist(&[&rule]).python(&program, &[]).run();
        assert_eq!(outcome.expect_ok().out(), expected, "{rule}: {outcome}");
    }
}

fn a_half_closed_connection_carries_the_rest(place: &Place) {
    let echo = returning(LISTED);
    let program = proxy_client(&format!(
        "import hashlib, struct, threading\n\
         data = os.urandom(1 << 20) * 24\n\
         want = hashlib.sha256(data).hexdigest()\n\
         def through(s):\n\
         \x20   def push(): s.sendall(data); s.shutdown(socket.SHUT_WR)\n\
         \x20   t = threading.Thread(target=push); t.start(); got = drain(s); t.join()\n\
         \x20   return hashlib.sha256(got).hexdigest() == want\n\
         s = dial(); s.sendall(b'CONNECT {echo} HTTP/1.1\\r\\n\\r\\n'); head = s.recv(4096)\n\
         print(status(head), head.endswith(b'\\r\\n\\r\\n'), through(s))\n\
         s = dial(); s.sendall(b'\\5\\1\\0'); s.recv(2)\n\
         s.sendall(b'\\5\\1\\0\\1' + bytes([127, 0, 0, 2]) + struct.pack('!H', {}))\n\
         print(s.recv(10)[1], through(s))\n\
         s = dial(); s.sendall(b'CONNECT {echo} HTTP/1.1\\r\\n\\r\\nsent at once'); s.shutdown(socket.SHUT_WR)\n\
         print(drain(s).split(b'\\r\\n\\r\\n')[1].decode())",
        echo.port()
    ));
    let outcome = place.allowlist(&[&echo.to_string()]).python(&program, &[]).run();
    assert_eq!(outcome.expect_ok().out(), "200 True True\n0 True\nsent at once", "{outcome}");
}

fn bodies_of_any_size_are_carried(place: &Place) {
    let program = "\
import hashlib, http.client, http.server, socketserver, threading
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_POST(self):
        digest, length = hashlib.sha256(), self.headers['Content-Length']
        if length: digest.update(self.rfile.read(int(length)))
        else:
            while size := int(self.rfile.readline(), 16): digest.update(self.rfile.read(size)); self.rfile.readline()
            self.rfile.readline()
        self.send_response(200); self.send_header('Transfer-Encoding', 'chunked'); self.end_headers()
        text = digest.hexdigest().encode()
        for _ in range(200000 // 64): self.wfile.write(b'40\\r\\n' + text + b'\\r\\n')
        self.wfile.write(b'0\\r\\n\\r\\n')
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(('127.0.0.2', 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
";
    let mut server = place.command("/usr/bin/python3");
    let mut server = server.args(["-c", program]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(server.stdout.take().unwrap()), &mut port)
        .unwrap();
    let url = format!("http://127.0.0.2:{}/", port.trim());
    let script = format!(
        "head -c 30000000 /dev/urandom >body; sha256sum <body | cut -c1-64 >want; \
         curl -sS -m 60 --data-binary @body {url} >one; curl -sS -m 60 -T - -X POST {url} <body >two; \
         curl -sS -m 60 -p --data-binary @body {url} >three; \
         for answer in one two three; do wc -c <$answer; fold -w 64 $answer | sort -u | diff - want && echo same; done"
    );
    let outcome = place.allowlist(&["127.0.0.2"]).sh(&script).run();
    let _ = server.kill();
    let _ = server.wait();
    assert_eq!(outcome.expect_ok().out(), "200000\nsame\n200000\nsame\n200000\nsame", "{outcome}");
}

fn a_server_that_does_not_answer_is_told_apart(place: &Place) {
    let closed = Web::serving(LISTED, 0, "x").port() ^ 1;
    let program = proxy_client(&format!(
        "import struct\n\
         print(connect('127.0.0.2:{closed}'))\n\
         s = dial(); s.sendall(b'\\5\\1\\0'); s.recv(2); s.sendall(b'\\5\\1\\0\\1\\x7f\\0\\0\\2' + \
         struct.pack('!H', {closed})); print(s.recv(10)[1])\n\
         print(connect('no-such-name.invalid:80'))"
    ));
    let outcome = place.allowlist(&["127.0.0.2", "*.invalid"]).python(&program, &[]).run();
    let out = outcome.expect_ok().out();
    assert!(out.starts_with("502\n5\n502"), "{outcome}");
    assert!(!outcome.warnings().contains("was refused"), "{outcome}");
}

fn the_proxy_ends_with_the_turn_and_with_the_shim(place: &Place) {
    for by_force in [false, true] {
        let mut running = place.allowlist(&[]).sh("echo ready; read go").spawn();
        running.expect("ready");
        let proxy = place.proxy();
        assert!(is_alive(proxy));
        if by_force {
            kill(running.pid(), Signal::SIGKILL).unwrap();
        } else {
            running.say("go");
        }
        let _ = running.finish();
        assert!(wait_until(Duration::from_secs(5), || !is_alive(proxy)), "killed: {by_force}");
    }
}

fn without_its_proxy_a_turn_has_no_network(place: &Place) {
    let listed = Web::serving(LISTED, 0, "SECRET");
    let script = format!("echo ready; read go; curl -sS -m 5 {} || echo refused", listed.url());
    let mut running = place.allowlist(&[&listed.address()]).sh(&script).spawn();
    running.expect("ready");
    kill(place.proxy(), Signal::SIGKILL).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    running.say("go");
    let outcome = running.finish();
    assert_eq!(outcome.expect_ok().out(), "ready\nrefused", "{outcome}");
    assert!(outcome.warnings().contains("the network proxy ended"), "{outcome}");
}

fn the_turn_sees_nothing_of_the_proxy_but_its_socket(place: &Place) {
    let script = "cat /proc/[0-9]*/comm | sort -u | tr '\\n' ' '; echo; grep -c 0100007F:EE98 /proc/net/tcp; \
         ls /proc/self/fd";
    let outcome = place.allowlist(&[]).sh(script).run();
    let out = outcome.expect_ok().out();
    let (names, rest) = out.split_once('\n').unwrap();
    assert!(names.contains("codeoid-init") && !names.contains("proxy"), "{outcome}");
    assert_eq!(rest, "1\n0\n1\n2\n3", "it listens, and no descriptor of it is here: {outcome}");
}

fn turns_of_one_session_have_their_own_lists(place: &Place) {
    let (one, other) = (Web::serving(LISTED, 0, "one"), Web::serving(UNLISTED, 0, "other"));
    let script = format!("echo ready; read go; curl -s {}; curl -s {}", one.url(), other.url());
    let mut first = place.allowlist(&[&one.address()]).sh(&script).spawn();
    first.expect("ready");
    let mut second = place.allowlist(&[&other.address()]).sh(&script).spawn();
    second.expect("ready");
    first.say("go");
    second.say("go");
    let (first, second) = (first.finish(), second.finish());
    assert!(first.out().starts_with("ready\none") && !first.out().contains("other\n"), "{first}");
    assert!(second.out().ends_with("other") && second.out().contains(&one.address()), "{second}");
    assert_eq!((one.heard().len(), other.heard().len()), (1, 1));
}

fn a_written_bundle_has_its_proxy(place: &Place) {
    let (listed, unlisted) = (Web::serving(LISTED, 0, "one"), Web::serving(UNLISTED, 0, "SECRET"));
    let workspace = place.make("home/w");
    let bundle = place.at("outside/bundle");
    let script = format!("curl -s {}; curl -s {} | tail -1", listed.url(), unlisted.url());
    let workspace = workspace.to_str().unwrap();
    let output = bundle.to_str().unwrap();
    let address = listed.address();
    place
        .shim(&[
            "bundle",
            "--session",
            "b",
            "--workspace",
            workspace,
            "--network",
            "allowlist",
            "--allow",
            &address,
            "--output",
            output,
            "--",
            "sh",
            "-c",
            &script,
        ])
        .expect_ok();
    let run = place.shim(&["run", "--bundle", output, "b1"]);
    assert!(run.out().starts_with("one") && run.out().contains(&unlisted.address()), "{run}");
    assert_eq!(place.audited("network.refused").len(), 1);
    assert!(unlisted.heard().is_empty());
}

fn names_fail_fast_where_the_network_is_closed(place: &Place) {
    let workspace = place.make("home/w");
    for mode in ["off", "allowlist"] {
        let started = Instant::now();
        let outcome = place
            .turn(&workspace)
            .options(["--network", mode])
            .sh("getent hosts example.org; getent ahosts example.org; true")
            .run();
        assert_eq!(outcome.expect_ok().out(), "", "{outcome}");
        assert!(started.elapsed() < Duration::from_secs(3), "{mode}: {:?}", started.elapsed());
    }
}

fn names_fail_fast_whoever_the_name_server_is(place: &Place) {
    if !Requires::Root.met() {
        return;
    }
    for servers in ["127.0.0.53", "127.0.0.1", "192.0.2.1\nnameserver 192.0.2.2", "2001:db8::53", "::1"] {
        let text = format!("nameserver {servers}\noptions timeout:20 attempts:5\n");
        let resolver = place.write("outside/resolv.conf", text);
        let mounts = format!("mount --bind {} $(readlink -f /etc/resolv.conf)", resolver.display());
        for mode in ["off", "allowlist"] {
            let turn = place.turn(place.make("home/w")).options(["--network", mode]);
            let started = Instant::now();
            let turn = turn.sh("getent hosts example.org; getent ahosts example.org; true");
            let outcome = place.finish_with_mounts(&mounts, &turn.to_command());
            assert!(outcome.ok() && outcome.out().is_empty(), "{servers} {mode}: {outcome}");
            assert!(started.elapsed() < Duration::from_secs(10), "{servers} {mode}: {:?}", started.elapsed());
        }
    }
}

fn explain_knows_destinations(place: &Place) {
    let explain = |to: &str| {
        let workspace = place.make("home/w").display().to_string();
        let answer = place.shim(&[
            "explain",
            "--workspace",
            &workspace,
            "--network",
            "allowlist",
            "--allow",
            "*.pkg.dev:443",
            "--allow",
            "10.0.0.0/8",
            "--json",
            to,
        ]);
        answer.expect_ok();
        answer.json()
    };
    for (to, access, rule) in [
        ("a.pkg.dev:443", "connect", "network.allow"),
        ("A.PKG.dev.:443", "connect", "network.allow"),
        ("10.9.8.7:1", "connect", "network.allow"),
        ("[::ffff:10.9.8.7]:1", "connect", "network.allow"),
        ("a.pkg.dev:80", "none", "network"),
        ("pkg.dev:443", "none", "network"),
        ("11.0.0.1:1", "none", "network"),
    ] {
        let answer = explain(to);
        assert_eq!((&answer["access"], &answer["rule"]), (&access.into(), &rule.into()), "{to}: {answer}");
        assert_eq!(answer["remedy"].is_null(), access == "connect", "{to}: {answer}");
    }
    assert_eq!(explain("pkg.dev:443")["remedy"], "--allow pkg.dev:443");
}

fn only_the_owner_adds_to_the_owners_list(place: &Place) {
    let web = Web::serving(LISTED, 0, "reached");
    let workspace = place.make("home/w");
    let text = format!(
        "{{\"sandbox\": {{\"network\": {{\"mode\": \"allowlist\", \"allow\": [\"{}\"]}}}}}}",
        web.address()
    );
    place.write("home/.codeoid/config.json", text);
    let script = format!("curl -s {}", web.url());
    let outcome = place.turn(&workspace).sh(&script).run();
    assert_eq!(outcome.expect_ok().out(), "reached", "{outcome}");
    let more = ["--allow", "evil.example"];
    let words = ["evil.example", "--confirm-widening"];
    place.turn(&workspace).options(more).sh(&script).run().expect_refusal(&words);
    place
        .turn(&workspace)
        .env("CODEOID_SANDBOX_ALLOW", "evil.example")
        .sh(&script)
        .run()
        .expect_refusal(&words);
    place.turn(&workspace).options(more).options(["--confirm-widening"]).sh(&script).run().expect_ok();
    // Less is everybody's.
    let outcome = place.turn(&workspace).options(["--allow="]).sh(&script).run();
    assert!(outcome.expect_ok().out().contains("it is not listed"), "{outcome}");
    assert_eq!(place.audited("session.sandbox_widened").len(), 1);
}

each_identity! {
    what_is_listed_answers_and_nothing_else,
    a_refusal_says_what_to_add,
    the_variables_stand_in_both_cases,
    there_is_no_way_but_the_proxy,
    ports_are_part_of_a_rule,
    a_half_closed_connection_carries_the_rest,
    bodies_of_any_size_are_carried,
    a_server_that_does_not_answer_is_told_apart,
    the_proxy_ends_with_the_turn_and_with_the_shim,
    without_its_proxy_a_turn_has_no_network,
    the_turn_sees_nothing_of_the_proxy_but_its_socket,
    turns_of_one_session_have_their_own_lists,
    a_written_bundle_has_its_proxy,
    names_fail_fast_where_the_network_is_closed,
    names_fail_fast_whoever_the_name_server_is,
    explain_knows_destinations,
    only_the_owner_adds_to_the_owners_list,
}
