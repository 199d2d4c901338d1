//! Cgroups of a test's own, removed at its end. Not every test uses all of it.
#![allow(dead_code)]

use elbowroom_linux::cgroup::{CgroupController, CgroupLayout, CgroupVersion};
use elbowroom_linux::root::Root;
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For everything that is waited for.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// A cgroup of this test's own in every hierarchy, with what runs in it.
pub struct Rig {
    /// Every sensor of this process would open every test's files: one test at a time, so that they can be counted.
    _alone: MutexGuard<'static, ()>,
    /// Where the machine's cgroups are.
    pub layout: CgroupLayout,
    /// Of the topmost group.
    pub name: String,
    made: Vec<PathBuf>,
    children: Vec<Child>,
}

impl Rig {
    /// `None`, with a word why, where cgroups cannot be made.
    pub fn new() -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let root = Root::host().unwrap();
        let layout = match CgroupLayout::detect(&root) {
            Ok(layout) => layout,
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        };
        let name =
            format!("elbowroom-test-sensing-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut rig = Self { _alone: alone, layout, name, made: Vec::new(), children: Vec::new() };
        if let Err(error) = rig.try_mkdir("") {
            println!("skipped: needs the right to make cgroups: {error}");
            return None;
        }
        Some(rig)
    }

    /// Path of a group below the rig's, from the root of the hierarchies.
    pub fn path(&self, below: &str) -> String {
        format!("{}/{below}", self.name).trim_end_matches('/').to_owned()
    }

    /// A group's directory.
    pub fn dir(&self, controller: CgroupController, below: &str) -> PathBuf {
        let path = self.path(below);
        self.layout.dir(controller, Path::new(&path)).unwrap().1.path()
    }

    /// Makes a group.
    pub fn mkdir(&mut self, below: &str) {
        self.try_mkdir(below).unwrap();
    }

    /// Makes a group in the hierarchies of the controller alone, or in all others.
    pub fn mkdir_in(&mut self, controller: CgroupController, others: bool, below: &str) {
        let its = self.layout.index(controller).unwrap();
        self.try_mkdir_where(below, |index| (index == its) != others).unwrap();
    }

    fn try_mkdir(&mut self, below: &str) -> std::io::Result<()> {
        self.try_mkdir_where(below, |_| true)
    }

    fn try_mkdir_where(&mut self, below: &str, wanted: impl Fn(usize) -> bool) -> std::io::Result<()> {
        let path = self.path(below);
        for (_, hierarchy) in self.layout.hierarchies().iter().enumerate().filter(|(index, _)| wanted(*index))
        {
            let dir = hierarchy.mount_point.join(&path);
            std::fs::create_dir(&dir)?;
            let parent = dir.parent().unwrap();
            match hierarchy.version {
                // A new v1 cpuset is empty and takes no process.
                CgroupVersion::V1 if dir.join("cpuset.cpus").exists() => {
                    for file in ["cpuset.cpus", "cpuset.mems"] {
                        std::fs::write(dir.join(file), std::fs::read(parent.join(file))?)?;
                    }
                }
                CgroupVersion::V1 => {}
                CgroupVersion::V2 => {
                    let there = std::fs::read_to_string(dir.join("cgroup.controllers"))?;
                    for controller in there
                        .split_ascii_whitespace()
                        .filter(|c| ["cpu", "memory", "cpuset", "io", "pids"].contains(c))
                    {
                        // A leaf may keep processes only while nothing is enabled for children; the rig's top has none.
                        if below.is_empty() {
                            std::fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"))?;
                        }
                    }
                }
            }
            self.made.push(dir);
        }
        Ok(())
    }

    /// Removes a group.
    pub fn rmdir(&mut self, below: &str) {
        let path = self.path(below);
        for hierarchy in self.layout.hierarchies() {
            let dir = hierarchy.mount_point.join(&path);
            remove_dir(&dir);
            self.made.retain(|made| *made != dir);
        }
    }

    /// Runs a shell script in a group.
    pub fn spawn(&mut self, below: &str, script: &str) -> u32 {
        let mut child = Command::new("sh")
            .args(["-c", &format!("read go; {script}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let path = self.path(below);
        for hierarchy in self.layout.hierarchies() {
            let procs = hierarchy.mount_point.join(&path).join("cgroup.procs");
            std::fs::write(&procs, child.id().to_string())
                .unwrap_or_else(|e| panic!("{}: {e}", procs.display()));
        }
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let pid = child.id();
        self.children.push(child);
        pid
    }

    /// Runs a shell script in a group to its end.
    pub fn run(&mut self, below: &str, script: &str) {
        let pid = self.spawn(below, script);
        let at = self.children.iter().position(|child| child.id() == pid).unwrap();
        let status = self.children.swap_remove(at).wait().unwrap();
        assert!(status.success(), "{script}: {status}");
    }

    /// Ends what [`Rig::spawn`] started, with everything in the rig.
    pub fn stop(&mut self, pid: u32) {
        let at = self.children.iter().position(|child| child.id() == pid).unwrap();
        let mut child = self.children.swap_remove(at);
        self.kill_all();
        child.wait().unwrap();
    }

    /// Ends every process in the rig's own groups; what a shell started outlives the shell.
    fn kill_all(&self) {
        for dir in &self.made {
            let pids = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            for pid in pids.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// Which cgroup version has a controller.
    pub fn version(&self, controller: CgroupController) -> CgroupVersion {
        self.layout.dir(controller, Path::new("")).unwrap().0
    }

    /// Writes a group's file.
    pub fn write(&self, controller: CgroupController, below: &str, file: &str, value: &str) {
        let file = self.dir(controller, below).join(file);
        std::fs::write(&file, value).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.kill_all();
        for child in &mut self.children {
            let _ = child.wait();
        }
        for dir in self.made.iter().rev() {
            // Another process reaps orphans, in its own time.
            let until = Instant::now() + DEADLINE;
            while std::fs::remove_dir(dir).is_err_and(|e| e.kind() == std::io::ErrorKind::ResourceBusy)
                && Instant::now() < until
            {
                self.kill_all();
                std::thread::yield_now();
            }
        }
    }
}

/// A killed process leaves its cgroup a moment after it can be waited for.
fn remove_dir(dir: &Path) {
    let until = Instant::now() + DEADLINE;
    while std::fs::remove_dir(dir).is_err_and(|e| e.kind() == std::io::ErrorKind::ResourceBusy) {
        assert!(Instant::now() < until, "{} stays busy", dir.display());
        std::thread::yield_now();
    }
}
