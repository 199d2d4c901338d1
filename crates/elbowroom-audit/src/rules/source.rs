//! Where programs learn about CPUs and memory, and whether the numbers there are the host's or the container's.

use serde::{Deserialize, Serialize};

/// What a program asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// How many CPUs.
    Cpu,
    /// How much memory.
    Memory,
}

/// A place where a program learns about CPUs or memory: a system call or a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ResourceSource {
    /// The call: the CPUs a thread may run on. A cpuset shows here, a quota does not.
    #[serde(rename = "sched_getaffinity")]
    Affinity,
    /// The call: the machine's memory and load.
    #[serde(rename = "sysinfo")]
    Sysinfo,
    /// glibc's `sysconf(_SC_NPROCESSORS_ONLN)`.
    #[serde(rename = "/sys/devices/system/cpu/online")]
    SysOnline,
    /// glibc's `sysconf(_SC_NPROCESSORS_CONF)`.
    #[serde(rename = "/sys/devices/system/cpu/possible")]
    SysPossible,
    /// CPUs that are plugged in.
    #[serde(rename = "/sys/devices/system/cpu/present")]
    SysPresent,
    /// A directory for each CPU, with its topology and caches.
    #[serde(rename = "/sys/devices/system/cpu/cpuN")]
    SysCpus,
    /// NUMA nodes.
    #[serde(rename = "/sys/devices/system/node")]
    SysNodes,
    /// One record for each CPU.
    #[serde(rename = "/proc/cpuinfo")]
    Cpuinfo,
    /// One line for each CPU.
    #[serde(rename = "/proc/stat")]
    Stat,
    /// Memory of the machine.
    #[serde(rename = "/proc/meminfo")]
    Meminfo,
    /// Load of the machine.
    #[serde(rename = "/proc/loadavg")]
    Loadavg,
    /// The kernel's controllers.
    #[serde(rename = "/proc/cgroups")]
    Cgroups,
    /// The v1 CPU quota and its period.
    #[serde(rename = "cpu.cfs_quota_us")]
    QuotaV1,
    /// v1 CPU shares.
    #[serde(rename = "cpu.shares")]
    SharesV1,
    /// The v2 CPU quota and its period.
    #[serde(rename = "cpu.max")]
    CpuMax,
    /// The v1 memory limit.
    #[serde(rename = "memory.limit_in_bytes")]
    LimitV1,
    /// The v1 soft limit.
    #[serde(rename = "memory.soft_limit_in_bytes")]
    SoftLimitV1,
    /// The v2 memory limit.
    #[serde(rename = "memory.max")]
    MemoryMax,
    /// Where v2 begins to throttle.
    #[serde(rename = "memory.high")]
    MemoryHigh,
    /// Stall time for want of memory, of the container itself.
    #[serde(rename = "memory.pressure")]
    MemoryPressure,
}

/// Which cgroup files a container has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CgroupInterface {
    /// v1, also on hybrid hosts.
    V1,
    /// v2.
    V2,
}

/// Whose numbers a source gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceScope {
    /// The machine's.
    Host,
    /// The container's.
    Container,
    /// It is not there.
    Absent,
}

impl ResourceSource {
    /// Every source.
    pub const ALL: [Self; 20] = [
        Self::Affinity,
        Self::Sysinfo,
        Self::SysOnline,
        Self::SysPossible,
        Self::SysPresent,
        Self::SysCpus,
        Self::SysNodes,
        Self::Cpuinfo,
        Self::Stat,
        Self::Meminfo,
        Self::Loadavg,
        Self::Cgroups,
        Self::QuotaV1,
        Self::SharesV1,
        Self::CpuMax,
        Self::LimitV1,
        Self::SoftLimitV1,
        Self::MemoryMax,
        Self::MemoryHigh,
        Self::MemoryPressure,
    ];

    /// The call's name, the file's path, or the name of a file of the container's cgroup.
    pub fn name(self) -> &'static str {
        match self {
            Self::Affinity => "sched_getaffinity",
            Self::Sysinfo => "sysinfo",
            Self::SysOnline => "/sys/devices/system/cpu/online",
            Self::SysPossible => "/sys/devices/system/cpu/possible",
            Self::SysPresent => "/sys/devices/system/cpu/present",
            Self::SysCpus => "/sys/devices/system/cpu/cpuN",
            Self::SysNodes => "/sys/devices/system/node",
            Self::Cpuinfo => "/proc/cpuinfo",
            Self::Stat => "/proc/stat",
            Self::Meminfo => "/proc/meminfo",
            Self::Loadavg => "/proc/loadavg",
            Self::Cgroups => "/proc/cgroups",
            Self::QuotaV1 => "cpu.cfs_quota_us",
            Self::SharesV1 => "cpu.shares",
            Self::CpuMax => "cpu.max",
            Self::LimitV1 => "memory.limit_in_bytes",
            Self::SoftLimitV1 => "memory.soft_limit_in_bytes",
            Self::MemoryMax => "memory.max",
            Self::MemoryHigh => "memory.high",
            Self::MemoryPressure => "memory.pressure",
        }
    }

    /// The cgroup version whose file this is; `None` for what is there under both.
    pub fn cgroup(self) -> Option<CgroupInterface> {
        match self {
            Self::QuotaV1 | Self::SharesV1 | Self::LimitV1 | Self::SoftLimitV1 => Some(CgroupInterface::V1),
            Self::CpuMax | Self::MemoryMax | Self::MemoryHigh => Some(CgroupInterface::V2),
            // runc puts containers of hybrid hosts into a v2 hierarchy too, and the pressure files are there.
            _ => None,
        }
    }

    /// Whose numbers a container sees here: under limits alone, or with Elbowroom's views mounted
    /// (`pages::view_mounts`). No file system reaches a system call.
    pub fn scope(self, cgroup: CgroupInterface, views: bool) -> SourceScope {
        match self {
            _ if self.cgroup().is_some_and(|version| version != cgroup) => SourceScope::Absent,
            // The container's own file, view or not.
            Self::QuotaV1
            | Self::SharesV1
            | Self::CpuMax
            | Self::LimitV1
            | Self::SoftLimitV1
            | Self::MemoryMax
            | Self::MemoryHigh
            | Self::MemoryPressure => SourceScope::Container,
            Self::Affinity | Self::Sysinfo => SourceScope::Host,
            _ if views => SourceScope::Container,
            _ => SourceScope::Host,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_view::pages::view_mounts::{ViewMountTarget, view_mounts};

    #[test]
    fn what_views_are_said_to_reach_is_what_is_mounted() {
        for cgroup in [CgroupInterface::V1, CgroupInterface::V2] {
            let v2 = cgroup == CgroupInterface::V2;
            let mounted: Vec<&str> = view_mounts(v2, v2)
                .into_iter()
                .map(|surface| match surface.target {
                    ViewMountTarget::Fixed(path) => path,
                    ViewMountTarget::Cgroup { file, .. } => file,
                })
                .collect();
            for source in ResourceSource::ALL {
                let reached = source.scope(cgroup, true) == SourceScope::Container;
                let is_mounted = mounted
                    .iter()
                    .any(|path| source.name() == *path || source.name().starts_with(&format!("{path}/")));
                // Pressure of a container's own cgroup needs no view.
                assert_eq!(
                    reached && source != ResourceSource::MemoryPressure,
                    is_mounted,
                    "{source:?} {cgroup:?}"
                );
            }
        }
    }

    #[test]
    fn a_source_is_written_as_it_is_called() {
        for source in ResourceSource::ALL {
            assert_eq!(serde_json::to_value(source).unwrap(), source.name());
        }
    }

    #[test]
    fn limits_alone_show_in_cgroup_files_only() {
        assert_eq!(ResourceSource::SysOnline.scope(CgroupInterface::V2, false), SourceScope::Host);
        assert_eq!(ResourceSource::CpuMax.scope(CgroupInterface::V2, false), SourceScope::Container);
        assert_eq!(ResourceSource::CpuMax.scope(CgroupInterface::V1, true), SourceScope::Absent);
        assert_eq!(ResourceSource::Affinity.scope(CgroupInterface::V2, true), SourceScope::Host);
    }
}
