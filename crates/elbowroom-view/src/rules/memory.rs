//! Effective memory: Algorithm 2 of Adaptive Resource Views (section 3.2).
//!
//! # Problem
//! A hard limit is a promise to kill, not a promise of memory: on a machine that is sold twice, programs that size their
//! heaps by it meet reclaim long before. A soft limit is what is left to a container when memory is short. What it can use
//! now lies between the two.
//!
//! # Approach
//! Start at the soft limit. While the machine has free memory and the container fills what it has, grow by a tenth of
//! the rest, if the free memory that is expected to be left stays above the mark where reclaim stops. When reclaim
//! runs, back to the soft limit, where the kernel will push the container anyway.
//!
//! # Terminology
//! - `soft`, `hard`: the bounds; `E`: effective memory.
//! - `c_mem`, `p_mem`: memory charged to the container now and a period ago. It is the kernel's figure, page cache included, as in the
//!   paper.
//! - `c_free`, `p_free`: free memory of the machine now and a period ago.
//! - LOW and HIGH: the sums of the zones' watermarks.
//!
//! On a machine that has been up for a while nearly all memory that programs do not use is page cache, and `MemFree` stays at the
//! watermarks. With [`ViewRules::reclaimable_memory`] `c_free` is what could be had: `MemAvailable`, the kernel's own estimate
//! (mm/show_mem.c `si_mem_available`), less what is protected. What reclaim then takes may still be a file that a neighbour reads again and
//! again, so effective memory also falls back when reclaim hurts ([`reclaim_cost`], `file_refaults.rs`), and grows slowly beyond what hurt
//! (`harm_mark.rs`).
//!
//! The machine is not the only thing that can be sold twice: so can the limit of a group above containers, such as a pod's or
//! `kubepods`'. Growth inside one is bounded by what no container inside has taken or been promised. A group has no way back down,
//! so what is promised stays so: no container meets the group's limit for what another was granted.
//!
//! # Properties
//! - `soft_is_at_most_effective_is_at_most_hard`
//! - `effective_memory_never_grows_while_reclaim_runs`
//! - `growth_leaves_the_high_mark_free`
//! - `a_warm_machine_decides_like_a_fresh_one` (tests/view_warm.rs)
//! - `grants_are_no_more_than_what_is_left`
//! - `what_a_group_grants_fits_into_its_limit` (tests/view_extensions.rs)

use super::ViewRules;
use elbowroom_types::sample::{NodeProperties, ReclaimCounters};
use elbowroom_types::unit::{Bytes, Limit, Micros, Percent};
use serde::{Deserialize, Serialize};

/// The range of effective memory; `soft <= hard`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryBounds {
    /// Where effective memory starts and falls back to.
    pub soft: Bytes,
    /// What it never passes.
    pub hard: Bytes,
}

/// What limits the memory of a container, as settings say it; see [`elbowroom_types::sample::CgroupSettings`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViewMemoryLimits {
    /// Tightest hard limit of the container and its ancestors.
    pub max: Option<Limit<Bytes>>,
    /// Tightest `memory.high` of the container and its ancestors: above it the kernel throttles.
    pub high: Option<Limit<Bytes>>,
    /// The container's own `memory.low`.
    pub low: Option<Limit<Bytes>>,
    /// The container's own v1 soft limit.
    pub soft: Option<Limit<Bytes>>,
}

impl MemoryBounds {
    /// The bounds of a container whose memory others use for a while: it should want no more than `ceiling`, whatever it may.
    /// Nothing is shown as less than a page, for no memory at all is no size.
    #[must_use]
    pub(crate) fn capped_at(self, ceiling: Limit<Bytes>) -> Self {
        let Limit::At(ceiling) = ceiling else { return self };
        let ceiling = ceiling.max(Bytes::kib(4));
        Self { soft: self.soft.min(ceiling), hard: self.hard.min(ceiling) }
    }
}

/// Two successive looks at a container and its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySamplePair {
    /// `c_mem`.
    pub usage: Bytes,
    /// `p_mem`.
    pub usage_before: Bytes,
    /// `c_free`: free memory, or with [`ViewRules::reclaimable_memory`] what could be had.
    pub free: Bytes,
    /// `p_free`.
    pub free_before: Bytes,
}

/// Reclaim hurts where some task waited for memory for more than this part of the time. kswapd's own work counts as waiting, and
/// alone may reach it; so this alone is no hurt.
const STALLED: Percent = Percent::whole(10);
/// Reclaim hurts where this many pages that were in use were lost between two looks at it; 1 MiB.
const LOST_PAGES: u64 = 256;
/// After reclaim hurt, no view grows for this long: programs that shrink need time, and a view that grows at once hurts again.
pub(super) const REST: Micros = Micros::secs(5);

/// What reclaim cost between two looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReclaimCost {
    /// Pages that were in use and were lost.
    pub lost: u64,
    /// Time that some task waited for memory; absent without PSI.
    pub stalled: Option<Micros>,
}

/// What reclaim for the machine cost in `period`, where that hurts: pages in use were swapped out or came back, tasks waited, and most of
/// the search for pages was for the machine. A container that meets its own limit waits and loses pages too, and takes nothing from
/// others.
pub(crate) fn reclaim_cost(
    before: &ReclaimCounters,
    now: &ReclaimCounters,
    period: Micros,
) -> Option<ReclaimCost> {
    let lost = grew(before, now, |counters| counters.lost);
    let stalled = now.stalled.zip(before.stalled).map(|(now, before)| now.saturating_sub(before));
    let waits = stalled.is_none_or(|stalled| STALLED.exceeded_by(stalled.get(), period.get().into()));
    (is_for_the_machine(before, now) && waits && lost >= LOST_PAGES).then_some(ReclaimCost { lost, stalled })
}

/// How much a counter grew.
pub(super) fn grew(before: &ReclaimCounters, now: &ReclaimCounters, of: fn(&ReclaimCounters) -> u64) -> u64 {
    of(now).saturating_sub(of(before))
}

/// Whether pages were looked for, and for the machine at least as much as for limits of cgroups.
fn is_for_the_machine(before: &ReclaimCounters, now: &ReclaimCounters) -> bool {
    let scanned = grew(before, now, |counters| counters.scanned);
    scanned > 0 && scanned >= grew(before, now, |counters| counters.scanned_for_limits)
}

/// What one period of Algorithm 2 decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryStep {
    /// `E` stays.
    Hold,
    /// `E` grows by `by`, which is expected to cost the machine `predict` of its free memory.
    Grow {
        /// The paper's `d`.
        by: Bytes,
        /// The part of it that the container uses already.
        held: Bytes,
        /// The paper's `predict`.
        predict: Bytes,
    },
    /// Reclaim is running: `E` falls back to the soft limit.
    Reset,
}

/// The bounds of effective memory on a machine with `mem_total`, that of the NUMA nodes which the container may use.
///
/// `soft` is the v1 soft limit, else `memory.low`, else `memory.high` where it is lower than the hard limit, else the hard
/// limit itself; the hard limit is never more than the machine has. The paper knows only v1's soft limit, and is silent
/// about the rest:
/// - no soft limit: `soft = hard`. The view is the limit and never moves. Without a promise of less there is no safe
///   smaller number: a container that fills its hard limit is within its rights.
/// - a soft limit of zero, the kernel's default for `memory.low`, is no soft limit: a machine of 0 bytes helps no program.
/// - soft above hard: `soft = hard`, as the hard limit binds first.
pub fn bounds(settings: &ViewMemoryLimits, mem_total: Bytes) -> MemoryBounds {
    let at_hard = |limit: Option<Limit<Bytes>>, hard| limit.unwrap_or(Limit::Max).or(hard);
    let hard = at_hard(settings.max, mem_total);
    let set = |limit: Option<Limit<Bytes>>| limit?.value().filter(|at| *at > Bytes::ZERO);
    let low = match settings.low {
        Some(Limit::Max) => Some(hard),
        other => set(other),
    };
    let soft = set(settings.soft).or(low).or(set(settings.high)).map_or(hard, |soft| soft.min(hard));
    MemoryBounds { soft, hard }
}

/// One period of Algorithm 2.
///
/// ```text
/// if c_free > LOW_MARK:
///     if c_mem/E > 90 % and E < hard:
///         d       = (hard - E) * 10 %
///         predict = (p_free - c_free) / (c_mem - p_mem) * d
///         if c_free - predict > HIGH_MARK: E += d
/// else: E = soft
/// ```
///
/// Differs from the paper, which is silent on all of these:
/// - a negative ratio (others freed memory while this container grew, or took it while it shrank): the period says nothing
///   about what growth costs, so each byte granted counts as one byte of free memory gone. Taken at its word, a negative
///   ratio would predict that growth frees memory.
/// - `c_mem == p_mem`: nothing was learned, and a container that takes nothing needs nothing: hold. With
///   [`ViewRules::memory_promises`], which bounds growth by other means, a byte counts as a byte as above; a program that
///   stops short of what it is shown would otherwise never be shown more, however much becomes free.
/// - `d` is rounded up to whole pages and cut at the rest, so that the hard limit is reached rather than approached.
pub fn step(
    e: Bytes,
    bounds: MemoryBounds,
    samples: &MemorySamplePair,
    node: &NodeProperties,
    policy: &ViewRules,
) -> MemoryStep {
    if samples.free > node.low_mark {
        if is_pressed(samples.usage, e, policy) && e < bounds.hard {
            let by = increment(e, bounds.hard, node.page_size, policy);
            let Some(predict) = predict(samples, by, policy) else { return MemoryStep::Hold };
            if samples.free.get() as u128 > node.high_mark.get() as u128 + predict.get() as u128 {
                let held = samples.usage.saturating_sub(e).min(by);
                return MemoryStep::Grow { by, held, predict };
            }
        }
    } else if e > bounds.soft {
        return MemoryStep::Reset;
    }
    MemoryStep::Hold
}

/// The paper's `c_mem / E > 90 %`.
pub(crate) fn is_pressed(usage: Bytes, e: Bytes, policy: &ViewRules) -> bool {
    policy.memory_pressed.exceeded_by(usage.get(), u128::from(e.get()))
}

/// The paper's `d`, in whole pages.
fn increment(e: Bytes, hard: Bytes, page_size: Bytes, policy: &ViewRules) -> Bytes {
    let rest = hard.saturating_sub(e).get();
    let page = page_size.get().max(1);
    let pages = policy.memory_step.of(rest).div_ceil(page).max(1);
    Bytes(pages.saturating_mul(page).min(rest))
}

/// The paper's `predict`: free memory that goes when the container takes `by` more.
fn predict(samples: &MemorySamplePair, by: Bytes, policy: &ViewRules) -> Option<Bytes> {
    let fell = i128::from(samples.free_before.get()) - i128::from(samples.free.get());
    let grew = i128::from(samples.usage.get()) - i128::from(samples.usage_before.get());
    if grew == 0 {
        return policy.memory_promises.then_some(by);
    }
    if fell.signum() * grew.signum() < 0 {
        return Some(by);
    }
    let predict = fell.unsigned_abs() * u128::from(by.get()) / grew.unsigned_abs();
    Some(Bytes(u64::try_from(predict).unwrap_or(u64::MAX)))
}

/// What a container above its soft limit has been promised and may come for: the part of `E` it has not filled, but no more
/// than the headroom growth keeps ahead of usage. One that has shrunk since does not hold the rest back from others.
pub fn promised(e: Bytes, bounds: MemoryBounds, usage: Bytes, policy: &ViewRules) -> Bytes {
    let unfilled = e.saturating_sub(usage.max(bounds.soft));
    let headroom = e.saturating_sub(Bytes(policy.memory_pressed.of(e.get())));
    unfilled.min(headroom)
}

/// What of its reservation a container has not filled: no other is granted it.
pub fn reserved(soft: Option<Bytes>, usage: Bytes) -> Bytes {
    soft.map_or(Bytes::ZERO, |soft| soft.saturating_sub(usage))
}

/// What a container takes of a group above it whose memory is sold twice: what it uses. With a soft limit it takes all that it
/// is shown or promised, filled or not: nothing in a group takes a grant back. A container without a soft limit draws no line
/// between what it may use and what it is sure of.
pub fn committed(e: Bytes, promised: Option<Bytes>, usage: Bytes) -> Bytes {
    promised.map_or(usage, |soft| usage.max(soft).max(e))
}

/// What of `by` is granted, of which `held` costs nothing, when all that ask in one period ask for `asked` beyond that together and `left`
/// is what can be promised: all of it, or what costs nothing and each one's part of `left`, in whole pages. Less than a quarter of `by` is
/// not worth telling: `None`.
pub(crate) fn grant(
    (by, held): (Bytes, Bytes),
    (asked, left): (Bytes, Bytes),
    page_size: Bytes,
) -> Option<Bytes> {
    if asked <= left {
        return Some(by);
    }
    let costs = by.saturating_sub(held);
    let part = u128::from(costs.get()) * u128::from(left.get()) / u128::from(asked.get());
    let page = page_size.get().max(1);
    let part = held.get().min(by.get()).saturating_add(part as u64) / page * page;
    (part > 0 && part >= by.get() / 4).then_some(Bytes(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: fn(u64) -> Bytes = Bytes::gib;

    fn node() -> NodeProperties {
        NodeProperties {
            mem_total: GIB(128),
            low_mark: Bytes::mib(200),
            high_mark: Bytes::mib(250),
            page_size: Bytes::kib(4),
            ..NodeProperties::default()
        }
    }

    fn at(n: u64) -> Option<Limit<Bytes>> {
        Some(Limit::At(GIB(n)))
    }

    /// (max, high, low, v1 soft) -> (soft, hard), in GiB, on a machine of 128 GiB.
    fn check_bounds(
        [max, high, low, soft]: [Option<Limit<Bytes>>; 4],
        (expect_soft, expect_hard): (u64, u64),
    ) {
        let settings = ViewMemoryLimits { max, high, low, soft };
        let got = bounds(&settings, GIB(128));
        assert_eq!((got.soft, got.hard), (GIB(expect_soft), GIB(expect_hard)), "{settings:?}");
    }

    #[test]
    fn soft_is_the_first_promise_that_was_made() {
        let max = Some(Limit::Max);
        check_bounds([at(30), None, None, at(15)], (15, 30));
        check_bounds([at(30), at(20), at(10), None], (10, 30));
        check_bounds([at(30), at(20), at(0), None], (20, 30));
        check_bounds([at(30), max, at(0), None], (30, 30));
        check_bounds([at(30), at(40), None, None], (30, 30));
        check_bounds([at(30), None, None, max], (30, 30));
        check_bounds([at(30), at(20), max, None], (30, 30));
    }

    #[test]
    fn hard_is_never_more_than_the_machine_has() {
        check_bounds([None; 4], (128, 128));
        check_bounds([Some(Limit::Max), None, None, at(15)], (15, 128));
        check_bounds([at(500), None, None, None], (128, 128));
    }

    #[test]
    fn soft_above_hard_is_hard() {
        check_bounds([at(30), None, None, at(40)], (30, 30));
    }

    #[test]
    fn a_soft_limit_of_zero_is_none() {
        check_bounds([at(30), None, None, at(0)], (30, 30));
    }

    /// E, c_mem, p_mem, c_free, p_free in MiB; bounds are 15..=30 GiB.
    fn decide(numbers: [u64; 5]) -> MemoryStep {
        decide_by(&ViewRules::paper(), numbers)
    }

    fn decide_by(policy: &ViewRules, [e, usage, usage_before, free, free_before]: [u64; 5]) -> MemoryStep {
        let mib = Bytes::mib;
        let samples = MemorySamplePair {
            usage: mib(usage),
            usage_before: mib(usage_before),
            free: mib(free),
            free_before: mib(free_before),
        };
        step(mib(e), MemoryBounds { soft: GIB(15), hard: GIB(30) }, &samples, &node(), policy)
    }

    fn grow(by: u64, predict: u64) -> MemoryStep {
        MemoryStep::Grow { by: Bytes::mib(by), held: Bytes::ZERO, predict: Bytes::mib(predict) }
    }

    #[test]
    fn steps_are_the_papers() {
        let left = 30 * 1024 - 20_480;
        assert_eq!(left / 10, 1024);
        assert_eq!(decide([20_480, 19_000, 18_900, 50_000, 50_200]), grow(1024, 2048), "twice its growth");
        assert_eq!(
            decide([20_480, 18_432, 18_332, 50_000, 50_200]),
            MemoryStep::Hold,
            "90 % is not more than 90 %"
        );
        assert_eq!(
            decide([20_480, 19_000, 18_900, 2_298, 2_498]),
            MemoryStep::Hold,
            "2048 of it would reach HIGH"
        );
        assert_eq!(decide([20_480, 19_000, 18_900, 2_299, 2_499]), grow(1024, 2048), "one more is enough");
        assert_eq!(decide([20_480, 19_000, 18_900, 200, 210]), MemoryStep::Reset, "LOW itself is reclaim");
        assert_eq!(decide([15_360, 19_000, 18_900, 200, 210]), MemoryStep::Hold, "already at soft");
        assert_eq!(decide([30_720, 30_700, 30_600, 50_000, 50_100]), MemoryStep::Hold, "already at hard");
    }

    #[test]
    fn a_standstill_holds_unless_promises_are_counted() {
        assert_eq!(decide([20_480, 19_000, 19_000, 50_000, 50_200]), MemoryStep::Hold);
        let counted = ViewRules { memory_promises: true, ..ViewRules::paper() };
        assert_eq!(decide_by(&counted, [20_480, 19_000, 19_000, 50_000, 50_200]), grow(1024, 1024));
        assert_eq!(decide_by(&counted, [20_480, 19_000, 19_000, 1_274, 1_274]), MemoryStep::Hold);
    }

    #[test]
    fn reclaim_hurts_where_the_machine_takes_what_is_in_use_and_tasks_wait() {
        let period = Micros::millis(250);
        let check = |stalled: Option<u64>, scanned: u64, scanned_for_limits: u64, lost: u64, expect: bool| {
            let now = ReclaimCounters {
                stalled: stalled.map(|ms| Micros::millis(1_000 + ms)),
                scanned: 7_000 + scanned,
                scanned_for_limits: 7_000 + scanned_for_limits,
                lost: 7_000 + lost,
                ..ReclaimCounters::default()
            };
            let before = ReclaimCounters {
                stalled: stalled.map(|_| Micros::millis(1_000)),
                scanned: 7_000,
                scanned_for_limits: 7_000,
                lost: 7_000,
                ..ReclaimCounters::default()
            };
            assert_eq!(reclaim_cost(&before, &now, period).is_some(), expect, "{now:?}");
        };
        check(Some(26), 9_000, 0, 256, true);
        check(Some(25), 9_000, 0, 256, false);
        check(Some(250), 90_000, 0, 0, false);
        check(Some(250), 90_000, 0, 255, false);
        check(Some(250), 0, 90_000, 9_000, false);
        check(Some(250), 8_999, 9_000, 9_000, false);
        check(None, 9_000, 0, 256, true);
        check(None, 9_000, 0, 255, false);
    }

    #[test]
    fn a_promise_is_what_growth_is_ahead_of_usage() {
        let bounds = MemoryBounds { soft: GIB(15), hard: GIB(30) };
        let check = |e, usage, expect| {
            assert_eq!(
                promised(GIB(e), bounds, GIB(usage), &ViewRules::paper()),
                GIB(expect),
                "{usage} of {e}"
            );
        };
        check(20, 19, 1);
        check(20, 20, 0);
        check(20, 25, 0);
        check(30, 1, 3);
        check(15, 1, 0);
    }

    #[test]
    fn what_is_left_is_divided_by_what_is_asked() {
        let check = |by, asked, left, expect: Option<u64>| {
            let mib = Bytes::mib;
            assert_eq!(
                grant((mib(by), Bytes::ZERO), (mib(asked), mib(left)), mib(1)),
                expect.map(mib),
                "{by} of {asked} from {left}"
            );
        };
        check(100, 300, 300, Some(100));
        check(100, 300, 200, Some(66));
        check(100, 300, 75, Some(25));
        check(100, 300, 74, None);
        check(1, 300, 299, None);
        assert_eq!(
            grant((Bytes(u64::MAX), Bytes(0)), (Bytes(u64::MAX), Bytes(u64::MAX - 1)), Bytes(0)),
            Some(Bytes(u64::MAX - 1))
        );
        let mib = Bytes::mib;
        assert_eq!(grant((mib(100), mib(30)), (mib(70), mib(0)), mib(1)), Some(mib(30)), "in use already");
        assert_eq!(grant((mib(100), mib(30)), (mib(140), mib(70)), mib(1)), Some(mib(65)));
        assert_eq!(grant((mib(100), mib(24)), (mib(70), mib(0)), mib(1)), None);
    }

    #[test]
    fn a_negative_ratio_predicts_byte_for_byte() {
        assert_eq!(decide([20_480, 19_000, 18_900, 50_200, 50_000]), grow(1024, 1024), "others freed more");
        assert_eq!(decide([20_480, 19_000, 19_100, 50_000, 50_200]), grow(1024, 1024), "others took it");
        assert_eq!(decide([20_480, 19_000, 18_900, 1_270, 1_000]), MemoryStep::Hold, "not counted as gain");
    }

    #[test]
    fn shrinking_together_is_a_ratio_like_any_other() {
        assert_eq!(decide([20_480, 19_000, 19_100, 50_200, 50_000]), grow(1024, 2048));
    }

    #[test]
    fn growth_reaches_the_hard_limit_in_whole_pages() {
        let (bounds, mut e, mut steps) = (MemoryBounds { soft: GIB(15), hard: GIB(30) }, GIB(15), 0);
        while e < bounds.hard {
            let samples =
                MemorySamplePair { usage: e, usage_before: GIB(1), free: GIB(90), free_before: GIB(90) };
            let MemoryStep::Grow { by, .. } = step(e, bounds, &samples, &node(), &ViewRules::paper()) else {
                panic!("stuck at {e}")
            };
            assert!(by.get().is_multiple_of(4096));
            e = e.saturating_add(by);
            steps += 1;
        }
        assert_eq!(e, bounds.hard);
        assert!((100..200).contains(&steps), "{steps}");
    }

    prop_compose! {
        fn anything()(
            numbers in proptest::array::uniform9(prop_oneof![any::<u64>(), 0u64..1 << 40, Just(u64::MAX), Just(0)])
        ) -> (MemoryBounds, Bytes, MemorySamplePair, NodeProperties) {
            let [a, b, e, usage, usage_before, free, free_before, low, high] = numbers.map(Bytes);
            let bounds = MemoryBounds { soft: a.min(b), hard: a.max(b) };
            let node = NodeProperties { low_mark: low, high_mark: high, ..node() };
            (bounds, e.clamp(bounds.soft, bounds.hard), MemorySamplePair { usage, usage_before, free, free_before }, node)
        }
    }

    fn next(e: Bytes, bounds: MemoryBounds, samples: &MemorySamplePair, node: &NodeProperties) -> Bytes {
        match step(e, bounds, samples, node, &ViewRules::paper()) {
            MemoryStep::Hold => e,
            MemoryStep::Grow { by, .. } => Bytes(e.get().checked_add(by.get()).unwrap()),
            MemoryStep::Reset => bounds.soft,
        }
    }

    proptest! {
        #[test]
        fn grants_are_no_more_than_what_is_left(
            asks in proptest::collection::vec((1u64..1 << 40, 0u64..1 << 40), 1..9),
            left: u64,
        ) {
            let asks: Vec<_> = asks.into_iter().map(|(by, held)| (Bytes(by), Bytes(held.min(by)))).collect();
            let asked: Bytes = asks.iter().map(|(by, held)| by.saturating_sub(*held)).sum();
            let costs = |ask: &(Bytes, Bytes)| {
                let granted = grant(*ask, (asked, Bytes(left)), Bytes(4096))?;
                Some(granted.saturating_sub(ask.1))
            };
            let granted = asks.iter().filter_map(costs).sum();
            prop_assert!(Bytes(left) >= granted && asked >= granted);
        }

        #[test]
        fn soft_is_at_most_effective_is_at_most_hard((bounds, e, samples, node) in anything()) {
            let e = next(e, bounds, &samples, &node);
            prop_assert!(bounds.soft <= e && e <= bounds.hard);
        }

        #[test]
        fn effective_memory_never_grows_while_reclaim_runs((bounds, e, samples, node) in anything()) {
            prop_assume!(samples.free <= node.low_mark);
            prop_assert_eq!(next(e, bounds, &samples, &node), bounds.soft);
        }

        #[test]
        fn growth_leaves_the_high_mark_free((bounds, e, samples, node) in anything()) {
            if let MemoryStep::Grow { predict, .. } = step(e, bounds, &samples, &node, &ViewRules::paper()) {
                prop_assert!(samples.free.saturating_sub(predict) > node.high_mark);
            }
        }
    }
}
