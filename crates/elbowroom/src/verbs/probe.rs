//! `elbowroom probe`: say how an application is doing, show what applications say, and try a source.

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use elbowroom_agent::alerts::StopFlag;
use elbowroom_agent::probes::settings::ProbeSettings;
use elbowroom_agent::probes::socket_path;
use elbowroom_agent::probes::source::ProbeSource;
use elbowroom_client::api::{ContainerView, ControlRequest, ControlResponse, ProbeView, display_name};
use elbowroom_client::control::ControlClient;
use elbowroom_client::number_format;
use elbowroom_client::output::{Format, OutputArgs, TableArgs, say, unexpected_response, write_stdout};
use elbowroom_client::table::{Align, Keep, clip};
use elbowroom_linux::bounded::LineReader;
use elbowroom_linux::probe;
use elbowroom_types::probe::{MAX_RECORD_LEN, Measure, MeasureKind, ProbeRecord, ProbeReport};
use elbowroom_types::verdict::VerdictStatus;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Where programs in a container are told to send to.
pub(crate) const PROBE_SOCKET_ENV: &str = "ELBOWROOM_PROBE";
/// How long the agent may take to answer; it does in microseconds.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Arguments of `probe`.
#[derive(Args)]
pub(crate) struct ProbeArgs {
    #[command(subcommand)]
    command: ProbeCommand,
}

#[derive(Subcommand)]
enum ProbeCommand {
    /// Say how this container's application is doing.
    ///
    /// RECORD is `served=812 offered=900 objective=800`, `kind=latency served=0.012 objective=0.05`, counters that only grow
    /// (`served_total=123456`), the same as JSON, or a colour: red (it needs more), yellow (fine), green (more will not help). `-` reads
    /// records from standard input, one a line, until it ends. Exit status: 0 when all were taken, 2 otherwise.
    #[command(
        after_help = "Example:\n  while sleep 1; do echo \"served_total=$(requests)\"; done | elbowroom probe send -"
    )]
    Send(SendArgs),
    /// List the containers that have a probe, and what was heard of it.
    List(TableArgs),
    /// Ask a source once and print what it says; needs no agent.
    ///
    /// SOURCE is file:PATH, http://HOST:PORT/PATH KEY=METRIC..., or exec:PROGRAM ARGUMENTS, as in `elbowroom run --probe`. Exit
    /// status: 0 when it gave a record, 1 when there is nothing new, 2 error.
    Try(TryArgs),
}

#[derive(Args)]
struct SendArgs {
    /// The container to speak for, which only root may; without it the one that this runs in.
    #[arg(long, value_name = "NAME")]
    container: Option<String>,
    /// What to say.
    #[arg(required = true)]
    record: Vec<String>,
}

#[derive(Args)]
struct TryArgs {
    /// The source.
    #[arg(required = true)]
    source: Vec<String>,
    #[command(flatten)]
    output: OutputArgs,
}

/// `elbowroom probe`.
pub(crate) fn main(run_dir: &Path, args: &ProbeArgs) -> Result<ExitCode> {
    match &args.command {
        ProbeCommand::Send(args) => send(run_dir, args).map(|()| ExitCode::SUCCESS),
        ProbeCommand::List(args) => {
            args.print(|| Ok((list(run_dir, *args)?, ()))).map(|()| ExitCode::SUCCESS)
        }
        ProbeCommand::Try(args) => try_once(args),
    }
}

fn send(run_dir: &Path, args: &SendArgs) -> Result<()> {
    let mut way = match &args.container {
        Some(container) => {
            ProbeTransport::Control(Box::new(ControlClient::connect(run_dir)?), container.clone())
        }
        None => ProbeTransport::Socket(run_dir.to_owned()),
    };
    if args.record != ["-"] {
        return way.send(args.record.join(" ").as_bytes());
    }
    // One byte more than a record has: its newline.
    let mut lines = LineReader::new(std::io::stdin().lock(), MAX_RECORD_LEN as u64 + 1);
    let mut line = Vec::new();
    while lines.next_line(&mut line).context("a record")? {
        if !line.trim_ascii().is_empty() {
            way.send(&line)?;
        }
    }
    Ok(())
}

/// How a record reaches the agent.
enum ProbeTransport {
    /// As this process's own container.
    Socket(PathBuf),
    /// As a user who may ask the agent.
    Control(Box<ControlClient>, String),
}

impl ProbeTransport {
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let record = ProbeRecord::parse(bytes)?;
        match self {
            Self::Control(client, container) => {
                let request = ControlRequest::Probe { container: container.clone(), record };
                client.request(&request).map(drop)
            }
            Self::Socket(run_dir) => send_to_socket(run_dir, &serde_json::to_vec(&record)?),
        }
    }
}

/// Sends to the first socket that is there: the one we were told of, the host's, that of the container's own network.
fn send_to_socket(run_dir: &Path, record: &[u8]) -> Result<()> {
    let told = std::env::var_os(PROBE_SOCKET_ENV).map(PathBuf::from);
    for path in [told, Some(socket_path(run_dir)), None] {
        match probe::send(path.as_deref(), record, REPLY_TIMEOUT) {
            Ok(answer) if answer.is_empty() => return Ok(()),
            Ok(refused) => bail!("{refused}"),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {}
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                bail!("the agent does not answer: look at its log, or restart it")
            }
            Err(error) => return Err(error).context("sending to the agent"),
        }
    }
    bail!("no agent listens on {}: start one with `elbowroom agent`", socket_path(run_dir).display())
}

fn try_once(args: &TryArgs) -> Result<ExitCode> {
    let probe = ProbeSettings::parse(&args.source.join(" "), true)?;
    if !probe.is_polled() {
        bail!("nothing to ask: write file:PATH, http://HOST:PORT/PATH or exec:PROGRAM");
    }
    match ProbeSource::new(probe, 0).poll(&StopFlag::new()?) {
        Ok(Some(record)) => {
            write_stdout(&match args.output.format {
                Format::Data(data) => data.document(&record)?,
                Format::Text => record_text(&record) + "\n",
            })?;
            Ok(ExitCode::SUCCESS)
        }
        Ok(None) => {
            say("elbowroom: nothing new: the file is empty, or older than its `ttl`");
            Ok(ExitCode::from(1))
        }
        Err(problem) => bail!("{problem}"),
    }
}

/// A record as `send` takes it.
fn record_text(record: &ProbeRecord) -> String {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(record) else { return String::new() };
    let word = |(key, value): (&String, &serde_json::Value)| match value {
        serde_json::Value::String(text) => format!("{key}={text}"),
        value => format!("{key}={}", value.as_f64().unwrap_or_default()),
    };
    fields.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn list(run_dir: &Path, args: TableArgs) -> Result<String> {
    let ControlResponse::List(containers) =
        ControlClient::connect(run_dir)?.request(&ControlRequest::List)?
    else {
        return unexpected_response();
    };
    let with: Vec<(&ContainerView, &ProbeView)> =
        containers.iter().filter_map(|c| Some((c, c.probe.as_ref()?))).collect();
    let data: Vec<_> = with
        .iter()
        .map(|(c, probe)| serde_json::json!({"id": c.id, "name": c.name, "path": c.path, "probe": probe}))
        .collect();
    let heading = [
        ("CONTAINER", Align::Left, Keep::Always),
        ("SOURCE", Align::Left, Keep::Rank(2)),
        ("STATE", Align::Left, Keep::Always),
        ("AGE", Align::Right, Keep::Rank(1)),
        ("SAYS", Align::Left, Keep::Always),
    ];
    let rows: Vec<Vec<String>> = with
        .iter()
        .map(|(c, probe)| {
            let says = match (&probe.report, &probe.problem) {
                (_, Some(problem)) => clip(problem, 60),
                (Some(report), None) => report_text(report),
                (None, None) => "nothing yet".to_owned(),
            };
            vec![
                clip(&display_name(c), 28),
                clip(&probe.source, 40),
                probe.freshness.name().to_owned(),
                age_text(probe),
                says,
            ]
        })
        .collect();
    let names = || with.iter().map(|(c, _)| c.name.clone().unwrap_or_else(|| c.id.clone())).collect();
    args.answer(&data, names, |style| style.table(&heading, &rows))
}

fn age_text(probe: &ProbeView) -> String {
    probe.age_usec.map_or("-".to_owned(), |age| format!("{:.1}s", age as f64 / 1e6))
}

/// A probe on one line.
pub(super) fn probe_text(probe: &ProbeView) -> String {
    let mut text = format!("{}, {}", probe.source, probe.freshness.name());
    if let Some(report) = &probe.report {
        text += &format!(": {} ({} ago)", report_text(report), age_text(probe));
    }
    if let Some(problem) = &probe.problem {
        text += &format!("; {}", clip(problem, 200));
    }
    text
}

fn report_text(report: &ProbeReport) -> String {
    let number = |n: f64| ((n * 1e3).round() / 1e3).to_string();
    match report {
        ProbeReport::Colour { colour } => {
            format!(
                "{}: {}",
                number_format::colour_name(*colour),
                number_format::more_memory(*colour, VerdictStatus::Ok)
            )
        }
        ProbeReport::Measure(Measure { kind, served, offered, objective }) => {
            let mut text = match kind {
                MeasureKind::Throughput => format!("{}/s", number(*served)),
                MeasureKind::Latency => format!("latency {}", number(*served)),
            };
            if let Some(offered) = offered {
                text += &format!(" of {}/s", number(*offered));
            }
            if let Some(objective) = objective {
                text += &format!(", objective {}", number(*objective));
            }
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_was_tried_prints_as_send_takes_it() {
        for text in ["served=812 offered=900 objective=800 kind=throughput", "served_total=5.25", "red"] {
            let record = ProbeRecord::parse(text.as_bytes()).unwrap();
            assert_eq!(ProbeRecord::parse(record_text(&record).as_bytes()).unwrap(), record);
        }
    }
}
