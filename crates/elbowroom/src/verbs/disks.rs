//! `elbowroom disks`: what is shared, what it can do, what is promised, what is wrong.

use anyhow::Result;
use elbowroom_client::api::{AlertView, ControlRequest, ControlResponse, DisksReport};
use elbowroom_client::control::ControlClient;
use elbowroom_client::dated::Dated;
use elbowroom_client::number_format;
use elbowroom_client::output::{TableArgs, unexpected_response};
use elbowroom_client::table::{Align, Keep, TableStyle, clip};
use elbowroom_govern::GovernorMode;
use elbowroom_govern::disk::{DiskPolicy, DiskView};
use elbowroom_types::io::IoMax;
use elbowroom_types::unit::Limit;
use std::fmt::Write;
use std::path::Path;

/// `elbowroom disks`.
pub(crate) fn disks(run_dir: &Path, args: TableArgs) -> Result<String> {
    let ControlResponse::Disks(report) = ControlClient::connect(run_dir)?.request(&ControlRequest::Disks)?
    else {
        return unexpected_response();
    };
    let names = || report.disks.iter().map(|disk| disk.name.clone()).collect();
    args.answer(&Dated(&report), names, |style| text(&report, style))
}

fn text(report: &DisksReport, style: TableStyle) -> String {
    if report.mode == GovernorMode::Off {
        return "off: set disk.mode to \"observe\" or \"enforce\"\n".to_owned();
    }
    let mut text = format!("{}, by {}\n", mode_text(report), policy_name(report.policy));
    if report.disks.is_empty() {
        text.push_str("no container has used a disk yet\n");
    } else {
        text.push('\n');
        text.push_str(&disk_table(&report.disks, style));
    }
    for disk in &report.disks {
        if let Some(why) = &disk.exempt_reason {
            let _ = writeln!(text, "\n{}: nothing is limited: {why}", clip(&disk.name, 40));
        }
    }
    for alert in &report.alerts {
        let _ = write!(text, "\n{}", alert_text(alert));
    }
    text
}

fn mode_text(report: &DisksReport) -> String {
    match (report.mode, &report.not_enforced) {
        (GovernorMode::Off | GovernorMode::Observe, _) => {
            "observing: decisions are shown, nothing is limited".to_owned()
        }
        (GovernorMode::Enforce, None) => "enforcing".to_owned(),
        (GovernorMode::Enforce, Some(why)) => format!("not enforcing, though asked to: {why}"),
    }
}

const fn policy_name(policy: DiskPolicy) -> &'static str {
    match policy {
        DiskPolicy::Aridac => "aridac",
        DiskPolicy::Lifeline => "lifeline",
    }
}

fn disk_table(disks: &[DiskView], style: TableStyle) -> String {
    let heading = [
        ("DISK", Align::Left, Keep::Always),
        ("STATE", Align::Left, Keep::Always),
        ("READ/s", Align::Right, Keep::Rank(2)),
        ("WRITE/s", Align::Right, Keep::Rank(2)),
        ("CAPACITY", Align::Right, Keep::Rank(3)),
        ("USED", Align::Right, Keep::Rank(1)),
        ("PROMISED", Align::Right, Keep::Rank(4)),
        ("WAIT", Align::Right, Keep::Rank(5)),
        ("QUEUE", Align::Right, Keep::Wide),
    ];
    let row = |disk: &DiskView| {
        vec![
            clip(&disk.name, 9),
            number_format::disk_state_words(disk.state).to_owned(),
            number_format::short_bytes(disk.rbps),
            number_format::short_bytes(disk.wbps),
            capacity_cell(disk.capacity),
            number_format::percent(disk.used),
            number_format::percent(Some(disk.promised)),
            number_format::short_duration(disk.wait),
            format!("{:.1}", disk.queue),
        ]
    };
    style.table(&heading, &disks.iter().map(row).collect::<Vec<_>>())
}

/// Read and written; the table has no room for operations, which are in the JSON.
fn capacity_cell(max: IoMax) -> String {
    let one = |limit: Limit<u64>| limit.value().map_or_else(|| "?".to_owned(), number_format::short_bytes);
    match (max.rbps, max.wbps) {
        (Limit::Max, Limit::Max) => "unknown".to_owned(),
        (read, write) => format!("{}/{}", one(read), one(write)),
    }
}

fn alert_text(view: &AlertView) -> String {
    let mut about: Vec<String> = view.disk_name.iter().map(|name| clip(name, 40)).collect();
    about.extend(view.container.as_ref().map(|c| clip(c.name.as_ref().unwrap_or(&c.id), 40)));
    format!("{:<14} {}\n    {}\n", view.alert.kind, about.join(", "), clip(&view.alert.text, 400))
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_client::api::ContainerRef;
    use elbowroom_govern::disk::DiskState;
    use elbowroom_types::alert::{Alert, AlertKind, AlertSubject};
    use elbowroom_types::id::{CgroupId, DeviceNumber};
    use elbowroom_types::unit::Micros;

    fn report() -> DisksReport {
        let disk = DiskView {
            number: DeviceNumber { major: 259, minor: 0 },
            name: "nvme0n1".into(),
            capacity: IoMax { rbps: Limit::At(3500 << 20), wbps: Limit::At(1 << 30), ..IoMax::MAX },
            rbps: 1234 << 20,
            wbps: 500 << 10,
            riops: 9,
            wiops: 9,
            used: Some(0.455),
            queue: 123.4,
            wait: Micros(12_345),
            base_wait: Micros(80),
            promised: 1.205,
            state: DiskState::Inversion,
            exempt_reason: Some("it carries swap".into()),
        };
        let subject = AlertSubject {
            disk: Some(disk.number),
            group: Some(CgroupId(1)),
            ..AlertSubject::node(AlertKind::ForeignWriter)
        };
        let alert = Alert::new(subject, Micros::secs(1), "a program wrote it\nagain".into());
        let container = ContainerRef { id: "0123".into(), name: Some("web".into()), path: "/x".into() };
        let alert = AlertView::new(alert, Some("nvme0n1".into()), Some(container));
        DisksReport {
            mode: GovernorMode::Enforce,
            not_enforced: None,
            policy: DiskPolicy::Lifeline,
            disks: vec![disk],
            alerts: vec![alert],
        }
    }

    #[test]
    fn a_full_table_fits_eighty_columns_and_alerts_their_lines() {
        let text = text(&report(), TableStyle::PLAIN);
        for line in
            text.lines().filter(|line| line.contains(" limits backed off ") || line.starts_with("DISK"))
        {
            assert!(line.chars().count() < 80, "{} {line}", line.len());
        }
        assert!(text.starts_with("enforcing, by lifeline\n"), "{text}");
        assert!(text.contains("nvme0n1: nothing is limited: it carries swap\n"), "{text}");
        assert!(text.contains("FOREIGN_WRITER nvme0n1, web\n    a program wrote it\\nagain\n"), "{text}");
    }

    #[test]
    fn what_is_not_done_is_said_with_its_reason() {
        let mut report = DisksReport { not_enforced: Some("no io controller".into()), ..report() };
        assert!(
            text(&report, TableStyle::PLAIN)
                .starts_with("not enforcing, though asked to: no io controller, by")
        );
        report.mode = GovernorMode::Off;
        assert_eq!(text(&report, TableStyle::PLAIN), "off: set disk.mode to \"observe\" or \"enforce\"\n");
    }

    #[test]
    fn a_report_reads_back_from_its_json() {
        let report = report();
        let json = serde_json::to_string(&report).unwrap();
        assert!(json.contains(r#""kind":"FOREIGN_WRITER""#) && json.contains(r#""disk":"259:0""#), "{json}");
        let back: DisksReport = serde_json::from_str(&json).unwrap();
        assert_eq!((back.disks, back.alerts), (report.disks, report.alerts));
    }
}
