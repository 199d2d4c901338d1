//! The toy machine itself: programs ask, devices serve, counters count, orders take effect.

mod container_io;
mod io_limits;
mod report;
#[cfg(test)]
mod tests;

use super::device::{self, DeviceDemand, Speed};
use super::program::DiskTenant;
use super::random::SplitMix64;
use super::scenario::{DiskScenario, Drive};
use container_io::{SimContainerIo, TimeSlice};
use elbowroom_govern::disk::{Cap, DiskOrder};
use elbowroom_types::id::{CgroupId, DeviceNumber};
use elbowroom_types::io::{CgroupIo, DiskStat, DiskTick};
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::Micros;
use report::SimIoCounters;
use std::collections::VecDeque;

/// The machine of one scenario.
#[derive(Debug)]
pub struct DiskSimulator {
    scenario: DiskScenario,
    random: SplitMix64,
    now: Micros,
    containers: Vec<SimDiskContainer>,
    devices: Vec<SimDisk>,
    /// Orders that have no effect yet, with the time from which they have.
    orders: VecDeque<(Micros, Cap)>,
    /// Time all tasks of the machine waited for a disk, and time some did, in seconds.
    pressure: (f64, f64),
    truth: DiskTruth,
    /// Slices of the period that are still to run.
    slices_left: u64,
}

/// A container.
#[derive(Debug)]
struct SimDiskContainer {
    id: CgroupId,
    is_running: bool,
    /// Time one of its tasks waited, in seconds.
    stalled: f64,
    /// The part of this slice in which none of its tasks waited.
    unstalled_part: f64,
    last_report: Option<CgroupIo>,
}

/// A disk, with the containers that have a program for it.
#[derive(Debug)]
struct SimDisk {
    drive: Drive,
    container_io: Vec<SimContainerIo>,
    counters: SimIoCounters,
    /// Kept between slices, so that a slice allocates nothing.
    demands: Vec<DeviceDemand>,
    served: Vec<f64>,
}

/// What really happened in a period, which no sensor sees.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiskTruth {
    /// When it ended.
    pub now: Micros,
    /// Every disk, in the scenario's order.
    pub drives: Vec<DriveTruth>,
    /// Every container that lives, on every disk it has a program for, disk by disk.
    pub shares: Vec<ContainerIoTruth>,
}

/// What really happened to a disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriveTruth {
    /// Which.
    pub number: DeviceNumber,
    /// What it can do at the end of the period, but for noise.
    pub speed: Speed,
    /// The part of it, of 1, that was used.
    pub used: f64,
    /// The part that would have been used without limits of ours.
    pub possible: f64,
    /// Mean number of requests under way.
    pub queue: f64,
}

/// What a container really wanted and got on a disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ContainerIoTruth {
    /// The container's place in the scenario.
    pub tenant: usize,
    /// Its identity.
    pub group: CgroupId,
    /// The disk's place in the scenario.
    pub drive: usize,
    /// Bytes per second it wanted; infinite for as many as there are.
    pub wanted: f64,
    /// Bytes per second it got.
    pub got: f64,
    /// Seconds of the disk per byte, as this container reads and writes.
    pub cost: f64,
    /// The part of the period in which a limit of ours kept it from what it wanted.
    pub limited: f64,
}

impl DiskSimulator {
    /// The machine before anything happened.
    pub fn new(scenario: &DiskScenario, seed: u64) -> Self {
        let homes = (1..).map(CgroupId).zip(&scenario.tenants);
        let homes = homes.map(|(id, _)| SimDiskContainer {
            id,
            is_running: false,
            stalled: 0.0,
            unstalled_part: 1.0,
            last_report: None,
        });
        let mut devices: Vec<SimDisk> = scenario.drives.iter().map(SimDisk::new).collect();
        for (i, tenant) in scenario.tenants.iter().enumerate() {
            for program in &tenant.programs {
                devices[program.disk].container_io.push(SimContainerIo::new(i, program));
            }
        }
        Self {
            containers: homes.collect(),
            devices,
            scenario: scenario.clone(),
            random: SplitMix64::new(seed),
            now: Micros::ZERO,
            orders: VecDeque::new(),
            pressure: (0.0, 0.0),
            truth: DiskTruth::default(),
            slices_left: 0,
        }
    }

    /// What really happened in the last period.
    pub fn truth(&self) -> &DiskTruth {
        &self.truth
    }

    /// The container at a place of the scenario.
    pub fn group(&self, tenant: usize) -> CgroupId {
        self.containers[tenant].id
    }

    /// Takes an order.
    pub fn execute(&mut self, order: &DiskOrder) {
        if let (DiskOrder::Cap(cap), true) = (order, self.scenario.enforced) {
            let from =
                self.now.saturating_add(Micros(self.scenario.period.get() * u64::from(self.scenario.delay)));
            self.orders.push_back((from, cap.clone()));
        }
    }

    /// The time now.
    pub fn now(&self) -> Micros {
        self.now
    }

    /// Lets one period go by, with one measurement at its end; what a sensor sees of it, or `None` when the scenario is over.
    pub fn step(&mut self) -> Option<Vec<HostEvent>> {
        let mut events = self.begin_period()?;
        while let Some(told) = self.run_slice() {
            events.extend(told);
        }
        events.extend(self.measure());
        Some(events)
    }

    /// Begins a period, to be run slice by slice; what a sensor sees of it, or `None` when the scenario is over.
    pub fn begin_period(&mut self) -> Option<Vec<HostEvent>> {
        if self.now >= self.scenario.duration {
            return None;
        }
        let mut events = Vec::new();
        if self.now == Micros::ZERO {
            events.extend(self.scenario.drives.iter().enumerate().map(report::disk));
        }
        self.start_and_stop(&mut events);
        self.reset_truth();
        self.slices_left = self.slices();
        Some(events)
    }

    /// Runs one slice of a period, under the orders whose time has come; what a sensor hears of those, or `None` when the period is over.
    pub fn run_slice(&mut self) -> Option<Vec<HostEvent>> {
        self.slices_left = self.slices_left.checked_sub(1)?;
        let mut events = Vec::new();
        self.execute_orders(&mut events);
        self.run();
        Some(events)
    }

    /// What the disks have counted until now, as `/proc/diskstats` has it.
    pub fn disk_stats(&self) -> Vec<(DeviceNumber, DiskStat)> {
        let disks = self.devices.iter().enumerate();
        disks.map(|(i, device)| (DiskScenario::number(i), device.counters.stat())).collect()
    }

    /// Measures disks and containers; what a sensor sees.
    pub fn measure(&mut self) -> Vec<HostEvent> {
        let mut events = Vec::new();
        self.report_new_limits(&mut events);
        events.push(HostEvent::DiskTick(self.disk_tick()));
        events
    }

    fn slices(&self) -> u64 {
        (self.scenario.period.get() / self.scenario.slice.get()).max(1)
    }

    fn start_and_stop(&mut self, events: &mut Vec<HostEvent>) {
        for (tenant, home) in self.scenario.tenants.iter().zip(&mut self.containers) {
            let lives = tenant.from <= self.now && tenant.until.is_none_or(|until| self.now < until);
            match (home.is_running, lives) {
                (false, true) => events.push(report::group(home.id, tenant)),
                (true, false) => events.push(HostEvent::Gone(home.id)),
                _ => {}
            }
            home.is_running = lives;
        }
        for place in self.devices.iter_mut().flat_map(|device| &mut device.container_io) {
            let tenant = &self.scenario.tenants[place.tenant];
            place.limits.user_max = tenant.user_max;
            place.limits.foreign_max =
                tenant.foreign.filter(|(from, _)| *from <= self.now).map(|(_, max)| max);
        }
    }

    /// Puts into effect the orders whose time has come; a sensor hears what became of each.
    fn execute_orders(&mut self, events: &mut Vec<HostEvent>) {
        for _ in 0..self.orders.len() {
            let Some((from, cap)) = self.orders.pop_front() else { break };
            if from > self.now {
                self.orders.push_back((from, cap));
                continue;
            }
            let homes = &self.containers;
            let devices = self.devices.iter_mut().enumerate();
            let device =
                devices.filter(|(i, _)| DiskScenario::number(*i) == cap.disk).map(|(_, device)| device);
            let mut places = device.flat_map(|device| &mut device.container_io);
            if let Some(place) = places.find(|place| homes[place.tenant].id == cap.group) {
                events.push(place.limits.apply_cap(&cap, homes[place.tenant].is_running));
            }
        }
    }

    fn reset_truth(&mut self) {
        let DiskTruth { drives, shares, .. } = &mut self.truth;
        drives.clear();
        shares.clear();
        for (i, device) in self.devices.iter().enumerate() {
            let (number, speed) = (DiskScenario::number(i), self.scenario.drives[i].speed_at(self.now));
            drives.push(DriveTruth { number, speed, used: 0.0, possible: 0.0, queue: 0.0 });
            for place in &device.container_io {
                let SimDiskContainer { id, is_running: lives, .. } = self.containers[place.tenant];
                if lives {
                    let (tenant, drive) = (place.tenant, i);
                    shares.push(ContainerIoTruth {
                        tenant,
                        group: id,
                        drive,
                        wanted: 0.0,
                        got: 0.0,
                        cost: 0.0,
                        limited: 0.0,
                    });
                }
            }
        }
    }

    /// Lets a slice go by.
    fn run(&mut self) {
        let slices = self.slices();
        let Self { scenario, random, now, containers: homes, devices, pressure, truth, .. } = self;
        let length = Micros(scenario.period.get() / slices);
        let slice = TimeSlice {
            now: *now,
            seconds: length.get() as f64 / 1e6,
            part: 1.0 / slices as f64,
            kernel: scenario.kernel,
            noise: scenario.noise,
            journal: scenario.journal,
        };
        homes.iter_mut().for_each(|home| home.unstalled_part = 1.0);
        let mut shares = truth.shares.as_mut_slice();
        for ((i, device), drive) in devices.iter_mut().enumerate().zip(&mut truth.drives) {
            let mine;
            let count = shares.iter().take_while(|share| share.drive == i).count();
            (mine, shares) = shares.split_at_mut(count);
            device.run(&scenario.tenants, &slice, random, homes, drive, mine);
        }
        add_pressure(homes, pressure, slice.seconds);
        *now = now.saturating_add(length);
        truth.now = *now;
    }

    /// Tells of containers that were not seen on a disk before.
    fn report_new_limits(&mut self, events: &mut Vec<HostEvent>) {
        for (i, device) in self.devices.iter_mut().enumerate() {
            for place in &mut device.container_io {
                let home = &self.containers[place.tenant];
                if home.is_running && !place.limits.is_known && place.counters.ios() >= 1.0 {
                    place.limits.is_known = true;
                    events.push(HostEvent::IoLimits(place.limits.report(
                        home.id,
                        DiskScenario::number(i),
                        None,
                    )));
                }
            }
        }
    }

    fn disk_tick(&mut self) -> DiskTick {
        let mut groups = Vec::new();
        for (tenant, home) in self.containers.iter_mut().enumerate().filter(|(_, home)| home.is_running) {
            let places = self.devices.iter().enumerate();
            let places =
                places.flat_map(|(i, device)| device.container_io.iter().map(move |place| (i, place)));
            let mine = places.filter(|(_, place)| place.tenant == tenant);
            let io = report::group_io(home.id, self.scenario.pressure.then_some(home.stalled), mine);
            if !io.io.is_empty() && home.last_report.as_ref() != Some(&io) {
                home.last_report = Some(io.clone());
                groups.push(io);
            }
        }
        DiskTick {
            now: self.now,
            pressure: self.scenario.pressure.then(|| report::pressure(self.pressure)),
            disks: self.disk_stats(),
            groups,
        }
    }
}

impl SimDisk {
    fn new(drive: &Drive) -> Self {
        let drive = drive.clone();
        Self {
            drive,
            container_io: Vec::new(),
            counters: SimIoCounters::default(),
            demands: Vec::new(),
            served: Vec::new(),
        }
    }

    /// Runs one slice.
    fn run(
        &mut self,
        tenants: &[DiskTenant],
        slice: &TimeSlice,
        random: &mut SplitMix64,
        homes: &mut [SimDiskContainer],
        truth: &mut DriveTruth,
        shares: &mut [ContainerIoTruth],
    ) {
        truth.speed = self.drive.speed_at(slice.now);
        let speed = truth.speed.times(random.noise(slice.noise));
        let mut living: Vec<&mut SimContainerIo> =
            self.container_io.iter_mut().filter(|place| homes[place.tenant].is_running).collect();
        let is_locked = slice.journal && living.iter().any(|place| place.holds_lock());
        for place in &mut living {
            place.set_demand(&tenants[place.tenant], slice, &speed, is_locked, random);
        }
        let manner = self.drive.queue_model();
        let Self { demands: asks, served, counters: done, .. } = self;
        let mut serve = |ask: fn(&SimContainerIo) -> DeviceDemand, living: &[&mut SimContainerIo]| {
            asks.clear();
            asks.extend(living.iter().map(|place| ask(place)));
            let wait = device::divide(asks, manner, served);
            (wait, asks.iter().zip(served.iter()).map(|(ask, x)| ask.cost * x).sum::<f64>())
        };
        let is_held = living.iter().any(|place| place.demand != place.unlimited_demand);
        let possible = is_held.then(|| serve(|place| place.unlimited_demand, &living).1);
        let (wait, used) = serve(|place| place.demand, &living);
        let queue = served.iter().sum::<f64>() * wait;
        done.queue(queue, slice.seconds, random);
        for ((place, x), share) in living.into_iter().zip(served.iter()).zip(shares) {
            done.add(place.complete(*x, wait, slice), wait);
            let home = &mut homes[place.tenant];
            place.record_served(*x, wait, slice, home, share);
        }
        truth.used += used * slice.part;
        truth.queue += queue * slice.part;
        truth.possible += possible.unwrap_or(used) * slice.part;
    }
}

/// Adds the time that containers waited in a slice.
fn add_pressure(homes: &mut [SimDiskContainer], pressure: &mut (f64, f64), seconds: f64) {
    let (mut calm, mut full) = (1.0, 1.0);
    for home in homes.iter_mut().filter(|home| home.is_running && home.unstalled_part < 1.0) {
        home.stalled += (1.0 - home.unstalled_part) * seconds;
        calm *= home.unstalled_part;
        full *= 1.0 - home.unstalled_part;
    }
    if calm < 1.0 {
        pressure.0 += full * seconds;
        pressure.1 += (1.0 - calm) * seconds;
    }
}
