//! All contact with the kernel that needs `unsafe`, and nothing else: one thin wrapper per system call, with
//! typed arguments and an error that says what was tried on what. Decisions are made elsewhere.
//!
//! The rest of the crate is free of unsafe code (`unsafe_code = "deny"`); only the modules below are exempt.

#![allow(unsafe_code)]

pub mod bpf;
pub mod mount;
pub mod net;
pub mod process;
pub mod tty;
pub mod xattr;

use std::fmt;

use nix::errno::Errno;

/// A system call that failed, printed as strace(1) would: call, what it was about, errno.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The system call.
    pub call: &'static str,
    /// What it was called on.
    pub on: String,
    /// What the kernel said.
    pub errno: Errno,
}

impl Error {
    /// Puts a failed call into words.
    pub fn new(call: &'static str, on: impl fmt::Display, errno: Errno) -> Self {
        Self { call, on: on.to_string(), errno }
    }

    /// Whether nothing is at the path that was asked for. Where the caller may not look, a turn, which runs as the
    /// caller with less, may not either: nothing is there for it.
    pub const fn is_gone(&self) -> bool {
        matches!(self.errno, Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({}): {}", self.call, self.on, self.errno.desc())
    }
}

impl std::error::Error for Error {}

/// The result of a system call.
pub type Result<T> = std::result::Result<T, Error>;

/// Attaches the call's name and object to an errno.
pub trait Context<T> {
    /// Names the call and what it was about.
    fn on(self, call: &'static str, on: impl fmt::Display) -> Result<T>;
}

impl<T> Context<T> for std::result::Result<T, Errno> {
    fn on(self, call: &'static str, on: impl fmt::Display) -> Result<T> {
        self.map_err(|errno| Error::new(call, on, errno))
    }
}

impl<T> Context<T> for std::io::Result<T> {
    fn on(self, call: &'static str, on: impl fmt::Display) -> Result<T> {
        self.map_err(|error| {
            Error::new(call, on, error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw))
        })
    }
}

/// The Landlock ABI of this kernel; 0 where there is none (landlock_create_ruleset(2)).
pub fn landlock_abi() -> i32 {
    const VERSION: u32 = 1;
    // SAFETY: with this flag the kernel takes no attribute and returns a number.
    let abi = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0usize, VERSION)
    };
    i32::try_from(abi).unwrap_or(0).max(0)
}
