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

/// What is mounted into containers of a host whose limits are in cgroup v2, or in v1. A path that a container lacks
/// (`/proc/pressure` of an old kernel, `/sys/devices/system/node` of one without NUMA) has nothing to be mounted on.
pub fn surfaces(v2: bool) -> Vec<Surface> {
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
    let cgroup: &[(Node, &str, &str)] = if v2 {
        &[
            (Node::CpuMax, "", "cpu.max"),
            (Node::MemoryHigh, "", "memory.high"),
            (Node::MemoryMax, "", "memory.max"),
        ]
    } else {
        &[
            (Node::CpuCfsPeriodUs, "cpu", "cpu.cfs_period_us"),
            (Node::CpuCfsQuotaUs, "cpu", "cpu.cfs_quota_us"),
            (Node::CpuShares, "cpu", "cpu.shares"),
            (Node::MemoryLimitInBytes, "memory", "memory.limit_in_bytes"),
            (Node::MemorySoftLimitInBytes, "memory", "memory.soft_limit_in_bytes"),
        ]
    };
    let fixed = fixed.into_iter().map(|(node, path)| Surface { node, kind: Kind::Fixed(path) });
    let cgroup = cgroup
        .iter()
        .map(|&(node, controller, file)| Surface { node, kind: Kind::Cgroup { controller, file } });
    fixed.chain(cgroup).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surfaces_are_files_of_the_tree_under_their_own_names() {
        for surface in surfaces(false).into_iter().chain(surfaces(true)) {
            match surface.kind {
                Kind::Fixed(path) => assert_eq!(format!("/{}", surface.node.path()), path),
                Kind::Cgroup { file, .. } => assert_eq!(surface.node.name(), file),
            }
        }
    }
}
