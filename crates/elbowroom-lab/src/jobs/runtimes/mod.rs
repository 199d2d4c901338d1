//! The runtimes' figures of *Adaptive Resource Views for Containers* (HPDC'19): HotSpot's GC threads, OpenMP's regions and HotSpot's
//! heap, as they come, as they are told by hand, and as they follow a view.
//!
//! The paper's machine has 20 CPUs and 128 GiB. Here programs are made to believe in more CPUs than there are, by a preloaded
//! library, so that runtimes size themselves as on the paper's machine while containers get parts of few CPUs; and a cgroup stands
//! for a machine whose memory may be filled.

mod collect;
mod gclog;
mod heap;
mod java;
mod openmp;
mod stage;

use crate::job::{Folder, Job, Lab};
use crate::stats::Spread;
use anyhow::{Result, ensure};
use java::Collector;
use openmp::{Scene, Variant};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Arguments of `runtimes`.
#[derive(clap::Args, Debug)]
pub(crate) struct Runtimes {
    /// The paper's figure: 2, too many GC threads; 6, five machines at once; 7 (and 8), neighbours that end; 9, a large heap; 10,
    /// OpenMP; 11, a heap beyond the limit; 12, the heap over time.
    #[arg(long, value_enum)]
    figure: Figure,
    /// How often each variant is measured.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Size of the programs' work, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(5..=1000))]
    size: u32,
    /// Containers that run at once, in figures 2, 6, 9 and 10.
    #[arg(long, value_name = "N", default_value_t = 5)]
    containers: usize,
    /// CPUs that programs are made to believe in, in figures 2 to 10.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: u32,
    /// HotSpot's collector.
    #[arg(long, value_enum, default_value = "parallel")]
    collector: Collector,
    /// Who else there is, in figure 10.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "shares,quota")]
    scenes: Vec<Scene>,
    /// What is compared, in figure 10; all of it where none is named.
    #[arg(long, value_enum, value_delimiter = ',')]
    variants: Vec<Variant>,
    /// The quota of the container that has one, in figure 10, in percent of a CPU.
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(10..=6400))]
    quota: u32,
    /// How long a kernel of figure 10 is waited for.
    #[arg(long, value_name = "S", default_value_t = 2)]
    patience: u64,
    /// Sources of the Java programs.
    #[arg(long, value_name = "DIR", default_value = "lab/java")]
    java: PathBuf,
    /// The agent for HotSpot.
    #[arg(long, value_name = "FILE", default_value = "target/java/elbowroom-agent.jar")]
    agent_jar: PathBuf,
    /// The database in Java that figure 6 asks.
    #[arg(long, value_name = "FILE", default_value = ".cache/h2/usr/share/java/h2.jar")]
    h2: PathBuf,
    /// The library for OpenMP.
    #[arg(long, value_name = "FILE", default_value = "shim/build/libelbowroom-openmp.so")]
    shim: PathBuf,
}

/// A figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
enum Figure {
    #[value(name = "2")]
    OverThreading,
    #[value(name = "6")]
    SharedEqually,
    #[value(name = "7", alias = "8")]
    Neighbours,
    #[value(name = "9")]
    LargeHeap,
    #[value(name = "10")]
    OpenMp,
    #[value(name = "11")]
    BeyondTheLimit,
    #[value(name = "12")]
    HeapOverTime,
}

impl Figure {
    fn number(self) -> u8 {
        match self {
            Self::OverThreading => 2,
            Self::SharedEqually => 6,
            Self::Neighbours => 7,
            Self::LargeHeap => 9,
            Self::OpenMp => 10,
            Self::BeyondTheLimit => 11,
            Self::HeapOverTime => 12,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::OverThreading => "Figure 2: more GC threads than CPUs",
            Self::SharedEqually => "Figure 6: GC threads in containers with equal shares",
            Self::Neighbours => "Figures 7 and 8: GC threads while neighbours end",
            Self::LargeHeap => "Figure 9: GC threads and a large heap",
            Self::OpenMp => "Figure 10: OpenMP in containers",
            Self::BeyondTheLimit => "Figure 11: a heap beyond the limit",
            Self::HeapOverTime => "Figure 12: the heap over time",
        }
    }
}

/// A campaign.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Raw {
    /// Figures 2 and 6 to 9.
    Collect(collect::Raw),
    /// Figure 10.
    OpenMp(openmp::Raw),
    /// Figures 11 and 12.
    Heap(heap::Raw),
}

impl Job for Runtimes {
    const NAME: &'static str = "runtimes";
    type Raw = Raw;

    fn tag(&self) -> Option<String> {
        Some(format!("fig{}", self.figure.number()))
    }

    fn record(&self, lab: &Lab) -> Result<Raw> {
        ensure!(lab.maker.is_own(), "only the lab's own containers have the host's programs: --engine own");
        Ok(match self.figure {
            Figure::OpenMp => Raw::OpenMp(openmp::record(self, lab)?),
            Figure::BeyondTheLimit | Figure::HeapOverTime => Raw::Heap(heap::record(self, lab)?),
            _ => Raw::Collect(collect::record(self, lab)?),
        })
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        match raw {
            Raw::Collect(raw) => collect::format(raw, out),
            Raw::OpenMp(raw) => openmp::format(raw, out),
            Raw::Heap(raw) => heap::format(raw, out),
        }
    }
}

/// The arms of all runs, by what was measured.
fn by_key<A, K: Ord>(runs: &[Vec<A>], key: impl Fn(&A) -> K) -> BTreeMap<K, Vec<&A>> {
    let mut all: BTreeMap<K, Vec<&A>> = BTreeMap::new();
    for arm in runs.iter().flatten() {
        all.entry(key(arm)).or_default().push(arm);
    }
    all
}

fn spread(values: impl Iterator<Item = f64>) -> String {
    Spread::of(values).map_or("-".to_owned(), |spread| spread.text())
}
