//! Whether the toy machine behaves as real ones were measured to.

use super::DiskSimulator;
use crate::disk::{DiskProgram, DiskScenario, DiskTenant, Drive, IoCgroupVersion, IoMethod, Pattern};
use elbowroom_govern::disk::{Cap, DiskOrder};
use elbowroom_types::io::{DiskStat, IoMax};
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::{Limit, Micros};

/// 25 000 reads of 4 KiB per second, each of which takes 100 us on a quiet day.
fn disk() -> Drive {
    Drive::new(1e9, 25e3, Micros(100))
}

fn reader(rate: Limit<u64>, depth: u32) -> DiskTenant {
    DiskTenant::new("reader", DiskProgram { depth, ..DiskProgram::reads(Pattern::constant(rate)) })
}

/// A world without noise whose orders count at once.
fn world(scenario: DiskScenario) -> DiskSimulator {
    DiskSimulator::new(&DiskScenario { noise: 0.0, delay: 0, ..scenario }, 1)
}

/// One second: the pressure of the first container, the mean queue and the mean wait of the first disk.
fn look(world: &mut DiskSimulator) -> (f64, f64, f64) {
    let mut measure = || match world.step().unwrap().pop().unwrap() {
        HostEvent::DiskTick(tick) => tick,
        other => panic!("{other:?}"),
    };
    let (before, after) = (measure(), measure());
    let [a, b] = [&before, &after].map(|tick| tick.disks[0].1);
    let grown = |of: fn(&DiskStat) -> u64| (of(&b) - of(&a)) as f64 / 1e6;
    let stalled = |i: usize| [&before, &after][i].groups[0].stalled.unwrap().get() as f64 / 1e6;
    let ios = grown(|disk| disk.rios + disk.wios) * 1e6;
    let queue = grown(|disk| disk.time_in_queue.get());
    (stalled(1) - stalled(0), queue, grown(|disk| disk.rticks.get() + disk.wticks.get()) / ios)
}

fn cap(world: &DiskSimulator, tenant: usize, max: IoMax) -> DiskOrder {
    let (group, disk) = (world.group(tenant), DiskScenario::number(0));
    DiskOrder::Cap(Cap { at: Micros::ZERO, group, disk, max, weight: None, because: String::new() })
}

fn rbps(rate: u64) -> IoMax {
    IoMax { rbps: Limit::At(rate), ..IoMax::MAX }
}

#[test]
fn three_states_look_as_they_were_measured() {
    let scenario = DiskScenario::new("", disk(), vec![reader(Limit::Max, 1)]);
    let (pressure, queue, wait) = look(&mut world(scenario.clone()));
    assert!((0.3..0.9).contains(&pressure) && (0.6..0.9).contains(&queue) && wait < 2e-4, "normal");

    let mut capped = world(scenario.clone());
    capped.execute(&cap(&capped, 0, rbps(1 << 20)));
    let (pressure, queue, wait) = look(&mut capped);
    assert!(pressure > 0.95 && queue < 0.07 && wait < 2e-4, "our cap binds: {pressure} {queue} {wait}");

    let slow = Drive { changes: vec![(Micros::ZERO, 0.0025)], ..disk() };
    let (pressure, queue, wait) = look(&mut world(DiskScenario { drives: vec![slow], ..scenario }));
    assert!(pressure > 0.95 && queue > 0.95 && wait > 1e-2, "slow: {pressure} {queue} {wait}");
}

#[test]
fn requests_that_are_collected_later_show_no_pressure() {
    let mut hog = reader(Limit::Max, 64);
    hog.programs[0].method = IoMethod::Async;
    let (pressure, queue, _) = look(&mut world(DiskScenario::new("", disk(), vec![hog])));
    assert!(pressure == 0.0 && queue > 60.0, "{pressure} {queue}");
}

#[test]
fn limits_hold_from_the_period_after_the_order() {
    let scenario =
        DiskScenario { delay: 1, noise: 0.0, ..DiskScenario::new("", disk(), vec![reader(Limit::Max, 8)]) };
    let mut world = DiskSimulator::new(&scenario, 1);
    world.step().unwrap();
    world.execute(&cap(&world, 0, rbps(1 << 20)));
    let told = |events: &[HostEvent]| {
        events.iter().any(|event| matches!(event, HostEvent::IoLimits(at) if at.ours == rbps(1 << 20)))
    };
    let events = world.step().unwrap();
    assert!(!told(&events) && world.truth().shares[0].got > 5e7);
    let events = world.step().unwrap();
    assert!(
        told(&events) && world.truth().shares[0].got <= 1.001 * f64::from(1 << 20),
        "{:?}",
        world.truth()
    );
    assert_eq!(world.truth().shares[0].limited, 1.0);
}

#[test]
fn the_users_limit_and_a_foreign_one_stay_in_force() {
    let user = DiskTenant { user_max: rbps(2 << 20), ..reader(Limit::Max, 8) };
    let foreign = DiskTenant { foreign: Some((Micros::ZERO, rbps(3 << 20))), ..reader(Limit::Max, 8) };
    let mut world = world(DiskScenario::new("", disk(), vec![user, foreign]));
    world.step().unwrap();
    world.execute(&cap(&world, 0, rbps(4 << 20)));
    world.execute(&cap(&world, 1, rbps(1 << 20)));
    let events = world.step().unwrap();
    let got: Vec<f64> =
        world.truth().shares.iter().map(|share| (share.got / f64::from(1 << 20)).round()).collect();
    assert_eq!(got, [2.0, 3.0]);
    let ceded = events.iter().filter_map(|event| match event {
        HostEvent::IoLimits(limits) => Some((limits.ours, limits.ceded)),
        _ => None,
    });
    assert_eq!(
        ceded.collect::<Vec<_>>(),
        [(rbps(4 << 20), None), (IoMax::MAX, Some(elbowroom_types::io::LimitWriteFailure::Foreign))]
    );
}

#[test]
fn buffered_writes_belong_to_no_container_on_v1() {
    let writer = DiskTenant::new(
        "writer",
        DiskProgram {
            method: IoMethod::Buffered,
            depth: 32,
            ..DiskProgram::reads(Pattern::constant(Limit::At(50 << 20)))
        },
    );
    for (kernel, is_held) in [(IoCgroupVersion::V1, false), (IoCgroupVersion::V2, true)] {
        let mut world = world(DiskScenario { kernel, ..DiskScenario::new("", disk(), vec![writer.clone()]) });
        world.execute(&cap(&world, 0, IoMax { wbps: Limit::At(1 << 20), ..IoMax::MAX }));
        let Some(HostEvent::DiskTick(tick)) = world.step().unwrap().pop() else { panic!() };
        let (own, all) = (tick.groups[0].io[0].wbytes.get(), tick.disks[0].1.wbytes.get());
        assert_eq!((own > all / 2, all < 2 << 20), (is_held, is_held), "{kernel:?}: {own} of {all}");
    }
}

#[test]
fn the_same_seed_gives_the_same_events() {
    let events = |seed| {
        let mut world = DiskSimulator::new(&DiskScenario::random(5), seed);
        std::iter::from_fn(|| world.step()).collect::<Vec<_>>()
    };
    assert_eq!(events(1), events(1));
    assert_ne!(events(1), events(2));
}
