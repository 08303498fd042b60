//! Several pipes to processes at once, without a thread: none of them waits for us while we wait for another.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Error, PATIENCE};

/// As much as a pipe holds.
const PIECE: usize = 64 * 1024;
/// As much as is kept of what a process says.
const TAIL: usize = 8 * 1024;

/// What is kept of what comes out of a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shadow) enum Keep {
    /// Everything.
    All,
    /// The last [`TAIL`] bytes.
    Tail,
    /// The first bytes; what follows is left in the pipe.
    First(usize),
}

#[derive(Debug)]
struct Drain {
    pipe: Option<File>,
    keep: Keep,
    kept: Vec<u8>,
}

/// The pipes.
#[derive(Debug)]
pub(in crate::shadow) struct Pipes<'a> {
    input: Option<(File, &'a [u8])>,
    drains: Vec<Drain>,
    deadline: Instant,
}

impl<'a> Pipes<'a> {
    pub(in crate::shadow) fn new() -> Self {
        Self { input: None, drains: Vec::new(), deadline: Instant::now() + PATIENCE }
    }

    /// Writes these bytes into the pipe and closes it.
    pub(in crate::shadow) fn feed(&mut self, pipe: impl Into<OwnedFd>, input: &'a [u8]) {
        self.input = Some((File::from(pipe.into()), input));
    }

    /// Reads what comes out of the pipe; the answer is its number.
    pub(in crate::shadow) fn drain(&mut self, pipe: impl Into<OwnedFd>, keep: Keep) -> usize {
        self.drains.push(Drain { pipe: Some(File::from(pipe.into())), keep, kept: Vec::new() });
        self.drains.len() - 1
    }

    /// What was kept.
    pub(in crate::shadow) fn kept(&self, at: usize) -> &[u8] {
        &self.drains[at].kept
    }

    /// What was kept, and not kept any longer.
    pub(in crate::shadow) fn take(&mut self, at: usize) -> Vec<u8> {
        std::mem::take(&mut self.drains[at].kept)
    }

    /// The pipe with what was left in it, for somebody else to read; `None` where its end was met.
    pub(in crate::shadow) fn hand_over(&mut self, at: usize) -> Option<File> {
        self.drains[at].pipe.take()
    }

    /// Whether that pipe has come to its end, or has given all that was asked of it.
    pub(in crate::shadow) fn is_done(&self, at: usize) -> bool {
        self.drains[at].is_done()
    }

    /// Writes and reads until `enough`, or until every pipe is at its end.
    pub(in crate::shadow) fn run(&mut self, verb: &str, enough: impl Fn(&Self) -> bool) -> Result<(), Error> {
        let fail = |source| Error::Pipe { verb: verb.to_owned(), source };
        if let Some((pipe, _)) = &self.input {
            // A write to a pipe that is ready for a byte would still wait until it has taken them all.
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|errno| fail(errno.into()))?;
        }
        let mut piece = vec![0; PIECE];
        while !enough(self) && (self.input.is_some() || self.drains.iter().any(|drain| !drain.is_done())) {
            let (input, ready) = self.wait(verb)?;
            if input {
                self.write().map_err(fail)?;
            }
            for at in ready {
                self.drains[at].read(&mut piece).map_err(fail)?;
            }
        }
        Ok(())
    }

    /// Which of the pipes are ready.
    fn wait(&self, verb: &str) -> Result<(bool, Vec<usize>), Error> {
        let open: Vec<(usize, &File)> = self
            .drains
            .iter()
            .enumerate()
            .filter(|(_, drain)| !drain.is_done())
            .filter_map(|(at, drain)| drain.pipe.as_ref().map(|pipe| (at, pipe)))
            .collect();
        let mut polled: Vec<PollFd<'_>> =
            open.iter().map(|(_, pipe)| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)).collect();
        if let Some((pipe, _)) = &self.input {
            polled.push(PollFd::new(pipe.as_fd(), PollFlags::POLLOUT));
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::TooLong { verb: verb.to_owned() });
        }
        match poll(&mut polled, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::Pipe { verb: verb.to_owned(), source: errno.into() }),
        }
        // At the other end's close, POLLHUP or POLLERR come without having been asked for.
        let is_ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        let ready = open.iter().zip(&polled).filter(|(_, fd)| is_ready(fd)).map(|((at, _), _)| *at).collect();
        Ok((self.input.is_some() && polled.last().is_some_and(is_ready), ready))
    }

    fn write(&mut self) -> std::io::Result<()> {
        let Some((pipe, rest)) = &mut self.input else { return Ok(()) };
        if !rest.is_empty() {
            match pipe.write(rest) {
                Ok(count) => *rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
                // It did not want to know the rest; its end says whether that is well.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => *rest = &[],
                Err(error) => return Err(error),
            }
        }
        if rest.is_empty() {
            self.input = None;
        }
        Ok(())
    }
}

impl Drain {
    fn is_done(&self) -> bool {
        self.pipe.is_none() || matches!(self.keep, Keep::First(count) if self.kept.len() >= count)
    }

    fn read(&mut self, piece: &mut [u8]) -> std::io::Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        let wanted = match self.keep {
            Keep::First(count) => count.saturating_sub(self.kept.len()).min(piece.len()),
            Keep::All | Keep::Tail => piece.len(),
        };
        let count = match pipe.read(&mut piece[..wanted]) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        };
        if count == 0 {
            self.pipe = None;
        }
        self.kept.extend_from_slice(&piece[..count]);
        if self.keep == Keep::Tail && self.kept.len() > TAIL {
            let surplus = self.kept.len() - TAIL;
            self.kept.drain(..surplus);
        }
        Ok(())
    }
}
