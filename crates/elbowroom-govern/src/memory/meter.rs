//! What a container's memory did lately: counters become periods and windows.

use super::tuning::TUNING;
use super::{MemoryPressure, to_bytes, to_f64};
use elbowroom_types::memory::GroupMemory;
use elbowroom_types::unit::{Bytes, Micros};
use std::collections::VecDeque;

/// Periods that are remembered: a minute of them.
const WINDOW: usize = 60;
/// The short window: long enough for one burst to be no trend.
const SHORT_WINDOW: usize = 10;
/// A container's counters and what follows from them.
#[derive(Debug, Default)]
pub(super) struct MemoryMeter {
    now: Micros,
    last: GroupMemory,
    periods: VecDeque<MemoryPeriod>,
    has_sample: bool,
}

/// What happened between two measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct MemoryPeriod {
    seconds: f64,
    /// The part of it in which a task waited for memory: for memory itself, or for reading back what had been reclaimed.
    stall: Option<f64>,
    /// The parts of it in which at least one task waited for memory, and for I/O, as the kernel counts them.
    some: Option<(f64, f64)>,
    /// The seconds of it in which a task ran or waited for memory, I/O or a CPU, at most: where several did at once, each counts.
    busy: Option<f64>,
    /// What came back after it was reclaimed.
    pub(super) refault: Bytes,
    /// The kernel found nothing to reclaim for it, or killed in it.
    pub(super) oom: bool,
    usage: Bytes,
}

impl MemoryMeter {
    /// Takes a measurement in; whether it ended a period.
    pub(super) fn measure(&mut self, now: Micros, sample: &GroupMemory) -> bool {
        let elapsed = now.saturating_sub(self.now);
        if self.has_sample && now > self.now && elapsed < TUNING.min_period {
            return false;
        }
        if self.has_sample && (TUNING.min_period..=TUNING.patience).contains(&elapsed) {
            if self.periods.len() == WINDOW {
                self.periods.pop_front();
            }
            self.periods.push_back(MemoryPeriod::between(&self.last, sample, elapsed));
        } else if self.has_sample {
            self.periods.clear();
        }
        (self.now, self.last, self.has_sample) = (now, *sample, true);
        self.periods.back().is_some()
    }

    /// The last measurement.
    pub(super) fn last(&self) -> &GroupMemory {
        &self.last
    }

    /// The last period; nothing happened before the first.
    pub(super) fn period(&self) -> MemoryPeriod {
        self.periods.back().copied().unwrap_or_default()
    }

    /// Mean stall of the last ten periods; `None` where the kernel does not count it.
    pub(super) fn stall(&self) -> Option<f64> {
        mean(self.recent(SHORT_WINDOW).filter_map(|period| Some((period.stall?, period.seconds))))
    }

    /// The same of the last minute.
    pub(super) fn stall_minute(&self) -> Option<f64> {
        mean(self.recent(WINDOW).filter_map(|period| Some((period.stall?, period.seconds))))
    }

    /// The stall of the last period alone.
    pub(super) fn last_stall(&self) -> Option<f64> {
        self.period().stall
    }

    /// Whether there was nothing to do for a noticeable part of the last periods: then all that is asked of it is done. `false` where the
    /// kernel does not tell.
    pub(super) fn has_idle_time(&self) -> bool {
        // Totals of pressure files are brought up to date every two seconds (kernel/sched/psi.c, `PSI_FREQ`).
        let periods = || self.recent(usize::from(TUNING.green_dwell));
        let busy: Option<f64> = periods().map(|period| period.busy).sum();
        let seconds: f64 = periods().map(|period| period.seconds).sum();
        busy.is_some_and(|busy| busy < (1.0 - TUNING.idle) * seconds)
    }

    /// What the last period cost, and kills so far.
    pub(super) fn pressure(&self) -> MemoryPressure {
        let period = self.period();
        let (memory_some, io_some) = period.some.unzip();
        let per_second = period.refault.get() as f64 / period.seconds.max(1e-3);
        MemoryPressure { memory_some, io_some, refault: to_bytes(per_second), oom_kill: self.last.oom_kill }
    }

    /// Refaults per period over the last ten, as bytes.
    pub(super) fn refault_mean(&self) -> f64 {
        mean(self.recent(SHORT_WINDOW).map(|period| (period.refault.get() as f64, 1.0))).unwrap_or(0.0)
    }

    /// What came back after reclaim in a second, over the last ten periods.
    pub(super) fn refault_rate(&self) -> f64 {
        let seconds: f64 = self.recent(SHORT_WINDOW).map(|period| period.seconds).sum();
        to_f64(self.refault()) / seconds.max(1e-3)
    }

    /// What came back after reclaim over the last ten periods.
    pub(super) fn refault(&self) -> Bytes {
        self.recent(SHORT_WINDOW).map(|period| period.refault).sum()
    }

    /// Whether it uses noticeably more than ten periods ago.
    pub(super) fn is_growing(&self) -> bool {
        let before = self.recent(SHORT_WINDOW).last().map_or(self.last.usage, |period| period.usage);
        to_f64(self.last.usage.saturating_sub(before)) > TUNING.noise * to_f64(self.last.usage)
    }

    /// Whether it has been watched for ten periods.
    pub(super) fn is_settled(&self) -> bool {
        self.periods.len() >= SHORT_WINDOW
    }

    fn recent(&self, n: usize) -> impl Iterator<Item = &MemoryPeriod> {
        self.periods.iter().rev().take(n)
    }
}

impl MemoryPeriod {
    fn between(before: &GroupMemory, after: &GroupMemory, elapsed: Micros) -> Self {
        let grown = |of: fn(&GroupMemory) -> Bytes| of(after).saturating_sub(of(before));
        let seconds = elapsed.get() as f64 / 1e6;
        let seconds_of = |after: Micros, before: Micros| after.saturating_sub(before).get() as f64 / 1e6;
        let part = |after, before| (seconds_of(after, before) / seconds).clamp(0.0, 1.0);
        let refault = grown(|m| m.refault_file).saturating_add(grown(|m| m.refault_anon));
        let stalls = after.stalls.zip(before.stalls);
        // Of the time spent waiting for disks, only the part that reclaim caused is for memory. For example, a scan of 160
        // MB in a container of 64 MB shows 18 ms of memory stalls and 345 ms of I/O stalls (cgroup v1, Linux 6.18).
        let read = grown(|m| m.rbytes).get().max(refault.get()).max(1) as f64;
        let stall = stalls.map(|(after, before)| {
            let io = part(after.io_some, before.io_some);
            (part(after.memory_some, before.memory_some) + refault.get() as f64 / read * io).min(1.0)
        });
        let busy = stalls.zip(after.cpu.zip(before.cpu)).map(|((after, before), (cpu, cpu_before))| {
            let memory = seconds_of(after.memory_some, before.memory_some);
            // What waits for memory that is read back waits for I/O too.
            memory.max(seconds_of(after.io_some, before.io_some))
                + seconds_of(after.cpu_some, before.cpu_some)
                + seconds_of(cpu, cpu_before)
        });
        Self {
            seconds,
            busy,
            stall,
            some: stalls.map(|(after, before)| {
                (part(after.memory_some, before.memory_some), part(after.io_some, before.io_some))
            }),
            refault,
            oom: after.oom > before.oom || after.oom_kill > before.oom_kill,
            usage: before.usage,
        }
    }
}

fn mean(weighted: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let (sum, of) = weighted.fold((0.0, 0.0), |(sum, of), (x, w)| (sum + x * w, of + w));
    (of > 0.0).then(|| sum / of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::memory::StallTotals;

    fn sample(memory_ms: u64, io_ms: u64, refault_mib: u64, read_mib: u64) -> GroupMemory {
        let stalls = StallTotals {
            memory_some: Micros::millis(memory_ms),
            io_some: Micros::millis(io_ms),
            ..StallTotals::default()
        };
        GroupMemory {
            stalls: Some(stalls),
            refault_file: Bytes::mib(refault_mib),
            rbytes: Bytes::mib(read_mib),
            ..GroupMemory::default()
        }
    }

    #[test]
    fn waiting_for_a_disk_is_waiting_for_memory_as_far_as_reclaim_caused_it() {
        let check = |sample, expect: f64| {
            let mut meter = MemoryMeter::default();
            meter.measure(
                Micros::secs(1),
                &GroupMemory { stalls: Some(StallTotals::default()), ..GroupMemory::default() },
            );
            meter.measure(Micros::secs(2), &sample);
            let stall = meter.stall().unwrap();
            assert!((stall - expect).abs() < 1e-9, "{stall} {sample:?}");
        };
        check(sample(18, 345, 160, 160), 0.363);
        check(sample(18, 345, 0, 160), 0.018);
        check(sample(0, 400, 40, 160), 0.1);
        check(sample(900, 900, 160, 160), 1.0);
    }

    #[test]
    fn one_that_runs_or_waits_all_the_time_has_no_idle_time() {
        // What a second has of I/O stalls, CPU stalls and CPU time, in milliseconds: a database at a quarter of its load and one that is
        // asked for more than it can do, both reading from the disk (cgroup v1, Linux 6.18, two CPUs that others use too).
        let has_idle_time = |io_some, cpu_some, cpu: Option<u64>| {
            let mut meter = MemoryMeter::default();
            for s in 1..=4 {
                let total = |ms: u64| Micros::millis(s * ms);
                let (io_some, cpu_some) = (total(io_some), total(cpu_some));
                let stalls = Some(StallTotals { io_some, cpu_some, ..StallTotals::default() });
                meter.measure(
                    Micros::secs(s),
                    &GroupMemory { stalls, cpu: cpu.map(total), ..GroupMemory::default() },
                );
            }
            meter.has_idle_time()
        };
        assert!(has_idle_time(170, 260, Some(160)));
        assert!(!has_idle_time(720, 330, Some(230)));
        assert!(!has_idle_time(0, 0, Some(910)), "it computes");
        assert!(!has_idle_time(0, 600, Some(350)), "others keep it from computing");
        assert!(!has_idle_time(170, 260, None), "its CPU time is not known");
    }

    #[test]
    fn without_stalls_nothing_is_made_up() {
        let mut meter = MemoryMeter::default();
        for s in 1..5 {
            meter.measure(Micros::secs(s), &GroupMemory::default());
        }
        assert_eq!((meter.stall(), meter.stall_minute(), meter.refault()), (None, None, Bytes::ZERO));
    }

    #[test]
    fn a_pause_and_a_clock_that_goes_back_start_again() {
        let mut meter = MemoryMeter::default();
        for s in 1..20 {
            meter.measure(Micros::secs(s), &sample(0, 0, s, s));
        }
        assert!(meter.is_settled() && meter.refault() == Bytes::mib(10));
        meter.measure(Micros::secs(100), &sample(0, 0, 500, 500));
        assert!(!meter.is_settled() && meter.refault() == Bytes::ZERO);
        meter.measure(Micros::secs(101), &sample(0, 0, 501, 500));
        meter.measure(Micros::secs(50), &sample(0, 0, 900, 500));
        assert_eq!(meter.refault(), Bytes::ZERO);
    }
}
