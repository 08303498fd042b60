//! From the quarantine into the host's repository.
//!
//! `rev-list` lists what the tips reach and the host's refs do not, over both; `pack-objects` packs it; and
//! `unpack-objects` or `index-pack` checks it object by object (fsck) and writes it to a [`Stage`], where `rev-list`
//! over that and the host alone must find everything: git's update-ref does not look further than the tip (rule 13).
//! Then it moves to the host's objects.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use gix::ObjectId;

use super::stage::Stage;
use super::{Error, Host, Store};
use crate::shadow::git::{self, Call, Keep, Pipes};

/// As many objects are unpacked; more become a pack. A pack per import would have the host's git repack after 50
/// (`gc.autoPackLimit`), loose objects after 6,700 (`gc.auto`).
const LOOSE: u32 = 500;
/// The first bytes of a pack: "PACK", its version, the number of its objects (gitformat-pack(5)).
const PACK_HEADER: usize = 12;
/// Faults of objects that old tools made, that are in many histories, and that deceive nobody. All else that git's
/// fsck reports as an error or a warning refuses an object: `.gitmodules` that could run something, `.git`, `..` and
/// slashes in trees, what is not sorted, what does not parse (git-fsck(1), "FSCK MESSAGES").
const TOLERATED: [&str; 10] = [
    "zeroPaddedFilemode",
    "zeroPaddedDate",
    "badTimezone",
    "badEmail",
    "badName",
    "missingEmail",
    "missingNameBeforeEmail",
    "missingSpaceBeforeEmail",
    "missingSpaceBeforeDate",
    "nulInCommit",
];

/// How often git may refuse a set of tips until the rest counts as refused, too. Each search for the one that is to blame
/// asks some twenty times, and a turn can name a million commits that are not there.
const REFUSALS: u32 = 200;

/// What became of a tip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is on the host, with all that it names.
    Connected,
    /// It is not, for this reason, in printable text. Some of its objects may be.
    Refused(String),
}

/// What one [`Store::admit`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admitted {
    /// Each tip, once.
    pub tips: BTreeMap<ObjectId, Verdict>,
    /// Objects that were packed for the host; some it may have had, without a ref that reaches them.
    pub objects: u64,
    /// Whether `.keep` files were left, which [`Store::release`] removes.
    pub keep: bool,
}

impl Admitted {
    /// Whether this tip is on the host, connected.
    #[must_use]
    pub fn has(&self, tip: &ObjectId) -> bool {
        self.tips.get(tip) == Some(&Verdict::Connected)
    }

    /// The tips that are not on the host, with the reasons.
    pub fn refused(&self) -> impl Iterator<Item = (&ObjectId, &str)> {
        self.tips.iter().filter_map(|(tip, verdict)| match verdict {
            Verdict::Connected => None,
            Verdict::Refused(why) => Some((tip, why.as_str())),
        })
    }
}

impl Store<'_> {
    /// Brings these tips (commits, tags, trees, blobs) and what they reach to the host. Where one of them is refused,
    /// the others pass.
    ///
    /// # Errors
    /// [`Error::Git`] where git could not be run to its end; that it refused something is a [`Verdict`].
    pub fn admit(&self, tips: &[ObjectId]) -> Result<Admitted, Error> {
        let mut done = Admitted::default();
        let host = Host::new(self);
        let beside: Vec<Host> = std::iter::once(&self.quarantine)
            .chain(&self.borrowed)
            .map(|objects| Host::of(objects.clone(), self.kind))
            .collect();
        let mut wanted = Vec::new();
        for tip in tips.iter().copied().collect::<BTreeSet<_>>() {
            if tip.kind() != self.kind || tip.is_null() {
                done.tips.insert(tip, Verdict::Refused("it is no object of this repository".to_owned()));
            } else if self.negatives.is_none() && host.has_blob(&tip) {
                freshen(&self.git.objects(), &tip);
                done.tips.insert(tip, Verdict::Connected);
            } else if !self.promisor && !host.has(&tip) && !beside.iter().any(|other| other.has(&tip)) {
                // Said without git: there may be a million of them.
                done.tips
                    .insert(tip, Verdict::Refused(format!("object {tip} is not there, or not what it says")));
            } else {
                wanted.push(tip);
            }
        }
        if !wanted.is_empty() && self.promisor {
            self.learn_check()?;
            self.promised(&host, &mut done)?;
        }
        self.batch(&wanted, &mut done, &mut 0)?;
        Ok(done)
    }

    /// Learns whether git takes a list of faults for `--fsck-objects`, which it does since 2.44. Without the list the
    /// tolerated faults are not tolerated in a partial clone.
    fn learn_check(&self) -> Result<(), Error> {
        // For want of a pack it does nothing but complain, of that or of the option.
        let asked =
            self.git.run(["index-pack", &format!("--fsck-objects={}", tolerated()), "/dev/null"], b"");
        let usage = answer(asked)?.is_err_and(|said| said.starts_with("usage:"));
        self.plain_check.set(usage);
        Ok(())
    }

    /// Whether all of these are on the host, with all that they name. Brings nothing.
    ///
    /// # Errors
    /// [`Error::Git`] where git could not be run to its end.
    pub fn connected(&self, tips: &[ObjectId]) -> Result<bool, Error> {
        if tips.is_empty() {
            return Ok(true);
        }
        Ok(answer(self.git.run_command(self.list(&["--quiet"]), &self.lines(tips)))?.is_ok())
    }

    /// All at once, or by halves down to the one that is to blame.
    fn batch(&self, tips: &[ObjectId], done: &mut Admitted, refusals: &mut u32) -> Result<(), Error> {
        if tips.is_empty() {
            return Ok(());
        }
        if *refusals >= REFUSALS {
            let why = "too many others are refused, so it was not looked at".to_owned();
            done.tips.extend(tips.iter().map(|tip| (*tip, Verdict::Refused(why.clone()))));
            return Ok(());
        }
        match self.bring(tips, done)? {
            Ok(()) => done.tips.extend(tips.iter().map(|tip| (*tip, Verdict::Connected))),
            Err(why) => {
                *refusals += 1;
                if let [tip] = tips {
                    done.tips.insert(*tip, Verdict::Refused(why));
                } else {
                    let (first, second) = tips.split_at(tips.len() / 2);
                    self.batch(first, done, refusals)?;
                    self.batch(second, done, refusals)?;
                }
            }
        }
        Ok(())
    }

    fn bring(&self, tips: &[ObjectId], done: &mut Admitted) -> Result<Result<(), String>, Error> {
        let Brought { objects, kept, stage } = match answer(self.transfer(tips))? {
            Ok(Some(brought)) => brought,
            // The host's refs reach all tips.
            Ok(None) => return Ok(Ok(())),
            Err(why) => return Ok(Err(why)),
        };
        let mut check = self.list(&["--quiet"]);
        stage.direct(&mut check);
        if let Err(why) = answer(self.git.run_command(check, &self.lines(tips)))? {
            return Ok(Err(why));
        }
        match stage.pack() {
            // It was checked as a pack, as a partial clone's has to be; unpacked it does not count among the host's packs
            // (rule 29).
            Some(pack) if !kept => {
                let file = File::open(&pack).map_err(|source| Error::Host { path: pack, source })?;
                let mut unpack = self.git.command(["unpack-objects", "-q"]);
                unpack.stdin(Stdio::from(file));
                if let Err(why) = answer(self.git.run_command(unpack, b""))? {
                    return Ok(Err(why));
                }
            }
            _ => self.landed.borrow_mut().extend(stage.migrate()?),
        }
        done.objects += u64::from(objects);
        done.keep |= kept;
        Ok(Ok(()))
    }

    /// Moves what the tips reach and the host's refs do not to a stage; `None` where that is nothing. Even a few: unpack-objects looks into
    /// `.gitmodules` when it has written everything, and what it refuses then would be there, and connected.
    fn transfer(&self, tips: &[ObjectId]) -> Result<Option<Brought>, Error> {
        let mut lister = self.list(&[]);
        self.over_both(&mut lister);
        lister.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut lister = Call::start(lister)?;
        let mut packer = self.git.command([
            "pack-objects",
            "--stdout",
            "-q",
            "--window=0",
            "--compression=1",
            "--delta-base-offset",
        ]);
        self.over_both(&mut packer);
        packer.stdin(lister.child.stdout.take().map_or_else(Stdio::null, Stdio::from)).stdout(Stdio::piped());
        let mut packer = Call::start(packer)?;

        let input = self.lines(tips);
        let mut pipes = Pipes::new();
        if let Some(stdin) = lister.child.stdin.take() {
            pipes.feed(stdin, &input);
        }
        let lister_said = lister.said(&mut pipes);
        let packer_said = packer.said(&mut pipes);
        let cut_off = |packer: &Call| -> Error {
            let source = std::io::ErrorKind::UnexpectedEof.into();
            git::Error::Pipe { verb: packer.verb.clone(), source }.into()
        };
        let Some(pack) = packer.child.stdout.take().map(|pipe| pipes.drain(pipe, Keep::First(PACK_HEADER)))
        else {
            return Err(cut_off(&packer));
        };
        // The packer begins to write when the lister has ended; a list that broke off must not become a pack.
        let list_ended = |pipes: &Pipes<'_>| lister_said.is_none_or(|said| pipes.is_done(said));
        pipes.run(&packer.verb, |pipes| pipes.is_done(pack) && list_ended(pipes))?;
        lister.end(&pipes, lister_said)?;
        let Some((header, objects)) = header(pipes.kept(pack)) else {
            pipes.run(&packer.verb, |_| false)?;
            packer.end(&pipes, packer_said)?;
            return Err(cut_off(&packer));
        };
        if objects == 0 {
            // What is left of an empty pack is its checksum.
            return Ok(None);
        }
        let Some(rest) = pipes.hand_over(pack) else { return Err(cut_off(&packer)) };
        let stage = Stage::new(&self.git.objects(), &self.token())?;
        let kept = objects > LOOSE || self.negatives.is_some() || self.is_collecting();
        // unpack-objects can check only what is connected, which nothing is in a partial clone.
        let mut receiver = self.receiver(&header, kept || self.promisor);
        stage.direct(&mut receiver);
        receiver.stdin(Stdio::from(rest)).stdout(Stdio::piped());
        let mut receiver = Call::start(receiver)?;
        let receiver_said = receiver.said(&mut pipes);
        if let Some(stdout) = receiver.child.stdout.take() {
            pipes.drain(stdout, Keep::Tail);
        }
        pipes.run(&receiver.verb, |_| false)?;
        // The receiver's reason comes first: the packer's is then that nobody reads.
        receiver.end(&pipes, receiver_said)?;
        packer.end(&pipes, packer_said)?;
        Ok(Some(Brought { objects, kept, stage }))
    }

    /// The command that checks a pack and takes it in.
    fn receiver(&self, header: &str, keep: bool) -> Command {
        let mut args = if !keep {
            vec!["unpack-objects".to_owned(), "-q".to_owned(), format!("--strict={}", tolerated())]
        } else {
            // What a partial clone lacks must not count as lost; fsck's rules are the same (rule 15).
            let check =
                if self.promisor { self.check_argument() } else { format!("--strict={}", tolerated()) };
            vec!["index-pack".to_owned(), "--stdin".to_owned(), format!("--keep={}", self.keep_text()), check]
        };
        args.push(format!("--pack_header={header}"));
        self.git.command(args)
    }

    /// What has index-pack look at each object, but not for what it names.
    pub(super) fn check_argument(&self) -> String {
        if self.plain_check.get() {
            "--fsck-objects".to_owned()
        } else {
            format!("--fsck-objects={}", tolerated())
        }
    }

    /// Lists what the tips on standard input reach and no ref of the host does.
    fn list(&self, more: &[&str]) -> Command {
        let mut args = vec!["rev-list".to_owned(), "--objects".to_owned()];
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        if self.promisor {
            args.push("--exclude-promisor-objects".to_owned());
        }
        args.push("--stdin".to_owned());
        match &self.negatives {
            None => args.extend(["--not", "--all"].map(String::from)),
            Some(_) => args.push("--ignore-missing".to_owned()),
        }
        let mut command = self.git.command(args);
        // A branch of the host's that is broken is no reason to refuse another.
        command.env("GIT_REF_PARANOIA", "0");
        command
    }

    /// Tips for the standard input of [`Store::list`].
    fn lines(&self, tips: &[ObjectId]) -> Vec<u8> {
        let mut text = Vec::with_capacity(tips.len() * 65);
        // Writing to memory does not fail.
        for tip in tips {
            let _ = writeln!(text, "{tip}");
        }
        for had in self.negatives.iter().flatten() {
            let _ = writeln!(text, "^{had}");
        }
        text
    }

    /// Has a command see the host's objects first, then the quarantine's, then what else the shadow borrows.
    fn over_both(&self, command: &mut Command) {
        let mut alternates = OsString::new();
        for directory in std::iter::once(&self.quarantine).chain(&self.borrowed) {
            if !alternates.is_empty() {
                alternates.push(":");
            }
            alternates.push(quoted(directory));
        }
        command.env("GIT_ALTERNATE_OBJECT_DIRECTORIES", alternates);
    }
}

/// What was moved.
#[derive(Debug)]
struct Brought {
    objects: u32,
    kept: bool,
    stage: Stage,
}

/// That git refused is an answer; that it could not be run is an error.
pub(super) fn answer<T, E: Into<Error>>(result: Result<T, E>) -> Result<Result<T, String>, Error> {
    match result.map_err(Into::into) {
        Ok(value) => Ok(Ok(value)),
        Err(Error::Git(git::Error::Failed { verb, status, said })) if said.is_empty() => {
            Ok(Err(format!("git {verb}: {status}")))
        }
        Err(Error::Git(git::Error::Failed { said, .. })) => Ok(Err(said)),
        Err(error) => Err(error),
    }
}

/// The faults that are let through, as git's programs take them.
fn tolerated() -> String {
    TOLERATED.map(|fault| format!("{fault}=warn")).join(",")
}

/// A pack's header as `--pack_header` wants it, and the number of objects.
fn header(bytes: &[u8]) -> Option<(String, u32)> {
    let (magic, numbers) = bytes.split_at_checked(4)?;
    let (version, count) = numbers.split_at_checked(4)?;
    let version = u32::from_be_bytes(version.try_into().ok()?);
    let count = u32::from_be_bytes(count.try_into().ok()?);
    (magic == b"PACK").then(|| (format!("{version},{count}"), count))
}

/// A path in a list that is separated by colons, quoted as in C (git(1), `GIT_ALTERNATE_OBJECT_DIRECTORIES`).
pub(super) fn quoted(path: &Path) -> OsString {
    let mut text = vec![b'"'];
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'"' | b'\\' => text.extend([b'\\', byte]),
            b' '..=b'~' => text.push(byte),
            _ => text.extend(format!("\\{byte:03o}").into_bytes()),
        }
    }
    text.push(b'"');
    OsStr::from_bytes(&text).to_owned()
}

/// Makes a loose object young, so that a `gc` leaves it until something names it, as git does when it would write an
/// object that is there. One in a pack lives as long as its pack.
fn freshen(objects: &Path, id: &ObjectId) {
    let hex = id.to_string();
    let (prefix, rest) = hex.split_at(2);
    let path = objects.join(prefix).join(rest);
    // It need not be ours to touch.
    let _ = std::fs::File::open(path).and_then(|file| file.set_modified(std::time::SystemTime::now()));
}
