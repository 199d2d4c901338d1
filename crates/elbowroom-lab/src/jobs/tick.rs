//! What one tick costs, sensing and deciding: CPU time per tick, by number of containers and how many of them run, per tier.
//!
//! The measuring itself is an example program of the linux crate, which has the sensor in its hands; this job runs it and
//! makes a table and a figure of what it prints.

use crate::job::{Folder, Job, Lab, table};
use crate::plot::{self, Axis, Line, PALETTE};
use crate::stats::{Spread, short};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::process::{Command, Stdio};

const FILES: &str = "files=cargo run --quiet --release --package elbowroom-linux --example tick_cost";

/// Arguments of `tick`.
#[derive(clap::Args, Debug)]
pub(crate) struct Tick {
    /// How often each program is run.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// A program that measures one tier and prints its report in JSON; may be given for several tiers.
    #[arg(long, value_name = "TIER=COMMAND", default_value = FILES)]
    program: Vec<String>,
}

/// All rows of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    rows: Vec<Row>,
}

/// One setting, measured once.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    round: usize,
    tier: String,
    #[serde(flatten)]
    cost: Cost,
}

/// What the program prints once; keys this version does not know are ignored.
#[derive(Debug, Deserialize)]
struct Report {
    rows: Vec<Cost>,
}

/// One setting in the program's report.
#[derive(Debug, Serialize, Deserialize)]
struct Cost {
    /// Containers.
    groups: u64,
    /// How many of them run in every period, in percent.
    active_percent: u64,
    /// CPU time of a tick, in microseconds.
    tick_us: Times,
    /// CPU time of what the default rules do with it; results before the program measured that have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    views_us: Option<Times>,
    /// Means per tick.
    per_tick: PerTick,
    missed_ticks: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Times {
    median: f64,
    p95: f64,
    mean: f64,
}

#[derive(Debug, Serialize, Deserialize)]
struct PerTick {
    syscalls: f64,
    groups_read: f64,
}

/// (tier, percent active, containers)
type Setting<'a> = (&'a str, u64, u64);

impl Job for Tick {
    const NAME: &'static str = "tick";
    type Raw = Raw;

    fn record(&self, lab: &Lab) -> Result<Raw> {
        let mut rows = Vec::new();
        for round in 0..self.rounds {
            let mut programs = self.program.clone();
            programs.rotate_left(round % self.program.len().max(1));
            for program in &programs {
                let (tier, command) = program.split_once('=').context("--program takes TIER=COMMAND")?;
                eprintln!("round {} of {}: {tier}", round + 1, self.rounds);
                lab.scope.check()?;
                let report = measure(command)?;
                let row = |cost| Row { round, tier: tier.to_owned(), cost };
                rows.extend(report.rows.into_iter().map(row));
            }
        }
        if rows.is_empty() {
            bail!("nothing was measured");
        }
        Ok(Raw { rows })
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        let rounds = raw.rows.iter().map(|r| r.round).max().unwrap_or(0) + 1;
        out.say(format!(
            "CPU time of one tick of the sensor in microseconds, and of the default rules that decide by it. Each figure is the median \
             over {rounds} runs (smallest to largest) of the run's median, 95th percentile or mean."
        ));
        let settings: BTreeSet<Setting> =
            raw.rows.iter().map(|r| (r.tier.as_str(), r.cost.active_percent, r.cost.groups)).collect();
        let rows: Vec<Vec<String>> = settings
            .iter()
            .filter_map(|setting| {
                let (tier, active, groups) = *setting;
                let median = study(raw, *setting, |c| c.tick_us.median)?;
                let rest: [fn(&Cost) -> f64; 5] = [
                    |c| c.tick_us.p95,
                    |c| c.tick_us.mean / c.groups as f64,
                    |c| c.per_tick.syscalls,
                    |c| c.per_tick.groups_read,
                    |c| c.missed_ticks as f64,
                ];
                let mut row = vec![tier.to_owned(), format!("{active} %"), groups.to_string(), median.text()];
                for of in rest {
                    row.push(short(study(raw, *setting, of)?.median));
                }
                let decided = |of: fn(&Times, u64) -> f64| {
                    let of = |c: &Cost| c.views_us.as_ref().map_or(f64::NAN, |views| of(views, c.groups));
                    study(raw, *setting, of).map_or_else(String::new, |spread| short(spread.median))
                };
                if raw.rows.iter().all(|row| row.cost.views_us.is_some()) {
                    row.push(decided(|views, _| views.median));
                    row.push(decided(|views, groups| views.mean / groups as f64));
                }
                Some(row)
            })
            .collect();
        let mut head = vec![
            "tier",
            "active",
            "containers",
            "µs per tick",
            "p95",
            "mean µs per container",
            "system calls per tick",
            "containers read per tick",
            "missed ticks",
        ];
        if raw.rows.iter().all(|row| row.cost.views_us.is_some()) {
            head.extend(["µs to decide", "mean µs per container to decide"]);
        }
        out.say(table(&head, &rows));
        let title = "CPU time of one tick by number of containers";
        out.figure("tick.svg", title, &figure(raw, &settings, title)?)
    }
}

fn measure(command: &str) -> Result<Report> {
    let mut words = command.split_whitespace();
    let program = words.next().context("the command is empty")?;
    let out = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("while running {program}"))?;
    if !out.status.success() {
        bail!("{command} failed: {}", out.status);
    }
    serde_json::from_slice(&out.stdout).with_context(|| format!("while reading what {command} printed"))
}

/// One figure of a setting over rounds.
fn study(raw: &Raw, (tier, active, groups): Setting, of: impl Fn(&Cost) -> f64) -> Option<Spread> {
    let is_it = |r: &&Row| (r.tier.as_str(), r.cost.active_percent, r.cost.groups) == (tier, active, groups);
    Spread::of(raw.rows.iter().filter(is_it).map(|r| of(&r.cost)))
}

fn figure(raw: &Raw, settings: &BTreeSet<Setting>, title: &str) -> Result<String> {
    let kinds: BTreeSet<(&str, u64)> = settings.iter().map(|(tier, active, _)| (*tier, *active)).collect();
    let line = |((tier, active), color): (&(&str, u64), _)| {
        let ours = settings.iter().filter(|s| (s.0, s.1) == (*tier, *active));
        let point = |s: &Setting| Some((s.2 as f64, study(raw, *s, |c| c.tick_us.median)?.median * 1e3));
        Line {
            name: format!("{tier}, {active} % active"),
            color,
            points: ours.filter_map(point).collect(),
            marks: true,
        }
    };
    let lines: Vec<Line> = kinds.iter().zip(PALETTE.into_iter().cycle()).map(line).collect();
    let all = || lines.iter().flat_map(|l| l.points.iter());
    let (x_from, x_to) = plot::decades(all().map(|p| p.0));
    let (y_from, y_to) = plot::decades(all().map(|p| p.1));
    let x = Axis { label: "containers (logarithmic)", log: true, from: x_from, to: x_to, tick: plot::plain };
    let y = Axis {
        label: "CPU time per tick (logarithmic)",
        log: true,
        from: y_from,
        to: y_to,
        tick: plot::nanoseconds,
    };
    plot::lines(title, &x, &y, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_with_keys_of_a_later_version_is_read() {
        let text = r#"{"kernel":"6.18","rows":[{"groups":10,"active_percent":100,"notifications":2,
            "tick_us":{"median":12.5,"p95":20,"mean":13},"per_tick":{"syscalls":21.5,"groups_read":10,"probes":0},
            "missed_ticks":0}]}"#;
        let report: Report = serde_json::from_str(text).unwrap();
        let rows = report.rows.into_iter().map(|cost| Row { round: 0, tier: "files".into(), cost }).collect();
        assert_eq!(study(&Raw { rows }, ("files", 100, 10), |c| c.tick_us.median).unwrap().median, 12.5);
    }
}
