//! An audit that ends, whatever file system its target is on.
//!
//! Problem: a file system in user space may never answer. Who waits for it cannot be killed, and so neither can one of its threads: a
//! shell would wait for such a program for good.
//!
//! Approach: a process apart looks at the target. One that neither reads nor computes for [`SILENCE`], with no program of an engine to
//! wait for, is killed and, where that does not end it, left behind.

use anyhow::{Context, Result, bail};
use elbowroom_linux::{bounded, process};
use std::env;
use std::ffi::OsString;
use std::fs::{self, DirEntry};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A disk that is busy, or far away, answers within seconds.
const SILENCE: Duration = Duration::from_secs(30);
/// How long a process that was killed may take to end.
const DEATH: Duration = Duration::from_secs(2);
/// Between two looks at the process.
const PERIOD: Duration = Duration::from_millis(20);
/// In the environment of the process apart.
const APART: &str = "ELBOWROOM_AUDIT_APART";

/// Whether this is the process apart.
pub(super) fn is_apart() -> bool {
    env::var_os(APART).is_some()
}

/// Runs this command once more, in a process apart, and says how it ended.
///
/// # Errors
/// It cannot be started, or was given up.
pub(super) fn run_apart() -> Result<ExitCode> {
    let mut command = Command::new("/proc/self/exe");
    command.args(env::args_os().skip(1)).env(APART, "1");
    let child =
        process::kill_with_parent(&mut command).spawn().context("starting a process for the audit")?;
    watch(child, SILENCE)
}

fn watch(mut child: Child, silence: Duration) -> Result<ExitCode> {
    let (mut work, mut since) = (work_done(child.id()), Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            return Ok(ExitCode::from(code.with_context(|| format!("the audit ended with {status}"))?));
        }
        sleep(PERIOD);
        let now = work_done(child.id());
        if now != work || asks_engine(child.id()) {
            (work, since) = (now, Instant::now());
        } else if since.elapsed() >= silence {
            bail!(give_up(child, silence));
        }
    }
}

/// Kills the process, and says what became of it.
fn give_up(mut child: Child, silence: Duration) -> String {
    let (pid, seconds) = (child.id(), silence.as_secs_f64());
    let why = format!("given up: the file system that it is on has not answered for {seconds} s");
    let (killed, until) = (child.kill(), Instant::now() + DEATH);
    while killed.is_ok() && Instant::now() < until {
        if matches!(child.try_wait(), Ok(Some(_))) {
            return why;
        }
        sleep(PERIOD);
    }
    format!(
        "{why}; process {pid} waits for it, cannot be killed, and ends when it answers or is aborted \
         (/sys/fs/fuse/connections/*/abort, `umount -f`)"
    )
}

/// What changes whenever a process reads or computes.
fn work_done(pid: u32) -> (String, String) {
    let io = bounded::file_text(format!("/proc/{pid}/io"), bounded::KERNEL_FILE).unwrap_or_default();
    let stat = process::stat_line(format!("/proc/{pid}")).unwrap_or_default();
    // Fields 14 and 15, of which the state, the third, comes first behind the name.
    let times = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split(' ').skip(12).take(2);
    (io, times.collect())
}

/// Whether it may wait for an engine, by its socket or its command, which takes minutes for a large image.
fn asks_engine(pid: u32) -> bool {
    let of = |what: &str| format!("/proc/{pid}/{what}");
    let children = bounded::file_text(of(&format!("task/{pid}/children")), bounded::KERNEL_FILE);
    let standard = ["0", "1", "2"].map(OsString::from);
    let is_socket = |entry: DirEntry| {
        !standard.contains(&entry.file_name())
            && fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str().as_bytes().starts_with(b"socket:"))
    };
    children.is_ok_and(|children| !children.trim().is_empty())
        || fs::read_dir(of("fd")).into_iter().flatten().flatten().any(is_socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(words: &str) -> Child {
        Command::new("/bin/sh").args(["-c", words]).spawn().unwrap()
    }

    #[test]
    fn one_that_does_nothing_is_given_up_and_gone() {
        let child = shell("exec sleep 60");
        let pid = child.id();
        let error = watch(child, Duration::from_millis(300)).unwrap_err().to_string();
        assert_eq!(error, "given up: the file system that it is on has not answered for 0.3 s");
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn one_that_works_or_waits_for_a_program_is_not() {
        let silence = Duration::from_millis(300);
        for words in [
            "i=0; while [ $i -lt 3000000 ]; do i=$((i+1)); done; exit 3",
            "sleep 1; exit 3",
            "for i in 1 2 3 4 5 6; do cat /dev/null; sleep 0.2; done; exit 3",
        ] {
            assert_eq!(watch(shell(words), silence).unwrap(), ExitCode::from(3), "{words}");
        }
        let killed = watch(shell("kill -9 $$"), silence).unwrap_err().to_string();
        assert!(killed.starts_with("the audit ended with signal: 9"), "{killed}");
    }
}
