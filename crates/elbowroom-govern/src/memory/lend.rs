//! Loans: memory of containers that have no use for it, for those that have.
//!
//! # Problem
//! How much memory a container needs cannot be seen; its cache is as large as there was room. Taking a fixed part from whichever is
//! content finds out too slowly, and finds out the same again and again.
//!
//! # Approach
//! The container with most memory for its weight gives first. The first step is a fiftieth of what it uses; each that did no harm
//! makes the next half as large again, up to an eighth. Harm is what shows within two periods: a colour that turns red, waiting,
//! pages that come back.
//!
//! Whose doing that was, its own load tells. Where more is asked of it than when the loan was ordered, or where much more comes back
//! than was taken, its load has returned: the loan ends, and is no failure. Else the loan was too much: nothing is lent for ten
//! seconds, twice as long with each such loan, half as long with each harmless one of the largest step.

use super::colour::ColourSource;
use super::member::MemoryMember;
use super::pool::UnmetDemand;
use super::tuning::TUNING;
use super::{explain, to_f64};
use elbowroom_types::id::CgroupId;
use elbowroom_types::probe::Colour;
use elbowroom_types::unit::Micros;
use std::collections::BTreeMap;

/// For how many periods harm is looked for.
const TRIAL_PERIODS: u8 = 2;
/// A container's load has returned when it is more than this many times what it was before the loan. Where no load is known, it has
/// when more than this many times what was taken came back.
const RETURNED: f64 = 2.0;
/// How long programs have to give memory back themselves before the kernel takes it: one period.
const GRACE_PERIOD: Micros = Micros::secs(1);

/// Looks for harm that showed in the last period after loans; a sentence when there is some.
pub(super) fn review(member: &mut MemoryMember, now: Micros) -> Option<String> {
    let period = member.meter.period();
    let open: f64 = member.loans.trials.iter().map(|trial| trial.taken).sum();
    for trial in &mut member.loans.trials {
        trial.periods += 1;
        trial.refault += (to_f64(period.refault) - trial.usual_refault).max(0.0);
    }
    let oldest = *member.loans.trials.front()?;
    // A probe knows better than the kernel whether waiting matters.
    let told = member.judgement.source == ColourSource::Probe;
    let back = if told { 1.0 } else { TUNING.max_refault };
    let stall = member.meter.last_stall().unwrap_or_default();
    let harm = match member.judgement.colour {
        _ if period.oom => "the kernel found no memory for it".to_owned(),
        Colour::Red => "it needs more again".to_owned(),
        _ if !told && stall > TUNING.harmful_stall => explain::stalled(stall),
        _ if oldest.refault > back * open => explain::refaulted(oldest.refault, open),
        _ => {
            if oldest.periods >= TRIAL_PERIODS {
                member.loans.succeed();
            }
            return None;
        }
    };
    let returned = match oldest.load_before.zip(member.judgement.load) {
        Some((before, load)) => load > RETURNED * before,
        None => oldest.refault > RETURNED * open,
    };
    if returned && !period.oom {
        member.loans.end_loans();
        member.loans.hold(now);
    } else {
        member.loans.fail(now);
    }
    if !member.mechanisms.holds {
        member.loans.hold_until = now;
    }
    Some(explain::hold(&harm, returned && !period.oom))
}

/// What a container gives, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LoanStep {
    pub(super) id: CgroupId,
    pub(super) amount: f64,
    /// Its view shows no more than this.
    pub(super) ceiling: f64,
    /// Its programs had time to give it back themselves: now it is taken.
    pub(super) take_now: bool,
    /// They are asked for the first time.
    pub(super) is_first_ask: bool,
}

/// Which containers give how much, so that `need` is met.
pub(super) fn plan_loans(
    members: &mut BTreeMap<CgroupId, MemoryMember>,
    ids: &[CgroupId],
    needers: &[UnmetDemand],
    need: f64,
    now: Micros,
) -> Vec<LoanStep> {
    let any_red = needers.iter().any(|needer| needer.is_red);
    let is_red = |id: &CgroupId| needers.iter().any(|needer| needer.id == *id && needer.is_red);
    let mut lenders: Vec<(bool, f64, CgroupId)> = Vec::new();
    for member in ids.iter().filter(|id| !is_red(id)).filter_map(|id| members.get(id)) {
        let green = member.colour() == Colour::Green;
        let ample = member.colour() == Colour::Yellow && any_red && has_surplus(member);
        if (green || ample)
            && member.may_take(now)
            && member.meter.is_settled()
            && !member.loans.is_on_hold(now)
        {
            lenders.push((!green, f64::from(member.claim.weight) / member.usage().max(1.0), member.id));
        }
    }
    lenders.sort_by(|a, b| (a.0, a.1).partial_cmp(&(b.0, b.1)).unwrap_or(std::cmp::Ordering::Equal));
    let mut left = need;
    let mut loans = Vec::new();
    for (yellow, _, id) in lenders {
        let Some(member) = members.get_mut(&id) else { continue };
        let usage = member.usage();
        let step = if yellow { TUNING.first_step } else { member.loans.step };
        let spare = (usage - member.minimum).max(0.0);
        let amount = (step * usage).max(TUNING.min_amount).min(spare).min(left);
        if amount < TUNING.min_amount {
            continue;
        }
        let asked = *member.loans.asked_since.get_or_insert(now);
        let take = amount.min(member.reclaimable());
        let waits = now.saturating_sub(asked) < GRACE_PERIOD;
        let ready = !waits && take >= TUNING.min_amount;
        loans.push(LoanStep {
            id,
            amount: if ready { take } else { amount },
            ceiling: usage - amount,
            take_now: ready,
            is_first_ask: asked == now,
        });
        // Of one that has had time, only what the kernel can take counts: others give the rest.
        left -= if waits { amount } else { take };
    }
    loans
}

/// Whether a yellow container has clearly more than enough: only a probe can say by how much.
fn has_surplus(member: &MemoryMember) -> bool {
    member.judgement.source == ColourSource::Probe
        && member.judgement.sigma.is_some_and(|sigma| sigma >= 1.0 + 2.0 * TUNING.missed)
}
