//! The default policy: lifelines that starvation cannot lower, of a disk whose capacity nobody had to guess.
//!
//! # Problem
//! Aridac's idea is right: what a container is used to get is what neighbours must leave it. Three things break it. A sample of
//! a starved container looks like little demand, so on a disk that becomes slower caps fall for ever (its Fig. 8). A burst
//! has to grow into idle bandwidth by 20 % at a time. And the capacity is a constant in a configuration.
//!
//! # Approach
//! One period, in this order:
//! 1. [`saturation`]: is the disk at its end? Its queue is long, requests take much longer than on a quiet day ([`base_latency`]), and
//!    more of them in the queue do not make it do more. Waiting containers (PSI) prove nothing: one synchronous reader waits
//!    60 % of the time on an idle disk, and asynchronous ones never.
//! 2. [`censor`]: which samples may lower a lifeline.
//! 3. [`capacity`]: prices of bytes and operations, from what a saturated disk did; [`operation_cost`]: how many bytes an operation costs.
//! 4. [`demand`]: lifelines move; up only while the disk is not saturated and only as far as there is something to promise
//!    (*admission*), so a burst that hurts others never becomes what it is owed.
//! 5. [`allocate`]: GUARD (everything except the others' lifelines, at once) while there is room, SHARE when there is not. No
//!    limits at all while one container uses the disk, or nobody had to share it for ten minutes.
//! 6. [`inversion_detector`]: limits that hold everybody up while the disk is idle go, and stay away for five minutes.
//!
//! Limits are kept only on containers that use the disk or did so within ten minutes. Containers of class `latency` get none
//! while there is room, and never one below one and a half of what they did within the last minute: a throttled request waits for
//! up to 100 ms. Their lifelines are not lent either.
//!
//! # Terminology
//! *Lifeline* `L`: what a container is known to need, as rates, so that it is a larger part of a slower disk. *Protected*: the
//! lifeline with room to grow, `L * (1 + P)`, or the reservation where that is more. *Kept*: what of that others leave it; the
//! rest is lent while it demonstrably goes unused. *Rest*: what the disk does in no container's name.
//!
//! # Properties
//! In `tests/disk_policy_properties.rs`, each with a test of its name:
//! - `caps_in_share_add_up_to_no_more_than_the_target`
//! - `floors_hold`
//! - `a_censored_lifeline_never_falls`
//! - `the_same_events_give_the_same_orders`
//! - `the_order_of_containers_is_irrelevant`
//! - `observing_decides_as_enforcing_does_given_the_same_limits`
//! - `no_cap_is_pointless_beside_the_users`
//! - `at_most_one_cap_per_container_and_second`
//! - `no_event_whatever_its_numbers_can_panic`

mod allocate;
mod base_latency;
mod capacity;
mod capacity_history;
mod censor;
mod demand;
mod inversion_detector;
mod operation_cost;
mod saturation;
mod tick;

pub(super) use demand::DiskDemand;
pub(super) use tick::tick;

use super::flow::Flow;
use super::meter::DiskLoad;
use allocate::DiskClaimant;
use base_latency::BaseLatency;
use capacity::Capacity;
use elbowroom_types::io::{DiskProperties, IoMax};
use elbowroom_types::unit::Micros;
use inversion_detector::InversionDetector;
use saturation::Saturation;

/// A disk that does this part of the target and makes nobody wait has room for more: after so many seconds of that, and within so many
/// more, half of what the target leaves is given away, too. Where that was its end, the next time waits longer, by so much at most;
/// a tenth of the time that all goes well is taken off that again.
const FULL_USE: f64 = 0.9;
const HEADROOM_DELAY_SECONDS: f64 = 2.0;
const HEADROOM_RAMP_SECONDS: f64 = 4.0;
const HEADROOM_MAX_BACKOFF_SECONDS: f64 = 32.0;
const HEADROOM_BACKOFF_DECAY: f64 = 0.1;

/// What is known of one disk.
#[derive(Debug)]
pub(super) struct DeviceModel {
    base_latency: BaseLatency,
    saturation: Saturation,
    capacity: Option<Capacity>,
    inversion: InversionDetector,
    /// When containers last had to share.
    last_contention: Option<Micros>,
    /// SHARE, not GUARD.
    is_sharing: bool,
    uncontended_ticks: u32,
    /// For how many seconds the disk lately did nearly all it may without making requests wait; negative while that does not count.
    headroom_seconds: f64,
    /// For how many seconds it does not count after the disk was at its end.
    headroom_backoff: f64,
    /// The part of the disk that is given away.
    budget: f64,
    /// The last period was one of a probe.
    was_probing: bool,
    /// What the disk does in no container's name, per second.
    unattributed: Flow,
    /// Kept between periods, so that one allocates nothing.
    claimants: Vec<DiskClaimant>,
    guard_caps: Vec<f64>,
    shares: Vec<f64>,
}

impl DeviceModel {
    /// Nothing known, or only what was learned before.
    pub(super) fn new(disk: &DiskProperties, remembered: Option<IoMax>) -> Self {
        Self {
            base_latency: BaseLatency::new(disk.rotational),
            saturation: Saturation::default(),
            capacity: remembered.and_then(|parts| Capacity::from_remembered(parts, disk.rotational)),
            inversion: InversionDetector::default(),
            last_contention: None,
            is_sharing: false,
            uncontended_ticks: 0,
            headroom_seconds: 0.0,
            headroom_backoff: 0.0,
            budget: 0.0,
            was_probing: false,
            unattributed: Flow::ZERO,
            claimants: Vec::new(),
            guard_caps: Vec::new(),
            shares: Vec::new(),
        }
    }

    /// Takes in a period: whether the disk looked saturated in it, and whether it made requests wait.
    fn update_headroom(&mut self, load: &DiskLoad, target: f64, vote: bool, waits: bool) {
        let capacity = self.capacity.as_ref();
        let probing = capacity.is_some_and(Capacity::is_probing);
        let used = capacity.map_or(0.0, |capacity| capacity.share(load.flow));
        let most = HEADROOM_DELAY_SECONDS + HEADROOM_RAMP_SECONDS;
        self.headroom_seconds = match () {
            // A probe goes to the end by itself.
            () if vote && !probing => {
                if self.budget > target {
                    self.headroom_backoff = (2.0 * self.headroom_backoff)
                        .clamp(HEADROOM_DELAY_SECONDS, HEADROOM_MAX_BACKOFF_SECONDS);
                }
                -self.headroom_backoff
            }
            () if vote || waits => self.headroom_seconds.min(0.0),
            () if used > FULL_USE * target => (self.headroom_seconds + load.seconds).min(most),
            () => self.headroom_seconds.min((self.headroom_seconds - load.seconds).max(0.0)),
        };
        if self.headroom_seconds >= most {
            self.headroom_backoff = (self.headroom_backoff - HEADROOM_BACKOFF_DECAY * load.seconds).max(0.0);
        }
    }

    /// How much of what may be given away beyond the target is.
    fn headroom(&self) -> f64 {
        ((self.headroom_seconds - HEADROOM_DELAY_SECONDS) / HEADROOM_RAMP_SECONDS).clamp(0.0, 1.0)
    }

    pub(super) fn capacity(&self) -> Option<&Capacity> {
        self.capacity.as_ref()
    }

    /// Whether it cannot be told yet if the disk is at its end. Where a probe of ours may have brought it there, it is asked soon
    /// before the probe goes on; where one did, it has ended, and how the disk is without, a whole period tells.
    pub(super) fn needs_early_sample(&self) -> bool {
        match self.was_probing {
            true => self.saturation.is_suspect(),
            false => self.saturation.is_undecided(),
        }
    }

    /// What requests of this load take on a quiet day, microseconds.
    pub(super) fn base_wait(&self, load: &DiskLoad) -> f64 {
        self.base_latency.mean_wait(load)
    }
}
