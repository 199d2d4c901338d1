//! Disks: limits that do not hold, limits that hurt, and devices that are slow.

use super::facts::{CgroupFacts, ControllerVersion, DiskCounters, DiskFacts, HierarchyController, HostFacts};
use super::fixes::write_fix;
use crate::checks::DoctorCheck;
use elbowroom_types::finding::{DoctorFinding, Severity};
use elbowroom_types::id::DeviceNumber;
use elbowroom_types::unit::Micros;

/// What a disk did between the looks.
struct DiskActivity {
    /// Mean number of requests under way.
    queue: f64,
    /// Mean time of a request, in milliseconds.
    await_ms: f64,
    /// Requests done.
    ios: u64,
}

fn disk_activity(facts: &HostFacts, disk: &DiskFacts) -> DiskActivity {
    let (before, after) = (&disk.before, &disk.after);
    // One that was taken out and put in again counts anew.
    let Some(ios) = after.ios.checked_sub(before.ios) else {
        return DiskActivity { queue: 0.0, await_ms: 0.0, ios: 0 };
    };
    DiskActivity {
        queue: facts.per_second(0, ticks_delta(before.time_in_queue, after.time_in_queue).get()) / 1e6,
        await_ms: if ios == 0 {
            0.0
        } else {
            ticks_delta(before.ticks, after.ticks).get() as f64 / ios as f64 / 1e3
        },
        ios,
    }
}

/// `/proc/diskstats` has times as 32 bits of milliseconds, and begins anew after 50 days of them (block/genhd.c,
/// `diskstats_show`).
const TICKS_WRAP: u64 = 1 << 32;

fn ticks_delta(before: Micros, after: Micros) -> Micros {
    let ms = |time: Micros| time.get() / 1_000;
    Micros::millis(ms(after).wrapping_sub(ms(before)) % TICKS_WRAP)
}

/// What a request took since boot in the mean. `None` where the clock may have begun anew: no disk takes more than 100 ms in the
/// mean.
fn mean_request_time(counters: &DiskCounters) -> Option<Micros> {
    let ios = counters.ios.max(1);
    (ios < TICKS_WRAP / 100).then(|| Micros(counters.ticks.get() / ios))
}

fn queue_file(disk: &DiskFacts, file: &str) -> String {
    format!("/sys/block/{}/queue/{file}", disk.name)
}

/// The part of the last 10 s that some tasks (or all) of the host waited for disks, in hundredths of a percent.
fn io_pressure(facts: &HostFacts) -> Option<(u32, u32)> {
    facts.host.after.pressure.as_ref().map(|p| (p[1].some.avg10, p[1].full.avg10))
}

/// Requests under way on the disk of that number, where neither it nor any other disk has as many as `most`: pressure does not say
/// which disk is waited for.
fn queue_if_all_idle(facts: &HostFacts, number: DeviceNumber, most: f64) -> Option<f64> {
    let disk = facts.host.disks.iter().find(|d| d.number == number)?;
    let mut real = facts.host.disks.iter().filter(|d| d.number == number || !is_stacked(d));
    real.all(|d| disk_activity(facts, d).queue < most).then(|| disk_activity(facts, disk).queue)
}

/// What stands on another disk or on memory says what that says.
fn is_stacked(disk: &DiskFacts) -> bool {
    ["loop", "ram", "zram", "dm-", "md"].iter().any(|p| disk.name.starts_with(p))
}

/// Containers with disk limits: the group, the file, the device, the rest of the row.
fn io_limited_cgroups(facts: &HostFacts) -> impl Iterator<Item = (&CgroupFacts, &str, DeviceNumber, &str)> {
    facts
        .containers()
        .flat_map(|g| g.io_limits.iter().map(move |(f, d, rest)| (g, f.as_str(), *d, rest.as_str())))
}

/// Those of containers that wait for no limit of the agent's, which takes its own off where they do harm.
fn user_limited_cgroups(facts: &HostFacts) -> impl Iterator<Item = (&CgroupFacts, &str, DeviceNumber, &str)> {
    io_limited_cgroups(facts).filter(|(g, ..)| !g.has_leased_io_limits())
}

/// Buffered writes pass a limit unseen.
pub(super) const BUFFERED_WRITES_ESCAPE: DoctorCheck = DoctorCheck {
    id: "buffered-writes-escape",
    pitfall: "buffered writes escape a limit on writes",
    reads_v1: "blkio.throttle.write_{bps,iops}_device",
    reads_v2: "io.max (wbps, wiops), cgroup.subtree_control of the cgroup above, /proc/self/mountinfo",
    threshold: "v1: any limit on writes; v2: a limit on writes where memory is not controlled together with io, or the file \
                system of that disk does not write back by cgroup",
    reference: "Documentation/admin-guide/cgroup-v2.rst, Writeback",
    run: buffered_writes_escape,
};

fn buffered_writes_escape(facts: &HostFacts) -> Vec<DoctorFinding> {
    const BY_CGROUP: [&str; 4] = ["ext4", "xfs", "btrfs", "f2fs"];
    io_limited_cgroups(facts)
        .filter_map(|(g, file, number, rest)| {
            let writes = file.contains("write_") || has_limit(rest, "wbps") || has_limit(rest, "wiops");
            let mount = facts.host.mounts.iter().find(|m| {
                let whole = facts.host.partitions.get(&m.number).copied().unwrap_or(m.number);
                whole == number && !BY_CGROUP.contains(&m.fs.as_str())
            });
            let why = match facts.version(HierarchyController::Io) {
                Some(ControllerVersion::V1) => "cgroup v1 counts them for no container".to_owned(),
                Some(ControllerVersion::V2) if !g.dirs.contains_key(&HierarchyController::Memory) => {
                    "the memory controller is not enabled beside io".to_owned()
                }
                _ => format!("{} does not write back by cgroup", mount?.fs),
            };
            writes.then(|| {
                DoctorFinding::new(
                    Severity::Info,
                    format!("Its limit on writes does not hold for writes that go through the page cache: {why}."),
                )
                .for_cgroup(g.container_name(), &g.path)
                .with_evidence(g.file(HierarchyController::Io, file), format!("{number} {rest}"))
                .with_advice("Only direct and synchronous writes are held back. cgroup v2 with ext4, xfs or btrfs holds all.")
            })
        })
        .collect()
}

fn has_limit(rest: &str, key: &str) -> bool {
    rest.split_ascii_whitespace().filter_map(|w| w.split_once('=')).any(|(k, v)| k == key && v != "max")
}

/// A limit that never matches.
pub(super) const LIMIT_ON_PARTITION: DoctorCheck = DoctorCheck {
    id: "io-limit-on-partition",
    pitfall: "a limit on a device that the kernel does not limit",
    reads_v1: "blkio.throttle.*_device, /proc/partitions",
    reads_v2: "io.max, /proc/partitions",
    threshold: "a limit on a partition: the kernel looks limits up by whole disk",
    reference: "systemd/systemd#14271; block/blk-cgroup.c blkg_conf_open_bdev",
    run: limit_on_partition,
};

fn limit_on_partition(facts: &HostFacts) -> Vec<DoctorFinding> {
    io_limited_cgroups(facts)
        .filter_map(|(g, file, number, rest)| {
            let whole = facts.host.partitions.get(&number)?;
            Some(
                DoctorFinding::new(
                    Severity::Warning,
                    format!("Its limit on {number} never counts: that is a partition, and limits belong to the disk {whole}."),
                )
                .for_cgroup(g.container_name(), &g.path)
                .with_evidence(g.file(HierarchyController::Io, file), format!("{number} {rest}"))
                .with_fix(write_fix(&format!("{whole} {rest}"), &g.file(HierarchyController::Io, file))),
            )
        })
        .collect()
}

/// A limit that stalls all containers.
pub(super) const LIMIT_STALLS_HOST: DoctorCheck = DoctorCheck {
    id: "io-limit-stalls-host",
    pitfall: "a limited container holds up the whole file system",
    reads_v1: "blkio.throttle.*_device, /proc/pressure/io full, /proc/diskstats",
    reads_v2: "io.max, /proc/pressure/io full, /proc/diskstats",
    threshold: "all tasks wait for disks more than 40 % of the last 10 s, though no disk has as much as 0.2 requests under way",
    reference: "moby/moby#39737; block/blk-throttle.c",
    run: limit_stalls_host,
};

fn limit_stalls_host(facts: &HostFacts) -> Vec<DoctorFinding> {
    let Some((_, full)) = io_pressure(facts).filter(|(_, full)| *full > 4_000) else { return Vec::new() };
    user_limited_cgroups(facts)
        .filter_map(|(g, file, number, rest)| {
            let queue = queue_if_all_idle(facts, number, 0.2)?;
            let path = g.file(HierarchyController::Io, file);
            Some(
                DoctorFinding::new(
                    Severity::Critical,
                    format!(
                        "The host waits for disks {}% of the time though all are idle: this limit on {number} holds locks of the \
                         file system that all need.",
                        full / 100
                    ),
                )
                .for_cgroup(g.container_name(), &g.path)
                .with_evidence("/proc/pressure/io full avg10", format!("{}%", full / 100))
                .with_evidence(format!("/proc/diskstats {number} queue"), format!("{queue:.2}"))
                .with_evidence(path.clone(), format!("{number} {rest}"))
                .with_fix(remove_limit_fix(&path, file, number)),
            )
        })
        .collect()
}

/// The command that takes a disk limit away. Not part of `--fix`: it was set for a reason.
fn remove_limit_fix(
    path: &str,
    file: &str,
    number: DeviceNumber,
) -> Option<elbowroom_types::finding::FindingFix> {
    match file {
        "io.max" => write_fix(&format!("{number} rbps=max wbps=max riops=max wiops=max"), path),
        _ => write_fix(&format!("{number} 0"), path),
    }
}

/// A limit that is what the container waits for.
pub(super) const LIMIT_BINDS: DoctorCheck = DoctorCheck {
    id: "io-limit-binds",
    pitfall: "a limit delays a container by slices of 100 ms",
    reads_v1: "blkio.throttle.*_device, io.pressure of the unified hierarchy, /proc/diskstats",
    reads_v2: "io.max, io.pressure, /proc/diskstats",
    threshold: "a container with a limit waits for disk more than 50 % of the last 10 s, and no disk has as much as 1 request \
                under way",
    reference: "docs/papers/memory-pitfalls.md; block/blk-throttle.c, slices of 100 ms",
    run: limit_binds,
};

fn limit_binds(facts: &HostFacts) -> Vec<DoctorFinding> {
    user_limited_cgroups(facts)
        .filter_map(|(g, file, number, rest)| {
            let waits = g.after.pressure.as_ref()?[1].some.avg10;
            let queue = queue_if_all_idle(facts, number, 1.0)?;
            let path = g.file(HierarchyController::Io, file);
            (waits > 5_000).then(|| {
                DoctorFinding::new(
                    Severity::Warning,
                    format!("It waits for its own disk limit, {}% of the time and up to 100 ms at once; the disk is free.", waits / 100),
                )
                .for_cgroup(g.container_name(), &g.path)
                .with_evidence(path.clone(), format!("{number} {rest}"))
                .with_evidence(g.file(HierarchyController::Unified, "io.pressure some avg10"), format!("{}%", waits / 100))
                .with_evidence(format!("/proc/diskstats {number} queue"), format!("{queue:.2}"))
                .with_fix(remove_limit_fix(&path, file, number))
                .with_advice("Weights (io.weight with bfq or iocost) divide a busy disk and leave a free one alone.")
            })
        })
        .collect()
}

/// Weights that no scheduler reads.
pub(super) const WEIGHT_NOOP: DoctorCheck = DoctorCheck {
    id: "io-weight-without-effect",
    pitfall: "a weight that no scheduler reads",
    reads_v1: "blkio.weight, blkio.bfq.weight, /sys/block/*/queue/scheduler",
    reads_v2: "io.weight, io.bfq.weight, io.cost.qos of the root, /sys/block/*/queue/scheduler",
    threshold: "a weight that is not the default, and no disk with scheduler bfq and iocost off everywhere, or the weight is in the one \
                cgroup inside the container's (crun before 1.18)",
    reference: "Documentation/admin-guide/cgroup-v2.rst, io.weight; Documentation/block/bfq-iosched.rst",
    run: weight_noop,
};

fn weight_noop(facts: &HostFacts) -> Vec<DoctorFinding> {
    let bfq = facts.host.disks.iter().any(|d| d.queue.get("scheduler").is_some_and(|s| s == "bfq"));
    let slow = facts.host.disks.first().filter(|_| !bfq && !iocost_on(facts));
    facts
        .containers()
        .filter_map(|g| {
            let files = [
                ("io.weight", "100"),
                ("io.bfq.weight", "100"),
                ("blkio.bfq.weight", "100"),
                ("blkio.weight", "500"),
            ];
            let (file, weight) = files.into_iter().find_map(|(file, default)| {
                let weight = g.text(file)?.lines().next()?.trim_start_matches("default ").trim();
                (weight != default && weight != "0").then_some((file, weight))
            })?;
            let found = |why: &str| {
                DoctorFinding::new(
                    Severity::Warning,
                    format!("Its disk weight {weight} has no effect: {why}."),
                )
                .for_cgroup(g.container_name(), &g.path)
                .with_evidence(g.file(HierarchyController::Io, file), weight)
            };
            if let Some(slow) = slow {
                let scheduler = queue_file(slow, "scheduler");
                let found = found("no disk here divides by weight")
                    .with_evidence(&scheduler, slow.queue.get("scheduler").map_or("absent", |s| s));
                return Some(found.with_fix(write_fix("bfq", &scheduler)));
            }
            // Weights are of siblings, and this one has none (containers/crun#1572, mended in crun 1.18).
            let own = g.dirs.get(&HierarchyController::Io).filter(|_| g.below.contains_key(file))?;
            let found = found("it is set in a cgroup inside its own, which has no neighbour");
            Some(found.with_fix(write_fix(weight, &format!("{own}/{file}"))))
        })
        .collect()
}

fn iocost_on(facts: &HostFacts) -> bool {
    let qos = facts.root().and_then(|r| r.text("io.cost.qos")).unwrap_or("");
    qos.lines().any(|line| line.contains("enable=1"))
}

/// A crowded disk that nothing divides.
pub(super) const NOT_DIVIDED: DoctorCheck = DoctorCheck {
    id: "disk-not-divided",
    pitfall: "nothing divides a contended disk",
    reads_v1: "/proc/diskstats, /proc/pressure/io, blkio.throttle.io_service_bytes_recursive, /sys/block/*/queue/scheduler",
    reads_v2: "/proc/diskstats, /proc/pressure/io, io.stat, io.cost.qos, /sys/block/*/queue/scheduler",
    threshold: "more than 4 requests under way on a disk that at least two containers used between the looks; tasks wait for \
                disks 10 % of the last 10 s; neither bfq nor iocost nor a limit divides it",
    reference: "Documentation/admin-guide/cgroup-v2.rst, IO",
    run: not_divided,
};

fn not_divided(facts: &HostFacts) -> Vec<DoctorFinding> {
    if iocost_on(facts)
        || io_limited_cgroups(facts).next().is_some()
        || facts.containers().any(CgroupFacts::has_leased_io_limits)
        || io_pressure(facts).is_some_and(|(some, _)| some < 1_000)
    {
        return Vec::new();
    }
    facts
        .host
        .disks
        .iter()
        .filter(|d| d.queue.get("scheduler").is_none_or(|s| s != "bfq"))
        .filter_map(|d| {
            let queue = disk_activity(facts, d).queue;
            let bytes = |io: &[elbowroom_types::io::IoStat]| {
                io.iter()
                    .filter(|r| r.device == d.number)
                    .map(|r| r.rbytes.get() + r.wbytes.get())
                    .sum::<u64>()
            };
            let mut users: Vec<(u64, String)> = facts
                .containers()
                .map(|g| (bytes(&g.after.io).saturating_sub(bytes(&g.before.io)), g.name()))
                .filter(|(bytes, _)| *bytes > 0)
                .collect();
            users.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
            (queue > 4.0 && users.len() > 1).then(|| {
                DoctorFinding::new(
                    Severity::Warning,
                    format!(
                        "{} is full and goes to the container that asks most: {} containers share it, {} moves the most.",
                        d.name,
                        users.len(),
                        users[0].1
                    ),
                )
                .with_evidence(format!("/proc/diskstats {} queue", d.name), format!("{queue:.1}"))
                .with_evidence(queue_file(d, "scheduler"), d.queue.get("scheduler").map_or("absent", |s| s))
                .with_fix(write_fix("bfq", &queue_file(d, "scheduler")))
                .with_advice("Or `disk.mode = \"observe\"` in the agent's configuration, which shows what each container is due.")
            })
        })
        .collect()
}

/// Slower than it ever was.
pub(super) const DEGRADED: DoctorCheck = DoctorCheck {
    id: "disk-slower-than-usual",
    pitfall: "the disk is slower than it was",
    reads_v1: "/proc/diskstats",
    reads_v2: "/proc/diskstats",
    threshold: "at least 50 requests between the looks took more than 20 ms and more than 3 times what they took since boot \
                (less than 43 million of them); fewer than 16 were under way",
    reference: "Documentation/admin-guide/iostats.rst",
    run: degraded,
};

fn degraded(facts: &HostFacts) -> Vec<DoctorFinding> {
    facts
        .host
        .disks
        .iter()
        .filter_map(|d| {
            let now = disk_activity(facts, d);
            let usual = mean_request_time(&d.before)?.get() as f64 / 1e3;
            let slow = now.ios >= 50 && d.before.ios > 10_000 && now.await_ms > 20.0 && now.await_ms > 3.0 * usual;
            // A deep queue explains a long wait without any fault of the disk.
            (slow && now.queue < 16.0).then(|| {
                DoctorFinding::new(
                    Severity::Warning,
                    format!("{} takes {:.0} ms for a request that used to take {usual:.1} ms.", d.name, now.await_ms),
                )
                .with_evidence(format!("/proc/diskstats {} await", d.name), format!("{:.1}ms", now.await_ms))
                .with_evidence(format!("/proc/diskstats {} queue", d.name), format!("{:.1}", now.queue))
                .with_advice("A failing disk (`smartctl -a`), a neighbour on the same storage, or used-up burst credits of a cloud disk.")
            })
        })
        .collect()
}

/// Full, and pressure does not say so.
pub(super) const FULL_WITHOUT_PRESSURE: DoctorCheck = DoctorCheck {
    id: "disk-full-without-pressure",
    pitfall: "asynchronous I/O waits, and pressure does not show it",
    reads_v1: "/proc/pressure/io, /proc/diskstats",
    reads_v2: "/proc/pressure/io, /proc/diskstats",
    threshold: "more than 16 requests under way and less than 1 % I/O pressure: asynchronous I/O waits where the kernel does not count",
    reference: "Documentation/accounting/psi.rst",
    run: full_without_pressure,
};

fn full_without_pressure(facts: &HostFacts) -> Vec<DoctorFinding> {
    let Some((some, _)) = io_pressure(facts).filter(|(some, _)| *some < 100) else { return Vec::new() };
    facts
        .host
        .disks
        .iter()
        .filter_map(|d| {
            let queue = disk_activity(facts, d).queue;
            (queue > 16.0).then(|| {
                DoctorFinding::new(
                    Severity::Info,
                    format!(
                        "{} is full with asynchronous requests, which I/O pressure does not count.",
                        d.name
                    ),
                )
                .with_evidence(format!("/proc/diskstats {} queue", d.name), format!("{queue:.1}"))
                .with_evidence("/proc/pressure/io some avg10", format!("0.{some:02}%"))
                .with_advice("Watch the queue of this disk instead of its pressure.")
            })
        })
        .collect()
}

/// Called a disk of platters and is none.
pub(super) const ROTATIONAL: DoctorCheck = DoctorCheck {
    id: "disk-not-rotational",
    pitfall: "a virtual disk that says it rotates",
    reads_v1: "/sys/block/*/queue/rotational, /proc/diskstats",
    reads_v2: "/sys/block/*/queue/rotational, /proc/diskstats",
    threshold: "rotational is 1, and more than 10000 requests since boot (less than 43 million) took less than 2 ms each",
    reference: "Documentation/ABI/stable/sysfs-block, rotational",
    run: rotational,
};

fn rotational(facts: &HostFacts) -> Vec<DoctorFinding> {
    facts
        .host
        .disks
        .iter()
        .filter_map(|d| {
            let mean = mean_request_time(&d.after)?;
            let said = d.queue.get("rotational").is_some_and(|r| r == "1");
            (said && !is_stacked(d) && d.after.ios > 10_000 && mean < Micros::millis(2)).then(|| {
                let file = queue_file(d, "rotational");
                DoctorFinding::new(
                    Severity::Info,
                    format!("{} says it has platters and answers in {mean}: schedulers and write-back wait for seeks that are none.", d.name),
                )
                .with_evidence(file.clone(), 1)
                .with_evidence(format!("/proc/diskstats {} await", d.name), mean)
                .with_fix(super::fixes::sysctl_fix(facts, &file, 0))
            })
        })
        .collect()
}

/// Write-back that drowns reads.
pub(super) const WBT: DoctorCheck = DoctorCheck {
    id: "writes-drown-reads",
    pitfall: "writes of one drown reads of all",
    reads_v1: "/sys/block/*/queue/{rotational,wbt_lat_usec,scheduler}, /proc/self/mountinfo data=journal",
    reads_v2: "/sys/block/*/queue/{rotational,wbt_lat_usec,scheduler}, /proc/self/mountinfo data=journal",
    threshold: "tasks wait for disks 10 % of the last 10 s; and write-back throttling is off on a disk of platters without \
                bfq, or ext4 journals data",
    reference: "Documentation/ABI/stable/sysfs-block, wbt_lat_usec; Documentation/filesystems/ext4/journal.rst",
    run: wbt,
};

fn wbt(facts: &HostFacts) -> Vec<DoctorFinding> {
    let Some((some, _)) = io_pressure(facts).filter(|(some, _)| *some >= 1_000) else { return Vec::new() };
    let waits = format!("{}%", some / 100);
    let is = |d: &DiskFacts, file: &str, text: &str| d.queue.get(file).is_some_and(|t| t == text);
    let off = facts.host.disks.iter().filter(|d| is(d, "rotational", "1") && is(d, "wbt_lat_usec", "0"));
    let slow = off.filter(|d| !is(d, "scheduler", "bfq") && disk_activity(facts, d).queue > 1.0).map(|d| {
        let file = queue_file(d, "wbt_lat_usec");
        DoctorFinding::new(
            Severity::Warning,
            format!("Writes to {} go out all at once, and reads wait behind them.", d.name),
        )
        .with_evidence(file.clone(), 0)
        .with_evidence("/proc/pressure/io some avg10", &waits)
        .with_fix(super::fixes::sysctl_fix(facts, &file, 75_000))
    });
    let journal = |o: &str| o.split(',').any(|o| o == "data=journal");
    let journals = facts.host.mounts.iter().filter(|m| m.fs == "ext4" && journal(&m.options)).map(|m| {
        DoctorFinding::new(
            Severity::Warning,
            format!("{} writes every byte twice: its journal takes data, too.", m.point),
        )
        .with_evidence(format!("/proc/self/mountinfo {}", m.point), "data=journal")
        .with_evidence("/proc/pressure/io some avg10", &waits)
        .with_advice("Mount it with data=ordered, unless that was chosen on purpose.")
    });
    slow.chain(journals).collect()
}
