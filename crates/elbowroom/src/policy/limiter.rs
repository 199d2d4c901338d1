//! Puts limits on containers, on a thread of its own: the kernel may let a write wait until a slow disk has emptied its queue
//! (`blk_mq_freeze_queue`), and a record of a limit is durable before the limit is set. The owner does neither.
//!
//! The thread holds the leases, and says that it works only when the owner says so too: when either hangs, the guard takes the
//! limits off.

use super::{Mailbox, Message};
use elbowroom_core::govern::disk::Cap;
use elbowroom_core::sample::{DeviceNumber, GroupId, IoLimits, IoMax, Weights};
use elbowroom_host::cgroup::Layout;
use elbowroom_host::lease::io::{self, Place};
use elbowroom_host::lease::{LeaseError, Leases};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// How long a stop waits for limits to be taken off; what is left then is the guard's.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Something to do.
enum Job {
    /// Put a limit on.
    Cap { cap: Cap, path: String, weights: Option<Weights> },
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
}

/// The thread, as the owner sees it. Nothing here waits but [`Limiter::stop`].
pub(super) struct Limiter {
    jobs: mpsc::Sender<Job>,
}

impl Limiter {
    /// Takes the leases of `dir`, putting back what was left there, and starts the thread.
    pub(super) fn start(dir: &Path, layout: Layout, mailbox: Mailbox) -> Result<Self, LeaseError> {
        let leases = Leases::open(dir)?;
        let (jobs, queue) = mpsc::channel();
        std::thread::Builder::new()
            .name("limiter".into())
            .spawn(move || Holder { leases, layout, mailbox, set: BTreeMap::new() }.run(&queue))
            .expect("threads can be created at start");
        Ok(Self { jobs })
    }

    /// Puts a limit on; the answer is a [`Told::Limits`].
    pub(super) fn cap(&self, cap: Cap, path: String, weights: Option<Weights>) {
        let _ = self.jobs.send(Job::Cap { cap, path, weights });
    }

    /// Forgets the limits of a container that is gone.
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

/// The thread's own state.
struct Holder {
    leases: Leases,
    layout: Layout,
    mailbox: Mailbox,
    /// The limits that were asked for, and what came of it.
    set: BTreeMap<(GroupId, DeviceNumber), (String, IoLimits)>,
}

impl Holder {
    fn run(mut self, queue: &mpsc::Receiver<Job>) {
        for job in queue {
            match job {
                Job::Cap { cap, path, weights } => self.cap(&cap, path, weights),
                Job::Forget(group) => self.forget(group),
                Job::Beat => self.beat(),
                Job::Stop(done) => {
                    let ended = self.leases.release_all();
                    tracing::info!(limits = ended.len(), "limits taken off");
                    let _ = done.send(());
                    return;
                }
            }
        }
    }

    fn cap(&mut self, cap: &Cap, path: String, weights: Option<Weights>) {
        let place = Place { layout: &self.layout, group: cap.group, path: &path, disk: cap.disk };
        let limits = io::set_io_max(&mut self.leases, &place, cap.max, cap.weight, weights, &cap.because);
        self.set.insert((cap.group, cap.disk), (path, limits));
        self.mailbox.send(Message::Limiter(Told::Limits(limits)));
    }

    fn forget(&mut self, group: GroupId) {
        let Some(path) = self.set.iter().find(|((of, _), _)| *of == group).map(|(_, (path, _))| path.clone())
        else {
            return;
        };
        self.set.retain(|(of, _), _| *of != group);
        let below_root = Path::new(path.trim_start_matches('/'));
        let knobs = self.leases.held().map(|record| &record.knob);
        let knobs: Vec<_> = knobs.filter(|knob| knob.dir.ends_with(below_root)).cloned().collect();
        for knob in knobs {
            // A knob is known by its cgroup's inode: of one that is gone the record goes, and another that has its path now
            // is not touched.
            self.leases.release(&knob);
        }
    }

    fn beat(&mut self) {
        if !self.leases.beat().is_empty() {
            // All are taken away at once, and the owner must know that nothing is in force.
            for (_, limits) in self.set.values_mut().filter(|(_, limits)| limits.ours != IoMax::MAX) {
                limits.ours = IoMax::MAX;
                self.mailbox.send(Message::Limiter(Told::Limits(*limits)));
            }
        }
        let held = self.leases.held().count();
        self.mailbox.send(Message::Limiter(Told::Beaten { held }));
    }
}
