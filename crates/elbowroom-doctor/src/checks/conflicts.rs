//! Other programs that write the same files, and fixes that they wrote over.

use super::facts::{HierarchyController, HostFacts};
use crate::checks::DoctorCheck;
use crate::checks::measures::own_protection;
use elbowroom_types::finding::{DoctorFinding, Severity};
use elbowroom_types::unit::Bytes;

/// Programs that set memory of the containers they made, again and again.
const OTHER_MANAGERS: [&str; 2] = ["koordlet", "katalyst-agent"];

/// Two writers of one file.
pub(super) const FOREIGN_WRITER: DoctorCheck = DoctorCheck {
    id: "other-governor",
    pitfall: "another program governs the same files",
    reads_v1: "process names, memory.soft_limit_in_bytes",
    reads_v2: "process names, memory.low",
    threshold: "koordlet or katalyst-agent is at work, which write the files that fixes here would write",
    reference: "docs/guide/doctor.md, Fixes",
    run: foreign_writer,
};

fn foreign_writer(facts: &HostFacts) -> Vec<DoctorFinding> {
    let owner = facts.host.managers.iter().find(|m| OTHER_MANAGERS.contains(&m.as_str()));
    owner
        .map(|name| {
            let claimed: Bytes = facts.containers().map(own_protection).sum();
            DoctorFinding::new(
                Severity::Info,
                format!(
                    "{name} sets limits of these containers itself: change its configuration, not the files."
                ),
            )
            .with_evidence(format!("/proc/*/comm {name}"), "running")
            .with_evidence("memory.low of all containers", claimed)
            .with_advice("A fix made here may be written over within a second.")
        })
        .into_iter()
        .collect()
}

/// Another program changed what we fixed.
pub(super) const OVERWRITTEN: DoctorCheck = DoctorCheck {
    id: "fix-overwritten",
    pitfall: "a fix was written over",
    reads_v1: "the journal of fixes, and every file it names",
    reads_v2: "the journal of fixes, and every file it names",
    threshold: "a file that a fix wrote, and that has another value now",
    reference: "docs/guide/doctor.md, Fixes",
    run: overwritten,
};

fn overwritten(facts: &HostFacts) -> Vec<DoctorFinding> {
    let ledger = &facts.host.ledger;
    // Of several fixes of one file the last counts.
    let last = ledger.iter().enumerate().filter(|(at, w)| !ledger[at + 1..].iter().any(|l| l.file == w.file));
    last.filter_map(|(_, write)| {
        let now = write.now.as_ref().filter(|now| **now != write.to)?;
        Some(
            DoctorFinding::new(
                Severity::Info,
                format!(
                    "Another program changed what fix {} had set: its value is in force, and stays.",
                    write.id
                ),
            )
            .with_evidence(write.file.clone(), format!("{now}, was set to {}", write.to))
            .with_advice(format!("`elbowroom undo {}` forgets it; the value is left alone.", write.id)),
        )
    })
    .collect()
}

/// A host that killers by pressure look after, and one without.
pub(super) const HOST_SHORT_OF_MEMORY: DoctorCheck = DoctorCheck {
    id: "host-short-of-memory",
    pitfall: "the host is short of memory",
    reads_v1: "/proc/pressure/memory full avg10, /proc/meminfo MemAvailable, /proc/spl/kstat/zfs/arcstats",
    reads_v2: "/proc/pressure/memory full avg10, /proc/meminfo MemAvailable, /proc/spl/kstat/zfs/arcstats",
    threshold: "all tasks wait for memory more than 5 % of the last 10 s, or less than 3 % of MemTotal is available",
    reference: "Documentation/accounting/psi.rst",
    run: host_short_of_memory,
};

fn host_short_of_memory(facts: &HostFacts) -> Vec<DoctorFinding> {
    let (total, available) = (facts.host.mem_total(), facts.host.mem_available());
    let full = facts.host.after.pressure.as_ref().map_or(0, |p| p[2].full.avg10);
    let dry = total > Bytes::ZERO && available.get() < total.get() / 100 * 3;
    if full <= 500 && !dry {
        return Vec::new();
    }
    let most = facts.containers().max_by_key(|g| g.usage());
    let mut found = DoctorFinding::new(
        if full > 2_000 || dry { Severity::Critical } else { Severity::Warning },
        match most {
            Some(g) => format!("The host has {available} left; {} holds the most, {}.", g.name(), g.usage()),
            None => format!("The host has {available} left."),
        },
    )
    .with_evidence("/proc/pressure/memory full avg10", format!("{}.{:02}%", full / 100, full % 100))
    .with_evidence(facts.host.available_file(), available);
    if let Some(g) = most {
        found = found.with_evidence(g.file(HierarchyController::Memory, g.usage_file()), g.usage());
    }
    vec![found.with_advice(
        "Move a container away, or bound what the host itself runs: `systemd-cgtop -m` shows it.",
    )]
}
