//! A private instance of lxcfs: its own mount point and PID file, so that one the machine may run is not disturbed.

use crate::scope::{Created, Scope};
use anyhow::{Context, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The files that lxcfs documents to be mounted over a container's, less the ones this kernel or version has not.
const FILES: [&str; 7] = [
    "proc/cpuinfo",
    "proc/diskstats",
    "proc/loadavg",
    "proc/meminfo",
    "proc/stat",
    "proc/uptime",
    "sys/devices/system/cpu/online",
];

/// A running instance. Dropping it stops the daemon and unmounts its file system.
#[derive(Debug)]
pub(crate) struct Lxcfs {
    scope: Arc<Scope>,
    mount: PathBuf,
    process: Created,
    pid: i32,
}

impl Lxcfs {
    /// Starts it with load averages (`-l`) and with quotas shown as CPU counts (`--enable-cfs`).
    pub(crate) fn start(scope: &Arc<Scope>) -> Result<Self> {
        let mount = scope.dir().join("lxcfs");
        std::fs::create_dir_all(&mount).context("while making a mount point for lxcfs")?;
        let log = File::create(scope.dir().join("lxcfs.log")).context("while making a log for lxcfs")?;
        scope.add(Created::Mount(mount.clone()))?;
        let child = Command::new("lxcfs")
            .args(["-f", "-l", "--enable-cfs", "-p"])
            .arg(scope.dir().join("lxcfs.pid"))
            .arg(&mount)
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("while sharing a log")?)
            .stderr(log)
            .spawn()
            .context("while starting lxcfs; on Debian: apt install lxcfs")?;
        let pid = child.id() as i32;
        let process = scope.add_child(&child)?;
        let lxcfs = Self { scope: Arc::clone(scope), mount, process, pid };
        scope.wait_for("lxcfs serving /proc/meminfo", Duration::from_secs(10), || {
            Ok(lxcfs.mount.join("proc/meminfo").exists())
        })?;
        Ok(lxcfs)
    }

    /// (file of this instance, path in a container).
    pub(crate) fn mounts(&self) -> Vec<(PathBuf, PathBuf)> {
        let served = FILES.iter().filter(|file| self.mount.join(file).exists());
        served.map(|file| (self.mount.join(file), Path::new("/").join(file))).collect()
    }

    /// The daemon's process.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Its version, where it is installed.
    pub(crate) fn version() -> Option<String> {
        let out = Command::new("lxcfs").arg("--version").stdin(Stdio::null()).output().ok()?;
        // Which stream it is depends on the version.
        let said = [out.stdout, out.stderr].concat();
        Some(String::from_utf8_lossy(&said).trim().trim_matches('"').to_owned())
    }
}

impl Drop for Lxcfs {
    fn drop(&mut self) {
        self.scope.take_down(&self.process);
        self.scope.take_down(&Created::Mount(self.mount.clone()));
    }
}
