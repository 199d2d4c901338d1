//! The policy process's side: slots are filled here, and the kernel is told to drop the pages that show old numbers.
//!
//! # Approach
//! [`Publisher::publish`] writes the slot and wakes the notifier, a thread that may sleep in the kernel (an invalidation
//! waits for READs of the same page that are under way). The caller never does: a control loop that waits for a view
//! server that is being restarted would stop deciding.
//!
//! The notifier ([`crate::view_server::notifier`]) is lazy. It swaps the slot's page bits to zero and drops exactly the pages whose
//! bit was set: those that were read since they were dropped last.
//!
//! When a view server dies, nothing need be dropped: its bits are in the shared memory, and its unanswered pages are asked for
//! again (before Linux 6.9 the mount is a new one then). A policy process that dies may have swapped bits and not told the
//! kernel, so its successor drops every page of every container once.
//!
//! Sizes are measured when a container is added and stay, but for two cases. When its possible CPUs (its cpuset, or its quota's
//! ceiling) become more than ever before, pages that no longer fit grow, once. When the machine gets more disks, `diskstats` has a
//! row for each. A read of such a page at that very moment may get the new text cut to the old length.

use crate::view_server::FuseError;
use crate::view_server::handover::Handover;
use crate::view_server::host_files::HostFiles;
use crate::view_server::notifier;
use crate::view_server::notifier_queue::{FIXED_FILES, LOCK_EXPECT, NotifierShared, ReadBits, lock, spawn};
use crate::view_server::roles::AgentRole;
use crate::view_server::slots::{ShutdownMode, SlotHandle, SlotSnapshot, Slots, ViewServerCounters};
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::unit::Micros;
use elbowroom_view::pages::snapshot::{ContainerSnapshot, CpuTimes};
use elbowroom_view::pages::view_node::ViewNode;
use elbowroom_view::pages::{render, tree};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// What changed, that is, which pages have become old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dirty {
    /// Effective CPU or memory, or a limit: every page.
    View,
    /// Usage and counters only: the pages for which [`ViewNode::is_dynamic`] holds.
    Stats,
}

/// Writes views. One per node: it has the policy role.
pub struct Publisher {
    shared: Arc<NotifierShared>,
    host: HostFiles,
    /// What sizes and fixed pages depend on, by container.
    view_shapes: HashMap<SlotHandle, ViewShape>,
    /// The page bits that [`Dirty::Stats`] is about.
    dynamic: u64,
    /// The longest that `diskstats` of the machine's disks was.
    longest_diskstats: u32,
}

/// The facts that decide which files a container has, and how long they are.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ViewShape {
    present: CpuSet,
    possible: CpuSet,
    nodes: CpuSet,
}

impl Publisher {
    /// Takes up the policy role in a process that the supervisor started. Containers of a policy process before are
    /// still in their slots ([`Publisher::slots`]). Whatever that process published and did not live to notify is
    /// notified now.
    ///
    /// # Errors
    /// [`FuseError::NotInherited`], [`FuseError::AlreadyRunning`], [`FuseError::Layout`].
    pub fn from_inherited() -> Result<Self, FuseError> {
        let _ = rustix::thread::set_name(c"elbowroom-polic");
        let handover = Handover::inherit()?;
        let memory = handover.slots.try_clone().map_err(FuseError::io("duplicating", "slots"))?;
        let slots = Slots::open(memory)?;
        handover.acquire_role(AgentRole::Policy)?;
        let shared = Arc::new(NotifierShared {
            handover,
            slots,
            queue: Mutex::default(),
            wake: Condvar::new(),
            wake_slow: Condvar::new(),
            done: Condvar::new(),
            slot_reuse: Mutex::default(),
        });
        let dynamic = (0..64).filter(|bit| {
            tree::nodes_with_page_bit(*bit, &ContainerSnapshot::EMPTY).iter().any(|n| n.is_dynamic())
        });
        let dynamic = dynamic.fold(0, |mask, bit| mask | 1 << bit);
        let mut publisher = Self {
            shared,
            host: HostFiles::new("/"),
            view_shapes: HashMap::new(),
            dynamic,
            longest_diskstats: 0,
        };
        publisher.start_threads();
        publisher.adopt();
        Ok(publisher)
    }

    /// Says that this process works; to be called at every update.
    pub fn heartbeat(&self) {
        self.shared.slots.count_heartbeat();
    }

    /// Says that there will be no beat until then, on the monotonic clock, unless something happens.
    pub fn set_quiet_until(&self, time: Micros) {
        self.shared.slots.set_quiet_until(time);
    }

    /// Whether the agent ends only to be started again: views are to stay where they are.
    pub(crate) fn keeps_views_on_stop(&self) -> bool {
        self.shared.slots.shutdown_mode() == ShutdownMode::KeepViews
    }

    /// Where the views are mounted: `VIEWS/ID/proc/meminfo`.
    pub fn views(&self) -> PathBuf {
        self.shared.handover.options.views()
    }

    /// Where the view pages are.
    pub fn pages(&self) -> PathBuf {
        self.shared.handover.options.pages()
    }

    /// The run directory.
    pub fn run_dir(&self) -> PathBuf {
        self.shared.handover.options.run_dir.clone()
    }

    /// How many [`CpuTimes`] a view has room for: the CPUs this machine can have.
    pub fn cpus(&self) -> usize {
        self.shared.slots.cpus()
    }

    /// What was published last for a container: after a restart, by the process before.
    pub(crate) fn last_published(&self, slot: SlotHandle) -> Option<SlotSnapshot> {
        let mut snapshot = SlotSnapshot::default();
        self.shared.slots.snapshot(slot, &mut snapshot)?;
        Some(snapshot)
    }

    /// The page bits of pages that show usage and counters.
    pub(crate) fn dynamic_pages(&self) -> u64 {
        self.dynamic
    }

    /// The supervisor and the view server, as far as they live at this moment.
    pub fn peers(&self) -> (Option<rustix::process::Pid>, Option<rustix::process::Pid>) {
        let roles = &self.shared.handover.role_lock;
        (roles.holder(AgentRole::Supervisor), roles.holder(AgentRole::Server))
    }

    /// How much the view servers of this agent have done.
    pub fn counters(&self) -> ViewServerCounters {
        self.shared.slots.counters()
    }

    /// The containers that have a view, with whose they are ([`Self::add`]): after a restart, those of the process before.
    pub fn slots(&self) -> Vec<(SlotHandle, u64)> {
        let slots = &self.shared.slots;
        slots.iter_from(0).filter_map(|(_, slot)| Some((slot, slots.owner(slot)?))).collect()
    }

    /// A container's name, that of its directory.
    pub fn name(&self, slot: SlotHandle) -> Option<String> {
        self.shared.slots.name(slot)
    }

    /// Makes a container's view: the directory `id` is there when this returns. The sizes of its files are measured
    /// now and change only when more CPUs become possible for it, or the machine has more disks. `whose` are two
    /// numbers. The first tells the container from any other, also from one that has its name later; a restarted process finds the
    /// container by it. The second is that of the outermost container around it, or its own.
    ///
    /// # Errors
    /// [`FuseError::Name`], [`FuseError::Exists`], [`FuseError::Full`], [`FuseError::TooManyCpus`].
    pub fn add(
        &mut self,
        id: &str,
        whose: (u64, u64),
        facts: &ContainerSnapshot,
        times: &[CpuTimes],
    ) -> Result<SlotHandle, FuseError> {
        let sizes = self.measure_sizes(facts, |_| true);
        let reuse = lock(&self.shared.slot_reuse);
        let slot = self.shared.slots.add(id, whose, &sizes, facts, times)?;
        drop(reuse);
        self.view_shapes.insert(slot, ViewShape::of(facts));
        Ok(slot)
    }

    /// Replaces a container's numbers: from now on readers get these, or later ones; [`Publisher::flush`] says when
    /// that holds for pages that they had cached.
    ///
    /// # Errors
    /// [`FuseError::Gone`], [`FuseError::TooManyCpus`].
    pub fn publish(
        &mut self,
        slot: SlotHandle,
        facts: &ContainerSnapshot,
        times: &[CpuTimes],
        dirty: Dirty,
    ) -> Result<(), FuseError> {
        let shape = ViewShape::of(facts);
        let before = self.view_shapes.get(&slot).copied().filter(|before| *before != shape);
        let grown = before.is_some_and(|before| {
            // A limit that comes after its cgroup, while a runtime waits for the view: to measure all takes a millisecond.
            let sizes = match shape.is_within(&before) {
                true => self.measure_sizes(facts, render::is_cpu_list),
                false => self.measure_sizes(facts, |_| true),
            };
            self.shared.slots.grow(slot, &sizes)
        });
        self.shared.slots.publish(slot, facts, times)?;
        if before.is_some() {
            self.view_shapes.insert(slot, shape);
        }
        // Sizes are cached also of files that were only looked up. And what CPUs that come back showed before they went may be cached
        // still: the bits of then were taken without them.
        if grown || before.is_some_and(|before| !shape.is_within(&before)) {
            self.shared.push(slot, 0, true);
        }
        let mask = match dirty {
            Dirty::View if before.is_some() => u64::MAX,
            Dirty::View => !FIXED_FILES,
            Dirty::Stats if before.is_some() => self.dynamic | FIXED_FILES,
            Dirty::Stats => self.dynamic,
        };
        // None of it was read: the usual case, and then there is no one to wake.
        if self.shared.slots.peek_read(slot) & mask != 0 {
            self.shared.push(slot, mask, false);
        }
        Ok(())
    }

    /// Sees to it that every container's `diskstats` has room for all disks of the machine, which may have more by now: to be called
    /// about every second.
    pub(crate) fn grow_diskstats(&mut self) {
        let (node, path) = (ViewNode::Diskstats, tree::host_path(ViewNode::Diskstats));
        let text = path.and_then(|path| self.host.read(&path, true).ok()).unwrap_or_default();
        // As long for every container: a container that uses none of them has a row for each.
        let longest = render::size(node, &ContainerSnapshot::EMPTY, &text);
        let Some(bit) = node.page_bit().filter(|_| longest > self.longest_diskstats) else { return };
        self.longest_diskstats = longest;
        for (slot, _) in self.slots() {
            if self.shared.slots.size(slot, bit).is_some_and(|has| has < longest) {
                let mut sizes = [0; 64];
                sizes[usize::from(bit)] = longest;
                self.shared.slots.grow(slot, &sizes);
                self.shared.push_own(slot);
            }
        }
    }

    /// The page bits ([`ViewNode::page_bit`]) that readers asked the server for since this was called last. A page
    /// that is cached is read without the server, so this says "read since it was last dropped", which is what
    /// tells hot containers from cold ones.
    pub fn take_recent_reads(&self, slot: SlotHandle) -> u64 {
        let set = self.shared.slots.peek_read(slot) & !FIXED_FILES;
        let mut work = lock(&self.shared.queue);
        let readers = work.readers.entry(slot).or_default();
        let new = readers.unreported | set & !readers.reported;
        *readers = ReadBits { unreported: 0, reported: set };
        new
    }

    /// Takes a container's view away. Where it is still mounted, pages that are cached stay readable; everything else
    /// is `ESTALE`.
    pub fn remove(&mut self, slot: SlotHandle) {
        self.view_shapes.remove(&slot);
        let name = {
            let _reuse = lock(&self.shared.slot_reuse);
            let name = self.shared.slots.name(slot);
            self.shared.slots.remove(slot);
            name
        };
        let mut work = lock(&self.shared.queue);
        work.readers.remove(&slot);
        work.drops.push_name(slot, name);
        self.shared.wake.notify_one();
    }

    /// The number that tells a container from any other, as [`Self::add`] was told.
    pub(crate) fn owner(&self, slot: SlotHandle) -> Option<u64> {
        self.shared.slots.owner(slot)
    }

    /// The containers that asked the view server more than they may since this was called last.
    pub(crate) fn take_overuse(&self) -> Vec<SlotHandle> {
        self.shared.slots.take_overuse()
    }

    /// The tenants whose pages come late because of how they map them.
    pub(crate) fn slow(&self) -> Vec<u64> {
        lock(&self.shared.queue).drops.slow().collect()
    }

    /// The tenant of a container, as [`Self::add`] was told.
    pub(crate) fn tenant(&self, slot: SlotHandle) -> u64 {
        self.shared.slots.tenant(slot)
    }

    /// Waits until everything published so far is what the next read of any process shows, but of containers that map their pages too
    /// often. False when that took
    /// longer than `limit`, because a view server is being restarted.
    ///
    /// # Errors
    /// [`FuseError::Disconnected`]: the mount is gone, and there will be a new agent soon.
    pub fn flush(&self, limit: Duration) -> Result<bool, FuseError> {
        let until = Instant::now() + limit;
        let mut work = lock(&self.shared.queue);
        let target = work.drops.now();
        while !work.drops.is_done(target) && !work.disconnected {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            work = self.shared.done.wait_timeout(work, left).expect(LOCK_EXPECT).0;
        }
        if work.disconnected { Err(FuseError::Disconnected) } else { Ok(true) }
    }

    /// The size of each page that is `wanted`, of the others 0: of the longest, where several share a bit.
    fn measure_sizes(&mut self, facts: &ContainerSnapshot, wanted: impl Fn(ViewNode) -> bool) -> [u32; 64] {
        let first_cpu = facts.shown_present().iter().next();
        std::array::from_fn(|bit| {
            let nodes = tree::nodes_with_page_bit(bit as u8, facts).into_iter().filter(|node| wanted(*node));
            // The same file of each CPU is as long as that of the first.
            let nodes = nodes.filter(|node| match node {
                ViewNode::CpuFile(cpu, ..) => first_cpu == Some(u32::from(*cpu)),
                _ => true,
            });
            let sizes = nodes.map(|node| {
                let keep = !matches!(node, ViewNode::CpuFile(..));
                let text = tree::host_path(node).and_then(|path| self.host.read(&path, keep).ok());
                render::size(node, facts, &text.unwrap_or_default())
            });
            sizes.max().unwrap_or(0)
        })
    }

    fn start_threads(&self) {
        let shared = Arc::clone(&self.shared);
        spawn("watch-parent", move || shared.handover.watch_supervisor());
        notifier::start(&self.shared);
    }

    /// Adopts the containers of the process before, and drops all their pages, whatever the bits say: that process may have
    /// swapped bits and died before it told the kernel. About a microsecond per page.
    fn adopt(&mut self) {
        let mut snapshot = SlotSnapshot::default();
        let slots: Vec<_> = self.shared.slots.iter_from(0).map(|(_, slot)| slot).collect();
        for slot in &slots {
            if self.shared.slots.snapshot(*slot, &mut snapshot).is_some() {
                self.view_shapes.insert(*slot, ViewShape::of(&snapshot.facts));
            }
        }
        slots.into_iter().for_each(|slot| self.shared.push_own(slot));
    }
}

impl ViewShape {
    fn of(facts: &ContainerSnapshot) -> Self {
        Self { present: facts.shown_present(), possible: facts.possible, nodes: facts.shown_nodes() }
    }

    /// Whether all of it is in another.
    fn is_within(&self, other: &Self) -> bool {
        let is_in = |part: &CpuSet, whole: &CpuSet| part.difference(whole).is_empty();
        is_in(&self.present, &other.present)
            && is_in(&self.possible, &other.possible)
            && is_in(&self.nodes, &other.nodes)
    }
}
