//! `elbowroom check`: each fact about this host, and what is lost without it.

mod disk;

use anyhow::Result;
use elbowroom_agent::config::AgentConfig;
use elbowroom_client::api::{AgentStatus, ControlRequest, ControlResponse, OtlpStatus};
use elbowroom_client::control::ControlClient;
use elbowroom_client::output::{OutputArgs, is_permission_denied, one_line, unexpected_response};
use elbowroom_linux::bounded;
use elbowroom_linux::cgroup::{CgroupController, CgroupLayout, HierarchyMode};
use elbowroom_linux::containers::ContainerSelector;
use elbowroom_linux::memory::KernelLog;
use elbowroom_linux::privilege::capability_names;
use elbowroom_linux::root::Root;
use elbowroom_linux::selinux;
use elbowroom_linux::{Sensor, SensorConfig};
use rustix::fs::{Access, access};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// One fact.
#[derive(Serialize)]
struct Prerequisite {
    /// What was looked at.
    name: &'static str,
    /// Whether it is there; `None` where only root can tell.
    present: Option<bool>,
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
    /// Why there is no answer of an agent, where that is so.
    agent_note: Option<String>,
    /// Whether this user may not ask the agent.
    #[serde(skip)]
    agent_refused: bool,
}

/// Looks at the host; true when nothing required is missing.
pub(crate) fn check(run_dir: &Path, output: OutputArgs) -> Result<(String, bool)> {
    let (agent, agent_note, agent_refused) = match agent_status(run_dir) {
        Ok(status) => (Some(status), None, false),
        Err(error) => (None, Some(one_line(&error)), is_permission_denied(&error)),
    };
    let mut facts = prerequisites();
    facts.extend(disk::prerequisites());
    facts.extend(configuration());
    facts.extend(selinux_policy());
    facts.extend(rootless_engines(agent.as_ref().and_then(|agent| agent.config.as_deref())));
    let ready = facts.iter().all(|f| f.present == Some(true) || !f.required);
    let report = CheckOutput { ready, facts, agent, agent_note, agent_refused };
    Ok((output.answer(&report, || text(&report))?, report.ready))
}

fn agent_status(run_dir: &Path) -> Result<AgentStatus> {
    match ControlClient::connect(run_dir)?.request(&ControlRequest::Status)? {
        ControlResponse::Status(status) => Ok(*status),
        _ => unexpected_response(),
    }
}

/// Whether the default configuration, where there is one that can be read, keeps its secrets.
fn configuration() -> Option<Prerequisite> {
    let exposure = AgentConfig::load(None).ok()?.exposure(None);
    let lost = if exposure.is_some() { "other users of this host can read its secrets" } else { "" };
    let value = exposure.clone().unwrap_or_else(|| "no secret is open to other users".to_owned());
    let present = Some(exposure.is_none());
    Some(Prerequisite { name: "configuration", present, required: OPTIONAL, value, lost })
}

/// Whether what SELinux enforces lets containers map their view page, where SELinux is.
fn selinux_policy() -> Option<Prerequisite> {
    let mode = if selinux::is_enforcing()? { "enforcing" } else { "permissive" };
    let label = selinux::container_content();
    let lost = if label.is_none() {
        "containers read their views if the policy lets them read fusefs_t, and no view page: its lxc_contexts names no type that it has"
    } else {
        ""
    };
    let value = label.as_ref().map_or_else(|| mode.to_owned(), |label| format!("{mode}; pages are {label}"));
    Some(Prerequisite { name: "SELinux", present: Some(label.is_some()), required: OPTIONAL, value, lost })
}

/// The containers of users that get no view, where there are any; `config`: the running agent's configuration file.
fn rootless_engines(config: Option<&Path>) -> Option<Prerequisite> {
    let sources = AgentConfig::load(config).ok()?.containers.sources();
    let number = ContainerSelector::open(&sources).ok()?.of_users().len();
    (number > 0).then(|| Prerequisite {
        name: "rootless engines",
        present: Some(false),
        required: OPTIONAL,
        value: format!("{number} without a view"),
        lost: "a cgroup that a user made counts if its path is in containers.cgroups: [\"/user.slice/**/libpod-*/container\"] with crun",
    })
}

/// What of this host the table looks at.
struct Host {
    release: String,
    layout: Option<CgroupLayout>,
    capabilities: u64,
    /// As an agent would: only trying says what a kernel lets it do.
    sensor: Option<Sensor>,
    /// Whether root looks.
    is_root: bool,
}

/// What the table asks of the host.
enum Need {
    /// A kernel of at least this version; what is seen is its release.
    Kernel(u32, u32),
    /// What kernels have from this version on.
    KernelFeature(u32, u32),
    /// A capability, by its number.
    Capability(u32),
    /// A file that can be read.
    File(&'static str),
    /// A cgroup controller.
    Controller(CgroupController),
    /// File systems of cgroups, of whatever version.
    Cgroups,
    /// Notifications of new cgroups by fanotify.
    Fanotify,
    /// Samples by BPF programs.
    Bpf,
    /// The kernel's log, from now on.
    KernelMessages,
    /// At least this many open files.
    OpenFiles(u64),
}

use Need::{
    Bpf, Capability, Cgroups, Controller, Fanotify, File, Kernel, KernelFeature, KernelMessages, OpenFiles,
};

impl Need {
    /// Whether another user than root may not get it though it is there.
    fn is_for_root(&self) -> bool {
        match self {
            // Root itself is no such thing: that another user looks is known.
            Capability(bit) => *bit != CAP_SYS_ADMIN,
            File(path) => Path::new(path).exists(),
            Fanotify | Bpf | KernelMessages => true,
            Kernel(..) | KernelFeature(..) | Controller(_) | Cgroups | OpenFiles(_) => false,
        }
    }
}

/// What is seen of something that another user than root cannot judge.
const NOT_KNOWN: &str = "not known: only root can look";

const REQUIRED: bool = true;
const OPTIONAL: bool = false;

const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_NICE: u32 = 23;

/// Name, whether the agent cannot work without it, what is needed, and what is lost without it.
#[rustfmt::skip]
const PREREQUISITES: &[(&str, bool, Need, &str)] = &[
    ("kernel", REQUIRED, Kernel(5, 8),
        "mounting views needs open_tree, move_mount, openat2 and the mount's number in statx, Linux 5.8"),
    ("root", REQUIRED, Capability(CAP_SYS_ADMIN),
        "mounting and reading need CAP_SYS_ADMIN: run as root"),
    ("/dev/fuse", REQUIRED, File("/dev/fuse"),
        "no views at all: load the fuse module"),
    ("cgroups", REQUIRED, Cgroups,
        "no containers can be seen: mount the cgroup file systems"),
    ("controller cpu", REQUIRED, Controller(CgroupController::Cpu),
        "effective CPU ignores quotas and shares"),
    ("controller memory", REQUIRED, Controller(CgroupController::Memory),
        "effective memory is the machine's: boot with cgroup_enable=memory (Raspberry Pi: in cmdline.txt)"),
    ("controller cpuset", OPTIONAL, Controller(CgroupController::Cpuset),
        "views ignore CPU pinning"),
    ("pressure (PSI)", OPTIONAL, File("/proc/pressure/cpu"),
        "/proc/pressure is not shown: boot with psi=1"),
    ("zone watermarks", OPTIONAL, File("/proc/zoneinfo"),
        "effective memory cannot tell when the kernel reclaims"),
    ("fanotify", OPTIONAL, Fanotify,
        "new containers are told by inotify, with a watch for each cgroup: fs.inotify.max_user_watches bounds how many; \
         \"none\": they are found by looking, a second late: raise fs.inotify.max_user_instances"),
    ("BPF", OPTIONAL, Bpf,
        "the files of containers are read to learn which of them ran: Linux 5.12 with BTF, and a build with BPF, are told by the scheduler"),
    ("FUSE resend", OPTIONAL, KernelFeature(6, 9),
        "reads in flight fail when the view server is killed, and all views are made anew (Linux 6.9)"),
    ("mount beneath", OPTIONAL, KernelFeature(6, 5),
        "replacing a dead agent's view shows the host's file for an instant (Linux 6.5)"),
    ("real-time tick", OPTIONAL, Capability(CAP_SYS_NICE),
        "sampling is late on a loaded host: give CAP_SYS_NICE"),
    ("kernel log", OPTIONAL, KernelMessages,
        "a kill whose cgroup is removed at once is missed: give CAP_SYSLOG and /dev/kmsg"),
    ("open files", OPTIONAL, OpenFiles(4096),
        "fewer containers are sampled with kept descriptors: raise RLIMIT_NOFILE"),
];

fn prerequisites() -> Vec<Prerequisite> {
    let host = Host {
        release: read("/proc/sys/kernel/osrelease"),
        layout: Root::host().ok().and_then(|root| CgroupLayout::detect(&root).ok()),
        capabilities: capabilities(&read("/proc/self/status")).unwrap_or(0),
        sensor: Sensor::open(&SensorConfig::default()).ok(),
        is_root: rustix::process::geteuid().is_root(),
    };
    PREREQUISITES.iter().map(|row| host.fact(row)).collect()
}

impl Host {
    fn fact(&self, (name, required, need, lost): &(&'static str, bool, Need, &'static str)) -> Prerequisite {
        let (present, value) = self.look(need);
        let (present, value, lost) = match (present, value) {
            (true, value) => (Some(true), value.unwrap_or_else(|| "yes".to_owned()), ""),
            (false, _) if !self.is_root && need.is_for_root() => (None, NOT_KNOWN.to_owned(), ""),
            (false, value) => (Some(false), value.unwrap_or_else(|| "no".to_owned()), *lost),
        };
        Prerequisite { name, present, required: *required, value, lost }
    }

    /// Whether something needed is there, and what was seen where that says more than yes or no.
    fn look(&self, need: &Need) -> (bool, Option<String>) {
        match need {
            Kernel(major, minor) => (self.is_since(*major, *minor), Some(self.release.clone())),
            KernelFeature(major, minor) => (self.is_since(*major, *minor), None),
            Capability(bit) => (self.capabilities & (1 << bit) != 0, None),
            File(path) => (access(*path, Access::READ_OK).is_ok(), None),
            Controller(one) => {
                (self.layout.as_ref().is_some_and(|layout| layout.index(*one).is_some()), None)
            }
            Cgroups => {
                let mode = self.layout.as_ref().map_or("", |layout| match layout.mode {
                    HierarchyMode::Legacy => "v1",
                    HierarchyMode::Hybrid => "v1 hybrid",
                    HierarchyMode::Unified => "v2",
                });
                (!mode.is_empty(), Some(mode.to_owned()))
            }
            Fanotify => {
                let told = self.sensor.as_ref().map_or("none", Sensor::notifications);
                (told == "fanotify", (told != "fanotify").then(|| told.to_owned()))
            }
            Bpf => (self.sensor.as_ref().is_some_and(|sensor| sensor.source().name() == "bpf"), None),
            KernelMessages => (KernelLog::open().is_some(), None),
            OpenFiles(wanted) => {
                let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
                let value = limit.map_or("unlimited".to_owned(), |n| n.to_string());
                (limit.is_none_or(|n| n >= *wanted), Some(value))
            }
        }
    }

    fn is_since(&self, major: u32, minor: u32) -> bool {
        kernel_version(&self.release).is_some_and(|version| version >= (major, minor))
    }
}

/// Below the facts, where one is missing.
const LEGEND: &str = "\
MISSING: no agent works without it. missing: without it, what the line below it says.
";

fn text(report: &CheckOutput) -> String {
    let mut text = String::new();
    for fact in &report.facts {
        let mark = match (fact.present, fact.required) {
            (Some(true), _) => "ok",
            (Some(false), true) => "MISSING",
            (Some(false), false) => "missing",
            (None, _) => "?",
        };
        let _ = writeln!(text, "{mark:<8} {:<18} {}", fact.name, fact.value);
        if !fact.lost.is_empty() {
            let _ = writeln!(text, "         {:<18} {}", "", fact.lost);
        }
    }
    text.push_str(&agent_text(report));
    if report.facts.iter().any(|fact| fact.present == Some(false)) {
        text.push_str(LEGEND);
    }
    text
}

/// The agent that answers, and what it does with its decisions.
fn agent_text(report: &CheckOutput) -> String {
    let mut text = String::new();
    match &report.agent {
        Some(agent) => {
            let _ = writeln!(
                text,
                "ok       {:<18} {} of {} containers attached, sensing by {}, pids {} {} {}",
                "agent",
                agent.attached,
                agent.containers,
                agent.source,
                agent.pids.supervisor,
                agent.pids.view_server,
                agent.pids.policy
            );
            let _ = writeln!(text, "ok       {:<18} {}", "mode", agent.mode.summary());
            let rights = capabilities(&read(&format!("/proc/{}/status", agent.pids.policy)));
            let rights = rights.map(|mask| capability_names(mask).join(" ").to_lowercase());
            let _ = writeln!(text, "ok       {:<18} {}", "its capabilities", rights.unwrap_or_default());
            if let Some(otlp) = &agent.otlp {
                let mark = if otlp.problem.is_none() { "ok" } else { "missing" };
                let OtlpStatus { collector, pushed, failed, .. } = otlp;
                let _ =
                    writeln!(text, "{mark:<8} {:<18} {collector}: {pushed} pushed, {failed} failed", "OTLP");
                if let Some(problem) = &otlp.problem {
                    let _ = writeln!(text, "         {:<18} {problem}", "");
                }
            }
        }
        None => {
            let note = report.agent_note.as_deref().unwrap_or("none");
            let mark = if report.agent_refused { "?" } else { "missing" };
            let _ = writeln!(text, "{mark:<8} {:<18} {note}", "agent");
        }
    }
    text
}

fn read(path: &str) -> String {
    bounded::file_text(path, bounded::KERNEL_FILE).map(|text| text.trim().to_owned()).unwrap_or_default()
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
    fn what_missing_means_is_said_where_something_is() {
        let fact = |present, required| Prerequisite {
            name: "BPF",
            present: Some(present),
            required,
            value: "no".into(),
            lost: "it",
        };
        let report =
            |facts| CheckOutput { ready: true, facts, agent: None, agent_note: None, agent_refused: false };
        let text = |facts| text(&report(facts));
        assert!(text(vec![fact(true, true), fact(false, false)]).ends_with(LEGEND));
        assert!(!text(vec![fact(true, true)]).contains(LEGEND));
    }

    #[test]
    fn what_only_root_can_see_is_not_missing_to_another_user() {
        let see = |is_root, need| {
            let host = Host { release: String::new(), layout: None, capabilities: 0, sensor: None, is_root };
            let fact = host.fact(&("x", REQUIRED, need, "lost"));
            (fact.present, fact.lost, fact.value)
        };
        let unknown = || (None, "", NOT_KNOWN.to_owned());
        for need in [Fanotify, Bpf, Capability(CAP_SYS_NICE)] {
            assert_eq!(see(false, need), unknown());
        }
        for (is_root, need) in [
            (true, Bpf),
            (true, Capability(CAP_SYS_NICE)),
            (false, Capability(CAP_SYS_ADMIN)),
            (false, File("/nonexistent/fuse")),
        ] {
            assert_eq!(see(is_root, need), (Some(false), "lost", "no".to_owned()));
        }
        // A file that is there and is not this user's: what root's is, root's tests can read.
        assert!(File("/dev/null").is_for_root() && !File("/nonexistent/fuse").is_for_root());
        let fact = |present| Prerequisite {
            name: "x",
            present,
            required: REQUIRED,
            value: NOT_KNOWN.into(),
            lost: "",
        };
        let report = CheckOutput {
            ready: false,
            facts: vec![fact(None)],
            agent: None,
            agent_note: Some("only root may ask".into()),
            agent_refused: true,
        };
        let text = text(&report);
        assert!(text.lines().all(|line| line.starts_with("?  ")) && text.lines().count() == 2, "{text}");
    }

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
