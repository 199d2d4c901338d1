//! `elbowroom doctor --fix`: what the findings ask for, planned together.

use super::apply::{Change, Manner, apply};
use crate::checks::{Facts, plan};
use crate::fixes::journal::Journal;
use anyhow::Result;
use elbowroom_client::output::Format;
use elbowroom_types::finding::Finding;
use std::path::Path;
use std::process::ExitCode;

/// Makes every fix that `wanted` takes: 0 when all were, 1 when one was not.
pub(super) fn fix(
    facts: &Facts,
    journal: &Journal,
    wanted: impl Fn(&Finding) -> bool,
    yes: bool,
    format: Format,
    leases: &Path,
) -> Result<ExitCode> {
    let change = |f: Finding| Change {
        check: f.check,
        whose: f.container,
        fix: f.fix.unwrap_or_default(),
        placing: None,
    };
    let changes: Vec<Change> = plan(facts, wanted).into_iter().map(change).collect();
    let lasting = lasting(&changes);
    apply(journal, &changes, &Manner { yes, format, leases, nothing: "nothing to fix", lasting: &lasting })
}

/// How long fixes hold, and what makes them hold longer.
pub(super) fn lasting(changes: &[Change]) -> String {
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
