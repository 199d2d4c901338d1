//! What an operator should hear of memory.

use super::member::{Member, Protection};
use super::pool::Shared;
use super::{amount, explain};
use crate::alert::conditions::Conditions;
use elbowroom_types::alert::{Alert, Kind};
use elbowroom_types::probe::Colour;
use elbowroom_types::unit::Micros;

/// How long a condition has to last.
const HOLD: Micros = Micros::secs(30);

/// Looks at a pool in which so much is reserved.
pub(super) fn of_pool(
    shared: &Shared,
    reserved: f64,
    now: Micros,
    conditions: &mut Conditions,
) -> Option<Alert> {
    let (owner, size) = (shared.pool.owner, shared.pool.size);
    let text = || explain::overcommit(&shared.path, reserved, size);
    conditions.set((Kind::Overcommit, None, owner), now, reserved > size, HOLD, text)
}

/// Looks at a container; `short`: a pool that it is in is.
pub(super) fn of_member(
    member: &Member,
    short: bool,
    now: Micros,
    conditions: &mut Conditions,
) -> impl Iterator<Item = Alert> + use<> {
    let mut say = |kind, there, hold, text: &dyn Fn() -> String| {
        conditions.set((kind, None, Some(member.id)), now, there, hold, text)
    };
    let owed = member.entitlement.min(member.max().value().map_or(f64::INFINITY, amount));
    let starved = short && member.colour() == Colour::Red && member.usage() < 0.95 * owed;
    let starved = say(Kind::Starved, starved, HOLD, &|| explain::starved(member, owed));
    let foreign = member.protection == Protection::Foreign && now < member.unprotectable_until;
    let foreign = say(Kind::ForeignWriter, foreign, Micros::ZERO, &|| explain::foreign(&member.name));
    starved.into_iter().chain(foreign)
}
