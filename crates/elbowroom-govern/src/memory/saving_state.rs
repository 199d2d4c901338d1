//! What is remembered of one container's saving.

use super::tuning::SAVING;
use super::{SavingStatus, to_bytes, to_f64};
use elbowroom_types::memory::OrderOutcome;
use elbowroom_types::unit::{Bytes, Micros};

/// What is known of a container's saving.
#[derive(Debug, Default)]
pub(super) struct Savings {
    /// Since when it has run, as far as it was watched.
    pub(super) runs_since: Option<Micros>,
    pub(super) stepped_at: Option<Micros>,
    /// A step was ordered since the last harm: what comes now is its doing.
    pub(super) is_tried: bool,
    pub(super) pause: Option<(Micros, String)>,
    doublings: u32,
    /// Since when there has been no harm, once the last pause was over.
    calm_since: Micros,
    saved: Bytes,
    refaults: Option<Bytes>,
    /// What was decided last, in a sentence, and whether that was a step.
    pub(super) because: String,
    pub(super) is_saving: bool,
}

impl Savings {
    pub(super) fn status(&self) -> SavingStatus {
        SavingStatus { saved: self.saved, active: self.is_saving, because: self.because.clone() }
    }

    pub(super) fn saved(&self) -> Bytes {
        self.saved
    }

    /// Of what is said to be saved only a part can be.
    pub(super) fn scale(&mut self, part: f64) {
        self.saved = to_bytes(part * to_f64(self.saved));
    }

    /// An order was answered.
    pub(super) fn on_completed(&mut self, now: Micros, asked: Bytes, taken: Bytes, outcome: &OrderOutcome) {
        // What its programs freed meanwhile is not ours.
        self.saved = self.saved.saturating_add(taken.min(asked));
        match outcome {
            OrderOutcome::Refused(why) => {
                self.pause = Some((now.saturating_add(SAVING.max_pause), why.clone()));
                (self.is_saving, self.is_tried) = (false, false);
            }
            OrderOutcome::Partly if taken.get() < asked.get() / 2 => {
                self.stop(now, format!("the kernel found {taken} of {asked} to take"));
            }
            OrderOutcome::Done
            | OrderOutcome::Partly
            | OrderOutcome::Foreign
            | OrderOutcome::Gone
            | OrderOutcome::Late => {}
        }
    }

    /// Harm is as much as may be. Where that may be a step's doing, nothing is taken for a while.
    pub(super) fn on_harm(&mut self, now: Micros, why: String) {
        match self.is_tried {
            true => self.stop(now, why),
            false => self.calm_since = self.calm_since.max(now),
        }
    }

    fn stop(&mut self, now: Micros, why: String) {
        let until = now.saturating_add(self.pause_length());
        self.doublings += u32::from(self.pause_length() < SAVING.max_pause);
        (self.pause, self.calm_since, self.is_tried) = (Some((until, why)), until, false);
    }

    /// The pause is over, and nothing has come of it yet; the next one is half as long where that has lasted for as long as that.
    pub(super) fn resume(&mut self, now: Micros) {
        self.pause = None;
        if self.doublings > 0 && now.saturating_sub(self.calm_since) >= self.pause_length() {
            (self.doublings, self.calm_since) = (self.doublings - 1, now);
        }
    }

    fn pause_length(&self) -> Micros {
        Micros(SAVING.first_pause.get() << self.doublings).min(SAVING.max_pause)
    }

    /// Follows what came back. What is said to be saved is no more than it would have beside what it has: its limit bounds that.
    pub(super) fn measure(&mut self, now: Micros, refaults: Bytes, usage: Bytes, most: Bytes, runs: bool) {
        let back = refaults.saturating_sub(self.refaults.unwrap_or(refaults));
        self.refaults = Some(refaults);
        if !runs {
            (self.saved, self.runs_since) = (Bytes::ZERO, None);
            return;
        }
        self.runs_since.get_or_insert(now);
        self.saved = self.saved.saturating_sub(back).min(most.saturating_sub(usage));
    }
}
