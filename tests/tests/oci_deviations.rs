//! Where this runtime differs from runc or libcontainer on purpose. Each of these has a row in
//! docs/spec-deviations.md.

#![cfg(test)]

use std::fs;
use std::os::unix::process::CommandExt;
use std::time::Duration;

use codeoid_tests::{Bundle, Finished, Identity, Oci, Place, Requires, docs, wait_until};
use serde_json::{Value, json};

/// A check of this project's program alone.
fn check(name: &str, check: fn(&Place)) {
    if Requires::Root.met() && Requires::Path("/bin/busybox").met() {
        check(&Place::new(Identity::Root, name));
    }
}

#[track_caller]
fn refused(finished: &Finished, words: &str) {
    assert_eq!(finished.code(), 1, "{finished}");
    assert!(finished.err().contains(words), "{finished}");
}

#[test]
fn what_libcontainer_would_ignore_is_refused() {
    check("ignored", |place| {
        let mut bundle = Bundle::new(place, Oci::Own, "true");
        let good = bundle.config.clone();
        let bind = |options: Value| json!({ "destination": "/m", "type": "bind", "source": "/etc", "options": options });
        for (pointer, value) in [
            ("/mounts/0", bind(json!(["bind", "idmap"]))),
            ("/mounts/0", bind(json!(["bind", "nosymfollow"]))),
            ("/mounts/0", bind(json!(["bind", "sync"]))),
            (
                "/mounts/1",
                json!({ "destination": "/dev", "type": "bind", "source": "/dev", "options": ["rbind"] }),
            ),
            ("/linux/namespaces", json!([{ "type": "pid" }])),
            (
                "/linux/seccomp",
                json!({ "defaultAction": "SCMP_ACT_ALLOW",
                "syscalls": [{ "names": ["mkdir"], "action": "SCMP_ACT_NOTIFY" }] }),
            ),
        ] {
            bundle.config = good.clone();
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            let parent = bundle.config.pointer_mut(parent).unwrap();
            match name.parse::<usize>() {
                Ok(index) => parent[index] = value,
                Err(_) => parent[name] = value,
            }
            refused(&bundle.run(), "is not supported by this runtime");
            bundle.expect_gone();
        }
        for verb in ["checkpoint", "restore"] {
            refused(&bundle.oci(&[verb, "--image-path", "/x", "c"]), "is not supported by this runtime");
        }
    });
}

#[test]
fn hooks_after_the_start_end_nothing() {
    check("hooks", |place| {
        let mut bundle = Bundle::new(place, Oci::Own, "echo ran");
        let failing = json!([{ "path": "/bin/false" }, { "path": "/usr/bin/touch", "args": ["touch", place.at("next")] }]);
        bundle.config["hooks"] = json!({ "poststart": failing });
        let finished = bundle.run();
        assert_eq!(finished.expect_ok().out(), "ran\n");
        assert!(
            finished.err().contains("level=warning") && finished.err().contains("poststart"),
            "{finished}"
        );
        assert!(place.at("next").exists(), "the next hook ran");
        fs::remove_file(place.at("next")).unwrap();
        bundle.config["hooks"] = json!({ "poststop": failing });
        bundle.run().expect_ok();
        assert!(place.at("next").exists(), "the next hook ran");
        bundle.expect_gone();
    });
}

#[test]
fn a_failed_create_runs_poststop() {
    check("poststop", |place| {
        let mut bundle = Bundle::new(place, Oci::Own, "true");
        bundle.config["hooks"] = json!({ "createRuntime": [{ "path": "/bin/false" }],
            "poststop": [{ "path": "/usr/bin/touch", "args": ["touch", place.at("stopped")] }] });
        refused(&bundle.run(), "hook");
        assert!(place.at("stopped").exists());
        bundle.expect_gone();
    });
}

#[test]
fn a_cgroup_in_use_is_refused() {
    check("cgroup", |place| {
        let bundle = Bundle::new(place, Oci::Own, "exec sleep 60");
        bundle.start().expect_ok();
        refused(&bundle.oci(&["create", "second"]), "cgroup is not empty");
        assert_eq!(bundle.status(), "running", "its processes are none the worse");
        assert_eq!(bundle.oci(&["list", "-q"]).out(), format!("{}\n", bundle.id()));
    });
}

#[test]
fn a_create_that_was_killed_is_cleared_up() {
    check("killed", |place| {
        let mut bundle = Bundle::new(place, Oci::Own, "true");
        bundle.config["hooks"] = json!({ "createRuntime": [{ "path": "/bin/sh", "args": ["sh", "-c",
            format!("touch {}; exec sleep 60", place.at("reached").display())] }] });
        bundle.write();
        let id = bundle.id();
        let mut command = bundle.command(&["create", &id]);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).process_group(0);
        let mut child = command.spawn().unwrap();
        assert!(wait_until(Duration::from_secs(10), || place.at("reached").exists()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(bundle.status(), "", "it never came to be");
        refused(&bundle.oci(&["create", &id]), "already exists");
        bundle.oci(&["delete", "--force", &id]).expect_ok();
        bundle.expect_gone();
    });
}

#[test]
fn another_major_version_is_refused() {
    check("version", |place| {
        let mut bundle = Bundle::new(place, Oci::Own, "true");
        for version in ["2.0.0", "0.9", "x"] {
            bundle.config["ociVersion"] = json!(version);
            refused(&bundle.run(), "ociVersion");
        }
        bundle.config["ociVersion"] = json!("1.99.0");
        bundle.run().expect_ok();
    });
}

/// The callers' groups and session keyring stay with the caller.
#[test]
fn what_the_caller_has_stays_outside() {
    check("groups", |place| {
        let bundle = Bundle::new(place, Oci::Own, "id -G; grep ^Groups /proc/self/status");
        bundle.write();
        let line = bundle.command(&["run", &bundle.id()]);
        let mut command = place.command("/usr/bin/setpriv");
        command.args(["--groups", "0,4,24", "--"]).arg(line.get_program()).args(line.get_args());
        command.current_dir(bundle.dir());
        let finished = place.finish(command);
        assert_eq!(finished.expect_ok().out(), "0\nGroups:\t \n", "{finished}");
    });
}

#[test]
fn every_refusal_has_its_row() {
    let text = docs("docs/spec-deviations.md");
    for test in [
        "what_libcontainer_would_ignore_is_refused",
        "hooks_after_the_start_end_nothing",
        "a_failed_create_runs_poststop",
        "a_cgroup_in_use_is_refused",
        "a_create_that_was_killed_is_cleared_up",
        "another_major_version_is_refused",
        "what_the_caller_has_stays_outside",
    ] {
        assert!(text.contains(test), "{test} has no row");
    }
}
