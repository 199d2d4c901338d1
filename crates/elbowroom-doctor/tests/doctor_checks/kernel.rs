//! The kernel's settings and tables. See `src/checks/kernel.rs`.

use super::{MIB, Row, row};
use elbowroom_doctor::checks::ControllerVersion::{V1, V2};
use elbowroom_types::finding::Severity::{Critical, Info, Warning};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row(
            "huge-pages-stall",
            V2,
            Warning,
            "echo madvise > /sys/kernel/mm/transparent_hugepage/defrag",
            |h| {
                h.host("/sys/kernel/mm/transparent_hugepage/enabled", "always");
                h.host("/sys/kernel/mm/transparent_hugepage/defrag", "always");
                h.vmstat("compact_stall", 100)
            },
            |h| h.host("/sys/kernel/mm/transparent_hugepage/defrag", "madvise"),
        ),
        row(
            "dirty-over-limit",
            V1,
            Warning,
            "sysctl -w vm.dirty_bytes=",
            |h| {
                h.limit(128 * MIB);
                h.dirty(64 * MIB)
            },
            |h| h.dirty(MIB),
        ),
        row(
            "dying-cgroups",
            V2,
            Warning,
            "echo 256M > /sys/fs/cgroup/memory.reclaim",
            |h| h.dying("20000"),
            |h| h.dying("200"),
        ),
        row(
            "dying-cgroups",
            V2,
            Warning,
            "sync; echo 2",
            |h| {
                h.facts.host.kernel = (5, 15);
                h.dying("20000")
            },
            |h| h.dying("200"),
        ),
        row(
            "dying-cgroups",
            V1,
            Info,
            "sync; echo 2",
            |h| {
                h.host("/proc/cgroups memory", "3000");
                h.facts.host.memory_directories = 10
            },
            |h| h.facts.host.memory_directories = 2_500,
        ),
        row(
            "watermarks-narrow",
            V2,
            Warning,
            "sysctl -w vm.watermark_scale_factor=100",
            |h| {
                h.host("/proc/sys/vm/watermark_scale_factor", "10");
                h.vmstat("allocstall_normal", 500)
            },
            |h| h.vmstat("allocstall_normal", 1),
        ),
        row(
            "pressure-not-counted",
            V2,
            Info,
            "",
            |h| h.facts.host.after.pressure = None,
            |h| h.facts.host.after.pressure = Some(Default::default()),
        ),
        row(
            "numa-node-full",
            V2,
            Warning,
            "",
            |h| {
                h.nodes(&[(0, 1), (1, 60)]);
                h.set("cpuset.mems", "0");
                h.vmstat("pgsteal_kswapd", 50_000)
            },
            |h| h.set("cpuset.mems", "0-1"),
        ),
        row(
            "node-reclaim-on",
            V2,
            Warning,
            "sysctl -w vm.zone_reclaim_mode=0",
            |h| {
                h.nodes(&[(0, 50), (1, 60)]);
                h.host("/proc/sys/vm/zone_reclaim_mode", "1")
            },
            |h| h.nodes(&[(0, 50)]),
        ),
        row(
            "commit-limit-near",
            V2,
            Warning,
            "sysctl -w vm.overcommit_memory=0",
            |h| {
                h.host("/proc/sys/vm/overcommit_memory", "2");
                h.meminfo("Committed_AS", 95 * MIB);
                h.meminfo("CommitLimit", 100 * MIB)
            },
            |h| h.host("/proc/sys/vm/overcommit_memory", "0"),
        ),
        row(
            "kernel-table-full",
            V2,
            Critical,
            "sysctl -w net.netfilter.nf_conntrack_max=20000",
            |h| {
                h.host("/proc/sys/net/netfilter/nf_conntrack_count", "9900");
                h.host("/proc/sys/net/netfilter/nf_conntrack_max", "10000")
            },
            |h| h.host("/proc/sys/net/netfilter/nf_conntrack_count", "900"),
        ),
        row(
            "kernel-table-full",
            V2,
            Critical,
            "sysctl -w kernel.pid_max=65536",
            |h| {
                h.host("/proc/loadavg threads", "30000");
                h.host("/proc/sys/kernel/threads-max", "500000");
                h.host("/proc/sys/kernel/pid_max", "32768")
            },
            |h| h.host("/proc/sys/kernel/pid_max", "4194304"),
        ),
        row(
            "kernel-table-full",
            V1,
            Critical,
            "sysctl -w fs.aio-max-nr=131072",
            |h| {
                h.host("/proc/sys/fs/aio-nr", "65000");
                h.host("/proc/sys/fs/aio-max-nr", "65536")
            },
            |h| h.host("/proc/sys/fs/aio-nr", "5000"),
        ),
        row(
            "kernel-table-full",
            V1,
            Critical,
            "sysctl -w kernel.keys.maxkeys=400",
            |h| {
                h.host("/proc/key-users keys", "190");
                h.host("/proc/sys/kernel/keys/maxkeys", "200")
            },
            |h| h.host("/proc/key-users keys", "90"),
        ),
    ]
}
