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

use super::colour::{EPSILON, HURTS, Source};
use super::member::Member;
use super::pool::Needer;
use super::{amount, explain};
use elbowroom_types::probe::Colour;
use elbowroom_types::sample::GroupId;
use elbowroom_types::unit::{Bytes, Micros};
use std::collections::{BTreeMap, VecDeque};

/// The first step, what a success makes of it, the largest; and the step after a failure. Parts of usage.
const FIRST: f64 = 0.02;
const FASTER: f64 = 1.5;
const MOST: f64 = 0.12;
const CAREFUL: f64 = 0.01;
/// Less is not worth a system call.
pub(super) const LEAST: f64 = (1 << 20) as f64;
/// For how many periods harm is looked for.
const TRIAL: u8 = 2;
/// After a first failure nothing is taken for this long; the longest.
const HOLD: Micros = Micros::secs(10);
const LONGEST_HOLD: Micros = Micros::secs(300);
/// A loan has failed when more than this part of it came back at once; all of it, where a probe says that nobody minds,
const BACK: f64 = 0.25;
const ALL: f64 = 1.0;
/// when less than this part of what was reclaimed had been idle,
const ACCURATE: f64 = 0.9;
/// or when less than this part of what reclaim looked at could be taken.
const EFFICIENT: f64 = 0.3;
/// How long programs have to give memory back themselves before the kernel takes it.
const ASK: Micros = Micros::secs(1);

/// What is known of a container's loans.
#[derive(Debug)]
pub(super) struct Loans {
    step: f64,
    trials: VecDeque<Trial>,
    hold_until: Micros,
    /// How often the hold doubled.
    doubled: u32,
    /// When the last hold ended, or halved.
    forgave: Micros,
    failures: u32,
    lent: Bytes,
    /// When its programs were first asked to give some back.
    asked: Option<Micros>,
    /// When it last gave, and what it used and how it was doing when that was ordered.
    gave: Option<Micros>,
    before: f64,
    level: Option<f64>,
}

/// A loan that is watched.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    periods: u8,
    taken: f64,
    /// What it used when this was ordered; nothing where others have called back a part of that since.
    before: f64,
    /// What came back in a period before the loan.
    usual: f64,
    refault: f64,
    activate: f64,
    pgsteal: f64,
    pgscan: f64,
}

impl Default for Loans {
    fn default() -> Self {
        Self {
            step: FIRST,
            trials: VecDeque::new(),
            hold_until: Micros::ZERO,
            doubled: 0,
            forgave: Micros::ZERO,
            failures: 0,
            lent: Bytes::ZERO,
            asked: None,
            gave: None,
            before: 0.0,
            level: None,
        }
    }
}

impl Loans {
    pub(super) fn is_held(&self, now: Micros) -> bool {
        now < self.hold_until
    }

    pub(super) const fn held_until(&self) -> Micros {
        self.hold_until
    }

    pub(super) const fn is_lending(&self) -> bool {
        self.asked.is_some()
    }

    pub(super) const fn lent(&self) -> Bytes {
        self.lent
    }

    pub(super) const fn failures(&self) -> u32 {
        self.failures
    }

    /// When it last gave something.
    pub(super) const fn gave(&self) -> Option<Micros> {
        self.gave
    }

    /// It is to give, uses this much, and does this well.
    pub(super) const fn begin(&mut self, usage: f64, level: Option<f64>) {
        (self.before, self.level) = (usage, level);
    }

    /// Something was called back: what it used before was more than it is owed.
    pub(super) fn recalled(&mut self) {
        self.trials.iter_mut().for_each(|trial| trial.before = 0.0);
    }

    /// Whether it does less than a part of what it did then.
    pub(super) fn fell_below(&self, part: f64, level: Option<f64>) -> bool {
        self.level.zip(level).is_some_and(|(before, now)| now < part * before)
    }

    /// It was given: from now on harm is looked for.
    pub(super) fn given(&mut self, now: Micros, taken: Bytes, usual: f64) {
        self.lent = self.lent.saturating_add(taken);
        self.gave = Some(now);
        self.trials.push_back(Trial { taken: amount(taken), before: self.before, usual, ..Trial::default() });
    }

    /// It needs all it has: nothing of it is lent any more.
    pub(super) fn end(&mut self) {
        (self.lent, self.asked) = (Bytes::ZERO, None);
    }

    /// Nobody needs anything.
    pub(super) fn rest(&mut self) {
        self.asked = None;
    }

    /// What it had before the loans that are watched, given what it uses now.
    fn fail(&mut self, now: Micros, usage: f64) -> f64 {
        let before = self.trials.front().map_or(0.0, |oldest| oldest.before);
        let taken: f64 = self.trials.drain(..).map(|trial| trial.taken).sum();
        self.hold_until = now.saturating_add(hold(self.doubled));
        self.doubled = (self.doubled + 1).min(16);
        self.failures = self.failures.saturating_add(1);
        (self.forgave, self.step, self.asked) = (self.hold_until, CAREFUL, None);
        (usage + taken).max(before)
    }

    fn succeed(&mut self, now: Micros) {
        self.trials.pop_front();
        self.step = (self.step * FASTER).min(MOST);
        let last = hold(self.doubled.saturating_sub(1)).get();
        if self.doubled > 0 && now.saturating_sub(self.forgave) > Micros(last.saturating_mul(2)) {
            (self.doubled, self.forgave) = (self.doubled - 1, now);
        }
    }
}

/// For how long nothing is taken after a failure.
fn hold(doubled: u32) -> Micros {
    Micros(HOLD.get().saturating_mul(1 << doubled.min(16)).min(LONGEST_HOLD.get()))
}

/// Looks for harm that loans did in the last period; a sentence when there is some.
pub(super) fn review(member: &mut Member, now: Micros) -> Option<String> {
    let period = member.meter.period();
    let open: f64 = member.loans.trials.iter().map(|trial| trial.taken).sum();
    for trial in &mut member.loans.trials {
        trial.periods += 1;
        trial.refault += (amount(period.refault) - trial.usual).max(0.0);
        trial.activate += period.activate.map_or(0.0, amount);
        trial.pgsteal += period.pgsteal.map_or(0.0, amount);
        trial.pgscan += period.pgscan.map_or(0.0, amount);
    }
    let oldest = *member.loans.trials.front()?;
    // A probe knows better than the kernel whether waiting matters.
    let told = member.judgement.source == Source::Probe;
    let back = if told { ALL } else { BACK };
    let harm = match member.judgement.colour {
        Colour::Red => Some("it turned red".to_owned()),
        _ if !told && member.meter.stall_now().is_some_and(|stall| stall > HURTS) => {
            Some(explain::waits(member.meter.stall_now().unwrap_or_default()))
        }
        _ if oldest.refault > back * open => Some(explain::back(oldest.refault, open)),
        _ if oldest.pgsteal > LEAST && 1.0 - oldest.activate / oldest.pgsteal < ACCURATE => {
            Some("pages in use were reclaimed".to_owned())
        }
        _ if oldest.pgscan > LEAST && oldest.pgsteal / oldest.pgscan < EFFICIENT => {
            Some("reclaim found little that it could take".to_owned())
        }
        _ => None,
    };
    match harm {
        Some(harm) => {
            learn(member, now);
            Some(harm)
        }
        None => {
            if oldest.periods >= TRIAL {
                member.loans.succeed(now);
            }
            None
        }
    }
}

/// What it had before the loans that are watched is its working set, whoever took the rest of it since.
pub(super) fn learn(member: &mut Member, now: Micros) {
    let usage = member.usage();
    member.working_set = member.working_set.max(member.loans.fail(now, usage));
    member.learned_at = member.judgement.load;
}

/// What a container gives, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Gift {
    pub(super) id: GroupId,
    pub(super) amount: f64,
    /// Its view shows no more than this.
    pub(super) ceiling: f64,
    /// Its programs had time to give it back themselves, or have nothing the kernel could take: now it is taken.
    pub(super) take: bool,
    /// They are asked for the first time.
    pub(super) first: bool,
}

/// Who gives how much, so that `need` is met.
pub(super) fn gifts(
    members: &mut BTreeMap<GroupId, Member>,
    ids: &[GroupId],
    needers: &[Needer],
    need: f64,
    idle_tax: f64,
    now: Micros,
) -> Vec<Gift> {
    let any_red = needers.iter().any(|needer| needer.red);
    let others = |id: &GroupId| !needers.iter().any(|needer| needer.id == *id && needer.red);
    let mut givers: Vec<(bool, f64, GroupId)> = Vec::new();
    for member in ids.iter().filter(|id| others(id)).filter_map(|id| members.get(id)) {
        let green = member.colour() == Colour::Green;
        let ample = member.colour() == Colour::Yellow && any_red && is_ample(member);
        if (green || ample)
            && member.is_free_to_take(now)
            && member.meter.is_settled()
            && !member.loans.is_held(now)
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
        let step = if yellow { FIRST.min(member.loans.step) } else { member.loans.step };
        let spare = (usage - member.working_set.max(member.floor)).max(0.0);
        let amount = (step * usage).max(LEAST).min(spare).min(left);
        if amount < LEAST {
            continue;
        }
        let asked = *member.loans.asked.get_or_insert(now);
        let take = amount.min(member.reclaimable());
        let waits = now.saturating_sub(asked) < ASK;
        let ready = !waits && take >= LEAST;
        gifts.push(Gift {
            id,
            amount: if ready { take } else { amount },
            ceiling: usage - amount,
            take: ready,
            first: asked == now,
        });
        // Of who has had time, only what the kernel can take counts: others give the rest.
        left -= if waits { amount } else { take };
    }
    gifts
}

/// Whether a yellow container has clearly more than enough: only a probe can say by how much.
fn is_ample(member: &Member) -> bool {
    member.judgement.source == Source::Probe
        && member.judgement.sigma.is_some_and(|sigma| sigma >= 1.0 + 2.0 * EPSILON)
}

/// Waldspurger's shares per page, with idle pages taxed: who has the lowest gives first.
fn price(member: &Member, idle_tax: f64) -> f64 {
    let usage = member.usage().max(1.0);
    let active = (member.working_set / usage).min(1.0);
    let k = 1.0 / (1.0 - idle_tax.min(0.99));
    f64::from(member.claim.weight) / (usage * (active + k * (1.0 - active)))
}
