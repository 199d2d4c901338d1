//! Limits on processes and threads.

use super::facts::{CgroupFacts, HierarchyController, HostFacts};
use super::fixes::{cgroup_fix, with_limit_fix};
use crate::checks::DoctorCheck;
use crate::checks::measures::has_most_in;
use elbowroom_types::finding::{DoctorFinding, Severity};
use elbowroom_types::unit::counted;

/// The most that `pids.max` and `kernel.pid_max` take (`PID_MAX_LIMIT`, include/linux/threads.h).
pub(super) const PID_MAX_LIMIT: u64 = 1 << 22;

/// No more threads.
pub(super) const PIDS: DoctorCheck = DoctorCheck {
    id: "pids-near-limit",
    pitfall: "the limit on processes is near",
    reads_v1: "pids.current and pids.max up to the root, /proc/sys/kernel/{pid_max,threads-max}",
    reads_v2: "pids.current and pids.max up to the root, /proc/sys/kernel/{pid_max,threads-max}",
    threshold: "more than 90 % of pids.max, its own or that of a cgroup around it",
    reference: "Documentation/admin-guide/cgroup-v2.rst, PID",
    run: pids,
};

fn pids(facts: &HostFacts) -> Vec<DoctorFinding> {
    facts
        .containers()
        .filter_map(|g| facts.self_and_ancestors(g).find_map(|at| pids_of(facts, g, at)))
        .collect()
}

/// How near the limit of `at` is, which is `group` or around it: the kubelet's `podPidsLimit`, `TasksMax=` of a slice.
fn pids_of(facts: &HostFacts, group: &CgroupFacts, at: &CgroupFacts) -> Option<DoctorFinding> {
    let (now, most) = (at.number("pids.current")?, at.number("pids.max")?);
    let is_told = || has_most_in(facts, group, at, |g| g.number("pids.current").unwrap_or(0));
    (u128::from(now) * 10 > u128::from(most) * 9 && is_told()).then(|| {
        let who = match at.path == group.path {
            true => "It".to_owned(),
            false => format!("The cgroup {} around it", at.path),
        };
        let found = DoctorFinding::new(
            Severity::Warning,
            format!(
                "{who} has {} and may have {most}: the next ones will fail with \"Resource temporarily unavailable\".",
                counted(now, "thread")
            ),
        )
        .for_cgroup(group.container_name(), &group.path)
        .with_evidence(at.file(HierarchyController::Pids, "pids.current"), now)
        .with_evidence(at.file(HierarchyController::Pids, "pids.max"), most);
        let kernels = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
        let (to, kernel) = kernels
            .into_iter()
            .filter_map(|file| Some((facts.host.number(file)?, file)))
            .chain([(PID_MAX_LIMIT, kernels[0])])
            .min()
            .expect("the last of them is there");
        let around = facts.ancestors(at).filter_map(|around| around.number("pids.max")).min();
        let to = most.saturating_mul(2).min(to).min(around.unwrap_or(u64::MAX));
        match to > most {
            true => with_limit_fix(found, at, cgroup_fix(at, HierarchyController::Pids, "pids.max", to)),
            false => found.with_advice(match around.filter(|around| *around <= most) {
                Some(around) => format!("A cgroup around it may have {around}: raise that first, or have it start fewer."),
                None => format!("The kernel has no more ({kernel}): have it start fewer."),
            }),
        }
    })
}
