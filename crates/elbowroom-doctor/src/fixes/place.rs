//! Making a cgroup of a size, moving processes there, and taking both back.

use super::write::{Outcome, WriteError};
use crate::strategies::housekeeping::{PARENT, Placing, Process};
use elbowroom_linux::process::start_ticks;
use elbowroom_linux::root::{ReadError, Root};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// Makes the cgroup, bounds it, and moves the processes that still are what they were. One that ended in between is no error.
///
/// # Errors
/// Where the kernel refuses; what was made until then is for [`unplace`].
pub fn place(root: &Root, placing: &Placing) -> Result<(), WriteError> {
    let dir = Path::new(&placing.dir);
    let around = Path::new(&placing.from).join(PARENT);
    make(root, &around)?;
    // v2: a cgroup has a controller's files where the one above hands it on.
    if has(root, &around.join("cgroup.subtree_control")) {
        put(root, &around.join("cgroup.subtree_control"), "+memory")?;
    }
    make(root, dir)?;
    put(root, &dir.join(&placing.file), &placing.size.get().to_string())?;
    for process in placing.processes.iter().filter(|p| is_same(root, p)) {
        join(root, dir, process.pid)?;
    }
    Ok(())
}

/// Moves every process of the cgroup back, also those started there since, and removes it.
///
/// # Errors
/// Where the kernel refuses.
pub fn unplace(root: &Root, placing: &Placing) -> Result<Outcome, WriteError> {
    let dir = Path::new(&placing.dir);
    let around = Path::new(&placing.from).join(PARENT);
    if !has(root, &around) {
        return Ok(Outcome::Gone);
    }
    let outcome = if has(root, &dir.join("cgroup.procs")) {
        empty(root, dir, Path::new(&placing.from))?;
        remove(root, dir)?;
        Outcome::Reverted
    } else {
        Outcome::Gone
    };
    // The last one takes the cgroup around it along.
    match remove(root, &around) {
        Ok(()) | Err(WriteError::Refused { source: Errno::BUSY | Errno::NOTEMPTY, .. }) => Ok(outcome),
        Err(error) => Err(error),
    }
}

/// Moves all processes of a cgroup into another one.
fn empty(root: &Root, dir: &Path, to: &Path) -> Result<(), WriteError> {
    // A process can have a child between the list and its move.
    for _ in 0..100 {
        let procs = root.read(dir.join("cgroup.procs"))?;
        if procs.trim().is_empty() {
            break;
        }
        for pid in procs.lines().filter_map(|pid| pid.parse().ok()) {
            join(root, to, pid)?;
        }
    }
    Ok(())
}

fn is_same(root: &Root, process: &Process) -> bool {
    let stat = root.read(format!("/proc/{}/stat", process.pid)).ok();
    stat.and_then(|s| start_ticks(&s)) == Some(process.started)
}

fn has(root: &Root, file: &Path) -> bool {
    root.open(file, OFlags::PATH).is_ok()
}

fn join(root: &Root, dir: &Path, pid: i32) -> Result<(), WriteError> {
    match put(root, &dir.join("cgroup.procs"), &pid.to_string()) {
        Err(WriteError::Refused { source: Errno::SRCH, .. }) => Ok(()),
        other => other,
    }
}

fn put(root: &Root, file: &Path, data: &str) -> Result<(), WriteError> {
    let fd = root.open(file, OFlags::WRONLY)?;
    rustix::io::write(&fd, data.as_bytes()).map(|_| ()).map_err(refused(file, data))
}

fn make(root: &Root, dir: &Path) -> Result<(), WriteError> {
    let (above, name) = parts(root, dir)?;
    match rustix::fs::mkdirat(above, name, Mode::from_raw_mode(0o755)) {
        Err(source) if source != Errno::EXIST => Err(refused(dir, "a directory")(source)),
        _ => Ok(()),
    }
}

fn remove(root: &Root, dir: &Path) -> Result<(), WriteError> {
    let (above, name) = parts(root, dir)?;
    match rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR) {
        Err(source) if source != Errno::NOENT => Err(refused(dir, "its end")(source)),
        _ => Ok(()),
    }
}

fn parts<'a>(root: &Root, dir: &'a Path) -> Result<(std::os::fd::OwnedFd, &'a Path), ReadError> {
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

    fn placing() -> Placing {
        Placing {
            dir: format!("/cg/{PARENT}/x"),
            from: "/cg".into(),
            file: "memory.high".into(),
            size: Bytes::mib(1),
            processes: Vec::new(),
        }
    }

    #[test]
    fn a_cgroup_around_one_that_was_not_made_goes_unless_it_holds_another() {
        let host = Fixture::new(&format!("-- cg/{PARENT}/y/ --\n")).unwrap();
        let root = Root::at(host.path()).unwrap();
        let around = format!("/cg/{PARENT}");
        assert_eq!(unplace(&root, &placing()).unwrap(), Outcome::Gone);
        assert!(has(&root, Path::new(&around)));
        host.remove(&format!("cg/{PARENT}/y")).unwrap();
        assert_eq!(unplace(&root, &placing()).unwrap(), Outcome::Gone);
        assert!(!has(&root, Path::new(&around)));
    }

    #[test]
    fn what_was_never_made_is_gone_and_another_process_of_the_number_is_left_alone() {
        let host = Fixture::new(
            "-- cg/cgroup.procs --\n7\n-- proc/7/stat --\n7 (x) S 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 78 0\n",
        )
        .unwrap();
        let root = Root::at(host.path()).unwrap();
        assert_eq!(unplace(&root, &placing()).unwrap(), Outcome::Gone);
        assert!(is_same(&root, &Process { pid: 7, started: 78, ..Process::default() }));
        assert!(!is_same(&root, &Process { pid: 7, started: 77, ..Process::default() }));
        assert!(!is_same(&root, &Process { pid: 8, started: 78, ..Process::default() }));
    }
}
