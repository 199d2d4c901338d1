//! `elbowroom check`: each fact about this host, and what is lost without it.

mod disk;

use anyhow::Result;
use elbowroom_client::api::{AgentStatus, ControlRequest, ControlResponse};
use elbowroom_client::control::ControlClient;
use elbowroom_client::output::{Format, OutputArgs, json};
use elbowroom_linux::cgroup::{CgroupController, CgroupLayout, HierarchyMode};
use elbowroom_linux::root::Root;
use elbowroom_linux::{Sensor, SensorConfig};
use rustix::fs::{Access, access};
use serde::Serialize;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// One fact.
#[derive(Serialize)]
struct Prerequisite {
    /// What was looked at.
    name: &'static str,
    /// Whether it is there.
    present: bool,
    /// Whether the agent cannot work without it.
    required: bool,
    /// What was seen.
    value: String,
    /// What is lost without it; empty where it is there.
    lost: &'static str,
}

#[derive(Serialize)]
struct CheckOutput {
    ready: bool,
    facts: Vec<Prerequisite>,
    agent: Option<AgentStatus>,
}

/// Looks at the host; true when nothing required is missing.
pub(crate) fn check(run_dir: &Path, output: OutputArgs) -> Result<(String, bool)> {
    let agent =
        ControlClient::connect(run_dir).and_then(|mut client| client.request(&ControlRequest::Status)).ok();
    let agent = agent
        .and_then(|answer| if let ControlResponse::Status(status) = answer { Some(*status) } else { None });
    let mut facts = prerequisites();
    facts.extend(disk::prerequisites());
    let report = CheckOutput { ready: facts.iter().all(|f| f.present || !f.required), facts, agent };
    let text = match output.format {
        Format::Json => json(&report)?,
        Format::Text => text(&report, run_dir),
    };
    Ok((text, report.ready))
}

fn prerequisites() -> Vec<Prerequisite> {
    let release = read("/proc/sys/kernel/osrelease");
    let version = kernel_version(&release);
    let since = |wanted: (u32, u32)| version.is_some_and(|v| v >= wanted);
    let layout = Root::host().ok().and_then(|root| CgroupLayout::detect(&root).ok());
    let cgroups = layout.as_ref().map_or("", |layout| match layout.mode {
        HierarchyMode::Legacy => "v1",
        HierarchyMode::Hybrid => "v1 hybrid",
        HierarchyMode::Unified => "v2",
    });
    let capable =
        |bit: u32| capabilities(&read("/proc/self/status")).is_some_and(|caps| caps & (1 << bit) != 0);
    let have = |controller| layout.as_ref().is_some_and(|layout| layout.index(controller).is_some());
    let fact = |name, required, present, value: String, lost| Prerequisite {
        name,
        present,
        required,
        value,
        lost: if present { "" } else { lost },
    };
    let file = |path: &str| access(path, Access::READ_OK).is_ok();
    let word = |present: bool| if present { "yes" } else { "no" }.to_owned();
    let nofile = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    // As an agent would: only trying says what a kernel lets it do.
    let sensor = Sensor::open(&SensorConfig::default()).ok();
    let fanotify = sensor.as_ref().is_some_and(|sensor| sensor.notifications() == "fanotify");
    let bpf = sensor.as_ref().is_some_and(|sensor| sensor.tier().name() == "bpf");
    vec![
        fact(
            "kernel",
            true,
            since((5, 8)),
            release.clone(),
            "mounting views needs open_tree, move_mount, openat2 and the mount's number in statx, Linux 5.8",
        ),
        fact(
            "root",
            true,
            capable(21),
            word(capable(21)),
            "mounting and reading need CAP_SYS_ADMIN: run as root",
        ),
        fact(
            "/dev/fuse",
            true,
            file("/dev/fuse"),
            word(file("/dev/fuse")),
            "no views at all: load the fuse module",
        ),
        fact(
            "cgroups",
            true,
            !cgroups.is_empty(),
            cgroups.to_owned(),
            "no containers can be seen: mount the cgroup file systems",
        ),
        fact(
            "controller cpu",
            true,
            have(CgroupController::Cpu),
            word(have(CgroupController::Cpu)),
            "effective CPU ignores quotas and shares",
        ),
        fact(
            "controller memory",
            true,
            have(CgroupController::Memory),
            word(have(CgroupController::Memory)),
            "effective memory is the machine's",
        ),
        fact(
            "controller cpuset",
            false,
            have(CgroupController::Cpuset),
            word(have(CgroupController::Cpuset)),
            "views ignore CPU pinning",
        ),
        fact(
            "pressure (PSI)",
            false,
            file("/proc/pressure/cpu"),
            word(file("/proc/pressure/cpu")),
            "/proc/pressure is not shown: boot with psi=1",
        ),
        fact(
            "zone watermarks",
            false,
            file("/proc/zoneinfo"),
            word(file("/proc/zoneinfo")),
            "effective memory cannot tell when the kernel reclaims",
        ),
        fact(
            "fanotify",
            false,
            fanotify,
            word(fanotify),
            "new containers are told by inotify, with a watch for each cgroup: fs.inotify.max_user_watches bounds how many",
        ),
        fact(
            "BPF",
            false,
            bpf,
            word(bpf),
            "the files of containers are read to learn which of them ran: Linux 5.12 with BTF, and a build with BPF, are told by the scheduler",
        ),
        fact(
            "FUSE resend",
            false,
            since((6, 9)),
            word(since((6, 9))),
            "reads in flight fail when the view server is killed, and all views are made anew (Linux 6.9)",
        ),
        fact(
            "mount beneath",
            false,
            since((6, 5)),
            word(since((6, 5))),
            "replacing a dead agent's view shows the host's file for an instant (Linux 6.5)",
        ),
        fact(
            "real-time tick",
            false,
            capable(23),
            word(capable(23)),
            "sampling is late on a loaded host: give CAP_SYS_NICE",
        ),
        fact(
            "open files",
            false,
            nofile.is_none_or(|n| n >= 4096),
            nofile.map_or("unlimited".into(), |n| n.to_string()),
            "fewer containers are sampled with kept descriptors: raise RLIMIT_NOFILE",
        ),
    ]
}

fn text(report: &CheckOutput, run_dir: &Path) -> String {
    let mut text = String::new();
    for fact in &report.facts {
        let mark = match (fact.present, fact.required) {
            (true, _) => "ok",
            (false, true) => "MISSING",
            (false, false) => "missing",
        };
        let _ = writeln!(text, "{mark:<8} {:<18} {}", fact.name, fact.value);
        if !fact.lost.is_empty() {
            let _ = writeln!(text, "         {:<18} {}", "", fact.lost);
        }
    }
    match &report.agent {
        Some(agent) => {
            let _ = writeln!(
                text,
                "ok       {:<18} {} of {} containers attached, sensing by {}, pids {} {} {}",
                "agent",
                agent.attached,
                agent.containers,
                agent.tier,
                agent.pids.supervisor,
                agent.pids.view_server,
                agent.pids.policy
            );
        }
        None => {
            let _ = writeln!(
                text,
                "missing  {:<18} none on {}: start one with `elbowroom agent`",
                "agent",
                run_dir.display()
            );
        }
    }
    text
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// The effective capabilities, from `/proc/self/status`.
fn capabilities(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_read_as_distributions_write_them() {
        for (release, expect) in [
            ("6.1.0-31-cloud-amd64", Some((6, 1))),
            ("6.18.44-fc", Some((6, 18))),
            ("5.10", Some((5, 10))),
            ("", None),
            ("linux", None),
        ] {
            assert_eq!(kernel_version(release), expect, "{release}");
        }
    }

    #[test]
    fn capabilities_are_read_from_their_mask() {
        assert_eq!(capabilities("Name:\tx\nCapEff:\t000001ffffffffff\n"), Some(0x1ff_ffff_ffff));
        assert_eq!(capabilities("Name:\tx\n"), None);
    }
}
