//! Which devices a container may use, on cgroup v2: a program of the cgroup that decides. libcontainer has one only
//! with a library in C; without one every device is open to whoever can make its node.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::error::{Error, Result};
use crate::sys::bpf;

/// `linux.resources.devices`, one of it.
#[derive(Debug, Clone, Deserialize)]
struct Rule {
    allow: bool,
    #[serde(rename = "type")]
    kind: Option<String>,
    major: Option<i64>,
    minor: Option<i64>,
    access: Option<String>,
}

// linux/bpf.h: the bits of `access_type`, and its kinds of devices.
const MKNOD: u32 = 1;
const READ: u32 = 2;
const WRITE: u32 = 4;
const ALL: u32 = MKNOD | READ | WRITE;
const BLOCK: u32 = 1;
const CHARACTER: u32 = 2;

/// A rule in the kernel's numbers; `None` stands for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Decision {
    allow: bool,
    kind: Option<u32>,
    major: Option<u32>,
    minor: Option<u32>,
    access: u32,
}

/// What every container may use (runc, libcontainer/specconv, `AllowedDevices`): nodes can be made, not opened.
const DEFAULTS: [Decision; 10] = [
    Decision { allow: true, kind: Some(CHARACTER), major: None, minor: None, access: MKNOD },
    Decision { allow: true, kind: Some(BLOCK), major: None, minor: None, access: MKNOD },
    character(1, Some(3)),
    character(1, Some(5)),
    character(1, Some(7)),
    character(1, Some(8)),
    character(1, Some(9)),
    character(5, Some(0)),
    character(5, Some(2)),
    character(136, None),
];

const fn character(major: u32, minor: Option<u32>) -> Decision {
    Decision { allow: true, kind: Some(CHARACTER), major: Some(major), minor, access: ALL }
}

/// Holds a cgroup to the rules of a configuration. Needs to be done before its first process runs.
pub fn limit(config: &Value, cgroup: &Path) -> Result<()> {
    let program = program(&decisions(config)?);
    let program = bpf::load_device_program(&program)?;
    let dir = File::open(cgroup).map_err(Error::io(format!("open {}", cgroup.display())))?;
    Ok(bpf::attach_device_program(dir.as_fd(), program.as_fd())?)
}

/// The rules, the last that matches counting; what none matches is refused.
fn decisions(config: &Value) -> Result<Vec<Decision>> {
    let written = config.pointer("/linux/resources/devices").filter(|rules| !rules.is_null());
    let rules: Vec<Rule> = match written {
        Some(rules) => serde_json::from_value(rules.clone())
            .map_err(|error| Error::config("linux.resources.devices", error.to_string()))?,
        None => Vec::new(),
    };
    let mut decisions = rules.iter().map(decision).collect::<Result<Vec<_>>>()?;
    decisions.extend(DEFAULTS);
    Ok(decisions)
}

fn decision(rule: &Rule) -> Result<Decision> {
    let bad = |what: &str| Error::config("linux.resources.devices", format!("invalid {what}"));
    let kind = match rule.kind.as_deref() {
        None | Some("" | "a") => None,
        Some("b") => Some(BLOCK),
        Some("c" | "u") => Some(CHARACTER),
        Some(_) => return Err(bad("type")),
    };
    // -1 is all, as for runc.
    let number = |number: Option<i64>, what: &str| match number {
        None | Some(-1) => Ok(None),
        Some(number) => u32::try_from(number).map(Some).map_err(|_| bad(what)),
    };
    let mut access = 0;
    for letter in rule.access.as_deref().unwrap_or("rwm").chars() {
        access |= match letter {
            'r' => READ,
            'w' => WRITE,
            'm' => MKNOD,
            _ => return Err(bad("access")),
        };
    }
    Ok(Decision {
        allow: rule.allow,
        kind,
        major: number(rule.major, "major")?,
        minor: number(rule.minor, "minor")?,
        access,
    })
}

/// An instruction: code, registers, jump, number (linux/bpf.h, `struct bpf_insn`).
fn instruction(code: u8, to: u8, from: u8, jump: i16, number: i32) -> u64 {
    let mut bytes = [0; 8];
    bytes[0] = code;
    // A bit field, whose first member is where the machine's byte order begins.
    bytes[1] = if cfg!(target_endian = "little") { to | from << 4 } else { to << 4 | from };
    bytes[2..4].copy_from_slice(&jump.to_ne_bytes());
    bytes[4..].copy_from_slice(&number.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

/// The program: `struct bpf_cgroup_dev_ctx` in register 1, the answer in register 0.
fn program(decisions: &[Decision]) -> Vec<u64> {
    const LOAD: u8 = 0x61; // BPF_LDX | BPF_MEM | BPF_W
    const AND: u8 = 0x54; // BPF_ALU | BPF_AND | BPF_K
    const SHIFT: u8 = 0x74; // BPF_ALU | BPF_RSH | BPF_K
    const COPY: u8 = 0xbc; // BPF_ALU | BPF_MOV | BPF_X
    const SET: u8 = 0xb7; // BPF_ALU64 | BPF_MOV | BPF_K
    const UNEQUAL: u8 = 0x55; // BPF_JMP | BPF_JNE | BPF_K
    const UNEQUAL_REGISTER: u8 = 0x5d; // BPF_JMP | BPF_JNE | BPF_X
    const EQUAL: u8 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const EXIT: u8 = 0x95; // BPF_JMP | BPF_EXIT
    let signed = |number: u32| number as i32;
    let mut program = vec![
        instruction(LOAD, 2, 1, 0, 0),
        instruction(AND, 2, 0, 0, 0xffff),
        instruction(LOAD, 3, 1, 0, 0),
        instruction(SHIFT, 3, 0, 0, 16),
        instruction(LOAD, 4, 1, 4, 0),
        instruction(LOAD, 5, 1, 8, 0),
    ];
    // The last one first: it counts.
    for decision in decisions.iter().rev() {
        let mut tests: Vec<(u8, u8, u8, i32)> = Vec::new();
        if let Some(kind) = decision.kind {
            tests.push((UNEQUAL, 2, 0, signed(kind)));
        }
        if let Some(major) = decision.major {
            tests.push((UNEQUAL, 4, 0, signed(major)));
        }
        if let Some(minor) = decision.minor {
            tests.push((UNEQUAL, 5, 0, signed(minor)));
        }
        if decision.access != ALL {
            tests.push((COPY, 1, 3, 0));
            tests.push((AND, 1, 0, signed(decision.access)));
            // All that is asked for has to be allowed; one thing that is refused is enough.
            tests.push(if decision.allow { (UNEQUAL_REGISTER, 1, 3, 0) } else { (EQUAL, 1, 0, 0) });
        }
        let count = tests.len();
        for (at, (code, to, from, number)) in tests.into_iter().enumerate() {
            // To behind the two instructions that answer.
            let jump = if code & 0x07 == 0x05 { i16::try_from(count - at + 1).unwrap_or(0) } else { 0 };
            program.push(instruction(code, to, from, jump, number));
        }
        program.push(instruction(SET, 0, 0, 0, i32::from(decision.allow)));
        program.push(instruction(EXIT, 0, 0, 0, 0));
        if count == 0 {
            // It matches all: the kernel takes no instruction that is never reached.
            return program;
        }
    }
    program.push(instruction(SET, 0, 0, 0, 0));
    program.push(instruction(EXIT, 0, 0, 0, 0));
    program
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use serde_json::json;

    use super::*;

    fn config(rules: Value) -> Value {
        json!({ "linux": { "resources": { "devices": rules } } })
    }

    #[test]
    fn rules_that_make_no_sense_are_refused() {
        for rule in [
            json!({ "allow": true, "type": "x" }),
            json!({ "allow": true, "access": "rx" }),
            json!({ "allow": true, "major": -2 }),
            json!({ "type": "c" }),
        ] {
            assert!(decisions(&config(json!([rule.clone()]))).is_err(), "{rule}");
        }
        assert_eq!(decisions(&json!({})).unwrap(), DEFAULTS);
    }

    /// With the kernel itself, in a cgroup of its own, on a host where cgroup v2 is to be had at all.
    #[test]
    fn only_devices_that_are_allowed_can_be_opened() {
        let root = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            .map(Path::new)
            .into_iter()
            .find(|dir| dir.join("cgroup.controllers").exists());
        let (Some(root), true) = (root, nix::unistd::geteuid().is_root()) else {
            assert!(std::env::var_os("CI").is_none(), "it needs root and cgroup v2");
            return;
        };
        let cgroup = root.join(format!("codeoid-devices-{}", std::process::id()));
        std::fs::create_dir(&cgroup).unwrap();
        let nodes = tempfile::tempdir().unwrap();
        let script = "echo 0 > \"$0/cgroup.procs\"
            ( : </dev/null ) 2>/dev/null && echo null
            ( : </dev/zero ) 2>/dev/null && echo zero
            ( : </dev/kmsg ) 2>/dev/null && echo kmsg read
            ( : >>/dev/kmsg ) 2>/dev/null && echo kmsg write
            mknod \"$1/loop\" b 7 0 && echo made
            ( : <\"$1/loop\" ) 2>/dev/null && echo loop
            true";
        let run = |rules: Value| {
            limit(&config(rules), &cgroup).unwrap();
            let output =
                Command::new("sh").args(["-c", script]).arg(&cgroup).arg(nodes.path()).output().unwrap();
            let _ = std::fs::remove_file(nodes.path().join("loop"));
            String::from_utf8(output.stdout).unwrap()
        };
        let open = run(json!([{ "allow": true, "access": "rwm" }]));
        assert!(open.starts_with("null\nzero\nkmsg read\nkmsg write\nmade\n"), "the control: {open}");
        let some = run(json!([{ "allow": false, "access": "rwm" },
            { "allow": true, "type": "c", "major": 1, "minor": 11, "access": "r" }]));
        assert_eq!(some, "null\nzero\nkmsg read\nmade\n");
        let but = run(json!([{ "allow": true, "access": "rwm" },
            { "allow": false, "type": "c", "major": 1, "minor": 11, "access": "r" }]));
        assert_eq!(but, "null\nzero\nmade\n", "the stricter of all that are attached decides");
        std::fs::remove_dir(&cgroup).unwrap();
    }
}
