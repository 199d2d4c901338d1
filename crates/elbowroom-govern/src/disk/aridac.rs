//! Aridac: the lifeline is the mean of the last samples, the cap is a little above it.
//!
//! # Problem
//! A container that suddenly reads or writes much (an *abruption*) starves its neighbours, whose caps, if they have any,
//! an operator guessed.
//!
//! # Approach
//! Per container and disk a queue of the last `N` utilisations of `MAX_DISK_IO`. Their mean is the *lifeline*, what the
//! container is used to get; `lifeline * (1 + P)` is its cap. A cap comes down as soon as the lifeline does, and goes up only
//! as far as there is idle bandwidth. When the caps add up to more than 1, the disk is promised to more than it can serve:
//! alert.
//!
//! # Terminology
//! *Utilisation*: bytes per second over `MAX_DISK_IO`. *Idle*: the part of `MAX_DISK_IO` that no container used in the last period.
//!
//! Where the paper is silent:
//! - The kernel limits reads and writes each on its own: each has its queue and its cap; utilisation and the sum of caps are
//!   of both.
//! - Until a queue is full there is no cap, for its mean is of the start. A container that never read (or wrote) while its queue
//!   has samples has no cap on that.
//! - A container that stopped has a lifeline of nothing, and a cap of nothing it could never outgrow: caps stay above
//!   [`MIN_CAP`] of the disk.
//! - Idle bandwidth is offered to every container in full, not divided.
//! - A period without a measurement puts nothing into the queue.
//! - Caps that would move by less than 1 % stay where they are.
//!
//! Differs from the paper: nothing known. Its failures are here as well, on purpose. It takes a burst about a minute to
//! get five times what it was used to (`a_burst_takes_a_minute_to_grow_fivefold`). On a disk that becomes slower it
//! learns that all containers need less (`a_slow_disk_is_learned_as_little_demand`).
//!
//! # Properties
//! In `tests/disk_policy_aridac.rs`, each with a test of its name.

use super::flow::{Flow, RBPS, WBPS};
use super::governed_disk::GovernedDisk;
use super::groups::Groups;
use super::member::DesiredLimit;
use super::{AridacSettings, DiskOrder, DiskState, HeldBy, explain};
use crate::alert::conditions::Conditions;
use elbowroom_types::alert::AlertKind;
use elbowroom_types::unit::Micros;
use std::collections::VecDeque;

/// The smallest cap, as a part of the disk.
pub(super) const MIN_CAP: f64 = 0.01;

/// The bounded queues of one container: utilisation by reads and by writes.
#[derive(Debug, Default)]
pub(super) struct UtilisationQueue {
    queue: VecDeque<[f64; 2]>,
    /// The caps, once there are any.
    caps: [Option<f64>; 2],
}

impl UtilisationQueue {
    /// Takes in one utilisation, keeps the last `most`.
    fn push(&mut self, sample: [f64; 2], most: usize) {
        while self.queue.len() >= most.max(1) {
            self.queue.pop_front();
        }
        self.queue.push_back(sample);
    }

    /// The lifelines: means of what is in the queue.
    fn lifelines(&self) -> [f64; 2] {
        let count = self.queue.len().max(1) as f64;
        [0, 1].map(|op| self.queue.iter().map(|sample| sample[op]).sum::<f64>() / count)
    }

    /// Both lifelines, in parts of the disk.
    pub(super) fn lifeline(&self) -> f64 {
        self.lifelines().iter().sum()
    }

    /// Both caps, where there are any.
    pub(super) fn cap(&self) -> Option<f64> {
        self.caps.iter().flatten().copied().reduce(|a, b| a + b)
    }
}

/// `cap_i = lifeline_i * (1 + P)`, which rises from `before` by no more than what is idle.
pub(super) fn cap(lifeline: f64, elasticity: f64, before: Option<f64>, idle: f64) -> f64 {
    let target = (lifeline * (1.0 + elasticity)).max(MIN_CAP);
    before.map_or(target, |before| target.min(before + idle.max(0.0)).max(before.min(target)))
}

/// One period of one disk.
pub(super) fn tick(
    device: &mut GovernedDisk,
    settings: &AridacSettings,
    groups: &Groups,
    alerts: &mut Conditions,
    orders: &mut Vec<DiskOrder>,
) {
    let max_disk_io = settings.max_disk_io.max(1) as f64;
    let elasticity = settings.elasticity.fraction();
    let used = device.members.iter().map(|member| member.flow.bytes() / max_disk_io).sum::<f64>();
    let idle = 1.0 - used;
    let mut promised = 0.0;
    let now = device.load.now;
    let swap = device.disk.swap;
    let number = device.disk.number;
    for member in &mut device.members {
        let full = usize::from(settings.samples.max(1));
        let sample = [RBPS, WBPS].map(|k| member.flow.0[k] / max_disk_io);
        member.samples.push(sample, full);
        let lifelines = member.samples.lifelines();
        for (op, lifeline) in lifelines.into_iter().enumerate() {
            let used = member.samples.queue.iter().any(|sample| sample[op] > 0.0);
            let before = member.samples.caps[op];
            member.samples.caps[op] = ((used || before.is_some()) && member.samples.queue.len() == full)
                .then(|| cap(lifeline, elasticity, before, idle));
        }
        promised += member.samples.cap().unwrap_or(0.0);
        member.held_by = if member.is_at_limit(member.agent_max) {
            HeldBy::Cap
        } else if member.is_at_limit(member.user_max) {
            HeldBy::User
        } else {
            HeldBy::Nothing
        };

        let limit = |op: usize| member.samples.caps[op].map_or(f64::INFINITY, |cap| cap * max_disk_io);
        let max = Flow([limit(0), limit(1), f64::INFINITY, f64::INFINITY]).to_io_max();
        let exempt_reason =
            swap || groups.get(member.group).is_none_or(|known| known.exempt_reason.is_some());
        let wish = if exempt_reason {
            DesiredLimit::NONE
        } else {
            DesiredLimit { share: member.samples.cap(), max, hysteresis: 0.01, ..DesiredLimit::NONE }
        };
        let lifeline = lifelines[0] + lifelines[1];
        let count = member.samples.queue.len();
        let because = || explain::aridac(lifeline, elasticity, count, max_disk_io, idle);
        orders.extend(member.make_order(number, now, &wish, because).map(DiskOrder::Cap));
    }
    device.promised = device.members.iter().map(|member| member.samples.lifeline()).sum();
    let capped = device.members.iter().any(|member| member.samples.cap().is_some());
    device.exempt_reason = swap.then(|| explain::SWAP_EXEMPT.to_owned());
    device.state = if capped { DiskState::Share } else { DiskState::Free };
    let name = &device.disk.name;
    let about = (AlertKind::Overcommit, Some(number), None);
    let text = || explain::aridac_overcommit(name, promised, max_disk_io);
    orders.extend(alerts.set(about, now, promised > 1.0, Micros::ZERO, text).map(DiskOrder::Alert));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps_are_the_papers() {
        let check = |lifeline, before, idle, expect: f64| {
            let cap = cap(lifeline, 0.2, before, idle);
            assert!((cap - expect).abs() < 1e-9, "{lifeline} {before:?} {idle}: {cap}");
        };
        check(0.5, None, 0.0, 0.6);
        check(0.5, Some(0.3), 1.0, 0.6);
        check(0.5, Some(0.3), 0.1, 0.4);
        check(0.5, Some(0.3), 0.0, 0.3);
        check(0.5, Some(0.3), -0.5, 0.3);
        check(0.2, Some(0.5), 0.0, 0.24);
        check(0.0, Some(0.5), 0.0, MIN_CAP);
    }

    #[test]
    fn a_lifeline_is_the_mean_of_the_last_samples() {
        let mut samples = UtilisationQueue::default();
        for sample in [0.9, 0.1, 0.2, 0.3] {
            samples.push([sample, sample / 2.0], 3);
        }
        let [reads, writes] = samples.lifelines();
        assert!((reads - 0.2).abs() < 1e-9 && (writes - 0.1).abs() < 1e-9, "{reads} {writes}");
    }
}
