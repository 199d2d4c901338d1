//! How a container is doing, in one word: [`judge`] is the only place that decides it.
//!
//! # Approach
//! Each way to be unwell has one question, and the worst answer counts: killed, waiting (memory, disk, CPU), throttled, unfair, tight,
//! ok. A question about what is not known has no answer: absent is not ok, and not a trouble either.
//!
//! A container that its own CPU quota stops is throttled and does not wait for a CPU, although the kernel counts both as pressure
//! (Documentation/accounting/psi.rst).

use crate::disk::{ContainerDiskStatus, LimitedBy};
use elbowroom_types::resource_command::{ResourceOwner, ResourceSetting};
use elbowroom_types::unit::{Bytes, Limit, Micros, Millicpu};
use elbowroom_types::verdict::{Verdict, VerdictStatus};

/// How long a container counts as killed after the last kill.
pub const KILLED_FOR: Micros = Micros::secs(120);
/// Time that a quota holds a container back, as a part of the time that passed, from which it is throttled; threads add up.
pub const THROTTLED_PART: f64 = 0.05;
/// Waiting for a CPU or a disk this part of the time hurts.
const WAIT_PART: f64 = 0.25;
/// Waiting for memory this part of the time hurts.
const MEMORY_WAIT_PART: f64 = 0.05;
/// A container that uses this much more than its entitlement, in a pool that is short, is unfair.
const UNFAIR_PART: f64 = 1.1;
/// Above this part of a disk a container is unfair only where its part is less.
const UNFAIR_DISK_MARGIN: f64 = 0.1;

/// Kills for memory of all containers of one name, one after the other, within the last hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryKills {
    /// How many.
    pub count: u64,
    /// From the first to the last.
    pub span: Micros,
    /// How long ago the last was.
    pub ago: Micros,
    /// The limit at which it happened; [`Limit::Max`] where the limit of a cgroup around it or the host was full.
    pub limit: Limit<Bytes>,
    /// The most memory that was charged to it.
    pub peak: Option<Bytes>,
}

/// All that [`judge`] looks at. Parts are of the time of the last ten seconds, from 0 to 1.
#[derive(Clone, Debug)]
pub struct VerdictFacts<'a> {
    /// What people call the container, and the tool that keeps its settings.
    pub owner: &'a ResourceOwner,
    /// Kills for memory.
    pub kills: Option<MemoryKills>,
    /// Its own memory limit.
    pub memory_limit: Limit<Bytes>,
    /// The most of memory and swap together; `None` where that is not known.
    pub memory_and_swap: Option<Limit<Bytes>>,
    /// What it needs to run without rereading; see [`memory_need`].
    pub memory_need: Option<Bytes>,
    /// Waiting for memory, disks, and CPUs.
    pub memory_wait: Option<f64>,
    /// Waiting for disks.
    pub disk_wait: Option<f64>,
    /// Waiting for CPUs.
    pub cpu_wait: Option<f64>,
    /// Its own CPU quota.
    pub cpu_quota: Option<Millicpu>,
    /// Time that the quota held its threads back.
    pub throttled: Option<f64>,
    /// v1 `cpu.shares`.
    pub cpu_shares: Option<u64>,
    /// Where it stands at its disks.
    pub disks: &'a [ContainerDiskStatus],
    /// What it uses and its entitlement, where the memory around it is short and a neighbour needs some.
    pub over_memory: Option<(Bytes, Bytes)>,
}

/// What a container cannot do without, and a tenth to breathe, in whole MiB: anonymous memory, the kernel's and shared memory, and the
/// page cache that it works with.
pub fn memory_need(anon: Bytes, other: Bytes, working_cache: Bytes) -> Bytes {
    let sum = anon.saturating_add(other).saturating_add(working_cache);
    whole_mib(sum.saturating_add(Bytes(sum.get() / 10)))
}

/// Rounds up to a whole MiB, which every page size divides: the file then says what was written.
pub fn whole_mib(size: Bytes) -> Bytes {
    Bytes(size.get().div_ceil(1 << 20).saturating_mul(1 << 20))
}

/// Judges a container: the worst that is true of it.
pub fn judge(facts: &VerdictFacts<'_>) -> Verdict {
    let questions: [fn(&VerdictFacts<'_>) -> Option<Verdict>; 7] =
        [killed, waiting_memory, waiting_disk, waiting_cpu, throttled, unfair, tight];
    questions.into_iter().filter_map(|ask| ask(facts)).max_by_key(|v| v.severity()).unwrap_or_default()
}

fn verdict(status: VerdictStatus, reason: String, command: Option<String>) -> Option<Verdict> {
    Some(Verdict { status, reason, command })
}

fn killed(facts: &VerdictFacts<'_>) -> Option<Verdict> {
    let kills = facts.kills.filter(|kills| kills.count > 0 && kills.ago < KILLED_FOR)?;
    let more = kills.limit.value().and_then(|limit| raise_memory(facts, limit, 2, 1));
    verdict(VerdictStatus::Killed, kills.sentence(), more)
}

impl MemoryKills {
    /// `OOM-killed 8 times in 60 s at its limit of 64MiB`.
    pub fn sentence(&self) -> String {
        let times = match self.count {
            1 => "OOM-killed once".to_owned(),
            n => format!("OOM-killed {n} times in {}", spoken(self.span)),
        };
        match (self.limit, self.peak) {
            (Limit::At(limit), _) => format!("{times} at its limit of {limit}"),
            (Limit::Max, Some(peak)) => {
                format!(
                    "{times} at {peak}: it has no limit of its own, so one around it or the host was full"
                )
            }
            (Limit::Max, None) => {
                format!("{times}: it has no limit of its own, so one around it or the host was full")
            }
        }
    }
}

/// A time for people: `60 s`, `12 min`, `3 h`.
fn spoken(time: Micros) -> String {
    match time.get().div_ceil(1_000_000).max(1) {
        seconds if seconds < 120 => format!("{seconds} s"),
        seconds if seconds < 7_200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3_600),
    }
}

fn waiting_memory(facts: &VerdictFacts<'_>) -> Option<Verdict> {
    let part = facts.memory_wait.filter(|part| *part >= MEMORY_WAIT_PART)?;
    let limit =
        facts.memory_limit.value().filter(|limit| facts.memory_need.is_some_and(|need| need > *limit));
    let (reason, command) = match limit {
        Some(limit) => (
            format!("waits for memory {} of the time at its limit of {limit}", percent(part)),
            raise_memory(facts, limit, 5, 4),
        ),
        None => (
            format!("waits for memory {} of the time", percent(part)),
            facts.memory_need.and_then(|need| facts.owner.command(&ResourceSetting::MemoryReservation(need))),
        ),
    };
    verdict(VerdictStatus::WaitingMemory, reason, command)
}

fn waiting_disk(facts: &VerdictFacts<'_>) -> Option<Verdict> {
    let part = facts.disk_wait.filter(|part| *part >= WAIT_PART)?;
    let held = facts.disks.iter().find(|disk| disk.held_by != LimitedBy::Nothing)?;
    let (name, of) = (&held.name, percent(part));
    let reason = match held.held_by {
        LimitedBy::User => format!("waits for {name} {of} of the time at a limit that its user set"),
        LimitedBy::Disk => format!("waits for {name} {of} of the time, which is slower than it was"),
        LimitedBy::Cap => format!("waits for {name} {of} of the time, which leaves room for its neighbours"),
        LimitedBy::Contention | LimitedBy::Nothing => {
            format!("waits for {name} {of} of the time, which its neighbours use")
        }
    };
    verdict(VerdictStatus::WaitingDisk, reason, Some("elbowroom disks".to_owned()))
}

fn waiting_cpu(facts: &VerdictFacts<'_>) -> Option<Verdict> {
    let part = facts.cpu_wait.filter(|part| *part >= WAIT_PART && !is_throttled(facts))?;
    let shares = facts.cpu_shares.map(|shares| ResourceSetting::CpuShares(shares.saturating_mul(2)));
    let reason = format!("waits for a CPU {} of the time, which its neighbours use", percent(part));
    verdict(VerdictStatus::WaitingCpu, reason, shares.and_then(|shares| facts.owner.command(&shares)))
}

fn is_throttled(facts: &VerdictFacts<'_>) -> bool {
    facts.cpu_quota.is_some() && facts.throttled.is_some_and(|part| part > THROTTLED_PART)
}

fn throttled(facts: &VerdictFacts<'_>) -> Option<Verdict> {
    let quota = facts.cpu_quota.filter(|_| is_throttled(facts))?;
    let lost = facts.throttled.unwrap_or_default() * 1_000.0;
    let reason = format!("its quota of {quota} CPUs holds its threads back {lost:.0} ms of every second");
    let more = ResourceSetting::Cpus(more_cpus(quota));
    verdict(VerdictStatus::Throttled, reason, facts.owner.command(&more))
}

/// Half as much again, in whole hundredths of a CPU, as systemd has it.
pub fn more_cpus(quota: Millicpu) -> Millicpu {
    Millicpu((quota.get() + quota.get() / 2).next_multiple_of(10))
}

fn unfair(facts: &VerdictFacts<'_>) -> Option<Verdict> {
    if let Some((used, entitled)) = facts.over_memory.filter(|(used, entitled)| {
        used.get() as f64 > entitled.get() as f64 * UNFAIR_PART && *entitled < *used
    }) {
        let reason = format!("uses {used} of memory, is entitled to {entitled}, and neighbours need some");
        return verdict(VerdictStatus::Unfair, reason, Some("elbowroom memory".to_owned()));
    }
    let over = facts.disks.iter().find_map(|disk| {
        let (used, cap) = disk.used.zip(disk.cap)?;
        (!disk.enforced && used > cap + UNFAIR_DISK_MARGIN).then_some((&disk.name, used, cap))
    });
    let (name, used, cap) = over?;
    let reason = format!("uses {} of {name}, where its neighbours leave it {}", percent(used), percent(cap));
    verdict(VerdictStatus::Unfair, reason, Some("elbowroom disks".to_owned()))
}

fn tight(facts: &VerdictFacts<'_>) -> Option<Verdict> {
    let limit = facts.memory_limit.value()?;
    let need = facts.memory_need.filter(|need| *need > limit)?;
    let reason = format!("needs {need} of memory with a tenth to spare, and its limit is {limit}");
    verdict(VerdictStatus::Tight, reason, raise_memory(facts, limit, 5, 4))
}

/// The command that gives it `limit` times `times`/`over`, and no less than it needs.
fn raise_memory(facts: &VerdictFacts<'_>, limit: Bytes, times: u64, over: u64) -> Option<String> {
    let more = Bytes(limit.get().saturating_mul(times) / over);
    let to = whole_mib(more.max(facts.memory_need.unwrap_or_default()));
    let with_swap = match facts.memory_and_swap {
        Some(both) if both.value().is_none_or(|both| to <= both) => None,
        // Engines refuse a limit above memory and swap together.
        Some(Limit::At(both)) => {
            let swap = both.saturating_sub(limit);
            Some(Limit::At(to.saturating_add(swap)))
        }
        _ => Some(Limit::Max),
    };
    facts.owner.command(&ResourceSetting::MemoryLimit { limit: to, with_swap })
}

fn percent(part: f64) -> String {
    format!("{:.0}%", part * 100.0)
}
