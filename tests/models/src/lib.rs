//! The product's own files on shared memory, compiled once more: with loom's atomics where `--cfg loom` is set, else as they are, for Miri.
#![cfg(test)]
#![allow(dead_code, missing_docs)]

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

#[path = "../../../crates/elbowroom-agent/src/view_server/slots/versions.rs"]
mod versions;

#[cfg(loom)]
mod every_order;
#[cfg(not(loom))]
mod threads;
#[cfg(not(loom))]
#[path = "../../../crates/elbowroom-agent/src/view_server/slots/words.rs"]
mod words;

#[cfg(not(loom))]
const TIMES_WORDS: usize = size_of::<elbowroom_view::pages::snapshot::CpuTimes>() / 8;

/// A slot of two words a version.
struct Slot {
    serial: AtomicU64,
    generation: AtomicU64,
    read: AtomicU64,
    owner: AtomicU64,
    buffers: [AtomicU64; 4],
}

impl Slot {
    fn new(serial: u64) -> Self {
        let word = AtomicU64::new;
        let buffers = [word(0), word(0), word(0), word(0)];
        Self { serial: word(serial), generation: word(0), read: word(0), owner: word(serial), buffers }
    }

    fn versions(&self) -> versions::Versions<'_> {
        versions::Versions { generation: &self.generation, buffers: &self.buffers }
    }

    /// A version whose words are the same, so that a mix of two shows.
    fn publish(&self, version: u64) {
        self.versions().replace(|words| words.iter().for_each(|word| word.store(version, Ordering::Relaxed)));
    }

    fn remove(&self) {
        versions::end(&self.serial);
    }

    fn add(&self, serial: u64, version: u64) {
        versions::begin(&self.serial, serial, || {
            self.read.store(0, Ordering::Relaxed);
            self.owner.store(serial, Ordering::Relaxed);
            self.publish(version);
        });
    }

    /// Whose the slot is, read as a container's name and sizes are.
    fn owner(&self, serial: u64) -> Option<u64> {
        if !versions::is_live(&self.serial, serial) {
            return None;
        }
        let owner = self.owner.load(Ordering::Relaxed);
        versions::is_live(&self.serial, serial).then_some(owner)
    }

    /// The version that the container of that serial has. It is looked up first, as `Slots::get` does.
    fn version(&self, serial: u64) -> Option<u64> {
        if !versions::is_live(&self.serial, serial) {
            return None;
        }
        let mut words = [0; 2];
        let copy = |from: &[AtomicU64]| words = [from[0].load(Ordering::Relaxed), from[1].load(Ordering::Relaxed)];
        self.versions().copy(copy, || versions::is_live(&self.serial, serial))?;
        assert_eq!(words[0], words[1], "a mix of two versions");
        Some(words[0])
    }
}
