//! What `elbowroom metrics` says: one table of names, and their text as OpenMetrics has it.
//!
//! Problem: metric names are an interface that dashboards and alerts are built on, and a text format that a scraper refuses as
//! a whole when one label is not escaped.
//!
//! Approach: [`TABLE`] is the only place where a name, a type, a unit, a help text and label names stand. [`MetricSet`] takes values
//! for them in any order and prints each family once, complete with its head, in the order of the table.
//!
//! Properties:
//! - Every name in the table obeys the rules of OpenMetrics 1.0 (unit as suffix, no `_total` in a family's name).
//! - A value has exactly the labels of its table row. Label values are escaped.
//! - A number that is not finite is left out, for absent is not zero.

use crate::visible::{Visible, is_hidden};
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// How a family's values behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MetricKind {
    /// Goes up and down.
    Gauge,
    /// Only grows while its process lives; its samples are named `NAME_total`.
    Counter,
    /// A counter of the kernel's: it only grows while what it counts lives, also over restarts of the agent.
    #[serde(rename = "counter")]
    KernelCounter,
    /// Always 1; the labels are the message. Its samples are named `NAME_info`.
    Info,
}

impl MetricKind {
    /// What the names of its samples have after the family's name.
    pub const fn sample_suffix(self) -> &'static str {
        match self {
            Self::Gauge => "",
            Self::Counter | Self::KernelCounter => "_total",
            Self::Info => "_info",
        }
    }
}

/// One metric family.
#[derive(Debug)]
pub struct Metric {
    /// The family's name, without the suffix of its samples.
    pub name: &'static str,
    /// How its values behave.
    pub kind: MetricKind,
    /// In what it is measured; the name ends with it. Empty for a bare number.
    pub unit: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Label names, in the order values are given in.
    pub labels: &'static [&'static str],
}

/// Labels of everything about a container: the engine's id, and the name people use (empty where there is none).
const CONTAINER: &[&str] = &["id", "name"];
/// Labels of everything about a disk: the name below `/sys/block`.
const DISK: &[&str] = &["disk"];
/// A disk and what is done there.
const DISK_OP: &[&str] = &["disk", "op"];
/// A container on a disk.
const CONTAINER_DISK: &[&str] = &["id", "name", "disk"];
/// The same, and what is done there.
const CONTAINER_DISK_OP: &[&str] = &["id", "name", "disk", "op"];

macro_rules! table {
    ($($id:ident = $kind:ident $name:literal $unit:literal $labels:expr, $help:literal;)*) => {
        $(#[doc = $help] pub static $id: Metric =
            Metric { name: $name, kind: MetricKind::$kind, unit: $unit, help: $help, labels: $labels };)*
        /// Every family, in the order they are printed.
        pub static TABLE: &[&Metric] = &[$(&$id),*];
    };
}

table! {
    AGENT = Info "elbowroom" "" &["version", "source"], "The agent: its version, and how it senses.";
    CONTAINERS = Gauge "elbowroom_containers" "" &[], "Containers the agent knows.";
    ATTACHED = Gauge "elbowroom_containers_attached" "" &[], "Containers whose view is mounted.";
    TICKS = Counter "elbowroom_ticks" "" &[], "Updates of views since the policy process started.";
    TICKS_MISSED = Counter "elbowroom_ticks_missed" "" &[], "Updates of views that came too late to be made.";
    CPU_SECONDS = Counter "elbowroom_policy_cpu_seconds" "seconds" &[], "CPU time of the policy process.";

    NODE_CPUS = Gauge "elbowroom_node_cpus" "" &[], "Online CPUs.";
    NODE_CPUS_USED = Gauge "elbowroom_node_cpus_used" "" &[], "CPUs used over the last second.";
    NODE_MEMORY = Gauge "elbowroom_node_memory_bytes" "bytes" &["part"], "The machine's memory: total; used, without page cache that can be reclaimed; reserved; and lendable, which no container uses or can call back.";
    NODE_SHORT = Gauge "elbowroom_node_memory_short" "" &[], "1 while containers compete for memory, else 0.";
    CPU_EFFECTIVE = Gauge "elbowroom_container_cpu_effective" "" CONTAINER, "CPUs the container sees.";
    CPU_LOWER = Gauge "elbowroom_container_cpu_lower" "" CONTAINER, "CPUs it sees at least: its fair share.";
    CPU_UPPER = Gauge "elbowroom_container_cpu_upper" "" CONTAINER, "CPUs it can see at most: its quota and cpuset.";
    CPU_USED = KernelCounter "elbowroom_container_cpu_used_seconds" "seconds" CONTAINER, "CPU time it has used.";
    MEMORY_EFFECTIVE = Gauge "elbowroom_container_memory_effective_bytes" "bytes" CONTAINER, "Memory the container sees.";
    MEMORY_SOFT = Gauge "elbowroom_container_memory_soft_bytes" "bytes" CONTAINER, "Memory it sees at least.";
    MEMORY_HARD = Gauge "elbowroom_container_memory_hard_bytes" "bytes" CONTAINER, "Memory it can have at most: its hard limit.";
    MEMORY_USED = Gauge "elbowroom_container_memory_used_bytes" "bytes" CONTAINER, "Memory charged to it.";

    MEMORY_MODE = Info "elbowroom_memory_governor" "" &["mode"], "What is done with decisions about memory.";
    MEMORY_ENTITLEMENT = Gauge "elbowroom_container_memory_entitlement_bytes" "bytes" CONTAINER, "Its entitlement now.";
    MEMORY_MINIMUM = Gauge "elbowroom_container_memory_minimum_bytes" "bytes" CONTAINER, "Its minimum: memory that is never taken from it.";
    MEMORY_LENT = Gauge "elbowroom_container_memory_lent_bytes" "bytes" CONTAINER, "Memory that it has lent out.";
    MEMORY_SAVED = Gauge "elbowroom_container_memory_saved_bytes" "bytes" CONTAINER, "What saving took of it that did not come back; absent where nothing is saved.";
    MEMORY_COLOUR = Gauge "elbowroom_container_memory_colour" "" &["id", "name", "colour"], "Whether more memory would help it, 1 for its colour, 0 for the others: red needs more, yellow is fine, green: more will not help.";
    MEMORY_FAILED = Counter "elbowroom_container_memory_failed_loans" "" CONTAINER, "Loans of its memory that hurt it.";
    MEMORY_POOL = Gauge "elbowroom_memory_pool_bytes" "bytes" &["path", "part"], "Memory that containers share: its size, what of it is free, what is reserved.";
    MEMORY_RECLAIMED = Counter "elbowroom_memory_reclaimed_bytes" "bytes" &[], "Memory that was taken from containers since the policy process started.";
    MEMORY_ORDERS = Counter "elbowroom_memory_orders" "" &["outcome"], "Orders about memory since the policy process started.";
    MEMORY_TICK = Gauge "elbowroom_memory_tick_seconds" "seconds" &[], "What the last measurement of memory took.";

    DISK_MODE = Info "elbowroom_disk_governor" "" &["mode", "policy"], "What is done with decisions about disks, and by which rule.";
    DISK_CAPACITY_BYTES = Gauge "elbowroom_disk_capacity_bytes_per_second" "bytes_per_second" DISK_OP, "What the disk can do, as far as it has shown.";
    DISK_CAPACITY_OPS = Gauge "elbowroom_disk_capacity_operations_per_second" "operations_per_second" DISK_OP, "What the disk can do, as far as it has shown.";
    DISK_USED = Gauge "elbowroom_disk_used_ratio" "ratio" DISK, "The part of its capacity that was used over the last period.";
    DISK_PROMISED = Gauge "elbowroom_disk_promised_ratio" "ratio" DISK, "Lifelines and reservations together, in parts of its capacity.";
    DISK_QUEUE = Gauge "elbowroom_disk_queue_requests" "requests" DISK, "Mean number of requests under way over the last period.";
    DISK_WAIT = Gauge "elbowroom_disk_wait_seconds" "seconds" DISK, "Mean time a request took over the last period.";
    DISK_BASE_WAIT = Gauge "elbowroom_disk_base_wait_seconds" "seconds" DISK, "What that is on a quiet day.";
    DISK_STATE = Gauge "elbowroom_disk_state" "" &["disk", "state"], "1 for what is going on at the disk, 0 for what is not.";

    IO_BYTES = Gauge "elbowroom_container_disk_bytes_per_second" "bytes_per_second" CONTAINER_DISK_OP, "What the container did on the disk over the last period.";
    IO_OPS = Gauge "elbowroom_container_disk_operations_per_second" "operations_per_second" CONTAINER_DISK_OP, "What the container did on the disk over the last period.";
    IO_USED = Gauge "elbowroom_container_disk_used_ratio" "ratio" CONTAINER_DISK, "The part of the disk the container used.";
    IO_LIFELINE = Gauge "elbowroom_container_disk_lifeline_ratio" "ratio" CONTAINER_DISK, "The part of the disk it is known to need.";
    IO_CAP = Gauge "elbowroom_container_disk_cap_ratio" "ratio" CONTAINER_DISK, "The part of the disk it may take now; absent where that is all of it.";
    IO_ENFORCED = Gauge "elbowroom_container_disk_enforced" "" CONTAINER_DISK, "1 where that cap is in force, 0 where it is only shown.";
    IO_HELD = Gauge "elbowroom_container_disk_held" "" &["id", "name", "disk", "by"], "1 where something holds the container back, by what.";

    LIMITS_HELD = Gauge "elbowroom_limits_held" "" &[], "Limits of the agent's that are in force now.";
    LIMIT_WRITES = Counter "elbowroom_limit_writes" "" &["outcome"], "Attempts to change a limit since the policy process started.";
    DISK_TICK = Gauge "elbowroom_disk_tick_seconds" "seconds" &[], "What the last measurement of disks took.";
    ALERTS = Gauge "elbowroom_alerts" "" &["kind"], "Alerts that last now.";
    ALERTS_BEGUN = Counter "elbowroom_alerts_begun" "" &["kind"], "Alerts that have begun since the policy process started.";
    VERDICT = Gauge "elbowroom_container_verdict" "" &["id", "name", "status"], "How it is doing: 1 for the status of its verdict, 0 for the others.";
    PROBE_STATE = Gauge "elbowroom_container_probe_state" "" &["id", "name", "state"], "Whether what an application said about itself counts: 1 for its state, 0 for the others.";
    PROBE_RECORDS = Counter "elbowroom_container_probe_records" "" &["id", "name", "outcome"], "Records of an application's probe since the policy process started.";
    PROBE_SERVED = Gauge "elbowroom_container_probe_served" "" CONTAINER, "What the application last said it serves, operations per second or a latency.";
    PROBE_OBJECTIVE = Gauge "elbowroom_container_probe_objective" "" CONTAINER, "What is promised, in the unit of what is served.";
    OTLP_PUSHES = Counter "elbowroom_otlp_pushes" "" &["outcome"], "Pushes of metrics by OTLP since the policy process started.";
    RECEIVERS = Counter "elbowroom_receiver_deliveries" "" &["receiver", "outcome"], "Alerts given to receivers since the policy process started.";
}

/// Values of metrics, gathered in any order.
#[derive(Debug, Default)]
pub struct MetricSet {
    /// Per row of [`TABLE`].
    families: Vec<Vec<MetricSample>>,
}

/// One value, with its labels in the order of its metric's.
#[derive(Clone, Debug)]
struct MetricSample {
    labels: Vec<String>,
    value: f64,
}

/// One family with its values, for programs that would rather read JSON.
#[derive(Clone, Debug, Serialize)]
pub struct MetricFamily {
    /// The family's name.
    pub name: &'static str,
    /// How its values behave.
    pub kind: MetricKind,
    /// In what it is measured; empty for a bare number.
    pub unit: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Its values: labels and number.
    pub samples: Vec<(BTreeMap<&'static str, String>, f64)>,
}

impl MetricSet {
    /// Takes a value for a row of the table; `labels` are the values of its label names, in their order. A value that is not
    /// finite is left out.
    pub fn add(&mut self, metric: &'static Metric, labels: &[&str], value: f64) {
        assert_eq!(labels.len(), metric.labels.len(), "{} has the labels {:?}", metric.name, metric.labels);
        let row =
            TABLE.iter().position(|row| std::ptr::eq(*row, metric)).expect("metrics are rows of the table");
        if value.is_finite() {
            self.families.resize(TABLE.len(), Vec::new());
            let labels = labels.iter().map(|label| (*label).to_owned()).collect();
            self.families[row].push(MetricSample { labels, value });
        }
    }

    /// As OpenMetrics text, with the end mark that tells a complete one from a cut one.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (metric, samples) in self.rows() {
            write_family(&mut text, metric, samples).expect("writing to a string does not fail");
        }
        text + "# EOF\n"
    }

    /// The same as a structure.
    pub fn families(&self) -> Vec<MetricFamily> {
        let family = |(metric, samples): (&Metric, &[MetricSample])| MetricFamily {
            name: metric.name,
            kind: metric.kind,
            unit: metric.unit,
            help: metric.help,
            samples: samples
                .iter()
                .map(|s| (metric.labels.iter().copied().zip(s.labels.iter().cloned()).collect(), s.value))
                .collect(),
        };
        self.rows().map(family).collect()
    }

    fn rows(&self) -> impl Iterator<Item = (&'static Metric, &[MetricSample])> {
        let families = TABLE.iter().copied().zip(self.families.iter().map(Vec::as_slice));
        families.filter(|(_, samples)| !samples.is_empty())
    }
}

fn write_family(text: &mut String, metric: &Metric, samples: &[MetricSample]) -> std::fmt::Result {
    let Metric { name, unit, help, .. } = metric;
    let suffix = metric.kind.sample_suffix();
    let (family, kind) = match metric.kind {
        MetricKind::Gauge => (String::from(*name), "gauge"),
        MetricKind::Counter | MetricKind::KernelCounter => (String::from(*name), "counter"),
        // Readers of the text format before OpenMetrics, as node_exporter's textfile collector, refuse a page that has the type `info`.
        MetricKind::Info => (format!("{name}{suffix}"), "gauge"),
    };
    writeln!(text, "# TYPE {family} {kind}")?;
    if !unit.is_empty() {
        writeln!(text, "# UNIT {family} {unit}")?;
    }
    writeln!(text, "# HELP {family} {}", EscapedText(help))?;
    for sample in samples {
        write!(text, "{name}{suffix}")?;
        for (n, (name, value)) in metric.labels.iter().zip(&sample.labels).enumerate() {
            write!(
                text,
                "{}{name}=\"{}\"",
                if n == 0 { '{' } else { ',' },
                EscapedText(&visible_label(value))
            )?;
        }
        writeln!(text, "{} {}", if metric.labels.is_empty() { "" } else { "}" }, sample.value)?;
    }
    Ok(())
}

/// A label's value in which what a terminal obeys shows as its escape, but for newlines, which OpenMetrics escapes.
fn visible_label(value: &str) -> Cow<'_, str> {
    match value.contains(|c| c != '\n' && is_hidden(c)) {
        true => Cow::Owned(
            value.split('\n').map(|line| Visible::line(line).to_string()).collect::<Vec<_>>().join("\n"),
        ),
        false => Cow::Borrowed(value),
    }
}

/// With the three characters escaped that OpenMetrics escapes, in label values and help texts alike.
struct EscapedText<'a>(&'a str);

impl fmt::Display for EscapedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            c => f.write_char(c),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_obey_openmetrics_and_are_there_once() {
        let mut names = BTreeSet::new();
        for metric in TABLE {
            let word = |text: &str| {
                text.starts_with(|c: char| c.is_ascii_lowercase())
                    && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
            };
            assert!(word(metric.name) && metric.labels.iter().all(|label| word(label)), "{metric:?}");
            assert!(metric.name.starts_with("elbowroom"), "{metric:?}");
            assert!(
                metric.unit.is_empty() || metric.name.ends_with(&format!("_{}", metric.unit)),
                "{metric:?}"
            );
            for reserved in ["_total", "_info", "_created", "_bucket", "_count", "_sum"] {
                assert!(!metric.name.ends_with(reserved), "{metric:?}");
            }
            assert!(metric.kind != MetricKind::Info || metric.unit.is_empty(), "{metric:?}");
            assert!(metric.help.ends_with('.'), "{metric:?}");
            assert!(names.insert(metric.name), "{metric:?} is there twice");
        }
    }

    #[test]
    fn a_family_has_its_head_once_however_its_values_come() {
        let mut page = MetricSet::default();
        page.add(&MEMORY_USED, &["0123", "web"], 4096.0);
        page.add(&TICKS, &[], 7.0);
        page.add(&MEMORY_USED, &["4567", ""], 0.5);
        let expect = "# TYPE elbowroom_ticks counter\n\
            # HELP elbowroom_ticks Updates of views since the policy process started.\n\
            elbowroom_ticks_total 7\n\
            # TYPE elbowroom_container_memory_used_bytes gauge\n\
            # UNIT elbowroom_container_memory_used_bytes bytes\n\
            # HELP elbowroom_container_memory_used_bytes Memory charged to it.\n\
            elbowroom_container_memory_used_bytes{id=\"0123\",name=\"web\"} 4096\n\
            elbowroom_container_memory_used_bytes{id=\"4567\",name=\"\"} 0.5\n\
            # EOF\n";
        assert_eq!(page.text(), expect);
        let json = serde_json::to_value(page.families()).unwrap();
        assert_eq!(json[1]["samples"][0][0]["name"], "web");
    }

    #[test]
    fn a_page_has_no_type_that_the_text_format_before_openmetrics_lacks() {
        let mut page = MetricSet::default();
        TABLE.iter().for_each(|metric| page.add(metric, &vec!["x"; metric.labels.len()], 1.0));
        let text = page.text();
        assert!(text.contains("# TYPE elbowroom_info gauge\n# HELP elbowroom_info "), "{text}");
        // `MetricType` of prometheus/client_model, which its parser of texts looks types up in.
        let known = ["counter", "gauge", "summary", "untyped", "histogram"];
        for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
            assert!(known.contains(&line.rsplit(' ').next().unwrap()), "{line}");
        }
    }

    #[test]
    fn hostile_names_stay_inside_their_quotes() {
        let mut page = MetricSet::default();
        page.add(&CPU_LOWER, &["a", "\"} 1\nx{y=\"\\"], 1.0);
        let text = page.text();
        assert!(text.contains(r#"{id="a",name="\"} 1\nx{y=\"\\"} 1"#), "{text}");
        assert_eq!(text.lines().count(), 4, "{text}");
    }

    #[test]
    fn what_a_terminal_obeys_is_visible_in_a_page() {
        let mut page = MetricSet::default();
        page.add(&CPU_LOWER, &["a", "w\x1b[2J\n\u{9b}\u{202e}\\"], 1.0);
        let text = page.text();
        assert!(text.contains(r#"name="w\\u{1b}[2J\n\\u{9b}\\u{202e}\\"} 1"#), "{text}");
    }

    #[test]
    fn what_is_not_a_number_is_left_out() {
        let mut page = MetricSet::default();
        page.add(&DISK_USED, &["sda"], f64::NAN);
        page.add(&DISK_USED, &["sdb"], f64::INFINITY);
        assert_eq!(page.text(), "# EOF\n");
    }
}
