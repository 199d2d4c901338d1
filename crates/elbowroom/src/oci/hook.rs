//! The `createContainer` hook. The runtime runs it in the container's namespaces and cgroup, before `pivot_root`, when
//! procfs, sysfs and cgroups are mounted below the root filesystem already: the view is there before the first instruction.
//!
//! The state on stdin names the container. Its `pid` does not help: it is 1, or some number of the container's own pid
//! namespace. The agent takes the process that asks instead (SO_PEERCRED), which is in the container's cgroup.

use super::{bundle, surfaces};
use crate::alerts::journald;
use crate::{client, preload};
use anyhow::Context;
use elbowroom_core::launch::Surfaces;
use elbowroom_host::mount::Place;
use serde::Deserialize;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

/// The hidden verb.
pub(crate) const VERB: &str = "hook";

/// The hook's arguments, the program's name first, for the agent of `run_dir`.
pub(crate) fn words(run_dir: &str) -> [String; 4] {
    ["elbowroom", VERB, "--run-dir", run_dir].map(str::to_owned)
}

/// How long a container's start may be delayed.
const BUDGET: Duration = Duration::from_secs(2);
/// How much of that the agent may take.
const PATIENCE: Duration = Duration::from_millis(1500);

/// The part of the OCI state that matters here (runtime-spec, runtime.md).
#[derive(Deserialize)]
struct State {
    id: String,
    bundle: PathBuf,
}

/// Mounts the view, or says in one line why there is none: on stderr, which engines throw away, and to journald. Always succeeds,
/// and in time.
pub(crate) fn main(args: &[OsString]) -> ExitCode {
    let run_dir = PathBuf::from(value_of(args, "--run-dir").unwrap_or(client::RUN_DIR.as_ref()));
    let wanted = value_of(args, surfaces::FLAG).and_then(OsStr::to_str).map(surfaces::of_names);
    let id = Arc::new(OnceLock::new());
    let (done, result) = mpsc::channel();
    let known = id.clone();
    // A panic drops the sender, which reads as an end without a result.
    let attaching = move || {
        let _ = done.send(attach(&run_dir, wanted.unwrap_or_default(), &known));
    };
    // In the container's cgroup there may be no room for a thread (`--pids-limit`).
    if let Err(error) = std::thread::Builder::new().spawn(attaching) {
        complain(&id, &format!("starting a thread: {error}"));
        return ExitCode::SUCCESS;
    }
    match result.recv_timeout(BUDGET) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => complain(&id, &format!("{error:#}")),
        Err(mpsc::RecvTimeoutError::Timeout) => complain(&id, "mounting it took too long"),
        Err(mpsc::RecvTimeoutError::Disconnected) => complain(&id, "the hook failed unexpectedly"),
    }
    ExitCode::SUCCESS
}

fn complain(id: &OnceLock<String>, why: &str) {
    let why = format!("no view: {why}");
    let _ = journald::say(&why, id.get().map_or("", String::as_str));
    super::say(&format!("elbowroom: {why}"));
}

fn attach(run_dir: &Path, wanted: Surfaces, id: &OnceLock<String>) -> anyhow::Result<()> {
    let mut text = Vec::new();
    std::io::stdin().take(1 << 20).read_to_end(&mut text).context("reading the container's state")?;
    let state: State = serde_json::from_slice(&text).context("the container's state")?;
    let name = id.get_or_init(|| state.id);
    let rootfs = bundle::rootfs(&state.bundle)?;
    // First, and whether there is an agent or not: the environment names these files already.
    let there = preload::provide(&rootfs, wanted);
    let view = attach_view(run_dir, name, &rootfs);
    there.and(view)
}

fn attach_view(run_dir: &Path, id: &str, rootfs: &Path) -> anyhow::Result<()> {
    let view = client::prepare(run_dir, id, 0, PATIENCE)?;
    let place = Place::here(rootfs)?;
    place.attach(&place.plan(&view.surfaces, &view.view_dir)?)?;
    // Without the page (a kernel before Linux 5.12, no sysfs) the files still show the view; the agent notes what is missing.
    if let Some(page) = &view.page {
        let _ = place.attach_page(page);
    }
    Ok(())
}

/// The word behind `flag`, read by hand: a parser that refuses an argument would keep the container from starting.
fn value_of<'a>(args: &'a [OsString], flag: &str) -> Option<&'a OsStr> {
    args.iter().skip_while(|arg| *arg != flag).nth(1).map(OsString::as_os_str)
}
