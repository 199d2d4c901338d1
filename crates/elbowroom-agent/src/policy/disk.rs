//! The disk governor at work: decisions of [`Disks`] become limits, alerts and answers.
//!
//! Everything here runs on the owner's thread and waits for nothing. Limits are put on by the [`Limiter`], capacities are written by [`Capacities`]; what comes of a limit comes back as [`Event::IoLimits`] and goes
//! through the governor like everything else, so that a recording of its events replays to the same decisions.

use super::Mailbox;
use super::capacities::Capacities;
use super::limiter::{Limiter, Told};
use super::orders::{Orders, Place};
use crate::config::Config;
use anyhow::Result;
use elbowroom_client::api::{AlertView, DiskStatus, DisksReport, Named};
use elbowroom_govern::Mode;
use elbowroom_govern::disk::{Cap, Disks, Order, Standing};
use elbowroom_linux::cgroup::{Controller, Layout};
use elbowroom_linux::lease;
use elbowroom_linux::memory::Actuator;
use elbowroom_linux::root::Root;
use elbowroom_linux::timer;
use elbowroom_types::alert::Alert;
use elbowroom_types::sample::{DeviceNumber, Event, Group, GroupId, IoLimits, IoMax, Weights};
use elbowroom_types::unit::{Limit, Micros};
use std::collections::BTreeMap;
use std::path::Path;

/// How often the guard is told that we work; it waits for three of them.
const BEAT_EVERY: Micros = Micros::secs(1);

/// A disk that may be saturated is measured again after this.
const AGAIN: Micros = Micros::millis(250);

/// The governor and its hands.
pub(super) struct DiskRoom {
    disks: Disks,
    mode: Mode,
    /// Present when some governor's orders are carried out.
    limiter: Option<Limiter>,
    /// Whether limits on disks are.
    limits: bool,
    /// Why they are not, though they should be.
    not_enforced: Option<String>,
    /// When disks are measured, and the guard is told, next.
    measure_at: Micros,
    /// What the running measurement took until now.
    measuring: Micros,
    beat_at: Micros,
    /// A beat that was not answered: the limiter is busy.
    beating: bool,
    containers: BTreeMap<GroupId, Named>,
    weights: BTreeMap<DeviceNumber, Weights>,
    orders: Orders,
    /// Where limits of ours are in force, or were ceded, as was answered last.
    told: BTreeMap<Place, IoLimits>,
    /// What a disk's number stands for: numbers are used again.
    identities: BTreeMap<DeviceNumber, String>,
    /// What is to be told and was not taken yet.
    alerts: Vec<Alert>,
    capacities: Option<Capacities>,
    status: DiskStatus,
}

impl DiskRoom {
    /// Starts what the configuration asks for. What this host lacks is said and done without.
    pub(super) fn open(config: &Config, run_dir: &Path, state_dir: &Path, mailbox: Mailbox) -> Result<Self> {
        let mode = config.disk.mode;
        let mut disks = Disks::new(config.disk.clone(), config.claims.clone());
        let mut capacities = None;
        let (mut limiter, mut not_enforced) = (None, None);
        if mode != Mode::Off {
            let opened = Capacities::open(state_dir);
            opened.known().for_each(|(identity, capacity)| disks.remember(identity, capacity));
            capacities = Some(opened);
        }
        if [mode, config.memory.mode].contains(&Mode::Enforce) {
            match limiter_for(run_dir, mailbox) {
                Ok((started, why)) => (limiter, not_enforced) = (Some(started), why),
                Err(error) => not_enforced = Some(elbowroom_client::output::one_line(&error)),
            }
            if mode == Mode::Enforce
                && let Some(why) = &not_enforced
            {
                tracing::warn!(because = why, "limits on disks are only shown, not set");
            }
        }
        let limits = mode == Mode::Enforce && not_enforced.is_none();
        tracing::info!(mode = ?mode, policy = ?config.disk.policy, period = %config.disk.period, "governing disks");
        Ok(Self {
            disks,
            mode,
            limiter,
            limits,
            not_enforced,
            measure_at: Micros::ZERO,
            measuring: Micros::ZERO,
            beat_at: Micros::ZERO,
            beating: false,
            containers: BTreeMap::new(),
            weights: BTreeMap::new(),
            orders: Orders::default(),
            told: BTreeMap::new(),
            identities: BTreeMap::new(),
            alerts: Vec::new(),
            capacities,
            status: DiskStatus::default(),
        })
    }

    /// Whether disks are to be measured now, or a measurement is to be carried on.
    pub(super) fn is_due(&self, now: Micros) -> bool {
        self.mode != Mode::Off && now >= self.measure_at
    }

    /// What a measurement took, or a part of one.
    pub(super) fn measured_in(&mut self, took: Micros, complete: bool) {
        self.measuring = self.measuring.saturating_add(took);
        if complete {
            self.status.tick_usec = std::mem::take(&mut self.measuring).get();
            let (now, period) = (timer::now(), self.disks.settings().period);
            // The next full period, as the ticker does it: what was missed is not made up for.
            let next = self.measure_at.saturating_add(period);
            self.measure_at = if next > now { next } else { now.saturating_add(period) };
        }
    }

    /// Lets the governor know, and does what it says.
    pub(super) fn apply(&mut self, event: &Event) {
        if let Event::Group(group) = event {
            self.meet(group);
        }
        if self.mode == Mode::Off {
            return;
        }
        match event {
            Event::Disk(disk) => {
                let before = self.identities.insert(disk.number, disk.identity.clone());
                if before.is_some_and(|before| before != disk.identity) {
                    self.leave(disk.number);
                }
                match disk.weights {
                    Some(weights) => drop(self.weights.insert(disk.number, weights)),
                    None => drop(self.weights.remove(&disk.number)),
                }
            }
            Event::DiskGone(number) => {
                self.weights.remove(number);
                self.identities.remove(number);
                self.leave(*number);
            }
            Event::DiskTick(_) => self.status.ticks += 1,
            _ => {}
        }
        let begin = matches!(event, Event::DiskTick(_)).then(timer::now);
        let orders = self.disks.apply(event);
        if let Some(begin) = begin {
            let now = timer::now();
            self.status.decide_usec = now.saturating_sub(begin).get();
            if self.disks.wonders() {
                self.measure_at = self.measure_at.min(now.saturating_add(AGAIN));
            }
        }
        orders.into_iter().for_each(|order| self.obey(order));
    }

    /// As [`Self::apply`], for what the sensor reads: a limit of ours that it finds in a knob is not the user's, and one that
    /// is not ours in a knob of ours is looked at by who can say whose it is.
    pub(super) fn sensed(&mut self, event: &Event) {
        match event {
            Event::IoLimits(limits) => {
                let place = (limits.group, limits.disk);
                let Some(told) = self.told.get_mut(&place) else {
                    return self.apply(event);
                };
                let Found { user, foreign } = Found::beside(told, limits.user);
                if foreign {
                    self.orders.again(place);
                }
                if user != told.user {
                    told.user = user;
                    let event = Event::IoLimits(*told);
                    self.apply(&event);
                }
            }
            event => self.apply(event),
        }
    }

    /// A disk is not governed any more, or another one has its number: nothing of ours stays there.
    fn leave(&mut self, disk: DeviceNumber) {
        self.told.retain(|(_, on), _| *on != disk);
        for group in self.orders.leave(disk) {
            let because = "this disk is not governed any more".to_owned();
            self.orders.put(Cap { at: timer::now(), group, disk, max: IoMax::MAX, weight: None, because });
        }
    }

    /// A container is gone.
    pub(super) fn forget(&mut self, group: GroupId) {
        if self.containers.remove(&group).is_none() {
            return;
        }
        self.orders.forget(group);
        self.told.retain(|(of, _), _| *of != group);
        if let Some(limiter) = &self.limiter {
            limiter.forget(group);
        }
    }

    /// Takes an answer of the limiter.
    pub(super) fn told(&mut self, told: Told) {
        match told {
            Told::Beaten { held } => {
                self.beating = false;
                self.status.held = held as u64;
            }
            Told::Memory(..) => {}
            Told::Limits(limits) => {
                let key = (limits.group, limits.disk);
                self.orders.answered(key);
                if limits.ours == IoMax::MAX && limits.ceded.is_none() {
                    self.told.remove(&key);
                } else if self.containers.contains_key(&limits.group)
                    && self.identities.contains_key(&limits.disk)
                {
                    self.told.insert(key, limits);
                }
                match limits.ceded {
                    None => self.status.written += 1,
                    Some(_) => self.status.not_written += 1,
                }
                self.apply(&Event::IoLimits(limits));
            }
        }
    }

    /// The chores of one of the owner's ticks.
    pub(super) fn tick(&mut self, now: Micros) {
        if let Some(limiter) = &self.limiter {
            if now >= self.beat_at && !self.beating {
                limiter.beat();
                self.beating = true;
                self.beat_at = now.saturating_add(BEAT_EVERY);
            }
            for cap in self.orders.due(now) {
                match self.containers.get(&cap.group) {
                    Some(container) => {
                        let weights = self.weights.get(&cap.disk).copied();
                        limiter.cap(cap, container.path.clone(), weights);
                    }
                    None => self.orders.answered((cap.group, cap.disk)),
                }
            }
        }
        if let Some(capacities) = &mut self.capacities
            && capacities.is_due(now)
        {
            capacities.keep(now, self.disks.capacities());
        }
    }

    /// What a container is called.
    pub(super) fn named(&self, group: GroupId) -> Option<&Named> {
        self.containers.get(&group)
    }

    /// Where a container stands at its disks; `history` decides whether decisions are in it.
    pub(super) fn standings(&self, group: GroupId, history: bool) -> Vec<Standing> {
        let mut standings = self.disks.standings(group);
        if !history {
            standings.iter_mut().for_each(|standing| standing.decisions.clear());
        }
        standings
    }

    /// Answer to `Request::Disks`.
    pub(super) fn report(&self, name: impl Fn(Alert) -> AlertView) -> DisksReport {
        DisksReport {
            mode: self.mode,
            not_enforced: self.not_enforced.clone(),
            policy: self.disks.settings().policy,
            disks: self.disks.disks(),
            alerts: self.disks.alerts().into_iter().map(name).collect(),
        }
    }

    /// Counters for `Request::Status`.
    pub(super) fn status(&self) -> DiskStatus {
        self.status.clone()
    }

    /// Takes every limit off, keeps what was learned, and ends the threads.
    pub(super) fn stop(&mut self) {
        if let Some(limiter) = self.limiter.take() {
            limiter.stop();
        }
        if let Some(mut capacities) = self.capacities.take() {
            capacities.keep(timer::now(), self.disks.capacities());
            capacities.stop();
        }
    }

    fn meet(&mut self, group: &Group) {
        let Some(container) = &group.container else { return };
        let named =
            Named { id: container.id.clone(), name: container.name.clone(), path: group.path.clone() };
        self.containers.insert(group.id, named);
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Cap(cap) => {
                tracing::debug!(
                    container = self.containers.get(&cap.group).map(|c| &c.path),
                    disk = %cap.disk,
                    max = %shown(cap.max),
                    because = cap.because,
                    "limit decided"
                );
                if self.limits {
                    self.orders.put(cap);
                }
            }
            Order::Alert(alert) => self.alerts.push(alert),
        }
    }

    /// What began or ended since the last call.
    pub(super) fn take_alerts(&mut self) -> Vec<Alert> {
        std::mem::take(&mut self.alerts)
    }

    /// Who carries orders out, where that is done.
    pub(super) fn limiter(&self) -> Option<Limiter> {
        self.limiter.clone()
    }
}

/// A limiter; and why it cannot limit disks here, where that is so.
fn limiter_for(run_dir: &Path, mailbox: Mailbox) -> Result<(Limiter, Option<String>)> {
    let root = Root::at(Path::new("/"))?;
    let (layout, actuator) = (Layout::detect(&root)?, Actuator::new(Layout::detect(&root)?));
    let missing = layout.index(Controller::Io).is_none().then(|| {
        "no io controller: add blkio (cgroup v1) or io (cgroup.subtree_control of the root) and restart the agent".to_owned()
    });
    Ok((Limiter::start(&run_dir.join(lease::DIR), layout, actuator, mailbox)?, missing))
}

/// What the sensor finds, beside what was told of a container.
#[derive(Debug, PartialEq)]
struct Found {
    /// What its user has set.
    user: IoMax,
    /// Whether a knob of ours has another value than ours.
    foreign: bool,
}

impl Found {
    fn beside(told: &IoLimits, found: IoMax) -> Self {
        let mut foreign = false;
        let mut user = |ours: Limit<u64>, user, found| match ours {
            Limit::Max => found,
            ours => {
                foreign |= found != ours;
                user
            }
        };
        let IoLimits { ours, user: before, .. } = told;
        let user = IoMax {
            rbps: user(ours.rbps, before.rbps, found.rbps),
            wbps: user(ours.wbps, before.wbps, found.wbps),
            riops: user(ours.riops, before.riops, found.riops),
            wiops: user(ours.wiops, before.wiops, found.wiops),
        };
        Self { user, foreign }
    }
}

/// The limits that are there, as `io.max` spells them.
pub(crate) fn shown(max: IoMax) -> String {
    let IoMax { rbps, wbps, riops, wiops } = max;
    format!("rbps={rbps} wbps={wbps} riops={riops} wiops={wiops}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::alert::Kind;
    use elbowroom_types::sample::{Ceded, Container, Disk, DiskTick, Engine, GroupIo, IoStat, Limits};
    use std::sync::{Arc, mpsc};

    const DISK: DeviceNumber = DeviceNumber { major: 7, minor: 0 };
    const GROUP: GroupId = GroupId(3);

    const fn writes(wbps: u64) -> IoMax {
        IoMax { wbps: Limit::At(wbps), ..IoMax::MAX }
    }

    const fn limits(user: IoMax, ours: IoMax, ceded: Option<Ceded>) -> IoLimits {
        IoLimits { group: GROUP, disk: DISK, user, ours, ceded }
    }

    /// A container on a disk, and nobody who carries orders out.
    fn room(state: &Path) -> DiskRoom {
        let (queue, _) = mpsc::channel();
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        let mailbox = Mailbox { queue, wake: Arc::new(wake) };
        let mut room = DiskRoom::open(&Config::default(), state, state, mailbox).unwrap();
        let container = Container {
            id: "c".into(),
            name: None,
            engine: Engine::Docker,
            pod: None,
            labels: Default::default(),
        };
        room.apply(&Event::Group(Group {
            id: GROUP,
            parent: None,
            path: "/c".into(),
            container: Some(container),
            limits: Limits::default(),
            populated: true,
        }));
        room.apply(&Event::Disk(Disk {
            number: DISK,
            name: "loop0".into(),
            identity: "loop0".into(),
            rotational: false,
            scheduler: "none".into(),
            weights: None,
            swap: false,
        }));
        room
    }

    fn ticks(room: &mut DiskRoom, seconds: impl Iterator<Item = u64>) {
        for now in seconds.map(Micros::secs) {
            let io = vec![IoStat { device: DISK, ..IoStat::default() }];
            let groups = vec![GroupIo { group: GROUP, stalled: None, dirty: None, io }];
            let disks = vec![(DISK, Default::default())];
            room.apply(&Event::DiskTick(DiskTick { now, pressure: None, disks, groups }));
        }
    }

    #[test]
    fn a_limit_that_was_ceded_stays_so_whatever_the_sensor_reads() {
        let state = tempfile::tempdir().unwrap();
        let mut room = room(state.path());
        let foreign = |room: &DiskRoom| room.disks.alerts().iter().any(|a| a.kind == Kind::ForeignWriter);
        ticks(&mut room, 0..2);
        room.told(Told::Limits(limits(writes(77), IoMax::MAX, Some(Ceded::Foreign))));
        // An alert lingers for ten seconds.
        for (at, found) in [(2, 77), (20, 78), (40, 78)] {
            room.sensed(&Event::IoLimits(limits(writes(found), IoMax::MAX, None)));
            ticks(&mut room, at..at + 18);
            assert!(foreign(&room), "{at}");
            assert_eq!(room.told[&(GROUP, DISK)].user, writes(found));
        }
        ticks(&mut room, 58..602);
        assert!(foreign(&room));
        ticks(&mut room, 602..620);
        assert!(!foreign(&room), "ten minutes are over");
        room.told(Told::Limits(limits(writes(78), IoMax::MAX, Some(Ceded::Foreign))));
        room.apply(&Event::DiskGone(DISK));
        assert!(room.told.is_empty(), "nothing is known of a disk that is gone");
    }

    #[test]
    fn what_is_in_a_knob_of_ours_and_is_not_ours_is_looked_at_again() {
        let state = tempfile::tempdir().unwrap();
        let mut room = room(state.path());
        let cap = Cap {
            at: Micros::ZERO,
            group: GROUP,
            disk: DISK,
            max: writes(50),
            weight: None,
            because: String::new(),
        };
        room.orders.put(cap);
        let orders = |room: &mut DiskRoom, at| room.orders.due(Micros::secs(at)).len();
        assert_eq!(orders(&mut room, 0), 1);
        room.told(Told::Limits(limits(IoMax::MAX, writes(50), None)));
        let riops = IoMax { riops: Limit::At(9), ..writes(50) };
        for (at, found, again) in [(1, writes(50), 0), (2, riops, 0), (3, writes(60), 1)] {
            room.sensed(&Event::IoLimits(limits(found, IoMax::MAX, None)));
            assert_eq!(orders(&mut room, at), again, "{at}");
        }
        assert_eq!(room.told[&(GROUP, DISK)].user, IoMax { riops: Limit::Max, ..IoMax::MAX });
    }
}
