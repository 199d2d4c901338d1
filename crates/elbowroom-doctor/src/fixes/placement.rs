//! Making a cgroup of a size, moving processes there, and taking both back.

use super::write::{RevertOutcome, WriteError};
use crate::strategies::housekeeping::{HousekeepingCgroup, PARENT_CGROUP, RootProcess};
use elbowroom_linux::process::start_ticks;
use elbowroom_linux::root::{ReadError, Root};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// Makes the cgroup, bounds it, and moves the processes that still are what they were. One that ended in between is no error.
///
/// # Errors
/// Where the kernel refuses; what was made until then is for [`revert_placement`].
pub(crate) fn apply_placement(root: &Root, placing: &HousekeepingCgroup) -> Result<(), WriteError> {
    let dir = Path::new(&placing.dir);
    let around = Path::new(&placing.from).join(PARENT_CGROUP);
    create_cgroup(root, &around)?;
    // v2: a cgroup has a controller's files where the one above hands it on.
    if is_present(root, &around.join("cgroup.subtree_control")) {
        write_file(root, &around.join("cgroup.subtree_control"), "+memory")?;
    }
    create_cgroup(root, dir)?;
    write_file(root, &dir.join(&placing.file), &placing.size.get().to_string())?;
    for process in placing.processes.iter().filter(|p| is_same(root, p)) {
        add_process(root, dir, process.pid)?;
    }
    Ok(())
}

/// Moves every process of the cgroup back, also those started there since, and removes it.
///
/// # Errors
/// Where the kernel refuses.
pub(crate) fn revert_placement(
    root: &Root,
    placing: &HousekeepingCgroup,
) -> Result<RevertOutcome, WriteError> {
    let dir = Path::new(&placing.dir);
    let around = Path::new(&placing.from).join(PARENT_CGROUP);
    if !is_present(root, &around) {
        return Ok(RevertOutcome::Gone);
    }
    let outcome = if is_present(root, &dir.join("cgroup.procs")) {
        move_all_processes(root, dir, Path::new(&placing.from))?;
        remove_cgroup(root, dir)?;
        RevertOutcome::Reverted
    } else {
        RevertOutcome::Gone
    };
    // The last one takes the cgroup around it along.
    match remove_cgroup(root, &around) {
        Ok(()) | Err(WriteError::Refused { source: Errno::BUSY | Errno::NOTEMPTY, .. }) => Ok(outcome),
        Err(error) => Err(error),
    }
}

/// Moves all processes of a cgroup into another one.
fn move_all_processes(root: &Root, dir: &Path, to: &Path) -> Result<(), WriteError> {
    // A process can have a child between the list and its move.
    for _ in 0..100 {
        let procs = root.read(dir.join("cgroup.procs"))?;
        if procs.trim().is_empty() {
            break;
        }
        for pid in procs.lines().filter_map(|pid| pid.parse().ok()) {
            add_process(root, to, pid)?;
        }
    }
    Ok(())
}

fn is_same(root: &Root, process: &RootProcess) -> bool {
    let stat = root.read(format!("/proc/{}/stat", process.pid)).ok();
    stat.and_then(|s| start_ticks(&s)) == Some(process.started)
}

fn is_present(root: &Root, file: &Path) -> bool {
    root.open(file, OFlags::PATH).is_ok()
}

fn add_process(root: &Root, dir: &Path, pid: i32) -> Result<(), WriteError> {
    match write_file(root, &dir.join("cgroup.procs"), &pid.to_string()) {
        Err(WriteError::Refused { source: Errno::SRCH, .. }) => Ok(()),
        other => other,
    }
}

fn write_file(root: &Root, file: &Path, data: &str) -> Result<(), WriteError> {
    let fd = root.open(file, OFlags::WRONLY)?;
    rustix::io::write(&fd, data.as_bytes()).map(|_| ()).map_err(refused(file, data))
}

fn create_cgroup(root: &Root, dir: &Path) -> Result<(), WriteError> {
    let (above, name) = open_parent(root, dir)?;
    match rustix::fs::mkdirat(above, name, Mode::from_raw_mode(0o755)) {
        Err(source) if source != Errno::EXIST => Err(refused(dir, "a directory")(source)),
        _ => Ok(()),
    }
}

fn remove_cgroup(root: &Root, dir: &Path) -> Result<(), WriteError> {
    let (above, name) = open_parent(root, dir)?;
    match rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR) {
        Err(source) if source != Errno::NOENT => Err(refused(dir, "its end")(source)),
        _ => Ok(()),
    }
}

fn open_parent<'a>(root: &Root, dir: &'a Path) -> Result<(std::os::fd::OwnedFd, &'a Path), ReadError> {
    let above = dir.parent().unwrap_or(Path::new("/"));
    let name = dir.file_name().map_or(Path::new("."), Path::new);
    Ok((root.open(above, OFlags::RDONLY | OFlags::DIRECTORY)?, name))
}

fn refused(file: &Path, data: &str) -> impl FnOnce(Errno) -> WriteError {
    let (file, data) = (file.to_string_lossy().into_owned(), data.to_owned());
    move |source| WriteError::Refused { file, data, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_linux::fixture::Fixture;
    use elbowroom_types::unit::Bytes;

    fn placing() -> HousekeepingCgroup {
        HousekeepingCgroup {
            dir: format!("/cg/{PARENT_CGROUP}/x"),
            from: "/cg".into(),
            file: "memory.high".into(),
            size: Bytes::mib(1),
            processes: Vec::new(),
        }
    }

    #[test]
    fn a_cgroup_around_one_that_was_not_made_goes_unless_it_holds_another() {
        let host = Fixture::new(&format!("-- cg/{PARENT_CGROUP}/y/ --\n")).unwrap();
        let root = Root::at(host.path()).unwrap();
        let around = format!("/cg/{PARENT_CGROUP}");
        assert_eq!(revert_placement(&root, &placing()).unwrap(), RevertOutcome::Gone);
        assert!(is_present(&root, Path::new(&around)));
        host.remove(&format!("cg/{PARENT_CGROUP}/y")).unwrap();
        assert_eq!(revert_placement(&root, &placing()).unwrap(), RevertOutcome::Gone);
        assert!(!is_present(&root, Path::new(&around)));
    }

    #[test]
    fn what_was_never_made_is_gone_and_another_process_of_the_number_is_left_alone() {
        let host = Fixture::new(
            "-- cg/cgroup.procs --\n7\n-- proc/7/stat --\n7 (x) S 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 78 0\n",
        )
        .unwrap();
        let root = Root::at(host.path()).unwrap();
        assert_eq!(revert_placement(&root, &placing()).unwrap(), RevertOutcome::Gone);
        assert!(is_same(&root, &RootProcess { pid: 7, started: 78, ..RootProcess::default() }));
        assert!(!is_same(&root, &RootProcess { pid: 7, started: 77, ..RootProcess::default() }));
        assert!(!is_same(&root, &RootProcess { pid: 8, started: 78, ..RootProcess::default() }));
    }
}
