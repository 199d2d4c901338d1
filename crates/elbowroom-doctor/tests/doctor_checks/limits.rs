//! Limits of memory and of processes. See `src/checks/limits.rs`.

use super::{GIB, MIB, Row, row};
use elbowroom_doctor::checks::ControllerVersion::{V1, V2};
use elbowroom_types::finding::Severity::{Critical, Info, Warning};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row(
            "high-throttles",
            V2,
            Warning,
            "echo 167772160 > /sys/fs/cgroup/docker/c1/memory.high",
            |h| {
                h.limit(256 * MIB);
                h.usage(128 * MIB);
                h.set("memory.high", "134217728");
                h.event("high", 500);
                h.full(2, 2_000)
            },
            |h| h.full(2, 100),
        ),
        row(
            "at-memory-limit",
            V2,
            Warning,
            "docker update --memory ",
            |h| {
                h.limit(128 * MIB);
                h.usage(128 * MIB);
                h.anon(126 * MIB);
                h.hits(100);
                h.waits(2, 500)
            },
            |h| h.cache(60 * MIB),
        ),
        row(
            "oom-killed",
            V2,
            Warning,
            "docker update --memory ",
            |h| {
                h.limit(128 * MIB);
                h.ever("oom", 3);
                h.ever("oom_kill", 3)
            },
            |h| h.ever("oom_kill", 0),
        ),
        row(
            "oom-killed",
            V1,
            Critical,
            "docker update --memory ",
            |h| {
                h.limit(128 * MIB);
                h.event("oom_kill", 1)
            },
            |h| h.ever("oom_kill", 0),
        ),
        row(
            "host-out-of-memory",
            V2,
            Critical,
            "dmesg",
            |h| {
                h.vmstat("oom_kill", 1);
                h.event_around("oom_kill", 1)
            },
            |h| h.event_around("oom", 1),
        ),
        row(
            "host-out-of-memory",
            V2,
            Warning,
            "dmesg",
            |h| h.vmstat("oom_kill", 1),
            |h| {
                h.event_around("oom_kill", 1);
                h.event_around("oom", 1)
            },
        ),
        row(
            "host-out-of-memory",
            V1,
            Warning,
            "dmesg",
            |h| h.vmstat("oom_kill", 1),
            |h| h.event_around("oom_kill", 1),
        ),
        row(
            "oom-kills-parts",
            V2,
            Info,
            "echo 1 > /sys/fs/cgroup/docker/c1/memory.oom.group",
            |h| {
                h.ever("oom_kill", 1);
                h.set("pids.current", "5");
                h.set("memory.oom.group", "0")
            },
            |h| h.set("memory.oom.group", "1"),
        ),
        row(
            "oom-killer-off",
            V1,
            Critical,
            "echo 0 > /sys/fs/cgroup/memory/docker/c1/memory.oom_control",
            |h| {
                h.set("oom_kill_disable", "1");
                h.set("under_oom", "1")
            },
            |h| h.set("oom_kill_disable", "0"),
        ),
        row(
            "tmpfs-fills-limit",
            V2,
            Warning,
            "docker update --memory ",
            |h| {
                h.limit(100 * MIB);
                h.usage(90 * MIB);
                h.shmem(40 * MIB)
            },
            |h| h.shmem(10 * MIB),
        ),
        row(
            "kernel-memory",
            V1,
            Warning,
            "docker update --memory ",
            |h| {
                h.limit(100 * MIB);
                h.usage(90 * MIB);
                h.set("memory.kmem.usage_in_bytes", "41943040")
            },
            |h| h.usage(40 * MIB),
        ),
        row(
            "heap-over-limit",
            V2,
            Warning,
            "docker update --memory ",
            |h| {
                h.limit(GIB);
                h.heap("-Xmx2g", 2 * GIB)
            },
            |h| h.heap("-Xmx512m", GIB / 2),
        ),
        row(
            "jvm-misses-container",
            V2,
            Info,
            "",
            |h| h.jvm_without_view(7),
            |h| h.host("/proc/cgroups memory", "3"),
        ),
        row(
            "pids-near-limit",
            V2,
            Warning,
            "docker update --pids-limit 200 web",
            |h| {
                h.set("pids.current", "95");
                h.set("pids.max", "100")
            },
            |h| h.set("pids.max", "max"),
        ),
    ]
}
