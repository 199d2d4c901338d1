//! A stand-in for the agent: one view of plain files on a tmpfs, and a control socket that hands it out.

use rustix::mount::{MountFlags, UnmountFlags};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// What it was asked, and by whom.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) request: serde_json::Value,
    /// `/proc/PID/cgroup` of the process that asked, at that moment.
    pub(crate) cgroups: String,
}

pub(crate) struct Agent {
    dir: tempfile::TempDir,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Agent {
    pub(crate) fn start() -> Self {
        let agent = Self::silent();
        let view = agent.view();
        let listener = UnixListener::bind(agent.run_dir().join("agent.sock")).unwrap();
        let asked = Arc::clone(&agent.asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut line = String::new();
                // One that only looks whether an agent is there asks nothing.
                if BufReader::new(&stream).read_line(&mut line).unwrap() == 0 {
                    continue;
                }
                let peer = rustix::net::sockopt::socket_peercred(&stream).unwrap().pid;
                let cgroups =
                    std::fs::read_to_string(format!("/proc/{}/cgroup", peer.as_raw_nonzero())).unwrap();
                asked.lock().unwrap().push(Asked { request: serde_json::from_str(&line).unwrap(), cgroups });
                let _ = writeln!(&stream, "{}", answer(&view));
            }
        });
        agent
    }

    /// One whose socket was not made.
    pub(crate) fn silent() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let views = dir.path().join("views");
        std::fs::create_dir(&views).unwrap();
        rustix::mount::mount("elbowroom-test", &views, "tmpfs", MountFlags::empty(), None).unwrap();
        for file in ["proc/meminfo", "sys/devices/system/cpu/online", "cgroup/cpu.shares", "cgroup/cpu.max"] {
            let path = views.join("one").join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, format!("view {file}\n")).unwrap();
        }
        Self { dir, asked: Arc::default() }
    }

    pub(crate) fn run_dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    fn view(&self) -> PathBuf {
        self.dir.path().join("views/one")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.dir.path().join("views"), UnmountFlags::DETACH);
    }
}

fn answer(view: &Path) -> serde_json::Value {
    serde_json::json!({ "prepared": { "view_dir": view, "surfaces": [
        { "source": "proc/meminfo", "fixed": "/proc/meminfo" },
        { "source": "sys/devices/system/cpu", "fixed": "/sys/devices/system/cpu" },
        { "source": "cgroup/cpu.shares", "cgroup": { "controller": "cpu", "file": "cpu.shares" } },
        { "source": "cgroup/cpu.max", "cgroup": { "controller": "", "file": "cpu.max" } },
    ]}})
}
