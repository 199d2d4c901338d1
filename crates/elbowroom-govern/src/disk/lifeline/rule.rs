//! One period of one disk.

use super::super::constants::LifelineConstants;
use super::super::flow::{Flow, OPS};
use super::super::governed_disk::GovernedDisk;
use super::super::groups::Groups;
use super::super::member::{DesiredLimit, DiskMember};
use super::super::model::{Capacity, DeviceModel};
use super::super::{DiskOrder, DiskState, LifelineSettings, explain};
use super::report;
use crate::alert::conditions::Conditions;
use elbowroom_types::claim::{Claim, ServiceClass};
use elbowroom_types::io::IoMax;
use elbowroom_types::unit::Micros;

/// What holds for the whole period.
pub(super) struct Period {
    pub(super) k: LifelineConstants,
    pub(super) elasticity: f64,
    pub(super) now: Micros,
    pub(super) seconds: f64,
    /// Bytes that cost as much as an operation, here.
    operation: f64,
    /// How much longer than on a quiet day requests took.
    pub(super) ratio: Option<f64>,
    pub(super) slow: bool,
    /// It takes as much longer again, and the disk has hardly a moment without a request: it is near its end. Requests that limits let
    /// through in bursts wait for each other on a disk that is idle in between (block/blk-throttle.c, slices of 20 to 100 ms).
    saturated: bool,
    /// The disk was slow before the period began, or the period is short, or a short one would tell no more. Else time before a
    /// burst may be mixed in, which would make the burst look small and its cap too low.
    unmixed: bool,
    /// What the disk did.
    total: f64,
}

/// One container in this period; costs per second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DemandBalance {
    pub(super) tier: u8,
    pub(super) flow: f64,
    pub(super) need: f64,
    /// What of that was reserved.
    pub(super) reserved: f64,
    /// What it misses.
    pub(super) short: f64,
    /// What it takes beyond what it needs, where that may be taken.
    pub(super) excess: f64,
}

impl Period {
    pub(super) fn cost(&self, flow: Flow) -> f64 {
        flow.weighted_bytes(self.operation)
    }

    pub(super) fn is_within(&self, then: Option<Micros>, seconds: f64) -> bool {
        then.is_some_and(|then| seconds_since(then, self.now) < seconds)
    }
}

fn seconds_since(then: Micros, now: Micros) -> f64 {
    now.saturating_sub(then).get() as f64 / 1e6
}

/// Takes in a period of a disk and of the containers on it, and gives orders.
pub(in super::super) fn tick(
    device: &mut GovernedDisk,
    settings: &LifelineSettings,
    groups: &Groups,
    alerts: &mut Conditions,
    orders: &mut Vec<DiskOrder>,
) {
    let period = measure(device, settings);
    let mut balances = measure_demand(device, groups, &period);
    let missing: f64 = balances.iter().map(|balance| balance.short).sum();
    find_excess(&mut balances, device, groups, &period);
    learn_lifelines(device, groups, &period);
    let excess: f64 = balances.iter().map(|balance| balance.excess).sum();
    let harm = missing > 0.0 && excess > 0.0;
    if harm {
        device.model.last_harm = Some(period.now);
    }
    let is_inverted = detect_inversion(device, groups, &balances, &period);
    let by_weight = device.disk.weights.is_some();
    for (member, balance) in device.members.iter_mut().zip(&balances) {
        if missing > 0.0 {
            if harm && period.unmixed && !by_weight {
                cut(member, balance, missing / excess, &period);
            }
        } else {
            grow(member, balance, &period);
        }
    }
    let lately = period.is_within(device.model.last_harm, period.k.keep_seconds);
    if is_inverted || !lately || by_weight || device.disk.swap {
        device.members.iter_mut().for_each(|member| member.demand.cap = None);
    }
    let capped = device.members.iter().any(|member| member.demand.cap.is_some());
    let degraded = device.model.capacity.as_ref().map_or(1.0, Capacity::condition) < 1.0 - period.elasticity;
    device.state = match () {
        () if is_inverted => DiskState::Inversion,
        () if missing > 0.0 && degraded => DiskState::Slow,
        () if missing > 0.0 => DiskState::Share,
        () if capped => DiskState::Guard,
        () => DiskState::Free,
    };
    device.exempt_reason = match device.state {
        _ if device.disk.swap => Some(explain::SWAP_EXEMPT.to_owned()),
        DiskState::Inversion => Some(explain::INVERSION_EXEMPT.to_owned()),
        _ => None,
    };
    request_early_sample(device, is_inverted || harm && period.unmixed, &period);
    order(device, groups, &balances, &period, orders);
    report::report(device, groups, &balances, &period, degraded, alerts, orders);
}

/// What the disk says.
fn measure(device: &mut GovernedDisk, settings: &LifelineSettings) -> Period {
    let GovernedDisk { load, model, disk, members, .. } = device;
    let k = model.k;
    let operation = k.operation_bytes[usize::from(disk.rotational)];
    let ratio = model.base_latency.latency_ratio(load);
    let slow = ratio.is_some_and(|ratio| ratio > k.slow);
    let normally = model.slow_since.is_none_or(|since| seconds_since(since, load.now) < k.busy_seconds);
    model.base_latency.learn(load, slow && normally);
    let saturated = ratio.is_some_and(|ratio| ratio > k.slow * k.slow) && load.busy >= 1.0 - k.tolerance;
    match &mut model.capacity {
        Some(capacity) => capacity.learn(load, slow, saturated, &k),
        None if saturated => model.capacity = Capacity::from_load(load, operation),
        None => {}
    }
    let short = load.seconds < 2.0 * k.early_period.get() as f64 / 1e6;
    let unmixed = model.slow_since.is_some() || short || !load.fills_early_period(&k);
    model.slow_since = slow.then(|| model.slow_since.unwrap_or(load.now));
    let theirs = members.iter().fold(Flow::ZERO, |sum, member| sum.plus(member.flow));
    let track = LifelineConstants::part(load.seconds, k.rise_seconds);
    model.unattributed =
        model.unattributed.zip(load.flow.saturating_sub(theirs), |rest, x| rest + track * (x - rest));
    let (now, seconds, total) = (load.now, load.seconds, load.flow.weighted_bytes(operation));
    Period {
        k,
        elasticity: settings.elasticity.fraction(),
        now,
        seconds,
        operation,
        ratio,
        slow,
        saturated,
        unmixed,
        total,
    }
}

fn claim(member: &DiskMember, groups: &Groups) -> Claim {
    groups.get(member.group).map(|known| known.claim.clone()).unwrap_or_default()
}

/// What every container needs, and misses.
fn measure_demand(device: &GovernedDisk, groups: &Groups, period: &Period) -> Vec<DemandBalance> {
    let k = &period.k;
    let members = &device.members;
    let flow_of = |member: &DiskMember| period.cost(member.flow);
    let count = members.iter().filter(|member| flow_of(member) > 0.0).count().max(1);
    // A trickle takes nothing from others.
    let takes = members.iter().filter(|member| flow_of(member) > k.tolerance * period.total);
    let lowest = takes.map(|member| claim(member, groups).tier).min();
    let balance = |member: &DiskMember| {
        let (claim, flow) = (claim(member, groups), flow_of(member));
        let waits = groups.get(member.group).is_none_or(|known| known.may_wait(k));
        let reserved = reservation(member, &claim, period);
        let mut need = period.cost(member.demand.lifeline).max(reserved);
        if member.demand.seen_seconds < k.settle_seconds && flow > 0.0 && waits {
            need = need.max(period.total / count as f64);
        }
        let asks = device.load.request_time(member.flow) >= k.in_flight;
        let mut short = if asks && flow < (1.0 - k.tolerance) * need { need - flow } else { 0.0 };
        let above = lowest.is_some_and(|lowest| lowest < claim.tier) && waits;
        if above || claim.class == ServiceClass::Latency {
            short = short.max(period.elasticity * flow);
        }
        let held = member.is_at_limit(member.user_max) || member.is_at_limit(member.agent_max);
        let short = if period.slow && !held { short } else { 0.0 };
        DemandBalance { tier: claim.tier, flow, need, reserved, short, excess: 0.0 }
    };
    members.iter().map(balance).collect()
}

/// What was reserved, as a cost: of bytes and operations the dearer, with requests as they are.
fn reservation(member: &DiskMember, claim: &Claim, period: &Period) -> f64 {
    let mut reservation = Flow::from_reservation(claim.disk);
    if claim.disk_is_asked {
        reservation = reservation.zip(Flow::from(member.user_max), f64::min);
    }
    let cost = |(bytes, ios): (usize, usize)| {
        let (bytes, ios, mix) =
            (reservation.0[bytes], reservation.0[ios], [bytes, ios].map(|k| member.demand.mix.0[k]));
        let [size, known] = [mix[0] / mix[1], mix[1]];
        match known > 0.0 && size > 0.0 {
            true => (bytes / size).max(ios) * (size + period.operation),
            false => bytes + ios * period.operation,
        }
    };
    OPS.into_iter().map(cost).sum()
}

/// What containers take beyond what they need: of a tier below the one that is short, all that is not little.
fn find_excess(balances: &mut [DemandBalance], device: &GovernedDisk, groups: &Groups, period: &Period) {
    let tier = balances.iter().filter(|balance| balance.short > 0.0).map(|balance| balance.tier).max();
    let little = period.k.tolerance * period.total;
    for (balance, member) in balances.iter_mut().zip(&device.members) {
        let Some(known) = groups.get(member.group).filter(|known| known.exempt_reason.is_none()) else {
            continue;
        };
        let keep = match tier {
            Some(tier) if balance.tier < tier => 0.0,
            Some(tier) if balance.tier > tier || balance.short > 0.0 => f64::INFINITY,
            _ => balance.need * (1.0 + period.elasticity),
        };
        if known.claim.class != ServiceClass::Latency {
            balance.excess = (balance.flow - keep.max(little)).max(0.0);
        }
    }
}

/// Lifelines and mixes. A sample of a slow disk, or of a container that something holds back, says nothing about need.
fn learn_lifelines(device: &mut GovernedDisk, groups: &Groups, period: &Period) {
    let k = &period.k;
    // While limits hold others, a container that waits for neither a disk nor a limit may wait for one of those.
    let limiting = device.members.iter().any(|member| member.agent_max != IoMax::MAX);
    for member in &mut device.members {
        let held = member.is_at_limit(member.agent_max) || member.is_at_limit(member.user_max);
        let blocked = groups.get(member.group).is_some_and(|known| known.is_blocked(k)) && limiting;
        let (flow, demand) = (member.flow, &mut member.demand);
        if flow.operations() > 0.0 {
            let part = LifelineConstants::part(period.seconds, k.settle_seconds);
            let part = if demand.mix == Flow::ZERO { 1.0 } else { part };
            demand.mix = demand.mix.zip(flow, |mix, x| mix + part * (x - mix));
        }
        if period.slow || held || blocked {
            continue;
        }
        let first = demand.seen_seconds == 0.0;
        let follow = |lifeline: f64, x: f64| {
            let constant = if x > lifeline { k.rise_seconds } else { k.keep_seconds };
            let part = if first { 1.0 } else { LifelineConstants::part(period.seconds, constant) };
            lifeline + part * (x - lifeline)
        };
        demand.lifeline = demand.lifeline.zip(flow, follow);
        demand.seen_seconds += if flow.operations() > 0.0 { period.seconds } else { 0.0 };
    }
}

/// Takes its part of what others miss from a container, and `P` more: disks that are less full answer sooner.
fn cut(member: &mut DiskMember, balance: &DemandBalance, part: f64, period: &Period) {
    let demand = &mut member.demand;
    if balance.excess <= 0.0 || period.is_within(demand.cut_at, period.k.settle_seconds) {
        return;
    }
    let cut = ((1.0 + period.elasticity) * part * balance.excess).min(balance.excess);
    (demand.cap, demand.harm_point, demand.cut_at) =
        (Some(balance.flow - cut), balance.flow, Some(period.now));
}

/// Gives a container that takes all it may more, while none is short.
fn grow(member: &mut DiskMember, balance: &DemandBalance, period: &Period) {
    let k = &period.k;
    let at_limit = member.is_at_limit(member.agent_max);
    let demand = &mut member.demand;
    let Some(cap) = demand.cap.map(|cap| cap.max(period.cost(demand.lifeline))) else { return };
    demand.cap = Some(cap);
    let reached = at_limit || balance.flow >= (1.0 - k.tolerance) * cap;
    if period.saturated || !reached || period.is_within(demand.cut_at, k.settle_seconds) {
        return;
    }
    // Slowest where harm was seen. A cap without harm beyond that is of a disk that has become faster: its distance doubles each second.
    let missing = demand.harm_point - cap;
    let step = (k.growth * cap).max(0.5 * missing).max(-missing);
    demand.cap = Some(cap + step * period.seconds.min(1.0));
}

/// Whether limits hold up a container that has none, and so stay away.
fn detect_inversion(
    device: &mut GovernedDisk,
    groups: &Groups,
    balances: &[DemandBalance],
    period: &Period,
) -> bool {
    let GovernedDisk { members, model, .. } = device;
    let binds = members.iter().any(|member| member.is_at_limit(member.agent_max));
    let mut both = members.iter().zip(balances);
    let blocked = binds
        && !period.slow
        && both.any(|(member, balance)| {
            let known = groups.get(member.group);
            balance.flow < (1.0 - period.elasticity) * balance.need
                && known.is_some_and(|known| known.is_blocked(&period.k))
        });
    model.blocked_seconds = if blocked { model.blocked_seconds + period.seconds } else { 0.0 };
    if model.blocked_seconds >= period.k.settle_seconds {
        model.last_inversion = Some(period.now);
    }
    period.is_within(model.last_inversion, period.k.keep_seconds)
}

/// A disk that became slow in the middle of a period shows in the next, short one which containers that hurts.
fn request_early_sample(device: &mut GovernedDisk, done: bool, period: &Period) {
    let DeviceModel { k, slow_since, alarm, wants_sample, .. } = &mut device.model;
    let using = device.members.iter().filter(|member| member.flow.operations() > 0.0).count();
    let slow = std::mem::take(alarm) || period.is_within(*slow_since, k.settle_seconds);
    *wants_sample = !done && using >= 2 && slow && device.load.fills_early_period(k);
}

/// Limits as they should be now.
fn order(
    device: &mut GovernedDisk,
    groups: &Groups,
    balances: &[DemandBalance],
    period: &Period,
    orders: &mut Vec<DiskOrder>,
) {
    let weights = weights(device, groups, period);
    let reasons = report::LimitReasons::new(device, groups, balances, period);
    let (number, whole) =
        (device.disk.number, device.model.capacity.as_ref().map(|all| all.share(Flow([1.0, 0.0, 0.0, 0.0]))));
    for ((member, balance), weight) in device.members.iter_mut().zip(balances).zip(weights) {
        let max = member.demand.cap.map_or(IoMax::MAX, |cap| limits(cap, member.demand.mix, period));
        let share = member.demand.cap.zip(whole).map(|(cap, byte)| cap * byte);
        let cap = member.demand.cap;
        let is_cut = cap.is_some() && member.demand.cut_at == Some(period.now);
        let wish = DesiredLimit { share, max, weight, hysteresis: period.k.growth, is_cut };
        let because = || reasons.because(balance, cap, weight);
        orders.extend(member.make_order(number, period.now, &wish, because).map(DiskOrder::Cap));
    }
}

/// A cost as limits for a container with such requests. Bytes are exact. Operations are looser by `P` and a multiple of ten, for the
/// kernel drops what is left of one in slices of 100 ms (block/blk-throttle.c, `throtl_trim_slice`): they are for requests that
/// become smaller. What it hardly does is not limited.
fn limits(cap: f64, mix: Flow, period: &Period) -> IoMax {
    let cost = period.cost(mix);
    let mut flow = mix.map(|x| x * cap / cost);
    for (bytes, ios) in OPS {
        flow.0[ios] = (flow.0[ios] * (1.0 + period.elasticity) / 10.0).ceil() * 10.0;
        if mix.0[ios] < period.k.tolerance * mix.operations() || !flow.0[bytes].is_finite() {
            (flow.0[bytes], flow.0[ios]) = (f64::INFINITY, f64::INFINITY);
        }
    }
    flow.to_io_max()
}

/// Weights in proportion to `w * L`, 100 for the mean container that uses the disk, where the disk divides by weight. Until its
/// capacity is known a burst looks like a need: `w` alone counts.
fn weights(device: &GovernedDisk, groups: &Groups, period: &Period) -> Vec<Option<u16>> {
    let capacity = device.model.capacity.as_ref();
    let part = |member: &DiskMember| {
        let known = groups.get(member.group).filter(|known| known.exempt_reason.is_none())?;
        let claim = &known.claim;
        let owed = member.demand.lifeline.zip(Flow::from_reservation(claim.disk), f64::max);
        let need = capacity.map_or(1.0, |capacity| capacity.share(owed) + period.k.growth);
        let uses = device.disk.weights.is_some()
            && device.exempt_reason.is_none()
            && member.demand.mix != Flow::ZERO;
        uses.then(|| f64::from(claim.weight.max(1)) * need)
    };
    let parts: Vec<Option<f64>> = device.members.iter().map(part).collect();
    let (sum, count) =
        parts.iter().flatten().fold((0.0, 0.0), |(sum, count), part| (sum + part, count + 1.0));
    let weight = |part: f64| (100.0 * part * count / sum).round().clamp(1.0, 1000.0) as u16;
    parts.into_iter().map(|part| part.filter(|_| count >= 2.0).map(weight)).collect()
}
