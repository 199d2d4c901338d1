//! Memory that the policy process and the view server share: one slot per container.
//!
//! # Problem
//! The server answers a READ at any moment, the policy process changes numbers at any moment, and either may be killed
//! between any two instructions. A reader must get one version of a container's numbers, whole, and must never wait.
//!
//! # Approach
//! A sealed memfd, mapped by both. Each slot has two buffers and a generation. The writer fills the buffer that is not
//! current and then adds one to the generation. The reader copies buffer `generation & 1` and checks that the generation is
//! still the same. A writer that dies half way leaves a whole version current, so no reader spins on it
//! (an in-place sequence lock would stay odd for ever). There is one writer: the process that holds the policy role
//! ([`crate::view_server::roles`]).
//!
//! The mapping is a slice of atomic words, so every access is an ordinary checked index. Data words are read and written
//! relaxed, and the generation and the serial order them (Boehm, *Can Seqlocks Get Along With Programming Language
//! Memory Models?*, MSPC'12, section 4). Layout, in 64-bit words: header, index (one entry per slot: serial, hash of
//! the name, tenant, account), slots.
//!
//! # Terminology
//! *Serial*: names one stay of one container in one slot, never used again; `serial % capacity` is the slot.
//! *Page bit*: one of 64 bits per slot. The server sets it before it takes the numbers for a page. The notifier swaps it to
//! zero after the numbers changed, and only then tells the kernel to drop the page.
//!
//! # Properties
//! - `a_snapshot_is_one_version`: also between processes, also while the writer runs at full speed.
//! - `a_reader_of_a_freed_slot_gets_nothing`: not the next container's numbers.
//! - `a_page_read_before_the_swap_is_reported_by_it`: no page is cached that the notifier does not know about.

mod header;
mod layout;
mod shared_memory;
mod triggers;
mod versions;
mod words;

pub(crate) use header::ShutdownMode;
pub use header::ViewServerCounters;
pub(crate) use layout::{DEFAULT_CAPACITY, MAX_CAPACITY, MAX_NAME};
pub(super) use triggers::StoredTrigger;

use crate::fnv::fnv1a;
use crate::view_server::FuseError;
use elbowroom_types::cpuset::MAX_CPUS;
use elbowroom_view::pages::snapshot::{ContainerSnapshot, CpuTimes};
use layout::{
    FACTS_WORDS, MAGIC, NAME_WORDS, PAGE_BITS, SIZE_WORDS, TIMES_WORDS, buffer_words, head, index,
    index_words, layout_id, slot, slot_words, total_words,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use shared_memory::SharedWords;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use versions::Versions;
use words::{facts_bytes, load_facts, load_times, store_bytes};

/// The mapping. Any number of threads and processes may read; only the policy process writes (see the module).
pub struct Slots {
    words: SharedWords,
    capacity: usize,
    cpus: usize,
    memory: OwnedFd,
}

/// A container in its slot: copied about freely, good until that container is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotHandle {
    pub(super) serial: u64,
}

/// A container's numbers at one instant, reused between requests.
#[derive(Clone, Debug)]
pub struct SlotSnapshot {
    /// Their version: another number at each [`Slots::publish`].
    pub generation: u64,
    /// The numbers.
    pub facts: ContainerSnapshot,
    /// By CPU number; as many as the agent published.
    pub times: Vec<CpuTimes>,
}

impl Slots {
    /// Makes the memory. `capacity` slots with room for `cpus` [`CpuTimes`] each; pages are taken from the machine only
    /// when a slot is used.
    ///
    /// # Errors
    /// [`FuseError::Memory`] when the kernel has no memfd or no address space.
    pub fn create(capacity: u32, cpus: u32) -> Result<Self, FuseError> {
        let failed = |operation| move |source| FuseError::Memory { operation, source };
        let (capacity, cpus) = (capacity.clamp(1, MAX_CAPACITY) as usize, (cpus as usize).clamp(1, MAX_CPUS));
        let bytes = total_words(capacity, cpus) * 8;
        let memory =
            rustix::fs::memfd_create("elbowroom-slots", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .map_err(failed("memfd_create"))?;
        rustix::fs::ftruncate(&memory, bytes as u64).map_err(failed("ftruncate"))?;
        // It cannot be shrunk under a reader any more, which would be a SIGBUS in every process that maps it.
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(failed("F_ADD_SEALS"))?;
        let slots = Self { words: SharedWords::map(&memory, bytes)?, capacity, cpus, memory };
        slots.words[head::CAPACITY].store(capacity as u64, Ordering::Relaxed);
        slots.words[head::CPUS].store(cpus as u64, Ordering::Relaxed);
        slots.words[head::LAYOUT].store(layout_id(), Ordering::Relaxed);
        slots.words[head::MAGIC].store(MAGIC, Ordering::Release);
        Ok(slots)
    }

    /// Maps memory that another process made.
    ///
    /// # Errors
    /// [`FuseError::Layout`] when it was made by a program that lays it out in another way; [`FuseError::Memory`].
    pub fn open(memory: OwnedFd) -> Result<Self, FuseError> {
        let failed = |operation| move |source| FuseError::Memory { operation, source };
        let seals = rustix::fs::fcntl_get_seals(&memory).map_err(failed("F_GET_SEALS"))?;
        let bytes = rustix::fs::fstat(&memory).map_err(failed("fstat"))?.st_size as usize;
        if !seals.contains(SealFlags::SHRINK) || bytes < head::WORDS * 8 {
            return Err(FuseError::Layout { what: "not sealed, or shorter than its header" });
        }
        let words = SharedWords::map(&memory, bytes)?;
        let at = |word: usize| words[word].load(Ordering::Acquire);
        if at(head::MAGIC) != MAGIC {
            return Err(FuseError::Layout { what: "the magic number is another" });
        }
        let (capacity, cpus) = (at(head::CAPACITY) as usize, at(head::CPUS) as usize);
        let possible = (1..=MAX_CAPACITY as usize).contains(&capacity) && (1..=MAX_CPUS).contains(&cpus);
        if at(head::LAYOUT) != layout_id() || !possible || bytes != total_words(capacity, cpus) * 8 {
            return Err(FuseError::Layout { what: "the numbers in it have another shape" });
        }
        Ok(Self { words, capacity, cpus, memory })
    }

    /// The memory, to hand to another process.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// How many containers there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many [`CpuTimes`] a slot has room for.
    pub fn cpus(&self) -> usize {
        self.cpus
    }

    // ---- readers ----

    /// The container of that serial, if it still is in its slot.
    pub fn get(&self, serial: u64) -> Option<SlotHandle> {
        let live = serial != 0 && self.serial_of(self.index_of(serial)).load(Ordering::Acquire) == serial;
        live.then_some(SlotHandle { serial })
    }

    /// The container of that name.
    pub fn find(&self, name: &[u8]) -> Option<SlotHandle> {
        let hash = fnv1a(name);
        (0..self.high_water())
            .filter(|place| self.hash_of(*place).load(Ordering::Relaxed) == hash)
            .filter_map(|place| self.get(self.serial_of(place).load(Ordering::Acquire)))
            .find(|slot| self.name(*slot).is_some_and(|n| n.as_bytes() == name))
    }

    /// The containers there are, in the order of their slots, from slot number `first` on, with that number.
    pub fn iter_from(&self, first: usize) -> impl Iterator<Item = (usize, SlotHandle)> + '_ {
        (first..self.high_water()).filter_map(|place| {
            self.get(self.serial_of(place).load(Ordering::Acquire)).map(|slot| (place, slot))
        })
    }

    /// A container's name; `None` when it is gone.
    pub fn name(&self, slot: SlotHandle) -> Option<String> {
        let base = self.base(slot);
        let len = (self.words[base + slot::NAME_LEN].load(Ordering::Relaxed) as usize).min(MAX_NAME);
        let mut bytes = Vec::with_capacity(MAX_NAME);
        for word in &self.words[base + slot::NAME..][..NAME_WORDS] {
            bytes.extend_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        bytes.truncate(len);
        self.check_live(slot)?;
        String::from_utf8(bytes).ok()
    }

    /// Whose the slot is, as [`Self::add`] was told; `None` when it is gone.
    pub fn owner(&self, slot: SlotHandle) -> Option<u64> {
        let owner = self.words[self.base(slot) + slot::OWNER].load(Ordering::Relaxed);
        self.check_live(slot)?;
        Some(owner)
    }

    /// The constant size of the page with that bit, in bytes; `None` when the container is gone.
    pub fn size(&self, slot: SlotHandle, bit: u8) -> Option<u32> {
        let size =
            self.words[self.base(slot) + slot::SIZES + usize::from(bit) % SIZE_WORDS].load(Ordering::Relaxed);
        self.check_live(slot)?;
        u32::try_from(size).ok()
    }

    /// Notes that the page with that bit is being read. To be called before [`Slots::snapshot`]: then either the
    /// numbers are new, or the notifier sees the bit and drops the page.
    pub(crate) fn mark_read(&self, slot: SlotHandle, bit: u8) {
        versions::mark_read(&self.words[self.base(slot) + slot::READ], bit);
    }

    /// The version of a container's numbers, as in [`SlotSnapshot::generation`]; `None` when it is gone. As [`Slots::snapshot`], to be
    /// called after [`Slots::mark_read`].
    pub(crate) fn generation(&self, slot: SlotHandle) -> Option<u64> {
        let generation = self.words[self.base(slot) + slot::GENERATION].load(Ordering::SeqCst);
        self.check_live(slot)?;
        Some(generation)
    }

    /// Which account pays for what is done for a container: that of its tenant, a number below [`Slots::capacity`] that no other tenant
    /// has. Of a container that is gone it may be another's.
    pub(crate) fn account(&self, slot: SlotHandle) -> usize {
        let account = self.index_word(self.index_of(slot.serial), index::ACCOUNT).load(Ordering::Relaxed);
        (account as usize).min(self.capacity - 1)
    }

    /// The tenant of a container, as [`Self::add`] was told. Of a container that is gone it may be another's.
    pub(crate) fn tenant(&self, slot: SlotHandle) -> u64 {
        self.index_word(self.index_of(slot.serial), index::TENANT).load(Ordering::Relaxed)
    }

    /// Copies a container's numbers into `into`; `None` when it is gone. Tries again when the writer passed by twice
    /// during the copy (a microsecond or so), and never waits for it.
    pub fn snapshot(&self, slot: SlotHandle, into: &mut SlotSnapshot) -> Option<()> {
        let copy = |buffer: &[AtomicU64]| {
            let (facts, rest) = buffer.split_at(FACTS_WORDS);
            into.facts = load_facts(facts);
            let count = (rest[0].load(Ordering::Relaxed) as usize).min(self.cpus);
            into.times.clear();
            into.times.extend(rest[1..].chunks_exact(TIMES_WORDS).take(count).map(load_times));
        };
        into.generation = self.versions(self.base(slot)).copy(copy, || self.check_live(slot).is_some())?;
        Some(())
    }

    // ---- the one writer ----

    /// Gives a container a slot. `owner` tells it from any other, also from one of the same name later. `tenant` is the owner of the
    /// outermost container around it, or its own. `sizes` are its pages' constant sizes by page bit.
    ///
    /// # Errors
    /// [`FuseError::Name`], [`FuseError::Exists`], [`FuseError::Full`], [`FuseError::TooManyCpus`].
    pub fn add(
        &self,
        name: &str,
        (owner, tenant): (u64, u64),
        sizes: &[u32; PAGE_BITS],
        facts: &ContainerSnapshot,
        times: &[CpuTimes],
    ) -> Result<SlotHandle, FuseError> {
        self.check(name, times)?;
        let place = (0..self.capacity)
            .filter(|place| self.serial_of(*place).load(Ordering::Relaxed) == 0)
            // A slot that was used before has its memory already; among those, the one used least.
            .min_by_key(|place| match *place < self.high_water() {
                true => (false, self.words[self.base_of(*place) + slot::LAST_SERIAL].load(Ordering::Relaxed)),
                false => (true, *place as u64),
            })
            .ok_or(FuseError::Full { capacity: self.capacity })?;
        let (base, account) = (self.base_of(place), self.account_for(tenant, place));
        let last = &self.words[base + slot::LAST_SERIAL];
        // Serial 0 means "free" and node 1 is the mount, so the first serial of slot p is capacity + p.
        let serial = last.load(Ordering::Relaxed).max(place as u64) + self.capacity as u64;
        versions::begin(self.serial_of(place), serial, || {
            last.store(serial, Ordering::Relaxed);
            self.words[base + slot::READ].store(0, Ordering::Relaxed);
            self.words[base + slot::OWNER].store(owner, Ordering::Relaxed);
            self.fill_name(base, name);
            for (word, size) in self.words[base + slot::SIZES..][..SIZE_WORDS].iter().zip(sizes) {
                word.store((*size).into(), Ordering::Relaxed);
            }
            self.words[base + slot::TRIGGERS..base + slot::BUFFERS]
                .iter()
                .for_each(|word| word.store(0, Ordering::Relaxed));
            self.fill(base, facts, times);
            self.hash_of(place).store(fnv1a(name.as_bytes()), Ordering::Relaxed);
            self.index_word(place, index::TENANT).store(tenant, Ordering::Relaxed);
            self.index_word(place, index::ACCOUNT).store(account as u64, Ordering::Relaxed);
            self.words[head::HIGH_WATER].fetch_max(place as u64 + 1, Ordering::Relaxed);
        });
        Ok(SlotHandle { serial })
    }

    /// Replaces a container's numbers. Readers see the old version or the new one.
    ///
    /// # Errors
    /// [`FuseError::Gone`] when the container was removed, [`FuseError::TooManyCpus`].
    pub fn publish(
        &self,
        slot: SlotHandle,
        facts: &ContainerSnapshot,
        times: &[CpuTimes],
    ) -> Result<(), FuseError> {
        self.check_live(slot).ok_or(FuseError::Gone)?;
        if times.len() > self.cpus {
            return Err(FuseError::TooManyCpus { got: times.len(), room: self.cpus });
        }
        self.fill(self.base(slot), facts, times);
        Ok(())
    }

    /// Makes pages longer, where `sizes` are longer than what they have; none becomes shorter. Whether any became longer.
    pub fn grow(&self, slot: SlotHandle, sizes: &[u32; PAGE_BITS]) -> bool {
        if self.check_live(slot).is_none() {
            return false;
        }
        let words = &self.words[self.base(slot) + slot::SIZES..][..SIZE_WORDS];
        let grown = words.iter().zip(sizes).filter(|(word, size)| {
            let size = u64::from(**size);
            word.fetch_max(size, Ordering::SeqCst) < size
        });
        grown.count() > 0
    }

    /// Takes a container out. Its numbers stay in memory and are never shown again.
    pub fn remove(&self, slot: SlotHandle) {
        if self.check_live(slot).is_some() {
            versions::end(self.serial_of(self.index_of(slot.serial)));
        }
    }

    /// Swaps the bits in `mask` to zero and says which of them were set: the pages that readers may have cached.
    pub(crate) fn take_read(&self, slot: SlotHandle, mask: u64) -> u64 {
        if self.check_live(slot).is_none() {
            return 0;
        }
        versions::take_read(&self.words[self.base(slot) + slot::READ], mask)
    }

    /// The bits that are set now. After [`Slots::publish`], a bit that is not set here will only be set by a server
    /// that then takes the new numbers (both sides are sequentially consistent).
    pub(crate) fn peek_read(&self, slot: SlotHandle) -> u64 {
        let bits = self.words[self.base(slot) + slot::READ].load(Ordering::SeqCst);
        self.check_live(slot).map_or(0, |()| bits)
    }

    /// The account for a container of `tenant` that comes to `place`: that of the others of this tenant, or one that is free.
    fn account_for(&self, tenant: u64, place: usize) -> usize {
        let mut taken = vec![false; self.capacity];
        for (_, other) in self.iter_from(0) {
            let account = self.account(other);
            if self.tenant(other) == tenant {
                return account;
            }
            taken[account] = true;
        }
        // There are no more of them than other slots in use.
        if taken[place] { taken.iter().position(|taken| !taken).unwrap_or(place) } else { place }
    }

    fn check(&self, name: &str, times: &[CpuTimes]) -> Result<(), FuseError> {
        let bad = name.is_empty() || name.len() > MAX_NAME || name == "." || name == "..";
        if bad || name.bytes().any(|b| b == b'/' || b == 0) {
            return Err(FuseError::Name { name: name.chars().take(MAX_NAME).collect() });
        }
        if self.find(name.as_bytes()).is_some() {
            return Err(FuseError::Exists { name: name.to_owned() });
        }
        if times.len() > self.cpus {
            return Err(FuseError::TooManyCpus { got: times.len(), room: self.cpus });
        }
        Ok(())
    }

    fn fill_name(&self, base: usize, name: &str) {
        self.words[base + slot::NAME_LEN].store(name.len() as u64, Ordering::Relaxed);
        for (i, word) in self.words[base + slot::NAME..][..NAME_WORDS].iter().enumerate() {
            let mut bytes = [0; 8];
            let part = name.as_bytes().get(i * 8..).unwrap_or_default();
            let part = &part[..part.len().min(8)];
            bytes[..part.len()].copy_from_slice(part);
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
    }

    fn fill(&self, base: usize, facts: &ContainerSnapshot, times: &[CpuTimes]) {
        self.versions(base).replace(|buffer| {
            let (facts_words, rest) = buffer.split_at(FACTS_WORDS);
            store_bytes(facts_words, facts_bytes(facts));
            rest[0].store(times.len() as u64, Ordering::Relaxed);
            for (words, times) in rest[1..].chunks_exact(TIMES_WORDS).zip(times) {
                let values = [times.user.get(), times.system.get(), times.idle.get()];
                words.iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
            }
        });
    }

    fn check_live(&self, slot: SlotHandle) -> Option<()> {
        let serial = self.serial_of(self.index_of(slot.serial));
        (slot.serial != 0 && versions::is_live(serial, slot.serial)).then_some(())
    }

    fn high_water(&self) -> usize {
        (self.words[head::HIGH_WATER].load(Ordering::Acquire) as usize).min(self.capacity)
    }

    fn index_of(&self, serial: u64) -> usize {
        (serial % self.capacity as u64) as usize
    }

    fn serial_of(&self, place: usize) -> &AtomicU64 {
        self.index_word(place, index::SERIAL)
    }

    fn hash_of(&self, place: usize) -> &AtomicU64 {
        self.index_word(place, index::NAME_HASH)
    }

    fn index_word(&self, place: usize, word: usize) -> &AtomicU64 {
        &self.words[head::WORDS + place * index::WORDS + word]
    }

    fn base(&self, slot: SlotHandle) -> usize {
        self.base_of(self.index_of(slot.serial))
    }

    fn base_of(&self, place: usize) -> usize {
        head::WORDS + index_words(self.capacity) + place * slot_words(self.cpus)
    }

    fn versions(&self, base: usize) -> Versions<'_> {
        let buffers = &self.words[base + slot::BUFFERS..][..2 * buffer_words(self.cpus)];
        Versions { generation: &self.words[base + slot::GENERATION], buffers }
    }
}

impl SlotHandle {
    /// The serial, part of every node id of this container.
    pub fn serial(self) -> u64 {
        self.serial
    }
}

impl Default for SlotSnapshot {
    fn default() -> Self {
        Self { generation: 0, facts: ContainerSnapshot::EMPTY, times: Vec::new() }
    }
}

#[cfg(test)]
mod tests;
