//! A program that prints a record.

use super::ProbeProblem;
use crate::alerts::{StopFlag, first_ready};
use elbowroom_linux::{process, signal};
use elbowroom_types::probe::{MAX_RECORD_LEN, ProbeRecord};
use elbowroom_types::unit::Micros;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What is kept of what a program prints; the rest is read and dropped.
const MAX_OUTPUT_BYTES: usize = 4 * MAX_RECORD_LEN;

/// A variable with the container's first process.
pub const PID_ENV: &str = "ELBOWROOM_PROBE_PID";
/// A variable with this program's own path: `elbowroom ask` of this version.
pub const PROGRAM_ENV: &str = "ELBOWROOM";

/// Takes the record that a program prints.
pub(super) fn poll(
    exec: &[String],
    pid: u32,
    timeout: Micros,
    stop: &StopFlag,
) -> Result<ProbeRecord, ProbeProblem> {
    let (program, _) = exec.split_first().expect("a probe without a program was refused");
    let first = (pid > 0).then(|| (PID_ENV, pid.to_string()));
    let line = last_line(exec, first.as_slice(), timeout, stop)
        .map_err(|failure| failure.to_string())?
        .ok_or_else(|| format!("{program}: printed no record"))?;
    ProbeRecord::parse(line.as_bytes()).map_err(|error| format!("{program}: {error}"))
}

/// Why a program has no last line.
#[derive(Debug)]
pub struct ProgramFailure {
    message: String,
    /// It was killed at work: what it began may go on, or have been done.
    pub killed: bool,
}

impl std::error::Error for ProgramFailure {}

impl fmt::Display for ProgramFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<String> for ProgramFailure {
    fn from(what: String) -> Self {
        Self { message: what, killed: false }
    }
}

/// Starts the program, with some more in its environment, and takes the last line that it prints.
pub fn last_line(
    exec: &[String],
    environment: &[(&str, String)],
    timeout: Micros,
    stop: &StopFlag,
) -> Result<Option<String>, ProgramFailure> {
    let (program, args) = exec.split_first().ok_or_else(|| "no program is named".to_owned())?;
    let mut command = Command::new(program);
    command.args(args).current_dir("/").stdin(Stdio::null());
    command.envs(own_path().map(|path| (PROGRAM_ENV, path)));
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    last_line_of(&mut command, program, timeout, stop)
}

/// This program's path. One that was replaced by an upgrade is where its successor is.
pub fn own_path() -> Option<String> {
    let path = std::env::current_exe().ok()?.into_os_string().into_string().ok()?;
    Some(path.strip_suffix(" (deleted)").map_or_else(|| path.clone(), str::to_owned))
}

/// Starts `command`, which is named `program`, and takes the last line that it prints.
/// It has a process group of its own, which is killed when it has ended, when its time is over, and when we end.
pub fn last_line_of(
    command: &mut Command,
    program: &str,
    timeout: Micros,
    stop: &StopFlag,
) -> Result<Option<String>, ProgramFailure> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = process::kill_with_parent(signal::unblock_in_child(command.process_group(0)))
        .spawn()
        .map_err(|error| format!("{program}: cannot be started: {error}"))?;
    let group = Pid::from_child(&child);
    // The agent may be protected from the OOM killer; what it starts for others is not.
    let _ = std::fs::write(format!("/proc/{}/oom_score_adj", group.as_raw_nonzero()), "0");
    let (out, errors, ended) = read_output(&mut child, group, timeout, stop);
    // The group first: the child is not waited for yet, so its number can be no other process's.
    let _ = kill_process_group(group, Signal::KILL);
    let status = child.wait().map_err(|error| format!("{program}: {error}"))?;
    if !ended {
        let what = format!("{program}: killed after {timeout}: make it quicker, or raise its timeout");
        return Err(ProgramFailure { message: what, killed: true });
    }
    let last = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
    };
    if !status.success() {
        let why = last(&errors).map_or_else(String::new, |line| format!(": {line}"));
        let why: String = why.chars().take(200).collect();
        return Err(format!("{program}: ended with {status}{why}").into());
    }
    Ok(last(&out))
}

/// Reads both streams until the program has ended; whether it did before its time, or ours, was over.
fn read_output(child: &mut Child, pid: Pid, timeout: Micros, stop: &StopFlag) -> (Vec<u8>, Vec<u8>, bool) {
    let mut kept = [Vec::new(), Vec::new()];
    let mut streams = [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)];
    for stream in streams.iter().flatten() {
        let _ = rustix::io::ioctl_fionbio(stream, true);
    }
    let deadline = Instant::now() + Duration::from_micros(timeout.get());
    let end = pidfd_open(pid, PidfdFlags::empty());
    let ended = end.is_ok_and(|end| {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let fds: Vec<&OwnedFd> = [stop.fd(), &end].into_iter().chain(streams.iter().flatten()).collect();
            match first_ready(&fds, left) {
                Some(0) => return false,
                None if left.is_zero() => return false,
                _ => {}
            }
            // In this order: what was printed before the end is in the pipes then.
            let over = first_ready(&[&end], Duration::ZERO).is_some();
            for (stream, kept) in streams.iter_mut().zip(&mut kept) {
                if stream.as_ref().is_some_and(|stream| !read(stream, kept)) {
                    *stream = None;
                }
            }
            if over {
                return true;
            }
        }
    });
    let [out, errors] = kept;
    (out, errors, ended)
}

/// Reads what is there, a bounded number of times; false at the end.
fn read(stream: &OwnedFd, kept: &mut Vec<u8>) -> bool {
    let mut buffer = [0u8; 4096];
    for _ in 0..64 {
        match rustix::io::read(stream, &mut buffer) {
            Ok(0) => return false,
            Ok(n) => {
                kept.extend_from_slice(&buffer[..n]);
                // The last line counts: what is old goes.
                let old = kept.len().saturating_sub(MAX_OUTPUT_BYTES);
                kept.drain(..old);
            }
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        }
    }
    true
}
