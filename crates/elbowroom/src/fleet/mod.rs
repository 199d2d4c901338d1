//! `elbowroom fleet`: many agents at once, and where a container would fit.
//!
//! It asks each agent's HTTP API for a snapshot, as many at a time as was agreed and each within its time, or Prometheus for what
//! it last scraped. A node that does not answer, or whose numbers are old, is in the answer with the reason; its room counts for
//! nothing.

mod address;
mod fetch;
pub mod placement;
pub mod prometheus;
pub mod reading;
mod report;
pub mod resources;

use address::FleetNode;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use elbowroom_client::output::{DataFormat, Format, clear_screen, say, write_stdout};
use elbowroom_types::claim::DiskReservation;
use elbowroom_types::label;
use elbowroom_types::unit::{
    Bytes, Micros, Millicpu, Percent, parse_bytes, parse_cpus, parse_duration, parse_percent,
};
use elbowroom_types::visible::visible_json;
use fetch::FleetClient;
use futures_util::StreamExt;
pub use placement::PlacementRequest;
use reading::NodeReading;
use report::{FleetReport, NodeReport};
pub use resources::NodeResources;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Longest snapshot of one node, in bytes: several thousand containers.
const MAX_SNAPSHOT_BYTES: usize = 16 << 20;
/// How old an agent's snapshot may be: it makes one a second.
const MAX_SNAPSHOT_AGE: Micros = Micros::secs(30);
/// How old what Prometheus scraped may be: as long as it takes a sample for the present one (`--query.lookback-delta`).
const PROMETHEUS_LOOKBACK: Micros = Micros::secs(300);

/// Arguments of `fleet`.
#[derive(Args)]
pub(crate) struct FleetArgs {
    /// Nodes: [NAME=]HOST[:PORT], https://HOST[:PORT], dns+http://NAME:PORT for all of a name, or the path of a socket.
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
    /// File with a node on each line; `-` for standard input.
    #[arg(long = "nodes", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Ask this Prometheus for what it scraped instead, such as http://prometheus:9090.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["nodes", "file"])]
    prometheus: Option<String>,
    /// File with the token that is sent to agents over TCP, or to Prometheus.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// PEM file with the certificates to trust; without it those that this system trusts.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// How long a node may take to answer.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    timeout: Micros,
    /// Nodes that are asked at the same time.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    parallel: u16,
    /// A snapshot that is older, or whose clock is further away, counts for nothing [default: 30s; 5min by way of Prometheus, which
    /// scrapes at longer intervals and takes what is older for gone].
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    oldest: Option<Micros>,
    /// Look again and again for so long, and count only room that was there all the time.
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, conflicts_with = "watch")]
    duration: Option<Micros>,
    /// Show it anew every --every, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    /// Time between two looks.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    every: Micros,
    #[command(flatten)]
    placement: PlacementArgs,
    /// The part of each node that stays free for what moves.
    #[arg(long, value_name = "PART", default_value = "10%", value_parser = parse_percent)]
    headroom: Percent,
    /// Nodes to show; 0 for all. Problems are always shown, and JSON always has all.
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
    /// What nodes are sorted by where nothing is to be placed.
    #[arg(long, value_enum, default_value_t = NodeSort::Cpu)]
    sort: NodeSort,
    /// How to print the answer.
    #[arg(short = 'o', long, visible_alias = "output", value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// The container that is to be placed.
#[derive(Args)]
struct PlacementArgs {
    /// Show where a container fits that uses this many CPUs.
    #[arg(long, value_name = "N", value_parser = parse_cpus)]
    cpus: Option<Millicpu>,
    /// The same, for this much memory.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    memory: Option<Bytes>,
    /// The same, for this much of one disk. Keys as in io.max: "rbps=50MiB/s wiops=200/s".
    #[arg(long, value_name = "RATES", value_parser = label::parse_disk_reservation)]
    disk: Option<DiskReservation>,
}

/// By what nodes are sorted, most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum NodeSort {
    /// Idle CPUs.
    Cpu,
    /// Memory that is free to lend.
    Memory,
    /// Alerts.
    Alerts,
    /// Names, in their order.
    Name,
}

impl FleetArgs {
    fn placement_request(&self) -> Option<PlacementRequest> {
        let PlacementArgs { cpus, memory, disk } = &self.placement;
        let ask = PlacementRequest {
            cpu: cpus.unwrap_or_default(),
            memory: memory.unwrap_or_default(),
            disk: disk.unwrap_or_default(),
        };
        (ask != PlacementRequest::default()).then_some(ask)
    }
}

/// One node, or why there is nothing of it.
type NodeReadings = Vec<(FleetNode, Result<NodeReading>)>;

/// `elbowroom fleet`. Exit status: 0 when every node was read, or something fits where that was asked; 1 when not.
pub(crate) fn main(args: &FleetArgs) -> Result<ExitCode> {
    for (name, time) in [("--timeout", args.timeout), ("--every", args.every)] {
        ensure!(time >= Micros::millis(10), "{name}: {time} is too short: at least \"10ms\"");
    }
    let within = Duration::from_micros(args.timeout.get());
    let source = match &args.prometheus {
        Some(address) => FleetSource::Prometheus(prometheus::parse_server(address)?),
        None => FleetSource::Agents(address::parse_nodes(&args.nodes, args.file.as_deref())?),
    };
    let oldest =
        args.oldest.unwrap_or(if args.prometheus.is_some() { PROMETHEUS_LOOKBACK } else { MAX_SNAPSHOT_AGE });
    let longest = if args.prometheus.is_some() { prometheus::MAX_RESPONSE_BYTES } else { MAX_SNAPSHOT_BYTES };
    let client = FleetClient::new(args.token_file.as_deref(), args.ca.as_deref(), within, longest)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting")?;
    let look = || -> Result<FleetReport> {
        let begin = Instant::now();
        let looked = runtime.block_on(source.read_nodes(&client, args.parallel.into()))?;
        let nodes =
            looked.into_iter().map(|(node, reading)| NodeReport::new(&node, check_age(reading, oldest)));
        Ok(FleetReport::new(nodes.collect(), begin.elapsed(), args.placement_request(), args.headroom))
    };
    let show = |report: &FleetReport| -> Result<()> {
        let text = match args.format {
            Format::Data(DataFormat::Json) => visible_json(serde_json::to_string(report)?) + "\n",
            Format::Data(data) => data.document(report)?,
            Format::Text => report::text(report, args.top, args.sort),
        };
        if args.watch && args.format == Format::Text {
            clear_screen()?;
        }
        write_stdout(&text)
    };
    let every = Duration::from_micros(args.every.get());
    let mut report = look()?;
    if args.watch {
        loop {
            show(&report)?;
            std::thread::sleep(every);
            match look() {
                Ok(looked) => report = looked,
                // What was shown last stays, with its time.
                Err(error) => say(&format!("elbowroom: {}", elbowroom_client::output::one_line(&error))),
            }
        }
    }
    let end = args.duration.map(|time| Instant::now() + Duration::from_micros(time.get()));
    while let Some(left) = end.and_then(|end| end.checked_duration_since(Instant::now())) {
        std::thread::sleep(every.min(left));
        report = report.intersect(look()?);
    }
    show(&report)?;
    Ok(ExitCode::from(u8::from(!report.is_success())))
}

/// The nodes that are asked.
enum FleetSource {
    Agents(Vec<FleetNode>),
    Prometheus((address::NodeAddress, String)),
}

impl FleetSource {
    async fn read_nodes(&self, client: &FleetClient, parallel: usize) -> Result<NodeReadings> {
        match self {
            Self::Agents(nodes) => {
                let ask = |node: &FleetNode| {
                    let node = node.clone();
                    async move {
                        let answer = client.get(&node.address, reading::SNAPSHOT_PATH).await;
                        (node, answer.and_then(|json| reading::read(&json)))
                    }
                };
                Ok(futures_util::stream::iter(nodes).map(ask).buffered(parallel).collect().await)
            }
            Self::Prometheus((way, prefix)) => prometheus::query_nodes(client, way, prefix).await,
        }
    }
}

/// Refuses a reading that is old, or from a clock that is somewhere else: which of the two cannot be told from here.
fn check_age(reading: Result<NodeReading>, oldest: Micros) -> Result<NodeReading> {
    let reading = reading?;
    let Some(time) = reading.time_unix_ms else { return Ok(reading) };
    let now = elbowroom_linux::timer::unix_ms();
    let (apart, which) = match now >= time {
        true => (now - time, "old, or its clock is behind"),
        false => (time - now, "in the future: its clock is ahead"),
    };
    if Micros::millis(apart) > oldest {
        bail!("its snapshot is {} {which}", Micros::secs(apart / 1_000));
    }
    Ok(reading)
}

/// Nodes by name.
type NodesByName<'a> = BTreeMap<&'a str, &'a NodeResources>;
