//! The disk governor at work: decisions of [`DiskGovernor`] become limits, alerts and answers.
//!
//! Everything here runs on the policy loop's thread and waits for nothing. A [`Limiter`] of its own puts limits on, and
//! [`DiskCapacityStore`] writes capacities. The outcome of a limit comes back as [`HostEvent::IoLimits`] and goes through the governor like
//! every other event, so a recording of its events replays to the same decisions.

use super::Mailbox;
use super::disk_capacities::DiskCapacityStore;
use super::limiter::{Limiter, LimiterKind};
use super::pending_limits::{GroupDisk, PendingLimits};
use crate::config::AgentConfig;
use anyhow::Result;
use elbowroom_client::api::{AlertView, ContainerRef, DiskGovernorStats, DisksReport};
use elbowroom_govern::GovernorMode;
use elbowroom_govern::disk::{Cap, ContainerDiskStatus, DiskGovernor, DiskOrder};
use elbowroom_linux::cgroup::{CgroupController, CgroupLayout};
use elbowroom_linux::root::Root;
use elbowroom_linux::timer;
use elbowroom_types::alert::Alert;
use elbowroom_types::id::{CgroupId, DeviceNumber};
use elbowroom_types::io::{DiskStat, IoLimits, IoMax, IoWeightMechanism};
use elbowroom_types::sample::{CgroupProperties, HostEvent};
use elbowroom_types::unit::Micros;
use std::collections::BTreeMap;
use std::path::Path;

/// How often the guard is told that we work; it waits for three of them.
const HEARTBEAT_INTERVAL: Micros = Micros::secs(1);

/// A limiter and its beats.
struct BeatingLimiter {
    limiter: Limiter,
    /// A beat that was not answered: the limiter is busy.
    heartbeat_pending: bool,
    /// When the next beat is due: at once where the answer came late.
    heartbeat_at: Micros,
    /// Limits of it that are in force.
    held: usize,
}

/// The limiters that are at work.
#[derive(Default)]
struct Limiters {
    memory: Option<BeatingLimiter>,
    disks: Option<BeatingLimiter>,
}

impl Limiters {
    fn all(&mut self) -> impl Iterator<Item = &mut BeatingLimiter> {
        self.memory.iter_mut().chain(&mut self.disks)
    }

    /// Starts them, and says why disks cannot be limited here, where that is so.
    fn start(&mut self, run_dir: &Path, mailbox: &Mailbox) -> Result<Option<String>> {
        let start = |kind| {
            let limiter = Limiter::start(kind, run_dir, mailbox.clone())?;
            anyhow::Ok(Some(BeatingLimiter {
                limiter,
                heartbeat_pending: false,
                heartbeat_at: Micros::ZERO,
                held: 0,
            }))
        };
        self.memory = start(LimiterKind::Memory)?;
        self.disks = start(LimiterKind::Disks)?;
        let layout = CgroupLayout::detect(&Root::host()?)?;
        Ok(layout.index(CgroupController::Io).is_none().then(|| {
            "no io controller: add blkio (cgroup v1) or io (cgroup.subtree_control of the root) and restart the agent".to_owned()
        }))
    }
}

/// The governor, and what carries its orders out.
pub(super) struct DiskEnforcer {
    disks: DiskGovernor,
    mode: GovernorMode,
    /// Present when some governor's orders are carried out.
    limiters: Limiters,
    /// Whether limits on disks are.
    limits_enabled: bool,
    /// Why they are not, though they should be.
    not_enforced: Option<String>,
    /// When disks are measured, glanced at, and the guard is told, next.
    measure_at: Micros,
    glance_at: Micros,
    /// A disk has just become slow: the next measurement is of all containers.
    is_urgent: bool,
    /// What the running measurement took until now.
    measure_cost: Micros,
    containers: BTreeMap<CgroupId, ContainerRef>,
    weights: BTreeMap<DeviceNumber, IoWeightMechanism>,
    pending: PendingLimits,
    /// Disks that are not governed any more, until that is asked for.
    released: Vec<DeviceNumber>,
    /// What a disk's number stands for: numbers are used again.
    identities: BTreeMap<DeviceNumber, String>,
    /// Alerts that were not taken yet.
    alerts: Vec<Alert>,
    capacities: Option<DiskCapacityStore>,
    status: DiskGovernorStats,
}

impl DiskEnforcer {
    /// Starts what the configuration asks for. Logs what this host lacks, and goes on without it.
    pub(super) fn open(
        config: &AgentConfig,
        run_dir: &Path,
        state_dir: &Path,
        mailbox: Mailbox,
    ) -> Result<Self> {
        let mode = config.disk.mode;
        let mut disks = DiskGovernor::new(config.disk.clone(), config.claims.clone());
        let mut capacities = None;
        let (mut limiters, mut not_enforced) = (Limiters::default(), None);
        if mode != GovernorMode::Off {
            let opened = DiskCapacityStore::open(state_dir);
            opened.known().for_each(|(identity, capacity)| disks.seed_capacity(identity, capacity));
            capacities = Some(opened);
        }
        if [mode, config.memory.mode].contains(&GovernorMode::Enforce) {
            match limiters.start(run_dir, &mailbox) {
                Ok(why) => not_enforced = why,
                Err(error) => not_enforced = Some(elbowroom_client::output::one_line(&error)),
            }
            if mode == GovernorMode::Enforce
                && let Some(why) = &not_enforced
            {
                tracing::warn!(because = why, "limits on disks are only shown, not set");
            }
        }
        let limits = mode == GovernorMode::Enforce && not_enforced.is_none();
        tracing::info!(mode = ?mode, policy = ?config.disk.policy, period = %config.disk.period, "governing disks");
        Ok(Self {
            disks,
            mode,
            limiters,
            limits_enabled: limits,
            not_enforced,
            measure_at: Micros::ZERO,
            glance_at: Micros::ZERO,
            is_urgent: false,
            measure_cost: Micros::ZERO,
            containers: BTreeMap::new(),
            weights: BTreeMap::new(),
            pending: PendingLimits::default(),
            released: Vec::new(),
            identities: BTreeMap::new(),
            alerts: Vec::new(),
            capacities,
            status: DiskGovernorStats::default(),
        })
    }

    /// How long nothing is to be done for disks.
    pub(super) fn idle_for(&self, now: Micros) -> Micros {
        let glances = self.mode != GovernorMode::Off && self.disks.needs_glances();
        let next = if glances { self.glance_at.min(self.measure_at) } else { self.measure_at };
        if self.mode == GovernorMode::Off { Micros::secs(1) } else { next.saturating_sub(now) }
    }

    /// Whether limits of any kind are in force.
    pub(super) fn holds_limits(&self) -> bool {
        self.status.held > 0
    }

    /// Whether the disks' own counters are to be looked at now.
    pub(super) fn is_glance_due(&self, now: Micros) -> bool {
        self.mode != GovernorMode::Off && now >= self.glance_at && self.disks.needs_glances()
    }

    /// Takes the disks' own counters in: a disk that became slow is measured at once.
    pub(super) fn glance(&mut self, now: Micros, disks: &[(DeviceNumber, DiskStat)]) {
        self.glance_at = now.saturating_add(self.disks.early_period());
        if let Some(at) = self.disks.glance(now, disks) {
            self.measure_at = self.measure_at.min(at);
            self.is_urgent = true;
        }
    }

    /// Whether disks are to be measured now, or a measurement is to be carried on. Half a period early is due, so that the processor wakes
    /// once for this and for what else there is to do.
    pub(super) fn is_due(&self, now: Micros) -> bool {
        let early = if self.is_urgent { 0 } else { self.disks.settings().period.get() / 2 };
        self.mode != GovernorMode::Off && now.saturating_add(Micros(early)) >= self.measure_at
    }

    /// Whether containers are to be measured too that seem to do nothing.
    pub(super) fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    /// What a measurement took, or a part of one.
    pub(super) fn on_measured(&mut self, took: Micros, complete: bool) {
        self.measure_cost = self.measure_cost.saturating_add(took);
        if complete {
            self.status.tick_usec = std::mem::take(&mut self.measure_cost).get();
            let (now, period) = (timer::now(), self.disks.settings().period);
            // The next full period, as the ticker does it: what was missed is not made up for.
            let next = self.measure_at.saturating_add(period);
            self.measure_at = if next > now { next } else { now.saturating_add(period) };
        }
    }

    /// Lets the governor know, and does what it says.
    pub(super) fn apply(&mut self, event: &HostEvent) {
        if let HostEvent::Group(group) = event {
            self.add_container(group);
        }
        if self.mode == GovernorMode::Off {
            return;
        }
        match event {
            HostEvent::Disk(disk) => {
                let before = self.identities.insert(disk.number, disk.identity.clone());
                if before.is_some_and(|before| before != disk.identity) {
                    self.release_disk(disk.number);
                }
                match disk.weights {
                    Some(weights) => drop(self.weights.insert(disk.number, weights)),
                    None => drop(self.weights.remove(&disk.number)),
                }
            }
            HostEvent::DiskGone(number) => {
                self.weights.remove(number);
                self.identities.remove(number);
                self.release_disk(*number);
            }
            HostEvent::DiskTick(_) => self.status.ticks += 1,
            _ => {}
        }
        let begin = matches!(event, HostEvent::DiskTick(_)).then(timer::now);
        let orders = self.disks.apply(event);
        if let Some(begin) = begin {
            let now = timer::now();
            self.status.decide_usec = now.saturating_sub(begin).get();
            self.is_urgent = self.disks.needs_early_sample();
            if self.is_urgent {
                self.measure_at = self.measure_at.min(now.saturating_add(self.disks.early_period()));
            }
        }
        orders.into_iter().for_each(|order| self.execute(order));
    }

    /// Another program has written over limits of ours: the thread that carries orders out looks at them again.
    pub(super) fn recheck(&mut self, places: Vec<GroupDisk>) {
        places.into_iter().for_each(|place| self.pending.requeue(place));
    }

    /// Whether a container on a disk is governed.
    pub(super) fn governs(&self, group: CgroupId, disk: DeviceNumber) -> bool {
        self.containers.contains_key(&group) && self.identities.contains_key(&disk)
    }

    /// Disks that are not governed any more since the last call.
    pub(super) fn take_released(&mut self) -> Vec<DeviceNumber> {
        std::mem::take(&mut self.released)
    }

    /// A disk is not governed any more, or another one has its number: nothing of ours stays there.
    fn release_disk(&mut self, disk: DeviceNumber) {
        self.released.push(disk);
        for group in self.pending.remove_disk(disk) {
            let because = "this disk is not governed any more".to_owned();
            self.pending.push(Cap { at: timer::now(), group, disk, max: IoMax::MAX, weight: None, because });
        }
    }

    /// A container is gone.
    pub(super) fn remove_container(&mut self, group: CgroupId) {
        if self.containers.remove(&group).is_none() {
            return;
        }
        self.pending.remove_group(group);
        self.limiters.all().for_each(|beating| beating.limiter.forget(group));
    }

    /// Takes an answer of the limiter about limits on a disk.
    pub(super) fn on_limits(&mut self, limits: &IoLimits) {
        self.pending.complete((limits.group, limits.disk));
        match limits.ceded {
            None => self.status.written += 1,
            Some(_) => self.status.not_written += 1,
        }
    }

    /// A limiter has told the guard that it works.
    pub(super) fn on_heartbeat(&mut self, limits: LimiterKind, held: usize) {
        let beating = match limits {
            LimiterKind::Memory => &mut self.limiters.memory,
            LimiterKind::Disks => &mut self.limiters.disks,
        };
        if let Some(beating) = beating {
            (beating.heartbeat_pending, beating.held) = (false, held);
        }
        self.status.held = self.limiters.all().map(|beating| beating.held as u64).sum();
    }

    /// Gives the limits that are due to the limiter.
    pub(super) fn send_caps(&mut self, now: Micros) {
        let Some(beating) = &self.limiters.disks else { return };
        for cap in self.pending.due(now) {
            match self.containers.get(&cap.group) {
                Some(container) => {
                    let weights = self.weights.get(&cap.disk).copied();
                    beating.limiter.cap(cap, container.path.clone(), weights);
                }
                None => self.pending.complete((cap.group, cap.disk)),
            }
        }
    }

    /// The chores of one of the policy loop's ticks.
    pub(super) fn tick(&mut self, now: Micros) {
        for beating in self.limiters.all() {
            if now >= beating.heartbeat_at && !beating.heartbeat_pending {
                beating.limiter.heartbeat();
                beating.heartbeat_pending = true;
                beating.heartbeat_at = now.saturating_add(HEARTBEAT_INTERVAL);
            }
        }
        if let Some(capacities) = &mut self.capacities
            && capacities.is_due(now)
        {
            capacities.update(now, self.disks.learned_capacities());
        }
    }

    /// What a container is called.
    pub(super) fn container_name(&self, group: CgroupId) -> Option<&ContainerRef> {
        self.containers.get(&group)
    }

    /// Where a container stands at its disks; `history` decides whether decisions are in it.
    pub(super) fn container_statuses(&self, group: CgroupId, history: bool) -> Vec<ContainerDiskStatus> {
        let mut statuses = self.disks.disk_statuses(group);
        if !history {
            statuses.iter_mut().for_each(|status| status.decisions.clear());
        }
        statuses
    }

    /// Answer to `ControlRequest::Disks`.
    pub(super) fn report(&self, name: impl Fn(Alert) -> AlertView) -> DisksReport {
        DisksReport {
            mode: self.mode,
            not_enforced: self.not_enforced.clone(),
            policy: self.disks.settings().policy,
            disks: self.disks.disks(),
            alerts: self.disks.alerts().into_iter().map(name).collect(),
        }
    }

    /// Counters for `ControlRequest::Status`.
    pub(super) fn status(&self) -> DiskGovernorStats {
        self.status.clone()
    }

    /// Takes every limit off, keeps what was learned, and ends the threads.
    pub(super) fn stop(&mut self) {
        let Limiters { memory, disks } = std::mem::take(&mut self.limiters);
        Limiter::stop(memory.into_iter().chain(disks).map(|beating| beating.limiter));
        if let Some(mut capacities) = self.capacities.take() {
            capacities.update(timer::now(), self.disks.learned_capacities());
            capacities.stop();
        }
    }

    fn add_container(&mut self, group: &CgroupProperties) {
        let Some(container) = &group.container else { return };
        let named =
            ContainerRef { id: container.id.clone(), name: container.name.clone(), path: group.path.clone() };
        self.containers.insert(group.id, named);
    }

    fn execute(&mut self, order: DiskOrder) {
        match order {
            DiskOrder::Cap(cap) => {
                tracing::debug!(
                    container = self.containers.get(&cap.group).map(|c| &c.path),
                    disk = %cap.disk,
                    max = %format_io_max(cap.max),
                    because = cap.because,
                    "limit decided"
                );
                if self.limits_enabled {
                    self.pending.push(cap);
                }
            }
            DiskOrder::Alert(alert) => self.alerts.push(alert),
        }
    }

    /// What began or ended since the last call.
    pub(super) fn take_alerts(&mut self) -> Vec<Alert> {
        std::mem::take(&mut self.alerts)
    }

    /// What carries orders about memory out, where that is done.
    pub(super) fn memory_limiter(&self) -> Option<Limiter> {
        self.limiters.memory.as_ref().map(|beating| beating.limiter.clone())
    }
}

/// The limits that are there, as `io.max` spells them.
pub(crate) fn format_io_max(max: IoMax) -> String {
    let IoMax { rbps, wbps, riops, wiops } = max;
    format!("rbps={rbps} wbps={wbps} riops={riops} wiops={wiops}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::event_pipeline::EventPipeline;
    use elbowroom_types::alert::AlertKind;
    use elbowroom_types::container::{ContainerEngine, ContainerIdentity};
    use elbowroom_types::io::{CgroupIo, DiskProperties, DiskTick, IoStat, LimitWriteFailure};
    use elbowroom_types::sample::CgroupSettings;
    use elbowroom_types::unit::Limit;
    use std::sync::{Arc, mpsc};

    const DISK: DeviceNumber = DeviceNumber { major: 7, minor: 0 };
    const GROUP: CgroupId = CgroupId(3);

    const fn writes(wbps: u64) -> IoMax {
        IoMax { wbps: Limit::At(wbps), ..IoMax::MAX }
    }

    const fn limits(user: IoMax, ours: IoMax, ceded: Option<LimitWriteFailure>) -> IoLimits {
        IoLimits { group: GROUP, disk: DISK, user, ours, ceded }
    }

    /// A container on a disk, and no thread that carries orders out.
    fn enforcer(state: &Path) -> DiskEnforcer {
        let (queue, _) = mpsc::channel();
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        let mailbox = Mailbox { queue, wake: Arc::new(wake) };
        let mut enforcer = DiskEnforcer::open(&AgentConfig::default(), state, state, mailbox).unwrap();
        let container = ContainerIdentity {
            id: "c".into(),
            name: None,
            engine: ContainerEngine::Docker,
            pod: None,
            labels: Default::default(),
        };
        enforcer.apply(&HostEvent::Group(CgroupProperties {
            id: GROUP,
            parent: None,
            path: "/c".into(),
            container: Some(container),
            limits: CgroupSettings::default(),
            populated: true,
            made_by_user: false,
        }));
        enforcer.apply(&HostEvent::Disk(DiskProperties {
            number: DISK,
            name: "loop0".into(),
            identity: "loop0".into(),
            rotational: false,
            scheduler: "none".into(),
            weights: None,
            swap: false,
        }));
        enforcer
    }

    fn ticks(enforcer: &mut DiskEnforcer, seconds: impl Iterator<Item = u64>) {
        for now in seconds.map(Micros::secs) {
            let io = vec![IoStat { device: DISK, ..IoStat::default() }];
            let groups = vec![CgroupIo { group: GROUP, stalled: None, dirty: None, io }];
            let disks = vec![(DISK, Default::default())];
            enforcer.apply(&HostEvent::DiskTick(DiskTick { now, pressure: None, disks, groups }));
        }
    }

    fn pipeline() -> EventPipeline {
        EventPipeline::new(AgentConfig::default().containers)
    }

    /// As the policy loop does it.
    fn apply(pipeline: &mut EventPipeline, enforcer: &mut DiskEnforcer, event: HostEvent) {
        pipeline.resolve(&event).iter().for_each(|event| enforcer.apply(event));
        enforcer.recheck(pipeline.io_limits.take_overwritten());
        enforcer.take_released().into_iter().for_each(|disk| pipeline.io_limits.remove_disk(disk));
    }

    fn reply(pipeline: &mut EventPipeline, enforcer: &mut DiskEnforcer, limits: IoLimits) {
        enforcer.on_limits(&limits);
        pipeline.io_limits.on_reply(limits);
        apply(pipeline, enforcer, HostEvent::IoLimits(limits));
    }

    #[test]
    fn a_limit_that_was_ceded_stays_so_whatever_the_sensor_reads() {
        let state = tempfile::tempdir().unwrap();
        let (mut pipeline, mut enforcer) = (pipeline(), enforcer(state.path()));
        let foreign = |enforcer: &DiskEnforcer| {
            enforcer.disks.alerts().iter().any(|a| a.kind == AlertKind::ForeignWriter)
        };
        ticks(&mut enforcer, 0..2);
        reply(&mut pipeline, &mut enforcer, limits(writes(77), IoMax::MAX, Some(LimitWriteFailure::Foreign)));
        // An alert lingers for ten seconds.
        for (at, found) in [(2, 77), (20, 78), (40, 78)] {
            apply(&mut pipeline, &mut enforcer, HostEvent::IoLimits(limits(writes(found), IoMax::MAX, None)));
            ticks(&mut enforcer, at..at + 18);
            assert!(foreign(&enforcer), "{at}");
            assert_eq!(pipeline.io_limits.user(GROUP, DISK), Some(writes(found)));
        }
        ticks(&mut enforcer, 58..602);
        assert!(foreign(&enforcer));
        ticks(&mut enforcer, 602..620);
        assert!(!foreign(&enforcer), "ten minutes are over");
        reply(&mut pipeline, &mut enforcer, limits(writes(78), IoMax::MAX, Some(LimitWriteFailure::Foreign)));
        apply(&mut pipeline, &mut enforcer, HostEvent::DiskGone(DISK));
        assert_eq!(pipeline.io_limits.user(GROUP, DISK), None, "nothing is known of a disk that is gone");
    }

    #[test]
    fn what_is_in_a_knob_of_ours_and_is_not_ours_is_looked_at_again() {
        let state = tempfile::tempdir().unwrap();
        let (mut pipeline, mut enforcer) = (pipeline(), enforcer(state.path()));
        let cap = Cap {
            at: Micros::ZERO,
            group: GROUP,
            disk: DISK,
            max: writes(50),
            weight: None,
            because: String::new(),
        };
        enforcer.pending.push(cap);
        let orders = |enforcer: &mut DiskEnforcer, at| enforcer.pending.due(Micros::secs(at)).len();
        assert_eq!(orders(&mut enforcer, 0), 1);
        reply(&mut pipeline, &mut enforcer, limits(IoMax::MAX, writes(50), None));
        let riops = IoMax { riops: Limit::At(9), ..writes(50) };
        for (at, found, again) in [(1, writes(50), 0), (2, riops, 0), (3, writes(60), 1)] {
            apply(&mut pipeline, &mut enforcer, HostEvent::IoLimits(limits(found, IoMax::MAX, None)));
            assert_eq!(orders(&mut enforcer, at), again, "{at}");
        }
        assert_eq!(pipeline.io_limits.user(GROUP, DISK), Some(IoMax { riops: Limit::Max, ..IoMax::MAX }));
    }
}
