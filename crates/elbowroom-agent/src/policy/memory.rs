//! The memory governor at work: decisions of [`Memory`] become protection, reclaim, alerts and smaller views.
//!
//! Everything here runs on the owner's thread and waits for nothing. What is written is written by the limiter; what comes of
//! it comes back as [`Event::MemoryDone`] and goes through the governor like everything else.

use super::limiter::Limiter;
use super::masks::Masks;
use crate::config::Config;
use anyhow::Result;
use elbowroom_client::api::{AlertView, MemoryOf, MemoryReport, MemoryStatus, Named};
use elbowroom_govern::Mode;
use elbowroom_govern::memory::{Memory, Notices, Standing};
use elbowroom_linux::cgroup::Layout;
use elbowroom_linux::memory::{Reader, UserLimits};
use elbowroom_linux::root::Root;
use elbowroom_linux::timer;
use elbowroom_types::alert::Alert;
use elbowroom_types::memory::{Done, Export, GroupMemory, MemoryTick, NodeMemory, Order, Outcome};
use elbowroom_types::sample::{Event, Group, GroupId, Usage};
use elbowroom_types::unit::Micros;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

/// How many groups are read in one of the owner's ticks, a dozen small files each: views are not to be late for it.
const GROUPS_PER_TICK: usize = 40;

/// For how long what was read of a group is taken for true while it uses no CPU time and its charge stays: only the kernel can
/// change anything about it then. On a dense host most are like that at any time.
const TRUE_FOR: Micros = Micros::secs(5);

/// What the owner has to do.
pub(super) enum Effect {
    /// Tell the views how much of its memory a container should want.
    Export(Export),
    /// Ask the programs in a container for memory.
    Ask(GroupId),
    /// Tell the operator.
    Warn(Alert),
}

/// What was read of one group.
struct Known {
    at: Micros,
    used: Usage,
    memory: GroupMemory,
}

/// The governor and its eyes.
pub(super) struct MemoryRoom {
    memory: Memory,
    mode: Mode,
    /// Present when orders are carried out.
    limiter: Option<Limiter>,
    /// Why they are not, though they should be.
    not_enforced: Option<String>,
    reader: Reader,
    measure_at: Micros,
    /// A measurement that is not complete: the machine, what is still to be read, what was, and what that took.
    node: NodeMemory,
    reading: Vec<GroupId>,
    read: Vec<(GroupId, GroupMemory)>,
    measuring: Micros,
    /// What groups have used, as the sensor saw it last.
    used: BTreeMap<GroupId, Usage>,
    /// What was read of each group last, and what it had used then.
    known: BTreeMap<GroupId, Known>,
    containers: BTreeMap<GroupId, Named>,
    paths: BTreeMap<GroupId, String>,
    masks: Masks,
    notices: Notices,
    status: MemoryStatus,
}

impl MemoryRoom {
    /// Starts what the configuration asks for. What this host lacks is said and done without.
    pub(super) fn open(config: &Config, limiter: Option<Limiter>) -> Result<Self> {
        let mode = config.memory.mode;
        let root = Root::at(Path::new("/"))?;
        let layout = Layout::detect(&root)?;
        let limiter = limiter.filter(|_| mode == Mode::Enforce);
        let not_enforced = (mode == Mode::Enforce && limiter.is_none())
            .then(|| "leases cannot be had: see the log of the agent's start".to_owned());
        if let Some(why) = &not_enforced {
            tracing::warn!(because = why, "memory is only watched, not moved");
        }
        tracing::info!(mode = ?mode, period = %config.memory.period, "governing memory");
        Ok(Self {
            memory: Memory::new(config.memory.clone(), config.claims.clone()),
            mode,
            limiter,
            not_enforced,
            reader: Reader::new(root, layout),
            measure_at: Micros::ZERO,
            node: NodeMemory::default(),
            reading: Vec::new(),
            read: Vec::new(),
            measuring: Micros::ZERO,
            used: BTreeMap::new(),
            known: BTreeMap::new(),
            containers: BTreeMap::new(),
            paths: BTreeMap::new(),
            masks: Masks::default(),
            notices: Notices::default(),
            status: MemoryStatus::default(),
        })
    }

    /// Whether anything is decided, carried out or not.
    pub(super) fn is_on(&self) -> bool {
        self.mode != Mode::Off
    }

    /// An event as everybody else may know it: without what is ours.
    pub(super) fn mask<'a>(&mut self, event: &'a Event) -> Cow<'a, Event> {
        self.masks.apply(event)
    }

    /// A container as the sensor told it last, with the labels that it was made with.
    pub(super) fn raw(&self, id: GroupId) -> Option<&Group> {
        self.masks.raw(id)
    }

    /// Lets the governor know, and does what it says.
    pub(super) fn apply(&mut self, event: &Event) -> Vec<Effect> {
        if self.mode == Mode::Off {
            return Vec::new();
        }
        match event {
            Event::Group(group) => self.meet(group),
            Event::Gone(id) => {
                self.containers.remove(id);
                self.paths.remove(id);
                self.used.remove(id);
                self.known.remove(id);
                self.reader.forget(*id);
                self.notices.forget(*id);
            }
            Event::Tick(tick) => self.used.extend(tick.usage.iter().copied()),
            _ => {}
        }
        let orders = self.memory.apply(event);
        orders.into_iter().flat_map(|order| self.obey(order)).collect()
    }

    /// Measures, where that is due; a large host in several goes.
    pub(super) fn tick(&mut self, now: Micros) -> Vec<Effect> {
        if self.mode == Mode::Off || now < self.measure_at {
            return Vec::new();
        }
        let begin = timer::now();
        if self.reading.is_empty() {
            self.reading = self.memory.watched();
            self.node = self.reader.node();
        }
        let mut read = 0;
        while read < GROUPS_PER_TICK
            && let Some(id) = self.reading.pop()
        {
            if let Some(known) = self.still_true(id, begin) {
                self.read.push((id, known));
            } else {
                read += 1;
                let memory = self.read_group(id, begin);
                self.read.extend(memory.map(|memory| (id, memory)));
            }
        }
        self.measuring = self.measuring.saturating_add(timer::now().saturating_sub(begin));
        if !self.reading.is_empty() {
            return Vec::new();
        }
        self.complete(begin)
    }

    /// What was read of a group that has done nothing since.
    fn still_true(&self, id: GroupId, now: Micros) -> Option<GroupMemory> {
        let known = self.known.get(&id)?;
        let idle = self.used.get(&id) == Some(&known.used) && now < known.at.saturating_add(TRUE_FOR);
        idle.then_some(known.memory)
    }

    fn read_group(&mut self, id: GroupId, at: Micros) -> Option<GroupMemory> {
        let memory = self.reader.group(id, self.paths.get(&id)?, self.node.swap_free)?;
        if let Some(used) = self.used.get(&id).copied() {
            self.known.insert(id, Known { at, used, memory });
        }
        Some(memory)
    }

    /// Takes an answer of the limiter; the group to tell of again, where its user's limits are others than was thought.
    pub(super) fn told(&mut self, done: Done, user: UserLimits) -> (Option<Event>, Vec<Effect>) {
        match done.outcome {
            Outcome::Done | Outcome::Partly => self.status.done += 1,
            Outcome::Foreign | Outcome::Refused(_) | Outcome::Gone | Outcome::Late => {
                self.status.not_done += 1;
            }
        }
        self.status.reclaimed_bytes = self.status.reclaimed_bytes.saturating_add(done.reclaimed.get());
        tracing::debug!(
            container = self.paths.get(&done.group), what = ?done.what, outcome = ?done.outcome,
            reclaimed = %done.reclaimed, "order about memory answered"
        );
        self.known.remove(&done.group);
        let again = self.masks.answered(done.group, user);
        (again, self.apply(&Event::MemoryDone(done)))
    }

    /// Where a container stands; `history` decides whether decisions are in it.
    pub(super) fn standing(&self, group: GroupId, history: bool) -> Option<Standing> {
        let mut standing = self.memory.standing(group)?;
        if !history {
            standing.decisions.clear();
        }
        Some(standing)
    }

    /// Answer to `Request::Memory`.
    pub(super) fn report(&self, name: impl Fn(Alert) -> AlertView) -> MemoryReport {
        let one = |(id, container): (&GroupId, &Named)| {
            Some(MemoryOf { container: container.clone(), standing: self.standing(*id, false)? })
        };
        MemoryReport {
            mode: self.mode,
            not_enforced: self.not_enforced.clone(),
            pools: self.memory.pools().to_vec(),
            containers: self.containers.iter().filter_map(one).collect(),
            alerts: self.memory.alerts().into_iter().map(name).collect(),
        }
    }

    /// Counters for `Request::Status`.
    pub(super) fn status(&self) -> MemoryStatus {
        self.status.clone()
    }

    fn complete(&mut self, now: Micros) -> Vec<Effect> {
        self.status.ticks += 1;
        self.status.tick_usec = std::mem::take(&mut self.measuring).get();
        let period = self.memory.settings().period;
        let next = self.measure_at.saturating_add(period);
        // The next full period: what was missed is not made up for.
        self.measure_at = if next > now { next } else { now.saturating_add(period) };
        let tick = MemoryTick { now, node: self.node, groups: std::mem::take(&mut self.read) };
        let begin = timer::now();
        let mut effects = self.apply(&Event::MemoryTick(tick));
        let pressed = self.memory.pressed().filter_map(|group| self.notices.ask(group, now));
        effects.extend(pressed.map(Effect::Ask));
        let above = self.memory.above_their_views().filter_map(|group| self.notices.again(group, now));
        effects.extend(above.map(Effect::Ask));
        self.status.decide_usec = timer::now().saturating_sub(begin).get();
        effects
    }

    fn meet(&mut self, group: &Group) {
        self.paths.insert(group.id, group.path.clone());
        if let Some(container) = &group.container {
            let named =
                Named { id: container.id.clone(), name: container.name.clone(), path: group.path.clone() };
            self.containers.insert(group.id, named);
        } else {
            self.containers.remove(&group.id);
        }
    }

    fn obey(&mut self, order: Order) -> Vec<Effect> {
        // Who only watches changes nothing that anybody sees.
        let asked = self.limiter.as_ref().and_then(|_| self.notices.order(&order)).map(Effect::Ask);
        let group = match &order {
            Order::Alert(alert) => return vec![Effect::Warn(alert.clone())],
            Order::Export(export) => {
                // First what is asked for can be read.
                let shown = self.limiter.is_some().then_some(Effect::Export(*export));
                return shown.into_iter().chain(asked).collect();
            }
            Order::Protect(protect) => protect.group,
            Order::Reclaim(reclaim) => reclaim.group,
            Order::Lease(lease) => lease.group,
            Order::Release(group) => *group,
        };
        let Some(path) = self.paths.get(&group).cloned() else { return Vec::new() };
        tracing::debug!(container = path, ?order, "decided about memory");
        if let Some(limiter) = &self.limiter {
            self.masks.ordered(&order);
            limiter.memory(order, path);
        }
        asked.into_iter().collect()
    }
}
