//! The standard streams that the turn inherits. A descriptor is a way round every mount: a directory opens the
//! host's tree as it is, and a file that was opened for reading can be opened again for writing by way of
//! `/proc/self/fd` (proc(5)), since its mount is the host's.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::{FileStat, Mode, fstat};
use nix::unistd::{Whence, dup2_stdin, lseek};

use crate::diagnostic::{Doing, Failure};
use crate::sys::{self, Context, mount as m, process};

/// Refuses streams that a turn must not have.
pub fn judge() -> Result<(), Failure> {
    for (number, name) in [(0, "stdin"), (1, "stdout"), (2, "stderr")] {
        let stream = process::borrow(number);
        let refuse = |why: &str| {
            Err(Failure::new(format!("hand {name} on"), why)
                .hint("give it a file, a pipe, a terminal or /dev/null"))
        };
        let stat = fstat(stream).doing(format!("look at {name}"))?;
        let flags = fcntl(stream, FcntlArg::F_GETFL).doing(format!("look at {name}"))?;
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFDIR => {
                return refuse("it is a directory, which opens the host's files past the sandbox");
            }
            libc::S_IFBLK => return refuse("it is a block device, which holds a whole file system"),
            _ if flags & libc::O_PATH != 0 => return refuse("it is a path that was not opened"),
            _ => {}
        }
    }
    Ok(())
}

/// The caller's stdin, kept while the turn has a read-only twin of it.
pub struct Kept(OwnedFd);

/// Replaces a stdin that is a file by one that was opened on a read-only mount of that file. `None` where that
/// is not needed, or not possible: a file that has no name any more.
/// `stage` is a private tmpfs.
pub fn protect_stdin(stage: &Path) -> sys::Result<Option<Kept>> {
    let stdin = process::borrow(0);
    let stat = fstat(stdin).on("fstat", "stdin")?;
    let flags = OFlag::from_bits_truncate(fcntl(stdin, FcntlArg::F_GETFL).on("fcntl", "stdin")?);
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG || flags & OFlag::O_ACCMODE != OFlag::O_RDONLY {
        return Ok(None);
    }
    let path = std::fs::read_link("/proc/self/fd/0").on("readlink", "stdin")?;
    let Some(named) = same_file(&path, &stat) else { return Ok(None) };
    let at = stage.join("stdin");
    std::fs::File::create_new(&at).on("open", at.display())?;
    m::bind_read_only(named.as_fd(), m::open_path(None, &at)?.as_fd(), &path)?;
    let twin = nix::fcntl::open(&at, OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW, Mode::empty())
        .on("open", at.display())?;
    let offset = lseek(stdin, 0, Whence::SeekCur).on("lseek", "stdin")?;
    lseek(&twin, offset, Whence::SeekSet).on("lseek", path.display())?;
    let copy = process::duplicate_above(0, 64).on("fcntl", "stdin")?;
    let kept = process::received(copy).map(Kept);
    dup2_stdin(&twin).on("dup2", "stdin")?;
    Ok(kept)
}

fn same_file(path: &Path, stat: &FileStat) -> Option<OwnedFd> {
    let named = m::open_path(None, path).ok()?;
    let found = fstat(&named).ok()?;
    (found.st_dev == stat.st_dev && found.st_ino == stat.st_ino).then_some(named)
}

impl Kept {
    /// What the turn has read, the caller has read: its next command goes on from there.
    pub fn advance(&self) {
        if let Ok(offset) = lseek(process::borrow(0), 0, Whence::SeekCur) {
            let _ = lseek(&self.0, offset, Whence::SeekSet);
        }
    }
}
