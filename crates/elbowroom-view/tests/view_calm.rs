//! How soon and how often a view moves by `policy = "waterfill"`, on loads made by hand: CPU time of each container as it is at any
//! instant, looked at every 24 ms.

use crate::world::{World, threads, weight};
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::{HostEvent, Tick, Usage};
use elbowroom_types::unit::{Bytes, Micros};
use elbowroom_view::rules::{ViewChange, ViewDelta, ViewRules, ViewTable};

const TICK: u64 = 24_000;

/// Containers of equal weight, with identities from 1.
fn views(cpus: u32, containers: usize) -> ViewTable {
    let mut world = World::new(ViewRules::default(), cpus, Bytes::gib(64));
    for _ in 0..containers {
        world.container(None, weight(100), threads(0));
    }
    world.views
}

/// Looks from `from` to `until`, in microseconds; `used(at)` is the CPU time of each container and of the rest of the machine since 0.
fn look(
    views: &mut ViewTable,
    from: u64,
    until: u64,
    used: &mut dyn FnMut(u64) -> (Vec<u64>, u64),
) -> Vec<ViewChange> {
    let mut changes = Vec::new();
    for at in (from..until).step_by(TICK as usize) {
        let (of, rest) = used(at);
        let usage = |(i, cpu): (usize, &u64)| {
            (CgroupId(i as u64 + 1), Usage { cpu: Micros(*cpu), ..Usage::default() })
        };
        changes.extend(views.apply(&HostEvent::Tick(Tick {
            now: Micros(at),
            busy: Micros(of.iter().sum::<u64>() + rest),
            mem_free: Bytes::gib(32),
            usage: of.iter().enumerate().map(usage).collect(),
            ..Tick::default()
        })));
    }
    changes
}

/// Time of `at` that lies between `from` and `until`.
fn within(at: u64, from: u64, until: u64) -> u64 {
    at.clamp(from, until) - from
}

/// Times at which something changes: 15 phases of a tick, five seconds after the beginning.
fn phases() -> impl Iterator<Item = u64> {
    (0..15).map(|phase| 5_000_000 + phase * TICK / 15)
}

fn cpus(views: &ViewTable, id: u64) -> u32 {
    views.get(CgroupId(id)).unwrap().cpus
}

/// When the view of container 1 became what it is in the end.
fn last_change(changes: &[ViewChange]) -> u64 {
    let of_first =
        |change: &&ViewChange| change.id == CgroupId(1) && matches!(change.what, ViewDelta::Cpu { .. });
    changes.iter().rfind(of_first).expect("it changed").at.get()
}

/// Two containers on 16 CPUs; the first always wants all, the second wants all from `from` to `until`.
fn beside(from: u64, until: u64) -> impl FnMut(u64) -> (Vec<u64>, u64) {
    move |at| {
        let both = within(at, from, until);
        (vec![16 * (at - both) + 8 * both, 8 * both], 0)
    }
}

#[test]
fn a_real_change_is_followed_within_200_ms_down_and_a_second_up() {
    for change in phases() {
        let (mut down, until) = (views(16, 2), change + 3_000_000);
        let mut load = beside(change, u64::MAX);
        look(&mut down, TICK, change, &mut load);
        assert_eq!(cpus(&down, 1), 16);
        let changes = look(&mut down, change / TICK * TICK + TICK, until, &mut load);
        assert_eq!(cpus(&down, 1), 8);
        let after = last_change(&changes) - change;
        assert!(after <= 200_000, "down after {after} us, at phase {}", change % TICK);

        let mut up = views(16, 2);
        let mut load = beside(0, change);
        look(&mut up, TICK, change, &mut load);
        assert_eq!(cpus(&up, 1), 8);
        let changes = look(&mut up, change / TICK * TICK + TICK, until, &mut load);
        assert_eq!(cpus(&up, 1), 16);
        let after = last_change(&changes) - change;
        assert!((700_000..=1_000_000).contains(&after), "up after {after} us, at phase {}", change % TICK);
    }
}

#[test]
fn a_container_that_wakes_up_among_sleepers_is_followed_within_200_ms_though_they_are_looked_at_half_as_often()
 {
    for phase in 0..48 {
        let mut views = views(16, 2);
        let (sleeps, change) = (3_000_000, 5_000_000 + phase * 1_000);
        // The first works for three seconds and keeps what it has; then none does, until the second wants all.
        let mut load = |at: u64| (vec![16 * within(at, 0, sleeps), 16 * within(at, change, u64::MAX)], 0);
        look(&mut views, TICK, sleeps, &mut load);
        let mut at = sleeps;
        while at <= change {
            at += 2 * TICK;
            look(&mut views, at, at + 1, &mut load);
        }
        assert_eq!(cpus(&views, 1), 16);
        let changes = look(&mut views, at + TICK, change + 1_000_000, &mut load);
        assert_eq!(cpus(&views, 1), 8);
        let after = last_change(&changes) - change;
        assert!(after <= 200_000, "down after {after} us, at phase {phase}");
    }
}

/// Numbers that look random and are the same each time.
struct Noise(u64);

impl Noise {
    /// Between 0 and `n`.
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

#[test]
fn steady_load_with_noise_changes_a_view_at_most_twice_a_minute() {
    for seed in 1..6 {
        let (mut views, mut noise) = (views(16, 4), Noise(seed));
        let (mut used, mut rest) = (vec![0; 4], 0);
        // Four busy containers on 16 CPUs. In each tick one gets up to a CPU more than its part and another less, and the system
        // takes up to one. In one tick of sixteen, one runs hardly at all, for it waits for a disk.
        let mut load = |_: u64| {
            let system = noise.below(TICK);
            let part = (16 * TICK - system) / 4;
            let (gets, gives) = (noise.below(4) as usize, noise.below(4) as usize);
            let more = noise.below(TICK);
            used.iter_mut().for_each(|used| *used += part);
            (used[gets], used[gives]) = match gets == gives {
                true => (used[gets], used[gives]),
                false => (used[gets] + more, used[gives] - more),
            };
            if noise.below(16) == 0 {
                used[noise.below(4) as usize] -= part / 2;
            }
            rest += system;
            (used.clone(), rest)
        };
        look(&mut views, TICK, 5_000_000, &mut load);
        let changes = look(&mut views, 5_000_000, 65_000_000, &mut load);
        for id in 1..=4 {
            let of = changes.iter().filter(|change| change.id == CgroupId(id)).count();
            assert!(of <= 2, "seed {seed}: container {id} changed {of} times in a minute");
            assert!((3..=5).contains(&cpus(&views, id)), "seed {seed}: {} CPUs", cpus(&views, id));
        }
    }
}

#[test]
fn a_pause_lets_no_container_rise_and_a_spike_none_fall() {
    for change in phases() {
        let mut paused = views(16, 2);
        let mut load = |at: u64| {
            let alone = within(at, change, change + 600_000);
            (vec![16 * alone + 8 * (at - alone), 8 * (at - alone)], 0)
        };
        look(&mut paused, TICK, 5_000_000, &mut load);
        assert_eq!((cpus(&paused, 1), cpus(&paused, 2)), (8, 8));
        assert_eq!(look(&mut paused, 5_000_000, 8_000_000, &mut load), [], "at phase {}", change % TICK);

        // Something of the host takes half of two CPUs for 90 ms. The other container sleeps, so that LOWER is 1.
        let mut spiked = views(2, 2);
        let mut load = |at: u64| {
            let both = within(at, change, change + 90_000);
            (vec![2 * at - both, 0], both)
        };
        look(&mut spiked, TICK, 5_000_000, &mut load);
        assert_eq!(cpus(&spiked, 1), 2);
        assert_eq!(look(&mut spiked, 5_000_000, 7_000_000, &mut load), [], "at phase {}", change % TICK);
    }
}

#[test]
fn spikes_again_and_again_keep_no_container_down() {
    // Something of the host takes one of two CPUs for 40 ms in every 300 ms: the container has 1.87.
    let mut load = |at: u64| {
        let spikes = at / 300_000 * 40_000 + (at % 300_000).min(40_000);
        (vec![2 * at - spikes, 0], spikes)
    };
    let mut views = views(2, 2);
    views.resume(CgroupId(1), 1, Bytes::gib(64));
    let changes = look(&mut views, TICK, 10_000_000, &mut load);
    assert_eq!((cpus(&views, 1), changes.len()), (2, 1), "{changes:?}");
}

#[test]
fn a_container_that_is_new_rises_at_once_and_one_that_was_shown_a_view_does_not() {
    let alone = |resumed: bool| {
        let mut views = views(16, 2);
        if resumed {
            views.resume(CgroupId(1), 9, Bytes::gib(64));
        }
        let changes = look(&mut views, TICK, 3_000_000, &mut |at| (vec![16 * at, 0], 0));
        assert_eq!(cpus(&views, 1), 16);
        last_change(&changes)
    };
    assert!(alone(false) <= 100_000, "{}", alone(false));
    assert!((700_000..=1_000_000).contains(&alone(true)), "{}", alone(true));
}
