//! Pitfall III.D: the host swaps any group; and what else swap does to containers.

use super::facts::{CgroupFacts, ControllerVersion, HierarchyController, HostFacts};
use super::fixes::{cgroup_fix, manual_fix, protect};
use crate::checks::DoctorCheck;
use crate::checks::measures::{hard_limit_hits, protected_memory, safe_swappiness};
use elbowroom_types::finding::{DoctorFinding, Severity};
use elbowroom_types::unit::{Bytes, Limit, Percent};

/// Pages read back from swap per second before a task waits for it.
const SWAP_IN_RATE_THRESHOLD: f64 = 10.0;

/// The host put a container's memory on disk.
pub(super) const SWAPPED: DoctorCheck = DoctorCheck {
    id: "swapped-by-host",
    pitfall: "the host swaps any group",
    reads_v1: "memory.stat (total_swap, total_rss, workingset_refault_anon, pgmajfault), memory.swappiness, memory.failcnt",
    reads_v2: "memory.swap.current, memory.swap.max, memory.low, memory.stat (anon, workingset_refault_anon), memory.events max",
    threshold: "more than 5 % of its anonymous memory is in swap, it may be swapped further, and its own limit was not hit; a \
                warning where more than 10 pages per second come back, else a note",
    reference: "Taming Memory Related Performance Pitfalls in Linux Cgroups (ICNC'17), III.D, V.A",
    run: swapped,
};

fn swapped(facts: &HostFacts) -> Vec<DoctorFinding> {
    facts
        .containers()
        .filter_map(|g| {
            let stat = g.stat();
            let heap = stat.anon.saturating_add(stat.swap);
            if stat.swap <= Bytes(Percent::whole(5).of(heap.get())) || stat.swap < Bytes::mib(1) {
                return None;
            }
            // One at its own limit swaps itself: swap-instead-of-oom.
            if at_own_limit(facts, g) || is_protected(facts, g) {
                return None;
            }
            let back =
                facts.per_second(g.stat_before().workingset_refault_anon, stat.workingset_refault_anon);
            let harms = back >= SWAP_IN_RATE_THRESHOLD;
            let version = facts.version(HierarchyController::Memory);
            let (knob, swap) = match version {
                Some(ControllerVersion::V1) => ("memory.swappiness", "memory.stat swap"),
                _ => ("memory.low", "memory.swap.current"),
            };
            let mut found = DoctorFinding::new(
                if harms { Severity::Warning } else { Severity::Info },
                if harms {
                    format!(
                        "The host swapped out {} of its memory, and it waits for it to come back.",
                        stat.swap
                    )
                } else {
                    format!(
                        "The host swapped out {} of its memory; nothing of it is asked for now.",
                        stat.swap
                    )
                },
            )
            .for_cgroup(g.container_name(), &g.path)
            .with_evidence(g.file(HierarchyController::Memory, swap), stat.swap)
            .with_evidence(g.file(HierarchyController::Memory, "memory.stat anon"), stat.anon)
            .with_evidence(
                g.file(HierarchyController::Memory, "memory.stat workingset_refault_anon"),
                format!("+{back:.0} pages/s"),
            )
            .with_evidence(g.file(HierarchyController::Memory, knob), g.text(knob).unwrap_or("absent"));
            if version == Some(ControllerVersion::V1) {
                found = found.with_evidence(
                    "/proc/sys/vm/swappiness",
                    facts.host.setting("/proc/sys/vm/swappiness").unwrap_or("absent"),
                );
            }
            let fix = match version {
                Some(ControllerVersion::V1) => {
                    cgroup_fix(g, HierarchyController::Memory, "memory.swappiness", safe_swappiness(facts, g))
                }
                _ => protect(facts, g, g.usage().saturating_add(stat.swap)),
            };
            Some(
                found.with_fix(fix).with_advice(
                    "Never `swapoff -a` on a host that is short: it stops everything and may kill.",
                ),
            )
        })
        .collect()
}

fn at_own_limit(facts: &HostFacts, group: &CgroupFacts) -> bool {
    let hit = hard_limit_hits(facts, group).1 > 0;
    // v2 counts in every group around as well what happens at a limit further below.
    let part = Percent::whole(if hit { 75 } else { 95 });
    crate::checks::measures::tightest_own_limit(group)
        .is_some_and(|(_, limit)| group.usage() >= Bytes(part.of(limit.get())))
}

/// Whether the host leaves it alone: what remains in swap comes home as it is used.
fn is_protected(facts: &HostFacts, group: &CgroupFacts) -> bool {
    match facts.version(HierarchyController::Memory) {
        Some(ControllerVersion::V1) => group.number("memory.swappiness").is_some_and(|n| n <= 1),
        _ => {
            group.limit("memory.swap.max") == Some(Limit::At(Bytes::ZERO))
                || protected_memory(facts, group) >= group.usage()
        }
    }
}

/// No swap where something counts on it.
pub(super) const NO_SWAP: DoctorCheck = DoctorCheck {
    id: "no-swap",
    pitfall: "no swap at all",
    reads_v1: "/proc/meminfo SwapTotal, process names",
    reads_v2: "/proc/meminfo SwapTotal, process names",
    threshold: "SwapTotal is zero and a killer by pressure (systemd-oomd, oomd, nohang) is at work",
    reference: "facebookincubator/oomd#80; systemd-oomd.service(8)",
    run: no_swap,
};

fn no_swap(facts: &HostFacts) -> Vec<DoctorFinding> {
    let killers = ["systemd-oomd", "oomd", "nohang"];
    let killer = facts.host.managers.iter().find(|m| killers.contains(&m.as_str()));
    match (facts.host.meminfo("SwapTotal"), killer) {
        (Some(Bytes::ZERO), Some(killer)) => vec![
            DoctorFinding::new(
                Severity::Info,
                format!(
                    "{killer} acts on memory pressure, which without swap rises only when it is too late."
                ),
            )
            .with_evidence("/proc/meminfo SwapTotal", Bytes::ZERO)
            .with_fix(manual_fix(&[
                "modprobe zram && zramctl --find --size 1G --algorithm zstd /dev/zram0",
                "mkswap /dev/zram0 && swapon --priority 100 /dev/zram0",
            ])),
        ],
        _ => Vec::new(),
    }
}

/// A limit that swap makes twice as large.
pub(super) const SWAP_UNLIMITED: DoctorCheck = DoctorCheck {
    id: "swaps-at-own-limit",
    pitfall: "a container swaps against its own limit",
    reads_v1: "memory.limit_in_bytes, memory.memsw.limit_in_bytes, memory.stat (total_swap, workingset_refault_anon), memory.failcnt",
    reads_v2: "memory.max, memory.swap.max, memory.swap.current, memory.stat workingset_refault_anon, memory.events max",
    threshold: "at its own limit, more than 10 pages per second come back from swap",
    reference: "Documentation/admin-guide/cgroup-v2.rst, memory.swap.max",
    run: swap_unlimited,
};

fn swap_unlimited(facts: &HostFacts) -> Vec<DoctorFinding> {
    facts
        .containers()
        .filter_map(|g| {
            let (file, limit) = crate::checks::measures::tightest_own_limit(g)?;
            let stat = g.stat();
            let back = facts.per_second(g.stat_before().workingset_refault_anon, stat.workingset_refault_anon);
            if !at_own_limit(facts, g) || back < SWAP_IN_RATE_THRESHOLD {
                return None;
            }
            let wanted = limit.saturating_add(stat.swap);
            Some(
                DoctorFinding::new(
                    Severity::Warning,
                    format!(
                        "It needs {wanted}, has a limit of {limit}, and lives on swap for the rest: slow instead of dead."
                    ),
                )
                .for_cgroup(g.container_name(), &g.path)
                .with_evidence(g.file(HierarchyController::Memory, file), limit)
                .with_evidence(g.file(HierarchyController::Memory, "memory.stat swap"), stat.swap)
                .with_evidence(
                    g.file(HierarchyController::Memory, "memory.stat workingset_refault_anon"),
                    format!("+{back:.0} pages/s"),
                )
                .with_fix(super::fixes::raise_limit_or_ask(facts, g, wanted)),
            )
        })
        .collect()
}

/// Compressed swap that eats the memory it should save.
pub(super) const ZSWAP: DoctorCheck = DoctorCheck {
    id: "zswap-full",
    pitfall: "compressed swap is full",
    reads_v1: "/sys/module/zswap/parameters (enabled, max_pool_percent), /proc/meminfo Zswap",
    reads_v2: "/sys/module/zswap/parameters (enabled, max_pool_percent), /proc/meminfo Zswap, /proc/vmstat zswpwb",
    threshold: "zswap on, its pool above 90 % of max_pool_percent, and more than 100 pages per second written back to disk",
    reference: "Documentation/admin-guide/mm/zswap.rst",
    run: zswap,
};

fn zswap(facts: &HostFacts) -> Vec<DoctorFinding> {
    let host = &facts.host;
    let on = host.setting("/sys/module/zswap/parameters/enabled") == Some("Y");
    let percent = host.number("/sys/module/zswap/parameters/max_pool_percent").unwrap_or(20).min(100);
    let most = Bytes(host.mem_total().get() / 100 * percent);
    let pool = host.meminfo("Zswap").unwrap_or_default();
    let written = host.vmstat("zswpwb").map_or(0.0, |(b, a)| facts.per_second(b, a));
    if !on || pool.get() < most.get() / 10 * 9 || written < 100.0 || most == Bytes::ZERO {
        return Vec::new();
    }
    vec![
        DoctorFinding::new(
            Severity::Warning,
            format!("Compressed swap is full at {pool}: it takes memory and writes to disk all the same."),
        )
        .with_evidence("/proc/meminfo Zswap", pool)
        .with_evidence("/sys/module/zswap/parameters/max_pool_percent", percent)
        .with_evidence("/proc/vmstat zswpwb", format!("+{written:.0} pages/s"))
        .with_advice("Fewer containers, or more memory; the pool made larger takes what they run in."),
    ]
}
