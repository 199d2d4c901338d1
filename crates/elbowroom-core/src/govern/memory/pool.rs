//! What is divided: the machine, or a cgroup with a hard limit around several containers.

use super::entitle::{Party, entitle};
use super::member::Member;
use super::sample::{GroupMemory, NodeMemory};
use super::{Settings, amount};
use crate::probe::Colour;
use crate::sample::{GroupId, Node};
use crate::unit::{Bytes, Limit};
use std::collections::BTreeMap;

/// The part of a machine that is never promised to anybody: the kernel needs some to work with. Below a cgroup's limit it needs
/// none, and who divides that among its containers to the last page means it.
const MARGIN: f64 = 0.03;
/// What a container that is not hungry may grow by before it is asked again.
const GROWTH: f64 = 1.25;
const GROWTH_LEAST: f64 = (64 << 20) as f64;
/// The least by which a red container is helped along in a period, whatever it is owed.
const STEP: f64 = 0.05;
const STEP_LEAST: f64 = (8 << 20) as f64;

/// A pool in one period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pool {
    /// Whose limit it is; `None` for the machine.
    pub(super) owner: Option<GroupId>,
    /// What containers have together.
    pub(super) size: f64,
    /// What is free.
    pub(super) room: f64,
    /// Whether that is little.
    pub(super) short: bool,
}

/// The machine: everything that its own jobs and the kernel do not hold fast, less a margin. What containers with a pool of their
/// own use is not there for the others.
pub(super) fn machine(
    node: &Node,
    memory: &NodeMemory,
    members: &[&GroupMemory],
    pools: &[&GroupMemory],
    settings: &Settings,
) -> Pool {
    let sum =
        |groups: &[&GroupMemory], of: fn(&GroupMemory) -> Bytes| amount(groups.iter().map(|m| of(m)).sum());
    let cache = |m: &GroupMemory| m.inactive_file.saturating_add(m.active_file);
    let (total, free) = (amount(node.mem_total), amount(memory.mem_free));
    let used = sum(members, |m| m.usage);
    let reserved = sum(pools, |m| m.usage);
    let outside = (total - free - used - reserved).max(0.0);
    let available = amount(memory.mem_available.saturating_sub(memory.mem_free));
    let spare = (available - sum(members, cache) - sum(pools, cache)).clamp(0.0, outside);
    let margin = (MARGIN * total).max(2.0 * amount(node.high_mark));
    let size = (total - margin - (outside - spare) - reserved).max(0.0);
    let room = (free - amount(node.high_mark)).max(0.0);
    Pool { owner: None, size, room, short: room < settings.short.fraction() * size }
}

/// A cgroup with a hard limit, in a machine with `free` memory.
pub(super) fn limited(
    owner: GroupId,
    limit: Bytes,
    memory: &GroupMemory,
    members: &[&GroupMemory],
    free: f64,
    settings: &Settings,
) -> Pool {
    let used: Bytes = members.iter().map(|m| m.usage).sum();
    let outside = amount(memory.usage.saturating_sub(used));
    let size = (amount(limit) - outside).max(0.0);
    let room = amount(limit.saturating_sub(memory.usage)).min(free);
    Pool { owner: Some(owner), size, room, short: room < settings.short.fraction() * size }
}

/// Who has less than this part of what it is owed gets it from who has more than he is owed. That it gets until it just meets its
/// objective would be too little: it would swing around that, and miss it half of the time.
pub(super) const SHORT: f64 = 0.98;

/// A container that could use more than it has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Needer {
    pub(super) id: GroupId,
    pub(super) red: bool,
    /// How much more.
    pub(super) need: f64,
    /// It has less than it is owed, and says that it wants it.
    pub(super) short: bool,
}

impl Pool {
    /// Works out floors and what each member is owed.
    pub(super) fn divide(
        &self,
        members: &mut BTreeMap<GroupId, Member>,
        ids: &[GroupId],
        settings: &Settings,
    ) {
        let mut now = Vec::new();
        let mut nominal = Vec::new();
        for id in ids {
            let Some(member) = members.get_mut(id) else { continue };
            let cap = member.max().or(Bytes(u64::MAX)).get() as f64;
            let cap = cap.min(self.size);
            let usage = member.usage();
            let kept = member.kept.value().map_or(usage, amount);
            let reserve = member.claim.memory.reserve.map_or(kept, amount);
            member.reserve = reserve.min(amount(member.max().or(Bytes(u64::MAX))));
            let lend = member.claim.memory.lend.unwrap_or(settings.lend).fraction();
            let learned = member.working_set.min(usage);
            let missed = member.missed();
            member.floor = match member.colour() {
                _ if member.is_dead() => 0.0,
                Colour::Green => ((1.0 - lend) * member.reserve).max(learned),
                Colour::Red | Colour::Yellow => missed.unwrap_or(member.reserve),
            };
            let (weight, tier) = (f64::from(member.claim.weight), member.claim.tier);
            let dead = member.is_dead();
            let fills = !dead && member.colour() != Colour::Green && missed.is_none();
            let want = if member.is_hungry() { cap } else { (GROWTH * usage + GROWTH_LEAST).min(cap) };
            let floor = member.floor;
            let (want, cap_now) = if fills { (want.max(floor), cap.max(floor)) } else { (floor, floor) };
            now.push(Party { reserved: member.reserve, floor, want, cap: cap_now, weight, tier });
            let floor = if dead { 0.0 } else { member.reserve };
            let cap = if dead { 0.0 } else { cap.max(floor) };
            nominal.push(Party { reserved: floor, floor, want: cap, cap, weight, tier });
        }
        let owed = entitle(&now, self.size).into_iter().zip(entitle(&nominal, self.size));
        for (member, (entitlement, nominal)) in ids.iter().zip(owed) {
            if let Some(member) = members.get_mut(member) {
                (member.entitlement, member.nominal) = (entitlement, nominal);
                // Where more is reserved than there is, reservations shrink.
                member.floor = member.floor.min(entitlement);
            }
        }
    }

    /// Who could use more than it has.
    pub(super) fn needers(&self, members: &BTreeMap<GroupId, Member>, ids: &[GroupId]) -> Vec<Needer> {
        let need = |member: &Member| {
            if !member.measured || member.is_dead() || member.is_full() {
                return None;
            }
            let (usage, owed) = (member.usage(), member.entitlement);
            let red = member.colour() == Colour::Red;
            let room = member.max().value().map_or(f64::INFINITY, |max| amount(max) - usage);
            let need = match member.colour() {
                Colour::Red => (owed - usage).max(STEP * usage + STEP_LEAST).min(room),
                Colour::Yellow if member.is_hungry() && owed > 1.02 * usage => (owed - usage).min(room),
                Colour::Yellow | Colour::Green => return None,
            };
            // Without a probe, yellow is all that is not known to be red or green; who reads back much would use more.
            let wants = red || member.judgement.sigma.is_some() || member.reads_back();
            Some(Needer { id: member.id, red, need, short: wants && usage < SHORT * owed })
        };
        ids.iter().filter_map(|id| need(members.get(id)?)).collect()
    }
}

/// Where a container's memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The tightest cgroup with a hard limit around several containers, and its limit; the machine where there is none.
    pub(super) owner: Option<(GroupId, Bytes)>,
    /// How many levels above the container that cgroup is; zero for the machine.
    pub(super) levels: u32,
    /// The tightest limit below that, which is around this container alone: there is nothing to divide, it is as its own.
    pub(super) around: Limit<Bytes>,
}

/// The places of all containers. A limit that is no less than the machine's memory is none.
pub(super) fn places(
    members: impl Iterator<Item = GroupId>,
    groups: &BTreeMap<GroupId, super::governor::Known>,
    mem_total: Bytes,
) -> BTreeMap<GroupId, Place> {
    let above = |id: GroupId| groups.get(&id).and_then(|known| known.parent);
    // Level, group, limit.
    type Around = Vec<(u32, GroupId, Bytes)>;
    let limits = |id: GroupId| -> Around {
        // A parent that is its own ancestor cannot be; the count ends the walk where events say so.
        let ancestors = std::iter::successors(above(id), |id| above(*id)).take(groups.len());
        let limited =
            (1..).zip(ancestors).filter_map(|(level, id)| Some((level, id, groups.get(&id)?.max.value()?)));
        limited.filter(|(.., max)| *max < mem_total).collect()
    };
    let around: Vec<(GroupId, Around)> = members.map(|id| (id, limits(id))).collect();
    let mut sharers: BTreeMap<GroupId, usize> = BTreeMap::new();
    for (_, owner, _) in around.iter().flat_map(|(_, limits)| limits) {
        *sharers.entry(*owner).or_default() += 1;
    }
    let place = |(id, limits): (GroupId, Around)| {
        let alone = limits.iter().take_while(|(_, owner, _)| sharers.get(owner) == Some(&1));
        let tightest = alone.clone().map(|(.., max)| *max).min();
        let owner = limits.get(alone.count()).copied();
        let place = Place {
            owner: owner.map(|(_, owner, max)| (owner, max)),
            levels: owner.map_or(0, |(level, ..)| level),
            around: tightest.map_or(Limit::Max, Limit::At),
        };
        (id, place)
    };
    around.into_iter().map(place).collect()
}
