//! Puts limits on containers and takes memory from them, on threads of their own. The kernel may let a write wait until a slow disk has
//! emptied its queue (`blk_mq_freeze_queue`), and a limit's record must be durable before the limit is set. The policy loop waits for
//! neither.
//!
//! There are two: one for memory, one for disks. A reclaim takes up to half a second, and a burst on a disk is to be answered sooner.
//! Each holds leases of its own, and says that it works only when the policy loop says so too: when either hangs, the guard takes its
//! limits off.

use super::{Mailbox, PolicyMessage};
use anyhow::{Context, Result};
use elbowroom_govern::disk::Cap;
use elbowroom_linux::cgroup::{CgroupController, CgroupLayout};
use elbowroom_linux::lease::io::IoTarget;
use elbowroom_linux::lease::{CgroupKnob, LeaseEnding, LeaseError, Leases, io};
use elbowroom_linux::memory::{MemoryActuator, UserLimits};
use elbowroom_linux::root::Root;
use elbowroom_linux::{lease, process, timer};
use elbowroom_types::id::{CgroupId, DeviceNumber};
use elbowroom_types::io::{IoLimits, IoMax, IoWeightMechanism};
use elbowroom_types::memory;
use elbowroom_types::memory::{OrderCompletion, OrderKind, OrderOutcome, ReclaimRequest};
use elbowroom_types::unit::{Bytes, Micros};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a stop waits for limits to be taken off; what is left then is the guard's.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// An order to reclaim that has waited for longer is not carried out: what it was for has been judged again since.
const ORDER_TTL: Micros = Micros::secs(2);
/// The same of one that saves: the container can neither lend nor be called back from while it waits.
const SAVING_TTL: Micros = Micros::secs(1);

fn is_stale(order: &ReclaimRequest) -> bool {
    timer::now().saturating_sub(order.at) > if order.saving { SAVING_TTL } else { ORDER_TTL }
}

/// Something to do.
enum LimiterJob {
    /// Put a limit on.
    Cap { cap: Cap, path: String, weights: Option<IoWeightMechanism> },
    /// Protect or reclaim a container's memory.
    Memory { order: memory::MemoryOrder, path: String },
    /// The container is gone: nothing of ours is there any more.
    Forget(CgroupId),
    /// Say that the agent works.
    Heartbeat,
    /// Take every limit off, answer, and end.
    Stop(mpsc::SyncSender<()>),
}

impl LimiterJob {
    /// The order of jobs, lowest first. Behind several reclaims, which take up to half a second each, a beat comes too late for the guard.
    /// Reclaims that only save memory come last: no container waits for them.
    fn rank(&self) -> u8 {
        match self {
            Self::Heartbeat => 0,
            Self::Memory { order: memory::MemoryOrder::Reclaim(order), .. } if order.saving => 2,
            _ => 1,
        }
    }

    /// Takes out what is next: of those that rank alike, the oldest.
    fn take_next(waiting: &mut VecDeque<Self>) -> Option<Self> {
        let (at, _) = waiting.iter().enumerate().min_by_key(|(_, job)| job.rank())?;
        waiting.remove(at)
    }
}

/// What the thread tells the policy loop.
pub(super) enum LimiterReply {
    /// What came of a limit.
    Limits(IoLimits),
    /// A beat was given; `held` limits of this limiter are in force.
    Heartbeat { limits: LimiterKind, held: usize },
    /// The outcome of an order about memory, and the user's settings in files that now have ours.
    Memory(OrderCompletion, UserLimits),
}

/// What a limiter limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimiterKind {
    /// Memory of containers.
    Memory,
    /// Their use of disks.
    Disks,
}

impl LimiterKind {
    /// Where its leases are, below the agent's run directory.
    fn ledger(self, run_dir: &Path) -> PathBuf {
        let top = run_dir.join(lease::DIR);
        match self {
            Self::Memory => top,
            Self::Disks => top.join(lease::DISKS),
        }
    }

    fn thread_name(self) -> &'static str {
        match self {
            Self::Memory => "limiter",
            Self::Disks => "disk-limiter",
        }
    }
}

/// The thread, as the policy loop sees it. Nothing here waits but [`Limiter::stop`].
#[derive(Clone)]
pub(super) struct Limiter {
    jobs: mpsc::Sender<LimiterJob>,
}

impl Limiter {
    /// Takes the leases below `run_dir`, putting back what was left there, and starts the thread. A process before this one may still be
    /// in a write that the kernel holds up: then orders wait until it has ended. The ledger for disks is in the one for memory, whose
    /// limiter is started first.
    ///
    /// The thread shares no open files with the others, so it alone holds the lock of the leases. The lock tells whether a write of a limit
    /// may be under way, even of a killed process that another of its threads keeps from ending.
    pub(super) fn start(kind: LimiterKind, run_dir: &Path, mailbox: Mailbox) -> Result<Self> {
        let dir = kind.ledger(run_dir);
        let (jobs, queue) = mpsc::channel();
        let (opened, wait) = mpsc::sync_channel(1);
        let run = move || {
            // SAFETY: the thread opens by path all that it uses, but for the mailbox's descriptor, which is there as long as the mailbox.
            unsafe { process::unshare_open_files_except(&mut [mailbox.raw_fd()]) };
            match LimiterWorker::open(kind, &dir, mailbox, &opened) {
                Ok(worker) => {
                    drop(opened);
                    worker.run(&queue);
                }
                Err(error) => drop(opened.send(Err(error))),
            }
        };
        std::thread::Builder::new()
            .name(kind.thread_name().into())
            .spawn(run)
            .context("starting the limiter's thread")?;
        wait.recv().unwrap_or_else(|_| Err(anyhow::anyhow!("the limiter's thread ended")))?;
        Ok(Self { jobs })
    }

    /// Puts a limit on; the answer is a [`LimiterReply::Limits`].
    pub(super) fn cap(&self, cap: Cap, path: String, weights: Option<IoWeightMechanism>) {
        let _ = self.jobs.send(LimiterJob::Cap { cap, path, weights });
    }

    /// Carries out an order about memory; the answer is a [`LimiterReply::Memory`].
    pub(super) fn memory(&self, order: memory::MemoryOrder, path: String) {
        let _ = self.jobs.send(LimiterJob::Memory { order, path });
    }

    /// Forgets a container that is gone, or that is governed no more: its limits are taken off.
    pub(super) fn forget(&self, group: CgroupId) {
        let _ = self.jobs.send(LimiterJob::Forget(group));
    }

    /// Says that the policy loop works; the answer is a [`LimiterReply::Heartbeat`].
    pub(super) fn heartbeat(&self) {
        let _ = self.jobs.send(LimiterJob::Heartbeat);
    }

    /// Has some limiters take every limit off, all at the same time.
    pub(super) fn stop(limiters: impl Iterator<Item = Self>) {
        let stopping: Vec<mpsc::Receiver<()>> = limiters
            .map(|limiter| {
                let (done, wait) = mpsc::sync_channel(1);
                let _ = limiter.jobs.send(LimiterJob::Stop(done));
                wait
            })
            .collect();
        let deadline = Instant::now() + STOP_TIMEOUT;
        for wait in stopping {
            if wait.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_err() {
                tracing::warn!(
                    because = "the kernel holds up a write",
                    "limits are taken off by the guard when this process ends"
                );
            }
        }
    }
}

/// The leases of `dir`, once no other process holds them.
fn wait_for_leases(dir: &Path) -> Leases {
    loop {
        std::thread::sleep(Duration::from_micros(lease::HEARTBEAT_INTERVAL.get()));
        match Leases::open(dir) {
            Ok(leases) => return leases,
            Err(LeaseError::Held { .. }) => {}
            Err(error) => tracing::error!(%error, "limits wait"),
        }
    }
}

/// The thread's own state.
struct LimiterWorker {
    kind: LimiterKind,
    leases: Leases,
    layout: CgroupLayout,
    mailbox: Mailbox,
    /// The limits that were asked for, and what came of it.
    applied: BTreeMap<(CgroupId, DeviceNumber), (String, IoLimits)>,
    actuator: MemoryActuator,
    /// Containers whose memory is protected, and where they are.
    protected: BTreeMap<CgroupId, String>,
    /// Where something of ours is that is not wanted and the kernel did not let us take off.
    unreleased: BTreeSet<CgroupKnob>,
}

impl LimiterWorker {
    /// Opens all that it needs. `opened` is told as soon as nothing can fail any more.
    fn open(
        kind: LimiterKind,
        dir: &Path,
        mailbox: Mailbox,
        opened: &mpsc::SyncSender<Result<()>>,
    ) -> Result<Self> {
        let root = Root::host()?;
        let (layout, actuator) =
            (CgroupLayout::detect(&root)?, MemoryActuator::new(CgroupLayout::detect(&root)?));
        let leases = match Leases::open(dir) {
            Err(LeaseError::Held { pid, .. }) => {
                let because = "it is in the middle of a write";
                tracing::warn!(pid, because, "limits wait for a process to end");
                None
            }
            leases => Some(leases?),
        };
        let _ = opened.send(Ok(()));
        let leases = leases.unwrap_or_else(|| wait_for_leases(dir));
        // Limits that the holder before left and that could not be put back.
        let unreleased = leases.held().map(|record| record.knob.clone()).collect();
        let (applied, protected) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { kind, leases, layout, mailbox, applied, actuator, protected, unreleased })
    }

    fn run(mut self, queue: &mpsc::Receiver<LimiterJob>) {
        let mut waiting = VecDeque::new();
        loop {
            if waiting.is_empty() {
                let Ok(job) = queue.recv() else { return };
                waiting.push_back(job);
            }
            waiting.extend(queue.try_iter());
            let Some(job) = LimiterJob::take_next(&mut waiting) else { continue };
            match job {
                LimiterJob::Memory { order, path } => self.memory(&order, path),
                LimiterJob::Cap { cap, path, weights } => self.cap(&cap, path, weights),
                LimiterJob::Forget(group) => self.forget(group),
                LimiterJob::Heartbeat => self.heartbeat(),
                LimiterJob::Stop(done) => {
                    let ended = self.leases.release_all();
                    let stuck =
                        ended.iter().filter(|ended| matches!(ended.fate, LeaseEnding::Failed(_))).count();
                    tracing::info!(limits = ended.len() - stuck, "limits taken off");
                    if stuck > 0 {
                        tracing::error!(limits = stuck, "limits stay: the next agent takes them off");
                    }
                    let _ = done.send(());
                    return;
                }
            }
        }
    }

    fn cap(&mut self, cap: &Cap, path: String, weights: Option<IoWeightMechanism>) {
        self.keep_knobs(&path);
        let place = IoTarget { layout: &self.layout, group: cap.group, path: &path, disk: cap.disk };
        let limits = io::set_io_max(&mut self.leases, &place, cap.max, cap.weight, weights, &cap.because);
        self.applied.insert((cap.group, cap.disk), (path, limits));
        self.mailbox.send(PolicyMessage::Limiter(LimiterReply::Limits(limits)));
    }

    fn memory(&mut self, order: &memory::MemoryOrder, path: String) {
        self.keep_knobs(&path);
        let done = match order {
            memory::MemoryOrder::Protect(protect) => {
                let done = self.actuator.protect(&mut self.leases, protect, &path);
                // Also where only a part of it is in force.
                if done.outcome != OrderOutcome::Gone {
                    self.protected.insert(protect.group, path.clone());
                }
                done
            }
            memory::MemoryOrder::Reclaim(reclaim) if is_stale(reclaim) => {
                let (group, what, outcome) = (reclaim.group, OrderKind::Reclaim, OrderOutcome::Late);
                OrderCompletion { now: timer::now(), group, what, outcome, reclaimed: Bytes::ZERO }
            }
            memory::MemoryOrder::Reclaim(reclaim) => self.actuator.reclaim(&mut self.leases, reclaim, &path),
            memory::MemoryOrder::ViewCeiling(_) | memory::MemoryOrder::Alert(_) => return,
        };
        let user = self.actuator.user_limits(&self.leases, &path);
        self.mailbox.send(PolicyMessage::Limiter(LimiterReply::Memory(done, user)));
    }

    fn forget(&mut self, group: CgroupId) {
        self.actuator.forget(&mut self.leases, group);
        let protected = self.protected.remove(&group);
        let capped = self.applied.iter().find(|((of, _), _)| *of == group).map(|(_, (path, _))| path.clone());
        let Some(path) = capped.or(protected) else { return };
        self.applied.retain(|(of, _), _| *of != group);
        let dirs = self.cgroup_dirs(&path);
        let knobs = self.leases.held().map(|record| &record.knob);
        let knobs: Vec<_> = knobs.filter(|knob| dirs.contains(&knob.dir)).cloned().collect();
        for knob in knobs {
            // A knob is known by its cgroup's inode: of one that is gone the record goes, and another that has its path now
            // is not touched.
            if let lease::LeaseOutcome::Refused(why) = self.leases.release(&knob) {
                tracing::error!(%knob, because = %why, "a limit of ours cannot be taken off: it is tried with each beat");
                self.unreleased.insert(knob);
            }
        }
    }

    /// A container is governed there: what is in its knobs is wanted.
    fn keep_knobs(&mut self, path: &str) {
        if !self.unreleased.is_empty() {
            let dirs = self.cgroup_dirs(path);
            self.unreleased.retain(|knob| !dirs.contains(&knob.dir));
        }
    }

    /// Where a container's knobs are.
    fn cgroup_dirs(&self, path: &str) -> Vec<PathBuf> {
        let below_root = Path::new(path.trim_start_matches('/'));
        let dir = |controller| self.layout.dir(controller, below_root).map(|(_, dir)| dir.path());
        [CgroupController::Io, CgroupController::Memory].into_iter().filter_map(dir).collect()
    }

    fn heartbeat(&mut self) {
        self.actuator.expire(&mut self.leases);
        if !self.leases.heartbeat().is_empty() {
            self.actuator.clear();
            for (group, path) in std::mem::take(&mut self.protected) {
                let outcome = OrderOutcome::Refused("this process did nothing for three beats".to_owned());
                let (now, what) = (timer::now(), OrderKind::Protect);
                let done = OrderCompletion { now, group, what, outcome, reclaimed: Bytes::ZERO };
                let user = self.actuator.user_limits(&self.leases, &path);
                self.mailbox.send(PolicyMessage::Limiter(LimiterReply::Memory(done, user)));
            }
            // All are taken away at once, and the policy loop must know that nothing is in force.
            for (_, limits) in self.applied.values_mut().filter(|(_, limits)| limits.ours != IoMax::MAX) {
                limits.ours = IoMax::MAX;
                self.mailbox.send(PolicyMessage::Limiter(LimiterReply::Limits(*limits)));
            }
        }
        let leases = &mut self.leases;
        self.unreleased.retain(|knob| matches!(leases.release(knob), lease::LeaseOutcome::Refused(_)));
        let held = self.leases.held().count();
        self.mailbox.send(PolicyMessage::Limiter(LimiterReply::Heartbeat { limits: self.kind, held }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reclaim(group: u64, saving: bool) -> LimiterJob {
        let (at, amount, keep, group) = (Micros::ZERO, Bytes::ZERO, Bytes::ZERO, CgroupId(group));
        let order = ReclaimRequest { at, group, amount, keep, swap: false, dead: false, saving };
        LimiterJob::Memory { order: memory::MemoryOrder::Reclaim(order), path: String::new() }
    }

    #[test]
    fn a_beat_goes_first_and_what_is_only_saved_goes_last() {
        let jobs = [
            reclaim(1, true),
            reclaim(2, false),
            LimiterJob::Forget(CgroupId(3)),
            reclaim(4, true),
            LimiterJob::Heartbeat,
        ];
        let mut waiting = VecDeque::from(jobs);
        let order = std::iter::from_fn(|| LimiterJob::take_next(&mut waiting)).map(|job| match job {
            LimiterJob::Memory { order: memory::MemoryOrder::Reclaim(order), .. } => order.group.0,
            LimiterJob::Forget(group) => group.0,
            _ => 0,
        });
        assert_eq!(order.collect::<Vec<_>>(), [0, 2, 3, 1, 4]);
    }
}
