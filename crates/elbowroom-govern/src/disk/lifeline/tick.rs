//! One period of one disk.

use super::super::flow::{Flow, WBPS};
use super::super::governor::GovernedDisk;
use super::super::groups::Groups;
use super::super::member::{DesiredLimit, DiskMember};
use super::super::{Cap, DiskOrder, DiskState, LifelineSettings, LimitedBy, explain};
use super::DeviceModel;
use super::allocate::{self, DiskClaimant};
use super::capacity::{self, Capacity, CapacitySample};
use super::censor::DemandSample;
use super::inversion_detector::InversionSigns;
use super::saturation::SaturationSample;
use crate::alert::conditions::Conditions;
use elbowroom_types::alert::AlertKind;
use elbowroom_types::claim::ServiceClass;
use elbowroom_types::io::{DiskProperties, IoMax};
use elbowroom_types::unit::{Limit, Micros};

/// Without contention for this long, nobody is limited.
const CONTENTION_TIMEOUT: Micros = Micros::secs(600);
/// Periods in which there was nothing to divide, after which a saturated disk counts as one with room.
const SHARE_EXIT_TICKS: u32 = 4;
/// A disk that is used this much above what was given away, and answers this much slower than on a quiet day, is about to be saturated.
const OVERUSE: f64 = 1.04;
const SLOWDOWN: f64 = 1.5;
/// A disk that is used this much has no quiet day.
const BUSY_SHARE: f64 = 0.6;
/// A disk that has something to do for less than this part of the time does what it does with ease.
const IDLE_UTILISATION: f64 = 0.3;
/// How much of the rest is taken into account: containers are not limited to make room for somebody without bounds.
const MAX_UNATTRIBUTED: f64 = 0.3;
/// The part of the most it did lately that is kept for a container that wants no more: the peak of some periods is above what it
/// takes.
const WITHHELD_PEAK: f64 = 0.98;
/// What a container would take that no limit holds back, and one that a limit of ours does, in parts of what it does now: if it
/// takes that, it is asked again.
const UNLIMITED_GROWTH: f64 = 1.1;
const LIMITED_GROWTH: f64 = 1.25;
/// A container that gets less than this part of its lifeline is short of it; than this, shows that the disk is another one.
const SHORT_BELOW: f64 = 0.92;
const FAR_SHORT_BELOW: f64 = 0.8;
/// One that gets less than this part of it from a disk whose requests take so many times as long as usual is robbed.
const DEPRIVED_BELOW: f64 = 0.5;
const EXTREME_SLOWDOWN: f64 = 16.0;
/// Containers that get less than this part of their lifeline are starved.
const STARVED_BELOW: f64 = 0.9;
/// The smallest cap is no more than this part of a disk, and of all of it for all containers.
const MIN_CAP: f64 = 0.05;
const MIN_CAPS_TOTAL: f64 = 0.25;
/// Who does so many times what a limit in force allows is not held by it.
const ESCAPE_FACTOR: f64 = 1.2;
/// Changes below this part are not worth a write, and below this one not even while somebody is short.
const HYSTERESIS: f64 = 0.05;
const URGENT_HYSTERESIS: f64 = 0.01;

/// What holds for the whole period.
#[derive(Clone, Copy, Debug)]
struct DiskPeriodState {
    at: Micros,
    seconds: f64,
    /// The disk looked saturated in this period, and in two of the last three.
    looks_saturated: bool,
    saturated: bool,
    /// It may be about to be.
    may_saturate: bool,
    /// How much longer than usual requests took.
    latency_ratio: f64,
    elasticity: f64,
    target: f64,
    /// What is given away while there is room: the target, or more.
    guard_budget: f64,
}

/// Takes in a period of a disk and of the containers on it, and gives orders.
pub(in super::super) fn tick(
    device: &mut GovernedDisk,
    settings: &LifelineSettings,
    groups: &Groups,
    waited: Option<f64>,
    alerts: &mut Conditions,
    orders: &mut Vec<DiskOrder>,
) {
    let mut now = measure_disk(device, settings);
    observe_demand(device, groups, &now);
    confirm_saturation(device, &mut now);
    learn_capacity(device, &now);
    update_lifelines(device, groups, &now);
    let signs = inversion_signs(device, groups, waited, &now);
    let braked = device.model.inversion.update(now.at, now.seconds, &signs);
    choose_state(device, braked, &now);
    order_limits(device, groups, orders, &now);
    raise_alerts(device, groups, alerts, orders, &now);
}

/// What the disk says.
fn measure_disk(device: &mut GovernedDisk, settings: &LifelineSettings) -> DiskPeriodState {
    let GovernedDisk { load, model: mind, disk, members, .. } = device;
    let ratio = mind.base_latency.latency_ratio(load);
    let done = capacity::baseline_cost(load.flow, disk.rotational);
    let vote = mind.saturation.update(&SaturationSample {
        now: load.now,
        queue: load.queue,
        busy: load.busy,
        latency_ratio: ratio,
        throughput: done,
    });
    let busy = mind.capacity.as_ref().is_some_and(|capacity| capacity.share(load.flow) > BUSY_SHARE);
    mind.base_latency.learn(load, vote || busy);
    let theirs = members.iter().fold(Flow::ZERO, |sum, member| sum.plus(member.flow));
    let tracking = 1.0 - (-load.seconds / 10.0).exp();
    mind.unattributed =
        mind.unattributed.zip(load.flow.saturating_sub(theirs), |rest, x| rest + tracking * (x - rest));
    let target = settings.target.fraction();
    let suspect = mind.saturation.is_suspect();
    mind.update_headroom(load, target, vote, suspect || ratio.is_none_or(|ratio| ratio > SLOWDOWN));
    DiskPeriodState {
        at: load.now,
        seconds: load.seconds,
        looks_saturated: vote,
        saturated: mind.saturation.is_saturated(),
        may_saturate: suspect,
        latency_ratio: ratio.unwrap_or(f64::INFINITY),
        elasticity: settings.elasticity.fraction(),
        target,
        guard_budget: target + (1.0 - target) / 2.0 * mind.headroom(),
    }
}

/// What containers say.
fn observe_demand(device: &mut GovernedDisk, groups: &Groups, now: &DiskPeriodState) {
    let capacity = device.model.capacity.as_ref();
    let limited = device.members.iter().any(|member| member.agent_max != IoMax::MAX);
    for member in &mut device.members {
        let known = groups.get(member.group);
        let (at_ours, at_users) = (member.is_at_limit(member.agent_max), member.is_at_limit(member.user_max));
        let sample = DemandSample {
            io_stall: known.and_then(|known| known.io_stall),
            active: member.flow.operations() > 0.0,
            at_limit: at_ours || at_users,
            saturated: now.looks_saturated || now.saturated,
            blocked: limited && known.is_some_and(|known| known.is_blocked()),
        };
        let latency = known.is_some_and(|known| known.claim.class == ServiceClass::Latency);
        member.demand.observe(now.at, member.flow, sample, at_users && !at_ours, latency);
        let share = capacity.map_or(0.0, |capacity| capacity.share(member.flow));
        member.demand.mark_active(now.at, member.flow, share);
    }
}

/// One period may be an accident, but not one in which requests took very long and somebody was robbed.
fn confirm_saturation(device: &mut GovernedDisk, now: &mut DiskPeriodState) {
    let GovernedDisk { model: mind, disk, members, .. } = device;
    let cost = |flow| capacity::baseline_cost(flow, disk.rotational);
    let robbed = |member: &DiskMember| {
        let need = &member.demand;
        need.is_unlimited()
            && need.is_waiting
            && need.is_known()
            && cost(member.flow) < DEPRIVED_BELOW * cost(need.lifeline)
    };
    if now.looks_saturated && now.latency_ratio >= EXTREME_SLOWDOWN && members.iter().any(robbed) {
        mind.saturation.confirm();
        now.saturated = true;
    }
}

/// What the disk can do.
fn learn_capacity(device: &mut GovernedDisk, now: &DiskPeriodState) {
    let GovernedDisk { load, model: mind, disk, members, .. } = device;
    let seen = CapacitySample {
        now: now.at,
        seconds: now.seconds,
        flow: load.flow,
        looks_saturated: now.looks_saturated,
        saturated: now.saturated,
        may_saturate: now.may_saturate,
        mostly_idle: load.busy < IDLE_UTILISATION,
        latency_ratio: now.latency_ratio,
        target: now.target.max(0.1),
        is_disk_bound: mind.capacity.as_ref().is_none_or(|capacity| is_disk_bound(members, capacity, now.at)),
        is_short: mind
            .capacity
            .as_ref()
            .is_some_and(|capacity| members.iter().any(|member| is_short(member, capacity, SHORT_BELOW))),
        cap_binds: members.iter().any(|member| member.demand.at_agent_limit && member.demand.is_waiting),
    };
    mind.was_probing = mind.capacity.as_ref().is_some_and(Capacity::is_probing);
    match &mut mind.capacity {
        Some(capacity) => capacity.learn(&seen),
        None if now.looks_saturated && now.saturated => {
            mind.capacity = Capacity::from_first_sample(&seen, disk.rotational)
        }
        None => {}
    }
}

/// Whether somebody gets less than he wants and than our limits allow: then it is the disk that limits.
fn is_disk_bound(members: &[DiskMember], capacity: &Capacity, now: Micros) -> bool {
    let limited = members.iter().any(|member| member.agent_max != IoMax::MAX);
    let hungry = |member: &DiskMember| {
        member.demand.is_unlimited() && member.demand.is_waiting && member.demand.was_limited(now)
    };
    !limited || members.iter().any(|member| hungry(member) || is_short(member, capacity, FAR_SHORT_BELOW))
}

/// Whether a container that no limit holds waits for I/O and gets less than a part of its lifeline.
fn is_short(member: &DiskMember, capacity: &Capacity, part: f64) -> bool {
    let need = &member.demand;
    need.is_unlimited()
        && need.is_censored
        && capacity.share(member.flow) < part * capacity.share(need.lifeline)
}

/// What containers are known to need: rises as far as there is something to promise.
fn update_lifelines(device: &mut GovernedDisk, groups: &Groups, now: &DiskPeriodState) {
    let GovernedDisk { model: mind, members, promised, promised_without_claims, .. } = device;
    let capacity = mind.capacity.as_ref();
    let wish =
        |member: &DiskMember| member.demand.lifeline_rise(member.flow, now.seconds, now.elasticity, capacity);
    let part = match capacity {
        _ if now.looks_saturated || now.saturated => 0.0,
        None => 1.0,
        Some(capacity) => {
            let promised: f64 = members.iter().map(|member| capacity.share(member.demand.lifeline)).sum();
            let wished: f64 = members.iter().map(|member| capacity.share(wish(member))).sum();
            let room = now.target / (1.0 + now.elasticity) - promised;
            if wished > 0.0 { (room / wished).clamp(0.0, 1.0) } else { 1.0 }
        }
    };
    for member in members.iter_mut() {
        let rise = wish(member).map(|rise| rise * part);
        member.demand.move_lifeline(member.flow, now.seconds, rise);
    }
    let is_asked =
        |member: &DiskMember| groups.get(member.group).is_some_and(|known| known.claim.disk_is_asked);
    let due = |member: &DiskMember| {
        let Some(capacity) = capacity else { return [0.0; 2] };
        let lifeline = capacity.share(member.demand.lifeline);
        let with_claim = lifeline.max(reservation(member, groups, capacity));
        [with_claim, if is_asked(member) { lifeline } else { with_claim }]
    };
    let sum = |of: usize| members.iter().map(|member| due(member)[of]).sum();
    (*promised, *promised_without_claims) = (sum(0), sum(1));
}

/// What a container was promised by its claim, in parts of the disk.
fn reservation(member: &DiskMember, groups: &Groups, capacity: &Capacity) -> f64 {
    let claim = groups.get(member.group).map(|known| &known.claim).filter(|claim| !claim.disk.is_empty());
    claim.map_or(0.0, |claim| {
        let mut reserve = IoMax::from(claim.disk);
        if claim.disk_is_asked {
            reserve = within(reserve, member.user_max);
        }
        capacity.share_at_rates(Flow::from(reserve), member.demand.mix())
    })
}

/// A reservation that asks for no more than its container's own limits; what is not reserved stays so.
fn within(reserve: IoMax, limit: IoMax) -> IoMax {
    let least = |reserve: Limit<u64>, limit: Limit<u64>| match reserve {
        Limit::At(_) => reserve.min(limit),
        Limit::Max => Limit::Max,
    };
    IoMax {
        rbps: least(reserve.rbps, limit.rbps),
        wbps: least(reserve.wbps, limit.wbps),
        riops: least(reserve.riops, limit.riops),
        wiops: least(reserve.wiops, limit.wiops),
    }
}

/// Whether limits of ours may hold others up.
fn inversion_signs(
    device: &GovernedDisk,
    groups: &Groups,
    waited: Option<f64>,
    now: &DiskPeriodState,
) -> InversionSigns {
    let GovernedDisk { members, model: mind, load, .. } = device;
    let capacity = mind.capacity.as_ref();
    let short = |member: &&DiskMember| {
        let share = |flow| capacity.map_or(0.0, |capacity| capacity.share(flow));
        member.demand.is_unlimited()
            && member.demand.is_waiting
            && share(member.flow) < 0.5 * share(member.demand.lifeline)
    };
    InversionSigns {
        limit_binds: members.iter().any(|member| member.demand.at_agent_limit),
        saturated: now.looks_saturated || now.saturated,
        full_stall: waited,
        queue: load.queue,
        used: capacity.map_or(0.0, |capacity| capacity.share(load.flow)),
        unlimited_starved: members.iter().any(|member| short(&member)),
        unlimited_blocked: members.iter().filter(short).any(|member| is_blocked(member, groups)),
    }
}

fn is_blocked(member: &DiskMember, groups: &Groups) -> bool {
    groups.get(member.group).is_some_and(|known| known.is_blocked())
}

/// What is going on.
fn choose_state(device: &mut GovernedDisk, braked: bool, now: &DiskPeriodState) {
    let GovernedDisk { model: mind, members, state, exempt_reason, disk, load, .. } = device;
    let capacity = mind.capacity.as_ref();
    let awake = members.iter().filter(|member| member.demand.is_active(now.at)).count();
    let used = capacity.map_or(0.0, |capacity| capacity.share(load.flow));
    let full = (now.looks_saturated && now.saturated)
        || (used > now.target.max(mind.budget) * OVERUSE && now.latency_ratio > SLOWDOWN);
    let crowded = awake >= 2 && capacity.is_some();
    // With one container that takes all it may, there is nothing to divide: the others have what they need.
    let greedy = members.iter().filter(|member| takes_all_it_may(member, capacity, now)).count();
    let short = capacity.is_some_and(|capacity| is_disk_bound(members, capacity, now.at));
    let divide = crowded && full && (greedy >= 2 || short);
    let sharing = mind.is_sharing && matches!(state, DiskState::Share | DiskState::Slow);
    mind.uncontended_ticks = if divide { 0 } else { mind.uncontended_ticks.saturating_add(1) };
    // Whom a limit of ours holds back would fill the disk without it.
    let held = members.iter().any(|member| member.demand.at_agent_limit && member.demand.is_waiting);
    if crowded && (full || held) {
        mind.last_contention = Some(now.at);
    }
    let lately = mind.last_contention.is_some_and(|then| now.at.saturating_sub(then) < CONTENTION_TIMEOUT);
    let stays = sharing && crowded && (greedy >= 2 || mind.uncontended_ticks < SHARE_EXIT_TICKS);
    mind.is_sharing = divide || stays;
    *state = match () {
        () if braked => DiskState::Inversion,
        () if !lately => DiskState::Free,
        () if mind.is_sharing => DiskState::Share,
        () => DiskState::Guard,
    };
    let slow = capacity.is_some_and(|capacity| capacity.degradation(now.at).is_some());
    if slow && *state == DiskState::Share {
        *state = DiskState::Slow;
    }
    *exempt_reason = match state {
        _ if disk.swap => Some(explain::SWAP_EXEMPT.to_owned()),
        DiskState::Inversion => Some(explain::INVERSION_EXEMPT.to_owned()),
        _ => None,
    };
}

/// Whether a container takes all it may, or all it gets where no limit of ours is.
fn takes_all_it_may(member: &DiskMember, capacity: Option<&Capacity>, now: &DiskPeriodState) -> bool {
    let need = &member.demand;
    let over = capacity.is_some_and(|capacity| {
        capacity.share(member.flow) > (1.0 + now.elasticity) * capacity.share(need.lifeline)
    });
    need.is_waiting
        && (need.at_agent_limit
            || need.was_limited(now.at)
            || (need.is_censored && need.is_unlimited() && over))
}

/// How a disk is divided in a period.
struct DiskDivision<'a> {
    disk: &'a DiskProperties,
    queue: f64,
    capacity: &'a Capacity,
    /// What each container is owed and wants.
    claimants: &'a [DiskClaimant],
    /// What each container may take.
    shares: Vec<f64>,
    /// The part of the disk that is given away.
    budget: f64,
    /// Containers that use the disk.
    active: usize,
    /// The budget is divided by limits, because there is less than is wanted.
    sharing: bool,
    /// Reservations together are more than there is.
    overcommitted: bool,
    /// A container gets less than its lifeline although it wants it.
    starving: bool,
    /// What is kept for containers together.
    withheld: f64,
}

/// Who may take how much.
fn order_limits(
    device: &mut GovernedDisk,
    groups: &Groups,
    orders: &mut Vec<DiskOrder>,
    now: &DiskPeriodState,
) {
    let GovernedDisk { disk, model, members, state, exempt_reason, load, .. } = device;
    let weights = weights(members, groups, disk, model.capacity.as_ref(), now);
    let limiting = exempt_reason.is_none() && *state != DiskState::Free;
    let division = if limiting { divide(disk, load.queue, model, members, groups, now) } else { None };
    for (at, member) in members.iter_mut().enumerate() {
        let cap = match &division {
            Some(division) => order_limit(member, at, division, weights[at], groups, now),
            None => order_weight(member, disk, exempt_reason.as_deref(), weights[at], now),
        };
        orders.extend(cap.map(DiskOrder::Cap));
    }
}

/// Without limits a container has a weight, where the disk divides by weight and nothing speaks against it.
fn order_weight(
    member: &mut DiskMember,
    disk: &DiskProperties,
    exempt_reason: Option<&str>,
    weight: Option<u16>,
    now: &DiskPeriodState,
) -> Option<Cap> {
    let wish = DesiredLimit {
        weight: weight.filter(|_| exempt_reason.is_none()),
        hysteresis: HYSTERESIS,
        ..DesiredLimit::NONE
    };
    let why = || match (exempt_reason, wish.weight) {
        (Some(why), _) => why.to_owned(),
        (None, Some(weight)) => explain::weighted(&disk.name, weight),
        (None, None) => explain::UNCONTENDED.to_owned(),
    };
    member.make_order(disk.number, now.at, &wish, why)
}

/// Divides a disk of which it is known what it can do.
fn divide<'a>(
    disk: &'a DiskProperties,
    queue: f64,
    model: &'a mut DeviceModel,
    members: &[DiskMember],
    groups: &Groups,
    now: &DiskPeriodState,
) -> Option<DiskDivision<'a>> {
    let DeviceModel { capacity, is_sharing, claimants, guard_caps, shares, unattributed, budget, .. } = model;
    let capacity = capacity.as_ref()?;
    let active = members.iter().filter(|member| member.demand.is_active(now.at)).count();
    let least = MIN_CAP.min(MIN_CAPS_TOTAL / active.max(1) as f64);
    claimants.clear();
    claimants.extend(members.iter().map(|member| claimant(member, groups, capacity, least, now)));
    let others = capacity.share(*unattributed).min(MAX_UNATTRIBUTED);
    let sharing = *is_sharing && disk.weights.is_none();
    *budget = if *is_sharing { now.target } else { now.guard_budget };
    let rest = (*budget - others).max(0.0);
    allocate::guard(rest, 1.0 - others, claimants, guard_caps);
    let mut parts = guard_caps.clone();
    if sharing {
        // Containers that are away take no part; if they come back, their limit is what they may take without asking.
        let there: Vec<DiskClaimant> = claimants.iter().filter(|one| one.active).copied().collect();
        allocate::share(rest, &there, shares);
        let active = parts.iter_mut().zip(claimants.iter()).filter(|(_, one)| one.active);
        active.zip(shares.iter()).for_each(|((mine, _), share)| *mine = *share);
    }
    // v2 counts a request when its limit let it through: who is away comes back only by what goes through his.
    for (at, _) in claimants.iter().enumerate().filter(|(_, one)| !one.active) {
        parts[at] = parts[at].max(members[at].demand.min_share(capacity, least));
    }
    Some(DiskDivision {
        disk,
        queue,
        capacity,
        shares: parts,
        budget: *budget,
        active,
        sharing,
        overcommitted: claimants.iter().map(|one| one.reserve).sum::<f64>() > now.target - others,
        starving: members.iter().any(|member| is_starved(member, capacity)),
        withheld: claimants.iter().map(|one| one.withheld).sum(),
        claimants,
    })
}

/// One container's limit, in a disk that is divided.
fn order_limit(
    member: &mut DiskMember,
    at: usize,
    division: &DiskDivision<'_>,
    weight: Option<u16>,
    groups: &Groups,
    now: &DiskPeriodState,
) -> Option<Cap> {
    let DiskDivision { disk, capacity, sharing, .. } = *division;
    let (one, share) = (&division.claimants[at], division.shares[at]);
    let known = groups.get(member.group);
    let alone = one.active && division.active <= 1;
    let latency = known.is_some_and(|known| known.claim.class == ServiceClass::Latency);
    let away = !member.demand.used_within(now.at, CONTENTION_TIMEOUT);
    let off = known.is_none_or(|known| known.exempt_reason.is_some());
    let weight = weight.filter(|_| !off && !away);
    if off || away || alone || (latency && !sharing) {
        let wish = DesiredLimit { weight, ..DesiredLimit::NONE };
        let why = known.and_then(|known| known.exempt_reason);
        let why = || explain::unlimited(why, alone, latency, &disk.name);
        return member.make_order(disk.number, now.at, &wish, why);
    }
    // A reservation is owed in the words it was made in, whatever the mix of requests.
    let floor = known.map(|known| Flow::from_reservation(known.claim.disk));
    let floor = floor.filter(|_| !division.overcommitted).unwrap_or_default();
    let max = member.demand.limits_for(share, capacity, floor);
    let loosens = is_looser(max, member.ordered_max);
    if loosens && now.may_saturate {
        // Soon it is known whether that would be right; if not, it could not be taken back within a second.
        member.share = Some(share);
        return None;
    }
    // A limit from when more was given away is not to stay because the difference is small.
    let urgent = if loosens {
        member.demand.is_censored
    } else {
        division.starving || member.budget_at_order > division.budget
    };
    let hysteresis = if urgent { URGENT_HYSTERESIS } else { HYSTERESIS };
    let wish = DesiredLimit { share: Some(share), max, weight, hysteresis };
    let reserve = reservation(member, groups, capacity);
    let cap = member.make_order(disk.number, now.at, &wish, || explain_limit(division, at, reserve, now));
    if cap.is_some() {
        member.budget_at_order = division.budget;
    }
    cap
}

/// Why a container may take its share.
fn explain_limit(division: &DiskDivision<'_>, at: usize, reserve: f64, now: &DiskPeriodState) -> String {
    let one = &division.claimants[at];
    let facts = explain::LimitInputs {
        disk: &division.disk.name,
        share: division.shares[at],
        lifeline: one.lifeline,
        elasticity: now.elasticity,
        reserve,
        kept_for_others: division.withheld - one.withheld,
        others: division.active.saturating_sub(usize::from(one.active)),
        weight: one.weight,
        queue: division.queue,
        latency_ratio: now.latency_ratio,
        target: division.budget,
    };
    if division.sharing && one.active { explain::share(&facts) } else { explain::guard(&facts) }
}

/// What a container is owed and wants.
fn claimant(
    member: &DiskMember,
    groups: &Groups,
    capacity: &Capacity,
    least: f64,
    now: &DiskPeriodState,
) -> DiskClaimant {
    let need = &member.demand;
    let known = groups.get(member.group);
    let claim = known.map(|known| &known.claim);
    let latency = claim.is_some_and(|claim| claim.class == ServiceClass::Latency);
    let active = need.is_active(now.at);
    let users = need.share_within(member.user_max, capacity);
    let reserve = reservation(member, groups, capacity).min(users);
    let lifeline = capacity.share(need.lifeline).min(users);
    let protected = (lifeline * (1.0 + now.elasticity)).min(users).max(reserve);
    let peak = need.peak_share(capacity);
    let wants_more = need.wants_more(now.at, member.flow, capacity);
    // One that no limit of ours holds takes what it gets; how much it would take shows once it has one.
    let unheld =
        need.is_censored && member.agent_max == IoMax::MAX && capacity.share(member.flow) > protected;
    DiskClaimant {
        reserve: if active { reserve.max(need.min_share(capacity, least)) } else { reserve.min(peak) },
        protected,
        withheld: if wants_more || latency { protected } else { protected.min(WITHHELD_PEAK * peak) },
        demand: if unheld {
            users
        } else {
            let wanted = if wants_more && need.at_agent_limit { LIMITED_GROWTH } else { UNLIMITED_GROWTH };
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
    members: &[DiskMember],
    groups: &Groups,
    disk: &DiskProperties,
    capacity: Option<&Capacity>,
    now: &DiskPeriodState,
) -> Vec<Option<u16>> {
    let part = |member: &DiskMember| {
        let known = groups.get(member.group).filter(|known| known.exempt_reason.is_none())?;
        let claim = &known.claim;
        let owed = member.demand.lifeline.zip(Flow::from_reservation(claim.disk), f64::max);
        let there = disk.weights.is_some() && member.demand.is_active(now.at);
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
fn is_looser(a: IoMax, b: IoMax) -> bool {
    Flow::from(a).0.iter().zip(Flow::from(b).0).any(|(a, b)| *a > b)
}

/// Whether a container gets less than its lifeline although it wants it.
fn is_starved(member: &DiskMember, capacity: &Capacity) -> bool {
    let lifeline = capacity.share(member.demand.lifeline);
    member.demand.is_censored
        && !member.demand.at_user_limit
        && capacity.share(member.flow) < STARVED_BELOW * lifeline
}

/// What people should hear of.
fn raise_alerts(
    device: &mut GovernedDisk,
    groups: &Groups,
    alerts: &mut Conditions,
    orders: &mut Vec<DiskOrder>,
    now: &DiskPeriodState,
) {
    let GovernedDisk { disk, model: mind, members, state, promised, promised_without_claims, load, .. } =
        device;
    let number = disk.number;
    let text = || explain::overcommit(&disk.name, *promised);
    let parts = [*promised, *promised_without_claims];
    let overcommit = alerts.set_overcommit((Some(number), None), now.at, parts, Micros::secs(30), &text);
    orders.extend(overcommit.map(DiskOrder::Alert));
    let slow = mind.capacity.as_ref().and_then(|capacity| capacity.degradation(now.at));
    let mut say = |kind, group, there, hold, text: &dyn Fn() -> String| {
        let said = alerts.set((kind, Some(number), group), now.at, there, Micros::secs(hold), text);
        orders.extend(said.map(DiskOrder::Alert));
    };
    say(AlertKind::Degraded, None, slow.is_some(), 60, &|| {
        let (is, was) = slow.unwrap_or_default();
        explain::degraded(&disk.name, is / was)
    });
    say(AlertKind::Inversion, None, *state == DiskState::Inversion, 0, &|| explain::inversion(&disk.name));
    let Some(capacity) = mind.capacity.as_ref() else { return };
    let contended = now.saturated || matches!(state, DiskState::Share | DiskState::Slow);
    let nameless = mind.unattributed.0[WBPS];
    let heavy = contended && capacity.share(Flow([0.0, nameless, 0.0, mind.unattributed.0[3]])) > 0.2;
    for member in members {
        let known = groups.get(member.group);
        let (flow, need) = (member.flow, &mut member.demand);
        let (used, lifeline) = (capacity.share(flow), capacity.share(need.lifeline));
        let dirty = known.and_then(|known| known.dirty).map_or(0.0, |dirty| dirty.get() as f64);
        let past = heavy && dirty > nameless && flow.0[WBPS] < 0.1 * nameless;
        let beside =
            flow.0.iter().zip(Flow::from(member.agent_max).0).any(|(x, limit)| *x > ESCAPE_FACTOR * limit);
        need.record_escape(past || beside, now.seconds);
        member.held_by = match () {
            () if !need.is_waiting => LimitedBy::Nothing,
            () if need.at_user_limit => LimitedBy::User,
            () if need.at_agent_limit => LimitedBy::Cap,
            () if !now.saturated => LimitedBy::Nothing,
            () if slow.is_some() => LimitedBy::Disk,
            () => LimitedBy::Contention,
        };
        let starved = need.is_censored && !need.at_user_limit && used < STARVED_BELOW * lifeline;
        say(AlertKind::Starved, Some(member.group), starved, 10, &|| {
            explain::starved(groups.name(member.group), &disk.name, used, lifeline, load.queue)
        });
    }
}
