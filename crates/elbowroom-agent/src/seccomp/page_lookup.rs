//! The view page of a container: asked for at its agent, beside everything else, for an agent may be slow or not there.

use super::SeccompContainer;
use elbowroom_client::api::{ControlRequest, ControlResponse};
use elbowroom_client::control as client;
use elbowroom_client::control::ControlClient;
use elbowroom_linux::process;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an agent may take. A container's first call waits as long.
const AGENT_TIMEOUT: Duration = Duration::from_millis(300);
/// Time between two questions about the same container.
const RETRY_INTERVAL: Duration = Duration::from_secs(3);
/// Where the agent keeps pages, below its run directory.
const PAGES_DIR: &str = "pages";
/// Most cgroups around a container's process that the agent is asked about: a container can make as many in itself as it likes.
const MAX_CGROUPS: usize = 64;
/// Questions under way at once.
const MAX_LOOKUPS: usize = 4;

/// Questions that are under way, and when each container was last asked about.
#[derive(Default)]
pub(super) struct PageLookups {
    in_flight: BTreeMap<usize, JoinHandle<Option<OwnedFd>>>,
    last_lookup: BTreeMap<usize, Instant>,
}

impl PageLookups {
    /// Whether answers are awaited.
    pub(super) fn has_pending(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// These containers in the order in which to ask about them, the one that waits longest first: not all can be asked about at once.
    pub(super) fn longest_wait_first(&self, mut slots: Vec<usize>) -> Vec<usize> {
        slots.sort_by_key(|slot| self.last_lookup.get(slot));
        slots
    }

    /// Asks about a container, unless it was just asked about or too many are. One that was never looked for is just being made.
    pub(super) fn start_lookup(&mut self, slot: usize, run_dir: &Path, container: &SeccompContainer) {
        let soon = self.last_lookup.get(&slot).is_some_and(|at| at.elapsed() < RETRY_INTERVAL);
        if soon || self.in_flight.contains_key(&slot) || self.in_flight.len() >= MAX_LOOKUPS {
            return;
        }
        self.last_lookup.insert(slot, Instant::now());
        let run_dir = run_dir.to_owned();
        let (pid, started, new) = (container.pid, container.started, !container.page_checked);
        let ask = move || {
            let page = match new {
                true => prepare_page(&run_dir, pid),
                false => attached_page(&run_dir, pid),
            };
            // The agent knows it by its process alone. A process that is the same afterwards was the same when the agent looked. The
            // identifier would not tell: containers that the configuration names have another one there.
            page.filter(|_| started.is_none() || process::start_time(pid) == started)
        };
        self.in_flight.insert(slot, std::thread::spawn(move || open_page(&ask()?)));
    }

    /// The answers that have come: `None` where there is no page.
    pub(super) fn take_finished(&mut self) -> Vec<(usize, Option<OwnedFd>)> {
        let done: Vec<usize> =
            self.in_flight.iter().filter(|(_, asking)| asking.is_finished()).map(|(slot, _)| *slot).collect();
        let answer =
            |slot| (slot, self.in_flight.remove(&slot).and_then(|asking| asking.join().ok().flatten()));
        done.into_iter().map(answer).collect()
    }

    /// The container is gone.
    pub(super) fn remove(&mut self, slot: usize) {
        self.last_lookup.remove(&slot);
        self.in_flight.remove(&slot);
    }
}

/// Of a container that is just being made: the hook has its view prepared, and so do we.
fn prepare_page(run_dir: &Path, pid: i32) -> Option<PathBuf> {
    client::request_view(run_dir, pid, AGENT_TIMEOUT).ok()?.page
}

/// Of one that runs: only where its view is in it, and without a change of that.
fn attached_page(run_dir: &Path, pid: i32) -> Option<PathBuf> {
    let mut agent = ControlClient::connect_with_timeout(run_dir, AGENT_TIMEOUT).ok()?;
    let paths = process::cgroup_paths(pid);
    // The agent also takes a name, or the beginning of an identifier, for the path.
    let show = |path: &str| match agent.request(&ControlRequest::Show(path.to_owned())) {
        Ok(ControlResponse::Container(view)) if view.path == path => Some(view),
        _ => None,
    };
    let view = process::enclosing_cgroups(&paths).into_iter().take(MAX_CGROUPS).find_map(show)?;
    view.attached.then(|| Some(run_dir.join(PAGES_DIR).join(view.view_dir.file_name()?))).flatten()
}

fn open_page(page: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(page, flags, Mode::empty()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_that_was_asked_about_last_comes_last() {
        let now = Instant::now();
        let asked = [(0, now), (2, now - RETRY_INTERVAL), (4, now - 2 * RETRY_INTERVAL)].into();
        let pages = PageLookups { last_lookup: asked, ..PageLookups::default() };
        assert_eq!(pages.longest_wait_first((0..5).collect()), [1, 3, 4, 2, 0]);
    }
}
