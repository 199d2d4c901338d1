//! The files and directories of a container's view.

/// A file or directory of a container's tree. Numbers are those of CPUs and NUMA nodes; the last number of a file is its
/// place in the table of its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the files' own, listed in `FIXED_NODES`")]
pub enum ViewNode {
    Root,
    Proc,
    Cpuinfo,
    Diskstats,
    Loadavg,
    Meminfo,
    Pressure,
    PressureCpu,
    PressureIo,
    PressureMemory,
    Stat,
    Swaps,
    Uptime,
    Vmstat,
    Zoneinfo,
    Sys,
    SysDevices,
    SysDevicesSystem,
    Cpus,
    CpuEnabled,
    CpuIsolated,
    CpuKernelMax,
    CpuModalias,
    CpuOffline,
    CpuOnline,
    CpuPossible,
    CpuPresent,
    CpuUevent,
    CpufreqAll,
    CpufreqBoost,
    Smt,
    SmtActive,
    SmtControl,
    Vulnerabilities,
    NumaNodes,
    NumaHasCpu,
    NumaHasGenericInitiator,
    NumaHasMemory,
    NumaHasNormalMemory,
    NumaOnline,
    NumaPossible,
    Cgroup,
    CpuCfsPeriodUs,
    CpuCfsQuotaUs,
    CpuMax,
    CpuShares,
    MemoryHigh,
    MemoryLimitInBytes,
    MemoryMax,
    MemorySoftLimitInBytes,
    /// Empty: what the view page ([`super::mapped`]) is mounted on.
    ViewPage,
    /// `/proc/cgroups`.
    Cgroups,
    /// A directory that no listing names, and below it two empty ones: what a container's own proc and sysfs, without anything
    /// mounted on them, are mounted on again.
    Uncovered,
    UncoveredProc,
    UncoveredSys,
    /// `vulnerabilities/*`.
    Vulnerability(u8),
    /// `cpuN` and the directories below it.
    CpuDir(u16, CpuDir),
    /// A file in one of them.
    CpuFile(u16, CpuDir, u8),
    /// `nodeN`.
    NumaNode(u16),
    /// `nodeN/*`.
    NumaFile(u16, u8),
    /// `nodeN/hugepages`.
    Hugepages(u16),
    /// `nodeN/hugepages/hugepages-XkB`, X by its place in the table of sizes.
    HugepageSize(u16, u8),
    /// `nodeN/hugepages/hugepages-XkB/*`.
    HugepageFile(u16, u8, u8),
    /// `cpufreq/policyN`, a link to the `cpufreq` of its CPU.
    CpufreqPolicy(u16),
    /// `cpuN/nodeM`, a link: a CPU and its NUMA node.
    NodeOfCpu(u16, u16),
    /// `nodeN/cpuM`, a link: a NUMA node and a CPU of it.
    CpuOfNode(u16, u16),
}

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
    /// `cpuN/regs`, on arm64.
    Registers,
    /// `cpuN/regs/identification`.
    Identification,
    /// `cpuN/cache`.
    Caches,
    /// `cpuN/cache/indexK`.
    Cache(u8),
}
