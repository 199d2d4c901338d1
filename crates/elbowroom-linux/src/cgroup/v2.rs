//! cgroup v2 files (`Documentation/admin-guide/cgroup-v2.rst`).

use super::read::CgroupDir;
use super::v1::{UNKNOWN_DEVICE, cpu_list, device_number};
use super::{ReadResult, bytes_limit};
use crate::parse::{Malformed, flat_keyed, keyed_number, malformed, number};
use crate::root::ReadError;
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::id::DeviceNumber;
use elbowroom_types::io::{IoMax, IoStat};
use elbowroom_types::sample::{CpuMax, MemoryStat, Usage};
use elbowroom_types::unit::{Bytes, CpuShare, Limit, Micros};

/// A number or `max`.
pub fn limit(text: &str) -> Result<Limit<Bytes>, Malformed> {
    let line = text.strip_suffix('\n').unwrap_or(text);
    max_or_number(line, line, "a number or \"max\"").map(bytes_limit)
}

/// `cpu.max`: `max 100000`, `50000 100000`.
pub fn parse_cpu_max(text: &str) -> Result<CpuMax, Malformed> {
    const EXPECTED: &str = "\"quota period\"";
    let line = text.strip_suffix('\n').unwrap_or(text);
    let (quota, period) = line.split_once(' ').ok_or_else(|| malformed(line, EXPECTED))?;
    let quota = match max_or_number(quota, line, EXPECTED)? {
        Limit::Max => Limit::Max,
        Limit::At(n) => Limit::At(Micros(n)),
    };
    Ok(CpuMax { quota, period: Micros(number(period, line, EXPECTED)?) })
}

fn max_or_number(text: &str, line: &str, expected: &'static str) -> Result<Limit<u64>, Malformed> {
    match text {
        "max" => Ok(Limit::Max),
        n => Ok(Limit::At(number(n, line, expected)?)),
    }
}

/// `cpu.max`.
pub fn cpu_max(dir: &CgroupDir<'_>) -> ReadResult<CpuMax> {
    dir.parse("cpu.max", parse_cpu_max)
}

/// `cpu.weight`.
pub fn cpu_weight(dir: &CgroupDir<'_>) -> ReadResult<CpuShare> {
    Ok(dir.number("cpu.weight")?.map(CpuShare::Weight))
}

/// `cpuset.cpus.effective`.
pub fn cpuset(dir: &CgroupDir<'_>) -> ReadResult<CpuSet> {
    Ok(dir.parse("cpuset.cpus.effective", cpu_list)?.filter(|set| !set.is_empty()))
}

/// `cpuset.mems.effective`: numbers of NUMA nodes.
pub fn mems(dir: &CgroupDir<'_>) -> ReadResult<CpuSet> {
    Ok(dir.parse("cpuset.mems.effective", cpu_list)?.filter(|set| !set.is_empty()))
}

/// `memory.max`, `memory.high`, `memory.low`, `memory.swap.max`.
pub fn memory_limit(dir: &CgroupDir<'_>, file: &str) -> ReadResult<Limit<Bytes>> {
    dir.parse(file, limit)
}

/// CPU time and throttling from `cpu.stat`; memory is another file's.
pub fn cpu_stat(text: &[u8]) -> Option<Usage> {
    Some(Usage {
        cpu: Micros(keyed_number(text, "usage_usec")?),
        throttled: keyed_number(text, "throttled_usec").map(Micros),
        memory: Bytes::ZERO,
    })
}

/// User and system time from `cpu.stat`.
pub fn cpu_times(dir: &CgroupDir<'_>) -> ReadResult<(Micros, Micros)> {
    dir.parse("cpu.stat", |text| {
        let (mut user, mut system) = (None, None);
        for entry in flat_keyed(text) {
            match entry? {
                ("user_usec", n) => user = Some(Micros(n)),
                ("system_usec", n) => system = Some(Micros(n)),
                _ => {}
            }
        }
        user.zip(system).ok_or_else(|| malformed(text.lines().next().unwrap_or(""), "user and system time"))
    })
}

/// `memory.stat`, with `memory.swap.current`.
pub fn memory_stat(dir: &CgroupDir<'_>) -> ReadResult<MemoryStat> {
    let Some(mut stat) = dir.parse("memory.stat", parse_memory_stat)? else { return Ok(None) };
    stat.swap = Bytes(dir.number("memory.swap.current")?.unwrap_or(0));
    Ok(Some(stat))
}

/// The same from the text.
pub fn parse_memory_stat(text: &str) -> Result<MemoryStat, Malformed> {
    let mut stat = MemoryStat::default();
    for entry in flat_keyed(text) {
        let (key, value) = entry?;
        match key {
            "anon" => stat.anon = Bytes(value),
            "anon_thp" => stat.anon_thp = Bytes(value),
            "file" => stat.file = Bytes(value),
            "file_mapped" => stat.file_mapped = Bytes(value),
            "file_dirty" => stat.file_dirty = Bytes(value),
            "file_writeback" => stat.file_writeback = Bytes(value),
            "shmem" => stat.shmem = Bytes(value),
            "inactive_anon" => stat.inactive_anon = Bytes(value),
            "active_anon" => stat.active_anon = Bytes(value),
            "inactive_file" => stat.inactive_file = Bytes(value),
            "active_file" => stat.active_file = Bytes(value),
            "unevictable" => stat.unevictable = Bytes(value),
            "slab_reclaimable" => stat.slab_reclaimable = Bytes(value),
            "slab_unreclaimable" => stat.slab_unreclaimable = Bytes(value),
            "kernel_stack" => stat.kernel_stack = Bytes(value),
            "pagetables" => stat.pagetables = Bytes(value),
            "swapcached" => stat.swapcached = Bytes(value),
            "pgfault" => stat.pgfault = value,
            "pgmajfault" => stat.pgmajfault = value,
            "workingset_refault_file" => stat.workingset_refault_file = value,
            "workingset_refault_anon" => stat.workingset_refault_anon = value,
            "pswpin" => stat.pswpin = value,
            "pswpout" => stat.pswpout = value,
            _ => {}
        }
    }
    Ok(stat)
}

/// `io.stat`.
pub fn io_stat(dir: &CgroupDir<'_>) -> Result<Vec<IoStat>, ReadError> {
    Ok(dir.parse("io.stat", parse_io_stat)?.unwrap_or_default())
}

/// `259:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0`; iocost and others add words of their own. A device that did nothing may
/// have no words at all, and in Linux 5.15 and 5.16 not even an end of its line: `7:7 7:6 8:0 rbytes=4096` is of 8:0 (block/blk-cgroup.c
/// `blkcg_print_one_stat`).
pub fn parse_io_stat(text: &str) -> Result<Vec<IoStat>, Malformed> {
    const EXPECTED: &str = "\"major:minor key=number ...\"";
    let mut rows = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace().peekable();
        let first = *words.peek().unwrap_or(&"");
        let mut row = match first == UNKNOWN_DEVICE.trim_end() {
            true => None,
            false => Some(IoStat { device: device_number(first, line, EXPECTED)?, ..IoStat::default() }),
        };
        for word in words.skip(1) {
            let Some((key, value)) = word.split_once('=') else {
                rows.extend(row);
                row = word.parse().ok().map(|device| IoStat { device, ..IoStat::default() });
                continue;
            };
            let Some(row) = row.as_mut() else { continue };
            let slot = match key {
                "rbytes" => &mut row.rbytes.0,
                "wbytes" => &mut row.wbytes.0,
                "dbytes" => &mut row.dbytes.0,
                "rios" => &mut row.rios,
                "wios" => &mut row.wios,
                "dios" => &mut row.dios,
                _ => continue,
            };
            *slot = number(value, line, EXPECTED)?;
        }
        rows.extend(row);
    }
    rows.sort_by_key(|row| row.device);
    Ok(rows)
}

/// `io.max`: `8:16 rbps=2097152 wbps=max riops=max wiops=120`, a line per device that has a limit.
pub fn io_max(text: &str) -> Result<Vec<(DeviceNumber, IoMax)>, Malformed> {
    const EXPECTED: &str = "\"major:minor key=limit ...\"";
    let of = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let device = device_number(words.next().unwrap_or(""), line, EXPECTED)?;
        let mut max = IoMax::MAX;
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let slot = match key {
                "rbps" => &mut max.rbps,
                "wbps" => &mut max.wbps,
                "riops" => &mut max.riops,
                "wiops" => &mut max.wiops,
                _ => continue,
            };
            *slot = max_or_number(value, line, EXPECTED)?;
        }
        Ok((device, max))
    };
    text.lines().filter(|line| !line.starts_with(UNKNOWN_DEVICE)).map(of).collect()
}

/// The devices for which the root's `io.cost.qos` says `enable=1`.
pub fn iocost_devices(text: &str) -> Result<Vec<DeviceNumber>, Malformed> {
    const EXPECTED: &str = "\"major:minor enable=...\"";
    let on = |line: &&str| line.split_ascii_whitespace().any(|word| word == "enable=1");
    let device = |line: &str| device_number(line.split(' ').next().unwrap_or(""), line, EXPECTED);
    text.lines().filter(on).map(device).collect()
}

/// `populated` of `cgroup.events`; the root has no such file and is always in use.
pub fn populated(dir: &CgroupDir<'_>) -> ReadResult<bool> {
    dir.parse("cgroup.events", |text| {
        keyed_number(text.as_bytes(), "populated")
            .map(|n| n != 0)
            .ok_or_else(|| malformed(text.lines().next().unwrap_or(""), "\"populated 0\" or \"populated 1\""))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn limits_of_v2_spell_max_as_max() {
        for (text, expect) in [
            ("max\n", Some(Limit::Max)),
            ("536870912\n", Some(Limit::At(Bytes::mib(512)))),
            ("0\n", Some(Limit::At(Bytes::ZERO))),
            ("-1\n", None),
            ("\n", None),
            ("max 1\n", None),
        ] {
            assert_eq!(limit(text).ok(), expect, "{text:?}");
        }
    }

    #[test]
    fn cpu_max_is_quota_and_period() {
        let of = |quota| Some(CpuMax { quota, period: Micros(100_000) });
        for (text, expect) in [
            ("max 100000\n", of(Limit::Max)),
            ("50000 100000\n", of(Limit::At(Micros(50_000)))),
            ("50000\n", None),
            ("-1 100000\n", None),
            ("", None),
        ] {
            assert_eq!(parse_cpu_max(text).ok(), expect, "{text:?}");
        }
    }

    #[test]
    fn cpu_stat_without_the_cpu_controller_has_no_throttling() {
        let usage = cpu_stat(b"usage_usec 10\nuser_usec 4\nsystem_usec 6\n").unwrap();
        assert_eq!((usage.cpu, usage.throttled), (Micros(10), None));
        let usage = cpu_stat(b"usage_usec 10\nnr_throttled 1\nthrottled_usec 3\n").unwrap();
        assert_eq!(usage.throttled, Some(Micros(3)));
        assert_eq!(cpu_stat(b"user_usec 1\n"), None);
    }

    #[test]
    fn memory_stat_matches_whole_keys() {
        let stat =
            parse_memory_stat("anon 1\nfile 2\nfile_mapped 3\nanon_thp 4\nsock 9\npswpin 5\npswpout 6\n")
                .unwrap();
        assert_eq!(
            (stat.anon, stat.file, stat.file_mapped, stat.anon_thp, stat.pswpin, stat.pswpout),
            (Bytes(1), Bytes(2), Bytes(3), Bytes(4), 5, 6)
        );
        assert_eq!(parse_memory_stat("anon\n").unwrap_err().line, "anon");
    }

    #[test]
    fn io_stat_ignores_words_it_does_not_know() {
        let rows = parse_io_stat("8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6 cost.usage=7\n7:0 \n")
            .unwrap();
        assert_eq!((rows[1].rbytes, rows[1].wios, rows[1].dios), (Bytes(1), 4, 6));
        assert_eq!(rows[0], IoStat { device: DeviceNumber::new(7, 0), ..IoStat::default() });
        for bad in ["x rbytes=1", "8:0 rbytes=x", ""] {
            assert_eq!(parse_io_stat(&format!("{bad}\n")).unwrap_err().line, bad);
        }
    }

    #[test]
    fn a_line_of_io_stat_is_of_its_last_device() {
        let says = |text: &str| -> Vec<(String, u64)> {
            let rows = parse_io_stat(text).unwrap().into_iter();
            rows.map(|row| (row.device.to_string(), row.rbytes.get())).collect()
        };
        let of = |device: &str, bytes| (device.to_owned(), bytes);
        assert_eq!(
            says("7:7 7:6 8:0 rbytes=9 wbytes=0\n252:0 "),
            [of("7:6", 0), of("7:7", 0), of("8:0", 9), of("252:0", 0)]
        );
        assert_eq!(says("(unknown) rbytes=5 rios=1\n"), []);
        assert_eq!(says("(unknown) 8:0 rbytes=5\n"), [of("8:0", 5)]);
        assert_eq!(says("8:0 (unknown) rbytes=5\n"), [of("8:0", 0)]);
    }

    #[test]
    fn io_max_has_a_limit_or_max_for_each_of_four() {
        let text = "8:16 rbps=2097152 wbps=max riops=max wiops=120\n(unknown) rbps=1\n8:0 rbps=max later=1\n";
        let some = IoMax { rbps: Limit::At(2 << 20), wiops: Limit::At(120), ..IoMax::MAX };
        let expect = [(DeviceNumber::new(8, 16), some), (DeviceNumber::new(8, 0), IoMax::MAX)];
        assert_eq!(io_max(text).unwrap(), expect);
        for bad in ["8 rbps=1", "8:0 rbps=", "8:0 wiops=-1", ""] {
            assert_eq!(io_max(&format!("8:0 rbps=1\n{bad}\n")).unwrap_err().line, bad);
        }
    }

    #[test]
    fn iocost_is_on_where_its_quality_of_service_says_so() {
        let text = "8:16 enable=1 ctrl=auto rpct=0.00\n8:0 enable=0 ctrl=auto\nrubbish enable=0\n";
        assert_eq!(iocost_devices(text).unwrap(), [DeviceNumber::new(8, 16)]);
        assert_eq!(iocost_devices("x enable=1\n").unwrap_err().line, "x enable=1");
    }

    proptest! {
        #[test]
        fn no_text_makes_a_v2_parser_panic(text in "(max|usage_usec|8:0 |rbytes=|[0-9 \n:=]|.){0,60}") {
            let _ = (limit(&text), parse_cpu_max(&text), parse_memory_stat(&text), parse_io_stat(&text));
            let _ = (cpu_stat(text.as_bytes()), io_max(&text), iocost_devices(&text));
        }
    }
}
