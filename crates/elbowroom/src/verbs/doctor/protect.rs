//! `elbowroom protect`: one container is kept out of swap.

use super::apply::{Change, Manner, apply};
use super::{HostArgs, fix, select};
use crate::cli::Format;
use anyhow::Result;
use clap::Args;
use elbowroom_core::doctor::strategy::protect::protect;
use elbowroom_core::unit::Bytes;
use elbowroom_host::doctor::swappiness_below;
use elbowroom_host::root::Root;
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `protect`.
#[derive(Args)]
pub(crate) struct ProtectArgs {
    /// Name, beginning of an id, or cgroup path.
    container: String,
    /// Forbid swap: at its own limit it is then killed where it would have been slow. Refused where what is in swap now would
    /// not fit.
    #[arg(long)]
    no_swap: bool,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    host: HostArgs,
}

/// 0 when it is protected, 1 when it is not.
pub(crate) fn main(args: &ProtectArgs) -> Result<ExitCode> {
    let format = args.host.output.format;
    let (facts, journal) = args.host.look(Duration::ZERO)?;
    let group = select(&facts, &args.container)?;
    let below = swappiness_below(&Root::host()?, group);
    let fix = match protect(&facts, group, &below, args.no_swap) {
        Ok(fix) => fix,
        Err(why) => {
            eprintln!("elbowroom: {} stays as it is: {why}", group.name());
            return Ok(ExitCode::from(1));
        }
    };
    if facts.host.meminfo("SwapTotal") == Some(Bytes::ZERO) && format == Format::Text {
        eprintln!("this host has no swap now: this counts from when it has");
    }
    let change = Change { check: "protect".into(), whose: Some(group.name()), fix, placing: None };
    let changes: Vec<Change> = if change.fix.writes.is_empty() { Vec::new() } else { vec![change] };
    let nothing = format!("{} is protected already", group.name());
    let lasting = fix::lasting(&changes);
    apply(&journal, &changes, &Manner { yes: args.yes, format, nothing: &nothing, lasting: &lasting })
}
