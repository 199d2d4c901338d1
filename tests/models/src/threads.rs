//! Under Miri: bytes that are made words and back, and threads in orders that Miri draws (`-Zmiri-many-seeds`), with loads that see old
//! stores where the memory model lets them.

use super::words::{facts_bytes, load_facts, load_times, store_bytes};
use super::{AtomicU64, Slot};
use elbowroom_view::pages::mapped::MappedView;
use elbowroom_view::pages::snapshot::ContainerSnapshot;
use std::sync::atomic::Ordering;
use std::thread;

#[test]
fn numbers_become_words_and_numbers_again() {
    let mut facts = ContainerSnapshot::EMPTY;
    facts.millicpu = 1500;
    facts.memory_usage.0 = u64::MAX;
    let words: Vec<_> = (0..facts_bytes(&facts).len() / 8).map(|_| AtomicU64::new(0)).collect();
    store_bytes(&words, facts_bytes(&facts));
    let back = load_facts(&words);
    assert_eq!(facts_bytes(&back), facts_bytes(&facts));
    assert_eq!((back.millicpu, back.memory_usage.0), (1500, u64::MAX));
    let times = load_times(&[AtomicU64::new(1), AtomicU64::new(2), AtomicU64::new(3)]);
    assert_eq!((times.user.0, times.system.0, times.idle.0), (1, 2, 3));
}

#[test]
fn any_words_are_numbers() {
    let len = facts_bytes(&ContainerSnapshot::EMPTY).len() / 8;
    for fill in [0, u64::MAX, 0x5555_5555_5555_5555] {
        let words: Vec<_> = (0..len).map(|_| AtomicU64::new(fill)).collect();
        assert!(facts_bytes(&load_facts(&words)).iter().all(|byte| *byte == fill as u8));
    }
}

#[test]
fn the_page_of_a_container_is_words() {
    let view = MappedView { cpus: 3, ..MappedView::DETACHED };
    assert_eq!(MappedView { cpus: 3, ..MappedView::DETACHED }.to_words(), view.to_words());
}

#[test]
fn a_snapshot_is_one_version_while_containers_come_and_go() {
    let slot = Slot::new(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            (1..=3).for_each(|version| slot.publish(version));
            slot.remove();
            slot.add(2, 9);
        });
        for _ in 0..4 {
            assert!(slot.version(1).is_none_or(|version| version <= 3));
            assert!(slot.version(2).is_none_or(|version| version == 9));
        }
    });
    assert_eq!(slot.generation.load(Ordering::Relaxed), 4);
}
