//! The governor of a machine's memory: what events do to it.

use super::member::{MemoryMember, ProtectionStatus};
use super::pool::{self, EnclosingPools, PoolMembership};
use super::pool_pass::{PassState, PoolPass};
use super::saving::SavingPass;
use super::tuning::TUNING;
use super::{
    ContainerMemoryStatus, MemoryAction, MemoryMechanisms, MemorySettings, PoolView, alerts, protect, to_f64,
};
use crate::SERVICE_CGROUPS;
use crate::alert::conditions::Conditions;
use crate::memory::pool::MemoryCgroupState;
use elbowroom_types::alert::Alert;
use elbowroom_types::claim::Claim;
use elbowroom_types::container::{ContainerEngine, claim_for, display_name, is_of_kubernetes};
use elbowroom_types::id::CgroupId;
use elbowroom_types::memory::{
    GroupMemory, MemoryOrder, MemoryTick, NodeMemory, OrderCompletion, OrderKind, OrderOutcome, ProbeUpdate,
    ReclaimProtection, ViewCeiling,
};
use elbowroom_types::sample::{CgroupProperties, CgroupSettings, HostEvent, NodeProperties};
use elbowroom_types::unit::{Bytes, Limit, Micros};
use std::collections::{BTreeMap, BTreeSet};

/// The governor of a machine's memory: a pure state machine over events.
///
/// The same events give the same orders. Containers are those that [`HostEvent::Group`] told of, the outermost where one is inside
/// another. Nothing can fail: numbers that cannot be true saturate.
#[derive(Debug)]
pub struct MemoryGovernor {
    settings: MemorySettings,
    mechanisms: MemoryMechanisms,
    claims: Vec<Claim>,
    node: Option<NodeProperties>,
    groups: BTreeMap<CgroupId, MemoryCgroupState>,
    members: BTreeMap<CgroupId, MemoryMember>,
    pools: Vec<PoolView>,
    conditions: Conditions,
    last: Option<Micros>,
    /// When a container last needed something, per pool.
    last_need: BTreeMap<Option<CgroupId>, Micros>,
}

/// What a container's user protects with the kernel's own means; [`Limit::Max`]: all that it uses.
fn user_protection(limits: &CgroupSettings) -> Limit<Bytes> {
    let larger = |a, b| match (a, b) {
        (Limit::At(a), Limit::At(b)) => Limit::At(Bytes::max(a, b)),
        _ => Limit::Max,
    };
    let claimed = [limits.memory_low, limits.memory_min].into_iter().flatten().reduce(larger);
    // v1 shows a soft limit that was not set as `max`.
    let soft = limits.memory_soft.and_then(Limit::value).map(Limit::At);
    claimed.or(soft).unwrap_or(Limit::At(Bytes::ZERO))
}

impl MemoryGovernor {
    /// A governor that knows no container.
    pub fn new(settings: MemorySettings, claims: Vec<Claim>) -> Self {
        Self {
            settings,
            mechanisms: MemoryMechanisms::default(),
            claims,
            node: None,
            groups: BTreeMap::new(),
            members: BTreeMap::new(),
            pools: Vec::new(),
            conditions: Conditions::default(),
            last: None,
            last_need: BTreeMap::new(),
        }
    }

    /// The same with some mechanisms only, for experiments.
    pub fn with_mechanisms(self, mechanisms: MemoryMechanisms) -> Self {
        Self { mechanisms, ..self }
    }

    /// The choices in force.
    pub const fn settings(&self) -> &MemorySettings {
        &self.settings
    }

    /// Takes an event in, and says what to do about it: at most one order of each kind per container. Only [`HostEvent::MemoryTick`] takes
    /// anything from a container; one that is governed no more has what was its own again.
    pub fn apply(&mut self, event: &HostEvent) -> Vec<MemoryOrder> {
        match event {
            HostEvent::Node(node) => self.node = Some(node.clone()),
            HostEvent::Group(group) => return self.update_group(group),
            HostEvent::Gone(id) => return self.remove_group(*id),
            HostEvent::Probe(heard) => self.on_probe(heard),
            HostEvent::MemoryDone(done) => self.on_order_completed(done),
            HostEvent::MemoryTick(tick) => return self.tick(tick),
            HostEvent::Tick(_) | HostEvent::ViewCeiling(_) => {}
            HostEvent::Disk(_) | HostEvent::DiskGone(_) | HostEvent::DiskTick(_) | HostEvent::IoLimits(_) => {
            }
        }
        Vec::new()
    }

    /// Where a container stands; `None` for one that is not governed or was not measured yet.
    pub fn status(&self, id: CgroupId) -> Option<ContainerMemoryStatus> {
        let member = self.members.get(&id)?;
        member.is_measured.then(|| member.status(self.last.unwrap_or_default()))
    }

    /// The containers that waited for memory in the last period, as the kernel shows it.
    pub fn stalled_containers(&self) -> impl Iterator<Item = CgroupId> {
        self.members
            .values()
            .filter(|member| member.is_measured && member.is_stalled())
            .map(|member| member.id)
    }

    /// The containers that use more than their views were to show at most.
    pub fn above_view_ceiling(&self) -> impl Iterator<Item = CgroupId> {
        let above = |member: &&MemoryMember| match member.view_ceiling {
            Limit::At(ceiling) => member.is_measured && member.usage() > to_f64(ceiling) + TUNING.min_amount,
            Limit::Max => false,
        };
        self.members.values().filter(above).map(|member| member.id)
    }

    /// Every pool that containers share, the machine first.
    pub fn pools(&self) -> &[PoolView] {
        &self.pools
    }

    /// The alerts that last now.
    pub fn alerts(&self) -> Vec<Alert> {
        self.conditions.active().cloned().collect()
    }

    /// The cgroups that have to be measured: containers, and those with a hard limit around them.
    pub fn groups_to_measure(&self) -> Vec<CgroupId> {
        let mut watched: BTreeSet<CgroupId> = self.members.keys().copied().collect();
        let total = self.node.as_ref().map_or(Bytes(u64::MAX), |node| node.mem_total);
        let places = self.enclosing_pools(total);
        watched.extend(places.values().flat_map(|place| &place.owners).map(|(owner, _)| *owner));
        watched.into_iter().collect()
    }

    fn enclosing_pools(&self, mem_total: Bytes) -> BTreeMap<CgroupId, EnclosingPools> {
        pool::enclosing_pools(self.members.keys().copied(), &self.groups, mem_total)
    }

    fn update_group(&mut self, group: &CgroupProperties) -> Vec<MemoryOrder> {
        let mut orders = Vec::new();
        let memory = self.groups.remove(&group.id).and_then(|known| known.last_memory);
        let known = MemoryCgroupState {
            parent: group.parent,
            max: group.limits.memory_max.unwrap_or(Limit::Max),
            path: group.path.clone(),
            is_container: group.container.is_some(),
            last_memory: memory,
        };
        self.groups.insert(group.id, known);
        if let Some(container) = &group.container {
            let member = self.members.entry(group.id).or_insert_with(|| MemoryMember::new(group.id));
            member.mechanisms = self.mechanisms;
            member.name = display_name(container);
            member.claim = claim_for(&self.claims, container);
            member.own_max = group.limits.memory_max.unwrap_or(Limit::Max);
            member.user_protection = match group.made_by_user {
                true => Limit::At(Bytes::ZERO),
                false => user_protection(&group.limits),
            };
            member.is_of_kubernetes = is_of_kubernetes(&group.path);
            let serves =
                container.engine == ContainerEngine::Plain && SERVICE_CGROUPS.contains(&group.path.as_str());
            member.exempt_reason = match member.claim.memory.reservation {
                _ if serves => {
                    Some("the machine's own services run in it, and all containers wait for those")
                }
                None if member.user_protection == Limit::Max => Some("its user protects all that it uses"),
                _ => None,
            };
        } else {
            self.remove_member(group.id, &mut orders);
        }
        let inner: Vec<CgroupId> =
            self.members.keys().copied().filter(|id| !self.is_outermost(*id)).collect();
        inner.iter().for_each(|id| self.remove_member(*id, &mut orders));
        orders
    }

    /// Governs a container no more: nothing of ours stays on it, where it is still there.
    fn remove_member(&mut self, group: CgroupId, orders: &mut Vec<MemoryOrder>) {
        let Some(member) = self.members.remove(&group) else { return };
        let at = self.last.unwrap_or_default();
        if member.view_ceiling != Limit::Max {
            orders.push(MemoryOrder::ViewCeiling(ViewCeiling { at, group, ceiling: Limit::Max }));
        }
        if member.protect.is_some() {
            let (low, min, soft) = (Bytes::ZERO, Bytes::ZERO, Limit::Max);
            orders.push(MemoryOrder::Protect(ReclaimProtection { at, group, low, min, soft }));
        }
    }

    /// A container inside another is governed with the outer one, whose memory includes its own.
    fn is_outermost(&self, id: CgroupId) -> bool {
        !self.is_below(id, |above| self.groups.get(&above).is_some_and(|known| known.is_container))
    }

    /// Whether one of the groups above a group is such a one.
    fn is_below(&self, id: CgroupId, such: impl Fn(CgroupId) -> bool) -> bool {
        let parent = |id: CgroupId| self.groups.get(&id).and_then(|known| known.parent);
        // A group that is its own ancestor cannot be; the count ends the walk where events say so.
        std::iter::successors(parent(id), |above| parent(*above)).take(self.groups.len()).any(such)
    }

    fn remove_group(&mut self, id: CgroupId) -> Vec<MemoryOrder> {
        let mut gone = vec![id];
        let mut next = 0;
        while let Some(parent) = gone.get(next).copied() {
            let below =
                self.groups.iter().filter(|(_, known)| known.parent == Some(parent)).map(|(id, _)| *id);
            gone.extend(below.filter(|id| !gone.contains(id)).collect::<Vec<_>>());
            next += 1;
        }
        let mut orders = Vec::new();
        for id in &gone {
            self.groups.remove(id);
            self.remove_member(*id, &mut orders);
            self.last_need.remove(&Some(*id));
        }
        let now = self.last.unwrap_or_default();
        let ended = self.conditions.forget(now, |_, group| group.is_some_and(|group| gone.contains(&group)));
        orders.extend(ended.into_iter().map(MemoryOrder::Alert));
        orders
    }

    fn on_probe(&mut self, heard: &ProbeUpdate) {
        if let Some(member) = self.members.get_mut(&heard.group)
            && member.last_probe.is_none_or(|before| before.at <= heard.at)
        {
            member.last_probe = Some(*heard);
        }
    }

    fn on_order_completed(&mut self, done: &OrderCompletion) {
        // The kubelet writes `memory.low` and `memory.min` itself (MemoryQoS): what it wrote is the owner's, and ours is added to
        // that. Where it wrote in the same moment, the next order does.
        let kubelet = self.groups.get(&done.group).is_some_and(|group| is_of_kubernetes(&group.path));
        let Some(member) = self.members.get_mut(&done.group) else { return };
        let later = |wait: Micros| done.now.saturating_add(wait);
        match done.what {
            OrderKind::Reclaim => {
                let Some((_, what)) = member.pending.take() else { return };
                if let MemoryAction::Save { amount } = what {
                    if let Some(savings) = &mut member.saving {
                        savings.on_completed(done.now, amount, done.reclaimed, &done.outcome);
                    }
                    return;
                }
                match done.outcome {
                    OrderOutcome::Refused(_) | OrderOutcome::Foreign => {
                        member.refused_until = later(TUNING.refused_retry)
                    }
                    // Nothing was tried, so nothing is learned.
                    OrderOutcome::Late => return,
                    OrderOutcome::Done | OrderOutcome::Partly | OrderOutcome::Gone => {}
                }
                if let MemoryAction::Lend { amount: asked } = what {
                    let usual = member.meter.refault_mean();
                    member.loans.record_loan(done.reclaimed, usual);
                    if done.reclaimed.get() < asked.get() / 4 && done.outcome == OrderOutcome::Partly {
                        member.loans.fail(done.now);
                    }
                }
            }
            OrderKind::Protect => {
                (member.protection, member.unprotectable_until) = match done.outcome {
                    OrderOutcome::Done | OrderOutcome::Partly => {
                        (ProtectionStatus::InForce, member.unprotectable_until)
                    }
                    OrderOutcome::Foreign if !kubelet => {
                        (ProtectionStatus::Foreign, later(TUNING.foreign_retry))
                    }
                    OrderOutcome::Foreign
                    | OrderOutcome::Refused(_)
                    | OrderOutcome::Gone
                    | OrderOutcome::Late => (ProtectionStatus::Refused, later(TUNING.refused_retry)),
                };
            }
        }
    }

    fn tick(&mut self, tick: &MemoryTick) -> Vec<MemoryOrder> {
        let now = tick.now;
        let elapsed = self.last.map(|last| now.saturating_sub(last));
        if self.last.is_some_and(|last| now <= last)
            || elapsed.is_some_and(|elapsed| elapsed < TUNING.min_period)
        {
            return Vec::new();
        }
        let (Some(node), settings) = (self.node.clone(), self.settings.clone()) else { return Vec::new() };
        let paused = elapsed.is_some_and(|elapsed| elapsed > TUNING.patience);
        self.last = Some(now);
        self.record_samples(tick);
        let mut orders = Vec::new();
        self.pools.clear();
        let places = self.enclosing_pools(node.mem_total);
        for (id, place) in &places {
            if let Some(member) = self.members.get_mut(id) {
                member.ancestor_max = place.ancestor_max;
            }
        }
        let pools = self.build_pools(&node, &tick.node, &places);
        pool::compute_entitlements(&pools, &mut self.members, &settings);
        let (page_size, views) = (node.page_size, settings.lower_views);
        let passes: Vec<PoolPass<'_>> = pools
            .iter()
            .map(|shared| PoolPass {
                now,
                membership: shared,
                page_size,
                shrink_views: views,
                mechanisms: self.mechanisms,
            })
            .collect();
        // The pools that each container is in, from the outside in.
        let mut within: BTreeMap<CgroupId, Vec<&PoolPass<'_>>> = BTreeMap::new();
        for pass in &passes {
            pass.membership.member_ids.iter().for_each(|id| within.entry(*id).or_default().push(pass));
        }
        if !paused {
            for (id, passes) in &within {
                if let (Some(member), Some(innermost)) = (self.members.get_mut(id), passes.last()) {
                    innermost.review(member);
                }
            }
        }
        let busy = self.members_around_need(&pools, now);
        let mut pass_state = PassState::default();
        let reserved = pool::reserved(&pools, &self.members, |member| member.reservation);
        let promised = pool::reserved(&pools, &self.members, |member| member.promised);
        for ((pass, reserved), promised) in passes.iter().zip(reserved).zip(promised) {
            let shared = pass.membership;
            let needers = shared.unmet_demands(&self.members, &pools);
            if pass.move_memory(&mut self.members, &needers, &mut pass_state, &mut orders) {
                self.last_need.insert(shared.pool.owner, now);
            }
            let alerts = alerts::pool_alerts(shared, [reserved, promised], now, &mut self.conditions);
            orders.extend(alerts.map(MemoryOrder::Alert));
            self.pools.push(shared.view(reserved, needers.len()));
        }
        for (id, passes) in &within {
            let (Some(member), Some(innermost)) = (self.members.get_mut(id), passes.last()) else { continue };
            innermost.finish(member, &pass_state, !busy.contains(id), &mut orders);
            orders.extend(protect::protection_order(member, now));
            let short = passes.iter().any(|pass| pass.membership.pool.short);
            orders.extend(
                alerts::member_alerts(member, short, now, &mut self.conditions).map(MemoryOrder::Alert),
            );
        }
        if !paused {
            let (settings, memory) = (&settings, &tick.node);
            let saving = SavingPass { now, settings, memory, mem_total: node.mem_total, page_size };
            let known = self.members.iter_mut().filter(|(id, _)| within.contains_key(*id));
            saving.run(known, |id| busy.contains(&id) || pass_state.is_short(id), &mut orders);
        }
        // A pool whose last container left is not among those that were looked at.
        orders.extend(self.conditions.clear_unseen(now).into_iter().map(MemoryOrder::Alert));
        orders
    }

    /// The members of pools in which some container needed something lately.
    fn members_around_need(&self, pools: &[PoolMembership], now: Micros) -> BTreeSet<CgroupId> {
        let rested = |shared: &&PoolMembership| {
            self.last_need.get(&shared.pool.owner).is_none_or(|at| now.saturating_sub(*at) >= TUNING.patience)
        };
        let busy = pools.iter().filter(|shared| !rested(shared));
        busy.flat_map(|shared| shared.member_ids.iter().copied()).collect()
    }

    /// Takes what was measured of cgroups; members that were not are in no pool this time.
    fn record_samples(&mut self, tick: &MemoryTick) {
        self.members.values_mut().for_each(|member| member.is_measured = false);
        for (id, memory) in &tick.groups {
            if let Some(known) = self.groups.get_mut(id) {
                known.last_memory = Some((tick.now, *memory));
            }
            if let Some(member) = self.members.get_mut(id) {
                member.measure(tick.now, memory);
            }
        }
    }

    /// The pools with their members, from the outside in, the machine first; none where no container is. A container that was not
    /// measured is in no pool. A pool that was not measured cannot be divided, and its members are in no other pool either.
    fn build_pools(
        &self,
        node: &NodeProperties,
        memory: &NodeMemory,
        places: &BTreeMap<CgroupId, EnclosingPools>,
    ) -> Vec<PoolMembership> {
        let is_known = |place: &&EnclosingPools| {
            place.owners.iter().all(|(owner, _)| self.measured_memory(*owner).is_some())
        };
        let mut limits: BTreeMap<CgroupId, (Bytes, Vec<CgroupId>)> = BTreeMap::new();
        let mut inside: BTreeMap<Option<CgroupId>, Vec<CgroupId>> = BTreeMap::new();
        for member in self.members.values().filter(|member| member.is_measured) {
            let Some(place) = places.get(&member.id).filter(is_known) else { continue };
            inside.entry(None).or_default().push(member.id);
            for (at, (owner, limit)) in place.owners.iter().enumerate() {
                inside.entry(Some(*owner)).or_default().push(member.id);
                let around = || place.owners[at + 1..].iter().map(|(owner, _)| *owner).collect();
                limits.entry(*owner).or_insert_with(|| (*limit, around()));
            }
        }
        let shared = |(owner, ids): (Option<CgroupId>, Vec<CgroupId>)| {
            let own: Vec<&GroupMemory> = ids.iter().filter_map(|id| self.measured_memory(*id)).collect();
            let Some(owner) = owner else {
                let pool = pool::machine_pool(node, memory, &own, &self.settings);
                return Some(PoolMembership {
                    pool,
                    path: "/".to_owned(),
                    enclosing: Vec::new(),
                    member_ids: ids,
                });
            };
            let (limit, around) = limits.get(&owner)?.clone();
            let pool = pool::limited_pool(owner, limit, self.measured_memory(owner)?, &own, &self.settings);
            Some(PoolMembership {
                pool,
                path: self.groups.get(&owner)?.path.clone(),
                enclosing: around,
                member_ids: ids,
            })
        };
        let mut pools: Vec<PoolMembership> = inside.into_iter().filter_map(shared).collect();
        pools.sort_by_key(|shared| (shared.pool.owner.is_some(), shared.enclosing.len(), shared.pool.owner));
        pools
    }

    fn measured_memory(&self, id: CgroupId) -> Option<&GroupMemory> {
        let (at, memory) = self.groups.get(&id)?.last_memory.as_ref()?;
        (Some(*at) == self.last).then_some(memory)
    }
}
