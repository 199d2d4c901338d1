//! Plays many random scenarios once, on every CPU, and keeps which properties broke where.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// What was found: per property, what broke it and where; and how many scenarios had what in them.
#[derive(Debug, Default)]
pub struct Run {
    scenarios: u64,
    pub broken: BTreeMap<&'static str, Vec<(u64, String)>>,
    pub seen: BTreeMap<&'static str, u64>,
}

impl Run {
    /// Looks at the scenarios of the seeds below `scenarios`.
    pub fn of(scenarios: u64, look_at: fn(u64, &mut Self)) -> Self {
        let next = AtomicU64::new(0);
        let worker = || {
            let mut run = Self { scenarios, ..Self::default() };
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= scenarios {
                    return run;
                }
                look_at(seed, &mut run);
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
            let runs = workers.into_iter().map(|worker| worker.join().unwrap());
            runs.reduce(Self::and).expect("there is a CPU")
        })
    }

    /// Fails where a scenario broke the property.
    pub fn check(&self, property: &str) {
        let broken = self.broken.get(property).map_or(&[][..], |all| all);
        let first: Vec<_> = broken.iter().take(5).collect();
        assert!(
            broken.is_empty(),
            "{} of {} scenarios break it, for example {first:#?}",
            broken.len(),
            self.scenarios
        );
    }

    fn and(mut self, other: Self) -> Self {
        for (property, broken) in other.broken {
            self.broken.entry(property).or_default().extend(broken);
        }
        self.broken.values_mut().for_each(|broken| broken.sort());
        for (what, n) in other.seen {
            *self.seen.entry(what).or_default() += n;
        }
        self
    }
}
