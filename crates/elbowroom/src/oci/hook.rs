//! The `createContainer` hook. The runtime runs it in the container's namespaces and cgroup, before `pivot_root`, when
//! procfs, sysfs and cgroups are mounted below the root filesystem already: the view is there before the first instruction.
//!
//! The state on stdin names the container. Its `pid` does not help: it is 1, or some number of the container's own pid
//! namespace. The agent takes the process that asks instead (SO_PEERCRED), which is in the container's cgroup.

use super::bundle;
use crate::client;
use anyhow::Context;
use elbowroom_host::mount;
use serde::Deserialize;
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

/// The hidden verb.
pub(crate) const VERB: &str = "hook";

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

/// Mounts the view, or says in one line on stderr why there is none. Always succeeds, and in time.
pub(crate) fn main(args: &[OsString]) -> ExitCode {
    let run_dir = run_dir(args);
    let (done, result) = mpsc::channel();
    // A panic drops the sender, which reads as an end without a result.
    std::thread::spawn(move || {
        let _ = done.send(attach(&run_dir));
    });
    match result.recv_timeout(BUDGET) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => complain(&format!("{error:#}")),
        Err(mpsc::RecvTimeoutError::Timeout) => complain("mounting it took too long"),
        Err(mpsc::RecvTimeoutError::Disconnected) => complain("the hook failed unexpectedly"),
    }
    ExitCode::SUCCESS
}

fn complain(why: &str) {
    // Not `eprintln!`: with stderr closed it would panic, and the container would not start.
    let _ =
        std::io::Write::write_all(&mut std::io::stderr(), format!("elbowroom: no view: {why}\n").as_bytes());
}

fn attach(run_dir: &Path) -> anyhow::Result<()> {
    let mut text = Vec::new();
    std::io::stdin().take(1 << 20).read_to_end(&mut text).context("reading the container's state")?;
    let state: State = serde_json::from_slice(&text).context("the container's state")?;
    let rootfs = bundle::rootfs(&state.bundle)?;
    let view = client::prepare(run_dir, &state.id, 0, PATIENCE)?;
    let plan = mount::plan_here(&rootfs, &view.surfaces, &view.view_dir)?;
    mount::attach_here(&rootfs, &plan)?;
    // Without the page (a kernel before Linux 5.12, no sysfs) the files still show the view; the agent notes what is missing.
    if let Some(page) = &view.page {
        let _ = mount::attach_page_here(&rootfs, page);
    }
    Ok(())
}

/// `--run-dir DIR`, read by hand: a parser that refuses an argument would keep the container from starting.
fn run_dir(args: &[OsString]) -> PathBuf {
    match args {
        [flag, dir, ..] if flag == "--run-dir" => dir.into(),
        _ => client::RUN_DIR.into(),
    }
}
