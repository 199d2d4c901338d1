//! What is mounted where: the files of a view over the files of a container.

use crate::pages::view_node::ViewNode;

/// A node and where in a container it is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewMount {
    /// The file or directory of the view.
    pub node: ViewNode,
    /// Where it goes.
    pub target: ViewMountTarget,
}

/// Where a surface goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewMountTarget {
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
pub fn view_mounts(cpu_in_v2: bool, memory_in_v2: bool) -> Vec<ViewMount> {
    let fixed = [
        (ViewNode::Cgroups, "/proc/cgroups"),
        (ViewNode::Cpuinfo, "/proc/cpuinfo"),
        (ViewNode::Diskstats, "/proc/diskstats"),
        (ViewNode::Loadavg, "/proc/loadavg"),
        (ViewNode::Meminfo, "/proc/meminfo"),
        (ViewNode::PressureCpu, "/proc/pressure/cpu"),
        (ViewNode::PressureIo, "/proc/pressure/io"),
        (ViewNode::PressureMemory, "/proc/pressure/memory"),
        (ViewNode::Stat, "/proc/stat"),
        (ViewNode::Swaps, "/proc/swaps"),
        (ViewNode::Uptime, "/proc/uptime"),
        (ViewNode::Vmstat, "/proc/vmstat"),
        (ViewNode::Zoneinfo, "/proc/zoneinfo"),
        (ViewNode::Cpus, "/sys/devices/system/cpu"),
        (ViewNode::NumaNodes, "/sys/devices/system/node"),
    ];
    let cpu: &[(ViewNode, &str, &str)] = match cpu_in_v2 {
        true => &[(ViewNode::CpuMax, "", "cpu.max")],
        false => &[
            (ViewNode::CpuCfsPeriodUs, "cpu", "cpu.cfs_period_us"),
            (ViewNode::CpuCfsQuotaUs, "cpu", "cpu.cfs_quota_us"),
            (ViewNode::CpuShares, "cpu", "cpu.shares"),
        ],
    };
    let memory: &[(ViewNode, &str, &str)] = match memory_in_v2 {
        true => &[(ViewNode::MemoryHigh, "", "memory.high"), (ViewNode::MemoryMax, "", "memory.max")],
        false => &[
            (ViewNode::MemoryLimitInBytes, "memory", "memory.limit_in_bytes"),
            (ViewNode::MemorySoftLimitInBytes, "memory", "memory.soft_limit_in_bytes"),
        ],
    };
    let fixed =
        fixed.into_iter().map(|(node, path)| ViewMount { node, target: ViewMountTarget::Fixed(path) });
    let cgroup = cpu.iter().chain(memory).map(|&(node, controller, file)| ViewMount {
        node,
        target: ViewMountTarget::Cgroup { controller, file },
    });
    fixed.chain(cgroup).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_controllers_files_are_those_of_its_version() {
        let limits = |cpu, memory| -> Vec<&str> {
            let file = |surface: ViewMount| match surface.target {
                ViewMountTarget::Cgroup { file, .. } => Some(file),
                ViewMountTarget::Fixed(_) => None,
            };
            view_mounts(cpu, memory).into_iter().filter_map(file).collect()
        };
        assert_eq!(
            limits(false, true),
            ["cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.shares", "memory.high", "memory.max"]
        );
        assert_eq!(limits(true, false), ["cpu.max", "memory.limit_in_bytes", "memory.soft_limit_in_bytes"]);
    }

    #[test]
    fn to_look_up_what_is_mounted_asks_for_no_fixed_file() {
        let mounted = [view_mounts(false, false), view_mounts(true, true)].concat();
        let nodes = mounted.iter().map(|mount| mount.node).chain([ViewNode::ViewPage]);
        assert_eq!(nodes.filter(|node| node.is_fixed_file()).collect::<Vec<_>>(), []);
    }

    #[test]
    fn surfaces_are_files_of_the_tree_under_their_own_names() {
        for surface in view_mounts(false, false).into_iter().chain(view_mounts(true, true)) {
            match surface.target {
                ViewMountTarget::Fixed(path) => assert_eq!(format!("/{}", surface.node.path()), path),
                ViewMountTarget::Cgroup { file, .. } => assert_eq!(surface.node.name(), file),
            }
        }
    }
}
