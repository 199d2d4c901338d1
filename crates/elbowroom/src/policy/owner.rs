//! The one thread that owns all state of the policy process.

use super::facts::{take_details, take_view};
use super::mounter::{Job, Outcome};
use super::resident::{Attach, Resident};
use crate::api::{Prepare, Response};
use crate::config::Config;
use crate::fuse::FuseError;
use crate::fuse::publisher::{Dirty, Publisher};
use crate::fuse::slots::Slot;
use anyhow::Result;
use elbowroom_core::page::facts::{CpuTimes, Facts};
use elbowroom_core::page::tree;
use elbowroom_core::sample::{Container, Engine, Event, Group, GroupId};
use elbowroom_core::unit::{Bytes, Micros};
use elbowroom_core::view::{Because, Views};
use elbowroom_host::cgroup::{Controller, Version};
use elbowroom_host::mount::{self, Surface};
use elbowroom_host::numa::Numa;
use elbowroom_host::{Sensor, discover, process, timer};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// How long after a read of a dynamic page its container counts as hot.
const HOT_FOR: Micros = Micros::secs(10);
/// A runtime has left the host's root file system this long after its container's first process started.
const SETTLED_AFTER: Micros = Micros::secs(2);
/// Every how many ticks it is looked who read what: much more often than any page is renewed.
const LOOK_EVERY: u64 = 4;
/// Details read per look, about 15 us each: with ten thousand containers a tick still ends in time.
const REFRESHES_PER_LOOK: usize = 256;

/// All state of the policy process.
pub(super) struct Owner {
    config: Config,
    pub(super) run_dir: PathBuf,
    pub(super) sensor: Sensor,
    pub(super) publisher: Publisher,
    pub(super) views: Views,
    numa: Numa,
    /// Whether quotas and memory limits are cgroup v2 files.
    limits_in_v2: bool,
    pub(super) residents: BTreeMap<GroupId, Resident>,
    /// Views of a policy process before, by name, until their containers are met.
    orphans: BTreeMap<String, Slot>,
    pub(super) mounter: mpsc::Sender<Job>,
    pub(super) preparing: Vec<(Prepare, Micros, mpsc::SyncSender<Response>)>,
    /// Requests that wait for a mount job.
    pub(super) mounting: Vec<(GroupId, mpsc::SyncSender<Response>)>,
    pub(super) ticks: u64,
    pub(super) ticks_missed: u64,
}

impl Owner {
    pub(super) fn new(
        config: Config,
        run_dir: PathBuf,
        sensor: Sensor,
        publisher: Publisher,
        mounter: mpsc::Sender<Job>,
    ) -> Self {
        Self {
            views: Views::new(config.policy),
            numa: Numa::read(Path::new("/")),
            limits_in_v2: limits_in_v2(&sensor),
            config,
            run_dir,
            sensor,
            publisher,
            residents: BTreeMap::new(),
            orphans: BTreeMap::new(),
            mounter,
            preparing: Vec::new(),
            mounting: Vec::new(),
            ticks: 0,
            ticks_missed: 0,
        }
    }

    /// Learns what is there, and takes over the views of a policy process that died.
    pub(super) fn start(&mut self) {
        self.orphans = self.publisher.slots().into_iter().map(|(slot, name)| (name, slot)).collect();
        let events = self.sensor.start();
        self.apply(&events);
        for (view, slot) in std::mem::take(&mut self.orphans) {
            tracing::info!(view, "container gone while no policy process ran");
            self.publisher.remove(slot);
        }
    }

    pub(super) fn sensor_fd(&self) -> BorrowedFd<'_> {
        self.sensor.fd()
    }

    /// Handles what the kernel told of cgroups that came, went or changed.
    pub(super) fn notice_changes(&mut self) {
        let events = self.sensor.changes();
        if !events.is_empty() {
            self.apply(&events);
        }
        if !self.preparing.is_empty() {
            self.prepare_pending();
        }
    }

    /// One period: measure, decide, publish, and the chores that are due.
    pub(super) fn tick(&mut self, missed: u64) {
        self.ticks += 1;
        self.ticks_missed += missed;
        let now = timer::now();
        let tick = self.sensor.tick(now);
        for (group, usage) in &tick.usage {
            if let Some(resident) = self.residents.get_mut(group) {
                resident.usage = *usage;
            }
        }
        self.apply(&[Event::Tick(tick)]);
        if self.ticks.is_multiple_of(LOOK_EVERY) {
            self.refresh_due(now);
        }
        self.attach_due(now);
    }

    /// Takes note of how a mount job ended.
    pub(super) fn mounted(&mut self, id: GroupId, outcome: Outcome) {
        let now = timer::now();
        let name = self.views.group(id).map_or_else(String::new, |g| g.path.clone());
        let Some(resident) = self.residents.get_mut(&id) else {
            self.answer_mounting(id, |_| Response::Error("the container is gone".into()));
            return;
        };
        let error = match outcome {
            Outcome::Attached { missing } => {
                tracing::info!(container = name, missing = missing.len(), "view attached");
                resident.attach = Attach::Done { missing };
                None
            }
            Outcome::Detached => {
                tracing::info!(container = name, "view detached");
                resident.attach = Attach::LetAlone("detached by request");
                None
            }
            Outcome::NotYet(why) => {
                resident.attach = resident.attach.later(now, why.to_owned());
                Some(why.to_owned())
            }
            Outcome::Failed(why) => {
                tracing::warn!(container = name, because = why, "view not attached");
                resident.attach = resident.attach.later(now, why.clone());
                Some(why)
            }
        };
        self.answer_mounting(id, |owner| match error {
            Some(why) => Response::Error(format!("{name}: not attached: {why}")),
            None => match owner.describe(id) {
                Some(view) => Response::Container(Box::new(view)),
                None => Response::Error("the container is gone".into()),
            },
        });
    }

    /// Takes every view out of every container, so that a clean stop leaves nothing behind.
    pub(super) fn stop(&mut self) -> Result<()> {
        let ids: Vec<_> = self
            .residents
            .iter()
            .filter(|(_, r)| matches!(r.attach, Attach::Done { .. } | Attach::InFlight { .. }))
            .map(|(id, _)| *id)
            .collect();
        tracing::info!(containers = ids.len(), "detaching");
        for group in ids {
            if let Some(pid) = self.first_process(group) {
                let _ = self.mounter.send(Job::Detach { group, pid });
            }
        }
        let (done, wait) = mpsc::sync_channel(1);
        let _ = self.mounter.send(Job::Flush(done));
        wait.recv_timeout(Duration::from_secs(20)).map_err(|_| {
            anyhow::anyhow!(
                "views could not be detached in 20 s: look for fuse.elbowroom in the containers' mount tables"
            )
        })
    }

    fn apply(&mut self, events: &[Event]) {
        let changes = self.views.apply_all(events);
        let mut stale: Vec<GroupId> = Vec::new();
        for change in &changes {
            tracing::debug!(container = change.id.0, %change, "view changed");
            match change.because {
                Because::Gone => self.forget(change.id),
                _ => stale.push(change.id),
            }
        }
        for event in events {
            if let Event::Group(group) = event {
                self.meet(group);
                // A setting that changes no effective value (shares, a soft limit) still shows in its own file.
                stale.push(group.id);
            }
        }
        stale.sort_unstable();
        stale.dedup();
        for id in stale {
            self.publish_view(id);
        }
    }

    /// Gives a container that is new here its view.
    fn meet(&mut self, group: &Group) {
        let Some(container) = &group.container else { return };
        if self.residents.contains_key(&group.id) {
            return;
        }
        let Some(view) = self.views.get(group.id) else { return };
        let name = view_name(container);
        let page_size = Bytes(rustix::param::page_size() as u64);
        let mut facts = Facts { started: timer::now_boot(), page_size, ..Facts::EMPTY };
        take_view(&mut facts, view, &group.limits, &self.numa);
        let mut times = vec![CpuTimes::default(); self.publisher.cpus()];
        let slot = match self.orphans.remove(&name) {
            Some(slot) => {
                if let Some(last) = self.publisher.last(slot) {
                    facts = last.facts;
                    times[..last.times.len()].copy_from_slice(&last.times);
                    take_view(&mut facts, view, &group.limits, &self.numa);
                }
                slot
            }
            None => match self.publisher.add(&name, &facts, &times) {
                Ok(slot) => slot,
                Err(e) => {
                    tracing::warn!(container = group.path, because = %e, "no view");
                    return;
                }
            },
        };
        let attach = match container.engine {
            _ if !self.config.containers.attach => Attach::LetAlone("containers.attach is off"),
            _ if self.excluded(container) => Attach::LetAlone("excluded by configuration"),
            // `elbowroom run` mounts its own view when it starts; one that is already running lost its agent.
            Engine::Elbowroom if self.ticks > 0 => Attach::at(Micros(u64::MAX), "elbowroom run attaches it"),
            _ => Attach::now(),
        };
        tracing::info!(container = group.path, name = container.name, engine = ?container.engine, "container");
        self.residents.insert(group.id, Resident::new(group.path.clone(), slot, facts, times, attach));
        // The first reader finds the container's own numbers already.
        self.refresh(group.id, timer::now());
    }

    fn forget(&mut self, id: GroupId) {
        if let Some(resident) = self.residents.remove(&id) {
            tracing::info!(container = resident.path, "container gone");
            self.publisher.remove(resident.slot);
        }
    }

    fn publish_view(&mut self, id: GroupId) {
        let (Some(resident), Some(view), Some(group)) =
            (self.residents.get_mut(&id), self.views.get(id), self.views.group(id))
        else {
            return;
        };
        take_view(&mut resident.facts, view, &group.limits, &self.numa);
        Self::published(self.publisher.publish(resident.slot, &resident.facts, &resident.times, Dirty::View));
    }

    /// A slot is filled by this thread alone and freed by it alone, so an error here is a defect, not a condition.
    fn published(result: Result<(), FuseError>) {
        if let Err(error) = result {
            tracing::error!(%error, "a view was not published");
        }
    }

    /// Renews the numbers on dynamic pages of the containers that are due.
    fn refresh_due(&mut self, now: Micros) {
        let dynamic = self.publisher.dynamic_pages();
        let hot_every = self.config.views.refresh_hot;
        let mut due: Vec<GroupId> = Vec::new();
        for (id, resident) in &mut self.residents {
            resident.meter(now);
            if self.publisher.read_since(resident.slot) & dynamic != 0 {
                resident.hot_until = now.saturating_add(HOT_FOR);
                resident.refresh_at = resident.refresh_at.min(resident.refreshed.saturating_add(hot_every));
            }
            if resident.refresh_at <= now && due.len() < REFRESHES_PER_LOOK {
                due.push(*id);
            }
        }
        for id in due {
            self.refresh(id, now);
        }
    }

    fn refresh(&mut self, id: GroupId, now: Micros) {
        let (Some(details), Some(resident)) = (self.sensor.details(id), self.residents.get_mut(&id)) else {
            return;
        };
        take_details(&mut resident.facts, &mut resident.times, resident.usage, &details, timer::now_boot());
        let hot = resident.hot_until > now;
        if hot && resident.load.is_due(now) {
            let (running, threads) = process::count_threads(&self.sensor.processes(id));
            resident.facts.nr_running = running;
            resident.facts.nr_threads = threads;
            resident.load.advance(now, u64::from(running) * 1_000);
        } else {
            resident.load.advance(now, resident.cpu_used_millicpu);
        }
        resident.facts.load = resident.load.hundredths();
        let every = if hot { self.config.views.refresh_hot } else { self.config.views.refresh_cold };
        resident.refreshed = now;
        resident.refresh_at = now.saturating_add(every);
        Self::published(self.publisher.publish(
            resident.slot,
            &resident.facts,
            &resident.times,
            Dirty::Stats,
        ));
    }

    /// Hands the mounter what is due.
    fn attach_due(&mut self, now: Micros) {
        let due: Vec<GroupId> = self
            .residents
            .iter()
            .filter(|(_, r)| matches!(r.attach, Attach::Waiting { retry_at, .. } if retry_at <= now))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.attach(id, now);
        }
    }

    pub(super) fn attach(&mut self, id: GroupId, now: Micros) {
        let pid = self.first_process(id);
        let started = pid.and_then(|pid| process::started(pid as i32));
        let Some(resident) = self.residents.get_mut(&id) else { return };
        let Some(pid) = pid else {
            resident.attach = resident.attach.later(now, "it has no process".into());
            return;
        };
        if let Some(started) = started {
            resident.facts.started = started;
        }
        let delay = match resident.attach {
            Attach::Waiting { delay, .. } => delay,
            _ => Micros::millis(5),
        };
        resident.attach = Attach::InFlight { delay };
        // A process on the host's root is in `elbowroom run`, or it is a service's, or a runtime's that is still on its way
        // into a container: that one does not take long.
        let settled = started.is_some_and(|at| timer::now_boot().saturating_sub(at) >= SETTLED_AFTER);
        let engine = self.views.group(id).and_then(|g| g.container.as_ref()).map(|c| c.engine);
        let on_host_root = match engine {
            Some(Engine::Elbowroom) => true,
            Some(Engine::Plain) => settled,
            _ => false,
        };
        let view_dir = self.view_dir(id);
        let _ = self.mounter.send(Job::Attach {
            group: id,
            pid,
            view_dir,
            surfaces: self.surfaces(),
            on_host_root,
        });
    }

    /// The container's init, as the host numbers it.
    pub(super) fn first_process(&mut self, id: GroupId) -> Option<u32> {
        self.sensor.processes(id).first().and_then(|pid| u32::try_from(*pid).ok())
    }

    pub(super) fn view_dir(&self, id: GroupId) -> PathBuf {
        let name = self.views.group(id).and_then(|g| g.container.as_ref()).map(view_name).unwrap_or_default();
        self.publisher.views().join(name)
    }

    pub(super) fn surfaces(&self) -> Vec<Surface> {
        tree::surfaces(self.limits_in_v2).into_iter().map(surface).collect()
    }

    fn excluded(&self, container: &Container) -> bool {
        self.config.containers.exclude.iter().any(|pattern| {
            discover::matches(pattern, &container.id)
                || container.name.as_deref().is_some_and(|name| discover::matches(pattern, name))
        })
    }
}

fn limits_in_v2(sensor: &Sensor) -> bool {
    let layout = sensor.layout();
    let version = |controller| layout.index(controller).map(|at| layout.hierarchies()[at].version);
    version(Controller::Cpu).or(version(Controller::Memory)) == Some(Version::V2)
}

/// A node of the view tree and its place, as the mount room knows it.
fn surface(surface: tree::Surface) -> Surface {
    let kind = match surface.kind {
        tree::Kind::Fixed(path) => mount::Kind::Fixed(path.into()),
        tree::Kind::Cgroup { controller, file } => {
            mount::Kind::Cgroup { controller: controller.to_owned(), file: file.to_owned() }
        }
    };
    Surface { source: surface.node.path().into(), kind }
}

/// The name of a container's directory of views: its id where that is a plain word, else a word made of it.
fn view_name(container: &Container) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    if (1..=100).contains(&container.id.len())
        && !container.id.starts_with('.')
        && container.id.chars().all(plain)
    {
        return container.id.clone();
    }
    let word: String =
        container.id.chars().filter(|c| *c != '/').take(60).map(|c| if plain(c) { c } else { '_' }).collect();
    // FNV-1a keeps two ids apart that share their beginning.
    let hash = container
        .id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("x{word}-{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(id: &str) -> String {
        view_name(&Container { id: id.into(), name: None, engine: Engine::Plain, pod: None })
    }

    #[test]
    fn engine_ids_are_their_own_directory_names() {
        assert_eq!(named("0123abcd"), "0123abcd");
    }

    #[test]
    fn hostile_ids_become_harmless_names_that_stay_apart() {
        let long = "a".repeat(10_000);
        for id in ["../../etc", "a/b", "a b\n", "..", ".", "", &long] {
            let name = named(id);
            assert!(
                name.len() <= 100
                    && !name.contains(['/', '\n'])
                    && !name.starts_with('.')
                    && !name.is_empty(),
                "{name}"
            );
        }
        assert_ne!(named("/a/b"), named("/ab"));
    }
}
