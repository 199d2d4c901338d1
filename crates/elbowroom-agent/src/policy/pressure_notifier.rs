//! Asking programs in containers for memory, by the file that they watch for that ([`elbowroom_linux::pressure`]).
//!
//! The files are opened, written and closed on a thread of their own, which a container that means harm can stop for good. That
//! costs [`JOB_TIMEOUT`]: the owner goes on with another thread, and asks that container no more. Nobody else sees anything of it, for the
//! thread that hangs keeps the files open that the next one opens too.

use elbowroom_linux::pressure::PressureFifo;
use elbowroom_linux::{pressure, process};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long one file may take; mostly it is a microsecond.
const JOB_TIMEOUT: Duration = Duration::from_secs(2);
/// Threads that may hang at once; then nobody is asked.
const MAX_STUCK_THREADS: usize = 16;

/// What is done with a view's file.
enum PressureJob {
    Open(String),
    Notify(String),
    Close(String),
}

impl PressureJob {
    fn view(&self) -> &str {
        match self {
            Self::Open(view) | Self::Notify(view) | Self::Close(view) => view,
        }
    }
}

/// The files of all views, as the owner sees them. Nothing here waits.
pub(super) struct PressureNotifier {
    dir: PathBuf,
    /// Views whose files are open, or about to be.
    views: BTreeSet<String>,
    /// Views whose files stopped a thread.
    unresponsive: BTreeSet<String>,
    /// Threads that were stopped.
    stuck_threads: Vec<JoinHandle<()>>,
    worker: Option<PressureThread>,
    run_job: PressureJobRunner,
    timeout: Duration,
}

/// The files that a thread has open, by their views' names.
type OpenPressureFiles = BTreeMap<String, PressureFifo>;
type PressureJobRunner = Arc<dyn Fn(&mut OpenPressureFiles, PressureJob) + Send + Sync>;

impl PressureNotifier {
    /// None yet, of files in `dir`.
    pub(super) fn new(dir: PathBuf) -> Self {
        let carry_out: PressureJobRunner = {
            let dir = dir.clone();
            Arc::new(move |bells: &mut OpenPressureFiles, job| run_job(&dir, bells, job))
        };
        let (views, deaf) = (BTreeSet::new(), BTreeSet::new());
        Self {
            dir,
            views,
            unresponsive: deaf,
            stuck_threads: Vec::new(),
            worker: None,
            run_job: carry_out,
            timeout: JOB_TIMEOUT,
        }
    }

    /// Makes the file of a view that is new here, or takes that of the process before.
    pub(super) fn add_view(&mut self, view: &str) {
        if let Err(error) = pressure::make(&self.dir, view) {
            return tracing::warn!(view, because = %error, "its programs cannot be asked for memory");
        }
        if self.views.insert(view.to_owned()) {
            self.send(PressureJob::Open(view.to_owned()));
        }
    }

    /// Asks the programs that watch a view's file for memory.
    pub(super) fn notify(&mut self, view: &str) {
        if self.views.contains(view) {
            self.send(PressureJob::Notify(view.to_owned()));
        }
    }

    /// Takes the file of a view away.
    pub(super) fn remove_view(&mut self, view: &str) {
        pressure::remove(&self.dir, view);
        self.unresponsive.remove(view);
        if self.views.remove(view) {
            self.send(PressureJob::Close(view.to_owned()));
        }
    }

    fn send(&mut self, job: PressureJob) {
        if let Some(view) = self.worker.as_ref().and_then(|ringer| ringer.stuck_for(self.timeout)) {
            tracing::warn!(
                view,
                because = "a reader of the file holds up who writes to it",
                "its programs are not asked for memory any more"
            );
            self.views.remove(&view);
            self.unresponsive.insert(view);
            self.stuck_threads.extend(self.worker.take().map(|ringer| ringer.thread));
        }
        if self.unresponsive.contains(job.view()) {
            return;
        }
        if let Some(ringer) = &self.worker {
            return drop(ringer.jobs.send(job));
        }
        self.stuck_threads.retain(|thread| !thread.is_finished());
        if self.stuck_threads.len() >= MAX_STUCK_THREADS {
            return;
        }
        let ringer = match PressureThread::start(self.run_job.clone()) {
            Ok(ringer) => self.worker.insert(ringer),
            Err(error) => return tracing::warn!(%error, "no thread to ask programs for memory"),
        };
        for view in &self.views {
            let _ = ringer.jobs.send(PressureJob::Open(view.clone()));
        }
        // One that is to be opened is among them.
        if !matches!(job, PressureJob::Open(_)) {
            let _ = ringer.jobs.send(job);
        }
    }
}

/// The thread.
struct PressureThread {
    jobs: mpsc::Sender<PressureJob>,
    thread: JoinHandle<()>,
    /// At whose file it is, and since when.
    current: Arc<Mutex<Option<(String, Instant)>>>,
}

impl PressureThread {
    /// It ends when the sender is dropped.
    fn start(carry_out: PressureJobRunner) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<PressureJob>();
        let at = Arc::default();
        let mark: Arc<Mutex<Option<(String, Instant)>>> = Arc::clone(&at);
        let run = move || {
            // SAFETY: the thread opens by path all that it uses, and logs nothing but by the standard descriptors.
            unsafe { process::unshare_open_files() };
            let mut bells = OpenPressureFiles::new();
            let set = |value| *mark.lock().expect("no holder of this lock panics") = value;
            for job in queue {
                set(Some((job.view().to_owned(), Instant::now())));
                carry_out(&mut bells, job);
                set(None);
            }
        };
        let thread = std::thread::Builder::new().name("bells".into()).spawn(run)?;
        Ok(Self { jobs, thread, current: at })
    }

    /// The view at whose file it has been for too long.
    fn stuck_for(&self, patience: Duration) -> Option<String> {
        let at = self.current.lock().expect("no holder of this lock panics");
        at.as_ref().filter(|(_, since)| since.elapsed() > patience).map(|(view, _)| view.clone())
    }
}

fn run_job(dir: &Path, bells: &mut OpenPressureFiles, job: PressureJob) {
    match job {
        PressureJob::Open(view) => match PressureFifo::open(dir, &view) {
            Ok(bell) => drop(bells.insert(view, bell)),
            Err(error) => tracing::warn!(view, because = %error, "its programs cannot be asked for memory"),
        },
        PressureJob::Notify(view) => match bells.get(&view).map(PressureFifo::notify) {
            Some(Ok(heard)) => tracing::debug!(view, heard, "asked for memory"),
            Some(Err(error)) => tracing::debug!(view, because = %error, "not asked for memory"),
            None => {}
        },
        PressureJob::Close(view) => drop(bells.remove(&view)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bells of files in a directory, whose thread tells what it does, and does not come back from where `hangs` says so.
    struct Rig {
        bells: PressureNotifier,
        did: mpsc::Receiver<String>,
        dir: tempfile::TempDir,
    }

    impl Rig {
        fn new(patience: Duration, hangs: fn(&PressureJob) -> bool) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let (tell, did) = mpsc::channel();
            let mut bells = PressureNotifier::new(dir.path().to_owned());
            let real = bells.run_job.clone();
            bells.timeout = patience;
            bells.run_job = Arc::new(move |open: &mut OpenPressureFiles, job| {
                let name = match &job {
                    PressureJob::Open(view) => format!("open {view}"),
                    PressureJob::Notify(view) => format!("ring {view}"),
                    PressureJob::Close(view) => format!("close {view}"),
                };
                let hangs = hangs(&job);
                tell.send(name).unwrap();
                if hangs {
                    loop {
                        std::thread::park();
                    }
                }
                real(open, job);
            });
            Self { bells, did, dir }
        }

        fn did(&self, most: usize) -> Vec<String> {
            (0..most)
                .map(|_| self.did.recv_timeout(Duration::from_secs(20)).expect("nothing was done"))
                .collect()
        }

        fn file(&self, view: &str) -> PathBuf {
            self.dir.path().join(pressure::file_name(view.as_ref()))
        }
    }

    #[test]
    fn a_view_is_rung_for_while_it_is_there() {
        let mut rig = Rig::new(JOB_TIMEOUT, |_| false);
        rig.bells.notify("a");
        rig.bells.add_view("a");
        rig.bells.add_view("a");
        assert!(rig.file("a").exists());
        rig.bells.notify("a");
        rig.bells.remove_view("a");
        rig.bells.notify("a");
        rig.bells.add_view("b");
        assert_eq!(rig.did(4), ["open a", "ring a", "close a", "open b"]);
        assert!(!rig.file("a").exists());
    }

    #[test]
    fn a_container_that_holds_the_thread_up_is_asked_no_more_and_the_others_are() {
        let mut rig = Rig::new(
            Duration::from_millis(50),
            |job| matches!(job, PressureJob::Notify(view) if view == "bad"),
        );
        rig.bells.add_view("bad");
        rig.bells.add_view("good");
        rig.bells.notify("bad");
        assert_eq!(rig.did(3), ["open bad", "open good", "ring bad"]);
        std::thread::sleep(Duration::from_millis(60));
        rig.bells.notify("good");
        assert_eq!(rig.did(2), ["open good", "ring good"]);
        rig.bells.notify("bad");
        rig.bells.notify("good");
        assert_eq!(rig.did(1), ["ring good"]);
        // Its end is not waited for either, and the next of its name is another.
        rig.bells.remove_view("bad");
        assert!(!rig.file("bad").exists());
        rig.bells.add_view("bad");
        assert_eq!(rig.did(1), ["open bad"]);
    }

    #[test]
    fn so_many_threads_hang_and_no_more() {
        let mut rig = Rig::new(Duration::from_millis(5), |job| matches!(job, PressureJob::Notify(_)));
        for i in 0..MAX_STUCK_THREADS {
            let view = i.to_string();
            rig.bells.add_view(&view);
            rig.bells.notify(&view);
            while rig.did(1) != [format!("ring {view}")] {}
            std::thread::sleep(Duration::from_millis(10));
        }
        rig.bells.add_view("one more");
        assert!(rig.did.recv_timeout(Duration::from_millis(200)).is_err());
    }
}
