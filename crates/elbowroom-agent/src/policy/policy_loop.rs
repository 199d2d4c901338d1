//! The one thread that owns all state of the policy process.

use super::alerts::{AlertDispatcher, NodeObservation};
use super::disk::DiskEnforcer;
use super::event_pipeline::EventPipeline;
use super::limiter::LimiterReply;
use super::managed_container::ManagedContainer;
use super::memory::{MemoryEffect, MemoryEnforcer};
use super::mounter::MountJob;
use super::news::News;
use super::node_meter::NodeMeter;
use super::pace::{EMPTY_PERIOD, Pace, Peek};
use super::pressure_notifier::{PressureNotifier, PressureTarget};
use super::quotas::QuotaWatch;
use super::recent_changes::RecentChanges;
use super::verdicts::VerdictWatch;
use crate::config::AgentConfig;
use crate::otlp::PushCounts;
use crate::probes::{ProbeEvent, ProbeRegistry};
use crate::view_server::publisher::Publisher;
use crate::view_server::slots::SlotHandle;
use anyhow::Result;
use elbowroom_client::api::{ControlResponse, PrepareRequest};
use elbowroom_linux::cgroup::{CgroupController, CgroupVersion};
use elbowroom_linux::mount::MountSurface;
use elbowroom_linux::numa::Numa;
use elbowroom_linux::root::Root;
use elbowroom_linux::{Sensor, process, timer};
use elbowroom_types::id::CgroupId;
use elbowroom_types::memory::OrderKind;
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::Micros;
use elbowroom_view::rules::{ViewChangeReason, ViewTable};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How long a clean stop waits until views are detached; then the supervisor has lost its patience too.
const DETACH_TIMEOUT: Duration = Duration::from_secs(20);
/// How often it is checked which pages were read: more often than most pages are renewed.
const READ_SCAN_INTERVAL: Micros = Micros::millis(90);
/// How often the machine is checked for new disks.
const DISK_SCAN_INTERVAL: Micros = Micros::secs(1);

/// After this many containers are gone, their memory is given back: some MiB.
const TRIM_AFTER: usize = 100;
/// After this many ticks it is known which pages of the program are used all the time.
const STARTED_AFTER: u64 = 10;

/// Time given to reading containers' disk use in one go, about 15 us each. Other due work then has its turn before the rest is read. So
/// views are not late, and there is no second thread that shares the tree of groups.
const DISK_READ_BUDGET: Micros = Micros::millis(2);

/// All state of the policy process.
pub(super) struct PolicyLoop {
    pub(super) config: AgentConfig,
    pub(super) run_dir: PathBuf,
    pub(super) sensor: Sensor,
    pub(super) publisher: Publisher,
    pub(super) views: ViewTable,
    pub(super) numa: Numa,
    /// Whether quotas and memory limits are cgroup v2 files.
    pub(super) limits_in_v2: [bool; 2],
    pub(super) containers: BTreeMap<CgroupId, ManagedContainer>,
    /// Views of a policy process before, by what tells their containers apart ([`Sensor::identities`]), until those are met.
    pub(super) orphans: BTreeMap<u64, SlotHandle>,
    /// Containers for which there is no view.
    pub(super) without_view: BTreeSet<CgroupId>,
    pub(super) disk: DiskEnforcer,
    pub(super) memory: MemoryEnforcer,
    pub(super) pressure_notifier: PressureNotifier,
    pub(super) alerts: AlertDispatcher,
    pub(super) quotas: QuotaWatch,
    pub(super) verdicts: VerdictWatch,
    pub(super) probes: ProbeRegistry,
    /// What becomes of the push of metrics, where there is one.
    pub(super) otlp: Option<Arc<PushCounts>>,
    pub(super) pipeline: EventPipeline,
    pub(super) node: NodeMeter,
    pub(super) recent_changes: RecentChanges,
    pub(super) mounter: mpsc::Sender<MountJob>,
    /// Views that will be mounted, by any process.
    pub(super) prefetch: mpsc::SyncSender<(PathBuf, Vec<MountSurface>)>,
    pub(super) preparing: Vec<(PrepareRequest, Micros, mpsc::SyncSender<ControlResponse>)>,
    /// Containers that their runtimes are about to start, by their identifiers, and until when their cgroups may be noticed.
    pub(super) starting: Vec<(String, Micros, mpsc::SyncSender<ControlResponse>)>,
    /// When the machine is checked for new disks next.
    disk_scan_at: Micros,
    /// When it is checked next which pages were read.
    read_scan_at: Micros,
    pub(super) pace: Pace,
    pub(super) news: News,
    pub(super) ticks: u64,
    pub(super) ticks_missed: u64,
    /// Containers that went since memory was given back last.
    pub(super) removed_since_trim: usize,
}

impl PolicyLoop {
    pub(super) fn new(
        config: AgentConfig,
        run_dir: PathBuf,
        sensor: Sensor,
        publisher: Publisher,
        (mounter, ahead): (mpsc::Sender<MountJob>, mpsc::SyncSender<(PathBuf, Vec<MountSurface>)>),
        (disk, memory, alerts, verdicts): (DiskEnforcer, MemoryEnforcer, AlertDispatcher, VerdictWatch),
        probes: ProbeRegistry,
    ) -> Self {
        Self {
            views: ViewTable::new(config.view_rules),
            numa: Root::host().map(|root| Numa::read(&root)).unwrap_or_default(),
            limits_in_v2: limits_in_v2(&sensor),
            pipeline: EventPipeline::new(config.containers.clone()),
            config,
            run_dir,
            sensor,
            pressure_notifier: PressureNotifier::new(),
            publisher,
            containers: BTreeMap::new(),
            orphans: BTreeMap::new(),
            without_view: BTreeSet::new(),
            disk,
            memory,
            alerts,
            quotas: QuotaWatch::default(),
            verdicts,
            probes,
            otlp: None,
            node: NodeMeter::default(),
            recent_changes: RecentChanges::new(),
            mounter,
            prefetch: ahead,
            preparing: Vec::new(),
            starting: Vec::new(),
            disk_scan_at: Micros::ZERO,
            read_scan_at: Micros::ZERO,
            pace: Pace::default(),
            news: News::default(),
            ticks: 0,
            ticks_missed: 0,
            removed_since_trim: 0,
        }
    }

    /// Learns what is there, and takes over the views of a policy process that died.
    pub(super) fn start(&mut self) {
        self.pace.wake(timer::now());
        let events = self.sensor.start();
        let there: BTreeSet<u64> = events.iter().flat_map(|event| self.identities(event)).collect();
        for (slot, owner) in self.publisher.slots() {
            if there.contains(&owner) {
                self.orphans.insert(owner, slot);
            } else {
                // Before a container is met that has its name now.
                self.remove_orphan(slot);
            }
        }
        self.apply(&events);
        for slot in std::mem::take(&mut self.orphans).into_values() {
            self.remove_orphan(slot);
        }
    }

    /// What tells the container that an event is about from any other.
    fn identities(&self, event: &HostEvent) -> Vec<u64> {
        match event {
            HostEvent::Group(group) if group.container.is_some() => self.sensor.identities(group.id),
            _ => Vec::new(),
        }
    }

    /// Takes away the view of a container that went while no policy process ran.
    fn remove_orphan(&mut self, slot: SlotHandle) {
        let view = self.publisher.name(slot).unwrap_or_default();
        tracing::info!(view, "container gone while no policy process ran");
        let _ = std::fs::remove_file(self.publisher.pages().join(&view));
        self.publisher.remove(slot);
    }

    /// Descriptors on which the kernel tells of cgroups. Those that tell of kills are left out while kills are looked for in every tick: a
    /// container with kills without a pause has its counters read no more often than that.
    pub(super) fn kernel_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let is_looking = self.verdicts.is_looking(timer::now());
        std::iter::once(self.sensor.fd()).chain(self.verdicts.fd().filter(|_| !is_looking))
    }

    /// Handles what the kernel told of cgroups that came, went or changed.
    pub(super) fn handle_cgroup_changes(&mut self) {
        let events = self.sensor.changes();
        if !events.is_empty() {
            self.pace.wake(timer::now());
            self.apply(&events);
        }
        if !self.preparing.is_empty() {
            self.prepare_pending();
        }
        if !self.starting.is_empty() {
            self.attach_starting();
        }
    }

    /// Whether a client waits for a cgroup to be noticed.
    pub(super) fn is_awaited(&self) -> bool {
        !self.preparing.is_empty() || !self.starting.is_empty()
    }

    /// Time until the next tick.
    pub(super) fn tick_period(&self) -> Micros {
        if self.is_awaited() || self.verdicts.is_looking(timer::now()) {
            return self.config.sense.period;
        }
        let (least, cpu_period) = (self.config.sense.period, self.views.cpu_period_length());
        self.pace.period(least, cpu_period, self.is_empty())
    }

    /// Whether there is nothing to look after but the node.
    fn is_empty(&self) -> bool {
        self.containers.is_empty() && !self.disk.holds_limits()
    }

    /// Says that this process works, once it has made its first update.
    pub(super) fn heartbeat(&self) {
        if self.ticks > 0 {
            self.publisher.heartbeat();
        }
    }

    /// How long nothing is to be done beside ticks, if nothing happens; the supervisor is told.
    pub(super) fn rest(&self, period: Micros) -> Micros {
        let now = timer::now();
        let disks = if self.is_empty() { EMPTY_PERIOD } else { self.disk.idle_for(now) };
        let rest = disks.min(self.news.due_in(timer::unix_ms()));
        self.publisher.set_quiet_until(now.saturating_add(rest.min(period)));
        rest
    }

    /// Whether nothing happens that a tick would decide on: then there was one.
    pub(super) fn peek(&mut self, missed: u64) -> bool {
        let (now, reads) = (timer::now(), self.publisher.counters().requests);
        let is_quiet = self.pace.may_peek(now, self.tick_period(), self.config.sense.period)
            && self.sensor.peek(now).is_some_and(|(used, tick)| self.pace.peek(Peek { used, reads, tick }));
        if is_quiet {
            self.count_tick(missed);
        }
        is_quiet
    }

    fn count_tick(&mut self, missed: u64) {
        self.ticks += 1;
        self.ticks_missed += missed;
        self.publisher.heartbeat();
    }

    /// One period: measure, decide, publish, and the chores that are due.
    pub(super) fn tick(&mut self, missed: u64) {
        self.count_tick(missed);
        let now = timer::now();
        if let Some(quiet) = self.pace.take_quiet_tick() {
            self.apply(&[HostEvent::Tick(quiet)]);
        }
        let tick = self.sensor.tick(now);
        let mut used = Micros::ZERO;
        for (group, usage) in &tick.usage {
            if let Some(managed) = self.containers.get_mut(group) {
                used = used.saturating_add(usage.cpu.saturating_sub(managed.usage.cpu));
                managed.usage = *usage;
                managed.note_use(now);
            }
        }
        self.pace.tick(now, used);
        let seen =
            NodeObservation { cpu_time: tick.busy, mem_free: tick.mem_free, at_lower_bound: Vec::new() };
        self.apply(&[HostEvent::Tick(tick)]);
        if now >= self.read_scan_at {
            self.read_scan_at = now.saturating_add(READ_SCAN_INTERVAL);
            self.refresh_due(now);
            self.pipeline.labels.expired(now).into_iter().for_each(|id| self.unlabel(id));
            if self.removed_since_trim >= TRIM_AFTER {
                self.removed_since_trim = 0;
                process::trim_malloc();
            }
        }
        if now >= self.disk_scan_at {
            self.disk_scan_at = now.saturating_add(DISK_SCAN_INTERVAL);
            self.publisher.grow_diskstats();
        }
        if self.ticks == STARTED_AFTER {
            process::forget_start();
        }
        self.attach_due(now);
        let used = |id| self.containers.get(&id).and_then(|managed| managed.usage.known_cpu());
        for id in self.probes.due_checks(now, used) {
            let Some(pid) = self.init_pid_in_turn(id) else { continue };
            if self.probes.update_location(id, pid) {
                self.recheck_attach(id);
            }
        }
        self.check_kills(now);
        if let Some(event) = self.memory.measure(now) {
            self.apply(&[event]);
        }
        self.disk.tick(now);
        self.collect_alerts(now, seen);
    }

    /// Looks at disks where that is due, and answers at once: disks keep a time of their own, whatever the period of views is.
    pub(super) fn look_at_disks(&mut self) {
        let begin = timer::now();
        if self.disk.is_glance_due(begin) {
            let stats = self.sensor.disk_stats();
            self.disk.glance(begin, &stats);
        }
        if self.disk.is_due(begin) {
            let until = begin.saturating_add(DISK_READ_BUDGET);
            let events = self.sensor.disks_until(begin, until, self.disk.is_urgent());
            self.disk.on_measured(timer::now().saturating_sub(begin), events.is_some());
            self.apply(&events.unwrap_or_default());
        }
        self.disk.send_caps(timer::now());
    }

    /// Takes alerts of the governors and of the node itself, and delivers them.
    fn collect_alerts(&mut self, now: Micros, seen: NodeObservation) {
        self.disk.take_alerts().into_iter().for_each(|alert| self.alerts.record(alert));
        if self.alerts.is_due(now) {
            let squeezed =
                self.containers.iter().filter_map(|(id, managed)| self.at_lower_bound(*id, managed));
            let squeezed = squeezed.collect();
            self.check_quotas(now);
            self.check_verdicts(now);
            self.alerts.check_node(now, NodeObservation { at_lower_bound: squeezed, ..seen });
        }
        if self.alerts.deliver(now) || self.pace.is_awake() {
            self.news.note(timer::unix_ms());
        }
    }

    /// The name of a container that is busy and has been taken down to a lower bound that is below its upper one.
    fn at_lower_bound(&self, id: CgroupId, managed: &ManagedContainer) -> Option<String> {
        let view = self.views.get(id)?;
        let full = u64::from(view.cpus) * 1_000;
        let is = view.cpus == view.cpus_lower
            && view.cpus_lower < view.cpus_upper
            && managed.cpu_used_millicpu >= self.config.view_rules.cpu_busy.of(full);
        let container = is.then(|| self.views.group(id)?.container.as_ref()).flatten()?;
        Some(container.name.clone().unwrap_or_else(|| managed.path.clone()))
    }

    /// Takes an answer of the limiter.
    pub(super) fn on_limiter_reply(&mut self, reply: LimiterReply) {
        match reply {
            LimiterReply::Memory(done, user) => {
                if done.what == OrderKind::Reclaim {
                    // A limit that was lowered for it was put back before the answer: what is read now is the user's.
                    self.sensor.read_again(done.group);
                    self.handle_cgroup_changes();
                }
                self.memory.on_limiter_reply(&done);
                let changed = self.pipeline.memory_limits.on_reply(&done, user);
                self.apply(&[HostEvent::MemoryDone(done)]);
                self.apply(changed.as_slice());
            }
            LimiterReply::Limits(limits) => {
                self.disk.on_limits(&limits);
                if self.disk.governs(limits.group, limits.disk) {
                    self.pipeline.io_limits.on_reply(limits);
                }
                self.apply(&[HostEvent::IoLimits(limits)]);
            }
            LimiterReply::Heartbeat { limits, held } => self.disk.on_heartbeat(limits, held),
        }
    }

    /// Does what the memory governor leaves to the policy loop.
    pub(super) fn apply_effects(&mut self, effects: Vec<MemoryEffect>) {
        for effect in effects {
            match effect {
                MemoryEffect::Order(order, path) => {
                    self.pipeline.memory_limits.on_order(&order);
                    self.memory.send(order, path);
                }
                MemoryEffect::ViewCeiling(view_ceiling) => {
                    self.apply(&[HostEvent::ViewCeiling(view_ceiling)])
                }
                MemoryEffect::NotifyPressure(group) => self.notify_pressure(group),
                MemoryEffect::Warn(alert) => self.alerts.record(alert),
            }
        }
    }

    /// Asks the programs of a container for memory.
    fn notify_pressure(&mut self, id: CgroupId) {
        let pid = self.living_process(id).or_else(|| self.init_pid_in_turn(id).flatten());
        if let (Some(pid), Some(managed)) = (pid, self.containers.get(&id)) {
            self.pressure_notifier.notify(id, PressureTarget { path: managed.path.clone(), pid });
        }
    }

    /// Takes what an application said about itself.
    pub(super) fn on_probe(&mut self, said: ProbeEvent) {
        if let Some(heard) = self.probes.on_probe(said, timer::now()) {
            self.apply(&[HostEvent::Probe(heard)]);
        }
    }

    /// Takes limits off and views out, so that a clean stop leaves nothing behind; before a restart, only limits.
    pub(super) fn stop(&mut self) -> Result<()> {
        // First, and beside the rest: of the time there is for a stop, hooks and a slow disk may take half.
        let detached = (!self.publisher.keeps_views_on_stop()).then(|| self.detach_all());
        self.probes.stop();
        self.disk.stop();
        self.alerts.stop();
        detached.map_or(Ok(()), |detached| detached.recv_timeout(DETACH_TIMEOUT)).map_err(|_| {
            anyhow::anyhow!("views could not be detached in {} s: look for fuse.elbowroom in the containers' mount tables", DETACH_TIMEOUT.as_secs())
        })
    }

    /// The one way in for events: of the sensor, of measurements, of the limiter, of labels and of probes. Each passes the pipeline,
    /// then views, then, as governors may know it, disks and memory.
    pub(super) fn apply(&mut self, events: &[HostEvent]) {
        for event in events {
            if let HostEvent::Gone(id) = event
                && self.containers.contains_key(id)
            {
                self.remember_end(*id, timer::now());
            }
            if let Some(id) =
                self.pipeline.ungoverned_group(event).filter(|id| self.disk.container_name(*id).is_some())
            {
                self.remove_from_governors(id);
            }
        }
        let events: Vec<Cow<'_, HostEvent>> =
            events.iter().filter_map(|event| self.pipeline.resolve(event)).collect();
        let events = || events.iter().map(Cow::as_ref);
        let unix_ms = timer::unix_ms();
        events().for_each(|event| self.news.note_event(event, unix_ms));
        let changes = self.views.apply_all(events());
        if !changes.is_empty() {
            self.news.note(unix_ms);
        }
        let mut stale: Vec<CgroupId> = Vec::new();
        for change in &changes {
            tracing::debug!(container = change.id.0, %change, "view changed");
            let tenant = self.tenant_id(change.id);
            self.recent_changes.push_view(tenant, change, || self.disk.container_name(change.id).cloned());
            match change.because {
                ViewChangeReason::Gone => self.remove_container(change.id),
                _ => stale.push(change.id),
            }
        }
        let mut effects = Vec::new();
        for event in events() {
            self.node.apply(event);
            if let HostEvent::Group(group) = event {
                self.add_container(group);
                // A setting that changes no effective value (shares, a soft limit) still shows in its own file.
                stale.push(group.id);
            }
            let governed = self.pipeline.for_governors(event);
            self.disk.apply(&governed);
            effects.extend(self.memory.apply(&governed));
            self.alerts.apply(event);
        }
        self.disk.recheck(self.pipeline.io_limits.take_overwritten());
        self.disk.take_released().into_iter().for_each(|disk| self.pipeline.io_limits.remove_disk(disk));
        stale.sort_unstable();
        stale.dedup();
        for id in stale {
            self.publish_view(id);
        }
        self.apply_effects(effects);
    }

    /// Has governors forget a container that lives on: what is told of it afterwards is all they know, and limits come off.
    fn remove_from_governors(&mut self, id: CgroupId) {
        let gone = self.pipeline.leaves_governors(id);
        self.disk.apply(&gone);
        let effects = self.memory.apply(&gone);
        self.apply_effects(effects);
        self.disk.remove_container(id);
    }
}

/// Whether limits of CPU and of memory are in cgroup v2. A controller that is nowhere has no files to cover.
fn limits_in_v2(sensor: &Sensor) -> [bool; 2] {
    let layout = sensor.layout();
    let version = |controller| layout.index(controller).map(|at| layout.hierarchies()[at].version);
    [CgroupController::Cpu, CgroupController::Memory]
        .map(|controller| version(controller) == Some(CgroupVersion::V2))
}
