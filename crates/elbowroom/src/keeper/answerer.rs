//! The process that answers. It waits for nobody: what it does not know at once, the kernel answers.

use super::wire::{self, Message};
use super::{Container, Kept, holder};
use anyhow::{Context, Result};
use elbowroom_core::cpuset::CpuSet;
use elbowroom_core::page::calls::{self, HostInfo};
use elbowroom_core::page::mapped::{self, MappedView, VIEW_WORDS};
use elbowroom_host::seccomp::{ARCH, CALLS, Listener, Notice};
use elbowroom_host::timer;
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

/// Bytes of a page up to the end of its second view.
const PAGE: usize = 64 + 2 * VIEW_WORDS * 8;
/// What the holder's descriptor has among the events: no slot.
const HOLDER: u64 = u64::MAX;

/// Answers until the holder ends it. Becomes the holder where that dies.
pub(crate) fn main() -> Result<()> {
    let holder = std::io::stdin();
    let mut kept = wire::begin(holder.as_fd()).context("taking over from the holder")?;
    let nr_cpus = nr_cpus()?;
    let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let add = |fd: BorrowedFd<'_>, n: u64| {
        epoll::add(&events, fd, epoll::EventData::new_u64(n), epoll::EventFlags::IN)
    };
    add(holder.as_fd(), HOLDER)?;
    // Answers of a predecessor are on nobody's mind any more once these containers are taken over.
    kept.record.settle();
    let mut ready = Vec::with_capacity(64);
    loop {
        ready.clear();
        match epoll::wait(&events, rustix::buffer::spare_capacity(&mut ready), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        for event in &ready {
            let (slot, flags) = (event.data.u64(), event.flags);
            if slot == HOLDER {
                match wire::hear(holder.as_fd())? {
                    Some((message, fds)) => {
                        let (before, slot) = take(&mut kept, message, fds);
                        if let Some(before) = before {
                            forget(&events, &before);
                        }
                        let now = slot.and_then(|slot| Some((slot, kept.containers.get(&slot)?)));
                        if let Some((slot, container)) = now.filter(|(_, container)| container.looked) {
                            match add(container.listener.as_fd(), slot as u64) {
                                Ok(()) | Err(Errno::EXIST) => {}
                                Err(errno) => return Err(errno.into()),
                            }
                        }
                    }
                    None => return holder::succeed(kept),
                }
                continue;
            }
            let slot = slot as usize;
            let Some(container) = kept.containers.get(&slot) else { continue };
            if flags.contains(epoll::EventFlags::IN) {
                serve(&kept, slot, container, nr_cpus);
            } else if let Some(container) = kept.containers.remove(&slot) {
                // Nobody is left that this filter is for.
                forget(&events, &container);
            }
        }
    }
}

/// A listener that others hold open too, the service manager among them, would go on to tell of its end as that of whoever has its
/// slot next.
fn forget(events: &OwnedFd, container: &Container) {
    let _ = epoll::delete(events, &container.listener);
}

/// What the holder says: whose slot is another's now, and the slot that it is about.
fn take(kept: &mut Kept, message: Message, fds: Vec<OwnedFd>) -> (Option<Container>, Option<usize>) {
    let mut fds = fds.into_iter();
    match message {
        Message::Begin { .. } => (None, None),
        Message::Whole => {
            // Who has this name could carry on alone.
            let _ = rustix::thread::set_name(c"elbowroom-answer");
            (None, None)
        }
        Message::Page { slot } => {
            if let Some(container) = kept.containers.get_mut(&slot) {
                (container.page, container.looked) = (fds.next(), true);
            }
            (None, Some(slot))
        }
        Message::Container { slot, id, pid, started, looked } => {
            let Some(listener) = fds.next().and_then(|fd| Listener::new(fd).ok()) else {
                return (None, None);
            };
            kept.record.recover(slot, &listener);
            let container = Container { id, pid, started, listener, page: fds.next(), looked };
            (kept.containers.insert(slot, container), Some(slot))
        }
    }
}

fn serve(kept: &Kept, slot: usize, container: &Container, nr_cpus: u32) {
    let Ok(notice) = container.listener.next() else { return };
    kept.record.taken(slot, notice.id);
    let listener = &container.listener;
    // Whoever is gone needs no answer.
    let _ = match answer(container, &notice, nr_cpus) {
        Some(value) => listener.give(notice.id, value),
        None => listener.leave(notice.id),
    };
    kept.record.answered();
}

/// What the call gives, once that is in the caller's memory; `None` where the kernel is to answer.
fn answer(container: &Container, notice: &Notice, nr_cpus: u32) -> Option<i64> {
    if ARCH != Some(notice.arch) {
        return None;
    }
    let view = view(container.page.as_ref()?)?;
    let [(_, affinity), (_, sysinfo)] = CALLS;
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
            let shown = calls::affinity(&listener.affinity(notice)?, &view, turn(&container.id))?;
            let bytes = calls::mask_bytes(&shown, nr_cpus);
            let bytes = &bytes[..bytes.len().min(len as usize)];
            listener.write(notice, at, bytes).then_some(bytes.len() as i64)
        }
        nr if nr == sysinfo => {
            let host = rustix::system::sysinfo();
            let unit = u64::from(host.mem_unit.max(1));
            let bytes = |n: u64| n.saturating_mul(unit);
            let host =
                HostInfo { free: bytes(host.freeram), swap: [bytes(host.totalswap), bytes(host.freeswap)] };
            listener
                .write(notice, notice.args[0], &calls::sysinfo(&view, &host, timer::now_boot()))
                .then_some(0)
        }
        _ => None,
    }
}

/// What the page says now; `None` where nobody keeps it.
fn view(page: &OwnedFd) -> Option<MappedView> {
    let mut bytes = [0; PAGE];
    let mut now = [0; 4];
    for _ in 0..3 {
        let got = rustix::io::pread(page, &mut bytes, 0).ok()?;
        // The generation again: a view that was copied is whole if it did not move.
        rustix::io::pread(page, &mut now, 16).ok()?;
        if got == PAGE && bytes[16..20] == now {
            return mapped::read(&bytes).filter(|view| view.cpus > 0);
        }
    }
    None
}

/// Whether somebody keeps a page.
pub(super) fn is_kept(page: &OwnedFd) -> bool {
    view(page).is_some()
}

/// A number that containers differ in.
fn turn(id: &str) -> u64 {
    crate::fnv::fnv1a(id.as_bytes())
}

/// `nr_cpu_ids` of the kernel: one more than the highest possible CPU.
fn nr_cpus() -> Result<u32> {
    const PATH: &str = "/sys/devices/system/cpu/possible";
    let text = std::fs::read_to_string(PATH).context(PATH)?;
    let possible: CpuSet = text.parse().with_context(|| format!("while reading {PATH}"))?;
    Ok(possible.iter().last().map_or(1, |cpu| cpu + 1))
}
