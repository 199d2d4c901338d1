//! The order in which a slot's words are written and read: the protocol between the policy process and the view server.
//!
//! Nothing here knows what the words mean. The atomics are those of the parent module: `tests/models` compiles this file once more with
//! loom's, which tries every order that the memory model allows, and with Miri.

use super::{AtomicU64, Ordering, fence};

/// Two buffers of equal length, one after the other, and the generation that says which is current: `generation & 1`.
pub(super) struct Versions<'a> {
    /// Counts the versions.
    pub(super) generation: &'a AtomicU64,
    /// The two buffers.
    pub(super) buffers: &'a [AtomicU64],
}

impl Versions<'_> {
    /// Has the buffer filled that is not current, and makes it current. There is one writer.
    pub(super) fn replace(&self, fill: impl FnOnce(&[AtomicU64])) {
        let now = self.generation.load(Ordering::Relaxed);
        // A reader may still copy this buffer, the one before the current. It must see the generation that made the buffer
        // old: the stores below may not rise above the load of `now`, nor above the store that wrote it.
        fence(Ordering::SeqCst);
        fill(self.buffer(now + 1));
        self.generation.store(now + 1, Ordering::SeqCst);
    }

    /// Has the current buffer copied, again where the writer passed by twice meanwhile, and gives its generation. `None` when the slot is
    /// another container's by then, as `is_live` says.
    pub(super) fn copy(&self, mut copy: impl FnMut(&[AtomicU64]), is_live: impl Fn() -> bool) -> Option<u64> {
        loop {
            let before = self.generation.load(Ordering::SeqCst);
            copy(self.buffer(before));
            // The copies above may not sink below the second look at the generation.
            fence(Ordering::Acquire);
            let is_whole = self.generation.load(Ordering::Relaxed) == before;
            if !is_live() {
                return None;
            }
            if is_whole {
                return Some(before);
            }
        }
    }

    fn buffer(&self, generation: u64) -> &[AtomicU64] {
        let words = self.buffers.len() / 2;
        &self.buffers[(generation & 1) as usize * words..][..words]
    }
}

/// Whether the slot still belongs to that container. If so, everything read from it before was that container's.
pub(super) fn is_live(serial: &AtomicU64, expected: u64) -> bool {
    // The loads before may not sink below this one.
    fence(Ordering::Acquire);
    serial.load(Ordering::Acquire) == expected
}

/// Gives a free slot to a container: `fill` writes what belongs to it.
pub(super) fn begin(serial: &AtomicU64, new: u64, fill: impl FnOnce()) {
    // A reader that sees anything of what follows must see that the container before is gone.
    fence(Ordering::SeqCst);
    fill();
    // Everything above is there for a reader that sees the serial.
    serial.store(new, Ordering::Release);
}

/// Takes the container out of its slot.
pub(super) fn end(serial: &AtomicU64) {
    serial.store(0, Ordering::SeqCst);
}

/// Notes that the page with that bit is being read, before its numbers are taken.
pub(super) fn mark_read(bits: &AtomicU64, bit: u8) {
    bits.fetch_or(1 << (bit % 64), Ordering::SeqCst);
}

/// Swaps the bits in `mask` to zero, after new numbers are there, and says which of them were set.
pub(super) fn take_read(bits: &AtomicU64, mask: u64) -> u64 {
    bits.fetch_and(!mask, Ordering::SeqCst) & mask
}
