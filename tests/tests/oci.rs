//! The program as an OCI runtime. Every check runs against it and against the reference, Debian's runc: what runc
//! does is what engines count on. Where this runtime differs on purpose stands in docs/spec-deviations.md, with its
//! own test in `oci_deviations.rs`.

#![cfg(test)]

use std::fs;
use std::time::Duration;

use codeoid_tests::{Bundle, Oci, Place, each_runtime, wait_until};
use serde_json::{Value, json};

fn the_life_of_a_container(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(place, runtime, "echo started; exec sleep 60");
    bundle.config["annotations"] = json!({ "org.example.key": "value" });
    bundle.write();
    let id = bundle.id();
    let pid_file = place.at("pid");
    // The options after the name, as some callers have them.
    let words = ["create", "--bundle", ".", "--pid-file", pid_file.to_str().unwrap(), &id];
    bundle.detached(&words).expect_ok();
    let state = bundle.state();
    assert_eq!(state["status"], "created", "{state}");
    assert_eq!(state["id"], json!(id));
    assert_eq!(state["bundle"], json!(bundle.dir()));
    assert_eq!(state["annotations"]["org.example.key"], "value");
    assert_eq!(state["pid"].to_string(), fs::read_to_string(&pid_file).unwrap());
    assert_eq!(bundle.output(), "", "nothing runs before the start");
    bundle.oci(&["start", &id]).expect_ok();
    bundle.wait_for("started");
    assert_eq!(bundle.status(), "running");
    assert_eq!(bundle.oci(&["start", &id]).code(), 1, "only once");
    assert_eq!(bundle.oci(&["delete", &id]).code(), 1, "not while it runs");
    let list = bundle.oci(&["list", "--format", "json"]).json();
    assert_eq!(list[0]["id"], json!(id));
    assert_eq!(bundle.oci(&["list", "-q"]).out(), format!("{id}\n"));
    bundle.oci(&["kill", &id, "KILL"]).expect_ok();
    bundle.wait_status("stopped");
    let state = bundle.state();
    assert_eq!(state["pid"], 0);
    let finished = bundle.oci(&["kill", &id, "TERM"]);
    assert!(finished.code() == 1 && finished.err().contains("container not running"), "{finished}");
    bundle.oci(&["delete", &id]).expect_ok();
    assert_eq!(bundle.status(), "");
    bundle.expect_gone();
}

fn exit_codes_and_signals(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(place, runtime, "exit 42");
    assert_eq!(bundle.run().code(), 42);
    bundle.script("kill -TERM $$; exit 1");
    assert_eq!(bundle.run().code(), 1, "process 1 of a pid namespace ignores what it has no handler for");
    bundle.config["linux"]["namespaces"] = json!([{ "type": "mount" }, { "type": "uts" }]);
    bundle.script("kill -TERM $$; exit 1");
    assert_eq!(bundle.run().code(), 128 + 15);
    bundle.expect_gone();
}

fn errors_in_the_words_that_engines_read(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(place, runtime, "");
    fs::write(bundle.root("bin/plain"), "no program").unwrap();
    for (program, words) in [
        ("nosuch", "exec: \"nosuch\": executable file not found in $PATH"),
        ("/no/such", "no such file or directory"),
        ("/bin/plain", "permission denied"),
    ] {
        bundle.config["process"]["args"] = json!([program]);
        bundle.write();
        let log = place.at("log.json");
        let _ = fs::remove_file(&log);
        let (path, id) = (log.to_str().unwrap(), bundle.id());
        let finished = bundle.oci(&["--log", path, "--log-format", "json", "create", "--bundle", ".", &id]);
        assert_eq!(finished.code(), 1, "{finished}");
        let text = fs::read_to_string(&log).unwrap();
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(last["level"], "error");
        assert!(
            last["time"].as_str().unwrap().ends_with('Z') || last["time"].as_str().unwrap().contains('+')
        );
        let said = last["msg"].as_str().unwrap();
        assert!(said.contains(words) && said.contains("unable to start container process"), "{said}");
        assert!(finished.err().contains(words), "on standard error too: {finished}");
        bundle.expect_gone();
    }
}

fn what_is_not_there(place: &Place, runtime: Oci) {
    let bundle = Bundle::new(place, runtime, "true");
    for words in [
        &["state", "nosuch"][..],
        &["start", "nosuch"],
        &["kill", "nosuch", "9"],
        &["delete", "nosuch"],
        &["pause", "nosuch"],
        &["ps", "nosuch"],
        &["exec", "nosuch", "true"],
    ] {
        let finished = bundle.oci(words);
        assert!(
            !finished.ok() && finished.err().contains("container does not exist"),
            "{words:?}: {finished}"
        );
    }
    bundle.oci(&["delete", "--force", "nosuch"]).expect_ok();
    assert_eq!(bundle.oci(&["list", "--format", "json"]).out().trim(), "null");
}

fn hostile_names(place: &Place, runtime: Oci) {
    let bundle = Bundle::new(place, runtime, "true");
    bundle.write();
    for name in
        ["..", ".", "../x", "a/b", "/etc", "a b", "$(touch x)", "a\nb", "\u{e4}", "", &"x".repeat(300)]
    {
        let finished = bundle.oci(&["create", name]);
        assert_ne!(finished.code(), 0, "{name:?}: {finished}");
        let finished = bundle.oci(&["delete", "--force", name]);
        let _ = finished.code();
        assert!(bundle.dir().join("config.json").exists(), "{name:?}");
    }
    bundle.expect_gone();
}

fn a_name_is_taken_once(place: &Place, runtime: Oci) {
    let bundle = Bundle::new(place, runtime, "exec sleep 60");
    bundle.start().expect_ok();
    let id = bundle.id();
    let finished = bundle.oci(&["create", &id]);
    assert!(finished.code() == 1 && finished.err().contains("already exists"), "{finished}");
    assert_eq!(bundle.status(), "running", "the first one is none the worse");
    bundle.oci(&["delete", "--force", &id]).expect_ok();
    bundle.expect_gone();
}

fn bad_bundles_leave_nothing(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(place, runtime, "true");
    let good = bundle.config.clone();
    let path = bundle.dir().join("config.json");
    let refused = |bundle: &Bundle<'_>, what: &str| {
        let finished = bundle.oci(&["create", &bundle.id()]);
        assert_eq!(finished.code(), 1, "{what}: {finished}");
        assert!(finished.err().contains("level=error"), "{what}: {finished}");
        assert!(!finished.err().contains("panic"), "{what}: {finished}");
        bundle.expect_gone();
    };
    refused(&bundle, "no config.json");
    for (what, text) in [
        ("empty", String::new()),
        ("truncated", good.to_string()[..good.to_string().len() / 2].to_owned()),
        ("not JSON", "<xml/>".to_owned()),
        ("not an object", "[]".to_owned()),
        ("not UTF-8 nor JSON", "\u{0}".repeat(100)),
        ("deep", format!("{}{}", "[".repeat(100_000), "]".repeat(100_000))),
    ] {
        fs::write(&path, text).unwrap();
        refused(&bundle, what);
    }
    if runtime == Oci::Own {
        // runc has a nil pointer there.
        fs::write(&path, "null").unwrap();
        refused(&bundle, "null");
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    refused(&bundle, "config.json is a directory");
    fs::remove_dir(&path).unwrap();
    for (what, pointer, value) in [
        ("no process", "/process", Value::Null),
        ("no arguments", "/process/args", json!([])),
        ("arguments of a wrong type", "/process/args", json!("sh")),
        ("numbers of a wrong type", "/process/user/uid", json!("root")),
        ("a negative user", "/process/user/uid", json!(-1)),
        ("no working directory", "/process/cwd", json!("")),
        ("a relative working directory", "/process/cwd", json!("tmp")),
        ("a root that is not there", "/root/path", json!("nosuch")),
        ("a root that is a file", "/root/path", json!("config.json")),
        ("mounts of a wrong type", "/mounts", json!({ "a": 1 })),
        (
            "a mount without a source",
            "/mounts/0",
            json!({ "destination": "/x", "type": "bind", "options": ["bind"] }),
        ),
        (
            "a source that is not there",
            "/mounts/0",
            json!({ "destination": "/x", "type": "bind", "source": "/nosuch", "options": ["bind"] }),
        ),
        (
            "an unknown file system",
            "/mounts/0",
            json!({ "destination": "/x", "type": "nosuchfs", "source": "x" }),
        ),
        ("an unknown namespace", "/linux/namespaces/0/type", json!("nosuch")),
        (
            "a namespace that is not there",
            "/linux/namespaces/1",
            json!({ "type": "network", "path": "/nosuch" }),
        ),
        ("the same namespace twice", "/linux/namespaces/1/type", json!("pid")),
        ("an unknown propagation", "/linux/rootfsPropagation", json!("sideways")),
        ("a sysctl that is not there", "/linux/sysctl", json!({ "net.nosuch": "1" })),
        ("a sysctl of the host", "/linux/sysctl", json!({ "kernel.threads-max": "100000" })),
        ("an unknown limit", "/process/rlimits", json!([{ "type": "RLIMIT_NOSUCH", "soft": 1, "hard": 1 }])),
        ("an unknown action", "/linux/seccomp", json!({ "defaultAction": "SCMP_ACT_NOSUCH" })),
        ("a hook that is not there", "/hooks", json!({ "createRuntime": [{ "path": "/nosuch" }] })),
        ("a hook that fails", "/hooks", json!({ "prestart": [{ "path": "/bin/false" }] })),
    ] {
        bundle.config = good.clone();
        set(&mut bundle.config, pointer, value);
        bundle.write();
        refused(&bundle, what);
    }
    let finished = bundle.oci(&["create", "--bundle", "/no/such/bundle", &bundle.id()]);
    assert_eq!(finished.code(), 1, "{finished}");
    // What it does not know it keeps out of its way.
    bundle.config = good;
    bundle.config["nosuch"] = json!({ "a": [1, 2] });
    bundle.config["process"]["nosuch"] = json!(true);
    bundle.run().expect_ok();
    bundle.expect_gone();
}

/// Puts a value at a JSON pointer, whose last member may be new.
fn set(config: &mut Value, pointer: &str, value: Value) {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let parent = config.pointer_mut(parent).unwrap();
    match name.parse::<usize>() {
        Ok(index) => parent[index] = value,
        Err(_) => parent[name] = value,
    }
}

fn the_process_is_as_asked_for(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(
        place,
        runtime,
        "id -u; id -g; id -G; pwd; umask; echo $HOME; hostname; ulimit -n; cat /proc/self/oom_score_adj; \
         grep -E '^(Cap|NoNewPrivs)' /proc/self/status; touch /dev/stdout",
    );
    let process = &mut bundle.config["process"];
    process["user"] = json!({ "uid": 1000, "gid": 100, "additionalGids": [7, 8] });
    process["cwd"] = json!("/new/directory");
    process["rlimits"] = json!([{ "type": "RLIMIT_NOFILE", "soft": 77, "hard": 77 }]);
    process["oomScoreAdj"] = json!(321);
    process["capabilities"]["inheritable"] = json!(["CAP_KILL"]);
    process["capabilities"]["ambient"] = json!(["CAP_KILL"]);
    process["capabilities"]["bounding"] = json!(["CAP_KILL", "CAP_UNHEARD_OF"]);
    process["capabilities"]["effective"] = json!(["CAP_KILL"]);
    process["capabilities"]["permitted"] = json!(["CAP_KILL"]);
    let finished = bundle.run();
    let kill = "0000000000000020";
    let expected = format!(
        "1000\n100\n100 7 8\n/new/directory\n0022\n/home/user\ninside\n77\n321\nCapInh:\t{kill}\nCapPrm:\t{kill}\n\
         CapEff:\t{kill}\nCapBnd:\t{kill}\nCapAmb:\t{kill}\nNoNewPrivs:\t1\n"
    );
    assert_eq!(finished.expect_ok().out(), expected, "{finished}");
}

fn the_root_and_its_mounts(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(place, runtime, "");
    fs::write(place.at("outside/file"), "content\n").unwrap();
    fs::create_dir_all(bundle.root("filled/below")).unwrap();
    fs::write(bundle.root("filled/below/f"), "copied\n").unwrap();
    fs::create_dir(bundle.root("private")).unwrap();
    fs::set_permissions(bundle.root("private"), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
    bundle.config["root"]["readonly"] = json!(true);
    bundle.config["mounts"].as_array_mut().unwrap().extend([
        json!({ "destination": "/from/host", "type": "bind", "source": place.at("outside"),
            "options": ["rbind", "ro", "rprivate"] }),
        json!({ "destination": "/one", "type": "bind", "source": place.at("outside/file"), "options": ["bind"] }),
        json!({ "destination": "/filled", "type": "tmpfs", "source": "tmpfs", "options": ["tmpcopyup"] }),
        // No source: it is optional.
        json!({ "destination": "/private", "type": "tmpfs", "options": ["nosuid", "noexec"] }),
    ]);
    bundle.script(
        "touch /x 2>/dev/null && echo the root is writable
        touch /from/host/x 2>/dev/null && echo the bind is writable
        cat /from/host/file /one /filled/below/f; touch /filled/new || exit 1
        stat -c %a /private; touch /sys/fs/cgroup/x 2>/dev/null && echo cgroups are writable
        for d in /sys/fs/cgroup/*/; do mkdir $d/x 2>/dev/null && echo $d is writable; done
        touch /proc/sys/kernel/hostname 2>/dev/null && echo x > /proc/sys/kernel/hostname 2>/dev/null && echo sys
        for d in /sys/fs/cgroup/*/; do case $(stat -c %a $d) in *[2367]) echo $d is open to all;; esac; done
        head -c 1 /proc/kcore | wc -c; for f in null zero full random urandom tty; do test -c /dev/$f || echo $f; done
        test -L /dev/fd && test -L /dev/stdin && test -L /dev/ptmx || echo links",
    );
    let finished = bundle.run();
    assert_eq!(finished.expect_ok().out(), "content\ncontent\ncopied\n711\n0\n", "{finished}");
    assert!(!bundle.root("filled/new").exists());
    bundle.expect_gone();
}

/// A container that joins the pid namespace of another one, as `--pid container:` does.
fn a_pid_namespace_is_shared(place: &Place, runtime: Oci) {
    let first = Bundle::new(place, runtime, "echo up; exec sleep 60");
    first.start().expect_ok();
    first.wait_for("up");
    let pid = first.state()["pid"].to_string();
    let mut config = first.config.clone();
    config["linux"]["namespaces"][0] = json!({ "type": "pid", "path": format!("/proc/{pid}/ns/pid") });
    config["linux"]["cgroupsPath"] = json!(format!("/codeoid-tests/{}-2", first.id()));
    config["process"]["args"] = json!(["sh", "-c", "cat /proc/1/comm; ls -d /sys/fs/cgroup"]);
    fs::write(first.dir().join("config.json"), config.to_string()).unwrap();
    let finished = first.oci(&["run", "second"]);
    assert_eq!(finished.expect_ok().out(), "sleep\n/sys/fs/cgroup\n", "{finished}");
    assert_eq!(first.status(), "running");
}

/// Devices as `--device` has them, in `/dev` and elsewhere.
fn devices_are_made(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(
        place,
        runtime,
        "stat -c '%a %u %g %t %T' /mine/zero /dev/mine; head -c 3 /mine/zero | wc -c",
    );
    let device = |path: &str| json!({ "path": path, "type": "c", "major": 1, "minor": 5, "fileMode": 0o640, "uid": 7, "gid": 8 });
    bundle.config["linux"]["devices"] = json!([device("/mine/zero"), device("/dev/mine")]);
    bundle.config["process"]["user"] = json!({ "uid": 7, "gid": 7 });
    let finished = bundle.run();
    assert_eq!(finished.expect_ok().out(), "640 7 8 1 5\n640 7 8 1 5\n3\n", "{finished}");
}

/// A directory from outside on `/dev`, as `-v /dev:/dev` has it.
fn devices_from_outside(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(place, runtime, "");
    let outside = place.make("outside/dev");
    for (name, minor) in [("null", 3), ("marker", 5)] {
        let mode = nix::sys::stat::Mode::from_bits_truncate(0o666);
        let device = nix::sys::stat::makedev(1, minor);
        nix::sys::stat::mknod(&outside.join(name), nix::sys::stat::SFlag::S_IFCHR, mode, device).unwrap();
    }
    fs::create_dir(outside.join("pts")).unwrap();
    fs::write(outside.join("ptmx"), "kept").unwrap();
    bundle.config["mounts"][1] =
        json!({ "destination": "/dev", "type": "bind", "source": outside, "options": ["rbind"] });
    bundle.config["linux"]["resources"]["devices"] = json!([{ "allow": true, "access": "rwm" }]);
    bundle.script("ls /dev; test -c /dev/marker && grep -c ' /dev/pts ' /proc/mounts");
    let finished = bundle.run();
    assert_eq!(finished.expect_ok().out(), "marker\nnull\nptmx\npts\n1\n", "{finished}");
    assert_eq!(fs::read_to_string(outside.join("ptmx")).unwrap(), "kept");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 4, "nothing is made in it");
}

fn the_network_has_a_loopback(place: &Place, runtime: Oci) {
    let bundle = Bundle::new(place, runtime, "ip addr show lo | grep -q '127.0.0.1/8' && ip link show lo");
    let finished = bundle.run();
    assert!(finished.expect_ok().out().contains("LOOPBACK,UP"), "{finished}");
}

fn hooks_run_in_their_order(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(place, runtime, "echo process >> /log/hooks");
    fs::create_dir(place.at("log")).unwrap();
    let log = place.at("log/hooks");
    let hook = |name: &str, path: &str| {
        let script = format!(
            "read state; id=$(echo \"$state\" | grep -o '\"id\":\"[^\"]*\"'); \
             bundle=$(echo \"$state\" | grep -o '\"bundle\":\"[^\"]*\"'); echo \"{name} $1 $A $id $bundle\" >> {path}"
        );
        json!([{ "path": "/bin/sh", "args": ["sh", "-c", script, "zero", "one"], "env": ["A=b", "PATH=/bin:/usr/bin"],
            "timeout": 10 }])
    };
    bundle.config["mounts"].as_array_mut().unwrap().push(
        json!({ "destination": "/log", "type": "bind", "source": place.at("log"), "options": ["bind"] }),
    );
    let (outside, inside) = (log.to_str().unwrap().to_owned(), "/log/hooks");
    bundle.config["hooks"] = json!({
        "prestart": hook("prestart", &outside), "createRuntime": hook("createRuntime", &outside),
        "createContainer": hook("createContainer", &outside), "startContainer": hook("startContainer", inside),
        "poststart": hook("poststart", &outside), "poststop": hook("poststop", &outside),
    });
    bundle.run().expect_ok();
    let text = fs::read_to_string(&log).unwrap();
    let state = format!(" one b \"id\":\"{}\" \"bundle\":\"{}\"", bundle.id(), bundle.dir().display());
    let lines: Vec<&str> = text.lines().collect();
    // poststart and the process itself run at the same time.
    let position =
        |name: &str| lines.iter().position(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
    let order = ["prestart", "createRuntime", "createContainer", "startContainer", "process", "poststop"];
    let places: Vec<usize> = order.iter().map(|name| position(name)).collect();
    assert!(places.is_sorted(), "{text}");
    assert!(position("poststart") > position("createContainer"));
    for line in lines.iter().filter(|line| **line != "process") {
        assert!(line.ends_with(&state), "{line}: {state}");
    }
}

fn processes_join_a_container(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(place, runtime, "echo up; exec sleep 60");
    bundle.config["process"]["env"] = json!(["PATH=/bin", "A=container", "B=container"]);
    bundle.config["linux"]["seccomp"] = json!({ "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{ "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 95 }] });
    bundle.start().expect_ok();
    bundle.wait_for("up");
    let id = bundle.id();
    let exec = |words: &[&str]| bundle.oci(&[&["exec"], words].concat());
    let script = "id -u; echo $A $B; pwd; hostname; cat /proc/1/comm; grep -E '^(CapEff|NoNewPrivs|Seccomp:)' \
                  /proc/self/status | tr -d '\\t'; mkdir /tmp/x 2>/dev/null && echo the filter is missing; exit 5";
    let finished = exec(&["-e", "A=exec", "--cwd", "/tmp", &id, "sh", "-c", script]);
    assert_eq!(finished.code(), 5, "{finished}");
    let expected =
        "0\nexec container\n/tmp\ninside\nsleep\nCapEff:0000000020000420\nNoNewPrivs:1\nSeccomp:2\n";
    assert_eq!(finished.out(), expected, "{finished}");
    let finished =
        exec(&["--user", "1000:100", &id, "sh", "-c", "id -u; id -g; grep CapEff /proc/self/status"]);
    assert_eq!(finished.expect_ok().out(), "1000\n100\nCapEff:\t0000000000000000\n", "{finished}");
    for (program, words) in [("nosuch", "executable file not found in $PATH"), ("/tmp/no", "no such file")] {
        let finished = exec(&[&id, program]);
        assert!(!finished.ok() && finished.err().contains(words), "{finished}");
    }
    // As engines do: a file, without what is not needed, detached, with a file for the number.
    let process = json!({ "args": ["sh", "-c", "echo joined >> /tmp/file; exec sleep 60"], "cwd": "/",
        "env": ["PATH=/bin"] });
    let (file, pid_file) = (place.write("process.json", process.to_string()), place.at("exec.pid"));
    let words = [
        "exec",
        "--process",
        file.to_str().unwrap(),
        "--detach",
        "--pid-file",
        pid_file.to_str().unwrap(),
        &id,
    ];
    bundle.detached(&words).expect_ok();
    let pid = fs::read_to_string(&pid_file).unwrap();
    assert!(wait_until(Duration::from_secs(5), || bundle.root("tmp/file").exists()));
    let pids = bundle.oci(&["ps", "--format", "json", &id]).json();
    let pids: Vec<String> = pids.as_array().unwrap().iter().map(Value::to_string).collect();
    assert!(pids.len() == 2 && pids.contains(&pid), "{pids:?} {pid}");
    bundle.oci(&["kill", &id, "KILL"]).expect_ok();
    bundle.wait_status("stopped");
    assert!(!exec(&[&id, "true"]).ok());
}

fn limits_bite_and_change(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(place, runtime, "echo up; exec sleep 60");
    bundle.config["linux"]["resources"]["memory"] = json!({ "limit": 64 << 20 });
    bundle.config["linux"]["resources"]["pids"] = json!({ "limit": 20 });
    bundle.config["linux"]["resources"]["cpu"] = json!({ "shares": 512, "quota": 50000, "period": 100000 });
    bundle.start().expect_ok();
    bundle.wait_for("up");
    let id = bundle.id();
    let unified = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let read = |controller: &str, file: &str| {
        let file = match file {
            "memory.limit_in_bytes" if unified => "memory.max",
            other => other,
        };
        let controller = if unified { "." } else { controller };
        let path = format!("/sys/fs/cgroup/{controller}/codeoid-tests/{id}/{file}");
        fs::read_to_string(&path)
            .map_or_else(|error| format!("{path}: {error}"), |text| text.trim().to_owned())
    };
    // The weight of cgroup v2 is not the share of v1, and each runtime converts it in its own way.
    let shares = |expected: &str| assert!(unified || read("cpu", "cpu.shares") == expected);
    assert_eq!(read("memory", "memory.limit_in_bytes"), (64 << 20).to_string());
    assert_eq!(read("pids", "pids.max"), "20");
    shares("512");
    let fork = "for i in $(head -c 40 /dev/zero | tr '\\0' ' '); do :; done; i=0; while [ $i -lt 40 ]; do sleep 9 & \
                i=$((i+1)); done 2>&1 | head -1; true";
    let finished = bundle.oci(&["exec", &id, "sh", "-c", fork]);
    assert!(format!("{}{}", finished.out(), finished.err()).contains("fork"), "{finished}");
    bundle.oci(&["update", "--memory", "96M", "--pids-limit", "30", "--cpu-share", "256", &id]).expect_ok();
    assert_eq!(read("memory", "memory.limit_in_bytes"), (96 << 20).to_string());
    assert_eq!(read("pids", "pids.max"), "30");
    shares("256");
    let file = place.write("limits.json", json!({ "pids": { "limit": 40 } }).to_string());
    bundle.oci(&["update", &format!("--resources={}", file.display()), &id]).expect_ok();
    assert_eq!(read("pids", "pids.max"), "40");
    assert_eq!(read("memory", "memory.limit_in_bytes"), (96 << 20).to_string());
    let stats = bundle.oci(&["events", "--stats", &id]).expect_ok().json();
    assert_eq!(stats["type"], "stats");
    assert_eq!(stats["id"], json!(id));
    assert!(stats["data"]["cpu"]["usage"]["total"].as_u64().unwrap() > 0, "{stats}");
    assert_eq!(stats["data"]["memory"]["usage"]["limit"], 96 << 20);
    assert!(stats["data"]["pids"]["current"].as_u64().unwrap() >= 1);
}

fn frozen_and_thawed(place: &Place, runtime: Oci) {
    let bundle =
        Bundle::new(place, runtime, "i=0; while true; do i=$((i+1)); echo $i > /tmp/count; sleep 0.02; done");
    bundle.start().expect_ok();
    let id = bundle.id();
    assert!(wait_until(Duration::from_secs(5), || bundle.root("tmp/count").exists()));
    bundle.oci(&["pause", &id]).expect_ok();
    assert_eq!(bundle.status(), "paused");
    let finished = bundle.oci(&["exec", &id, "true"]);
    assert!(!finished.ok() && finished.err().contains("paused"), "{finished}");
    let before = fs::read_to_string(bundle.root("tmp/count")).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(before, fs::read_to_string(bundle.root("tmp/count")).unwrap(), "it stands still");
    bundle.oci(&["resume", &id]).expect_ok();
    assert_eq!(bundle.status(), "running");
    assert!(!bundle.oci(&["resume", &id]).ok());
    assert!(wait_until(Duration::from_secs(5), || {
        fs::read_to_string(bundle.root("tmp/count")).unwrap() != before
    }));
    bundle.oci(&["pause", &id]).expect_ok();
    bundle.oci(&["delete", "--force", &id]).expect_ok();
    bundle.expect_gone();
}

fn without_a_pid_namespace_nothing_stays(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(place, runtime, "sleep 4711 & sleep 4712 & echo up; wait");
    bundle.config["linux"]["namespaces"] = json!([{ "type": "mount" }, { "type": "uts" }, { "type": "ipc" }]);
    bundle.start().expect_ok();
    bundle.wait_for("up");
    let id = bundle.id();
    let pids = bundle.oci(&["ps", "--format", "json", &id]).json();
    let pids: Vec<i64> = pids.as_array().unwrap().iter().filter_map(Value::as_i64).collect();
    assert_eq!(pids.len(), 3, "{pids:?}");
    bundle.oci(&["delete", "--force", &id]).expect_ok();
    let gone = || {
        pids.iter().all(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z")
        })
    };
    assert!(wait_until(Duration::from_secs(5), gone), "{pids:?}");
    bundle.expect_gone();
}

/// The two limits are the same: programs in Go, runc among them, raise the soft one to the hard one for a while.
fn a_user_namespace_maps_and_is_joined(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(place, runtime, "id -u; cat /proc/self/uid_map; echo up; exec sleep 60");
    bundle.config["linux"]["namespaces"].as_array_mut().unwrap().push(json!({ "type": "user" }));
    bundle.config["linux"]["uidMappings"] = json!([{ "containerID": 0, "hostID": 300_000, "size": 65536 }]);
    bundle.config["linux"]["gidMappings"] = json!([{ "containerID": 0, "hostID": 300_000, "size": 65536 }]);
    bundle.config["process"]["rlimits"] = json!([{ "type": "RLIMIT_NOFILE", "soft": 77, "hard": 77 }]);
    bundle.start().expect_ok();
    bundle.wait_for("up");
    let map = "         0     300000      65536";
    assert_eq!(bundle.output(), format!("0\n{map}\nup\n"));
    let finished =
        bundle.oci(&["exec", &bundle.id(), "sh", "-c", "id -u; cat /proc/self/uid_map; ulimit -n"]);
    assert_eq!(finished.expect_ok().out(), format!("0\n{map}\n77\n"), "{finished}");
    let finished =
        bundle.oci(&["exec", "-u", "1000:1000", &bundle.id(), "sh", "-c", "id -u; ls -ld /proc/self/"]);
    assert!(finished.expect_ok().out().starts_with("1000\n"), "{finished}");
}

/// As `--userns=auto` and mappings of single numbers have them.
fn a_user_namespace_of_several_ranges(place: &Place, runtime: Oci) {
    let mut bundle =
        Bundle::new(place, runtime, "id -u; cat /proc/self/uid_map; test -w /dev/null && echo null");
    bundle.config["linux"]["namespaces"].as_array_mut().unwrap().push(json!({ "type": "user" }));
    let ranges = json!([{ "containerID": 0, "hostID": 300_000, "size": 1000 },
        { "containerID": 1000, "hostID": 310_000, "size": 2000 }]);
    bundle.config["linux"]["uidMappings"] = ranges.clone();
    bundle.config["linux"]["gidMappings"] = ranges;
    let finished = bundle.run();
    let map = "         0     300000       1000\n      1000     310000       2000\n";
    assert_eq!(finished.expect_ok().out(), format!("0\n{map}null\n"), "{finished}");
    bundle.expect_gone();
}

fn descriptors_stay_outside(place: &Place, runtime: Oci) {
    let bundle = Bundle::new(place, runtime, "ls /proc/self/fd | wc -l; echo up; exec sleep 60");
    bundle.write();
    let line = bundle.command(&["run", "--detach", &bundle.id()]);
    let words: Vec<String> = line.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    // A caller that leaks: a directory of the host, open in every process that it starts.
    let script = "exec 5</ 6</etc/passwd 7</root; exec \"$0\" \"$@\" >>\"$OUT\" 2>&1";
    let mut command = place.command("/bin/sh");
    command.args(["-c", script]).arg(line.get_program()).args(words).current_dir(bundle.dir());
    command.env("OUT", place.at("out"));
    place.finish(command).expect_ok();
    bundle.wait_for("up");
    // The three standard ones, and the one with which ls(1) reads the directory.
    assert_eq!(bundle.output().lines().next(), Some("4"), "{}", bundle.output());
}

fn preserved_descriptors_come_in(place: &Place, runtime: Oci) {
    let bundle = Bundle::new(place, runtime, "cat <&3; ls /proc/self/fd | wc -l");
    bundle.write();
    let file = place.write("outside/handed", "handed over\n");
    let line = bundle.command(&["run", "--preserve-fds", "1", &bundle.id()]);
    let words: Vec<String> = line.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let mut command = place.command("/bin/sh");
    command
        .args(["-c", "exec 3<\"$FILE\" 4</etc/passwd; exec \"$0\" \"$@\""])
        .arg(line.get_program())
        .args(words);
    command.env("FILE", file).current_dir(bundle.dir());
    let finished = place.finish(command);
    assert_eq!(finished.expect_ok().out(), "handed over\n5\n", "{finished}");
}

/// CVE-2024-21626: a working directory that is a descriptor of the runtime's, open outside.
fn no_working_directory_leads_out(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(place, runtime, "pwd; ls ../../../etc/shadow");
    for fd in 3..20 {
        bundle.config["process"]["cwd"] = json!(format!("/proc/self/fd/{fd}"));
        let finished = bundle.run();
        assert!(!finished.out().contains("shadow"), "{fd}: {finished}");
    }
    bundle.expect_gone();
}

/// A root file system whose links lead to the host: what is mounted there is mounted inside.
fn links_in_the_root_stay_inside(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(place, runtime, "cat /link/file; ls -d /link/file");
    let victim = place.make("outside/victim");
    std::os::unix::fs::symlink(&victim, bundle.root("link")).unwrap();
    fs::write(place.at("outside/file"), "content\n").unwrap();
    bundle.config["mounts"].as_array_mut().unwrap().push(json!({ "destination": "/link", "type": "bind",
        "source": place.at("outside"), "options": ["rbind", "ro"] }));
    let finished = bundle.run();
    assert!(finished.out().starts_with("content\n"), "{finished}");
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
    bundle.expect_gone();
}

/// B2 of libcontainer's faults: the file is masked, not the link to it.
fn a_masked_link_masks_what_it_leads_to(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(place, runtime, "cat /real /link; ls /dir-link; echo end");
    fs::write(bundle.root("real"), "SECRET\n").unwrap();
    fs::create_dir(bundle.root("dir")).unwrap();
    fs::write(bundle.root("dir/SECRET"), "").unwrap();
    std::os::unix::fs::symlink("real", bundle.root("link")).unwrap();
    std::os::unix::fs::symlink("dir", bundle.root("dir-link")).unwrap();
    bundle.config["linux"]["maskedPaths"] = json!(["/link", "/dir-link", "/nosuch"]);
    let finished = bundle.run();
    assert_eq!(finished.expect_ok().out(), "end\n", "{finished}");
}

/// B4 of libcontainer's faults: a filter without `noNewPrivileges`, and fewer capabilities.
fn a_filter_without_no_new_privileges(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(
        place,
        runtime,
        "grep -E '^(NoNewPrivs|Seccomp:|CapEff|CapBnd)' /proc/self/status | tr -d '\\t'; mkdir /tmp/x && echo made",
    );
    bundle.config["linux"]["seccomp"] = json!({ "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{ "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO" }] });
    for value in [json!(false), Value::Null] {
        bundle.config["process"]["noNewPrivileges"] = value;
        let finished = bundle.run();
        let caps = "0000000020000420";
        assert_eq!(
            finished.out(),
            format!("CapEff:{caps}\nCapBnd:{caps}\nNoNewPrivs:0\nSeccomp:2\n"),
            "{finished}"
        );
    }
}

fn a_filter_that_names_what_is_allowed(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(place, runtime, "");
    bundle.config["linux"]["seccomp"] = json!({ "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1,
        "syscalls": [{ "names": ALLOWED, "action": "SCMP_ACT_ALLOW" }] });
    bundle.script("echo works");
    let finished = bundle.run();
    assert_eq!(finished.expect_ok().out(), "works\n", "{finished}");
    bundle.script("mkdir /tmp/x; echo $?");
    let finished = bundle.run();
    assert!(finished.err().contains("Operation not permitted"), "{finished}");
}

/// What a shell and the runtimes themselves need.
const ALLOWED: &[&str] = &[
    "read",
    "write",
    "open",
    "close",
    "stat",
    "fstat",
    "lstat",
    "poll",
    "lseek",
    "mmap",
    "mprotect",
    "munmap",
    "brk",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "ioctl",
    "access",
    "pipe",
    "select",
    "sched_yield",
    "dup",
    "dup2",
    "nanosleep",
    "getpid",
    "socket",
    "connect",
    "accept",
    "sendto",
    "recvfrom",
    "sendmsg",
    "recvmsg",
    "exit",
    "wait4",
    "kill",
    "uname",
    "fcntl",
    "getcwd",
    "chdir",
    "getuid",
    "getgid",
    "geteuid",
    "getegid",
    "setpgid",
    "getppid",
    "setsid",
    "setgroups",
    "capget",
    "capset",
    "sigaltstack",
    "statfs",
    "fstatfs",
    "prctl",
    "arch_prctl",
    "gettid",
    "futex",
    "getdents64",
    "set_tid_address",
    "exit_group",
    "epoll_ctl",
    "epoll_pwait",
    "openat",
    "newfstatat",
    "readlinkat",
    "faccessat",
    "set_robust_list",
    "accept4",
    "prlimit64",
    "getrandom",
    "execve",
    "execveat",
    "clone",
    "tgkill",
    "rseq",
    "close_range",
    "readlink",
];

fn a_terminal_in_the_foreground(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(
        place,
        runtime,
        "until [ \"$(stty size 2>&1)\" = '24 80' ]; do sleep 0.05; done; stty size; test -t 0 && test -t 1 && echo tty; read x; echo got-$x; exit 9",
    );
    bundle.config["process"]["terminal"] = json!(true);
    bundle.write();
    let command = bundle.command(&["run", &bundle.id()]);
    let mut terminal = codeoid_tests::Terminal::start(place, &command);
    terminal.expect("24 80");
    terminal.expect("tty");
    terminal.type_in("word\r");
    terminal.expect("got-word");
    let status = terminal.wait();
    assert_eq!(status.code(), Some(9));
    bundle.expect_gone();
}

fn a_terminal_needs_somebody(place: &Place, runtime: Oci) {
    let mut bundle = Bundle::new(place, runtime, "true");
    bundle.config["process"]["terminal"] = json!(true);
    bundle.write();
    let finished = bundle.oci(&["create", &bundle.id()]);
    assert!(finished.code() == 1 && finished.err().contains("without setting console socket"), "{finished}");
    bundle.config["process"]["terminal"] = json!(false);
    bundle.write();
    let finished = bundle.oci(&["create", "--console-socket", "/nosuch", &bundle.id()]);
    assert!(finished.code() == 1 && finished.err().contains("cannot use console socket"), "{finished}");
    bundle.expect_gone();
}

fn an_end_that_comes_at_once_is_seen(place: &Place, runtime: Oci) {
    let bundle = Bundle::new(place, runtime, "exit 3");
    bundle.write();
    for _ in 0..10 {
        assert_eq!(bundle.oci(&["run", &bundle.id()]).code(), 3);
    }
    bundle.expect_gone();
}

each_runtime!(
    the_life_of_a_container,
    exit_codes_and_signals,
    errors_in_the_words_that_engines_read,
    what_is_not_there,
    hostile_names,
    a_name_is_taken_once,
    bad_bundles_leave_nothing,
    the_process_is_as_asked_for,
    the_root_and_its_mounts,
    a_pid_namespace_is_shared,
    devices_are_made,
    devices_from_outside,
    the_network_has_a_loopback,
    hooks_run_in_their_order,
    processes_join_a_container,
    limits_bite_and_change,
    frozen_and_thawed,
    without_a_pid_namespace_nothing_stays,
    a_user_namespace_maps_and_is_joined,
    a_user_namespace_of_several_ranges,
    descriptors_stay_outside,
    preserved_descriptors_come_in,
    no_working_directory_leads_out,
    links_in_the_root_stay_inside,
    a_masked_link_masks_what_it_leads_to,
    a_filter_without_no_new_privileges,
    a_filter_that_names_what_is_allowed,
    a_terminal_in_the_foreground,
    a_terminal_needs_somebody,
    an_end_that_comes_at_once_is_seen,
);
