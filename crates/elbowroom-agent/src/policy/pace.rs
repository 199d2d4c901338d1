//! How often the policy loop looks: as seldom as makes no difference.
//!
//! | what happens | time between two ticks | why |
//! |---|---|---|
//! | no container is there, and no limit is in force | [`EMPTY_PERIOD`] | the kernel tells of a new one at once |
//! | containers hardly work | a whole CPU period (40 ms or the next tick after it) | views of CPUs are decided once in each, however many
//! ticks it has |
//! | nor does anything beside them, and none is read | [`QUIET_PERIOD`], with a peek in each CPU period | the peek says when that ends |
//! | they work, or one came, changed or went lately | `sense.period` | views of memory grow by a step in each tick |

use elbowroom_types::sample::Tick;
use elbowroom_types::unit::Micros;

/// Time between two ticks where no container is: only the node's own numbers are left.
pub(super) const EMPTY_PERIOD: Micros = Micros::secs(5);
/// Containers work that use this part of one CPU together: one in so many.
const WORKING_SHARE: u64 = 50;
/// Time between two ticks while peeks see no work and no reader. Memory that others take or give back is followed this late.
const QUIET_PERIOD: Micros = Micros::millis(500);
/// So long after something happened, more may happen.
const AWAKE_FOR: Micros = Micros::secs(1);

/// What happened lately.
#[derive(Debug, Default)]
pub(super) struct Pace {
    last_tick: Micros,
    awake_until: Micros,
    /// Until when every tick counts for programs that read the numbers again and again.
    watched_until: Micros,
    /// When was peeked last, the CPU time that all groups had used by then, and the reads of views.
    peeked: (Micros, Micros, u64),
    quiet_tick: Option<Tick>,
}

/// What is seen without a tick.
#[derive(Debug)]
pub(super) struct Peek {
    /// The CPU time that all groups have used.
    pub(super) used: Micros,
    /// How often views were read.
    pub(super) reads: u64,
    /// The tick that it is if nothing happened.
    pub(super) tick: Tick,
}

impl Pace {
    /// A container came, changed or went.
    pub(super) fn wake(&mut self, now: Micros) {
        self.awake_until = now.saturating_add(AWAKE_FOR);
    }

    /// A tick, and the CPU time that all containers used since the one before.
    pub(super) fn tick(&mut self, now: Micros, used: Micros) {
        let elapsed = now.saturating_sub(std::mem::replace(&mut self.last_tick, now));
        if is_work(used, elapsed) {
            self.wake(now);
        }
    }

    /// Programs read the numbers of a container again and again.
    pub(super) fn note_readers(&mut self, until: Micros) {
        self.watched_until = self.watched_until.max(until);
    }

    /// Whether a peek may stand for a tick `now`, if it sees no work; `period` is that of ticks, which is `least` where each counts.
    pub(super) fn may_peek(&self, now: Micros, period: Micros, least: Micros) -> bool {
        let due = self.last_tick.saturating_add(QUIET_PERIOD);
        !self.is_awake() && now >= self.watched_until && period > least && now.saturating_add(period) <= due
    }

    /// Takes a peek. Whether groups hardly worked, and no view was read, since the one before.
    pub(super) fn peek(&mut self, Peek { used, reads, tick }: Peek) -> bool {
        let (at, used_before, reads_before) = std::mem::replace(&mut self.peeked, (tick.now, used, reads));
        let works =
            used < used_before || is_work(used.saturating_sub(used_before), tick.now.saturating_sub(at));
        let is_quiet = !works && reads == reads_before;
        if is_quiet {
            self.quiet_tick = Some(tick);
        }
        is_quiet
    }

    /// The tick that the last quiet peek stood for: what is measured now is not of the time before it.
    pub(super) fn take_quiet_tick(&mut self) -> Option<Tick> {
        let tick = self.quiet_tick.take().filter(|tick| tick.now > self.last_tick)?;
        self.last_tick = tick.now;
        Some(tick)
    }

    /// Whether containers work, or something happened lately.
    pub(super) fn is_awake(&self) -> bool {
        self.last_tick < self.awake_until
    }

    /// Time until the next tick; `least` is that of the configuration, and views of CPUs are decided once in `cpu_period`, or with the
    /// first tick after it.
    pub(super) fn period(&self, least: Micros, cpu_period: Micros, is_empty: bool) -> Micros {
        let ticks = cpu_period.get().div_ceil(least.get().max(1)).max(1);
        match self.is_awake() {
            true => least,
            false if is_empty => least.max(EMPTY_PERIOD),
            false => Micros(least.get().saturating_mul(ticks)),
        }
    }
}

/// Whether that much CPU time in so long is work.
fn is_work(used: Micros, elapsed: Micros) -> bool {
    used.get().saturating_mul(WORKING_SHARE) >= elapsed.get().max(1)
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

    #[test]
    fn a_peek_stands_for_a_tick_while_nothing_works_and_none_reads() {
        let pace = after(Micros::ZERO);
        let (at, period) = (Micros::millis(48 * 42), Micros::millis(48));
        let later = |ms| at.saturating_add(Micros::millis(ms));
        assert!(pace.may_peek(later(48), period, LEAST) && pace.may_peek(later(432), period, LEAST));
        assert!(!pace.may_peek(later(480), period, LEAST), "or the next one would be late");
        assert!(!pace.may_peek(later(48), LEAST, LEAST), "the paper decides in every tick");
        assert!(!after(Micros(960)).may_peek(later(48), period, LEAST), "they work");
        let mut pace = pace;
        pace.note_readers(later(100));
        assert!(!pace.may_peek(later(48), period, LEAST) && pace.may_peek(later(144), period, LEAST));
    }

    #[test]
    fn a_peek_sees_work_and_readers_beside_the_last_one() {
        let mut pace = Pace::default();
        pace.tick(Micros::millis(1), Micros::ZERO);
        let peek = |pace: &mut Pace, ms, used, reads| {
            let tick = Tick { now: Micros::millis(ms), ..Tick::default() };
            pace.peek(Peek { used: Micros(used), reads, tick })
        };
        assert!(!peek(&mut pace, 48, 5_000_000, 0), "the first says nothing");
        assert!(peek(&mut pace, 96, 5_000_900, 0));
        assert!(!peek(&mut pace, 144, 5_001_860, 0), "a fiftieth");
        assert!(!peek(&mut pace, 144, 5_000_000, 0), "a group went");
        assert!(!peek(&mut pace, 144, 5_000_000, 1), "a read");
        assert_eq!(
            pace.take_quiet_tick().map(|tick| tick.now),
            Some(Micros::millis(96)),
            "the last quiet one"
        );
        pace.tick(Micros::millis(144), Micros::millis(1));
        assert!(pace.is_awake(), "that was used in 48 ms, not in 143");
        assert!(pace.take_quiet_tick().is_none());
    }
}
