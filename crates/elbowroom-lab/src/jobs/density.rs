//! Hundreds of containers, made and removed again and again under load: does the agent keep anything of them?
//!
//! What the agent's processes hold (descriptors, mounts, threads, memory) is read when no container is there, once before
//! the first cycle and after each. The verdict is a line through the second half of the cycles, since what is remembered of
//! containers that went (changes, history: thousands of entries at most) fills up in the first: a resource grows when it grew
//! by more than 5 % (and by more than two) over them and the slope is more than twice its standard error.

use crate::backend::{Backend, Variant};
use crate::cgroup::Limits;
use crate::job::{Folder, Job, Lab, now_ns, table};
use crate::plot::{self, Axis, Line, PALETTE};
use crate::procfs::Usage;
use crate::stats::slope;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Arguments of `density`.
#[derive(clap::Args, Debug)]
pub(crate) struct Density {
    /// Containers, each with one sleeping process.
    #[arg(long, default_value_t = 500)]
    containers: usize,
    /// How often they are made and removed.
    #[arg(long, default_value_t = 20)]
    cycles: usize,
    /// How long all of them stay, in seconds.
    #[arg(long, default_value_t = 3)]
    stay_seconds: u64,
    /// Threads that keep CPUs busy the whole time, in a container of their own.
    #[arg(long, default_value_t = 2)]
    load_threads: u64,
}

/// A run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    containers: usize,
    load_threads: u64,
    empty_before: Usage,
    cycles: Vec<Cycle>,
}

/// Once up and down.
#[derive(Debug, Serialize, Deserialize)]
struct Cycle {
    make_s: f64,
    remove_s: f64,
    /// All the agent's processes with all containers there.
    full: Usage,
    /// CPU seconds per second meanwhile.
    full_cpus: f64,
    /// All the agent's processes after they are gone.
    empty: Usage,
}

impl Job for Density {
    const NAME: &'static str = "density";
    type Raw = Raw;

    fn record(&self, lab: &Lab) -> Result<Raw> {
        let backend = lab.start(Variant::Elbowroom)?;
        let burner = lab.maker.make("burner", &Limits::default(), &[])?;
        let mut load = None;
        if self.load_threads > 0 {
            let day_ms = 86_400_000u64;
            let plan = [
                now_ns().to_string(),
                "busy".into(),
                "0".into(),
                day_ms.to_string(),
                self.load_threads.to_string(),
            ];
            let mut command = burner.reader("load", &plan);
            load = Some(command.stdout(Stdio::null()).spawn().context("while starting the load")?);
        }
        let usage = |backend: &Backend| Usage::of_all(&backend.pids());
        lab.scope.sleep(Duration::from_secs(2))?;
        let empty_before = usage(&backend);
        let mut cycles = Vec::new();
        for n in 0..self.cycles {
            eprintln!("cycle {} of {}", n + 1, self.cycles);
            cycles.push(self.cycle(lab, &backend)?);
        }
        drop(burner);
        load.as_mut().map(Child::wait).transpose().context("while waiting for the load")?;
        Ok(Raw { containers: self.containers, load_threads: self.load_threads, empty_before, cycles })
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        out.say(format!(
            "{} containers with one sleeping process each, attached and removed {} times beside {} busy threads. Sums over \
             the agent's processes; mounts are the most that one of them sees.",
            raw.containers,
            raw.cycles.len(),
            raw.load_threads
        ));
        out.say(verdicts(raw));
        out.say(cycles_table(raw));
        for (name, label, of) in RESOURCES {
            let title = format!("{label} of the agent, empty and with {} containers", raw.containers);
            out.figure(&format!("{name}.svg"), &title, &figure(raw, label, of, &title)?)?;
        }
        Ok(())
    }
}

impl Density {
    fn cycle(&self, lab: &Lab, backend: &Backend) -> Result<Cycle> {
        let usage = || Usage::of_all(&backend.pids());
        let began = Instant::now();
        let containers = lab.containers(backend, "d", self.containers, |_| Limits {
            memory_mib: Some(64),
            ..Limits::default()
        })?;
        let make_s = began.elapsed().as_secs_f64();
        let before = usage();
        lab.scope.sleep(Duration::from_secs(self.stay_seconds))?;
        let full = usage();
        let full_cpus = (full.cpu_s - before.cpu_s) / self.stay_seconds.max(1) as f64;
        let began = Instant::now();
        drop(containers);
        let remove_s = began.elapsed().as_secs_f64();
        // The agent learns of removals by notification and lets go within a tick; one second is plenty.
        lab.scope.sleep(Duration::from_secs(1))?;
        Ok(Cycle { make_s, remove_s, full, full_cpus, empty: usage() })
    }
}

type Resource = (&'static str, &'static str, fn(&Usage) -> f64);

const RESOURCES: [Resource; 4] = [
    ("memory", "Own memory (MiB)", |u| u.anon_kib as f64 / 1024.0),
    ("fds", "Open descriptors", |u| u.fds as f64),
    ("mounts", "Mounts", |u| u.mounts as f64),
    ("threads", "Threads", |u| u.threads as f64),
];

/// What a line through the cycles says of one resource.
#[derive(Debug, PartialEq)]
struct Trend {
    first: f64,
    last: f64,
    per_cycle: f64,
    error: f64,
    grows: bool,
}

fn study(raw: &Raw, of: impl Fn(&Usage) -> f64) -> Option<Trend> {
    let points: Vec<(f64, f64)> = raw
        .cycles
        .iter()
        .enumerate()
        .skip(raw.cycles.len() / 2)
        .map(|(i, c)| (i as f64, of(&c.empty)))
        .collect();
    let (per_cycle, error) = slope(&points)?;
    let (first, last) = (points.first()?.1, points.last()?.1);
    let over_all = per_cycle * (points.len() - 1) as f64;
    let grows = over_all > (0.05 * first).max(2.0) && per_cycle > 2.0 * error;
    Some(Trend { first, last, per_cycle, error, grows })
}

fn verdicts(raw: &Raw) -> String {
    let verdict = |label: String, of: &dyn Fn(&Usage) -> f64| {
        let mut row = vec![label, plot::plain(of(&raw.empty_before))];
        match study(raw, of) {
            Some(t) => row.extend([
                plot::plain(t.first),
                plot::plain(t.last),
                format!("{} ± {}", plot::plain(t.per_cycle), plot::plain(t.error)),
                if t.grows { "grows" } else { "does not grow" }.to_owned(),
            ]),
            None => row.extend(["-", "-", "-", "too few cycles"].map(str::to_owned)),
        }
        row
    };
    let mut rows: Vec<Vec<String>> =
        RESOURCES.iter().map(|(_, label, of)| verdict((*label).to_owned(), of)).collect();
    let own = |name: &str, usage: &Usage| usage.by_name.get(name).map_or(0.0, |kib| *kib as f64 / 1024.0);
    // Who is there only now and then, as the doctor, is left out.
    let names = raw.empty_before.by_name.keys();
    rows.extend(names.map(|name| verdict(format!("Own memory of {name} (MiB)"), &|usage| own(name, usage))));
    table(&["when empty", "at start", "halfway", "after the last", "per cycle", "verdict"], &rows)
}

fn cycles_table(raw: &Raw) -> String {
    let rows: Vec<Vec<String>> = raw
        .cycles
        .iter()
        .enumerate()
        .map(|(i, c)| {
            vec![
                (i + 1).to_string(),
                format!("{:.1}", c.make_s),
                format!("{:.1}", c.remove_s),
                format!("{:.1}", c.full_cpus * 100.0),
                format!("{} / {}", c.empty.fds, c.full.fds),
                format!("{} / {}", c.empty.mounts, c.full.mounts),
                format!("{} / {}", c.empty.threads, c.full.threads),
                format!("{:.1} / {:.1}", c.empty.anon_kib as f64 / 1024.0, c.full.anon_kib as f64 / 1024.0),
                format!("{:.1} / {:.1}", c.empty.rss_kib as f64 / 1024.0, c.full.rss_kib as f64 / 1024.0),
            ]
        })
        .collect();
    let head = [
        "cycle",
        "make, s",
        "remove, s",
        "CPU when full, % of one",
        "descriptors, empty / full",
        "mounts",
        "threads",
        "own MiB",
        "resident MiB",
    ];
    table(&head, &rows)
}

fn figure(raw: &Raw, label: &str, of: fn(&Usage) -> f64, title: &str) -> Result<String> {
    let series = |name: &str, color, pick: &dyn Fn(&Cycle) -> f64| Line {
        name: name.to_owned(),
        color,
        points: raw.cycles.iter().enumerate().map(|(i, c)| ((i + 1) as f64, pick(c))).collect(),
        marks: true,
    };
    let lines = [
        series("all containers", PALETTE[1], &|c| of(&c.full)),
        series("empty", PALETTE[0], &|c| of(&c.empty)),
    ];
    let top = lines.iter().flat_map(|l| l.points.iter().map(|p| p.1)).fold(1.0, f64::max) * 1.1;
    let last = raw.cycles.len().max(2) as f64;
    let x = Axis { label: "cycle", log: false, from: 1.0, to: last, tick: plot::whole };
    let y = Axis { label, log: false, from: 0.0, to: top, tick: plot::plain };
    plot::lines(title, &x, &y, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(fds: impl Fn(usize) -> u64) -> Raw {
        let cycle = |i| Cycle {
            make_s: 1.0,
            remove_s: 1.0,
            full: Usage::default(),
            full_cpus: 0.0,
            empty: Usage { fds: fds(i), ..Usage::default() },
        };
        Raw {
            containers: 1,
            load_threads: 0,
            empty_before: Usage::default(),
            cycles: (0..20).map(cycle).collect(),
        }
    }

    #[test]
    fn one_descriptor_kept_per_cycle_is_growth_and_noise_is_not() {
        let fds = |u: &Usage| u.fds as f64;
        assert!(study(&raw(|i| 30 + i as u64), fds).unwrap().grows);
        assert!(!study(&raw(|i| 30 + (i % 2) as u64), fds).unwrap().grows);
        assert!(
            !study(&raw(|i| if i < 10 { i as u64 } else { 40 }), fds).unwrap().grows,
            "warm-up is not growth"
        );
    }
}
