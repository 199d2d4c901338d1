//! The governor of a machine's memory: what events do to it.

use super::member::{Member, Protection};
use super::pool::{self, Place, Shared};
use super::turn::{Spoken, Turn};
use super::{PoolView, Settings, Standing, What, alerts, amount, bytes, lend, protect, recall};
use crate::SERVICES;
use crate::alert::conditions::Conditions;
use elbowroom_types::alert::Alert;
use elbowroom_types::claim::{Claim, claim, name};
use elbowroom_types::memory::{
    Act, Done, Export, GroupMemory, Heard, MemoryTick, NodeMemory, Order, Outcome, Protect,
};
use elbowroom_types::sample::{Engine, Event, Group, GroupId, Limits, Node};
use elbowroom_types::unit::{Bytes, Limit, Micros};
use std::collections::{BTreeMap, BTreeSet};

/// A shorter time between two ticks is none.
const SHORTEST: Micros = Micros::millis(200);
/// A longer one is a pause: what was watched is not judged by it.
const LONGEST: Micros = Micros::secs(10);
/// How long nobody has to need anything before views show what they did.
const REST: Micros = Micros::secs(10);

/// The governor of a machine's memory: a pure state machine over events.
///
/// The same events give the same orders. Containers are those that [`Event::Group`] told of, the outermost where one is inside
/// another. Nothing can fail: numbers that cannot be true saturate.
#[derive(Debug)]
pub struct Memory {
    settings: Settings,
    claims: Vec<Claim>,
    node: Option<Node>,
    groups: BTreeMap<GroupId, Known>,
    members: BTreeMap<GroupId, Member>,
    pools: Vec<PoolView>,
    conditions: Conditions,
    last: Option<Micros>,
    /// When somebody last needed something, per pool.
    needed: BTreeMap<Option<GroupId>, Micros>,
}

/// A cgroup.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) parent: Option<GroupId>,
    pub(super) max: Limit<Bytes>,
    path: String,
    container: bool,
    /// The last measurement, and when.
    memory: Option<(Micros, GroupMemory)>,
}

/// What a container's user protects with the kernel's own means; [`Limit::Max`]: all that it uses.
fn kept(limits: &Limits) -> Limit<Bytes> {
    let larger = |a, b| match (a, b) {
        (Limit::At(a), Limit::At(b)) => Limit::At(Bytes::max(a, b)),
        _ => Limit::Max,
    };
    let claimed = [limits.memory_low, limits.memory_min].into_iter().flatten().reduce(larger);
    // v1 shows a soft limit that nobody set as `max`.
    let soft = limits.memory_soft.and_then(Limit::value).map(Limit::At);
    claimed.or(soft).unwrap_or(Limit::At(Bytes::ZERO))
}

impl Memory {
    /// A governor that knows no container.
    pub fn new(settings: Settings, claims: Vec<Claim>) -> Self {
        Self {
            settings,
            claims,
            node: None,
            groups: BTreeMap::new(),
            members: BTreeMap::new(),
            pools: Vec::new(),
            conditions: Conditions::default(),
            last: None,
            needed: BTreeMap::new(),
        }
    }

    /// The choices in force.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes an event in, and says what to do about it: at most one order of each kind per container. Only [`Event::MemoryTick`] takes
    /// anything from anybody; who is governed no more has what was his again.
    pub fn apply(&mut self, event: &Event) -> Vec<Order> {
        match event {
            Event::Node(node) => self.node = Some(node.clone()),
            Event::Group(group) => return self.meet(group),
            Event::Gone(id) => return self.gone(*id),
            Event::Heard(heard) => self.hear(heard),
            Event::MemoryDone(done) => self.done(done),
            Event::MemoryTick(tick) => return self.tick(tick),
            Event::Tick(_) | Event::Export(_) => {}
            Event::Disk(_) | Event::DiskGone(_) | Event::DiskTick(_) | Event::IoLimits(_) => {}
        }
        Vec::new()
    }

    /// Where a container stands; `None` for one that is not governed or was not measured yet.
    pub fn standing(&self, id: GroupId) -> Option<Standing> {
        let member = self.members.get(&id)?;
        member.measured.then(|| member.standing(self.last.unwrap_or_default()))
    }

    /// The containers that waited for memory in the last period, as the kernel shows it.
    pub fn pressed(&self) -> impl Iterator<Item = GroupId> {
        self.members.values().filter(|member| member.measured && member.is_pressed()).map(|member| member.id)
    }

    /// The containers that use more than their views were to show at most.
    pub fn above_their_views(&self) -> impl Iterator<Item = GroupId> {
        let above = |member: &&Member| match member.export {
            Limit::At(ceiling) => member.measured && member.usage() > amount(ceiling) + lend::LEAST,
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
        self.conditions.lasting().cloned().collect()
    }

    /// The cgroups that have to be measured: containers, and those with a hard limit around them.
    pub fn watched(&self) -> Vec<GroupId> {
        let mut watched: BTreeSet<GroupId> = self.members.keys().copied().collect();
        let total = self.node.as_ref().map_or(Bytes(u64::MAX), |node| node.mem_total);
        let places = self.places(total);
        watched.extend(places.values().flat_map(|place| &place.owners).map(|(owner, _)| *owner));
        watched.into_iter().collect()
    }

    fn places(&self, mem_total: Bytes) -> BTreeMap<GroupId, Place> {
        pool::places(self.members.keys().copied(), &self.groups, mem_total)
    }

    fn meet(&mut self, group: &Group) -> Vec<Order> {
        let mut orders = Vec::new();
        let memory = self.groups.remove(&group.id).and_then(|known| known.memory);
        let known = Known {
            parent: group.parent,
            max: group.limits.memory_max.unwrap_or(Limit::Max),
            path: group.path.clone(),
            container: group.container.is_some(),
            memory,
        };
        self.groups.insert(group.id, known);
        if let Some(container) = &group.container {
            let member = self.members.entry(group.id).or_insert_with(|| Member::new(group.id));
            member.name = name(container);
            member.claim = claim(&self.claims, container);
            member.own_max = group.limits.memory_max.unwrap_or(Limit::Max);
            member.kept = kept(&group.limits);
            let serves = container.engine == Engine::Plain && SERVICES.contains(&group.path.as_str());
            member.hands_off = match member.claim.memory.reserve {
                _ if serves => Some("the machine's own services run in it, and everybody waits for those"),
                None if member.kept == Limit::Max => Some("its user protects all that it uses"),
                _ => None,
            };
        } else {
            self.leave(group.id, &mut orders);
        }
        let inner: Vec<GroupId> = self.members.keys().copied().filter(|id| !self.is_outermost(*id)).collect();
        inner.iter().for_each(|id| self.leave(*id, &mut orders));
        orders
    }

    /// Governs a container no more: nothing of ours stays on it, where it is still there.
    fn leave(&mut self, group: GroupId, orders: &mut Vec<Order>) {
        let Some(member) = self.members.remove(&group) else { return };
        let at = self.last.unwrap_or_default();
        if member.export != Limit::Max {
            orders.push(Order::Export(Export { at, group, ceiling: Limit::Max }));
        }
        if member.protect.is_some() {
            let (low, min, soft) = (Bytes::ZERO, Bytes::ZERO, Limit::Max);
            orders.push(Order::Protect(Protect { at, group, low, min, soft }));
        }
        if member.lease.is_some() {
            orders.push(Order::Release(group));
        }
    }

    /// A container inside another is governed with the outer one, whose memory includes its own.
    fn is_outermost(&self, id: GroupId) -> bool {
        !self.is_below(id, |above| self.groups.get(&above).is_some_and(|known| known.container))
    }

    /// Whether one of the groups above a group is such a one.
    fn is_below(&self, id: GroupId, such: impl Fn(GroupId) -> bool) -> bool {
        let parent = |id: GroupId| self.groups.get(&id).and_then(|known| known.parent);
        // A group that is its own ancestor cannot be; the count ends the walk where events say so.
        std::iter::successors(parent(id), |above| parent(*above)).take(self.groups.len()).any(such)
    }

    fn gone(&mut self, id: GroupId) -> Vec<Order> {
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
            self.leave(*id, &mut orders);
            self.needed.remove(&Some(*id));
        }
        let now = self.last.unwrap_or_default();
        let ended = self.conditions.forget(now, |_, group| group.is_some_and(|group| gone.contains(&group)));
        orders.extend(ended.into_iter().map(Order::Alert));
        orders
    }

    fn hear(&mut self, heard: &Heard) {
        if let Some(member) = self.members.get_mut(&heard.group)
            && member.heard.is_none_or(|before| before.at <= heard.at)
        {
            member.heard = Some(*heard);
        }
    }

    fn done(&mut self, done: &Done) {
        let Some(member) = self.members.get_mut(&done.group) else { return };
        let later = |wait: Micros| done.now.saturating_add(wait);
        match done.what {
            Act::Reclaim => {
                let Some((_, what)) = member.pending.take() else { return };
                match done.outcome {
                    Outcome::Refused(_) | Outcome::Foreign => member.refused_until = later(recall::RETRY),
                    // Nothing was tried, so nothing is learned.
                    Outcome::Late => return,
                    Outcome::Done | Outcome::Partly | Outcome::Gone => {}
                }
                if let What::Lend { amount: asked } = what {
                    let usual = member.meter.refault_mean();
                    member.loans.given(done.now, done.reclaimed, usual);
                    if done.reclaimed.get() < asked.get() / 4 && done.outcome == Outcome::Partly {
                        lend::learn(member, done.now);
                    }
                }
                if let What::Recall { .. } = what {
                    member.recall.at = Some(done.now);
                    member.loans.recalled();
                }
            }
            Act::Protect => {
                (member.protection, member.unprotectable_until) = match done.outcome {
                    Outcome::Done | Outcome::Partly => (Protection::InForce, member.unprotectable_until),
                    Outcome::Foreign => (Protection::Foreign, later(protect::CEDED)),
                    Outcome::Refused(_) | Outcome::Gone | Outcome::Late => {
                        (Protection::Refused, later(protect::RETRY))
                    }
                };
            }
            Act::Lease => {
                if matches!(done.outcome, Outcome::Refused(_) | Outcome::Foreign) {
                    member.lease = None;
                    member.recall.unleasable_until = later(recall::RETRY);
                }
            }
        }
    }

    fn tick(&mut self, tick: &MemoryTick) -> Vec<Order> {
        let now = tick.now;
        let elapsed = self.last.map(|last| now.saturating_sub(last));
        if self.last.is_some_and(|last| now <= last) || elapsed.is_some_and(|elapsed| elapsed < SHORTEST) {
            return Vec::new();
        }
        let (Some(node), settings) = (self.node.clone(), self.settings.clone()) else { return Vec::new() };
        let paused = elapsed.is_some_and(|elapsed| elapsed > LONGEST);
        let seconds = elapsed.map_or(0.0, |elapsed| elapsed.get() as f64 / 1e6);
        self.last = Some(now);
        self.members.values_mut().for_each(|member| member.measured = false);
        for (id, memory) in &tick.groups {
            if let Some(known) = self.groups.get_mut(id) {
                known.memory = Some((now, *memory));
            }
            if let Some(member) = self.members.get_mut(id) {
                member.measure(now, seconds, memory);
            }
        }
        let mut orders = Vec::new();
        self.pools.clear();
        let places = self.places(node.mem_total);
        for (id, place) in &places {
            if let Some(member) = self.members.get_mut(id) {
                member.around = place.around;
            }
        }
        let pools = self.divide(&node, &tick.node, &places);
        pool::divide(&pools, &mut self.members, &settings);
        let (page_size, views, idle_tax) = (node.page_size, settings.views, settings.idle_tax.fraction());
        let turns: Vec<Turn<'_>> =
            pools.iter().map(|shared| Turn { now, shared, page_size, views, idle_tax }).collect();
        // The pools that each container is in, from the outside in.
        let mut within: BTreeMap<GroupId, Vec<&Turn<'_>>> = BTreeMap::new();
        for turn in &turns {
            turn.shared.ids.iter().for_each(|id| within.entry(*id).or_default().push(turn));
        }
        if !paused {
            for (id, turns) in &within {
                if let (Some(member), Some(innermost)) = (self.members.get_mut(id), turns.last()) {
                    innermost.review(member, &mut orders);
                }
            }
        }
        let rested = |needed: &BTreeMap<_, Micros>, shared: &Shared| {
            needed.get(&shared.pool.owner).is_none_or(|at| now.saturating_sub(*at) >= REST)
        };
        let busy: BTreeSet<GroupId> = pools
            .iter()
            .filter(|shared| !rested(&self.needed, shared))
            .flat_map(|shared| shared.ids.iter().copied())
            .collect();
        let mut spoken = Spoken::default();
        let reserved = pool::reserved(&pools, &self.members);
        for (turn, reserved) in turns.iter().zip(reserved) {
            let shared = turn.shared;
            let needers = shared.needers(&self.members, &pools);
            if turn.move_memory(&mut self.members, &needers, &mut spoken, &mut orders) {
                self.needed.insert(shared.pool.owner, now);
            }
            let alert = alerts::of_pool(shared, reserved, now, &mut self.conditions);
            orders.extend(alert.map(Order::Alert));
            self.pools.push(PoolView {
                path: shared.path.clone(),
                size: bytes(shared.pool.size),
                room: bytes(shared.pool.room),
                reserved: bytes(reserved),
                short: shared.pool.short,
                containers: shared.ids.len(),
                needers: needers.len(),
            });
        }
        for (id, turns) in &within {
            let (Some(member), Some(innermost)) = (self.members.get_mut(id), turns.last()) else { continue };
            innermost.settle(member, &spoken, !busy.contains(id), &mut orders);
            orders.extend(protect::order(member, now));
            let short = turns.iter().any(|turn| turn.shared.pool.short);
            orders.extend(alerts::of_member(member, short, now, &mut self.conditions).map(Order::Alert));
        }
        // A pool whose last container left is not among those that were looked at.
        orders.extend(self.conditions.rest(now).into_iter().map(Order::Alert));
        orders
    }

    /// The pools with their members, from the outside in, the machine first; none where nobody is there. Who was not measured is in
    /// none, nor who is in a pool that was not: that cannot be divided, and its members are not for others to divide either.
    fn divide(&self, node: &Node, memory: &NodeMemory, places: &BTreeMap<GroupId, Place>) -> Vec<Shared> {
        let is_known = |place: &&Place| place.owners.iter().all(|(owner, _)| self.measured(*owner).is_some());
        let mut limits: BTreeMap<GroupId, (Bytes, Vec<GroupId>)> = BTreeMap::new();
        let mut inside: BTreeMap<Option<GroupId>, Vec<GroupId>> = BTreeMap::new();
        for member in self.members.values().filter(|member| member.measured) {
            let Some(place) = places.get(&member.id).filter(is_known) else { continue };
            inside.entry(None).or_default().push(member.id);
            for (at, (owner, limit)) in place.owners.iter().enumerate() {
                inside.entry(Some(*owner)).or_default().push(member.id);
                let around = || place.owners[at + 1..].iter().map(|(owner, _)| *owner).collect();
                limits.entry(*owner).or_insert_with(|| (*limit, around()));
            }
        }
        let shared = |(owner, ids): (Option<GroupId>, Vec<GroupId>)| {
            let own: Vec<&GroupMemory> = ids.iter().filter_map(|id| self.measured(*id)).collect();
            let Some(owner) = owner else {
                let pool = pool::machine(node, memory, &own, &self.settings);
                return Some(Shared { pool, path: "/".to_owned(), around: Vec::new(), ids });
            };
            let (limit, around) = limits.get(&owner)?.clone();
            let pool = pool::limited(owner, limit, self.measured(owner)?, &own, &self.settings);
            Some(Shared { pool, path: self.groups.get(&owner)?.path.clone(), around, ids })
        };
        let mut pools: Vec<Shared> = inside.into_iter().filter_map(shared).collect();
        pools.sort_by_key(|shared| (shared.pool.owner.is_some(), shared.around.len(), shared.pool.owner));
        pools
    }

    fn measured(&self, id: GroupId) -> Option<&GroupMemory> {
        let (at, memory) = self.groups.get(&id)?.memory.as_ref()?;
        (Some(*at) == self.last).then_some(memory)
    }
}
