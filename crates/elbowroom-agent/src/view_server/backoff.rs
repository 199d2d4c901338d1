//! The wait before a process is started again.

use std::time::{Duration, Instant};

/// How long to wait before starting a process again: not at all the first time, longer and longer (never more than
/// a second, because readers may be waiting) while it dies young.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    started: Option<Instant>,
}

impl Backoff {
    /// A process that lived this long is worth another immediate start.
    const MIN_UPTIME: Duration = Duration::from_millis(250);

    pub(crate) fn started(&mut self) {
        self.started = Some(Instant::now());
    }

    /// The wait before the next start.
    pub(crate) fn next_delay(&mut self) -> Duration {
        if self.started.take().is_some_and(|at| at.elapsed() >= Self::MIN_UPTIME) {
            self.failures = 0;
        }
        let wait = match self.failures {
            0 => Duration::ZERO,
            n => Duration::from_millis(10 << (n - 1).min(7)).min(Duration::from_secs(1)),
        };
        self.failures += 1;
        wait
    }
}
