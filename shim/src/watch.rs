//! Watches, while a turn runs, what a mount cannot hold by itself. A mount on a path of the host goes away
//! without a sound when the host replaces that path (the kernel detaches it); a path that does not exist has
//! no mount at all. This notices both, and says so at once.
//!
//! It is an alarm, not a wall: the turn may write in the instant between. The check at the end decides.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, FileType};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use crate::appearing::{Appearing, INTERVAL};
use crate::probe;
use crate::remask::Sandbox;

/// What was noticed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alarm {
    /// The mount on this path is gone.
    Lost(PathBuf),
    /// This path was not to appear.
    Appeared(PathBuf),
    /// What is hidden here was replaced or made; it is hidden again.
    Masked(PathBuf),
    /// What is hidden here was replaced or made, and could not be hidden again.
    Unmasked(PathBuf),
    /// A socket of the host has appeared here; it is hidden.
    Closed(PathBuf),
    /// A socket of the host has appeared here, and could not be hidden.
    Open(PathBuf),
}

/// The watch of one turn.
pub struct Watch {
    inotify: Option<Inotify>,
    /// Names are watched, or cannot be: the user's limit of watches is reached, say.
    armed: bool,
    /// The names that matter in each watched directory.
    names: HashMap<WatchDescriptor, BTreeSet<std::ffi::OsString>>,
    /// The mount points, with what was bound there.
    pins: Vec<(PathBuf, Option<Identity>)>,
    absent: Vec<PathBuf>,
    /// Hidden paths that are masked, with what the mask lies on; `None`: there is nothing yet.
    masks: Vec<(PathBuf, Option<Identity>)>,
    sandbox: Option<Sandbox>,
    /// The sandbox stands.
    stands: bool,
    /// Process 1 of the sandbox.
    init: Option<i32>,
    /// Sockets that nobody knew of when the turn began, and when they are looked for next.
    appearing: Option<Appearing>,
    next_look: Option<Instant>,
    mountinfo: Option<File>,
    alarms: BTreeSet<Alarm>,
    /// Called for each new alarm.
    on_alarm: Box<dyn FnMut(&Alarm)>,
    /// Called once, when names begin to be watched: the turn is one that lasts.
    on_armed: Option<Box<dyn FnOnce()>>,
}

impl Watch {
    /// A watch over mount points (`pins`), over paths that are not to appear (`absent`), over hidden paths that are
    /// masked where they exist (`masks`, watched at once), and over sockets that are (`sockets`, like the rest);
    /// `is_masked`: whether a mask will lie there when the turn starts.
    pub fn new(
        pins: Vec<PathBuf>,
        absent: Vec<PathBuf>,
        (masks, sockets): (Vec<PathBuf>, Vec<PathBuf>),
        is_masked: impl Fn(&PathBuf) -> bool,
        on_alarm: Box<dyn FnMut(&Alarm)>,
    ) -> Self {
        let at_once = !masks.is_empty();
        // What should have a mask and has none is as good as not there: when it is seen it is masked.
        let look = |path: PathBuf, needs: fn(&FileType) -> bool| {
            let bare =
                !is_masked(&path) && path.symlink_metadata().is_ok_and(|meta| needs(&meta.file_type()));
            let known = if bare { None } else { identity(&path) };
            (path, known)
        };
        // No mask can lie on a link; what it leads to is hidden under its own name.
        let masks = masks.into_iter().map(|path| look(path, |kind| !kind.is_symlink()));
        let sockets = sockets.into_iter().map(|path| look(path, FileType::is_socket));
        let masks: Vec<_> = masks.chain(sockets).collect();
        let mut watch = Self {
            inotify: None,
            armed: false,
            names: HashMap::new(),
            pins: pins.into_iter().map(|path| (path.clone(), identity(&path))).collect(),
            absent,
            masks,
            sandbox: None,
            stands: false,
            init: None,
            appearing: None,
            next_look: None,
            mountinfo: None,
            alarms: BTreeSet::new(),
            on_alarm,
            on_armed: None,
        };
        if at_once {
            watch.arm();
        }
        watch
    }

    /// Has something done when the turn turns out to be one that lasts.
    pub fn when_armed(&mut self, then: Box<dyn FnOnce()>) {
        self.on_armed = Some(then);
    }

    /// Has sockets of the host looked for that appear.
    pub fn look_for(&mut self, appearing: Appearing) {
        self.appearing = Some(appearing);
    }

    /// When sockets are to be looked for next.
    pub fn next_look(&self) -> Option<Instant> {
        self.next_look
    }

    /// Hides the sockets of the host that have appeared.
    pub fn look_for_sockets(&mut self) {
        let (Some(appearing), Some(init)) = (&mut self.appearing, self.init) else { return };
        let mut found = BTreeSet::new();
        for path in appearing.look(init) {
            if self.sandbox.as_ref().is_some_and(|sandbox| sandbox.mask(&path)) {
                // From now on like those that were there: one that takes its place is masked anew.
                self.masks.push((path.clone(), identity(&path)));
                found.insert(Alarm::Closed(path));
            } else {
                found.insert(Alarm::Open(path));
            }
        }
        self.say(found);
        if self.armed && self.inotify.is_none() {
            self.look_at(false);
        } else {
            self.look_at_masks();
        }
        self.next_look = Some(Instant::now() + INTERVAL);
    }

    /// Whether names are watched already.
    pub fn is_armed(&self) -> bool {
        self.on_armed.is_none() && self.has_names()
    }

    fn has_names(&self) -> bool {
        self.armed || (self.pins.is_empty() && self.absent.is_empty() && self.masks.is_empty())
    }

    /// Begins to watch names. Not at once: closing an inotify descriptor waits for the kernel's reaper, ten
    /// milliseconds and more, and a turn that is over sooner than that is judged by the look at its end.
    pub fn arm(&mut self) {
        if let Some(then) = self.on_armed.take() {
            then();
        }
        if self.has_names() {
            return;
        }
        self.armed = true;
        // Without it what matters is looked at every now and then, along with the sockets.
        let Ok(inotify) = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC) else { return };
        let mut by_parent: HashMap<&Path, BTreeSet<std::ffi::OsString>> = HashMap::new();
        let masks = self.masks.iter().map(|(path, _)| path);
        for path in self.pins.iter().map(|(path, _)| path).chain(&self.absent).chain(masks) {
            if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
                by_parent.entry(parent).or_default().insert(name.to_owned());
            }
        }
        let flags = AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_ONLYDIR
            | AddWatchFlags::IN_DONT_FOLLOW;
        for (parent, names) in by_parent {
            // What cannot be watched (the user's limit of watches) is still looked at in mountinfo.
            if let Ok(descriptor) = inotify.add_watch(parent, flags) {
                self.names.insert(descriptor, names);
            }
        }
        self.inotify = Some(inotify);
        self.look();
    }

    /// The sandbox stands: its mounts can be looked at from now on.
    pub fn started(&mut self, init: i32, sandbox: Option<Sandbox>) {
        if !self.pins.is_empty() {
            self.mountinfo = File::open(format!("/proc/{init}/mountinfo")).ok();
        }
        self.sandbox = sandbox;
        self.stands = true;
        self.init = Some(init);
        // A turn that is over sooner is not kept waiting.
        self.next_look = self.appearing.as_ref().map(|_| Instant::now() + INTERVAL);
        // Between the plan and now a hidden path may have been replaced. The mounts are looked at when names
        // begin to be watched, and at the end: with a thousand of them the kernel takes its time to list them.
        self.look_at_masks();
    }

    /// What to wait for. mountinfo is always readable; a change of mounts is an error and a priority event
    /// (proc_pid_mounts(5)).
    pub fn interests(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let mounts = self.mountinfo.as_ref().map(|file| (file.as_fd(), PollFlags::POLLPRI));
        let names = self.inotify.as_ref().map(|inotify| (inotify.as_fd(), PollFlags::POLLIN));
        mounts.into_iter().chain(names).collect()
    }

    /// Something happened: look.
    pub fn act(&mut self) {
        let mut concerned = false;
        if let Some(inotify) = &self.inotify {
            while let Ok(events) = inotify.read_events() {
                for event in &events {
                    let names = self.names.get(&event.wd);
                    let name = event.name.as_ref();
                    // No name: the directory itself, or a queue that overflowed. Then everything is looked at.
                    concerned |= name.is_none_or(|name| names.is_none_or(|names| names.contains(name)));
                }
                if events.is_empty() {
                    break;
                }
            }
        }
        let mounts_changed = self.mountinfo.is_some();
        if concerned || mounts_changed {
            self.look();
        }
    }

    /// Compares what is there with what is to be there.
    pub fn look(&mut self) {
        self.look_at(true);
    }

    /// The last look: the list of mounts is read only if it has changed since it was read last (or opened, for
    /// a turn that was over before names were watched).
    pub fn look_at_end(&mut self) {
        let changed = self.mountinfo.as_ref().is_some_and(|file| {
            let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLPRI)];
            poll(&mut fds, PollTimeout::ZERO) != Ok(0)
        });
        self.look_at(changed);
    }

    fn look_at(&mut self, mounts: bool) {
        let mut found = BTreeSet::new();
        if let Some(file) = self.mountinfo.as_mut().filter(|_| mounts) {
            let mut text = Vec::new();
            let read = std::io::Seek::rewind(file).and_then(|()| std::io::Read::read_to_end(file, &mut text));
            // Once init is gone there is nothing to compare with.
            if read.is_ok() && !text.is_empty() {
                let mounted: BTreeSet<PathBuf> = probe::parse_mount_points(&text).into_iter().collect();
                let lost = self.pins.iter().filter(|(path, _)| !mounted.contains(path));
                found.extend(lost.map(|(path, _)| Alarm::Lost(path.clone())));
            }
        }
        // Renamed away, it is still mounted, but the name on the host is another thing now.
        let replaced = self.pins.iter().filter(|(path, bound)| identity(path) != *bound);
        found.extend(replaced.map(|(path, _)| Alarm::Lost(path.clone())));
        let appeared = self.absent.iter().filter(|path| std::fs::symlink_metadata(path).is_ok());
        found.extend(appeared.cloned().map(Alarm::Appeared));
        self.say(found);
        self.look_at_masks();
    }

    /// Renews the masks of hidden paths that were replaced.
    fn look_at_masks(&mut self) {
        if !self.stands {
            // Nothing can be masked yet, and nobody looks; what is seen now must not be taken for what is masked.
            return;
        }
        let mut found = BTreeSet::new();
        for (path, masked) in &mut self.masks {
            let now = identity(path);
            if now.is_some() && now != *masked {
                let done = self.sandbox.as_ref().is_some_and(|sandbox| sandbox.mask(path));
                // Said anew for each replacement: what was said before was about another thing.
                let alarm = if done { Alarm::Masked(path.clone()) } else { Alarm::Unmasked(path.clone()) };
                self.alarms.remove(&alarm);
                found.insert(alarm);
            }
            *masked = now;
        }
        self.say(found);
    }

    fn say(&mut self, found: BTreeSet<Alarm>) {
        for alarm in found {
            if !self.alarms.contains(&alarm) {
                (self.on_alarm)(&alarm);
                self.alarms.insert(alarm);
            }
        }
    }

    /// All that was noticed.
    pub fn alarms(&self) -> impl Iterator<Item = &Alarm> {
        self.alarms.iter()
    }
}

/// What tells a thing from whatever takes its place: device, inode, and when it was made (statx(2), `stx_btime`; a
/// file system that does not say is left with the first two). An inode's number is soon used again.
type Identity = (u64, u64, Option<SystemTime>);

/// Whose is what is at a path, not following a link there.
fn identity(path: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino(), meta.created().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    #[test]
    fn what_appears_before_the_sandbox_stands_is_dealt_with_when_it_does() {
        let dir = tempfile::tempdir().unwrap();
        let seen = Rc::new(RefCell::new(Vec::new()));
        let log = Rc::clone(&seen);
        let hidden = dir.path().join("secret");
        let on_alarm = Box::new(move |alarm: &Alarm| log.borrow_mut().push(alarm.clone()));
        let masks = (vec![hidden.clone()], Vec::new());
        let mut watch = Watch::new(Vec::new(), Vec::new(), masks, |_| false, on_alarm);
        std::fs::write(&hidden, "").unwrap();
        watch.act();
        assert!(seen.borrow().is_empty(), "there is no sandbox in which it could be masked");
        watch.started(1, None);
        assert_eq!(*seen.borrow(), [Alarm::Unmasked(hidden)], "it was forgotten");
    }

    #[test]
    fn a_name_that_appears_is_noticed_once_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let seen = Rc::new(RefCell::new(Vec::new()));
        let log = Rc::clone(&seen);
        let forbidden = dir.path().join("commondir");
        let on_alarm = Box::new(move |alarm: &Alarm| log.borrow_mut().push(alarm.clone()));
        let none = (Vec::new(), Vec::new());
        let mut watch = Watch::new(Vec::new(), vec![forbidden.clone()], none, |_| false, on_alarm);
        watch.arm();
        std::fs::write(dir.path().join("index.lock"), "").unwrap();
        watch.act();
        assert!(seen.borrow().is_empty());
        std::fs::write(&forbidden, "").unwrap();
        watch.act();
        watch.act();
        assert_eq!(*seen.borrow(), [Alarm::Appeared(forbidden)]);
    }
}
