//! How much each container is owed: minimums first, the rest by weight.
//!
//! # Problem
//! Limits divide a machine once and for all; without limits, the container that touches most pages gets most. A container should
//! have its reservation whenever it has use for it, and its part by weight of whatever others have no use for.
//!
//! # Approach
//! Every container has a minimum. What is left of the machine is poured over those that want more, by weight, up to what each can
//! take (weighted max-min fairness); a higher tier is served before a lower one. Where the minimums alone are more than there is,
//! they shrink: first by what is beyond reservations, then those of lower tiers, among equals by weight.
//!
//! # Properties
//! - `no_claimant_is_owed_more_than_there_is`
//! - `floors_hold_where_they_fit`
//! - `nothing_is_left_while_a_claimant_can_take_it`

/// One container's claim to a machine; numbers are bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MemoryClaimant {
    /// What of its minimum is reserved.
    pub(super) reserved: f64,
    /// What it gets before anything is poured.
    pub(super) minimum: f64,
    /// What it can take now; at least the minimum.
    pub(super) demand: f64,
    /// What it could ever take.
    pub(super) max: f64,
    pub(super) weight: f64,
    pub(super) tier: u8,
}

/// What each is owed of `total`.
pub(super) fn entitle(claimants: &[MemoryClaimant], total: f64) -> Vec<f64> {
    let mut owed = vec![0.0; claimants.len()];
    let left = water_fill(claimants, &mut owed, total, |claimant| claimant.reserved.min(claimant.minimum));
    let left = water_fill(claimants, &mut owed, left, |claimant| claimant.minimum);
    let left = water_fill(claimants, &mut owed, left, |claimant| claimant.demand.max(claimant.minimum));
    water_fill(claimants, &mut owed, left, |claimant| claimant.max.max(claimant.minimum));
    owed
}

/// Pours `water` tier by tier until each has what `up_to` says; what is left.
fn water_fill(
    claimants: &[MemoryClaimant],
    owed: &mut [f64],
    water: f64,
    up_to: impl Fn(&MemoryClaimant) -> f64,
) -> f64 {
    let mut tiers: Vec<u8> = claimants.iter().map(|claimant| claimant.tier).collect();
    tiers.sort_unstable();
    tiers.dedup();
    let mut left = water.max(0.0);
    for tier in tiers.into_iter().rev() {
        let mut open: Vec<usize> = (0..claimants.len()).filter(|i| claimants[*i].tier == tier).collect();
        let room = |i: &usize, owed: &[f64]| (up_to(&claimants[*i]) - owed[*i]).max(0.0);
        let weight = |i: &usize| claimants[*i].weight.max(1.0);
        // The one that needs least for its weight is full first.
        open.sort_by(|a, b| (room(a, owed) / weight(a)).total_cmp(&(room(b, owed) / weight(b))));
        let mut weights: f64 = open.iter().map(weight).sum();
        for i in &open {
            let part = room(i, owed).min(left * weight(i) / weights);
            owed[*i] += part;
            left = (left - part).max(0.0);
            weights -= weight(i);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claimant(minimum: f64, want: f64, cap: f64, weight: f64, tier: u8) -> MemoryClaimant {
        MemoryClaimant { reserved: minimum, minimum, demand: want, max: cap, weight, tier }
    }

    fn check(total: f64, claimants: &[MemoryClaimant], expect: &[f64]) {
        let got = entitle(claimants, total);
        assert!(got.iter().zip(expect).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?}, not {expect:?}");
    }

    #[test]
    fn the_rest_is_divided_by_weight() {
        let all = f64::INFINITY;
        check(10.0, &[claimant(4.0, all, all, 100.0, 0), claimant(0.0, all, all, 200.0, 0)], &[6.0, 4.0]);
        check(10.0, &[claimant(4.0, 4.0, 4.0, 100.0, 0), claimant(0.0, all, all, 100.0, 0)], &[4.0, 6.0]);
        check(10.0, &[claimant(1.0, 2.0, all, 100.0, 0), claimant(1.0, all, all, 100.0, 0)], &[2.0, 8.0]);
        check(10.0, &[claimant(0.0, 1.0, all, 100.0, 0), claimant(0.0, 2.0, all, 100.0, 0)], &[4.5, 5.5]);
    }

    #[test]
    fn a_higher_tier_comes_first() {
        let all = f64::INFINITY;
        check(10.0, &[claimant(3.0, all, all, 100.0, 0), claimant(3.0, all, all, 100.0, 1)], &[3.0, 7.0]);
        check(5.0, &[claimant(3.0, all, all, 100.0, 0), claimant(3.0, all, all, 100.0, 1)], &[2.0, 3.0]);
    }

    #[test]
    fn floors_that_do_not_fit_shrink_by_weight() {
        check(6.0, &[claimant(6.0, 6.0, 6.0, 100.0, 0), claimant(6.0, 6.0, 6.0, 200.0, 0)], &[2.0, 4.0]);
        check(6.0, &[claimant(1.0, 9.0, 9.0, 100.0, 0), claimant(9.0, 9.0, 9.0, 100.0, 0)], &[1.0, 5.0]);
    }

    #[test]
    fn reservations_come_before_what_is_beyond_them() {
        let beyond = MemoryClaimant { reserved: 1.0, ..claimant(5.0, 5.0, 5.0, 100.0, 1) };
        check(10.0, &[claimant(8.0, 9.0, 9.0, 100.0, 0), beyond], &[8.0, 2.0]);
        check(14.0, &[claimant(8.0, 9.0, 9.0, 100.0, 0), beyond], &[9.0, 5.0]);
    }

    prop_compose! {
        fn claimants()(numbers in proptest::collection::vec((0.0..1e12, 0.0..1e12, 0.0..1e12, 1.0..1e4, 0u8..3), 0..9)) -> Vec<MemoryClaimant> {
            numbers.into_iter().map(|(a, b, c, weight, tier)| {
                let mut sizes = [a, b, c];
                sizes.sort_by(f64::total_cmp);
                claimant(sizes[0], sizes[1], sizes[2], weight, tier)
            }).collect()
        }
    }

    proptest! {
        #[test]
        fn no_claimant_is_owed_more_than_there_is(claimants in claimants(), total in 0.0..1e13) {
            let owed = entitle(&claimants, total);
            prop_assert!(owed.iter().sum::<f64>() <= total * (1.0 + 1e-9) + 1.0);
            prop_assert!(owed.iter().zip(&claimants).all(|(owed, claimant)| *owed <= claimant.max * (1.0 + 1e-9) + 1.0));
        }

        #[test]
        fn floors_hold_where_they_fit(claimants in claimants(), more in 0.0..1e12) {
            let minimums: f64 = claimants.iter().map(|claimant| claimant.minimum).sum();
            let owed = entitle(&claimants, minimums + more);
            prop_assert!(owed.iter().zip(&claimants).all(|(owed, claimant)| *owed >= claimant.minimum * (1.0 - 1e-9) - 1.0));
        }

        #[test]
        fn nothing_is_left_while_a_claimant_can_take_it(claimants in claimants(), total in 0.0..1e13) {
            let owed: f64 = entitle(&claimants, total).iter().sum();
            let most: f64 = claimants.iter().map(|claimant| claimant.max).sum();
            prop_assert!(owed >= total.min(most) * (1.0 - 1e-9) - 1.0);
        }
    }
}
