//! What verdicts need to remember of each container, and the alerts made of them.
//!
//! What is decided is [`elbowroom_govern::verdict::judge`]'s; its facts are gathered in [`super::judging`]. Kills are looked for as soon as
//! the kernel tells of one, because their counter is gone with the container.

use super::deaths::{ContainerKey, EndedContainers, KillLog, SeenKill};
use anyhow::Result;
use elbowroom_client::api::Explanation;
use elbowroom_govern::alert::conditions::Conditions;
use elbowroom_govern::verdict::MemoryKills;
use elbowroom_linux::cgroup::CgroupLayout;
use elbowroom_linux::memory::OomWatch;
use elbowroom_linux::root::Root;
use elbowroom_types::alert::{Alert, AlertKind, AlertSubject};
use elbowroom_types::container::{ContainerIdentity, display_name};
use elbowroom_types::finding::Severity;
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::CgroupProperties;
use elbowroom_types::unit::{Bytes, Limit, Micros};
use elbowroom_types::verdict::{Verdict, VerdictStatus};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;

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
    /// Until when there is something to look at in every tick.
    looking_until: Micros,
}

impl VerdictWatch {
    /// Watches nothing yet.
    ///
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
            looking_until: Micros::ZERO,
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
        self.looking_until = self.looking_until.max(watched.ask_until);
        self.watched.insert(group.id, watched);
    }

    /// Where the kernel tells of kills, if it can.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.oom.fd()
    }

    /// Whether some container is to be looked at in every tick: one in which the kernel may kill just now, or a new one of which it is not
    /// asked to tell yet.
    pub(super) fn is_looking(&self, now: Micros) -> bool {
        now <= self.looking_until
    }

    /// The container is gone: what is said of it ends.
    pub(super) fn remove(&mut self, id: CgroupId, now: Micros) -> Vec<Alert> {
        self.oom.remove(id);
        self.watched.remove(&id);
        self.conditions.forget(now, |_, group| group == Some(id))
    }

    /// The kills of a container's name.
    pub(super) fn kills_of(&self, id: CgroupId, now: Micros) -> Option<MemoryKills> {
        Some(self.kills.of(&self.watched.get(&id)?.key)?.kills(now))
    }

    /// Marks those of which the kernel told.
    pub(super) fn take_notice(&mut self, now: Micros, every_second: bool) {
        let notice = self.oom.drain();
        self.looking_until = Micros::ZERO;
        for (id, watched) in &mut self.watched {
            if !watched.is_notified && (every_second || now < watched.ask_until) {
                watched.is_notified = self.oom.add(*id, &watched.path);
                watched.suspect_until = now;
            }
            if notice.any || notice.groups.contains(id) {
                watched.suspect_until = now.saturating_add(SUSPECT_FOR);
            }
            let asks_until = if watched.is_notified { Micros::ZERO } else { watched.ask_until };
            self.looking_until = self.looking_until.max(watched.suspect_until).max(asks_until);
        }
    }

    /// Those whose counter is to be looked at now.
    pub(super) fn suspects(&self, now: Micros) -> Vec<CgroupId> {
        let suspects = self.watched.iter().filter(|(_, watched)| watched.suspect_until >= now);
        suspects.map(|(id, _)| *id).collect()
    }

    /// Notes what helps a container that was killed.
    pub(super) fn set_command(&mut self, id: CgroupId, command: Option<String>) {
        if let Some(watched) = self.watched.get(&id) {
            self.kills.set_command(&watched.key, command);
        }
    }

    /// Keeps what was known of a container that ends: that it was killed, or just that it ended.
    pub(super) fn remember_end(&mut self, id: CgroupId, now: Micros, mut last: Explanation) {
        let Some(watched) = self.watched.get(&id) else { return };
        let record = self.kills.of(&watched.key).filter(|_| watched.own_kills > 0);
        let ended = || Verdict { reason: "it ended".to_owned(), ..Verdict::default() };
        last.container.verdict = record.map_or_else(ended, |record| record.verdict(now));
        self.ended.push(watched.key.clone(), now, last);
    }

    /// Forgets what is too old.
    pub(super) fn expire(&mut self, now: Micros) {
        self.kills.expire(now);
        self.ended.expire(now);
    }

    /// Looks at a container's counter: whether there were kills since it was last looked at.
    pub(super) fn read_kills(&mut self, id: CgroupId, now: Micros, limit: Limit<Bytes>) -> bool {
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
    pub(super) fn throttled(&mut self, id: CgroupId, total: Option<Micros>) -> Option<f64> {
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
    pub(super) fn alerts<'a>(
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
