//! Hands the turn report over, to a file or to a descriptor that the caller has opened.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use codeoid_spec::policy::ReportTarget;
use codeoid_spec::report::TurnReport;
use nix::fcntl::{OFlag, open, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{AccessFlags, UnlinkatFlags, access, unlinkat};

use crate::diagnostic::{Doing, Failure};
use crate::sys::process;

/// Where the report goes; looked at before the turn, so that one that cannot be written refuses the turn
/// instead of getting lost after it.
#[derive(Debug)]
pub enum Target {
    /// A descriptor of the caller's.
    Open(File),
    /// A file; it appears whole, at the end.
    File {
        /// Its directory, opened before the turn could put another one there.
        directory: OwnedFd,
        /// Its name.
        name: OsString,
    },
}

impl Target {
    /// Looks at the target. Makes nothing yet: whatever is made now would be left behind by a kill.
    pub fn open(target: &ReportTarget) -> Result<Self, Failure> {
        Self::look_at(target).map_err(|failure| {
            failure.hint("name a file in a directory that you can write, or a descriptor that is open (fd:N)")
        })
    }

    fn look_at(target: &ReportTarget) -> Result<Self, Failure> {
        match target {
            ReportTarget::Fd(number) => {
                let what = format!("open the report's target (fd:{number})");
                let copy = process::duplicate_above(*number, 3).doing(what.clone())?;
                let fd = process::received(copy).ok_or_else(|| Failure::new(what, "no such descriptor"))?;
                Ok(Self::Open(File::from(fd)))
            }
            ReportTarget::File(path) => {
                let what = format!("open the report's target ({})", path.display());
                let path = std::path::absolute(path).doing(what.clone())?;
                if path.is_dir() {
                    return Err(Failure::new(what, "it is a directory"));
                }
                if path.exists() && !path.is_file() {
                    // A FIFO or /dev/stderr: what stands behind it is the caller's choice.
                    return Ok(Self::Open(File::options().write(true).open(&path).doing(what)?));
                }
                let dir = path.parent().unwrap_or(&path);
                access(dir, AccessFlags::W_OK | AccessFlags::X_OK).doing(what.clone())?;
                let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
                let directory = open(dir, flags, Mode::empty()).doing(what)?;
                Ok(Self::File { directory, name: path.file_name().unwrap_or_default().to_owned() })
            }
        }
    }

    /// Writes the report.
    pub fn write(self, report: &TurnReport) -> Result<(), Failure> {
        let what = "write the report";
        let mut text = serde_json::to_vec_pretty(report).doing(what)?;
        text.push(b'\n');
        match self {
            Self::Open(mut file) => file.write_all(&text).doing(what),
            Self::File { directory, name } => {
                let what = format!("{what} ({})", name.display());
                let draft = format!(".{}.{}", name.display(), report.turn);
                let flags =
                    OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                let mode = Mode::S_IRUSR | Mode::S_IWUSR;
                let made = openat(&directory, draft.as_str(), flags, mode).doing(what.clone())?;
                let written = File::from(made).write_all(&text).and_then(|()| {
                    renameat(&directory, draft.as_str(), &directory, name.as_os_str()).map_err(Into::into)
                });
                if written.is_err() {
                    let _ = unlinkat(&directory, draft.as_str(), UnlinkatFlags::NoRemoveDir);
                }
                written.doing(what)
            }
        }
    }
}
