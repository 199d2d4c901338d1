//! The cgroup files that runtimes size themselves from. More of them read these than all of `/proc` and `/sys`.
//!
//! | file | shown |
//! |---|---|
//! | v2 `cpu.max`, v1 `cpu.cfs_quota_us` | computed: effective CPUs times the period; a quota below one CPU as it is |
//! | v1 `cpu.cfs_period_us` | container; 100 ms where it says nothing the kernel would accept |
//! | v1 `cpu.shares` | container |
//! | v2 `memory.max`, v1 `memory.limit_in_bytes` | effective memory, below the host's `MemTotal` by at least 4 KiB, whole pages |
//! | v2 `memory.high` | container, as its user set it; effective memory where there is none |
//! | v1 `memory.soft_limit_in_bytes` | container; not below effective memory |
//!
//! # Whole CPUs
//! Readers round a fraction in every direction, so only whole CPUs mean the same to all:
//!
//! | quota / period | Go >= 1.25 | Rust, libuv, Bun | JVM, .NET, joblib |
//! |---|---|---|---|
//! | 0.5 | 2 | 1 | 1 |
//! | 1 | 2 | 1 | 1 |
//! | 1.5 | 2 | 1 | 2 |
//! | 2 | 2 | 2 | 2 |
//! | 2.5 | 3 | 2 | 3 |
//!
//! A container with a quota of 1.5 CPUs is shown two: it may keep two busy, and is throttled as without us. Below one CPU
//! every reader says one (Go two) whether it sees the fraction or not, so the user's number stays: programs that compute
//! with it (throttling dashboards, autoscalers) keep it exact. Go cannot be told "one" by a quota at all.
//!
//! # Always a limit
//! `max` or `-1` is never shown for CPUs and memory, not to a container without any limit either: the view *is* a limit.
//! JDK 25 decides once, at start, that it is not in a container when it sees neither a limit nor read-only cgroup mounts,
//! and every JDK takes a memory limit of the machine's size or more for none. Hence `MemTotal - 4096` at most. Nor is `max`
//! shown in `memory.high`: libuv compares with `"max\n"` byte for byte and takes what is filled up with more newlines for
//! zero.
//!
//! # The soft limit
//! libuv (`uv_get_constrained_memory`, v1) takes the smaller of limit and soft limit. Effective memory starts at the soft
//! limit and grows; were the soft limit shown as it is, Node would never see it grow. `memory.high` is different: the kernel
//! holds a container there, so what the user set is the truth.

use super::meminfo::host_bounds;
use super::snapshot::{ContainerSnapshot, NO_LIMIT};
use elbowroom_types::unit::Micros;

/// Room for a single number: 20 digits and a newline, and below the 64 bytes at which Go refuses a limit file.
pub(super) const NUMBER_SIZE: u32 = 24;
/// Room for `cpu.max`.
pub(super) const CPU_MAX_SIZE: u32 = 32;

/// What v1 says for no limit: `PAGE_COUNTER_MAX` pages of 4 KiB.
const V1_NO_LIMIT: u64 = 0x7fff_ffff_ffff_f000;
/// Bounds and default of `cpu.cfs_period_us`, and the least quota (kernel/sched/core.c `max_cfs_quota_period`,
/// `min_cfs_quota_period`).
const VALID_PERIODS: std::ops::RangeInclusive<u64> = 1_000..=1_000_000;
const DEFAULT_PERIOD: Micros = Micros(100_000);

/// `cpu.cfs_period_us`, in microseconds.
pub(super) fn period(facts: &ContainerSnapshot) -> u64 {
    Some(facts.cpu_period.get()).filter(|p| VALID_PERIODS.contains(p)).unwrap_or(DEFAULT_PERIOD.get())
}

/// `cpu.cfs_quota_us`, in microseconds.
pub(super) fn quota(facts: &ContainerSnapshot) -> u64 {
    let quota = match facts.millicpu {
        fraction @ 1..1_000 => fraction * period(facts) / 1_000,
        _ => u64::from(facts.shown_online().count()) * period(facts),
    };
    quota.max(*VALID_PERIODS.start())
}

/// `cpu.max`.
pub(super) fn cpu_max(facts: &ContainerSnapshot) -> String {
    format!("{} {}\n", quota(facts), period(facts))
}

/// `memory.max` and `memory.limit_in_bytes`, in bytes, from the host's `/proc/meminfo`.
pub(super) fn memory_max(facts: &ContainerSnapshot, host: &str) -> u64 {
    let below_total = host_bounds(host, "").total.saturating_sub(4096);
    let limit = facts.memory.get().min(below_total).min(V1_NO_LIMIT);
    limit - limit % facts.page_size_bytes()
}

/// `memory.high`, in bytes, from the host's `/proc/meminfo`.
pub(super) fn memory_high(facts: &ContainerSnapshot, host: &str) -> u64 {
    if facts.memory_high == NO_LIMIT { memory_max(facts, host) } else { facts.memory_high }
}

/// `memory.soft_limit_in_bytes`, in bytes, from the host's `/proc/meminfo`.
pub(super) fn soft_limit(facts: &ContainerSnapshot, host: &str) -> u64 {
    facts.memory_soft.min(V1_NO_LIMIT).max(memory_max(facts, host))
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::cpuset::CpuSet;
    use elbowroom_types::unit::Bytes;

    const HOST: &str = "MemTotal:       24684092 kB\n";

    fn cpus(n: u32, millicpu: u64) -> ContainerSnapshot {
        ContainerSnapshot {
            online: CpuSet::first_n(n),
            present: CpuSet::first_n(n.max(4)),
            millicpu,
            ..ContainerSnapshot::EMPTY
        }
    }

    #[test]
    fn quotas_are_whole_cpus_and_a_fraction_below_one_stays() {
        let table = [
            (4, 4_000, "400000 100000\n"),
            (2, 1_500, "200000 100000\n"),
            (1, 1_000, "100000 100000\n"),
            (1, 500, "50000 100000\n"),
            (1, 1, "1000 100000\n"),
            (1, 0, "100000 100000\n"),
        ];
        for (n, millicpu, expect) in table {
            assert_eq!(cpu_max(&cpus(n, millicpu)), expect, "{n} CPUs, {millicpu} millicpu");
        }
    }

    /// The laws of the runtimes, on what is shown.
    #[test]
    fn go_rust_and_the_jvm_agree_on_the_number_of_cpus_from_two_up() {
        for n in 2..=8 {
            let facts = cpus(n, u64::from(n) * 1_000 - 500);
            let (quota, period) = (quota(&facts), period(&facts));
            let go = quota.div_ceil(period).max(2);
            let rust = (quota / period).max(1);
            let jvm = quota.div_ceil(period);
            assert_eq!([go, rust, jvm], [u64::from(n); 3]);
        }
    }

    #[test]
    fn a_period_the_kernel_would_refuse_is_its_default() {
        for (set, expect) in [(0, 100_000), (999, 100_000), (20_000, 20_000), (u64::MAX, 100_000)] {
            assert_eq!(
                period(&ContainerSnapshot { cpu_period: Micros(set), ..ContainerSnapshot::EMPTY }),
                expect
            );
        }
    }

    #[test]
    fn a_container_without_a_limit_shows_one_below_the_machines_memory() {
        assert_eq!(memory_max(&ContainerSnapshot::EMPTY, HOST), 24_684_092 * 1024 - 4096);
        let facts = ContainerSnapshot { memory: Bytes(300_000_001), ..ContainerSnapshot::EMPTY };
        assert_eq!(memory_max(&facts, HOST), 299_999_232);
        let large_pages = ContainerSnapshot { page_size: Bytes::kib(64), ..facts };
        assert_eq!(memory_max(&large_pages, HOST) % 65_536, 0);
        assert_eq!(memory_max(&ContainerSnapshot::EMPTY, ""), V1_NO_LIMIT);
    }

    #[test]
    fn a_soft_limit_does_not_hide_that_effective_memory_grew() {
        let facts =
            ContainerSnapshot { memory: Bytes::mib(300), memory_soft: 200 << 20, ..ContainerSnapshot::EMPTY };
        assert_eq!(soft_limit(&facts, HOST), 300 << 20);
        assert_eq!(soft_limit(&ContainerSnapshot { memory_soft: 400 << 20, ..facts }, HOST), 400 << 20);
        assert_eq!(soft_limit(&ContainerSnapshot { memory_soft: NO_LIMIT, ..facts }, HOST), V1_NO_LIMIT);
    }

    #[test]
    fn high_is_what_the_user_set_or_the_limit() {
        let facts = ContainerSnapshot { memory: Bytes::mib(300), ..ContainerSnapshot::EMPTY };
        assert_eq!(memory_high(&facts, HOST), 300 << 20);
        assert_eq!(memory_high(&ContainerSnapshot { memory_high: 7, ..facts }, HOST), 7);
    }

    #[test]
    fn the_longest_values_fit_their_files() {
        let facts = ContainerSnapshot { cpu_period: Micros(1_000_000), ..cpus(1024, u64::MAX) };
        assert!(cpu_max(&facts).len() <= CPU_MAX_SIZE as usize);
        assert!(format!("{}\n", u64::MAX).len() <= NUMBER_SIZE as usize);
    }
}
