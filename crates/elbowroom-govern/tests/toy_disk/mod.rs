//! A disk of a given speed that serves the container with most requests under way, and containers on it that obey caps: just enough
//! to close the loop around a policy.

use elbowroom_govern::disk::{Cap, DiskGovernor, DiskOrder, DiskSettings};
use elbowroom_types::claim::Claim;
use elbowroom_types::container::{ContainerEngine, ContainerIdentity};
use elbowroom_types::id::{CgroupId, DeviceNumber};
use elbowroom_types::io::{CgroupIo, DiskProperties, DiskStat, DiskTick, IoLimits, IoMax, IoStat};
use elbowroom_types::label::ContainerLabels;
use elbowroom_types::sample::{CgroupProperties, CgroupSettings, HostEvent};
use elbowroom_types::unit::{Bytes, Limit, Micros};

pub(crate) const DISK: DeviceNumber = DeviceNumber { major: 8, minor: 0 };
/// Every request reads this much.
pub(crate) const SIZE: f64 = 65536.0;
/// What a request takes on the idle disk, seconds.
const LATENCY: f64 = 2e-4;

/// A container: what it wants of the disk's first speed, and how many requests it keeps under way.
#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    pub(crate) wants: f64,
    pub(crate) depth: f64,
    pub(crate) claim: Claim,
    pub(crate) user: IoMax,
}

impl Tenant {
    pub(crate) fn new(wants: f64, depth: f64) -> Self {
        Self { wants, depth, claim: Claim::default(), user: IoMax::MAX }
    }
}

/// What a container did in the last period, in parts of the disk's first speed.
pub(crate) struct Toy {
    pub(crate) disks: DiskGovernor,
    pub(crate) tenants: Vec<Tenant>,
    /// Bytes per second at first.
    pub(crate) speed: f64,
    /// How fast it is now, in parts of that; one that hangs does nothing.
    pub(crate) factor: f64,
    pub(crate) period: Micros,
    /// Requests that waited in the last part of a period, in which the disk reached its end.
    pub(crate) late: f64,
    /// Whether orders are carried out.
    pub(crate) obeyed: bool,
    /// The tenant whose requests are all made in cgroups below its own, where limits of v1 do not hold.
    pub(crate) nested: Option<usize>,
    pub(crate) now: Micros,
    pub(crate) got: Vec<f64>,
    pub(crate) events: Vec<HostEvent>,
    pub(crate) orders: Vec<DiskOrder>,
    ours: Vec<IoMax>,
    done: Vec<f64>,
    stalled: Vec<f64>,
    total: f64,
    queued: f64,
    busy: f64,
    in_flight: u32,
}

pub(crate) fn id(tenant: usize) -> CgroupId {
    CgroupId(tenant as u64 + 1)
}

pub(crate) fn group(tenant: usize) -> HostEvent {
    let name = format!("c{tenant}");
    HostEvent::Group(CgroupProperties {
        id: id(tenant),
        parent: None,
        path: format!("/{name}"),
        container: Some(ContainerIdentity {
            id: name.clone(),
            name: Some(name),
            engine: ContainerEngine::Plain,
            pod: None,
            labels: ContainerLabels::default(),
        }),
        limits: CgroupSettings::default(),
        populated: true,
        made_by_user: false,
    })
}

pub(crate) fn disk() -> HostEvent {
    let identity = "toy".to_owned();
    HostEvent::Disk(DiskProperties {
        number: DISK,
        name: "sda".into(),
        identity,
        ..DiskProperties::default()
    })
}

impl Toy {
    pub(crate) fn new(settings: DiskSettings, speed: f64, tenants: Vec<Tenant>) -> Self {
        let count = tenants.len();
        let claims = tenants.iter().enumerate();
        let claims = claims.map(|(i, tenant)| Claim { container: format!("c{i}"), ..tenant.claim.clone() });
        let mut toy = Self {
            period: settings.period,
            disks: DiskGovernor::new(settings, claims.collect()),
            tenants,
            speed,
            factor: 1.0,
            late: 0.0,
            obeyed: true,
            nested: None,
            now: Micros::secs(1),
            got: vec![0.0; count],
            events: Vec::new(),
            orders: Vec::new(),
            ours: vec![IoMax::MAX; count],
            done: vec![0.0; count],
            stalled: vec![0.0; count],
            total: 0.0,
            queued: 0.0,
            busy: 0.0,
            in_flight: 0,
        };
        toy.tell(disk());
        for tenant in 0..count {
            toy.tell(group(tenant));
            toy.limits(tenant);
        }
        toy.tell(toy.measure());
        toy
    }

    /// One period, with a measurement at its end, and before that where the governor wants one soon.
    pub(crate) fn step(&mut self) {
        let ends = self.now.saturating_add(self.period);
        while self.now < ends {
            let left = ends.saturating_sub(self.now);
            self.serve(if self.disks.needs_early_sample() {
                left.min(self.disks.early_period())
            } else {
                left
            });
            self.look();
        }
    }

    /// Lets `length` go by and glances at the disk. Returns when the disk is to be measured, if that is to be soon.
    pub(crate) fn glance(&mut self, length: Micros) -> Option<Micros> {
        self.serve(length);
        self.disks.glance(self.now, &[(DISK, self.stat())])
    }

    /// Measures.
    pub(crate) fn look(&mut self) {
        self.tell(self.measure());
    }

    /// Lets `length` go by.
    pub(crate) fn serve(&mut self, length: Micros) {
        let seconds = length.get() as f64 / 1e6;
        let capacity = self.speed * self.factor;
        let allowed: Vec<f64> = (0..self.tenants.len()).map(|i| self.allowed(i)).collect();
        let mut level = (0.0, f64::INFINITY);
        let served = |level: f64| -> Vec<f64> {
            allowed.iter().zip(&self.tenants).map(|(most, tenant)| most.min(level * tenant.depth)).collect()
        };
        if allowed.iter().sum::<f64>() > capacity {
            level.1 = capacity;
            for _ in 0..60 {
                let middle = (level.0 + level.1) / 2.0;
                let fits = served(middle).iter().sum::<f64>() <= capacity;
                if fits { level.0 = middle } else { level.1 = middle }
            }
        }
        let served = served(level.1);
        let used: f64 = served.iter().sum();
        // Either each tenant gets what it may at once, or requests wait behind all that are under way.
        let full = used >= capacity * 0.999;
        let depth: f64 =
            self.tenants.iter().filter(|tenant| tenant.wants > 0.0).map(|tenant| tenant.depth).sum();
        let hangs = capacity == 0.0;
        self.in_flight = if hangs { depth as u32 } else { 0 };
        let wait = if full && !hangs { (depth * SIZE / capacity).max(LATENCY) } else { LATENCY };
        for (i, x) in served.iter().enumerate() {
            let wants = self.tenants[i].wants * self.speed;
            let held = *x < wants * 0.999;
            self.done[i] += x * seconds / SIZE;
            self.stalled[i] += seconds * if held { 0.97 } else { (x / SIZE * wait).min(0.9) };
            self.got[i] = x / self.speed;
        }
        self.total += used * seconds / SIZE;
        self.queued += used * seconds / SIZE * wait + self.late * seconds;
        let busy = if self.late > 0.0 { 0.5 } else { (used / capacity).min(1.0) };
        self.busy += if hangs { 0.0 } else { seconds * busy };
        self.now = self.now.saturating_add(length);
    }

    pub(crate) fn run(&mut self, seconds: u64) {
        for _ in 0..Micros::secs(seconds).get() / self.period.get() {
            self.step();
        }
    }

    /// The last caps ordered for a container.
    pub(crate) fn caps(&self) -> impl Iterator<Item = &Cap> {
        self.orders.iter().filter_map(|order| match order {
            DiskOrder::Cap(cap) => Some(cap),
            DiskOrder::Alert(_) => None,
        })
    }

    /// Gives the governor an event, and does what it says.
    pub(crate) fn tell(&mut self, event: HostEvent) {
        let orders = self.disks.apply(&event);
        self.events.push(event);
        for order in &orders {
            if let (DiskOrder::Cap(cap), true) = (order, self.obeyed) {
                let tenant = (cap.group.0 - 1) as usize;
                self.ours[tenant] = cap.max;
                self.limits(tenant);
            }
        }
        self.orders.extend(orders);
    }

    fn limits(&mut self, tenant: usize) {
        let (user, ours) = (self.tenants[tenant].user, self.ours[tenant]);
        self.tell(HostEvent::IoLimits(IoLimits { group: id(tenant), disk: DISK, user, ours, ceded: None }));
    }

    fn allowed(&self, tenant: usize) -> f64 {
        let ours = if self.nested == Some(tenant) { IoMax::MAX } else { self.ours[tenant] };
        let max = ours.min(self.tenants[tenant].user);
        let bytes = max.rbps.value().map_or(f64::INFINITY, |n| n as f64);
        let operations = max.riops.value().map_or(f64::INFINITY, |n| n as f64 * SIZE);
        (self.tenants[tenant].wants * self.speed).min(bytes).min(operations)
    }

    fn stat(&self) -> DiskStat {
        let micros = |seconds: f64| Micros((seconds * 1e6) as u64);
        DiskStat {
            rios: self.total as u64,
            rbytes: Bytes((self.total * SIZE) as u64),
            rticks: micros(self.queued),
            time_in_queue: micros(self.queued),
            io_ticks: micros(self.busy),
            in_flight: self.in_flight,
            ..DiskStat::default()
        }
    }

    fn measure(&self) -> HostEvent {
        let micros = |seconds: f64| Micros((seconds * 1e6) as u64);
        let groups = (0..self.tenants.len()).map(|i| CgroupIo {
            group: id(i),
            stalled: Some(micros(self.stalled[i])),
            dirty: None,
            io: vec![IoStat {
                device: DISK,
                rbytes: Bytes((self.done[i] * SIZE) as u64),
                rios: self.done[i] as u64,
                ..IoStat::EMPTY
            }],
        });
        let groups = groups.collect();
        HostEvent::DiskTick(DiskTick {
            now: self.now,
            pressure: None,
            disks: vec![(DISK, self.stat())],
            groups,
        })
    }
}

/// A limit on what is read.
pub(crate) fn rbps(rate: u64) -> IoMax {
    IoMax { rbps: Limit::At(rate), ..IoMax::MAX }
}
