//! The threads that tell the kernel which pages are old.
//!
//! # Problem
//! How long an invalidation takes is the reader's to decide. The kernel unmaps the page from every mapping of it, and a container makes
//! a million of them (fs/fuse/inode.c `fuse_reverse_inval_inode`, mm/memory.c `unmap_mapping_folio`): half a second of CPU time, each time
//! that its numbers change. A reader of the page that is kept from running holds its lock. One thread for all containers would bring
//! every neighbour's numbers late, and the CPU time is in no quota of the container's.
//!
//! # Approach
//! Any free thread takes one container at a time, and only one container of each tenant (a container with all that are in it). So a tenant
//! that takes long holds up one of [`QUICK_THREADS`]. A tenant that took [`SLOW_DROP`], at once or beyond [`SLOW_SHARE`] of a CPU, is slow:
//! another thread serves it at that share until it was quick for [`SLOW_FOR`]. Only its own pages are late.

use super::notifier_queue::{
    FIXED_FILES, LOCK_EXPECT, NotifierQueue, NotifierShared, lock, spawn, view_files,
};
use crate::view_server::slots::{SlotHandle, SlotSnapshot};
use crate::view_server::{FuseError, abi};
use elbowroom_linux::process::own_thread_cpu_time;
use elbowroom_view::pages::tree;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// Threads for all that are not known to be slow.
const QUICK_THREADS: usize = 3;
/// A tenant is slow when the pages of one of its containers take this long, or when it owes this much CPU time. Usual ones take some ten
/// microseconds.
const SLOW_DROP: Duration = Duration::from_millis(10);
/// How long a tenant counts as slow after that.
const SLOW_FOR: Duration = Duration::from_secs(60);
/// Dropping the pages of a slow tenant takes at most `1 / SLOW_SHARE` of a CPU.
const SLOW_SHARE: u32 = 20;

/// What is to be dropped.
#[derive(Default)]
pub(super) struct DropQueue {
    quick: Lane,
    slow: Lane,
    /// Names to forget, with the ticket of each.
    names: Vec<(u64, String)>,
    /// Tenants that owe CPU time, or were slow.
    accounts: HashMap<u64, DropAccount>,
    /// Tenants that a quick thread is at.
    busy: HashSet<u64>,
    /// Tickets of what threads are at.
    under_way: BTreeSet<u64>,
    next_ticket: u64,
}

/// Containers that wait, in their order.
#[derive(Default)]
struct Lane {
    order: VecDeque<SlotHandle>,
    pages: HashMap<SlotHandle, OldPages>,
}

/// Which pages of a container are old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OldPages {
    /// Those of these bits that were read.
    pub(super) mask: u64,
    /// All, also those that have no bit.
    pub(super) every: bool,
    /// Whether that is the agent's doing alone, or the host's, and so not on the tenant's account.
    is_own: bool,
    /// Whose container it is.
    tenant: u64,
    /// When it was asked for.
    ticket: u64,
}

/// What dropping the pages of a tenant cost.
#[derive(Clone, Copy)]
struct DropAccount {
    /// When its CPU time is paid, at [`SLOW_SHARE`].
    paid_at: Instant,
    slow: Option<Slowness>,
}

/// When a tenant took long.
#[derive(Clone, Copy)]
struct Slowness {
    last: Instant,
    /// Whether that was work, and no wait for a page that is being read.
    is_work: bool,
}

/// What a thread does next.
enum Job {
    Pages(SlotHandle, OldPages),
    Names(u64, Vec<String>),
}

impl DropQueue {
    /// Adds pages of a container.
    pub(super) fn push(&mut self, slot: SlotHandle, tenant: u64, mask: u64, every: bool) {
        let ticket = self.ticket();
        let is_slow = self.slowness(tenant).is_some();
        let lane = if is_slow { &mut self.slow } else { &mut self.quick };
        let old = lane.pages.entry(slot).or_insert_with(|| {
            lane.order.push_back(slot);
            OldPages { tenant, ticket, ..OldPages::default() }
        });
        old.mask |= mask;
        old.every |= every;
        old.is_own = false;
    }

    /// Adds all pages of a container, because of the agent's doing or the host's.
    pub(super) fn push_own(&mut self, slot: SlotHandle, tenant: u64) {
        let is_alone = ![&self.quick, &self.slow].iter().any(|lane| lane.pages.contains_key(&slot));
        self.push(slot, tenant, 0, true);
        for lane in [&mut self.quick, &mut self.slow] {
            lane.pages.get_mut(&slot).into_iter().for_each(|old| old.is_own = is_alone);
        }
    }

    /// Adds the name of a container that is gone, and forgets its pages.
    pub(super) fn push_name(&mut self, slot: SlotHandle, name: Option<String>) {
        let ticket = self.ticket();
        for lane in [&mut self.quick, &mut self.slow] {
            lane.pages.remove(&slot);
            lane.order.retain(|other| *other != slot);
        }
        self.names.extend(name.map(|name| (ticket, name)));
    }

    /// Requests from here on have this ticket, or a later one.
    pub(super) fn now(&self) -> u64 {
        self.next_ticket
    }

    /// Whether all that was asked for before `ticket` is done, but of tenants that are slow by the work that they make.
    pub(super) fn is_done(&self, ticket: u64) -> bool {
        let slow = self.slow.pages.iter().filter(|(_, old)| !self.makes_work(old.tenant));
        let queued = self.quick.pages.iter().chain(slow).map(|(_, old)| old.ticket);
        let names = self.names.iter().map(|(at, _)| *at);
        queued.chain(names).chain(self.under_way.iter().copied()).all(|at| at >= ticket)
    }

    fn slowness(&self, tenant: u64) -> Option<Slowness> {
        self.accounts.get(&tenant)?.slow
    }

    fn makes_work(&self, tenant: u64) -> bool {
        self.slowness(tenant).is_some_and(|slowness| slowness.is_work)
    }

    /// The tenants whose pages come late because of what they make.
    pub(super) fn slow(&self) -> impl Iterator<Item = u64> {
        self.accounts.keys().copied().filter(|tenant| self.makes_work(*tenant))
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket - 1
    }

    fn take_quick(&mut self) -> Option<Job> {
        let job = match self.names.first() {
            Some((ticket, _)) => {
                let ticket = *ticket;
                Job::Names(ticket, self.names.drain(..).map(|(_, name)| name).collect())
            }
            None => {
                let is_free = |slot| !self.busy.contains(&self.quick.pages[slot].tenant);
                let at = self.quick.order.iter().position(is_free)?;
                let (slot, old) = self.quick.take(at);
                self.busy.insert(old.tenant);
                Job::Pages(slot, old)
            }
        };
        self.under_way.insert(job.ticket());
        Some(job)
    }

    /// The first that is due, or how long until one is.
    fn take_slow(&mut self, now: Instant) -> Result<Job, Option<Duration>> {
        let paid_at = |old: &OldPages| self.accounts.get(&old.tenant).map_or(now, |account| account.paid_at);
        let due = |slot: &SlotHandle| paid_at(&self.slow.pages[slot]);
        let soonest = self.slow.order.iter().map(due).min();
        let Some(at) = self.slow.order.iter().position(|slot| due(slot) <= now) else {
            return Err(soonest.map(|at| at.saturating_duration_since(now)));
        };
        let (slot, old) = self.slow.take(at);
        if !self.makes_work(old.tenant) {
            self.under_way.insert(old.ticket);
        }
        Ok(Job::Pages(slot, old))
    }

    /// Notes how long the pages of a tenant's container took, and how much of that was this thread's work; true if the tenant is slow since
    /// now.
    fn took(&mut self, tenant: u64, now: Instant, elapsed: Duration, cpu: Duration) -> bool {
        let is_over = |slow: Slowness| now.saturating_duration_since(slow.last) > SLOW_FOR;
        self.accounts.retain(|_, account| account.paid_at > now || !account.slow.is_none_or(is_over));
        let account = self.accounts.entry(tenant).or_insert(DropAccount { paid_at: now, slow: None });
        account.paid_at = account.paid_at.max(now) + cpu * SLOW_SHARE;
        let owes = account.paid_at - now >= SLOW_DROP * SLOW_SHARE;
        let before = account.slow;
        if elapsed >= SLOW_DROP || owes {
            let is_work = owes || before.is_some_and(|before| before.is_work);
            account.slow = Some(Slowness { last: now, is_work });
        }
        let is_slow_now = before.is_none() && account.slow.is_some();
        if is_slow_now {
            self.quick.move_to(&mut self.slow, tenant);
        }
        is_slow_now
    }

    /// Notes that a thread is done with a job.
    fn finished(&mut self, job: &Job) {
        self.under_way.remove(&job.ticket());
        if let Job::Pages(_, old) = job {
            self.busy.remove(&old.tenant);
        }
    }
}

impl Lane {
    /// Takes out the container at a place in the order.
    fn take(&mut self, at: usize) -> (SlotHandle, OldPages) {
        let slot = self.order.remove(at).expect("it was found");
        (slot, self.pages.remove(&slot).expect("what has a turn has pages"))
    }

    /// Moves what waits of a tenant.
    fn move_to(&mut self, other: &mut Self, tenant: u64) {
        let Self { order, pages } = self;
        order.retain(|slot| {
            let Some(old) = pages.get(slot).copied().filter(|old| old.tenant == tenant) else { return true };
            pages.remove(slot);
            other.order.push_back(*slot);
            other.pages.insert(*slot, old);
            false
        });
    }
}

impl Job {
    fn ticket(&self) -> u64 {
        match self {
            Self::Pages(_, old) => old.ticket,
            Self::Names(ticket, _) => *ticket,
        }
    }
}

/// Starts the threads.
pub(super) fn start(shared: &Arc<NotifierShared>) {
    for number in 0..=QUICK_THREADS {
        let notifier = Arc::clone(shared);
        let run = move || {
            let ended = if number == QUICK_THREADS { notifier.run_slow() } else { notifier.run_quick() };
            if let Err(error) = ended {
                let mut work = lock(&notifier.queue);
                if !std::mem::replace(&mut work.disconnected, true) {
                    tracing::error!(%error, "views are not refreshed any more");
                }
                notifier.done.notify_all();
            }
        };
        spawn("notifier", run);
    }
}

impl NotifierShared {
    /// A quick thread's life. Ends only with the connection.
    fn run_quick(&self) -> Result<(), FuseError> {
        let mut thread = DropThread::default();
        loop {
            let mut work = lock(&self.queue);
            let job = loop {
                match work.drops.take_quick() {
                    Some(job) => break job,
                    None => work = self.wake.wait(work).expect(LOCK_EXPECT),
                }
            };
            drop(work);
            self.finish(job, &mut thread)?;
        }
    }

    /// The life of the thread for those that are slow.
    fn run_slow(&self) -> Result<(), FuseError> {
        let mut thread = DropThread::default();
        loop {
            let mut work = lock(&self.queue);
            let job = loop {
                work = match work.drops.take_slow(Instant::now()) {
                    Ok(job) => break job,
                    Err(Some(wait)) => self.wake_slow.wait_timeout(work, wait).expect(LOCK_EXPECT).0,
                    Err(None) => self.wake_slow.wait(work).expect(LOCK_EXPECT),
                };
            };
            drop(work);
            self.finish(job, &mut thread)?;
        }
    }

    fn finish(&self, job: Job, thread: &mut DropThread) -> Result<(), FuseError> {
        let done = self.carry_out(&job, thread);
        let mut work = lock(&self.queue);
        work.drops.finished(&job);
        // Wakes a thread for containers that waited for their tenant's turn.
        if !work.drops.quick.order.is_empty() {
            self.wake.notify_one();
        }
        drop(work);
        self.done.notify_all();
        done
    }

    fn carry_out(&self, job: &Job, thread: &mut DropThread) -> Result<(), FuseError> {
        match job {
            Job::Names(_, names) => names.iter().try_for_each(|name| {
                abi::inval_entry(&mut thread.message, abi::ROOT_ID, name.as_bytes());
                self.send_notification(&thread.message)
            }),
            &Job::Pages(slot, old) => {
                let (begin, cpu) = (Instant::now(), own_thread_cpu_time());
                let dropped = self.drop_old(slot, old, thread);
                let (now, cpu) = (Instant::now(), own_thread_cpu_time().saturating_sub(cpu));
                let cpu = if old.is_own { Duration::ZERO } else { cpu };
                let mut work = lock(&self.queue);
                if work.drops.took(old.tenant, now, now - begin, cpu) {
                    self.tell_slow(slot, now - begin, work);
                }
                self.wake_slow.notify_one();
                dropped
            }
        }
    }

    fn tell_slow(&self, slot: SlotHandle, took: Duration, work: MutexGuard<'_, NotifierQueue>) {
        drop(work);
        let (view, took_ms) = (self.slots.name(slot).unwrap_or_default(), took.as_millis() as u64);
        tracing::debug!(view, took_ms, "dropping its pages takes long: apart from the others from now on");
    }

    fn drop_old(&self, slot: SlotHandle, old: OldPages, thread: &mut DropThread) -> Result<(), FuseError> {
        let DropThread { snapshot, message } = thread;
        let bits = {
            let _reuse = lock(&self.slot_reuse);
            self.slots.take_read(slot, old.mask)
        };
        {
            let mut work = lock(&self.queue);
            // One that is removed from here on takes its readers with it.
            if self.slots.owner(slot).is_some() {
                work.record_reads(slot, bits);
            }
        }
        if bits == 0 && !old.every || self.slots.snapshot(slot, snapshot).is_none() {
            return Ok(());
        }
        if old.every {
            return self.drop_pages(slot, view_files(&snapshot.facts).into_iter(), message);
        }
        let set = (0..64).filter(|bit| bits & (1 << bit) != 0);
        let nodes = set.flat_map(|bit| tree::nodes_with_page_bit(bit, &snapshot.facts));
        let fixed = if bits & FIXED_FILES != 0 { view_files(&snapshot.facts) } else { Vec::new() };
        let nodes = nodes.chain(fixed.into_iter().filter(|node| node.is_fixed_file()));
        self.drop_pages(slot, nodes, message)
    }
}

/// What a thread uses again and again.
#[derive(Default)]
struct DropThread {
    snapshot: SlotSnapshot,
    message: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn slot(serial: u64) -> SlotHandle {
        SlotHandle { serial }
    }

    fn quick(queue: &mut DropQueue) -> Option<(u64, u64)> {
        queue.take_quick().map(|job| match job {
            Job::Pages(slot, old) => (slot.serial, old.mask),
            Job::Names(..) => (0, 0),
        })
    }

    #[test]
    fn what_is_asked_twice_is_done_once_and_in_turn() {
        let mut queue = DropQueue::default();
        for (serial, mask) in [(1, 1), (2, 1), (1, 2)] {
            queue.push(slot(serial), serial, mask, false);
        }
        assert_eq!(
            [quick(&mut queue), quick(&mut queue), quick(&mut queue)],
            [Some((1, 3)), Some((2, 1)), None]
        );
    }

    #[test]
    fn a_container_that_takes_long_is_served_apart_and_at_its_pace() {
        let (mut queue, begin) = (DropQueue::default(), Instant::now());
        queue.push(slot(1), 1, 1, false);
        quick(&mut queue);
        // A push while a thread is at the container moves with it.
        queue.push(slot(1), 1, 2, false);
        assert!(queue.took(1, begin, 500 * MS, 100 * MS));
        queue.push(slot(1), 1, 4, false);
        queue.push(slot(2), 2, 1, false);
        assert_eq!([quick(&mut queue), quick(&mut queue)], [Some((2, 1)), None]);
        assert_eq!(queue.take_slow(begin).err(), Some(Some(2_000 * MS)));
        let Ok(Job::Pages(served, old)) = queue.take_slow(begin + 2_000 * MS) else { panic!("it is due") };
        assert_eq!((served, old.mask), (slot(1), 6));
        // It is quick again: after a minute it counts as the others.
        for (after, is_slow) in [(3, true), (59, true), (61, false)] {
            assert!(!queue.took(1, begin + 1_000 * after * MS, MS, MS));
            assert_eq!(queue.slow().count() == 1, is_slow, "{after}");
        }
        assert!(!queue.took(2, begin, 9 * MS, MS));
        assert_eq!(queue.slow().count(), 0);
    }

    #[test]
    fn what_the_agent_itself_makes_old_is_on_no_account() {
        let mut queue = DropQueue::default();
        let own = |queue: &mut DropQueue| match queue.take_quick() {
            Some(Job::Pages(_, old)) => old.every && old.is_own,
            _ => panic!("there is one"),
        };
        queue.push_own(slot(1), 1);
        queue.push_own(slot(2), 2);
        queue.push(slot(2), 2, 1, false);
        queue.push(slot(3), 3, 1, false);
        queue.push_own(slot(3), 3);
        assert_eq!([own(&mut queue), own(&mut queue), own(&mut queue)], [true, false, false]);
    }

    #[test]
    fn the_containers_in_one_container_hold_one_quick_thread() {
        let mut queue = DropQueue::default();
        (10..20).for_each(|serial| queue.push(slot(serial), 1, 1, false));
        queue.push(slot(2), 2, 1, false);
        let first = queue.take_quick().unwrap();
        assert_eq!([quick(&mut queue), quick(&mut queue)], [Some((2, 1)), None]);
        queue.finished(&first);
        assert_eq!([quick(&mut queue), quick(&mut queue)], [Some((11, 1)), None]);
    }

    #[test]
    fn the_containers_in_one_container_have_one_share_of_a_cpu() {
        let (mut queue, mut now, mut used) = (DropQueue::default(), Instant::now(), Duration::ZERO);
        let end = now + 10_000 * MS;
        // Each is new, takes less than is slow, and is gone afterwards.
        for serial in 10.. {
            queue.push(slot(serial), 1, 1, false);
            let job = queue.take_quick().map_or_else(|| queue.take_slow(now), Ok);
            let job = job.unwrap_or_else(|wait| {
                now += wait.unwrap();
                queue.take_slow(now).unwrap_or_else(|_| panic!("it is due"))
            });
            if now > end {
                break;
            }
            queue.took(1, now, 9 * MS, 9 * MS);
            used += 9 * MS;
            now += 9 * MS;
            queue.finished(&job);
            queue.push_name(slot(serial), None);
        }
        assert!((400..550).contains(&used.as_millis()), "{used:?}");
        assert_eq!(queue.slow().count(), 1);
        // A neighbour is served at once.
        queue.push(slot(2), 2, 1, false);
        assert_eq!(quick(&mut queue), Some((2, 1)));
        // Nothing is left of them.
        queue.took(2, now + 2 * SLOW_FOR, MS, MS);
        assert_eq!(queue.accounts.len(), 1);
    }

    #[test]
    fn what_was_asked_before_is_done_when_it_has_ended() {
        let mut queue = DropQueue::default();
        queue.push(slot(1), 1, 1, false);
        let asked = queue.now();
        queue.push(slot(2), 2, 1, false);
        assert!(!queue.is_done(asked));
        let job = queue.take_quick().unwrap();
        assert!(!queue.is_done(asked), "it is under way");
        queue.finished(&job);
        assert!(queue.is_done(asked) && !queue.is_done(queue.now()));
        queue.push_name(slot(2), Some("gone".into()));
        assert!(!queue.is_done(queue.now()));
        assert!(matches!(queue.take_quick(), Some(Job::Names(..))));
        assert!(queue.take_quick().is_none());
    }
}
