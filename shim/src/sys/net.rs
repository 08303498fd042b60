//! Network devices of a fresh network namespace.

use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::{Context, Result};

/// Brings the loopback device up: a new network namespace has one, but down (netdevice(7)).
pub fn raise_loopback() -> Result<()> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
        .on("socket", "AF_INET, to raise lo")?;
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: (libc::IFF_UP | libc::IFF_RUNNING) as i16 },
    };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    // SAFETY: the kernel reads one `ifreq` from a live value whose name is NUL-terminated.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    Errno::result(done).map(drop).on("ioctl(SIOCSIFFLAGS)", "lo")
}
