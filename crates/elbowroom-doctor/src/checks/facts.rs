//! What checks read: one host at two instants. Settings are the kernel's own text, so that evidence and the value to go
//! back to are literally what the file said; counters are numbers.

use elbowroom_types::container::{ContainerIdentity, display_name};
use elbowroom_types::id::DeviceNumber;
use elbowroom_types::io::IoStat;
use elbowroom_types::psi::Pressure;
use elbowroom_types::sample::MemoryStat;
use elbowroom_types::unit::{Bytes, Limit, Micros};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A cgroup version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControllerVersion {
    /// cgroup.
    V1,
    /// cgroup2.
    V2,
}

/// The controllers whose files checks read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HierarchyController {
    /// `cpu`, with `cpu.stat`.
    Cpu,
    /// `cpuset`.
    Cpuset,
    /// `memory`.
    Memory,
    /// v1 `blkio`, v2 `io`.
    Io,
    /// `pids`.
    Pids,
    /// The v2 directory whatever controllers it has: pressure files and `cgroup.*`.
    Unified,
}

/// What ZFS's cache gives back, beside the lines of `/proc/meminfo`, which does not have it.
pub(crate) const ZFS_CACHE: &str = "evictable cache of ZFS";

/// A host, seen twice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostFacts {
    /// Time between the two looks.
    pub elapsed: Micros,
    /// The machine.
    pub host: MachineFacts,
    /// Every cgroup that matters, parents first; the first is the root.
    pub groups: Vec<CgroupFacts>,
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// `major.minor` of the kernel's release.
    pub kernel: (u32, u32),
    /// The version of each controller's hierarchy; absent where none is mounted.
    pub versions: BTreeMap<HierarchyController, ControllerVersion>,
    /// Where the v2 hierarchy is mounted.
    pub unified: Option<String>,
    /// Files of one short text, by path: sysctls, switches below /sys, `/proc/cgroups`.
    pub settings: BTreeMap<String, String>,
    /// Number of cgroup directories of the memory hierarchy.
    pub memory_directories: u64,
    /// At the first look.
    pub before: MachineCounters,
    /// At the second.
    pub after: MachineCounters,
    /// Whole disks, by name.
    pub disks: Vec<DiskFacts>,
    /// Device numbers of partitions, with the number of the disk each is a part of.
    pub partitions: BTreeMap<DeviceNumber, DeviceNumber>,
    /// Mounted file systems on block devices.
    pub mounts: Vec<MountFacts>,
    /// Memory nodes.
    pub nodes: Vec<NumaNodeFacts>,
    /// Programs at work that write the same files or kill on pressure, by their process names.
    pub managers: Vec<String>,
    /// Fixes of ours that are in force, or were.
    pub ledger: Vec<AppliedWrite>,
}

/// Counters of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineCounters {
    /// `/proc/meminfo`, the lines in kB.
    pub meminfo: BTreeMap<String, Bytes>,
    /// `/proc/vmstat`.
    pub vmstat: BTreeMap<String, u64>,
    /// `/proc/pressure/{cpu,io,memory}`; absent where the kernel does not account pressure.
    pub pressure: Option<[Pressure; 3]>,
    /// The sums over all CPUs in `/proc/stat`: all time, and `steal`.
    #[serde(default)]
    pub cpu: Option<[Micros; 2]>,
}

/// A whole disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskFacts {
    /// `sda`.
    pub name: String,
    /// Its device number.
    pub number: DeviceNumber,
    /// Short files below `/sys/block/NAME/queue`: `rotational`, `scheduler`, `wbt_lat_usec`.
    pub queue: BTreeMap<String, String>,
    /// At the first look.
    pub before: DiskCounters,
    /// At the second.
    pub after: DiskCounters,
}

/// `/proc/diskstats`, since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskCounters {
    /// Requests done, reads and writes.
    pub ios: u64,
    /// Bytes moved, reads and writes.
    pub bytes: Bytes,
    /// Time that requests took, summed over them; the kernel's clocks of reads and of writes begin anew after 2^32 ms each.
    pub ticks: Micros,
    /// Time times requests under way; begins anew after 2^32 ms, too.
    pub time_in_queue: Micros,
}

/// A mounted file system on a block device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountFacts {
    /// Where.
    pub point: String,
    /// `ext4`.
    pub fs: String,
    /// On what.
    pub number: DeviceNumber,
    /// Mount options and those of the file system, separated by commas.
    pub options: String,
}

/// One memory node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNodeFacts {
    /// Its number.
    pub number: u32,
    /// `MemTotal`.
    pub total: Bytes,
    /// `MemFree` with page cache that is not in use.
    pub available: Bytes,
}

/// A write of ours, as the journal of fixes has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedWrite {
    /// The fix it belongs to.
    pub id: String,
    /// The file.
    pub file: String,
    /// What we wrote.
    pub to: String,
    /// What the file says now; absent when it is gone.
    pub now: Option<String>,
}

/// One cgroup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CgroupFacts {
    /// Path below the hierarchy's root, with a slash in front.
    pub path: String,
    /// Its directory's inode, which tells it from a later one of the same path.
    #[serde(default)]
    pub inode: Option<u64>,
    /// Place of the cgroup above it.
    pub parent: Option<usize>,
    /// Set when this cgroup is a container.
    pub container: Option<ContainerIdentity>,
    /// Its directory for each controller that has it.
    pub dirs: BTreeMap<HierarchyController, String>,
    /// Settings by file name (`memory.max`), as the kernel says them.
    pub files: BTreeMap<String, String>,
    /// Those of `files` that are in a cgroup below, in which all of this one is (crun's), with its name.
    #[serde(default)]
    pub below: BTreeMap<String, String>,
    /// The files that a lease of the agent is in: what is told of them is what they said before it, and will again.
    #[serde(default)]
    pub held: BTreeSet<String>,
    /// Rows of v2 `io.max` and v1 `blkio.throttle.*`: the file, the device, the rest of the row.
    pub io_limits: Vec<(String, DeviceNumber, String)>,
    /// At the first look.
    pub before: CgroupCounters,
    /// At the second.
    pub after: CgroupCounters,
    /// Programs with a heap of a size that was given to them.
    pub heaps: Vec<FixedHeap>,
    /// JVMs that read the kernel's own `/proc/cgroups`, no view's, by their PID.
    #[serde(default)]
    pub jvms_without_view: Vec<i32>,
}

/// What a cgroup has used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CgroupCounters {
    /// v1 `memory.usage_in_bytes`, v2 `memory.current`.
    pub usage: Option<Bytes>,
    /// `memory.stat`, with what is below.
    pub memory: Option<MemoryStat>,
    /// Keys of v2 `memory.stat` that [`MemoryStat`] leaves out: `pgscan_direct`, `pgsteal_kswapd`, `zswap`, `sock`.
    pub more: BTreeMap<String, u64>,
    /// `memory.events`: `low`, `high`, `max`, `oom`, `oom_kill`. v1 `memory.failcnt` is `max`, `oom_kill` of
    /// `memory.oom_control` is `oom_kill`.
    pub events: BTreeMap<String, u64>,
    /// `cpu.stat`: `nr_periods`, `nr_throttled`, `throttled_usec` (v1 nanoseconds are microseconds here).
    pub cpu: BTreeMap<String, u64>,
    /// The same of the cgroup below, in which all of this one is (crun's), with its name.
    #[serde(default)]
    pub cpu_below: Option<(String, BTreeMap<String, u64>)>,
    /// `cpu.pressure`, `io.pressure`, `memory.pressure`.
    pub pressure: Option<[Pressure; 3]>,
    /// Disk transfer.
    pub io: Vec<IoStat>,
}

/// A program whose heap may grow to a size that its command line fixes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixedHeap {
    /// Its process.
    pub pid: i32,
    /// The argument: `-Xmx4g`.
    pub argument: String,
    /// The size.
    pub size: Bytes,
}

impl HostFacts {
    /// The containers.
    pub fn containers(&self) -> impl Iterator<Item = &CgroupFacts> {
        self.groups.iter().filter(|g| g.container.is_some())
    }

    /// The cgroups around `group`, from the nearest to the one below the root.
    pub fn ancestors<'a>(&'a self, group: &'a CgroupFacts) -> impl Iterator<Item = &'a CgroupFacts> {
        std::iter::successors(group.parent.and_then(|at| self.groups.get(at)), |g| {
            g.parent.and_then(|at| self.groups.get(at))
        })
        .filter(|g| g.parent.is_some())
    }

    /// `group` and the cgroups around it, from the inside out.
    pub fn self_and_ancestors<'a>(&'a self, group: &'a CgroupFacts) -> impl Iterator<Item = &'a CgroupFacts> {
        std::iter::once(group).chain(self.ancestors(group))
    }

    /// The cgroups directly below `group`.
    pub fn children<'a>(&'a self, group: &'a CgroupFacts) -> impl Iterator<Item = &'a CgroupFacts> {
        let at = self.groups.iter().position(|g| std::ptr::eq(g, group));
        self.groups.iter().filter(move |g| g.parent.is_some() && g.parent == at)
    }

    /// The root of the hierarchies.
    pub fn root(&self) -> Option<&CgroupFacts> {
        self.groups.first().filter(|g| g.parent.is_none())
    }

    /// Growth per second; nothing when no time passed or the counter went backwards.
    pub fn per_second(&self, before: u64, after: u64) -> f64 {
        match self.elapsed.get() {
            0 => 0.0,
            us => after.saturating_sub(before) as f64 * 1e6 / us as f64,
        }
    }

    /// A page; every architecture that runs containers at large counts these in 4 KiB or states bytes.
    pub(crate) const fn page_bytes(n: u64) -> Bytes {
        Bytes(n.saturating_mul(4096))
    }

    /// Which version `controller` has on this host.
    pub fn version(&self, controller: HierarchyController) -> Option<ControllerVersion> {
        self.host.versions.get(&controller).copied()
    }
}

impl MachineFacts {
    /// A line of `/proc/meminfo` at the second look.
    pub fn meminfo(&self, key: &str) -> Option<Bytes> {
        self.after.meminfo.get(key).copied()
    }

    /// `MemTotal`.
    pub fn mem_total(&self) -> Bytes {
        self.meminfo("MemTotal").unwrap_or_default()
    }

    /// `MemAvailable`, or `MemFree` before Linux 3.14; and what ZFS's cache gives back.
    pub fn mem_available(&self) -> Bytes {
        let kernel = self.meminfo("MemAvailable").or_else(|| self.meminfo("MemFree")).unwrap_or_default();
        kernel.saturating_add(self.meminfo(ZFS_CACHE).unwrap_or_default())
    }

    /// Where that is read, as evidence names it.
    pub(crate) fn available_file(&self) -> &'static str {
        match self.meminfo(ZFS_CACHE) {
            Some(_) => "/proc/meminfo MemAvailable and ZFS's cache",
            None => "/proc/meminfo MemAvailable",
        }
    }

    /// A counter of `/proc/vmstat` at both looks.
    pub fn vmstat(&self, key: &str) -> Option<(u64, u64)> {
        Some((*self.before.vmstat.get(key)?, *self.after.vmstat.get(key)?))
    }

    /// A setting's text, without its newline.
    pub fn setting(&self, file: &str) -> Option<&str> {
        self.settings.get(file).map(String::as_str)
    }

    /// A setting's number.
    pub fn number(&self, file: &str) -> Option<u64> {
        self.setting(file)?.parse().ok()
    }
}

impl CgroupFacts {
    /// Its name, if it is a container.
    pub(crate) fn container_name(&self) -> Option<String> {
        self.container.as_ref().map(|_| self.name())
    }

    /// What people call it.
    pub fn name(&self) -> String {
        match &self.container {
            Some(c) => match (&c.pod, &c.name) {
                (Some(pod), Some(name)) => match &pod.name {
                    Some(pod) => format!("{pod}/{name}"),
                    None => name.clone(),
                },
                (_, Some(name)) => name.clone(),
                (_, None) => display_name(c),
            },
            None => self.path.clone(),
        }
    }

    /// A setting's text.
    pub fn text(&self, file: &str) -> Option<&str> {
        self.files.get(file).map(String::as_str)
    }

    /// A setting's number; absent also where it is `max`.
    pub fn number(&self, file: &str) -> Option<u64> {
        self.text(file)?.parse().ok()
    }

    /// Whether what is in force in a file is the agent's, not what its text here says.
    pub(crate) fn is_leased(&self, file: &str) -> bool {
        self.held.contains(file)
    }

    /// Whether limits of the agent's on disks are in force.
    pub(crate) fn has_leased_io_limits(&self) -> bool {
        self.held.iter().any(|file| file == "io.max" || file.starts_with("blkio.throttle."))
    }

    /// A limit: `max`, -1 and v1's largest numbers are none (`PAGE_COUNTER_MAX`, include/linux/page_counter.h).
    pub fn limit(&self, file: &str) -> Option<Limit<Bytes>> {
        const NO_LIMIT: u64 = i64::MAX as u64 & !0xffff;
        match self.text(file)? {
            "max" | "-1" => Some(Limit::Max),
            text => match text.parse().ok()? {
                n if n >= NO_LIMIT => Some(Limit::Max),
                n => Some(Limit::At(Bytes(n))),
            },
        }
    }

    /// The file that holds its hard limit.
    pub(crate) fn hard_limit_file(&self) -> &'static str {
        if self.files.contains_key("memory.limit_in_bytes") { "memory.limit_in_bytes" } else { "memory.max" }
    }

    /// The file that says what it uses.
    pub(crate) fn usage_file(&self) -> &'static str {
        if self.files.contains_key("memory.limit_in_bytes") {
            "memory.usage_in_bytes"
        } else {
            "memory.current"
        }
    }

    /// The file that counts how often its limit was reached, with the key where it has any.
    pub(crate) fn limit_hits_file(&self) -> &'static str {
        if self.files.contains_key("memory.limit_in_bytes") { "memory.failcnt" } else { "memory.events max" }
    }

    /// Its own hard limit, where it has one.
    pub(crate) fn hard_limit(&self) -> Option<Bytes> {
        self.limit(self.hard_limit_file()).and_then(Limit::value)
    }

    /// The whole path of a file of a controller.
    pub fn file(&self, controller: HierarchyController, file: &str) -> String {
        match self.dirs.get(&controller) {
            Some(dir) => match self.below.get(file) {
                Some(below) => format!("{dir}/{below}/{file}"),
                None => format!("{dir}/{file}"),
            },
            None => file.to_owned(),
        }
    }

    /// Memory in use at the second look.
    pub fn usage(&self) -> Bytes {
        self.after.usage.unwrap_or_default()
    }

    /// `memory.stat` at the second look.
    pub fn stat(&self) -> MemoryStat {
        self.after.memory.unwrap_or_default()
    }

    /// `memory.stat` at the first look.
    pub(crate) fn stat_before(&self) -> MemoryStat {
        self.before.memory.unwrap_or_default()
    }

    /// How often an event of memory happened between the looks, and ever.
    pub fn event_counts(&self, key: &str) -> Option<(u64, u64)> {
        let after = *self.after.events.get(key)?;
        let before = self.before.events.get(key).copied().unwrap_or(after);
        Some((after.saturating_sub(before), after))
    }
}
