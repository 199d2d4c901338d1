//! Every order of loads and stores that the memory model allows, for a writer and a reader. Loom takes sequentially consistent loads and
//! stores for acquire and release, so `Slots::peek_read`, which needs more, has no model.

use super::Slot;
use super::versions::{mark_read, take_read};
use loom::sync::Arc;
use loom::thread;

#[test]
fn a_snapshot_is_one_version() {
    loom::model(|| {
        let slot = Arc::new(Slot::new(1));
        let writer = {
            let slot = Arc::clone(&slot);
            // Two: the second is written over the buffer that the reader may be at.
            thread::spawn(move || (1..=2).for_each(|version| slot.publish(version)))
        };
        let first = slot.version(1).expect("it stays");
        let second = slot.version(1).expect("it stays");
        assert!(first <= second, "{second} after {first}");
        writer.join().unwrap();
        assert_eq!(slot.version(1), Some(2));
    });
}

#[test]
fn a_reader_of_a_freed_slot_gets_nothing_of_the_next_container() {
    loom::model(|| {
        let slot = Arc::new(Slot::new(1));
        let writer = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                slot.remove();
                slot.add(2, 7);
            })
        };
        assert!(matches!(slot.owner(1), None | Some(1)), "another container's name");
        assert!(matches!(slot.version(1), None | Some(0)), "another container's numbers");
        assert!(matches!(slot.version(2), None | Some(7)), "numbers of the container before");
        writer.join().unwrap();
    });
}

#[test]
fn a_page_read_before_the_swap_is_reported_by_it_or_new() {
    loom::model(|| {
        let slot = Arc::new(Slot::new(1));
        let reader = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                mark_read(&slot.read, 5);
                slot.version(1)
            })
        };
        slot.publish(1);
        let reported = take_read(&slot.read, 1 << 5) != 0;
        let seen = reader.join().unwrap();
        assert!(reported || seen == Some(1), "a page with {seen:?} stays cached");
    });
}
