//! The host's own jobs in groups of a size (*Taming Memory Related Performance Pitfalls*, III.C and IV.C).
//!
//! Problem: backups, package managers and log-ins run in the root group or in slices that nothing limits, and the host takes
//! their page cache from containers.
//!
//! Approach: every process of the root group and every cgroup that is no container and has no limit is a
//! [`HousekeepingJob`], of a [`JobKind`] that its name tells. Housekeeping kinds get a size: what they hold and cannot
//! drop, twice, and some cache. On v2 that becomes `memory.high`, which throttles and never kills. On v1 it becomes the
//! soft limit: a group above its soft limit gives first (mm/memcontrol-v1.c, `memcg1_soft_limit_reclaim`). The only other
//! limit there is a hard one, which kills a job that outgrows it.
//!
//! Properties:
//! - A size is above what a job cannot drop by a quarter at least and at most half of the machine.
//! - What serves all containers is never bounded.
//! - A limit that is there is never changed.

use crate::checks::facts::{CgroupFacts, ControllerVersion, HierarchyController, HostFacts};
use crate::checks::fixes::cgroup_write;
use crate::checks::measures::{tightest_own_limit, whole_mib};
use elbowroom_types::finding::{FileWrite, FindingFix};
use elbowroom_types::resource_command::{echo_command, plain_command, shell_quoted};
use elbowroom_types::unit::Bytes;
use serde::{Deserialize, Serialize};

/// The cgroup that ours are made in.
pub const PARENT_CGROUP: &str = "elbowroom.housekeeping";

/// What a program of the host is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobKind {
    /// Log-ins from elsewhere, and what people run in them.
    Remote,
    /// Jobs by the clock.
    Cron,
    /// Copies of everything: reads all files once.
    Backup,
    /// Package managers.
    Packages,
    /// What carries logs away; not what writes them down, for which everything that logs would wait.
    Logs,
    /// Metrics.
    Monitoring,
    /// Lists of all files.
    Index,
    /// Serves containers: to slow it down is to slow all of them down.
    Engine,
    /// The host does not work, or waits, without.
    System,
    /// Something else.
    Other,
}

/// Names of programs and of systemd's units; one that begins with the name and a dash or a dot counts, too. A process' name
/// has at most 15 bytes (`TASK_COMM_LEN`).
const JOB_NAMES: [(JobKind, &[&str]); 9] = [
    (JobKind::Remote, &["sshd", "ssh", "dropbear", "sftp-server", "in.telnetd", "session", "user"]),
    (JobKind::Cron, &["cron", "crond", "anacron", "atd", "fcron"]),
    (
        JobKind::Backup,
        &[
            "backup",
            "restic",
            "borg",
            "borgmatic",
            "duplicity",
            "rsync",
            "rsnapshot",
            "rdiff",
            "kopia",
            "bup",
            "bacula",
            "bareos",
            "dsmc",
            "veeamservice",
            "tar",
            "dump",
            "pg_dump",
            "pg_basebackup",
            "mysqldump",
            "mariadb-dump",
            "xtrabackup",
            "mariabackup",
            "mongodump",
        ],
    ),
    (
        JobKind::Packages,
        &[
            "apt",
            "dpkg",
            "unattended",
            "aptitude",
            "packagekit",
            "packagekitd",
            "yum",
            "dnf",
            "rpm",
            "zypper",
            "pacman",
            "apk",
            "snapd",
            "flatpak",
            "fwupd",
            "needrestart",
        ],
    ),
    (JobKind::Logs, &["logrotate", "fluentd", "fluent", "td", "filebeat", "promtail", "vector", "logstash"]),
    (
        JobKind::Monitoring,
        &[
            "node_exporter",
            "prometheus",
            "telegraf",
            "collectd",
            "netdata",
            "zabbix",
            "zabbix_agentd",
            "datadog",
            "nrpe",
            "sadc",
            "sysstat",
            "munin",
            "snmpd",
            "atop",
            "pcp",
        ],
    ),
    (
        JobKind::Index,
        &[
            "updatedb", "plocate", "mlocate", "locate", "mandb", "man-db", "aide", "clamscan", "clamd",
            "clamav",
        ],
    ),
    (
        JobKind::Engine,
        &[
            "dockerd",
            "docker",
            "containerd",
            "crio",
            "conmon",
            "podman",
            "kubelet",
            "runc",
            "crun",
            "lxcfs",
            "elbowroom",
        ],
    ),
    (
        JobKind::System,
        &[
            "systemd",
            "rsyslogd",
            "rsyslog",
            "syslog",
            "auditd",
            "init",
            "dbus",
            "udevd",
            "NetworkManager",
            "networkd",
            "dhclient",
            "multipathd",
            "iscsid",
            "lvm",
            "agetty",
            "getty",
            "login",
            "polkit",
            "polkitd",
            "chronyd",
            "ntpd",
        ],
    ),
];

/// The kind that a program's or a unit's name tells.
pub(crate) fn job_kind(name: &str) -> JobKind {
    let name = [".service", ".scope", ".slice"].iter().find_map(|s| name.strip_suffix(s)).unwrap_or(name);
    let named = |known: &str| {
        name.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '.', '@', ':']))
    };
    // The longest name that fits says most.
    let fitting = JOB_NAMES.iter().flat_map(|(kind, names)| names.iter().map(move |n| (kind, *n)));
    fitting.filter(|(_, n)| named(n)).max_by_key(|(_, n)| n.len()).map_or(JobKind::Other, |(kind, _)| *kind)
}

impl JobKind {
    /// Page cache that a job of this kind does well with.
    const fn cache_allowance(self) -> Bytes {
        match self {
            // Reads everything once: what it read is of no use to it.
            Self::Backup | Self::Index => Bytes::mib(64),
            Self::Logs | Self::Monitoring => Bytes::mib(128),
            Self::Remote | Self::Cron | Self::Packages => Bytes::mib(256),
            Self::Other | Self::Engine | Self::System => Bytes::mib(512),
        }
    }

    /// Bounded without being named.
    pub(crate) const fn is_housekeeping(self) -> bool {
        !matches!(self, Self::Engine | Self::System | Self::Other)
    }

    /// Bounded at all.
    pub(crate) const fn may_be_limited(self) -> bool {
        !matches!(self, Self::Engine | Self::System)
    }
}

/// What a job may hold: twice what it cannot drop, and cache for its kind. `None` where half of the machine is too little for
/// that to be safe.
pub(crate) fn job_limit(kind: JobKind, held: Bytes, total: Bytes) -> Option<Bytes> {
    let most = Bytes(total.get() / 2);
    let least = held.saturating_add(Bytes(held.get() / 4));
    let cache = kind.cache_allowance().min(Bytes(total.get() / 16));
    let size = whole_mib(held.saturating_add(held).saturating_add(cache)).min(Bytes(most.get() >> 20 << 20));
    (size >= least && size > Bytes::ZERO).then_some(size)
}

/// A process of the root group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootProcess {
    /// Its number.
    pub pid: i32,
    /// When it started, in clock ticks since boot, so that another of the same number is not taken for it.
    pub started: u64,
    /// `/proc/PID/comm`.
    pub name: String,
    /// Anonymous and shared memory in use: what cannot be dropped.
    pub held: Bytes,
}

/// Where a job's processes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobLocation {
    /// In the root group.
    Root(Vec<RootProcess>),
    /// In a cgroup of its own, by its path.
    Group(String),
}

/// A job of the host that nothing limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HousekeepingJob {
    /// The program's, unit's or cgroup's name.
    pub name: String,
    /// What it is there for.
    pub kind: JobKind,
    /// Where.
    pub place: JobLocation,
    /// Anonymous and shared memory.
    pub held: Bytes,
    /// Page cache; absent in the root group, where it is not known whose it is.
    pub cache: Option<Bytes>,
    /// What it may be given.
    pub size: Option<Bytes>,
}

/// A cgroup to make, and the processes to put there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HousekeepingCgroup {
    /// Its directory.
    pub dir: String,
    /// The directory whose processes they are, and are again when it is taken back.
    pub from: String,
    /// The file that bounds it, and its value.
    pub file: String,
    /// In bytes.
    pub size: Bytes,
    /// The processes.
    pub processes: Vec<RootProcess>,
}

/// Everything that nothing limits, the largest first. `processes` are those of the root group, without kernel threads.
pub fn jobs(facts: &HostFacts, processes: &[RootProcess]) -> Vec<HousekeepingJob> {
    let total = facts.host.mem_total();
    let mut jobs: Vec<HousekeepingJob> = Vec::new();
    for process in processes {
        match jobs.iter_mut().find(|j| j.name == process.name) {
            Some(HousekeepingJob { place: JobLocation::Root(all), held, .. }) => {
                all.push(process.clone());
                *held = held.saturating_add(process.held);
            }
            _ => jobs.push(HousekeepingJob {
                name: process.name.clone(),
                kind: job_kind(&process.name),
                place: JobLocation::Root(vec![process.clone()]),
                held: process.held,
                cache: None,
                size: None,
            }),
        }
    }
    jobs.extend(unlimited_cgroups(facts).map(|group| {
        let name = group.path.rsplit('/').next().unwrap_or_default().to_owned();
        let stat = group.stat();
        HousekeepingJob {
            kind: job_kind(&name),
            name,
            place: JobLocation::Group(group.path.clone()),
            held: stat.anon.saturating_add(stat.shmem),
            cache: Some(stat.file.saturating_sub(stat.shmem)),
            size: None,
        }
    }));
    for job in &mut jobs {
        job.size = job_limit(job.kind, job.held, total).filter(|_| job.kind.may_be_limited());
    }
    jobs.sort_by_key(|j| std::cmp::Reverse(j.held.saturating_add(j.cache.unwrap_or_default())));
    jobs
}

/// Cgroups in use that are no containers, hold none, have nothing but their processes below, and no limit at or above them.
fn unlimited_cgroups(facts: &HostFacts) -> impl Iterator<Item = &CgroupFacts> {
    facts.groups.iter().enumerate().filter_map(|(at, group)| {
        let inner = facts.groups.iter().any(|g| g.parent == Some(at));
        let free = tightest_own_limit(group).is_none()
            && facts.ancestors(group).all(|a| tightest_own_limit(a).is_none());
        let ours = matches!(group.path.split('/').nth(1), Some("elbowroom" | PARENT_CGROUP));
        let job = group.parent.is_some() && group.container.is_none() && !inner && !ours;
        (job && free && group.usage() > Bytes::ZERO).then_some(group)
    })
}

/// The file of a cgroup that bounds a job.
fn limit_file(version: ControllerVersion) -> &'static str {
    match version {
        ControllerVersion::V1 => "memory.soft_limit_in_bytes",
        ControllerVersion::V2 => "memory.high",
    }
}

/// What gives `job` its size: writes to its own cgroup, or a cgroup to make. `None` where it has none, or the host has no
/// memory controller.
pub fn plan(facts: &HostFacts, job: &HousekeepingJob) -> Option<(FindingFix, Option<HousekeepingCgroup>)> {
    let file = limit_file(facts.version(HierarchyController::Memory)?);
    let size = job.size?;
    match &job.place {
        JobLocation::Group(path) => {
            let group = facts.groups.iter().find(|g| g.path == *path)?;
            // One that a user set is the user's.
            group.limit(file).filter(|l| l.value().is_none())?;
            let write: FileWrite = cgroup_write(group, HierarchyController::Memory, file, size.get())?;
            Some((FindingFix { commands: vec![plain_command(&write)], writes: vec![write] }, None))
        }
        JobLocation::Root(processes) => {
            let from = facts.root()?.dirs.get(&HierarchyController::Memory)?.clone();
            let name: String = job
                .name
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' })
                .collect();
            let placing = HousekeepingCgroup {
                dir: format!("{from}/{PARENT_CGROUP}/{name}"),
                from,
                file: file.to_owned(),
                size,
                processes: processes.clone(),
            };
            Some((
                FindingFix { commands: manual_commands(&placing, file == "memory.high"), writes: Vec::new() },
                Some(placing),
            ))
        }
    }
}

/// What a person would type instead.
fn manual_commands(placing: &HousekeepingCgroup, v2: bool) -> Vec<String> {
    let dir = &placing.dir;
    let mut commands = vec![format!("mkdir -p {}", shell_quoted(dir))];
    if v2 {
        let around = format!("{}/{PARENT_CGROUP}/cgroup.subtree_control", placing.from);
        commands.push(echo_command("+memory", &around));
    }
    commands.push(echo_command(&placing.size.get().to_string(), &format!("{dir}/{}", placing.file)));
    let procs = format!("{dir}/cgroup.procs");
    commands.extend(placing.processes.iter().map(|p| echo_command(&p.pid.to_string(), &procs)));
    commands
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_tell_kinds() {
        for (name, expect) in [
            ("sshd", JobKind::Remote),
            ("ssh.service", JobKind::Remote),
            ("sshd-session", JobKind::Remote),
            ("session-12.scope", JobKind::Remote),
            ("user@1000.service", JobKind::Remote),
            ("cron.service", JobKind::Cron),
            ("restic", JobKind::Backup),
            ("backup-nightly.service", JobKind::Backup),
            ("pg_dump", JobKind::Backup),
            ("apt-get", JobKind::Packages),
            ("unattended-upgr", JobKind::Packages),
            ("systemd-journald.service", JobKind::System),
            ("systemd-journal", JobKind::System),
            ("rsyslogd", JobKind::System),
            ("logrotate.service", JobKind::Logs),
            ("systemd-udevd", JobKind::System),
            ("updatedb.plocat", JobKind::Index),
            ("containerd-shim", JobKind::Engine),
            ("docker.service", JobKind::Engine),
            ("tarantool", JobKind::Other),
            ("rsyncd2", JobKind::Other),
            ("postgres", JobKind::Other),
            ("", JobKind::Other),
        ] {
            assert_eq!(job_kind(name), expect, "{name}");
        }
    }

    #[test]
    fn a_job_larger_than_the_machine_can_bound_safely_has_no_size() {
        assert_eq!(job_limit(JobKind::Cron, Bytes::mib(100), Bytes::gib(16)), Some(Bytes::mib(456)));
        assert_eq!(job_limit(JobKind::Cron, Bytes::gib(6), Bytes::gib(16)), Some(Bytes::gib(8)));
        assert_eq!(job_limit(JobKind::Cron, Bytes::gib(7), Bytes::gib(16)), None);
        assert_eq!(job_limit(JobKind::Cron, Bytes::ZERO, Bytes::ZERO), None);
    }

    proptest! {
        #[test]
        fn a_size_leaves_room_for_what_cannot_be_dropped(held in 0u64..1 << 40, total in 0u64..1 << 42, other in any::<bool>()) {
            let kind = if other { JobKind::Other } else { JobKind::Backup };
            if let Some(size) = job_limit(kind, Bytes(held), Bytes(total)) {
                prop_assert!(size.get() >= held + held / 4);
                prop_assert!(size.get() <= total / 2 && size.get() % (1 << 20) == 0);
            }
        }

        #[test]
        fn more_memory_never_gets_a_smaller_size(a in 0u64..1 << 36, b in 0u64..1 << 36) {
            let of = |held| job_limit(JobKind::Logs, Bytes(held), Bytes::gib(512));
            prop_assert!(of(a.min(b)) <= of(a.max(b)));
        }
    }
}
