//! Everything that is wrong, of every source: governors, the doctor, the guard of leases, and the look at the node as a whole.
//!
//! Everything here runs on the policy loop's thread and waits for nothing: receivers have threads of their own, and the doctor is another
//! process ([`super::doctor`]).

use super::doctor::DoctorRun;
use super::names::NameRegistry;
use crate::alerts::ReceiverDispatcher;
use crate::config::{AgentConfig, ContainerSettings};
use anyhow::{Context, Result};
use elbowroom_client::api::{AlertView, AlertsReport, FindingsReport, ReceiverStatus};
use elbowroom_doctor::checks::is_harmful;
use elbowroom_govern::alert::conditions::Conditions;
use elbowroom_govern::alert::outbox::Outbox;
use elbowroom_govern::alert::overload::{OverloadDetector, OverloadSignals};
use elbowroom_govern::alert::registry::AlertRegistry;
use elbowroom_linux::lease::{EndedLease, LeaseEnding, RestoreNotice};
use elbowroom_linux::root::Root;
use elbowroom_linux::{lease, shortage, timer};
use elbowroom_types::alert::{Alert, AlertKind, AlertSubject};
use elbowroom_types::finding::{DoctorFinding, FindingEvidence, Severity};
use elbowroom_types::glob;
use elbowroom_types::sample::{HostEvent, NodeProperties};
use elbowroom_types::unit::Micros;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// How often the node is checked, and notes of the guard are looked for.
const CHECK_INTERVAL: Micros = Micros::secs(1);
/// A finding is over after this many runs without it: with a counter that grows now and then, it is not over in between.
const CLEAR_AFTER_RUNS: u32 = 2;
/// What verdicts tell of within a second, by the same counters; see [`super::verdicts`].
const VERDICT_CHECKS: [&str; 2] = ["oom-killed", "cpu-throttled"];
/// Containers named in an alert about a finding, and lines of evidence in any.
const MAX_NAMED_CONTAINERS: usize = 3;
const MAX_EVIDENCE_LINES: usize = 16;

/// All alerts, and the addressees that are told.
pub(super) struct AlertDispatcher {
    register: AlertRegistry,
    log: Outbox,
    receivers: ReceiverDispatcher,
    overload: OverloadDetector,
    findings: DoctorFindings,
    root: Root,
    node: Option<NodeProperties>,
    /// CPU time used by the machine, and when that was.
    last_cpu_time: Option<(Micros, Micros)>,
    check_at: Micros,
    leases: PathBuf,
    names: NameRegistry,
    /// Whether one began or ended since the last delivery.
    has_news: bool,
}

impl AlertDispatcher {
    /// Starts what the configuration asks for.
    pub(super) fn open(config: &AgentConfig, run_dir: &Path) -> Result<Self> {
        Ok(Self {
            register: AlertRegistry::default(),
            log: Outbox::new(config.alerts.outbox_rule()),
            receivers: ReceiverDispatcher::start(&config.receivers, &config.alerts)
                .context("starting receivers")?,
            overload: OverloadDetector::default(),
            findings: DoctorFindings::new(config),
            root: Root::at(Path::new("/"))?,
            node: None,
            last_cpu_time: None,
            check_at: Micros::ZERO,
            leases: run_dir.join(lease::DIR),
            names: NameRegistry::default(),
            has_news: false,
        })
    }

    /// Learns what things are called.
    pub(super) fn apply(&mut self, event: &HostEvent) {
        self.names.apply(event, timer::now());
        if let HostEvent::Node(node) = event {
            self.node = Some(node.clone());
        }
    }

    /// Takes a beginning or an end.
    pub(super) fn record(&mut self, alert: Alert) {
        self.log.apply(&alert);
        self.receivers.apply(&alert);
        self.register.record(alert);
        self.has_news = true;
    }

    /// Whether [`Self::check_node`] is due.
    pub(super) fn is_due(&self, now: Micros) -> bool {
        now >= self.check_at
    }

    /// Looks at the node as a whole, and for what the guard did.
    pub(super) fn check_node(&mut self, now: Micros, seen: NodeObservation) {
        self.check_at = now.saturating_add(CHECK_INTERVAL);
        let shown = self.register.active().chain(self.register.ended());
        self.names.prune(now, shown.filter_map(|alert| alert.group));
        for note in lease::take_restore_notices(&self.leases) {
            restore_alerts(&note).into_iter().for_each(|alert| self.publish_transition(alert, now));
        }
        if let Some(node) = &self.node {
            let shortage = shortage::read(&self.root);
            let signals = OverloadSignals {
                cpu: shortage.cpu,
                memory: shortage.memory,
                busy: self
                    .last_cpu_time
                    .and_then(|(busy, at)| cpu_utilization(seen.cpu_time, busy, now, at, node)),
                containers: self.names.live_containers(),
                at_lower_bound: seen.at_lower_bound,
                free: seen.mem_free,
                available: shortage.available,
                total: node.mem_total,
                low_mark: node.low_mark,
            };
            self.overload.check(now, &signals).into_iter().for_each(|alert| self.record(alert));
        }
        self.last_cpu_time = Some((seen.cpu_time, now));
    }

    /// Takes what the doctor saw.
    pub(super) fn on_doctor_run(&mut self, looked: DoctorRun) {
        let alerts = self.findings.update(looked, timer::now());
        alerts.into_iter().for_each(|alert| self.record(alert));
    }

    /// The container with this cgroup is gone, and with it what the doctor found only there.
    pub(super) fn remove_container(&mut self, path: &str, now: Micros) {
        let ended = self.findings.forget(path, now);
        ended.into_iter().for_each(|alert| self.record(alert));
    }

    /// Tells every addressee what is due, and whether any began or ended since this was asked last.
    pub(super) fn deliver(&mut self, now: Micros) -> bool {
        let expired = self.register.expire(now);
        self.has_news |= !expired.is_empty();
        for alert in expired {
            self.log.apply(&alert);
            self.receivers.apply(&alert);
        }
        for alert in self.log.due(now) {
            log_alert(&self.view_of(alert));
        }
        let names = &self.names;
        self.receivers.dispatch_due(now, |alert| alert_view(alert, names));
        std::mem::take(&mut self.has_news)
    }

    /// Answer to `Request::Alerts`.
    pub(super) fn report(&self) -> AlertsReport {
        let named = |alert: &Alert| self.view_of(alert.clone());
        AlertsReport {
            lasting: self.register.active().map(named).collect(),
            ended: self.register.ended().map(named).collect(),
            begun: self.register.begun_counts().collect(),
        }
    }

    /// Answer to `Request::DoctorFindings`.
    pub(super) fn findings(&self) -> FindingsReport {
        self.findings.report.clone()
    }

    /// Whether notifications reached each receiver.
    pub(super) fn receivers(&self) -> Vec<ReceiverStatus> {
        self.receivers.status()
    }

    /// Ends the threads of receivers.
    pub(super) fn stop(&mut self) {
        self.receivers.stop();
    }

    /// An alert with the names of what it is about.
    pub(super) fn view_of(&self, alert: Alert) -> AlertView {
        alert_view(alert, &self.names)
    }

    fn publish_transition(&mut self, alert: Alert, now: Micros) {
        self.log.apply(&alert);
        self.receivers.apply(&alert);
        self.register.record_transient(alert, now);
        self.has_news = true;
    }
}

/// What the policy loop knows when the node is checked.
#[derive(Default)]
pub(super) struct NodeObservation {
    /// CPU time used by the machine since it started.
    pub(super) cpu_time: Micros,
    /// `MemFree`.
    pub(super) mem_free: elbowroom_types::unit::Bytes,
    /// Containers that are busy at a lower bound that is below their upper one.
    pub(super) at_lower_bound: Vec<String>,
}

/// What the doctor found, and the alerts made of it: one per check, however many containers it found.
struct DoctorFindings {
    report: FindingsReport,
    conditions: Conditions,
    /// Checks that found something, and in how many looks since they did not.
    absent_runs: BTreeMap<String, u32>,
    /// The cgroups that each alert is about, of those that are only about containers.
    about: BTreeMap<String, BTreeSet<String>>,
    containers: ContainerSettings,
}

impl DoctorFindings {
    fn new(config: &AgentConfig) -> Self {
        let period_usec = config.doctor.enabled.then_some(config.doctor.period.get());
        Self {
            report: FindingsReport { period_usec, ..FindingsReport::default() },
            conditions: Conditions::default(),
            absent_runs: BTreeMap::new(),
            about: BTreeMap::new(),
            containers: config.containers.clone(),
        }
    }

    fn update(&mut self, looked: DoctorRun, now: Micros) -> Vec<Alert> {
        self.report.looked_unix_ms = Some(elbowroom_linux::timer::unix_ms());
        let (findings, cpu) = match looked {
            Ok(found) => found,
            Err(problem) => {
                if self.report.problem.as_ref() != Some(&problem) {
                    tracing::warn!(because = problem, "the doctor could not look");
                }
                self.report.problem = Some(problem);
                return Vec::new();
            }
        };
        (self.report.problem, self.report.cpu_usec) = (None, cpu.get());
        let mut by_check: BTreeMap<&str, Vec<&DoctorFinding>> = BTreeMap::new();
        let is_told = |f: &&DoctorFinding| is_harmful(f) && !VERDICT_CHECKS.contains(&f.check.as_str());
        for finding in findings.iter().filter(is_told).filter(|f| !self.is_exempt(f)) {
            by_check.entry(&finding.check).or_default().push(finding);
        }
        let mut alerts = Vec::new();
        for (check, found) in &by_check {
            self.absent_runs.insert((*check).to_owned(), 0);
            let cgroups: Option<BTreeSet<String>> =
                found.iter().map(|finding| finding.cgroup.clone()).collect();
            match cgroups {
                Some(cgroups) => drop(self.about.insert((*check).to_owned(), cgroups)),
                None => drop(self.about.remove(*check)),
            }
            alerts
                .extend(self.conditions.raise(check_subject(check), now, Micros::ZERO, || summarize(found)));
        }
        for (check, away) in &mut self.absent_runs {
            if !by_check.contains_key(check.as_str()) {
                *away += 1;
                if *away >= CLEAR_AFTER_RUNS {
                    alerts.extend(self.conditions.clear(&check_subject(check), now));
                }
            }
        }
        self.absent_runs.retain(|_, away| *away < CLEAR_AFTER_RUNS);
        self.about.retain(|check, _| self.absent_runs.contains_key(check));
        self.report.findings = findings;
        alerts
    }

    /// A container is gone: what was found in no other is over, and not only when the doctor looks again.
    fn forget(&mut self, path: &str, now: Micros) -> Vec<Alert> {
        let mut ended = Vec::new();
        self.about.retain(|check, cgroups| {
            cgroups.remove(path);
            if cgroups.is_empty() {
                ended.extend(self.conditions.end(&check_subject(check), now));
            }
            !cgroups.is_empty()
        });
        ended
    }

    fn is_exempt(&self, finding: &DoctorFinding) -> bool {
        let name = finding.container.as_deref();
        self.containers.exclude.iter().any(|pattern| name.is_some_and(|name| glob::matches(pattern, name)))
    }
}

fn check_subject(check: &str) -> AlertSubject {
    AlertSubject { topic: Some(check.to_owned()), ..AlertSubject::node(AlertKind::Finding) }
}

/// What is said of one check; the worst finding comes first.
fn summarize(found: &[&DoctorFinding]) -> (Severity, String, Vec<FindingEvidence>) {
    let worst = found[0];
    let names: Vec<&str> =
        found.iter().filter_map(|f| f.container.as_deref()).take(MAX_NAMED_CONTAINERS).collect();
    let who = match (names.len(), found.len()) {
        (0, _) => "this host".to_owned(),
        (1, _) => names[0].to_owned(),
        (n, all) if all > n => format!("{} and {} more", names.join(", "), all - n),
        _ => names.join(", "),
    };
    let way_out = if worst.fix.is_some() { "fix" } else { "help" };
    let text = format!("{who}: {} (`elbowroom doctor` says what would {way_out})", worst.sentence);
    (worst.severity, text, worst.evidence.iter().take(MAX_EVIDENCE_LINES).cloned().collect())
}

/// The part of all CPU time that was used between two looks.
fn cpu_utilization(
    busy: Micros,
    before: Micros,
    now: Micros,
    at: Micros,
    node: &NodeProperties,
) -> Option<f64> {
    let elapsed = now.saturating_sub(at).get().checked_mul(node.online.count().into()).filter(|n| *n > 0)?;
    Some(busy.saturating_sub(before).get() as f64 / elapsed as f64)
}

/// The alerts about what the guard did.
fn restore_alerts(note: &RestoreNotice) -> Vec<Alert> {
    let told = |kind, is: &dyn Fn(&LeaseEnding) -> bool, text: &dyn Fn(usize) -> String| {
        let leases: Vec<&EndedLease> = note.leases.iter().filter(|ended| is(&ended.fate)).collect();
        let line = |ended: &&EndedLease| FindingEvidence {
            file: ended.knob.to_string(),
            value: match &ended.fate {
                LeaseEnding::Foreign(found) => found.to_string(),
                LeaseEnding::Failed(why) => why.clone(),
                LeaseEnding::Restored | LeaseEnding::Already | LeaseEnding::Gone => ended.before.to_string(),
            },
        };
        let evidence: Vec<FindingEvidence> = leases.iter().take(MAX_EVIDENCE_LINES).map(line).collect();
        let subject = AlertSubject { topic: Some("guard".to_owned()), ..AlertSubject::node(kind) };
        (!leases.is_empty()).then(|| Alert { evidence, ..Alert::new(subject, note.at, text(leases.len())) })
    };
    let limits = |n| if n == 1 { "a limit".to_owned() } else { format!("{n} limits") };
    [
        told(AlertKind::LeaseRestored, &|fate| *fate == LeaseEnding::Restored, &|n| {
            format!(
                "{} of ours taken off and what was there before put back, because the process that held them died or hung: its \
                 end is in the agent's log",
                limits(n)
            )
        }),
        told(AlertKind::ForeignWriter, &|fate| matches!(fate, LeaseEnding::Foreign(_)), &|n| {
            format!("{} of ours had been changed by another program when it was to be taken off: left as it is", limits(n))
        }),
        told(AlertKind::LeaseStuck, &|fate| matches!(fate, LeaseEnding::Failed(_)), &|n| {
            format!("{} of ours cannot be taken off: `elbowroom restore` tries again and says why", limits(n))
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn alert_view(alert: Alert, names: &NameRegistry) -> AlertView {
    let disk = alert.disk.and_then(|number| names.disk(number).cloned());
    let container = alert.group.and_then(|group| names.container(group).cloned());
    AlertView::new(alert, disk, container)
}

fn log_alert(view: &AlertView) {
    let (alert, container) = (&view.alert, view.container.as_ref());
    let label = container.map(|c| c.name.as_ref().unwrap_or(&c.id));
    let (kind, topic) = (alert.kind, alert.topic.as_deref());
    match alert.until {
        None => {
            tracing::warn!(%kind, topic, disk = view.disk_name, container = label, because = alert.text, "alert");
        }
        Some(until) => {
            let lasted = until.saturating_sub(alert.since);
            tracing::info!(%kind, topic, disk = view.disk_name, container = label, %lasted, "alert ended");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(check: &str, cgroup: Option<&str>) -> DoctorFinding {
        DoctorFinding {
            check: check.into(),
            cgroup: cgroup.map(Into::into),
            ..DoctorFinding::new(Severity::Warning, "It hurts.")
        }
    }

    #[test]
    fn a_finding_ends_with_the_last_container_that_has_it() {
        let mut findings = DoctorFindings::new(&AgentConfig::default());
        let both = vec![
            found("a", Some("/x")),
            found("a", Some("/y")),
            found("b", Some("/x")),
            found("c", Some("/x")),
            found("c", None),
        ];
        let topics = |alerts: Vec<Alert>| -> Vec<(String, bool)> {
            alerts.into_iter().map(|alert| (alert.topic.clone().unwrap(), alert.is_active())).collect()
        };
        let began = ["a", "b", "c"].map(|topic| (topic.to_owned(), true));
        assert_eq!(topics(findings.update(Ok((both, Micros::ZERO)), Micros::secs(1))), began);
        assert_eq!(topics(findings.forget("/x", Micros::secs(2))), [("b".to_owned(), false)]);
        assert_eq!(topics(findings.forget("/y", Micros::secs(3))), [("a".to_owned(), false)]);
        assert_eq!(findings.forget("/y", Micros::secs(4)), [], "the host's stays");
        // A container of that path is there again.
        let again = vec![found("b", Some("/x"))];
        assert_eq!(
            topics(findings.update(Ok((again, Micros::ZERO)), Micros::secs(5))),
            [("b".to_owned(), true)]
        );
    }
}
