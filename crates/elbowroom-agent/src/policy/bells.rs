//! Asking programs in containers for memory, by the file that they watch for that ([`elbowroom_linux::pressure`]).
//!
//! The files are opened, written and closed on a thread of their own, which a container that means harm can stop for good. That
//! costs [`PATIENCE`]: the owner goes on with another thread, and asks that container no more. Nobody else sees anything of it, for the
//! thread that hangs keeps the files open that the next one opens too.

use elbowroom_linux::pressure;
use elbowroom_linux::pressure::Bell;
use elbowroom_linux::process;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long one file may take; mostly it is a microsecond.
const PATIENCE: Duration = Duration::from_secs(2);
/// Threads that may hang at once; then nobody is asked.
const MOST_STUCK: usize = 16;

/// What is done with a view's file.
enum Job {
    Open(String),
    Ring(String),
    Close(String),
}

impl Job {
    fn view(&self) -> &str {
        match self {
            Self::Open(view) | Self::Ring(view) | Self::Close(view) => view,
        }
    }
}

/// The files of all views, as the owner sees them. Nothing here waits.
pub(super) struct Bells {
    dir: PathBuf,
    /// Views whose files are open, or about to be.
    views: BTreeSet<String>,
    /// Views whose files stopped a thread.
    deaf: BTreeSet<String>,
    /// Threads that were stopped.
    hung: Vec<JoinHandle<()>>,
    ringer: Option<Ringer>,
    carry_out: CarryOut,
    patience: Duration,
}

/// The files that a thread has open, by their views' names.
type Open = BTreeMap<String, Bell>;
type CarryOut = Arc<dyn Fn(&mut Open, Job) + Send + Sync>;

impl Bells {
    /// None yet, of files in `dir`.
    pub(super) fn new(dir: PathBuf) -> Self {
        let carry_out: CarryOut = {
            let dir = dir.clone();
            Arc::new(move |bells: &mut Open, job| carry_out(&dir, bells, job))
        };
        let (views, deaf) = (BTreeSet::new(), BTreeSet::new());
        Self { dir, views, deaf, hung: Vec::new(), ringer: None, carry_out, patience: PATIENCE }
    }

    /// Makes the file of a view that is new here, or takes that of the process before.
    pub(super) fn meet(&mut self, view: &str) {
        if let Err(error) = pressure::make(&self.dir, view) {
            return tracing::warn!(view, because = %error, "its programs cannot be asked for memory");
        }
        if self.views.insert(view.to_owned()) {
            self.send(Job::Open(view.to_owned()));
        }
    }

    /// Asks the programs that watch a view's file for memory.
    pub(super) fn ring(&mut self, view: &str) {
        if self.views.contains(view) {
            self.send(Job::Ring(view.to_owned()));
        }
    }

    /// Takes the file of a view away.
    pub(super) fn forget(&mut self, view: &str) {
        pressure::remove(&self.dir, view);
        self.deaf.remove(view);
        if self.views.remove(view) {
            self.send(Job::Close(view.to_owned()));
        }
    }

    fn send(&mut self, job: Job) {
        if let Some(view) = self.ringer.as_ref().and_then(|ringer| ringer.stuck_for(self.patience)) {
            tracing::warn!(
                view,
                because = "a reader of the file holds up who writes to it",
                "its programs are not asked for memory any more"
            );
            self.views.remove(&view);
            self.deaf.insert(view);
            self.hung.extend(self.ringer.take().map(|ringer| ringer.thread));
        }
        if self.deaf.contains(job.view()) {
            return;
        }
        if let Some(ringer) = &self.ringer {
            return drop(ringer.jobs.send(job));
        }
        self.hung.retain(|thread| !thread.is_finished());
        if self.hung.len() >= MOST_STUCK {
            return;
        }
        let ringer = match Ringer::start(self.carry_out.clone()) {
            Ok(ringer) => self.ringer.insert(ringer),
            Err(error) => return tracing::warn!(%error, "no thread to ask programs for memory"),
        };
        for view in &self.views {
            let _ = ringer.jobs.send(Job::Open(view.clone()));
        }
        // One that is to be opened is among them.
        if !matches!(job, Job::Open(_)) {
            let _ = ringer.jobs.send(job);
        }
    }
}

/// The thread.
struct Ringer {
    jobs: mpsc::Sender<Job>,
    thread: JoinHandle<()>,
    /// At whose file it is, and since when.
    at: Arc<Mutex<Option<(String, Instant)>>>,
}

impl Ringer {
    /// It ends when the sender is dropped.
    fn start(carry_out: CarryOut) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let at = Arc::default();
        let mark: Arc<Mutex<Option<(String, Instant)>>> = Arc::clone(&at);
        let run = move || {
            // SAFETY: the thread opens by path all that it uses, and logs nothing but by the standard descriptors.
            unsafe { process::leave_open_files() };
            let mut bells = Open::new();
            let set = |value| *mark.lock().expect("no holder of this lock panics") = value;
            for job in queue {
                set(Some((job.view().to_owned(), Instant::now())));
                carry_out(&mut bells, job);
                set(None);
            }
        };
        let thread = std::thread::Builder::new().name("bells".into()).spawn(run)?;
        Ok(Self { jobs, thread, at })
    }

    /// The view at whose file it has been for too long.
    fn stuck_for(&self, patience: Duration) -> Option<String> {
        let at = self.at.lock().expect("no holder of this lock panics");
        at.as_ref().filter(|(_, since)| since.elapsed() > patience).map(|(view, _)| view.clone())
    }
}

fn carry_out(dir: &Path, bells: &mut Open, job: Job) {
    match job {
        Job::Open(view) => match Bell::open(dir, &view) {
            Ok(bell) => drop(bells.insert(view, bell)),
            Err(error) => tracing::warn!(view, because = %error, "its programs cannot be asked for memory"),
        },
        Job::Ring(view) => match bells.get(&view).map(Bell::ring) {
            Some(Ok(heard)) => tracing::debug!(view, heard, "asked for memory"),
            Some(Err(error)) => tracing::debug!(view, because = %error, "not asked for memory"),
            None => {}
        },
        Job::Close(view) => drop(bells.remove(&view)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bells of files in a directory, whose thread tells what it does, and does not come back from where `hangs` says so.
    struct Rig {
        bells: Bells,
        did: mpsc::Receiver<String>,
        dir: tempfile::TempDir,
    }

    impl Rig {
        fn new(patience: Duration, hangs: fn(&Job) -> bool) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let (tell, did) = mpsc::channel();
            let mut bells = Bells::new(dir.path().to_owned());
            let real = bells.carry_out.clone();
            bells.patience = patience;
            bells.carry_out = Arc::new(move |open: &mut Open, job| {
                let name = match &job {
                    Job::Open(view) => format!("open {view}"),
                    Job::Ring(view) => format!("ring {view}"),
                    Job::Close(view) => format!("close {view}"),
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
        let mut rig = Rig::new(PATIENCE, |_| false);
        rig.bells.ring("a");
        rig.bells.meet("a");
        rig.bells.meet("a");
        assert!(rig.file("a").exists());
        rig.bells.ring("a");
        rig.bells.forget("a");
        rig.bells.ring("a");
        rig.bells.meet("b");
        assert_eq!(rig.did(4), ["open a", "ring a", "close a", "open b"]);
        assert!(!rig.file("a").exists());
    }

    #[test]
    fn a_container_that_holds_the_thread_up_is_asked_no_more_and_the_others_are() {
        let mut rig =
            Rig::new(Duration::from_millis(50), |job| matches!(job, Job::Ring(view) if view == "bad"));
        rig.bells.meet("bad");
        rig.bells.meet("good");
        rig.bells.ring("bad");
        assert_eq!(rig.did(3), ["open bad", "open good", "ring bad"]);
        std::thread::sleep(Duration::from_millis(60));
        rig.bells.ring("good");
        assert_eq!(rig.did(2), ["open good", "ring good"]);
        rig.bells.ring("bad");
        rig.bells.ring("good");
        assert_eq!(rig.did(1), ["ring good"]);
        // Its end is not waited for either, and the next of its name is another.
        rig.bells.forget("bad");
        assert!(!rig.file("bad").exists());
        rig.bells.meet("bad");
        assert_eq!(rig.did(1), ["open bad"]);
    }

    #[test]
    fn so_many_threads_hang_and_no_more() {
        let mut rig = Rig::new(Duration::from_millis(5), |job| matches!(job, Job::Ring(_)));
        for i in 0..MOST_STUCK {
            let view = i.to_string();
            rig.bells.meet(&view);
            rig.bells.ring(&view);
            while rig.did(1) != [format!("ring {view}")] {}
            std::thread::sleep(Duration::from_millis(10));
        }
        rig.bells.meet("one more");
        assert!(rig.did.recv_timeout(Duration::from_millis(200)).is_err());
    }
}
