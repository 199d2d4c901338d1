//! Memory that is not kept for containers. See `src/checks/reserve.rs`.

use super::{GIB, MIB, Row, row};
use elbowroom_doctor::checks::ControllerVersion::{V1, V2};
use elbowroom_types::finding::Severity::{Info, Warning};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row(
            "memory-not-reserved",
            V2,
            Info,
            "echo 6442450944 > /sys/fs/cgroup/docker/memory.low",
            |h| {
                h.limit(6 * GIB);
                h.available(4 * GIB)
            },
            |h| h.available(7 * GIB),
        ),
        row(
            "memory-not-reserved",
            V2,
            Warning,
            "echo 6442450944 > /sys/fs/cgroup/docker/memory.low",
            |h| {
                h.limit(6 * GIB);
                h.available(GIB / 2)
            },
            |h| {
                h.set("memory.low", "6442450944");
                h.set_around("memory.low", "6442450944")
            },
        ),
        row(
            "memory-not-reserved",
            V1,
            Warning,
            "docker update --memory-reservation 6g web",
            |h| {
                h.limit(6 * GIB);
                h.available(GIB / 2)
            },
            |h| h.set("memory.soft_limit_in_bytes", "6442450944"),
        ),
        row(
            "reservation-void",
            V2,
            Warning,
            "echo 134217728 > /sys/fs/cgroup/pod/memory.low",
            |h| {
                h.inside("pod");
                h.set("memory.low", "134217728");
                h.usage(100 * MIB)
            },
            |h| h.set_around("memory.low", "134217728"),
        ),
        row(
            "reservation-old-kernel",
            V2,
            Info,
            "",
            |h| {
                h.facts.host.kernel = (5, 10);
                h.set("memory.low", "1048576")
            },
            |h| h.facts.host.kernel = (6, 1),
        ),
    ]
}
