//! Servers.

use super::ReadPattern::{AsDetected, Once, Repeatedly, Unknown};
use super::{AuditRow, DEFAULT_ROW};
use crate::rules::source::Resource::{Cpu, Memory};
use crate::rules::source::ResourceSource::*;

pub(super) const SERVERS: &[AuditRow] = &[
    AuditRow {
        id: "nginx",
        resource: Cpu,
        needs: &["auto"],
        reads: Once(&[SysOnline]),
        note: "a reload does not count again",
        set: "worker_processes N; in nginx.conf",
        reference: "src/os/unix/ngx_posix_init.c, src/core/nginx.c ngx_set_worker_processes()",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "nginx",
        resource: Cpu,
        note: "worker_processes is a number, or missing, which is 1",
        also: &[SysOnline],
        reference: "src/core/nginx.c ngx_set_worker_processes()",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "nginx",
        resource: Memory,
        also: &[Sysinfo],
        reference: "has no caller of it",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "postgres",
        resource: Cpu,
        note: "max_worker_processes and max_parallel_workers are numbers",
        reference: "src/backend/utils/misc/guc_tables.c",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "postgres",
        resource: Memory,
        note: "shared_buffers is a number; /proc/meminfo is read for the size of huge pages only",
        also: &[Meminfo, Sysinfo],
        reference: "src/backend/port/sysv_shmem.c GetHugePageSize()",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "mariadb",
        resource: Cpu,
        needs: &["pool-of-threads"],
        reads: Once(&[Affinity]),
        note: "thread_pool_size",
        set: "thread_pool_size=N",
        settled_by: &["--thread-pool-size=", "--thread_pool_size="],
        also: &[SysOnline, SysPossible, SysCpus, SysNodes],
        reference: "mysys/my_getncpus.c",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "mariadb",
        resource: Cpu,
        note: "thread_pool_size counts CPUs, and matters with thread_handling=pool-of-threads only",
        also: &[Affinity, SysOnline, SysPossible, SysCpus, SysNodes],
        reference: "mysys/my_getncpus.c, sql/sys_vars.cc",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "mariadb",
        resource: Memory,
        note: "innodb_buffer_pool_size is a number; since 10.11.12 memory.pressure shrinks the pool",
        also: &[MemoryPressure, Sysinfo, Meminfo],
        reference: "storage/innobase/buf/buf0buf.cc, MDEV-34863",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "mysql",
        resource: Cpu,
        reads: Unknown,
        set: "innodb_read_io_threads=N",
        reference: "not seen here",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "mysql",
        resource: Memory,
        reads: Unknown,
        set: "innodb_dedicated_server=OFF and innodb_buffer_pool_size=BYTES",
        settled_by: &["--innodb-buffer-pool-size=", "--innodb_buffer_pool_size="],
        reference: "not seen here",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "redis",
        resource: Cpu,
        note: "io-threads is a number; jemalloc counts CPUs for its arenas",
        also: &[Affinity, SysOnline],
        reference: "src/config.c",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "redis",
        resource: Memory,
        note: "maxmemory is a number, and 0 is no limit; `sysinfo` is for the banner",
        also: &[Sysinfo, Meminfo],
        reference: "src/config.c, src/zmalloc.c zmalloc_get_memory_size()",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "haproxy",
        resource: Cpu,
        reads: Once(&[Affinity]),
        note: "nbthread",
        set: "nbthread N in section global",
        also: &[SysOnline, SysCpus, SysNodes],
        reference: "src/thread.c thread_detect_count()",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "haproxy",
        resource: Memory,
        also: &[Sysinfo],
        reference: "has no caller of it",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "apache",
        resource: Cpu,
        note: "ServerLimit, ThreadsPerChild and MaxRequestWorkers are numbers",
        also: &[SysOnline],
        reference: "server/mpm/event/event.c",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "apache",
        resource: Memory,
        also: &[Sysinfo],
        reference: "has no caller of it",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "memcached",
        resource: Cpu,
        note: "-t, 4 by default",
        also: &[SysOnline],
        reference: "memcached.c",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "memcached",
        resource: Memory,
        note: "-m, 64 MB by default; /proc/meminfo is read for the size of huge pages only",
        also: &[Meminfo, Sysinfo],
        reference: "memcached.c settings_init()",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "uwsgi",
        resource: Cpu,
        needs: &["auto"],
        reads: Once(&[SysOnline]),
        note: "processes = %k",
        set: "processes = N",
        reference: "core/uwsgi.c uwsgi_setup(), uwsgi.cpus",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "uwsgi",
        resource: Cpu,
        note: "processes is a number, 1 by default; the count of CPUs is for the banner",
        also: &[SysOnline],
        reference: "core/uwsgi.c uwsgi_setup()",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "uwsgi",
        resource: Memory,
        also: &[Sysinfo],
        reference: "has no caller of it",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "program",
        resource: Cpu,
        reads: AsDetected,
        set: "its own flag for threads, or a cpuset",
        reference: "calls and file names in the program itself",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "program",
        resource: Memory,
        reads: AsDetected,
        set: "its own flag for memory",
        reference: "calls and file names in the program itself",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "psutil",
        resource: Cpu,
        reads: Repeatedly(&[SysOnline]),
        note: "psutil.cpu_count(); Process.cpu_affinity() is another question",
        also: &[Cpuinfo, Stat, Affinity],
        set: "pass the number",
        reference: "psutil/_pslinux.py cpu_count_logical()",
        ..DEFAULT_ROW
    },
    AuditRow {
        id: "psutil",
        resource: Memory,
        reads: Repeatedly(&[Meminfo]),
        note: "psutil.virtual_memory()",
        set: "pass the number",
        reference: "psutil/_pslinux.py virtual_memory()",
        ..DEFAULT_ROW
    },
];
