//! Policy `lifeline` in a closed loop: the paper's workloads and what it left out.

use crate::toy_disk::{DISK, Tenant, Toy, disk, group, id, rbps};
use elbowroom_govern::disk::{DiskOrder, DiskSettings, DiskState, HeldBy, LifelineConstants};
use elbowroom_types::alert::AlertKind;
use elbowroom_types::claim::{Claim, DiskReservation, ServiceClass};
use elbowroom_types::io::IoMax;
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::{Limit, Micros};

const SPEED: f64 = 100.0 * 1048576.0;
/// How often disks are glanced at.
const EARLY: Micros = LifelineConstants::DEFAULT.early_period;

fn toy(speed: f64, tenants: Vec<Tenant>) -> Toy {
    Toy::new(DiskSettings::default(), speed, tenants)
}

/// A victim that wants a part of the disk, beside one that is used to 15 % and then wants all of it.
fn burst(speed: f64, wants: f64) -> Toy {
    let mut toy = toy(speed, vec![Tenant::new(wants, 4.0), Tenant::new(0.15, 32.0)]);
    toy.run(40);
    toy.tenants[1].wants = 2.0;
    toy
}

/// Runs for some seconds: the mean of what the victim got of what it wants, and of what of the disk was used.
fn watch(toy: &mut Toy, seconds: u64) -> (f64, f64) {
    let (mut isolation, mut used) = (0.0, 0.0);
    for _ in 0..seconds {
        toy.step();
        isolation += (toy.got[0] / toy.tenants[0].wants).min(1.0);
        used += toy.got.iter().sum::<f64>() / toy.factor;
    }
    (isolation / seconds as f64, used / seconds as f64)
}

/// The learned capacity in parts of the first speed: the lower quartile of some seconds, for a probe assumes more for a few.
fn capacity(toy: &mut Toy) -> f64 {
    let learned = (0..11).map(|_| {
        toy.step();
        toy.disks.disks()[0].capacity.rbps.value().map_or(f64::INFINITY, |n| n as f64) / toy.speed
    });
    let mut learned: Vec<f64> = learned.collect();
    learned.sort_by(f64::total_cmp);
    learned[2]
}

fn alerts(toy: &Toy) -> Vec<AlertKind> {
    toy.disks.alerts().iter().map(|alert| alert.kind).collect()
}

/// The paper's disk does 1 MB/s.
const SPEEDS: [f64; 3] = [1e6, SPEED, 500e6];

#[test]
fn w1_a_burst_that_stays_takes_what_is_idle_and_no_more() {
    for speed in SPEEDS {
        let mut toy = burst(speed, 0.2);
        toy.run(3);
        assert!(toy.got[1] > 0.6, "at once, on {speed}: {}", toy.got[1]);
        let (isolation, used) = watch(&mut toy, 120);
        assert!(isolation >= 0.95 && used >= 0.9, "{speed}: {isolation} {used}");
        let learned = capacity(&mut toy);
        assert!((learned - 1.0).abs() < 0.1, "{learned}");
    }
}

#[test]
fn w2_a_burst_that_returns_finds_its_limit_there() {
    let mut toy = burst(SPEED, 0.2);
    toy.run(40);
    toy.tenants[1].wants = 0.05;
    toy.run(30);
    toy.tenants[1].wants = 2.0;
    toy.step();
    assert!(toy.got[1] > 0.6 && toy.got[0] > 0.19, "in the first second: {:?}", toy.got);
    let (isolation, _) = watch(&mut toy, 40);
    assert!(isolation >= 0.95, "{isolation}");
}

#[test]
fn w3_turns_on_a_slow_disk_are_shared() {
    let mut toy = toy(SPEED, vec![Tenant::new(0.6, 4.0), Tenant::new(0.2, 4.0)]);
    toy.run(50);
    assert_eq!(toy.caps().count(), 0, "no container was short of anything");
    toy.factor = 0.55;
    let mut used = 0.0;
    for turn in 0..4 {
        let (a, b) = if turn % 2 == 0 { (0.6, 0.2) } else { (0.2, 0.6) };
        (toy.tenants[0].wants, toy.tenants[1].wants) = (a, b);
        for _ in 0..20 {
            toy.step();
            used += toy.got.iter().sum::<f64>() / 0.55 / 80.0;
            assert!(toy.got.iter().all(|got| *got > 0.1), "{:?}", toy.got);
        }
    }
    assert!(used > 0.85, "{used}");
    assert!(alerts(&toy).contains(&AlertKind::Overcommit), "{:?}", alerts(&toy));
}

#[test]
fn w4_a_victim_keeps_its_own_on_a_disk_that_slows_down_and_recovers() {
    for speed in SPEEDS {
        let mut toy = burst(speed, 0.3);
        toy.run(40);
        toy.factor = 0.55;
        toy.run(2);
        let (isolation, used) = watch(&mut toy, 60);
        assert!(isolation >= 0.95 && used > 0.88, "slow {speed}: {isolation} {used}");
        let learned = capacity(&mut toy);
        assert!((learned / 0.55 - 1.0).abs() < 0.1, "{learned}");
        assert!(alerts(&toy).contains(&AlertKind::Degraded), "{:?}", alerts(&toy));
        toy.factor = 1.0;
        let (isolation, _) = watch(&mut toy, 60);
        assert!(isolation >= 0.95, "fast again {speed}: {isolation}");
        let learned = capacity(&mut toy);
        assert!((learned - 1.0).abs() < 0.1, "{learned}");
    }
}

#[test]
fn a_lone_container_is_never_limited() {
    let mut toy = toy(SPEED, vec![Tenant::new(5.0, 64.0), Tenant::new(0.0, 1.0)]);
    toy.run(60);
    assert_eq!(toy.caps().count(), 0);
    let learned = capacity(&mut toy);
    assert!((learned - 1.0).abs() < 0.1, "its load shows what the disk can do: {learned}");
}

#[test]
fn after_ten_minutes_of_peace_limits_go() {
    let mut toy = burst(SPEED, 0.2);
    toy.run(30);
    toy.tenants[1].wants = 0.2;
    toy.run(560);
    assert_eq!(toy.disks.disks()[0].state, DiskState::Guard);
    toy.run(60);
    assert_eq!(toy.disks.disks()[0].state, DiskState::Free);
    assert!((0..2).all(|tenant| toy.disks.disk_statuses(id(tenant))[0].max == IoMax::MAX));
}

#[test]
fn a_reservation_holds_from_the_first_second() {
    let mut reserved = Tenant::new(0.0, 4.0);
    reserved.claim.disk = DiskReservation { rbps: Some((0.4 * SPEED) as u64), ..DiskReservation::default() };
    let mut toy = toy(SPEED, vec![reserved, Tenant::new(2.0, 64.0), Tenant::new(0.1, 1.0)]);
    toy.run(30);
    toy.tenants[0].wants = 0.4;
    toy.run(4);
    let (isolation, _) = watch(&mut toy, 30);
    assert!(isolation > 0.95, "{isolation}");
}

#[test]
fn a_disk_that_hangs_takes_no_lifeline() {
    let mut toy = burst(SPEED, 0.3);
    toy.run(30);
    let lifeline = |toy: &Toy| toy.disks.disk_statuses(id(0))[0].lifeline.expect("the disk is known");
    let before = lifeline(&toy);
    toy.factor = 0.0;
    toy.run(60);
    let after = lifeline(&toy);
    assert!(after > 0.95 * before, "{before} {after}");
    toy.factor = 1.0;
    toy.run(5);
    let (isolation, _) = watch(&mut toy, 30);
    assert!(isolation >= 0.95, "{isolation}");
}

#[test]
fn a_container_that_comes_back_after_minutes_is_let_in() {
    let mut toy = toy(SPEED, vec![Tenant::new(0.85, 8.0), Tenant::new(0.3, 32.0)]);
    toy.run(60);
    toy.tenants[1].wants = 0.0;
    toy.run(300);
    toy.tenants[1].wants = 0.3;
    toy.run(15);
    assert!(toy.got[1] > 0.04, "{:?}", toy.got);
}

#[test]
fn a_disk_with_swap_is_watched_only() {
    let mut toy = burst(SPEED, 0.2);
    let HostEvent::Disk(mut disk) = disk() else { unreachable!() };
    disk.swap = true;
    toy.tell(HostEvent::Disk(disk));
    toy.run(30);
    assert_eq!(toy.caps().count(), 0);
    let view = &toy.disks.disks()[0];
    assert!(
        view.exempt_reason.as_ref().is_some_and(|why| why.contains("swap")) && view.capacity != IoMax::MAX
    );
}

#[test]
fn a_capacity_is_remembered_over_a_restart() {
    let mut toy = burst(SPEED, 0.2);
    toy.run(30);
    let learned = toy.disks.learned_capacities();
    assert_eq!(learned.len(), 1);
    let mut next = self::toy(SPEED, vec![]);
    next.disks.seed_capacity("toy", learned[0].1);
    next.tell(HostEvent::DiskGone(DISK));
    next.tell(disk());
    assert_eq!(next.disks.learned_capacities(), learned);
}

#[test]
fn a_container_that_its_limit_does_not_hold_is_named() {
    let mut toy = burst(SPEED, 0.2);
    toy.run(30);
    assert!(!alerts(&toy).contains(&AlertKind::Uncappable), "{:?}", alerts(&toy));
    toy.nested = Some(1);
    toy.run(30);
    assert!(alerts(&toy).contains(&AlertKind::Uncappable), "{:?}", alerts(&toy));
}

#[test]
fn a_container_that_goes_takes_its_alerts_along() {
    let mut toy = burst(SPEED, 0.2);
    toy.obeyed = false;
    toy.run(30);
    assert!(alerts(&toy).contains(&AlertKind::Starved), "{:?}", alerts(&toy));
    toy.tell(HostEvent::Gone(id(0)));
    assert!(!alerts(&toy).contains(&AlertKind::Starved));
    assert!(toy.disks.disk_statuses(id(0)).is_empty());
    let ended =
        toy.orders.iter().filter(|order| matches!(order, DiskOrder::Alert(alert) if alert.until.is_some()));
    assert_eq!(ended.count(), 1);
}

#[test]
fn decisions_say_why_and_standings_where_it_stands() {
    let mut toy = burst(SPEED, 0.2);
    toy.run(5);
    let hog = &toy.disks.disk_statuses(id(1))[0];
    assert!(hog.enforced && hog.held_by == HeldBy::Cap && hog.cap.is_some_and(|cap| cap < 0.8), "{hog:?}");
    let because = &hog.decisions.last().unwrap().because;
    assert!(because.contains("sda") && because.contains("MiB/s"), "{because}");
    toy.tenants[1].user = rbps((0.1 * SPEED) as u64);
    toy.tell(HostEvent::IoLimits(elbowroom_types::io::IoLimits {
        group: id(1),
        disk: DISK,
        user: toy.tenants[1].user,
        ours: hog.max,
        ceded: None,
    }));
    toy.run(20);
    let hog = &toy.disks.disk_statuses(id(1))[0];
    assert_eq!((hog.held_by, hog.max.rbps), (HeldBy::User, Limit::Max), "the user's own limit is enough");
}

#[test]
fn ticks_that_come_late_or_twice_change_nothing() {
    let mut toy = burst(SPEED, 0.2);
    toy.run(20);
    let status = |toy: &Toy| toy.disks.disk_statuses(id(0))[0].lifeline;
    let before = status(&toy);
    let last = toy.events.iter().rfind(|event| matches!(event, HostEvent::DiskTick(_))).unwrap().clone();
    toy.tell(last.clone());
    let HostEvent::DiskTick(mut late) = last else { unreachable!() };
    late.now = late.now.saturating_add(Micros::secs(60));
    toy.tell(HostEvent::DiskTick(late));
    assert_eq!(status(&toy), before);
    toy.tell(group(0));
    assert_eq!(status(&toy), before);
}

#[test]
fn a_higher_tier_comes_first() {
    let claimed = |tier| {
        let mut tenant = Tenant::new(2.0, 32.0);
        tenant.claim = Claim { tier, ..Claim::default() };
        tenant
    };
    let mut toy = toy(SPEED, vec![claimed(1), claimed(0)]);
    toy.run(30);
    assert!(toy.got[0] > 0.8 && toy.got[1] < 0.15, "{:?}", toy.got);
}

#[test]
fn a_trickle_of_a_lower_tier_keeps_no_container_from_being_cut() {
    let claimed = |tier, wants, depth| {
        let mut tenant = Tenant::new(wants, depth);
        tenant.claim = Claim { tier, ..Claim::default() };
        tenant
    };
    let mut toy = toy(SPEED, vec![claimed(1, 0.3, 4.0), claimed(1, 0.1, 64.0), claimed(0, 0.01, 1.0)]);
    toy.run(40);
    toy.tenants[1].wants = 2.0;
    toy.run(10);
    assert!(toy.caps().any(|cap| cap.group == id(1)) && toy.got[0] > 0.28, "{:?}", toy.got);
}

#[test]
fn a_latency_container_is_never_cut_and_its_neighbour_is() {
    let mut careful = Tenant::new(0.1, 1.0);
    careful.claim.class = ServiceClass::Latency;
    let mut toy = toy(SPEED, vec![careful, Tenant::new(2.0, 64.0)]);
    for second in 0..120 {
        toy.tenants[0].wants = if second % 7 == 0 { 0.14 } else { 0.1 };
        toy.step();
    }
    assert!(toy.caps().all(|cap| cap.group == id(1)));
    assert!(toy.got[0] > 0.095 && toy.got[1] > 0.5, "{:?}", toy.got);
}

#[test]
fn a_disk_that_becomes_slow_is_looked_at_again_soon_and_not_for_ever() {
    let mut toy = toy(SPEED, vec![Tenant::new(0.3, 4.0), Tenant::new(0.15, 16.0)]);
    toy.run(40);
    assert!(!toy.disks.needs_early_sample());
    // Requests wait, but each container still gets what it needs: the burst began at the end of the period.
    toy.late = 50.0;
    toy.step();
    assert!(toy.disks.needs_early_sample() && toy.caps().count() == 0);
    toy.run(3);
    assert!(!toy.disks.needs_early_sample());
    toy.late = 0.0;
    toy.run(3);
    toy.tenants[1].wants = 2.0;
    toy.period = Micros::millis(250);
    toy.step();
    assert!(!toy.disks.needs_early_sample() && toy.caps().count() > 0, "what was seen is enough");
    toy.run(1);
    assert!(toy.got[0] > 0.28, "{:?}", toy.got);
}

#[test]
fn a_burst_is_answered_within_300_ms_and_cut_by_what_it_really_takes() {
    let mut toy = burst(SPEED, 0.3);
    toy.tenants[1].wants = 0.15;
    let quiet = (0..5).all(|_| toy.glance(EARLY).is_none());
    assert!(quiet, "nothing happens");
    // It begins in the middle between two glances, and in the middle of a period.
    toy.serve(Micros::millis(75));
    toy.tenants[1].wants = 2.0;
    let began = toy.now;
    assert_eq!(toy.glance(Micros::millis(75)), Some(toy.now), "requests wait");
    toy.look();
    assert!(toy.caps().count() == 0 && toy.disks.needs_early_sample(), "most of that was before the burst");
    toy.serve(EARLY);
    toy.look();
    let cap = toy.caps().next().expect("the burst is limited").clone();
    assert!(cap.group == id(1) && toy.now.saturating_sub(began) <= Micros::millis(300), "{cap:?}");
    let part = cap.max.rbps.value().unwrap() as f64 / SPEED;
    assert!((0.55..0.75).contains(&part), "the victim needs 0.3 of the disk: {part}");
}

#[test]
fn a_disk_that_one_container_uses_is_not_glanced_at() {
    let mut toy = toy(SPEED, vec![Tenant::new(0.3, 4.0)]);
    toy.run(10);
    toy.tenants[0].wants = 2.0;
    assert!(!toy.disks.needs_glances() && toy.glance(EARLY).is_none());
    let mut two = burst(SPEED, 0.3);
    two.run(1);
    assert!(two.disks.needs_glances());
    two.tenants.iter_mut().for_each(|tenant| tenant.wants = 0.0);
    two.run(2);
    assert!(!two.disks.needs_glances(), "an idle disk hurts no container");
}

#[test]
fn an_alarm_that_found_nothing_does_not_keep_the_next_one_away() {
    let mut toy = burst(SPEED, 0.3);
    toy.tenants[1].wants = 0.15;
    assert!((0..5).all(|_| toy.glance(EARLY).is_none()));
    toy.late = 50.0;
    assert_eq!(toy.glance(EARLY), Some(toy.now), "requests wait");
    toy.look();
    toy.late = 0.0;
    toy.serve(EARLY);
    toy.look();
    assert!(!toy.disks.needs_early_sample() && toy.caps().count() == 0, "it was nothing");
    assert!((0..2).all(|_| toy.glance(EARLY).is_none()));
    toy.tenants[1].wants = 2.0;
    assert_eq!(toy.glance(EARLY), Some(toy.now), "the burst");
}

#[test]
fn an_alarm_just_after_a_measurement_waits_until_the_next_one_counts() {
    let mut toy = burst(SPEED, 0.3);
    toy.tenants[1].wants = 0.15;
    assert!((0..5).all(|_| toy.glance(EARLY).is_none()));
    toy.serve(Micros::millis(52));
    toy.look();
    toy.tenants[1].wants = 2.0;
    let measured = toy.now;
    let at = toy.glance(EARLY.saturating_sub(Micros::millis(52))).expect("requests wait");
    assert_eq!(at, measured.saturating_add(EARLY));
    toy.serve(at.saturating_sub(toy.now));
    toy.look();
    assert!(toy.caps().next().is_some(), "it was a measurement, and all of it was the burst");
}

#[test]
fn a_cut_is_given_time_to_work_whatever_the_period() {
    for period in [250, 500, 1000] {
        let mut toy = burst(SPEED, 0.2);
        toy.period = Micros::millis(period);
        // Nothing that is ordered has any effect.
        toy.obeyed = false;
        toy.run(20);
        // Smaller steps follow requests whose size varies.
        let mut last = u64::MAX;
        let at: Vec<Micros> = toy
            .caps()
            .filter_map(|cap| {
                let rate = cap.max.rbps.value()?;
                let cut = (rate as f64) < 0.97 * last as f64;
                last = rate;
                cut.then_some(cap.at)
            })
            .collect();
        assert!(
            at.windows(2).all(|two| two[1].saturating_sub(two[0]) >= Micros::millis(1750)),
            "{period}: {at:?}"
        );
    }
}

#[test]
fn caps_do_not_tighten_on_a_disk_that_hangs_or_a_clock_that_stops() {
    let mut toy = burst(SPEED, 0.3);
    toy.run(10);
    let limit = |toy: &Toy| toy.disks.disk_statuses(id(1))[0].max.rbps.value().unwrap_or(u64::MAX);
    let before = limit(&toy);
    toy.factor = 0.0;
    toy.run(30);
    assert!(limit(&toy) >= before, "{before} {}", limit(&toy));
    let stopped = toy.events.iter().rfind(|event| matches!(event, HostEvent::DiskTick(_))).unwrap().clone();
    (0..100).for_each(|_| toy.tell(stopped.clone()));
    assert!(limit(&toy) >= before, "{before} {}", limit(&toy));
}
