//! Captured hosts (`tests/hosts`) and the containers the page tests put on them.
#![allow(clippy::disallowed_methods, reason = "tests read fixtures; the crate reads nothing")]

use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::id::DeviceNumber;
use elbowroom_types::io::IoStat;
use elbowroom_types::psi::{Pressure, Stall};
use elbowroom_types::sample::MemoryStat;
use elbowroom_types::unit::{Bytes, Micros};
use elbowroom_view::pages::snapshot::{ContainerSnapshot, CpuTimes};
use elbowroom_view::pages::view_node::ViewNode;
use elbowroom_view::pages::{render, tree};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The files of a host by their path below `/`.
pub(crate) type Host = BTreeMap<String, String>;

/// The directory of test material at the root of the repository.
pub(crate) fn material(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(path)
}

/// Reads a captured host: files under `proc`, and an archive of small files (`-- path` before each) in `sys.txt`.
pub(crate) fn host(name: &str) -> Host {
    let dir = material("hosts").join(name);
    let read =
        |path: &Path| std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut files = Host::new();
    for sub in ["proc", "proc/pressure"] {
        for entry in std::fs::read_dir(dir.join(sub)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let name = path.strip_prefix(&dir).unwrap().to_str().unwrap().to_owned();
                files.insert(name, read(&path));
            }
        }
    }
    let archive = read(&dir.join("sys.txt"));
    for file in archive.split("-- ").skip(1) {
        let (name, text) = file.split_once('\n').unwrap();
        files.insert(name.to_owned(), text.to_owned());
    }
    files
}

/// All hosts.
pub(crate) fn hosts() -> Vec<Host> {
    ["v1-2cpu-6.18", "v2-16cpu-6.12"].map(host).into()
}

/// A container of one CPU and 512 MiB on a machine of two, with nothing to swap to.
pub(crate) fn small() -> (ContainerSnapshot, Vec<CpuTimes>) {
    let facts = ContainerSnapshot {
        online: "0".parse().unwrap(),
        present: "0-1".parse().unwrap(),
        memory: Bytes::mib(512),
        memory_usage: Bytes::mib(200),
        memory_stat: memory_stat(),
        oom_kills: 4,
        swap_max: 0,
        started: Micros::secs(900),
        taken: Micros::secs(1_000),
        load: [147, 12, 3],
        nr_running: 2,
        nr_threads: 17,
        nr_processes: 42,
        ..ContainerSnapshot::EMPTY
    };
    (facts, times(2))
}

/// A container of 3 CPUs, which may become 8, where its threads run on all but the first four of 16, with a gigabyte, swap, a disk and
/// pressure of its own.
pub(crate) fn middle() -> (ContainerSnapshot, Vec<CpuTimes>) {
    let mut facts = ContainerSnapshot {
        online: "4-6".parse().unwrap(),
        present: "4-11".parse().unwrap(),
        possible: "0-15".parse().unwrap(),
        millicpu: 2_500,
        cpu_share: 100,
        memory: Bytes::gib(1),
        memory_soft: 512 << 20,
        memory_high: 2 << 30,
        swap_max: 64 << 20,
        nr_disks: 1,
        has_pressure: 1,
        nodes: CpuSet::first_n(1),
        cpu_nodes: CpuSet::first_n(1),
        ..small().0
    };
    facts.started = Micros::secs(1);
    facts.taken = Micros::secs(3);
    facts.io[0] = IoStat {
        device: DeviceNumber::new(254, 0),
        rbytes: Bytes::mib(8),
        wbytes: Bytes::mib(2),
        rios: 700,
        wios: 90,
        ..IoStat::EMPTY
    };
    let some = Stall { avg10: 123, avg60: 45, avg300: 6, reserved: 0, total: Micros(78_901) };
    facts.pressure[0] = Pressure { some, full: Stall::EMPTY };
    let before = facts.present.iter().next().unwrap_or(0) as usize;
    let all = std::iter::repeat_n(CpuTimes::default(), before).chain(times(8));
    (facts, all.collect())
}

/// What a container of 200 MiB may be made of.
pub(crate) fn memory_stat() -> MemoryStat {
    MemoryStat {
        anon: Bytes::mib(90),
        anon_thp: Bytes::mib(62),
        file: Bytes::mib(80),
        file_mapped: Bytes::mib(16),
        file_dirty: Bytes::kib(400),
        file_writeback: Bytes::kib(44),
        shmem: Bytes::mib(3),
        inactive_anon: Bytes::mib(20),
        active_anon: Bytes::mib(73),
        inactive_file: Bytes::mib(50),
        active_file: Bytes::mib(27),
        slab_reclaimable: Bytes::mib(12),
        slab_unreclaimable: Bytes::mib(5),
        kernel_stack: Bytes::kib(272),
        pagetables: Bytes::kib(900),
        swap: Bytes::mib(3),
        pgfault: 71_234,
        pgmajfault: 56,
        workingset_refault_file: 789,
        pswpin: 21,
        pswpout: 834,
        ..MemoryStat::EMPTY
    }
}

/// CPUs of which every one worked a little longer than the one before.
pub(crate) fn times(n: u64) -> Vec<CpuTimes> {
    let cpu = |i| CpuTimes {
        user: Micros::secs(10 + i),
        system: Micros::millis(2_340 + i),
        idle: Micros::secs(88 - i),
    };
    (0..n).map(cpu).collect()
}

/// The files that a server of the tree would show on a host: those whose host path exists there.
pub(crate) fn files(host: &Host, facts: &ContainerSnapshot) -> Vec<ViewNode> {
    let there = |path: String| {
        let below = path.clone() + "/";
        host.contains_key(&path) || host.keys().any(|file| file.starts_with(&below))
    };
    let mut found = Vec::new();
    let mut rest = vec![ViewNode::ROOT];
    while let Some(dir) = rest.pop() {
        for (_, node) in tree::children(dir, facts).into_iter().rev() {
            match (tree::host_path(node).is_none_or(there), node.is_dir()) {
                (false, _) => {}
                (true, true) => rest.push(node),
                (true, false) => found.push(node),
            }
        }
    }
    found.sort_by_key(|node| node.path());
    found
}

/// The node of a path.
pub(crate) fn find(path: &str, facts: &ContainerSnapshot) -> ViewNode {
    let step =
        |dir, name: &str| tree::lookup(dir, name, facts).unwrap_or_else(|| panic!("no {name} in {dir:?}"));
    path.split('/').fold(ViewNode::ROOT, step)
}

/// The host's text of a node, empty where it needs none.
pub(crate) fn text_of(host: &Host, node: ViewNode) -> String {
    tree::host_path(node).and_then(|path| host.get(&path).cloned()).unwrap_or_default()
}

/// A page, in the size it has on this host.
pub(crate) fn page(path: &str, host: &Host, facts: &ContainerSnapshot, times: &[CpuTimes]) -> String {
    let node = find(path, facts);
    let text = text_of(host, node);
    let size = render::size(node, facts, &text);
    let page = render::render(node, facts, times, &text, facts.taken, size);
    assert_eq!(page.len() as u32, size, "{path}");
    String::from_utf8(page).unwrap()
}

/// The first number after `key` at the start of a line: a parser of its own, which shares nothing with the pages'.
pub(crate) fn number(page: &str, key: &str) -> u64 {
    let line = page.lines().find(|line| line.split([' ', ':']).next() == Some(key));
    let line = line.unwrap_or_else(|| panic!("no {key} in\n{page}"));
    line[key.len()..].trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
}
