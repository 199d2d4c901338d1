//! A receiver that is a program.

use super::{AlertNotice, DeliveryError, STOP_TIMEOUT, StopFlag, first_ready};
use elbowroom_linux::signal;
use elbowroom_types::unit::Micros;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Starts the program and waits for its end. It has a process group of its own, which is killed when its time is over; what it
/// says goes to the agent's log.
pub(super) fn run(
    exec: &[String],
    notice: &AlertNotice,
    timeout: Micros,
    stop: &StopFlag,
) -> Result<(), DeliveryError> {
    let (program, args) = exec.split_first().expect("a receiver without a program was refused");
    let mut command = Command::new(program);
    command.args(args).envs(environment(notice)).current_dir("/").process_group(0);
    command.stdin(notice_file(notice).map_err(DeliveryError::Start)?);
    command.stdout(std::io::stderr()).stderr(Stdio::inherit());
    let mut child = signal::unblock_in_child(&mut command).spawn().map_err(DeliveryError::Start)?;
    let pid = Pid::from_child(&child);
    // The agent may be protected from the OOM killer; what it starts for others is not.
    let _ = fs::write(format!("/proc/{}/oom_score_adj", pid.as_raw_nonzero()), "0");
    let status = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) if exits_in_time(&pidfd, timeout, stop) => child.wait().map_err(DeliveryError::Start)?,
        _ => {
            kill_group(&mut child, pid);
            return Err(if stop.is_set() {
                DeliveryError::Stopping
            } else {
                DeliveryError::Timeout(timeout)
            });
        }
    };
    if status.success() { Ok(()) } else { Err(DeliveryError::Status(status)) }
}

/// The alert as JSON, in a memory file: the agent does not wait for the program to read it, however long the names in it are.
fn notice_file(notice: &AlertNotice) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("alert", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(notice)?)?;
    file.rewind()?;
    Ok(file)
}

/// Whether the process ends in time; a stop of the agent shortens what is left.
fn exits_in_time(pidfd: &OwnedFd, timeout: Micros, stop: &StopFlag) -> bool {
    let mut deadline = Instant::now() + Duration::from_micros(timeout.get());
    let mut awaited = vec![pidfd, &stop.0];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match first_ready(&awaited, left) {
            Some(0) => return true,
            Some(_) => {
                awaited.truncate(1);
                deadline = deadline.min(Instant::now() + STOP_TIMEOUT);
            }
            None if left.is_zero() => return false,
            None => {}
        }
    }
}

/// The group first: the child is not waited for yet, so its number can be no other process's.
fn kill_group(child: &mut Child, group: Pid) {
    let _ = kill_process_group(group, Signal::KILL);
    let _ = child.wait();
}

/// The alert in words, for scripts that would rather not read JSON.
fn environment(notice: &AlertNotice) -> Vec<(&'static str, String)> {
    let alert = &notice.alert;
    let container = alert.container.as_ref();
    let words = [
        ("ELBOWROOM_ALERT_KIND", alert.alert.kind.to_string()),
        ("ELBOWROOM_ALERT_SEVERITY", format!("{:?}", alert.alert.severity).to_lowercase()),
        ("ELBOWROOM_ALERT_TOPIC", alert.alert.topic.clone().unwrap_or_default()),
        ("ELBOWROOM_ALERT_STATE", notice.state.to_owned()),
        ("ELBOWROOM_ALERT_TEXT", alert.alert.text.clone()),
        ("ELBOWROOM_ALERT_HOST", notice.host.clone()),
        ("ELBOWROOM_ALERT_DISK", alert.alert.disk.map(|disk| disk.to_string()).unwrap_or_default()),
        ("ELBOWROOM_ALERT_DISK_NAME", alert.disk_name.clone().unwrap_or_default()),
        ("ELBOWROOM_ALERT_CONTAINER", container.map(|c| c.id.clone()).unwrap_or_default()),
        ("ELBOWROOM_ALERT_CONTAINER_NAME", container.and_then(|c| c.name.clone()).unwrap_or_default()),
        ("ELBOWROOM_ALERT_CGROUP", container.map(|c| c.path.clone()).unwrap_or_default()),
    ];
    // A NUL cannot be in an environment, and one that was smuggled into a name must not silence the alert.
    words.into_iter().map(|(key, value)| (key, value.replace('\0', "?"))).collect()
}
