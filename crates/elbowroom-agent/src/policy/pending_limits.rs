//! Limits that were decided and are not set yet: the last one of each container and disk. A limit is set at most once a second, unless it
//! is tighter than the one before, and never two at a time.

use elbowroom_govern::disk::Cap;
use elbowroom_types::id::{CgroupId, DeviceNumber};
use elbowroom_types::unit::Micros;
use std::collections::{BTreeMap, BTreeSet};

/// A container's limits on a disk are written at most this often, but for a cut, which does not wait.
const MIN_INTERVAL: Micros = Micros::secs(1);

/// A container on a disk.
pub(super) type GroupDisk = (CgroupId, DeviceNumber);

/// Orders on their way.
#[derive(Default)]
pub(super) struct PendingLimits {
    waiting: BTreeMap<GroupDisk, Cap>,
    /// Given away and not answered.
    in_flight: BTreeSet<GroupDisk>,
    /// The orders last given away, and when.
    last_sent: BTreeMap<GroupDisk, (Micros, Cap)>,
}

impl PendingLimits {
    /// Takes an order, in place of one that waits.
    pub(super) fn push(&mut self, cap: Cap) {
        self.waiting.insert((cap.group, cap.disk), cap);
    }

    /// Has the last order carried out once more, where no other waits.
    pub(super) fn requeue(&mut self, place: GroupDisk) {
        if let Some((_, cap)) = self.last_sent.get(&place) {
            self.waiting.entry(place).or_insert_with(|| cap.clone());
        }
    }

    /// The orders that may be carried out now; each is to be answered.
    pub(super) fn due(&mut self, now: Micros) -> Vec<Cap> {
        let Self { waiting, in_flight, last_sent } = self;
        let is_due = |(place, cap): &(&GroupDisk, &Cap)| {
            let may_follow = |(at, last): &(Micros, Cap)| {
                let is_cut = cap.max.min(last.max) != last.max;
                is_cut || now.saturating_sub(*at) >= MIN_INTERVAL
            };
            !in_flight.contains(place) && last_sent.get(place).is_none_or(may_follow)
        };
        let places: Vec<GroupDisk> = waiting.iter().filter(is_due).map(|(place, _)| *place).collect();
        let due: Vec<Cap> = places.iter().filter_map(|place| waiting.remove(place)).collect();
        for cap in &due {
            in_flight.insert((cap.group, cap.disk));
            last_sent.insert((cap.group, cap.disk), (now, cap.clone()));
        }
        due
    }

    /// An order was carried out, or could not be.
    pub(super) fn complete(&mut self, place: GroupDisk) {
        self.in_flight.remove(&place);
    }

    /// A disk is not governed any more. Returns the containers that may have something of ours there.
    pub(super) fn remove_disk(&mut self, disk: DeviceNumber) -> Vec<CgroupId> {
        self.waiting.retain(|(_, on), _| *on != disk);
        self.last_sent.keys().filter(|(_, on)| *on == disk).map(|(group, _)| *group).collect()
    }

    /// A container is gone.
    pub(super) fn remove_group(&mut self, group: CgroupId) {
        self.waiting.retain(|(of, _), _| *of != group);
        self.in_flight.retain(|(of, _)| *of != group);
        self.last_sent.retain(|(of, _), _| *of != group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::io::IoMax;
    use elbowroom_types::unit::Limit;

    fn cap(group: u64, rbps: u64) -> Cap {
        Cap {
            at: Micros::ZERO,
            group: CgroupId(group),
            disk: DeviceNumber { major: 8, minor: 0 },
            max: IoMax { rbps: Limit::At(rbps), ..IoMax::MAX },
            weight: None,
            because: String::new(),
        }
    }

    /// Gives what is due at a time, and answers it.
    fn given(orders: &mut PendingLimits, at: Micros) -> Vec<u64> {
        let due = orders.due(at);
        due.iter().for_each(|cap| orders.complete((cap.group, cap.disk)));
        due.iter().filter_map(|cap| cap.max.rbps.value()).collect()
    }

    #[test]
    fn a_container_is_limited_once_a_second_and_by_the_last_order() {
        let mut orders = PendingLimits::default();
        let mut seen = Vec::new();
        for tick in 0..30 {
            let now = Micros::millis(100 * tick);
            orders.push(cap(1, tick));
            seen.extend(given(&mut orders, now).into_iter().map(|rbps| (tick, rbps)));
        }
        assert_eq!(seen, [(0, 0), (10, 10), (20, 20)]);
        // The last order is not lost when none follows.
        assert_eq!(given(&mut orders, Micros::secs(3)), [29]);
        assert!(given(&mut orders, Micros::secs(4)).is_empty());
    }

    #[test]
    fn a_cut_does_not_wait() {
        let mut orders = PendingLimits::default();
        for (ms, rbps, expect) in [(0, 9, vec![9]), (200, 4, vec![4]), (400, 7, vec![]), (600, 3, vec![3])] {
            orders.push(cap(1, rbps));
            assert_eq!(given(&mut orders, Micros::millis(ms)), expect, "at {ms} ms");
        }
    }

    #[test]
    fn the_last_order_is_carried_out_once_more_unless_another_waits() {
        let place = (CgroupId(1), cap(1, 0).disk);
        let mut orders = PendingLimits::default();
        orders.requeue(place);
        assert!(given(&mut orders, Micros::ZERO).is_empty(), "there was none");
        orders.push(cap(1, 1));
        assert_eq!(given(&mut orders, Micros::ZERO), [1]);
        orders.requeue(place);
        assert_eq!(given(&mut orders, Micros::secs(1)), [1]);
        orders.push(cap(1, 2));
        orders.requeue(place);
        assert_eq!(given(&mut orders, Micros::secs(2)), [2]);
    }

    #[test]
    fn containers_do_not_wait_for_each_other() {
        let mut orders = PendingLimits::default();
        orders.push(cap(1, 1));
        assert_eq!(given(&mut orders, Micros::ZERO), [1]);
        orders.push(cap(1, 2));
        orders.push(cap(2, 3));
        assert_eq!(given(&mut orders, Micros::millis(500)), [3]);
    }

    #[test]
    fn a_disk_is_left_with_what_waits_dropped_and_what_was_given_named() {
        let mut orders = PendingLimits::default();
        orders.push(cap(1, 1));
        assert_eq!(given(&mut orders, Micros::ZERO), [1]);
        orders.push(cap(1, 2));
        orders.push(cap(2, 3));
        assert_eq!(orders.remove_disk(DeviceNumber { major: 9, minor: 0 }), []);
        assert_eq!(orders.remove_disk(cap(1, 0).disk), [CgroupId(1)]);
        assert!(given(&mut orders, Micros::secs(60)).is_empty());
    }

    #[test]
    fn a_write_that_hangs_is_not_followed_by_another() {
        let mut orders = PendingLimits::default();
        orders.push(cap(1, 1));
        assert_eq!(orders.due(Micros::ZERO).len(), 1);
        orders.push(cap(1, 2));
        assert_eq!(orders.due(Micros::secs(60)).len(), 0);
        orders.complete((CgroupId(1), cap(1, 0).disk));
        assert_eq!(given(&mut orders, Micros::secs(60)), [2]);
    }

    #[test]
    fn nothing_is_kept_of_a_container_that_is_gone() {
        let mut orders = PendingLimits::default();
        orders.push(cap(1, 1));
        orders.due(Micros::ZERO);
        orders.push(cap(1, 2));
        orders.remove_group(CgroupId(1));
        assert!(orders.waiting.is_empty() && orders.in_flight.is_empty() && orders.last_sent.is_empty());
    }
}
