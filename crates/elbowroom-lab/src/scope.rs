//! What a run made, so that it can be unmade: by the run itself, on an error, on Ctrl-C, and, after a `kill -9`, by
//! `elbowroom-lab clean`.
//!
//! Every cgroup, mount, process and Docker object is written to a ledger *before* it is made. Guards take things down one
//! by one in the ordinary course; [`Scope`] takes down what is left, newest first. All of it goes by id, none by name.

use crate::procfs;
use anyhow::{Context, Result, bail};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, waitpid};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PREFIX: &str = "elbowroom-lab-";

/// One thing on this machine that would outlive the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Created {
    /// A cgroup directory, without children of its own by the time it is removed.
    Cgroup(PathBuf),
    /// `+controller` written to a v2 `cgroup.subtree_control` that did not have it.
    Subtree {
        /// The file.
        file: PathBuf,
        /// The controller.
        controller: String,
    },
    /// A mount point in the host's mount namespace.
    Mount(PathBuf),
    /// The loop device on a file of this run's; its name is known only after it was made.
    Loop {
        /// The file.
        backing: PathBuf,
    },
    /// A device that is swapped to.
    Swap(PathBuf),
    /// A process; its start time tells it from a later one of the same number.
    Process {
        /// Number.
        pid: i32,
        /// Field 22 of `/proc/PID/stat`, clock ticks since boot.
        started: u64,
    },
    /// A Docker container.
    DockerContainer(String),
    /// A Docker image.
    DockerImage(String),
}

impl Created {
    /// Takes it down; a thing that is gone already is fine. What cannot be taken down is said on stderr.
    pub(crate) fn undo(&self) {
        let left = match self {
            Self::Cgroup(dir) => remove_cgroup(dir),
            Self::Subtree { file, controller } => {
                // Somebody else may use it by now; then the kernel says EBUSY and it stays, rightly.
                let _ = fs::write(file, format!("-{controller}"));
                Ok(())
            }
            Self::Mount(at) => remove_mount(at),
            Self::Loop { backing } => remove_loops(backing),
            Self::Swap(device) => remove_swap(device),
            Self::Process { pid, started } => end_process(*pid, *started),
            Self::DockerContainer(id) => docker(&["rm", "--force", "--volumes", id]),
            Self::DockerImage(id) => docker(&["rmi", "--force", id]),
        };
        if let Err(error) = left {
            eprintln!("warning: {error:#}; run `elbowroom-lab clean` later or remove it by hand");
        }
    }
}

/// One run's claim on the machine.
#[derive(Debug)]
pub(crate) struct Scope {
    dir: PathBuf,
    stop: Arc<AtomicBool>,
    ledger: Mutex<(File, Vec<Created>)>,
}

impl Scope {
    /// Opens the ledger, makes orphans of the run's containers its children, and turns signals into [`Scope::check`].
    pub(crate) fn open() -> Result<Arc<Self>> {
        let dir = std::env::temp_dir().join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("while making {}", dir.display()))?;
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            signal_hook::flag::register(signal, Arc::clone(&stop))
                .context("while installing a signal handler")?;
        }
        set_child_subreaper(Some(rustix::process::getpid())).context("while becoming a child subreaper")?;
        let file = File::create(dir.join("created")).context("while making the ledger")?;
        let scope = Self { dir, stop, ledger: Mutex::new((file, Vec::new())) };
        let me = std::process::id() as i32;
        scope.note(&Created::Process { pid: me, started: procfs::started(me)? })?;
        Ok(Arc::new(scope))
    }

    /// A directory for sockets, mount points and other things that go with the run.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Puts `thing` in the ledger; to be called before it is made.
    pub(crate) fn add(&self, thing: Created) -> Result<()> {
        self.note(&thing)?;
        self.ledger.lock().expect("no holder of this lock panics").1.push(thing);
        Ok(())
    }

    /// The same for a process of ours, which is known by a number only once it is there.
    pub(crate) fn add_child(&self, child: &Child) -> Result<Created> {
        let pid = child.id() as i32;
        let process = Created::Process { pid, started: procfs::started(pid)? };
        self.add(process.clone())?;
        Ok(process)
    }

    /// Takes `thing` down now rather than at the end.
    pub(crate) fn take_down(&self, thing: &Created) {
        thing.undo();
        let things = &mut self.ledger.lock().expect("no holder of this lock panics").1;
        if let Some(at) = things.iter().position(|other| other == thing) {
            things.remove(at);
        }
    }

    /// An error once the run was asked to stop.
    pub(crate) fn check(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            bail!("interrupted: everything made so far is taken down, nothing is written");
        }
        Ok(())
    }

    /// Sleeps, unless the run is asked to stop.
    pub(crate) fn sleep(&self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        loop {
            self.check()?;
            match until.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => std::thread::sleep(left.min(Duration::from_millis(50))),
                _ => return Ok(()),
            }
        }
    }

    /// Asks `ready` until it says yes, at most for `limit`.
    pub(crate) fn wait_for(
        &self,
        what: &str,
        limit: Duration,
        mut ready: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let until = Instant::now() + limit;
        while !ready()? {
            if Instant::now() > until {
                bail!("{what} did not happen within {} s", limit.as_secs_f64());
            }
            self.sleep(Duration::from_millis(10))?;
        }
        Ok(())
    }

    fn note(&self, thing: &Created) -> Result<()> {
        let mut ledger = self.ledger.lock().expect("no holder of this lock panics");
        let line = serde_json::to_string(thing).context("while writing the ledger")?;
        writeln!(ledger.0, "{line}").context("while writing the ledger")
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let left = std::mem::take(&mut self.ledger.lock().expect("no holder of this lock panics").1);
        left.iter().rev().for_each(Created::undo);
        remove_dir(&self.dir);
    }
}

/// Takes down what runs that were killed left behind; returns how many such runs there were.
pub(crate) fn clean() -> Result<usize> {
    let mut found = 0;
    for entry in fs::read_dir(std::env::temp_dir())? {
        let dir = entry?.path();
        let ours = dir.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(PREFIX));
        let Some(text) = ours.then(|| fs::read_to_string(dir.join("created")).ok()).flatten() else {
            continue;
        };
        let mut things: Vec<Created> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let Some(Created::Process { pid, started }) = things.first() else { continue };
        if procfs::started(*pid).is_ok_and(|now| now == *started) && !procfs::is_zombie(*pid) {
            continue; // that run is alive
        }
        found += 1;
        things.drain(1..).rev().for_each(|thing| thing.undo());
        remove_dir(&dir);
    }
    Ok(found)
}

/// Stays on the directory's own device: should a mount have survived below it, its files are not ours to delete.
fn remove_dir(dir: &Path) {
    let (Ok(entries), Ok(here)) = (fs::read_dir(dir), fs::symlink_metadata(dir)) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() && meta.dev() == here.dev() => remove_dir(&path),
            Ok(meta) if !meta.is_dir() => drop(fs::remove_file(&path)),
            _ => {}
        }
    }
    let _ = fs::remove_dir(dir);
}

/// A process that was just killed leaves its cgroup a moment later, so the kernel says EBUSY for a while.
fn remove_cgroup(dir: &Path) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        match fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) if Instant::now() > until => {
                return Err(e).with_context(|| format!("while removing {}", dir.display()));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn remove_mount(at: &Path) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("while reading mounts")?;
    let is_mounted = mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|p| Path::new(p) == at));
    if !is_mounted {
        return Ok(());
    }
    unmount(at, UnmountFlags::DETACH).with_context(|| format!("while unmounting {}", at.display()))
}

fn remove_loops(backing: &Path) -> Result<()> {
    let entries = fs::read_dir("/sys/block").context("while reading /sys/block")?;
    for name in entries.flatten().map(|entry| entry.file_name()) {
        let below = Path::new("/sys/block").join(&name).join("loop/backing_file");
        if !fs::read_to_string(below).is_ok_and(|path| Path::new(path.trim_end_matches('\n')) == backing) {
            continue;
        }
        let device = Path::new("/dev").join(&name);
        let out =
            Command::new("losetup").arg("--detach").arg(&device).output().context("while running losetup")?;
        if !out.status.success() {
            bail!("losetup: {}", String::from_utf8_lossy(&out.stderr).trim());
        }
    }
    Ok(())
}

fn remove_swap(device: &Path) -> Result<()> {
    let swaps = fs::read_to_string("/proc/swaps").context("while reading swaps")?;
    if !swaps.lines().any(|line| line.split(' ').next().is_some_and(|name| Path::new(name) == device)) {
        return Ok(());
    }
    let out = Command::new("swapoff").arg(device).output().context("while running swapoff")?;
    if !out.status.success() {
        bail!("swapoff: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(())
}

fn end_process(pid: i32, started: u64) -> Result<()> {
    let is_there = || procfs::started(pid).is_ok_and(|now| now == started) && !procfs::is_zombie(pid);
    let Some(id) = Pid::from_raw(pid) else { return Ok(()) };
    for (signal, wait) in [(Signal::TERM, 2), (Signal::KILL, 2)] {
        if !is_there() {
            break;
        }
        let _ = kill_process(id, signal);
        let until = Instant::now() + Duration::from_secs(wait);
        while is_there() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    reap(pid);
    if is_there() {
        bail!("process {pid} does not end");
    }
    Ok(())
}

/// Collects a dead child; harmless for a process that is not one.
pub(crate) fn reap(pid: i32) {
    if let Some(id) = Pid::from_raw(pid) {
        let _ = waitpid(Some(id), WaitOptions::NOHANG);
    }
}

fn docker(args: &[&str]) -> Result<()> {
    let out =
        Command::new("docker").args(args).stdin(Stdio::null()).output().context("while running docker")?;
    let error = String::from_utf8_lossy(&out.stderr);
    if !out.status.success() && !error.contains("No such") {
        bail!("docker {}: {}", args.join(" "), error.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_line_reads_back_as_what_was_written() {
        let things = [
            Created::Cgroup("/sys/fs/cgroup/cpu/x".into()),
            Created::Subtree { file: "/a".into(), controller: "cpu".into() },
            Created::Swap("/dev/x".into()),
            Created::Process { pid: 1, started: 2 },
        ];
        for thing in things {
            let line = serde_json::to_string(&thing).unwrap();
            assert_eq!(serde_json::from_str::<Created>(&line).unwrap(), thing);
        }
    }

    #[test]
    fn a_process_number_that_now_is_another_process_is_left_alone() {
        let me = std::process::id() as i32;
        end_process(me, procfs::started(me).unwrap() + 1).unwrap();
    }

    #[test]
    fn what_is_gone_already_is_fine() {
        Created::Cgroup("/nonexistent/elbowroom-lab".into()).undo();
        assert!(remove_cgroup(Path::new("/nonexistent/elbowroom-lab")).is_ok());
        assert!(remove_swap(Path::new("/nonexistent/elbowroom-lab")).is_ok());
    }
}
