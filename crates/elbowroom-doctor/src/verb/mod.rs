//! `elbowroom doctor` and `elbowroom undo`: look, say, and fix if asked; and the strategies `pretouch`, `housekeeping` and
//! `protect`.

mod agent;
mod apply;
mod fix;
pub mod housekeeping;
mod list;
pub mod pretouch;
pub mod protect;
mod report;
mod since;
pub mod size;
mod undo;

pub use undo::{UndoArgs, undo};

use crate::checks::{CHECKS, CgroupFacts, HostFacts, examine, is_harmful};
use crate::facts::{CounterSampleStore, DoctorConfig, LastCounterSample, collect_facts};
use crate::fixes::journal::Journal;
use agent::AgentKnowledge;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use elbowroom_client::control::{LoadSources, running_config};
use elbowroom_client::output::{Format, OutputArgs, ask, write_stdout};
use elbowroom_linux::bounded::LineReader;
use elbowroom_linux::root::Root;
use elbowroom_linux::timer::now_boot;
use elbowroom_linux::{lease, process};
use elbowroom_types::finding::DoctorFinding;
use elbowroom_types::lookup::{ContainerNames, LookupError, find_container};
use elbowroom_types::unit::{Micros, parse_duration};
use elbowroom_types::verdict::Verdict;
use elbowroom_types::visible::Visible;
use serde::Serialize;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Version of the JSON form: fields are added, never removed or renamed, within one.
const VERSION: u32 = 1;

/// Arguments of `doctor`.
#[derive(Args)]
pub struct DoctorArgs {
    /// Only this container: name, beginning of an id, or cgroup path.
    container: Option<String>,
    /// Time between the two looks that rates are taken from.
    #[arg(long = "for", value_name = "DURATION", default_value = "1s", value_parser = parse_duration, conflicts_with = "since")]
    wait: Micros,
    /// Compare with a look that was kept then, instead of one that is made now: a duration ("2h"), a time in UTC
    /// ("2026-11-21T04:30Z"), or seconds since the epoch ("@1795235400").
    #[arg(long, value_name = "TIME", value_parser = since::parse_past_time)]
    since: Option<since::PastTime>,
    /// Compare with the look in FILE, where there is one since the host was started, and leave this one there.
    #[arg(long, value_name = "FILE", conflicts_with = "since")]
    since_last: Option<PathBuf>,
    /// Keep this look, for --since.
    #[arg(long)]
    keep: bool,
    /// Everything: notes, and every container one by one.
    #[arg(long)]
    all: bool,
    /// Show what would be written, ask, and write it; of one check, or of all that harms.
    #[arg(long, value_name = "CHECK", num_args = 0..=1)]
    fix: Option<Option<String>>,
    /// Do not ask.
    #[arg(long, requires = "fix")]
    yes: bool,
    /// Print the table of checks, and do not look at the host.
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    host: HostFactsArgs,
}

/// What every look at the host needs.
#[derive(Args)]
pub(crate) struct HostFactsArgs {
    /// Configuration file, for what counts as a container; without it the running agent's, or /etc/elbowroom/elbowroom.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    state: StateDirArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl HostFactsArgs {
    /// Looks at the host twice, `wait` apart; with the journal of what was changed.
    fn collect_facts(&self, load: LoadSources, wait: Duration) -> Result<(HostFacts, Journal)> {
        let journal = Journal::at(&self.state.state_dir);
        let config = self.config.clone().or_else(|| running_config(&self.state.run_dir));
        let config = DoctorConfig {
            root: PathBuf::from("/"),
            containers: load(config.as_deref())?,
            leases: self.state.leases(),
            wait,
        };
        let facts =
            collect_facts(&config, journal.applied(&Root::host()?)?).context("looking at the host")?;
        Ok((facts, journal))
    }
}

/// Where fixes are written down, and what the agent holds.
#[derive(Args)]
pub(crate) struct StateDirArgs {
    /// Directory where fixes are written down.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/elbowroom", env = "ELBOWROOM_STATE_DIR")]
    state_dir: PathBuf,
    #[arg(from_global)]
    run_dir: PathBuf,
}

impl StateDirArgs {
    /// The agent's ledger of leases.
    fn leases(&self) -> PathBuf {
        self.run_dir.join(lease::DIR)
    }
}

/// The answer as programs get it.
#[derive(Serialize)]
struct FindingsOutput<'a> {
    version: u32,
    /// The agent's verdict of the one container that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<&'a Verdict>,
    healthy: bool,
    elapsed_seconds: f64,
    containers: usize,
    checks: usize,
    /// CPU time that looking took.
    cpu_usec: u64,
    findings: &'a [DoctorFinding],
}

/// `elbowroom doctor`: 0 healthy, 1 findings.
pub fn doctor(args: &DoctorArgs, load: LoadSources) -> Result<ExitCode> {
    let format = args.host.output.format;
    if args.list {
        write_stdout(&list::check_list(format)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(Some(check)) = &args.fix
        && !CHECKS.iter().any(|c| c.id == check)
    {
        bail!("there is no check \"{check}\": `elbowroom doctor --list` names them");
    }
    let last = args.since_last.as_deref().map(LastCounterSample::at);
    let earlier = last.as_ref().map(LastCounterSample::find).transpose()?.flatten();
    let wait = match (&args.since, &earlier) {
        (Some(_), _) => Micros::ZERO,
        // Rates of an instant say nothing.
        (None, Some(earlier)) => args.wait.saturating_sub(now_boot().saturating_sub(earlier.at)),
        (None, None) => args.wait,
    };
    let (mut facts, journal) = args.host.collect_facts(load, Duration::from_micros(wait.get()))?;
    let (now, at) = (since::unix_seconds(), now_boot());
    let this = facts.snapshot(at);
    let looks = CounterSampleStore::at(&args.host.state.state_dir);
    if let Some(moment) = args.since {
        facts = since::compare_with_past(facts, &looks, moment)?;
    } else if let Some(earlier) = earlier {
        facts = facts.since(earlier, at);
    }
    let exit = report_or_fix(args, &facts, &journal)?;
    if let Some(last) = last {
        last.save(this.clone())?;
    }
    if args.keep {
        looks.save(now, this)?;
    }
    Ok(exit)
}

/// Says what is found, or mends it.
fn report_or_fix(args: &DoctorArgs, facts: &HostFacts, journal: &Journal) -> Result<ExitCode> {
    let format = args.host.output.format;
    let mut agent = AgentKnowledge::open(&args.host.state.run_dir);
    let deaths = agent.killed_and_gone(facts);
    let find = |name: &str| {
        let dead = deaths.iter().find(|death| death.container.as_deref() == Some(name));
        match (container_called(facts, name), dead.and_then(|death| death.cgroup.clone())) {
            (Ok(group), _) => Ok(group.path.clone()),
            (Err(_), Some(path)) => Ok(path),
            (Err(error), None) => Err(error),
        }
    };
    let only = args.container.as_deref().map(find).transpose()?;
    let asked = |f: &DoctorFinding| only.as_ref().is_none_or(|path| f.cgroup.as_ref() == Some(path));
    if let Some(check) = &args.fix {
        let wanted =
            |f: &DoctorFinding| asked(f) && check.as_ref().map_or(is_harmful(f), |id| f.check == *id);
        return fix::apply_fixes(facts, journal, wanted, args.yes, format, &args.host.state.leases());
    }
    let found = agent::with_deaths(deaths, examine(facts));
    let findings: Vec<DoctorFinding> = found.into_iter().filter(asked).collect();
    let verdict = only.as_ref().and_then(|path| agent.verdict(path));
    let healthy = !findings.iter().any(is_harmful) && !verdict.as_ref().is_some_and(|v| v.status.hurts());
    let text = match format {
        Format::Data(data) => Visible::from(&data.document(&FindingsOutput {
            version: VERSION,
            verdict: verdict.as_ref(),
            healthy,
            elapsed_seconds: facts.elapsed.get() as f64 / 1e6,
            containers: facts.containers().count(),
            checks: CHECKS.len(),
            cpu_usec: process::own_cpu_time().get(),
            findings: &findings,
        })?),
        Format::Text => {
            let style = report::ReportStyle::of_stdout();
            report::report(facts, verdict.as_ref(), &findings, args.all, style)
        }
    };
    write_stdout(text)?;
    Ok(ExitCode::from(u8::from(!healthy)))
}

/// The one container that is meant.
fn container_called<'a>(facts: &'a HostFacts, name: &str) -> Result<&'a CgroupFacts> {
    let containers: Vec<&CgroupFacts> = facts.containers().collect();
    let known = containers.iter().map(|group| group.container.as_ref().map(|c| c.names(&group.path)));
    let names: Vec<ContainerNames<'_>> = known.map(Option::unwrap_or_default).collect();
    find_container(&names, name).map(|place| containers[place]).map_err(|error| match error {
        LookupError::Unknown { meant: None, .. } => {
            anyhow!("{error}: `elbowroom list` shows those that run")
        }
        error => error.into(),
    })
}

/// The most bytes of an answer to a question: a terminal's line.
const MAX_ANSWER_BYTES: u64 = 4096;

/// Asks on the terminal; no where there is no terminal.
fn confirm(question: &str) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    ask(&format!("{question} (y/N) "));
    let mut answer = Vec::new();
    LineReader::new(std::io::stdin().lock(), MAX_ANSWER_BYTES).next_line(&mut answer)?;
    Ok(matches!(answer.trim_ascii(), b"y" | b"Y" | b"yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_like_none_is_told_where_the_names_are() {
        let error = container_called(&HostFacts::default(), "nosuch").unwrap_err().to_string();
        assert_eq!(error, "no container \"nosuch\": `elbowroom list` shows those that run");
    }
}
