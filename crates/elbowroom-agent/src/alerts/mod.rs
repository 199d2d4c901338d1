//! Tells people of alerts: starts programs, posts to addresses and writes to systemd's journal, on threads of their own.
//!
//! One thread per addressee, one delivery at a time, in the order of the alerts: no addressee hears of an end before the beginning. The
//! queue before it is short, and what does not fit is dropped and counted: a receiver that hangs costs its own alerts and nothing
//! else. How often an addressee is told at all is decided by its [`Outbox`].

mod alertmanager;
mod exec;
pub(crate) mod journald;
pub(crate) mod settings;
mod webhook;

use elbowroom_client::api::{AlertView, ReceiverStatus};
use elbowroom_govern::alert::outbox::Outbox;
use elbowroom_types::alert::Alert;
use elbowroom_types::unit::Micros;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Access, access};
use serde::Serialize;
use settings::{AlertSettings, ReceiverSettings, WebhookFormat};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Alerts that may wait for one receiver.
const QUEUE_CAPACITY: usize = 64;
/// How long a stop waits for deliveries that are under way, before programs are killed and posts are left.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an Alertmanager is told again of what ended, in case it was away.
const END_RESEND_TIME: Micros = Micros::secs(300);
/// Most ends that it is told again of.
const MAX_ENDED: usize = 256;

/// What a receiver is told: the alert, and what it takes to understand it elsewhere.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AlertNotice {
    /// `began` or `ended`.
    pub(crate) state: &'static str,
    /// This machine.
    pub(crate) host: String,
    /// When the notice was given, in milliseconds since 1970.
    pub(crate) time_unix_ms: u64,
    #[serde(flatten)]
    pub(crate) alert: AlertView,
}

/// Why a receiver was not told.
#[derive(Debug, thiserror::Error)]
enum DeliveryError {
    #[error("cannot be started: {0}")]
    Start(std::io::Error),
    #[error("ended with {0}")]
    Status(std::process::ExitStatus),
    #[error("was killed after {0}: make it quicker, or raise its timeout")]
    Timeout(Micros),
    #[error("{0}")]
    Post(#[from] ureq::Error),
    #[error("{path}: {0}: is systemd-journald at work here?", path = journald::SOCKET)]
    Journal(std::io::Error),
    #[error("the agent is stopping")]
    Stopping,
}

/// The receivers at work.
#[derive(Default)]
pub(crate) struct ReceiverDispatcher {
    workers: Vec<DeliveryWorker>,
    stop: Option<Arc<StopFlag>>,
}

/// The addressees.
#[derive(Clone, Debug)]
enum AlertSink {
    Receiver(ReceiverSettings),
    Journal,
}

/// What goes to an addressee at once.
enum AlertDelivery {
    One(Box<AlertNotice>),
    /// Everything that lasts, or ended lately.
    All(Vec<AlertNotice>),
}

struct DeliveryWorker {
    sink: AlertSink,
    name: String,
    outbox: Outbox,
    /// For one that is told everything each time: what ended lately, and when it is told again.
    ended: VecDeque<Alert>,
    resend_at: Micros,
    queue: mpsc::SyncSender<AlertDelivery>,
    counts: Arc<DeliveryCounts>,
    thread: std::thread::JoinHandle<()>,
}

#[derive(Default)]
struct DeliveryCounts {
    delivered: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

impl AlertSink {
    fn name(&self) -> String {
        match self {
            Self::Receiver(receiver) => receiver.name(),
            Self::Journal => "journald".to_owned(),
        }
    }

    fn accepts(&self, alert: &Alert) -> bool {
        match self {
            Self::Receiver(receiver) => receiver.accepts(alert),
            Self::Journal => true,
        }
    }

    /// How often it is told everything, where it is.
    const fn resend_interval(&self) -> Option<Micros> {
        match self {
            Self::Receiver(ReceiverSettings { format: WebhookFormat::Alertmanager, resend, .. }) => {
                Some(*resend)
            }
            Self::Receiver(_) | Self::Journal => None,
        }
    }
}

impl ReceiverDispatcher {
    /// Starts a thread per addressee. A program that cannot be started is a warning, for it may still come.
    pub(crate) fn start(receivers: &[ReceiverSettings], settings: &AlertSettings) -> std::io::Result<Self> {
        let mut addressees: Vec<AlertSink> = receivers.iter().cloned().map(AlertSink::Receiver).collect();
        addressees.extend(settings.journald.then_some(AlertSink::Journal));
        if addressees.is_empty() {
            return Ok(Self::default());
        }
        let stop = Arc::new(StopFlag::new()?);
        let mut workers = Vec::new();
        for addressee in addressees {
            let name = addressee.name();
            if let AlertSink::Receiver(receiver) = &addressee
                && let [program, ..] = &receiver.exec[..]
                && let Err(error) = access(program, Access::EXEC_OK)
            {
                tracing::warn!(receiver = name, %error, because = "it cannot be started now", "receiver");
            }
            let (queue, mail) = mpsc::sync_channel(QUEUE_CAPACITY);
            let counts = Arc::new(DeliveryCounts::default());
            let thread = std::thread::Builder::new().name("receiver".into()).spawn({
                let (addressee, name, counts, stop) =
                    (addressee.clone(), name.clone(), counts.clone(), stop.clone());
                move || delivery_loop(&addressee, &name, &mail, &counts, &stop)
            })?;
            let outbox = Outbox::new(settings.outbox_rule());
            let (ended, resend_at) = (VecDeque::new(), Micros::ZERO);
            workers.push(DeliveryWorker {
                sink: addressee,
                name,
                outbox,
                ended,
                resend_at,
                queue,
                counts,
                thread,
            });
        }
        Ok(Self { workers, stop: Some(stop) })
    }

    /// Takes a beginning or an end for every addressee that wants it.
    pub(crate) fn apply(&mut self, alert: &Alert) {
        for worker in self.workers.iter_mut().filter(|worker| worker.sink.accepts(alert)) {
            worker.outbox.apply(alert);
        }
    }

    /// Hands every addressee what is due. Does not wait.
    pub(crate) fn dispatch_due(&mut self, now: Micros, name: impl Fn(Alert) -> AlertView) {
        let notice = |alert: Alert| AlertNotice::new(name(alert));
        for worker in &mut self.workers {
            let due = worker.outbox.due(now);
            match worker.sink.resend_interval() {
                None => due
                    .into_iter()
                    .for_each(|alert| worker.enqueue(AlertDelivery::One(Box::new(notice(alert))))),
                Some(resend) => worker.enqueue_all(now, resend, due, notice),
            }
        }
    }

    /// What became of what was told.
    pub(crate) fn status(&self) -> Vec<ReceiverStatus> {
        let status = |worker: &DeliveryWorker| ReceiverStatus {
            receiver: worker.name.clone(),
            delivered: worker.counts.delivered.load(Ordering::Relaxed),
            failed: worker.counts.failed.load(Ordering::Relaxed),
            dropped: worker.counts.dropped.load(Ordering::Relaxed),
            expired: worker.outbox.dropped(),
        };
        self.workers.iter().map(status).collect()
    }

    /// Ends the threads; programs that are still running after [`STOP_TIMEOUT`] are killed.
    pub(crate) fn stop(&mut self) {
        let Some(stop) = self.stop.take() else { return };
        stop.set();
        let deadline = Instant::now() + STOP_TIMEOUT + Duration::from_millis(500);
        for worker in std::mem::take(&mut self.workers) {
            drop(worker.queue);
            while !worker.thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

impl DeliveryWorker {
    fn enqueue(&self, mail: AlertDelivery) {
        if self.queue.try_send(mail).is_err()
            && self.counts.dropped.fetch_add(1, Ordering::Relaxed).is_power_of_two()
        {
            let dropped = self.counts.dropped.load(Ordering::Relaxed);
            tracing::warn!(
                receiver = self.name,
                dropped,
                because = "it is slower than alerts come",
                "alert not given to a receiver"
            );
        }
    }

    /// Puts everything that this addressee should know, where something changed or it is time to say it again.
    fn enqueue_all(
        &mut self,
        now: Micros,
        resend: Micros,
        due: Vec<Alert>,
        notice: impl Fn(Alert) -> AlertNotice,
    ) {
        if due.is_empty() && now < self.resend_at {
            return;
        }
        self.ended.extend(due.into_iter().filter(|alert| !alert.is_active()));
        let old =
            |alert: &Alert| alert.until.is_some_and(|until| now.saturating_sub(until) > END_RESEND_TIME);
        while self.ended.front().is_some_and(old) || self.ended.len() > MAX_ENDED {
            self.ended.pop_front();
        }
        // What began again is not over; as what it was before it became worse, it is.
        let told: Vec<Alert> = self.outbox.notified().cloned().collect();
        let is = |alert: &Alert| (alert.subject(), alert.severity);
        let over = self.ended.iter().filter(|ended| told.iter().all(|alert| is(alert) != is(ended)));
        let all: Vec<AlertNotice> = over.cloned().chain(told.iter().cloned()).map(notice).collect();
        self.resend_at = now.saturating_add(resend);
        if !all.is_empty() {
            self.enqueue(AlertDelivery::All(all));
        }
    }
}

impl AlertNotice {
    fn new(alert: AlertView) -> Self {
        let state = if alert.alert.is_active() { "began" } else { "ended" };
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { state, host, time_unix_ms: elbowroom_linux::timer::unix_ms(), alert }
    }
}

fn delivery_loop(
    addressee: &AlertSink,
    name: &str,
    queue: &mpsc::Receiver<AlertDelivery>,
    counts: &DeliveryCounts,
    stop: &StopFlag,
) {
    while let Ok(mut mail) = queue.recv() {
        if stop.is_set() {
            return;
        }
        if matches!(mail, AlertDelivery::All(_)) {
            // An addressee that was away is told what is, not what was: an old picture would raise what is long over.
            mail = queue.try_iter().last().unwrap_or(mail);
        }
        match deliver_one(addressee, &mail, stop) {
            Ok(()) => {
                counts.delivered.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(receiver = name, what = mail.summary(), "alert given to a receiver");
            }
            Err(error) => {
                counts.failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(receiver = name, what = mail.summary(), because = %error, "alert not given to a receiver");
            }
        }
    }
}

fn deliver_one(addressee: &AlertSink, mail: &AlertDelivery, stop: &StopFlag) -> Result<(), DeliveryError> {
    let body = |notice: &AlertNotice| serde_json::to_vec(notice).expect("a notice is numbers and text");
    match (addressee, mail) {
        (AlertSink::Journal, AlertDelivery::One(notice)) => {
            journald::send(Path::new(journald::SOCKET), notice).map_err(DeliveryError::Journal)
        }
        (
            AlertSink::Receiver(ReceiverSettings { webhook: Some(url), timeout, .. }),
            AlertDelivery::One(notice),
        ) => webhook::post(url, &body(notice), *timeout, stop),
        (AlertSink::Receiver(receiver), AlertDelivery::One(notice)) => {
            exec::run(&receiver.exec, notice, receiver.timeout, stop)
        }
        (
            AlertSink::Receiver(ReceiverSettings { webhook: Some(url), timeout, resend, link, .. }),
            AlertDelivery::All(notices),
        ) => {
            let body =
                alertmanager::body(notices, elbowroom_linux::timer::unix_ms(), *resend, link.as_deref());
            webhook::post(&alertmanager::alerts_url(url), &body, *timeout, stop)
        }
        (AlertSink::Receiver(_) | AlertSink::Journal, AlertDelivery::All(_)) => Ok(()),
    }
}

impl AlertDelivery {
    /// For the log.
    fn summary(&self) -> String {
        match self {
            Self::One(notice) => format!("{} {}", notice.alert.alert.kind, notice.state),
            Self::All(notices) => format!("{} alerts", notices.len()),
        }
    }
}

/// A flag that can be waited for beside other things.
pub struct StopFlag(OwnedFd);

impl StopFlag {
    /// One that was not told yet.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Readable once it was told.
    pub(crate) const fn fd(&self) -> &OwnedFd {
        &self.0
    }

    /// Tells every thread that waits, and that will.
    pub(crate) fn set(&self) {
        // It is not read: it stays readable.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Whether it was told.
    pub(crate) fn is_set(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Waits for the flag; false when the time passed first.
    pub(crate) fn wait(&self, within: Duration) -> bool {
        first_ready(&[&self.0], within).is_some()
    }
}

/// Which of `fds` is readable first; none when the time passed, or the wait was interrupted: look at the clock.
pub(crate) fn first_ready(fds: &[&OwnedFd], within: Duration) -> Option<usize> {
    let timeout = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
    let _ = poll(&mut fds, Some(&timeout));
    fds.iter().position(|fd| !fd.revents().is_empty())
}

#[cfg(test)]
mod tests;
