//! `elbowroom doctor --list`: what is checked, and from when on it counts.

use super::VERSION;
use crate::checks::{CHECKS, DoctorCheck};
use anyhow::Result;
use elbowroom_client::output::Format;
use serde::Serialize;
use std::fmt::Write;

#[derive(Serialize)]
struct CheckRow {
    id: &'static str,
    pitfall: &'static str,
    reads_v1: &'static str,
    reads_v2: &'static str,
    threshold: &'static str,
    reference: &'static str,
}

#[derive(Serialize)]
struct CheckListOutput {
    version: u32,
    checks: Vec<CheckRow>,
}

/// The table of checks.
pub(super) fn check_list(format: Format) -> Result<String> {
    match format {
        Format::Data(data) => {
            data.document(&CheckListOutput { version: VERSION, checks: CHECKS.iter().map(row).collect() })
        }
        Format::Text => Ok(text()),
    }
}

fn row(check: &DoctorCheck) -> CheckRow {
    let DoctorCheck { id, pitfall, reads_v1, reads_v2, threshold, reference, run: _ } = *check;
    CheckRow { id, pitfall, reads_v1, reads_v2, threshold, reference }
}

fn text() -> String {
    let mut text = String::new();
    for check in CHECKS {
        let _ = writeln!(text, "{}  ({})", check.id, check.pitfall);
        let reads = |reads: &'static str| if reads.is_empty() { "does not apply" } else { reads };
        let lines = match check.reads_v1 == check.reads_v2 {
            true => vec![("reads", check.reads_v1)],
            false => vec![("v1", reads(check.reads_v1)), ("v2", reads(check.reads_v2))],
        };
        for (key, value) in lines.into_iter().chain([("when", check.threshold), ("see", check.reference)]) {
            let body = super::report::wrap(value, "         ", 80);
            let _ = write!(text, "  {key:<6} {}", body.trim_start());
        }
        text.push('\n');
    }
    text
}
