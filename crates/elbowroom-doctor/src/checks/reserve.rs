//! Pitfall III.A of *Taming Memory Related Performance Pitfalls in Linux Cgroups*: a limit is not a reservation.

use super::facts::{CgroupFacts, ControllerVersion, HierarchyController, HostFacts};
use super::fixes::{ancestor_protection_fix, protect_within};
use super::pressure::shortage;
use crate::checks::DoctorCheck;
use crate::checks::measures::{RESERVABLE, total_protected, unreserved_containers, unreserved_total};
use elbowroom_types::finding::{DoctorFinding, Severity};
use elbowroom_types::unit::Bytes;

const PAPER: &str = "Taming Memory Related Performance Pitfalls in Linux Cgroups (ICNC'17), III.A, IV.A";

/// What limits promise and the host cannot give.
pub(super) const NOT_RESERVED: DoctorCheck = DoctorCheck {
    id: "memory-not-reserved",
    pitfall: "memory is not reserved",
    reads_v1: "memory.limit_in_bytes, memory.usage_in_bytes, memory.soft_limit_in_bytes, /proc/meminfo",
    reads_v2: "memory.max, memory.current, memory.low and memory.min up to the root, /proc/meminfo",
    threshold: "what limits promise beyond use and reservation is more than MemAvailable; a warning only while the host is \
                short (MemAvailable below 10 %, allocations that reclaim, or memory pressure while the host itself reclaims)",
    reference: PAPER,
    run: not_reserved,
};

fn not_reserved(facts: &HostFacts) -> Vec<DoctorFinding> {
    let open = unreserved_containers(facts);
    if open.is_empty() {
        return Vec::new();
    }
    let (owed_to_all, available) = (unreserved_total(&open), facts.host.mem_available());
    let (short, reserved) = (shortage(facts), total_protected(facts));
    let severity = if short.is_some() { Severity::Warning } else { Severity::Info };
    let reservation = match facts.version(HierarchyController::Memory) {
        Some(ControllerVersion::V1) => "memory.soft_limit_in_bytes",
        _ => "memory.low",
    };
    open.into_iter()
        // The agent keeps what it decided to.
        .filter(|(g, ..)| !g.is_leased(reservation))
        .map(|(g, hard, owed)| {
            let memory = |file| g.file(HierarchyController::Memory, file);
            let mut finding = DoctorFinding::new(
                severity,
                format!(
                    "It may still ask for {owed} within its limit, and nothing keeps that for it: all containers together may \
                     ask for {owed_to_all} more, and {available} are available."
                ),
            )
            .for_cgroup(g.container_name(), &g.path)
            .with_evidence(memory(g.hard_limit_file()), hard)
            .with_evidence(memory(g.usage_file()), g.usage())
            .with_evidence(memory(reservation), g.text(reservation).unwrap_or("absent"))
            .with_evidence(facts.host.available_file(), available);
            if let Some((file, value)) = &short {
                finding = finding.with_evidence(file, value);
            }
            let fix = protect_within(facts, g, hard, reserved);
            let advice = match &fix {
                Some(_) => "What it will surely need it can take before others do: -XX:+AlwaysPreTouch with -Xms equal to \
                            -Xmx for a JVM; `elbowroom pretouch` makes that free ahead of it."
                    .to_owned(),
                None => format!(
                    "Limits promise more than {RESERVABLE} of this host: move a container away, or lower limits to what is \
                     really needed."
                ),
            };
            finding.with_fix(fix).with_advice(advice)
        })
        .collect()
}

/// A reservation that a cgroup around the container voids.
pub(super) const RESERVATION_VOID: DoctorCheck = DoctorCheck {
    id: "reservation-void",
    pitfall: "a reservation counts for nothing where the cgroups around it have none",
    reads_v1: "",
    reads_v2: "memory.low and memory.min of the container and of every cgroup around it, memory.current",
    threshold: "a cgroup around the container keeps less than the container uses of its own memory.low",
    reference: "Documentation/admin-guide/cgroup-v2.rst, memory.low; mm/page_counter.c effective_protection",
    run: reservation_void,
};

fn reservation_void(facts: &HostFacts) -> Vec<DoctorFinding> {
    if facts.version(HierarchyController::Memory) != Some(ControllerVersion::V2) {
        return Vec::new();
    }
    let claims = |g: &&CgroupFacts| crate::checks::measures::own_protection(g) > Bytes::ZERO;
    let reserved = total_protected(facts);
    facts
        .containers()
        .filter(claims)
        .filter_map(|g| {
            let claim = crate::checks::measures::own_protection(g);
            let used = claim.min(g.usage());
            let around = facts.ancestors(g).min_by_key(|a| crate::checks::measures::own_protection(a))?;
            // It keeps as much as the agent made it keep.
            if around.is_leased("memory.low") {
                return None;
            }
            let effective = crate::checks::measures::own_protection(around);
            (effective < used).then(|| {
                let finding = DoctorFinding::new(
                    Severity::Warning,
                    format!(
                        "It claims {claim}, but {} around it keeps only {effective}: the kernel never gives more than that.",
                        around.path
                    ),
                )
                .for_cgroup(g.container_name(), &g.path)
                .with_evidence(g.file(HierarchyController::Memory, "memory.low"), claim)
                .with_evidence(around.file(HierarchyController::Memory, "memory.low"), effective);
                match ancestor_protection_fix(facts, g, reserved) {
                    None => finding.with_advice(format!(
                        "Claims may add up to {RESERVABLE} of this host, and this one does not fit: claim less."
                    )),
                    fix => finding.with_fix(fix),
                }
            })
        })
        .collect()
}

/// A kernel that forgets reservations of cache.
pub(super) const OLD_KERNEL: DoctorCheck = DoctorCheck {
    id: "reservation-old-kernel",
    pitfall: "before Linux 5.15 protected cache goes with its inodes",
    reads_v1: "",
    reads_v2: "/proc/sys/kernel/osrelease, memory.low",
    threshold: "a kernel before 5.15 and a container with memory.low or memory.min",
    reference: "resctl-demo, shadow inodes: reclaim of inodes drops protected cache before Linux 5.15",
    run: old_kernel,
};

fn old_kernel(facts: &HostFacts) -> Vec<DoctorFinding> {
    let (major, minor) = facts.host.kernel;
    let protected = facts.containers().find(|g| crate::checks::measures::own_protection(g) > Bytes::ZERO);
    match protected {
        Some(g) if (major, minor) != (0, 0) && (major, minor) < (5, 15) => vec![
            DoctorFinding::new(
                Severity::Info,
                "This kernel drops protected page cache together with its inodes, whatever memory.low says.",
            )
            .with_evidence("/proc/sys/kernel/osrelease", format!("{major}.{minor}"))
            .with_evidence(
                g.file(HierarchyController::Memory, "memory.low"),
                crate::checks::measures::own_protection(g),
            )
            .with_advice("Linux 5.15 and later keep it."),
        ],
        _ => Vec::new(),
    }
}
