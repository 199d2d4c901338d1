//! Where each word of the shared memory is.

use elbowroom_view::pages::snapshot::{ContainerSnapshot, CpuTimes};
use std::mem::size_of;

/// "ELBOWRM" and the layout's version: a program of another version refuses the memory instead of misreading it.
pub(super) const MAGIC: u64 = u64::from_be_bytes(*b"ELBOWRM\x04");
/// Longest name of a container, in bytes; engines use 64.
pub(crate) const MAX_NAME: usize = 128;
/// How many containers one agent shows unless told otherwise. Slots never used cost address space only.
pub(crate) const DEFAULT_CAPACITY: u32 = 4096;
/// The most there can be; more than pids.
pub(crate) const MAX_CAPACITY: u32 = 1 << 20;

pub(super) const FACTS_WORDS: usize = size_of::<ContainerSnapshot>() / 8;
pub(super) const TIMES_WORDS: usize = size_of::<CpuTimes>() / 8;
pub(super) const NAME_WORDS: usize = MAX_NAME / 8;
pub(super) const PAGE_BITS: usize = 64;
/// Page bits that stand for pages, each with a stored size.
pub(super) const SIZE_WORDS: usize = 40;
/// Words of an armed PSI trigger.
pub(super) const TRIGGER_WORDS: usize = 3;
/// PSI triggers that a container can have armed: programs arm one or two for each resource.
pub(crate) const MAX_TRIGGERS: usize = 8;

/// Words of the header. One word each; everything not named here is zero.
pub(super) mod head {
    pub const MAGIC: usize = 0;
    pub const CAPACITY: usize = 1;
    pub const CPUS: usize = 2;
    pub const LAYOUT: usize = 3;
    pub const RESEND: usize = 4;
    pub const SHUTDOWN_MODE: usize = 5;
    pub const SERVER_STARTS: usize = 6;
    pub const HIGH_WATER: usize = 7;
    pub const REQUESTS: usize = 8;
    pub const RESENT: usize = 9;
    pub const FAILED: usize = 10;
    pub const ANSWERED: usize = 11;
    pub const HEARTBEAT: usize = 12;
    /// Until when the policy process does nothing, on the monotonic clock.
    pub const QUIET_UNTIL: usize = 13;
    /// Serials of containers that asked more than they may, each at the place of its number; 0 where none did.
    pub const OVERUSE: usize = 16;
    pub const OVERUSE_WORDS: usize = 64;
    pub const WORDS: usize = 512;
}

/// Words of a slot's entry in the index.
pub(super) mod index {
    pub const SERIAL: usize = 0;
    pub const NAME_HASH: usize = 1;
    pub const TENANT: usize = 2;
    pub const ACCOUNT: usize = 3;
    pub const WORDS: usize = 4;
}

/// Words of a slot before its two buffers.
pub(super) mod slot {
    pub const LAST_SERIAL: usize = 0;
    pub const GENERATION: usize = 1;
    pub const READ: usize = 2;
    pub const OWNER: usize = 3;
    pub const NAME_LEN: usize = 4;
    pub const NAME: usize = 5;
    pub const SIZES: usize = NAME + super::NAME_WORDS;
    /// Written by the view server alone.
    pub const TRIGGERS: usize = SIZES + super::SIZE_WORDS;
    pub const BUFFERS: usize = TRIGGERS + super::MAX_TRIGGERS * super::TRIGGER_WORDS;
}

pub(super) fn buffer_words(cpus: usize) -> usize {
    FACTS_WORDS + 1 + cpus * TIMES_WORDS
}

/// A whole number of cache lines, so that two containers never share one.
pub(super) fn slot_words(cpus: usize) -> usize {
    (slot::BUFFERS + 2 * buffer_words(cpus)).next_multiple_of(8)
}

/// A whole number of pages: the index is scanned, and must not draw slots into memory.
pub(super) fn index_words(capacity: usize) -> usize {
    (capacity * index::WORDS).next_multiple_of(512)
}

pub(super) fn total_words(capacity: usize, cpus: usize) -> usize {
    (head::WORDS + index_words(capacity) + slot_words(cpus) * capacity).next_multiple_of(512)
}

/// Changes whenever the structures that are copied through this memory do.
pub(super) fn layout_id() -> u64 {
    (FACTS_WORDS << 32 | TIMES_WORDS << 16 | slot::BUFFERS) as u64
}
