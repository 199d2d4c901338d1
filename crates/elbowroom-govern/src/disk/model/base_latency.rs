//! How long a request takes on a quiet day: `R0`, near the 10th percentile of `await`, which rises by a factor e in ten minutes at most.

use super::super::constants::LifelineConstants;
use super::super::flow::OPS;
use super::super::meter::DiskLoad;

/// Base latencies of one disk, microseconds: of reads and of writes that cost more as operations, and of those that cost more by their
/// bytes ([`LifelineConstants::operation_bytes`]).
#[derive(Debug)]
pub(in super::super) struct BaseLatency {
    k: LifelineConstants,
    rotational: usize,
    learned: [[Option<f64>; 2]; 2],
}

impl BaseLatency {
    pub(in super::super) fn new(rotational: bool, k: LifelineConstants) -> Self {
        Self { k, rotational: rotational.into(), learned: [[None; 2]; 2] }
    }

    /// How much longer than on a quiet day requests took: `q`, the mean over requests of `await/R0`. `None` without requests.
    pub(in super::super) fn latency_ratio(&self, load: &DiskLoad) -> Option<f64> {
        mean(requests(load).map(|(op, wait, operations, size)| (operations, wait / self.base_wait(op, size))))
    }

    /// `R0` of the load's requests, microseconds.
    pub(in super::super) fn mean_wait(&self, load: &DiskLoad) -> f64 {
        mean(requests(load).map(|(op, _, operations, size)| (operations, self.base_wait(op, size))))
            .unwrap_or(0.0)
    }

    /// Takes in a period. What was measured of a busy disk says nothing about quiet days, unless it answered sooner than on
    /// those.
    pub(in super::super) fn learn(&mut self, load: &DiskLoad, busy: bool) {
        let k = self.k;
        for (op, wait, operations, size) in requests(load) {
            let enough = operations * load.seconds >= k.early_requests;
            if enough && (!busy || wait < self.base_wait(op, size)) {
                let base = &mut self.learned[op][usize::from(size > k.operation_bytes[self.rotational])];
                // A tenth of all periods is below where nine steps down and one up balance.
                let wait = wait.max(k.request_us[0]);
                let before = base.unwrap_or(wait);
                let steps = if wait < before { -9.0 } else { 1.0 };
                *base = Some(before * (steps * load.seconds / k.keep_seconds).exp());
            }
        }
    }

    /// `R0` of one kind of request. Where nothing was measured, what is common; never above that, for a disk that was met
    /// saturated would seem to be quiet.
    fn base_wait(&self, op: usize, size: f64) -> f64 {
        let (k, [small, large]) = (&self.k, self.learned[op]);
        let is_large = size > k.operation_bytes[self.rotational];
        // A large request waits no longer before its bytes move than smaller ones take altogether.
        let longest = k.request_us[1 + self.rotational];
        let begins = small.filter(|_| is_large).map_or(longest, |small| small.min(longest));
        let common = begins + size / k.bytes_per_us[self.rotational];
        let measured = if is_large { large } else { small.or(large) };
        measured.unwrap_or(common).clamp(k.request_us[0], common)
    }
}

/// The mean of numbers with weights.
fn mean(all: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let (count, sum) = all.fold((0.0, 0.0), |(count, sum), (weight, x)| (count + weight, sum + weight * x));
    (count > 0.0).then(|| sum / count)
}

/// Reads and writes of a period: which, their `await`, how many per second, their mean size.
fn requests(load: &DiskLoad) -> impl Iterator<Item = (usize, f64, f64, f64)> {
    OPS.into_iter().enumerate().filter_map(|(op, (bytes, ios))| {
        let operations = load.flow.0[ios];
        (operations > 0.0).then_some((op, load.wait[op]?, operations, load.flow.0[bytes] / operations))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::flow::Flow;
    use elbowroom_types::unit::Micros;

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
        let mut base = BaseLatency::new(false, LifelineConstants::DEFAULT);
        for second in 0..100 {
            base.learn(&load(second, 100.0, if second % 5 == 0 { 100.0 } else { 400.0 }), false);
        }
        let at = base.mean_wait(&load(0, 1.0, 0.0));
        assert!((90.0..130.0).contains(&at), "{at}");
        for second in 100..1000 {
            base.learn(&load(second, 100.0, 9000.0), true);
        }
        assert_eq!(base.mean_wait(&load(0, 1.0, 0.0)), at, "saturation is no quiet day");
        let ratio = base.latency_ratio(&load(0, 1.0, 800.0)).unwrap();
        assert!((6.0..9.0).contains(&ratio), "{ratio}");
    }

    #[test]
    fn a_caches_answers_for_seconds_are_no_base() {
        let mut base = BaseLatency::new(false, LifelineConstants::DEFAULT);
        (0..300).for_each(|second| base.learn(&load(second, 100.0, 400.0), false));
        (300..310).for_each(|second| base.learn(&load(second, 100.0, 50.0), false));
        let ratio = base.latency_ratio(&load(310, 100.0, 400.0)).unwrap();
        assert!(ratio < 1.5, "{ratio}");
    }

    #[test]
    fn a_disk_met_saturated_is_not_taken_for_quiet() {
        let check = |rotational, expect: f64| {
            let mut base = BaseLatency::new(rotational, LifelineConstants::DEFAULT);
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
    fn it_forgets() {
        let mut base = BaseLatency::new(false, LifelineConstants::DEFAULT);
        (0..600).for_each(|second| base.learn(&load(second, 100.0, 100.0), false));
        (600..2400).for_each(|second| base.learn(&load(second, 100.0, 800.0), false));
        assert!(base.mean_wait(&load(0, 1.0, 0.0)) > 700.0);
    }

    #[test]
    fn what_large_requests_take_is_no_more_than_small_ones_and_their_bytes() {
        let mut base = BaseLatency::new(false, LifelineConstants::DEFAULT);
        (0..20).for_each(|second| base.learn(&load(second, 1000.0, 100.0), false));
        let size = 256.0 * 1024.0;
        let hog = DiskLoad { flow: Flow([size, 0.0, 1.0, 0.0]), ..load(20, 1.0, 4200.0) };
        let ratio = base.latency_ratio(&hog).unwrap();
        assert!((2.8..3.2).contains(&ratio), "1.4 ms is usual, not 2.3: {ratio}");
    }

    #[test]
    fn nothing_is_learned_from_a_few_requests_and_nothing_asked_of_none() {
        let mut base = BaseLatency::new(false, LifelineConstants::DEFAULT);
        base.learn(&load(0, 2.0, 30.0), false);
        assert!(base.mean_wait(&load(0, 1.0, 0.0)) > 1000.0);
        assert_eq!(base.latency_ratio(&load(0, 0.0, 0.0)), None);
    }
}
