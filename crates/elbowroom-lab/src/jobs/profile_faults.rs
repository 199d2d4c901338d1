//! What counting page faults costs those that take them: CPU time of a fault with each tier, beside without, in turn.

use crate::job::{Folder, Job, Lab, table};
use crate::program::{self, Program};
use crate::stats::Spread;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

const KINDS: [&str; 3] = ["anonymous", "file", "fork"];
const NONE: &str = "none";
/// Ways to count, and the profiler's arguments.
const TIERS: [(&str, &[&str]); 4] = [
    (NONE, &[]),
    ("functions", &["--tier", "functions"]),
    ("functions, with latency", &["--tier", "functions", "--latency"]),
    ("tracepoints", &["--tier", "tracepoints"]),
];
/// Pages of the file: `lab/programs/fault_loop.c` touches every 17th.
const FILE: usize = 16_384 * 17;

/// Arguments of `profile-faults`.
#[derive(clap::Args, Debug)]
pub(crate) struct ProfileFaults {
    /// How often everything is measured.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Batches of some thousand faults in a measurement, of which the middle one counts.
    #[arg(long, default_value_t = 9)]
    batches: usize,
}

/// All measurements of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    batches: usize,
    measured: Vec<Measured>,
    /// What a tier that does not work here said.
    refused: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    round: usize,
    tier: String,
    kind: String,
    /// Nanoseconds of CPU time of a fault, with the loop around it, in the middle batch.
    ns_per_fault: f64,
    /// Faults of all batches, as the kernel accounts them.
    faults: u64,
    /// Faults that the profiler counted in the same time, with those around the batches.
    counted: Option<u64>,
}

impl Job for ProfileFaults {
    const NAME: &'static str = "profile-faults";
    type Raw = Raw;

    fn record(&self, lab: &Lab) -> Result<Raw> {
        let file = program::file(lab, FILE)?;
        let mut raw = Raw { batches: self.batches, measured: Vec::new(), refused: Vec::new() };
        let mut tiers = TIERS.to_vec();
        for round in 0..self.rounds {
            eprintln!("round {} of {}", round + 1, self.rounds);
            for (turn, kind) in KINDS.into_iter().enumerate() {
                let arguments = [kind.to_owned(), file.display().to_string()];
                let group = format!("profile-faults-{kind}-{round}");
                let mut program = Program::start(lab, "fault_loop", &group, &arguments)?;
                let cgroup = program.cgroup(lab)?;
                // Whoever is first pays for page tables and caches.
                program.ask("")?;
                let mut order = tiers.clone();
                order.rotate_left((round + turn) % tiers.len());
                for (tier, arguments) in order {
                    lab.scope.check()?;
                    let profiler =
                        match (tier != NONE).then(|| Profiler::start(lab, arguments, &cgroup)).transpose()? {
                            Some(Err(said)) => {
                                raw.refused.push(said);
                                tiers.retain(|(other, _)| *other != tier);
                                continue;
                            }
                            Some(Ok(profiler)) => Some(profiler),
                            None => None,
                        };
                    let (ns_per_fault, faults) = batches(&mut program, self.batches)?;
                    let counted = profiler.map(Profiler::stop).transpose()?;
                    let (tier, kind) = (tier.to_owned(), kind.to_owned());
                    raw.measured.push(Measured { round, tier, kind, ns_per_fault, faults, counted });
                }
            }
        }
        Ok(raw)
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        let rounds: BTreeSet<usize> = raw.measured.iter().map(|m| m.round).collect();
        out.say(format!(
            "CPU nanoseconds of a page fault in loops that do nothing else, while nobody counts and while `elbowroom profile \
             faults` does. The middle one of {} batches of some thousand faults in each of {} rounds, tiers in turn; median over \
             rounds (smallest to largest), and the ratio within a round. `anonymous`: memory of its own; `file`: a page of a \
             shared file mapping, looked up for duplicates; `fork`: children that write what their parent has, and end, per \
             fault with `fork` and `exit`.",
            raw.batches,
            rounds.len()
        ));
        let value = |round: usize, tier: &str, kind: &str| {
            let found = raw.measured.iter().find(|m| m.round == round && m.tier == tier && m.kind == kind);
            found.map(|m| m.ns_per_fault)
        };
        let mut rows = Vec::new();
        for kind in KINDS {
            for (tier, _) in TIERS {
                let values = rounds.iter().filter_map(|round| value(*round, tier, kind));
                let Some(ns) = Spread::of(values) else { continue };
                let ratios = rounds
                    .iter()
                    .filter_map(|round| Some(value(*round, tier, kind)? / value(*round, NONE, kind)?));
                let ratio = Spread::of(ratios).map_or("-".to_owned(), |ratio| ratio.text());
                let seen = raw.measured.iter().filter(|m| m.tier == tier && m.kind == kind);
                let seen = seen.filter_map(|m| Some(m.counted? as f64 / m.faults as f64));
                let seen = Spread::of(seen).map_or("-".to_owned(), |seen| seen.text());
                rows.push(vec![format!("{kind}, {tier}"), ns.text(), ratio, seen]);
            }
        }
        out.say(table(&["loop, tier", "ns per fault", "relative to none", "counted / accounted"], &rows));
        for said in &raw.refused {
            out.say(format!("Refused here: {said}."));
        }
        Ok(())
    }
}

/// Nanoseconds of a fault in the middle batch, and faults of all.
fn batches(program: &mut Program, count: usize) -> Result<(f64, u64)> {
    let mut times = Vec::new();
    let mut faults = 0;
    for _ in 0..count {
        let answer = program.ask("")?;
        let (found, ns) = answer.split_once(' ').context("the loop says faults and nanoseconds")?;
        let (found, ns): (u64, f64) = (found.parse()?, ns.parse()?);
        if found == 0 {
            bail!("the loop took no fault");
        }
        faults += found;
        times.push(ns / found as f64);
    }
    let spread = Spread::of(times).context("nothing was measured")?;
    Ok((spread.median, faults))
}

/// The product while it counts.
struct Profiler(Child);

impl Profiler {
    /// Returns when it counts; what it said where it refused.
    fn start(lab: &Lab, arguments: &[&str], cgroup: &str) -> Result<Result<Self, String>> {
        let mut child = Command::new(lab.program())
            .args(["profile", "faults", "--format", "json", "--for", "1h", cgroup])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("while running the product")?;
        lab.scope.add_child(&child)?;
        let mut line = String::new();
        BufReader::new(child.stderr.take().expect("its talk is a pipe"))
            .read_line(&mut line)
            .context("while listening to the product")?;
        if line.contains("counting") {
            return Ok(Ok(Self(child)));
        }
        child.wait().context("while waiting for the product")?;
        Ok(Err(line.trim().to_owned()))
    }

    /// Faults that it has counted.
    fn stop(mut self) -> Result<u64> {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, Signal::INT).context("while stopping the product")?;
        let mut text = String::new();
        self.0.stdout.take().expect("its answer is a pipe").read_to_string(&mut text)?;
        self.0.wait().context("while waiting for the product")?;
        let answer: serde_json::Value = serde_json::from_str(&text).context("its answer is no JSON")?;
        answer["answer"]["containers"][0]["total"].as_u64().context("its answer lacks a number")
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
