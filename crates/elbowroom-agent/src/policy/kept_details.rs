//! Statistics of a container that still hold: where no process ran and no memory came or went, nothing is read again.

use elbowroom_linux::GroupDetails;
use elbowroom_types::sample::Usage;
use elbowroom_types::unit::Micros;

/// Read alike over this time, they move no more: the kernel's averages of pressure do every 2 s (kernel/sched/psi.c, `PSI_FREQ`).
const SETTLED_AFTER: Micros = Micros::millis(2_500);

/// What was read of a container last.
#[derive(Debug, Default)]
pub(super) struct KeptDetails {
    details: Option<GroupDetails>,
    read: Micros,
    /// What it had used by then.
    used: Usage,
    /// Since when they were read alike. Averages of pressure sink, and dirty pages are written, while no process runs.
    alike_since: Micros,
}

impl KeptDetails {
    /// Whether they are as they would be read `now` of a container that has `used` so much; for `ttl` at most, as the kernel may do
    /// something by itself.
    pub(super) fn are_current(&self, now: Micros, used: &Usage, ttl: Micros) -> bool {
        self.read.saturating_sub(self.alike_since) >= SETTLED_AFTER
            && self.used == *used
            && used.known_cpu().is_some()
            && now < self.read.saturating_add(ttl)
    }

    /// They, where anything was read.
    pub(super) fn last(&self) -> Option<&GroupDetails> {
        self.details.as_ref()
    }

    /// Takes what was read `now`.
    pub(super) fn update(&mut self, now: Micros, used: Usage, details: GroupDetails) {
        if self.details.as_ref() != Some(&details) {
            self.alike_since = now;
        }
        (self.details, self.read, self.used) = (Some(details), now, used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::unit::Bytes;

    const TTL: Micros = Micros::secs(30);

    fn used(ms: u64) -> Usage {
        Usage { cpu: Micros::millis(ms), memory: Bytes::mib(7), ..Usage::default() }
    }

    fn details(threads: u64) -> GroupDetails {
        GroupDetails { nr_threads: Some(threads), ..GroupDetails::default() }
    }

    #[test]
    fn what_was_read_alike_holds_until_something_is_used() {
        let mut kept = KeptDetails::default();
        let at = Micros::secs;
        assert!(!kept.are_current(at(1), &Usage::default(), TTL), "nothing was read");
        kept.update(at(1), used(5), details(3));
        kept.update(at(2), used(5), details(3));
        assert!(!kept.are_current(at(3), &used(5), TTL), "read alike, too soon");
        kept.update(at(4), used(5), details(3));
        assert!(kept.are_current(at(4), &used(5), TTL));
        assert_eq!(kept.last(), Some(&details(3)));
        assert!(!kept.are_current(at(4), &used(6), TTL), "it ran");
        let grown = Usage { memory: Bytes::mib(8), ..used(5) };
        assert!(!kept.are_current(at(4), &grown, TTL), "memory came");
        assert!(!kept.are_current(at(34), &used(5), TTL), "too long ago");
        kept.update(at(34), used(5), details(2));
        assert!(!kept.are_current(at(35), &used(5), TTL), "it moved by itself");
    }
}
