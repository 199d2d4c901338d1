//! What one container needs of a disk: its lifeline, what it did lately, what it would take.

use super::super::flow::{Flow, OPS};
use super::capacity::Capacity;
use super::censor::DemandSample;
use elbowroom_types::io::IoMax;
use elbowroom_types::unit::Micros;
use std::collections::VecDeque;

/// Time constants of a lifeline, seconds: up, and down.
const RISE_SECONDS: f64 = 20.0;
const FALL_SECONDS: f64 = 60.0;
/// The first samples count as their mean.
const MIN_SAMPLES: u32 = 10;
/// How much of the disk a lifeline may be short of what is used, beside `P` of itself, to follow it at full speed.
const RISE_MARGIN: f64 = 0.01;
/// A container that did less than this per second, and less than a part of the disk, does not share it.
const ACTIVE_OPERATIONS: f64 = 5.0;
const ACTIVE_SHARE: f64 = 0.01;
/// It counts as there for so long after that.
const ACTIVE_FOR: Micros = Micros::secs(10);
/// One that a limit held back would fill the disk for so long after that, and is owed more than it takes for so long.
const LIMITED_LATELY: Micros = Micros::secs(10);
const OWED_FOR: Micros = Micros::secs(3);
/// A container that gets this part of its lifeline has it.
const SATISFIED_ABOVE: f64 = 0.95;
/// Limits are put on what has more than this part in a container's cost, and stay on while it has half as much.
const LIMITED_COST_PART: f64 = 0.1;
/// How much looser the limit on the lesser of bytes and operations is: it is there for requests of another size.
const LOOSER_FACTOR: f64 = 1.25;
/// The kernel counts operations in slices of 100 ms and drops what is left of one at the end (block/blk-throttle.c,
/// `throtl_trim_slice`): a limit of 29 per second lets 20 through. Limits on operations are multiples of this, and below
/// [`IOPS_EXACT_ABOVE`] of them, where that is coarse, it is bytes that are limited exactly.
const IOPS_GRANULARITY: f64 = 10.0;
const IOPS_EXACT_ABOVE: f64 = 400.0;
/// The smallest cap: bytes and operations per second.
const MIN_BYTES: f64 = (1 << 20) as f64;
const MIN_OPERATIONS: f64 = 100.0;

/// What is known of one container on one disk.
#[derive(Debug, Default)]
pub(in super::super) struct DiskDemand {
    /// What it is known to need, per second: `L`.
    pub(in super::super) lifeline: Flow,
    sample_count: u32,
    recent: [Flow; 3],
    next_recent: usize,
    /// What it does when it does something: an average of seconds.
    mix: Flow,
    last_active: Option<Micros>,
    /// When a limit held it back last.
    last_limited: Option<Micros>,
    /// It waits for I/O.
    pub(super) is_waiting: bool,
    /// It is at a limit of ours, of its user's.
    pub(super) at_agent_limit: bool,
    pub(super) at_user_limit: bool,
    /// It may want more than it got.
    pub(super) is_censored: bool,
    /// What had a limit of ours last.
    limited: [bool; 4],
    /// The most of every second of the last minute, for containers that must not be throttled.
    minute_peaks: Option<VecDeque<(u64, Flow)>>,
    /// For how many seconds it has written past every limit.
    escaping_seconds: f64,
}

impl DiskDemand {
    /// Takes in a period.
    pub(super) fn observe(
        &mut self,
        now: Micros,
        flow: Flow,
        sample: DemandSample,
        at_users: bool,
        keep_minute: bool,
    ) {
        self.recent[self.next_recent] = flow;
        self.next_recent = (self.next_recent + 1) % self.recent.len();
        if flow.operations() > 0.0 {
            let part = if self.mix == Flow::ZERO { 1.0 } else { 0.3 };
            self.mix = self.mix.zip(flow, |shape, x| shape + part * (x - shape));
        }
        self.at_user_limit = at_users;
        self.at_agent_limit = sample.at_limit && !at_users;
        self.is_waiting = sample.is_waiting();
        self.is_censored = sample.is_censored();
        if self.at_agent_limit && self.is_waiting {
            self.last_limited = Some(now);
        }
        if keep_minute {
            self.record_minute(now, flow);
        } else {
            self.minute_peaks = None;
        }
    }

    /// Whether it did enough to count just now, or would have if no limit of ours held it; if so it is there.
    pub(super) fn mark_active(&mut self, now: Micros, flow: Flow, share: f64) {
        if flow.operations() >= ACTIVE_OPERATIONS
            || share >= ACTIVE_SHARE
            || (self.at_agent_limit && self.is_waiting)
        {
            self.last_active = Some(now);
        }
    }

    /// Whether it shares the disk.
    pub(super) fn is_active(&self, now: Micros) -> bool {
        self.used_within(now, ACTIVE_FOR)
    }

    pub(super) fn used_within(&self, now: Micros, time: Micros) -> bool {
        self.last_active.is_some_and(|seen| now.saturating_sub(seen) < time)
    }

    /// How far its lifeline would rise in this period, where it may. A censored sample tells that more is wanted, not that it is
    /// needed: who fills every limit would come to be owed it.
    pub(super) fn lifeline_rise(
        &self,
        flow: Flow,
        seconds: f64,
        elasticity: f64,
        capacity: Option<&Capacity>,
    ) -> Flow {
        if self.is_censored {
            return Flow::ZERO;
        }
        let tracking = 1.0 - (-seconds / RISE_SECONDS).exp();
        let short = flow.saturating_sub(self.lifeline);
        if self.sample_count < MIN_SAMPLES {
            return short.map(|short| short * tracking.max(1.0 / f64::from(self.sample_count + 1)));
        }
        let Some(capacity) = capacity else { return short.map(|short| short * tracking) };
        let most = self.lifeline.zip(capacity.prices(), |now, price| elasticity * now + RISE_MARGIN / price);
        short.zip(most, |short, most| tracking * short.min(most))
    }

    /// Moves the lifeline: up by this much, down with what is used unless the sample is censored.
    pub(super) fn move_lifeline(&mut self, flow: Flow, seconds: f64, rise: Flow) {
        if flow.operations() > 0.0 && !self.is_censored {
            self.sample_count = self.sample_count.saturating_add(1);
        }
        let tracking = 1.0 - (-seconds / FALL_SECONDS).exp();
        let fall = if self.is_censored {
            Flow::ZERO
        } else {
            self.lifeline.saturating_sub(flow).map(|over| over * tracking)
        };
        self.lifeline = self.lifeline.plus(rise).saturating_sub(fall);
    }

    /// Whether its lifeline rests on enough samples.
    pub(super) fn is_known(&self) -> bool {
        self.sample_count >= MIN_SAMPLES
    }

    /// The part of the disk it used at most over the last periods.
    pub(super) fn peak_share(&self, capacity: &Capacity) -> f64 {
        self.recent.iter().map(|flow| capacity.share(*flow)).fold(0.0, f64::max)
    }

    /// Whether no limit holds it.
    pub(super) fn is_unlimited(&self) -> bool {
        !self.at_agent_limit && !self.at_user_limit
    }

    /// Whether a limit held it back lately.
    pub(super) fn was_limited(&self, now: Micros) -> bool {
        self.limited_within(now, LIMITED_LATELY)
    }

    fn limited_within(&self, now: Micros, time: Micros) -> bool {
        self.last_limited.is_some_and(|then| now.saturating_sub(then) < time)
    }

    /// Whether a limit or the others keep from it what it is owed.
    pub(super) fn wants_more(&self, now: Micros, flow: Flow, capacity: &Capacity) -> bool {
        let short = capacity.share(flow) < SATISFIED_ABOVE * capacity.share(self.lifeline);
        self.is_waiting
            && (self.at_agent_limit || self.limited_within(now, OWED_FOR) || (short && self.is_censored))
    }

    /// What it reads and writes.
    pub(super) fn mix(&self) -> Flow {
        self.mix
    }

    /// The part of the disk that rates not above `limit` allow to what it does.
    pub(super) fn share_within(&self, limit: IoMax, capacity: &Capacity) -> f64 {
        let scale =
            Flow::from(limit).zip(self.mix, |limit, x| if x > 0.0 { limit / x } else { f64::INFINITY });
        let scale = scale.0.into_iter().fold(f64::INFINITY, f64::min);
        if scale.is_finite() { scale * capacity.share(self.mix) } else { f64::INFINITY }
    }

    /// The smallest part of the disk it is ever limited to: 1 MiB and 100 operations per second, and on disks where that is much,
    /// no more than `most`.
    pub(super) fn min_share(&self, capacity: &Capacity, most: f64) -> f64 {
        let cost = capacity.share(self.mix);
        let limits = OPS.into_iter().flat_map(|(bytes, ios)| [(bytes, MIN_BYTES), (ios, MIN_OPERATIONS)]);
        let parts = limits.map(|(k, least)| (self.mix.0[k], least)).filter(|(x, _)| *x > 0.0);
        parts.map(|(x, least)| least / x * cost).fold(0.0, f64::max).min(most)
    }

    /// Limits that hold it to a part of the disk. Only what has a part in its cost is limited: of bytes and operations the dearer
    /// exactly, the other looser. Reads and writes each get as much of it as they have.
    /// Nothing is limited below `floor`.
    pub(super) fn limits_for(&mut self, share: f64, capacity: &Capacity, floor: Flow) -> IoMax {
        let costs = self.mix.zip(capacity.prices(), |x, price| x * price);
        let cost: f64 = costs.0.iter().sum();
        if cost <= 0.0 {
            return IoMax::MAX;
        }
        let spared = self.minute_peaks.as_ref().map_or(Flow::ZERO, |minute| {
            minute.iter().fold(Flow::ZERO, |most, (_, flow)| most.zip(*flow, f64::max)).map(|most| 1.5 * most)
        });
        let floor = floor.zip(spared, f64::max);
        let mut out = Flow([f64::INFINITY; 4]);
        for (bytes, ios) in OPS {
            // As many bytes as the operations of the floor have, and the other way round.
            let size = self.mix.0[bytes] / self.mix.0[ios];
            let least = [floor.0[bytes].max(floor.0[ios] * size), floor.0[ios].max(floor.0[bytes] / size)];
            let coarse = self.mix.0[ios] > 0.0 && share / cost * self.mix.0[ios] < IOPS_EXACT_ABOVE;
            let exact = if coarse || costs.0[bytes] >= costs.0[ios] { bytes } else { ios };
            for (k, least) in [bytes, ios].into_iter().zip(least) {
                let mix = costs.0[k] / cost;
                self.limited[k] = mix
                    > if self.limited[k] { LIMITED_COST_PART / 2.0 } else { LIMITED_COST_PART }
                    || (coarse && k == bytes);
                if self.limited[k] {
                    let slack = if k == exact { 1.0 } else { LOOSER_FACTOR };
                    out.0[k] = (share / cost * self.mix.0[k] * slack).max(least);
                }
            }
            out.0[ios] = (out.0[ios] / IOPS_GRANULARITY).ceil() * IOPS_GRANULARITY;
        }
        out.to_io_max()
    }

    /// Whether this much dirty memory goes past every limit for `seconds` more.
    pub(super) fn record_escape(&mut self, there: bool, seconds: f64) {
        self.escaping_seconds = if there { self.escaping_seconds + seconds } else { 0.0 };
    }

    /// Whether it writes past every limit.
    pub(in super::super) fn is_escaping(&self) -> bool {
        self.escaping_seconds >= 10.0
    }

    fn record_minute(&mut self, now: Micros, flow: Flow) {
        let second = now.get() / 1_000_000;
        let minute = self.minute_peaks.get_or_insert_default();
        minute.retain(|(then, _)| second.abs_diff(*then) < 60);
        match minute.back_mut() {
            Some((then, most)) if *then == second => *most = most.zip(flow, f64::max),
            _ => minute.push_back((second, flow)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::unit::Limit;
    use proptest::prelude::*;

    /// Reads of 4 KiB on a disk that can do 1000 of them a second.
    fn reads(per_second: f64) -> Flow {
        Flow([4096.0 * per_second, 0.0, per_second, 0.0])
    }

    fn capacity() -> Capacity {
        let all = Limit::At(1_000_000_000);
        let parts = IoMax { rbps: all, wbps: all, riops: Limit::At(1000), wiops: Limit::At(1000) };
        Capacity::from_remembered(parts, false).unwrap()
    }

    const QUIET: DemandSample =
        DemandSample { io_stall: Some(0.2), active: true, at_limit: false, saturated: false, blocked: false };
    const HELD: DemandSample = DemandSample { io_stall: Some(0.9), at_limit: true, saturated: true, ..QUIET };

    fn play(need: &mut DiskDemand, samples: impl IntoIterator<Item = (f64, DemandSample)>) {
        let capacity = capacity();
        for (second, (x, sample)) in (0..).zip(samples) {
            need.observe(Micros::secs(second), reads(x), sample, false, false);
            let rise = if sample.saturated {
                Flow::ZERO
            } else {
                need.lifeline_rise(reads(x), 1.0, 0.2, Some(&capacity))
            };
            need.move_lifeline(reads(x), 1.0, rise);
        }
    }

    #[test]
    fn a_lifeline_follows_as_in_the_table() {
        let check = |name, samples: Vec<(f64, DemandSample)>, expect: std::ops::Range<f64>| {
            let mut need = DiskDemand::default();
            play(&mut need, samples);
            let is = capacity().share(need.lifeline);
            assert!(expect.contains(&is), "{name}: {is}");
        };
        let first = vec![(200.0, QUIET); 10];
        check("the first samples are their mean", first.clone(), 0.19..0.21);
        check("a rise is followed slowly", [first.clone(), vec![(400.0, QUIET); 10]].concat(), 0.21..0.26);
        check("and in the end", [first.clone(), vec![(400.0, QUIET); 120]].concat(), 0.36..0.41);
        check("less demand lowers it", [first.clone(), vec![(0.0, QUIET); 60]].concat(), 0.06..0.09);
        check(
            "a starved container still needs it",
            [first.clone(), vec![(10.0, HELD); 600]].concat(),
            0.19..0.21,
        );
        check(
            "a burst on a saturated disk is no need",
            [first, vec![(900.0, HELD); 600]].concat(),
            0.19..0.21,
        );
    }

    #[test]
    fn limits_are_on_what_costs() {
        let mut need = DiskDemand::default();
        need.observe(Micros::ZERO, reads(100.0), QUIET, false, false);
        let max = need.limits_for(0.5, &capacity(), Flow::ZERO);
        assert_eq!(max, IoMax { riops: Limit::At(500), ..IoMax::MAX }, "bytes cost next to nothing here");
        let all = Limit::At(4_096_000);
        let dear = IoMax { rbps: all, wbps: all, riops: Limit::At(1000), wiops: Limit::At(1000) };
        let both = need.limits_for(0.5, &Capacity::from_remembered(dear, false).unwrap(), Flow::ZERO);
        assert_eq!((both.rbps, both.wbps), (Limit::At(1_024_000), Limit::Max));
        assert_eq!(
            DiskDemand::default().limits_for(0.5, &capacity(), Flow::ZERO),
            IoMax::MAX,
            "nobody knows what it will do"
        );
    }

    #[test]
    fn few_operations_are_limited_by_their_bytes() {
        let mut need = DiskDemand::default();
        need.observe(Micros::ZERO, reads(100.0), QUIET, false, false);
        let max = need.limits_for(0.05, &capacity(), Flow::ZERO);
        let (Limit::At(bytes), Limit::At(operations)) = (max.rbps, max.riops) else { panic!("{max:?}") };
        assert_eq!((bytes / 4096, operations), (49, 70), "49.8 of 4 KiB, and a quarter more in tens");
    }

    #[test]
    fn a_container_that_must_not_be_throttled_keeps_half_as_much_again_as_it_did() {
        let mut need = DiskDemand::default();
        for (second, x) in [(0, 900.0), (1, 100.0), (59, 300.0), (60, 100.0)] {
            need.observe(Micros::secs(second), reads(x), QUIET, false, true);
        }
        assert_eq!(need.limits_for(0.1, &capacity(), Flow::ZERO).riops, Limit::At(450));
    }

    #[test]
    fn the_smallest_cap_fits_the_disk() {
        let mut need = DiskDemand::default();
        need.observe(Micros::ZERO, reads(100.0), QUIET, false, false);
        let check = |most, expect: f64| {
            let smallest = need.min_share(&capacity(), most);
            assert!((smallest - expect).abs() < 0.01, "{smallest}");
        };
        check(1.0, 0.256);
        check(0.05, 0.05);
    }

    proptest! {
        #[test]
        fn a_censored_lifeline_never_falls(before in 0.0..1000.0f64, samples in prop::collection::vec(0.0..2000.0f64, 1..50)) {
            let mut need = DiskDemand::default();
            play(&mut need, [(before, QUIET)]);
            for x in samples {
                let lifeline = need.lifeline;
                play(&mut need, [(x, HELD)]);
                prop_assert!(lifeline.0.iter().zip(need.lifeline.0).all(|(was, is)| is >= *was));
            }
        }
    }
}
