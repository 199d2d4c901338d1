//! Disks. See `src/checks/disk.rs`.

use super::{MIB, Row, row};
use elbowroom_doctor::checks::ControllerVersion::{V1, V2};
use elbowroom_types::finding::Severity::{Critical, Info, Warning};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row(
            "buffered-writes-escape",
            V1,
            Info,
            "",
            |h| h.io_limit("blkio.throttle.write_bps_device", "8:0", "1048576"),
            |h| h.facts.groups[2].io_limits.clear(),
        ),
        row(
            "buffered-writes-escape",
            V2,
            Info,
            "",
            |h| {
                h.io_limit("io.max", "8:0", "rbps=max wbps=1048576 riops=max wiops=max");
                h.mount("ntfs3", "rw")
            },
            |h| h.mount("ext4", "rw"),
        ),
        row(
            "io-limit-on-partition",
            V2,
            Warning,
            "echo '8:0 rbps=1048576' > /sys/fs/cgroup/docker/c1/io.max",
            |h| {
                h.io_limit("io.max", "8:1", "rbps=1048576");
                h.partition()
            },
            |h| h.facts.host.partitions.clear(),
        ),
        row(
            "io-limit-stalls-host",
            V2,
            Critical,
            "echo '8:0 rbps=max",
            |h| {
                h.disk("mq-deadline", "0");
                h.io_limit("io.max", "8:0", "rbps=1048576");
                h.host_waits(7_000)
            },
            |h| h.host_waits(1_000),
        ),
        row(
            "io-limit-binds",
            V1,
            Warning,
            "echo '8:0 0' > ",
            |h| {
                h.disk("mq-deadline", "0");
                h.io_limit("blkio.throttle.read_bps_device", "8:0", "1048576");
                h.waits(1, 9_000)
            },
            |h| h.busy_disk(100, 1, 40.0),
        ),
        row(
            "io-weight-without-effect",
            V2,
            Warning,
            "echo bfq > /sys/block/sda/queue/scheduler",
            |h| {
                h.disk("mq-deadline", "0");
                h.set("io.weight", "default 300")
            },
            |h| h.disk("bfq", "0"),
        ),
        row(
            "disk-not-divided",
            V2,
            Warning,
            "echo bfq > /sys/block/sda/queue/scheduler",
            |h| {
                h.disk("none", "0");
                h.busy_disk(1_000, 5, 20.0);
                h.host_waits(3_000);
                h.second();
                h.transfer(50 * MIB)
            },
            |h| h.busy_disk(1_000, 5, 1.0),
        ),
        row(
            "disk-slower-than-usual",
            V2,
            Warning,
            "",
            |h| {
                h.disk("none", "0");
                h.busy_disk(100, 80, 8.0)
            },
            |h| h.busy_disk(100, 2, 0.2),
        ),
        row(
            "disk-full-without-pressure",
            V2,
            Info,
            "",
            |h| {
                h.disk("none", "0");
                h.busy_disk(5_000, 5, 40.0)
            },
            |h| h.host_waits(5_000),
        ),
        row(
            "disk-not-rotational",
            V2,
            Info,
            "echo 0 > /sys/block/sda/queue/rotational",
            |h| h.disk("none", "1"),
            |h| h.disk("none", "0"),
        ),
        row(
            "writes-drown-reads",
            V2,
            Warning,
            "echo 75000 > /sys/block/sda/queue/wbt_lat_usec",
            |h| {
                h.disk("none", "1");
                h.busy_disk(100, 20, 5.0);
                h.host_waits(3_000)
            },
            |h| h.disk("bfq", "1"),
        ),
    ]
}
