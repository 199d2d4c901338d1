//! What a disk does: its counters as rates, the length of its queue, how long requests take.

use super::constants::LifelineConstants;
use super::flow::{Flow, IoCounters, OPS};
use elbowroom_types::io::DiskStat;
use elbowroom_types::unit::Micros;

/// After a pause longer than this everything starts from where it is now: a mean over it would be true of no instant in it.
pub(super) const MAX_PERIOD: Micros = Micros::secs(10);

/// Where `/proc/diskstats` counts time from zero again: 32 bits of milliseconds (block/genhd.c, `diskstats_show`), which a queue of 32
/// requests fills in a day and a half.
const DISKSTATS_WRAP: Micros = Micros::millis(1 << 32);

/// A disk over one period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct DiskLoad {
    /// When the period ended.
    pub(super) now: Micros,
    /// Its length in seconds.
    pub(super) seconds: f64,
    /// What it did, per second.
    pub(super) flow: Flow,
    /// `aq`: mean number of requests under way.
    pub(super) queue: f64,
    /// The part of the time with at least one request under way.
    pub(super) busy: f64,
    /// `await` of reads and of writes, microseconds; `None` where none completed.
    pub(super) wait: [Option<f64>; 2],
    /// Requests under way at the end.
    pub(super) in_flight: u32,
}

impl DiskLoad {
    /// Mean time of a request, microseconds.
    pub(super) fn mean_wait(&self) -> f64 {
        let operations = self.flow.operations();
        if operations > 0.0 { self.request_time(self.flow) * 1e6 / operations } else { 0.0 }
    }

    /// Whether enough requests complete in an early period to tell rates.
    pub(super) fn fills_early_period(&self, k: &LifelineConstants) -> bool {
        self.flow.operations() * k.early_period.get() as f64 / 1e6 >= k.early_requests
    }

    /// The time that requests of such a flow take, one after the other, in seconds per second.
    pub(super) fn request_time(&self, flow: Flow) -> f64 {
        let both = OPS.iter().zip(self.wait).map(|((_, ios), wait)| wait.unwrap_or(0.0) * flow.0[*ios]);
        both.sum::<f64>() / 1e6
    }
}

/// Turns counters into [`DiskLoad`]s.
#[derive(Clone, Debug, Default)]
pub(super) struct DiskMeter {
    last: Option<(Micros, DiskStat)>,
}

/// What a measurement is good for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum MeterReading {
    /// A period with its rates.
    Period(DiskLoad),
    /// Too close to the last one: what was counted since counts for the next.
    TooShort,
    /// There is nothing to compare it with: it is the first, or the first after a pause or a clock that went backwards.
    Restarted,
}

impl DiskMeter {
    /// Whether there is something to compare the next measurement with.
    pub(super) fn has_baseline(&self) -> bool {
        self.last.is_some()
    }

    /// Takes in a disk's counters. A period that is shorter than `shortest` is added to the next: a few requests say nothing about a rate.
    pub(super) fn read(&mut self, now: Micros, stat: &DiskStat, shortest: Micros) -> MeterReading {
        let Some((then, before)) = self.last else {
            self.last = Some((now, *stat));
            return MeterReading::Restarted;
        };
        let elapsed = now.saturating_sub(then);
        if now >= then && elapsed < shortest {
            return MeterReading::TooShort;
        }
        self.last = Some((now, *stat));
        if now < then || elapsed > MAX_PERIOD {
            return MeterReading::Restarted;
        }
        let seconds = elapsed.get() as f64 / 1e6;
        let done = IoCounters::from(stat).since(IoCounters::from(&before));
        let began_again = stat.rios < before.rios || stat.wios < before.wios;
        let time = |now: Micros, before: Micros| {
            let over = if now < before && !began_again { DISKSTATS_WRAP } else { Micros::ZERO };
            now.saturating_add(over).saturating_sub(before).get() as f64
        };
        let wait = |operations: f64, time: f64| (operations > 0.0).then(|| time / operations);
        // Time counts when a request completes (block/genhd.c, `part_stat_read_all`; block/blk-core.c, `update_io_ticks`): of a disk
        // that completes none, what is under way is all that tells.
        let hangs = done.operations() == 0.0;
        let held = if hangs { f64::from(stat.in_flight.min(before.in_flight)) } else { 0.0 };
        MeterReading::Period(DiskLoad {
            now,
            seconds,
            flow: done.map(|n| n / seconds),
            queue: (time(stat.time_in_queue, before.time_in_queue) / elapsed.get() as f64).max(held),
            busy: (time(stat.io_ticks, before.io_ticks) / elapsed.get() as f64).max(held.min(1.0)),
            wait: [
                wait(done.0[OPS[0].1], time(stat.rticks, before.rticks)),
                wait(done.0[OPS[1].1], time(stat.wticks, before.wticks)),
            ],
            in_flight: stat.in_flight,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::unit::Bytes;

    const SHORTEST: Micros = Micros::millis(50);

    fn stat(rios: u64, ms: u64) -> DiskStat {
        DiskStat {
            rios,
            rbytes: Bytes(rios * 4096),
            rticks: Micros::millis(ms),
            time_in_queue: Micros::millis(ms),
            ..DiskStat::default()
        }
    }

    #[test]
    fn rates_are_over_the_time_that_really_passed() {
        let mut meter = DiskMeter::default();
        assert_eq!(meter.read(Micros::secs(1), &stat(0, 0), SHORTEST), MeterReading::Restarted);
        let MeterReading::Period(load) = meter.read(Micros::secs(5), &stat(400, 2000), SHORTEST) else {
            panic!("no period")
        };
        assert_eq!((load.flow.0[2], load.flow.0[0]), (100.0, 409_600.0));
        assert_eq!((load.queue, load.wait), (0.5, [Some(5000.0), None]));
        assert_eq!(load.mean_wait(), 5000.0);
    }

    #[test]
    fn times_that_are_counted_from_zero_again_go_on_and_those_of_another_disk_do_not() {
        let mut meter = DiskMeter::default();
        meter.read(Micros::secs(1), &stat(1_000, (1 << 32) - 500), SHORTEST);
        let MeterReading::Period(load) = meter.read(Micros::secs(2), &stat(1_100, 1_500), SHORTEST) else {
            panic!("no period")
        };
        assert_eq!((load.queue, load.wait), (2.0, [Some(20_000.0), None]));
        let MeterReading::Period(load) = meter.read(Micros::secs(3), &stat(50, 100), SHORTEST) else {
            panic!("no period")
        };
        assert_eq!((load.queue, load.flow.0[2]), (0.0, 0.0));
    }

    #[test]
    fn pauses_short_periods_and_clocks_that_go_backwards_are_no_periods() {
        let check = |at: Micros, expect: MeterReading| {
            let mut meter = DiskMeter::default();
            meter.read(Micros::secs(20), &stat(10, 10), SHORTEST);
            assert_eq!(meter.read(at, &stat(20, 20), SHORTEST), expect, "{at}");
        };
        check(Micros::secs(20), MeterReading::TooShort);
        check(Micros::millis(20_049), MeterReading::TooShort);
        check(Micros::secs(31), MeterReading::Restarted);
        check(Micros::secs(19), MeterReading::Restarted);
    }

    #[test]
    fn a_disk_that_completes_nothing_has_what_is_under_way() {
        let under_way = |before, now| {
            let mut meter = DiskMeter::default();
            meter.read(Micros::secs(1), &DiskStat { in_flight: before, ..stat(9, 9) }, SHORTEST);
            let MeterReading::Period(load) =
                meter.read(Micros::secs(2), &DiskStat { in_flight: now, ..stat(9, 9) }, SHORTEST)
            else {
                panic!("no period")
            };
            (load.queue, load.busy)
        };
        assert_eq!(under_way(4, 6), (4.0, 1.0));
        assert_eq!(under_way(0, 6), (0.0, 0.0), "they may have come just now");
        assert_eq!(under_way(4, 0), (0.0, 0.0));
    }

    #[test]
    fn what_is_counted_in_a_short_period_counts_for_the_next() {
        let mut meter = DiskMeter::default();
        meter.read(Micros::secs(1), &stat(0, 0), SHORTEST);
        meter.read(Micros::millis(1010), &stat(50, 0), SHORTEST);
        let MeterReading::Period(load) = meter.read(Micros::secs(2), &stat(100, 0), SHORTEST) else {
            panic!("no period")
        };
        assert_eq!(load.flow.0[2], 100.0);
    }
}
