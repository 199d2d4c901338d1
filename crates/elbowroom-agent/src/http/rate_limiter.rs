//! How many requests a second are taken, however many clients wait.
//!
//! The generic cell rate algorithm (ITU-T I.371): turns are `EMISSION_INTERVAL` apart, and turns that were not taken are kept, up to
//! `BURST`. Who comes too soon waits in the order of coming. That bounds the CPU time that strangers can make this process use; those who
//! are not yet taken in wait in the kernel's queue, and who fills that waits too.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Time between two turns: 250 a second.
const EMISSION_INTERVAL: Duration = Duration::from_millis(4);
/// Turns that are kept for a crowd that comes at once, such as a page with all it loads, or many clients after a restart.
const BURST: u32 = 256;

/// The pace of one door.
#[derive(Debug)]
pub(super) struct RateLimiter {
    /// When the next turn is due, were there none kept.
    theoretical_arrival: Mutex<Option<Instant>>,
}

impl RateLimiter {
    pub(super) const fn new() -> Self {
        Self { theoretical_arrival: Mutex::new(None) }
    }

    /// Waits for one's turn.
    pub(super) async fn acquire(&self) {
        tokio::time::sleep_until(self.reserve(Instant::now())).await;
    }

    /// Takes the next turn; when it is.
    fn reserve(&self, now: Instant) -> Instant {
        let mut due = self.theoretical_arrival.lock().unwrap_or_else(PoisonError::into_inner);
        let full = now.checked_sub(EMISSION_INTERVAL * BURST).unwrap_or(now);
        let turn = due.unwrap_or(full).max(full);
        *due = Some(turn + EMISSION_INTERVAL);
        turn.max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_goes_at_once_and_then_one_by_one() {
        let (pace, now) = (RateLimiter::new(), Instant::now() + EMISSION_INTERVAL * 1_000);
        for n in 0..=BURST {
            assert_eq!(pace.reserve(now), now, "{n}");
        }
        assert_eq!(pace.reserve(now), now + EMISSION_INTERVAL);
        assert_eq!(pace.reserve(now), now + EMISSION_INTERVAL * 2);
        // What was not taken meanwhile is there again, and no more than that.
        let later = now + EMISSION_INTERVAL * (3 + 10);
        let at_once = (0..20).filter(|_| pace.reserve(later) == later).count();
        assert_eq!(at_once, 11);
        let much_later = later + EMISSION_INTERVAL * 100_000;
        let at_once = (0..1_000).filter(|_| pace.reserve(much_later) == much_later).count();
        assert_eq!(at_once, BURST as usize + 1);
    }

    #[test]
    fn whoever_comes_in_time_never_waits() {
        let (pace, now) = (RateLimiter::new(), Instant::now());
        for n in 0..10_000 {
            let at = now + EMISSION_INTERVAL * n;
            assert_eq!(pace.reserve(at), at);
        }
    }
}
