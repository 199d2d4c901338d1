//! One container: how it is doing, what it is owed, what was done to it.

use super::colour::{self, Judgement};
use super::meter::MemoryMeter;
use super::saving_state::Savings;
use super::state::{Loans, RecallState};
use super::tuning::TUNING;
use super::{
    ContainerMemoryStatus, DECISION_HISTORY, DecisionInputs, LendingState, MemoryAction, MemoryDecision,
    to_bytes, to_f64,
};
use elbowroom_types::claim::Claim;
use elbowroom_types::id::CgroupId;
use elbowroom_types::memory::{GroupMemory, ProbeUpdate, ReclaimProtection};
use elbowroom_types::probe::Colour;
use elbowroom_types::unit::{Bytes, Limit, Micros};
use std::collections::VecDeque;

/// What came of a protection that was ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProtectionStatus {
    /// Nothing yet.
    Pending,
    /// It is in force, or the one before it, which counts until the answer.
    InForce,
    /// It is not in force, or only a part of it; the kernel's word, or ours.
    Refused,
    /// The same, because another program wrote what we would have.
    Foreign,
}

/// A container's state.
#[derive(Debug)]
pub(super) struct MemoryMember {
    pub(super) id: CgroupId,
    pub(super) name: String,
    pub(super) mechanisms: super::MemoryMechanisms,
    pub(super) claim: Claim,
    /// Why nothing is ever taken from it.
    pub(super) exempt_reason: Option<&'static str>,
    /// What its user protects with the kernel's own means; [`Limit::Max`]: all that it uses.
    pub(super) user_protection: Limit<Bytes>,
    /// The kubelet made it: what is protected there is the owner's claim, beside one of the configuration.
    pub(super) is_of_kubernetes: bool,
    /// Its own hard limit, and the tightest that is around it alone.
    pub(super) own_max: Limit<Bytes>,
    pub(super) ancestor_max: Limit<Bytes>,
    /// Whether the last tick named it.
    pub(super) is_measured: bool,
    pub(super) meter: MemoryMeter,
    pub(super) last_probe: Option<ProbeUpdate>,
    pub(super) judgement: Judgement,
    /// Periods that it has been green, up to [`super::tuning::MemoryTuning::green_dwell`].
    green_periods: u8,

    pub(super) reservation: f64,
    /// What of that is no claim of its own: the operator promised it, or its user protects it.
    pub(super) promised: f64,
    pub(super) minimum: f64,
    pub(super) entitlement: f64,
    /// Its entitlement if all containers wanted all they can get.
    pub(super) nominal_entitlement: f64,

    pub(super) loans: Loans,
    pub(super) recall: RecallState,
    /// Present where saving is on.
    pub(super) saving: Option<Savings>,
    /// An order that was not answered, and when it was given.
    pub(super) pending: Option<(Micros, MemoryAction)>,
    /// When the kernel said last that it cannot take from it.
    pub(super) refused_until: Micros,
    pub(super) protect: Option<ReclaimProtection>,
    /// What came of the last protection.
    pub(super) protection: ProtectionStatus,
    /// Protection is another program's, or cannot be had, until then.
    pub(super) unprotectable_until: Micros,
    pub(super) view_ceiling: Limit<Bytes>,
    pub(super) decisions: VecDeque<MemoryDecision>,
}

impl MemoryMember {
    pub(super) fn new(id: CgroupId) -> Self {
        Self {
            id,
            name: String::new(),
            mechanisms: super::MemoryMechanisms::default(),
            claim: Claim::default(),
            exempt_reason: None,
            user_protection: Limit::At(Bytes::ZERO),
            is_of_kubernetes: false,
            own_max: Limit::Max,
            ancestor_max: Limit::Max,
            is_measured: false,
            meter: MemoryMeter::default(),
            last_probe: None,
            judgement: Judgement::default(),
            green_periods: 0,
            reservation: 0.0,
            promised: 0.0,
            minimum: 0.0,
            entitlement: 0.0,
            nominal_entitlement: 0.0,
            loans: Loans::default(),
            recall: RecallState::default(),
            saving: None,
            pending: None,
            refused_until: Micros::ZERO,
            protect: None,
            protection: ProtectionStatus::Pending,
            unprotectable_until: Micros::ZERO,
            view_ceiling: Limit::Max,
            decisions: VecDeque::new(),
        }
    }

    /// Takes a measurement in and judges it.
    pub(super) fn measure(&mut self, now: Micros, sample: &GroupMemory) {
        self.is_measured = true;
        self.meter.measure(now, sample);
        let report =
            self.last_probe.filter(|heard| heard.at <= now && now < heard.until).map(|heard| heard.report);
        self.judgement = colour::judge(report.as_ref(), &self.claim, &self.meter);
        self.green_periods = match self.judgement.colour {
            Colour::Green => self.green_periods.saturating_add(1).min(TUNING.green_dwell),
            _ => 0,
        };
        if self.pending.is_some_and(|(at, _)| now.saturating_sub(at) >= TUNING.patience) {
            self.pending = None;
        }
    }

    /// How it is doing, green only when it has been for a while.
    pub(super) fn colour(&self) -> Colour {
        match self.judgement.colour {
            Colour::Green if self.green_periods < TUNING.green_dwell => Colour::Yellow,
            colour => colour,
        }
    }

    pub(super) fn usage(&self) -> f64 {
        to_f64(self.meter.last().usage)
    }

    pub(super) fn is_unpopulated(&self) -> bool {
        !self.meter.last().populated
    }

    /// It would use more memory if there were some.
    pub(super) fn wants_memory(&self) -> bool {
        self.judgement.colour == Colour::Red
            || to_f64(self.meter.refault()) >= TUNING.min_amount
            || self.meter.is_growing()
    }

    /// It waited for memory in the last period, for long enough that programs which watch the kernel for that would be told: sd-event(3)
    /// asks for a tenth of the time (`MEMORY_PRESSURE_DEFAULT_THRESHOLD_USEC`, 200 ms of 2 s). Where the kernel counts no stalls, it reads
    /// back much of what it has.
    pub(super) fn is_stalled(&self) -> bool {
        match self.meter.last_stall() {
            Some(stall) => stall >= TUNING.pressing,
            None => self.meter.is_settled() && colour::by_refaults(&self.meter) == Colour::Red,
        }
    }

    /// It could use more: a good part of what it has came back lately.
    pub(super) fn is_refaulting(&self) -> bool {
        to_f64(self.meter.refault()) > TUNING.pressing * self.usage()
    }

    /// What it can ever use.
    pub(super) fn max(&self) -> Limit<Bytes> {
        self.own_max.min(self.ancestor_max)
    }

    /// It fills that: what others give does not help it.
    pub(super) fn is_at_max(&self) -> bool {
        self.max().value().is_some_and(|max| self.usage() >= (1.0 - TUNING.noise) * to_f64(max))
    }

    /// What the kernel can take of it: page cache, and what fits into swap.
    pub(super) fn reclaimable(&self) -> f64 {
        let m = self.meter.last();
        let swappable = m.anon.saturating_add(m.shmem).saturating_sub(m.unevictable).min(m.swap_room);
        self.reclaimable_cache() + to_f64(swappable)
    }

    /// Without swap: page cache that is neither waiting to be written nor run from. What is mapped includes shared memory
    /// (cgroup-v2.rst, `file_mapped`), which is on no list of files.
    pub(super) fn reclaimable_cache(&self) -> f64 {
        let m = self.meter.last();
        let run_from = if self.mechanisms.mapped { m.mapped.saturating_sub(m.shmem) } else { Bytes::ZERO };
        let cache =
            m.inactive_file.saturating_add(m.active_file).saturating_sub(m.dirty).saturating_sub(run_from);
        to_f64(cache) + to_f64(m.slab_reclaimable) / 2.0
    }

    /// Whether memory can be taken from it now.
    pub(super) fn may_take(&self, now: Micros) -> bool {
        self.exempt_reason.is_none()
            && self.is_measured
            && self.pending.is_none()
            && now >= self.refused_until
    }

    pub(super) fn state(&self, now: Micros) -> LendingState {
        match () {
            () if self.is_unpopulated() => LendingState::Dead,
            () if !self.meter.is_settled() => LendingState::Observe,
            () if self.loans.is_on_hold(now) => LendingState::Hold,
            () if self.loans.is_lending() => LendingState::Lending,
            () if self.colour() == Colour::Green => LendingState::Spare,
            () => LendingState::Protected,
        }
    }

    /// Remembers a decision.
    pub(super) fn record_decision(&mut self, at: Micros, what: MemoryAction, free: f64, because: String) {
        if self.decisions.len() == DECISION_HISTORY {
            self.decisions.pop_front();
        }
        self.decisions.push_back(MemoryDecision { at, what, inputs: self.inputs(free), because });
    }

    fn inputs(&self, free: f64) -> DecisionInputs {
        DecisionInputs {
            colour: self.colour(),
            sigma: self.judgement.sigma,
            stall: self.meter.stall(),
            usage: self.meter.last().usage,
            minimum: to_bytes(self.minimum),
            entitlement: to_bytes(self.entitlement),
            free: to_bytes(free),
        }
    }

    pub(super) fn status(&self, now: Micros) -> ContainerMemoryStatus {
        let until = self.loans.hold_until();
        ContainerMemoryStatus {
            colour: self.colour(),
            source: self.judgement.source,
            sigma: self.judgement.sigma,
            stall: self.meter.stall(),
            state: self.state(now),
            until: (until > now).then_some(until),
            usage: self.meter.last().usage,
            pressure: self.meter.pressure(),
            reclaimable: to_bytes(self.reclaimable()),
            reservation: to_bytes(self.reservation),
            minimum: to_bytes(self.minimum),
            entitlement: to_bytes(self.entitlement),
            lent: self.loans.lent(),
            protected: self.protect.map_or(Bytes::ZERO, |protect| protect.low),
            enforced: self.protection == ProtectionStatus::InForce,
            view_ceiling: self.view_ceiling,
            failures: self.loans.failures(),
            saving: self.saving.as_ref().map(Savings::status),
            exempt_reason: self.exempt_reason.map(str::to_owned),
            decisions: self.decisions.iter().cloned().collect(),
        }
    }
}
