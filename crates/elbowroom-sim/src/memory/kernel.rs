//! Global reclaim: whose pages go when the machine is full.

use super::scenario::MemcgVersion;

/// By how much less the kernel takes from a container that uses all its pages (mm/vmscan.c: active lists are aged, not emptied).
const ACTIVE_DISCOUNT: f64 = 0.7;

/// A cgroup as reclaim sees it; bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ReclaimTarget {
    /// Everything charged.
    pub(super) usage: f64,
    /// What can be taken.
    pub(super) cache: f64,
    /// The part of its pages that was used lately.
    pub(super) active: f64,
    /// `memory.low`, or the soft limit.
    pub(super) protection: f64,
}

/// How much goes from each so that `need` is free: less where there is not as much.
pub(super) fn reclaim(kernel: MemcgVersion, groups: &[ReclaimTarget], need: f64) -> Vec<f64> {
    let mut taken = vec![0.0; groups.len()];
    let mut left = need;
    if kernel == MemcgVersion::V1 {
        // mem_cgroup_soft_limit_reclaim(): the largest excess first; v1 without soft limits has none.
        left -= take_by_weight(groups, &mut taken, left, |g| {
            if g.protection > 0.0 { (g.usage - g.protection).max(0.0) } else { 0.0 }
        });
    } else {
        left -= take_by_weight(groups, &mut taken, left, |g| {
            // mem_cgroup_protection(): pressure in proportion to what is above memory.low.
            let above = (1.0 - g.protection / g.usage.max(1.0)).max(0.0);
            g.cache * above * (1.0 - ACTIVE_DISCOUNT * g.active)
        });
    }
    take_by_weight(groups, &mut taken, left, |g| g.cache * (1.0 - ACTIVE_DISCOUNT * g.active));
    taken
}

/// Takes `need` by weight, from none more than its cache; what was taken.
fn take_by_weight(
    groups: &[ReclaimTarget],
    taken: &mut [f64],
    need: f64,
    weight: impl Fn(&ReclaimTarget) -> f64,
) -> f64 {
    let mut left = need;
    // One that has too little gives all of it, and the rest is divided again.
    for _ in 0..groups.len() {
        let open = |i: &usize| groups[*i].cache - taken[*i] > 1.0 && weight(&groups[*i]) > 0.0;
        let all: Vec<usize> = (0..groups.len()).filter(open).collect();
        let sum: f64 = all.iter().map(|i| weight(&groups[*i])).sum();
        if left <= 1.0 || all.is_empty() || sum <= 0.0 {
            break;
        }
        let now = left;
        for i in all {
            let part = (now * weight(&groups[i]) / sum).min(groups[i].cache - taken[i]);
            taken[i] += part;
            left -= part;
        }
    }
    need - left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(usage: f64, cache: f64, active: f64, protection: f64) -> ReclaimTarget {
        ReclaimTarget { usage, cache, active, protection }
    }

    #[test]
    fn a_protected_container_gives_last() {
        let two = [page(100.0, 100.0, 0.0, 100.0), page(100.0, 100.0, 1.0, 0.0)];
        assert_eq!(reclaim(MemcgVersion::V2, &two, 60.0), [0.0, 60.0]);
        assert_eq!(reclaim(MemcgVersion::V2, &two, 150.0), [50.0, 100.0]);
        let soft = [page(100.0, 100.0, 0.0, 90.0), page(100.0, 100.0, 0.0, 60.0)];
        assert_eq!(reclaim(MemcgVersion::V1, &soft, 25.0), [5.0, 20.0]);
    }

    #[test]
    fn without_protection_size_decides_and_use_a_little() {
        let taken =
            reclaim(MemcgVersion::V2, &[page(200.0, 200.0, 0.0, 0.0), page(100.0, 100.0, 0.0, 0.0)], 30.0);
        assert_eq!(taken, [20.0, 10.0]);
        let taken =
            reclaim(MemcgVersion::V2, &[page(100.0, 100.0, 0.0, 0.0), page(100.0, 100.0, 1.0, 0.0)], 13.0);
        assert!((taken[0] - 10.0).abs() < 1e-9 && (taken[1] - 3.0).abs() < 1e-9, "{taken:?}");
    }

    #[test]
    fn no_container_gives_more_than_it_has() {
        let two = [page(9e6, 5e6, 0.0, 0.0), page(9e6, 1e6, 0.0, 0.0)];
        let taken = reclaim(MemcgVersion::V2, &two, 1e8);
        assert!((taken[0] - 5e6).abs() < 2.0 && (taken[1] - 1e6).abs() < 2.0, "{taken:?}");
    }
}
