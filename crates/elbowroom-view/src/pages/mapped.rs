//! The view as programs map it: `struct elbowroom_view` of `shim/view.h`, word by word.
//!
//! What is here and what is there are held together by `crates/elbowroom-linux/tests/view_page.rs`, which asks a C compiler.

use super::snapshot::ContainerSnapshot;
use crate::rules::View;
use elbowroom_types::cpuset::{CpuSet, MAX_CPUS};
use elbowroom_types::unit::{Bytes, Micros, Millicpu};

/// `ELBOWROOM_VIEW_MAGIC`.
pub const MAGIC: [u8; 8] = *b"elbowrm\0";
/// `ELBOWROOM_VIEW_VERSION`.
pub const VERSION: u32 = 1;
/// Byte offset of `views`.
const VIEWS: usize = 64;
/// 64-bit words of a view.
pub const VIEW_WORDS: usize = 16 + MAX_CPUS / 64;
/// The word in which the set of online CPUs begins.
const ONLINE: usize = 16;
/// As many words at the beginning are what a container may use; those after are what it does use.
const CHANGE_WORDS: usize = 4;

/// What one container is told through its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedView {
    /// Effective CPU in whole CPUs; 0: no agent keeps the page any more.
    pub cpus: u32,
    /// The most that can become.
    pub cpus_most: u32,
    /// Effective CPU.
    pub millicpu: Millicpu,
    /// Effective memory.
    pub memory: Bytes,
    /// The most that can become.
    pub memory_most: Bytes,
    /// Memory charged.
    pub memory_used: Bytes,
    /// The part of it that goes first.
    pub memory_inactive_file: Bytes,
    /// When the container started, on the boot clock.
    pub started: Micros,
    /// When its use was last looked at, on the boot clock.
    pub taken: Micros,
    /// Load averages, in hundredths.
    pub load: [u32; 3],
    /// Threads.
    pub threads: u32,
    /// CPUs shown online.
    pub online: CpuSet,
}

impl MappedView {
    /// What a page says when its agent has stopped, or the container was let go.
    pub const DETACHED: Self = Self {
        cpus: 0,
        cpus_most: 0,
        millicpu: Millicpu::ZERO,
        memory: Bytes::ZERO,
        memory_most: Bytes::ZERO,
        memory_used: Bytes::ZERO,
        memory_inactive_file: Bytes::ZERO,
        started: Micros::ZERO,
        taken: Micros::ZERO,
        load: [0; 3],
        threads: 0,
        online: CpuSet::EMPTY,
    };

    /// The same numbers that the container's files show.
    pub fn of(view: &View, facts: &ContainerSnapshot) -> Self {
        Self {
            cpus: view.cpus,
            cpus_most: view.cpus_upper,
            millicpu: view.millicpu,
            memory: view.memory,
            memory_most: view.memory_hard,
            memory_used: facts.memory_usage,
            memory_inactive_file: facts.memory_stat.inactive_file,
            started: facts.started,
            taken: facts.taken,
            load: facts.load,
            threads: facts.nr_threads,
            online: facts.shown_online(),
        }
    }

    /// The view of these words: what [`Self::to_words`] made of it.
    pub(crate) fn from_words(words: &[u64; VIEW_WORDS]) -> Self {
        let (cpus, cpus_most) = halves(words[0]);
        let (load_1, load_5) = halves(words[8]);
        let (load_15, threads) = halves(words[9]);
        let online = words[ONLINE..].iter().enumerate();
        let online = online.flat_map(|(n, word)| {
            (0..64u32).filter(move |c| word >> c & 1 == 1).map(move |c| n as u32 * 64 + c)
        });
        Self {
            cpus,
            cpus_most,
            millicpu: Millicpu(words[1]),
            memory: Bytes(words[2]),
            memory_most: Bytes(words[3]),
            memory_used: Bytes(words[4]),
            memory_inactive_file: Bytes(words[5]),
            started: Micros(words[6]),
            taken: Micros(words[7]),
            load: [load_1, load_5, load_15],
            threads,
            online: online.collect(),
        }
    }

    /// The view in the order and byte order of the page.
    pub fn to_words(&self) -> [u64; VIEW_WORDS] {
        let mut words = [0; VIEW_WORDS];
        words[0] = pair(self.cpus, self.cpus_most);
        words[1] = self.millicpu.get();
        words[2] = self.memory.get();
        words[3] = self.memory_most.get();
        words[4] = self.memory_used.get();
        words[5] = self.memory_inactive_file.get();
        words[6] = self.started.get();
        words[7] = self.taken.get();
        words[8] = pair(self.load[0], self.load[1]);
        words[9] = pair(self.load[2], self.threads);
        for cpu in self.online.iter() {
            words[ONLINE + cpu as usize / 64] |= 1 << (cpu % 64);
        }
        words
    }
}

/// Reads the current view of a page, `struct elbowroom_page` of `shim/view.h`. `None`: it is no page of this version, or is being
/// changed at this moment.
pub fn read(page: &[u8]) -> Option<MappedView> {
    let word32 = |at: usize| Some(u32::from_ne_bytes(page.get(at..at + 4)?.try_into().ok()?));
    let whole = page.get(..8)? == MAGIC && word32(8)? == VERSION && word32(12)? as usize >= VIEW_WORDS * 8;
    let (generation, size) = (word32(16)?, word32(12)? as usize);
    let at = VIEWS.checked_add((generation & 1) as usize * size)?;
    let bytes = page.get(at..at.checked_add(VIEW_WORDS * 8)?)?;
    let mut words = [0; VIEW_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().ok()?);
    }
    whole.then(|| MappedView::from_words(&words))
}

/// Whether two views differ in what the container may use. Programs that wait for a change wait for this.
pub fn is_view_change(before: &[u64; VIEW_WORDS], now: &[u64; VIEW_WORDS]) -> bool {
    before[..CHANGE_WORDS] != now[..CHANGE_WORDS] || before[ONLINE..] != now[ONLINE..]
}

/// The fields of [`pair`].
fn halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
}

/// Two neighbouring 32-bit fields.
fn pair(first: u32, second: u32) -> u64 {
    let (a, b) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_reads_back_and_half_a_page_does_not() {
        let view = MappedView {
            cpus: 2,
            cpus_most: 4,
            memory: Bytes(7),
            load: [1, 2, 3],
            threads: 9,
            online: [0, 65].into_iter().collect(),
            ..MappedView::DETACHED
        };
        for generation in [4u32, 5] {
            let mut page = vec![0; 4096];
            page[..8].copy_from_slice(&MAGIC);
            page[8..12].copy_from_slice(&VERSION.to_ne_bytes());
            page[12..16].copy_from_slice(&(VIEW_WORDS as u32 * 8).to_ne_bytes());
            page[16..20].copy_from_slice(&generation.to_ne_bytes());
            let at = VIEWS + (generation & 1) as usize * VIEW_WORDS * 8;
            for (n, word) in view.to_words().iter().enumerate() {
                page[at + n * 8..at + n * 8 + 8].copy_from_slice(&word.to_ne_bytes());
            }
            assert_eq!(read(&page), Some(view));
            assert_eq!(read(&page[..at + VIEW_WORDS * 8 - 1]), None);
            page[8] = 2;
            assert_eq!(read(&page), None);
        }
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[255; 4096]), None);
    }

    #[test]
    fn use_is_no_change_and_room_is() {
        let words = |view: MappedView| view.to_words();
        let before = words(MappedView { cpus: 2, ..MappedView::DETACHED });
        let used = MappedView {
            cpus: 2,
            memory_used: Bytes::mib(3),
            load: [1, 2, 3],
            threads: 9,
            ..MappedView::DETACHED
        };
        assert!(!is_view_change(&before, &words(used)));
        for room in [
            MappedView { cpus: 3, ..used },
            MappedView { cpus_most: 1, ..used },
            MappedView { memory: Bytes::mib(1), ..used },
            MappedView { memory_most: Bytes::mib(1), ..used },
            MappedView { online: CpuSet::first_n(1), ..used },
        ] {
            assert!(is_view_change(&before, &words(room)), "{room:?}");
        }
    }

    #[test]
    fn the_last_cpu_has_its_bit() {
        let online: CpuSet = [0, 63, 64, 1023].into_iter().collect();
        let words = MappedView { online, ..MappedView::DETACHED }.to_words();
        assert_eq!((words[16], words[17], words[31]), (1 | 1 << 63, 1, 1 << 63));
    }
}
