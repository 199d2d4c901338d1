//! How a disk is divided: GUARD while there is room, SHARE while there is not.
//!
//! # Problem
//! A burst should get at once whatever nobody else needs, and nothing of what others need.
//!
//! # Approach
//! While the disk is not saturated (GUARD), everybody may take *everything except the others' lifelines*: nobody has to grow
//! into idle bandwidth. When it is saturated (SHARE), it is divided: reservations, then lifelines, then what is left by weight up
//! to what everybody wants, then the rest by weight, so that nothing lies idle for want of permission. A strictly higher tier
//! comes before a lower one, but for reservations.
//!
//! # Terminology
//! Everything is in parts of the disk. *Kept*: what others leave to a container now. *Budget*: what is given away.
//!
//! # Properties
//! - `shares_add_up_to_the_budget_and_no_more`
//! - `a_share_is_never_below_a_lifeline_that_fits`
//! - `guard_leaves_everybody_what_is_kept_for_him`

/// So much of a lifeline is left for who uses it, beside the others' limits.
const GROWTH_ROOM: f64 = 1.1;

/// What a container is owed and wants, in parts of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct DiskClaimant {
    /// Its due whatever happens: its reservation, and the smallest cap there is.
    pub(super) reserve: f64,
    /// Its lifeline with room to grow, or its reservation where that is more.
    pub(super) protected: f64,
    /// What of that others leave to it now; the rest is lent, for it demonstrably goes unused.
    pub(super) withheld: f64,
    /// What it would take; infinite where that is not known.
    pub(super) demand: f64,
    /// Its lifeline, which says how lifelines are scaled where they do not fit.
    pub(super) lifeline: f64,
    pub(super) weight: f64,
    pub(super) tier: u8,
    /// It uses the disk now.
    pub(super) active: bool,
}

impl DiskClaimant {
    /// What is there for it to grow into before anybody could react, while it uses the disk: `1.3x + 1 %`, but no more than
    /// [`GROWTH_ROOM`] of its lifeline.
    fn growth_room(&self) -> f64 {
        let owed = self.withheld.max(GROWTH_ROOM * self.lifeline).max(self.reserve);
        if self.active { owed.min(self.protected).min(1.3 * self.withheld + 0.01) } else { 0.0 }
    }
}

/// GUARD: everything except what is kept for others, and never so much that others could not grow: `capacity` in all.
pub(super) fn guard(budget: f64, capacity: f64, all: &[DiskClaimant], caps: &mut Vec<f64>) {
    let mut tiers: Vec<(u8, f64, f64, f64)> = Vec::new();
    for one in all {
        let at = tiers.iter().position(|tier| tier.0 == one.tier).unwrap_or_else(|| {
            tiers.push((one.tier, 0.0, 0.0, 0.0));
            tiers.len() - 1
        });
        let protected = one.growth_room();
        tiers[at].1 += one.withheld;
        tiers[at].2 += protected;
        tiers[at].3 += one.reserve.min(one.withheld);
    }
    // Where more is protected than there is, everybody yields in proportion.
    let due = |one: &DiskClaimant| one.protected.max(one.reserve);
    let sum: f64 = all.iter().filter(|one| one.active).map(due).sum();
    let fits = if sum > budget { budget / sum } else { 1.0 };
    caps.clear();
    caps.extend(all.iter().map(|one| {
        let (mut kept, mut protected) = (-one.withheld, -one.growth_room());
        for (tier, all_kept, all_protected, reserved) in &tiers {
            let above = *tier >= one.tier;
            kept += if above { *all_kept } else { *reserved };
            protected += if above { *all_protected } else { 0.0 };
        }
        (budget - kept).min(capacity - protected).max(due(one).min(budget) * fits).max(0.0)
    }));
}

/// SHARE: divides the budget, all of it.
pub(super) fn share(budget: f64, all: &[DiskClaimant], shares: &mut Vec<f64>) {
    shares.clear();
    let reserved: f64 = all.iter().map(|one| one.reserve).sum();
    if reserved > budget {
        shares.extend(all.iter().map(|one| one.reserve / reserved * budget));
        return;
    }
    shares.extend(all.iter().map(|one| one.reserve));
    let mut left = budget - reserved;
    let mut tiers: Vec<u8> = all.iter().map(|one| one.tier).collect();
    tiers.sort_unstable();
    tiers.dedup();
    for tier in tiers.into_iter().rev() {
        let mut pour = |amount: f64, weight: fn(&DiskClaimant) -> f64, level: fn(&DiskClaimant) -> f64| {
            let inside = all.iter().enumerate().filter(|(_, one)| one.tier == tier);
            let vessels = inside.map(|(at, one)| FillTarget {
                index: at,
                weight: weight(one),
                headroom: level(one) - shares[at],
            });
            let mut vessels: Vec<FillTarget> = vessels.filter(|vessel| vessel.headroom > 0.0).collect();
            water_fill(amount, &mut vessels, shares)
        };
        left = pour(left, |one| one.weight * one.lifeline.max(1e-6), |one| one.withheld);
        left = pour(left, |one| one.weight, |one| one.demand);
    }
    // Nobody wants what is left now: it is there for whoever does before the next decision.
    let weights: f64 = all.iter().map(|one| one.weight).sum();
    if left > 0.0 && weights > 0.0 {
        all.iter().zip(shares.iter_mut()).for_each(|(one, share)| *share += left * one.weight / weights);
    }
}

/// Where water goes.
#[derive(Clone, Copy, Debug)]
struct FillTarget {
    index: usize,
    weight: f64,
    headroom: f64,
}

/// Pours `amount`, to the same level per weight, into vessels of limited room; what is left over.
fn water_fill(mut amount: f64, vessels: &mut [FillTarget], levels: &mut [f64]) -> f64 {
    vessels.sort_by(|a, b| {
        (a.headroom * b.weight).total_cmp(&(b.headroom * a.weight)).then(a.index.cmp(&b.index))
    });
    let mut weights: f64 = vessels.iter().map(|vessel| vessel.weight).sum();
    for vessel in vessels {
        if amount <= 0.0 || weights <= 0.0 {
            break;
        }
        let part = (amount * (vessel.weight / weights).min(1.0)).min(vessel.headroom);
        levels[vessel.index] += part;
        amount = (amount - part).max(0.0);
        weights -= vessel.weight;
    }
    amount
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A container with this lifeline, this demand and default weight.
    fn one(lifeline: f64, demand: f64) -> DiskClaimant {
        let protected = lifeline * 1.2;
        DiskClaimant {
            reserve: 0.0,
            protected,
            withheld: protected,
            demand,
            lifeline,
            weight: 100.0,
            tier: 0,
            active: true,
        }
    }

    fn shares(budget: f64, all: &[DiskClaimant]) -> Vec<f64> {
        let mut out = Vec::new();
        share(budget, all, &mut out);
        out.iter().map(|x| (x * 1000.0).round() / 1000.0).collect()
    }

    const ALL: f64 = f64::INFINITY;

    #[test]
    fn a_saturated_disk_is_divided_as_in_the_table() {
        let check =
            |name, all: &[DiskClaimant], expect: &[f64]| assert_eq!(shares(0.9, all), expect, "{name}");
        check("victim and hog", &[one(0.2, 0.25), one(0.0, ALL)], &[0.25, 0.65]);
        check("two hogs", &[one(0.2, 0.2), one(0.0, ALL), one(0.0, ALL)], &[0.24, 0.33, 0.33]);
        check("by weight", &[DiskClaimant { weight: 200.0, ..one(0.0, ALL) }, one(0.0, ALL)], &[0.6, 0.3]);
        check("too much promised", &[one(0.5, ALL), one(0.25, ALL)], &[0.6, 0.3]);
        check("nobody wants it", &[one(0.1, 0.1), one(0.1, 0.1)], &[0.45, 0.45]);
        check("strict tier", &[DiskClaimant { tier: 1, ..one(0.0, ALL) }, one(0.5, ALL)], &[0.9, 0.0]);
        let reserved = DiskClaimant { reserve: 0.3, ..one(0.0, ALL) };
        check("reserved below a tier", &[DiskClaimant { tier: 1, ..one(0.5, ALL) }, reserved], &[0.6, 0.3]);
        check("too much reserved", &[DiskClaimant { reserve: 1.2, ..reserved }, reserved], &[0.72, 0.18]);
    }

    #[test]
    fn guard_gives_everything_except_the_others_lifelines() {
        let check = |name, all: &[DiskClaimant], expect: &[f64]| {
            let mut caps = Vec::new();
            guard(0.9, 1.0, all, &mut caps);
            let caps: Vec<f64> = caps.iter().map(|x| (x * 1000.0).round() / 1000.0).collect();
            assert_eq!(caps, expect, "{name}");
        };
        let lent = DiskClaimant { withheld: 0.05, ..one(0.25, 0.05) };
        check("one other", &[one(0.25, 0.3), one(0.0, ALL)], &[0.9, 0.6]);
        check("lent, all but some room to grow", &[lent, one(0.0, ALL)], &[0.9, 0.85]);
        let grown = DiskClaimant { withheld: 0.25, ..one(0.25, 0.25) };
        check("room to grow", &[grown, DiskClaimant { withheld: 0.0, ..one(0.0, ALL) }], &[0.9, 0.65]);
        check("lent and away", &[DiskClaimant { active: false, ..lent }, one(0.0, ALL)], &[0.9, 0.85]);
        check(
            "a lower tier yields",
            &[DiskClaimant { tier: 1, ..one(0.0, ALL) }, one(0.5, 0.5)],
            &[0.9, 0.9],
        );
    }

    fn claimants() -> impl Strategy<Value = Vec<DiskClaimant>> {
        let one = (
            0.0..0.3,
            0.0..0.5,
            0.0..1.0,
            prop_oneof![Just(ALL), 0.0..1.0],
            1.0..1000.0,
            0..3u8,
            any::<bool>(),
        );
        let one = one.prop_map(|(reserve, lifeline, lent, demand, weight, tier, active)| {
            let protected = f64::max(reserve, lifeline * 1.2);
            DiskClaimant {
                reserve,
                protected,
                withheld: protected * lent,
                demand,
                lifeline,
                weight,
                tier,
                active,
            }
        });
        prop::collection::vec(one, 1..20)
    }

    proptest! {
        #[test]
        fn shares_add_up_to_the_budget_and_no_more(budget in 0.0..1.0f64, all in claimants()) {
            let mut out = Vec::new();
            share(budget, &all, &mut out);
            prop_assert!((out.iter().sum::<f64>() - budget).abs() < 1e-9, "{out:?}");
            prop_assert!(out.iter().all(|share| *share >= 0.0));
        }

        #[test]
        fn a_share_is_never_below_a_lifeline_that_fits(mut all in claimants()) {
            all.iter_mut().for_each(|one| one.tier = 0);
            let mut out = Vec::new();
            let budget = all.iter().map(|one| one.withheld.max(one.reserve)).sum::<f64>() + 1e-9;
            share(budget, &all, &mut out);
            for (one, share) in all.iter().zip(&out) {
                prop_assert!(*share >= one.withheld - 1e-9, "{one:?} {share}");
            }
        }

        #[test]
        fn guard_leaves_everybody_what_is_kept_for_him(all in claimants()) {
            let mut caps = Vec::new();
            guard(0.92, 1.0, &all, &mut caps);
            for (at, one) in all.iter().enumerate() {
                let others: f64 = all.iter().enumerate().filter(|(k, _)| *k != at).map(|(_, o)| o.withheld).sum();
                let same = all.iter().all(|o| o.tier == one.tier);
                if same && caps[at] > one.protected.max(one.reserve) + 1e-9 {
                    prop_assert!(caps[at] + others <= 0.92 + 1e-9);
                }
            }
        }
    }
}
