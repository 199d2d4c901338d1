//! How long a request takes on a quiet day: `R0`, the 10th percentile of `await` over the last ten minutes.

use super::super::flow::OPS;
use super::super::meter::DiskLoad;
use elbowroom_types::unit::Micros;
use std::collections::VecDeque;

/// Bins of a histogram of times, four to an octave, from 1 us up to 1 s.
const BINS: usize = 80;
/// How many minutes are remembered.
const WINDOW_MINUTES: usize = 10;
/// A disk that was busy for longer than this has a new normal.
const BUSY_TIMEOUT: Micros = Micros::secs(3600);
/// Fewer requests than this in a period say nothing.
const MIN_REQUESTS: f64 = 3.0;
/// Faster disks are not told apart: microseconds.
const MIN_BASE_US: f64 = 20.0;
/// Sizes of requests up to which they count as small, and as medium: bytes.
const SIZE_LIMITS: [f64; 2] = [16.0 * 1024.0, 128.0 * 1024.0];

/// Base latencies of one disk, for reads and writes of three sizes.
#[derive(Debug)]
pub(super) struct BaseLatency {
    rotational: bool,
    classes: [[RequestClass; 3]; 2],
}

/// What was measured of one kind of request.
#[derive(Debug, Default)]
struct RequestClass {
    /// One histogram per minute, the newest last.
    histograms: VecDeque<(u64, [u16; BINS])>,
    p10: Option<f64>,
    last_quiet: Option<Micros>,
}

impl BaseLatency {
    pub(super) fn new(rotational: bool) -> Self {
        Self { rotational, classes: Default::default() }
    }

    /// How much longer than on a quiet day requests took: `q`, the mean over requests of `await/R0`. `None` without requests.
    pub(super) fn latency_ratio(&self, load: &DiskLoad) -> Option<f64> {
        let (mut weighted, mut count) = (0.0, 0.0);
        for (op, wait, operations, size) in requests(load) {
            weighted += operations * wait / self.base_wait(op, size);
            count += operations;
        }
        (count > 0.0).then(|| weighted / count)
    }

    /// `R0` of the load's requests, microseconds.
    pub(super) fn mean_wait(&self, load: &DiskLoad) -> f64 {
        let (mut sum, mut count) = (0.0, 0.0);
        for (op, _, operations, size) in requests(load) {
            sum += operations * self.base_wait(op, size);
            count += operations;
        }
        if count > 0.0 { sum / count } else { 0.0 }
    }

    /// Takes in a period. What was measured of a busy disk says nothing about quiet days, unless it answered sooner than on
    /// those.
    pub(super) fn learn(&mut self, load: &DiskLoad, busy: bool) {
        for (op, wait, operations, size) in requests(load) {
            if operations * load.seconds >= MIN_REQUESTS {
                let busy = busy && wait >= self.base_wait(op, size);
                self.classes[op][size_class(size)].learn(load.now, wait, busy);
            }
        }
    }

    /// `R0` of one kind of request. Where nothing was measured, what is common; never above that, for a disk that was met
    /// saturated would seem to be quiet.
    fn base_wait(&self, op: usize, size: f64) -> f64 {
        let (seek, bytes_per_us) = if self.rotational { (10_000.0, 100.0) } else { (1_000.0, 200.0) };
        let at = size_class(size);
        // A large request waits no longer before its bytes move than smaller ones take altogether.
        let smaller = (0..at).rev().find_map(|k| self.classes[op][k].p10);
        let common = smaller.map_or(seek, |smaller| smaller.min(seek)) + size / bytes_per_us;
        let measured =
            [at, at.saturating_sub(1), (at + 1).min(2)].into_iter().find_map(|k| self.classes[op][k].p10);
        measured.unwrap_or(common).clamp(MIN_BASE_US, common)
    }
}

impl RequestClass {
    fn learn(&mut self, now: Micros, wait: f64, busy: bool) {
        let minute = now.get() / 60_000_000;
        let lately = self.last_quiet.is_none_or(|quiet| now.saturating_sub(quiet) < BUSY_TIMEOUT);
        if busy && lately {
            self.last_quiet.get_or_insert(now);
            return;
        }
        if !busy {
            self.last_quiet = Some(now);
        }
        if self.histograms.back().is_none_or(|(last, _)| *last != minute) {
            self.histograms.push_back((minute, [0; BINS]));
        }
        while self.histograms.len() > WINDOW_MINUTES {
            self.histograms.pop_front();
        }
        self.histograms.retain(|(then, _)| minute.abs_diff(*then) < WINDOW_MINUTES as u64);
        if let Some((_, bins)) = self.histograms.back_mut() {
            let bin = &mut bins[(wait.max(1.0).log2() * 4.0).clamp(0.0, (BINS - 1) as f64) as usize];
            *bin = bin.saturating_add(1);
        }
        self.p10 = self.percentile(10);
    }

    /// The middle of the bin below which this many of a hundred are.
    fn percentile(&self, percent: u32) -> Option<f64> {
        let count = |bin: usize| self.histograms.iter().map(|(_, bins)| u32::from(bins[bin])).sum::<u32>();
        let all = (0..BINS).map(count).sum::<u32>();
        let mut below = 0;
        let at = (0..BINS).find(|bin| {
            below += count(*bin);
            below * 100 > all * percent
        })?;
        Some(((at as f64 + 0.5) / 4.0).exp2())
    }
}

/// Reads and writes of a period: which, their `await`, how many per second, their mean size.
fn requests(load: &DiskLoad) -> impl Iterator<Item = (usize, f64, f64, f64)> {
    OPS.into_iter().enumerate().filter_map(|(op, (bytes, ios))| {
        let operations = load.flow.0[ios];
        (operations > 0.0).then_some((op, load.wait[op]?, operations, load.flow.0[bytes] / operations))
    })
}

fn size_class(size: f64) -> usize {
    SIZE_LIMITS.iter().filter(|limit| size > **limit).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::flow::Flow;

    fn load(second: u64, reads: f64, wait: f64) -> DiskLoad {
        DiskLoad {
            now: Micros::secs(second),
            seconds: 1.0,
            flow: Flow([reads * 4096.0, 0.0, reads, 0.0]),
            wait: [Some(wait), None],
            ..DiskLoad::default()
        }
    }

    #[test]
    fn base_is_the_tenth_percentile_of_quiet_periods() {
        let mut base = BaseLatency::new(false);
        for second in 0..100 {
            base.learn(&load(second, 100.0, if second % 5 == 0 { 100.0 } else { 400.0 }), false);
        }
        let at = base.mean_wait(&load(0, 1.0, 0.0));
        assert!((90.0..115.0).contains(&at), "{at}");
        for second in 100..1000 {
            base.learn(&load(second, 100.0, 9000.0), true);
        }
        assert_eq!(base.mean_wait(&load(0, 1.0, 0.0)), at, "saturation is no quiet day");
        let ratio = base.latency_ratio(&load(0, 1.0, 800.0)).unwrap();
        assert!((7.0..9.0).contains(&ratio), "{ratio}");
    }

    #[test]
    fn a_disk_met_saturated_is_not_taken_for_quiet() {
        let check = |rotational, expect: f64| {
            let mut base = BaseLatency::new(rotational);
            base.learn(&load(0, 100.0, 50_000.0), false);
            assert!(
                (base.latency_ratio(&load(0, 100.0, 50_000.0)).unwrap() - expect).abs() < 1.0,
                "{base:?}"
            );
        };
        check(false, 49.0);
        check(true, 5.0);
    }

    #[test]
    fn after_ten_minutes_it_is_what_it_is_now() {
        let mut base = BaseLatency::new(false);
        (0..600).for_each(|second| base.learn(&load(second, 100.0, 100.0), false));
        (600..1260).for_each(|second| base.learn(&load(second, 100.0, 800.0), false));
        assert!(base.mean_wait(&load(0, 1.0, 0.0)) > 700.0);
    }

    #[test]
    fn what_large_requests_take_is_no_more_than_small_ones_and_their_bytes() {
        let mut base = BaseLatency::new(false);
        (0..20).for_each(|second| base.learn(&load(second, 1000.0, 100.0), false));
        let size = 256.0 * 1024.0;
        let hog = DiskLoad { flow: Flow([size, 0.0, 1.0, 0.0]), ..load(20, 1.0, 4200.0) };
        let ratio = base.latency_ratio(&hog).unwrap();
        assert!((2.8..3.2).contains(&ratio), "1.4 ms is usual, not 2.3: {ratio}");
    }

    #[test]
    fn nothing_is_learned_from_a_few_requests_and_nothing_asked_of_none() {
        let mut base = BaseLatency::new(false);
        base.learn(&load(0, 2.0, 30.0), false);
        assert!(base.mean_wait(&load(0, 1.0, 0.0)) > 1000.0);
        assert_eq!(base.latency_ratio(&load(0, 0.0, 0.0)), None);
    }
}
