//! Saving: memory that a container does not use is taken while no container needs any.
//!
//! # Problem
//! A container keeps every page that it ever read, and the kernel takes none back while memory is free. A machine for many containers
//! has to be as large as all that they ever touched. How much of it is used, no counter says.
//!
//! # Approach
//! As TMO and Senpai (Weiner et al., ASPLOS 2022): a little is taken, and what the container waits for says whether that was too much.
//! A step is `usage x max_probe x (1 - harm)`, where harm is the larger of the time that it waits, in parts of the budget, and of what
//! comes back, in parts of what is harmless. Waiting is the difference of the kernel's totals over ten periods and over a minute, the
//! worse of the two: averages of the kernel (`avg10`) fall too slowly to tell when to go on, and one quiet second says nothing.
//! Where harm reaches 1 after a step, nothing is taken for a while, twice as long with each time, half as long after each such time
//! without harm.
//!
//! # One place decides
//! Lending and recalling go first ([`super::pool_pass`]). A container around which memory moves is not saved of: what it has then is not
//! what it would have by itself. Nor is one that is not green, or that started less than a minute ago.
//!
//! # Properties
//! In `tests/memory_saving.rs`.

use super::member::MemoryMember;
use super::saving_state::Savings;
use super::tuning::{SAVING, TUNING};
use super::{MemoryAction, MemorySettings, explain, to_bytes, to_f64};
use crate::GovernorMode;
use elbowroom_types::id::CgroupId;
use elbowroom_types::memory::{MemoryOrder, NodeMemory, ReclaimRequest};
use elbowroom_types::probe::Colour;
use elbowroom_types::unit::{Bytes, Micros};

/// A step of one container.
#[derive(Clone, Copy, Debug)]
struct SavingStep {
    amount: Bytes,
    swap: bool,
    harm: f64,
}

/// One period of saving, on the machine.
#[derive(Debug)]
pub(super) struct SavingPass<'a> {
    pub(super) now: Micros,
    pub(super) settings: &'a MemorySettings,
    pub(super) memory: &'a NodeMemory,
    pub(super) mem_total: Bytes,
    pub(super) page_size: Bytes,
}

impl SavingPass<'_> {
    /// Follows containers, and orders the steps whose turn it is. `is_busy`: memory moves in a pool of a container.
    pub(super) fn run<'m>(
        &self,
        members: impl Iterator<Item = (&'m CgroupId, &'m mut MemoryMember)>,
        is_busy: impl Fn(CgroupId) -> bool,
        orders: &mut Vec<MemoryOrder>,
    ) {
        let (mut steps, mut rest) = (Vec::new(), Vec::new());
        for (id, member) in members {
            let moves = is_busy(*id) || member.loans.is_open(self.now);
            match self.review(member, moves) {
                Some(step) => steps.push((member, step)),
                None => rest.push(member),
            }
        }
        // Those that were taken from longest ago.
        steps.sort_by_key(|(member, _)| member.saving.as_ref().and_then(|savings| savings.stepped_at));
        for (turn, (member, step)) in steps.into_iter().enumerate() {
            match turn < SAVING.orders {
                true => orders.extend(self.order(member, step)),
                false => wait_turn(member),
            }
            rest.push(member);
        }
        self.bound(rest.into_iter().filter_map(|member| member.saving.as_mut()).collect());
    }

    /// Together they save no more than the machine has, whatever was taken again and again.
    fn bound(&self, savings: Vec<&mut Savings>) {
        let all: f64 = savings.iter().map(|savings| to_f64(savings.saved())).sum();
        let part = to_f64(self.mem_total) / all;
        if part < 1.0 {
            savings.into_iter().for_each(|savings| savings.scale(part));
        }
    }

    /// What could be taken of a container now.
    fn review(&self, member: &mut MemoryMember, moves: bool) -> Option<SavingStep> {
        if !member.claim.memory.saving.unwrap_or(self.settings.saving) {
            member.saving = None;
            return None;
        }
        let sample = *member.meter.last();
        let most = member.max().or(self.mem_total).min(self.mem_total);
        let savings = member.saving.get_or_insert_default();
        let refaults = sample.refault_file.saturating_add(sample.refault_anon);
        savings.measure(self.now, refaults, sample.usage, most, sample.populated);
        match self.step(member, moves) {
            Ok(step) => step,
            Err(why) => {
                if let Some(savings) = &mut member.saving {
                    (savings.because, savings.is_saving) = (why, false);
                }
                None
            }
        }
    }

    /// The next step, `None` where it is not time for it; an error says why nothing is taken.
    fn step(&self, member: &mut MemoryMember, moves: bool) -> Result<Option<SavingStep>, String> {
        let (usage, may_take) = (member.usage(), member.may_take(self.now));
        let harm = self.harm(member);
        let (spare, available, swap) = self.spare(member);
        let (unpopulated, colour, exempt) = (member.is_unpopulated(), member.colour(), member.exempt_reason);
        let Some(savings) = &mut member.saving else { return Ok(None) };
        if self.settings.mode != GovernorMode::Enforce {
            return Err(explain::NOT_ENFORCED.to_owned());
        }
        let age = self.now.saturating_sub(savings.runs_since.unwrap_or(self.now));
        let (harm, why) = match (exempt, harm) {
            (Some(why), _) => return Err(why.to_owned()),
            (None, None) => {
                let counts = member.meter.last().stalls.is_some();
                return Err(if counts { explain::NOT_WATCHED } else { explain::NO_PRESSURE }.to_owned());
            }
            (None, Some(harm)) => harm,
        };
        let waits = match &savings.pause {
            _ if unpopulated => Some("nothing runs in it".to_owned()),
            _ if age < SAVING.settle => Some("it started less than a minute ago".to_owned()),
            _ if moves => Some("memory moves between containers: lending goes first".to_owned()),
            Some((until, why)) if self.now < *until => Some(why.clone()),
            _ if harm >= 1.0 => Some(why.clone()),
            _ if colour != Colour::Green => Some("it has use for its memory".to_owned()),
            _ if spare < SAVING.min_step => Some("the rest is kept for it".to_owned()),
            _ if available < SAVING.min_step => Some("the kernel can take little of it".to_owned()),
            _ => None,
        };
        if harm >= 1.0 {
            savings.on_harm(self.now, why);
        }
        if let Some(why) = waits {
            return Err(why);
        }
        if !may_take || savings.stepped_at.is_some_and(|at| self.now.saturating_sub(at) < SAVING.interval) {
            return Ok(None);
        }
        let largest = (SAVING.max_probe * usage).clamp(SAVING.min_step, SAVING.max_step);
        let page = self.page_size.get().max(1);
        let amount = Bytes(to_bytes((largest * (1.0 - harm)).min(spare).min(available)).get() / page * page);
        Ok((amount > Bytes::ZERO).then_some(SavingStep { amount, swap, harm }))
    }

    /// Harm, 1 where it is as much as may be, and what it is; `None` where what a container waits for is not known.
    fn harm(&self, member: &MemoryMember) -> Option<(f64, String)> {
        let stall = member.meter.stall()?.max(member.meter.stall_minute()?);
        let budget = self.settings.saving_pressure.fraction();
        let back = member.meter.refault_rate();
        let harmless = (SAVING.harmless_refault * member.usage()).max(TUNING.min_amount / 10.0);
        let (waiting, returning) = (stall / budget.max(1e-9), back / harmless);
        Some(match waiting >= returning {
            true => (waiting, explain::waits(stall, budget)),
            false => (returning, explain::comes_back(back, harmless)),
        })
    }

    /// What it has beyond what is kept for it, what of its memory the kernel can take without trying hard, and whether some of that may
    /// go to swap.
    fn spare(&self, member: &MemoryMember) -> (f64, f64, bool) {
        // `max` protects all that it uses.
        let protected = member.user_protection.value().map_or(member.usage(), to_f64);
        let kept = member.reservation.max(member.minimum).max(protected).max(SAVING.keep);
        let free = to_f64(self.memory.swap_free);
        let swap = member.meter.last().swap_room > Bytes::ZERO
            && free > SAVING.swap_reserve * to_f64(self.memory.swap_total);
        let available = if swap { member.reclaimable() } else { member.reclaimable_cache() };
        (member.usage() - kept, available / 2.0, swap)
    }

    fn order(&self, member: &mut MemoryMember, step: SavingStep) -> Option<MemoryOrder> {
        let (at, amount, because) = (self.now, step.amount, explain::saves(step.harm));
        let savings = member.saving.as_mut()?;
        savings.resume(at);
        let is_first = !savings.is_saving;
        (savings.stepped_at, savings.is_tried) = (Some(at), true);
        (savings.because, savings.is_saving) = (because.clone(), true);
        let what = MemoryAction::Save { amount };
        member.pending = Some((at, what));
        // One of a long row: the others say the same.
        if is_first {
            member.record_decision(at, what, to_f64(self.memory.mem_available), because);
        }
        let keep = member.meter.last().usage.saturating_sub(amount);
        let (group, swap, dead, saving) = (member.id, step.swap, false, true);
        Some(MemoryOrder::Reclaim(ReclaimRequest { at, group, amount, keep, swap, dead, saving }))
    }
}

/// A step is possible, and those of others come first.
fn wait_turn(member: &mut MemoryMember) {
    if let Some(savings) = member.saving.as_mut().filter(|savings| !savings.is_saving) {
        savings.because = "others are taken from first".to_owned();
    }
}
