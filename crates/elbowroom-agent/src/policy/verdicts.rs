//! The verdict of each container, once a second, and the alerts made of it.
//!
//! What is decided is [`elbowroom_govern::verdict::judge`]'s; here its facts are gathered. Kills are looked for in every tick, because
//! their counter is gone with the container.

use super::deaths::{ContainerKey, EndedContainers, KillLog, SeenKill};
use super::policy_loop::PolicyLoop;
use anyhow::Result;
use elbowroom_client::api::ContainerView;
use elbowroom_govern::alert::conditions::Conditions;
use elbowroom_govern::verdict::{MemoryKills, VerdictFacts, judge, memory_need};
use elbowroom_linux::cgroup::{CgroupController, CgroupLayout, CgroupVersion};
use elbowroom_linux::memory::OomWatch;
use elbowroom_linux::root::Root;
use elbowroom_types::alert::{Alert, AlertKind, AlertSubject};
use elbowroom_types::container::{ContainerIdentity, display_name};
use elbowroom_types::finding::Severity;
use elbowroom_types::id::CgroupId;
use elbowroom_types::resource_command::ResourceOwner;
use elbowroom_types::sample::{CgroupProperties, CgroupSettings, MemoryStat};
use elbowroom_types::unit::{Bytes, CpuShare, Limit, Micros, Millicpu};
use elbowroom_types::verdict::{Verdict, VerdictStatus};
use elbowroom_view::pages::snapshot::ContainerSnapshot;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

/// Throttling is the mean of so many seconds, for a quota stops a container now and then.
const THROTTLE_WINDOW: u64 = 10;
/// How long after a notice counters are looked at: the kernel tells of it before it kills.
const SUSPECT_FOR: Micros = Micros::millis(150);
/// How long after a container was seen first its memory cgroup may come: runtimes make one hierarchy after the other.
const MADE_WITHIN: Micros = Micros::secs(5);
/// What is worth an alert at once, and what only when it stays.
const STEADY_FOR: Micros = Micros::secs(5);

/// What is known of one container beside what the policy loop has.
struct WatchedContainer {
    key: ContainerKey,
    name: String,
    path: String,
    /// Kills that its counter had when it was last read.
    kills: u64,
    /// Those of them that happened while it was watched.
    own_kills: u64,
    /// Until when its counter is looked at in every tick.
    suspect_until: Micros,
    /// Whether the kernel tells of kills in it, and until when that is asked for in every tick.
    is_notified: bool,
    ask_until: Micros,
    /// Time that its quota held it back, second by second.
    throttled: VecDeque<Micros>,
}

/// Verdicts, and what they need to remember.
pub(super) struct VerdictWatch {
    oom: OomWatch,
    watched: BTreeMap<CgroupId, WatchedContainer>,
    kills: KillLog,
    pub(super) ended: EndedContainers,
    conditions: Conditions,
    /// Kills are a condition of a name, which outlives each container.
    kill_conditions: Conditions,
}

impl VerdictWatch {
    /// # Errors
    /// There are no cgroups.
    pub(super) fn open() -> Result<Self> {
        let layout = CgroupLayout::detect(&Root::host()?)?;
        Ok(Self {
            oom: OomWatch::new(layout),
            watched: BTreeMap::new(),
            kills: KillLog::default(),
            ended: EndedContainers::default(),
            conditions: Conditions::default(),
            kill_conditions: Conditions::default(),
        })
    }

    /// Watches a container. `is_new`: what its counter says happened since now.
    pub(super) fn add(
        &mut self,
        group: &CgroupProperties,
        container: &ContainerIdentity,
        is_new: bool,
        now: Micros,
    ) {
        let before = self.oom.counter(&group.path).filter(|_| !is_new).map_or(0, |counter| counter.kills);
        let key = ContainerKey::of(container);
        self.ended.remove(&key);
        let watched = WatchedContainer {
            key,
            name: display_name(container),
            path: group.path.clone(),
            kills: before,
            own_kills: 0,
            suspect_until: Micros::ZERO,
            is_notified: false,
            ask_until: now.saturating_add(MADE_WITHIN),
            throttled: VecDeque::new(),
        };
        self.watched.insert(group.id, watched);
    }

    /// The container is gone: what is said of it ends.
    fn remove(&mut self, id: CgroupId, now: Micros) -> Vec<Alert> {
        self.oom.remove(id);
        self.watched.remove(&id);
        self.conditions.forget(now, |_, group| group == Some(id))
    }

    /// The kills of a container's name.
    fn kills_of(&self, id: CgroupId, now: Micros) -> Option<MemoryKills> {
        Some(self.kills.of(&self.watched.get(&id)?.key)?.kills(now))
    }

    /// Marks those of which the kernel told.
    fn take_notice(&mut self, now: Micros, every_second: bool) {
        let notice = self.oom.drain();
        for (id, watched) in &mut self.watched {
            if !watched.is_notified && (every_second || now < watched.ask_until) {
                watched.is_notified = self.oom.add(*id, &watched.path);
                watched.suspect_until = now;
            }
            if notice.any || notice.groups.contains(id) {
                watched.suspect_until = now.saturating_add(SUSPECT_FOR);
            }
        }
    }

    /// Looks at a container's counter: whether there were kills since it was last looked at.
    fn read_kills(&mut self, id: CgroupId, now: Micros, limit: Limit<Bytes>) -> bool {
        let Some(watched) = self.watched.get_mut(&id) else { return false };
        let Some(counter) = self.oom.counter(&watched.path) else { return false };
        let count = counter.kills.saturating_sub(watched.kills);
        watched.kills = counter.kills;
        watched.own_kills += count;
        if count > 0 {
            let seen = SeenKill { count, at: now, limit, peak: counter.peak };
            self.kills.record(watched.key.clone(), id, &watched.name, &seen);
        }
        count > 0
    }

    /// The part of the last seconds that its quota held it back, with what it has counted until this one.
    fn throttled(&mut self, id: CgroupId, total: Option<Micros>) -> Option<f64> {
        let (watched, total) = (self.watched.get_mut(&id)?, total?);
        watched.throttled.push_back(total);
        if watched.throttled.len() as u64 > THROTTLE_WINDOW + 1 {
            watched.throttled.pop_front();
        }
        let first = *watched.throttled.front()?;
        let window = Micros::secs(THROTTLE_WINDOW).get() as f64;
        Some(total.saturating_sub(first).get() as f64 / window)
    }

    /// What begins and ends with these verdicts.
    fn alerts<'a>(
        &mut self,
        now: Micros,
        verdicts: impl Iterator<Item = (CgroupId, &'a Verdict)>,
        is_exempt: impl Fn(&str) -> bool,
    ) -> Vec<Alert> {
        let mut alerts = Vec::new();
        for (id, verdict) in verdicts {
            let Some(name) = self.watched.get(&id).map(|watched| &watched.name) else { continue };
            // Kills are told of below, and what is tight suffers from nothing yet.
            let hold = match verdict.status {
                VerdictStatus::Ok | VerdictStatus::Tight | VerdictStatus::Killed => continue,
                VerdictStatus::Throttled => Micros::ZERO,
                _ => STEADY_FOR,
            };
            if !is_exempt(name) {
                let say = || (Severity::Warning, format!("{name}: {}", verdict.sentence()), Vec::new());
                alerts.extend(self.conditions.raise(subject(id, verdict.status), now, hold, say));
            }
        }
        alerts.extend(self.conditions.clear_unseen(now));
        for record in self.kills.recent(now).filter(|record| !is_exempt(&record.name)) {
            let verdict = record.verdict(now);
            let subject = subject(record.group, verdict.status);
            let text = format!("{}: {}", record.name, verdict.sentence());
            let say = || (Severity::Critical, text.clone(), Vec::new());
            let begun = self.kill_conditions.raise(subject.clone(), now, Micros::ZERO, say);
            alerts.extend(begun.or_else(|| self.kill_conditions.reword(&subject, &text)));
        }
        alerts.extend(self.kill_conditions.clear_unseen(now));
        alerts
    }
}

fn subject(group: CgroupId, status: VerdictStatus) -> AlertSubject {
    AlertSubject {
        kind: AlertKind::Verdict,
        disk: None,
        group: Some(group),
        topic: Some(status.name().to_owned()),
    }
}

impl PolicyLoop {
    /// Looks for kills, in every tick.
    pub(super) fn check_kills(&mut self, now: Micros) {
        let every_second = self.alerts.is_due(now);
        self.verdicts.take_notice(now, every_second);
        let suspects = self.verdicts.watched.iter().filter(|(_, watched)| watched.suspect_until >= now);
        let suspects: Vec<CgroupId> = suspects.map(|(id, _)| *id).collect();
        suspects.into_iter().for_each(|id| self.read_kills(id, now));
    }

    /// Looks at one container's counter, and judges it anew where it grew.
    fn read_kills(&mut self, id: CgroupId, now: Micros) {
        let limit = self.views.group(id).and_then(|group| group.limits.memory_max).unwrap_or(Limit::Max);
        if !self.verdicts.read_kills(id, now, limit) {
            return;
        }
        let Some(verdict) = self.judge(id, now, None) else { return };
        if let Some(key) = self.verdicts.watched.get(&id).map(|watched| watched.key.clone()) {
            self.verdicts.kills.set_command(&key, verdict.command.clone());
        }
        if let Some(resident) = self.containers.get_mut(&id) {
            resident.verdict = verdict;
        }
    }

    /// Judges every container, and tells of what began and ended; once a second.
    pub(super) fn check_verdicts(&mut self, now: Micros) {
        let ids: Vec<CgroupId> = self.containers.keys().copied().collect();
        for id in ids {
            let total = self.containers.get(&id).and_then(|resident| resident.usage.throttled);
            let throttled = self.verdicts.throttled(id, total);
            let verdict = self.judge(id, now, throttled);
            if let (Some(verdict), Some(resident)) = (verdict, self.containers.get_mut(&id)) {
                resident.verdict = verdict;
            }
        }
        self.verdicts.kills.expire(now);
        self.verdicts.ended.expire(now);
        let verdicts = self.containers.iter().map(|(id, resident)| (*id, &resident.verdict));
        let settings = &self.config.containers;
        let alerts = self.verdicts.alerts(now, verdicts, |name| settings.excludes_named(name, Some(name)));
        alerts.into_iter().for_each(|alert| self.alerts.record(alert));
    }

    fn judge(&self, id: CgroupId, now: Micros, throttled: Option<f64>) -> Option<Verdict> {
        let (resident, group) = (self.containers.get(&id)?, self.views.group(id)?);
        let owner = self.resource_owner(group)?;
        let disks = self.disk.container_statuses(id, false);
        Some(judge(&VerdictFacts {
            kills: self.verdicts.kills_of(id, now),
            throttled,
            disks: &disks,
            over_memory: self.memory.over_entitlement(id, &group.path),
            ..settings_and_waits(&owner, &group.limits, &resident.facts)
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
        let last = self.explain_container(id);
        if let (Some(mut last), Some(watched)) = (last, self.verdicts.watched.get(&id)) {
            let key = watched.key.clone();
            let record = self.verdicts.kills.of(&key).filter(|_| watched.own_kills > 0);
            let ended = || Verdict { reason: "it ended".to_owned(), ..Verdict::default() };
            last.container.verdict = record.map_or_else(ended, |record| record.verdict(now));
            last.container.ended_unix_ms = Some(elbowroom_linux::timer::unix_ms());
            last.container.attached = false;
            self.verdicts.ended.push(key, now, last);
        }
        let ended = self.verdicts.remove(id, now);
        ended.into_iter().for_each(|alert| self.alerts.record(alert));
    }

    /// Those that ended lately, the last one first.
    pub(super) fn ended_containers(&self) -> Vec<ContainerView> {
        self.verdicts.ended.views().cloned().collect()
    }
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
        let other = facts.memory_usage.saturating_sub(stat.anon).saturating_sub(cache);
        memory_need(stat.anon, other, stat.active_file.min(cache))
    });
    let [cpu, io, memory] = facts
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
        memory_wait: memory,
        disk_wait: io,
        cpu_wait: cpu,
        cpu_quota: limits.cpu_max.and_then(|max| {
            let quota = max.quota.value()?;
            Some(Millicpu(quota.get() * 1_000 / max.period.get().max(1)))
        }),
        throttled: None,
        cpu_shares: match limits.cpu_share {
            Some(CpuShare::Shares(shares)) => Some(shares),
            _ => None,
        },
        disks: &[],
        over_memory: None,
    }
}
