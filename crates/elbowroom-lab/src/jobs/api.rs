//! What the HTTP API costs with many containers, and whether whoever misbehaves there is felt by those who read views.
//!
//! Agents take turns, each for the same containers: without the API, with it and nobody looking, with a dashboard, a scraper and
//! questions about history, and under attack. Meanwhile a view is read a thousand times a second, from the host, as it would
//! be in its container.

use crate::cgroup::Limits;
use crate::container::Container;
use crate::job::{Folder, Job, Lab, table};
use crate::procfs::{self, Usage};
use crate::product::Product;
use crate::stats::{Quantiles, Spread};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Arguments of `api`.
#[derive(clap::Args, Debug)]
pub(crate) struct Api {
    /// How many containers.
    #[arg(long, default_value_t = 500)]
    containers: usize,
    /// How often each way is measured.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How long, in seconds.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

/// All measurements of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    containers: usize,
    seconds: u64,
    windows: Vec<Window>,
}

/// One agent for a while.
#[derive(Debug, Serialize, Deserialize)]
struct Window {
    round: usize,
    way: Way,
    /// CPU time per second of wall time, in parts of a CPU.
    policy_cpu: f64,
    view_server_cpu: f64,
    /// Nothing where there is no API.
    api_cpu: Option<f64>,
    api_rss_kib: Option<u64>,
    /// Bytes of `/api/v1/snapshot` and of `/metrics`.
    snapshot_bytes: Option<usize>,
    metrics_bytes: Option<usize>,
    /// Connections that were made by whoever looks or attacks.
    connections: u64,
    /// Of opening, reading and closing a view's file.
    reads_ns: Quantiles,
    /// Reads that failed or were not whole.
    failed: u64,
}

/// What goes on at the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Way {
    Off,
    Idle,
    Watched,
    Attacked,
}

impl Way {
    const ALL: [Self; 4] = [Self::Off, Self::Idle, Self::Watched, Self::Attacked];

    const fn text(self) -> &'static str {
        match self {
            Self::Off => "no API",
            Self::Idle => "API, nobody looks",
            Self::Watched => "two streams, a scrape and a history a second",
            Self::Attacked => "attacked",
        }
    }
}

impl Job for Api {
    const NAME: &'static str = "api";
    type Raw = Raw;

    fn record(&self, lab: &Lab) -> Result<Raw> {
        let limits = Limits { memory_mib: Some(64), ..Limits::default() };
        let make = |n: usize| lab.maker.make(&format!("api-{n}"), &limits, &[]);
        let containers: Vec<Container> = (0..self.containers).map(make).collect::<Result<_>>()?;
        let mut windows = Vec::new();
        let mut ways = Way::ALL;
        for round in 0..self.rounds {
            ways.rotate_left(1);
            for way in ways {
                eprintln!("round {} of {}: {}", round + 1, self.rounds, way.text());
                windows
                    .push(self.window(lab, round, way).with_context(|| format!("while measuring {way:?}"))?);
            }
        }
        drop(containers);
        Ok(Raw { containers: self.containers, seconds: self.seconds, windows })
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        out.say(format!(
            "{} containers with one sleeping process each, agents in turn for {} s, {} rounds; medians (smallest to largest). CPU is in \
             percent of one. \"Attacked\": five threads that connect as fast as they can over the unix socket, send garbage, or half a \
             request, or ask for the stream and for everything and read nothing, or ask for everything over and over. A view's `meminfo` is opened, read and closed a \
             thousand times a second meanwhile.",
            raw.containers,
            raw.seconds,
            raw.windows.iter().map(|w| w.round + 1).max().unwrap_or(0),
        ));
        let mut rows = Vec::new();
        for way in Way::ALL {
            let windows = || raw.windows.iter().filter(move |w| w.way == way);
            let of = |value: &dyn Fn(&Window) -> Option<f64>| {
                Spread::of(windows().filter_map(value)).map_or_else(|| "-".to_owned(), |spread| spread.text())
            };
            rows.push(vec![
                way.text().to_owned(),
                of(&|w| Some(w.policy_cpu * 100.0)),
                of(&|w| w.api_cpu.map(|cpu| cpu * 100.0)),
                of(&|w| Some(w.view_server_cpu * 100.0)),
                of(&|w| w.api_rss_kib.map(|kib| kib as f64 / 1024.0)),
                windows().map(|w| w.connections).sum::<u64>().to_string(),
                of(&|w| Some(w.reads_ns.p50 as f64 / 1e3)),
                of(&|w| Some(w.reads_ns.p99 as f64 / 1e3)),
                windows().map(|w| w.failed).sum::<u64>().to_string(),
            ]);
        }
        let head = [
            "",
            "policy, %",
            "API, %",
            "view server, %",
            "API resident, MiB",
            "connections",
            "read p50, us",
            "read p99, us",
            "reads failed",
        ];
        out.say(table(&head, &rows));
        if let Some(window) = raw.windows.iter().find(|w| w.snapshot_bytes.is_some()) {
            let kib = |bytes: Option<usize>| bytes.unwrap_or(0) / 1024;
            let (snapshot, metrics) = (kib(window.snapshot_bytes), kib(window.metrics_bytes));
            out.say(format!("A snapshot is {snapshot} KiB of JSON, the metrics are {metrics} KiB of text."));
        }
        Ok(())
    }
}

impl Api {
    fn window(&self, lab: &Lab, round: usize, way: Way) -> Result<Window> {
        let product = lab.agent("api", &[format!("api.enabled = {}", way != Way::Off)])?;
        let view = view_of(&product, self.containers, lab)?;
        let socket = product.run_dir().join("api.sock");
        let roles = product.roles()?;
        let api =
            product.pids().into_iter().find(|pid| procfs::cmdline(*pid).iter().any(|a| a == "api-server"));
        // Views are measured once, and history has its first block: what comes after that is the same every second.
        lab.scope.sleep(Duration::from_secs(3))?;
        let stop = Arc::new(AtomicBool::new(false));
        let connections = Arc::new(AtomicU64::new(0));
        let looking: Vec<_> = visitors(way)
            .iter()
            .map(|visit| {
                let (stop, connections, socket, visit) =
                    (stop.clone(), connections.clone(), socket.clone(), *visit);
                thread::spawn(move || visit(&socket, &stop, &connections))
            })
            .collect();
        let cpu = |pid: i32| Usage::of(pid).map(|usage| usage.cpu_s);
        let before = (cpu(roles.policy)?, cpu(roles.view_server)?, api.map(cpu).transpose()?);
        let began = Instant::now();
        let (mut reads, mut failed) = (Vec::new(), 0);
        while began.elapsed() < Duration::from_secs(self.seconds) {
            let at = Instant::now();
            let whole =
                fs::read(&view).is_ok_and(|text| text.starts_with(b"MemTotal:") && text.ends_with(b"\n"));
            reads.push(u64::try_from(at.elapsed().as_nanos()).unwrap_or(u64::MAX));
            failed += u64::from(!whole);
            thread::sleep(Duration::from_millis(1).saturating_sub(at.elapsed()));
        }
        let elapsed = began.elapsed().as_secs_f64();
        let after = (cpu(roles.policy)?, cpu(roles.view_server)?, api.map(cpu).transpose()?);
        let api_rss_kib = api.map(|pid| Usage::of(pid).map(|usage| usage.rss_kib)).transpose()?;
        stop.store(true, Ordering::Relaxed);
        for visitor in looking {
            let _ = visitor.join();
        }
        let body = |path: &str| (way == Way::Idle).then(|| get(&socket, path).ok()).flatten();
        Ok(Window {
            round,
            way,
            policy_cpu: (after.0 - before.0) / elapsed,
            view_server_cpu: (after.1 - before.1) / elapsed,
            api_cpu: after.2.zip(before.2).map(|(after, before)| (after - before) / elapsed),
            api_rss_kib,
            snapshot_bytes: body("/api/v1/snapshot"),
            metrics_bytes: body("/metrics"),
            connections: connections.load(Ordering::Relaxed),
            reads_ns: Quantiles::of(&mut reads),
            failed,
        })
    }
}

/// Waits until the agent knows all containers; the `meminfo` of one of their views.
fn view_of(product: &Product, containers: usize, lab: &Lab) -> Result<PathBuf> {
    #[derive(Deserialize)]
    struct Row {
        view_dir: PathBuf,
    }
    let mut rows: Vec<Row> = Vec::new();
    lab.scope.wait_for("all containers being known", Duration::from_secs(20), || {
        rows = serde_json::from_str(&product.ask(&["list"])?).context("while reading `elbowroom list`")?;
        Ok(rows.len() >= containers)
    })?;
    Ok(rows.first().context("there is a container")?.view_dir.join("proc/meminfo"))
}

/// Somebody at the socket, until told to stop.
type Visit = fn(&Path, &AtomicBool, &AtomicU64);

fn visitors(way: Way) -> Vec<Visit> {
    match way {
        Way::Off | Way::Idle => Vec::new(),
        Way::Watched => vec![watch, watch, scrape],
        Way::Attacked => vec![garble, dawdle, ignore, crowd, hammer],
    }
}

/// Reads the stream.
fn watch(socket: &Path, stop: &AtomicBool, connections: &AtomicU64) {
    let Ok(mut peer) = open(socket, connections, "/api/v1/stream") else { return };
    let mut buffer = vec![0; 64 << 10];
    while !stop.load(Ordering::Relaxed) {
        match peer.read(&mut buffer) {
            Ok(0) => return,
            Err(e) if !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return,
            _ => {}
        }
    }
}

/// Asks for metrics and for the node's history, once a second.
fn scrape(socket: &Path, stop: &AtomicBool, connections: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        for path in ["/metrics", "/api/v1/history"] {
            connections.fetch_add(1, Ordering::Relaxed);
            let _ = get(socket, path);
        }
        thread::sleep(Duration::from_secs(1));
    }
}

/// Sends what is no request.
fn garble(socket: &Path, stop: &AtomicBool, connections: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        if let Ok(mut peer) = open(socket, connections, "") {
            let _ = peer.write_all(&[0x16; 20_000]);
        }
    }
}

/// Begins requests and does not end them.
fn dawdle(socket: &Path, stop: &AtomicBool, connections: &AtomicU64) {
    let mut held = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if let Ok(mut peer) = open(socket, connections, "") {
            let _ = peer.write_all(b"GET /api/v1/snap");
            held.push(peer);
        }
        if held.len() > 400 {
            held.clear();
        }
    }
}

/// Asks for much and reads none of it.
fn ignore(socket: &Path, stop: &AtomicBool, connections: &AtomicU64) {
    let mut held = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        for path in ["/api/v1/stream", "/api/v1/snapshot", "/metrics"] {
            held.extend(open(socket, connections, path));
        }
        if held.len() > 400 {
            held.clear();
        }
    }
}

/// Comes and goes.
fn crowd(socket: &Path, stop: &AtomicBool, connections: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        let _ = open(socket, connections, "");
    }
}

/// Asks for everything, reads it, and asks again.
fn hammer(socket: &Path, stop: &AtomicBool, connections: &AtomicU64) {
    let mut buffer = vec![0; 1 << 20];
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut peer) = open(socket, connections, "/api/v1/snapshot") else { continue };
        while !stop.load(Ordering::Relaxed) {
            match peer.read(&mut buffer) {
                Ok(0) => break,
                Ok(_) => {
                    let _ = peer.write_all(b"GET /api/v1/snapshot HTTP/1.1\r\nHost: localhost\r\n\r\n");
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => break,
            }
        }
    }
}

/// Connects, and asks for `path` unless it is empty.
fn open(socket: &Path, connections: &AtomicU64, path: &str) -> std::io::Result<UnixStream> {
    let mut peer = UnixStream::connect(socket)?;
    connections.fetch_add(1, Ordering::Relaxed);
    peer.set_read_timeout(Some(Duration::from_millis(200)))?;
    if !path.is_empty() {
        write!(peer, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    }
    Ok(peer)
}

/// Bytes of an answer.
fn get(socket: &Path, path: &str) -> std::io::Result<usize> {
    let mut peer = UnixStream::connect(socket)?;
    peer.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(peer, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    peer.read_to_end(&mut answer)
}
