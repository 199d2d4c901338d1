//! Answering one container: a thread of its own, for whoever asks chooses the memory that the answer goes to.
//!
//! Memory may be slow, or never there: a file of a file system that the container serves itself, or of a server that is gone. What
//! writes there waits, and SIGKILL may not end that. So a thread serves one listener and can keep nobody else waiting. Where it does
//! not come back soon the call that it is at is left to the kernel, and so are those that follow until it is back.

use super::Container;
use super::answerer::answer;
use elbowroom_linux::seccomp::{Listener, Notice, Record};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a call may take before it is left to the kernel.
const SOON: Duration = Duration::from_secs(1);
/// Of a thread. What it does not touch is address space alone; it touches some 13 KiB.
const STACK: usize = 128 << 10;

/// What all threads have.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) record: Arc<Record>,
    /// `nr_cpu_ids` of the kernel.
    pub(super) nr_cpus: u32,
    /// Hangs up when all are to end.
    pub(super) stop: Arc<OwnedFd>,
}

/// The serving of one listener.
pub(super) struct Serving {
    common: Common,
    slot: usize,
    container: Container,
    desk: Arc<Mutex<Desk>>,
    /// `None`: there was none to be had.
    thread: Option<JoinHandle<()>>,
}

/// What a thread and those who watch it share. Held for moments only.
#[derive(Default)]
struct Desk {
    page: Option<Arc<OwnedFd>>,
    /// The call that the thread is at.
    at: Option<(u64, Instant)>,
    /// The thread is to touch neither listener nor record any more: somebody else does.
    dismissed: bool,
}

impl Serving {
    /// Begins.
    pub(super) fn new(common: Common, slot: usize, container: &Container) -> Self {
        let container = container.share();
        let mut serving = Self { common, slot, container, desk: Arc::default(), thread: None };
        serving.start();
        serving
    }

    fn start(&mut self) {
        let page = self.container.page.clone();
        self.desk = Arc::new(Mutex::new(Desk { page, ..Desk::default() }));
        let (common, slot) = (self.common.clone(), self.slot);
        let (container, desk) = (self.container.share(), self.desk.clone());
        let work = move || serve(&common, slot, &container, &desk);
        let thread = std::thread::Builder::new().name("elbowroom-serve".into()).stack_size(STACK);
        self.thread = thread.spawn(work).ok();
    }

    /// Its listener.
    pub(super) fn listener(&self) -> &Listener {
        &self.container.listener
    }

    /// Its page was looked for.
    pub(super) fn set_page(&mut self, page: Option<Arc<OwnedFd>>) {
        self.container.page.clone_from(&page);
        lock(&self.desk).page = page;
    }

    /// Whether its calls are left to the kernel.
    pub(super) fn is_left(&self) -> bool {
        // A thread that is at the desk is at work.
        match self.desk.try_lock() {
            Ok(desk) => desk.dismissed || self.is_over(),
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Poisoned(_)) => true,
        }
    }

    /// The thread touches neither listener nor record any more. It ends when it is back from where it is.
    pub(super) fn dismiss(&self) {
        lock(&self.desk).dismissed = true;
    }

    /// Looks after it: `false` where nobody is left that the filter is for.
    pub(super) fn look(&mut self) -> bool {
        if self.is_over() {
            if has_hung_up(self.listener()) {
                return false;
            }
            // It came back late, or could not be started.
            self.start();
            return true;
        }
        let desk = match self.desk.try_lock() {
            Ok(desk) => Some(desk),
            Err(TryLockError::Poisoned(desk)) => Some(desk.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let Some(mut desk) = desk else { return true };
        if let Some((call, since)) = desk.at
            && !desk.dismissed
            && since.elapsed() >= SOON
        {
            desk.dismissed = true;
            let _ = self.listener().leave(call);
            self.common.record.answered(self.slot, call);
        }
        // A thread that hangs may do so long after whom it served.
        !(desk.dismissed && has_hung_up(self.listener()))
    }

    /// Leaves the next call to the kernel.
    pub(super) fn leave(&self) {
        let Ok(notice) = self.listener().next() else { return };
        self.common.record.taken(self.slot, notice.id);
        let _ = self.listener().leave(notice.id);
        self.common.record.answered(self.slot, notice.id);
    }

    fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.dismiss();
    }
}

/// Until nobody is left that the filter is for, or it is dismissed.
fn serve(common: &Common, slot: usize, container: &Container, desk: &Mutex<Desk>) {
    let listener = &*container.listener;
    loop {
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
        let Some((notice, page)) = (match take(common, slot, listener, desk) {
            Ok(taken) => taken,
            Err(Dismissed) => return,
        }) else {
            continue;
        };
        let value = page.and_then(|page| answer(container, &page, &notice, common.nr_cpus));
        let mut desk = lock(desk);
        if desk.dismissed {
            return;
        }
        // Whoever is gone needs no answer.
        let _ = match value {
            Some(value) => listener.give(notice.id, value),
            None => listener.leave(notice.id),
        };
        common.record.answered(slot, notice.id);
        desk.at = None;
    }
}

struct Dismissed;

/// The next call and the page to answer it from.
#[expect(clippy::type_complexity, reason = "two things and two ways not to have them")]
fn take(
    common: &Common,
    slot: usize,
    listener: &Listener,
    desk: &Mutex<Desk>,
) -> Result<Option<(Notice, Option<Arc<OwnedFd>>)>, Dismissed> {
    let mut desk = lock(desk);
    if desk.dismissed {
        return Err(Dismissed);
    }
    // Does not wait: a call whose caller went after the poll still counts (kernel/seccomp.c, `seccomp_notify_recv`), and nobody
    // else takes any.
    let Ok(notice) = listener.next() else { return Ok(None) };
    common.record.taken(slot, notice.id);
    desk.at = Some((notice.id, Instant::now()));
    Ok(Some((notice, desk.page.clone())))
}

fn has_hung_up(listener: &Listener) -> bool {
    let mut fds = [PollFd::new(listener, PollFlags::empty())];
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&zero)).is_ok_and(|n| n > 0)
}

fn lock(desk: &Mutex<Desk>) -> MutexGuard<'_, Desk> {
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}
