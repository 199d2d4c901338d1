//! CPU time and cpusets. See `src/checks/cpu.rs`.

use super::{Row, row};
use elbowroom_doctor::checks::ControllerVersion::{V1, V2};
use elbowroom_types::finding::Severity::Warning;
use elbowroom_types::unit::Micros;

pub(super) fn rows() -> Vec<Row> {
    vec![
        row(
            "cpu-throttled",
            V2,
            Warning,
            "docker update --cpus 0.75 web",
            |h| {
                h.set("cpu.max", "50000 100000");
                h.throttled(20, 10, 300_000)
            },
            |h| h.throttled(20, 10, 30_000),
        ),
        row(
            "cpu-throttled",
            V1,
            Warning,
            "docker update --cpus 0.75 web",
            |h| {
                h.set("cpu.cfs_quota_us", "50000");
                h.set("cpu.cfs_period_us", "100000");
                h.throttled(20, 10, 300_000)
            },
            |h| h.throttled(100, 5, 300_000),
        ),
        row(
            "cpu-stolen",
            V1,
            Warning,
            "",
            |h| {
                h.facts.host.before.cpu = Some([Micros::secs(90); 2]);
                h.facts.host.after.cpu = Some([Micros::secs(94), Micros::secs(91)]);
                h.facts.host.after.pressure.as_mut().unwrap()[0].some.avg10 = 3_000;
            },
            |h| h.facts.host.after.cpu = Some([Micros::secs(94), Micros(90_300_000)]),
        ),
        row(
            "cpuset-narrowed",
            V2,
            Warning,
            "",
            |h| {
                h.set("cpuset.cpus", "0-3");
                h.set("cpuset.cpus.effective", "0-1")
            },
            |h| h.set("cpuset.cpus.effective", "0-3"),
        ),
        row(
            "cpuset-crowded",
            V2,
            Warning,
            "",
            |h| {
                h.second();
                h.set_all("cpuset.cpus", "0-1");
                h.host("/sys/devices/system/cpu/online", "0-15");
                h.waits(0, 4_000)
            },
            |h| h.set("cpuset.cpus", "4-5"),
        ),
        row(
            "cpu-weight-minimum",
            V2,
            Warning,
            "echo 100 > /sys/fs/cgroup/docker/c1/cpu.weight",
            |h| {
                h.set("cpu.weight", "1");
                h.waits(0, 4_000)
            },
            |h| h.waits(0, 100),
        ),
    ]
}
