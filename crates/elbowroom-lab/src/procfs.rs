//! What `/proc` tells about a process: what the agent costs and what it holds.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;

/// What one process uses and holds at one instant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// utime + stime since it started, in seconds; the kernel counts in 1/100 s.
    pub(crate) cpu_s: f64,
    /// Resident memory, in KiB.
    pub(crate) rss_kib: u64,
    /// The part of it that is its own: not page cache, not shared memory. In KiB.
    pub(crate) anon_kib: u64,
    /// Threads.
    pub(crate) threads: u64,
    /// Open file descriptors.
    pub(crate) fds: u64,
    /// Mounts in its mount namespace.
    pub(crate) mounts: u64,
    /// Of a sum: `anon_kib` of each process by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) by_name: BTreeMap<String, u64>,
}

impl Usage {
    /// Reads one process; an error where it is gone.
    pub(crate) fn of(pid: i32) -> Result<Self> {
        let read = |name: &str| {
            fs::read_to_string(format!("/proc/{pid}/{name}"))
                .with_context(|| format!("while reading /proc/{pid}/{name}"))
        };
        let stat = read("stat")?;
        let fields = stat_fields(&stat);
        let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
        let status = read("status")?;
        let kib = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|rest| rest.split_whitespace().next()).and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        Ok(Self {
            cpu_s: (ticks(UTIME) + ticks(STIME)) as f64 / rustix::param::clock_ticks_per_second() as f64,
            rss_kib: kib("VmRSS:"),
            anon_kib: kib("RssAnon:"),
            threads: kib("Threads:"),
            fds: fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count).unwrap_or(0) as u64,
            mounts: read("mountinfo")?.lines().count() as u64,
            by_name: BTreeMap::new(),
        })
    }

    /// The sum over `pids`, leaving out the ones that are gone; mounts are the most that any one sees.
    pub(crate) fn of_all(pids: &[i32]) -> Self {
        let mut sum = Self::default();
        for (pid, one) in pids.iter().filter_map(|pid| Some((pid, Self::of(*pid).ok()?))) {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            *sum.by_name.entry(name.trim_end().to_owned()).or_default() += one.anon_kib;
            sum.cpu_s += one.cpu_s;
            sum.rss_kib += one.rss_kib;
            sum.anon_kib += one.anon_kib;
            sum.threads += one.threads;
            sum.fds += one.fds;
            sum.mounts = sum.mounts.max(one.mounts);
        }
        sum
    }
}

/// When a process started, in clock ticks since boot.
pub(crate) fn started(pid: i32) -> Result<u64> {
    let stat =
        fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("no process {pid}"))?;
    stat_fields(&stat).get(STARTTIME).and_then(|f| f.parse().ok()).context("/proc/PID/stat has no start time")
}

/// Whether a process is dead and waits to be reaped, or gone.
pub(crate) fn is_zombie(pid: i32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => matches!(stat_fields(&stat).first(), Some(&"Z" | &"X")),
        Err(_) => true,
    }
}

/// `pid` and everything below it that is alive, ascending.
pub(crate) fn family(pid: i32) -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for child in all_pids() {
        if let Some(parent) = parent(child) {
            children.entry(parent).or_default().push(child);
        }
    }
    let (mut found, mut next) = (vec![pid], vec![pid]);
    while let Some(p) = next.pop() {
        let below = children.get(&p).cloned().unwrap_or_default();
        found.extend(&below);
        next.extend(below);
    }
    found.retain(|pid| !is_zombie(*pid));
    found.sort_unstable();
    found
}

/// Type of the file system that `path` is on in the mount namespace of `pid`.
pub(crate) fn file_system(pid: i32, path: &str) -> Result<String> {
    let mounts =
        fs::read_to_string(format!("/proc/{pid}/mountinfo")).with_context(|| format!("no process {pid}"))?;
    innermost(&mounts, path)
        .map(str::to_owned)
        .with_context(|| format!("{path} is on no mount of process {pid}"))
}

/// Arguments of a process; empty where it is gone.
pub(crate) fn cmdline(pid: i32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let args = bytes.split(|b| *b == 0).filter(|a| !a.is_empty());
    args.map(|a| String::from_utf8_lossy(a).into_owned()).collect()
}

/// Every process there is.
pub(crate) fn all_pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// `/proc/loadavg`, the first three numbers.
/// The machine's swap, in MiB.
pub(crate) fn swap_mib() -> Result<u64> {
    let swaps = fs::read_to_string("/proc/swaps").context("while reading /proc/swaps")?;
    let size = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    Ok(swaps.lines().skip(1).filter_map(size).sum::<u64>() / 1024)
}

pub(crate) fn loadavg() -> [f64; 3] {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut numbers = text.split(' ').filter_map(|n| n.parse().ok());
    std::array::from_fn(|_| numbers.next().unwrap_or(0.0))
}

// Indexes into the fields after the command name, which may itself hold spaces and parentheses.
const PPID: usize = 1;
const UTIME: usize = 11;
const STIME: usize = 12;
const STARTTIME: usize = 19;

/// The last mount of the longest mount point at or above `path`.
fn innermost<'a>(mountinfo: &'a str, path: &str) -> Option<&'a str> {
    let mut best: Option<(usize, &str)> = None;
    for line in mountinfo.lines() {
        let (left, right) = line.split_once(" - ")?;
        let (at, kind) = (left.split(' ').nth(4)?, right.split(' ').next()?);
        let covers =
            at == "/" || path.strip_prefix(at).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if covers && best.is_none_or(|(len, _)| at.len() >= len) {
            best = Some((at.len(), kind));
        }
    }
    best.map(|(_, kind)| kind)
}

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat_fields(&stat).get(PPID)?.parse().ok()
}

fn stat_fields(stat: &str) -> Vec<&str> {
    stat.rsplit_once(')').map_or(Vec::new(), |(_, rest)| rest.split_whitespace().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b) c) S 1 7 7 0 -1 4194560 1 0 0 0 12 34 0 0 20 0 1 0 999 1 1";
        let fields = stat_fields(stat);
        assert_eq!((fields[PPID], fields[UTIME], fields[STIME], fields[STARTTIME]), ("1", "12", "34", "999"));
    }

    #[test]
    fn a_file_is_on_what_was_mounted_last_over_its_nearest_directory() {
        let mounts = "\
1 0 8:1 / / rw - ext4 /dev/root rw
2 1 0:4 / /proc rw - proc proc rw
3 2 0:9 /x /proc/meminfo ro - fuse.lxcfs lxcfs ro
4 3 0:8 /y /proc/meminfo ro shared:1 - fuse.elbowroom elbowroom ro
";
        for (path, kind) in [
            ("/proc/meminfo", "fuse.elbowroom"),
            ("/proc/stat", "proc"),
            ("/proc/meminfo2", "proc"),
            ("/procfs", "ext4"),
        ] {
            assert_eq!(innermost(mounts, path), Some(kind), "{path}");
        }
    }

    #[test]
    fn this_process_has_threads_memory_and_mounts() {
        let me = std::process::id() as i32;
        let usage = Usage::of(me).unwrap();
        assert!(usage.threads >= 1 && usage.rss_kib > 0 && usage.fds >= 3 && usage.mounts >= 1, "{usage:?}");
        assert!(family(me).contains(&me));
        assert!(Usage::of(-1).is_err());
    }
}
