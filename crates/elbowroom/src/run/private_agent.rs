//! The agent of a single run, where no other one is: in a directory of its own, for as long as processes are in the run's cgroup.
//!
//! A process beside the runner, the attendant, starts the agent, and starts it again where all of its processes were killed. It waits
//! for the lock that the runner holds on its cgroup. When the runner has ended, in whatever way, it waits for the last process, removes the
//! cgroups and ends the agent. If the attendant was killed, the runner ends the agent; if both were, the next `elbowroom run` does.

use super::cgroup::RunCgroup;
use super::hierarchies::RunHierarchies;
use anyhow::{Context, bail, ensure};
use clap::Args;
use elbowroom_agent::lifecycle;
use elbowroom_client::control;
use elbowroom_client::output::say;
use elbowroom_linux::{bounded, new_file};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_send_signal};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The hidden verb of the attendant.
const VERB: &str = "run-attendant";
/// Below the agent's usual directory: one for each run that has an agent of its own.
const DIRS: &str = "runs";
/// What the agent logs, below its directory.
const LOG: &str = "agent.log";
/// How long an agent may take until it answers; on an emulated CPU it takes seconds.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How often it is checked whether it does.
const START_POLL: Duration = Duration::from_millis(5);
/// How long a stop in order may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// Between the end of an agent and the start of the next.
const RESTART_PAUSE: Duration = Duration::from_millis(100);
/// `sun_path` of unix(7), with the zero at its end.
const MAX_SOCKET_PATH: usize = 108;

/// What the runner tells the attendant.
#[derive(Args, Debug)]
pub(crate) struct AttendantArgs {
    #[arg(long)]
    name: String,
    #[arg(long)]
    dir: PathBuf,
}

/// The agent of a run, as the runner holds it.
pub(super) struct PrivateAgent {
    attendant: Child,
    dir: PathBuf,
}

impl PrivateAgent {
    /// Starts it for the run `name`, whose cgroup there is already.
    ///
    /// # Errors
    /// There is no place for its directory, or no process to be had.
    pub(super) fn start(run_dir: &Path, name: &str) -> anyhow::Result<Self> {
        let made = new_file::run_directory(run_dir);
        let run_dir = made.with_context(|| run_dir.display().to_string())?;
        // The number tells it from that of an earlier run of this name, which may be just ending.
        let dir = run_dir.join(DIRS).join(format!("{name}.{}", std::process::id()));
        let socket = control::socket_path(&dir);
        ensure!(
            socket.as_os_str().len() < MAX_SOCKET_PATH,
            "no agent runs, and {} is too long for the socket of one: give a shorter --run-dir or --name",
            socket.display()
        );
        new_file::reached_directory(&dir).with_context(|| dir.display().to_string())?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("elbowroom")
            .args([VERB, "--name", name, "--run-dir"])
            .arg(&run_dir)
            .arg("--dir")
            .arg(&dir);
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { attendant: command.spawn()?, dir })
    }

    /// Waits until it answers, and gives the directory where it does.
    ///
    /// # Errors
    /// It cannot be started: what it said itself.
    pub(super) fn wait_until_ready(&mut self) -> anyhow::Result<&Path> {
        let deadline = Instant::now() + START_TIMEOUT;
        while UnixStream::connect(control::socket_path(&self.dir)).is_err() {
            let is_late = Instant::now() > deadline;
            if is_late || !self.is_attended() {
                let said = last_line(&self.dir.join(LOG));
                bail!(
                    "no agent runs, and none could be started: {said} (--no-views runs the command without)"
                );
            }
            std::thread::sleep(START_POLL);
        }
        Ok(&self.dir)
    }

    /// Whether there is still a process that waits for the last one of the cgroup.
    pub(super) fn is_attended(&mut self) -> bool {
        matches!(self.attendant.try_wait(), Ok(None))
    }

    /// Waits until it has ended. The cgroup is gone, and with it the runner's lock.
    pub(super) fn finish(mut self) {
        let end = rustix::process::pidfd_open(Pid::from_child(&self.attendant), PidfdFlags::empty());
        // It stops within that, and it may be just starting the agent again.
        if end.is_ok_and(|end| poll_readable(&end, STOP_TIMEOUT + START_TIMEOUT)) {
            let _ = self.attendant.wait();
        }
        remove(&self.dir);
    }
}

/// Ends the agent of a directory, and removes it.
fn remove(dir: &Path) {
    if dir.exists()
        && let Err(error) = lifecycle::remove(dir, STOP_TIMEOUT)
    {
        say(&format!("elbowroom: {}: left behind ({error})", dir.display()));
    }
    // With the last one.
    let _ = dir.parent().map(std::fs::remove_dir);
}

/// Removes the agents of runs that are over and were killed with their attendants.
pub(super) fn remove_stale(run_dir: &Path, has_cgroup: impl Fn(&str) -> bool) {
    for entry in std::fs::read_dir(run_dir.join(DIRS)).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.rsplit_once('.').is_some_and(|(name, _)| !has_cgroup(name)) {
            remove(&entry.path());
        }
    }
}

/// The attendant. Of the runner it inherits that it is deaf to signals: a service manager that stops the runner tells all.
pub(crate) fn main(args: &AttendantArgs, run_dir: &Path) -> anyhow::Result<()> {
    // SAFETY: nothing in this process has opened a descriptor yet; what is closed was inherited, and no code here knows of it.
    // (By number: musl, which the tarball is built with, has no function for it.)
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    // Not the leader of a process group: the runner started it. Keys on the runner's terminal are not for the agent.
    rustix::process::setsid().context("setsid")?;
    let layout = RunHierarchies::read()?;
    let restarter = Arc::new(AgentRestarter { dir: args.dir.clone(), current: Mutex::default() });
    let thread = std::thread::spawn({
        let (restarter, name) = (restarter.clone(), args.name.clone());
        move || restarter.run(&name)
    });
    if let Some(lock) = RunCgroup::wait_for_lock(&layout, &args.name)? {
        RunCgroup::adopt(&layout, &args.name, run_dir, lock).remove_when_empty();
    }
    restarter.end();
    remove(&args.dir);
    let _ = thread.join();
    Ok(())
}

/// Keeps an agent in a directory.
struct AgentRestarter {
    dir: PathBuf,
    current: Mutex<CurrentAgent>,
}

/// What the restarter started last, and whether it may start another.
#[derive(Default)]
struct CurrentAgent {
    end: Option<OwnedFd>,
    is_over: bool,
}

impl AgentRestarter {
    fn run(&self, name: &str) {
        let mut is_first = true;
        loop {
            // Where a supervisor is killed, the agent's other processes start the next one.
            if let Some(end) = lifecycle::supervisor_end(&self.dir) {
                let _ = rustix::event::poll(&mut [PollFd::new(&end, PollFlags::IN)], None);
            } else {
                let Some(child) = self.start(name) else { return };
                let ended = child.and_then(|mut child| Ok(child.wait()?));
                let has_failed = ended.map_or(true, |status| status.code().is_some_and(|code| code != 0));
                if is_first && has_failed {
                    // It said why.
                    std::process::exit(1);
                }
                is_first = false;
            }
            std::thread::sleep(RESTART_PAUSE);
        }
    }

    /// `None` where it is over.
    fn start(&self, name: &str) -> Option<anyhow::Result<Child>> {
        let mut current = self.current.lock().expect("no holder of this lock panics");
        (!current.is_over).then(|| {
            let mut options = File::options();
            let log = options.create(true).append(true).mode(0o600).open(self.dir.join(LOG))?;
            let mut command = Command::new("/proc/self/exe");
            command.arg0("elbowroom").args(["agent", "--only", &format!("/elbowroom/{name}")]);
            command.arg("--run-dir").arg(&self.dir).arg("--state-dir").arg(self.dir.join("state"));
            let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
            current.end = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok();
            Ok(child)
        })
    }

    /// Starts no other; one that was just started ends as soon as it can.
    fn end(&self) {
        let mut current = self.current.lock().expect("no holder of this lock panics");
        current.is_over = true;
        if let Some(end) = &current.end {
            let _ = pidfd_send_signal(end, Signal::TERM);
        }
    }
}

fn last_line(file: &Path) -> String {
    let text = bounded::file_text(file, bounded::SETTINGS_FILE).unwrap_or_default();
    let line = text.lines().last().unwrap_or("it said nothing");
    line.strip_prefix("elbowroom: ").unwrap_or(line).to_owned()
}

fn poll_readable(fd: &OwnedFd, patience: Duration) -> bool {
    let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    matches!(rustix::event::poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)), Ok(1..))
}
