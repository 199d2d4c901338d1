//! `/proc/vmstat`, and `vmstat` of a NUMA node (mm/vmstat.c `vmstat_show`).
//!
//! | line | shown |
//! |---|---|
//! | `nr_free_pages`, LRU lists, slab, `nr_{anon,file}_pages`, `nr_{mapped,dirty,writeback,shmem}`, `nr_kernel_stack`, `nr_page_table_pages`, `nr_swapcached`, `nr_anon_transparent_hugepages` and their `nr_zone_` twins | container, the numbers of `/proc/meminfo` in pages |
//! | `pgfault` `pgmajfault` `workingset_refault_*` | container: the keys of `memory.stat` |
//! | `pswpin` `pswpout` | container: the keys of `memory.stat`, which cgroup v2 has from Linux 6.13 on; else 0 |
//! | `oom_kill` | container: v2 `memory.events`, v1 `memory.oom_control` |
//! | `pgpgin` `pgpgout` | container: disk transfer in KiB |
//! | every other line | 0: the host's, or of no one container |
//!
//! Which lines there are, and in which order, is the host's.

use super::memory::{HostMemoryBounds, MemoryAccount, vm_counter};
use super::snapshot::ContainerSnapshot;
use super::text::{push_line, value_of_key, zeroed};

/// Digits of the largest counter.
const DIGITS: usize = 20;

/// The page, from the host's text.
pub(super) fn text(facts: &ContainerSnapshot, host: &str) -> String {
    let free = value_of_key(host, "nr_free_pages")
        .map_or(u64::MAX, |pages| pages.saturating_mul(facts.page_size_bytes()));
    lines(host, facts, &MemoryAccount::new(facts, &HostMemoryBounds { free, ..HostMemoryBounds::UNKNOWN }))
}

/// The lines of `host` with the container's numbers.
pub(super) fn lines(host: &str, facts: &ContainerSnapshot, memory: &MemoryAccount) -> String {
    let mut out = String::with_capacity(host.len() * 2);
    for line in host.lines() {
        push(&mut out, line, |name| vm_counter(name, memory, facts));
    }
    out
}

/// Adds one `name number` line; the number is zero where the container has none of its own.
pub(super) fn push(out: &mut String, line: &str, of: impl Fn(&str) -> Option<u64>) {
    let name = line.split_ascii_whitespace().next().unwrap_or_default();
    match of(name) {
        Some(n) => {
            let head = before_number(line);
            let gap = if head.ends_with(' ') { "" } else { " " };
            push_line(out, &format!("{head}{gap}{n}"), head.len() + gap.len() + DIGITS);
        }
        None => push_line(out, &zeroed(line), 0),
    }
}

/// `line` up to its first number, the blanks before it included.
fn before_number(line: &str) -> &str {
    let bytes = line.as_bytes();
    let at = (1..bytes.len()).find(|i| bytes[*i].is_ascii_digit() && bytes[*i - 1] == b' ');
    at.map_or(line.trim_end(), |at| &line[..at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::sample::MemoryStat;
    use elbowroom_types::unit::Bytes;

    const HOST: &str = "nr_free_pages 1060759\nnr_active_anon 392\nnr_kernel_stack 1556\npgpgin 2136321\n\
        pgfault 4939165\npgalloc_dma32 4818560\noom_kill 8\npswpin 9\npswpout 9\ndirect_map_level2_splits 4\n";

    fn facts(n: u64) -> ContainerSnapshot {
        let memory_stat = MemoryStat {
            active_anon: Bytes::mib(n),
            kernel_stack: Bytes::kib(n),
            pgfault: n,
            pswpin: n,
            pswpout: n,
            ..MemoryStat::EMPTY
        };
        let mut facts = ContainerSnapshot {
            memory: Bytes::mib(512),
            memory_usage: Bytes::mib(500),
            memory_stat,
            oom_kills: n,
            ..ContainerSnapshot::EMPTY
        };
        facts.nr_disks = 1;
        facts.io[0].rbytes = Bytes::mib(n);
        facts
    }

    #[test]
    fn counters_are_the_containers_or_zero() {
        let page = text(&facts(3), HOST);
        let lines: Vec<&str> = page.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "nr_free_pages 3072",
                "nr_active_anon 768",
                "nr_kernel_stack 3",
                "pgpgin 3072",
                "pgfault 3",
                "pgalloc_dma32 0",
                "oom_kill 3",
                "pswpin 3",
                "pswpout 3",
                "direct_map_level2_splits 0"
            ]
        );
    }

    #[test]
    fn free_pages_are_never_more_than_the_hosts() {
        assert_eq!(value_of_key(&text(&facts(3), "nr_free_pages 7\n"), "nr_free_pages"), Some(7));
    }

    #[test]
    fn its_length_never_changes() {
        assert_eq!(text(&facts(0), HOST).len(), text(&facts(u64::MAX), HOST).len());
    }
}
