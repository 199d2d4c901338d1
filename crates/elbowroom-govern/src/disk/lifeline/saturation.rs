//! Whether a disk has reached its end: more waiting requests, no more done.
//!
//! How much more is done with a longer queue, `kappa = dlnX/dlnaq`, is measured where queues of similar lengths were seen lately.
//! Where they were not, the simplest disk is assumed: requests take `W = R0 + aq/Xmax`, for which `kappa = R0/W`.

use elbowroom_types::unit::Micros;

/// How much longer than usual requests take on a disk that may be saturated, and on one that is whatever else is true.
const LATENCY_RATIO: f64 = 3.0;
const CERTAIN_LATENCY_RATIO: f64 = 8.0;
/// How many requests wait then.
const MIN_QUEUE: f64 = 2.0;
const CERTAIN_QUEUE: f64 = 0.9;
/// The part of the time that a saturated disk has something to do: all of it, but kernels before 6.10 count it by the tick of
/// their clock (block/blk-core.c, `update_io_ticks`).
const MIN_UTILISATION: f64 = 0.85;
/// A queue that is so many times as long as it was lately is looked at more closely.
const UNUSUAL_QUEUE: f64 = 2.0;
/// `kappa` below which more waiting requests do not make it do more.
const FLAT_SLOPE: f64 = 0.3;
/// How much longer a queue may be for the two to be compared.
const MAX_QUEUE_FACTOR: f64 = 4.0;
/// What was seen at another queue length stays comparable for this long.
const KNEE_TTL: Micros = Micros::secs(600);
/// Queue lengths that are told apart: half octaves from 1/16 to 4096.
const QUEUE_BINS: usize = 32;

/// `SAT` of the last three periods, and how much the disk did at each length of its queue.
#[derive(Debug, Default)]
pub(super) struct Saturation {
    votes: [bool; 3],
    suspect: bool,
    /// Length of the queue of a disk that rested in between, over the last five such periods or so.
    usual_queue: f64,
    /// Queue and work of the last period.
    last_point: Option<(f64, f64)>,
    knee: [Option<(Micros, f64)>; QUEUE_BINS],
}

/// What one period looked like.
#[derive(Clone, Copy, Debug)]
pub(super) struct SaturationSample {
    pub(super) now: Micros,
    /// `aq`.
    pub(super) queue: f64,
    /// The part of the time with at least one request under way.
    pub(super) busy: f64,
    /// `q`; `None` where no request completed.
    pub(super) latency_ratio: Option<f64>,
    /// `X`: what was done, in any unit that does not change.
    pub(super) throughput: f64,
}

impl Saturation {
    /// Takes in a period; whether it alone looks saturated.
    pub(super) fn update(&mut self, period: &SaturationSample) -> bool {
        let SaturationSample { now, queue, busy, latency_ratio: ratio, throughput: done } = *period;
        let kappa = [self.step_slope(queue, done), self.chord_slope(now, queue, done), ratio.map(f64::recip)];
        let kappa = match kappa {
            [None, None, model] => model,
            [step, chord, _] => step.into_iter().chain(chord).reduce(f64::min),
        };
        self.last_point = Some((queue, done));
        let waits = |ratio: f64| queue >= CERTAIN_QUEUE && ratio >= CERTAIN_LATENCY_RATIO;
        self.suspect =
            busy < MIN_UTILISATION && queue > UNUSUAL_QUEUE * self.usual_queue && ratio.is_some_and(waits);
        if busy < MIN_UTILISATION {
            self.usual_queue += 0.2 * (queue - self.usual_queue);
        }
        let vote = match ratio {
            // A disk that rested in between was not at its end, however long requests took: limits let them through in bursts.
            _ if busy < MIN_UTILISATION => false,
            // Requests are under way and not one completed: it hangs.
            None => queue >= CERTAIN_QUEUE,
            Some(ratio) => {
                let flat = ratio >= LATENCY_RATIO
                    && queue >= MIN_QUEUE
                    && kappa.is_some_and(|kappa| kappa < FLAT_SLOPE);
                flat || waits(ratio)
            }
        };
        if let Some(bin) = queue_bin(queue)
            && done > 0.0
        {
            let before = self.knee[bin].filter(|(then, _)| now.saturating_sub(*then) < KNEE_TTL);
            self.knee[bin] = Some((now, before.map_or(done, |(_, x)| x + 0.3 * (done - x))));
        }
        self.votes = [vote, self.votes[0], self.votes[1]];
        vote
    }

    /// Whether it was in two of the last three periods.
    pub(super) fn is_saturated(&self) -> bool {
        self.votes.iter().filter(|vote| **vote).count() >= 2
    }

    /// Whether the last period looked saturated, and the next one decides.
    pub(super) fn is_undecided(&self) -> bool {
        self.votes[0] && !self.is_saturated()
    }

    /// Whether in the last period requests waited as they do on a disk at its end, and more of them than lately, but it rested in
    /// between: its end was reached within the period, or limits let requests through in bursts.
    pub(super) fn is_suspect(&self) -> bool {
        self.suspect
    }

    /// The last period needs no second one beside it.
    pub(super) fn confirm(&mut self) {
        self.votes[1] = true;
    }

    /// `kappa = dlnX/dlnaq` between the last period and this one, where the queue grew by a third or more, but not by leaps.
    fn step_slope(&self, queue: f64, done: f64) -> Option<f64> {
        let (before, x) = self.last_point?;
        let slope = (done / x).ln() / (queue / before).ln();
        (queue > 1.33 * before && queue < MAX_QUEUE_FACTOR * before && slope.is_finite()).then_some(slope)
    }

    /// The same between this period and the nearest shorter queue that was seen lately. The curve bends down, so the chord is
    /// never flatter than the curve here; one from far away says nothing.
    fn chord_slope(&self, now: Micros, queue: f64, done: f64) -> Option<f64> {
        let (top, bottom) = (queue_bin(queue / 1.6)?, queue_bin(queue / MAX_QUEUE_FACTOR).unwrap_or(0));
        let (at, before) = (bottom..=top).rev().find_map(|at| {
            let (then, x) = self.knee[at]?;
            (now.saturating_sub(then) < KNEE_TTL).then_some((at, x))
        })?;
        let below = 2f64.powf((at as f64 + 0.5) / 2.0 - 4.0);
        let slope = (done / before).ln() / (queue / below).ln();
        slope.is_finite().then_some(slope)
    }
}

fn queue_bin(queue: f64) -> Option<usize> {
    let at = (queue.log2() + 4.0) * 2.0;
    (at >= 0.0).then(|| (at as usize).min(QUEUE_BINS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The disk of this machine, 4 KiB random reads of 1 to 64 threads: thousand reads per second, queue, wait over base.
    const VDA: [(f64, f64, f64); 7] = [
        (15.1, 0.84, 1.0),
        (26.3, 1.5, 1.1),
        (54.7, 2.8, 1.1),
        (75.1, 5.7, 1.5),
        (102.5, 11.8, 2.3),
        (122.3, 24.8, 4.0),
        (147.5, 50.7, 7.0),
    ];

    fn period(second: u64, (done, queue, ratio): (f64, f64, f64)) -> SaturationSample {
        SaturationSample {
            now: Micros::secs(second),
            queue,
            busy: 1.0,
            latency_ratio: Some(ratio),
            throughput: done,
        }
    }

    #[test]
    fn a_real_disk_is_saturated_past_its_knee() {
        let mut saturation = Saturation::default();
        let votes = VDA.iter().zip(0..).map(|(row, second)| saturation.update(&period(second, *row)));
        assert_eq!(votes.collect::<Vec<_>>(), [false, false, false, false, false, true, true]);
    }

    #[test]
    fn a_slow_disk_is_saturated_by_one_waiting_request() {
        let check = |row, expect| {
            let mut saturation = Saturation::default();
            assert_eq!(saturation.update(&period(0, row)), expect, "{row:?}");
            assert!(!saturation.is_saturated(), "once is not often");
            saturation.update(&period(1, row));
            assert_eq!(saturation.is_saturated(), expect);
        };
        check((1.0, 1.0, 160.0), true);
        check((1.0, 0.7, 160.0), false);
        check((1.0, 1.0, 5.0), false);
    }

    #[test]
    fn bursts_let_through_by_limits_are_no_saturation() {
        let mut saturation = Saturation::default();
        let burst = SaturationSample { busy: 0.6, ..period(0, (0.6, 8.0, 100.0)) };
        assert!(!saturation.update(&burst));
        assert!(saturation.is_suspect());
        let later = (0..5).map(|_| (saturation.update(&burst), saturation.is_suspect()).1);
        assert_eq!(later.collect::<Vec<_>>(), [true, true, true, false, false], "it is usual");
        assert!(saturation.update(&SaturationSample { busy: 1.0, ..burst }));
        assert!(!saturation.is_suspect());
    }

    #[test]
    fn a_long_queue_that_makes_it_do_more_is_no_saturation() {
        let mut saturation = Saturation::default();
        saturation.update(&period(0, (10.0, 5.0, 1.0)));
        assert!(!saturation.update(&period(1, (40.0, 16.0, 4.0))));
        assert!(saturation.update(&period(2, (41.0, 32.0, 6.0))));
    }

    #[test]
    fn without_anything_to_compare_with_the_wait_tells() {
        let check = |row, expect| {
            assert_eq!(Saturation::default().update(&period(0, row)), expect, "{row:?}");
            let mut saturation = Saturation::default();
            saturation.update(&period(0, (0.4, 1.0, 1.0)));
            assert_eq!(saturation.update(&period(1, row)), expect, "{row:?}, seen far from it");
        };
        check((1.0, 36.0, 3.9), true);
        check((1.0, 36.0, 3.1), false);
        check((1.0, 1.5, 3.9), false);
    }

    #[test]
    fn a_disk_that_hangs_is_saturated() {
        let mut saturation = Saturation::default();
        let hung = SaturationSample {
            now: Micros::ZERO,
            queue: 4.0,
            busy: 1.0,
            latency_ratio: None,
            throughput: 0.0,
        };
        assert!(saturation.update(&hung));
        assert!(!saturation.update(&SaturationSample { queue: 0.0, ..hung }));
    }
}
