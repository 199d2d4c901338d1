//! `elbowroom doctor --fix`: what the findings ask for, planned together.

use super::apply::{ApplyOptions, PlannedFix, apply};
use crate::checks::{HostFacts, plan_fixes};
use crate::fixes::journal::Journal;
use anyhow::Result;
use elbowroom_client::output::Format;
use elbowroom_types::finding::DoctorFinding;
use std::path::Path;
use std::process::ExitCode;

/// Makes every fix that `wanted` takes: 0 when all were, 1 when one was not.
pub(super) fn apply_fixes(
    facts: &HostFacts,
    journal: &Journal,
    wanted: impl Fn(&DoctorFinding) -> bool,
    yes: bool,
    format: Format,
    leases: &Path,
) -> Result<ExitCode> {
    let change = |f: DoctorFinding| PlannedFix {
        check: f.check,
        subject: f.container,
        fix: f.fix.unwrap_or_default(),
        placement: None,
    };
    let changes: Vec<PlannedFix> = plan_fixes(facts, wanted).into_iter().map(change).collect();
    let lasting = persistence_hint(&changes);
    apply(
        journal,
        &changes,
        &ApplyOptions { yes, format, leases, nothing_message: "nothing to fix", persistence_hint: &lasting },
    )
}

/// How long fixes hold, and what makes them hold longer.
pub(super) fn persistence_hint(changes: &[PlannedFix]) -> String {
    let docker: Vec<&String> =
        changes.iter().flat_map(|c| &c.fix.commands).filter(|c| c.starts_with("docker update")).collect();
    let mut text = "until the container, or the host, is started again".to_owned();
    if docker.is_empty() {
        text.push_str("; to keep it, set the same in the container's or the host's configuration\n");
    } else {
        text.push_str("; to keep it:\n");
        docker.iter().for_each(|c| text.push_str(&format!("  $ {c}\n")));
    }
    text
}
