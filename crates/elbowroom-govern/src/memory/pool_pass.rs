//! One period: which containers are harmed; in each pool, which give back and which lend; and which are left alone again.

use super::member::MemoryMember;
use super::pool::{PoolMembership, UnmetDemand};
use super::state::RecallState;
use super::tuning::TUNING;
use super::{MemoryAction, explain, lend, recall, to_f64};
use elbowroom_types::id::CgroupId;
use elbowroom_types::memory::{MemoryOrder, ReclaimRequest, ViewCeiling};
use elbowroom_types::probe::Colour;
use elbowroom_types::unit::{Bytes, Limit, Micros};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// One period of one pool.
#[derive(Debug)]
pub(super) struct PoolPass<'a> {
    pub(super) now: Micros,
    pub(super) membership: &'a PoolMembership,
    pub(super) page_size: Bytes,
    /// Whether views show what is asked for.
    pub(super) shrink_views: bool,
    pub(super) mechanisms: super::MemoryMechanisms,
}

/// The containers that had an order in some pool that is short.
#[derive(Debug, Default)]
pub(super) struct PassState {
    /// Their pool has less than is needed.
    short: BTreeSet<CgroupId>,
    /// Something was asked of them in this period: no other pool asks again.
    asked: BTreeSet<CgroupId>,
}

impl PassState {
    /// Whether memory is short and needed in a pool of a container.
    pub(super) fn is_short(&self, id: CgroupId) -> bool {
        self.short.contains(&id)
    }
}

type MembersById = BTreeMap<CgroupId, MemoryMember>;

impl PoolPass<'_> {
    /// Looks for harm after what was lent.
    pub(super) fn review(&self, member: &mut MemoryMember) {
        if let Some(because) = lend::review(member, self.now) {
            let until = member.loans.hold_until();
            self.record_decision(member, MemoryAction::Hold { until }, because);
        }
    }

    /// Takes memory from containers that can give it for those that need it. Whether one needs any.
    pub(super) fn move_memory(
        &self,
        members: &mut MembersById,
        needers: &[UnmetDemand],
        pass_state: &mut PassState,
        orders: &mut Vec<MemoryOrder>,
    ) -> bool {
        let mut need = needers.iter().map(|needer| needer.need).sum::<f64>() - self.membership.pool.free;
        let short = self.membership.pool.short && need > 0.0;
        if self.membership.pool.short {
            need -= self.drain(members, orders);
        }
        if short {
            pass_state.short.extend(&self.membership.member_ids);
            if self.mechanisms.recall {
                need -= self.recall(members, needers, need, pass_state, orders);
            }
            if need > 0.0 && self.mechanisms.lending {
                self.lend(members, needers, need, pass_state, orders);
            }
        }
        short
    }

    /// Ends what no pool asks of a container any more. `rested`: no container in its pools has needed anything for a while.
    pub(super) fn finish(
        &self,
        member: &mut MemoryMember,
        pass_state: &PassState,
        rested: bool,
        orders: &mut Vec<MemoryOrder>,
    ) {
        if !(pass_state.short.contains(&member.id) && recall::is_over_entitlement(member)) {
            member.recall = RecallState::default();
        }
        match member.colour() {
            Colour::Red => member.loans.end_loans(),
            _ if rested || member.is_unpopulated() => member.loans.stop_asking(),
            Colour::Yellow if member.judgement.sigma.is_none() => member.loans.end_loans(),
            Colour::Yellow | Colour::Green => {}
        }
        let asked = member.loans.is_lending()
            || pass_state.short.contains(&member.id) && recall::is_over_entitlement(member);
        if !asked && member.view_ceiling != Limit::Max {
            self.set_view_ceiling(member, None, orders);
        }
    }

    /// Empties cgroups without processes. Returns the bytes that this will give.
    fn drain(&self, members: &mut MembersById, orders: &mut Vec<MemoryOrder>) -> f64 {
        let mut drained = 0.0;
        for id in &self.membership.member_ids {
            let Some(member) = members.get_mut(id) else { continue };
            let usage = member.usage();
            if member.is_unpopulated() && usage >= TUNING.min_step && member.may_take(self.now) {
                let because = explain::drain(member);
                self.order_reclaim(
                    member,
                    MemoryAction::Drain { amount: self.whole_pages(usage) },
                    because,
                    orders,
                );
                drained += usage;
            }
        }
        drained
    }

    /// Takes back what containers use beyond their entitlement, for a container that has less than its own. Returns the bytes.
    fn recall(
        &self,
        members: &mut MembersById,
        needers: &[UnmetDemand],
        need: f64,
        pass_state: &mut PassState,
        orders: &mut Vec<MemoryOrder>,
    ) -> f64 {
        let owed = needers.iter().filter(|needer| needer.is_owed).max_by_key(|needer| needer.is_red);
        let name = owed
            .and_then(|owed| members.get(&owed.id))
            .map_or_else(String::new, |member| member.name.clone());
        let mut left = need;
        for id in &self.membership.member_ids {
            let Some(member) = members.get_mut(id) else { continue };
            let Some(owed) = owed.filter(|owed| owed.id != *id && recall::is_over_entitlement(member)) else {
                continue;
            };
            if !member.may_take(self.now) || left <= 0.0 || !pass_state.asked.insert(*id) {
                continue;
            }
            let taken = recall::plan_recall(member, left);
            left -= taken.amount;
            self.set_view_ceiling(member, Some(member.usage() - taken.asked), orders);
            let because = explain::recall(member, &name, owed.need);
            self.order_reclaim(
                member,
                MemoryAction::Recall { amount: self.whole_pages(taken.amount) },
                because,
                orders,
            );
        }
        need - left
    }

    fn lend(
        &self,
        members: &mut MembersById,
        needers: &[UnmetDemand],
        need: f64,
        pass_state: &mut PassState,
        orders: &mut Vec<MemoryOrder>,
    ) {
        let most = |a: &&UnmetDemand, b: &&UnmetDemand| {
            (a.is_red, a.need).partial_cmp(&(b.is_red, b.need)).unwrap_or(Ordering::Equal)
        };
        let first = needers.iter().max_by(most).and_then(|needer| members.get(&needer.id));
        let name = first.map_or_else(String::new, |member| member.name.clone());
        let unasked: Vec<CgroupId> =
            self.membership.member_ids.iter().copied().filter(|id| !pass_state.asked.contains(id)).collect();
        for loan in lend::plan_loans(members, &unasked, needers, need, self.now) {
            let Some(member) = members.get_mut(&loan.id) else { continue };
            pass_state.asked.insert(loan.id);
            self.set_view_ceiling(member, Some(loan.ceiling), orders);
            if loan.take_now {
                let because = explain::lend(member, &name, &self.membership.pool);
                self.order_reclaim(
                    member,
                    MemoryAction::Lend { amount: self.whole_pages(loan.amount) },
                    because,
                    orders,
                );
            } else if let Limit::At(ceiling) = member.view_ceiling
                && loan.is_first_ask
            {
                let because = explain::ask(member, &name);
                self.record_decision(member, MemoryAction::Ask { ceiling }, because);
            }
        }
    }

    /// Orders some memory to be taken, and remembers why.
    fn order_reclaim(
        &self,
        member: &mut MemoryMember,
        what: MemoryAction,
        because: String,
        orders: &mut Vec<MemoryOrder>,
    ) {
        let (amount, dead) = match what {
            MemoryAction::Lend { amount } | MemoryAction::Recall { amount } => (amount, false),
            MemoryAction::Drain { amount } => (amount, true),
            MemoryAction::Ask { .. } | MemoryAction::Save { .. } | MemoryAction::Hold { .. } => return,
        };
        if amount == Bytes::ZERO {
            return;
        }
        if matches!(what, MemoryAction::Lend { .. }) {
            member.loans.start_loan(member.judgement.load);
        }
        member.pending = Some((self.now, what));
        self.record_decision(member, what, because);
        let swap = member.meter.last().swap_room > Bytes::ZERO;
        let keep = if dead { Bytes::ZERO } else { member.meter.last().usage.saturating_sub(amount) };
        orders.push(MemoryOrder::Reclaim(ReclaimRequest {
            at: self.now,
            group: member.id,
            amount,
            keep,
            swap,
            dead,
            saving: false,
        }));
    }

    /// Says what a container's view shows at most; `None` leaves it to the view.
    fn set_view_ceiling(
        &self,
        member: &mut MemoryMember,
        ceiling: Option<f64>,
        orders: &mut Vec<MemoryOrder>,
    ) {
        let least = member.minimum;
        let ceiling = match ceiling.map(|ceiling| self.whole_pages(ceiling.max(least))) {
            Some(Bytes::ZERO) => return,
            Some(_) if !self.shrink_views => return,
            Some(ceiling) => Limit::At(ceiling),
            None => Limit::Max,
        };
        let same = match (member.view_ceiling, ceiling) {
            (Limit::At(a), Limit::At(b)) => (to_f64(a) - to_f64(b)).abs() <= TUNING.noise / 2.0 * to_f64(b),
            (a, b) => a == b,
        };
        if !same {
            member.view_ceiling = ceiling;
            orders.push(MemoryOrder::ViewCeiling(ViewCeiling { at: self.now, group: member.id, ceiling }));
        }
    }

    fn record_decision(&self, member: &mut MemoryMember, what: MemoryAction, because: String) {
        member.record_decision(self.now, what, self.membership.pool.free, because);
    }

    /// Whole pages.
    fn whole_pages(&self, amount: f64) -> Bytes {
        let page = self.page_size.get().max(1);
        Bytes(super::to_bytes(amount).get() / page * page)
    }
}
