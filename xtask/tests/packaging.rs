//! What the files for Prometheus and Grafana say of metrics is what the agent prints, and the version that packaging and documents name is
//! the agent's.

use elbowroom_types::alert::AlertKind as Alert;
use elbowroom_types::metric::{Metric, TABLE};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Labels that a scrape adds.
const SCRAPED: [&str; 2] = ["instance", "job"];

fn packaged(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(file);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The expressions of the rules.
fn rules() -> Vec<String> {
    let text = packaged("prometheus/elbowroom.rules.yml");
    text.lines().filter_map(|line| Some(line.trim().strip_prefix("expr: ")?.to_owned())).collect()
}

/// The expressions of the dashboard: its panels', its annotations' and its variables'.
fn dashboard() -> Vec<String> {
    fn collect(value: &serde_json::Value, into: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(map) => {
                for (key, value) in map {
                    match value {
                        serde_json::Value::String(text) if key == "expr" || key == "query" => {
                            into.push(text.clone())
                        }
                        value => collect(value, into),
                    }
                }
            }
            serde_json::Value::Array(list) => list.iter().for_each(|value| collect(value, into)),
            _ => {}
        }
    }
    let value = serde_json::from_str(&packaged("grafana/elbowroom.json")).expect("it is JSON");
    let mut found = Vec::new();
    collect(&value, &mut found);
    found
}

/// Names in an expression that begin as ours do, each with what its braces hold.
fn series(expr: &str) -> Vec<(&str, &str)> {
    let name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    let mut rest = expr;
    while let Some(at) = rest.find("elbowroom") {
        // In quotes it is a label's value.
        let quoted = rest[..at].matches('"').count() % 2 == 1;
        let from = &rest[at..];
        let end = from.find(|c| !name(c)).unwrap_or(from.len());
        let braces =
            from[end..].strip_prefix('{').and_then(|text| text.split('}').next()).unwrap_or_default();
        if !quoted {
            found.push((&from[..end], braces));
        }
        rest = if quoted { from[end..].split_once('"').map_or("", |(_, rest)| rest) } else { &from[end..] };
    }
    found
}

/// The row of the table that prints a series of this name.
fn metric(series: &str) -> Option<&'static Metric> {
    TABLE.iter().copied().find(|metric| series.strip_suffix(metric.kind.sample_suffix()) == Some(metric.name))
}

/// What is wrong with an expression.
fn faults(expr: &str, recorded: &BTreeSet<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, braces) in series(expr) {
        if recorded.contains(name) {
            continue;
        }
        let Some(metric) = metric(name) else {
            faults.push(format!("{name} is no metric of the agent"));
            continue;
        };
        for matcher in braces.split(',').filter(|matcher| !matcher.trim().is_empty()) {
            let label = matcher.split(['=', '!']).next().unwrap_or_default().trim();
            if !metric.labels.contains(&label) && !SCRAPED.contains(&label) {
                faults.push(format!("{name} has no label {label}"));
            }
            let value = matcher.split('"').nth(1).unwrap_or_default();
            if label == "kind" && !Alert::ALL.iter().any(|kind| kind.to_string() == value) {
                faults.push(format!("{value} is no kind of alert"));
            }
        }
    }
    faults
}

fn recorded() -> BTreeSet<String> {
    let text = packaged("prometheus/elbowroom.rules.yml");
    text.lines().filter_map(|line| Some(line.trim().strip_prefix("- record: ")?.to_owned())).collect()
}

#[test]
fn every_metric_and_label_that_rules_and_dashboard_use_exists() {
    let (rules, dashboard, recorded) = (rules(), dashboard(), recorded());
    assert!(
        rules.len() > 15 && dashboard.len() > 30 && recorded.len() > 3,
        "{} {}",
        rules.len(),
        dashboard.len()
    );
    let faults: Vec<String> =
        rules.iter().chain(&dashboard).flat_map(|expr| faults(expr, &recorded)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn every_kind_of_alert_has_a_rule() {
    let rules = rules().join("\n");
    for kind in Alert::ALL {
        assert!(
            rules.contains(&format!("elbowroom_alerts{{kind=\"{kind}\"}}")),
            "{kind}: add an alert to elbowroom.rules.yml"
        );
    }
}

#[test]
fn a_wrong_name_or_label_is_found() {
    let recorded = BTreeSet::from(["elbowroom:x:ratio".to_owned()]);
    for (expr, expect) in [
        ("rate(elbowroom_ticks_total[5m]) > 0", None),
        (
            "elbowroom:x:ratio{name=~\"a\"} / elbowroom_container_cpu_effective{id=\"elbowroom_nothing\"}",
            None,
        ),
        ("up{job=\"elbowroom\"} == 0", None),
        ("rate(elbowroom_ticks[5m])", Some("elbowroom_ticks is no metric")),
        (
            "elbowroom_container_cpu_effective_total",
            Some("elbowroom_container_cpu_effective_total is no metric"),
        ),
        ("elbowroom:y:ratio", Some("elbowroom:y:ratio is no metric")),
        ("elbowroom_container_cpu_effective{disk=\"a\"}", Some("has no label disk")),
        ("elbowroom_alerts{instance=\"a\", kind=\"STARVING\"}", Some("STARVING is no kind")),
    ] {
        let found = faults(expr, &recorded).join("; ");
        assert!(expect.map_or(found.is_empty(), |expect| found.contains(expect)), "{expr}: {found:?}");
    }
}

/// Files that name the version of a release, each with what is before it.
const VERSIONED: [(&str, &str); 13] = [
    ("CHANGELOG.md", "## Unreleased: "),
    ("README.md", "This is version "),
    ("docs/guide/install.md", "--input target/image/elbowroom-"),
    ("docs/guide/install.md", " elbowroom:"),
    ("docs/guide/kubernetes.md", "image.tag="),
    ("docs/guide/kubernetes.md", "newTag: "),
    ("packaging/kubernetes/agent/daemonset.yaml", "image: elbowroom:"),
    ("packaging/kubernetes/base/daemonset.yaml", "image: elbowroom:"),
    ("packaging/kubernetes/helm/elbowroom/Chart.yaml", "\nversion: "),
    ("packaging/kubernetes/helm/elbowroom/Chart.yaml", "appVersion: "),
    ("packaging/kubernetes/helm/elbowroom/values.yaml", "tag: "),
    ("packaging/podman/elbowroom.container", "Image=docker.io/library/elbowroom:"),
    ("python/pyproject.toml", "\nversion = \""),
];

/// The version numbers that follow `before` in a text.
fn versions<'a>(text: &'a str, before: &str) -> BTreeSet<&'a str> {
    let after = text.split(before).skip(1);
    after
        .map(|rest| {
            rest.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or("").trim_end_matches('.')
        })
        .collect()
}

#[test]
fn every_file_that_names_the_version_names_this_one() {
    let ours = BTreeSet::from([env!("CARGO_PKG_VERSION")]);
    for (file, before) in VERSIONED {
        let text = packaged(&format!("../{file}"));
        assert_eq!(versions(&text, before), ours, "{file}: after {before:?}");
    }
}

#[test]
fn another_version_is_found() {
    assert_eq!(
        versions("image: elbowroom:0.1.0\nimage: elbowroom:0.2.0-rc\n", "elbowroom:"),
        BTreeSet::from(["0.1.0", "0.2.0"])
    );
    assert_eq!(versions("This is version 0.1.0. And more.", "version "), BTreeSet::from(["0.1.0"]));
}
