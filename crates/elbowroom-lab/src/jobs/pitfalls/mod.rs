//! LinkedIn's four pitfalls of memory in cgroups, made for real: a JVM that allocates, reads or touches, on a machine that is
//! short of memory, with and without each of the paper's strategies.
//!
//! A machine of more than 4 GiB is not filled, for others work on it: there a cgroup with a limit stands for the machine, and
//! what the kernel does about the limit for what it would do about the machine's end. It has no `kswapd` then, no watermarks,
//! and no swap. In a guest of `tools/vm` the machine is the guest, with all of that.

mod figure;
mod record;
mod story;
mod strategy;
mod study;

use crate::job::{Folder, Job, Lab, build_java};
use crate::{plot, rig};
use anyhow::{Context, Result, ensure};
use record::Stage;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use story::{Figure, Story, Variant};

/// A machine with more is not filled.
const LARGEST_MACHINE_MIB: u64 = 4096;
/// What stands for it.
const STAND_IN_MIB: u64 = 1024;
/// Of the disks that hold files and swap.
const DISKS_BYTES_PER_S: [u64; 2] = [20_000_000, 64_000_000];

/// Arguments of `pitfalls`.
#[derive(clap::Args, Debug)]
pub(crate) struct Pitfalls {
    /// The paper's figure: 2, memory is not reserved; 3, anonymous memory evicts the group's own cache; 4, the host takes
    /// cache; 5, the host swaps.
    #[arg(long, value_enum)]
    figure: Figure,
    /// How often each variant is measured.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Sources of the application.
    #[arg(long, value_name = "DIR", default_value = "lab/java")]
    java: PathBuf,
}

/// A campaign.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    figure: Figure,
    machine: Machine,
    story: Story,
    runs: Vec<Vec<Arm>>,
}

/// What memory there is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Machine {
    /// For the application and the others.
    mib: u64,
    /// Whether a cgroup stands for the machine.
    stand_in: bool,
    cgroup_v2: bool,
    /// Whether it is a guest of `tools/vm`: emulated, with disks of its own, one of them for swap.
    guest: bool,
    /// `/sys/kernel/mm/transparent_hugepage/enabled`.
    thp: String,
}

/// One variant, once. Times are in milliseconds after its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Arm {
    variant: Variant,
    /// (time, pieces of work done so far), as the application counts.
    done: Vec<(u64, u64)>,
    /// (time, cache, anonymous memory, swap) of the application's cgroup, in MiB.
    memory: Vec<(u64, [u64; 3])>,
    /// What the kernel counted meanwhile, for the application's cgroup.
    app: BTreeMap<String, u64>,
    /// The same for the machine, or for the cgroup that stands for it.
    whole: BTreeMap<String, u64>,
}

impl Job for Pitfalls {
    const NAME: &'static str = "pitfalls";
    type Raw = Raw;

    fn tag(&self) -> Option<String> {
        Some(format!("fig{}", self.figure.number()))
    }

    fn record(&self, lab: &Lab) -> Result<Raw> {
        ensure!(lab.maker.is_own(), "only the lab's own containers have Java: --engine own");
        let java = build_java(&self.java)?;
        let machine = Machine::of(lab)?;
        let story = self.figure.story(machine.mib, machine.guest);
        let stage = Stage::set(lab, &story, &machine, java)?;
        let mut raw =
            Raw { figure: self.figure, machine: machine.clone(), story: story.clone(), runs: Vec::new() };
        for run in 0..self.runs {
            let mut variants = self.figure.variants(machine.cgroup_v2, machine.stand_in);
            let count = variants.len();
            variants.rotate_left(run % count);
            let tell = |(i, variant): (usize, &Variant)| {
                let name = self.figure.name(*variant);
                eprintln!("run {} of {}, {} of {count}: {name}", run + 1, self.runs, i + 1);
                stage.tell(lab, *variant).with_context(|| format!("while measuring \"{name}\""))
            };
            let arms = variants.iter().enumerate().map(tell).collect::<Result<_>>()?;
            raw.runs.push(arms);
            lab.keep(&raw)?;
        }
        Ok(raw)
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        study::write(raw, out);
        let title = raw.figure.title();
        out.figure("throughput.svg", title, &figure::throughput(raw)?)?;
        let caption = format!("{title}: the application's memory");
        out.figure("memory.svg", &caption, &figure::memory(raw, &caption)?)
    }
}

impl Machine {
    fn of(lab: &Lab) -> Result<Self> {
        let text = fs::read_to_string("/proc/meminfo").context("while reading /proc/meminfo")?;
        let stand_in = mib(&text, "MemTotal:") > LARGEST_MACHINE_MIB;
        let thp = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        Ok(Self {
            mib: if stand_in { STAND_IN_MIB } else { mib(&text, "MemAvailable:") },
            stand_in,
            cgroup_v2: lab.maker.layout().is_v2(),
            guest: rig::is_guest(),
            thp: thp.trim().to_owned(),
        })
    }

    fn describe(&self) -> String {
        let cgroup = if self.cgroup_v2 { "v2" } else { "v1" };
        let [files, swap] = DISKS_BYTES_PER_S.map(|bytes| plot::plain(bytes as f64 / 1e6));
        let machine = match self.stand_in {
            true => format!("A cgroup ({cgroup}) with a limit of {} MiB stands for the machine", self.mib),
            false => format!("The machine has {} MiB to give, cgroups are {cgroup}", self.mib),
        };
        match self.guest {
            true => format!("{machine}; files are on a disk of {files} MB/s, swap on one of {swap}."),
            false => {
                format!("{machine}; there is no swap. The application may read {files} MB/s from the disk.")
            }
        }
    }
}

/// A line of meminfo, in MiB.
fn mib(meminfo: &str, key: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) >> 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_mebibytes() {
        let text = "MemTotal:        2048000 kB\nMemAvailable:     885760 kB\n";
        assert_eq!(
            (mib(text, "MemTotal:"), mib(text, "MemAvailable:"), mib(text, "SwapFree:")),
            (2000, 865, 0)
        );
    }
}
