//! Which files there are: the tables behind [`super::tree`].

use super::tree::Node;

/// The directories below a CPU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CpuDir {
    /// `cpuN` itself.
    Itself,
    /// `cpuN/topology`.
    Topology,
    /// `cpuN/cpufreq`: a link to a policy on a real host.
    Cpufreq,
    /// `cpuN/acpi_cppc`.
    AcpiCppc,
    /// `cpuN/cache`.
    Caches,
    /// `cpuN/cache/indexK`.
    Cache(u8),
}

/// How a file in a table becomes its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The host's text.
    Text,
    /// The host's value, in this many bytes: it may change to a longer one.
    Value(u32),
    /// The host's mask of CPUs, those of it that are possible.
    Mask,
    /// The host's list of CPUs, those of it that are possible.
    List,
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
pub(super) const SINGLES: &[(Node, Node, &str)] = {
    use Node::*;
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
        (PressureFile, Cpus, "elbowroom-pressure"),
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

/// `cpuN/*`. `node0` is a link and left out, like what counts the host's doings (`cpuidle`) or steers it (`hotplug`).
const CPU: &[(&str, Form)] =
    &[("cpu_capacity", Form::Text), ("online", Form::Online), ("uevent", Form::Text)];

/// `cpuN/topology/*` (drivers/base/topology.c).
const TOPOLOGY: &[(&str, Form)] = &[
    ("book_id", Form::Text),
    ("book_siblings", Form::Mask),
    ("book_siblings_list", Form::List),
    ("cluster_cpus", Form::Mask),
    ("cluster_cpus_list", Form::List),
    ("cluster_id", Form::Text),
    ("core_cpus", Form::Mask),
    ("core_cpus_list", Form::List),
    ("core_id", Form::Text),
    ("core_siblings", Form::Mask),
    ("core_siblings_list", Form::List),
    ("die_cpus", Form::Mask),
    ("die_cpus_list", Form::List),
    ("die_id", Form::Text),
    ("drawer_id", Form::Text),
    ("drawer_siblings", Form::Mask),
    ("drawer_siblings_list", Form::List),
    ("package_cpus", Form::Mask),
    ("package_cpus_list", Form::List),
    ("physical_package_id", Form::Text),
    ("thread_siblings", Form::Mask),
    ("thread_siblings_list", Form::List),
];

/// `cpuN/cpufreq/*` (drivers/cpufreq/cpufreq.c), what describes the processor.
const CPUFREQ: &[(&str, Form)] = &[
    ("base_frequency", Form::Value(16)),
    ("cpuinfo_max_freq", Form::Value(16)),
    ("cpuinfo_min_freq", Form::Value(16)),
    ("scaling_cur_freq", Form::Value(16)),
    ("scaling_driver", Form::Text),
    ("scaling_governor", Form::Value(16)),
    ("scaling_max_freq", Form::Value(16)),
    ("scaling_min_freq", Form::Value(16)),
];

/// `cpuN/acpi_cppc/*` (drivers/acpi/cppc_acpi.c), what describes the processor.
const ACPI_CPPC: &[(&str, Form)] = &[
    ("highest_perf", Form::Text),
    ("lowest_freq", Form::Text),
    ("lowest_nonlinear_perf", Form::Text),
    ("lowest_perf", Form::Text),
    ("nominal_freq", Form::Text),
    ("nominal_perf", Form::Text),
    ("reference_perf", Form::Text),
];

/// `cpuN/cache/indexK/*` (drivers/base/cacheinfo.c).
const CACHE: &[(&str, Form)] = &[
    ("allocation_policy", Form::Text),
    ("attributes", Form::Text),
    ("coherency_line_size", Form::Text),
    ("id", Form::Text),
    ("level", Form::Text),
    ("number_of_sets", Form::Text),
    ("physical_line_partition", Form::Text),
    ("shared_cpu_list", Form::List),
    ("shared_cpu_map", Form::Mask),
    ("size", Form::Text),
    ("type", Form::Text),
    ("uevent", Form::Text),
    ("ways_of_associativity", Form::Text),
    ("write_policy", Form::Text),
];

/// `nodeN/*` (drivers/base/node.c).
pub(super) const NUMA_NODE: &[(&str, Form)] = &[
    ("cpulist", Form::OnlineList),
    ("cpumap", Form::OnlineMask),
    ("distance", Form::Text),
    ("meminfo", Form::NodeMeminfo),
    ("numastat", Form::NodeNumastat),
    ("vmstat", Form::NodeVmstat),
];

/// Directories of caches a CPU may have.
const CACHES: u8 = 16;

impl CpuDir {
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Itself => 0,
            Self::Topology => 1,
            Self::Cpufreq => 2,
            Self::AcpiCppc => 3,
            Self::Caches => 4,
            Self::Cache(k) => 16 + u32::from(k),
        }
    }

    pub(super) fn from_number(n: u32) -> Option<Self> {
        Some(match n {
            0 => Self::Itself,
            1 => Self::Topology,
            2 => Self::Cpufreq,
            3 => Self::AcpiCppc,
            4 => Self::Caches,
            16..32 => Self::Cache((n - 16) as u8),
            _ => return None,
        })
    }

    /// Its name and the directory it is in.
    pub(super) fn place(self) -> (String, Self) {
        match self {
            Self::Itself => (String::new(), Self::Itself),
            Self::Topology => ("topology".to_owned(), Self::Itself),
            Self::Cpufreq => ("cpufreq".to_owned(), Self::Itself),
            Self::AcpiCppc => ("acpi_cppc".to_owned(), Self::Itself),
            Self::Caches => ("cache".to_owned(), Self::Itself),
            Self::Cache(k) => (format!("index{k}"), Self::Caches),
        }
    }

    /// The files in it.
    pub(super) fn table(self) -> &'static [(&'static str, Form)] {
        match self {
            Self::Itself => CPU,
            Self::Topology => TOPOLOGY,
            Self::Cpufreq => CPUFREQ,
            Self::AcpiCppc => ACPI_CPPC,
            Self::Caches => &[],
            Self::Cache(_) => CACHE,
        }
    }

    /// The directories in it.
    pub(super) fn dirs(self) -> impl Iterator<Item = Self> {
        let (fixed, caches): (&[Self], u8) = match self {
            Self::Itself => (&[Self::AcpiCppc, Self::Caches, Self::Cpufreq, Self::Topology], 0),
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
        for table in [CPU, TOPOLOGY, CPUFREQ, ACPI_CPPC, CACHE, NUMA_NODE] {
            assert!(table.len() < 32);
            assert!(table.windows(2).all(|pair| pair[0].0 < pair[1].0), "not in order: {table:?}");
        }
        assert!(VULNERABILITIES.len() <= 32 && VULNERABILITIES.is_sorted());
    }
}
