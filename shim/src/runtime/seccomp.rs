//! The system call filter of a configuration, compiled by libseccomp before anything is forked.

use std::collections::BTreeMap;

use libseccomp::{
    ScmpAction, ScmpArch, ScmpArgCompare, ScmpCompareOp, ScmpFilterAttr, ScmpFilterContext, ScmpSyscall,
};
use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompFilterFlag, LinuxSeccompOperator,
};

use super::error::{Error, Result};
use crate::seccomp;

/// A compiled filter.
#[derive(Debug, Clone)]
pub struct Filter {
    /// The program.
    pub program: Vec<u8>,
    /// `SECCOMP_FILTER_FLAG_*`
    pub flags: u64,
}

/// Compiles a profile. What it asks for and this program cannot do is an error: a filter that lets more through
/// than was asked for is worse than none that is known.
pub fn compile(profile: &LinuxSeccomp) -> Result<Option<Filter>> {
    let fail = |why: String| Error::config("linux.seccomp", why);
    let compiled = |error: libseccomp::error::SeccompError| Error::Filter(error.into());
    let default = action(profile.default_action(), profile.default_errno_ret())?;
    let mut filter = ScmpFilterContext::new(default).map_err(compiled)?;
    filter.set_ctl_nnp(false).map_err(compiled)?;
    for arch in profile.architectures().iter().flatten() {
        filter.add_arch(architecture(*arch)).map_err(compiled)?;
    }
    let mut flags = 0;
    for flag in profile.flags().iter().flatten() {
        flags |= match flag {
            LinuxSeccompFilterFlag::SeccompFilterFlagLog => libc::SECCOMP_FILTER_FLAG_LOG,
            LinuxSeccompFilterFlag::SeccompFilterFlagSpecAllow => libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            // One thread: it is in step with itself.
            LinuxSeccompFilterFlag::SeccompFilterFlagTsync => 0,
            LinuxSeccompFilterFlag::SeccompFilterFlagWaitKillableRecv => {
                return Err(fail("SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV without a listener".to_owned()));
            }
        };
    }
    let _ = filter.set_filter_attr(ScmpFilterAttr::CtlOptimize, 1);
    for rule in profile.syscalls().iter().flatten() {
        let action = action(rule.action(), rule.errno_ret())?;
        if action == default {
            // As runc: the default says it already, and libseccomp refuses it.
            continue;
        }
        let mut comparisons: BTreeMap<u32, usize> = BTreeMap::new();
        let mut list = Vec::new();
        for argument in rule.args().iter().flatten() {
            let index = u32::try_from(argument.index()).unwrap_or(u32::MAX);
            *comparisons.entry(index).or_default() += 1;
            let (op, datum) = operator(argument.op(), argument.value(), argument.value_two().unwrap_or(0));
            list.push(ScmpArgCompare::new(index, op, datum));
        }
        // libseccomp joins comparisons by "and", and takes one for each argument; runc joins several of one argument
        // by "or" (libcontainer/seccomp, `matchCall`).
        let alternatives: Vec<Vec<ScmpArgCompare>> = match comparisons.values().any(|count| *count > 1) {
            true => list.into_iter().map(|one| vec![one]).collect(),
            false => vec![list],
        };
        for name in rule.names() {
            // One that libseccomp does not know has no number here.
            let Ok(syscall) = ScmpSyscall::from_name(name) else { continue };
            for list in &alternatives {
                filter.add_rule_conditional(action, syscall, list).map_err(compiled)?;
            }
        }
    }
    let mut program = seccomp::export(&filter)?;
    if let Some(stub) = unknown_calls(profile, default) {
        program.splice(0..0, stub);
    }
    Ok(Some(Filter { program, flags }))
}

fn action(action: LinuxSeccompAction, errno: Option<u32>) -> Result<ScmpAction> {
    let number = |default: i32| errno.and_then(|errno| i32::try_from(errno).ok()).unwrap_or(default);
    Ok(match action {
        LinuxSeccompAction::ScmpActKill | LinuxSeccompAction::ScmpActKillThread => ScmpAction::KillThread,
        LinuxSeccompAction::ScmpActKillProcess => ScmpAction::KillProcess,
        LinuxSeccompAction::ScmpActTrap => ScmpAction::Trap,
        LinuxSeccompAction::ScmpActErrno => ScmpAction::Errno(number(libc::EPERM)),
        LinuxSeccompAction::ScmpActTrace => {
            ScmpAction::Trace(u16::try_from(number(libc::EPERM)).unwrap_or(u16::MAX))
        }
        LinuxSeccompAction::ScmpActAllow => ScmpAction::Allow,
        LinuxSeccompAction::ScmpActLog => ScmpAction::Log,
        LinuxSeccompAction::ScmpActNotify => {
            return Err(Error::Unsupported("a seccomp profile with SCMP_ACT_NOTIFY".to_owned()));
        }
    })
}

fn operator(op: LinuxSeccompOperator, value: u64, second: u64) -> (ScmpCompareOp, u64) {
    match op {
        LinuxSeccompOperator::ScmpCmpNe => (ScmpCompareOp::NotEqual, value),
        LinuxSeccompOperator::ScmpCmpLt => (ScmpCompareOp::Less, value),
        LinuxSeccompOperator::ScmpCmpLe => (ScmpCompareOp::LessOrEqual, value),
        LinuxSeccompOperator::ScmpCmpEq => (ScmpCompareOp::Equal, value),
        LinuxSeccompOperator::ScmpCmpGe => (ScmpCompareOp::GreaterEqual, value),
        LinuxSeccompOperator::ScmpCmpGt => (ScmpCompareOp::Greater, value),
        LinuxSeccompOperator::ScmpCmpMaskedEq => (ScmpCompareOp::MaskedEqual(value), second),
    }
}

fn architecture(arch: Arch) -> ScmpArch {
    match arch {
        Arch::ScmpArchNative => ScmpArch::Native,
        Arch::ScmpArchX86 => ScmpArch::X86,
        Arch::ScmpArchX86_64 => ScmpArch::X8664,
        Arch::ScmpArchX32 => ScmpArch::X32,
        Arch::ScmpArchArm => ScmpArch::Arm,
        Arch::ScmpArchAarch64 => ScmpArch::Aarch64,
        Arch::ScmpArchMips => ScmpArch::Mips,
        Arch::ScmpArchMips64 => ScmpArch::Mips64,
        Arch::ScmpArchMips64n32 => ScmpArch::Mips64N32,
        Arch::ScmpArchMipsel => ScmpArch::Mipsel,
        Arch::ScmpArchMipsel64 => ScmpArch::Mipsel64,
        Arch::ScmpArchMipsel64n32 => ScmpArch::Mipsel64N32,
        Arch::ScmpArchPpc => ScmpArch::Ppc,
        Arch::ScmpArchPpc64 => ScmpArch::Ppc64,
        Arch::ScmpArchPpc64le => ScmpArch::Ppc64Le,
        Arch::ScmpArchS390 => ScmpArch::S390,
        Arch::ScmpArchS390x => ScmpArch::S390X,
        Arch::ScmpArchRiscv64 => ScmpArch::Riscv64,
        Arch::ScmpArchLoongarch64 => ScmpArch::Loongarch64,
        Arch::ScmpArchM68k => ScmpArch::M68k,
        Arch::ScmpArchSh => ScmpArch::Sh,
        Arch::ScmpArchSheb => ScmpArch::Sheb,
        Arch::ScmpArchParisc => ScmpArch::Parisc,
        Arch::ScmpArchParisc64 => ScmpArch::Parisc64,
    }
}

/// Calls that are younger than the profile get ENOSYS, not the profile's error: the C library then takes an older
/// way (runc, libcontainer/seccomp/patchbpf). Younger is what has a higher number than the highest in the profile.
/// An instruction before the filter's first: it decides for the native architecture only.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn unknown_calls(profile: &LinuxSeccomp, default: ScmpAction) -> Option<Vec<u8>> {
    // Only where the profile refuses what it does not list, and says nothing itself about the error.
    if matches!(default, ScmpAction::Allow | ScmpAction::Log | ScmpAction::Trace(_))
        || profile.default_errno_ret().is_some_and(|errno| errno == libc::ENOSYS as u32)
    {
        return None;
    }
    let names = profile.syscalls().iter().flatten().flat_map(|rule| rule.names());
    let numbers = names.filter_map(|name| ScmpSyscall::from_name(name).ok()).map(i32::from);
    let highest = u32::try_from(numbers.filter(|number| (0..0x4000_0000).contains(number)).max()?).ok()?;
    #[cfg(target_arch = "x86_64")]
    const AUDIT_ARCH: u32 = 0xc000_003e;
    #[cfg(target_arch = "aarch64")]
    const AUDIT_ARCH: u32 = 0xc000_00b7;
    let instruction = |code: u32, jt: u8, jf: u8, k: u32| {
        let mut bytes = [0; 8];
        bytes[..2].copy_from_slice(&u16::try_from(code).unwrap_or(0).to_ne_bytes());
        bytes[2] = jt;
        bytes[3] = jf;
        bytes[4..].copy_from_slice(&k.to_ne_bytes());
        bytes
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let (equal, above) =
        (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K);
    let program = [
        // struct seccomp_data: nr at 0, arch at 4.
        instruction(load, 0, 0, 4),
        instruction(equal, 0, 4, AUDIT_ARCH),
        instruction(load, 0, 0, 0),
        // The numbers of x32 have this bit, and are the filter's.
        instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 2, 0, 0x4000_0000),
        instruction(above, 0, 1, highest),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
    ];
    Some(program.concat())
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn unknown_calls(_: &LinuxSeccomp, _: ScmpAction) -> Option<Vec<u8>> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(json: serde_json::Value) -> LinuxSeccomp {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn what_cannot_be_enforced_is_refused() {
        let notify = serde_json::json!({ "defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [{ "names": ["mkdir"], "action": "SCMP_ACT_NOTIFY" }] });
        assert!(matches!(compile(&profile(notify)), Err(Error::Unsupported(_))));
    }

    /// What a program of loads, comparisons and returns says (bpf(4)); `None` where it goes on behind its end.
    fn answer(program: &[u8], data: [u32; 2]) -> Option<u32> {
        let mut loaded = 0;
        let mut at = 0;
        while let Some(bytes) = program.get(at * 8..at * 8 + 8) {
            let code = u32::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
            let k = u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            let holds = match code & 0xf0 {
                _ if code & 7 == libc::BPF_RET => return Some(k),
                _ if code & 7 == libc::BPF_LD => {
                    loaded = data[k as usize / 4];
                    at += 1;
                    continue;
                }
                libc::BPF_JEQ => loaded == k,
                libc::BPF_JGT => loaded > k,
                libc::BPF_JGE => loaded >= k,
                other => panic!("{other}"),
            };
            at += 1 + usize::from(if holds { bytes[2] } else { bytes[3] });
        }
        None
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_call_younger_than_the_profile_does_not_exist() {
        let allowed = serde_json::json!({ "defaultAction": "SCMP_ACT_ERRNO",
            "syscalls": [{ "names": ["read", "getrandom"], "action": "SCMP_ACT_ALLOW" }] });
        let stub = unknown_calls(&profile(allowed), ScmpAction::Errno(1)).unwrap();
        let enosys = Some(libc::SECCOMP_RET_ERRNO | 38);
        let (native, i386) = (0xc000_003e, 0x4000_0003);
        // getrandom(2) is 318: the highest that the profile knows.
        for (number, arch, expected) in [
            (319, native, enosys),
            (500, native, enosys),
            (318, native, None),
            (0, native, None),
            (500, i386, None),
        ] {
            assert_eq!(answer(&stub, [number, arch]), expected, "{number}");
        }
        assert_eq!(answer(&stub, [0x4000_0000 + 600, native]), None, "x32 has numbers of its own");
        let denied = serde_json::json!({ "defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [{ "names": ["read"], "action": "SCMP_ACT_ERRNO" }] });
        assert_eq!(unknown_calls(&profile(denied), ScmpAction::Allow), None);
    }

    #[test]
    fn a_profile_of_an_engine_compiles() {
        let engine = serde_json::json!({ "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1,
            "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
            "flags": ["SECCOMP_FILTER_FLAG_LOG"],
            "syscalls": [
                { "names": ["read", "nosuchcall"], "action": "SCMP_ACT_ALLOW" },
                { "names": ["personality"], "action": "SCMP_ACT_ALLOW",
                  "args": [{ "index": 0, "value": 0, "op": "SCMP_CMP_EQ" },
                           { "index": 0, "value": 8, "op": "SCMP_CMP_EQ" }] },
                { "names": ["clone"], "action": "SCMP_ACT_ALLOW",
                  "args": [{ "index": 0, "value": 2114060288, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ" }] }] });
        let filter = compile(&profile(engine)).unwrap().unwrap();
        assert_eq!(filter.program.len() % 8, 0);
        assert_eq!(filter.flags, libc::SECCOMP_FILTER_FLAG_LOG);
    }
}
