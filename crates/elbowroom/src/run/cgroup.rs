//! The cgroups of `elbowroom run`: `/elbowroom/NAME` in every hierarchy that limits or views need.
//!
//! A runner holds a lock (`flock`) on the first of its cgroup's directories as long as it lives, and hands it to its reaper where
//! processes are left. A cgroup whose lock is free has no owner: if it is empty too, any later run may remove it. So a runner that was
//! killed leaves nothing for good, and a cgroup that is just being made is not mistaken for a leftover.

use super::hierarchies::{PARENT, RunCgroupVersion, RunHierarchies, RunHierarchy, read};
use super::labels::{self, RunLabels};
use super::limits::RunLimits;
use super::private_agent;
use anyhow::{Context, bail, ensure};
use elbowroom_client::control::labels_dir;
use elbowroom_linux::bounded;
use elbowroom_types::unit::counted;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, PidfdFlags};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Modes of a run's cgroups, and of the locked one. Any user that can open a directory can lock it, and so block a run that waits for the
/// lock. Files in the locked one are read by name as in any other.
const CGROUP_MODE: u32 = 0o755;
const LOCKED_MODE: u32 = 0o711;
/// How long a process that has ended may still be listed.
const EXIT_GRACE: Duration = Duration::from_millis(200);

/// The cgroups of one run. Dropping it removes nothing, [`RunCgroup::remove`] does.
#[derive(Debug)]
pub(crate) struct RunCgroup {
    name: String,
    dirs: Vec<PathBuf>,
    lock: File,
    /// Of the agent; its labels are there.
    run_dir: PathBuf,
}

/// Processes were left, so the cgroup was.
#[derive(Debug, thiserror::Error)]
#[error("cgroup /{PARENT}/{} is still in use ({} in {})", group.name, counted(processes, "process"), dir.display())]
pub(crate) struct CgroupInUse {
    /// What was to be removed.
    pub(crate) group: RunCgroup,
    dir: PathBuf,
    processes: usize,
}

impl RunCgroup {
    /// Makes `/elbowroom/NAME` in every hierarchy and sets the limits. On failure nothing stays.
    pub(crate) fn create(
        layout: &RunHierarchies,
        run_dir: &Path,
        name: &str,
        limits: &RunLimits,
        labels: &RunLabels,
    ) -> anyhow::Result<Self> {
        let dirs = layout.dirs(name);
        // The agent looks for labels as soon as it sees a cgroup. Where the cgroup exists already, it may be another run's.
        if !dirs[0].exists() {
            labels.write(run_dir, name)?;
        }
        let lock = lock_new_cgroup(&dirs, name)?;
        let group = Self { name: name.to_owned(), dirs, lock, run_dir: run_dir.to_owned() };
        let done = labels.write(run_dir, name).and_then(|()| {
            (layout.0.iter().zip(&group.dirs)).try_for_each(|(hierarchy, dir)| set_up(hierarchy, dir, limits))
        });
        match done {
            Ok(()) => Ok(group),
            Err(error) => {
                let _ = group.remove();
                Err(error)
            }
        }
    }

    /// The directories, one per hierarchy.
    pub(crate) fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// Whether the kernel killed a process in them for memory (`memory_cgrp_event`, mm/memcontrol.c).
    pub(crate) fn had_oom_kill(&self) -> bool {
        let files =
            self.dirs.iter().flat_map(|dir| ["memory.events", "memory.oom_control"].map(|f| dir.join(f)));
        let kills =
            |text: &str| text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse::<u64>().ok());
        files
            .filter_map(|file| kills(&bounded::file_text(file, bounded::KERNEL_FILE).ok()?))
            .any(|kills| kills > 0)
    }

    /// Removes the cgroups, unless processes are left in them.
    pub(crate) fn remove(self) -> Result<(), CgroupInUse> {
        let deadline = Instant::now() + EXIT_GRACE;
        while let Some((dir, processes)) = self.dirs.iter().find_map(|dir| Some((dir, process_count(dir)?))) {
            if Instant::now() > deadline {
                let dir = dir.clone();
                return Err(CgroupInUse { group: self, dir, processes });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.remove_all();
        Ok(())
    }

    /// Waits until the runner that holds the lock of `name` has ended; the lock, where it has left its cgroups.
    ///
    /// # Errors
    /// The lock cannot be waited for.
    pub(crate) fn wait_for_lock(layout: &RunHierarchies, name: &str) -> io::Result<Option<File>> {
        let dir = &layout.dirs(name)[0];
        let file = match File::open(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        while let Err(errno) = rustix::fs::flock(&file, FlockOperation::LockExclusive) {
            if errno != rustix::io::Errno::INTR {
                return Err(errno.into());
            }
        }
        Ok(is_at(&file, dir).then_some(file))
    }

    /// What a reaper needs: the name, the agent's directory and the lock.
    pub(crate) fn into_parts(self) -> (String, PathBuf, File) {
        (self.name, self.run_dir, self.lock)
    }

    /// The cgroups of another run, from its [`RunCgroup::into_parts`].
    pub(crate) fn adopt(layout: &RunHierarchies, name: &str, run_dir: &Path, lock: File) -> Self {
        Self { name: name.to_owned(), dirs: layout.dirs(name), lock, run_dir: run_dir.to_owned() }
    }

    /// Labels first: the lock of the name goes with the cgroups.
    fn remove_all(&self) {
        labels::remove(&labels_dir(&self.run_dir), &self.name);
        remove_all(&self.dirs);
    }

    /// Waits for the last process, however long that takes, and removes the cgroups.
    pub(crate) fn remove_when_empty(self) {
        while let Some(process) = self.dirs.iter().find_map(|dir| any_process(dir)) {
            // One that is gone, or of another PID namespace, has no descriptor to wait for; and one that has ended may be listed
            // for a moment.
            if let Some(end) = pidfd(process) {
                let _ = rustix::event::poll(&mut [PollFd::new(&end, PollFlags::IN)], None);
                std::thread::sleep(Duration::from_millis(10));
            } else {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        self.remove_all();
    }
}

fn pidfd(process: i32) -> Option<OwnedFd> {
    rustix::process::pidfd_open(Pid::from_raw(process)?, PidfdFlags::empty()).ok()
}

/// Refuses names that are no cgroup names or could leave the parent cgroup.
pub(crate) fn check_name(name: &str) -> anyhow::Result<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let good =
        name.len() <= 64 && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(plain);
    ensure!(
        good,
        "--name {name:?}: give up to 64 letters, digits, `_`, `.` and `-`, a letter or digit first"
    );
    Ok(name)
}

/// Removes the cgroups of runs that are over: lock free, no process in any hierarchy. Says nothing: what cannot be removed
/// now, can be another time.
pub(crate) fn remove_stale(layout: &RunHierarchies, run_dir: &Path) {
    let parents = layout.0.iter().map(|hierarchy| hierarchy.root.join(PARENT));
    let names: BTreeSet<_> = parents
        .flat_map(|parent| child_dirs(&parent))
        .filter_map(|dir| dir.file_name()?.to_str().map(str::to_owned))
        .collect();
    for name in names {
        let dirs = layout.dirs(&name);
        if let Ok(Some((lock, _))) = lock(&dirs[0]) {
            let group = RunCgroup { name, dirs, lock, run_dir: run_dir.to_owned() };
            if group.dirs.iter().all(|dir| process_count(dir).is_none()) {
                group.remove_all();
            }
        }
    }
    let has_cgroup = |name: &str| layout.dirs(name).iter().any(|dir| dir.exists());
    labels::remove_orphans(&labels_dir(run_dir), has_cgroup);
    private_agent::remove_stale(run_dir, has_cgroup);
}

/// A lock held longer than this is a run's, not a sweep's.
const SWEEP_TIMEOUT: Duration = Duration::from_millis(500);

/// Makes and locks the first directory, so that the name is ours.
fn lock_new_cgroup(dirs: &[PathBuf], name: &str) -> anyhow::Result<File> {
    let patience = Instant::now() + SWEEP_TIMEOUT;
    for _ in 0..100 {
        let locked = loop {
            match lock(&dirs[0]).with_context(|| dirs[0].display().to_string())? {
                // A run that is starting beside us may be looking whether this is a leftover, which does not take long.
                None if Instant::now() < patience => std::thread::sleep(Duration::from_millis(2)),
                locked => break locked,
            }
        };
        let Some((lock, fresh)) = locked else {
            bail!("--name {name}: another `elbowroom run` has a command of this name: give another");
        };
        if let Some((dir, processes)) = dirs.iter().find_map(|dir| Some((dir, process_count(dir)?))) {
            let dir = dir.display();
            bail!(
                "--name {name}: {dir} still has {} of an earlier run: give another name",
                counted(processes, "process")
            );
        }
        // An earlier run's settings must not outlive it: only directories made just now will do.
        if fresh && dirs.iter().skip(1).all(|dir| !dir.exists()) {
            return Ok(lock);
        }
        remove_all(dirs);
    }
    bail!("--name {name}: the cgroup /{PARENT}/{name} keeps changing: give another name")
}

/// Takes the lock of `dir`, which is made where it is missing; says whether it was. `None`: another process holds the lock.
fn lock(dir: &Path) -> io::Result<Option<(File, bool)>> {
    for _ in 0..100 {
        if let Some(parent) = dir.parent() {
            make_dir(parent, CGROUP_MODE)?;
        }
        let made = make_dir(dir, LOCKED_MODE).and_then(|fresh| Ok((File::open(dir)?, fresh)));
        let (file, fresh) = match made {
            // Removed meanwhile, together with its parent perhaps.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            made => made?,
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        // The lock of a directory that was removed before we got it says nothing.
        if is_at(&file, dir) {
            return Ok(Some((file, fresh)));
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Whether the open directory is the one that is at `dir` now.
fn is_at(file: &File, dir: &Path) -> bool {
    std::fs::metadata(dir).is_ok_and(|now| file.metadata().is_ok_and(|held| held.ino() == now.ino()))
}

/// Says whether the directory is new.
fn make_dir(dir: &Path, mode: u32) -> io::Result<bool> {
    match std::fs::DirBuilder::new().mode(mode).create(dir) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes one cgroup ready: controllers on, limits set.
fn set_up(hierarchy: &RunHierarchy, dir: &Path, limits: &RunLimits) -> anyhow::Result<()> {
    let parent = hierarchy.root.join(PARENT);
    // Another run that ends may remove the empty parent at any moment.
    let mut tries = 0;
    while let Err(error) = make_dir(&parent, CGROUP_MODE).and_then(|_| make_dir(dir, CGROUP_MODE)) {
        tries += 1;
        if error.kind() != io::ErrorKind::NotFound || tries > 100 {
            return Err(error).with_context(|| dir.display().to_string());
        }
    }
    match hierarchy.version {
        RunCgroupVersion::V1 if hierarchy.has("cpuset") => {
            inherit_cpuset(&hierarchy.root, &parent)?;
            inherit_cpuset(&parent, dir)?;
        }
        RunCgroupVersion::V1 => {}
        RunCgroupVersion::V2 => {
            enable_controllers(hierarchy, &hierarchy.root, limits)?;
            enable_controllers(hierarchy, &parent, limits)?;
        }
    }
    limits.cgroup_files(hierarchy).into_iter().try_for_each(|(file, value)| write(&dir.join(file), &value))
}

/// A v1 cpuset starts empty, and no process may join it before it has CPUs and memory nodes.
fn inherit_cpuset(from: &Path, to: &Path) -> anyhow::Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if read(&to.join(file))?.trim().is_empty() {
            write(&to.join(file), read(&from.join(file))?.trim())?;
        }
    }
    Ok(())
}

/// Turns the controllers on for the children of `dir`. One that no limit needs may stay off.
fn enable_controllers(hierarchy: &RunHierarchy, dir: &Path, limits: &RunLimits) -> anyhow::Result<()> {
    let file = dir.join("cgroup.subtree_control");
    for controller in &hierarchy.controllers {
        let done = write(&file, &format!("+{controller}"));
        if limits.needs_controller(controller) {
            // Any cgroup but the real root must be free of processes (cgroup-v2.rst, "No Internal Process Constraint").
            done.with_context(|| {
                format!(
                    "the {controller} controller cannot be turned on: where {} lists processes, move them one level down",
                    dir.join("cgroup.procs").display()
                )
            })?;
        }
    }
    Ok(())
}

/// A process of the subtree, 0 if it is of another PID namespace.
fn any_process(dir: &Path) -> Option<i32> {
    let own = bounded::file_text(dir.join("cgroup.procs"), bounded::KERNEL_FILE).unwrap_or_default();
    let first = own.lines().next().map(|line| line.parse().unwrap_or(0));
    first.or_else(|| child_dirs(dir).iter().find_map(|child| any_process(child)))
}

/// How many processes the subtree has; `None` for none, or no such directory.
fn process_count(dir: &Path) -> Option<usize> {
    let own = bounded::file_text(dir.join("cgroup.procs"), bounded::KERNEL_FILE);
    let own = own.map_or(0, |text| text.lines().count());
    let below: usize = child_dirs(dir).iter().filter_map(|child| process_count(child)).sum();
    Some(own + below).filter(|processes| *processes > 0)
}

/// Removes empty cgroups, whatever the command made below them too, and the parents if they have become empty. The first
/// directory, whose lock is held, goes last.
fn remove_all(dirs: &[PathBuf]) {
    fn remove(dir: &Path) {
        child_dirs(dir).iter().for_each(|child| remove(child));
        // The kernel removes no cgroup that is in use.
        let _ = std::fs::remove_dir(dir);
    }
    for dir in dirs.iter().rev() {
        remove(dir);
        let _ = dir.parent().map(std::fs::remove_dir);
    }
}

fn child_dirs(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn write(path: &Path, value: &str) -> anyhow::Result<()> {
    std::fs::write(path, value).with_context(|| format!("{}: writing {value:?}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_the_parent() {
        for good in ["web", "a.b-c_1", "7"] {
            assert_eq!(check_name(good).unwrap(), good);
        }
        for bad in ["", ".", "..", "../x", "a/b", "-a", "a b", "caf\u{e9}", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_is_claimed_once_and_free_again_with_its_owner() {
        let root = tempfile::tempdir().unwrap();
        let dirs = [root.path().join("a/elbowroom/x"), root.path().join("b/elbowroom/x")];
        dirs.iter().for_each(|dir| std::fs::create_dir_all(dir.parent().unwrap().parent().unwrap()).unwrap());
        let first = lock_new_cgroup(&dirs, "x").unwrap();
        let error = lock_new_cgroup(&dirs, "x").unwrap_err().to_string();
        assert_eq!(error, "--name x: another `elbowroom run` has a command of this name: give another");
        drop(first);
        // A leftover: it is made anew, with nothing of its old self.
        std::fs::create_dir(dirs[0].join("nested")).unwrap();
        let _second = lock_new_cgroup(&dirs, "x").unwrap();
        assert!(!dirs[0].join("nested").exists());
    }

    #[test]
    fn a_sweep_that_looks_at_a_new_directory_does_not_take_its_name() {
        let root = tempfile::tempdir().unwrap();
        let dirs = [root.path().join(PARENT).join("x")];
        let sweeping = lock(&dirs[0]).unwrap();
        std::thread::scope(|scope| {
            let claimed = scope.spawn(|| lock_new_cgroup(&dirs, "x"));
            // Long enough for the claim to meet the lock; it passes however long this takes, within its patience.
            std::thread::sleep(Duration::from_millis(20));
            drop(sweeping);
            claimed.join().unwrap().unwrap();
        });
    }

    #[test]
    fn sweeping_takes_leftovers_and_spares_what_is_held_or_in_use() {
        let root = tempfile::tempdir().unwrap();
        let layout = RunHierarchies::of(vec![RunHierarchy::new(
            root.path().to_str().unwrap(),
            RunCgroupVersion::V1,
            &["cpu"],
        )]);
        let parent = root.path().join(PARENT);
        for name in ["held", "left", "used"] {
            std::fs::create_dir_all(parent.join(name)).unwrap();
        }
        std::fs::write(parent.join("used/cgroup.procs"), "12\n").unwrap();
        let held = lock(&parent.join("held")).unwrap();
        remove_stale(&layout, root.path());
        let left: Vec<bool> =
            ["held", "left", "used"].iter().map(|name| parent.join(name).exists()).collect();
        assert_eq!(left, [true, false, true]);
        drop(held);
        remove_stale(&layout, root.path());
        assert!(!parent.join("held").exists());
    }
}
