//! Everything that is wrong, whoever noticed it: governors, the doctor, the guard of leases, and the look at the node as a whole.
//!
//! Everything here runs on the owner's thread and waits for nothing: hooks have threads of their own, and the doctor is another
//! process ([`super::doctor`]).

use super::doctor::Looked;
use super::names::Names;
use crate::alerts::Hooks;
use crate::config::{Config, Containers};
use anyhow::{Context, Result};
use elbowroom_client::api::{AlertView, AlertsReport, FindingsReport, HookStatus};
use elbowroom_doctor::checks::harms;
use elbowroom_govern::alert::conditions::Conditions;
use elbowroom_govern::alert::outbox::Outbox;
use elbowroom_govern::alert::overload::{Overload, Signals};
use elbowroom_govern::alert::register::Register;
use elbowroom_linux::lease;
use elbowroom_linux::lease::{Ended, Fate, Note};
use elbowroom_linux::root::Root;
use elbowroom_linux::{shortage, timer};
use elbowroom_types::alert::{Alert, Kind, Subject};
use elbowroom_types::finding::Finding;
use elbowroom_types::finding::{Evidence, Severity};
use elbowroom_types::glob;
use elbowroom_types::sample::{Event, Node};
use elbowroom_types::unit::Micros;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// How often the node is looked at, and notes of the guard are looked for.
const LOOK_EVERY: Micros = Micros::secs(1);
/// A finding is over when it was not there in so many looks: counters that grow now and then are not over in between.
const LOOKS_AWAY: u32 = 2;
/// Containers named in an alert about a finding, and lines of evidence in any.
const NAMED: usize = 3;
const LINES: usize = 16;

/// All alerts, and who is told.
pub(super) struct AlertsRoom {
    register: Register,
    log: Outbox,
    hooks: Hooks,
    overload: Overload,
    findings: Findings,
    root: Root,
    node: Option<Node>,
    /// CPU time used by the machine, and when that was.
    busy: Option<(Micros, Micros)>,
    look_at: Micros,
    leases: PathBuf,
    names: Names,
}

impl AlertsRoom {
    /// Starts what the configuration asks for.
    pub(super) fn open(config: &Config, run_dir: &Path) -> Result<Self> {
        Ok(Self {
            register: Register::default(),
            log: Outbox::new(config.alerts.rule()),
            hooks: Hooks::start(&config.hooks, &config.alerts).context("starting hooks")?,
            overload: Overload::default(),
            findings: Findings::new(config),
            root: Root::at(Path::new("/"))?,
            node: None,
            busy: None,
            look_at: Micros::ZERO,
            leases: run_dir.join(lease::DIR),
            names: Names::default(),
        })
    }

    /// Learns what things are called.
    pub(super) fn apply(&mut self, event: &Event) {
        self.names.apply(event, timer::now());
        if let Event::Node(node) = event {
            self.node = Some(node.clone());
        }
    }

    /// Takes a beginning or an end.
    pub(super) fn take(&mut self, alert: Alert) {
        self.log.apply(&alert);
        self.hooks.apply(&alert);
        self.register.take(alert);
    }

    /// Whether [`Self::look`] is due.
    pub(super) fn is_due(&self, now: Micros) -> bool {
        now >= self.look_at
    }

    /// Looks at the node as a whole, and for what the guard did.
    pub(super) fn look(&mut self, now: Micros, seen: Seen) {
        self.look_at = now.saturating_add(LOOK_EVERY);
        let shown = self.register.lasting().chain(self.register.ended());
        self.names.forget(now, shown.filter_map(|alert| alert.group));
        for note in lease::take_notes(&self.leases) {
            restored(&note).into_iter().for_each(|alert| self.happened(alert, now));
        }
        if let Some(node) = &self.node {
            let shortage = shortage::read(&self.root);
            let signals = Signals {
                cpu: shortage.cpu,
                memory: shortage.memory,
                busy: self.busy.and_then(|(busy, at)| used(seen.busy, busy, now, at, node)),
                containers: self.names.living(),
                squeezed: seen.squeezed,
                free: seen.free,
                available: shortage.available,
                total: node.mem_total,
                low_mark: node.low_mark,
            };
            self.overload.look(now, &signals).into_iter().for_each(|alert| self.take(alert));
        }
        self.busy = Some((seen.busy, now));
    }

    /// Takes what the doctor saw.
    pub(super) fn looked(&mut self, looked: Looked) {
        let alerts = self.findings.take(looked, timer::now());
        alerts.into_iter().for_each(|alert| self.take(alert));
    }

    /// Tells everybody what is due.
    pub(super) fn tell(&mut self, now: Micros) {
        for alert in self.register.tick(now) {
            self.log.apply(&alert);
            self.hooks.apply(&alert);
        }
        for alert in self.log.due(now) {
            log(&self.name(alert));
        }
        let names = &self.names;
        self.hooks.tell(now, |alert| name(alert, names));
    }

    /// Answer to `Request::Alerts`.
    pub(super) fn report(&self) -> AlertsReport {
        let named = |alert: &Alert| self.name(alert.clone());
        AlertsReport {
            lasting: self.register.lasting().map(named).collect(),
            ended: self.register.ended().map(named).collect(),
            begun: self.register.begun().collect(),
        }
    }

    /// Answer to `Request::Findings`.
    pub(super) fn findings(&self) -> FindingsReport {
        self.findings.report.clone()
    }

    /// What became of what was told.
    pub(super) fn hooks(&self) -> Vec<HookStatus> {
        self.hooks.status()
    }

    /// Ends the threads of hooks.
    pub(super) fn stop(&mut self) {
        self.hooks.stop();
    }

    /// An alert with the names of what it is about.
    pub(super) fn name(&self, alert: Alert) -> AlertView {
        name(alert, &self.names)
    }

    fn happened(&mut self, alert: Alert, now: Micros) {
        self.log.apply(&alert);
        self.hooks.apply(&alert);
        self.register.happened(alert, now);
    }
}

/// What the owner has at hand when the node is looked at.
#[derive(Default)]
pub(super) struct Seen {
    /// CPU time used by the machine since it started.
    pub(super) busy: Micros,
    /// `MemFree`.
    pub(super) free: elbowroom_types::unit::Bytes,
    /// Containers that are busy at a lower bound that is below their upper one.
    pub(super) squeezed: Vec<String>,
}

/// What the doctor found, and the alerts made of it: one per check, however many containers it found.
struct Findings {
    report: FindingsReport,
    conditions: Conditions,
    /// Checks that found something, and in how many looks since they did not.
    away: BTreeMap<String, u32>,
    containers: Containers,
}

impl Findings {
    fn new(config: &Config) -> Self {
        let period_usec = config.doctor.enabled.then_some(config.doctor.period.get());
        Self {
            report: FindingsReport { period_usec, ..FindingsReport::default() },
            conditions: Conditions::default(),
            away: BTreeMap::new(),
            containers: config.containers.clone(),
        }
    }

    fn take(&mut self, looked: Looked, now: Micros) -> Vec<Alert> {
        self.report.looked_unix_ms = Some(elbowroom_linux::timer::unix_ms());
        let (findings, cpu) = match looked {
            Ok(found) => found,
            Err(problem) => {
                if self.report.problem.as_ref() != Some(&problem) {
                    tracing::warn!(because = problem, "the doctor saw nothing");
                }
                self.report.problem = Some(problem);
                return Vec::new();
            }
        };
        (self.report.problem, self.report.cpu_usec) = (None, cpu.get());
        let mut by_check: BTreeMap<&str, Vec<&Finding>> = BTreeMap::new();
        for finding in findings.iter().filter(|f| harms(f) && !self.is_left_alone(f)) {
            by_check.entry(&finding.check).or_default().push(finding);
        }
        let mut alerts = Vec::new();
        for (check, found) in &by_check {
            self.away.insert((*check).to_owned(), 0);
            alerts.extend(self.conditions.there(about(check), now, Micros::ZERO, || said(found)));
        }
        for (check, away) in &mut self.away {
            if !by_check.contains_key(check.as_str()) {
                *away += 1;
                if *away >= LOOKS_AWAY {
                    alerts.extend(self.conditions.away(&about(check), now));
                }
            }
        }
        self.away.retain(|_, away| *away < LOOKS_AWAY);
        self.report.findings = findings;
        alerts
    }

    fn is_left_alone(&self, finding: &Finding) -> bool {
        let name = finding.container.as_deref();
        self.containers.exclude.iter().any(|pattern| name.is_some_and(|name| glob::matches(pattern, name)))
    }
}

fn about(check: &str) -> Subject {
    Subject { topic: Some(check.to_owned()), ..Subject::node(Kind::Finding) }
}

/// What is said of one check; the worst finding comes first.
fn said(found: &[&Finding]) -> (Severity, String, Vec<Evidence>) {
    let worst = found[0];
    let names: Vec<&str> = found.iter().filter_map(|f| f.container.as_deref()).take(NAMED).collect();
    let who = match (names.len(), found.len()) {
        (0, _) => "this host".to_owned(),
        (1, _) => names[0].to_owned(),
        (n, all) if all > n => format!("{} and {} more", names.join(", "), all - n),
        _ => names.join(", "),
    };
    let way_out = if worst.fix.is_some() { "fix" } else { "help" };
    let text = format!("{who}: {} (`elbowroom doctor` says what would {way_out})", worst.sentence);
    (worst.severity, text, worst.evidence.iter().take(LINES).cloned().collect())
}

/// The part of all CPU time that was used between two looks.
fn used(busy: Micros, before: Micros, now: Micros, at: Micros, node: &Node) -> Option<f64> {
    let elapsed = now.saturating_sub(at).get().checked_mul(node.online.count().into()).filter(|n| *n > 0)?;
    Some(busy.saturating_sub(before).get() as f64 / elapsed as f64)
}

/// What is to be told of what the guard did.
fn restored(note: &Note) -> Vec<Alert> {
    let told = |kind, is: &dyn Fn(&Fate) -> bool, text: &dyn Fn(usize) -> String| {
        let leases: Vec<&Ended> = note.leases.iter().filter(|ended| is(&ended.fate)).collect();
        let line = |ended: &&Ended| Evidence {
            file: ended.knob.to_string(),
            value: match &ended.fate {
                Fate::Foreign(found) => found.to_string(),
                Fate::Failed(why) => why.clone(),
                Fate::Restored | Fate::Already | Fate::Gone => ended.before.to_string(),
            },
        };
        let evidence: Vec<Evidence> = leases.iter().take(LINES).map(line).collect();
        let subject = Subject { topic: Some("guard".to_owned()), ..Subject::node(kind) };
        (!leases.is_empty()).then(|| Alert { evidence, ..Alert::new(subject, note.at, text(leases.len())) })
    };
    let limits = |n| if n == 1 { "a limit".to_owned() } else { format!("{n} limits") };
    [
        told(Kind::LeaseRestored, &|fate| *fate == Fate::Restored, &|n| {
            format!(
                "{} of ours taken off and what was there before put back, because the process that held them died or hung: its \
                 end is in the agent's log",
                limits(n)
            )
        }),
        told(Kind::ForeignWriter, &|fate| matches!(fate, Fate::Foreign(_)), &|n| {
            format!("{} of ours had been changed by somebody else when it was to be taken off: left as it is", limits(n))
        }),
        told(Kind::LeaseStuck, &|fate| matches!(fate, Fate::Failed(_)), &|n| {
            format!("{} of ours cannot be taken off: `elbowroom restore` tries again and says why", limits(n))
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn name(alert: Alert, names: &Names) -> AlertView {
    let disk = alert.disk.and_then(|number| names.disk(number).cloned());
    let container = alert.group.and_then(|group| names.container(group).cloned());
    AlertView::new(alert, disk, container)
}

fn log(view: &AlertView) {
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
