//! What is mounted where: the files of a view over the files of a container.

use super::tree::Node;

/// A node and where in a container it is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surface {
    /// The file or directory of the view.
    pub node: Node,
    /// Where it goes.
    pub kind: Kind,
}

/// Where a surface goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// At this path.
    Fixed(&'static str),
    /// On a file of the container's own cgroup.
    Cgroup {
        /// The v1 hierarchy; empty for v2.
        controller: &'static str,
        /// The file.
        file: &'static str,
    },
}

/// What is mounted into containers of a host whose limits of CPU, and of memory, are in cgroup v2, or in v1. A path that a container
/// lacks (`/proc/pressure` of an old kernel, `/sys/devices/system/node` of one without NUMA) has nothing to be mounted on.
pub fn surfaces(cpu_in_v2: bool, memory_in_v2: bool) -> Vec<Surface> {
    let fixed = [
        (Node::Cpuinfo, "/proc/cpuinfo"),
        (Node::Diskstats, "/proc/diskstats"),
        (Node::Loadavg, "/proc/loadavg"),
        (Node::Meminfo, "/proc/meminfo"),
        (Node::PressureCpu, "/proc/pressure/cpu"),
        (Node::PressureIo, "/proc/pressure/io"),
        (Node::PressureMemory, "/proc/pressure/memory"),
        (Node::Stat, "/proc/stat"),
        (Node::Swaps, "/proc/swaps"),
        (Node::Uptime, "/proc/uptime"),
        (Node::Vmstat, "/proc/vmstat"),
        (Node::Zoneinfo, "/proc/zoneinfo"),
        (Node::Cpus, "/sys/devices/system/cpu"),
        (Node::NumaNodes, "/sys/devices/system/node"),
    ];
    let cpu: &[(Node, &str, &str)] = match cpu_in_v2 {
        true => &[(Node::CpuMax, "", "cpu.max")],
        false => &[
            (Node::CpuCfsPeriodUs, "cpu", "cpu.cfs_period_us"),
            (Node::CpuCfsQuotaUs, "cpu", "cpu.cfs_quota_us"),
            (Node::CpuShares, "cpu", "cpu.shares"),
        ],
    };
    let memory: &[(Node, &str, &str)] = match memory_in_v2 {
        true => &[(Node::MemoryHigh, "", "memory.high"), (Node::MemoryMax, "", "memory.max")],
        false => &[
            (Node::MemoryLimitInBytes, "memory", "memory.limit_in_bytes"),
            (Node::MemorySoftLimitInBytes, "memory", "memory.soft_limit_in_bytes"),
        ],
    };
    let fixed = fixed.into_iter().map(|(node, path)| Surface { node, kind: Kind::Fixed(path) });
    let cgroup = cpu
        .iter()
        .chain(memory)
        .map(|&(node, controller, file)| Surface { node, kind: Kind::Cgroup { controller, file } });
    fixed.chain(cgroup).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_controllers_files_are_those_of_its_version() {
        let limits = |cpu, memory| -> Vec<&str> {
            let file = |surface: Surface| match surface.kind {
                Kind::Cgroup { file, .. } => Some(file),
                Kind::Fixed(_) => None,
            };
            surfaces(cpu, memory).into_iter().filter_map(file).collect()
        };
        assert_eq!(
            limits(false, true),
            ["cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.shares", "memory.high", "memory.max"]
        );
        assert_eq!(limits(true, false), ["cpu.max", "memory.limit_in_bytes", "memory.soft_limit_in_bytes"]);
    }

    #[test]
    fn surfaces_are_files_of_the_tree_under_their_own_names() {
        for surface in surfaces(false, false).into_iter().chain(surfaces(true, true)) {
            match surface.kind {
                Kind::Fixed(path) => assert_eq!(format!("/{}", surface.node.path()), path),
                Kind::Cgroup { file, .. } => assert_eq!(surface.node.name(), file),
            }
        }
    }
}
