//! A hundred containers with a monitoring agent each: what pollers wait for and what the daemon burns.
//!
//! Every phase starts one variant afresh, makes its containers, measures the daemon's CPU time at rest (containers there, nobody
//! polling), under pollers of files that are nobody's view, which cost a daemon what busy containers do, and under pollers of views,
//! and takes everything down. Phases of the variants alternate, in an order that rotates. The containers' memory limits all differ, so
//! a poller can tell a wrong answer from a right one.

use crate::backend::{Backend, Variant};
use crate::cgroup::Limits;
use crate::container::Container;
use crate::job::{Folder, Job, Lab, now_ns, table};
use crate::plot::{self, Axis, Line};
use crate::procfs::Usage;
use crate::stats::{Histogram, Quantiles, Spread};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::process::Child;
use std::time::Duration;

const FILES: [&str; 2] = ["/proc/meminfo", "/proc/stat"];
/// As many, of the kernel's own under every variant.
const OTHERS: [&str; 2] = ["/proc/version", "/proc/self/stat"];

/// Arguments of `swarm`.
#[derive(clap::Args, Debug)]
pub(crate) struct Swarm {
    /// Phases per variant.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Containers, one poller each.
    #[arg(long, default_value_t = 100)]
    containers: usize,
    /// Time between two polls of a container, in milliseconds.
    #[arg(long, default_value_t = 100)]
    interval_ms: u64,
    /// Length of a phase, in seconds.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Time at rest before each phase, in seconds.
    #[arg(long, default_value_t = 5)]
    rest_seconds: u64,
    /// What to compare.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "native,lxcfs,elbowroom")]
    variants: Vec<Variant>,
}

/// All phases of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    containers: usize,
    interval_ms: u64,
    seconds: u64,
    phases: Vec<Phase>,
}

/// One variant under all pollers, once.
#[derive(Debug, Serialize, Deserialize)]
struct Phase {
    round: usize,
    variant: Variant,
    latency_ns: Quantiles,
    histogram: Histogram,
    failed: u64,
    wrong: u64,
    /// CPU seconds of all the daemon's processes per second, nobody polling.
    rest_cpus: f64,
    /// The same under pollers of other files.
    others_cpus: f64,
    /// The same under pollers of views.
    load_cpus: f64,
    rss_kib: u64,
    anon_kib: u64,
    threads: u64,
    processes: usize,
}

impl Job for Swarm {
    const NAME: &'static str = "swarm";
    type Raw = Raw;

    fn record(&self, lab: &Lab) -> Result<Raw> {
        let mut phases = Vec::new();
        for round in 0..self.rounds {
            for turn in 0..self.variants.len() {
                let variant = self.variants[(round + turn) % self.variants.len()];
                eprintln!("round {} of {}: {variant}", round + 1, self.rounds);
                phases.push(self.phase(lab, round, variant)?);
            }
        }
        Ok(Raw { containers: self.containers, interval_ms: self.interval_ms, seconds: self.seconds, phases })
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        let rounds = raw.phases.iter().map(|p| p.round).max().unwrap_or(0) + 1;
        out.say(format!(
            "{} containers, each of which opens, reads and closes {} every {} ms, for {} s per phase, phases per variant: {rounds}, \
             in turn. Each figure is the median over phases (smallest to largest). CPU is user and system time of \
             all the daemon's processes.",
            raw.containers,
            FILES.join(" and "),
            raw.interval_ms,
            raw.seconds
        ));
        out.say(study(raw));
        let title = format!("What {} pollers wait for", raw.containers);
        out.figure("latency.svg", &title, &figure(raw, &title)?)
    }
}

impl Swarm {
    fn phase(&self, lab: &Lab, round: usize, variant: Variant) -> Result<Phase> {
        let backend = lab.start(variant)?;
        let memory_mib = |i: usize| 64 + i as u64;
        let containers = lab.containers(&backend, &format!("swarm-{variant}-"), self.containers, |i| {
            Limits { memory_mib: Some(memory_mib(i)), ..Limits::default() }
        })?;
        let usage = |backend: &Backend| Usage::of_all(&backend.pids());
        let pause = |seconds| lab.scope.sleep(Duration::from_secs(seconds));
        pause(1)?;
        let before = usage(&backend);
        pause(self.rest_seconds)?;
        let rested = usage(&backend);

        let expected = |i| if variant == Variant::Native { 0 } else { memory_mib(i) * 1024 };
        let others = self.poll(lab, &backend, &containers, OTHERS, &|_| 0)?;
        let mut polled = self.poll(lab, &backend, &containers, FILES, &expected)?;
        let ended = usage(&backend);
        Ok(Phase {
            round,
            variant,
            latency_ns: Quantiles::of(&mut polled.latency_ns),
            histogram: Histogram::of(&polled.latency_ns),
            failed: polled.failed,
            wrong: polled.wrong,
            rest_cpus: (rested.cpu_s - before.cpu_s) / self.rest_seconds.max(1) as f64,
            others_cpus: others.cpus,
            load_cpus: polled.cpus,
            rss_kib: ended.rss_kib,
            anon_kib: ended.anon_kib,
            threads: ended.threads,
            processes: backend.pids().len(),
        })
    }

    /// A poller in each container, for the length of a phase. `expected` is what each should find as MemTotal, in KiB, or 0.
    fn poll(
        &self,
        lab: &Lab,
        backend: &Backend,
        containers: &[Container],
        files: [&str; 2],
        expected: &dyn Fn(usize) -> u64,
    ) -> Result<Polled> {
        let polls = self.seconds * 1000 / self.interval_ms;
        let start = now_ns() + 500_000_000 + 5_000_000 * self.containers as u64;
        let poll = |(i, container): (usize, &Container)| {
            let phase = self.interval_ms * 1_000_000 * i as u64 / self.containers as u64;
            let mut args =
                [start + phase, self.interval_ms, polls, expected(i)].map(|n| n.to_string()).to_vec();
            args.extend(files.map(str::to_owned));
            container.reader("poll", &args).spawn().context("while starting a poller")
        };
        let pollers: Vec<Child> = containers.iter().enumerate().map(poll).collect::<Result<_>>()?;
        lab.scope.sleep(Duration::from_nanos(start.saturating_sub(now_ns())))?;
        let began = Usage::of_all(&backend.pids()).cpu_s;
        lab.scope.sleep(Duration::from_secs(self.seconds))?;
        let cpus = (Usage::of_all(&backend.pids()).cpu_s - began) / self.seconds as f64;

        let mut polled = Polled { latency_ns: Vec::new(), failed: 0, wrong: 0, cpus };
        for poller in pollers {
            let out = poller.wait_with_output().context("while waiting for a poller")?;
            anyhow::ensure!(
                out.status.success(),
                "a poller failed: {}",
                String::from_utf8_lossy(&out.stderr).trim()
            );
            for line in String::from_utf8_lossy(&out.stdout).lines() {
                let number =
                    |text: &str| text.parse::<u64>().with_context(|| format!("a poller printed \"{line}\""));
                match line.split_once(' ') {
                    Some(("failed", n)) => polled.failed += number(n)?,
                    Some(("wrong", n)) => polled.wrong += number(n)?,
                    _ => polled.latency_ns.push(number(line)?),
                }
            }
        }
        Ok(polled)
    }
}

/// What all pollers saw, and the daemon's CPU seconds per second meanwhile.
struct Polled {
    latency_ns: Vec<u64>,
    failed: u64,
    wrong: u64,
    cpus: f64,
}

fn study(raw: &Raw) -> String {
    let variants: BTreeSet<Variant> = raw.phases.iter().map(|p| p.variant).collect();
    let of = |variant, f: &dyn Fn(&Phase) -> f64| {
        Spread::of(raw.phases.iter().filter(|p| p.variant == variant).map(f))
            .map_or("-".to_owned(), |s| s.text())
    };
    let us = |ns: u64| ns as f64 / 1000.0;
    type Figure<'a> = (&'a str, &'a dyn Fn(&Phase) -> f64);
    let of_a_read = |p: &Phase, cpus: f64| {
        let reads = p.latency_ns.samples.max(1) as f64;
        cpus * raw.seconds as f64 * 1e6 / reads
    };
    let figures: [Figure; 17] = [
        ("reads per phase", &|p| p.latency_ns.samples as f64),
        ("latency p50, µs", &|p| us(p.latency_ns.p50)),
        ("latency p90, µs", &|p| us(p.latency_ns.p90)),
        ("latency p99, µs", &|p| us(p.latency_ns.p99)),
        ("latency p99.9, µs", &|p| us(p.latency_ns.p999)),
        ("latency max, µs", &|p| us(p.latency_ns.max)),
        ("failed reads", &|p| p.failed as f64),
        ("wrong MemTotal", &|p| p.wrong as f64),
        ("daemon CPU at rest, % of one", &|p| p.rest_cpus * 100.0),
        ("daemon CPU under pollers, % of one", &|p| p.load_cpus * 100.0),
        ("daemon CPU under pollers of other files, % of one", &|p| p.others_cpus * 100.0),
        ("daemon CPU per read, µs", &|p| of_a_read(p, p.load_cpus)),
        ("of it for that views are read, µs", &|p| of_a_read(p, p.load_cpus - p.others_cpus)),
        ("daemon memory, MiB resident", &|p| p.rss_kib as f64 / 1024.0),
        ("of it its own (anonymous), MiB", &|p| p.anon_kib as f64 / 1024.0),
        ("daemon threads", &|p| p.threads as f64),
        ("daemon processes", &|p| p.processes as f64),
    ];
    let mut head = vec!["per phase"];
    head.extend(variants.iter().map(|v| v.name()));
    let needs_daemon =
        |name: &str| name.starts_with("daemon") || name.starts_with("of it") || name.starts_with("wrong");
    let row = |(name, f): &Figure| {
        let cell = |v: &Variant| match v {
            Variant::Native if needs_daemon(name) => "-".to_owned(),
            v => of(*v, *f),
        };
        std::iter::once((*name).to_owned()).chain(variants.iter().map(cell)).collect()
    };
    table(&head, &figures.iter().map(row).collect::<Vec<_>>())
}

/// Cumulative distributions by "nines": 0 is the fastest read, 1 the 90th percentile, 3 the 99.9th.
fn figure(raw: &Raw, title: &str) -> Result<String> {
    let variants: BTreeSet<Variant> = raw.phases.iter().map(|p| p.variant).collect();
    let lines: Vec<Line> = variants
        .into_iter()
        .map(|variant| {
            let mut all = Histogram::default();
            for phase in raw.phases.iter().filter(|p| p.variant == variant) {
                phase.histogram.0.iter().for_each(|(ns, n)| *all.0.entry(*ns).or_insert(0) += n);
            }
            let points = all.cumulative().into_iter().filter(|(share, _)| *share <= 0.9999);
            let points = points.map(|(share, ns)| (-(1.0 - share).log10(), ns)).collect();
            Line { name: variant.name().to_owned(), color: plot::color(variant), points, marks: false }
        })
        .collect();
    let (from, to) = plot::decades(lines.iter().flat_map(|l| l.points.iter().map(|(_, ns)| *ns)));
    let percentile = |nines: f64| format!("{} %", percent(100.0 * (1.0 - 10f64.powf(-nines))));
    let x = Axis {
        label: "share of reads that were at least as fast",
        log: false,
        from: 0.0,
        to: 4.0,
        tick: percentile,
    };
    let y = Axis { label: "time per read (logarithmic)", log: true, from, to, tick: plot::nanoseconds };
    plot::lines(title, &x, &y, &lines)
}

/// 99.9 stays 99.9; whole percents lose their fraction.
fn percent(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_written_as_people_say_them() {
        for (value, text) in [(0.0, "0"), (68.377, "68.38"), (90.0, "90"), (99.9, "99.9"), (99.99, "99.99")] {
            assert_eq!(percent(value), text);
        }
    }
}
