//! The bundle's system call filter, compiled to BPF. Compiling takes longer than all mounts of a turn, so the
//! program is kept in the runtime directory, by a hash of the profile.

use std::fs;
use std::io::{Read, Seek};
use std::path::Path;

use libseccomp::{ScmpAction, ScmpArch, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall};
use nix::sys::memfd::{MFdFlags, memfd_create};
use oci_spec::runtime::{Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompOperator};

use crate::diagnostic::{Doing, Failure};

/// Why a profile could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// libseccomp refuses it.
    #[error("the filter does not compile")]
    Compile(#[from] libseccomp::error::SeccompError),
    /// The program could not be read back.
    #[error("the filter cannot be read back")]
    Read(#[from] std::io::Error),
    /// As above.
    #[error("the filter cannot be written")]
    Write(#[from] nix::errno::Errno),
    /// An action, operator or architecture that bundles of turns do not use.
    #[error("the filter has something that turns do not use: {0}")]
    Unsupported(String),
}

/// The longest program that the kernel takes: BPF_MAXINSNS instructions of eight bytes (bpf(4)).
const MAX_PROGRAM: u64 = 4096 * 8;

/// Counts the changes of how profiles are compiled, so that no program of an older way is taken.
const REVISION: u32 = 2;

/// The program for a profile, from `cache` if it is there.
pub fn program(profile: &LinuxSeccomp, cache: &Path) -> Result<Vec<u8>, Failure> {
    let what = "compile the system call filter";
    let text = serde_json::to_vec(profile).doing(what)?;
    let name = format!("{}{}", codeoid_spec::id::hex8(&[&text]), codeoid_spec::id::hex8(&[b"filter", &text]));
    let path = cache.join(format!("seccomp-{REVISION}-{name}"));
    if let Ok(bytes) = fs::read(&path)
        && !bytes.is_empty()
        && bytes.len() % 8 == 0
        && (bytes.len() as u64) <= MAX_PROGRAM
    {
        return Ok(bytes);
    }
    let bytes = compile(profile).doing(what)?;
    // Losing the race to write it, or not being able to, costs time only.
    let draft = path.with_extension(std::process::id().to_string());
    if fs::write(&draft, &bytes).is_ok() {
        let _ = fs::rename(&draft, &path);
    }
    Ok(bytes)
}

fn compile(profile: &LinuxSeccomp) -> Result<Vec<u8>, Error> {
    let architectures: Vec<Arch> = profile.architectures().clone().unwrap_or_default();
    let (multiplexed, direct): (Vec<Arch>, Vec<Arch>) =
        architectures.into_iter().partition(|arch| *arch == Arch::ScmpArchX86);
    let mut filter = one(profile, &direct, |_| true)?;
    if !multiplexed.is_empty() {
        // On i386 sockets are made by socketcall(2), whose arguments are behind a pointer that no filter can
        // follow: libseccomp would make "refuse this family" into "refuse all sockets".
        filter.merge(one(profile, &multiplexed, |name| name != "socket")?)?;
    }
    export(&filter)
}

/// The program of a filter.
pub fn export(filter: &ScmpFilterContext) -> Result<Vec<u8>, Error> {
    // The variant that writes to memory needs libseccomp 2.6.
    let mut file = fs::File::from(memfd_create("seccomp", MFdFlags::MFD_CLOEXEC)?);
    filter.export_bpf(&file)?;
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The filter for these architectures, with those of the profile's system calls that `wanted` takes.
fn one(
    profile: &LinuxSeccomp,
    architectures: &[Arch],
    wanted: impl Fn(&str) -> bool,
) -> Result<ScmpFilterContext, Error> {
    let mut filter = ScmpFilterContext::new(action(profile.default_action(), profile.default_errno_ret())?)?;
    filter.set_ctl_nnp(false)?;
    if !architectures.is_empty() {
        filter.remove_arch(ScmpArch::Native)?;
    }
    for arch in architectures {
        filter.add_arch(architecture(*arch)?)?;
    }
    for rule in profile.syscalls().iter().flatten() {
        let action = action(rule.action(), rule.errno_ret())?;
        let comparisons = rule
            .args()
            .iter()
            .flatten()
            .map(|argument| {
                let op = match argument.op() {
                    LinuxSeccompOperator::ScmpCmpMaskedEq => ScmpCompareOp::MaskedEqual(argument.value()),
                    other => return Err(Error::Unsupported(format!("{other:?}"))),
                };
                let index = u32::try_from(argument.index()).unwrap_or(u32::MAX);
                Ok(ScmpArgCompare::new(index, op, argument.value_two().unwrap_or(0)))
            })
            .collect::<Result<Vec<_>, _>>()?;
        for name in rule.names().iter().filter(|name| wanted(name)) {
            // A system call that libseccomp does not know has no number here either.
            let Ok(syscall) = ScmpSyscall::from_name(name) else { continue };
            filter.add_rule_conditional(action, syscall, &comparisons)?;
        }
    }
    Ok(filter)
}

fn action(action: LinuxSeccompAction, errno: Option<u32>) -> Result<ScmpAction, Error> {
    match action {
        LinuxSeccompAction::ScmpActAllow => Ok(ScmpAction::Allow),
        LinuxSeccompAction::ScmpActErrno => {
            Ok(ScmpAction::Errno(errno.and_then(|errno| i32::try_from(errno).ok()).unwrap_or(libc::EPERM)))
        }
        other => Err(Error::Unsupported(format!("{other:?}"))),
    }
}

fn architecture(arch: Arch) -> Result<ScmpArch, Error> {
    Ok(match arch {
        Arch::ScmpArchNative => ScmpArch::Native,
        Arch::ScmpArchX86_64 => ScmpArch::X8664,
        Arch::ScmpArchX86 => ScmpArch::X86,
        Arch::ScmpArchX32 => ScmpArch::X32,
        Arch::ScmpArchAarch64 => ScmpArch::Aarch64,
        Arch::ScmpArchArm => ScmpArch::Arm,
        other => return Err(Error::Unsupported(format!("{other:?}"))),
    })
}
