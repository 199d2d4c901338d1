use elbowroom_linux::cgroup::{v1, v2};
use elbowroom_linux::memory::parse_kill;
use elbowroom_linux::{fixture, proc};
use elbowroom_profile::pages::measure::areas;
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::psi_trigger::PsiTrigger;
use elbowroom_types::unit::{parse_bytes, parse_cpus, parse_duration};
use std::collections::BTreeMap;

/// Arbitrary bytes as every file of the kernel that the sensor reads, and as what is written to a pressure file: a value or an error that
/// names the line, no panic.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = (
        proc::stat(&text),
        proc::meminfo(&text),
        proc::zoneinfo(&text),
        proc::loadavg(&text),
        proc::pressure(&text),
    );
    let _ = (proc::diskstats(&text), proc::swaps(&text), proc::net_dev(&text));
    let _ = areas(&text, "/bin/sh");
    let _ = (PsiTrigger::parse(data), parse_kill(data));
    let _ = (
        v1::limit(&text),
        v1::quota(&text),
        v1::cpuacct_usage_percpu(&text),
        v2::limit(&text),
        v2::parse_cpu_max(&text),
    );
    let _ =
        (v1::device_limits(&text), v2::io_max(&text), v2::iocost_devices(&text), fixture::sections(&text));
    let _ = (v1::parse_memory_stat(&text), v1::cpuacct_usage(data), v1::throttled_time(data));
    let mut rows = BTreeMap::new();
    let _ = (v1::io_service_bytes(&text, &mut rows), v1::io_serviced(&text, &mut rows));
    let _ = (v2::parse_memory_stat(&text), v2::parse_io_stat(&text), v2::cpu_stat(data));
    let _ = (parse_bytes(&text), parse_cpus(&text), parse_duration(&text));
    if let Ok(set) = text.parse::<CpuSet>() {
        assert_eq!(set.to_string().parse::<CpuSet>().expect("what prints parses"), set);
    }
}
