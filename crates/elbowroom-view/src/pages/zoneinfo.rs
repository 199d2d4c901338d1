//! `/proc/zoneinfo` (mm/vmstat.c `zoneinfo_show_print`).
//!
//! | part | shown |
//! |---|---|
//! | `Node N, zone X` | host: which zones there are |
//! | `per-node stats` | container, as in [`super::vmstat`], on the node that has the host's largest zone; 0 on others |
//! | `free` `spanned` `present` `managed` | container: free and effective memory, in the host's largest zone; 0 in others |
//! | counters after `pages` | container in the largest zone; 0 in others |
//! | `min` `low` `high` and the other watermarks, `protection`, `start_pfn`, thresholds | 0: the host's reclaim, not the container's |
//! | `cpu: N` under `pagesets` | for present CPUs, with zeroes; those of other CPUs are left out |
//!
//! A container's memory is not divided into zones. It is shown in one, so that the sum over all zones is what
//! `/proc/meminfo` says.

use super::memory::{HostMemoryBounds, MemoryAccount, vm_counter};
use super::snapshot::ContainerSnapshot;
use super::text::{first_number, value_of_key};
use super::vmstat::push;

/// The page, from the host's text.
pub(super) fn text(facts: &ContainerSnapshot, host: &str) -> String {
    let zones = zones(host);
    let largest = zones.iter().enumerate().max_by_key(|(_, z)| z.managed).map_or(0, |(i, _)| i);
    let pages = |of: fn(&ZoneRecord) -> u64| {
        zones.iter().map(of).fold(0, u64::saturating_add).saturating_mul(facts.page_size_bytes())
    };
    let bounds = HostMemoryBounds {
        total: pages(|z| z.managed),
        free: pages(|z| z.free),
        ..HostMemoryBounds::UNKNOWN
    };
    let memory = MemoryAccount::new(facts, &bounds);
    let present = facts.shown_present();

    let mut out = String::with_capacity(host.len() * 2);
    for (i, zone) in zones.iter().enumerate() {
        let (here, same_node) = (i == largest, zone.node == zones[largest].node);
        let (mut per_node, mut skipped) = (false, false);
        for (nth, line) in zone.text.lines().enumerate() {
            let words = line.trim_start();
            if nth == 0 {
                out.push_str(line);
                out.push('\n');
                continue;
            }
            if let Some(cpu) = words.strip_prefix("cpu:") {
                let cpu =
                    first_number(cpu).and_then(|n| u32::try_from(n).ok()).filter(|n| present.contains(*n));
                skipped = cpu.is_none();
                if cpu.is_some() {
                    out.push_str(line);
                    out.push('\n');
                }
                continue;
            }
            // A CPU's part ends at the next line of the zone itself: two blanks deep, but not its own threshold.
            skipped &= line.len() - words.len() != 2 || words.starts_with("vm stats");
            if skipped {
                continue;
            }
            per_node = words == "per-node stats" || per_node && !words.starts_with("pages free");
            push(&mut out, line, |name| match name {
                _ if per_node => vm_counter(name, &memory, facts).filter(|_| same_node),
                "spanned" | "present" | "managed" => here.then_some(memory.total / facts.page_size_bytes()),
                "pages" if words.starts_with("pages free") => {
                    here.then_some(memory.free / facts.page_size_bytes())
                }
                _ => vm_counter(name, &memory, facts).filter(|_| here),
            });
        }
    }
    out
}

struct ZoneRecord<'a> {
    text: &'a str,
    node: &'a str,
    managed: u64,
    free: u64,
}

fn zones(host: &str) -> Vec<ZoneRecord<'_>> {
    let mut starts: Vec<usize> = host.match_indices("Node ").map(|(at, _)| at).collect();
    starts.retain(|at| *at == 0 || host.as_bytes()[at - 1] == b'\n');
    let ends = starts.iter().skip(1).copied().chain([host.len()]);
    let zone = |(start, end): (usize, usize)| {
        let text = &host[start..end];
        let node = text.split_once(',').map_or("", |(node, _)| node);
        let free = value_of_key(text, "pages free").unwrap_or(0);
        ZoneRecord { text, node, managed: value_of_key(text, "managed").unwrap_or(0), free }
    };
    starts.iter().copied().zip(ends).map(zone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::cpuset::CpuSet;
    use elbowroom_types::sample::MemoryStat;
    use elbowroom_types::unit::Bytes;

    const HOST: &str = "Node 0, zone    DMA32\n  per-node stats\n      nr_active_anon 392\n      nr_mapped    2707\n\
        \x20 pages free     772917\n        min      11161\n        managed  772917\n\
        \x20       protection: (0, 0, 1536)\n      nr_free_pages 772917\n  pagesets\n    cpu: 0\n\
        \x20             count:    5\n  vm stats threshold: 24\n    cpu: 1\n              count:    6\n\
        \x20 vm stats threshold: 24\n  node_unreclaimable:  0\n  start_pfn:           4096\n\
        Node 1, zone   Normal\n  per-node stats\n      nr_active_anon 393\n  pages free     900000\n\
        \x20       managed  900001\n      nr_free_pages 900000\n";

    fn facts(usage: u64) -> ContainerSnapshot {
        ContainerSnapshot {
            memory: Bytes::mib(512),
            memory_usage: Bytes::mib(usage),
            memory_stat: MemoryStat { active_anon: Bytes::mib(usage), ..MemoryStat::EMPTY },
            present: CpuSet::first_n(1),
            online: CpuSet::first_n(1),
            ..ContainerSnapshot::EMPTY
        }
    }

    #[test]
    fn the_containers_memory_is_in_the_largest_zone_and_nothing_else_is_told() {
        let page = text(&facts(128), HOST);
        let lines: Vec<&str> = page.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "Node 0, zone    DMA32",
                "  per-node stats",
                "      nr_active_anon 0",
                "      nr_mapped    0",
                "  pages free     0",
                "        min      0",
                "        managed  0",
                "        protection: (0, 0, 0)",
                "      nr_free_pages 0",
                "  pagesets",
                "    cpu: 0",
                "              count:    0",
                "  vm stats threshold: 0",
                "  node_unreclaimable:  0",
                "  start_pfn:           0",
                "Node 1, zone   Normal",
                "  per-node stats",
                "      nr_active_anon 32768",
                "  pages free     98304",
                "        managed  131072",
                "      nr_free_pages 98304"
            ]
        );
    }

    #[test]
    fn its_length_never_changes() {
        assert_eq!(text(&facts(0), HOST).len(), text(&facts(u64::MAX >> 20), HOST).len());
    }
}
