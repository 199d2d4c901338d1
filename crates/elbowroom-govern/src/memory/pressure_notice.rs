//! When the programs of a container are asked for memory.
//!
//! # Approach
//! Programs that watch for memory pressure can give back what cannot be taken from them: caches, free parts of their heaps.
//! They are asked when memory is wanted of their container: when its view is taken down, and when something is about to be taken.
//! They are asked again while it uses more than its view shows, but less and less often, for it may have no more to give. They are
//! also asked when the kernel has them wait for memory, whether we govern or not: a program that watches us no longer watches the
//! kernel.

use elbowroom_types::id::CgroupId;
use elbowroom_types::memory::{MemoryOrder, ViewCeiling};
use elbowroom_types::unit::{Bytes, Limit, Micros};
use std::collections::BTreeMap;

/// A container is asked once a second at most. Periods jitter: one that is a little short counts as a whole one.
const MIN_INTERVAL: Micros = Micros::millis(900);
/// One that gave nothing is asked again after this, then after twice as long, up to the longest.
const FIRST_REPEAT: Micros = Micros::millis(1_900);
const MAX_REPEAT: Micros = Micros::secs(30);

/// When each container was asked for memory, and what its view shows.
#[derive(Debug, Default)]
pub struct PressureNotices {
    /// What views show at most, where that is less than they would.
    ceilings: BTreeMap<CgroupId, Bytes>,
    last_notified: BTreeMap<CgroupId, Micros>,
    /// A container that used more than its view shows: how long it is left alone now.
    repeat_after: BTreeMap<CgroupId, Micros>,
}

impl PressureNotices {
    /// Takes in an order that is carried out. Whether its container is to be asked now.
    pub fn on_order(&mut self, order: &MemoryOrder) -> Option<CgroupId> {
        match order {
            MemoryOrder::ViewCeiling(ViewCeiling { at, group, ceiling: Limit::At(ceiling) }) => {
                let before = self.ceilings.insert(*group, *ceiling);
                let lower = before.is_none_or(|before| *ceiling < before);
                if lower {
                    self.repeat_after.remove(group);
                    return self.notify(*group, *at);
                }
                None
            }
            MemoryOrder::ViewCeiling(view_ceiling) => {
                self.ceilings.remove(&view_ceiling.group);
                self.repeat_after.remove(&view_ceiling.group);
                None
            }
            // A dead one hears nothing; and no program has to give up what no container needs.
            MemoryOrder::Reclaim(reclaim) if !reclaim.dead && !reclaim.saving => {
                self.notify(reclaim.group, reclaim.at)
            }
            MemoryOrder::Reclaim(_) => None,
            MemoryOrder::Protect(_) | MemoryOrder::Alert(_) => None,
        }
    }

    /// Whether a container that is wanted memory of at a time of the monotonic clock is to be asked then.
    pub fn notify(&mut self, group: CgroupId, at: Micros) -> Option<CgroupId> {
        let is_early =
            self.last_notified.get(&group).is_some_and(|last| at.saturating_sub(*last) < MIN_INTERVAL);
        if is_early {
            return None;
        }
        self.last_notified.insert(group, at);
        Some(group)
    }

    /// Whether a container that still uses more than its view shows is to be asked once more.
    pub fn notify_again(&mut self, group: CgroupId, at: Micros) -> Option<CgroupId> {
        let last = *self.last_notified.get(&group)?;
        let patience = self.repeat_after.entry(group).or_insert(FIRST_REPEAT);
        if !self.ceilings.contains_key(&group) || at.saturating_sub(last) < *patience {
            return None;
        }
        *patience = Micros(patience.get() * 2).min(MAX_REPEAT);
        self.notify(group, at)
    }

    /// A container is gone.
    pub fn forget(&mut self, group: CgroupId) {
        self.ceilings.remove(&group);
        self.last_notified.remove(&group);
        self.repeat_after.remove(&group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::memory::ReclaimRequest;

    const GROUP: CgroupId = CgroupId(7);

    fn view_ceiling(at_ms: u64, mib: u64) -> MemoryOrder {
        let ceiling = if mib == 0 { Limit::Max } else { Limit::At(Bytes::mib(mib)) };
        MemoryOrder::ViewCeiling(ViewCeiling { at: Micros::millis(at_ms), group: GROUP, ceiling })
    }

    fn reclaim(at_ms: u64, dead: bool) -> MemoryOrder {
        let (amount, keep) = (Bytes::mib(1), Bytes::ZERO);
        MemoryOrder::Reclaim(ReclaimRequest {
            at: Micros::millis(at_ms),
            group: GROUP,
            amount,
            keep,
            swap: false,
            dead,
            saving: false,
        })
    }

    fn saved(at_ms: u64) -> MemoryOrder {
        match reclaim(at_ms, false) {
            MemoryOrder::Reclaim(reclaim) => MemoryOrder::Reclaim(ReclaimRequest { saving: true, ..reclaim }),
            other => other,
        }
    }

    #[test]
    fn a_container_is_asked_when_its_view_goes_down_and_when_something_is_taken() {
        let mut notices = PressureNotices::default();
        for (order, asked) in [
            (view_ceiling(1_000, 100), true),
            // The same second's.
            (reclaim(1_000, false), false),
            (view_ceiling(2_000, 110), false),
            (view_ceiling(3_000, 90), true),
            (view_ceiling(4_000, 0), false),
            // Not lower than the one before that, but lower than the view is now.
            (view_ceiling(5_000, 120), true),
            (reclaim(6_000, false), true),
            (reclaim(8_000, true), false),
            (saved(10_000), false),
        ] {
            assert_eq!(notices.on_order(&order), asked.then_some(GROUP), "{order:?}");
        }
    }

    #[test]
    fn a_container_that_gave_nothing_is_asked_again_less_and_less_often() {
        let mut notices = PressureNotices::default();
        assert!(notices.notify_again(GROUP, Micros::secs(1)).is_none(), "nothing is wanted of it");
        notices.on_order(&view_ceiling(1_000, 100));
        let mut asked = |from: u64, to: u64| -> Vec<u64> {
            (from..to).filter(|second| notices.notify_again(GROUP, Micros::secs(*second)).is_some()).collect()
        };
        assert_eq!(asked(2, 150), [3, 7, 15, 31, 61, 91, 121]);
        // Something lower is wanted.
        assert!(notices.on_order(&view_ceiling(150_000, 90)).is_some());
        let mut asked = |from: u64, to: u64| -> Vec<u64> {
            (from..to).filter(|second| notices.notify_again(GROUP, Micros::secs(*second)).is_some()).collect()
        };
        assert_eq!(asked(151, 160), [152, 156]);
        notices.on_order(&view_ceiling(160_000, 0));
        assert!(notices.notify_again(GROUP, Micros::secs(900)).is_none());
    }

    #[test]
    fn a_container_is_asked_once_a_second_whatever_for() {
        let mut notices = PressureNotices::default();
        let mut asked = |group, ms| notices.notify(CgroupId(group), Micros::millis(ms)).is_some();
        assert!(asked(1, 1_000) && !asked(1, 1_500) && asked(2, 1_500));
        assert!(asked(1, 1_990) && !asked(1, 2_500));
        notices.forget(CgroupId(1));
        assert!(notices.notify(CgroupId(1), Micros::millis(2_500)).is_some());
    }
}
