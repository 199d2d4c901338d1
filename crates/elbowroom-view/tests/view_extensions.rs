//! What goes beyond the paper, each part switched on alone and compared with the paper.

use crate::world::{Knob, World, a_thread_per_cpu, by_hand, cpuset, quota, threads, tick, weight};
use elbowroom_sim::{GroupRole, NodeProgram, ProgramDemand};
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::id::CgroupId;
use elbowroom_types::memory::ViewCeiling;
use elbowroom_types::sample::{CgroupProperties, CgroupSettings, HostEvent, NodeProperties, Tick};
use elbowroom_types::unit::{Bytes, Limit, Micros, Millicpu};
use elbowroom_view::rules::{CpuRule, ViewChangeReason, ViewDelta, ViewRules};

const MEMORY: Bytes = Bytes::gib(64);

/// Everything off, by name, so that a test can switch one on.
fn bare() -> ViewRules {
    ViewRules { cpu: CpuRule::Waterfill, ..ViewRules::paper() }
}

#[test]
fn a_kubernetes_container_is_three_levels_deep() {
    let mut world = World::new(ViewRules { hierarchy: true, ..bare() }, 16, MEMORY);
    let root = world.slice(None, "", weight(100));
    world.slice(Some(root), "system.slice", weight(100));
    let pods = world.slice(Some(root), "kubepods", weight(300));
    let burstable = world.slice(Some(pods), "burstable", weight(100));
    let pod = world.slice(
        Some(burstable),
        "pod1",
        CgroupSettings {
            cpu_max: quota(3_000).cpu_max,
            memory_max: Some(Limit::At(Bytes::gib(8))),
            ..cpuset("2-5")
        },
    );
    let other = world.slice(Some(pods), "pod2", weight(100));
    let app = world.container(Some(pod), weight(200), threads(0));
    let sidecar = world.container(Some(pod), quota(500), threads(0));
    let alone = world.container(Some(other), weight(1), threads(0));

    let view = world.view(app);
    assert_eq!((view.cpus_lower, view.cpus_upper), (2, 3), "2/3 of the 3 that the pod's quota lets in");
    assert_eq!(
        [view.online, view.present, view.possible].map(|cpus| cpus.to_string()),
        ["2-3", "2-4", "0-5"]
    );
    assert_eq!(view.memory_hard, Bytes::gib(8), "the pod's");
    let view = world.view(sidecar);
    assert_eq!((view.cpus, view.millicpu), (1, Millicpu(500)));
    let view = world.view(alone);
    assert_eq!((view.cpus_lower, view.cpus_upper), (6, 16), "half of kubepods' three quarters");

    let explain = world.views.explain(app).unwrap();
    assert_eq!(explain.inputs.quota_of.as_deref(), Some("/kubepods/burstable/pod1"));
    assert_eq!(explain.inputs.memory_hard_of, explain.inputs.quota_of);
    assert_eq!((explain.inputs.weight, explain.inputs.weight_sum), (200, 300));
    assert_eq!(world.views.containers().count(), 3, "slices and pods have no view");
}

#[test]
fn a_busy_container_in_a_cpuset_partition_has_all_of_its_cpus() {
    let mut world = World::new(ViewRules { hierarchy: true, ..bare() }, 8, MEMORY);
    // What the kernel leaves in cpuset.cpus.effective of the groups around a partition.
    let root = world.slice(None, "", cpuset("0-3"));
    let system = world.slice(Some(root), "system.slice", cpuset("0-3"));
    let isolated = world.slice(Some(root), "isolated.slice", cpuset("4-7"));
    let beside = world.container(Some(system), cpuset("0-3"), threads(0));
    let inside = world.container(Some(isolated), cpuset("4-7"), threads(8));
    world.run(300);
    let view = world.view(inside);
    assert_eq!((view.cpus, view.present.to_string().as_str()), (4, "4-7"));
    assert_eq!(world.view(beside).present.to_string(), "0-3");
}

#[test]
fn memory_is_that_of_the_numa_nodes_it_may_come_from() {
    let mut world = World::new(ViewRules::paper(), 8, MEMORY);
    let numa = vec![Bytes::gib(40), Bytes::ZERO, Bytes::gib(24)];
    let node =
        NodeProperties { online: CpuSet::first_n(8), mem_total: MEMORY, numa, ..NodeProperties::default() };
    world.apply(HostEvent::Node(node.clone()));
    let on = |nodes: &str, memory_max| CgroupSettings {
        mems: nodes.parse().ok(),
        memory_max,
        ..CgroupSettings::default()
    };
    let mut hard = |limits| {
        let id = world.container(None, limits, threads(0));
        world.view(id).memory_hard
    };
    assert_eq!(hard(on("2", None)), Bytes::gib(24));
    assert_eq!(hard(on("2", Some(Limit::At(Bytes::gib(8))))), Bytes::gib(8));
    assert_eq!(hard(on("0,2", None)), MEMORY);
    assert_eq!(hard(CgroupSettings::default()), MEMORY);
    assert_eq!(hard(on("1", None)), MEMORY, "a node without memory alone is no limit");
    // A slice says, and nothing below it does.
    let slice = world.slice(None, "slice", on("2", None));
    let id = world.container(Some(slice), weight(1), threads(0));
    assert_eq!(world.view(id).memory_hard, Bytes::gib(24));
    assert_eq!(world.views.explain(id).unwrap().inputs.memory_hard_of.as_deref(), Some("NUMA nodes 2"));
    // A machine of one node, or whose nodes are not known.
    world.apply(HostEvent::Node(NodeProperties { numa: Vec::new(), ..node }));
    let id = world.container(None, on("2", None), threads(0));
    assert_eq!(world.view(id).memory_hard, MEMORY);
}

#[test]
fn swap_is_what_the_narrowest_group_above_leaves() {
    let gib = |n| Some(Limit::At(Bytes::gib(n)));
    let swap = |pod: CgroupSettings, own: CgroupSettings| {
        let mut world = World::new(ViewRules::default(), 4, MEMORY);
        let pod = world.slice(None, "pod", pod);
        let id = world.container(Some(pod), own, threads(0));
        world.view(id).swap_max
    };
    let v2 = |memory_max, swap_max| CgroupSettings { memory_max, swap_max, ..CgroupSettings::default() };
    assert_eq!(swap(v2(gib(8), gib(0)), v2(gib(1), Some(Limit::Max))), gib(0));
    assert_eq!(swap(v2(gib(1), gib(1)), v2(gib(1), gib(4))), gib(1));
    assert_eq!(swap(v2(None, Some(Limit::Max)), v2(None, Some(Limit::Max))), Some(Limit::Max));
    // v1: a pod that may swap nothing while it is full has swap for a container that may not fill it.
    let v1 = |memory_max, memsw_max| CgroupSettings { memory_max, memsw_max, ..CgroupSettings::default() };
    let half = Some(Limit::At(Bytes::mib(512)));
    assert_eq!(swap(v1(gib(1), gib(1)), v1(half, Some(Limit::Max))), half);
    assert_eq!(swap(v1(gib(1), gib(1)), v1(Some(Limit::Max), Some(Limit::Max))), gib(0));
    assert_eq!(swap(v1(gib(8), Some(Limit::Max)), v1(gib(1), gib(3))), gib(2));
    assert_eq!(swap(CgroupSettings::default(), v1(gib(1), None)), None, "the kernel does not account it");
}

#[test]
fn a_swap_limit_above_that_changes_is_a_change_of_the_view() {
    let mut world = World::new(ViewRules::default(), 4, MEMORY);
    let swap = |swap_max| CgroupSettings { swap_max: Some(swap_max), ..CgroupSettings::default() };
    let pod = world.slice(None, "pod", swap(Limit::Max));
    let id = world.container(Some(pod), swap(Limit::Max), threads(0));
    let none = Limit::At(Bytes::ZERO);
    let narrowed = CgroupProperties { limits: swap(none), ..world.views.group(pod).unwrap().clone() };
    let changes = world.apply(HostEvent::Group(narrowed));
    assert!(changes.iter().any(|change| change.id == id));
    assert_eq!(world.view(id).swap_max, Some(none));
}

#[test]
fn a_quota_of_one_and_a_half_shows_two_cpus_and_the_exact_amount() {
    let mut world = World::new(ViewRules::default(), 8, MEMORY);
    let id = world.container(None, quota(1_500), threads(8));
    let view = world.view(id);
    assert_eq!((view.cpus, view.cpus_upper, view.millicpu), (2, 2, Millicpu(1_500)));
    assert_eq!(
        [view.online, view.present, view.possible].map(|cpus| cpus.to_string()),
        ["0-1", "0-1", "0-7"]
    );
}

#[test]
fn an_unlimited_container_beside_another_has_its_share_and_room_to_grow() {
    let mut world = World::new(ViewRules::default(), 8, MEMORY);
    let (a, b) = (
        world.container(None, weight(100), a_thread_per_cpu()),
        world.container(None, weight(300), threads(0)),
    );
    assert_eq!(world.cpus(&[a, b]), [2, 6], "shares count without any quota");
    world.run(10);
    assert_eq!(world.cpus(&[a, b]), [8, 6]);
}

#[test]
fn time_where_a_container_cannot_go_is_no_room_for_it() {
    let shown = |cpuset_slack| {
        let mut limits = [weight(100); 8];
        limits[0] = cpuset("0-3");
        let mut views = by_hand(ViewRules { cpuset_slack, ..bare() }, &limits);
        // CPUs 0 to 3 are busy, half of their time with the container, half with what is no container.
        for n in [1, 2] {
            let used = tick(2 * n, n * 192_000, &[(1, n * 96_000, 0)]);
            let HostEvent::Tick(tick) = used else { panic!("a tick") };
            let busy_per_cpu = (0..8).map(|cpu| Micros(if cpu < 4 { n * 48_000 } else { 0 })).collect();
            views.apply(&HostEvent::Tick(Tick { busy_per_cpu, ..tick }));
        }
        views.get(CgroupId(1)).unwrap().cpus
    };
    assert_eq!(shown(false), 4, "idle CPUs elsewhere promise all four");
    assert_eq!(shown(true), 2);
}

#[test]
fn idle_siblings_leave_the_sum_and_come_back_into_it() {
    let policy = ViewRules { idle_siblings: true, hierarchy: true, ..bare() };
    for policy in [policy, ViewRules { hierarchy: false, ..policy }] {
        let mut world = World::new(policy, 8, MEMORY);
        let knob = Knob::new(1);
        let id = world.container(None, weight(100), threads(2));
        let pod = world.slice(None, "pod", weight(100));
        let sleeper = world.container(Some(pod), weight(100), knob.program());
        world.run(100);
        assert_eq!(world.view(id).cpus_lower, 4);
        knob.turn(0);
        world.run(30);
        assert_eq!(world.view(id).cpus_lower, 4, "not for a while yet");
        let changes = world.run(30);
        assert_eq!((world.view(id).cpus_lower, world.view(id).cpus), (8, 8), "LOWER pushes it up");
        assert!(matches!(
            changes.iter().find(|c| c.id == id).unwrap().because,
            ViewChangeReason::CpuBounds(bounds) if bounds.lower == 8
        ));
        assert_eq!(world.view(sleeper).cpus_lower, 4, "its own share is what it gets when it wakes");
        knob.turn(1);
        world.run(1);
        assert_eq!(world.view(id).cpus_lower, 4, "the hazard: what was promised is gone at once");
    }
    let mut world = World::new(bare(), 8, MEMORY);
    let id = world.container(None, weight(100), threads(2));
    world.container(None, weight(100), threads(0));
    world.run(100);
    assert_eq!(world.view(id).cpus_lower, 4, "off: the sleeper counts");
}

#[test]
fn settings_move_a_view_at_once_and_say_so() {
    let mut world = World::new(ViewRules::default(), 8, MEMORY);
    let (id, event) = world.sim.add(None, "a", weight(100), GroupRole::Container(threads(8)));
    let HostEvent::Group(group) = event else { panic!("a group") };
    let mut set = |limits: CgroupSettings| {
        world.views.apply(&HostEvent::Group(CgroupProperties { limits, ..group.clone() }))
    };
    let appeared = set(weight(100));
    assert_eq!(appeared[0].what, ViewDelta::Cpu { from: Millicpu(0), to: Millicpu(8_000) });
    assert_eq!(appeared[1].what, ViewDelta::Memory { from: Bytes(0), to: MEMORY });
    assert!(appeared.iter().all(|change| change.because == ViewChangeReason::Appeared));
    assert!(set(weight(100)).is_empty(), "nothing new");

    let what =
        |changes: Vec<elbowroom_view::rules::ViewChange>| changes.iter().map(|c| c.what).collect::<Vec<_>>();
    let cpu = |from, to| ViewDelta::Cpu { from: Millicpu(from), to: Millicpu(to) };
    assert_eq!(what(set(quota(1_500))), [cpu(8_000, 1_500)]);
    assert_eq!(what(set(quota(1_250))), [cpu(1_500, 1_250)], "same count, other amount");
    assert_eq!(what(set(cpuset("4-5"))), [cpu(1_250, 2_000)]);
    assert_eq!(what(set(cpuset("6-7"))), [cpu(2_000, 2_000)], "same amount, other CPUs");
    let memory = |n| CgroupSettings { memory_max: Some(Limit::At(Bytes::gib(n))), ..cpuset("6-7") };
    let gib = |from, to| ViewDelta::Memory { from: Bytes::gib(from), to: Bytes::gib(to) };
    assert_eq!(what(set(memory(4))), [gib(64, 4)]);
    assert_eq!(what(set(memory(6))), [gib(4, 6)], "it never grew, so it follows its soft limit");
    assert_eq!(what(world.views.apply(&HostEvent::Gone(id))), [cpu(2_000, 0), gib(6, 0)]);
    assert!(world.views.get(id).is_none() && world.views.group(id).is_none());
}

#[test]
fn a_container_that_is_taken_over_keeps_what_it_was_shown_within_its_bounds() {
    let mut world = World::new(ViewRules { hierarchy: true, ..bare() }, 8, MEMORY);
    let soft = CgroupSettings {
        memory_soft: Some(Limit::At(Bytes::gib(2))),
        memory_max: Some(Limit::At(Bytes::gib(8))),
        ..weight(100)
    };
    let one = world.container(None, soft, threads(0));
    let other = world.container(None, weight(100), threads(0));
    assert_eq!((world.view(one).cpus, world.view(one).memory), (4, Bytes::gib(2)));
    world.views.resume(one, 7, Bytes::gib(5));
    world.views.resume(other, 1, Bytes::gib(1));
    assert_eq!((world.view(one).cpus, world.view(one).memory), (7, Bytes::gib(5)));
    assert_eq!((world.view(other).cpus, world.view(other).memory), (4, MEMORY), "not outside of them");
    // A setting of another container, before the first tick.
    world.container(None, weight(100), threads(0));
    assert_eq!((world.view(one).cpus, world.view(one).memory), (7, Bytes::gib(5)));
    assert!(world.views.explain(one).unwrap().to_string().contains("was shown before"));
    world.run(1);
    world.views.resume(one, 4, Bytes::gib(2));
    assert_ne!(world.view(one).memory, Bytes::gib(2), "a container that a tick saw is not resumed");
}

#[test]
fn growth_up_to_a_fractional_quota_ends_at_the_exact_amount() {
    let mut world = World::new(ViewRules::default(), 8, MEMORY);
    let id = world.container(None, quota(2_500), a_thread_per_cpu());
    (0..7).for_each(|_| {
        world.container(None, weight(100), threads(0));
    });
    assert_eq!(world.view(id).millicpu, Millicpu(1_000));
    let changes = world.run(10);
    assert_eq!((world.view(id).cpus, world.view(id).millicpu), (3, Millicpu(2_500)));
    assert_eq!(changes.last().unwrap().what, ViewDelta::Cpu { from: Millicpu(1_000), to: Millicpu(2_500) });
}

#[test]
fn a_sibling_without_processes_competes_for_nothing_but_the_paper_counts_it() {
    let run = |policy| {
        let mut world = World::new(policy, 8, MEMORY);
        let id = world.container(None, weight(100), threads(0));
        let (_, event) = world.sim.add(None, "created", weight(100), GroupRole::Container(threads(0)));
        let HostEvent::Group(group) = event else { panic!("a group") };
        let created = group.id;
        world.views.apply(&HostEvent::Group(CgroupProperties { populated: false, ..group }));
        world.cpus(&[id, created])
    };
    assert_eq!(run(ViewRules::default()), [8, 4]);
    assert_eq!(run(ViewRules::paper()), [4, 4]);
}

#[test]
fn ancestors_bind_memory_tighter_than_the_container_itself() {
    let mut world = World::new(ViewRules::default(), 8, MEMORY);
    let at = |n| Some(Limit::At(Bytes::gib(n)));
    let pod =
        world.slice(None, "pod", CgroupSettings { memory_max: at(8), memory_high: at(6), ..weight(100) });
    let limits = CgroupSettings { memory_max: at(10), memory_high: at(9), ..weight(100) };
    let id = world.container(Some(pod), limits, threads(0));
    assert_eq!((world.view(id).memory_soft, world.view(id).memory_hard), (Bytes::gib(6), Bytes::gib(8)));
}

#[test]
fn a_lower_soft_limit_is_followed_only_by_a_view_that_never_grew() {
    let at = |n| Some(Limit::At(Bytes::gib(n)));
    let limits = |soft| CgroupSettings { memory_max: at(20), memory_soft: at(soft), ..weight(100) };
    let mut world = World::new(ViewRules::default(), 8, MEMORY);
    let grown = world.container(
        None,
        limits(10),
        Box::new(|_, _| ProgramDemand { threads: 0, memory: Bytes::gib(14) }),
    );
    let modest = world.container(None, limits(10), threads(0));
    world.run(20);
    let before = world.view(grown).memory;
    assert!(before > Bytes::gib(14));
    for id in [grown, modest] {
        let group = world.views.group(id).unwrap().clone();
        world.views.apply(&HostEvent::Group(CgroupProperties { limits: limits(5), ..group }));
    }
    assert_eq!((world.view(grown).memory, world.view(modest).memory), (before, Bytes::gib(5)));
}

#[test]
fn a_container_named_twice_in_a_tick_takes_one_step() {
    let mut views = by_hand(ViewRules::paper(), &[weight(100), weight(100)]);
    views.apply(&tick(1, 0, &[(1, 0, 0)]));
    let changes = views.apply(&tick(2, 96_000, &[(1, 192_000, 0), (1, 999_000, 0)]));
    assert_eq!(changes.len(), 1);
    assert_eq!(views.get(CgroupId(1)).unwrap().cpus, 5);
}

#[test]
fn effective_cpu_holds_when_the_machines_own_counter_runs_backwards() {
    let mut views = by_hand(ViewRules::paper(), &[weight(100), weight(100)]);
    views.apply(&tick(1, 500_000, &[(1, 0, 0)]));
    assert!(views.apply(&tick(2, 400_000, &[(1, 96_000, 0)])).is_empty(), "what was unused is not known");
    assert_eq!(views.apply(&tick(3, 500_000, &[(1, 192_000, 0)])).len(), 1);
}

#[test]
fn ticks_out_of_order_decide_nothing() {
    let mut views = by_hand(ViewRules::paper(), &[weight(100), weight(100)]);
    views.apply(&tick(5, 0, &[(1, 0, 0)]));
    assert!(views.apply(&tick(5, 96_000, &[(1, 96_000, 0)])).is_empty(), "the same instant");
    assert!(views.apply(&tick(3, 96_000, &[(1, 96_000, 0)])).is_empty(), "backwards: measured from here on");
    assert_eq!(views.apply(&tick(4, 192_000, &[(1, 192_000, 0)])).len(), 1);
}

#[test]
fn an_unnamed_container_gives_way_where_there_is_no_slack() {
    for (others_used, cpus) in [(192_000, 4), (182_400, 5)] {
        let mut views = by_hand(ViewRules::paper(), &[weight(100), weight(100)]);
        views.apply(&tick(1, 0, &[(1, 0, 0), (2, 0, 0)]));
        views.apply(&tick(2, 96_000, &[(1, 96_000, 0)]));
        assert_eq!(views.get(CgroupId(1)).unwrap().cpus, 5);
        views.apply(&tick(3, 96_000 + others_used, &[(2, others_used, 0)]));
        assert_eq!(views.get(CgroupId(1)).unwrap().cpus, cpus);
    }
}

#[test]
fn reclaim_is_seen_though_the_machines_cpu_counter_runs_backwards() {
    let mut world = World::new(ViewRules::default(), 8, MEMORY);
    let at = |n| Some(Limit::At(Bytes::gib(n)));
    let limits = CgroupSettings { memory_max: at(20), memory_soft: at(10), ..weight(100) };
    let id =
        world.container(None, limits, Box::new(|_, _| ProgramDemand { threads: 1, memory: Bytes::gib(14) }));
    world.run(20);
    assert!(world.view(id).memory > Bytes::gib(14));
    world.apply(HostEvent::Tick(Tick { now: Micros::secs(60), ..Tick::default() }));
    assert_eq!(world.view(id).memory, Bytes::gib(10));
}

#[test]
fn what_is_gone_takes_everything_below_it_along() {
    let mut world = World::new(ViewRules::default(), 8, MEMORY);
    let pod = world.slice(None, "pod", weight(100));
    let inner = world.slice(Some(pod), "inner", weight(100));
    let inside = world.container(Some(inner), weight(100), threads(1));
    let outside = world.container(None, weight(100), threads(1));
    assert_eq!(world.view(outside).cpus_lower, 4);
    let changes = world.views.apply(&HostEvent::Gone(pod));
    assert!(changes.iter().any(|change| change.id == inside && change.because == ViewChangeReason::Gone));
    assert!(world.views.get(inside).is_none());
    assert_eq!(world.view(outside).cpus_lower, 8);
    assert!(world.views.apply(&HostEvent::Gone(CgroupId(999))).is_empty(), "an unknown group");
}

#[test]
fn unplugged_cpus_leave_every_view() {
    let mut world = World::new(ViewRules::default(), 8, MEMORY);
    let id = world.container(None, cpuset("2-7"), threads(1));
    let HostEvent::Node(mut node) = world.sim.node() else { panic!("a node") };
    node.online = "0-3".parse().unwrap();
    world.views.apply(&HostEvent::Node(node.clone()));
    assert_eq!(world.view(id).online.to_string(), "2-3");
    node.online = elbowroom_types::cpuset::CpuSet::EMPTY;
    assert!(world.views.apply(&HostEvent::Node(node)).is_empty(), "a machine without a CPU is no machine");
    assert_eq!(world.view(id).online.to_string(), "2-3");
}

#[test]
fn a_circle_of_parents_is_cut_open() {
    let mut world = World::new(ViewRules::default(), 8, MEMORY);
    let HostEvent::Group(group) = world.sim.add(None, "a", weight(100), GroupRole::Container(threads(1))).1
    else {
        panic!("a group")
    };
    let ring = |id: u64, parent: u64| {
        HostEvent::Group(CgroupProperties {
            id: CgroupId(id),
            parent: Some(CgroupId(parent)),
            ..group.clone()
        })
    };
    for event in [ring(1, 2), ring(2, 3), ring(3, 1), ring(4, 4)] {
        world.views.apply(&event);
    }
    assert_eq!(world.views.containers().count(), 4);
    assert_eq!(world.view(CgroupId(3)).cpus_lower, 4, "the one that closes it is at the top");
}

#[test]
fn a_long_sleep_between_ticks_is_one_period_of_its_real_length() {
    let mut world = World::new(ViewRules::paper(), 8, MEMORY);
    let id = world.container(None, weight(100), Knob::new(4).program());
    world.container(None, weight(100), threads(0));
    world.run(3);
    assert_eq!(world.view(id).cpus, 5, "4 of 4 in the first, then 4 of 5");
    let long = world.sim.tick(&world.views, Micros::secs(10));
    assert!(world.views.apply(&long).is_empty(), "4 of 5 over ten seconds is not busy either");
    assert!(world.views.apply(&long).is_empty(), "the same instant again is left out");
}

#[test]
fn a_container_without_a_soft_limit_always_shows_its_hard_limit() {
    let mut world = World::new(ViewRules::default(), 8, Bytes::gib(16));
    let limits = CgroupSettings { memory_max: Some(Limit::At(Bytes::gib(4))), ..weight(100) };
    let id =
        world.container(None, limits, Box::new(|_, _| ProgramDemand { threads: 1, memory: Bytes::gib(3) }));
    let hog = CgroupSettings { memory_soft: Some(Limit::At(Bytes::gib(16))), ..weight(100) };
    world.container(None, hog, Box::new(|_, _| ProgramDemand { threads: 1, memory: Bytes::gib(15) }));
    world.run(50);
    assert_eq!(world.view(id).memory, Bytes::gib(4), "also while reclaim runs");
}

#[test]
fn an_explanation_reads_as_sentences() {
    let mut world = World::new(ViewRules::default(), 20, MEMORY);
    let id = world.container(None, quota(10_000), a_thread_per_cpu());
    (0..4).for_each(|_| {
        world.container(None, weight(100), threads(0));
    });
    world.run(30);
    let explain = world.views.explain(id).unwrap();
    assert_eq!(
        explain.rule,
        "10 CPUs now, between 4 and 10: a quota of 10 (/c1), 20 allowed, and weight 100 of 500 which is worth 4 of 20 \
         CPUs; 64GiB of memory now, between soft 64GiB and hard 64GiB (the machine)."
    );
    assert_eq!(
        explain.changes.last().unwrap().to_string(),
        "cpu 4 -> 10: it used 100% of 4 CPUs and is busy: for 48ms max-min fairness gave it 10"
    );
    let text = serde_json::to_string(&explain).unwrap();
    assert_eq!(serde_json::from_str::<elbowroom_view::rules::ViewExplanation>(&text).unwrap(), explain);
    assert!(explain.to_string().lines().all(|line| !line.is_empty()));
}

#[test]
fn only_the_last_twenty_changes_are_kept() {
    let mut world = World::new(ViewRules::paper(), 64, MEMORY);
    let id = world.container(None, weight(100), a_thread_per_cpu());
    (0..63).for_each(|_| {
        world.container(None, weight(100), threads(0));
    });
    world.run(100);
    let changes = world.views.explain(id).unwrap().changes;
    assert_eq!(changes.len(), elbowroom_view::rules::MAX_VIEW_CHANGES);
    assert_eq!(changes.last().unwrap().what, ViewDelta::Cpu { from: Millicpu(63_000), to: Millicpu(64_000) });
}

#[test]
fn a_container_that_lends_memory_sees_less_and_all_of_it_afterwards() {
    let mut world = World::new(ViewRules::default(), 8, MEMORY);
    let limits = CgroupSettings { memory_max: Some(Limit::At(Bytes::gib(8))), ..weight(100) };
    let (id, other) = (world.container(None, limits, threads(0)), world.container(None, limits, threads(0)));
    let view_ceiling =
        |ceiling| HostEvent::ViewCeiling(ViewCeiling { at: Micros::secs(1), group: id, ceiling });
    world.run(3);
    let changes = world.views.apply(&view_ceiling(Limit::At(Bytes::gib(5))));
    assert_eq!((world.view(id).memory, world.view(other).memory), (Bytes::gib(5), Bytes::gib(8)));
    assert!(matches!(changes[..], [change] if change.id == id), "{changes:?}");
    assert_eq!(world.views.apply(&view_ceiling(Limit::At(Bytes::gib(5)))), [], "nothing new");
    world.run(30);
    assert_eq!(world.view(id).memory, Bytes::gib(5), "it does not grow over it");
    world.views.apply(&view_ceiling(Limit::At(Bytes::gib(20))));
    assert_eq!(world.view(id).memory, Bytes::gib(8), "never more than its limit");
    world.views.apply(&view_ceiling(Limit::Max));
    assert_eq!((world.view(id).memory, world.view(id).memory_hard), (Bytes::gib(8), Bytes::gib(8)));
    let nobody = ViewCeiling { at: Micros::secs(1), group: CgroupId(9_999), ceiling: Limit::At(Bytes(0)) };
    assert_eq!(world.views.apply(&HostEvent::ViewCeiling(nobody)), []);
}

/// Five heaps of 315 to 612 MiB that take what they are shown, `rate` a tick, below a group with a limit; what the views are
/// in the end, in MiB.
fn five_below(policy: ViewRules, limit: u64, rate: Bytes) -> Vec<u64> {
    let mut world = World::new(policy, 20, Bytes::gib(24));
    let at = |mib: u64| Some(Limit::At(Bytes::mib(mib)));
    let pod = world.slice(None, "pod", CgroupSettings { memory_max: at(limit), ..weight(100) });
    let own = CgroupSettings { memory_max: at(612), memory_soft: at(315), ..weight(100) };
    let heap = || -> NodeProgram {
        let mut held = Bytes::ZERO;
        Box::new(move |_, view| {
            held = held.saturating_add(rate).min(view.map_or(Bytes::ZERO, |view| view.memory));
            ProgramDemand { threads: 0, memory: held }
        })
    };
    let ids: Vec<CgroupId> = (0..5).map(|_| world.container(Some(pod), own, heap())).collect();
    world.run(2_500);
    ids.iter().map(|id| world.view(*id).memory.get() >> 20).collect()
}

#[test]
fn what_a_group_grants_fits_into_its_limit() {
    for rate in [Bytes::kib(256), Bytes::mib(1), Bytes::mib(64), Bytes::gib(1)] {
        let views = five_below(ViewRules::default(), 1750, rate);
        assert!(views.iter().sum::<u64>() <= 1750, "{rate}: {views:?}");
        assert!(views.iter().all(|mib| *mib > 315), "{rate}: {views:?}");
        assert_eq!(five_below(ViewRules::default(), 4000, rate), [612; 5], "{rate}: nothing is sold twice");
    }
    let flat = five_below(ViewRules { hierarchy: false, ..ViewRules::default() }, 1750, Bytes::mib(64));
    assert_eq!(flat, [612; 5], "the paper knows one machine and no groups");
}

#[test]
fn what_a_group_granted_it_grants_to_no_other() {
    let mut world = World::new(ViewRules::default(), 20, Bytes::gib(24));
    let at = |mib: u64| Some(Limit::At(Bytes::mib(mib)));
    let pod = world.slice(None, "pod", CgroupSettings { memory_max: at(1000), ..weight(100) });
    let own = CgroupSettings { memory_max: at(800), memory_soft: at(200), ..weight(100) };
    let ids: Vec<CgroupId> = (0..3u64)
        .map(|turn| {
            // Each fills what it is shown for 500 ticks, one after the other, and then keeps 50 MiB.
            let mut tick = 0;
            let program: NodeProgram = Box::new(move |_, view| {
                tick += 1;
                let all = view.map_or(Bytes::ZERO, |view| view.memory);
                ProgramDemand { threads: 0, memory: if tick / 500 == turn { all } else { Bytes::mib(50) } }
            });
            world.container(Some(pod), own, program)
        })
        .collect();
    world.run(1_600);
    let views: Vec<u64> = ids.iter().map(|id| world.view(*id).memory.get() >> 20).collect();
    assert!(views[0] > 500 && views.iter().sum::<u64>() <= 1000, "{views:?}");
}

#[test]
fn a_group_that_is_promised_away_lets_no_container_grow() {
    assert_eq!(five_below(ViewRules::default(), 5 * 315, Bytes::mib(64)), [315; 5]);
}

#[test]
fn a_container_that_a_group_holds_is_told_so() {
    let mut world = World::new(ViewRules::default(), 20, Bytes::gib(24));
    let at = |mib: u64| Some(Limit::At(Bytes::mib(mib)));
    let all = world.slice(None, "all", CgroupSettings { memory_max: at(1000), ..weight(100) });
    let pod = world.slice(Some(all), "pod", CgroupSettings { memory_max: at(500), ..weight(100) });
    let own = CgroupSettings { memory_max: at(400), memory_soft: at(300), ..weight(100) };
    let ids: Vec<CgroupId> =
        [pod, pod, all, all].map(|parent| world.container(Some(parent), own, threads(0))).to_vec();
    world.run(3);
    let above = |id: &CgroupId| world.views.explain(*id).unwrap().inputs.oversold.unwrap();
    let pods = above(&ids[0]);
    assert!(pods.path.ends_with("pod"), "{pods:?}");
    assert_eq!((pods.limit, pods.left), (Bytes::mib(500), Bytes::ZERO), "two times 300 are more than 500");
    assert!(above(&ids[2]).path.ends_with("all"));
    let text = world.views.explain(ids[0]).unwrap().to_string();
    assert!(text.contains("Together with others it may have 500MiB"), "{text}");
}
