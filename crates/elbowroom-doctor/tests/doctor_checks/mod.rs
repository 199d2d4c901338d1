//! Every check against a host that has its trouble, and one that nearly has. The rows are in a file per subject, as the checks are.

mod cache;
mod conflicts;
mod cpu;
mod disk;
mod kernel;
mod limits;
mod reserve;
mod swap;

use crate::doctor_host::{Sim, says};
use elbowroom_doctor::checks::{CHECKS, ControllerVersion, examine, plan_fixes};
use elbowroom_types::finding::Severity;
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// One row: the check, a host that it speaks about and how, and a change after which it has nothing to say.
struct Row {
    check: &'static str,
    version: ControllerVersion,
    ill: fn(&mut Sim),
    severity: Severity,
    command: &'static str,
    well: fn(&mut Sim),
}

fn row(
    check: &'static str,
    version: ControllerVersion,
    severity: Severity,
    command: &'static str,
    ill: fn(&mut Sim),
    well: fn(&mut Sim),
) -> Row {
    Row { check, version, ill, severity, command, well }
}

fn rows() -> Vec<Row> {
    let subjects = [
        cache::rows(),
        conflicts::rows(),
        cpu::rows(),
        disk::rows(),
        kernel::rows(),
        limits::rows(),
        reserve::rows(),
        swap::rows(),
    ];
    subjects.into_iter().flatten().collect()
}

#[test]
fn each_check_speaks_of_its_trouble_and_not_of_nearly_so() {
    for row in rows() {
        let mut host = Sim::new(row.version);
        assert_eq!(says(row.check, &host), None, "{} on a healthy host", row.check);
        (row.ill)(&mut host);
        let said = says(row.check, &host);
        let (severity, command) =
            said.unwrap_or_else(|| panic!("{} {:?} says nothing", row.check, row.version));
        assert_eq!(severity, row.severity, "{} {:?}", row.check, row.version);
        let command = command.unwrap_or_default();
        assert!(
            command.starts_with(row.command) && command.is_empty() == row.command.is_empty(),
            "{} {:?}: {command:?}, not {:?}",
            row.check,
            row.version,
            row.command
        );
        (row.well)(&mut host);
        assert_eq!(says(row.check, &host), None, "{} {:?} nearly", row.check, row.version);
    }
}

#[test]
fn every_check_has_a_row_here_and_a_name_of_its_own() {
    let tested: BTreeSet<&str> = rows().iter().map(|r| r.check).collect();
    let ids: BTreeSet<&str> = CHECKS.iter().map(|c| c.id).collect();
    assert_eq!(ids.len(), CHECKS.len());
    assert_eq!(tested, ids);
    assert!(CHECKS.len() >= 45);
    for check in CHECKS {
        let shaped = check.id.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
        assert!(shaped && !check.threshold.is_empty() && !check.reference.is_empty(), "{}", check.id);
        assert!(!check.reads_v1.is_empty() || !check.reads_v2.is_empty(), "{}", check.id);
    }
}

#[test]
fn no_fix_lowers_a_limit_or_turns_swap_off() {
    let limits =
        ["memory.max", "memory.high", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "pids.max"];
    for row in rows() {
        let mut host = Sim::new(row.version);
        (row.ill)(&mut host);
        for finding in plan_fixes(&host.facts, |_| true) {
            let fix = finding.fix.expect("only what can be fixed is planned");
            assert!(
                !fix.commands.iter().any(|c| c.contains("swapoff") || c.contains("kill ")),
                "{:?}",
                fix.commands
            );
            for write in &fix.writes {
                assert!(!write.file.ends_with("memory.swap.max"), "{write:?}");
                if limits.iter().any(|l| write.file.ends_with(l)) {
                    let number = |text: &str| text.parse::<u64>().unwrap_or(u64::MAX);
                    assert!(number(&write.to) > number(&write.from), "{write:?}");
                }
            }
        }
    }
}

#[test]
fn a_name_is_no_command_of_its_own_in_any_fix() {
    const HOSTILE: &str = ";reboot";
    let mut quoted = 0;
    for row in rows() {
        let mut host = Sim::new(row.version);
        (row.ill)(&mut host);
        for group in &mut host.facts.groups {
            let rename = |text: &mut String| *text = text.replace("/c1", &format!("/c1{HOSTILE}"));
            rename(&mut group.path);
            group.dirs.values_mut().for_each(rename);
            if let Some(name) = group.container.as_mut().and_then(|container| container.name.as_mut()) {
                name.push_str(HOSTILE);
            }
        }
        for command in
            examine(&host.facts).into_iter().filter_map(|found| found.fix).flat_map(|fix| fix.commands)
        {
            // What is between quotes is at every second place.
            let bare: String = command.split('\'').step_by(2).collect();
            assert!(!bare.contains(HOSTILE), "{}: {command}", row.check);
            quoted += usize::from(command.contains(HOSTILE));
        }
    }
    assert!(quoted > 20, "{quoted}");
}

#[test]
fn what_a_pitfalls_fix_writes_removes_it() {
    let pitfalls =
        ["memory-not-reserved", "reservation-void", "anon-evicts-cache", "cache-stolen", "swapped-by-host"];
    for row in rows().into_iter().filter(|r| pitfalls.contains(&r.check)) {
        let mut host = Sim::new(row.version);
        (row.ill)(&mut host);
        let planned = plan_fixes(&host.facts, |f| f.check == row.check);
        assert!(!planned.is_empty(), "{} {:?}", row.check, row.version);
        for write in planned.iter().filter_map(|f| f.fix.as_ref()).flat_map(|f| &f.writes) {
            host.facts.apply(write);
        }
        // v1 keeps cache for no container: its soft limit counts as kept, because there is nothing more.
        assert_eq!(says(row.check, &host), None, "{} {:?}", row.check, row.version);
    }
}
