//! Aridac's experiments on a real kernel with a really slow disk: what a burst does to a neighbour under no policy, under the
//! paper's and under ours.
//!
//! Each run tells one story ([`timeline`]) under every policy. Throughput comes from the kernel's own counters of each
//! container's cgroup, limits from the knobs, and the disk's true speed is what the lab set; the agent is only asked what
//! it believes.

pub(crate) mod figure;
pub(crate) mod record;
pub(crate) mod study;
pub(crate) mod timeline;

use crate::fio::Direction;
use crate::job::{Folder, Job, Lab};
use crate::plot;
use crate::rig::{self, SlowDisk};
use anyhow::{Context, Result, ensure};
use record::{Place, Stage};
use serde::{Deserialize, Serialize};
use std::thread;
use timeline::{Scale, Timeline, Workload};

/// Arguments of `disk`.
#[derive(clap::Args, Debug)]
pub(crate) struct Disk {
    /// What happens.
    #[arg(long, value_enum, default_value = "w1")]
    workload: Workload,
    /// How large everything is.
    #[arg(long, value_enum, default_value = "paper")]
    scale: Scale,
    /// How often the story is told under each policy.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Under which policies.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "none,aridac,lifeline")]
    policies: Vec<Policy>,
    /// Direct reads or direct writes.
    #[arg(long, value_enum, default_value = "read")]
    direction: Direction,
    /// Policies on one disk one after the other, rather than on equal disks at the same time.
    #[arg(long)]
    one_by_one: bool,
}

/// Who divides the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Policy {
    /// The kernel alone: no agent runs.
    None,
    /// The paper's, which is told the disk's speed.
    Aridac,
    /// Ours, which is told nothing.
    Lifeline,
}

/// A campaign.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    workload: Workload,
    scale: Scale,
    direction: Direction,
    /// Whether policies ran at the same time, on disks of their own.
    together: bool,
    timeline: Timeline,
    runs: Vec<Vec<Arm>>,
}

/// One story under one policy. Times are in milliseconds after its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Arm {
    pub(crate) policy: Policy,
    /// Which of the equal disks.
    disk: String,
    /// How much earlier the first container began than the last.
    skew_ms: u64,
    /// (time, bytes per second): when the disk said it had another speed.
    speeds: Vec<(u64, u64)>,
    /// One per container.
    pub(crate) series: Vec<Series>,
    told: Told,
}

/// A container's columns, one entry per sample.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Series {
    ms: Vec<u64>,
    /// Thousands of bytes since the start, as the cgroup counts.
    kb: Vec<u64>,
    /// The limit in force, thousands of bytes per second.
    pub(crate) cap_kb: Vec<Option<u64>>,
}

/// What the agent believed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Told {
    /// (time, state, thousands of bytes per second that it can do).
    disk: Vec<(u64, String, Option<u64>)>,
    /// Per container: (time, its lifeline in thousandths of that).
    lifelines: Vec<Vec<(u64, Option<u64>)>>,
    /// Kinds of alerts, when first seen.
    alerts: Vec<(u64, String)>,
}

impl Policy {
    /// Its name in tables, files and configurations.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Aridac => "aridac",
            Self::Lifeline => "lifeline",
        }
    }

    /// Lines of configuration; `None` where no agent runs. CPU and memory are not the subject, so they are sensed at leisure.
    /// Aridac's constants are those that its authors recommend: a sample every half second, the last 30 of them, 20 % of
    /// elasticity.
    fn settings(self, places: &[Place]) -> Option<Vec<String>> {
        if self == Self::None {
            return None;
        }
        let names: Vec<String> = places.iter().map(|place| format!("\"{}\"", place.disk.name)).collect();
        let mut lines = vec![
            "sense.period = \"500ms\"".to_owned(),
            "disk.mode = \"enforce\"".to_owned(),
            format!("disk.policy = \"{}\"", self.name()),
            format!("disk.devices = [{}]", names.join(", ")),
        ];
        if let (Self::Aridac, Some(place)) = (self, places.first()) {
            let capacity = place.timeline.capacity;
            lines.push("disk.period = \"500ms\"".to_owned());
            lines.push("disk.aridac.samples = 30".to_owned());
            lines.push(format!("disk.aridac.max_disk_io = \"{capacity}B/s\""));
        }
        Some(lines)
    }
}

impl Job for Disk {
    const NAME: &'static str = "disk";
    type Raw = Raw;

    fn tag(&self) -> Option<String> {
        Some(format!("{}-{}", self.workload.name(), self.scale.name()))
    }

    fn record(&self, lab: &Lab) -> Result<Raw> {
        ensure!(lab.maker.is_own(), "only the lab's own containers have fio: --engine own");
        let timeline = self.workload.timeline(self.scale);
        let together = !self.one_by_one;
        let disks = if together { self.policies.len() } else { 1 };
        let disks = rig::open(&lab.scope, disks, timeline.capacity)?;
        let (workload, scale, direction) = (self.workload, self.scale, self.direction);
        let mut raw = Raw { workload, scale, direction, together, timeline, runs: Vec::new() };
        for run in 0..self.runs {
            eprintln!("run {} of {}", run + 1, self.runs);
            // Neither the same disk nor the same place in the order twice in a row.
            let mut policies = self.policies.clone();
            policies.rotate_left(run % self.policies.len());
            let arms = if together {
                self.tell_together(lab, &policies, &disks, &raw.timeline)?
            } else {
                let tell = |policy: &Policy| {
                    let place = Place { disk: &disks[0], timeline: &raw.timeline };
                    Stage::set(lab, *policy, vec![place], self.direction)?.tell(lab)
                };
                policies.iter().map(tell).collect::<Result<Vec<_>>>()?.concat()
            };
            raw.runs.push(arms);
            lab.keep(&raw)?;
        }
        Ok(raw)
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        study::write(raw, out)?;
        let disk = plot::plain(raw.timeline.capacity as f64 / 1e6);
        let title = format!("{} on a disk of {disk} MB/s", raw.workload.name().to_uppercase());
        let arms: Vec<&Arm> = raw.runs.iter().flatten().collect();
        out.figure("throughput.svg", &title, &figure::draw(&title, &raw.timeline, &arms)?)
    }
}

impl Disk {
    fn tell_together(
        &self,
        lab: &Lab,
        policies: &[Policy],
        disks: &[SlowDisk],
        timeline: &Timeline,
    ) -> Result<Vec<Arm>> {
        let set = |(policy, disk): (&Policy, _)| {
            Stage::set(lab, *policy, vec![Place { disk, timeline }], self.direction)
        };
        let stages: Vec<Stage> = policies.iter().zip(disks).map(set).collect::<Result<_>>()?;
        let arms: Result<Vec<Vec<Arm>>> = thread::scope(|threads| {
            let told: Vec<_> = stages.iter().map(|stage| threads.spawn(|| stage.tell(lab))).collect();
            told.into_iter().map(|t| t.join().expect("no thread of a story panics")).collect()
        });
        arms.map(|arms| arms.concat()).context("while telling a story under several policies at once")
    }
}
