//! `elbowroom audit`: which programs of an image would misread the host.

mod text;
mod watchdog;

use crate::inventory::{AuditBounds, inventory};
use crate::rules::source::CgroupInterface;
use crate::rules::verdict::{AuditVerdict, ImageReport, assess, summary};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use elbowroom_client::output::{Format, OutputArgs, say, write_stdout};
use serde::Serialize;
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
    cgroup: Option<CgroupVersionArg>,
    /// Give the exit status for containers that have Elbowroom's views, not limits alone.
    #[arg(long)]
    views: bool,
    /// Show also programs that ask nothing, and the tools that come with every distribution.
    #[arg(long)]
    all: bool,
    /// Show only how many images there are of each kind.
    #[arg(long)]
    summary: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CgroupVersionArg {
    /// cgroup v1, also on hybrid hosts.
    V1,
    /// cgroup v2.
    V2,
}

#[derive(Serialize)]
struct AuditOutput<'a> {
    images: &'a [ImageReport],
    summary: Vec<VerdictCount>,
}

/// How many images there are of one kind.
#[derive(Serialize)]
struct VerdictCount {
    verdict: AuditVerdict,
    limits: usize,
    views: usize,
}

/// Audits one target after another; one that cannot be read does not keep the others from it.
///
/// # Errors
/// Nothing can be printed, or a target's file system does not answer.
pub fn main(args: &AuditArgs) -> Result<ExitCode> {
    if !watchdog::is_apart() {
        return watchdog::run_apart().with_context(|| format!("audit of {}", args.targets.join(", ")));
    }
    let cgroup = match args.cgroup {
        Some(CgroupVersionArg::V1) => CgroupInterface::V1,
        Some(CgroupVersionArg::V2) => CgroupInterface::V2,
        None => host_cgroup(),
    };
    let mut reports = Vec::new();
    let mut failed = false;
    for target in &args.targets {
        match inventory(target, AuditBounds::default()) {
            Ok(inventory) => {
                let report = assess(target, &inventory, cgroup);
                if args.output.format == Format::Text && !args.summary {
                    write_stdout(&text::report(&report, args.all))?;
                }
                reports.push(report);
            }
            Err(error) => {
                failed = true;
                say(&format!("elbowroom: {}", error.to_string().replace('\n', "; ")));
            }
        }
    }
    let counts = summary(&reports);
    match args.output.format {
        Format::Data(data) => {
            let counts =
                counts.into_iter().map(|(verdict, limits, views)| VerdictCount { verdict, limits, views });
            let answer = AuditOutput { images: &reports, summary: counts.collect() };
            write_stdout(&data.document(&answer)?)?;
        }
        Format::Text if args.summary || reports.len() > 1 => {
            write_stdout(&text::summary(&counts, reports.len()))?;
        }
        Format::Text => {}
    }
    let misreads = reports.iter().any(|r| if args.views { r.views } else { r.limits } == AuditVerdict::Host);
    Ok(match (failed, misreads) {
        (true, _) => ExitCode::from(2),
        (false, misreads) => ExitCode::from(u8::from(misreads)),
    })
}

/// v2 where the controllers are; a hybrid host's limits are v1.
fn host_cgroup() -> CgroupInterface {
    match Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        true => CgroupInterface::V2,
        false => CgroupInterface::V1,
    }
}
