//! `policy = "waterfill"` on the toy node and on ticks made by hand.

use crate::world::{self, Knob, World, a_thread_per_cpu, by_hand, cpuset, quota, threads, weight};
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::{CgroupSettings, HostEvent};
use elbowroom_types::unit::Bytes;
use elbowroom_view::rules::{CpuRule, ViewChangeReason, ViewRules};

/// The `n`th tick as [`world::tick`] has it, but every 48 ms: the rule decides in each.
fn tick(n: u64, busy: u64, used: &[(u64, u64, u64)]) -> HostEvent {
    let twice = |(id, cpu, throttled): &(u64, u64, u64)| (*id, 2 * cpu, 2 * throttled);
    world::tick(2 * n, 2 * busy, &used.iter().map(twice).collect::<Vec<_>>())
}

const MEMORY: Bytes = Bytes::gib(64);

fn waterfill() -> ViewRules {
    ViewRules { cpu: CpuRule::Waterfill, ..ViewRules::default() }
}

#[test]
fn a_waterfill_is_there_in_two_periods_where_steps_need_dozens() {
    let grow = |policy: ViewRules| {
        let mut world = World::new(policy, 64, MEMORY);
        let ids: Vec<CgroupId> = (0..16)
            .map(|n| world.container(None, weight(100), if n == 0 { a_thread_per_cpu() } else { threads(0) }))
            .collect();
        assert_eq!(world.view(ids[0]).cpus, 4);
        world.ticks_until(|w| w.view(ids[0]).cpus == 64)
    };
    assert!(grow(waterfill()) <= 3);
    assert!(grow(ViewRules::paper()) > 50);
}

#[test]
fn a_waterfill_divides_by_weight_and_leaves_what_is_not_wanted() {
    let mut world = World::new(waterfill(), 20, MEMORY);
    let light = world.container(None, weight(100), threads(20));
    let heavy = world.container(None, weight(300), threads(20));
    let modest = world.container(None, weight(300), threads(2));
    world.run(5);
    let cpus = world.cpus(&[light, heavy, modest]);
    assert_eq!(cpus[..2], [5, 14], "a quarter and three quarters of 18, rounded up");
    assert!(matches!(
        world.views.explain(heavy).unwrap().changes.last().unwrap().because,
        ViewChangeReason::Fairness { busy: true, .. }
    ));
}

#[test]
fn a_waterfill_stays_inside_a_container_s_own_cpuset() {
    let mut world = World::new(waterfill(), 16, MEMORY);
    let pinned = [0, 1].map(|_| world.container(None, cpuset("0-3"), threads(4)));
    (0..8).for_each(|_| {
        world.container(None, weight(100), threads(0));
    });
    world.run(5);
    assert_eq!(world.cpus(&pinned), [2, 2], "they divide four CPUs, though twelve others are idle");
}

#[test]
fn a_waterfill_gives_back_soon_what_could_not_be_had_any_more() {
    let mut world = World::new(waterfill(), 32, MEMORY);
    let knobs = [Knob::new(32), Knob::new(0)];
    let ids = [0, 1].map(|i: usize| world.container(None, weight(100), knobs[i].program()));
    world.run(5);
    assert_eq!(world.view(ids[0]).cpus, 32);
    knobs[0].turn(0);
    world.run(5);
    assert_eq!(world.view(ids[0]).cpus, 32, "no other container wants them");
    knobs[1].turn(32);
    world.run(10);
    assert_eq!(world.cpus(&ids), [16, 32], "one asks for all, the other would get half");
}

#[test]
fn a_waterfill_goes_down_the_tree_level_by_level() {
    let mut world = World::new(waterfill(), 16, MEMORY);
    let pods = ["a", "b"].map(|name| world.slice(None, name, weight(100)));
    let mut inside = |pod: usize, n| world.container(Some(pods[pod]), weight(100), threads(n));
    let ids = [inside(0, 16), inside(1, 16), inside(0, 0), inside(1, 16)];
    world.run(5);
    assert_eq!(world.cpus(&ids), [8, 4, 4, 4], "what the idle one leaves stays in its pod");
}

/// Eight containers on 8 CPUs, LOWER 1, the first of them with these limits.
fn eight(first: CgroupSettings) -> [CgroupSettings; 8] {
    let mut limits = [weight(100); 8];
    limits[0] = first;
    limits
}

#[test]
fn what_no_known_group_uses_is_not_up_for_division() {
    let mut views = by_hand(waterfill(), &eight(weight(100)));
    views.apply(&tick(1, 0, &[(1, 0, 0)]));
    views.apply(&tick(2, 24_000 * 3, &[(1, 24_000, 0)]));
    assert_eq!(views.get(CgroupId(1)).unwrap().cpus, 6, "two CPUs of three were used by others");
}

#[test]
fn a_wide_container_asks_for_its_part_of_a_narrow_set() {
    let mut views = by_hand(waterfill(), &eight(cpuset("0-3")));
    views.apply(&tick(1, 0, &[(1, 0, 0), (2, 0, 0)]));
    views.apply(&tick(2, 24_000, &[(1, 24_000, 0), (2, 0, 0)]));
    assert_eq!(views.get(CgroupId(1)).unwrap().cpus, 4);
    views.apply(&tick(3, 24_000 * 8, &[(1, 24_000 * 4, 0), (2, 24_000 * 4, 0)]));
    assert_eq!(views.get(CgroupId(2)).unwrap().cpus, 5, "all but the three that the other uses");
    for n in 1..4 {
        let used = [(1, 24_000 * (4 + 4 * n), 0), (2, 24_000 * (4 + 2 * n), 0)];
        views.apply(&tick(3 + n, 24_000 * (8 + 6 * n), &used));
    }
    assert_eq!(views.get(CgroupId(1)).unwrap().cpus, 3, "two of 8 CPUs are one of these 4");
}

#[test]
fn a_period_goes_on_from_what_was_resumed() {
    let mut views = by_hand(waterfill(), &[weight(100), weight(100)]);
    views.resume(CgroupId(1), 8, Bytes::gib(1));
    assert_eq!(views.get(CgroupId(1)).unwrap().cpus, 8);
    views.apply(&tick(1, 0, &[(1, 0, 0), (2, 0, 0)]));
    for n in 1..4 {
        views.apply(&tick(1 + n, 24_000 * 4 * n, &[(2, 24_000 * 4 * n, 0)]));
    }
    assert_eq!(views.get(CgroupId(1)).unwrap().cpus, 4, "the other, which is busy, has its half");
}

#[test]
fn time_that_a_quota_held_back_is_asked_for() {
    let mut views = by_hand(waterfill(), &eight(quota(2_000)));
    let cpu = |tenths: u64| 2_400 * tenths;
    views.apply(&tick(1, 0, &[(1, 0, 0), (2, 0, 0)]));
    views.apply(&tick(2, cpu(20), &[(1, cpu(10), 0), (2, cpu(10), 0)]));
    assert_eq!(views.get(CgroupId(1)).unwrap().cpus, 2);
    views.apply(&tick(3, cpu(36), &[(1, cpu(19), cpu(9)), (2, cpu(90), 0)]));
    assert_eq!(views.get(CgroupId(2)).unwrap().cpus, 6, "of 8 the other wants 1.8, though it got 0.9");
}

#[test]
fn beyond_sixteen_different_sets_a_container_is_still_filled_and_bound_by_its_own() {
    let pinned = (1..6).flat_map(|first| (first..7).map(move |last| cpuset(&format!("{first}-{last}"))));
    let limits: Vec<CgroupSettings> = pinned.chain([cpuset("2-7")]).collect();
    let (last, mut views) = (limits.len() as u64, by_hand(waterfill(), &limits));
    assert!(last > 16);
    views.apply(&tick(1, 0, &[(last, 0, 0)]));
    views.apply(&tick(2, 24_000, &[(last, 24_000, 0)]));
    assert_eq!(views.get(CgroupId(last)).unwrap().cpus, 6);
}
