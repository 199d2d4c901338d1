//! A thread that asks one source again and again.

use super::settings::Probe;
use super::source::{Problem, Source};
use crate::alerts::Stop;
use elbowroom_linux::probe::network;
use elbowroom_types::probe::Record;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most threads that ask, those of containers that are gone included: what is left of the unit's `TasksMax` is the agent's.
const MOST: usize = 512;

/// How many there are.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// One of [`MOST`].
struct Place;

impl Place {
    fn take() -> std::io::Result<Self> {
        if THREADS.fetch_add(1, Ordering::Relaxed) >= MOST {
            THREADS.fetch_sub(1, Ordering::Relaxed);
            return Err(std::io::Error::other(format!("{MOST} probes are asked already")));
        }
        Ok(Self)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The thread; it ends when this is dropped, at the latest after the answer it waits for.
pub struct Poller {
    stop: Arc<Stop>,
    thread: JoinHandle<()>,
}

impl Poller {
    /// Starts asking, in the network of the container whose first process is `pid` (0: here). `tell` is called with every
    /// record and every reason for none, but not for "nothing new".
    pub fn start(
        probe: Probe,
        pid: u32,
        tell: impl Fn(Result<Record, Problem>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let place = Place::take()?;
        let stop = Arc::new(Stop::new()?);
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
                let mut source = Source::new(probe, pid);
                loop {
                    let begin = Instant::now();
                    match source.ask(&stop) {
                        Ok(None) => {}
                        Ok(Some(record)) => tell(Ok(record)),
                        Err(problem) if !stop.is_told() => tell(Err(problem)),
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
    pub fn end(pollers: Vec<Self>, within: Duration) {
        pollers.iter().for_each(|poller| poller.stop.tell());
        let deadline = Instant::now() + within;
        while pollers.iter().any(|poller| !poller.thread.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.stop.tell();
    }
}
