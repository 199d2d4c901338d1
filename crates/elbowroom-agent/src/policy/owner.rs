//! The one thread that owns all state of the policy process.

use super::alerts::{AlertsRoom, Seen};
use super::bells::Bells;
use super::disk::DiskRoom;
use super::labelled::Labelled;
use super::limiter::Told;
use super::machine::Machine;
use super::memory::{Effect, MemoryRoom};
use super::mounter::Job;
use super::recent::Recent;
use super::resident::Resident;
use crate::config::Config;
use crate::probes::{Said, Voices};
use crate::view_server::publisher::Publisher;
use crate::view_server::slots::Slot;
use anyhow::Result;
use elbowroom_client::api::{Prepare, Response};
use elbowroom_linux::cgroup::{Controller, Version};
use elbowroom_linux::mount::Surface;
use elbowroom_linux::numa::Numa;
use elbowroom_linux::root::Root;
use elbowroom_linux::{Sensor, process, timer};
use elbowroom_types::sample::{Event, GroupId};
use elbowroom_types::unit::Micros;
use elbowroom_view::rules::{Because, Views};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

/// How long a clean stop waits until views are detached; then the supervisor has lost its patience too.
const DETACHED_WITHIN: Duration = Duration::from_secs(20);
/// Every how many ticks it is looked who read what: much more often than any page is renewed.
const LOOK_EVERY: u64 = 4;
/// How often it is looked whether the machine has more disks.
const DISKS_EVERY: Micros = Micros::secs(1);

/// After so many containers went their memory is given back: some MiB.
const MANY: usize = 100;

/// Time a tick gives to reading what containers do to disks, about 15 us each; what is left is read in the next ticks. So views
/// are not late, and there is no second thread that shares the tree of groups: five hundred busy containers are read within
/// 100 to 200 ms of a period of one second, a hundred in one go.
const DISKS_PER_TICK: Micros = Micros::millis(2);

/// All state of the policy process.
pub(super) struct Owner {
    pub(super) config: Config,
    pub(super) run_dir: PathBuf,
    pub(super) sensor: Sensor,
    pub(super) publisher: Publisher,
    pub(super) views: Views,
    pub(super) numa: Numa,
    /// Whether quotas and memory limits are cgroup v2 files.
    pub(super) limits_in_v2: [bool; 2],
    pub(super) residents: BTreeMap<GroupId, Resident>,
    /// Views of a policy process before, by what tells their containers apart ([`Sensor::identities`]), until those are met.
    pub(super) orphans: BTreeMap<u64, Slot>,
    /// Containers for which there is no view.
    pub(super) unmet: BTreeSet<GroupId>,
    pub(super) disk: DiskRoom,
    pub(super) memory: MemoryRoom,
    pub(super) bells: Bells,
    pub(super) alerts: AlertsRoom,
    pub(super) voices: Voices,
    pub(super) labelled: Labelled,
    pub(super) machine: Machine,
    pub(super) recent: Recent,
    pub(super) mounter: mpsc::Sender<Job>,
    /// Views that will be mounted, by somebody.
    pub(super) ahead: mpsc::SyncSender<(PathBuf, Vec<Surface>)>,
    pub(super) preparing: Vec<(Prepare, Micros, mpsc::SyncSender<Response>)>,
    /// When it is looked again whether the machine has more disks.
    disks_at: Micros,
    pub(super) ticks: u64,
    pub(super) ticks_missed: u64,
    /// Containers that went since memory was given back last.
    pub(super) gone: usize,
}

impl Owner {
    pub(super) fn new(
        config: Config,
        run_dir: PathBuf,
        sensor: Sensor,
        publisher: Publisher,
        (mounter, ahead): (mpsc::Sender<Job>, mpsc::SyncSender<(PathBuf, Vec<Surface>)>),
        (disk, memory, alerts): (DiskRoom, MemoryRoom, AlertsRoom),
        voices: Voices,
    ) -> Self {
        Self {
            views: Views::new(config.policy),
            numa: Root::host().map(|root| Numa::read(&root)).unwrap_or_default(),
            limits_in_v2: limits_in_v2(&sensor),
            config,
            run_dir,
            sensor,
            bells: Bells::new(publisher.pages()),
            publisher,
            residents: BTreeMap::new(),
            orphans: BTreeMap::new(),
            unmet: BTreeSet::new(),
            disk,
            memory,
            alerts,
            voices,
            labelled: Labelled::default(),
            machine: Machine::default(),
            recent: Recent::new(),
            mounter,
            ahead,
            preparing: Vec::new(),
            disks_at: Micros::ZERO,
            ticks: 0,
            ticks_missed: 0,
            gone: 0,
        }
    }

    /// Learns what is there, and takes over the views of a policy process that died.
    pub(super) fn start(&mut self) {
        let events = self.sensor.start();
        let there: BTreeSet<u64> = events.iter().flat_map(|event| self.identities(event)).collect();
        for (slot, owner) in self.publisher.slots() {
            if there.contains(&owner) {
                self.orphans.insert(owner, slot);
            } else {
                // Before anybody is met who has its name now.
                self.let_go(slot);
            }
        }
        self.apply(&events);
        for slot in std::mem::take(&mut self.orphans).into_values() {
            self.let_go(slot);
        }
    }

    /// What tells the container that an event is about from any other.
    fn identities(&self, event: &Event) -> Vec<u64> {
        match event {
            Event::Group(group) if group.container.is_some() => self.sensor.identities(group.id),
            _ => Vec::new(),
        }
    }

    /// Takes away the view of a container that went while no policy process ran.
    fn let_go(&mut self, slot: Slot) {
        let view = self.publisher.name(slot).unwrap_or_default();
        tracing::info!(view, "container gone while no policy process ran");
        let _ = std::fs::remove_file(self.publisher.pages().join(&view));
        self.bells.forget(&view);
        self.publisher.remove(slot);
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
        self.publisher.beat();
        let now = timer::now();
        let tick = self.sensor.tick(now);
        for (group, usage) in &tick.usage {
            if let Some(resident) = self.residents.get_mut(group) {
                resident.usage = *usage;
            }
        }
        let seen = Seen { busy: tick.busy, free: tick.mem_free, squeezed: Vec::new() };
        self.apply(&[Event::Tick(tick)]);
        if self.ticks.is_multiple_of(LOOK_EVERY) {
            self.refresh_due(now);
            self.labelled.due(now).into_iter().for_each(|id| self.unlabel(id));
            if self.gone >= MANY {
                self.gone = 0;
                process::give_back_memory();
            }
        }
        if now >= self.disks_at {
            self.disks_at = now.saturating_add(DISKS_EVERY);
            self.publisher.look_at_disks();
        }
        self.attach_due(now);
        for id in self.voices.due(now) {
            let pid = self.first_process(id);
            if self.voices.place(id, pid) {
                self.look_again(id);
            }
        }
        if self.disk.is_due(now) {
            let begin = timer::now();
            let events = self.sensor.disks_until(begin, begin.saturating_add(DISKS_PER_TICK));
            self.disk.measured_in(timer::now().saturating_sub(begin), events.is_some());
            for event in events.iter().flatten() {
                self.alerts.apply(event);
                self.disk.sensed(event);
            }
        }
        let effects = self.memory.tick(now);
        self.take_up(effects);
        self.disk.tick(now);
        self.look_for_alerts(now, seen);
    }

    /// Takes what governors and the node itself have to say to those who are told.
    fn look_for_alerts(&mut self, now: Micros, seen: Seen) {
        self.disk.take_alerts().into_iter().for_each(|alert| self.alerts.take(alert));
        if self.alerts.is_due(now) {
            let squeezed = self.residents.iter().filter_map(|(id, resident)| self.squeezed(*id, resident));
            let squeezed = squeezed.collect();
            self.alerts.look(now, Seen { squeezed, ..seen });
        }
        self.alerts.tell(now);
    }

    /// The name of a container that is busy and has been taken down to a lower bound that is below its upper one.
    fn squeezed(&self, id: GroupId, resident: &Resident) -> Option<String> {
        let view = self.views.get(id)?;
        let full = u64::from(view.cpus) * 1_000;
        let is = view.cpus == view.cpus_lower
            && view.cpus_lower < view.cpus_upper
            && resident.cpu_used_millicpu >= self.config.policy.cpu_busy.of(full);
        let container = is.then(|| self.views.group(id)?.container.as_ref()).flatten()?;
        Some(container.name.clone().unwrap_or_else(|| resident.path.clone()))
    }

    /// Takes an answer of the limiter.
    pub(super) fn told(&mut self, told: Told) {
        match told {
            Told::Memory(done, user) => {
                let (again, effects) = self.memory.told(done, user);
                self.take_up(effects);
                if let Some(event) = again {
                    self.apply(&[event]);
                }
            }
            told => self.disk.told(told),
        }
    }

    /// Does what the memory governor leaves to the owner.
    pub(super) fn take_up(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Export(export) => self.apply(&[Event::Export(export)]),
                Effect::Ask(group) => self.bells.ring(&self.view_name(group)),
                Effect::Warn(alert) => self.alerts.take(alert),
            }
        }
    }

    /// Takes what an application said about itself.
    pub(super) fn said(&mut self, said: Said) {
        if let Some(heard) = self.voices.said(said, timer::now()) {
            self.apply(&[Event::Heard(heard)]);
        }
    }

    /// Takes limits off and views out, so that a clean stop leaves nothing behind; before a restart, only limits.
    pub(super) fn stop(&mut self) -> Result<()> {
        // First, and beside the rest: of the time there is for a stop, hooks and a slow disk may take half.
        let detached = (!self.publisher.is_left()).then(|| self.detach_all());
        self.voices.stop();
        self.disk.stop();
        self.alerts.stop();
        detached.map_or(Ok(()), |detached| detached.recv_timeout(DETACHED_WITHIN)).map_err(|_| {
            anyhow::anyhow!("views could not be detached in {} s: look for fuse.elbowroom in the containers' mount tables", DETACHED_WITHIN.as_secs())
        })
    }

    pub(super) fn apply(&mut self, events: &[Event]) {
        for event in events {
            if let Some(id) = self.left_alone(event) {
                self.ungovern(id);
            }
        }
        let known = |event| self.labelled.apply(self.memory.mask(event));
        let events: Vec<Cow<'_, Event>> = events.iter().map(known).collect();
        let events = || events.iter().map(Cow::as_ref);
        let changes = self.views.apply_all(events());
        let mut stale: Vec<GroupId> = Vec::new();
        for change in &changes {
            tracing::debug!(container = change.id.0, %change, "view changed");
            self.recent.view(change, || self.disk.named(change.id).cloned());
            match change.because {
                Because::Gone => self.forget(change.id),
                _ => stale.push(change.id),
            }
        }
        let mut effects = Vec::new();
        for event in events() {
            self.machine.take(event);
            if let Event::Group(group) = event {
                self.meet(group);
                // A setting that changes no effective value (shares, a soft limit) still shows in its own file.
                stale.push(group.id);
            }
            let governed = self.config.containers.governed(event);
            self.disk.apply(&governed);
            self.alerts.apply(event);
            effects.extend(self.memory.apply(&governed));
        }
        stale.sort_unstable();
        stale.dedup();
        for id in stale {
            self.publish_view(id);
        }
        self.take_up(effects);
    }
}

/// Whether limits of CPU and of memory are in cgroup v2. A controller that is nowhere has no files to cover.
fn limits_in_v2(sensor: &Sensor) -> [bool; 2] {
    let layout = sensor.layout();
    let version = |controller| layout.index(controller).map(|at| layout.hierarchies()[at].version);
    [Controller::Cpu, Controller::Memory].map(|controller| version(controller) == Some(Version::V2))
}
