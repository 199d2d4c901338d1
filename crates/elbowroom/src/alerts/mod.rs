//! Tells people of alerts: starts programs and posts to addresses, on threads of their own.
//!
//! One thread per hook, one delivery at a time, in the order of the alerts: nobody hears of an end before the beginning. The
//! queue before it is short, and what does not fit is dropped and counted: a hook that hangs costs its own alerts and nothing
//! else. How often a condition is told at all is decided before ([`elbowroom_core::govern::alert::Board`]).

mod exec;
pub(crate) mod settings;
mod webhook;

use crate::api::{AlertView, HookStatus};
use elbowroom_core::unit::Micros;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Access, access};
use serde::Serialize;
use settings::Hook;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Alerts that may wait for one hook.
const QUEUE: usize = 64;
/// How long a stop waits for deliveries that are under way, before programs are killed and posts are left.
const STOP_WITHIN: Duration = Duration::from_secs(2);

/// What a hook is told: the alert, and what it takes to understand it elsewhere.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Notice {
    /// `began` or `ended`.
    pub(crate) state: &'static str,
    /// This machine.
    pub(crate) host: String,
    /// When the notice was given, in milliseconds since 1970.
    pub(crate) time_unix_ms: u64,
    #[serde(flatten)]
    pub(crate) alert: AlertView,
}

/// Why a hook was not told.
#[derive(Debug, thiserror::Error)]
enum HookError {
    #[error("cannot be started: {0}")]
    Start(std::io::Error),
    #[error("ended with {0}")]
    Status(std::process::ExitStatus),
    #[error("was killed after {0}: make it quicker, or raise its timeout")]
    TooLong(Micros),
    #[error("{0}")]
    Post(#[from] ureq::Error),
    #[error("the agent is stopping")]
    Stopping,
}

/// The hooks at work.
#[derive(Default)]
pub(crate) struct Hooks {
    workers: Vec<Worker>,
    stop: Option<Arc<Stop>>,
}

struct Worker {
    hook: Hook,
    name: String,
    queue: mpsc::SyncSender<Arc<Notice>>,
    counts: Arc<Counts>,
    thread: std::thread::JoinHandle<()>,
}

#[derive(Default)]
struct Counts {
    delivered: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

impl Hooks {
    /// Starts a thread per hook. A program that cannot be started is a warning, for it may still come.
    pub(crate) fn start(hooks: &[Hook]) -> std::io::Result<Self> {
        if hooks.is_empty() {
            return Ok(Self::default());
        }
        let stop = Arc::new(Stop(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?));
        let mut workers = Vec::new();
        for hook in hooks {
            let name = hook.name();
            if let [program, ..] = &hook.exec[..]
                && let Err(error) = access(program, Access::EXEC_OK)
            {
                tracing::warn!(hook = name, %error, because = "it cannot be started now", "hook");
            }
            let (queue, notices) = mpsc::sync_channel(QUEUE);
            let counts = Arc::new(Counts::default());
            let thread = std::thread::Builder::new().name("hook".into()).spawn({
                let (hook, name, counts, stop) = (hook.clone(), name.clone(), counts.clone(), stop.clone());
                move || deliver(&hook, &name, &notices, &counts, &stop)
            })?;
            workers.push(Worker { hook: hook.clone(), name, queue, counts, thread });
        }
        Ok(Self { workers, stop: Some(stop) })
    }

    /// Hands a notice to every hook that wants its kind. Does not wait.
    pub(crate) fn tell(&self, notice: Notice) {
        let notice = Arc::new(notice);
        let kind = notice.alert.alert.kind;
        for worker in &self.workers {
            if !worker.hook.kinds.is_empty() && !worker.hook.kinds.contains(&kind) {
                continue;
            }
            if worker.queue.try_send(notice.clone()).is_err()
                && worker.counts.dropped.fetch_add(1, Ordering::Relaxed).is_power_of_two()
            {
                let dropped = worker.counts.dropped.load(Ordering::Relaxed);
                tracing::warn!(
                    hook = worker.name,
                    dropped,
                    because = "it is slower than alerts come",
                    "alert not given to a hook"
                );
            }
        }
    }

    /// What became of what was told.
    pub(crate) fn status(&self) -> Vec<HookStatus> {
        let status = |worker: &Worker| HookStatus {
            hook: worker.name.clone(),
            delivered: worker.counts.delivered.load(Ordering::Relaxed),
            failed: worker.counts.failed.load(Ordering::Relaxed),
            dropped: worker.counts.dropped.load(Ordering::Relaxed),
        };
        self.workers.iter().map(status).collect()
    }

    /// Ends the threads; programs that are still running after [`STOP_WITHIN`] are killed.
    pub(crate) fn stop(&mut self) {
        let Some(stop) = self.stop.take() else { return };
        stop.tell();
        let deadline = Instant::now() + STOP_WITHIN + Duration::from_millis(500);
        for worker in std::mem::take(&mut self.workers) {
            drop(worker.queue);
            while !worker.thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

fn deliver(hook: &Hook, name: &str, notices: &mpsc::Receiver<Arc<Notice>>, counts: &Counts, stop: &Stop) {
    for notice in notices {
        if stop.is_told() {
            return;
        }
        let outcome = match &hook.webhook {
            Some(url) => webhook::post(url, &notice, hook.timeout, stop),
            None => exec::run(&hook.exec, &notice, hook.timeout, stop),
        };
        match outcome {
            Ok(()) => {
                counts.delivered.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(hook = name, kind = %notice.alert.alert.kind, state = notice.state, "alert given to a hook");
            }
            Err(error) => {
                counts.failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(hook = name, kind = %notice.alert.alert.kind, because = %error, "alert not given to a hook");
            }
        }
    }
}

/// A flag that can be waited for beside other things.
struct Stop(OwnedFd);

impl Stop {
    fn tell(&self) {
        // Nobody reads it: it stays readable.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn is_told(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Waits for the flag; false when the time passed first.
    fn wait(&self, within: Duration) -> bool {
        first_ready(&[&self.0], within).is_some()
    }
}

/// Which of `fds` is readable first; none when the time passed, or the wait was interrupted: look at the clock.
fn first_ready(fds: &[&OwnedFd], within: Duration) -> Option<usize> {
    let timeout = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
    let _ = poll(&mut fds, Some(&timeout));
    fds.iter().position(|fd| !fd.revents().is_empty())
}

#[cfg(test)]
mod tests;
