//! `/sys/devices/system/node` (drivers/base/node.c).
//!
//! | file | shown |
//! |---|---|
//! | `online` `possible` `has_normal_memory` `has_generic_initiator` | host, the nodes of the machine |
//! | `has_cpu` | host, those that have a possible CPU of the view, where known |
//! | `has_memory` | host, those the container may take memory from, where known |
//! | `nodeN/cpulist` `nodeN/cpumap` | host, those of its CPUs that are online in the view |
//! | `nodeN/distance` | host, byte for byte |
//! | `nodeN/meminfo` | the lines of `/proc/meminfo`, below |
//! | `nodeN/vmstat` | the lines of `/proc/vmstat`, below |
//! | `nodeN/numastat` | 0: the host's |
//! | `nodeN/cpuM` | a link to each of its CPUs that are online in the view |
//!
//! cgroups do not keep a container's limit per node. On a machine of one node its files say what `/proc/meminfo` says. On others,
//! every node the container may use shows a part of `E` and of the usage, as large as its part of these nodes' memory, so that a
//! program that adds up nodes gets `E`. Nothing is shown of the usage in detail. A node that its `cpuset.mems` leaves out shows
//! no memory.

use super::meminfo::{host_bounds, line_value, number_width, push};
use super::memory::{HostMemoryBounds, MemoryAccount};
use super::snapshot::ContainerSnapshot;
use super::text::{digits, value_of_key, zeroed};
use super::vmstat::lines;
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::sample::MemoryStat;
use elbowroom_types::unit::Bytes;

/// `nodeN/meminfo`, from the host's text.
pub(super) fn meminfo(facts: &ContainerSnapshot, node: u32, host: &str) -> String {
    let prefix = format!("Node {node} ");
    let own = Bytes::kib(value_of_key(host, &format!("{prefix}MemTotal:")).unwrap_or(0));
    let memory = MemoryAccount::new(&for_numa_node(facts, node, own), &host_bounds(host, &prefix));
    let width = number_width(host, &prefix);
    let mut out = String::with_capacity(host.len());
    for line in host.lines() {
        push(&mut out, line, &prefix, width, |key| line_value(key, &memory));
    }
    out
}

/// `nodeN/vmstat`, from the host's text.
pub(super) fn vmstat(facts: &ContainerSnapshot, node: u32, host: &str) -> String {
    // The text does not say how much memory the node has: its part is taken to be as large as any other's.
    let nodes = facts.mems.count().max(1);
    let facts = for_numa_node(facts, node, Bytes(facts.mems_total.get() / u64::from(nodes)));
    let free =
        value_of_key(host, "nr_free_pages").map_or(u64::MAX, |n| n.saturating_mul(facts.page_size_bytes()));
    let bounds = HostMemoryBounds { free, ..HostMemoryBounds::UNKNOWN };
    lines(host, &facts, &MemoryAccount::new(&facts, &bounds))
}

/// `nodeN/numastat`, from the host's text.
pub(super) fn numastat(host: &str) -> String {
    host.lines().map(|line| zeroed(line) + "\n").collect()
}

/// A list of nodes: the host's that are in `known`, where that is not empty.
pub(super) fn list(host: &str, known: &CpuSet) -> String {
    let nodes: CpuSet = host.parse().unwrap_or_default();
    format!("{}\n", if known.is_empty() { nodes } else { nodes.intersection(known) })
}

/// How long a list of any of the host's nodes can be, with its newline.
pub(super) fn list_size(host: &str) -> usize {
    let nodes: CpuSet = host.parse().unwrap_or_default();
    nodes.iter().map(|node| digits(u64::from(node)) + 1).sum::<usize>().max(1)
}

/// What of a container's memory one node can tell, which has `own` of the memory of all that the container may use.
fn for_numa_node(facts: &ContainerSnapshot, node: u32, own: Bytes) -> ContainerSnapshot {
    if facts.shown_nodes().count() <= 1 {
        return *facts;
    }
    let usable = facts.mems.is_empty() || facts.mems.contains(node);
    let (own, all) = if usable { (own, facts.mems_total) } else { (Bytes::ZERO, Bytes(1)) };
    let part = |whole: Bytes| match u128::from(whole.get()) * u128::from(own.get()) {
        _ if all == Bytes::ZERO => whole,
        product => Bytes(u64::try_from(product / u128::from(all.get())).unwrap_or(u64::MAX)),
    };
    ContainerSnapshot {
        memory: part(facts.memory),
        memory_usage: part(facts.memory_usage),
        memory_stat: MemoryStat::EMPTY,
        nr_disks: 0,
        ..*facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "Node 1 MemTotal:        5466324 kB\nNode 1 MemFree:         5154892 kB\n\
        Node 1 MemUsed:          311432 kB\nNode 1 AnonPages:         23208 kB\nNode 1 HugePages_Total:     9\n";

    fn facts(nodes: &str, mems: &str) -> ContainerSnapshot {
        ContainerSnapshot {
            nodes: nodes.parse().unwrap(),
            mems: mems.parse().unwrap(),
            memory: Bytes::gib(1),
            memory_usage: Bytes::mib(256),
            memory_stat: MemoryStat { anon: Bytes::mib(200), ..MemoryStat::EMPTY },
            ..ContainerSnapshot::EMPTY
        }
    }

    fn numbers(facts: &ContainerSnapshot) -> Vec<u64> {
        let page = meminfo(facts, 1, HOST);
        page.lines()
            .map(|line| super::super::text::first_number(line.split_once(':').unwrap().1).unwrap())
            .collect()
    }

    #[test]
    fn the_only_node_says_what_proc_meminfo_says() {
        assert_eq!(numbers(&facts("1", "")), [1 << 20, 768 << 10, 256 << 10, 200 << 10, 0]);
    }

    #[test]
    fn one_of_many_nodes_says_its_part() {
        // A quarter of the memory of the container's nodes is this one's.
        let facts = |mems| ContainerSnapshot { mems_total: Bytes::kib(4 * 5_466_324), ..facts("0-1", mems) };
        for mems in ["", "0-1", "1"] {
            assert_eq!(numbers(&facts(mems)), [256 << 10, 192 << 10, 64 << 10, 0, 0]);
        }
        assert_eq!(numbers(&facts("0")), [0; 5]);
    }

    #[test]
    fn nodes_add_up_to_the_view() {
        let host =
            |node: u32, kib: u64| format!("Node {node} MemTotal: {kib} kB\nNode {node} MemFree: {kib} kB\n");
        let nodes = [(0, 1_009_276u64), (1, 1_027_012), (3, 333)];
        let all = nodes.iter().map(|(_, kib)| kib).sum();
        let facts = ContainerSnapshot { mems_total: Bytes::kib(all), ..facts("0-1,3", "") };
        let total = |(node, kib): (u32, u64)| {
            value_of_key(&meminfo(&facts, node, &host(node, kib)), &format!("Node {node} MemTotal:"))
        };
        let sum: u64 = nodes.into_iter().filter_map(total).sum();
        assert!((1 << 20) - nodes.len() as u64 <= sum && sum <= 1 << 20, "{sum}");
    }

    #[test]
    fn where_memory_of_nodes_is_not_known_each_may_have_all() {
        assert_eq!(numbers(&facts("0-1", "")), [1 << 20, 768 << 10, 256 << 10, 0, 0]);
        assert_eq!(numbers(&facts("0-1", "0")), [0; 5]);
    }

    #[test]
    fn lines_of_another_node_are_left_out_and_length_is_constant() {
        assert_eq!(meminfo(&facts("0-1", ""), 0, HOST), "");
        assert_eq!(meminfo(&facts("0-1", "0"), 1, HOST).len(), meminfo(&facts("1", ""), 1, HOST).len());
        assert!(meminfo(&facts("1", ""), 1, HOST).starts_with("Node 1 MemTotal:        1048576 kB\n"));
    }

    #[test]
    fn nodes_that_are_not_known_are_the_hosts() {
        assert_eq!(list("0-3\n", &CpuSet::EMPTY), "0-3\n");
        assert_eq!(list("0-3\n", &CpuSet::first_n(2)), "0-1\n");
        assert_eq!(numastat("numa_hit 4711\nnuma_miss 3\n"), "numa_hit 0\nnuma_miss 0\n");
    }
}
