//! Mounts and unmounts views in containers, one after the other. A mount can wait for a container's file systems, and for ever where
//! their server does not answer. The policy loop never waits, and the other containers wait for [`JOB_TIMEOUT`] at most.

use super::{Mailbox, PolicyMessage};
use elbowroom_client::api::{ControlResponse, PreparedView};
use elbowroom_linux::mount::{AttachedView, MountError, MountSurface, NamespaceRoot};
use elbowroom_linux::{mount, process};
use elbowroom_types::id::CgroupId;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, SendError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long the others wait for a job; one takes milliseconds.
const JOB_TIMEOUT: Duration = Duration::from_secs(2);
/// Most hanging jobs that the dispatcher has gone on without; each holds threads.
const MAX_STUCK_JOBS: usize = 64;
/// Most of these of one tenant: a container, with those in it, or a user.
const MAX_STUCK_OF_TENANT: usize = 8;
/// Jobs of one tenant take at most `1 / TIME_SHARE` of the mounter's time,
const TIME_SHARE: u32 = 20;
/// and this much more in one go: a job that hangs is the tenant's last for a while.
const TIME_BURST: Duration = Duration::from_secs(1);
/// How long the others wait for a detach of a tenant that has used up its time.
const LATE_DETACH_TIMEOUT: Duration = Duration::from_millis(100);
/// Why nothing is mounted for such a tenant now.
pub(super) const SLOW: &str = "its file systems answer slowly: it is tried again later";

/// What the mounter is sent.
pub(super) enum MountJob {
    /// Something to mount or unmount.
    Run(MountTicket, MountTask),
    /// Answer when everything before this is done.
    Flush(mpsc::SyncSender<()>),
}

/// Whose a job is; it comes back with the outcome.
#[derive(Clone)]
pub(super) struct MountTicket {
    pub(super) group: CgroupId,
    /// The tenant that answers for it ([`elbowroom_linux::Sensor::tenant_of`]).
    pub(super) tenant: CgroupId,
    /// Path of its cgroup.
    pub(super) path: String,
    /// The caller that asked for the job and waits for its end, if any.
    pub(super) reply_to: Option<MountWaiter>,
}

/// A caller that waits for the end of a job.
#[derive(Clone)]
pub(super) struct MountWaiter {
    pub(super) answer: mpsc::SyncSender<ControlResponse>,
    /// Whether it is an operator, whose request overrides refusals; otherwise it is a runtime, and a container's start waits.
    pub(super) is_operator: bool,
}

impl MountTicket {
    fn is_operators(&self) -> bool {
        self.reply_to.as_ref().is_some_and(|waiter| waiter.is_operator)
    }
}

/// Something to mount or unmount.
pub(super) enum MountTask {
    /// Mount `view` into the container of process `pid`.
    Attach {
        pid: u32,
        view: PreparedView,
        /// Whether the container is known to live on the host's own root file system.
        on_host_root: bool,
        /// Why there is to be no view where the process is in the host's PID namespace.
        host_pid_refusal: Option<&'static str>,
    },
    /// Unmount the view of this name, or all views, where these processes are; the container's first process comes first.
    Detach { pids: Vec<u32>, view: Option<String> },
}

/// How a job ended, or that it has not.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MountOutcome {
    /// The view is mounted; these surfaces have no file to go over in this container. `anew`: some were not there before. `is_starting`:
    /// its runtime is not done with it.
    Attached { missing: Vec<String>, anew: bool, is_starting: bool },
    /// The container is still being made: try again soon.
    NotReady(&'static str),
    /// Nothing of ours is mounted any more.
    Detached,
    /// It is not to have a view unless an operator asks for it.
    Refused(&'static str),
    /// It could not be mounted, and nothing is half done.
    Failed(String),
    /// It could not be unmounted.
    DetachFailed(String),
    /// The container's file systems do not answer. How it ended is told when it has.
    Stuck,
    /// Its tenant's jobs took too much of the time of others: it was not begun.
    Slow,
}

impl MountOutcome {
    /// What is wrong, if anything is.
    pub(super) fn error(&self) -> Option<String> {
        match self {
            Self::Attached { .. } | Self::Detached => None,
            Self::NotReady(why) | Self::Refused(why) => Some(format!("not attached: {why}")),
            Self::Failed(why) => Some(format!("not attached: {why}")),
            Self::DetachFailed(why) => Some(format!("not detached: {why}")),
            Self::Slow => Some(format!("not attached: {SLOW}")),
            Self::Stuck => Some("its file systems do not answer; the mount is still waited for".into()),
        }
    }
}

/// Starts the thread; it ends when the sender is dropped.
pub(super) fn spawn(mailbox: Mailbox) -> mpsc::Sender<MountJob> {
    let (jobs, queue) = mpsc::channel::<MountJob>();
    let mut dispatcher = MountDispatcher {
        run_task: Arc::new(|path, task| with_unshared_files(|| task.run(path))),
        report: Arc::new(move |ticket, outcome| mailbox.send(PolicyMessage::MountDone(ticket, outcome))),
        timeout: JOB_TIMEOUT,
        stuck: Arc::default(),
        paid_at: HashMap::new(),
    };
    std::thread::Builder::new()
        .name("mounter".into())
        .spawn(move || dispatcher.run(queue))
        .expect("threads can be created at start");
    jobs
}

/// How many of these containers, by their tenants, are one tenant's.
fn count_of(stuck: &HashMap<CgroupId, CgroupId>, tenant: CgroupId) -> usize {
    stuck.values().filter(|of| **of == tenant).count()
}

/// Views whose files are to be looked up still; more are looked up when they are mounted.
const MAX_PREFETCH: usize = 64;

/// Starts a thread that looks up the files of views before they are mounted, most of all by a hook, for which a container's start
/// waits. It ends when the sender is dropped.
pub(super) fn spawn_prefetch() -> mpsc::SyncSender<(PathBuf, Vec<MountSurface>)> {
    let (views, queue) = mpsc::sync_channel::<(PathBuf, Vec<MountSurface>)>(MAX_PREFETCH);
    std::thread::Builder::new()
        .name("ahead".into())
        .spawn(move || queue.iter().for_each(|(view_dir, surfaces)| mount::prefetch(&view_dir, &surfaces)))
        .expect("threads can be created at start");
    views
}

/// Does a job on a thread that shares no open files with the others. A job that hangs keeps a killed process from ending. The process's
/// files are closed nevertheless, `/dev/fuse` too, and so the locks of its role and its leases are released.
fn with_unshared_files<T: Send>(job: impl FnOnce() -> T + Send) -> T {
    let alone = || {
        // SAFETY: a job opens by path all that it uses. The outcome needs descriptors of the process, and the thread that joins this
        // one reports it.
        unsafe { process::unshare_open_files() };
        job()
    };
    std::thread::scope(|scope| match scope.spawn(alone).join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

type MountTaskRunner = dyn Fn(&str, MountTask) -> MountOutcome + Send + Sync;
type OutcomeSink = dyn Fn(MountTicket, MountOutcome) + Send + Sync;

/// Has jobs done in their order, each on a thread of its own, and goes on without one that takes too long.
struct MountDispatcher {
    run_task: Arc<MountTaskRunner>,
    report: Arc<OutcomeSink>,
    /// How long the first that hangs is waited for; each further one less.
    timeout: Duration,
    /// Containers whose job was not waited for, with their tenants. A thread that looks here sends its report before it releases the lock:
    /// so reports about a container keep their order.
    stuck: Arc<Mutex<HashMap<CgroupId, CgroupId>>>,
    /// When what each tenant's jobs took of the others' time is paid, at [`TIME_SHARE`].
    paid_at: HashMap<CgroupId, Instant>,
}

impl MountDispatcher {
    fn run(&mut self, queue: mpsc::Receiver<MountJob>) {
        for job in queue {
            match job {
                MountJob::Run(ticket, task) => self.dispatch(ticket, task),
                MountJob::Flush(done) => {
                    let _ = done.send(());
                }
            }
        }
    }

    fn dispatch(&mut self, ticket: MountTicket, task: MountTask) {
        let failed = task.failure_outcome();
        let patience = {
            let stuck = self.stuck.lock().expect("no holder of this lock panics");
            if stuck.contains_key(&ticket.group) {
                return (self.report)(ticket, task.blocked_outcome());
            }
            if count_of(&stuck, ticket.tenant) >= MAX_STUCK_OF_TENANT {
                let why = format!(
                    "{MAX_STUCK_OF_TENANT} containers beside it have file systems that do not answer"
                );
                return (self.report)(ticket, failed(why));
            }
            if stuck.len() >= MAX_STUCK_JOBS {
                let why = format!("{MAX_STUCK_JOBS} containers have file systems that do not answer");
                return (self.report)(ticket, failed(why));
            }
            // So that a clean stop is in time with as many as there may be.
            self.timeout / (1 + stuck.len() as u32)
        };
        let begin = Instant::now();
        self.paid_at.retain(|_, at| *at > begin);
        let paid_at = self.paid_at.get(&ticket.tenant).copied().unwrap_or(begin);
        let patience = match (paid_at > begin + TIME_BURST * TIME_SHARE, &task) {
            (false, _) => patience,
            // A starved host is slow as well, so a command of its operator is not refused.
            (true, MountTask::Attach { .. }) if !ticket.is_operators() => {
                return (self.report)(ticket, MountOutcome::Slow);
            }
            (true, MountTask::Attach { .. }) => patience,
            // It is asked for once.
            (true, MountTask::Detach { .. }) => patience.min(LATE_DETACH_TIMEOUT),
        };
        let tenant = ticket.tenant;
        // Without room for an outcome: once the dispatcher has gone on, `send` fails, and the job's thread reports the outcome itself.
        let (ended, end) = mpsc::sync_channel(0);
        let (carry_out, tell, stuck) = (self.run_task.clone(), self.report.clone(), self.stuck.clone());
        let late = MountTicket { reply_to: None, ..ticket.clone() };
        let job = move || {
            let outcome = carry_out(&late.path, task);
            if let Err(SendError(outcome)) = ended.send(outcome) {
                let mut stuck = stuck.lock().expect("no holder of this lock panics");
                stuck.remove(&late.group);
                tell(late, outcome);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("mount".into()).spawn(job) {
            return (self.report)(ticket, failed(format!("no thread for it: {error}")));
        }
        let ended = end.recv_timeout(patience);
        self.paid_at.insert(tenant, paid_at + begin.elapsed() * TIME_SHARE);
        match ended {
            Ok(outcome) => (self.report)(ticket, outcome),
            Err(RecvTimeoutError::Timeout) => {
                // Not by the policy loop: at a clean stop it does not listen any more.
                tracing::warn!(container = ticket.path, because = MountOutcome::Stuck.error(), "mounting");
                let mut stuck = self.stuck.lock().expect("no holder of this lock panics");
                stuck.insert(ticket.group, ticket.tenant);
                (self.report)(ticket, MountOutcome::Stuck);
            }
            Err(RecvTimeoutError::Disconnected) => {
                (self.report)(ticket, failed("a defect: see the log".into()))
            }
        }
    }
}

impl MountTask {
    /// Does it in the container whose cgroup is `path`.
    fn run(self, path: &str) -> MountOutcome {
        match self {
            Self::Attach { pid, view, on_host_root, host_pid_refusal } => {
                attach(path, pid, &view, on_host_root, host_pid_refusal)
            }
            Self::Detach { pids, view } => detach(path, &pids, view.as_deref()),
        }
    }

    /// How it ends where it cannot be done.
    fn failure_outcome(&self) -> fn(String) -> MountOutcome {
        match self {
            Self::Attach { .. } => MountOutcome::Failed,
            Self::Detach { .. } => MountOutcome::DetachFailed,
        }
    }

    /// How it ends where one before it, of the same container, has not.
    fn blocked_outcome(&self) -> MountOutcome {
        let why = "its file systems do not answer; an earlier mount is still waited for";
        match self {
            Self::Attach { .. } => MountOutcome::NotReady(why),
            Self::Detach { .. } => MountOutcome::DetachFailed(why.to_owned()),
        }
    }
}

fn attach(
    path: &str,
    pid: u32,
    view: &PreparedView,
    on_host_root: bool,
    host_pid_refusal: Option<&'static str>,
) -> MountOutcome {
    // Once for all: between two looks the number can become that of a process of another container.
    let place = match NamespaceRoot::in_group(pid, path) {
        Ok(place) => place,
        Err(e) => return mount_failed(e),
    };
    match place.stage() {
        Ok(mount::EntryStage::HostNamespace) => {
            return MountOutcome::NotReady("it shares the host's mount namespace");
        }
        // A runtime enters the container's mount namespace before it changes the root: until then a mount would go over
        // the host's own tree.
        Ok(mount::EntryStage::HostRoot) if !on_host_root => {
            return MountOutcome::NotReady("its root file system is still the host's");
        }
        Ok(_) => {}
        Err(e) => return mount_failed(e),
    }
    // Not sooner: what a runtime starts with is in the host's namespaces.
    if let Some(why) = host_pid_refusal
        && process::is_in_own_pid_namespace(pid as i32)
    {
        return MountOutcome::Refused(why);
    }
    let AttachedView { files, page, pressure_file } = match place.attach_view(&view.parts()) {
        Ok(attached) => attached,
        Err(e) => return mount_failed(e),
    };
    let mut missing: Vec<String> = files.skipped.iter().map(ToString::to_string).collect();
    // The files are the view; a kernel that cannot mount the page (before Linux 5.12) still shows those.
    match page {
        Some(Ok(false)) => missing.push(format!("{}: there is no place for it", mount::PAGE_TARGET)),
        Some(Err(error)) => missing.push(error.to_string()),
        Some(Ok(true)) | None => {}
    }
    if let Err(error) = pressure_file {
        tracing::warn!(container = path, because = %error, "its programs cannot be asked for memory");
    }
    MountOutcome::Attached { missing, anew: files.mounted > 0, is_starting: files.is_starting }
}

fn detach(path: &str, pids: &[u32], view: Option<&str>) -> MountOutcome {
    match mount::detach_group(path, pids, view.map(OsStr::new)) {
        Ok(_) => MountOutcome::Detached,
        Err(e) => MountOutcome::DetachFailed(e.to_string()),
    }
}

fn mount_failed(error: MountError) -> MountOutcome {
    match error {
        MountError::Vanished { .. } => MountOutcome::NotReady("its process is gone"),
        MountError::HostNamespace { .. } => MountOutcome::NotReady("it shares the host's mount namespace"),
        error => MountOutcome::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view_server::roles::{AgentRole, RoleLock};
    use rustix::io::Errno;

    /// A dispatcher that does each container's job by what a test sends it, and what it tells.
    struct Rig {
        jobs: mpsc::Sender<MountJob>,
        told: mpsc::Receiver<(CgroupId, MountOutcome)>,
        ends: Vec<mpsc::Sender<MountOutcome>>,
    }

    impl Rig {
        fn new(containers: u64, patience: Duration) -> Self {
            let (jobs, queue) = mpsc::channel();
            let (tell, told) = mpsc::channel();
            let (ends, waits): (Vec<_>, Vec<_>) = (0..containers).map(|_| mpsc::channel()).unzip();
            let waits: Vec<Mutex<mpsc::Receiver<MountOutcome>>> = waits.into_iter().map(Mutex::new).collect();
            let mut dispatcher = MountDispatcher {
                run_task: Arc::new(move |path, _| {
                    let wait = waits[path.parse::<usize>().unwrap()].lock().unwrap();
                    wait.recv().unwrap_or(MountOutcome::Detached)
                }),
                report: Arc::new(move |ticket, outcome| drop(tell.send((ticket.group, outcome)))),
                timeout: patience,
                stuck: Arc::default(),
                paid_at: HashMap::new(),
            };
            std::thread::spawn(move || dispatcher.run(queue));
            Self { jobs, told, ends }
        }

        fn order(&self, container: u64, task: MountTask) {
            self.order_of(container, container, task);
        }

        fn order_of(&self, tenant: u64, container: u64, task: MountTask) {
            let (group, tenant) = (CgroupId(container), CgroupId(tenant));
            let ticket = MountTicket { group, tenant, path: container.to_string(), reply_to: None };
            self.jobs.send(MountJob::Run(ticket, task)).unwrap();
        }

        fn end(&self, container: u64, outcome: MountOutcome) {
            self.ends[container as usize].send(outcome).unwrap();
        }

        fn told(&self) -> (u64, MountOutcome) {
            let (group, outcome) = self.told.recv_timeout(Duration::from_secs(20)).expect("nothing was told");
            (group.0, outcome)
        }
    }

    fn no_view() -> PreparedView {
        PreparedView { view_dir: PathBuf::new(), surfaces: Vec::new(), page: None, pressure_dir: None }
    }

    fn attach_task() -> MountTask {
        MountTask::Attach { pid: 0, view: no_view(), on_host_root: false, host_pid_refusal: None }
    }

    fn detach_task() -> MountTask {
        MountTask::Detach { pids: Vec::new(), view: None }
    }

    fn attached() -> MountOutcome {
        MountOutcome::Attached { missing: Vec::new(), anew: true, is_starting: false }
    }

    #[test]
    fn a_container_that_hangs_keeps_no_other_waiting() {
        let rig = Rig::new(2, Duration::from_secs(1));
        rig.order(0, attach_task());
        rig.order(1, attach_task());
        rig.end(1, attached());
        assert_eq!(rig.told(), (0, MountOutcome::Stuck));
        assert_eq!(rig.told(), (1, attached()));

        // Its own jobs do not overtake it.
        rig.order(0, attach_task());
        assert!(matches!(rig.told(), (0, MountOutcome::NotReady(_))));
        rig.order(0, detach_task());
        assert!(matches!(rig.told(), (0, MountOutcome::DetachFailed(_))));

        rig.end(0, attached());
        assert_eq!(rig.told(), (0, attached()));
        rig.end(0, MountOutcome::Detached);
        rig.order(0, detach_task());
        assert_eq!(rig.told(), (0, MountOutcome::Detached));
    }

    #[test]
    fn a_tenant_that_is_slow_again_and_again_keeps_no_other_waiting_again() {
        let rig = Rig::new(2, Duration::from_millis(1_500));
        rig.order(0, attach_task());
        assert_eq!(rig.told(), (0, MountOutcome::Stuck));
        rig.end(0, attached());
        assert_eq!(rig.told(), (0, attached()));
        let begin = Instant::now();
        for _ in 0..100 {
            rig.order(0, attach_task());
            assert_eq!(rig.told(), (0, MountOutcome::Slow));
        }
        rig.order(1, attach_task());
        rig.end(1, attached());
        assert_eq!(rig.told(), (1, attached()));
        // Had each been waited for, two and a half minutes.
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
        // A detach is carried out all the same.
        rig.end(0, MountOutcome::Detached);
        rig.order(0, detach_task());
        assert_eq!(rig.told(), (0, MountOutcome::Detached));
        // The host's own command is carried out.
        let (answer, _response) = mpsc::sync_channel(1);
        let ticket = MountTicket {
            group: CgroupId(0),
            tenant: CgroupId(0),
            path: "0".into(),
            reply_to: Some(MountWaiter { answer, is_operator: true }),
        };
        rig.end(0, attached());
        rig.jobs.send(MountJob::Run(ticket, attach_task())).unwrap();
        assert_eq!(rig.told(), (0, attached()));
    }

    #[test]
    fn one_tenant_does_not_use_up_what_may_hang() {
        let most = MAX_STUCK_OF_TENANT as u64;
        let rig = Rig::new(most + 2, Duration::from_millis(50));
        for container in 0..most {
            rig.order_of(77, container, attach_task());
            assert_eq!(rig.told(), (container, MountOutcome::Stuck));
        }
        rig.order_of(77, most, attach_task());
        assert!(matches!(rig.told(), (_, MountOutcome::Failed(why)) if why.contains("beside it")));
        rig.order(most + 1, attach_task());
        assert_eq!(rig.told(), (most + 1, MountOutcome::Stuck));
    }

    #[test]
    fn a_clean_stop_waits_for_no_container_that_hangs() {
        let rig = Rig::new(2, Duration::from_secs(1));
        rig.order(0, detach_task());
        rig.order(1, detach_task());
        rig.end(1, MountOutcome::Detached);
        let (done, wait) = mpsc::sync_channel(1);
        rig.jobs.send(MountJob::Flush(done)).unwrap();
        wait.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!([rig.told(), rig.told()], [(0, MountOutcome::Stuck), (1, MountOutcome::Detached)]);
    }

    #[test]
    fn so_many_containers_hang_and_no_more() {
        let most = MAX_STUCK_JOBS as u64;
        let rig = Rig::new(most + 1, Duration::from_millis(200));
        let begin = Instant::now();
        for container in 0..most {
            rig.order(container, attach_task());
            assert_eq!(rig.told(), (container, MountOutcome::Stuck));
        }
        assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
        rig.order(most, attach_task());
        assert!(matches!(rig.told(), (_, MountOutcome::Failed(_))));
        rig.order(most, detach_task());
        assert!(matches!(rig.told(), (_, MountOutcome::DetachFailed(_))));
        rig.end(0, attached());
        assert_eq!(rig.told(), (0, attached()));
        rig.order(most, attach_task());
        assert_eq!(rig.told(), (most, MountOutcome::Stuck));
    }

    #[test]
    fn a_job_has_none_of_the_files_that_are_open_and_loosens_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let roles = RoleLock::open(dir.path()).unwrap();
        assert!(roles.acquire(AgentRole::Policy));
        let file = tempfile::tempfile().unwrap();
        assert_eq!(with_unshared_files(|| rustix::io::fcntl_getfd(&file).err()), Some(Errno::BADF));
        assert!(rustix::io::fcntl_getfd(&file).is_ok());
        // A thread with a file table of its own sees our lock as another process's. In this thread, opening and closing the lock's file
        // once more would release the lock.
        let holder = || with_unshared_files(|| RoleLock::open(dir.path()).unwrap().holder(AgentRole::Policy));
        assert_eq!([holder(), holder()], [Some(rustix::process::getpid()); 2]);
    }

    #[test]
    fn nothing_is_mounted_for_a_process_of_another_group() {
        let outcome = attach("/docker/4f5e", std::process::id(), &no_view(), true, None);
        assert_eq!(outcome, MountOutcome::NotReady("its process is gone"));
    }
}
