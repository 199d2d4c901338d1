//! PSI triggers (`Documentation/accounting/psi.rst`, "Monitoring for pressure thresholds"): what a program writes to a pressure file to
//! be told when tasks waited for too long, and when it is told.
//!
//! Text is read as the kernel reads it, and stall time is compared as the kernel does (kernel/sched/psi.c `psi_trigger_create`,
//! `window_update`, `update_triggers`), but for one thing: windows that are no multiple of two seconds are taken from every process. The
//! kernel keeps those to `CAP_SYS_RESOURCE`, for each needs a real-time thread of its; here none does.

use crate::psi::Pressure;
use crate::unit::Micros;

/// Bytes of a write that count, the last of which is taken for the end: `char buf[32]` of `psi_write`.
const TEXT: usize = 32;
/// The shortest window that kernels before Linux 6.4 take (`WINDOW_MIN_US`): stall time is not measured more finely than for that.
const SHORTEST_WINDOW: Micros = Micros::millis(500);
/// The longest window (`WINDOW_MAX_US`).
const LONGEST_WINDOW: Micros = Micros::secs(10);

/// What a program waits for: `threshold` of stall time within `window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PsiTrigger {
    /// Time in which every task waited, and not only some.
    pub full: bool,
    /// The stall time after which it is told.
    pub threshold: Micros,
    /// The time within which that stall time counts.
    pub window: Micros,
}

impl PsiTrigger {
    /// Reads what was written to a pressure file, as `sscanf(buf, "some %u %u")` does in the kernel; `None` is its `EINVAL`.
    pub fn parse(written: &[u8]) -> Option<Self> {
        let text = &written[..written.len().min(TEXT)].split_last()?.1;
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        let (full, rest) = match text[..end].split_at_checked(4)? {
            (b"some", rest) => (false, rest),
            (b"full", rest) => (true, rest),
            _ => return None,
        };
        let (threshold, rest) = number(rest)?;
        let (window, _) = number(rest)?;
        Self::new(full, Micros(threshold.into()), Micros(window.into()))
    }

    /// A trigger, where its numbers are possible ones.
    pub fn new(full: bool, threshold: Micros, window: Micros) -> Option<Self> {
        let is_possible =
            (SHORTEST_WINDOW..=LONGEST_WINDOW).contains(&window) && (Micros(1)..=window).contains(&threshold);
        is_possible.then_some(Self { full, threshold, window })
    }

    /// The stall time that it is about.
    pub fn stalled(&self, pressure: &Pressure) -> Micros {
        if self.full { pressure.full.total } else { pressure.some.total }
    }
}

/// `%u`: blanks, then digits, of which a number too large for 32 bits keeps its low ones (lib/vsprintf.c `vsscanf`).
fn number(text: &[u8]) -> Option<(u32, &[u8])> {
    // lib/ctype.c counts the no-break space of Latin-1 as a blank.
    let is_blank = |byte: &u8| matches!(byte, b'\t'..=b'\r' | b' ' | 0xa0);
    let text = &text[text.iter().take_while(|byte| is_blank(byte)).count()..];
    let (digits, rest) = text.split_at(text.iter().take_while(|byte| byte.is_ascii_digit()).count());
    let add = |number: u64, digit: &u8| number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
    (!digits.is_empty()).then(|| (digits.iter().fold(0, add) as u32, rest))
}

/// How much a trigger has seen: the kernel's `struct psi_window`, and when it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallWindow {
    began: Micros,
    stalled_at_begin: Micros,
    /// Growth in the window before, of which the part counts that the present one has not replaced yet.
    before: Micros,
    last_stalled: Micros,
    /// The threshold was reached, and no process was told.
    is_pending: bool,
    told: Option<Micros>,
}

impl StallWindow {
    /// Begins to watch at `now`, where the tasks have waited for `stalled` so far.
    pub fn new(now: Micros, stalled: Micros) -> Self {
        let (before, last_stalled) = (Micros::ZERO, stalled);
        Self { began: now, stalled_at_begin: stalled, before, last_stalled, is_pending: false, told: None }
    }

    /// Takes a measurement; whether the program is to be told. `now` and `stalled` only ever grow.
    pub fn update(&mut self, trigger: &PsiTrigger, now: Micros, stalled: Micros) -> bool {
        // Without new stall time the growth is taken too, so that a window does not begin long before it.
        let growth = self.growth(trigger.window, now, stalled);
        let is_new = std::mem::replace(&mut self.last_stalled, stalled) != stalled;
        self.is_pending |= is_new && growth >= trigger.threshold;
        self.is_due(trigger, now)
    }

    /// Whether the program is to be told now of what was measured before: at most once in each window.
    pub fn is_due(&mut self, trigger: &PsiTrigger, now: Micros) -> bool {
        let is_early = self.told.is_some_and(|told| now < told.saturating_add(trigger.window));
        if !self.is_pending || is_early {
            return false;
        }
        (self.told, self.is_pending) = (Some(now), false);
        true
    }

    /// Stall time of the last `window`, with the part of the window before taken for even.
    fn growth(&mut self, window: Micros, now: Micros, stalled: Micros) -> Micros {
        let elapsed = now.saturating_sub(self.began);
        let growth = stalled.saturating_sub(self.stalled_at_begin);
        if elapsed > window {
            // The kernel measures ten times in a window. A measurement that comes later than that counts for its own time.
            let is_late = elapsed.get() > window.get() + window.get() / 10;
            let growth = if is_late { scale(growth, window, elapsed) } else { growth };
            (self.began, self.stalled_at_begin, self.before) = (now, stalled, growth);
            return growth;
        }
        growth.saturating_add(scale(self.before, window.saturating_sub(elapsed), window))
    }
}

/// `time * part / whole`.
fn scale(time: Micros, part: Micros, whole: Micros) -> Micros {
    let scaled = u128::from(time.get()) * u128::from(part.get()) / u128::from(whole.get().max(1));
    Micros(u64::try_from(scaled).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::psi::Stall;
    use proptest::prelude::*;

    fn trigger(full: bool, threshold: u64, window: u64) -> PsiTrigger {
        PsiTrigger { full, threshold: Micros(threshold), window: Micros(window) }
    }

    #[test]
    fn text_is_read_as_the_kernel_reads_it() {
        let some = Some(trigger(false, 100_000, 2_000_000));
        for (text, expect) in [
            ("some 100000 2000000\n", some),
            ("some 100000 2000000\0", some),
            ("some100000\t\t2000000 \n", some),
            ("some 100000 2000000 and more\n", some),
            ("full 500000 500000\n", Some(trigger(true, 500_000, 500_000))),
            // 2^32 more than the first.
            ("some 4295067296 2000000\n", some),
            ("some 1 10000000\n", Some(trigger(false, 1, 10_000_000))),
            // Its last character is taken for the end.
            ("some 100000 2000000", None),
            // As is the thirty-second.
            ("some      100000         2000000\n", None),
            ("some 0 2000000\n", None),
            ("some 2000001 2000000\n", None),
            ("some 100000 499999\n", None),
            ("some 100000 10000001\n", None),
            ("some 100000\n", None),
            ("some -1 2000000\n", None),
            ("some +1 2000000\n", None),
            (" some 100000 2000000\n", None),
            ("Some 100000 2000000\n", None),
            ("some\0 100000 2000000\n", None),
            ("most 100000 2000000\n", None),
            ("som", None),
            ("\n", None),
            ("", None),
        ] {
            assert_eq!(PsiTrigger::parse(text.as_bytes()), expect, "{text:?}");
        }
    }

    /// The stall time of a program whose tasks wait for `share` of a thousand of the time, measured each 100 ms: when it is told.
    fn told(trigger: PsiTrigger, share: impl Fn(u64) -> u64, millis: u64) -> Vec<u64> {
        let mut window = StallWindow::new(Micros::ZERO, Micros::ZERO);
        let mut stalled = 0;
        let steps = (100..=millis).step_by(100);
        let is_told = steps.filter(|at| {
            stalled += share(*at) * 100;
            window.update(&trigger, Micros::millis(*at), Micros(stalled))
        });
        is_told.collect()
    }

    #[test]
    fn a_program_is_told_once_a_window_while_tasks_wait_and_not_before() {
        let tenth = trigger(false, 100_000, 1_000_000);
        assert!(told(tenth, |_| 0, 10_000).is_empty());
        assert!(told(tenth, |_| 90, 10_000).is_empty());
        assert_eq!(told(tenth, |_| 200, 3_000), [500, 1_500, 2_500]);
        // What came within the window in which it was told comes after it, once.
        assert_eq!(told(tenth, |at| if at <= 600 { 1_000 } else { 0 }, 5_000), [100, 1_100]);
        // Half of it at the end of one window and half at the beginning of the next are enough.
        assert_eq!(told(tenth, |at| if (950..=1_150).contains(&at) { 500 } else { 0 }, 5_000), [1_100]);
    }

    #[test]
    fn a_measurement_that_comes_late_counts_for_its_own_time() {
        let trigger = trigger(false, 100_000, 500_000);
        let mut window = StallWindow::new(Micros::ZERO, Micros::ZERO);
        assert!(!window.update(&trigger, Micros::secs(2), Micros(300_000)), "75 ms in 500");
        assert!(window.update(&trigger, Micros::secs(4), Micros(800_000)));
    }

    #[test]
    fn each_line_has_its_own_stall_time() {
        let stall = |total| Stall { total: Micros(total), ..Stall::EMPTY };
        let pressure = Pressure { some: stall(1), full: stall(2) };
        let [some, full] = [false, true].map(|full| trigger(full, 1, 500_000).stalled(&pressure));
        assert_eq!((some, full), (Micros(1), Micros(2)));
    }

    proptest! {
        /// The kernel's conditions on numbers that `%u` reads, and no text panics.
        #[test]
        fn numbers_have_the_kernels_verdict(full: bool, threshold in 0u32..12_000_000, window in 0u32..12_000_000) {
            let line = if full { "full" } else { "some" };
            let parsed = PsiTrigger::parse(format!("{line} {threshold} {window}\n").as_bytes());
            let taken = (500_000..=10_000_000).contains(&window) && threshold > 0 && threshold <= window;
            prop_assert_eq!(parsed.is_some(), taken);
            let expect = trigger(full, threshold.into(), window.into());
            prop_assert!(parsed.is_none_or(|parsed| parsed == expect));
        }

        #[test]
        fn no_text_panics(text: Vec<u8>) {
            let _ = PsiTrigger::parse(&text);
        }

        /// Between two events is a window, and after the last there was enough stall time to be told of.
        #[test]
        fn events_are_a_window_apart(
            threshold in 1u64..=500_000,
            steps in proptest::collection::vec((1u64..400_000, 0u64..1_000), 1..200),
        ) {
            let trigger = trigger(false, threshold, 500_000);
            let mut window = StallWindow::new(Micros::ZERO, Micros::ZERO);
            let (mut now, mut stalled, mut last) = (0, 0, None);
            for (elapsed, share) in steps {
                now += elapsed;
                stalled += elapsed * share / 1_000;
                if window.update(&trigger, Micros(now), Micros(stalled)) {
                    prop_assert!(stalled >= threshold);
                    prop_assert!(last.is_none_or(|last| now - last >= 500_000));
                    last = Some(now);
                }
            }
        }
    }
}
