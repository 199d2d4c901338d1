//! cgroup v1 files (`Documentation/admin-guide/cgroup-v1/`). Nanoseconds become [`Micros`] here and nowhere else.

use super::read::CgroupDir;
use super::{ReadResult, bytes_limit};
use crate::parse::{Malformed, flat_keyed, keyed_number, leading_number, malformed, number, single_number};
use crate::proc::USER_HZ_MICROS;
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::id::DeviceNumber;
use elbowroom_types::io::{IoMax, IoStat};
use elbowroom_types::sample::{CpuMax, MemoryStat};
use elbowroom_types::unit::{Bytes, CpuShare, Limit, Micros};
use std::collections::BTreeMap;

/// The smallest number that means "no limit": `PAGE_COUNTER_MAX` pages (include/linux/page_counter.h), which is the
/// largest signed 64-bit number rounded down to a page of 4 KiB (9223372036854771712) or of up to 64 KiB.
pub(crate) const NO_LIMIT: u64 = i64::MAX as u64 & !0xffff;

/// `memory.limit_in_bytes` and its like: a number of bytes, where -1 and the largest ones are no limit.
pub fn limit(text: &str) -> Result<Limit<Bytes>, Malformed> {
    match text.strip_suffix('\n').unwrap_or(text) {
        "-1" => Ok(Limit::Max),
        _ => Ok(bytes_limit(match single_number(text)? {
            n if n >= NO_LIMIT => Limit::Max,
            n => Limit::At(n),
        })),
    }
}

/// `cpu.cfs_quota_us`: microseconds, or -1 for no limit.
pub fn quota(text: &str) -> Result<Limit<Micros>, Malformed> {
    match text.strip_suffix('\n').unwrap_or(text) {
        "-1" => Ok(Limit::Max),
        _ => Ok(Limit::At(Micros(single_number(text)?))),
    }
}

/// `cpu.cfs_quota_us` in `cpu.cfs_period_us`.
pub fn cpu_max(dir: &CgroupDir<'_>) -> ReadResult<CpuMax> {
    let quota = dir.parse("cpu.cfs_quota_us", quota)?;
    let period = dir.number("cpu.cfs_period_us")?.map(Micros);
    Ok(quota.zip(period).map(|(quota, period)| CpuMax { quota, period }))
}

/// `cpu.shares`.
pub fn cpu_shares(dir: &CgroupDir<'_>) -> ReadResult<CpuShare> {
    Ok(dir.number("cpu.shares")?.map(CpuShare::Shares))
}

/// `cpuset.effective_cpus`, else `cpuset.cpus` (before Linux 3.17). An empty set is a cpuset that was not configured: absent.
pub fn cpuset(dir: &CgroupDir<'_>) -> ReadResult<CpuSet> {
    effective_set(dir, "cpuset.effective_cpus", "cpuset.cpus")
}

/// `cpuset.effective_mems`, else `cpuset.mems`: numbers of NUMA nodes. Absent as [`cpuset`] is.
pub fn mems(dir: &CgroupDir<'_>) -> ReadResult<CpuSet> {
    effective_set(dir, "cpuset.effective_mems", "cpuset.mems")
}

fn effective_set(dir: &CgroupDir<'_>, file: &str, before: &str) -> ReadResult<CpuSet> {
    let set = match dir.parse(file, cpu_list)? {
        Some(set) => Some(set),
        None => dir.parse(before, cpu_list)?,
    };
    Ok(set.filter(|set| !set.is_empty()))
}

/// A list of CPUs, or of NUMA nodes.
pub(super) fn cpu_list(text: &str) -> Result<CpuSet, Malformed> {
    text.parse().map_err(|_| malformed(text.trim_end(), "a list of numbers below 1024"))
}

/// `memory.limit_in_bytes`.
pub fn memory_limit(dir: &CgroupDir<'_>) -> ReadResult<Limit<Bytes>> {
    dir.parse("memory.limit_in_bytes", limit)
}

/// `memory.soft_limit_in_bytes`.
pub(crate) fn memory_soft_limit(dir: &CgroupDir<'_>) -> ReadResult<Limit<Bytes>> {
    dir.parse("memory.soft_limit_in_bytes", limit)
}

/// `memory.memsw.limit_in_bytes`; absent where the kernel does not account swap.
pub(crate) fn memsw_limit(dir: &CgroupDir<'_>) -> ReadResult<Limit<Bytes>> {
    dir.parse("memory.memsw.limit_in_bytes", limit)
}

/// `cpuacct.usage`: nanoseconds.
pub fn cpuacct_usage(text: &[u8]) -> Option<Micros> {
    leading_number(text).map(Micros::nanos)
}

/// `cpuacct.usage_percpu`: nanoseconds per possible CPU, in their order.
pub fn cpuacct_usage_percpu(text: &str) -> Result<Vec<Micros>, Malformed> {
    let line = text.trim_end();
    line.split(' ').map(|n| number(n, line, "nanoseconds per CPU").map(Micros::nanos)).collect()
}

/// `throttled_time` of `cpu.stat`: nanoseconds.
pub fn throttled_time(text: &[u8]) -> Option<Micros> {
    keyed_number(text, "throttled_time").map(Micros::nanos)
}

/// `cpuacct.stat`: user and system time, in USER_HZ.
pub fn cpu_times(dir: &CgroupDir<'_>) -> ReadResult<(Micros, Micros)> {
    dir.parse("cpuacct.stat", |text| {
        let (mut user, mut system) = (None, None);
        for entry in flat_keyed(text) {
            match entry? {
                ("user", n) => user = Some(Micros(n.saturating_mul(USER_HZ_MICROS))),
                ("system", n) => system = Some(Micros(n.saturating_mul(USER_HZ_MICROS))),
                _ => {}
            }
        }
        user.zip(system).ok_or_else(|| malformed(text.trim_end(), "user and system time"))
    })
}

/// `memory.stat`: the `total_*` keys, which include everything below.
pub fn memory_stat(dir: &CgroupDir<'_>) -> ReadResult<MemoryStat> {
    dir.parse("memory.stat", parse_memory_stat)
}

/// The same from the text.
pub fn parse_memory_stat(text: &str) -> Result<MemoryStat, Malformed> {
    let mut stat = MemoryStat::default();
    for entry in flat_keyed(text) {
        let (key, value) = entry?;
        let Some(key) = key.strip_prefix("total_") else { continue };
        match key {
            "rss" => stat.anon = Bytes(value),
            "rss_huge" => stat.anon_thp = Bytes(value),
            "cache" => stat.file = Bytes(value),
            "mapped_file" => stat.file_mapped = Bytes(value),
            "dirty" => stat.file_dirty = Bytes(value),
            "writeback" => stat.file_writeback = Bytes(value),
            "shmem" => stat.shmem = Bytes(value),
            "inactive_anon" => stat.inactive_anon = Bytes(value),
            "active_anon" => stat.active_anon = Bytes(value),
            "inactive_file" => stat.inactive_file = Bytes(value),
            "active_file" => stat.active_file = Bytes(value),
            "unevictable" => stat.unevictable = Bytes(value),
            "swap" => stat.swap = Bytes(value),
            "swapcached" => stat.swapcached = Bytes(value),
            "pgfault" => stat.pgfault = value,
            "pgmajfault" => stat.pgmajfault = value,
            "pgpgin" => stat.pgpgin = value,
            "pgpgout" => stat.pgpgout = value,
            "workingset_refault_file" => stat.workingset_refault_file = value,
            "workingset_refault_anon" => stat.workingset_refault_anon = value,
            _ => {}
        }
    }
    Ok(stat)
}

/// Disk transfer by device, while it is gathered from two files.
pub(crate) type IoRows = BTreeMap<DeviceNumber, IoStat>;

/// `blkio.throttle.io_service_bytes_recursive` and `io_serviced_recursive`; before Linux 4.15 only the plain ones exist.
/// Buffered writes are not among them: v1 charges those to the root. Since Linux 6.10 a disk is counted from the first limit
/// that was set on it.
pub fn io_stat(dir: &CgroupDir<'_>) -> Result<Vec<IoStat>, crate::root::ReadError> {
    let mut rows = IoRows::new();
    let read = |name: &str, rows: &mut IoRows, set: fn(&str, &mut IoRows) -> Result<(), Malformed>| {
        let recursive = dir.parse(&format!("{name}_recursive"), |text| set(text, rows))?;
        match recursive {
            Some(()) => Ok(()),
            None => dir.parse(name, |text| set(text, rows)).map(|_| ()),
        }
    };
    read("blkio.throttle.io_service_bytes", &mut rows, io_service_bytes)?;
    read("blkio.throttle.io_serviced", &mut rows, io_serviced)?;
    Ok(rows.into_values().collect())
}

/// `blkio.throttle.io_service_bytes`, with or without `_recursive`.
pub fn io_service_bytes(text: &str, rows: &mut IoRows) -> Result<(), Malformed> {
    parse_blkio(text, rows, |row, kind, n| match kind {
        "Read" => row.rbytes = Bytes(n),
        "Write" => row.wbytes = Bytes(n),
        "Discard" => row.dbytes = Bytes(n),
        _ => {}
    })
}

/// `blkio.throttle.io_serviced`, with or without `_recursive`.
pub fn io_serviced(text: &str, rows: &mut IoRows) -> Result<(), Malformed> {
    parse_blkio(text, rows, |row, kind, n| match kind {
        "Read" => row.rios = n,
        "Write" => row.wios = n,
        "Discard" => row.dios = n,
        _ => {}
    })
}

/// The four `blkio.throttle.*_device` files: each a line per device that has a limit.
pub fn io_max(dir: &CgroupDir<'_>) -> Result<Vec<(DeviceNumber, IoMax)>, crate::root::ReadError> {
    type LimitField = fn(&mut IoMax) -> &mut Limit<u64>;
    let files: [(&str, LimitField); 4] = [
        ("blkio.throttle.read_bps_device", |max| &mut max.rbps),
        ("blkio.throttle.write_bps_device", |max| &mut max.wbps),
        ("blkio.throttle.read_iops_device", |max| &mut max.riops),
        ("blkio.throttle.write_iops_device", |max| &mut max.wiops),
    ];
    let mut limits = BTreeMap::new();
    for (file, of) in files {
        for (device, limit) in dir.parse(file, device_limits)?.unwrap_or_default() {
            *of(limits.entry(device).or_insert(IoMax::MAX)) = Limit::At(limit);
        }
    }
    Ok(limits.into_iter().collect())
}

/// `254:0 1048576`, one line per device with a limit.
pub fn device_limits(text: &str) -> Result<Vec<(DeviceNumber, u64)>, Malformed> {
    const EXPECTED: &str = "\"major:minor number\"";
    let of = |line: &str| {
        let (device, limit) = line.split_once(' ').ok_or_else(|| malformed(line, EXPECTED))?;
        Ok((device_number(device, line, EXPECTED)?, number(limit, line, EXPECTED)?))
    };
    text.lines().filter(|line| !line.starts_with(UNKNOWN_DEVICE)).map(of).collect()
}

/// What the kernel calls a disk without a number, such as one path of a multipath NVMe disk (mm/backing-dev.c,
/// `bdi_unknown_name`): it cannot be limited.
pub(super) const UNKNOWN_DEVICE: &str = "(unknown) ";

/// `254:0 Read 4096`, one line per device and kind, and a `Total` without a device at the end.
fn parse_blkio(text: &str, rows: &mut IoRows, set: impl Fn(&mut IoStat, &str, u64)) -> Result<(), Malformed> {
    const EXPECTED: &str = "\"major:minor Kind number\"";
    for line in text.lines().filter(|l| !l.starts_with("Total ") && !l.starts_with(UNKNOWN_DEVICE)) {
        let mut words = line.split(' ');
        let (Some(device), Some(kind), Some(value)) = (words.next(), words.next(), words.next()) else {
            return Err(malformed(line, EXPECTED));
        };
        let device = device_number(device, line, EXPECTED)?;
        let row = rows.entry(device).or_insert(IoStat { device, ..IoStat::default() });
        set(row, kind, number(value, line, EXPECTED)?);
    }
    Ok(())
}

/// `major:minor`.
pub(super) fn device_number(
    text: &str,
    line: &str,
    expected: &'static str,
) -> Result<DeviceNumber, Malformed> {
    text.parse().map_err(|_| malformed(line, expected))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn limits_of_v1_spell_max_as_minus_one_or_as_the_largest_page_count() {
        for (text, expect) in [
            ("536870912\n", Some(Limit::At(Bytes::mib(512)))),
            ("0\n", Some(Limit::At(Bytes::ZERO))),
            ("-1\n", Some(Limit::Max)),
            ("9223372036854771712\n", Some(Limit::Max)),
            ("9223372036854710272\n", Some(Limit::Max)),
            ("9223372036854775807\n", Some(Limit::Max)),
            ("18446744073709551615\n", Some(Limit::Max)),
            ("9223372036854000000\n", Some(Limit::At(Bytes(9_223_372_036_854_000_000)))),
            ("max\n", None),
            ("-2\n", None),
            ("\n", None),
        ] {
            assert_eq!(limit(text).ok(), expect, "{text:?}");
        }
    }

    #[test]
    fn quotas_of_v1() {
        for (text, expect) in [
            ("-1\n", Some(Limit::Max)),
            ("50000\n", Some(Limit::At(Micros(50_000)))),
            ("max\n", None),
            ("", None),
        ] {
            assert_eq!(quota(text).ok(), expect, "{text:?}");
        }
    }

    #[test]
    fn nanoseconds_end_here() {
        assert_eq!(cpuacct_usage(b"28942999\n"), Some(Micros(28_942)));
        assert_eq!(
            throttled_time(b"nr_periods 4\nnr_throttled 2\nthrottled_time 5000999\n"),
            Some(Micros(5_000))
        );
        assert_eq!(cpuacct_usage_percpu("1000 2999 \n").unwrap(), [Micros(1), Micros(2)]);
        assert_eq!((cpuacct_usage(b""), throttled_time(b"x\n")), (None, None));
        assert!(cpuacct_usage_percpu("1 x").is_err());
    }

    #[test]
    fn memory_stat_takes_the_totals_only() {
        let stat = parse_memory_stat(
            "cache 1\nrss 2\ntotal_cache 100\ntotal_rss 200\ntotal_rss_huge 50\ntotal_pgfault 7\nnew_key 1\n",
        );
        let stat = stat.unwrap();
        assert_eq!(
            (stat.file, stat.anon, stat.anon_thp, stat.pgfault),
            (Bytes(100), Bytes(200), Bytes(50), 7)
        );
        assert_eq!(parse_memory_stat("total_rss x\n").unwrap_err().line, "total_rss x");
    }

    #[test]
    fn blkio_rows_meet_by_device() {
        let mut rows = BTreeMap::new();
        let text = "254:0 Read 4096\n254:0 Write 8192\n254:0 Sync 1\n7:1 Read 5\nTotal 12288\n";
        parse_blkio(text, &mut rows, |row, kind, n| match kind {
            "Read" => row.rbytes = Bytes(n),
            "Write" => row.wbytes = Bytes(n),
            _ => {}
        })
        .unwrap();
        const VDA: DeviceNumber = DeviceNumber::new(254, 0);
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[&VDA].rbytes, rows[&VDA].wbytes), (Bytes(4096), Bytes(8192)));
        for bad in ["254:0 Read", "254 Read 1", "a:b Read 1", "254:0 Read x"] {
            assert_eq!(parse_blkio(bad, &mut rows, |_, _, _| {}).unwrap_err().line, bad);
        }
    }

    #[test]
    fn a_disk_without_a_number_is_left_out() {
        let mut rows = IoRows::new();
        io_service_bytes("(unknown) Read 4096\n254:0 Read 1\nTotal 4097\n", &mut rows).unwrap();
        assert_eq!(rows.len(), 1);
        let limits = device_limits("(unknown) 5\n254:0 1048576\n").unwrap();
        assert_eq!(limits, [(DeviceNumber::new(254, 0), 1 << 20)]);
    }

    #[test]
    fn limits_are_lines_of_a_device_and_a_number() {
        assert_eq!(device_limits("").unwrap(), []);
        for bad in ["254:0", "254 1", "254:0 max", "254:0 -1"] {
            assert_eq!(device_limits(&format!("8:0 1\n{bad}\n")).unwrap_err().line, bad);
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_a_v1_parser_panic(text in "(total_rss|254:0 |Read|-1|[0-9 \n:]|.){0,60}") {
            let _ = (limit(&text), quota(&text), cpu_list(&text), cpuacct_usage_percpu(&text));
            let _ = device_limits(&text);
            let _ = (parse_memory_stat(&text), parse_blkio(&text, &mut BTreeMap::new(), |_, _, _| {}));
            let _ = (cpuacct_usage(text.as_bytes()), throttled_time(text.as_bytes()));
        }
    }
}
