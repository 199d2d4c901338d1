//! What is remembered of one container's loans and recalls.

use super::to_f64;
use super::tuning::TUNING;
use elbowroom_types::unit::{Bytes, Micros};
use std::collections::VecDeque;

/// What is known of a container's loans.
#[derive(Debug)]
pub(super) struct Loans {
    pub(super) step: f64,
    pub(super) trials: VecDeque<LoanTrial>,
    pub(super) hold_until: Micros,
    /// How often the hold doubled.
    pub(super) doublings: u32,
    pub(super) failures: u32,
    pub(super) lent: Bytes,
    /// When its programs were first asked to give some back.
    pub(super) asked_since: Option<Micros>,
    /// What was asked of it when the last loan was ordered, where a probe says.
    pub(super) load_before: Option<f64>,
}

/// A loan that is watched.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoanTrial {
    pub(super) periods: u8,
    pub(super) taken: f64,
    pub(super) load_before: Option<f64>,
    /// What came back in a period before the loan, and since.
    pub(super) usual_refault: f64,
    pub(super) refault: f64,
}

impl Default for Loans {
    fn default() -> Self {
        Self {
            step: TUNING.first_step,
            trials: VecDeque::new(),
            hold_until: Micros::ZERO,
            doublings: 0,
            failures: 0,
            lent: Bytes::ZERO,
            asked_since: None,
            load_before: None,
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

    /// Something is lent, watched, or on hold.
    pub(super) fn is_open(&self, now: Micros) -> bool {
        self.is_lending() || !self.trials.is_empty() || self.is_on_hold(now)
    }

    pub(super) const fn lent(&self) -> Bytes {
        self.lent
    }

    pub(super) const fn failures(&self) -> u32 {
        self.failures
    }

    /// It is to give, while its load is `load`.
    pub(super) const fn start_loan(&mut self, load: Option<f64>) {
        self.load_before = load;
    }

    /// It was given: from now on harm is looked for.
    pub(super) fn record_loan(&mut self, taken: Bytes, usual_refault: f64) {
        self.lent = self.lent.saturating_add(taken);
        let (taken, load_before) = (to_f64(taken), self.load_before);
        self.trials.push_back(LoanTrial { taken, load_before, usual_refault, ..LoanTrial::default() });
    }

    /// It needs all it has: nothing of it is lent any more.
    pub(super) fn end_loans(&mut self) {
        (self.lent, self.asked_since) = (Bytes::ZERO, None);
    }

    /// No container needs anything.
    pub(super) fn stop_asking(&mut self) {
        self.asked_since = None;
    }

    /// The loans that are watched were too much.
    pub(super) fn fail(&mut self, now: Micros) {
        self.hold(now);
        self.doublings = (self.doublings + 1).min(16);
        self.failures = self.failures.saturating_add(1);
    }

    pub(super) fn hold(&mut self, now: Micros) {
        let time = TUNING.first_hold.get().saturating_mul(1 << self.doublings).min(TUNING.max_hold.get());
        self.hold_until = now.saturating_add(Micros(time));
        self.trials.clear();
        (self.step, self.asked_since) = (TUNING.first_step, None);
    }

    pub(super) fn succeed(&mut self) {
        self.trials.pop_front();
        if self.step >= TUNING.max_step {
            self.doublings = self.doublings.saturating_sub(1);
        }
        self.step = (self.step * TUNING.step_growth).min(TUNING.max_step);
    }
}

/// What is known of a container that is recalled from.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecallState {
    /// What it was to use no more than, after it was last recalled from.
    pub(super) expected_usage: Option<f64>,
    /// Periods in a row in which it grew as fast as it gave.
    pub(super) growth_periods: i32,
}
