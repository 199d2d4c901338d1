//! What one read costs, from inside a container: the kernel's files, lxcfs, Elbowroom.
//!
//! Three containers that differ only in the files mounted over `/proc` and `/sys` stand side by side, and every round reads
//! each file in each of them in turn, in an order that rotates from round to round. Ratios are taken within a round, where
//! the neighbours' noise is the same, and then over rounds.

use crate::backend::{Backend, Variant};
use crate::cgroup::Limits;
use crate::container::Container;
use crate::job::{Folder, Job, Lab, table};
use crate::plot::{self, Axis};
use crate::stats::Spread;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

const FILES: [&str; 6] = [
    "/proc/meminfo",
    "/proc/stat",
    "/proc/cpuinfo",
    "/proc/uptime",
    "/proc/loadavg",
    "/sys/devices/system/cpu/online",
];
/// The quota, by the name it has on either hierarchy; lxcfs has no such file.
const QUOTA: &str = "cpu quota (cgroup)";
const OPS: [&str; 2] = ["open", "pread"];

/// Arguments of `read`.
#[derive(clap::Args, Debug)]
pub(crate) struct Read {
    /// How often everything is measured.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Operations per measurement and thread.
    #[arg(long, default_value_t = 5000)]
    iterations: usize,
    /// Numbers of reading threads.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// What to compare.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "native,lxcfs,elbowroom")]
    variants: Vec<Variant>,
    /// Keeps readers and daemons on this one CPU: leaves out what waking an idle CPU costs, which differs between machines.
    #[arg(long, value_name = "CPU")]
    pin: Option<usize>,
}

/// All measurements of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    iterations: usize,
    pin: Option<usize>,
    measurements: Vec<Measurement>,
}

/// One file, read one way, in one container, in one round.
#[derive(Debug, Serialize, Deserialize)]
struct Measurement {
    round: usize,
    file: String,
    op: String,
    threads: usize,
    variant: Variant,
    #[serde(flatten)]
    bench: Bench,
}

/// What `reader bench` prints; times in nanoseconds, clock overhead subtracted.
#[derive(Debug, Serialize, Deserialize)]
struct Bench {
    clock_ns: u64,
    samples: u64,
    bytes: u64,
    min: u64,
    p50: u64,
    p90: u64,
    p99: u64,
    max: u64,
    mean: f64,
}

impl Job for Read {
    const NAME: &'static str = "read";
    type Raw = Raw;

    fn record(&self, lab: &Lab) -> Result<Raw> {
        if let Some(cpu) = self.pin {
            let mut only = rustix::thread::CpuSet::new();
            only.set(cpu);
            rustix::thread::sched_setaffinity(None, &only)
                .with_context(|| format!("while moving to CPU {cpu}"))?;
        }
        let limits = Limits {
            // All CPUs: readers are never throttled, and daemons that compute with the quota still do.
            cpus: Some(f64::from(crate::sysinfo::online_cpus())),
            memory_mib: Some(512),
            ..Limits::default()
        };
        let backends: Vec<(Variant, Backend)> =
            self.variants.iter().map(|v| Ok((*v, lab.start(*v)?))).collect::<Result<_>>()?;
        let containers: Vec<(Variant, Container)> = backends
            .iter()
            .map(|(v, backend)| Ok((*v, backend.container(&lab.maker, &format!("read-{v}"), &limits)?)))
            .collect::<Result<_>>()?;
        let mut measurements = Vec::new();
        for round in 0..self.rounds {
            eprintln!("round {} of {}", round + 1, self.rounds);
            for file in FILES.into_iter().chain([QUOTA]) {
                for (op, threads) in OPS.iter().flat_map(|op| self.threads.iter().map(move |t| (*op, *t))) {
                    for turn in 0..containers.len() {
                        lab.scope.check()?;
                        let (variant, container) = &containers[(round + turn) % containers.len()];
                        if (file, *variant) == (QUOTA, Variant::Lxcfs) {
                            continue;
                        }
                        let bench = self.measure(lab, container, file, op, threads)?;
                        let (file, op, variant) = (file.to_owned(), op.to_owned(), *variant);
                        measurements.push(Measurement { round, file, op, threads, variant, bench });
                    }
                }
            }
        }
        Ok(Raw { iterations: self.iterations, pin: self.pin, measurements })
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        let clock = Spread::of(raw.measurements.iter().map(|m| m.bench.clock_ns as f64))
            .context("nothing was measured")?;
        let rounds = raw.measurements.iter().map(|m| m.round).max().unwrap_or(0) + 1;
        out.say(format!(
            "Microseconds per operation inside a container, {} operations per thread and measurement, {rounds} rounds, \
             variants in turn within each round. Each figure is the median over rounds (smallest to largest). \"open\" is \
             open + one read of up to 64 KiB + close; \"pread\" is one pread at offset 0 of a held descriptor. The clock's \
             own {} ns are subtracted. {}",
            raw.iterations,
            clock.text(),
            match raw.pin {
                Some(cpu) => format!("Readers and daemons ran on CPU {cpu} only."),
                None => "The scheduler placed readers and daemons.".to_owned(),
            }
        ));
        let settings: BTreeSet<(usize, &str)> =
            raw.measurements.iter().map(|m| (m.threads, m.op.as_str())).collect();
        for (threads, op) in settings {
            out.say(format!("## {op}, {threads} thread{}", if threads == 1 { "" } else { "s" }));
            out.say(study(raw, op, threads));
            if threads == 1 {
                let title = format!("{op}: median latency inside a container, {rounds} rounds");
                out.figure(&format!("{op}.svg"), &title, &figure(raw, op, &title)?)?;
            }
        }
        Ok(())
    }
}

impl Read {
    fn measure(
        &self,
        lab: &Lab,
        container: &Container,
        file: &str,
        op: &str,
        threads: usize,
    ) -> Result<Bench> {
        let path = match file {
            QUOTA if lab.maker.layout().is_v2() => container.cgroup_file("", "cpu.max"),
            QUOTA => container.cgroup_file("cpu", "cpu.cfs_quota_us"),
            file => file.into(),
        };
        let args =
            [op.to_owned(), self.iterations.to_string(), threads.to_string(), path.display().to_string()];
        let text = container.read("bench", &args)?;
        serde_json::from_str(&text).with_context(|| format!("the reader printed \"{}\"", text.trim()))
    }
}

/// Medians, tails and ratios per file, as a table.
fn study(raw: &Raw, op: &str, threads: usize) -> String {
    let variants: BTreeSet<Variant> = raw.measurements.iter().map(|m| m.variant).collect();
    let mut head = vec!["file".to_owned()];
    head.extend(variants.iter().map(|v| format!("{v} p50")));
    head.extend(variants.iter().map(|v| format!("{v} p99")));
    let pairs = [
        (Variant::Lxcfs, Variant::Native),
        (Variant::Elbowroom, Variant::Native),
        (Variant::Lxcfs, Variant::Elbowroom),
    ];
    let pairs: Vec<_> =
        pairs.into_iter().filter(|(a, b)| variants.contains(a) && variants.contains(b)).collect();
    head.extend(pairs.iter().map(|(a, b)| format!("{a} / {b}")));
    let text = |spread: Option<Spread>| spread.map_or("-".to_owned(), |s| s.text());
    let rows: Vec<Vec<String>> = FILES
        .into_iter()
        .chain([QUOTA])
        .map(|file| {
            let select =
                |variant: Variant, of: fn(&Bench) -> u64| select(raw, file, op, threads, variant, of);
            let spread = |variant, of| text(Spread::of(select(variant, of).into_iter().map(|(_, us)| us)));
            let mut row = vec![file.to_owned()];
            row.extend(variants.iter().map(|v| spread(*v, |b| b.p50)));
            row.extend(variants.iter().map(|v| spread(*v, |b| b.p99)));
            row.extend(pairs.iter().map(|(a, b)| {
                let below = select(*b, |x| x.p50);
                let ratios = select(*a, |x| x.p50).into_iter().filter_map(|(round, us)| {
                    let (_, base) = below.iter().find(|(r, _)| *r == round)?;
                    (*base > 0.0).then(|| us / base)
                });
                text(Spread::of(ratios))
            }));
            row
        })
        .collect();
    table(&head.iter().map(String::as_str).collect::<Vec<_>>(), &rows)
}

/// (round, microseconds) of one file read one way.
fn select(
    raw: &Raw,
    file: &str,
    op: &str,
    threads: usize,
    variant: Variant,
    of: fn(&Bench) -> u64,
) -> Vec<(usize, f64)> {
    let chosen = raw
        .measurements
        .iter()
        .filter(|m| m.file == file && m.op == op && m.threads == threads && m.variant == variant);
    chosen.map(|m| (m.round, of(&m.bench) as f64 / 1e3)).collect()
}

fn figure(raw: &Raw, op: &str, title: &str) -> Result<String> {
    let variants: BTreeSet<Variant> = raw.measurements.iter().map(|m| m.variant).collect();
    let rows: Vec<(String, Vec<(Variant, Spread)>)> = FILES
        .into_iter()
        .chain([QUOTA])
        .map(|file| {
            let dots = variants.iter().filter_map(|v| {
                let medians = select(raw, file, op, 1, *v, |b| b.p50);
                Some((*v, Spread::of(medians.into_iter().map(|(_, us)| us * 1e3))?))
            });
            (file.to_owned(), dots.collect())
        })
        .collect();
    let (from, to) =
        plot::decades(rows.iter().flat_map(|(_, dots)| dots.iter().flat_map(|(_, s)| [s.min, s.max])));
    let x = Axis { label: "time per read (logarithmic)", log: true, from, to, tick: plot::nanoseconds };
    plot::dots(title, &x, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(round: usize, variant: Variant, p50: u64) -> Measurement {
        let bench = Bench {
            clock_ns: 18,
            samples: 1,
            bytes: 1,
            min: 1,
            p50,
            p90: p50,
            p99: p50,
            max: p50,
            mean: 1.0,
        };
        Measurement { round, file: FILES[0].into(), op: "open".into(), threads: 1, variant, bench }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The machine was ten times slower in round 1; the ratio was 5 in both.
        let measurements = vec![
            measurement(0, Variant::Native, 100),
            measurement(0, Variant::Lxcfs, 500),
            measurement(1, Variant::Native, 1000),
            measurement(1, Variant::Lxcfs, 5000),
        ];
        let raw = Raw { iterations: 1, pin: None, measurements };
        let text = study(&raw, "open", 1);
        assert!(text.contains("| 5.00 (5.00 to 5.00) |"), "{text}");
    }
}
