//! `elbowroom housekeeping`: the host's own jobs that nothing limits, and groups of a size for them.

use super::apply::{ApplyOptions, PlannedFix, apply};
use super::{HostFactsArgs, VERSION};
use crate::checks::HostFacts;
use crate::facts::root_processes;
use crate::strategies::housekeeping::{HousekeepingJob, JobKind, JobLocation, jobs, plan};
use anyhow::{Result, bail};
use clap::Args;
use elbowroom_client::control::LoadSources;
use elbowroom_client::output::{Format, write_stdout};
use elbowroom_client::table::{Align, clip, table};
use elbowroom_linux::root::Root;
use elbowroom_types::unit::Bytes;
use serde::Serialize;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Jobs that hold less are not listed for people.
const MIN_LISTED: Bytes = Bytes::mib(1);

/// Arguments of `housekeeping`.
#[derive(Args)]
pub struct HousekeepingArgs {
    /// Only these jobs, by the names that the list shows; without, those that are housekeeping by their kind.
    jobs: Vec<String>,
    /// Show what would be written, ask, and write it.
    #[arg(long)]
    apply: bool,
    /// Do not ask.
    #[arg(long, requires = "apply")]
    yes: bool,
    #[command(flatten)]
    host: HostFactsArgs,
}

/// The answer as programs get it.
#[derive(Serialize)]
struct HousekeepingOutput<'a> {
    version: u32,
    jobs: &'a [HousekeepingJob],
}

/// Lists the jobs, or gives those that are meant their sizes: 0 when that was done, 1 when not.
pub fn main(args: &HousekeepingArgs, load: LoadSources) -> Result<ExitCode> {
    let format = args.host.output.format;
    let (facts, journal) = args.host.collect_facts(load, Duration::ZERO)?;
    let mut found = jobs(&facts, &root_processes(&Root::host()?, &facts));
    if !args.jobs.is_empty() {
        for name in &args.jobs {
            check_job_name(name, &found)?;
        }
        found.retain(|j| args.jobs.contains(&j.name));
    }
    if args.apply {
        let meant = |j: &&HousekeepingJob| !args.jobs.is_empty() || j.kind.is_housekeeping();
        let changes: Vec<PlannedFix> =
            found.iter().filter(meant).filter_map(|job| planned_fix(&facts, job)).collect();
        let manner = ApplyOptions {
            yes: args.yes,
            format,
            leases: &args.host.state.leases(),
            nothing_message: "nothing to bound",
            persistence_hint: "until the job ends or the host is started again; to keep it, set the same in its unit, or start it \
                      with `systemd-run --scope -p MemoryHigh=SIZE`\n",
        };
        return apply(&journal, &changes, &manner);
    }
    write_stdout(&match format {
        Format::Data(data) => data.document(&HousekeepingOutput { version: VERSION, jobs: &found })?,
        Format::Text => text(&found, !args.jobs.is_empty()),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses a name that is none, and one that must not be bounded.
fn check_job_name(name: &str, found: &[HousekeepingJob]) -> Result<()> {
    match found.iter().find(|j| j.name == *name) {
        None => bail!("there is no job \"{name}\" that nothing limits: `elbowroom housekeeping` lists them"),
        Some(job) if !job.kind.may_be_limited() => {
            bail!("{name} serves the containers or the host: to slow it down is to slow down all of them")
        }
        Some(job) if job.size.is_none() => bail!(
            "{name} holds {}, for which half of this host is too little: move it, or bound it by hand",
            job.held
        ),
        Some(_) => Ok(()),
    }
}

fn planned_fix(facts: &HostFacts, job: &HousekeepingJob) -> Option<PlannedFix> {
    let (fix, placing) = plan(facts, job)?;
    Some(PlannedFix {
        check: "housekeeping".into(),
        subject: Some(job.name.clone()),
        fix,
        placement: placing,
    })
}

fn kind_name(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Remote => "log-in",
        JobKind::Cron => "cron",
        JobKind::Backup => "backup",
        JobKind::Packages => "packages",
        JobKind::Logs => "logs",
        JobKind::Monitoring => "monitoring",
        JobKind::Index => "index",
        JobKind::Engine => "engine",
        JobKind::System => "system",
        JobKind::Other => "other",
    }
}

fn text(found: &[HousekeepingJob], all: bool) -> String {
    let size = |j: &HousekeepingJob| j.held.saturating_add(j.cache.unwrap_or_default());
    let shown: Vec<&HousekeepingJob> =
        found.iter().filter(|j| all || j.kind.is_housekeeping() || size(j) >= MIN_LISTED).collect();
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
                JobLocation::Root(all) if all.len() == 1 => format!("root group, pid {}", all[0].pid),
                JobLocation::Root(all) => format!("root group, {} processes", all.len()),
                JobLocation::Group(path) => path.clone(),
            };
            let bytes =
                |n: Option<Bytes>| n.map_or("-".to_owned(), |n| Bytes(n.get() >> 20 << 20).to_string());
            let size = job.size.filter(|_| job.kind.may_be_limited());
            let name = clip(&job.name, 20);
            vec![
                name,
                kind_name(job.kind).into(),
                clip(&place, 28),
                bytes(Some(job.held)),
                bytes(job.cache),
                bytes(size),
            ]
        })
        .collect();
    let mut text = table(&heading, &rows);
    let bounded = shown.iter().filter(|j| j.kind.is_housekeeping() && j.size.is_some()).count();
    let _ =
        writeln!(text, "`elbowroom housekeeping --apply` sizes {bounded} of them by kind, others by name");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, kind: JobKind, held: Bytes) -> HousekeepingJob {
        HousekeepingJob {
            name: name.into(),
            kind,
            place: JobLocation::Group(format!("/system.slice/{name}")),
            held,
            cache: None,
            size: None,
        }
    }

    #[test]
    fn the_list_says_what_is_meant_and_hides_what_is_small() {
        let all = [
            job("postgres", JobKind::Other, Bytes::gib(1)),
            HousekeepingJob {
                size: Some(Bytes::mib(300)),
                ..job("cron.service", JobKind::Cron, Bytes::kib(900))
            },
            job("tiny", JobKind::Other, Bytes::kib(900)),
        ];
        assert_eq!(
            text(&all, false),
            "JOB           KIND   WHERE                       HOLDS  CACHE    SIZE\n\
             postgres      other  /system.slice/postgres       1GiB      -       -\n\
             cron.service  cron   /system.slice/cron.service     0B      -  300MiB\n\
             `elbowroom housekeeping --apply` sizes 1 of them by kind, others by name\n"
        );
    }

    #[test]
    fn what_serves_containers_is_refused() {
        let all =
            [job("dockerd", JobKind::Engine, Bytes::mib(80)), job("huge", JobKind::Other, Bytes::gib(900))];
        assert!(check_job_name("dockerd", &all).unwrap_err().to_string().contains("serves the containers"));
        assert!(check_job_name("huge", &all).unwrap_err().to_string().contains("half of this host"));
        assert!(check_job_name("nobody", &all).is_err());
    }
}
