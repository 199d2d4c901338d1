//! What weighted max-min fairness would give now: the rule `policy = "waterfill"`.
//!
//! # Problem
//! One step per period takes a container from 4 CPUs to 64 in 60 periods, and back in 60 more while its neighbours wait. It
//! needs no such search: the scheduler is work-conserving and fair by weight, so what it will give follows from what
//! all ask for.
//!
//! # Approach
//! From the bottom up, what every group asks for: its CPU time of the last period and the time its quota held it back.
//! A busy container, whose wish is hidden behind the CPUs it has, asks for all it may use. From the top down, what
//! every group gets **if it alone asked for everything**: among siblings, water rises at the same speed per weight
//! until each one's ask is met or the parent's part is gone. CPU time used outside every known group is not up for
//! division.
//!
//! ```text
//! find level:  sum over siblings j of min(ask_j, level * w_j), with ask_i unbounded,  =  what is inside the parent
//! gets_i = min(level * w_i, cap_i)        busy:  E_i = gets_i        not busy:  E_i = min(E_i, gets_i)
//! ```
//!
//! Thousandths become whole CPUs with a dead band: a share that hovers around a whole number, or between two, does not turn the
//! view over every period. A share that only quota and cpuset bind is rounded up, as quotas are.
//!
//! A busy container's own ask is its cap, so for busy ones `gets` is the max-min share itself, and they add up to no more
//! than there is. One that is not busy keeps its CPUs as long as they could be had, and never grows.
//!
//! # Terminology
//! All amounts are thousandths of a CPU. *Asks*, *gets* as above; *cap* is what quota and cpuset let in; *direct* is CPU
//! time of tasks that sit in a group beside its children.
//!
//! Differs from the paper: the paper has only single steps. What a share does to a view is `calm.rs`'s.
//!
//! # Properties
//! - `busy_siblings_get_no_more_than_there_is`
//! - `greed_gets_at_least_its_fair_share`
//! - `water_levels_are_those_of_the_naive_method`
//! - `whole_cpus_are_near_the_share_and_stay_put_under_noise`

use super::View;
use super::cpu::CpuBounds;
use super::hierarchy::{CpuEntitlement, SchedGroup};
use elbowroom_types::unit::{Limit, Millicpu};

/// What one place did and wants, in thousandths of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuDemand {
    /// What it used.
    pub used: u64,
    /// What it asks for; cut at its cap.
    pub requested: u64,
}

/// What a period needs to know of a place. These stand side by side, for a period finds the caches cold: most containers are idle, and
/// nothing else of theirs is looked at.
#[derive(Clone, Copy, Debug)]
pub struct FillNode {
    /// Index of the place around it: always of an earlier place.
    pub parent: u32,
    /// Which set of CPUs is its own.
    pub pool: u32,
    /// Its weight as it counts.
    pub weight: u64,
    /// The tightest quota of it and its ancestors.
    pub quota: Limit<Millicpu>,
    /// What quota and cpuset let in, in thousandths of a CPU.
    pub cap: u64,
    /// The CPUs that a container is shown, and between what; `None` where there is no container.
    pub shown: Option<(u32, CpuBounds)>,
}

impl FillNode {
    /// A place and what follows for it, on the CPUs of `pool`; `view` where it is a container.
    pub fn new(place: &SchedGroup, entitlement: &CpuEntitlement, pool: u32, view: Option<&View>) -> Self {
        Self {
            parent: place.parent,
            pool,
            weight: entitlement.weight,
            quota: entitlement.quota,
            cap: entitlement.cap().get(),
            shown: view.map(|view| (view.cpus, view.cpu_bounds())),
        }
    }
}

/// Memory that is kept between periods, so that a period allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct FillScratch {
    demands: Vec<CpuDemand>,
    sibling_demands: Vec<CpuDemand>,
    claims: Vec<SiblingDemand>,
    sums: Vec<(u64, u64)>,
    allocations: Vec<u64>,
}

/// One of several siblings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SiblingDemand {
    place: u32,
    weight: u64,
    requested: u64,
}

/// A share further than this from the CPUs shown now changes them; just over half a CPU, so that noise around any share
/// moves the view once at most.
const DEAD_BAND: u64 = 600;

/// The CPUs to show for a share, in thousandths, when `now` are shown.
pub(crate) fn whole_cpus(share: u64, now: u32) -> u32 {
    match share.abs_diff(u64::from(now).saturating_mul(1_000)) <= DEAD_BAND {
        true => now,
        false => u32::try_from(share.saturating_add(500) / 1_000).unwrap_or(u32::MAX).max(1),
    }
}

/// What each place gets if it alone asked for everything, in thousandths of a CPU, in the order of `spots`.
///
/// Siblings are neighbours in `spots` (sorted by depth and parent). `caps` and `demand` say what each may use and wants
/// on the CPUs in question; `caps[0]` is how much there is and `used` how much of it was used by all.
pub fn fill<'a>(
    spots: &[FillNode],
    caps: impl Fn(usize) -> u64,
    demand: impl Fn(usize) -> CpuDemand,
    used: u64,
    scratch: &'a mut FillScratch,
) -> &'a [u64] {
    let FillScratch { demands, sibling_demands: inside, claims, sums, allocations: gets } = scratch;
    demands.clear();
    demands.extend((0..spots.len()).map(demand));
    inside.clear();
    inside.resize(spots.len(), CpuDemand::default());
    gets.clear();
    gets.resize(spots.len(), 0);
    let (Some(machine), Some(there_is)) = (demands.first_mut(), gets.first_mut()) else { return gets };
    machine.used = used;
    *there_is = caps(0);

    for i in (0..spots.len()).rev() {
        let all = &mut demands[i];
        all.used = all.used.max(inside[i].used);
        all.requested = all.requested.max(inside[i].requested).min(caps(i));
        if i > 0 {
            let around = &mut inside[spots[i].parent as usize];
            around.used = around.used.saturating_add(all.used);
            around.requested = around.requested.saturating_add(all.requested);
        }
    }

    let mut first = 1;
    while first < spots.len() {
        let parent = spots[first].parent;
        let siblings = first..first + spots[first..].iter().take_while(|s| s.parent == parent).count();
        let direct = demands[parent as usize].used.saturating_sub(inside[parent as usize].used);
        let there_is = gets[parent as usize].saturating_sub(direct);
        claims.clear();
        claims.extend(siblings.clone().map(|i| SiblingDemand {
            place: i as u32,
            weight: spots[i].weight.max(1),
            requested: demands[i].requested,
        }));
        greedy_shares(there_is, claims, sums, |place, share| gets[place] = share.min(caps(place)));
        first = siblings.end;
    }
    gets
}

/// For each claim, its share of `there_is` if its own ask had no end: `level * weight`, rounded down.
///
/// Sorted by `asks / weight`, water meets the claims one after another. With `k` of them met, the level is what is left
/// over the weights that still drink; `k` is found by bisection for each claim, as its own greed moves it to the drinkers.
fn greedy_shares(
    there_is: u64,
    claims: &mut [SiblingDemand],
    sums: &mut Vec<(u64, u64)>,
    mut share: impl FnMut(usize, u64),
) {
    claims.sort_unstable_by(|a, b| {
        let (a_level, b_level) =
            (u128::from(a.requested) * u128::from(b.weight), u128::from(b.requested) * u128::from(a.weight));
        a_level.cmp(&b_level).then(a.place.cmp(&b.place))
    });
    let open_weight: u64 = claims.iter().map(|claim| claim.weight).sum();
    sums.clear();
    sums.push((0, open_weight));
    sums.extend(claims.iter().scan((0u64, open_weight), |(met, open_weight), claim| {
        *met = met.saturating_add(claim.requested);
        *open_weight -= claim.weight;
        Some((*met, *open_weight))
    }));
    for (rank, claim) in claims.iter().enumerate() {
        let with_greed = |k: usize| {
            let (met, open_weight) = sums[k];
            if rank < k {
                (met - claim.requested.min(met), open_weight + claim.weight)
            } else {
                (met, open_weight)
            }
        };
        let dry_before = |k: usize| {
            let (met, open_weight) = with_greed(k);
            let rest = u128::from(there_is.saturating_sub(met)) * u128::from(claims[k].weight);
            u128::from(claims[k].requested) * u128::from(open_weight) >= rest
        };
        let k = first_where(claims.len(), dry_before);
        let (met, open_weight) = with_greed(k);
        let amount = u128::from(there_is.saturating_sub(met)) * u128::from(claim.weight);
        share(
            claim.place as usize,
            u64::try_from(amount / u128::from(open_weight.max(1))).unwrap_or(u64::MAX),
        );
    }
}

/// The first of `0..n` where `holds`, or `n`; `holds` stays true once it is.
fn first_where(n: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = low.midpoint(high);
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::super::hierarchy::entitlements;
    use super::*;
    use elbowroom_types::cpuset::CpuSet;
    use elbowroom_types::unit::{CpuShare, Limit, Millicpu};
    use proptest::prelude::*;

    /// `(weight, asks)` of siblings -> what each gets if it alone asked for everything.
    fn check(there_is: u64, siblings: &[(u64, u64)], expect: &[u64]) {
        assert_eq!(shares(there_is, siblings), expect, "{there_is} among {siblings:?}");
    }

    fn shares(there_is: u64, siblings: &[(u64, u64)]) -> Vec<u64> {
        let claim = |(i, (weight, asks)): (usize, &(u64, u64))| SiblingDemand {
            place: i as u32,
            weight: *weight,
            requested: *asks,
        };
        let mut claims: Vec<SiblingDemand> = siblings.iter().enumerate().map(claim).collect();
        let mut gets = vec![0; siblings.len()];
        greedy_shares(there_is, &mut claims, &mut Vec::new(), |i, share| gets[i] = share);
        gets
    }

    #[test]
    fn equal_greed_is_shared_equally_and_unequal_by_weight() {
        check(20_000, &[(100, 10_000); 5], &[4_000; 5]);
        check(12_000, &[(100, 99_000), (200, 99_000)], &[4_000, 8_000]);
    }

    #[test]
    fn what_the_modest_leave_goes_to_the_greedy() {
        check(20_000, &[(100, 20_000), (100, 0), (100, 1_000)], &[19_000, 9_500, 10_000]);
    }

    #[test]
    fn an_idle_container_could_have_its_share_back() {
        check(20_000, &[(100, 20_000), (100, 20_000), (100, 0)], &[10_000, 10_000, 6_666]);
        check(20_000, &[(1, 20_000), (1, 20_000), (2, 0)], &[10_000, 10_000, 10_000]);
    }

    #[test]
    fn nothing_to_share_is_nothing_for_all() {
        check(0, &[(1, 5), (2, 0)], &[0, 0]);
        check(5, &[], &[]);
    }

    /// A machine of 16 CPUs: kubepods with a pod of two and a pod of one; `asks` of the three containers, `system` used
    /// outside.
    fn pods(asks: [u64; 3], system: u64) -> Vec<u64> {
        let group = |parent| SchedGroup {
            parent,
            share: Some(CpuShare::Weight(100)),
            competes: true,
            ..SchedGroup::default()
        };
        let mut places = vec![group(0), group(0), group(1), group(1), group(2), group(2), group(3)];
        places[2].quota = Some(Limit::At(Millicpu(6_000)));
        let entitlements = entitlements(&CpuSet::first_n(16), &places);
        let demand = |i: usize| match i {
            4..7 => CpuDemand { used: asks[i - 4].min(1_000), requested: asks[i - 4] },
            _ => CpuDemand::default(),
        };
        let used = asks.iter().map(|a| (*a).min(1_000)).sum::<u64>() + system;
        let spots: Vec<FillNode> =
            places.iter().zip(&entitlements).map(|(p, s)| FillNode::new(p, s, 0, None)).collect();
        let caps = |i: usize| spots[i].cap;
        let mut scratch = FillScratch::default();
        fill(&spots, caps, demand, used, &mut scratch)[4..].to_vec()
    }

    #[test]
    fn a_pods_unused_part_goes_to_its_own_container_first() {
        assert_eq!(pods([16_000, 0, 16_000], 0), [6_000, 3_000, 10_000], "its quota, half of it, the rest");
        assert_eq!(pods([16_000, 500, 16_000], 0), [5_500, 3_000, 10_000]);
        assert_eq!(pods([0, 0, 16_000], 0), [6_000, 6_000, 16_000]);
    }

    #[test]
    fn what_the_host_itself_uses_is_not_up_for_division() {
        assert_eq!(pods([0, 0, 16_000], 4_000)[2], 12_000);
        assert_eq!(pods([0, 0, 16_000], 99_000), [0, 0, 0]);
    }

    /// Progressive filling with claim `greedy` never met, one round at a time.
    fn naive(there_is: u64, siblings: &[(u64, u64)], greedy: usize) -> u64 {
        let mut met = vec![false; siblings.len()];
        loop {
            let taken: u64 =
                siblings.iter().zip(&met).filter(|(_, met)| **met).map(|((_, asks), _)| asks).sum();
            let open_weight: u64 =
                siblings.iter().zip(&met).filter(|(_, met)| !**met).map(|((w, _), _)| w).sum();
            let left = there_is.saturating_sub(taken);
            let next = (0..siblings.len())
                .find(|j| !met[*j] && *j != greedy && siblings[*j].1 * open_weight < left * siblings[*j].0);
            match next {
                Some(j) => met[j] = true,
                None => return left * siblings[greedy].0 / open_weight,
            }
        }
    }

    fn siblings() -> impl Strategy<Value = Vec<(u64, u64)>> {
        proptest::collection::vec((1u64..1000, prop_oneof![Just(0), 0u64..20_000]), 1..12)
    }

    proptest! {
        #[test]
        fn whole_cpus_are_near_the_share_and_stay_put_under_noise(
            share in 0u64..2_000_000, now in 1u32..2_000, noise in proptest::collection::vec(0u64..100, 1..50),
        ) {
            let shown = whole_cpus(share, now);
            prop_assert!(shown == 1 || share.abs_diff(u64::from(shown) * 1_000) <= DEAD_BAND);
            let mut turns = 0;
            let mut e = shown;
            for extra in noise {
                let next = whole_cpus(share + extra, e);
                turns += u32::from(next != e);
                e = next;
            }
            prop_assert!(turns <= 1, "{turns} turns");
        }
    }

    proptest! {
        #[test]
        fn water_levels_are_those_of_the_naive_method(there_is in 0u64..100_000, siblings in siblings()) {
            let got = shares(there_is, &siblings);
            for (i, share) in got.into_iter().enumerate() {
                prop_assert_eq!(share, naive(there_is, &siblings, i), "claim {}", i);
            }
        }

        #[test]
        fn busy_siblings_get_no_more_than_there_is(there_is in 0u64..100_000, siblings in siblings(), cap in 1u64..50_000) {
            let busy: Vec<(u64, u64)> = siblings.iter().map(|(w, asks)| (*w, if *asks > 0 { cap } else { 0 })).collect();
            let got = shares(there_is, &busy);
            let sum: u64 = got.iter().zip(&busy).filter(|(_, (_, asks))| *asks > 0).map(|(got, _)| *got.min(&cap)).sum();
            prop_assert!(sum <= there_is);
        }

        #[test]
        fn greed_gets_at_least_its_fair_share(there_is in 0u64..100_000, siblings in siblings()) {
            let got = shares(there_is, &siblings);
            let all: u64 = siblings.iter().map(|(w, _)| w).sum();
            for (share, (weight, _)) in got.iter().zip(&siblings) {
                prop_assert!(*share >= there_is * weight / all);
            }
        }
    }
}
