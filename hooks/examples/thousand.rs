//! How long finding a repository, guarding it, taking its baseline and checking it take with many registered
//! worktrees: `cargo run --release --example thousand -- [ENTRIES] [ROUNDS]`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use codeoid_hooks::shared::baseline::{self, Baseline};
use codeoid_hooks::shared::check::{self, Depth};
use codeoid_hooks::tree::Keep;
use codeoid_hooks::{layout, shared};

fn git(directory: &Path, args: &[&str]) {
    let status = Command::new("git")
        .current_dir(directory)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", directory)
        .args(["-c", "user.name=x", "-c", "user.email=x@y"])
        .args(args)
        .status();
    assert!(status.is_ok_and(|status| status.success()), "git {args:?}");
}

/// A repository with real entries of one real worktree each, as `git worktree add` makes them.
fn repository(root: &Path, entries: usize) -> PathBuf {
    let top = root.join("repo");
    std::fs::create_dir(&top).expect("a fresh directory");
    git(&top, &["init", "-q", "-b", "main"]);
    for number in 0..200 {
        std::fs::write(top.join(format!("file-{number}")), "text\n").expect("writable");
    }
    git(&top, &["add", "."]);
    git(&top, &["commit", "-q", "-m", "one"]);
    for number in 0..entries {
        git(&top, &["worktree", "add", "-q", "--no-checkout", &format!("../wt/w{number:04}")]);
        git(&root.join(format!("wt/w{number:04}")), &["read-tree", "HEAD"]);
    }
    top
}

struct Times(&'static str, Vec<Duration>);

impl Times {
    fn take<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.1.push(start.elapsed());
        result
    }
}

#[allow(clippy::print_stdout)]
fn main() {
    let mut args = std::env::args().skip(1).filter_map(|arg| arg.parse().ok());
    let entries: usize = args.next().unwrap_or(1_000);
    let rounds: usize = args.next().unwrap_or(30);
    let temp = tempfile::tempdir().expect("a temporary directory");
    let root = temp.path().canonicalize().expect("it was just made");
    let top = repository(&root, entries);
    let session = "bench".parse().expect("a valid name");
    // Younger than the clock's tick, nothing proves that it was not changed.
    std::thread::sleep(Duration::from_millis(100));
    let mut times =
        ["find", "guard", "capture", "to json", "from json", "check"].map(|n| Times(n, Vec::new()));
    let mut size = 0;
    for _ in 0..rounds {
        let [find, guarding, capture, write, read, checking] = &mut times;
        let repository = find.take(|| layout::find(&top, &session, &[])).expect("found").expect("there");
        assert_eq!(repository.entries.len(), entries);
        let guard = guarding.take(|| shared::guard(&repository)).expect("guarded");
        let baseline = capture.take(|| baseline::capture(&guard, &[])).expect("captured");
        let json = write.take(|| serde_json::to_vec(&baseline)).expect("plain data");
        size = json.len();
        let baseline: Baseline = read.take(|| serde_json::from_slice(&json)).expect("just written");
        let keep = Keep::new(root.join("kept"));
        let checked =
            checking.take(|| check::run(&baseline, Depth::Changed, &keep, &mut |_| ())).expect("checked");
        assert_eq!(checked.findings, [], "nothing was changed");
    }
    println!("{entries} entries, {rounds} rounds, baseline of {} KiB", size / 1024);
    for Times(name, mut list) in times {
        list.sort();
        let ms = |time: Duration| time.as_secs_f64() * 1_000.0;
        println!(
            "{name:>10}: median {:6.2} ms, worst {:6.2} ms",
            ms(list[list.len() / 2]),
            ms(list[list.len() - 1])
        );
    }
}
