//! `/proc` files, text to numbers. Nothing here opens a file.

use crate::parse::{Malformed, flat_keyed, hundredths, malformed, number, unescape};
use elbowroom_types::id::DeviceNumber;
use elbowroom_types::io::DiskStat;
use elbowroom_types::psi::{Pressure, Stall};
use elbowroom_types::sample::{NetworkCounters, ReclaimCounters};
use elbowroom_types::unit::{Bytes, Micros};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The unit of `/proc/stat` and of v1 `cpuacct.stat`: `USER_HZ` is 100 on every architecture that Linux containers run
/// on (include/asm-generic/param.h), whatever the kernel's own `HZ`.
pub(crate) const USER_HZ_MICROS: u64 = 10_000;

/// One `cpu` line of `/proc/stat` (fs/proc/stat.c), each since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuLine {
    /// User mode, guests included.
    pub user: Micros,
    /// User mode at low priority.
    pub nice: Micros,
    /// Kernel mode.
    pub system: Micros,
    /// Nothing to do.
    pub idle: Micros,
    /// Nothing to do while a disk was waited for.
    pub iowait: Micros,
    /// Hardware interrupts.
    pub irq: Micros,
    /// Soft interrupts.
    pub softirq: Micros,
    /// Taken by the hypervisor.
    pub steal: Micros,
}

impl CpuLine {
    /// Everything but idle and waiting. Stolen time counts: no process on this machine can have it.
    pub fn busy(&self) -> Micros {
        [self.user, self.nice, self.system, self.irq, self.softirq, self.steal].into_iter().sum()
    }
}

/// What of `/proc/stat` is used, in USER_HZ grains of 10 ms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcStat {
    /// The whole machine.
    pub total: CpuLine,
    /// Online CPUs with their numbers, ascending.
    pub cpus: Vec<(u32, CpuLine)>,
    /// Boot time, seconds since the epoch.
    pub btime: u64,
    /// Processes and threads ever created.
    pub processes: u64,
    /// Runnable threads.
    pub procs_running: u64,
}

/// `/proc/stat`. Needs the total line; the rest is zero where the kernel has none.
pub fn stat(text: &str) -> Result<ProcStat, Malformed> {
    let mut stat = ProcStat::default();
    let mut total = None;
    for line in text.lines() {
        let Some((key, rest)) = line.split_once(' ') else { continue };
        match key.strip_prefix("cpu") {
            Some("") => total = Some(cpu_line(rest, line)?),
            Some(cpu) => {
                let cpu = number(cpu, line, "a CPU line")?;
                let cpu = u32::try_from(cpu).map_err(|_| malformed(line, "a CPU line"))?;
                stat.cpus.push((cpu, cpu_line(rest, line)?));
            }
            None => match key {
                "btime" => stat.btime = number(rest, line, "a boot time")?,
                "processes" => stat.processes = number(rest, line, "a number of processes")?,
                "procs_running" => stat.procs_running = number(rest, line, "a number of threads")?,
                _ => {}
            },
        }
    }
    stat.total = total.ok_or_else(|| malformed(text.lines().next().unwrap_or(""), "the total CPU line"))?;
    Ok(stat)
}

fn cpu_line(rest: &str, line: &str) -> Result<CpuLine, Malformed> {
    let mut fields = rest.split_ascii_whitespace();
    // Kernels of long ago had four columns; those that are not there are time never spent so.
    let mut next = |needed: bool| match fields.next() {
        Some(field) => {
            let ticks = number(field, line, "a CPU line")?;
            ticks.checked_mul(USER_HZ_MICROS).map(Micros).ok_or_else(|| malformed(line, "a CPU line"))
        }
        None if needed => Err(malformed(line, "a CPU line")),
        None => Ok(Micros::ZERO),
    };
    Ok(CpuLine {
        user: next(true)?,
        nice: next(true)?,
        system: next(true)?,
        idle: next(true)?,
        iowait: next(false)?,
        irq: next(false)?,
        softirq: next(false)?,
        steal: next(false)?,
    })
}

/// What of `/proc/meminfo` is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemInfo {
    /// `MemTotal`.
    pub mem_total: Bytes,
    /// `MemFree`.
    pub mem_free: Bytes,
    /// `MemAvailable`, since Linux 3.14.
    pub mem_available: Option<Bytes>,
    /// `SwapTotal`.
    pub swap_total: Bytes,
    /// `SwapFree`.
    pub swap_free: Bytes,
}

/// `/proc/meminfo`. Needs `MemTotal` and `MemFree`.
pub fn meminfo(text: &str) -> Result<MemInfo, Malformed> {
    let field = |key: &str| -> Result<Option<Bytes>, Malformed> {
        let Some(line) = text.lines().find(|l| l.strip_prefix(key).is_some_and(|r| r.starts_with(':')))
        else {
            return Ok(None);
        };
        let value = line[key.len() + 1..].trim_start();
        let kib = value.strip_suffix(" kB").ok_or_else(|| malformed(line, "an amount in kB"))?;
        Ok(Some(Bytes::kib(number(kib, line, "an amount in kB")?)))
    };
    let needed =
        |key, expected| field(key)?.ok_or_else(|| malformed(text.lines().next().unwrap_or(""), expected));
    Ok(MemInfo {
        mem_total: needed("MemTotal", "a MemTotal line, and none follows")?,
        mem_free: needed("MemFree", "a MemFree line, and none follows")?,
        mem_available: field("MemAvailable")?,
        swap_total: field("SwapTotal")?.unwrap_or_default(),
        swap_free: field("SwapFree")?.unwrap_or_default(),
    })
}

/// The watermarks of all zones together, in pages (`/proc/zoneinfo`, mm/vmstat.c): kswapd starts below `low` and stops
/// above `high`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Sum of `low`.
    pub low_pages: u64,
    /// Sum of `high`.
    pub high_pages: u64,
}

/// `/proc/zoneinfo`. No zone at all is an error: the sums would be an invitation to fill the machine.
pub fn zoneinfo(text: &str) -> Result<Watermarks, Malformed> {
    let mut sums = Watermarks::default();
    let mut zones = 0;
    for line in text.lines() {
        // The per-CPU lists have a `high:` too; with the colon it is another word.
        let mut words = line.split_ascii_whitespace();
        let sum = match words.next() {
            Some("low") => &mut sums.low_pages,
            Some("high") => {
                zones += 1;
                &mut sums.high_pages
            }
            _ => continue,
        };
        let pages = number(words.next().unwrap_or(""), line, "a watermark in pages")?;
        *sum = sum.saturating_add(pages);
    }
    if zones > 0 {
        Ok(sums)
    } else {
        Err(malformed(text.lines().next().unwrap_or(""), "a zone, and none follows"))
    }
}

/// `/proc/loadavg`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadAvg {
    /// Over 1, 5 and 15 minutes, in hundredths.
    pub load: [u32; 3],
    /// Runnable threads.
    pub nr_running: u64,
    /// Threads.
    pub nr_threads: u64,
}

/// `/proc/loadavg`: `0.20 0.18 0.12 1/80 11206`.
pub fn loadavg(text: &str) -> Result<LoadAvg, Malformed> {
    const EXPECTED: &str = "three loads and running/threads";
    let line = text.lines().next().unwrap_or("");
    let refuse = || malformed(line, EXPECTED);
    let mut words = line.split_ascii_whitespace();
    let mut load = [0; 3];
    for slot in &mut load {
        *slot = hundredths(words.next().ok_or_else(refuse)?, line, EXPECTED)?;
    }
    let (running, threads) = words.next().and_then(|w| w.split_once('/')).ok_or_else(refuse)?;
    Ok(LoadAvg {
        load,
        nr_running: number(running, line, EXPECTED)?,
        nr_threads: number(threads, line, EXPECTED)?,
    })
}

/// What of `/proc/vmstat` tells of reclaim; counters that a kernel lacks are zero. `stalled` and `refaulted_at_limits` are other files'.
pub(crate) fn reclaim_counters(text: &str) -> Result<ReclaimCounters, Malformed> {
    let (mut counters, mut scanned_by_kind) = (ReclaimCounters::default(), 0u64);
    for entry in flat_keyed(text) {
        let (key, n) = entry?;
        let sum = match key {
            "pgscan_kswapd" | "pgscan_direct" => &mut counters.scanned,
            "pgscan_anon" | "pgscan_file" => &mut scanned_by_kind,
            "pswpout" | "workingset_refault_anon" | "workingset_restore_file" => &mut counters.lost,
            "workingset_refault_file" => &mut counters.refaulted_files,
            _ => continue,
        };
        *sum = sum.saturating_add(n);
    }
    counters.scanned_for_limits = scanned_by_kind.saturating_sub(counters.scanned);
    Ok(counters)
}

/// A pressure file (`Documentation/accounting/psi.rst`). `cpu.pressure` has no `full` line before Linux 5.13: zero.
pub fn pressure(text: &str) -> Result<Pressure, Malformed> {
    let mut pressure = Pressure::default();
    let mut some = false;
    for line in text.lines() {
        match line.split_once(' ') {
            Some(("some", rest)) => {
                pressure.some = stall(rest, line)?;
                some = true;
            }
            Some(("full", rest)) => pressure.full = stall(rest, line)?,
            _ => {}
        }
    }
    if some { Ok(pressure) } else { Err(malformed(text.lines().next().unwrap_or(""), "a \"some\" line")) }
}

/// A line of `/proc/diskstats`: number and name of a disk or a partition, and its counters.
pub(crate) type DiskLine<'a> = (DeviceNumber, &'a str, DiskStat);

/// `/proc/diskstats` (`Documentation/admin-guide/iostats.rst`), in its order. Sectors there are 512 bytes on every disk.
/// Discards and flushes are not kept.
///
/// With native NVMe multipath the disk that programs use (`nvme0n1`) is bio-based: until Linux counts for it, only its hidden paths
/// (`nvme0c0n1`, which have no number) say anything. They are no disks; what they did is the disk's.
pub fn diskstats(text: &str) -> Result<Vec<DiskLine<'_>>, Malformed> {
    let (mut disks, mut paths) = (Vec::new(), BTreeMap::<String, DiskStat>::new());
    for line in text.lines() {
        let (number, name, stat) = disk_line(line)?;
        match multipath_disk(name) {
            Some(disk) => {
                let sum = paths.entry(disk).or_default();
                *sum = both_paths(*sum, stat);
            }
            None => disks.push((number, name, stat)),
        }
    }
    for (_, name, stat) in disks.iter_mut().filter(|(_, _, stat)| *stat == DiskStat::default()) {
        *stat = paths.get(*name).copied().unwrap_or_default();
    }
    Ok(disks)
}

/// The disk of a path: `nvme0n1` of `nvme0c3n1` (drivers/nvme/host/multipath.c, `nvme_mpath_set_disk_name`).
fn multipath_disk(name: &str) -> Option<String> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (subsystem, rest) = name.strip_prefix("nvme")?.split_once('c')?;
    let (controller, namespace) = rest.split_once('n')?;
    let numbers = [subsystem, controller, namespace];
    numbers.into_iter().all(is_number).then(|| format!("nvme{subsystem}n{namespace}"))
}

fn both_paths(a: DiskStat, b: DiskStat) -> DiskStat {
    DiskStat {
        rios: a.rios.saturating_add(b.rios),
        rbytes: a.rbytes.saturating_add(b.rbytes),
        rticks: a.rticks.saturating_add(b.rticks),
        wios: a.wios.saturating_add(b.wios),
        wbytes: a.wbytes.saturating_add(b.wbytes),
        wticks: a.wticks.saturating_add(b.wticks),
        in_flight: a.in_flight.saturating_add(b.in_flight),
        // How long something was under way, not how much: both may have been busy at once.
        io_ticks: a.io_ticks.max(b.io_ticks),
        time_in_queue: a.time_in_queue.saturating_add(b.time_in_queue),
    }
}

fn disk_line(line: &str) -> Result<DiskLine<'_>, Malformed> {
    const EXPECTED: &str = "\"major minor name\" and 11 counters";
    let refuse = || malformed(line, EXPECTED);
    let mut words = line.split_ascii_whitespace();
    let mut half =
        || u32::try_from(number(words.next().unwrap_or(""), line, EXPECTED)?).map_err(|_| refuse());
    let device = DeviceNumber::new(half()?, half()?);
    let name = words.next().ok_or_else(refuse)?;
    let mut n = [0; 11];
    for n in &mut n {
        *n = number(words.next().unwrap_or(""), line, EXPECTED)?;
    }
    let [rios, _, rsectors, rticks, wios, _, wsectors, wticks, in_flight, io_ticks, time_in_queue] = n;
    let bytes = |sectors: u64| Bytes(sectors.saturating_mul(512));
    let time = |ms: u64| Micros(ms.saturating_mul(1_000));
    let stat = DiskStat {
        rios,
        rbytes: bytes(rsectors),
        rticks: time(rticks),
        wios,
        wbytes: bytes(wsectors),
        wticks: time(wticks),
        in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX),
        io_ticks: time(io_ticks),
        time_in_queue: time(time_in_queue),
    };
    Ok((device, name, stat))
}

/// `/proc/PID/net/dev` (net/core/net-procfs.c `dev_seq_printf_stats`): all interfaces together, but not the loopback, whose bytes leave
/// nothing. An interface that others are joined to, such as a bridge, counts their bytes again.
pub fn net_dev(text: &str) -> Result<NetworkCounters, Malformed> {
    const EXPECTED: &str = "\"interface: 16 counters\"";
    let mut all = NetworkCounters::default();
    // Two lines of headings. An interface's name holds neither a colon nor a space (net/core/dev.c `dev_valid_name`).
    for line in text.lines().skip(2) {
        let (name, rest) = line.split_once(':').ok_or_else(|| malformed(line, EXPECTED))?;
        let mut words = rest.split_ascii_whitespace();
        let mut counters = [0; 16];
        for counter in &mut counters {
            *counter = number(words.next().unwrap_or(""), line, EXPECTED)?;
        }
        if name.trim_start() != "lo" {
            all.received_bytes = all.received_bytes.saturating_add(Bytes(counters[0]));
            all.sent_bytes = all.sent_bytes.saturating_add(Bytes(counters[8]));
        }
    }
    Ok(all)
}

/// What `/proc/swaps` lists: files and devices, by their paths.
pub fn swaps(text: &str) -> Result<Vec<PathBuf>, Malformed> {
    let of = |line: &str| match line.split_once([' ', '\t']) {
        Some((path, _)) if path.starts_with('/') => Ok(unescape(path.as_bytes())),
        _ => Err(malformed(line, "a path and its kind")),
    };
    text.lines().skip(1).map(of).collect()
}

fn stall(rest: &str, line: &str) -> Result<Stall, Malformed> {
    const EXPECTED: &str = "\"avg10=N.NN avg60=N.NN avg300=N.NN total=N\"";
    let mut stall = Stall::default();
    let mut total = false;
    for word in rest.split_ascii_whitespace() {
        match word.split_once('=') {
            Some(("avg10", v)) => stall.avg10 = hundredths(v, line, EXPECTED)?,
            Some(("avg60", v)) => stall.avg60 = hundredths(v, line, EXPECTED)?,
            Some(("avg300", v)) => stall.avg300 = hundredths(v, line, EXPECTED)?,
            Some(("total", v)) => {
                stall.total = Micros(number(v, line, EXPECTED)?);
                total = true;
            }
            _ => {}
        }
    }
    if total { Ok(stall) } else { Err(malformed(line, EXPECTED)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STAT: &str = "cpu  100 2 30 1000 5 1 2 3 0 0\ncpu0 60 1 15 500 2 1 1 2 0 0\ncpu2 40 1 15 500 3 0 1 1 0 0\n\
                        intr 5 0 0\nctxt 9\nbtime 1700000000\nprocesses 77\nprocs_running 2\nprocs_blocked 0\n";

    #[test]
    fn reclaim_for_the_machine_is_told_from_that_for_limits() {
        let text = "nr_free_pages 7\npswpout 1\npgscan_kswapd 100\npgscan_direct 20\npgscan_khugepaged 5\npgscan_anon 10\n\
                    pgscan_file 150\nworkingset_refault_anon 2\nworkingset_refault_file 90\nworkingset_restore_file 4\n";
        let expect = ReclaimCounters {
            stalled: None,
            scanned: 120,
            scanned_for_limits: 40,
            lost: 7,
            refaulted_files: 90,
            refaulted_at_limits: 0,
        };
        assert_eq!(reclaim_counters(text).unwrap(), expect);
        let old = reclaim_counters("pgscan_kswapd 3\n").unwrap();
        assert_eq!((old.scanned, old.scanned_for_limits), (3, 0), "a kernel without the other two");
        assert!(reclaim_counters("pswpout\n").is_err());
    }

    #[test]
    fn stat_keeps_cpu_numbers_and_leaves_idle_out_of_busy() {
        let stat = stat(STAT).unwrap();
        assert_eq!(stat.total.busy(), Micros((100 + 2 + 30 + 1 + 2 + 3) * 10_000));
        assert_eq!(stat.cpus.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [0, 2]);
        assert_eq!((stat.btime, stat.processes, stat.procs_running), (1_700_000_000, 77, 2));
    }

    #[test]
    fn stat_of_long_ago_has_four_columns() {
        assert_eq!(stat("cpu 1 2 3 4\n").unwrap().total.busy(), Micros(60_000));
    }

    #[test]
    fn malformed_stat_quotes_its_line() {
        for (text, line) in [
            ("", ""),
            ("cpu 1 2 3\n", "cpu 1 2 3"),
            ("cpu 1 2 3 x\n", "cpu 1 2 3 x"),
            ("cpux 1 2 3 4\n", "cpux 1 2 3 4"),
            ("cpu99999999999 1 2 3 4\n", "cpu99999999999 1 2 3 4"),
            ("cpu 1 2 3 18446744073709551615\n", "cpu 1 2 3 18446744073709551615"),
        ] {
            assert_eq!(stat(text).unwrap_err().line, line);
        }
    }

    #[test]
    fn meminfo_reads_kib() {
        let text =
            "MemTotal:       24682992 kB\nMemFree:         1024 kB\nMemAvailable:    2048 kB\nUnknown: 3\n";
        let info = meminfo(text).unwrap();
        assert_eq!(info.mem_total, Bytes::kib(24_682_992));
        assert_eq!((info.mem_free, info.mem_available), (Bytes::mib(1), Some(Bytes::mib(2))));
        assert_eq!(info.swap_total, Bytes::ZERO);
        for bad in ["", "MemTotal: 1 kB\n", "MemTotal: 1\nMemFree: 1 kB\n", "MemTotal: x kB\nMemFree: 1 kB\n"]
        {
            assert!(meminfo(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn watermarks_are_summed_over_zones_and_not_over_cpu_lists() {
        let text = "Node 0, zone      DMA\n  pages free     2816\n        min      3\n        low      6\n        high     9\n\
                    \x20 pagesets\n    cpu: 0\n              count: 0\n              high:  700\n\
                    Node 0, zone    DMA32\n        low      60\n        high     90\n";
        assert_eq!(zoneinfo(text), Ok(Watermarks { low_pages: 66, high_pages: 99 }));
        assert!(zoneinfo("").is_err());
        assert_eq!(zoneinfo("   low x\n").unwrap_err().line, "   low x");
    }

    const NET_DEV: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:    2776      28    0    0    0     0          0         0     2776      28    0    0    0     0       0          0
  eth0: 1000000     700    0    0    0     0          0         0    20000     300    0    0    0     0       0          0
verylongname123:5 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0
";

    #[test]
    fn interfaces_are_summed_without_the_loopback() {
        let expect = NetworkCounters { received_bytes: Bytes(1_000_005), sent_bytes: Bytes(20_007) };
        assert_eq!(net_dev(NET_DEV), Ok(expect));
        let headings: String = NET_DEV.split_inclusive('\n').take(2).collect();
        assert_eq!(net_dev(&headings), Ok(NetworkCounters::default()), "a namespace without interfaces");
        let full = format!(
            "{headings}a: {0} 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0\nb: {0} 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0\n",
            u64::MAX
        );
        assert_eq!(net_dev(&full).unwrap().received_bytes, Bytes(u64::MAX));
        for bad in ["eth0 1 2", "eth0: 1 2 3", "eth0: x 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0"] {
            assert_eq!(net_dev(&format!("{headings}{bad}\n")).unwrap_err().line, bad);
        }
    }

    #[test]
    fn loadavg_reads_hundredths() {
        let load = loadavg("0.20 10.18 0.12 1/80 11206\n").unwrap();
        assert_eq!((load.load, load.nr_running, load.nr_threads), ([20, 1018, 12], 1, 80));
        for bad in ["", "0.20 0.18\n", "0.20 0.18 0.12 80 1\n", "a b c 1/2 3\n"] {
            assert!(loadavg(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn pressure_without_a_full_line_is_an_old_kernels_cpu_file() {
        let both = "some avg10=1.25 avg60=0.00 avg300=0.10 total=123\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        let p = pressure(both).unwrap();
        assert_eq!(
            (p.some.avg10, p.some.avg300, p.some.total, p.full.total),
            (125, 10, Micros(123), Micros(7))
        );
        assert_eq!(pressure(both.lines().next().unwrap()).unwrap().full, Stall::default());
        for bad in ["", "full total=1\n", "some avg10=1 total=1\n", "some avg10=1.00\n"] {
            assert!(pressure(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn diskstats_are_bytes_and_microseconds() {
        // As of Linux 2.6.25, and with the discards of 4.18 and the flushes of 5.5.
        let old = "   8       1 sda1 1 2 3 4 5 6 7 8 9 10 11\n";
        let new = " 259       0 nvme0n1 177 0 4621 144 76 107 33218 182 3 344 386 2 0 120834 2 13 56\n";
        let text = format!("{old}{new}");
        let [(sda1, _, first), (number, name, stat)] = diskstats(&text).unwrap()[..] else {
            panic!("two lines")
        };
        assert_eq!(
            (sda1, first.rbytes, first.wticks),
            (DeviceNumber::new(8, 1), Bytes(3 * 512), Micros::millis(8))
        );
        assert_eq!((number, name), (DeviceNumber::new(259, 0), "nvme0n1"));
        let expect = DiskStat {
            rios: 177,
            rbytes: Bytes(4621 * 512),
            rticks: Micros::millis(144),
            wios: 76,
            wbytes: Bytes(33218 * 512),
            wticks: Micros::millis(182),
            in_flight: 3,
            io_ticks: Micros::millis(344),
            time_in_queue: Micros::millis(386),
        };
        assert_eq!(stat, expect);
        for bad in [
            "8 0",
            "8 x sda 1 2 3 4 5 6 7 8 9 10 11",
            "8 0 sda 1 2 3 4 5 6 7 8 9 10",
            "8 0 sda -1 2 3 4 5 6 7 8 9 10 11",
        ] {
            assert_eq!(diskstats(&format!("{new}{bad}\n")).unwrap_err().line, bad);
        }
    }

    /// Atoptool/atop#157, sysstat/sysstat#341.
    #[test]
    fn what_the_paths_of_an_nvme_disk_did_is_the_disks_where_the_kernel_counts_nothing_for_it() {
        let path = |controller: u32, n: u32| {
            format!("   0       0 nvme0c{controller}n1 {n} 0 8 {n} {n} 0 16 4 1 {n} 6\n")
        };
        let head = |n: u32| format!(" 259       1 nvme0n1 {n} 0 0 0 0 0 0 0 0 0 0\n");
        let part = " 259       2 nvme0n1p1 5 0 8 1 0 0 0 0 0 1 1\n";
        let read = |text: &str| -> Vec<(String, u64, u32, u64)> {
            let rows = diskstats(text).unwrap().into_iter();
            rows.map(|(_, name, s)| (name.to_owned(), s.rios + s.wios, s.in_flight, s.io_ticks.get()))
                .collect()
        };
        let of = |name: &str, ios, in_flight, ms: u64| (name.to_owned(), ios, in_flight, ms * 1_000);
        let text = format!("{}{}{}{part}", path(0, 70), path(1, 30), head(0));
        assert_eq!(read(&text), [of("nvme0n1", 200, 2, 70), of("nvme0n1p1", 5, 0, 1)]);
        let counted = format!("{}{}", path(0, 70), head(9));
        assert_eq!(read(&counted), [of("nvme0n1", 9, 0, 0)]);
        assert_eq!(read(&head(0).replace("nvme0n1", "nvme0cn1")), [of("nvme0cn1", 0, 0, 0)]);
    }

    #[test]
    fn swaps_are_paths() {
        let head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        let text = format!("{head}/dev/dm-1    partition\t69608\t\t0\t\t-2\n/a\\040file file\t1\t0\t-3\n");
        assert_eq!(swaps(&text).unwrap(), [PathBuf::from("/dev/dm-1"), PathBuf::from("/a file")]);
        assert_eq!(swaps(head).unwrap(), [] as [PathBuf; 0]);
        for bad in ["partition 1", "/dev/sda2"] {
            assert_eq!(swaps(&format!("{head}{bad}\n")).unwrap_err().line, bad);
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in "(cpu|cpu0|MemTotal:|MemFree:|low|high|some|full|avg10=|total=|sda 1 2 3|[0-9./ \n=]|.){0,80}") {
            let _ = (diskstats(&text), swaps(&text));
            let _ = (stat(&text), meminfo(&text), zoneinfo(&text), loadavg(&text), pressure(&text));
        }
    }
}
