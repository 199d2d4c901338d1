//! `elbowroom alerts`: what is wrong, and what was lately.

use anyhow::Result;
use elbowroom_client::api::{AlertView, AlertsReport, ControlRequest, ControlResponse};
use elbowroom_client::control::ControlClient;
use elbowroom_client::dated::Dated;
use elbowroom_client::output::{TableArgs, unexpected_response};
use elbowroom_client::table::clip;
use elbowroom_types::alert::AlertKind;
use elbowroom_types::finding::Severity;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

/// Lines of evidence shown; the JSON has all.
const MAX_EVIDENCE_LINES: usize = 4;

/// `elbowroom alerts`: the text, and 1 where something lasts.
pub(crate) fn alerts(run_dir: &Path, args: TableArgs) -> Result<(String, ExitCode)> {
    let ControlResponse::Alerts(report) =
        ControlClient::connect(run_dir)?.request(&ControlRequest::Alerts)?
    else {
        return unexpected_response();
    };
    let code = ExitCode::from(u8::from(!report.lasting.is_empty()));
    let names = || report.lasting.iter().map(name).collect();
    let text = args.answer(&Dated(&report), names, |_| text(&report, elbowroom_linux::timer::unix_ms()))?;
    Ok((text, code))
}

/// A lasting alert for scripts: its kind, and its container where it has one.
fn name(view: &AlertView) -> String {
    let about = view.container.iter().map(|c| format!(" {}", c.name.as_ref().unwrap_or(&c.id)));
    format!("{}{}", view.alert.kind, about.collect::<String>())
}

fn text(report: &AlertsReport, now: u64) -> String {
    let mut lasting: Vec<&AlertView> = report.lasting.iter().collect();
    lasting.sort_by_key(|view| (std::cmp::Reverse(view.alert.severity), view.since_unix_ms));
    let mut text = String::new();
    if lasting.is_empty() {
        text.push_str("nothing is wrong\n");
    }
    for view in lasting {
        let _ = writeln!(
            text,
            "{}, for {}",
            alert_heading(view),
            format_span(now.saturating_sub(view.since_unix_ms))
        );
        let _ = writeln!(text, "    {}", clip(&view.alert.text, 400));
        for evidence in view.alert.evidence.iter().take(MAX_EVIDENCE_LINES) {
            let _ = writeln!(text, "    {} = {}", clip(&evidence.file, 100), clip(&evidence.value, 60));
        }
    }
    if !report.ended.is_empty() {
        text.push_str("\nended within the last hour:\n");
    }
    for view in &report.ended {
        let ended = view.until_unix_ms.unwrap_or(now);
        let (lasted, ago) = (ended.saturating_sub(view.since_unix_ms), now.saturating_sub(ended));
        let _ = writeln!(
            text,
            "{}, {} ago, after {}",
            alert_heading(view),
            format_span(ago),
            format_span(lasted)
        );
        if view.alert.kind == AlertKind::Verdict {
            let _ = writeln!(text, "    {}", clip(&view.alert.text, 400));
        }
    }
    text
}

/// An alert's severity, kind and subject.
fn alert_heading(view: &AlertView) -> String {
    let severity = match view.alert.severity {
        Severity::Critical => "critical",
        Severity::Warning => "warning",
        Severity::Info => "note",
    };
    // A finding is known by its check.
    let (word, topic) = match (view.alert.kind, &view.alert.topic) {
        (AlertKind::Finding, Some(check)) => (clip(check, 40), None),
        (kind, topic) => (kind.to_string(), topic.as_ref()),
    };
    let mut about: Vec<String> = topic.iter().map(|topic| clip(topic, 40)).collect();
    about.extend(view.disk_name.iter().map(|name| clip(name, 40)));
    about.extend(view.container.as_ref().map(|c| clip(c.name.as_ref().unwrap_or(&c.id), 40)));
    let about = if about.is_empty() { "node".to_owned() } else { about.join(" ") };
    format!("{severity:<8} {word:<14} {about}")
}

/// A time in its largest unit that has a whole number: `90s`, `12m`, `3h`.
fn format_span(ms: u64) -> String {
    match ms / 1_000 {
        s if s < 120 => format!("{s}s"),
        s if s < 7_200 => format!("{}m", s / 60),
        s if s < 172_800 => format!("{}h", s / 3_600),
        s => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_client::api::ContainerRef;
    use elbowroom_types::alert::{Alert, AlertSubject};
    use elbowroom_types::finding::FindingEvidence;
    use elbowroom_types::unit::Micros;

    fn view(kind: AlertKind, topic: Option<&str>, since: u64, until: Option<u64>) -> AlertView {
        let subject = AlertSubject { topic: topic.map(str::to_owned), ..AlertSubject::node(kind) };
        let evidence = vec![FindingEvidence { file: "/proc/meminfo MemFree".into(), value: "1GiB".into() }];
        let alert = Alert { evidence, ..Alert::new(subject, Micros::ZERO, "a\nb".into()) };
        let container = ContainerRef { id: "0123".into(), name: Some("web".into()), path: "/x".into() };
        let container = (kind == AlertKind::Starved).then_some(container);
        AlertView { since_unix_ms: since, until_unix_ms: until, ..AlertView::new(alert, None, container) }
    }

    #[test]
    fn the_worst_comes_first_and_what_is_over_last() {
        let report = AlertsReport {
            lasting: vec![
                view(AlertKind::Overload, Some("memory"), 10_000, None),
                view(AlertKind::Starved, None, 60_000, None),
            ],
            ended: vec![
                view(AlertKind::Degraded, None, 5_000, Some(50_000)),
                view(AlertKind::Verdict, Some("killed"), 5_000, Some(50_000)),
                view(AlertKind::Finding, Some("cpu-throttled"), 5_000, Some(50_000)),
            ],
            begun: Vec::new(),
        };
        let expect = "critical STARVED        web, for 60s\n    a\\nb\n    /proc/meminfo MemFree = 1GiB\n\
            warning  OVERLOAD       memory, for 110s\n    a\\nb\n    /proc/meminfo MemFree = 1GiB\n\n\
            ended within the last hour:\nwarning  DEGRADED       node, 70s ago, after 45s\n\
            warning  VERDICT        killed, 70s ago, after 45s\n    a\\nb\n\
            warning  cpu-throttled  node, 70s ago, after 45s\n";
        assert_eq!(text(&report, 120_000), expect);
        assert_eq!(text(&AlertsReport::default(), 0), "nothing is wrong\n");
    }
}
