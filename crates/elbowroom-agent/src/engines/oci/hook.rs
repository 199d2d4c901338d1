//! The `createContainer` hook. The runtime runs it in the container's namespaces and cgroup, before `pivot_root`, when
//! procfs, sysfs and cgroups are mounted below the root filesystem already: the view is there before the first instruction.
//!
//! The state on stdin names the container. Its `pid` does not help: it is 1, or some number of the container's own pid
//! namespace. The agent takes the process that asks instead (SO_PEERCRED), which is in the container's cgroup. The rest of
//! the state is read only where it is needed: runc may write it up to 10 ms after the hook has begun, when a thread of its Go
//! runtime comes to it.

use super::{bundle, injection};
use crate::alerts::journald;
use crate::preload;
use anyhow::Context;
use elbowroom_client::control as client;
use elbowroom_linux::mount::NamespaceRoot;
use elbowroom_types::label::RuntimeInjection;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, PROC_SUPER_MAGIC};
use rustix::time::Timespec;
use serde::Deserialize;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The hidden verb.
pub const VERB: &str = "hook";

/// The hook's arguments, the program's name first, for the agent of `run_dir`.
pub fn hook_args(run_dir: &str) -> [String; 4] {
    ["elbowroom", VERB, "--run-dir", run_dir].map(str::to_owned)
}

/// How long a container's start may be delayed.
const START_TIMEOUT: Duration = Duration::from_millis(1900);
/// How much of that the agent may take.
const AGENT_TIMEOUT: Duration = Duration::from_millis(1500);

/// How long an omission waits for its container's name.
const NAME_TIMEOUT: Duration = Duration::from_millis(100);
/// The longest state that is read.
const MAX_STATE_BYTES: usize = 1 << 20;

/// The part of the OCI state that matters here (runtime-spec, runtime.md).
#[derive(Deserialize)]
pub struct OciState {
    /// The container's identifier.
    pub id: String,
    /// Where its bundle is.
    pub bundle: PathBuf,
}

/// Reads it.
///
/// # Errors
/// It is no JSON, or one of the two is missing.
pub fn parse_state(text: &[u8]) -> anyhow::Result<OciState> {
    serde_json::from_slice(text).context("the container's state")
}

/// Mounts the view, or says in one line why there is none: on stderr, which engines throw away, and to journald. Always succeeds,
/// and in time.
pub fn main(args: &[OsString]) -> ExitCode {
    let run_dir = PathBuf::from(value_of(args, "--run-dir").unwrap_or(client::DEFAULT_RUN_DIR.as_ref()));
    let wanted =
        value_of(args, injection::INJECTION_FLAG).and_then(OsStr::to_str).map(injection::parse_names);
    // Not the other way round: this thread begins at once, and no start waits until another is woken.
    let watchdog = || {
        std::thread::sleep(START_TIMEOUT);
        report_failure("mounting it took too long");
        std::process::exit(0);
    };
    // In the container's cgroup there may be no room for a thread (`--pids-limit`).
    if let Err(error) = std::thread::Builder::new().spawn(watchdog) {
        report_failure(&format!("starting a thread: {error}"));
        return ExitCode::SUCCESS;
    }
    match std::panic::catch_unwind(|| attach(&run_dir, wanted.unwrap_or_default())) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => report_failure(&format!("{error:#}")),
        Err(_) => report_failure("the hook failed unexpectedly"),
    }
    ExitCode::SUCCESS
}

fn report_failure(why: &str) {
    let id = read_state(NAME_TIMEOUT).map(|state| state.id).unwrap_or_default();
    let why = format!("no view: {why}");
    let _ = journald::send_sentence(&why, &id);
    super::write_stderr(&format!("elbowroom: {why}"));
}

fn attach(run_dir: &Path, wanted: RuntimeInjection) -> anyhow::Result<()> {
    let rootfs = match rootfs_from_cwd() {
        Some(here) => here,
        None => bundle::rootfs(&read_state(START_TIMEOUT)?.bundle)?,
    };
    // First, and whether there is an agent or not: the environment names these files already.
    let there = preload::mount_preloads(&rootfs, wanted);
    let view = attach_view(run_dir, &rootfs);
    there.and(view)
}

/// The current directory, where that is the container's root filesystem: runc runs this hook there (libcontainer/rootfs_linux.go,
/// `prepareRootfs`), others in the bundle. It is known by its procfs.
fn rootfs_from_cwd() -> Option<PathBuf> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let proc = rustix::fs::open("proc", flags, Mode::empty()).ok()?;
    let is_procfs = rustix::fs::fstatfs(&proc).is_ok_and(|proc| proc.f_type == PROC_SUPER_MAGIC);
    let file = |path| rustix::fs::stat(path).map(|stat| (stat.st_dev, stat.st_ino)).ok();
    (is_procfs && file(".")? != file("/")?).then(|| ".".into())
}

/// What the runtime says on stdin, as soon as all of it is there.
fn read_state(patience: Duration) -> anyhow::Result<OciState> {
    /// What has been read of it.
    static TEXT: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    let until = Instant::now() + patience;
    let mut text = TEXT.try_lock().ok().context("the container's state is being read")?;
    let mut stdin = io::stdin().lock();
    let mut part = [0; 8 << 10];
    while text.len() < MAX_STATE_BYTES {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        let ready = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], left.as_ref());
        anyhow::ensure!(
            ready.context("waiting for the container's state")? > 0,
            "the container's state does not come"
        );
        match stdin.read(&mut part).context("reading the container's state")? {
            0 => break,
            read => text.extend_from_slice(&part[..read]),
        }
    }
    parse_state(&text)
}

fn attach_view(run_dir: &Path, rootfs: &Path) -> anyhow::Result<()> {
    let view = client::request_view(run_dir, 0, AGENT_TIMEOUT)?;
    let place = NamespaceRoot::of_this_process(rootfs)?;
    // Without the page (a kernel before Linux 5.12, no sysfs) the files still show the view; the agent notes what is missing.
    place.attach_view(&view.parts())?;
    Ok(())
}

/// The word behind `flag`, read by hand: a parser that refuses an argument would keep the container from starting.
fn value_of<'a>(args: &'a [OsString], flag: &str) -> Option<&'a OsStr> {
    args.iter().skip_while(|arg| *arg != flag).nth(1).map(OsString::as_os_str)
}
