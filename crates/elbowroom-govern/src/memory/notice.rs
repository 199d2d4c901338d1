//! When the programs of a container are asked for memory.
//!
//! # Approach
//! Programs that watch for memory pressure can give back what nobody else can take from them: caches, free parts of their heaps.
//! They are asked when memory is wanted of their container: when its view is taken down, and when something is about to be taken; again
//! while it uses more than its view shows, but less and less often, for it may have no more to give. And they are asked when the kernel
//! has them wait for memory, whoever governs: who watches us watches the kernel no more.

use elbowroom_types::memory::{Export, Order};
use elbowroom_types::sample::GroupId;
use elbowroom_types::unit::{Bytes, Limit, Micros};
use std::collections::BTreeMap;

/// A container is asked once a second at most. Periods jitter: one that is a little short counts as a whole one.
const EVERY: Micros = Micros::millis(900);
/// One that gave nothing is asked again after this, then after twice as long, up to the longest.
const AGAIN: Micros = Micros::millis(1_900);
const LONGEST: Micros = Micros::secs(30);

/// Whom was asked when, and what their views show.
#[derive(Debug, Default)]
pub struct Notices {
    /// What views show at most, where that is less than they would.
    ceilings: BTreeMap<GroupId, Bytes>,
    asked: BTreeMap<GroupId, Micros>,
    /// Who used more than its view shows: how long it is left alone now.
    patience: BTreeMap<GroupId, Micros>,
}

impl Notices {
    /// Takes in an order that is carried out. Whether its container is to be asked now.
    pub fn order(&mut self, order: &Order) -> Option<GroupId> {
        match order {
            Order::Export(Export { at, group, ceiling: Limit::At(ceiling) }) => {
                let before = self.ceilings.insert(*group, *ceiling);
                let lower = before.is_none_or(|before| *ceiling < before);
                if lower {
                    self.patience.remove(group);
                    return self.ask(*group, *at);
                }
                None
            }
            Order::Export(export) => {
                self.ceilings.remove(&export.group);
                self.patience.remove(&export.group);
                None
            }
            // Who is dead hears nothing.
            Order::Reclaim(reclaim) if !reclaim.dead => self.ask(reclaim.group, reclaim.at),
            Order::Reclaim(_) => None,
            Order::Protect(_) | Order::Lease(_) | Order::Release(_) | Order::Alert(_) => None,
        }
    }

    /// Whether a container that is wanted memory of at a time of the monotonic clock is to be asked then.
    pub fn ask(&mut self, group: GroupId, at: Micros) -> Option<GroupId> {
        let is_early = self.asked.get(&group).is_some_and(|last| at.saturating_sub(*last) < EVERY);
        if is_early {
            return None;
        }
        self.asked.insert(group, at);
        Some(group)
    }

    /// Whether a container that still uses more than its view shows is to be asked once more.
    pub fn again(&mut self, group: GroupId, at: Micros) -> Option<GroupId> {
        let last = *self.asked.get(&group)?;
        let patience = self.patience.entry(group).or_insert(AGAIN);
        if !self.ceilings.contains_key(&group) || at.saturating_sub(last) < *patience {
            return None;
        }
        *patience = Micros(patience.get() * 2).min(LONGEST);
        self.ask(group, at)
    }

    /// A container is gone.
    pub fn forget(&mut self, group: GroupId) {
        self.ceilings.remove(&group);
        self.asked.remove(&group);
        self.patience.remove(&group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::memory::Reclaim;

    const GROUP: GroupId = GroupId(7);

    fn export(at_ms: u64, mib: u64) -> Order {
        let ceiling = if mib == 0 { Limit::Max } else { Limit::At(Bytes::mib(mib)) };
        Order::Export(Export { at: Micros::millis(at_ms), group: GROUP, ceiling })
    }

    fn reclaim(at_ms: u64, dead: bool) -> Order {
        let (amount, keep) = (Bytes::mib(1), Bytes::ZERO);
        Order::Reclaim(Reclaim { at: Micros::millis(at_ms), group: GROUP, amount, keep, swap: false, dead })
    }

    #[test]
    fn a_container_is_asked_when_its_view_goes_down_and_when_something_is_taken() {
        let mut notices = Notices::default();
        for (order, asked) in [
            (export(1_000, 100), true),
            // The same second's.
            (reclaim(1_000, false), false),
            (export(2_000, 110), false),
            (export(3_000, 90), true),
            (export(4_000, 0), false),
            // Not lower than the one before that, but lower than the view is now.
            (export(5_000, 120), true),
            (reclaim(6_000, false), true),
            (reclaim(8_000, true), false),
            (Order::Release(GROUP), false),
        ] {
            assert_eq!(notices.order(&order), asked.then_some(GROUP), "{order:?}");
        }
    }

    #[test]
    fn who_gave_nothing_is_asked_again_less_and_less_often() {
        let mut notices = Notices::default();
        assert!(notices.again(GROUP, Micros::secs(1)).is_none(), "nothing is wanted of it");
        notices.order(&export(1_000, 100));
        let mut asked = |from: u64, to: u64| -> Vec<u64> {
            (from..to).filter(|second| notices.again(GROUP, Micros::secs(*second)).is_some()).collect()
        };
        assert_eq!(asked(2, 150), [3, 7, 15, 31, 61, 91, 121]);
        // Something lower is wanted.
        assert!(notices.order(&export(150_000, 90)).is_some());
        let mut asked = |from: u64, to: u64| -> Vec<u64> {
            (from..to).filter(|second| notices.again(GROUP, Micros::secs(*second)).is_some()).collect()
        };
        assert_eq!(asked(151, 160), [152, 156]);
        notices.order(&export(160_000, 0));
        assert!(notices.again(GROUP, Micros::secs(900)).is_none());
    }

    #[test]
    fn a_container_is_asked_once_a_second_whatever_for() {
        let mut notices = Notices::default();
        let mut asked = |group, ms| notices.ask(GroupId(group), Micros::millis(ms)).is_some();
        assert!(asked(1, 1_000) && !asked(1, 1_500) && asked(2, 1_500));
        assert!(asked(1, 1_990) && !asked(1, 2_500));
        notices.forget(GroupId(1));
        assert!(notices.ask(GroupId(1), Micros::millis(2_500)).is_some());
    }
}
