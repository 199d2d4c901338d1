//! A toy node: containers that want CPUs and memory, a scheduler that is fair by weight, a kernel that reclaims.
//!
//! # Problem
//! The view algorithms form a loop with what they steer: a view decides how many threads a program starts, the threads
//! decide which containers are busy and what CPU time is unused, and that decides the view. Properties of the loop cannot
//! be seen on one step.
//!
//! # Approach
//! Time goes in slices of a millisecond. In each, every CPU in turn picks, from the top of the cgroup tree down, the runnable
//! group that had the least CPU time for its weight. Quotas are refilled every period of theirs. Memory follows what
//! programs want, up to their hard limits, and is taken back from groups above their soft limits when the machine runs
//! low. What a sensor would see of this comes out as [`HostEvent`]s; programs see the [`View`]s that follow from them.
//!
//! # Terminology
//! A *want* is what a program would use if nothing stopped it, which may depend on its view.
//!
//! # Properties
//! - `no_container_gets_cpu_time_that_was_not_there`
//! - `busy_groups_divide_a_full_machine_by_weight`
//! - `a_full_machine_has_no_slack`

use crate::scheduler::{CpuScheduler, SchedEntity};
use elbowroom_types::container::{ContainerEngine, ContainerIdentity};
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::id::CgroupId;
use elbowroom_types::label::ContainerLabels;
use elbowroom_types::sample::{CgroupProperties, CgroupSettings, HostEvent, NodeProperties, Tick, Usage};
use elbowroom_types::unit::{Bytes, Limit, Micros};
use elbowroom_view::rules::{View, ViewChange, ViewTable};
use std::fmt;

/// What a program would use now if nothing stopped it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramDemand {
    /// Threads that are ready to run.
    pub threads: u32,
    /// Memory it would hold.
    pub memory: Bytes,
}

impl ProgramDemand {
    /// Threads and no memory.
    pub const fn threads(threads: u32) -> Self {
        Self { threads, memory: Bytes::ZERO }
    }
}

/// A program: what it wants at a time, given its view; `None` for a program that is not a container, or has no view yet.
pub type NodeProgram = Box<dyn FnMut(Micros, Option<&View>) -> ProgramDemand>;

/// What a new group is.
pub enum GroupRole {
    /// An inner cgroup.
    Slice,
    /// Something of the host that competes with containers.
    Service(NodeProgram),
    /// A container.
    Container(NodeProgram),
}

/// A node with its groups.
pub struct NodeSimulator {
    node: NodeProperties,
    now: Micros,
    next_id: u64,
    groups: Vec<SimulatedGroup>,
    runner: CpuScheduler,
    /// Memory the kernel itself holds.
    kernel: Bytes,
}

/// One group of the toy node.
pub(crate) struct SimulatedGroup {
    pub(crate) group: CgroupProperties,
    pub(crate) program: Option<NodeProgram>,
    pub(crate) demand: ProgramDemand,
    pub(crate) usage: Usage,
    pub(crate) reported: Option<Usage>,
    pub(crate) sched: SchedEntity,
}

impl NodeSimulator {
    /// A machine with this many CPUs and this much memory, of which the kernel holds 1/64 and keeps 1/512 free.
    pub fn new(cpus: u32, memory: Bytes) -> Self {
        let part = |n: u64| Bytes(memory.get() / n);
        let node = NodeProperties {
            online: CpuSet::first_n(cpus),
            mem_total: memory,
            low_mark: part(512),
            high_mark: part(400),
            page_size: Bytes::kib(4),
            numa: Vec::new(),
        };
        Self {
            node,
            now: Micros::ZERO,
            next_id: 1,
            groups: Vec::new(),
            runner: CpuScheduler::default(),
            kernel: part(64),
        }
    }

    /// The machine as an event.
    pub fn node(&self) -> HostEvent {
        HostEvent::Node(self.node.clone())
    }

    /// A group, as an event. Its identity is [`HostEvent::Group`]'s; groups get theirs in sequence.
    pub fn add(
        &mut self,
        parent: Option<CgroupId>,
        name: &str,
        limits: CgroupSettings,
        role: GroupRole,
    ) -> (CgroupId, HostEvent) {
        let id = CgroupId(self.next_id);
        self.next_id += 1;
        let above = parent.and_then(|id| self.groups.iter().find(|cell| cell.group.id == id));
        let path = format!("{}/{name}", above.map_or("", |cell| cell.group.path.trim_end_matches('/')));
        let container = matches!(role, GroupRole::Container(_)).then(|| ContainerIdentity {
            id: path.clone(),
            name: Some(name.to_owned()),
            engine: ContainerEngine::Plain,
            pod: None,
            labels: ContainerLabels::default(),
        });
        let program = match role {
            GroupRole::Slice => None,
            GroupRole::Service(program) | GroupRole::Container(program) => Some(program),
        };
        let group =
            CgroupProperties { id, parent, path, container, limits, populated: true, made_by_user: false };
        self.groups.push(SimulatedGroup {
            group: group.clone(),
            program,
            demand: ProgramDemand::default(),
            usage: Usage::default(),
            reported: None,
            sched: SchedEntity::default(),
        });
        (id, HostEvent::Group(group))
    }

    /// Takes a group without children out, as an event.
    pub fn remove(&mut self, id: CgroupId) -> HostEvent {
        self.groups.retain(|cell| cell.group.id != id);
        HostEvent::Gone(id)
    }

    /// What a group has used so far.
    pub fn usage(&self, id: CgroupId) -> Option<Usage> {
        Some(self.groups.iter().find(|cell| cell.group.id == id)?.usage)
    }

    /// Lets one period go by: programs look at `views`, want, run, and are measured. The tick names those that changed.
    pub fn tick(&mut self, views: &ViewTable, period: Micros) -> HostEvent {
        for cell in &mut self.groups {
            if let Some(program) = &mut cell.program {
                cell.demand = program(self.now, views.get(cell.group.id));
            }
        }
        self.runner.run(&mut self.groups, &self.node.online, self.now, period);
        self.now = self.now.saturating_add(period);
        self.move_memory();
        let mut usage = Vec::new();
        for cell in &mut self.groups {
            if cell.reported != Some(cell.usage) {
                cell.reported = Some(cell.usage);
                usage.push((cell.group.id, cell.usage));
            }
        }
        HostEvent::Tick(Tick {
            now: self.now,
            busy: self.runner.busy.iter().copied().sum(),
            busy_per_cpu: self.runner.busy.clone(),
            mem_free: self.free(),
            mem_available: None,
            reclaim: None,
            usage,
        })
    }

    /// Lets `ticks` periods of 24 ms go by; what changed in them.
    pub fn run(&mut self, views: &mut ViewTable, ticks: u32) -> Vec<ViewChange> {
        (0..ticks)
            .flat_map(|_| {
                let tick = self.tick(views, Micros::millis(24));
                views.apply(&tick)
            })
            .collect()
    }

    fn free(&self) -> Bytes {
        let held: Bytes = self.groups.iter().map(|cell| cell.usage.memory).sum();
        self.node.mem_total.saturating_sub(self.kernel).saturating_sub(held)
    }

    /// Where the last period ended below the low mark, the kernel takes back what groups hold above their soft limits, in
    /// equal parts of it, until the high mark is free. Then programs get the memory they want, up to their hard limits and
    /// to what is free.
    fn move_memory(&mut self) {
        if self.free() <= self.node.low_mark {
            self.reclaim();
        }
        for i in 0..self.groups.len() {
            let free = self.free();
            let cell = &mut self.groups[i];
            let hard = cell.group.limits.memory_max.unwrap_or(Limit::Max);
            let most = hard.or(cell.usage.memory.saturating_add(free));
            cell.usage.memory = cell.demand.memory.min(most);
        }
    }

    fn reclaim(&mut self) {
        let excess = |cell: &SimulatedGroup| {
            let soft = cell.group.limits.memory_soft.or(cell.group.limits.memory_low).and_then(Limit::value);
            cell.usage.memory.saturating_sub(soft.unwrap_or(Bytes::ZERO))
        };
        let missing = self.node.high_mark.saturating_sub(self.free());
        let all: Bytes = self.groups.iter().map(excess).sum();
        for cell in &mut self.groups {
            let part =
                u128::from(missing.get()) * u128::from(excess(cell).get()) / u128::from(all.get().max(1));
            cell.usage.memory = cell.usage.memory.saturating_sub(Bytes(part as u64));
        }
    }
}

impl fmt::Debug for NodeSimulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = self.groups.iter().map(|cell| (&cell.group.path, cell.demand, cell.usage));
        f.debug_struct("Sim").field("now", &self.now).field("groups", &groups.collect::<Vec<_>>()).finish()
    }
}
