//! How views follow the room: five containers with equal shares whose neighbours come and go.
//!
//! All five start together. The first is busy nearly all the time; the second to fourth join it one by one and leave in the
//! opposite order; the fifth never computes. Two containers grow past their soft memory limit, one of them close to the hard
//! one, and give the memory back. Inside each container a process asks every 100 ms how many CPUs and how much memory there
//! are, in the way a runtime does; the host's cgroup counters say what was used. Programs that size themselves (`--program`) run in the
//! first container and are asked, too.

use crate::backend::Variant;
use crate::cgroup::Limits;
use crate::container::Container;
use crate::job::{Folder, Job, Lab, now_ns, table};
use crate::plot::{self, Axis, Layer, Panel, Pen};
use crate::stats::Spread;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

const CONTAINERS: usize = 5;
/// Share of the run's length during which a container keeps as many threads busy as the machine has CPUs.
const BUSY: [Option<(f64, f64)>; CONTAINERS] =
    [Some((0.04, 0.96)), Some((0.18, 0.82)), Some((0.30, 0.70)), Some((0.42, 0.58)), None];
/// (begin, end of growth, end of holding) as shares of the run's length, and the size as a share of the hard limit.
const GROW: [Option<(f64, f64, f64, f64)>; CONTAINERS] = [
    Some((0.05, 0.45, 0.75, 0.92)),
    Some((0.10, 0.30, 0.80, 0.20)),
    None,
    Some((0.20, 0.60, 0.85, 0.60)),
    None,
];
/// The soft limit as a share of the hard one.
const SOFT: f64 = 0.3;
/// Usage is a rate over this many samples.
const USAGE_WINDOW: usize = 5;

/// Arguments of `views`.
#[derive(clap::Args, Debug)]
pub(crate) struct Views {
    /// Length of the run, in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Time between two samples, in milliseconds.
    #[arg(long, default_value_t = 100)]
    interval_ms: u64,
    /// Each container's hard memory limit, in MiB; the soft limit is 30 % of it.
    #[arg(long, default_value_t = 400)]
    memory_mib: u64,
    /// Whose files the containers read.
    #[arg(long, value_enum, default_value = "elbowroom")]
    variant: Variant,
    /// A program in the first container that answers every line of its input with a line: how many CPUs it sees, and how many bytes of
    /// memory if it looks at that; repeatable. COMMAND is for the shell.
    #[arg(long = "program", value_name = "NAME=COMMAND", value_parser = named)]
    programs: Vec<(String, String)>,
    /// A directory of the host that programs need, and where containers of an engine have it; repeatable.
    #[arg(long, value_name = "DIR:INSIDE", value_parser = shown)]
    see: Vec<(PathBuf, PathBuf)>,
}

fn shown(word: &str) -> Result<(PathBuf, PathBuf), String> {
    let (dir, inside) = word.split_once(':').ok_or("what containers see is DIR:INSIDE")?;
    Ok((PathBuf::from(dir).canonicalize().map_err(|error| format!("{dir}: {error}"))?, inside.into()))
}

/// The container that programs are in, and what it grows less by for them.
const ASKED: usize = 0;
const PROGRAMS_MIB: f64 = 180.0;
/// How often they are asked.
const ASKED_EVERY: Duration = Duration::from_millis(250);

fn named(word: &str) -> Result<(String, String), String> {
    let (name, command) = word.split_once('=').ok_or("a program is NAME=COMMAND")?;
    Ok((name.to_owned(), command.to_owned()))
}

/// A run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    seconds: u64,
    interval_ms: u64,
    cpus: u32,
    memory_mib: u64,
    variant: Variant,
    containers: Vec<Samples>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    programs: Vec<Told>,
}

/// What a program in the first container said.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    name: String,
    told: Vec<Answer>,
}

/// One answer, and between which moments the program looked, in ms after the start: where many threads want few CPUs, that takes seconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Answer {
    asked: u64,
    answered: u64,
    cpus: u64,
    /// Memory; 0 of who does not look at that.
    kib: u64,
}

/// One container's series; times in milliseconds after the start.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Samples {
    name: String,
    /// (time, CPUs online, MemTotal in KiB) as read inside; -1 for what could not be read.
    seen: Vec<(u64, i64, i64)>,
    /// (time, CPU time used in µs, memory charged in bytes) as the host counts.
    used: Vec<(u64, u64, u64)>,
}

impl Job for Views {
    const NAME: &'static str = "views";
    type Raw = Raw;

    fn record(&self, lab: &Lab) -> Result<Raw> {
        let cpus = crate::sysinfo::online_cpus();
        lab.maker.see(self.see.clone());
        let backend = lab.start(self.variant)?;
        let containers = lab.containers(&backend, "c", CONTAINERS, |_| Limits {
            memory_mib: Some(self.memory_mib),
            soft_mib: Some((self.memory_mib as f64 * SOFT) as u64),
            ..Limits::default()
        })?;
        let samples = self.seconds * 1000 / self.interval_ms;
        let ready =
            self.programs.iter().map(|(name, command)| Asked::start(&containers[ASKED], name, command));
        let ready = ready.collect::<Result<Vec<_>>>()?;
        let start = now_ns() + 2_000_000_000;
        let programs: Vec<_> = ready.into_iter().map(|asked| asked.ask(start, self.seconds)).collect();
        let mut watchers = Vec::new();
        for (i, container) in containers.iter().enumerate() {
            let watch = [start, self.interval_ms, samples].map(|n| n.to_string());
            watchers.push(container.reader("watch", &watch).spawn().context("while starting a watcher")?);
            let plan = self.plan(i, start, cpus);
            if plan.len() > 1 {
                // Its output says nothing; a load that fails shows in the figure, and the container's end is its end.
                let mut load = container.reader("load", &plan);
                load.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::inherit());
                watchers.push(load.spawn().context("while starting a load")?);
            }
        }
        let used = self.sample(lab, &containers, start, samples)?;
        let seen = collect(watchers)?;
        let series = containers.iter().zip(seen).zip(used).map(|((container, seen), used)| Samples {
            name: container.name.clone(),
            seen: seen
                .into_iter()
                .map(|(ns, cpus, kib)| (ns.saturating_sub(start) / 1_000_000, cpus, kib))
                .collect(),
            used,
        });
        let containers_series = series.collect();
        let join =
            |thread: JoinHandle<Result<Told>>| thread.join().expect("who asks a program does not panic");
        let programs = programs.into_iter().map(join).collect::<Result<_>>()?;
        Ok(Raw {
            seconds: self.seconds,
            interval_ms: self.interval_ms,
            cpus,
            memory_mib: self.memory_mib,
            variant: self.variant,
            containers: containers_series,
            programs,
        })
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        out.say(format!(
            "{CONTAINERS} containers with equal shares and no quota on {} CPUs, hard memory limit {} MiB, soft limit {:.0} \
             MiB, reading {} files for {} s. What a container sees is read inside it every {} ms from \
             /sys/devices/system/cpu/online and /proc/meminfo; what it uses is counted by the host.",
            raw.cpus,
            raw.memory_mib,
            raw.memory_mib as f64 * SOFT,
            raw.variant,
            raw.seconds,
            raw.interval_ms
        ));
        out.say(study(raw));
        let title = format!("Effective CPU over time, {} ({} CPUs)", raw.variant, raw.cpus);
        out.figure("cpu.svg", &title, &cpu_figure(raw, &title)?)?;
        let title = format!("Effective memory over time, {}", raw.variant);
        out.figure("memory.svg", &title, &memory_figure(raw, &title)?)?;
        if !raw.programs.is_empty() {
            out.say(format!(
                "Programs in {}, asked {} ms after each answer meanwhile. *As the files say*: answers that are what the files said while \
                 the program looked, or not more than {SLACK_MS} ms before or after.",
                raw.containers[ASKED].name,
                ASKED_EVERY.as_millis(),
            ));
            out.say(programs_table(raw));
            let title = format!("What programs see in {} ({} CPUs)", raw.containers[ASKED].name, raw.cpus);
            out.figure("programs.svg", &title, &programs_figure(raw, &title)?)?;
        }
        out.file("samples.csv", &csv(raw))
    }
}

impl Views {
    /// Arguments of `reader load` for container `i`.
    fn plan(&self, i: usize, start: u64, cpus: u32) -> Vec<String> {
        let ms = |share: f64| ((self.seconds * 1000) as f64 * share).round().to_string();
        let mut args = vec![start.to_string()];
        if let Some((from, to)) = BUSY[i] {
            args.extend(["busy".to_owned(), ms(from), ms(to), cpus.to_string()]);
        }
        if let Some((from, to, until, size)) = GROW[i] {
            let programs = if i == ASKED && !self.programs.is_empty() { PROGRAMS_MIB } else { 0.0 };
            let mib = (self.memory_mib as f64 * size - programs).max(1.0).round().to_string();
            args.extend(["grow".to_owned(), ms(from), ms(to), mib, ms(until)]);
        }
        args
    }

    fn sample(
        &self,
        lab: &Lab,
        containers: &[Container],
        start: u64,
        samples: u64,
    ) -> Result<Vec<Vec<(u64, u64, u64)>>> {
        let mut series = vec![Vec::new(); containers.len()];
        for i in 0..samples {
            let due = start + i * self.interval_ms * 1_000_000;
            if now_ns() > due + self.interval_ms * 1_000_000 {
                continue; // this machine had no time for us; a late sample would make a false rate
            }
            lab.scope.sleep(Duration::from_nanos(due.saturating_sub(now_ns())))?;
            for (container, series) in containers.iter().zip(&mut series) {
                let at = now_ns().saturating_sub(start) / 1_000_000;
                series.push((at, container.cgroups.cpu_us()?, container.cgroups.memory_bytes()?));
            }
            if i % (10_000 / self.interval_ms).max(1) == 0 {
                eprintln!("{} of {} s", i * self.interval_ms / 1000, self.seconds);
            }
        }
        Ok(series)
    }
}

/// What the watchers printed, in the order they were started; loads print nothing and are only waited for.
fn collect(children: Vec<Child>) -> Result<Vec<Vec<(u64, i64, i64)>>> {
    let mut seen = Vec::new();
    for child in children {
        let is_watcher = child.stdout.is_some();
        let out = child.wait_with_output().context("while waiting for a reader")?;
        if !is_watcher {
            continue;
        }
        anyhow::ensure!(
            out.status.success(),
            "a watcher failed: {}",
            String::from_utf8_lossy(&out.stderr).trim()
        );
        let text = String::from_utf8_lossy(&out.stdout);
        let line = |line: &str| {
            let mut numbers = line.split(' ').map(str::parse::<i64>);
            let mut next = || numbers.next()?.ok();
            Some((u64::try_from(next()?).ok()?, next()?, next()?))
        };
        let samples = text.lines().map(|l| line(l).with_context(|| format!("a watcher printed \"{l}\"")));
        seen.push(samples.collect::<Result<Vec<_>>>()?);
    }
    Ok(seen)
}

/// A program in a container, which has answered once.
struct Asked {
    name: String,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Asked {
    fn start(container: &Container, name: &str, command: &str) -> Result<Self> {
        let mut shell = container.command("/bin/sh".as_ref());
        shell.args(["-c", command]).stdin(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = shell.spawn().with_context(|| format!("while starting {name}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut asked = Self {
            name: name.to_owned(),
            child,
            input: input.context("a pipe")?,
            output: BufReader::new(output.context("a pipe")?),
        };
        asked.answer()?;
        Ok(asked)
    }

    /// CPUs, and KiB of memory or 0.
    fn answer(&mut self) -> Result<(u64, u64)> {
        let mut line = String::new();
        self.input.write_all(b"\n").with_context(|| format!("while asking {}", self.name))?;
        self.output.read_line(&mut line).with_context(|| format!("while {} answers", self.name))?;
        let mut words = line.split_whitespace().map(str::parse::<u64>);
        match (words.next(), words.next()) {
            (Some(Ok(cpus)), bytes) => Ok((cpus, bytes.and_then(Result::ok).unwrap_or(0) / 1024)),
            _ => anyhow::bail!("{} answers {line:?}, which is no number of CPUs", self.name),
        }
    }

    /// Asks until the run is over.
    fn ask(mut self, start: u64, seconds: u64) -> JoinHandle<Result<Told>> {
        std::thread::spawn(move || {
            let (mut told, end) = (Vec::new(), start + seconds * 1_000_000_000);
            let since_start = || now_ns().checked_sub(start).map(|ns| ns / 1_000_000);
            while now_ns() < end {
                let asked = since_start();
                let (cpus, kib) = self.answer()?;
                if let (Some(asked), Some(answered)) = (asked, since_start()) {
                    told.push(Answer { asked, answered, cpus, kib });
                }
                std::thread::sleep(ASKED_EVERY);
            }
            drop(self.input);
            self.child.wait().with_context(|| format!("while waiting for {}", self.name))?;
            Ok(Told { name: self.name, told })
        })
    }
}

/// (time in s, CPUs used) over a sliding window.
fn cpus_used(samples: &Samples) -> Vec<(f64, f64)> {
    let rate = |pair: &[(u64, u64, u64)]| {
        let (first, last) = (pair[0], pair[USAGE_WINDOW]);
        let ms = last.0.saturating_sub(first.0).max(1);
        (last.0 as f64 / 1e3, last.1.saturating_sub(first.1) as f64 / 1e3 / ms as f64)
    };
    samples.used.windows(USAGE_WINDOW + 1).map(rate).collect()
}

fn study(raw: &Raw) -> String {
    let rows: Vec<Vec<String>> = raw
        .containers
        .iter()
        .enumerate()
        .map(|(i, c)| {
            let range = |values: Vec<f64>| {
                Spread::of(values).map_or("-".to_owned(), |s| format!("{:.0} to {:.0}", s.min, s.max))
            };
            let cpus: Vec<i64> = c.seen.iter().map(|s| s.1).collect();
            let unread = c.seen.iter().filter(|s| s.1 < 1 || s.2 < 1).count();
            let peak = cpus_used(c).iter().map(|(_, cpus)| *cpus).fold(0.0, f64::max);
            vec![
                c.name.clone(),
                BUSY[i].map_or("never".into(), |(from, to)| {
                    let at = |share: f64| share * raw.seconds as f64;
                    format!("{:.0} to {:.0} s", at(from), at(to))
                }),
                range(cpus.iter().map(|n| *n as f64).collect()),
                cpus.windows(2).filter(|pair| pair[0] != pair[1]).count().to_string(),
                format!("{peak:.2}"),
                range(c.seen.iter().map(|s| s.2 as f64 / 1024.0).collect()),
                format!("{:.0}", c.used.iter().map(|s| s.2).max().unwrap_or(0) as f64 / f64::from(1 << 20)),
                unread.to_string(),
            ]
        })
        .collect();
    let head = [
        "container",
        "busy",
        "CPUs seen",
        "changes",
        "CPUs used, peak",
        "MiB seen",
        "MiB used, peak",
        "failed reads",
    ];
    table(&head, &rows)
}

fn panel_title(i: usize, name: &str) -> String {
    match BUSY[i] {
        Some(_) => name.to_owned(),
        None => format!("{name} (never computes)"),
    }
}

fn time_axis(raw: &Raw) -> Axis<'static> {
    Axis { label: "time (s)", log: false, from: 0.0, to: raw.seconds as f64, tick: plot::plain }
}

fn cpu_figure(raw: &Raw, title: &str) -> Result<String> {
    let panels: Vec<Panel> = raw
        .containers
        .iter()
        .enumerate()
        .map(|(i, c)| Panel {
            title: panel_title(i, &c.name),
            top: f64::from(raw.cpus) * 1.1,
            layers: seen_over_used(
                c.seen.iter().map(|(ms, cpus, _)| (*ms as f64 / 1e3, *cpus as f64)).collect(),
                cpus_used(c),
            ),
        })
        .collect();
    let caption = "Dark line: CPUs online as read inside the container. Area: CPUs it used.";
    plot::panels(title, caption, &[], (&time_axis(raw), "CPUs"), &panels)
}

fn memory_figure(raw: &Raw, title: &str) -> Result<String> {
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let highest =
        raw.containers.iter().flat_map(|c| c.seen.iter().map(|s| s.2)).max().unwrap_or(0) as f64 / 1024.0;
    let panels: Vec<Panel> = raw
        .containers
        .iter()
        .enumerate()
        .map(|(i, c)| Panel {
            title: panel_title(i, &c.name),
            top: highest.max(raw.memory_mib as f64) * 1.1,
            layers: seen_over_used(
                c.seen.iter().map(|(ms, _, kib)| (*ms as f64 / 1e3, *kib as f64 / 1024.0)).collect(),
                c.used.iter().map(|(ms, _, bytes)| (*ms as f64 / 1e3, mib(*bytes as f64))).collect(),
            ),
        })
        .collect();
    let caption = "Dark line: MemTotal as read inside the container. Area: memory charged to it.";
    plot::panels(title, caption, &[], (&time_axis(raw), "MiB"), &panels)
}

/// How long before it looks, or after, files may have said what a program says.
const SLACK_MS: u64 = 1_000;

fn programs_table(raw: &Raw) -> String {
    let seen = &raw.containers[ASKED].seen;
    let rows = raw.programs.iter().map(|program| {
        let range = |values: Vec<f64>| {
            Spread::of(values).map_or("-".to_owned(), |s| format!("{:.0} to {:.0}", s.min, s.max))
        };
        let while_it_looked = |answer: &Answer| {
            let (from, to) = (answer.asked.saturating_sub(SLACK_MS), answer.answered + SLACK_MS);
            seen.iter().filter(move |sample| (from..=to).contains(&sample.0))
        };
        let share = |of: Vec<bool>| match of.len() {
            0 => "-".to_owned(),
            n => format!("{:.1} %", 100.0 * of.iter().filter(|same| **same).count() as f64 / n as f64),
        };
        let cpus = program.told.iter().map(|a| while_it_looked(a).any(|s| s.1 == a.cpus as i64));
        // Memory is computed anew with every tick, and a file and a program are not read at the same time.
        let memory = program.told.iter().filter(|a| a.kib > 0).map(|a| {
            let (least, most) =
                while_it_looked(a).fold((i64::MAX, 0), |(least, most), s| (least.min(s.2), most.max(s.2)));
            (least..=most).contains(&(a.kib as i64))
        });
        let mut took: Vec<u64> = program.told.iter().map(|a| a.answered - a.asked).collect();
        took.sort_unstable();
        vec![
            program.name.clone(),
            program.told.len().to_string(),
            took.get(took.len() / 2).map_or("-".to_owned(), u64::to_string),
            range(program.told.iter().map(|a| a.cpus as f64).collect()),
            program.told.windows(2).filter(|pair| pair[0].cpus != pair[1].cpus).count().to_string(),
            share(cpus.collect()),
            range(program.told.iter().filter(|a| a.kib > 0).map(|a| a.kib as f64 / 1024.0).collect()),
            share(memory.collect()),
        ]
    });
    let head = [
        "program",
        "answers",
        "ms to answer, median",
        "CPUs",
        "changes",
        "as the files say",
        "memory, MiB",
        "as the files say",
    ];
    table(&head, &rows.collect::<Vec<_>>())
}

fn programs_figure(raw: &Raw, title: &str) -> Result<String> {
    let files: Vec<(f64, f64)> =
        raw.containers[ASKED].seen.iter().map(|(ms, cpus, _)| (*ms as f64 / 1e3, *cpus as f64)).collect();
    let panels: Vec<Panel> = raw
        .programs
        .iter()
        .map(|program| Panel {
            title: program.name.clone(),
            top: f64::from(raw.cpus) * 1.1,
            layers: seen_over_used(
                program.told.iter().map(|a| (a.answered as f64 / 1e3, a.cpus as f64)).collect(),
                files.clone(),
            ),
        })
        .collect();
    let caption = "Dark line: CPUs that the program says. Area: CPUs online as a reader of files sees them.";
    plot::panels(title, caption, &[], (&time_axis(raw), "CPUs"), &panels)
}

fn seen_over_used(seen: Vec<(f64, f64)>, used: Vec<(f64, f64)>) -> Vec<Layer> {
    vec![
        Layer { pen: Pen::Area, color: plot::PALETTE[5], points: used },
        Layer { pen: Pen::Steps, color: plot::PALETTE[0], points: seen },
    ]
}

/// Both series of every container; a sample from inside goes with the host's last count up to half an interval after it.
fn csv(raw: &Raw) -> String {
    let mut text =
        String::from("container,time_ms,effective_cpus,effective_memory_kib,cpu_used_us,memory_used_bytes\n");
    for c in &raw.containers {
        for (ms, cpus, kib) in &c.seen {
            let next = c.used.partition_point(|(at, _, _)| *at <= ms + raw.interval_ms / 2);
            let Some((_, us, bytes)) = next.checked_sub(1).and_then(|i| c.used.get(i)) else { continue };
            writeln!(text, "{},{ms},{cpus},{kib},{us},{bytes}", c.name)
                .expect("writing to a string cannot fail");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_a_rate_in_cpus() {
        let used = (0..10).map(|i| (i * 100, i * 150_000, 0)).collect();
        let samples = Samples { used, ..Samples::default() };
        assert!(cpus_used(&samples).iter().all(|(_, cpus)| (*cpus - 1.5).abs() < 1e-9));
    }

    #[test]
    fn neighbours_leave_in_the_opposite_order_they_came_in() {
        let busy: Vec<(f64, f64)> = BUSY.iter().flatten().copied().collect();
        assert!(busy.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 > pair[1].1));
    }
}
