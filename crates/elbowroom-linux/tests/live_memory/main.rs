//! The memory governor's eyes and hands on real cgroups, whichever version they are; and processes that die with a limit in
//! their hands. Needs root and the memory controller; says so and passes where it is not.

mod death;
#[path = "../rig/mod.rs"]
mod rig;
mod room;
#[path = "../live_lease/trace.rs"]
#[allow(dead_code)]
mod trace;

use elbowroom_linux::cgroup::{CgroupController, CgroupLayout, CgroupVersion};
use elbowroom_linux::lease::{CgroupKnob, Leases, UnsetValue, restore};
use elbowroom_linux::memory::{MemoryActuator, MemoryReader, ReclaimMethod, UserLimits};
use elbowroom_linux::root::Root;
use elbowroom_types::id::CgroupId;
use elbowroom_types::memory::{OrderKind, OrderOutcome, ReclaimProtection, ReclaimRequest};
use elbowroom_types::unit::{Bytes, Limit, Micros};
use room::{ID, MIB, Room, room};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

fn reclaim(amount: u64) -> ReclaimRequest {
    ReclaimRequest {
        at: Micros::ZERO,
        group: ID,
        amount: Bytes(amount),
        keep: Bytes::ZERO,
        swap: false,
        dead: false,
        saving: false,
    }
}

fn protect(low: u64, soft: Limit<Bytes>) -> ReclaimProtection {
    ReclaimProtection { at: Micros::ZERO, group: ID, low: Bytes(low), min: Bytes::ZERO, soft }
}

fn actuator() -> MemoryActuator {
    MemoryActuator::new(CgroupLayout::detect(&Root::host().unwrap()).unwrap())
}

#[test]
fn what_a_group_holds_is_what_its_programs_took() {
    let mut room = room!();
    room.hold_anon(24);
    room.hold_file(16);
    let root = Root::host().unwrap();
    let layout = CgroupLayout::detect(&root).unwrap();
    let mut reader = MemoryReader::new(root, layout);
    let path = room.path();
    let node = reader.node();
    assert_eq!(reader.group(CgroupId(8), "/elbowroom-test-not-there", node.swap_free), None);
    let memory = reader.group(ID, &path, node.swap_free).unwrap();
    let within = |value: Bytes, mib: u64| (mib * MIB..(mib + 24) * MIB).contains(&value.get());
    assert!(within(memory.anon, 24) && within(memory.file, 16), "{memory:?}");
    assert!(memory.usage.get() >= memory.anon.get() + memory.file.get() && memory.populated, "{memory:?}");
    let cache = memory.inactive_file.saturating_add(memory.active_file);
    // Some pages still wait in each CPU's batch for the lists (mm/swap.c, `cpu_fbatches`).
    assert!(within(cache.saturating_add(Bytes(MIB)), 16), "{memory:?}");
    assert!(node.mem_available > Bytes::ZERO && node.mem_free > Bytes::ZERO);
    if room.has_pressure() {
        assert!(memory.stalls.is_some(), "{memory:?}");
    }
    // Another group that has its path now is another one.
    room.remake();
    assert_eq!(reader.group(ID, &path, node.swap_free), None);
}

/// Fifty such containers were killed while their limit was lowered to take what little they cache.
#[test]
fn processes_that_run_there_meet_no_limit_of_ours() {
    let mut room = room!();
    let (mut leases, mut actuator) = (Leases::open(&room.ledger()).unwrap(), actuator());
    if actuator.reclaim_method(&room.path()) == Some(ReclaimMethod::TransientHigh) {
        println!("skipped: needs memory.reclaim or cgroup v1");
        return;
    }
    let mut take = |room: &Room| actuator.reclaim(&mut leases, &reclaim(4 * MIB), &room.path());
    room.reread(6);
    // More than is ever there at once: some of it came back in between.
    let mut taken = 0;
    room.until(|room| {
        taken += take(room).reclaimed.get();
        taken > 16 * MIB
    });
    let pid = room.churn(4);
    (0..30).for_each(|_| drop(take(&room)));
    match room.version() {
        CgroupVersion::V1 => assert_eq!(room.read("memory.failcnt"), "0"),
        CgroupVersion::V2 => {
            let events = room.read("memory.events");
            assert!(events.contains("high 0\nmax 0\noom 0"), "{events}");
        }
    }
    assert!(room.is_alive(pid));
}

/// At swappiness 0, the kernel kills a container at its limit although swap is left.
#[test]
fn no_container_is_kept_out_of_swap_while_page_cache_is_taken() {
    let mut room = room!();
    if room.version() == CgroupVersion::V2 || room.swap_free() < 256 * MIB {
        println!("skipped: needs cgroup v1 and 256 MiB of swap");
        return;
    }
    let (mut leases, mut actuator) = (Leases::open(&room.ledger()).unwrap(), actuator());
    let pids = [room.hold_anon(48), room.churn(24), room.reread(8)];
    room.set_limit(64);
    let (users, file) = (room.read("memory.swappiness"), room.dir().join("memory.swappiness"));
    let over = AtomicBool::new(false);
    let seen: BTreeSet<String> = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut seen = BTreeSet::new();
            while !over.load(Ordering::Relaxed) {
                seen.insert(std::fs::read_to_string(&file).unwrap().trim().to_owned());
            }
            seen
        });
        for _ in 0..100 {
            actuator.reclaim(&mut leases, &reclaim(4 * MIB), &room.path());
        }
        over.store(true, Ordering::Relaxed);
        watcher.join().unwrap()
    });
    assert_eq!(seen, BTreeSet::from(["1".to_owned(), users]));
    assert!(room.read("memory.failcnt") != "0", "it never was at its limit");
    assert!(pids.iter().all(|pid| room.is_alive(*pid)), "{}", room.read("memory.oom_control"));
    assert_eq!((room.limits(), room.records()), (room.set(64), 0));
}

#[test]
fn a_dead_group_that_a_process_came_into_keeps_all() {
    let mut room = room!();
    room.hold_file(16);
    let (mut leases, mut actuator) = (Leases::open(&room.ledger()).unwrap(), actuator());
    let order = ReclaimRequest { dead: true, ..reclaim(room.usage()) };
    let done = actuator.reclaim(&mut leases, &order, &room.path());
    assert_eq!((done.outcome, done.reclaimed), (OrderOutcome::Late, Bytes::ZERO));
}

/// Such a group is as small as a limit of nothing: that limit comes about, and goes.
#[test]
fn a_group_that_everything_was_taken_from_has_its_users_limit() {
    let mut room = room!();
    room.set_limit(256);
    let pid = room.hold_file(16);
    room.end(pid);
    let (mut leases, mut actuator) = (Leases::open(&room.ledger()).unwrap(), actuator());
    for _ in 0..20 {
        actuator.reclaim(&mut leases, &reclaim(room.usage()), &room.path());
        assert_eq!((room.limits(), room.records()), (room.set(256), 0));
    }
}

#[test]
fn page_cache_goes_and_the_users_limit_is_as_it_was() {
    let mut room = room!();
    room.set_limit(256);
    room.hold_file(96);
    let mut leases = Leases::open(&room.ledger()).unwrap();
    let mut actuator = actuator();
    let before = room.usage();
    // An order ends when its time is over; on a slow machine it takes more than one.
    let mut told = 0;
    for _ in 0..20 {
        let done = actuator.reclaim(&mut leases, &reclaim(48 * MIB - told), &room.path());
        assert!(matches!(done.outcome, OrderOutcome::Done | OrderOutcome::Partly), "{done:?}");
        assert_eq!((done.group, done.what, room.limits()), (ID, OrderKind::Reclaim, room.set(256)));
        told += done.reclaimed.get();
        if done.outcome == OrderOutcome::Done || told >= 48 * MIB {
            break;
        }
    }
    let fell = before.saturating_sub(room.usage());
    assert!((40 * MIB..80 * MIB).contains(&fell), "{fell} of {before}, told {told}");
    assert!(told.abs_diff(fell) < 8 * MIB, "told {told} of {fell}");
    assert_eq!((room.limits(), room.records()), (room.set(256), 0));
}

#[test]
fn what_is_only_saved_goes_by_the_way_that_sets_nothing_or_not_at_all() {
    let mut room = room!();
    room.set_limit(256);
    room.hold_file(96);
    let (mut leases, mut actuator) = (Leases::open(&room.ledger()).unwrap(), actuator());
    let (before, order) = (room.usage(), ReclaimRequest { saving: true, ..reclaim(8 * MIB) });
    let sets_nothing = actuator.reclaim_method(&room.path()) == Some(ReclaimMethod::Reclaim);
    let mut taken = 0;
    for _ in 0..20 {
        let done = actuator.reclaim(&mut leases, &order, &room.path());
        taken += done.reclaimed.get();
        assert_eq!((room.limits(), room.records()), (room.set(256), 0));
        match done.outcome {
            OrderOutcome::Done | OrderOutcome::Partly => assert!(sets_nothing),
            // The first on a kernel that does not know `swappiness=`; then nothing of a group that could swap.
            OrderOutcome::Late => assert!(sets_nothing && done.reclaimed == Bytes::ZERO),
            OrderOutcome::Refused(why) if sets_nothing => assert!(why.contains("Linux 6.7"), "{why}"),
            OrderOutcome::Refused(why) => assert!(why.contains("needs memory.reclaim"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    let swaps = room.swap_free() > 0;
    let at_least = if sets_nothing && !swaps { 8 * MIB } else { 0 };
    assert!(taken >= at_least && (sets_nothing || taken == 0), "{taken}");
    assert!(before.saturating_sub(room.usage()) + 4 * MIB > taken, "{taken}");
}

#[test]
fn what_it_gave_back_itself_meanwhile_is_not_taken_once_more() {
    let mut room = room!();
    room.set_limit(256);
    room.hold_file(96);
    let (mut leases, mut actuator) = (Leases::open(&room.ledger()).unwrap(), actuator());
    let keep = Bytes(room.usage() - 16 * MIB);
    // On a slow machine it takes more than one order.
    let outcome = (0..20).find_map(|_| {
        let done = actuator.reclaim(&mut leases, &ReclaimRequest { keep, ..reclaim(64 * MIB) }, &room.path());
        (done.outcome != OrderOutcome::Partly).then_some(done.outcome)
    });
    // Reclaim works in batches and takes more than was asked; the whole order would be 48 MiB more.
    assert!(room.usage() + 24 * MIB > keep.get(), "{} of {keep}", room.usage());
    assert!(room.usage() < keep.get() + 8 * MIB, "{outcome:?}: {} of {keep}", room.usage());
    let below = ReclaimRequest { keep: Bytes(room.usage() + 16 * MIB), ..reclaim(MIB) };
    let done = actuator.reclaim(&mut leases, &below, &room.path());
    assert_eq!((done.outcome, done.reclaimed), (OrderOutcome::Late, Bytes::ZERO));
}

#[test]
fn a_transient_limit_that_could_not_be_put_back_goes_with_the_next_beat() {
    let room = room!();
    room.set_limit(256);
    let (mut leases, mut actuator) = (Leases::open(&room.ledger()).unwrap(), actuator());
    let layout = CgroupLayout::detect(&Root::host().unwrap()).unwrap();
    let path = room.path();
    let (version, dir) =
        layout.dir(CgroupController::Memory, std::path::Path::new(path.trim_start_matches('/'))).unwrap();
    let (file, unset) = match version {
        CgroupVersion::V1 => ("memory.limit_in_bytes", UnsetValue::MinusOne),
        CgroupVersion::V2 => ("memory.high", UnsetValue::Max),
    };
    let knob = CgroupKnob::new(&dir, file, None, unset).unwrap();
    leases.set(&knob, Limit::At(128 * MIB), "reclaim").unwrap();
    assert_eq!((room.read(file), room.records()), ((128 * MIB).to_string(), 1));
    actuator.expire(&mut leases);
    assert_eq!((room.limits(), room.records()), (room.set(256), 0));
}

#[test]
fn what_cannot_go_stays_and_so_does_every_process() {
    let mut room = room!();
    if room.swap_free() > 0 && room.version() == CgroupVersion::V2 {
        println!("skipped: needs no swap, or a kernel that can be told to leave it alone");
        return;
    }
    room.set_limit(256);
    let pid = room.hold_anon(64);
    let mut leases = Leases::open(&room.ledger()).unwrap();
    let done = actuator().reclaim(&mut leases, &reclaim(48 * MIB), &room.path());
    assert_eq!(done.outcome, OrderOutcome::Partly, "{done:?}");
    assert!(done.reclaimed < Bytes(16 * MIB) && room.usage() > 64 * MIB, "{done:?}");
    assert_eq!((room.limits(), room.records()), (room.set(256), 0));
    assert!(room.is_alive(pid));
}

#[test]
fn anonymous_memory_goes_to_swap_where_it_may_and_stays_where_it_may_not() {
    let mut room = room!();
    if room.swap_free() < 256 * MIB {
        println!("skipped: needs 256 MiB of swap: tests/vm/run");
        return;
    }
    room.hold_anon(96);
    let (mut leases, mut actuator) = (Leases::open(&room.ledger()).unwrap(), actuator());
    let (limits, before) = (room.limits(), room.usage());
    let done = actuator.reclaim(&mut leases, &reclaim(32 * MIB), &room.path());
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    if room.version() == CgroupVersion::V2 && ["5.", "6.1."].iter().any(|old| kernel.starts_with(old)) {
        println!(
            "skipped: needs Linux 6.7, whose memory.reclaim can be told to leave anonymous memory alone"
        );
        return;
    }
    assert_eq!(done.outcome, OrderOutcome::Partly, "{done:?}");
    assert!(room.usage() + 16 * MIB > before, "{done:?}");
    // One order takes what a CPU compresses within its patience, which on an emulated one beside others is little.
    let mut taken = Bytes::ZERO;
    for _ in 0..20 {
        let order = ReclaimRequest { swap: true, ..reclaim(32 * MIB - taken.get()) };
        taken = taken.saturating_add(actuator.reclaim(&mut leases, &order, &room.path()).reclaimed);
        if taken > Bytes(16 * MIB) {
            break;
        }
    }
    assert!(room.usage() + 16 * MIB < before && taken > Bytes(16 * MIB), "{taken:?}");
    assert_eq!((room.limits(), room.records()), (limits, 0));
}

#[test]
fn a_group_without_processes_gives_everything() {
    let mut room = room!();
    let pid = room.hold_file(64);
    room.end(pid);
    assert!(room.usage() > 60 * MIB);
    let mut leases = Leases::open(&room.ledger()).unwrap();
    let order = ReclaimRequest { dead: true, ..reclaim(room.usage()) };
    let done = actuator().reclaim(&mut leases, &order, &room.path());
    assert!(room.usage() < 8 * MIB, "{done:?} {}", room.usage());
    assert_eq!(room.records(), 0);
}

#[test]
fn a_group_that_is_gone_is_gone() {
    let room = room!();
    let mut leases = Leases::open(&room.ledger()).unwrap();
    let mut actuator = actuator();
    let path = "/elbowroom-test-not-there";
    assert_eq!(actuator.reclaim(&mut leases, &reclaim(MIB), path).outcome, OrderOutcome::Gone);
    assert_eq!(
        actuator.protect(&mut leases, &protect(MIB, Limit::At(Bytes(MIB))), path).outcome,
        OrderOutcome::Gone
    );
    assert_eq!(actuator.user_limits(&leases, path), UserLimits::default());
}

#[test]
fn protection_reaches_through_every_group_above_and_goes_with_us() {
    let room = room!();
    let (mut leases, mut actuator) = (Leases::open(&room.ledger()).unwrap(), actuator());
    let soft = Limit::At(Bytes(80 * MIB));
    match room.version() {
        CgroupVersion::V1 => {
            let user = room.read("memory.soft_limit_in_bytes");
            let done = actuator.protect(&mut leases, &protect(0, soft), &room.path());
            assert_eq!(done.outcome, OrderOutcome::Done, "{done:?}");
            assert_eq!(room.read("memory.soft_limit_in_bytes"), (80 * MIB).to_string());
            assert_eq!(actuator.user_limits(&leases, &room.path()).memory_soft, Some(Limit::Max));
            actuator.protect(&mut leases, &protect(0, Limit::Max), &room.path());
            assert_eq!((room.read("memory.soft_limit_in_bytes"), room.records()), (user.clone(), 0));
            // A promise of the user's is not made smaller.
            room.write("memory.soft_limit_in_bytes", &(100 * MIB).to_string());
            actuator.protect(&mut leases, &protect(0, soft), &room.path());
            assert_eq!(room.read("memory.soft_limit_in_bytes"), (100 * MIB).to_string());
            room.write("memory.soft_limit_in_bytes", "-1");
            actuator.protect(&mut leases, &protect(0, soft), &room.path());
            drop(leases);
            restore(&room.ledger()).unwrap();
            assert_eq!(room.read("memory.soft_limit_in_bytes"), user);
        }
        CgroupVersion::V2 => {
            room.write("memory.low", &(10 * MIB).to_string());
            room.write_above("memory.low", &(50 * MIB).to_string());
            let low = |room: &Room| (room.read("memory.low"), room.read_above("memory.low"));
            let mib = |own: u64, above: u64| ((own * MIB).to_string(), (above * MIB).to_string());
            for (claim, expect) in
                [(80, mib(80, 120)), (30, mib(30, 70)), (5, mib(10, 50)), (60, mib(60, 100))]
            {
                let done = actuator.protect(&mut leases, &protect(claim * MIB, soft), &room.path());
                assert_eq!((done.outcome, low(&room)), (OrderOutcome::Done, expect), "{claim}");
            }
            assert_eq!(
                actuator.user_limits(&leases, &room.path()).memory_low,
                Some(Limit::At(Bytes(10 * MIB)))
            );
            actuator.forget(&mut leases, ID);
            assert_eq!(room.read_above("memory.low"), (50 * MIB).to_string());
            // What its own user claims counts for nothing without cover.
            room.write_above("memory.low", "0");
            for (claim, expect) in [(5, mib(10, 10)), (30, mib(30, 30)), (0, mib(10, 0))] {
                actuator.protect(&mut leases, &protect(claim * MIB, soft), &room.path());
                assert_eq!(low(&room), expect, "{claim} without cover");
            }
            // What a user of the host writes into a cgroup that it made gets none.
            room.give_above_to(1_000);
            for (claim, expect) in [(5, mib(10, 5)), (30, mib(30, 30)), (0, mib(10, 0))] {
                actuator.protect(&mut leases, &protect(claim * MIB, soft), &room.path());
                assert_eq!(low(&room), expect, "{claim} in a user's cgroup");
            }
            room.give_above_to(0);
            room.write_above("memory.low", &(50 * MIB).to_string());
            // Another program's value of a group above stays, and the container's own is still ours.
            actuator.protect(&mut leases, &protect(60 * MIB, soft), &room.path());
            room.write_above("memory.low", &(20 * MIB).to_string());
            let done = actuator.protect(&mut leases, &protect(70 * MIB, soft), &room.path());
            assert!(matches!(done.outcome, OrderOutcome::Refused(_)), "{done:?}");
            assert_eq!(low(&room), mib(70, 20));
            actuator.forget(&mut leases, ID);
            drop(leases);
            restore(&room.ledger()).unwrap();
            assert_eq!(low(&room), mib(10, 20));
            (leases, actuator) = (Leases::open(&room.ledger()).unwrap(), crate::actuator());
            room.write_above("memory.low", &(50 * MIB).to_string());
            actuator.protect(&mut leases, &protect(60 * MIB, soft), &room.path());
            // It goes while an order for it is on its way.
            std::fs::remove_dir(room.dir()).unwrap();
            let done = actuator.protect(&mut leases, &protect(70 * MIB, soft), &room.path());
            assert_eq!(
                (done.outcome, room.read_above("memory.low")),
                (OrderOutcome::Gone, (50 * MIB).to_string())
            );
            actuator.forget(&mut leases, ID);
            assert_eq!(room.records(), 0);
            std::fs::create_dir(room.dir()).unwrap();
            room.write("memory.low", &(10 * MIB).to_string());
            actuator.protect(&mut leases, &protect(60 * MIB, soft), &room.path());
            drop(leases);
            restore(&room.ledger()).unwrap();
            assert_eq!(low(&room), mib(10, 50));
        }
    }
    assert_eq!(room.records(), 0);
}

#[test]
fn a_limit_that_its_user_changes_meanwhile_stays() {
    let mut room = room!();
    room.set_limit(256);
    room.hold_file(64);
    let (mut leases, mut actuator) = (Leases::open(&room.ledger()).unwrap(), actuator());
    actuator.reclaim(&mut leases, &reclaim(8 * MIB), &room.path());
    room.set_limit(200);
    let done = actuator.reclaim(&mut leases, &reclaim(8 * MIB), &room.path());
    assert_eq!((done.outcome, room.limits(), room.records()), (OrderOutcome::Done, room.set(200), 0));
}

#[test]
fn the_way_is_the_gentlest_that_the_kernel_has() {
    let room = room!();
    let way = actuator().reclaim_method(&room.path());
    let expect = match room.version() {
        CgroupVersion::V1 => ReclaimMethod::TransientLimit,
        CgroupVersion::V2 if room.dir().join("memory.reclaim").exists() => ReclaimMethod::Reclaim,
        CgroupVersion::V2 => ReclaimMethod::TransientHigh,
    };
    assert_eq!(way, Some(expect));
}
