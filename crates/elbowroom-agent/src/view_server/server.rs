//! The view server's process: its threads, and their end. It has no state that a successor would miss, so it may be killed at any
//! instruction. [`super::fuse_server`] makes its answers; [`super::triggers`] wakes pollers.

use crate::view_server::answer_threads::{DRAINING, SharedServer};
use crate::view_server::deferred;
use crate::view_server::handover::{Connection, Handover};
use crate::view_server::rights;
use crate::view_server::roles::AgentRole;
use crate::view_server::slots::{ShutdownMode, Slots};
use crate::view_server::{FuseError, abi, session};
use elbowroom_linux::process;
use elbowroom_linux::signal::SignalFd;
use rustix::event::{PollFd, PollFlags};
use std::os::unix::thread::JoinHandleExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// Threads that take requests, by where from. Two for the views, because one may be held up by a slow host file while the other goes on;
/// more would only take turns, since hits never come here.
const ANSWER_THREADS: [Connection; 3] = [Connection::Views, Connection::Views, Connection::Triggers];

/// What a thread of the view server does until it leaves.
type ThreadBody = Box<dyn FnOnce(&SharedServer) -> Result<(), FuseError> + Send>;

/// Runs the server on what the supervisor handed over, until the mount is gone.
///
/// # Errors
/// [`FuseError::AlreadyRunning`] when there is one already, [`FuseError::NotInherited`], [`FuseError::Layout`].
pub fn main() -> Result<(), FuseError> {
    // A server that the whole process group is told to end with must outlast the policy process, which still detaches
    // containers. It ends with the mount, or by SIGKILL, which is what it is made for; or when the views stay for another.
    let signals = crate::view_server::stop_signals()?;
    let _ = rustix::thread::set_name(c"elbowroom-view");
    let handover = Handover::inherit()?;
    let slots = Slots::open(handover.slots.try_clone().map_err(FuseError::io("duplicating", "slots"))?)?;
    handover.acquire_role(AgentRole::Server)?;
    if slots.has_lost_requests() {
        match abort_connections(&handover) {
            // The supervisor finds that out, and makes another.
            Ok(()) => return Ok(()),
            Err(error) => tracing::error!(%error, "readers hang, and views may show old numbers"),
        }
    }
    slots.count_server_start();
    // All that needs root is done.
    rights::become_nobody()?;
    let shared = Arc::new(SharedServer::new(handover, slots));
    let (ended, end) = std::sync::mpsc::channel();
    let (defer, inbox) = std::sync::mpsc::sync_channel(deferred::INBOX);
    let start = |name, run: ThreadBody| {
        let (shared, ended) = (Arc::clone(&shared), ended.clone());
        spawn(name, move || {
            // No thread listens when another ended first and the process is on its way out.
            let _ = ended.send(catch_unwind(AssertUnwindSafe(|| run(&shared))));
        })
    };
    let mut takers = Vec::new();
    for connection in ANSWER_THREADS {
        let defer = defer.clone();
        takers.push(start("answer", Box::new(move |shared| shared.answer_requests(connection, &defer))));
    }
    // The last that sends is a thread that takes requests.
    drop(defer);
    start("defer", Box::new(move |shared| shared.answer_deferred(&inbox)));
    start("triggers", Box::new(SharedServer::watch_triggers));
    let told = Arc::clone(&shared);
    spawn("leave", move || drain_on_handover(&signals, &told.slots, &takers));
    // All threads are there.
    process::forget_start();
    rights::refuse_other_calls()?;
    // Asks again for requests that the server before had read and not answered. Threads are there to take them; this write does not sleep.
    if shared.slots.can_resend() {
        let mut message = Vec::new();
        abi::resend(&mut message);
        for connection in Connection::ALL {
            session::send(shared.handover.connection(connection), &message)?;
        }
    }
    tracing::info!(pid = std::process::id(), "view server ready");
    // One thread that failed is enough: the other one's unanswered request is asked again, and a new server has both. One that
    // leaves has answered all it took, and so must the others.
    for _ in 0..ANSWER_THREADS.len() + 1 {
        match end.recv().expect("this function keeps a sender") {
            Ok(Ok(())) => {}
            // Unmounted, or aborted, which the supervisor finds out for itself: there is nothing left to answer.
            Ok(Err(FuseError::Disconnected)) => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    Ok(())
}

/// Ends the connections, one of which has requests that will not be answered. A reader waits for them in the kernel, and so would the
/// notifier, at the page of such a reader, and refresh no view any more.
fn abort_connections(handover: &Handover) -> Result<(), FuseError> {
    for connection in Connection::ALL {
        let lines = session::mounts_on(&handover.options.mount_point(connection))?;
        let ours = lines.last().filter(|line| line.is_ours()).ok_or(FuseError::Disconnected)?;
        session::abort(ours.minor)?;
    }
    tracing::warn!(
        because = "a view server died with requests that this kernel (before Linux 6.9) cannot ask again",
        "aborted the views' connections"
    );
    Ok(())
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    started.expect("a process that just started can have a thread")
}

/// Waits for the word that the views stay for another agent, then sees to it that the threads that answer take nothing more. So
/// also a kernel that cannot queue requests again (before Linux 6.9) loses none over a restart.
fn drain_on_handover(signals: &SignalFd, slots: &Slots, threads: &[JoinHandle<()>]) {
    loop {
        let mut polled = [PollFd::new(signals, PollFlags::IN)];
        let _ = rustix::event::poll(&mut polled, None);
        if signals.next().is_ok_and(|signal| signal.is_some())
            && slots.shutdown_mode() == ShutdownMode::KeepViews
        {
            break;
        }
    }
    extern "C" fn nothing(_: libc::c_int) {}
    DRAINING.store(true, Ordering::SeqCst);
    // SAFETY: all of `action` that matters is set, the rest is zero, which is an empty mask and no flags; the handler does
    // nothing, so it may run anywhere. It is there to make a read(2) return.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as libc::sighandler_t;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
    // More than once: a thread may have looked at the flag just before it was set, and begin to read after the signal.
    while threads.iter().any(|thread| !thread.is_finished()) {
        for thread in threads.iter().filter(|thread| !thread.is_finished()) {
            // SAFETY: a thread whose handle is there was not joined or detached, so its id is good, also after its end. It is a
            // number to std and to glibc, and a pointer to musl.
            unsafe { libc::pthread_kill(thread.as_pthread_t() as _, libc::SIGUSR1) };
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
