//! The configuration file: what is refused, and where the message points.

use super::*;
use crate::policy::Network;

fn parse(text: &str) -> Result<Layer, Error> {
    Layer::from_file(Path::new("/c.json"), text)
}

#[track_caller]
fn refused(text: &str) -> String {
    parse(text).expect_err("it is faulty").to_string()
}

#[test]
fn a_value_knows_its_line() {
    let layer =
        parse("{\n \"sandbox\": {\n  \"network\": {\"mode\": \"off\"},\n  \"hide\": [\n   \"~/a\"]}}")
            .unwrap();
    let network = layer.network.unwrap();
    assert_eq!(network.value, Network::Off);
    assert_eq!(network.origin, Origin::file("/c.json", 3, "sandbox.network.mode"));
    assert_eq!(layer.hide.values[0].origin, Origin::file("/c.json", 5, "sandbox.hide[0]"));
}

#[test]
fn other_programs_keys_are_ignored() {
    let layer = parse(r#"{"model": {"a": 1, "a": 2}, "$schema": "x", "theme": null}"#).unwrap();
    assert_eq!(Layer { config: None, ..layer }, Layer::default());
}

#[test]
fn a_section_that_would_do_nothing_is_refused() {
    for text in [r#"{"Sandbox": {}}"#, r#"{"sandbx": {}}"#, r#"{"sandbox.network": {}}"#] {
        let error = parse(text).unwrap_err();
        assert_eq!(error.hint().as_deref(), Some("did you mean sandbox?"), "{text}");
    }
}

#[test]
fn unknown_keys_name_the_known_ones_and_the_nearest() {
    let error = parse("{\"sandbox\": {\n  \"network\": {\"mdoe\": \"off\"}}}").unwrap_err();
    assert_eq!(
        error.to_string(),
        "/c.json:2:15: sandbox.network.mdoe: there is no such key; allowed are mode, allow"
    );
    assert_eq!(error.hint().as_deref(), Some("did you mean sandbox.network.mode?"));
    for (name, meant) in [
        ("memory", "limits.memory"),
        ("worktree_roots", "worktreeRoots"),
        ("network.mode", "network.mode"),
        ("git-protection", "git.protection"),
        ("docker-socket", "docker.socket"),
    ] {
        let error = parse(&format!(r#"{{"sandbox": {{"{name}": 1}}}}"#)).unwrap_err();
        assert_eq!(error.hint(), Some(format!("did you mean sandbox.{meant}?")), "{name}");
    }
    assert_eq!(parse(r#"{"sandbox": {"colour": 1}}"#).unwrap_err().hint(), None);
}

#[test]
fn a_repeated_key_is_refused_however_it_is_written() {
    assert_eq!(
        refused("{\"sandbox\": {\"home\": \"hidden\",\n\"h\\u006fme\": \"overlay\"}}"),
        "/c.json:2:1: sandbox.home: this key stands a second time; the first is in line 1"
    );
    assert!(refused(r#"{"sandbox": {}, "sandbox": {}}"#).contains("second time"));
    assert!(refused(r#"{"sandbox": {"env": {"set": {"A": "1", "A": "2"}}}}"#).contains("second time"));
    assert!(refused(r#"{"sandbox": {"network": {}, "network": {}}}"#).contains("second time"));
}

#[test]
fn wrong_types_say_what_is_allowed() {
    for (text, message) in [
        (r#"[1]"#, "/c.json:1:1: the file: this is an array; allowed is an object, {\"sandbox\": {…}}"),
        (
            r#"{"sandbox": null}"#,
            "/c.json:1:13: sandbox: this is null; allowed is an object with executor, network, sockets, docker, worktreeRoots, git, home, read, write, hide, env, limits, fallback",
        ),
        (
            r#"{"sandbox": {"network": "off"}}"#,
            "/c.json:1:25: sandbox.network: this is a string; allowed is an object with mode, allow",
        ),
        (
            r#"{"sandbox": {"home": true}}"#,
            r#"/c.json:1:22: sandbox.home: this is true or false; allowed is one of "overlay", "readonly", "hidden""#,
        ),
        (
            r#"{"sandbox": {"hide": "/a"}}"#,
            "/c.json:1:22: sandbox.hide: this is a string; allowed is an array of strings, absolute paths",
        ),
        (
            r#"{"sandbox": {"hide": ["/a", 1]}}"#,
            "/c.json:1:29: sandbox.hide[1]: this is a number; allowed is a string",
        ),
        (
            r#"{"sandbox": {"limits": {"pids": "5"}}}"#,
            "/c.json:1:33: sandbox.limits.pids: this is a string; allowed is a whole number",
        ),
        (
            r#"{"sandbox": {"limits": {"timeout": 90}}}"#,
            r#"/c.json:1:36: sandbox.limits.timeout: this is a number; allowed is a string such as "90s", "5m" or "1h30m""#,
        ),
        (
            r#"{"sandbox": {"env": {"set": ["A=1"]}}}"#,
            r#"/c.json:1:29: sandbox.env.set: this is an array; allowed is an object, {"NAME": "value"}"#,
        ),
        (
            r#"{"sandbox": {"env": {"set": {"A": 1}}}}"#,
            "/c.json:1:35: sandbox.env.set.A: this is a number; allowed is a string",
        ),
        (
            r#"{"sandbox": {"docker": {"socket": null}}}"#,
            r#"/c.json:1:35: sandbox.docker.socket: this is null; allowed is true, false or one of "off", "raw", "brokered""#,
        ),
    ] {
        assert_eq!(refused(text), message);
    }
}

#[test]
fn bad_values_say_what_is_allowed() {
    for (text, part) in [
        (
            r#"{"sandbox": {"network": {"mode": "none"}}}"#,
            r#":1:34: sandbox.network.mode: "none" is not one of host, off, allowlist"#,
        ),
        (r#"{"sandbox": {"limits": {"memory": "lots"}}}"#, r#"sandbox.limits.memory: "lots" is not a size"#),
        (r#"{"sandbox": {"limits": {"memory": 0.5}}}"#, r#"sandbox.limits.memory: "0.5" is not a size"#),
        (r#"{"sandbox": {"limits": {"pids": 1.5}}}"#, "sandbox.limits.pids"),
        (r#"{"sandbox": {"limits": {"cpus": 1e999}}}"#, "sandbox.limits.cpus"),
        (
            r#"{"sandbox": {"read": ["a/b"]}}"#,
            r#"sandbox.read[0]: "a/b" is relative; allowed is an absolute path"#,
        ),
        (r#"{"sandbox": {"read": ["~other/b"]}}"#, "named user"),
        (r#"{"sandbox": {"read": [""]}}"#, "the value is empty"),
        (r#"{"sandbox": {"network": {"allow": [""]}}}"#, "the value is empty"),
        (r#"{"sandbox": {"hide": ["/a\u0000b"]}}"#, "NUL"),
        (r#"{"sandbox": {"env": {"set": {"A B": "x"}}}}"#, r#"sandbox.env.set."A B": "A B" is not the name"#),
        (
            r#"{"sandbox": {"fallback": {"home": "stronger"}}}"#,
            r#"sandbox.fallback.home: "stronger" is not one of weaker"#,
        ),
        (r#"{"sandbox": {"fallback": {"No Rule": "weaker"}}}"#, "not the name of a rule"),
    ] {
        let message = refused(text);
        assert!(message.contains(part), "{message}\nlacks\n{part}");
    }
}

#[test]
fn what_is_not_json_is_refused_with_its_position() {
    for (text, message) in [
        ("", "/c.json: the file is empty"),
        (" \n\t", "/c.json: the file is empty"),
        ("{", "/c.json:1:1: not JSON: EOF while parsing an object"),
        ("{\n\"sandbox\": {},\n}", "/c.json:3:1: not JSON: key must be a string"),
        ("{} x", "/c.json:1:4: not JSON: trailing characters"),
        ("{\n x}", "/c.json:2:2: not JSON: key must be a string"),
        ("{\"ä\": ä}", "/c.json:1:7: not JSON: expected value"),
        ("// no\n{}", "/c.json:1:1: not JSON: expected value"),
        ("{\"sandbox\":\n {\"home\": \"\\ud800\"}}", "/c.json:2:18: not JSON: unexpected end of hex escape"),
    ] {
        assert_eq!(refused(text), message, "{text:?}");
    }
    assert!(matches!(parse("\u{feff}{}"), Err(Error::ByteOrderMark { .. })));
}

#[test]
fn columns_count_characters() {
    assert!(refused(r#"{"ä€😀": 1, "sandbox": 1}"#).starts_with("/c.json:1:23: sandbox:"));
}

#[test]
fn deep_nesting_and_many_members_cost_neither_stack_nor_time() {
    let deep = format!(r#"{{"other": {}{}}}"#, "[".repeat(500_000), "]".repeat(500_000));
    parse(&deep).unwrap();
    let deep = format!(r#"{{"sandbox": {{"hide": [{}{}]}}}}"#, "[".repeat(500_000), "]".repeat(500_000));
    assert!(refused(&deep).contains("sandbox.hide[0]: this is an array"));
    assert!(refused(&"[".repeat(1 << 20)).contains("EOF"));
    let many = vec![r#""/a""#; 200_000].join(",");
    assert_eq!(parse(&format!(r#"{{"sandbox": {{"hide": [{many}]}}}}"#)).unwrap().hide.values.len(), 200_000);
    let many: Vec<String> = (0..60_000).map(|n| format!(r#""V{n}": "x""#)).collect();
    let many = format!(r#"{{"sandbox": {{"env": {{"set": {{{}}}}}}}}}"#, many.join(","));
    assert_eq!(parse(&many).unwrap().env_set.values.len(), 60_000);
}

#[test]
fn docker_access_is_a_switch_or_a_mode() {
    for (text, mode) in
        [("true", "raw"), ("false", "off"), (r#""brokered""#, "brokered"), (r#""off""#, "off")]
    {
        let layer = parse(&format!(r#"{{"sandbox": {{"docker": {{"socket": {text}}}}}}}"#)).unwrap();
        assert_eq!(layer.docker_socket.unwrap().value.as_str(), mode);
    }
    assert!(refused(r#"{"sandbox": {"docker": {"socket": "yes"}}}"#).ends_with("off, raw, brokered"));
    assert!(refused(r#"{"sandbox": {"docker": {"socket": 1}}}"#).contains("this is a number"));
}
