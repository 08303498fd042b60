//! How a process of `exec` is scheduled: on which CPUs, and by which policy.

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::error::{Error, Result};
use super::process::Scheduler;
use crate::sys::process as sys;

/// Confines this process to CPUs, given as `0-3,7`.
pub fn pin(list: &str) -> Result<()> {
    let bad = || Error::config("process.execCPUAffinity", format!("{list:?} is no list of CPUs"));
    let mut cpus = CpuSet::new();
    for part in list.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) =
            (first.parse().map_err(|_| bad())?, last.parse().map_err(|_| bad())?);
        if first > last {
            return Err(bad());
        }
        for cpu in first..=last {
            cpus.set(cpu).map_err(|_| bad())?;
        }
    }
    sched_setaffinity(Pid::from_raw(0), &cpus).map_err(Error::errno("sched_setaffinity"))
}

/// Sets this process's policy (sched_setattr(2)).
pub fn schedule(scheduler: &Scheduler) -> Result<()> {
    let bad =
        |what: &str, value: &str| Error::config("process.scheduler", format!("unknown {what} {value:?}"));
    let policy = match scheduler.policy.as_str() {
        "SCHED_OTHER" => 0,
        "SCHED_FIFO" => 1,
        "SCHED_RR" => 2,
        "SCHED_BATCH" => 3,
        "SCHED_ISO" => 4,
        "SCHED_IDLE" => 5,
        "SCHED_DEADLINE" => 6,
        other => return Err(bad("policy", other)),
    };
    let mut flags = 0;
    for flag in &scheduler.flags {
        flags |= match flag.as_str() {
            "SCHED_FLAG_RESET_ON_FORK" => 0x01,
            "SCHED_FLAG_RECLAIM" => 0x02,
            "SCHED_FLAG_DL_OVERRUN" => 0x04,
            "SCHED_FLAG_KEEP_POLICY" => 0x08,
            "SCHED_FLAG_KEEP_PARAMS" => 0x10,
            "SCHED_FLAG_UTIL_CLAMP_MIN" => 0x20,
            "SCHED_FLAG_UTIL_CLAMP_MAX" => 0x40,
            other => return Err(bad("flag", other)),
        };
    }
    sys::set_scheduler(sys::SchedulerAttributes {
        size: 0,
        policy,
        flags,
        nice: scheduler.nice,
        priority: u32::try_from(scheduler.priority).unwrap_or(0),
        runtime: scheduler.runtime,
        deadline: scheduler.deadline,
        period: scheduler.period,
    })
    .map_err(Error::errno("sched_setattr"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_that_make_no_sense_are_refused() {
        for bad in ["", "x", "3-1", "0-", "-1", "999999"] {
            assert!(pin(bad).is_err(), "{bad:?}");
        }
        pin("0").unwrap();
    }
}
