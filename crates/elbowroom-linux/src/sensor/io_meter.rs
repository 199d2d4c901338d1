//! The disk counters of one container.

use super::meter::ReadContext;
use crate::cgroup::read::{FdBudget, PolledFile, PolledValue};
use crate::cgroup::{CgroupController, CgroupVersion, v1, v2};
use crate::proc;
use crate::root::ReadError;
use elbowroom_types::id::{CgroupId, DeviceNumber};
use elbowroom_types::io::{CgroupIo, IoStat};
use elbowroom_types::unit::{Bytes, Micros};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What is kept of one container for its disks.
#[derive(Debug, Default)]
pub(super) struct IoMeter {
    /// v1 bytes, or v2's whole `io.stat`.
    transfer: PolledFile,
    /// v1 operations.
    serviced: PolledFile,
    pressure: PolledFile,
    memory_stat: PolledFile,
    /// Per device: as the kernel said last, and as it is told.
    rows: BTreeMap<DeviceNumber, (IoStat, IoStat)>,
    stalled: Option<Micros>,
    dirty: Option<Bytes>,
    /// Something moved, or waited, between the last two reads.
    active: bool,
    /// CPU time it had used at the last read, and at the last look at its page cache.
    read_at: Option<Micros>,
    dirty_read_at: Option<Micros>,
    /// As it was last told.
    reported: Option<CgroupIo>,
    /// Devices whose limits were told.
    pub(super) limits: BTreeSet<DeviceNumber>,
}

impl IoMeter {
    /// Whether it can be left out now and then: since the last read it used no CPU time, and without that nothing reaches a
    /// disk but what it dirtied before; and it waited for no disk. `cpu`: the time it has used; `None` where that is not measured.
    pub(super) fn is_quiet(&self, cpu: Option<Micros>) -> bool {
        let clean = self.dirty.is_none_or(|dirty| dirty == Bytes::ZERO);
        cpu.is_some() && cpu == self.read_at && clean && !self.active
    }

    /// Reads transfer and pressure.
    pub(super) fn read(
        &mut self,
        group: &Path,
        cpu: Option<Micros>,
        buffer: &mut Vec<u8>,
        on: &mut ReadContext<'_>,
    ) {
        self.read_at = cpu;
        self.active = false;
        match on.layout.dir(CgroupController::Io, group) {
            Some((CgroupVersion::V1, dir)) => {
                let mut rows = v1::IoRows::new();
                let bytes = |text: &str| v1::io_service_bytes(text, &mut rows);
                let file = "blkio.throttle.io_service_bytes_recursive";
                let read = self.transfer.read_growing(&dir, file, on.budget, on.syscalls, buffer, bytes);
                let bytes = polled_value(read, on);
                let operations = |text: &str| v1::io_serviced(text, &mut rows);
                let file = "blkio.throttle.io_serviced_recursive";
                let read = self.serviced.read_growing(&dir, file, on.budget, on.syscalls, buffer, operations);
                if bytes.and(polled_value(read, on)).is_some() {
                    self.add_growth(&rows.into_values().collect::<Vec<_>>());
                }
            }
            Some((CgroupVersion::V2, dir)) => {
                let parse = v2::parse_io_stat;
                let read = self.transfer.read_growing(&dir, "io.stat", on.budget, on.syscalls, buffer, parse);
                if let Some(rows) = polled_value(read, on) {
                    self.add_growth(&rows);
                }
            }
            None => {}
        }
        if let Some(dir) = on.layout.unified_dir(group) {
            let parse = proc::pressure;
            let read = self.pressure.read_growing(&dir, "io.pressure", on.budget, on.syscalls, buffer, parse);
            if let Some(pressure) = polled_value(read, on) {
                let stalled = Some(pressure.some.total);
                self.active |= stalled != self.stalled;
                self.stalled = stalled;
            }
        }
    }

    /// Reads how much dirty page cache it has, if that can have changed: a container that used no CPU time since the last look
    /// and had none then has none now. `memory.stat` is by far the dearest of these files.
    pub(super) fn read_dirty(
        &mut self,
        group: &Path,
        cpu: Option<Micros>,
        buffer: &mut Vec<u8>,
        on: &mut ReadContext<'_>,
    ) {
        if cpu.is_some() && cpu == self.dirty_read_at && self.dirty == Some(Bytes::ZERO) {
            return;
        }
        let Some((version, dir)) = on.layout.dir(CgroupController::Memory, group) else { return };
        let parse = match version {
            CgroupVersion::V1 => v1::parse_memory_stat,
            CgroupVersion::V2 => v2::parse_memory_stat,
        };
        let read = self.memory_stat.read_growing(&dir, "memory.stat", on.budget, on.syscalls, buffer, parse);
        if let Some(stat) = polled_value(read, on) {
            self.dirty = Some(stat.file_dirty.saturating_add(stat.file_writeback));
            self.dirty_read_at = cpu;
        }
    }

    /// The devices it ever moved a byte on.
    pub(super) fn devices(&self) -> impl Iterator<Item = DeviceNumber> {
        let moved = |row: &IoStat| row.rios | row.wios | row.rbytes.get() | row.wbytes.get() != 0;
        self.rows.iter().filter(move |(_, (_, told))| moved(told)).map(|(device, _)| *device)
    }

    /// What to tell of it, on the governed disks alone; `None` when that is what was told, or nothing at all.
    pub(super) fn changed_io(
        &mut self,
        group: CgroupId,
        governed: &BTreeSet<DeviceNumber>,
    ) -> Option<CgroupIo> {
        let io: Vec<IoStat> =
            self.rows.values().map(|(_, told)| *told).filter(|row| governed.contains(&row.device)).collect();
        let news = CgroupIo { group, stalled: self.stalled, dirty: self.dirty, io };
        let nothing = news.io.is_empty() && news.dirty.is_none_or(|dirty| dirty == Bytes::ZERO);
        if self.reported.as_ref() == Some(&news) || self.reported.is_none() && nothing {
            return None;
        }
        self.reported = Some(news.clone());
        Some(news)
    }

    /// Closes its files.
    pub(super) fn close(&mut self, budget: &mut FdBudget) {
        for file in [&mut self.transfer, &mut self.serviced, &mut self.pressure, &mut self.memory_stat] {
            file.reset(budget);
        }
    }

    /// Looks again for files that were not there.
    pub(super) fn retry_absent(&mut self, budget: &mut FdBudget) {
        for file in [&mut self.transfer, &mut self.serviced, &mut self.pressure, &mut self.memory_stat] {
            if matches!(file, PolledFile::Absent) {
                file.reset(budget);
            }
        }
    }

    /// Adds what grew since the last read. A counter that went back (v1 forgets what a removed cgroup below did; a device was
    /// attached anew) adds nothing once, and counts on from there. A device without a row is gone.
    fn add_growth(&mut self, rows: &[IoStat]) {
        self.rows.retain(|device, _| rows.binary_search_by_key(device, |row| row.device).is_ok());
        for now in rows.iter().copied() {
            let (last, told) = self.rows.entry(now.device).or_insert_with(|| {
                let none = IoStat { device: now.device, ..IoStat::EMPTY };
                (none, none)
            });
            self.active |= now != *last;
            let bytes = |told: &mut Bytes, now: Bytes, last: Bytes| {
                *told = told.saturating_add(now.saturating_sub(last));
            };
            let count = |told: &mut u64, now: u64, last: u64| {
                *told = told.saturating_add(now.saturating_sub(last));
            };
            bytes(&mut told.rbytes, now.rbytes, last.rbytes);
            bytes(&mut told.wbytes, now.wbytes, last.wbytes);
            bytes(&mut told.dbytes, now.dbytes, last.dbytes);
            count(&mut told.rios, now.rios, last.rios);
            count(&mut told.wios, now.wios, last.wios);
            count(&mut told.dios, now.dios, last.dios);
            *last = now;
        }
    }
}

/// A container that was removed is a container without news: its end is told elsewhere.
fn polled_value<T>(kept: Result<PolledValue<T>, ReadError>, on: &mut ReadContext<'_>) -> Option<T> {
    match on.warnings.ok_or_warn(kept)? {
        PolledValue::Value(value) => Some(value),
        PolledValue::Absent | PolledValue::Gone => None,
    }
}
