//! What a limit on a container's disk I/O catches: the same amount of data by every way in which programs read and write
//! files, under a limit that is far below what the disk can do. No agent runs; the lab writes the limit.
//!
//! A write that ends in the page cache is not over when the program is: what counts is when the data reached the disk, so
//! each measurement ends with a sync of the file system from outside the container. Beside it, somebody without any limit
//! appends to a file on the same file system and syncs it, since a limit on one can hold up all who share its journal.

use crate::cgroup::Limits;
use crate::container::Container;
use crate::job::{Folder, Job, Lab, now_ns, table};
use crate::rig::{self, SlowDisk};
use crate::scope::Created;
use crate::stats::{Spread, short};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const MB: u64 = 1_000_000;
/// A rate up to this many times the limit counts as limited: the journal, which is nobody's, comes on top.
const HELD: f64 = 1.5;

/// Ways of moving data, and fio's words for them. The first is measured without a limit.
const WAYS: [(&str, &[&str]); 9] = [
    ("no limit: direct write", &["--rw=write", "--direct=1", "--ioengine=libaio", "--iodepth=8"]),
    ("direct read", &["--rw=read", "--direct=1", "--ioengine=libaio", "--iodepth=8"]),
    ("buffered read", &["--rw=read"]),
    ("direct write", &["--rw=write", "--direct=1", "--ioengine=libaio", "--iodepth=8"]),
    ("buffered write", &["--rw=write"]),
    ("buffered write, fsync every MiB", &["--rw=write", "--fsync=16"]),
    ("buffered write, O_DSYNC", &["--rw=write", "--sync=dsync"]),
    ("write through mmap", &["--rw=write", "--ioengine=mmap"]),
    (
        "small files, 16 kB each",
        &["--rw=write", "--bs=16k", "--openfiles=1", "--file_service_type=sequential"],
    ),
];

/// Arguments of `disk-buffered`.
#[derive(clap::Args, Debug)]
pub(crate) struct DiskBuffered {
    /// What the disk can do, in MB/s, in a guest of tools/vm; elsewhere it is as fast as the temporary directory's.
    #[arg(long, default_value_t = 40)]
    disk_mb: u64,
    /// What the container may, in MB/s.
    #[arg(long, default_value_t = 4)]
    limit_mb: u64,
    /// How much is moved each time, in MB.
    #[arg(long, default_value_t = 32)]
    amount_mb: u64,
    /// How often each way is measured.
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

/// A campaign.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    limit_mb: u64,
    amount_mb: u64,
    cgroup_v2: bool,
    runs: Vec<Vec<Measured>>,
}

/// One way, once.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Measured {
    way: String,
    /// How long the program took, in seconds.
    program_s: f64,
    /// (time in milliseconds, thousands of bytes read, written) at the disk, where they changed.
    disk_kb: Vec<(u64, u64, u64)>,
    /// Thousands of bytes read and written that the kernel counted for the container.
    own_kb: [u64; 2],
    /// The longest that the neighbour waited for its sync, in milliseconds.
    neighbour_ms: f64,
}

impl Job for DiskBuffered {
    const NAME: &'static str = "disk-buffered";
    type Raw = Raw;

    fn record(&self, lab: &Lab) -> Result<Raw> {
        ensure!(lab.maker.is_own(), "only the lab's own containers have fio: --engine own");
        let disk = &rig::open_for_files(&lab.scope, 1, self.disk_mb * MB)?[0];
        let files = rig::mount_ext4(&lab.scope, disk)?;
        let mut runs = Vec::new();
        for run in 0..self.runs {
            eprintln!("run {} of {}", run + 1, self.runs);
            let measure = |(i, way)| self.measure(lab, disk, &files, way, i > 0);
            runs.push(WAYS.iter().enumerate().map(measure).collect::<Result<_>>()?);
        }
        lab.scope.take_down(&Created::Mount(files));
        let cgroup_v2 = lab.maker.layout().is_v2();
        Ok(Raw { limit_mb: self.limit_mb, amount_mb: self.amount_mb, cgroup_v2, runs })
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        out.say(format!(
            "What a limit of {} MB/s catches on ext4, cgroup {}: {} MB each time, medians of {} runs (smallest to largest). The \
             first row is without the limit.",
            raw.limit_mb,
            if raw.cgroup_v2 { "v2" } else { "v1" },
            raw.amount_mb,
            raw.runs.len()
        ));
        let ways = raw.runs.first().map_or(0, Vec::len);
        let rows: Vec<Vec<String>> = (0..ways).map(|way| row(raw, way)).collect();
        out.say(table(
            &[
                "way",
                "the program saw, MB/s",
                "reached the disk at, MB/s",
                "limited",
                "counted for the container",
                "a neighbour's sync took up to, ms",
            ],
            &rows,
        ));
        out.say(
            "Limited: no faster at the disk than 1.5 times the limit; the journal, which is nobody's, comes on top. The neighbour has no limit; it appends 4 kB to a file of \
             its own on the same file system and syncs it, 20 times a second.",
        );
        Ok(())
    }
}

impl DiskBuffered {
    fn measure(
        &self,
        lab: &Lab,
        disk: &SlowDisk,
        files: &Path,
        (way, words): &(&str, &[&str]),
        limited: bool,
    ) -> Result<Measured> {
        lab.scope.check()?;
        let container = lab.maker.make("writer", &Limits::default(), &[])?;
        container.cgroups.count_io(&disk.number)?;
        let folder = files.join("data");
        fs::create_dir(&folder).context("while making a directory")?;
        let mut args: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        args.extend([
            format!("--directory={}", folder.display()),
            "--name=data".into(),
            "--output=/dev/null".into(),
        ]);
        let bytes = self.amount_mb * MB;
        if way.starts_with("small") {
            args.extend([
                format!("--nrfiles={}", bytes >> 14),
                "--filesize=16k".into(),
                "--fallocate=none".into(),
            ]);
        } else {
            args.extend([format!("--size={bytes}"), "--bs=64k".into()]);
        }
        if way.ends_with("read") || way.ends_with("mmap") {
            fio(&container, &args, true)?; // the file is written before there is a limit
        }
        let root = File::open(files).context("while opening the file system")?;
        rustix::fs::syncfs(&root).context("while syncing")?;
        if limited {
            container.cgroups.limit_io(&disk.number, self.limit_mb * MB)?;
        }
        let over = AtomicBool::new(false);
        let own_before = container.cgroups.io_bytes(&disk.number)?;
        let began = Instant::now();
        let (disk_kb, neighbour_ms, program_s) = thread::scope(|threads| {
            let watcher = threads.spawn(|| watch(disk, &over));
            let neighbour = threads.spawn(|| append(&files.join("neighbour"), &over));
            let done = fio(&container, &args, false).map(|()| began.elapsed().as_secs_f64());
            let synced = rustix::fs::syncfs(&root).context("while syncing");
            over.store(true, Ordering::Relaxed);
            let watched = watcher.join().expect("the watcher does not panic");
            let waited = neighbour.join().expect("the neighbour does not panic");
            anyhow::Ok((synced.and(watched)?, waited?, done?))
        })?;
        let own = container.cgroups.io_bytes(&disk.number)?;
        let own_kb = [0, 1].map(|way| (own[way] - own_before[way]) / 1000);
        fs::remove_dir_all(&folder).context("while removing what was written")?;
        Ok(Measured { way: (*way).to_owned(), program_s, disk_kb, own_kb, neighbour_ms })
    }
}

impl Measured {
    /// Bytes per second at the disk, in the direction that carried more, over the middle nine tenths of what went there: free
    /// of how long programs take to start.
    fn rate(&self) -> f64 {
        let write = self.writes();
        let points = || self.disk_kb.iter().map(|(ms, r, w)| (*ms, if write { *w } else { *r }));
        let total = points().next_back().map_or(0, |(_, kb)| kb) as f64;
        let before = points().take_while(|(_, kb)| *kb as f64 <= total * 0.05).last().unwrap_or((0, 0));
        let after = points().find(|(_, kb)| *kb as f64 >= total * 0.95).unwrap_or(before);
        (after.1 - before.1) as f64 * 1e6 / (after.0 - before.0).max(1) as f64
    }

    fn writes(&self) -> bool {
        self.disk_kb.last().is_some_and(|(_, read, written)| written > read)
    }
}

/// Runs fio to its end; `create` only lays out its files.
fn fio(container: &Container, args: &[String], create: bool) -> Result<()> {
    let mut command = container.command(Path::new("/usr/bin/env"));
    command.arg("fio").args(args);
    if create {
        command.arg("--create_only=1");
    }
    let out = command.output().context("while running fio")?;
    let said = [out.stdout, out.stderr].concat();
    ensure!(out.status.success(), "fio {}: {}", args.join(" "), String::from_utf8_lossy(&said).trim());
    Ok(())
}

/// What went over the disk since now, whoever asked for it, every 20 ms until `over`.
fn watch(disk: &SlowDisk, over: &AtomicBool) -> Result<Vec<(u64, u64, u64)>> {
    let (start, first) = (now_ns(), disk_bytes(disk)?);
    let mut seen = vec![(0, 0, 0)];
    loop {
        let last = over.load(Ordering::Relaxed);
        let now = disk_bytes(disk)?;
        let [read, written] = [0, 1].map(|way| (now[way] - first[way]) / 1000);
        if seen.last().is_some_and(|(_, r, w)| (*r, *w) != (read, written)) {
            seen.push(((now_ns() - start) / 1_000_000, read, written));
        }
        if last {
            return Ok(seen);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Bytes read and written: fields 3 and 7 of /sys/block/DISK/stat are sectors of 512 bytes.
fn disk_bytes(disk: &SlowDisk) -> Result<[u64; 2]> {
    let path = format!("/sys/block/{}/stat", disk.name);
    let text = fs::read_to_string(&path).with_context(|| format!("while reading {path}"))?;
    let fields: Vec<u64> = text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    let sectors = fields.get(2).zip(fields.get(6)).with_context(|| format!("{path} is too short: {text}"))?;
    Ok([sectors.0 * 512, sectors.1 * 512])
}

/// The longest of its syncs, in milliseconds.
fn append(path: &Path, over: &AtomicBool) -> Result<f64> {
    let mut file = File::create(path).context("while making the neighbour's file")?;
    let mut longest = Duration::ZERO;
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        file.write_all(&[7; 4096]).and_then(|()| file.sync_data()).context("while the neighbour wrote")?;
        longest = longest.max(began.elapsed());
        thread::sleep(Duration::from_millis(50));
    }
    Ok(longest.as_secs_f64() * 1e3)
}

fn row(raw: &Raw, way: usize) -> Vec<String> {
    let all: Vec<&Measured> = raw.runs.iter().filter_map(|run| run.get(way)).collect();
    let spread = |f: &dyn Fn(&Measured) -> f64| Spread::of(all.iter().map(|m| f(m)));
    let text = |s: Option<Spread>| s.map_or("-".to_owned(), |s| s.text());
    let rate = spread(&|m| m.rate() / 1e6);
    let held = rate.is_some_and(|s| s.median <= raw.limit_mb as f64 * HELD);
    let amount = raw.amount_mb as f64;
    vec![
        all.first().map_or(String::new(), |m| m.way.clone()),
        text(spread(&|m| amount / m.program_s)),
        text(rate),
        match (way, held) {
            (0, _) => "-",
            (_, true) => "yes",
            (_, false) => "**no**",
        }
        .to_owned(),
        text(spread(&|m| m.own_kb[usize::from(m.writes())] as f64 / 1000.0 / amount * 100.0)) + " %",
        spread(&|m| m.neighbour_ms).map_or("-".into(), |s| {
            format!("{} ({} to {})", short(s.median.round()), s.min.round(), s.max.round())
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_middle_however_long_it_took_to_begin() {
        let measured = |busy: &mut dyn Iterator<Item = (u64, u64, u64)>| Measured {
            way: "x".into(),
            program_s: 6.0,
            disk_kb: std::iter::once((0, 0, 0)).chain(busy).collect(),
            own_kb: [0, 0],
            neighbour_ms: 0.0,
        };
        let steady = measured(&mut (1..=100).map(|n| (5_000 + n * 10, 3, n * 40)));
        assert!((steady.rate() - 4e6).abs() < 1e4, "{}", steady.rate());
        let at_once = measured(&mut [(20, 1, 1), (40, 1, 32_000)].into_iter());
        assert!(at_once.rate() > 1e9, "{}", at_once.rate());
    }
}
