//! `elbowroom audit`: which programs of an image would misread the host.

mod text;

use crate::inventory::{Bounds, inventory};
use crate::rules::judge::{Report, Verdict, judge, summary};
use crate::rules::source::Cgroup;
use anyhow::Result;
use clap::{Args, ValueEnum};
use elbowroom_client::output::{Format, Output};
use serde::Serialize;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Arguments of `audit`.
#[derive(Args)]
#[command(after_help = "Exit status: 0 nothing misreads the host, 1 something does, 2 error.")]
pub struct AuditArgs {
    /// Images of the engine, archives (`docker save`, OCI layout), or root directories.
    #[arg(required = true, value_name = "IMAGE|ROOTFS")]
    targets: Vec<String>,
    /// The cgroup version of the hosts it will run on; this host's by default.
    #[arg(long, value_enum, value_name = "VERSION")]
    cgroup: Option<CgroupVersion>,
    /// Give the exit status for containers that have Elbowroom's views, not limits alone.
    #[arg(long)]
    views: bool,
    /// Show also what asks nothing, and the tools that come with every distribution.
    #[arg(long)]
    all: bool,
    /// Show only how many images there are of each kind.
    #[arg(long)]
    summary: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CgroupVersion {
    /// cgroup v1, also on hybrid hosts.
    V1,
    /// cgroup v2.
    V2,
}

#[derive(Serialize)]
struct Answer<'a> {
    images: &'a [Report],
    summary: Vec<Count>,
}

/// How many images there are of one kind.
#[derive(Serialize)]
struct Count {
    verdict: Verdict,
    limits: usize,
    views: usize,
}

/// Audits one target after another; one that cannot be read does not keep the others from it.
pub fn main(args: &AuditArgs) -> Result<ExitCode> {
    let cgroup = match args.cgroup {
        Some(CgroupVersion::V1) => Cgroup::V1,
        Some(CgroupVersion::V2) => Cgroup::V2,
        None => host_cgroup(),
    };
    let mut out = std::io::stdout().lock();
    let mut reports = Vec::new();
    let mut failed = false;
    for target in &args.targets {
        match inventory(target, Bounds::default()) {
            Ok(inventory) => {
                let report = judge(target, &inventory, cgroup);
                if args.output.format == Format::Text && !args.summary {
                    out.write_all(text::report(&report, args.all).as_bytes())?;
                    out.flush()?;
                }
                reports.push(report);
            }
            Err(error) => {
                failed = true;
                let line = error.to_string().replace('\n', "; ");
                writeln!(std::io::stderr(), "elbowroom: {line}")?;
            }
        }
    }
    let counts = summary(&reports);
    match args.output.format {
        Format::Json => {
            let counts = counts.into_iter().map(|(verdict, limits, views)| Count { verdict, limits, views });
            let answer = Answer { images: &reports, summary: counts.collect() };
            out.write_all(elbowroom_client::output::json(&answer)?.as_bytes())?;
        }
        Format::Text if args.summary || reports.len() > 1 => {
            out.write_all(text::summary(&counts, reports.len()).as_bytes())?;
        }
        Format::Text => {}
    }
    let misreads = reports.iter().any(|r| if args.views { r.views } else { r.limits } == Verdict::Host);
    Ok(match (failed, misreads) {
        (true, _) => ExitCode::from(2),
        (false, misreads) => ExitCode::from(u8::from(misreads)),
    })
}

/// v2 where the controllers are; a hybrid host's limits are v1.
fn host_cgroup() -> Cgroup {
    match Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        true => Cgroup::V2,
        false => Cgroup::V1,
    }
}
