//! The system call filter: a short list of what a command of an agent never needs and what has opened
//! sandboxes before. Everything else is allowed, nested sandboxes (`unshare`, `mount`, `clone` with
//! namespaces) included: they act in the turn's own user namespace. Root's turn has none of its own, so it may
//! not make one either.
//!
//! A long allow-list costs more at every start than all mounts together, and breaks with every new libc.

use oci_spec::OciSpecError;
use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArgBuilder, LinuxSeccompBuilder,
    LinuxSeccompOperator, LinuxSyscallBuilder,
};

/// Refused with EPERM.
const REFUSED: &[&str] = &[
    // The kernel's keyrings belong to the login session, not to a mount or pid namespace (keyrings(7)).
    "add_key",
    "keyctl",
    "request_key",
    // Kernel code and the kernel itself.
    "init_module",
    "finit_module",
    "delete_module",
    "kexec_load",
    "kexec_file_load",
    "reboot",
    "bpf",
    // A way past mount namespaces for whoever has the capability (CVE-2014-3519).
    "open_by_handle_at",
    // Large kernel surface, no use for a command line; several escapes each.
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "vhangup",
    "acct",
    "quotactl",
    "quotactl_fd",
    "swapon",
    "swapoff",
    "nfsservctl",
    "lookup_dcookie",
    "_sysctl",
    "uselib",
    "ustat",
    "settimeofday",
    "clock_settime",
    "clock_settime64",
    "clock_adjtime",
    "clock_adjtime64",
    "adjtimex",
];

/// AF_VSOCK leads to the hypervisor and to other virtual machines, past every network namespace (vsock(7)).
const AF_VSOCK: u64 = 40;

/// Terminal input as if it were typed: a way to run commands in the shell that started the sandbox
/// (CVE-2017-5226). Compared in the low 32 bits only, as the kernel does (CVE-2019-10063).
const TIOCSTI: u64 = 0x5412;
/// As TIOCSTI, on a virtual console (CVE-2023-28100).
const TIOCLINUX: u64 = 0x541c;

const LOW_32_BITS: u64 = 0xffff_ffff;

/// A new user namespace has every capability in itself (user_namespaces(7)). Whoever is root on the host owns
/// the files of the cgroup hierarchies, and a cgroup namespace made in there lets them be mounted anew,
/// writable: the turn's own limits, and other people's processes (`cgroup.kill`).
const CLONE_NEWUSER: u64 = 0x1000_0000;

/// The profile for a turn of root on the host, or of an ordinary user.
pub(super) fn profile(root: bool) -> Result<LinuxSeccomp, OciSpecError> {
    let mut syscalls = vec![refuse(REFUSED, EPERM).build()?];
    for request in [TIOCSTI, TIOCLINUX] {
        let argument = LinuxSeccompArgBuilder::default()
            .index(1usize)
            .value(LOW_32_BITS)
            .value_two(request)
            .op(LinuxSeccompOperator::ScmpCmpMaskedEq)
            .build()?;
        syscalls.push(refuse(&["ioctl"], EPERM).args(vec![argument]).build()?);
    }
    let family = LinuxSeccompArgBuilder::default()
        .index(0usize)
        .value(LOW_32_BITS)
        .value_two(AF_VSOCK)
        .op(LinuxSeccompOperator::ScmpCmpMaskedEq)
        .build()?;
    syscalls.push(refuse(&["socket"], EAFNOSUPPORT).args(vec![family]).build()?);
    if root {
        let flag = LinuxSeccompArgBuilder::default()
            .index(0usize)
            .value(CLONE_NEWUSER)
            .value_two(CLONE_NEWUSER)
            .op(LinuxSeccompOperator::ScmpCmpMaskedEq)
            .build()?;
        syscalls.push(refuse(&["unshare", "clone"], EPERM).args(vec![flag]).build()?);
        // Its flags are behind a pointer that no filter can follow; without it a libc takes clone(2).
        syscalls.push(refuse(&["clone3"], ENOSYS).build()?);
    }
    LinuxSeccompBuilder::default()
        .default_action(LinuxSeccompAction::ScmpActAllow)
        .architectures(architectures())
        .syscalls(syscalls)
        .build()
}

/// errno(3): operation not permitted.
const EPERM: u32 = 1;
/// errno(3): function not implemented.
const ENOSYS: u32 = 38;
/// errno(3): address family not supported by protocol.
const EAFNOSUPPORT: u32 = 97;

fn refuse(names: &[&str], errno: u32) -> LinuxSyscallBuilder {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    LinuxSyscallBuilder::default().names(names).action(LinuxSeccompAction::ScmpActErrno).errno_ret(errno)
}

/// The native architecture and those that the same kernel runs beside it; a filter that names only the
/// native one kills the others.
fn architectures() -> Vec<Arch> {
    if cfg!(target_arch = "x86_64") {
        vec![Arch::ScmpArchX86_64, Arch::ScmpArchX86, Arch::ScmpArchX32]
    } else if cfg!(target_arch = "aarch64") {
        vec![Arch::ScmpArchAarch64, Arch::ScmpArchArm]
    } else {
        vec![Arch::ScmpArchNative]
    }
}
