//! `record` and `replay`: a stream of samples, and the decisions it must lead to again.
//!
//! A recording is JSON, one object a line: a header with the policy, then `{"event": ...}` as sensed and `{"change": ...}`
//! as decided, in order. Replaying feeds the events to a fresh [`Views`] and compares every change; it needs neither root
//! nor the machine that was recorded.

use crate::cli::{Format, RecordArgs, ReplayArgs};
use crate::config::Config;
use anyhow::{Context, Result, bail};
use elbowroom_core::sample::Event;
use elbowroom_core::unit::Micros;
use elbowroom_core::view::{Change, Policy, Views};
use elbowroom_host::signal::Signals;
use elbowroom_host::timer::{self, Ticker};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, BufWriter, IsTerminal, Write};

/// Version of the recording's form.
const VERSION: u32 = 1;
/// Differences shown before the rest is only counted.
const SHOWN: usize = 10;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Elbowroom { version: u32, policy: Policy },
    Event(Box<Event>),
    Change(Change),
}

/// What a replay found.
#[derive(Default, Serialize)]
struct Verdict {
    events: u64,
    ticks: u64,
    changes: u64,
    /// Decisions that differ from the recording.
    different: u64,
    /// The first of them, in words.
    differences: Vec<String>,
    /// The recording ends in the middle of a line: its writer was stopped.
    truncated: bool,
}

/// `elbowroom record`.
pub(crate) fn record(args: &RecordArgs) -> Result<()> {
    let config = Config::load(args.config.as_deref())?;
    let mut sensor = crate::policy::open_sensor(&config)?;
    let signals = Signals::block(&[Signal::INT, Signal::TERM]).context("blocking signals")?;

    let path = args.file.display();
    let mut out: Box<dyn Write> = if args.file.as_os_str() == "-" {
        Box::new(BufWriter::new(std::io::stdout().lock()))
    } else {
        let file = std::fs::File::create(&args.file).with_context(|| format!("creating {path}"))?;
        Box::new(BufWriter::new(file))
    };
    let mut write = |line: &Line| -> Result<()> {
        serde_json::to_writer(&mut out, line).with_context(|| format!("writing {path}"))?;
        out.write_all(b"\n").with_context(|| format!("writing {path}"))
    };
    write(&Line::Elbowroom { version: VERSION, policy: config.policy })?;
    let mut views = Views::new(config.policy);
    let mut take = |event: Event| -> Result<()> {
        let changes = views.apply(&event);
        write(&Line::Event(Box::new(event)))?;
        changes.into_iter().try_for_each(|change| write(&Line::Change(change)))
    };
    for event in sensor.start() {
        take(event)?;
    }
    let begin = timer::now();
    let ticker = Ticker::new(config.sense.period)?;
    let progress = std::io::stderr().is_terminal();
    let mut shown = Micros::ZERO;
    loop {
        ticker.wait()?;
        for event in sensor.changes() {
            take(event)?;
        }
        let now = timer::now();
        take(Event::Tick(sensor.tick(now)))?;
        let elapsed = now.saturating_sub(begin);
        if progress && elapsed.saturating_sub(shown) >= Micros::secs(1) {
            shown = elapsed;
            eprint!("\rrecording: {} of {} s ", elapsed.get() / 1_000_000, args.duration.get() / 1_000_000);
        }
        if elapsed >= args.duration || signals.next()?.is_some() {
            break;
        }
    }
    if progress {
        eprintln!();
    }
    out.flush().with_context(|| format!("writing {path}"))
}

/// `elbowroom replay`: the report, and whether every decision was the recorded one.
pub(crate) fn replay(args: &ReplayArgs) -> Result<(String, bool)> {
    let path = args.file.display().to_string();
    let verdict = if args.file.as_os_str() == "-" {
        compare(std::io::stdin().lock(), "standard input")?
    } else {
        let file = std::fs::File::open(&args.file).with_context(|| format!("opening {path}"))?;
        compare(BufReader::new(file), &path)?
    };
    let text = match args.output.format {
        Format::Json => super::containers::json(&verdict)?,
        Format::Text => {
            let mut text = format!(
                "{} events, {} of them ticks; {} decisions, {} different\n",
                verdict.events, verdict.ticks, verdict.changes, verdict.different
            );
            verdict.differences.iter().for_each(|d| text.push_str(&format!("{d}\n")));
            if verdict.truncated {
                text.push_str("the recording ends in the middle of a line: its last event was left out\n");
            }
            text
        }
    };
    Ok((text, verdict.different == 0))
}

fn compare(mut input: impl BufRead, path: &str) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    let mut views: Option<Views> = None;
    let mut expected: VecDeque<Change> = VecDeque::new();
    let mut line = Vec::new();
    for number in 1u64.. {
        line.clear();
        if input.read_until(b'\n', &mut line).with_context(|| format!("reading {path}"))? == 0 {
            break;
        }
        let parsed = match serde_json::from_slice::<Line>(&line) {
            Ok(parsed) => parsed,
            Err(_) if line.last() != Some(&b'\n') => {
                verdict.truncated = true;
                break;
            }
            Err(e) => bail!("{path}:{number}: {e}"),
        };
        match (parsed, &mut views) {
            (Line::Elbowroom { version: VERSION, policy }, None) => views = Some(Views::new(policy)),
            (Line::Elbowroom { version, .. }, None) => {
                bail!("{path}: recorded in form {version}, this program reads form {VERSION}")
            }
            (_, None) => bail!("{path}:1: not a recording: make one with `elbowroom record`"),
            (Line::Elbowroom { .. }, Some(_)) => bail!("{path}:{number}: a second header"),
            (Line::Event(event), Some(views)) => {
                missing(&mut verdict, &mut expected);
                verdict.events += 1;
                verdict.ticks += u64::from(matches!(*event, Event::Tick(_)));
                expected.extend(views.apply(&event));
            }
            (Line::Change(recorded), Some(_)) => {
                verdict.changes += 1;
                match expected.pop_front() {
                    Some(replayed) if replayed == recorded => {}
                    Some(replayed) => differ(
                        &mut verdict,
                        format!("{path}:{number}: recorded {}, now {}", shown(&recorded), shown(&replayed)),
                    ),
                    None => differ(
                        &mut verdict,
                        format!("{path}:{number}: recorded {}, now nothing", shown(&recorded)),
                    ),
                }
            }
        }
    }
    if views.is_none() {
        bail!("{path}: empty: make a recording with `elbowroom record`");
    }
    if !verdict.truncated {
        missing(&mut verdict, &mut expected);
    }
    Ok(verdict)
}

fn shown(change: &Change) -> String {
    format!("\"{change}\" of group {} at {}", change.id.0, change.at)
}

fn missing(verdict: &mut Verdict, expected: &mut VecDeque<Change>) {
    for replayed in expected.drain(..) {
        differ(verdict, format!("recorded nothing, now {}", shown(&replayed)));
    }
}

fn differ(verdict: &mut Verdict, what: String) {
    verdict.different += 1;
    if verdict.differences.len() < SHOWN {
        verdict.differences.push(what);
    }
}
