//! Sessions: the record of each, the lock around their starts, and which of their turns are alive.
//!
//! Turns of one session share its home layer, which may be mounted once only; so a turn that starts while
//! another lives takes it from that one's namespaces. The lock is held from the look at who lives until the new
//! turn is registered itself: with its own namespaces once they stand, and until then, where there is a
//! neighbour, with those of the neighbour, which it keeps open.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use codeoid_spec::id::{SessionId, TurnId};
use codeoid_spec::state::StateDir;
use jiff::Timestamp;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::diagnostic::{Doing, Failure};
use crate::layers::private_dir;
use crate::sys::process;

/// A session's record is small; anything larger is not one.
const MAX_RECORD: u64 = 64 * 1024;

/// How often whoever waits for the lock looks up.
const LOOK_UP: Duration = Duration::from_millis(50);

/// What is remembered of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The format's version: 1.
    pub version: u32,
    /// The session's id.
    pub session: SessionId,
    /// When it was opened.
    pub opened: Timestamp,
    /// The session that it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<SessionId>,
    /// The workspace of its latest turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<PathBuf>,
    /// The common dir of the repository there, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<PathBuf>,
    /// Its folders for worktrees, the preferred one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub worktree_folders: Vec<PathBuf>,
    /// How many turns it has had.
    pub turns: u64,
    /// `sandboxed`, or `sandboxed, Docker access`.
    pub sandbox: String,
}

impl Record {
    /// A session without turns.
    pub fn new(session: SessionId) -> Self {
        Self {
            version: 1,
            session,
            opened: Timestamp::now(),
            forked_from: None,
            workspace: None,
            repository: None,
            worktree_folders: Vec::new(),
            turns: 0,
            sandbox: "sandboxed".to_owned(),
        }
    }
}

/// A session's directory.
#[derive(Debug, Clone)]
pub struct Session {
    dir: PathBuf,
}

/// A turn that lives, and what it shares with later ones.
#[derive(Debug, Serialize, Deserialize)]
struct Alive {
    pid: i32,
    /// When that process started, in clock ticks since boot: a pid that was used again has another.
    started: u64,
    /// What the home layer hides; a turn that hides something else cannot share it.
    home: String,
    /// The process is a supervisor that keeps a neighbour's namespaces open, under these numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kept: Option<Kept>,
}

/// Descriptor numbers of namespaces in another process.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Kept {
    user: Option<i32>,
    mount: i32,
}

impl Alive {
    /// Its namespaces, if it still has them.
    fn namespaces(&self) -> Option<Shared> {
        let open = |name: String| {
            File::open(format!("/proc/{}/{name}", self.pid)).map(|file| Rc::new(file.into())).ok()
        };
        let shared = match self.kept {
            Some(Kept { user, mount }) => Shared {
                user: match user {
                    Some(number) => Some(open(format!("fd/{number}"))?),
                    None => None,
                },
                mount: open(format!("fd/{mount}"))?,
            },
            None if nix::unistd::geteuid().is_root() => {
                Shared { user: None, mount: open("ns/mnt".to_owned())? }
            }
            None => Shared { user: Some(open("ns/user".to_owned())?), mount: open("ns/mnt".to_owned())? },
        };
        // Not those of another process that has got the number in the meantime.
        (start_time(self.pid) == Some(self.started)).then_some(shared)
    }
}

/// The session's lock, held.
pub struct Locked<'a> {
    session: &'a Session,
    _lock: Flock<File>,
}

/// The namespaces of a living turn. The descriptors keep them, whatever becomes of that turn meanwhile.
#[derive(Debug, Clone)]
pub struct Shared {
    /// Its user namespace; `None` as root, where there is none.
    pub user: Option<Rc<OwnedFd>>,
    /// Its mount namespace.
    pub mount: Rc<OwnedFd>,
}

/// What the living turns of the session mean for a new one.
pub enum Neighbours {
    /// None lives.
    None,
    /// These namespaces are to be joined.
    Join(Shared),
    /// One lives whose home hides something else.
    Differs,
}

impl Session {
    /// The session with this id.
    pub fn new(state: &StateDir, id: &SessionId) -> Self {
        Self { dir: state.session(id) }
    }

    /// The session whose directory this is.
    pub fn at(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// The session's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn alive(&self) -> PathBuf {
        self.dir.join("alive")
    }

    /// Takes the session's lock if nobody has it.
    pub fn try_lock(&self) -> Option<Locked<'_>> {
        let lock = Flock::lock(self.lock_file().ok()?, FlockArg::LockExclusiveNonblock).ok()?;
        Some(Locked { session: self, _lock: lock })
    }

    /// Makes the session's directory if need be, and takes its lock.
    pub fn lock(&self) -> Result<Locked<'_>, Failure> {
        let lock = Flock::lock(self.lock_file()?, FlockArg::LockExclusive).map_err(|(_, errno)| errno);
        Ok(Locked { session: self, _lock: lock.doing(self.locking())? })
    }

    /// As [`lock`](Self::lock), unless waiting for it is given up: `given_up` is asked now and then.
    pub fn lock_unless<T>(
        &self,
        mut given_up: impl FnMut() -> Option<T>,
    ) -> Result<ControlFlow<T, Locked<'_>>, Failure> {
        let mut file = self.lock_file()?;
        let mut how = FlockArg::LockExclusiveNonblock;
        let mut interruptions = None;
        loop {
            match Flock::lock(file, how) {
                Ok(lock) => return Ok(ControlFlow::Continue(Locked { session: self, _lock: lock })),
                Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) => file = back,
                Err((_, errno)) => return Err(errno).doing(self.locking()),
            }
            if let Some(why) = given_up() {
                return Ok(ControlFlow::Break(why));
            }
            if interruptions.is_none() {
                interruptions = Some(process::Interruptions::every(LOOK_UP).doing(self.locking())?);
                how = FlockArg::LockExclusive;
            }
        }
    }

    fn locking(&self) -> String {
        format!("lock the session ({})", self.dir.display())
    }

    fn lock_file(&self) -> Result<File, Failure> {
        let what = || self.locking();
        private_dir(&self.dir).doing(what())?;
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(self.dir.join("lock"))
            .doing(what())?;
        if !file.metadata().doing(what())?.is_file() {
            return Err(Failure::new(what(), "its lock is not a regular file"));
        }
        Ok(file)
    }

    /// The session's record, if it has one. A record that cannot be read is an error: it is never replaced
    /// unseen.
    pub fn record(&self) -> Result<Option<Record>, Failure> {
        let path = self.dir.join("session.json");
        let what = || format!("read the session's record ({})", path.display());
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(&path);
        let file = match file {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.doing(what())?,
        };
        if !file.metadata().doing(what())?.is_file() {
            return Err(Failure::new(what(), "it is not a regular file"));
        }
        let mut text = String::new();
        file.take(MAX_RECORD).read_to_string(&mut text).doing(what())?;
        let record: Record = serde_json::from_str(&text).doing(what()).map_err(|failure| {
            failure.hint("move it away (the session's worktrees are not touched) and try again")
        })?;
        if record.version != 1 {
            return Err(Failure::new(what(), format!("its version is {}, not 1", record.version)));
        }
        Ok(Some(record))
    }

    /// Writes a record over one of the same length: then only the digits of its numbers differ, and it is whole
    /// at every moment. Most turns change no more than their number, and replacing a file makes a file system
    /// wait for the disk. Returns whether it was possible.
    fn overwrite(&self, text: &[u8]) -> bool {
        use std::os::unix::fs::FileExt;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(self.dir.join("session.json"));
        let Ok(mut file) = file else { return false };
        let mut old = Vec::new();
        let same = file.metadata().is_ok_and(|meta| meta.is_file() && meta.len() == text.len() as u64)
            && file.read_to_end(&mut old).is_ok()
            && old.len() == text.len()
            && old.iter().zip(text).all(|(a, b)| a == b || (a.is_ascii_digit() && b.is_ascii_digit()));
        same && file.write_all_at(text, 0).is_ok()
    }

    /// The work directory of its home layer.
    pub fn home_work(&self) -> PathBuf {
        self.dir.join("home/work")
    }

    /// Whether a turn of the session lives.
    pub fn is_alive(&self) -> bool {
        self.registered().any(|(_, alive)| alive.is_some())
    }

    /// The files of turns, each with what it says; `None`: the turn is over, or was killed.
    fn registered(&self) -> impl Iterator<Item = (PathBuf, Option<Alive>)> {
        fs::read_dir(self.alive()).into_iter().flatten().flatten().map(|entry| {
            let path = entry.path();
            let found = read_regular(&path).and_then(|text| serde_json::from_slice::<Alive>(&text).ok());
            (path, found.filter(|alive| start_time(alive.pid) == Some(alive.started)))
        })
    }
}

impl Locked<'_> {
    /// Who lives, for a new turn whose home hides `home` (a digest).
    pub fn neighbours(&self, home: &str) -> Neighbours {
        let mut differs = false;
        for (path, alive) in self.session.registered() {
            let Some(alive) = alive else {
                // Nobody is writing it just now: the lock is ours.
                let _ = fs::remove_file(path);
                continue;
            };
            let Some(shared) = alive.namespaces() else { continue };
            if alive.home == home {
                return Neighbours::Join(shared);
            }
            differs = true;
        }
        if differs { Neighbours::Differs } else { Neighbours::None }
    }

    /// Says that a turn lives, by its engine.
    pub fn register(&self, turn: &TurnId, engine: Pid, home: &str) -> Result<(), Failure> {
        self.say_alive(turn, engine, home, None)
    }

    /// Says that a turn lives that has no namespaces yet: whoever comes takes those of its neighbour, which this
    /// process keeps open until the turn is registered by its engine.
    pub fn register_early(&self, turn: &TurnId, neighbour: &Shared, home: &str) -> Result<(), Failure> {
        let kept = Kept {
            user: neighbour.user.as_ref().map(AsRawFd::as_raw_fd),
            mount: neighbour.mount.as_raw_fd(),
        };
        self.say_alive(turn, Pid::this(), home, Some(kept))
    }

    fn say_alive(&self, turn: &TurnId, pid: Pid, home: &str, kept: Option<Kept>) -> Result<(), Failure> {
        let what = "register the turn with its session";
        private_dir(&self.session.alive()).doing(what)?;
        // Already over: nobody can join it.
        let Some(started) = start_time(pid.as_raw()) else { return Ok(()) };
        let alive = Alive { pid: pid.as_raw(), started, home: home.to_owned(), kept };
        let text = serde_json::to_vec(&alive).doing(what)?;
        fs::write(self.session.alive().join(turn.to_string()), text).doing(what)
    }

    /// Replaces the session's record, whole or not at all.
    pub fn write(&self, record: &Record) -> Result<(), Failure> {
        let what = "write the session's record";
        let text = serde_json::to_vec_pretty(record).doing(what)?;
        if self.session.overwrite(&text) {
            return Ok(());
        }
        let draft = self.session.dir.join(".session.json");
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&draft)
            .doing(what)?;
        file.write_all(&text).doing(what)?;
        fs::rename(&draft, self.session.dir.join("session.json")).doing(what)
    }
}

/// The content of a small regular file; nothing else is waited for.
fn read_regular(path: &Path) -> Option<Vec<u8>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
        .ok()?;
    let mut text = Vec::new();
    let regular = file.metadata().ok()?.is_file();
    file.take(MAX_RECORD).read_to_end(&mut text).ok()?;
    regular.then_some(text)
}

/// Takes a turn off the list of those that live.
pub fn unregister(session: &Session, turn: &TurnId) {
    let _ = fs::remove_file(session.alive().join(turn.to_string()));
}

/// When a process started, in clock ticks since boot (proc_pid_stat(5), field 22).
fn start_time(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses, and may hold anything.
    let mut fields = text[text.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?;
    (state != "Z" && state != "X").then(|| fields.nth(18)?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_start_time_is_known_and_that_of_nobody_is_not() {
        assert!(start_time(i32::try_from(std::process::id()).unwrap()).is_some());
        assert_eq!(start_time(i32::MAX), None);
    }

    #[test]
    fn a_record_that_is_no_record_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(dir.path().to_owned());
        let session = Session::new(&state, &"s".parse().unwrap());
        assert_eq!(session.record().unwrap(), None);
        let record = Record::new("s".parse().unwrap());
        session.lock().unwrap().write(&record).unwrap();
        assert_eq!(session.record().unwrap(), Some(record));
        let path = session.dir().join("session.json");
        fs::write(&path, "{").unwrap();
        assert!(session.record().is_err());
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(session.record().is_err(), "a symbolic link is not followed");
    }
}
