//! Lists and masks of CPUs: `/sys/devices/system/cpu/*` and the `*_siblings`, `*_cpus` and `shared_cpu_*` files below it
//! (drivers/base/cpu.c, drivers/base/topology.c, drivers/base/cacheinfo.c).
//!
//! | file | shown |
//! |---|---|
//! | `online` | the CPUs online in the view: the first `E` of the present ones |
//! | `present` `enabled` | the CPUs of the view: the first `UPPER` of its cpuset |
//! | `possible` | all up to the highest of its cpuset, for arrays that are indexed by the CPU that a thread is on |
//! | `offline` | computed: present, not online |
//! | `isolated` | host, those of it that are present |
//! | `cpuN/online` | `1` or `0` |
//! | masks and lists of topology, caches and frequencies | host, those of them that are present: the files keep their value while CPUs come and go |
//! | `cpuN/nodeM` | a link to its NUMA node, while it is online |
//! | `cpufreq/policyN` | a link to `cpuN/cpufreq`, where the host has that policy |
//! | `kernel_max` `modalias` `uevent` `cpu_capacity`, `topology/*_id`, the other `cache/*`, `acpi_cppc/*`, `vulnerabilities/*`, `smt/*` | host, byte for byte |
//! | `cpufreq/*` | host, with room for other values |
//!
//! A CPU has a directory when it is present. Directories of CPUs that are offline in the view keep their topology, which the kernel
//! would take away. So a program that asks for the cores of a CPU it read about an instant ago gets an answer, and the files never
//! change. A program that counts cores by listing these directories (psutil's `cpu_count(logical=False)`) counts those of the present
//! CPUs, the number that its container can grow to. CPU 0 has a directory always, which is not listed where CPU 0 is not present:
//! programs look there for caches and frequencies without asking which CPUs there are.

use elbowroom_types::cpuset::{CpuSet, MAX_CPUS};

/// How long the list of any subset of `present` that views show can be, with its newline: `online` is its beginning,
/// `offline` its end, and a range that is cut in two may begin with a longer number.
pub(super) fn list_size(present: &CpuSet) -> usize {
    present.to_string().len() + 1
}

/// [`list_size`] for a subset that does not begin where `present` does.
pub(super) fn tail_list_size(present: &CpuSet) -> usize {
    let longest = present.iter().last().map_or(0, |cpu| cpu.to_string().len());
    list_size(present) + longest - present.iter().next().map_or(longest, |cpu| cpu.to_string().len())
}

/// A list: the CPUs of the host's that are in `shown`.
pub(super) fn list(host: &str, shown: &CpuSet) -> String {
    let cpus: CpuSet = host.parse().unwrap_or_default();
    format!("{}\n", cpus.intersection(shown))
}

/// CPUs one by one (drivers/cpufreq/cpufreq.c `cpufreq_show_cpus`): those of the host's that are in `shown`.
pub(super) fn words(host: &str, shown: &CpuSet) -> String {
    let cpus = host.split_ascii_whitespace().filter_map(|word| word.parse().ok());
    let kept: Vec<String> = cpus.filter(|cpu| shown.contains(*cpu)).map(|cpu: u32| cpu.to_string()).collect();
    kept.join(" ") + "\n"
}

/// A mask in the kernel's form (`00ff`, `ff,ffffffff`; lib/vsprintf.c `bitmap_string`): the host's, with the bits of CPUs
/// that are not in `shown` cleared. Text that is no mask is no CPU.
pub(super) fn mask(host: &str, shown: &CpuSet) -> String {
    let host = host.trim();
    let nibbles = host.bytes().filter(|b| *b != b',').count();
    let mut left = nibbles;
    let mut out = String::with_capacity(host.len() + 1);
    for c in host.chars() {
        let Some(bits) = c.to_digit(16) else {
            out.push(if c == ',' { ',' } else { '0' });
            left -= usize::from(c != ',' && left > 0);
            continue;
        };
        left = left.saturating_sub(1);
        let kept = (0..4).filter(|bit| left < MAX_CPUS / 4 && shown.contains(left as u32 * 4 + bit));
        let kept = bits & kept.map(|bit| 1 << bit).sum::<u32>();
        out.push(char::from_digit(kept, 16).unwrap_or('0'));
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn masks_keep_the_kernels_form() {
        assert_eq!(mask("00ff\n", &set("4-11")), "00f0\n");
        assert_eq!(mask("3\n", &set("1")), "2\n");
        assert_eq!(mask("ff,ffffffff\n", &set("0,31-33,39")), "83,80000001\n");
        assert_eq!(mask("", &set("0-3")), "\n");
        assert_eq!(mask("zé\n", &set("0-7")), "00\n");
    }

    #[test]
    fn lists_are_those_of_the_host_that_are_shown() {
        assert_eq!(list("0-7\n", &set("4-11")), "4-7\n");
        assert_eq!(list("\n", &set("0")), "\n");
        assert_eq!(list("noise", &set("0")), "\n");
    }

    proptest! {
        #[test]
        fn beginnings_and_ends_of_a_list_fit_into_its_size(
            cpus in proptest::collection::btree_set(0u32..1024, 1..64), n in 0u32..64,
        ) {
            let present: CpuSet = cpus.into_iter().flat_map(|cpu| [cpu, cpu + 1, cpu + 2]).collect();
            let online = present.lowest(n);
            prop_assert!(online.to_string().len() < list_size(&present));
            prop_assert!(present.difference(&online).to_string().len() < tail_list_size(&present));
        }

        #[test]
        fn a_mask_never_has_a_cpu_that_is_not_shown_and_keeps_its_length(host in "\\PC{0,40}", n in 0u32..64) {
            let shown = CpuSet::first_n(n);
            let out = mask(&host, &shown);
            prop_assert_eq!(out.trim_end().chars().count(), host.trim().chars().count());
        }

        #[test]
        fn a_mask_and_a_list_say_the_same(cpus in proptest::collection::btree_set(0u32..128, 0..64), n in 0u32..128) {
            let word = |at: u32| (0..32).filter(|b| cpus.contains(&(at + b))).map(|b| 1u32 << b).sum::<u32>();
            let host = format!("{:08x},{:08x},{:08x},{:08x}", word(96), word(64), word(32), word(0));
            let shown = CpuSet::first_n(n);
            let expect = cpus.iter().copied().collect::<CpuSet>().intersection(&shown);
            let out = mask(&host, &shown);
            let bits: Vec<u32> = out.trim().split(',').rev().map(|w| u32::from_str_radix(w, 16).unwrap()).collect();
            let read: CpuSet = (0..128).filter(|cpu| bits[(cpu / 32) as usize] & (1 << (cpu % 32)) != 0).collect();
            prop_assert_eq!(read, expect);
        }
    }
}
