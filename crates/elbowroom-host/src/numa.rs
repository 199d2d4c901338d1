//! The machine's NUMA nodes, from `/sys/devices/system/node` (`drivers/base/node.c`).

use crate::root::Root;
use elbowroom_core::cpuset::CpuSet;
use std::path::Path;

/// Nodes and their CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numa {
    /// Numbers of the nodes that are online; empty on a kernel without NUMA.
    pub nodes: CpuSet,
    cpus: Vec<(u32, CpuSet)>,
}

impl Numa {
    /// Reads the nodes. What cannot be read is not there.
    pub fn read(root: &Root) -> Self {
        let dir = Path::new("/sys/devices/system/node");
        let list = |file: &str| root.read(dir.join(file)).ok()?.parse::<CpuSet>().ok();
        let nodes = list("online").unwrap_or_default();
        let cpus = nodes.iter().filter_map(|n| Some((n, list(&format!("node{n}/cpulist"))?))).collect();
        Self { nodes, cpus }
    }

    /// The nodes that have one of these CPUs.
    pub fn of(&self, cpus: &CpuSet) -> CpuSet {
        self.cpus.iter().filter(|(_, of)| !of.and(cpus).is_empty()).map(|(node, _)| *node).collect()
    }
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
        assert_eq!(numa.of(&"2-3".parse().unwrap()).to_string(), "0");
        assert_eq!(numa.of(&"3-4".parse().unwrap()).to_string(), "0-1");
    }

    #[test]
    fn a_kernel_without_numa_has_no_nodes() {
        let host = fixture::Fixture::new("").unwrap();
        assert_eq!(Numa::read(&Root::at(host.path()).unwrap()), Numa::default());
    }
}
