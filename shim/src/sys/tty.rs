//! Terminals: window size, controlling terminal.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::pty::Winsize;

mod raw {
    nix::ioctl_read_bad!(get_window_size, libc::TIOCGWINSZ, nix::pty::Winsize);
    nix::ioctl_write_ptr_bad!(set_window_size, libc::TIOCSWINSZ, nix::pty::Winsize);
    nix::ioctl_write_int_bad!(set_controlling, libc::TIOCSCTTY);
}

/// The window size of a terminal (ioctl_tty(2), TIOCGWINSZ).
pub fn window_size(fd: BorrowedFd<'_>) -> nix::Result<Winsize> {
    let mut size = Winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the kernel writes one `winsize` into a live value of that type.
    unsafe { raw::get_window_size(fd.as_raw_fd(), &raw mut size) }?;
    Ok(size)
}

/// Sets the window size of a terminal; its foreground processes get SIGWINCH.
pub fn set_window_size(fd: BorrowedFd<'_>, size: &Winsize) -> nix::Result<()> {
    // SAFETY: the kernel reads one `winsize` from a live value of that type.
    unsafe { raw::set_window_size(fd.as_raw_fd(), size) }.map(drop)
}

/// Makes a terminal this session leader's controlling terminal. Steals it from nobody.
pub fn set_controlling(fd: BorrowedFd<'_>) -> nix::Result<()> {
    // SAFETY: a plain integer argument; 0 asks for no stealing.
    unsafe { raw::set_controlling(fd.as_raw_fd(), 0) }.map(drop)
}

/// Unlocks the terminal of a pty master and opens it by the master, without a look at any path
/// (ioctl_tty(2), TIOCGPTPEER, Linux 4.13).
pub fn open_peer(master: BorrowedFd<'_>) -> nix::Result<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd;
    let unlock: libc::c_int = 0;
    // SAFETY: the kernel reads one int from a live value.
    nix::errno::Errno::result(unsafe {
        libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlock)
    })?;
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: a plain integer argument.
    let fd = nix::errno::Errno::result(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) })?;
    // SAFETY: the kernel has just returned this descriptor to us; nobody else owns it.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) })
}
