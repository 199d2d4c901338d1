//! A toy node and the views of its containers, side by side.
#![allow(unreachable_pub, reason = "tests use it")]

use elbowroom_sim::{GroupRole, NodeProgram, NodeSimulator, ProgramDemand};
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::{CgroupSettings, CpuMax, HostEvent, Tick, Usage};
use elbowroom_types::unit::{Bytes, CpuShare, Limit, Micros};
use elbowroom_view::rules::{View, ViewChange, ViewRules, ViewTable};
use std::cell::Cell;
use std::rc::Rc;

/// Both sides of the loop.
pub struct World {
    pub sim: NodeSimulator,
    pub views: ViewTable,
    /// Everything that happened, to replay it.
    pub events: Vec<HostEvent>,
}

impl World {
    pub fn new(policy: ViewRules, cpus: u32, memory: Bytes) -> Self {
        let sim = NodeSimulator::new(cpus, memory);
        let mut world = Self { views: ViewTable::new(policy), events: Vec::new(), sim };
        world.apply(world.sim.node());
        world
    }

    pub fn apply(&mut self, event: HostEvent) -> Vec<ViewChange> {
        let changes = self.views.apply(&event);
        self.events.push(event);
        changes
    }

    pub fn slice(&mut self, parent: Option<CgroupId>, name: &str, limits: CgroupSettings) -> CgroupId {
        let (id, event) = self.sim.add(parent, name, limits, GroupRole::Slice);
        self.apply(event);
        id
    }

    pub fn container(
        &mut self,
        parent: Option<CgroupId>,
        limits: CgroupSettings,
        program: NodeProgram,
    ) -> CgroupId {
        let name = format!("c{}", self.events.len());
        let (id, event) = self.sim.add(parent, &name, limits, GroupRole::Container(program));
        self.apply(event);
        id
    }

    pub fn remove(&mut self, id: CgroupId) -> Vec<ViewChange> {
        let event = self.sim.remove(id);
        self.apply(event)
    }

    pub fn run(&mut self, ticks: u32) -> Vec<ViewChange> {
        (0..ticks)
            .flat_map(|_| {
                let tick = self.sim.tick(&self.views, Micros::millis(24));
                self.apply(tick)
            })
            .collect()
    }

    pub fn view(&self, id: CgroupId) -> &View {
        self.views.get(id).expect("the container has a view")
    }

    pub fn cpus(&self, ids: &[CgroupId]) -> Vec<u32> {
        ids.iter().map(|id| self.view(*id).cpus).collect()
    }

    /// How many ticks until `done`, at most 1000.
    pub fn ticks_until(&mut self, done: impl Fn(&Self) -> bool) -> u32 {
        (0..1_000)
            .find(|_| {
                let reached = done(self);
                if !reached {
                    self.run(1);
                }
                reached
            })
            .expect("it settles")
    }
}

/// A number of threads that a test turns up and down.
#[derive(Clone, Default)]
pub struct Knob(Rc<Cell<u32>>);

impl Knob {
    pub fn new(threads: u32) -> Self {
        Self(Rc::new(Cell::new(threads)))
    }

    pub fn turn(&self, threads: u32) {
        self.0.set(threads);
    }

    /// Runs a thread on each CPU it is shown, but no more than the knob says.
    pub fn follower(&self) -> NodeProgram {
        let knob = self.0.clone();
        Box::new(move |_, view| ProgramDemand::threads(view.map_or(1, |view| view.cpus).min(knob.get())))
    }

    /// Runs as many threads as the knob says, whatever it is shown.
    pub fn program(&self) -> NodeProgram {
        let knob = self.0.clone();
        Box::new(move |_, _| ProgramDemand::threads(knob.get()))
    }
}

/// Runs `n` threads, whatever it is shown.
pub fn threads(n: u32) -> NodeProgram {
    Knob::new(n).program()
}

/// Runs a thread on each CPU it is shown.
pub fn a_thread_per_cpu() -> NodeProgram {
    Knob::new(u32::MAX).follower()
}

pub fn weight(n: u64) -> CgroupSettings {
    CgroupSettings { cpu_share: Some(CpuShare::Weight(n)), ..CgroupSettings::default() }
}

/// A weight of 100 and a quota in thousandths of a CPU.
pub fn quota(milli: u64) -> CgroupSettings {
    let max = CpuMax { quota: Limit::At(Micros(milli * 100)), period: Micros::millis(100) };
    CgroupSettings { cpu_max: Some(max), ..weight(100) }
}

pub fn cpuset(list: &str) -> CgroupSettings {
    CgroupSettings { cpuset: Some(list.parse().expect("a CPU list")), ..weight(100) }
}

/// The views of containers with these limits, and identities from 1, on a machine of 8 CPUs: for ticks made by hand.
pub fn by_hand(policy: ViewRules, limits: &[CgroupSettings]) -> ViewTable {
    let mut world = World::new(policy, 8, Bytes::gib(64));
    for limits in limits {
        world.container(None, *limits, threads(0));
    }
    world.views
}

/// The `n`th tick, 24 ms each: the machine's CPU time, and per container its identity, CPU time and throttled time, all in
/// microseconds since boot.
pub fn tick(n: u64, busy: u64, used: &[(u64, u64, u64)]) -> HostEvent {
    let usage = |(id, cpu, throttled): &(u64, u64, u64)| {
        let throttled = Some(Micros(*throttled));
        (CgroupId(*id), Usage { cpu: Micros(*cpu), throttled, ..Usage::default() })
    };
    HostEvent::Tick(Tick {
        now: Micros(n * 24_000),
        busy: Micros(busy),
        mem_free: Bytes::gib(32),
        usage: used.iter().map(usage).collect(),
        ..Tick::default()
    })
}
