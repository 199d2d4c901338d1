//! From what the host says about a container to what its pages may say.

use elbowroom_linux::GroupDetails;
use elbowroom_linux::numa::Numa;
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::sample::{CgroupSettings, CpuMax};
use elbowroom_types::unit::{Bytes, CpuShare, Limit, Micros};
use elbowroom_view::pages::snapshot::{ContainerSnapshot, CpuTimes, MAX_DISKS, NO_LIMIT};
use elbowroom_view::rules::View;

/// The kernel's default bandwidth period (`default_cfs_period`, kernel/sched/fair.c).
const DEFAULT_PERIOD: Micros = Micros::millis(100);

/// Takes over the view: everything limit-like pages show.
pub(super) fn apply_view(
    facts: &mut ContainerSnapshot,
    view: &View,
    limits: &CgroupSettings,
    mems: Option<CpuSet>,
    numa: &Numa,
) {
    facts.nodes = numa.nodes;
    facts.online = view.online;
    facts.present = view.present;
    facts.possible = view.possible;
    facts.cpu_nodes = numa.nodes_of(&facts.present);
    facts.mems = mems.unwrap_or_default();
    facts.mems_total = numa.memory_of(mems);
    facts.millicpu = view.millicpu.get();
    facts.memory = view.memory;
    facts.cpu_period = match limits.cpu_max {
        Some(CpuMax { period, .. }) if period > Micros::ZERO => period,
        _ => DEFAULT_PERIOD,
    };
    facts.cpu_share = limits.cpu_share.map_or(0, CpuShare::raw);
    facts.memory_soft = limit_bytes(limits.memory_soft);
    facts.memory_high = limit_bytes(limits.memory_high);
    facts.swap_max = limit_bytes(view.swap_max);
}

/// Takes in when a container's first process of now started. A container is as old as the oldest that was its first: one that
/// replaces another (a service's `ExecStart=` after an `ExecStartPre=`) makes it no younger.
pub(super) fn apply_start_time(facts: &mut ContainerSnapshot, started: Micros) {
    facts.started = facts.started.min(started);
}

/// Takes over the measurements, and advances the times, which are by CPU number, by what was used since the last ones.
pub(super) fn apply_details(
    facts: &mut ContainerSnapshot,
    times: &mut [CpuTimes],
    details: &GroupDetails,
    now_boot: Micros,
) {
    let (user_now, system_now) =
        (details.cpu_user.unwrap_or_default(), details.cpu_system.unwrap_or_default());
    let user = user_now.saturating_sub(facts.cpu_user);
    let system = system_now.saturating_sub(facts.cpu_system);
    // Before it was first looked at, and before it began, it was idle: times add up to the uptime of each CPU.
    spread_cpu_time(times, &facts.online, user, system, now_boot.saturating_sub(facts.taken));
    facts.cpu_user = user_now.max(facts.cpu_user);
    facts.cpu_system = system_now.max(facts.cpu_system);
    facts.taken = now_boot;
    facts.memory_usage = details.memory_usage.unwrap_or_default();
    facts.memory_stat = details.memory_stat.unwrap_or_default();
    facts.oom_kills = details.oom_kills.unwrap_or(0).max(facts.oom_kills);
    facts.nr_threads = u32::try_from(details.nr_threads.unwrap_or(0)).unwrap_or(u32::MAX);
    // It may be switched off at any time (`cgroup.pressure`): what was read before says nothing of now. The totals stay, which triggers
    // compare with later ones.
    facts.has_pressure = details.pressure.is_some().into();
    facts.pressure = details.pressure.unwrap_or(facts.pressure);
    let disks = details.io.len().min(MAX_DISKS);
    facts.io[..disks].copy_from_slice(&details.io[..disks]);
    facts.nr_disks = disks as u32;
}

/// Shares `user` and `system` time out over the CPUs of a view, and gives each the rest of `elapsed` as idle time. The kernel
/// does not say on which CPU of a view a container ran: v2 has no per-CPU times, and the view's CPUs are a count, not a
/// place. So an even spread is the honest answer, and tools add the CPUs up anyway.
fn spread_cpu_time(times: &mut [CpuTimes], online: &CpuSet, user: Micros, system: Micros, elapsed: Micros) {
    let n = u64::from(online.count());
    if n == 0 {
        return;
    }
    for (k, cpu) in online.iter().enumerate() {
        let Some(cpu) = times.get_mut(cpu as usize) else { continue };
        let part = |total: Micros| Micros(total.get() / n + u64::from((k as u64) < total.get() % n));
        let (user, system) = (part(user), part(system));
        cpu.user = cpu.user.saturating_add(user);
        cpu.system = cpu.system.saturating_add(system);
        cpu.idle = cpu.idle.saturating_add(elapsed.saturating_sub(user).saturating_sub(system));
    }
}

fn limit_bytes(limit: Option<Limit<Bytes>>) -> u64 {
    limit.and_then(Limit::value).map_or(NO_LIMIT, Bytes::get)
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::container::{ContainerEngine, ContainerIdentity};
    use elbowroom_types::id::CgroupId;
    use elbowroom_types::label::ContainerLabels;
    use elbowroom_types::psi::{Pressure, Stall};
    use elbowroom_types::sample::{CgroupProperties, HostEvent, NodeProperties};
    use elbowroom_view::rules::{ViewRules, ViewTable};

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn time_is_spread_over_the_views_cpus_and_nothing_is_lost() {
        let mut times = [CpuTimes::default(); 4];
        spread_cpu_time(&mut times, &set("1,3"), Micros(1_001), Micros(10), Micros(2_000));
        assert_eq!(times[0], CpuTimes::default());
        assert_eq!(times.iter().map(|t| t.user).sum::<Micros>(), Micros(1_001));
        assert_eq!(times.iter().map(|t| t.system).sum::<Micros>(), Micros(10));
        assert_eq!(times.iter().map(|t| t.idle).sum::<Micros>(), Micros(4_000 - 1_011));
    }

    #[test]
    fn swap_is_the_views_and_nodes_are_the_containers_own() {
        let node = NodeProperties {
            online: CpuSet::first_n(2),
            mem_total: Bytes::gib(4),
            ..NodeProperties::default()
        };
        let group = |id, limits| {
            let container = (id == 2).then(|| ContainerIdentity {
                id: "x".to_owned(),
                name: None,
                engine: ContainerEngine::Plain,
                pod: None,
                labels: ContainerLabels::default(),
            });
            let parent = (id == 2).then_some(CgroupId(1));
            HostEvent::Group(CgroupProperties {
                id: CgroupId(id),
                parent,
                path: format!("/{id}"),
                container,
                limits,
                populated: true,
                made_by_user: false,
            })
        };
        let mut limits =
            CgroupSettings { swap_max: Some(Limit::At(Bytes::mib(7))), ..CgroupSettings::default() };
        let pod = group(1, limits);
        limits = CgroupSettings { swap_max: Some(Limit::Max), mems: Some(set("1")), ..limits };
        let mut views = ViewTable::new(ViewRules::default());
        views.apply_all(&[HostEvent::Node(node), pod, group(2, limits)]);
        let mut facts = ContainerSnapshot::EMPTY;
        apply_view(&mut facts, views.get(CgroupId(2)).unwrap(), &limits, limits.mems, &Numa::default());
        assert_eq!((Bytes(facts.swap_max), facts.mems), (Bytes::mib(7), set("1")));
        limits.mems = None;
        apply_view(&mut facts, views.get(CgroupId(2)).unwrap(), &limits, limits.mems, &Numa::default());
        assert!(facts.mems.is_empty(), "not known");
    }

    #[test]
    fn a_container_whose_first_process_is_another_one_is_as_old_as_before() {
        let mut facts = ContainerSnapshot { started: Micros::secs(100), ..ContainerSnapshot::EMPTY };
        apply_start_time(&mut facts, Micros::secs(160));
        assert_eq!(facts.started, Micros::secs(100));
        apply_start_time(&mut facts, Micros::secs(90));
        assert_eq!(facts.started, Micros::secs(90));
    }

    #[test]
    fn pressure_that_is_switched_off_is_not_the_last_that_was_read() {
        let waits = Pressure { some: Stall { total: Micros(7), ..Stall::EMPTY }, ..Pressure::default() };
        let mut facts = ContainerSnapshot::EMPTY;
        let mut look = |pressure| {
            let details = GroupDetails { pressure, ..GroupDetails::default() };
            apply_details(&mut facts, &mut [], &details, Micros::ZERO);
            (facts.has_pressure, facts.pressure[2].some.total)
        };
        assert_eq!(look(Some([waits; 3])), (1, Micros(7)));
        assert_eq!(look(None), (0, Micros(7)), "no trigger sees it go back");
    }

    #[test]
    fn times_never_go_back_when_cpus_leave_the_view() {
        let mut times = [CpuTimes::default(); 4];
        spread_cpu_time(&mut times, &set("0-3"), Micros(4_000), Micros(0), Micros(1_000));
        let before = times;
        spread_cpu_time(&mut times, &set("0"), Micros(500), Micros(0), Micros(1_000));
        assert!(times.iter().zip(before).all(|(a, b)| a.user >= b.user && a.idle >= b.idle));
    }
}
