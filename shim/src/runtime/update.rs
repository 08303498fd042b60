//! `update`: changes the limits of a container while it runs.

use std::fs;
use std::io::Read;
use std::path::PathBuf;

use clap::Args;
use libcgroups::common::{CgroupManager, ControllerOpt};
use oci_spec::runtime::LinuxResources;
use serde_json::{Map, Value, json};

use super::error::{Error, Result};
use super::record::{Container, Status};
use super::{Runtime, cgroup};

/// As runc has it; liboci-cli knows fewer flags, and sizes in bytes only.
#[derive(Debug, Args)]
pub struct Update {
    /// Name of the container
    #[arg(value_name = "CONTAINER_ID")]
    pub id: String,
    /// Read the limits from a file (`-`: standard input) instead of the flags
    #[arg(long, short, value_name = "FILE")]
    pub resources: Option<PathBuf>,
    /// Weight of disk accesses, 10 to 1000
    #[arg(long)]
    pub blkio_weight: Option<u16>,
    /// CPU period, in microseconds
    #[arg(long)]
    pub cpu_period: Option<u64>,
    /// CPU time in a period, in microseconds
    #[arg(long, allow_hyphen_values = true)]
    pub cpu_quota: Option<i64>,
    /// CPU time that may be saved up, in microseconds
    #[arg(long)]
    pub cpu_burst: Option<u64>,
    /// Real-time CPU period, in microseconds
    #[arg(long)]
    pub cpu_rt_period: Option<u64>,
    /// Real-time CPU time in a period, in microseconds
    #[arg(long, allow_hyphen_values = true)]
    pub cpu_rt_runtime: Option<i64>,
    /// Weight of CPU time
    #[arg(long)]
    pub cpu_share: Option<u64>,
    /// 1: only where the CPUs are idle
    #[arg(long)]
    pub cpu_idle: Option<i64>,
    /// CPUs, as 0-3,7
    #[arg(long)]
    pub cpuset_cpus: Option<String>,
    /// Memory nodes, as 0-3,7
    #[arg(long)]
    pub cpuset_mems: Option<String>,
    /// Memory, as 100M; -1: no limit
    #[arg(long, allow_hyphen_values = true)]
    pub memory: Option<String>,
    /// Memory that is left to the container where there is little
    #[arg(long, allow_hyphen_values = true)]
    pub memory_reservation: Option<String>,
    /// Memory and swap together; -1: no limit
    #[arg(long, allow_hyphen_values = true)]
    pub memory_swap: Option<String>,
    /// Accepted and unused: the kernel has dropped this limit
    #[arg(long, hide = true, allow_hyphen_values = true)]
    pub kernel_memory: Option<String>,
    /// Accepted and unused: the kernel has dropped this limit
    #[arg(long, hide = true, allow_hyphen_values = true)]
    pub kernel_memory_tcp: Option<String>,
    /// Number of processes; -1: no limit
    #[arg(long, allow_hyphen_values = true)]
    pub pids_limit: Option<i64>,
}

/// Changes them.
pub fn update(runtime: &Runtime, args: &Update) -> Result<()> {
    let container = Container::locked(&runtime.root, &args.id)?;
    if container.status() == Status::Stopped {
        return Err(Error::NotRunning);
    }
    let resources = match &args.resources {
        Some(path) => read(path)?,
        None => flags(args)?,
    };
    let limits: LinuxResources =
        serde_json::from_value(resources).map_err(|error| Error::config("the limits", error.to_string()))?;
    let options = ControllerOpt {
        resources: &limits,
        disable_oom_killer: false,
        oom_score_adj: None,
        freezer_state: None,
    };
    cgroup::limits(&container.record)?
        .apply(&options)
        .map_err(|error| Error::Cgroup(crate::diagnostic::chain(&error)))
}

fn read(path: &std::path::Path) -> Result<Value> {
    let what = || format!("open {}", path.display());
    let mut text = String::new();
    match path.as_os_str() == "-" {
        true => std::io::stdin().read_to_string(&mut text).map(drop).map_err(Error::io(what()))?,
        false => text = fs::read_to_string(path).map_err(Error::io(what()))?,
    }
    let mut limits: Value = serde_json::from_str(&text)
        .map_err(|error| Error::config(path.display().to_string(), error.to_string()))?;
    // Devices are given when the container is made.
    if let Some(members) = limits.as_object_mut() {
        members.remove("devices");
    }
    Ok(limits)
}

fn flags(args: &Update) -> Result<Value> {
    let mut limits = Map::new();
    let mut set = |group: &str, name: &str, value: Option<Value>| {
        let Some(value) = value else { return };
        let group = limits.entry(group).or_insert_with(|| json!({}));
        if let Some(members) = group.as_object_mut() {
            members.insert(name.to_owned(), value);
        }
    };
    let bytes =
        |text: &Option<String>| text.as_deref().map(size).transpose().map(|size| size.map(Value::from));
    set("cpu", "shares", args.cpu_share.map(Value::from));
    set("cpu", "quota", args.cpu_quota.map(Value::from));
    set("cpu", "period", args.cpu_period.map(Value::from));
    set("cpu", "burst", args.cpu_burst.map(Value::from));
    set("cpu", "realtimeRuntime", args.cpu_rt_runtime.map(Value::from));
    set("cpu", "realtimePeriod", args.cpu_rt_period.map(Value::from));
    set("cpu", "idle", args.cpu_idle.map(Value::from));
    set("cpu", "cpus", args.cpuset_cpus.clone().map(Value::from));
    set("cpu", "mems", args.cpuset_mems.clone().map(Value::from));
    set("memory", "limit", bytes(&args.memory)?);
    set("memory", "reservation", bytes(&args.memory_reservation)?);
    set("memory", "swap", bytes(&args.memory_swap)?);
    set("pids", "limit", args.pids_limit.map(Value::from));
    set("blockIO", "weight", args.blkio_weight.map(Value::from));
    Ok(Value::Object(limits))
}

/// A size as 100, 100k, 1.5G, with powers of 1024 (docker/go-units, `RAMInBytes`); -1 for none.
fn size(text: &str) -> Result<i64> {
    let bad = || Error::Usage(format!("invalid size: {text:?}"));
    if text == "-1" {
        return Ok(-1);
    }
    let lower = text.trim().to_ascii_lowercase();
    let lower = lower.strip_suffix("ib").or(lower.strip_suffix('b')).unwrap_or(&lower);
    let (number, factor) = match lower.char_indices().last() {
        Some((at, unit)) if !unit.is_ascii_digit() => {
            let power = "kmgtp".find(unit).ok_or_else(bad)?;
            (&lower[..at], 1024f64.powi(i32::try_from(power).map_err(|_| bad())? + 1))
        }
        _ => (lower, 1.0),
    };
    let number: f64 = number.trim().parse().map_err(|_| bad())?;
    let bytes = number * factor;
    // Beyond this a float counts no single bytes, and no machine has so many.
    if !(0.0..=9e15).contains(&bytes) {
        return Err(bad());
    }
    Ok(bytes as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in
            [("-1", -1), ("0", 0), ("100", 100), ("32M", 32 << 20), ("1.5gb", 3 << 29), ("2KiB", 2048)]
        {
            assert_eq!(size(text).unwrap(), bytes, "{text}");
        }
        for bad in ["", "M", "-2", "1x", "1e99", "nan", "inf", "12MM"] {
            assert!(size(bad).is_err(), "{bad:?}");
        }
    }
}
