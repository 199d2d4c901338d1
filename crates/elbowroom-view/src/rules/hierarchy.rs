//! Where a container stands in the tree of cgroups: its fair share, and the tightest limits above it.
//!
//! # Problem
//! The paper's containers are siblings. Real ones are not: a Kubernetes container is three levels deep, its own
//! `cpu.weight` counts only inside its pod, and its pod's `cpu.max` binds it as its own does. A share read flat promises
//! one container of a crowded pod as much as the only container of another.
//!
//! # Approach
//! What the scheduler does when every group wants all CPUs, from the top down: the machine is divided among the groups of
//! the first level by weight. Each part, cut at what quota and cpuset let in, is divided among the groups inside, and so on.
//! Only groups that have processes take part. Limits pass downwards, the tightest one winning.
//!
//! The CPUs of a cpuset partition (cgroup v2, `cpuset.cpus.partition`) are no longer among the effective ones of the groups around it
//! (kernel/cgroup/cpuset.c `update_parent_effective_cpumask`). They count for those groups all the same: what is divided below a group
//! lies on them too.
//!
//! # Terminology
//! A *place* is a cgroup in the tree of competition, its *entitlement* what follows from all places. Place 0 is the
//! machine itself. Weights are the kernel's raw numbers: siblings are on one hierarchy, so theirs are of one kind.
//!
//! # Properties
//! - `fair_shares_of_competitors_never_exceed_the_machine`
//! - `a_flat_tree_gives_the_papers_fair_share`
//! - `limits_only_tighten_on_the_way_down`

use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::unit::{CpuShare, Limit, Millicpu};

/// The largest number a kernel accepts: `MAX_SHARES` of kernel/sched/sched.h; weights of v2 end at 10000.
const MAX_WEIGHT: u64 = 1 << 18;

/// Billionths of one CPU: fine enough that a product of ratios down a deep tree rounds to the same whole CPUs as the exact
/// fraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanocpu(pub u64);

impl Nanocpu {
    /// `n` whole CPUs.
    pub const fn cpus(n: u32) -> Self {
        Self(n as u64 * 1_000_000_000)
    }

    /// Whole CPUs, rounded up.
    pub const fn cpus_ceil(self) -> u32 {
        let n = self.0.div_ceil(1_000_000_000);
        if n < u32::MAX as u64 { n as u32 } else { u32::MAX }
    }

    /// Thousandths of a CPU, rounded down.
    pub const fn millicpu(self) -> Millicpu {
        Millicpu(self.0 / 1_000_000)
    }
}

/// A cgroup's own settings, as far as they matter in the competition for CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedGroup {
    /// Index of the place around it: always of an earlier place.
    pub parent: u32,
    /// Its weight among its siblings. `None`, where its controller is not there: the kernel's default.
    pub share: Option<CpuShare>,
    /// Whether its weight counts against its siblings: it has processes, and is not left out as idle.
    pub competes: bool,
    /// Its own quota.
    pub quota: Option<Limit<Millicpu>>,
    /// Its own cpuset; one that has no online CPU in common with those above is as good as none.
    pub cpuset: Option<CpuSet>,
}

/// What follows for a place from all places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuEntitlement {
    /// CPUs it gets when every group wants all CPUs: `w / sum_w * P` carried down the tree.
    pub fair: Nanocpu,
    /// Its weight as it counts.
    pub weight: u64,
    /// The sum of weights it is counted in, its own included.
    pub weight_sum: u64,
    /// The tightest quota of it and its ancestors.
    pub quota: Limit<Millicpu>,
    /// The CPUs that it, or a partition below it, may use: what its cpuset and those of its ancestors have in common.
    pub cpus: CpuSet,
}

impl CpuEntitlement {
    /// The most it can use: its quota or all its CPUs, whichever is less.
    pub fn cap(&self) -> Millicpu {
        self.quota.or(Millicpu::cpus(self.cpus.count().into()))
    }
}

/// Each place's entitlement, in the order of `places`. `places[0]` is the machine with its `online` CPUs.
///
/// The own weight of a place that does not compete counts for its own share: that is what it would get once it wakes.
pub(crate) fn entitlements(online: &CpuSet, places: &[SchedGroup]) -> Vec<CpuEntitlement> {
    let mut sums = vec![SiblingWeights::default(); places.len()];
    for place in places.iter().skip(1) {
        sums[place.parent as usize].add(place);
    }
    let cpusets = with_partitions(online, places);
    let mut computed: Vec<CpuEntitlement> = Vec::with_capacity(places.len());
    for (i, place) in places.iter().enumerate() {
        let entitlement = match i {
            0 => root_entitlement(online),
            _ => {
                let place = SchedGroup { cpuset: cpusets[i], ..*place };
                entitlement(&place, &computed[place.parent as usize], &sums[place.parent as usize])
            }
        };
        computed.push(entitlement);
    }
    computed
}

/// The online CPUs of each place's cpuset, with those of partitions below it: of places that have no CPU in common with it.
fn with_partitions(online: &CpuSet, places: &[SchedGroup]) -> Vec<Option<CpuSet>> {
    let known = |place: &SchedGroup| Some(place.cpuset?.intersection(online)).filter(|cpus| !cpus.is_empty());
    let own: Vec<Option<CpuSet>> = places.iter().map(known).collect();
    let mut all = own.clone();
    for (i, place) in places.iter().enumerate() {
        let Some(cpus) = own[i] else { continue };
        let mut around = place.parent as usize;
        while around > 0 {
            if let (Some(above), Some(all)) = (own[around], all[around].as_mut())
                && above.intersection(&cpus).is_empty()
            {
                *all = all.union(&cpus);
            }
            around = places[around].parent as usize;
        }
    }
    all
}

fn root_entitlement(online: &CpuSet) -> CpuEntitlement {
    CpuEntitlement {
        fair: Nanocpu::cpus(online.count()),
        weight: 1,
        weight_sum: 1,
        quota: Limit::Max,
        cpus: *online,
    }
}

fn entitlement(place: &SchedGroup, parent: &CpuEntitlement, siblings: &SiblingWeights) -> CpuEntitlement {
    let weight = weight(place.share).unwrap_or(siblings.default_weight());
    let of = siblings.total().saturating_add(if place.competes { 0 } else { weight });
    let inside = parent.fair.0.min(parent.cap().get().saturating_mul(1_000_000));
    let common = place.cpuset.map_or(parent.cpus, |own| own.intersection(&parent.cpus));
    CpuEntitlement {
        fair: Nanocpu((u128::from(inside) * u128::from(weight) / u128::from(of.max(1))) as u64),
        weight,
        weight_sum: of,
        quota: place.quota.map_or(parent.quota, |own| own.min(parent.quota)),
        cpus: if common.is_empty() { parent.cpus } else { common },
    }
}

/// A weight as it counts. `cpu.weight` reads 0 under `cpu.idle`: such a group still gets what no other group wants.
fn weight(share: Option<CpuShare>) -> Option<u64> {
    share.map(|share| share.raw().clamp(1, MAX_WEIGHT))
}

/// The sum of weights of the siblings that compete.
#[derive(Clone, Copy, Default)]
struct SiblingWeights {
    known: u64,
    unknown: u64,
    has_v2_weights: bool,
}

impl SiblingWeights {
    fn add(&mut self, place: &SchedGroup) {
        self.has_v2_weights |= matches!(place.share, Some(CpuShare::Weight(_)));
        match weight(place.share) {
            Some(weight) if place.competes => self.known = self.known.saturating_add(weight),
            None if place.competes => self.unknown += 1,
            _ => {}
        }
    }

    /// The kernel's default weight, in the unit of these siblings.
    fn default_weight(&self) -> u64 {
        if self.has_v2_weights { 100 } else { 1024 }
    }

    fn total(&self) -> u64 {
        self.known.saturating_add(self.unknown.saturating_mul(self.default_weight()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn group(parent: u32, weight: u64) -> SchedGroup {
        SchedGroup { parent, share: Some(CpuShare::Weight(weight)), competes: true, ..SchedGroup::default() }
    }

    fn cpus(list: &str) -> Option<CpuSet> {
        Some(list.parse().unwrap())
    }

    /// Places below the machine of 16 CPUs -> fair shares in thousandths of a CPU.
    fn check(places: &[SchedGroup], expect: &[u64]) {
        let all: Vec<SchedGroup> = [SchedGroup::default()].iter().chain(places).copied().collect();
        let entitlements = entitlements(&CpuSet::first_n(16), &all);
        let fair: Vec<u64> = entitlements[1..].iter().map(|s| s.fair.millicpu().get()).collect();
        assert_eq!(fair, expect, "{places:?}");
    }

    #[test]
    fn a_pod_shares_its_part_among_its_own_containers() {
        check(
            &[
                group(0, 100), // system.slice
                group(0, 300), // kubepods
                group(2, 100), // a pod of two containers
                group(2, 200), // a pod of one
                group(3, 100),
                group(3, 100),
                group(4, 1),
            ],
            &[4_000, 12_000, 4_000, 8_000, 2_000, 2_000, 8_000],
        );
    }

    #[test]
    fn a_group_without_processes_competes_for_nothing_but_knows_its_share() {
        let empty = SchedGroup { competes: false, ..group(0, 100) };
        check(&[group(0, 100), group(0, 100), empty], &[8_000, 8_000, 5_333]);
        check(&[empty], &[16_000]);
    }

    #[test]
    fn what_a_quota_lets_into_a_pod_is_all_there_is_to_share() {
        let pod = SchedGroup { quota: Some(Limit::At(Millicpu(3_000))), ..group(0, 100) };
        check(&[pod, group(1, 100), group(1, 100)], &[16_000, 1_500, 1_500]);
        let pod = SchedGroup { cpuset: cpus("4-5"), ..group(0, 100) };
        check(&[pod, group(1, 100), group(1, 300)], &[16_000, 500, 1_500]);
    }

    #[test]
    fn a_weight_that_is_not_known_is_the_kernels_default() {
        let unknown = SchedGroup { share: None, ..group(0, 0) };
        check(&[group(0, 300), unknown], &[12_000, 4_000]);
        let v1 = SchedGroup { share: Some(CpuShare::Shares(3072)), ..group(0, 0) };
        check(&[v1, unknown], &[12_000, 4_000]);
        check(&[unknown, unknown], &[8_000, 8_000]);
    }

    #[test]
    fn cpu_idle_reads_as_weight_zero_and_counts_as_one() {
        check(&[group(0, 0), group(0, 99)], &[160, 15_840]);
    }

    #[test]
    fn the_tightest_limit_of_all_ancestors_binds() {
        let pod =
            SchedGroup { quota: Some(Limit::At(Millicpu(2_000))), cpuset: cpus("0-3"), ..group(0, 100) };
        let inner =
            SchedGroup { quota: Some(Limit::At(Millicpu(5_000))), cpuset: cpus("2-9"), ..group(1, 100) };
        let got = entitlements(&CpuSet::first_n(16), &[SchedGroup::default(), pod, inner])[2];
        assert_eq!((got.quota, got.cpus), (Limit::At(Millicpu(2_000)), cpus("2-3").unwrap()));
    }

    #[test]
    fn a_partition_has_its_cpus_though_the_groups_around_it_lost_them() {
        // The root's and kubepods' effective CPUs are without those of the pod, which gave all of its own to two containers.
        let of = |parent, list| SchedGroup { cpuset: cpus(list), ..group(parent, 100) };
        let pod = SchedGroup { cpuset: None, ..group(2, 100) };
        let places = [
            SchedGroup::default(),
            of(0, "0-11"),
            of(1, "0-11"),
            pod,
            of(3, "12-13"),
            of(3, "14-15"),
            of(2, "0-11"),
        ];
        let got = entitlements(&CpuSet::first_n(16), &places);
        let cpus: Vec<String> = got[3..].iter().map(|at| at.cpus.to_string()).collect();
        assert_eq!(cpus, ["0-15", "12-13", "14-15", "0-11"]);
        assert_eq!((got[4].cap(), got[6].cap()), (Millicpu(2_000), Millicpu(12_000)));
    }

    #[test]
    fn a_cpuset_of_offline_cpus_is_as_good_as_none() {
        let place = SchedGroup { cpuset: cpus("16-20"), ..group(0, 100) };
        assert_eq!(
            entitlements(&CpuSet::first_n(16), &[SchedGroup::default(), place])[1].cpus,
            CpuSet::first_n(16)
        );
    }

    fn forest() -> impl Strategy<Value = Vec<SchedGroup>> {
        let place =
            (any::<u32>(), proptest::option::of(1u64..300_000), any::<bool>(), 0u64..40_000, any::<u16>());
        proptest::collection::vec(place, 0..24).prop_map(|seeds| {
            let mut places = vec![SchedGroup::default()];
            for (parent, share, competes, quota, cpus) in seeds {
                places.push(SchedGroup {
                    parent: parent % places.len() as u32,
                    share: share.map(CpuShare::Shares),
                    competes,
                    quota: (quota % 3 == 0).then_some(Limit::At(Millicpu(quota.max(1)))),
                    cpuset: (cpus % 3 == 0).then(|| (0..16).filter(|bit| cpus >> bit & 1 == 1).collect()),
                });
            }
            places
        })
    }

    proptest! {
        #[test]
        fn fair_shares_of_competitors_never_exceed_the_machine(places in forest()) {
            let entitlements = entitlements(&CpuSet::first_n(16), &places);
            for parent in 0..places.len() {
                let sum: u64 = (1..places.len())
                    .filter(|i| places[*i].parent as usize == parent && places[*i].competes)
                    .map(|i| entitlements[i].fair.0)
                    .sum();
                prop_assert!(sum <= entitlements[parent].fair.0);
            }
        }

        #[test]
        fn a_flat_tree_gives_the_papers_fair_share(
            weights in proptest::collection::vec(2u64..262_144, 1..12), online in 1u32..128
        ) {
            let groups = weights.iter().map(|w| group(0, *w));
            let places: Vec<SchedGroup> = std::iter::once(SchedGroup::default()).chain(groups).collect();
            let entitlements = entitlements(&CpuSet::first_n(online), &places);
            let sum: u64 = weights.iter().sum();
            for (weight, entitlement) in weights.iter().zip(&entitlements[1..]) {
                prop_assert_eq!(u64::from(entitlement.fair.cpus_ceil()), (weight * u64::from(online)).div_ceil(sum));
            }
        }

        #[test]
        fn limits_only_tighten_on_the_way_down(places in forest()) {
            let entitlements = entitlements(&CpuSet::first_n(16), &places);
            for i in 1..places.len() {
                let above = entitlements[places[i].parent as usize];
                prop_assert!(entitlements[i].cap() <= above.cap());
                prop_assert!(entitlements[i].cpus.difference(&above.cpus).is_empty() && !entitlements[i].cpus.is_empty());
            }
        }
    }
}
