//! What block devices did, and the limits on it: `io.stat`, `io.max`, `/proc/diskstats`.

use crate::id::{CgroupId, DeviceNumber};
use crate::psi::Pressure;
use crate::unit::{Bytes, Limit, Micros};
use serde::{Deserialize, Serialize};

/// Disk transfer of a cgroup on one device (v1 `blkio.throttle.*_recursive`, v2 `io.stat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub struct IoStat {
    /// Which device.
    pub device: DeviceNumber,
    /// Bytes read.
    pub rbytes: Bytes,
    /// Bytes written.
    pub wbytes: Bytes,
    /// Bytes discarded.
    pub dbytes: Bytes,
    /// Read operations.
    pub rios: u64,
    /// Write operations.
    pub wios: u64,
    /// Discard operations.
    pub dios: u64,
}

impl IoStat {
    /// No device, no transfer.
    pub const EMPTY: Self = Self {
        device: DeviceNumber::new(0, 0),
        rbytes: Bytes::ZERO,
        wbytes: Bytes::ZERO,
        dbytes: Bytes::ZERO,
        rios: 0,
        wios: 0,
        dios: 0,
    };
}

/// A disk on which containers are governed: the device that containers' I/O is counted on and limited at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskProperties {
    /// Its number: always a whole disk or a stacked device, never a partition.
    pub number: DeviceNumber,
    /// Its name below `/sys/block`, for example `nvme0n1`.
    pub name: String,
    /// What is recognised as the same disk after a restart: model and serial where the hardware says, else the name.
    pub identity: String,
    /// `queue/rotational`.
    pub rotational: bool,
    /// The I/O scheduler in force (`queue/scheduler`), for example `mq-deadline`.
    pub scheduler: String,
    /// What divides this disk by weight, where something does.
    pub weights: Option<IoWeightMechanism>,
    /// It carries swap: limits on it would slow down reclaim, so it is watched and never limited.
    pub swap: bool,
}

/// One period's measurements of disks. Counters only grow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskTick {
    /// When, on the monotonic clock.
    pub now: Micros,
    /// `/proc/pressure/io`, where the kernel has it.
    pub pressure: Option<Pressure>,
    /// Every governed disk.
    pub disks: Vec<(DeviceNumber, DiskStat)>,
    /// Every container that has used a governed disk; one that is not named has not changed since it was last named.
    pub groups: Vec<CgroupIo>,
}

/// A disk's own counters, `/proc/diskstats` (`Documentation/admin-guide/iostats.rst`), in bytes and microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStat {
    /// Reads completed.
    pub rios: u64,
    /// Bytes read.
    pub rbytes: Bytes,
    /// Time that reads took, summed over them.
    pub rticks: Micros,
    /// Writes completed.
    pub wios: u64,
    /// Bytes written.
    pub wbytes: Bytes,
    /// Time that writes took, summed over them.
    pub wticks: Micros,
    /// Requests under way now.
    pub in_flight: u32,
    /// Time with at least one request under way.
    pub io_ticks: Micros,
    /// Time times requests under way (`weighted`): its growth per unit of time is the mean queue length, `aq`.
    pub time_in_queue: Micros,
}

/// What one container has done to the governed disks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupIo {
    /// Which container.
    pub group: CgroupId,
    /// Time at least one of its tasks waited for I/O (`io.pressure`, `some`), where the kernel counts it.
    pub stalled: Option<Micros>,
    /// Its dirty and written-back page cache now: writes that reach the disk later, on v1 in no container's name.
    pub dirty: Option<Bytes>,
    /// Its counters per governed disk, ascending.
    pub io: Vec<IoStat>,
}

/// Throughput limits on one disk, each per second (v1 `blkio.throttle.*`, v2 `io.max`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IoMax {
    /// Bytes read.
    pub rbps: Limit<u64>,
    /// Bytes written.
    pub wbps: Limit<u64>,
    /// Read operations.
    pub riops: Limit<u64>,
    /// Write operations.
    pub wiops: Limit<u64>,
}

impl IoMax {
    /// No limit.
    pub const MAX: Self = Self { rbps: Limit::Max, wbps: Limit::Max, riops: Limit::Max, wiops: Limit::Max };

    /// The tighter of the two, limit by limit.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self {
            rbps: self.rbps.min(other.rbps),
            wbps: self.wbps.min(other.wbps),
            riops: self.riops.min(other.riops),
            wiops: self.wiops.min(other.wiops),
        }
    }
}

/// A container's limits on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoLimits {
    /// Which container.
    pub group: CgroupId,
    /// Which disk.
    pub disk: DeviceNumber,
    /// What its user set: never loosened, and back in force when ours are gone.
    pub user: IoMax,
    /// What we set, in force now; [`IoMax::MAX`] where nothing of ours is.
    pub ours: IoMax,
    /// Why ours could not be set: the knob belongs to another program, or the kernel refused.
    pub ceded: Option<LimitWriteFailure>,
}

/// A proportional-share mechanism that is switched on for a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IoWeightMechanism {
    /// iocost (`io.cost.qos` says `enable=1`): `io.weight`.
    Iocost,
    /// The bfq scheduler: v1 `blkio.bfq.weight_device`, v2 `io.bfq.weight`.
    Bfq,
}

/// Why a knob is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitWriteFailure {
    /// Another program wrote it after us: its value is in force.
    Foreign,
    /// The kernel has no such file here, or refused the value.
    Refused,
    /// The cgroup is gone.
    Gone,
}
