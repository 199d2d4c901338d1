//! How often the policy loop looks: as seldom as makes no difference.
//!
//! | what happens | time between two ticks | why |
//! |---|---|---|
//! | no container is there | [`EMPTY_PERIOD`] | the kernel tells of a new one at once |
//! | containers hardly work | a whole CPU period (40 ms or the next tick after it) | views of CPUs are decided once in each, however many
//! ticks it has |
//! | they work, or one came, changed or went lately | `sense.period` | views of memory grow by a step in each tick |

use elbowroom_types::unit::Micros;

/// Time between two ticks where no container is: only the node's own numbers and the guard of limits are left, which are due every second.
const EMPTY_PERIOD: Micros = Micros::secs(1);
/// Containers work that use this part of one CPU together: one in so many.
const WORKING_SHARE: u64 = 50;
/// So long after something happened, more may happen.
const AWAKE_FOR: Micros = Micros::secs(1);

/// What happened lately.
#[derive(Debug, Default)]
pub(super) struct Pace {
    last_tick: Micros,
    awake_until: Micros,
}

impl Pace {
    /// A container came, changed or went.
    pub(super) fn wake(&mut self, now: Micros) {
        self.awake_until = now.saturating_add(AWAKE_FOR);
    }

    /// A tick, and the CPU time that all containers used since the one before.
    pub(super) fn tick(&mut self, now: Micros, used: Micros) {
        let elapsed = now.saturating_sub(std::mem::replace(&mut self.last_tick, now));
        if used.get().saturating_mul(WORKING_SHARE) >= elapsed.get().max(1) {
            self.wake(now);
        }
    }

    /// Time until the next tick; `least` is that of the configuration, and views of CPUs are decided once in `cpu_period`, or with the
    /// first tick after it.
    pub(super) fn period(&self, least: Micros, cpu_period: Micros, is_empty: bool) -> Micros {
        let ticks = cpu_period.get().div_ceil(least.get().max(1)).max(1);
        match self.last_tick < self.awake_until {
            true => least,
            false if is_empty => least.max(EMPTY_PERIOD),
            false => Micros(least.get().saturating_mul(ticks)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Micros = Micros::millis(24);
    const CPU_PERIOD: Micros = Micros::millis(40);

    /// Ticks of 48 ms for two seconds, in each of which containers use so much.
    fn after(used: Micros) -> Pace {
        let mut pace = Pace::default();
        (1..=42).for_each(|n| pace.tick(Micros::millis(48 * n), used));
        pace
    }

    #[test]
    fn containers_that_hardly_work_are_looked_at_once_in_a_cpu_period() {
        assert_eq!(after(Micros::ZERO).period(LEAST, CPU_PERIOD, false), Micros::millis(48));
        assert_eq!(after(Micros(900)).period(LEAST, CPU_PERIOD, false), Micros::millis(48));
        assert_eq!(after(Micros(960)).period(LEAST, CPU_PERIOD, false), LEAST, "a fiftieth");
    }

    #[test]
    fn what_happens_is_followed_from_the_next_tick_on_and_for_a_second() {
        let mut pace = after(Micros::ZERO);
        let at = Micros::millis(2_064);
        pace.tick(at, Micros::millis(30));
        assert_eq!(pace.period(LEAST, CPU_PERIOD, false), LEAST);
        pace.tick(at.saturating_add(Micros::millis(990)), Micros::ZERO);
        assert_eq!(pace.period(LEAST, CPU_PERIOD, false), LEAST);
        pace.tick(at.saturating_add(Micros::millis(1_000)), Micros::ZERO);
        assert_eq!(pace.period(LEAST, CPU_PERIOD, false), Micros::millis(48));
        pace.wake(at.saturating_add(Micros::millis(1_001)));
        assert_eq!(pace.period(LEAST, CPU_PERIOD, false), LEAST, "a container came");
    }

    #[test]
    fn the_last_one_to_go_is_followed_for_a_second_too() {
        let mut pace = after(Micros::ZERO);
        assert_eq!(pace.period(LEAST, CPU_PERIOD, true), EMPTY_PERIOD);
        pace.wake(Micros::millis(2_017));
        assert_eq!(
            pace.period(LEAST, CPU_PERIOD, true),
            LEAST,
            "or containers that last for less than a tick would keep all away"
        );
    }

    #[test]
    fn a_period_that_is_long_already_stays_and_so_does_that_of_the_paper() {
        let idle = after(Micros::ZERO);
        assert_eq!(idle.period(Micros::millis(500), CPU_PERIOD, false), Micros::millis(500));
        assert_eq!(idle.period(LEAST, Micros::ZERO, false), LEAST, "which decides in every tick");
        assert_eq!(idle.period(Micros::millis(10), CPU_PERIOD, false), CPU_PERIOD);
    }
}
