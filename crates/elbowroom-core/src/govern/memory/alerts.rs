//! What an operator should hear of memory.

use super::member::{Member, Protection};
use super::pool::Pool;
use super::sample::Order;
use super::{amount, explain};
use crate::alert::Conditions;
use crate::alert::Kind;
use crate::probe::Colour;
use crate::sample::GroupId;
use crate::unit::Micros;
use std::collections::BTreeMap;

/// How long a condition has to last.
const HOLD: Micros = Micros::secs(30);

/// Looks at a pool.
pub(super) fn look(
    pool: &Pool,
    path: &str,
    members: &BTreeMap<GroupId, Member>,
    ids: &[GroupId],
    now: Micros,
    conditions: &mut Conditions,
    orders: &mut Vec<Order>,
) {
    let mut say = |kind, group, there, hold, text: &dyn Fn() -> String| {
        orders.extend(conditions.set((kind, None, group), now, there, hold, text).map(Order::Alert));
    };
    let all = || ids.iter().filter_map(|id| members.get(id));
    let reserved: f64 = all().filter(|member| !member.is_dead()).map(|member| member.reserve).sum();
    let text = || explain::overcommit(path, reserved, pool.size);
    say(Kind::Overcommit, pool.owner, reserved > pool.size, HOLD, &text);
    for member in all() {
        let owed = member.entitlement.min(member.max().value().map_or(f64::INFINITY, amount));
        let starved = pool.short && member.colour() == Colour::Red && member.usage() < 0.95 * owed;
        say(Kind::Starved, Some(member.id), starved, HOLD, &|| explain::starved(member, owed));
        let foreign = member.protection == Protection::Foreign && now < member.unprotectable_until;
        say(Kind::ForeignWriter, Some(member.id), foreign, Micros::ZERO, &|| explain::foreign(&member.name));
    }
}
