//! Effective memory on a machine whose memory is full of page cache: `ViewPolicy::reclaimable_memory`.

use crate::world::{World, threads, weight};
use elbowroom_sim::{NodeProgram, ProgramDemand};
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::{CgroupSettings, HostEvent, ReclaimCounters, Tick};
use elbowroom_types::unit::{Bytes, Limit, Micros};
use elbowroom_view::rules::{ViewChange, ViewChangeReason, ViewPolicy};
use proptest::collection::vec;
use proptest::prelude::*;

const TICK: Micros = Micros::millis(24);
const MEMORY: Bytes = Bytes::gib(2);

fn limits(soft: u64, hard: u64) -> CgroupSettings {
    let at = |mib| Some(Limit::At(Bytes::mib(mib)));
    CgroupSettings { memory_soft: at(soft), memory_max: at(hard), ..weight(100) }
}

/// Fills `mib`, 4 MiB a tick, as far as it is shown.
fn fills(mib: u64) -> NodeProgram {
    let mut held = Bytes::ZERO;
    Box::new(move |_, view| {
        let shown = view.map_or(Bytes::ZERO, |view| view.memory);
        held = held.saturating_add(Bytes::mib(4)).min(Bytes::mib(mib)).min(shown);
        ProgramDemand { threads: 0, memory: held }
    })
}

/// Between the marks of such a machine, where kswapd keeps it.
const WARM_FREE: Bytes = Bytes::mib(5);

/// The next tick of a machine of which page cache takes nearly all that programs leave; on a fresh one there is no cache.
fn tick(world: &mut World, warm: bool) -> Tick {
    let HostEvent::Tick(tick) = world.sim.tick(&world.views, TICK) else { panic!("a tick") };
    let mem_free = if warm { tick.mem_free.min(WARM_FREE) } else { tick.mem_free };
    Tick { mem_available: Some(tick.mem_free), mem_free, ..tick }
}

fn run(world: &mut World, warm: bool, ticks: u32) -> Vec<ViewChange> {
    (0..ticks)
        .flat_map(|_| {
            let tick = tick(world, warm);
            world.apply(HostEvent::Tick(tick))
        })
        .collect()
}

#[test]
fn a_container_grows_on_a_warm_machine_and_not_by_the_paper() {
    let grown = |policy: ViewPolicy| {
        let mut world = World::new(policy, 4, MEMORY);
        let HostEvent::Node(node) = world.sim.node() else { panic!("a node") };
        assert!(node.low_mark < WARM_FREE && WARM_FREE < node.high_mark);
        let id = world.container(None, limits(256, 1024), fills(400));
        run(&mut world, true, 250);
        world.view(id).memory
    };
    assert!(grown(ViewPolicy::default()) > Bytes::mib(400));
    assert!(grown(ViewPolicy { reclaimable_memory: false, ..ViewPolicy::default() }) < Bytes::mib(400));
}

#[test]
fn a_recording_without_the_field_replays_as_it_was() {
    let text = r#"{"now": 1, "busy": 2, "busy_per_cpu": [], "mem_free": 3, "usage": []}"#;
    let tick: Tick = serde_json::from_str(text).unwrap();
    assert_eq!((tick.mem_available, tick.reclaim), (None, None));
    let mut world = World::new(ViewPolicy::default(), 4, MEMORY);
    let id = world.container(None, limits(256, 1024), fills(400));
    for _ in 0..250 {
        let tick = tick_without_field(&mut world);
        world.apply(HostEvent::Tick(tick));
    }
    assert!(world.view(id).memory > Bytes::mib(400), "what is free counts");
    let none = Tick { now: Micros::secs(60), ..Tick::default() };
    world.apply(HostEvent::Tick(none));
    assert_eq!(
        world.view(id).memory,
        Bytes::mib(256),
        "and none is free: absent is not zero, and not everything"
    );
}

fn tick_without_field(world: &mut World) -> Tick {
    Tick { mem_available: None, ..tick(world, false) }
}

#[test]
fn what_others_reserved_is_not_granted() {
    let grown = |reserved: u64| {
        let mut world = World::new(ViewPolicy::default(), 4, MEMORY);
        let id = world.container(None, limits(256, 2000), fills(2000));
        world.container(None, limits(reserved, 2000), threads(0));
        run(&mut world, true, 1_000);
        world.view(id).memory
    };
    assert!(grown(1) > Bytes::mib(1_700));
    assert!(grown(1_000) < Bytes::mib(2_048 - 32 - 5 - 1_000), "{}", grown(1_000));
}

/// Counters as if reclaim had hurt in each second but for those in `calm`.
fn reclaim(at: Micros, hurts: bool, lost: &mut u64) -> ReclaimCounters {
    *lost += if hurts { 1_000 } else { 0 };
    let scanned = at.get();
    ReclaimCounters {
        stalled: Some(Micros(*lost * 100)),
        scanned,
        scanned_for_limits: 0,
        lost: *lost,
        refaulted_files: 0,
    }
}

#[test]
fn reclaim_that_hurts_takes_grants_back_and_nothing_grows_for_a_while() {
    let mut world = World::new(ViewPolicy::default(), 4, MEMORY);
    let id = world.container(None, limits(256, 1024), fills(1_000));
    let mut lost = 0;
    let mut step = |world: &mut World, hurts| {
        let tick = tick(world, true);
        let reclaim = reclaim(tick.now, hurts, &mut lost);
        world.apply(HostEvent::Tick(Tick { reclaim: Some(reclaim), ..tick }))
    };
    (0..400).for_each(|_| drop(step(&mut world, false)));
    assert!(world.view(id).memory > Bytes::mib(900), "kswapd breathes all the time");
    let changes = step(&mut world, true);
    assert!(
        matches!(changes[..], [change] if matches!(change.because, ViewChangeReason::ReclaimHurts { lost: 1_000, .. }))
    );
    assert_eq!(world.view(id).memory, Bytes::mib(256));
    for _ in 0..200 {
        assert_eq!(step(&mut world, false), [], "nothing grows while programs shrink");
    }
    (0..50).for_each(|_| drop(step(&mut world, false)));
    assert!(world.view(id).memory > Bytes::mib(256), "and then it does");
}

#[test]
fn files_that_come_back_take_grants_back_where_the_kernel_does_not_say_that_they_were_in_use() {
    let mut world = World::new(ViewPolicy::default(), 4, MEMORY);
    let id = world.container(None, limits(256, 1024), fills(1_000));
    let (mut refaulted_files, mut scanned) = (0, 0);
    let mut look = |world: &mut World, pages| {
        (refaulted_files, scanned) = (refaulted_files + pages, scanned + 1);
        let reclaim = ReclaimCounters {
            stalled: Some(Micros::ZERO),
            scanned,
            refaulted_files,
            ..ReclaimCounters::default()
        };
        let tick = tick(world, true);
        world.apply(HostEvent::Tick(Tick { reclaim: Some(reclaim), ..tick }))
    };
    (0..400).for_each(|_| drop(look(&mut world, 0)));
    assert!(world.view(id).memory > Bytes::mib(900));
    // A tick is 24 ms.
    let fell = (0..200).find(|_| !look(&mut world, 100).is_empty()).unwrap();
    assert!((80..90).contains(&fell), "after two seconds: {fell}");
    assert_eq!(world.view(id).memory, Bytes::mib(256));
    for _ in 0..400 {
        assert_eq!(look(&mut world, 100), [], "nothing grows while a neighbour reads its files again");
    }
    (0..200).for_each(|_| drop(look(&mut world, 0)));
    assert!(world.view(id).memory > Bytes::mib(256), "and then it does");
    (0..200).for_each(|_| drop(look(&mut world, 100)));
    let grows_again = (0..4_000).find(|_| !look(&mut world, 100).is_empty()).unwrap();
    assert!(grows_again > 2_000, "after a minute what comes back is usual: {grows_again}");
}

#[test]
fn the_paper_knows_neither_what_could_be_had_nor_what_hurts() {
    let mut world = World::new(ViewPolicy::paper(), 4, MEMORY);
    let id = world.container(None, limits(256, 1024), fills(1_000));
    let mut lost = 0;
    for _ in 0..400 {
        let tick = tick(&mut world, false);
        let reclaim = reclaim(tick.now, true, &mut lost);
        world.apply(HostEvent::Tick(Tick {
            reclaim: Some(reclaim),
            mem_available: Some(Bytes::ZERO),
            ..tick
        }));
    }
    assert!(world.view(id).memory > Bytes::mib(900));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn a_warm_machine_decides_like_a_fresh_one(
        specs in vec((16u64..600, 0u64..1_000, 0u64..1_200), 1..6)
    ) {
        let live = |warm| {
            let mut world = World::new(ViewPolicy::default(), 4, MEMORY);
            let ids: Vec<CgroupId> = specs
                .iter()
                .map(|(soft, more, fill)| world.container(None, limits(*soft, soft + more), fills(*fill)))
                .collect();
            let mut grown = Bytes::ZERO;
            for _ in 0..150 {
                let tick = tick(&mut world, warm);
                let left = tick.mem_available.unwrap();
                for change in world.apply(HostEvent::Tick(tick)) {
                    if let ViewChangeReason::Pressed { predict, high_mark, .. } = change.because {
                        assert!(left.saturating_sub(predict) > high_mark, "growth leaves room");
                        grown = grown.max(predict);
                    }
                }
                for id in &ids {
                    let view = world.view(*id);
                    assert!(view.memory_soft <= view.memory && view.memory <= view.memory_hard);
                }
            }
            (ids.iter().map(|id| world.view(*id).memory).collect::<Vec<_>>(), grown)
        };
        prop_assert_eq!(live(true), live(false));
    }
}
