//! Keeping the host's reclaim from swapping one container (*Taming Memory Related Performance Pitfalls*, III.D and V.A).
//!
//! Problem: the paper sets the group's `memory.swappiness` to 0. That keeps the host from swapping it, but also the container
//! itself at its own limit, where it is killed instead (mm/vmscan.c, `get_scan_count`: reclaim of a cgroup with swappiness 0
//! scans files only; reclaim of the host still swaps before it kills). v2 has no swappiness of a cgroup, and its
//! `memory.swap.max` 0 is the same bargain.
//!
//! Approach: by default only what cannot turn into a kill. On v1 that is 0 where the container's own limit could not
//! swap it anyhow, else 1, with which reclaim of the host practically never chooses its memory. On v2 it is
//! `memory.low` over its working set, and over what is in swap, so that this can return. Forbidding swap is asked for
//! (`no_swap`), and refused where what is swapped now would not fit.

use crate::checks::facts::{CgroupFacts, ControllerVersion, HierarchyController, HostFacts};
use crate::checks::fixes::{cgroup_write, protect as keep_low};
use crate::checks::measures::{RESERVABLE, protected_memory, safe_swappiness, total_protected, whole_mib};
use elbowroom_types::finding::{FileWrite, FindingFix};
use elbowroom_types::resource_command::plain_command;
use elbowroom_types::unit::{Bytes, Limit, Percent};
use std::fmt;

const SWAPPINESS: &str = "memory.swappiness";
const SWAP_MAX: &str = "memory.swap.max";

/// What swapped memory and the memory in use may fill of a limit, for swap to be forbidden.
const MAX_FILL: Percent = Percent::whole(90);

/// A file of a cgroup inside the container, and what it says.
pub(crate) type DescendantFile = (String, String);

/// Why a container cannot be protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProtectError {
    /// The host has no memory controller, or the container is without it.
    NoController,
    /// With it, claims would be more than the host can keep.
    TooMuch {
        /// What it would have to keep.
        keep: Bytes,
        /// What is kept for other containers.
        others: Bytes,
    },
    /// A user gave it swap, and that is not lowered.
    SwapGranted {
        /// `memory.swap.max`.
        file: String,
        /// How much.
        granted: Bytes,
    },
    /// What is in swap does not fit below a limit.
    DoesNotFit {
        /// What it uses and what is in swap.
        need: Bytes,
        /// The limit: a file, or `MemAvailable`.
        file: String,
        /// How much that is.
        limit: Bytes,
    },
}

impl fmt::Display for ProtectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoController => write!(
                f,
                "it has no memory controller of its own: write +memory to cgroup.subtree_control above it"
            ),
            Self::TooMuch { keep, others } => write!(
                f,
                "it needs {keep} kept and other containers have {others}, together more than {RESERVABLE} of this host: \
                 take a claim of another container back first"
            ),
            Self::SwapGranted { file, granted } => {
                write!(
                    f,
                    "another program set {file} to {granted}, which is not lowered: set it to max first, or leave it"
                )
            }
            Self::DoesNotFit { need, file, limit } => write!(
                f,
                "its memory and what is swapped are {need}, more than {MAX_FILL} of {file} ({limit}): without swap it would be \
                 killed; without --no-swap it is protected as far as that is safe"
            ),
        }
    }
}

/// The writes that keep `group` out of swap; an empty fix where it is so already. `below` are the `memory.swappiness` files of
/// the cgroups inside it, which on v1 inherit only when they are made.
///
/// # Errors
/// Where that would break another promise, or could kill.
pub fn protect(
    facts: &HostFacts,
    group: &CgroupFacts,
    below: &[DescendantFile],
    no_swap: bool,
) -> Result<FindingFix, ProtectError> {
    match facts.version(HierarchyController::Memory).ok_or(ProtectError::NoController)? {
        ControllerVersion::V1 => Ok(swappiness_fix(facts, group, below, no_swap)),
        ControllerVersion::V2 => {
            let forbidden = if no_swap { forbid_swap(facts, group)? } else { None };
            let mut fix = protect_working_set(facts, group)?;
            if let Some(write) = forbidden {
                fix.commands.push(plain_command(&write));
                fix.writes.push(write);
            }
            Ok(fix)
        }
    }
}

fn swappiness_fix(
    facts: &HostFacts,
    group: &CgroupFacts,
    below: &[DescendantFile],
    no_swap: bool,
) -> FindingFix {
    let to = if no_swap { 0 } else { safe_swappiness(facts, group) };
    let lower = |text: &str| text.parse::<u64>().is_ok_and(|now| now > to);
    let own = group.text(SWAPPINESS).filter(|now| lower(now));
    let mut writes: Vec<FileWrite> = own
        .and_then(|_| cgroup_write(group, HierarchyController::Memory, SWAPPINESS, to))
        .into_iter()
        .collect();
    writes.extend(below.iter().filter(|(_, now)| lower(now)).map(|(file, now)| FileWrite {
        file: file.clone(),
        from: now.clone(),
        to: to.to_string(),
        ..FileWrite::default()
    }));
    FindingFix { commands: writes.iter().map(plain_command).collect(), writes }
}

/// `memory.low` over what the container needs; nothing where that is kept already.
fn protect_working_set(facts: &HostFacts, group: &CgroupFacts) -> Result<FindingFix, ProtectError> {
    if group.text("memory.low").is_none() {
        return Err(ProtectError::NoController);
    }
    let stat = group.stat();
    let working_set = group.usage().saturating_sub(stat.inactive_file).saturating_add(stat.swap);
    let keep = whole_mib(working_set).min(group.hard_limit().unwrap_or(Bytes(u64::MAX)));
    if protected_memory(facts, group) >= keep {
        return Ok(FindingFix::default());
    }
    keep_low(facts, group, keep).ok_or_else(|| ProtectError::TooMuch {
        keep,
        others: total_protected(facts).saturating_sub(protected_memory(facts, group)),
    })
}

/// `memory.swap.max` 0. What is in swap stays there until it is touched, and must have room then.
fn forbid_swap(facts: &HostFacts, group: &CgroupFacts) -> Result<Option<FileWrite>, ProtectError> {
    match group.limit(SWAP_MAX) {
        None | Some(Limit::At(Bytes::ZERO)) => return Ok(None),
        Some(Limit::At(granted)) => {
            return Err(ProtectError::SwapGranted {
                file: group.file(HierarchyController::Memory, SWAP_MAX),
                granted,
            });
        }
        Some(Limit::Max) => {}
    }
    let swapped = group.stat().swap;
    let limits = std::iter::once(group).chain(facts.ancestors(group)).filter_map(|g| {
        let need = g.usage().saturating_add(swapped);
        Some((need, g.file(HierarchyController::Memory, g.hard_limit_file()), g.hard_limit()?))
    });
    let host = (swapped, "/proc/meminfo MemAvailable".to_owned(), facts.host.mem_available());
    for (need, file, limit) in limits.chain([host]) {
        if need > Bytes(MAX_FILL.of(limit.get())) {
            return Err(ProtectError::DoesNotFit { need, file, limit });
        }
    }
    Ok(cgroup_write(group, HierarchyController::Memory, SWAP_MAX, 0))
}
