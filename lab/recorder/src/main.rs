//! How well the black box could be compressed: what it does today beside a library's compression, on a recording of a real node.
//!
//! ```text
//! cargo run --release --manifest-path lab/recorder/Cargo.toml --target-dir target -- RING [BUSY] > lab/results/DATE-recorder/compression.tsv
//! ```
//!
//! BUSY containers more than in the recording use CPU time and memory in every second. Every method gets the same snapshots. The first of sixty is a key frame, which depends on no other. CPU time includes making the
//! JSON. Each round takes all methods in turn; the median of a method's rounds is printed.

use anyhow::{Result, ensure};
use elbowroom_agent::recorder::reader::RecordingCursor;
use elbowroom_agent::recorder::writer::RingWriter;
use elbowroom_client::api::AgentSnapshot;
use elbowroom_types::unit::{Bytes, Micros};
use flate2::Compression;
use flate2::write::DeflateEncoder;
use rustix::time::{ClockId, clock_gettime};
use std::io::Write;
use std::path::Path;
use zstd_safe::{CCtx, CParameter, DCtx, DParameter};

/// As in the recorder.
const KEY_EVERY: usize = 60;
const ROUNDS: usize = 3;
/// Holds a snapshot and the one before it.
const WINDOW_LOG: u32 = 23;

/// One way to write snapshots.
#[derive(Clone, Copy)]
enum Method {
    /// Differences, then deflate: the recorder as it is, with its files.
    Delta,
    /// The JSON, deflated at level 1.
    Deflate,
    /// The JSON by zstd at a level; with the snapshot before as a prefix, or without.
    Zstd { level: i32, prefix: bool, long: bool },
}

/// What a method costs.
struct Cost {
    /// Of key frames, and of all others.
    bytes: [usize; 2],
    cpu_us: f64,
}

fn main() -> Result<()> {
    let ring = std::env::args().nth(1).expect("the directory of a ring");
    let mut snapshots = read(Path::new(&ring))?;
    if let Some(busy) = std::env::args().nth(2) {
        make_busy(&mut snapshots, busy.parse()?);
    }
    let json: Vec<Vec<u8>> = snapshots.iter().map(to_json).collect::<Result<_>>()?;
    let mut methods = vec![Method::Delta, Method::Deflate];
    for level in 1..=3 {
        methods.push(Method::Zstd { level, prefix: false, long: false });
        methods.push(Method::Zstd { level, prefix: true, long: false });
        methods.push(Method::Zstd { level, prefix: true, long: true });
    }
    let mut costs: Vec<Vec<Cost>> = methods.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        for (method, costs) in methods.iter().zip(&mut costs) {
            costs.push(measure(*method, &snapshots, &json)?);
        }
    }
    let (keys, others) =
        (snapshots.len().div_ceil(KEY_EVERY), snapshots.len() - snapshots.len().div_ceil(KEY_EVERY));
    let containers = snapshots.last().map_or(0, |snapshot| snapshot.containers.len());
    let whole = json.iter().map(Vec::len).sum::<usize>() / json.len();
    println!("# {} snapshots of {containers} containers, {whole} bytes of JSON each", snapshots.len());
    println!("method\tbytes_per_key_frame\tbytes_per_other_frame\tbytes_per_snapshot\tcpu_us_per_snapshot");
    for (method, mut costs) in methods.iter().zip(costs) {
        costs.sort_by(|a, b| a.cpu_us.total_cmp(&b.cpu_us));
        let Cost { bytes: [key, other], cpu_us } = costs[ROUNDS / 2];
        println!(
            "{}\t{}\t{}\t{}\t{:.0}",
            name(*method),
            key / keys,
            other / others.max(1),
            (key + other) / snapshots.len(),
            cpu_us / snapshots.len() as f64
        );
    }
    Ok(())
}

fn name(method: Method) -> String {
    match method {
        Method::Delta => "delta, deflate 1 (today)".to_owned(),
        Method::Deflate => "deflate 1".to_owned(),
        Method::Zstd { level, prefix, long } => {
            let (prefix, long) = (if prefix { ", prefix" } else { "" }, if long { ", long" } else { "" });
            format!("zstd {level}{prefix}{long}")
        }
    }
}

fn read(ring: &Path) -> Result<Vec<AgentSnapshot>> {
    let mut cursor = RecordingCursor::last(ring)?.to_first()?;
    let mut snapshots = vec![cursor.snapshot()?];
    while cursor.advance()? {
        snapshots.push(cursor.snapshot()?);
    }
    Ok(snapshots)
}

/// Lets that many more containers use CPU time and memory in every second.
fn make_busy(snapshots: &mut [AgentSnapshot], busy: usize) {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut used = std::collections::HashMap::new();
    for snapshot in snapshots {
        for container in snapshot.containers.iter_mut().take(busy) {
            let cpu: &mut u64 = used.entry(container.id.clone()).or_default();
            *cpu += next(1_000_000);
            container.usage.cpu = Micros(container.usage.cpu.get() + *cpu);
            container.usage.memory = Bytes(container.usage.memory.get() + 4096 * next(10_000));
        }
    }
}

/// As the recorder makes it: what is in every container is not said twice.
fn to_json(snapshot: &AgentSnapshot) -> Result<Vec<u8>> {
    let mut snapshot = snapshot.clone();
    snapshot.memory.containers.clear();
    Ok(serde_json::to_vec(&snapshot)?)
}

fn cpu_time_us() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
}

fn measure(method: Method, snapshots: &[AgentSnapshot], json: &[Vec<u8>]) -> Result<Cost> {
    match method {
        Method::Delta => by_recorder(snapshots),
        _ => by_library(method, snapshots, json),
    }
}

fn by_recorder(snapshots: &[AgentSnapshot]) -> Result<Cost> {
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let mut writer = RingWriter::open(dir.path(), Bytes::gib(64))?;
    let size = || -> Result<usize> {
        let files = std::fs::read_dir(dir.path())?.map(|file| Ok(file?.metadata()?.len() as usize));
        files.sum()
    };
    let mut cost = Cost { bytes: [0; 2], cpu_us: 0.0 };
    for (n, snapshot) in snapshots.iter().enumerate() {
        let (snapshot, before) = (snapshot.clone(), size()?);
        let began = cpu_time_us();
        writer.write(snapshot)?;
        cost.cpu_us += cpu_time_us() - began;
        cost.bytes[usize::from(n % KEY_EVERY > 0)] += size()? - before;
    }
    Ok(cost)
}

fn by_library(method: Method, snapshots: &[AgentSnapshot], json: &[Vec<u8>]) -> Result<Cost> {
    let mut cost = Cost { bytes: [0; 2], cpu_us: 0.0 };
    let mut context = CCtx::create();
    let mut packed = Vec::new();
    for (n, snapshot) in snapshots.iter().enumerate() {
        let is_key = n % KEY_EVERY == 0;
        let mut snapshot = snapshot.clone();
        let began = cpu_time_us();
        snapshot.memory.containers.clear();
        let text = serde_json::to_vec(&snapshot)?;
        packed.clear();
        match method {
            Method::Zstd { level, prefix, long } => {
                let set = |context: &mut CCtx<'_>, parameter| {
                    context.set_parameter(parameter).expect("a parameter")
                };
                set(&mut context, CParameter::CompressionLevel(level));
                set(&mut context, CParameter::WindowLog(WINDOW_LOG));
                set(&mut context, CParameter::EnableLongDistanceMatching(long));
                if prefix && !is_key {
                    context.ref_prefix(&json[n - 1]).expect("a prefix");
                }
                packed.reserve(zstd_safe::compress_bound(text.len()));
                context.compress2(&mut packed, &text).expect("memory holds it");
            }
            _ => {
                let mut deflate = DeflateEncoder::new(&mut packed, Compression::fast());
                deflate.write_all(&text)?;
                deflate.finish()?;
            }
        }
        cost.cpu_us += cpu_time_us() - began;
        cost.bytes[usize::from(!is_key)] += packed.len();
        if let Method::Zstd { prefix, .. } = method {
            let mut reader = DCtx::create();
            reader.set_parameter(DParameter::WindowLogMax(WINDOW_LOG)).expect("a parameter");
            if prefix && !is_key {
                reader.ref_prefix(&json[n - 1]).expect("a prefix");
            }
            let mut again = Vec::with_capacity(text.len());
            reader.decompress(&mut again, &packed).expect("it was just compressed");
            ensure!(again == text, "snapshot {n} reads back as something else");
        }
    }
    Ok(cost)
}
