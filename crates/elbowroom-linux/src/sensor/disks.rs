//! Disks and what containers do to them, in a period of its own.
//!
//! Only containers are read: two or three small files each, kept open. A device is read when a container first
//! uses it, and again once per [`RESCAN`], a few in each call: a hundred disks have a thousand files.
//!
//! Since Linux 6.10, cgroup v1 counts a disk only from the first throttle rule on it (block/blk-throttle.c,
//! `blk_throtl_activated`). So that there is something to see, a rule that limits nothing (`8:0 0`) is written to the root
//! cgroup for each governed disk that is not counted: the one thing that sensing writes.

use super::Sensor;
use super::io_meter::IoMeter;
use super::meter::ReadContext;
use super::tree::GroupSlot;
use crate::cgroup::{self, CgroupController, CgroupVersion, v1, v2};
use crate::disk::{BlockDeviceKind, Devices};
use crate::root::{ReadError, if_present};
use crate::{proc, timer};
use elbowroom_types::id::{CgroupId, DeviceNumber};
use elbowroom_types::io::{DiskProperties, DiskStat, DiskTick, IoLimits, IoMax, IoWeightMechanism};
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::Micros;
use rustix::fs::OFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// In what time every device is looked at again: they are stacked, given swap or another scheduler without a word.
const RESCAN: Micros = Micros::secs(5);

/// A container's page cache is read once in this many calls.
const DIRTY_READ_CALLS: u64 = 5;

/// An idle container is read once in this many calls.
const QUIET_READ_CALLS: u64 = 4;

/// A container's limits are read again once in this many calls.
const LIMITS_READ_CALLS: u64 = 30;

/// What is kept between two calls.
#[derive(Debug, Default)]
pub(super) struct DiskWatch {
    devices: Devices,
    /// Governed disks as their own directories describe them, and as they were told.
    facts: BTreeMap<DeviceNumber, DiskProperties>,
    reported: BTreeMap<DeviceNumber, DiskProperties>,
    swap: BTreeSet<DeviceNumber>,
    iocost: Vec<DeviceNumber>,
    groups: BTreeMap<CgroupId, IoMeter>,
    /// Where the round over all devices is, and when it last moved.
    rescan_at: DeviceNumber,
    rescanned: Option<Micros>,
    /// When the machine's own files were last looked at.
    host_read_at: Option<Micros>,
    calls: u64,
    /// Disks for which counting was switched on, or could not be, and partitions, for which there is no counting.
    counting_enabled: BTreeSet<DeviceNumber>,
    /// The containers that the running measurement has still to read.
    unread: Vec<(CgroupId, GroupSlot)>,
    buffer: Vec<u8>,
}

impl Sensor {
    /// Governs only disks whose name below `/sys/block` fits one of `patterns`; all that containers use when there is none. A
    /// loop device counts as a disk of its own, rather than the one its file is on, where a pattern begins with `loop`.
    pub fn watch_disks(&mut self, patterns: &[String]) {
        self.disks.devices = Devices::new(patterns);
        self.disks.facts.clear();
        self.disks.host_read_at = None;
    }

    /// One period's measurements of disks: [`HostEvent::Disk`] and [`HostEvent::DiskGone`] for what changed, [`HostEvent::IoLimits`] for
    /// each container that is met on a disk for the first time, and again every now and then, and an [`HostEvent::DiskTick`] at the
    /// end. `now` is the monotonic clock's. Only containers that [`Sensor::start`] or [`Sensor::changes`] told of are read. Files do
    /// not say whose a limit is: a program that sets some has to know its own again.
    pub fn disks(&mut self, now: Micros) -> Vec<HostEvent> {
        self.disks_until(now, Micros(u64::MAX), false).expect("a measurement without a deadline ends")
    }

    /// As [`Sensor::disks`], but reads containers only until that time of the monotonic clock, at least one: nothing when there
    /// are more to read, which the next call does. So a thread with a shorter period than that of disks is never late. `quiet_too`: reads
    /// also those that seem to do nothing, because one of them may just have begun.
    pub fn disks_until(&mut self, now: Micros, until: Micros, quiet_too: bool) -> Option<Vec<HostEvent>> {
        let mut watch = std::mem::take(&mut self.disks);
        if watch.unread.is_empty() {
            self.begin_reading(&mut watch);
        }
        self.read_containers(&mut watch, until, quiet_too);
        let events = watch.unread.is_empty().then(|| self.disk_events(&mut watch, now));
        self.disks = watch;
        events
    }

    /// What was read of containers, with what there is to say of disks.
    fn disk_events(&mut self, watch: &mut DiskWatch, now: Micros) -> Vec<HostEvent> {
        let containers = self.containers();
        let stats = self.diskstats();
        let mut events = Vec::new();
        self.scan_disks(watch, now, &stats, &mut events);
        let governed: BTreeSet<DeviceNumber> = watch.reported.keys().copied().collect();
        let mut groups = Vec::new();
        for (id, slot) in &containers {
            let Some(meter) = watch.groups.get_mut(id) else { continue };
            groups.extend(meter.changed_io(*id, &governed));
            let again = (watch.calls + *slot as u64).is_multiple_of(LIMITS_READ_CALLS);
            self.limit_events((*id, *slot), meter, &governed, again, &mut events);
        }
        let pressure = if_present(self.root.read("/proc/pressure/io").and_then(|text| {
            proc::pressure(&text).map_err(|e| ReadError::malformed("/proc/pressure/io", e))
        }));
        let disks = governed.iter().filter_map(|number| Some((*number, *stats.get(number)?))).collect();
        let pressure = self.warnings.ok_or_warn(pressure).flatten();
        events.push(HostEvent::DiskTick(DiskTick { now, pressure, disks, groups }));
        events
    }

    /// What the governed disks have counted until now, without their containers: one file.
    pub fn disk_stats(&mut self) -> Vec<(DeviceNumber, DiskStat)> {
        let stats = self.diskstats();
        let governed = self.disks.reported.keys();
        governed.filter_map(|number| Some((*number, *stats.get(number)?))).collect()
    }

    fn diskstats(&mut self) -> BTreeMap<DeviceNumber, DiskStat> {
        let text = self.warnings.ok_or_warn(self.root.read("/proc/diskstats")).unwrap_or_default();
        let stats = proc::diskstats(&text).map_err(|e| ReadError::malformed("/proc/diskstats", e));
        let stats = self.warnings.ok_or_warn(stats).unwrap_or_default();
        stats.into_iter().map(|(number, _, stat)| (number, stat)).collect()
    }

    /// The containers that were told of.
    fn containers(&self) -> Vec<(CgroupId, GroupSlot)> {
        let of = |slot: GroupSlot| {
            let entry =
                self.tree.get(slot).filter(|entry| entry.reported && entry.group.container.is_some())?;
            Some((entry.group.id, slot))
        };
        (0..self.tree.slots()).filter_map(of).collect()
    }

    fn begin_reading(&mut self, watch: &mut DiskWatch) {
        watch.calls += 1;
        watch.unread = self.containers();
        let there: BTreeSet<CgroupId> = watch.unread.iter().map(|(id, _)| *id).collect();
        let budget = &mut self.budget;
        watch.groups.retain(|id, meter| {
            let stays = there.contains(id);
            if !stays {
                meter.close(budget);
            }
            stays
        });
    }

    fn read_containers(&mut self, watch: &mut DiskWatch, until: Micros, quiet_too: bool) {
        while let Some((id, slot)) = watch.unread.pop() {
            // Its place may be another's since the last call.
            if self.tree.get(slot).is_some_and(|entry| entry.group.id == id) {
                self.read_container(watch, (id, slot), quiet_too);
            }
            if timer::now() >= until {
                return;
            }
        }
    }

    fn read_container(&mut self, watch: &mut DiskWatch, (id, slot): (CgroupId, GroupSlot), quiet_too: bool) {
        let (entry, meter) = self.tree.entry_and_meter(slot);
        let cpu = meter.was_read.then_some(meter.usage.cpu);
        let meter = watch.groups.entry(id).or_default();
        // Spread by slot, so that no call has to do with all of them.
        let turn = |every: u64| (watch.calls + slot as u64).is_multiple_of(every);
        if !quiet_too && meter.is_quiet(cpu) && !turn(QUIET_READ_CALLS) {
            return;
        }
        let mut on = ReadContext {
            layout: &self.layout,
            budget: &mut self.budget,
            warnings: &mut self.warnings,
            syscalls: &mut self.last_tick_cost.syscalls,
        };
        meter.read(&entry.path, cpu, &mut watch.buffer, &mut on);
        if turn(DIRTY_READ_CALLS) {
            meter.read_dirty(&entry.path, cpu, &mut watch.buffer, &mut on);
        }
    }

    /// Looks at devices that were not known, and at a part of those that are; tells what changed.
    fn scan_disks(
        &mut self,
        watch: &mut DiskWatch,
        now: Micros,
        stats: &BTreeMap<DeviceNumber, DiskStat>,
        events: &mut Vec<HostEvent>,
    ) {
        let used: BTreeSet<DeviceNumber> = watch.groups.values().flat_map(IoMeter::devices).collect();
        let since = watch.rescanned.map_or(RESCAN, |last| now.saturating_sub(last)).min(RESCAN);
        let owed = watch.devices.len() as u64 * since.get() / RESCAN.get();
        if watch.rescanned.is_none() || owed > 0 {
            watch.rescanned = Some(now);
        }
        let (root, warnings) = (&self.root, &mut self.warnings);
        let round: Vec<DeviceNumber> =
            watch.devices.cycle_from(watch.rescan_at).take(owed as usize).collect();
        for number in round {
            warnings.ok_or_warn(watch.devices.refresh(root, number));
            watch.facts.remove(&number);
            watch.rescan_at = number;
        }
        for number in &used {
            warnings.ok_or_warn(watch.devices.learn(root, *number));
        }
        if watch.host_read_at.is_none_or(|last| now.saturating_sub(last) >= RESCAN) {
            watch.host_read_at = Some(now);
            self.scan_machine(watch, stats);
        }
        let mut disks = BTreeMap::new();
        for number in used.into_iter().filter(|number| watch.devices.is_governed(*number)) {
            let facts = match watch.facts.remove(&number) {
                Some(known) => known,
                None => match self.warnings.ok_or_warn(watch.devices.disk(&self.root, number)) {
                    Some(Some(fresh)) => fresh,
                    Some(None) => continue,
                    // What cannot be read now is as it was.
                    None => {
                        disks.extend(watch.reported.get(&number).map(|told| (number, told.clone())));
                        continue;
                    }
                },
            };
            let mut disk = facts.clone();
            watch.facts.insert(number, facts);
            disk.swap = watch.swap.contains(&number);
            if watch.iocost.contains(&number) {
                disk.weights = Some(IoWeightMechanism::Iocost);
            }
            disks.insert(number, disk);
        }
        watch.facts.retain(|number, _| disks.contains_key(number));
        for number in watch.reported.keys().filter(|number| !disks.contains_key(number)) {
            events.push(HostEvent::DiskGone(*number));
            for meter in watch.groups.values_mut() {
                meter.limits.remove(number);
            }
        }
        for disk in disks.values().filter(|disk| watch.reported.get(&disk.number) != Some(disk)) {
            events.push(HostEvent::Disk(disk.clone()));
        }
        watch.reported = disks;
    }

    /// Looks at what the machine says of all disks at once.
    fn scan_machine(&mut self, watch: &mut DiskWatch, stats: &BTreeMap<DeviceNumber, DiskStat>) {
        watch.devices.forget_mounts();
        for meter in watch.groups.values_mut() {
            meter.retry_absent(&mut self.budget);
        }
        // What cannot be read now is as it was: a machine that is short of memory is no reason to limit the disk that has its swap.
        if let Some(swap) = self.warnings.ok_or_warn(watch.devices.swap(&self.root)) {
            watch.swap = swap;
        }
        if let Some((CgroupVersion::V2, dir)) = self.layout.dir(CgroupController::Io, Path::new(""))
            && let Some(iocost) = self.warnings.ok_or_warn(dir.parse("io.cost.qos", v2::iocost_devices))
        {
            watch.iocost = iocost.unwrap_or_default();
        }
        self.enable_v1_counting(watch, stats);
    }

    /// Has v1 count the governed disks that it does not.
    fn enable_v1_counting(&mut self, watch: &mut DiskWatch, stats: &BTreeMap<DeviceNumber, DiskStat>) {
        let Some((CgroupVersion::V1, dir)) = self.layout.dir(CgroupController::Io, Path::new("")) else {
            return;
        };
        // Another disk may come under the number of one that is gone.
        watch.counting_enabled.retain(|number| stats.contains_key(number));
        // Not the recursive one: here that sums up every cgroup for every disk.
        let mut counted = v1::IoRows::new();
        let read = dir.parse("blkio.throttle.io_serviced", |text| v1::io_serviced(text, &mut counted));
        // What is not known to lack a rule may have one of the user's.
        if self.warnings.ok_or_warn(read).is_none() {
            return;
        }
        let busy = stats.iter().filter(|(_, stat)| stat.rios > 0 || stat.wios > 0).map(|(number, _)| *number);
        for number in busy {
            if counted.contains_key(&number) || !watch.counting_enabled.insert(number) {
                continue;
            }
            self.warnings.ok_or_warn(watch.devices.learn(&self.root, number));
            if !watch.devices.is_governed(number) {
                if watch.devices.get(number).is_none_or(|node| node.kind != BlockDeviceKind::Partition) {
                    watch.counting_enabled.remove(&number);
                }
                continue;
            }
            let path = dir.path().join("blkio.throttle.read_bps_device");
            let written = self.root.open(&path, OFlags::WRONLY).and_then(|file| {
                let write = rustix::io::write(&file, format!("{number} 0").as_bytes());
                write.map_err(|source| ReadError::Io { operation: "writing", path: path.clone(), source })
            });
            if self.warnings.ok_or_warn(written).is_some() {
                tracing::info!(disk = %number, because = "cgroup v1 counts a disk from the first rule on it", "counting");
            }
        }
    }

    /// The limits that are there, where the container is new on a disk, or where it is time to look `again`: also where they are as
    /// before, for others may have come and gone meanwhile.
    fn limit_events(
        &mut self,
        (group, slot): (CgroupId, GroupSlot),
        meter: &mut IoMeter,
        governed: &BTreeSet<DeviceNumber>,
        again: bool,
        events: &mut Vec<HostEvent>,
    ) {
        let is_due = |number: &DeviceNumber| {
            if meter.limits.contains(number) { again } else { governed.contains(number) }
        };
        let due: Vec<DeviceNumber> = meter.devices().filter(is_due).collect();
        if due.is_empty() {
            return;
        }
        let Some(limits) = self.warnings.ok_or_warn(cgroup::io_max(&self.layout, &self.tree[slot].path))
        else {
            return;
        };
        for disk in due {
            let user = limits.iter().find(|(number, _)| *number == disk).map_or(IoMax::MAX, |(_, max)| *max);
            meter.limits.insert(disk);
            events.push(HostEvent::IoLimits(IoLimits { group, disk, user, ours: IoMax::MAX, ceded: None }));
        }
    }
}
