//! What holds of policy `lifeline` whatever happens: the properties its module promises.

use crate::toy_disk::{DISK, Tenant, Toy, disk, group, id, rbps};
use elbowroom_govern::disk::{DiskGovernor, DiskOrder, DiskPolicy, DiskSettings, DiskState, HeldBy};
use elbowroom_types::claim::{Claim, DiskReservation, ServiceClass};
use elbowroom_types::id::{CgroupId, DeviceNumber};
use elbowroom_types::io::{
    CgroupIo, DiskProperties, DiskStat, DiskTick, IoLimits, IoMax, IoStat, IoWeightMechanism,
    LimitWriteFailure,
};
use elbowroom_types::psi::{Pressure, Stall};
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::{Bytes, Limit, Micros};
use proptest::prelude::*;
use std::collections::BTreeMap;

const SPEED: f64 = 50e6;

/// A container, and what it wants in each of three phases.
#[derive(Clone, Debug)]
struct Plan {
    tenant: Tenant,
    wants: [f64; 3],
}

/// Phases of 20 s, and how fast the disk is in each.
#[derive(Clone, Debug)]
struct Story {
    plans: Vec<Plan>,
    factors: [f64; 3],
    half_seconds: bool,
}

fn wants() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), 0.01..0.5, Just(3.0)]
}

fn plan() -> impl Strategy<Value = Plan> {
    let claim = (1u32..1000, 0u8..2, any::<bool>(), prop::option::of(1_000_000u64..20_000_000));
    let user = prop::option::of(1_000_000u64..40_000_000);
    (prop::array::uniform3(wants()), 1u32..64, claim, user).prop_map(
        |(wants, depth, (weight, tier, latency, reservation), user)| {
            let class = if latency { ServiceClass::Latency } else { ServiceClass::Throughput };
            let reservation = DiskReservation { rbps: reservation, ..DiskReservation::default() };
            let claim = Claim { weight, tier, class, disk: reservation, ..Claim::default() };
            let user = user.map_or(IoMax::MAX, rbps);
            Plan { tenant: Tenant { wants: wants[0], depth: depth.into(), claim, user }, wants }
        },
    )
}

fn story() -> impl Strategy<Value = Story> {
    (prop::collection::vec(plan(), 1..6), prop::array::uniform3(0.3..1.0f64), any::<bool>())
        .prop_map(|(plans, factors, half_seconds)| Story { plans, factors, half_seconds })
}

impl Story {
    fn plain(mut self) -> Self {
        for plan in &mut self.plans {
            (plan.tenant.claim, plan.tenant.user) = (Claim::default(), IoMax::MAX);
        }
        self
    }

    fn toy(&self) -> Toy {
        let period = if self.half_seconds { Micros::millis(500) } else { Micros::secs(1) };
        let tenants = self.plans.iter().map(|plan| plan.tenant.clone()).collect();
        Toy::new(DiskSettings { period, ..DiskSettings::default() }, SPEED, tenants)
    }

    /// Plays it, and shows every period.
    fn play(&self, toy: &mut Toy, mut watch: impl FnMut(&Toy)) {
        for phase in 0..3 {
            toy.factor = self.factors[phase];
            for (tenant, plan) in toy.tenants.iter_mut().zip(&self.plans) {
                tenant.wants = plan.wants[phase];
            }
            let until = toy.now.saturating_add(Micros::secs(20));
            while toy.now < until {
                toy.step();
                watch(toy);
            }
        }
    }
}

fn state(toy: &Toy) -> DiskState {
    toy.disks.disks()[0].state
}

fn is_held(by: HeldBy) -> bool {
    matches!(by, HeldBy::Cap | HeldBy::Others | HeldBy::Disk)
}

/// The orders that follow from events.
fn replay(settings: DiskSettings, claims: Vec<Claim>, events: &[HostEvent]) -> Vec<DiskOrder> {
    let mut disks = DiskGovernor::new(settings, claims);
    events.iter().flat_map(|event| disks.apply(event)).collect()
}

fn claims(story: &Story) -> Vec<Claim> {
    let claims = story.plans.iter().enumerate();
    claims.map(|(i, plan)| Claim { container: format!("c{i}"), ..plan.tenant.claim.clone() }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn no_cap_is_below_a_known_need(story in story()) {
        let story = story.plain();
        let mut toy = story.toy();
        let mut broken = Vec::new();
        story.play(&mut toy, |toy| {
            for status in (0..toy.tenants.len()).flat_map(|tenant| toy.disks.disk_statuses(id(tenant))) {
                let (Some(lifeline), Some(cap)) = (status.lifeline, status.cap) else { continue };
                if cap < lifeline * (1.0 - 1e-6) {
                    broken.push((toy.now, lifeline, cap));
                }
            }
        });
        prop_assert!(broken.is_empty(), "{broken:?}");
    }

    #[test]
    fn no_container_is_cut_while_none_is_short(story in story()) {
        let mut toy = story.toy();
        let mut broken = Vec::new();
        let mut before = BTreeMap::new();
        story.play(&mut toy, |toy| {
            for status in (0..toy.tenants.len()).flat_map(|tenant| toy.disks.disk_statuses(id(tenant)).into_iter().map(move |s| (tenant, s))) {
                let cap = (status.1.cap.unwrap_or(f64::INFINITY), toy.disks.learned_capacities());
                let was = before.insert(status.0, cap.clone());
                let shared = matches!(state(toy), DiskState::Share | DiskState::Slow);
                // Capacities are whole bytes here, caps are not.
                if !shared && was.as_ref().is_some_and(|was| was.1 == cap.1 && cap.0 < was.0 * (1.0 - 1e-6)) {
                    broken.push((toy.now, status));
                }
            }
        });
        prop_assert!(broken.is_empty(), "{broken:?}");
    }

    #[test]
    fn no_container_is_limited_to_nothing(story in story()) {
        let mut toy = story.toy();
        let mut smallest = f64::INFINITY;
        story.play(&mut toy, |toy| {
            for status in (0..toy.tenants.len()).flat_map(|tenant| toy.disks.disk_statuses(id(tenant))) {
                smallest = smallest.min(status.max.rbps.value().map_or(f64::INFINITY, |n| n as f64));
            }
        });
        // A twenty-fifth of a disk that does a third of what it did, less what is not known of it yet.
        prop_assert!(smallest >= SPEED / 200.0, "{smallest} bytes per second");
    }

    #[test]
    fn a_censored_lifeline_never_falls(story in story()) {
        let mut toy = story.toy();
        let mut before: BTreeMap<usize, (f64, IoMax)> = BTreeMap::new();
        let mut broken = Vec::new();
        story.play(&mut toy, |toy| {
            // Lifelines are rates; as parts of the disk they compare while its prices stay.
            let prices = toy.disks.learned_capacities().first().map_or(IoMax::MAX, |(_, parts)| *parts);
            for tenant in 0..toy.tenants.len() {
                let Some(status) = toy.disks.disk_statuses(id(tenant)).pop() else { continue };
                let Some(lifeline) = status.lifeline else { continue };
                if let Some((was, then)) = before.insert(tenant, (lifeline, prices))
                    && then == prices && is_held(status.held_by) && lifeline < was * (1.0 - 1e-6)
                {
                    broken.push((toy.now, tenant, was, lifeline));
                }
            }
        });
        prop_assert!(broken.is_empty(), "{broken:?}");
    }

    #[test]
    fn the_same_events_give_the_same_orders(story in story()) {
        let mut toy = story.toy();
        story.play(&mut toy, |_| {});
        let settings = toy.disks.settings().clone();
        prop_assert_eq!(replay(settings, claims(&story), &toy.events), toy.orders);
    }

    #[test]
    fn the_order_of_containers_is_irrelevant(story in story()) {
        let mut toy = story.toy();
        story.play(&mut toy, |_| {});
        let settings = toy.disks.settings().clone();
        let mut events = toy.events.clone();
        for event in &mut events {
            if let HostEvent::DiskTick(tick) = event {
                tick.groups.reverse();
            }
        }
        // Every container appears with its limits, after the disk.
        let appear = 2 * toy.tenants.len();
        let met: Vec<HostEvent> = events[1..=appear].chunks(2).rev().flatten().cloned().collect();
        events.splice(1..=appear, met);
        prop_assert_eq!(replay(settings, claims(&story), &events), toy.orders);
    }

    #[test]
    fn observing_decides_as_enforcing_does_given_the_same_limits(story in story()) {
        let mut toy = story.toy();
        toy.obeyed = false;
        story.play(&mut toy, |_| {});
        let mut settings = toy.disks.settings().clone();
        settings.mode = elbowroom_govern::GovernorMode::Enforce;
        prop_assert_eq!(replay(settings, claims(&story), &toy.events), toy.orders);
    }

    #[test]
    fn no_cap_is_pointless_beside_the_users(story in story()) {
        let mut toy = story.toy();
        story.play(&mut toy, |_| {});
        for cap in toy.caps() {
            let user = toy.tenants[(cap.group.0 - 1) as usize].user;
            if let (Limit::At(ours), Limit::At(his)) = (cap.max.rbps, user.rbps) {
                prop_assert!(ours < his, "{cap:?} {user:?}");
            }
        }
    }

    #[test]
    fn at_most_one_cap_per_container_and_second_but_cuts(story in story()) {
        let mut toy = story.toy();
        story.play(&mut toy, |_| {});
        let mut last = BTreeMap::new();
        for cap in toy.caps() {
            if let Some(before) = last.insert(cap.group, cap.at) {
                let is_cut = cap.because.starts_with("shared out");
                prop_assert!(is_cut || cap.at.saturating_sub(before) >= Micros::millis(900), "{cap:?}");
            }
        }
    }
}

/// Any number, mostly those at the ends.
fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), any::<u64>(), 0..100_000_000u64]
}

fn any_limits() -> impl Strategy<Value = IoMax> {
    let limit = || prop_oneof![Just(Limit::Max), any_number().prop_map(Limit::At)];
    (limit(), limit(), limit(), limit()).prop_map(|(rbps, wbps, riops, wiops)| IoMax {
        rbps,
        wbps,
        riops,
        wiops,
    })
}

fn any_event() -> impl Strategy<Value = HostEvent> {
    let number = || (0..2u32).prop_map(|minor| DeviceNumber { major: 8, minor });
    let io =
        (0..2u32, prop::array::uniform4(any_number())).prop_map(|(minor, [rbytes, wbytes, rios, wios])| {
            IoStat {
                device: DeviceNumber { major: 8, minor },
                rbytes: Bytes(rbytes),
                wbytes: Bytes(wbytes),
                rios,
                wios,
                ..IoStat::EMPTY
            }
        });
    let io = prop::collection::vec(io, 0..3);
    let maybe = || prop::option::of(any_number());
    let member = (0..4u64, maybe(), maybe(), io).prop_map(|(group, stalled, dirty, io)| CgroupIo {
        group: CgroupId(group),
        stalled: stalled.map(Micros),
        dirty: dirty.map(Bytes),
        io,
    });
    let stat = prop::array::uniform8(any_number()).prop_map(|n| DiskStat {
        rios: n[0],
        rbytes: Bytes(n[1]),
        rticks: Micros(n[2]),
        wios: n[3],
        wbytes: Bytes(n[4]),
        wticks: Micros(n[5]),
        in_flight: n[6] as u32,
        io_ticks: Micros(n[6]),
        time_in_queue: Micros(n[7]),
    });
    let now = prop_oneof![(0..100u64).prop_map(Micros::secs), any_number().prop_map(Micros)];
    let pressure = maybe().prop_map(|total| {
        total
            .map(|total| Pressure { full: Stall { total: Micros(total), ..Stall::EMPTY }, ..Pressure::EMPTY })
    });
    let tick =
        (now, pressure, prop::collection::vec((number(), stat), 0..3), prop::collection::vec(member, 0..4));
    let tick = tick.prop_map(|(now, pressure, disks, groups)| {
        HostEvent::DiskTick(DiskTick { now, pressure, disks, groups })
    });
    let ceded = prop_oneof![
        Just(None),
        Just(Some(LimitWriteFailure::Foreign)),
        Just(Some(LimitWriteFailure::Refused)),
        Just(Some(LimitWriteFailure::Gone))
    ];
    let limits = (0..4u64, number(), any_limits(), any_limits(), ceded).prop_map(
        |(group, disk, user, ours, ceded)| {
            HostEvent::IoLimits(IoLimits { group: CgroupId(group), disk, user, ours, ceded })
        },
    );
    let disk = (number(), "[ab]", any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(number, identity, rotational, weights, swap)| {
            let weights = weights.then_some(IoWeightMechanism::Iocost);
            HostEvent::Disk(DiskProperties {
                number,
                identity,
                rotational,
                weights,
                swap,
                ..DiskProperties::default()
            })
        },
    );
    prop_oneof![
        8 => tick,
        2 => limits,
        1 => disk,
        2 => (0..3usize).prop_map(group),
        1 => (0..4u64).prop_map(|id| HostEvent::Gone(CgroupId(id))),
        1 => number().prop_map(HostEvent::DiskGone),
    ]
}

proptest! {
    #[test]
    fn no_event_whatever_its_numbers_can_panic(
        events in prop::collection::vec(any_event(), 1..60),
        remembered in any_limits(),
        aridac in any::<bool>(),
        max_disk_io in any_number(),
        samples in any::<u16>(),
    ) {
        let policy = if aridac { DiskPolicy::Aridac } else { DiskPolicy::Lifeline };
        let mut settings = DiskSettings { policy, ..DiskSettings::default() };
        (settings.aridac.max_disk_io, settings.aridac.samples) = (max_disk_io, samples);
        let mut disks = DiskGovernor::new(settings, vec![Claim { weight: 0, ..Claim::default() }]);
        disks.seed_capacity("a", remembered);
        for event in [disk(), group(0), group(1)].iter().chain(&events) {
            disks.apply(event);
            let views = disks.disks();
            prop_assert!(views.iter().all(|view| view.queue.is_finite()));
            let statuses = (0..4).flat_map(|id| disks.disk_statuses(CgroupId(id)));
            for status in statuses {
                for share in [status.used, status.lifeline, status.cap].into_iter().flatten() {
                    prop_assert!(!share.is_nan(), "{status:?}");
                }
            }
            let _ = (disks.alerts(), disks.learned_capacities());
        }
    }
}

/// The properties above are about something: caps, shares and censored samples do happen.
#[test]
fn a_story_has_caps_in_it() {
    let plan = |wants| Plan { tenant: Tenant::new(0.2, 8.0), wants };
    let plans = vec![plan([0.2; 3]), plan([0.1, 3.0, 3.0]), plan([0.1, 3.0, 3.0])];
    let story = Story { plans, factors: [1.0, 1.0, 0.5], half_seconds: false };
    let (mut toy, mut shared, mut held) = (story.toy(), 0, 0);
    story.play(&mut toy, |toy| {
        shared += u32::from(matches!(state(toy), DiskState::Share | DiskState::Slow));
        held += u32::from(is_held(toy.disks.disk_statuses(id(1))[0].held_by));
    });
    assert!(toy.caps().count() > 3 && shared > 0 && held > 10, "{} {shared} {held}", toy.caps().count());
    assert!(toy.caps().all(|cap| cap.disk == DISK));
}
