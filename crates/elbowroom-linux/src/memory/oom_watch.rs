//! Kills for memory as they happen: the kernel tells of them by a file, and the counter beside it says how many there were.
//!
//! On v2 `memory.events` is watched with inotify (mm/memcontrol.c, `memcg_memory_event`). On v1 each container has an eventfd,
//! which is registered in `cgroup.event_control` for `memory.oom_control` (mm/memcontrol-v1.c, `memcg1_oom_notify`). The kernel
//! signals it before it kills, and also when the cgroup is removed, so the counter is looked at for a moment. A counter is gone
//! with its cgroup, which engines remove some ten milliseconds after the kill. No container makes the agent look at the counters
//! of others, however often the kernel kills in it.

use crate::cgroup::{CgroupController, CgroupLayout, CgroupVersion};
use crate::parse::keyed_number;
use elbowroom_types::id::CgroupId;
use elbowroom_types::unit::Bytes;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::inotify;
use rustix::io::Errno;
use rustix::time::Timespec;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Which containers the kernel may have killed in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OomNotice {
    /// Any of them: notices were lost.
    pub any: bool,
    /// These.
    pub groups: Vec<CgroupId>,
}

/// What a container's files say of kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomCounter {
    /// Processes that the kernel killed for memory since the cgroup was made: `oom_kill`.
    pub kills: u64,
    /// How often its own limit, or one below it, was why: `oom`. v1 does not count that.
    pub at_limit: Option<u64>,
    /// The most memory that was charged: v1 `memory.max_usage_in_bytes`, v2 `memory.peak` (since Linux 5.19).
    pub peak: Option<Bytes>,
}

/// What the inotify instance is called among the containers; an inode is no such number.
const INOTIFY: u64 = u64::MAX;

/// Waits for kills in containers.
#[derive(Debug)]
pub struct OomWatch {
    layout: CgroupLayout,
    /// Where the eventfds and the inotify instance wait.
    epoll: Option<OwnedFd>,
    eventfds: HashMap<CgroupId, OwnedFd>,
    inotify: Option<OwnedFd>,
    watches: HashMap<i32, CgroupId>,
}

impl OomWatch {
    /// Watches nothing yet. Without descriptors [`Self::add`] says that a container cannot be watched.
    pub fn new(layout: CgroupLayout) -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).ok();
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).ok();
        let inotify = inotify.filter(|inotify| {
            let data = epoll::EventData::new_u64(INOTIFY);
            let waits = |epoll| epoll::add(epoll, inotify, data, epoll::EventFlags::IN).is_ok();
            epoll.as_ref().is_some_and(waits)
        });
        Self { layout, epoll, eventfds: HashMap::new(), inotify, watches: HashMap::new() }
    }

    /// Readable when [`Self::drain`] has something to say; `None` where it never has.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.epoll.as_ref().map(AsFd::as_fd)
    }

    /// Watches the container at this path; false where the kernel refuses that, and its counter has to be looked at now and then.
    pub fn add(&mut self, id: CgroupId, path: &str) -> bool {
        let path = Path::new(path.trim_start_matches('/'));
        let Some((version, dir)) = self.layout.dir(CgroupController::Memory, path) else { return false };
        match version {
            CgroupVersion::V1 => {
                let (Ok(control), Some(eventfd)) = (dir.open("memory.oom_control"), self.eventfd(id)) else {
                    return false;
                };
                let line = format!("{} {}", eventfd.as_raw_fd(), control.as_raw_fd());
                let registered = std::fs::write(dir.path().join("cgroup.event_control"), line).is_ok();
                if registered {
                    self.eventfds.insert(id, eventfd);
                }
                registered
            }
            CgroupVersion::V2 => {
                let Some(fd) = &self.inotify else { return false };
                let file = dir.path().join("memory.events");
                let watch = inotify::add_watch(fd, file, inotify::WatchFlags::MODIFY);
                watch.map(|watch| self.watches.insert(watch, id)).is_ok()
            }
        }
    }

    /// One that tells of this container: each signal is an event of its own (edge-triggered), so none has to be read.
    fn eventfd(&self, id: CgroupId) -> Option<OwnedFd> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        let data = epoll::EventData::new_u64(id.0);
        epoll::add(self.epoll.as_ref()?, &eventfd, data, epoll::EventFlags::IN | epoll::EventFlags::ET)
            .ok()?;
        Some(eventfd)
    }

    /// The container is gone.
    pub fn remove(&mut self, id: CgroupId) {
        self.eventfds.remove(&id);
        let Some(fd) = &self.inotify else { return };
        self.watches.retain(|watch, of| {
            if *of == id {
                // It may have gone with its file.
                let _ = inotify::remove_watch(fd, *watch);
            }
            *of != id
        });
    }

    /// What the kernel told since the last call. Does not wait.
    pub fn drain(&mut self) -> OomNotice {
        let mut notice = OomNotice::default();
        // More than fit are told of by the next call.
        let mut events = [MaybeUninit::uninit(); 64];
        let Some(epoll) = &self.epoll else { return notice };
        let Ok((events, _)) = epoll::wait(epoll, &mut events[..], Some(&Timespec::default())) else {
            return notice;
        };
        let told = || events.iter().map(|event| { event.data }.u64());
        notice.groups.extend(told().filter(|of| *of != INOTIFY).map(CgroupId));
        if let Some(fd) = self.inotify.as_ref().filter(|_| told().any(|of| of == INOTIFY)) {
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut reader = inotify::Reader::new(fd, &mut buffer);
            loop {
                match reader.next() {
                    Ok(event) if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) => {
                        notice.any = true;
                    }
                    Ok(event) => notice.groups.extend(self.watches.get(&event.wd())),
                    Err(Errno::INTR) => {}
                    Err(_) => break,
                }
            }
        }
        notice
    }

    /// What the files of the container at this path say; `None` where it is gone, or says nothing of kills.
    pub fn counter(&self, path: &str) -> Option<OomCounter> {
        let path = Path::new(path.trim_start_matches('/'));
        let (version, dir) = self.layout.dir(CgroupController::Memory, path)?;
        let (events, peak) = match version {
            CgroupVersion::V1 => ("memory.oom_control", "memory.max_usage_in_bytes"),
            CgroupVersion::V2 => ("memory.events", "memory.peak"),
        };
        let text = dir.read(events).ok()??;
        let count = |key| keyed_number(text.as_bytes(), key);
        Some(OomCounter {
            kills: count("oom_kill")?,
            at_limit: count("oom"),
            peak: dir.number(peak).ok().flatten().map(Bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;
    use crate::root::Root;

    const V2: &str = "\
-- proc/self/mountinfo --
30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
-- sys/fs/cgroup/cgroup.controllers --
cpu io memory
-- sys/fs/cgroup/web/memory.events --
max 5
oom 1
oom_kill 2
-- sys/fs/cgroup/web/memory.peak --
4096
-- sys/fs/cgroup/old/memory.events --
oom_kill 0
";

    #[test]
    fn a_signal_names_its_container_once_and_no_other() {
        let host = Fixture::new(V2).unwrap();
        let mut watch = OomWatch::new(CgroupLayout::detect(&Root::at(host.path()).unwrap()).unwrap());
        for id in [CgroupId(3), CgroupId(4)] {
            let eventfd = watch.eventfd(id).unwrap();
            watch.eventfds.insert(id, eventfd);
        }
        assert_eq!(watch.drain(), OomNotice::default());
        for _ in 0..2 {
            rustix::io::write(&watch.eventfds[&CgroupId(4)], &1u64.to_ne_bytes()).unwrap();
            assert_eq!(watch.drain(), OomNotice { any: false, groups: vec![CgroupId(4)] });
            assert_eq!(watch.drain(), OomNotice::default());
        }
        rustix::io::write(&watch.eventfds[&CgroupId(3)], &1u64.to_ne_bytes()).unwrap();
        watch.remove(CgroupId(3));
        assert_eq!(watch.drain(), OomNotice::default());
    }

    #[test]
    fn a_container_that_the_kernel_tells_of_is_named_and_its_counter_read() {
        let host = Fixture::new(V2).unwrap();
        let layout = CgroupLayout::detect(&Root::at(host.path()).unwrap()).unwrap();
        let mut watch = OomWatch::new(layout);
        assert_eq!(
            watch.counter("/web"),
            Some(OomCounter { kills: 2, at_limit: Some(1), peak: Some(Bytes(4096)) })
        );
        assert_eq!(watch.counter("/old"), Some(OomCounter { kills: 0, at_limit: None, peak: None }));
        assert_eq!(watch.counter("/none"), None);
        // The fixture's mount point is a path of its own root.
        let file = host.path().join("sys/fs/cgroup/web/memory.events");
        let fd = watch.inotify.as_ref().unwrap();
        let wd = inotify::add_watch(fd, &file, inotify::WatchFlags::MODIFY).unwrap();
        watch.watches.insert(wd, CgroupId(7));
        assert_eq!(watch.drain(), OomNotice::default());
        std::fs::write(&file, "oom_kill 3\n").unwrap();
        let notice = watch.drain();
        assert!(!notice.any && notice.groups.contains(&CgroupId(7)), "{notice:?}");
        watch.remove(CgroupId(7));
        std::fs::write(&file, "oom_kill 4\n").unwrap();
        assert_eq!(watch.drain(), OomNotice::default());
    }
}
