//! The process that answers. Its first thread waits for no container: it hears the supervisor and gives signs of life. It leaves to the
//! kernel the calls that answering threads do not come back from (`listener_thread`).

use super::listener_thread::{ListenerThread, WorkerContext};
use super::wire::{self, WorkerMessage};
use super::{HandoverState, SeccompContainer, supervisor};
use anyhow::{Context, Result};
use elbowroom_linux::bounded;
use elbowroom_linux::seccomp::{ARCH, SYSCALLS, SeccompListener, SeccompNotification};
use elbowroom_linux::signal::SignalFd;
use elbowroom_linux::timer;
use elbowroom_types::cpuset::CpuSet;
use elbowroom_view::pages::mapped::{MappedView, VIEW_WORDS};
use elbowroom_view::pages::syscalls::HostSysinfo;
use elbowroom_view::pages::{mapped, syscalls};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of a page up to the end of its second view.
const PAGE_LEN: usize = 64 + 2 * VIEW_WORDS * 8;

/// Answers until the supervisor ends it. Becomes the supervisor where that dies.
pub fn main() -> Result<()> {
    let supervisor_socket = std::io::stdin();
    // A supervisor that was a worker may have a thread that does not end with it and keeps its socket open: this is heard all the same.
    let died = SignalFd::block(&[Signal::USR1]).context("blocking a signal")?;
    rustix::process::set_parent_process_death_signal(Some(Signal::USR1))?;
    let mut kept =
        wire::receive_handover(supervisor_socket.as_fd()).context("taking over from the supervisor")?;
    let (stop, go_on) = pipe_with(PipeFlags::CLOEXEC)?;
    let common = WorkerContext { record: kept.record.clone(), nr_cpus: nr_cpus()?, stop: Arc::new(stop) };
    let mut servings: BTreeMap<usize, ListenerThread> = BTreeMap::new();
    let mut look_at = Instant::now();
    loop {
        let left: Vec<usize> =
            servings.iter().filter(|(_, s)| s.leaves_to_kernel()).map(|(slot, _)| *slot).collect();
        let timeout = look_at.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let mut fds = vec![PollFd::new(&supervisor_socket, PollFlags::IN), PollFd::new(&died, PollFlags::IN)];
        let before = fds.len();
        fds.extend(left.iter().map(|slot| PollFd::new(servings[slot].listener(), PollFlags::IN)));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let told = !fds[0].revents().is_empty();
        let waits = |fd: &PollFd<'_>| fd.revents().contains(PollFlags::IN);
        let has_died = !fds[1].revents().is_empty();
        for (slot, fd) in left.iter().zip(&fds[before..]) {
            if waits(fd) {
                servings[slot].continue_next_call();
            } else if !fd.revents().is_empty() {
                // Hung up.
                look_at = Instant::now();
            }
        }
        if Instant::now() >= look_at {
            look_at = Instant::now() + supervisor::POLL_INTERVAL;
            kept.record.heartbeat();
            servings.retain(|slot, serving| {
                let is_there = serving.check();
                if !is_there {
                    kept.containers.remove(slot);
                }
                is_there
            });
        }
        if told || has_died {
            match told.then(|| wire::receive_message(supervisor_socket.as_fd())).transpose()?.flatten() {
                Some((message, fds)) => {
                    let slot = apply_message(&mut kept, &mut servings, message, fds);
                    let now = slot.and_then(|slot| Some((slot, kept.containers.get(&slot)?)));
                    if let Some((slot, container)) = now.filter(|(_, container)| container.page_checked) {
                        servings
                            .entry(slot)
                            .and_modify(|serving| serving.set_page(container.page.clone()))
                            .or_insert_with(|| ListenerThread::new(common.clone(), slot, container));
                    }
                }
                None => {
                    // The next worker leaves to the kernel the calls that these threads are at.
                    drop((servings, go_on, common));
                    return supervisor::take_over(kept);
                }
            }
        }
    }
}

/// What the supervisor says: the slot that it is about.
fn apply_message(
    kept: &mut HandoverState,
    servings: &mut BTreeMap<usize, ListenerThread>,
    message: WorkerMessage,
    fds: Vec<OwnedFd>,
) -> Option<usize> {
    let mut fds = fds.into_iter();
    match message {
        WorkerMessage::Begin { .. } => None,
        WorkerMessage::Whole => {
            // A worker with this name has all that it needs to carry on alone.
            let _ = rustix::thread::set_name(c"elbowroom-worker");
            None
        }
        WorkerMessage::Page { slot } => {
            let container = kept.containers.get_mut(&slot)?;
            (container.page, container.page_checked) = (fds.next().map(Arc::new), true);
            Some(slot)
        }
        WorkerMessage::Container { slot, id, pid, started, looked } => {
            let listener = Arc::new(SeccompListener::new(fds.next()?).ok()?);
            // The container that had the slot is gone.
            servings.remove(&slot);
            kept.record.recover(slot, &listener);
            let page = fds.next().map(Arc::new);
            kept.containers
                .insert(slot, SeccompContainer { id, pid, started, listener, page, page_checked: looked });
            Some(slot)
        }
    }
}

/// What the call gives, once that is in the caller's memory; `None` where the kernel is to answer.
pub(super) fn answer(
    container: &SeccompContainer,
    page: &OwnedFd,
    notice: &SeccompNotification,
    nr_cpus: u32,
) -> Option<i64> {
    if ARCH != Some(notice.arch) {
        return None;
    }
    let view = read_view(page)?;
    let [(_, affinity), (_, sysinfo)] = SYSCALLS;
    let listener = &container.listener;
    match i64::from(notice.nr) {
        nr if nr == affinity => {
            let [pid, len, at, ..] = notice.args;
            // Arguments are an int and an unsigned int (`kernel/sched/syscalls.c`); what it refuses, it shall refuse. Other
            // processes' masks are theirs.
            let (pid, len) = (pid as i32, len as u32);
            if pid != 0 || !len.is_multiple_of(8) || u64::from(len) * 8 < u64::from(nr_cpus) {
                return None;
            }
            let shown = syscalls::affinity(&listener.affinity(notice)?, &view, id_hash(&container.id))?;
            let bytes = syscalls::mask_bytes(&shown, nr_cpus);
            let bytes = &bytes[..bytes.len().min(len as usize)];
            listener.write(notice, at, bytes).then_some(bytes.len() as i64)
        }
        nr if nr == sysinfo => {
            let host = rustix::system::sysinfo();
            let unit = u64::from(host.mem_unit.max(1));
            let bytes = |n: u64| n.saturating_mul(unit);
            let host = HostSysinfo {
                free: bytes(host.freeram),
                swap: [bytes(host.totalswap), bytes(host.freeswap)],
            };
            listener
                .write(notice, notice.args[0], &syscalls::sysinfo(&view, &host, timer::now_boot()))
                .then_some(0)
        }
        _ => None,
    }
}

/// What the page says now; `None` for a page without a view, such as a detached container's.
fn read_view(page: &OwnedFd) -> Option<MappedView> {
    let mut bytes = [0; PAGE_LEN];
    let mut now = [0; 4];
    for _ in 0..3 {
        let got = rustix::io::pread(page, &mut bytes, 0).ok()?;
        // The generation again: a view that was copied is whole if it did not move.
        rustix::io::pread(page, &mut now, 16).ok()?;
        if got == PAGE_LEN && bytes[16..20] == now {
            return mapped::read(&bytes).filter(|view| view.cpus > 0);
        }
    }
    None
}

/// Whether a page has a view.
pub(super) fn is_page_live(page: &OwnedFd) -> bool {
    read_view(page).is_some()
}

/// A number that containers differ in.
fn id_hash(id: &str) -> u64 {
    crate::fnv::fnv1a(id.as_bytes())
}

/// `nr_cpu_ids` of the kernel: one more than the highest possible CPU.
fn nr_cpus() -> Result<u32> {
    const PATH: &str = "/sys/devices/system/cpu/possible";
    let text = bounded::file_text(PATH, bounded::KERNEL_FILE).context(PATH)?;
    let possible: CpuSet = text.parse().with_context(|| format!("while reading {PATH}"))?;
    Ok(possible.iter().last().map_or(1, |cpu| cpu + 1))
}
