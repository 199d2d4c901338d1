//! The toy machine itself: programs ask, devices serve, counters count, orders take effect.

mod knob;
mod place;
mod report;
#[cfg(test)]
mod tests;

use super::device::{self, Ask, Speed};
use super::program::Tenant;
use super::random::Random;
use super::scenario::{Drive, Scenario};
use elbowroom_govern::disk::{Cap, Order};
use elbowroom_types::sample::{DeviceNumber, DiskTick, Event, GroupId, GroupIo};
use elbowroom_types::unit::Micros;
use place::{Place, Slice};
use report::Counters;
use std::collections::VecDeque;

/// How long rates stay what they are.
const SLICE: Micros = Micros::millis(200);

/// The machine of one scenario.
#[derive(Debug)]
pub struct World {
    scenario: Scenario,
    random: Random,
    now: Micros,
    homes: Vec<Home>,
    devices: Vec<Device>,
    /// Orders that have no effect yet, with the periods they still wait.
    orders: VecDeque<(u32, Cap)>,
    /// Time all tasks of the machine waited for a disk, and time some did, in seconds.
    pressure: (f64, f64),
    truth: Truth,
}

/// A container.
#[derive(Debug)]
struct Home {
    id: GroupId,
    lives: bool,
    /// Time one of its tasks waited, in seconds.
    stalled: f64,
    /// The part of this slice in which none of its tasks waited.
    calm: f64,
    told: Option<GroupIo>,
}

/// A disk, with the containers that have a program for it.
#[derive(Debug)]
struct Device {
    drive: Drive,
    places: Vec<Place>,
    done: Counters,
    /// Kept between slices, so that one allocates nothing.
    asks: Vec<Ask>,
    served: Vec<f64>,
}

/// What really happened in a period, which no sensor sees.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Truth {
    /// When it ended.
    pub now: Micros,
    /// Every disk, in the scenario's order.
    pub drives: Vec<DriveTruth>,
    /// Every container that lives, on every disk it has a program for, disk by disk.
    pub shares: Vec<Share>,
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
pub struct Share {
    /// The container's place in the scenario.
    pub tenant: usize,
    /// Its identity.
    pub group: GroupId,
    /// The disk's place in the scenario.
    pub drive: usize,
    /// Bytes per second it wanted; infinite for as many as there are.
    pub wanted: f64,
    /// Bytes per second it got.
    pub got: f64,
    /// Seconds of the disk per byte, as this container reads and writes.
    pub cost: f64,
    /// The part of the period in which a limit of ours kept it from what it wanted.
    pub held: f64,
}

impl World {
    /// The machine before anything happened.
    pub fn new(scenario: &Scenario, seed: u64) -> Self {
        let homes = (1..).map(GroupId).zip(&scenario.tenants);
        let homes = homes.map(|(id, _)| Home { id, lives: false, stalled: 0.0, calm: 1.0, told: None });
        let mut devices: Vec<Device> = scenario.drives.iter().map(Device::new).collect();
        for (i, tenant) in scenario.tenants.iter().enumerate() {
            for program in &tenant.programs {
                devices[program.disk].places.push(Place::new(i, program));
            }
        }
        Self {
            homes: homes.collect(),
            devices,
            scenario: scenario.clone(),
            random: Random::new(seed),
            now: Micros::ZERO,
            orders: VecDeque::new(),
            pressure: (0.0, 0.0),
            truth: Truth::default(),
        }
    }

    /// What really happened in the last period.
    pub fn truth(&self) -> &Truth {
        &self.truth
    }

    /// Who the container at a place of the scenario is.
    pub fn group(&self, tenant: usize) -> GroupId {
        self.homes[tenant].id
    }

    /// Takes an order.
    pub fn obey(&mut self, order: &Order) {
        if let (Order::Cap(cap), true) = (order, self.scenario.obeyed) {
            self.orders.push_back((self.scenario.delay, cap.clone()));
        }
    }

    /// Lets one period go by; what a sensor sees of it, or `None` when the scenario is over.
    pub fn step(&mut self) -> Option<Vec<Event>> {
        if self.now >= self.scenario.lasts {
            return None;
        }
        let mut events = Vec::new();
        if self.now == Micros::ZERO {
            events.extend(self.scenario.drives.iter().enumerate().map(report::disk));
        }
        self.come_and_go(&mut events);
        self.carry_out(&mut events);
        self.begin_truth();
        self.run();
        self.meet(&mut events);
        events.push(Event::DiskTick(self.measure()));
        Some(events)
    }

    fn come_and_go(&mut self, events: &mut Vec<Event>) {
        for (tenant, home) in self.scenario.tenants.iter().zip(&mut self.homes) {
            let lives = tenant.from <= self.now && tenant.until.is_none_or(|until| self.now < until);
            match (home.lives, lives) {
                (false, true) => events.push(report::group(home.id, tenant)),
                (true, false) => events.push(Event::Gone(home.id)),
                _ => {}
            }
            home.lives = lives;
        }
        for place in self.devices.iter_mut().flat_map(|device| &mut device.places) {
            let tenant = &self.scenario.tenants[place.tenant];
            place.knob.user = tenant.user;
            place.knob.foreign = tenant.foreign.filter(|(from, _)| *from <= self.now).map(|(_, max)| max);
        }
    }

    /// Puts into effect the orders whose time has come; a sensor hears what became of each.
    fn carry_out(&mut self, events: &mut Vec<Event>) {
        for _ in 0..self.orders.len() {
            let Some((wait, cap)) = self.orders.pop_front() else { break };
            if wait > 0 {
                self.orders.push_back((wait - 1, cap));
                continue;
            }
            let homes = &self.homes;
            let devices = self.devices.iter_mut().enumerate();
            let device = devices.filter(|(i, _)| Scenario::number(*i) == cap.disk).map(|(_, device)| device);
            let mut places = device.flat_map(|device| &mut device.places);
            if let Some(place) = places.find(|place| homes[place.tenant].id == cap.group) {
                events.push(place.knob.set(&cap, homes[place.tenant].lives));
            }
        }
    }

    fn begin_truth(&mut self) {
        let Truth { drives, shares, .. } = &mut self.truth;
        drives.clear();
        shares.clear();
        for (i, device) in self.devices.iter().enumerate() {
            let (number, speed) = (Scenario::number(i), self.scenario.drives[i].speed_at(self.now));
            drives.push(DriveTruth { number, speed, used: 0.0, possible: 0.0, queue: 0.0 });
            for place in &device.places {
                let Home { id, lives, .. } = self.homes[place.tenant];
                if lives {
                    let (tenant, drive) = (place.tenant, i);
                    shares.push(Share {
                        tenant,
                        group: id,
                        drive,
                        wanted: 0.0,
                        got: 0.0,
                        cost: 0.0,
                        held: 0.0,
                    });
                }
            }
        }
    }

    /// Runs one period in slices.
    fn run(&mut self) {
        let Self { scenario, random, now, homes, devices, pressure, truth, .. } = self;
        let slices = (scenario.period.get() / SLICE.get()).max(1);
        let length = Micros(scenario.period.get() / slices);
        for _ in 0..slices {
            let slice = Slice {
                now: *now,
                seconds: length.get() as f64 / 1e6,
                part: 1.0 / slices as f64,
                kernel: scenario.kernel,
                noise: scenario.noise,
                journal: scenario.journal,
            };
            homes.iter_mut().for_each(|home| home.calm = 1.0);
            let mut shares = truth.shares.as_mut_slice();
            for ((i, device), drive) in devices.iter_mut().enumerate().zip(&mut truth.drives) {
                let mine;
                let count = shares.iter().take_while(|share| share.drive == i).count();
                (mine, shares) = shares.split_at_mut(count);
                device.run(&scenario.tenants, &slice, random, homes, drive, mine);
            }
            press(homes, pressure, slice.seconds);
            *now = now.saturating_add(length);
        }
        truth.now = *now;
    }

    /// Tells of containers that were not seen on a disk before.
    fn meet(&mut self, events: &mut Vec<Event>) {
        for (i, device) in self.devices.iter_mut().enumerate() {
            for place in &mut device.places {
                let home = &self.homes[place.tenant];
                if home.lives && !place.knob.is_known && place.done.ios() >= 1.0 {
                    place.knob.is_known = true;
                    events.push(Event::IoLimits(place.knob.tell(home.id, Scenario::number(i), None)));
                }
            }
        }
    }

    fn measure(&mut self) -> DiskTick {
        let mut groups = Vec::new();
        for (tenant, home) in self.homes.iter_mut().enumerate().filter(|(_, home)| home.lives) {
            let places = self.devices.iter().enumerate();
            let places = places.flat_map(|(i, device)| device.places.iter().map(move |place| (i, place)));
            let mine = places.filter(|(_, place)| place.tenant == tenant);
            let io = report::group_io(home.id, self.scenario.pressure.then_some(home.stalled), mine);
            if !io.io.is_empty() && home.told.as_ref() != Some(&io) {
                home.told = Some(io.clone());
                groups.push(io);
            }
        }
        let disks = self.devices.iter().enumerate();
        DiskTick {
            now: self.now,
            pressure: self.scenario.pressure.then(|| report::pressure(self.pressure)),
            disks: disks.map(|(i, device)| (Scenario::number(i), device.done.stat())).collect(),
            groups,
        }
    }
}

impl Device {
    fn new(drive: &Drive) -> Self {
        let drive = drive.clone();
        Self { drive, places: Vec::new(), done: Counters::default(), asks: Vec::new(), served: Vec::new() }
    }

    /// Runs one slice.
    fn run(
        &mut self,
        tenants: &[Tenant],
        slice: &Slice,
        random: &mut Random,
        homes: &mut [Home],
        truth: &mut DriveTruth,
        shares: &mut [Share],
    ) {
        truth.speed = self.drive.speed_at(slice.now);
        let speed = truth.speed.times(random.noise(slice.noise));
        let mut living: Vec<&mut Place> =
            self.places.iter_mut().filter(|place| homes[place.tenant].lives).collect();
        let is_locked = slice.journal && living.iter().any(|place| place.holds_lock());
        for place in &mut living {
            place.ask(&tenants[place.tenant], slice, &speed, is_locked, random);
        }
        let manner = self.drive.manner();
        let Self { asks, served, done, .. } = self;
        let mut serve = |ask: fn(&Place) -> Ask, living: &[&mut Place]| {
            asks.clear();
            asks.extend(living.iter().map(|place| ask(place)));
            let wait = device::divide(asks, manner, served);
            (wait, asks.iter().zip(served.iter()).map(|(ask, x)| ask.cost * x).sum::<f64>())
        };
        let is_held = living.iter().any(|place| place.ask != place.free);
        let possible = is_held.then(|| serve(|place| place.free, &living).1);
        let (wait, used) = serve(|place| place.ask, &living);
        let queue = served.iter().sum::<f64>() * wait;
        done.queue(queue, used, slice.seconds, random);
        for ((place, x), share) in living.into_iter().zip(served.iter()).zip(shares) {
            done.add(place.complete(*x, wait, slice), wait);
            let home = &mut homes[place.tenant];
            place.got(*x, wait, slice, home, share);
        }
        truth.used += used * slice.part;
        truth.queue += queue * slice.part;
        truth.possible += possible.unwrap_or(used) * slice.part;
    }
}

/// Adds up who waited in a slice.
fn press(homes: &mut [Home], pressure: &mut (f64, f64), seconds: f64) {
    let (mut calm, mut full) = (1.0, 1.0);
    for home in homes.iter_mut().filter(|home| home.lives && home.calm < 1.0) {
        home.stalled += (1.0 - home.calm) * seconds;
        calm *= home.calm;
        full *= 1.0 - home.calm;
    }
    if calm < 1.0 {
        pressure.0 += full * seconds;
        pressure.1 += (1.0 - calm) * seconds;
    }
}
