//! `/proc/swaps` (mm/swapfile.c `swap_show`).
//!
//! | field | shown |
//! |---|---|
//! | header | host, byte for byte |
//! | rows | one, where the container may swap and the machine can; none otherwise |
//! | file name, type | `none`, `virtual`: which devices the host swaps to is its own business |
//! | size | the container's swap limit, at most the host's |
//! | used | container: `swap`; at least what the host's devices leave it no room for |
//! | priority | 0 |
//!
//! `SwapTotal` and `SwapFree` of `/proc/meminfo` say the same.

use super::memory::{HostMemoryBounds, MemoryAccount};
use super::snapshot::ContainerSnapshot;
use super::text::push_line;

/// Room for the row: name, type, two numbers of up to 17 digits, priority, blanks.
const WIDTH: usize = 40 + 9 + 2 * 19 + 3;

/// The page, from the host's text.
pub(super) fn text(facts: &ContainerSnapshot, host: &str) -> String {
    let mut lines = host.lines();
    let Some(header) = lines.next() else { return String::new() };
    let (size, used) = lines
        .filter_map(size_and_used)
        .fold((0u64, 0u64), |(size, used), (s, u)| (size.saturating_add(s), used.saturating_add(u)));
    let bounds = HostMemoryBounds {
        swap_total: size.saturating_mul(1024),
        swap_free: size.saturating_sub(used).saturating_mul(1024),
        ..HostMemoryBounds::UNKNOWN
    };
    let memory = MemoryAccount::new(facts, &bounds);
    let (total, free) = (memory.swap_total >> 10, memory.swap_free >> 10);
    let mut out = String::with_capacity(header.len() + WIDTH + 2);
    if total == 0 {
        push_line(&mut out, header, header.len() + 1 + WIDTH);
        return out;
    }
    push_line(&mut out, header, 0);
    let tab = |n: u64| if n < 10_000_000 { "\t" } else { "" };
    let used = total - free;
    let row = format!("{:<40}virtual\t\t{total}\t{}{used}\t{}0", "none", tab(total), tab(used));
    push_line(&mut out, &row, WIDTH);
    out
}

/// Sizes of one row, in KiB. The columns are counted from the end: a file name may hold anything.
fn size_and_used(row: &str) -> Option<(u64, u64)> {
    let mut words = row.split_ascii_whitespace().rev().skip(1);
    let used = words.next()?.parse().ok()?;
    Some((words.next()?.parse().ok()?, used))
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::sample::MemoryStat;
    use elbowroom_types::unit::Bytes;

    const HOST: &str = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
        /dev/vdb                                partition\t131068\t\t1000\t\t-2\n\
        /swap\\040file                          file\t\t20000000\t0\t\t-3\n";

    fn facts(swap_max: u64) -> ContainerSnapshot {
        let memory_stat = MemoryStat { swap: Bytes::mib(3), ..MemoryStat::EMPTY };
        ContainerSnapshot { swap_max, memory_stat, ..ContainerSnapshot::EMPTY }
    }

    #[test]
    fn a_container_with_a_swap_limit_sees_it_as_one_device() {
        let page = text(&facts(64 << 20), HOST);
        assert_eq!(
            page.lines().nth(1).unwrap().trim_end(),
            format!("{:<40}virtual\t\t65536\t\t3072\t\t0", "none")
        );
        assert!(!page.contains("vdb") && !page.contains("swap\\040file"));
    }

    #[test]
    fn no_limit_is_the_hosts_swap_and_a_limit_of_zero_is_none() {
        assert!(text(&facts(u64::MAX), HOST).contains("\t20131068\t"));
        assert_eq!(text(&facts(0), HOST).lines().count(), 1);
        assert_eq!(text(&facts(u64::MAX), HOST.lines().next().unwrap()).lines().count(), 1);
    }

    #[test]
    fn its_length_never_changes() {
        let header = HOST.lines().next().unwrap();
        for host in [HOST, header] {
            for limit in [0, 1 << 20, 1 << 40, u64::MAX] {
                assert_eq!(text(&facts(limit), host).len(), text(&facts(0), header).len());
            }
        }
    }
}
