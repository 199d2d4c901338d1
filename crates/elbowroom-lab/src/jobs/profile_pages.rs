//! What it costs to compare the page tables of four processes of 500 MB, each way, and whether both find what is there.
//!
//! The family is made to measure: 150 MB that all have from their parent, 100 MB of a file, 20 MB in huge pages, also from the
//! parent, and 230 MB of each one's own.

use crate::job::{Folder, Job, Lab, table};
use crate::program::{self, Program};
use crate::stats::Spread;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::process::Command;

const PROCESSES: u64 = 4;
/// Pages of 4 KiB.
const SHARED: u64 = 150 * 256;
const FILE: u64 = 100 * 256;
const OWN: u64 = 230 * 256;
/// Pages of 2 MiB.
const HUGE: u64 = 10;

/// Arguments of `profile-pages`.
#[derive(clap::Args, Debug)]
pub(crate) struct ProfilePages {
    /// How often each way is taken.
    #[arg(long, default_value_t = 11)]
    rounds: usize,
}

/// All measurements of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    looks: Vec<Measured>,
    /// What a way that does not work here said.
    refused: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    round: usize,
    source: String,
    /// CPU time of the whole command, with loading what it loads.
    command_cpu_usec: u64,
    /// CPU time of the look alone.
    look_cpu_usec: u64,
    heap: Tally,
    file: Tally,
}

/// What the product tells of one kind; what this version does not know is ignored.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Tally {
    entries: u64,
    groupable: u64,
    elsewhere: u64,
    huge: u64,
}

/// A number of a measurement.
type Value = fn(&Measured) -> u64;

impl Job for ProfilePages {
    const NAME: &'static str = "profile-pages";
    type Raw = Raw;

    fn record(&self, lab: &Lab) -> Result<Raw> {
        let file = program::file(lab, FILE as usize)?;
        let numbers = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>();
        let mut arguments = numbers(&[PROCESSES, SHARED, OWN, HUGE]);
        arguments.push(file.display().to_string());
        arguments.extend(numbers(&[FILE, 0, 0]));
        let family = Program::start(lab, "pages", "profile-pages", &arguments)?;
        let cgroup = family.cgroup(lab)?;
        let mut raw = Raw { looks: Vec::new(), refused: Vec::new() };
        let mut sources = vec!["bpf", "pagemap"];
        for round in 0..self.rounds {
            sources.rotate_left(1);
            for source in sources.clone() {
                lab.scope.check()?;
                match look(lab, &cgroup, source, round)? {
                    Ok(measured) => raw.looks.push(measured),
                    Err(said) => {
                        raw.refused.push(said);
                        sources.retain(|other| *other != source);
                    }
                }
            }
        }
        if raw.looks.is_empty() {
            bail!("no way works here: {}", raw.refused.join("; "));
        }
        Ok(raw)
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        out.say(
            "CPU milliseconds to compare the page tables of four processes of 500 MB: 150 MB from their parent, 100 MB of a file, \
             20 MB in huge pages from their parent, 230 MB of each one's own. Ways in turn; medians (smallest to largest). \
             \"command\" is the whole process with loading BPF, \"look\" the comparison alone. No process is stopped.",
        );
        let mut rows = Vec::new();
        for source in ["bpf", "pagemap"] {
            let of = |value: Value| {
                let values = raw.looks.iter().filter(|m| m.source == source).map(|m| value(m) as f64 / 1e3);
                Spread::of(values).map(|spread| spread.text())
            };
            let Some(command) = of(|m| m.command_cpu_usec) else { continue };
            let look = of(|m| m.look_cpu_usec).context("a command has a look")?;
            let runs = raw.looks.iter().filter(|m| m.source == source).count();
            rows.push(vec![source.to_owned(), runs.to_string(), command, look]);
        }
        out.say(table(&["way", "runs", "command", "look"], &rows));
        out.say("What was found, beside what was made, in entries of 4 KiB (medians):");
        let shared = PROCESSES * (SHARED + HUGE * 512);
        let expected: [(&str, u64, Value); 5] = [
            ("groupable memory", shared, |m| m.heap.groupable),
            ("own memory", PROCESSES * OWN, |m| m.heap.entries - m.heap.groupable - m.heap.elsewhere),
            ("groupable file", PROCESSES * FILE, |m| m.file.groupable),
            ("huge", PROCESSES * HUGE * 512, |m| m.heap.huge),
            ("elsewhere", 0, |m| m.heap.elsewhere),
        ];
        let mut rows = Vec::new();
        for (name, made, value) in expected {
            let mut row = vec![name.to_owned(), made.to_string()];
            for source in ["bpf", "pagemap"] {
                let values = raw.looks.iter().filter(|m| m.source == source).map(|m| value(m) as f64);
                row.push(Spread::of(values).map_or("-".to_owned(), |spread| format!("{:.0}", spread.median)));
            }
            rows.push(row);
        }
        out.say(table(&["", "made", "bpf", "pagemap"], &rows));
        for said in &raw.refused {
            out.say(format!("Refused here: {said}."));
        }
        Ok(())
    }
}

/// One run of the product; what it said where it refused.
fn look(lab: &Lab, cgroup: &str, source: &str, round: usize) -> Result<Result<Measured, String>> {
    let output = Command::new(lab.program())
        .args(["profile", "pages", "--format", "json", "--source", source, cgroup])
        .output()
        .context("while running the product")?;
    if !output.status.success() {
        return Ok(Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    let answer: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("its answer is no JSON")?;
    let look = &answer["answer"]["looks"][0];
    let number = |value: &serde_json::Value| value.as_u64().context("its answer lacks a number");
    let kind = |name: &str| -> Result<Tally> {
        let value = look["containers"][0]["kinds"][name].clone();
        serde_json::from_value(value).with_context(|| format!("its answer lacks {name}"))
    };
    Ok(Ok(Measured {
        round,
        source: source.to_owned(),
        command_cpu_usec: number(&answer["overhead"]["cpu_usec"])?,
        look_cpu_usec: number(&look["cpu_usec"])?,
        heap: kind("heap")?,
        file: kind("file")?,
    }))
}
