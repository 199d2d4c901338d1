//! `elbowroom size`: limits that hold a container and the page cache it works with.

use super::apply::{ApplyOptions, PlannedFix, apply};
use super::{HostFactsArgs, VERSION, container_called, fix};
use crate::checks::sizing::{LimitSizing, estimate_need};
use crate::checks::{CgroupFacts, HostFacts};
use crate::strategies::size::{LimitAdvice, limit_advice};
use anyhow::Result;
use clap::Args;
use elbowroom_client::control::LoadSources;
use elbowroom_client::output::{Format, say, write_stdout};
use elbowroom_client::table::{Align, clip, table};
use elbowroom_types::unit::{Micros, parse_duration};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `size`.
#[derive(Args)]
pub struct SizeArgs {
    /// Name, beginning of an id, or cgroup path; without it every container.
    container: Option<String>,
    /// How long to measure: at least as long as a run of the work whose files are to be cached.
    #[arg(long = "for", value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    duration: Micros,
    /// Raise the limit, after showing it and asking.
    #[arg(long, requires = "container")]
    apply: bool,
    /// Do not ask.
    #[arg(long, requires = "apply")]
    yes: bool,
    #[command(flatten)]
    host: HostFactsArgs,
}

/// The answer as programs get it.
#[derive(Serialize)]
struct SizeOutput {
    version: u32,
    elapsed_seconds: f64,
    containers: Vec<SizeRow>,
}

#[derive(Serialize)]
struct SizeRow {
    container: String,
    path: String,
    #[serde(flatten)]
    size: LimitSizing,
    /// Whether the limit holds what is needed.
    enough: bool,
}

/// 0 when the limits hold what is needed, 1 when one does not.
pub fn main(args: &SizeArgs, load: LoadSources) -> Result<ExitCode> {
    let format = args.host.output.format;
    let (facts, journal) = args.host.collect_facts(load, Duration::from_micros(args.duration.get()))?;
    let groups: Vec<&CgroupFacts> = match &args.container {
        Some(name) => vec![container_called(&facts, name)?],
        None => facts.containers().collect(),
    };
    if !args.apply {
        return report(&facts, &groups, format);
    }
    let group = groups[0];
    let needed = estimate_need(&facts, group);
    let change = match limit_advice(&facts, group, &needed) {
        LimitAdvice::Enough => None,
        LimitAdvice::Raise(fix) => {
            Some(PlannedFix { check: "size".into(), subject: Some(group.name()), fix, placement: None })
        }
        LimitAdvice::Blocked => {
            say(&format!(
                "elbowroom: {} needs {} and stays at its limit: a cgroup around it has less, or this host has not twice as much \
                 available: raise the limit of that cgroup first, or move it",
                group.name(),
                needed.need
            ));
            return Ok(ExitCode::from(1));
        }
    };
    let changes: Vec<PlannedFix> = change.into_iter().collect();
    let nothing = format!("{} has room: it needs {}", group.name(), needed.need);
    let lasting = fix::persistence_hint(&changes);
    let leases = args.host.state.leases();
    apply(
        &journal,
        &changes,
        &ApplyOptions {
            yes: args.yes,
            format,
            leases: &leases,
            nothing_message: &nothing,
            persistence_hint: &lasting,
        },
    )
}

fn report(facts: &HostFacts, groups: &[&CgroupFacts], format: Format) -> Result<ExitCode> {
    let rows: Vec<SizeRow> = groups
        .iter()
        .map(|group| {
            let size = estimate_need(facts, group);
            let enough = limit_advice(facts, group, &size) == LimitAdvice::Enough;
            SizeRow { container: group.name(), path: group.path.clone(), size, enough }
        })
        .collect();
    let all = rows.iter().all(|row| row.enough);
    write_stdout(&match format {
        Format::Data(data) => data.document(&SizeOutput {
            version: VERSION,
            elapsed_seconds: facts.elapsed.get() as f64 / 1e6,
            containers: rows,
        })?,
        Format::Text => text(&rows),
    })?;
    Ok(ExitCode::from(u8::from(!all)))
}

fn text(rows: &[SizeRow]) -> String {
    let heading = [
        ("CONTAINER", Align::Left),
        ("LIMIT", Align::Right),
        ("ANON", Align::Right),
        ("OTHER", Align::Right),
        ("CACHE", Align::Right),
        ("IDLE", Align::Right),
        ("REREAD", Align::Right),
        ("NEEDS", Align::Right),
        ("", Align::Left),
    ];
    let cells = |row: &SizeRow| {
        let size = &row.size;
        vec![
            clip(&row.container, 24),
            size.limit.map_or("max".to_owned(), |limit| limit.to_string()),
            size.anon.to_string(),
            size.other.to_string(),
            size.working_cache.to_string(),
            size.idle_cache.to_string(),
            size.reread.to_string(),
            size.need.to_string(),
            if row.enough { "" } else { "too small" }.to_owned(),
        ]
    };
    table(&heading, &rows.iter().map(cells).collect::<Vec<_>>())
}
