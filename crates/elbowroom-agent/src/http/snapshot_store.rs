//! What snapshots add up to: the newest one, history, and the stream.

use super::live::{LiveAlert, LiveSnapshot, cpus, lasting_alerts};
use crate::history;
use crate::history::{HistoryPoint, HistorySeries, HistoryStore};
use axum::body::Bytes;
use elbowroom_client::api::{AgentSnapshot, AlertView, ChangeView, ContainerView, MAX_CHANGES};
use elbowroom_client::metrics;
use serde::Serialize;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use tokio::sync::broadcast;

/// Time between two points of history.
const STEP_MS: u64 = history::TIERS[0].0;
/// A snapshot that comes so long after the one before says nothing of the time between; without news they are five seconds apart.
const QUIET_MS: u64 = 7_000;
/// Seconds that a reader of the stream may be behind before it is cut off.
const MAX_LAG: usize = 8;

/// Takes snapshots in the order of time, and answers from them.
pub(crate) struct SnapshotStore {
    newest: RwLock<Option<Arc<RenderedSnapshot>>>,
    history: Mutex<HistoryState>,
    stream: broadcast::Sender<Bytes>,
}

/// A snapshot, with its longest answers in words: every client gets the same bytes.
pub(crate) struct RenderedSnapshot {
    /// The snapshot.
    pub(crate) snapshot: AgentSnapshot,
    json: OnceLock<Bytes>,
    containers: OnceLock<Bytes>,
    pods: OnceLock<Bytes>,
    metrics: OnceLock<Bytes>,
}

/// The containers of pods, and what is wrong: what a program needs that speaks for the node to Kubernetes. Containers that are inside one
/// are its own affair: it makes as many as it likes.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PodsSnapshot<'a> {
    /// When, in milliseconds since 1970.
    time_unix_ms: u64,
    /// The containers.
    containers: Vec<&'a ContainerView>,
    /// The alerts that last.
    alerts: PodsAlerts<'a>,
}

/// See [`PodsSnapshot::alerts`].
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PodsAlerts<'a> {
    /// Those that last.
    lasting: Vec<&'a AlertView>,
}

impl<'a> From<&'a AgentSnapshot> for PodsSnapshot<'a> {
    fn from(snapshot: &'a AgentSnapshot) -> Self {
        let is_pods = |container: &&ContainerView| {
            container.pod.is_some() && !container.engine.is_nested(&container.id)
        };
        Self {
            time_unix_ms: snapshot.time_unix_ms,
            containers: snapshot.containers.iter().filter(is_pods).collect(),
            alerts: PodsAlerts { lasting: lasting_alerts(snapshot).collect() },
        }
    }
}

#[derive(Default)]
struct HistoryState {
    history: HistoryStore,
    /// Number of the last change that was taken.
    last_change: u64,
    /// The alerts that lasted in the last snapshot.
    alerts: Vec<AlertView>,
}

impl HistoryState {
    /// Takes a moment, as a snapshot has it. In the seconds since the one before, in which there was none, nothing had happened.
    fn record(&mut self, before: Option<&AgentSnapshot>, snapshot: &AgentSnapshot) {
        let now = snapshot.time_unix_ms;
        if let Some(before) = before.filter(|before| now.saturating_sub(before.time_unix_ms) < QUIET_MS) {
            let missing =
                (before.time_unix_ms + STEP_MS..now.saturating_sub(STEP_MS / 2)).step_by(STEP_MS as usize);
            missing.for_each(|at| self.record_at(at, before));
        }
        self.record_at(now, snapshot);
    }

    fn record_at(&mut self, at: u64, snapshot: &AgentSnapshot) {
        let containers =
            snapshot.containers.iter().map(|container| (container.id.as_str(), container_point(container)));
        self.history.record(at, &node_point(snapshot), containers);
    }

    /// The changes that were not taken before.
    fn unseen<'a>(&mut self, changes: &'a [ChangeView]) -> Vec<&'a ChangeView> {
        // Numbers begin anew with a boot, and a recording may go over one. A snapshot that is sent again is never that far back.
        let is_old = |change: &ChangeView| change.seq.saturating_add(MAX_CHANGES) < self.last_change;
        if !changes.is_empty() && changes.iter().all(is_old) {
            self.last_change = 0;
        }
        let new: Vec<&ChangeView> = changes.iter().filter(|change| change.seq > self.last_change).collect();
        self.last_change = new.iter().map(|change| change.seq).fold(self.last_change, u64::max);
        new
    }
}

impl SnapshotStore {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self {
            newest: RwLock::new(None),
            history: Mutex::new(HistoryState::default()),
            stream: broadcast::Sender::new(MAX_LAG),
        }
    }

    /// Takes the next one.
    pub(crate) fn insert(&self, snapshot: AgentSnapshot) {
        let mut state = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = self.newest();
        state.record(newest.as_ref().map(|newest| &newest.snapshot), &snapshot);
        // There is no client on most nodes at most times.
        let mut told = self.has_streams().then(|| sse_event("snapshot", &LiveSnapshot::from(&snapshot)));
        for change in state.unseen(&snapshot.changes) {
            told.iter_mut().for_each(|told| told.extend(sse_event("change", &change.change)));
            state.history.record_change(change.tenant.as_deref(), change.change.clone());
        }
        let lasting: Vec<AlertView> = lasting_alerts(&snapshot).cloned().collect();
        let before = std::mem::replace(&mut state.alerts, lasting);
        if let Some(mut told) = told {
            let ended =
                before.iter().filter(|alert| !state.alerts.iter().any(|other| same_condition(alert, other)));
            let began =
                state.alerts.iter().filter(|alert| !before.iter().any(|other| same_condition(alert, other)));
            let ended = ended.map(|alert| LiveAlert { began: false, alert });
            for alert in ended.chain(began.map(|alert| LiveAlert { began: true, alert })) {
                told.extend(sse_event("alert", &alert));
            }
            // Fails where the last listener just left.
            let _ = self.stream.send(told.into());
        }
        drop(state);
        let newest = RenderedSnapshot {
            snapshot,
            json: OnceLock::new(),
            containers: OnceLock::new(),
            pods: OnceLock::new(),
            metrics: OnceLock::new(),
        };
        *self.newest.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(newest));
    }

    /// Whether anyone reads the stream.
    pub(crate) fn has_streams(&self) -> bool {
        self.stream.receiver_count() > 0
    }

    /// Takes what changed at a moment of which nothing else is kept.
    pub(crate) fn insert_changes(&self, changes: Vec<ChangeView>) {
        let mut state = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        for change in state.unseen(&changes) {
            state.history.record_change(change.tenant.as_deref(), change.change.clone());
        }
    }

    /// The newest.
    pub(crate) fn newest(&self) -> Option<Arc<RenderedSnapshot>> {
        self.newest.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// See [`HistoryStore::query`].
    pub(crate) fn history(
        &self,
        container: Option<&str>,
        question: &history::HistoryQuery,
    ) -> Option<history::HistoryResponse> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).history.query(container, question)
    }

    /// Server-sent events from now on, some for each snapshot that is taken, beginning with how things are.
    pub(crate) fn subscribe(&self) -> (Option<Bytes>, broadcast::Receiver<Bytes>) {
        let stream = self.stream.subscribe();
        let now =
            self.newest().map(|newest| sse_event("snapshot", &LiveSnapshot::from(&newest.snapshot)).into());
        (now, stream)
    }
}

impl RenderedSnapshot {
    /// All of it as JSON.
    pub(crate) fn json(&self) -> Bytes {
        self.json.get_or_init(|| json_bytes(&self.snapshot)).clone()
    }

    /// The containers as JSON.
    pub(crate) fn containers(&self) -> Bytes {
        self.containers.get_or_init(|| json_bytes(&self.snapshot.containers)).clone()
    }

    /// The containers of pods as JSON.
    pub(crate) fn pods(&self) -> Bytes {
        self.pods.get_or_init(|| json_bytes(&PodsSnapshot::from(&self.snapshot))).clone()
    }

    /// As OpenMetrics text.
    pub(crate) fn metrics(&self) -> Bytes {
        self.metrics.get_or_init(|| metrics::metrics_page(&self.snapshot).text().into()).clone()
    }
}

/// An answer as JSON.
pub(crate) fn json_bytes(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value)
        .expect("the API's types are JSON: no map in them has keys that are not strings")
        .into()
}

/// One server-sent event.
fn sse_event(event: &str, data: &impl Serialize) -> Vec<u8> {
    let mut frame = format!("event: {event}\ndata: ").into_bytes();
    frame.extend(json_bytes(data));
    frame.extend(b"\n\n");
    frame
}

/// Whether two alerts are the same condition.
fn same_condition(a: &AlertView, b: &AlertView) -> bool {
    a.alert.subject() == b.alert.subject()
}

fn container_point(container: &ContainerView) -> HistoryPoint {
    let (view, status) = (&container.view, container.memory.as_ref());
    let pressure = status.map(|status| status.pressure);
    let sum = |rate: fn(&elbowroom_govern::disk::ContainerDiskStatus) -> u64| {
        Some(container.disk.iter().map(rate).sum::<u64>() as f64)
    };
    HistoryPoint::default()
        .with(HistorySeries::CpuEffective, Some(cpus(view.millicpu.get())))
        .with(HistorySeries::CpuLower, Some(view.cpus_lower.into()))
        .with(HistorySeries::CpuUpper, Some(view.cpus_upper.into()))
        .with(HistorySeries::CpuUsed, Some(cpus(container.cpu_used_millicpu)))
        .with(HistorySeries::MemoryEffective, Some(view.memory.get() as f64))
        .with(HistorySeries::MemorySoft, Some(view.memory_soft.get() as f64))
        .with(HistorySeries::MemoryHard, Some(view.memory_hard.get() as f64))
        .with(HistorySeries::MemoryUsed, Some(container.usage.memory.get() as f64))
        .with(HistorySeries::DiskRead, sum(|s| s.rbps))
        .with(HistorySeries::DiskWrite, sum(|s| s.wbps))
        .with(HistorySeries::MemoryLent, status.map(|s| s.lent.get() as f64))
        .with(HistorySeries::MemoryEntitlement, status.map(|s| s.entitlement.get() as f64))
        .with(HistorySeries::CpuThrottled, container.cpu_throttled_millicpu.map(cpus))
        .with(HistorySeries::CpuPressure, container.cpu_pressure)
        .with(HistorySeries::MemoryPressure, pressure.and_then(|p| p.memory_some))
        .with(HistorySeries::IoPressure, pressure.and_then(|p| p.io_some))
        .with(HistorySeries::MemoryRefault, pressure.map(|p| p.refault.get() as f64))
        .with(HistorySeries::OomKills, pressure.map(|p| p.oom_kill as f64))
}

/// The machine: what it has for bounds, what is used of it, and what its containers have together.
fn node_point(snapshot: &AgentSnapshot) -> HistoryPoint {
    let (node, disks) = (&snapshot.node, &snapshot.disks.disks);
    let disk = |rate: fn(&elbowroom_govern::disk::DiskView) -> u64| {
        (!disks.is_empty()).then(|| disks.iter().map(rate).sum::<u64>() as f64)
    };
    let memory = |amount: fn(&elbowroom_govern::memory::ContainerMemoryStatus) -> u64| {
        let statuses = || snapshot.containers.iter().filter_map(|container| container.memory.as_ref());
        statuses().next().map(|_| statuses().map(amount).sum::<u64>() as f64)
    };
    HistoryPoint::default()
        .with(HistorySeries::CpuUpper, Some(node.cpus.into()))
        .with(HistorySeries::CpuUsed, node.cpu_used_millicpu.map(cpus))
        .with(HistorySeries::MemoryHard, Some(node.memory_total.get() as f64))
        .with(HistorySeries::MemoryUsed, node.memory_used().map(|used| used.get() as f64))
        .with(HistorySeries::DiskRead, disk(|d| d.rbps))
        .with(HistorySeries::DiskWrite, disk(|d| d.wbps))
        .with(HistorySeries::MemoryLent, memory(|s| s.lent.get()))
        .with(HistorySeries::MemoryEntitlement, memory(|s| s.entitlement.get()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_client::change::{self, Kind};

    fn changes(numbers: impl IntoIterator<Item = u64>) -> Vec<ChangeView> {
        let change = |at| change::Change {
            at,
            container: "1f".into(),
            name: None,
            kind: Kind::Cpu,
            what: "cpu 1 -> 2".into(),
            because: "busy".into(),
        };
        numbers.into_iter().map(|seq| ChangeView { seq, tenant: None, change: change(seq) }).collect()
    }

    #[test]
    fn who_speaks_for_pods_is_told_of_none_that_a_tenant_made() {
        let mut snapshot: AgentSnapshot =
            serde_json::from_str(include_str!("../recorder/tests/snapshot.json")).unwrap();
        let container = &snapshot.containers[0];
        let named = |id: &str, pod: bool| ContainerView {
            id: id.to_owned(),
            pod: pod.then(|| elbowroom_types::container::Pod {
                uid: "u".into(),
                name: None,
                namespace: None,
            }),
            ..container.clone()
        };
        snapshot.containers = vec![named("1f", true), named("/1f/inside", true), named("2e", false)];
        let pods = PodsSnapshot::from(&snapshot);
        assert_eq!(pods.containers.iter().map(|container| container.id.as_str()).collect::<Vec<_>>(), ["1f"]);
        assert_eq!(pods.alerts.lasting.len(), lasting_alerts(&snapshot).count());
    }

    #[test]
    fn a_change_is_taken_once_and_numbers_may_begin_anew_with_a_boot() {
        let mut state = HistoryState::default();
        let mut taken = |numbers: std::ops::Range<u64>| state.unseen(&changes(numbers)).len();
        let far = 40 * 86_400_000_000;
        assert_eq!(taken(far..far + 3), 3);
        assert_eq!(taken(0..0), 0);
        assert_eq!(taken(far + 1..far + 5), 2);
        assert_eq!(taken(7..9), 2, "after a boot");
        assert_eq!(taken(8..10), 1);
    }
}
