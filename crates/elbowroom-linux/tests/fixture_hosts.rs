//! The sensor on captured hosts: what each kind of layout looks like from the outside, and how it takes what is broken.

use elbowroom_linux::activity::{ActivitySource, ActivityTracker};
use elbowroom_linux::fixture::Fixture;
use elbowroom_linux::sensor::MAX_GROUPS_PER_TENANT;
use elbowroom_linux::{Sensor, SensorConfig};
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::{CgroupProperties, CpuMax, HostEvent, NodeProperties, ReclaimCounters};
use elbowroom_types::unit::{Bytes, CpuShare, Limit, Micros};
use std::collections::HashMap;
use std::fmt::{Display, Write};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const HYBRID: &str = include_str!("../../../tests/hosts/hybrid-docker.txt");
const MIXED: &str = include_str!("../../../tests/hosts/mixed-podman.txt");
const UNIFIED: &str = include_str!("../../../tests/hosts/unified-kubepods.txt");
const WEB: &str = "docker/4f1c2a9be07d53c8a6e1d4b70935fa8210c7be694d3528af71e60b9c8d2f5a34";
const BATCH: &str = "docker/0c7be694d3528af71e60b9c8d2f5a344f1c2a9be07d53c8a6e1d4b70935fa821";

fn open(archive: &str) -> (Fixture, Sensor, Vec<HostEvent>) {
    let host = Fixture::new(archive).unwrap();
    let config = SensorConfig {
        root: host.path().into(),
        rescan: Micros::secs(3_600),
        container_patterns: vec!["/batch/*".to_owned()],
        ..SensorConfig::default()
    };
    let mut sensor = Sensor::open(&config).unwrap();
    let events = sensor.start();
    (host, sensor, events)
}

fn groups(events: &[HostEvent]) -> HashMap<String, CgroupProperties> {
    let group = |event: &HostEvent| match event {
        HostEvent::Group(group) => Some((group.path.clone(), group.clone())),
        _ => None,
    };
    events.iter().filter_map(group).collect()
}

/// One line per group: name, and each setting it has.
fn table(events: &[HostEvent]) -> String {
    let mut text = String::new();
    for event in events {
        let HostEvent::Group(group) = event else { continue };
        let name = group.path.rsplit('/').next().unwrap();
        let short = &name[..name.len().min(12)];
        write!(text, "{}", if short.is_empty() { "/" } else { short }).unwrap();
        if let Some(container) = &group.container {
            write!(text, " {:?}:{}", container.engine, container.name.as_deref().unwrap_or("?")).unwrap();
            if let Some(pod) = &container.pod {
                write!(text, "@{}", pod.name.as_deref().unwrap_or("?")).unwrap();
            }
        }
        let limits = &group.limits;
        put(&mut text, "cpu", limits.cpu_max.map(|CpuMax { quota, period }| format!("{quota}/{period}")));
        put(&mut text, "share", limits.cpu_share.map(CpuShare::raw));
        put(&mut text, "cpus", limits.cpuset);
        put(&mut text, "mems", limits.mems);
        put(&mut text, "mem", limits.memory_max);
        put(&mut text, "high", limits.memory_high);
        put(&mut text, "low", limits.memory_low);
        put(&mut text, "min", limits.memory_min);
        put(&mut text, "soft", limits.memory_soft);
        put(&mut text, "swap", limits.swap_max);
        put(&mut text, "memsw", limits.memsw_max);
        writeln!(text, "{}", if group.populated { "" } else { " empty" }).unwrap();
    }
    text
}

fn put(text: &mut String, name: &str, value: Option<impl Display>) {
    if let Some(value) = value {
        write!(text, " {name}={value}").unwrap();
    }
}

fn check(archive: &str, expect: &str) {
    let (_host, _sensor, events) = open(archive);
    let expect: String =
        expect.lines().map(|l| l.trim()).filter(|l| !l.is_empty()).map(|l| format!("{l}\n")).collect();
    assert_eq!(table(&events), expect);
}

const HYBRID_TABLE: &str = "
    / cpu=max/100ms share=1024 cpus=0-1 mem=max soft=max memsw=max
    docker cpu=max/100ms share=1024 cpus=0-1 mem=max soft=max memsw=max
    0c7be694d352 Docker:batch cpu=max/100ms share=1024 cpus=1 mem=max soft=max memsw=max empty
    4f1c2a9be07d Docker:web cpu=150ms/100ms share=512 cpus=0-1 mem=512MiB soft=128MiB memsw=1GiB
";

#[test]
fn a_hybrid_host_is_read_from_its_v1_hierarchies() {
    check(HYBRID, HYBRID_TABLE);
}

#[test]
fn a_legacy_host_is_a_hybrid_one_without_pressure() {
    let without: String =
        HYBRID.lines().filter(|l| !l.contains(" - cgroup2 ")).map(|l| format!("{l}\n")).collect();
    check(&without, HYBRID_TABLE);
    for (archive, there) in [(HYBRID, true), (without.as_str(), false)] {
        let (_host, mut sensor, events) = open(archive);
        let details = sensor.details(groups(&events)[&format!("/{WEB}")].id, false).unwrap();
        assert_eq!(details.pressure.is_some(), there);
    }
}

#[test]
fn a_host_between_the_versions_is_read_controller_by_controller() {
    check(
        MIXED,
        "/ cpu=max/100ms share=1024 cpus=0-1
         machine.slic cpu=max/100ms share=1024 cpus=0-1 mem=max high=max low=0B swap=max
         libpod-9d20c Podman:db cpu=50ms/100ms share=2048 cpus=1 mem=256MiB high=max low=0B swap=max",
    );
}

#[test]
fn a_unified_host_with_a_pod() {
    check(
        UNIFIED,
        "/ cpus=0-3
         kubepods.sli cpu=max/100ms share=100 cpus=0-3 mem=max high=max low=0B swap=max
         kubepods-bur cpu=max/100ms share=100 cpus=0-3 mem=max high=max low=0B swap=max
         kubepods-bur cpu=max/100ms share=100 cpus=0-3 mem=600MiB high=max low=0B swap=max
         cri-containe Containerd:app@app-0 cpu=150ms/100ms share=39 cpus=1-2 mem=512MiB high=400MiB low=128MiB swap=max",
    );
}

#[test]
fn nodes_that_memory_is_taken_from_are_read_in_both_versions() {
    let v1 = "-- sys/fs/cgroup/cpuset/docker/cpuset.mems --\n0-1\n";
    let v1 = format!("{HYBRID}{v1}-- sys/fs/cgroup/cpuset/{WEB}/cpuset.effective_mems --\n1\n");
    let v2 = format!("{UNIFIED}-- sys/fs/cgroup/kubepods.slice/cpuset.mems.effective --\n0,2\n");
    for (archive, path, mems) in
        [(&v1, "/docker", "0-1"), (&v1, &format!("/{WEB}"), "1"), (&v2, "/kubepods.slice", "0,2")]
    {
        let (_host, _sensor, events) = open(archive);
        assert_eq!(groups(&events)[path].limits.mems.unwrap().to_string(), mems);
    }
}

/// Writes a file of a cgroup without a notification, as the kernel does when it changes effective cpusets: by another name.
fn write_unseen(host: &Fixture, file: &str, text: &str) {
    let other_name = host.path().join("unseen");
    std::fs::hard_link(host.path().join(file), &other_name).unwrap();
    std::fs::write(&other_name, text).unwrap();
    std::fs::remove_file(other_name).unwrap();
}

#[test]
fn cpus_that_a_partition_takes_are_gone_around_it_at_once() {
    let (node, _) = UNIFIED.split_once("-- sys/fs/cgroup/").unwrap();
    let mut text = format!("{node}-- sys/fs/cgroup/cgroup.controllers --\ncpuset cpu memory\n");
    for group in ["", "a/", "b/"] {
        writeln!(text, "-- sys/fs/cgroup/{group}cpuset.cpus.effective --\n0-3").unwrap();
    }
    let (host, mut sensor, _) = open(&(text + "-- sys/fs/cgroup/b/cpuset.cpus.partition --\nmember\n"));
    for (group, cpus) in [("", "0-1\n"), ("a/", "0-1\n"), ("b/", "2-3\n")] {
        write_unseen(&host, &format!("sys/fs/cgroup/{group}cpuset.cpus.effective"), cpus);
    }
    assert_eq!(sensor.changes(), []);
    host.write("sys/fs/cgroup/b/cpuset.cpus.partition", "root\n").unwrap();
    let told = groups(&sensor.changes());
    let cpus = |path: &str| told[path].limits.cpuset.unwrap().to_string();
    assert_eq!(["/", "/a", "/b"].map(cpus), ["0-1", "0-1", "2-3"]);
}

/// A v2 host with one container, as crun and systemd lay it out: files of its scope, and of cgroups below.
fn crun_host(scope: &str, below: &[(&str, &str, &str)]) -> String {
    let (node, _) = UNIFIED.split_once("-- sys/fs/cgroup/").unwrap();
    let top = "cpuset cpu memory\n";
    let mut text = format!(
        "{node}-- sys/fs/cgroup/cgroup.controllers --\n{top}-- sys/fs/cgroup/machine.slice/cpu.max --\nmax 100000\n"
    );
    let own = [
        ("", "cpu.max", "max 100000"),
        ("", "cpu.weight", "20"),
        ("", "cpuset.cpus.effective", "0-3"),
        ("", "cpu.stat", "usage_usec 700\nnr_throttled 0\nthrottled_usec 0"),
        ("", "memory.max", "max"),
        ("", "memory.low", "0"),
        ("", "memory.swap.max", "max"),
        ("", "cgroup.events", "populated 1"),
    ];
    for (dir, file, says) in own.iter().chain(below) {
        writeln!(text, "-- sys/fs/cgroup/machine.slice/{scope}/{dir}/{file} --\n{says}").unwrap();
    }
    text
}

const INNER: [(&str, &str, &str); 6] = [
    ("container", "cpu.max", "100000 100000"),
    ("container", "cpu.weight", "77"),
    ("container", "cpuset.cpus.effective", "1-2"),
    ("container", "cpu.stat", "usage_usec 700\nnr_throttled 3\nthrottled_usec 90"),
    ("container", "memory.max", "314572800"),
    ("container", "memory.low", "104857600"),
];

/// The containers of a host with one scope, by path, and what the first of them has.
fn crun_limits(scope: &str, below: &[(&str, &str, &str)]) -> (Vec<String>, String) {
    let (_host, _sensor, events) = open(&crun_host(scope, below));
    let containers: Vec<CgroupProperties> =
        groups(&events).into_values().filter(|group| group.container.is_some()).collect();
    let limits = containers[0].limits;
    let mut text = String::new();
    put(&mut text, "cpu", limits.cpu_max.map(|max| max.quota));
    put(&mut text, "share", limits.cpu_share.map(CpuShare::raw));
    put(&mut text, "cpus", limits.cpuset);
    put(&mut text, "mem", limits.memory_max);
    put(&mut text, "low", limits.memory_low);
    (containers.into_iter().map(|group| group.path).collect(), text)
}

#[test]
fn a_container_that_is_in_one_cgroup_below_its_scope_has_the_limits_of_that_too() {
    let id = "9d20".repeat(16);
    let own = " cpu=max share=20 cpus=0-3 mem=max low=0B";
    let inner = " cpu=100ms share=20 cpus=1-2 mem=300MiB low=0B";
    for name in
        [format!("libpod-{id}.scope"), format!("crio-{id}.scope"), format!("cri-containerd-{id}.scope")]
    {
        let one = vec![format!("/machine.slice/{name}")];
        assert_eq!(crun_limits(&name, &INNER), (one.clone(), inner.to_owned()));
        // From crun 1.8.5 on, the scope has some of them; the tighter ones count.
        let both = [&INNER[..], &[("", "memory.max", "104857600"), ("", "cpu.max", "90000 100000")]].concat();
        let tighter = inner.replace("300MiB", "100MiB").replace("100ms", "90ms");
        assert_eq!(crun_limits(&name, &both), (one.clone(), tighter));
        // With a second cgroup beside it, not all of the container is in there.
        let two = [&INNER[..], &[("other", "memory.max", "max")]].concat();
        assert_eq!(crun_limits(&name, &two), (one.clone(), own.to_owned()));
        let renamed = INNER.map(|(_, file, says)| ("payload", file, says));
        assert_eq!(crun_limits(&name, &renamed), (one, own.to_owned()));
    }
    // Without systemd, crun makes no such cgroup: one that is there was made by a tenant.
    let name = format!("libpod-{id}");
    assert_eq!(crun_limits(&name, &INNER), (vec![format!("/machine.slice/{name}")], own.to_owned()));
}

#[test]
fn time_that_a_quota_below_took_is_the_containers() {
    let scope = format!("libpod-{}.scope", "9d20".repeat(16));
    let (_host, mut sensor, events) = open(&crun_host(&scope, &INNER));
    let (_, group) = groups(&events).into_iter().find(|(_, group)| group.container.is_some()).unwrap();
    let tick = sensor.tick(Micros::secs(1));
    let (_, usage) = tick.usage.iter().find(|(id, _)| *id == group.id).unwrap();
    assert_eq!((usage.cpu, usage.throttled), (Micros(700), Some(Micros(90))));
}

#[test]
fn time_that_quotas_took_adds_up_and_never_goes_back() {
    let scope = format!("libpod-{}.scope", "9d20".repeat(16));
    let (host, mut sensor, events) = open(&crun_host(&scope, &INNER));
    let (_, group) = groups(&events).into_iter().find(|(_, group)| group.container.is_some()).unwrap();
    let slice = "sys/fs/cgroup/machine.slice";
    let inner = format!("{slice}/{scope}/container/cpu.stat");
    let mut seconds = 0;
    let mut throttled = |sensor: &mut Sensor, own: u64, below: Option<u64>| {
        seconds += 10;
        for (file, took) in [(format!("{slice}/cpu.stat"), 0), (format!("{slice}/{scope}/cpu.stat"), own)] {
            host.write(&file, &format!("usage_usec {seconds}00\nthrottled_usec {took}\n")).unwrap();
        }
        let text = below.map(|took| format!("usage_usec {seconds}00\nthrottled_usec {took}\n"));
        host.write(&inner, &text.unwrap_or_else(|| "?\n".to_owned())).unwrap();
        sensor.changes();
        let tick = sensor.tick(Micros::secs(seconds));
        tick.usage.iter().find(|(id, _)| *id == group.id).unwrap().1.throttled
    };
    let beside = host.path().join(slice).join(&scope).join("beside");
    assert_eq!(throttled(&mut sensor, 0, Some(90)), Some(Micros(90)));
    assert_eq!(throttled(&mut sensor, 0, None), Some(Micros(90)), "what cannot be read stays");
    assert_eq!(throttled(&mut sensor, 5, Some(90)), Some(Micros(95)), "a quota of its own beside it");
    std::fs::create_dir(&beside).unwrap();
    assert_eq!(throttled(&mut sensor, 7, Some(100)), Some(Micros(97)), "a part of it alone");
    std::fs::remove_dir(&beside).unwrap();
    assert_eq!(throttled(&mut sensor, 7, Some(110)), Some(Micros(97)), "nothing all at once");
    assert_eq!(throttled(&mut sensor, 7, Some(111)), Some(Micros(98)));

    // One that comes later counts from then on.
    let (host, mut sensor, events) = open(&crun_host(&scope, &[]));
    let (_, group) = groups(&events).into_iter().find(|(_, group)| group.container.is_some()).unwrap();
    let mut throttled = |n: u64, below: u64| {
        for (dir, took) in [("", 0), (&*format!("/{scope}"), 3), (&*format!("/{scope}/container"), below)] {
            let text = format!("usage_usec {n}00\nthrottled_usec {took}\n");
            host.write(&format!("{slice}{dir}/cpu.stat"), &text).unwrap();
        }
        // Before the first tick there is none.
        if n > 1 {
            sensor.changes();
        }
        let tick = sensor.tick(Micros::secs(10 * n));
        tick.usage.iter().find(|(id, _)| *id == group.id).unwrap().1.throttled
    };
    assert_eq!([throttled(1, 70), throttled(2, 90), throttled(3, 91)], [3, 3, 4].map(|n| Some(Micros(n))));
}

#[test]
fn limits_of_one_cgroup_in_a_scope_hold_only_where_no_other_is_in_it_followed_or_not() {
    let scope = format!("libpod-{}.scope", "9d20".repeat(16));
    let (host, mut sensor, _) = open(&crun_host(&scope, &[]));
    let path = format!("/machine.slice/{scope}");
    let dir = host.path().join("sys/fs/cgroup").join(&path[1..]);
    let limit = |sensor: &mut Sensor| Some(groups(&sensor.changes()).get(&path)?.limits.memory_max.unwrap());
    let below = |name: &str| {
        std::fs::create_dir(dir.join(name)).unwrap();
        std::fs::write(dir.join(name).join("memory.max"), "4096\n").unwrap();
    };
    // Two that are found at once.
    below("container");
    below("other");
    assert_eq!(limit(&mut sensor), None);
    std::fs::remove_dir_all(dir.join("other")).unwrap();
    assert_eq!(limit(&mut sensor), Some(Limit::At(Bytes(4096))));

    // One more where no more are followed.
    for n in 0..MAX_GROUPS_PER_TENANT {
        std::fs::create_dir(dir.join(format!("container/g{n}"))).unwrap();
    }
    let config = SensorConfig { root: host.path().into(), ..SensorConfig::default() };
    let mut sensor = Sensor::open(&config).unwrap();
    let told = groups(&sensor.start());
    assert_eq!(told.keys().filter(|told| told.starts_with(&path)).count(), 1 + MAX_GROUPS_PER_TENANT);
    assert_eq!(told[&path].limits.memory_max, Some(Limit::At(Bytes(4096))));
    below("beside");
    assert_eq!(limit(&mut sensor), Some(Limit::Max));
    std::fs::remove_dir_all(dir.join("beside")).unwrap();
    assert_eq!(limit(&mut sensor), Some(Limit::At(Bytes(4096))));
}

#[test]
fn the_node_is_told_first() {
    let (_host, _sensor, events) = open(UNIFIED);
    let Some(HostEvent::Node(node)) = events.first() else { panic!("{:?}", events.first()) };
    assert_eq!(node.online.to_string(), "0-3");
    assert_eq!(node.mem_total, Bytes::kib(2_021_216));
    assert!(node.low_mark > Bytes::ZERO && node.high_mark > node.low_mark);
}

#[test]
fn details_and_processes_of_every_layout() {
    let (_host, mut sensor, events) = open(HYBRID);
    let web = groups(&events)[&format!("/{WEB}")].id;
    let details = sensor.details(web, false).unwrap();
    assert!(details.memory_stat.unwrap().pgfault > 0 && details.nr_threads == Some(1));
    assert!(details.pressure.unwrap()[0].some.total > Micros::ZERO && details.cpu_user > Some(Micros::ZERO));
    assert_eq!(sensor.processes(web), [29077]);
    let dirs: Vec<String> = sensor.cgroup_dirs(web).into_iter().map(|(name, _)| name).collect();
    assert_eq!(dirs, ["cpu", "cpuacct", "cpuset", "memory", "blkio", "pids", ""]);

    let (_host, mut sensor, events) = open(UNIFIED);
    let (_, app) = groups(&events).into_iter().find(|(_, g)| g.container.is_some()).unwrap();
    let details = sensor.details(app.id, false).unwrap();
    assert_eq!((details.io.len(), details.io[0].wbytes, details.io[0].wios), (1, Bytes::mib(2), 32));
    assert!(details.memory_stat.unwrap().anon > Bytes::mib(1) && details.pressure.is_some());
    assert_eq!(sensor.cgroup_dirs(app.id).len(), 1);
}

#[test]
fn the_machine_is_read_from_the_most_precise_file_there_is() {
    let kept = |archive: &str| archive.to_owned();
    let cut = |archive: &str, file: &str| archive.replace(&format!("/{file} --"), "/renamed --");
    let only_v1 = HYBRID.replace(" - cgroup2 ", " - tmpfs ");
    for (archive, source, busy) in [
        (kept(HYBRID), "cpuacct.usage", true),
        (kept(UNIFIED), "cpu.stat", true),
        (cut(&only_v1, "cpuacct.usage"), "/proc/stat", true),
    ] {
        let (_host, mut sensor, _) = open(&archive);
        let tick = sensor.tick(Micros::secs(1));
        assert_eq!(sensor.busy_source(), source);
        assert_eq!(tick.busy > Micros::ZERO, busy);
        assert!(tick.mem_free > Bytes::mib(100));
    }
}

#[test]
fn what_could_be_had_is_read_in_every_tick_where_a_group_has_a_soft_limit_and_else_once_a_second() {
    let vmstat = "-- sys/kernel/mm/lru_gen/enabled --\n0x0007\n-- proc/vmstat --\npswpout 7\nworkingset_refault_file 3\npgscan_kswapd 100\npgscan_anon 40\npgscan_file 90\n\
                  -- proc/pressure/memory --\nsome avg10=0.00 avg60=0.00 avg300=0.00 total=5\n\
                  full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
    let (_host, mut sensor, _) = open(&format!("{UNIFIED}{vmstat}"));
    let mut looks = 0;
    for n in 1..=50 {
        let tick = sensor.tick(Micros::millis(24 * n));
        // Less the cache of the container, all of which is protected.
        assert_eq!(tick.mem_available, Some(Bytes::kib(1_899_732 - 192)));
        looks += u32::from(tick.reclaim.is_some());
        let expect = ReclaimCounters {
            stalled: Some(Micros(5)),
            scanned: 100,
            scanned_for_limits: 30,
            lost: 7,
            refaulted_files: 3,
            refaulted_at_limits: 0,
        };
        assert_eq!(tick.reclaim.unwrap_or(expect), expect);
    }
    assert_eq!(looks, 5, "four times a second");

    let (_host, mut sensor, _) = open(&HYBRID.replace("134217728", "9223372036854771712"));
    let ticks = (1..=100).map(|n| sensor.tick(Micros::millis(24 * n)));
    let read: Vec<bool> = ticks.map(|tick| tick.mem_available.is_some() || tick.reclaim.is_some()).collect();
    assert_eq!(read.iter().filter(|read| **read).count(), 3, "{read:?}");
}

#[test]
fn files_that_come_back_to_a_container_at_its_own_limit_are_told_apart() {
    let pod = "sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod3b7c1d52_9a44_4f0e_8d1b_6f2a90c3e571.slice";
    let container = format!(
        "{pod}/cri-containerd-4f1c2a9be07d53c8a6e1d4b70935fa8210c7be694d3528af71e60b9c8d2f5a34.scope"
    );
    let vmstat = "-- sys/kernel/mm/lru_gen/enabled --\n0x0007\n-- proc/vmstat --\n";
    let told = |usage: &str, pod_usage: &str, pages: u64| {
        let text = UNIFIED.replace("\n2527232\n", usage).replace("\n2539520\n", pod_usage);
        let (host, mut sensor, _) = open(&format!("{text}{vmstat}"));
        let came_back = |file: &str, pages: u64| {
            host.write(file, &format!("workingset_refault_file {pages}\n")).unwrap();
        };
        [1, 2, 3, 4].map(|n| {
            came_back("proc/vmstat", n * pages);
            came_back(&format!("{container}/memory.stat"), n * 60);
            came_back(&format!("{pod}/memory.stat"), n * 61);
            sensor.tick(Micros::millis(250 * n)).reclaim.unwrap().refaulted_at_limits
        })
    };
    let (at_limit, below, pod_at_limit) = ("\n536870000\n", "\n300000000\n", "\n629140000\n");
    // The first look knows no usage, the second nothing from before.
    assert_eq!(told(at_limit, below, 65), [0, 0, 60, 120]);
    assert_eq!(told(below, below, 65), [0; 4]);
    assert_eq!(told(at_limit, pod_at_limit, 65), [0, 0, 61, 122], "the outermost limit counts for all below");
    assert_eq!(told(at_limit, below, 64), [0; 4], "few: nothing is read");
}

#[test]
fn busy_time_per_cpu_is_read_where_a_container_is_kept_to_some() {
    let (host, mut sensor, _) = open(HYBRID);
    let tick = sensor.tick(Micros::secs(1));
    assert_eq!(tick.busy_per_cpu.len(), 2);
    assert_eq!(tick.busy_per_cpu.into_iter().sum::<Micros>(), tick.busy);
    host.write(&format!("sys/fs/cgroup/cpuset/{BATCH}/cpuset.effective_cpus"), "0-1\n").unwrap();
    sensor.changes();
    assert_eq!(sensor.tick(Micros::secs(2)).busy_per_cpu, []);
}

#[test]
fn a_slice_that_is_kept_to_some_cpus_keeps_its_containers_to_them() {
    let scope = format!("libpod-{}.scope", "9d20".repeat(16));
    let file = format!("-- sys/fs/cgroup/machine.slice/{scope}//cpuset.cpus.effective --\n0-3\n");
    for (cpus, read) in [("0-1", 4), ("0-3", 0)] {
        let slice = format!("-- sys/fs/cgroup/machine.slice/cpuset.cpus.effective --\n{cpus}\n");
        let text = crun_host(&scope, &[]);
        assert!(text.contains(&file), "{text}");
        let (_host, mut sensor, _) = open(&text.replace(&file, &slice));
        assert_eq!(sensor.tick(Micros::secs(1)).busy_per_cpu.len(), read, "{cpus}");
    }
}

#[test]
fn what_changes_is_told_and_nothing_else() {
    let (host, mut sensor, events) = open(HYBRID);
    let before = groups(&events);
    assert_eq!(sensor.changes(), []);
    let quota = format!("sys/fs/cgroup/cpu/{WEB}/cpu.cfs_quota_us");
    host.write(&quota, "-1\n").unwrap();
    let told = groups(&sensor.changes());
    assert_eq!(told.len(), 1);
    assert_eq!(told[&format!("/{WEB}")].limits.cpu_max.unwrap().quota, Limit::Max);
    assert_eq!(told[&format!("/{WEB}")].id, before[&format!("/{WEB}")].id);
    host.write(&quota, "-1\n").unwrap();
    assert_eq!(sensor.changes(), [], "the same value again");

    for hierarchy in ["cpu", "cpuacct", "memory", "cpuset"] {
        host.remove(&format!("sys/fs/cgroup/{hierarchy}/{BATCH}")).unwrap();
    }
    assert_eq!(sensor.changes(), [HostEvent::Gone(before[&format!("/{BATCH}")].id)]);

    host.write("sys/fs/cgroup/cpu/batch/one/cgroup.procs", "1\n").unwrap();
    let told = groups(&sensor.changes());
    assert_eq!(told["/batch/one"].container.as_ref().unwrap().id, "/batch/one");
    assert_eq!(told["/batch/one"].parent, Some(told["/batch"].id));
    assert!(told["/batch"].populated, "processes below are processes");
    host.remove("sys/fs/cgroup/cpu/batch/one").unwrap();
    assert!(!groups(&sensor.changes())["/batch"].populated, "and go with what is below");
}

/// In a user namespace of its own, where no inotify instance is to be had until the test allows some: on a node whose containers' shims
/// have taken all of root's, an agent goes on by looking.
#[test]
fn without_notifications_everything_is_looked_at_again_until_there_are_some() {
    const INSIDE: &str = "ELBOWROOM_TEST_WITHOUT_INOTIFY";
    const NAME: &str = "without_notifications_everything_is_looked_at_again_until_there_are_some";
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user"]);
        command
    };
    if std::env::var_os(INSIDE).is_none() {
        if !unshare().arg("true").output().is_ok_and(|done| done.status.success()) {
            return println!("skipped: needs user namespaces");
        }
        let this = std::env::current_exe().unwrap();
        let inside = unshare().arg(this).args(["--exact", NAME, "--nocapture"]).env(INSIDE, "1").output();
        let inside = inside.unwrap();
        let said = [inside.stdout, inside.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
        assert!(inside.status.success() && said[0].contains("1 passed"), "{said:?}");
        return;
    }
    let allow = |instances: &str| std::fs::write("/proc/sys/user/max_inotify_instances", instances);
    if let Err(error) = allow("0") {
        return println!("skipped: needs /proc/sys to be written to: {error}");
    }
    let (host, mut sensor, events) = open(HYBRID);
    assert_eq!(sensor.notifications(), "none");
    let mut told = Vec::new();
    let mut eventually = |sensor: &mut Sensor, seen: &dyn Fn(&[HostEvent], &Sensor) -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !seen(&told, sensor) {
            assert!(Instant::now() < deadline, "{told:?}");
            told.extend(sensor.changes());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    host.write("sys/fs/cgroup/cpu/batch/one/cgroup.procs", "1\n").unwrap();
    host.write(&format!("sys/fs/cgroup/cpu/{WEB}/cpu.cfs_quota_us"), "-1\n").unwrap();
    let web = format!("/{WEB}");
    let quota = |events: &[HostEvent]| groups(events).get(&web)?.limits.cpu_max.map(|max| max.quota);
    eventually(&mut sensor, &|told, _| {
        groups(told).contains_key("/batch/one") && quota(told) == Some(Limit::Max)
    });
    let gone = HostEvent::Gone(groups(&events)[&format!("/{BATCH}")].id);
    for hierarchy in ["cpu", "cpuacct", "memory", "cpuset"] {
        host.remove(&format!("sys/fs/cgroup/{hierarchy}/{BATCH}")).unwrap();
    }
    eventually(&mut sensor, &|told, _| told.contains(&gone));
    allow("8").unwrap();
    eventually(&mut sensor, &|_, sensor| sensor.notifications() == "inotify");
    // Told at once from then on, by the next look at the latest.
    host.write("sys/fs/cgroup/cpu/batch/two/cgroup.procs", "1\n").unwrap();
    eventually(&mut sensor, &|told, _| groups(told).contains_key("/batch/two"));
}

#[test]
fn a_directory_beside_the_spine_is_told_only_with_a_container_in_it() {
    let extra = "-- sys/fs/cgroup/memory/other/deep/memory.limit_in_bytes --\n1048576\n";
    let (host, mut sensor, events) = open(&format!("{HYBRID}{extra}"));
    assert!(groups(&events).keys().all(|path| !path.starts_with("/other")));
    host.write("sys/fs/cgroup/memory/elbowroom/web/memory.limit_in_bytes", "1048576\n").unwrap();
    let told = sensor.changes();
    let paths: Vec<_> =
        told.iter().map(|e| if let HostEvent::Group(g) = e { g.path.as_str() } else { "" }).collect();
    assert_eq!(paths, ["/elbowroom", "/elbowroom/web"]);
    assert_eq!(groups(&told)["/elbowroom/web"].limits.memory_max, Some(Limit::At(Bytes::mib(1))));
}

#[test]
fn what_is_malformed_or_missing_is_absent_and_the_rest_is_read() {
    let broken = HYBRID
        .replace("\n150000\n", "\nmany\n")
        .replace(&format!("memory/{WEB}/memory.limit_in_bytes --"), &format!("memory/{WEB}/renamed --"))
        .replace(
            &format!("memory/{WEB}/memory.usage_in_bytes --\n"),
            &format!("memory/{WEB}/memory.usage_in_bytes --\n?"),
        );
    let (_host, mut sensor, events) = open(&broken);
    let web = &groups(&events)[&format!("/{WEB}")];
    assert_eq!((web.limits.cpu_max, web.limits.memory_max), (None, None));
    assert_eq!(web.limits.memory_soft, Some(Limit::At(Bytes::mib(128))));
    let tick = sensor.tick(Micros::secs(1));
    let (_, usage) = tick.usage.iter().find(|(id, _)| *id == web.id).unwrap();
    assert!(usage.cpu > Micros::ZERO && usage.memory == Bytes::ZERO);
}

#[test]
fn hostile_directories_are_groups_like_others() {
    use std::os::unix::ffi::OsStrExt;
    let (host, mut sensor, events) = open(HYBRID);
    let cpu = host.path().join("sys/fs/cgroup/cpu");
    let names: [&[u8]; 4] = [b"bad\xff\xfename", b"with\nnewline", b"-- x --", &[b'x'; 255]];
    for name in names {
        std::fs::create_dir_all(cpu.join("elbowroom").join(std::ffi::OsStr::from_bytes(name))).unwrap();
    }
    let told = groups(&sensor.changes());
    assert_eq!(told.len(), 5, "{:?}", told.keys());
    assert!(told.values().all(|g| g.container.is_none()));
    assert!(told.contains_key("/elbowroom/bad\u{fffd}\u{fffd}name"));
    // Deeper than a path can be long: what cannot be opened is not there, and nothing else suffers.
    let mut deep = cpu.join("deep");
    for _ in 0..12 {
        deep.push("y".repeat(250));
    }
    std::fs::create_dir_all(&deep).unwrap();
    assert!(!sensor.changes().is_empty());
    sensor.tick(Micros::secs(1));
    assert!(groups(&events).contains_key("/docker"));
}

#[test]
fn of_the_groups_below_a_container_so_many_are_followed_and_its_neighbour_is_as_before() {
    let host = Fixture::new(HYBRID).unwrap();
    let below = host.path().join("sys/fs/cgroup/cpu").join(BATCH);
    for n in 0..MAX_GROUPS_PER_TENANT + 1_500 {
        std::fs::create_dir(below.join(format!("g{n}"))).unwrap();
    }
    let config = SensorConfig { root: host.path().into(), ..SensorConfig::default() };
    let mut sensor = Sensor::open(&config).unwrap();
    let told = groups(&sensor.start());
    let is_below = |path: &&String| path.starts_with(&format!("/{BATCH}/"));
    let followed: Vec<&String> = told.keys().filter(is_below).collect();
    assert_eq!(followed.len(), MAX_GROUPS_PER_TENANT);

    host.write(&format!("sys/fs/cgroup/cpu/{WEB}/cpu.cfs_quota_us"), "-1\n").unwrap();
    host.write(&format!("sys/fs/cgroup/cpu/{BATCH}/cpu.cfs_quota_us"), "50000\n").unwrap();
    let changed = groups(&sensor.changes());
    assert_eq!(changed[&format!("/{WEB}")].limits.cpu_max.unwrap().quota, Limit::Max);
    assert_ne!(changed[&format!("/{BATCH}")].limits.cpu_max.unwrap().quota, Limit::Max);

    // What is listed in part is not gone.
    std::fs::create_dir(below.join("one-more")).unwrap();
    assert!(!sensor.changes().iter().any(|event| matches!(event, HostEvent::Gone(_))));
}

#[test]
fn a_container_renamed_keeps_its_id_and_gets_its_name() {
    let host = Fixture::new(HYBRID).unwrap();
    let config = SensorConfig { root: host.path().into(), rescan: Micros(1), ..SensorConfig::default() };
    let mut sensor = Sensor::open(&config).unwrap();
    let id = groups(&sensor.start())[&format!("/{WEB}")].id;
    let state = WEB.replace("docker/", "var/lib/docker/containers/") + "/config.v2.json";
    host.write(&state, "{\"Name\":\"/renamed\"}").unwrap();
    let told = groups(&sensor.changes());
    let web = &told[&format!("/{WEB}")];
    assert_eq!((web.id, web.container.as_ref().unwrap().name.as_deref()), (id, Some("renamed")));
}

#[test]
fn cpus_that_are_plugged_are_told_of_long_before_a_rescan_with_the_cpusets_that_got_them() {
    let (host, mut sensor, events) = open(HYBRID);
    let before = groups(&events)[&format!("/{BATCH}")].limits.cpuset;
    write_unseen(&host, &format!("sys/fs/cgroup/cpuset/{BATCH}/cpuset.effective_cpus"), "0-1\n");
    host.write("sys/devices/system/cpu/online", "0\n").unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let told = loop {
        let events = sensor.changes();
        if events.iter().any(|event| matches!(event, HostEvent::Node(_))) || Instant::now() > until {
            break events;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(matches!(&told[..], [HostEvent::Node(node), ..] if node.online.count() == 1), "{told:?}");
    let after = groups(&told)[&format!("/{BATCH}")].limits.cpuset;
    assert_ne!(after, before);
    assert_eq!(after.unwrap().to_string(), "0-1");
}

#[test]
fn a_host_without_what_everything_depends_on_is_refused_with_the_file() {
    for (file, word) in [("proc/meminfo", "meminfo"), ("sys/devices/system/cpu/online", "online")] {
        let host = Fixture::new(&HYBRID.replace(&format!("-- {file} --"), "-- renamed --")).unwrap();
        let config = SensorConfig { root: host.path().into(), ..SensorConfig::default() };
        let error = Sensor::open(&config).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn without_zones_there_are_no_watermarks_and_one_that_cannot_be_read_is_said() {
    let node = |text: &str| {
        let (_host, _, events) = open(text);
        match events.into_iter().next() {
            Some(HostEvent::Node(node)) => node,
            other => panic!("{other:?}"),
        }
    };
    let there = node(HYBRID);
    let without = node(&HYBRID.replace("-- proc/zoneinfo --", "-- renamed --"));
    assert!(there.low_mark > Bytes::ZERO && there.high_mark > Bytes::ZERO);
    assert_eq!(without, NodeProperties { low_mark: Bytes::ZERO, high_mark: Bytes::ZERO, ..there });
    let host = Fixture::new(HYBRID).unwrap();
    host.write("proc/zoneinfo", "no zone\n").unwrap();
    let config = SensorConfig { root: host.path().into(), ..SensorConfig::default() };
    assert!(Sensor::open(&config).unwrap_err().to_string().contains("zoneinfo"));
}

#[test]
fn an_idle_group_is_read_ever_more_seldom_and_an_active_one_every_tick() {
    let (host, mut sensor, events) = open(HYBRID);
    let ids = groups(&events);
    let (web, batch) = (ids[&format!("/{WEB}")].id, ids[&format!("/{BATCH}")].id);
    let usage = |hierarchy_path: &str, ns: u64| {
        host.write(&format!("sys/fs/cgroup/cpuacct/{hierarchy_path}/cpuacct.usage"), &format!("{ns}\n"))
            .unwrap();
    };
    let (mut named, mut reads) = (HashMap::<CgroupId, u32>::new(), 0);
    for n in 1..=100u64 {
        usage(WEB, 1_000_000_000 + n * 10_000_000);
        usage("docker", 1_000_000_000 + n * 10_000_000);
        let tick = sensor.tick(Micros::millis(24 * n));
        tick.usage.iter().for_each(|(id, _)| *named.entry(*id).or_default() += 1);
        reads += sensor.cost().groups;
    }
    assert_eq!(named[&web], 100);
    assert_eq!(named[&batch], 1, "the first time, and it has not changed since");
    // docker and web every tick, batch at 0, 24, 72, 168, ... ms.
    assert!((200..215).contains(&reads), "{reads}");

    // batch wakes while it backs off: docker's time is not explained by web's.
    usage(BATCH, 7_000_000);
    usage("docker", 3_000_000_000);
    let tick = sensor.tick(Micros::millis(24 * 101));
    assert!(tick.usage.iter().any(|(id, usage)| *id == batch && usage.cpu == Micros::millis(7)));
    assert_eq!(sensor.cost().probes, 1);
}

#[test]
fn memory_of_a_busy_group_is_read_every_tick_while_it_moves_and_once_in_eight_while_it_does_not() {
    let without_soft_limit = HYBRID.replace("134217728", "9223372036854771712");
    let (host, mut sensor, events) = open(&without_soft_limit);
    let web = groups(&events)[&format!("/{WEB}")].id;
    let mut n = 0;
    let mut tick = |memory: Bytes| {
        n += 1;
        for group in [WEB, "docker"] {
            let path = format!("sys/fs/cgroup/cpuacct/{group}/cpuacct.usage");
            host.write(&path, &format!("{}\n", 1_000_000_000 + n * 10_000_000)).unwrap();
        }
        host.write(
            &format!("sys/fs/cgroup/memory/{WEB}/memory.usage_in_bytes"),
            &format!("{}\n", memory.get()),
        )
        .unwrap();
        let usage = sensor.tick(Micros::millis(24 * n)).usage;
        let (_, usage) = usage.into_iter().find(|(id, _)| *id == web).expect("it used CPU time");
        (usage.memory, sensor.cost().syscalls)
    };
    let still = Bytes::mib(100);
    for _ in 0..20 {
        tick(still);
    }
    let rested: u64 = (0..16).map(|_| tick(still).1).sum();

    let ticks = (1..100).find(|_| tick(Bytes::mib(200)).0 == Bytes::mib(200)).unwrap();
    assert!((2..=8).contains(&ticks), "seen after {ticks} ticks");
    let mut moving = 0;
    for mib in (0..16).map(|i| 210 + 10 * i) {
        let (seen, calls) = tick(Bytes::mib(mib));
        assert_eq!(seen, Bytes::mib(mib));
        moving += calls;
    }
    // Two reads of sixteen are left; the idle neighbour is read now and then, and what the machine could give once a second.
    assert!((12..=18).contains(&(moving - rested)), "{moving} against {rested}");
}

/// Says what a test tells it to say.
#[derive(Debug, Default, Clone)]
struct Said(Arc<Mutex<SaidState>>);

#[derive(Debug, Default)]
struct SaidState {
    tracked: HashMap<u64, u32>,
    ran: Vec<(u32, Micros)>,
}

impl ActivityTracker for Said {
    fn track(&mut self, inode: u64, slot: u32) -> bool {
        self.0.lock().unwrap().tracked.insert(inode, slot);
        true
    }

    fn untrack(&mut self, inode: u64) {
        self.0.lock().unwrap().tracked.remove(&inode);
    }

    fn drain_active(&mut self, each: &mut dyn FnMut(u32, Micros)) {
        self.0.lock().unwrap().ran.drain(..).for_each(|(slot, total)| each(slot, total));
    }
}

#[test]
fn an_active_tier_adds_what_it_saw_up_to_the_top_without_reading_cpu_files() {
    use std::os::unix::fs::MetadataExt;
    let (host, mut sensor, events) = open(HYBRID);
    let said = Said::default();
    sensor.set_tier(ActivitySource::Tracked(Box::new(said.clone())));
    let inode =
        |path: &str| std::fs::metadata(host.path().join("sys/fs/cgroup/cpu").join(path)).unwrap().ino();
    let ids = groups(&events);
    let (web, docker) = (ids[&format!("/{WEB}")].id, ids["/docker"].id);
    let first: HashMap<_, _> = sensor.tick(Micros::secs(1)).usage.into_iter().collect();
    assert_eq!(first.len(), 3, "everything is read once");

    let slot = said.0.lock().unwrap().tracked[&inode(WEB)];
    for (n, total) in [(2, 5), (3, 12)] {
        said.0.lock().unwrap().ran = vec![(slot, Micros::millis(total))];
        let tick: HashMap<_, _> = sensor.tick(Micros::millis(1_000 + 24 * n)).usage.into_iter().collect();
        assert_eq!(tick.len(), 2, "web and what is above it");
        for id in [web, docker] {
            assert_eq!(tick[&id].cpu.saturating_sub(first[&id].cpu), Micros::millis(total));
        }
    }
    assert_eq!(sensor.tick(Micros::millis(1_100)).usage, [], "no group ran");

    for hierarchy in ["cpu", "cpuacct", "memory", "cpuset"] {
        host.remove(&format!("sys/fs/cgroup/{hierarchy}/{WEB}")).unwrap();
    }
    sensor.changes();
    assert!(!said.0.lock().unwrap().tracked.values().any(|s| *s == slot), "forgotten with its group");
}

#[test]
fn in_an_active_tier_the_kernels_own_account_is_read_of_who_ran_and_no_file_of_cpu_time_of_who_did_not() {
    use std::os::unix::fs::MetadataExt;
    let (host, mut sensor, events) = open(HYBRID);
    let said = Said::default();
    sensor.set_tier(ActivitySource::Tracked(Box::new(said.clone())));
    let inode = std::fs::metadata(host.path().join("sys/fs/cgroup/cpu").join(WEB)).unwrap().ino();
    let (web, docker) = (groups(&events)[&format!("/{WEB}")].id, groups(&events)["/docker"].id);
    sensor.tick(Micros::secs(1));
    let slot = said.0.lock().unwrap().tracked[&inode];
    for group in [WEB, "docker"] {
        host.write(&format!("sys/fs/cgroup/cpuacct/{group}/cpuacct.usage"), "9000000000000\n").unwrap();
    }
    // Two rounds are over after 128 periods.
    let mut cpu_of = |ran: bool| {
        let mut last = HashMap::new();
        for n in 0..128 {
            if ran && n == 0 {
                said.0.lock().unwrap().ran = vec![(slot, Micros::millis(1))];
            }
            last.extend(sensor.tick(Micros::millis(2_000 + 24 * n + if ran { 10_000 } else { 0 })).usage);
        }
        [web, docker].map(|id| last.get(&id).map(|usage| usage.cpu))
    };
    assert_eq!(cpu_of(false), [None, None], "no group ran, and memory did not move");
    assert_eq!(cpu_of(true), [Some(Micros::secs(9_000)); 2], "what is above it, too");
}
