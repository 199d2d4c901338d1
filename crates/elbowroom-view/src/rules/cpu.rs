//! Effective CPU: Algorithm 1 of Adaptive Resource Views (section 3.1).
//!
//! # Problem
//! A container's quota and cpuset say what it may use at most, its share what it gets at least; what it can use *now* lies
//! between the two and depends on its neighbours. A program that counts the machine's CPUs starts too many threads, one
//! that counts its quota starts too many when the machine is full and too few when shares would give more.
//!
//! # Approach
//! Two bounds per container, computed when a setting changes ([`bounds`]), and one step per period inside them
//! ([`step`]). The step goes up while the machine has unused CPU time and the container uses what it has, and down
//! while the machine has none.
//!
//! # Terminology
//! - `w`: share; `L/t`: quota in CPUs; `M`: allowed CPUs; `P`: online CPUs.
//! - `E`: effective CPU; `u`: CPU time used in a period.
//! - *Slack*: the CPU time that no container used (`p_slack`). *Busy*: using more than 95 % of `E`.
//!
//! # Properties
//! - `lower_is_at_most_effective_is_at_most_upper`
//! - `an_idle_container_never_grows`
//! - `a_step_is_at_most_one_cpu`

use super::ViewRules;
use super::hierarchy::Nanocpu;
use elbowroom_types::sample::CpuMax;
use elbowroom_types::unit::{Limit, Micros, Millicpu};
use serde::{Deserialize, Serialize};

/// The range of effective CPU, in whole CPUs; `1 <= lower <= upper`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CpuBounds {
    /// What the container gets when all want everything.
    pub lower: u32,
    /// What it may use when no other container wants anything.
    pub upper: u32,
}

/// CPU time of one period on some set of CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Slack {
    /// Time that no container used.
    pub unused: Micros,
    /// All the time there was: CPUs times the period.
    pub capacity: Micros,
}

impl Slack {
    /// The paper's `p_slack > 0`.
    pub const fn is_some(&self) -> bool {
        self.unused.get() > 0
    }
}

/// `LOWER = min(L/t, |M|, ceil(w / sum_w * P))` and `UPPER = min(L/t, |M|)`.
///
/// `fair` is `w / sum_w * P`, from [`super::hierarchy::entitlements`]; `allowed` is `|M|`.
/// Differs from the paper: `L/t` is rounded up, so that a quota of a fraction of a CPU still counts as one.
pub fn bounds(quota: Limit<Millicpu>, allowed: u32, fair: Nanocpu) -> CpuBounds {
    let limit = quota.value().map_or(u32::MAX, Millicpu::cpus_ceil);
    let upper = limit.min(allowed).max(1);
    CpuBounds { lower: fair.cpus_ceil().clamp(1, upper), upper }
}

/// One period of Algorithm 1: `E` for the next period.
///
/// ```text
/// if p_slack > 0: when u/(E * t) > 95 % and E < UPPER: E += 1
/// else:           when E > LOWER:                      E -= 1
/// ```
///
/// `used` is the CPU time of the container in `period`, `slack` that of the CPUs it may use. `E` outside `bounds` comes
/// back inside them.
pub fn step(
    e: u32,
    bounds: CpuBounds,
    used: Micros,
    period: Micros,
    slack: Slack,
    policy: &ViewRules,
) -> u32 {
    let e = e.clamp(bounds.lower, bounds.upper);
    let busy = is_busy(used, e, period, policy);
    if slack.is_some() {
        if busy && e < bounds.upper {
            return e + 1;
        }
    } else if e > bounds.lower {
        return e - 1;
    }
    e
}

/// The paper's `u / (E * t) > 95 %`.
pub(crate) fn is_busy(used: Micros, e: u32, period: Micros, policy: &ViewRules) -> bool {
    policy.cpu_busy.exceeded_by(used.get(), u128::from(e) * u128::from(period.get()))
}

/// `L/t` in thousandths of a CPU, at least one of them. A period of zero, which no kernel writes, is no quota.
pub fn quota(cpu_max: Option<CpuMax>) -> Limit<Millicpu> {
    match cpu_max {
        Some(CpuMax { quota: Limit::At(quota), period }) if period > Micros::ZERO => {
            let milli = u128::from(quota.get()) * 1_000 / u128::from(period.get());
            Limit::At(Millicpu(u64::try_from(milli).unwrap_or(u64::MAX).max(1)))
        }
        _ => Limit::Max,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const T: Micros = Micros::millis(24);

    fn slack(unused: u64) -> Slack {
        Slack { unused: Micros(unused), capacity: Micros(20 * T.get()) }
    }

    /// `L`, `|M|`, `w/sum_w*P` in thousandths of a CPU -> (LOWER, UPPER).
    fn check_bounds(quota: Option<u64>, allowed: u32, fair_milli: u64, expect: (u32, u32)) {
        let quota = quota.map_or(Limit::Max, |q| Limit::At(Millicpu(q)));
        let got = bounds(quota, allowed, Nanocpu(fair_milli * 1_000_000));
        assert_eq!((got.lower, got.upper), expect, "{quota} {allowed} {fair_milli}");
    }

    #[test]
    fn bounds_are_the_papers() {
        check_bounds(Some(10_000), 20, 4_000, (4, 10));
        check_bounds(None, 20, 4_000, (4, 20));
        check_bounds(None, 2, 4_000, (2, 2));
        check_bounds(Some(3_000), 20, 4_000, (3, 3));
        check_bounds(None, 20, 6_667, (7, 20));
    }

    #[test]
    fn quota_below_one_cpu_still_shows_one() {
        check_bounds(Some(500), 20, 4_000, (1, 1));
        check_bounds(Some(1_500), 20, 4_000, (2, 2));
        check_bounds(Some(1), 0, 0, (1, 1));
    }

    #[test]
    fn quota_is_counted_in_thousandths() {
        let of = |quota, period| super::quota(Some(CpuMax { quota, period: Micros(period) }));
        assert_eq!(of(Limit::At(Micros(150_000)), 100_000), Limit::At(Millicpu(1_500)));
        assert_eq!(of(Limit::At(Micros(1)), 1_000_000), Limit::At(Millicpu(1)), "never nothing");
        assert_eq!(of(Limit::At(Micros(u64::MAX)), 1), Limit::At(Millicpu(u64::MAX)));
        assert_eq!(of(Limit::At(Micros(150_000)), 0), Limit::Max);
        assert_eq!(of(Limit::Max, 100_000), Limit::Max);
        assert_eq!(super::quota(None), Limit::Max);
    }

    /// E, share of E used in percent, unused time -> E of the next period; bounds are 4..=10.
    fn check_step(policy: &ViewRules, e: u32, percent: u64, unused: u64, expect: u32) {
        let used = Micros(u64::from(e) * T.get() * percent / 100);
        let got = step(e, CpuBounds { lower: 4, upper: 10 }, used, T, slack(unused), policy);
        assert_eq!(got, expect, "E={e} used {percent}% unused {unused}us");
    }

    #[test]
    fn steps_are_the_papers() {
        let paper = &ViewRules::paper();
        check_step(paper, 4, 100, 1, 5);
        check_step(paper, 4, 96, 1, 5);
        check_step(paper, 4, 95, 1, 4);
        check_step(paper, 10, 100, 1, 10);
        check_step(paper, 10, 100, 0, 9);
        check_step(paper, 10, 0, 0, 9);
        check_step(paper, 4, 100, 0, 4);
        check_step(paper, 10, 0, 1, 10);
    }

    proptest! {
        #[test]
        fn lower_is_at_most_effective_is_at_most_upper(
            e: u32, fair: u64, quota: u64, allowed: u32, used: u64, period: u64, unused: u64, capacity: u64
        ) {
            let bounds = bounds(Limit::At(Millicpu(quota)), allowed, Nanocpu(fair));
            prop_assert!(1 <= bounds.lower && bounds.lower <= bounds.upper);
            let slack = Slack { unused: Micros(unused), capacity: Micros(capacity) };
            let next = step(e, bounds, Micros(used), Micros(period), slack, &ViewRules::default());
            prop_assert!(bounds.lower <= next && next <= bounds.upper);
        }

        #[test]
        fn an_idle_container_never_grows(e in 4u32..=10, unused: u64) {
            let bounds = CpuBounds { lower: 4, upper: 10 };
            prop_assert!(step(e, bounds, Micros::ZERO, T, slack(unused), &ViewRules::default()) <= e);
        }

        #[test]
        fn a_step_is_at_most_one_cpu(e in 4u32..=10, used: u64, unused: u64) {
            let next = step(e, CpuBounds { lower: 4, upper: 10 }, Micros(used), T, slack(unused), &ViewRules::paper());
            prop_assert!(next.abs_diff(e) <= 1);
        }
    }
}
