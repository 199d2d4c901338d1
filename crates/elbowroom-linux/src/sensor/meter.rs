//! The counters of one group.

use super::tree::{GroupEntry, GroupSlot};
use crate::cgroup::read::{FdBudget, PolledFile, PolledValue};
use crate::cgroup::{CgroupController, CgroupLayout, CgroupVersion, v1, v2};
use crate::parse::leading_number;
use crate::root::ReadError;
use crate::warnings::Warnings;
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::Usage;
use elbowroom_types::unit::{Bytes, Micros};
use std::path::Path;

/// Most ticks between two reads of a group's memory while that hardly moves, if the group is read at all.
const MAX_MEMORY_INTERVAL: u64 = 8;

/// What every tick needs of one group. In this order the first two cache lines are all that is touched of a group that ran and of
/// which no file is read: with a thousand of them, a tick waits for memory more than for anything else.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct GroupMeter {
    /// The tick that read it last.
    pub(super) tick: u64,
    /// Where a tier follows it: the total that tier last said.
    pub(super) tracked: Option<Micros>,
    /// CPU time between its last two reads.
    pub(super) used: Micros,
    /// As it was last read.
    pub(super) usage: Usage,
    /// The group above.
    pub(super) parent: GroupSlot,
    /// Whose this is.
    pub(super) id: CgroupId,
    /// Where this tick names it, if it does.
    pub(super) tick_index: (u64, usize),
    /// The tick from which on its memory is read again, and the ticks between that and the read before.
    memory_due: u64,
    memory_interval: u64,
    /// A process is in it: what its entry says too, which a tick would have to fetch for that.
    pub(super) populated: bool,
    /// The tier that follows it saw it, or what is below it, run since its last round; or it may have run before it was followed.
    pub(super) ran: bool,
    /// It has a quota, so v1's `cpu.stat` is worth a read.
    pub(super) has_quota: bool,
    pub(super) has_children: bool,
    /// Its files were read at least once.
    pub(super) was_read: bool,
    /// How often looking for sleepers that woke up was in vain, and where it goes on.
    pub(super) failed_probes: u8,
    pub(super) probe_at: usize,
    /// Of `used`, what reads of its children account for.
    pub(super) explained: Micros,
    /// The time between the last read of its files and the next.
    pub(super) interval: Micros,
    cpu: PolledFile,
    memory: PolledFile,
    throttled: PolledFile,
    /// What `cpu.stat` of v2 said last of the time that a quota took: the group's own, and that of the one below it that all of it is in.
    throttled_seen: [Option<Micros>; 2],
}

/// What reading needs besides the group.
pub(super) struct ReadContext<'a> {
    pub(super) layout: &'a CgroupLayout,
    pub(super) budget: &'a mut FdBudget,
    pub(super) warnings: &'a mut Warnings,
    pub(super) syscalls: &'a mut u64,
}

impl GroupMeter {
    /// A group that was not read yet.
    pub(super) fn new(id: CgroupId, parent: GroupSlot) -> Self {
        Self { id, parent, ..Self::default() }
    }

    /// CPU time of the group as its file has it now, which no tick is told of; none where it has no such file.
    pub(super) fn peek_cpu(&mut self, group: &Path, on: &mut ReadContext<'_>) -> Micros {
        let Some((version, dir)) = on.layout.dir(CgroupController::Cpuacct, group) else {
            return Micros::ZERO;
        };
        let kept = match version {
            CgroupVersion::V1 => {
                self.cpu.read(&dir, "cpuacct.usage", on.budget, on.syscalls, v1::cpuacct_usage)
            }
            CgroupVersion::V2 => self
                .cpu
                .read(&dir, "cpu.stat", on.budget, on.syscalls, |text| v2::cpu_stat(text).map(|u| u.cpu)),
        };
        polled_value(kept, on.warnings, &mut false).unwrap_or_default()
    }

    /// Whether there is anything to read in this of the `ticks`.
    pub(super) fn is_due(&self, with_cpu: bool, ticks: u64) -> bool {
        with_cpu || self.memory_due <= ticks
    }

    /// Reads the group's files into `usage`, CPU time only `with_cpu`, memory that hardly moves not in every one of the `ticks`; true
    /// if the group turned out to be removed. A value that cannot be read stays as it was; a counter that seems to go back does not.
    pub(super) fn read(
        &mut self,
        group: &GroupEntry,
        with_cpu: bool,
        ticks: u64,
        on: &mut ReadContext<'_>,
    ) -> bool {
        let mut gone = false;
        if with_cpu {
            gone |= self.read_cpu(&group.path, group.subgroup.as_deref(), on);
        }
        if self.memory_due <= ticks {
            let before = self.usage.memory;
            gone |= self.read_memory(&group.path, on);
            let still = self.was_read && is_small_change(before, self.usage.memory);
            self.memory_interval =
                if still { (self.memory_interval * 2).clamp(1, MAX_MEMORY_INTERVAL) } else { 1 };
            self.memory_due = ticks + self.memory_interval;
        }
        self.was_read = true;
        gone
    }

    fn read_memory(&mut self, group: &Path, on: &mut ReadContext<'_>) -> bool {
        let mut gone = false;
        let file = on.layout.dir(CgroupController::Memory, group).map(|(version, dir)| match version {
            CgroupVersion::V1 => (dir, "memory.usage_in_bytes"),
            CgroupVersion::V2 => (dir, "memory.current"),
        });
        if let Some((dir, file)) = file {
            let kept = self.memory.read(&dir, file, on.budget, on.syscalls, leading_number);
            if let Some(bytes) = polled_value(kept, on.warnings, &mut gone) {
                self.usage.memory = Bytes(bytes);
            }
        }
        gone
    }

    fn read_cpu(&mut self, group: &Path, subgroup: Option<&Path>, on: &mut ReadContext<'_>) -> bool {
        let mut gone = false;
        match on.layout.dir(CgroupController::Cpuacct, group) {
            Some((CgroupVersion::V1, dir)) => {
                let kept = self.cpu.read(&dir, "cpuacct.usage", on.budget, on.syscalls, v1::cpuacct_usage);
                if let Some(cpu) = polled_value(kept, on.warnings, &mut gone) {
                    self.usage.cpu = self.usage.cpu.max(cpu);
                }
            }
            Some((CgroupVersion::V2, dir)) => {
                let kept = self.cpu.read(&dir, "cpu.stat", on.budget, on.syscalls, v2::cpu_stat);
                if let Some(usage) = polled_value(kept, on.warnings, &mut gone) {
                    self.usage.cpu = self.usage.cpu.max(usage.cpu);
                    self.add_throttled(0, usage.throttled);
                }
                // Each group counts its own quota alone; that it is gone is told with its directory.
                if let Some((_, dir)) =
                    subgroup.and_then(|subgroup| on.layout.dir(CgroupController::Cpu, subgroup))
                {
                    let kept = self.throttled.read(&dir, "cpu.stat", on.budget, on.syscalls, v2::cpu_stat);
                    let inner = polled_value(kept, on.warnings, &mut false);
                    self.add_throttled(1, inner.and_then(|usage| usage.throttled));
                }
            }
            None => {}
        }
        if let Some((CgroupVersion::V1, dir)) =
            on.layout.dir(CgroupController::Cpu, group).filter(|_| self.has_quota)
        {
            let kept = self.throttled.read(&dir, "cpu.stat", on.budget, on.syscalls, v1::throttled_time);
            if let Some(throttled) = polled_value(kept, on.warnings, &mut gone) {
                self.usage.throttled = Some(throttled);
            }
        }
        gone
    }

    /// Adds what one of the two files of [`Self::throttled_seen`] counted since it was read last; of one that comes later, from then on.
    fn add_throttled(&mut self, file: usize, now: Option<Micros>) {
        let Some(now) = now else { return };
        let before = self.throttled_seen[file].replace(now).or(self.was_read.then_some(now));
        let grown = now.saturating_sub(before.unwrap_or_default());
        self.usage.throttled = Some(self.usage.throttled.unwrap_or_default().saturating_add(grown));
    }

    /// Another file says from now on how long it was held back.
    pub(super) fn reset_throttled(&mut self, budget: &mut FdBudget) {
        self.throttled.reset(budget);
        self.throttled_seen[1] = None;
    }

    /// Closes its files.
    pub(super) fn close(&mut self, budget: &mut FdBudget) {
        for file in [&mut self.cpu, &mut self.memory, &mut self.throttled] {
            file.reset(budget);
        }
    }

    /// Looks again for files that were not there.
    pub(super) fn retry_absent(&mut self, budget: &mut FdBudget) {
        for file in [&mut self.cpu, &mut self.memory, &mut self.throttled] {
            if matches!(file, PolledFile::Absent) {
                file.reset(budget);
            }
        }
    }
}

fn polled_value<T>(
    kept: Result<PolledValue<T>, ReadError>,
    warnings: &mut Warnings,
    gone: &mut bool,
) -> Option<T> {
    match warnings.ok_or_warn(kept)? {
        PolledValue::Value(value) => Some(value),
        PolledValue::Absent => None,
        PolledValue::Gone => {
            *gone = true;
            None
        }
    }
}

/// Less than 1 MiB and less than 1/64 of what it had.
pub(super) fn is_small_change(before: Bytes, after: Bytes) -> bool {
    before.get().abs_diff(after.get()) <= Bytes::mib(1).get().max(before.get() / 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_moves_when_it_moves_by_more_than_a_mebibyte_and_a_64th() {
        for (before, after, still) in [
            (Bytes::ZERO, Bytes::ZERO, true),
            (Bytes::ZERO, Bytes::mib(1), true),
            (Bytes::ZERO, Bytes::mib(2), false),
            (Bytes::gib(1), Bytes::mib(1024 + 16), true),
            (Bytes::gib(1), Bytes::mib(1024 - 17), false),
        ] {
            assert_eq!(is_small_change(before, after), still, "{before} {after}");
        }
    }
}
