//! Stand-ins for the two sides of an attach: a small FUSE server of type `fuse.elbowroom`, and a process in a mount
//! namespace of its own. Both clean up when dropped.

use elbowroom_linux::mount::NamespaceRoot;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Says why live tests cannot run here.
pub(crate) fn skip() -> bool {
    let why = if !rustix::process::geteuid().is_root() {
        "needs root"
    } else if rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).is_err() {
        "needs /dev/fuse"
    } else if Command::new("unshare").args(["-m", "true"]).status().map_or(true, |status| !status.success()) {
        "needs unshare -m"
    } else {
        return false;
    };
    println!("skipped: {why}");
    true
}

/// Files of two containers, `one` and `two`. Every file's content is the server's name and the file's path.
const FILES: [&str; 8] = [
    "one/proc/meminfo",
    "one/proc/stat",
    "one/proc/uptime",
    "one/sys/devices/system/cpu/online",
    "one/cgroup/cpu.shares",
    "two/proc/meminfo",
    "two/proc/stat",
    "two/proc/loadavg",
];

/// A mounted filesystem of views; dies (reads give ENOTCONN) with [`Views::kill`], is unmounted when dropped.
pub(crate) struct Views {
    pub(crate) dir: PathBuf,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Views {
    pub(crate) fn mount(dir: PathBuf, name: &str) -> Self {
        std::fs::create_dir_all(&dir).unwrap();
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/fuse", flags, Mode::empty()).unwrap();
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", fd.as_raw_fd());
        let data = CString::new(data).unwrap();
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        rustix::mount::mount("elbowroom", &dir, "fuse.elbowroom", flags, Some(data.as_c_str())).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, name) = (Arc::clone(&stop), name.to_owned());
        let server = std::thread::spawn(move || serve(&fd, &name, &seen));
        Self { dir, stop, server: Some(server) }
    }

    /// Ends the server; returns once readers are told so.
    pub(crate) fn kill(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(server) = self.server.take() {
            server.join().unwrap();
        }
        // A child between fork and exec may hold the device a moment longer.
        let dead = || std::fs::metadata(&self.dir).is_err();
        wait_until("the connection to abort", dead);
    }
}

impl Drop for Views {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// A process in its own mount namespace.
pub(crate) struct Container {
    child: Child,
}

impl Container {
    /// Private mounts, the host's root.
    pub(crate) fn start() -> Self {
        Self::with(&["--propagation", "private"], "")
    }

    /// `unshare -m` with `flags`; `setup` runs in the shell before the container counts as started.
    pub(crate) fn with(flags: &[&str], setup: &str) -> Self {
        let script = format!("{setup}\necho ready; exec sleep 1000");
        Self::spawn(Command::new("unshare").arg("-m").args(flags).args(["sh", "-ec", &script]))
    }

    /// Any command that prints a line once it is up.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the container did not start");
        Self { child }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn place(&self) -> NamespaceRoot {
        NamespaceRoot::of(self.pid()).unwrap()
    }

    /// Runs a shell command in the container's mount namespace.
    pub(crate) fn sh(&self, script: &str) {
        let pid = self.pid().to_string();
        let status = Command::new("nsenter").args(["-m", "-t", &pid, "sh", "-ec", script]).status().unwrap();
        assert!(status.success(), "{script}");
    }

    /// What a process of the container reads at `path`.
    pub(crate) fn read(&self, path: &str) -> std::io::Result<String> {
        std::fs::read_to_string(format!("/proc/{}/root{path}", self.pid()))
    }

    /// Mount points of the container, in order, each as often as something is mounted there. Without those in the directory
    /// of temporary files: tests that run at the same time come and go there.
    pub(crate) fn mount_points(&self) -> Vec<String> {
        let text = std::fs::read_to_string(format!("/proc/{}/mountinfo", self.pid())).unwrap();
        let points = text.lines().map(|line| line.split(' ').nth(4).unwrap());
        points
            .filter(|point| !Path::new(point).starts_with(std::env::temp_dir()))
            .map(str::to_owned)
            .collect()
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
    }

    pub(crate) fn reap(&mut self) {
        let _ = self.child.wait();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.kill();
        self.reap();
    }
}

/// Polls `done` for at most ten seconds.
pub(crate) fn wait_until(what: &str, done: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed().as_secs() < 10, "waited too long for {what}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// Answers INIT, LOOKUP, GETATTR and READ (include/uapi/linux/fuse.h); everything else gets ENOSYS.
fn serve(fd: &OwnedFd, name: &str, stop: &AtomicBool) {
    let nodes = nodes();
    let mut request = vec![0u8; 1 << 17];
    while !stop.load(Ordering::Relaxed) {
        let mut polled = [PollFd::new(fd, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        if rustix::event::poll(&mut polled, Some(&timeout)).unwrap_or(0) == 0 {
            continue;
        }
        let Ok(length) = rustix::io::read(fd, &mut request) else { break };
        let request = &request[..length];
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap());
        let (opcode, unique, node) = (word(4), long(8), long(16) as usize);
        let content = |node: usize| format!("{name} {}\n", nodes[node]);
        let attr = |node: usize| attributes(node, FILES.contains(&nodes[node].as_str()), content(node).len());
        let answer: Result<Vec<u8>, i32> = match opcode {
            1 => {
                let wanted = std::str::from_utf8(&request[40..length - 1]).unwrap();
                let path = format!("{}/{wanted}", nodes[node]);
                match nodes.iter().position(|known| known == path.trim_start_matches('/')) {
                    Some(child) => {
                        // nodeid, generation, lifetimes of name and attributes, their nanoseconds
                        let mut entry: Vec<u8> = longs(&[child as u64, 0, 1000, 1000, 0]);
                        entry.extend(attr(child));
                        Ok(entry)
                    }
                    None => Err(2),
                }
            }
            3 => {
                let mut out = longs(&[1000, 0]);
                out.extend(attr(node));
                Ok(out)
            }
            15 => {
                let offset = (long(48) as usize).min(content(node).len());
                Ok(content(node).into_bytes()[offset..].to_vec())
            }
            26 => {
                let words = [7u32, 31, 1 << 16, 0, 0, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                Ok(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
            }
            2 | 42 => continue,
            18 | 25 => Ok(Vec::new()),
            _ => Err(38),
        };
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(errno) => (-errno, Vec::new()),
        };
        let mut reply = (16 + body.len() as u32).to_ne_bytes().to_vec();
        reply.extend(error.to_ne_bytes());
        reply.extend(unique.to_ne_bytes());
        reply.extend(body);
        let _ = rustix::io::write(fd, &reply);
    }
}

/// Index is the node's number: 1 is the root, 0 is never used.
fn nodes() -> Vec<String> {
    let mut nodes = vec!["-".to_owned(), String::new()];
    for file in FILES {
        let parts = Path::new(file).ancestors().collect::<Vec<_>>();
        for path in parts.iter().rev().map(|path| path.to_str().unwrap().to_owned()) {
            if !nodes.contains(&path) {
                nodes.push(path);
            }
        }
    }
    nodes
}

fn attributes(node: usize, file: bool, size: usize) -> Vec<u8> {
    let mut attr = longs(&[node as u64, size as u64, 1, 0, 0, 0]);
    let mode: u32 = if file { 0o100_444 } else { 0o040_555 };
    let words = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0u32];
    attr.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    attr
}

fn longs(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}
