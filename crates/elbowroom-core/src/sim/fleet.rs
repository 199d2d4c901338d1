//! A toy fleet: as many nodes as wanted, containers that use less than they ask for and now and then more, and rules that say how
//! many more containers a node takes.
//!
//! # Problem
//! How many more containers a fleet holds, and what that does to those that are there, cannot be tried on ten thousand nodes.
//!
//! # Approach
//! A node is full by what its containers *request*. What one *wants* follows a wave, as load follows the day, and bursts; its
//! memory fills slowly. Hour after hour each rule adds containers until one does not fit, and then a last day goes by in which
//! everybody's CPU time is what weighted max-min fairness gives. Nodes do not depend on each other, so each is simulated alone and
//! results are added up ([`Outcome::and`]).
//!
//! # Terminology
//! *Neighbours* are the containers that were there before. *Harm* is CPU time that a neighbour wanted and would have got without
//! the newcomers. A node is *short* when containers want more memory than there is: somebody is swapped, or killed.
//!
//! # Simplifications
//! Demands are made up: means of 5 to 60 % of the request, waves and bursts on top; no trace of a real fleet is in them. Nobody
//! moves away, nothing is reclaimed, page cache is not there, and disks are not simulated.
//!
//! # Properties
//! - `cpu_time_is_neither_made_nor_lost`
//! - `requests_never_place_more_than_there_is`
//! - `the_same_seed_gives_the_same_outcome`

use super::disk::Random;
use crate::fleet::{Ask, Room, judge};
use crate::unit::{Bytes, Millicpu, Percent};
use serde::Serialize;

/// Steps of a day: five minutes each.
const DAY: usize = 288;
/// Steps between two looks of a rule that adds containers.
const LOOK: usize = 12;
/// Most containers that one node takes (kubelet's `maxPods` times four).
const MOST: usize = 440;

/// By what a container is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Nobody is.
    Nobody,
    /// Limits add up to no more than there is.
    Limits,
    /// Requests add up to no more than there is.
    Requests,
    /// There is room at this moment.
    RoomNow,
    /// There was room over the last so many steps of five minutes, all the time; nobody is let in before that.
    RoomOver(usize),
}

/// What became of nodes under a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Nodes.
    pub nodes: u64,
    /// Containers that were there before.
    pub neighbours: u64,
    /// Containers that were added.
    pub added: u64,
    /// CPU time there was in the last day, used in it, in CPU days.
    pub cpu: f64,
    /// What of it was used.
    pub cpu_used: f64,
    /// CPU time that neighbours wanted in the last day.
    pub wanted: f64,
    /// What of that they did not get.
    pub missed: f64,
    /// Steps of nodes in which a neighbour got less than 95 % of what it wanted of its own request.
    pub broken_steps: u64,
    /// Steps of nodes in which memory was short.
    pub short_steps: u64,
    /// Steps of nodes.
    pub steps: u64,
}

impl Outcome {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            nodes: self.nodes + other.nodes,
            neighbours: self.neighbours + other.neighbours,
            added: self.added + other.added,
            cpu: self.cpu + other.cpu,
            cpu_used: self.cpu_used + other.cpu_used,
            wanted: self.wanted + other.wanted,
            missed: self.missed + other.missed,
            broken_steps: self.broken_steps + other.broken_steps,
            short_steps: self.short_steps + other.short_steps,
            steps: self.steps + other.steps,
        }
    }
}

/// A container of the toy fleet. CPU in CPUs, memory in bytes.
#[derive(Clone, Copy, Debug)]
struct Tenant {
    cpu_request: f64,
    cpu_limit: f64,
    memory_request: f64,
    /// Mean of what it wants, and how far its day goes up and down.
    mean: f64,
    swing: f64,
    /// When its day begins, in steps.
    phase: usize,
    /// One step in so many is a burst up to its limit.
    bursts: usize,
    /// Memory at first, and at last after `fills` steps.
    memory: (f64, f64),
    fills: usize,
    born: usize,
    seed: u64,
}

impl Tenant {
    fn new(random: &mut Random, born: usize) -> Self {
        let cpu_request = random.pick(&[0.25, 0.5, 1.0, 1.0, 2.0, 4.0]);
        let memory_request = cpu_request * random.magnitude(1.0, 8.0) * f64::from(1 << 30);
        let mean = cpu_request * random.magnitude(0.05, 0.6);
        let most = memory_request * random.between(0.2, 1.0);
        Self {
            cpu_request,
            cpu_limit: cpu_request * random.pick(&[1.0, 2.0, 4.0]),
            memory_request,
            mean,
            swing: random.between(0.1, 0.9),
            // Most days have the same noon.
            phase: if random.one_in(4) { random.below(DAY) } else { random.below(DAY / 8) },
            bursts: random.pick(&[20, 60, 200]),
            memory: (most * random.between(0.3, 1.0), most),
            fills: 1 + random.below(DAY),
            born,
            seed: (random.unit() * 1e15) as u64,
        }
    }

    /// CPUs it wants in a step.
    fn wants(&self, step: usize) -> f64 {
        let mut random = Random::new(self.seed ^ (step as u64).wrapping_mul(0x2545_f491_4f6c_dd1d));
        if random.one_in(self.bursts) {
            return self.cpu_limit;
        }
        let at = ((step + self.phase) % DAY) as f64 / DAY as f64;
        // A wave of triangles: -1 at midnight, 1 at noon.
        let wave = 1.0 - 4.0 * (at - 0.5).abs();
        (self.mean * (1.0 + self.swing * wave) * random.noise(0.2)).min(self.cpu_limit)
    }

    /// Memory it holds in a step.
    fn holds(&self, step: usize) -> f64 {
        let (first, last) = self.memory;
        let part = (step - self.born) as f64 / self.fills as f64;
        first + (last - first) * part.min(1.0)
    }

    fn ask(&self) -> Ask {
        Ask {
            cpu: Millicpu((self.cpu_request * 1_000.0) as u64),
            memory: Bytes(self.memory_request as u64),
            ..Ask::default()
        }
    }
}

/// One node.
struct Node {
    cpus: f64,
    memory: f64,
    tenants: Vec<Tenant>,
    neighbours: usize,
}

/// A node's day and the one after under `rule`: containers are added until the last day begins. The same seed makes the same node,
/// the same neighbours and the same queue of newcomers under every rule.
pub fn play(seed: u64, rule: Rule, headroom: Percent) -> Outcome {
    let mut random = Random::new(seed);
    let mut node = Node::new(&mut random);
    let mut rooms: Vec<Room> = Vec::new();
    let mut next = Tenant::new(&mut random, 0);
    for step in 0..DAY {
        rooms.push(node.room(step));
        if step % LOOK != LOOK - 1 || matches!(rule, Rule::RoomOver(steps) if rooms.len() < steps) {
            continue;
        }
        let mut room = node.seen(rule, &rooms);
        while node.tenants.len() < MOST && node.takes(rule, &room, &next, headroom) {
            node.tenants.push(Tenant { born: step, ..next });
            // What was let in is counted with all that it asked for until it is seen.
            let ask = next.ask();
            room.cpu_used = room.cpu_used.map(|used| used.saturating_add(ask.cpu));
            room.memory_free = room.memory_free.map(|free| free.saturating_sub(ask.memory));
            next = Tenant::new(&mut random, 0);
        }
    }
    node.last_day()
}

impl Node {
    /// Full by requests, as schedulers leave them: the last container that did not fit is not there.
    fn new(random: &mut Random) -> Self {
        let cpus = random.pick(&[8.0, 16.0, 32.0, 64.0]);
        let memory = cpus * random.pick(&[4.0, 8.0]) * f64::from(1 << 30);
        let mut node = Self { cpus, memory, tenants: Vec::new(), neighbours: 0 };
        // Between three quarters and all of it.
        let full = random.between(0.75, 1.0);
        loop {
            let tenant = Tenant::new(random, 0);
            let (cpu, memory) = node.requests();
            if cpu + tenant.cpu_request > full * cpus || memory + tenant.memory_request > full * node.memory {
                break;
            }
            node.tenants.push(tenant);
        }
        node.neighbours = node.tenants.len();
        node
    }

    fn requests(&self) -> (f64, f64) {
        let sum = |of: fn(&Tenant) -> f64| self.tenants.iter().map(of).sum();
        (sum(|t| t.cpu_request), sum(|t| t.memory_request))
    }

    /// What an agent would report.
    fn room(&self, step: usize) -> Room {
        let used: f64 = self.tenants.iter().map(|t| t.wants(step)).sum();
        let held: f64 = self.tenants.iter().map(|t| t.holds(step)).sum();
        Room {
            cpu: Millicpu((self.cpus * 1_000.0) as u64),
            cpu_used: Some(Millicpu((used.min(self.cpus) * 1_000.0) as u64)),
            memory: Bytes(self.memory as u64),
            memory_free: Some(Bytes((self.memory - held).max(0.0) as u64)),
            memory_short: held > self.memory,
            ..Room::default()
        }
    }

    /// What the rule goes by.
    fn seen(&self, rule: Rule, rooms: &[Room]) -> Room {
        let back = if let Rule::RoomOver(steps) = rule { steps.max(1) } else { 1 };
        let looks = &rooms[rooms.len().saturating_sub(back)..];
        looks.iter().skip(1).fold(looks[0].clone(), |least, look| least.least(look))
    }

    fn takes(&self, rule: Rule, room: &Room, tenant: &Tenant, headroom: Percent) -> bool {
        match rule {
            Rule::Nobody => false,
            Rule::Requests => {
                let (cpu, memory) = self.requests();
                cpu + tenant.cpu_request <= self.cpus && memory + tenant.memory_request <= self.memory
            }
            Rule::Limits => {
                let cpu: f64 = self.tenants.iter().map(|t| t.cpu_limit).sum();
                let memory = self.requests().1;
                cpu + tenant.cpu_limit <= self.cpus && memory + tenant.memory_request <= self.memory
            }
            Rule::RoomNow | Rule::RoomOver(_) => judge(room, &tenant.ask(), headroom).fits(),
        }
    }

    fn last_day(&self) -> Outcome {
        let mut outcome = Outcome {
            nodes: 1,
            neighbours: self.neighbours as u64,
            added: (self.tenants.len() - self.neighbours) as u64,
            steps: DAY as u64,
            ..Outcome::default()
        };
        let part = 1.0 / DAY as f64;
        for step in DAY..2 * DAY {
            let wants: Vec<f64> = self.tenants.iter().map(|t| t.wants(step)).collect();
            let gets = divide(self.cpus, &self.tenants, &wants);
            outcome.cpu += self.cpus * part;
            outcome.cpu_used += gets.iter().sum::<f64>() * part;
            let mut broken = false;
            for ((tenant, want), get) in self.tenants.iter().zip(&wants).zip(&gets).take(self.neighbours) {
                outcome.wanted += want * part;
                outcome.missed += (want - get).max(0.0) * part;
                broken |= *get < 0.95 * want.min(tenant.cpu_request);
            }
            outcome.broken_steps += u64::from(broken);
            let held: f64 = self.tenants.iter().map(|t| t.holds(step)).sum();
            outcome.short_steps += u64::from(held > self.memory);
        }
        outcome
    }
}

/// Weighted max-min fairness: water rises at the same speed per request until each want is met or nothing is left.
fn divide(cpus: f64, tenants: &[Tenant], wants: &[f64]) -> Vec<f64> {
    if wants.iter().sum::<f64>() <= cpus {
        return wants.to_vec();
    }
    let level = |n: usize| wants[n] / tenants[n].cpu_request;
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by(|a, b| level(*a).total_cmp(&level(*b)));
    let (mut left, mut weight) = (cpus, tenants.iter().map(|t| t.cpu_request).sum::<f64>());
    let mut gets = vec![0.0; wants.len()];
    for n in order {
        gets[n] = wants[n].min(left * tenants[n].cpu_request / weight);
        left -= gets[n];
        weight -= tenants[n].cpu_request;
    }
    gets
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn cpu_time_is_neither_made_nor_lost(seed in any::<u64>(), n in 1usize..50, cpus in 1.0f64..64.0) {
            let mut random = Random::new(seed);
            let tenants: Vec<Tenant> = (0..n).map(|_| Tenant::new(&mut random, 0)).collect();
            let wants: Vec<f64> = tenants.iter().map(|t| t.wants(7)).collect();
            let gets = divide(cpus, &tenants, &wants);
            let (got, wanted): (f64, f64) = (gets.iter().sum(), wants.iter().sum());
            prop_assert!((got - wanted.min(cpus)).abs() < 1e-6, "{got} of {cpus} for {wanted}");
            prop_assert!(gets.iter().zip(&wants).all(|(get, want)| *get <= *want + 1e-9 && *get >= 0.0));
            // Nobody who wants no more than its share by weight goes short.
            let weight: f64 = tenants.iter().map(|t| t.cpu_request).sum();
            for ((tenant, want), get) in tenants.iter().zip(&wants).zip(&gets) {
                prop_assert!(*get >= want.min(cpus * tenant.cpu_request / weight) - 1e-9);
            }
        }

        #[test]
        fn requests_never_place_more_than_there_is(seed in any::<u64>()) {
            let outcome = play(seed, Rule::Requests, Percent::whole(10));
            let before = play(seed, Rule::Nobody, Percent::whole(10));
            prop_assert_eq!(outcome.neighbours, before.neighbours);
            prop_assert_eq!(before.added, 0);
            // Whoever has its request whole under requests: they fit together, and weights are requests.
            prop_assert_eq!(outcome.broken_steps, 0);
            prop_assert_eq!(outcome.short_steps, 0);
            prop_assert!(outcome.missed >= before.missed - 1e-9);
        }

        #[test]
        fn the_same_seed_gives_the_same_outcome(seed in any::<u64>()) {
            let rule = Rule::RoomOver(12);
            prop_assert_eq!(play(seed, rule, Percent::whole(10)), play(seed, rule, Percent::whole(10)));
        }
    }
}
