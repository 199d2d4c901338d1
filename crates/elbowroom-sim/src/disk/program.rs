//! What containers do to disks.

use elbowroom_types::claim::Claim;
use elbowroom_types::io::IoMax;
use elbowroom_types::unit::{Limit, Micros};

/// How much is wanted over time, in bytes per second; [`Limit::Max`] for as much as there is.
#[derive(Clone, Debug, PartialEq)]
pub struct Pattern {
    /// From each instant on, that much; nothing before the first. Ascending.
    pub steps: Vec<(Micros, Limit<u64>)>,
    /// Begins again after this long.
    pub every: Option<Micros>,
}

impl Pattern {
    /// Always the same.
    pub fn constant(rate: Limit<u64>) -> Self {
        Self { steps: vec![(Micros::ZERO, rate)], every: None }
    }

    /// `base`, and `peak` within each of these spans.
    pub fn bursts(base: u64, peak: Limit<u64>, spans: &[(Micros, Micros)]) -> Self {
        let around = |&(from, to)| [(from, peak), (to, Limit::At(base))];
        let steps = [(Micros::ZERO, Limit::At(base))].into_iter().chain(spans.iter().flat_map(around));
        Self { steps: steps.collect(), every: None }
    }

    /// `first` for as long as `turn`, then `second` for as long, and again.
    pub fn turns(first: u64, second: u64, turn: Micros) -> Self {
        let steps = vec![(Micros::ZERO, Limit::At(first)), (turn, Limit::At(second))];
        Self { steps, every: Some(turn.saturating_add(turn)) }
    }

    /// What is wanted at this instant.
    pub fn at(&self, now: Micros) -> Limit<u64> {
        let now = match self.every {
            Some(every) => Micros(now.get() % every.get().max(1)),
            None => now,
        };
        self.steps.iter().rev().find(|(from, _)| *from <= now).map_or(Limit::At(0), |(_, rate)| *rate)
    }
}

/// How requests are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMethod {
    /// Each task waits for its request: pressure (PSI) shows it.
    Sync,
    /// Requests are submitted and collected (libaio): pressure stays zero however long they take.
    Async,
    /// Writes into the page cache, written back later; on cgroup v1 in no container's name and past every limit.
    Buffered,
}

/// One program on one disk.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskProgram {
    /// Which disk, by its place in the scenario.
    pub disk: usize,
    /// How much it wants.
    pub wants: Pattern,
    /// How it asks.
    pub method: IoMethod,
    /// Requests it keeps under way at most.
    pub depth: u32,
    /// Bytes per request.
    pub size: u32,
    /// The part of its requests, of 1, that are reads; buffered ones never are.
    pub reads: f64,
    /// What it could not do it still wants, up to what it wants in this time: zero for a program that only gets slower.
    pub backlog: Micros,
    /// What it is judged by, in bytes per second: it should get this much, or all it wants if that is less.
    pub lifeline: Option<u64>,
}

impl DiskProgram {
    /// Synchronous reads of 4 KiB from the first disk, one at a time, of which none is owed later.
    pub fn reads(wants: Pattern) -> Self {
        Self {
            disk: 0,
            wants,
            method: IoMethod::Sync,
            depth: 1,
            size: 4096,
            reads: 1.0,
            backlog: Micros::ZERO,
            lifeline: None,
        }
    }

    /// Judged by whether it gets this much, in bytes per second.
    #[must_use]
    pub(crate) fn with_lifeline(self, lifeline: u64) -> Self {
        Self { lifeline: Some(lifeline), ..self }
    }

    /// The requests per second that `limits` let through.
    pub(super) fn max_rate(&self, limits: &IoMax) -> f64 {
        let (reads, size) = (self.read_part(), f64::from(self.size));
        let rate = |limit: Limit<u64>, per: f64| match limit {
            Limit::At(n) if per > 0.0 => n as f64 / per,
            _ => f64::INFINITY,
        };
        rate(limits.rbps, reads * size)
            .min(rate(limits.wbps, (1.0 - reads) * size))
            .min(rate(limits.riops, reads))
            .min(rate(limits.wiops, 1.0 - reads))
    }

    /// The part of its requests that are reads.
    pub(super) fn read_part(&self) -> f64 {
        if self.method == IoMethod::Buffered { 0.0 } else { self.reads }
    }
}

/// A container.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskTenant {
    /// Its name, unlike any other's.
    pub name: String,
    /// What it is promised: an entry of `[[claims]]` for [`Self::name`].
    pub claim: Option<Claim>,
    /// When it comes.
    pub from: Micros,
    /// When it goes.
    pub until: Option<Micros>,
    /// At most one on each disk.
    pub programs: Vec<DiskProgram>,
    /// Limits that its user set, on every disk.
    pub user_max: IoMax,
    /// From when on another program sets its limits on every disk, and which.
    pub foreign: Option<(Micros, IoMax)>,
}

impl DiskTenant {
    /// Here all the time, without claims and limits, judged by nothing.
    pub fn new(name: &str, program: DiskProgram) -> Self {
        Self {
            name: name.to_owned(),
            claim: None,
            from: Micros::ZERO,
            until: None,
            programs: vec![program],
            user_max: IoMax::MAX,
            foreign: None,
        }
    }

    /// With this claim, whatever container it names.
    #[must_use]
    pub(crate) fn with_claim(self, claim: Claim) -> Self {
        let claim = Claim { container: self.name.clone(), ..claim };
        Self { claim: Some(claim), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_what_they_say_at_every_instant() {
        let at = |pattern: &Pattern, secs| pattern.at(Micros::secs(secs));
        let bursts = Pattern::bursts(2, Limit::Max, &[(Micros::secs(10), Micros::secs(20))]);
        assert_eq!(
            [at(&bursts, 9), at(&bursts, 10), at(&bursts, 20)],
            [Limit::At(2), Limit::Max, Limit::At(2)]
        );
        let turns = Pattern::turns(6, 2, Micros::secs(20));
        assert_eq!(
            [at(&turns, 19), at(&turns, 20), at(&turns, 40)],
            [Limit::At(6), Limit::At(2), Limit::At(6)]
        );
    }

    #[test]
    fn the_tightest_limit_decides_and_limits_on_what_is_not_done_do_not() {
        let program = DiskProgram { reads: 0.5, ..DiskProgram::reads(Pattern::constant(Limit::Max)) };
        let limits = IoMax { rbps: Limit::At(1 << 20), wiops: Limit::At(100), ..IoMax::MAX };
        assert_eq!(program.max_rate(&limits), 200.0);
        assert_eq!(DiskProgram { reads: 1.0, ..program }.max_rate(&limits), 256.0);
    }
}
