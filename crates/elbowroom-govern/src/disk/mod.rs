//! Disk bandwidth: a lifeline per container, caps that follow it, bursts that cannot starve a neighbour.

mod aridac;
mod constants;
mod explain;
mod flow;
mod governed_disk;
mod governor;
mod groups;
mod lifeline;
mod member;
mod meter;
mod model;
mod settings;

pub use constants::LifelineConstants;
pub use governor::DiskGovernor;
pub use settings::{AridacSettings, DiskPolicy, DiskSettings, LifelineSettings};

use elbowroom_types::alert::Alert;
use elbowroom_types::id::{CgroupId, DeviceNumber};
use elbowroom_types::io::IoMax;
use elbowroom_types::unit::Micros;
use serde::{Deserialize, Serialize};

/// How many decisions are remembered per container and disk.
pub(crate) const DECISION_HISTORY: usize = 20;

/// Something to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskOrder {
    /// Put these limits of ours on a container, in place of those before; [`IoMax::MAX`] takes them off. The user's own
    /// limits stay in force where they are tighter.
    Cap(Cap),
    /// An alert began or ended.
    Alert(Alert),
}

/// Limits for one container on one disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cap {
    /// When it was decided, on the monotonic clock.
    pub at: Micros,
    /// Whose.
    pub group: CgroupId,
    /// Where.
    pub disk: DeviceNumber,
    /// The limits.
    pub max: IoMax,
    /// The weight among containers on the disk, 1..=1000 with 100 in the middle, where the disk divides by weight and this
    /// policy uses it; `None` leaves it alone.
    pub weight: Option<u16>,
    /// One line: which rule, with the numbers that decided.
    pub because: String,
}

/// A disk as the policy sees it. Shares of the disk are in parts of 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiskView {
    /// Which.
    pub number: DeviceNumber,
    /// Its name.
    pub name: String,
    /// What it can do, per second; `max` while nothing has shown it.
    pub capacity: IoMax,
    /// What it did over the last period, per second.
    pub rbps: u64,
    /// Bytes written per second.
    pub wbps: u64,
    /// Reads per second.
    pub riops: u64,
    /// Writes per second.
    pub wiops: u64,
    /// The part of its capacity that was used; `None` while that is unknown.
    pub used: Option<f64>,
    /// Mean number of requests under way.
    pub queue: f64,
    /// Mean time a request took.
    pub wait: Micros,
    /// What that is on a quiet day: the 10th percentile of [`Self::wait`] over about the last ten minutes.
    pub base_wait: Micros,
    /// Lifelines and reservations together, in parts of its capacity.
    pub promised: f64,
    /// What is going on.
    pub state: DiskState,
    /// Why nothing is limited here, where that is so by decision: it carries swap, limits were just taken off, ...
    pub exempt_reason: Option<String>,
}

/// What is going on at a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DiskState {
    /// No container was short of what it needs lately: no caps.
    #[default]
    Free,
    /// None is short now; caps that were set when one was are still there, and grow.
    Guard,
    /// A container is short of what it needs: those that take more than they need are cut.
    Share,
    /// The same, and the disk does less than it normally can.
    Slow,
    /// Our caps held others up while it had room: limits are backed off for a while.
    Inversion,
}

/// One container at one disk. Shares of the disk are in parts of 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContainerDiskStatus {
    /// Where.
    pub disk: DeviceNumber,
    /// The disk's name.
    pub name: String,
    /// What it did over the last period, per second.
    pub rbps: u64,
    /// Bytes written per second.
    pub wbps: u64,
    /// Reads per second.
    pub riops: u64,
    /// Writes per second.
    pub wiops: u64,
    /// The part of the disk it used; `None` while the capacity is unknown.
    pub used: Option<f64>,
    /// The part of the disk it is known to need.
    pub lifeline: Option<f64>,
    /// The part of the disk it may take now; `None` for all of it.
    pub cap: Option<f64>,
    /// The limits behind [`Self::cap`], as ordered.
    pub max: IoMax,
    /// Whether they are in force: `false` when only observing, or when the knob was ceded.
    pub enforced: bool,
    /// What holds it back.
    pub held_by: HeldBy,
    /// The last decisions, oldest first, at most [`DECISION_HISTORY`].
    pub decisions: Vec<Cap>,
}

/// What holds a container's I/O back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum HeldBy {
    /// Nothing: it gets what it asks for.
    #[default]
    Nothing,
    /// A cap of ours.
    Cap,
    /// A limit its user set.
    User,
    /// Other containers, which use the disk at the same time.
    Others,
    /// The disk, which is slower than it was.
    Disk,
}
