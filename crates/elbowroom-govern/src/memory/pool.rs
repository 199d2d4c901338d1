//! What is divided: the machine, and inside of it each cgroup with a hard limit around several containers.
//!
//! # Approach
//! Containers compete as equals whichever cgroup they are in, and a cgroup has no more than its limit. All containers of the
//! machine are entitled together. Where those of a cgroup would be owed more than it may have, they divide its limit among
//! themselves, and the others divide the rest, until every limit holds. A container that needs memory gets it from any in the pool
//! that is short: in the machine when that is, in a cgroup when its limit is reached.

use super::entitle::{MemoryClaimant, entitle};
use super::member::MemoryMember;
use super::tuning::TUNING;
use super::{MemorySettings, PoolView, to_bytes, to_f64};
use elbowroom_types::claim::MemoryClaim;
use elbowroom_types::id::CgroupId;
use elbowroom_types::memory::{GroupMemory, NodeMemory};
use elbowroom_types::probe::Colour;
use elbowroom_types::sample::NodeProperties;
use elbowroom_types::unit::{Bytes, Limit, Micros};
use std::collections::BTreeMap;

/// A cgroup.
#[derive(Debug)]
pub(super) struct MemoryCgroupState {
    pub(super) parent: Option<CgroupId>,
    pub(super) max: Limit<Bytes>,
    pub(super) path: String,
    pub(super) is_container: bool,
    /// The last measurement, and when.
    pub(super) last_memory: Option<(Micros, GroupMemory)>,
}

/// A pool in one period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MemoryPool {
    /// Whose limit it is; `None` for the machine.
    pub(super) owner: Option<CgroupId>,
    /// What containers have together.
    pub(super) size: f64,
    /// What is free.
    pub(super) free: f64,
    /// Whether that is little.
    pub(super) short: bool,
}

/// A pool and its containers.
#[derive(Clone, Debug)]
pub(super) struct PoolMembership {
    pub(super) pool: MemoryPool,
    pub(super) path: String,
    /// The owners of the pools around it but the machine.
    pub(super) enclosing: Vec<CgroupId>,
    /// Its containers, those in pools inside of it too, ascending.
    pub(super) member_ids: Vec<CgroupId>,
}

impl PoolMembership {
    /// As it is shown, with `reserved` bytes reserved and `needing_more` containers that need more.
    pub(super) fn view(&self, reserved: f64, needing_more: usize) -> PoolView {
        PoolView {
            path: self.path.clone(),
            size: to_bytes(self.pool.size),
            // The margin is room for containers that are quick, and nothing to divide.
            free: to_bytes(self.pool.free.min(self.pool.size)),
            reserved: to_bytes(reserved),
            short: self.pool.short,
            containers: self.member_ids.len(),
            needing_more,
        }
    }

    /// Whether it is inside of another.
    fn is_in(&self, outer: &Self) -> bool {
        self.pool.owner.is_some() && outer.pool.owner.is_none_or(|owner| self.enclosing.contains(&owner))
    }
}

/// The machine: everything that its own jobs and the kernel do not hold fast, less a margin.
pub(super) fn machine_pool(
    node: &NodeProperties,
    memory: &NodeMemory,
    members: &[&GroupMemory],
    settings: &MemorySettings,
) -> MemoryPool {
    let sum = |of: fn(&GroupMemory) -> Bytes| to_f64(members.iter().map(|m| of(m)).sum());
    let cache = |m: &GroupMemory| m.inactive_file.saturating_add(m.active_file);
    let (total, free) = (to_f64(node.mem_total), to_f64(memory.mem_free));
    let outside = (total - free - sum(|m| m.usage)).max(0.0);
    let available = to_f64(memory.mem_available.saturating_sub(memory.mem_free));
    let spare = (available - sum(cache)).clamp(0.0, outside);
    let margin = (TUNING.margin * total).max(2.0 * to_f64(node.high_mark));
    let size = (total - margin - (outside - spare)).max(0.0);
    // Cache of what is no container is room: on a machine that has been up for a day, hardly anything else is.
    let free = (free + spare - to_f64(node.high_mark)).max(0.0);
    MemoryPool { owner: None, size, free, short: free < settings.short.fraction() * size }
}

/// A cgroup with a hard limit; whether the machine around it has that much is asked there.
pub(super) fn limited_pool(
    owner: CgroupId,
    limit: Bytes,
    memory: &GroupMemory,
    members: &[&GroupMemory],
    settings: &MemorySettings,
) -> MemoryPool {
    let used: Bytes = members.iter().map(|m| m.usage).sum();
    let outside = to_f64(memory.usage.saturating_sub(used));
    let size = (to_f64(limit) - outside).max(0.0);
    let free = to_f64(limit.saturating_sub(memory.usage));
    MemoryPool { owner: Some(owner), size, free, short: free < settings.short.fraction() * size }
}

/// A container that could use more than it has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct UnmetDemand {
    pub(super) id: CgroupId,
    pub(super) is_red: bool,
    /// How much more.
    pub(super) need: f64,
    /// It has less than it is owed, and says that it wants it.
    pub(super) is_owed: bool,
}

/// Works out minimums and what each container is owed. The first pool is the machine, the others follow from the outside in.
pub(super) fn compute_entitlements(
    pools: &[PoolMembership],
    members: &mut BTreeMap<CgroupId, MemoryMember>,
    settings: &MemorySettings,
) {
    let Some(machine) = pools.first() else { return };
    let mut most: BTreeMap<CgroupId, f64> = BTreeMap::new();
    for shared in pools {
        for id in &shared.member_ids {
            let most = most.entry(*id).or_insert(f64::INFINITY);
            *most = most.min(shared.pool.size);
        }
    }
    let mut now = BTreeMap::new();
    let mut nominal = BTreeMap::new();
    for (id, most) in most {
        let Some(member) = members.get_mut(&id) else { continue };
        let cap = member.max().or(Bytes(u64::MAX)).get() as f64;
        let cap = cap.min(most);
        let usage = member.usage();
        let kept = member.user_protection.value().map_or(usage, to_f64);
        (member.reservation, member.promised) = reservation(&member.claim.memory, kept, member.max());
        if member.is_of_kubernetes {
            member.reservation = member.reservation.max(kept.min(cap));
            member.promised = member.promised.max(kept.min(cap));
        }
        let lend = member.claim.memory.lend.unwrap_or(settings.lend).fraction();
        member.minimum = match member.colour() {
            _ if member.is_unpopulated() => 0.0,
            Colour::Green => (1.0 - lend) * member.reservation,
            Colour::Red | Colour::Yellow => member.reservation,
        };
        let (weight, tier) = (f64::from(member.claim.weight), member.claim.tier);
        let dead = member.is_unpopulated();
        let fills = !dead && member.colour() != Colour::Green;
        // What a container that is not hungry may grow by before it is asked again.
        let want = if member.wants_memory() { cap } else { (1.25 * usage + 8.0 * TUNING.min_step).min(cap) };
        let minimum = member.minimum;
        let (want, cap_now) = if fills { (want.max(minimum), cap.max(minimum)) } else { (minimum, minimum) };
        now.insert(
            id,
            MemoryClaimant {
                reserved: member.reservation,
                minimum,
                demand: want,
                max: cap_now,
                weight,
                tier,
            },
        );
        let minimum = if dead { 0.0 } else { member.reservation };
        let cap = if dead { 0.0 } else { cap.max(minimum) };
        nominal
            .insert(id, MemoryClaimant { reserved: minimum, minimum, demand: cap, max: cap, weight, tier });
    }
    let (now, nominal) = (entitlements_in(pools, machine, &now), entitlements_in(pools, machine, &nominal));
    for (id, entitlement) in now {
        if let Some(member) = members.get_mut(&id) {
            member.entitlement = entitlement;
            member.nominal_entitlement = nominal.get(&id).copied().unwrap_or_default();
            // Where more is reserved than there is, reservations shrink.
            member.minimum = member.minimum.min(entitlement);
        }
    }
}

/// What each claimant in a pool is owed of it, in no pool inside of it more than that may have.
fn entitlements_in(
    pools: &[PoolMembership],
    of: &PoolMembership,
    claimants: &BTreeMap<CgroupId, MemoryClaimant>,
) -> BTreeMap<CgroupId, f64> {
    let mut owed = BTreeMap::new();
    let mut open: BTreeMap<CgroupId, MemoryClaimant> =
        of.member_ids.iter().filter_map(|id| Some((*id, *claimants.get(id)?))).collect();
    let mut inside: Vec<&PoolMembership> = pools.iter().filter(|shared| shared.is_in(of)).collect();
    let mut left = of.pool.size;
    let sum = |shared: &PoolMembership, owed: &BTreeMap<CgroupId, f64>| -> f64 {
        shared.member_ids.iter().filter_map(|id| owed.get(id)).sum()
    };
    loop {
        let list: Vec<MemoryClaimant> = open.values().copied().collect();
        owed.extend(open.keys().copied().zip(entitle(&list, left)));
        let too_much = |shared: &&&PoolMembership| sum(shared, &owed) > shared.pool.size * (1.0 + 1e-9) + 1.0;
        let mut full: Vec<&PoolMembership> = Vec::new();
        for shared in inside.iter().filter(too_much) {
            if !full.iter().any(|outer| shared.is_in(outer)) {
                full.push(*shared);
            }
        }
        if full.is_empty() {
            return owed;
        }
        for shared in full {
            // Of pools inside it that were full before, what they had is divided anew with the rest of it.
            let fixed = shared.member_ids.iter().filter(|id| !open.contains_key(id));
            left += fixed.filter_map(|id| owed.get(id)).sum::<f64>();
            owed.extend(self::entitlements_in(pools, shared, claimants));
            left = (left - sum(shared, &owed)).max(0.0);
            open.retain(|id, _| shared.member_ids.binary_search(id).is_err());
            inside.retain(|other| other.pool.owner != shared.pool.owner && !other.is_in(shared));
        }
    }
}

/// What is reserved for a container with the limit `max`, and what of that is promised; `kept` is what its user protects. What the
/// container claims for itself counts up to its own limit; without a limit it has what is promised or kept anyway.
fn reservation(claim: &MemoryClaim, kept: f64, max: Limit<Bytes>) -> (f64, f64) {
    let most = max.value().map_or(f64::INFINITY, to_f64);
    let (Some(reservation), promised) = (claim.reservation, claim.promised) else {
        return (kept.min(most), kept.min(most));
    };
    let Some(promised) = promised.map(|promised| to_f64(promised).max(kept)) else {
        return (to_f64(reservation).min(most), to_f64(reservation).min(most));
    };
    let reservation = to_f64(reservation).min(if most.is_finite() { most } else { promised });
    (reservation, promised.min(reservation))
}

/// What is reserved in each pool by `of`, as far as pools inside of it can hold that. Containers without processes have nothing reserved.
pub(super) fn reserved(
    pools: &[PoolMembership],
    members: &BTreeMap<CgroupId, MemoryMember>,
    of: impl Fn(&MemoryMember) -> f64,
) -> Vec<f64> {
    let own = |id: &CgroupId| members.get(id).filter(|member| !member.is_unpopulated()).map_or(0.0, &of);
    let mut sums: Vec<f64> = pools.iter().map(|shared| shared.member_ids.iter().map(own).sum()).collect();
    // From the inside out: what a pool cannot hold is reserved in none around it.
    for inner in (0..pools.len()).rev() {
        let beyond = sums[inner] - pools[inner].pool.size;
        if beyond > 0.0 {
            let around = (0..inner).filter(|outer| pools[inner].is_in(&pools[*outer]));
            around.for_each(|outer| sums[outer] -= beyond);
        }
    }
    sums
}

impl PoolMembership {
    /// The containers that could use more than they have, and would have it if others in this pool gave it.
    pub(super) fn unmet_demands(
        &self,
        members: &BTreeMap<CgroupId, MemoryMember>,
        pools: &[Self],
    ) -> Vec<UnmetDemand> {
        let need = |member: &MemoryMember| {
            if !member.is_measured || member.is_unpopulated() || member.is_at_max() {
                return None;
            }
            let (usage, owed) = (member.usage(), member.entitlement);
            let red = member.colour() == Colour::Red;
            let room = member.max().value().map_or(f64::INFINITY, |max| to_f64(max) - usage);
            let need = match member.colour() {
                Colour::Red => (owed - usage).max(TUNING.first_step * usage + TUNING.min_step).min(room),
                Colour::Yellow if member.wants_memory() && owed > (1.0 + TUNING.noise) * usage => {
                    (owed - usage).min(room)
                }
                Colour::Yellow | Colour::Green => return None,
            };
            // Without a probe, yellow is all that is not known to be red or green; one that reads back much would use more.
            let wants = red || member.judgement.sigma.is_some() || member.is_refaulting();
            Some(UnmetDemand {
                id: member.id,
                is_red: red,
                need,
                is_owed: wants && usage < (1.0 - TUNING.noise) * owed,
            })
        };
        let mut needers: Vec<UnmetDemand> =
            self.member_ids.iter().filter_map(|id| need(members.get(id)?)).collect();
        // Those behind a limit get no more together than it leaves, from the inside out.
        for inner in pools.iter().rev().filter(|shared| shared.is_in(self)) {
            let is_in = |needer: &UnmetDemand| inner.member_ids.binary_search(&needer.id).is_ok();
            let all: f64 = needers.iter().filter(|needer| is_in(needer)).map(|needer| needer.need).sum();
            if all > inner.pool.free {
                let part = inner.pool.free / all;
                needers.iter_mut().filter(|needer| is_in(needer)).for_each(|needer| needer.need *= part);
                needers.retain(|needer| !is_in(needer) || needer.need >= TUNING.min_amount);
            }
        }
        needers
    }
}

/// Where a container's memory is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EnclosingPools {
    /// The cgroups with a hard limit around it and others, and their limits, from the inside out; around all is the machine.
    pub(super) owners: Vec<(CgroupId, Bytes)>,
    /// The tightest limit below that, which is around this container alone: there is nothing to divide, it is as its own.
    pub(super) ancestor_max: Limit<Bytes>,
}

/// The places of all containers. A limit that is no less than the machine's memory is none.
pub(super) fn enclosing_pools(
    members: impl Iterator<Item = CgroupId>,
    groups: &BTreeMap<CgroupId, crate::memory::pool::MemoryCgroupState>,
    mem_total: Bytes,
) -> BTreeMap<CgroupId, EnclosingPools> {
    let above = |id: CgroupId| groups.get(&id).and_then(|known| known.parent);
    type AncestorLimits = Vec<(CgroupId, Bytes)>;
    let limits = |id: CgroupId| -> AncestorLimits {
        // A parent that is its own ancestor cannot be; the count ends the walk where events say so.
        let ancestors = std::iter::successors(above(id), |id| above(*id)).take(groups.len());
        let limited = ancestors.filter_map(|id| Some((id, groups.get(&id)?.max.value()?)));
        limited.filter(|(_, max)| *max < mem_total).collect()
    };
    let around: Vec<(CgroupId, AncestorLimits)> = members.map(|id| (id, limits(id))).collect();
    let mut sharers: BTreeMap<CgroupId, usize> = BTreeMap::new();
    for (owner, _) in around.iter().flat_map(|(_, limits)| limits) {
        *sharers.entry(*owner).or_default() += 1;
    }
    let place = |(id, mut limits): (CgroupId, AncestorLimits)| {
        let alone = limits.iter().take_while(|(owner, _)| sharers.get(owner) == Some(&1)).count();
        let owners = limits.split_off(alone);
        let tightest = limits.iter().map(|(_, max)| *max).min();
        (id, EnclosingPools { owners, ancestor_max: tightest.map_or(Limit::Max, Limit::At) })
    };
    around.into_iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::unit::Micros;
    use proptest::prelude::*;

    fn shared(owner: Option<u64>, around: &[u64], size: f64, ids: &[u64]) -> PoolMembership {
        let owner = owner.map(CgroupId);
        let pool = MemoryPool { owner, size, free: 0.0, short: true };
        let group = |id: &u64| CgroupId(*id);
        PoolMembership {
            pool,
            path: String::new(),
            enclosing: around.iter().map(group).collect(),
            member_ids: ids.iter().map(group).collect(),
        }
    }

    #[test]
    fn cache_that_no_container_holds_is_room() {
        let gib = Bytes::gib;
        let node = NodeProperties { mem_total: gib(64), high_mark: gib(1), ..NodeProperties::default() };
        let check = |free, available, cache_of_containers, expect: f64| {
            let memory =
                NodeMemory { mem_free: gib(free), mem_available: gib(available), ..NodeMemory::default() };
            let member = GroupMemory {
                usage: gib(cache_of_containers),
                active_file: gib(cache_of_containers),
                ..GroupMemory::default()
            };
            let pool = machine_pool(&node, &memory, &[&member], &MemorySettings::default());
            assert_eq!(pool.free, expect * GIB, "{free} free, {available} available");
        };
        check(41, 41, 0, 40.0);
        check(1, 41, 0, 40.0);
        check(1, 41, 10, 30.0);
        check(1, 1, 0, 0.0);
    }

    #[test]
    fn a_machine_never_has_more_free_than_there_is_to_divide() {
        let node = NodeProperties { mem_total: Bytes::gib(64), ..NodeProperties::default() };
        let memory =
            NodeMemory { mem_free: Bytes::gib(64), mem_available: Bytes::gib(64), ..NodeMemory::default() };
        let pool = machine_pool(&node, &memory, &[], &MemorySettings::default());
        let shown = PoolMembership { pool, ..shared(None, &[], 0.0, &[]) }.view(0.0, 0);
        assert!(shown.size < Bytes::gib(64) && shown.free == shown.size, "{shown:?}");
    }

    fn hungry(reserved: f64, weight: f64) -> MemoryClaimant {
        let all = f64::INFINITY;
        MemoryClaimant { reserved, minimum: reserved, demand: all, max: all, weight, tier: 0 }
    }

    #[test]
    fn what_a_limit_keeps_from_its_containers_is_the_others() {
        // A slice of 6 with a pod of 2 in it, on a machine of 12.
        let pools = [
            shared(None, &[], 12.0, &[1, 2, 3, 4]),
            shared(Some(10), &[], 6.0, &[1, 2, 3]),
            shared(Some(11), &[10], 2.0, &[1, 2]),
        ];
        let check = |claimants: [MemoryClaimant; 4], expect: [f64; 4]| {
            let claimants = (1..).map(CgroupId).zip(claimants).collect();
            let got: Vec<f64> = entitlements_in(&pools, &pools[0], &claimants).into_values().collect();
            assert!(got.iter().zip(expect).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?}, not {expect:?}");
        };
        check([hungry(0.0, 1.0); 4], [1.0, 1.0, 4.0, 6.0]);
        // Only the pod's limit binds.
        check([hungry(0.0, 1.0), hungry(0.0, 1.0), hungry(0.0, 1.0), hungry(0.0, 4.0)], [1.0, 1.0, 2.0, 8.0]);
        // A reservation in the pod holds as far as its limit.
        check(
            [hungry(1.5, 1.0), hungry(0.0, 1.0), hungry(0.0, 1.0), hungry(0.0, 1.0)],
            [1.75, 0.25, 4.0, 6.0],
        );
    }

    /// A machine with a pod of two containers, which leaves so much, and one beside it. Each uses a GiB, misses its objective and is owed
    /// another; each has three reserved.
    fn pod_and_beside(leaves: f64) -> ([PoolMembership; 2], BTreeMap<CgroupId, MemoryMember>) {
        let mut pools =
            [shared(None, &[], 64.0 * GIB, &[1, 2, 3]), shared(Some(10), &[], 4.0 * GIB, &[1, 2])];
        pools[1].pool.free = leaves;
        let member = |id| {
            let mut member = MemoryMember::new(CgroupId(id));
            let memory = GroupMemory { usage: Bytes::gib(1), populated: true, ..GroupMemory::default() };
            member.measure(Micros::secs(1), &memory);
            member.judgement.colour = Colour::Red;
            (member.entitlement, member.reservation) = (2.0 * GIB, 3.0 * GIB);
            (CgroupId(id), member)
        };
        (pools, [1, 2, 3].map(member).into())
    }

    const GIB: f64 = (1 << 30) as f64;

    #[test]
    fn those_behind_a_limit_get_no_more_together_than_it_leaves() {
        let needs = |leaves, of: usize| {
            let (pools, members) = pod_and_beside(leaves);
            let needers = pools[of].unmet_demands(&members, &pools);
            needers.iter().map(|needer| (needer.id.0, needer.need / GIB)).collect::<Vec<_>>()
        };
        assert_eq!(needs(3.0 * GIB, 0), [(1, 1.0), (2, 1.0), (3, 1.0)]);
        assert_eq!(needs(GIB, 0), [(1, 0.5), (2, 0.5), (3, 1.0)]);
        assert_eq!(needs(0.0, 0), [(3, 1.0)]);
        assert_eq!(needs(0.0, 1), [(1, 1.0), (2, 1.0)], "containers in it can give");
    }

    #[test]
    fn what_a_container_claims_for_itself_counts_at_most_to_its_own_limit() {
        let gib = |n| Some(Bytes::gib(n));
        let check = |reserved, promised, kept, max, expect| {
            let claim = MemoryClaim { reservation: reserved, promised, ..MemoryClaim::default() };
            assert_eq!(
                reservation(&claim, kept * GIB, max),
                expect,
                "{reserved:?} {promised:?} {kept} {max}"
            );
        };
        let limit = Limit::At(Bytes::gib(4));
        // The operator's entry, and what its user protects.
        check(gib(9), None, 0.0, Limit::Max, (9.0 * GIB, 9.0 * GIB));
        check(None, None, 2.0, limit, (2.0 * GIB, 2.0 * GIB));
        // Its own claim.
        check(gib(9), gib(0), 0.0, limit, (4.0 * GIB, 0.0));
        check(gib(9), gib(0), 0.0, Limit::Max, (0.0, 0.0));
        check(gib(9), gib(1), 2.0, Limit::Max, (2.0 * GIB, 2.0 * GIB));
        check(gib(3), gib(1), 0.0, limit, (3.0 * GIB, 1.0 * GIB));
        check(gib(1), gib(1), 0.0, Limit::Max, (1.0 * GIB, 1.0 * GIB));
    }

    #[test]
    fn what_a_pool_cannot_hold_is_reserved_in_none_around_it() {
        let (pools, members) = pod_and_beside(0.0);
        assert_eq!(reserved(&pools, &members, |member| member.reservation), [7.0 * GIB, 6.0 * GIB]);
    }

    proptest! {
        #[test]
        fn no_pool_is_owed_more_than_it_has_and_nothing_is_left_over(
            sizes in proptest::array::uniform4(0.0..1e12),
            claimants in proptest::collection::vec((0.0..1e11, 0.0..1e12, 1.0..1e4, 0u8..3), 7),
        ) {
            let pools = [
                shared(None, &[], sizes[0], &[1, 2, 3, 4, 5, 6, 7]),
                shared(Some(10), &[], sizes[1], &[1, 2, 3, 4]),
                shared(Some(12), &[], sizes[2], &[5, 6]),
                shared(Some(11), &[10], sizes[3], &[2, 3]),
            ];
            let claimant = |(minimum, more, weight, tier)| {
                let want = minimum + more;
                MemoryClaimant { reserved: minimum, minimum, demand: want, max: want, weight, tier }
            };
            let claimants: BTreeMap<CgroupId, MemoryClaimant> = (1..).map(CgroupId).zip(claimants.into_iter().map(claimant)).collect();
            let owed = entitlements_in(&pools, &pools[0], &claimants);
            let of = |shared: &PoolMembership| shared.member_ids.iter().map(|id| owed[id]).sum::<f64>();
            for shared in &pools {
                prop_assert!(of(shared) <= shared.pool.size * (1.0 + 1e-6) + 10.0, "{shared:?} {owed:?}");
            }
            // A container that could take more is in a pool of which all is owed.
            for (id, claimant) in &claimants {
                let filled = |shared: &&PoolMembership| of(shared) >= shared.pool.size * (1.0 - 1e-6) - 10.0;
                let content = owed[id] >= claimant.max * (1.0 - 1e-6) - 10.0;
                let around = pools.iter().filter(|shared| shared.member_ids.contains(id));
                prop_assert!(content || around.clone().any(|shared| filled(&shared)), "{id:?} {owed:?}");
            }
        }
    }
}
