//! When a share becomes a view: down soon, up late.
//!
//! # Problem
//! What max-min fairness gives follows the load of the last few milliseconds, and load has noise: a program that pauses for a
//! collection of garbage lends its CPUs to its neighbours for that time. Programs that follow their view stop and start threads, and
//! those that look once get a number by chance.
//!
//! # Approach
//! Use is summed over a period of a few ticks ([`PERIOD`]), and fairness decides once in each. A view falls to the *most* that
//! fairness gave in the last three periods in a row, so that it is down within 200 ms, and a spike of 90 ms does not bring it down.
//! It rises to the *least* of what it could have fallen to throughout [`RISE_AFTER`], so that it is up within a second. A pause that
//! is shorter lets no view rise, and a spike that would bring no view down keeps none down. A container that is new rises at once: no
//! program has adapted to what it is shown.
//!
//! # Properties
//! In `tests/view_calm.rs`:
//! - `a_real_change_is_followed_within_200_ms_down_and_a_second_up`
//! - `steady_load_with_noise_changes_a_view_at_most_twice_a_minute`
//! - `a_pause_lets_no_container_rise_and_a_spike_none_fall`
//! - `spikes_again_and_again_keep_no_container_down`

use elbowroom_types::unit::Micros;
use std::collections::VecDeque;

/// A period ends with the first tick that is this long after it began: with ticks of 24 ms every second one.
pub(super) const PERIOD: Micros = Micros::millis(40);
/// A view falls to the most that fairness gave in this many periods.
pub(super) const FALL_PERIODS: usize = 3;
/// A view rises to the least that it would not have fallen below for this long.
pub(super) const RISE_AFTER: Micros = Micros::millis(850);

/// What fairness gave a container lately, in thousandths of a CPU.
#[derive(Clone, Debug)]
pub(super) struct ShareHistory {
    /// Number of the last period; the largest there is before the first.
    last: u64,
    /// The last shares, in a ring; without end for those that are not known.
    recent: [u64; FALL_PERIODS],
    /// When the first of the periods in a row began.
    since: Micros,
    /// Beginnings of periods and the most of the shares up to them, each less than the one behind it: the first is the least.
    least: VecDeque<(Micros, u64)>,
}

/// Where the history of a container lets its view go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CalmShare {
    /// It falls to this where it is above.
    pub(super) most: u64,
    /// It may rise to this where it is below.
    pub(super) least: u64,
}

impl Default for ShareHistory {
    fn default() -> Self {
        let recent = [u64::MAX; FALL_PERIODS];
        Self { last: u64::MAX, recent, since: Micros::ZERO, least: VecDeque::new() }
    }
}

impl ShareHistory {
    /// Takes the share of the period `number`, which began at `began` and ends now. A period that was left out breaks the row.
    pub(super) fn record(&mut self, number: u64, began: Micros, now: Micros, share: u64) -> CalmShare {
        if self.last.checked_add(1) != Some(number) {
            self.recent = [u64::MAX; FALL_PERIODS];
            self.since = began;
            self.least.clear();
        }
        self.last = number;
        self.recent[number as usize % FALL_PERIODS] = share;
        let known = self.recent.into_iter().filter(|share| *share < u64::MAX).max().unwrap_or(share);
        while self.least.back().is_some_and(|(_, more)| *more >= known) {
            self.least.pop_back();
        }
        self.least.push_back((began, known));
        let from = now.saturating_sub(RISE_AFTER);
        while self.least.len() > 1 && self.least.front().is_some_and(|(began, _)| *began < from) {
            self.least.pop_front();
        }
        let least = self.least.front().filter(|_| self.since <= from).map_or(0, |(_, share)| *share);
        CalmShare { most: self.recent.into_iter().max().unwrap_or(share), least }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares of periods of 50 ms, one after the other -> what the last of them allows.
    fn after(shares: &[u64]) -> CalmShare {
        let mut history = ShareHistory::default();
        let at = |n: u64| Micros::millis(1_000 + 50 * n);
        let periods = (0..).zip(shares);
        periods.map(|(n, share)| history.record(n + 1, at(n), at(n + 1), *share)).last().unwrap()
    }

    #[test]
    fn it_falls_to_the_most_of_three() {
        assert_eq!(after(&[9, 5]).most, u64::MAX, "two are no three");
        assert_eq!(after(&[9, 5, 7, 6]).most, 7);
        assert_eq!(after(&[5, 6, 9]).most, 9);
    }

    #[test]
    fn it_rises_to_the_least_of_the_last_850_ms() {
        assert_eq!(after(&[9; 16]).least, 0, "not for so long yet");
        assert_eq!(after(&[9; 17]).least, 9);
        let mut shares = vec![3];
        shares.extend([9; 10]);
        shares.extend([7; 6]);
        assert_eq!(after(&shares).least, 3);
        shares.push(8);
        assert_eq!(after(&shares).least, 7);
    }

    #[test]
    fn one_or_two_low_periods_keep_it_down_no_more_than_they_bring_it_down() {
        let spikes = [9, 2, 9, 1, 2].repeat(5);
        assert_eq!(after(&spikes), CalmShare { most: 9, least: 9 });
        assert_eq!(after(&[&spikes[..], &[3, 2, 3, 9, 9]].concat()).least, 3, "three are a change");
    }

    #[test]
    fn a_period_left_out_breaks_the_row() {
        let mut history = ShareHistory::default();
        let at = |n: u64| Micros::millis(50 * n);
        for n in 1..40 {
            history.record(n, at(n), at(n + 1), 9);
        }
        let CalmShare { most, least } = history.record(41, at(41), at(42), 9);
        assert_eq!((most, least), (u64::MAX, 0));
    }
}
