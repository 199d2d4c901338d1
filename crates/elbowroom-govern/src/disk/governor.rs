//! The governor of all disks of a machine: what events do to it.

use super::flow::Counters;
use super::groups::Groups;
use super::lifeline::Mind;
use super::member::Member;
use super::meter::{self, Load, Meter, Reading};
use super::{DiskView, Order, Policy, Settings, Standing, State, aridac, explain, lifeline};
use crate::alert::conditions::Conditions;
use elbowroom_types::alert::{Alert, Kind};
use elbowroom_types::claim;
use elbowroom_types::claim::Claim;
use elbowroom_types::sample::{
    Ceded, Container, DeviceNumber, Disk, DiskStat, DiskTick, Event, GroupId, GroupIo, IoLimits, IoMax,
};
use elbowroom_types::unit::{Limit, Micros};
use std::collections::BTreeMap;

/// Disks that are away and of which it is remembered what they can do.
const MOST_REMEMBERED: usize = 1_000;

/// The governor of all disks of a machine: a pure state machine over events.
///
/// The same events give the same orders. Containers are those that [`Event::Group`] told of; the rest is left out, as are
/// disks without an [`Event::Disk`]. Nothing can fail: numbers that cannot be true saturate.
#[derive(Debug)]
pub struct Disks {
    settings: Settings,
    claims: Vec<Claim>,
    groups: Groups,
    devices: BTreeMap<DeviceNumber, Device>,
    remembered: BTreeMap<String, IoMax>,
    alerts: Conditions,
    last: Option<Micros>,
    /// Time that every task of the machine waited for I/O, at the last tick.
    stalled: Option<Micros>,
}

/// A disk with the containers that use it.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) disk: Disk,
    meter: Meter,
    /// Whether this tick ended a period of it.
    measured: bool,
    /// The last period; all zero before the first.
    pub(super) load: Load,
    /// Ascending by container, so that sums do not depend on who was met first.
    pub(super) members: Vec<Member>,
    pub(super) state: State,
    /// Lifelines and reservations together, in parts of the capacity.
    pub(super) promised: f64,
    /// Why nothing is limited, where that is so by decision.
    pub(super) hands_off: Option<String>,
    /// What [`Policy::Lifeline`] knows of it.
    pub(super) mind: Mind,
}

impl Disks {
    /// A governor that knows no disk.
    pub fn new(settings: Settings, claims: Vec<Claim>) -> Self {
        Self {
            settings,
            claims,
            groups: Groups::default(),
            devices: BTreeMap::new(),
            remembered: BTreeMap::new(),
            alerts: Conditions::default(),
            last: None,
            stalled: None,
        }
    }

    /// What a container claims.
    pub fn claim(&self, container: &Container) -> Claim {
        claim::claim(&self.claims, container)
    }

    /// The choices in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes an event in, and says what to do about it. Only [`Event::DiskTick`] ever gives caps: at most one per container
    /// and disk.
    pub fn apply(&mut self, event: &Event) -> Vec<Order> {
        match event {
            Event::Node(_) | Event::Tick(_) => Vec::new(),
            Event::MemoryTick(_) | Event::MemoryDone(_) | Event::Heard(_) | Event::Export(_) => Vec::new(),
            Event::Group(group) => {
                self.groups.put(group, &self.claims);
                Vec::new()
            }
            Event::Gone(id) => self.gone(*id),
            Event::Disk(disk) => self.meet(disk),
            Event::DiskGone(number) => self.lose(*number),
            Event::IoLimits(limits) => {
                self.limits(limits);
                Vec::new()
            }
            Event::DiskTick(tick) => self.tick(tick),
        }
    }

    /// Whether the next [`Event::DiskTick`] is wanted soon: a disk looked saturated in the last period, which one period alone does
    /// not prove, and somebody may be starved meanwhile. A quarter of a second tells as much as a whole one.
    pub fn wonders(&self) -> bool {
        self.devices.values().any(|device| device.mind.wonders())
    }

    /// Learned capacities, to be kept over a restart: disk identity, and what it could do of each kind if it did nothing else
    /// and the other kinds cost nothing.
    pub fn capacities(&self) -> Vec<(String, IoMax)> {
        let learned = self
            .devices
            .values()
            .filter_map(|device| Some((device.disk.identity.clone(), device.mind.capacity()?.parts())));
        learned.collect()
    }

    /// Starts from what was learned before. Disks that are met later and have this identity begin with it.
    pub fn remember(&mut self, identity: &str, capacity: IoMax) {
        self.remembered.insert(identity.to_owned(), capacity);
    }

    /// Every governed disk, ascending.
    pub fn disks(&self) -> Vec<DiskView> {
        self.devices.values().map(|device| self.view(device)).collect()
    }

    /// Where a container stands at every disk it uses, ascending.
    pub fn standings(&self, group: GroupId) -> Vec<Standing> {
        let standing = |device: &Device| {
            let member = device.members.iter().find(|member| member.group == group)?;
            let (used, lifeline) = self.shares(device, member);
            let [rbps, wbps, riops, wiops] = member.flow.0.map(|x| x as u64);
            Some(Standing {
                disk: device.disk.number,
                name: device.disk.name.clone(),
                rbps,
                wbps,
                riops,
                wiops,
                used,
                lifeline,
                cap: member.share,
                max: member.ordered,
                enforced: member.enforced(),
                held_by: member.held_by,
                decisions: member.decisions.iter().cloned().collect(),
            })
        };
        self.devices.values().filter_map(standing).collect()
    }

    /// The alerts that last now.
    pub fn alerts(&self) -> Vec<Alert> {
        self.alerts.lasting().cloned().collect()
    }

    fn gone(&mut self, id: GroupId) -> Vec<Order> {
        let gone = self.groups.remove(id);
        for device in self.devices.values_mut() {
            device.members.retain(|member| !gone.contains(&member.group));
        }
        let now = self.last.unwrap_or_default();
        let ended = self.alerts.forget(now, |_, group| group.is_some_and(|group| gone.contains(&group)));
        ended.into_iter().map(Order::Alert).collect()
    }

    fn meet(&mut self, disk: &Disk) -> Vec<Order> {
        let same = |device: &Device| device.disk.identity == disk.identity && device.disk.name == disk.name;
        match self.devices.get_mut(&disk.number) {
            Some(device) if same(device) => {
                device.disk = disk.clone();
                Vec::new()
            }
            before => {
                // Numbers are used again: another disk is behind this one.
                let ended = if before.is_some() { self.lose(disk.number) } else { Vec::new() };
                let remembered = self.remembered.get(&disk.identity).copied();
                self.devices.insert(disk.number, Device::new(disk, remembered));
                ended
            }
        }
    }

    fn lose(&mut self, number: DeviceNumber) -> Vec<Order> {
        if let Some(device) = self.devices.remove(&number)
            && let Some(capacity) = device.mind.capacity()
        {
            self.remembered.insert(device.disk.identity, capacity.parts());
            // Volumes that come once and never again; one that is here is remembered once more when it goes.
            if self.remembered.len() > MOST_REMEMBERED {
                self.remembered.pop_first();
            }
        }
        let ended = self.alerts.forget(self.last.unwrap_or_default(), |disk, _| disk == Some(number));
        ended.into_iter().map(Order::Alert).collect()
    }

    fn limits(&mut self, limits: &IoLimits) {
        let now = self.last.unwrap_or_default();
        if let Some(device) = self.devices.get_mut(&limits.disk)
            && self.groups.governed(limits.group)
        {
            device.member(limits.group, None).limits(limits, now);
        }
    }

    fn tick(&mut self, tick: &DiskTick) -> Vec<Order> {
        self.groups.note(&tick.groups);
        for group in &tick.groups {
            self.count(group);
        }
        let waited = self.settle(tick);
        for device in self.devices.values_mut() {
            let stat = tick.disks.iter().find(|(number, _)| *number == device.disk.number);
            device.measure(tick.now, stat.map(|(_, stat)| stat));
            for member in device.members.iter().filter(|_| device.measured) {
                let bound = member.binds(member.ours) || member.binds(member.user);
                self.groups.explain(member.group, device.load.time(member.flow), bound);
            }
        }
        let (groups, alerts) = (&self.groups, &mut self.alerts);
        let mut orders = Vec::new();
        for device in self.devices.values_mut().filter(|device| device.measured) {
            match self.settings.policy {
                Policy::Aridac => aridac::tick(device, &self.settings.aridac, groups, alerts, &mut orders),
                Policy::Lifeline => {
                    lifeline::tick(device, &self.settings.lifeline, groups, waited, alerts, &mut orders);
                }
            }
            device.tell(groups, alerts, &mut orders);
        }
        orders
    }

    /// Takes in a container's counters, where it and the disk are governed.
    fn count(&mut self, group: &GroupIo) {
        if !self.groups.governed(group.group) {
            return;
        }
        for io in &group.io {
            let number = io.device;
            if let Some(device) = self.devices.get_mut(&number) {
                let counters = Counters::from(io);
                device.member(group.group, Some(counters)).count(counters);
            }
        }
    }

    /// Ends a period for everything that is not of one disk; which part of it all tasks of the machine waited for I/O.
    fn settle(&mut self, tick: &DiskTick) -> Option<f64> {
        let elapsed = self.last.map(|last| tick.now.saturating_sub(last));
        if elapsed.is_some_and(|elapsed| self.last <= Some(tick.now) && elapsed < meter::SHORTEST) {
            return None;
        }
        self.last = Some(tick.now);
        let seconds = elapsed
            .filter(|elapsed| (meter::SHORTEST..=meter::LONGEST).contains(elapsed))
            .map(|elapsed| elapsed.get() as f64 / 1e6);
        self.groups.settle(seconds);
        let before = self.stalled;
        self.stalled = tick.pressure.map(|pressure| pressure.full.total);
        let waited = self.stalled?.saturating_sub(before?).get() as f64 / 1e6;
        Some((waited / seconds?).clamp(0.0, 1.0))
    }

    fn view(&self, device: &Device) -> DiskView {
        let load = &device.load;
        let [rbps, wbps, riops, wiops] = load.flow.0.map(|x| x as u64);
        let (capacity, used) = match self.settings.policy {
            Policy::Aridac => {
                let max = Limit::At(self.settings.aridac.max_disk_io);
                let used = load.flow.bytes() / self.settings.aridac.max_disk_io.max(1) as f64;
                (IoMax { rbps: max, wbps: max, ..IoMax::MAX }, Some(used))
            }
            Policy::Lifeline => match device.mind.capacity() {
                None => (IoMax::MAX, None),
                Some(capacity) => (capacity.shown(), Some(capacity.share(load.flow))),
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
            base_wait: Micros(device.mind.base_wait(load) as u64),
            promised: device.promised,
            state: device.state,
            hands_off: device.hands_off.clone(),
        }
    }

    /// The parts of a disk that a container uses, and that it is known to need.
    fn shares(&self, device: &Device, member: &Member) -> (Option<f64>, Option<f64>) {
        match self.settings.policy {
            Policy::Aridac => {
                let used = member.flow.bytes() / self.settings.aridac.max_disk_io.max(1) as f64;
                (Some(used), Some(member.samples.lifeline()))
            }
            Policy::Lifeline => {
                let share = |flow| device.mind.capacity().map(|capacity| capacity.share(flow));
                (share(member.flow), share(member.need.lifeline))
            }
        }
    }
}

impl Device {
    fn new(disk: &Disk, remembered: Option<IoMax>) -> Self {
        Self {
            disk: disk.clone(),
            meter: Meter::default(),
            measured: false,
            load: Load::default(),
            members: Vec::new(),
            state: State::Free,
            promised: 0.0,
            hands_off: None,
            mind: Mind::new(disk, remembered),
        }
    }

    /// Takes in its counters, where there are any, and those of containers.
    fn measure(&mut self, now: Micros, stat: Option<&DiskStat>) {
        self.measured = false;
        match stat.map_or(Reading::Wait, |stat| self.meter.read(now, stat)) {
            Reading::Wait => {}
            Reading::Start => self.members.iter_mut().for_each(Member::rebase),
            Reading::Period(load) => {
                self.members.iter_mut().for_each(|member| member.measure(load.seconds, load.flow));
                (self.load, self.measured) = (load, true);
            }
        }
    }

    /// A container's state here; one that was not met starts with these counters. Where the disk was measured before, they
    /// grew since: the sensor names every container that ever used a disk in the first tick.
    fn member(&mut self, group: GroupId, counters: Option<Counters>) -> &mut Member {
        let at = match self.members.binary_search_by_key(&group, |member| member.group) {
            Ok(at) => at,
            Err(at) => {
                let known = counters.filter(|_| !self.meter.started());
                self.members.insert(at, Member::new(group, known));
                at
            }
        };
        &mut self.members[at]
    }

    /// What is said under every policy: whose limits are not ours to set.
    fn tell(&self, groups: &Groups, alerts: &mut Conditions, orders: &mut Vec<Order>) {
        let number = self.disk.number;
        for member in &self.members {
            let mut say = |kind, there, text: &dyn Fn() -> String| {
                let about = (kind, Some(number), Some(member.group));
                orders.extend(alerts.set(about, self.load.now, there, Micros::ZERO, text).map(Order::Alert));
            };
            // What may be tried again and is not is nobody's loss.
            let ceded = member.ceded.filter(|_| !member.ours_to_limit(self.load.now)).map(|(why, _)| why);
            let (name, disk) = (groups.name(member.group), &self.disk.name);
            say(Kind::ForeignWriter, ceded == Some(Ceded::Foreign), &|| explain::foreign(name, disk));
            let refused = ceded == Some(Ceded::Refused);
            say(Kind::Uncappable, refused || member.need.escapes(), &|| match refused {
                true => explain::refused(name, disk),
                false => explain::escapes(name, disk),
            });
        }
    }
}
