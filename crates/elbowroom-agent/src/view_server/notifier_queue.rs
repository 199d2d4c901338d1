//! What the publisher and the notifier's threads share: which pages are old, and which were read.

use super::notifier::DropQueue;
use crate::view_server::fuse_server::nodeid;
use crate::view_server::handover::{Connection, Handover};
use crate::view_server::slots::{SlotHandle, Slots};
use crate::view_server::{FuseError, abi, session};
use elbowroom_view::pages::snapshot::ContainerSnapshot;
use elbowroom_view::pages::tree;
use elbowroom_view::pages::view_node::ViewNode;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard};

/// The bit of files that have none of their own.
pub(super) const FIXED_FILES: u64 = 1 << tree::FIXED_FILES_BIT;

pub(super) struct NotifierShared {
    pub(super) handover: Handover,
    pub(super) slots: Slots,
    pub(super) queue: Mutex<NotifierQueue>,
    pub(super) wake: Condvar,
    pub(super) wake_slow: Condvar,
    pub(super) done: Condvar,
    /// Held while a slot changes hands, and while the notifier swaps bits: bits of the next container in a slot must
    /// not be taken for the one before. Never held across a write to the kernel.
    pub(super) slot_reuse: Mutex<()>,
}

/// What the notifier has to do.
#[derive(Default)]
pub(super) struct NotifierQueue {
    /// Pages and names that are old.
    pub(super) drops: DropQueue,
    /// Which container read what, for [`super::publisher::Publisher::take_recent_reads`].
    pub(super) readers: HashMap<SlotHandle, ReadBits>,
    /// The connection is gone: there is no kernel to notify.
    pub(super) disconnected: bool,
}

/// Page bits of one container as `read_since` tells them.
#[derive(Clone, Copy, Default)]
pub(super) struct ReadBits {
    /// Set, swapped to zero since, and not told.
    pub(super) unreported: u64,
    /// Told, and still set.
    pub(super) reported: u64,
}

impl NotifierQueue {
    pub(super) fn record_reads(&mut self, slot: SlotHandle, bits: u64) {
        let bits = bits & !FIXED_FILES;
        if bits != 0 {
            let readers = self.readers.entry(slot).or_default();
            readers.unreported |= bits & !readers.reported;
            readers.reported &= !bits;
        }
    }
}

impl NotifierShared {
    /// Has pages of a container dropped.
    pub(super) fn push(&self, slot: SlotHandle, mask: u64, every: bool) {
        let tenant = self.slots.tenant(slot);
        lock(&self.queue).drops.push(slot, tenant, mask, every);
        self.wake.notify_one();
        self.wake_slow.notify_one();
    }

    /// Has all pages of a container dropped, because of the agent's doing or the host's.
    pub(super) fn push_own(&self, slot: SlotHandle) {
        let tenant = self.slots.tenant(slot);
        lock(&self.queue).drops.push_own(slot, tenant);
        self.wake.notify_one();
        self.wake_slow.notify_one();
    }

    pub(super) fn drop_pages(
        &self,
        slot: SlotHandle,
        nodes: impl Iterator<Item = ViewNode>,
        message: &mut Vec<u8>,
    ) -> Result<(), FuseError> {
        for node in nodes {
            abi::inval_inode(message, nodeid(slot, node));
            self.send_notification(message)?;
        }
        Ok(())
    }

    /// One notification. A node that no reader knows is not an error; nor is anything else the kernel may say about
    /// one page a reason not to go on with the next.
    pub(super) fn send_notification(&self, message: &[u8]) -> Result<(), FuseError> {
        match session::send(self.handover.connection(Connection::Views), message) {
            Err(FuseError::Disconnected) => Err(FuseError::Disconnected),
            Err(error) => {
                tracing::warn!(%error, "a page could not be dropped: it may show old numbers");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

/// The files of a container's view, those of CPU 0 too where it is not listed.
pub(super) fn view_files(facts: &ContainerSnapshot) -> Vec<ViewNode> {
    let first_cpu = tree::lookup(ViewNode::Cpus, "cpu0", facts);
    let (mut files, mut dirs) =
        (Vec::new(), [ViewNode::ROOT].into_iter().chain(first_cpu).collect::<Vec<_>>());
    while let Some(dir) = dirs.pop() {
        for (_, node) in tree::children(dir, facts) {
            if node.is_dir() { dirs.push(node) } else { files.push(node) }
        }
    }
    files
}

pub(super) const LOCK_EXPECT: &str = "no holder of this lock panics";

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect(LOCK_EXPECT)
}

pub(super) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    started.expect("a process that just started can have a thread");
}
