//! Every check against a host that has its trouble, and one that nearly has.

use crate::doctor_host::{Sim, says};
use elbowroom_doctor::checks::{CHECKS, ControllerVersion, examine, plan_fixes};
use elbowroom_types::finding::Severity;
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// One row: the check, a host that it speaks about and how, and a change after which it has nothing to say.
struct Row {
    check: &'static str,
    version: ControllerVersion,
    ill: fn(&mut Sim),
    severity: Severity,
    command: &'static str,
    well: fn(&mut Sim),
}

use ControllerVersion::{V1, V2};
use Severity::{Critical, Info, Warning};

fn rows() -> Vec<Row> {
    let row = |check, version, severity, command, ill: fn(&mut Sim), well: fn(&mut Sim)| Row {
        check,
        version,
        ill,
        severity,
        command,
        well,
    };
    vec![
        row(
            "memory-not-reserved",
            V2,
            Info,
            "echo 6442450944 > /sys/fs/cgroup/docker/memory.low",
            |h| {
                h.limit(6 * GIB);
                h.available(4 * GIB)
            },
            |h| h.available(7 * GIB),
        ),
        row(
            "memory-not-reserved",
            V2,
            Warning,
            "echo 6442450944 > /sys/fs/cgroup/docker/memory.low",
            |h| {
                h.limit(6 * GIB);
                h.available(GIB / 2)
            },
            |h| {
                h.set("memory.low", "6442450944");
                h.set_around("memory.low", "6442450944")
            },
        ),
        row(
            "memory-not-reserved",
            V1,
            Warning,
            "docker update --memory-reservation 6g web",
            |h| {
                h.limit(6 * GIB);
                h.available(GIB / 2)
            },
            |h| h.set("memory.soft_limit_in_bytes", "6442450944"),
        ),
        row(
            "reservation-void",
            V2,
            Warning,
            "echo 134217728 > /sys/fs/cgroup/pod/memory.low",
            |h| {
                h.inside("pod");
                h.set("memory.low", "134217728");
                h.usage(100 * MIB)
            },
            |h| h.set_around("memory.low", "134217728"),
        ),
        row(
            "reservation-old-kernel",
            V2,
            Info,
            "",
            |h| {
                h.facts.host.kernel = (5, 10);
                h.set("memory.low", "1048576")
            },
            |h| h.facts.host.kernel = (6, 1),
        ),
        row(
            "anon-evicts-cache",
            V2,
            Warning,
            "docker update --memory ",
            |h| {
                h.limit(256 * MIB);
                h.usage(255 * MIB);
                h.anon(200 * MIB);
                h.hits(50);
                h.refaults(5_000)
            },
            |h| h.refaults(50),
        ),
        row(
            "anon-evicts-cache",
            V1,
            Warning,
            "docker update --memory ",
            |h| {
                h.limit(256 * MIB);
                h.usage(255 * MIB);
                h.anon(200 * MIB);
                h.hits(50);
                h.refaults(5_000)
            },
            |h| h.usage(128 * MIB),
        ),
        row(
            "cache-does-not-fit",
            V2,
            Warning,
            "docker update --memory ",
            |h| {
                h.limit(256 * MIB);
                h.usage(255 * MIB);
                h.anon(50 * MIB);
                h.hits(50);
                h.refaults(5_000);
                h.waits(1, 3_000)
            },
            |h| h.waits(1, 0),
        ),
        row(
            "cache-stolen",
            V2,
            Warning,
            "echo ",
            |h| {
                h.limit(512 * MIB);
                h.usage(200 * MIB);
                h.refaults(5_000);
                h.vmstat("pgsteal_kswapd", 50_000)
            },
            |h| h.vmstat("pgsteal_kswapd", 10),
        ),
        row(
            "cache-stolen",
            V1,
            Warning,
            "docker update --memory-reservation ",
            |h| {
                h.limit(512 * MIB);
                h.usage(200 * MIB);
                h.refaults(5_000);
                h.vmstat("allocstall_normal", 500)
            },
            |h| h.usage(500 * MIB),
        ),
        row(
            "host-jobs-unbounded",
            V2,
            Warning,
            "",
            |h| {
                h.root(7 * GIB);
                h.vmstat("pgsteal_kswapd", 50_000)
            },
            |h| h.root(GIB),
        ),
        row(
            "swapped-by-host",
            V2,
            Warning,
            "echo ",
            |h| {
                h.limit(512 * MIB);
                h.usage(100 * MIB);
                h.anon(90 * MIB);
                h.swap(50 * MIB);
                h.swap_ins(1_000)
            },
            |h| h.set("memory.swap.max", "0"),
        ),
        row(
            "swapped-by-host",
            V1,
            Warning,
            "echo 1 > /sys/fs/cgroup/memory/docker/c1/memory.swappiness",
            |h| {
                h.limit(512 * MIB);
                h.usage(100 * MIB);
                h.anon(90 * MIB);
                h.swap(50 * MIB);
                h.swap_ins(1_000)
            },
            |h| h.set("memory.swappiness", "0"),
        ),
        row(
            "swapped-by-host",
            V2,
            Info,
            "echo ",
            |h| {
                h.limit(512 * MIB);
                h.usage(100 * MIB);
                h.anon(90 * MIB);
                h.swap(50 * MIB)
            },
            |h| h.swap(0),
        ),
        row(
            "no-swap",
            V2,
            Info,
            "modprobe zram",
            |h| {
                h.meminfo("SwapTotal", 0);
                h.facts.host.managers.push("systemd-oomd".into())
            },
            |h| h.meminfo("SwapTotal", GIB),
        ),
        row(
            "swaps-at-own-limit",
            V2,
            Warning,
            "docker update --memory ",
            |h| {
                h.limit(128 * MIB);
                h.usage(127 * MIB);
                h.anon(120 * MIB);
                h.swap(50 * MIB);
                h.swap_ins(1_000);
                h.hits(50)
            },
            |h| h.swap_ins(1),
        ),
        row(
            "zswap-full",
            V2,
            Warning,
            "",
            |h| {
                h.host("/sys/module/zswap/parameters/enabled", "Y");
                h.meminfo("Zswap", 3 * GIB);
                h.vmstat("zswpwb", 5_000)
            },
            |h| h.meminfo("Zswap", GIB),
        ),
        row(
            "high-throttles",
            V2,
            Warning,
            "echo 167772160 > /sys/fs/cgroup/docker/c1/memory.high",
            |h| {
                h.limit(256 * MIB);
                h.usage(128 * MIB);
                h.set("memory.high", "134217728");
                h.event("high", 500);
                h.full(2, 2_000)
            },
            |h| h.full(2, 100),
        ),
        row(
            "at-memory-limit",
            V2,
            Warning,
            "docker update --memory ",
            |h| {
                h.limit(128 * MIB);
                h.usage(128 * MIB);
                h.anon(126 * MIB);
                h.hits(100);
                h.waits(2, 500)
            },
            |h| h.cache(60 * MIB),
        ),
        row(
            "oom-killed",
            V2,
            Warning,
            "docker update --memory ",
            |h| {
                h.limit(128 * MIB);
                h.ever("oom", 3);
                h.ever("oom_kill", 3)
            },
            |h| h.ever("oom_kill", 0),
        ),
        row(
            "oom-killed",
            V1,
            Critical,
            "docker update --memory ",
            |h| {
                h.limit(128 * MIB);
                h.event("oom_kill", 1)
            },
            |h| h.ever("oom_kill", 0),
        ),
        row(
            "host-out-of-memory",
            V2,
            Critical,
            "dmesg",
            |h| {
                h.vmstat("oom_kill", 1);
                h.event_around("oom_kill", 1)
            },
            |h| h.event_around("oom", 1),
        ),
        row(
            "host-out-of-memory",
            V2,
            Warning,
            "dmesg",
            |h| h.vmstat("oom_kill", 1),
            |h| {
                h.event_around("oom_kill", 1);
                h.event_around("oom", 1)
            },
        ),
        row(
            "host-out-of-memory",
            V1,
            Warning,
            "dmesg",
            |h| h.vmstat("oom_kill", 1),
            |h| h.event_around("oom_kill", 1),
        ),
        row(
            "oom-kills-parts",
            V2,
            Info,
            "echo 1 > /sys/fs/cgroup/docker/c1/memory.oom.group",
            |h| {
                h.ever("oom_kill", 1);
                h.set("pids.current", "5");
                h.set("memory.oom.group", "0")
            },
            |h| h.set("memory.oom.group", "1"),
        ),
        row(
            "oom-killer-off",
            V1,
            Critical,
            "echo 0 > /sys/fs/cgroup/memory/docker/c1/memory.oom_control",
            |h| {
                h.set("oom_kill_disable", "1");
                h.set("under_oom", "1")
            },
            |h| h.set("oom_kill_disable", "0"),
        ),
        row(
            "tmpfs-fills-limit",
            V2,
            Warning,
            "docker update --memory ",
            |h| {
                h.limit(100 * MIB);
                h.usage(90 * MIB);
                h.shmem(40 * MIB)
            },
            |h| h.shmem(10 * MIB),
        ),
        row(
            "kernel-memory",
            V1,
            Warning,
            "docker update --memory ",
            |h| {
                h.limit(100 * MIB);
                h.usage(90 * MIB);
                h.set("memory.kmem.usage_in_bytes", "41943040")
            },
            |h| h.usage(40 * MIB),
        ),
        row(
            "heap-over-limit",
            V2,
            Warning,
            "docker update --memory ",
            |h| {
                h.limit(GIB);
                h.heap("-Xmx2g", 2 * GIB)
            },
            |h| h.heap("-Xmx512m", GIB / 2),
        ),
        row(
            "jvm-misses-container",
            V2,
            Info,
            "",
            |h| h.jvm_without_view(7),
            |h| h.host("/proc/cgroups memory", "3"),
        ),
        row(
            "pids-near-limit",
            V2,
            Warning,
            "docker update --pids-limit 200 web",
            |h| {
                h.set("pids.current", "95");
                h.set("pids.max", "100")
            },
            |h| h.set("pids.max", "max"),
        ),
        row(
            "working-set-is-cache",
            V2,
            Info,
            "",
            |h| {
                h.limit(100 * MIB);
                h.usage(90 * MIB);
                h.active_file(60 * MIB)
            },
            |h| h.active_file(10 * MIB),
        ),
        row("host-short-of-memory", V2, Critical, "", |h| h.available(64 * MIB), |h| h.available(GIB)),
        row(
            "huge-pages-stall",
            V2,
            Warning,
            "echo madvise > /sys/kernel/mm/transparent_hugepage/defrag",
            |h| {
                h.host("/sys/kernel/mm/transparent_hugepage/enabled", "always");
                h.host("/sys/kernel/mm/transparent_hugepage/defrag", "always");
                h.vmstat("compact_stall", 100)
            },
            |h| h.host("/sys/kernel/mm/transparent_hugepage/defrag", "madvise"),
        ),
        row(
            "dirty-over-limit",
            V1,
            Warning,
            "sysctl -w vm.dirty_bytes=",
            |h| {
                h.limit(128 * MIB);
                h.dirty(64 * MIB)
            },
            |h| h.dirty(MIB),
        ),
        row(
            "dying-cgroups",
            V2,
            Warning,
            "echo 256M > /sys/fs/cgroup/memory.reclaim",
            |h| h.dying("20000"),
            |h| h.dying("200"),
        ),
        row(
            "dying-cgroups",
            V2,
            Warning,
            "sync; echo 2",
            |h| {
                h.facts.host.kernel = (5, 15);
                h.dying("20000")
            },
            |h| h.dying("200"),
        ),
        row(
            "dying-cgroups",
            V1,
            Info,
            "sync; echo 2",
            |h| {
                h.host("/proc/cgroups memory", "3000");
                h.facts.host.memory_directories = 10
            },
            |h| h.facts.host.memory_directories = 2_500,
        ),
        row(
            "watermarks-narrow",
            V2,
            Warning,
            "sysctl -w vm.watermark_scale_factor=100",
            |h| {
                h.host("/proc/sys/vm/watermark_scale_factor", "10");
                h.vmstat("allocstall_normal", 500)
            },
            |h| h.vmstat("allocstall_normal", 1),
        ),
        row(
            "pressure-not-counted",
            V2,
            Info,
            "",
            |h| h.facts.host.after.pressure = None,
            |h| h.facts.host.after.pressure = Some(Default::default()),
        ),
        row(
            "numa-node-full",
            V2,
            Warning,
            "",
            |h| {
                h.nodes(&[(0, 1), (1, 60)]);
                h.set("cpuset.mems", "0");
                h.vmstat("pgsteal_kswapd", 50_000)
            },
            |h| h.set("cpuset.mems", "0-1"),
        ),
        row(
            "node-reclaim-on",
            V2,
            Warning,
            "sysctl -w vm.zone_reclaim_mode=0",
            |h| {
                h.nodes(&[(0, 50), (1, 60)]);
                h.host("/proc/sys/vm/zone_reclaim_mode", "1")
            },
            |h| h.nodes(&[(0, 50)]),
        ),
        row(
            "commit-limit-near",
            V2,
            Warning,
            "sysctl -w vm.overcommit_memory=0",
            |h| {
                h.host("/proc/sys/vm/overcommit_memory", "2");
                h.meminfo("Committed_AS", 95 * MIB);
                h.meminfo("CommitLimit", 100 * MIB)
            },
            |h| h.host("/proc/sys/vm/overcommit_memory", "0"),
        ),
        row(
            "kernel-table-full",
            V2,
            Critical,
            "sysctl -w net.netfilter.nf_conntrack_max=20000",
            |h| {
                h.host("/proc/sys/net/netfilter/nf_conntrack_count", "9900");
                h.host("/proc/sys/net/netfilter/nf_conntrack_max", "10000")
            },
            |h| h.host("/proc/sys/net/netfilter/nf_conntrack_count", "900"),
        ),
        row(
            "cpu-throttled",
            V2,
            Warning,
            "docker update --cpus 0.75 web",
            |h| {
                h.set("cpu.max", "50000 100000");
                h.throttled(20, 10, 300_000)
            },
            |h| h.throttled(20, 10, 30_000),
        ),
        row(
            "cpu-throttled",
            V1,
            Warning,
            "docker update --cpus 0.75 web",
            |h| {
                h.set("cpu.cfs_quota_us", "50000");
                h.set("cpu.cfs_period_us", "100000");
                h.throttled(20, 10, 300_000)
            },
            |h| h.throttled(100, 5, 300_000),
        ),
        row(
            "cpuset-narrowed",
            V2,
            Warning,
            "",
            |h| {
                h.set("cpuset.cpus", "0-3");
                h.set("cpuset.cpus.effective", "0-1")
            },
            |h| h.set("cpuset.cpus.effective", "0-3"),
        ),
        row(
            "cpuset-crowded",
            V2,
            Warning,
            "",
            |h| {
                h.second();
                h.set_all("cpuset.cpus", "0-1");
                h.host("/sys/devices/system/cpu/online", "0-15");
                h.waits(0, 4_000)
            },
            |h| h.set("cpuset.cpus", "4-5"),
        ),
        row(
            "cpu-weight-minimum",
            V2,
            Warning,
            "echo 100 > /sys/fs/cgroup/docker/c1/cpu.weight",
            |h| {
                h.set("cpu.weight", "1");
                h.waits(0, 4_000)
            },
            |h| h.waits(0, 100),
        ),
        row(
            "buffered-writes-escape",
            V1,
            Info,
            "",
            |h| h.io_limit("blkio.throttle.write_bps_device", "8:0", "1048576"),
            |h| h.facts.groups[2].io_limits.clear(),
        ),
        row(
            "buffered-writes-escape",
            V2,
            Info,
            "",
            |h| {
                h.io_limit("io.max", "8:0", "rbps=max wbps=1048576 riops=max wiops=max");
                h.mount("ntfs3", "rw")
            },
            |h| h.mount("ext4", "rw"),
        ),
        row(
            "io-limit-on-partition",
            V2,
            Warning,
            "echo '8:0 rbps=1048576' > /sys/fs/cgroup/docker/c1/io.max",
            |h| {
                h.io_limit("io.max", "8:1", "rbps=1048576");
                h.partition()
            },
            |h| h.facts.host.partitions.clear(),
        ),
        row(
            "io-limit-stalls-host",
            V2,
            Critical,
            "echo '8:0 rbps=max",
            |h| {
                h.disk("mq-deadline", "0");
                h.io_limit("io.max", "8:0", "rbps=1048576");
                h.host_waits(7_000)
            },
            |h| h.host_waits(1_000),
        ),
        row(
            "io-limit-binds",
            V1,
            Warning,
            "echo '8:0 0' > ",
            |h| {
                h.disk("mq-deadline", "0");
                h.io_limit("blkio.throttle.read_bps_device", "8:0", "1048576");
                h.waits(1, 9_000)
            },
            |h| h.busy_disk(100, 1, 40.0),
        ),
        row(
            "io-weight-without-effect",
            V2,
            Warning,
            "echo bfq > /sys/block/sda/queue/scheduler",
            |h| {
                h.disk("mq-deadline", "0");
                h.set("io.weight", "default 300")
            },
            |h| h.disk("bfq", "0"),
        ),
        row(
            "disk-not-divided",
            V2,
            Warning,
            "echo bfq > /sys/block/sda/queue/scheduler",
            |h| {
                h.disk("none", "0");
                h.busy_disk(1_000, 5, 20.0);
                h.host_waits(3_000);
                h.second();
                h.transfer(50 * MIB)
            },
            |h| h.busy_disk(1_000, 5, 1.0),
        ),
        row(
            "disk-slower-than-usual",
            V2,
            Warning,
            "",
            |h| {
                h.disk("none", "0");
                h.busy_disk(100, 80, 8.0)
            },
            |h| h.busy_disk(100, 2, 0.2),
        ),
        row(
            "disk-full-without-pressure",
            V2,
            Info,
            "",
            |h| {
                h.disk("none", "0");
                h.busy_disk(5_000, 5, 40.0)
            },
            |h| h.host_waits(5_000),
        ),
        row(
            "disk-not-rotational",
            V2,
            Info,
            "echo 0 > /sys/block/sda/queue/rotational",
            |h| h.disk("none", "1"),
            |h| h.disk("none", "0"),
        ),
        row(
            "writes-drown-reads",
            V2,
            Warning,
            "echo 75000 > /sys/block/sda/queue/wbt_lat_usec",
            |h| {
                h.disk("none", "1");
                h.busy_disk(100, 20, 5.0);
                h.host_waits(3_000)
            },
            |h| h.disk("bfq", "1"),
        ),
        row(
            "other-governor",
            V2,
            Info,
            "",
            |h| h.facts.host.managers.push("koordlet".into()),
            |h| h.facts.host.managers.clear(),
        ),
        row("fix-overwritten", V2, Info, "", |h| h.applied("5", Some("7")), |h| h.applied("7", Some("7"))),
    ]
}

#[test]
fn each_check_speaks_of_its_trouble_and_not_of_nearly_so() {
    for row in rows() {
        let mut host = Sim::new(row.version);
        assert_eq!(says(row.check, &host), None, "{} on a healthy host", row.check);
        (row.ill)(&mut host);
        let said = says(row.check, &host);
        let (severity, command) =
            said.unwrap_or_else(|| panic!("{} {:?} says nothing", row.check, row.version));
        assert_eq!(severity, row.severity, "{} {:?}", row.check, row.version);
        let command = command.unwrap_or_default();
        assert!(
            command.starts_with(row.command) && command.is_empty() == row.command.is_empty(),
            "{} {:?}: {command:?}, not {:?}",
            row.check,
            row.version,
            row.command
        );
        (row.well)(&mut host);
        assert_eq!(says(row.check, &host), None, "{} {:?} nearly", row.check, row.version);
    }
}

#[test]
fn every_check_has_a_row_here_and_a_name_of_its_own() {
    let tested: BTreeSet<&str> = rows().iter().map(|r| r.check).collect();
    let ids: BTreeSet<&str> = CHECKS.iter().map(|c| c.id).collect();
    assert_eq!(ids.len(), CHECKS.len());
    assert_eq!(tested, ids);
    assert!(CHECKS.len() >= 45);
    for check in CHECKS {
        let shaped = check.id.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
        assert!(shaped && !check.threshold.is_empty() && !check.reference.is_empty(), "{}", check.id);
        assert!(!check.reads_v1.is_empty() || !check.reads_v2.is_empty(), "{}", check.id);
    }
}

#[test]
fn no_fix_lowers_a_limit_or_turns_swap_off() {
    let limits =
        ["memory.max", "memory.high", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "pids.max"];
    for row in rows() {
        let mut host = Sim::new(row.version);
        (row.ill)(&mut host);
        for finding in plan_fixes(&host.facts, |_| true) {
            let fix = finding.fix.expect("only what can be fixed is planned");
            assert!(
                !fix.commands.iter().any(|c| c.contains("swapoff") || c.contains("kill ")),
                "{:?}",
                fix.commands
            );
            for write in &fix.writes {
                assert!(!write.file.ends_with("memory.swap.max"), "{write:?}");
                if limits.iter().any(|l| write.file.ends_with(l)) {
                    let number = |text: &str| text.parse::<u64>().unwrap_or(u64::MAX);
                    assert!(number(&write.to) > number(&write.from), "{write:?}");
                }
            }
        }
    }
}

#[test]
fn a_name_is_no_command_of_its_own_in_any_fix() {
    const HOSTILE: &str = ";reboot";
    let mut quoted = 0;
    for row in rows() {
        let mut host = Sim::new(row.version);
        (row.ill)(&mut host);
        for group in &mut host.facts.groups {
            let rename = |text: &mut String| *text = text.replace("/c1", &format!("/c1{HOSTILE}"));
            rename(&mut group.path);
            group.dirs.values_mut().for_each(rename);
            if let Some(name) = group.container.as_mut().and_then(|container| container.name.as_mut()) {
                name.push_str(HOSTILE);
            }
        }
        for command in
            examine(&host.facts).into_iter().filter_map(|found| found.fix).flat_map(|fix| fix.commands)
        {
            // What is between quotes is at every second place.
            let bare: String = command.split('\'').step_by(2).collect();
            assert!(!bare.contains(HOSTILE), "{}: {command}", row.check);
            quoted += usize::from(command.contains(HOSTILE));
        }
    }
    assert!(quoted > 20, "{quoted}");
}

#[test]
fn what_a_pitfalls_fix_writes_removes_it() {
    let pitfalls =
        ["memory-not-reserved", "reservation-void", "anon-evicts-cache", "cache-stolen", "swapped-by-host"];
    for row in rows().into_iter().filter(|r| pitfalls.contains(&r.check)) {
        let mut host = Sim::new(row.version);
        (row.ill)(&mut host);
        let planned = plan_fixes(&host.facts, |f| f.check == row.check);
        assert!(!planned.is_empty(), "{} {:?}", row.check, row.version);
        for write in planned.iter().filter_map(|f| f.fix.as_ref()).flat_map(|f| &f.writes) {
            host.facts.apply(write);
        }
        // v1 keeps cache for no container: its soft limit counts as kept, because there is nothing more.
        assert_eq!(says(row.check, &host), None, "{} {:?}", row.check, row.version);
    }
}
