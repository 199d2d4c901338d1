//! Carrying a [`MountPlan`] out: every mount of it, or none.

use super::mount_calls::{copy_mount, id_of, move_mount, open_target, open_tree};
use super::namespace::{FileId, NamespaceRoot, Unmounter, file_id};
use super::plan::{
    BindMount, MountPlan, MountSurface, SkipReason, SkippedSurface, ViewDirectory, covered_filesystem,
    plan_at,
};
use super::{MountError, SOURCE, UNCACHED_FILES, page, pressure, uncovered};
use crate::mountinfo::{MountEntry, MountTable, is_deleted};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A view, and what goes with it.
#[derive(Clone, Copy, Debug)]
pub struct ViewParts<'a> {
    /// Its directory on the host.
    pub dir: &'a Path,
    /// Which of its files belong where.
    pub surfaces: &'a [MountSurface],
    /// Its page, a file on the host, to be read-only at [`super::PAGE_TARGET`]; there is a place for it only where the view is mounted.
    pub page: Option<&'a Path>,
    /// The agent's directory where the container's programs are asked for memory, if they are to be.
    pub pressure_dir: Option<&'a Path>,
}

/// What [`NamespaceRoot::attach_view`] did.
#[derive(Debug)]
pub struct AttachedView {
    /// The files.
    pub files: AttachReport,
    /// Whether there is a place for the page; there is none where another container that shares the mount namespace has it. An error
    /// before Linux 5.12. `None`: none was wanted.
    pub page: Option<Result<bool, MountError>>,
    /// Where programs find the file by which they are asked for memory; `None`: this container has no place for it, or the view and the
    /// file there are another container's, with which it shares the mount namespace.
    pub pressure_file: Result<Option<PathBuf>, MountError>,
}

/// What [`NamespaceRoot::attach`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AttachReport {
    /// Targets that show the view now and showed the host before.
    pub mounted: usize,
    /// Targets on which a stale view was replaced.
    pub replaced: usize,
    /// Targets that showed this view already.
    pub present: usize,
    /// Surfaces left out, those of the plan included.
    pub skipped: Vec<SkippedSurface>,
    /// Whether the container is still being made: what its engine masks is not masked yet, and so proc and sysfs are not mounted once more
    /// for the user namespaces inside.
    pub is_starting: bool,
}

impl NamespaceRoot {
    /// Mounts every surface of `plan`, or none. Safe to call again: what is there stays.
    pub fn attach(&self, plan: &MountPlan) -> Result<AttachReport, MountError> {
        self.or_vanished(self.refuse_host())?;
        let _lock = self.lock()?;
        attach_at(self, &self.table()?, plan)
    }

    /// Mounts a view as [`Self::attach`] does, and then what goes with it. Two agents' hands at the same targets would each take back what
    /// the other relies on: the mount namespace is locked for all of it.
    ///
    /// # Errors
    /// The files are not mounted, and so nothing is. What became of the rest is in the report.
    pub fn attach_view(&self, wanted: &ViewParts<'_>) -> Result<AttachedView, MountError> {
        self.or_vanished(self.refuse_host())?;
        let _lock = self.lock()?;
        let (table, view) = self.table_checked(|own| ViewDirectory::inspect(wanted.dir, own))?;
        let plan = plan_at(self, &table, view, wanted.surfaces)?;
        let files = attach_at(self, &table, &plan)?;
        let table = self.table()?;
        let page = wanted.page.map(|page| page::attach_at(self, &table, page));
        let is_anothers = files.skipped.iter().any(|skipped| skipped.why == SkipReason::Taken);
        let pressure_file = match wanted.pressure_dir {
            Some(dir) if !is_anothers => pressure::offer_at(self, &table, dir),
            _ => Ok(None),
        };
        Ok(AttachedView { files, page, pressure_file })
    }

    /// Refuses a target where a mount would show on the host too.
    pub fn refuse_shared(&self, target: &Path) -> Result<(), MountError> {
        match self.table()?.visible(target) {
            Some(below) => refuse_shared_below(self, below, target),
            None => Ok(()),
        }
    }
}

/// What has to happen at one target.
enum TargetStep {
    /// Mount on the plain file that this mount shows.
    Mount { on: u64 },
    /// Take these stale views away (topmost first) and mount in their place.
    Replace { stale: Vec<u64> },
}

/// A step with everything it needs inside the namespace.
struct PlannedMount<'a> {
    bind: &'a BindMount,
    step: TargetStep,
    /// The detached clone of the view's file.
    tree: OwnedFd,
    /// What others have mounted below the target.
    inside: Vec<&'a MountEntry>,
}

/// A mount that this call has made.
struct CompletedMount {
    tree: OwnedFd,
    /// The stale view on top of it, until the whole plan has succeeded.
    stale: Option<OwnedFd>,
    target: PathBuf,
    replaced: bool,
    /// Copies of what others had mounted inside the target, and where.
    copies: Vec<(PathBuf, OwnedFd)>,
}

/// Where `table` is what is mounted there.
fn attach_at(
    place: &NamespaceRoot,
    table: &MountTable,
    plan: &MountPlan,
) -> Result<AttachReport, MountError> {
    let view = &plan.view;
    let (views, triggers) = (view.open()?, view.open_triggers());
    let mut attached = AttachReport { skipped: plan.skipped.clone(), ..AttachReport::default() };
    let mut work = Vec::new();
    for bind in &plan.binds {
        let source = view.dir.join(&bind.source);
        let no_view = |call, errno| match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::NOTCONN => MountError::NoView { path: source.clone() },
            errno => MountError::of(call, &source, errno),
        };
        let is_uncached = UNCACHED_FILES.iter().any(|path| bind.source.starts_with(path));
        let triggers = triggers.as_ref().filter(|_| is_uncached);
        let (dir, id) = match triggers.map(|dir| (dir, file_id(dir.as_fd(), &bind.source))) {
            Some((dir, Ok(id))) => (dir, id),
            _ => (&views, file_id(views.as_fd(), &bind.source).map_err(|e| no_view("statx", e))?),
        };
        let decision = place.or_vanished(decide(place, table, view, id, &bind.target))?;
        let mut inside = foreign_mounts_inside(table, view, &bind.target);
        inside.retain(|mount| is_shown(dir.as_fd(), bind, mount));
        attached.skipped.extend(inside.iter().map(|mount| SkippedSurface {
            target: mount.mount_point.clone(),
            why: SkipReason::Occupied(mount.fstype.clone()),
        }));
        let step = match decision {
            TargetDecision::Present => {
                attached.present += 1;
                continue;
            }
            TargetDecision::Taken => {
                attached.skipped.push(SkippedSurface { target: bind.target.clone(), why: SkipReason::Taken });
                continue;
            }
            TargetDecision::Perform(step) => step,
        };
        refuse_shared(place, table, &step, &bind.target)?;
        let tree = open_tree(dir.as_fd(), &bind.source).map_err(|e| no_view("open_tree", e))?;
        work.push(PlannedMount { bind, step, tree, inside });
    }
    if !work.is_empty() {
        let made = place.enter(|unmounter| perform_mounts(place, unmounter, work))?;
        attached.replaced = made.iter().filter(|made| made.replaced).count();
        attached.mounted = made.len() - attached.replaced;
    }
    // The view shows without them too.
    match uncovered::keep(place, table) {
        Ok(done) => attached.is_starting = !done,
        Err(error) => {
            tracing::warn!(because = %error, "no proc or sysfs can be mounted in user namespaces inside the container");
        }
    }
    Ok(attached)
}

/// What is mounted inside the directory `target`, on the mount that shows there, and is nothing of ours.
fn foreign_mounts_inside<'a>(
    table: &'a MountTable,
    view: &ViewDirectory,
    target: &Path,
) -> Vec<&'a MountEntry> {
    let Some(shown) = table.visible(target) else { return Vec::new() };
    let is_foreign = |mount: &&MountEntry| {
        let inside = mount.mount_point != target && mount.mount_point.starts_with(target);
        inside && !view.is_ours(mount) && mount.source != Path::new(SOURCE) && !uncovered::is_kept(mount)
    };
    table.mounted_on(shown.id).filter(is_foreign).collect()
}

/// Whether the view shows a file where `mount` is. Where it does not, no process can reach what the mount covers: engines mask a
/// directory of every CPU (`thermal_throttle`) that views do not have.
fn is_shown(view: BorrowedFd<'_>, bind: &BindMount, mount: &MountEntry) -> bool {
    let Ok(inside) = mount.mount_point.strip_prefix(&bind.target) else { return true };
    !matches!(file_id(view, &bind.source.join(inside)), Err(Errno::NOENT | Errno::NOTDIR))
}

enum TargetDecision {
    Present,
    Taken,
    Perform(TargetStep),
}

/// Compares what is at `target` with `source`, the view's own file.
fn decide(
    place: &NamespaceRoot,
    table: &MountTable,
    view: &ViewDirectory,
    source: FileId,
    target: &Path,
) -> Result<TargetDecision, MountError> {
    let changed = || MountError::Changed { target: target.to_owned() };
    covered_filesystem(table, view, target, &|mount| place.is_hosts(mount)).map_err(|_| changed())?;
    let stack = table.stack(target);
    let Some(top) = stack.first().filter(|top| view.is_ours(top)) else {
        let on = table.visible(target).ok_or_else(changed)?.id;
        return Ok(TargetDecision::Perform(TargetStep::Mount { on }));
    };
    let there = id_of(&open_target(place, target, top.id)?, target)?;
    let live = [view.device, source.device].contains(&top.device) && !is_deleted(&top.root);
    Ok(if (there.device, there.inode) == (source.device, source.inode) {
        TargetDecision::Present
    } else if live && !top.root.starts_with(&view.root) && place.is_shared()? {
        TargetDecision::Taken
    } else {
        let stale = stack.iter().take_while(|mount| view.is_ours(mount)).map(|mount| mount.id);
        TargetDecision::Perform(TargetStep::Replace { stale: stale.collect() })
    })
}

/// A mount below a shared mount appears at every peer of it.
fn refuse_shared(
    place: &NamespaceRoot,
    table: &MountTable,
    step: &TargetStep,
    target: &Path,
) -> Result<(), MountError> {
    let below = match step {
        TargetStep::Mount { on } => Some(*on),
        TargetStep::Replace { stale } => {
            stale.last().and_then(|id| table.by_id(*id)).map(|mount| mount.parent)
        }
    };
    match below.and_then(|id| table.by_id(id)) {
        Some(below) => refuse_shared_below(place, below, target),
        None => Ok(()),
    }
}

/// Refuses a mount on `below` that would show on the host too.
pub(super) fn refuse_shared_below(
    place: &NamespaceRoot,
    below: &MountEntry,
    target: &Path,
) -> Result<(), MountError> {
    if place.shows_on_host(below) {
        Err(MountError::SharedWithHost { target: target.to_owned() })
    } else {
        Ok(())
    }
}

/// Runs inside the namespace. Stale views stay on top of their successors until every mount has been made.
fn perform_mounts(
    place: &NamespaceRoot,
    unmounter: &Unmounter,
    work: Vec<PlannedMount<'_>>,
) -> Result<Vec<CompletedMount>, MountError> {
    let mut made: Vec<CompletedMount> = Vec::with_capacity(work.len());
    for item in work {
        match mount_target(place, unmounter, item) {
            Ok(one) => made.push(one),
            Err(error) => {
                roll_back(unmounter, made);
                return Err(error);
            }
        }
    }
    for index in 0..made.len() {
        let Some(stale) = made[index].stale.take() else { continue };
        if let Err(errno) = unmounter.unmount(stale.as_fd()) {
            let target = made[index].target.clone();
            made[index].stale = Some(stale);
            roll_back(unmounter, made);
            return Err(MountError::of("umount2", target, errno));
        }
    }
    made.iter().for_each(|made| made.mount_copies(place));
    Ok(made)
}

fn mount_target(
    place: &NamespaceRoot,
    unmounter: &Unmounter,
    work: PlannedMount<'_>,
) -> Result<CompletedMount, MountError> {
    let target = work.bind.target.as_path();
    let error = |call| move |errno| MountError::of(call, target, errno);
    let copies = copy_mounts(place, &work.inside);
    let (stale, replaced) = match &work.step {
        TargetStep::Mount { on } => {
            let fd = open_target(place, target, *on)?;
            move_mount(&work.tree, &fd, MoveMountFlags::empty()).map_err(error("move_mount"))?;
            (None, false)
        }
        TargetStep::Replace { stale } => {
            let (last, above) = stale.split_last().expect("a replaced stack has at least one layer");
            for id in above {
                unmounter.unmount(open_target(place, target, *id)?.as_fd()).map_err(error("umount2"))?;
            }
            let fd = open_target(place, target, *last)?;
            match move_mount(&work.tree, &fd, MoveMountFlags::MOVE_MOUNT_BENEATH) {
                Ok(()) => (Some(fd), true),
                // Before Linux 6.5: for an instant the host's file shows.
                Err(_) => {
                    unmounter.unmount(fd.as_fd()).map_err(error("umount2"))?;
                    let fd = place.open(target).map_err(error("openat2"))?;
                    move_mount(&work.tree, &fd, MoveMountFlags::empty()).map_err(error("move_mount"))?;
                    (None, true)
                }
            }
        }
    };
    let made = CompletedMount { tree: work.tree, stale, target: target.to_owned(), replaced, copies };
    // A clone of a shared mount is its peer: what the container mounts below it would appear on the host.
    if let Err(errno) = unmounter.make_private(made.tree.as_fd()) {
        roll_back(unmounter, vec![made]);
        return Err(MountError::of("mount", target, errno));
    }
    Ok(made)
}

impl CompletedMount {
    /// Mounts what others had mounted inside the target on the view, which is on top now.
    fn mount_copies(&self, place: &NamespaceRoot) {
        for (path, copy) in &self.copies {
            let on = id_of(&self.tree, path).and_then(|view| open_target(place, path, view.mount));
            let moved = on.and_then(|on| {
                let moved = move_mount(copy, &on, MoveMountFlags::empty());
                moved.map_err(|errno| MountError::of("move_mount", path, errno))
            });
            if let Err(because) = moved {
                tracing::warn!(%because, "a mount of the container's is hidden by its view");
            }
        }
    }
}

/// Copies of what others have mounted inside a directory that is going to be covered.
fn copy_mounts(place: &NamespaceRoot, inside: &[&MountEntry]) -> Vec<(PathBuf, OwnedFd)> {
    let copy = |mount: &MountEntry| {
        let fd = open_target(place, &mount.mount_point, mount.id)?;
        copy_mount(&fd, OpenTreeFlags::AT_RECURSIVE)
            .map_err(|errno| MountError::of("open_tree", &mount.mount_point, errno))
    };
    let copied = inside.iter().map(|mount| (mount.mount_point.clone(), copy(mount)));
    copied
        .filter_map(|(path, copied)| match copied {
            Ok(copy) => Some((path, copy)),
            Err(because) => {
                tracing::warn!(%because, "a mount of the container's is hidden by its view");
                None
            }
        })
        .collect()
}

/// Takes away what this call has mounted, newest first. A stale view on top goes too: it answered no reader.
fn roll_back(unmounter: &Unmounter, made: Vec<CompletedMount>) {
    for made in made.into_iter().rev() {
        for layer in made.stale.iter().chain([&made.tree]) {
            if let Err(errno) = unmounter.unmount(layer.as_fd()) {
                tracing::warn!(target = %made.target.display(), error = %errno, "a view could not be taken back");
            }
        }
    }
}
