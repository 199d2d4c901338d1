//! Effective memory on a machine whose memory is full of page cache: `ViewRules::reclaimable_memory`.

use crate::world::{World, threads, weight};
use elbowroom_sim::{NodeProgram, ProgramDemand};
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::{CgroupSettings, HostEvent, ReclaimCounters, Tick};
use elbowroom_types::unit::{Bytes, Limit, Micros};
use elbowroom_view::rules::{GrowthHold, ViewChange, ViewChangeReason, ViewRules};
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

/// The same, but never gives back what it has, as most heaps.
fn keeps(mib: u64) -> NodeProgram {
    let mut held = Bytes::ZERO;
    Box::new(move |_, view| {
        let shown = view.map_or(Bytes::ZERO, |view| view.memory);
        held = held.max(held.saturating_add(Bytes::mib(4)).min(Bytes::mib(mib)).min(shown));
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
    let grown = |policy: ViewRules| {
        let mut world = World::new(policy, 4, MEMORY);
        let HostEvent::Node(node) = world.sim.node() else { panic!("a node") };
        assert!(node.low_mark < WARM_FREE && WARM_FREE < node.high_mark);
        let id = world.container(None, limits(256, 1024), fills(400));
        run(&mut world, true, 250);
        world.view(id).memory
    };
    assert!(grown(ViewRules::default()) > Bytes::mib(400));
    assert!(grown(ViewRules { reclaimable_memory: false, ..ViewRules::default() }) < Bytes::mib(400));
}

#[test]
fn a_recording_without_the_field_replays_as_it_was() {
    let text = r#"{"now": 1, "busy": 2, "busy_per_cpu": [], "mem_free": 3, "usage": []}"#;
    let tick: Tick = serde_json::from_str(text).unwrap();
    assert_eq!((tick.mem_available, tick.reclaim), (None, None));
    let mut world = World::new(ViewRules::default(), 4, MEMORY);
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
        let mut world = World::new(ViewRules::default(), 4, MEMORY);
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
        ..ReclaimCounters::default()
    }
}

/// The next tick, in which reclaim hurts or does not.
fn tick_that_hurts(world: &mut World, hurts: bool, lost: &mut u64) -> Vec<ViewChange> {
    let tick = tick(world, true);
    let reclaim = reclaim(tick.now, hurts, lost);
    world.apply(HostEvent::Tick(Tick { reclaim: Some(reclaim), ..tick }))
}

#[test]
fn a_program_that_keeps_its_memory_is_shown_it_again_once_nothing_hurts() {
    let mut world = World::new(ViewRules::default(), 4, MEMORY);
    let id = world.container(None, limits(256, 1_024), keeps(1_000));
    let mut lost = 0;
    (0..400).for_each(|_| drop(tick_that_hurts(&mut world, false, &mut lost)));
    tick_that_hurts(&mut world, true, &mut lost);
    assert_eq!(world.view(id).memory, Bytes::mib(256));
    (0..300).for_each(|_| drop(tick_that_hurts(&mut world, false, &mut lost)));
    let had = world.view(id).memory;
    assert!((Bytes::mib(980)..=Bytes::mib(1_010)).contains(&had), "it uses 1,000 MiB all the time: {had}");
}

#[test]
fn a_mark_wears_off_only_while_it_keeps_views_from_growing() {
    let mut world = World::new(ViewRules::default(), 4, MEMORY);
    let id = world.container(None, limits(256, 2_000), fills(2_000));
    let mut lost = 0;
    (0..8).for_each(|_| drop(tick_that_hurts(&mut world, false, &mut lost)));
    while world.view(id).memory < Bytes::mib(700) {
        tick_that_hurts(&mut world, false, &mut lost);
    }
    tick_that_hurts(&mut world, true, &mut lost);
    let hold = |world: &World| world.views.explain(id).unwrap().inputs.growth_hold;
    let full = world.container(None, limits(1_900, 2_000), threads(0));
    for _ in 0..55 {
        (0..500).for_each(|_| drop(tick_that_hurts(&mut world, false, &mut lost)));
        assert_eq!(hold(&world), None, "not the mark's doing");
    }
    let had = world.view(id).memory;
    assert!(had < Bytes::mib(400), "all else is reserved: {had}");
    world.remove(full);
    (0..400).for_each(|_| drop(tick_that_hurts(&mut world, false, &mut lost)));
    let had = world.view(id).memory;
    assert!(
        (Bytes::mib(430)..Bytes::mib(700)).contains(&had),
        "the mark is as it was eleven minutes ago: {had}"
    );
    assert!(matches!(hold(&world), Some(GrowthHold::HurtBefore { .. })), "{:?}", hold(&world));
}

#[test]
fn reclaim_that_hurts_takes_grants_back_and_nothing_grows_for_a_while() {
    let mut world = World::new(ViewRules::default(), 4, MEMORY);
    let id = world.container(None, limits(256, 1024), fills(1_000));
    let mut lost = 0;
    let mut step = |world: &mut World, hurts| tick_that_hurts(world, hurts, &mut lost);
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
    let mut world = World::new(ViewRules::default(), 4, MEMORY);
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

/// Looks at a machine on which so many files' pages come back in each tick, the second number of them to a container at its own limit, for
/// which ten times as many are looked for.
struct Looks {
    world: World,
    reclaim: ReclaimCounters,
}

impl Looks {
    fn tick(&mut self, pages: u64, at_limits: u64) -> Vec<ViewChange> {
        let now = &mut self.reclaim;
        now.scanned += 1_000;
        now.scanned_for_limits += at_limits * 10;
        (now.refaulted_files, now.refaulted_at_limits) =
            (now.refaulted_files + pages, now.refaulted_at_limits + at_limits);
        let tick = tick(&mut self.world, true);
        self.world.apply(HostEvent::Tick(Tick { reclaim: Some(self.reclaim), ..tick }))
    }
}

/// A container that thrashes at its limit of 64 MiB, and one that fills 1,000 MiB and has 256 reserved.
fn beside_a_thrashing_tenant() -> (Looks, CgroupId) {
    let mut world = World::new(ViewRules::default(), 4, MEMORY);
    world.container(None, limits(64, 64), fills(64));
    let id = world.container(None, limits(256, 1024), fills(1_000));
    (Looks { world, reclaim: ReclaimCounters::default() }, id)
}

#[test]
fn a_tenant_that_thrashes_at_its_own_limit_keeps_no_neighbour_from_growing() {
    let (mut looks, id) = beside_a_thrashing_tenant();
    for _ in 0..20 {
        (0..125).for_each(|_| drop(looks.tick(5_000, 5_000)));
        (0..125).for_each(|_| drop(looks.tick(0, 0)));
    }
    assert!(looks.world.view(id).memory > Bytes::mib(900));
    let changes = &looks.world.views.explain(id).unwrap().changes;
    assert!(!changes.iter().any(|change| matches!(change.because, ViewChangeReason::ReclaimHurts { .. })));
}

#[test]
fn nor_does_it_hide_what_a_neighbour_loses() {
    let (mut looks, id) = beside_a_thrashing_tenant();
    (0..400).for_each(|_| drop(looks.tick(5_000, 5_000)));
    assert!(looks.world.view(id).memory > Bytes::mib(900));
    let fell = (0..200).find(|_| !looks.tick(5_100, 5_000).is_empty()).unwrap();
    assert!((80..90).contains(&fell), "after two seconds: {fell}");
    assert_eq!(looks.world.view(id).memory, Bytes::mib(256));
    let hold = looks.world.views.explain(id).unwrap().inputs.growth_hold;
    assert!(matches!(hold, Some(GrowthHold::FilesComeBack { .. })), "{hold:?}");
    (0..83).for_each(|_| drop(looks.tick(5_000, 5_000)));
    let hold = looks.world.views.explain(id).unwrap().inputs.growth_hold;
    assert!(matches!(hold, Some(GrowthHold::Hurt { .. })), "for five seconds: {hold:?}");
}

/// A neighbour that reads random parts of its files, 64 MiB a second. What of them does not fit comes back from a slow disk.
struct Neighbour {
    world: World,
    in_use: Bytes,
    cached: Bytes,
    reclaim: ReclaimCounters,
    /// The most of them that was missing since the last fall.
    lost: Bytes,
}

impl Neighbour {
    fn new() -> (Self, CgroupId) {
        let mut world = World::new(ViewRules::default(), 1, MEMORY);
        let id = world.container(None, limits(256, 2_000), fills(2_000));
        let (in_use, reclaim) = (Bytes::mib(512), ReclaimCounters::default());
        (Self { world, in_use, cached: in_use, reclaim, lost: Bytes::ZERO }, id)
    }

    fn tick(&mut self) -> Vec<ViewChange> {
        let tick = tick(&mut self.world, true);
        self.cached = self.cached.min(tick.mem_available.unwrap());
        let missing = self.in_use.saturating_sub(self.cached);
        let reads = 64 * missing.get() / self.in_use.get().max(1);
        let came_back = Bytes(reads.min(4) * Bytes::mib(1).get() * TICK.get() / 1_000_000);
        self.cached = self.cached.saturating_add(came_back).min(self.in_use);
        self.lost = self.lost.max(missing);
        self.reclaim.scanned += 1;
        self.reclaim.refaulted_files += came_back.get() / 4_096;
        self.world.apply(HostEvent::Tick(Tick { reclaim: Some(self.reclaim), ..tick }))
    }

    /// What was missing before each fall, in so many minutes.
    fn falls(&mut self, minutes: u64) -> Vec<Bytes> {
        let hurts = |change: &ViewChange| matches!(change.because, ViewChangeReason::ReclaimHurts { .. });
        let ticks = Micros::secs(minutes * 60).get() / TICK.get();
        let mut fell = Vec::new();
        for _ in 0..ticks {
            if self.tick().iter().any(hurts) {
                fell.push(std::mem::take(&mut self.lost));
            }
        }
        fell
    }

    /// After how many seconds the container has more than so much.
    fn seconds_until(&mut self, id: CgroupId, mib: u64) -> u64 {
        let mut ticks = 0;
        while self.world.view(id).memory <= Bytes::mib(mib) {
            self.tick();
            ticks += 1;
            assert!(ticks < 50_000, "it grows");
        }
        ticks * TICK.get() / 1_000_000
    }
}

#[test]
fn harm_at_a_fixed_level_is_met_once_and_then_every_few_minutes_and_hardly() {
    let (mut host, id) = Neighbour::new();
    let first = host.falls(2);
    assert_eq!(first.len(), 1, "{first:?}");
    let had = host.world.view(id).memory;
    assert!(
        (Bytes::mib(1_200)..Bytes::mib(1_456)).contains(&had),
        "of 1,456 MiB beside what is in use: {had}"
    );
    let hold = host.world.views.explain(id).unwrap().inputs.growth_hold;
    assert!(matches!(hold, Some(GrowthHold::HurtBefore { .. })), "{hold:?}");
    host.lost = Bytes::ZERO;
    let later = host.falls(24);
    assert!((1..=5).contains(&later.len()), "{later:?}");
    assert!(later.iter().all(|lost| *lost < Bytes::mib(32)), "beside {first:?}: {later:?}");
}

#[test]
fn memory_that_a_program_gives_back_is_had_at_once_and_files_that_are_not_in_use_any_more_within_minutes() {
    let (mut host, id) = Neighbour::new();
    let other = host.world.container(None, limits(256, 256), fills(256));
    host.falls(2);
    let had = host.world.view(id).memory.get() >> 20;
    assert!(had < 1_200, "{had}");
    host.world.remove(other);
    assert!(host.seconds_until(id, had + 200) < 2);
    host.in_use = Bytes::ZERO;
    let seconds = [1_400, 1_600, 1_900].map(|mib| host.seconds_until(id, mib));
    assert!(seconds.iter().sum::<u64>() < 600, "{seconds:?}");
}

#[test]
fn the_paper_knows_neither_what_could_be_had_nor_what_hurts() {
    let mut world = World::new(ViewRules::paper(), 4, MEMORY);
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
            let mut world = World::new(ViewRules::default(), 4, MEMORY);
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
