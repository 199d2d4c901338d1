//! One story, told once under each policy: on disks of their own at the same time, or on one after the other.

use super::timeline::{Actor, Timeline};
use super::{Arm, Policy, Series, Told};
use crate::cgroup::Limits;
use crate::container::Container;
use crate::fio::{Direction, Fio, Plan};
use crate::job::{Lab, now_ns};
use crate::product::Product;
use crate::rig::SlowDisk;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::thread;
use std::time::Duration;

/// Time between two samples.
pub(super) const SAMPLE_MS: u64 = 1000;

/// How much longer loads run than is looked at: they begin a little before time does.
const OVERTIME_S: u32 = 3;

/// A disk and what happens to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// The disk.
    pub(crate) disk: &'a SlowDisk,
    /// What happens; on every disk of a stage, to the same actors.
    pub(crate) timeline: &'a Timeline,
}

/// What is needed to tell a story under one policy. Containers end before the agent: fields are dropped in order.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    containers: Vec<Container>,
    agent: Option<Product>,
    policy: Policy,
    places: Vec<Place<'a>>,
    direction: Direction,
}

impl<'a> Stage<'a> {
    /// Makes the containers, and starts an agent that governs them on these disks and nothing else.
    pub(crate) fn set(
        lab: &Lab,
        policy: Policy,
        places: Vec<Place<'a>>,
        direction: Direction,
    ) -> Result<Self> {
        let actors = &places.first().context("a stage needs a disk")?.timeline.actors;
        let agent = policy.settings(&places).map(|settings| lab.agent(policy.name(), &settings));
        let make = |actor: &Actor| {
            let name = format!("{}-{}", policy.name(), actor.name);
            lab.maker.make(&name, &Limits::default(), &[])
        };
        let containers = actors.iter().map(make).collect::<Result<Vec<_>>>()?;
        for place in &places {
            place.disk.set_speed(place.timeline.speed(0))?;
            containers.iter().try_for_each(|container| container.cgroups.count_io(&place.disk.number))?;
        }
        Ok(Self { containers, agent: agent.transpose()?, policy, places, direction })
    }

    /// Tells the story, one arm per disk; time begins when every container has done its first I/O on every disk.
    pub(crate) fn tell(&self, lab: &Lab) -> Result<Vec<Arm>> {
        let mut loads = Vec::new();
        for Place { disk, timeline } in &self.places {
            for (container, actor) in self.containers.iter().zip(&timeline.actors) {
                let plan = Plan {
                    disk: &disk.path(),
                    direction: self.direction,
                    style: actor.style,
                    phases: &actor.phases,
                    seconds: timeline.seconds + OVERTIME_S,
                    capacity: timeline.capacity,
                };
                let file = lab.scope.dir().join(format!("{}-{}.fio", container.name, disk.name));
                loads.push(Fio::start(container, &file, &plan)?);
            }
        }
        let skew_ms = self.await_first_io(lab, &mut loads)?;
        let start = now_ns();
        let arms: Vec<Result<Arm>> = thread::scope(|threads| {
            let tell = |place| threads.spawn(move || self.tell_one(lab, place, start, skew_ms));
            let told: Vec<_> = self.places.iter().map(tell).collect();
            told.into_iter().map(|t| t.join().expect("no thread of a story panics")).collect()
        });
        let arms = arms.into_iter().collect::<Result<_>>()?;
        loads.into_iter().try_for_each(Fio::finish)?;
        Ok(arms)
    }

    fn tell_one(&self, lab: &Lab, place: &Place, start: u64, skew_ms: u64) -> Result<Arm> {
        let (series, speeds, told) = thread::scope(|threads| {
            let speeds = threads.spawn(|| change_speeds(lab, place, start));
            let told = threads.spawn(|| self.listen(lab, place, start));
            let series = self.sample(lab, place, start);
            (
                series,
                speeds.join().expect("no thread of a story panics"),
                told.join().expect("no thread of a story panics"),
            )
        });
        Ok(Arm {
            policy: self.policy,
            disk: place.disk.name.clone(),
            skew_ms,
            speeds: speeds?,
            series: series?,
            told: told?,
        })
    }

    /// How much earlier the first load began than the last.
    fn await_first_io(&self, lab: &Lab, loads: &mut [Fio]) -> Result<u64> {
        let everywhere = || self.places.iter().flat_map(|p| self.containers.iter().map(move |c| (c, p.disk)));
        let mut began: Vec<Option<u64>> = vec![None; loads.len()];
        lab.scope.wait_for("first I/O of every container", Duration::from_secs(60), || {
            for (((container, disk), began), load) in everywhere().zip(&mut began).zip(loads.iter_mut()) {
                if began.is_none() && done(container, disk)? > 0 {
                    *began = Some(now_ns());
                } else if load.has_ended()? {
                    bail!("fio in {} ended before it did anything", container.name);
                }
            }
            Ok(began.iter().all(Option::is_some))
        })?;
        let times = || began.iter().flatten();
        let (first, last) = (times().min().copied().unwrap_or(0), times().max().copied().unwrap_or(0));
        Ok(last.saturating_sub(first) / 1_000_000)
    }

    /// What the kernel counts and what limits are in force: nothing here comes from the agent.
    fn sample(&self, lab: &Lab, place: &Place, start: u64) -> Result<Vec<Series>> {
        let Place { disk, timeline } = place;
        let mut all = vec![Series::default(); self.containers.len()];
        let first: Vec<u64> = self.containers.iter().map(|c| done(c, disk)).collect::<Result<_>>()?;
        for due in (0..=u64::from(timeline.seconds) * 1000).step_by(SAMPLE_MS as usize) {
            sleep_until(lab, start, due)?;
            for (((container, actor), series), first) in
                self.containers.iter().zip(&timeline.actors).zip(&mut all).zip(&first)
            {
                series.ms.push(ms_since(start));
                series.kb.push((done(container, disk)? - first) / 1000);
                series.cap_kb.push(self.cap(container, disk, actor)?.map(|bytes| bytes / 1000));
            }
        }
        Ok(all)
    }

    /// Bytes per second: a limit on operations counts as the bytes that so many requests of this container's carry.
    fn cap(&self, container: &Container, disk: &SlowDisk, actor: &Actor) -> Result<Option<u64>> {
        let limits = container.cgroups.io_limits(&disk.number)?;
        let way = self.direction as usize;
        let operations = limits[2 + way].map(|n| n.saturating_mul(actor.style.block));
        Ok(limits[way].into_iter().chain(operations).min())
    }

    /// What the agent says, once a second.
    fn listen(&self, lab: &Lab, place: &Place, start: u64) -> Result<Told> {
        let mut told = Told { lifelines: vec![Vec::new(); self.containers.len()], ..Told::default() };
        let Some(agent) = &self.agent else { return Ok(told) };
        let key = match self.direction {
            Direction::Read => "rbps",
            Direction::Write => "wbps",
        };
        for due in (0..u64::from(place.timeline.seconds) * 1000).step_by(SAMPLE_MS as usize) {
            sleep_until(lab, start, due)?;
            let (disks, list) = (ask(agent, "disks")?, ask(agent, "list")?);
            let at = ms_since(start);
            let ours =
                |key: &'static str| move |v: &&Value| v[key].as_str() == Some(place.disk.number.as_str());
            let disk = array(&disks, "disks").iter().find(ours("number"));
            if let Some(disk) = disk {
                let state = disk["state"].as_str().unwrap_or_default().to_owned();
                told.disk.push((at, state, disk["capacity"][key]["at"].as_u64().map(|bytes| bytes / 1000)));
            }
            for (container, lifelines) in self.containers.iter().zip(&mut told.lifelines) {
                let same = |v: &&Value| v["id"].as_str() == Some(container.id.as_str());
                let Some(view) = array(&list, "containers").iter().find(same) else { continue };
                let standing = array(view, "disk").iter().find(ours("disk"));
                let part = standing.and_then(|s| s["lifeline"].as_f64());
                lifelines.push((at, part.map(|part| (part * 1000.0).round() as u64)));
            }
            for alert in array(&disks, "alerts") {
                let kind = alert["kind"].as_str().unwrap_or_default();
                if !told.alerts.iter().any(|(_, known)| known == kind) {
                    told.alerts.push((at, kind.to_owned()));
                }
            }
        }
        Ok(told)
    }
}

fn done(container: &Container, disk: &SlowDisk) -> Result<u64> {
    Ok(container.cgroups.io_bytes(&disk.number)?.iter().sum())
}

fn change_speeds(lab: &Lab, place: &Place, start: u64) -> Result<Vec<(u64, u64)>> {
    let mut done = vec![(0, place.timeline.speed(0))];
    for (at, speed) in place.timeline.speeds.iter().skip(1) {
        sleep_until(lab, start, u64::from(*at) * 1000)?;
        place.disk.set_speed(*speed)?;
        done.push((ms_since(start), *speed));
    }
    Ok(done)
}

fn ask(agent: &Product, verb: &str) -> Result<Value> {
    let text = agent.ask(&[verb])?;
    serde_json::from_str(&text).with_context(|| format!("while reading `elbowroom {verb}`"))
}

/// The list under `key`, or the value itself where it is one.
fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.as_array().or_else(|| value[key].as_array()).map_or(&[], Vec::as_slice)
}

fn ms_since(start: u64) -> u64 {
    now_ns().saturating_sub(start) / 1_000_000
}

fn sleep_until(lab: &Lab, start: u64, ms: u64) -> Result<()> {
    lab.scope.sleep(Duration::from_nanos((start + ms * 1_000_000).saturating_sub(now_ns())))
}
