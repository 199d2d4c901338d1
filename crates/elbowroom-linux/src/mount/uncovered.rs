//! A container's own proc and sysfs, mounted once more where nothing covers them.
//!
//! **Problem.** The kernel lets a user namespace mount proc or sysfs only while its mount namespace already shows one of that
//! type whole: a mount of the file system's root that is covered at most at directories that are always empty (fs/namespace.c
//! `mount_too_revealing`). A view over one file of `/proc` takes that away from programs that run unprivileged inside: rootless
//! BuildKit, bubblewrap, Buildah, systemd-nspawn, `unshare -Urpf --mount-proc`.
//!
//! **Approach.** Where the container's own proc was whole but for views, the same is mounted again on a directory of the view
//! that no listing names; sysfs alike. An engine that masks paths has taken this away itself, and then nothing is mounted: it
//! would show what was masked. Engines mask last, after hooks and after `pivot_root`, so nothing is mounted either until the
//! container's own program runs. No path walk reaches the copies: the directory that they are in covers itself, and has empty
//! directories at their names, for programs that look at each mount point (`lsof`). Else a program that the
//! container starts in a sandbox of its own could get this `/sys`, with all that is mounted in it, and be masked elsewhere. The
//! kernel checks only what is mounted. The copies are part of the view, so they go when the view goes.

use super::detach::unmount_exactly;
use super::mount_calls::{copy_mount, move_mount, open_target};
use super::namespace::NamespaceRoot;
use super::plan::is_view;
use super::{MountError, SOURCE};
use crate::mountinfo::{MountEntry, MountTable};
use rustix::fd::AsFd;
use rustix::mount::{MoveMountFlags, OpenTreeFlags};
use std::path::Path;

/// What is mounted again, and where: `ViewNode::UncoveredProc` and `UncoveredSys`.
const KEPT: [(&str, &str); 2] = [
    ("proc", "/sys/devices/system/cpu/.elbowroom/proc"),
    ("sysfs", "/sys/devices/system/cpu/.elbowroom/sys"),
];
/// Over both the directory that they are in is mounted once more, without them.
const COVER: &str = "/sys/devices/system/cpu/.elbowroom";

/// Directories that are always empty, below where their file system is mounted: what is mounted on them hides nothing
/// (`sysfs_create_mount_point`, `proc_create_mount_point`, `register_sysctl_mount_point`).
const EMPTY_DIRECTORIES: [&str; 17] = [
    "firmware/efi/efivars",
    "fs/bpf",
    "fs/cgroup",
    "fs/fuse/connections",
    "fs/nfsd",
    "fs/pstore",
    "fs/resctrl",
    "fs/selinux",
    "fs/smackfs",
    "hypervisor/s390",
    "kernel/config",
    "kernel/debug",
    "kernel/security",
    "kernel/tracing",
    "openprom",
    "sys/fs/binfmt_misc",
    "xen",
];

/// How much of a file system a mount shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Visibility {
    /// All.
    Whole,
    /// All but what views cover.
    BehindViews,
    /// Less.
    Partial,
}

/// Mounts proc and sysfs again where the container needs that; `before` is its mount table, with views or without. Safe to call again,
/// and to be called again where it says `false`: then a part may still be masked.
pub(super) fn keep(place: &NamespaceRoot, before: &MountTable) -> Result<bool, MountError> {
    if KEPT.iter().any(|(fstype, _)| shows_masked(before, fstype)) {
        take_away(place, before)?;
    }
    // Most containers have masked paths, and end here.
    let is_candidate = |mount: &MountEntry| {
        KEPT.iter().any(|(fstype, _)| mount.fstype == *fstype)
            && visibility(before, mount) != Visibility::Partial
    };
    if !before.iter().any(is_candidate) {
        return Ok(true);
    }
    // First the program, then the mounts: what is masked in between is seen.
    if !place.has_all_mounts(before) {
        return Ok(false);
    }
    let table = place.table()?;
    let Some(view) = table.visible(Path::new(COVER)).filter(|view| is_view(view)) else { return Ok(true) };
    let kept = KEPT.map(|(fstype, target)| Some((behind_views(&table, fstype)?, Path::new(target))));
    let kept: Vec<(&MountEntry, &Path)> = kept.into_iter().flatten().collect();
    // What is covered already stays as it is.
    if kept.is_empty() || view.mount_point == Path::new(COVER) {
        return Ok(true);
    }
    place.enter(|unmounter| {
        let error = |call, target| move |errno| MountError::of(call, target, errno);
        let cover_target = Path::new(COVER);
        // Before they are covered; and covered before there is anything in them, so that no walk ever gets there.
        let open = |(mount, target): &(&MountEntry, &'static Path)| {
            let from = open_target(place, &mount.mount_point, mount.id)?;
            Ok((from, open_target(place, target, view.id)?, *target))
        };
        let opened = kept.iter().map(open).collect::<Result<Vec<_>, MountError>>()?;
        let on = open_target(place, cover_target, view.id)?;
        let cover = copy_mount(&on, OpenTreeFlags::empty()).map_err(error("open_tree", cover_target))?;
        move_mount(&cover, &on, MoveMountFlags::empty()).map_err(error("move_mount", cover_target))?;
        let mut result = unmounter.make_private(cover.as_fd()).map_err(error("mount", cover_target));
        for (from, on, target) in &opened {
            result = result.and_then(|()| {
                let copy = copy_mount(from, OpenTreeFlags::empty()).map_err(error("open_tree", *target))?;
                move_mount(&copy, on, MoveMountFlags::empty()).map_err(error("move_mount", *target))?;
                unmounter.make_private(copy.as_fd()).map_err(error("mount", *target))
            });
        }
        if result.is_err() {
            let _ = unmounter.unmount(cover.as_fd());
        }
        result
    })?;
    Ok(true)
}

/// Takes the cover and the copies away.
fn take_away(place: &NamespaceRoot, table: &MountTable) -> Result<(), MountError> {
    let is_cover = |mount: &&MountEntry| is_view(mount) && mount.mount_point == Path::new(COVER);
    let ours: Vec<&MountEntry> =
        table.iter().filter(is_cover).chain(table.iter().filter(|mount| is_kept(mount))).collect();
    place.enter(|unmounter| {
        ours.into_iter().try_for_each(|mount| unmount_exactly(place, unmounter, mount).map(drop))
    })
}

/// Whether [`keep`] has mounted it.
pub(super) fn is_kept(mount: &MountEntry) -> bool {
    KEPT.iter().any(|(fstype, target)| mount.fstype == *fstype && mount.mount_point == Path::new(target))
}

/// A mount of this type that a walk reaches and that shows all but what views cover, where none shows all.
fn behind_views<'a>(table: &'a MountTable, fstype: &str) -> Option<&'a MountEntry> {
    let of_type = || table.iter().filter(|mount| mount.fstype == fstype);
    let shows = |mount: &MountEntry, wanted| visibility(table, mount) == wanted;
    if of_type().any(|mount| shows(mount, Visibility::Whole)) {
        return None;
    }
    let is_reached =
        |mount: &MountEntry| table.visible(&mount.mount_point).is_some_and(|top| top.id == mount.id);
    of_type().find(|mount| shows(mount, Visibility::BehindViews) && is_reached(mount))
}

/// Whether there is a copy of one of which a part is masked by now.
fn shows_masked(table: &MountTable, fstype: &str) -> bool {
    let (copies, others): (Vec<_>, Vec<_>) =
        table.iter().filter(|mount| mount.fstype == fstype).partition(|mount| is_kept(mount));
    let shows_all = |mount: &&MountEntry| visibility(table, mount) != Visibility::Partial;
    !copies.is_empty() && !others.iter().any(shows_all)
}

fn visibility(table: &MountTable, mount: &MountEntry) -> Visibility {
    if mount.root != Path::new("/") {
        return Visibility::Partial;
    }
    let hides = |child: &&MountEntry| {
        let inside = child.mount_point.strip_prefix(&mount.mount_point);
        !inside.is_ok_and(|inside| EMPTY_DIRECTORIES.iter().any(|empty| inside == Path::new(empty)))
    };
    let hiding: Vec<&MountEntry> = table.mounted_on(mount.id).filter(hides).collect();
    // What is mounted on a view hides a part as well.
    let is_ours = |on: &MountEntry| on.source == Path::new(SOURCE) || is_kept(on);
    let only_view = |child: &&MountEntry| is_view(child) && table.mounted_on(child.id).all(is_ours);
    match hiding.iter().all(only_view) {
        _ if hiding.is_empty() => Visibility::Whole,
        true => Visibility::BehindViews,
        false => Visibility::Partial,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIEWS: &str = "30 11 0:99 /id/proc/stat /proc/stat ro - fuse.elbowroom elbowroom ro\n\
                         31 12 0:99 /id/sys/devices/system/cpu /sys/devices/system/cpu ro - fuse.elbowroom elbowroom ro\n";

    const COPIES: &str = "50 31 0:2 / /sys/devices/system/cpu/.elbowroom/proc rw - proc proc rw\n\
                          51 31 0:3 / /sys/devices/system/cpu/.elbowroom/sys rw - sysfs sysfs rw\n";

    fn table(more: &str) -> MountTable {
        let text = format!(
            "10 1 0:1 / / rw - ext4 root rw\n11 10 0:2 / /proc rw - proc proc rw\n12 10 0:3 / /sys rw - sysfs sysfs rw\n\
             13 12 0:4 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n14 11 0:5 / /proc/sys/fs/binfmt_misc rw - autofs x rw\n{more}"
        );
        MountTable::parse(text.as_bytes(), Path::new("mountinfo")).unwrap()
    }

    /// Of proc and of sysfs: the mount that is to be kept, by its number.
    fn kept(more: &str) -> [Option<u64>; 2] {
        let table = table(more);
        KEPT.map(|(fstype, _)| behind_views(&table, fstype).map(|mount| mount.id))
    }

    #[test]
    fn what_only_views_cover_is_kept() {
        assert_eq!(kept(VIEWS), [Some(11), Some(12)]);
        assert_eq!(kept(""), [None, None], "without views");
    }

    #[test]
    fn what_an_engine_has_masked_is_not_shown() {
        let kcore = format!("{VIEWS}40 11 0:50 /null /proc/kcore rw - tmpfs tmpfs rw\n");
        assert_eq!(kept(&kcore), [None, Some(12)]);
        let firmware = format!("{VIEWS}40 12 0:50 / /sys/firmware ro - tmpfs tmpfs ro\n");
        assert_eq!(kept(&firmware), [Some(11), None]);
        let on_view = format!("{VIEWS}40 30 0:50 /null /proc/stat rw - tmpfs tmpfs rw\n");
        assert_eq!(kept(&on_view), [None, Some(12)]);
        let read_only = format!("{VIEWS}40 11 0:2 /sys /proc/sys ro - proc proc rw\n");
        assert_eq!(kept(&read_only), [None, Some(12)]);
    }

    #[test]
    fn what_is_whole_already_is_not_mounted_again() {
        assert_eq!(kept(&format!("{VIEWS}{COPIES}")), [None, None]);
    }

    #[test]
    fn a_copy_of_what_was_masked_afterwards_is_known() {
        let copies = format!("{VIEWS}{COPIES}");
        let known = |more: &str| {
            let table = table(&format!("{copies}{more}"));
            KEPT.map(|(fstype, _)| shows_masked(&table, fstype))
        };
        assert_eq!(known(""), [false, false]);
        assert_eq!(known("60 11 0:50 /null /proc/kcore rw - tmpfs tmpfs rw\n"), [true, false]);
        assert_eq!(known("60 12 0:50 / /sys/firmware ro - tmpfs tmpfs ro\n"), [false, true]);
    }

    #[test]
    fn a_proc_that_another_covers_is_not_the_one_to_copy() {
        let over = format!("{VIEWS}40 11 0:60 / /proc rw - tmpfs x rw\n");
        assert_eq!(kept(&over)[0], None);
    }
}
