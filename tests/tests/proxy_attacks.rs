//! The ways round the network proxy that a turn may try: spellings, redirects, requests inside requests, names that
//! change, clients that cost.

#![cfg(test)]

use std::fs;
use std::net::Ipv4Addr;

use codeoid_tests::{
    LISTED, Place, Requires, UNLISTED, Web, each_identity, proxy_client, rebinding_name_server,
};

fn no_spelling_of_an_address_gets_round_the_list(place: &Place) {
    let (listed, unlisted) = (Web::serving(LISTED, 0, "x"), Web::serving(UNLISTED, 0, "SECRET"));
    let port = unlisted.port();
    let hosts = [
        "127.0.0.3",
        "127.3",
        "127.0.3",
        "0x7f.0.0.3",
        "0177.0.0.3",
        "2130706435",
        "0x7f000003",
        "127.0.0.3.",
        "0.0.0.0",
        "0",
        "localhost",
        "LOCALHOST",
        "a.localhost",
        "127.0.0.2@127.0.0.3",
        "127.0.0.2%00.127.0.0.3",
        "[::ffff:127.0.0.3]",
        "[::ffff:7f00:3]",
        "[0:0:0:0:0:ffff:7f00:0003]",
        "[::127.0.0.3]",
        "[::1]",
        "[::]",
        "[64:ff9b::127.0.0.3]",
        "[2002:7f00:3::1]",
        "[::1%lo]",
        "[fe80::1%lo]",
        "127.0.0.3\u{3002}",
        "127。0。0。3",
    ];
    let program = proxy_client(
        "import struct\n\
         hosts, port = sys.argv[2:], int(sys.argv[1])\n\
         for host in hosts:\n\
         \x20   got = [connect(f'{host}:{port}')]\n\
         \x20   got.append(status(ask(f'GET http://{host}:{port}/ HTTP/1.1\\r\\nHost: 127.0.0.2\\r\\n\\r\\n'.encode())))\n\
         \x20   s = dial(); s.sendall(b'\\5\\1\\0'); s.recv(2)\n\
         \x20   name = host.strip('[]').encode()\n\
         \x20   s.sendall(b'\\5\\1\\0\\3' + bytes([len(name)]) + name + struct.pack('!H', port))\n\
         \x20   reply = s.recv(10); got.append(str(reply[1]) if len(reply) > 1 else 'closed')\n\
         \x20   print(*got, ascii(host))",
    );
    let port = port.to_string();
    let arguments: Vec<&str> = [port.as_str()].into_iter().chain(hosts).collect();
    let outcome = place.allowlist(&[&listed.address(), "*.example.org"]).python(&program, &arguments).run();
    let out = outcome.expect_ok().out();
    assert_eq!(out.lines().count(), hosts.len(), "{outcome}");
    for line in out.lines() {
        let answers: Vec<&str> = line.split(' ').take(3).collect();
        let refused = [["403", "403", "2"], ["400", "400", "8"]];
        assert!(refused.iter().any(|refused| answers == refused), "{line}: {outcome}");
    }
    assert!(unlisted.heard().is_empty(), "{outcome}");
    // The control: where the address is listed, the spelling that stands for it unmistakably is let through.
    let rule = unlisted.address();
    let program = proxy_client(&format!("print(connect('[::ffff:127.0.0.3]:{port}'), connect('{rule}'))"));
    let outcome = place.allowlist(&[&rule]).python(&program, &[]).run();
    assert_eq!(outcome.expect_ok().out(), "200 200", "{outcome}");
}

fn a_redirect_is_judged_like_every_request(place: &Place) {
    let hidden = Web::serving(UNLISTED, 0, "SECRET");
    let answer = format!(
        "HTTP/1.1 302 Found\r\nLocation: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        hidden.url()
    );
    let listed = Web::answering(LISTED, 0, answer.into_bytes());
    let script = format!("curl -sS -L -w '%{{http_code}}' {}", listed.url());
    assert!(place.sh(&place.home(), &script).out().contains("SECRET"), "the control");
    let outcome = place.allowlist(&[&listed.address()]).sh(&script).run();
    let out = outcome.expect_ok().out();
    assert!(out.ends_with("403") && !out.contains("SECRET"), "{outcome}");
    assert_eq!(hidden.heard().len(), 1, "the control's");
}

fn the_request_is_for_the_host_that_was_judged(place: &Place) {
    let listed = Web::serving(LISTED, 0, "x");
    let to = listed.address();
    let program = proxy_client(&format!(
        "for host in ['Host: evil.example', 'Host: evil.example\\r\\nHost: {to}', 'host : evil.example', 'X: y', \
         'Host: {to}\\r\\n evil.example', 'Connection: host\\r\\nHost: evil.example', \
         'Host: evil.example\\r\\nX-Forwarded-Host: kept.example']:\n\
         \x20   print(status(ask(f'GET http://{to}/path?q HTTP/1.1\\r\\n{{host}}\\r\\n\\r\\n'.encode())))"
    ));
    let outcome = place.allowlist(&[&to]).python(&program, &[]).run();
    outcome.expect_ok();
    let heard = listed.heard();
    assert!(heard.len() >= 4, "most of them arrive: {heard:?}: {outcome}");
    for request in &heard {
        assert!(request.starts_with("GET /path?q HTTP/1.1\r\n"), "{request}");
        let hosts: Vec<&str> =
            request.lines().filter(|line| line.to_lowercase().starts_with("host")).collect();
        assert_eq!(hosts.len(), 1, "{request}");
        assert!(hosts[0].ends_with(&to), "{request}");
        assert!(!request.contains("evil"), "{request}");
    }
}

fn a_request_cannot_be_smuggled_inside_another(place: &Place) {
    let (listed, unlisted) = (Web::serving(LISTED, 0, "x"), Web::serving(UNLISTED, 0, "SECRET"));
    let (to, hidden) = (listed.address(), unlisted.url());
    let inner = format!("GET {hidden}smuggled HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n");
    let program = proxy_client(&format!(
        "inner = '{inner}'\n\
         n = len(inner)\n\
         line = 'POST http://{to}/ HTTP/1.1\\r\\nHost: {to}\\r\\n'\n\
         def hexed(text): return f'{{len(text):x}}\\r\\n{{text}}\\r\\n0\\r\\n\\r\\n'\n\
         for name, head, body in [\n\
         \x20 ('cl.te', f'Content-Length: 4\\r\\nTransfer-Encoding: chunked\\r\\n', '0\\r\\n\\r\\n' + inner),\n\
         \x20 ('te.cl', f'Transfer-Encoding: chunked\\r\\nContent-Length: 4\\r\\n', hexed(inner)),\n\
         \x20 ('te.te', 'Transfer-Encoding: chunked\\r\\nTransfer-Encoding: identity\\r\\n', '0\\r\\n\\r\\n' + inner),\n\
         \x20 ('te space', 'Transfer-Encoding : chunked\\r\\n', '0\\r\\n\\r\\n' + inner),\n\
         \x20 ('te tab', 'Transfer-Encoding:\\tchunked\\r\\n', '0\\r\\n\\r\\n' + inner),\n\
         \x20 ('te odd', 'Transfer-Encoding: xchunked\\r\\n', '0\\r\\n\\r\\n' + inner),\n\
         \x20 ('cl cl', f'Content-Length: 0\\r\\nContent-Length: {{n}}\\r\\n', inner),\n\
         \x20 ('cl list', f'Content-Length: 0, {{n}}\\r\\n', inner),\n\
         \x20 ('cl plus', f'Content-Length: +{{n}}\\r\\n', inner),\n\
         \x20 ('cl hidden', f'Connection: content-length\\r\\nContent-Length: {{n}}\\r\\n', inner),\n\
         \x20 ('bare lf', f'X: a\\nContent-Length: 0\\r\\n', inner),\n\
         \x20 ('fold', f'X: a\\r\\n Content-Length: {{n}}\\r\\n', inner),\n\
         \x20 ('chunk size', 'Transfer-Encoding: chunked\\r\\n', '0;\\n\\r\\n\\r\\n' + inner),\n\
         \x20 ('upgrade', 'Connection: upgrade\\r\\nUpgrade: h2c\\r\\n', inner)]:\n\
         \x20   got = ask((line + head + '\\r\\n' + body).encode())\n\
         \x20   print(name, [line.split(b' ')[1].decode() for line in got.split(b'HTTP/1.1 ')[1:] and \
         [b'x ' + part for part in got.split(b'HTTP/1.1 ')[1:]]])"
    ));
    let outcome = place.allowlist(&[&to]).python(&program, &[]).run();
    outcome.expect_ok();
    assert!(!outcome.out().contains("SECRET"), "{outcome}");
    assert!(unlisted.heard().is_empty(), "what was inside was judged by itself, or never read: {outcome}");
    let heard = listed.heard();
    assert!(heard.len() >= 4, "the requests around it arrive: {outcome}");
    for request in heard {
        // One request, whose end is where its own head says: nothing for a second reader to find another in.
        let (head, body) = request.split_once("\r\n\r\n").unwrap_or((&request, ""));
        let fields: Vec<String> = head.lines().skip(1).map(str::to_lowercase).collect();
        let length =
            fields.iter().filter_map(|line| line.strip_prefix("content-length: ")).collect::<Vec<_>>();
        let chunked = fields.iter().any(|line| line == "transfer-encoding: chunked");
        assert!(length.len() + usize::from(chunked) <= 1, "{request}");
        match (length.first(), chunked) {
            (Some(length), _) => assert_eq!(length.parse(), Ok(body.len()), "{request}"),
            (None, true) => assert!(body.ends_with("0\r\n\r\n"), "{request}"),
            (None, false) => assert_eq!(body, "", "{request}"),
        }
        assert!(!head.contains("smuggled") && !head.to_lowercase().contains("upgrade"), "{request}");
    }
}

fn each_request_of_a_connection_is_judged(place: &Place) {
    let (listed, unlisted) = (Web::serving(LISTED, 0, "one"), Web::serving(UNLISTED, 0, "SECRET"));
    let program = proxy_client(&format!(
        "a, b = 'GET {} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n', 'GET {} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'\n\
         print(ask((a + b + a).encode()).decode().count('HTTP/1.1 200'))\n\
         print([status(ask((x).encode())) for x in (a, b)])\n\
         got = ask((a + b + a).encode()); print(got.count(b'HTTP/1.1 403'), b'SECRET' in got)",
        listed.url(),
        unlisted.url()
    ));
    let outcome = place.allowlist(&[&listed.address()]).python(&program, &[]).run();
    assert_eq!(outcome.expect_ok().out(), "2\n['200', '403']\n1 False", "{outcome}");
    assert!(unlisted.heard().is_empty());
}

fn what_is_no_request_for_a_proxy_is_refused(place: &Place) {
    let listed = Web::serving(LISTED, 0, "x");
    let to = listed.address();
    let program = proxy_client(&format!(
        "for line in ['GET / HTTP/1.1', 'GET https://{to}/ HTTP/1.1', 'GET ftp://{to}/ HTTP/1.1', \
         'GET file:///etc/passwd HTTP/1.1', 'CONNECT {to}/path HTTP/1.1', 'CONNECT http://{to} HTTP/1.1', \
         'CONNECT 127.0.0.2 HTTP/1.1', 'CONNECT 127.0.0.2:0 HTTP/1.1', 'CONNECT 127.0.0.2:99999 HTTP/1.1', \
         'CONNECT x@{to} HTTP/1.1', 'GET http://u:p@{to}/ HTTP/1.1', 'OPTIONS * HTTP/1.1', 'PRI * HTTP/2.0', \
         'nonsense', '']:\n\
         \x20   print(status(ask((line + '\\r\\nHost: {to}\\r\\n\\r\\n').encode())), repr(line))\n\
         print(status(ask(b'\\4\\1\\0\\x50\\x7f\\0\\0\\2\\0')), 'socks4')\n\
         print(status(ask(b'\\x16\\3\\1\\0\\x20' + bytes(32))), 'tls')\n\
         for command in (2, 3, 9):\n\
         \x20   s = dial(); s.sendall(b'\\5\\1\\0'); s.recv(2); s.sendall(bytes([5, command, 0, 1, 127, 0, 0, 2, 0, 80]))\n\
         \x20   print('socks', s.recv(10)[1])\n\
         s = dial(); s.sendall(b'\\5\\1\\2'); print('no login', s.recv(2)[1])"
    ));
    let outcome = place.allowlist(&[&to]).python(&program, &[]).run();
    let out = outcome.expect_ok().out();
    let words: Vec<&str> = out.lines().map(|line| line.split(' ').next().unwrap_or_default()).collect();
    assert!(words[..17].iter().all(|word| ["400", "closed"].contains(word)), "{outcome}");
    assert!(out.ends_with("socks 7\nsocks 7\nsocks 7\nno login 255"), "{outcome}");
    assert!(listed.heard().is_empty(), "{outcome}");
}

fn heads_without_end_are_refused_and_cost_nothing(place: &Place) {
    let listed = Web::serving(LISTED, 0, "x");
    let url = listed.url();
    let program = proxy_client(&format!(
        "line = b'GET {url} HTTP/1.1\\r\\nHost: x\\r\\n'\n\
         print(status(ask(line + b'X: ' + b'a' * (4 << 20) + b'\\r\\n\\r\\n')))\n\
         print(status(ask(line + b'X: a\\r\\n' * 100000 + b'\\r\\n')))\n\
         print(status(ask(b'GET {url}' + b'a' * (1 << 20) + b' HTTP/1.1\\r\\n\\r\\n')))\n\
         print(status(ask(line + b'X: ' + b'a' * 30000 + b'\\r\\n\\r\\n')))\n\
         print('done', flush=True); sys.stdin.readline()"
    ));
    let mut running = place.allowlist(&[&listed.address()]).python(&program, &[]).spawn();
    running.expect("done");
    let proxy = place.proxy();
    let status = fs::read_to_string(format!("/proc/{proxy}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim().to_owned();
    let peak: u64 = peak.trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 32 << 10, "{peak} kB");
    let outcome = running.finish();
    let out = outcome.expect_ok().out();
    let words: Vec<&str> = out.lines().collect();
    assert!(words[..3].iter().all(|word| ["431", "414", "400", "closed"].contains(word)), "{outcome}");
    assert_eq!(words[3], "200", "{outcome}");
    assert_eq!(listed.heard().len(), 1, "{outcome}");
}

fn slow_clients_hold_nobody_up(place: &Place) {
    let listed = Web::serving(LISTED, 0, "x");
    let url = listed.url();
    let program = proxy_client(&format!(
        "import time\n\
         held = [dial() for _ in range(200)]\n\
         for i, s in enumerate(held): s.sendall([b'G', b'\\5', b'GET {url} HTTP/1.1\\r\\nX', b'CONNECT'][i % 4])\n\
         idle = [dial() for _ in range(100)]\n\
         start = time.time()\n\
         print(status(ask(b'GET {url} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')), time.time() - start < 5)"
    ));
    let outcome = place.allowlist(&[&listed.address()]).python(&program, &[]).run();
    assert_eq!(outcome.expect_ok().out(), "200 True", "{outcome}");
}

fn refusals_without_end_fill_nothing(place: &Place) {
    let program = proxy_client("print(sum(connect(f'x{i}.example:80') == '403' for i in range(400)))");
    let outcome = place.allowlist(&[]).python(&program, &[]).run();
    assert_eq!(outcome.expect_ok().out(), "400", "{outcome}");
    assert_eq!(place.audited("network.refused").len(), 100);
    let report = outcome.warnings();
    assert_eq!(report.matches("was refused").count(), 100, "{outcome}");
    assert!(report.contains("further destinations were refused"), "{outcome}");
}

fn a_name_does_not_lead_to_an_address_that_is_not_listed(place: &Place) {
    if !Requires::Root.met() {
        return;
    }
    let (listed, unlisted) = (Web::serving(LISTED, 0, "fine"), Web::serving(UNLISTED, 0, "SECRET"));
    let hosts = place.write(
        "outside/hosts",
        "127.0.0.3 evil.example\n127.0.0.2 good.example a.good.example\n10.1.2.3 inner.example\n\
         169.254.169.254 metadata.example\n::ffff:127.0.0.3 mapped.example\n0.0.0.0 zero.example\n",
    );
    let mounts = format!("mount --bind {} /etc/hosts", hosts.display());
    let rule = listed.address();
    let (port, hidden) = (listed.port(), unlisted.port());
    let script = format!(
        "curl -s http://good.example:{port}/; curl -s http://a.good.example:{port}/; \
         for name in evil inner metadata mapped zero; do curl -s http://$name.example:{hidden}/; done"
    );
    let mut control = place.command("sh");
    control.args(["-c", &format!("curl -s http://evil.example:{hidden}/")]);
    let control = place.finish_with_mounts(&mounts, &control);
    assert_eq!(control.out(), "SECRET", "the control: {control}");
    let turn = place.allowlist(&["good.example", "*.good.example", &rule, "*.example"]).sh(&script);
    let report = turn.report_path();
    let outcome = place.finish_with_mounts(&mounts, &turn.to_command());
    let out = outcome.out();
    assert!(out.starts_with("finefine"), "{outcome}");
    for words in [
        "it leads to 127.0.0.3, a loopback address",
        "it leads to 10.1.2.3, a private address",
        "it leads to 169.254.169.254, a link-local address",
        "it leads to 0.0.0.0, an unspecified address",
    ] {
        assert!(out.contains(words), "{words}: {outcome}");
    }
    assert!(out.contains(&format!("--allow 127.0.0.3:{hidden}")), "{outcome}");
    assert!(!out.contains("SECRET") && unlisted.heard().len() == 1, "{outcome}");
    let report = fs::read_to_string(report).unwrap();
    assert!(report.contains("inner.example") && report.contains("metadata.example"), "{report}");
}

fn a_name_that_changes_its_address_is_judged_each_time(place: &Place) {
    if !Requires::Root.met() {
        return;
    }
    let at = Ipv4Addr::new(127, 53, place.identity().uid().as_raw() as u8, std::process::id() as u8);
    if !rebinding_name_server(at, &[LISTED, UNLISTED]) {
        Requires::skip("port 53 of a loopback address cannot be had");
        return;
    }
    let listed = Web::serving(LISTED, 0, "fine");
    let unlisted = Web::serving(UNLISTED, listed.port(), "SECRET");
    let resolver = place.write("outside/resolv.conf", format!("nameserver {at}\n"));
    let mounts = format!("mount --bind {} $(readlink -f /etc/resolv.conf)", resolver.display());
    let url = format!("http://rebind.example:{}/", listed.port());
    let script = format!("for i in 1 2 3 4 5 6 7 8 9 10; do curl -s {url} | head -1; done; true");
    let mut control = place.command("sh");
    control.args(["-c", &script]);
    let control = place.finish_with_mounts(&mounts, &control);
    assert!(control.out().contains("SECRET") && control.out().contains("fine"), "the control: {control}");
    let before = unlisted.heard().len();
    let turn = place.allowlist(&["rebind.example", &listed.address()]).sh(&script);
    let outcome = place.finish_with_mounts(&mounts, &turn.to_command());
    let out = outcome.out();
    assert!(out.contains("fine") && out.contains("it leads to 127.0.0.3"), "{outcome}");
    assert!(!out.contains("SECRET") && unlisted.heard().len() == before, "{outcome}");
}

each_identity! {
    no_spelling_of_an_address_gets_round_the_list,
    a_redirect_is_judged_like_every_request,
    the_request_is_for_the_host_that_was_judged,
    a_request_cannot_be_smuggled_inside_another,
    each_request_of_a_connection_is_judged,
    what_is_no_request_for_a_proxy_is_refused,
    heads_without_end_are_refused_and_cost_nothing,
    slow_clients_hold_nobody_up,
    refusals_without_end_fill_nothing,
    a_name_does_not_lead_to_an_address_that_is_not_listed,
    a_name_that_changes_its_address_is_judged_each_time,
}
