//! What a check says depends on more than its trouble: whose the cgroup is, which clock began anew, what else is waited for.

use crate::doctor_host::{Sim, says};
use elbowroom_doctor::checks::ControllerVersion;
use elbowroom_doctor::checks::ControllerVersion::{V1, V2};
use elbowroom_doctor::checks::examine;
use elbowroom_types::container::ContainerEngine;
use elbowroom_types::finding::{FindingEvidence, Severity};
use elbowroom_types::unit::{Bytes, Micros};
use elbowroom_types::visible::is_hidden;
use std::process::Command;

const GIB: u64 = 1 << 30;

#[test]
fn a_slice_that_holds_containers_is_not_to_be_bounded_for_its_services() {
    let command = |version, with_container: bool| {
        let mut host = Sim::new(version);
        host.vmstat("pgsteal_kswapd", 50_000);
        host.group("/system.slice", Some(0));
        host.facts.groups[3].after.usage = Some(Bytes::gib(7));
        if with_container {
            host.group("/system.slice/docker-c2.scope", Some(3));
            host.contain(4, "db");
            host.facts.groups[3].after.usage = Some(Bytes::gib(12));
            host.facts.groups[4].after.usage = Some(Bytes::gib(5));
        }
        says("host-jobs-unbounded", &host).expect("7 GiB of services").1
    };
    let bound = format!("systemctl set-property --runtime system.slice MemoryHigh={}", 7 * GIB);
    assert_eq!(command(V2, false), Some(bound));
    assert_eq!(command(V2, true), None);
    assert_eq!(command(V1, false), None);
}

/// openzfs/zfs#10255: with OpenZFS 2.3 the cache may grow to nearly all memory.
#[test]
fn a_host_full_of_what_zfs_gives_back_is_not_short() {
    let mut host = Sim::new(V2);
    host.available(GIB / 4);
    assert!(says("host-short-of-memory", &host).is_some());
    host.meminfo("evictable cache of ZFS", 6 * GIB);
    assert_eq!(says("host-short-of-memory", &host), None);
}

#[test]
fn periods_are_those_of_the_quota_that_stopped_it_its_own_or_the_one_below_its_scope() {
    let evidence = |own: [u64; 3], below: [u64; 3]| {
        let mut host = Sim::new(V2);
        host.set("cpu.max", "50000 100000");
        host.throttled(own[0], own[1], own[2]);
        let counts = |grown: [u64; 3]| {
            let keys = ["nr_periods", "nr_throttled", "throttled_usec"].map(str::to_owned);
            Some(("container".to_owned(), keys.into_iter().zip(grown.map(|n| 90_000_000 + n)).collect()))
        };
        let group = &mut host.facts.groups[2];
        // What was before the first look does not count.
        (group.before.cpu_below, group.after.cpu_below) = (counts([0; 3]), counts(below));
        let found = examine(&host.facts).into_iter().find(|found| found.check == "cpu-throttled").unwrap();
        let FindingEvidence { file, value } = &found.evidence[0];
        (file.ends_with("/container/cpu.stat nr_throttled"), value.clone())
    };
    let (stopped, free) = ([20, 10, 300_000], [400, 1, 0]);
    for (own, below, is_below) in [(stopped, free, false), (free, stopped, true)] {
        assert_eq!(evidence(own, below), (is_below, "+10 of 20".to_owned()));
    }
}

/// What is printed for a container that its quota stops, in a cgroup of that path.
fn quota_command(version: ControllerVersion, path: &str, quota: &str, period: &str) -> String {
    let mut host = Sim::new(version);
    match version {
        V1 => {
            host.set("cpu.cfs_quota_us", quota);
            host.set("cpu.cfs_period_us", period);
        }
        V2 => host.set("cpu.max", &format!("{quota} {period}")),
    }
    host.throttled(20, 10, 300_000);
    let group = &mut host.facts.groups[2];
    group.path = path.into();
    // What an engine made has the engine's own command.
    group.container.iter_mut().for_each(|container| container.engine = ContainerEngine::Plain);
    says("cpu-throttled", &host).and_then(|(_, command)| command).expect("a fix")
}

#[test]
fn systemd_writes_for_its_own_units_and_for_nothing_below_them() {
    let systemd = "systemctl set-property --runtime docker-c1.scope CPUQuota=75%";
    for version in [V1, V2] {
        for (path, own) in [
            ("/system.slice/docker-c1.scope", true),
            ("/kubepods.slice/kubepods-pod1.slice/docker-c1.scope", true),
            ("/user.slice/user-1000.slice/user@1000.service/ssh.service", false),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/docker-c1.scope", false),
            ("/system.slice/docker-c0.scope/system.slice/ssh.service", false),
            ("/docker/c0/system.slice/ssh.service", false),
        ] {
            let command = quota_command(version, path, "50000", "100000");
            assert_eq!(command == systemd, own, "{path}: {command}");
            assert_eq!(command.starts_with("echo "), !own, "{path}: {command}");
        }
        // Quotas that systemd would write another way.
        for (quota, period) in [("25000", "50000"), ("33333", "100000")] {
            let command = quota_command(version, "/system.slice/docker-c1.scope", quota, period);
            assert!(command.starts_with("echo "), "{command}");
        }
    }
}

#[test]
fn a_command_does_nothing_that_the_name_of_a_cgroup_says() {
    for (check, version, file) in [
        ("oom-killer-off", V1, "memory.oom_control"),
        ("io-limit-binds", V1, "blkio.throttle.read_bps_device"),
        ("io-limit-on-partition", V2, "io.max"),
        ("oom-kills-parts", V2, "memory.oom.group"),
    ] {
        // What a shell runs, and what a terminal or a line editor obeys.
        for name in ["a;touch b", "a$(touch b)", "a'`touch b`", "a\u{15}touch b\r\u{9b}\u{202e}\\"] {
            let folder = tempfile::tempdir().unwrap();
            let cgroup = folder.path().join(name);
            std::fs::create_dir(&cgroup).unwrap();
            let mut host = Sim::new(version);
            host.disk("mq-deadline", "0");
            host.waits(1, 9_000);
            host.partition();
            host.io_limit(file, if version == V1 { "8:0" } else { "8:1" }, "1048576");
            host.ever("oom_kill", 1);
            host.set("pids.current", "5");
            host.set("memory.oom.group", "0");
            host.set("oom_kill_disable", "1");
            let dir = cgroup.display().to_string();
            host.facts.groups[2].dirs.values_mut().for_each(|of| of.clone_from(&dir));
            let (_, command) = says(check, &host).unwrap_or_else(|| panic!("{check} says nothing"));
            let command = command.expect("a fix");
            assert!(!command.contains(is_hidden), "{check}: {command:?}");
            let ended = Command::new("bash").args(["-c", &command]).current_dir(&folder).status().unwrap();
            assert!(ended.success() && cgroup.join(file).exists(), "{check}: {command:?}");
            assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "{check}: {command:?}");
        }
    }
}

#[test]
fn a_disk_limit_is_not_blamed_while_another_disk_is_busy() {
    for (check, queue) in [("io-limit-stalls-host", 0.2), ("io-limit-binds", 1.0)] {
        let mut host = Sim::new(V2);
        host.disk("mq-deadline", "0");
        host.io_limit("io.max", "8:0", "rbps=1048576");
        host.host_waits(7_000);
        host.waits(1, 9_000);
        host.other_disk(queue / 2.0);
        assert!(says(check, &host).is_some(), "{check}");
        host.other_disk(queue);
        assert!(says(check, &host).is_none(), "{check}");
        // What stands on another disk waits with it.
        host.facts.host.disks[2].name = "dm-0".into();
        assert!(says(check, &host).is_some(), "{check}");
    }
}

#[test]
fn a_disks_clock_that_began_anew_is_no_idle_disk_and_no_fast_one() {
    let wrapped = |ms: u64| Micros::millis((1 << 32) - ms);
    let mut host = Sim::new(V2);
    host.disk("none", "1");
    host.facts.host.disks[0].before.time_in_queue = wrapped(10_000);
    host.facts.host.disks[0].after.time_in_queue = Micros::secs(30);
    assert!(says("disk-full-without-pressure", &host).is_some());

    host.busy_disk(100, 80, 8.0);
    assert!(says("disk-slower-than-usual", &host).is_some());
    assert!(says("disk-not-rotational", &host).is_some());
    // After this many requests since boot, its clock may have begun anew.
    let disk = &mut host.facts.host.disks[0];
    disk.before.ios += 100_000_000;
    disk.after.ios += 100_000_000;
    assert!(says("disk-slower-than-usual", &host).is_none());
    assert!(says("disk-not-rotational", &host).is_none());
}

#[test]
fn a_cgroup_that_reclaims_below_its_own_limit_is_no_shortage_of_the_host() {
    let mut host = Sim::new(V2);
    host.limit(6 * GIB);
    host.available(4 * GIB);
    host.host_waits_for_memory(2_000);
    let severity = |host: &Sim| says("memory-not-reserved", host).map(|(severity, _)| severity);
    assert_eq!(severity(&host), Some(Severity::Info), "only the cgroup itself reclaimed");
    host.vmstat("pgsteal_kswapd", 20);
    assert_eq!(severity(&host), Some(Severity::Warning), "and now the host");
    host.host_waits_for_memory(100);
    assert_eq!(severity(&host), Some(Severity::Info), "it is hardly waited for");
}

#[test]
fn a_heap_without_any_sensible_size_is_still_told() {
    let mut host = Sim::new(V2);
    host.limit(GIB);
    host.heap("-Xmx18446744073709551615", u64::MAX);
    let (severity, command) = says("heap-over-limit", &host).expect("it does not fit");
    assert_eq!((severity, command), (Severity::Warning, None));
}

#[test]
fn what_the_agent_holds_is_not_told_as_another_programs() {
    type Row = (&'static str, &'static str, fn(&mut Sim));
    let rows: [Row; 5] = [
        ("high-throttles", "memory.high", |h| {
            h.usage(128 << 20);
            h.set("memory.high", "134217728");
            h.event("high", 500);
            h.full(2, 2_000)
        }),
        ("memory-not-reserved", "memory.low", |h| {
            h.limit(6 * GIB);
            h.available(GIB / 2)
        }),
        ("io-limit-stalls-host", "io.max", |h| {
            h.disk("mq-deadline", "0");
            h.io_limit("io.max", "8:0", "rbps=1048576");
            h.host_waits(7_000)
        }),
        ("io-limit-binds", "io.max", |h| {
            h.disk("mq-deadline", "0");
            h.io_limit("io.max", "8:0", "rbps=1048576");
            h.waits(1, 9_000)
        }),
        ("disk-not-divided", "io.max", |h| {
            h.disk("none", "0");
            h.busy_disk(1_000, 5, 20.0);
            h.host_waits(3_000);
            h.second();
            h.transfer(GIB)
        }),
    ];
    for (check, file, ill) in rows {
        let mut host = Sim::new(V2);
        ill(&mut host);
        assert!(says(check, &host).is_some(), "{check}");
        host.hold(file);
        assert_eq!(says(check, &host), None, "{check}");
    }
    let mut host = Sim::new(V2);
    host.set("memory.low", "134217728");
    host.usage(GIB);
    assert!(says("reservation-void", &host).is_some());
    host.facts.groups[1].held.insert("memory.low".into());
    assert_eq!(says("reservation-void", &host), None);
}

#[test]
fn a_kill_for_the_hosts_memory_is_no_reason_to_raise_a_limit() {
    for (at_limit, raises) in [(0, false), (1, true)] {
        let mut host = Sim::new(V2);
        host.limit(128 << 20);
        host.ever("oom_kill", 1);
        host.ever("oom", at_limit);
        let (_, fix) = says("oom-killed", &host).unwrap();
        assert_eq!(fix.is_some(), raises);
    }
}

#[test]
fn what_happens_at_a_limit_inside_a_container_is_not_at_its_own() {
    // v2 counts memory.events of the cgroups below as well: an engine in this container runs one of 64 MiB.
    for (usage, is_told) in [(200 << 20, false), (1000 << 20, true)] {
        let mut host = Sim::new(V2);
        host.limit(1 << 30);
        host.set("memory.high", &(1000 << 20).to_string());
        host.usage(usage);
        host.event("max", 100);
        host.event("high", 500);
        host.waits(2, 500);
        host.full(2, 2_000);
        host.anon(100 << 20);
        host.swap(50 << 20);
        host.swap_ins(1_000);
        for check in ["at-memory-limit", "high-throttles", "swaps-at-own-limit"] {
            assert_eq!(says(check, &host).is_some(), is_told, "{check} {usage}");
        }
    }
}
