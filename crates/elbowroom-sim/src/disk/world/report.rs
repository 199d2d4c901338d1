//! What a sensor says about the toy machine: counters as the kernel would show them.

use super::container_io::SimContainerIo;
use crate::disk::program::DiskTenant;
use crate::disk::random::SplitMix64;
use crate::disk::scenario::{DiskScenario, Drive};
use elbowroom_types::container::{ContainerEngine, ContainerIdentity};
use elbowroom_types::id::CgroupId;
use elbowroom_types::io::{CgroupIo, DiskProperties, DiskStat, IoStat};
use elbowroom_types::label::ContainerLabels;
use elbowroom_types::psi::{Pressure, Stall};
use elbowroom_types::sample::{CgroupProperties, CgroupSettings, HostEvent};
use elbowroom_types::unit::{Bytes, Micros};

/// What a disk, or a container on a disk, has done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SimIoCounters {
    rios: f64,
    rbytes: f64,
    rticks: f64,
    wios: f64,
    wbytes: f64,
    wticks: f64,
    io_ticks: f64,
    time_in_queue: f64,
    in_flight: u32,
}

/// Whole requests of one program.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompletedRequests {
    pub(super) reads: f64,
    pub(super) writes: f64,
    /// Bytes of each.
    pub(super) size: f64,
}

impl SimIoCounters {
    /// Counts completed requests that took `wait` seconds each.
    pub(super) fn add(&mut self, done: CompletedRequests, wait: f64) {
        let CompletedRequests { reads, writes, size } = done;
        self.rios += reads;
        self.rbytes += reads * size;
        self.rticks += reads * wait;
        self.wios += writes;
        self.wbytes += writes * size;
        self.wticks += writes * wait;
    }

    /// Counts `seconds` with `queue` requests under way. The kernel counts the time with at least one: a disk that is throttled answers at
    /// once until it is full, and is idle most of the time before (on a real one of 1 MB/s, 5 % at 0.9 of it).
    pub(super) fn queue(&mut self, queue: f64, seconds: f64, random: &mut SplitMix64) {
        self.in_flight = (queue + random.unit()) as u32;
        self.time_in_queue += queue * seconds;
        self.io_ticks += (1.0 - (-1.5 * queue).exp()) * seconds;
    }

    /// Requests done.
    pub(super) fn ios(&self) -> f64 {
        self.rios + self.wios
    }

    /// As in `/proc/diskstats`.
    pub(super) fn stat(&self) -> DiskStat {
        DiskStat {
            rios: self.rios as u64,
            rbytes: Bytes(self.rbytes as u64),
            rticks: micros(self.rticks),
            wios: self.wios as u64,
            wbytes: Bytes(self.wbytes as u64),
            wticks: micros(self.wticks),
            in_flight: self.in_flight,
            io_ticks: micros(self.io_ticks),
            time_in_queue: micros(self.time_in_queue),
        }
    }
}

/// A container's measurements: from what it did on each disk, ascending, and the seconds it was stalled.
pub(super) fn group_io<'a>(
    group: CgroupId,
    stalled: Option<f64>,
    places: impl Iterator<Item = (usize, &'a SimContainerIo)>,
) -> CgroupIo {
    let (mut dirty, mut io) = (0.0, Vec::new());
    for (drive, place) in places {
        dirty += place.dirty();
        let done = &place.counters;
        let number = DiskScenario::number(drive);
        if done.ios() >= 1.0 {
            io.push(IoStat {
                device: number,
                rbytes: Bytes(done.rbytes as u64),
                wbytes: Bytes(done.wbytes as u64),
                rios: done.rios as u64,
                wios: done.wios as u64,
                ..IoStat::EMPTY
            });
        }
    }
    CgroupIo { group, stalled: stalled.map(micros), dirty: Some(Bytes(dirty as u64)), io }
}

/// The machine's pressure: the seconds in which all tasks waited, and in which some did.
pub(super) fn pressure((full, some): (f64, f64)) -> Pressure {
    let stall = |seconds| Stall { total: micros(seconds), ..Stall::EMPTY };
    Pressure { some: stall(some), full: stall(full) }
}

/// A disk as it appears.
pub(super) fn disk((i, drive): (usize, &Drive)) -> HostEvent {
    HostEvent::Disk(DiskProperties {
        number: DiskScenario::number(i),
        name: format!("sd{i}"),
        identity: format!("toy-{i}"),
        rotational: drive.latency > Micros::millis(1),
        scheduler: "none".to_owned(),
        weights: drive.weights,
        swap: drive.swap,
    })
}

/// A container as it appears.
pub(super) fn group(id: CgroupId, tenant: &DiskTenant) -> HostEvent {
    let path = format!("/{}", tenant.name);
    let container = ContainerIdentity {
        id: path.clone(),
        name: Some(tenant.name.clone()),
        engine: ContainerEngine::Plain,
        pod: None,
        labels: ContainerLabels::default(),
    };
    let container = Some(container);
    HostEvent::Group(CgroupProperties {
        id,
        parent: None,
        path,
        container,
        limits: CgroupSettings::default(),
        populated: true,
        made_by_user: false,
    })
}

fn micros(seconds: f64) -> Micros {
    Micros((seconds * 1e6) as u64)
}
