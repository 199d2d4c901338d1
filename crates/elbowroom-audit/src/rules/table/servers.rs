//! Servers.

use super::Reads::{Again, AsSeen, Once, Unknown};
use super::{ROW, Row};
use crate::rules::source::Resource::{Cpu, Memory};
use crate::rules::source::Source::*;

pub(super) const SERVERS: &[Row] = &[
    Row {
        id: "nginx",
        resource: Cpu,
        needs: &["auto"],
        reads: Once(&[SysOnline]),
        note: "a reload does not count again",
        set: "worker_processes N; in nginx.conf",
        reference: "src/os/unix/ngx_posix_init.c, src/core/nginx.c ngx_set_worker_processes()",
        ..ROW
    },
    Row {
        id: "nginx",
        resource: Cpu,
        note: "worker_processes is a number, or missing, which is 1",
        also: &[SysOnline],
        reference: "src/core/nginx.c ngx_set_worker_processes()",
        ..ROW
    },
    Row { id: "nginx", resource: Memory, also: &[Sysinfo], reference: "has no caller of it", ..ROW },
    Row {
        id: "postgres",
        resource: Cpu,
        note: "max_worker_processes and max_parallel_workers are numbers",
        reference: "src/backend/utils/misc/guc_tables.c",
        ..ROW
    },
    Row {
        id: "postgres",
        resource: Memory,
        note: "shared_buffers is a number; /proc/meminfo is read for the size of huge pages only",
        also: &[Meminfo, Sysinfo],
        reference: "src/backend/port/sysv_shmem.c GetHugePageSize()",
        ..ROW
    },
    Row {
        id: "mariadb",
        resource: Cpu,
        needs: &["pool-of-threads"],
        reads: Once(&[Affinity]),
        note: "thread_pool_size",
        set: "thread_pool_size=N",
        settled_by: &["--thread-pool-size=", "--thread_pool_size="],
        also: &[SysOnline, SysPossible, SysCpus, SysNodes],
        reference: "mysys/my_getncpus.c",
        ..ROW
    },
    Row {
        id: "mariadb",
        resource: Cpu,
        note: "thread_pool_size counts CPUs, and matters with thread_handling=pool-of-threads only",
        also: &[Affinity, SysOnline, SysPossible, SysCpus, SysNodes],
        reference: "mysys/my_getncpus.c, sql/sys_vars.cc",
        ..ROW
    },
    Row {
        id: "mariadb",
        resource: Memory,
        note: "innodb_buffer_pool_size is a number; since 10.11.12 memory.pressure shrinks the pool",
        also: &[MemoryPressure, Sysinfo, Meminfo],
        reference: "storage/innobase/buf/buf0buf.cc, MDEV-34863",
        ..ROW
    },
    Row {
        id: "mysql",
        resource: Cpu,
        reads: Unknown,
        set: "innodb_read_io_threads=N",
        reference: "not seen here",
        ..ROW
    },
    Row {
        id: "mysql",
        resource: Memory,
        reads: Unknown,
        set: "innodb_dedicated_server=OFF and innodb_buffer_pool_size=BYTES",
        settled_by: &["--innodb-buffer-pool-size=", "--innodb_buffer_pool_size="],
        reference: "not seen here",
        ..ROW
    },
    Row {
        id: "redis",
        resource: Cpu,
        note: "io-threads is a number; jemalloc counts CPUs for its arenas",
        also: &[Affinity, SysOnline],
        reference: "src/config.c",
        ..ROW
    },
    Row {
        id: "redis",
        resource: Memory,
        note: "maxmemory is a number, and 0 is no limit; `sysinfo` is for the banner",
        also: &[Sysinfo, Meminfo],
        reference: "src/config.c, src/zmalloc.c zmalloc_get_memory_size()",
        ..ROW
    },
    Row {
        id: "haproxy",
        resource: Cpu,
        reads: Once(&[Affinity]),
        note: "nbthread",
        set: "nbthread N in section global",
        also: &[SysOnline, SysCpus, SysNodes],
        reference: "src/thread.c thread_detect_count()",
        ..ROW
    },
    Row { id: "haproxy", resource: Memory, also: &[Sysinfo], reference: "has no caller of it", ..ROW },
    Row {
        id: "apache",
        resource: Cpu,
        note: "ServerLimit, ThreadsPerChild and MaxRequestWorkers are numbers",
        also: &[SysOnline],
        reference: "server/mpm/event/event.c",
        ..ROW
    },
    Row { id: "apache", resource: Memory, also: &[Sysinfo], reference: "has no caller of it", ..ROW },
    Row {
        id: "memcached",
        resource: Cpu,
        note: "-t, 4 by default",
        also: &[SysOnline],
        reference: "memcached.c",
        ..ROW
    },
    Row {
        id: "memcached",
        resource: Memory,
        note: "-m, 64 MB by default; /proc/meminfo is read for the size of huge pages only",
        also: &[Meminfo, Sysinfo],
        reference: "memcached.c settings_init()",
        ..ROW
    },
    Row {
        id: "uwsgi",
        resource: Cpu,
        needs: &["auto"],
        reads: Once(&[SysOnline]),
        note: "processes = %k",
        set: "processes = N",
        reference: "core/uwsgi.c uwsgi_setup(), uwsgi.cpus",
        ..ROW
    },
    Row {
        id: "uwsgi",
        resource: Cpu,
        note: "processes is a number, 1 by default; the count of CPUs is for the banner",
        also: &[SysOnline],
        reference: "core/uwsgi.c uwsgi_setup()",
        ..ROW
    },
    Row { id: "uwsgi", resource: Memory, also: &[Sysinfo], reference: "has no caller of it", ..ROW },
    Row {
        id: "program",
        resource: Cpu,
        reads: AsSeen,
        set: "its own flag for threads, or a cpuset",
        reference: "calls and file names in the program itself",
        ..ROW
    },
    Row {
        id: "program",
        resource: Memory,
        reads: AsSeen,
        set: "its own flag for memory",
        reference: "calls and file names in the program itself",
        ..ROW
    },
    Row {
        id: "psutil",
        resource: Cpu,
        reads: Again(&[SysOnline]),
        note: "psutil.cpu_count(); Process.cpu_affinity() is another question",
        also: &[Cpuinfo, Stat, Affinity],
        set: "pass the number",
        reference: "psutil/_pslinux.py cpu_count_logical()",
        ..ROW
    },
    Row {
        id: "psutil",
        resource: Memory,
        reads: Again(&[Meminfo]),
        note: "psutil.virtual_memory()",
        set: "pass the number",
        reference: "psutil/_pslinux.py virtual_memory()",
        ..ROW
    },
];
