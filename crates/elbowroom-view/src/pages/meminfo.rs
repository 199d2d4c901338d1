//! `/proc/meminfo` (fs/proc/meminfo.c `meminfo_proc_show`).
//!
//! | line | shown |
//! |---|---|
//! | `MemTotal` | effective memory `E`, at most the host's |
//! | `MemFree` | `E - usage`, at most the host's `MemFree` and `MemAvailable` below |
//! | `MemAvailable` | `E - usage + inactive_file + active_file + slab_reclaimable`, at most the host's and `E` |
//! | `Buffers` | 0: the container's `file` counts block device pages with the rest |
//! | `Cached` | container: `file` less `swapcached` |
//! | `SwapCached` | container: `swapcached` |
//! | `Active` `Inactive` | computed: sums of their two lines below |
//! | `Active(anon)` `Inactive(anon)` `Active(file)` `Inactive(file)` `Unevictable` | container: the keys of that name |
//! | `SwapTotal` | the container's swap limit, at most the host's |
//! | `SwapFree` | `SwapTotal - swap`, at most the host's |
//! | `Dirty` `Writeback` `Mapped` | container: `file_dirty`, `file_writeback`, `file_mapped` |
//! | `AnonPages` `AnonHugePages` `Shmem` | container: `anon`, `anon_thp`, `shmem` |
//! | `KReclaimable` `SReclaimable` `SUnreclaim` | container: `slab_reclaimable` (twice), `slab_unreclaimable` |
//! | `Slab` | computed: the sum of the two |
//! | `KernelStack` `PageTables` | container: `kernel_stack`, `pagetables` |
//! | `CommitLimit` | computed: `E / 2 + SwapTotal`, the kernel's default ratio (mm/util.c `vm_commit_limit`) |
//! | `Hugepagesize` `VmallocTotal` | host, byte for byte: a page size and an address space, the same in every container |
//! | `Committed_AS` `Mlocked` `Percpu` `Vmalloc{Used,Chunk}` `Zswap*` `HugePages_*` `Hugetlb` `DirectMap*` and every line not named here | 0: the host's counters; `DirectMap*` would add up to the host's memory |
//!
//! Which lines there are, and in which order, is the host's. A line that is not `Key: number` is left out. Every number is
//! right-aligned in the kernel's own column, made wider on machines whose total takes more than eight digits, so that the
//! file never changes its size. The parts are bounded so that they add up ([`super::memory`]).

use super::memory::{HostMemoryBounds, MemoryAccount};
use super::snapshot::ContainerSnapshot;
use super::text::{digits, first_number};

/// Where numbers begin in a line of the kernel; the first eight digits are right-aligned.
const COLUMN: usize = 16;

/// The page, from the host's text.
pub(super) fn text(facts: &ContainerSnapshot, host: &str) -> String {
    let memory = MemoryAccount::new(facts, &host_bounds(host, ""));
    let width = number_width(host, "");
    let mut out = String::with_capacity(host.len());
    for line in host.lines() {
        push(&mut out, line, "", width, |key| line_value(key, &memory));
    }
    out
}

/// What one line says.
pub(super) enum LineValue {
    /// This many bytes.
    Bytes(u64),
    /// The host's line.
    Host,
    /// Nothing: the number is the host's.
    Zero,
}

/// Adds one line. `prefix` is what stands before the key in the files of a NUMA node (`Node 0 `).
pub(super) fn push(
    out: &mut String,
    line: &str,
    prefix: &str,
    width: usize,
    shown: impl Fn(&str) -> LineValue,
) {
    let Some((key, rest)) = line.strip_prefix(prefix).and_then(|line| line.split_once(':')) else { return };
    if first_number(rest).is_none() {
        return;
    }
    let unit = if rest.trim_end().ends_with(" kB") { " kB" } else { "" };
    let n = match shown(key) {
        LineValue::Host => {
            out.push_str(line);
            out.push('\n');
            return;
        }
        LineValue::Bytes(n) => n >> 10,
        LineValue::Zero => 0,
    };
    let field = (COLUMN + width).saturating_sub(key.len() + 1).max(2);
    out.push_str(&format!("{prefix}{key}:{n:>field$}{unit}\n"));
}

/// Digits of the largest number any line of the container can have: constant for a machine.
pub(super) fn number_width(host: &str, prefix: &str) -> usize {
    let bounds = host_bounds(host, prefix);
    digits(bounds.total.saturating_add(bounds.swap_total) >> 10).max(8)
}

/// The host's lines that bound the container's. Text without a line of swap is a machine without swap.
pub(super) fn host_bounds(host: &str, prefix: &str) -> HostMemoryBounds {
    let mut bounds = HostMemoryBounds { swap_total: 0, swap_free: 0, ..HostMemoryBounds::UNKNOWN };
    for (key, rest) in host.lines().filter_map(|line| line.strip_prefix(prefix)?.split_once(':')) {
        let field = match key {
            "MemTotal" => &mut bounds.total,
            "MemFree" => &mut bounds.free,
            "MemAvailable" => &mut bounds.available,
            "SwapTotal" => &mut bounds.swap_total,
            "SwapFree" => &mut bounds.swap_free,
            _ => continue,
        };
        *field = first_number(rest).map_or(u64::MAX, |kib| kib.saturating_mul(1024));
    }
    bounds
}

pub(super) fn line_value(key: &str, m: &MemoryAccount) -> LineValue {
    // Sums are of the numbers as printed, in KiB: a reader that adds the parts must get the sum.
    let sum = |a: u64, b: u64| ((a >> 10) + (b >> 10)) << 10;
    LineValue::Bytes(match key {
        "MemTotal" => m.total,
        "MemFree" => m.free,
        "MemAvailable" => m.available,
        "MemUsed" => ((m.total >> 10) - (m.free >> 10)) << 10,
        "Cached" => m.cached,
        "FilePages" => sum(m.cached, m.swap_cached),
        "SwapCached" => m.swap_cached,
        "Active" => sum(m.active_anon, m.active_file),
        "Inactive" => sum(m.inactive_anon, m.inactive_file),
        "Active(anon)" => m.active_anon,
        "Inactive(anon)" => m.inactive_anon,
        "Active(file)" => m.active_file,
        "Inactive(file)" => m.inactive_file,
        "Unevictable" => m.unevictable,
        "SwapTotal" => m.swap_total,
        "SwapFree" => m.swap_free,
        "Dirty" => m.dirty,
        "Writeback" => m.writeback,
        "Mapped" => m.mapped,
        "AnonPages" => m.anon_pages,
        "AnonHugePages" => m.anon_huge_pages,
        "Shmem" => m.shmem,
        "KReclaimable" | "SReclaimable" => m.slab_reclaimable,
        "SUnreclaim" => m.slab_unreclaimable,
        "Slab" => sum(m.slab_reclaimable, m.slab_unreclaimable),
        "KernelStack" => m.kernel_stack,
        "PageTables" => m.page_tables,
        "CommitLimit" => (m.total / 2).saturating_add(m.swap_total),
        "Hugepagesize" | "VmallocTotal" => return LineValue::Host,
        _ => return LineValue::Zero,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::sample::MemoryStat;
    use elbowroom_types::unit::Bytes;

    const HOST: &str = "MemTotal:       24684092 kB\nMemFree:        24247688 kB\nMemAvailable:   24333900 kB\n\
        Cached:           256904 kB\nActive:            42404 kB\nActive(anon):       1568 kB\n\
        Active(file):      40836 kB\nSwapTotal:             0 kB\nSwapFree:              0 kB\n\
        HardwareCorrupted:     7 kB\nHugePages_Total:      13\nHugepagesize:       2048 kB\n\
        NewCounter:         4711 kB\nNewCount:           4712\nDirectMap1G:    25165824 kB\nnoise\nKey: text\n";

    fn facts() -> ContainerSnapshot {
        ContainerSnapshot {
            memory: Bytes::mib(512),
            memory_usage: Bytes::mib(200),
            memory_stat: MemoryStat {
                file: Bytes::mib(100),
                active_anon: Bytes::mib(70),
                active_file: Bytes::mib(60),
                inactive_file: Bytes::mib(40),
                ..MemoryStat::EMPTY
            },
            ..ContainerSnapshot::EMPTY
        }
    }

    #[test]
    fn every_line_is_the_containers_the_hosts_constant_or_zero() {
        assert_eq!(
            text(&facts(), HOST),
            "MemTotal:         524288 kB\nMemFree:          319488 kB\nMemAvailable:     421888 kB\n\
             Cached:           102400 kB\nActive:           133120 kB\nActive(anon):      71680 kB\n\
             Active(file):      61440 kB\nSwapTotal:             0 kB\nSwapFree:              0 kB\n\
             HardwareCorrupted:     0 kB\nHugePages_Total:       0\nHugepagesize:       2048 kB\n\
             NewCounter:            0 kB\nNewCount:              0\nDirectMap1G:           0 kB\n"
        );
    }

    #[test]
    fn columns_widen_where_the_hosts_total_has_more_than_eight_digits_and_never_move() {
        let host =
            "MemTotal:       1056000000 kB\nMemFree:        900000000 kB\nInactive(anon):    10172 kB\n";
        let small = text(&facts(), host);
        let large = text(&ContainerSnapshot { memory: Bytes::gib(1000), ..facts() }, host);
        assert_eq!(small.len(), large.len());
        assert!(large.starts_with("MemTotal:       1048576000 kB\n"), "{large}");
        assert!(small.starts_with("MemTotal:           524288 kB\n"), "{small}");
    }
}
