//! Puts limits on containers and takes memory from them, on a thread of its own: the kernel may let a write wait until a slow disk has emptied its queue
//! (`blk_mq_freeze_queue`), and a record of a limit is durable before the limit is set. The owner does neither.
//!
//! The thread holds the leases, and says that it works only when the owner says so too: when either hangs, the guard takes the
//! limits off.

use super::{Mailbox, Message};
use elbowroom_govern::disk::Cap;
use elbowroom_linux::cgroup::{Controller, Layout};
use elbowroom_linux::lease;
use elbowroom_linux::lease::io;
use elbowroom_linux::lease::io::Place;
use elbowroom_linux::lease::{Fate, Knob, LeaseError, Leases};
use elbowroom_linux::memory::{Actuator, UserLimits};
use elbowroom_linux::timer;
use elbowroom_types::memory;
use elbowroom_types::memory::{Act, Done, Outcome};
use elbowroom_types::sample::{DeviceNumber, GroupId, IoLimits, IoMax, Weights};
use elbowroom_types::unit::{Bytes, Micros};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// How long a stop waits for limits to be taken off; what is left then is the guard's.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// An order to reclaim that has waited for longer is not carried out: what it was for has been judged again since.
const FRESH_FOR: Micros = Micros::secs(2);

fn is_stale(ordered: Micros) -> bool {
    timer::now().saturating_sub(ordered) > FRESH_FOR
}

/// Something to do.
enum Job {
    /// Put a limit on.
    Cap { cap: Cap, path: String, weights: Option<Weights> },
    /// Protect, reclaim, hold or release a container's memory.
    Memory { order: memory::Order, path: String },
    /// The container is gone: nothing of ours is there any more.
    Forget(GroupId),
    /// Say that the agent works.
    Beat,
    /// Take every limit off, answer, and end.
    Stop(mpsc::SyncSender<()>),
}

/// What the thread tells the owner.
pub(super) enum Told {
    /// What came of a limit.
    Limits(IoLimits),
    /// A beat was given; so many limits are in force.
    Beaten { held: usize },
    /// What came of an order about memory, and what the container's user had set where something of ours is.
    Memory(Done, UserLimits),
}

/// The thread, as the owner sees it. Nothing here waits but [`Limiter::stop`].
#[derive(Clone)]
pub(super) struct Limiter {
    jobs: mpsc::Sender<Job>,
}

impl Limiter {
    /// Takes the leases of `dir`, putting back what was left there, and starts the thread. A process before this one may still be in a
    /// write that the kernel holds up: then orders wait until it has ended.
    pub(super) fn start(
        dir: &Path,
        layout: Layout,
        actuator: Actuator,
        mailbox: Mailbox,
    ) -> Result<Self, LeaseError> {
        let opened = match Leases::open(dir) {
            Err(LeaseError::Held { pid, .. }) => {
                tracing::warn!(
                    pid,
                    because = "it is in the middle of a write",
                    "limits wait for a process to end"
                );
                None
            }
            opened => Some(opened?),
        };
        let dir = dir.to_owned();
        let (jobs, queue) = mpsc::channel();
        std::thread::Builder::new()
            .name("limiter".into())
            .spawn(move || {
                let leases = opened.unwrap_or_else(|| wait_for(&dir));
                let (set, protected) = (BTreeMap::new(), BTreeMap::new());
                // What the holder before left and could not be put back.
                let stuck = leases.held().map(|record| record.knob.clone()).collect();
                Holder { leases, layout, mailbox, set, actuator, protected, stuck }.run(&queue)
            })
            .expect("threads can be created at start");
        Ok(Self { jobs })
    }

    /// Puts a limit on; the answer is a [`Told::Limits`].
    pub(super) fn cap(&self, cap: Cap, path: String, weights: Option<Weights>) {
        let _ = self.jobs.send(Job::Cap { cap, path, weights });
    }

    /// Carries out an order about memory; the answer is a [`Told::Memory`].
    pub(super) fn memory(&self, order: memory::Order, path: String) {
        let _ = self.jobs.send(Job::Memory { order, path });
    }

    /// Forgets a container that is gone, or that is governed no more: its limits are taken off.
    pub(super) fn forget(&self, group: GroupId) {
        let _ = self.jobs.send(Job::Forget(group));
    }

    /// Says that the owner works; the answer is a [`Told::Beaten`].
    pub(super) fn beat(&self) {
        let _ = self.jobs.send(Job::Beat);
    }

    /// Takes every limit off.
    pub(super) fn stop(&self) {
        let (done, wait) = mpsc::sync_channel(1);
        let _ = self.jobs.send(Job::Stop(done));
        if wait.recv_timeout(STOP_WITHIN).is_err() {
            tracing::warn!(
                because = "the kernel holds up a write",
                "limits are taken off by the guard when this process ends"
            );
        }
    }
}

/// The leases of `dir`, once nobody else holds them.
fn wait_for(dir: &Path) -> Leases {
    loop {
        std::thread::sleep(Duration::from_micros(lease::BEAT.get()));
        match Leases::open(dir) {
            Ok(leases) => return leases,
            Err(LeaseError::Held { .. }) => {}
            Err(error) => tracing::error!(%error, "limits wait"),
        }
    }
}

/// The thread's own state.
struct Holder {
    leases: Leases,
    layout: Layout,
    mailbox: Mailbox,
    /// The limits that were asked for, and what came of it.
    set: BTreeMap<(GroupId, DeviceNumber), (String, IoLimits)>,
    actuator: Actuator,
    /// Containers whose memory is protected, and where they are.
    protected: BTreeMap<GroupId, String>,
    /// Where something of ours is that nobody wants and the kernel did not let us take off.
    stuck: BTreeSet<Knob>,
}

impl Holder {
    fn run(mut self, queue: &mpsc::Receiver<Job>) {
        let mut waiting = VecDeque::new();
        loop {
            match waiting.is_empty() {
                true => match queue.recv() {
                    Ok(job) => waiting.push_back(job),
                    Err(_) => return,
                },
                false => waiting.extend(queue.try_iter()),
            }
            // A reclaim takes up to half a second: a beat that waited for several would come too late for the guard.
            if let Some(beat) = waiting.iter().position(|job| matches!(job, Job::Beat)) {
                waiting.remove(beat);
                self.beat();
                continue;
            }
            let Some(job) = waiting.pop_front() else { continue };
            match job {
                Job::Memory { order, path } => self.memory(&order, path),
                Job::Cap { cap, path, weights } => self.cap(&cap, path, weights),
                Job::Forget(group) => self.forget(group),
                Job::Beat => self.beat(),
                Job::Stop(done) => {
                    let ended = self.leases.release_all();
                    let stuck = ended.iter().filter(|ended| matches!(ended.fate, Fate::Failed(_))).count();
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

    fn cap(&mut self, cap: &Cap, path: String, weights: Option<Weights>) {
        self.claim(&path);
        let place = Place { layout: &self.layout, group: cap.group, path: &path, disk: cap.disk };
        let limits = io::set_io_max(&mut self.leases, &place, cap.max, cap.weight, weights, &cap.because);
        self.set.insert((cap.group, cap.disk), (path, limits));
        self.mailbox.send(Message::Limiter(Told::Limits(limits)));
    }

    fn memory(&mut self, order: &memory::Order, path: String) {
        self.claim(&path);
        let done = match order {
            memory::Order::Protect(protect) => {
                let done = self.actuator.protect(&mut self.leases, protect, &path);
                // Also where only a part of it is in force.
                if done.outcome != Outcome::Gone {
                    self.protected.insert(protect.group, path.clone());
                }
                done
            }
            memory::Order::Reclaim(reclaim) if is_stale(reclaim.at) => {
                let (group, what, outcome) = (reclaim.group, Act::Reclaim, Outcome::Late);
                Done { now: timer::now(), group, what, outcome, reclaimed: Bytes::ZERO }
            }
            memory::Order::Reclaim(reclaim) => self.actuator.reclaim(&mut self.leases, reclaim, &path),
            memory::Order::Lease(lease) => self.actuator.lease(&mut self.leases, lease, &path),
            memory::Order::Release(group) => self.actuator.release(&mut self.leases, *group),
            memory::Order::Export(_) | memory::Order::Alert(_) => return,
        };
        let user = self.actuator.user_limits(&self.leases, &path);
        self.mailbox.send(Message::Limiter(Told::Memory(done, user)));
    }

    fn forget(&mut self, group: GroupId) {
        self.actuator.forget(&mut self.leases, group);
        let protected = self.protected.remove(&group);
        let capped = self.set.iter().find(|((of, _), _)| *of == group).map(|(_, (path, _))| path.clone());
        let Some(path) = capped.or(protected) else { return };
        self.set.retain(|(of, _), _| *of != group);
        let dirs = self.dirs(&path);
        let knobs = self.leases.held().map(|record| &record.knob);
        let knobs: Vec<_> = knobs.filter(|knob| dirs.contains(&knob.dir)).cloned().collect();
        for knob in knobs {
            // A knob is known by its cgroup's inode: of one that is gone the record goes, and another that has its path now
            // is not touched.
            if let lease::Outcome::Refused(why) = self.leases.release(&knob) {
                tracing::error!(%knob, because = %why, "a limit of ours cannot be taken off: it is tried with each beat");
                self.stuck.insert(knob);
            }
        }
    }

    /// Somebody is governed there: what is in his knobs is wanted.
    fn claim(&mut self, path: &str) {
        if !self.stuck.is_empty() {
            let dirs = self.dirs(path);
            self.stuck.retain(|knob| !dirs.contains(&knob.dir));
        }
    }

    /// Where a container's knobs are.
    fn dirs(&self, path: &str) -> Vec<PathBuf> {
        let below_root = Path::new(path.trim_start_matches('/'));
        let dir = |controller| self.layout.dir(controller, below_root).map(|(_, dir)| dir.path());
        [Controller::Io, Controller::Memory].into_iter().filter_map(dir).collect()
    }

    fn beat(&mut self) {
        self.actuator.expire(&mut self.leases, timer::now());
        if !self.leases.beat().is_empty() {
            self.actuator.clear();
            for (group, path) in std::mem::take(&mut self.protected) {
                let outcome = Outcome::Refused("this process did nothing for three beats".to_owned());
                let (now, what) = (timer::now(), Act::Protect);
                let done = Done { now, group, what, outcome, reclaimed: Bytes::ZERO };
                let user = self.actuator.user_limits(&self.leases, &path);
                self.mailbox.send(Message::Limiter(Told::Memory(done, user)));
            }
            // All are taken away at once, and the owner must know that nothing is in force.
            for (_, limits) in self.set.values_mut().filter(|(_, limits)| limits.ours != IoMax::MAX) {
                limits.ours = IoMax::MAX;
                self.mailbox.send(Message::Limiter(Told::Limits(*limits)));
            }
        }
        let leases = &mut self.leases;
        self.stuck.retain(|knob| matches!(leases.release(knob), lease::Outcome::Refused(_)));
        let held = self.leases.held().count();
        self.mailbox.send(Message::Limiter(Told::Beaten { held }));
    }
}
