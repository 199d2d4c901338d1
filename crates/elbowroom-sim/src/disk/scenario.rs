//! A scenario: disks, containers and time, as data that prints.

use super::device::{QueueModel, Speed};
use super::program::DiskTenant;
use elbowroom_govern::GovernorMode;
use elbowroom_govern::disk::{DiskPolicy, DiskSettings};
use elbowroom_types::claim::Claim;
use elbowroom_types::id::DeviceNumber;
use elbowroom_types::io::IoWeightMechanism;
use elbowroom_types::unit::Micros;

/// How long rates stay what they are, in most scenarios.
pub(super) const SLICE: Micros = Micros::millis(200);

/// A disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Drive {
    /// What it can do.
    pub speed: Speed,
    /// What a request takes when no other is under way; above a millisecond it calls itself rotational.
    pub latency: Micros,
    /// How sharply it slows down when it is full: 1 for flash, which slows down from the first request on; 4 for a disk that is
    /// throttled, which is not noticed until it is full.
    pub knee: f64,
    /// From each instant on, it is this many times as fast as [`Self::speed`]. Ascending.
    pub changes: Vec<(Micros, f64)>,
    /// What divides it by weight, where something does; else it is first come, first served.
    pub weights: Option<IoWeightMechanism>,
    /// It carries swap.
    pub swap: bool,
}

impl Drive {
    /// Reads and writes this many bytes and requests per second, first come, first served; like flash.
    pub const fn new(bps: f64, iops: f64, latency: Micros) -> Self {
        Self {
            speed: Speed::both(bps, iops),
            latency,
            knee: 1.0,
            changes: Vec::new(),
            weights: None,
            swap: false,
        }
    }

    pub(super) fn queue_model(&self) -> QueueModel {
        let (latency, by_weight) = (self.latency.get().max(1) as f64 / 1e6, self.weights.is_some());
        QueueModel { latency, knee: self.knee, by_weight }
    }

    /// What it can do at this instant.
    pub(crate) fn speed_at(&self, now: Micros) -> Speed {
        let factor =
            self.changes.iter().rev().find(|(from, _)| *from <= now).map_or(1.0, |(_, factor)| *factor);
        self.speed.times(factor)
    }
}

/// Which cgroups the kernel has, as far as disks are concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoCgroupVersion {
    /// Buffered writes belong to no container, and no limit holds them.
    V1,
    /// Buffered writes are their container's.
    #[default]
    V2,
}

/// What happens, to which disks, for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskScenario {
    /// How it is called.
    pub name: String,
    /// The disks; programs name them by their place here.
    pub drives: Vec<Drive>,
    /// The containers.
    pub tenants: Vec<DiskTenant>,
    /// How long it lasts.
    pub duration: Micros,
    /// Time between two measurements, and the time that is judged as one.
    pub period: Micros,
    /// How long rates stay what they are.
    pub slice: Micros,
    /// Periods that an order waits before it takes effect; with none, it holds for the whole period after it was given.
    pub delay: u32,
    /// The kernel.
    pub kernel: IoCgroupVersion,
    /// Whether the kernel counts pressure.
    pub pressure: bool,
    /// Whether orders are carried out.
    pub enforced: bool,
    /// A buffered writer that our limits hold back keeps a lock, the file system's journal for example, that all on
    /// the disk waits for.
    pub journal: bool,
    /// Standard deviation of demand and speed, in parts of 1.
    pub noise: f64,
    /// The bursts that are judged.
    pub bursts: Vec<Burst>,
}

/// A time in which a container wants more than it is used to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// The container's place in the scenario; it has one program.
    pub tenant: usize,
    /// When it begins.
    pub from: Micros,
    /// When it ends.
    pub until: Micros,
}

impl DiskScenario {
    /// Two minutes of these containers on this disk, a measurement per second, on cgroup v2 with pressure, obeyed in the next
    /// period, with 5 % noise.
    pub fn new(name: &str, drive: Drive, tenants: Vec<DiskTenant>) -> Self {
        Self {
            name: name.to_owned(),
            drives: vec![drive],
            tenants,
            duration: Micros::secs(120),
            period: Micros::secs(1),
            slice: SLICE,
            delay: 0,
            kernel: IoCgroupVersion::V2,
            pressure: true,
            enforced: true,
            journal: false,
            noise: 0.05,
            bursts: Vec::new(),
        }
    }

    /// The configuration for this scenario. Aridac is given the first disk's real speed, as its paper does.
    pub fn settings(&self, policy: DiskPolicy) -> DiskSettings {
        let mut settings = DiskSettings {
            mode: GovernorMode::Enforce,
            policy,
            period: self.period,
            ..DiskSettings::default()
        };
        settings.aridac.max_disk_io = self.drives.first().map_or(0, |drive| drive.speed.rbps as u64);
        settings
    }

    /// The claims of its containers, as in the configuration.
    pub fn claims(&self) -> Vec<Claim> {
        self.tenants.iter().filter_map(|tenant| tenant.claim.clone()).collect()
    }

    /// The number of the disk at this place.
    pub fn number(drive: usize) -> DeviceNumber {
        DeviceNumber { major: 8, minor: 16 * u32::try_from(drive).unwrap_or(u32::MAX / 16) }
    }
}
