//! Recall: a container that uses more than its entitlement gives the excess back, when another one that is owed more misses its
//! objective, or says that it could serve more.
//!
//! A quarter of the excess goes every period: nine tenths are back after eight, and with one period between cause and measurement
//! that is far from where such a loop begins to swing. A container that grows as fast as it gives, gives twice as much each time.

use super::member::MemoryMember;
use super::tuning::TUNING;
use elbowroom_types::probe::Colour;

/// What is recalled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RecallStep {
    /// What its programs are to give back.
    pub(super) asked: f64,
    /// What of that the kernel can take.
    pub(super) amount: f64,
}

/// What a container may keep for as long as another one that is owed more misses its objective.
pub(super) fn entitled_usage(member: &MemoryMember) -> f64 {
    match member.colour() {
        // What it has beyond that is for loans to find out, in small steps.
        Colour::Green => member.nominal_entitlement.max(member.minimum),
        Colour::Yellow | Colour::Red => member.entitlement,
    }
}

/// Whether it uses more than that.
pub(super) fn is_over_entitlement(member: &MemoryMember) -> bool {
    let keeps = entitled_usage(member).max(member.minimum);
    !member.is_unpopulated() && member.usage() > keeps * (1.0 + TUNING.noise / 2.0) + TUNING.min_amount
}

/// What a container gives back now, at most `need`.
pub(super) fn plan_recall(member: &mut MemoryMember, need: f64) -> RecallStep {
    let (usage, keeps) = (member.usage(), entitled_usage(member).max(member.minimum));
    let excess = (usage - keeps).max(0.0);
    let state = &mut member.recall;
    let grew = state.expected_usage.is_some_and(|expected| usage > expected);
    state.growth_periods = if grew { (state.growth_periods + 1).min(2) } else { 0 };
    let gain = (TUNING.recall_gain * f64::from(1 << state.growth_periods)).min(1.0);
    let asked = (gain * excess + TUNING.min_step).min(excess).min(need.max(TUNING.min_step));
    let amount = asked.min(member.reclaimable());
    // A container from which nothing can be taken does not grow by keeping it.
    let expected = match amount < TUNING.min_amount {
        true => usage + TUNING.min_amount,
        false => usage - 0.5 * amount.min(TUNING.recall_gain * excess),
    };
    member.recall.expected_usage = Some(expected);
    RecallStep { asked, amount }
}
