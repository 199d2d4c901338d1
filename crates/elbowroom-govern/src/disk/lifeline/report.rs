//! What is reported of a period: why a limit is what it is, what holds each container, alerts.

use super::super::flow::{Flow, WBPS, WIOPS, per_second};
use super::super::governed_disk::GovernedDisk;
use super::super::groups::Groups;
use super::super::{DiskOrder, DiskState, HeldBy, explain};
use super::rule::{DemandBalance, Period};
use crate::alert::conditions::Conditions;
use elbowroom_types::alert::AlertKind;
use elbowroom_types::unit::Micros;

/// What reasons are made of.
pub(super) struct LimitReasons {
    disk: String,
    ratio: f64,
    /// The container that misses most, what it gets and what it needs.
    short: Option<(String, f64, f64)>,
    exempt: Option<String>,
}

impl LimitReasons {
    pub(super) fn new(
        device: &GovernedDisk,
        groups: &Groups,
        balances: &[DemandBalance],
        period: &Period,
    ) -> Self {
        let members = device.members.iter().zip(balances);
        let most = members.max_by(|a, b| a.1.short.total_cmp(&b.1.short)).filter(|most| most.1.short > 0.0);
        let short = most.map(|(member, balance)| {
            (groups.name(member.group).to_owned(), balance.flow, balance.flow + balance.short)
        });
        let (disk, exempt) = (device.disk.name.clone(), device.exempt_reason.clone());
        Self { disk, ratio: period.ratio.unwrap_or(1.0), short, exempt }
    }

    /// Why a container has the limit it has now.
    pub(super) fn because(&self, balance: &DemandBalance, cap: Option<f64>, weight: Option<u16>) -> String {
        match (&self.exempt, weight, cap, &self.short) {
            (Some(why), ..) => why.clone(),
            (None, Some(weight), ..) => explain::weighted(&self.disk, weight),
            (None, None, None, _) => explain::UNCONTENDED.to_owned(),
            (None, None, Some(cap), Some((name, gets, needs))) => {
                explain::cut(&self.disk, self.ratio, (name, *gets, *needs), [balance.flow, balance.need, cap])
            }
            (None, None, Some(cap), None) => explain::grow(&self.disk, cap),
        }
    }
}

/// What holds each container back, and alerts.
pub(super) fn report(
    device: &mut GovernedDisk,
    groups: &Groups,
    balances: &[DemandBalance],
    period: &Period,
    degraded: bool,
    alerts: &mut Conditions,
    orders: &mut Vec<DiskOrder>,
) {
    sum_promises(device, groups, balances, period);
    let parts = [device.promised, device.promised_without_claims];
    let (name, number) = (device.disk.name.clone(), device.disk.number);
    let text = || explain::overcommit(&name, parts[0]);
    let overcommit = alerts.set_overcommit((Some(number), None), period.now, parts, Micros::secs(30), &text);
    orders.extend(overcommit.map(DiskOrder::Alert));
    let GovernedDisk { model, members, state, load, .. } = device;
    let mut set_alert = |kind, group, there, hold, text: &dyn Fn() -> String| {
        let alert = alerts.set((kind, Some(number), group), period.now, there, Micros::secs(hold), text);
        orders.extend(alert.map(DiskOrder::Alert));
    };
    let condition = model.capacity.as_ref().map_or(1.0, |capacity| capacity.condition());
    set_alert(AlertKind::Degraded, None, degraded, 60, &|| explain::degraded(&name, condition));
    set_alert(AlertKind::Inversion, None, *state == DiskState::Inversion, 0, &|| explain::inversion(&name));
    let Some(capacity) = model.capacity.as_ref() else { return };
    let (nameless, rest) = (model.unattributed.0[WBPS], model.unattributed.0[WIOPS]);
    let heavy = period.slow && capacity.share(Flow([0.0, nameless, 0.0, rest])) > period.elasticity;
    for (member, balance) in members.iter_mut().zip(balances) {
        let dirty =
            groups.get(member.group).and_then(|known| known.dirty).map_or(0.0, |dirty| dirty.get() as f64);
        let past = heavy && dirty > nameless && member.flow.0[WBPS] < period.elasticity * nameless;
        let limits = Flow::from(member.agent_max).0;
        let beside =
            member.flow.0.iter().zip(limits).any(|(x, limit)| *x > (1.0 + period.k.tolerance) * limit);
        let escaping = &mut member.demand.escaping_seconds;
        *escaping = if past || beside { *escaping + period.seconds } else { 0.0 };
        let starved = balance.short > 0.0 && balance.flow < (1.0 - period.k.tolerance) * balance.need;
        member.held_by = match () {
            () if member.is_at_limit(member.agent_max) => HeldBy::Cap,
            () if member.is_at_limit(member.user_max) => HeldBy::User,
            () if starved && degraded => HeldBy::Disk,
            () if starved => HeldBy::Others,
            () => HeldBy::Nothing,
        };
        let [gets, needs] = [balance.flow, balance.need].map(per_second);
        let text = || explain::starved(groups.name(member.group), &name, &gets, &needs, load.queue);
        set_alert(AlertKind::Starved, Some(member.group), starved, 10, &text);
    }
}

/// What is promised of the disk: with what containers claim for themselves, and without.
fn sum_promises(device: &mut GovernedDisk, groups: &Groups, balances: &[DemandBalance], period: &Period) {
    let GovernedDisk { model, members, promised, promised_without_claims, .. } = device;
    let byte = model.capacity.as_ref().map_or(0.0, |capacity| capacity.share(Flow([1.0, 0.0, 0.0, 0.0])));
    (*promised, *promised_without_claims) = (0.0, 0.0);
    for (member, balance) in members.iter().zip(balances) {
        let lifeline = period.cost(member.demand.lifeline);
        let asked = groups.get(member.group).is_some_and(|known| known.claim.disk_is_asked);
        let is_new = member.demand.seen_seconds < period.k.settle_seconds;
        let need = if is_new { lifeline.max(balance.reserved) } else { balance.need };
        *promised += byte * need;
        *promised_without_claims += byte * if asked { lifeline } else { need };
    }
}
