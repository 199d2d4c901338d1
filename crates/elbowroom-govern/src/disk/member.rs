//! One container on one disk: what it does there, its limits, and what was ordered.

use super::flow::{Flow, IoCounters};
use super::model::DiskDemand;
use super::{Cap, DECISION_HISTORY, HeldBy, aridac};
use elbowroom_types::id::{CgroupId, DeviceNumber};
use elbowroom_types::io::{IoLimits, IoMax, LimitWriteFailure};
use elbowroom_types::unit::{Limit, Micros};
use std::collections::VecDeque;

/// A container's limits on a disk are loosened at most this often: once in a period of a second, however much that jitters. A cut does not
/// wait.
const MIN_WRITE_INTERVAL: Micros = Micros::millis(900);
/// A limit that the kernel refused, or that another program wrote over, is tried again this much later. By then the ten minutes
/// that the other program has are over for the ledger too, which may have found its value a tick later.
const CEDED_RETRY: Micros = Micros::secs(602);

/// A container's state on one disk.
#[derive(Debug)]
pub(super) struct DiskMember {
    pub(super) group: CgroupId,
    latest_counters: IoCounters,
    base_counters: IoCounters,
    /// No period of it was measured yet.
    is_new: bool,
    /// What it did over the last period, per second.
    pub(super) flow: Flow,
    /// Its user's own limits.
    pub(super) user_max: IoMax,
    /// What is in force of ours.
    pub(super) agent_max: IoMax,
    /// Why ours are not, and since when.
    pub(super) ceded: Option<(LimitWriteFailure, Micros)>,
    /// The last order.
    pub(super) ordered_max: IoMax,
    ordered_at: Option<Micros>,
    weight: Option<u16>,
    /// The part of the disk that the last order allows.
    pub(super) share: Option<f64>,
    pub(super) held_by: HeldBy,
    pub(super) decisions: VecDeque<Cap>,
    /// What [`super::DiskPolicy::Aridac`] knows of it.
    pub(super) samples: aridac::UtilisationQueue,
    /// What [`super::DiskPolicy::Lifeline`] knows of it.
    pub(super) demand: DiskDemand,
}

/// Limits that a policy would like to see on a container.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DesiredLimit {
    /// The part of the disk they allow; `None` for all of it.
    pub(super) share: Option<f64>,
    /// The limits.
    pub(super) max: IoMax,
    /// The weight among containers.
    pub(super) weight: Option<u16>,
    /// A change of less than this part is not worth a write.
    pub(super) hysteresis: f64,
    /// It takes something away because another is short of it now.
    pub(super) is_cut: bool,
}

impl DesiredLimit {
    /// No limits.
    pub(super) const NONE: Self =
        Self { share: None, max: IoMax::MAX, weight: None, hysteresis: 0.0, is_cut: false };
}

impl DiskMember {
    /// A container met on a disk. `known` are its counters where they tell of the time before; else they grew since the last
    /// period of the disk.
    pub(super) fn new(group: CgroupId, known: Option<IoCounters>) -> Self {
        Self {
            group,
            latest_counters: known.unwrap_or_default(),
            base_counters: known.unwrap_or_default(),
            is_new: true,
            flow: Flow::ZERO,
            user_max: IoMax::MAX,
            agent_max: IoMax::MAX,
            ceded: None,
            ordered_max: IoMax::MAX,
            ordered_at: None,
            weight: None,
            share: None,
            held_by: HeldBy::Nothing,
            decisions: VecDeque::new(),
            samples: aridac::UtilisationQueue::default(),
            demand: DiskDemand::default(),
        }
    }

    pub(super) fn record_counters(&mut self, counters: IoCounters) {
        self.latest_counters = counters;
    }

    /// Ends a period of this many seconds, in which the whole disk did `most`.
    pub(super) fn measure(&mut self, seconds: f64, most: Flow) {
        self.flow = self.latest_counters.since(self.base_counters).map(|n| n / seconds);
        if self.is_new {
            // It may have counted before it was met.
            self.flow = self.flow.zip(most, f64::min);
            self.is_new = false;
        }
        self.base_counters = self.latest_counters;
    }

    /// Starts anew from here.
    pub(super) fn rebase(&mut self) {
        self.base_counters = self.latest_counters;
        self.flow = Flow::ZERO;
    }

    /// Takes in which limits there are.
    pub(super) fn update_limits(&mut self, limits: &IoLimits, now: Micros) {
        let obeyed = self.agent_max == self.ordered_max && self.ordered_max != IoMax::MAX;
        let changed = limits.ours != self.agent_max && (obeyed || limits.ours != IoMax::MAX);
        if changed || limits.ceded.is_some() {
            // Ours were taken off, refused, or are from before a restart: what is in force counts as the last order.
            self.ordered_max = limits.ours;
        }
        self.user_max = limits.user;
        self.agent_max = limits.ours;
        self.ceded = limits.ceded.map(|why| match self.ceded {
            Some((before, since)) if before == why => (why, since),
            _ => (why, now),
        });
    }

    /// Whether limits of ours may be put on it now.
    pub(super) fn may_limit(&self, now: Micros) -> bool {
        match self.ceded {
            None => true,
            Some((why, since)) => why != LimitWriteFailure::Gone && now.saturating_sub(since) >= CEDED_RETRY,
        }
    }

    /// Whether what was ordered is in force.
    pub(super) fn is_enforced(&self) -> bool {
        self.ordered_max != IoMax::MAX && self.agent_max != IoMax::MAX && self.ceded.is_none()
    }

    /// Whether the flow is at a limit: above 90 % of one.
    pub(super) fn is_at_limit(&self, limit: IoMax) -> bool {
        self.flow.0.iter().zip(Flow::from(limit).0).any(|(x, limit)| *x > 0.9 * limit)
    }

    /// Turns a wish into an order, where it is worth one.
    pub(super) fn make_order(
        &mut self,
        disk: DeviceNumber,
        now: Micros,
        wish: &DesiredLimit,
        because: impl FnOnce() -> String,
    ) -> Option<Cap> {
        self.share = wish.share;
        if !self.may_limit(now) {
            return None;
        }
        let max = without_redundant(wish.max, self.user_max);
        let (limits, weight) = (max == self.ordered_max, wish.weight == self.weight);
        let near = |a: Option<u16>, b: Option<u16>| match (a, b) {
            (Some(a), Some(b)) => f64::from(a.abs_diff(b)) <= (2.0 * wish.hysteresis * f64::from(b)).max(1.0),
            (a, b) => a == b,
        };
        let band = is_close(max, self.ordered_max, wish.hysteresis) && near(wish.weight, self.weight);
        let soon = self.ordered_at.is_some_and(|at| now >= at && now.saturating_sub(at) < MIN_WRITE_INTERVAL);
        let soon = soon && !wish.is_cut;
        if (limits && weight) || (band && !wish.is_cut) || soon {
            return None;
        }
        let cap = Cap { at: now, group: self.group, disk, max, weight: wish.weight, because: because() };
        (self.ordered_max, self.weight, self.ordered_at) = (max, wish.weight, Some(now));
        // Until the answer, which may be that it is ceded once more.
        self.ceded = None;
        if self.decisions.len() == DECISION_HISTORY {
            self.decisions.pop_front();
        }
        self.decisions.push_back(cap.clone());
        Some(cap)
    }
}

/// `ours` without what the user's own limit makes pointless.
fn without_redundant(ours: IoMax, user: IoMax) -> IoMax {
    let limit = |ours: Limit<u64>, user: Limit<u64>| match (ours, user) {
        (Limit::At(a), Limit::At(b)) if b <= a => Limit::Max,
        (ours, _) => ours,
    };
    IoMax {
        rbps: limit(ours.rbps, user.rbps),
        wbps: limit(ours.wbps, user.wbps),
        riops: limit(ours.riops, user.riops),
        wiops: limit(ours.wiops, user.wiops),
    }
}

/// Whether two sets of limits limit the same, and differ by no more than a part.
fn is_close(a: IoMax, b: IoMax, part: f64) -> bool {
    let near = |a: Limit<u64>, b: Limit<u64>| match (a, b) {
        (Limit::Max, Limit::Max) => true,
        (Limit::At(a), Limit::At(b)) => a.abs_diff(b) as f64 <= part * b as f64,
        _ => false,
    };
    near(a.rbps, b.rbps) && near(a.wbps, b.wbps) && near(a.riops, b.riops) && near(a.wiops, b.wiops)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: DeviceNumber = DeviceNumber { major: 8, minor: 0 };

    fn reads(rbps: u64) -> IoMax {
        IoMax { rbps: Limit::At(rbps), ..IoMax::MAX }
    }

    fn wish(rbps: u64) -> DesiredLimit {
        DesiredLimit { share: Some(0.5), max: reads(rbps), weight: None, hysteresis: 0.05, is_cut: false }
    }

    fn orders(member: &mut DiskMember, ms: u64, wish: &DesiredLimit) -> Option<IoMax> {
        member.make_order(DISK, Micros::millis(ms), wish, String::new).map(|cap| cap.max)
    }

    #[test]
    fn only_changes_that_matter_are_ordered_and_no_more_than_one_a_period_but_cuts() {
        let mut member = DiskMember::new(CgroupId(1), None);
        let mut check =
            |ms, wish: DesiredLimit, expect| assert_eq!(orders(&mut member, ms, &wish), expect, "at {ms} ms");
        check(1000, wish(1000), Some(reads(1000)));
        check(3000, wish(1000), None);
        check(4000, wish(1050), None);
        check(5000, DesiredLimit { hysteresis: 0.01, ..wish(1050) }, Some(reads(1050)));
        check(5899, wish(9000), None);
        check(5900, wish(9000), Some(reads(9000)));
        check(6000, DesiredLimit { is_cut: true, ..wish(4000) }, Some(reads(4000)));
        // However small.
        check(6100, DesiredLimit { is_cut: true, ..wish(3990) }, Some(reads(3990)));
        check(6999, DesiredLimit::NONE, None);
        check(7000, DesiredLimit::NONE, Some(IoMax::MAX));
        check(9000, DesiredLimit::NONE, None);
    }

    #[test]
    fn a_limit_that_the_users_own_makes_pointless_is_not_ordered() {
        let mut member = DiskMember::new(CgroupId(1), None);
        member.user_max = reads(500);
        assert_eq!(orders(&mut member, 1000, &wish(1000)), None);
        assert_eq!(orders(&mut member, 2000, &wish(400)), Some(reads(400)));
        assert_eq!(orders(&mut member, 4000, &wish(600)), Some(IoMax::MAX), "the user's is enough again");
    }

    #[test]
    fn a_limit_that_was_taken_off_is_ordered_again_and_one_that_was_changed_is_the_users() {
        let limits = |ours, ceded| IoLimits { group: CgroupId(1), disk: DISK, user: IoMax::MAX, ours, ceded };
        let mut member = DiskMember::new(CgroupId(1), None);
        assert!(orders(&mut member, 1000, &wish(1000)).is_some());
        member.update_limits(&limits(IoMax::MAX, None), Micros::secs(1));
        assert_eq!(orders(&mut member, 3000, &wish(1000)), None, "observing: nothing was ever in force");
        member.update_limits(&limits(reads(1000), None), Micros::secs(3));
        assert!(member.is_enforced());
        member.update_limits(&limits(IoMax::MAX, None), Micros::secs(4));
        assert_eq!(orders(&mut member, 5000, &wish(1000)), Some(reads(1000)));
        member.update_limits(&limits(IoMax::MAX, Some(LimitWriteFailure::Foreign)), Micros::secs(6));
        assert_eq!(orders(&mut member, 607_999, &wish(2000)), None);
        assert_eq!(orders(&mut member, 608_000, &wish(2000)), Some(reads(2000)), "ten minutes are over");
        member.update_limits(&limits(IoMax::MAX, Some(LimitWriteFailure::Refused)), Micros::secs(610));
        assert_eq!(orders(&mut member, 1_211_999, &wish(2000)), None);
        assert_eq!(orders(&mut member, 1_212_000, &wish(2000)), Some(reads(2000)));
        member.update_limits(&limits(IoMax::MAX, Some(LimitWriteFailure::Refused)), Micros::secs(1213));
        assert_eq!(orders(&mut member, 1_814_999, &wish(2000)), None, "as much later again");
        assert_eq!(orders(&mut member, 1_815_000, &wish(2000)), Some(reads(2000)));
    }

    #[test]
    fn limits_from_before_a_restart_are_taken_off() {
        let mut member = DiskMember::new(CgroupId(1), None);
        let limits =
            IoLimits { group: CgroupId(1), disk: DISK, user: IoMax::MAX, ours: reads(7), ceded: None };
        member.update_limits(&limits, Micros::ZERO);
        assert_eq!(orders(&mut member, 1000, &DesiredLimit::NONE), Some(IoMax::MAX));
    }

    #[test]
    fn what_was_counted_before_it_was_met_is_no_more_than_the_disk_did() {
        let mut member = DiskMember::new(CgroupId(1), None);
        member.record_counters(IoCounters::from(&elbowroom_types::io::IoStat {
            rios: 1_000_000,
            ..elbowroom_types::io::IoStat::EMPTY
        }));
        member.measure(1.0, Flow([0.0, 0.0, 10.0, 0.0]));
        assert_eq!(member.flow, Flow([0.0, 0.0, 10.0, 0.0]));
    }
}
