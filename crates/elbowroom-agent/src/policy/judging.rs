//! What the policy loop knows of a container, as facts for its verdict; when it is judged, and what is kept of it when it ends.

use super::policy_loop::PolicyLoop;
use super::verdicts::KillContext;
use elbowroom_client::api::ContainerView;
use elbowroom_govern::verdict::{VerdictFacts, judge, memory_need, unreclaimable_rest};
use elbowroom_linux::cgroup::{CgroupController, CgroupVersion};
use elbowroom_linux::timer;
use elbowroom_types::container::display_name;
use elbowroom_types::id::CgroupId;
use elbowroom_types::resource_command::ResourceOwner;
use elbowroom_types::sample::{CgroupProperties, CgroupSettings, MemoryStat};
use elbowroom_types::unit::{CpuShare, Limit, Micros, Millicpu};
use elbowroom_types::verdict::{Verdict, VerdictStatus};
use elbowroom_view::pages::snapshot::ContainerSnapshot;
use elbowroom_view::rules::{ViewTable, cpu};
use std::path::Path;

impl PolicyLoop {
    /// Looks for kills, in every tick in which there may be some that are not told.
    pub(super) fn check_kills(&mut self, now: Micros) {
        let every_second = self.alerts.is_due(now);
        if every_second || self.verdicts.is_looking(now) {
            self.verdicts.take_notice(now, every_second);
            self.read_suspects(now);
        }
    }

    /// Takes in what the kernel told of kills. It may tell before it kills, so the next ticks look too.
    pub(super) fn note_kills(&mut self) {
        let now = timer::now();
        self.verdicts.take_notice(now, false);
        self.read_suspects(now);
    }

    /// In its tenant's turn: the kernel tells also of a container that is at its limit all the time, and a tenant has many in itself.
    fn read_suspects(&mut self, now: Micros) {
        for id in self.verdicts.suspects(now) {
            let (known, verdicts) = (self.kill_context(id, now), &mut self.verdicts);
            match self.sensor.in_turn(id, |_| verdicts.read_kills(id, &known)) {
                Some(true) => self.judge_kills(id, now),
                Some(false) => {}
                None => self.verdicts.suspect(id, now),
            }
        }
    }

    /// Looks at one container's counter, and judges it anew where it grew.
    fn read_kills(&mut self, id: CgroupId, now: Micros) {
        let known = self.kill_context(id, now);
        if self.verdicts.read_kills(id, &known) {
            self.judge_kills(id, now);
        }
    }

    fn kill_context(&self, id: CgroupId, now: Micros) -> KillContext {
        let limit = self.views.group(id).and_then(|group| group.limits.memory_max).unwrap_or(Limit::Max);
        let process = self.containers.get(&id).and_then(|managed| managed.found_process);
        KillContext { now, limit, process: process.map(|(pid, _)| pid) }
    }

    /// Judges a container in which there were kills.
    fn judge_kills(&mut self, id: CgroupId, now: Micros) {
        if let Some(verdict) = self.judge(id, now, None) {
            self.set_verdict(id, verdict);
        }
    }

    pub(super) fn set_verdict(&mut self, id: CgroupId, verdict: Verdict) {
        if verdict.status == VerdictStatus::Killed {
            self.verdicts.set_command(id, verdict.command.clone());
        }
        if let Some(managed) = self.containers.get_mut(&id) {
            managed.verdict = verdict;
        }
    }

    /// Judges every container, and tells of what began and ended; once a second.
    pub(super) fn check_verdicts(&mut self, now: Micros) {
        let ids: Vec<CgroupId> = self.containers.keys().copied().collect();
        for id in ids {
            let total = self.containers.get(&id).and_then(|managed| managed.usage.throttled);
            let throttled = self.verdicts.throttled(id, total);
            if let Some(verdict) = self.judge(id, now, throttled) {
                self.set_verdict(id, verdict);
            }
        }
        self.verdicts.expire(now);
        let verdicts = self.containers.iter().map(|(id, managed)| (*id, &managed.verdict));
        let settings = &self.config.containers;
        let alerts = self.verdicts.alerts(now, verdicts, |name| settings.excludes_named(name, Some(name)));
        alerts.into_iter().for_each(|alert| self.alerts.record(alert));
    }

    fn judge(&self, id: CgroupId, now: Micros, throttled: Option<f64>) -> Option<Verdict> {
        let (managed, group) = (self.containers.get(&id)?, self.views.group(id)?);
        let owner = self.resource_owner(group)?;
        let disks = self.disk.container_statuses(id, false);
        Some(judge(&VerdictFacts {
            kills: self.verdicts.kills_of(id, now),
            throttled,
            cpus_used: Some(Millicpu(managed.cpu_used_millicpu)),
            cpus_allowed: self.views.cpuset(id).map(|cpus| cpus.count()),
            disks: &disks,
            over_memory: self.memory.over_entitlement(id, &group.path),
            quota_around: quota_around(&self.views, group),
            ..settings_and_waits(&owner, &group.limits, &managed.facts)
        }))
    }

    /// The tool that keeps a container's settings.
    fn resource_owner(&self, group: &CgroupProperties) -> Option<ResourceOwner> {
        let container = group.container.as_ref()?;
        let layout = self.sensor.layout();
        let path = Path::new(group.path.trim_start_matches('/'));
        let dir = |controller| {
            layout.dir(controller, path).map_or_else(Default::default, |(version, dir)| {
                (dir.path().display().to_string(), version == CgroupVersion::V2)
            })
        };
        let period = group.limits.cpu_max.map(|max| max.period).filter(|period| *period > Micros::ZERO);
        Some(ResourceOwner {
            engine: container.engine,
            name: display_name(container),
            pod: container.pod.clone(),
            path: group.path.clone(),
            memory_dir: dir(CgroupController::Memory),
            cpu_dir: dir(CgroupController::Cpu),
            cpu_period: period.unwrap_or(Micros::millis(100)),
        })
    }

    /// Keeps what was known of a container that ends. Called while views still know it.
    pub(super) fn remember_end(&mut self, id: CgroupId, now: Micros) {
        self.read_kills(id, now);
        let known = self.kill_context(id, now);
        if self.verdicts.read_logged_kills(id, &known) {
            self.judge_kills(id, now);
        }
        let owner = self.views.group(id).and_then(|group| self.resource_owner(group));
        if let Some((owner, mut last)) = owner.zip(self.explain_container(id)) {
            last.container.ended_unix_ms = Some(elbowroom_linux::timer::unix_ms());
            last.container.attached = false;
            last.container.attach_note = Some("it has ended".to_owned());
            self.verdicts.remember_end(id, now, &owner, last);
        }
        let ended = self.verdicts.remove(id, now);
        ended.into_iter().for_each(|alert| self.alerts.record(alert));
        if let Some(managed) = self.containers.get(&id) {
            self.alerts.remove_container(&managed.path, now);
        }
    }

    /// When the kernel last killed for memory in a container of that name.
    pub(super) fn killed_unix_ms(&self, id: CgroupId, now: Micros) -> Option<u64> {
        let ago = self.verdicts.kills_of(id, now)?.ago;
        Some(timer::unix_ms().saturating_sub(ago.get() / 1_000))
    }

    /// Those that ended lately, the last one first.
    pub(super) fn ended_containers(&self) -> Vec<ContainerView> {
        self.verdicts.ended.views().cloned().collect()
    }
}

/// The CPU quota of a cgroup.
fn quota(limits: &CgroupSettings) -> Option<Millicpu> {
    cpu::quota(limits.cpu_max).value()
}

/// The tightest one of the cgroups around a container.
fn quota_around(views: &ViewTable, group: &CgroupProperties) -> Option<Millicpu> {
    let parent = |group: &&CgroupProperties| views.group(group.parent?);
    std::iter::successors(parent(&group), parent).filter_map(|around| quota(&around.limits)).min()
}

/// What a container's own files and settings say.
fn settings_and_waits<'a>(
    owner: &'a ResourceOwner,
    limits: &CgroupSettings,
    facts: &ContainerSnapshot,
) -> VerdictFacts<'a> {
    let stat = &facts.memory_stat;
    let need = (*stat != MemoryStat::EMPTY).then(|| {
        let cache = stat.file.saturating_sub(stat.shmem);
        memory_need(stat.anon, unreclaimable_rest(facts.memory_usage, stat), stat.active_file.min(cache))
    });
    let [cpu_wait, disk_wait, memory_wait] = facts
        .pressure
        .map(|pressure| (facts.has_pressure != 0).then(|| f64::from(pressure.some.avg10) / 10_000.0));
    let limit = limits.memory_max.unwrap_or(Limit::Max);
    let with_swap = limits.swap_max.map(|swap| match (swap, limit) {
        (Limit::At(swap), Limit::At(limit)) => Limit::At(limit.saturating_add(swap)),
        _ => Limit::Max,
    });
    VerdictFacts {
        owner,
        kills: None,
        memory_limit: limit,
        memory_and_swap: limits.memsw_max.or(with_swap),
        memory_need: need,
        memory_wait,
        disk_wait,
        cpu_wait,
        cpu_quota: quota(limits),
        quota_around: None,
        cpus_used: None,
        cpus_allowed: None,
        throttled: None,
        cpu_shares: match limits.cpu_share {
            Some(CpuShare::Shares(shares)) => Some(shares),
            _ => None,
        },
        disks: &[],
        over_memory: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::cpuset::CpuSet;
    use elbowroom_types::sample::{CpuMax, HostEvent, NodeProperties};

    #[test]
    fn the_tightest_quota_around_a_container_counts_and_not_its_own() {
        let node = NodeProperties { online: CpuSet::first_n(4), ..NodeProperties::default() };
        let group = |id: u64, parent: Option<u64>, millis: Option<u64>| CgroupProperties {
            id: CgroupId(id),
            parent: parent.map(CgroupId),
            path: format!("/{id}"),
            container: None,
            limits: CgroupSettings {
                cpu_max: millis.map(|millis| CpuMax {
                    quota: Limit::At(Micros::millis(millis)),
                    period: Micros::millis(100),
                }),
                ..CgroupSettings::default()
            },
            populated: true,
            made_by_user: false,
        };
        let mut views = ViewTable::new(Default::default());
        let groups =
            [(1, None, None), (2, Some(1), Some(150)), (3, Some(2), Some(200)), (4, Some(3), Some(50))];
        views.apply(&HostEvent::Node(node));
        for (id, parent, millis) in groups {
            views.apply(&HostEvent::Group(group(id, parent, millis)));
        }
        let around = |id| quota_around(&views, views.group(CgroupId(id)).unwrap());
        assert_eq!([around(4), around(3), around(2)], [Some(Millicpu(1_500)), Some(Millicpu(1_500)), None]);
        // And takes no CPU out of those that it may run on.
        assert_eq!(views.cpuset(CgroupId(4)), Some(CpuSet::first_n(4)));
    }
}
