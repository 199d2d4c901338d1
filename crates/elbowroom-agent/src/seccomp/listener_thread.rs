//! Answering one container: a thread of its own, for the caller chooses the memory that the answer goes to.
//!
//! Memory may be slow, or never there: a file of a file system that the container serves itself, or of a server that is gone. What
//! writes there waits, and SIGKILL may not end that. So a thread serves one listener and can keep no other waiting. Where it does
//! not come back soon the call that it is at is left to the kernel, and so are those that follow until it is back.

use super::SeccompContainer;
use super::worker::answer;
use elbowroom_linux::process::own_thread_cpu_time;
use elbowroom_linux::seccomp::{NotificationLog, SeccompListener, SeccompNotification};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a call may take before it is left to the kernel.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Of a thread. What it does not touch is address space alone; it touches some 13 KiB.
const STACK_SIZE: usize = 128 << 10;
/// Answering a container takes at most `1 / ANSWER_SHARE` of a CPU,
const ANSWER_SHARE: u32 = 10;
/// and this much more in one go: some thousand calls.
const ANSWER_BURST: Duration = Duration::from_millis(20);
/// Far less than what counts as hanging.
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// What all threads have.
#[derive(Clone)]
pub(super) struct WorkerContext {
    pub(super) record: Arc<NotificationLog>,
    /// `nr_cpu_ids` of the kernel.
    pub(super) nr_cpus: u32,
    /// Hangs up when all are to end.
    pub(super) stop: Arc<OwnedFd>,
}

/// The serving of one listener.
pub(super) struct ListenerThread {
    context: WorkerContext,
    slot: usize,
    container: SeccompContainer,
    shared: Arc<Mutex<ListenerThreadState>>,
    /// `None`: there was none to be had.
    thread: Option<JoinHandle<()>>,
}

/// What a thread and its watcher share. Locked for moments only.
#[derive(Default)]
struct ListenerThreadState {
    page: Option<Arc<OwnedFd>>,
    /// The call that the thread is at.
    current_call: Option<(u64, Instant)>,
    /// The thread is to touch neither listener nor record any more: another process does.
    dismissed: bool,
}

impl ListenerThread {
    /// Begins.
    pub(super) fn new(common: WorkerContext, slot: usize, container: &SeccompContainer) -> Self {
        let container = container.clone_shared();
        let mut serving = Self { context: common, slot, container, shared: Arc::default(), thread: None };
        serving.start();
        serving
    }

    fn start(&mut self) {
        let page = self.container.page.clone();
        self.shared = Arc::new(Mutex::new(ListenerThreadState { page, ..ListenerThreadState::default() }));
        let (common, slot) = (self.context.clone(), self.slot);
        let (container, state) = (self.container.clone_shared(), self.shared.clone());
        let work = move || serve_calls(&common, slot, &container, &state);
        let thread = std::thread::Builder::new().name("elbowroom-serve".into()).stack_size(STACK_SIZE);
        self.thread = thread.spawn(work).ok();
    }

    /// Its listener.
    pub(super) fn listener(&self) -> &SeccompListener {
        &self.container.listener
    }

    /// Its page was looked for.
    pub(super) fn set_page(&mut self, page: Option<Arc<OwnedFd>>) {
        self.container.page.clone_from(&page);
        lock(&self.shared).page = page;
    }

    /// Whether its calls are left to the kernel.
    pub(super) fn leaves_to_kernel(&self) -> bool {
        // A thread that holds the state is at work.
        match self.shared.try_lock() {
            Ok(state) => state.dismissed || self.is_over(),
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Poisoned(_)) => true,
        }
    }

    /// The thread touches neither listener nor record any more. It ends when it is back from where it is.
    pub(super) fn dismiss(&self) {
        lock(&self.shared).dismissed = true;
    }

    /// Looks after it: `false` where no process is left that the filter is for.
    pub(super) fn check(&mut self) -> bool {
        if self.is_over() {
            if is_closed(self.listener()) {
                return false;
            }
            // It came back late, or could not be started.
            self.start();
            return true;
        }
        let state = match self.shared.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let Some(mut state) = state else { return true };
        if let Some((call, since)) = state.current_call
            && !state.dismissed
            && since.elapsed() >= CALL_TIMEOUT
        {
            state.dismissed = true;
            let _ = self.listener().continue_syscall(call);
            self.context.record.answered(self.slot, call);
        }
        // A thread may hang long after its container has ended.
        !(state.dismissed && is_closed(self.listener()))
    }

    /// Leaves the next call to the kernel.
    pub(super) fn continue_next_call(&self) {
        let Ok(notice) = self.listener().recv() else { return };
        self.context.record.taken(self.slot, notice.id);
        let _ = self.listener().continue_syscall(notice.id);
        self.context.record.answered(self.slot, notice.id);
    }

    fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for ListenerThread {
    fn drop(&mut self) {
        self.dismiss();
    }
}

/// Until no process is left that the filter is for, or it is dismissed.
fn serve_calls(
    common: &WorkerContext,
    slot: usize,
    container: &SeccompContainer,
    state: &Mutex<ListenerThreadState>,
) {
    let listener = &*container.listener;
    let mut throttle = AnswerThrottle::default();
    loop {
        // The container's threads wait meanwhile: what answers them is in none of its quotas.
        if let Some(pause) = throttle.pause() {
            let pause = Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: i64::from(pause.subsec_nanos()) };
            let mut fds = [PollFd::new(&common.stop, PollFlags::empty())];
            let _ = poll(&mut fds, Some(&pause));
        }
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(&common.stop, PollFlags::empty())];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        if !fds[0].revents().contains(PollFlags::IN) {
            match fds[0].revents().is_empty() {
                true => continue,
                false => return,
            }
        }
        let Some((notice, page)) = (match next_call(common, slot, listener, state) {
            Ok(taken) => taken,
            Err(Dismissed) => return,
        }) else {
            continue;
        };
        let value = page.and_then(|page| answer(container, &page, &notice, common.nr_cpus));
        let mut state = lock(state);
        if state.dismissed {
            return;
        }
        // A caller that is gone needs no answer.
        let _ = match value {
            Some(value) => listener.respond(notice.id, value),
            None => listener.continue_syscall(notice.id),
        };
        common.record.answered(slot, notice.id);
        state.current_call = None;
    }
}

struct Dismissed;

/// What answering a container takes of a CPU: one part in [`ANSWER_SHARE`], and [`ANSWER_BURST`] in one go.
struct AnswerThrottle {
    since: Instant,
    cpu_at: Duration,
    owed: Duration,
}

impl Default for AnswerThrottle {
    fn default() -> Self {
        Self { since: Instant::now(), cpu_at: own_thread_cpu_time(), owed: Duration::ZERO }
    }
}

impl AnswerThrottle {
    /// How long this thread pauses for what it did since it was asked last.
    fn pause(&mut self) -> Option<Duration> {
        let (now, cpu) = (Instant::now(), own_thread_cpu_time());
        let (elapsed, spent) = (now - self.since, cpu.saturating_sub(self.cpu_at));
        (self.since, self.cpu_at) = (now, cpu);
        self.account(elapsed, spent)
    }

    fn account(&mut self, elapsed: Duration, spent: Duration) -> Option<Duration> {
        self.owed = (self.owed + spent).saturating_sub(elapsed / ANSWER_SHARE);
        let over = self.owed.saturating_sub(ANSWER_BURST);
        (!over.is_zero()).then(|| (over * ANSWER_SHARE).min(MAX_PAUSE))
    }
}

/// The next call and the page to answer it from.
#[expect(clippy::type_complexity, reason = "two things and two ways not to have them")]
fn next_call(
    common: &WorkerContext,
    slot: usize,
    listener: &SeccompListener,
    state: &Mutex<ListenerThreadState>,
) -> Result<Option<(SeccompNotification, Option<Arc<OwnedFd>>)>, Dismissed> {
    let mut state = lock(state);
    if state.dismissed {
        return Err(Dismissed);
    }
    // Does not wait: a call whose caller went after the poll still counts (kernel/seccomp.c, `seccomp_notify_recv`), and no other
    // thread takes calls of this listener.
    let Ok(notice) = listener.recv() else { return Ok(None) };
    common.record.taken(slot, notice.id);
    state.current_call = Some((notice.id, Instant::now()));
    Ok(Some((notice, state.page.clone())))
}

fn is_closed(listener: &SeccompListener) -> bool {
    let mut fds = [PollFd::new(listener, PollFlags::empty())];
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&zero)).is_ok_and(|n| n > 0)
}

fn lock(state: &Mutex<ListenerThreadState>) -> MutexGuard<'_, ListenerThreadState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_that_asks_without_pause_waits_and_one_that_asks_now_and_then_does_not() {
        let (ms, us) = (Duration::from_millis, Duration::from_micros);
        let mut throttle = AnswerThrottle::default();
        assert!((0..1_000).all(|_| throttle.account(ms(1), us(20)).is_none()));
        // Each call takes 20 us, and comes at once.
        let (mut time, mut spent) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..100_000 {
            let pause = throttle.account(us(20), us(20)).unwrap_or_default();
            throttle.account(pause, Duration::ZERO);
            (time, spent) = (time + us(20) + pause, spent + us(20));
        }
        assert!(spent < time / ANSWER_SHARE + ANSWER_BURST + ms(10), "{spent:?} of {time:?}");
    }
}
