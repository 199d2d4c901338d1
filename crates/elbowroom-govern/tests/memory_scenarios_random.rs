//! What holds under the memory governor whatever happens, over ten thousand scenarios; the names are the properties.
//!
//! All of them look at the same run, which the first to need it makes. A seed that fails is in the message;
//! `Scenario::random(seed)` is what happened.

use crate::many::Run;
use elbowroom_govern::memory::{ContainerMemoryStatus, LendingState, MemoryAction, MemoryGovernor};
use elbowroom_sim::memory::{MemoryPolicy, MemoryScenario, MemorySimStep, ProbeBehaviour, play};
use elbowroom_types::id::CgroupId;
use elbowroom_types::memory::{GroupMemory, MemoryOrder, OrderKind, OrderOutcome, ReclaimRequest};
use elbowroom_types::probe::Colour;
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::{Bytes, Limit, Micros};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

const SCENARIOS: u64 = 10_000;
/// A page more or less.
const PAGE: Bytes = Bytes::kib(4);
/// How long an order may stay without an answer before another is given.
const ANSWER: Micros = Micros::secs(10);
/// How long another program's value is left alone.
const CEDED: Micros = Micros::secs(600);

#[test]
fn nothing_is_taken_below_a_floor() {
    check("minimum");
}

#[test]
fn nothing_is_taken_without_a_needer() {
    check("needer");
}

#[test]
fn a_reservation_in_use_is_never_taken() {
    check("reservation");
}

#[test]
fn what_is_owed_fits_the_pool() {
    check("owed");
}

#[test]
fn steps_are_small() {
    check("steps");
}

#[test]
fn failed_loans_become_rare() {
    check("failures");
}

#[test]
fn a_container_without_an_answer_gets_no_second_order() {
    check("answer");
}

#[test]
fn what_another_program_wrote_is_left_alone() {
    check("foreign");
}

#[test]
fn a_view_never_shows_less_than_the_floor() {
    check("view_ceiling");
}

#[test]
fn no_container_dies_that_would_have_lived() {
    check("deaths");
}

#[test]
fn no_scenario_panics() {
    check("panic");
}

/// The run really had in it what the properties are about.
#[test]
fn the_scenarios_are_worth_looking_at() {
    let run = run();
    let seen = |what: &str| run.seen.get(what).copied().unwrap_or(0);
    for (what, least) in [
        ("lend", 500),
        ("ask", 500),
        ("recall", 500),
        ("drain", 100),
        ("hold", 200),
        ("protect", 5000),
        ("reserved", 1000),
        ("overcommit", 100),
        ("foreign", 100),
        ("unanswered", 100),
        ("killed", 20),
        ("pool", 1000),
    ] {
        assert!(seen(what) >= least, "{what}: {:?}", run.seen);
    }
}

fn check(property: &str) {
    run().check(property);
}

fn run() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    RUN.get_or_init(|| Run::of(SCENARIOS, look_at))
}

fn look_at(seed: u64, run: &mut Run) {
    let scenario = MemoryScenario::random(seed);
    let mut watch = Watch::default();
    let played = catch_unwind(AssertUnwindSafe(|| {
        play(&scenario, MemoryPolicy::Governor, seed, |moment| watch.look(&scenario, moment));
    }));
    if played.is_err() {
        watch.breaks("panic", scenario.name.clone());
    }
    let guaranteed =
        scenario.tenants.iter().any(|t| t.claim.as_ref().is_some_and(|claim| claim.memory.guaranteed));
    if watch.killed > 0 && !guaranteed {
        let mut without = 0;
        play(&scenario, MemoryPolicy::None, seed, |moment| {
            without = moment.truth.shares.iter().filter(|share| share.killed).count();
        });
        watch.seen.insert("killed");
        if watch.killed > without {
            watch.breaks("deaths", format!("{} were killed, {without} without", watch.killed));
        }
    }
    for (property, how) in watch.broken {
        run.broken.entry(property).or_default().push((seed, how));
    }
    for what in watch.seen {
        *run.seen.entry(what).or_default() += 1;
    }
}

/// What is remembered of a scenario while it plays.
#[derive(Debug, Default)]
struct Watch {
    broken: BTreeMap<&'static str, String>,
    seen: BTreeSet<&'static str>,
    /// Orders to take that were not answered.
    open: BTreeMap<CgroupId, Micros>,
    /// Containers whose protection another program wrote, and when.
    foreign: BTreeMap<CgroupId, Micros>,
    killed: usize,
}

impl Watch {
    fn breaks(&mut self, property: &'static str, how: String) {
        self.broken.entry(property).or_insert(how);
    }

    fn look(&mut self, scenario: &MemoryScenario, moment: &MemorySimStep<'_>) {
        let Some(governor) = moment.governor else { return };
        let now = moment.truth.now;
        self.killed = moment.truth.shares.iter().filter(|share| share.killed).count();
        let mut memory = BTreeMap::new();
        for event in moment.events {
            match event {
                HostEvent::MemoryTick(tick) => memory = tick.groups.iter().copied().collect(),
                HostEvent::MemoryDone(done) => {
                    if done.what == OrderKind::Reclaim {
                        self.open.remove(&done.group);
                    }
                    if done.what == OrderKind::Protect && done.outcome == OrderOutcome::Foreign {
                        self.seen.insert("foreign");
                        self.foreign.insert(done.group, done.now);
                    }
                }
                _ => {}
            }
        }
        self.pools(governor, moment, now);
        for share in &moment.truth.shares {
            let Some(status) = governor.status(share.group) else { continue };
            if f64::from(status.failures) > 4.0 + (scenario.duration.get() as f64 / 1e7).log2() {
                self.breaks("failures", format!("{now}: {} of {}", status.failures, share.group.0));
            }
            let new = status.decisions.iter().filter(|decision| decision.at == now);
            for decision in new {
                self.seen.insert(decision.what.name());
            }
        }
        for order in moment.orders {
            self.order(governor, moment, &memory, order, now);
        }
    }

    fn pools(&mut self, governor: &MemoryGovernor, moment: &MemorySimStep<'_>, now: Micros) {
        // Every container of a scenario is in the same pool, which may be in the machine.
        let Some(pool) = governor.pools().last() else { return };
        let statuses = moment.truth.shares.iter().filter_map(|share| governor.status(share.group));
        let owed: Bytes = statuses.map(|status| status.entitlement).sum();
        if owed.get() as f64 > pool.size.get() as f64 * 1.0001 + 64.0 {
            self.breaks("owed", format!("{now}: {owed} of {}", pool.size));
        }
        if pool.reserved > pool.size {
            self.seen.insert("overcommit");
        }
        if pool.path != "/" {
            self.seen.insert("pool");
        }
    }

    fn order(
        &mut self,
        governor: &MemoryGovernor,
        moment: &MemorySimStep<'_>,
        memory: &BTreeMap<CgroupId, GroupMemory>,
        order: &MemoryOrder,
        now: Micros,
    ) {
        match order {
            MemoryOrder::Reclaim(reclaim) => {
                let Some(status) = governor.status(reclaim.group) else { return };
                self.reclaim(governor, moment, memory, reclaim, &status, now);
                if self.open.get(&reclaim.group).is_some_and(|at| now.saturating_sub(*at) < ANSWER) {
                    self.breaks("answer", format!("{now}: {reclaim:?}"));
                }
                if self.open.insert(reclaim.group, now).is_some() {
                    self.seen.insert("unanswered");
                }
            }
            MemoryOrder::Protect(protect) => {
                self.seen.insert("protect");
                let ceded =
                    self.foreign.get(&protect.group).is_some_and(|at| now.saturating_sub(*at) < CEDED);
                if ceded {
                    self.breaks("foreign", format!("{now}: {protect:?}"));
                }
            }
            MemoryOrder::ViewCeiling(view_ceiling) => {
                let status = governor.status(view_ceiling.group);
                let below = |at: Bytes| {
                    status.as_ref().is_some_and(|s| at.saturating_add(PAGE) < s.minimum.min(s.usage))
                };
                if let Limit::At(at) = view_ceiling.ceiling
                    && below(at)
                {
                    self.breaks("view_ceiling", format!("{now}: {view_ceiling:?} {status:?}"));
                }
            }
            MemoryOrder::Alert(_) => {}
        }
    }

    fn reclaim(
        &mut self,
        governor: &MemoryGovernor,
        moment: &MemorySimStep<'_>,
        memory: &BTreeMap<CgroupId, GroupMemory>,
        reclaim: &ReclaimRequest,
        status: &ContainerMemoryStatus,
        now: Micros,
    ) {
        let usage = memory.get(&reclaim.group).map_or(Bytes::ZERO, |memory| memory.usage);
        let left = usage.saturating_sub(reclaim.amount).saturating_add(PAGE);
        let say = || format!("{now}: {reclaim:?} of {usage} {status:?}");
        if status.state == LendingState::Dead {
            return;
        }
        if left < status.minimum {
            self.breaks("minimum", say());
        }
        if status.colour != Colour::Green && status.reservation > Bytes::ZERO {
            self.seen.insert("reserved");
            if left < status.reservation.min(status.entitlement) {
                self.breaks("reservation", say());
            }
        }
        let others = moment.truth.shares.iter().filter(|share| share.group != reclaim.group);
        let needs = |colour| colour != Colour::Green;
        let needed = others.filter_map(|share| governor.status(share.group)).any(|other| needs(other.colour));
        let short = governor.pools().iter().any(|pool| pool.short && pool.needing_more > 0);
        if !needed || !short {
            self.breaks("needer", say());
        }
        let step = usage.get() as f64 * 0.12;
        match status.decisions.iter().rev().find(|decision| decision.at == now).map(|decision| decision.what)
        {
            Some(MemoryAction::Lend { amount }) if amount.get() as f64 > step.max(f64::from(1 << 20)) => {
                self.breaks("steps", say());
            }
            _ => {}
        }
    }
}

/// The same seed gives the same orders, or a recording would be worth nothing.
#[test]
fn the_same_events_give_the_same_orders() {
    for seed in 0..50 {
        let orders = || {
            let mut orders = Vec::new();
            play(&MemoryScenario::random(seed), MemoryPolicy::Governor, seed, |moment| {
                orders.extend(moment.orders.to_vec())
            });
            orders
        };
        assert_eq!(orders(), orders(), "{seed}");
    }
}

/// Lies change colours, and nothing that a property is about: some scenario has each.
#[test]
fn all_kinds_of_lies_are_told() {
    let behaviours: Vec<ProbeBehaviour> = (0..500)
        .flat_map(|seed| MemoryScenario::random(seed).tenants.into_iter().map(|tenant| tenant.probe))
        .collect();
    for wanted in [
        ProbeBehaviour::Silent,
        ProbeBehaviour::Fixed(Colour::Red),
        ProbeBehaviour::Fixed(Colour::Green),
        ProbeBehaviour::Scaled(3.0),
    ] {
        assert!(behaviours.contains(&wanted), "{wanted:?}");
    }
}
