//! `record` and `replay`: a stream of samples, and the decisions it must lead to again.
//!
//! A recording is JSON, one object a line. First a header with the policies and what was known of disks. Then, in order, `{"event": ...}`
//! as sensed, `{"change": ...}` as decided about a view and `{"order": ...}` as decided about a disk. Replaying feeds
//! the events to fresh [`ViewTable`] and [`DiskGovernor`] and compares every decision; it needs neither root nor the machine that was
//! recorded.

use super::parse_interval;
use anyhow::{Context, Result, bail};
use clap::Args;
use elbowroom_agent::config::{AgentConfig, ContainerSettings};
use elbowroom_client::number_format;
use elbowroom_client::output::{Format, OutputArgs};
use elbowroom_govern::disk::{Cap, DiskGovernor, DiskOrder};
use elbowroom_govern::{GovernorMode, disk};
use elbowroom_linux::bounded::LineReader;
use elbowroom_linux::signal::SignalFd;
use elbowroom_linux::timer;
use elbowroom_linux::timer::Ticker;
use elbowroom_types::alert::Alert;
use elbowroom_types::claim::Claim;
use elbowroom_types::io::IoMax;
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::{Bytes, Micros, parse_bytes, parse_duration};
use elbowroom_types::visible::{Visible, visible_json};
use elbowroom_view::rules::{ViewChange, ViewRules, ViewTable};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;
use std::io::{BufWriter, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

/// Version of the recording's form.
const VERSION: u32 = 2;
/// How long a recording is where no length is given.
const DEFAULT_DURATION: Micros = Micros::secs(60);
/// Differences shown before the rest is only counted.
const MAX_DIFFERENCES: usize = 10;
/// The most bytes of an event: of ten thousand containers a tick has some two millions.
const MAX_EVENT_BYTES: u64 = 64 << 20;

/// Arguments of `record`.
#[derive(Args)]
pub(crate) struct RecordArgs {
    /// File to write; `-` for standard output.
    #[arg(required_unless_present = "ring")]
    pub(crate) file: Option<PathBuf>,
    /// How long; a file is 60 s long and a ring has no end unless this says otherwise.
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) duration: Option<Micros>,
    /// Keep a ring of what a running agent knows in this directory instead, second by second.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["file", "config"])]
    pub(crate) ring: Option<PathBuf>,
    /// Most that the ring takes; the oldest goes first.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_bytes, requires = "ring")]
    pub(crate) max_size: Bytes,
    /// Time between two snapshots of the ring.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_interval, requires = "ring")]
    pub(crate) every: Micros,
    /// Configuration file, for the rules to record with.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// Arguments of `replay`.
#[derive(Args)]
pub(crate) struct ReplayArgs {
    /// Recording to read, a file or the directory of a ring; `-` for standard input.
    pub(crate) file: PathBuf,
    /// Of a ring: which moment to show, for example "2026-11-21T02:47" (local time), "02:47" or "-5m"; the last one without it. On a
    /// terminal, arrows step through time.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) at: Option<String>,
    /// Of a ring: serve the API and the dashboard over it on this address instead, as they were at --at.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "format")]
    pub(crate) serve: Option<std::net::SocketAddr>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum RecordingLine {
    Elbowroom(Box<RecordingHeader>),
    Event(Box<HostEvent>),
    Change(ViewChange),
    Order(DiskOrder),
}

/// What a recording begins with: all that decisions depend on besides the events.
#[derive(Serialize, Deserialize)]
struct RecordingHeader {
    version: u32,
    /// The other fields are those of this version.
    #[serde(flatten)]
    rest: serde_json::Value,
}

/// The rest of the header.
#[derive(Clone, Serialize, Deserialize)]
struct RecordingRules {
    view_rules: ViewRules,
    disk: disk::DiskSettings,
    claims: Vec<Claim>,
    /// Names or ids of containers that are left alone.
    exclude: Vec<String>,
    /// What disks can do, by identity, as far as it was known before.
    capacities: Vec<(String, IoMax)>,
}

/// What decides: views, and disks unless they are switched off.
struct ReplayEngines {
    views: ViewTable,
    containers: ContainerSettings,
    disks: Option<DiskGovernor>,
}

/// One decision.
#[derive(Clone, Debug, PartialEq)]
enum RecordedDecision {
    Change(ViewChange),
    Order(DiskOrder),
}

impl ReplayEngines {
    fn new(rules: RecordingRules) -> Self {
        let disks = (rules.disk.mode != GovernorMode::Off).then(|| {
            let mut disks = DiskGovernor::new(rules.disk, rules.claims);
            rules.capacities.iter().for_each(|(identity, capacity)| disks.seed_capacity(identity, *capacity));
            disks
        });
        let containers = ContainerSettings { exclude: rules.exclude, ..ContainerSettings::default() };
        Self { views: ViewTable::new(rules.view_rules), containers, disks }
    }

    fn apply(&mut self, event: &HostEvent) -> Vec<RecordedDecision> {
        let changes = self.views.apply(event).into_iter().map(RecordedDecision::Change);
        let event = self.containers.mask_ungoverned(event);
        let orders = self.disks.iter_mut().flat_map(|disks| disks.apply(&event)).map(RecordedDecision::Order);
        changes.chain(orders).collect()
    }
}

impl RecordedDecision {
    fn into_line(self) -> RecordingLine {
        match self {
            Self::Change(change) => RecordingLine::Change(change),
            Self::Order(order) => RecordingLine::Order(order),
        }
    }

    /// Whether it is the same decision. How it is worded is not part of what was decided about a disk.
    fn matches(&self, other: &Self) -> bool {
        let bare = |decision: &Self| match decision {
            Self::Order(DiskOrder::Cap(cap)) => {
                Self::Order(DiskOrder::Cap(Cap { because: String::new(), ..cap.clone() }))
            }
            Self::Order(DiskOrder::Alert(alert)) => {
                Self::Order(DiskOrder::Alert(Alert { text: String::new(), ..alert.clone() }))
            }
            Self::Change(_) => decision.clone(),
        };
        bare(self) == bare(other)
    }
}

impl fmt::Display for RecordedDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Change(change) => write!(f, "\"{change}\" of group {} at {}", change.id.0, change.at),
            Self::Order(DiskOrder::Cap(cap)) => {
                let limits = number_format::io_limits(cap.max);
                write!(
                    f,
                    "\"{limits}: {}\" of group {} on {} at {}",
                    cap.because, cap.group.0, cap.disk, cap.at
                )
            }
            Self::Order(DiskOrder::Alert(alert)) => {
                let (verb, at) = alert.until.map_or(("begins", alert.since), |until| ("ends", until));
                write!(f, "alert {} {verb} at {at}", alert.kind)
            }
        }
    }
}

/// What a replay found.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplayResult {
    /// Everything sensed.
    pub events: u64,
    /// Those that are ticks.
    pub ticks: u64,
    /// Those that are ticks of disks.
    pub disk_ticks: u64,
    /// Decisions about views in the recording.
    pub changes: u64,
    /// Decisions about disks in the recording.
    pub orders: u64,
    /// Decisions that differ from the recording.
    pub different: u64,
    /// The first of them, in words.
    pub differences: Vec<String>,
    /// The recording ends in the middle of a line: its writer was stopped.
    pub truncated: bool,
}

/// `elbowroom record`.
pub(crate) fn record(run_dir: &Path, args: &RecordArgs) -> Result<()> {
    if let Some(dir) = &args.ring {
        return super::ring_recording::record(run_dir, dir, args);
    }
    let file = args.file.as_ref().expect("the command line asks for it where there is no ring");
    let duration = args.duration.unwrap_or(DEFAULT_DURATION);
    let config = AgentConfig::load(args.config.as_deref())?;
    let mut sensor = elbowroom_agent::policy::open_sensor(&config, run_dir)?;
    let signals = SignalFd::block(&[Signal::INT, Signal::TERM]).context("blocking signals")?;

    let path = file.display();
    let mut out = create(file)?;
    let mut write = |line: &RecordingLine| -> Result<()> {
        let line = visible_json(serde_json::to_string(line)?);
        out.write_all(line.as_bytes()).with_context(|| format!("writing {path}"))?;
        out.write_all(b"\n").with_context(|| format!("writing {path}"))
    };
    let disk_period = (config.disk.mode != GovernorMode::Off).then_some(config.disk.period);
    // A recording carries nothing out, so it starts from nothing learned, as an agent does on a machine it does not know.
    let rules = RecordingRules {
        view_rules: config.view_rules,
        disk: config.disk,
        claims: config.claims,
        exclude: config.containers.exclude,
        capacities: Vec::new(),
    };
    write(&RecordingLine::Elbowroom(Box::new(RecordingHeader {
        version: VERSION,
        rest: serde_json::to_value(&rules)?,
    })))?;
    let mut deciders = ReplayEngines::new(rules);
    let mut take = |event: HostEvent| -> Result<()> {
        let decisions = deciders.apply(&event);
        write(&RecordingLine::Event(Box::new(event)))?;
        decisions.into_iter().try_for_each(|decision| write(&decision.into_line()))
    };
    for event in sensor.start() {
        take(event)?;
    }
    let begin = timer::now();
    let ticker = Ticker::new(config.sense.period)?;
    let progress = std::io::stderr().is_terminal();
    let mut shown = Micros::ZERO;
    let mut disks_at = begin;
    loop {
        ticker.wait()?;
        for event in sensor.changes() {
            take(event)?;
        }
        let now = timer::now();
        take(HostEvent::Tick(sensor.tick(now)))?;
        if let Some(period) = disk_period
            && now >= disks_at
        {
            disks_at = now.saturating_add(period);
            sensor.disks(now).into_iter().try_for_each(&mut take)?;
        }
        let elapsed = now.saturating_sub(begin);
        if progress && elapsed.saturating_sub(shown) >= Micros::secs(1) {
            shown = elapsed;
            let seconds = |time: Micros| time.get() / 1_000_000;
            let text = format!("recording: {} of {} s", seconds(elapsed), seconds(duration));
            elbowroom_client::output::say_progress(&text, false);
        }
        if elapsed >= duration || signals.next()?.is_some() {
            break;
        }
    }
    if progress {
        elbowroom_client::output::say("");
    }
    out.flush().with_context(|| format!("writing {path}"))?;
    if file.as_os_str() != "-" {
        let recorded = timer::now().saturating_sub(begin);
        elbowroom_client::output::say(&format!(
            "{path}: {recorded} recorded: `elbowroom replay {path}` decides it again"
        ));
    }
    Ok(())
}

/// The file to write; `-` is standard output.
fn create(file: &Path) -> Result<Box<dyn Write>> {
    if file.as_os_str() == "-" {
        return Ok(Box::new(BufWriter::new(std::io::stdout().lock())));
    }
    let created = std::fs::File::create(file).with_context(|| format!("creating {}", file.display()))?;
    Ok(Box::new(BufWriter::new(created)))
}

/// `elbowroom replay`: the report, and whether every decision was the recorded one.
pub(crate) fn replay(args: &ReplayArgs) -> Result<(String, bool)> {
    let path = args.file.display().to_string();
    if args.file.is_dir() {
        return super::ring_recording::replay(args).map(|text| (text, true));
    }
    if args.at.is_some() || args.serve.is_some() {
        bail!(
            "{path}: --at and --serve are for the directory of a ring: make one with `elbowroom record --ring`"
        );
    }
    let verdict = if args.file.as_os_str() == "-" {
        replay_recording(std::io::stdin().lock(), "standard input")?
    } else {
        let file = std::fs::File::open(&args.file).with_context(|| format!("opening {path}"))?;
        replay_recording(file, &path)?
    };
    let text = match args.output.format {
        Format::Data(data) => data.document(&verdict)?,
        Format::Text => {
            let mut text = format!(
                "{} events, {} of them ticks, {} of disks; {} decisions, {} of them about disks, {} different\n",
                verdict.events,
                verdict.ticks + verdict.disk_ticks,
                verdict.disk_ticks,
                verdict.changes + verdict.orders,
                verdict.orders,
                verdict.different
            );
            verdict.differences.iter().for_each(|d| text.push_str(&format!("{}\n", Visible::line(d))));
            if verdict.truncated {
                text.push_str("the recording ends in the middle of a line: its last event was left out\n");
            }
            text
        }
    };
    Ok((text, verdict.different == 0))
}

/// Replays the recording in `input`, which is called `path`.
///
/// # Errors
/// What is no recording, or of another form.
pub fn replay_recording(input: impl Read, path: &str) -> Result<ReplayResult> {
    let mut verdict = ReplayResult::default();
    let mut deciders: Option<ReplayEngines> = None;
    let mut expected: VecDeque<RecordedDecision> = VecDeque::new();
    let (mut input, mut line) = (LineReader::new(input, MAX_EVENT_BYTES), Vec::new());
    for number in 1u64.. {
        if !input.next_line(&mut line).with_context(|| format!("reading {path}:{number}"))? {
            break;
        }
        let parsed = match serde_json::from_slice::<RecordingLine>(&line) {
            Ok(parsed) => parsed,
            Err(_) if line.last() != Some(&b'\n') => {
                verdict.truncated = true;
                break;
            }
            Err(e) => bail!("{path}:{number}: {e}"),
        };
        let recorded = match (parsed, &mut deciders) {
            (RecordingLine::Elbowroom(header), None) if header.version == VERSION => {
                let rules =
                    serde_json::from_value(header.rest).with_context(|| format!("{path}:{number}"))?;
                deciders = Some(ReplayEngines::new(rules));
                continue;
            }
            (RecordingLine::Elbowroom(header), None) => {
                bail!("{path}: recorded in form {}, this program reads form {VERSION}", header.version)
            }
            (_, None) => bail!("{path}:1: not a recording: make one with `elbowroom record`"),
            (RecordingLine::Elbowroom(_), Some(_)) => bail!("{path}:{number}: a second header"),
            (RecordingLine::Event(event), Some(deciders)) => {
                count_missing(&mut verdict, &mut expected);
                verdict.events += 1;
                verdict.ticks += u64::from(matches!(*event, HostEvent::Tick(_)));
                verdict.disk_ticks += u64::from(matches!(*event, HostEvent::DiskTick(_)));
                expected.extend(deciders.apply(&event));
                continue;
            }
            (RecordingLine::Change(change), Some(_)) => {
                verdict.changes += 1;
                RecordedDecision::Change(change)
            }
            (RecordingLine::Order(order), Some(_)) => {
                verdict.orders += 1;
                RecordedDecision::Order(order)
            }
        };
        match expected.pop_front() {
            Some(replayed) if replayed.matches(&recorded) => {}
            Some(replayed) => {
                count_difference(
                    &mut verdict,
                    format!("{path}:{number}: recorded {recorded}, now {replayed}"),
                );
            }
            None => {
                count_difference(&mut verdict, format!("{path}:{number}: recorded {recorded}, now nothing"))
            }
        }
    }
    if deciders.is_none() {
        bail!("{path}: empty: make a recording with `elbowroom record`");
    }
    if !verdict.truncated {
        count_missing(&mut verdict, &mut expected);
    }
    Ok(verdict)
}

fn count_missing(verdict: &mut ReplayResult, expected: &mut VecDeque<RecordedDecision>) {
    for replayed in expected.drain(..) {
        count_difference(verdict, format!("recorded nothing, now {replayed}"));
    }
}

fn count_difference(verdict: &mut ReplayResult, what: String) {
    verdict.different += 1;
    if verdict.differences.len() < MAX_DIFFERENCES {
        verdict.differences.push(what);
    }
}
