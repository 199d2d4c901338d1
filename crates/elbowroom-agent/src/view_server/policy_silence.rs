//! How long the policy process has done nothing, by the beats that it counts in the shared memory.

use std::time::{Duration, Instant};

/// A policy process that has worked, and does nothing for this long, hangs.
const HANG_TIMEOUT: Duration = Duration::from_millis(1_250);
/// The same of one that has not given its first beat: it loads programs into the kernel, and learns what is there.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// A look this late says no more than one in time: the watcher did not run, and neither may have the others.
const LONGEST_STEP: Duration = Duration::from_millis(500);
/// Divisor of the silent time of a process that is running: it is more likely slow than hung.
const RUNNING_DISCOUNT: u32 = 8;
/// Each process that hangs doubles the time of the next one, this often at most: on a machine where all are slow, one gets on.
const MAX_DOUBLINGS: u32 = 5;
/// After this long without a hang, the next process has no more time than the first.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// Watches one policy process after the other.
#[derive(Debug)]
pub(crate) struct PolicySilence {
    beats: u64,
    /// It has given a beat.
    has_worked: bool,
    silent: Duration,
    looked_at: Instant,
    doublings: u32,
    hung_at: Instant,
}

impl PolicySilence {
    /// Begins with the process there is; `beats` is what all before it have counted.
    pub(crate) fn new(beats: u64, now: Instant) -> Self {
        Self { beats, has_worked: false, silent: Duration::ZERO, looked_at: now, doublings: 0, hung_at: now }
    }

    /// Another process starts.
    pub(crate) fn restart(&mut self, beats: u64, now: Instant) {
        *self = Self { doublings: self.doublings, hung_at: self.hung_at, ..Self::new(beats, now) };
    }

    /// Whether there was no beat at the last look.
    pub(crate) fn is_silent(&self) -> bool {
        !self.silent.is_zero()
    }

    /// A look, to be taken twice a second, and more often while it is silent; `is_running`, asked where there was no beat, says whether its main thread computes. How
    /// long the process has been silent, where that is too long: it is to be replaced.
    pub(crate) fn look(
        &mut self,
        beats: u64,
        now: Instant,
        is_running: impl FnOnce() -> bool,
    ) -> Option<Duration> {
        let step = now.saturating_duration_since(self.looked_at).min(LONGEST_STEP);
        self.looked_at = now;
        if now.saturating_duration_since(self.hung_at) >= FORGET_AFTER {
            self.doublings = 0;
        }
        if beats != self.beats {
            (self.beats, self.has_worked, self.silent) = (beats, true, Duration::ZERO);
            return None;
        }
        self.silent += if is_running() { step / RUNNING_DISCOUNT } else { step };
        let patience = if self.has_worked { HANG_TIMEOUT } else { START_TIMEOUT } * (1 << self.doublings);
        if self.silent < patience {
            return None;
        }
        self.doublings = (self.doublings + 1).min(MAX_DOUBLINGS);
        self.hung_at = now;
        Some(std::mem::take(&mut self.silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_millis(250);

    /// Looks four times a second for `seconds` at one whose beats `beats` counts; after how long it hung, each time.
    fn hangs(
        watch: &mut PolicySilence,
        from: Instant,
        seconds: u32,
        beats: impl Fn(u32) -> u64,
    ) -> Vec<Duration> {
        let looks = (1..=seconds * 4)
            .filter_map(|n| watch.look(beats(n), from + LOOK * n, || false).map(|_| LOOK * n));
        looks.collect()
    }

    #[test]
    fn one_that_falls_silent_hangs_and_one_that_beats_does_not() {
        let start = Instant::now();
        let mut watch = PolicySilence::new(7, start);
        assert!(hangs(&mut watch, start, 60, |n| 7 + u64::from(n)).is_empty());
        // Every second beat late by half a second is no silence.
        assert!(hangs(&mut watch, start, 60, |n| 1_000 + u64::from(n / 4)).is_empty());
        let hung = hangs(&mut watch, start, 2, |_| 5_000);
        assert_eq!(hung, [LOOK + HANG_TIMEOUT]);
    }

    #[test]
    fn one_that_never_worked_hangs_too() {
        let start = Instant::now();
        let mut watch = PolicySilence::new(7, start);
        assert_eq!(hangs(&mut watch, start, 11, |_| 7), [START_TIMEOUT]);
        // Whatever the one before did.
        let mut watch = PolicySilence::new(7, start);
        assert!(watch.look(8, start + LOOK, || false).is_none());
        watch.restart(8, start);
        assert_eq!(hangs(&mut watch, start, 11, |_| 8), [START_TIMEOUT]);
    }

    #[test]
    fn where_all_are_slow_the_next_has_more_time() {
        let start = Instant::now();
        let mut watch = PolicySilence::new(0, start);
        let mut took = Vec::new();
        for _ in 0..8 {
            watch.restart(0, start);
            watch.look(1, start, || false);
            took.extend(
                (1..=200).find(|n| watch.look(1, start + LOOK * *n, || false).is_some()).map(|n| LOOK * n),
            );
        }
        assert_eq!(took[..3], [HANG_TIMEOUT, HANG_TIMEOUT * 2, HANG_TIMEOUT * 4]);
        assert_eq!(took.last(), Some(&(HANG_TIMEOUT * 32)));
        // Long after that it is forgotten.
        let later = start + 2 * FORGET_AFTER;
        watch.restart(1, later);
        watch.look(2, later, || false);
        assert_eq!(hangs(&mut watch, later, 2, |_| 2), [HANG_TIMEOUT]);
    }

    #[test]
    fn a_watcher_that_slept_knows_nothing_and_one_that_computes_has_more_time() {
        let start = Instant::now();
        let mut watch = PolicySilence::new(0, start);
        watch.look(1, start, || false);
        assert_eq!(watch.look(1, start + Duration::from_secs(3_600), || false), None);
        let mut watch = PolicySilence::new(0, start);
        watch.look(1, start, || false);
        let looks = (1..=24).filter_map(|n| watch.look(1, start + LOOK * n, || true));
        assert_eq!(looks.count(), 0);
    }
}
