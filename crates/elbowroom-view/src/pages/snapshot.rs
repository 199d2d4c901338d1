//! Everything a page may say about one container, as plain bytes: the agent writes it into memory it shares with the view
//! server, which renders pages from it. Fixed size, no pointers, no padding that is not named.

use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::io::IoStat;
use elbowroom_types::psi::Pressure;
use elbowroom_types::sample::MemoryStat;
use elbowroom_types::unit::{Bytes, Micros};

/// How many disks of a container a view has room for; more are left out of `diskstats`.
pub const MAX_DISKS: usize = 16;

/// A value that stands for "no limit" in the fields of [`ContainerSnapshot`] that say so.
pub const NO_LIMIT: u64 = u64::MAX;

/// One container's numbers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ContainerSnapshot {
    /// CPUs shown online.
    pub online: CpuSet,
    /// CPUs shown present: those that can come online.
    pub present: CpuSet,
    /// CPUs shown possible, with those that are present: all up to the highest that the container's threads may run on.
    pub possible: CpuSet,
    /// Effective CPU in thousandths.
    pub millicpu: u64,
    /// The container's own bandwidth period, in microseconds.
    pub cpu_period: Micros,
    /// The container's own share: v1 `cpu.shares` or v2 `cpu.weight`, raw.
    pub cpu_share: u64,
    /// Effective memory.
    pub memory: Bytes,
    /// Soft limit in force, in bytes, or [`NO_LIMIT`].
    pub memory_soft: u64,
    /// `memory.high` as the user set it, in bytes, or [`NO_LIMIT`].
    pub memory_high: u64,
    /// Memory charged.
    pub memory_usage: Bytes,
    /// Details of it.
    pub memory_stat: MemoryStat,
    /// Processes that the kernel killed for memory.
    pub oom_kills: u64,
    /// Swap the container may use, in bytes, or [`NO_LIMIT`].
    pub swap_max: u64,
    /// User and system CPU time of the container since it started.
    pub cpu_user: Micros,
    /// System CPU time.
    pub cpu_system: Micros,
    /// When the container started, on the boot clock (`CLOCK_BOOTTIME`).
    pub started: Micros,
    /// When these numbers were taken, on the boot clock.
    pub taken: Micros,
    /// Load averages over 1, 5 and 15 minutes, in hundredths.
    pub load: [u32; 3],
    /// Runnable threads.
    pub nr_running: u32,
    /// Threads.
    pub nr_threads: u32,
    /// Processes created; zero where not known.
    pub nr_processes: u32,
    /// `cpu.pressure`, `io.pressure`, `memory.pressure`.
    pub pressure: [Pressure; 3],
    /// How many of `io` are in use.
    pub nr_disks: u32,
    /// 1 where `pressure` is the container's own, 0 where this kernel or hierarchy has none and the host's is shown.
    pub has_pressure: u32,
    /// Disk transfer per device.
    pub io: [IoStat; MAX_DISKS],
    /// Page size of the machine; zero stands for 4 KiB.
    pub page_size: Bytes,
    /// NUMA nodes of the machine (`/sys/devices/system/node/online`), a set of node numbers; empty stands for node 0 alone.
    pub nodes: CpuSet,
    /// NUMA nodes that have a CPU of `present`; empty where not known, and the host's are shown.
    pub cpu_nodes: CpuSet,
    /// NUMA nodes the container may take memory from (`cpuset.mems.effective`); empty where not known, and all are shown.
    pub mems: CpuSet,
    /// Memory of these nodes; zero where not known, or on a machine of one node.
    pub mems_total: Bytes,
}

impl ContainerSnapshot {
    /// A container nothing is known of: one CPU, no limit, nothing used.
    pub const EMPTY: Self = Self {
        online: CpuSet::EMPTY,
        present: CpuSet::EMPTY,
        possible: CpuSet::EMPTY,
        millicpu: 1_000,
        cpu_period: Micros(100_000),
        cpu_share: 0,
        memory: Bytes(NO_LIMIT),
        memory_soft: NO_LIMIT,
        memory_high: NO_LIMIT,
        memory_usage: Bytes::ZERO,
        memory_stat: MemoryStat::EMPTY,
        oom_kills: 0,
        swap_max: NO_LIMIT,
        cpu_user: Micros::ZERO,
        cpu_system: Micros::ZERO,
        started: Micros::ZERO,
        taken: Micros::ZERO,
        load: [0; 3],
        nr_running: 0,
        nr_threads: 0,
        nr_processes: 0,
        pressure: [Pressure::EMPTY; 3],
        nr_disks: 0,
        has_pressure: 0,
        io: [IoStat::EMPTY; MAX_DISKS],
        page_size: Bytes::kib(4),
        nodes: CpuSet::EMPTY,
        cpu_nodes: CpuSet::EMPTY,
        mems: CpuSet::EMPTY,
        mems_total: Bytes::ZERO,
    };

    /// CPUs to show present: never none, for a machine without a CPU is one no program was written for.
    pub fn shown_present(&self) -> CpuSet {
        if self.present.is_empty() { CpuSet::first_n(1) } else { self.present }
    }

    /// CPUs to show possible: programs size arrays by their number or by the highest, and take it that no affinity is wider.
    pub(crate) fn shown_possible(&self) -> CpuSet {
        self.shown_present().iter().chain(self.possible.iter()).collect()
    }

    /// CPUs to show online: those of `online` that are present, or the first present one.
    pub(crate) fn shown_online(&self) -> CpuSet {
        let present = self.shown_present();
        let online = self.online.intersection(&present);
        if online.is_empty() { present.lowest(1) } else { online }
    }

    /// NUMA nodes to show: never none.
    pub fn shown_nodes(&self) -> CpuSet {
        if self.nodes.is_empty() { CpuSet::first_n(1) } else { self.nodes }
    }

    /// Page size, never zero.
    pub(crate) fn page_size_bytes(&self) -> u64 {
        if self.page_size.get() == 0 { 4096 } else { self.page_size.get() }
    }

    /// The devices of `io` in use.
    pub fn disks(&self) -> &[IoStat] {
        &self.io[..(self.nr_disks as usize).min(MAX_DISKS)]
    }
}

impl Default for ContainerSnapshot {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// What one CPU that the container sees has done for it, since the container started. Only ever grows, also when CPUs come
/// and go from the view. Where pages take a slice of these, it goes by CPU number; CPUs past its end have done nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CpuTimes {
    /// Time in user mode.
    pub user: Micros,
    /// Time in the kernel.
    pub system: Micros,
    /// Time the view's CPU was free.
    pub idle: Micros,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds up the sizes of the named fields, and does not compile when one is left out.
    macro_rules! bytes_of {
        ($type:ident { $($field:ident),* $(,)? }, $value:expr) => {{
            let $type { $($field),* } = $value;
            0 $(+ size_of_val(&$field))*
        }};
    }

    #[test]
    fn the_layout_has_no_hidden_bytes() {
        let facts = bytes_of!(
            ContainerSnapshot {
                online,
                present,
                possible,
                millicpu,
                cpu_period,
                cpu_share,
                memory,
                memory_soft,
                memory_high,
                memory_usage,
                memory_stat,
                oom_kills,
                swap_max,
                cpu_user,
                cpu_system,
                started,
                taken,
                load,
                nr_running,
                nr_threads,
                nr_processes,
                pressure,
                nr_disks,
                has_pressure,
                io,
                page_size,
                nodes,
                cpu_nodes,
                mems,
                mems_total,
            },
            ContainerSnapshot::EMPTY
        );
        assert_eq!(facts, size_of::<ContainerSnapshot>());
        assert_eq!(bytes_of!(CpuTimes { user, system, idle }, CpuTimes::default()), size_of::<CpuTimes>());
        assert_eq!(size_of::<IoStat>(), 2 * 4 + 6 * 8);
        assert_eq!(size_of::<MemoryStat>(), 26 * 8);
        assert_eq!(size_of::<Pressure>(), 2 * (4 * 4 + 8));
    }

    #[test]
    fn a_container_nothing_is_known_of_still_has_a_cpu_and_a_node() {
        let facts =
            ContainerSnapshot { nr_disks: 99, page_size: Bytes::ZERO, ..ContainerSnapshot::default() };
        assert_eq!(facts.shown_online(), CpuSet::first_n(1));
        assert_eq!(facts.shown_present(), CpuSet::first_n(1));
        assert_eq!(facts.shown_nodes(), CpuSet::first_n(1));
        assert_eq!(facts.page_size_bytes(), 4096);
        assert_eq!(facts.disks().len(), MAX_DISKS);
    }

    #[test]
    fn what_is_possible_changes_nothing_else() {
        let allowed = |possible: &str| ContainerSnapshot {
            present: "0-1".parse().unwrap(),
            possible: possible.parse().unwrap(),
            ..ContainerSnapshot::EMPTY
        };
        for (possible, expect) in [("0-63", "0-63"), ("", "0-1"), ("1-2", "0-2"), ("0,9", "0-1,9")] {
            let facts = allowed(possible);
            assert_eq!(facts.shown_possible().to_string(), expect);
            assert_eq!(
                (facts.shown_present().to_string(), facts.shown_online().to_string()),
                ("0-1".into(), "0".into())
            );
        }
    }

    #[test]
    fn a_cpu_that_is_not_present_is_not_online() {
        let facts = ContainerSnapshot {
            online: "0-3".parse().unwrap(),
            present: "2-5".parse().unwrap(),
            ..ContainerSnapshot::EMPTY
        };
        assert_eq!(facts.shown_online().to_string(), "2-3");
    }
}
