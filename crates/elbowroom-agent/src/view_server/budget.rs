//! What the view server does for each tenant, a container with all that are in it, and how much of that at once.
//!
//! # Problem
//! A request costs the server CPU time that no quota of the container counts. A container that asks without pause would take
//! the server from its neighbours, and CPU time beyond its quota (`docs/decisions/0037-view-server-budget.md`).
//!
//! # Approach
//! Each tenant owes the CPU time that was spent for it, and pays it back at a constant rate (the generic cell rate algorithm,
//! ITU-T I.371). Two allowances apply: within [`PROMPT`] a tenant is answered at once, beyond [`PACED`] it waits until it has
//! paid. Between the two it is answered after the others ([`crate::view_server::deferred`]). An account is two atomic words, so
//! that no reader waits for a lock. Which one pays is in the container's slot ([`crate::view_server::slots::Slots::account`]): a
//! container makes others in itself as it likes, and together they have one account.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A part of one CPU, and how much may be owed.
struct Allowance {
    /// The part is `1 / share`.
    share: u64,
    /// CPU time that may be owed.
    burst: Duration,
}

/// Answered at once: far more than programs that read their files every second take. For at most this part of the time a container's
/// requests can come before a neighbour's, which leaves the neighbour's 99th percentile alone.
const PROMPT: Allowance = Allowance { share: 200, burst: Duration::from_millis(2) };
/// Answered at all: half of what the smallest usual quota gives, and in one go what it takes to walk the view of a large machine.
const PACED: Allowance = Allowance { share: 10, burst: Duration::from_millis(100) };

/// The accounts of all tenants. A tenant that takes over an account inherits its debt, which is paid within a second.
pub(super) struct Budgets {
    began: Instant,
    accounts: Vec<Account>,
}

/// When all is paid, on the clock that starts at [`Budgets::began`], in nanoseconds; for each allowance.
#[derive(Default)]
struct Account {
    prompt: AtomicU64,
    paced: AtomicU64,
}

impl Budgets {
    /// Accounts numbered from 0 on.
    pub fn new(accounts: usize) -> Self {
        Self { began: Instant::now(), accounts: (0..accounts).map(|_| Account::default()).collect() }
    }

    /// Adds CPU time that was spent for an account.
    pub fn charge(&self, account: usize, spent: Duration, now: Instant) {
        let Account { prompt, paced } = &self.accounts[account];
        let now = self.nanos(now);
        for (paid_at, allowance) in [(prompt, &PROMPT), (paced, &PACED)] {
            let debt = (spent.as_nanos() as u64).saturating_mul(allowance.share);
            let add = |at: u64| Some(at.max(now).saturating_add(debt));
            let _ = paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        }
    }

    /// Whether an account is answered at once.
    pub(crate) fn is_prompt(&self, account: usize, now: Instant) -> bool {
        self.over(&self.accounts[account].prompt, &PROMPT, now).is_zero()
    }

    /// How long an account waits until it is answered.
    pub fn delay(&self, account: usize, now: Instant) -> Duration {
        self.over(&self.accounts[account].paced, &PACED, now)
    }

    fn over(&self, paid_at: &AtomicU64, allowance: &Allowance, now: Instant) -> Duration {
        let free = self.nanos(now) + allowance.burst.as_nanos() as u64 * allowance.share;
        Duration::from_nanos(paid_at.load(Ordering::Relaxed).saturating_sub(free))
    }

    fn nanos(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_container_that_asks_now_and_then_is_answered_at_once() {
        let budgets = Budgets::new(1);
        for second in 0..100 {
            let now = budgets.began + Duration::from_secs(second);
            assert!(budgets.is_prompt(0, now) && budgets.delay(0, now).is_zero());
            budgets.charge(0, 4 * MS, now);
        }
    }

    #[test]
    fn one_that_asks_without_pause_gets_a_tenth_of_a_cpu_and_its_neighbour_does_not_notice() {
        let budgets = Budgets::new(2);
        let (mut now, mut spent) = (budgets.began, Duration::ZERO);
        while now < budgets.began + Duration::from_secs(10) {
            now += budgets.delay(0, now).max(MS);
            budgets.charge(0, MS, now);
            spent += MS;
        }
        assert!((1_000..1_150).contains(&spent.as_millis()), "{spent:?}");
        assert!(!budgets.is_prompt(0, now));
        assert!(budgets.is_prompt(1, now) && budgets.delay(1, now).is_zero());
    }

    #[test]
    fn between_both_it_is_answered_after_the_others_and_without_a_wait() {
        let budgets = Budgets::new(1);
        // An idle hour is no credit.
        let now = budgets.began + Duration::from_secs(3_600);
        budgets.charge(0, 50 * MS, now);
        assert!(!budgets.is_prompt(0, now) && budgets.delay(0, now).is_zero());
        budgets.charge(0, 60 * MS, now);
        assert_eq!(budgets.delay(0, now), 100 * MS);
        assert!(budgets.delay(0, now + 101 * MS).is_zero());
        assert!(budgets.is_prompt(0, now + Duration::from_secs(22)));
    }
}
