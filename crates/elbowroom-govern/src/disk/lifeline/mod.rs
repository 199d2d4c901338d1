//! The default policy: a container that takes more than it needs is cut, only while another is short of what it needs.
//!
//! # Problem
//! Aridac's idea is right: what a container is used to get is what neighbours must leave it. Three things break it. A sample of
//! a starved container looks like little demand, so on a disk that becomes slower caps fall for ever (its Fig. 8). A burst
//! has to grow into idle bandwidth by 20 % at a time. And the capacity is a constant in a configuration.
//!
//! # Rule
//! One period, in this order; the numbers are in [`LifelineConstants`]:
//! 1. *Slow*: requests take twice as long as on a quiet day ([`base_latency`]).
//! 2. *Need*: a lifeline, which follows what a container does, and only while the disk is not slow and the container is at no limit. What
//!    was reserved counts where it is more; for one that came just now, the same part as the others.
//! 3. *Short*: the disk is slow, a container gets less than it needs, has requests under way, and is at no limit. One of class `latency`
//!    is short on every slow disk; one of a higher tier while it waits and a lower one takes something.
//! 4. *Cut*: if any is short, a container that takes more than `need * (1 + P)` loses its part of what is missing; then nothing for
//!    [`LifelineConstants::settle_seconds`], so that the cut can be seen to work. A period in which the disk only became slow tells too
//!    little of the burst: a short one follows, and that one cuts.
//! 5. *Grow*: if none is short, caps grow: halfway back to just below where harm was seen, then by little, beyond it by more. Ten minutes
//!    after the last harm they go.
//! 6. *Priority inversion*: if a container is blocked on a disk that is not slow, while limits of ours bind, it waits for one that we hold back
//!    (a journal, a lock): all limits go for ten minutes.
//!
//! No container is cut on a guess: a disk that hangs, a clock that stops or a container that vanishes leaves caps as they are or lets
//! them grow. On a disk that divides by weight there are weights and no caps.
//!
//! # Terminology
//! *Cost*: bytes per second, where an operation counts as [`LifelineConstants::operation_bytes`]. Caps, needs and what is missing are costs.
//!
//! # Properties
//! In `tests/disk_policy_properties.rs` and `tests/disk_scenarios_random.rs`, each with a test of its name.

mod base_latency;
mod capacity;
mod constants;
mod rule;
mod report;

pub use constants::LifelineConstants;
pub(super) use rule::tick;

use super::flow::Flow;
use super::meter::DiskLoad;
use base_latency::BaseLatency;
use capacity::Capacity;
use elbowroom_types::io::{DiskProperties, IoMax};
use elbowroom_types::unit::Micros;

/// What is known of one disk.
#[derive(Debug)]
pub(super) struct DeviceModel {
    k: LifelineConstants,
    base_latency: BaseLatency,
    capacity: Option<Capacity>,
    /// Since when it is slow.
    slow_since: Option<Micros>,
    last_harm: Option<Micros>,
    /// For how many seconds limits of ours have held up a container that has none, and when that was last too long.
    blocked_seconds: f64,
    last_inversion: Option<Micros>,
    /// What the disk does in no container's name, per second.
    unattributed: Flow,
    /// Another measurement may show a shortage that this one only hints at.
    wants_sample: bool,
    /// Since the last measurement a glance found that the disk had become slow.
    alarm: bool,
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
    mix: Flow,
    /// Seconds in which it was seen without anything in its way.
    seen_seconds: f64,
    /// What it may take, as a cost per second.
    cap: Option<f64>,
    /// What it took when another was last short, and when it was cut.
    harm_point: f64,
    cut_at: Option<Micros>,
    /// For how many seconds it has gone past every limit.
    escaping_seconds: f64,
}

impl DiskDemand {
    /// Whether no limit holds it: for ten seconds it has done more than one allows.
    pub(super) fn is_escaping(&self) -> bool {
        self.escaping_seconds >= LifelineConstants::DEFAULT.rise_seconds
    }
}
