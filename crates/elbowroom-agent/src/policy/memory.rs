//! The memory governor at work: decisions of [`MemoryGovernor`] become protection, reclaim, alerts and smaller views.
//!
//! Everything here runs on the policy loop's thread and waits for nothing. The limiter does the writes. Their outcome comes back as
//! [`HostEvent::MemoryDone`] and goes through the governor like every other event.

use super::limiter::Limiter;
use crate::config::AgentConfig;
use anyhow::Result;
use elbowroom_client::api::{AlertView, ContainerMemory, ContainerRef, MemoryGovernorStats, MemoryReport};
use elbowroom_govern::GovernorMode;
use elbowroom_govern::memory::{ContainerMemoryStatus, MemoryGovernor, PressureNotices};
use elbowroom_linux::cgroup::CgroupLayout;
use elbowroom_linux::memory::MemoryReader;
use elbowroom_linux::root::Root;
use elbowroom_linux::timer;
use elbowroom_types::alert::Alert;
use elbowroom_types::id::CgroupId;
use elbowroom_types::memory::{
    GroupMemory, MemoryOrder, MemoryTick, NodeMemory, OrderCompletion, OrderOutcome, ViewCeiling,
};
use elbowroom_types::probe::Colour;
use elbowroom_types::sample::{CgroupProperties, HostEvent, Usage};
use elbowroom_types::unit::{Bytes, Micros};
use elbowroom_types::verdict::Verdict;
use std::collections::BTreeMap;
use std::path::Path;

/// How many groups are read in one of the policy loop's ticks, a dozen small files each: views are not to be late for it.
const GROUPS_PER_TICK: usize = 40;

/// How long a reading of a group counts while the group uses no CPU time and its charge stays: only the kernel can change it then. On a
/// dense host most groups are like that at any time.
const READING_TTL: Micros = Micros::secs(5);
/// The same while nothing on the machine waits for memory.
const UNPRESSED_READING_TTL: Micros = Micros::secs(30);

/// What the policy loop has to do.
pub(super) enum MemoryEffect {
    /// Have an order for the cgroup of this path carried out.
    Order(MemoryOrder, String),
    /// Tell the views how much of its memory a container should want.
    ViewCeiling(ViewCeiling),
    /// Ask the programs in a container for memory.
    NotifyPressure(CgroupId),
    /// Tell the operator.
    Warn(Alert),
}

/// What was read of one group.
struct GroupReading {
    at: Micros,
    used: Usage,
    memory: GroupMemory,
    /// How long anything on the machine had waited for memory by then.
    stalled: Option<Micros>,
}

/// The governor and its eyes.
pub(super) struct MemoryEnforcer {
    memory: MemoryGovernor,
    mode: GovernorMode,
    /// Present when orders are carried out.
    limiter: Option<Limiter>,
    /// Why they are not, though they should be.
    not_enforced: Option<String>,
    reader: MemoryReader,
    measure_at: Micros,
    /// A measurement that is not complete: the machine, what is still to be read, what was, and what that took.
    node: NodeMemory,
    to_read: Vec<CgroupId>,
    readings: Vec<(CgroupId, GroupMemory)>,
    measure_cost: Micros,
    /// What groups have used, as the sensor saw it last.
    used: BTreeMap<CgroupId, Usage>,
    /// What was read of each group last, and what it had used then.
    cached: BTreeMap<CgroupId, GroupReading>,
    containers: BTreeMap<CgroupId, ContainerRef>,
    paths: BTreeMap<CgroupId, String>,
    notices: PressureNotices,
    status: MemoryGovernorStats,
}

impl MemoryEnforcer {
    /// Starts what the configuration asks for. Logs what this host lacks, and goes on without it.
    pub(super) fn open(config: &AgentConfig, limiter: Option<Limiter>) -> Result<Self> {
        let mode = config.memory.mode;
        let root = Root::at(Path::new("/"))?;
        let layout = CgroupLayout::detect(&root)?;
        let limiter = limiter.filter(|_| mode == GovernorMode::Enforce);
        let not_enforced = (mode == GovernorMode::Enforce && limiter.is_none())
            .then(|| "leases cannot be had: see the log of the agent's start".to_owned());
        if let Some(why) = &not_enforced {
            tracing::warn!(because = why, "memory is only watched, not moved");
        }
        tracing::info!(mode = ?mode, period = %config.memory.period, "governing memory");
        Ok(Self {
            memory: MemoryGovernor::new(config.memory.clone(), config.claims.clone()),
            mode,
            limiter,
            not_enforced,
            reader: MemoryReader::new(root, layout),
            measure_at: Micros::ZERO,
            node: NodeMemory::default(),
            to_read: Vec::new(),
            readings: Vec::new(),
            measure_cost: Micros::ZERO,
            used: BTreeMap::new(),
            cached: BTreeMap::new(),
            containers: BTreeMap::new(),
            paths: BTreeMap::new(),
            notices: PressureNotices::default(),
            status: MemoryGovernorStats::default(),
        })
    }

    /// Whether anything is decided, carried out or not.
    pub(super) fn is_on(&self) -> bool {
        self.mode != GovernorMode::Off
    }

    /// Lets the governor know, and does what it says.
    pub(super) fn apply(&mut self, event: &HostEvent) -> Vec<MemoryEffect> {
        if self.mode == GovernorMode::Off {
            return Vec::new();
        }
        match event {
            HostEvent::Group(group) => self.add_container(group),
            HostEvent::Gone(id) => {
                self.containers.remove(id);
                self.paths.remove(id);
                self.used.remove(id);
                self.cached.remove(id);
                self.reader.forget(*id);
                self.notices.forget(*id);
            }
            HostEvent::Tick(tick) => self.used.extend(tick.usage.iter().copied()),
            _ => {}
        }
        let begin = matches!(event, HostEvent::MemoryTick(_)).then(timer::now);
        let orders = self.memory.apply(event);
        let mut effects: Vec<MemoryEffect> =
            orders.into_iter().flat_map(|order| self.execute(order)).collect();
        if let (HostEvent::MemoryTick(tick), Some(begin)) = (event, begin) {
            let pressed = self.memory.stalled_containers().filter_map(|id| self.notices.notify(id, tick.now));
            effects.extend(pressed.map(MemoryEffect::NotifyPressure));
            let above =
                self.memory.above_view_ceiling().filter_map(|id| self.notices.notify_again(id, tick.now));
            effects.extend(above.map(MemoryEffect::NotifyPressure));
            self.status.decide_usec = timer::now().saturating_sub(begin).get();
        }
        effects
    }

    /// Measures, where that is due; a large host in several goes, of which the last gives the event.
    pub(super) fn measure(&mut self, now: Micros) -> Option<HostEvent> {
        if self.mode == GovernorMode::Off || now < self.measure_at {
            return None;
        }
        let begin = timer::now();
        if self.to_read.is_empty() {
            self.to_read = self.memory.groups_to_measure();
            self.node = self.reader.node();
        }
        let mut read = 0;
        while read < GROUPS_PER_TICK
            && let Some(id) = self.to_read.pop()
        {
            if let Some(known) = self.cached_reading(id, begin) {
                self.readings.push((id, known));
            } else {
                read += 1;
                let memory = self.read_group(id, begin);
                self.readings.extend(memory.map(|memory| (id, memory)));
            }
        }
        self.measure_cost = self.measure_cost.saturating_add(timer::now().saturating_sub(begin));
        self.to_read.is_empty().then(|| self.finish_measurement(begin))
    }

    /// What was read of a group that has done nothing since.
    fn cached_reading(&self, id: CgroupId, now: Micros) -> Option<GroupMemory> {
        let known = self.cached.get(&id)?;
        let ttl = if known.stalled == self.node.stalled { UNPRESSED_READING_TTL } else { READING_TTL };
        let idle = self.used.get(&id) == Some(&known.used) && now < known.at.saturating_add(ttl);
        idle.then_some(known.memory)
    }

    fn read_group(&mut self, id: CgroupId, at: Micros) -> Option<GroupMemory> {
        let mut memory = self.reader.group(id, self.paths.get(&id)?, self.node.swap_free)?;
        if let Some(used) = self.used.get(&id).copied() {
            memory.cpu = used.known_cpu();
            self.cached.insert(id, GroupReading { at, used, memory, stalled: self.node.stalled });
        }
        Some(memory)
    }

    /// Takes an answer of the limiter; the governor hears of it as [`HostEvent::MemoryDone`].
    pub(super) fn on_limiter_reply(&mut self, done: &OrderCompletion) {
        match done.outcome {
            OrderOutcome::Done | OrderOutcome::Partly => self.status.done += 1,
            OrderOutcome::Foreign | OrderOutcome::Refused(_) | OrderOutcome::Gone | OrderOutcome::Late => {
                self.status.not_done += 1;
            }
        }
        self.status.reclaimed_bytes = self.status.reclaimed_bytes.saturating_add(done.reclaimed.get());
        tracing::debug!(
            container = self.paths.get(&done.group), what = ?done.what, outcome = ?done.outcome,
            reclaimed = %done.reclaimed, "order about memory answered"
        );
        self.cached.remove(&done.group);
    }

    /// Has an order carried out.
    pub(super) fn send(&self, order: MemoryOrder, path: String) {
        if let Some(limiter) = &self.limiter {
            limiter.memory(order, path);
        }
    }

    /// Where a container stands; `history` decides whether decisions are in it.
    pub(super) fn container_status(&self, group: CgroupId, history: bool) -> Option<ContainerMemoryStatus> {
        let mut status = self.memory.status(group)?;
        if !history {
            status.decisions.clear();
        }
        Some(status)
    }

    /// What a container uses and its entitlement, where the memory around it is short, a neighbour needs some, and it does not.
    pub(super) fn over_entitlement(&self, group: CgroupId, path: &str) -> Option<(Bytes, Bytes)> {
        self.memory.pools().iter().find(|pool| pool.holds(path) && pool.short && pool.needing_more > 0)?;
        let status = self.memory.status(group).filter(|status| status.colour != Colour::Red)?;
        Some((status.usage, status.entitlement))
    }

    /// Answer to `ControlRequest::Memory`.
    pub(super) fn report(
        &self,
        name: impl Fn(Alert) -> AlertView,
        verdict: impl Fn(CgroupId) -> Verdict,
    ) -> MemoryReport {
        let one = |(id, container): (&CgroupId, &ContainerRef)| {
            Some(ContainerMemory {
                container: container.clone(),
                status: self.container_status(*id, false)?,
                verdict: verdict(*id),
            })
        };
        let mut report = MemoryReport {
            mode: self.mode,
            not_enforced: self.not_enforced.clone(),
            pools: self.memory.pools().to_vec(),
            containers: self.containers.iter().filter_map(one).collect(),
            alerts: self.memory.alerts().into_iter().map(name).collect(),
        };
        report.count_needers();
        report
    }

    /// Counters for `ControlRequest::Status`.
    pub(super) fn status(&self) -> MemoryGovernorStats {
        self.status.clone()
    }

    fn finish_measurement(&mut self, now: Micros) -> HostEvent {
        self.status.ticks += 1;
        self.status.tick_usec = std::mem::take(&mut self.measure_cost).get();
        let period = self.memory.settings().period;
        let next = self.measure_at.saturating_add(period);
        // The next full period: what was missed is not made up for.
        self.measure_at = if next > now { next } else { now.saturating_add(period) };
        HostEvent::MemoryTick(MemoryTick { now, node: self.node, groups: std::mem::take(&mut self.readings) })
    }

    fn add_container(&mut self, group: &CgroupProperties) {
        self.paths.insert(group.id, group.path.clone());
        if let Some(container) = &group.container {
            let named = ContainerRef {
                id: container.id.clone(),
                name: container.name.clone(),
                path: group.path.clone(),
            };
            self.containers.insert(group.id, named);
        } else {
            self.containers.remove(&group.id);
        }
    }

    fn execute(&mut self, order: MemoryOrder) -> Vec<MemoryEffect> {
        // A governor that only watches changes nothing that a program sees.
        let asked = self
            .limiter
            .as_ref()
            .and_then(|_| self.notices.on_order(&order))
            .map(MemoryEffect::NotifyPressure);
        let group = match &order {
            MemoryOrder::Alert(alert) => return vec![MemoryEffect::Warn(alert.clone())],
            MemoryOrder::ViewCeiling(view_ceiling) => {
                // First what is asked for can be read.
                let shown = self.limiter.is_some().then_some(MemoryEffect::ViewCeiling(*view_ceiling));
                return shown.into_iter().chain(asked).collect();
            }
            MemoryOrder::Protect(protect) => protect.group,
            MemoryOrder::Reclaim(reclaim) => reclaim.group,
        };
        let Some(path) = self.paths.get(&group).cloned() else { return Vec::new() };
        tracing::debug!(container = path, ?order, "decided about memory");
        let order = self.limiter.is_some().then_some(MemoryEffect::Order(order, path));
        order.into_iter().chain(asked).collect()
    }
}
