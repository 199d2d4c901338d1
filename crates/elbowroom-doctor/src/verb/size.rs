//! `elbowroom size`: limits that hold a container and the page cache it works with.

use super::apply::{Change, Manner, apply};
use super::{HostArgs, VERSION, fix, say, select};
use crate::checks::{Facts, Group};
use crate::strategies::size::{Room, Size, room, size};
use anyhow::Result;
use clap::Args;
use elbowroom_client::control::LoadSources;
use elbowroom_client::output::Format;
use elbowroom_client::output::json;
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
    /// How long to look: at least as long as the work takes that is to be cached.
    #[arg(long = "for", value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    duration: Micros,
    /// Raise the limit, after showing it and asking.
    #[arg(long, requires = "container")]
    apply: bool,
    /// Do not ask.
    #[arg(long, requires = "apply")]
    yes: bool,
    #[command(flatten)]
    host: HostArgs,
}

/// The answer as programs get it.
#[derive(Serialize)]
struct Report {
    version: u32,
    elapsed_seconds: f64,
    containers: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    container: String,
    path: String,
    #[serde(flatten)]
    size: Size,
    /// Whether the limit holds what is needed.
    enough: bool,
}

/// 0 when the limits hold what is needed, 1 when one does not.
pub fn main(args: &SizeArgs, load: LoadSources) -> Result<ExitCode> {
    let format = args.host.output.format;
    let (facts, journal) = args.host.look(load, Duration::from_micros(args.duration.get()))?;
    let groups: Vec<&Group> = match &args.container {
        Some(name) => vec![select(&facts, name)?],
        None => facts.containers().collect(),
    };
    if !args.apply {
        return report(&facts, &groups, format);
    }
    let group = groups[0];
    let needed = size(&facts, group);
    let change = match room(&facts, group, &needed) {
        Room::Enough => None,
        Room::Raise(fix) => {
            Some(Change { check: "size".into(), whose: Some(group.name()), fix, placing: None })
        }
        Room::Held => {
            eprintln!(
                "elbowroom: {} needs {} and stays at its limit: a cgroup around it has less, or this host has not twice as much \
                 available: raise that one first, or move it",
                group.name(),
                needed.need
            );
            return Ok(ExitCode::from(1));
        }
    };
    let changes: Vec<Change> = change.into_iter().collect();
    let nothing = format!("{} has room: it needs {}", group.name(), needed.need);
    let lasting = fix::lasting(&changes);
    let leases = args.host.state.leases();
    apply(
        &journal,
        &changes,
        &Manner { yes: args.yes, format, leases: &leases, nothing: &nothing, lasting: &lasting },
    )
}

fn report(facts: &Facts, groups: &[&Group], format: Format) -> Result<ExitCode> {
    let rows: Vec<Row> = groups
        .iter()
        .map(|group| {
            let size = size(facts, group);
            let enough = room(facts, group, &size) == Room::Enough;
            Row { container: group.name(), path: group.path.clone(), size, enough }
        })
        .collect();
    let all = rows.iter().all(|row| row.enough);
    say(&match format {
        Format::Json => json(&Report {
            version: VERSION,
            elapsed_seconds: facts.elapsed.get() as f64 / 1e6,
            containers: rows,
        })?,
        Format::Text => text(&rows),
    })?;
    Ok(ExitCode::from(u8::from(!all)))
}

fn text(rows: &[Row]) -> String {
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
    let cells = |row: &Row| {
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
