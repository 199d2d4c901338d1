//! What the doctor says of a host as a whole: findings together, and looks that are kept.

use crate::doctor_host::Sim;
use elbowroom_doctor::checks::ControllerVersion::{V1, V2};
use elbowroom_doctor::checks::{examine, is_fixable, is_harmful, plan_fixes};
use elbowroom_types::unit::{Bytes, Micros};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

#[test]
fn claims_planned_together_add_up_in_the_cgroup_around_them() {
    let mut host = Sim::new(V2);
    host.limit(4 * GIB);
    host.second();
    host.facts.groups[3].files.insert("memory.max".into(), (4 * GIB).to_string());
    host.facts.groups[3].after.usage = Some(Bytes(64 * MIB));
    host.available(GIB);
    let planned = plan_fixes(&host.facts, is_harmful);
    let around: Vec<String> = planned
        .iter()
        .filter_map(|f| f.fix.as_ref())
        .flat_map(|f| &f.writes)
        .filter(|w| w.file == "/sys/fs/cgroup/docker/memory.low")
        .map(|w| format!("{} -> {}", w.from, w.to))
        .collect();
    assert_eq!(around, ["0 -> 4294967296", "4294967296 -> 8589934592"]);
}

#[test]
fn claims_add_up_to_what_the_host_can_keep_at_most() {
    let mut host = Sim::new(V2);
    host.inside("pod");
    for at in 3..12 {
        host.second();
        host.contain(at, "db");
    }
    for group in &mut host.facts.groups[2..] {
        group.files.insert("memory.low".into(), (4 * GIB).to_string());
        group.after.usage = Some(Bytes(GIB));
    }
    let planned = plan_fixes(&host.facts, is_harmful);
    let written: Vec<_> = planned.iter().filter_map(|f| f.fix.as_ref()).flat_map(|f| &f.writes).collect();
    // 80 % of 16 GiB in whole MiB: with that no claim is void.
    assert_eq!(written.len(), 1, "{written:?}");
    assert_eq!(
        (written[0].from.as_str(), written[0].to.as_str()),
        ("0", (13_107 * MIB).to_string().as_str())
    );

    // All of the machine is more than can be kept.
    let mut host = Sim::new(V2);
    host.inside("pod");
    host.set("memory.low", "max");
    let found: Vec<_> = examine(&host.facts).into_iter().filter(|f| f.check == "reservation-void").collect();
    assert!(found[0].fix.is_none() && found[0].advice.is_some(), "{found:?}");
}

/// On v1, what soft limits are set to: of the container, and of a second one with 2 GiB of cache that it does not use.
fn soft_limits(ill: fn(&mut Sim)) -> (Vec<u64>, Vec<u64>) {
    let mut host = Sim::new(V1);
    host.second();
    let db = &mut host.facts.groups[3].after;
    db.usage = Some(Bytes(3 * GIB));
    db.memory.as_mut().unwrap().inactive_file = Bytes(2 * GIB);
    ill(&mut host);
    let planned = plan_fixes(&host.facts, is_harmful);
    let writes: Vec<_> = planned.into_iter().filter_map(|f| f.fix).flat_map(|f| f.writes).collect();
    let of = |name: &str| {
        let file = format!("/docker/{name}/memory.soft_limit_in_bytes");
        writes.iter().filter(|w| w.file.ends_with(&file)).map(|w| w.to.parse().unwrap()).collect()
    };
    (of("c1"), of("c2"))
}

#[test]
fn on_v1_a_container_to_be_protected_never_has_to_give() {
    let stolen = |h: &mut Sim| {
        h.usage(200 * MIB);
        h.refaults(5_000);
        h.vmstat("pgsteal_kswapd", 50_000);
    };
    let (own, gives) = soft_limits(stolen);
    assert_eq!((own.len(), gives), (1, vec![GIB]), "idle cache is what is to go first");

    let both_stolen = |h: &mut Sim| {
        h.usage(200 * MIB);
        h.refaults(5_000);
        h.vmstat("pgsteal_kswapd", 50_000);
        h.facts.groups[3].after.memory.as_mut().unwrap().workingset_refault_file = 5_000;
    };
    let (own, others) = soft_limits(both_stolen);
    assert!(own.len() == 1 && others.len() == 1 && others[0] > 3 * GIB, "{own:?} {others:?}");

    let both_promised = |h: &mut Sim| {
        h.limit(6 * GIB);
        h.facts.groups[3].files.insert("memory.limit_in_bytes".into(), (6 * GIB).to_string());
        h.available(GIB);
    };
    assert_eq!(soft_limits(both_promised), (vec![6 * GIB], vec![6 * GIB]));
}

#[test]
fn a_limit_is_raised_once_however_many_findings_ask_for_it() {
    let mut host = Sim::new(V2);
    host.limit(128 * MIB);
    host.usage(128 * MIB);
    host.anon(126 * MIB);
    host.hits(100);
    host.refaults(5_000);
    host.waits(2, 500);
    host.ever("oom", 3);
    host.ever("oom_kill", 3);
    assert!(examine(&host.facts).iter().filter(|f| is_fixable(f)).count() >= 3);
    let planned = plan_fixes(&host.facts, is_harmful);
    let raised = planned.iter().filter_map(|f| f.fix.as_ref()).flat_map(|f| &f.writes);
    assert_eq!(raised.filter(|w| w.file.ends_with("memory.max")).count(), 1);
}

#[test]
fn three_hundred_idle_containers_and_limits_beyond_the_machine_give_no_warning() {
    for version in [V1, V2] {
        let mut host = Sim::new(version);
        for _ in 0..300 {
            host.second();
        }
        host.set_all(if version == V2 { "memory.max" } else { "memory.limit_in_bytes" }, "1073741824");
        for group in &mut host.facts.groups[2..] {
            group.after.usage = Some(Bytes(20 * MIB));
        }
        let harm: Vec<_> = examine(&host.facts).into_iter().filter(is_harmful).collect();
        assert!(harm.is_empty(), "{harm:?}");
    }
}

#[test]
fn a_look_that_was_kept_is_the_first_of_a_later_comparison() {
    let mut host = Sim::new(V2);
    host.vmstat("pgsteal_kswapd", 500);
    host.throttled(100, 10, 0);
    let kept = host.facts.snapshot(Micros::secs(100));
    // An hour later: more of everything, a container killed, and another one that is new.
    host.throttled(1_100, 60, 0);
    host.event("oom_kill", 1);
    host.second();
    host.facts.groups[3].after.events.insert("oom_kill".into(), 2);
    let later = host.facts.since(kept.clone(), Micros::secs(3_700));
    assert_eq!(later.elapsed, Micros::secs(3_600));
    assert_eq!(later.host.vmstat("pgsteal_kswapd"), Some((1_500, 1_500)));
    let web = &later.groups[2];
    assert_eq!((web.before.cpu["nr_periods"], web.after.cpu["nr_periods"]), (100, 1_100));
    assert_eq!(web.event_counts("oom_kill"), Some((1, 1)));
    assert_eq!(later.groups[3].event_counts("oom_kill"), Some((2, 2)), "it was made since, and killed since");
    // One made anew under the same path is new, too.
    let mut again = later;
    again.groups[2].inode = Some(77);
    let again = again.since(kept, Micros::secs(3_700));
    assert_eq!(again.groups[2].before.cpu["nr_periods"], 0);
}
