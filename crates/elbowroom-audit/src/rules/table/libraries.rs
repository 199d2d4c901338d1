//! Libraries that size pools of threads, and packages that bring some.

use super::ReadPattern::{Once, Repeatedly};
use super::{AuditRow, DEFAULT_ROW};
use crate::rules::source::Resource::{Cpu, Memory};
use crate::rules::source::ResourceSource::*;

const NO_MEMORY: AuditRow = AuditRow { resource: Memory, reference: "has no caller of it", ..DEFAULT_ROW };

pub(super) const LIBRARIES: &[AuditRow] = &[
    AuditRow {
        id: "libgomp",
        resource: Cpu,
        reads: Once(&[Affinity]),
        note: "omp_get_max_threads() at load; spinning threads make a wrong number worse",
        set: "OMP_NUM_THREADS=N, and GOMP_SPINCOUNT=1000",
        settled_by: &["OMP_NUM_THREADS="],
        also: &[SysOnline, SysPossible],
        reference: "libgomp/config/linux/proc.c gomp_init_num_threads()",
        ..DEFAULT_ROW
    },
    AuditRow { id: "libgomp", also: &[Sysinfo], ..NO_MEMORY },
    AuditRow {
        id: "libomp",
        resource: Cpu,
        reads: Once(&[Affinity]),
        note: "omp_get_max_threads() at load",
        set: "OMP_NUM_THREADS=N",
        settled_by: &["OMP_NUM_THREADS="],
        also: &[SysOnline, SysPossible, Cpuinfo, SysCpus, SysNodes],
        reference: "openmp/runtime/src/kmp_affinity.cpp",
        ..DEFAULT_ROW
    },
    AuditRow { id: "libomp", also: &[Sysinfo], ..NO_MEMORY },
    AuditRow {
        id: "openblas",
        resource: Cpu,
        reads: Once(&[Affinity]),
        note: "threads are started when the library is loaded",
        set: "OPENBLAS_NUM_THREADS=N",
        settled_by: &["OPENBLAS_NUM_THREADS=", "OMP_NUM_THREADS="],
        also: &[SysOnline, SysPossible],
        reference: "driver/others/memory.c get_num_procs()",
        ..DEFAULT_ROW
    },
    AuditRow { id: "openblas", also: &[Sysinfo], ..NO_MEMORY },
    AuditRow {
        id: "tbb",
        resource: Cpu,
        reads: Once(&[Affinity]),
        set: "tbb::global_control(max_allowed_parallelism, N), or a cpuset",
        also: &[SysOnline, SysPossible, SysNodes, SysCpus],
        reference: "oneTBB src/tbb/misc_ex.cpp initialize_hardware_concurrency_info()",
        ..DEFAULT_ROW
    },
    AuditRow { id: "tbb", also: &[Sysinfo], ..NO_MEMORY },
    AuditRow {
        id: "jemalloc",
        resource: Cpu,
        note: "four arenas for each CPU it counts: address space, not threads; MALLOC_CONF=narenas:N",
        also: &[Affinity, SysOnline, SysPossible],
        reference: "jemalloc src/jemalloc.c malloc_ncpus()",
        ..DEFAULT_ROW
    },
    AuditRow { id: "jemalloc", also: &[Sysinfo], ..NO_MEMORY },
    AuditRow {
        id: "torch",
        resource: Cpu,
        reads: Once(&[Cpuinfo]),
        note: "physical cores",
        set: "OMP_NUM_THREADS=N, or torch.set_num_threads(N)",
        settled_by: &["OMP_NUM_THREADS="],
        also: &[SysPresent, SysPossible, SysCpus, Affinity, SysOnline],
        reference: "aten/src/ATen/ParallelCommon.cpp, cpuinfo",
        ..DEFAULT_ROW
    },
    AuditRow { id: "torch", ..NO_MEMORY },
    AuditRow {
        id: "joblib",
        resource: Cpu,
        reads: Repeatedly(&[SysOnline, Affinity, QuotaV1, CpuMax]),
        note: "loky.cpu_count(), rounded up",
        set: "LOKY_MAX_CPU_COUNT=N",
        settled_by: &["LOKY_MAX_CPU_COUNT="],
        also: &[Cpuinfo],
        reference: "joblib/externals/loky/backend/context.py",
        ..DEFAULT_ROW
    },
    AuditRow { id: "joblib", ..NO_MEMORY },
];
