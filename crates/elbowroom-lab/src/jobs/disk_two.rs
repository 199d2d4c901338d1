//! Two disks, one agent: on the first a hog floods a steady container while the disk slows down and recovers; on the second
//! the same two containers want less than it can do. What is limited on the first must not be felt on the second.

use super::disk::record::{Place, Stage};
use super::disk::timeline::{Scale, Timeline, Workload};
use super::disk::{Arm, Policy, figure, study};
use crate::fio::{Direction, Phase};
use crate::job::{Folder, Job, Lab, table};
use crate::rig;
use crate::stats::Spread;
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

/// Arguments of `disk-two`.
#[derive(clap::Args, Debug)]
pub(crate) struct DiskTwo {
    /// How often the story is told under each policy.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Under which policies.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "none,lifeline")]
    policies: Vec<Policy>,
}

/// A campaign.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    /// What happens on the first disk and on the second.
    timelines: [Timeline; 2],
    /// Per story, an arm for the first disk and one for the second.
    runs: Vec<[Arm; 2]>,
}

impl Job for DiskTwo {
    const NAME: &'static str = "disk-two";
    type Raw = Raw;

    fn record(&self, lab: &Lab) -> Result<Raw> {
        ensure!(lab.maker.is_own(), "only the lab's own containers have fio: --engine own");
        let contested = Workload::W4.timeline(Scale::Paper);
        let timelines = [contested.clone(), calm(&contested)];
        let disks = rig::open(&lab.scope, 2, contested.capacity)?;
        let mut runs = Vec::new();
        for run in 0..self.runs {
            eprintln!("run {} of {}", run + 1, self.runs);
            let mut policies = self.policies.clone();
            policies.rotate_left(run % self.policies.len());
            for policy in &policies {
                let places = disks.iter().zip(&timelines).map(|(disk, timeline)| Place { disk, timeline });
                let arms = Stage::set(lab, *policy, places.collect(), Direction::Read)?.tell(lab)?;
                runs.push(arms.try_into().expect("a stage of two places gives two arms"));
            }
        }
        Ok(Raw { timelines, runs })
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        out.say(format!(
            "Two disks of 1 MB/s, two containers on both, one agent. On the first disk: {} On the second A wants 20 % and B 50 % \
             throughout, and the disk does not change.",
            Workload::W4.story()
        ));
        out.say(spans_table(raw));
        out.say(
            "Part of what a container wanted that it got, by the second; median over runs (smallest to largest). Limit: the \
             lowest in force.",
        );
        for (i, name) in ["first", "second"].into_iter().enumerate() {
            let arms: Vec<&Arm> = raw.runs.iter().map(|arms| &arms[i]).collect();
            let title = format!("The {name} disk: throughput by policy");
            out.figure(&format!("{name}.svg"), &title, &figure::draw(&title, &raw.timelines[i], &arms)?)?;
        }
        Ok(())
    }
}

/// The same actors, as long, on a disk that has enough for all.
fn calm(other: &Timeline) -> Timeline {
    let mut calm = Timeline { speeds: vec![(0, other.capacity)], ..other.clone() };
    for (actor, percent) in calm.actors.iter_mut().zip([20, 50]) {
        actor.phases = vec![Phase { at: 0, want: other.capacity * percent / 100 }];
    }
    calm
}

/// Spans of the first disk's story: (name, from, until).
const SPANS: [(&str, usize, usize); 4] =
    [("before the hog", 2, 13), ("hog", 17, 35), ("hog, slow disk", 37, 70), ("hog, recovered", 72, 88)];

fn spans_table(raw: &Raw) -> String {
    let mut policies: Vec<Policy> = raw.runs.iter().map(|arms| arms[0].policy).collect();
    policies.sort_unstable();
    policies.dedup();
    let mut rows = Vec::new();
    for policy in policies {
        for (disk, name) in ["first", "second"].into_iter().enumerate() {
            let arms = || raw.runs.iter().map(|arms| &arms[disk]).filter(|arm| arm.policy == policy);
            for (i, actor) in raw.timelines[disk].actors.iter().enumerate() {
                let mut row = vec![policy.name().to_owned(), name.to_owned(), actor.name.clone()];
                for (_, from, until) in SPANS {
                    let part = |arm: &Arm| {
                        let got: f64 = study::rates(&arm.series[i])[from..until].iter().sum();
                        got / (from..until).map(|s| actor.want(s as u32) as f64).sum::<f64>()
                    };
                    row.push(Spread::of(arms().map(part)).map_or("-".into(), |s| {
                        format!("{:.0} % ({:.0} to {:.0})", s.median * 100.0, s.min * 100.0, s.max * 100.0)
                    }));
                }
                let lowest = arms().flat_map(|arm| arm.series[i].cap_kb.iter().flatten()).min();
                row.push(lowest.map_or("none".into(), |kb| format!("{kb} kB/s")));
                rows.push(row);
            }
        }
    }
    let mut head = vec!["policy", "disk", "container"];
    head.extend(SPANS.map(|(name, ..)| name));
    head.push("limit");
    table(&head, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_the_second_disk_there_is_always_enough_for_the_same_actors() {
        let contested = Workload::W4.timeline(Scale::Paper);
        let calm = calm(&contested);
        assert!((0..calm.seconds).all(|s| !calm.contested(s)));
        assert_eq!(calm.seconds, contested.seconds);
        assert_eq!(calm.actors.len(), contested.actors.len());
    }
}
