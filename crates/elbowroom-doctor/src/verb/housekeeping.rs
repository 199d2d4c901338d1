//! `elbowroom housekeeping`: the host's own jobs that nothing limits, and groups of a size for them.

use super::apply::{Change, Manner, apply};
use super::{HostArgs, VERSION, say};
use crate::checks::Facts;
use crate::facts::root_processes;
use crate::strategies::housekeeping::{Job, Kind, Place, jobs, plan};
use anyhow::{Result, bail};
use clap::Args;
use elbowroom_client::control::LoadSources;
use elbowroom_client::output::Format;
use elbowroom_client::table::{Align, clip, table};
use elbowroom_linux::root::Root;
use elbowroom_types::unit::Bytes;
use serde::Serialize;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Jobs that hold less are not listed for people.
const SHOWN: Bytes = Bytes::mib(1);

/// Arguments of `housekeeping`.
#[derive(Args)]
pub struct HousekeepingArgs {
    /// Only these jobs, by the names that the list shows; without, those whose kind keeps house.
    jobs: Vec<String>,
    /// Show what would be written, ask, and write it.
    #[arg(long)]
    apply: bool,
    /// Do not ask.
    #[arg(long, requires = "apply")]
    yes: bool,
    #[command(flatten)]
    host: HostArgs,
}

/// The answer as programs get it.
#[derive(Serialize)]
struct Report<'a> {
    version: u32,
    jobs: &'a [Job],
}

/// Lists the jobs, or gives those that are meant their sizes: 0 when that was done, 1 when not.
pub fn main(args: &HousekeepingArgs, load: LoadSources) -> Result<ExitCode> {
    let format = args.host.output.format;
    let (facts, journal) = args.host.look(load, Duration::ZERO)?;
    let mut found = jobs(&facts, &root_processes(&Root::host()?, &facts));
    if !args.jobs.is_empty() {
        for name in &args.jobs {
            named(name, &found)?;
        }
        found.retain(|j| args.jobs.contains(&j.name));
    }
    if args.apply {
        let meant = |j: &&Job| !args.jobs.is_empty() || j.kind.keeps_house();
        let changes: Vec<Change> = found.iter().filter(meant).filter_map(|job| change(&facts, job)).collect();
        let manner = Manner {
            yes: args.yes,
            format,
            leases: &args.host.state.leases(),
            nothing: "nothing to bound",
            lasting: "until the job ends or the host is started again; to keep it, set the same in its unit, or start it \
                      with `systemd-run --scope -p MemoryHigh=SIZE`\n",
        };
        return apply(&journal, &changes, &manner);
    }
    say(&match format {
        Format::Json => elbowroom_client::output::json(&Report { version: VERSION, jobs: &found })?,
        Format::Text => text(&found, !args.jobs.is_empty()),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses a name that is none, and one that must not be bounded.
fn named(name: &str, found: &[Job]) -> Result<()> {
    match found.iter().find(|j| j.name == *name) {
        None => bail!("there is no job \"{name}\" that nothing limits: `elbowroom housekeeping` lists them"),
        Some(job) if !job.kind.may_be_bounded() => {
            bail!("{name} serves the containers or the host: to slow it down is to slow down all of them")
        }
        Some(job) if job.size.is_none() => bail!(
            "{name} holds {}, for which half of this host is too little: move it, or bound it by hand",
            job.held
        ),
        Some(_) => Ok(()),
    }
}

fn change(facts: &Facts, job: &Job) -> Option<Change> {
    let (fix, placing) = plan(facts, job)?;
    Some(Change { check: "housekeeping".into(), whose: Some(job.name.clone()), fix, placing })
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Remote => "log-in",
        Kind::Cron => "cron",
        Kind::Backup => "backup",
        Kind::Packages => "packages",
        Kind::Logs => "logs",
        Kind::Monitoring => "monitoring",
        Kind::Index => "index",
        Kind::Engine => "engine",
        Kind::System => "system",
        Kind::Other => "other",
    }
}

fn text(found: &[Job], all: bool) -> String {
    let size = |j: &Job| j.held.saturating_add(j.cache.unwrap_or_default());
    let shown: Vec<&Job> = found.iter().filter(|j| all || j.kind.keeps_house() || size(j) >= SHOWN).collect();
    if shown.is_empty() {
        return "nothing of the host's own is without a limit\n".into();
    }
    let heading = [
        ("JOB", Align::Left),
        ("KIND", Align::Left),
        ("WHERE", Align::Left),
        ("HOLDS", Align::Right),
        ("CACHE", Align::Right),
        ("SIZE", Align::Right),
    ];
    let rows: Vec<Vec<String>> = shown
        .iter()
        .map(|job| {
            let place = match &job.place {
                Place::Root(all) if all.len() == 1 => format!("root group, pid {}", all[0].pid),
                Place::Root(all) => format!("root group, {} processes", all.len()),
                Place::Group(path) => path.clone(),
            };
            let bytes =
                |n: Option<Bytes>| n.map_or("-".to_owned(), |n| Bytes(n.get() >> 20 << 20).to_string());
            let size = job.size.filter(|_| job.kind.may_be_bounded());
            let name = clip(&job.name, 20);
            vec![
                name,
                word(job.kind).into(),
                clip(&place, 28),
                bytes(Some(job.held)),
                bytes(job.cache),
                bytes(size),
            ]
        })
        .collect();
    let mut text = table(&heading, &rows);
    let bounded = shown.iter().filter(|j| j.kind.keeps_house() && j.size.is_some()).count();
    let _ = writeln!(
        text,
        "{bounded} keep house and are meant by `elbowroom housekeeping --apply`; others are when they are named"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, kind: Kind, held: Bytes) -> Job {
        Job {
            name: name.into(),
            kind,
            place: Place::Group(format!("/system.slice/{name}")),
            held,
            cache: None,
            size: None,
        }
    }

    #[test]
    fn the_list_says_what_is_meant_and_hides_what_is_small() {
        let all = [
            job("postgres", Kind::Other, Bytes::gib(1)),
            Job { size: Some(Bytes::mib(300)), ..job("cron.service", Kind::Cron, Bytes::kib(900)) },
            job("tiny", Kind::Other, Bytes::kib(900)),
        ];
        assert_eq!(
            text(&all, false),
            "JOB           KIND   WHERE                       HOLDS  CACHE    SIZE\n\
             postgres      other  /system.slice/postgres       1GiB      -       -\n\
             cron.service  cron   /system.slice/cron.service     0B      -  300MiB\n\
             1 keep house and are meant by `elbowroom housekeeping --apply`; others are when they are named\n"
        );
    }

    #[test]
    fn what_serves_containers_is_refused() {
        let all = [job("dockerd", Kind::Engine, Bytes::mib(80)), job("huge", Kind::Other, Bytes::gib(900))];
        assert!(named("dockerd", &all).unwrap_err().to_string().contains("serves the containers"));
        assert!(named("huge", &all).unwrap_err().to_string().contains("half of this host"));
        assert!(named("nobody", &all).is_err());
    }
}
