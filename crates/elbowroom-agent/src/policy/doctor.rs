//! Has the doctor look at the host now and then: `elbowroom doctor`, as a process of its own.
//!
//! A process rather than a thread, because it walks every cgroup. Its memory is freed when it ends, its reads cannot delay the policy loop
//! by a lock of the allocator, and the kernel may give it only idle time.

use super::{Mailbox, PolicyMessage};
use elbowroom_linux::bounded;
use elbowroom_linux::process::kill_with_parent;
use elbowroom_types::finding::DoctorFinding;
use elbowroom_types::unit::Micros;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, setpriority_process};
use serde::Deserialize;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// What came of a look: all findings with the CPU time it took, or why there are none.
pub(super) type DoctorRun = Result<(Vec<DoctorFinding>, Micros), String>;

/// The first look is not made while an agent has just begun to do everything else.
const FIRST_RUN_DELAY: Micros = Micros::secs(30);
/// A look may cost this part of the time between two.
const MAX_COST_DIVISOR: u64 = 100;
/// The last look, in the state directory: what happened since is what the next one tells.
const LAST_RUN_FILE: &str = "last-look.json";
/// After this many periods the last look is removed and not compared with: the agent was not running.
const STALE_PERIODS: u64 = 3;
/// Least time limit of a look: with hundreds of containers on a machine without idle time it takes seconds.
const RUN_TIMEOUT: Micros = Micros::secs(60);
/// The lowest priority.
const NICE: i32 = 19;

/// What of the doctor's JSON is needed.
#[derive(Deserialize)]
struct DoctorOutput {
    findings: Vec<DoctorFinding>,
    cpu_usec: u64,
}

/// Starts the thread that runs the doctor, with the policy process's settings and directories.
pub(super) fn spawn(
    period: Micros,
    config: Option<&Path>,
    run_dir: &Path,
    state_dir: &Path,
    mailbox: Mailbox,
) {
    let (config, run_dir, state_dir) = (config.map(Path::to_owned), run_dir.to_owned(), state_dir.to_owned());
    std::thread::Builder::new()
        .name("doctor".into())
        .spawn(move || {
            let mut pause = period.min(FIRST_RUN_DELAY);
            loop {
                std::thread::sleep(Duration::from_micros(pause.get()));
                let last = state_dir.join(LAST_RUN_FILE);
                remove_older_than(
                    &last,
                    Duration::from_micros(pause.max(period).get().saturating_mul(STALE_PERIODS)),
                );
                let command = command(config.as_deref(), &run_dir, &state_dir, &last);
                let looked = run_doctor(command, period.max(RUN_TIMEOUT));
                if looked.is_err() {
                    let _ = std::fs::remove_file(&last);
                }
                let cost = looked.as_ref().map_or(Micros::ZERO, |(_, cpu)| *cpu);
                pause = period.max(Micros(cost.get().saturating_mul(MAX_COST_DIVISOR)));
                mailbox.send(PolicyMessage::DoctorDone(looked));
            }
        })
        .expect("threads can be created at start");
}

/// Removes a last look that is so old.
fn remove_older_than(last: &Path, most: Duration) {
    let written = std::fs::metadata(last).and_then(|meta| meta.modified());
    if written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > most)) {
        let _ = std::fs::remove_file(last);
    }
}

fn command(config: Option<&Path>, run_dir: &Path, state_dir: &Path, last: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg("doctor")
        // A limit that the agent holds is no finding.
        .arg("--run-dir")
        .arg(run_dir)
        .args(["--format", "json", "--state-dir"])
        .arg(state_dir)
        .arg("--since-last")
        .arg(last);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    command
}

/// The most bytes of a report; one of a thousand containers has about one MiB.
const MAX_REPORT_BYTES: u64 = 16 << 20;

fn run_doctor(mut command: Command, within: Micros) -> DoctorRun {
    let failed = |error: &dyn std::fmt::Display| format!("`elbowroom doctor` cannot be run: {error}");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = kill_with_parent(&mut command).spawn().map_err(|error| failed(&error))?;
    // Not more than the time that nothing else wants, and the first to go when memory runs out: it does not matter if it may not be so.
    let _ = setpriority_process(Some(Pid::from_child(&child)), NICE);
    let _ = std::fs::write(format!("/proc/{}/oom_score_adj", child.id()), "500");
    let output = wait_with_timeout(child, within).map_err(|error| failed(&error))?;
    match serde_json::from_slice::<DoctorOutput>(&output.stdout) {
        Ok(report) => Ok((report.findings, Micros(report.cpu_usec))),
        Err(error) => match String::from_utf8_lossy(&output.stderr).trim() {
            "" => Err(failed(&format!("it ended with {} and said: {error}", output.status))),
            said => Err(failed(&said)),
        },
    }
}

/// What a process says until its end. One that has not ended within that time, as a look may that waits for a process that hangs, is
/// killed and waited for no more.
fn wait_with_timeout(child: Child, within: Micros) -> io::Result<Output> {
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    let (ended, end) = mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("doctor-output".into())
        .spawn(move || ended.send(bounded::output(child, MAX_REPORT_BYTES)))?;
    end.recv_timeout(Duration::from_micros(within.get())).unwrap_or_else(|_| {
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("it did not end within {within}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_end_is_waited_for_no_longer_than_it_may_take() {
        let start = |script| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let said = wait_with_timeout(start("echo well"), Micros::secs(60)).unwrap();
        assert_eq!((said.status.success(), &said.stdout[..]), (true, &b"well\n"[..]));
        let error = wait_with_timeout(start("exec sleep 1000"), Micros::millis(50)).unwrap_err();
        assert_eq!(error.to_string(), "it did not end within 50ms");
    }
}
