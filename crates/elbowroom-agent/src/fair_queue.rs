//! The last entries of many makers, in bounded memory: the maker with most entries loses its oldest.
//!
//! A queue that only forgets its oldest can be emptied by any maker: entries made without a pause push out those of all
//! others. Here each of `n` makers keeps the last `MAX / n` of its entries, whatever the others do (longest queue drop, B. Suter et
//! al., "Design Considerations for Supporting TCP with Per-flow Queueing", 1998).

use std::collections::{BTreeMap, VecDeque};

/// A queue of at most `MAX` entries, each of a maker.
#[derive(Clone, Debug)]
pub(crate) struct FairQueue<T, const MAX: usize> {
    /// By maker, never empty; each entry with its place in the order of coming.
    makers: BTreeMap<Box<str>, VecDeque<(u64, T)>>,
    len: usize,
    next: u64,
}

impl<T, const MAX: usize> Default for FairQueue<T, MAX> {
    fn default() -> Self {
        Self { makers: BTreeMap::new(), len: 0, next: 0 }
    }
}

impl<T, const MAX: usize> FairQueue<T, MAX> {
    /// Takes an entry of a maker.
    pub(crate) fn push(&mut self, maker: &str, entry: T) {
        if self.len == MAX {
            self.forget_one(maker);
        }
        let entry = (self.next, entry);
        match self.makers.get_mut(maker) {
            Some(own) => own.push_back(entry),
            None => {
                self.makers.insert(maker.into(), VecDeque::from([entry]));
            }
        }
        self.next += 1;
        self.len += 1;
    }

    /// Those that are wanted, in the order in which they came.
    pub(crate) fn iter(&self, is_wanted: impl Fn(&T) -> bool) -> impl DoubleEndedIterator<Item = &T> {
        let mut wanted: Vec<&(u64, T)> =
            self.makers.values().flatten().filter(|(_, entry)| is_wanted(entry)).collect();
        wanted.sort_unstable_by_key(|(place, _)| *place);
        wanted.into_iter().map(|(_, entry)| entry)
    }

    /// Forgets, of each maker, the oldest entries until one is to be kept.
    pub(crate) fn retain_from(&mut self, is_kept: impl Fn(&T) -> bool) {
        for own in self.makers.values_mut() {
            while own.front().is_some_and(|(_, entry)| !is_kept(entry)) {
                own.pop_front();
                self.len -= 1;
            }
            give_back(own);
        }
        self.makers.retain(|_, own| !own.is_empty());
    }

    /// Forgets all of a maker.
    pub(crate) fn forget(&mut self, maker: &str) {
        self.len -= self.makers.remove(maker).map_or(0, |own| own.len());
    }

    /// What this takes of memory beside what entries point to, in bytes.
    pub(crate) fn allocated_bytes(&self) -> usize {
        let own = self.makers.iter().map(|(maker, own)| maker.len() + own.capacity() * size_of::<(u64, T)>());
        own.sum()
    }

    /// Forgets the oldest entry of the maker with most entries, counting the one that `comes`; of several such makers, the oldest of all.
    fn forget_one(&mut self, comes: &str) {
        let place = |own: &VecDeque<(u64, T)>| own.front().map_or(u64::MAX, |(place, _)| *place);
        let count = |maker: &str, own: &VecDeque<(u64, T)>| own.len() + usize::from(maker == comes);
        let most =
            self.makers.iter_mut().max_by_key(|(maker, own)| (count(maker, own), u64::MAX - place(own)));
        let Some((maker, own)) = most else { return };
        own.pop_front();
        self.len -= 1;
        give_back(own);
        if own.is_empty() {
            let maker = maker.clone();
            self.makers.remove(&maker);
        }
    }
}

/// Gives memory back that a maker had when it had many more entries than now.
fn give_back<T>(own: &mut VecDeque<T>) {
    if own.capacity() / 4 >= own.len().max(4) {
        own.shrink_to(own.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(queue: &FairQueue<u32, 8>) -> Vec<u32> {
        queue.iter(|_| true).copied().collect()
    }

    #[test]
    fn the_sender_with_most_loses_its_oldest() {
        let mut queue = FairQueue::<u32, 8>::default();
        for entry in 0..3 {
            queue.push("db", entry);
        }
        for entry in 100..1_000 {
            queue.push("web", entry);
        }
        assert_eq!(kept(&queue), [0, 1, 2, 995, 996, 997, 998, 999]);
        for entry in 10..20 {
            queue.push("db", entry);
        }
        assert_eq!(kept(&queue), [996, 997, 998, 999, 16, 17, 18, 19]);
    }

    #[test]
    fn memory_is_that_of_what_is_kept() {
        let mut queue = FairQueue::<u32, 4_096>::default();
        (0..4_096).for_each(|entry| queue.push("first", entry));
        let full = queue.allocated_bytes();
        for maker in 0..64 {
            (0..1_000).for_each(|entry| queue.push(&format!("maker {maker}"), entry));
            assert!(queue.allocated_bytes() < 4 * full, "{maker}: {}", queue.allocated_bytes());
        }
        queue.retain_from(|entry| *entry == 999);
        assert!(queue.len == 64 && queue.allocated_bytes() < full / 4, "{}", queue.allocated_bytes());
    }

    #[test]
    fn among_equals_it_is_the_oldest_and_none_is_there_twice_or_for_ever() {
        let mut queue = FairQueue::<u32, 8>::default();
        for entry in 0..12 {
            queue.push(&format!("job {entry}"), entry);
        }
        assert_eq!(kept(&queue), [4, 5, 6, 7, 8, 9, 10, 11]);
        assert_eq!(queue.iter(|entry| entry % 2 == 0).rev().copied().collect::<Vec<_>>(), [10, 8, 6, 4]);
        queue.retain_from(|entry| *entry > 6);
        queue.forget("job 8");
        queue.forget("job 8");
        assert_eq!((kept(&queue), queue.len), (vec![7, 9, 10, 11], 4));
    }
}
