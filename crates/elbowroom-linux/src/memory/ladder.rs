//! Carries out what the memory governor orders, by the gentlest way that this kernel has.

use super::bounded::{self, Written};
use super::poke::{Poked, poke, press};
use super::protect::{Shields, outcome};
use super::reader;
use crate::cgroup::{Controller, Dir, Layout, Version};
use crate::lease::{Knob, Leases, Unset};
use crate::timer;
use elbowroom_types::memory::{Act, Done, GroupMemory, Lease, Outcome, Protect, Reclaim};
use elbowroom_types::sample::GroupId;
use elbowroom_types::unit::{Bytes, Limit, Micros};
use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest that one order may take; what is not done then is left for the next one.
const PATIENCE: Duration = Duration::from_millis(400);
/// Most that is asked of `memory.reclaim` at once, so that an order can end between two.
const STEP: Bytes = Bytes::mib(64);
/// Most that one poke of `memory.high` takes: for that long a limit of ours is in force.
const POKE: Bytes = Bytes::mib(32);
/// What is set for the time of an order and no longer; `memory.high` also by a lease.
const POKED: [&str; 3] = ["memory.limit_in_bytes", "memory.high", "memory.swappiness"];
/// Less than this is not worth a poke.
const LEAST: Bytes = Bytes::kib(64);

/// A way to reclaim, gentlest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// v2 `memory.reclaim` (Linux 5.19): sets nothing.
    Reclaim,
    /// v2 `memory.high`, lowered and put back.
    PokeHigh,
    /// v1 `memory.limit_in_bytes`, asked for and given up before it is in force.
    PokeLimit,
}

/// What a container's user had set, where something of ours is in its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserLimits {
    /// v2 `memory.low`.
    pub memory_low: Option<Limit<Bytes>>,
    /// v2 `memory.min`.
    pub memory_min: Option<Limit<Bytes>>,
    /// v2 `memory.high`.
    pub memory_high: Option<Limit<Bytes>>,
    /// v1 `memory.soft_limit_in_bytes`.
    pub memory_soft: Option<Limit<Bytes>>,
}

/// The governor's hands. All it sets are leases of the caller's; it may block for [`PATIENCE`] and belongs on a thread that
/// may.
#[derive(Debug)]
pub struct Actuator {
    layout: Layout,
    shields: Shields,
    /// `memory.high` leases: the knob, and until when.
    highs: BTreeMap<GroupId, (Knob, Micros)>,
    /// Whether `memory.reclaim` takes `swappiness=` (Linux 6.7); `None` until it was tried.
    takes_swappiness: Option<bool>,
}

impl Actuator {
    /// Hands for the cgroups of `layout`.
    pub fn new(layout: Layout) -> Self {
        Self { layout, shields: Shields::default(), highs: BTreeMap::new(), takes_swappiness: None }
    }

    /// How memory of the group at `path` is reclaimed here; `None` where it has no memory controller.
    pub fn way(&self, path: &str) -> Option<Way> {
        let path = below_root(path);
        let (version, dir) = self.layout.dir(Controller::Memory, &path)?;
        Some(match version {
            Version::V1 => Way::PokeLimit,
            Version::V2 if dir.has("memory.reclaim") => Way::Reclaim,
            Version::V2 if dir.has("memory.high") => Way::PokeHigh,
            Version::V2 => return None,
        })
    }

    /// Keeps others from taking a container's memory.
    pub fn protect(&mut self, leases: &mut Leases, order: &Protect, path: &str) -> Done {
        let outcome = self.shields.set(&self.layout, leases, order, &below_root(path));
        done(order.group, Act::Protect, outcome, Bytes::ZERO)
    }

    /// Takes some memory back, once.
    pub fn reclaim(&mut self, leases: &mut Leases, order: &Reclaim, path: &str) -> Done {
        let path = below_root(path);
        let (outcome, reclaimed) = self.try_reclaim(leases, order, &path);
        done(order.group, Act::Reclaim, outcome, reclaimed)
    }

    /// Holds a container back from growing, until [`Lease::until`] at the latest: see [`Self::expire`].
    pub fn lease(&mut self, leases: &mut Leases, order: &Lease, path: &str) -> Done {
        let outcome = self.hold(leases, order, &below_root(path));
        done(order.group, Act::Lease, outcome, Bytes::ZERO)
    }

    /// Ends a [`Self::lease`] now.
    pub fn release(&mut self, leases: &mut Leases, group: GroupId) -> Done {
        let Some((knob, _)) = self.highs.get(&group) else {
            return done(group, Act::Lease, Outcome::Done, Bytes::ZERO);
        };
        let outcome = outcome(knob, Ok(leases.release(knob)));
        // What could not be put back is tried again with every beat.
        if leases.before(knob).is_none() {
            self.highs.remove(&group);
        }
        done(group, Act::Lease, outcome, Bytes::ZERO)
    }

    /// Ends the leases whose time is over, and puts back what a poke could not; to be called with every beat.
    pub fn expire(&mut self, leases: &mut Leases, now: Micros) {
        let over: Vec<GroupId> =
            self.highs.iter().filter(|(_, (_, until))| *until <= now).map(|(group, _)| *group).collect();
        for group in over {
            self.release(leases, group);
        }
        // Between two orders no poke is under way.
        let leased: BTreeSet<&Knob> = self.highs.values().map(|(knob, _)| knob).collect();
        let is_left = |knob: &&Knob| POKED.contains(&knob.file.as_str()) && !leased.contains(knob);
        let left: Vec<Knob> = leases.held().map(|record| &record.knob).filter(is_left).cloned().collect();
        for knob in left {
            leases.release(&knob);
        }
    }

    /// The container is gone.
    pub fn forget(&mut self, leases: &mut Leases, group: GroupId) {
        self.release(leases, group);
        self.shields.forget(&self.layout, leases, group);
        // Groups above it may have gone with it, and with a parent its knobs.
        leases.forget_gone();
    }

    /// Nothing of ours is in force any more: it was released, or the guard has taken it away.
    pub fn clear(&mut self) {
        self.shields.clear();
        self.highs.clear();
    }

    /// What was in a container's files before us. A view that shows limits shows these, for protection is not the user's will.
    pub fn user_limits(&self, leases: &Leases, path: &str) -> UserLimits {
        let path = below_root(path);
        let Some((version, dir)) = self.layout.dir(Controller::Memory, &path) else {
            return UserLimits::default();
        };
        let before = |file: &str, unset| {
            let limit = leases.before(&Knob::new(&dir, file, None, unset)?)?;
            Some(match limit {
                Limit::At(n) => Limit::At(Bytes(n)),
                Limit::Max => Limit::Max,
            })
        };
        match version {
            Version::V1 => UserLimits {
                memory_soft: before("memory.soft_limit_in_bytes", Unset::MinusOne),
                ..UserLimits::default()
            },
            Version::V2 => UserLimits {
                memory_low: before("memory.low", Unset::Max),
                memory_min: before("memory.min", Unset::Max),
                memory_high: before("memory.high", Unset::Max),
                ..UserLimits::default()
            },
        }
    }

    fn try_reclaim(&mut self, leases: &mut Leases, order: &Reclaim, path: &Path) -> (Outcome, Bytes) {
        let Some((version, dir)) = self.layout.dir(Controller::Memory, path) else {
            return (Outcome::Refused("no memory controller".into()), Bytes::ZERO);
        };
        let usage = || reader::usage(version, &dir).ok().flatten();
        let Some(before) = usage() else { return (Outcome::Gone, Bytes::ZERO) };
        // Since this was ordered it may have given back a part of that, or all, as its view asked it to.
        let above = before.saturating_sub(order.keep);
        if above == Bytes::ZERO && order.amount > Bytes::ZERO {
            return (Outcome::Late, Bytes::ZERO);
        }
        // Somebody has come into it: it is not dead.
        if order.dead
            && !matches!(reader::group(&self.layout, path, Bytes::ZERO), Ok(Some(group)) if !group.populated)
        {
            return (Outcome::Late, Bytes::ZERO);
        }
        let order = &Reclaim { amount: order.amount.min(above), ..*order };
        let deadline = Instant::now() + PATIENCE;
        let (layout, swappiness) = (&self.layout, &mut self.takes_swappiness);
        let outcome = match version {
            Version::V2 if dir.has("memory.reclaim") => by_reclaim(&dir, order, deadline, swappiness),
            Version::V2 => by_poke(layout, leases, &dir, order, path, deadline),
            Version::V1 if order.dead => by_force_empty(&dir, deadline),
            Version::V1 => by_press(layout, leases, &dir, path, before, order, deadline),
        };
        let Some(after) = usage() else { return (Outcome::Gone, before) };
        (outcome, before.saturating_sub(after))
    }

    fn hold(&mut self, leases: &mut Leases, order: &Lease, path: &Path) -> Outcome {
        let Some((version, dir)) = self.layout.dir(Controller::Memory, path) else {
            return Outcome::Refused("no memory controller".into());
        };
        if version == Version::V1 {
            return Outcome::Refused("cgroup v1 has no memory.high".into());
        }
        let Some(knob) = Knob::new(&dir, "memory.high", None, Unset::Max) else { return Outcome::Gone };
        let page = rustix::param::page_size() as u64;
        let high = Limit::At(order.high.get() / page * page);
        let write = |knob: &Knob, value| {
            // Without waiting for what has to go (mm/memcontrol.c, `memory_high_write`), where the kernel knows that; where
            // it does not, not for long: the limit is set first.
            knob.write_by(value, OFlags::NONBLOCK, |file, line| match bounded::write(file, line, PATIENCE) {
                Written::All | Written::Late => Ok(()),
                Written::Refused(errno) => Err(errno),
            })
        };
        let changed = leases.set_by(&knob, |user| user.min(high), write, "hold back");
        let outcome = outcome(&knob, changed);
        let until = if outcome == Outcome::Done { order.until } else { Micros::ZERO };
        self.highs.insert(order.group, (knob, until));
        if outcome != Outcome::Done {
            // An earlier one may be in force still, and whoever ordered this takes it that there is none.
            self.release(leases, order.group);
        }
        outcome
    }
}

fn done(group: GroupId, what: Act, outcome: Outcome, reclaimed: Bytes) -> Done {
    Done { now: timer::now(), group, what, outcome, reclaimed }
}

fn below_root(path: &str) -> PathBuf {
    PathBuf::from(path.trim_start_matches('/'))
}

fn open(dir: &Dir<'_>, file: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    dir.open_with(file, flags).map_err(|error| match error {
        crate::root::ReadError::Io { source, .. } => source,
        _ => Errno::IO,
    })
}

/// `memory.reclaim`. The kernel may take a part and say `EAGAIN`; asking again for the rest would be asking for more.
fn by_reclaim(dir: &Dir<'_>, order: &Reclaim, deadline: Instant, swappiness: &mut Option<bool>) -> Outcome {
    let mut left = order.amount;
    while left > Bytes::ZERO {
        let patience = deadline.saturating_duration_since(Instant::now());
        if patience.is_zero() {
            return Outcome::Partly;
        }
        let step = left.min(STEP);
        let files_only = !order.swap && *swappiness != Some(false);
        let line = format!("{}{}", step.get(), if files_only { " swappiness=0" } else { "" });
        let written = match open(dir, "memory.reclaim", OFlags::WRONLY) {
            Ok(file) => bounded::write(&file, line.as_bytes(), patience),
            Err(errno) => Written::Refused(errno),
        };
        match written {
            Written::All => left = left.saturating_sub(step),
            Written::Refused(Errno::INVAL) if files_only && swappiness.is_none() => {
                *swappiness = Some(false);
                continue;
            }
            Written::Refused(Errno::AGAIN | Errno::INTR) | Written::Late => return Outcome::Partly,
            Written::Refused(Errno::NOENT | Errno::NODEV) => return Outcome::Gone,
            Written::Refused(errno) => {
                return Outcome::Refused(format!("{}: {errno}", dir.path().join("memory.reclaim").display()));
            }
        }
        if files_only {
            *swappiness = Some(true);
        }
    }
    Outcome::Done
}

/// Pokes `memory.high`, a little at a time, and only so far that as much again could still go: what runs there meanwhile finds pages to
/// reclaim, and is not held up.
fn by_poke(
    layout: &Layout,
    leases: &mut Leases,
    dir: &Dir<'_>,
    order: &Reclaim,
    path: &Path,
    deadline: Instant,
) -> Outcome {
    let Some(knob) = Knob::new(dir, "memory.high", None, Unset::Max) else { return Outcome::Gone };
    if leases.before(&knob).is_some() {
        // It is held back by this very knob, and the kernel reclaims down to that by itself. A poke would end it.
        return Outcome::Partly;
    }
    let mut left = order.amount;
    loop {
        let patience = deadline.saturating_duration_since(Instant::now());
        let memory = match reader::group(layout, path, if order.swap { free_swap() } else { Bytes::ZERO }) {
            Ok(Some(memory)) => memory,
            Ok(None) => return Outcome::Gone,
            Err(error) => return Outcome::Refused(error.to_string()),
        };
        let step = left.min(POKE).min(Bytes(reclaimable(&memory, order.swap).get() / 2));
        if step < LEAST.min(left) || patience.is_zero() {
            return Outcome::Partly;
        }
        match ended(poke(leases, &knob, memory.usage.saturating_sub(step), patience)) {
            Outcome::Done => left = left.saturating_sub(step),
            outcome => return outcome,
        }
        if left == Bytes::ZERO {
            return Outcome::Done;
        }
    }
}

/// Presses on a v1 group by a limit that never comes about, so that nothing that runs there meets one of ours. Where anonymous memory is to
/// stay and the kernel could swap it, no more is taken than there is clean page cache, with the group's swappiness at 1, a lease too: at 0,
/// who meets his user's limit meanwhile would find nothing in swap, and be killed.
fn by_press(
    layout: &Layout,
    leases: &mut Leases,
    dir: &Dir<'_>,
    path: &Path,
    usage: Bytes,
    order: &Reclaim,
    deadline: Instant,
) -> Outcome {
    let Some(knob) = Knob::new(dir, "memory.limit_in_bytes", None, Unset::MinusOne) else {
        return Outcome::Gone;
    };
    let file = match open(dir, "memory.usage_in_bytes", OFlags::RDONLY) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NODEV) => return Outcome::Gone,
        Err(errno) => return Outcome::Refused(format!("{}: {errno}", dir.path().display())),
    };
    let patience = || deadline.saturating_duration_since(Instant::now());
    if order.swap || rustix::system::sysinfo().totalswap == 0 {
        return ended(press(leases, &knob, &file, usage.saturating_sub(order.amount), patience()));
    }
    let amount = match reader::group(layout, path, Bytes::ZERO) {
        Ok(Some(memory)) => order.amount.min(reclaimable(&memory, false)),
        Ok(None) => return Outcome::Gone,
        Err(error) => return Outcome::Refused(error.to_string()),
    };
    let Some(swappiness) = Knob::new(dir, "memory.swappiness", None, Unset::Max) else {
        return Outcome::Gone;
    };
    let set = outcome(&swappiness, leases.tighten(&swappiness, Limit::At(1), "reclaim page cache"));
    if set != Outcome::Done {
        return set;
    }
    let taken = ended(press(leases, &knob, &file, usage.saturating_sub(amount), patience()));
    leases.release(&swappiness);
    if taken == Outcome::Done && amount < order.amount { Outcome::Partly } else { taken }
}

fn ended(poked: Poked) -> Outcome {
    match poked {
        Poked::All => Outcome::Done,
        Poked::Partly => Outcome::Partly,
        Poked::Foreign => Outcome::Foreign,
        Poked::Refused(why) => Outcome::Refused(why),
        Poked::Gone => Outcome::Gone,
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

/// A v1 group that nobody is in gives everything at once (`memory.force_empty`).
fn by_force_empty(dir: &Dir<'_>, deadline: Instant) -> Outcome {
    let patience = deadline.saturating_duration_since(Instant::now());
    let file = open(dir, "memory.force_empty", OFlags::WRONLY);
    match file.map(|file| bounded::write(&file, b"0", patience)) {
        Ok(Written::All) => Outcome::Done,
        Ok(Written::Refused(Errno::BUSY | Errno::INTR | Errno::AGAIN) | Written::Late) => Outcome::Partly,
        Err(Errno::NOENT) | Ok(Written::Refused(Errno::NODEV)) => Outcome::Gone,
        Ok(Written::Refused(errno)) | Err(errno) => {
            Outcome::Refused(format!("{}: {errno}", dir.path().join("memory.force_empty").display()))
        }
    }
}
