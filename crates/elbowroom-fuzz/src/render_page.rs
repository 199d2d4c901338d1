use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::psi::{Pressure, Stall};
use elbowroom_types::id::DeviceNumber;
use elbowroom_types::io::IoStat;
use elbowroom_types::sample::MemoryStat;
use elbowroom_types::unit::{Bytes, Micros};
use elbowroom_view::pages::render;
use elbowroom_view::pages::snapshot::{ContainerSnapshot, CpuTimes, MAX_DISKS};
use elbowroom_view::pages::tree;
use elbowroom_view::pages::view_node::ViewNode;
use std::sync::LazyLock;

/// All files, with those of one CPU and one NUMA node.
static FILES: LazyLock<Vec<ViewNode>> = LazyLock::new(|| {
    let facts = ContainerSnapshot { present: CpuSet::first_n(1), ..ContainerSnapshot::EMPTY };
    let mut rest = vec![ViewNode::ROOT];
    let mut files = Vec::new();
    while let Some(node) = rest.pop() {
        rest.extend(tree::children(node, &facts).into_iter().map(|(_, node)| node));
        files.extend((!node.is_dir()).then_some(node));
    }
    files
});

/// Numbers from the front of the input; zero when it is used up.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn next(&mut self) -> u64 {
        let (head, rest) = self.0.split_at(self.0.len().min(8));
        self.0 = rest;
        head.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
    }

    fn bytes(&mut self) -> Bytes {
        Bytes(self.next())
    }

    fn micros(&mut self) -> Micros {
        Micros(self.next())
    }

    /// Up to 8 ranges of CPUs.
    fn cpus(&mut self) -> CpuSet {
        let ranges = self.next() % 8;
        (0..ranges)
            .flat_map(|_| {
                let n = self.next();
                let first = n as u32 % 1024;
                first..first + (n >> 32) as u32 % 64
            })
            .collect()
    }

    fn stall(&mut self) -> Stall {
        let (a, b) = (self.next(), self.next());
        let [avg10, avg60, avg300] = [a as u32, (a >> 32) as u32, b as u32];
        Stall { avg10, avg60, avg300, reserved: 0, total: Micros(b) }
    }

    fn facts(&mut self) -> ContainerSnapshot {
        let mut facts = ContainerSnapshot {
            online: self.cpus(),
            present: self.cpus(),
            possible: self.cpus(),
            nodes: self.cpus(),
            cpu_nodes: self.cpus(),
            mems: self.cpus(),
            page_size: self.bytes(),
            ..ContainerSnapshot::EMPTY
        };
        self.vary(&mut facts);
        facts
    }

    /// Everything that must not change a size.
    fn vary(&mut self, facts: &mut ContainerSnapshot) {
        facts.millicpu = self.next();
        facts.cpu_period = self.micros();
        facts.cpu_share = self.next();
        facts.memory = self.bytes();
        facts.memory_soft = self.next();
        facts.memory_high = self.next();
        facts.memory_usage = self.bytes();
        facts.memory_stat = MemoryStat {
            anon: self.bytes(),
            anon_thp: self.bytes(),
            file: self.bytes(),
            file_mapped: self.bytes(),
            file_dirty: self.bytes(),
            file_writeback: self.bytes(),
            shmem: self.bytes(),
            inactive_anon: self.bytes(),
            active_anon: self.bytes(),
            inactive_file: self.bytes(),
            active_file: self.bytes(),
            unevictable: self.bytes(),
            slab_reclaimable: self.bytes(),
            slab_unreclaimable: self.bytes(),
            kernel_stack: self.bytes(),
            pagetables: self.bytes(),
            swapcached: self.bytes(),
            swap: self.bytes(),
            pgfault: self.next(),
            pgmajfault: self.next(),
            pgpgin: self.next(),
            pgpgout: self.next(),
            workingset_refault_file: self.next(),
            workingset_refault_anon: self.next(),
            pswpin: self.next(),
            pswpout: self.next(),
        };
        facts.oom_kills = self.next();
        facts.swap_max = self.next();
        facts.started = self.micros();
        facts.load = [self.next(), self.next(), self.next()].map(|n| n as u32);
        [facts.nr_running, facts.nr_threads, facts.nr_processes] =
            [self.next(), self.next(), self.next()].map(|n| n as u32);
        facts.has_pressure = self.next() as u32 & 1;
        facts.pressure = [Pressure { some: self.stall(), full: self.stall() }; 3];
        facts.nr_disks = self.next() as u32;
        let io = IoStat {
            device: DeviceNumber::new(254, 0),
            rbytes: self.bytes(),
            wbytes: self.bytes(),
            dbytes: self.bytes(),
            rios: self.next(),
            wios: self.next(),
            dios: self.next(),
        };
        facts.io = [io; MAX_DISKS];
    }
}

/// Any file of the tree, from arbitrary host text and facts: exactly its size, ends with a newline, no panic, and a size
/// that does not depend on anything but the present and possible CPUs and NUMA nodes.
pub fn run(input: &[u8]) {
    // Two bytes say which file, one how much of the rest is numbers, one how much is the host's text of then and now.
    let [high, low, a, b, rest @ ..] = input else { return };
    let node = FILES[usize::from(u16::from_be_bytes([*high, *low])) % FILES.len()];
    let (numbers, host) = rest.split_at((usize::from(*a) * 8).min(rest.len()));
    let (then, now) = host.split_at((usize::from(*b) * 16).min(host.len()));
    let (then, now) = (String::from_utf8_lossy(then), String::from_utf8_lossy(now));
    let mut numbers = Numbers(numbers);
    let facts = numbers.facts();
    let times = vec![
        CpuTimes { user: numbers.micros(), system: numbers.micros(), idle: numbers.micros() };
        numbers.next() as usize % 1100
    ];
    let mut later = facts;
    numbers.vary(&mut later);

    let size = render::size(node, &facts, &then);
    assert_eq!(size, render::size(node, &later, &then), "{node:?}: size depends on what changes");
    for (facts, host) in [(&facts, &then), (&later, &then), (&later, &now)] {
        let page = render::render(node, facts, &times, host, numbers.micros(), size);
        assert_eq!(page.len() as u32, size, "{node:?}");
        assert!(page.last().is_none_or(|byte| *byte == b'\n'), "{node:?}");
    }
}
