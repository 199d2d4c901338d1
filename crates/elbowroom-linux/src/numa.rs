//! The machine's NUMA nodes, from `/sys/devices/system/node` (`drivers/base/node.c`).

use crate::root::Root;
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::unit::Bytes;
use std::path::Path;

/// Nodes and their CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numa {
    /// Numbers of the nodes that are online; empty on a kernel without NUMA.
    pub nodes: CpuSet,
    cpus: Vec<(u32, CpuSet)>,
    /// By node number; empty on a machine of one node.
    memory: Vec<Bytes>,
}

impl Numa {
    /// Reads the nodes. What cannot be read is not there.
    pub fn read(root: &Root) -> Self {
        let dir = Path::new("/sys/devices/system/node");
        let list = |file: &str| root.read(dir.join(file)).ok()?.parse::<CpuSet>().ok();
        let nodes = list("online").unwrap_or_default();
        let cpus = nodes.iter().filter_map(|n| Some((n, list(&format!("node{n}/cpulist"))?))).collect();
        Self { nodes, cpus, memory: memory_of_nodes(root, &nodes) }
    }

    /// The memory of these nodes, of all where none are named; zero where that is not known, and on a machine of one node.
    pub fn memory_of(&self, mems: Option<CpuSet>) -> Bytes {
        let nodes = mems.filter(|mems| !mems.is_empty()).unwrap_or(self.nodes);
        let memory = nodes.iter().filter_map(|node| self.memory.get(node as usize));
        memory.copied().fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// The nodes that have one of these CPUs.
    pub fn nodes_of(&self, cpus: &CpuSet) -> CpuSet {
        self.cpus.iter().filter(|(_, of)| !of.intersection(cpus).is_empty()).map(|(node, _)| *node).collect()
    }
}

/// How much memory each node has, by its number; empty on a machine of one node.
pub(crate) fn node_memory(root: &Root) -> Vec<Bytes> {
    Numa::read(root).memory
}

fn memory_of_nodes(root: &Root, nodes: &CpuSet) -> Vec<Bytes> {
    let total = |node: u32| {
        let text = root.read(format!("/sys/devices/system/node/node{node}/meminfo")).ok()?;
        let line = text.lines().find_map(|line| line.split_once(" MemTotal:"))?.1;
        line.trim().strip_suffix(" kB")?.parse().ok().map(Bytes::kib)
    };
    let last = nodes.iter().last().filter(|_| nodes.count() > 1);
    last.map_or_else(Vec::new, |last| (0..=last).map(|node| total(node).unwrap_or_default()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn cpus_tell_their_nodes() {
        let host = fixture::Fixture::new(
            "-- sys/devices/system/node/online --\n0-1\n\
             -- sys/devices/system/node/node0/cpulist --\n0-3\n\
             -- sys/devices/system/node/node1/cpulist --\n4-7\n",
        )
        .unwrap();
        let numa = Numa::read(&Root::at(host.path()).unwrap());
        assert_eq!(numa.nodes.to_string(), "0-1");
        assert_eq!(numa.nodes_of(&"2-3".parse().unwrap()).to_string(), "0");
        assert_eq!(numa.nodes_of(&"3-4".parse().unwrap()).to_string(), "0-1");
    }

    #[test]
    fn nodes_tell_their_memory_where_there_are_several() {
        let of = |online: &str| {
            let host = fixture::Fixture::new(&format!(
                "-- sys/devices/system/node/online --\n{online}\n\
                 -- sys/devices/system/node/node0/meminfo --\nNode 0 MemTotal:         2048 kB\nNode 0 MemFree: 1 kB\n\
                 -- sys/devices/system/node/node2/meminfo --\nNode 2 MemTotal:         1024 kB\n"
            ));
            Numa::read(&Root::at(host.unwrap().path()).unwrap())
        };
        assert_eq!(of("0,2").memory, [Bytes::mib(2), Bytes::ZERO, Bytes::mib(1)]);
        assert_eq!(of("0,2").memory_of(None), Bytes::mib(3));
        assert_eq!(of("0,2").memory_of(Some("2".parse().unwrap())), Bytes::mib(1));
        assert_eq!(of("0").memory_of(None), Bytes::ZERO);
    }

    #[test]
    fn a_kernel_without_numa_has_no_nodes() {
        let host = fixture::Fixture::new("").unwrap();
        let root = Root::at(host.path()).unwrap();
        assert_eq!(Numa::read(&root), Numa::default());
        assert!(node_memory(&root).is_empty());
    }
}
