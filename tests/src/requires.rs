//! What a test needs from the machine. Missing: the test is skipped with a printed reason on a developer's
//! machine, and fails where `CI` is set (as `BWRAP_MUST_WORK` does in bubblewrap's own tests).

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::Identity;

/// One requirement.
#[derive(Debug, Clone, Copy)]
pub enum Requires {
    /// The tests run as root.
    Root,
    /// A turn can run as this identity.
    Identity(Identity),
    /// A program in PATH or in one of the `sbin` directories.
    Tool(&'static str),
    /// A path of this host exists (`/dev/fuse`, `/sys/fs/cgroup/unified`).
    Path(&'static str),
    /// Some git on this machine understands this; the text says what.
    Git(&'static str),
    /// Landlock with at least this ABI version.
    Landlock(u32),
}

impl Requires {
    /// Whether it is met. Says so, or panics where `CI` is set, if it is not.
    #[must_use]
    pub fn met(self) -> bool {
        match self.judge() {
            Ok(()) => true,
            Err(reason) => {
                Self::skip(&reason);
                false
            }
        }
    }

    /// Skips a test for this reason, loudly.
    ///
    /// # Panics
    /// Where `CI` is set: there, a skip is a failure.
    #[expect(clippy::print_stderr, reason = "a skip is never silent")]
    pub fn skip(reason: &str) {
        let test = std::thread::current().name().unwrap_or("?").to_owned();
        assert!(std::env::var_os("CI").is_none(), "{test}: required here, but {reason}");
        eprintln!("skipped: {test}: {reason}");
        if let Some(file) = std::env::var_os("CODEOID_TESTS_SKIPPED")
            && let Ok(mut file) = fs::OpenOptions::new().append(true).create(true).open(file)
        {
            let _ = writeln!(file, "  {test}: {reason}");
        }
    }

    fn judge(self) -> Result<(), String> {
        match self {
            Self::Root if nix::unistd::geteuid().is_root() => Ok(()),
            Self::Root => Err("it needs root".to_owned()),
            Self::Identity(identity) => identity.available(),
            Self::Tool(name) => find(name).map(drop).ok_or_else(|| format!("{name} is not installed")),
            Self::Path(path) if Path::new(path).exists() => Ok(()),
            Self::Path(path) => Err(format!("{path} does not exist")),
            Self::Git(what) => Err(format!("no git here {what}")),
            Self::Landlock(wanted) => {
                // Documentation/userspace-api/landlock.rst: scopes came with ABI 6 (6.12). The version can only
                // be asked for by a system call; the kernel's version stands in for it here.
                let kernel = nix::sys::utsname::uname()
                    .map(|name| name.release().to_string_lossy().into_owned())
                    .unwrap_or_default();
                let mut parts = kernel.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
                let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
                if wanted <= 6 && version >= (6, 12) {
                    Ok(())
                } else {
                    Err(format!("Landlock ABI {wanted} needs a newer kernel than {kernel}"))
                }
            }
        }
    }
}

/// Where a program is, looked for in PATH and in the `sbin` directories, which an ordinary user's PATH lacks.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(
            ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin"]
                .map(PathBuf::from),
        )
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}
