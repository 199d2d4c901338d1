//! The machine at work.

use super::kernel::{ReclaimTarget, reclaim};
use super::peers;
use super::program::MemoryTenant;
use super::scenario::{MemcgVersion, MemoryPolicy, MemoryScenario};
use crate::disk::SplitMix64;
use elbowroom_types::container::{ContainerEngine, ContainerIdentity};
use elbowroom_types::id::CgroupId;
use elbowroom_types::label::ContainerLabels;
use elbowroom_types::memory::{
    GroupMemory, MemoryOrder, MemoryTick, NodeMemory, OrderCompletion, OrderKind, OrderOutcome, ProbeUpdate,
    ReclaimProtection, StallTotals,
};
use elbowroom_types::probe::Colour;
use elbowroom_types::sample::{CgroupProperties, CgroupSettings, HostEvent, NodeProperties};
use elbowroom_types::unit::{Bytes, Limit, Micros};

/// Slices of a second.
const SLICES: u32 = 4;
const SLICE_SECONDS: f64 = 1.0 / SLICES as f64;
/// How fast a program allocates what it needs of its own, and a heap grows or shrinks, per second.
const ALLOCATION_RATE: f64 = (400 << 20) as f64;
/// A probe's record counts for this long.
const TTL: Micros = Micros::secs(5);
/// The cgroup around all containers, where there is one; containers follow.
const POOL_GROUP: CgroupId = CgroupId(1);

/// The machine of a scenario.
#[derive(Debug)]
pub struct MemorySimulator<'a> {
    scenario: &'a MemoryScenario,
    rule: MemoryPolicy,
    random: SplitMix64,
    now: Micros,
    containers: Vec<SimMemoryContainer<'a>>,
    orders: Vec<MemoryOrder>,
    swapped: f64,
    node_stalled: f64,
}

/// A container at work; sizes in bytes, times in seconds.
#[derive(Debug)]
struct SimMemoryContainer<'a> {
    tenant: &'a MemoryTenant,
    anon: f64,
    cache: f64,
    swap: f64,
    /// How much of its data was ever in memory.
    ever_cached: f64,
    /// The part of its pages that was used lately.
    active: f64,
    /// The most it had since its last ambush, and until when that lasts.
    had: f64,
    ambush_until: Micros,
    running: bool,
    killed: bool,
    served: f64,
    offered: f64,
    refault: f64,
    rbytes: f64,
    memory_some: f64,
    memory_full: f64,
    io_some: f64,
    oom_kill: u64,
    protection: f64,
    view_ceiling: Limit<Bytes>,
    ours: bool,
}

/// What really happened in a second.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryTruth {
    /// When it ended.
    pub now: Micros,
    /// Memory that no container uses.
    pub free: f64,
    /// Each container.
    pub shares: Vec<ContainerMemoryTruth>,
}

/// What a container had and did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ContainerMemoryTruth {
    /// Which cgroup.
    pub group: CgroupId,
    /// Whether its program runs.
    pub running: bool,
    /// Memory charged to it.
    pub usage: f64,
    /// Requests served and offered per second.
    pub served: f64,
    /// What was asked.
    pub offered: f64,
    /// What should be served: the objective, or what was asked where that is less.
    pub due: f64,
    /// Whether the kernel killed it for memory.
    pub killed: bool,
}

impl ContainerMemoryTruth {
    /// Whether it served what it should.
    pub fn is_satisfied(&self) -> bool {
        self.served >= 0.97 * self.due
    }
}

impl<'a> MemorySimulator<'a> {
    /// The machine before anything happened.
    pub fn new(scenario: &'a MemoryScenario, rule: MemoryPolicy, seed: u64) -> Self {
        let cells = scenario.tenants.iter().map(SimMemoryContainer::new).collect();
        let random = SplitMix64::new(seed);
        Self {
            scenario,
            rule,
            random,
            now: Micros::ZERO,
            containers: cells,
            orders: Vec::new(),
            swapped: 0.0,
            node_stalled: 0.0,
        }
    }

    /// The machine and its containers, as events.
    pub fn start(&mut self) -> Vec<HostEvent> {
        let mark = |n: u64| Bytes(self.scenario.memory.get() / n);
        let node = NodeProperties {
            mem_total: self.scenario.memory,
            low_mark: mark(512),
            high_mark: mark(400),
            page_size: Bytes::kib(4),
            ..NodeProperties::default()
        };
        let mut events = vec![HostEvent::Node(node)];
        if let Some(around) = self.scenario.pool_limit {
            let limits = CgroupSettings { memory_max: Some(Limit::At(around)), ..CgroupSettings::default() };
            let (id, path) = (POOL_GROUP, "/pool".to_owned());
            events.push(HostEvent::Group(CgroupProperties {
                id,
                parent: None,
                path,
                container: None,
                limits,
                populated: true,
                made_by_user: false,
            }));
        }
        for i in 0..self.containers.len() {
            if self.rule == MemoryPolicy::Low {
                self.containers[i].protection = self.containers[i].tenant.low.get() as f64;
            }
            let max = self.max(i);
            let tenant = self.containers[i].tenant;
            let limits = CgroupSettings {
                memory_max: Some(max.map_or(Limit::Max, Limit::At)),
                ..CgroupSettings::default()
            };
            let container = ContainerIdentity {
                id: tenant.name.clone(),
                name: Some(tenant.name.clone()),
                engine: ContainerEngine::Docker,
                pod: None,
                labels: ContainerLabels::default(),
            };
            events.push(HostEvent::Group(CgroupProperties {
                id: id(i),
                parent: self.scenario.pool_limit.map(|_| POOL_GROUP),
                path: format!("/{}", tenant.name),
                container: Some(container),
                limits,
                populated: true,
                made_by_user: false,
            }));
        }
        events
    }

    /// Takes orders; they are carried out at the beginning of the next second.
    pub fn execute(&mut self, orders: Vec<MemoryOrder>) {
        self.orders.extend(orders);
    }

    /// Lets a second go by: what a sensor sees of it, the last event being the measurement.
    pub fn step(&mut self) -> (Vec<HostEvent>, MemoryTruth) {
        let mut events = self.execute_orders();
        self.apply_peer_policy();
        for _ in 0..SLICES {
            self.slice();
            self.now = self.now.saturating_add(Micros(1_000_000 / u64::from(SLICES)));
        }
        let silent = self.rule == MemoryPolicy::Silent;
        for (i, cell) in self.containers.iter().enumerate().filter(|(_, cell)| cell.running && !silent) {
            if let Some(report) =
                cell.tenant.probe.report(&cell.tenant.program, self.now, cell.served, cell.offered)
            {
                let (at, until) = (self.now, self.now.saturating_add(TTL));
                events.push(HostEvent::Probe(ProbeUpdate { at, until, group: id(i), report }));
            }
        }
        events.push(HostEvent::MemoryTick(self.measure()));
        (events, self.truth())
    }

    fn max(&self, i: usize) -> Option<Bytes> {
        let tenant = self.containers[i].tenant;
        tenant.max.value().filter(|_| tenant.keeps_max || self.rule == MemoryPolicy::Max)
    }

    fn free(&self) -> f64 {
        let used: f64 = self.containers.iter().map(SimMemoryContainer::usage).sum();
        let all = self.scenario.memory.get() as f64 - self.scenario.system.get() as f64;
        let pool = self.scenario.pool_limit.map_or(all, |around| (around.get() as f64).min(all));
        pool - used
    }

    /// What a kernel leaves alone.
    fn mark(&self) -> f64 {
        if self.scenario.pool_limit.is_some() { 0.0 } else { self.scenario.memory.get() as f64 / 450.0 }
    }

    fn execute_orders(&mut self) -> Vec<HostEvent> {
        let mut events = Vec::new();
        let (now, obeyed) = (self.now, self.scenario.enforced);
        let reclaims = self.scenario.reclaims;
        for order in std::mem::take(&mut self.orders) {
            let (group, what, outcome, reclaimed) = match order {
                MemoryOrder::Reclaim(reclaim) => {
                    let Some(cell) = self.cell(reclaim.group).filter(|_| obeyed) else { continue };
                    if !reclaims {
                        let outcome = OrderOutcome::Refused("no way to reclaim".into());
                        let (group, what) = (reclaim.group, OrderKind::Reclaim);
                        let reclaimed = Bytes::ZERO;
                        events.push(HostEvent::MemoryDone(OrderCompletion {
                            now,
                            group,
                            what,
                            outcome,
                            reclaimed,
                        }));
                        continue;
                    }
                    let above = (cell.usage() - reclaim.keep.get() as f64).max(0.0);
                    let amount = above.min(reclaim.amount.get() as f64);
                    let taken = cell.take(amount);
                    let partly = taken + 1.0 < amount;
                    let outcome = if partly { OrderOutcome::Partly } else { OrderOutcome::Done };
                    (reclaim.group, OrderKind::Reclaim, outcome, Bytes(taken as u64))
                }
                MemoryOrder::Protect(protect) if obeyed => {
                    (protect.group, OrderKind::Protect, self.protect(&protect), Bytes::ZERO)
                }
                MemoryOrder::ViewCeiling(view_ceiling) if obeyed => {
                    if let Some(cell) = self.cell(view_ceiling.group) {
                        cell.view_ceiling = view_ceiling.ceiling;
                    }
                    continue;
                }
                MemoryOrder::Protect(_) | MemoryOrder::ViewCeiling(_) | MemoryOrder::Alert(_) => continue,
            };
            events.push(HostEvent::MemoryDone(OrderCompletion { now, group, what, outcome, reclaimed }));
        }
        events
    }

    fn protect(&mut self, protect: &ReclaimProtection) -> OrderOutcome {
        let foreign =
            self.scenario.foreign_write_at.is_some_and(|at| at <= self.now) && protect.group == id(0);
        let v1 = self.scenario.kernel == MemcgVersion::V1;
        let Some(cell) = self.cell(protect.group) else { return OrderOutcome::Gone };
        if foreign {
            return OrderOutcome::Foreign;
        }
        cell.protection =
            if v1 { protect.soft.value().unwrap_or_default() } else { protect.low }.get() as f64;
        cell.ours = true;
        OrderOutcome::Done
    }

    fn cell(&mut self, group: CgroupId) -> Option<&mut SimMemoryContainer<'a>> {
        self.containers.get_mut(usize::try_from(group.0).ok()?.checked_sub(2)?)
    }

    fn apply_peer_policy(&mut self) {
        let short = self.free() < 0.04 * self.scenario.memory.get() as f64;
        let colours: Vec<(Colour, f64)> =
            self.containers.iter().map(|cell| (cell.colour(), cell.usage())).collect();
        for (cell, amount) in self.containers.iter_mut().zip(peers::take(self.rule, short, &colours)) {
            cell.take(amount);
        }
    }

    fn slice(&mut self) {
        let mut grown = Vec::new();
        for i in 0..self.containers.len() {
            let max = self.max(i).map_or(f64::INFINITY, |max| max.get() as f64);
            let noise = self.random.noise(self.scenario.noise);
            grown.push(self.containers[i].run(self.now, max, noise));
        }
        let need = grown.iter().map(|(anon, cache)| anon + cache).sum::<f64>() + self.mark() - self.free();
        if need > 0.0 {
            self.reclaim(need);
        }
        // Programs' own memory first: what cannot be had is killed for.
        let swap = self.scenario.swap.get() as f64;
        for (i, (anon, _)) in grown.iter().enumerate() {
            let missing = anon - self.free().max(0.0);
            if missing > 0.0 && self.swapped + missing <= swap {
                self.swapped += missing;
                let largest = self.largest();
                let out = missing.min(self.containers[largest].anon);
                self.containers[largest].anon -= out;
                self.containers[largest].swap += out;
            } else if missing > 1.0 {
                let largest = self.largest();
                self.containers[largest].kill();
            }
            if self.containers[i].running {
                self.containers[i].anon += anon.min(self.free().max(0.0));
            }
        }
        for (i, (_, cache)) in grown.iter().enumerate() {
            let got = cache.min((self.free() - self.mark()).max(0.0));
            self.containers[i].cache += got;
        }
    }

    fn reclaim(&mut self, need: f64) {
        // The limit of an ancestor knows no soft limits.
        let blind = self.scenario.pool_limit.is_some() && self.scenario.kernel == MemcgVersion::V1;
        let page = |cell: &SimMemoryContainer<'_>| ReclaimTarget {
            usage: cell.usage(),
            cache: cell.cache,
            active: cell.active,
            protection: if blind { 0.0 } else { cell.protection },
        };
        let pages: Vec<ReclaimTarget> = self.containers.iter().map(page).collect();
        for (cell, taken) in self.containers.iter_mut().zip(reclaim(self.scenario.kernel, &pages, need)) {
            cell.take(taken);
        }
        self.node_stalled += 0.05 * SLICE_SECONDS;
    }

    fn largest(&self) -> usize {
        let anon = |i: &usize| self.containers[*i].anon;
        (0..self.containers.len()).max_by(|a, b| anon(a).total_cmp(&anon(b))).unwrap_or(0)
    }

    fn measure(&self) -> MemoryTick {
        let used: f64 = self.containers.iter().map(SimMemoryContainer::usage).sum();
        let cache: f64 = self.containers.iter().map(|cell| cell.cache).sum();
        let size = |x: f64| Bytes(x.max(0.0) as u64);
        let free = self.scenario.memory.get() as f64 - self.scenario.system.get() as f64 - used;
        let swap = (self.scenario.swap.get() as f64 - self.swapped).max(0.0);
        let node = NodeMemory {
            mem_free: size(free),
            mem_available: size(free + cache),
            swap_free: size(swap),
            swap_total: self.scenario.swap,
            stalled: self.scenario.stalls.then(|| time(self.node_stalled)),
        };
        let mut groups: Vec<(CgroupId, GroupMemory)> = Vec::new();
        if self.scenario.pool_limit.is_some() {
            groups.push((
                POOL_GROUP,
                GroupMemory { usage: size(used), populated: true, ..GroupMemory::default() },
            ));
        }
        let cells = self.containers.iter().enumerate();
        groups.extend(cells.map(|(i, cell)| (id(i), cell.sample(self.scenario.stalls, size(swap)))));
        MemoryTick { now: self.now, node, groups }
    }

    fn truth(&self) -> MemoryTruth {
        let share = |(i, cell): (usize, &SimMemoryContainer<'_>)| ContainerMemoryTruth {
            group: id(i),
            running: cell.running,
            usage: cell.usage(),
            served: cell.served,
            offered: cell.offered,
            due: cell.offered.min(cell.tenant.program.objective),
            killed: cell.killed,
        };
        MemoryTruth {
            now: self.now,
            free: self.free(),
            shares: self.containers.iter().enumerate().map(share).collect(),
        }
    }
}

impl<'a> SimMemoryContainer<'a> {
    fn new(tenant: &'a MemoryTenant) -> Self {
        Self {
            tenant,
            anon: 0.0,
            cache: 0.0,
            swap: 0.0,
            ever_cached: 0.0,
            active: 0.0,
            had: 0.0,
            ambush_until: Micros::ZERO,
            running: true,
            killed: false,
            served: 0.0,
            offered: 0.0,
            refault: 0.0,
            rbytes: 0.0,
            memory_some: 0.0,
            memory_full: 0.0,
            io_some: 0.0,
            oom_kill: 0,
            protection: 0.0,
            view_ceiling: Limit::Max,
            ours: false,
        }
    }

    fn usage(&self) -> f64 {
        self.anon + self.cache
    }

    fn colour(&self) -> Colour {
        let due = self.offered.min(self.tenant.program.objective);
        match self.served {
            served if served < 0.97 * due => Colour::Red,
            served if served >= 0.97 * self.offered => Colour::Green,
            _ => Colour::Yellow,
        }
    }

    fn take(&mut self, amount: f64) -> f64 {
        let taken = amount.min(self.cache).max(0.0);
        self.cache -= taken;
        taken
    }

    fn kill(&mut self) {
        (self.anon, self.running, self.killed) = (0.0, false, true);
        self.oom_kill += 1;
    }

    /// Serves for a slice; how much memory of its own and of cache it would like to have more.
    fn run(&mut self, now: Micros, max: f64, noise: f64) -> (f64, f64) {
        let program = &self.tenant.program;
        self.running &= self.tenant.stops_at.is_none_or(|stops| now < stops);
        if !self.running {
            (self.anon, self.served, self.offered, self.active) = (0.0, 0.0, 0.0, 0.0);
            return (0.0, 0.0);
        }
        self.offered = program.offered(now);
        if program.ambush {
            self.lie_in_wait(now);
        }
        let hits = program.hits(self.cache);
        self.served = (program.peak(self.cache) * noise).min(self.offered);
        let touched = self.served * program.bytes_per_request.get() as f64 * SLICE_SECONDS;
        let missed = touched * (1.0 - hits);
        let data = program.data.get() as f64;
        let before = ((self.ever_cached - self.cache) / (data - self.cache).max(1.0)).clamp(0.0, 1.0);
        self.ever_cached = (self.ever_cached + missed * (1.0 - before)).min(data);
        self.rbytes += missed;
        self.refault += missed * before;
        let lately = (touched * 10.0 / SLICE_SECONDS / self.cache.max(1.0)).min(1.0);
        self.active += 0.1 * (lately - self.active);
        let waiting = self.served * program.miss_seconds * (1.0 - hits);
        let some = 1.0 - (-waiting).exp();
        self.io_some += some * SLICE_SECONDS;
        if missed * before > 0.0 {
            self.memory_some += 0.05 * before * some * SLICE_SECONDS;
            self.memory_full += if hits < 0.02 { 0.5 * SLICE_SECONDS } else { 0.0 };
        }
        let wanted = program.anon.get() as f64;
        let wanted =
            if program.elastic { self.view_ceiling.or(Bytes(u64::MAX)).get() as f64 * 0.8 } else { wanted }
                .min(wanted);
        let anon = (wanted - self.anon - self.swap)
            .clamp(-ALLOCATION_RATE * SLICE_SECONDS, ALLOCATION_RATE * SLICE_SECONDS);
        self.anon = (self.anon + anon.min(0.0)).max(0.0);
        let room = max - self.usage();
        let (anon, cache) = (anon.max(0.0), missed.min((data - self.cache).max(0.0)));
        if anon + cache > room {
            // It makes room in itself, coldest first, which leaves as much as before.
            let own = (anon - room).clamp(0.0, self.cache);
            self.take(own);
            return (anon.min((max - self.usage()).max(0.0)), cache.min((room - anon).max(0.0)));
        }
        (anon, cache)
    }

    /// Asks for all it can get when some of its memory was taken while it was idle.
    fn lie_in_wait(&mut self, now: Micros) {
        let program = &self.tenant.program;
        let most = program.loads.iter().map(|load| load.offered).fold(0.0, f64::max);
        if now < self.ambush_until {
            (self.offered, self.had) = (most, self.usage());
        } else if self.offered < most && self.usage() < 0.95 * self.had {
            self.ambush_until = now.saturating_add(Micros::secs(20));
        }
        self.had = self.had.max(self.usage());
    }

    fn sample(&self, stalls: bool, swap_room: Bytes) -> GroupMemory {
        let size = |x: f64| Bytes(x.max(0.0) as u64);
        let stalls = stalls.then(|| StallTotals {
            memory_some: time(self.memory_some),
            memory_full: time(self.memory_full),
            io_some: time(self.io_some),
            ..StallTotals::default()
        });
        GroupMemory {
            usage: size(self.usage()),
            anon: size(self.anon),
            file: size(self.cache),
            inactive_file: size(self.cache * (1.0 - self.active)),
            active_file: size(self.cache * self.active),
            mapped: size(self.cache.min(self.tenant.program.mapped * self.tenant.program.data.get() as f64)),
            swap: size(self.swap),
            swap_room,
            refault_file: size(self.refault),
            rbytes: size(self.rbytes),
            stalls,
            oom_kill: self.oom_kill,
            populated: self.running,
            ..GroupMemory::default()
        }
    }
}

/// The cgroup of a tenant.
fn id(i: usize) -> CgroupId {
    CgroupId(i as u64 + 2)
}

fn time(seconds: f64) -> Micros {
    Micros((seconds * 1e6) as u64)
}
