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
static POLLERS: AtomicUsize = AtomicUsize::new(0);

/// One of [`MAX_POLLERS`].
struct PollerSlot;

impl PollerSlot {
    fn acquire() -> std::io::Result<Self> {
        if POLLERS.fetch_add(1, Ordering::Relaxed) >= MAX_POLLERS {
            POLLERS.fetch_sub(1, Ordering::Relaxed);
            return Err(std::io::Error::other(format!("{MAX_POLLERS} probes are asked already")));
        }
        Ok(Self)
    }
}

impl Drop for PollerSlot {
    fn drop(&mut self) {
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
    /// record and every reason for none, but not for "nothing new".
    pub fn start(
        probe: ProbeSettings,
        pid: u32,
        tell: impl Fn(Result<ProbeRecord, ProbeProblem>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let place = PollerSlot::acquire()?;
        let stop = Arc::new(StopFlag::new()?);
        let thread = std::thread::Builder::new().name("probe".into()).spawn({
            let stop = stop.clone();
            move || {
                let _place = place;
                if probe.scrape.is_some()
                    && pid > 0
                    && let Err(error) = network::enter(pid)
                {
                    return tell(Err(format!("its network cannot be entered: {error}")));
                }
                let every = Duration::from_micros(probe.every.get());
                let mut source = ProbeSource::new(probe, pid);
                loop {
                    let begin = Instant::now();
                    match source.poll(&stop) {
                        Ok(None) => {}
                        Ok(Some(record)) => tell(Ok(record)),
                        Err(problem) if !stop.is_set() => tell(Err(problem)),
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
