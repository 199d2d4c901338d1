//! A thread that asks one source again and again.

use super::settings::ProbeSettings;
use super::source::{ProbeProblem, ProbeSource};
use crate::alerts::StopFlag;
use elbowroom_linux::probe::network;
use elbowroom_types::probe::ProbeRecord;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most threads that ask, those of containers that are gone included: what is left of the unit's `TasksMax` is the agent's.
const MAX_POLLERS: usize = 512;

/// How many there are.
/// Threads of one container: one that hangs, in a file system that does not answer, is there until that answers.
const MAX_OF_CONTAINER: usize = 4;

static POLLERS: AtomicUsize = AtomicUsize::new(0);

/// One of [`MAX_POLLERS`].
struct PollerSlot(PollerCount);

/// How many threads ask for one container; those that hang included.
#[derive(Clone, Debug, Default)]
pub struct PollerCount(Arc<AtomicUsize>);

impl PollerCount {
    /// Whether no further one may be started.
    pub(super) fn is_full(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= MAX_OF_CONTAINER
    }
}

impl PollerSlot {
    fn acquire(of_container: &PollerCount) -> std::io::Result<Self> {
        if of_container.is_full() {
            return Err(std::io::Error::other(format!("{MAX_OF_CONTAINER} questions of it hang already")));
        }
        if POLLERS.fetch_add(1, Ordering::Relaxed) >= MAX_POLLERS {
            POLLERS.fetch_sub(1, Ordering::Relaxed);
            return Err(std::io::Error::other(format!("{MAX_POLLERS} probes are asked already")));
        }
        of_container.0.fetch_add(1, Ordering::Relaxed);
        Ok(Self(of_container.clone()))
    }
}

impl Drop for PollerSlot {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
        POLLERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The thread; it ends when this is dropped, at the latest after the answer it waits for.
pub struct ProbePoller {
    stop: Arc<StopFlag>,
    thread: JoinHandle<()>,
}

impl ProbePoller {
    /// Starts asking, in the network of the container whose first process is `pid` (0: here). `tell` is called with every
    /// record and every reason for none, but not for "nothing new". It says whether it was heard: a record that was not is told again
    /// while there is no newer one.
    pub fn start(
        probe: ProbeSettings,
        pid: u32,
        of_container: &PollerCount,
        tell: impl Fn(Result<ProbeRecord, ProbeProblem>) -> bool + Send + 'static,
    ) -> std::io::Result<Self> {
        let place = PollerSlot::acquire(of_container)?;
        let stop = Arc::new(StopFlag::new()?);
        let thread = std::thread::Builder::new().name("probe".into()).spawn({
            let stop = stop.clone();
            move || {
                let _place = place;
                if probe.scrape.is_some()
                    && pid > 0
                    && let Err(error) = network::enter(pid)
                {
                    tell(Err(format!("its network cannot be entered: {error}")));
                    return;
                }
                let every = Duration::from_micros(probe.every.get());
                let mut source = ProbeSource::new(probe, pid);
                let mut unheard = None;
                loop {
                    let begin = Instant::now();
                    match source.poll(&stop) {
                        Ok(record) => {
                            if let Some(record) = record.or(unheard.take()) {
                                unheard = (!tell(Ok(record))).then_some(record);
                            }
                        }
                        Err(problem) if !stop.is_set() => drop(tell(Err(problem))),
                        Err(_) => {}
                    }
                    if stop.wait(every.saturating_sub(begin.elapsed())) {
                        return;
                    }
                }
            }
        })?;
        Ok(Self { stop, thread })
    }

    /// Ends the threads, and waits for it until `within` is over: what they have started is ended too then.
    pub fn stop_all(pollers: Vec<Self>, within: Duration) {
        pollers.iter().for_each(|poller| poller.stop.set());
        let deadline = Instant::now() + within;
        while pollers.iter().any(|poller| !poller.thread.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for ProbePoller {
    fn drop(&mut self) {
        self.stop.set();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_of_one_container_that_hang_use_up_its_own_threads() {
        let (hanging, other) = (PollerCount::default(), PollerCount::default());
        let mut held: Vec<PollerSlot> =
            (0..MAX_OF_CONTAINER).map(|_| PollerSlot::acquire(&hanging).unwrap()).collect();
        assert!(hanging.is_full());
        let why = PollerSlot::acquire(&hanging).err().unwrap().to_string();
        assert_eq!(why, "4 questions of it hang already");
        assert!(PollerSlot::acquire(&other).is_ok());
        held.pop();
        assert!(PollerSlot::acquire(&hanging).is_ok());
    }
}
