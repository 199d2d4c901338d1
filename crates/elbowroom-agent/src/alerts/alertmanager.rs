//! Alerts as an Alertmanager takes them: `POST /api/v2/alerts` of its API version 2 (`api/v2/openapi.yaml` there,
//! `postableAlerts`).
//!
//! As Prometheus does it: alerts that last are posted again and again, each time with an end in the future. So they end by themselves if
//! the agent is gone. An alert that ended is posted with its end.

use super::AlertNotice;
use elbowroom_client::api::AlertView;
use elbowroom_client::dated::rfc3339;
use elbowroom_types::unit::Micros;
use serde::Serialize;
use std::collections::BTreeMap;

/// An alert counts as over when it was not posted for this many resend intervals (`resendDelay` in Prometheus's rules/alerting.go).
const MISSED_RESENDS: u64 = 4;
const ALERTS_PATH: &str = "/api/v2/alerts";

/// `postableAlert`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PostableAlert<'a> {
    labels: BTreeMap<&'static str, String>,
    annotations: BTreeMap<&'static str, String>,
    starts_at: String,
    ends_at: String,
    #[serde(rename = "generatorURL", skip_serializing_if = "Option::is_none")]
    generator_url: Option<&'a str>,
}

/// The address that is posted to: that of an Alertmanager, or the full one.
pub(super) fn alerts_url(url: &str) -> String {
    match url.trim_end_matches('/') {
        full if full.ends_with(ALERTS_PATH) => full.to_owned(),
        base => format!("{base}{ALERTS_PATH}"),
    }
}

/// What is posted.
pub(super) fn body(notices: &[AlertNotice], now_unix_ms: u64, resend: Micros, link: Option<&str>) -> Vec<u8> {
    let forgotten = now_unix_ms.saturating_add(resend.get() / 1_000 * MISSED_RESENDS);
    let postable = |notice: &AlertNotice| PostableAlert {
        labels: labels(notice),
        annotations: annotations(&notice.alert),
        starts_at: rfc3339(notice.alert.since_unix_ms),
        ends_at: rfc3339(notice.alert.until_unix_ms.unwrap_or(forgotten)),
        generator_url: link,
    };
    let all: Vec<PostableAlert<'_>> = notices.iter().map(postable).collect();
    serde_json::to_vec(&all).expect("alerts are text")
}

/// The labels that identify an alert: they stay the same while it lasts. Only a container's name may change, when it is renamed: routes
/// need names.
fn labels(notice: &AlertNotice) -> BTreeMap<&'static str, String> {
    let AlertView { alert, disk_name, container, .. } = &notice.alert;
    let mut labels = BTreeMap::from([
        ("alertname", alert_name(&alert.kind.to_string())),
        ("severity", format!("{:?}", alert.severity).to_lowercase()),
        ("instance", notice.host.clone()),
    ]);
    labels.extend(alert.topic.clone().map(|topic| ("topic", topic)));
    labels.extend(disk_name.clone().map(|disk| ("disk", disk)));
    if let Some(container) = container {
        labels.insert("id", container.id.clone());
        labels.extend(container.name.clone().map(|name| ("name", name)));
    }
    labels
}

fn annotations(view: &AlertView) -> BTreeMap<&'static str, String> {
    let mut annotations = BTreeMap::from([("summary", view.alert.text.clone())]);
    let lines: Vec<String> =
        view.alert.evidence.iter().map(|e| format!("{} = {}", e.file, e.value)).collect();
    if !lines.is_empty() {
        annotations.insert("description", lines.join("\n"));
    }
    if let Some(container) = &view.container {
        annotations.insert("cgroup", container.path.clone());
    }
    annotations
}

/// `FOREIGN_WRITER` as `ElbowroomForeignWriter`.
fn alert_name(kind: &str) -> String {
    let word = |word: &str| word[..1].to_owned() + &word[1..].to_lowercase();
    kind.split('_').fold("Elbowroom".to_owned(), |name, part| name + &word(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_client::api::ContainerRef;
    use elbowroom_types::alert::{Alert, AlertKind, AlertSubject};
    use elbowroom_types::finding::FindingEvidence;

    fn notice(until: Option<u64>) -> AlertNotice {
        let subject =
            AlertSubject { topic: Some("memory".into()), ..AlertSubject::node(AlertKind::ForeignWriter) };
        let evidence = vec![FindingEvidence { file: "memory.max".into(), value: "7".into() }];
        let alert = Alert { evidence, ..Alert::new(subject, Micros::ZERO, "text".into()) };
        let container =
            ContainerRef { id: "0123".into(), name: Some("web".into()), path: "/docker/0123".into() };
        let mut view = AlertView::new(alert, Some("sda".into()), Some(container));
        (view.since_unix_ms, view.until_unix_ms) = (1_795_229_160_500, until);
        AlertNotice { state: "began", host: "node1".into(), time_unix_ms: 0, alert: view }
    }

    #[test]
    fn an_alert_that_lasts_ends_by_itself_unless_it_is_said_again() {
        let now = 1_795_229_220_000;
        let body = body(&[notice(None)], now, Micros::secs(60), Some("https://node1/"));
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let expect = serde_json::json!([{
            "labels": {
                "alertname": "ElbowroomForeignWriter", "severity": "warning", "instance": "node1", "topic": "memory",
                "disk": "sda", "id": "0123", "name": "web",
            },
            "annotations": { "summary": "text", "description": "memory.max = 7", "cgroup": "/docker/0123" },
            "startsAt": "2026-11-21T02:46:00.5Z",
            "endsAt": "2026-11-21T02:51:00Z",
            "generatorURL": "https://node1/",
        }]);
        assert_eq!(json, expect);
    }

    #[test]
    fn one_that_ended_says_when() {
        let body = body(&[notice(Some(1_795_229_170_000))], 0, Micros::secs(60), None);
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(json[0]["endsAt"], "2026-11-21T02:46:10Z");
        assert!(json[0].get("generatorURL").is_none());
    }

    #[test]
    fn the_address_may_be_given_in_full_or_not() {
        for given in ["http://a:9093", "http://a:9093/", "http://a:9093/api/v2/alerts"] {
            assert_eq!(alerts_url(given), "http://a:9093/api/v2/alerts");
        }
        assert_eq!(alerts_url("http://a/alertmanager/"), "http://a/alertmanager/api/v2/alerts");
    }
}
