//! System calls that programs ask instead of files, as bytes: what `sched_getaffinity` and `sysinfo` say of a view.

use super::mapped::MappedView;
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::unit::Micros;

/// Bytes of `struct sysinfo` on 64-bit machines (`include/uapi/linux/sysinfo.h`).
pub(crate) const SYSINFO_SIZE: usize = 112;

/// As many CPUs of `mask`, which the kernel really uses, as the view shows, under their own numbers. The first depends on
/// `turn`: programs that pin their threads to what they are shown are not all on the same CPUs. `None` where the mask itself
/// is the answer.
pub fn affinity(mask: &CpuSet, view: &MappedView, turn: u64) -> Option<CpuSet> {
    let there_are = mask.count();
    if view.cpus == 0 || view.cpus >= there_are {
        return None;
    }
    let first = (turn % u64::from(there_are)) as usize;
    let all = mask.iter().chain(mask.iter());
    Some(all.skip(first).take(view.cpus as usize).collect())
}

/// A CPU mask as the kernel writes it: `nr_cpus` bits, in whole words.
pub fn mask_bytes(mask: &CpuSet, nr_cpus: u32) -> Vec<u8> {
    let mut words = vec![0u64; nr_cpus.div_ceil(64) as usize];
    for cpu in mask.iter() {
        if let Some(word) = words.get_mut(cpu as usize / 64) {
            *word |= 1 << (cpu % 64);
        }
    }
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// What of the host's `struct sysinfo` stays true in a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostSysinfo {
    /// `freeram`, in bytes.
    pub free: u64,
    /// `totalswap` and `freeswap`, in bytes.
    pub swap: [u64; 2],
}

/// `struct sysinfo` of a container: the numbers of `libelbowroom-libc` (`shim/libc.c`), in bytes. `now` is of the boot clock.
pub fn sysinfo(view: &MappedView, host: &HostSysinfo, now: Micros) -> [u8; SYSINFO_SIZE] {
    let uptime = now.get() / 1_000_000;
    // Fixed point with 16 bits, as the kernel has it (`SI_LOAD_SHIFT`).
    let load = view.load.map(|load| u64::from(load) * 65_536 / 100);
    let left = view.memory.saturating_sub(view.memory_used).get();
    let words = [
        uptime,
        load[0],
        load[1],
        load[2],
        view.memory.get(),
        left.min(host.free),
        0, // sharedram
        0, // bufferram
        host.swap[0],
        host.swap[1],
    ];
    let mut bytes = [0; SYSINFO_SIZE];
    for (at, word) in words.iter().enumerate() {
        bytes[at * 8..at * 8 + 8].copy_from_slice(&word.to_ne_bytes());
    }
    let procs = u16::try_from(view.threads).unwrap_or(u16::MAX);
    bytes[80..82].copy_from_slice(&procs.to_ne_bytes());
    // No high memory; `mem_unit` is a byte.
    bytes[104..108].copy_from_slice(&1u32.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::unit::Bytes;
    use proptest::prelude::*;

    fn view(cpus: u32) -> MappedView {
        MappedView { cpus, ..MappedView::DETACHED }
    }

    proptest! {
        #[test]
        fn a_shown_mask_is_always_part_of_the_real_one(cpus in prop::collection::btree_set(0u32..1024, 1..80), n in 0u32..100, turn in any::<u64>()) {
            let mask: CpuSet = cpus.into_iter().collect();
            match affinity(&mask, &view(n), turn) {
                Some(shown) => {
                    prop_assert_eq!(shown.count(), n);
                    prop_assert_eq!(shown.intersection(&mask), shown);
                    prop_assert!(n < mask.count());
                }
                None => prop_assert!(n == 0 || n >= mask.count()),
            }
        }
    }

    #[test]
    fn containers_begin_at_different_cpus() {
        let mask = CpuSet::first_n(4);
        let shown = |turn| affinity(&mask, &view(2), turn).unwrap().to_string();
        assert_eq!([0, 1, 3, 4].map(shown), ["0-1", "1-2", "0,3", "0-1"]);
    }

    #[test]
    fn a_mask_has_the_bytes_of_the_kernel() {
        assert_eq!(mask_bytes(&[0, 9].into_iter().collect(), 10), 0x201u64.to_ne_bytes());
        assert_eq!(mask_bytes(&CpuSet::first_n(65), 65).len(), 16);
    }

    #[test]
    fn the_structure_is_where_the_kernel_has_it() {
        let view = MappedView {
            memory: Bytes(1000),
            memory_used: Bytes(400),
            threads: 7,
            load: [150, 0, 0],
            ..view(1)
        };
        let bytes = sysinfo(&view, &HostSysinfo { free: 500, swap: [3, 2] }, Micros::secs(15));
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!([0, 8, 32, 40, 64, 72].map(word), [15, 98_304, 1000, 500, 3, 2]);
        assert_eq!((word(80) & 0xffff, word(104)), (7, 1));
    }
}
