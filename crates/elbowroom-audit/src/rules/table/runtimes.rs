//! Language runtimes.

use super::ReadPattern::{Nothing, Once, Repeatedly, Unknown};
use super::{AuditRow, DEFAULT_ROW};
use crate::rules::source::Resource::{Cpu, Memory};
use crate::rules::source::ResourceSource::*;
use crate::rules::version::ProgramVersion;

const JVM_CPU: AuditRow = AuditRow {
    id: "jvm",
    resource: Cpu,
    note: "availableProcessors() follows; GC and JIT threads keep the number of the start",
    set: "-XX:ActiveProcessorCount=N",
    settled_by: &["-XX:ActiveProcessorCount="],
    also: &[SysPossible, SysOnline, SharesV1, Cpuinfo, SysNodes, Stat, SysCpus],
    ..DEFAULT_ROW
};
const JVM_MEMORY: AuditRow = AuditRow {
    id: "jvm",
    resource: Memory,
    note: "largest heap is a part of this, by default a quarter; it never moves again",
    set: "-Xmx, or -XX:MaxRAMPercentage=P where the limit is seen",
    settled_by: &["-Xmx", "-XX:MaxHeapSize=", "-XX:MaxRAM="],
    also: &[Meminfo, SoftLimitV1, MemoryHigh],
    ..DEFAULT_ROW
};
const JVM_CPU_BY_PROC_CGROUPS: AuditRow = AuditRow {
    note: "availableProcessors() follows; GC and JIT threads keep the number of the start; \
           sees the host where the kernel lists no `memory` in /proc/cgroups, unless a view does: upgrade to 25, or set it",
    also: &[Cgroups, SysPossible, SysOnline, SharesV1, Cpuinfo, SysNodes, Stat, SysCpus],
    reference: "JDK-8230305, JDK-8349988",
    ..JVM_CPU
};
const JVM_MEMORY_BY_PROC_CGROUPS: AuditRow = AuditRow {
    note: "largest heap is a part of this, by default a quarter; it never moves again; \
           sees the host where the kernel lists no `memory` in /proc/cgroups, unless a view does: upgrade to 25, or set it",
    also: &[Cgroups, Meminfo, SoftLimitV1, MemoryHigh],
    reference: "JDK-8230305, JDK-8349988",
    ..JVM_MEMORY
};
/// Container support came with JDK 10 and 8u191 for cgroup v1 (JDK-8146115), and with 15, 11.0.16 and 8u372 for v2
/// (JDK-8230305). Those for v2 know their container by `/proc/cgroups`, up to JDK 25 (JDK-8349988), and to updates of 2026 for
/// 21, 11 and 8, whose numbers depend on the vendor.
pub(super) const JVM: &[AuditRow] = &[
    AuditRow {
        before: ProgramVersion(8, 0, 191),
        reads: Repeatedly(&[Affinity]),
        note: "older than container support: upgrade to 8u372 or later",
        reference: "JDK-8146115",
        ..JVM_CPU
    },
    AuditRow {
        since: ProgramVersion(8, 0, 191),
        before: ProgramVersion(8, 0, 372),
        reads: Repeatedly(&[Affinity, QuotaV1]),
        note: "knows cgroup v1 only: on v2, upgrade to 8u372 or later",
        reference: "JDK-8146115, JDK-8230305",
        ..JVM_CPU
    },
    AuditRow {
        since: ProgramVersion(8, 0, 372),
        before: ProgramVersion(9, 0, 0),
        reads: Repeatedly(&[Affinity, QuotaV1, CpuMax]),
        ..JVM_CPU_BY_PROC_CGROUPS
    },
    AuditRow {
        since: ProgramVersion(9, 0, 0),
        before: ProgramVersion(10, 0, 0),
        reads: Repeatedly(&[Affinity]),
        note: "older than container support: upgrade to 17 or later",
        reference: "JDK-8146115",
        ..JVM_CPU
    },
    AuditRow {
        since: ProgramVersion(10, 0, 0),
        before: ProgramVersion(11, 0, 16),
        reads: Repeatedly(&[Affinity, QuotaV1]),
        note: "knows cgroup v1 only: on v2, upgrade to 11.0.16 or later",
        reference: "JDK-8146115, JDK-8230305",
        ..JVM_CPU
    },
    AuditRow {
        since: ProgramVersion(11, 0, 16),
        before: ProgramVersion(12, 0, 0),
        reads: Repeatedly(&[Affinity, QuotaV1, CpuMax]),
        ..JVM_CPU_BY_PROC_CGROUPS
    },
    AuditRow {
        since: ProgramVersion(12, 0, 0),
        before: ProgramVersion(15, 0, 0),
        reads: Repeatedly(&[Affinity, QuotaV1]),
        note: "knows cgroup v1 only: on v2, upgrade to 17 or later",
        reference: "JDK-8146115, JDK-8230305",
        ..JVM_CPU
    },
    AuditRow {
        since: ProgramVersion(15, 0, 0),
        before: ProgramVersion(25, 0, 0),
        reads: Repeatedly(&[Affinity, QuotaV1, CpuMax]),
        ..JVM_CPU_BY_PROC_CGROUPS
    },
    AuditRow {
        since: ProgramVersion(25, 0, 0),
        reads: Repeatedly(&[Affinity, QuotaV1, CpuMax]),
        reference: "os_linux.cpp os::active_processor_count(), cgroupSubsystem_linux.cpp",
        ..JVM_CPU
    },
    AuditRow {
        before: ProgramVersion(8, 0, 191),
        reads: Once(&[Sysinfo]),
        note: "older than container support: upgrade to 8u372 or later",
        set: "-Xmx",
        reference: "JDK-8146115",
        ..JVM_MEMORY
    },
    AuditRow {
        since: ProgramVersion(8, 0, 191),
        before: ProgramVersion(8, 0, 372),
        reads: Once(&[Sysinfo, LimitV1]),
        reference: "JDK-8146115, JDK-8230305",
        ..JVM_MEMORY
    },
    AuditRow {
        since: ProgramVersion(8, 0, 372),
        before: ProgramVersion(9, 0, 0),
        reads: Once(&[Sysinfo, LimitV1, MemoryMax]),
        ..JVM_MEMORY_BY_PROC_CGROUPS
    },
    AuditRow {
        since: ProgramVersion(9, 0, 0),
        before: ProgramVersion(10, 0, 0),
        reads: Once(&[Sysinfo]),
        set: "-Xmx",
        reference: "JDK-8146115",
        ..JVM_MEMORY
    },
    AuditRow {
        since: ProgramVersion(10, 0, 0),
        before: ProgramVersion(11, 0, 16),
        reads: Once(&[Sysinfo, LimitV1]),
        reference: "JDK-8146115, JDK-8230305",
        ..JVM_MEMORY
    },
    AuditRow {
        since: ProgramVersion(11, 0, 16),
        before: ProgramVersion(12, 0, 0),
        reads: Once(&[Sysinfo, LimitV1, MemoryMax]),
        ..JVM_MEMORY_BY_PROC_CGROUPS
    },
    AuditRow {
        since: ProgramVersion(12, 0, 0),
        before: ProgramVersion(15, 0, 0),
        reads: Once(&[Sysinfo, LimitV1]),
        reference: "JDK-8146115, JDK-8230305",
        ..JVM_MEMORY
    },
    AuditRow {
        since: ProgramVersion(15, 0, 0),
        before: ProgramVersion(25, 0, 0),
        reads: Once(&[Sysinfo, LimitV1, MemoryMax]),
        ..JVM_MEMORY_BY_PROC_CGROUPS
    },
    AuditRow {
        since: ProgramVersion(25, 0, 0),
        reads: Once(&[Sysinfo, LimitV1, MemoryMax]),
        reference: "os_linux.cpp os::physical_memory(), cgroupSubsystem_linux.cpp",
        ..JVM_MEMORY
    },
];

const GO_CPU: AuditRow =
    AuditRow { id: "go", resource: Cpu, set: "GOMAXPROCS=N", settled_by: &["GOMAXPROCS="], ..DEFAULT_ROW };
/// Go 1.25 follows quotas, where the module's own `go` line is 1.25 too (`containermaxprocs`, `updatemaxprocs` in
/// <https://go.dev/doc/godebug>).
pub(super) const GO: &[AuditRow] = &[
    AuditRow {
        needs: &["go.uber.org/automaxprocs"],
        reads: Once(&[QuotaV1, CpuMax]),
        note: "automaxprocs is linked in",
        also: &[Affinity],
        reference: "go.uber.org/automaxprocs internal/cgroups",
        ..GO_CPU
    },
    AuditRow {
        needs: &["containermaxprocs=0"],
        reads: Once(&[Affinity]),
        note: "go.mod names a Go before 1.25, which switches the container's quota off",
        set: "GOMAXPROCS=N, or GODEBUG=containermaxprocs=1,updatemaxprocs=1",
        settled_by: &["GOMAXPROCS=", "GODEBUG=containermaxprocs=1"],
        reference: "go.dev/doc/godebug, Go 1.25",
        ..GO_CPU
    },
    AuditRow {
        before: ProgramVersion(1, 25, 0),
        reads: Once(&[Affinity]),
        note: "sees a cpuset, never a quota",
        set: "GOMAXPROCS=N; or build with Go 1.25",
        reference: "runtime/os_linux.go getproccount()",
        ..GO_CPU
    },
    AuditRow {
        since: ProgramVersion(1, 25, 0),
        reads: Repeatedly(&[Affinity, QuotaV1, CpuMax]),
        note: "about once a second; the quota file must be there at start, and never below 2",
        reference: "runtime/cgroup_linux.go, proc.go sysmonUpdateGOMAXPROCS()",
        ..GO_CPU
    },
    AuditRow {
        id: "go",
        resource: Memory,
        needs: &["github.com/KimMachineGun/automemlimit"],
        reads: Once(&[LimitV1, MemoryMax]),
        note: "automemlimit is linked in",
        set: "GOMEMLIMIT=BYTES",
        settled_by: &["GOMEMLIMIT="],
        reference: "github.com/KimMachineGun/automemlimit",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "go",
        resource: Memory,
        note: "the garbage collector knows no limit but GOMEMLIMIT",
        reference: "runtime/mgcpacer.go",
        ..DEFAULT_ROW
    },
];

/// std follows v2 quotas since 1.59 and v1 quotas since 1.64 (rust-lang/rust#92697, #97925).
const RUST_CPU: AuditRow = AuditRow {
    id: "rust",
    resource: Cpu,
    note: "std::thread::available_parallelism() reads again at every call; pools are sized once",
    set: "RAYON_NUM_THREADS=N, TOKIO_WORKER_THREADS=N, or the program's own flag",
    settled_by: &["RAYON_NUM_THREADS=", "TOKIO_WORKER_THREADS="],
    also: &[SysOnline],
    reference: "library/std/src/sys/thread/unix.rs available_parallelism()",
    ..DEFAULT_ROW
};

pub(super) const OTHERS: &[AuditRow] = &[
    AuditRow {
        id: "openj9",
        resource: Cpu,
        reads: Unknown,
        set: "-XX:ActiveProcessorCount=N",
        settled_by: &["-XX:ActiveProcessorCount="],
        reference: "not seen here",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "openj9",
        resource: Memory,
        reads: Unknown,
        set: "-Xmx, or -XX:MaxRAMPercentage=P",
        settled_by: &["-Xmx"],
        reference: "not seen here",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "native-image",
        resource: Cpu,
        reads: Unknown,
        set: "-XX:ActiveProcessorCount=N",
        settled_by: &["-XX:ActiveProcessorCount="],
        reference: "not seen here",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "native-image",
        resource: Memory,
        reads: Unknown,
        set: "-Xmx",
        settled_by: &["-Xmx"],
        reference: "not seen here",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "node",
        resource: Cpu,
        needs: &["cpu.max"],
        reads: Repeatedly(&[Affinity, CpuMax]),
        note: "os.availableParallelism(), and a v1 quota only where cpu and cpuacct are one hierarchy; os.cpus() reads \
               /proc/stat; the pool of libuv is 4 either way",
        also: &[QuotaV1, Cpuinfo, Stat, SysOnline, SysPossible, SysCpus],
        set: "WEB_CONCURRENCY=N, UV_THREADPOOL_SIZE=N",
        reference: "libuv 1.49 src/unix/linux.c uv__get_cgroup_constrained_cpu()",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "node",
        resource: Cpu,
        reads: Repeatedly(&[Affinity]),
        note: "os.availableParallelism(); os.cpus() reads /proc/stat; the pool of libuv is 4 either way",
        also: &[Cpuinfo, Stat, SysOnline, SysPossible, SysCpus],
        set: "WEB_CONCURRENCY=N, or count os.cpus() under views",
        reference: "libuv src/unix/core.c uv_available_parallelism()",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "node",
        resource: Memory,
        reads: Once(&[LimitV1, MemoryMax, Meminfo]),
        note: "the heap's limit; os.totalmem() and process.constrainedMemory() follow",
        also: &[SoftLimitV1, MemoryHigh, Sysinfo],
        set: "NODE_OPTIONS=--max-old-space-size=MIB",
        settled_by: &["--max-old-space-size"],
        reference: "node src/node.cc SetResourceConstraints, libuv uv_get_constrained_memory()",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "bun",
        resource: Cpu,
        reads: Once(&[Affinity, QuotaV1, CpuMax]),
        set: "taskset, or a cpuset",
        reference: "Bun 1.4: seen once by hand, docs/audit-evidence.md",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "bun",
        resource: Memory,
        reads: Once(&[LimitV1, MemoryMax, Sysinfo]),
        set: "BUN_JSC_forceRAMSize=BYTES",
        settled_by: &["BUN_JSC_forceRAMSize="],
        reference: "Bun 1.4: seen once by hand, docs/audit-evidence.md",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "deno",
        resource: Cpu,
        reads: Once(&[Affinity, QuotaV1, CpuMax]),
        set: "DENO_JOBS=N for tests",
        reference: "Rust std::thread::available_parallelism()",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "deno",
        resource: Memory,
        reads: Unknown,
        set: "DENO_V8_FLAGS=--max-old-space-size=MIB",
        settled_by: &["DENO_V8_FLAGS=--max-old-space-size"],
        reference: "not seen here",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "python",
        resource: Cpu,
        before: ProgramVersion(3, 13, 0),
        reads: Repeatedly(&[SysOnline]),
        note: "os.cpu_count(); default size of pools",
        set: "pass max_workers= and processes=; Python 3.13 has PYTHON_CPU_COUNT=N",
        also: &[Affinity],
        reference: "Modules/posixmodule.c os_cpu_count_impl(), concurrent/futures/thread.py",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "python",
        resource: Cpu,
        since: ProgramVersion(3, 13, 0),
        reads: Repeatedly(&[Affinity]),
        note: "os.process_cpu_count(), the default size of pools; os.cpu_count() reads /sys and follows views",
        also: &[SysOnline],
        set: "PYTHON_CPU_COUNT=N",
        settled_by: &["PYTHON_CPU_COUNT="],
        reference: "Lib/os.py process_cpu_count(), concurrent/futures/thread.py",
        ..DEFAULT_ROW
    },
    AuditRow { id: "python", resource: Memory, reference: "Python/ has no caller of it", ..DEFAULT_ROW },
    AuditRow {
        id: "ruby",
        resource: Cpu,
        reads: Repeatedly(&[Affinity]),
        note: "Etc.nprocessors",
        also: &[SysOnline],
        set: "WEB_CONCURRENCY=N (Puma), PARALLEL_PROCESSOR_COUNT=N",
        settled_by: &["WEB_CONCURRENCY="],
        reference: "ext/etc/etc.c etc_nprocessors_affin()",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "ruby",
        resource: Memory,
        also: &[Sysinfo],
        reference: "gc.c has no caller of it",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "php",
        resource: Cpu,
        note: "FPM starts what pm.max_children says",
        also: &[SysOnline],
        reference: "sapi/fpm/fpm/fpm_conf.c",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "php",
        resource: Memory,
        note: "memory_limit is per request; pm.max_children times it must fit",
        also: &[Sysinfo],
        reference: "main/main.c OnChangeMemoryLimit",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "dotnet",
        resource: Cpu,
        before: ProgramVersion(5, 0, 0),
        reads: Repeatedly(&[Affinity, QuotaV1]),
        note: "knows cgroup v1 only; the thread pool is sized at start",
        set: "DOTNET_PROCESSOR_COUNT=N",
        settled_by: &["DOTNET_PROCESSOR_COUNT=", "COMPlus_PROCESSOR_COUNT="],
        reference: "coreclr src/pal/src/misc/cgroup.cpp",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "dotnet",
        resource: Cpu,
        since: ProgramVersion(5, 0, 0),
        reads: Once(&[Affinity, QuotaV1, CpuMax]),
        note: "Environment.ProcessorCount is kept since .NET 6",
        set: "DOTNET_PROCESSOR_COUNT=N",
        settled_by: &["DOTNET_PROCESSOR_COUNT="],
        reference: "runtime src/coreclr/pal/src/misc/cgroup.cpp, dotnet/runtime#34334",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "dotnet",
        resource: Memory,
        before: ProgramVersion(5, 0, 0),
        reads: Once(&[LimitV1, Sysinfo]),
        note: "knows cgroup v1 only",
        set: "DOTNET_GCHeapHardLimit=HEX",
        settled_by: &["DOTNET_GCHeapHardLimit", "COMPlus_GCHeapHardLimit"],
        reference: "coreclr src/gc/unix/cgroup.cpp",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "dotnet",
        resource: Memory,
        since: ProgramVersion(5, 0, 0),
        reads: Once(&[LimitV1, MemoryMax, Sysinfo]),
        note: "the heap is 75 % of it; AppContext GC.RefreshMemoryLimit() reads again (.NET 8)",
        set: "DOTNET_GCHeapHardLimit=HEX",
        settled_by: &["DOTNET_GCHeapHardLimit"],
        reference: "runtime src/coreclr/gc/unix/cgroup.cpp",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "erlang",
        resource: Cpu,
        before: ProgramVersion(11, 0, 0),
        reads: Once(&[Affinity]),
        set: "ERL_FLAGS=\"+S N:N\"",
        settled_by: &["+S"],
        also: &[SysOnline, SysCpus, SysNodes],
        reference: "OTP 23 release notes, erts",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "erlang",
        resource: Cpu,
        since: ProgramVersion(11, 0, 0),
        reads: Once(&[Affinity, CpuMax]),
        note: "schedulers that are online; a v1 quota is not found on a hybrid host",
        set: "ERL_FLAGS=\"+S N:N\"",
        settled_by: &["+S"],
        also: &[QuotaV1, SysOnline, SysPossible, SysCpus, SysNodes],
        reference: "erts/lib_src/common/erl_misc_utils.c read_cpu_quota()",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "erlang",
        resource: Memory,
        also: &[Sysinfo],
        reference: "erts has no caller of it",
        ..DEFAULT_ROW
    },
    AuditRow {
        needs: &["num_cpus"],
        reads: Once(&[Affinity, QuotaV1, CpuMax]),
        note: "num_cpus::get() keeps its first answer",
        reference: "num_cpus 1.14 src/linux.rs",
        ..RUST_CPU
    },
    AuditRow { before: ProgramVersion(1, 59, 0), reads: Once(&[Affinity]), ..RUST_CPU },
    AuditRow {
        since: ProgramVersion(1, 59, 0),
        before: ProgramVersion(1, 64, 0),
        reads: Once(&[Affinity, CpuMax]),
        ..RUST_CPU
    },
    AuditRow { since: ProgramVersion(1, 64, 0), reads: Once(&[Affinity, QuotaV1, CpuMax]), ..RUST_CPU },
    AuditRow {
        id: "rust",
        resource: Memory,
        reads: Nothing,
        reference: "std has no call for it",
        ..DEFAULT_ROW
    },
];
