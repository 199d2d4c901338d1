//! CPU time that was withheld, and CPUs that are not there.

use super::facts::{CgroupFacts, ControllerVersion, HierarchyController, HostFacts};
use super::fixes::{cgroup_fix, with_limit_fix};
use crate::checks::DoctorCheck;
use crate::checks::measures::has_most_in;
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::finding::{DoctorFinding, FindingFix, Severity};
use std::collections::BTreeMap;

/// Of the last 10 s, in hundredths of a percent: a task in the container waited for a CPU a quarter of the time.
const CPU_WAIT_THRESHOLD: u32 = 2_500;

fn cpu_wait(group: &CgroupFacts) -> Option<u32> {
    group.after.pressure.as_ref().map(|p| p[0].some.avg10).filter(|avg| *avg >= CPU_WAIT_THRESHOLD)
}

/// Stopped by its quota.
pub(super) const THROTTLED: DoctorCheck = DoctorCheck {
    id: "cpu-throttled",
    pitfall: "CPU throttling, or more threads than the quota has CPUs",
    reads_v1: "cpu.stat (nr_periods, nr_throttled, throttled_time), cpu.cfs_quota_us and cpu.cfs_period_us up to the root, pids.current; \
               cpu.pressure of the unified hierarchy",
    reads_v2: "cpu.stat (nr_periods, nr_throttled, throttled_usec) and cpu.max up to the root, pids.current, cpu.pressure",
    threshold: "stopped in more than 5 % of at least 5 periods between the looks, for more than 50 ms per second; by the quota of a \
                cgroup around it: and waiting for a CPU 25 % of the last 10 s, where pressure is known",
    reference: "Documentation/scheduler/sched-bwc.rst",
    run: throttled,
};

fn throttled(facts: &HostFacts) -> Vec<DoctorFinding> {
    facts
        .containers()
        .filter_map(|g| {
            throttled_by(facts, g, g).or_else(|| {
                // A quota around it stops its neighbours too: it is its trouble where it waits, or has most threads where no file says so.
                let threads = |g: &CgroupFacts| g.number("pids.current").unwrap_or(0);
                let is_its = |around: &&CgroupFacts| match g.after.pressure {
                    Some(_) => cpu_wait(g).is_some(),
                    None => has_most_in(facts, g, around, threads),
                };
                facts.ancestors(g).filter(is_its).find_map(|around| throttled_by(facts, g, around))
            })
        })
        .collect()
}

/// How the quota of `at`, which is `group` or around it, stopped it.
fn throttled_by(facts: &HostFacts, group: &CgroupFacts, at: &CgroupFacts) -> Option<DoctorFinding> {
    let ([throttled, periods, lost], stat) = stopped(at)?;
    let lost = facts.per_second(0, lost) / 1_000.0;
    if periods < 5 || throttled * 20 <= periods || lost <= 50.0 {
        return None;
    }
    let (file, quota, period) = quota_of(at)?;
    let threads = group.number("pids.current").filter(|_| at.path == group.path);
    let cpus = quota as f64 / period as f64;
    let crowd = threads.filter(|n| *n as f64 > 4.0 * cpus);
    let whose = match at.path == group.path {
        true => format!("Its quota of {cpus:.1} CPUs stopped it"),
        false => format!("The quota of {cpus:.1} CPUs of {} around it stopped all in there", at.path),
    };
    let found = DoctorFinding::new(
        Severity::Warning,
        format!("{whose} in {throttled} of {periods} periods, {lost:.0} ms of every second."),
    )
    .for_cgroup(group.container_name(), &group.path)
    .with_evidence(at.file(HierarchyController::Cpu, &stat), format!("+{throttled} of {periods}"))
    .with_evidence(at.file(HierarchyController::Cpu, file), format!("{quota} of {period}"));
    // In whole percents, as systemd has it.
    let more = quota.saturating_add(quota / 2);
    let more = more.checked_next_multiple_of((period / 100).max(1)).unwrap_or(more);
    let fix = match facts.version(HierarchyController::Cpu) {
        Some(ControllerVersion::V1) => cgroup_fix(at, HierarchyController::Cpu, file, more),
        _ => cgroup_fix(at, HierarchyController::Cpu, file, format!("{more} {period}")),
    };
    // Under a quota around it that is no larger, a larger one of its own helps nothing, and v1 refuses it. The kubelet moves both.
    let is_tighter = |(_, other, of): &(&str, u64, u64)| {
        u128::from(*other) * u128::from(period) < u128::from(more) * u128::from(*of)
    };
    let held = facts.ancestors(at).find_map(|around| Some((around, quota_of(around).filter(is_tighter)?)));
    let in_pod = at.container.as_ref().is_some_and(|container| container.pod.is_some());
    let found = match crowd {
        Some(n) => found
            .with_evidence(at.file(HierarchyController::Pids, "pids.current"), n)
            .with_advice(crowd_advice(n, cpus)),
        None => found,
    };
    Some(match held {
        None => with_limit_fix(found, at, fix),
        Some(_) if in_pod => found.with_fix(fix.map(|fix| FindingFix { writes: Vec::new(), ..fix })),
        Some((around, (file, other, of))) => found
            .with_evidence(around.file(HierarchyController::Cpu, file), format!("{other} of {of}"))
            .with_advice(format!(
                "{} around it has a quota of {:.1} CPUs: raise that first.",
                around.path,
                other as f64 / of as f64
            )),
    })
}

/// What helps `threads` that are more than a quota of `cpus` lets run.
fn crowd_advice(threads: u64, cpus: f64) -> String {
    match threads {
        1 => format!(
            "Its one thread uses up a quota of {cpus:.1} CPUs by itself: only a larger quota stops it less."
        ),
        n => format!(
            "Its {n} threads use up a quota of {cpus:.1} CPUs at once: fewer threads are stopped less, and a view of Elbowroom tells \
             runtimes how many to start."
        ),
    }
}

/// How a quota stopped it between the looks: the periods in which it was stopped, all periods, and the microseconds. Then where
/// that is counted: by itself or by the cgroup that all of it is in, whichever was stopped more.
fn stopped(group: &CgroupFacts) -> Option<([u64; 3], String)> {
    let grown = |before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>| {
        let grown = |key| Some(after.get(key)?.saturating_sub(*before.get(key)?));
        Some([grown("nr_throttled")?, grown("nr_periods")?, grown("throttled_usec")?])
    };
    let key = "cpu.stat nr_throttled";
    let own = grown(&group.before.cpu, &group.after.cpu).map(|counts| (counts, key.to_owned()));
    let below = group
        .before
        .cpu_below
        .as_ref()
        .zip(group.after.cpu_below.as_ref())
        .and_then(|((_, before), (name, after))| Some((grown(before, after)?, format!("{name}/{key}"))));
    below.into_iter().chain(own).max_by_key(|(counts, _)| counts[0])
}

/// File, quota and period, where there is a quota.
fn quota_of(group: &CgroupFacts) -> Option<(&'static str, u64, u64)> {
    if let Some(quota) = group.number("cpu.cfs_quota_us") {
        return Some(("cpu.cfs_quota_us", quota, group.number("cpu.cfs_period_us").filter(|p| *p > 0)?));
    }
    let (quota, period) = group.text("cpu.max")?.split_once(' ')?;
    Some(("cpu.max", quota.parse().ok()?, period.parse().ok().filter(|p| *p > 0)?))
}

/// The machine is itself a guest whose host gives its CPUs to others.
pub(super) const STOLEN: DoctorCheck = DoctorCheck {
    id: "cpu-stolen",
    pitfall: "the hypervisor gives the machine's CPUs to others",
    reads_v1: "/proc/stat steal, /proc/pressure/cpu",
    reads_v2: "/proc/stat steal, /proc/pressure/cpu",
    threshold: "more than 10 % of the machine's CPU time between the looks stolen, and tasks wait for a CPU 10 % of the last 10 s",
    reference: "proc_stat(5), steal",
    run: stolen,
};

fn stolen(facts: &HostFacts) -> Vec<DoctorFinding> {
    let (Some(before), Some(after), Some(pressure)) =
        (facts.host.before.cpu, facts.host.after.cpu, facts.host.after.pressure.as_ref())
    else {
        return Vec::new();
    };
    let [all, stolen] = [0, 1].map(|at| after[at].saturating_sub(before[at]).get());
    let waits = pressure[0].some.avg10;
    if u128::from(stolen) * 10 <= u128::from(all) || waits < 1_000 {
        return Vec::new();
    }
    let part = format!("{:.0}%", stolen as f64 * 100.0 / all as f64);
    vec![
        DoctorFinding::new(
            Severity::Warning,
            format!("The hypervisor keeps {part} of its CPU time from this machine: what waits for a CPU here waits for other machines."),
        )
        .with_evidence("/proc/stat steal", part)
        .with_evidence("/proc/pressure/cpu some avg10", format!("{}.{:02}%", waits / 100, waits % 100))
        .with_advice("No limit here helps: a burstable instance has used its credits, or its host has too many guests."),
    ]
}

/// It asked for CPUs that it does not get.
pub(super) const CPUSET_NARROWED: DoctorCheck = DoctorCheck {
    id: "cpuset-narrowed",
    pitfall: "a cpuset is narrower than it says",
    reads_v1: "cpuset.cpus, cpuset.effective_cpus",
    reads_v2: "cpuset.cpus, cpuset.cpus.effective",
    threshold: "the CPUs it was given are not among those it may use",
    reference: "Documentation/admin-guide/cgroup-v2.rst, cpuset.cpus.effective",
    run: cpuset_narrowed,
};

fn read_cpuset(group: &CgroupFacts, file: &str) -> Option<CpuSet> {
    group.text(file)?.parse().ok().filter(|set: &CpuSet| !set.is_empty())
}

fn cpuset_narrowed(facts: &HostFacts) -> Vec<DoctorFinding> {
    facts
        .containers()
        .filter_map(|g| {
            let file = if g.files.contains_key("cpuset.cpus.effective") { "cpuset.cpus.effective" } else { "cpuset.effective_cpus" };
            let (asked, got) = (read_cpuset(g, "cpuset.cpus")?, read_cpuset(g, file)?);
            (asked != got).then(|| {
                DoctorFinding::new(
                    Severity::Warning,
                    format!("It is to run on CPUs {asked} and may run on {got} only: a cgroup around it, or a CPU that is offline."),
                )
                .for_cgroup(g.container_name(), &g.path)
                .with_evidence(g.file(HierarchyController::Cpuset, "cpuset.cpus"), asked)
                .with_evidence(g.file(HierarchyController::Cpuset, file), got)
                .with_advice("Set cpuset.cpus of the cgroups around it, or choose CPUs that are there.")
            })
        })
        .collect()
}

/// Several containers pinned to the same few CPUs.
pub(super) const CPUSET_CONTENDED: DoctorCheck = DoctorCheck {
    id: "cpuset-crowded",
    pitfall: "containers crowd on some CPUs of the machine",
    reads_v1: "cpuset.cpus, /sys/devices/system/cpu/online, cpu.pressure of the unified hierarchy",
    reads_v2: "cpuset.cpus, /sys/devices/system/cpu/online, cpu.pressure",
    threshold: "pinned to a part of the CPUs that another pinned container shares; waiting for a CPU 25 % of the last 10 s \
                while the host as a whole waits less than half as much",
    reference: "Documentation/accounting/psi.rst",
    run: cpuset_contended,
};

fn cpuset_contended(facts: &HostFacts) -> Vec<DoctorFinding> {
    let host_waits = facts.host.after.pressure.as_ref().map_or(0, |p| p[0].some.avg10);
    let online: Option<CpuSet> =
        facts.host.setting("/sys/devices/system/cpu/online").and_then(|t| t.parse().ok());
    let Some(online) = online else { return Vec::new() };
    let pinned: Vec<(&CgroupFacts, CpuSet)> = facts
        .containers()
        .filter_map(|g| Some((g, read_cpuset(g, "cpuset.cpus")?)))
        .filter(|(_, set)| set.count() < online.count())
        .collect();
    pinned
        .iter()
        .filter_map(|(g, set)| {
            let waits = cpu_wait(g).filter(|w| host_waits < w / 2)?;
            let others = pinned.iter().filter(|(o, with)| !std::ptr::eq(*o, *g) && with.iter().any(|c| set.contains(c)));
            let other = others.map(|(o, _)| o.name()).next()?;
            Some(
                DoctorFinding::new(
                    Severity::Warning,
                    format!("It shares CPUs {set} with {other} and waits for them {}% of the time, while others are free.", waits / 100),
                )
                .for_cgroup(g.container_name(), &g.path)
                .with_evidence(g.file(HierarchyController::Cpuset, "cpuset.cpus"), set)
                .with_evidence(g.file(HierarchyController::Unified, "cpu.pressure some avg10"), format!("{}%", waits / 100))
                .with_advice("Pin them apart, or give them weights instead of CPUs."),
            )
        })
        .collect()
}

/// The last in every queue.
pub(super) const MINIMUM_WEIGHT: DoctorCheck = DoctorCheck {
    id: "cpu-weight-minimum",
    pitfall: "the least weight starves",
    reads_v1: "cpu.shares, cpu.pressure of the unified hierarchy",
    reads_v2: "cpu.weight, cpu.pressure",
    threshold: "the smallest weight there is (2 shares, weight 1), and waiting for a CPU 25 % of the last 10 s",
    reference: "Documentation/admin-guide/cgroup-v2.rst, cpu.weight",
    run: minimum_weight,
};

fn minimum_weight(facts: &HostFacts) -> Vec<DoctorFinding> {
    facts
        .containers()
        .filter_map(|g| {
            let waits = cpu_wait(g)?;
            let (file, usual) = match (g.number("cpu.shares"), g.number("cpu.weight")) {
                (Some(2), _) => ("cpu.shares", 1024),
                (_, Some(1)) => ("cpu.weight", 100),
                _ => return None,
            };
            Some(
                DoctorFinding::new(
                    Severity::Warning,
                    format!(
                        "It has the smallest weight there is, and waits for a CPU {}% of the time.",
                        waits / 100
                    ),
                )
                .for_cgroup(g.container_name(), &g.path)
                .with_evidence(g.file(HierarchyController::Cpu, file), g.text(file).unwrap_or_default())
                .with_evidence(
                    g.file(HierarchyController::Unified, "cpu.pressure some avg10"),
                    format!("{}%", waits / 100),
                )
                .with_fix(cgroup_fix(g, HierarchyController::Cpu, file, usual))
                .with_advice("A pod without resources.requests.cpu gets this weight: give it a request."),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_is_not_told_to_be_fewer() {
        let alone = crowd_advice(1, 0.2);
        assert!(
            alone.starts_with("Its one thread uses up a quota of 0.2 CPUs") && !alone.contains("fewer"),
            "{alone}"
        );
        assert!(crowd_advice(8, 1.0).starts_with("Its 8 threads use up a quota of 1.0 CPUs at once: fewer"));
    }
}
