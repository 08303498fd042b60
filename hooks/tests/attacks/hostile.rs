//! Files that are no files, disks that are full, names that are no names.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::{capture, checked, kinds, picture, plant, usual};
use crate::fixture::Scratch;
use codeoid_hooks::shared::check::{self, Depth};
use codeoid_hooks::tree::Keep;

type Make = fn(&Path);

const KINDS: &[(&str, Make)] = &[
    ("fifo", |path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap()),
    ("socket", |path| drop(std::os::unix::net::UnixListener::bind(path).unwrap())),
    ("sparse", |path| std::fs::File::create(path).unwrap().set_len(1 << 30).unwrap()),
    ("latin", |path| std::fs::write(path, b"\xff\xfe/\n").unwrap()),
    ("link", |path| symlink("/dev/null", path).unwrap()),
    ("loop", |path| symlink(path.file_name().unwrap(), path).unwrap()),
    ("directory", |path| std::fs::create_dir(path).unwrap()),
    ("empty", |path| std::fs::write(path, "").unwrap()),
    ("device", |path| {
        if nix::unistd::geteuid().is_root() {
            let mode = nix::sys::stat::Mode::S_IRWXU;
            let zero = nix::sys::stat::makedev(1, 5);
            nix::sys::stat::mknod(path, nix::sys::stat::SFlag::S_IFCHR, mode, zero).unwrap();
        } else {
            // Only root can make one; it is a socket to everybody else's test.
            drop(std::os::unix::net::UnixListener::bind(path).unwrap());
        }
    }),
];

#[test]
fn files_of_the_wrong_kind_in_an_entry() {
    for (kind, make) in KINDS {
        for name in ["gitdir", "commondir", "HEAD", "index", "config.worktree", "locked", "logs/HEAD"] {
            println!("{kind} {name}");
            let s = usual();
            let baseline = capture(&s, "repo");
            let path = s.path("repo/.git/worktrees/feat").join(name);
            let _ = std::fs::remove_file(&path);
            make(&path);
            let findings = checked(&s, &baseline);
            // What is left is a file, or nothing, or what only its owner can judge.
            if ["gitdir", "commondir"].contains(&name) {
                assert!(path.symlink_metadata().unwrap().is_file(), "{kind} {name}: {findings:#?}");
                s.git("repo", ["worktree", "list"]);
            }
        }
    }
}

#[test]
fn files_of_the_wrong_kind_in_the_git_dir() {
    for (kind, make) in KINDS {
        for name in
            ["config", "HEAD", "index", "packed-refs", "info/attributes", "shallow", "hooks/pre-commit"]
        {
            println!("{kind} {name}");
            let s = usual();
            let baseline = capture(&s, "repo");
            let path = s.path("repo/.git").join(name);
            let _ = std::fs::remove_file(&path);
            make(&path);
            let findings = checked(&s, &baseline);
            if ["config", "HEAD"].contains(&name)
                && !(name == "HEAD" && ["sparse", "latin", "empty"].contains(kind))
            {
                s.git("repo", ["rev-parse", "--git-dir"]);
            }
            if ["info/attributes", "hooks/pre-commit"].contains(&name) {
                let left = path.symlink_metadata();
                assert!(left.is_err() || left.unwrap().is_dir(), "{kind} {name}: {findings:#?}");
            }
        }
    }
}

#[test]
fn an_entry_that_is_no_directory() {
    for (kind, make) in KINDS {
        println!("{kind}");
        let s = usual();
        let baseline = capture(&s, "repo");
        let path = s.path("repo/.git/worktrees/feat");
        std::fs::rename(&path, s.path("repo/.git/gone")).unwrap();
        make(&path);
        let findings = checked(&s, &baseline);
        if *kind != "directory" {
            assert!(kinds(&findings).contains(&"entry-moved"), "{kind}: {findings:#?}");
        }
        s.git("repo", ["worktree", "list"]);
        // A new one of that kind.
        make(&s.path("repo/.git/worktrees/new"));
        let _ = checked(&s, &baseline);
        s.git("repo", ["worktree", "list"]);
    }
}

#[test]
fn worktrees_of_the_wrong_kind() {
    for (kind, make) in KINDS {
        println!("{kind}");
        let s = usual();
        let baseline = capture(&s, "repo");
        std::fs::rename(s.path("repo/.git/worktrees"), s.path("repo/.git/gone")).unwrap();
        make(&s.path("repo/.git/worktrees"));
        let findings = checked(&s, &baseline);
        if *kind != "directory" {
            assert!(kinds(&findings).contains(&"directory-moved"), "{kind}: {findings:#?}");
            s.git("feat", ["status"]);
        }
    }
}

#[test]
fn names_that_are_not_utf8() {
    let s = usual();
    let baseline = capture(&s, "repo");
    let latin = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    for directory in ["worktrees", "hooks", "refs/heads", "modules", "info", "branches"] {
        let path = s.path("repo/.git").join(directory);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join(latin), "").unwrap();
    }
    let findings = checked(&s, &baseline);
    assert!(kinds(&findings).contains(&"hook-added"), "{findings:#?}");
    std::fs::create_dir(s.path("repo/.git/worktrees").join(b"\xfe".as_slice().to_os())).unwrap();
    assert!(kinds(&checked(&s, &baseline)).contains(&"entry-name"));
}

trait ToOs {
    fn to_os(&self) -> &std::ffi::OsStr;
}

impl ToOs for [u8] {
    fn to_os(&self) -> &std::ffi::OsStr {
        std::ffi::OsStr::from_bytes(self)
    }
}

#[test]
fn a_baseline_with_names_that_are_not_utf8() {
    let s = usual();
    let latin = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    std::fs::write(s.path("repo/.git/hooks").join(latin), b"\xff\xfe").unwrap();
    symlink(latin, s.path("repo/.git").join(latin)).unwrap();
    let baseline = capture(&s, "repo");
    let before = picture(&s.root);
    std::fs::remove_file(s.path("repo/.git/hooks").join(latin)).unwrap();
    assert_eq!(kinds(&checked(&s, &baseline)), ["hook-removed"]);
    super::same(&super::picture(&s.root), &before);
}

#[test]
fn thousands_of_planted_entries() {
    let s = usual();
    let baseline = capture(&s, "repo");
    let before = picture(&s.path("repo/.git/worktrees/feat"));
    for number in 0..2_000 {
        let entry = s.path("repo/.git/worktrees").join(format!("d{number}"));
        std::fs::create_dir(&entry).unwrap();
        for name in ["gitdir", "commondir", "HEAD"] {
            std::fs::copy(s.path("repo/.git/worktrees/feat").join(name), entry.join(name)).unwrap();
        }
    }
    let started = std::time::Instant::now();
    let findings = checked(&s, &baseline);
    println!("{:?} for {} findings", started.elapsed(), findings.len());
    assert_eq!(findings.len(), 1_000, "there is no end to what can be planted, but to what is listed");
    assert_eq!(std::fs::read_dir(s.path("repo/.git/worktrees")).unwrap().count(), 2);
    super::same(&super::picture(&s.path("repo/.git/worktrees/feat")), &before);
}

#[test]
fn a_deep_directory_in_a_git_dir() {
    let s = usual();
    let baseline = capture(&s, "repo");
    let mut path = s.path("repo/.git/refs/heads");
    for _ in 0..300 {
        path.push("d");
    }
    std::fs::create_dir_all(&path).unwrap();
    std::fs::create_dir_all(s.path("repo/.git/hooks/a/b/c/d/e/f/g/h/i/j/k")).unwrap();
    let _ = checked(&s, &baseline);
}

/// A file system of its own that is nearly full; as root only, because nobody else can mount one here.
fn small_disk(s: &Scratch, size: &str) -> bool {
    if !nix::unistd::geteuid().is_root() {
        println!("not run: needs root to mount a small file system");
        return false;
    }
    std::fs::create_dir(s.path("disk")).unwrap();
    let status = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", &format!("size={size}"), "codeoid-test"])
        .arg(s.path("disk"))
        .status()
        .unwrap();
    assert!(status.success());
    true
}

struct Unmount(std::path::PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_does_not_keep_the_attack_alive() {
    let s = Scratch::new();
    if !small_disk(&s, "2m") {
        return;
    }
    let _unmount = Unmount(s.path("disk"));
    s.repository("disk/repo");
    s.git("disk/repo", ["worktree", "add", "-q", "../feat"]);
    let baseline = capture(&s, "disk/repo");
    let config = s.text("disk/repo/.git/config");
    plant(&s, "disk/repo/.git");
    // To the last byte.
    let mut filler = std::fs::File::create(s.path("disk/filler")).unwrap();
    while std::io::Write::write(&mut filler, &[0; 4096]).is_ok() {}
    while std::io::Write::write(&mut filler, &[0; 1]).is_ok() {}
    drop(filler);
    // The copies have no room either.
    let keep = Keep::new(s.path("disk/kept"));
    let result = check::run(&baseline, Depth::Changed, &keep, &mut |_| ()).unwrap();
    assert!(result.failed.is_empty(), "{:?}", result.failed);
    assert!(!result.warnings.is_empty(), "that no copy could be kept is said");
    assert_eq!(s.text("disk/repo/.git/config"), config);
    assert!(!s.path("disk/repo/.git/hooks/pre-commit").exists());
    assert!(!s.path("disk/repo/.git/commondir").exists());
    assert_eq!(s.text("disk/repo/.git/worktrees/feat/commondir"), "../..\n");
    std::fs::remove_file(s.path("disk/filler")).unwrap();
    s.git("disk/repo", ["status"]);
    assert!(!s.path("PWNED").exists());
}

#[test]
fn a_full_state_directory_does_not_keep_the_attack_alive() {
    let s = usual();
    if !small_disk(&s, "1m") {
        return;
    }
    let _unmount = Unmount(s.path("disk"));
    std::fs::create_dir(s.path("disk/state")).unwrap();
    symlink(s.path("disk/state"), s.path("state")).unwrap();
    let journal = super::journal::turn(&s);
    super::journal::plant(&s);
    let mut filler = std::fs::File::create(s.path("disk/filler")).unwrap();
    while std::io::Write::write(&mut filler, &[0; 4096]).is_ok() {}
    while std::io::Write::write(&mut filler, &[0; 1]).is_ok() {}
    let state = codeoid_spec::state::StateDir::new(s.path("state"));
    let outcome =
        codeoid_hooks::finish::finish(journal, &state, codeoid_hooks::finish::Claims::default()).unwrap();
    assert_eq!(outcome.findings.len(), 6);
    let text = outcome.warnings.join("\n");
    assert!(text.contains("audit log") && text.contains("no copy"), "{text}");
    assert!(!s.path("repo/.git/commondir").exists());
    s.git("repo", ["status"]);
    assert!(codeoid_hooks::finish::recover(&state).is_empty());
}

/// Takes all permissions away. Root does not feel it; run these tests as somebody else, too.
fn close(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o000)).unwrap();
}

#[test]
fn permissions_that_are_taken_away_hide_nothing() {
    let closed = [
        "repo/.git",
        "repo/.git/hooks",
        "repo/.git/config",
        "repo/.git/refs/heads",
        "repo/.git/worktrees",
        "repo/.git/worktrees/feat",
        "repo/.git/worktrees/feat/commondir",
        "repo/.git/info",
        "repo/.git/modules",
        "repo/.git/modules/sub",
        "repo/.git/modules/sub/hooks",
        "repo/.git/objects",
        "repo/sub",
        "repo/sub/.git",
    ];
    for closed in closed {
        println!("{closed}");
        let s = usual();
        s.repository("lib");
        s.git("repo", ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "../lib", "sub"]);
        s.git("repo", ["commit", "-q", "-m", "sub"]);
        s.write("repo/.git/info/attributes", "* text\n");
        let baseline = capture(&s, "repo");
        plant(&s, "repo/.git");
        s.trap("repo/.git/modules/sub/hooks/pre-commit", "PWNED");
        s.write("repo/.git/info/attributes", "* filter=x\n");
        s.write("repo/sub/.git", "gitdir: /nowhere\n");
        close(&s.path(closed));
        let findings = checked(&s, &baseline);
        assert!(!s.path("repo/.git/hooks/pre-commit").exists(), "{closed}: {findings:#?}");
        assert!(!s.path("repo/.git/modules/sub/hooks/pre-commit").exists(), "{closed}");
        assert!(!s.path("repo/.git/commondir").exists(), "{closed}");
        assert_eq!(s.text("repo/.git/worktrees/feat/commondir"), "../..\n", "{closed}");
        assert_eq!(s.text("repo/.git/info/attributes"), "* text\n", "{closed}");
        assert!(!s.text("repo/.git/config").contains("fsmonitor"), "{closed}");
        assert!(s.text("repo/sub/.git").contains("modules/sub"), "{closed}");
        s.git("repo", ["status"]);
        s.git("feat", ["status"]);
    }
}

#[test]
fn what_is_flooded_does_not_hide_the_rest() {
    let s = usual();
    s.write("repo/.git/hooks/pre-push", "#!/bin/sh\n");
    let baseline = capture(&s, "repo");
    for number in 0..3_000 {
        s.write(format!("repo/.git/hooks/h{number}"), "");
    }
    for number in 0..10_100 {
        let module = s.path(&format!("repo/.git/modules/m{number}"));
        std::fs::create_dir_all(module.join("objects")).unwrap();
        std::fs::write(module.join("HEAD"), "").unwrap();
    }
    plant(&s, "repo/.git");
    let findings = checked(&s, &baseline);
    for kind in ["hooks-flooded", "not-judged", "commondir-planted", "entry-commondir-changed"] {
        assert!(kinds(&findings).contains(&kind), "{kind}: {:?}", kinds(&findings));
    }
    assert!(!s.path("repo/.git/hooks/pre-commit").exists());
    assert!(s.path("repo/.git/hooks/pre-push").exists());
    s.git("feat", ["status"]);
}

#[test]
fn locks_that_would_stop_the_restore() {
    let armed = |s: &Scratch| {
        let mut config = s.text("repo/.git/config");
        config.push_str("[core]\n\tfsmonitor = /nowhere\n");
        s.write("repo/.git/config", &config);
    };
    // A directory is a lock that nobody can give back.
    let s = usual();
    let baseline = capture(&s, "repo");
    armed(&s);
    std::fs::create_dir(s.path("repo/.git/config.lock")).unwrap();
    std::fs::create_dir_all(s.path("repo/.git/refs/heads/main.lock/x")).unwrap();
    let findings = checked(&s, &baseline);
    assert_eq!(kinds(&findings), ["config-changed", "special-file-planted"]);
    s.git("repo", ["commit", "-q", "--allow-empty", "-m", "x"]);
    // One that a process holds, for whatever reason.
    let s = usual();
    let baseline = capture(&s, "repo");
    armed(&s);
    let held = std::fs::File::create(s.path("repo/.git/config.lock")).unwrap();
    let mut holder = std::process::Command::new("sleep").arg("60").stdin(held).spawn().unwrap();
    let findings = checked(&s, &baseline);
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(kinds(&findings), ["config-changed"]);
    assert!(!s.text("repo/.git/config").contains("fsmonitor"));
}

/// Another turn that still lives may touch an entry without end, so that no look finds it as the one before.
#[test]
fn an_entry_that_is_kept_in_motion_hides_nothing() {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    let s = usual();
    let baseline = capture(&s, "repo");
    let (times, end) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (name, times, end) = (s.path("repo/.git/worktrees/feat/ORIG_HEAD"), &times, &end);
        scope.spawn(move || {
            while end.load(SeqCst) == 0 {
                std::fs::write(&name, "").unwrap();
                std::fs::remove_file(&name).unwrap();
                times.fetch_add(1, SeqCst);
            }
        });
        while times.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        for _ in 0..5 {
            s.write("repo/.git/worktrees/feat/commondir", "/nowhere\n");
            let keep = Keep::new(s.path("kept"));
            let started = std::time::Instant::now();
            let result = check::run(&baseline, Depth::Changed, &keep, &mut |_| ());
            let took = started.elapsed();
            let ended = result.is_ok_and(|result| {
                kinds(&result.findings) == ["entry-commondir-changed"] && result.failed.is_empty()
            });
            let text = s.text("repo/.git/worktrees/feat/commondir");
            if !ended || text != "../..\n" || took.as_secs() > 10 {
                end.store(1, SeqCst);
                panic!("{ended} {text:?} {took:?}");
            }
        }
        end.store(1, SeqCst);
    });
    s.git("feat", ["status"]);
}

/// Somebody's `git log` in a pager may stay for days. A commit that waits for its editor is in the middle of something.
#[test]
fn a_git_that_only_reads_keeps_nothing_alive() {
    let s = usual();
    s.write("message", &"long\n".repeat(30_000));
    s.git("repo", ["commit", "-q", "--allow-empty", "-F", "../message"]);
    s.write("repo/file", &"long\n".repeat(60_000));
    // Nobody reads what it prints, so it waits as with a pager.
    let readers: [(&[&str], bool); 4] = [
        (&["log"], true),
        (&["show", "HEAD"], true),
        (&["-c", "a.b=c", "diff"], true),
        (&["commit", "--allow-empty"], false),
    ];
    for (line, only_reads) in readers {
        let baseline = capture(&s, "repo");
        s.write("repo/.git/refs/heads/x.lock", "");
        s.write("repo/.git/worktrees/half/HEAD", "ref: refs/heads/half\n");
        let mut command = s.command("repo");
        command.args(line).env("GIT_EDITOR", "sleep 60; false").stdout(std::process::Stdio::piped());
        // With its editor, which would outlive it.
        let mut git = std::os::unix::process::CommandExt::process_group(&mut command, 0).spawn().unwrap();
        let group = nix::unistd::Pid::from_raw(i32::try_from(git.id()).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(git.try_wait().unwrap().is_none(), "{line:?} does not wait: the control");
        let findings = checked(&s, &baseline);
        nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL).unwrap();
        git.wait().unwrap();
        let found = kinds(&findings);
        println!("{line:?} {found:?}");
        assert_eq!(found.contains(&"lock-left-behind"), only_reads, "{line:?}: {found:?}");
        assert_eq!(found.iter().any(|kind| kind.starts_with("entry-")), only_reads, "{line:?}: {found:?}");
        let _ = std::fs::remove_file(s.path("repo/.git/refs/heads/x.lock"));
        let _ = std::fs::remove_dir_all(s.path("repo/.git/worktrees/half"));
    }
}

#[test]
fn an_editor_that_keeps_a_git_waiting_keeps_no_lock_alive() {
    let s = usual();
    let baseline = capture(&s, "repo");
    s.write("repo/.git/index.lock", "");
    let mut command = s.command("repo");
    let mut git = command
        .args(["-c", "core.quotePath=false", "cat-file", "--batch"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let findings = checked(&s, &baseline);
    git.kill().unwrap();
    git.wait().unwrap();
    assert_eq!(kinds(&findings), ["lock-left-behind"]);
}

#[test]
fn an_entry_that_git_is_just_removing_is_left_to_it() {
    let remove = |s: &Scratch| {
        std::fs::remove_dir_all(s.path("feat")).unwrap();
        std::fs::remove_file(s.path("repo/.git/worktrees/feat/gitdir")).unwrap();
        std::fs::remove_file(s.path("repo/.git/worktrees/feat/commondir")).unwrap();
    };
    let s = usual();
    let baseline = capture(&s, "repo");
    remove(&s);
    // A shell by the name of git, in the middle of `git worktree`.
    let git = s.path("git");
    std::fs::copy("/bin/sh", &git).unwrap();
    let mut child = std::process::Command::new(&git)
        .args(["-c", "sleep 60; true", "worktree"])
        .current_dir(s.path("repo"))
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    let before = picture(&s.root);
    let findings = checked(&s, &baseline);
    super::same(&picture(&s.root), &before);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(findings, []);
    // Nobody is removing it: the entry is whole again, as it was.
    assert!(kinds(&checked(&s, &baseline)).contains(&"entry-gitdir-changed"));
}

#[test]
fn files_where_directories_belong() {
    let s = usual();
    let baseline = capture(&s, "repo");
    std::fs::remove_dir_all(s.path("repo/.git/worktrees")).unwrap();
    std::fs::write(s.path("repo/.git/worktrees"), "").unwrap();
    assert_eq!(kinds(&checked(&s, &baseline)), ["entry-deleted", "worktrees-replaced"]);
    s.git("feat", ["reset", "-q"]);
    let baseline = capture(&s, "repo");
    std::fs::remove_dir_all(s.path("repo/.git/worktrees/feat")).unwrap();
    std::fs::write(s.path("repo/.git/worktrees/feat"), "").unwrap();
    assert_eq!(kinds(&checked(&s, &baseline)), ["entry-deleted", "entry-replaced"]);
    s.git("feat", ["reset", "-q"]);
}

/// More entries than a process may hold files open, each with a lock in it: who is at work is asked once for all
/// of them, not for each.
#[test]
fn very_many_planted_entries_are_judged_in_one_go() {
    const COUNT: usize = 900;
    let s = usual();
    let baseline = capture(&s, "repo");
    for number in 0..COUNT {
        s.write(format!("repo/.git/worktrees/e{number}/gitdir"), "x\n");
        s.write(format!("repo/.git/worktrees/e{number}/index.lock"), "");
    }
    let (soft, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    let limit = |soft| nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, soft, hard);
    limit(256).unwrap();
    let findings = checked(&s, &baseline);
    limit(soft).unwrap();
    let of = |kind: &str| findings.iter().filter(|finding| finding.kind == kind).count();
    assert_eq!(of("entry-commondir-changed"), COUNT);
    assert_eq!(of("lock-left-behind"), COUNT);
    assert!(checked(&s, &baseline).is_empty(), "a second check finds nothing");
}
