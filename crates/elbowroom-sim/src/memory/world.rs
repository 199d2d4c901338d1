//! The machine at work.

use super::kernel::{Page, reclaim};
use super::peers;
use super::program::Tenant;
use super::scenario::{Kernel, Rule, Scenario};
use crate::disk::Random;
use elbowroom_types::label::Labels;
use elbowroom_types::memory::{
    Act, Done, GroupMemory, Heard, Lease, MemoryTick, NodeMemory, Order, Outcome, Protect, Stalls,
};
use elbowroom_types::probe::Colour;
use elbowroom_types::sample::{Container, Engine, Event, Group, GroupId, Limits, Node};
use elbowroom_types::unit::{Bytes, Limit, Micros};

/// Slices of a second.
const SLICES: u32 = 4;
const DT: f64 = 1.0 / SLICES as f64;
/// How fast a program allocates what it needs of its own, and a heap grows or shrinks, per second.
const ALLOCATES: f64 = (400 << 20) as f64;
/// A probe's record counts for this long.
const TTL: Micros = Micros::secs(5);
/// The cgroup around all containers, where there is one; containers follow.
const AROUND: GroupId = GroupId(1);

/// The machine of a scenario.
#[derive(Debug)]
pub struct World<'a> {
    scenario: &'a Scenario,
    rule: Rule,
    random: Random,
    now: Micros,
    cells: Vec<Cell<'a>>,
    orders: Vec<Order>,
    swapped: f64,
    node_stalled: f64,
}

/// A container at work; sizes in bytes, times in seconds.
#[derive(Debug)]
struct Cell<'a> {
    tenant: &'a Tenant,
    anon: f64,
    cache: f64,
    swap: f64,
    /// How much of its data was ever in memory.
    seen: f64,
    /// The part of its pages that was used lately.
    active: f64,
    running: bool,
    killed: bool,
    served: f64,
    offered: f64,
    refault: f64,
    activate: f64,
    pgsteal: f64,
    rbytes: f64,
    memory_some: f64,
    memory_full: f64,
    io_some: f64,
    max_events: u64,
    oom_kill: u64,
    protection: f64,
    lease: Option<Lease>,
    export: Limit<Bytes>,
    ours: bool,
}

/// What really happened in a second.
#[derive(Clone, Debug, PartialEq)]
pub struct Truth {
    /// When it ended.
    pub now: Micros,
    /// Memory that nobody uses.
    pub free: f64,
    /// Each container.
    pub shares: Vec<Share>,
}

/// What a container had and did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Which cgroup.
    pub group: GroupId,
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

impl Share {
    /// Whether it served what it should.
    pub fn satisfied(&self) -> bool {
        self.served >= 0.97 * self.due
    }
}

impl<'a> World<'a> {
    /// The machine before anything happened.
    pub fn new(scenario: &'a Scenario, rule: Rule, seed: u64) -> Self {
        let cells = scenario.tenants.iter().map(Cell::new).collect();
        let random = Random::new(seed);
        Self {
            scenario,
            rule,
            random,
            now: Micros::ZERO,
            cells,
            orders: Vec::new(),
            swapped: 0.0,
            node_stalled: 0.0,
        }
    }

    /// The machine and its containers, as events.
    pub fn start(&mut self) -> Vec<Event> {
        let mark = |n: u64| Bytes(self.scenario.memory.get() / n);
        let node = Node {
            mem_total: self.scenario.memory,
            low_mark: mark(512),
            high_mark: mark(400),
            page_size: Bytes::kib(4),
            ..Node::default()
        };
        let mut events = vec![Event::Node(node)];
        if let Some(around) = self.scenario.around {
            let limits = Limits { memory_max: Some(Limit::At(around)), ..Limits::default() };
            let (id, path) = (AROUND, "/pool".to_owned());
            events.push(Event::Group(Group {
                id,
                parent: None,
                path,
                container: None,
                limits,
                populated: true,
            }));
        }
        for i in 0..self.cells.len() {
            if self.rule == Rule::Low {
                self.cells[i].protection = self.cells[i].tenant.low.get() as f64;
            }
            let max = self.max(i);
            let tenant = self.cells[i].tenant;
            let limits = Limits { memory_max: Some(max.map_or(Limit::Max, Limit::At)), ..Limits::default() };
            let container = Container {
                id: tenant.name.clone(),
                name: Some(tenant.name.clone()),
                engine: Engine::Docker,
                pod: None,
                labels: Labels::default(),
            };
            events.push(Event::Group(Group {
                id: id(i),
                parent: self.scenario.around.map(|_| AROUND),
                path: format!("/{}", tenant.name),
                container: Some(container),
                limits,
                populated: true,
            }));
        }
        events
    }

    /// Takes orders; they are carried out at the beginning of the next second.
    pub fn obey(&mut self, orders: Vec<Order>) {
        self.orders.extend(orders);
    }

    /// Lets a second go by: what a sensor sees of it, the last event being the measurement.
    pub fn second(&mut self) -> (Vec<Event>, Truth) {
        let mut events = self.carry_out();
        self.peers();
        for _ in 0..SLICES {
            self.slice();
            self.now = self.now.saturating_add(Micros(1_000_000 / u64::from(SLICES)));
        }
        let silent = self.rule == Rule::Silent;
        for (i, cell) in self.cells.iter().enumerate().filter(|(_, cell)| cell.running && !silent) {
            if let Some(report) = cell.tenant.voice.says(&cell.tenant.program, cell.served, cell.offered) {
                let (at, until) = (self.now, self.now.saturating_add(TTL));
                events.push(Event::Heard(Heard { at, until, group: id(i), report }));
            }
        }
        events.push(Event::MemoryTick(self.measure()));
        (events, self.truth())
    }

    fn max(&self, i: usize) -> Option<Bytes> {
        let tenant = self.cells[i].tenant;
        tenant.max.value().filter(|_| tenant.keeps_max || self.rule == Rule::Max)
    }

    fn free(&self) -> f64 {
        let used: f64 = self.cells.iter().map(Cell::usage).sum();
        let all = self.scenario.memory.get() as f64 - self.scenario.system.get() as f64;
        let pool = self.scenario.around.map_or(all, |around| (around.get() as f64).min(all));
        pool - used
    }

    /// What a kernel leaves alone.
    fn mark(&self) -> f64 {
        if self.scenario.around.is_some() { 0.0 } else { self.scenario.memory.get() as f64 / 450.0 }
    }

    fn carry_out(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let (now, obeyed) = (self.now, self.scenario.obeyed);
        for order in std::mem::take(&mut self.orders) {
            let (group, what, outcome, reclaimed) = match order {
                Order::Reclaim(reclaim) => {
                    let Some(cell) = self.cell(reclaim.group).filter(|_| obeyed) else { continue };
                    let above = (cell.usage() - reclaim.keep.get() as f64).max(0.0);
                    let amount = above.min(reclaim.amount.get() as f64);
                    let taken = cell.take(amount);
                    let partly = taken + 1.0 < amount;
                    let outcome = if partly { Outcome::Partly } else { Outcome::Done };
                    (reclaim.group, Act::Reclaim, outcome, Bytes(taken as u64))
                }
                Order::Protect(protect) if obeyed => {
                    (protect.group, Act::Protect, self.protect(&protect), Bytes::ZERO)
                }
                Order::Lease(lease) if obeyed => {
                    let v2 = self.scenario.kernel == Kernel::V2;
                    let Some(cell) = self.cell(lease.group) else { continue };
                    cell.lease = v2.then_some(lease);
                    let outcome = if v2 { Outcome::Done } else { Outcome::Refused("no memory.high".into()) };
                    (lease.group, Act::Lease, outcome, Bytes::ZERO)
                }
                Order::Release(group) => {
                    if let Some(cell) = self.cell(group) {
                        cell.lease = None;
                    }
                    continue;
                }
                Order::Export(export) if obeyed => {
                    if let Some(cell) = self.cell(export.group) {
                        cell.export = export.ceiling;
                    }
                    continue;
                }
                Order::Protect(_) | Order::Lease(_) | Order::Export(_) | Order::Alert(_) => continue,
            };
            events.push(Event::MemoryDone(Done { now, group, what, outcome, reclaimed }));
        }
        events
    }

    fn protect(&mut self, protect: &Protect) -> Outcome {
        let foreign = self.scenario.foreign.is_some_and(|at| at <= self.now) && protect.group == id(0);
        let v1 = self.scenario.kernel == Kernel::V1;
        let Some(cell) = self.cell(protect.group) else { return Outcome::Gone };
        if foreign {
            return Outcome::Foreign;
        }
        cell.protection =
            if v1 { protect.soft.value().unwrap_or_default() } else { protect.low }.get() as f64;
        cell.ours = true;
        Outcome::Done
    }

    fn cell(&mut self, group: GroupId) -> Option<&mut Cell<'a>> {
        self.cells.get_mut(usize::try_from(group.0).ok()?.checked_sub(2)?)
    }

    fn peers(&mut self) {
        let short = self.free() < 0.04 * self.scenario.memory.get() as f64;
        let colours: Vec<(Colour, f64)> =
            self.cells.iter().map(|cell| (cell.colour(), cell.usage())).collect();
        for (cell, amount) in self.cells.iter_mut().zip(peers::take(self.rule, short, &colours)) {
            cell.take(amount);
        }
    }

    fn slice(&mut self) {
        let mut grown = Vec::new();
        for i in 0..self.cells.len() {
            let max = self.max(i).map_or(f64::INFINITY, |max| max.get() as f64);
            let noise = self.random.noise(self.scenario.noise);
            grown.push(self.cells[i].run(self.now, max, noise));
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
                let out = missing.min(self.cells[largest].anon);
                self.cells[largest].anon -= out;
                self.cells[largest].swap += out;
            } else if missing > 1.0 {
                let largest = self.largest();
                self.cells[largest].kill();
            }
            if self.cells[i].running {
                self.cells[i].anon += anon.min(self.free().max(0.0));
            }
        }
        for (i, (_, cache)) in grown.iter().enumerate() {
            let got = cache.min((self.free() - self.mark()).max(0.0));
            self.cells[i].cache += got;
        }
    }

    fn reclaim(&mut self, need: f64) {
        // The limit of an ancestor knows no soft limits.
        let blind = self.scenario.around.is_some() && self.scenario.kernel == Kernel::V1;
        let page = |cell: &Cell<'_>| Page {
            usage: cell.usage(),
            cache: cell.cache,
            active: cell.active,
            protection: if blind { 0.0 } else { cell.protection },
        };
        let pages: Vec<Page> = self.cells.iter().map(page).collect();
        for (cell, taken) in self.cells.iter_mut().zip(reclaim(self.scenario.kernel, &pages, need)) {
            cell.take(taken);
        }
        self.node_stalled += 0.05 * DT;
    }

    fn largest(&self) -> usize {
        let anon = |i: &usize| self.cells[*i].anon;
        (0..self.cells.len()).max_by(|a, b| anon(a).total_cmp(&anon(b))).unwrap_or(0)
    }

    fn measure(&self) -> MemoryTick {
        let used: f64 = self.cells.iter().map(Cell::usage).sum();
        let cache: f64 = self.cells.iter().map(|cell| cell.cache).sum();
        let size = |x: f64| Bytes(x.max(0.0) as u64);
        let free = self.scenario.memory.get() as f64 - self.scenario.system.get() as f64 - used;
        let swap = (self.scenario.swap.get() as f64 - self.swapped).max(0.0);
        let node = NodeMemory {
            mem_free: size(free),
            mem_available: size(free + cache),
            swap_free: size(swap),
            stalled: self.scenario.stalls.then(|| time(self.node_stalled)),
        };
        let mut groups: Vec<(GroupId, GroupMemory)> = Vec::new();
        if self.scenario.around.is_some() {
            groups
                .push((AROUND, GroupMemory { usage: size(used), populated: true, ..GroupMemory::default() }));
        }
        let v2 = self.scenario.kernel == Kernel::V2;
        let cells = self.cells.iter().enumerate();
        groups.extend(cells.map(|(i, cell)| (id(i), cell.sample(v2, self.scenario.stalls, size(swap)))));
        MemoryTick { now: self.now, node, groups }
    }

    fn truth(&self) -> Truth {
        let share = |(i, cell): (usize, &Cell<'_>)| Share {
            group: id(i),
            running: cell.running,
            usage: cell.usage(),
            served: cell.served,
            offered: cell.offered,
            due: cell.offered.min(cell.tenant.program.objective),
            killed: cell.killed,
        };
        Truth { now: self.now, free: self.free(), shares: self.cells.iter().enumerate().map(share).collect() }
    }
}

impl<'a> Cell<'a> {
    fn new(tenant: &'a Tenant) -> Self {
        Self {
            tenant,
            anon: 0.0,
            cache: 0.0,
            swap: 0.0,
            seen: 0.0,
            active: 0.0,
            running: true,
            killed: false,
            served: 0.0,
            offered: 0.0,
            refault: 0.0,
            activate: 0.0,
            pgsteal: 0.0,
            rbytes: 0.0,
            memory_some: 0.0,
            memory_full: 0.0,
            io_some: 0.0,
            max_events: 0,
            oom_kill: 0,
            protection: 0.0,
            lease: None,
            export: Limit::Max,
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
        self.pgsteal += taken;
        taken
    }

    fn kill(&mut self) {
        (self.anon, self.running, self.killed) = (0.0, false, true);
        self.oom_kill += 1;
    }

    /// Serves for a slice; how much memory of its own and of cache it would like to have more.
    fn run(&mut self, now: Micros, max: f64, noise: f64) -> (f64, f64) {
        let program = &self.tenant.program;
        self.running &= self.tenant.stops.is_none_or(|stops| now < stops);
        if self.lease.is_some_and(|lease| lease.until <= now) {
            self.lease = None;
        }
        if !self.running {
            (self.anon, self.served, self.offered, self.active) = (0.0, 0.0, 0.0, 0.0);
            return (0.0, 0.0);
        }
        self.offered = program.offered(now);
        let hits = program.hits(self.cache);
        self.served = (program.peak(self.cache) * noise).min(self.offered);
        let touched = self.served * program.touches.get() as f64 * DT;
        let missed = touched * (1.0 - hits);
        let data = program.data.get() as f64;
        let before = ((self.seen - self.cache) / (data - self.cache).max(1.0)).clamp(0.0, 1.0);
        self.seen = (self.seen + missed * (1.0 - before)).min(data);
        self.rbytes += missed;
        self.refault += missed * before;
        self.activate += missed * before * self.active * 0.1;
        let lately = (touched * 10.0 / DT / self.cache.max(1.0)).min(1.0);
        self.active += 0.1 * (lately - self.active);
        let waiting = self.served * program.miss * (1.0 - hits);
        let some = 1.0 - (-waiting).exp();
        self.io_some += some * DT;
        if missed * before > 0.0 {
            self.memory_some += 0.05 * before * some * DT;
            self.memory_full += if hits < 0.02 { 0.5 * DT } else { 0.0 };
        }
        let wanted = program.anon.get() as f64;
        let wanted =
            if program.elastic { self.export.or(Bytes(u64::MAX)).get() as f64 * 0.8 } else { wanted }
                .min(wanted);
        let anon = (wanted - self.anon - self.swap).clamp(-ALLOCATES * DT, ALLOCATES * DT);
        self.anon = (self.anon + anon.min(0.0)).max(0.0);
        let room = max.min(self.lease.map_or(f64::INFINITY, |lease| lease.high.get() as f64)) - self.usage();
        let (anon, cache) = (anon.max(0.0), missed.min((data - self.cache).max(0.0)));
        if anon + cache > room {
            self.max_events += u64::from(room < f64::INFINITY && max.is_finite());
            // It makes room in itself, coldest first, which leaves as much as before.
            let own = (anon - room).clamp(0.0, self.cache);
            self.take(own);
            return (anon.min((max - self.usage()).max(0.0)), cache.min((room - anon).max(0.0)));
        }
        (anon, cache)
    }

    fn sample(&self, v2: bool, stalls: bool, swap_room: Bytes) -> GroupMemory {
        let size = |x: f64| Bytes(x.max(0.0) as u64);
        let stalls = stalls.then(|| Stalls {
            memory_some: time(self.memory_some),
            memory_full: time(self.memory_full),
            io_some: time(self.io_some),
        });
        GroupMemory {
            usage: size(self.usage()),
            anon: size(self.anon),
            file: size(self.cache),
            inactive_file: size(self.cache * (1.0 - self.active)),
            active_file: size(self.cache * self.active),
            swap: size(self.swap),
            swap_room,
            refault_file: size(self.refault),
            activate: v2.then(|| size(self.activate)),
            pgscan: v2.then(|| size(self.pgsteal / 0.8)),
            pgsteal: v2.then(|| size(self.pgsteal)),
            rbytes: size(self.rbytes),
            stalls,
            max_events: self.max_events,
            oom_kill: self.oom_kill,
            populated: self.running,
            ..GroupMemory::default()
        }
    }
}

/// The cgroup of a tenant.
fn id(i: usize) -> GroupId {
    GroupId(i as u64 + 2)
}

fn time(seconds: f64) -> Micros {
    Micros((seconds * 1e6) as u64)
}
