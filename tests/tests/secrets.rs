//! Other names for what is hidden: links, mounts, other processes' views. (Descriptors that are handed on: turn.rs.)

#![cfg(test)]

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Stdio;

use codeoid_tests::{Place, Requires, each_identity};

/// Python: prints the content of each file that can be read.
const READ: &str = "\
import sys
for path in sys.argv[1:]:
    try: print(path, open(path, errors='replace').read())
    except OSError: pass
print('read')
";

fn a_link_to_a_secret_leads_nowhere(place: &Place) {
    let workspace = place.make("home/w");
    place.write("home/.netrc", "SECRET");
    place.write("home/.aws/credentials", "SECRET");
    // As managers of such files do it: the secret itself is a link.
    place.write("outside/dotfiles/npmrc", "SECRET");
    place.write("outside/dotfiles/ssh/id_ed25519", "SECRET");
    symlink(place.at("outside/dotfiles/npmrc"), place.at("home/.npmrc")).unwrap();
    symlink("../outside/dotfiles/ssh", place.at("home/.ssh")).unwrap();
    symlink("../.netrc", workspace.join("link")).unwrap();
    symlink("link", workspace.join("chain")).unwrap();
    symlink(place.at("home/.aws"), workspace.join("directory")).unwrap();
    symlink("/proc/self/cwd/../.netrc", workspace.join("by-proc")).unwrap();
    let home = place.home().display().to_string();
    let outside = place.at("outside/dotfiles").display().to_string();
    let mut paths = ["link", "chain", "directory/credentials", "by-proc", "../.netrc", "./../w/../.netrc"]
        .map(str::to_owned)
        .to_vec();
    for name in [".netrc", ".npmrc", ".ssh/id_ed25519", ".aws/credentials"] {
        paths.extend(
            ["", "/proc/self/root", "/proc/1/root", "/proc/self/cwd/../..", "//", "/./"]
                .map(|before| format!("{before}{home}/{name}")),
        );
    }
    paths.extend(["npmrc", "ssh/id_ed25519"].map(|name| format!("{outside}/{name}")));
    let words: Vec<&str> = paths.iter().map(String::as_str).collect();
    let mut control = place.command("/usr/bin/python3");
    control.args(["-c", READ]).args(&words).current_dir(&workspace);
    assert!(place.finish(control).out().matches("SECRET").count() > 12, "the control");
    for executor in ["libcontainer", "bwrap"] {
        let outcome = place.turn(&workspace).options(["--executor", executor]).python(READ, &words).run();
        assert_eq!(outcome.expect_ok().out(), "read", "{executor}: {outcome}");
    }
    // A link that the turn makes itself, to a name that the host makes afterwards.
    let script = "ln -s ../.git-credentials mine; echo ready; read go; cat mine 2>/dev/null; echo done";
    let mut running = place.turn(&workspace).sh(script).spawn();
    running.expect("ready");
    place.write("home/.git-credentials", "SECRET");
    running.say("go");
    assert_eq!(running.finish().expect_ok().out(), "ready\ndone");
}

fn a_turn_makes_no_other_name_for_a_secret(place: &Place) {
    let workspace = place.make("home/w");
    place.write("home/.netrc", "SECRET");
    place.write("home/.aws/credentials", "SECRET");
    let script = "ln ../.netrc hard; ln -P ../.aws/credentials hard2; cp -l ../.netrc hard3; mv ../.netrc moved; \
         mv ../.aws moved2; mkdir b; mount --bind .. b; \
         unshare -Urm sh -c 'mkdir -p u; mount --bind .. u; umount -l ..; cat u/.netrc ../.netrc u/.aws/credentials'; \
         cat hard hard2 hard3 moved moved2/credentials b/.netrc; grep -rs SECRET . .. /run /tmp | grep -v grep; echo done";
    for executor in ["libcontainer", "bwrap"] {
        let outcome = place
            .turn(&workspace)
            .options(["--executor", executor])
            .sh(&format!("{{ {script}; }} 2>/dev/null"))
            .run();
        assert_eq!(outcome.expect_ok().out(), "done", "{outcome}");
    }
    assert_eq!(fs::read_to_string(place.at("home/.netrc")).unwrap(), "SECRET");
}

fn a_secret_that_has_another_name_is_named(place: &Place) {
    let workspace = place.make("home/w");
    let secret = place.write("home/.netrc", "SECRET");
    let outcome = place.turn(&workspace).sh("true").run();
    assert!(!outcome.warnings().contains("hard link"), "{outcome}");
    fs::hard_link(&secret, place.at("outside/other")).unwrap();
    let outcome = place.turn(&workspace).sh("cat ~/.netrc 2>/dev/null; true").run();
    assert_eq!(outcome.expect_ok().out(), "");
    assert!(
        outcome
            .warnings()
            .contains(&format!("{} is hidden, but the file has another name", secret.display())),
        "{outcome}"
    );
}

fn a_secret_that_is_mounted_elsewhere_is_hidden_there_too(place: &Place) {
    if !Requires::Root.met() {
        return;
    }
    let workspace = place.make("home/w");
    place.write("home/.netrc", "SECRET");
    place.write("home/.aws/credentials", "SECRET");
    place.write("outside/file", "");
    let all = ["directory", "home", "above"].map(|name| place.make(format!("outside/{name}")));
    let mounts = format!(
        "cd {}; mount --bind home/.aws outside/directory; mount --bind home/.netrc outside/file; \
         mount --bind home outside/home; mount --bind {} outside/above",
        place.at("").display(),
        place.at("").parent().unwrap().display()
    );
    let name = place.at("").file_name().unwrap().to_str().unwrap().to_owned();
    let above = all[2].join(name).display().to_string();
    let outside = place.at("outside").display().to_string();
    let paths = [
        format!("{outside}/directory/credentials"),
        format!("{outside}/file"),
        format!("{outside}/home/.netrc"),
        format!("{outside}/home/.aws/credentials"),
        format!("{above}/home/.netrc"),
        format!("{above}/home/.aws/credentials"),
    ];
    let words: Vec<&str> = paths.iter().map(String::as_str).collect();
    let mut control = place.command("/usr/bin/python3");
    control.args(["-c", READ]).args(&words);
    let control = place.finish_with_mounts(&mounts, &control);
    assert_eq!(control.out().matches("SECRET").count(), 6, "the control: {control}");
    for executor in ["libcontainer", "bwrap"] {
        let turn = place.turn(&workspace).options(["--executor", executor]).python(READ, &words);
        let outcome = place.finish_with_mounts(&mounts, &turn.to_command());
        assert_eq!(outcome.out(), "read\n", "{executor}: {outcome}");
    }
}

fn a_secret_below_a_mount_in_the_home_is_hidden(place: &Place) {
    if !Requires::Root.met() {
        return;
    }
    let workspace = place.make("home/w");
    place.make("home/.config");
    let secrets = [".config/gcloud/key", ".config/gh/hosts.yml"];
    let mounts = format!(
        "cd {}; mount -t tmpfs -o mode=755 config .config; mkdir -p .config/gcloud .config/gh .config/deep; \
         for name in {}; do echo SECRET >$name; done; mount -t tmpfs -o mode=755 deep .config/deep; \
         mkdir -p .config/deep/hid; echo SECRET >.config/deep/hid/x; echo shown >.config/shown; chown -R {} .config",
        place.home().display(),
        secrets.join(" "),
        place.identity().uid()
    );
    let at = |name: &str| place.home().join(name).display().to_string();
    let paths = [at(secrets[0]), at(secrets[1]), at(".config/deep/hid/x"), at(".config/shown")];
    let words: Vec<&str> = paths.iter().map(String::as_str).collect();
    let mut control = place.command("/usr/bin/python3");
    control.args(["-c", READ]).args(&words);
    let control = place.finish_with_mounts(&mounts, &control);
    assert_eq!(control.out().matches("SECRET").count(), 3, "the control: {control}");
    for executor in ["libcontainer", "bwrap"] {
        let options = ["--executor", executor, "--hide", &at(".config/deep/hid")];
        let turn = place.turn(&workspace).options(options).python(READ, &words);
        let outcome = place.finish_with_mounts(&mounts, &turn.to_command());
        assert_eq!(outcome.out(), format!("{} shown\n\nread\n", paths[3]), "{executor}: {outcome}");
    }
}

fn nothing_of_the_hosts_processes_can_be_read(place: &Place) {
    let workspace = place.make("home/w");
    let file = place.write("home/.netrc", "SECRET in a file");
    // A program of the caller's, with a secret in its environment, its arguments, its descriptors and its directory.
    let mut other = place.command("/usr/bin/python3");
    other.env("TOKEN", "SECRET in a variable").current_dir(place.make("home/.aws"));
    other
        .args(["-c", "import sys; f = open(sys.argv[1]); print('up', flush=True); sys.stdin.read()"])
        .arg(&file);
    other.arg("SECRET in an argument").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = other.spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    let pid = child.id();
    let look = format!(
        "cat /proc/{pid}/environ /proc/{pid}/cmdline /proc/{pid}/fd/3 /proc/{pid}/root{} 2>/dev/null | tr '\\0' '\\n' | \
         grep SECRET; ls /proc/{pid}/cwd 2>/dev/null; echo looked",
        file.display()
    );
    let outside = place.sh(&workspace, &look);
    assert_eq!(outside.out().matches("SECRET").count(), 4, "the control: {outside}");
    let all = "for p in /proc/[0-9]*; do cat $p/environ $p/cmdline 2>/dev/null | tr '\\0' '\\n' | \
               grep -a '^SECRET in\\|^TOKEN='; done; ";
    for executor in ["libcontainer", "bwrap"] {
        let turn = place.turn(&workspace).options(["--executor", executor]);
        let outcome = turn.sh(&format!("{all}{look}")).run();
        assert_eq!(outcome.expect_ok().out(), "looked", "{outcome}");
    }
    let _ = child.kill();
    let _ = child.wait();
}

each_identity! {
    a_link_to_a_secret_leads_nowhere,
    a_turn_makes_no_other_name_for_a_secret,
    a_secret_that_has_another_name_is_named,
    a_secret_that_is_mounted_elsewhere_is_hidden_there_too,
    a_secret_below_a_mount_in_the_home_is_hidden,
    nothing_of_the_hosts_processes_can_be_read,
}
