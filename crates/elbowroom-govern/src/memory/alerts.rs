//! What an operator should hear of memory.

use super::member::{MemoryMember, ProtectionStatus};
use super::pool::PoolMembership;
use super::{explain, to_f64};
use crate::alert::conditions::Conditions;
use elbowroom_types::alert::{Alert, AlertKind};
use elbowroom_types::probe::Colour;
use elbowroom_types::unit::Micros;

/// How long a condition has to last.
const MIN_DURATION: Micros = Micros::secs(30);

/// The alerts of a pool in which `reserved` bytes are reserved, `promised` of them by the operator.
pub(super) fn pool_alerts(
    shared: &PoolMembership,
    [reserved, promised]: [f64; 2],
    now: Micros,
    conditions: &mut Conditions,
) -> impl Iterator<Item = Alert> + use<> {
    let (owner, size) = (shared.pool.owner, shared.pool.size);
    let text = || explain::overcommit(&shared.path, reserved, size);
    conditions.set_overcommit(
        (None, owner),
        now,
        [reserved, promised].map(|part| part / size),
        MIN_DURATION,
        &text,
    )
}

/// Looks at a container; `short`: a pool that it is in is.
pub(super) fn member_alerts(
    member: &MemoryMember,
    short: bool,
    now: Micros,
    conditions: &mut Conditions,
) -> impl Iterator<Item = Alert> + use<> {
    let mut say = |kind, there, hold, text: &dyn Fn() -> String| {
        conditions.set((kind, None, Some(member.id)), now, there, hold, text)
    };
    let owed = member.entitlement.min(member.max().value().map_or(f64::INFINITY, to_f64));
    let starved = short && member.colour() == Colour::Red && member.usage() < 0.95 * owed;
    let starved = say(AlertKind::Starved, starved, MIN_DURATION, &|| explain::starved(member, owed));
    let foreign = member.protection == ProtectionStatus::Foreign && now < member.unprotectable_until;
    let foreign = say(AlertKind::ForeignWriter, foreign, Micros::ZERO, &|| explain::foreign(&member.name));
    starved.into_iter().chain(foreign)
}
