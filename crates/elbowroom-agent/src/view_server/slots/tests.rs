//! The properties named in the module's documentation, and its refusals.

use super::*;
use elbowroom_types::unit::Micros;
use proptest::prelude::*;
use std::collections::HashMap;

/// Numbers that are all the same, so that a mix of two versions shows.
fn uniform(version: u64) -> (ContainerSnapshot, Vec<CpuTimes>) {
    let mut facts = SlotSnapshot::default().facts;
    facts.millicpu = version;
    facts.memory_usage.0 = version;
    facts.io[elbowroom_view::pages::snapshot::MAX_DISKS - 1].dios = version;
    (facts, vec![CpuTimes { user: Micros(version), system: Micros(version), idle: Micros(version) }; 4])
}

/// The version, when it is one.
fn version(snapshot: &SlotSnapshot) -> Option<u64> {
    let SlotSnapshot { facts, times, .. } = snapshot;
    let version = facts.millicpu;
    let disks = facts.io[elbowroom_view::pages::snapshot::MAX_DISKS - 1].dios;
    let whole = facts.memory_usage.0 == version
        && disks == version
        && times.len() == 4
        && times.iter().all(|t| t.user.0 == version && t.system.0 == version && t.idle.0 == version);
    whole.then_some(version)
}

fn slots(capacity: u32) -> Slots {
    Slots::create(capacity, 4).unwrap()
}

fn add(slots: &Slots, name: &str, version: u64) -> Result<SlotHandle, FuseError> {
    let (facts, times) = uniform(version);
    slots.add(name, (0, 0), &[7; PAGE_BITS], &facts, &times)
}

#[test]
fn a_slot_carries_name_sizes_and_numbers() {
    let slots = slots(3);
    let slot = add(&slots, "c1", 5).unwrap();
    let other = Slots::open(slots.memory().try_clone_to_owned().unwrap()).unwrap();
    let found = other.find(b"c1").unwrap();
    assert_eq!((found, other.size(found, 63), other.name(found)), (slot, Some(7), Some("c1".to_owned())));
    let mut snapshot = SlotSnapshot::default();
    other.snapshot(found, &mut snapshot).unwrap();
    assert_eq!(version(&snapshot), Some(5));
    assert!(other.find(b"c").is_none() && other.find(b"c11").is_none());
}

#[test]
fn the_containers_in_one_container_have_one_account() {
    let slots = slots(5);
    let (facts, times) = uniform(1);
    let add = |name: &str, owner, tenant| {
        slots.add(name, (owner, tenant), &[7; PAGE_BITS], &facts, &times).unwrap()
    };
    let (outer, neighbour) = (add("outer", 10, 10), add("neighbour", 20, 20));
    let inner = ["inner1", "inner2"].map(|name| add(name, 30, 10));
    let account = |slot| slots.account(slot);
    assert_eq!(inner.map(account), [account(outer); 2]);
    assert_ne!(account(outer), account(neighbour));
    assert_eq!(slots.tenant(inner[0]), 10);
    // A container in the slot of one that is gone pays for itself, while others of the gone one's tenant are there and afterwards.
    slots.remove(outer);
    let later: Vec<SlotHandle> = (40..42).map(|n| add(&format!("later{n}"), n, n)).collect();
    let all = [neighbour, inner[0], later[0], later[1]];
    let accounts: std::collections::BTreeSet<usize> = all.into_iter().map(account).collect();
    assert_eq!((accounts.len(), account(inner[1])), (4, account(inner[0])));
    assert!(accounts.iter().all(|account| *account < slots.capacity()));
}

#[test]
fn a_request_that_died_with_its_server_is_lost_where_it_cannot_be_asked_again() {
    let slots = slots(1);
    assert!(!slots.has_lost_requests(), "there was none");
    slots.count_request(false);
    assert!(slots.has_lost_requests());
    slots.set_can_resend(true);
    assert!(!slots.has_lost_requests());
    slots.set_can_resend(false);
    slots.count_answered();
    assert!(!slots.has_lost_requests());
}

#[test]
fn names_that_are_no_directories_are_refused() {
    let slots = slots(3);
    for name in ["", ".", "..", "a/b", "a\0b", &"x".repeat(MAX_NAME + 1)] {
        assert!(matches!(add(&slots, name, 1), Err(FuseError::Name { .. })), "{name:?}");
    }
    let longest = "x".repeat(MAX_NAME);
    let slot = add(&slots, &longest, 1).unwrap();
    assert_eq!(slots.name(slot), Some(longest.clone()));
    assert!(matches!(add(&slots, &longest, 1), Err(FuseError::Exists { .. })));
}

#[test]
fn a_full_house_is_refused_and_a_free_slot_is_taken_again() {
    let slots = slots(2);
    let first = add(&slots, "a", 1).unwrap();
    add(&slots, "b", 1).unwrap();
    assert!(matches!(add(&slots, "c", 1), Err(FuseError::Full { capacity: 2 })));
    slots.remove(first);
    let third = add(&slots, "c", 1).unwrap();
    assert_eq!(third.serial % 2, first.serial % 2);
    assert_ne!(third.serial, first.serial);
}

#[test]
fn a_reader_of_a_freed_slot_gets_nothing() {
    let slots = slots(1);
    let old = add(&slots, "a", 1).unwrap();
    slots.remove(old);
    let new = add(&slots, "b", 2).unwrap();
    let mut snapshot = SlotSnapshot::default();
    assert!(slots.snapshot(old, &mut snapshot).is_none());
    assert_eq!((slots.get(old.serial), slots.name(old), slots.size(old, 0)), (None, None, None));
    let (facts, times) = uniform(3);
    assert!(matches!(slots.publish(old, &facts, &times), Err(FuseError::Gone)));
    slots.mark_read(new, 3);
    assert_eq!((slots.take_read(old, u64::MAX), slots.take_read(new, u64::MAX)), (0, 8));
    slots.remove(old);
    assert!(slots.get(new.serial).is_some(), "removing twice must not remove the next");
}

#[test]
fn serials_are_never_zero_and_never_the_mounts_own() {
    let slots = slots(4);
    for name in ["a", "b", "c", "d"] {
        assert!(add(&slots, name, 1).unwrap().serial >= 4);
    }
    assert!(slots.get(0).is_none());
}

#[test]
fn a_page_read_before_the_swap_is_reported_by_it() {
    let slots = slots(1);
    let slot = add(&slots, "a", 1).unwrap();
    slots.mark_read(slot, 0);
    slots.mark_read(slot, 63);
    assert_eq!(slots.take_read(slot, 1), 1);
    assert_eq!(slots.peek_read(slot), 1 << 63);
    assert_eq!(slots.take_read(slot, u64::MAX), 1 << 63);
    assert_eq!(slots.take_read(slot, u64::MAX), 0);
}

#[test]
fn more_cpus_than_there_is_room_for_are_refused() {
    let slots = slots(1);
    let (facts, _) = uniform(1);
    let five = [CpuTimes::default(); 5];
    assert!(matches!(
        slots.add("a", (0, 0), &[0; PAGE_BITS], &facts, &five),
        Err(FuseError::TooManyCpus { got: 5, room: 4 })
    ));
}

#[test]
fn memory_of_another_layout_is_refused() {
    let slots = slots(2);
    let open = || Slots::open(slots.memory().try_clone_to_owned().unwrap());
    for (word, wrong) in [(head::MAGIC, 1), (head::LAYOUT, 1), (head::CPUS, 500), (head::CAPACITY, 0)] {
        let right = slots.words[word].swap(wrong, Ordering::SeqCst);
        assert!(matches!(open(), Err(FuseError::Layout { .. })), "word {word}");
        slots.words[word].store(right, Ordering::SeqCst);
    }
    assert!(open().is_ok());
    let unsealed = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC).unwrap();
    assert!(matches!(Slots::open(unsealed), Err(FuseError::Layout { .. })));
}

#[test]
fn unused_slots_take_no_memory() {
    let slots = slots(4096);
    (0..10).for_each(|i| drop(add(&slots, &format!("c{i}"), 1)));
    let blocks = rustix::fs::fstat(slots.memory()).unwrap().st_blocks as u64 * 512;
    assert!(blocks < 512 << 10, "{blocks} bytes");
}

#[test]
fn a_snapshot_is_one_version() {
    let slots = slots(1);
    let slot = add(&slots, "a", 1).unwrap();
    let last = 300_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for v in 2..=last {
                let (facts, times) = uniform(v);
                slots.publish(slot, &facts, &times).unwrap();
            }
        });
        let mut snapshot = SlotSnapshot::default();
        let mut newest = 0;
        while newest < last {
            slots.snapshot(slot, &mut snapshot).unwrap();
            let seen = version(&snapshot).expect("one version");
            assert!(seen >= newest, "{seen} after {newest}");
            newest = seen;
        }
    });
}

proptest! {
    #[test]
    fn slots_are_a_map_from_names_to_numbers(steps in proptest::collection::vec((0..3u8, 0..6u8, 1..99u64), 0..200)) {
        let slots = slots(4);
        let mut model: HashMap<String, (SlotHandle, u64)> = HashMap::new();
        let mut serials = std::collections::HashSet::new();
        for (what, name, v) in steps {
            let name = format!("c{name}");
            match (what, model.get(&name).copied()) {
                (0, None) if model.len() < 4 => {
                    let slot = add(&slots, &name, v).unwrap();
                    prop_assert!(serials.insert(slot.serial), "a serial came twice");
                    model.insert(name, (slot, v));
                }
                (0, _) => prop_assert!(add(&slots, &name, v).is_err()),
                (1, Some((slot, _))) => {
                    let (facts, times) = uniform(v);
                    slots.publish(slot, &facts, &times).unwrap();
                    model.insert(name, (slot, v));
                }
                (2, Some((slot, _))) => {
                    slots.remove(slot);
                    model.remove(&name);
                }
                _ => {}
            }
            let mut snapshot = SlotSnapshot::default();
            for (name, (slot, v)) in &model {
                prop_assert_eq!(slots.find(name.as_bytes()), Some(*slot));
                slots.snapshot(*slot, &mut snapshot).unwrap();
                prop_assert_eq!(version(&snapshot), Some(*v));
            }
            prop_assert_eq!(slots.iter_from(0).count(), model.len());
        }
    }
}
