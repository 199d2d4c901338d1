//! One period of one disk.

use super::super::flow::{Flow, WBPS};
use super::super::governor::Device;
use super::super::groups::Groups;
use super::super::member::{Member, Wish};
use super::super::{HeldBy, Lifeline, Order, State, explain};
use super::Mind;
use super::allocate::{self, Claimant};
use super::brake::Signs;
use super::capacity::{self, Capacity, Seen};
use super::censor::Sample;
use super::saturation::Period;
use crate::alert::conditions::Conditions;
use elbowroom_types::alert::Kind;
use elbowroom_types::claim::Class;
use elbowroom_types::sample::{Disk, IoMax};
use elbowroom_types::unit::Micros;

/// Without contention for this long, nobody is limited.
const PEACE: Micros = Micros::secs(600);
/// Periods in which there was nothing to divide, after which a saturated disk counts as one with room.
const CALM_TICKS: u32 = 4;
/// A disk that is used this much above what was given away, and answers this much slower than on a quiet day, is about to be saturated.
const CROWDED: f64 = 1.04;
const SLOWER: f64 = 1.5;
/// A disk that is used this much has no quiet day.
const BUSY: f64 = 0.6;
/// A disk that has something to do for less than this part of the time does what it does with ease.
const RESTED: f64 = 0.3;
/// How much of the rest is taken into account: containers are not limited to make room for somebody without bounds.
const MOST_REST: f64 = 0.3;
/// The part of the most it did lately that is kept for a container that wants no more: the peak of some periods is above what it
/// takes.
const KEPT: f64 = 0.98;
/// What a container would take that no limit holds back, and one that a limit of ours does, in parts of what it does now: if it
/// takes that, it is asked again.
const WANTED: f64 = 1.1;
const HELD_WANTS: f64 = 1.25;
/// A container that gets less than this part of its lifeline is short of it; than this, shows that the disk is another one.
const CONTENT: f64 = 0.92;
const STARVING: f64 = 0.8;
/// One that gets less than this part of it from a disk whose requests take so many times as long as usual is robbed.
const ROBBED: f64 = 0.5;
const AGES: f64 = 16.0;
/// Containers that get less than this part of their lifeline are starved.
const STARVED: f64 = 0.9;
/// The smallest cap is no more than this part of a disk, and of all of it for all containers.
const SMALLEST: f64 = 0.05;
const SMALLEST_OF_ALL: f64 = 0.25;
/// Who does so many times what a limit in force allows is not held by it.
const PAST: f64 = 1.2;
/// Changes below this part are not worth a write, and below this one not even while somebody is short.
const BAND: f64 = 0.05;
const URGENT: f64 = 0.01;

/// What holds for the whole period.
#[derive(Clone, Copy, Debug)]
struct Now {
    at: Micros,
    seconds: f64,
    /// The disk looked saturated in this period, and in two of the last three.
    vote: bool,
    saturated: bool,
    /// It may be about to be.
    suspect: bool,
    /// How much longer than usual requests took.
    ratio: f64,
    elasticity: f64,
    target: f64,
    /// What is given away while there is room: the target, or more.
    eased: f64,
}

/// Takes in a period of a disk and of the containers on it, and gives orders.
pub(in super::super) fn tick(
    device: &mut Device,
    settings: &Lifeline,
    groups: &Groups,
    waited: Option<f64>,
    alerts: &mut Conditions,
    orders: &mut Vec<Order>,
) {
    let mut now = look(device, settings);
    ask(device, groups, &now);
    settle(device, &mut now);
    learn(device, &now);
    promise(device, groups, &now);
    let signs = signs(device, groups, waited, &now);
    let braked = device.mind.brake.step(now.at, now.seconds, &signs);
    decide(device, braked, &now);
    divide(device, groups, orders, &now);
    warn(device, groups, alerts, orders, &now);
}

/// What the disk says.
fn look(device: &mut Device, settings: &Lifeline) -> Now {
    let Device { load, mind, disk, members, .. } = device;
    let ratio = mind.base.ratio(load);
    let done = capacity::plain(load.flow, disk.rotational);
    let vote =
        mind.saturation.step(&Period { now: load.now, queue: load.queue, busy: load.busy, ratio, done });
    let busy = mind.capacity.as_ref().is_some_and(|capacity| capacity.share(load.flow) > BUSY);
    mind.base.learn(load, vote || busy);
    let theirs = members.iter().fold(Flow::ZERO, |sum, member| sum.plus(member.flow));
    let tracking = 1.0 - (-load.seconds / 10.0).exp();
    mind.rest = mind.rest.zip(load.flow.less(theirs), |rest, x| rest + tracking * (x - rest));
    let target = settings.target.fraction();
    let suspect = mind.saturation.is_suspect();
    mind.ease(load, target, vote, suspect || ratio.is_none_or(|ratio| ratio > SLOWER));
    Now {
        at: load.now,
        seconds: load.seconds,
        vote,
        saturated: mind.saturation.holds(),
        suspect,
        ratio: ratio.unwrap_or(f64::INFINITY),
        elasticity: settings.elasticity.fraction(),
        target,
        eased: target + (1.0 - target) / 2.0 * mind.eased(),
    }
}

/// What containers say.
fn ask(device: &mut Device, groups: &Groups, now: &Now) {
    let capacity = device.mind.capacity.as_ref();
    let limited = device.members.iter().any(|member| member.ours != IoMax::MAX);
    for member in &mut device.members {
        let known = groups.get(member.group);
        let (at_ours, at_users) = (member.binds(member.ours), member.binds(member.user));
        let sample = Sample {
            stalled: known.and_then(|known| known.stalled),
            active: member.flow.operations() > 0.0,
            bound: at_ours || at_users,
            saturated: now.vote || now.saturated,
            blocked: limited && known.is_some_and(|known| known.blocked()),
        };
        let latency = known.is_some_and(|known| known.claim.class == Class::Latency);
        member.need.observe(now.at, member.flow, sample, at_users && !at_ours, latency);
        let share = capacity.map_or(0.0, |capacity| capacity.share(member.flow));
        member.need.wake(now.at, member.flow, share);
    }
}

/// One period may be an accident, but not one in which requests took very long and somebody was robbed.
fn settle(device: &mut Device, now: &mut Now) {
    let Device { mind, disk, members, .. } = device;
    let cost = |flow| capacity::plain(flow, disk.rotational);
    let robbed = |member: &Member| {
        let need = &member.need;
        need.free() && need.waits && need.is_known() && cost(member.flow) < ROBBED * cost(need.lifeline)
    };
    if now.vote && now.ratio >= AGES && members.iter().any(robbed) {
        mind.saturation.settle();
        now.saturated = true;
    }
}

/// What the disk can do.
fn learn(device: &mut Device, now: &Now) {
    let Device { load, mind, disk, members, .. } = device;
    let seen = Seen {
        now: now.at,
        seconds: now.seconds,
        flow: load.flow,
        vote: now.vote,
        saturated: now.saturated,
        suspect: now.suspect,
        rested: load.busy < RESTED,
        ratio: now.ratio,
        target: now.target.max(0.1),
        disk_limits: mind.capacity.as_ref().is_none_or(|capacity| disk_limits(members, capacity, now.at)),
        tight: mind
            .capacity
            .as_ref()
            .is_some_and(|capacity| members.iter().any(|member| short(member, capacity, CONTENT))),
        cap_binds: members.iter().any(|member| member.need.at_ours && member.need.waits),
    };
    mind.probed = mind.capacity.as_ref().is_some_and(Capacity::is_probing);
    match &mut mind.capacity {
        Some(capacity) => capacity.learn(&seen),
        None if now.vote && now.saturated => mind.capacity = Capacity::first(&seen, disk.rotational),
        None => {}
    }
}

/// Whether somebody gets less than he wants and than our limits allow: then it is the disk that limits.
fn disk_limits(members: &[Member], capacity: &Capacity, now: Micros) -> bool {
    let limited = members.iter().any(|member| member.ours != IoMax::MAX);
    let hungry = |member: &Member| member.need.free() && member.need.waits && member.need.hungry(now);
    !limited || members.iter().any(|member| hungry(member) || short(member, capacity, STARVING))
}

/// Whether a container that no limit holds waits for I/O and gets less than a part of its lifeline.
fn short(member: &Member, capacity: &Capacity, part: f64) -> bool {
    let need = &member.need;
    need.free() && need.censored && capacity.share(member.flow) < part * capacity.share(need.lifeline)
}

/// What containers are known to need: rises as far as there is something to promise.
fn promise(device: &mut Device, groups: &Groups, now: &Now) {
    let Device { mind, members, promised, .. } = device;
    let capacity = mind.capacity.as_ref();
    let wish = |member: &Member| member.need.wish(member.flow, now.seconds, now.elasticity, capacity);
    let part = match capacity {
        _ if now.vote || now.saturated => 0.0,
        None => 1.0,
        Some(capacity) => {
            let promised: f64 = members.iter().map(|member| capacity.share(member.need.lifeline)).sum();
            let wished: f64 = members.iter().map(|member| capacity.share(wish(member))).sum();
            let room = now.target / (1.0 + now.elasticity) - promised;
            if wished > 0.0 { (room / wished).clamp(0.0, 1.0) } else { 1.0 }
        }
    };
    for member in members.iter_mut() {
        let rise = wish(member).map(|rise| rise * part);
        member.need.learn(member.flow, now.seconds, rise);
    }
    let due = |member: &Member| {
        let capacity = capacity?;
        Some(capacity.share(member.need.lifeline).max(reserve(member, groups, capacity)))
    };
    *promised = members.iter().filter_map(due).sum();
}

/// What a container was promised by its claim, in parts of the disk.
fn reserve(member: &Member, groups: &Groups, capacity: &Capacity) -> f64 {
    let claim = groups.get(member.group).map(|known| &known.claim).filter(|claim| !claim.disk.is_empty());
    claim.map_or(0.0, |claim| capacity.share_of(Flow::from(IoMax::from(claim.disk)), member.need.shape()))
}

/// Whether limits of ours may hold others up.
fn signs(device: &Device, groups: &Groups, waited: Option<f64>, now: &Now) -> Signs {
    let Device { members, mind, load, .. } = device;
    let capacity = mind.capacity.as_ref();
    let short = |member: &&Member| {
        let share = |flow| capacity.map_or(0.0, |capacity| capacity.share(flow));
        member.need.free() && member.need.waits && share(member.flow) < 0.5 * share(member.need.lifeline)
    };
    Signs {
        binds: members.iter().any(|member| member.need.at_ours),
        saturated: now.vote || now.saturated,
        waited,
        queue: load.queue,
        used: capacity.map_or(0.0, |capacity| capacity.share(load.flow)),
        held_up: members.iter().any(|member| short(&member)),
        blocked: members.iter().filter(short).any(|member| is_blocked(member, groups)),
    }
}

fn is_blocked(member: &Member, groups: &Groups) -> bool {
    groups.get(member.group).is_some_and(|known| known.blocked())
}

/// What is going on.
fn decide(device: &mut Device, braked: bool, now: &Now) {
    let Device { mind, members, state, hands_off, disk, load, .. } = device;
    let capacity = mind.capacity.as_ref();
    let awake = members.iter().filter(|member| member.need.awake(now.at)).count();
    let used = capacity.map_or(0.0, |capacity| capacity.share(load.flow));
    let full =
        (now.vote && now.saturated) || (used > now.target.max(mind.given) * CROWDED && now.ratio > SLOWER);
    let crowded = awake >= 2 && capacity.is_some();
    // With one container that takes all it may, there is nothing to divide: the others have what they need.
    let greedy = members.iter().filter(|member| greedy(member, capacity, now)).count();
    let short = capacity.is_some_and(|capacity| disk_limits(members, capacity, now.at));
    let divide = crowded && full && (greedy >= 2 || short);
    let sharing = mind.dividing && matches!(state, State::Share | State::Slow);
    mind.calm_ticks = if divide { 0 } else { mind.calm_ticks.saturating_add(1) };
    // Whom a limit of ours holds back would fill the disk without it.
    let held = members.iter().any(|member| member.need.at_ours && member.need.waits);
    if crowded && (full || held) {
        mind.contended = Some(now.at);
    }
    let lately = mind.contended.is_some_and(|then| now.at.saturating_sub(then) < PEACE);
    let stays = sharing && crowded && (greedy >= 2 || mind.calm_ticks < CALM_TICKS);
    mind.dividing = divide || stays;
    *state = match () {
        () if braked => State::Inversion,
        () if !lately => State::Free,
        () if mind.dividing => State::Share,
        () => State::Guard,
    };
    let slow = capacity.is_some_and(|capacity| capacity.degraded(now.at).is_some());
    if slow && *state == State::Share {
        *state = State::Slow;
    }
    *hands_off = match state {
        _ if disk.swap => Some(explain::SWAP.to_owned()),
        State::Inversion => Some(explain::BRAKED.to_owned()),
        _ => None,
    };
}

/// Whether a container takes all it may, or all it gets where no limit of ours is.
fn greedy(member: &Member, capacity: Option<&Capacity>, now: &Now) -> bool {
    let need = &member.need;
    let over = capacity.is_some_and(|capacity| {
        capacity.share(member.flow) > (1.0 + now.elasticity) * capacity.share(need.lifeline)
    });
    need.waits && (need.at_ours || need.hungry(now.at) || (need.censored && need.free() && over))
}

/// Who may take how much.
fn divide(device: &mut Device, groups: &Groups, orders: &mut Vec<Order>, now: &Now) {
    let Device { disk, mind, members, state, hands_off, .. } = device;
    let Mind { capacity, dividing, claimants, guard, share, rest, given, .. } = mind;
    let limiting = hands_off.is_none() && *state != State::Free;
    let weights = weights(members, groups, disk, capacity.as_ref(), now);
    let Some(capacity) = capacity.as_ref().filter(|_| limiting) else {
        for (at, member) in members.iter_mut().enumerate() {
            let wish = Wish { weight: weights[at].filter(|_| hands_off.is_none()), band: BAND, ..Wish::NONE };
            let why = || match (hands_off.as_deref(), wish.weight) {
                (Some(why), _) => why.to_owned(),
                (None, Some(weight)) => explain::weighted(&disk.name, weight),
                (None, None) => explain::PEACE.to_owned(),
            };
            orders.extend(member.order(disk.number, now.at, &wish, why).map(Order::Cap));
        }
        return;
    };
    let awake = members.iter().filter(|member| member.need.awake(now.at)).count();
    let least = SMALLEST.min(SMALLEST_OF_ALL / awake.max(1) as f64);
    claimants.clear();
    claimants.extend(members.iter().map(|member| claimant(member, groups, capacity, least, now)));
    let others = capacity.share(*rest).min(MOST_REST);
    let sharing = *dividing && disk.weights.is_none();
    *given = if *dividing { now.target } else { now.eased };
    let budget = (*given - others).max(0.0);
    allocate::guard(budget, 1.0 - others, claimants, guard);

    let mut shares = guard.clone();
    if sharing {
        // Containers that are away take no part; if they come back, their limit is what they may take without asking.
        let there: Vec<Claimant> = claimants.iter().filter(|one| one.active).copied().collect();
        allocate::share(budget, &there, share);
        let active = shares.iter_mut().zip(claimants.iter()).filter(|(_, one)| one.active);
        active.zip(share.iter()).for_each(|((mine, _), share)| *mine = *share);
    }
    // v2 counts a request when its limit let it through: who is away comes back only by what goes through his.
    for (at, _) in claimants.iter().enumerate().filter(|(_, one)| !one.active) {
        shares[at] = shares[at].max(members[at].need.smallest(capacity, least));
    }
    let starving = members.iter().any(|member| starves(member, capacity));
    let overcommitted = claimants.iter().map(|one| one.reserve).sum::<f64>() > now.target - others;
    let owed: f64 = claimants.iter().map(|one| one.kept).sum();
    for (at, member) in members.iter_mut().enumerate() {
        let known = groups.get(member.group);
        let one = claimants[at];
        let alone = one.active && awake <= 1;
        let latency = known.is_some_and(|known| known.claim.class == Class::Latency);
        let away = !member.need.used_within(now.at, PEACE);
        let off = known.is_none_or(|known| known.hands_off.is_some());
        let weight = weights[at].filter(|_| !off && !away);
        if off || away || alone || (latency && !sharing) {
            let wish = Wish { weight, ..Wish::NONE };
            let why = || {
                let why = known.and_then(|known| known.hands_off);
                explain::unlimited(why, alone, latency, &disk.name)
            };
            orders.extend(member.order(disk.number, now.at, &wish, why).map(Order::Cap));
            continue;
        }
        // A reservation is owed in the words it was made in, whatever the mix of requests.
        let floor = known.map(|known| Flow::reserved(known.claim.disk)).filter(|_| !overcommitted);
        let max = member.need.limits(shares[at], capacity, floor.unwrap_or_default());
        let loosens = looser(max, member.ordered);
        if loosens && now.suspect {
            // Soon it is known whether that would be right; if not, it could not be taken back within a second.
            member.share = Some(shares[at]);
            continue;
        }
        let wish = Wish {
            share: Some(shares[at]),
            max,
            weight,
            // A limit from when more was given away is not to stay because the difference is small.
            band: match loosens {
                true if member.need.censored => URGENT,
                false if starving || member.given > *given => URGENT,
                _ => BAND,
            },
        };
        let reserved = reserve(member, groups, capacity);
        let because = || {
            let facts = explain::Facts {
                disk: &disk.name,
                share: shares[at],
                lifeline: one.lifeline,
                elasticity: now.elasticity,
                reserve: reserved,
                owed: owed - one.kept,
                others: awake.saturating_sub(usize::from(one.active)),
                weight: one.weight,
                queue: device.load.queue,
                ratio: now.ratio,
                target: *given,
            };
            if sharing && one.active { explain::share(&facts) } else { explain::guard(&facts) }
        };
        let order = member.order(disk.number, now.at, &wish, because);
        if order.is_some() {
            member.given = *given;
        }
        orders.extend(order.map(Order::Cap));
    }
}

/// What a container is owed and wants.
fn claimant(member: &Member, groups: &Groups, capacity: &Capacity, least: f64, now: &Now) -> Claimant {
    let need = &member.need;
    let known = groups.get(member.group);
    let claim = known.map(|known| &known.claim);
    let latency = claim.is_some_and(|claim| claim.class == Class::Latency);
    let active = need.awake(now.at);
    let users = need.share_within(member.user, capacity);
    let reserve = reserve(member, groups, capacity).min(users);
    let lifeline = capacity.share(need.lifeline).min(users);
    let protected = (lifeline * (1.0 + now.elasticity)).min(users).max(reserve);
    let peak = need.peak(capacity);
    let wants_more = need.wants_more(now.at, member.flow, capacity);
    // One that no limit of ours holds takes what it gets; how much it would take shows once it has one.
    let unheld = need.censored && member.ours == IoMax::MAX && capacity.share(member.flow) > protected;
    Claimant {
        reserve: if active { reserve.max(need.smallest(capacity, least)) } else { reserve.min(peak) },
        protected,
        kept: if wants_more || latency { protected } else { protected.min(KEPT * peak) },
        demand: if unheld {
            users
        } else {
            let wanted = if wants_more && need.at_ours { HELD_WANTS } else { WANTED };
            protected.max(wanted * capacity.share(member.flow)).min(users)
        },
        lifeline,
        weight: claim.map_or(100.0, |claim| f64::from(claim.weight.max(1))),
        tier: claim.map_or(0, |claim| claim.tier),
        active,
    }
}

/// Weights in proportion to `w * L`, 100 for the mean container that uses the disk, where the disk divides by weight. Dividing
/// so takes nothing from anybody while there is room, so it needs no contention. A disk that holds requests back before they are
/// in its queue may never look saturated, and then a burst looks like a need: until its capacity is known, `w` alone counts.
fn weights(
    members: &[Member],
    groups: &Groups,
    disk: &Disk,
    capacity: Option<&Capacity>,
    now: &Now,
) -> Vec<Option<u16>> {
    let part = |member: &Member| {
        let known = groups.get(member.group).filter(|known| known.hands_off.is_none())?;
        let claim = &known.claim;
        let owed = member.need.lifeline.zip(Flow::reserved(claim.disk), f64::max);
        let there = disk.weights.is_some() && member.need.awake(now.at);
        let need = capacity.map_or(1.0, |capacity| capacity.share(owed) + 0.01);
        there.then(|| f64::from(claim.weight.max(1)) * need)
    };
    let parts: Vec<Option<f64>> = members.iter().map(part).collect();
    let (sum, count) =
        parts.iter().flatten().fold((0.0, 0.0), |(sum, count), part| (sum + part, count + 1.0));
    let weight = |part: f64| (100.0 * part * count / sum).round().clamp(1.0, 1000.0) as u16;
    parts.into_iter().map(|part| part.filter(|_| count >= 2.0).map(weight)).collect()
}

/// Whether any limit is looser in `a`.
fn looser(a: IoMax, b: IoMax) -> bool {
    Flow::from(a).0.iter().zip(Flow::from(b).0).any(|(a, b)| *a > b)
}

/// Whether a container gets less than its lifeline although it wants it.
fn starves(member: &Member, capacity: &Capacity) -> bool {
    let lifeline = capacity.share(member.need.lifeline);
    member.need.censored && !member.need.at_users && capacity.share(member.flow) < STARVED * lifeline
}

/// What people should hear of.
fn warn(device: &mut Device, groups: &Groups, alerts: &mut Conditions, orders: &mut Vec<Order>, now: &Now) {
    let Device { disk, mind, members, state, promised, load, .. } = device;
    let number = disk.number;
    let slow = mind.capacity.as_ref().and_then(|capacity| capacity.degraded(now.at));
    let mut say = |kind, group, there, hold, text: &dyn Fn() -> String| {
        let said = alerts.set((kind, Some(number), group), now.at, there, Micros::secs(hold), text);
        orders.extend(said.map(Order::Alert));
    };
    say(Kind::Overcommit, None, *promised > 1.0, 30, &|| explain::overcommit(&disk.name, *promised));
    say(Kind::Degraded, None, slow.is_some(), 60, &|| {
        let (is, was) = slow.unwrap_or_default();
        explain::degraded(&disk.name, is / was)
    });
    say(Kind::Inversion, None, *state == State::Inversion, 0, &|| explain::inversion(&disk.name));
    let Some(capacity) = mind.capacity.as_ref() else { return };
    let contended = now.saturated || matches!(state, State::Share | State::Slow);
    let nameless = mind.rest.0[WBPS];
    let heavy = contended && capacity.share(Flow([0.0, nameless, 0.0, mind.rest.0[3]])) > 0.2;
    for member in members {
        let known = groups.get(member.group);
        let (flow, need) = (member.flow, &mut member.need);
        let (used, lifeline) = (capacity.share(flow), capacity.share(need.lifeline));
        let dirty = known.and_then(|known| known.dirty).map_or(0.0, |dirty| dirty.get() as f64);
        let past = heavy && dirty > nameless && flow.0[WBPS] < 0.1 * nameless;
        let beside = flow.0.iter().zip(Flow::from(member.ours).0).any(|(x, limit)| *x > PAST * limit);
        need.escape(past || beside, now.seconds);
        member.held_by = match () {
            () if !need.waits => HeldBy::Nothing,
            () if need.at_users => HeldBy::User,
            () if need.at_ours => HeldBy::Cap,
            () if !now.saturated => HeldBy::Nothing,
            () if slow.is_some() => HeldBy::Disk,
            () => HeldBy::Contention,
        };
        let starved = need.censored && !need.at_users && used < STARVED * lifeline;
        say(Kind::Starved, Some(member.group), starved, 10, &|| {
            explain::starved(groups.name(member.group), &disk.name, used, lifeline, load.queue)
        });
    }
}
