//! Switches and limits of the whole machine.

use super::facts::{ControllerVersion, HierarchyController, HostFacts};
use super::fixes::{manual_fix, sysctl_fix, write_fix};
use super::pids::PID_MAX_LIMIT;
use super::pressure::{allocstall_rate, host_reclaim};
use crate::checks::DoctorCheck;
use elbowroom_types::finding::{DoctorFinding, Severity};
use elbowroom_types::unit::{Bytes, Percent};

const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const DEFRAG: &str = "/sys/kernel/mm/transparent_hugepage/defrag";

/// Huge pages that are waited for.
pub(super) const THP_ALWAYS: DoctorCheck = DoctorCheck {
    id: "huge-pages-stall",
    pitfall: "huge pages are made while a program waits",
    reads_v1: "/sys/kernel/mm/transparent_hugepage/{enabled,defrag}, /proc/vmstat compact_stall",
    reads_v2: "/sys/kernel/mm/transparent_hugepage/{enabled,defrag}, /proc/vmstat compact_stall",
    threshold: "enabled and defrag are both always; a warning when allocations waited for compaction more than once per second",
    reference: "Documentation/admin-guide/mm/transhuge.rst",
    run: thp,
};

fn thp(facts: &HostFacts) -> Vec<DoctorFinding> {
    let host = &facts.host;
    if host.setting(THP) != Some("always") || host.setting(DEFRAG) != Some("always") {
        return Vec::new();
    }
    let stalls = host.vmstat("compact_stall").map_or(0.0, |(b, a)| facts.per_second(b, a));
    vec![
        DoctorFinding::new(
            if stalls > 1.0 { Severity::Warning } else { Severity::Info },
            "Every allocation waits until the kernel has put a huge page together, wanted or not.",
        )
        .with_evidence(THP, "always")
        .with_evidence(DEFRAG, "always")
        .with_evidence("/proc/vmstat compact_stall", format!("+{stalls:.0}/s"))
        .with_fix(sysctl_fix(facts, DEFRAG, "madvise")),
    ]
}

/// Writers that may dirty more than their container holds.
pub(super) const DIRTY: DoctorCheck = DoctorCheck {
    id: "dirty-over-limit",
    pitfall: "dirty pages beyond what writeback allows",
    reads_v1: "/proc/sys/vm/{dirty_ratio,dirty_bytes}, /proc/meminfo MemAvailable, memory.limit_in_bytes, memory.stat total_dirty",
    reads_v2: "",
    threshold: "v1, which does not slow writers down by cgroup: dirty and written-back pages above 30 % of a container's limit, \
                which the machine's own dirty limit exceeds",
    reference: "Documentation/admin-guide/cgroup-v1/memory.rst; mm/page-writeback.c",
    run: dirty,
};

fn dirty(facts: &HostFacts) -> Vec<DoctorFinding> {
    if facts.version(HierarchyController::Memory) != Some(ControllerVersion::V1) {
        return Vec::new();
    }
    let host = &facts.host;
    let ratio = host.number("/proc/sys/vm/dirty_ratio").unwrap_or(20).min(100);
    let allowed = match host.number("/proc/sys/vm/dirty_bytes") {
        Some(n) if n > 0 => Bytes(n),
        _ => Bytes(host.mem_available().get() / 100 * ratio),
    };
    facts
        .containers()
        .filter_map(|g| {
            let limit = g.hard_limit()?;
            let dirty = g.stat().file_dirty.saturating_add(g.stat().file_writeback);
            (allowed > limit && dirty > Bytes(Percent::whole(30).of(limit.get()))).then(|| {
                let bytes = (limit.get() / 4).max(32 << 20);
                DoctorFinding::new(
                    Severity::Warning,
                    format!("{dirty} of its limit of {limit} wait to be written: reclaim at its limit then waits for the disk."),
                )
                .for_cgroup(g.container_name(), &g.path)
                .with_evidence(g.file(HierarchyController::Memory, "memory.stat dirty+writeback"), dirty)
                .with_evidence(g.file(HierarchyController::Memory, g.hard_limit_file()), limit)
                .with_evidence("/proc/sys/vm/dirty_ratio", ratio)
                .with_fix(manual_fix(&[&format!(
                    "sysctl -w vm.dirty_bytes={bytes} vm.dirty_background_bytes={}",
                    bytes / 2
                )]))
                .with_advice("cgroup v2 slows down the writer instead.")
            })
        })
        .collect()
}

/// Cgroups that were removed and still hold memory.
pub(super) const DYING: DoctorCheck = DoctorCheck {
    id: "dying-cgroups",
    pitfall: "removed cgroups that hold memory",
    reads_v1: "/proc/cgroups num_cgroups less the directories there are",
    reads_v2: "cgroup.stat nr_dying_descendants of the root",
    threshold: "more than 1000; a warning from 10000 on",
    reference: "Documentation/admin-guide/cgroup-v2.rst, cgroup.stat",
    run: dying,
};

fn dying(facts: &HostFacts) -> Vec<DoctorFinding> {
    let (file, n) = match facts.version(HierarchyController::Memory) {
        Some(ControllerVersion::V1) => {
            let all = facts.host.number("/proc/cgroups memory").unwrap_or(0);
            ("/proc/cgroups memory num_cgroups", all.saturating_sub(facts.host.memory_directories))
        }
        Some(ControllerVersion::V2) => {
            let n = facts.root().and_then(|r| r.number("cgroup.stat nr_dying_descendants"));
            ("cgroup.stat nr_dying_descendants", n.unwrap_or(0))
        }
        None => return Vec::new(),
    };
    if n <= 1_000 {
        return Vec::new();
    }
    let reap = match (facts.version(HierarchyController::Memory), &facts.host.unified) {
        (Some(ControllerVersion::V2), Some(root)) if facts.host.kernel >= (5, 19) => {
            write_fix("256M", &format!("{root}/memory.reclaim"))
        }
        _ => manual_fix(&["sync; echo 2 > /proc/sys/vm/drop_caches"]),
    };
    vec![
        DoctorFinding::new(
            if n > 10_000 { Severity::Warning } else { Severity::Info },
            format!("{n} removed cgroups still hold memory: reclaim and memory.stat walk all of them."),
        )
        .with_evidence(file, n)
        .with_fix(reap)
        .with_advice("They hold on to cache of files that others use; reclaim lets it go."),
    ]
}

/// Watermarks too close for the machine.
pub(super) const WATERMARKS: DoctorCheck = DoctorCheck {
    id: "watermarks-narrow",
    pitfall: "watermarks too close for kswapd",
    reads_v1: "/proc/sys/vm/watermark_scale_factor, /proc/vmstat allocstall_*, pgsteal_kswapd",
    reads_v2: "/proc/sys/vm/watermark_scale_factor, /proc/vmstat allocstall_*, pgsteal_kswapd",
    threshold: "allocations that had to reclaim for themselves (allocstall) more than 10 times per second, and \
                watermark_scale_factor below 50",
    reference: "Documentation/admin-guide/sysctl/vm.rst, watermark_scale_factor",
    run: watermarks,
};

fn watermarks(facts: &HostFacts) -> Vec<DoctorFinding> {
    const FILE: &str = "/proc/sys/vm/watermark_scale_factor";
    let Some(factor) = facts.host.number(FILE).filter(|n| *n < 50) else { return Vec::new() };
    let stalls = allocstall_rate(facts);
    if stalls <= 10.0 {
        return Vec::new();
    }
    vec![
        DoctorFinding::new(
            Severity::Warning,
            "kswapd starts too late: programs that allocate have to reclaim for themselves, and wait.",
        )
        .with_evidence("/proc/vmstat allocstall_*", format!("+{stalls:.0}/s"))
        .with_evidence(FILE, factor)
        .with_fix(sysctl_fix(facts, FILE, 100)),
    ]
}

/// What tasks wait for cannot be seen.
pub(super) const PSI_OFF: DoctorCheck = DoctorCheck {
    id: "pressure-not-counted",
    pitfall: "the kernel does not count pressure",
    reads_v1: "/proc/pressure",
    reads_v2: "/proc/pressure, cgroup.pressure",
    threshold: "/proc/pressure cannot be read, or a container's cgroup.pressure is 0",
    reference: "Documentation/accounting/psi.rst",
    run: psi_off,
};

fn psi_off(facts: &HostFacts) -> Vec<DoctorFinding> {
    if facts.host.after.pressure.is_none() {
        return vec![
            DoctorFinding::new(
                Severity::Info,
                "The kernel does not count what tasks wait for: half of these checks are blind.",
            )
            .with_evidence("/proc/pressure/memory", "absent")
            .with_advice("Boot with psi=1 on the kernel's command line."),
        ];
    }
    let off = facts.containers().filter(|g| g.text("cgroup.pressure") == Some("0"));
    off.map(|g| {
        DoctorFinding::new(Severity::Info, "Pressure is not counted for it.")
            .for_cgroup(g.container_name(), &g.path)
            .with_evidence(g.file(HierarchyController::Unified, "cgroup.pressure"), 0)
            .with_fix(super::fixes::cgroup_fix(g, HierarchyController::Unified, "cgroup.pressure", 1))
    })
    .collect()
}

/// One memory node full, others not.
pub(super) const NODE_FULL: DoctorCheck = DoctorCheck {
    id: "numa-node-full",
    pitfall: "a node is full while others are not",
    reads_v1: "/sys/devices/system/node/node*/meminfo, cpuset.mems",
    reads_v2: "/sys/devices/system/node/node*/meminfo, cpuset.mems",
    threshold: "the host reclaims, a container is bound to one node that has less than 5 % left, and another node has 30 %",
    reference: "Documentation/admin-guide/mm/numa_memory_policy.rst",
    run: node_full,
};

fn node_full(facts: &HostFacts) -> Vec<DoctorFinding> {
    let Some((file, value)) = host_reclaim(facts) else { return Vec::new() };
    let part = |n: &super::facts::NumaNodeFacts| n.available.get() * 100 / n.total.get().max(1);
    let Some(free) = facts.host.nodes.iter().find(|n| n.total > Bytes::ZERO && part(n) >= 30) else {
        return Vec::new();
    };
    facts
        .containers()
        .filter_map(|g| {
            let bound: u32 = g.text("cpuset.mems")?.parse().ok()?;
            let node = facts.host.nodes.iter().find(|n| n.number == bound && part(n) < 5)?;
            let sysfs = |n: u32| format!("/sys/devices/system/node/node{n}/meminfo");
            Some(
                DoctorFinding::new(
                    Severity::Warning,
                    format!(
                        "It is bound to memory node {bound}, which is full, while node {} has {}.",
                        free.number, free.available
                    ),
                )
                .for_cgroup(g.container_name(), &g.path)
                .with_evidence(g.file(HierarchyController::Cpuset, "cpuset.mems"), bound)
                .with_evidence(sysfs(bound), node.available)
                .with_evidence(sysfs(free.number), free.available)
                .with_evidence(file.clone(), &value)
                .with_advice("Let it use both nodes: `docker update --cpuset-mems`, or no binding at all."),
            )
        })
        .collect()
}

/// Reclaim before the next node is asked.
pub(super) const ZONE_RECLAIM: DoctorCheck = DoctorCheck {
    id: "node-reclaim-on",
    pitfall: "a node reclaims before it asks another",
    reads_v1: "/proc/sys/vm/zone_reclaim_mode, number of memory nodes",
    reads_v2: "/proc/sys/vm/zone_reclaim_mode, number of memory nodes",
    threshold: "not 0 on a machine with several memory nodes",
    reference: "Documentation/admin-guide/sysctl/vm.rst, zone_reclaim_mode",
    run: zone_reclaim,
};

fn zone_reclaim(facts: &HostFacts) -> Vec<DoctorFinding> {
    const FILE: &str = "/proc/sys/vm/zone_reclaim_mode";
    match facts.host.number(FILE) {
        Some(n) if n != 0 && facts.host.nodes.len() > 1 => vec![
            DoctorFinding::new(
                Severity::Warning,
                "Page cache is dropped on one memory node while the others have room.",
            )
            .with_evidence(FILE, n)
            .with_fix(sysctl_fix(facts, FILE, 0)),
        ],
        _ => Vec::new(),
    }
}

/// Allocations that are refused on paper.
pub(super) const OVERCOMMIT: DoctorCheck = DoctorCheck {
    id: "commit-limit-near",
    pitfall: "the commit limit is near",
    reads_v1: "/proc/sys/vm/overcommit_memory, /proc/meminfo (Committed_AS, CommitLimit)",
    reads_v2: "/proc/sys/vm/overcommit_memory, /proc/meminfo (Committed_AS, CommitLimit)",
    threshold: "overcommit_memory is 2 and more than 90 % of CommitLimit are committed",
    reference: "Documentation/mm/overcommit-accounting.rst",
    run: overcommit,
};

fn overcommit(facts: &HostFacts) -> Vec<DoctorFinding> {
    const FILE: &str = "/proc/sys/vm/overcommit_memory";
    let (Some(2), Some(used), Some(most)) =
        (facts.host.number(FILE), facts.host.meminfo("Committed_AS"), facts.host.meminfo("CommitLimit"))
    else {
        return Vec::new();
    };
    if used.get() < most.get() / 10 * 9 {
        return Vec::new();
    }
    vec![
        DoctorFinding::new(
            Severity::Warning,
            format!("{used} of {most} are promised, and the kernel refuses what is beyond: fork and malloc fail with memory free."),
        )
        .with_evidence(FILE, 2)
        .with_evidence("/proc/meminfo Committed_AS", used)
        .with_evidence("/proc/meminfo CommitLimit", most)
        .with_fix(sysctl_fix(facts, FILE, 0)),
    ]
}

/// A table of the whole machine that is nearly full.
struct KernelTable {
    usage_file: &'static str,
    limit_file: &'static str,
    objects: &'static str,
    symptom: &'static str,
}

impl KernelTable {
    /// The largest limit that the kernel takes.
    fn most(&self) -> u64 {
        if self.objects == "process ids" { PID_MAX_LIMIT } else { u64::MAX }
    }
}

const TABLES: [KernelTable; 6] = [
    KernelTable {
        usage_file: "/proc/sys/fs/file-nr",
        limit_file: "/proc/sys/fs/file-max",
        objects: "open files",
        symptom: "\"Too many open files in system\"",
    },
    KernelTable {
        usage_file: "/proc/sys/net/netfilter/nf_conntrack_count",
        limit_file: "/proc/sys/net/netfilter/nf_conntrack_max",
        objects: "tracked connections",
        symptom: "new connections time out",
    },
    KernelTable {
        usage_file: "/proc/loadavg threads",
        limit_file: "/proc/sys/kernel/threads-max",
        objects: "threads",
        symptom: "\"Resource temporarily unavailable\"",
    },
    KernelTable {
        usage_file: "/proc/loadavg threads",
        limit_file: "/proc/sys/kernel/pid_max",
        objects: "process ids",
        symptom: "\"Resource temporarily unavailable\"",
    },
    KernelTable {
        usage_file: "/proc/sys/fs/aio-nr",
        limit_file: "/proc/sys/fs/aio-max-nr",
        objects: "asynchronous requests",
        symptom: "io_setup of databases fails with \"Resource temporarily unavailable\"",
    },
    KernelTable {
        usage_file: "/proc/key-users keys",
        limit_file: "/proc/sys/kernel/keys/maxkeys",
        objects: "keys of one user",
        symptom: "engines fail with \"could not create session key: disk quota exceeded\"",
    },
];

/// Tables that every container shares.
pub(super) const TABLE_FULL: DoctorCheck = DoctorCheck {
    id: "kernel-table-full",
    pitfall: "a table that all containers share is nearly full",
    reads_v1: "/proc/sys/fs/{file-nr,aio-nr,aio-max-nr}, /proc/sys/net/netfilter/nf_conntrack_{count,max}, /proc/loadavg, \
               /proc/sys/kernel/{threads-max,pid_max,keys/maxkeys}, /proc/key-users",
    reads_v2: "the same",
    threshold: "more than 90 % used",
    reference: "Documentation/admin-guide/sysctl/fs.rst; Documentation/networking/nf_conntrack-sysctl.rst",
    run: table_full,
};

fn table_full(facts: &HostFacts) -> Vec<DoctorFinding> {
    TABLES
        .iter()
        .filter_map(|table| {
            let (used, most) = (facts.host.number(table.usage_file)?, facts.host.number(table.limit_file)?);
            (u128::from(used) * 10 > u128::from(most) * 9).then(|| {
                DoctorFinding::new(
                    Severity::Critical,
                    format!(
                        "{used} of {most} {} are in use by all containers together: next, {}.",
                        table.objects, table.symptom
                    ),
                )
                .with_evidence(table.usage_file, used)
                .with_evidence(table.limit_file, most)
                .with_fix(sysctl_fix(
                    facts,
                    table.limit_file,
                    most.saturating_mul(2).min(table.most()),
                ))
            })
        })
        .collect()
}
