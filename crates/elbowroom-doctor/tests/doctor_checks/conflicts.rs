//! Other programs, and a host that is short of memory. See `src/checks/conflicts.rs`.

use super::{GIB, MIB, Row, row};
use elbowroom_doctor::checks::ControllerVersion::V2;
use elbowroom_types::finding::Severity::{Critical, Info};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("host-short-of-memory", V2, Critical, "", |h| h.available(64 * MIB), |h| h.available(GIB)),
        row(
            "other-governor",
            V2,
            Info,
            "",
            |h| h.facts.host.managers.push("koordlet".into()),
            |h| h.facts.host.managers.clear(),
        ),
        row("fix-overwritten", V2, Info, "", |h| h.applied("5", Some("7")), |h| h.applied("7", Some("7"))),
    ]
}
