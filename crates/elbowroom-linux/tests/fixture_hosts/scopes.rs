//! A container in a cgroup below its scope, as crun and systemd lay it out.

use super::{UNIFIED, groups, open, put};
use elbowroom_linux::sensor::MAX_GROUPS_PER_TENANT;
use elbowroom_linux::{Sensor, SensorConfig};
use elbowroom_types::sample::CgroupProperties;
use elbowroom_types::unit::{Bytes, CpuShare, Limit, Micros};
use std::fmt::Write;

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
