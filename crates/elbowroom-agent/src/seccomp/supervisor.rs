//! The process that holds every descriptor, starts the one that answers, and sees to it that it does.

use super::page_lookup::PageLookups;
use super::stored_fds::{
    RECORD_FD_NAME, is_managed, listener_name, notify_service_manager, store_fd, take_stored,
};
use super::worker_process::{KILL_TIMEOUT, SeccompWorker, kill_and_wait, start_worker};
use super::{HandoverState, MAX_CONTAINERS, SeccompContainer, socket_path, wire, worker};
use anyhow::{Context, Result, bail};
use elbowroom_linux::seccomp::NotificationLog;
use elbowroom_linux::signal::SignalFd;
use elbowroom_linux::{new_file, process, signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::fs::Mode;
use rustix::process::Signal;
use sd_notify::NotifyState;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often it is checked whether calls are answered and pages have views.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long a container's calls may wait while none of them is answered and the process that answers gives no sign.
const HANG_TIMEOUT: Duration = Duration::from_secs(2);
/// As long as an answer of the agent is awaited.
const ANSWER_POLL: Duration = Duration::from_millis(5);
/// Descriptors that both processes may have: two for each container, and some.
const MAX_FILES: u64 = 2 * MAX_CONTAINERS as u64 + 64;

/// Keeps until it is told to stop: `elbowroom keeper`.
pub fn main(run_dir: &Path) -> Result<()> {
    let run_dir =
        new_file::run_directory(run_dir).with_context(|| format!("making {}", run_dir.display()))?;
    let path = socket_path(&run_dir);
    if super::check_running(&run_dir).is_ok() {
        bail!("{}: a keeper is at work here already", path.display());
    }
    let listener = listen(&run_dir)?;
    let (record, containers) = take_stored();
    let record = match record {
        Some(record) => record,
        None => {
            let record = NotificationLog::new()?;
            store_fd(RECORD_FD_NAME, record.as_fd());
            record
        }
    };
    SeccompSupervisor::new(HandoverState {
        run_dir,
        socket: Some(listener),
        record: Arc::new(record),
        containers,
    })?
    .run()
}

/// Where runtimes bring descriptors, made anew, and the directory too where there is none.
fn listen(run_dir: &Path) -> Result<UnixListener> {
    new_file::run_directory(run_dir).with_context(|| format!("making {}", run_dir.display()))?;
    let path = socket_path(run_dir);
    // Only root may connect, from the first moment on: the runtimes that bring descriptors run as root.
    let listen = || UnixListener::bind(&path);
    let _ = std::fs::remove_file(&path);
    let listener = new_file::create_with_mode(Mode::from_raw_mode(0o600), None, listen);
    listener.with_context(|| format!("listening on {}", path.display()))
}

/// Which file is at a path, where there is one: device and inode.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    let file = std::fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// Carries on for a supervisor that died.
pub(super) fn take_over(kept: HandoverState) -> Result<()> {
    tracing::warn!(because = "the process that held them died", "taking over");
    notify_service_manager(&[NotifyState::MainPid(std::process::id())]);
    SeccompSupervisor::new(kept)?.run()
}

struct SeccompSupervisor {
    state: HandoverState,
    pages: PageLookups,
    signals: SignalFd,
    /// The socket's file when it was bound.
    bound: Option<(u64, u64)>,
    /// Containers that the worker knows, and those of which it is to be told something.
    known_slots: BTreeSet<usize>,
    updated_slots: BTreeSet<usize>,
    worker: Option<SeccompWorker>,
    /// When one may be started next, and how long after that the one after.
    start_at: Instant,
    restart_delay: Duration,
    check_at: Instant,
    /// What the process that answers said last that it is there, and since when.
    last_heartbeat: Option<(u64, Instant)>,
    /// Containers whose calls wait: their notices taken and answered last, and since when those are the last.
    waiting: BTreeMap<usize, ((u64, u64), Instant)>,
    /// Killed, and not gone.
    lingering: Vec<Child>,
    stopping: bool,
}

impl SeccompSupervisor {
    fn new(kept: HandoverState) -> Result<Self> {
        let _ = rustix::thread::set_name(c"elbowroom-keeper");
        signal::restore_sigchld();
        let signals =
            SignalFd::block(&[Signal::TERM, Signal::INT, Signal::HUP]).context("blocking signals")?;
        // Killed after those that it serves; they would otherwise be told that the kernel knows no such call.
        let _ = process::set_oom_score_adj(-999);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let most = limit.maximum.map_or(MAX_FILES, |most| most.min(MAX_FILES));
        let raised = rustix::process::Rlimit { current: Some(most), maximum: limit.maximum };
        let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
        let now = Instant::now();
        let (pages, known_slots, updated_slots) = (PageLookups::default(), BTreeSet::new(), BTreeSet::new());
        let bound = file_at(&socket_path(&kept.run_dir));
        Ok(Self {
            state: kept,
            pages,
            signals,
            bound,
            known_slots,
            updated_slots,
            worker: None,
            start_at: now,
            restart_delay: Duration::ZERO,
            check_at: now,
            last_heartbeat: None,
            waiting: BTreeMap::new(),
            lingering: Vec::new(),
            stopping: false,
        })
    }

    fn run(mut self) -> Result<()> {
        loop {
            self.ensure_worker();
            let (runtime, signalled, gone) = self.wait()?;
            for slot in gone {
                let gone = self.state.containers.remove(&slot);
                self.pages.remove(slot);
                self.known_slots.remove(&slot);
                self.updated_slots.remove(&slot);
                if let Some(container) = gone {
                    notify_service_manager(&[
                        NotifyState::FdStoreRemove,
                        NotifyState::FdName(&listener_name(slot, &container)),
                    ]);
                }
            }
            if runtime {
                self.accept_container();
            }
            self.find_pages();
            if Instant::now() >= self.check_at {
                self.check_at = Instant::now() + POLL_INTERVAL;
                self.kill_hung_worker();
                self.ensure_listener();
            }
            if signalled && self.handle_stop_signal() || self.stopping && self.state.containers.is_empty() {
                self.finish();
                return Ok(());
            }
        }
    }

    /// Starts a process that answers where there is none.
    fn ensure_worker(&mut self) {
        self.lingering.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let ended = self
            .worker
            .as_mut()
            .and_then(|a| a.child.try_wait().ok().flatten().map(|status| (status, a.started_at)));
        if let Some((status, since)) = ended {
            tracing::warn!(%status, "the process that answers ended: starting another");
            self.worker = None;
            // At once, unless it never lived.
            self.restart_delay = if since.elapsed() > Duration::from_secs(1) {
                Duration::ZERO
            } else {
                (self.restart_delay * 2).clamp(Duration::from_millis(10), Duration::from_secs(1))
            };
            self.start_at = Instant::now() + self.restart_delay;
        }
        // A thread that waits for a container's memory ends when that wait does, not by a signal. It answers no more calls.
        if let Some(worker) =
            self.worker.take_if(|a| a.killed_at.is_some_and(|at| at.elapsed() >= KILL_TIMEOUT))
        {
            let pid = worker.child.id();
            tracing::warn!(pid, because = "it was killed and does not end", "starting another to answer");
            self.lingering.push(worker.child);
            (self.restart_delay, self.start_at) = (Duration::ZERO, Instant::now());
        }
        if self.worker.is_some() || Instant::now() < self.start_at {
            return;
        }
        match start_worker(&self.state) {
            Ok(worker) => {
                self.known_slots = self.state.containers.keys().copied().collect();
                self.updated_slots.clear();
                self.waiting.clear();
                self.last_heartbeat = None;
                tracing::info!(pid = worker.child.id(), containers = self.known_slots.len(), "answering");
                self.worker = Some(worker);
                notify_service_manager(&[NotifyState::Ready]);
            }
            Err(error) => {
                tracing::error!(
                    because = elbowroom_client::output::one_line(&error),
                    "no answerer can be started; trying again"
                );
                self.restart_delay =
                    (self.restart_delay * 2).clamp(Duration::from_millis(10), Duration::from_secs(1));
                self.start_at = Instant::now() + self.restart_delay;
            }
        }
    }

    /// Waits: whether a runtime is there, whether there is a signal, and which containers are gone.
    fn wait(&self) -> Result<(bool, bool, Vec<usize>)> {
        let mut until = self.check_at;
        if self.pages.has_pending() {
            until = until.min(Instant::now() + ANSWER_POLL);
        }
        if self.worker.is_none() {
            until = until.min(self.start_at);
        }
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        // The end of the process that answers is the end of its socket.
        let to = self.worker.as_ref().map(|worker| &worker.channel);
        fds.extend(to.map(|to| PollFd::new(to, PollFlags::IN)));
        let runtime = self.state.socket.as_ref();
        fds.extend(runtime.map(|socket| PollFd::new(socket, PollFlags::IN)));
        let before = fds.len();
        // Nothing but the end of the last process that a filter is for.
        fds.extend(self.state.containers.values().map(|c| PollFd::new(&c.listener, PollFlags::empty())));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("while waiting for containers"),
        }
        let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let gone = self
            .state
            .containers
            .keys()
            .zip(&fds[before..])
            .filter(|(_, fd)| ready(fd))
            .map(|(slot, _)| *slot);
        Ok((runtime.is_some() && ready(&fds[before - 1]), ready(&fds[0]), gone.collect()))
    }

    /// Takes a container from a runtime.
    fn accept_container(&mut self) {
        let Some(peer) = self.state.socket.as_ref().and_then(|socket| socket.accept().ok()) else { return };
        let container = match wire::receive_container(&peer.0) {
            Ok(Some(container)) => container,
            Ok(None) => return,
            Err(error) => {
                return tracing::warn!(
                    because = elbowroom_client::output::one_line(&error),
                    "a runtime sent an invalid message"
                );
            }
        };
        let Some(slot) = (0..MAX_CONTAINERS).find(|slot| !self.state.containers.contains_key(slot)) else {
            // There is no place for this container: its calls fail.
            return tracing::error!(id = container.id, most = MAX_CONTAINERS, "too many containers");
        };
        tracing::info!(id = container.id, pid = container.pid, "a container is kept");
        store_fd(&listener_name(slot, &container), container.listener.as_fd());
        self.state.record.reset_slot(slot);
        self.state.containers.insert(slot, container);
        // From here on the worker has it too.
        self.updated_slots.insert(slot);
        self.send_updates();
    }

    /// Tells the process that answers what it does not know of containers yet.
    fn send_updates(&mut self) {
        while let (Some(slot), Some(worker)) = (self.updated_slots.first().copied(), &self.worker) {
            let Some(container) = self.state.containers.get(&slot) else { return };
            let to = worker.channel.as_fd();
            let said = match self.known_slots.contains(&slot) {
                true => wire::send_page(to, slot, container),
                false => wire::send_container(to, slot, container),
            };
            if said.is_err() {
                return;
            }
            self.known_slots.insert(slot);
            self.updated_slots.remove(&slot);
        }
    }

    /// Looks for the pages of containers that have none, or one without a view. A container is answered once its page was looked for: until
    /// then its calls wait.
    fn find_pages(&mut self) {
        for (slot, page) in self.pages.take_finished() {
            let Some(container) = self.state.containers.get_mut(&slot) else { continue };
            if page.is_some() || !container.page_checked {
                self.updated_slots.insert(slot);
            }
            container.page = page.map(Arc::new).or(container.page.take());
            container.page_checked = true;
        }
        self.send_updates();
        let now = Instant::now() >= self.check_at;
        let lacks_page = |container: &SeccompContainer| {
            !container.page_checked
                || now && !container.page.as_ref().is_some_and(|page| worker::is_page_live(page))
        };
        let lacking = self.state.containers.iter().filter(|(_, container)| lacks_page(container));
        for slot in self.pages.longest_wait_first(lacking.map(|(slot, _)| *slot).collect()) {
            self.pages.start_lookup(slot, &self.state.run_dir, &self.state.containers[&slot]);
        }
    }

    /// Kills a worker that is stopped or hangs: for [`HANG_TIMEOUT`] it has given no sign and a call has waited. A worker that gives signs
    /// leaves to the kernel the calls that its threads do not come back from, so no container can have it killed.
    fn kill_hung_worker(&mut self) {
        let now = Instant::now();
        let beats = self.state.record.heartbeats();
        let (_, still_since) = *self
            .last_heartbeat
            .insert(self.last_heartbeat.filter(|(n, _)| *n == beats).unwrap_or((beats, now)));
        let served: Vec<(usize, PollFd<'_>)> = self
            .state
            .containers
            .iter()
            .filter(|(slot, container)| container.page_checked && self.known_slots.contains(slot))
            .map(|(slot, c)| (*slot, PollFd::new(&c.listener, PollFlags::IN)))
            .collect();
        let (slots, mut fds): (Vec<usize>, Vec<PollFd<'_>>) = served.into_iter().unzip();
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        if !fds.is_empty() && poll(&mut fds, Some(&zero)).is_err() {
            return;
        }
        let mut waiting = BTreeMap::new();
        for (slot, fd) in slots.into_iter().zip(&fds) {
            let last = self.state.record.last(slot);
            if fd.revents().contains(PollFlags::IN) || last.0 != last.1 {
                let before = self.waiting.get(&slot).filter(|(before, _)| *before == last);
                waiting.insert(slot, before.copied().unwrap_or((last, now)));
            }
        }
        let hung = |since: Instant| now.saturating_duration_since(since) >= HANG_TIMEOUT;
        let somebody = waiting.values().any(|(_, since)| hung(*since));
        self.waiting = waiting;
        if somebody
            && hung(still_since)
            && let Some(worker) = self.worker.as_mut().filter(|worker| worker.killed_at.is_none())
        {
            tracing::error!(
                pid = worker.child.id(),
                because = "calls wait and it gives no sign",
                "killing the process that answers"
            );
            worker.kill();
        }
    }

    /// Listens anew where the socket's file is gone: a service manager removes the run directory when the agent is stopped.
    fn ensure_listener(&mut self) {
        let now = file_at(&socket_path(&self.state.run_dir));
        let is_there = now.is_some() && now == self.bound;
        // If a process answers there, it is another keeper.
        if self.state.socket.is_none() || is_there || super::check_running(&self.state.run_dir).is_ok() {
            return;
        }
        let is_news = self.bound.take().is_some();
        match listen(&self.state.run_dir) {
            Ok(listener) => {
                tracing::warn!(because = "the socket was removed", "listening anew");
                self.bound = file_at(&socket_path(&self.state.run_dir));
                self.state.socket = Some(listener);
                // The next one is given the new socket; this one would carry on with the old.
                if let Some(worker) = &mut self.worker {
                    worker.kill();
                }
            }
            Err(error) if is_news => {
                tracing::error!(
                    because = elbowroom_client::output::one_line(&error),
                    "no runtime finds the keeper; trying again"
                );
            }
            Err(_) => {}
        }
    }

    /// Whether to end at once: no container is left, the service manager holds the descriptors, or this is the second signal.
    fn handle_stop_signal(&mut self) -> bool {
        while self.signals.next().is_ok_and(|signal| signal.is_some()) {}
        let again = std::mem::replace(&mut self.stopping, true);
        if self.state.socket.take().is_some() {
            let _ = std::fs::remove_file(socket_path(&self.state.run_dir));
        }
        let left = self.state.containers.len();
        if left > 0 && !again && !is_managed() {
            tracing::warn!(
                containers = left,
                "these need the keeper until they end: it ends with the last; a second signal ends it at once, and their calls fail"
            );
            return false;
        }
        true
    }

    fn finish(mut self) {
        if let Some(worker) = &mut self.worker {
            // It would take over where only the socket ended.
            kill_and_wait(&mut worker.child);
        }
        tracing::info!(containers = self.state.containers.len(), "stopped");
    }
}
