//! Does anybody die, or wait for memory at its own limit, who would not have without the governor?
//!
//! A cgroup stands for the machine. In it are givers, whose memory is of one kind, who use all of it and who say that they need
//! no more; and a needer that says it is starved, whatever it gets, so that the governor takes from givers as much as it ever
//! will. Every giver also allocates and frees without pause: if a limit is ever set below what it uses, that is when it shows.
//! All of it fits, with room to spare, so nobody dies without an agent.
//!
//! Once more the needer has a claim to most of the room, so that givers have more than they are owed: what was lent is called back,
//! and protected where the kernel can. What givers go over in their time says what the governor costs them.

use crate::cgroup::Limits;
use crate::container::Container;
use crate::job::{Folder, Job, Lab, now_ns, table};
use crate::jobs::memory::policy::LEAVE_ALONE;
use crate::jobs::memory::voice::Voice;
use crate::procfs;
use crate::product::Product;
use crate::scope::Scope;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

/// Memory of what stands for the machine, in MiB.
const MACHINE_MIB: u64 = 768;
/// What the givers use together, in MiB.
const GIVERS_MIB: u64 = 320;
/// What the needer holds, and reads over and over, in MiB: more than is free.
const NEEDER_MIB: [u64; 2] = [128, 512];
/// What the needer is owed where it has a claim, in MiB: what is left is less than the givers use.
const CLAIM_MIB: u64 = 640;
/// What each giver allocates and frees, in MiB, and how long it holds it, in milliseconds.
const BURST: (u64, u64) = (4, 400);
/// Of a scan, in MiB per second.
const SCAN_MIB_PER_S: u64 = 400;

/// Arguments of `memory-harm`.
#[derive(clap::Args, Debug)]
pub(crate) struct MemoryHarm {
    /// How long each case is looked at.
    #[arg(long, value_name = "S", default_value_t = 40, value_parser = clap::value_parser!(u64).range(10..=600))]
    seconds: u64,
    /// How many givers there are, one case after the other.
    #[arg(long, value_delimiter = ',', default_value = "1,50", value_parser = clap::value_parser!(u64).range(1..=50))]
    givers: Vec<u64>,
}

/// What a giver's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// Anonymous, which goes nowhere without swap.
    Anon,
    /// Page cache.
    Cache,
    /// As of a tmpfs.
    Shm,
    /// Locked.
    Locked,
}

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Case {
    kind: Kind,
    givers: u64,
    /// Whether an agent governs.
    governed: bool,
    /// Whether it knows of a claim.
    #[serde(default)]
    claim: bool,
}

/// What became of a case.
#[derive(Debug, Serialize, Deserialize)]
struct Outcome {
    case: Case,
    /// Programs that did not reach their end.
    died: u64,
    /// Processes killed for memory, as the kernel counts them.
    oom_kill: u64,
    /// Times that a giver, none of whom has a limit, was at one.
    limit_hit: u64,
    /// What the governor took from all, in MiB.
    taken_mib: u64,
    /// Whether the machine has swap.
    swap: bool,
    /// What the givers went over, those whose memory is in use, in MiB; older results do not have it.
    #[serde(default)]
    gone_over_mib: Option<u64>,
}

/// All cases.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    seconds: u64,
    outcomes: Vec<Outcome>,
}

impl Job for MemoryHarm {
    const NAME: &'static str = "memory-harm";
    type Raw = Raw;

    fn record(&self, lab: &Lab) -> Result<Raw> {
        ensure!(lab.maker.is_own(), "only the lab's own containers share a cgroup: --engine own");
        let limits = Limits { memory_mib: Some(MACHINE_MIB), ..Limits::default() };
        let _around = lab.maker.group("machine", &limits)?;
        let holes = lab.scope.dir().join("holes");
        File::create(&holes)
            .and_then(|file| file.set_len(NEEDER_MIB[1] << 20))
            .context("while making a file of holes")?;
        let mut outcomes = Vec::new();
        for kind in [Kind::Anon, Kind::Cache, Kind::Shm, Kind::Locked] {
            for givers in self.givers.iter().copied() {
                for (governed, claim) in [(false, false), (true, false), (true, true)] {
                    let case = Case { kind, givers, governed, claim };
                    eprintln!("{}, governed: {}", case.name(), case.governor());
                    outcomes.push(self.run(lab, case, &holes).with_context(|| case.name())?);
                }
            }
        }
        Ok(Raw { seconds: self.seconds, outcomes })
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        out.say(format!(
            "Givers that use {GIVERS_MIB} MiB together, allocate and free {} MiB without pause, and say that they need no more; \
             a needer that holds {} MiB, reads {} MiB of files over and over and says that it is starved; {MACHINE_MIB} MiB for all. \
             Each case {} s.",
            BURST.0, NEEDER_MIB[0], NEEDER_MIB[1], raw.seconds
        ));
        let has_work = raw.outcomes.iter().any(|outcome| outcome.gone_over_mib.is_some());
        let row = |outcome: &Outcome| {
            let mut row = vec![
                outcome.case.name(),
                outcome.case.governor().to_owned(),
                if outcome.swap { "yes" } else { "no" }.to_owned(),
                outcome.taken_mib.to_string(),
                outcome.died.to_string(),
                outcome.oom_kill.to_string(),
                outcome.limit_hit.to_string(),
            ];
            row.extend(has_work.then(|| raw.work(outcome).unwrap_or("-".to_owned())));
            row
        };
        let mut head =
            vec!["givers", "governed", "swap", "MiB taken", "died", "killed for memory", "at a limit"];
        head.extend(has_work.then_some("work of givers"));
        out.say(table(&head, &raw.outcomes.iter().map(row).collect::<Vec<_>>()));
        Ok(())
    }
}

impl Raw {
    /// What the givers of a case did, as a part of what those did that nobody governed.
    fn work(&self, outcome: &Outcome) -> Option<String> {
        let alone = Case { governed: false, claim: false, ..outcome.case };
        let alone = self.outcomes.iter().find(|other| other.case == alone)?.gone_over_mib?;
        Some(format!("{:.0} %", 100.0 * outcome.gone_over_mib? as f64 / alone as f64))
    }
}

impl Case {
    fn governor(self) -> &'static str {
        match (self.governed, self.claim) {
            (false, _) => "no",
            (true, false) => "yes",
            (true, true) => "with a claim",
        }
    }

    fn name(self) -> String {
        let kind = match self.kind {
            Kind::Anon => "anonymous memory",
            Kind::Cache => "page cache",
            Kind::Shm => "tmpfs",
            Kind::Locked => "locked memory",
        };
        format!("{} with {kind}", self.givers)
    }
}

impl MemoryHarm {
    fn run(&self, lab: &Lab, case: Case, holes: &Path) -> Result<Outcome> {
        let word = match (case.governed, case.claim) {
            (false, _) => "free",
            (true, false) => "governed",
            (true, true) => "claimed",
        };
        let each = GIVERS_MIB / case.givers;
        let make = |i: u64| lab.maker.make(&format!("machine/{word}-giver{i}"), &Limits::default(), &[]);
        let givers = (0..case.givers).map(make).collect::<Result<Vec<_>>>()?;
        let needer = lab.maker.make(&format!("machine/{word}-needer"), &Limits::default(), &[])?;
        let files = (0..case.givers).map(|i| giver_file(&lab.scope, i, each)).collect::<Result<Vec<_>>>()?;
        let all: Vec<(&Container, Voice)> = givers
            .iter()
            .chain([&needer])
            .enumerate()
            .map(|(i, container)| {
                let file = lab.scope.dir().join(format!("{i}.probe"));
                (container, Voice { file, objective: 1000 })
            })
            .collect();
        let settings = || settings(&all, case.claim.then_some(&needer));
        let agent = case.governed.then(|| lab.agent(&format!("machine/{word}"), &settings())).transpose()?;
        let start = now_ns();
        let mut programs: Vec<Child> = Vec::new();
        for (giver, file) in givers.iter().zip(&files) {
            programs.push(plan(giver, start, &self.giver(case.kind, each), file)?);
        }
        let end = self.seconds * 1000;
        let needs =
            [word4("use", 0, 1000, NEEDER_MIB[0], Some(end)), word4("scan", 0, end, SCAN_MIB_PER_S, None)];
        programs.push(plan(&needer, start, &needs.concat(), holes)?);
        for _ in 0..self.seconds {
            lab.scope.sleep(Duration::from_secs(1))?;
            for (container, voice) in &all {
                let served = if container.name == needer.name { 1.0 } else { 1000.0 };
                voice.say(served, 1000.0)?;
            }
        }
        let taken_mib = agent.as_ref().map(taken).transpose()?.unwrap_or(0) >> 20;
        let mut outcome = Outcome {
            case,
            died: 0,
            oom_kill: 0,
            limit_hit: 0,
            taken_mib,
            swap: procfs::swap_mib()? > 0,
            gone_over_mib: None,
        };
        for (i, program) in programs.into_iter().enumerate() {
            let ended = program.wait_with_output().context("while waiting for a load")?;
            outcome.died += u64::from(!ended.status.success());
            // The last one is the needer's.
            if i < givers.len() && case.kind != Kind::Locked {
                *outcome.gone_over_mib.get_or_insert(0) += gone_over(&ended.stdout).unwrap_or(0);
            }
        }
        for container in givers.iter().chain([&needer]) {
            outcome.oom_kill += container.cgroups.oom_kills()?;
        }
        for giver in &givers {
            outcome.limit_hit += giver.cgroups.memory_stat()?.get("limit_hit").copied().unwrap_or(0);
        }
        drop(agent);
        Ok(outcome)
    }

    /// What it holds, and the bursts beside it.
    fn giver(&self, kind: Kind, mib: u64) -> Vec<String> {
        let end = self.seconds * 1000;
        let holds = match kind {
            Kind::Anon => word4("use", 0, 1000, mib, Some(end)),
            Kind::Shm => word4("shm", 0, 1000, mib, Some(end)),
            Kind::Locked => word4("lock", 0, 1000, mib, Some(end)),
            Kind::Cache => word4("scan", 0, end, SCAN_MIB_PER_S.min(mib * 4), None),
        };
        // A scan's last word is the file, which is the plan's: it goes last.
        [word4("churn", 1000, end, BURST.0, Some(BURST.1)), holds].concat()
    }
}

fn word4(kind: &str, from: u64, to: u64, mib: u64, last: Option<u64>) -> Vec<String> {
    let numbers = [Some(from), Some(to), Some(mib), last].into_iter().flatten();
    std::iter::once(kind.to_owned()).chain(numbers.map(|n| n.to_string())).collect()
}

/// A plan whose last part may be a scan of `file`.
fn plan(container: &Container, start: u64, words: &[String], file: &Path) -> Result<Child> {
    let mut args = vec![start.to_string()];
    args.extend_from_slice(words);
    if words.len() >= 4 && words[words.len() - 4] == "scan" {
        args.push(file.display().to_string());
    }
    container.reader("load", &args).spawn().context("while starting a load")
}

/// A file of holes, which takes page cache and nothing of the disk.
fn giver_file(scope: &Scope, i: u64, mib: u64) -> Result<PathBuf> {
    let path = scope.dir().join(format!("{i}.holes"));
    File::create(&path).and_then(|file| file.set_len(mib << 20)).context("while making a file of holes")?;
    Ok(path)
}

/// What a load says at its end: `1204 MiB`.
fn gone_over(said: &[u8]) -> Option<u64> {
    str::from_utf8(said).ok()?.trim_end().strip_suffix(" MiB")?.parse().ok()
}

/// Everybody is promised a little; who lies is promised no more, unless it has a claim.
fn settings(all: &[(&Container, Voice)], claim: Option<&Container>) -> Vec<String> {
    let list =
        |entry: &dyn Fn(&(&Container, Voice)) -> String| all.iter().map(entry).collect::<Vec<_>>().join(", ");
    let probes = list(&|(container, voice)| {
        format!("{{ container = \"{}\", file = \"{}\" }}", container.id, voice.file.display())
    });
    let mut lines = vec![
        "sense.period = \"500ms\"".to_owned(),
        "memory.mode = \"enforce\"".to_owned(),
        LEAVE_ALONE.to_owned(),
        format!("probes = [{probes}]"),
    ];
    lines.extend(claim.map(|container| {
        let id = &container.id;
        format!("claims = [{{ container = \"{id}\", memory = {{ reserve = \"{CLAIM_MIB}MiB\" }} }}]")
    }));
    lines
}

/// What an agent's memory governor took since it started, in bytes.
fn taken(agent: &Product) -> Result<u64> {
    let answer: Value =
        serde_json::from_str(&agent.ask(&["check"])?).context("while reading `elbowroom check`")?;
    answer["agent"]["memory"]["reclaimed_bytes"].as_u64().context("the agent says not what it took")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_use_fits_and_what_the_needer_reads_does_not() {
        let threads = 50; // and their processes: less than a MiB for each giver
        let used = GIVERS_MIB + NEEDER_MIB[0] + 50 * BURST.0 + threads;
        assert!(used < MACHINE_MIB && used + NEEDER_MIB[1] > MACHINE_MIB);
        const { assert!(CLAIM_MIB < MACHINE_MIB && MACHINE_MIB - CLAIM_MIB < GIVERS_MIB) };
    }

    #[test]
    fn work_is_a_part_of_what_was_done_without_a_governor() {
        let outcome = |governed, claim, gone_over_mib| Outcome {
            case: Case { kind: Kind::Anon, givers: 1, governed, claim },
            died: 0,
            oom_kill: 0,
            limit_hit: 0,
            taken_mib: 0,
            swap: false,
            gone_over_mib,
        };
        let outcomes = vec![
            outcome(false, false, gone_over(b"200 MiB\n")),
            outcome(true, false, Some(199)),
            outcome(true, true, Some(150)),
        ];
        let raw = Raw { seconds: 10, outcomes };
        let work: Vec<_> = raw.outcomes.iter().map(|outcome| raw.work(outcome).unwrap()).collect();
        assert_eq!(work, ["100 %", "100 %", "75 %"]);
    }

    #[test]
    fn a_giver_of_cache_names_its_file_last() {
        let words = MemoryHarm { seconds: 10, givers: Vec::new() }.giver(Kind::Cache, 320);
        assert_eq!(words[words.len() - 4..], ["scan", "0", "10000", "400"].map(str::to_owned));
        assert_eq!(words[..5], ["churn", "1000", "10000", "4", "400"].map(str::to_owned));
    }
}
