//! What a node and its containers did lately, in bounded memory.
//!
//! # Problem
//! People ask what happened before they looked. A number a second, per container, for a day, is more memory than the agent
//! itself uses; and a chart has room for a few hundred points whatever it shows.
//!
//! # Approach
//! Every [`HistorySubject`] has three rings ([`TIERS`]): one point a second for ten minutes, one in ten seconds for two hours, one a
//! minute for a day. Measured values are averaged into the coarser rings; set values (limits, effective values) are kept as they
//! were last. A ring is made of blocks of sixty points. A series that did not change in a block is one number, so limits and sleeping
//! containers cost next to nothing. A question is answered from the finest ring that goes back far
//! enough, thinned to the points asked for.
//!
//! # Terminology
//! A *point* is all series at one moment; a *slot* is a moment divided by a ring's step; a *subject* is the node or a container.
//!
//! # Properties
//! In `tests/history_properties.rs`, each with a test of its name:
//! - `time_in_an_answer_ascends_in_equal_steps_and_fits_the_question`
//! - `memory_is_bounded_whatever_comes`
//! - `what_was_constant_is_answered_exactly_at_every_scale`
//! - `an_average_lies_between_the_least_and_the_most`

mod block;
mod ring;

use crate::fair_queue::FairQueue;
use elbowroom_client::change::Change;
use ring::HistoryRing;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Step of a ring in milliseconds, and how many blocks of [`block::POINTS`] points it keeps.
pub(crate) const TIERS: [(u64, usize); 3] = [(1_000, 10), (10_000, 12), (60_000, 24)];
/// Most containers with a history. Of those that are gone the one that went first makes room for a new one.
pub(crate) const MAX_SUBJECTS: usize = 1_024;
/// Most changes that are kept, of all containers together. With `n` containers that had some, each keeps at least its last
/// `MAX_CHANGES / n`. Changes of nested containers count as the outer container's.
pub const MAX_CHANGES: usize = 8_192;
/// Most changes in one answer: the newest.
pub(crate) const MAX_RESPONSE_CHANGES: usize = 500;
/// Most points in one answer.
pub const MAX_RESPONSE_POINTS: usize = 3_000;
/// How long the history of a container that is gone is kept, in milliseconds: as long as the coarsest ring goes back.
const RETENTION_MS: u64 = TIERS[2].0 * TIERS[2].1 as u64 * block::POINTS as u64;

/// One number of a point. The names are those of the answer's `series`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it; units are with `NAMES`")]
pub enum HistorySeries {
    CpuEffective,
    CpuLower,
    CpuUpper,
    CpuUsed,
    MemoryEffective,
    MemorySoft,
    MemoryHard,
    MemoryUsed,
    DiskRead,
    DiskWrite,
    MemoryLent,
    MemoryEntitlement,
    CpuThrottled,
    CpuPressure,
    MemoryPressure,
    IoPressure,
    MemoryRefault,
    OomKills,
}

/// How many series there are.
pub(crate) const SERIES_COUNT: usize = 18;
/// Their names, in the order of [`HistorySeries`]. `cpu_*` are CPUs, `memory_*` bytes, `disk_*` bytes per second over all disks,
/// `*_pressure` the part of the time that a task waited, `memory_refault` bytes per second, `oom_kills` how many there were so far.
pub(crate) const SERIES_NAMES: [&str; SERIES_COUNT] = [
    "cpu_effective",
    "cpu_lower",
    "cpu_upper",
    "cpu_used",
    "memory_effective",
    "memory_soft",
    "memory_hard",
    "memory_used",
    "disk_read",
    "disk_write",
    "memory_lent",
    "memory_entitlement",
    "cpu_throttled",
    "cpu_pressure",
    "memory_pressure",
    "io_pressure",
    "memory_refault",
    "oom_kills",
];

/// Whether a series moves by itself, so that an average says more than the last value.
const fn is_averaged(series: usize) -> bool {
    series == HistorySeries::CpuUsed as usize
        || series == HistorySeries::MemoryUsed as usize
        || series == HistorySeries::DiskRead as usize
        || series == HistorySeries::DiskWrite as usize
        || series == HistorySeries::CpuThrottled as usize
        || series == HistorySeries::CpuPressure as usize
        || series == HistorySeries::MemoryPressure as usize
        || series == HistorySeries::IoPressure as usize
        || series == HistorySeries::MemoryRefault as usize
}

/// All series at one moment. `None` where a number is not known. Single precision: charts need no more, and it is half the
/// memory; whole numbers are exact up to 16 million, memory to a part in ten million.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HistoryPoint([Option<f32>; SERIES_COUNT]);

impl HistoryPoint {
    /// The same with one number set; what is not finite is not known.
    pub fn with(mut self, series: HistorySeries, value: Option<f64>) -> Self {
        self.0[series as usize] = value.filter(|value| value.is_finite()).map(|value| value as f32);
        self
    }
}

/// A question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Beginning, in milliseconds since 1970.
    pub from: u64,
    /// End.
    pub to: u64,
    /// Most points of the answer; 1 to [`MAX_RESPONSE_POINTS`].
    pub points: usize,
}

/// The answer, by column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HistoryResponse {
    /// The container's identifier; none for the node.
    pub container: Option<String>,
    /// Time between two points, in milliseconds.
    pub step_ms: u64,
    /// When each point begins, in milliseconds since 1970.
    pub time: Vec<u64>,
    /// The series by name, each as long as `time`; `null` where nothing is known.
    pub series: BTreeMap<String, Vec<Option<f32>>>,
    /// What changed in that time, oldest first, at most [`MAX_RESPONSE_CHANGES`].
    pub changes: Vec<Change>,
}

/// The rings of one node or container.
#[derive(Clone, Debug)]
struct HistorySubject {
    rings: [HistoryRing; TIERS.len()],
    /// When it was last heard of.
    last_seen: u64,
}

impl HistorySubject {
    fn new() -> Self {
        Self { rings: TIERS.map(|(step_ms, blocks)| HistoryRing::new(step_ms, blocks)), last_seen: 0 }
    }

    fn record(&mut self, at: u64, point: &HistoryPoint) {
        self.last_seen = at;
        self.rings.iter_mut().for_each(|ring| ring.record(at, &point.0));
    }

    fn allocated_bytes(&self) -> usize {
        size_of::<Self>() + self.rings.iter().map(HistoryRing::allocated_bytes).sum::<usize>()
    }
}

/// The history of a node and of its containers.
#[derive(Clone, Debug)]
pub struct HistoryStore {
    node: HistorySubject,
    containers: BTreeMap<String, HistorySubject>,
    changes: FairQueue<Change, MAX_CHANGES>,
    last_recorded: u64,
}

impl Default for HistoryStore {
    fn default() -> Self {
        Self {
            node: HistorySubject::new(),
            containers: BTreeMap::new(),
            changes: FairQueue::default(),
            last_recorded: 0,
        }
    }
}

impl HistoryStore {
    /// Takes what a moment says, `at` milliseconds since 1970, of the node and of every container. Moments that are older than
    /// one before are left out; after a clock was set back by more than the finest ring is long, everything begins anew.
    pub fn record<'a>(
        &mut self,
        at: u64,
        node: &HistoryPoint,
        containers: impl Iterator<Item = (&'a str, HistoryPoint)>,
    ) {
        if at < self.last_recorded {
            if self.last_recorded - at < TIERS[0].0 * (TIERS[0].1 * block::POINTS) as u64 {
                return;
            }
            *self = Self::default();
        }
        let before = std::mem::replace(&mut self.last_recorded, at);
        self.node.record(at, node);
        for (id, point) in containers {
            if !self.containers.contains_key(id) && self.has_room(before) {
                self.containers.insert(id.to_owned(), HistorySubject::new());
            }
            if let Some(subject) = self.containers.get_mut(id) {
                subject.record(at, &point);
            }
        }
        self.containers.retain(|_, subject| at - subject.last_seen < RETENTION_MS);
        self.changes.retain_from(|change| at.saturating_sub(change.at) < RETENTION_MS);
    }

    /// Takes a change of a container, with the identifier of the outermost container around it. They are expected in the order in which
    /// they happened.
    pub fn record_change(&mut self, tenant: Option<&str>, change: Change) {
        let tenant = tenant.unwrap_or(&change.container).to_owned();
        self.changes.push(&tenant, change);
    }

    /// The history of a container, by its identifier, or of the node. `None`: there is none of that container.
    pub fn query(&self, container: Option<&str>, question: &HistoryQuery) -> Option<HistoryResponse> {
        let subject = match container {
            Some(id) => self.containers.get(id)?,
            None => &self.node,
        };
        let HistoryQuery { from, to, points } = *question;
        let points = points.clamp(1, MAX_RESPONSE_POINTS);
        let ring = subject.rings.iter().find(|ring| ring.covers(from)).unwrap_or(&subject.rings[2]);
        let (step_ms, time, columns) = ring.read(from, to, points);
        let series = SERIES_NAMES.iter().map(|name| (*name).to_owned()).zip(columns).collect();
        let of = |change: &Change| {
            (from..=to).contains(&change.at) && container.is_none_or(|id| change.container == id)
        };
        let mut changes: Vec<Change> =
            self.changes.iter(of).rev().take(MAX_RESPONSE_CHANGES).cloned().collect();
        changes.reverse();
        Some(HistoryResponse { container: container.map(str::to_owned), step_ms, time, series, changes })
    }

    /// What this takes of memory, in bytes: what was allocated, without what the allocator adds.
    pub fn allocated_bytes(&self) -> usize {
        let text = |change: &Change| {
            change.container.capacity()
                + change.name.as_ref().map_or(0, String::capacity)
                + change.what.capacity()
                + change.because.capacity()
        };
        self.node.allocated_bytes()
            + self
                .containers
                .iter()
                .map(|(id, subject)| id.capacity() + subject.allocated_bytes())
                .sum::<usize>()
            + self.changes.allocated_bytes()
            + self.changes.iter(|_| true).map(text).sum::<usize>()
    }

    /// Makes room for one more container, where that is possible: of one that the moment `before` did not name either.
    fn has_room(&mut self, before: u64) -> bool {
        if self.containers.len() < MAX_SUBJECTS {
            return true;
        }
        let gone = self.containers.iter().filter(|(_, subject)| subject.last_seen < before);
        // A container has as many come and go in itself as it likes: those have paths for identifiers.
        let oldest = |(id, subject): &(&String, &HistorySubject)| (!id.starts_with('/'), subject.last_seen);
        let first = gone.min_by_key(oldest).map(|(id, _)| id.clone());
        let Some(id) = first else { return false };
        self.changes.forget(&id);
        self.containers.remove(&id).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_and_goes_in_a_container_takes_no_others_history() {
        let mut history = HistoryStore::default();
        let mut record = |at, names: &[String]| {
            let points = names.iter().map(|name| (name.as_str(), HistoryPoint::default()));
            history.record(at, &HistoryPoint::default(), points);
        };
        record(1_000, &["db".to_owned()]);
        record(2_000, &(1..MAX_SUBJECTS).map(|n| format!("/web/{n}")).collect::<Vec<_>>());
        record(3_000, &[]);
        record(4_000, &["/web/new".to_owned()]);
        assert_eq!(history.containers.len(), MAX_SUBJECTS);
        assert!(history.containers.contains_key("db") && history.containers.contains_key("/web/new"));
    }
}
