//! Recall: who uses more than he is owed gives it back, when somebody who is owed more misses his objective, or says that he could
//! serve more.
//!
//! A quarter of the excess goes every period: nine tenths are back after eight, and with one period between cause and measurement
//! that is far from where such a loop begins to swing. Who grows as fast as he gives gives faster; where that is not enough either,
//! a limit holds him for seconds, never below what he is owed, nor below what is left when all is taken that can be.

use super::member::MemoryMember;
use crate::memory::state::MIN_AMOUNT;
use elbowroom_types::memory::MemoryHighLease;
use elbowroom_types::probe::Colour;
use elbowroom_types::unit::Micros;

/// The part of the excess that is taken in a period, and what is taken besides so that the rest does not take for ever.
const GAIN: f64 = 0.25;
const MIN_STEP: f64 = (8 << 20) as f64;
/// What is near enough.
const TOLERANCE: f64 = 1.01;
/// How long a lease lasts that is not renewed, and when it is.
pub(super) const LEASE_DURATION: Micros = Micros::secs(10);
pub(super) const RENEW_BEFORE: Micros = Micros::secs(5);
/// Periods in which a container grew as fast as it gave, before it is held.
const GROWTH_PERIODS: u8 = 2;
/// After the kernel refused a lease, it is tried again this much later.
pub(super) const REFUSED_RETRY: Micros = Micros::secs(300);

/// What is recalled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RecallStep {
    /// What its programs are to give back.
    pub(super) asked: f64,
    /// What of that the kernel can take.
    pub(super) amount: f64,
    /// Hold it here.
    pub(super) high: Option<f64>,
}

/// What a container may keep for as long as somebody who is owed more misses his objective.
pub(super) fn entitled_usage(member: &MemoryMember) -> f64 {
    match member.colour() {
        // What it has beyond that is for loans to find out, in small steps.
        Colour::Green => member.nominal_entitlement.max(member.floor),
        Colour::Yellow | Colour::Red => member.entitlement,
    }
}

/// Whether it uses more than that.
pub(super) fn is_over_entitlement(member: &MemoryMember) -> bool {
    let keeps = entitled_usage(member).max(member.floor);
    !member.is_unpopulated() && member.usage() > (TOLERANCE * keeps).max(keeps + MIN_AMOUNT)
}

/// What a container gives back now, at most `need`.
pub(super) fn plan_recall(member: &mut MemoryMember, need: f64, now: Micros) -> RecallStep {
    let (usage, keeps) = (member.usage(), entitled_usage(member).max(member.floor));
    let excess = (usage - keeps).max(0.0);
    let grew = member.recall.expected_usage.is_some_and(|expected| usage > expected);
    member.recall.growth_periods =
        if grew { (member.recall.growth_periods + 1).min(2 * GROWTH_PERIODS) } else { 0 };
    let gain = match member.recall.growth_periods {
        0 => GAIN,
        1 => 2.0 * GAIN,
        _ => 1.0,
    };
    let asked = (gain * excess + MIN_STEP).min(excess).min(need.max(MIN_STEP));
    let amount = asked.min(member.reclaimable());
    // Who has nothing that can be taken does not grow by keeping it.
    let expected =
        if amount < MIN_AMOUNT { usage + MIN_AMOUNT } else { usage - 0.5 * amount.min(GAIN * excess) };
    member.recall.expected_usage = Some(expected);
    let held = member.recall.growth_periods >= GROWTH_PERIODS && now >= member.recall.no_lease_until;
    // Below what it can give it would be stopped at every allocation (mm/memcontrol.c, `mem_cgroup_handle_over_high`).
    let high = (held || member.lease.is_some()).then(|| keeps.max(usage - amount));
    RecallStep { asked, amount, high }
}

/// It is not recalled from any more.
pub(super) fn end_recall(member: &mut MemoryMember) {
    (member.recall.expected_usage, member.recall.growth_periods) = (None, 0);
}

/// Whether a lease is to be written again.
pub(super) fn needs_renewal(held: Option<&MemoryHighLease>, high: f64, now: Micros) -> bool {
    held.is_none_or(|held| {
        let before = held.high.get() as f64;
        held.until.saturating_sub(now) <= RENEW_BEFORE || (high - before).abs() > 0.05 * before
    })
}
