//! What [`super::lifeline`] knows of a disk and of the containers on it.

mod base_latency;
mod capacity;

pub(super) use capacity::Capacity;

use super::constants::LifelineConstants;
use super::flow::Flow;
use super::meter::DiskLoad;
use base_latency::BaseLatency;
use elbowroom_types::io::{DiskProperties, IoMax};
use elbowroom_types::unit::Micros;

/// What is known of one disk.
#[derive(Debug)]
pub(super) struct DeviceModel {
    pub(super) k: LifelineConstants,
    pub(super) base_latency: BaseLatency,
    pub(super) capacity: Option<Capacity>,
    /// Since when it is slow.
    pub(super) slow_since: Option<Micros>,
    pub(super) last_harm: Option<Micros>,
    /// For how many seconds limits of ours have held up a container that has none, and when that was last too long.
    pub(super) blocked_seconds: f64,
    pub(super) last_inversion: Option<Micros>,
    /// What the disk does in no container's name, per second.
    pub(super) unattributed: Flow,
    /// Another measurement may show a shortage that this one only hints at.
    pub(super) wants_sample: bool,
    /// Since the last measurement a glance found that the disk had become slow.
    pub(super) alarm: bool,
}

impl DeviceModel {
    /// Nothing known, or only what was learned before.
    pub(super) fn new(disk: &DiskProperties, remembered: Option<IoMax>, k: LifelineConstants) -> Self {
        let operation = k.operation_bytes[usize::from(disk.rotational)];
        Self {
            k,
            base_latency: BaseLatency::new(disk.rotational, k),
            capacity: remembered.and_then(|rates| Capacity::from_remembered(rates, operation)),
            slow_since: None,
            last_harm: None,
            blocked_seconds: 0.0,
            last_inversion: None,
            unattributed: Flow::ZERO,
            wants_sample: false,
            alarm: false,
        }
    }

    pub(super) fn capacity(&self) -> Option<&Capacity> {
        self.capacity.as_ref()
    }

    /// Whether the disk has just become slow and nothing was done about it yet.
    pub(super) fn needs_early_sample(&self) -> bool {
        self.wants_sample
    }

    /// Whether the disk became slow since the last glance, of which this is the load. No decision depends on it, only when the next
    /// measurement is made. One that is known to be slow raises no alarm.
    pub(super) fn becomes_slow(&mut self, load: &DiskLoad) -> bool {
        let slow = self.base_latency.latency_ratio(load).is_some_and(|ratio| ratio > self.k.slow);
        let alarm = slow && self.slow_since.is_none() && load.fills_early_period(&self.k);
        self.alarm |= alarm;
        alarm
    }

    /// What requests of this load take on a quiet day, microseconds.
    pub(super) fn base_wait(&self, load: &DiskLoad) -> f64 {
        self.base_latency.mean_wait(load)
    }
}

/// What is known of one container on one disk.
#[derive(Debug, Default)]
pub(super) struct DiskDemand {
    /// What it is known to need, per second: `L`.
    pub(super) lifeline: Flow,
    /// What it does when it does something: a mean of seconds.
    pub(super) mix: Flow,
    /// Seconds in which it was seen without anything in its way.
    pub(super) seen_seconds: f64,
    /// What it may take, as a cost per second.
    pub(super) cap: Option<f64>,
    /// What it took when another was last short, and when it was cut.
    pub(super) harm_point: f64,
    pub(super) cut_at: Option<Micros>,
    /// For how many seconds it has gone past every limit.
    pub(super) escaping_seconds: f64,
}

impl DiskDemand {
    /// Whether no limit holds it: for ten seconds it has done more than one allows.
    pub(super) fn is_escaping(&self) -> bool {
        self.escaping_seconds >= LifelineConstants::DEFAULT.rise_seconds
    }
}
