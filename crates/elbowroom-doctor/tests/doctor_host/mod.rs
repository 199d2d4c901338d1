//! A healthy host with one Docker container, `web`, to make ill by one fact after the other.

use elbowroom_doctor::checks::{
    AppliedWrite, CHECKS, CgroupCounters, CgroupFacts, ControllerVersion, DiskCounters, DiskFacts, FixedHeap,
    HierarchyController, HostFacts, MountFacts, NumaNodeFacts, run,
};
use elbowroom_types::container::{ContainerEngine, ContainerIdentity};
use elbowroom_types::finding::Severity;
use elbowroom_types::id::DeviceNumber;
use elbowroom_types::io::IoStat;
use elbowroom_types::label::ContainerLabels;
use elbowroom_types::psi::Pressure;
use elbowroom_types::sample::MemoryStat;
use elbowroom_types::unit::{Bytes, Micros};

/// Between the looks.
pub const WAIT: Micros = Micros::secs(1);
const SDA: DeviceNumber = DeviceNumber { major: 8, minor: 0 };
const WEB: usize = 2;

pub struct Sim {
    pub facts: HostFacts,
    version: ControllerVersion,
}

impl Sim {
    /// 16 GiB, 12 of them available; `/docker/c1` uses 64 MiB of 1 GiB.
    pub fn new(version: ControllerVersion) -> Self {
        let mut facts = HostFacts { elapsed: WAIT, ..HostFacts::default() };
        facts.host.kernel = (6, 12);
        facts.host.unified = Some("/sys/fs/cgroup".into());
        for c in [
            HierarchyController::Cpu,
            HierarchyController::Cpuset,
            HierarchyController::Memory,
            HierarchyController::Io,
            HierarchyController::Pids,
        ] {
            facts.host.versions.insert(c, version);
        }
        for looks in [&mut facts.host.before, &mut facts.host.after] {
            looks.pressure = Some([Pressure::EMPTY; 3]);
            let gib = |n| Bytes::gib(n);
            let lines = [
                ("MemTotal", gib(16)),
                ("MemAvailable", gib(12)),
                ("MemFree", gib(4)),
                ("SwapTotal", gib(1)),
            ];
            looks.meminfo.extend(lines.map(|(key, value)| (key.to_owned(), value)));
            for key in ["pgsteal_kswapd", "allocstall_normal", "compact_stall", "oom_kill", "zswpwb"] {
                looks.vmstat.insert(key.into(), 1_000);
            }
        }
        let mut host = Self { facts, version };
        host.group("/", None);
        host.group("/docker", Some(0));
        host.group("/docker/c1", Some(1));
        host.contain(WEB, "web");
        host.limit(1 << 30);
        host.usage(64 << 20);
        host
    }

    pub fn group(&mut self, path: &str, parent: Option<usize>) {
        let mut group = CgroupFacts { path: path.into(), parent, ..CgroupFacts::default() };
        let v2 = self.version == ControllerVersion::V2;
        let names = [
            (HierarchyController::Cpu, "cpu"),
            (HierarchyController::Cpuset, "cpuset"),
            (HierarchyController::Memory, "memory"),
            (HierarchyController::Io, "blkio"),
            (HierarchyController::Pids, "pids"),
            (HierarchyController::Unified, "unified"),
        ];
        for (controller, name) in names {
            let below = if v2 { String::new() } else { format!("/{name}") };
            let dir = format!("/sys/fs/cgroup{below}{path}");
            group.dirs.insert(controller, dir.trim_end_matches('/').to_owned());
        }
        let files: &[(&str, &str)] = match (v2, parent) {
            (_, None) => &[],
            (true, _) => &[
                ("memory.max", "max"),
                ("memory.high", "max"),
                ("memory.low", "0"),
                ("memory.min", "0"),
                ("memory.swap.max", "max"),
                ("memory.oom.group", "0"),
                ("cpu.weight", "100"),
                ("cpu.max", "max 100000"),
            ],
            (false, _) => &[
                ("memory.limit_in_bytes", "9223372036854771712"),
                ("memory.soft_limit_in_bytes", "9223372036854771712"),
                ("memory.memsw.limit_in_bytes", "9223372036854771712"),
                ("memory.swappiness", "60"),
                ("cpu.shares", "1024"),
            ],
        };
        group.files.extend(files.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        for counters in [&mut group.before, &mut group.after] {
            *counters = CgroupCounters {
                usage: Some(Bytes::ZERO),
                memory: Some(MemoryStat::EMPTY),
                pressure: Some([Pressure::EMPTY; 3]),
                ..CgroupCounters::default()
            };
            let keys: &[&str] = if v2 { &["max", "high", "oom", "oom_kill"] } else { &["max", "oom_kill"] };
            for key in keys.iter().copied() {
                counters.events.insert(key.into(), 0);
            }
        }
        self.facts.groups.push(group);
    }

    pub fn contain(&mut self, at: usize, name: &str) {
        let id = format!("{name}{}", "0".repeat(60));
        self.facts.groups[at].container = Some(ContainerIdentity {
            id,
            name: Some(name.into()),
            engine: ContainerEngine::Docker,
            pod: None,
            labels: ContainerLabels::default(),
        });
    }

    fn web(&mut self) -> &mut CgroupFacts {
        &mut self.facts.groups[WEB]
    }

    fn now(&mut self) -> &mut MemoryStat {
        self.web().after.memory.as_mut().expect("set above")
    }

    /// A second container beside the first.
    pub fn second(&mut self) {
        self.group("/docker/c2", Some(1));
        self.contain(3, "db");
    }

    /// Puts the container into another cgroup, `/NAME`, by an engine that nothing is asked of.
    pub fn inside(&mut self, name: &str) {
        let around = &mut self.facts.groups[1];
        around.path = format!("/{name}");
        around.dirs.insert(HierarchyController::Memory, format!("/sys/fs/cgroup/{name}"));
    }

    pub fn set(&mut self, file: &str, text: &str) {
        self.web().files.insert(file.into(), text.into());
    }

    /// The agent has a value of its own in a file, before which it said what is told of it.
    pub fn hold(&mut self, file: &str) {
        self.web().held.insert(file.into());
    }

    pub fn set_all(&mut self, file: &str, text: &str) {
        for group in self.facts.groups.iter_mut().filter(|g| g.container.is_some()) {
            group.files.insert(file.into(), text.into());
        }
    }

    pub fn set_around(&mut self, file: &str, text: &str) {
        self.facts.groups[1].files.insert(file.into(), text.into());
    }

    pub fn limit(&mut self, bytes: u64) {
        let file = if self.version == ControllerVersion::V2 { "memory.max" } else { "memory.limit_in_bytes" };
        self.set(file, &bytes.to_string());
    }

    pub fn usage(&mut self, bytes: u64) {
        self.web().after.usage = Some(Bytes(bytes));
    }

    pub fn anon(&mut self, bytes: u64) {
        self.now().anon = Bytes(bytes);
    }

    pub fn cache(&mut self, bytes: u64) {
        self.now().inactive_file = Bytes(bytes);
        self.now().file = Bytes(bytes);
    }

    pub fn active_file(&mut self, bytes: u64) {
        self.now().active_file = Bytes(bytes);
    }

    pub fn shmem(&mut self, bytes: u64) {
        self.now().shmem = Bytes(bytes);
    }

    pub fn dirty(&mut self, bytes: u64) {
        self.now().file_dirty = Bytes(bytes);
    }

    pub fn swap(&mut self, bytes: u64) {
        self.now().swap = Bytes(bytes);
    }

    pub fn refaults(&mut self, pages: u64) {
        self.now().workingset_refault_file = pages;
    }

    pub fn swap_ins(&mut self, pages: u64) {
        self.now().workingset_refault_anon = pages;
    }

    /// Its limit was hit `n` times between the looks.
    pub fn hits(&mut self, n: u64) {
        self.event("max", n);
    }

    /// An event of memory, between the looks.
    pub fn event(&mut self, key: &str, n: u64) {
        self.web().after.events.insert(key.into(), n);
    }

    /// An event of memory of the cgroup around it, between the looks.
    pub fn event_around(&mut self, key: &str, n: u64) {
        self.facts.groups[1].after.events.insert(key.into(), n);
    }

    /// An event of memory, long ago.
    pub fn ever(&mut self, key: &str, n: u64) {
        self.web().before.events.insert(key.into(), n);
        self.web().after.events.insert(key.into(), n);
    }

    /// The container waits for CPU (0), disk (1) or memory (2), in hundredths of a percent of the time.
    pub fn waits(&mut self, what: usize, part: u32) {
        let pressure = &mut self.web().after.pressure.as_mut().expect("set above")[what].some;
        pressure.avg10 = part;
        pressure.total = Micros(u64::from(part) * 100);
    }

    /// All of it waits.
    pub fn full(&mut self, what: usize, part: u32) {
        self.web().after.pressure.as_mut().expect("set above")[what].full.avg10 = part;
    }

    /// All tasks wait for disks.
    pub fn host_waits(&mut self, part: u32) {
        let io = &mut self.facts.host.after.pressure.as_mut().expect("set above")[1];
        (io.some.avg10, io.full.avg10) = (part, part);
    }

    /// Some tasks wait for memory, in whatever cgroup.
    pub fn host_waits_for_memory(&mut self, part: u32) {
        self.facts.host.after.pressure.as_mut().expect("set above")[2].some.avg10 = part;
    }

    pub fn available(&mut self, bytes: u64) {
        self.meminfo("MemAvailable", bytes);
    }

    pub fn meminfo(&mut self, key: &str, bytes: u64) {
        self.facts.host.after.meminfo.insert(key.into(), Bytes(bytes));
    }

    /// A counter grew between the looks.
    pub fn vmstat(&mut self, key: &str, by: u64) {
        self.facts.host.after.vmstat.insert(key.into(), 1_000 + by);
    }

    pub fn host(&mut self, file: &str, text: &str) {
        self.facts.host.settings.insert(file.into(), text.into());
    }

    /// Memory of the whole machine that is accounted.
    pub fn root(&mut self, bytes: u64) {
        let root = &mut self.facts.groups[0];
        root.after.usage = Some(Bytes(bytes));
        root.after.memory = Some(MemoryStat { file: Bytes(bytes), ..MemoryStat::EMPTY });
    }

    pub fn dying(&mut self, n: &str) {
        self.facts.groups[0].files.insert("cgroup.stat nr_dying_descendants".into(), n.into());
    }

    pub fn heap(&mut self, argument: &str, size: u64) {
        self.web().heaps = vec![FixedHeap { pid: 7, argument: argument.into(), size: Bytes(size) }];
    }

    /// A JVM that reads the kernel's own list of controllers.
    pub fn jvm_without_view(&mut self, pid: i32) {
        self.web().jvms_without_view = vec![pid];
    }

    /// Nodes of 8 GiB: number, and percent available.
    pub fn nodes(&mut self, nodes: &[(u32, u64)]) {
        let node = |&(number, percent): &(u32, u64)| NumaNodeFacts {
            number,
            total: Bytes::gib(8),
            available: Bytes((8 << 30) / 100 * percent),
        };
        self.facts.host.nodes = nodes.iter().map(node).collect();
    }

    /// Between the looks: periods, those it was stopped in, and for how long.
    pub fn throttled(&mut self, periods: u64, stopped: u64, usec: u64) {
        for (key, n) in [("nr_periods", periods), ("nr_throttled", stopped), ("throttled_usec", usec)] {
            self.web().before.cpu.insert(key.into(), 0);
            self.web().after.cpu.insert(key.into(), n);
        }
    }

    pub fn io_limit(&mut self, file: &str, device: &str, rest: &str) {
        let device = device.parse().expect("a device number");
        self.web().io_limits.push((file.into(), device, rest.into()));
    }

    pub fn mount(&mut self, fs: &str, options: &str) {
        self.facts.host.mounts =
            vec![MountFacts { point: "/".into(), fs: fs.into(), number: SDA, options: options.into() }];
    }

    pub fn partition(&mut self) {
        self.facts.host.partitions.insert(DeviceNumber { major: 8, minor: 1 }, SDA);
    }

    /// One disk, idle between the looks, that took 1 ms for each of a million requests.
    pub fn disk(&mut self, scheduler: &str, rotational: &str) {
        let queue = [("scheduler", scheduler), ("rotational", rotational), ("wbt_lat_usec", "0")];
        for (file, text) in queue {
            self.host(&format!("/sys/block/sda/queue/{file}"), text);
        }
        let queue = queue.map(|(k, v)| (k.to_owned(), v.to_owned())).into_iter().collect();
        let before = self.facts.host.disks.first().map(|d| (d.before, d.after));
        let idle = DiskCounters { ios: 1_000_000, ticks: Micros::secs(1_000), ..DiskCounters::default() };
        let (before, after) = before.unwrap_or((idle, idle));
        self.facts.host.disks = vec![DiskFacts { name: "sda".into(), number: SDA, queue, before, after }];
    }

    /// A second disk, with a mean of `queue` requests under way.
    pub fn other_disk(&mut self, queue: f64) {
        let sda = &self.facts.host.disks[0];
        let mut sdb =
            DiskFacts { name: "sdb".into(), number: DeviceNumber { major: 8, minor: 16 }, ..sda.clone() };
        sdb.after.time_in_queue = Micros(sdb.before.time_in_queue.get() + (queue * 1e6) as u64);
        self.facts.host.disks.push(sdb);
    }

    /// Between the looks: requests, milliseconds each, mean number under way.
    pub fn busy_disk(&mut self, ios: u64, ms: u64, queue: f64) {
        let disk = &mut self.facts.host.disks[0];
        disk.after.ios = disk.before.ios + ios;
        disk.after.ticks = Micros(disk.before.ticks.get() + ios * ms * 1_000);
        disk.after.time_in_queue = Micros(disk.before.time_in_queue.get() + (queue * 1e6) as u64);
    }

    /// Every container read `bytes` between the looks.
    pub fn transfer(&mut self, bytes: u64) {
        for group in self.facts.groups.iter_mut().filter(|g| g.container.is_some()) {
            group.after.io = vec![IoStat { device: SDA, rbytes: Bytes(bytes), ..IoStat::EMPTY }];
        }
    }

    /// A fix of ours, and what its file says now.
    pub fn applied(&mut self, to: &str, now: Option<&str>) {
        let now = now.map(str::to_owned);
        self.facts.host.ledger =
            vec![AppliedWrite { id: "1".into(), file: "/proc/sys/vm/swappiness".into(), to: to.into(), now }];
    }
}

/// What a check says of a host: how bad, and the first of its fixes' commands.
pub fn says(check: &str, host: &Sim) -> Option<(Severity, Option<String>)> {
    let check = CHECKS.iter().find(|c| c.id == check).unwrap_or_else(|| panic!("no check {check}"));
    let found = run(check, &host.facts);
    for finding in &found {
        assert!(finding.sentence.ends_with('.'), "{}: {}", check.id, finding.sentence);
        assert!(!finding.evidence.is_empty(), "{}: no evidence", check.id);
        assert!(
            finding.fix.is_some()
                || finding.advice.is_some()
                || finding.severity != Severity::Warning
                || ["high-throttles", "at-memory-limit", "tmpfs-fills-limit"].contains(&check.id),
            "{}: what to do?",
            check.id
        );
    }
    let first = found.first()?;
    Some((first.severity, first.fix.as_ref().and_then(|f| f.commands.first().cloned())))
}
