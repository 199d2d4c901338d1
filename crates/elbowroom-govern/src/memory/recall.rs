//! Recall: who uses more than he is owed gives it back, when somebody who is owed more misses his objective, or says that he could
//! serve more.
//!
//! A quarter of the excess goes every period: nine tenths are back after eight, and with one period between cause and measurement
//! that is far from where such a loop begins to swing. Who grows as fast as he gives gives faster; where that is not enough either,
//! a limit holds him for seconds, never below what he is owed, nor below what is left when all is taken that can be.

use super::lend::LEAST;
use super::member::Member;
use elbowroom_types::memory::Lease;
use elbowroom_types::probe::Colour;
use elbowroom_types::unit::Micros;

/// The part of the excess that is taken in a period, and what is taken besides so that the rest does not take for ever.
const GAIN: f64 = 0.25;
const BESIDE: f64 = (8 << 20) as f64;
/// What is near enough.
const BAND: f64 = 1.01;
/// How long a lease lasts that is not renewed, and when it is.
pub(super) const LEASE: Micros = Micros::secs(10);
pub(super) const RENEW: Micros = Micros::secs(5);
/// Periods in which a container grew as fast as it gave, before it is held.
const GROWS: u8 = 2;
/// After the kernel refused a lease, it is tried again this much later.
pub(super) const RETRY: Micros = Micros::secs(300);

/// What is known of a container that is recalled from.
#[derive(Debug, Default)]
pub(super) struct Recall {
    /// What it was to use no more than, after it was last recalled from.
    expected: Option<f64>,
    /// Periods in a row in which it grew as fast as it gave.
    grew: u8,
    /// When it last gave.
    pub(super) at: Option<Micros>,
    /// The kernel found no memory for it meanwhile: nothing is recalled until then.
    pub(super) spared_until: Micros,
    /// Leases cannot be had until then.
    pub(super) unleasable_until: Micros,
}

/// What is recalled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Taken {
    /// What its programs are to give back.
    pub(super) asked: f64,
    /// What of that the kernel can take.
    pub(super) amount: f64,
    /// Hold it here.
    pub(super) high: Option<f64>,
}

/// What a container may keep for as long as somebody who is owed more misses his objective.
pub(super) fn keeps(member: &Member) -> f64 {
    match member.colour() {
        // What it has beyond that is for loans to find out, in small steps.
        Colour::Green => member.nominal.max(member.floor),
        Colour::Yellow | Colour::Red => member.entitlement,
    }
}

/// Whether it uses more than that.
pub(super) fn owes(member: &Member) -> bool {
    let keeps = keeps(member).max(member.floor);
    !member.is_dead() && member.usage() > (BAND * keeps).max(keeps + LEAST)
}

/// What a container gives back now, at most `need`.
pub(super) fn take(member: &mut Member, need: f64, now: Micros) -> Taken {
    let (usage, keeps) = (member.usage(), keeps(member).max(member.floor));
    let excess = (usage - keeps).max(0.0);
    let grew = member.recall.expected.is_some_and(|expected| usage > expected);
    member.recall.grew = if grew { (member.recall.grew + 1).min(2 * GROWS) } else { 0 };
    let gain = match member.recall.grew {
        0 => GAIN,
        1 => 2.0 * GAIN,
        _ => 1.0,
    };
    let asked = (gain * excess + BESIDE).min(excess).min(need.max(BESIDE));
    let amount = asked.min(member.reclaimable());
    // Who has nothing that can be taken does not grow by keeping it.
    let expected = if amount < LEAST { usage + LEAST } else { usage - 0.5 * amount.min(GAIN * excess) };
    member.recall.expected = Some(expected);
    let held = member.recall.grew >= GROWS && now >= member.recall.unleasable_until;
    // Below what it can give it would be stopped at every allocation (mm/memcontrol.c, `mem_cgroup_handle_over_high`).
    let high = (held || member.lease.is_some()).then(|| keeps.max(usage - amount));
    Taken { asked, amount, high }
}

/// It is not recalled from any more.
pub(super) fn end(member: &mut Member) {
    (member.recall.expected, member.recall.grew) = (None, 0);
}

/// Whether a lease is to be written again.
pub(super) fn is_due(held: Option<&Lease>, high: f64, now: Micros) -> bool {
    held.is_none_or(|held| {
        let before = held.high.get() as f64;
        held.until.saturating_sub(now) <= RENEW || (high - before).abs() > 0.05 * before
    })
}
