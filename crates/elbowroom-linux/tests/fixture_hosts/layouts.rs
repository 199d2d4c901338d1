//! Settings of groups in each layout of cgroups, and hosts that lack something.

use super::{HYBRID, MIXED, UNIFIED, WEB, groups, open, put};
use elbowroom_linux::fixture::Fixture;
use elbowroom_linux::{Sensor, SensorConfig};
use elbowroom_types::sample::{CpuMax, HostEvent, NodeProperties};
use elbowroom_types::unit::{Bytes, CpuShare, Limit, Micros};
use std::fmt::Write;

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
    let (host, mut sensor, events) = open(HYBRID);
    let killed = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n";
    host.write(&format!("sys/fs/cgroup/memory/{WEB}/memory.oom_control"), killed).unwrap();
    let web = groups(&events)[&format!("/{WEB}")].id;
    let details = sensor.details(web, false).unwrap();
    assert!(details.memory_stat.unwrap().pgfault > 0 && details.nr_threads == Some(1));
    assert!(details.pressure.unwrap()[0].some.total > Micros::ZERO && details.cpu_user > Some(Micros::ZERO));
    assert_eq!(details.oom_kills, Some(2));
    assert_eq!(sensor.processes(web), [29077]);
    let dirs: Vec<String> = sensor.cgroup_dirs(web).into_iter().map(|(name, _)| name).collect();
    assert_eq!(dirs, ["cpu", "cpuacct", "cpuset", "memory", "blkio", "pids", ""]);

    let (host, mut sensor, events) = open(UNIFIED);
    let (_, app) = groups(&events).into_iter().find(|(_, g)| g.container.is_some()).unwrap();
    host.write(&format!("sys/fs/cgroup{}/memory.events", app.path), "low 0\noom 5\noom_kill 3\n").unwrap();
    let details = sensor.details(app.id, false).unwrap();
    assert_eq!(details.oom_kills, Some(3));
    assert_eq!((details.io.len(), details.io[0].wbytes, details.io[0].wios), (1, Bytes::mib(2), 32));
    assert!(details.memory_stat.unwrap().anon > Bytes::mib(1) && details.pressure.is_some());
    assert_eq!(sensor.cgroup_dirs(app.id).len(), 1);
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
