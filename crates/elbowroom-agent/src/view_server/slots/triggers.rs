//! The words of a slot in which the view server keeps the PSI triggers of its container, so that the next server finds them.

use super::layout::{MAX_TRIGGERS, TRIGGER_WORDS, slot};
use super::{SlotHandle, Slots};
use elbowroom_types::psi_trigger::PsiTrigger;
use elbowroom_types::unit::Micros;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of a threshold, or of a window, in microseconds: 10 s are fewer than 2^24.
const TIME_BITS: u32 = 24;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

/// What the server must know of a trigger to go on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::view_server) struct StoredTrigger {
    /// The open file that it was written to; never 0.
    pub handle: u64,
    /// Of which entry of the container's pressure.
    pub resource: usize,
    /// What was written.
    pub trigger: PsiTrigger,
    /// How the kernel calls the waiter; 0 while there is none.
    pub waiter: u64,
}

impl StoredTrigger {
    fn what(&self) -> u64 {
        let PsiTrigger { full, threshold, window } = self.trigger;
        let resource = (self.resource as u64) << (2 * TIME_BITS + 1);
        resource | u64::from(full) << (2 * TIME_BITS) | threshold.get() << TIME_BITS | window.get()
    }

    fn load([handle, what, waiter]: [u64; TRIGGER_WORDS]) -> Option<Self> {
        let (threshold, window) = (Micros(what >> TIME_BITS & TIME_MASK), Micros(what & TIME_MASK));
        let trigger = PsiTrigger::new(what >> (2 * TIME_BITS) & 1 != 0, threshold, window)?;
        let resource = usize::try_from(what >> (2 * TIME_BITS + 1)).ok().filter(|resource| *resource < 3)?;
        (handle != 0).then_some(Self { handle, resource, trigger, waiter })
    }
}

impl Slots {
    /// Keeps a trigger; its place among those of the container. `None` where the container has as many as it may, or is gone.
    pub(in crate::view_server) fn store_trigger(
        &self,
        slot: SlotHandle,
        trigger: &StoredTrigger,
    ) -> Option<usize> {
        self.check_live(slot)?;
        let is_free = |place: &usize| self.trigger(slot, *place)[0].load(Ordering::Relaxed) == 0;
        let place = (0..MAX_TRIGGERS).find(is_free)?;
        let [handle, what, waiter] = self.trigger(slot, place);
        what.store(trigger.what(), Ordering::Relaxed);
        waiter.store(trigger.waiter, Ordering::Relaxed);
        // Last: a server that dies here has kept none.
        handle.store(trigger.handle, Ordering::Release);
        Some(place)
    }

    /// Stores the kernel's number of the open file that polls the trigger at a place.
    pub(in crate::view_server) fn store_waiter(&self, slot: SlotHandle, place: usize, waiter: u64) {
        if self.check_live(slot).is_some() {
            self.trigger(slot, place)[2].store(waiter, Ordering::Relaxed);
        }
    }

    /// Frees the place of a trigger.
    pub(in crate::view_server) fn remove_trigger(&self, slot: SlotHandle, place: usize) {
        if self.check_live(slot).is_some() {
            self.trigger(slot, place)[0].store(0, Ordering::Relaxed);
        }
    }

    /// The triggers of all containers: after a restart, those that the server before kept.
    pub(in crate::view_server) fn triggers(&self) -> Vec<(SlotHandle, usize, StoredTrigger)> {
        let slots = self.iter_from(0).map(|(_, slot)| slot);
        let places = slots.flat_map(|slot| (0..MAX_TRIGGERS).map(move |place| (slot, place)));
        places
            .filter_map(|(slot, place)| {
                let words = self.trigger(slot, place).each_ref().map(|word| word.load(Ordering::Acquire));
                let stored = StoredTrigger::load(words)?;
                self.check_live(slot).map(|()| (slot, place, stored))
            })
            .collect()
    }

    fn trigger(&self, slot: SlotHandle, place: usize) -> &[AtomicU64; TRIGGER_WORDS] {
        let at = self.base(slot) + slot::TRIGGERS + place * TRIGGER_WORDS;
        self.words[at..].first_chunk().expect("a place is one of those that a slot has room for")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_view::pages::snapshot::ContainerSnapshot;
    use elbowroom_view::pages::tree::nodes_with_page_bit;

    fn stored(handle: u64) -> StoredTrigger {
        let trigger = PsiTrigger::new(true, Micros::secs(10), Micros::secs(10)).unwrap();
        StoredTrigger { handle, resource: 2, trigger, waiter: 0 }
    }

    #[test]
    fn triggers_are_found_again_and_a_container_has_no_more_than_its_places() {
        let slots = Slots::create(4, 1).unwrap();
        let add = |name| slots.add(name, (0, 0), &[7; 64], &ContainerSnapshot::EMPTY, &[]).unwrap();
        let (one, other) = (add("one"), add("other"));
        for handle in 1..=MAX_TRIGGERS as u64 {
            assert_eq!(slots.store_trigger(one, &stored(handle)), Some(handle as usize - 1));
        }
        assert_eq!(slots.store_trigger(one, &stored(99)), None);
        assert_eq!(slots.store_trigger(other, &stored(99)), Some(0));
        slots.store_waiter(other, 0, 5);
        let found = slots.triggers();
        assert_eq!(found.len(), MAX_TRIGGERS + 1);
        assert_eq!(found[0], (one, 0, stored(1)));
        assert_eq!(found[MAX_TRIGGERS], (other, 0, StoredTrigger { waiter: 5, ..stored(99) }));
        slots.remove_trigger(one, 3);
        assert_eq!(slots.store_trigger(one, &stored(100)), Some(3));
        // The next container of the slot begins without.
        slots.remove(other);
        slots.remove_trigger(other, 0);
        let next = add("next");
        assert!(slots.triggers().iter().all(|(slot, ..)| *slot == one));
        assert_eq!(slots.store_trigger(other, &stored(1)), None);
        // They are beside the sizes of pages.
        assert_eq!(slots.size(one, 11), Some(7));
        assert_eq!(slots.size(next, 11), Some(7));
    }

    #[test]
    fn words_that_make_no_trigger_are_none() {
        assert_eq!(StoredTrigger::load([0, stored(1).what(), 0]), None);
        assert_eq!(StoredTrigger::load([1, 0, 0]), None);
        assert_eq!(StoredTrigger::load([1, u64::MAX, 0]), None);
        assert_eq!(StoredTrigger::load([1, stored(1).what(), 0]), Some(stored(1)));
    }

    #[test]
    fn every_page_bit_has_a_size() {
        let beyond = super::super::layout::SIZE_WORDS as u8..64;
        assert!(beyond.into_iter().all(|bit| nodes_with_page_bit(bit, &ContainerSnapshot::EMPTY).is_empty()));
    }
}
