//! Files' pages that come back where the kernel does not judge whether they were in use.
//!
//! Problem: under the multi-generational LRU a neighbour's working set that is read by `read` may go to the disk for ever, and neither
//! `workingset_restore_file` nor PSI says so (mm/workingset.c `lru_gen_refault`). `workingset_refault_file` does, but counts a file larger
//! than memory that is read twice just the same.
//!
//! Approach: what comes back to a cgroup at its own limit is its own affair, however much it reads: the kernel takes its own pages for it.
//! Of the rest, what comes back while views give nothing away is usual. More than that, for a while and beside a search of the machine's
//! pages, is what views cost. They fall, and wait until it is over. What goes on for a minute all the same is not theirs, and usual.

use super::memory::{ReclaimCost, grew};
use elbowroom_types::sample::ReclaimCounters;
use elbowroom_types::unit::Micros;

/// For how long more come back before views fall: a program that starts has its files back sooner.
const HURTS_AFTER: Micros = Micros::secs(2);
/// After how long what comes back is usual, whatever views do.
const USUAL_AFTER: Micros = Micros::secs(60);

/// What is known of pages that come back.
#[derive(Clone, Debug, Default)]
pub(super) struct FileRefaults {
    /// Pages a second that come back while views give nothing away: the most of the last seconds.
    usual: u64,
    /// Since when more come back, and the counters then.
    more_since: Option<(Micros, ReclaimCounters)>,
}

impl FileRefaults {
    /// Whether more come back than usual, by the machine's own doing: nothing should grow.
    pub(super) fn are_many(&self, now: &ReclaimCounters) -> bool {
        self.more_since.is_some_and(|(_, before)| are_for_the_machine(&before, now))
    }

    /// Since when more come back.
    pub(super) fn since(&self) -> Option<Micros> {
        self.more_since.map(|(since, _)| since)
    }

    /// Looks at what came back from `before`, `period` ago, to `now`, which is `at`. `gives`: some view is above its soft limit. What it
    /// cost and over what time, where those views should fall.
    pub(super) fn look(
        &mut self,
        (before, now): (&ReclaimCounters, &ReclaimCounters),
        (at, period): (Micros, Micros),
        gives: bool,
    ) -> Option<(ReclaimCost, Micros)> {
        let came_back = refaulted(before, now);
        let rate = came_back.saturating_mul(1_000_000) / period.get().max(1);
        if rate <= self.usual.saturating_mul(2).saturating_add(ReclaimCounters::FEW_REFAULTS) {
            self.more_since = None;
            let fallen = self.usual - self.usual / 8;
            self.usual = if gives { fallen.max(rate.min(self.usual)) } else { fallen.max(rate) };
            return None;
        }
        let (since, first) = *self.more_since.get_or_insert((at.saturating_sub(period), *before));
        let lasts = at.saturating_sub(since);
        if lasts >= USUAL_AFTER {
            *self = Self { usual: rate, more_since: None };
            return None;
        }
        let hurts = gives && lasts >= HURTS_AFTER && are_for_the_machine(&first, now);
        hurts.then_some((ReclaimCost { lost: refaulted(&first, now), stalled: None }, lasts))
    }
}

/// What came back to cgroups that are not at their own limit.
fn refaulted(before: &ReclaimCounters, now: &ReclaimCounters) -> u64 {
    let at_limits = grew(before, now, |counters| counters.refaulted_at_limits);
    grew(before, now, |counters| counters.refaulted_files).saturating_sub(at_limits)
}

/// Whether those were lost to a search for the machine. Of the search for limits that part counts against it which the part of pages that
/// did not come back at limits has: the rest is explained.
fn are_for_the_machine(before: &ReclaimCounters, now: &ReclaimCounters) -> bool {
    let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
    let scanned = grew(before, now, |counters| counters.scanned);
    let for_limits = grew(before, now, |counters| counters.scanned_for_limits);
    let came_back = grew(before, now, |counters| counters.refaulted_files);
    scanned > 0 && product(scanned, came_back) >= product(for_limits, refaulted(before, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Micros = Micros::millis(250);

    /// Looks at a machine on which so many pages come back in each.
    struct Looks {
        refaults: FileRefaults,
        at: Micros,
        now: ReclaimCounters,
    }

    impl Looks {
        fn new() -> Self {
            Self { refaults: FileRefaults::default(), at: Micros::secs(9), now: ReclaimCounters::default() }
        }

        /// After how many of at most `looks` views should fall.
        fn falls(&mut self, looks: usize, pages: u64, gives: bool) -> Option<usize> {
            self.falls_beside(looks, pages, gives, (1_000, 0))
        }

        fn falls_beside(
            &mut self,
            looks: usize,
            pages: u64,
            gives: bool,
            scans: (u64, u64),
        ) -> Option<usize> {
            self.falls_at_limits(looks, (pages, 0), gives, scans)
        }

        /// The same where so many of the pages come back to cgroups at their own limit.
        fn falls_at_limits(
            &mut self,
            looks: usize,
            (pages, at_limits): (u64, u64),
            gives: bool,
            scans: (u64, u64),
        ) -> Option<usize> {
            (1..=looks).find(|_| {
                let before = self.now;
                self.at = self.at.saturating_add(LOOK);
                self.now.refaulted_files += pages;
                self.now.refaulted_at_limits += at_limits;
                self.now.scanned += scans.0;
                self.now.scanned_for_limits += scans.1;
                self.refaults.look((&before, &self.now), (self.at, LOOK), gives).is_some()
            })
        }

        fn many(&self) -> bool {
            self.refaults.are_many(&self.now)
        }
    }

    #[test]
    fn a_working_set_that_goes_to_the_disk_takes_views_back_within_seconds() {
        let mut looks = Looks::new();
        assert_eq!(looks.falls(100, 64, true), None, "1 MiB a second is noise");
        assert!(!looks.many());
        assert_eq!(looks.falls(100, 65, true), Some(8));
        // They fell; the neighbour reads its files again, and nothing grows meanwhile.
        assert_eq!(looks.falls(40, 1_000, false), None);
        assert!(looks.many());
        looks.falls(1, 0, false);
        assert!(!looks.many());
        assert_eq!(looks.falls(100, 65, true), Some(8), "what was lost for a view did not become usual");
    }

    #[test]
    fn what_comes_back_whatever_views_do_is_usual() {
        let mut looks = Looks::new();
        assert_eq!(looks.falls(1_000, 20_000, false), None, "a file is read again and again");
        assert!(!looks.many(), "after a minute");
        assert_eq!(looks.falls(1_000, 40_000, true), None);
        assert_eq!(looks.falls(100, 41_000, true), Some(8), "twice as much is more than that");
        // It ends, and is forgotten.
        looks.falls(200, 0, true);
        assert_eq!(looks.falls(100, 1_000, true), Some(8));
    }

    #[test]
    fn what_grows_slowly_while_views_give_does_not_become_usual() {
        let mut looks = Looks::new();
        let falls = (0..100).find_map(|step| looks.falls(8, step * 20, true).map(|_| step * 20));
        assert_eq!(falls, Some(80));
    }

    #[test]
    fn a_program_that_starts_and_a_container_at_its_own_limit_take_nothing_back() {
        let mut looks = Looks::new();
        assert_eq!(looks.falls(7, 9_000, true), None);
        assert_eq!(looks.falls(1, 0, true), None);
        assert_eq!(looks.falls(7, 9_000, true), None, "each for less than two seconds");
        let mut looks = Looks::new();
        assert_eq!(looks.falls_beside(1_000, 9_000, true, (0, 9_000)), None);
        assert_eq!(looks.falls_beside(4, 90_000, true, (10, 9_000)), None);
        assert!(!looks.many(), "others grow on");
        assert_eq!(Looks::new().falls_beside(1_000, 9_000, true, (0, 0)), None, "no search at all");
    }

    #[test]
    fn a_page_that_comes_back_at_a_limit_excuses_no_search_for_another() {
        let mut looks = Looks::new();
        assert_eq!(looks.falls_at_limits(1_000, (90_000, 1), true, (1_000, 900_000)), None);
        assert!(!looks.many(), "a tenant reclaims its own pages, and another has one back");
        let half = |scanned| Looks::new().falls_at_limits(100, (90_000, 45_000), true, (scanned, 900_000));
        assert_eq!((half(449_999), half(450_000)), (None, Some(8)));
    }

    #[test]
    fn what_comes_back_at_a_cgroups_own_limit_neither_takes_views_back_nor_hides_what_others_lose() {
        let mut looks = Looks::new();
        for _ in 0..20 {
            assert_eq!(looks.falls_at_limits(12, (90_000, 90_000 - 64), true, (9_000, 900_000)), None);
            assert!(!looks.many(), "a burst of three seconds, and the machine looks for pages too");
            assert_eq!(looks.falls(4, 0, true), None);
        }
        assert_eq!(
            looks.falls_at_limits(100, (90_000, 90_000 - 65), true, (1_000, 900_000)),
            Some(8),
            "1 MiB a second is not its own"
        );
    }
}
