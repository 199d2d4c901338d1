//! `elbowroom protect`: one container is kept out of swap.

use super::apply::{ApplyOptions, PlannedFix, apply};
use super::{HostFactsArgs, container_called, fix};
use crate::checks::{ControllerVersion, HierarchyController, HostFacts};
use crate::facts::swappiness_below;
use crate::strategies::protect::protect;
use anyhow::Result;
use clap::Args;
use elbowroom_client::control::LoadSources;
use elbowroom_client::output::{Format, say};
use elbowroom_linux::root::Root;
use elbowroom_types::unit::Bytes;
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `protect`.
#[derive(Args)]
pub struct ProtectArgs {
    /// Name, beginning of an id, or cgroup path.
    container: String,
    /// Forbid swap: at its own limit the container is then killed where it would have been slow. Refused where what is in swap now would
    /// not fit.
    #[arg(long)]
    no_swap: bool,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    host: HostFactsArgs,
}

/// 0 when it is protected, 1 when it is not.
pub fn main(args: &ProtectArgs, load: LoadSources) -> Result<ExitCode> {
    let format = args.host.output.format;
    let (facts, journal) = args.host.collect_facts(load, Duration::ZERO)?;
    let group = container_called(&facts, &args.container)?;
    let root = Root::host()?;
    let below = swappiness_below(&root, group);
    let fix = match protect(&facts, group, &below, args.no_swap) {
        Ok(fix) => fix,
        Err(why) => {
            say(&format!("elbowroom: {} stays as it is: {why}", group.name()));
            return Ok(ExitCode::from(1));
        }
    };
    if format == Format::Text && !args.no_swap && takes_below_low(&root, &facts) {
        say(
            "this kernel's multi-generational reclaim takes from below memory.low sooner than the classic one: where nothing \
             may be swapped, --no-swap is what holds",
        );
    }
    if facts.host.meminfo("SwapTotal") == Some(Bytes::ZERO) && format == Format::Text {
        say("this host has no swap now: this counts from when it has");
    }
    let change = PlannedFix { check: "protect".into(), subject: Some(group.name()), fix, placement: None };
    let changes: Vec<PlannedFix> = if change.fix.writes.is_empty() { Vec::new() } else { vec![change] };
    let nothing = format!("{} is protected already", group.name());
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

/// Whether reclaim is the multi-generational one, which goes around once before it takes from cgroups below their `memory.low`,
/// however much others still have (mm/vmscan.c, `shrink_one`). v1 protects by swappiness, which it heeds.
fn takes_below_low(root: &Root, facts: &HostFacts) -> bool {
    let enabled = root.read("/sys/kernel/mm/lru_gen/enabled").unwrap_or_default();
    let bits = u32::from_str_radix(enabled.trim().trim_start_matches("0x"), 16).unwrap_or(0);
    facts.version(HierarchyController::Memory) == Some(ControllerVersion::V2) && bits & 1 == 1
}
