//! How findings are removed: the commands a person would type, and the same as writes that can be taken back.
//!
//! Nothing here lowers a limit, switches swap off or ends a process. v1's soft limit is none: it says which group gives
//! first when the host is short, and refuses nothing (mm/memcontrol-v1.c, `memcg1_soft_limit_reclaim`).

use super::facts::{CgroupFacts, ControllerVersion, HierarchyController, HostFacts};
use crate::checks::measures::{
    MIB, RESERVABLE, loses_cache_to_host, own_protection, protected_memory, total_protected,
    unreserved_containers, whole_mib,
};
use elbowroom_types::container::display_name;
use elbowroom_types::finding::{CPU_PERIOD, DoctorFinding, FileWrite, FindingFix, UnitProperty, cpu_percent};
use elbowroom_types::resource_command::{
    ResourceSetting, echo_command, engine_command, plain_command, unit_property,
};
use elbowroom_types::unit::{Bytes, Limit, Millicpu, Percent};
use std::cell::LazyCell;

/// A new value for one of a cgroup's files; `None` where it has no such file, or says so already.
pub(crate) fn cgroup_write(
    group: &CgroupFacts,
    controller: HierarchyController,
    file: &str,
    to: impl ToString,
) -> Option<FileWrite> {
    let (from, to) = (group.text(file)?.to_owned(), to.to_string());
    let capped = ["memory.max", "memory.high", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"];
    let in_use = capped.contains(&file).then(|| group.file(controller, group.usage_file()));
    let unit = unit_of(group, file, [&from, &to]).filter(|_| !group.below.contains_key(file));
    (from != to).then(|| FileWrite { file: group.file(controller, file), from, to, unit, in_use })
}

/// The unit and property behind a file, where the system's manager made the cgroup and can write both values.
fn unit_of(group: &CgroupFacts, file: &str, values: [&str; 2]) -> Option<UnitProperty> {
    let usual_period = group.number("cpu.cfs_period_us").is_none_or(|period| period == CPU_PERIOD);
    let whole = || usual_period && values.iter().all(|value| cpu_percent(value).is_some());
    unit_property(&group.path, file).filter(|property| property.name != "CPUQuota" || whole())
}

/// What a person types for one write.
fn command(group: &CgroupFacts, write: &FileWrite) -> String {
    resource_setting(group, write)
        .and_then(|setting| tool_command(group, &setting))
        .unwrap_or_else(|| plain_command(write))
}

/// The command of the tool that made the container, where it keeps the setting.
fn tool_command(group: &CgroupFacts, setting: &ResourceSetting) -> Option<String> {
    let container = group.container.as_ref()?;
    engine_command(container.engine, &display_name(container), container.pod.as_ref(), setting)
}

/// The resource behind a write.
fn resource_setting(group: &CgroupFacts, write: &FileWrite) -> Option<ResourceSetting> {
    let number = |text: &str| text.parse::<u64>().ok();
    let cpus = |quota: u64, period: u64| Millicpu(quota.saturating_mul(1_000) / period.max(1));
    Some(match write.file.rsplit('/').next()? {
        "memory.low" | "memory.soft_limit_in_bytes" => {
            ResourceSetting::MemoryReservation(Bytes(number(&write.to)?))
        }
        "pids.max" => ResourceSetting::Pids(number(&write.to)?),
        "cpu.shares" => ResourceSetting::CpuShares(number(&write.to)?),
        "cpu.cfs_quota_us" => {
            ResourceSetting::Cpus(cpus(number(&write.to)?, group.number("cpu.cfs_period_us")?))
        }
        "cpu.max" => {
            let (quota, period) = write.to.split_once(' ')?;
            ResourceSetting::Cpus(cpus(number(quota)?, number(period)?))
        }
        _ => return None,
    })
}

/// One file of a cgroup.
pub(super) fn cgroup_fix(
    group: &CgroupFacts,
    controller: HierarchyController,
    file: &str,
    to: impl ToString,
) -> Option<FindingFix> {
    let write = cgroup_write(group, controller, file, to)?;
    Some(FindingFix { commands: vec![command(group, &write)], writes: vec![write] })
}

/// A switch of the machine: a file below `/proc/sys`, or below `/sys`.
pub(super) fn sysctl_fix(facts: &HostFacts, file: &str, to: impl ToString) -> Option<FindingFix> {
    let (from, to) = (facts.host.setting(file)?.to_owned(), to.to_string());
    let command = match file.strip_prefix("/proc/sys/") {
        Some(key) => format!("sysctl -w {}={to}", key.replace('/', ".")),
        None => echo_command(&to, file),
    };
    let write = FileWrite { file: file.to_owned(), from, to, ..FileWrite::default() };
    (write.from != write.to).then(|| FindingFix { commands: vec![command], writes: vec![write] })
}

/// Commands for a person only.
pub(super) fn manual_fix(commands: &[&str]) -> Option<FindingFix> {
    Some(FindingFix { commands: commands.iter().map(|c| (*c).to_owned()).collect(), writes: Vec::new() })
}

/// A value that a person writes to a file.
pub(super) fn write_fix(value: &str, file: &str) -> Option<FindingFix> {
    manual_fix(&[&echo_command(value, file)])
}

/// What may be promised on this host, in whole MiB.
fn reservable_memory(facts: &HostFacts) -> Bytes {
    Bytes(RESERVABLE.of(facts.host.mem_total().get()) / MIB * MIB)
}

/// Keeps `keep` for `group` when the host is short. `None` where that would promise more than the machine has, or nothing
/// would change.
pub fn protect(facts: &HostFacts, group: &CgroupFacts, keep: Bytes) -> Option<FindingFix> {
    protect_within(facts, group, keep, total_protected(facts))
}

/// The same, with the sum of what is kept already, which costs a walk over all containers.
pub(super) fn protect_within(
    facts: &HostFacts,
    group: &CgroupFacts,
    keep: Bytes,
    promised: Bytes,
) -> Option<FindingFix> {
    let keep = whole_mib(keep).min(group.hard_limit().unwrap_or(Bytes(u64::MAX)));
    let others = promised.saturating_sub(protected_memory(facts, group));
    if others.saturating_add(keep) > reservable_memory(facts) {
        return None;
    }
    match facts.version(HierarchyController::Memory)? {
        ControllerVersion::V1 => soft_limit_fix(facts, group, keep),
        ControllerVersion::V2 => memory_low_fix(facts, group, keep),
    }
}

/// The cgroups around a container keep what it claims already. `None` as for [`protect_within`].
pub(super) fn ancestor_protection_fix(
    facts: &HostFacts,
    group: &CgroupFacts,
    promised: Bytes,
) -> Option<FindingFix> {
    let claim = own_protection(group);
    let others = promised.saturating_sub(protected_memory(facts, group));
    (others.saturating_add(claim) <= reservable_memory(facts))
        .then(|| memory_low_fix(facts, group, claim))
        .flatten()
}

/// v2: `memory.low` of the group, and of those around it as much as all their children claim, as far as the host can keep that.
/// Without the latter the kernel scales the claim down to what the parent has, which is nothing (mm/page_counter.c,
/// `effective_protection`).
fn memory_low_fix(facts: &HostFacts, group: &CgroupFacts, keep: Bytes) -> Option<FindingFix> {
    let most = reservable_memory(facts);
    let mut need = own_protection(group).max(keep);
    let mut below = group;
    let mut fix = FindingFix::default();
    let mut push = |group: &CgroupFacts, need: Bytes| {
        if own_protection(group) < need
            && let Some(write) = cgroup_write(group, HierarchyController::Memory, "memory.low", need.get())
        {
            fix.commands.push(command(group, &write));
            fix.writes.push(write);
        }
    };
    push(group, need);
    for around in facts.ancestors(group) {
        let beside: Bytes =
            facts.children(around).filter(|g| !std::ptr::eq(*g, below)).map(own_protection).sum();
        need = own_protection(around).max(need.saturating_add(beside).min(most));
        push(around, need);
        below = around;
    }
    // From the outside in: a claim counts from the moment it is written.
    fix.commands.reverse();
    fix.writes.reverse();
    (!fix.writes.is_empty()).then_some(fix)
}

/// v1: the group's soft limit, and one for every neighbour that holds much cache it does not use and has none: kswapd takes
/// from those above theirs first. A group that is to be protected as well does not give.
fn soft_limit_fix(facts: &HostFacts, group: &CgroupFacts, keep: Bytes) -> Option<FindingFix> {
    const SOFT: &str = "memory.soft_limit_in_bytes";
    let much = Bytes(Percent::whole(5).of(facts.host.mem_total().get()));
    let mut fix = FindingFix::default();
    let mut push = |group: &CgroupFacts, soft: Bytes| {
        if let Some(write) = cgroup_write(group, HierarchyController::Memory, SOFT, soft.get()) {
            fix.commands.push(command(group, &write));
            fix.writes.push(write);
        }
    };
    push(group, keep.max(protected_memory(facts, group)));
    let open = LazyCell::new(|| unreserved_containers(facts));
    let suffers =
        |g: &CgroupFacts| loses_cache_to_host(facts, g) || open.iter().any(|(o, ..)| std::ptr::eq(*o, g));
    for other in facts.containers().filter(|g| !std::ptr::eq(*g, group)) {
        let stat = other.stat();
        if stat.inactive_file > much && other.limit(SOFT) == Some(Limit::Max) && !suffers(other) {
            push(other, whole_mib(other.usage().saturating_sub(stat.inactive_file)));
        }
    }
    (!fix.writes.is_empty()).then_some(fix)
}

/// Raises the hard limit, and what must move with it, to `to`; where that allows as much, `memory.high` alone. `None` where a
/// cgroup around it holds it back, or the host has not twice as much available.
pub(crate) fn raise_limit(facts: &HostFacts, group: &CgroupFacts, to: Bytes) -> Option<FindingFix> {
    let to = whole_mib(to);
    let high = group.limit("memory.high").and_then(Limit::value);
    let within = group.hard_limit().is_none_or(|hard| to <= hard);
    let now = if within { high } else { group.hard_limit() };
    let more = to.saturating_sub(now?);
    let held = facts.ancestors(group).filter_map(CgroupFacts::hard_limit).any(|around| around < to);
    if more == Bytes::ZERO || held || more > Bytes(facts.host.mem_available().get() / 2) {
        return None;
    }
    if within {
        return cgroup_fix(group, HierarchyController::Memory, "memory.high", to.get());
    }
    let file = group.hard_limit_file();
    let both = "memory.memsw.limit_in_bytes";
    let both_to = group.limit(both).and_then(Limit::value).map(|n| n.saturating_add(more));
    let high = high.map(|n| n.saturating_add(more));
    // v1 refuses a hard limit above memory and swap together, so that goes first.
    let writes: Vec<FileWrite> = [
        both_to.and_then(|n| cgroup_write(group, HierarchyController::Memory, both, n.get())),
        cgroup_write(group, HierarchyController::Memory, file, to.get()),
        high.and_then(|n| cgroup_write(group, HierarchyController::Memory, "memory.high", n.get())),
    ]
    .into_iter()
    .flatten()
    .collect();
    let with_swap = match (both_to, group.limit("memory.swap.max")) {
        (Some(both), _) => Limit::At(both),
        (None, Some(Limit::At(swap))) => Limit::At(to.saturating_add(swap)),
        (None, _) => Limit::Max,
    };
    let setting = ResourceSetting::MemoryLimit { limit: to, with_swap: Some(with_swap) };
    let commands = match tool_command(group, &setting) {
        Some(command) => vec![command],
        None => writes.iter().map(plain_command).collect(),
    };
    Some(FindingFix { commands, writes })
}

/// The same for a finding. A pod has the sum of its containers' limits around them, so there a person changes its specification.
pub(super) fn raise_limit_or_ask(facts: &HostFacts, group: &CgroupFacts, to: Bytes) -> Option<FindingFix> {
    raise_limit(facts, group, to).or_else(|| {
        group.container.as_ref()?.pod.as_ref()?;
        let to = whole_mib(to);
        let more = to.saturating_sub(group.hard_limit()?);
        let fits = more > Bytes::ZERO && more <= Bytes(facts.host.mem_available().get() / 2);
        let setting = ResourceSetting::MemoryLimit { limit: to, with_swap: None };
        manual_fix(&[&tool_command(group, &setting).filter(|_| fits)?])
    })
}

/// Adds what removes a finding about the limit of `at`, which is a container or around one. What the kubelet made for its pods, no fix
/// writes behind its back: it promised the rest of the node to others.
pub(super) fn with_limit_fix(
    found: DoctorFinding,
    at: &CgroupFacts,
    fix: Option<FindingFix>,
) -> DoctorFinding {
    if at.container.is_none() && at.path.split('/').any(|name| ["kubepods", "kubepods.slice"].contains(&name))
    {
        return found.with_advice(
            "The kubelet set it: change the pod's specification, or what the kubelet reserves on this node.",
        );
    }
    found.with_fix(fix)
}
