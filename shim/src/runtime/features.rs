//! `features`: what this runtime can do (runtime-spec features.md). Nothing is in it that is refused elsewhere.

use caps::Capability;
use serde_json::{Value, json};

use super::error::Result;
use super::print;

/// Prints them.
pub fn features() -> Result<()> {
    let text = serde_json::to_string_pretty(&describe()).unwrap_or_default();
    print(&format!("{text}\n"))
}

fn describe() -> Value {
    let mut capabilities: Vec<String> = caps::all().iter().map(Capability::to_string).collect();
    capabilities.sort_unstable();
    json!({
        "ociVersionMin": "1.0.0",
        "ociVersionMax": "1.2.0",
        "hooks": ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"],
        "mountOptions": [
            "async", "atime", "bind", "defaults", "dev", "diratime", "exec", "noatime", "nodev", "nodiratime",
            "noexec", "nomand", "norelatime", "nostrictatime", "nosuid", "private", "ratime", "rbind", "rdev",
            "rdiratime", "relatime", "rexec", "rnoatime", "rnodev", "rnodiratime", "rnoexec", "rnorelatime",
            "rnostrictatime", "rnosuid", "rnosymfollow", "ro", "rprivate", "rrelatime", "rro", "rrw", "rshared",
            "rslave", "rstrictatime", "rsuid", "rsymfollow", "runbindable", "rw", "shared", "slave",
            "strictatime", "suid", "tmpcopyup", "unbindable"
        ],
        "linux": {
            "namespaces": ["cgroup", "ipc", "mount", "network", "pid", "time", "user", "uts"],
            "capabilities": capabilities,
            "cgroup": { "v1": true, "v2": true, "systemd": true, "systemdUser": true, "rdma": false },
            "seccomp": {
                "enabled": true,
                "actions": ["SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS",
                    "SCMP_ACT_KILL_THREAD", "SCMP_ACT_LOG", "SCMP_ACT_TRACE", "SCMP_ACT_TRAP"],
                "operators": ["SCMP_CMP_EQ", "SCMP_CMP_GE", "SCMP_CMP_GT", "SCMP_CMP_LE", "SCMP_CMP_LT",
                    "SCMP_CMP_MASKED_EQ", "SCMP_CMP_NE"],
                "archs": ["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM", "SCMP_ARCH_MIPS", "SCMP_ARCH_MIPS64",
                    "SCMP_ARCH_MIPS64N32", "SCMP_ARCH_MIPSEL", "SCMP_ARCH_MIPSEL64", "SCMP_ARCH_MIPSEL64N32",
                    "SCMP_ARCH_PPC", "SCMP_ARCH_PPC64", "SCMP_ARCH_PPC64LE", "SCMP_ARCH_RISCV64",
                    "SCMP_ARCH_S390", "SCMP_ARCH_S390X", "SCMP_ARCH_X32", "SCMP_ARCH_X86", "SCMP_ARCH_X86_64"],
                "knownFlags": ["SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW",
                    "SECCOMP_FILTER_FLAG_TSYNC"],
                "supportedFlags": ["SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW",
                    "SECCOMP_FILTER_FLAG_TSYNC"],
            },
            "apparmor": { "enabled": true },
            "selinux": { "enabled": true },
            "mountExtensions": { "idmap": { "enabled": false } },
        },
    })
}
