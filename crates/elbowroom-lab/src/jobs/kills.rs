//! `kill -9` of the agent's processes, in turn, under a hundred readers that judge every text they get.
//!
//! Each reader sits in a container with a memory limit that no other has, so a text of another container is told from its
//! own. It reads by read, pread, mmap, sendfile and splice, and drops the page cache before some reads, so that they must
//! reach the view server. The next process is killed when the previous one has been replaced, so the figure also says how
//! long that takes.

use crate::backend::{Backend, Variant};
use crate::cgroup::Limits;
use crate::job::{Folder, Job, Lab, table};
use crate::plot::nanoseconds;
use crate::procfs;
use crate::product::{Pids, Product};
use crate::scope::reap;
use crate::stats::Quantiles;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Arguments of `kills`.
#[derive(clap::Args, Debug)]
pub(crate) struct Kills {
    /// How many kills.
    #[arg(long, default_value_t = 1000)]
    kills: usize,
    /// Containers, one reader each.
    #[arg(long, default_value_t = 100)]
    containers: usize,
    /// Time between two passes of a reader over its five methods, in microseconds.
    #[arg(long, default_value_t = 20_000)]
    interval_us: u64,
    /// Every how many passes the page cache is dropped first; 0 for never.
    #[arg(long, default_value_t = 8)]
    drop_every: u64,
    /// Time between two kills, in milliseconds.
    #[arg(long, default_value_t = 50)]
    pause_ms: u64,
    /// Whose processes are killed, in turn.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "view-server,policy,supervisor,api-server"
    )]
    roles: Vec<Role>,
}

/// One of the agent's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    /// Answers reads.
    ViewServer,
    /// Senses and decides.
    Policy,
    /// Holds the file system.
    Supervisor,
    /// Serves HTTP.
    ApiServer,
}

/// A run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    containers: usize,
    interval_us: u64,
    drop_every: u64,
    seconds: f64,
    kills: BTreeMap<Role, Killed>,
    tallies: Vec<Tally>,
}

/// Kills of one role.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Killed {
    count: usize,
    /// From the kill until the agent answered with another process in that role, in nanoseconds.
    replaced_ns: Quantiles,
    /// How often the agent could not say who it is within the time limit.
    unanswered: usize,
}

/// What all readers counted for one method.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Tally {
    method: String,
    reads: u64,
    failed: u64,
    torn: u64,
    foreign: u64,
    mean_ns: f64,
    max_ns: u64,
    last_errno: i32,
}

impl Job for Kills {
    const NAME: &'static str = "kills";
    type Raw = Raw;

    fn record(&self, lab: &Lab) -> Result<Raw> {
        let backend = lab.start(Variant::Elbowroom)?;
        let Backend::Elbowroom(product) = &backend else { bail!("only Elbowroom has processes to kill") };
        let memory_mib = |i: usize| 64 + i as u64;
        let containers = lab.containers(&backend, "kills-", self.containers, |i| Limits {
            memory_mib: Some(memory_mib(i)),
            ..Limits::default()
        })?;
        let readers: Vec<Child> = containers
            .iter()
            .enumerate()
            .map(|(i, container)| {
                let numbers =
                    [memory_mib(i) * 1024, self.interval_us, self.drop_every].map(|n| n.to_string());
                let args: Vec<String> = numbers.into_iter().chain(["/proc/meminfo".to_owned()]).collect();
                container
                    .reader("verify", &args)
                    .stdin(Stdio::piped())
                    .spawn()
                    .context("while starting a reader")
            })
            .collect::<Result<_>>()?;
        lab.scope.sleep(Duration::from_secs(1))?;
        let began = Instant::now();
        let kills = self.kill_all(lab, product)?;
        let seconds = began.elapsed().as_secs_f64();
        lab.scope.sleep(Duration::from_secs(1))?;
        let mut tallies: BTreeMap<usize, Tally> = BTreeMap::new();
        for reader in readers {
            let out = reader.wait_with_output().context("while waiting for a reader")?;
            anyhow::ensure!(
                out.status.success(),
                "a reader failed: {}",
                String::from_utf8_lossy(&out.stderr).trim()
            );
            let counted: Vec<Tally> =
                serde_json::from_slice(&out.stdout).context("a reader printed no tallies")?;
            counted.iter().enumerate().for_each(|(i, tally)| tallies.entry(i).or_default().add(tally));
        }
        Ok(Raw {
            containers: self.containers,
            interval_us: self.interval_us,
            drop_every: self.drop_every,
            seconds,
            kills,
            tallies: tallies.into_values().collect(),
        })
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        let kills: usize = raw.kills.values().map(|k| k.count).sum();
        let sum = |f: fn(&Tally) -> u64| raw.tallies.iter().map(f).sum::<u64>();
        out.say(format!(
            "{kills} times `kill -9` in {:.0} s under {} readers: {} reads, {} failed, {} torn, {} of another container.",
            raw.seconds,
            raw.containers,
            sum(|t| t.reads),
            sum(|t| t.failed),
            sum(|t| t.torn),
            sum(|t| t.foreign)
        ));
        out.say(format!(
            "Each reader passes over five ways of reading its container's /proc/meminfo every {} ms{}.",
            raw.interval_us as f64 / 1e3,
            match raw.drop_every {
                0 => String::new(),
                n => format!(" and drops the page cache before every {n}th pass, so that those reads reach the view server"),
            }
        ));
        out.say(reads_table(raw));
        out.say(kills_table(raw));
        Ok(())
    }
}

impl Kills {
    fn kill_all(&self, lab: &Lab, product: &Product) -> Result<BTreeMap<Role, Killed>> {
        let mut kills: BTreeMap<Role, (Killed, Vec<u64>)> = BTreeMap::new();
        let mut pids = product.roles()?;
        for n in 0..self.kills {
            let role = self.roles[n % self.roles.len()];
            if n % 100 == 0 {
                eprintln!("{n} of {} kills", self.kills);
            }
            let mut victim = None;
            lab.scope.wait_for("a process to kill", Duration::from_secs(20), || {
                victim = role.of(&pids, product);
                Ok(victim.is_some())
            })?;
            let Some(victim) = victim else { continue };
            let began = Instant::now();
            kill(victim)?;
            let entry = kills.entry(role).or_default();
            entry.0.count += 1;
            let replaced = lab.scope.wait_for("another process", Duration::from_secs(20), || {
                reap(victim);
                match product.roles() {
                    Ok(now) if now.all_alive() && role.of(&now, product).is_some_and(|pid| pid != victim) => {
                        pids = now;
                        Ok(true)
                    }
                    _ => Ok(false),
                }
            });
            product.note(&pids)?;
            match replaced {
                Ok(()) => entry.1.push(began.elapsed().as_nanos() as u64),
                Err(error) => {
                    lab.scope.check()?;
                    entry.0.unanswered += 1;
                    eprintln!("warning: after kill {n} of {role:?}: {error:#}");
                    pids = product.roles().context("the agent did not survive")?;
                }
            }
            lab.scope.sleep(Duration::from_millis(self.pause_ms))?;
        }
        Ok(kills
            .into_iter()
            .map(|(role, (killed, mut ns))| (role, Killed { replaced_ns: Quantiles::of(&mut ns), ..killed }))
            .collect())
    }
}

impl Role {
    fn of(self, pids: &Pids, product: &Product) -> Option<i32> {
        match self {
            Self::ViewServer => Some(pids.view_server),
            Self::Policy => Some(pids.policy),
            Self::Supervisor => Some(pids.supervisor),
            Self::ApiServer => product.api_server(),
        }
    }
}

impl Pids {
    fn all_alive(&self) -> bool {
        [self.supervisor, self.view_server, self.policy]
            .into_iter()
            .all(|pid| pid > 0 && !procfs::is_zombie(pid))
    }
}

impl Tally {
    fn add(&mut self, other: &Self) {
        let sum = self.mean_ns * self.reads as f64 + other.mean_ns * other.reads as f64;
        self.method.clone_from(&other.method);
        self.reads += other.reads;
        self.failed += other.failed;
        self.torn += other.torn;
        self.foreign += other.foreign;
        self.mean_ns = sum / self.reads.max(1) as f64;
        self.max_ns = self.max_ns.max(other.max_ns);
        if other.failed > 0 {
            self.last_errno = other.last_errno;
        }
    }
}

/// A process that another reader of the same list has seen die is not an error.
fn kill(pid: i32) -> Result<()> {
    let pid = Pid::from_raw(pid).context("the agent named no process")?;
    match kill_process(pid, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(e) => Err(e).context("while killing"),
    }
}

fn reads_table(raw: &Raw) -> String {
    let rows: Vec<Vec<String>> = raw
        .tallies
        .iter()
        .map(|t| {
            let failed = match (t.failed, t.last_errno) {
                (0, _) | (_, 0) => t.failed.to_string(),
                (n, errno) => format!("{n} (errno {errno})"),
            };
            vec![
                t.method.clone(),
                t.reads.to_string(),
                failed,
                t.torn.to_string(),
                t.foreign.to_string(),
                nanoseconds(t.mean_ns),
                nanoseconds(t.max_ns as f64),
            ]
        })
        .collect();
    table(&["method", "reads", "failed", "torn", "foreign", "mean", "longest"], &rows)
}

fn kills_table(raw: &Raw) -> String {
    let rows: Vec<Vec<String>> = raw
        .kills
        .iter()
        .map(|(role, killed)| {
            let q = &killed.replaced_ns;
            let mut row = vec![format!("{role:?}"), killed.count.to_string()];
            row.extend([q.p50, q.p99, q.max].map(|ns| nanoseconds(ns as f64)));
            row.push(killed.unanswered.to_string());
            row
        })
        .collect();
    table(&["killed", "times", "replaced within, p50", "p99", "max", "not within 20 s"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_add_up_and_means_are_weighted() {
        let mut sum = Tally::default();
        sum.add(&Tally { method: "read".into(), reads: 1, mean_ns: 10.0, max_ns: 10, ..Tally::default() });
        sum.add(&Tally {
            method: "read".into(),
            reads: 3,
            mean_ns: 20.0,
            max_ns: 30,
            torn: 1,
            ..Tally::default()
        });
        assert_eq!((sum.reads, sum.max_ns, sum.torn), (4, 30, 1));
        assert!((sum.mean_ns - 17.5).abs() < 1e-9);
    }
}
