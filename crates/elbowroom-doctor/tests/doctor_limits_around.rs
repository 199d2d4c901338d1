//! Limits of the cgroups around a container: pods, slices, `--cgroup-parent`. What is full then is not the container's own.

use crate::doctor_host::{Sim, says};
use elbowroom_doctor::checks::ControllerVersion::{V1, V2};
use elbowroom_doctor::checks::sizing::estimate_need;
use elbowroom_doctor::checks::{CgroupFacts, examine};
use elbowroom_types::container::Pod;
use elbowroom_types::finding::{DoctorFinding, Severity};
use elbowroom_types::sample::MemoryStat;
use elbowroom_types::unit::Bytes;

const MIB: u64 = 1 << 20;

fn around(host: &mut Sim) -> &mut CgroupFacts {
    &mut host.facts.groups[1]
}

fn found(host: &Sim, check: &str) -> Option<DoctorFinding> {
    examine(&host.facts).into_iter().find(|found| found.check == check)
}

fn containers(host: &Sim, check: &str) -> Vec<String> {
    let told = examine(&host.facts).into_iter().filter(|found| found.check == check);
    told.filter_map(|found| found.container).collect()
}

#[test]
fn a_quota_around_a_container_that_waits_is_told_of_with_its_file() {
    for version in [V1, V2] {
        let host = |waits: u32| {
            let mut host = Sim::new(version);
            let group = around(&mut host);
            let settings = match version {
                V1 => vec![("cpu.cfs_quota_us", "200000"), ("cpu.cfs_period_us", "100000")],
                V2 => vec![("cpu.max", "200000 100000")],
            };
            group.files.extend(settings.into_iter().map(|(file, text)| (file.to_owned(), text.to_owned())));
            for (key, n) in [("nr_periods", 20), ("nr_throttled", 10), ("throttled_usec", 300_000)] {
                group.before.cpu.insert(key.into(), 0);
                group.after.cpu.insert(key.into(), n);
            }
            host.waits(0, waits);
            host
        };
        assert_eq!(says("cpu-throttled", &host(100)), None, "it does not wait for a CPU");
        let found = found(&host(4_000), "cpu-throttled").expect("a quota that stops it");
        assert_eq!(found.container.as_deref(), Some("web"));
        assert!(
            found.sentence.starts_with("The quota of 2.0 CPUs of /docker around it stopped all"),
            "{}",
            found.sentence
        );
        assert!(found.evidence[1].file.contains("/docker/cpu."), "{:?}", found.evidence);
        let write = &found.fix.expect("a larger quota").writes[0];
        assert!(!write.file.contains("/c1/") && write.to.starts_with("300000"), "{write:?}");
        // Without pressure, one of both: the one with most.
        let mut unknown = host(0);
        unknown.second();
        for (group, threads) in [(2, "9"), (3, "70")] {
            let group = &mut unknown.facts.groups[group];
            group.after.pressure = None;
            group.files.insert("pids.current".into(), threads.into());
        }
        assert_eq!(containers(&unknown, "cpu-throttled"), ["db"]);
    }
}

/// Raised behind its back, the kubelet's limits let pods have what it keeps for the node's own programs.
#[test]
fn what_the_kubelet_set_around_a_container_is_the_kubelets_to_change() {
    let mut host = Sim::new(V2);
    let group = around(&mut host);
    group.path = "/kubepods.slice".into();
    let limit = (256 * MIB).to_string();
    let files = [
        ("memory.max", limit.as_str()),
        ("memory.high", limit.as_str()),
        ("pids.current", "99"),
        ("pids.max", "100"),
    ];
    group.files.extend(files.map(|(file, text)| (file.to_owned(), text.to_owned())));
    group.after.usage = Some(Bytes::mib(255));
    for event in ["max", "high"] {
        host.event_around(event, 500);
    }
    host.full(2, 2_000);
    host.waits(2, 2_000);
    for check in ["at-memory-limit", "high-throttles", "pids-near-limit"] {
        let found = found(&host, check).unwrap_or_else(|| panic!("{check}"));
        assert!(found.fix.is_none() && found.advice.unwrap().starts_with("The kubelet set it"), "{check}");
    }
}

#[test]
fn a_full_limit_around_a_container_is_told_of_and_named_after_a_kill() {
    for version in [V1, V2] {
        let host = |cache: u64| {
            let mut host = Sim::new(version);
            let file = if version == V2 { "memory.max" } else { "memory.limit_in_bytes" };
            let group = around(&mut host);
            group.files.insert(file.into(), (256 * MIB).to_string());
            group.after.usage = Some(Bytes::mib(255));
            group.after.memory = Some(MemoryStat { active_file: Bytes::mib(cache), ..MemoryStat::EMPTY });
            host.event_around("max", 50);
            host.waits(2, 500);
            host
        };
        assert_eq!(says("at-memory-limit", &host(100)), None, "cache gives way");
        let (severity, command) = says("at-memory-limit", &host(1)).expect("a full limit");
        assert_eq!(severity, Severity::Warning);
        let command = command.expect("a larger limit");
        assert!(command.contains("/docker/memory."), "{command}");
        // Without pressure, one of both: the one with most.
        let mut unknown = host(1);
        unknown.second();
        for (group, mib) in [(2, 10), (3, 200)] {
            let group = &mut unknown.facts.groups[group];
            (group.after.pressure, group.after.usage) = (None, Some(Bytes::mib(mib)));
        }
        assert_eq!(containers(&unknown, "at-memory-limit"), ["db"]);
    }
    let mut host = Sim::new(V2);
    host.set_around("memory.max", &(256 * MIB).to_string());
    host.event_around("oom", 1);
    host.event("oom_kill", 1);
    let advice = found(&host, "oom-killed").expect("a kill").advice.expect("no limit of its own");
    assert_eq!(
        advice,
        "It was at no limit of its own: that of /docker around it, 256MiB, may have been full."
    );
}

#[test]
fn a_high_around_a_container_holds_it_up() {
    let mut host = Sim::new(V2);
    host.set_around("memory.high", &(256 * MIB).to_string());
    around(&mut host).after.usage = Some(Bytes::mib(255));
    host.event_around("high", 500);
    assert_eq!(says("high-throttles", &host), None, "nothing waits");
    host.full(2, 2_000);
    let (_, command) = says("high-throttles", &host).expect("all of it waits");
    assert_eq!(command.as_deref(), Some("echo 335544320 > /sys/fs/cgroup/docker/memory.high"));
}

/// v2 counts in a cgroup what happens at the limits below it, too.
#[test]
fn what_happens_at_a_neighbours_limit_is_not_the_limits_around_both() {
    for (check, file, event) in
        [("at-memory-limit", "memory.max", "max"), ("high-throttles", "memory.high", "high")]
    {
        let host = |neighbours: u64| {
            let mut host = Sim::new(V2);
            host.set_around(file, &(256 * MIB).to_string());
            around(&mut host).after.usage = Some(Bytes::mib(255));
            host.event_around(event, 500);
            host.full(2, 2_000);
            host.waits(2, 2_000);
            host.second();
            host.facts.groups[3].before.events.insert(event.into(), 0);
            host.facts.groups[3].after.events.insert(event.into(), neighbours);
            host
        };
        assert_eq!(says(check, &host(500)), None, "{check}");
        assert!(says(check, &host(0)).is_some(), "{check}");
    }
}

#[test]
fn of_a_limit_around_many_the_one_with_most_is_told() {
    let mut host = Sim::new(V2);
    host.second();
    let threads =
        |group: &mut CgroupFacts, n: &str| drop(group.files.insert("pids.current".into(), n.into()));
    for (group, n) in [(1, "990"), (2, "10"), (3, "980")] {
        threads(&mut host.facts.groups[group], n);
    }
    host.facts.groups[1].files.insert("pids.max".into(), "1000".into());
    assert_eq!(containers(&host, "pids-near-limit"), ["db"]);
}

#[test]
fn threads_and_files_in_memory_of_a_pod_fill_its_limits() {
    let mut host = Sim::new(V2);
    let group = around(&mut host);
    group
        .files
        .extend([("pids.current", "990"), ("pids.max", "1000")].map(|(k, v)| (k.to_owned(), v.to_owned())));
    let (_, command) = says("pids-near-limit", &host).expect("no thread more");
    assert_eq!(command.as_deref(), Some("echo 2000 > /sys/fs/cgroup/docker/pids.max"));
    let mut host = Sim::new(V2);
    host.set_around("memory.max", &(100 * MIB).to_string());
    let group = around(&mut host);
    group.after.usage = Some(Bytes::mib(90));
    group.after.memory = Some(MemoryStat { shmem: Bytes::mib(60), ..MemoryStat::EMPTY });
    let sentence = found(&host, "tmpfs-fills-limit").expect("files of a container that is gone").sentence;
    assert!(
        sentence.starts_with("60MiB of the limit of 100MiB of /docker around it are files in memory"),
        "{sentence}"
    );
}

/// The kernel counts at the cgroup whose limit lets in no more, and those around it (mm/memcontrol.c, `try_charge_memcg`).
#[test]
fn in_a_pod_a_containers_limit_is_counted_by_the_pod() {
    let host = |in_pod: bool| {
        let mut host = Sim::new(V2);
        host.limit(128 * MIB);
        host.usage(127 * MIB);
        host.anon(125 * MIB);
        host.set_around("memory.max", &(128 * MIB).to_string());
        // The cgroup around has more in it than these two facts say, so that only the container can be near its limit.
        host.event_around("max", 100);
        host.waits(2, 500);
        host.swap(20 * MIB);
        host.swap_ins(1_000);
        host.refaults(1_000);
        let pod = Pod {
            uid: "u".into(),
            name: Some("web-5d4f8c7b9d-x2x7q".into()),
            namespace: Some("shop".into()),
        };
        let container = host.facts.groups[2].container.as_mut().expect("web");
        container.pod = in_pod.then_some(pod);
        host
    };
    for check in ["at-memory-limit", "anon-evicts-cache", "swaps-at-own-limit"] {
        let (_, command) = says(check, &host(true)).unwrap_or_else(|| panic!("{check}"));
        let command = command.expect("a pod's limit is in its specification");
        assert!(
            command.starts_with("kubectl -n shop set resources deployment/web --containers=web"),
            "{check}: {command}"
        );
    }
    let mut beside = host(true);
    beside.second();
    beside.facts.groups[3].after.events.insert("max".into(), 100);
    for check in ["at-memory-limit", "anon-evicts-cache"] {
        assert_eq!(says(check, &host(false)), None, "{check}: another's limit");
        assert_eq!(says(check, &beside), None, "{check}: that of the container beside it");
    }
}

#[test]
fn dentries_and_inodes_at_a_limit_give_way_as_cache_does() {
    let host = |slab: u64| {
        let mut host = Sim::new(V2);
        host.limit(256 * MIB);
        host.usage(250 * MIB);
        host.anon(20 * MIB);
        host.facts.groups[2].after.memory.as_mut().expect("set").slab_reclaimable = Bytes::mib(slab);
        host.hits(100);
        host.waits(2, 500);
        host
    };
    assert!(says("at-memory-limit", &host(10)).is_some());
    let with_slab = host(220);
    assert_eq!(says("at-memory-limit", &with_slab), None);
    // 20 MiB of its own and 10 of the kernel's, and a tenth.
    assert_eq!(estimate_need(&with_slab.facts, &with_slab.facts.groups[2]).need, Bytes::mib(33));
}

/// containers/crun#1572: weights are of siblings, and a cgroup that is alone in a scope has none.
#[test]
fn a_weight_inside_the_scope_is_to_be_the_scopes() {
    let mut host = Sim::new(V2);
    host.disk("bfq", "0");
    host.set("io.bfq.weight", "500");
    assert_eq!(says("io-weight-without-effect", &host), None);
    host.facts.groups[2].below.insert("io.bfq.weight".into(), "container".into());
    let (_, command) = says("io-weight-without-effect", &host).expect("a weight without neighbours");
    assert_eq!(command.as_deref(), Some("echo 500 > /sys/fs/cgroup/docker/c1/io.bfq.weight"));
}

#[test]
fn a_quota_is_not_raised_above_one_around_it() {
    for (version, file, own, around) in
        [(V1, "cpu.cfs_quota_us", "200000", "250000"), (V2, "cpu.max", "200000 100000", "250000 100000")]
    {
        let host = |around: &str| {
            let mut host = Sim::new(version);
            host.throttled(20, 10, 300_000);
            host.set(file, own);
            host.set_around(file, around);
            if version == V1 {
                host.set("cpu.cfs_period_us", "100000");
                host.set_around("cpu.cfs_period_us", "100000");
            }
            host
        };
        let held = found(&host(around), "cpu-throttled").expect("its own quota stops it");
        assert_eq!(held.fix, None, "{version:?}");
        assert_eq!(
            held.advice.as_deref(),
            Some("/docker around it has a quota of 2.5 CPUs: raise that first.")
        );
        let wide = found(&host(&around.replace("250000", "300000")), "cpu-throttled").expect("its own quota");
        assert!(wide.fix.is_some(), "{version:?}");
        // In a pod a person changes the specification, which moves the pod's own.
        let mut pod = host(around);
        let (uid, name) = ("u".to_owned(), Some("web-5d4f8c7b9d-x2x7q".to_owned()));
        pod.facts.groups[2].container.as_mut().expect("web").pod =
            Some(Pod { uid, name, namespace: Some("shop".into()) });
        let fix = found(&pod, "cpu-throttled").expect("its own quota").fix.expect("a command");
        assert!(fix.writes.is_empty() && fix.commands[0].starts_with("kubectl "), "{fix:?}");
    }
}

#[test]
fn no_limit_is_raised_to_what_the_kernel_does_not_take_or_one_around_it_does_not_let_in() {
    let pids = |now: &str, most: &str, kernel: &str, around: Option<&str>| {
        let mut host = Sim::new(V2);
        host.set("pids.current", now);
        host.set("pids.max", most);
        host.host("/proc/sys/kernel/threads-max", kernel);
        around.into_iter().for_each(|around| host.set_around("pids.max", around));
        let found = found(&host, "pids-near-limit").expect("no thread more");
        (found.fix.map(|fix| fix.writes[0].to.clone()), found.advice)
    };
    assert_eq!(pids("990", "1000", "500000", None).0.as_deref(), Some("2000"));
    assert_eq!(pids("990", "1000", "1500", None).0.as_deref(), Some("1500"));
    assert_eq!(pids("990", "1000", "500000", Some("1200")).0.as_deref(), Some("1200"));
    assert_eq!(pids("2900000", "3000000", "8000000", None).0.as_deref(), Some("4194304"));
    let (fix, advice) = pids("4000000", "4194304", "8000000", None);
    assert!(fix.is_none() && advice.unwrap().contains("/proc/sys/kernel/pid_max"));
    let (fix, advice) = pids("990", "1000", "500000", Some("1000"));
    assert!(fix.is_none() && advice.unwrap().starts_with("A cgroup around it may have 1000"));
}

#[test]
fn a_limit_above_the_machines_memory_is_none() {
    let held_up = |max: u64, around: &str| {
        let mut host = Sim::new(V2);
        host.limit(max);
        host.set("memory.high", &(256 * MIB).to_string());
        host.set_around("memory.high", around);
        host.usage(255 * MIB);
        host.event("high", 500);
        host.full(2, 2_000);
        let found = found(&host, "high-throttles").expect("it is held up");
        found.fix.map(|fix| fix.writes[0].to.clone())
    };
    let to = |mib: u64| Some((mib * MIB).to_string());
    assert_eq!(held_up(512 * MIB, "max"), to(320));
    assert_eq!(held_up(300 * MIB, "max"), to(300));
    assert_eq!(held_up(1 << 62, "max"), to(320), "nobody has four exbibytes");
    assert_eq!(held_up(512 * MIB, &(300 * MIB).to_string()), to(300));
    assert_eq!(held_up(512 * MIB, &(256 * MIB).to_string()), None);
    let heap = |limit: u64| {
        let mut host = Sim::new(V2);
        host.limit(limit);
        host.heap("-Xmx20g", 20 << 30);
        found(&host, "heap-over-limit").map(|found| found.evidence[1].file.clone())
    };
    assert_eq!(heap(64 << 30).as_deref(), Some("/proc/meminfo MemTotal"));
    assert!(heap(1 << 30).is_some_and(|file| file.ends_with("/memory.max")));
}
