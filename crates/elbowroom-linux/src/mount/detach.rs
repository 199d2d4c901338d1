//! Taking views out of a mount namespace, and finding those that are there.

use super::MountError;
use super::mount_calls::id_of;
use super::namespace::{NamespaceRoot, Unmounter};
use super::plan::{is_view, view_name};
use crate::mountinfo::{MountEntry, MountTable};
use crate::process;
use elbowroom_types::id::DeviceNumber;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// How often what is left is unmounted: a view may hide another one, and a container may mount meanwhile.
const MAX_UNMOUNT_ROUNDS: usize = 16;
/// How long the first container is waited for whose file systems do not answer, where all are detached; each further one less.
const DETACH_TIMEOUT: Duration = Duration::from_secs(2);

impl NamespaceRoot {
    /// Unmounts every view, stacked ones too, and says how many mounts that were; with a name only the view of that name, and not
    /// that of another container that shares the mount namespace. [`MountError::Covered`]: something else is mounted over one,
    /// which stays; all others are gone.
    pub fn detach(&self, name: Option<&OsStr>) -> Result<usize, MountError> {
        self.or_vanished(self.refuse_host())?;
        let _lock = self.lock()?;
        let table = self.table()?;
        let before = views(&table, name).len();
        if before == 0 {
            return Ok(0);
        }
        let pressure = self.find_place(&table);
        self.enter(|unmounter| {
            for round in 0.. {
                let table = self.table()?;
                let left = views(&table, name);
                let Some(first) = left.first() else { break };
                if round == MAX_UNMOUNT_ROUNDS || !unmount_visible(self, unmounter, &table, &left)? {
                    return Err(MountError::Covered { target: first.mount_point.clone() });
                }
            }
            let withdrawn = pressure.map_or(Ok(()), |mount| self.withdraw_pressure_file(unmounter, mount));
            if let Err(error) = withdrawn {
                tracing::warn!(because = %error, "the memory-pressure file stays in a container");
            }
            Ok(before)
        })
    }

    /// The paths on which a view is mounted, each once.
    pub fn attached(&self) -> Result<Vec<PathBuf>, MountError> {
        let table = self.table()?;
        let mut seen = HashSet::new();
        let paths = views(&table, None).into_iter().map(|mount| mount.mount_point.clone());
        Ok(paths.filter(|path| seen.insert(path.clone())).collect())
    }
}

/// Unmounts every view, or that of a name, from the mount namespace of each of these processes of the cgroup `group`. Returns how
/// many mounts that were. Processes may be in several namespaces: a copy of the container's (`unshare -m`, a sandbox of systemd's)
/// keeps the views it was made with. Processes that vanish, and those in the host's namespace, have none. A failure in the first
/// namespace, the container's where its first process is in front, is the error; failures in others are logged.
pub fn detach_group(group: &str, pids: &[u32], name: Option<&OsStr>) -> Result<usize, MountError> {
    let mut seen = HashSet::new();
    let mut result = None;
    for pid in pids {
        let detached = NamespaceRoot::in_group(*pid, group).and_then(|place| {
            let namespace = place.namespace()?;
            if seen.contains(&namespace) {
                return Ok(0);
            }
            let detached = place.detach(name);
            // One that vanished may have left others there.
            if !matches!(detached, Err(MountError::Vanished { .. })) {
                seen.insert(namespace);
            }
            detached
        });
        match (detached, &mut result) {
            (Err(MountError::Vanished { .. } | MountError::HostNamespace { .. }), _) => {}
            (first, None) => result = Some(first),
            (Ok(more), Some(Ok(sum))) => *sum += more,
            (Ok(_), Some(Err(_))) => {}
            (Err(error), Some(_)) => {
                tracing::warn!(group, pid, because = %error, "views stay in a copy of a mount namespace");
            }
        }
    }
    result.unwrap_or(Ok(0))
}

/// Unmounts every view from all mount namespaces but the host's in which there is one of the file system `device`, and says how
/// many namespaces that were: where no process is left that knows the containers. What fails in one is logged, and no other process there
/// is tried. A thread stays behind for each container whose file systems do not answer.
pub fn detach_all(device: DeviceNumber) -> usize {
    let (mut detached, mut left, mut looked) = (0, 0, HashSet::new());
    for pid in process::all_pids() {
        let Ok(place) = NamespaceRoot::of(pid) else { continue };
        let Ok(sight) = place.sight() else { continue };
        // A container has thousands of processes, and a table of megabytes: one look at each table.
        if !looked.insert(sight) {
            continue;
        }
        let table = place.table();
        if matches!(table, Err(MountError::Vanished { .. })) {
            looked.remove(&sight);
        }
        if !table.is_ok_and(|table| views(&table, None).iter().any(|mount| mount.device == device)) {
            continue;
        }
        let (ended, end) = mpsc::channel();
        std::thread::spawn(move || ended.send(place.detach(None)));
        let because = match end.recv_timeout(DETACH_TIMEOUT / (1 + left)) {
            Ok(Ok(_)) => {
                detached += 1;
                continue;
            }
            Ok(Err(MountError::HostNamespace { .. })) => continue,
            // Others may be there.
            Ok(Err(MountError::Vanished { .. })) => {
                looked.remove(&sight);
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "its file systems do not answer".to_owned(),
        };
        tracing::warn!(pid, because, "views stay in a container");
        left += 1;
    }
    detached
}

/// Unmounts of these views what walks to their mount points reach, layer by layer; says whether that was any.
fn unmount_visible(
    place: &NamespaceRoot,
    unmounter: &Unmounter,
    table: &MountTable,
    views: &[&MountEntry],
) -> Result<bool, MountError> {
    let ids: HashSet<u64> = views.iter().map(|view| view.id).collect();
    let targets: BTreeSet<&Path> = views.iter().map(|view| view.mount_point.as_path()).collect();
    let mut any = false;
    for target in targets {
        for layer in table.stack(target).into_iter().take_while(|layer| ids.contains(&layer.id)) {
            if !unmount_exactly(place, unmounter, layer)? {
                break;
            }
            any = true;
        }
    }
    Ok(any)
}

/// Unmounts `mount` if it is what a walk to its mount point reaches; says whether it did.
pub(super) fn unmount_exactly(
    place: &NamespaceRoot,
    unmounter: &Unmounter,
    mount: &MountEntry,
) -> Result<bool, MountError> {
    let error = |call, errno| MountError::of(call, &mount.mount_point, errno);
    let fd = match place.open(&mount.mount_point) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(false),
        opened => opened.map_err(|e| error("openat2", e))?,
    };
    if id_of(&fd, &mount.mount_point)?.mount != mount.id {
        return Ok(false);
    }
    unmounter.unmount(fd.as_fd()).map_err(|e| error("umount2", e))?;
    Ok(true)
}

/// The views in a mount table; with a name only those of that name.
fn views<'a>(table: &'a MountTable, name: Option<&OsStr>) -> Vec<&'a MountEntry> {
    let is_meant =
        |mount: &&MountEntry| is_view(mount) && name.is_none_or(|name| view_name(mount) == Some(name));
    table.iter().filter(is_meant).collect()
}
