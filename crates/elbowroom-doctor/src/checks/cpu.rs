//! CPU time that was withheld, and CPUs that are not there.

use super::facts::{Controller, Facts, Group, Version};
use super::fixes::one;
use crate::checks::Check;
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::finding::{Finding, Severity};

/// Of the last 10 s, in hundredths of a percent: somebody in the container waited for a CPU a quarter of the time.
const WAITS: u32 = 2_500;

fn waits_for_cpu(group: &Group) -> Option<u32> {
    group.after.pressure.as_ref().map(|p| p[0].some.avg10).filter(|avg| *avg >= WAITS)
}

/// Stopped by its quota.
pub(super) const THROTTLED: Check = Check {
    id: "cpu-throttled",
    pitfall: "CPU throttling, or more threads than the quota has CPUs",
    reads_v1: "cpu.stat (nr_periods, nr_throttled, throttled_time), cpu.cfs_quota_us, cpu.cfs_period_us, pids.current",
    reads_v2: "cpu.stat (nr_periods, nr_throttled, throttled_usec), cpu.max, pids.current",
    threshold: "stopped in more than 5 % of at least 5 periods between the looks, for more than 50 ms per second",
    reference: "Documentation/scheduler/sched-bwc.rst",
    run: throttled,
};

fn throttled(facts: &Facts) -> Vec<Finding> {
    facts
        .containers()
        .filter_map(|g| {
            let grown = |key: &str| {
                let after = g.after.cpu.get(key)?;
                Some(after.saturating_sub(*g.before.cpu.get(key)?))
            };
            let (periods, throttled) = (grown("nr_periods")?, grown("nr_throttled")?);
            let lost = facts.per_second(0, grown("throttled_usec")?) / 1_000.0;
            if periods < 5 || throttled * 20 <= periods || lost <= 50.0 {
                return None;
            }
            let (file, quota, period) = quota(g)?;
            let threads = g.number("pids.current");
            let cpus = quota as f64 / period as f64;
            let crowd = threads.filter(|n| *n as f64 > 4.0 * cpus);
            let found = Finding::new(
                Severity::Warning,
                format!(
                    "Its quota of {cpus:.1} CPUs stopped it in {} of {periods} periods, {lost:.0} ms of every second.",
                    throttled
                ),
            )
            .about(g.container_name(), &g.path)
            .because(g.file(Controller::Cpu, "cpu.stat nr_throttled"), format!("+{throttled} of {periods}"))
            .because(g.file(Controller::Cpu, file), format!("{quota} of {period}"));
            // In whole percents, as systemd has it.
            let more = (quota + quota / 2).next_multiple_of((period / 100).max(1));
            let fix = match facts.version(Controller::Cpu) {
                Some(Version::V1) => one(g, Controller::Cpu, file, more),
                _ => one(g, Controller::Cpu, file, format!("{more} {period}")),
            };
            Some(match crowd {
                Some(n) => found
                    .because(g.file(Controller::Pids, "pids.current"), n)
                    .advise(format!("Its {n} threads use up a quota of {cpus:.1} CPUs at once: fewer threads are stopped less, \
                                     and a view of Elbowroom tells runtimes how many to start.")),
                None => found,
            }
            .fixed_by(fix))
        })
        .collect()
}

/// File, quota and period, where there is a quota.
fn quota(group: &Group) -> Option<(&'static str, u64, u64)> {
    if let Some(quota) = group.number("cpu.cfs_quota_us") {
        return Some(("cpu.cfs_quota_us", quota, group.number("cpu.cfs_period_us").filter(|p| *p > 0)?));
    }
    let (quota, period) = group.text("cpu.max")?.split_once(' ')?;
    Some(("cpu.max", quota.parse().ok()?, period.parse().ok().filter(|p| *p > 0)?))
}

/// It asked for CPUs that it does not get.
pub(super) const CPUSET_NARROWED: Check = Check {
    id: "cpuset-narrowed",
    pitfall: "a cpuset is narrower than it says",
    reads_v1: "cpuset.cpus, cpuset.effective_cpus",
    reads_v2: "cpuset.cpus, cpuset.cpus.effective",
    threshold: "the CPUs it was given are not among those it may use",
    reference: "Documentation/admin-guide/cgroup-v2.rst, cpuset.cpus.effective",
    run: cpuset_narrowed,
};

fn cpus(group: &Group, file: &str) -> Option<CpuSet> {
    group.text(file)?.parse().ok().filter(|set: &CpuSet| !set.is_empty())
}

fn cpuset_narrowed(facts: &Facts) -> Vec<Finding> {
    facts
        .containers()
        .filter_map(|g| {
            let file = if g.files.contains_key("cpuset.cpus.effective") { "cpuset.cpus.effective" } else { "cpuset.effective_cpus" };
            let (asked, got) = (cpus(g, "cpuset.cpus")?, cpus(g, file)?);
            (asked != got).then(|| {
                Finding::new(
                    Severity::Warning,
                    format!("It is to run on CPUs {asked} and may run on {got} only: a cgroup around it, or a CPU that is offline."),
                )
                .about(g.container_name(), &g.path)
                .because(g.file(Controller::Cpuset, "cpuset.cpus"), asked)
                .because(g.file(Controller::Cpuset, file), got)
                .advise("Set cpuset.cpus of the cgroups around it, or choose CPUs that are there.")
            })
        })
        .collect()
}

/// Several containers pinned to the same few CPUs.
pub(super) const CPUSET_CROWDED: Check = Check {
    id: "cpuset-crowded",
    pitfall: "containers crowd on some CPUs of the machine",
    reads_v1: "cpuset.cpus, /sys/devices/system/cpu/online, cpu.pressure of the unified hierarchy",
    reads_v2: "cpuset.cpus, /sys/devices/system/cpu/online, cpu.pressure",
    threshold: "pinned to a part of the CPUs that another pinned container shares, and waiting for a CPU 25 % of the last 10 s \
                while the host as a whole waits less than half as much",
    reference: "Documentation/accounting/psi.rst",
    run: cpuset_crowded,
};

fn cpuset_crowded(facts: &Facts) -> Vec<Finding> {
    let host_waits = facts.host.after.pressure.as_ref().map_or(0, |p| p[0].some.avg10);
    let online: Option<CpuSet> =
        facts.host.setting("/sys/devices/system/cpu/online").and_then(|t| t.parse().ok());
    let Some(online) = online else { return Vec::new() };
    let pinned: Vec<(&Group, CpuSet)> = facts
        .containers()
        .filter_map(|g| Some((g, cpus(g, "cpuset.cpus")?)))
        .filter(|(_, set)| set.count() < online.count())
        .collect();
    pinned
        .iter()
        .filter_map(|(g, set)| {
            let waits = waits_for_cpu(g).filter(|w| host_waits < w / 2)?;
            let others = pinned.iter().filter(|(o, with)| !std::ptr::eq(*o, *g) && with.iter().any(|c| set.contains(c)));
            let other = others.map(|(o, _)| o.name()).next()?;
            Some(
                Finding::new(
                    Severity::Warning,
                    format!("It shares CPUs {set} with {other} and waits for them {}% of the time, while others are free.", waits / 100),
                )
                .about(g.container_name(), &g.path)
                .because(g.file(Controller::Cpuset, "cpuset.cpus"), set)
                .because(g.file(Controller::Unified, "cpu.pressure some avg10"), format!("{}%", waits / 100))
                .advise("Pin them apart, or give them weights instead of CPUs."),
            )
        })
        .collect()
}

/// The last in every queue.
pub(super) const WEIGHT: Check = Check {
    id: "cpu-weight-minimum",
    pitfall: "the least weight starves",
    reads_v1: "cpu.shares, cpu.pressure of the unified hierarchy",
    reads_v2: "cpu.weight, cpu.pressure",
    threshold: "the smallest weight there is (2 shares, weight 1), and waiting for a CPU 25 % of the last 10 s",
    reference: "Documentation/admin-guide/cgroup-v2.rst, cpu.weight",
    run: weight,
};

fn weight(facts: &Facts) -> Vec<Finding> {
    facts
        .containers()
        .filter_map(|g| {
            let waits = waits_for_cpu(g)?;
            let (file, usual) = match (g.number("cpu.shares"), g.number("cpu.weight")) {
                (Some(2), _) => ("cpu.shares", 1024),
                (_, Some(1)) => ("cpu.weight", 100),
                _ => return None,
            };
            Some(
                Finding::new(
                    Severity::Warning,
                    format!(
                        "It has the smallest weight there is, and waits for a CPU {}% of the time.",
                        waits / 100
                    ),
                )
                .about(g.container_name(), &g.path)
                .because(g.file(Controller::Cpu, file), g.text(file).unwrap_or_default())
                .because(g.file(Controller::Unified, "cpu.pressure some avg10"), format!("{}%", waits / 100))
                .fixed_by(one(g, Controller::Cpu, file, usual))
                .advise("A pod without resources.requests.cpu gets this weight: give it a request."),
            )
        })
        .collect()
}
