//! Loans: memory of who has no use for it, for who has.
//!
//! # Problem
//! Nobody knows how much memory a container needs; its cache is as large as there was room. Taking a fixed part from whoever is
//! content finds out too slowly, and finds out the same again and again.
//!
//! # Approach
//! Whoever pays the highest tax on idle memory gives first (Waldspurger, OSDI 2002, section 5.2). The first step is a fiftieth of
//! what he uses; each that did no harm makes the next half as large again, up to an eighth. Harm is what shows within two periods:
//! a colour that turns red, waiting, pages that come back, reclaim that hits pages in use or finds none to take. Then what he
//! had before is remembered as his working set, nothing is taken for ten seconds, twice as long with each failure, and steps are
//! small again. A working set is forgotten by halves in seven minutes, and at once where a probe tells of a much smaller load.
//!
//! # Stability
//! With `D` the memory a container needs and `m` what it has, `V = sum w * max(0, D - m)^2` falls with every loan whose giver keeps
//! `m >= D`. A loan that takes too much takes at most an eighth of `m`, raises the working set above what it left, and is not
//! repeated before that is forgotten: failures grow with the logarithm of time. Under a load that comes and goes holds bound them.

use super::colour::{ColourSource, EPSILON, HARMFUL_STALL};
use super::member::MemoryMember;
use super::pool::UnmetDemand;
use super::{explain, to_f64};
use crate::memory::state::{FIRST_STEP, MIN_AMOUNT};
use elbowroom_types::id::CgroupId;
use elbowroom_types::probe::Colour;
use elbowroom_types::unit::Micros;
use std::collections::BTreeMap;

/// For how many periods harm is looked for.
const TRIAL_PERIODS: u8 = 2;
/// A loan has failed when more than this part of it came back at once; all of it, where a probe says that nobody minds,
const MAX_REFAULT: f64 = 0.25;
const MAX_REFAULT_PROBED: f64 = 1.0;
/// when less than this part of what was reclaimed had been idle,
const MIN_ACCURACY: f64 = 0.9;
/// or when less than this part of what reclaim looked at could be taken.
const MIN_EFFICIENCY: f64 = 0.3;
/// How long programs have to give memory back themselves before the kernel takes it.
const GRACE_PERIOD: Micros = Micros::secs(1);

/// Looks for harm that loans did in the last period; a sentence when there is some.
pub(super) fn review(member: &mut MemoryMember, now: Micros) -> Option<String> {
    let period = member.meter.period();
    let open: f64 = member.loans.trials.iter().map(|trial| trial.taken).sum();
    for trial in &mut member.loans.trials {
        trial.periods += 1;
        trial.refault += (to_f64(period.refault) - trial.usual_refault).max(0.0);
        trial.activate += period.activate.map_or(0.0, to_f64);
        trial.pgsteal += period.pgsteal.map_or(0.0, to_f64);
        trial.pgscan += period.pgscan.map_or(0.0, to_f64);
    }
    let oldest = *member.loans.trials.front()?;
    // A probe knows better than the kernel whether waiting matters.
    let told = member.judgement.source == ColourSource::Probe;
    let back = if told { MAX_REFAULT_PROBED } else { MAX_REFAULT };
    let harm = match member.judgement.colour {
        Colour::Red => Some("it turned red".to_owned()),
        _ if !told && member.meter.last_stall().is_some_and(|stall| stall > HARMFUL_STALL) => {
            Some(explain::stalled(member.meter.last_stall().unwrap_or_default()))
        }
        _ if oldest.refault > back * open => Some(explain::refaulted(oldest.refault, open)),
        _ if oldest.pgsteal > MIN_AMOUNT && 1.0 - oldest.activate / oldest.pgsteal < MIN_ACCURACY => {
            Some("pages in use were reclaimed".to_owned())
        }
        _ if oldest.pgscan > MIN_AMOUNT && oldest.pgsteal / oldest.pgscan < MIN_EFFICIENCY => {
            Some("reclaim found little that it could take".to_owned())
        }
        _ => None,
    };
    match harm {
        Some(harm) => {
            learn_working_set(member, now);
            Some(harm)
        }
        None => {
            if oldest.periods >= TRIAL_PERIODS {
                member.loans.succeed(now);
            }
            None
        }
    }
}

/// What it had before the loans that are watched is its working set, whoever took the rest of it since.
pub(super) fn learn_working_set(member: &mut MemoryMember, now: Micros) {
    let usage = member.usage();
    let had = member.loans.fail(now, usage);
    if member.mechanisms.working_sets {
        member.working_set = member.working_set.max(had);
    }
    if !member.mechanisms.holds {
        member.loans.hold_until = now;
    }
    member.working_set_load = member.judgement.load;
}

/// What a container gives, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LoanStep {
    pub(super) id: CgroupId,
    pub(super) amount: f64,
    /// Its view shows no more than this.
    pub(super) ceiling: f64,
    /// Its programs had time to give it back themselves, or have nothing the kernel could take: now it is taken.
    pub(super) take_now: bool,
    /// They are asked for the first time.
    pub(super) is_first_ask: bool,
}

/// Who gives how much, so that `need` is met.
pub(super) fn plan_loans(
    members: &mut BTreeMap<CgroupId, MemoryMember>,
    ids: &[CgroupId],
    needers: &[UnmetDemand],
    need: f64,
    idle_tax: f64,
    now: Micros,
) -> Vec<LoanStep> {
    let any_red = needers.iter().any(|needer| needer.is_red);
    let others = |id: &CgroupId| !needers.iter().any(|needer| needer.id == *id && needer.is_red);
    let mut givers: Vec<(bool, f64, CgroupId)> = Vec::new();
    for member in ids.iter().filter(|id| others(id)).filter_map(|id| members.get(id)) {
        let green = member.colour() == Colour::Green;
        let ample = member.colour() == Colour::Yellow && any_red && has_surplus(member);
        if (green || ample)
            && member.may_take(now)
            && member.meter.is_settled()
            && !member.loans.is_on_hold(now)
        {
            givers.push((!green, price(member, idle_tax), member.id));
        }
    }
    givers.sort_by(|a, b| (a.0, a.1).partial_cmp(&(b.0, b.1)).unwrap_or(std::cmp::Ordering::Equal));
    let mut left = need;
    let mut gifts = Vec::new();
    for (yellow, _, id) in givers {
        let Some(member) = members.get_mut(&id) else { continue };
        let usage = member.usage();
        let step = if yellow { FIRST_STEP.min(member.loans.step) } else { member.loans.step };
        let spare = (usage - member.working_set.max(member.floor)).max(0.0);
        let amount = (step * usage).max(MIN_AMOUNT).min(spare).min(left);
        if amount < MIN_AMOUNT {
            continue;
        }
        let asked = *member.loans.asked_since.get_or_insert(now);
        let take = amount.min(member.reclaimable());
        let waits = now.saturating_sub(asked) < GRACE_PERIOD;
        let ready = !waits && take >= MIN_AMOUNT;
        gifts.push(LoanStep {
            id,
            amount: if ready { take } else { amount },
            ceiling: usage - amount,
            take_now: ready,
            is_first_ask: asked == now,
        });
        // Of who has had time, only what the kernel can take counts: others give the rest.
        left -= if waits { amount } else { take };
    }
    gifts
}

/// Whether a yellow container has clearly more than enough: only a probe can say by how much.
fn has_surplus(member: &MemoryMember) -> bool {
    member.judgement.source == ColourSource::Probe
        && member.judgement.sigma.is_some_and(|sigma| sigma >= 1.0 + 2.0 * EPSILON)
}

/// Waldspurger's shares per page, with idle pages taxed: who has the lowest gives first.
fn price(member: &MemoryMember, idle_tax: f64) -> f64 {
    let usage = member.usage().max(1.0);
    let active = (member.working_set / usage).min(1.0);
    let k = 1.0 / (1.0 - idle_tax.min(0.99));
    f64::from(member.claim.weight) / (usage * (active + k * (1.0 - active)))
}
