//! eBPF programs of cgroups (bpf(2)): loading one, and attaching it.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;

use super::{Context, Result};

// linux/bpf.h
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_ATTACH: libc::c_long = 8;
const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const BPF_CGROUP_DEVICE: u32 = 6;
const BPF_F_ALLOW_MULTI: u32 = 2;

/// The members of `union bpf_attr` that BPF_PROG_LOAD reads, as of Linux 4.15; what follows is zero.
#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buffer: u64,
    kernel_version: u32,
    flags: u32,
}

/// Those that BPF_PROG_ATTACH reads.
#[repr(C)]
struct Attach {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

/// Loads a program that decides about the use of devices; instructions as the kernel has them, eight bytes each.
pub fn load_device_program(instructions: &[u64]) -> Result<OwnedFd> {
    let license = c"Apache-2.0";
    let attributes = Load {
        kind: BPF_PROG_TYPE_CGROUP_DEVICE,
        count: u32::try_from(instructions.len()).unwrap_or(u32::MAX),
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buffer: 0,
        kernel_version: 0,
        flags: 0,
    };
    // SAFETY: the kernel reads `size_of` bytes of a live value; the pointers in it lead to `count` instructions and to
    // a NUL-terminated string, both alive.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const attributes, size_of::<Load>()) };
    let fd = Errno::result(fd).on("bpf", "BPF_PROG_LOAD of devices")?;
    // SAFETY: the kernel has just returned this descriptor to us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Attaches it to a cgroup, beside what is attached there already: the strictest one decides.
pub fn attach_device_program(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>) -> Result<()> {
    let number = |fd: BorrowedFd<'_>| u32::try_from(fd.as_raw_fd()).unwrap_or(u32::MAX);
    let attributes = Attach {
        target: number(cgroup),
        program: number(program),
        kind: BPF_CGROUP_DEVICE,
        flags: BPF_F_ALLOW_MULTI,
    };
    // SAFETY: the kernel reads `size_of` bytes of a live value.
    let done =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_ATTACH, &raw const attributes, size_of::<Attach>()) };
    Errno::result(done).map(drop).on("bpf", "BPF_PROG_ATTACH of devices")
}
