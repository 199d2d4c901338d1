//! Which files there are: the tables behind [`super::tree`].

use crate::pages::view_node::{CpuDir, ViewNode};

/// How a file in a table becomes its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileFormat {
    /// The host's text.
    Text,
    /// The host's value, in this many bytes: it may change to a longer one.
    Value(u32),
    /// The host's mask of CPUs, those of it that are possible.
    Mask,
    /// The host's list of CPUs, those of it that are possible.
    List,
    /// The same, each number by itself with a blank between them.
    Words,
    /// A symbolic link to this.
    Link(&'static str),
    /// `cpuN/online`.
    Online,
    /// `nodeN/cpumap` and `nodeN/cpulist`: those that are online.
    OnlineMask,
    OnlineList,
    /// `nodeN/meminfo`, `nodeN/vmstat`, `nodeN/numastat`.
    NodeMeminfo,
    NodeVmstat,
    NodeNumastat,
}

/// Every node of which a container has one: itself, its parent, its name. Its place here, counted from one, is its number:
/// append only.
pub(super) const FIXED_NODES: &[(ViewNode, ViewNode, &str)] = {
    use ViewNode::*;
    &[
        (Root, Root, ""),
        (Proc, Root, "proc"),
        (Cpuinfo, Proc, "cpuinfo"),
        (Diskstats, Proc, "diskstats"),
        (Loadavg, Proc, "loadavg"),
        (Meminfo, Proc, "meminfo"),
        (Pressure, Proc, "pressure"),
        (PressureCpu, Pressure, "cpu"),
        (PressureIo, Pressure, "io"),
        (PressureMemory, Pressure, "memory"),
        (Stat, Proc, "stat"),
        (Swaps, Proc, "swaps"),
        (Uptime, Proc, "uptime"),
        (Vmstat, Proc, "vmstat"),
        (Zoneinfo, Proc, "zoneinfo"),
        (Sys, Root, "sys"),
        (SysDevices, Sys, "devices"),
        (SysDevicesSystem, SysDevices, "system"),
        (Cpus, SysDevicesSystem, "cpu"),
        (CpuEnabled, Cpus, "enabled"),
        (CpuIsolated, Cpus, "isolated"),
        (CpuKernelMax, Cpus, "kernel_max"),
        (CpuModalias, Cpus, "modalias"),
        (CpuOffline, Cpus, "offline"),
        (CpuOnline, Cpus, "online"),
        (CpuPossible, Cpus, "possible"),
        (CpuPresent, Cpus, "present"),
        (CpuUevent, Cpus, "uevent"),
        (CpufreqAll, Cpus, "cpufreq"),
        (CpufreqBoost, CpufreqAll, "boost"),
        (Smt, Cpus, "smt"),
        (SmtActive, Smt, "active"),
        (SmtControl, Smt, "control"),
        (Vulnerabilities, Cpus, "vulnerabilities"),
        (NumaNodes, SysDevicesSystem, "node"),
        (NumaHasCpu, NumaNodes, "has_cpu"),
        (NumaHasGenericInitiator, NumaNodes, "has_generic_initiator"),
        (NumaHasMemory, NumaNodes, "has_memory"),
        (NumaHasNormalMemory, NumaNodes, "has_normal_memory"),
        (NumaOnline, NumaNodes, "online"),
        (NumaPossible, NumaNodes, "possible"),
        (Cgroup, Root, "cgroup"),
        (CpuCfsPeriodUs, Cgroup, "cpu.cfs_period_us"),
        (CpuCfsQuotaUs, Cgroup, "cpu.cfs_quota_us"),
        (CpuMax, Cgroup, "cpu.max"),
        (CpuShares, Cgroup, "cpu.shares"),
        (MemoryHigh, Cgroup, "memory.high"),
        (MemoryLimitInBytes, Cgroup, "memory.limit_in_bytes"),
        (MemoryMax, Cgroup, "memory.max"),
        (MemorySoftLimitInBytes, Cgroup, "memory.soft_limit_in_bytes"),
        (ViewPage, Cpus, "elbowroom"),
        (Cgroups, Proc, "cgroups"),
        (Uncovered, Cpus, ".elbowroom"),
        (UncoveredProc, Uncovered, "proc"),
        (UncoveredSys, Uncovered, "sys"),
    ]
};

/// `vulnerabilities/*` (drivers/base/cpu.c `cpu_root_vulnerabilities_attrs`).
pub(super) const VULNERABILITIES: &[&str] = &[
    "gather_data_sampling",
    "ghostwrite",
    "indirect_target_selection",
    "itlb_multihit",
    "l1tf",
    "mds",
    "meltdown",
    "mmio_stale_data",
    "old_microcode",
    "reg_file_data_sampling",
    "retbleed",
    "spec_rstack_overflow",
    "spec_store_bypass",
    "spectre_v1",
    "spectre_v2",
    "srbds",
    "tsa",
    "tsx_async_abort",
    "vmscape",
];

/// `cpuN/*`, without what counts the host's doings (`cpuidle`) or steers it (`hotplug`). The link to its node is
/// [`ViewNode::NodeOfCpu`].
const CPU: &[(&str, FileFormat)] = &[
    ("cpu_capacity", FileFormat::Text),
    ("online", FileFormat::Online),
    ("subsystem", FileFormat::Link("../../../../bus/cpu")),
    ("uevent", FileFormat::Text),
];

/// `cpuN/topology/*` (drivers/base/topology.c).
const TOPOLOGY: &[(&str, FileFormat)] = &[
    ("book_id", FileFormat::Text),
    ("book_siblings", FileFormat::Mask),
    ("book_siblings_list", FileFormat::List),
    ("cluster_cpus", FileFormat::Mask),
    ("cluster_cpus_list", FileFormat::List),
    ("cluster_id", FileFormat::Text),
    ("core_cpus", FileFormat::Mask),
    ("core_cpus_list", FileFormat::List),
    ("core_id", FileFormat::Text),
    ("core_siblings", FileFormat::Mask),
    ("core_siblings_list", FileFormat::List),
    ("die_cpus", FileFormat::Mask),
    ("die_cpus_list", FileFormat::List),
    ("die_id", FileFormat::Text),
    ("drawer_id", FileFormat::Text),
    ("drawer_siblings", FileFormat::Mask),
    ("drawer_siblings_list", FileFormat::List),
    ("package_cpus", FileFormat::Mask),
    ("package_cpus_list", FileFormat::List),
    ("physical_package_id", FileFormat::Text),
    ("thread_siblings", FileFormat::Mask),
    ("thread_siblings_list", FileFormat::List),
];

/// `cpuN/cpufreq/*` (drivers/cpufreq/cpufreq.c), what describes the processor.
const CPUFREQ: &[(&str, FileFormat)] = &[
    ("affected_cpus", FileFormat::Words),
    ("base_frequency", FileFormat::Value(16)),
    ("cpuinfo_max_freq", FileFormat::Value(16)),
    ("cpuinfo_min_freq", FileFormat::Value(16)),
    ("related_cpus", FileFormat::Words),
    ("scaling_cur_freq", FileFormat::Value(16)),
    ("scaling_driver", FileFormat::Text),
    ("scaling_governor", FileFormat::Value(16)),
    ("scaling_max_freq", FileFormat::Value(16)),
    ("scaling_min_freq", FileFormat::Value(16)),
];

/// `cpuN/acpi_cppc/*` (drivers/acpi/cppc_acpi.c), what describes the processor.
const ACPI_CPPC: &[(&str, FileFormat)] = &[
    ("highest_perf", FileFormat::Text),
    ("lowest_freq", FileFormat::Text),
    ("lowest_nonlinear_perf", FileFormat::Text),
    ("lowest_perf", FileFormat::Text),
    ("nominal_freq", FileFormat::Text),
    ("nominal_perf", FileFormat::Text),
    ("reference_perf", FileFormat::Text),
];

/// `cpuN/regs/identification/*` (arch/arm64/kernel/cpuinfo.c `cpuregs_id_attrs`). JIT compilers of libraries, as oneDNN's, end a program
/// that cannot read them.
const IDENTIFICATION: &[(&str, FileFormat)] = &[
    ("aidr_el1", FileFormat::Text),
    ("midr_el1", FileFormat::Text),
    ("revidr_el1", FileFormat::Text),
    ("smidr_el1", FileFormat::Text),
];

/// `cpuN/cache/indexK/*` (drivers/base/cacheinfo.c).
const CACHE: &[(&str, FileFormat)] = &[
    ("allocation_policy", FileFormat::Text),
    ("attributes", FileFormat::Text),
    ("coherency_line_size", FileFormat::Text),
    ("id", FileFormat::Text),
    ("level", FileFormat::Text),
    ("number_of_sets", FileFormat::Text),
    ("physical_line_partition", FileFormat::Text),
    ("shared_cpu_list", FileFormat::List),
    ("shared_cpu_map", FileFormat::Mask),
    ("size", FileFormat::Text),
    ("type", FileFormat::Text),
    ("uevent", FileFormat::Text),
    ("ways_of_associativity", FileFormat::Text),
    ("write_policy", FileFormat::Text),
];

/// `nodeN/*` (drivers/base/node.c). The links to its CPUs are [`ViewNode::CpuOfNode`].
pub(super) const NUMA_NODE: &[(&str, FileFormat)] = &[
    ("cpulist", FileFormat::OnlineList),
    ("cpumap", FileFormat::OnlineMask),
    ("distance", FileFormat::Text),
    ("meminfo", FileFormat::NodeMeminfo),
    ("numastat", FileFormat::NodeNumastat),
    ("subsystem", FileFormat::Link("../../../../bus/node")),
    ("vmstat", FileFormat::NodeVmstat),
];

/// `nodeN/hugepages/hugepages-XkB` (mm/hugetlb_sysfs.c): X on any architecture and with any size of small pages.
pub(super) const HUGEPAGE_SIZES: &[u32] = &[64, 1_024, 2_048, 32_768, 524_288, 1_048_576, 16_777_216];

/// What is in each: the machine's, as in `/sys/kernel/mm/hugepages`, which no view covers. Their bit has the size of `cpufreq`'s values.
pub(super) const HUGEPAGES: &[(&str, FileFormat)] = &[
    ("free_hugepages", FileFormat::Value(16)),
    ("nr_hugepages", FileFormat::Value(16)),
    ("surplus_hugepages", FileFormat::Value(16)),
];

/// Directories of caches a CPU may have.
const CACHES: u8 = 16;

impl CpuDir {
    pub(super) fn index(self) -> u32 {
        match self {
            Self::Itself => 0,
            Self::Topology => 1,
            Self::Cpufreq => 2,
            Self::AcpiCppc => 3,
            Self::Caches => 4,
            Self::Registers => 5,
            Self::Identification => 6,
            Self::Cache(k) => 16 + u32::from(k),
        }
    }

    pub(super) fn from_index(n: u32) -> Option<Self> {
        Some(match n {
            0 => Self::Itself,
            1 => Self::Topology,
            2 => Self::Cpufreq,
            3 => Self::AcpiCppc,
            4 => Self::Caches,
            5 => Self::Registers,
            6 => Self::Identification,
            16..32 => Self::Cache((n - 16) as u8),
            _ => return None,
        })
    }

    /// Its name and the directory it is in.
    pub(super) fn name_and_parent(self) -> (String, Self) {
        match self {
            Self::Itself => (String::new(), Self::Itself),
            Self::Topology => ("topology".to_owned(), Self::Itself),
            Self::Cpufreq => ("cpufreq".to_owned(), Self::Itself),
            Self::AcpiCppc => ("acpi_cppc".to_owned(), Self::Itself),
            Self::Caches => ("cache".to_owned(), Self::Itself),
            Self::Registers => ("regs".to_owned(), Self::Itself),
            Self::Identification => ("identification".to_owned(), Self::Registers),
            Self::Cache(k) => (format!("index{k}"), Self::Caches),
        }
    }

    /// The files in it.
    pub(super) fn files(self) -> &'static [(&'static str, FileFormat)] {
        match self {
            Self::Itself => CPU,
            Self::Topology => TOPOLOGY,
            Self::Cpufreq => CPUFREQ,
            Self::AcpiCppc => ACPI_CPPC,
            Self::Caches | Self::Registers => &[],
            Self::Identification => IDENTIFICATION,
            Self::Cache(_) => CACHE,
        }
    }

    /// The directories in it.
    pub(super) fn subdirs(self) -> impl Iterator<Item = Self> {
        let (fixed, caches): (&[Self], u8) = match self {
            Self::Itself => {
                (&[Self::AcpiCppc, Self::Caches, Self::Cpufreq, Self::Registers, Self::Topology], 0)
            }
            Self::Registers => (&[Self::Identification], 0),
            Self::Caches => (&[], CACHES),
            _ => (&[], 0),
        };
        fixed.iter().copied().chain((0..caches).map(Self::Cache))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file's place in its table takes five bits of its node's number, and 0 is the directory.
    #[test]
    fn tables_fit_into_the_numbers_of_nodes() {
        for table in [CPU, TOPOLOGY, CPUFREQ, ACPI_CPPC, CACHE, IDENTIFICATION, NUMA_NODE, HUGEPAGES] {
            assert!(table.len() < 32);
            assert!(table.windows(2).all(|pair| pair[0].0 < pair[1].0), "not in order: {table:?}");
        }
        assert!(VULNERABILITIES.len() <= 32 && VULNERABILITIES.is_sorted());
    }
}
