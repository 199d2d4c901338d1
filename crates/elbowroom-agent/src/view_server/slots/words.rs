//! Words as numbers, and numbers as words. `tests/models` runs this file under Miri.

use super::TIMES_WORDS;
use elbowroom_view::pages::snapshot::{ContainerSnapshot, CpuTimes};
use std::mem::{MaybeUninit, size_of};
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes bytes, a whole number of words, relaxed.
pub(super) fn store_bytes(words: &[AtomicU64], bytes: &[u8]) {
    for (word, part) in words.iter().zip(bytes.as_chunks::<8>().0) {
        word.store(u64::from_ne_bytes(*part), Ordering::Relaxed);
    }
}

/// The bytes of [`ContainerSnapshot`].
pub(super) fn facts_bytes(facts: &ContainerSnapshot) -> &[u8] {
    const { assert!(size_of::<ContainerSnapshot>() == NAMED_BYTES, "Facts has padding that is not named") };
    // SAFETY: `ContainerSnapshot` is `repr(C)` of integers only, and the assertion above says that its size is the sum of its
    // fields' sizes. The fields have no padding themselves, being multiples of their alignment. So every byte is initialised.
    unsafe {
        std::slice::from_raw_parts(std::ptr::from_ref(facts).cast::<u8>(), size_of::<ContainerSnapshot>())
    }
}

/// Reads [`ContainerSnapshot`] back, relaxed.
pub(super) fn load_facts(words: &[AtomicU64]) -> ContainerSnapshot {
    assert_eq!(words.len() * 8, size_of::<ContainerSnapshot>());
    let mut facts = MaybeUninit::<ContainerSnapshot>::uninit();
    let to = facts.as_mut_ptr().cast::<u64>();
    for (i, word) in words.iter().enumerate() {
        // SAFETY: the assertion says that `i` stays inside `facts`, whose alignment is that of u64 (asserted below).
        unsafe { to.add(i).write(word.load(Ordering::Relaxed)) };
    }
    const { assert!(align_of::<ContainerSnapshot>() == align_of::<u64>()) };
    // SAFETY: every byte was written just now, and `ContainerSnapshot` is `repr(C)` of integers, for which any bytes are a value.
    unsafe { facts.assume_init() }
}

/// Reads [`CpuTimes`] back, relaxed.
pub(super) fn load_times(words: &[AtomicU64]) -> CpuTimes {
    let at = |i: usize| elbowroom_types::unit::Micros(words[i].load(Ordering::Relaxed));
    CpuTimes { user: at(0), system: at(1), idle: at(2) }
}

/// The bytes of [`ContainerSnapshot`] that have a name: must be all. A field added there changes the sum here.
const NAMED_BYTES: usize = {
    use elbowroom_types::cpuset::CpuSet;
    use elbowroom_types::io::IoStat;
    use elbowroom_types::psi::Pressure;
    use elbowroom_types::sample::MemoryStat;
    let stall = 4 * 4 + 8;
    let memory_stat = 26 * 8;
    let io = 2 * 4 + 6 * 8;
    assert!(size_of::<Pressure>() == 2 * stall && size_of::<MemoryStat>() == memory_stat);
    assert!(size_of::<IoStat>() == io && size_of::<CpuSet>().is_multiple_of(8) && TIMES_WORDS == 3);
    let words = 7 /* millicpu to memory_usage */ + 6 /* oom_kills to taken */ + 2 /* page_size, mems_total */;
    let halves = 3 /* load */ + 3 /* nr_running to nr_processes */ + 2 /* nr_disks, has_pressure */;
    6 * size_of::<CpuSet>() /* online, present, possible, nodes, cpu_nodes, mems */
        + words * 8
        + memory_stat
        + halves * 4
        + 3 * size_of::<Pressure>()
        + elbowroom_view::pages::snapshot::MAX_DISKS * io
};
