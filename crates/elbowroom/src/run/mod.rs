//! `elbowroom run`: a command in a cgroup and a mount namespace of its own, with a view.
//!
//! The command is this process's child. It joins its cgroups, takes a mount namespace of its own, mounts its view and only
//! then becomes the command, so the first thing the command reads is the view. The runner forwards signals, returns the
//! command's status and removes the cgroups. It kills nothing: where processes are left, a reaper in the background waits for
//! the last of them and removes the cgroups then. Those of a runner or a reaper that was killed go with the next `elbowroom run`.

pub(crate) mod cgroup;
pub(crate) mod cgroup_reaper;
pub(crate) mod child;
mod hierarchies;
pub(crate) mod labels;
pub(crate) mod limits;
pub(crate) mod private_agent;
mod probe;

use crate::verbs::probe::PROBE_SOCKET_ENV;
use anyhow::Context;
use cgroup::RunCgroup;
use clap::Args;
use elbowroom_agent::engines::oci::injection;
use elbowroom_agent::probes::settings::ProbeSettings;
use elbowroom_agent::probes::{ProbePoller, socket_path};
use elbowroom_agent::{java, lifecycle};
use elbowroom_client::output::{error_line, say};
use elbowroom_linux::signal::{ReceivedSignal, SignalFd};
use elbowroom_linux::{new_file, signal};
use elbowroom_types::label::RuntimeInjection;
use elbowroom_types::launch;
use hierarchies::RunHierarchies;
use labels::RunLabels;
use limits::RunLimits;
use private_agent::PrivateAgent;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::Duration;

/// Runs a command in its own cgroup, with a view of the room it has.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Name of the container and its cgroup, /elbowroom/NAME [default: the command's name and a number].
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    limits: limits::LimitArgs,
    #[command(flatten)]
    labels: labels::LabelArgs,
    /// Leave the command in the host's mount namespace, without a view: no agent is needed.
    #[arg(long)]
    no_views: bool,
    /// Give Java programs the agent that makes HotSpot follow the view (adds to JAVA_TOOL_OPTIONS).
    #[arg(long)]
    java: bool,
    /// Ask the command how it is doing, and tell the agent: file:PATH, "http://HOST:PORT/PATH KEY=METRIC...", or
    /// "exec:PROGRAM ARGUMENTS"; "objective=800" alone for what it sends to $ELBOWROOM_PROBE, which is heard without.
    #[arg(long, value_name = "SOURCE")]
    probe: Option<String>,
    #[command(flatten)]
    injections: InjectionArgs,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Ways to reach programs that read no file, or none more than once.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct InjectionArgs {
    /// Preload a library that makes OpenMP's parallel regions as wide as the effective CPU, each time.
    #[arg(long, conflicts_with_all = ["no_views", "env_only"])]
    openmp: bool,
    /// Preload a library that answers sysconf, sched_getaffinity, sysinfo and getloadavg from the view.
    #[arg(long, conflicts_with_all = ["no_views", "env_only"])]
    libc: bool,
    /// No view: tell runtimes the limits by environment variables alone; no agent is needed.
    #[arg(long, conflicts_with = "no_views")]
    env_only: bool,
}

impl InjectionArgs {
    /// What is preloaded.
    fn preloads(self) -> RuntimeInjection {
        RuntimeInjection { openmp: self.openmp, libc: self.libc, ..RuntimeInjection::default() }
    }

    /// The flags again, for the child.
    fn flags(self) -> impl Iterator<Item = &'static str> {
        let flags = [(self.openmp, "--openmp"), (self.libc, "--libc"), (self.env_only, "--env-only")];
        flags.into_iter().filter(|(set, _)| *set).map(|(_, flag)| flag)
    }
}

/// The signals that people and service managers stop programs with, and tell them things by: to reopen a log, to reload. Each would
/// end this process, and leave the command alone.
const FORWARDED_SIGNALS: [Signal; 7] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::ALARM];

/// Status for "the command was not started", as `env` and `docker run` have it.
pub(crate) const NOT_STARTED: u8 = 125;

/// How long the end waits for a probe; its program is killed at once.
const PROBE_STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Status for a request that cannot be met; nothing was touched.
const INVALID_REQUEST: u8 = 2;

/// Runs the command and returns its status, 128 and the signal's number where a signal ended it.
pub(crate) fn main(args: &RunArgs, run_dir: &Path) -> ExitCode {
    ExitCode::from(run(args, run_dir).unwrap_or_else(|error| {
        say(&error_line(&error));
        INVALID_REQUEST
    }))
}

fn run(args: &RunArgs, run_dir: &Path) -> anyhow::Result<u8> {
    signal::restore_sigchld();
    let limits = RunLimits::parse(&args.limits)?;
    let probe =
        args.probe.as_deref().map(|line| ProbeSettings::parse(line, true)).transpose().context("--probe")?;
    let labels = RunLabels::parse(&args.labels, probe.as_ref())?;
    let name = match &args.name {
        Some(name) => cgroup::check_name(name)?.to_owned(),
        None => default_name(&args.command[0]),
    };
    let layout = RunHierarchies::read()?;
    limits.check(&layout)?;
    // Labels and leftovers in it are written and removed: a link of another user there would lead to any file.
    let run_dir = match new_file::existing_run_directory(run_dir) {
        // Not what a link names that leads nowhere yet.
        Err(error) if error.kind() == ErrorKind::NotFound && run_dir.symlink_metadata().is_err() => {
            run_dir.to_owned()
        }
        checked => checked.with_context(|| run_dir.display().to_string())?,
    };
    let run_dir = run_dir.as_path();
    cgroup::remove_stale(&layout, run_dir);
    let signals = SignalFd::block(&FORWARDED_SIGNALS)?;
    let group = RunCgroup::create(&layout, run_dir, &name, &limits, &labels)?;

    let has_view = !args.no_views && !args.injections.env_only;
    let mut agent = (has_view && !lifecycle::is_running(run_dir))
        .then(|| PrivateAgent::start(run_dir, &name))
        .transpose();
    let status = match &mut agent {
        Ok(None) => Ok(run_dir),
        Ok(Some(agent)) => agent.wait_until_ready().inspect(|dir| {
            say(&format!(
                "elbowroom: no agent runs: the command has one of its own in {} while it runs",
                dir.display()
            ));
        }),
        Err(error) => Err(anyhow::anyhow!("{error:#}")),
    }
    .and_then(|run_dir| {
        let mut child = spawn_child(args, run_dir, &group, &limits)?;
        let poller =
            probe.filter(ProbeSettings::is_polled).map(|probe| probe::start_poller(probe, run_dir, &name));
        if let Some(Err(error)) = &poller {
            say(&format!("elbowroom: probe: {error}"));
        }
        let status = supervise(&mut child, &signals);
        if status.as_ref().is_ok_and(|status| !status.success()) && group.had_oom_kill() {
            say(&out_of_memory(&limits));
        }
        ProbePoller::stop_all(poller.into_iter().flatten().collect(), PROBE_STOP_TIMEOUT);
        status
    });
    clean_up(group, agent.ok().flatten());
    Ok(match status {
        Ok(status) => status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)) as u8,
        Err(error) => {
            say(&error_line(&error));
            NOT_STARTED
        }
    })
}

/// Why a command failed of which the kernel killed a process for memory.
fn out_of_memory(limits: &RunLimits) -> String {
    match limits.room().memory {
        Some(limit) => format!(
            "elbowroom: the kernel killed a process of it at its memory limit of {limit}: run it with a larger --memory"
        ),
        None => {
            "elbowroom: the kernel killed a process of it for want of memory, and it has no limit of its own"
                .to_owned()
        }
    }
}

/// Removes the cgroups and the run's own agent, or leaves that to a process that waits for the run's remaining processes.
fn clean_up(group: RunCgroup, agent: Option<PrivateAgent>) {
    let Err(left) = group.remove() else {
        return agent.into_iter().for_each(PrivateAgent::finish);
    };
    let what = left.to_string();
    // It takes the lock as soon as this process has let go.
    let is_attended = agent.is_some_and(|mut agent| agent.is_attended());
    match if is_attended { Ok(()) } else { cgroup_reaper::spawn(left.group) } {
        Ok(()) => say(&format!("elbowroom: {what}: it is removed when the last of them ends")),
        Err(error) => {
            say(&format!(
                "elbowroom: {what}: the next `elbowroom run` removes it once they have ended ({error})"
            ));
        }
    }
}

fn spawn_child(
    args: &RunArgs,
    run_dir: &Path,
    group: &RunCgroup,
    limits: &RunLimits,
) -> anyhow::Result<Child> {
    // This very program, also when its file has been replaced meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("elbowroom").arg(child::VERB).arg("--run-dir").arg(run_dir);
    for dir in group.dirs() {
        command.arg("--cgroup").arg(dir);
    }
    if args.no_views {
        command.arg("--no-views");
    }
    command.args(args.injections.flags());
    if std::env::var_os(PROBE_SOCKET_ENV).is_none() && !args.injections.env_only {
        command.env(PROBE_SOCKET_ENV, std::path::absolute(socket_path(run_dir))?);
    }
    let is_set = |name: &str| std::env::var_os(name).is_some();
    if args.injections.env_only {
        command.envs(launch::env_without_view(limits.room(), is_set));
    }
    if args.injections.openmp {
        command.envs(launch::openmp_env(most_cpus(limits)?, is_set));
    }
    if args.java {
        command.env(launch::JAVA_OPTIONS_VARIABLE, java::java_tool_options(most_cpus(limits)?)?);
    }
    Ok(command.arg("--").args(&args.command).spawn()?)
}

/// The most CPUs that the command's view may become.
fn most_cpus(limits: &RunLimits) -> anyhow::Result<u32> {
    let machine = injection::online_cpu_count()?;
    Ok(limits.room().cpus.map_or(machine, |cpus| cpus.min(machine)))
}

/// Waits for the command and passes on the signals that were meant for it.
fn supervise(child: &mut Child, signals: &SignalFd) -> anyhow::Result<ExitStatus> {
    let pid = Pid::from_child(child);
    let end = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        let mut ready = [PollFd::new(&end, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        match rustix::event::poll(&mut ready, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        while let Some(received) = signals.next()? {
            if must_forward(received) {
                let _ = rustix::process::kill_process(pid, received.signal);
            }
        }
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
    }
}

/// Whether the command has to be told of a signal. A key on the terminal reached it already: the kernel sends that to the whole
/// foreground group. A hang-up it sends to the session's leader, which may be the runner (`drivers/tty/tty_jobctrl.c`,
/// `tty_signal_session_leader`).
fn must_forward(received: ReceivedSignal) -> bool {
    !received.from_kernel || received.signal == Signal::HUP
}

/// The command's file name as far as a cgroup may be named so, and this process's number.
fn default_name(command: &OsString) -> String {
    let file = Path::new(command).file_name().unwrap_or(command).to_string_lossy();
    let plain = file.chars().map(|c| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '_' });
    let plain: String = plain.skip_while(|c| !c.is_ascii_alphanumeric()).take(40).collect();
    format!("{}-{}", if plain.is_empty() { "run" } else { &plain }, std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_not_passed_on_and_hang_ups_are() {
        let told = |signal, from_kernel| must_forward(ReceivedSignal { signal, from_kernel });
        assert!(FORWARDED_SIGNALS.iter().all(|signal| told(*signal, false)));
        let by_kernel: Vec<Signal> =
            FORWARDED_SIGNALS.into_iter().filter(|signal| told(*signal, true)).collect();
        assert_eq!(by_kernel, [Signal::HUP]);
    }

    #[test]
    fn default_names_are_always_good_names() {
        for (command, stem) in [("/usr/bin/java", "java"), ("..", "run"), ("a b\u{e9}", "a_b_"), ("--x", "x")]
        {
            let name = default_name(&command.into());
            assert_eq!(name, format!("{stem}-{}", std::process::id()));
            assert!(cgroup::check_name(&name).is_ok(), "{name}");
        }
    }
}
