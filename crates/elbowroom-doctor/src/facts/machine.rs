//! Facts about the machine as a whole.

use crate::checks::{DiskFacts, MachineCounters, MachineFacts, NumaNodeFacts, ZFS_CACHE};
use crate::host_text;
use elbowroom_linux::cgroup::CgroupLayout;
use elbowroom_linux::root::{ReadError, Root, if_present};
use elbowroom_linux::{Malformed, proc, zfs};
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::id::DeviceNumber;
use elbowroom_types::unit::Bytes;
use rustix::fs::OFlags;
use std::collections::BTreeMap;

/// Files of one short text.
const SETTINGS: [&str; 23] = [
    "/proc/sys/vm/swappiness",
    "/proc/sys/vm/watermark_scale_factor",
    "/proc/sys/vm/dirty_ratio",
    "/proc/sys/vm/dirty_bytes",
    "/proc/sys/vm/zone_reclaim_mode",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/fs/file-max",
    "/proc/sys/fs/aio-nr",
    "/proc/sys/fs/aio-max-nr",
    "/proc/sys/kernel/threads-max",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/keys/maxkeys",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/net/netfilter/nf_conntrack_count",
    "/proc/sys/net/netfilter/nf_conntrack_max",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/mm/transparent_hugepage/defrag",
    "/sys/module/zswap/parameters/enabled",
    "/sys/module/zswap/parameters/max_pool_percent",
    "/sys/devices/system/cpu/online",
    "/sys/devices/system/cpu/possible",
    "/sys/devices/system/node/online",
    "/proc/sys/vm/min_free_kbytes",
];

/// Programs that govern or kill, by the name in `/proc/PID/comm`, which ends after 15 bytes.
const KNOWN_MEMORY_MANAGERS: [&str; 8] =
    ["kubelet", "systemd-oomd", "oomd", "earlyoom", "nohang", "koordlet", "katalyst-agent", "elbowroom"];

/// Counters that change. `/proc/meminfo` is needed, the rest absent where it is not there.
pub(super) fn counters(root: &Root) -> Result<MachineCounters, ReadError> {
    let pressure = ["cpu", "io", "memory"]
        .map(|of| parse(root, &format!("/proc/pressure/{of}"), proc::pressure).ok().flatten());
    let mut meminfo = parse(root, "/proc/meminfo", host_text::meminfo)?.unwrap_or_default();
    let zfs = zfs::evictable_cache(root);
    if zfs > Bytes::ZERO {
        meminfo.insert(ZFS_CACHE.to_owned(), zfs);
    }
    Ok(MachineCounters {
        meminfo,
        vmstat: parse(root, "/proc/vmstat", host_text::keyed)?.unwrap_or_default(),
        pressure: match pressure {
            [Some(cpu), Some(io), Some(memory)] => Some([cpu, io, memory]),
            _ => None,
        },
        cpu: parse(root, "/proc/stat", proc::stat)?.map(|stat| {
            let cpu = stat.total;
            [[cpu.busy(), cpu.idle, cpu.iowait].into_iter().sum(), cpu.steal]
        }),
    })
}

fn parse<T>(
    root: &Root,
    path: &str,
    parse: impl FnOnce(&str) -> Result<T, Malformed>,
) -> Result<Option<T>, ReadError> {
    match if_present(root.read(path))? {
        Some(text) => parse(&text).map(Some).map_err(|e| ReadError::malformed(path, e)),
        None => Ok(None),
    }
}

/// Whole disks that ever did anything, at the first look.
pub(super) fn disks(root: &Root) -> Result<Vec<DiskFacts>, ReadError> {
    let rows = parse(root, "/proc/diskstats", host_text::diskstats)?.unwrap_or_default();
    let mut disks = Vec::new();
    for (number, name, counters) in rows.into_iter().filter(|(_, _, c)| c.ios > 0) {
        let queue: BTreeMap<String, String> = ["rotational", "scheduler", "wbt_lat_usec"]
            .into_iter()
            .filter_map(|file| {
                let text = root.read(format!("/sys/block/{name}/queue/{file}")).ok()?;
                Some((file.to_owned(), host_text::selected_word(&text)))
            })
            .collect();
        // A partition has none.
        if !queue.is_empty() {
            disks.push(DiskFacts { name, number, queue, before: counters, after: counters });
        }
    }
    Ok(disks)
}

/// The same disks at the second look.
pub(super) fn update_disks(root: &Root, disks: &mut [DiskFacts]) -> Result<(), ReadError> {
    for (number, _, counters) in parse(root, "/proc/diskstats", host_text::diskstats)?.unwrap_or_default() {
        if let Some(disk) = disks.iter_mut().find(|d| d.number == number) {
            disk.after = counters;
        }
    }
    Ok(())
}

/// What does not change between the looks.
pub(super) fn settings(root: &Root, layout: &CgroupLayout, host: &mut MachineFacts) {
    for file in SETTINGS {
        if let Ok(text) = root.read(file) {
            host.settings.insert(file.to_owned(), host_text::selected_word(&text));
        }
    }
    for disk in &host.disks {
        for (file, text) in &disk.queue {
            host.settings.insert(format!("/sys/block/{}/queue/{file}", disk.name), text.clone());
        }
    }
    let mut put = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            host.settings.insert(key.to_owned(), value);
        }
    };
    let word = |text: Option<String>, at: usize| text?.split_ascii_whitespace().nth(at).map(str::to_owned);
    put("/proc/sys/fs/file-nr", word(root.read("/proc/sys/fs/file-nr").ok(), 0));
    let load = root.read("/proc/loadavg").ok().and_then(|t| proc::loadavg(&t).ok());
    put("/proc/loadavg threads", load.map(|l| l.nr_threads.to_string()));
    put(
        "/proc/key-users keys",
        root.read("/proc/key-users").ok().and_then(|text| most_keys(&text)).map(|n| n.to_string()),
    );
    let groups = root.read("/proc/cgroups").ok();
    let memory = groups.and_then(|t| t.lines().find(|l| l.starts_with("memory\t")).map(str::to_owned));
    put("/proc/cgroups memory", word(memory, 2));
    host.kernel = host.setting("/proc/sys/kernel/osrelease").and_then(kernel_version).unwrap_or_default();
    host.unified =
        layout.unified_dir(std::path::Path::new("")).map(|d| d.path().to_string_lossy().into_owned());
    let mountinfo = if root.is_host() { "/proc/self/mountinfo" } else { "/proc/1/mountinfo" };
    host.mounts = root.read(mountinfo).map(|t| host_text::mounts(&t)).unwrap_or_default();
    host.partitions = partitions(root, &host.disks);
    host.nodes = nodes(root, host);
    host.managers = running_managers(root);
}

/// The keys of the user that has most of those that count: `65534:  151 151/151 150/200 4200/20000`. The limit of root is another.
fn most_keys(text: &str) -> Option<u64> {
    let keys = |line: &str| {
        let (user, rest) = line.split_once(':')?;
        let (keys, _) = rest.split_ascii_whitespace().nth(2)?.split_once('/')?;
        (user.trim() != "0").then(|| keys.parse().ok()).flatten()
    };
    text.lines().filter_map(keys).max()
}

fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn partitions(root: &Root, disks: &[DiskFacts]) -> BTreeMap<DeviceNumber, DeviceNumber> {
    let rows = parse(root, "/proc/diskstats", host_text::diskstats).ok().flatten().unwrap_or_default();
    rows.into_iter()
        .filter_map(|(number, name, _)| {
            // sda1 begins like sda, and so does sdaa1: whose directory it is in says whose it is.
            let mut like = disks.iter().filter(|d| name.starts_with(&d.name) && name != d.name);
            let is_in = |d: &&DiskFacts| root.read(format!("/sys/block/{}/{name}/partition", d.name)).is_ok();
            Some((number, like.find(is_in)?.number))
        })
        .collect()
}

fn nodes(root: &Root, host: &MachineFacts) -> Vec<NumaNodeFacts> {
    let online: Option<CpuSet> = host.setting("/sys/devices/system/node/online").and_then(|t| t.parse().ok());
    let numbers: Vec<u32> = online.iter().flat_map(CpuSet::iter).collect();
    numbers
        .into_iter()
        .filter_map(|number| {
            let all =
                parse(root, &format!("/sys/devices/system/node/node{number}/meminfo"), host_text::meminfo)
                    .ok()??;
            let of = |key: &str| all.get(key).copied().unwrap_or_default();
            let available = of("MemFree").saturating_add(of("Inactive(file)"));
            Some(NumaNodeFacts { number, total: of("MemTotal"), available })
        })
        .filter(|node| node.total > Bytes::ZERO)
        .collect()
}

fn running_managers(root: &Root) -> Vec<String> {
    let mut found = Vec::new();
    for pid in pids(root) {
        let Ok(name) = root.read(format!("/proc/{pid}/comm")) else { continue };
        let name = name.trim_end();
        if KNOWN_MEMORY_MANAGERS.contains(&name) && !found.iter().any(|f| f == name) {
            found.push(name.to_owned());
        }
    }
    found
}

fn pids(root: &Root) -> Vec<i32> {
    let Ok(fd) = root.open("/proc", OFlags::RDONLY | OFlags::DIRECTORY) else { return Vec::new() };
    let Ok(dir) = rustix::fs::Dir::new(fd) else { return Vec::new() };
    dir.filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_linux::fixture::Fixture;

    #[test]
    fn keys_are_counted_by_user_and_roots_have_another_limit() {
        let text = "    0:   900 880/880 870/1000000 9000/25000000\n 1000:     5 5/5 4/200 90/20000\n65534:   151 151/151 150/200 9/20000\n";
        assert_eq!(most_keys(text), Some(150));
        assert_eq!(most_keys("    0:     9 9/9 9/1000000 9/25000000\nrubbish\n"), None);
    }

    #[test]
    fn a_partition_is_of_the_disk_whose_directory_it_is_in_whatever_others_are_called() {
        let rows =
            [(8, 0, "sda"), (8, 1, "sda1"), (65, 160, "sdaa"), (65, 161, "sdaa1"), (259, 1, "nvme0n1")]
                .into_iter()
                .chain([(259, 10, "nvme0n10"), (259, 11, "nvme0n10p1"), (252, 0, "sdax")])
                .map(|(major, minor, name)| format!("{major} {minor} {name} 9 0 8 0 0 0 0 0 0 0 0\n"));
        let files = ["sda/sda1", "sdaa/sdaa1", "nvme0n10/nvme0n10p1"]
            .map(|part| format!("-- sys/block/{part}/partition --\n1\n"))
            .into_iter()
            .chain(
                ["sda", "sdaa", "nvme0n1", "nvme0n10"]
                    .map(|disk| format!("-- sys/block/{disk}/queue/rotational --\n0\n")),
            );
        let host = Fixture::new(&format!(
            "-- proc/diskstats --\n{}{}",
            rows.collect::<String>(),
            files.collect::<String>()
        ))
        .unwrap();
        let root = Root::at(host.path()).unwrap();
        let found = partitions(&root, &disks(&root).unwrap());
        let found: Vec<String> = found.iter().map(|(part, whole)| format!("{part} of {whole}")).collect();
        assert_eq!(found, ["8:1 of 8:0", "65:161 of 65:160", "259:11 of 259:10"]);
    }
}
