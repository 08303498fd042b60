//! Real programs whose network is the proxy: each finds it by the variable that it honours, speaks TLS through it with a
//! server whose authority it is told, and fails where the server is not listed.

#![cfg(test)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use codeoid_tests::{LISTED, Outcome, Place, Requires, each_identity};

/// A server of packages, with its own certificate authority.
struct Registry {
    child: Child,
    port: u16,
    authority: PathBuf,
}

impl Registry {
    fn new(place: &Place) -> Self {
        let directory = place.make("outside/registry");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/registry.py");
        let mut command = place.command("/usr/bin/python3");
        let text = std::fs::read_to_string(script).unwrap();
        // Not by its path, which the other user may not be able to read.
        command.args(["-c", &text]).arg(&directory).arg(LISTED.to_string()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().parse().unwrap_or_else(|_| panic!("no port: {line:?}"));
        Self { child, port, authority: directory.join("ca.pem") }
    }

    fn url(&self, path: &str) -> String {
        format!("https://{LISTED}:{}/{path}", self.port)
    }

    /// Runs a script in a turn, first with the registry listed, then without.
    fn run(&self, place: &Place, variables: &[&str], script: &str) -> Outcome {
        let script = script.replace("URL", self.url("").trim_end_matches('/'));
        let authority = self.authority.to_str().unwrap();
        let prepare = |allow: &[&str], session: &str| {
            let mut turn = place.allowlist(allow).session(session);
            for variable in variables {
                turn = turn.env(variable, authority);
            }
            turn.sh(&script).run()
        };
        let refused = prepare(&[], "closed");
        assert_ne!(refused.code(), 0, "not listed: {refused}");
        assert!(refused.warnings().contains(&format!("{LISTED}:{} was refused", self.port)), "{refused}");
        prepare(&[&format!("{LISTED}:{}", self.port)], "open")
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn curl(place: &Place) {
    let registry = Registry::new(place);
    let outcome = registry.run(place, &["CURL_CA_BUNDLE"], "curl -fsS URL/simple/demo-wheel/");
    assert!(outcome.expect_ok().out().contains("demo_wheel-1.0"), "{outcome}");
}

fn git_over_https(place: &Place) {
    let registry = Registry::new(place);
    let script = "rm -rf clone; git clone -q URL/repo.git clone && cat clone/file && git -C clone fetch && \
                  git ls-remote URL/repo.git | wc -l";
    let outcome = registry.run(place, &["GIT_SSL_CAINFO"], script);
    assert_eq!(outcome.expect_ok().out(), "from git\n2", "{outcome}");
}

fn pip(place: &Place) {
    if !Requires::Path("/usr/lib/python3/dist-packages/pip").met() {
        return;
    }
    let registry = Registry::new(place);
    let script = "/usr/bin/python3 -m pip install -q --disable-pip-version-check --retries 0 --no-input \
                  --index-url URL/simple --target packages demo-wheel && \
                  PYTHONPATH=packages /usr/bin/python3 -c 'import demo_wheel; print(demo_wheel.WORDS)'";
    let outcome = registry.run(place, &["PIP_CERT"], script);
    assert_eq!(outcome.expect_ok().out(), "from pip", "{outcome}");
}

fn npm(place: &Place) {
    if !Requires::Tool("npm").met() {
        return;
    }
    let registry = Registry::new(place);
    let script = "npm install --silent --no-audit --no-fund --no-update-notifier --fetch-retries 0 \
                  --registry URL demo-node && node -p 'require(\"demo-node\")'";
    let outcome = registry.run(place, &["npm_config_cafile"], script);
    assert_eq!(outcome.expect_ok().out(), "from npm", "{outcome}");
}

fn cargo(place: &Place) {
    // The one that runs the tests, where the other user can read it.
    let Some(cargo) = std::env::var_os("CARGO").filter(|path| Path::new(path).is_file()) else {
        Requires::skip("CARGO, the path of a cargo, is not set: the tests were not started by one");
        return;
    };
    let program = place.at("outside/cargo");
    std::fs::copy(cargo, &program).unwrap();
    let registry = Registry::new(place);
    place.write("home/w/src/lib.rs", "");
    place.write(
        "home/w/Cargo.toml",
        "[package]\nname = \"w\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\n\
         demo-crate = { version = \"1\", registry = \"local\" }\n",
    );
    place.write(
        "home/w/.cargo/config.toml",
        format!("[registries.local]\nindex = \"sparse+{}\"\n[net]\nretry = 0\n", registry.url("index/")),
    );
    let script =
        format!("{} -q vendor packages >&2 && cat packages/demo-crate/src/lib.rs", program.display());
    let outcome = registry.run(place, &["CARGO_HTTP_CAINFO"], &script);
    assert_eq!(outcome.expect_ok().out(), "// from cargo", "{outcome}");
}

each_identity! {
    curl,
    git_over_https,
    pip,
    npm,
    cargo,
}
