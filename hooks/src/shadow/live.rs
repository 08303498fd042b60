//! Import while a turn runs: what the session makes of its own worktrees and branches is seen on the host within moments.
//!
//! A process of its own does it, beside the supervisor: git takes its time, and the supervisor's is the terminal's. It
//! may be killed at any moment; whoever imports next finds what it left.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use codeoid_spec::state::StateDir;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::turn::{self, Record};
use super::{entries, write};
use crate::read::{Dir, Kind};

/// How long the shadow has to be quiet: a commit is a dozen changes.
const QUIET: Duration = Duration::from_millis(120);
/// As long, where a worktree has just been made: its name has to be taken on the host.
const SOON: Duration = Duration::from_millis(30);
/// How long a shadow that is never quiet is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a shadow is looked at that cannot be watched.
const ROUND: Duration = Duration::from_secs(2);
/// The most directories that are watched.
const MOST: usize = 4096;
/// The deepest directory that is watched.
const DEEPEST: usize = 64;

/// Imports whenever the shadow has changed, until `until` can be read or is closed. What goes wrong is left to the
/// import at the turn's end, which says it.
pub fn follow(record: &Record, state: &StateDir, until: BorrowedFd<'_>) {
    let mut watch = Watch::new(record);
    let mut since: Option<Instant> = Some(Instant::now());
    let mut due: Option<Instant> = since;
    loop {
        let now = Instant::now();
        if let (Some(first), Some(at)) = (since, due)
            && (now >= at || now - first >= PATIENCE)
        {
            (since, due) = (None, None);
            watch.cover(record);
            let _ = turn::live(record, state);
        }
        let wait = match due {
            Some(at) => Some(at.saturating_duration_since(Instant::now())),
            None if watch.blind => Some(ROUND),
            None => None,
        };
        let timeout = wait.map_or(PollTimeout::NONE, |wait| {
            PollTimeout::try_from(wait + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        });
        let mut fds = vec![PollFd::new(until, PollFlags::POLLIN)];
        if let Some(inotify) = &watch.inotify {
            fds.push(PollFd::new(inotify.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut fds, timeout) {
            Err(Errno::EINTR) => continue,
            Err(_) => return,
            Ok(_) => {}
        }
        let any = |at: usize| fds.get(at).and_then(PollFd::revents).is_some_and(|events| !events.is_empty());
        if any(0) {
            return;
        }
        let seen = any(1);
        drop(fds);
        let quiet = if seen { watch.events() } else { None };
        let quiet = quiet.or_else(|| (watch.blind && due.is_none()).then_some(Duration::ZERO));
        if let Some(quiet) = quiet {
            let now = Instant::now();
            since = since.or(Some(now));
            due = Some(match due {
                Some(at) if quiet == SOON => at.min(now + SOON),
                _ => now + quiet,
            });
        }
    }
}

struct Watch {
    inotify: Option<Inotify>,
    watched: HashSet<PathBuf>,
    worktrees: Option<nix::sys::inotify::WatchDescriptor>,
    /// Not everything could be watched.
    blind: bool,
}

impl Watch {
    fn new(record: &Record) -> Self {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).ok();
        let blind = inotify.is_none();
        let mut watch = Self { inotify, watched: HashSet::new(), worktrees: None, blind };
        watch.cover(record);
        watch
    }

    /// Watches what is there now: the top, the directories of refs, the session's own entries.
    fn cover(&mut self, record: &Record) {
        let Ok(shadow) = Dir::open(&record.place.git()) else { return };
        self.add(shadow.path());
        let mut waiting = vec![(shadow.path().join("refs"), 0)];
        // A turn can make directories without end; beyond these the shadow is looked at from time to time.
        while let Some((path, depth)) = waiting.pop() {
            if self.blind || depth > DEEPEST {
                self.blind = true;
                break;
            }
            let Ok(dir) = Dir::open(&path) else { continue };
            self.add(&path);
            let _ = dir.visit(|name, kind, _| {
                if kind == Kind::Directory && waiting.len() < MOST {
                    waiting.push((path.join(OsStr::from_bytes(name.to_bytes())), depth + 1));
                }
            });
        }
        let Ok(Some(worktrees)) = shadow.child("worktrees".as_ref()) else { return };
        self.worktrees = self.add(worktrees.path()).or(self.worktrees);
        let foreign: HashSet<&str> = record
            .repository
            .entries
            .iter()
            .filter(|entry| !entry.own)
            .map(|entry| entry.id.as_str())
            .collect();
        let Ok(items) = worktrees.list() else { return };
        for item in items {
            let id = item.name.to_string_lossy();
            let linked = foreign.contains(id.as_ref()) && entries::is_linked(&worktrees, &id).unwrap_or(true);
            if item.kind == Kind::Directory && !linked {
                self.add(&worktrees.path().join(&item.name));
            }
        }
    }

    fn add(&mut self, path: &Path) -> Option<nix::sys::inotify::WatchDescriptor> {
        let inotify = self.inotify.as_ref()?;
        if self.watched.contains(path) {
            return None;
        }
        let flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_ONLYDIR
            | AddWatchFlags::IN_DONT_FOLLOW;
        if self.watched.len() >= MOST {
            self.blind = true;
            return None;
        }
        match inotify.add_watch(path, flags) {
            Ok(descriptor) => {
                self.watched.insert(path.to_owned());
                Some(descriptor)
            }
            Err(Errno::ENOENT | Errno::ENOTDIR) => None,
            Err(_) => {
                self.blind = true;
                None
            }
        }
    }

    /// Reads what has happened; how long to wait, if anything did that matters.
    fn events(&mut self) -> Option<Duration> {
        let mut quiet = None;
        let Some(inotify) = &self.inotify else { return quiet };
        while let Ok(events) = inotify.read_events() {
            if events.is_empty() {
                break;
            }
            for event in events {
                let name = event.name.as_deref().unwrap_or_default().as_bytes();
                if name.ends_with(b".lock") || name.ends_with(write::DRAFT.as_bytes()) {
                    continue;
                }
                if event.mask.contains(AddWatchFlags::IN_IGNORED)
                    || event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW)
                {
                    // A directory that is made again under its name is watched again.
                    self.watched.clear();
                }
                let soon = Some(event.wd) == self.worktrees;
                quiet = Some(if soon || quiet == Some(SOON) { SOON } else { QUIET });
            }
        }
        quiet
    }
}
