//! What a turn sees and may write: each sentence of the sandbox's view as a probe from inside.

#![cfg(test)]

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use codeoid_tests::{CONNECT, Identity, Layout, Listener, Outcome, Place, Repo, each_identity};

/// Python: for each argument, tries to create that file; prints the path and `written` or the error's name.
const WRITE: &str = "\
import errno, os, sys
for path in sys.argv[1:]:
    try:
        with open(path, 'w') as f: f.write('x')
        print(path, 'written')
    except OSError as e:
        print(path, errno.errorcode[e.errno])
";

/// Python: for each argument, prints the path and its content, or the error's name.
const READ: &str = "\
import errno, sys
for path in sys.argv[1:]:
    try:
        print(path, open(path).read().strip() or 'empty')
    except OSError as e:
        print(path, errno.errorcode[e.errno])
";

/// What a probe printed about a path.
fn result(outcome: &Outcome, path: &str) -> String {
    let out = outcome.out();
    let line = out.lines().find_map(|line| line.strip_prefix(path)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("nothing about {path}: {outcome}")).to_owned()
}

/// Secrets that every sandbox hides, below the home.
const SECRETS: [&str; 14] = [
    ".ssh/id_ed25519",
    ".gnupg/private-keys-v1.d/key",
    ".aws/credentials",
    ".azure/token",
    ".config/gcloud/credentials.db",
    ".kube/config",
    ".docker/config.json",
    ".git-credentials",
    ".netrc",
    ".npmrc",
    ".vault-token",
    ".password-store/x.gpg",
    ".local/share/keyrings/login.keyring",
    ".bash_history",
];

fn name(path: &Path) -> String {
    path.to_str().expect("places have plain names").to_owned()
}

/// A directory of the identity in a host directory that every sandbox has for itself.
struct Scratch(PathBuf);

impl Scratch {
    fn new(place: &Place, parent: &str) -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let serial = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("codeoid-tests-{}-{}-{serial}", std::process::id(), place.identity().uid());
        let path = PathBuf::from(parent).join(name);
        fs::create_dir_all(&path).expect("it is world-writable");
        place.own(&path);
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn nothing_outside_can_be_written(place: &Place) {
    let workspace = place.make("home/w");
    let outside = place.make("outside/mine");
    let paths = [
        "/x",
        "/etc/x",
        "/usr/x",
        "/usr/local/bin/x",
        "/opt/x",
        "/srv/x",
        "/var/x",
        "/var/lib/x",
        "/home/x",
        "/boot/x",
        "/sys/kernel/x",
        "/sys/kernel/uevent_helper",
    ];
    let mine = [name(&outside.join("x")), name(&place.at("x")), name(&place.at("reports/x"))];
    let all: Vec<&str> = paths.into_iter().chain(mine.iter().map(String::as_str)).collect();
    let outcome = place.turn(&workspace).python(WRITE, &all).run();
    outcome.expect_ok();
    for path in &all {
        let result = result(&outcome, path);
        assert!(["EROFS", "EACCES", "ENOENT", "EPERM"].contains(&result.as_str()), "{path}: {outcome}");
    }
    for path in &mine {
        assert_eq!(result(&outcome, path), "EROFS", "{path}: a plain and honest answer: {outcome}");
    }
    // Changing what is there is no way round.
    place.write("outside/mine/file", "kept");
    let script = format!(
        "cd {}; rm file; mv file other; chmod 777 file; ln file hard; ln -s x soft; mkdir d; touch file; \
         truncate -s 0 file; chown $(id -u) file; (echo x >>file); true",
        outside.display()
    );
    place.turn(&workspace).sh(&script).run().expect_ok();
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "kept");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
}

fn the_workspace_is_writable_and_what_write_lists(place: &Place) {
    let workspace = place.make("home/w");
    let extra = place.make("outside/extra");
    let inside = [name(&workspace.join("x")), name(&extra.join("x"))];
    let words: Vec<&str> = inside.iter().map(String::as_str).collect();
    let outcome = place.turn(&workspace).options(["--write", &name(&extra)]).python(WRITE, &words).run();
    for path in &inside {
        assert_eq!(result(&outcome, path), "written", "{outcome}");
        assert_eq!(fs::read_to_string(path).unwrap(), "x");
    }
    let outcome = place.turn(&workspace).python(WRITE, &[&name(&extra.join("y"))]).run();
    assert_eq!(result(&outcome, &name(&extra.join("y"))), "EROFS", "{outcome}");
}

fn the_mounts_cannot_be_undone_from_inside(place: &Place) {
    let workspace = place.make("home/w");
    let script = "mount -o remount,rw / 2>&1; umount /proc 2>&1; mount --bind . /etc 2>&1; \
         unshare -m true && echo UNSHARED; unshare -Urm sh -c 'mount -o remount,rw /; umount -l /etc; \
         touch /etc/x && echo ESCAPED' 2>&1; \
         touch /etc/x && echo WRITTEN; true";
    let outcome = place.turn(&workspace).sh(script).run();
    let out = outcome.expect_ok().out();
    for word in ["UNSHARED", "ESCAPED", "WRITTEN"] {
        assert!(!out.contains(word), "{outcome}");
    }
}

fn tmp_var_tmp_and_dev_shm_are_private(place: &Place) {
    let workspace = place.make("home/w");
    for directory in ["/tmp", "/var/tmp", "/dev/shm"] {
        let scratch = Scratch::new(place, directory);
        let host_name = name(&scratch.0);
        let inside = format!("{directory}/codeoid-tests-inside-{}", std::process::id());
        let script = format!(
            "ls -A {directory} | wc -l; test -e {host_name} && echo VISIBLE; echo x >{inside} && \
                 echo written; stat -c %a {directory}"
        );
        let outcome = place.turn(&workspace).sh(&script).run();
        assert_eq!(outcome.expect_ok().out(), "0\nwritten\n1777", "{directory}: {outcome}");
        assert!(!PathBuf::from(inside).exists(), "{directory}");
    }
}

fn a_workspace_below_tmp_is_fine(place: &Place) {
    for directory in ["/tmp", "/var/tmp"] {
        let scratch = Scratch::new(place, directory);
        let other = Scratch(scratch.0.with_extension("other"));
        fs::create_dir(&other.0).unwrap();
        let outcome = place.turn(&scratch.0).sh(&format!("pwd -P; touch made; ls -A {directory}")).run();
        let expected =
            format!("{}\n{}", scratch.0.display(), scratch.0.file_name().unwrap().to_str().unwrap());
        assert_eq!(outcome.expect_ok().out(), expected, "{outcome}");
        assert!(scratch.0.join("made").exists());
    }
}

fn run_is_fresh_and_read_only_with_a_skeleton(place: &Place) {
    let workspace = place.make("home/w");
    let uid = place.identity().uid();
    let script = format!(
        "ls -A /run; echo --; touch /run/x 2>&1; mkdir /run/y 2>&1; mv /run/lock /run/l2 2>&1; \
             rm -rf /run/user 2>/dev/null; \
         touch /run/user/x 2>&1; stat -c '%a %u' /run/user/{uid}; \
         touch /run/lock/ok /run/user/{uid}/ok && echo writable; \
         test -d /var/run/lock && test -d /var/lock && echo links; echo runtime=$XDG_RUNTIME_DIR; ls -A {}",
        place.at("run").display()
    );
    place.write("run/host-file", "x");
    let outcome = place.turn(&workspace).sh(&script).run();
    let out = outcome.expect_ok().out();
    let (listing, rest) = out.split_once("--\n").unwrap();
    for entry in listing.lines() {
        let known =
            ["lock", "user", "shm", "systemd", "resolvconf", "NetworkManager", "netconfig", "codeoid-init"];
        assert!(known.contains(&entry), "{entry}: {outcome}");
    }
    assert_eq!(rest.matches("Read-only file system").count(), 4, "{outcome}");
    assert!(rest.contains(&format!("700 {uid}\nwritable\nlinks\nruntime=/run/user/{uid}")), "{outcome}");
    assert!(!rest.contains("host-file"), "the caller's own runtime directory is out of sight: {outcome}");
}

fn names_are_resolved_as_outside(place: &Place) {
    let workspace = place.make("home/w");
    let script = "cat /etc/resolv.conf | cksum; getent passwd $(id -u); getent hosts localhost | head -1; \
         cat /etc/mtab >/dev/null && echo mtab";
    let outside = place.sh(&workspace, script).out();
    let outcome = place.turn(&workspace).sh(script).run();
    assert_eq!(outcome.expect_ok().out(), outside.trim_end(), "{outcome}");
}

fn proc_is_new_and_the_hosts_settings_are_out_of_reach(place: &Place) {
    let workspace = place.make("home/w");
    let before = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let paths = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
        "/proc/sys/vm/drop_caches",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sysrq-trigger",
        "/proc/sys/vm/swappiness",
        "/proc/irq/default_smp_affinity",
    ];
    let outcome = place.turn(&workspace).python(WRITE, &paths).run();
    for path in paths {
        assert!(!result(&outcome, path).contains("written"), "{path}: {outcome}");
    }
    assert_eq!(fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap(), before);
    let outcome = place
        .turn(&workspace)
        .sh("cat /proc/self/comm; cat /proc/self/mountinfo | wc -l; \
         ls /proc/kcore /proc/keys >/dev/null 2>&1; head -c 1 /proc/kcore | wc -c")
        .run();
    assert!(outcome.expect_ok().out().starts_with("cat"), "{outcome}");
    assert!(outcome.out().ends_with('0'), "{outcome}");
}

fn dev_is_minimal_and_private(place: &Place) {
    let workspace = place.make("home/w");
    let script = "ls -A /dev | tr '\\n' ' '; echo; \
         echo x >/dev/null && head -c 3 /dev/zero | wc -c; head -c 3 /dev/urandom | wc -c; \
         test -e /dev/pts/ptmx && echo pts; \
         /usr/bin/python3 -c 'import os; os.openpty(); print(\"pty\")'; \
         mknod b b 8 0 2>/dev/null && echo MADE; touch /dev/codeoid-x; rm -f /dev/null 2>/dev/null; true";
    let outcome = place.turn(&workspace).sh(script).run();
    let out = outcome.expect_ok().out();
    let known = [
        "console", "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin",
        "stdout", "tty", "urandom", "zero",
    ];
    for node in out.lines().next().unwrap().split_whitespace() {
        assert!(known.contains(&node), "/dev/{node}: {outcome}");
    }
    assert!(out.ends_with("3\n3\npts\npty"), "{outcome}");
    assert!(Path::new("/dev/null").exists() && !Path::new("/dev/codeoid-x").exists());
}

fn home_overlay_keeps_changes_in_the_session(place: &Place) {
    let workspace = place.make("home/w");
    place.write("home/kept", "the host's\n");
    place.write("home/.cache/tool/data", "warm");
    let script = "echo changed >~/kept; echo new >~/new; rm ~/.cache/tool/data; \
         mkdir -p ~/.cache/other && echo x >~/.cache/other/y; cat ~/kept ~/new";
    let outcome = place.turn(&workspace).sh(script).run();
    assert_eq!(outcome.expect_ok().out(), "changed\nnew");
    assert_eq!(fs::read_to_string(place.at("home/kept")).unwrap(), "the host's\n");
    assert_eq!(fs::read_to_string(place.at("home/.cache/tool/data")).unwrap(), "warm");
    assert!(!place.at("home/new").exists() && !place.at("home/.cache/other").exists());
    let look = "cat ~/kept ~/new ~/.cache/other/y 2>/dev/null; test -e ~/.cache/tool/data && echo warm; true";
    let again = place.turn(&workspace).sh(look).run();
    assert_eq!(again.expect_ok().out(), "changed\nnew\nx", "the session's next turn: {again}");
    let other = place.turn(&workspace).session("s2").sh(look).run();
    assert_eq!(other.expect_ok().out(), "the host's\nwarm", "another session: {other}");
}

fn home_readonly_and_hidden(place: &Place) {
    let workspace = place.make("outside/w");
    place.write("home/file", "the host's");
    let file = name(&place.at("home/file"));
    let new = name(&place.at("home/new"));
    let outcome = place.turn(&workspace).options(["--home", "readonly"]).python(READ, &[&file]).run();
    assert_eq!(result(&outcome, &file), "the host's", "{outcome}");
    let outcome = place.turn(&workspace).options(["--home", "readonly"]).python(WRITE, &[&file, &new]).run();
    assert_eq!(
        (result(&outcome, &file), result(&outcome, &new)),
        ("EROFS".into(), "EROFS".into()),
        "{outcome}"
    );
    let outcome = place
        .turn(&workspace)
        .options(["--home", "hidden"])
        .sh("ls -A ~ | wc -l; touch ~/x; ls -ld ~ | cut -c1-10")
        .run();
    assert_eq!(outcome.expect_ok().out(), "0\ndrwx------", "{outcome}");
    assert!(!place.at("home/x").exists() && !new.is_empty());
}

fn home_keeps_its_mode(place: &Place) {
    let workspace = place.make("home/w");
    for (home, mode) in [("overlay", 0o700), ("readonly", 0o750), ("overlay", 0o755)] {
        fs::set_permissions(place.home(), fs::Permissions::from_mode(mode)).unwrap();
        let outcome = place
            .turn(&workspace)
            .session(format!("m{mode:o}"))
            .options(["--home", home])
            .sh("stat -c '%a %u' ~")
            .run();
        assert_eq!(
            outcome.expect_ok().out(),
            format!("{mode:o} {}", place.identity().uid()),
            "{home}: {outcome}"
        );
    }
}

fn secrets_do_not_exist(place: &Place) {
    let workspace = place.make("home/w");
    for secret in SECRETS {
        place.write(format!("home/{secret}"), "SECRET");
    }
    let paths: Vec<String> = SECRETS.iter().map(|secret| name(&place.home().join(secret))).collect();
    let words: Vec<&str> = paths.iter().map(String::as_str).collect();
    for home in ["overlay", "readonly", "hidden"] {
        let outcome = place.turn(&workspace).options(["--home", home]).python(READ, &words).run();
        for path in &words {
            assert_eq!(result(&outcome, path), "ENOENT", "{home} {path}: {outcome}");
        }
    }
    let listing = place
        .turn(&workspace)
        .sh("find ~ -name .local -prune -o -print 2>/dev/null; grep -rl SECRET ~ 2>/dev/null; true")
        .run();
    for hidden in [".netrc", ".git-credentials", "id_ed25519", "credentials.db"] {
        assert!(!listing.expect_ok().out().contains(hidden), "{listing}");
    }
    // No stand-in either: the turn's own file of that name is an ordinary one, and stays in the session.
    let outcome = place
        .turn(&workspace)
        .sh("echo mine >~/.netrc && cat ~/.netrc; mkdir -p ~/.ssh && echo k >~/.ssh/new && cat ~/.ssh/new")
        .run();
    assert_eq!(outcome.expect_ok().out(), "mine\nk", "{outcome}");
    assert_eq!(fs::read_to_string(place.at("home/.netrc")).unwrap(), "SECRET");
    assert!(!place.at("home/.ssh/new").exists());
}

fn the_password_hashes_are_a_secret(place: &Place) {
    let workspace = place.make("home/w");
    let outcome = place
        .turn(&workspace)
        .sh("cat /etc/shadow /etc/gshadow /etc/ssh/ssh_host_*_key 2>/dev/null | wc -c")
        .run();
    assert_eq!(outcome.expect_ok().out(), "0", "{outcome}");
}

fn the_administrators_home_does_not_exist_where_it_is_not_the_callers(place: &Place) {
    let workspace = place.make("home/w");
    // An ordinary user is kept out of it by its mode.
    let readable = place.sh(&workspace, "ls /root").ok();
    assert!(readable || place.identity() == Identity::Ordinary, "the control");
    let script = "ls /root >/dev/null 2>&1 && echo readable; ls / | grep -c ^root$";
    let outcome = place.turn(&workspace).sh(script).run();
    assert_eq!(outcome.out(), if readable { "0" } else { "1" }, "{outcome}");
}

fn hidden_paths_do_not_exist(place: &Place) {
    let workspace = place.make("home/w");
    place.write("home/private/diary", "SECRET");
    place.write("outside/private/diary", "SECRET");
    place.write("home/single", "SECRET");
    place.write("home/w/.env", "SECRET");
    let hide =
        ["home/private", "outside/private", "home/single", "home/w/.env"].map(|path| name(&place.at(path)));
    let options: Vec<&str> = hide.iter().flat_map(|path| ["--hide", path.as_str()]).collect();
    let paths = ["home/private/diary", "outside/private/diary", "home/single", "home/w/.env"]
        .map(|path| name(&place.at(path)));
    let words: Vec<&str> = paths.iter().map(String::as_str).collect();
    let outcome = place.turn(&workspace).options(&options).python(READ, &words).run();
    outcome.expect_ok();
    for path in &words[..3] {
        assert_eq!(result(&outcome, path), "ENOENT", "{path}: {outcome}");
    }
    // In a place that the turn writes itself only a mask is possible; it must not look like an empty file.
    assert_ne!(result(&outcome, words[3]), "SECRET", "{outcome}");
    assert_ne!(result(&outcome, words[3]), "empty", "{outcome}");
    assert_eq!(fs::read_to_string(place.at("home/w/.env")).unwrap(), "SECRET");
}

fn what_is_the_kernels_cannot_be_hidden_and_that_is_said(place: &Place) {
    let workspace = place.make("home/w");
    for path in ["/proc", "/proc/cpuinfo", "/dev/null"] {
        place.turn(&workspace).options(["--hide", path]).sh("true").run().expect_refusal(&["hide", path]);
    }
}

fn the_command_line_of_the_shim_is_out_of_sight(place: &Place) {
    let workspace = place.make("home/w");
    let hidden = name(&place.at("home/merger-plans.txt"));
    for executor in ["libcontainer", "bwrap"] {
        let options = ["--executor", executor, "--hide", &hidden];
        let script = "for file in /proc/*/cmdline; do tr '\\0' ' ' <$file; done 2>/dev/null | grep -c 'merger-[p]lans'";
        let outcome = place.turn(&workspace).options(options).sh(script).run();
        assert_eq!(outcome.out(), "0", "{outcome}");
    }
}

fn a_runtime_directory_behind_a_symbolic_link_is_the_sandboxs_own(place: &Place) {
    let workspace = place.make("home/w");
    let runtime = place.make("outside/rt");
    let _listener = Listener::at(&runtime.join("bus"));
    std::os::unix::fs::symlink(&runtime, place.at("outside/link")).unwrap();
    let bus = name(&runtime.join("bus"));
    let outcome = place
        .turn(&workspace)
        .env("XDG_RUNTIME_DIR", place.at("outside/link"))
        .called_by(&format!("exec \"${{@:1:1}}\" --root {} \"${{@:2}}\"", name(&place.make("outside/root"))))
        .sh(&format!("ls {bus}"))
        .run();
    assert_ne!(outcome.code(), 0, "{outcome}");
}

fn a_hidden_path_behind_a_symbolic_link_is_hidden_under_both_names(place: &Place) {
    let workspace = place.make("home/w");
    place.write("home/real/secret", "SECRET");
    symlink("real/secret", place.at("home/link")).unwrap();
    let (link, real) = (name(&place.at("home/link")), name(&place.at("home/real/secret")));
    let outcome = place.turn(&workspace).options(["--hide", &link]).python(READ, &[&link, &real]).run();
    assert_eq!(
        (result(&outcome, &link), result(&outcome, &real)),
        ("ENOENT".into(), "ENOENT".into()),
        "{outcome}"
    );
}

fn what_a_dangling_link_leads_to_is_hidden_when_it_appears(place: &Place) {
    let workspace = place.make("home/w");
    place.make("home/w/sec");
    for executor in ["libcontainer", "bwrap"] {
        for name in ["sec/x", "lk", "lk2"] {
            let _ = fs::remove_file(workspace.join(name));
        }
        symlink("sec/x", workspace.join("lk")).unwrap();
        symlink("lk", workspace.join("lk2")).unwrap();
        let script = "echo up; read go; sleep 0.4; cat lk2 lk sec/x 2>/dev/null; echo done";
        let mut running = place
            .turn(&workspace)
            .options(["--executor", executor, "--hide", workspace.join("lk2").to_str().unwrap()])
            .sh(script)
            .spawn();
        running.expect("up");
        place.write("home/w/sec/x", "SECRET");
        std::thread::sleep(std::time::Duration::from_millis(300));
        running.say("go");
        let outcome = running.finish();
        assert_eq!(outcome.expect_ok().out(), "up\ndone", "{outcome}");
    }
}

/// The same for what is made during the turn; and whoever is in the directory already sees no more of it.
fn directories_around_what_is_hidden_later_cannot_be_renamed(place: &Place) {
    let workspace = place.make("home/w");
    for executor in ["libcontainer", "bwrap"] {
        let _ = fs::remove_dir_all(&workspace);
        place.make("home/w/a/b");
        place.make("home/w/a/b/c");
        let late = workspace.join("a/b/late");
        let options =
            ["--executor", executor, "--hide", &name(&late), "--read", &name(&workspace.join("a/b/c"))];
        let script = "cd a/b; echo up; read go; cat late ../../a/b/late \"$OLDPWD\"/a/b/late; cd ../..; \
                      mv a a2; mv a/b a/b2; (echo x >a/b/c/ro) || echo read-only; echo y >a/b/new && echo writable";
        let mut running =
            place.turn(&workspace).options(options).sh(&format!("({script}) 2>/dev/null")).spawn();
        running.expect("up");
        place.write("home/w/a/b/late", "SECRET");
        std::thread::sleep(std::time::Duration::from_millis(600));
        running.say("go");
        let outcome = running.finish();
        assert_eq!(outcome.out(), "up\nread-only\nwritable", "{outcome}");
        assert_eq!(fs::read_to_string(&late).unwrap(), "SECRET");
    }
}

/// A mask moves along with the directory that it lies in, and is gone with the turn: the next one would find what was
/// hidden under another name.
fn directories_around_what_is_hidden_cannot_be_renamed(place: &Place) {
    let workspace = place.make("home/w");
    for executor in ["libcontainer", "bwrap"] {
        let _ = fs::remove_dir_all(&workspace);
        place.make("home/w/a/b/c");
        place.make("home/w/s/t");
        let secret = place.write("home/w/a/b/secret", "SECRET");
        place.write("home/w/a/b/plain", "plain");
        place.write("home/w/a/b/c/ro", "");
        let socket = workspace.join("s/t/x.sock");
        let _listener = Listener::at(&socket);
        let read_only = workspace.join("a/b/c");
        let turn = || {
            let options = ["--executor", executor, "--hide", &name(&secret), "--read", &name(&read_only)];
            place.turn(&workspace).options(options)
        };
        let script = "mv a a2; mv a/b a/b2; mv s s2; mv s/t s/t2; rm -rf a s; cat a/b/plain; ls -A a/b | wc -l; \
                      (echo x >a/b/c/ro) || echo read-only; echo y >a/b/new && echo writable";
        let outcome = turn().sh(&format!("({script}) 2>/dev/null")).run();
        assert_eq!(outcome.out(), "2\nread-only\nwritable", "{outcome}");
        let find = "import os, socket, sys
for at, _, names in os.walk('.'):
    for name in names:
        path = os.path.join(at, name)
        try: print(path, open(path).read())
        except OSError: pass
        try: socket.socket(socket.AF_UNIX).connect(path); print(path, 'answers')
        except OSError: pass";
        let outcome = turn().python(find, &[]).run();
        assert!(!outcome.expect_ok().out().contains("SECRET"), "{outcome}");
        assert!(!outcome.out().contains("answers"), "{outcome}");
        assert_eq!(fs::read_to_string(&secret).unwrap(), "SECRET");
        assert!(socket.exists());
    }
}

fn what_is_made_between_the_plan_and_the_start_is_hidden(place: &Place) {
    let workspace = place.make("home/w");
    for executor in ["libcontainer", "bwrap"] {
        let (file, directory) = (workspace.join("late"), workspace.join("late.d"));
        let go = place.home().join(format!("go-{executor}"));
        let turn = place
            .turn(&workspace)
            .options(["--executor", executor, "--hide", &name(&file), "--hide", &name(&directory)])
            .env("CODEOID_TEST_WAIT_AT", "bundle")
            .env("CODEOID_TEST_WAIT_FOR", &go)
            .sh("cat late; cat late.d/x; echo done")
            .spawn();
        let waits = || place.sh(&place.home(), "ls .local/state/codeoid-shim/turns/*/stage").ok();
        assert!(codeoid_tests::wait_until(std::time::Duration::from_secs(10), waits));
        fs::write(&file, "SECRET").unwrap();
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("x"), "SECRET").unwrap();
        place.own(&file);
        place.own(&directory);
        fs::write(&go, "").unwrap();
        let outcome = turn.finish();
        assert_eq!(outcome.expect_ok().out(), "done", "{outcome}");
        fs::remove_file(file).unwrap();
        fs::remove_dir_all(directory).unwrap();
    }
}

fn sockets_in_directories_that_are_bound_as_they_are_are_hidden(place: &Place) {
    let workspace = place.make("home/w");
    let shown = place.make("outside/shown");
    let elsewhere = place.make("outside/srv");
    let paths = [workspace.join("w.sock"), shown.join("s.sock"), elsewhere.join("e.sock")];
    let _listeners: Vec<_> = paths.iter().map(|path| Listener::at(path)).collect();
    let connect = |path: &Path| {
        let control = place.command("/usr/bin/python3").args(["-c", CONNECT]).arg(path).output().unwrap();
        String::from_utf8_lossy(&control.stdout).trim().to_owned()
    };
    for executor in ["libcontainer", "bwrap"] {
        for path in &paths {
            assert_eq!(connect(path), "hello", "the control");
            let options = ["--executor", executor, "--read", shown.to_str().unwrap()];
            let outcome = place.turn(&workspace).options(options).python(CONNECT, &[&name(path)]).run();
            let out = outcome.expect_ok().out();
            assert!(["ECONNREFUSED", "ENOENT", "EACCES"].contains(&out.as_str()), "{outcome}");
            assert!(path.exists(), "what hides it is not made on the host");
        }
    }
    // By the path to it, and confirmed, it is shown.
    let socket = name(&paths[2]);
    let options = ["--read", &socket, "--confirm-widening"];
    let outcome = place.turn(&workspace).options(options).python(CONNECT, &[&socket]).run();
    assert_eq!(outcome.expect_ok().out(), "hello", "{outcome}");
    place.turn(&workspace).options(["--read", &socket]).sh("true").run().expect_refusal(&["widen", &socket]);
    // One that is gone leaves nothing behind, and a turn's own work.
    let own = "import socket; s = socket.socket(socket.AF_UNIX); s.bind('own.sock'); s.listen(); \
               c = socket.socket(socket.AF_UNIX); c.connect('own.sock'); print('own')";
    let outcome = place.turn(&workspace).python(own, &[]).run();
    assert_eq!(outcome.expect_ok().out(), "own", "{outcome}");
    let explained = place.shim(&["explain", "--workspace", workspace.to_str().unwrap(), "--json", &socket]);
    assert_eq!(explained.json()["access"], "none", "{explained}");
}

fn sockets_of_the_host_are_dead(place: &Place) {
    let workspace = place.make("home/w");
    let in_home = place.make("home/s").join("h.sock");
    let in_run = place.at("run/r.sock");
    let listeners = [Listener::at(&in_home), Listener::at(&in_run)];
    for path in [&in_home, &in_run] {
        let control = place.command("/usr/bin/python3").args(["-c", CONNECT]).arg(path).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&control.stdout).trim(), "hello", "the control: {control:?}");
    }
    for home in ["overlay", "readonly", "hidden"] {
        for path in [&in_home, &in_run] {
            let outcome =
                place.turn(&workspace).options(["--home", home]).python(CONNECT, &[&name(path)]).run();
            let out = outcome.expect_ok().out();
            assert!(["ECONNREFUSED", "ENOENT"].contains(&out.as_str()), "{home}: {outcome}");
        }
    }
    assert!(listeners.iter().all(|listener| listener.served() == 1), "only the controls");
}

fn the_turns_own_sockets_work(place: &Place) {
    let workspace = place.make("home/w");
    let program = "\
import os, socket, sys
for path in sys.argv[1:]:
    s = socket.socket(socket.AF_UNIX); s.bind(path); s.listen()
    c = socket.socket(socket.AF_UNIX); c.connect(path); print('ok', path)
s = socket.socket(socket.AF_UNIX); s.bind('\\0mine'); s.listen()
c = socket.socket(socket.AF_UNIX); c.connect('\\0mine'); print('ok abstract')
";
    let uid = place.identity().uid();
    let paths = [
        "/tmp/s".to_owned(),
        name(&workspace.join("s")),
        name(&place.at("home/s")),
        format!("/run/user/{uid}/s"),
    ];
    let words: Vec<&str> = paths.iter().map(String::as_str).collect();
    let outcome = place.turn(&workspace).python(program, &words).run();
    assert_eq!(outcome.expect_ok().out().lines().count(), 5, "{outcome}");
}

fn the_state_directory_and_runtime_directory_are_out_of_sight(place: &Place) {
    let workspace = place.make("home/w");
    place.turn(&workspace).command(["true"]).run().expect_ok();
    assert!(place.state().exists(), "the first turn made it");
    assert_eq!(fs::metadata(place.state()).unwrap().permissions().mode() & 0o777, 0o700);
    let runtime = if place.identity().uid().is_root() {
        "/run/codeoid-shim".to_owned()
    } else {
        name(&place.at("run/codeoid-shim"))
    };
    let script = format!("ls -d {} {runtime}; find ~/.local/state; true", place.state().display());
    let outcome = place.turn(&workspace).sh(&script).run();
    assert!(!outcome.expect_ok().out().contains("codeoid-shim"), "{outcome}");
}

fn checkouts_and_worktrees_in_the_home_are_read_only_not_copied(place: &Place) {
    let repo = Repo::new(place, Layout::Linked);
    let main = repo.main.clone().unwrap();
    let folder_of_other = place.make("home/src/repo-worktrees/other-00000000");
    let paths = [
        main.join("README.md"),
        repo.human.join("src/third"),
        repo.human.join("new"),
        folder_of_other.join("x"),
        repo.top.join("repo-worktrees/x"),
    ];
    let paths: Vec<String> = paths.iter().map(|path| name(path)).collect();
    let words: Vec<&str> = paths.iter().map(String::as_str).collect();
    let outcome = place.turn(&repo.workspace).python(WRITE, &words).run();
    for path in &words {
        assert_eq!(result(&outcome, path), "EROFS", "{outcome}");
    }
    repo.assert_sound(place);
}

fn workspaces_that_are_refused(place: &Place) {
    let hidden = place.make("home/.ssh/w");
    let file = place.write("home/file", "x");
    for (path, word) in [
        ("/", ""),
        ("/tmp", "below it"),
        ("/var/tmp", "below it"),
        ("/run", "below it"),
        ("/dev/shm", ""),
        ("/proc", ""),
        ("/sys", ""),
        ("/dev", ""),
        ("/home", "home"),
        (name(&place.home()).as_str(), "home"),
        (name(&place.at("run")).as_str(), ""),
        (name(&place.at("home/missing")).as_str(), "exist"),
        (name(&file).as_str(), "directory"),
        (name(&hidden).as_str(), "hidden"),
    ] {
        let outcome = place.turn(path).sh("touch escaped").run();
        outcome.expect_refusal(&["workspace", path, word]);
        assert!(outcome.err().contains("hint: "), "{outcome}");
    }
    let link = place.at("home/link");
    symlink(place.home(), &link).unwrap();
    place.turn(&link).command(["true"]).run().expect_refusal(&["home"]);
    place.turn(place.home().join("w/../../home")).command(["true"]).run().expect_refusal(&[]);
}

fn workspaces_with_difficult_names(place: &Place) {
    for directory in
        ["two words", "new\nline", "back\\slash", "Grüße", "a:b", "-dash", "co,mma", "quo'te\"", "%s$HOME"]
    {
        let workspace = place.make(format!("home/{directory}"));
        let outcome = place.turn(&workspace).sh("pwd -P; touch made").run();
        assert_eq!(outcome.expect_ok().out(), name(&workspace), "{outcome}");
        assert!(workspace.join("made").exists());
    }
    let real = place.make("home/real/deep");
    symlink("real", place.at("home/alias")).unwrap();
    let outcome = place.turn(place.at("home/alias/deep")).sh("pwd; pwd -P").run();
    assert_eq!(outcome.expect_ok().out(), format!("{0}\n{0}", real.display()), "the real path: {outcome}");
    let odd = place.home().join(std::ffi::OsString::from_vec(b"odd\xff".to_vec()));
    fs::create_dir(&odd).unwrap();
    place.own(&odd);
    place.turn(&odd).command(["true"]).run().expect_refusal(&["UTF-8"]);
}

each_identity! {
    directories_around_what_is_hidden_later_cannot_be_renamed,
    directories_around_what_is_hidden_cannot_be_renamed,
    what_is_made_between_the_plan_and_the_start_is_hidden,
    the_administrators_home_does_not_exist_where_it_is_not_the_callers,
    what_a_dangling_link_leads_to_is_hidden_when_it_appears,
    sockets_in_directories_that_are_bound_as_they_are_are_hidden,
    what_is_the_kernels_cannot_be_hidden_and_that_is_said,
    the_command_line_of_the_shim_is_out_of_sight,
    a_runtime_directory_behind_a_symbolic_link_is_the_sandboxs_own,
    nothing_outside_can_be_written,
    the_workspace_is_writable_and_what_write_lists,
    the_mounts_cannot_be_undone_from_inside,
    tmp_var_tmp_and_dev_shm_are_private,
    a_workspace_below_tmp_is_fine,
    run_is_fresh_and_read_only_with_a_skeleton,
    names_are_resolved_as_outside,
    proc_is_new_and_the_hosts_settings_are_out_of_reach,
    dev_is_minimal_and_private,
    home_overlay_keeps_changes_in_the_session,
    home_readonly_and_hidden,
    home_keeps_its_mode,
    secrets_do_not_exist,
    the_password_hashes_are_a_secret,
    hidden_paths_do_not_exist,
    a_hidden_path_behind_a_symbolic_link_is_hidden_under_both_names,
    sockets_of_the_host_are_dead,
    the_turns_own_sockets_work,
    the_state_directory_and_runtime_directory_are_out_of_sight,
    checkouts_and_worktrees_in_the_home_are_read_only_not_copied,
    workspaces_that_are_refused,
    workspaces_with_difficult_names,
}
