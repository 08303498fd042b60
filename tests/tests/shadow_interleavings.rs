//! A host and two sessions do at random what people do with git, one after the other and at the same time. Whatever
//! the order: no commit of anybody is lost that its maker has not thrown away, nobody's commit undoes what somebody
//! else did, and git finds nothing wrong with the repository.
//!
//! `CODEOID_TESTS_SEED=N` runs one order again, `CODEOID_TESTS_SEEDS=N` that many; `CODEOID_TESTS_TELL=1` prints what
//! everybody did.

#![cfg(test)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use codeoid_tests::{Layout, Place, Repo, Running, each_identity};
use nix::sys::signal::Signal;

/// How many orders a run of the suite tries, for each identity.
const SEEDS: u64 = 2;
/// How often somebody's turn comes, in one order.
const ROUNDS: u32 = 6;

/// splitmix64: a seed is an order.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn pick<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[usize::try_from(self.below(list.len() as u64)).unwrap()]
    }
}

/// In a checkout; what is there twice is done twice as often.
const IN_A_CHECKOUT: [&str; 17] = [
    "commit", "commit", "commit", "commit", "commit", "commit", "amend", "undo", "rebase", "merge", "merge",
    "switch", "detach", "tag", "stash", "stop", "go",
];
/// In the checkout that several people share: nothing that exchanges the files below somebody's hands.
const IN_A_SHARED_ONE: [&str; 3] = ["commit", "tag", "commit"];
/// Anywhere.
const ANYWHERE: [&str; 13] = [
    "branch", "branch", "worktree", "worktree", "aside", "delete", "rename", "remove", "pack", "gc", "prune",
    "fetch", "sweep",
];
/// What a session does to others' branches; on the host nothing would stop it.
const TO_OTHERS: [&str; 2] = ["force", "wipe"];
const ON_THE_HOST: [&str; 2] = ["expire", "push"];

/// One of the three.
struct Person<'a> {
    name: &'static str,
    victims: [&'static str; 2],
    main: &'a Path,
}

impl Person<'_> {
    fn is_host(&self) -> bool {
        self.name == "host"
    }

    /// A script of some operations.
    fn script(&self, random: &mut Random, serial: &mut u64, mine: &str, others: &str) -> String {
        let library = include_str!("../fixtures/interleaving.sh");
        let (me, main) = (self.name, self.main.display());
        let mut script = format!("me={me} main={main} mine={mine}\n{library}\ncd {main}\n");
        for _ in 0..2 + random.below(5) {
            *serial += 1;
            let (number, which) = (*serial, random.below(7));
            let victim = random.pick(&self.victims);
            let _ = match random.below(10) {
                0..=4 => {
                    let name = random.pick(&IN_A_CHECKOUT);
                    writeln!(script, "places=\"$mine/*\"; at {name} {number} {which}")
                }
                5 if self.is_host() => {
                    writeln!(script, "places=\"{others}\"; at commit {number} {which}")
                }
                5 | 6 if self.name != "b" => {
                    let name = random.pick(&IN_A_SHARED_ONE);
                    writeln!(script, "places=$main; at {name} {number} 0")
                }
                7 => {
                    let names = if self.is_host() { &ON_THE_HOST } else { &TO_OTHERS };
                    writeln!(script, "victim={victim}; op {} {number}", random.pick(names))
                }
                _ => writeln!(script, "op {} {number}", random.pick(&ANYWHERE)),
            };
            if random.one_in(4) {
                let _ = writeln!(script, "sleep 0.{}", random.below(4));
            }
        }
        script
    }
}

/// What was said by all scripts.
#[derive(Default)]
struct Record {
    made: BTreeSet<String>,
    dropped: BTreeSet<String>,
    /// Who was killed on the way.
    killed: BTreeSet<&'static str>,
    told: String,
}

impl Record {
    fn read(&mut self, name: &'static str, script: &str, printed: &str, said: &str) {
        let done = script.split_once("\ncd ").map_or(script, |(_, done)| done);
        let _ = writeln!(self.told, "-- {name} did\n{done}-- which printed\n{printed}-- and said\n{said}");
        for line in printed.lines() {
            match line.split_once(' ') {
                Some(("made", id)) => drop(self.made.insert(id.to_owned())),
                Some(("dropped", id)) => drop(self.dropped.insert(id.to_owned())),
                _ => {}
            }
        }
    }
}

fn one_order(place: &Place, seed: u64) {
    let mut random = Random(seed);
    let repo = Repo::below(place, Layout::Main, &format!("home/{seed:x}"));
    let main = repo.main.clone().unwrap();
    let hosts = place.make(repo.top.join("hosts"));
    let people = [("host", ["a", "b"]), ("a", ["host", "b"]), ("b", ["host", "a"])]
        .map(|(name, victims)| Person { name, victims, main: &main });
    let mut serial = 0;
    let mut record = Record::default();
    let session = |name: &str| format!("{name}{seed:x}");
    let roots = format!("{}-worktrees/*/*", main.display());
    let mut script = |person: &Person<'_>, random: &mut Random| {
        let mine = if person.is_host() { hosts.to_str().unwrap() } else { "$CODEOID_WORKTREE_DIR" };
        person.script(random, &mut serial, mine, &roots)
    };
    // Something to begin with.
    let begin = |name: &str| format!("op worktree {name}1; places=\"$mine/*\"; at commit {name}2 0\n");
    let start = script(&people[0], &mut random) + &begin("90");
    let host = place.sh(&main, &start);
    record.read("host", &start, &host.out(), &host.err());
    for round in 0..ROUNDS {
        let who = random.below(4);
        let mut turns: Vec<(&'static str, String, Running, bool)> = Vec::new();
        for (number, person) in people.iter().enumerate().skip(1) {
            if who == number as u64 || who == 3 || round == 0 {
                let mut text = script(person, &mut random);
                if round == 0 {
                    text += &begin(&format!("{}", 90 + number));
                }
                let killed = round > 0 && random.one_in(8);
                let turn =
                    place.turn(&main).session(session(person.name)).options(["--git-protection", "shadow"]);
                let running = turn.sh(&text).spawn();
                turns.push((person.name, text, running, killed));
            }
        }
        if who == 0 || random.one_in(2) {
            let text = script(&people[0], &mut random);
            let host = place.sh(&main, &text);
            record.read("host", &text, &host.out(), &host.err());
        }
        for (name, text, turn, killed) in turns {
            if killed {
                std::thread::sleep(Duration::from_millis(random.below(400)));
                turn.signal(Signal::SIGKILL);
                record.killed.insert(name);
            }
            let outcome = turn.finish();
            record.read(name, &text, &outcome.out(), &outcome.err());
            if !killed {
                assert_eq!(outcome.code(), 0, "seed {seed}: {outcome}\n{}", record.told);
            }
        }
    }
    for name in ["a", "b"] {
        let closed = place.shim(&["session", "close", &session(name)]);
        let _ = writeln!(record.told, "-- close {name}\n{closed}");
        assert!(closed.ok(), "seed {seed}: {}", record.told);
    }
    println!("seed {seed}: {} commits, {} of them thrown away", record.made.len(), record.dropped.len());
    if std::env::var_os("CODEOID_TESTS_TELL").is_some() {
        println!("{}", record.told);
    }
    judge(place, seed, &main, &record);
}

fn judge(place: &Place, seed: u64, main: &Path, record: &Record) {
    let told = &record.told;
    let git = |dir: &Path, arguments: &[&str]| {
        let mut command = place.command("git");
        command.args(arguments).current_dir(dir);
        let finished = place.finish(command);
        assert!(finished.ok(), "seed {seed}: git {arguments:?} in {}: {finished}\n{told}", dir.display());
        finished.out()
    };
    let all = git(main, &["rev-list", "--all"]);
    let stashed = git(main, &["stash", "list", "--format=%H"]);
    let there: BTreeSet<&str> = all.lines().chain(stashed.lines()).collect();
    let lost: Vec<&String> =
        record.made.difference(&record.dropped).filter(|id| !there.contains(id.as_str())).collect();
    assert!(lost.is_empty(), "seed {seed}: lost {lost:?}\n{told}");
    let fsck = place.sh(main, "git fsck --strict --no-progress --no-dangling 2>&1");
    assert!(fsck.ok() && fsck.out().trim().is_empty(), "seed {seed}: {fsck}\n{told}");

    // Files only ever grow: whatever takes a line away undoes what somebody did.
    let log = git(main, &["log", "--all", "--no-merges", "--no-renames", "--format=%H %an", "--numstat"]);
    let mut who = ("", "");
    for line in log.lines().filter(|line| !line.is_empty()) {
        if let Some((id, name)) = line.split_once(' ').filter(|(id, _)| id.len() == 40) {
            who = (id, name);
        } else if ["host", "a", "b"].contains(&who.1) {
            assert_eq!(line.split('\t').nth(1), Some("0"), "seed {seed}: {who:?} has {line:?}\n{told}");
        }
    }
    // And nothing of that kind is staged anywhere.
    for line in git(main, &["worktree", "list", "--porcelain"]).lines() {
        let Some(dir) = line.strip_prefix("worktree ").map(Path::new).filter(|dir| dir.is_dir()) else {
            continue;
        };
        // In the middle of a rebase what is staged is the next commit; who was killed in a reset has done half of it.
        let is_rebasing = dir.join(git(dir, &["rev-parse", "--git-path", "rebase-merge"]).trim()).exists();
        let folder = dir.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        let is_of = |name: &str| folder.starts_with(&format!("{name}{seed:x}-"));
        if is_rebasing || record.killed.iter().any(|name| is_of(name)) {
            continue;
        }
        for line in git(dir, &["diff", "--cached", "--no-renames", "--numstat"]).lines() {
            assert_eq!(
                line.split('\t').nth(1),
                Some("0"),
                "seed {seed}: {} has {line:?}\n{told}",
                dir.display()
            );
        }
    }
}

fn nothing_is_lost_in_any_order_serial(place: &Place) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let root = place.identity() == codeoid_tests::Identity::Root;
    let seeds = match number("CODEOID_TESTS_SEED") {
        Some(seed) => vec![seed],
        None => {
            let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            let first = u64::from(time.subsec_nanos()) << 8 | u64::from(root) << 7;
            (first..first + number("CODEOID_TESTS_SEEDS").unwrap_or(SEEDS)).collect()
        }
    };
    for seed in seeds {
        println!("seed {seed} begins");
        one_order(place, seed);
    }
}

each_identity!(nothing_is_lost_in_any_order_serial);
