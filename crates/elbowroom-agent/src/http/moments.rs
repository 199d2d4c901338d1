//! What snapshots add up to: the newest one, history, and the stream.

use super::answers::{Live, LiveAlert, alerts, cpus};
use crate::history;
use crate::history::{History, Point, Series};
use axum::body::Bytes;
use elbowroom_client::api::{AlertView, ChangeView, ContainerView, MOST_CHANGES, Snapshot};
use elbowroom_client::change;
use elbowroom_client::metrics;
use serde::Serialize;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use tokio::sync::broadcast;

/// Seconds that a reader of the stream may be behind before it is cut off.
const BEHIND: usize = 8;

/// Takes snapshots in the order of time, and answers from them.
pub(crate) struct Moments {
    newest: RwLock<Option<Arc<Moment>>>,
    past: Mutex<Past>,
    stream: broadcast::Sender<Bytes>,
}

/// A snapshot, with its longest answers in words: whoever asks gets the same bytes.
pub(crate) struct Moment {
    /// The snapshot.
    pub(crate) snapshot: Snapshot,
    json: OnceLock<Bytes>,
    containers: OnceLock<Bytes>,
    metrics: OnceLock<Bytes>,
}

#[derive(Default)]
struct Past {
    history: History,
    /// Number of the last change that was taken.
    seen: u64,
    /// The alerts that lasted at the last moment.
    alerts: Vec<AlertView>,
}

impl Past {
    /// The changes that were not taken before.
    fn unseen(&mut self, changes: &[ChangeView]) -> Vec<change::Change> {
        // Numbers begin anew with a boot, and a recording may go over one. What is told again is never so far back.
        let is_old = |change: &ChangeView| change.seq.saturating_add(MOST_CHANGES) < self.seen;
        if !changes.is_empty() && changes.iter().all(is_old) {
            self.seen = 0;
        }
        let new: Vec<&ChangeView> = changes.iter().filter(|change| change.seq > self.seen).collect();
        self.seen = new.iter().map(|change| change.seq).fold(self.seen, u64::max);
        new.into_iter().map(|change| change.change.clone()).collect()
    }
}

impl Moments {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self {
            newest: RwLock::new(None),
            past: Mutex::new(Past::default()),
            stream: broadcast::Sender::new(BEHIND),
        }
    }

    /// Takes the next one.
    pub(crate) fn take(&self, snapshot: Snapshot) {
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        let containers = snapshot.containers.iter().map(|container| (container.id.as_str(), of(container)));
        past.history.take(snapshot.time_unix_ms, &of_node(&snapshot), containers);
        // Nobody listens on most nodes at most times.
        let mut told = (self.stream.receiver_count() > 0).then(|| frame("snapshot", &Live::from(&snapshot)));
        for change in past.unseen(&snapshot.changes) {
            told.iter_mut().for_each(|told| told.extend(frame("change", &change)));
            past.history.changed(change);
        }
        let lasting: Vec<AlertView> = alerts(&snapshot).cloned().collect();
        let before = std::mem::replace(&mut past.alerts, lasting);
        if let Some(mut told) = told {
            let ended = before.iter().filter(|alert| !past.alerts.iter().any(|other| same(alert, other)));
            let began = past.alerts.iter().filter(|alert| !before.iter().any(|other| same(alert, other)));
            let ended = ended.map(|alert| LiveAlert { began: false, alert });
            for alert in ended.chain(began.map(|alert| LiveAlert { began: true, alert })) {
                told.extend(frame("alert", &alert));
            }
            // Fails where the last listener just left.
            let _ = self.stream.send(told.into());
        }
        drop(past);
        let newest =
            Moment { snapshot, json: OnceLock::new(), containers: OnceLock::new(), metrics: OnceLock::new() };
        *self.newest.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(newest));
    }

    /// Takes what changed at a moment of which nothing else is kept.
    pub(crate) fn changed(&self, changes: Vec<ChangeView>) {
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        for change in past.unseen(&changes) {
            past.history.changed(change);
        }
    }

    /// The newest.
    pub(crate) fn newest(&self) -> Option<Arc<Moment>> {
        self.newest.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// See [`History::answer`].
    pub(crate) fn history(
        &self,
        container: Option<&str>,
        question: &history::Question,
    ) -> Option<history::Answer> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner).history.answer(container, question)
    }

    /// Server-sent events from now on, some for each moment that is taken, beginning with how things are.
    pub(crate) fn listen(&self) -> (Option<Bytes>, broadcast::Receiver<Bytes>) {
        let stream = self.stream.subscribe();
        let now = self.newest().map(|moment| frame("snapshot", &Live::from(&moment.snapshot)).into());
        (now, stream)
    }
}

impl Moment {
    /// All of it as JSON.
    pub(crate) fn json(&self) -> Bytes {
        self.json.get_or_init(|| bytes(&self.snapshot)).clone()
    }

    /// The containers as JSON.
    pub(crate) fn containers(&self) -> Bytes {
        self.containers.get_or_init(|| bytes(&self.snapshot.containers)).clone()
    }

    /// As OpenMetrics text.
    pub(crate) fn metrics(&self) -> Bytes {
        self.metrics.get_or_init(|| metrics::page(&self.snapshot).text().into()).clone()
    }
}

/// An answer as JSON.
pub(crate) fn bytes(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value)
        .expect("the API's types are JSON: no map in them has keys that are not strings")
        .into()
}

/// One server-sent event.
fn frame(event: &str, data: &impl Serialize) -> Vec<u8> {
    let mut frame = format!("event: {event}\ndata: ").into_bytes();
    frame.extend(bytes(data));
    frame.extend(b"\n\n");
    frame
}

/// Whether two alerts are the same condition.
fn same(a: &AlertView, b: &AlertView) -> bool {
    a.alert.subject() == b.alert.subject()
}

fn of(container: &ContainerView) -> Point {
    let (view, standing) = (&container.view, container.memory.as_ref());
    let sum = |rate: fn(&elbowroom_govern::disk::Standing) -> u64| {
        Some(container.disk.iter().map(rate).sum::<u64>() as f64)
    };
    Point::default()
        .with(Series::CpuEffective, Some(cpus(view.millicpu.get())))
        .with(Series::CpuLower, Some(view.cpus_lower.into()))
        .with(Series::CpuUpper, Some(view.cpus_upper.into()))
        .with(Series::CpuUsed, Some(cpus(container.cpu_used_millicpu)))
        .with(Series::MemoryEffective, Some(view.memory.get() as f64))
        .with(Series::MemorySoft, Some(view.memory_soft.get() as f64))
        .with(Series::MemoryHard, Some(view.memory_hard.get() as f64))
        .with(Series::MemoryUsed, Some(container.usage.memory.get() as f64))
        .with(Series::DiskRead, sum(|s| s.rbps))
        .with(Series::DiskWrite, sum(|s| s.wbps))
        .with(Series::MemoryLent, standing.map(|s| s.lent.get() as f64))
        .with(Series::MemoryOwed, standing.map(|s| s.entitlement.get() as f64))
}

/// The machine: what it has for bounds, what is used of it, and what its containers have together.
fn of_node(snapshot: &Snapshot) -> Point {
    let (node, disks) = (&snapshot.node, &snapshot.disks.disks);
    let disk = |rate: fn(&elbowroom_govern::disk::DiskView) -> u64| {
        (!disks.is_empty()).then(|| disks.iter().map(rate).sum::<u64>() as f64)
    };
    let memory = |amount: fn(&elbowroom_govern::memory::Standing) -> u64| {
        let standings = || snapshot.containers.iter().filter_map(|container| container.memory.as_ref());
        standings().next().map(|_| standings().map(amount).sum::<u64>() as f64)
    };
    Point::default()
        .with(Series::CpuUpper, Some(node.cpus.into()))
        .with(Series::CpuUsed, node.cpu_used_millicpu.map(cpus))
        .with(Series::MemoryHard, Some(node.memory_total.get() as f64))
        .with(Series::MemoryUsed, node.memory_used().map(|used| used.get() as f64))
        .with(Series::DiskRead, disk(|d| d.rbps))
        .with(Series::DiskWrite, disk(|d| d.wbps))
        .with(Series::MemoryLent, memory(|s| s.lent.get()))
        .with(Series::MemoryOwed, memory(|s| s.entitlement.get()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_client::change::Kind;

    fn changes(numbers: impl IntoIterator<Item = u64>) -> Vec<ChangeView> {
        let change = |at| change::Change {
            at,
            container: "1f".into(),
            name: None,
            kind: Kind::Cpu,
            what: "cpu 1 -> 2".into(),
            because: "busy".into(),
        };
        numbers.into_iter().map(|seq| ChangeView { seq, change: change(seq) }).collect()
    }

    #[test]
    fn a_change_is_taken_once_and_numbers_may_begin_anew_with_a_boot() {
        let mut past = Past::default();
        let mut taken = |numbers: std::ops::Range<u64>| past.unseen(&changes(numbers)).len();
        let far = 40 * 86_400_000_000;
        assert_eq!(taken(far..far + 3), 3);
        assert_eq!(taken(0..0), 0);
        assert_eq!(taken(far + 1..far + 5), 2);
        assert_eq!(taken(7..9), 2, "after a boot");
        assert_eq!(taken(8..10), 1);
    }
}
