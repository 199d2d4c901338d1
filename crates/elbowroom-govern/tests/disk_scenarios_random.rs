//! What holds under the policy `lifeline` whatever happens, over ten thousand scenarios; the names are the properties.
//!
//! All of them look at the same run, which the first to need it makes. A seed that fails is in the message;
//! `Scenario::random(seed)` is what happened.

use crate::many::Run;
use elbowroom_govern::disk::{Cap, ContainerDiskStatus, DiskOrder, DiskPolicy, DiskState, DiskView, HeldBy};
use elbowroom_sim::disk::{DiskProgram, DiskScenario, DiskSimStep, DiskTenant, IoMethod, play};
use elbowroom_types::id::{CgroupId, DeviceNumber};
use elbowroom_types::io::{IoMax, LimitWriteFailure};
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::{Limit, Micros};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

const SCENARIOS: u64 = 10_000;

#[test]
fn floors_hold() {
    check("floors");
}

#[test]
fn a_censored_lifeline_never_falls() {
    check("censored");
}

#[test]
fn no_container_is_capped_on_a_disk_without_contention() {
    check("contention");
}

#[test]
fn limits_are_loosened_at_most_once_a_second() {
    check("pace");
}

#[test]
fn a_foreign_writer_is_left_alone() {
    check("foreign");
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
    for what in ["caps", "share", "slow", "censored", "floor", "ceded", "alone"] {
        assert!(seen(what) > SCENARIOS / 100, "{what}: {:?}", run.seen);
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
    let scenario = DiskScenario::random(seed);
    let mut watch = Watch::new(&scenario);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        play(&scenario, Some(DiskPolicy::Lifeline), seed, |moment| watch.see(moment));
    }));
    if let Err(panic) = outcome {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        watch.broken.insert("panic", text.unwrap_or_default());
    }
    for (property, text) in watch.broken {
        run.broken.entry(property).or_default().push((seed, text));
    }
    for what in watch.seen {
        *run.seen.entry(what).or_default() += 1;
    }
}

type Pair = (CgroupId, DeviceNumber);

/// What the policy says after one period.
struct Now<'a> {
    moment: &'a DiskSimStep<'a>,
    at: Micros,
    disks: BTreeMap<DeviceNumber, DiskView>,
    statuses: Vec<(Pair, ContainerDiskStatus)>,
}

/// One scenario, watched.
struct Watch<'a> {
    scenario: &'a DiskScenario,
    /// The first thing that broke each property.
    broken: BTreeMap<&'static str, String>,
    seen: BTreeSet<&'static str>,
    ordered: BTreeMap<Pair, Micros>,
    foreign: BTreeSet<Pair>,
    lifelines: BTreeMap<Pair, f64>,
    /// When each container last wanted something of each disk.
    wanted: BTreeMap<Pair, Micros>,
    /// Disks on which a container may have waited for another.
    contended: BTreeSet<DeviceNumber>,
}

impl<'a> Watch<'a> {
    fn new(scenario: &'a DiskScenario) -> Self {
        Self {
            scenario,
            broken: BTreeMap::new(),
            seen: BTreeSet::new(),
            ordered: BTreeMap::new(),
            foreign: BTreeSet::new(),
            lifelines: BTreeMap::new(),
            wanted: BTreeMap::new(),
            contended: BTreeSet::new(),
        }
    }

    fn see(&mut self, moment: &DiskSimStep<'_>) {
        let governor = moment.governor.expect("played with a policy");
        let groups: BTreeSet<CgroupId> = moment.truth.shares.iter().map(|share| share.group).collect();
        let statuses = groups.into_iter().flat_map(|group| {
            let all = governor.disk_statuses(group).into_iter();
            all.map(move |status| ((group, status.disk), status))
        });
        let now = Now {
            moment,
            at: moment.truth.now,
            disks: governor.disks().into_iter().map(|disk| (disk.number, disk)).collect(),
            statuses: statuses.collect(),
        };
        self.contend(&now);
        for order in moment.orders {
            if let DiskOrder::Cap(cap) = order {
                self.order(cap, &now);
            }
        }
        // After the orders: within the period it may have been told of later than they were given.
        for event in moment.events {
            if let HostEvent::IoLimits(limits) = event
                && limits.ceded == Some(LimitWriteFailure::Foreign)
            {
                self.foreign.insert((limits.group, limits.disk));
                self.seen.insert("ceded");
            }
        }
        for disk in now.disks.values() {
            self.share(&now, disk);
        }
        self.lifelines(&now);
    }

    /// Whether two want something of a disk within ten seconds, of which a fifth would be used.
    fn contend(&mut self, now: &Now<'_>) {
        for share in now.moment.truth.shares.iter().filter(|share| share.wanted > 0.0) {
            self.wanted.insert((share.group, DiskScenario::number(share.drive)), now.at);
        }
        for disk in &now.moment.truth.drives {
            let lately = |at: &Micros| now.at.saturating_sub(*at) <= Micros::secs(10);
            let wanting = self.wanted.iter().filter(|((_, on), at)| *on == disk.number && lately(at)).count();
            if wanting > 1 && disk.possible > 0.2 {
                self.contended.insert(disk.number);
            } else if wanting > 0 && !self.contended.contains(&disk.number) {
                self.seen.insert("alone");
            }
        }
    }

    fn order(&mut self, cap: &Cap, now: &Now<'_>) {
        let pair = (cap.group, cap.disk);
        self.seen.insert("caps");
        if let Some(before) = self.ordered.insert(pair, cap.at)
            && cap.at.saturating_sub(before) < Micros::millis(900)
            && !cap.because.starts_with("shared out")
        {
            self.breaks("pace", format!("{}: {cap:?}, the last one at {before}", now.at));
        }
        if self.foreign.contains(&pair) {
            self.breaks("foreign", format!("{}: {cap:?}", now.at));
        }
        if cap.max != IoMax::MAX && !self.contended.contains(&cap.disk) {
            self.breaks("contention", format!("{}: {cap:?}", now.at));
        }
    }

    /// No cap in force is below a lifeline: it is cut only down to what is needed and `P` above.
    fn share(&mut self, now: &Now<'_>, disk: &DiskView) {
        match disk.state {
            DiskState::Slow => self.seen.insert("slow"),
            DiskState::Share => self.seen.insert("share"),
            _ => false,
        };
        let here = now.statuses.iter().filter(|(pair, _)| pair.1 == disk.number).map(|(_, status)| status);
        let simple = self.is_simple();
        for status in here.filter(|status| simple && status.enforced) {
            if let (Some(cap), Some(lifeline)) = (status.cap, status.lifeline) {
                self.seen.insert("floor");
                if cap < lifeline * (1.0 - 1e-9) {
                    self.breaks("floors", format!("{}: {status:?} {disk:?}", now.at));
                }
            }
        }
    }

    /// Only on disks where all requests are alike: a lifeline is kept as rates and told as a part of the disk, and elsewhere that
    /// moves with the prices of single kinds of requests. One that falls does so by up to a sixtieth per second; a hundredth is
    /// left for its bytes and its operations, which rise on their own.
    fn lifelines(&mut self, now: &Now<'_>) {
        let before = std::mem::take(&mut self.lifelines);
        for (pair, status) in &now.statuses {
            let capacity = &now.disks[&pair.1].capacity;
            let (Some(part), Some(reads)) = (status.lifeline, self.alike(pair.1)) else { continue };
            let Limit::At(whole) = (if reads { capacity.rbps } else { capacity.wbps }) else { continue };
            let lifeline = part * whole as f64;
            self.lifelines.insert(*pair, lifeline);
            if let Some(before) = before.get(pair)
                && wants_more(status)
            {
                self.seen.insert("censored");
                if lifeline < before * 0.99 {
                    self.breaks("censored", format!("{}: {before}, now {lifeline}: {status:?}", now.at));
                }
            }
        }
    }

    /// Whether all requests to a disk are reads, or all are writes, of one size.
    fn alike(&self, number: DeviceNumber) -> Option<bool> {
        let programs = self.scenario.tenants.iter().flat_map(|tenant| &tenant.programs);
        let mut here = programs.filter(|program| DiskScenario::number(program.disk) == number);
        let kind = |program: &DiskProgram| {
            (program.size, program.reads > 0.0 && program.method != IoMethod::Buffered)
        };
        let first = here.next().filter(|program| program.reads == 0.0 || program.reads == 1.0).map(kind)?;
        here.all(|program| kind(program) == first && (program.reads == 0.0 || program.reads == 1.0))
            .then_some(first.1)
    }

    /// Whether nothing comes before lifelines: no tiers, no limits of users or strangers.
    fn is_simple(&self) -> bool {
        let tiers =
            self.scenario.tenants.iter().map(|tenant| tenant.claim.as_ref().map_or(0, |claim| claim.tier));
        let others = |tenant: &DiskTenant| tenant.user_max != IoMax::MAX || tenant.foreign.is_some();
        tiers.max() == Some(0) && !self.scenario.tenants.iter().any(others)
    }

    fn breaks(&mut self, property: &'static str, how: String) {
        self.broken.entry(property).or_insert(how);
    }
}

/// Whether the policy itself says that a container would do more if it could.
fn wants_more(status: &ContainerDiskStatus) -> bool {
    matches!(status.held_by, HeldBy::Cap | HeldBy::Others | HeldBy::Disk)
}
