//! Load averages of one container, by the kernel's own recurrence (`kernel/sched/loadavg.c`, `calc_load`): fixed point with
//! 11 bits, one sample every five seconds.

use elbowroom_types::unit::Micros;

const FIXED_1: u64 = 1 << 11;
/// `exp(-5s/1min)`, `exp(-5s/5min)`, `exp(-5s/15min)` in that fixed point.
const DECAY: [u64; 3] = [1884, 2014, 2037];
/// The kernel's `LOAD_FREQ`.
const LOAD_FREQ: Micros = Micros::secs(5);

/// The three averages and when they were last advanced.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ContainerLoadAvg {
    averages: [u64; 3],
    advanced: Option<Micros>,
}

impl ContainerLoadAvg {
    /// One that goes on from averages in hundredths.
    pub(super) fn resumed(hundredths: [u32; 3]) -> Self {
        Self { averages: hundredths.map(|h| u64::from(h) * FIXED_1 / 100), advanced: None }
    }

    /// Takes `runnable` (thousandths of a thread, running or waiting) as what held since the last call, up to `now`.
    pub(super) fn advance(&mut self, now: Micros, runnable_milli: u64) {
        let Some(last) = self.advanced else {
            self.advanced = Some(now);
            return;
        };
        let passed = now.saturating_sub(last).get() / LOAD_FREQ.get();
        // A container idle for days needs no more steps than it takes to forget everything.
        let steps = passed.min(1_000);
        let active = runnable_milli.saturating_mul(FIXED_1) / 1_000;
        for _ in 0..steps {
            for (average, decay) in self.averages.iter_mut().zip(DECAY) {
                let mut next = *average * decay + active * (FIXED_1 - decay);
                if active >= *average {
                    next += FIXED_1 - 1;
                }
                *average = next / FIXED_1;
            }
        }
        // The rest of an interval counts in the next one.
        self.advanced = Some(last.saturating_add(Micros(passed * LOAD_FREQ.get())));
    }

    /// Whether the next [`Self::advance`] will take a sample: counting threads costs, and is only worth it then.
    pub(super) fn is_due(&self, now: Micros) -> bool {
        self.advanced.is_none_or(|last| now.saturating_sub(last) >= LOAD_FREQ)
    }

    /// The averages in hundredths, as `/proc/loadavg` prints them.
    pub(super) fn hundredths(&self) -> [u32; 3] {
        self.averages.map(|a| u32::try_from((a + FIXED_1 / 200) * 100 / FIXED_1).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: u64, runnable_milli: u64) -> [u32; 3] {
        let mut load = ContainerLoadAvg::default();
        (0..=seconds).for_each(|s| load.advance(Micros::secs(s), runnable_milli));
        load.hundredths()
    }

    #[test]
    fn four_threads_for_long_make_a_load_of_four() {
        assert_eq!(after(7200, 4_000), [400, 400, 400]);
    }

    #[test]
    fn looks_at_odd_times_lose_nothing() {
        let mut load = ContainerLoadAvg::default();
        (0..=30).for_each(|n| load.advance(Micros::millis(2_050 * n), 1_000));
        assert_eq!(load.hundredths(), after(60, 1_000));
    }

    #[test]
    fn one_minute_of_one_thread_is_what_the_kernel_would_say() {
        // 1 - 1/e = 0.63, 1 - exp(-1/5) = 0.18, 1 - exp(-1/15) = 0.06
        let [one, five, fifteen] = after(60, 1_000);
        assert!((62..=65).contains(&one) && (17..=20).contains(&five) && (6..=8).contains(&fifteen));
    }

    #[test]
    fn what_is_resumed_is_what_was_said() {
        let said = [1, 63, 12_345];
        assert_eq!(ContainerLoadAvg::resumed(said).hundredths(), said);
    }

    #[test]
    fn idle_decays_to_nothing() {
        let mut load = ContainerLoadAvg::default();
        (0..600).for_each(|s| load.advance(Micros::secs(s), 8_000));
        load.advance(Micros::secs(100_000), 0);
        assert_eq!(load.hundredths(), [0, 0, 0]);
    }
}
