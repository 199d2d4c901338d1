//! How a container is doing, in one word: [`judge`] is the only place that decides it.
//!
//! # Approach
//! Each way to be unwell has one question, and the worst answer counts: killed, waiting (memory, disk, CPU), throttled, unfair, tight,
//! ok. A question about what is not known has no answer: absent is not ok, and not a trouble either.
//!
//! A container that its own CPU quota stops is throttled and does not wait for a CPU, although the kernel counts both as pressure
//! (Documentation/accounting/psi.rst).

use crate::disk::{ContainerDiskStatus, HeldBy};
use elbowroom_types::resource_command::{ResourceOwner, ResourceSetting};
use elbowroom_types::sample::MemoryStat;
use elbowroom_types::unit::{Bytes, Limit, Micros, Millicpu, counted};
use elbowroom_types::verdict::{RaisedLimit, Verdict, VerdictStatus};

/// How long a container counts as killed after the last kill.
pub const KILLED_FOR: Micros = Micros::secs(120);
/// Time that a quota holds a container back, as a part of the time that passed, from which it is throttled; threads add up.
pub(crate) const THROTTLED_PART: f64 = 0.05;
/// Waiting for a CPU or a disk this part of the time hurts.
const WAIT_PART: f64 = 0.25;
/// A container that uses this part of the CPUs that it may has them for itself.
const ALL_CPUS_PART: f64 = 0.95;
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
    /// Whether it has ended, and only who starts it again can give it more: `elbowroom run`.
    pub needs_rerun: bool,
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
    /// The tightest CPU quota of the cgroups around it: what that withholds counts as waiting too, and in no file of its own.
    pub quota_around: Option<Millicpu>,
    /// CPUs that it used in the last second.
    pub cpus_used: Option<Millicpu>,
    /// On how many CPUs it may run, whatever quotas let it use of them.
    pub cpus_allowed: Option<u32>,
    /// Time that the quota held its threads back.
    pub throttled: Option<f64>,
    /// v1 `cpu.shares`.
    pub cpu_shares: Option<u64>,
    /// Where it stands at its disks.
    pub disks: &'a [ContainerDiskStatus],
    /// What it uses and its entitlement, where the memory around it is short and a neighbour needs some.
    pub over_memory: Option<(Bytes, Bytes)>,
}

/// What a container holds of `usage` beside anonymous memory and page cache, and the kernel cannot take: shared memory, and what the
/// kernel keeps for it but for dentries and inodes, which go as page cache does.
pub fn unreclaimable_rest(usage: Bytes, stat: &MemoryStat) -> Bytes {
    let cache = stat.file.saturating_sub(stat.shmem);
    [stat.anon, cache, stat.slab_reclaimable].into_iter().fold(usage, Bytes::saturating_sub)
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

/// Twice the limit at which it was killed, in whole MiB.
fn more_after_kill(limit: Bytes) -> Bytes {
    whole_mib(Bytes(limit.get().saturating_mul(2)))
}

fn verdict(status: VerdictStatus, reason: String, command: Option<String>) -> Option<Verdict> {
    Some(Verdict { status, reason, command, raise: None })
}

/// The same, where a setting helps: its command, and what it raises.
fn verdict_with(
    facts: &VerdictFacts<'_>,
    status: VerdictStatus,
    reason: String,
    setting: Option<ResourceSetting>,
) -> Option<Verdict> {
    let command = setting.and_then(|setting| facts.owner.command(&setting));
    let raise = setting.as_ref().and_then(RaisedLimit::of);
    Some(Verdict { status, reason, command, raise })
}

fn killed(facts: &VerdictFacts<'_>) -> Option<Verdict> {
    let kills = facts.kills.filter(|kills| kills.count > 0 && kills.ago < KILLED_FOR)?;
    let more = kills.limit.value().map(more_after_kill);
    // It may have been given as much since.
    let more = more.filter(|more| facts.memory_limit.value().is_none_or(|now| now < *more));
    let more = kills.limit.value().zip(more).map(|(limit, more)| raise_memory(facts, limit, more));
    verdict_with(facts, VerdictStatus::Killed, kills.sentence(), more)
}

impl MemoryKills {
    /// `OOM-killed 8 times in 60 s at its limit of 64MiB`.
    pub fn sentence(&self) -> String {
        let times = match self.count {
            1 => "OOM-killed once".to_owned(),
            n => format!("OOM-killed {n} times in {}", duration_words(self.span)),
        };
        match (self.limit, self.peak) {
            (Limit::At(limit), _) if self.needs_rerun => {
                let more = more_after_kill(limit);
                format!("{times} at its limit of {limit}; run it with more: `elbowroom run --memory {more}`")
            }
            (Limit::At(limit), _) => format!("{times} at its limit of {limit}"),
            (Limit::Max, Some(peak)) => {
                format!("{times} at {peak}, at no limit of its own: one around it or the host was full")
            }
            (Limit::Max, None) => {
                format!("{times}, at no limit of its own: one around it or the host was full")
            }
        }
    }
}

/// A time for people: `60 s`, `12 min`, `3 h`.
fn duration_words(time: Micros) -> String {
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
    let (reason, setting) = match limit {
        Some(limit) => (
            format!("waits for memory {} of the time at its limit of {limit}", percent(part)),
            Some(raise_memory(facts, limit, a_quarter_more(limit))),
        ),
        None => (
            format!("waits for memory {} of the time", percent(part)),
            facts.memory_need.map(ResourceSetting::MemoryReservation),
        ),
    };
    verdict_with(facts, VerdictStatus::WaitingMemory, reason, setting)
}

fn waiting_disk(facts: &VerdictFacts<'_>) -> Option<Verdict> {
    let part = facts.disk_wait.filter(|part| *part >= WAIT_PART)?;
    let held = facts.disks.iter().find(|disk| disk.held_by != HeldBy::Nothing)?;
    let (name, of) = (&held.name, percent(part));
    let reason = match held.held_by {
        HeldBy::User => format!("waits for {name} {of} of the time at a limit that its user set"),
        HeldBy::Disk => format!("waits for {name} {of} of the time, which is slower than it was"),
        HeldBy::Cap => format!("waits for {name} {of} of the time, which leaves room for its neighbours"),
        HeldBy::Others | HeldBy::Nothing => {
            format!("waits for {name} {of} of the time, which its neighbours use")
        }
    };
    verdict(VerdictStatus::WaitingDisk, reason, Some("elbowroom disks".to_owned()))
}

fn waiting_cpu(facts: &VerdictFacts<'_>) -> Option<Verdict> {
    let part =
        facts.cpu_wait.filter(|part| *part >= WAIT_PART && !is_throttled(facts) && !uses_all_cpus(facts))?;
    // A pod's quota is the sum of its containers', and no other than that of its only one.
    let quota_around = facts.quota_around.filter(|around| facts.cpu_quota.is_none_or(|own| *around < own));
    if let Some(quota) = quota_around {
        let (of, quota) = (percent(part), counted(quota, "CPU"));
        let reason = format!(
            "waits for a CPU {of} of the time, which its neighbours use or the quota of {quota} around it withholds"
        );
        return verdict(VerdictStatus::WaitingCpu, reason, None);
    }
    let shares = facts.cpu_shares.map(|shares| ResourceSetting::CpuShares(shares.saturating_mul(2)));
    let reason = format!("waits for a CPU {} of the time, which its neighbours use", percent(part));
    verdict_with(facts, VerdictStatus::WaitingCpu, reason, shares)
}

/// Whether it uses all CPUs that it may: what its threads wait for then is each other.
fn uses_all_cpus(facts: &VerdictFacts<'_>) -> bool {
    let allowed = facts.cpus_allowed.map(|cpus| Millicpu::cpus(cpus.into())).into_iter();
    let allowed = allowed.chain(facts.cpu_quota).min();
    facts
        .cpus_used
        .zip(allowed)
        .is_some_and(|(used, allowed)| used.get() as f64 >= ALL_CPUS_PART * allowed.get() as f64)
}

fn is_throttled(facts: &VerdictFacts<'_>) -> bool {
    facts.cpu_quota.is_some() && facts.throttled.is_some_and(|part| part > THROTTLED_PART)
}

fn throttled(facts: &VerdictFacts<'_>) -> Option<Verdict> {
    let quota = facts.cpu_quota.filter(|_| is_throttled(facts))?;
    let lost = facts.throttled.unwrap_or_default() * 1_000.0;
    let reason =
        format!("its quota of {} holds its threads back {lost:.0} ms of every second", counted(quota, "CPU"));
    let more = ResourceSetting::Cpus(more_cpus(quota));
    verdict_with(facts, VerdictStatus::Throttled, reason, Some(more))
}

/// Half as much again, in whole hundredths of a CPU, as systemd has it.
pub(crate) fn more_cpus(quota: Millicpu) -> Millicpu {
    Millicpu((quota.get() + quota.get() / 2).next_multiple_of(10))
}

fn unfair(facts: &VerdictFacts<'_>) -> Option<Verdict> {
    let is_over = |(used, entitled): &(Bytes, Bytes)| used.get() as f64 > entitled.get() as f64 * UNFAIR_PART;
    if let Some((used, entitled)) = facts.over_memory.filter(is_over) {
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
    verdict_with(facts, VerdictStatus::Tight, reason, Some(raise_memory(facts, limit, a_quarter_more(limit))))
}

fn a_quarter_more(limit: Bytes) -> Bytes {
    limit.saturating_add(Bytes(limit.get() / 4))
}

/// What gives it `more` than `limit`, and no less than it needs.
fn raise_memory(facts: &VerdictFacts<'_>, limit: Bytes, more: Bytes) -> ResourceSetting {
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
    ResourceSetting::MemoryLimit { limit: to, with_swap }
}

fn percent(part: f64) -> String {
    format!("{:.0}%", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use VerdictStatus as S;
    use elbowroom_types::container::ContainerEngine;
    use elbowroom_types::id::DeviceNumber;
    use elbowroom_types::io::IoMax;

    fn owner() -> ResourceOwner {
        ResourceOwner {
            engine: ContainerEngine::Docker,
            name: "web".into(),
            pod: None,
            path: "/docker/1f".into(),
            memory_dir: ("/sys/fs/cgroup/memory/docker/1f".into(), false),
            cpu_dir: ("/sys/fs/cgroup/cpu/docker/1f".into(), false),
            cpu_period: Micros::millis(100),
        }
    }

    /// A container of 128 MiB and half a CPU that gets what it asks for.
    fn well(owner: &ResourceOwner) -> VerdictFacts<'_> {
        VerdictFacts {
            owner,
            kills: None,
            memory_limit: Limit::At(Bytes::mib(128)),
            memory_and_swap: Some(Limit::At(Bytes::mib(256))),
            memory_need: Some(Bytes::mib(90)),
            memory_wait: Some(0.0),
            disk_wait: Some(0.0),
            cpu_wait: Some(0.0),
            cpu_quota: Some(Millicpu(500)),
            quota_around: None,
            cpus_used: None,
            cpus_allowed: None,
            throttled: Some(0.0),
            cpu_shares: Some(1024),
            disks: &[],
            over_memory: None,
        }
    }

    fn kills(count: u64, ago: u64) -> Option<MemoryKills> {
        let limit = Limit::At(Bytes::mib(64));
        let span = Micros::secs(60);
        Some(MemoryKills { count, span, ago: Micros::secs(ago), limit, peak: None, needs_rerun: false })
    }

    fn disk(held_by: HeldBy) -> ContainerDiskStatus {
        ContainerDiskStatus {
            disk: DeviceNumber::new(8, 0),
            name: "sda".into(),
            rbps: 0,
            wbps: 0,
            riops: 0,
            wiops: 0,
            used: Some(0.7),
            lifeline: Some(0.2),
            cap: None,
            max: IoMax::MAX,
            enforced: false,
            held_by,
            decisions: Vec::new(),
        }
    }

    fn check(facts: VerdictFacts<'_>, status: S, reason: &str, command: Option<&str>) {
        let verdict = judge(&facts);
        assert_eq!((verdict.status, verdict.reason.as_str()), (status, reason));
        assert_eq!(verdict.command.as_deref(), command, "{reason}");
    }

    #[test]
    fn each_status_has_its_sentence_and_its_command() {
        let owner = owner();
        let well = || well(&owner);
        check(well(), S::Ok, "it gets what it asks for", None);
        check(
            VerdictFacts { kills: kills(8, 1), memory_limit: Limit::At(Bytes::mib(64)), ..well() },
            S::Killed,
            "OOM-killed 8 times in 60 s at its limit of 64MiB",
            Some("docker update --memory 128m web"),
        );
        check(
            VerdictFacts { throttled: Some(0.523), ..well() },
            S::Throttled,
            "its quota of 0.5 CPUs holds its threads back 523 ms of every second",
            Some("docker update --cpus 0.75 web"),
        );
        check(
            VerdictFacts { memory_need: Some(Bytes::mib(134)), ..well() },
            S::Tight,
            "needs 134MiB of memory with a tenth to spare, and its limit is 128MiB",
            Some("docker update --memory 160m web"),
        );
        check(
            VerdictFacts { memory_need: Some(Bytes::mib(134)), memory_wait: Some(0.2), ..well() },
            S::WaitingMemory,
            "waits for memory 20% of the time at its limit of 128MiB",
            Some("docker update --memory 160m web"),
        );
        check(
            VerdictFacts { memory_wait: Some(0.2), ..well() },
            S::WaitingMemory,
            "waits for memory 20% of the time",
            Some("docker update --memory-reservation 90m web"),
        );
        check(
            VerdictFacts { cpu_wait: Some(0.4), ..well() },
            S::WaitingCpu,
            "waits for a CPU 40% of the time, which its neighbours use",
            Some("docker update --cpu-shares 2048 web"),
        );
        check(
            VerdictFacts {
                cpu_wait: Some(0.4),
                cpu_quota: None,
                quota_around: Some(Millicpu(1_500)),
                ..well()
            },
            S::WaitingCpu,
            "waits for a CPU 40% of the time, which its neighbours use or the quota of 1.5 CPUs around it withholds",
            None,
        );
        let busy = [disk(HeldBy::Others)];
        check(
            VerdictFacts { disk_wait: Some(0.5), disks: &busy, ..well() },
            S::WaitingDisk,
            "waits for sda 50% of the time, which its neighbours use",
            Some("elbowroom disks"),
        );
        check(
            VerdictFacts { over_memory: Some((Bytes::gib(2), Bytes::gib(1))), ..well() },
            S::Unfair,
            "uses 2GiB of memory, is entitled to 1GiB, and neighbours need some",
            Some("elbowroom memory"),
        );
        let hog = [ContainerDiskStatus { cap: Some(0.5), ..disk(HeldBy::Nothing) }];
        check(
            VerdictFacts { disks: &hog, ..well() },
            S::Unfair,
            "uses 70% of sda, where its neighbours leave it 50%",
            Some("elbowroom disks"),
        );
    }

    #[test]
    fn the_worst_of_several_troubles_counts() {
        let owner = owner();
        let busy = [disk(HeldBy::Others)];
        let mut facts = VerdictFacts {
            kills: kills(1, 1),
            memory_wait: Some(0.5),
            disk_wait: Some(0.5),
            cpu_wait: Some(0.5),
            disks: &busy,
            over_memory: Some((Bytes::gib(2), Bytes::gib(1))),
            memory_need: Some(Bytes::gib(2)),
            ..well(&owner)
        };
        let status = |facts: &VerdictFacts<'_>| judge(facts).status;
        assert_eq!(status(&facts), S::Killed);
        facts.kills = None;
        assert_eq!(status(&facts), S::WaitingMemory);
        facts.memory_wait = None;
        assert_eq!(status(&facts), S::WaitingDisk);
        facts.disk_wait = None;
        assert_eq!(status(&facts), S::WaitingCpu);
        facts.throttled = Some(0.5);
        assert_eq!(status(&facts), S::Throttled, "its own quota is what it waits for");
        facts.cpu_quota = None;
        assert_eq!(status(&facts), S::WaitingCpu, "without a quota nothing throttles it");
        facts.cpu_wait = None;
        assert_eq!(status(&facts), S::Unfair);
        facts.over_memory = None;
        assert_eq!(status(&facts), S::Tight);
        facts.memory_limit = Limit::Max;
        assert_eq!(status(&facts), S::Ok);
    }

    #[test]
    fn thresholds_hold_on_both_sides_and_what_is_not_known_is_no_trouble() {
        let owner = owner();
        let status = |facts: VerdictFacts<'_>| judge(&facts).status;
        let with = |throttled| status(VerdictFacts { throttled, ..well(&owner) });
        assert_eq!((with(Some(0.05)), with(Some(0.051)), with(None)), (S::Ok, S::Throttled, S::Ok));
        let with = |kills| status(VerdictFacts { kills, ..well(&owner) });
        assert_eq!((with(kills(1, 119)), with(kills(1, 120)), with(kills(0, 1))), (S::Killed, S::Ok, S::Ok));
        let with = |cpu_wait| status(VerdictFacts { cpu_wait, ..well(&owner) });
        assert_eq!((with(Some(0.24)), with(Some(0.25)), with(None)), (S::Ok, S::WaitingCpu, S::Ok));
        let with = |need| status(VerdictFacts { memory_need: need, ..well(&owner) });
        assert_eq!(
            (with(Some(Bytes::mib(128))), with(Some(Bytes::mib(129))), with(None)),
            (S::Ok, S::Tight, S::Ok)
        );
        let own = [disk(HeldBy::Nothing)];
        let facts = VerdictFacts { disk_wait: Some(0.9), disks: &own, ..well(&owner) };
        assert_eq!(status(facts), S::Ok, "it reads as fast as it asks for");
    }

    #[test]
    fn dentries_and_inodes_are_not_what_a_container_needs() {
        let mib = Bytes::mib;
        let stat = MemoryStat {
            anon: mib(20),
            file: mib(30),
            shmem: mib(10),
            slab_reclaimable: mib(1_100),
            ..MemoryStat::EMPTY
        };
        // The kernel's own that cannot go: 7 MiB of stacks, sockets and the like.
        assert_eq!(unreclaimable_rest(mib(20 + 30 + 1_100 + 7), &stat), mib(10 + 7));
    }

    #[test]
    fn threads_that_wait_for_each_other_wait_for_no_neighbour() {
        let owner = owner();
        let status = |used: Option<u64>, cpus_allowed, cpu_quota| {
            let cpus_used = used.map(Millicpu);
            judge(&VerdictFacts { cpu_wait: Some(0.9), cpus_used, cpus_allowed, cpu_quota, ..well(&owner) })
                .status
        };
        assert_eq!(status(Some(3_900), Some(4), None), S::Ok);
        assert_eq!(status(Some(3_500), Some(4), None), S::WaitingCpu);
        assert_eq!(status(Some(500), Some(1), Some(Millicpu(500))), S::Ok);
        assert_eq!(status(Some(200), Some(1), Some(Millicpu(500))), S::WaitingCpu);
        assert_eq!(
            (status(None, Some(4), None), status(Some(4_000), None, None)),
            (S::WaitingCpu, S::WaitingCpu)
        );
    }

    #[test]
    fn who_uses_up_a_quota_of_whole_cpus_around_it_waits_for_that() {
        let owner = owner();
        let verdict = |quota_around, cpus_allowed| {
            judge(&VerdictFacts {
                cpu_wait: Some(0.9),
                cpus_used: Some(Millicpu::cpus(2)),
                cpus_allowed: Some(cpus_allowed),
                cpu_quota: None,
                quota_around,
                ..well(&owner)
            })
        };
        let held = verdict(Some(Millicpu::cpus(2)), 4);
        assert!(held.reason.ends_with("or the quota of 2 CPUs around it withholds"), "{}", held.reason);
        assert_eq!(verdict(Some(Millicpu::cpus(2)), 2).status, S::Ok, "it has all CPUs that it may run on");
        assert_eq!(verdict(None, 2).status, S::Ok);
    }

    #[test]
    fn swap_moves_with_a_limit_that_an_engine_would_refuse_alone() {
        let owner = owner();
        let command = |memory_and_swap| {
            let need = Some(Bytes::mib(134));
            judge(&VerdictFacts { memory_and_swap, memory_need: need, ..well(&owner) }).command.unwrap()
        };
        assert_eq!(command(Some(Limit::Max)), "docker update --memory 160m web");
        let no_swap = command(Some(Limit::At(Bytes::mib(128))));
        assert_eq!(no_swap, "docker update --memory 160m --memory-swap 160m web");
        assert_eq!(command(None), "docker update --memory 160m --memory-swap -1 web");
    }

    #[test]
    fn what_was_run_and_is_gone_is_to_be_run_with_more() {
        let sentence = |limit| MemoryKills { limit, needs_rerun: true, ..kills(1, 1).unwrap() }.sentence();
        assert_eq!(
            sentence(Limit::At(Bytes::mib(40))),
            "OOM-killed once at its limit of 40MiB; run it with more: `elbowroom run --memory 80MiB`"
        );
        assert!(!sentence(Limit::Max).contains("--memory"), "another's limit was full");
    }

    #[test]
    fn a_kill_without_a_limit_of_its_own_says_so_and_has_no_command() {
        let owner = owner();
        let kills = kills(1, 1).map(|kills| MemoryKills { limit: Limit::Max, ..kills });
        check(
            VerdictFacts { kills, ..well(&owner) },
            S::Killed,
            "OOM-killed once, at no limit of its own: one around it or the host was full",
            None,
        );
    }
}
