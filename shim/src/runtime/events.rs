//! `events`: what a container uses, once or again and again until it ends.

use std::time::{Duration, Instant};

use libcgroups::common::CgroupManager;
use libcgroups::stats::{BlkioDeviceStat, MemoryData, Stats};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};
use std::os::fd::AsFd;

use super::error::{Error, Result};
use super::record::{Container, Status};
use super::{Runtime, cgroup, print};

/// Prints them, a line each.
pub fn events(runtime: &Runtime, args: &liboci_cli::Events) -> Result<()> {
    if args.interval == 0 {
        return Err(Error::Usage("duration interval must be greater than 0".to_owned()));
    }
    let container = Container::load(&runtime.root, &args.container_id)?;
    let Some(handle) = container.process() else { return Err(Error::NotRunning) };
    loop {
        let limits = cgroup::limits(&container.record)?;
        let stats = match limits.stats() {
            Ok(stats) => stats,
            // It ended while we looked.
            Err(_) if container.status() == Status::Stopped && !args.stats => return Ok(()),
            Err(error) => return Err(Error::Cgroup(crate::diagnostic::chain(&error))),
        };
        print(&format!(
            "{}\n",
            json!({ "type": "stats", "id": container.record.id, "data": shape(&stats) })
        ))?;
        if args.stats {
            return Ok(());
        }
        let until = Instant::now() + Duration::from_secs(u64::from(args.interval));
        let left = until.saturating_duration_since(Instant::now());
        let limit = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut ended = [PollFd::new(handle.as_fd(), PollFlags::POLLIN)];
        if poll(&mut ended, limit).map_err(Error::errno("wait for the container"))? > 0 {
            return Ok(());
        }
    }
}

/// The numbers in runc's shape (types/events.go).
fn shape(stats: &Stats) -> Value {
    let memory = |data: &MemoryData| json!({ "limit": data.limit, "usage": data.usage, "max": data.max_usage, "failcnt": data.fail_count });
    let devices = |list: &[BlkioDeviceStat]| -> Vec<Value> {
        list.iter()
            .map(|stat| json!({ "major": stat.major, "minor": stat.minor, "op": stat.op_type, "value": stat.value }))
            .collect()
    };
    let (cpu, blkio) = (&stats.cpu, &stats.blkio);
    json!({
        "cpu": {
            "usage": { "total": cpu.usage.usage_total, "kernel": cpu.usage.usage_kernel,
                "user": cpu.usage.usage_user, "percpu": cpu.usage.per_core_usage_total,
                "percpu_kernel": cpu.usage.per_core_usage_kernel, "percpu_user": cpu.usage.per_core_usage_user },
            "throttling": { "periods": cpu.throttling.periods,
                "throttledPeriods": cpu.throttling.throttled_periods,
                "throttledTime": cpu.throttling.throttled_time },
        },
        "memory": { "cache": stats.memory.cache, "usage": memory(&stats.memory.memory),
            "swap": memory(&stats.memory.memswap), "kernel": memory(&stats.memory.kernel),
            "kernelTCP": memory(&stats.memory.kernel_tcp), "raw": stats.memory.stats },
        "pids": { "current": stats.pids.current, "limit": stats.pids.limit },
        "blkio": { "ioServiceBytesRecursive": devices(&blkio.service_bytes),
            "ioServicedRecursive": devices(&blkio.serviced), "ioQueueRecursive": devices(&blkio.queued),
            "ioServiceTimeRecursive": devices(&blkio.service_time),
            "ioWaitTimeRecursive": devices(&blkio.wait_time), "ioMergedRecursive": devices(&blkio.merged),
            "ioTimeRecursive": devices(&blkio.time), "sectorsRecursive": devices(&blkio.sectors) },
        "hugetlb": stats.hugetlb.iter().map(|(size, data)| {
            (size.clone(), json!({ "usage": data.usage, "max": data.max_usage, "failcnt": data.fail_count }))
        }).collect::<serde_json::Map<_, _>>(),
    })
}
