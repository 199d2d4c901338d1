//! What holds for views whatever happens; the names are the properties.

use crate::world::{Knob, World, weight};
use elbowroom_sim::ProgramDemand;
use elbowroom_types::container::{ContainerEngine, ContainerIdentity};
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::id::CgroupId;
use elbowroom_types::label::ContainerLabels;
use elbowroom_types::sample::{
    CgroupProperties, CgroupSettings, CpuMax, HostEvent, NodeProperties, ReclaimCounters, Tick, Usage,
};
use elbowroom_types::unit::{Bytes, CpuShare, Limit, Micros, Millicpu};
use elbowroom_view::rules::{CpuRule, View, ViewChange, ViewDelta, ViewRules, ViewTable, cpu, memory};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Numbers as they come, with a taste for the ends.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), 0u64..100, 0u64..1 << 36, any::<u64>()]
}

fn limit<T: std::fmt::Debug>(of: fn(u64) -> T) -> impl Strategy<Value = Option<Limit<T>>> {
    option::of(option::of(number()).prop_map(move |n| n.map_or(Limit::Max, |n| Limit::At(of(n)))))
}

fn cpus() -> impl Strategy<Value = CpuSet> {
    vec(prop_oneof![0u32..8, 0u32..1100], 0..6).prop_map(|cpus| cpus.into_iter().collect())
}

fn limits() -> impl Strategy<Value = CgroupSettings> {
    let share = prop_oneof![number().prop_map(CpuShare::Shares), number().prop_map(CpuShare::Weight)];
    let cpu_max = option::of((limit(Micros), number())).prop_map(|max| {
        max.map(|(quota, period)| CpuMax { quota: quota.unwrap_or(Limit::Max), period: Micros(period) })
    });
    let memory = [(); 4].map(|()| limit(Bytes));
    (cpu_max, option::of(share), option::of(cpus()), memory).prop_map(
        |(cpu_max, cpu_share, cpuset, memory)| {
            let [memory_max, memory_high, memory_low, memory_soft] = memory;
            CgroupSettings {
                cpu_max,
                cpu_share,
                cpuset,
                mems: None,
                memory_max,
                memory_high,
                memory_low,
                memory_min: None,
                memory_soft,
                swap_max: None,
                memsw_max: None,
            }
        },
    )
}

fn id() -> impl Strategy<Value = CgroupId> {
    (0u64..8).prop_map(CgroupId)
}

fn container() -> ContainerIdentity {
    ContainerIdentity {
        id: "x".to_owned(),
        name: None,
        engine: ContainerEngine::Plain,
        pod: None,
        labels: ContainerLabels::default(),
    }
}

fn hostile_event() -> impl Strategy<Value = HostEvent> {
    let numbers = [number(), number(), number(), number()];
    let node = (cpus(), numbers, vec(number(), 0..4)).prop_map(|(online, [a, b, c, d], numa)| {
        HostEvent::Node(NodeProperties {
            online,
            mem_total: Bytes(a),
            numa: numa.into_iter().map(Bytes).collect(),
            low_mark: Bytes(b),
            high_mark: Bytes(c),
            page_size: Bytes(d),
        })
    });
    let group = (id(), option::of(id()), any::<[bool; 2]>(), limits()).prop_map(
        |(id, parent, [is_container, populated], limits)| {
            let container = is_container.then(container);
            HostEvent::Group(CgroupProperties {
                id,
                parent,
                path: format!("/{}", id.0),
                container,
                limits,
                populated,
                made_by_user: false,
            })
        },
    );
    let usage = (id(), number(), option::of(number()), number()).prop_map(|(id, cpu, throttled, memory)| {
        (id, Usage { cpu: Micros(cpu), throttled: throttled.map(Micros), memory: Bytes(memory) })
    });
    let reclaim = (option::of(number()), number(), number(), number(), [number(), number()]).prop_map(
        |(stalled, scanned, scanned_for_limits, lost, [refaulted_files, refaulted_at_limits])| {
            ReclaimCounters {
                stalled: stalled.map(Micros),
                scanned,
                scanned_for_limits,
                lost,
                refaulted_files,
                refaulted_at_limits,
            }
        },
    );
    let memory = (number(), option::of(number()), option::of(reclaim));
    let tick = (number(), number(), vec(number(), 0..9), memory, vec(usage, 0..9)).prop_map(
        |(now, busy, per_cpu, (mem_free, available, reclaim), usage)| {
            let busy_per_cpu = per_cpu.into_iter().map(Micros).collect();
            HostEvent::Tick(Tick {
                now: Micros(now),
                busy: Micros(busy),
                busy_per_cpu,
                mem_free: Bytes(mem_free),
                mem_available: available.map(Bytes),
                reclaim,
                usage,
            })
        },
    );
    prop_oneof![1 => node, 4 => group, 1 => id().prop_map(HostEvent::Gone), 6 => tick]
}

fn policy() -> impl Strategy<Value = ViewRules> {
    let rule = prop_oneof![Just(CpuRule::Paper), Just(CpuRule::Waterfill)];
    (rule, any::<[bool; 5]>()).prop_map(
        |(policy, [hierarchy, cpuset_slack, idle_siblings, memory_promises, reclaimable_memory])| ViewRules {
            cpu: policy,
            hierarchy,
            cpuset_slack,
            idle_siblings,
            memory_promises,
            reclaimable_memory,
            ..ViewRules::default()
        },
    )
}

/// One program of a world: weight, quota in thousandths, CPUs it is pinned to, and per phase threads and GiB.
type Spec = (u64, Option<u64>, Option<u32>, [(u32, u64); 3]);

fn specs() -> impl Strategy<Value = Vec<Spec>> {
    let phase = || (prop_oneof![Just(0u32), 0u32..10], 0u64..20);
    let phases = [phase(), phase(), phase()];
    vec((50u64..400, option::of(300u64..6_000), option::of(1u32..8), phases), 1..6)
}

/// A machine of 8 CPUs and 64 GiB with these programs, three phases of ten ticks each: everything that happened.
fn live_through(policy: ViewRules, specs: &[Spec]) -> World {
    let mut world = World::new(policy, 8, Bytes::gib(64));
    for (n, (w, quota, pinned, phases)) in specs.iter().copied().enumerate() {
        let parent = (n % 3 == 2).then(|| world.slice(None, "pod", weight(w)));
        let limits = CgroupSettings {
            cpu_max: quota.and_then(|milli| crate::world::quota(milli).cpu_max),
            cpuset: pinned.map(CpuSet::first_n),
            memory_max: Some(Limit::At(Bytes::gib(30))),
            memory_soft: Some(Limit::At(Bytes::gib(5))),
            ..weight(w)
        };
        let program = move |now: Micros, view: Option<&View>| {
            let (threads, gib) = phases[(now.get() / 240_000).min(2) as usize];
            let shown = view.map_or(Bytes::ZERO, |view| view.memory);
            ProgramDemand { threads, memory: Bytes::gib(gib).min(shown) }
        };
        world.container(parent, limits, Box::new(program));
    }
    world.run(30);
    world
}

fn all_views(views: &ViewTable) -> BTreeMap<CgroupId, View> {
    views.containers().map(|(id, _, view)| (id, *view)).collect()
}

fn decisions(policy: ViewRules, events: &[HostEvent]) -> Vec<ViewChange> {
    let mut views = ViewTable::new(policy);
    events.iter().flat_map(|event| views.apply(event)).collect()
}

fn sorted(mut changes: Vec<ViewChange>) -> Vec<String> {
    changes.sort_by_key(|change| (change.at, change.id));
    changes.iter().map(|change| format!("{change:?}")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn bounds_hold_after_every_event(policy in policy(), events in vec(hostile_event(), 0..40)) {
        let mut views = ViewTable::new(policy);
        let mut mem_total = Bytes::ZERO;
        for event in &events {
            views.apply(event);
            if let HostEvent::Node(node) = event && !node.online.is_empty() {
                mem_total = node.mem_total;
            }
            for (_, _, view) in views.containers() {
                prop_assert!(1 <= view.cpus_lower && view.cpus_lower <= view.cpus && view.cpus <= view.cpus_upper);
                let present = view.present;
                prop_assert_eq!((view.online.count(), present.count()), (view.cpus, view.cpus_upper));
                prop_assert_eq!(view.online, present.lowest(view.cpus), "no gap that the cpuset has not");
                prop_assert!(Millicpu::ZERO < view.millicpu && view.millicpu <= Millicpu::cpus(view.cpus.into()));
                prop_assert!(view.memory_soft <= view.memory && view.memory <= view.memory_hard);
                prop_assert!(view.memory_hard <= mem_total);
            }
        }
    }

    #[test]
    fn no_cpu_that_a_container_may_run_on_is_above_the_last_possible_one(
        policy in policy(), events in vec(hostile_event(), 0..40)
    ) {
        let mut views = ViewTable::new(policy);
        for event in &events {
            views.apply(event);
            for (id, _, view) in views.containers() {
                let may_run_on = views.explain(id).unwrap().inputs.cpuset;
                prop_assert!(view.present.difference(&may_run_on).is_empty());
                prop_assert_eq!(view.possible.count(), may_run_on.iter().last().unwrap() + 1);
                prop_assert_eq!(view.possible.iter().last(), may_run_on.iter().last());
            }
        }
    }

    #[test]
    fn no_event_whatever_its_numbers_can_panic(policy in policy(), events in vec(hostile_event(), 0..60)) {
        let mut views = ViewTable::new(policy);
        for event in &events {
            let text = serde_json::to_string(event).unwrap();
            let event: HostEvent = serde_json::from_str(&text).unwrap();
            for change in views.apply(&event) {
                let _ = change.to_string();
            }
            for id in (0..8).map(CgroupId) {
                prop_assert_eq!(views.get(id).is_some(), views.explain(id).is_some());
                let _ = views.explain(id).map(|explain| explain.to_string());
            }
        }
    }

    #[test]
    fn events_and_changes_survive_json(policy in policy(), events in vec(hostile_event(), 0..20)) {
        for event in &events {
            let text = serde_json::to_string(event).unwrap();
            prop_assert_eq!(&serde_json::from_str::<HostEvent>(&text).unwrap(), event);
        }
        for change in decisions(policy, &events) {
            let text = serde_json::to_string(&change).unwrap();
            prop_assert_eq!(serde_json::from_str::<ViewChange>(&text).unwrap(), change);
        }
    }

    #[test]
    fn changes_tell_the_whole_story(policy in policy(), events in vec(hostile_event(), 0..40)) {
        let mut views = ViewTable::new(policy);
        let mut told: BTreeMap<CgroupId, (Millicpu, Bytes)> = BTreeMap::new();
        for event in &events {
            for change in views.apply(event) {
                let amounts = told.entry(change.id).or_default();
                match change.what {
                    ViewDelta::Cpu { from, to } => prop_assert_eq!(std::mem::replace(&mut amounts.0, to), from),
                    ViewDelta::Memory { from, to } => prop_assert_eq!(std::mem::replace(&mut amounts.1, to), from),
                }
            }
            let shown: BTreeMap<_, _> =
                views.containers().map(|(id, _, view)| (id, (view.millicpu, view.memory))).collect();
            told.retain(|_, amounts| *amounts != Default::default());
            prop_assert_eq!(&shown, &told);
        }
    }

    #[test]
    fn settings_taken_at_once_end_where_settings_taken_in_turn_end(
        policy in policy(), events in vec(hostile_event().prop_filter("settings", |e| !matches!(e, HostEvent::Tick(_))), 0..20)
    ) {
        let (mut at_once, mut in_turn) = (ViewTable::new(policy), ViewTable::new(policy));
        at_once.apply_all(&events);
        events.iter().for_each(|event| drop(in_turn.apply(event)));
        prop_assert_eq!(all_views(&at_once), all_views(&in_turn));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn the_same_events_give_the_same_decisions(policy in policy(), specs in specs()) {
        let world = live_through(policy, &specs);
        let text = serde_json::to_string(&world.events).unwrap();
        let replayed: Vec<HostEvent> = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(decisions(policy, &replayed), decisions(policy, &world.events));
        let mut views = ViewTable::new(policy);
        views.apply_all(&replayed);
        prop_assert_eq!(all_views(&views), all_views(&world.views));
    }

    #[test]
    fn the_order_in_which_containers_appear_is_irrelevant(policy in policy(), specs in specs()) {
        let mut events = live_through(policy, &specs).events;
        let forwards = ViewTable::new(policy).apply_all(&events);
        let first_tick = events.iter().position(|event| matches!(event, HostEvent::Tick(_))).unwrap();
        events[..first_tick].reverse();
        for event in &mut events {
            if let HostEvent::Tick(tick) = event {
                tick.usage.reverse();
            }
        }
        prop_assert_eq!(sorted(ViewTable::new(policy).apply_all(&events)), sorted(forwards));
    }

    #[test]
    fn looking_only_at_the_active_decides_like_looking_at_all(policy in policy(), specs in specs()) {
        let events = live_through(policy, &specs).events;
        let mut known: BTreeMap<CgroupId, Usage> = BTreeMap::new();
        let mut all = ViewTable::new(policy);
        let mut active = ViewTable::new(policy);
        for event in events {
            let mut everybody = event.clone();
            if let HostEvent::Tick(tick) = &mut everybody {
                known.extend(tick.usage.iter().copied());
                tick.usage = known.iter().map(|(id, usage)| (*id, *usage)).collect();
            }
            prop_assert_eq!(sorted(active.apply(&event)), sorted(all.apply(&everybody)));
        }
        prop_assert_eq!(all_views(&active), all_views(&all));
    }

    #[test]
    fn the_papers_views_are_its_two_steps_applied_to_all_containers(specs in specs()) {
        let policy = ViewRules::paper();
        let mut views = ViewTable::new(policy);
        let mut machine = NodeProperties::default();
        let mut last: Option<Tick> = None;
        let mut known: BTreeMap<CgroupId, Usage> = BTreeMap::new();
        for event in live_through(policy, &specs).events {
            let before = all_views(&views);
            views.apply(&event);
            match &event {
                HostEvent::Node(node) => machine = node.clone(),
                HostEvent::Tick(tick) => {
                    let was = known.clone();
                    known.extend(tick.usage.iter().copied());
                    let Some(last) = last.replace(tick.clone()) else { continue };
                    let period = tick.now.saturating_sub(last.now);
                    let capacity = Micros(period.get() * u64::from(machine.online.count()));
                    let busy = tick.busy.saturating_sub(last.busy);
                    let slack = cpu::Slack { unused: capacity.saturating_sub(busy), capacity };
                    for (id, view) in before {
                        let (usage, usage_before) = (known[&id], was[&id]);
                        let bounds = cpu::CpuBounds { lower: view.cpus_lower, upper: view.cpus_upper };
                        let used = usage.cpu.saturating_sub(usage_before.cpu);
                        let e = cpu::step(view.cpus, bounds, used, period, slack, &policy);
                        prop_assert_eq!(views.get(id).unwrap().cpus, e);

                        let bounds = memory::MemoryBounds { soft: view.memory_soft, hard: view.memory_hard };
                        let sight = memory::MemorySamplePair {
                            usage: usage.memory,
                            usage_before: usage_before.memory,
                            free: tick.mem_free,
                            free_before: last.mem_free,
                        };
                        let e = match memory::step(view.memory, bounds, &sight, &machine, &policy) {
                            memory::MemoryStep::Hold => view.memory,
                            memory::MemoryStep::Grow { by, .. } => view.memory.saturating_add(by),
                            memory::MemoryStep::Reset => view.memory_soft,
                        };
                        prop_assert_eq!(views.get(id).unwrap().memory, e);
                    }
                }
                _ => {}
            }
        }
    }

    #[test]
    fn an_idle_container_never_gets_more(policy in policy(), specs in specs()) {
        let policy = ViewRules { idle_siblings: false, ..policy };
        let mut world = World::new(policy, 8, Bytes::gib(64));
        let knob = Knob::new(8);
        let idle = world.container(None, weight(100), knob.follower());
        world.run(10);
        knob.turn(0);
        for (w, _, _, phases) in specs {
            world.container(None, weight(w), Knob::new(phases[0].0).program());
        }
        world.run(1);
        let mut cpus = world.view(idle).cpus;
        for _ in 0..20 {
            world.run(1);
            let now = world.view(idle).cpus;
            prop_assert!(now <= cpus);
            cpus = now;
        }
    }

    #[test]
    fn busy_waterfill_containers_add_up_to_no_more_than_the_machine(
        weights in vec(50u64..400, 1..8), modest in vec(0u32..3, 0..4)
    ) {
        let mut world = World::new(ViewRules { cpu: CpuRule::Waterfill, ..ViewRules::default() }, 16, Bytes::gib(64));
        let busy: Vec<CgroupId> =
            weights.iter().map(|w| world.container(None, weight(*w), Knob::new(64).program())).collect();
        for threads in modest {
            world.container(None, weight(100), Knob::new(threads).program());
        }
        world.run(3);
        for _ in 0..10 {
            world.run(1);
            let sum: u32 = world.cpus(&busy).iter().sum();
            prop_assert!(sum < 16 + busy.len() as u32, "{:?}", world.cpus(&busy));
        }
    }
}
