//! How many requests a second are taken, however many clients wait.
//!
//! The generic cell rate algorithm (ITU-T I.371): turns are `EMISSION_INTERVAL` apart, and turns that were not taken are kept, up to
//! `BURST`. Early requests wait in the order in which they came, and a client that leaves uses up no turn. That bounds the CPU time that
//! strangers can make this process use. Connections that are not accepted yet wait in the kernel's queue, also those of a client that
//! fills it.

use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Time between two turns: 250 a second.
const EMISSION_INTERVAL: Duration = Duration::from_millis(4);
/// Turns that are kept for a tasks that comes at once, such as a page with all it loads, or many clients after a restart.
const BURST: u32 = 256;

/// A pace.
#[derive(Debug, Default)]
pub(super) struct RateLimiter {
    /// When the next turn is due, were there none kept. The request that waits for it holds the lock; the others queue for the lock.
    theoretical_arrival: Mutex<Option<Instant>>,
}

impl RateLimiter {
    /// Waits for one's turn.
    pub(super) async fn acquire(&self) {
        let mut due = self.theoretical_arrival.lock().await;
        let turn = next_turn(*due, Instant::now());
        tokio::time::sleep_until(turn).await;
        *due = Some(turn + EMISSION_INTERVAL);
    }
}

/// The next turn; in the past where it was kept.
fn next_turn(due: Option<Instant>, now: Instant) -> Instant {
    let full = now.checked_sub(EMISSION_INTERVAL * BURST).unwrap_or(now);
    due.unwrap_or(full).max(full)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Turns, without waiting for them.
    #[derive(Default)]
    struct Turns(Option<Instant>);

    impl Turns {
        fn take(&mut self, now: Instant) -> Instant {
            let turn = next_turn(self.0, now);
            self.0 = Some(turn + EMISSION_INTERVAL);
            turn.max(now)
        }
    }

    #[test]
    fn a_crowd_goes_at_once_and_then_one_by_one() {
        let (mut turns, now) = (Turns::default(), Instant::now() + EMISSION_INTERVAL * 1_000);
        for n in 0..=BURST {
            assert_eq!(turns.take(now), now, "{n}");
        }
        assert_eq!(turns.take(now), now + EMISSION_INTERVAL);
        assert_eq!(turns.take(now), now + EMISSION_INTERVAL * 2);
        // Turns that were not taken meanwhile are there again, and no more than those.
        let later = now + EMISSION_INTERVAL * (3 + 10);
        let at_once = (0..20).filter(|_| turns.take(later) == later).count();
        assert_eq!(at_once, 11);
        let much_later = later + EMISSION_INTERVAL * 100_000;
        let at_once = (0..1_000).filter(|_| turns.take(much_later) == much_later).count();
        assert_eq!(at_once, BURST as usize + 1);
    }

    #[test]
    fn requests_within_the_rate_never_wait() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        for n in 0..10_000 {
            let at = now + EMISSION_INTERVAL * n;
            assert_eq!(turns.take(at), at);
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_waiter_that_leaves_the_queue_takes_no_turn_along() {
        let pace = Arc::new(RateLimiter::default());
        for _ in 0..=BURST {
            pace.acquire().await;
        }
        let waiting = Arc::new(AtomicUsize::new(0));
        let waiters = (0..10_000).map(|_| (pace.clone(), waiting.clone()));
        let wait = |(pace, waiting): (Arc<RateLimiter>, Arc<AtomicUsize>)| async move {
            waiting.fetch_add(1, Ordering::Relaxed);
            pace.acquire().await;
        };
        let tasks: Vec<_> = waiters.map(|waiter| tokio::spawn(wait(waiter))).collect();
        while waiting.load(Ordering::Relaxed) < tasks.len() {
            tokio::task::yield_now().await;
        }
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        let next = tokio::time::timeout(Duration::from_secs(20), pace.acquire());
        next.await.expect("10,000 turns are 40 s");
    }
}
