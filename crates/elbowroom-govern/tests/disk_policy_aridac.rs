//! Policy `aridac` as the paper has it, with what it cannot do.

use crate::toy_disk::{Tenant, Toy, id};
use elbowroom_govern::disk::{DiskOrder, DiskPolicy, DiskSettings};
use elbowroom_types::alert::AlertKind;
use elbowroom_types::unit::Micros;

const SPEED: f64 = 100.0 * 1048576.0;

/// The paper's 20 %; 30 samples, one every half second, are ours.
fn toy(tenants: Vec<Tenant>) -> Toy {
    let settings =
        DiskSettings { policy: DiskPolicy::Aridac, period: Micros::millis(500), ..DiskSettings::default() };
    Toy::new(settings, SPEED, tenants)
}

fn lifeline(toy: &Toy, tenant: usize) -> f64 {
    toy.disks.disk_statuses(id(tenant))[0].lifeline.unwrap()
}

fn cap(toy: &Toy, tenant: usize) -> Option<f64> {
    toy.disks.disk_statuses(id(tenant))[0].cap
}

#[test]
fn a_cap_is_a_fifth_above_the_mean_of_the_last_thirty_samples() {
    let mut toy = toy(vec![Tenant::new(0.2, 1.0)]);
    toy.run(14);
    assert_eq!(cap(&toy, 0), None, "28 samples are not 30");
    toy.run(1);
    assert!((lifeline(&toy, 0) - 0.2).abs() < 0.002 && (cap(&toy, 0).unwrap() - 0.24).abs() < 0.003);
    toy.tenants[0].wants = 0.1;
    toy.run(15);
    assert!((cap(&toy, 0).unwrap() - 0.12).abs() < 0.002, "after as many samples it is another one");
}

#[test]
fn a_burst_takes_a_minute_to_grow_fivefold() {
    let mut toy = toy(vec![Tenant::new(0.1, 1.0)]);
    toy.run(20);
    toy.tenants[0].wants = 2.0;
    let since = toy.now;
    while toy.got[0] < 0.5 {
        toy.step();
        assert!(toy.now < since.saturating_add(Micros::secs(120)), "it never grew: {}", toy.got[0]);
    }
    let seconds = toy.now.saturating_sub(since).get() / 1_000_000;
    assert!((55..75).contains(&seconds), "{seconds} s");
}

#[test]
fn a_burst_leaves_its_neighbour_what_it_is_used_to() {
    let mut toy = toy(vec![Tenant::new(0.2, 1.0), Tenant::new(0.1, 32.0)]);
    toy.run(20);
    toy.tenants[1].wants = 2.0;
    for _ in 0..60 {
        toy.run(1);
        assert!(toy.got[0] > 0.19, "{}", toy.got[0]);
    }
}

/// Figure 8: the wrong scale-in.
#[test]
fn a_slow_disk_is_learned_as_little_demand() {
    let mut toy = toy(vec![Tenant::new(0.3, 1.0), Tenant::new(0.1, 32.0)]);
    toy.run(20);
    toy.tenants[1].wants = 2.0;
    toy.run(60);
    let before = lifeline(&toy, 0);
    toy.factor = 0.55;
    toy.run(60);
    assert!(before > 0.28 && lifeline(&toy, 0) < 0.1 && toy.got[0] < 0.1, "{before} {}", lifeline(&toy, 0));
    toy.factor = 1.0;
    toy.run(30);
    assert!(
        toy.got[0] < 0.25,
        "half a minute later the disk is fast again and it is still poor: {}",
        toy.got[0]
    );
}

#[test]
fn caps_of_more_than_the_disk_are_an_alert() {
    let kinds = |wants: f64| {
        let mut toy = toy(vec![Tenant::new(wants, 1.0), Tenant::new(wants, 1.0)]);
        toy.run(20);
        let begun = toy.orders.iter().filter_map(|order| match order {
            DiskOrder::Alert(alert) => Some((alert.kind, alert.until)),
            DiskOrder::Cap(_) => None,
        });
        begun.collect::<Vec<_>>()
    };
    assert_eq!(kinds(0.4), []);
    assert_eq!(kinds(0.45), [(AlertKind::Overcommit, None)]);
}
