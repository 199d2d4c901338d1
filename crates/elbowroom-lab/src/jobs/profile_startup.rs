//! How long containers take to start, and what it costs: engines and applications at the rates of the thesis
//! *Characterization of Containers in Emerging Applications* (Darbaz, 2018), figures 5.1 to 5.4.
//!
//! The measuring is `elbowroom profile startup --breakdown`; this job runs it for every engine in turn, round after round, and
//! puts the rounds together. Docker and containerd are those that `DOCKER_HOST` and `CONTAINERD_ADDRESS` say, as the product
//! takes them; an engine that is not here is left out, and the summary says why.

use crate::container::docker_image;
use crate::job::{Folder, Job, Lab, table};
use crate::plot::{self, Axis, Line, PALETTE};
use crate::product::Product;
use crate::program;
use crate::stats::{Spread, quantile, short};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// Bytes of the file that functions map.
const FILE: usize = 64 << 20;
/// Families that a figure tells apart.
const NAMED: usize = 9;

/// Arguments of `profile-startup`.
#[derive(clap::Args, Debug)]
pub(crate) struct ProfileStartup {
    /// What is compared.
    #[arg(long, value_enum, default_value = "engines")]
    compare: Compare,
    /// How often everything is measured, one after another in turns.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Starts per second.
    #[arg(long, default_value = "1,2,4,8")]
    rate: String,
    /// How long at each rate.
    #[arg(long = "for", default_value = "8s")]
    duration: String,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Compare {
    /// Engines, each starting `sleep`.
    Engines,
    /// Applications, each started by Docker.
    Applications,
    /// runc with and without Elbowroom's hook, an agent running: what views add to a start.
    Views,
}

/// All rounds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    compare: Compare,
    runs: Vec<Run>,
    /// What could not be measured, and why.
    skipped: BTreeMap<String, String>,
}

/// One engine or application, one round.
#[derive(Debug, Serialize, Deserialize)]
struct Run {
    round: usize,
    name: String,
    /// What the profiler itself used, in percent of one CPU.
    profiler_percent: f64,
    #[serde(flatten)]
    answer: Answer,
}

/// What the product prints.
#[derive(Debug, Deserialize)]
struct Printed {
    overhead: Overhead,
    answer: Answer,
}

#[derive(Debug, Deserialize)]
struct Overhead {
    cpu_usec: f64,
    wall_usec: f64,
}

/// Those of its numbers that are kept.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    engine: String,
    version: String,
    start: String,
    rates: Vec<AtRate>,
    breakdown: Option<Cost>,
}

#[derive(Debug, Serialize, Deserialize)]
struct AtRate {
    rate: f64,
    failures: u64,
    achieved_per_second: f64,
    saturated: bool,
    requests: Vec<Start>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Start {
    #[serde(default)]
    application: usize,
    latency_usec: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Cost {
    frequency_hz: u64,
    starts: u64,
    kernel: u64,
    user: u64,
    told: u64,
    resolved: Resolved,
    samples: Tally,
    programs: Vec<Program>,
    families: Vec<Share>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Resolved {
    named: u64,
    frames: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Tally {
    kernel_threads: u64,
    others: u64,
    lost: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Program {
    name: String,
    kernel: u64,
    user: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Share {
    family: String,
    kernel: u64,
    user: u64,
}

/// What is measured under one name: its arguments, after `profile startup`.
struct Variant {
    name: &'static str,
    arguments: Vec<String>,
}

impl Job for ProfileStartup {
    const NAME: &'static str = "profile-startup";
    type Raw = Raw;

    fn tag(&self) -> Option<String> {
        let compare = clap::ValueEnum::to_possible_value(&self.compare)?;
        Some(compare.get_name().to_owned())
    }

    fn record(&self, lab: &Lab) -> Result<Raw> {
        let (mut variants, _agent) = match self.compare {
            Compare::Engines => (engines(), None),
            Compare::Applications => (applications(lab)?, None),
            Compare::Views => (
                views(lab)?,
                Some(Product::start(&lab.scope, lab.program(), AGENT, "/elbowroom-profile-*", &[])?),
            ),
        };
        let mut raw = Raw { compare: self.compare, runs: Vec::new(), skipped: BTreeMap::new() };
        for round in 0..self.rounds {
            variants.rotate_left(usize::from(round > 0));
            for variant in &variants {
                lab.scope.check()?;
                if raw.skipped.contains_key(variant.name) {
                    continue;
                }
                eprintln!("round {} of {}: {}", round + 1, self.rounds, variant.name);
                match self.measure(lab, variant) {
                    Ok(printed) => raw.runs.push(Run {
                        round,
                        name: variant.name.to_owned(),
                        profiler_percent: 100.0 * printed.overhead.cpu_usec / printed.overhead.wall_usec,
                        answer: printed.answer,
                    }),
                    Err(why) => {
                        lab.scope.check()?;
                        eprintln!("warning: {} is left out: {why:#}", variant.name);
                        raw.skipped.insert(variant.name.to_owned(), format!("{why:#}"));
                    }
                }
            }
            if !raw.runs.is_empty() {
                lab.keep(&raw)?;
            }
        }
        if raw.runs.is_empty() {
            bail!("nothing could be measured: {:?}", raw.skipped);
        }
        Ok(raw)
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        let rounds = raw.runs.iter().map(|run| run.round).max().unwrap_or(0) + 1;
        let what = match raw.compare {
            Compare::Engines => {
                "engines, each starting `sleep` of the host in an empty root, without a network"
            }
            Compare::Applications => {
                "applications, each started by the same engine, without a network: those of the host over its /usr, and PageRank and \
                 two functions, of an image with nothing else, which work once before they wait"
            }
            Compare::Views => {
                "one bundle, started by runc in turns without and with Elbowroom's hook, an agent running"
            }
        };
        out.say(format!(
            "Starts of {what}. Latency is from when a start was due until the engine answered; requests come whether or not \
             earlier ones are done. Figures are medians over {rounds} rounds (smallest to largest)."
        ));
        for (name, why) in &raw.skipped {
            out.say(format!("Left out: {name}: {why}"));
        }
        let names = names(raw);
        out.say("## Latency, ms");
        let title = "Median latency of a start by rate";
        match raw.compare {
            Compare::Views => out.say(paired_table(raw)),
            _ => {
                out.say(latency_table(raw, &names));
                out.figure("latency.svg", title, &latency_figure(raw, &names, title)?)?;
            }
        }
        out.say("## CPU time per start");
        out.say(
            "The engine and everything that it started, between a rate's first request and its last answer, from samples of all \
             CPUs; of kernel threads, which also work for others, beside it.",
        );
        out.say(cost_table(raw, &names));
        let bars: Vec<(String, Vec<f64>)> =
            names.iter().filter_map(|name| Some((name.clone(), split(raw, name)?))).collect();
        let title = "CPU time per start, in the kernel and in programs (ms)";
        out.figure("split.svg", title, &plot::bars(title, "ms per start", &["kernel", "programs"], &bars)?)?;
        out.say("## What it is spent on");
        let (families, rows) = families(raw, &names);
        out.say(family_table(&families, &names, &rows));
        let bars: Vec<(String, Vec<f64>)> = names.iter().cloned().zip(rows).collect();
        let parts: Vec<&str> = families.iter().map(String::as_str).collect();
        let title = "CPU time per start by what it is spent on (ms)";
        out.figure("families.svg", title, &plot::bars(title, "ms per start", &parts, &bars)?)?;
        out.say("## By program");
        out.say(program_table(raw, &names));
        Ok(())
    }
}

/// The agent that gives containers of the profiler their views.
const AGENT: &str = "profile-startup";

impl ProfileStartup {
    fn measure(&self, lab: &Lab, variant: &Variant) -> Result<Printed> {
        let mut command = Command::new(lab.program());
        command.args(["profile", "startup", "--breakdown", "--format", "json", "--rate", &self.rate]);
        command.args(["--for", &self.duration]).args(&variant.arguments);
        let out = command.stdin(Stdio::null()).output().context("while starting the product")?;
        // Status 1 says that some starts failed: that is a number, not an error.
        if !matches!(out.status.code(), Some(0 | 1)) {
            bail!("{}", String::from_utf8_lossy(&out.stderr).trim());
        }
        let printed: Printed =
            serde_json::from_slice(&out.stdout).context("the product printed no profile")?;
        if printed.answer.breakdown.is_none() {
            bail!("no container started");
        }
        Ok(printed)
    }
}

fn engines() -> Vec<Variant> {
    // crun below Podman refuses a hybrid cgroup hierarchy; runc is what the others use, too.
    let podman = ["--engine", "podman", "--runtime", "runc"];
    let of = |name, arguments: &[&str]| Variant {
        name,
        arguments: arguments.iter().map(|w| (*w).to_owned()).collect(),
    };
    vec![
        of("docker", &["--engine", "docker"]),
        of("containerd", &["--engine", "containerd"]),
        of("podman", &podman),
        of("runc", &["--engine", "runc"]),
        of("crun", &["--engine", "crun"]),
    ]
}

/// Programs of this machine, and of an image: own ones and the file that functions map.
fn applications(lab: &Lab) -> Result<Vec<Variant>> {
    let apache = "httpd=apache2 -DFOREGROUND -f /dev/null -C 'LoadModule mpm_event_module \
        /usr/lib/apache2/modules/mod_mpm_event.so' -c 'ServerName localhost' -c 'Listen 8080' -c 'PidFile /tmp/pid' \
        -c 'ErrorLog /dev/stderr' -c 'DefaultRuntimeDir /tmp'";
    let mariadb = "mariadb=sh -c 'mkdir /tmp/d && exec mariadbd --no-defaults --user=root --skip-grant-tables \
        --skip-networking --datadir=/tmp/d --socket=/tmp/s --innodb-log-file-size=4M --innodb-buffer-pool-size=8M'";
    let python =
        "python=/usr/bin/python3 -c 'import json, time, http.client; json.loads(\"{}\"); time.sleep(1000)'";
    // It maps a large file that is there anyway.
    let fio = "fio=sh -c 'fio --name=x --ioengine=mmap --rw=randread --bs=4k --size=16m --invalidate=0 --readonly \
        --filename=$(command -v mariadbd) || exit; exec sleep 1000'";
    let root = lab.scope.dir().join("applications");
    std::fs::create_dir_all(&root).context("while making an image")?;
    std::fs::copy(program::build("applications")?, root.join("applications"))
        .context("while making an image")?;
    std::fs::write(root.join("file"), vec![1; FILE]).context("while making an image")?;
    let image = format!("elbowroom-lab-applications-{}:latest", std::process::id());
    docker_image(&lab.scope, &image, &root)?;
    let of = |name, command: &str| Variant { name, arguments: vec!["--command".into(), command.into()] };
    let own = |name| Variant {
        name,
        arguments: vec!["--image".into(), format!("{name}={image} /applications {name} /file once")],
    };
    Ok(vec![
        of("busybox", "busybox sleep 1000"),
        of("httpd", apache),
        of("mariadb", mariadb),
        of("python", python),
        of("fio", fio),
        own("pagerank"),
        own("dense"),
        own("sparse"),
    ])
}

/// Two bundles that differ in one hook, started in turns by one call.
fn views(lab: &Lab) -> Result<Vec<Variant>> {
    let hook = std::path::absolute(lab.program()).context("while finding the product")?;
    let root = lab.scope.dir().join("root");
    for dir in ["dev", "proc", "sys", "usr", "tmp", "etc"] {
        std::fs::create_dir_all(root.join(dir)).context("while making a root")?;
    }
    for link in ["bin", "sbin", "lib", "lib64"] {
        std::os::unix::fs::symlink(format!("usr/{link}"), root.join(link)).context("while making a root")?;
    }
    let run_dir = lab.scope.dir().join(AGENT);
    let mut arguments = vec!["--engine".to_owned(), "runc".into()];
    for name in ["plain", "views"] {
        let mut config = serde_json::json!({
            "ociVersion": "1.0.2",
            "process": {"user": {"uid": 0, "gid": 0}, "args": ["sleep", "1000"], "cwd": "/",
                        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},
            "root": {"path": root, "readonly": false},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
                {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
                {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["nosuid", "noexec", "nodev", "ro"]},
                {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]},
            ],
            "linux": {"namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network"}]},
        });
        if name == "views" {
            config["hooks"] = serde_json::json!({"createContainer": [{
                "path": hook, "args": ["elbowroom", "hook", "--run-dir", run_dir],
            }]});
        }
        let dir = lab.scope.dir().join(format!("bundle-{name}"));
        std::fs::create_dir_all(&dir).context("while making a bundle")?;
        std::fs::write(dir.join("config.json"), config.to_string()).context("while writing a bundle")?;
        arguments.extend(["--bundle".to_owned(), format!("{name}={}", dir.display())]);
    }
    Ok(vec![Variant { name: "plain, views", arguments }])
}

/// In the order in which they were measured.
fn names(raw: &Raw) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for run in &raw.runs {
        if !names.contains(&run.name) {
            names.push(run.name.clone());
        }
    }
    names
}

fn runs<'a>(raw: &'a Raw, name: &'a str) -> impl Iterator<Item = &'a Run> {
    raw.runs.iter().filter(move |run| run.name == name)
}

fn rates(raw: &Raw) -> Vec<f64> {
    raw.runs.first().map(|run| run.answer.rates.iter().map(|at| at.rate).collect()).unwrap_or_default()
}

/// A number of each round, at one rate.
fn at_rate(raw: &Raw, name: &str, rate: f64, of: impl Fn(&AtRate) -> Option<f64>) -> Option<Spread> {
    let at = runs(raw, name).filter_map(|run| run.answer.rates.iter().find(|at| at.rate == rate));
    Spread::of(at.filter_map(of))
}

fn latencies(at: &AtRate) -> Vec<u64> {
    let mut sorted: Vec<u64> = at.requests.iter().map(|start| start.latency_usec).collect();
    sorted.sort_unstable();
    sorted
}

fn percentile(per_mille: usize) -> impl Fn(&AtRate) -> Option<f64> {
    move |at| Some(quantile(&latencies(at), per_mille)? as f64 / 1e3)
}

fn mean(at: &AtRate) -> Option<f64> {
    let all = latencies(at);
    (!all.is_empty()).then(|| all.iter().sum::<u64>() as f64 / all.len() as f64 / 1e3)
}

fn latency_table(raw: &Raw, names: &[String]) -> String {
    let mut rows = Vec::new();
    for name in names {
        for rate in rates(raw) {
            let text = |spread: Option<Spread>| spread.map_or_else(String::new, |spread| spread.text());
            let of = |at: &dyn Fn(&AtRate) -> Option<f64>| text(at_rate(raw, name, rate, at));
            let count = |of: fn(&AtRate) -> u64| -> u64 {
                let at = runs(raw, name).filter_map(|run| run.answer.rates.iter().find(|at| at.rate == rate));
                at.map(of).sum()
            };
            rows.push(vec![
                name.clone(),
                rate.to_string(),
                count(|at| at.requests.len() as u64).to_string(),
                count(|at| at.failures).to_string(),
                of(&mean),
                of(&percentile(500)),
                of(&percentile(950)),
                of(&percentile(990)),
                of(&|at| Some(at.achieved_per_second)),
                count(|at| u64::from(at.saturated)).to_string(),
            ]);
        }
    }
    let head = [
        "",
        "starts/s",
        "starts",
        "failed",
        "mean",
        "p50",
        "p95",
        "p99",
        "answered/s",
        "rounds that fell behind",
    ];
    table(&head, &rows)
}

/// Medians of the two bundles within one call, and their difference, round by round.
fn paired_table(raw: &Raw) -> String {
    let median = |at: &AtRate, application: usize| {
        let mut own: Vec<u64> =
            at.requests.iter().filter(|s| s.application == application).map(|s| s.latency_usec).collect();
        own.sort_unstable();
        Some(quantile(&own, 500)? as f64 / 1e3)
    };
    let rows: Vec<Vec<String>> = rates(raw)
        .into_iter()
        .map(|rate| {
            let of = |at: &dyn Fn(&AtRate) -> Option<f64>| {
                let spreads =
                    raw.runs.iter().filter_map(|run| run.answer.rates.iter().find(|at| at.rate == rate));
                Spread::of(spreads.filter_map(at)).map_or_else(String::new, |spread| spread.text())
            };
            vec![
                rate.to_string(),
                of(&|at| median(at, 0)),
                of(&|at| median(at, 1)),
                of(&|at| Some(median(at, 1)? - median(at, 0)?)),
            ]
        })
        .collect();
    table(&["starts/s, both together", "p50 without", "p50 with the hook", "difference"], &rows)
}

fn latency_figure(raw: &Raw, names: &[String], title: &str) -> Result<String> {
    let lines: Vec<Line> = names
        .iter()
        .enumerate()
        .map(|(i, name)| {
            let point = |rate: f64| Some((rate, at_rate(raw, name, rate, percentile(500))?.median));
            let points = rates(raw).into_iter().filter_map(point).collect();
            Line { name: name.clone(), color: PALETTE[i % PALETTE.len()], points, marks: true }
        })
        .collect();
    let (from, to) = plot::decades(lines.iter().flat_map(|line| line.points.iter().map(|point| point.1)));
    let last = rates(raw).into_iter().fold(1.0, f64::max);
    let x = Axis { label: "starts per second", log: false, from: 0.0, to: last, tick: plot::whole };
    let y = Axis { label: "ms", log: true, from, to, tick: plot::plain };
    plot::lines(title, &x, &y, &lines)
}

impl Cost {
    /// Milliseconds of one start.
    fn ms(&self, samples: u64) -> f64 {
        samples as f64 * 1e3 / self.frequency_hz as f64 / self.starts.max(1) as f64
    }
}

/// A number of each round's breakdown.
fn of_cost(raw: &Raw, name: &str, of: impl Fn(&Cost) -> f64) -> Option<Spread> {
    Spread::of(runs(raw, name).filter_map(|run| run.answer.breakdown.as_ref()).map(of))
}

fn split(raw: &Raw, name: &str) -> Option<Vec<f64>> {
    Some(vec![of_cost(raw, name, |c| c.ms(c.kernel))?.median, of_cost(raw, name, |c| c.ms(c.user))?.median])
}

fn cost_table(raw: &Raw, names: &[String]) -> String {
    let percent = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
    let rows: Vec<Vec<String>> = names
        .iter()
        .map(|name| {
            let of = |of: &dyn Fn(&Cost) -> f64| {
                of_cost(raw, name, of).map_or_else(String::new, |spread| spread.text())
            };
            let version = runs(raw, name).next().map_or_else(String::new, |run| run.answer.version.clone());
            let profiler = Spread::of(runs(raw, name).map(|run| run.profiler_percent));
            vec![
                format!("{name} ({version})"),
                of(&|c| c.ms(c.kernel + c.user)),
                of(&|c| percent(c.kernel, c.kernel + c.user)),
                of(&|c| c.ms(c.samples.kernel_threads)),
                of(&|c| (c.kernel + c.user) as f64),
                of(&|c| percent(c.told, c.kernel + c.user)),
                of(&|c| percent(c.resolved.named, c.resolved.frames)),
                of(&|c| c.samples.lost as f64),
                profiler.map_or_else(String::new, |spread| spread.text()),
            ]
        })
        .collect();
    let head = [
        "",
        "ms per start",
        "in the kernel, %",
        "kernel threads, ms",
        "samples",
        "in a telling family, %",
        "frames with a name, %",
        "samples lost",
        "profiler, % of one CPU",
    ];
    table(&head, &rows)
}

/// The largest families over all, and for each name their milliseconds per start, with the rest last.
fn families(raw: &Raw, names: &[String]) -> (Vec<String>, Vec<Vec<f64>>) {
    let of = |name: &str, family: &str| {
        let one = |c: &Cost| {
            c.families
                .iter()
                .find(|share| share.family == family)
                .map_or(0.0, |share| c.ms(share.kernel + share.user))
        };
        of_cost(raw, name, one).map_or(0.0, |spread| spread.median)
    };
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    for name in names {
        let all = of_cost(raw, name, |c| c.ms(c.kernel + c.user)).map_or(1.0, |spread| spread.median);
        let seen: std::collections::BTreeSet<&str> = runs(raw, name)
            .filter_map(|run| run.answer.breakdown.as_ref())
            .flat_map(|cost| cost.families.iter().map(|share| share.family.as_str()))
            .collect();
        for family in seen {
            // Each name counts the same, however much it uses.
            *sums.entry(family.to_owned()).or_default() += of(name, family) / all;
        }
    }
    let mut largest: Vec<(String, f64)> = sums.into_iter().collect();
    largest.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut families: Vec<String> = largest.into_iter().take(NAMED).map(|(family, _)| family).collect();
    let rows = names
        .iter()
        .map(|name| {
            let mut row: Vec<f64> = families.iter().map(|family| of(name, family)).collect();
            let all = of_cost(raw, name, |c| c.ms(c.kernel + c.user)).map_or(0.0, |spread| spread.median);
            row.push((all - row.iter().sum::<f64>()).max(0.0));
            row
        })
        .collect();
    families.push("the rest".to_owned());
    families.iter_mut().for_each(|family| *family = family.replace('_', " "));
    (families, rows)
}

fn family_table(families: &[String], names: &[String], rows: &[Vec<f64>]) -> String {
    let mut head = vec!["ms per start (share)"];
    head.extend(names.iter().map(String::as_str));
    let line = |(i, family): (usize, &String)| {
        let cells = rows.iter().map(|row| {
            let all: f64 = row.iter().sum();
            format!("{} ({:.0} %)", short(row[i]), 100.0 * row[i] / all.max(f64::MIN_POSITIVE))
        });
        [family.clone()].into_iter().chain(cells).collect()
    };
    table(&head, &families.iter().enumerate().map(line).collect::<Vec<_>>())
}

fn program_table(raw: &Raw, names: &[String]) -> String {
    let mut rows = Vec::new();
    for name in names {
        let mut programs: BTreeMap<&str, ()> = BTreeMap::new();
        for cost in runs(raw, name).filter_map(|run| run.answer.breakdown.as_ref()) {
            programs.extend(cost.programs.iter().map(|program| (program.name.as_str(), ())));
        }
        let mut own: Vec<(Spread, f64, &str)> = programs
            .into_keys()
            .filter_map(|program| {
                let find = |c: &Cost| {
                    c.programs.iter().find(|p| p.name == program).map_or((0, 0), |p| (p.kernel, p.user))
                };
                let all = of_cost(raw, name, |c| c.ms(find(c).0 + find(c).1))?;
                let kernel = of_cost(raw, name, |c| c.ms(find(c).0))?;
                Some((all, kernel.median, program))
            })
            .collect();
        own.sort_by(|a, b| b.0.median.total_cmp(&a.0.median));
        for (all, kernel, program) in own.into_iter().take(8).filter(|(all, ..)| all.median >= 0.05) {
            rows.push(vec![
                name.clone(),
                program.to_owned(),
                all.text(),
                format!("{:.0} %", 100.0 * kernel / all.median),
            ]);
        }
    }
    table(&["", "program", "ms per start", "in the kernel"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(round: usize, name: &str, latency_ms: u64, kernel: u64) -> Run {
        let start = |i: u64| Start { application: i as usize % 2, latency_usec: (latency_ms + i) * 1000 };
        let at = AtRate {
            rate: 2.0,
            failures: 0,
            achieved_per_second: 2.0,
            saturated: false,
            requests: (0..8).map(start).collect(),
        };
        let cost = Cost {
            frequency_hz: 1000,
            starts: 8,
            kernel,
            user: 80,
            told: 80,
            resolved: Resolved { named: 1, frames: 1 },
            samples: Tally { kernel_threads: 0, others: 0, lost: 0 },
            programs: vec![Program { name: "runc".into(), kernel, user: 80 }],
            families: vec![Share { family: "page_faults".into(), kernel, user: 0 }],
        };
        let (engine, version, start) = (name.to_owned(), "1".to_owned(), "x".to_owned());
        let answer = Answer { engine, version, start, rates: vec![at], breakdown: Some(cost) };
        Run { round, name: name.to_owned(), profiler_percent: 1.0, answer }
    }

    #[test]
    fn rounds_come_to_medians_and_ranges() {
        let runs = vec![run(0, "runc", 10, 80), run(1, "runc", 30, 240), run(2, "runc", 20, 160)];
        let raw = Raw { compare: Compare::Engines, runs, skipped: BTreeMap::new() };
        let names = names(&raw);
        assert_eq!(names, ["runc"]);
        assert!(
            latency_table(&raw, &names).contains("23.0 (13.0 to 33.0)"),
            "{}",
            latency_table(&raw, &names)
        );
        assert_eq!(split(&raw, "runc"), Some(vec![20.0, 10.0]));
        let (families, rows) = families(&raw, &names);
        assert_eq!(
            (families, rows),
            (vec!["page faults".to_owned(), "the rest".to_owned()], vec![vec![20.0, 10.0]])
        );
    }

    #[test]
    fn the_difference_of_pairs_is_taken_within_a_round() {
        let raw = Raw {
            compare: Compare::Views,
            runs: vec![run(0, "a", 10, 1), run(1, "a", 500, 1)],
            skipped: BTreeMap::new(),
        };
        assert!(paired_table(&raw).contains("1.00 (1.00 to 1.00)"), "{}", paired_table(&raw));
    }
}
