//! Asking programs in containers for memory, by the file that they watch for that ([`elbowroom_linux::mount::PressureFifo`]).
//!
//! The files are opened, written and closed on a thread of their own, which a container that means harm can stop for good. That
//! costs [`JOB_TIMEOUT`]: the policy loop goes on with another thread, and asks that container no more. No other container sees anything of
//! it, for the thread that hangs keeps the files open that the next one opens too. So each container can hold up one thread, for as long as
//! it lives.

use elbowroom_linux::mount::{NamespaceRoot, PressureFifo};
use elbowroom_linux::process;
use elbowroom_types::id::CgroupId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long one file may take; mostly it is some ten microseconds.
const JOB_TIMEOUT: Duration = Duration::from_secs(2);

/// Where a container's file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PressureTarget {
    /// Path of its cgroup.
    pub(super) path: String,
    /// Its first process.
    pub(super) pid: u32,
}

/// What is done with a container's file.
enum PressureJob {
    Open(PressureTarget),
    Notify(PressureTarget),
    Close,
}

/// The files of all containers, as the policy loop sees them. Nothing here waits.
pub(super) struct PressureNotifier {
    /// Containers whose files are open, or about to be: those that were ever asked.
    targets: BTreeMap<CgroupId, PressureTarget>,
    /// Containers whose files stopped a thread.
    unresponsive: BTreeSet<CgroupId>,
    worker: Option<PressureThread>,
    run_job: PressureJobRunner,
    timeout: Duration,
}

/// The files that a thread has open.
type OpenPressureFiles = BTreeMap<CgroupId, PressureFifo>;
type PressureJobRunner = Arc<dyn Fn(&mut OpenPressureFiles, CgroupId, PressureJob) + Send + Sync>;

impl PressureNotifier {
    /// None yet.
    pub(super) fn new() -> Self {
        Self {
            targets: BTreeMap::new(),
            unresponsive: BTreeSet::new(),
            worker: None,
            run_job: Arc::new(run_job),
            timeout: JOB_TIMEOUT,
        }
    }

    /// Asks the programs that watch a container's file for memory.
    pub(super) fn notify(&mut self, id: CgroupId, target: PressureTarget) {
        self.send(id, PressureJob::Notify(target.clone()));
        // After that: a thread that starts opens what was known before.
        self.targets.insert(id, target);
    }

    /// The container is gone.
    pub(super) fn remove(&mut self, id: CgroupId) {
        if self.targets.remove(&id).is_some() {
            self.send(id, PressureJob::Close);
        }
        self.unresponsive.remove(&id);
    }

    fn send(&mut self, id: CgroupId, job: PressureJob) {
        if let Some(stuck) = self.worker.as_ref().and_then(|worker| worker.stuck_for(self.timeout)) {
            tracing::warn!(
                container = self.targets.get(&stuck).map(|target| &target.path),
                because = "a reader of the file holds up its writer",
                "its programs are not asked for memory any more"
            );
            self.unresponsive.insert(stuck);
            self.worker = None;
        }
        if self.unresponsive.contains(&id) {
            return;
        }
        if self.worker.is_none() {
            self.worker = self.start_worker();
        }
        if let Some(worker) = &self.worker {
            let _ = worker.jobs.send((id, job));
        }
    }

    /// Starts a thread that opens what the one before had open.
    fn start_worker(&self) -> Option<PressureThread> {
        let worker = match PressureThread::start(self.run_job.clone()) {
            Ok(worker) => worker,
            Err(error) => {
                tracing::warn!(%error, "no thread to ask programs for memory");
                return None;
            }
        };
        for (id, target) in self.targets.iter().filter(|(id, _)| !self.unresponsive.contains(id)) {
            let _ = worker.jobs.send((*id, PressureJob::Open(target.clone())));
        }
        Some(worker)
    }
}

/// The thread.
struct PressureThread {
    jobs: mpsc::Sender<(CgroupId, PressureJob)>,
    _thread: JoinHandle<()>,
    /// At whose file it is, and since when.
    current: Arc<Mutex<Option<(CgroupId, Instant)>>>,
}

impl PressureThread {
    /// It ends when the sender is dropped.
    fn start(carry_out: PressureJobRunner) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<(CgroupId, PressureJob)>();
        let current = Arc::default();
        let mark: Arc<Mutex<Option<(CgroupId, Instant)>>> = Arc::clone(&current);
        let run = move || {
            // SAFETY: the thread opens by path all that it uses, and logs nothing but by the standard descriptors.
            unsafe { process::unshare_open_files() };
            let mut files = OpenPressureFiles::new();
            let set = |value| *mark.lock().expect("no holder of this lock panics") = value;
            for (id, job) in queue {
                set(Some((id, Instant::now())));
                carry_out(&mut files, id, job);
                set(None);
            }
        };
        let thread = std::thread::Builder::new().name("pressure".into()).spawn(run)?;
        Ok(Self { jobs, _thread: thread, current })
    }

    /// The container at whose file it has been for too long.
    fn stuck_for(&self, patience: Duration) -> Option<CgroupId> {
        let current = self.current.lock().expect("no holder of this lock panics");
        current.filter(|(_, since)| since.elapsed() > patience).map(|(id, _)| id)
    }
}

fn run_job(files: &mut OpenPressureFiles, id: CgroupId, job: PressureJob) {
    match job {
        PressureJob::Open(target) => open(files, id, &target),
        PressureJob::Notify(target) => {
            open(files, id, &target);
            match files.get(&id).map(PressureFifo::notify) {
                Some(Ok(heard)) => tracing::debug!(container = target.path, heard, "asked for memory"),
                Some(Err(error)) => {
                    tracing::debug!(container = target.path, because = %error, "not asked for memory")
                }
                None => {}
            }
        }
        PressureJob::Close => drop(files.remove(&id)),
    }
}

/// Opens a container's file, where it is not open; one that has none may have one later.
fn open(files: &mut OpenPressureFiles, id: CgroupId, target: &PressureTarget) {
    if files.contains_key(&id) {
        return;
    }
    let place = NamespaceRoot::in_group(target.pid, &target.path);
    match place.and_then(|place| place.open_pressure_file()) {
        Ok(Some(file)) => drop(files.insert(id, file)),
        Ok(None) => {}
        Err(error) => tracing::debug!(container = target.path, because = %error, "not asked for memory"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A notifier whose thread tells what it does, and does not come back from where `hangs` says so.
    struct Rig {
        notifier: PressureNotifier,
        did: mpsc::Receiver<String>,
    }

    impl Rig {
        fn new(patience: Duration, hangs: fn(CgroupId, &PressureJob) -> bool) -> Self {
            let (tell, did) = mpsc::channel();
            let mut notifier = PressureNotifier::new();
            notifier.timeout = patience;
            notifier.run_job = Arc::new(move |_: &mut OpenPressureFiles, id, job| {
                let verb = match &job {
                    PressureJob::Open(_) => "open",
                    PressureJob::Notify(_) => "ask",
                    PressureJob::Close => "close",
                };
                tell.send(format!("{verb} {}", id.0)).unwrap();
                while hangs(id, &job) {
                    std::thread::park();
                }
            });
            Self { notifier, did }
        }

        fn notify(&mut self, id: u64) {
            self.notifier.notify(CgroupId(id), PressureTarget { path: format!("/{id}"), pid: 1 });
        }

        fn did(&self, most: usize) -> Vec<String> {
            (0..most)
                .map(|_| self.did.recv_timeout(Duration::from_secs(20)).expect("nothing was done"))
                .collect()
        }

        /// Waits until the thread counts as stuck.
        fn wait_stuck(&self) {
            let until = Instant::now() + Duration::from_secs(20);
            let worker = self.notifier.worker.as_ref().unwrap();
            while worker.stuck_for(self.notifier.timeout).is_none() {
                assert!(Instant::now() < until, "the thread is not stuck");
                std::thread::yield_now();
            }
        }
    }

    const BAD: u64 = 7;

    #[test]
    fn a_container_is_asked_while_it_is_there() {
        let mut rig = Rig::new(JOB_TIMEOUT, |_, _| false);
        rig.notifier.remove(CgroupId(1));
        rig.notify(1);
        rig.notify(1);
        rig.notifier.remove(CgroupId(1));
        rig.notify(2);
        assert_eq!(rig.did(4), ["ask 1", "ask 1", "close 1", "ask 2"]);
    }

    #[test]
    fn a_container_that_holds_the_thread_up_is_asked_no_more_and_the_others_are() {
        let mut rig = Rig::new(Duration::from_millis(50), |id, _| id.0 == BAD);
        rig.notify(1);
        rig.notify(BAD);
        assert_eq!(rig.did(2), ["ask 1", "ask 7"]);
        rig.wait_stuck();
        rig.notify(1);
        assert_eq!(rig.did(2), ["open 1", "ask 1"]);
        rig.notify(BAD);
        rig.notify(1);
        assert_eq!(rig.did(1), ["ask 1"]);
        // Its end is not waited for either.
        rig.notifier.remove(CgroupId(BAD));
        rig.notify(1);
        assert_eq!(rig.did(1), ["ask 1"]);
    }

    #[test]
    fn however_many_hold_threads_up_the_others_are_asked() {
        let mut rig = Rig::new(Duration::from_millis(5), |id, _| id.0 > 1);
        for bad in 2..40 {
            rig.notify(bad);
            while rig.did(1) != [format!("ask {bad}")] {}
            rig.wait_stuck();
        }
        rig.notify(1);
        assert_eq!(rig.did(1), ["ask 1"]);
    }
}
