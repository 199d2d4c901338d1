//! Carries out what the memory governor orders, by the gentlest way that this kernel has.

use super::bounded_write::{self, BoundedWrite};
use super::protect::{ProtectionWriter, outcome};
use super::reader;
use super::transient_limit::{TransientLimitOutcome, lower_high_briefly, request_unreachable_limit};
use crate::cgroup::{CgroupController, CgroupDir, CgroupLayout, CgroupVersion};
use crate::lease::{CgroupKnob, Leases, UnsetValue};
use crate::timer;
use elbowroom_types::id::CgroupId;
use elbowroom_types::memory::{
    GroupMemory, OrderCompletion, OrderKind, OrderOutcome, ReclaimProtection, ReclaimRequest,
};
use elbowroom_types::unit::{Bytes, Limit};
use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::Serialize;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest that an order may take; the next order does the rest.
const ORDER_TIMEOUT: Duration = Duration::from_millis(400);
/// Most that is asked of `memory.reclaim` at once, so that an order can end between two.
const MAX_RECLAIM_REQUEST: Bytes = Bytes::mib(64);
/// Most that a transient `memory.high` reclaims: our limit is in force for that long.
const MAX_TRANSIENT_RECLAIM: Bytes = Bytes::mib(32);
/// What is set for the time of an order and no longer.
const TRANSIENT_FILES: [&str; 3] = ["memory.limit_in_bytes", "memory.high", "memory.swappiness"];
/// Why nothing is saved where there is no `memory.reclaim`.
const NO_SAVING: &str =
    "saving needs memory.reclaim (cgroup v2, Linux 5.19): every other way sets a limit for a moment";
/// Less than this is not worth a transient limit.
const MIN_RECLAIM: Bytes = Bytes::kib(64);

/// A way to reclaim, gentlest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReclaimMethod {
    /// v2 `memory.reclaim` (Linux 5.19): sets nothing.
    Reclaim,
    /// v2 `memory.high`, lowered and put back.
    TransientHigh,
    /// v1 `memory.limit_in_bytes`, asked for and given up before it is in force.
    TransientLimit,
}

/// What a container's user had set, where something of ours is in its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserLimits {
    /// v2 `memory.low`.
    pub memory_low: Option<Limit<Bytes>>,
    /// v2 `memory.min`.
    pub memory_min: Option<Limit<Bytes>>,
    /// v1 `memory.soft_limit_in_bytes`.
    pub memory_soft: Option<Limit<Bytes>>,
}

/// Carries out the governor's orders. All it sets are leases of the caller's; it may block for [`ORDER_TIMEOUT`] and belongs on a thread
/// that may.
#[derive(Debug)]
pub struct MemoryActuator {
    layout: CgroupLayout,
    protection: ProtectionWriter,
    /// Whether `memory.reclaim` takes `swappiness=` (Linux 6.7); `None` until it was tried.
    takes_swappiness: Option<bool>,
}

impl MemoryActuator {
    /// For the cgroups of `layout`.
    pub fn new(layout: CgroupLayout) -> Self {
        Self { layout, protection: ProtectionWriter::default(), takes_swappiness: None }
    }

    /// How memory of the group at `path` is reclaimed here; `None` where it has no memory controller.
    pub fn reclaim_method(&self, path: &str) -> Option<ReclaimMethod> {
        let path = below_root(path);
        let (version, dir) = self.layout.dir(CgroupController::Memory, &path)?;
        Some(match version {
            CgroupVersion::V1 => ReclaimMethod::TransientLimit,
            CgroupVersion::V2 if dir.has("memory.reclaim") => ReclaimMethod::Reclaim,
            CgroupVersion::V2 if dir.has("memory.high") => ReclaimMethod::TransientHigh,
            CgroupVersion::V2 => return None,
        })
    }

    /// Keeps others from taking a container's memory.
    pub fn protect(&mut self, leases: &mut Leases, order: &ReclaimProtection, path: &str) -> OrderCompletion {
        let outcome = self.protection.set(&self.layout, leases, order, &below_root(path));
        done(order.group, OrderKind::Protect, outcome, Bytes::ZERO)
    }

    /// Takes some memory back, once.
    pub fn reclaim(&mut self, leases: &mut Leases, order: &ReclaimRequest, path: &str) -> OrderCompletion {
        let path = below_root(path);
        let (outcome, reclaimed) = self.try_reclaim(leases, order, &path);
        done(order.group, OrderKind::Reclaim, outcome, reclaimed)
    }

    /// Puts back a transient limit that could not be; to be called with every beat.
    pub fn expire(&mut self, leases: &mut Leases) {
        // Between two orders no transient limit is in force.
        let is_left = |knob: &&CgroupKnob| TRANSIENT_FILES.contains(&knob.file.as_str());
        let left: Vec<CgroupKnob> =
            leases.held().map(|record| &record.knob).filter(is_left).cloned().collect();
        for knob in left {
            leases.release(&knob);
        }
    }

    /// The container is gone.
    pub fn forget(&mut self, leases: &mut Leases, group: CgroupId) {
        self.protection.forget(&self.layout, leases, group);
        // Groups above it may have gone with it, and with a parent its knobs.
        leases.forget_gone();
    }

    /// Nothing of ours is in force any more: it was released, or the guard has taken it away.
    pub fn clear(&mut self) {
        self.protection.clear();
    }

    /// What was in a container's files before us. A view that shows limits shows these, for protection is not the user's will.
    pub fn user_limits(&self, leases: &Leases, path: &str) -> UserLimits {
        let path = below_root(path);
        let Some((version, dir)) = self.layout.dir(CgroupController::Memory, &path) else {
            return UserLimits::default();
        };
        let before = |file: &str, unset| {
            let limit = leases.before(&CgroupKnob::new(&dir, file, None, unset)?)?;
            Some(match limit {
                Limit::At(n) => Limit::At(Bytes(n)),
                Limit::Max => Limit::Max,
            })
        };
        match version {
            CgroupVersion::V1 => UserLimits {
                memory_soft: before("memory.soft_limit_in_bytes", UnsetValue::MinusOne),
                ..UserLimits::default()
            },
            CgroupVersion::V2 => UserLimits {
                memory_low: before("memory.low", UnsetValue::Max),
                memory_min: before("memory.min", UnsetValue::Max),
                ..UserLimits::default()
            },
        }
    }

    fn try_reclaim(
        &mut self,
        leases: &mut Leases,
        order: &ReclaimRequest,
        path: &Path,
    ) -> (OrderOutcome, Bytes) {
        let Some((version, dir)) = self.layout.dir(CgroupController::Memory, path) else {
            return (OrderOutcome::Refused("no memory controller".into()), Bytes::ZERO);
        };
        if order.saving
            && let Some(why) = self.saving_obstacle(version, &dir, order, path)
        {
            return (OrderOutcome::Refused(why.to_owned()), Bytes::ZERO);
        }
        let usage = || reader::usage(version, &dir).ok().flatten();
        let Some(before) = usage() else { return (OrderOutcome::Gone, Bytes::ZERO) };
        // Since this was ordered it may have given back a part of that, or all, as its view asked it to.
        let above = before.saturating_sub(order.keep);
        if above == Bytes::ZERO && order.amount > Bytes::ZERO {
            return (OrderOutcome::Late, Bytes::ZERO);
        }
        // A process has come into it: it is not dead.
        if order.dead
            && !matches!(reader::group(&self.layout, path, Bytes::ZERO), Ok(Some(group)) if !group.populated)
        {
            return (OrderOutcome::Late, Bytes::ZERO);
        }
        let order = &ReclaimRequest { amount: order.amount.min(above), ..*order };
        let deadline = Instant::now() + ORDER_TIMEOUT;
        let (layout, swappiness) = (&self.layout, &mut self.takes_swappiness);
        let outcome = match version {
            CgroupVersion::V2 if dir.has("memory.reclaim") => {
                reclaim_by_request(&dir, order, deadline, swappiness)
            }
            CgroupVersion::V2 => reclaim_by_transient_high(layout, leases, &dir, order, path, deadline),
            CgroupVersion::V1 if order.dead => reclaim_by_force_empty(&dir, deadline),
            CgroupVersion::V1 => {
                reclaim_by_transient_limit(layout, leases, &dir, path, before, order, deadline)
            }
        };
        let Some(after) = usage() else { return (OrderOutcome::Gone, before) };
        (outcome, before.saturating_sub(after))
    }

    /// Why nothing can be saved of a group in the way that was ordered.
    fn saving_obstacle(
        &self,
        version: CgroupVersion,
        dir: &CgroupDir<'_>,
        order: &ReclaimRequest,
        path: &Path,
    ) -> Option<&'static str> {
        if version == CgroupVersion::V1 || !dir.has("memory.reclaim") {
            return Some(NO_SAVING);
        }
        let may_swap = || matches!(reader::group(&self.layout, path, free_swap()), Ok(Some(group)) if group.swap_room > Bytes::ZERO);
        (!order.swap && self.takes_swappiness == Some(false) && may_swap()).then_some(
            "swap is nearly full, and this kernel cannot be told to leave anonymous memory alone (Linux 6.7)",
        )
    }
}

fn done(group: CgroupId, what: OrderKind, outcome: OrderOutcome, reclaimed: Bytes) -> OrderCompletion {
    OrderCompletion { now: timer::now(), group, what, outcome, reclaimed }
}

fn below_root(path: &str) -> PathBuf {
    PathBuf::from(path.trim_start_matches('/'))
}

fn open(dir: &CgroupDir<'_>, file: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    dir.open_with(file, flags).map_err(|error| match error {
        crate::root::ReadError::Io { source, .. } => source,
        _ => Errno::IO,
    })
}

/// `memory.reclaim`. The kernel may take a part and say `EAGAIN`; asking again for the rest would be asking for more.
fn reclaim_by_request(
    dir: &CgroupDir<'_>,
    order: &ReclaimRequest,
    deadline: Instant,
    swappiness: &mut Option<bool>,
) -> OrderOutcome {
    let mut left = order.amount;
    while left > Bytes::ZERO {
        let patience = deadline.saturating_duration_since(Instant::now());
        if patience.is_zero() {
            return OrderOutcome::Partly;
        }
        let step = left.min(MAX_RECLAIM_REQUEST);
        let files_only = !order.swap && *swappiness != Some(false);
        let line = format!("{}{}", step.get(), if files_only { " swappiness=0" } else { "" });
        let written = match open(dir, "memory.reclaim", OFlags::WRONLY) {
            Ok(file) => bounded_write::write(&file, line.as_bytes(), patience),
            Err(errno) => BoundedWrite::Refused(errno),
        };
        match written {
            BoundedWrite::Complete => left = left.saturating_sub(step),
            BoundedWrite::Refused(Errno::INVAL) if files_only && swappiness.is_none() => {
                *swappiness = Some(false);
                // The next order finds out whether it may do without.
                if order.saving {
                    return OrderOutcome::Late;
                }
                continue;
            }
            BoundedWrite::Refused(Errno::AGAIN | Errno::INTR) | BoundedWrite::TimedOut => {
                return OrderOutcome::Partly;
            }
            BoundedWrite::Refused(Errno::NOENT | Errno::NODEV) => return OrderOutcome::Gone,
            BoundedWrite::Refused(errno) => {
                return OrderOutcome::Refused(format!(
                    "{}: {errno}",
                    dir.path().join("memory.reclaim").display()
                ));
            }
        }
        if files_only {
            *swappiness = Some(true);
        }
    }
    OrderOutcome::Done
}

/// Lowers `memory.high` for a moment, a little at a time, and only so far that as much again could still go: what runs there meanwhile
/// finds pages to reclaim, and is not held up.
fn reclaim_by_transient_high(
    layout: &CgroupLayout,
    leases: &mut Leases,
    dir: &CgroupDir<'_>,
    order: &ReclaimRequest,
    path: &Path,
    deadline: Instant,
) -> OrderOutcome {
    let Some(knob) = CgroupKnob::new(dir, "memory.high", None, UnsetValue::Max) else {
        return OrderOutcome::Gone;
    };
    if leases.before(&knob).is_some() {
        // It is held back by this very knob, and the kernel reclaims down to that by itself. A transient value would end it.
        return OrderOutcome::Partly;
    }
    let mut left = order.amount;
    loop {
        let patience = deadline.saturating_duration_since(Instant::now());
        let memory = match reader::group(layout, path, if order.swap { free_swap() } else { Bytes::ZERO }) {
            Ok(Some(memory)) => memory,
            Ok(None) => return OrderOutcome::Gone,
            Err(error) => return OrderOutcome::Refused(error.to_string()),
        };
        let step = left.min(MAX_TRANSIENT_RECLAIM).min(Bytes(reclaimable(&memory, order.swap).get() / 2));
        if step < MIN_RECLAIM.min(left) || patience.is_zero() {
            return OrderOutcome::Partly;
        }
        match order_outcome(lower_high_briefly(leases, &knob, memory.usage.saturating_sub(step), patience)) {
            OrderOutcome::Done => left = left.saturating_sub(step),
            outcome => return outcome,
        }
        if left == Bytes::ZERO {
            return OrderOutcome::Done;
        }
    }
}

/// Presses on a v1 group by a limit that never comes about, so that no process there meets a limit of ours. Where anonymous memory
/// is to stay and the kernel could swap it, no more is taken than there is clean page cache. The group's swappiness is 1 meanwhile,
/// a lease too: at 0, the kernel would not swap for a process that meets its user's limit, but kill it.
fn reclaim_by_transient_limit(
    layout: &CgroupLayout,
    leases: &mut Leases,
    dir: &CgroupDir<'_>,
    path: &Path,
    usage: Bytes,
    order: &ReclaimRequest,
    deadline: Instant,
) -> OrderOutcome {
    let Some(knob) = CgroupKnob::new(dir, "memory.limit_in_bytes", None, UnsetValue::MinusOne) else {
        return OrderOutcome::Gone;
    };
    let file = match open(dir, "memory.usage_in_bytes", OFlags::RDONLY) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NODEV) => return OrderOutcome::Gone,
        Err(errno) => return OrderOutcome::Refused(format!("{}: {errno}", dir.path().display())),
    };
    let patience = || deadline.saturating_duration_since(Instant::now());
    if order.swap || rustix::system::sysinfo().totalswap == 0 {
        return order_outcome(request_unreachable_limit(
            leases,
            &knob,
            &file,
            usage.saturating_sub(order.amount),
            patience(),
        ));
    }
    let amount = match reader::group(layout, path, Bytes::ZERO) {
        Ok(Some(memory)) => order.amount.min(reclaimable(&memory, false)),
        Ok(None) => return OrderOutcome::Gone,
        Err(error) => return OrderOutcome::Refused(error.to_string()),
    };
    let Some(swappiness) = CgroupKnob::new(dir, "memory.swappiness", None, UnsetValue::Max) else {
        return OrderOutcome::Gone;
    };
    let set = outcome(&swappiness, leases.tighten(&swappiness, Limit::At(1), "reclaim page cache"));
    if set != OrderOutcome::Done {
        return set;
    }
    let taken = order_outcome(request_unreachable_limit(
        leases,
        &knob,
        &file,
        usage.saturating_sub(amount),
        patience(),
    ));
    leases.release(&swappiness);
    if taken == OrderOutcome::Done && amount < order.amount { OrderOutcome::Partly } else { taken }
}

fn order_outcome(outcome: TransientLimitOutcome) -> OrderOutcome {
    match outcome {
        TransientLimitOutcome::Complete => OrderOutcome::Done,
        TransientLimitOutcome::Partial => OrderOutcome::Partly,
        TransientLimitOutcome::Foreign => OrderOutcome::Foreign,
        TransientLimitOutcome::Refused(why) => OrderOutcome::Refused(why),
        TransientLimitOutcome::Gone => OrderOutcome::Gone,
    }
}

fn free_swap() -> Bytes {
    let info = rustix::system::sysinfo();
    Bytes((info.freeswap as u64).saturating_mul(info.mem_unit.into()))
}

/// What the kernel could take at once: clean page cache, and what fits into swap.
fn reclaimable(memory: &GroupMemory, swap: bool) -> Bytes {
    let cache = memory.inactive_file.saturating_add(memory.active_file).saturating_sub(memory.dirty);
    let anon = memory.anon.saturating_sub(memory.unevictable).min(memory.swap_room);
    cache.saturating_add(if swap { anon } else { Bytes::ZERO })
}

/// A v1 group without processes gives everything at once (`memory.force_empty`).
fn reclaim_by_force_empty(dir: &CgroupDir<'_>, deadline: Instant) -> OrderOutcome {
    let patience = deadline.saturating_duration_since(Instant::now());
    let file = open(dir, "memory.force_empty", OFlags::WRONLY);
    match file.map(|file| bounded_write::write(&file, b"0", patience)) {
        Ok(BoundedWrite::Complete) => OrderOutcome::Done,
        Ok(BoundedWrite::Refused(Errno::BUSY | Errno::INTR | Errno::AGAIN) | BoundedWrite::TimedOut) => {
            OrderOutcome::Partly
        }
        Err(Errno::NOENT) | Ok(BoundedWrite::Refused(Errno::NODEV)) => OrderOutcome::Gone,
        Ok(BoundedWrite::Refused(errno)) | Err(errno) => {
            OrderOutcome::Refused(format!("{}: {errno}", dir.path().join("memory.force_empty").display()))
        }
    }
}
