//! Page faults of containers while they run.
//!
//! Programs in the kernel count by cgroup ([`super::fault_counter`]); whose a cgroup is, is looked up here, again and again, so that
//! a container that begins meanwhile is counted from its first fault. The work in which faults happen is its CPU time, and its
//! instructions where the processor counts them. A container that is started again has another cgroup under the same path: its
//! CPU time goes on, its instructions are counted no more.

use super::fault_counter::{BpfRunStats, FaultCounter};
use crate::counter;
use crate::counter::{CounterScope, PerfCounterEvent};
use crate::faults::model::{ExecutedWork, FaultCounts, FaultTier};
use elbowroom_linux::bpf::{BpfError, TrackedHierarchy};
use elbowroom_linux::cgroup;
use elbowroom_linux::cgroup::{CgroupController, CgroupVersion};
use elbowroom_linux::containers::{ContainerSelector, ProfiledContainer, SelectError};
use elbowroom_linux::root::{ReadError, Root};
use elbowroom_linux::sensor::online;
use elbowroom_types::unit::Micros;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Cgroups that may appear beyond those that are there at the beginning.
const EXTRA_CGROUPS: u32 = 1024;

/// Why faults cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum FaultsError {
    /// Nothing to count for.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// A file that everything depends on.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// No way works here.
    #[error("page faults cannot be followed here: by functions: {functions}; by tracepoints: {tracepoints}")]
    Refused {
        /// Why not this way.
        functions: Box<BpfError>,
        /// Why not that.
        tracepoints: Box<BpfError>,
    },
    /// The way that was asked for does not work here, or stopped working.
    #[error("page faults cannot be followed by {}: {source}", tier.name())]
    Bpf {
        /// The way.
        tier: FaultTier,
        /// Why not.
        source: Box<BpfError>,
    },
}

/// What one container did since counting began.
#[derive(Clone, Debug)]
pub struct CountedContainer {
    /// Whose.
    pub subject: ProfiledContainer,
    /// Its faults.
    pub counts: FaultCounts,
    /// Its work.
    pub work: ExecutedWork,
}

/// Everything counted since the beginning.
#[derive(Clone, Debug)]
pub struct FaultSample {
    /// By container, in the order in which they were found.
    pub containers: Vec<CountedContainer>,
    /// Faults of all others.
    pub others: FaultCounts,
    /// Faults that were seen, but found no room.
    pub lost: u64,
}

/// Counting goes on until this is dropped.
pub struct FaultProfiler {
    containers: ContainerSelector,
    /// Whether containers that begin later count too.
    all: bool,
    subjects: Vec<FollowedContainer>,
    /// Whose every cgroup is that was ever seen.
    owners: HashMap<u64, Option<usize>>,
    counter: FaultCounter,
    instructions: InstructionCounters,
    refused: Option<BpfError>,
}

struct FollowedContainer {
    subject: ProfiledContainer,
    /// The kernel's id of its cgroup, once that was seen.
    id: Option<u64>,
    cpu: CpuTime,
    counters: Vec<OwnedFd>,
}

/// CPU time since counting began. That of a cgroup that is gone stays as it was read last.
#[derive(Clone, Copy, Debug, Default)]
struct CpuTime {
    /// Of cgroups that were there before under the same path.
    earlier: Micros,
    /// What the cgroup had at the beginning.
    begin: Micros,
    /// What it had last.
    last: Micros,
}

impl CpuTime {
    fn spent(self) -> Micros {
        self.earlier.saturating_add(self.last.saturating_sub(self.begin))
    }

    /// The cgroup was made anew, and has used nothing before.
    fn restarted(self) -> Self {
        Self { earlier: self.spent(), ..Self::default() }
    }
}

impl FollowedContainer {
    /// Takes which cgroup there is at its path now, and what CPU time that has used.
    fn update(&mut self, id: u64, cpu: Micros) {
        if self.id.is_some_and(|known| known != id) {
            self.cpu = self.cpu.restarted();
            self.counters.clear();
        }
        self.id = Some(id);
        self.cpu.last = self.cpu.last.max(cpu);
    }
}

impl FaultProfiler {
    /// Begins to count for `wanted`, or for all containers, those too that begin later. `tier` is the way that must be taken;
    /// the best that works is, where none is given. `latency` asks for the time of some faults, where that way can tell.
    ///
    /// # Errors
    /// No container is called so, or the kernel refuses.
    pub fn start(
        mut containers: ContainerSelector,
        wanted: &[String],
        tier: Option<FaultTier>,
        latency: bool,
    ) -> Result<Self, FaultsError> {
        let all = wanted.is_empty();
        let subjects = match containers.select(wanted) {
            // They may come.
            Err(SelectError::Nothing) => Vec::new(),
            other => other?,
        };
        let root = Root::host()?;
        let cpus: Vec<u32> = online(&root)?.iter().collect();
        let hierarchy = match containers.hierarchy() {
            (_, CgroupVersion::V2) => TrackedHierarchy::Unified,
            (CgroupController::Memory, CgroupVersion::V1) => TrackedHierarchy::Memory,
            (CgroupController::Cpu, CgroupVersion::V1) => TrackedHierarchy::Cpu,
            (_, CgroupVersion::V1) => TrackedHierarchy::Cpuacct,
        };
        let owners = containers.owners(&subjects);
        let groups = owners.len() as u32 + EXTRA_CGROUPS;
        let (counter, refused) = open(tier, latency, hierarchy, groups, &cpus)?;
        let instructions = InstructionCounters::find(&root, &cpus);
        let mut profiler = Self {
            containers,
            all,
            subjects: Vec::new(),
            owners: HashMap::new(),
            counter,
            instructions,
            refused,
        };
        profiler.follow(subjects)?;
        Ok(profiler)
    }

    /// How faults are followed.
    pub fn tier(&self) -> FaultTier {
        self.counter.tier()
    }

    /// Why the better tier is not the one, where it is not.
    pub fn refused(&self) -> Option<&BpfError> {
        self.refused.as_ref()
    }

    /// Why instructions are not counted, where they are not.
    pub(crate) fn no_instructions(&self) -> Option<Errno> {
        self.instructions.refused
    }

    /// Looks for cgroups and containers that have begun, and reads CPU times. To be called about every second: a cgroup that begins
    /// and ends in between is counted among the others.
    ///
    /// # Errors
    /// The kernel's map is full.
    pub fn refresh(&mut self) -> Result<(), FaultsError> {
        let mut subjects: Vec<ProfiledContainer> = self.subjects.iter().map(|f| f.subject.clone()).collect();
        if self.all {
            let found = self.containers.select(&[]).unwrap_or_default();
            subjects.extend(
                found.into_iter().filter(|s| !self.subjects.iter().any(|f| f.subject.cgroup == s.cgroup)),
            );
        }
        let new = subjects.split_off(self.subjects.len());
        self.follow(new)?;
        for place in 0..self.subjects.len() {
            let subject = &self.subjects[place].subject;
            let (id, cpu) = (self.containers.id(&subject.cgroup), self.cpu(subject));
            // The time is that cgroup's if it is still there.
            let is_same = self.containers.id(&subject.cgroup) == id;
            if let Some((id, cpu)) = id.zip(cpu).filter(|_| is_same) {
                self.subjects[place].update(id, cpu);
            }
        }
        Ok(())
    }

    fn follow(&mut self, new: Vec<ProfiledContainer>) -> Result<(), FaultsError> {
        for subject in new {
            let (id, last) =
                (self.containers.id(&subject.cgroup), self.cpu(&subject).unwrap_or(Micros::ZERO));
            // One that begins while all are counted has done all its work meanwhile.
            let begin = if self.owners.is_empty() { last } else { Micros::ZERO };
            // Not of a late one: its counters would miss its first faults, and those are most.
            let counters = match self.owners.is_empty() {
                true => self.instructions.open(&subject),
                false => Vec::new(),
            };
            let cpu = CpuTime { earlier: Micros::ZERO, begin, last };
            self.subjects.push(FollowedContainer { subject, id, cpu, counters });
        }
        let subjects: Vec<ProfiledContainer> =
            self.subjects.iter().map(|followed| followed.subject.clone()).collect();
        let owners = self.containers.owners(&subjects);
        self.owners.extend(owners.iter().map(|(cgroup, place)| (*cgroup, *place)));
        // A container's number is its oldest cgroup's, which is its own: what that faulted on before it was known to be one has
        // the same number.
        let mut numbers: HashMap<usize, u64> = HashMap::new();
        for (cgroup, place) in &self.owners {
            if let Some(place) = place {
                let number = numbers.entry(*place).or_insert(*cgroup);
                *number = (*number).min(*cgroup);
            }
        }
        let numbered =
            owners.iter().map(|(cgroup, place)| (*cgroup, place.map_or(0, |place| numbers[&place])));
        let result = self.counter.set_owners(numbered);
        result.map_err(|source| self.bpf_error(source))
    }

    /// Everything counted so far.
    ///
    /// # Errors
    /// The kernel's maps cannot be read.
    pub fn sample(&mut self) -> Result<FaultSample, FaultsError> {
        self.refresh()?;
        let (by_group, lost) = self.counter.read().map_err(|source| self.bpf_error(source))?;
        let mut counts = vec![FaultCounts::default(); self.subjects.len()];
        let mut others = FaultCounts::default();
        for (cgroup, found) in &by_group {
            match self.owners.get(cgroup).copied().flatten() {
                Some(place) => counts[place] += found,
                None => others += found,
            }
        }
        let containers = self.subjects.iter().zip(counts).map(|(followed, counts)| {
            let instructions = self.instructions.read(&followed.counters);
            let work = ExecutedWork { cpu: followed.cpu.spent(), instructions };
            CountedContainer { subject: followed.subject.clone(), counts, work }
        });
        Ok(FaultSample { containers: containers.collect(), others, lost })
    }

    /// Waits, and lets the kernel time the programs meanwhile: what a fault costs more because it is counted.
    ///
    /// # Errors
    /// The kernel does not allow it.
    pub fn measure(&self, wait: Duration) -> Result<BpfRunStats, FaultsError> {
        self.counter.measure(|| std::thread::sleep(wait)).map_err(|source| self.bpf_error(source))
    }

    fn cpu(&self, subject: &ProfiledContainer) -> Option<Micros> {
        let path = Path::new(subject.cgroup.trim_start_matches('/'));
        let (user, system) = cgroup::cpu_times(self.containers.layout(), path).ok().flatten()?;
        Some(user.saturating_add(system))
    }

    fn bpf_error(&self, source: BpfError) -> FaultsError {
        FaultsError::Bpf { tier: self.counter.tier(), source: Box::new(source) }
    }
}

fn open(
    tier: Option<FaultTier>,
    latency: bool,
    hierarchy: TrackedHierarchy,
    groups: u32,
    cpus: &[u32],
) -> Result<(FaultCounter, Option<BpfError>), FaultsError> {
    let open = |tier| FaultCounter::open(tier, latency, hierarchy, groups, cpus);
    if let Some(tier) = tier {
        let opened = open(tier).map_err(|source| FaultsError::Bpf { tier, source: Box::new(source) })?;
        return Ok((opened, None));
    }
    match open(FaultTier::Functions) {
        Ok(counter) => Ok((counter, None)),
        Err(functions) => match open(FaultTier::Tracepoints) {
            Ok(counter) => Ok((counter, Some(functions))),
            Err(tracepoints) => Err(FaultsError::Refused {
                functions: Box::new(functions),
                tracepoints: Box::new(tracepoints),
            }),
        },
    }
}

/// The processor's counters of instructions, where it has them and there is a hierarchy to count by.
struct InstructionCounters {
    /// Where cgroups lie that the kernel counts events by.
    mount_point: Option<PathBuf>,
    cpus: Vec<u32>,
    refused: Option<Errno>,
}

impl InstructionCounters {
    fn find(root: &Root, cpus: &[u32]) -> Self {
        let mounts = cgroup::layout::mounts(root).ok();
        let with = |name: &str| {
            let mounts = mounts.as_ref()?;
            mounts.iter().find(|mount| mount.has_controller(name)).map(|mount| mount.mount_point.clone())
        };
        let unified = || {
            let mounts = mounts.as_ref()?;
            mounts.iter().find(|mount| mount.fstype == "cgroup2").map(|mount| mount.mount_point.clone())
        };
        let mut found =
            Self { mount_point: with("perf_event").or_else(unified), cpus: cpus.to_vec(), refused: None };
        found.refused = match found.group("") {
            None => Some(Errno::NOENT),
            Some(dir) => {
                let cpu = cpus.first().copied().unwrap_or(0);
                counter::open(PerfCounterEvent::Instructions, CounterScope::Cgroup(dir.as_fd()), cpu).err()
            }
        };
        found
    }

    fn group(&self, below: &str) -> Option<OwnedFd> {
        use rustix::fs::{Mode, OFlags};
        let dir = self.mount_point.as_ref()?.join(below);
        rustix::fs::open(&dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// A counter on every CPU; none where one of them is refused.
    fn open(&self, subject: &ProfiledContainer) -> Vec<OwnedFd> {
        if self.refused.is_some() {
            return Vec::new();
        }
        let Some(dir) = self.group(subject.cgroup.trim_start_matches('/')) else { return Vec::new() };
        let open = |cpu: &u32| {
            counter::open(PerfCounterEvent::Instructions, CounterScope::Cgroup(dir.as_fd()), *cpu).ok()
        };
        self.cpus.iter().map(open).collect::<Option<Vec<OwnedFd>>>().unwrap_or_default()
    }

    fn read(&self, counters: &[OwnedFd]) -> Option<u64> {
        if counters.is_empty() {
            return None;
        }
        counters.iter().map(|counter| counter::read(counter).ok()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_that_is_started_again_keeps_its_time_and_not_its_counters() {
        let begin = Micros::secs(100);
        let followed = || FollowedContainer {
            subject: ProfiledContainer { name: "c".into(), cgroup: "/c".into() },
            id: Some(1),
            cpu: CpuTime { earlier: Micros::ZERO, begin, last: begin },
            counters: vec![std::fs::File::open("/dev/null").unwrap().into()],
        };
        let after = |looks: &[(u64, u64)]| {
            let mut followed = followed();
            looks.iter().for_each(|(id, seconds)| followed.update(*id, Micros::secs(*seconds)));
            (followed.cpu.spent(), followed.counters.len())
        };
        assert_eq!(after(&[(1, 107)]), (Micros::secs(7), 1));
        assert_eq!(after(&[(1, 107), (2, 3)]), (Micros::secs(10), 0));
        assert_eq!(after(&[(1, 107), (2, 3), (2, 5), (3, 200)]), (Micros::secs(212), 0));
    }
}
