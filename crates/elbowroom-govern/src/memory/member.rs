//! One container: how it is doing, what it is owed, what was done to it.

use super::colour::{self, Judgement, SOME, Source};
use super::meter::Meter;
use super::pool;
use super::{Decision, HISTORY, Inputs, Standing, State, What, amount, bytes};
use elbowroom_types::claim::Claim;
use elbowroom_types::memory::{GroupMemory, Heard, Lease, Protect};
use elbowroom_types::probe::Colour;
use elbowroom_types::sample::GroupId;
use elbowroom_types::unit::{Bytes, Limit, Micros};
use std::collections::VecDeque;

/// How long an order may stay without an answer; then it was lost, or nobody carries orders out.
pub(super) const ANSWER_WITHIN: Micros = Micros::secs(10);
/// Half of a learned working set is forgotten in this time, so that one that shrank is found out.
const HALF_LIFE: f64 = 420.0;

/// Less than this part of what was asked of it, all of which is served, is another load.
const OTHER_LOAD: f64 = 0.5;
/// Waiting for this part of a period is pressure.
const PRESSED: f64 = 0.1;
/// Who reads back this part of what it has within ten periods could use more.
const READS_BACK: f64 = 0.1;

/// What came of a protection that was ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    /// Nothing yet.
    Asked,
    /// It is in force, or the one before it, which counts until the answer.
    InForce,
    /// It is not in force, or only a part of it; the kernel's word, or ours.
    Refused,
    /// The same, because somebody else wrote what we would have.
    Foreign,
}

/// A container's state.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: GroupId,
    pub(super) name: String,
    pub(super) claim: Claim,
    /// Why nothing is ever taken from it.
    pub(super) hands_off: Option<&'static str>,
    /// What its user protects with the kernel's own means; [`Limit::Max`]: all that it uses.
    pub(super) kept: Limit<Bytes>,
    /// Its own hard limit, and the tightest that is around it alone.
    pub(super) own_max: Limit<Bytes>,
    pub(super) around: Limit<Bytes>,
    /// Whether the last tick named it.
    pub(super) measured: bool,
    pub(super) meter: Meter,
    pub(super) heard: Option<Heard>,
    pub(super) judgement: Judgement,
    /// Periods that it has been green, up to [`colour::DWELL`].
    greens: u8,

    pub(super) reserve: f64,
    pub(super) floor: f64,
    pub(super) entitlement: f64,
    /// What it would be owed if everybody wanted all he can get.
    pub(super) nominal: f64,

    pub(super) working_set: f64,
    /// What was asked of it when that was learned, where a probe says; and periods of much less, up to [`colour::DWELL`].
    pub(super) learned_at: Option<f64>,
    ebb: u8,
    /// It waits for nothing, and reads back what it has less than that, for others took it.
    misses: bool,
    pub(super) loans: super::lend::Loans,
    pub(super) recall: super::recall::Recall,
    /// An order that was not answered, and when it was given.
    pub(super) pending: Option<(Micros, What)>,
    /// When the kernel said last that it cannot take from it.
    pub(super) refused_until: Micros,
    pub(super) quarantine_until: Micros,
    pub(super) lease: Option<Lease>,
    pub(super) protect: Option<Protect>,
    /// What came of the last protection.
    pub(super) protection: Protection,
    /// Protection is somebody else's, or cannot be had, until then.
    pub(super) unprotectable_until: Micros,
    pub(super) export: Limit<Bytes>,
    pub(super) decisions: VecDeque<Decision>,
}

impl Member {
    pub(super) fn new(id: GroupId) -> Self {
        Self {
            id,
            name: String::new(),
            claim: Claim::default(),
            hands_off: None,
            kept: Limit::At(Bytes::ZERO),
            own_max: Limit::Max,
            around: Limit::Max,
            measured: false,
            meter: Meter::default(),
            heard: None,
            judgement: Judgement::default(),
            greens: 0,
            reserve: 0.0,
            floor: 0.0,
            entitlement: 0.0,
            nominal: 0.0,
            working_set: 0.0,
            learned_at: None,
            ebb: 0,
            misses: false,
            loans: super::lend::Loans::default(),
            recall: super::recall::Recall::default(),
            pending: None,
            refused_until: Micros::ZERO,
            quarantine_until: Micros::ZERO,
            lease: None,
            protect: None,
            protection: Protection::Asked,
            unprotectable_until: Micros::ZERO,
            export: Limit::Max,
            decisions: VecDeque::new(),
        }
    }

    /// Takes a measurement in and judges it.
    pub(super) fn measure(&mut self, now: Micros, seconds: f64, sample: &GroupMemory) {
        self.measured = true;
        self.meter.measure(now, sample);
        let report =
            self.heard.filter(|heard| heard.at <= now && now < heard.until).map(|heard| heard.report);
        self.judgement = colour::judge(report.as_ref(), &self.claim, &self.meter);
        self.greens = match self.judgement.colour {
            Colour::Green => self.greens.saturating_add(1).min(colour::DWELL),
            _ => 0,
        };
        self.working_set *= (-seconds / HALF_LIFE).exp2();
        let less =
            self.learned_at.zip(self.judgement.load).is_some_and(|(then, now)| now < OTHER_LOAD * then);
        self.ebb = if less && self.greens > 0 { (self.ebb + 1).min(colour::DWELL) } else { 0 };
        if self.ebb == colour::DWELL {
            (self.working_set, self.learned_at) = (0.0, None);
        }
        self.misses = self.judgement.source != Source::Probe
            && self.judgement.colour == Colour::Green
            && self.reads_back()
            && self.usage() < if self.misses { 1.0 } else { pool::SHORT } * self.due();
        if self.pending.is_some_and(|(at, _)| now.saturating_sub(at) >= ANSWER_WITHIN) {
            self.pending = None;
        }
    }

    /// How it is doing, green only when it has been for a while.
    pub(super) fn colour(&self) -> Colour {
        match self.judgement.colour {
            Colour::Green if self.greens < colour::DWELL || self.misses => Colour::Yellow,
            colour => colour,
        }
    }

    pub(super) fn usage(&self) -> f64 {
        amount(self.meter.last().usage)
    }

    pub(super) fn is_dead(&self) -> bool {
        !self.meter.last().populated
    }

    /// It would use more memory if there were some.
    pub(super) fn is_hungry(&self) -> bool {
        self.judgement.colour == Colour::Red || self.meter.refault() >= SOME || self.meter.grows()
    }

    /// It waited for memory in the last period, for long enough that programs which watch the kernel for that would be told: sd-event(3)
    /// asks for a tenth of the time (`MEMORY_PRESSURE_DEFAULT_THRESHOLD_USEC`, 200 ms of 2 s). Where the kernel counts no stalls, it reads back
    /// much of what it has.
    pub(super) fn is_pressed(&self) -> bool {
        match self.meter.stall_now() {
            Some(stall) => stall >= PRESSED,
            None => self.meter.is_settled() && colour::by_refaults(&self.meter) == Colour::Red,
        }
    }

    /// What failed loans taught, as far as it has that reserved.
    fn due(&self) -> f64 {
        self.working_set.min(self.reserve)
    }

    /// What it is owed and no more, while others have a part of that.
    pub(super) fn missed(&self) -> Option<f64> {
        self.misses.then(|| self.due())
    }

    /// It could use more: a good part of what it has came back lately.
    pub(super) fn reads_back(&self) -> bool {
        amount(self.meter.refault()) > READS_BACK * self.usage()
    }

    /// What it can ever use.
    pub(super) fn max(&self) -> Limit<Bytes> {
        self.own_max.min(self.around)
    }

    /// It fills that: what others give does not help it.
    pub(super) fn is_full(&self) -> bool {
        self.max().value().is_some_and(|max| self.usage() >= 0.98 * amount(max))
    }

    /// What the kernel can take of it: page cache that is neither waiting to be written nor run from, and what fits into swap. What
    /// is mapped includes shared memory (cgroup-v2.rst, `file_mapped`), which is on no list of files.
    pub(super) fn reclaimable(&self) -> f64 {
        let m = self.meter.last();
        let run_from = m.mapped.saturating_sub(m.shmem);
        let cache =
            m.inactive_file.saturating_add(m.active_file).saturating_sub(m.dirty).saturating_sub(run_from);
        let swappable = m.anon.saturating_add(m.shmem).saturating_sub(m.unevictable).min(m.swap_room);
        amount(cache.saturating_add(swappable)) + amount(m.slab_reclaimable) / 2.0
    }

    /// Whether memory that it may have use for can be taken from it now.
    pub(super) fn is_free_to_take(&self, now: Micros) -> bool {
        self.can_give_back(now) && now >= self.quarantine_until
    }

    /// Whether memory that others are owed can be taken from it now: what a loan did to it is no reason to keep that.
    pub(super) fn can_give_back(&self, now: Micros) -> bool {
        self.hands_off.is_none()
            && self.measured
            && self.pending.is_none()
            && now >= self.recall.spared_until
            && now >= self.refused_until
    }

    pub(super) fn state(&self, now: Micros) -> State {
        match () {
            () if self.is_dead() => State::Dead,
            () if now < self.quarantine_until => State::Quarantine,
            () if !self.meter.is_settled() => State::Observe,
            () if self.loans.is_held(now) => State::Hold,
            () if self.loans.is_lending() => State::Lending,
            () if self.colour() == Colour::Green => State::Spare,
            () => State::Protected,
        }
    }

    /// Remembers a decision.
    pub(super) fn decide(&mut self, at: Micros, what: What, room: f64, because: String) {
        if self.decisions.len() == HISTORY {
            self.decisions.pop_front();
        }
        self.decisions.push_back(Decision { at, what, inputs: self.inputs(room), because });
    }

    fn inputs(&self, room: f64) -> Inputs {
        Inputs {
            colour: self.colour(),
            sigma: self.judgement.sigma,
            stall: self.meter.stall(),
            usage: self.meter.last().usage,
            floor: bytes(self.floor),
            entitlement: bytes(self.entitlement),
            working_set: bytes(self.working_set),
            room: bytes(room),
        }
    }

    pub(super) fn standing(&self, now: Micros) -> Standing {
        let until = self.quarantine_until.max(self.loans.held_until());
        Standing {
            colour: self.colour(),
            source: self.judgement.source,
            sigma: self.judgement.sigma,
            stall: self.meter.stall(),
            state: self.state(now),
            until: (until > now).then_some(until),
            usage: self.meter.last().usage,
            reclaimable: bytes(self.reclaimable()),
            reserve: bytes(self.reserve),
            floor: bytes(self.floor),
            entitlement: bytes(self.entitlement),
            working_set: bytes(self.working_set),
            lent: self.loans.lent(),
            protected: self.protect.map_or(Bytes::ZERO, |protect| protect.low),
            enforced: self.protection == Protection::InForce,
            export: self.export,
            lease: self.lease.map(|lease| lease.high),
            failures: self.loans.failures(),
            hands_off: self.hands_off.map(str::to_owned),
            decisions: self.decisions.iter().cloned().collect(),
        }
    }
}
