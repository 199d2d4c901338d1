//! The view page of a container: asked for at its agent, beside everything else, for an agent may be slow or not there.

use super::Container;
use elbowroom_client::api::{Request, Response};
use elbowroom_client::control as client;
use elbowroom_client::control::Client;
use elbowroom_linux::process;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an agent may take. A container's first call waits as long.
const PATIENCE: Duration = Duration::from_millis(300);
/// Time between two questions about the same container.
const AGAIN: Duration = Duration::from_secs(3);
/// Where the agent keeps pages, below its run directory.
const PAGES: &str = "pages";
/// Questions under way at once.
const MOST: usize = 4;

/// Questions that are under way, and when each container was last asked about.
#[derive(Default)]
pub(super) struct Pages {
    asking: BTreeMap<usize, JoinHandle<Option<OwnedFd>>>,
    asked: BTreeMap<usize, Instant>,
}

impl Pages {
    /// Whether answers are awaited.
    pub(super) fn is_asking(&self) -> bool {
        !self.asking.is_empty()
    }

    /// These containers in the order in which to ask about them, who waits longest first: not all can be asked about at once.
    pub(super) fn in_turn(&self, mut slots: Vec<usize>) -> Vec<usize> {
        slots.sort_by_key(|slot| self.asked.get(slot));
        slots
    }

    /// Asks about a container, unless it was just asked about or too many are. One that was never looked for is just being made.
    pub(super) fn ask(&mut self, slot: usize, run_dir: &Path, container: &Container) {
        let soon = self.asked.get(&slot).is_some_and(|at| at.elapsed() < AGAIN);
        if soon || self.asking.contains_key(&slot) || self.asking.len() >= MOST {
            return;
        }
        self.asked.insert(slot, Instant::now());
        let run_dir = run_dir.to_owned();
        let (pid, started, new) = (container.pid, container.started, !container.looked);
        let ask = move || {
            let page = match new {
                true => prepared(&run_dir, pid),
                false => attached(&run_dir, pid),
            };
            // The agent knows it by its process alone. Who is the same afterwards was the same when the agent looked. The identifier
            // would not tell: containers that the configuration names have another one there.
            page.filter(|_| started.is_none() || process::started(pid) == started)
        };
        self.asking.insert(slot, std::thread::spawn(move || open(&ask()?)));
    }

    /// The answers that have come: `None` where there is no page.
    pub(super) fn answers(&mut self) -> Vec<(usize, Option<OwnedFd>)> {
        let done: Vec<usize> =
            self.asking.iter().filter(|(_, asking)| asking.is_finished()).map(|(slot, _)| *slot).collect();
        let answer = |slot| (slot, self.asking.remove(&slot).and_then(|asking| asking.join().ok().flatten()));
        done.into_iter().map(answer).collect()
    }

    /// The container is gone.
    pub(super) fn forget(&mut self, slot: usize) {
        self.asked.remove(&slot);
        self.asking.remove(&slot);
    }
}

/// Of a container that is just being made: the hook has its view prepared, and so do we.
fn prepared(run_dir: &Path, pid: i32) -> Option<PathBuf> {
    client::prepare(run_dir, pid, PATIENCE).ok()?.page
}

/// Of one that runs: only where its view is in it, and without a change of that.
fn attached(run_dir: &Path, pid: i32) -> Option<PathBuf> {
    let mut agent = Client::connect_within(run_dir, PATIENCE).ok()?;
    let paths = process::cgroup_paths(pid);
    // What is asked for may also be a name, or the beginning of an identifier.
    let show = |path: &str| match agent.ask(&Request::Show(path.to_owned())) {
        Ok(Response::Container(view)) if view.path == path => Some(view),
        _ => None,
    };
    let view = process::groups_around(&paths).into_iter().find_map(show)?;
    view.attached.then(|| Some(run_dir.join(PAGES).join(view.view_dir.file_name()?))).flatten()
}

fn open(page: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(page, flags, Mode::empty()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_asked_about_last_comes_last() {
        let now = Instant::now();
        let asked = [(0, now), (2, now - AGAIN), (4, now - 2 * AGAIN)].into();
        let pages = Pages { asked, ..Pages::default() };
        assert_eq!(pages.in_turn((0..5).collect()), [1, 3, 4, 2, 0]);
    }
}
