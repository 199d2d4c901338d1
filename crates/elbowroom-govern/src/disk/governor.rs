//! The governor of all disks of a machine: what events do to it.

use super::flow::IoCounters;
use super::governed_disk::GovernedDisk;
use super::groups::Groups;
use super::member::DiskMember;
use super::meter::{MAX_PERIOD, MeterReading};
use super::{ContainerDiskStatus, DiskOrder, DiskPolicy, DiskSettings, DiskView, aridac, lifeline};
use crate::alert::conditions::Conditions;
use elbowroom_types::alert::Alert;
use elbowroom_types::claim::Claim;
use elbowroom_types::container::ContainerIdentity;
use elbowroom_types::id::{CgroupId, DeviceNumber};
use elbowroom_types::io::{CgroupIo, DiskProperties, DiskStat, DiskTick, IoLimits, IoMax};
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::{Limit, Micros};
use std::collections::BTreeMap;

/// Disks that are away and of which it is remembered what they can do.
const MAX_REMEMBERED: usize = 1_000;

/// The governor of all disks of a machine: a pure state machine over events.
///
/// The same events give the same orders. Containers are those that [`HostEvent::Group`] told of; the rest is left out, as are
/// disks without an [`HostEvent::Disk`]. Nothing can fail: numbers that cannot be true saturate.
#[derive(Debug)]
pub struct DiskGovernor {
    settings: DiskSettings,
    claims: Vec<Claim>,
    groups: Groups,
    devices: BTreeMap<DeviceNumber, GovernedDisk>,
    remembered_capacities: BTreeMap<String, IoMax>,
    alerts: Conditions,
    last: Option<Micros>,
}

impl DiskGovernor {
    /// A governor that knows no disk.
    pub fn new(settings: DiskSettings, claims: Vec<Claim>) -> Self {
        Self {
            settings,
            claims,
            groups: Groups::default(),
            devices: BTreeMap::new(),
            remembered_capacities: BTreeMap::new(),
            alerts: Conditions::default(),
            last: None,
        }
    }

    /// What a container claims.
    pub fn claim(&self, container: &ContainerIdentity) -> Claim {
        elbowroom_types::container::claim_for(&self.claims, container)
    }

    /// The choices in force.
    pub fn settings(&self) -> &DiskSettings {
        &self.settings
    }

    /// Takes an event in, and says what to do about it. Only [`HostEvent::DiskTick`] ever gives caps: at most one per container
    /// and disk.
    pub fn apply(&mut self, event: &HostEvent) -> Vec<DiskOrder> {
        match event {
            HostEvent::Node(_) | HostEvent::Tick(_) => Vec::new(),
            HostEvent::MemoryTick(_)
            | HostEvent::MemoryDone(_)
            | HostEvent::Probe(_)
            | HostEvent::ViewCeiling(_) => Vec::new(),
            HostEvent::Group(group) => {
                self.groups.upsert(group, &self.claims);
                Vec::new()
            }
            HostEvent::Gone(id) => self.remove_group(*id),
            HostEvent::Disk(disk) => self.add_disk(disk),
            HostEvent::DiskGone(number) => self.remove_disk(*number),
            HostEvent::IoLimits(limits) => {
                self.update_limits(limits);
                Vec::new()
            }
            HostEvent::DiskTick(tick) => self.tick(tick),
        }
    }

    /// How often disks are to be glanced at, and how soon one that has just become slow is to be measured again.
    pub fn early_period(&self) -> Micros {
        self.settings.lifeline.constants.early_period
    }

    /// Whether the next [`HostEvent::DiskTick`] is wanted after [`Self::early_period`]: a disk that several containers use became slow in
    /// the last period. That period says little about which containers are hurt, because the disk was fast for most of it.
    pub fn needs_early_sample(&self) -> bool {
        self.devices.values().any(|device| device.model.needs_early_sample())
    }

    /// Whether [`Self::glance`] can find something: a container uses a disk, and another could hurt it there.
    pub fn needs_glances(&self) -> bool {
        let in_use = |device: &GovernedDisk| device.members.iter().any(|m| m.flow.operations() > 0.0);
        self.settings.policy == DiskPolicy::Lifeline
            && self.devices.values().any(|device| device.members.len() >= 2 && in_use(device))
    }

    /// Takes in the disks' own counters, between two [`HostEvent::DiskTick`]s, once per [`Self::early_period`]. When the next
    /// [`HostEvent::DiskTick`] is wanted, if a disk that several containers use has become slow since the last time: at once, or as soon
    /// as it says something. No decision depends on a glance, so a recording without them replays.
    pub fn glance(&mut self, now: Micros, disks: &[(DeviceNumber, DiskStat)]) -> Option<Micros> {
        let early = self.early_period();
        let mut alarm = false;
        for (number, stat) in disks.iter().filter(|_| self.settings.policy == DiskPolicy::Lifeline) {
            if let Some(device) = self.devices.get_mut(number)
                && let MeterReading::Period(load) = device.glances.read(now, stat, early)
                && device.members.len() >= 2
            {
                alarm |= device.model.becomes_slow(&load);
            }
        }
        alarm.then(|| self.last.map_or(now, |last| now.max(last.saturating_add(early))))
    }

    /// Learned capacities, to be kept over a restart: disk identity, and what it could do of each kind if it did nothing else
    /// and the other kinds cost nothing.
    pub fn learned_capacities(&self) -> Vec<(String, IoMax)> {
        let learned = self.devices.values().filter_map(|device| {
            Some((device.disk.identity.clone(), device.model.capacity()?.rates_by_kind()))
        });
        learned.collect()
    }

    /// Starts from what was learned before. Disks that are met later and have this identity begin with it.
    pub fn seed_capacity(&mut self, identity: &str, capacity: IoMax) {
        self.remembered_capacities.insert(identity.to_owned(), capacity);
    }

    /// Every governed disk, ascending.
    pub fn disks(&self) -> Vec<DiskView> {
        self.devices.values().map(|device| self.view(device)).collect()
    }

    /// Where a container stands at every disk it uses, ascending.
    pub fn disk_statuses(&self, group: CgroupId) -> Vec<ContainerDiskStatus> {
        let status = |device: &GovernedDisk| {
            let member = device.members.iter().find(|member| member.group == group)?;
            let (used, lifeline) = self.used_and_lifeline(device, member);
            let [rbps, wbps, riops, wiops] = member.flow.0.map(|x| x as u64);
            Some(ContainerDiskStatus {
                disk: device.disk.number,
                name: device.disk.name.clone(),
                rbps,
                wbps,
                riops,
                wiops,
                used,
                lifeline,
                cap: member.share,
                max: member.ordered_max,
                enforced: member.is_enforced(),
                held_by: member.held_by,
                decisions: member.decisions.iter().cloned().collect(),
            })
        };
        self.devices.values().filter_map(status).collect()
    }

    /// The alerts that last now.
    pub fn alerts(&self) -> Vec<Alert> {
        self.alerts.active().cloned().collect()
    }

    fn remove_group(&mut self, id: CgroupId) -> Vec<DiskOrder> {
        let gone = self.groups.remove(id);
        for device in self.devices.values_mut() {
            device.members.retain(|member| !gone.contains(&member.group));
        }
        let now = self.last.unwrap_or_default();
        let ended = self.alerts.forget(now, |_, group| group.is_some_and(|group| gone.contains(&group)));
        ended.into_iter().map(DiskOrder::Alert).collect()
    }

    fn add_disk(&mut self, disk: &DiskProperties) -> Vec<DiskOrder> {
        let same =
            |device: &GovernedDisk| device.disk.identity == disk.identity && device.disk.name == disk.name;
        match self.devices.get_mut(&disk.number) {
            Some(device) if same(device) => {
                device.disk = disk.clone();
                Vec::new()
            }
            before => {
                // Numbers are used again: another disk is behind this one.
                let ended = if before.is_some() { self.remove_disk(disk.number) } else { Vec::new() };
                let remembered = self.remembered_capacities.get(&disk.identity).copied();
                self.devices.insert(
                    disk.number,
                    GovernedDisk::new(disk, remembered, self.settings.lifeline.constants),
                );
                ended
            }
        }
    }

    fn remove_disk(&mut self, number: DeviceNumber) -> Vec<DiskOrder> {
        if let Some(device) = self.devices.remove(&number)
            && let Some(capacity) = device.model.capacity()
        {
            self.remembered_capacities.insert(device.disk.identity, capacity.rates_by_kind());
            // Volumes that come once and never again; one that is here is remembered once more when it goes.
            if self.remembered_capacities.len() > MAX_REMEMBERED {
                self.remembered_capacities.pop_first();
            }
        }
        let ended = self.alerts.forget(self.last.unwrap_or_default(), |disk, _| disk == Some(number));
        ended.into_iter().map(DiskOrder::Alert).collect()
    }

    fn update_limits(&mut self, limits: &IoLimits) {
        let now = self.last.unwrap_or_default();
        if let Some(device) = self.devices.get_mut(&limits.disk)
            && self.groups.is_governed(limits.group)
        {
            device.member_mut(limits.group, None).update_limits(limits, now);
        }
    }

    fn tick(&mut self, tick: &DiskTick) -> Vec<DiskOrder> {
        self.groups.record_stalls(&tick.groups);
        for group in &tick.groups {
            self.record_counters(group);
        }
        self.end_period(tick);
        let early = self.early_period();
        for device in self.devices.values_mut() {
            let stat = tick.disks.iter().find(|(number, _)| *number == device.disk.number);
            device.measure(tick.now, stat.map(|(_, stat)| stat), early);
            for member in device.members.iter().filter(|_| device.measured) {
                let bound = member.is_at_limit(member.agent_max) || member.is_at_limit(member.user_max);
                self.groups.record_io_time(member.group, device.load.request_time(member.flow), bound);
            }
        }
        let (groups, alerts) = (&self.groups, &mut self.alerts);
        let mut orders = Vec::new();
        for device in self.devices.values_mut().filter(|device| device.measured) {
            match self.settings.policy {
                DiskPolicy::Aridac => {
                    aridac::tick(device, &self.settings.aridac, groups, alerts, &mut orders)
                }
                DiskPolicy::Lifeline => {
                    lifeline::tick(device, &self.settings.lifeline, groups, alerts, &mut orders);
                }
            }
            device.raise_limit_alerts(groups, alerts, &mut orders);
        }
        orders
    }

    /// Takes in a container's counters, where it and the disk are governed.
    fn record_counters(&mut self, group: &CgroupIo) {
        if !self.groups.is_governed(group.group) {
            return;
        }
        for io in &group.io {
            let number = io.device;
            if let Some(device) = self.devices.get_mut(&number) {
                let counters = IoCounters::from(io);
                device.member_mut(group.group, Some(counters)).record_counters(counters);
            }
        }
    }

    /// Ends a period for everything that is not of one disk.
    fn end_period(&mut self, tick: &DiskTick) {
        let (elapsed, early) = (self.last.map(|last| tick.now.saturating_sub(last)), self.early_period());
        if elapsed.is_some_and(|elapsed| self.last <= Some(tick.now) && elapsed < early) {
            return;
        }
        self.last = Some(tick.now);
        let seconds = elapsed
            .filter(|elapsed| (early..=MAX_PERIOD).contains(elapsed))
            .map(|elapsed| elapsed.get() as f64 / 1e6);
        self.groups.end_period(seconds);
    }

    fn view(&self, device: &GovernedDisk) -> DiskView {
        let load = &device.load;
        let [rbps, wbps, riops, wiops] = load.flow.0.map(|x| x as u64);
        let (capacity, used) = match self.settings.policy {
            DiskPolicy::Aridac => {
                let max = Limit::At(self.settings.aridac.max_disk_io);
                let used = load.flow.bytes() / self.settings.aridac.max_disk_io.max(1) as f64;
                (IoMax { rbps: max, wbps: max, ..IoMax::MAX }, Some(used))
            }
            DiskPolicy::Lifeline => match device.model.capacity() {
                None => (IoMax::MAX, None),
                Some(capacity) => (capacity.max_rates(), Some(capacity.share(load.flow))),
            },
        };
        DiskView {
            number: device.disk.number,
            name: device.disk.name.clone(),
            capacity,
            rbps,
            wbps,
            riops,
            wiops,
            used,
            queue: load.queue,
            wait: Micros(load.mean_wait() as u64),
            base_wait: Micros(device.model.base_wait(load) as u64),
            promised: device.promised,
            state: device.state,
            exempt_reason: device.exempt_reason.clone(),
        }
    }

    /// The parts of a disk that a container uses, and that it is known to need.
    fn used_and_lifeline(&self, device: &GovernedDisk, member: &DiskMember) -> (Option<f64>, Option<f64>) {
        match self.settings.policy {
            DiskPolicy::Aridac => {
                let used = member.flow.bytes() / self.settings.aridac.max_disk_io.max(1) as f64;
                (Some(used), Some(member.samples.lifeline()))
            }
            DiskPolicy::Lifeline => {
                let share = |flow| device.model.capacity().map(|capacity| capacity.share(flow));
                (share(member.flow), share(member.demand.lifeline))
            }
        }
    }
}
