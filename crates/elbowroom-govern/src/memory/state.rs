//! What is remembered of one container's loans and recalls.

use super::to_f64;
use elbowroom_types::unit::{Bytes, Micros};
use std::collections::VecDeque;

/// The first step, what a success makes of it, the largest; and the step after a failure. Parts of usage.
pub(super) const FIRST_STEP: f64 = 0.02;
pub(super) const STEP_GROWTH: f64 = 1.5;
pub(super) const MAX_STEP: f64 = 0.12;
pub(super) const STEP_AFTER_FAILURE: f64 = 0.01;
/// Less is not worth a system call.
pub(super) const MIN_AMOUNT: f64 = (1 << 20) as f64;
/// After a first failure nothing is taken for this long; the longest.
pub(super) const FIRST_HOLD: Micros = Micros::secs(10);
pub(super) const MAX_HOLD: Micros = Micros::secs(300);

/// What is known of a container's loans.
#[derive(Debug)]
pub(super) struct Loans {
    pub(super) step: f64,
    pub(super) trials: VecDeque<LoanTrial>,
    pub(super) hold_until: Micros,
    /// How often the hold doubled.
    pub(super) hold_doublings: u32,
    /// When the last hold ended, or halved.
    pub(super) hold_decayed_at: Micros,
    pub(super) failures: u32,
    pub(super) lent: Bytes,
    /// When its programs were first asked to give some back.
    pub(super) asked_since: Option<Micros>,
    /// When it last gave, and what it used and how it was doing when that was ordered.
    pub(super) last_given: Option<Micros>,
    pub(super) usage_before: f64,
    pub(super) level_before: Option<f64>,
}

/// A loan that is watched.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoanTrial {
    pub(super) periods: u8,
    pub(super) taken: f64,
    /// What it used when this was ordered; nothing where others have called back a part of that since.
    pub(super) usage_before: f64,
    /// What came back in a period before the loan.
    pub(super) usual_refault: f64,
    pub(super) refault: f64,
    pub(super) activate: f64,
    pub(super) pgsteal: f64,
    pub(super) pgscan: f64,
}

impl Default for Loans {
    fn default() -> Self {
        Self {
            step: FIRST_STEP,
            trials: VecDeque::new(),
            hold_until: Micros::ZERO,
            hold_doublings: 0,
            hold_decayed_at: Micros::ZERO,
            failures: 0,
            lent: Bytes::ZERO,
            asked_since: None,
            last_given: None,
            usage_before: 0.0,
            level_before: None,
        }
    }
}

impl Loans {
    pub(super) fn is_on_hold(&self, now: Micros) -> bool {
        now < self.hold_until
    }

    pub(super) const fn hold_until(&self) -> Micros {
        self.hold_until
    }

    pub(super) const fn is_lending(&self) -> bool {
        self.asked_since.is_some()
    }

    pub(super) const fn lent(&self) -> Bytes {
        self.lent
    }

    pub(super) const fn failures(&self) -> u32 {
        self.failures
    }

    /// When it last gave something.
    pub(super) const fn last_given(&self) -> Option<Micros> {
        self.last_given
    }

    /// It is to give, uses this much, and does this well.
    pub(super) const fn start_loan(&mut self, usage: f64, level: Option<f64>) {
        (self.usage_before, self.level_before) = (usage, level);
    }

    /// Something was called back: what it used before was more than it is owed.
    pub(super) fn on_recall(&mut self) {
        self.trials.iter_mut().for_each(|trial| trial.usage_before = 0.0);
    }

    /// Whether it does less than a part of what it did then.
    pub(super) fn fell_below(&self, part: f64, level: Option<f64>) -> bool {
        self.level_before.zip(level).is_some_and(|(before, now)| now < part * before)
    }

    /// It was given: from now on harm is looked for.
    pub(super) fn record_loan(&mut self, now: Micros, taken: Bytes, usual: f64) {
        self.lent = self.lent.saturating_add(taken);
        self.last_given = Some(now);
        self.trials.push_back(LoanTrial {
            taken: to_f64(taken),
            usage_before: self.usage_before,
            usual_refault: usual,
            ..LoanTrial::default()
        });
    }

    /// It needs all it has: nothing of it is lent any more.
    pub(super) fn end_loans(&mut self) {
        (self.lent, self.asked_since) = (Bytes::ZERO, None);
    }

    /// Nobody needs anything.
    pub(super) fn stop_asking(&mut self) {
        self.asked_since = None;
    }

    /// What it had before the loans that are watched, given what it uses now.
    pub(super) fn fail(&mut self, now: Micros, usage: f64) -> f64 {
        let before = self.trials.front().map_or(0.0, |oldest| oldest.usage_before);
        let taken: f64 = self.trials.drain(..).map(|trial| trial.taken).sum();
        self.hold_until = now.saturating_add(hold_time(self.hold_doublings));
        self.hold_doublings = (self.hold_doublings + 1).min(16);
        self.failures = self.failures.saturating_add(1);
        (self.hold_decayed_at, self.step, self.asked_since) = (self.hold_until, STEP_AFTER_FAILURE, None);
        (usage + taken).max(before)
    }

    pub(super) fn succeed(&mut self, now: Micros) {
        self.trials.pop_front();
        self.step = (self.step * STEP_GROWTH).min(MAX_STEP);
        let last = hold_time(self.hold_doublings.saturating_sub(1)).get();
        if self.hold_doublings > 0
            && now.saturating_sub(self.hold_decayed_at) > Micros(last.saturating_mul(2))
        {
            (self.hold_doublings, self.hold_decayed_at) = (self.hold_doublings - 1, now);
        }
    }
}

/// For how long nothing is taken after a failure.
fn hold_time(doubled: u32) -> Micros {
    Micros(FIRST_HOLD.get().saturating_mul(1 << doubled.min(16)).min(MAX_HOLD.get()))
}

/// What is known of a container that is recalled from.
#[derive(Debug, Default)]
pub(super) struct RecallState {
    /// What it was to use no more than, after it was last recalled from.
    pub(super) expected_usage: Option<f64>,
    /// Periods in a row in which it grew as fast as it gave.
    pub(super) growth_periods: u8,
    /// When it last gave.
    pub(super) last_recall: Option<Micros>,
    /// The kernel found no memory for it meanwhile: nothing is recalled until then.
    pub(super) exempt_until: Micros,
    /// Leases cannot be had until then.
    pub(super) no_lease_until: Micros,
}
