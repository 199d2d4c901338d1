//! One period: who is harmed; in each pool, who gives back and who lends; and who is left alone again.

use super::member::Member;
use super::pool::{Needer, Shared};
use super::{What, amount, explain, lend, recall};
use elbowroom_types::memory::{Export, Lease, Order, Reclaim};
use elbowroom_types::probe::Colour;
use elbowroom_types::sample::GroupId;
use elbowroom_types::unit::{Bytes, Limit, Micros};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// For how long after something was taken a sign of harm counts as ours.
const OURS: Micros = Micros::secs(3);
/// A container that was harmed is left alone for this long.
const QUARANTINE: Micros = Micros::secs(600);
/// When all of its tasks wait for memory for this part of a period more than usual, it is harmed.
const FULL: f64 = 0.2;
/// Less than this part of its objective, and of what it did before, is harm. One of them alone is not: more may be asked of it, or
/// less.
const COLLAPSE: f64 = 0.5;
/// Less than this is not worth draining.
const DREGS: f64 = (4 << 20) as f64;

/// One period of one pool.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    pub(super) now: Micros,
    pub(super) shared: &'a Shared,
    pub(super) page_size: Bytes,
    /// Whether views show what is asked for.
    pub(super) views: bool,
    /// `tau`.
    pub(super) idle_tax: f64,
}

/// Who was spoken to in some pool that is short.
#[derive(Debug, Default)]
pub(super) struct Spoken {
    /// Their pool has less than is needed.
    short: BTreeSet<GroupId>,
    /// They owe what somebody else needs.
    owing: BTreeSet<GroupId>,
    /// Something was asked of them in this period: no other pool asks again.
    asked: BTreeSet<GroupId>,
}

type Members = BTreeMap<GroupId, Member>;

impl Turn<'_> {
    /// Looks for harm that was done by what was taken.
    pub(super) fn review(&self, member: &mut Member, orders: &mut Vec<Order>) {
        if let Some(harm) = self.harm(member)
            && self.now >= member.quarantine_until
        {
            lend::learn(member, self.now);
            let until = self.now.saturating_add(QUARANTINE);
            member.quarantine_until = until;
            // What others are owed it still gives back, but is not held; and nothing where memory ran out.
            member.recall.unleasable_until = until;
            if member.meter.period().oom {
                member.recall.spared_until = until;
            }
            self.decide(member, What::Quarantine { until }, explain::quarantine(harm));
            orders.extend(member.lease.take().map(|_| Order::Release(member.id)));
        } else if let Some(harm) = lend::review(member, self.now) {
            let until = member.loans.held_until();
            let because = explain::hold(&harm, member);
            self.decide(member, What::Hold { until }, because);
        }
    }

    /// What is worse than a loan that failed. Who has to give back what he is not owed may say what he likes: only what the kernel
    /// shows counts, or a probe that lies could keep everything.
    fn harm(&self, member: &Member) -> Option<&'static str> {
        let ours = |at: Option<Micros>| at.is_some_and(|at| self.now.saturating_sub(at) <= OURS);
        let (lent, recalled) = (ours(member.loans.gave()), ours(member.recall.at));
        let period = member.meter.period();
        match () {
            () if (lent || recalled) && period.oom => Some("the kernel found no memory for it"),
            () if lent && member.meter.full_jump() > FULL => Some("all of its tasks waited for memory"),
            () if lent
                && member.judgement.sigma.is_some_and(|sigma| sigma < COLLAPSE)
                && member.loans.fell_below(COLLAPSE, member.judgement.level) =>
            {
                Some("it served less than half of its objective")
            }
            () => None,
        }
    }

    /// Takes memory from who can give for who needs it. Whether somebody needs any.
    pub(super) fn move_memory(
        &self,
        members: &mut Members,
        needers: &[Needer],
        spoken: &mut Spoken,
        orders: &mut Vec<Order>,
    ) -> bool {
        let mut need = needers.iter().map(|needer| needer.need).sum::<f64>() - self.shared.pool.room;
        let short = self.shared.pool.short && need > 0.0;
        if self.shared.pool.short {
            need -= self.drain(members, orders);
        }
        if short {
            spoken.short.extend(&self.shared.ids);
            need -= self.recall(members, needers, need, spoken, orders);
            if need > 0.0 {
                self.lend(members, needers, need, spoken, orders);
            }
        }
        short
    }

    /// Ends what no pool asks of a container any more. `rested`: nobody in its pools has needed anything for a while.
    pub(super) fn settle(&self, member: &mut Member, spoken: &Spoken, rested: bool, orders: &mut Vec<Order>) {
        if !spoken.owing.contains(&member.id) {
            recall::end(member);
            orders.extend(member.lease.take().map(|_| Order::Release(member.id)));
        }
        match member.colour() {
            Colour::Red => member.loans.end(),
            _ if rested || member.is_dead() => member.loans.rest(),
            Colour::Yellow if member.judgement.sigma.is_none() => member.loans.end(),
            Colour::Yellow | Colour::Green => {}
        }
        let asked = member.loans.is_lending() || spoken.short.contains(&member.id) && recall::owes(member);
        if !asked && member.export != Limit::Max {
            self.export(member, None, orders);
        }
    }

    /// Empties who is dead; how much that will give.
    fn drain(&self, members: &mut Members, orders: &mut Vec<Order>) -> f64 {
        let mut drained = 0.0;
        for id in &self.shared.ids {
            let Some(member) = members.get_mut(id) else { continue };
            let usage = member.usage();
            if member.is_dead() && usage >= DREGS && member.is_free_to_take(self.now) {
                let because = explain::drain(member);
                self.take(member, What::Drain { amount: self.whole(usage) }, because, orders);
                drained += usage;
            }
        }
        drained
    }

    /// Takes back what is used beyond what is owed, for who is owed more than he has; how much.
    fn recall(
        &self,
        members: &mut Members,
        needers: &[Needer],
        need: f64,
        spoken: &mut Spoken,
        orders: &mut Vec<Order>,
    ) -> f64 {
        let owed = needers.iter().filter(|needer| needer.short).max_by_key(|needer| needer.red);
        let name = owed
            .and_then(|owed| members.get(&owed.id))
            .map_or_else(String::new, |member| member.name.clone());
        let mut left = need;
        for id in &self.shared.ids {
            let Some(member) = members.get_mut(id) else { continue };
            let Some(owed) = owed.filter(|owed| owed.id != *id && recall::owes(member)) else { continue };
            spoken.owing.insert(*id);
            if !member.can_give_back(self.now) || left <= 0.0 || !spoken.asked.insert(*id) {
                continue;
            }
            let taken = recall::take(member, left, self.now);
            left -= taken.amount;
            self.export(member, Some(member.usage() - taken.asked), orders);
            let because = explain::recall(member, &name, owed.need);
            self.take(member, What::Recall { amount: self.whole(taken.amount) }, because, orders);
            if let Some(high) = taken.high {
                self.lease(member, high, orders);
            }
        }
        need - left
    }

    fn lease(&self, member: &mut Member, high: f64, orders: &mut Vec<Order>) {
        if !recall::is_due(member.lease.as_ref(), high, self.now) {
            return;
        }
        let high = self.whole(high);
        if member.lease.is_none() {
            let because = explain::lease(member);
            self.decide(member, What::Lease { high }, because);
        }
        let until = self.now.saturating_add(recall::LEASE);
        let lease = Lease { at: self.now, group: member.id, high, until };
        member.lease = Some(lease);
        orders.push(Order::Lease(lease));
    }

    fn lend(
        &self,
        members: &mut Members,
        needers: &[Needer],
        need: f64,
        spoken: &mut Spoken,
        orders: &mut Vec<Order>,
    ) {
        let most = |a: &&Needer, b: &&Needer| {
            (a.red, a.need).partial_cmp(&(b.red, b.need)).unwrap_or(Ordering::Equal)
        };
        let first = needers.iter().max_by(most).and_then(|needer| members.get(&needer.id));
        let name = first.map_or_else(String::new, |member| member.name.clone());
        let unasked: Vec<GroupId> =
            self.shared.ids.iter().copied().filter(|id| !spoken.asked.contains(id)).collect();
        for gift in lend::gifts(members, &unasked, needers, need, self.idle_tax, self.now) {
            let Some(member) = members.get_mut(&gift.id) else { continue };
            spoken.asked.insert(gift.id);
            self.export(member, Some(gift.ceiling), orders);
            if gift.take {
                let because = explain::lend(member, &name, &self.shared.pool);
                self.take(member, What::Lend { amount: self.whole(gift.amount) }, because, orders);
            } else if let Limit::At(ceiling) = member.export
                && gift.first
            {
                let because = explain::ask(member, &name);
                self.decide(member, What::Ask { ceiling }, because);
            }
        }
    }

    /// Orders some memory to be taken, and remembers why.
    fn take(&self, member: &mut Member, what: What, because: String, orders: &mut Vec<Order>) {
        let (amount, dead) = match what {
            What::Lend { amount } | What::Recall { amount } => (amount, false),
            What::Drain { amount } => (amount, true),
            What::Ask { .. } | What::Hold { .. } | What::Lease { .. } | What::Quarantine { .. } => return,
        };
        if amount == Bytes::ZERO {
            return;
        }
        if matches!(what, What::Lend { .. }) {
            member.loans.begin(member.usage(), member.judgement.level);
        }
        member.pending = Some((self.now, what));
        self.decide(member, what, because);
        let swap = member.meter.last().swap_room > Bytes::ZERO;
        let keep = if dead { Bytes::ZERO } else { member.meter.last().usage.saturating_sub(amount) };
        orders.push(Order::Reclaim(Reclaim { at: self.now, group: member.id, amount, keep, swap, dead }));
    }

    /// Says what a container's view shows at most; `None` leaves it to the view.
    fn export(&self, member: &mut Member, ceiling: Option<f64>, orders: &mut Vec<Order>) {
        let least = member.floor.max(member.working_set.min(member.usage()));
        let ceiling = match ceiling.map(|ceiling| self.whole(ceiling.max(least))) {
            Some(Bytes::ZERO) => return,
            Some(_) if !self.views => return,
            Some(ceiling) => Limit::At(ceiling),
            None => Limit::Max,
        };
        let same = match (member.export, ceiling) {
            (Limit::At(a), Limit::At(b)) => (amount(a) - amount(b)).abs() <= 0.01 * amount(b),
            (a, b) => a == b,
        };
        if !same {
            member.export = ceiling;
            orders.push(Order::Export(Export { at: self.now, group: member.id, ceiling }));
        }
    }

    fn decide(&self, member: &mut Member, what: What, because: String) {
        member.decide(self.now, what, self.shared.pool.room, because);
    }

    /// Whole pages.
    fn whole(&self, amount: f64) -> Bytes {
        let page = self.page_size.get().max(1);
        Bytes(super::bytes(amount).get() / page * page)
    }
}
