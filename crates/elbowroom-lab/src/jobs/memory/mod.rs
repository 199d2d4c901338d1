//! The experiment of *Highlighting the Container Memory Consolidation Problems in Linux* (NCA'19): two containers with a
//! database each, together larger than memory, asked for much and for little in turn. What does each get under no limits, under
//! the kernel's limits, and under Elbowroom?
//!
//! Memory for both is small so that a run takes minutes: a cgroup with a hard limit stands for the machine. v1's soft limits act
//! only when the machine itself is short of memory, so for them, and all that is compared with them, the machine is a guest of
//! `tools/vm -1` in which another container holds all but what the two may use.

mod figure;
pub(crate) mod policy;
mod record;
mod story;
mod study;
pub(crate) mod voice;

use crate::job::{Folder, Job, Lab};
use crate::{database, rig};
use anyhow::{Context, Result, ensure};
use policy::Policy;
use record::Stage;
use serde::{Deserialize, Serialize};
use std::fs;
use story::{Story, Who};

/// A database alone has to do this part of the most that is asked of it: fifteen seconds of a good machine vary by some percent.
const KEEPS_UP: f64 = 0.9;
/// A guest with more is not filled.
const LARGEST_MACHINE_KIB: u64 = 4 << 20;

/// Arguments of `memory`.
#[derive(clap::Args, Debug)]
pub(crate) struct Memory {
    /// How often the six phases are run under each policy.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Under which policies. `soft` is v1's soft limit, or v2's memory.low; on v1 it needs a guest of `tools/vm -1`.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "none,max,probes,blind")]
    policies: Vec<Policy>,
    /// Length of a phase.
    #[arg(long, value_name = "S", default_value_t = 20, value_parser = clap::value_parser!(u32).range(5..=600))]
    phase: u32,
}

/// A campaign.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    machine: Machine,
    story: Story,
    /// Each container alone with all memory: A, then B.
    references: [Vec<Sample>; 2],
    runs: Vec<Vec<Arm>>,
}

/// Where it ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Machine {
    /// Whether a cgroup stands for the machine.
    stand_in: bool,
    cgroup_v2: bool,
    /// Whether it is a guest of `tools/vm`.
    guest: bool,
    /// Of the server and of sysbench.
    versions: String,
}

/// The six phases under one policy, once.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Arm {
    policy: Policy,
    /// A's, then B's.
    samples: [Vec<Sample>; 2],
    /// What the agent decided, where one ran.
    #[serde(default)]
    decided: Vec<Decided>,
}

/// A decision of the agent's about a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Decided {
    /// Milliseconds after the first phase began.
    ms: i64,
    who: Who,
    /// As the agent calls it.
    what: String,
    /// How much memory it was about.
    mib: Option<u64>,
}

/// One second of a container.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "(i64, u32, u64, u64, u64)", from = "(i64, u32, u64, u64, u64)")]
struct Sample {
    /// When it ended: milliseconds after the first phase began.
    ms: i64,
    /// Transactions done in it.
    tps: u32,
    /// Transactions that were asked for and had not begun at its end.
    queue: u64,
    /// Memory of its cgroup at its end, in MiB.
    mib: u64,
    /// The part of it that is page cache, in MiB.
    cache_mib: u64,
}

impl From<(i64, u32, u64, u64, u64)> for Sample {
    fn from((ms, tps, queue, mib, cache_mib): (i64, u32, u64, u64, u64)) -> Self {
        Self { ms, tps, queue, mib, cache_mib }
    }
}

impl From<Sample> for (i64, u32, u64, u64, u64) {
    fn from(sample: Sample) -> Self {
        (sample.ms, sample.tps, sample.queue, sample.mib, sample.cache_mib)
    }
}

impl Job for Memory {
    const NAME: &'static str = "memory";
    type Raw = Raw;

    fn record(&self, lab: &Lab) -> Result<Raw> {
        ensure!(lab.maker.is_own(), "only the lab's own containers have MariaDB: --engine own");
        let machine = Machine::of(lab)?;
        ensure!(
            machine.cgroup_v2 || !machine.stand_in || !self.policies.contains(&Policy::Soft),
            "soft limits of cgroup v1 do nothing while the machine has memory: run them in a guest, lab/plans/memory vm v1"
        );
        let stage = Stage::set(lab, &machine, self.phase)?;
        eprintln!("references");
        let references = [stage.alone(lab, Who::A)?, stage.alone(lab, Who::B)?];
        keeps_up(&references, stage.story.high)?;
        let (machine, story) = (machine.clone(), stage.story.clone());
        let mut raw = Raw { machine, story, references, runs: Vec::new() };
        for run in 0..self.runs {
            let mut policies = self.policies.clone();
            let count = policies.len();
            policies.rotate_left(run % count);
            let tell = |(i, policy): (usize, &Policy)| {
                let name = policy.name(raw.machine.cgroup_v2);
                eprintln!("run {} of {}, {} of {count}: {name}", run + 1, self.runs, i + 1);
                stage.tell(lab, *policy).with_context(|| format!("while running \"{name}\""))
            };
            let arms = policies.iter().enumerate().map(tell).collect::<Result<_>>()?;
            raw.runs.push(arms);
            lab.keep(&raw)?;
        }
        Ok(raw)
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        study::write(raw, out);
        let title = "Transactions per second: mean over runs, and deviation";
        out.figure("throughput.svg", title, &figure::throughput(raw, title)?)?;
        let title = "Memory of each container: mean over runs, and deviation";
        out.figure("memory.svg", title, &figure::memory(raw, title)?)
    }
}

/// Refuses a machine on which nobody could ever be satisfied, however much memory he has.
fn keeps_up(references: &[Vec<Sample>; 2], asked: u32) -> Result<()> {
    for who in Who::ALL {
        let mean = study::reference(references, who)[0].map_or(0.0, |mean| mean.mean);
        let name = who.name();
        ensure!(
            mean >= KEEPS_UP * f64::from(asked),
            "{name} alone, with all memory, does {mean:.0} transactions per second of {asked} that are asked for: this machine is too \
             slow, or does something else"
        );
    }
    Ok(())
}

impl Machine {
    fn of(lab: &Lab) -> Result<Self> {
        let text = fs::read_to_string("/proc/meminfo").context("while reading /proc/meminfo")?;
        let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let total: u64 = total
            .and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok())
            .context("/proc/meminfo has no MemTotal")?;
        let (cgroup_v2, guest) = (lab.maker.layout().is_v2(), rig::is_guest());
        let stand_in = cgroup_v2 || total > LARGEST_MACHINE_KIB;
        Ok(Self { stand_in, cgroup_v2, guest, versions: database::versions()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_on_which_nobody_can_be_satisfied_is_refused() {
        let alone = |tps: u32| (1..9).map(|s| Sample::from((1_000 * s, tps, 0, 100, 50))).collect::<Vec<_>>();
        assert!(keeps_up(&[alone(55), alone(54)], 56).is_ok());
        let refused = keeps_up(&[alone(55), alone(49)], 56).unwrap_err().to_string();
        assert!(refused.starts_with("B alone, with all memory, does 49 transactions"), "{refused}");
    }
}
