//! Containers that ended, and kills for memory: remembered for an hour by name, so a container in a crash loop counts once.

use elbowroom_client::api::{ContainerView, Explanation, MAX_ENDED_CONTAINERS};
use elbowroom_govern::verdict::{KILLED_FOR, MemoryKills};
use elbowroom_types::container::{ContainerEngine, ContainerIdentity};
use elbowroom_types::id::CgroupId;
use elbowroom_types::resource_command::ResourceOwner;
use elbowroom_types::unit::{Bytes, Limit, Micros};
use elbowroom_types::verdict::{Verdict, VerdictStatus};
use std::collections::{BTreeMap, VecDeque};

/// How long what ended is remembered.
const RETENTION: Micros = Micros::secs(3_600);
/// Most names whose kills are remembered. The oldest kill is forgotten first, and nested containers before others.
const MAX_KILL_RECORDS: usize = 256;

/// What stays the same when a container is started again: its engine, pod and name; its id where it has no name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ContainerKey {
    name: String,
    /// See [`ContainerIdentity::is_nested`]: forgotten before others.
    is_nested: bool,
}

impl ContainerKey {
    pub(super) fn of(container: &ContainerIdentity) -> Self {
        let pod = container.pod.as_ref().map_or("", |pod| pod.uid.as_str());
        let name = container.name.as_ref().unwrap_or(&container.id);
        Self { name: format!("{:?} {pod} {name}", container.engine), is_nested: container.is_nested() }
    }
}

/// The kills of all containers of one name, one after the other.
#[derive(Clone, Debug)]
pub(super) struct KillRecord {
    count: u64,
    first: Micros,
    last: Micros,
    limit: Limit<Bytes>,
    peak: Option<Bytes>,
    /// The tenant of the first of them, by which alerts name all of them.
    pub(super) group: CgroupId,
    /// What people call it.
    pub(super) name: String,
    /// What helps, as of the last look at a container of that name.
    command: Option<String>,
    /// See [`MemoryKills::needs_rerun`].
    needs_rerun: bool,
}

/// A kill, as it was seen.
pub(super) struct SeenKill {
    /// Processes that were killed since the last look.
    pub(super) count: u64,
    pub(super) at: Micros,
    pub(super) limit: Limit<Bytes>,
    pub(super) peak: Option<Bytes>,
}

impl KillRecord {
    /// What is said of it.
    pub(super) fn verdict(&self, now: Micros) -> Verdict {
        Verdict {
            status: VerdictStatus::Killed,
            reason: self.kills(now).sentence(),
            command: self.command.clone(),
            // The next look at the container says it, where it runs.
            raise: None,
        }
    }

    /// The kills as a verdict has them.
    pub(super) fn kills(&self, now: Micros) -> MemoryKills {
        MemoryKills {
            count: self.count,
            span: self.last.saturating_sub(self.first),
            ago: now.saturating_sub(self.last),
            limit: self.limit,
            peak: self.peak,
            needs_rerun: self.needs_rerun,
        }
    }
}

/// Kills for memory within the last hour.
#[derive(Debug, Default)]
pub(super) struct KillLog {
    records: BTreeMap<ContainerKey, KillRecord>,
}

impl KillLog {
    /// Takes a kill in a container of that name, for which alerts name `group`.
    pub(super) fn record(&mut self, key: ContainerKey, group: CgroupId, name: &str, seen: &SeenKill) {
        let record = self.records.entry(key).or_insert_with(|| KillRecord {
            count: 0,
            first: seen.at,
            last: seen.at,
            limit: seen.limit,
            peak: None,
            group,
            name: name.to_owned(),
            command: None,
            needs_rerun: false,
        });
        record.count = record.count.saturating_add(seen.count);
        (record.last, record.limit) = (seen.at, seen.limit);
        record.peak = record.peak.max(seen.peak);
        while self.records.len() > MAX_KILL_RECORDS {
            let oldest = self.records.iter().min_by_key(|(key, record)| (!key.is_nested, record.last));
            let Some(key) = oldest.map(|(key, _)| key.clone()) else { return };
            self.records.remove(&key);
        }
    }

    /// Notes what helps.
    pub(super) fn set_command(&mut self, key: &ContainerKey, command: Option<String>) {
        if let Some(record) = self.records.get_mut(key) {
            record.command = command;
        }
    }

    /// A container of that name has ended: a command that writes to its cgroup helps no more.
    pub(super) fn end(&mut self, key: &ContainerKey, owner: &ResourceOwner) {
        if let Some(record) = self.records.get_mut(key).filter(|_| !owner.keeps_memory_limit()) {
            record.command = None;
            record.needs_rerun = owner.engine == ContainerEngine::Elbowroom;
        }
    }

    /// A container of that name runs.
    pub(super) fn begin(&mut self, key: &ContainerKey) {
        if let Some(record) = self.records.get_mut(key) {
            record.needs_rerun = false;
        }
    }

    /// What is known of a name.
    pub(super) fn of(&self, key: &ContainerKey) -> Option<&KillRecord> {
        self.records.get(key)
    }

    /// The same, where its container counts as killed.
    pub(super) fn recent_of(&self, key: &ContainerKey, now: Micros) -> Option<&KillRecord> {
        self.of(key).filter(|record| record.kills(now).ago < KILLED_FOR)
    }

    /// Those of which an alert lasts, whether their container runs or not: one that is started again and again is not always there.
    pub(super) fn recent(&self, now: Micros) -> impl Iterator<Item = &KillRecord> {
        self.records.values().filter(move |record| record.kills(now).ago < KILLED_FOR)
    }

    /// Forgets what is too old.
    pub(super) fn expire(&mut self, now: Micros) {
        self.records.retain(|_, record| record.kills(now).ago < RETENTION);
    }
}

/// Containers that ended within the last hour, each as it was last.
#[derive(Debug, Default)]
pub(super) struct EndedContainers {
    /// The last one to end comes first.
    ended: VecDeque<(ContainerKey, Micros, Box<Explanation>)>,
}

impl EndedContainers {
    /// Takes one that ended, in place of one of its name.
    pub(super) fn push(&mut self, key: ContainerKey, at: Micros, last: Explanation) {
        self.remove(&key);
        self.ended.push_front((key, at, Box::new(last)));
        if self.ended.len() > MAX_ENDED_CONTAINERS {
            self.ended.remove(place_to_forget(self.ended.iter().map(|(key, ..)| key)));
        }
    }

    /// One of that name runs again.
    pub(super) fn remove(&mut self, key: &ContainerKey) {
        self.ended.retain(|(of, ..)| of != key);
    }

    /// Forgets what is too old.
    pub(super) fn expire(&mut self, now: Micros) {
        self.ended.retain(|(_, at, _)| now.saturating_sub(*at) < RETENTION);
    }

    /// All of them, the last one first.
    pub(super) fn views(&self) -> impl Iterator<Item = &ContainerView> {
        self.ended.iter().map(|(_, _, last)| &last.container)
    }

    /// The one that is called so: by id, name, cgroup path, or the beginning of an id; the last one to end.
    pub(super) fn find(&self, name: &str) -> Option<&Explanation> {
        let is = |c: &ContainerView| c.id == name || c.name.as_deref() == Some(name) || c.path == name;
        let begins = |c: &ContainerView| !name.is_empty() && c.id.starts_with(name);
        let find = |is: &dyn Fn(&ContainerView) -> bool| {
            self.ended.iter().find(|(_, _, last)| is(&last.container)).map(|(_, _, last)| &**last)
        };
        find(&is).or_else(|| find(&begins))
    }
}

/// Which of those that ended is forgotten first, where the first to end comes last.
fn place_to_forget<'a>(
    mut keys: impl DoubleEndedIterator<Item = &'a ContainerKey> + ExactSizeIterator,
) -> usize {
    let last = keys.len().saturating_sub(1);
    keys.rposition(|key| key.is_nested).unwrap_or(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ContainerKey {
        ContainerKey { name: name.to_owned(), is_nested: name.starts_with('/') }
    }

    fn seen(second: u64) -> SeenKill {
        SeenKill { count: 1, at: Micros::secs(second), limit: Limit::At(Bytes::mib(64)), peak: None }
    }

    #[test]
    fn kills_of_one_name_are_counted_together_over_its_lives() {
        let mut log = KillLog::default();
        for life in 0..8 {
            log.record(key("oomer"), CgroupId(life), "oomer", &seen(100 + 8 * life));
        }
        let kills = log.of(&key("oomer")).unwrap().kills(Micros::secs(160));
        assert_eq!((kills.count, kills.span, kills.ago), (8, Micros::secs(56), Micros::secs(4)));
        assert_eq!(kills.sentence(), "OOM-killed 8 times in 56 s at its limit of 64MiB");
        let recent: Vec<CgroupId> = log.recent(Micros::secs(160)).map(|record| record.group).collect();
        assert_eq!(recent, [CgroupId(0)], "the first life names them all");
        assert_eq!(log.recent(Micros::secs(300)).count(), 0);
        log.expire(Micros::secs(3_700));
        assert!(log.of(&key("oomer")).is_some());
        log.expire(Micros::secs(3_757));
        assert!(log.of(&key("oomer")).is_none());
    }

    #[test]
    fn what_would_write_to_a_cgroup_that_is_gone_is_proposed_no_more() {
        let help = "what helped while it ran";
        let ended = |engine: ContainerEngine, path: &str| {
            let mut log = KillLog::default();
            let owner = ResourceOwner {
                engine,
                name: "web".to_owned(),
                pod: None,
                path: path.to_owned(),
                memory_dir: (format!("/sys/fs/cgroup/memory{path}"), false),
                cpu_dir: (String::new(), false),
                cpu_period: Micros::millis(100),
            };
            log.record(key("web"), CgroupId(1), "web", &seen(1));
            log.set_command(&key("web"), Some(help.to_owned()));
            log.end(&key("web"), &owner);
            let dead = log.of(&key("web")).unwrap().verdict(Micros::secs(2));
            log.begin(&key("web"));
            (dead, log.of(&key("web")).unwrap().verdict(Micros::secs(2)).reason)
        };
        let once = "OOM-killed once at its limit of 64MiB";
        for (engine, path, more, command) in [
            (ContainerEngine::Docker, "/docker/1f", "", Some(help)),
            (ContainerEngine::Plain, "/batch/web", "", None),
            (
                ContainerEngine::Elbowroom,
                "/elbowroom/web",
                "; run it with more: `elbowroom run --memory 128MiB`",
                None,
            ),
        ] {
            let (dead, again) = ended(engine, path);
            assert_eq!((dead.reason, dead.command.as_deref()), (format!("{once}{more}"), command), "{path}");
            assert_eq!(again, once);
        }
    }

    #[test]
    fn however_many_are_killed_a_bounded_number_is_remembered() {
        let mut log = KillLog::default();
        for n in 0..1_000 {
            log.record(key(&n.to_string()), CgroupId(n), "x", &seen(n));
        }
        assert_eq!(log.records.len(), MAX_KILL_RECORDS);
        assert!(log.of(&key("999")).is_some());
        assert!(log.of(&key("0")).is_none());
    }
    #[test]
    fn a_container_in_which_many_are_killed_and_end_has_no_other_forgotten() {
        let mut log = KillLog::default();
        log.record(key("db"), CgroupId(0), "db", &seen(0));
        for n in 1..1_000 {
            log.record(key(&format!("/web/{n}")), CgroupId(n), "x", &seen(n));
        }
        assert_eq!(log.records.len(), MAX_KILL_RECORDS);
        assert!(log.of(&key("db")).is_some());
        for (names, place) in [(&["/web/3", "/web/2", "db", "mail"][..], 1), (&["mail", "db"], 1)] {
            let keys: Vec<ContainerKey> = names.iter().map(|name| key(name)).collect();
            assert_eq!(place_to_forget(keys.iter()), place, "{names:?}");
        }
    }
}
