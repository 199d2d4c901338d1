//! What verdicts need to remember of each container, and the alerts made of them.
//!
//! What is wrong in a container is reported for the outermost container around it, once for all that are in it. Addressees get a limited
//! number of alerts a minute, and one tenant must not use it up.
//!
//! [`elbowroom_govern::verdict::judge`] decides; its facts are gathered in [`super::judging`]. Kills are looked for as soon as the kernel
//! tells of one, because their counter is gone with the container. At a container's end the kernel's log says whether there were more.

use super::deaths::{ContainerKey, EndedContainers, KillLog, KillRecord, SeenKill};
use anyhow::Result;
use elbowroom_client::api::Explanation;
use elbowroom_govern::alert::conditions::Conditions;
use elbowroom_govern::verdict::MemoryKills;
use elbowroom_linux::cgroup::CgroupLayout;
use elbowroom_linux::memory::{KernelLog, LoggedKill, OomCounter, OomWatch};
use elbowroom_linux::root::Root;
use elbowroom_types::alert::{Alert, AlertKind, AlertSubject};
use elbowroom_types::container::{ContainerIdentity, display_name};
use elbowroom_types::finding::Severity;
use elbowroom_types::id::CgroupId;
use elbowroom_types::resource_command::ResourceOwner;
use elbowroom_types::sample::CgroupProperties;
use elbowroom_types::unit::{Bytes, Limit, Micros};
use elbowroom_types::verdict::{Verdict, VerdictStatus};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;

/// Throttling is the mean over this many seconds, since a quota stops a container now and then.
const THROTTLE_WINDOW: u64 = 10;
/// How long after a notice counters are looked at: the kernel tells of it before it kills.
const SUSPECT_FOR: Micros = Micros::millis(150);
/// How long after a container was seen first its memory cgroup may come: runtimes make one hierarchy after the other.
const MADE_WITHIN: Micros = Micros::secs(5);
/// How long what the kernel's log says of a kill waits for the container's counter, or for its end.
const LOGGED_FOR: Micros = Micros::secs(2);
/// The most kills that wait so: the first go first.
const MAX_LOGGED: usize = 256;
/// How long a bad verdict must last before there is an alert; throttling, itself a mean, need not.
const STEADY_FOR: Micros = Micros::secs(5);

/// What is known of one container beside what the policy loop has.
struct WatchedContainer {
    key: ContainerKey,
    /// Whose alert it is when something is wrong: the outermost container's around it, or its own.
    tenant: CgroupId,
    name: String,
    path: String,
    /// The group that is full when its own limit is reached: [`limited_path`].
    limited_path: String,
    /// Kills that its counter had when it was last read.
    kills: u64,
    /// Kills at its own limit, as of the last kill: [`OomCounter::at_limit`].
    at_limit: u64,
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

/// What is known of a container when kills are looked for in it.
pub(super) struct KillContext {
    pub(super) now: Micros,
    /// Its own memory limit, which a kill need not have to do with.
    pub(super) limit: Limit<Bytes>,
    /// A process that was known to be in it.
    pub(super) process: Option<u32>,
}

impl KillContext {
    fn seen(&self, count: u64, at_limit: bool, peak: Option<Bytes>) -> SeenKill {
        // v2 counts in every group around what happens at a limit further below.
        let is_near = |limit: Bytes| peak.is_none_or(|peak| peak.get() >= limit.get() / 10 * 9);
        let limit = self.limit.value().filter(|limit| at_limit && is_near(*limit));
        SeenKill { count, at: self.now, limit: limit.map_or(Limit::Max, Limit::At), peak }
    }
}

/// The path of the cgroup that is full when a container is at its own limit: its own. In Kubernetes it is the pod's, whose limit is the sum
/// of its containers' and is full before theirs: the sandbox's process is in it too.
fn limited_path(path: &str, container: &ContainerIdentity) -> String {
    let uid = container.pod.as_ref().map(|pod| pod.uid.as_str()).filter(|uid| !uid.is_empty());
    let above = path.rsplit_once('/').map(|(above, _)| above);
    let is_pods = |above: &&str| {
        let name = above.rsplit('/').next().unwrap_or_default().replace('_', "-");
        uid.is_some_and(|uid| name.contains(uid))
    };
    above.filter(is_pods).unwrap_or(path).to_owned()
}

/// Verdicts, and what they need to remember.
pub(super) struct VerdictWatch {
    oom: OomWatch,
    log: Option<KernelLog>,
    /// What it said lately of kills that no counter has told of yet, the last one last.
    logged: VecDeque<(Micros, LoggedKill)>,
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
            log: KernelLog::open(),
            logged: VecDeque::new(),
            watched: BTreeMap::new(),
            kills: KillLog::default(),
            ended: EndedContainers::default(),
            conditions: Conditions::default(),
            kill_conditions: Conditions::default(),
            looking_until: Micros::ZERO,
        })
    }

    /// Watches a container, of whose troubles is told as the `tenant`'s. `is_new`: what its counter says happened since now. Returns its
    /// first verdict: one that was killed and is started again counts as killed from its first look.
    pub(super) fn add(
        &mut self,
        group: &CgroupProperties,
        container: &ContainerIdentity,
        tenant: CgroupId,
        is_new: bool,
        now: Micros,
    ) -> Verdict {
        let before = self.oom.counter(&group.path).filter(|_| !is_new);
        let limited_path = limited_path(&group.path, container);
        let limited = if limited_path == group.path { before } else { self.oom.counter(&limited_path) };
        let key = ContainerKey::of(container);
        self.ended.remove(&key);
        self.kills.begin(&key);
        let watched = WatchedContainer {
            key,
            tenant,
            name: display_name(container),
            path: group.path.clone(),
            kills: before.map_or(0, |counter| counter.kills),
            at_limit: limited.and_then(|counter| counter.at_limit).unwrap_or_default(),
            limited_path,
            own_kills: 0,
            suspect_until: Micros::ZERO,
            is_notified: false,
            ask_until: now.saturating_add(MADE_WITHIN),
            throttled: VecDeque::new(),
        };
        self.looking_until = self.looking_until.max(watched.ask_until);
        let killed = self.kills.recent_of(&watched.key, now);
        let verdict = killed.map_or_else(Verdict::default, |record| record.verdict(now));
        self.watched.insert(group.id, watched);
        verdict
    }

    /// Where the kernel tells of kills, if it can.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.oom.fd()
    }

    /// Whether some container is to be looked at in every tick: the kernel may be about to kill in it, or it is new and the kernel does not
    /// notify of its kills yet.
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
        if every_second {
            self.take_log(now);
        }
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

    /// Has a container's counter looked at later.
    pub(super) fn suspect(&mut self, id: CgroupId, now: Micros) {
        if let Some(watched) = self.watched.get_mut(&id) {
            watched.suspect_until = now.saturating_add(SUSPECT_FOR);
            self.looking_until = self.looking_until.max(watched.suspect_until);
        }
    }

    /// Notes what helps a container that was killed.
    pub(super) fn set_command(&mut self, id: CgroupId, command: Option<String>) {
        if let Some(watched) = self.watched.get(&id) {
            self.kills.set_command(&watched.key, command);
        }
    }

    /// Keeps what was known of a container that ends: that it was killed, or just that it ended.
    pub(super) fn remember_end(
        &mut self,
        id: CgroupId,
        now: Micros,
        owner: &ResourceOwner,
        mut last: Explanation,
    ) {
        let Some(watched) = self.watched.get(&id) else { return };
        // The next of its name may be there before this one is seen to end.
        let is_next = |next: &WatchedContainer| next.key == watched.key && next.path == watched.path;
        if self.watched.iter().any(|(other, next)| *other != id && is_next(next)) {
            return;
        }
        self.kills.end(&watched.key, owner);
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
    pub(super) fn read_kills(&mut self, id: CgroupId, known: &KillContext) -> bool {
        let Some(watched) = self.watched.get_mut(&id) else { return false };
        let Some(OomCounter { kills, at_limit, peak }) = self.oom.counter(&watched.path) else {
            return false;
        };
        let count = kills.saturating_sub(watched.kills);
        watched.kills = kills;
        if count == 0 {
            return false;
        }
        // The kernel counts the limit before it kills, perhaps before an earlier look.
        let at_limit = match watched.limited_path == watched.path {
            true => at_limit,
            false => self.oom.counter(&watched.limited_path).and_then(|counter| counter.at_limit),
        };
        let is_at_limit = at_limit.is_none_or(|now| std::mem::replace(&mut watched.at_limit, now) < now);
        self.take_log(known.now);
        let (_, is_logged_at_limit) = self.claim_logged(id, known.process, count);
        self.note_kills(id, &known.seen(count, is_logged_at_limit.unwrap_or(is_at_limit), peak))
    }

    /// Looks at the kernel's log for a container that ends: whether there were kills that its counter did not tell of in time.
    pub(super) fn read_logged_kills(&mut self, id: CgroupId, known: &KillContext) -> bool {
        self.take_log(known.now);
        let (count, is_at_limit) = self.claim_logged(id, known.process, u64::MAX);
        self.note_kills(id, &known.seen(count, is_at_limit.unwrap_or(true), None))
    }

    fn note_kills(&mut self, id: CgroupId, seen: &SeenKill) -> bool {
        let Some(watched) = self.watched.get_mut(&id).filter(|_| seen.count > 0) else { return false };
        watched.own_kills += seen.count;
        self.kills.record(watched.key.clone(), watched.tenant, &watched.name, seen);
        true
    }

    /// Takes in what the kernel's log said since the last look.
    fn take_log(&mut self, now: Micros) {
        let kills = self.log.as_mut().map(KernelLog::drain_kills).unwrap_or_default();
        self.logged.extend(kills.into_iter().map(|kill| (now, kill)));
        self.logged.drain(..self.logged.len().saturating_sub(MAX_LOGGED));
        self.logged.retain(|(at, _)| now.saturating_sub(*at) < LOGGED_FOR);
    }

    /// Claims at most `most` logged kills for a container; returns how many, and whether the last of them was at its own limit.
    fn claim_logged(&mut self, id: CgroupId, process: Option<u32>, most: u64) -> (u64, Option<bool>) {
        let (mut claimed, mut is_at_limit) = (0, None);
        let watched = &self.watched;
        self.logged.retain(|(_, kill)| {
            let is_its = match &kill.cgroup {
                Some(path) => innermost(watched, path) == Some(id),
                None => process == Some(kill.pid),
            };
            let is_claimed = is_its && claimed < most;
            if is_claimed {
                claimed += 1;
                is_at_limit = watched.get(&id).map(|watched| kill.is_at_limit_of(&watched.limited_path));
            }
            !is_claimed
        });
        (claimed, is_at_limit)
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
        let mut unhealthy: BTreeMap<AlertSubject, (&str, &Verdict)> = BTreeMap::new();
        for (id, verdict) in verdicts {
            let Some(WatchedContainer { name, tenant, .. }) = self.watched.get(&id) else { continue };
            // Kills are told of below.
            let is_told = verdict.status != VerdictStatus::Killed && verdict.status.hurts();
            if is_told && !is_exempt(name) {
                unhealthy.entry(subject(*tenant, verdict.status)).or_insert((name, verdict));
            }
        }
        for (subject, (name, verdict)) in unhealthy {
            let hold = if verdict.status == VerdictStatus::Throttled { Micros::ZERO } else { STEADY_FOR };
            let text = format!("{name}: {}", verdict.sentence());
            alerts.extend(tell(&mut self.conditions, subject, now, hold, Severity::Warning, text));
        }
        alerts.extend(self.conditions.clear_unseen(now));
        let mut last: BTreeMap<CgroupId, &KillRecord> = BTreeMap::new();
        for record in self.kills.recent(now).filter(|record| !is_exempt(&record.name)) {
            let known = last.entry(record.group).or_insert(record);
            if record.kills(now).ago < known.kills(now).ago {
                *known = record;
            }
        }
        for record in last.into_values() {
            let verdict = record.verdict(now);
            let subject = subject(record.group, verdict.status);
            let text = format!("{}: {}", record.name, verdict.sentence());
            let conditions = &mut self.kill_conditions;
            alerts.extend(tell(conditions, subject, now, Micros::ZERO, Severity::Critical, text));
        }
        alerts.extend(self.kill_conditions.clear_unseen(now));
        alerts
    }
}

/// The container in which a cgroup is, the innermost one; of two lives of one path the first, which ends now.
fn innermost(watched: &BTreeMap<CgroupId, WatchedContainer>, path: &str) -> Option<CgroupId> {
    let is_in = |(_, watched): &(&CgroupId, &WatchedContainer)| {
        path.strip_prefix(&watched.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let containers = watched.iter().rev().filter(is_in);
    containers.max_by_key(|(_, watched)| watched.path.len()).map(|(id, _)| *id)
}

/// Tells of a condition that is there now: that it begins, or, where it lasts, what is said of it by now.
fn tell(
    conditions: &mut Conditions,
    subject: AlertSubject,
    now: Micros,
    hold: Micros,
    severity: Severity,
    text: String,
) -> Option<Alert> {
    let begun = conditions.raise(subject.clone(), now, hold, || (severity, text.clone(), Vec::new()));
    begun.or_else(|| conditions.update_text(&subject, &text))
}

fn subject(group: CgroupId, status: VerdictStatus) -> AlertSubject {
    AlertSubject {
        kind: AlertKind::Verdict,
        disk: None,
        group: Some(group),
        topic: Some(status.name().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_govern::alert::outbox::Outbox;
    use elbowroom_linux::memory::FullMemory;
    use elbowroom_types::container::{ContainerEngine, Pod};
    use elbowroom_types::label::ContainerLabels;
    use elbowroom_types::sample::CgroupSettings;

    fn add(watch: &mut VerdictWatch, id: u64, path: &str, tenant: u64, at: u64) -> Verdict {
        let identity = ContainerIdentity {
            id: path.to_owned(),
            name: None,
            engine: ContainerEngine::Docker,
            pod: path.contains("pod12_3").then(|| Pod {
                uid: "12-3".to_owned(),
                name: None,
                namespace: None,
            }),
            labels: ContainerLabels::default(),
        };
        let group = CgroupProperties {
            id: CgroupId(id),
            parent: None,
            path: path.to_owned(),
            container: None,
            limits: CgroupSettings::default(),
            populated: true,
            made_by_user: false,
        };
        watch.add(&group, &identity, CgroupId(tenant), true, Micros::secs(at))
    }

    #[test]
    fn a_kill_of_the_log_counts_once_for_the_container_in_which_it_was() {
        let mut watch = VerdictWatch::open().unwrap();
        watch.log = None;
        let inside = "/elbowroom-test-none/web/inside";
        for (id, path) in
            [(1, "/elbowroom-test-none/web"), (2, "/elbowroom-test-none/we"), (3, inside), (4, inside)]
        {
            add(&mut watch, id, path, id, 1);
        }
        let at = Micros::secs(9);
        let logged = |pid, path: Option<&str>| {
            let cgroup = path.map(str::to_owned);
            (at, LoggedKill { pid, cgroup, full: FullMemory::Cgroup(None) })
        };
        watch.logged = (0..300).map(|pid| logged(pid, None)).collect();
        let in_cgroups = ["/elbowroom-test-none/web/x", inside, "/elbowroom-test-none"];
        watch.logged.extend(in_cgroups.map(|path| logged(70, Some(path))));
        let context = |now, process| KillContext { now, limit: Limit::Max, process };
        let mut end = |id, pid| watch.read_logged_kills(CgroupId(id), &context(at, pid));
        assert!(end(1, None) && !end(1, None));
        assert!(end(2, Some(299)) && !end(2, Some(299)), "its cgroup was left out");
        assert!(!end(2, Some(0)), "that was too many kills ago");
        assert!(end(3, None) && !end(4, None), "the first life of a path ends first");
        let kills = |id| watch.kills_of(CgroupId(id), Micros::secs(9)).map(|kills| kills.count);
        assert_eq!([kills(1), kills(2), kills(3)], [Some(1), Some(1), Some(1)]);
        watch.logged = VecDeque::from([logged(5, None), logged(6, Some(inside))]);
        assert_eq!(watch.claim_logged(CgroupId(3), None, 1).0, 1, "its counter told of it");
        let later = at.saturating_add(LOGGED_FOR);
        assert!(!watch.read_logged_kills(CgroupId(2), &context(later, Some(5))), "another process, by now");
    }

    #[test]
    fn a_kill_for_a_limit_around_a_container_or_the_hosts_memory_is_not_at_its_own_limit() {
        let mut watch = VerdictWatch::open().unwrap();
        watch.log = None;
        let path = "/elbowroom-test-none/web";
        let context = KillContext { now: Micros::secs(9), limit: Limit::At(Bytes::mib(512)), process: None };
        let around = FullMemory::Cgroup(Some("/elbowroom-test-none".to_owned()));
        let own = FullMemory::Cgroup(Some(path.to_owned()));
        let elsewhere = "OOM-killed once, at no limit of its own: one around it or the host was full";
        for (id, full, expect) in [
            (1, FullMemory::Host, elsewhere),
            (2, around, elsewhere),
            (3, own, "OOM-killed once at its limit of 512MiB"),
        ] {
            watch.kills = KillLog::default();
            add(&mut watch, id, path, id, 1);
            watch.logged =
                VecDeque::from([(context.now, LoggedKill { pid: 7, cgroup: Some(path.to_owned()), full })]);
            assert!(watch.read_logged_kills(CgroupId(id), &context));
            assert_eq!(watch.kills_of(CgroupId(id), context.now).unwrap().sentence(), expect);
            watch.remove(CgroupId(id), context.now);
        }
    }

    #[test]
    fn a_kill_at_its_pods_limit_is_at_its_own_and_one_far_below_its_limit_is_not() {
        let mut watch = VerdictWatch::open().unwrap();
        watch.log = None;
        let (pod, path) = ("/kubepods-pod12_3.slice", "/kubepods-pod12_3.slice/cri-7.scope");
        let context = KillContext { now: Micros::secs(9), limit: Limit::At(Bytes::mib(512)), process: None };
        for (id, full, limit) in [(1, pod, Limit::At(Bytes::mib(512))), (2, "/", Limit::Max)] {
            watch.kills = KillLog::default();
            add(&mut watch, id, path, id, 1);
            let full = FullMemory::Cgroup(Some(full.to_owned()));
            let kill = LoggedKill { pid: 7, cgroup: Some(path.to_owned()), full };
            watch.logged = VecDeque::from([(context.now, kill)]);
            assert!(watch.read_logged_kills(CgroupId(id), &context));
            assert_eq!(watch.kills_of(CgroupId(id), context.now).unwrap().limit, limit);
            watch.remove(CgroupId(id), context.now);
        }
        let seen = |peak| context.seen(1, true, Some(Bytes::mib(peak))).limit;
        assert_eq!(
            [seen(461), seen(256)],
            [Limit::At(Bytes::mib(512)), Limit::Max],
            "a group below it was full"
        );
    }

    #[test]
    fn a_counter_that_had_no_turn_is_looked_at_later() {
        let mut watch = VerdictWatch::open().unwrap();
        add(&mut watch, 1, "/elbowroom-test-none/web", 1, 1);
        let (at, later) = (Micros::secs(9), Micros::secs(9).saturating_add(SUSPECT_FOR));
        assert!(watch.suspects(at).is_empty() && !watch.is_looking(at));
        watch.suspect(CgroupId(1), at);
        assert!(watch.suspects(later) == [CgroupId(1)] && watch.is_looking(later));
        assert!(watch.suspects(later.saturating_add(Micros(1))).is_empty());
    }

    #[test]
    fn containers_in_a_container_have_one_alert_together() {
        let mut watch = VerdictWatch::open().unwrap();
        add(&mut watch, 1, "db", 1, 1);
        for id in 2..200 {
            add(&mut watch, id, &format!("/elbowroom-test-none/web/{id}"), 1_000, 1);
        }
        let seen =
            |at| SeenKill { count: 1, at: Micros::secs(at), limit: Limit::At(Bytes::mib(64)), peak: None };
        (2..200).for_each(|id| assert!(watch.note_kills(CgroupId(id), &seen(id))));
        watch.note_kills(CgroupId(1), &seen(200));
        let waits = Verdict { status: VerdictStatus::Throttled, ..Verdict::default() };
        let mut look = |second| {
            let verdicts = (1..200).map(|id| (CgroupId(id), &waits));
            watch.alerts(Micros::secs(second), verdicts, |_| false)
        };
        let of = |alerts: Vec<Alert>| -> Vec<(u64, Severity)> {
            alerts.iter().map(|alert| (alert.group.unwrap().0, alert.severity)).collect()
        };
        let both = |severity| [(1, severity), (1_000, severity)];
        assert_eq!(of(look(201)), [both(Severity::Warning), both(Severity::Critical)].concat());
        assert_eq!(of(look(202)), [], "which of them was the last to be killed does not change");
        let last = watch.kill_conditions.active().last().unwrap();
        assert!(last.text.contains("/web/199"), "{}", last.text);
    }

    #[test]
    fn an_alert_that_lasts_says_what_its_container_s_verdict_says_and_no_receiver_is_told_again() {
        let mut watch = VerdictWatch::open().unwrap();
        for id in 1..4 {
            add(&mut watch, id, &format!("/elbowroom-test-none/{id}"), 9, 1);
        }
        let mut outbox = Outbox::default();
        let said = |quota: &str, lost: u64| Verdict {
            status: VerdictStatus::Throttled,
            reason: format!("its quota of {quota} CPUs holds its threads back {lost} ms of every second"),
            command: Some(format!("docker update --cpus {quota}1 web")),
            raise: None,
        };
        let mut look = |second, verdicts: &[(u64, Verdict)]| {
            let verdicts = verdicts.iter().map(|(id, verdict)| (CgroupId(*id), verdict));
            let alerts = watch.alerts(Micros::secs(second), verdicts, |_| false);
            alerts.iter().for_each(|alert| outbox.apply(alert));
            let last = watch.conditions.active().next().unwrap();
            (last.since, last.text.clone(), outbox.due(Micros::secs(second)).len())
        };
        let text = |id, verdict: &Verdict| format!("/elbowroom-test-none/{id}: {}", verdict.sentence());
        let (small, large) = (said("0.2", 67), said("0.3", 662));
        let since = Micros::secs(1);
        assert_eq!(look(1, &[(2, small.clone()), (3, large.clone())]), (since, text(2, &small), 1));
        assert_eq!(look(2, &[(2, large.clone()), (3, small.clone())]), (since, text(2, &large), 0));
        // The one of which it told is well.
        assert_eq!(look(200, &[(2, Verdict::default()), (3, small.clone())]), (since, text(3, &small), 0));
    }

    #[test]
    fn one_that_was_killed_and_is_started_again_counts_as_killed_at_once_and_for_two_minutes() {
        let mut watch = VerdictWatch::open().unwrap();
        let path = "/elbowroom-test-none/oomer";
        assert_eq!(add(&mut watch, 1, path, 1, 10), Verdict::default());
        let seen = SeenKill { count: 1, at: Micros::secs(20), limit: Limit::At(Bytes::mib(64)), peak: None };
        assert!(watch.note_kills(CgroupId(1), &seen));
        watch.set_command(CgroupId(1), Some("docker update --memory 128m oomer".to_owned()));
        watch.remove(CgroupId(1), Micros::secs(21));
        let mut next = |id, at| add(&mut watch, id, path, id, at).sentence();
        let killed = "OOM-killed once at its limit of 64MiB; docker update --memory 128m oomer";
        assert_eq!([next(2, 21), next(3, 139)], [killed; 2]);
        assert_eq!(next(4, 140), Verdict::default().reason);
        assert_eq!(add(&mut watch, 5, "/elbowroom-test-none/other", 5, 21), Verdict::default());
    }
}
