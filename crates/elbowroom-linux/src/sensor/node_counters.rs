//! The machine's own numbers, every period.

use super::Sensor;
use super::available::AvailableMemory;
use crate::cgroup::read::{FdBudget, PolledFile, PolledValue};
use crate::cgroup::{CgroupController, CgroupLayout, CgroupVersion, v1, v2};
use crate::parse::Malformed;
use crate::proc;
use crate::root::ReadError;
use elbowroom_types::sample::Tick;
use elbowroom_types::unit::{Bytes, Micros};
use std::path::Path;

/// Where the CPU time of the whole machine comes from.
///
/// v1 `cpuacct.usage` of the root counts the execution time of every task in nanoseconds; a running task's share is added at
/// least once per jiffy. `cpu.stat` of v2's root (since Linux 5.12) and `/proc/stat` have one source, accounting that samples
/// whole jiffies (1-10 ms) unless the kernel was built for more. Both count stolen time as busy, rightly: no process here can use
/// it. `/proc/stat` rounds it to 10 ms and costs many times as much, for it counts interrupts too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BusySource {
    Cpuacct,
    CpuStat,
    ProcStat,
}

/// What is kept for reading the machine.
#[derive(Debug)]
pub(super) struct NodeCounters {
    source: BusySource,
    file: PolledFile,
    busy: Micros,
    mem_free: Bytes,
    /// Whether a container is kept to a part of the CPUs, so that it matters which were busy; `None` when that is
    /// to be found out again.
    per_cpu: Option<bool>,
    pub(super) available: AvailableMemory,
}

impl NodeCounters {
    /// Chooses the most precise source there is.
    pub(super) fn best_source(layout: &CgroupLayout) -> Self {
        let top = Path::new("");
        let v1 = match layout.dir(CgroupController::Cpuacct, top) {
            Some((CgroupVersion::V1, dir)) => dir.open("cpuacct.usage").is_ok(),
            _ => false,
        };
        let v2 = || layout.unified_dir(top).is_some_and(|dir| dir.open("cpu.stat").is_ok());
        let from = match v1 {
            true => BusySource::Cpuacct,
            false if v2() => BusySource::CpuStat,
            false => BusySource::ProcStat,
        };
        Self {
            source: from,
            file: PolledFile::Closed,
            busy: Micros::ZERO,
            mem_free: Bytes::ZERO,
            per_cpu: None,
            available: AvailableMemory::default(),
        }
    }

    pub(super) fn busy_source(&self) -> &'static str {
        match self.source {
            BusySource::Cpuacct => "cpuacct.usage",
            BusySource::CpuStat => "cpu.stat",
            BusySource::ProcStat => "/proc/stat",
        }
    }

    /// The number is fine enough to say that nothing ran.
    pub(super) fn is_precise(&self) -> bool {
        self.source == BusySource::Cpuacct
    }

    /// Settings of a group changed, or a container came or went.
    pub(super) fn settings_changed(&mut self) {
        self.per_cpu = None;
        self.available.settings_changed();
    }

    fn read_busy(
        &mut self,
        layout: &CgroupLayout,
        budget: &mut FdBudget,
        calls: &mut u64,
    ) -> Result<Micros, ReadError> {
        let top = Path::new("");
        let kept = match self.source {
            BusySource::Cpuacct => {
                let Some((_, dir)) = layout.dir(CgroupController::Cpuacct, top) else { return Ok(self.busy) };
                self.file.read(&dir, "cpuacct.usage", budget, calls, v1::cpuacct_usage)?
            }
            BusySource::CpuStat => {
                let Some(dir) = layout.unified_dir(top) else { return Ok(self.busy) };
                self.file.read(&dir, "cpu.stat", budget, calls, |text| v2::cpu_stat(text).map(|u| u.cpu))?
            }
            BusySource::ProcStat => return Ok(self.busy),
        };
        Ok(if let PolledValue::Value(busy) = kept { busy } else { self.busy })
    }
}

impl Sensor {
    /// A tick with what the machine says, and no group yet.
    pub(super) fn read_machine(&mut self, now: Micros) -> Tick {
        let mut tick = self.read_busy_and_free(now);
        (tick.mem_available, tick.reclaim) = self.read_available(now);
        tick
    }

    /// The same without what is not read in every tick.
    pub(super) fn read_busy_and_free(&mut self, now: Micros) -> Tick {
        let per_cpu = match self.machine.per_cpu {
            Some(known) => known,
            None => self.any_narrow_cpuset(),
        };
        self.machine.per_cpu = Some(per_cpu);
        let mut busy_per_cpu = Vec::new();
        let busy = match self.machine.source {
            BusySource::Cpuacct if per_cpu => self.usage_percpu(&mut busy_per_cpu),
            BusySource::ProcStat => self.proc_stat(&mut busy_per_cpu, per_cpu),
            from => {
                let busy =
                    self.machine.read_busy(&self.layout, &mut self.budget, &mut self.last_tick_cost.syscalls);
                if per_cpu && from == BusySource::CpuStat {
                    let stat = self.proc_stat(&mut busy_per_cpu, true);
                    self.warnings.ok_or_warn(stat);
                }
                busy
            }
        };
        if let Some(busy) = self.warnings.ok_or_warn(busy) {
            self.machine.busy = self.machine.busy.max(busy);
        }
        if let Some(free) = self.mem_free() {
            self.machine.mem_free = free;
        }
        Tick {
            now,
            busy: self.machine.busy,
            busy_per_cpu,
            mem_free: self.machine.mem_free,
            ..Tick::default()
        }
    }

    /// `MemFree`. On the host from sysinfo(2): the same counter as in `/proc/meminfo` without its fifty others, in a
    /// fraction of the time (examples/tick_cost.rs measures both). Below another root there is only the file.
    fn mem_free(&mut self) -> Option<Bytes> {
        if self.root.is_host() {
            self.last_tick_cost.syscalls += 1;
            let info = rustix::system::sysinfo();
            return Some(Bytes((info.freeram as u64).saturating_mul(u64::from(info.mem_unit))));
        }
        let info = self.proc_file("/proc/meminfo", proc::meminfo);
        self.warnings.ok_or_warn(info).map(|info| info.mem_free)
    }

    /// v1's nanoseconds per possible CPU, of which the online ones are kept; their sum is the machine's.
    fn usage_percpu(&mut self, online: &mut Vec<Micros>) -> Result<Micros, ReadError> {
        let Some((_, dir)) = self.layout.dir(CgroupController::Cpuacct, Path::new("")) else {
            return Ok(self.machine.busy);
        };
        self.last_tick_cost.syscalls += 4;
        let Some(all) = dir.parse("cpuacct.usage_percpu", v1::cpuacct_usage_percpu)? else {
            return Ok(self.machine.busy);
        };
        let cpus = self.possible.iter().zip(&all);
        online.extend(cpus.filter(|(cpu, _)| self.node.online.contains(*cpu)).map(|(_, used)| *used));
        Ok(all.into_iter().sum())
    }

    fn proc_stat(&mut self, per_cpu: &mut Vec<Micros>, wanted: bool) -> Result<Micros, ReadError> {
        let stat = self.proc_file("/proc/stat", proc::stat)?;
        if wanted {
            per_cpu.extend(stat.cpus.iter().map(|(_, cpu)| cpu.busy()));
        }
        Ok(stat.total.busy())
    }

    pub(super) fn proc_file<T>(
        &mut self,
        path: &str,
        parse: fn(&str) -> Result<T, Malformed>,
    ) -> Result<T, ReadError> {
        self.last_tick_cost.syscalls += 4;
        parse(&self.root.read(path)?).map_err(|e| ReadError::malformed(path, e))
    }
}
