//! The process that holds every descriptor, starts the one that answers, and sees to it that it does.

use super::pages::Pages;
use super::wire;
use super::{Container, Kept, VERB, answerer, socket};
use anyhow::{Context, Result, bail};
use elbowroom_linux::process;
use elbowroom_linux::seccomp::{Listener, Record};
use elbowroom_linux::signal;
use elbowroom_linux::signal::Signals;
use elbowroom_types::unit::Micros;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::Mode;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Signal;
use sd_notify::NotifyState;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What descriptors are called at the service manager: listeners this, and the container's slot, pid, when that started, and identifier.
const STORED: &str = "listener-";
const STORED_RECORD: &str = "record";
/// Most containers.
const MOST: usize = 4_000;
/// How often it is looked whether calls are answered and pages are kept.
pub(super) const LOOK: Duration = Duration::from_millis(500);
/// How long a container's calls may wait while none of them is answered and the process that answers gives no sign.
const HUNG: Duration = Duration::from_secs(2);
/// How long a process that was killed may take to be gone.
const GONE: Duration = Duration::from_secs(1);
/// How long the process that answers may leave a message lying.
const PATIENCE: Duration = Duration::from_secs(1);
/// As long as an answer of the agent is awaited.
const SOON: Duration = Duration::from_millis(5);
/// Descriptors that both processes may have: two for each container, and some.
const FILES: u64 = 2 * MOST as u64 + 64;

/// Keeps until it is told to stop: `elbowroom keeper`.
pub fn main(run_dir: &Path) -> Result<()> {
    std::fs::create_dir_all(run_dir).with_context(|| format!("making {}", run_dir.display()))?;
    let run_dir = run_dir.canonicalize().with_context(|| format!("resolving {}", run_dir.display()))?;
    let path = socket(&run_dir);
    if super::is_there(&run_dir).is_ok() {
        bail!("{}: a keeper is at work here already", path.display());
    }
    let listener = listen(&run_dir)?;
    let (record, containers) = stored();
    let record = match record {
        Some(record) => record,
        None => {
            let record = Record::new()?;
            keep_at_manager(STORED_RECORD, record.as_fd());
            record
        }
    };
    Holder::new(Kept { run_dir, socket: Some(listener), record: Arc::new(record), containers })?.run()
}

/// Where runtimes bring descriptors, made anew, and the directory too where there is none.
fn listen(run_dir: &Path) -> Result<UnixListener> {
    std::fs::create_dir_all(run_dir).with_context(|| format!("making {}", run_dir.display()))?;
    let path = socket(run_dir);
    let _ = std::fs::remove_file(&path);
    // Nobody but root, from the first moment on.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(&path).with_context(|| format!("listening on {}", path.display()));
    rustix::process::umask(before);
    listener
}

/// Which file is at a path, where there is one: device and inode.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    let file = std::fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// Carries on for a holder that died.
pub(super) fn succeed(kept: Kept) -> Result<()> {
    tracing::warn!(because = "the process that held them died", "taking over");
    tell(&[NotifyState::MainPid(std::process::id())]);
    Holder::new(kept)?.run()
}

struct Holder {
    kept: Kept,
    pages: Pages,
    signals: Signals,
    /// The socket's file when it was bound.
    bound: Option<(u64, u64)>,
    /// Containers that the answerer knows, and those of which it is to be told something.
    given: BTreeSet<usize>,
    news: BTreeSet<usize>,
    answerer: Option<Answerer>,
    /// When one may be started next, and how long after that the one after.
    start_at: Instant,
    pause: Duration,
    look_at: Instant,
    /// What the process that answers said last that it is there, and since when.
    beat: Option<(u64, Instant)>,
    /// Containers whose calls wait: their notices taken and answered last, and since when those are the last.
    waiting: BTreeMap<usize, ((u64, u64), Instant)>,
    /// Killed, and not gone.
    lingering: Vec<Child>,
    stopping: bool,
}

/// The process that answers.
struct Answerer {
    child: Child,
    to: OwnedFd,
    since: Instant,
    /// When it was killed.
    killed: Option<Instant>,
}

impl Answerer {
    fn kill(&mut self) {
        let _ = self.child.kill();
        self.killed.get_or_insert_with(Instant::now);
    }
}

impl Holder {
    fn new(kept: Kept) -> Result<Self> {
        let _ = rustix::thread::set_name(c"elbowroom-keeper");
        signal::keep_children();
        let signals =
            Signals::block(&[Signal::TERM, Signal::INT, Signal::HUP]).context("blocking signals")?;
        // Killed after those that it serves; they would otherwise be told that the kernel knows no such call.
        let _ = process::set_oom_score_adj(-999);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let most = limit.maximum.map_or(FILES, |most| most.min(FILES));
        let raised = rustix::process::Rlimit { current: Some(most), maximum: limit.maximum };
        let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
        let now = Instant::now();
        let (pages, given, news) = (Pages::default(), BTreeSet::new(), BTreeSet::new());
        let bound = file_at(&socket(&kept.run_dir));
        Ok(Self {
            kept,
            pages,
            signals,
            bound,
            given,
            news,
            answerer: None,
            start_at: now,
            pause: Duration::ZERO,
            look_at: now,
            beat: None,
            waiting: BTreeMap::new(),
            lingering: Vec::new(),
            stopping: false,
        })
    }

    fn run(mut self) -> Result<()> {
        loop {
            self.keep_answering();
            let (runtime, signalled, gone) = self.wait()?;
            for slot in gone {
                let gone = self.kept.containers.remove(&slot);
                self.pages.forget(slot);
                self.given.remove(&slot);
                self.news.remove(&slot);
                if let Some(container) = gone {
                    tell(&[NotifyState::FdStoreRemove, NotifyState::FdName(&name(slot, &container))]);
                }
            }
            if runtime {
                self.take();
            }
            self.find_pages();
            if Instant::now() >= self.look_at {
                self.look_at = Instant::now() + LOOK;
                self.end_who_hangs();
                self.keep_listening();
            }
            if signalled && self.told_to_stop() || self.stopping && self.kept.containers.is_empty() {
                self.finish();
                return Ok(());
            }
        }
    }

    /// Starts a process that answers where there is none.
    fn keep_answering(&mut self) {
        self.lingering.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let ended = self
            .answerer
            .as_mut()
            .and_then(|a| a.child.try_wait().ok().flatten().map(|status| (status, a.since)));
        if let Some((status, since)) = ended {
            tracing::warn!(%status, "the process that answers ended: starting another");
            self.answerer = None;
            // At once, unless it never lived.
            self.pause = if since.elapsed() > Duration::from_secs(1) {
                Duration::ZERO
            } else {
                (self.pause * 2).clamp(Duration::from_millis(10), Duration::from_secs(1))
            };
            self.start_at = Instant::now() + self.pause;
        }
        // A thread that waits for a container's memory ends with that, not by a signal. It answers nobody any more.
        if let Some(answerer) = self.answerer.take_if(|a| a.killed.is_some_and(|at| at.elapsed() >= GONE)) {
            let pid = answerer.child.id();
            tracing::warn!(pid, because = "it was killed and does not end", "starting another to answer");
            self.lingering.push(answerer.child);
            (self.pause, self.start_at) = (Duration::ZERO, Instant::now());
        }
        if self.answerer.is_some() || Instant::now() < self.start_at {
            return;
        }
        match start(&self.kept) {
            Ok(answerer) => {
                self.given = self.kept.containers.keys().copied().collect();
                self.news.clear();
                self.waiting.clear();
                self.beat = None;
                tracing::info!(pid = answerer.child.id(), containers = self.given.len(), "answering");
                self.answerer = Some(answerer);
                tell(&[NotifyState::Ready]);
            }
            Err(error) => {
                tracing::error!(
                    because = elbowroom_client::output::one_line(&error),
                    "nobody answers; trying again"
                );
                self.pause = (self.pause * 2).clamp(Duration::from_millis(10), Duration::from_secs(1));
                self.start_at = Instant::now() + self.pause;
            }
        }
    }

    /// Waits: whether a runtime is there, whether there is a signal, and which containers are gone.
    fn wait(&self) -> Result<(bool, bool, Vec<usize>)> {
        let mut until = self.look_at;
        if self.pages.is_asking() {
            until = until.min(Instant::now() + SOON);
        }
        if self.answerer.is_none() {
            until = until.min(self.start_at);
        }
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        // The end of the process that answers is the end of its socket.
        let to = self.answerer.as_ref().map(|answerer| &answerer.to);
        fds.extend(to.map(|to| PollFd::new(to, PollFlags::IN)));
        let runtime = self.kept.socket.as_ref();
        fds.extend(runtime.map(|socket| PollFd::new(socket, PollFlags::IN)));
        let before = fds.len();
        // Nothing but the end of the last process that a filter is for.
        fds.extend(self.kept.containers.values().map(|c| PollFd::new(&c.listener, PollFlags::empty())));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("while waiting for containers"),
        }
        let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let gone = self
            .kept
            .containers
            .keys()
            .zip(&fds[before..])
            .filter(|(_, fd)| ready(fd))
            .map(|(slot, _)| *slot);
        Ok((runtime.is_some() && ready(&fds[before - 1]), ready(&fds[0]), gone.collect()))
    }

    /// Takes a container from a runtime.
    fn take(&mut self) {
        let Some(peer) = self.kept.socket.as_ref().and_then(|socket| socket.accept().ok()) else { return };
        let container = match wire::take(&peer.0) {
            Ok(Some(container)) => container,
            Ok(None) => return,
            Err(error) => {
                return tracing::warn!(
                    because = elbowroom_client::output::one_line(&error),
                    "a runtime is not understood"
                );
            }
        };
        let Some(slot) = (0..MOST).find(|slot| !self.kept.containers.contains_key(slot)) else {
            // Nobody to answer: the calls of this one fail.
            return tracing::error!(id = container.id, most = MOST, "too many containers");
        };
        tracing::info!(id = container.id, pid = container.pid, "a container is kept");
        keep_at_manager(&name(slot, &container), container.listener.as_fd());
        self.kept.record.begin(slot);
        self.kept.containers.insert(slot, container);
        // From here on there are two who have it.
        self.news.insert(slot);
        self.say_news();
    }

    /// Tells the process that answers what it does not know of containers yet.
    fn say_news(&mut self) {
        while let (Some(slot), Some(answerer)) = (self.news.first().copied(), &self.answerer) {
            let Some(container) = self.kept.containers.get(&slot) else { return };
            let to = answerer.to.as_fd();
            let said = match self.given.contains(&slot) {
                true => wire::say_page(to, slot, container),
                false => wire::say_container(to, slot, container),
            };
            if said.is_err() {
                return;
            }
            self.given.insert(slot);
            self.news.remove(&slot);
        }
    }

    /// Looks for the pages of containers that have none, or one that nobody keeps. A container is answered when its page was looked
    /// for once: until then its calls wait.
    fn find_pages(&mut self) {
        for (slot, page) in self.pages.answers() {
            let Some(container) = self.kept.containers.get_mut(&slot) else { continue };
            if page.is_some() || !container.looked {
                self.news.insert(slot);
            }
            container.page = page.map(Arc::new).or(container.page.take());
            container.looked = true;
        }
        self.say_news();
        let now = Instant::now() >= self.look_at;
        let lacks_page = |container: &Container| {
            !container.looked || now && !container.page.as_ref().is_some_and(|page| answerer::is_kept(page))
        };
        let lacking = self.kept.containers.iter().filter(|(_, container)| lacks_page(container));
        for slot in self.pages.in_turn(lacking.map(|(slot, _)| *slot).collect()) {
            self.pages.ask(slot, &self.kept.run_dir, &self.kept.containers[&slot]);
        }
    }

    /// A process that gives no sign although somebody has waited as long is stopped or hangs. One that does leaves to the kernel what
    /// one of its threads does not come back from, so no container can have it killed.
    fn end_who_hangs(&mut self) {
        let now = Instant::now();
        let beats = self.kept.record.beats();
        let (_, still_since) =
            *self.beat.insert(self.beat.filter(|(n, _)| *n == beats).unwrap_or((beats, now)));
        let served: Vec<(usize, PollFd<'_>)> = self
            .kept
            .containers
            .iter()
            .filter(|(slot, container)| container.looked && self.given.contains(slot))
            .map(|(slot, c)| (*slot, PollFd::new(&c.listener, PollFlags::IN)))
            .collect();
        let (slots, mut fds): (Vec<usize>, Vec<PollFd<'_>>) = served.into_iter().unzip();
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        if !fds.is_empty() && poll(&mut fds, Some(&zero)).is_err() {
            return;
        }
        let mut waiting = BTreeMap::new();
        for (slot, fd) in slots.into_iter().zip(&fds) {
            let last = self.kept.record.last(slot);
            if fd.revents().contains(PollFlags::IN) || last.0 != last.1 {
                let before = self.waiting.get(&slot).filter(|(before, _)| *before == last);
                waiting.insert(slot, before.copied().unwrap_or((last, now)));
            }
        }
        let hung = |since: Instant| now.saturating_duration_since(since) >= HUNG;
        let somebody = waiting.values().any(|(_, since)| hung(*since));
        self.waiting = waiting;
        if somebody
            && hung(still_since)
            && let Some(answerer) = self.answerer.as_mut().filter(|answerer| answerer.killed.is_none())
        {
            tracing::error!(
                pid = answerer.child.id(),
                because = "calls wait and it gives no sign",
                "killing the process that answers"
            );
            answerer.kill();
        }
    }

    /// Listens anew where the socket's file is gone: a service manager removes the run directory when the agent is stopped.
    fn keep_listening(&mut self) {
        let now = file_at(&socket(&self.kept.run_dir));
        let is_there = now.is_some() && now == self.bound;
        // Somebody who answers there is another keeper.
        if self.kept.socket.is_none() || is_there || super::is_there(&self.kept.run_dir).is_ok() {
            return;
        }
        let is_news = self.bound.take().is_some();
        match listen(&self.kept.run_dir) {
            Ok(listener) => {
                tracing::warn!(because = "the socket was removed", "listening anew");
                self.bound = file_at(&socket(&self.kept.run_dir));
                self.kept.socket = Some(listener);
                // The next one is given the new socket; this one would carry on with the old.
                if let Some(answerer) = &mut self.answerer {
                    answerer.kill();
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

    /// Whether to end at once: nobody needs us, the service manager holds what we have, or we are told a second time.
    fn told_to_stop(&mut self) -> bool {
        while self.signals.next().is_ok_and(|signal| signal.is_some()) {}
        let again = std::mem::replace(&mut self.stopping, true);
        if self.kept.socket.take().is_some() {
            let _ = std::fs::remove_file(socket(&self.kept.run_dir));
        }
        let left = self.kept.containers.len();
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
        if let Some(answerer) = &mut self.answerer {
            // It would take over where only the socket ended.
            end(&mut answerer.child);
        }
        tracing::info!(containers = self.kept.containers.len(), "stopped");
    }
}

/// Starts a process that answers and gives it everything.
fn start(kept: &Kept) -> Result<Answerer> {
    let (to, from) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&to, Timeout::Send, Some(PATIENCE))?;
    let child = Command::new("/proc/self/exe")
        .arg(VERB)
        .current_dir("/")
        .stdin(Stdio::from(from))
        // Ctrl-C at a terminal is for the holder.
        .process_group(0)
        .spawn()
        .context("starting the process that answers")?;
    let mut answerer = Answerer { child, to, since: Instant::now(), killed: None };
    if let Err(error) = wire::say_all(answerer.to.as_fd(), kept) {
        end(&mut answerer.child);
        return Err(error);
    }
    Ok(answerer)
}

/// Kills it, and waits until it is gone, or could be.
fn end(child: &mut Child) {
    let _ = child.kill();
    let until = Instant::now() + GONE;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_managed() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

fn tell(state: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(state);
}

/// What a listener is called at the service manager: no colon or control character, at most 255 bytes (sd_notify(3)).
fn name(slot: usize, container: &Container) -> String {
    let Container { id, pid, started, .. } = container;
    let plain = |c: char| if c.is_ascii_graphic() && c != ':' { c } else { '-' };
    let started = started.map_or_else(String::new, |Micros(usec)| format!(".{usec}"));
    format!("{STORED}{slot}-{pid}{started}-{}", id.chars().map(plain).take(128).collect::<String>())
}

/// The service manager keeps it too, until its last process ends.
fn keep_at_manager(name: &str, fd: BorrowedFd<'_>) {
    if is_managed() {
        let state = [NotifyState::FdStore, NotifyState::FdName(name)];
        if let Err(error) = sd_notify::notify_with_fds(&state, &[fd]) {
            tracing::warn!(%error, name, "the service manager does not keep this descriptor");
        }
    }
}

/// What a keeper before left with the service manager.
fn stored() -> (Option<Record>, BTreeMap<usize, Container>) {
    let (mut record, mut containers) = (None, BTreeMap::new());
    for (fd, name) in crate::view_server::service::stored() {
        if name == STORED_RECORD {
            record = Record::open(fd).ok();
        } else if let Some((slot, container)) = listener(fd, &name) {
            containers.insert(slot, container);
        }
    }
    (record, containers)
}

fn listener(fd: OwnedFd, name: &str) -> Option<(usize, Container)> {
    let (slot, pid, started, id) = named(name)?;
    let listener = Arc::new(Listener::new(fd).ok()?);
    (slot < MOST)
        .then(|| (slot, Container { id: id.to_owned(), pid, started, listener, page: None, looked: true }))
}

/// What the name of a listener at the service manager says: slot, pid, when that started, identifier.
pub fn named(name: &str) -> Option<(usize, i32, Option<Micros>, &str)> {
    let mut words = name.strip_prefix(STORED)?.splitn(3, '-');
    let (slot, process, id) = (words.next()?.parse().ok()?, words.next()?, words.next()?);
    let (pid, started) = match process.split_once('.') {
        Some((pid, usec)) => (pid, Some(Micros(usec.parse().ok()?))),
        None => (process, None),
    };
    Some((slot, pid.parse().ok()?, started, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_listener_says_whose_it_is() {
        let started = Some(Micros(61_230_000));
        assert_eq!(named("listener-7-4711.61230000-web-1"), Some((7, 4711, started, "web-1")));
        assert_eq!(named("listener-0-4711-a"), Some((0, 4711, None, "a")));
        for bad in [
            "record",
            "listener-",
            "listener-7-4711",
            "listener-7--a",
            "listener-x-1.2-a",
            "listener-7-1.x-a",
        ] {
            assert_eq!(named(bad), None, "{bad}");
        }
    }
}
