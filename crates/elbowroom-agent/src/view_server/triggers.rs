//! PSI triggers of containers: a program that writes `some 150000 1000000` to a pressure file is woken by poll(2) when its container's
//! tasks waited that long.
//!
//! # Problem
//! The kernel arms triggers of the whole machine, and of a cgroup for processes outside of its cgroup namespace. A container sees its own
//! pressure, and a trigger there must be about that.
//!
//! # Approach
//! The stall time that the policy process publishes is compared as the kernel compares it ([`elbowroom_types::psi_trigger`]): by one
//! thread, some times in each window, and only while a trigger is armed. A look counts as a read of the page, so that the numbers are
//! renewed as for any program that reads them again and again.
//!
//! A handle is the number of the request that opened the file: no open file before or after has it, also when another server answers.
//! Triggers are kept in the slot of their container, which bounds them; a server that takes over goes on with them. Events that a killed
//! server had not told are lost, and told again where tasks still wait.

use crate::view_server::FuseError;
use crate::view_server::abi::PollRequest;
use crate::view_server::slots::{SlotHandle, SlotSnapshot, Slots, StoredTrigger};
use elbowroom_types::psi_trigger::{PsiTrigger, StallWindow};
use elbowroom_types::unit::Micros;
use elbowroom_view::pages::view_node::ViewNode;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// What poll(2) says of a pressure file in any case: `DEFAULT_POLLMASK` of the kernel.
const READY: u32 = (libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM) as u32;
/// And of one without a trigger (`psi_trigger_poll`).
const NO_TRIGGER: u32 = READY | (libc::POLLERR | libc::POLLPRI) as u32;
/// Looks in each window: `UPDATES_PER_WINDOW` of the kernel.
const LOOKS_PER_WINDOW: u64 = 10;
/// A trigger that is new waits for its first look no longer than this.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The triggers that are armed.
pub(super) struct Triggers {
    armed: Mutex<BTreeMap<u64, ArmedTrigger>>,
    changed: Condvar,
}

/// One of them.
struct ArmedTrigger {
    slot: SlotHandle,
    /// Which of the container's.
    place: usize,
    stored: StoredTrigger,
    /// The numbers looked at last.
    generation: u64,
    /// From the first numbers on that are newer than the trigger.
    window: Option<StallWindow>,
    /// It was reached, and no program has been told.
    event: bool,
}

impl Triggers {
    /// Those that a server before kept.
    pub fn new(slots: &Slots) -> Self {
        let kept = slots.triggers().into_iter().map(|(slot, place, stored)| {
            let generation = slots.generation(slot).unwrap_or(0);
            (stored.handle, ArmedTrigger { slot, place, stored, generation, window: None, event: false })
        });
        Self { armed: Mutex::new(kept.collect()), changed: Condvar::new() }
    }

    /// Arms what was written to an open file of the pressure file `node`. `again`: the kernel asks because a server before did not answer.
    ///
    /// # Errors
    /// As the kernel: [`Errno::BUSY`] where the open file has a trigger, [`Errno::INVAL`]. [`Errno::NOSPC`]: the container has as many as
    /// it may. [`Errno::ROFS`]: `node` is another file.
    pub(crate) fn arm(
        &self,
        slots: &Slots,
        (slot, node): (SlotHandle, ViewNode),
        (handle, again): (u64, bool),
        written: &[u8],
    ) -> Result<(), Errno> {
        let resource = node.pressure_index().ok_or(Errno::ROFS)?;
        let trigger = PsiTrigger::parse(written);
        let mut armed = self.lock();
        if let Some(there) = armed.get(&handle) {
            let is_done = again && Some(there.stored.trigger) == trigger;
            return if is_done { Ok(()) } else { Err(Errno::BUSY) };
        }
        let trigger = trigger.ok_or(Errno::INVAL)?;
        let stored = StoredTrigger { handle, resource, trigger, waiter: 0 };
        let generation = slots.generation(slot).ok_or(Errno::STALE)?;
        let place = slots.store_trigger(slot, &stored).ok_or(Errno::NOSPC)?;
        armed.insert(handle, ArmedTrigger { slot, place, stored, generation, window: None, event: false });
        self.changed.notify_one();
        Ok(())
    }

    /// What poll(2) is to say of an open file, which tells each event once. Stores the kernel's number of that file.
    pub fn poll(&self, slots: &Slots, request: PollRequest) -> u32 {
        let mut armed = self.lock();
        let Some(trigger) = armed.get_mut(&request.handle) else { return NO_TRIGGER };
        if trigger.stored.waiter != request.waiter {
            trigger.stored.waiter = request.waiter;
            slots.store_waiter(trigger.slot, trigger.place, request.waiter);
        }
        let event = std::mem::take(&mut trigger.event);
        READY | if event { libc::POLLPRI as u32 } else { 0 }
    }

    /// Forgets the trigger of an open file that is closed.
    pub fn release(&self, slots: &Slots, handle: u64) {
        if let Some(gone) = self.lock().remove(&handle) {
            slots.remove_trigger(gone.slot, gone.place);
        }
    }

    /// Looks after triggers, for as long as this process lives. `wake` tells the kernel whom to wake.
    pub fn watch(
        &self,
        slots: &Slots,
        mut wake: impl FnMut(u64) -> Result<(), FuseError>,
    ) -> Result<(), FuseError> {
        let mut snapshot = SlotSnapshot::default();
        loop {
            let mut armed =
                self.changed.wait_while(self.lock(), |armed| armed.is_empty()).expect(LOCK_EXPECT);
            let waiters = look(&mut armed, slots, &mut snapshot, boot_clock());
            let pause = pause(&armed);
            drop(armed);
            waiters.into_iter().try_for_each(&mut wake)?;
            std::thread::sleep(pause);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, ArmedTrigger>> {
        self.armed.lock().expect(LOCK_EXPECT)
    }
}

const LOCK_EXPECT: &str = "no holder of this lock panics";

/// Compares all triggers with their containers' numbers, and forgets those whose containers are gone. Which ones are to be woken.
fn look(
    armed: &mut BTreeMap<u64, ArmedTrigger>,
    slots: &Slots,
    snapshot: &mut SlotSnapshot,
    now: Micros,
) -> Vec<u64> {
    let mut waiters = Vec::new();
    armed.retain(|_, trigger| {
        let state = trigger.look(slots, snapshot, now);
        // A program that waits for a container that is gone hears that there is no trigger.
        if state.is_none_or(|event| event) && trigger.stored.waiter != 0 {
            waiters.push(trigger.stored.waiter);
        }
        state.is_some()
    });
    waiters
}

/// How long until the next look: as the shortest window asks.
fn pause(armed: &BTreeMap<u64, ArmedTrigger>) -> Duration {
    let windows = armed.values().map(|trigger| trigger.stored.trigger.window.get());
    let looks = windows.map(|window| Duration::from_micros(window / LOOKS_PER_WINDOW));
    looks.min().map_or(LONGEST_PAUSE, |pause| pause.min(LONGEST_PAUSE))
}

impl ArmedTrigger {
    /// Whether there is an event now that was not there; `None` when the container is gone.
    fn look(&mut self, slots: &Slots, snapshot: &mut SlotSnapshot, now: Micros) -> Option<bool> {
        if let Some(bit) = pressure_node(self.stored.resource).page_bit() {
            slots.mark_read(self.slot, bit);
        }
        let trigger = &self.stored.trigger;
        let mut is_due = false;
        if slots.generation(self.slot)? != self.generation {
            slots.snapshot(self.slot, snapshot)?;
            self.generation = snapshot.generation;
            let stalled = trigger.stalled(&snapshot.facts.pressure[self.stored.resource]);
            let taken = snapshot.facts.taken;
            is_due = match &mut self.window {
                Some(window) => window.update(trigger, taken, stalled),
                None => {
                    self.window = Some(StallWindow::new(taken, stalled));
                    false
                }
            };
        } else if let Some(window) = &mut self.window {
            is_due = window.is_due(trigger, now);
        }
        let is_new = is_due && !self.event;
        self.event |= is_due;
        Some(is_new)
    }
}

/// The file of an entry of a container's pressure.
fn pressure_node(resource: usize) -> ViewNode {
    [ViewNode::PressureCpu, ViewNode::PressureIo, ViewNode::PressureMemory][resource]
}

fn boot_clock() -> Micros {
    let now = clock_gettime(ClockId::Boottime);
    Micros(now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::psi::{Pressure, Stall};
    use elbowroom_view::pages::snapshot::ContainerSnapshot;

    const NOBODY: [u64; 0] = [];
    const LINE: &[u8] = b"some 100000 1000000\n";

    /// One container whose tasks wait for memory as the test says.
    struct Rig {
        slots: Slots,
        slot: SlotHandle,
        triggers: Triggers,
        snapshot: SlotSnapshot,
    }

    impl Rig {
        fn new() -> Self {
            let slots = Slots::create(4, 1).unwrap();
            let slot = slots.add("c1", (0, 0), &[24; 64], &ContainerSnapshot::EMPTY, &[]).unwrap();
            let triggers = Triggers::new(&slots);
            Self { slots, slot, triggers, snapshot: SlotSnapshot::default() }
        }

        fn arm(&self, handle: u64, again: bool, line: &[u8]) -> Result<(), Errno> {
            self.triggers.arm(&self.slots, (self.slot, ViewNode::PressureMemory), (handle, again), line)
        }

        fn poll(&self, handle: u64) -> u32 {
            self.triggers.poll(&self.slots, PollRequest { handle, waiter: handle + 100 })
        }

        /// The container's tasks have waited for this long at a time; which one is woken.
        fn stall(&mut self, at: u64, stalled: u64) -> Vec<u64> {
            let some = Stall { total: Micros::millis(stalled), ..Stall::EMPTY };
            let mut facts = ContainerSnapshot { taken: Micros::millis(at), ..ContainerSnapshot::EMPTY };
            facts.pressure[2] = Pressure { some, full: Stall::EMPTY };
            self.slots.publish(self.slot, &facts, &[]).unwrap();
            self.look(at)
        }

        fn look(&mut self, at: u64) -> Vec<u64> {
            look(&mut self.triggers.lock(), &self.slots, &mut self.snapshot, Micros::millis(at))
        }
    }

    #[test]
    fn an_open_file_has_one_trigger_and_a_container_a_few() {
        let rig = Rig::new();
        assert_eq!(rig.arm(1, false, b"some 1\n"), Err(Errno::INVAL));
        assert_eq!(rig.arm(1, false, LINE), Ok(()));
        assert_eq!(rig.arm(1, false, LINE), Err(Errno::BUSY));
        assert_eq!(
            rig.arm(1, false, b"nonsense"),
            Err(Errno::BUSY),
            "as the kernel, which looks at the text later"
        );
        assert_eq!(rig.arm(1, true, LINE), Ok(()), "its answer was lost");
        assert_eq!(rig.arm(1, true, b"full 100000 1000000\n"), Err(Errno::BUSY));
        for handle in 2..=8 {
            assert_eq!(rig.arm(handle, false, LINE), Ok(()));
        }
        assert_eq!(rig.arm(9, false, LINE), Err(Errno::NOSPC));
        rig.triggers.release(&rig.slots, 5);
        rig.triggers.release(&rig.slots, 5);
        assert_eq!(rig.arm(9, false, LINE), Ok(()));
        let other_file = (rig.slot, ViewNode::Meminfo);
        assert_eq!(rig.triggers.arm(&rig.slots, other_file, (10, false), LINE), Err(Errno::ROFS));
    }

    #[test]
    fn a_waiter_is_woken_and_hears_of_an_event_once() {
        let mut rig = Rig::new();
        rig.arm(1, false, LINE).unwrap();
        rig.arm(2, false, b"some 900000 1000000\n").unwrap();
        assert_eq!([rig.poll(1), rig.poll(2), rig.poll(3)], [READY, READY, NO_TRIGGER]);
        // Stalls before the trigger do not count.
        assert_eq!(rig.stall(1_000, 5_000), NOBODY);
        assert_eq!(rig.stall(1_100, 5_099), NOBODY);
        assert_eq!(rig.stall(1_200, 5_100), [101]);
        assert_eq!([rig.poll(1), rig.poll(1), rig.poll(2)], [READY | libc::POLLPRI as u32, READY, READY]);
        // The next is a window later, though the numbers are not newer then.
        assert_eq!(rig.stall(1_300, 5_200), NOBODY);
        assert_eq!(rig.look(2_199), NOBODY);
        assert_eq!(rig.look(2_200), [101]);
        assert_eq!(rig.look(2_200), NOBODY);
        assert_eq!(rig.poll(1), READY | libc::POLLPRI as u32);
    }

    #[test]
    fn a_look_is_a_read_of_the_page() {
        let mut rig = Rig::new();
        rig.arm(1, false, LINE).unwrap();
        rig.look(1);
        assert_eq!(
            rig.slots.take_read(rig.slot, u64::MAX),
            1 << ViewNode::PressureMemory.page_bit().unwrap()
        );
    }

    #[test]
    fn the_next_server_goes_on_with_them_and_wakes_the_waiters() {
        let mut rig = Rig::new();
        rig.arm(1, false, LINE).unwrap();
        rig.poll(1);
        rig.triggers = Triggers::new(&rig.slots);
        assert_eq!(rig.arm(1, false, LINE), Err(Errno::BUSY));
        assert_eq!(rig.stall(1_000, 0), NOBODY);
        assert_eq!(rig.stall(1_100, 100), [101]);
        assert_eq!(rig.poll(1), READY | libc::POLLPRI as u32);
        rig.triggers.release(&rig.slots, 1);
        rig.triggers = Triggers::new(&rig.slots);
        assert_eq!(rig.poll(1), NO_TRIGGER);
    }

    #[test]
    fn a_waiter_for_a_container_that_is_gone_is_woken_and_told() {
        let mut rig = Rig::new();
        rig.arm(1, false, LINE).unwrap();
        rig.poll(1);
        rig.slots.remove(rig.slot);
        assert_eq!(rig.look(0), [101]);
        assert_eq!(rig.poll(1), NO_TRIGGER);
        assert_eq!(rig.arm(2, false, LINE), Err(Errno::STALE));
    }

    #[test]
    fn looks_follow_the_shortest_window() {
        let rig = Rig::new();
        rig.arm(1, false, b"some 1 10000000\n").unwrap();
        assert_eq!(pause(&rig.triggers.lock()), LONGEST_PAUSE);
        rig.arm(2, false, b"some 1 500000\n").unwrap();
        assert_eq!(pause(&rig.triggers.lock()), Duration::from_millis(50));
    }
}
