//! The paper's own scenarios, with its numbers, on the toy node and `policy = "paper"`.

use crate::world::{Knob, World, a_thread_per_cpu, quota, threads, weight};
use elbowroom_sim::{NodeProgram, ProgramDemand};
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::CgroupSettings;
use elbowroom_types::unit::{Bytes, Limit};
use elbowroom_view::rules::{ViewChangeReason, ViewDelta, ViewRules};

const MEMORY: Bytes = Bytes::gib(128);

#[test]
fn five_busy_containers_with_a_limit_of_10_on_20_cpus_end_at_4() {
    let mut world = World::new(ViewRules::paper(), 20, MEMORY);
    let knobs: Vec<Knob> = (0..5).map(|_| Knob::default()).collect();
    let ids: Vec<CgroupId> =
        knobs.iter().map(|k| world.container(None, quota(10_000), k.follower())).collect();
    assert_eq!(world.cpus(&ids), [4; 5], "they start at LOWER");
    knobs[0].turn(20);
    world.run(20);
    assert_eq!(world.cpus(&ids), [10, 4, 4, 4, 4], "one that is busy alone has its limit");
    knobs.iter().for_each(|knob| knob.turn(20));
    world.run(20);
    assert_eq!(world.cpus(&ids), [4; 5]);
    assert_eq!((world.view(ids[0]).cpus_lower, world.view(ids[0]).cpus_upper), (4, 10));
}

#[test]
fn programs_that_follow_their_views_fill_the_machine_without_crowding_it() {
    let mut world = World::new(ViewRules::paper(), 20, MEMORY);
    let ids: Vec<CgroupId> =
        (0..5).map(|_| world.container(None, quota(10_000), a_thread_per_cpu())).collect();
    world.run(50);
    assert_eq!(world.cpus(&ids), [4; 5]);
}

#[test]
fn the_tenth_of_ten_grows_to_all_cpus_when_nine_go_idle() {
    let mut world = World::new(ViewRules::paper(), 20, MEMORY);
    let knobs: Vec<Knob> = (0..10).map(|_| Knob::new(20)).collect();
    let ids: Vec<CgroupId> = knobs.iter().map(|k| world.container(None, weight(100), k.program())).collect();
    world.run(20);
    assert_eq!(world.cpus(&ids), [2; 10], "all are busy");
    knobs[..9].iter().for_each(|knob| knob.turn(0));
    knobs[9].turn(19);
    let ticks = world.ticks_until(|w| w.view(ids[9]).cpus == 20);
    assert!((17..=19).contains(&ticks), "one CPU per period: {ticks}");
    assert_eq!(world.cpus(&ids[..9]), [2; 9], "the idle do not grow");
}

#[test]
fn the_tenth_of_ten_grows_to_its_limit_and_no_further() {
    let mut world = World::new(ViewRules::paper(), 20, MEMORY);
    (0..9).for_each(|_| {
        world.container(None, weight(100), threads(0));
    });
    let id = world.container(None, quota(10_000), a_thread_per_cpu());
    world.run(60);
    assert_eq!(world.view(id).cpus, 10);
}

#[test]
fn a_newcomer_lowers_the_bound_at_once_and_the_view_when_there_is_no_slack() {
    let mut world = World::new(ViewRules::paper(), 20, MEMORY);
    let old = world.container(None, weight(100), threads(20));
    world.run(5);
    let knob = Knob::default();
    let new = world.container(None, weight(100), knob.program());
    assert_eq!((world.view(old).cpus, world.view(old).cpus_lower, world.view(new).cpus), (20, 10, 10));
    knob.turn(20);
    world.run(10);
    assert_eq!(world.cpus(&[old, new]), [10, 10]);
    world.remove(old);
    assert_eq!((world.view(new).cpus, world.view(new).cpus_lower), (20, 20), "LOWER pushes it up");
}

#[test]
fn the_paper_sums_over_all_containers_wherever_they_are() {
    let mut world = World::new(ViewRules::paper(), 12, MEMORY);
    let slice = world.slice(None, "pods", weight(10_000));
    let pod = world.slice(Some(slice), "pod", quota(1_000));
    let deep = world.container(Some(pod), weight(200), threads(0));
    let flat = world.container(None, weight(100), threads(0));
    assert_eq!(world.cpus(&[deep, flat]), [8, 4], "by their own weights, beside no pod");
}

/// 30 GiB hard, 15 GiB soft.
fn elastic() -> CgroupSettings {
    let at = |n| Some(Limit::At(Bytes::gib(n)));
    CgroupSettings { memory_max: at(30), memory_soft: at(15), ..weight(100) }
}

/// A heap that grows by up to `rate` a period into what it is shown, and shrinks into it.
fn heap(rate: Bytes) -> NodeProgram {
    let mut held = Bytes::ZERO;
    Box::new(move |_, view| {
        let room = view.map_or(Bytes::ZERO, |view| view.memory);
        held = held.saturating_add(rate).min(room);
        ProgramDemand { threads: 0, memory: held }
    })
}

#[test]
fn effective_memory_grows_from_the_soft_to_the_hard_limit() {
    let mut world = World::new(ViewRules::paper(), 20, MEMORY);
    let id = world.container(None, elastic(), heap(Bytes::mib(64)));
    assert_eq!(world.view(id).memory, Bytes::gib(15));
    let changes = world.run(600);
    assert_eq!(world.view(id).memory, Bytes::gib(30));
    let first =
        changes.iter().find(|change| matches!(change.because, ViewChangeReason::Pressed { .. })).unwrap();
    let ViewDelta::Memory { from, to } = first.what else { panic!("{first:?}") };
    assert_eq!((from, to), (Bytes::gib(15), Bytes::mib(15 * 1024 + 1536)), "a tenth of the 15 that are left");
}

/// Five heaps that grow at `rate`: where they are after a minute, in tenths of a GiB, and how often reclaim threw one back.
fn five_heaps(policy: ViewRules, rate: Bytes) -> (Vec<u64>, usize) {
    let mut world = World::new(policy, 20, MEMORY);
    let ids: Vec<CgroupId> = (0..5).map(|_| world.container(None, elastic(), heap(rate))).collect();
    let changes = world.run(2_500);
    let tenths = ids.iter().map(|id| world.view(*id).memory.get() * 10 / Bytes::gib(1).get()).collect();
    (
        tenths,
        changes.iter().filter(|change| matches!(change.because, ViewChangeReason::Reclaim { .. })).count(),
    )
}

#[test]
fn five_of_30_gib_on_128_gib_settle_near_24_without_reclaim() {
    let (tenths, thrown_back) = five_heaps(ViewRules::paper(), Bytes::gib(1));
    assert!(tenths.iter().all(|gib| (235..255).contains(gib)), "{tenths:?}");
    assert_eq!(thrown_back, 0);
}

#[test]
fn slow_heaps_are_promised_too_much_unless_promises_are_counted() {
    let (_, thrown_back) = five_heaps(ViewRules::paper(), Bytes::mib(64));
    assert!(thrown_back > 0, "the paper looks at what is used, not at what was granted");
    for rate in [Bytes::mib(16), Bytes::mib(64), Bytes::gib(1), Bytes::gib(30)] {
        let (tenths, thrown_back) = five_heaps(ViewRules::default(), rate);
        assert_eq!(thrown_back, 0, "{rate}");
        assert!(tenths.iter().all(|gib| (235..255).contains(gib)), "{rate}: {tenths:?}");
    }
}

#[test]
fn reclaim_sends_all_containers_back_to_the_soft_limit() {
    let mut world = World::new(ViewRules::paper(), 20, Bytes::gib(64));
    let ids: Vec<CgroupId> = (0..2).map(|_| world.container(None, elastic(), heap(Bytes::gib(1)))).collect();
    world.run(500);
    assert!(ids.iter().all(|id| world.view(*id).memory > Bytes::gib(24)));
    let hog = CgroupSettings { memory_soft: Some(Limit::At(Bytes::gib(60))), ..weight(100) };
    world.container(None, hog, Box::new(|_, _| ProgramDemand { threads: 0, memory: Bytes::gib(40) }));
    let changes = world.run(3);
    assert!(changes.iter().any(|change| matches!(change.because, ViewChangeReason::Reclaim { .. })));
    assert!(ids.iter().all(|id| world.view(*id).memory == Bytes::gib(15)));
}
