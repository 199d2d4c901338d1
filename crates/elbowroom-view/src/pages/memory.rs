//! A container's memory as numbers that add up, whatever the kernel's counters said while they were being read.
//!
//! # Problem
//! Effective memory `E`, the usage and the keys of `memory.stat` are read at different instants, and `E` may be *below* the
//! usage (Algorithm 2 goes back to the soft limit when the node runs short). Subtracting them as they come gives negative
//! "used" columns and free memory the machine does not have.
//!
//! # Properties (each has a test of its name below)
//! - `free_is_at_most_available_is_at_most_total`
//! - `used_grows_with_usage`: `total - free` never shrinks while usage grows.
//! - `parts_fit_into_what_is_used`: page cache and slab are never more than `total - free`, so that no tool's "used" goes
//!   below zero.
//! - `the_hosts_free_memory_bounds_the_containers`: a container without a limit does not see memory its neighbours hold.

use super::snapshot::ContainerSnapshot;

/// What bounds a container's memory on this machine, in bytes; `u64::MAX` where the text of the page does not tell.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostMemoryBounds {
    pub(super) total: u64,
    pub(super) free: u64,
    pub(super) available: u64,
    pub(super) swap_total: u64,
    pub(super) swap_free: u64,
}

impl HostMemoryBounds {
    /// No bound at all.
    pub(super) const UNKNOWN: Self = Self {
        total: u64::MAX,
        free: u64::MAX,
        available: u64::MAX,
        swap_total: u64::MAX,
        swap_free: u64::MAX,
    };
}

/// One consistent account, in bytes. Names as in `/proc/meminfo`.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryAccount {
    pub(super) total: u64,
    pub(super) free: u64,
    pub(super) available: u64,
    pub(super) cached: u64,
    pub(super) swap_cached: u64,
    pub(super) active_anon: u64,
    pub(super) inactive_anon: u64,
    pub(super) active_file: u64,
    pub(super) inactive_file: u64,
    pub(super) unevictable: u64,
    pub(super) swap_total: u64,
    pub(super) swap_free: u64,
    pub(super) dirty: u64,
    pub(super) writeback: u64,
    pub(super) anon_pages: u64,
    pub(super) anon_huge_pages: u64,
    pub(super) mapped: u64,
    pub(super) shmem: u64,
    pub(super) slab_reclaimable: u64,
    pub(super) slab_unreclaimable: u64,
    pub(super) kernel_stack: u64,
    pub(super) page_tables: u64,
}

impl MemoryAccount {
    /// The account of one container on one machine.
    pub(super) fn new(facts: &ContainerSnapshot, host: &HostMemoryBounds) -> Self {
        let (stat, usage) = (&facts.memory_stat, facts.memory_usage.get());
        let total = facts.memory.get().min(host.total);
        let used = usage.min(total);
        let reclaimable =
            stat.inactive_file.saturating_add(stat.active_file).saturating_add(stat.slab_reclaimable);
        let available =
            total.saturating_add(reclaimable.get()).saturating_sub(usage).min(host.available).min(total);
        let free = (total - used).min(host.free).min(available);

        // The parts of `used` that tools subtract from it, in order of what is most useful to see whole.
        let cached = stat.file.saturating_sub(stat.swapcached).get().min(used);
        let slab_reclaimable = stat.slab_reclaimable.get().min(used - cached);
        let slab_unreclaimable = stat.slab_unreclaimable.get().min(used - cached - slab_reclaimable);
        let inactive_file = stat.inactive_file.get().min(cached);
        let active_anon = stat.active_anon.get().min(used);
        let anon_pages = stat.anon.get().min(used);

        let swap_total = facts.swap_max.min(host.swap_total);
        Self {
            total,
            free,
            available,
            cached,
            swap_cached: stat.swapcached.get().min(used - cached),
            active_anon,
            inactive_anon: stat.inactive_anon.get().min(used - active_anon),
            active_file: stat.active_file.get().min(cached - inactive_file),
            inactive_file,
            unevictable: stat.unevictable.get().min(used),
            swap_total,
            swap_free: swap_total.saturating_sub(stat.swap.get()).min(host.swap_free),
            dirty: stat.file_dirty.get().min(cached),
            writeback: stat.file_writeback.get().min(cached),
            anon_pages,
            anon_huge_pages: stat.anon_thp.get().min(anon_pages),
            mapped: stat.file_mapped.get().min(cached),
            shmem: stat.shmem.get().min(cached),
            slab_reclaimable,
            slab_unreclaimable,
            kernel_stack: stat.kernel_stack.get().min(used),
            page_tables: stat.pagetables.get().min(used),
        }
    }
}

/// The value of a line of `/proc/vmstat`, or of the lists of the same names in `/proc/zoneinfo` and `node*/vmstat`, where a
/// container has one of its own; `None` for the host's.
///
/// Pages, but for `nr_kernel_stack` (KiB), `pgpgin` and `pgpgout` (KiB of disk transfer), the `*fault` events, and
/// `nr_anon_transparent_hugepages` (huge pages, 2 MiB): mm/vmstat.c `vmstat_start`.
pub(super) fn vm_counter(name: &str, memory: &MemoryAccount, facts: &ContainerSnapshot) -> Option<u64> {
    let pages = |bytes: u64| bytes / facts.page_size_bytes();
    let transfer = |of: fn(&elbowroom_types::io::IoStat) -> u64| {
        facts.disks().iter().map(of).fold(0, u64::saturating_add) / 1024
    };
    Some(match name {
        "nr_free_pages" => pages(memory.free),
        "nr_inactive_anon" | "nr_zone_inactive_anon" => pages(memory.inactive_anon),
        "nr_active_anon" | "nr_zone_active_anon" => pages(memory.active_anon),
        "nr_inactive_file" | "nr_zone_inactive_file" => pages(memory.inactive_file),
        "nr_active_file" | "nr_zone_active_file" => pages(memory.active_file),
        "nr_unevictable" | "nr_zone_unevictable" => pages(memory.unevictable),
        "nr_zone_write_pending" => pages(memory.dirty.saturating_add(memory.writeback)),
        "nr_slab_reclaimable" => pages(memory.slab_reclaimable),
        "nr_slab_unreclaimable" => pages(memory.slab_unreclaimable),
        "nr_anon_pages" => pages(memory.anon_pages),
        "nr_anon_transparent_hugepages" => memory.anon_huge_pages >> 21,
        "nr_mapped" => pages(memory.mapped),
        "nr_file_pages" => pages(memory.cached.saturating_add(memory.swap_cached)),
        "nr_dirty" => pages(memory.dirty),
        "nr_writeback" => pages(memory.writeback),
        "nr_shmem" => pages(memory.shmem),
        "nr_kernel_stack" => memory.kernel_stack >> 10,
        "nr_page_table_pages" => pages(memory.page_tables),
        "nr_swapcached" => pages(memory.swap_cached),
        "pgfault" => facts.memory_stat.pgfault,
        "pgmajfault" => facts.memory_stat.pgmajfault,
        "pswpin" => facts.memory_stat.pswpin,
        "pswpout" => facts.memory_stat.pswpout,
        "oom_kill" => facts.oom_kills,
        "pgpgin" => transfer(|io| io.rbytes.get()),
        "pgpgout" => transfer(|io| io.wbytes.get()),
        "workingset_refault_file" => facts.memory_stat.workingset_refault_file,
        "workingset_refault_anon" => facts.memory_stat.workingset_refault_anon,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::sample::MemoryStat;
    use elbowroom_types::unit::Bytes;
    use proptest::prelude::*;

    fn facts(memory: u64, usage: u64, stat: MemoryStat) -> ContainerSnapshot {
        ContainerSnapshot {
            memory: Bytes(memory),
            memory_usage: Bytes(usage),
            memory_stat: stat,
            ..ContainerSnapshot::EMPTY
        }
    }

    /// Half the numbers small, half from the whole range, so that both sums and overflows are met.
    fn amount() -> impl Strategy<Value = u64> {
        prop_oneof![0..1u64 << 36, any::<u64>()]
    }

    prop_compose! {
        fn stats()(v in proptest::collection::vec(amount(), 12)) -> MemoryStat {
            let b = |i: usize| Bytes(v[i]);
            MemoryStat {
                anon: b(0), anon_thp: b(1), file: b(2), file_mapped: b(3), shmem: b(4), inactive_anon: b(5),
                active_anon: b(6), inactive_file: b(7), active_file: b(8), slab_reclaimable: b(9),
                slab_unreclaimable: b(10), swapcached: b(11), ..MemoryStat::EMPTY
            }
        }
    }

    prop_compose! {
        fn hosts()(v in proptest::collection::vec(amount(), 5)) -> HostMemoryBounds {
            HostMemoryBounds { total: v[0], free: v[1], available: v[2], swap_total: v[3], swap_free: v[4] }
        }
    }

    proptest! {
        #[test]
        fn free_is_at_most_available_is_at_most_total(
            e in amount(), usage in amount(), stat in stats(), host in hosts(),
        ) {
            let m = MemoryAccount::new(&facts(e, usage, stat), &host);
            prop_assert!(m.free <= m.available && m.available <= m.total && m.total <= e);
            prop_assert!(m.swap_free <= m.swap_total);
        }

        #[test]
        fn used_grows_with_usage(e in amount(), usage in amount(), more in amount(), stat in stats(), host in hosts()) {
            let used = |usage| {
                let m = MemoryAccount::new(&facts(e, usage, stat), &host);
                m.total - m.free
            };
            prop_assert!(used(usage) <= used(usage.saturating_add(more)));
        }

        #[test]
        fn parts_fit_into_what_is_used(e in amount(), usage in amount(), stat in stats(), host in hosts()) {
            let m = MemoryAccount::new(&facts(e, usage, stat), &host);
            let used = m.total - m.free;
            prop_assert!(m.cached + m.slab_reclaimable + m.slab_unreclaimable <= used);
            prop_assert!(m.active_file + m.inactive_file <= m.cached);
            prop_assert!(m.active_anon + m.inactive_anon <= used);
            prop_assert!(m.shmem <= m.cached && m.mapped <= m.cached && m.anon_huge_pages <= m.anon_pages);
        }

        #[test]
        fn the_hosts_free_memory_bounds_the_containers(e in amount(), usage in amount(), stat in stats(), host in hosts()) {
            let m = MemoryAccount::new(&facts(e, usage, stat), &host);
            prop_assert!(m.free <= host.free && m.available <= host.available && m.total <= host.total);
        }
    }

    #[test]
    fn usage_above_effective_memory_is_no_free_memory_and_no_wrap() {
        let stat = MemoryStat { file: Bytes::mib(900), inactive_file: Bytes::mib(700), ..MemoryStat::EMPTY };
        let m = MemoryAccount::new(&facts(1 << 30, 3 << 29, stat), &HostMemoryBounds::UNKNOWN);
        assert_eq!((m.total, m.free), (1 << 30, 0));
        assert_eq!(m.available, (1 << 30) + (700 << 20) - (3 << 29));
    }
}
