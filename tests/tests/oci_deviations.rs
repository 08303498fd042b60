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

#[test]
fn systemd_is_asked_only_where_it_runs() {
    check("systemd", |place| {
        let mut bundle = Bundle::new(place, Oci::Own, "true");
        bundle.write();
        let run = |bundle: &Bundle<'_>| bundle.oci(&["--systemd-cgroup", "run", &bundle.id()]);
        if !std::path::Path::new("/run/systemd/system").exists() {
            refused(&run(&bundle), "systemd is not running");
            bundle.expect_gone();
            return;
        }
        refused(&run(&bundle), "slice:prefix:name");
        bundle.config["linux"]["cgroupsPath"] = json!(format!("system.slice:codeoid-tests:{}", bundle.id()));
        bundle.write();
        run(&bundle).expect_ok();
        bundle.expect_gone();
    });
}

#[test]
fn names_that_are_no_text_are_refused() {
    use std::os::unix::ffi::OsStrExt;
    check("text", |place| {
        let bundle = Bundle::new(place, Oci::Own, "true");
        bundle.write();
        let other = place.at(std::ffi::OsStr::from_bytes(b"b\xff"));
        fs::rename(bundle.dir(), &other).unwrap();
        let mut command = place.command(codeoid_tests::shim());
        command.arg("--root").arg(place.at("state")).args(["run", "--bundle"]).arg(&other).arg("x");
        refused(&place.finish(command), "not UTF-8");
        fs::rename(&other, bundle.dir()).unwrap();
        let mut command = place.command(codeoid_tests::shim());
        command.arg("--root").arg(&other).args(["run", "--bundle"]).arg(bundle.dir()).arg("x");
        refused(&place.finish(command), "not UTF-8");
        bundle.expect_gone();
    });
}

/// libcontainer makes links and devices in `/dev` by its path outside.
#[test]
fn a_dev_that_is_a_link_is_refused() {
    check("dev", |place| {
        let mut bundle = Bundle::new(place, Oci::Own, "true");
        let outside = place.make("outside/dev");
        fs::write(outside.join("ptmx"), "kept").unwrap();
        fs::remove_dir(bundle.root("dev")).unwrap();
        std::os::unix::fs::symlink(&outside, bundle.root("dev")).unwrap();
        refused(&bundle.run(), "its /dev is not a directory");
        bundle.config["mounts"].as_array_mut().unwrap().retain(|mount| mount["destination"] == "/proc");
        refused(&bundle.run(), "its /dev is not a directory");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(outside.join("ptmx")).unwrap(), "kept");
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

/// CVE-2019-5736: a program that is the runtime itself, whose loader is the container's. It keeps the file open, becomes
/// something else, and writes when nobody executes the file any more.
#[cfg(target_arch = "x86_64")]
#[test]
fn no_container_can_overwrite_the_runtime() {
    check("overwrite", |place| {
        let program = fs::read(codeoid_tests::shim()).unwrap();
        let loader = b"/lib64/ld-linux-x86-64.so.2";
        if !program.windows(loader.len()).any(|part| part == loader) {
            return Requires::skip("the program has no loader that a container could bring");
        }
        let copy = place.at("shim");
        fs::copy(codeoid_tests::shim(), &copy).unwrap();
        if !Requires::Tool("gcc").met() {
            return;
        }
        let mut bundle = Bundle::new(place, Oci::Own, "true");
        fs::create_dir_all(bundle.root("lib64")).unwrap();
        let source = place.write("loader.c", LOADER);
        let mut compile = place.command("gcc");
        compile.args(["-O1", "-static", "-nostdlib", "-ffreestanding", "-fno-pie", "-no-pie", "-o"]);
        compile.arg(bundle.root("lib64/ld-linux-x86-64.so.2")).arg(source);
        place.finish(compile).expect_ok();
        let run = |bundle: &Bundle<'_>, target: &str| {
            let _ = fs::remove_dir_all(bundle.root("evil"));
            fs::create_dir(bundle.root("evil")).unwrap();
            std::os::unix::fs::symlink(target, bundle.root("evil/program")).unwrap();
            bundle.write();
            // Detached: as long as the runtime itself runs, nobody can write to its file.
            let line = bundle.command(&["run", "--detach", &bundle.id()]);
            let mut command = place.command(&copy);
            let out = fs::File::create(place.at("out")).unwrap();
            command.args(line.get_args()).current_dir(bundle.dir());
            command.stdout(out.try_clone().unwrap()).stderr(out);
            assert!(command.status().unwrap().success(), "{}", bundle.output());
            assert!(wait_until(Duration::from_secs(10), || bundle.output().ends_with('\n')));
            bundle.oci(&["delete", "--force", &bundle.id()]).expect_ok();
            bundle.output()
        };
        bundle.config["process"]["args"] = json!(["/evil/program"]);
        // The attack works on a file that the container may write.
        fs::copy(codeoid_tests::shim(), bundle.root("victim")).unwrap();
        assert_eq!(run(&bundle, "/victim"), "overwritten\n");
        assert_eq!(run(&bundle, "/proc/self/exe"), "kept\n");
        assert_eq!(fs::read(&copy).unwrap(), program);
    });
}

/// A loader that keeps the program open which it should load.
#[cfg(target_arch = "x86_64")]
const LOADER: &str = r#"
static long call(long n, long a, long b, long c) {
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return r;
}
void _start(void) {
    static char *argv[] = {"sh", "-c",
        "i=0; until [ $i = 50 ]; do { echo x >>/proc/self/fd/3; } 2>/dev/null && break; i=$((i+1)); sleep 0.02; done;"
        "[ $i = 50 ] && echo kept || echo overwritten", 0};
    static char *envp[] = {"PATH=/bin", 0};
    long fd = call(2, (long)"/proc/self/exe", 0, 0);
    if (fd != 3) call(33, fd, 3, 0);
    call(59, (long)"/bin/sh", (long)argv, (long)envp);
    call(60, 9, 0, 0);
}
"#;

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
        "a_dev_that_is_a_link_is_refused",
        "names_that_are_no_text_are_refused",
        "what_the_caller_has_stays_outside",
        "no_container_can_overwrite_the_runtime",
    ] {
        assert!(text.contains(test), "{test} has no row");
    }
}
