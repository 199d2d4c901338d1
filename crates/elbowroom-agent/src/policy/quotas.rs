//! Tenants that ask more of the agent than it does for one: said once, shown in `alerts` and `explain` while it lasts.

use super::policy_loop::PolicyLoop;
use elbowroom_govern::alert::conditions::Conditions;
use elbowroom_linux::sensor::{MAX_CONTAINERS_PER_TENANT, MAX_GROUPS_PER_TENANT, TenantQuota};
use elbowroom_types::alert::{Alert, AlertKind, AlertSubject};
use elbowroom_types::id::CgroupId;
use elbowroom_types::unit::Micros;
use std::collections::BTreeMap;

/// How long a quota counts as used up after it was seen so: it is checked every second, and often used up for less.
const LASTS_FOR: Micros = Micros::secs(30);

/// What is bounded for each tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum QuotaTopic {
    /// Cgroups below it.
    Cgroups,
    /// Containers in it.
    Containers,
    /// Reads of its view past the page cache.
    Reads,
    /// Mappings of its view's files.
    Mappings,
    /// Mounting its view.
    Mounts,
    /// Its probe.
    Probes,
}

/// Which quotas are used up, and the alerts made of it.
#[derive(Default)]
pub(super) struct QuotaWatch {
    conditions: Conditions,
    /// When each was seen last, and the path of the container.
    seen: BTreeMap<(CgroupId, QuotaTopic), (Micros, String)>,
}

impl QuotaTopic {
    const fn name(self) -> &'static str {
        match self {
            Self::Cgroups => "cgroups",
            Self::Containers => "containers",
            Self::Reads => "reads",
            Self::Mappings => "mappings",
            Self::Mounts => "mounts",
            Self::Probes => "probes",
        }
    }

    /// What is so, and what that costs the tenant.
    fn text(self, path: &str) -> String {
        match self {
            Self::Cgroups => format!(
                "{path} has more than {MAX_GROUPS_PER_TENANT} cgroups below it: the others are not followed, its own view stays"
            ),
            Self::Containers => format!(
                "{path} has more than {MAX_CONTAINERS_PER_TENANT} containers in it: the others have no view of their own"
            ),
            Self::Reads => format!(
                "{path} reads its view past the page cache without a pause: it waits for its own reads"
            ),
            Self::Mappings => format!(
                "{path} maps the files of its view so often that dropping a page takes long: its numbers come late"
            ),
            Self::Mounts => format!(
                "{path} has file systems that do not answer, or answer slowly: its view is mounted late"
            ),
            Self::Probes => format!("{path} leaves questions of its probe hanging: it is asked no more"),
        }
    }
}

impl QuotaWatch {
    /// Notes that the tenant at `path` asks too much.
    pub(super) fn note(&mut self, tenant: CgroupId, topic: QuotaTopic, path: &str, now: Micros) {
        self.seen.insert((tenant, topic), (now, path.to_owned()));
    }

    /// The container is gone.
    pub(super) fn forget(&mut self, tenant: CgroupId, now: Micros) -> Vec<Alert> {
        self.seen.retain(|(id, _), _| *id != tenant);
        self.conditions.forget(now, |_, group| group == Some(tenant))
    }

    /// What began and ended since this was called last.
    pub(super) fn changes(&mut self, now: Micros) -> Vec<Alert> {
        self.seen.retain(|_, (at, _)| now.saturating_sub(*at) < LASTS_FOR);
        let mut alerts = Vec::new();
        for ((tenant, topic), (_, path)) in &self.seen {
            let subject = AlertSubject {
                kind: AlertKind::Quota,
                disk: None,
                group: Some(*tenant),
                topic: Some(topic.name().to_owned()),
            };
            let say = || (AlertKind::Quota.severity(), topic.text(path), Vec::new());
            alerts.extend(self.conditions.raise(subject, now, Micros::ZERO, say));
        }
        alerts.extend(self.conditions.clear_unseen(now));
        alerts
    }

    /// What of a container is so now, in words.
    pub(super) fn of(&self, tenant: CgroupId) -> Vec<String> {
        let own = self.seen.iter().filter(|((id, _), _)| *id == tenant);
        own.map(|((_, topic), (_, path))| topic.text(path)).collect()
    }
}

impl PolicyLoop {
    /// Looks which tenants ask too much, and tells of it.
    pub(super) fn check_quotas(&mut self, now: Micros) {
        for (tenant, quota, path) in self.sensor.over_quota() {
            let topic = match quota {
                TenantQuota::Groups => QuotaTopic::Cgroups,
                TenantQuota::Containers => QuotaTopic::Containers,
            };
            self.quotas.note(tenant, topic, &path, now);
        }
        let (reads, mappings) = (self.publisher.take_overuse(), self.publisher.slow());
        for (id, managed) in &self.containers {
            let is_stuck = self.probes.is_stuck(*id);
            for (topic, is_over) in [
                (QuotaTopic::Reads, reads.contains(&managed.slot)),
                (QuotaTopic::Mappings, mappings.contains(&self.publisher.tenant(managed.slot))),
                (QuotaTopic::Probes, is_stuck),
            ] {
                if is_over {
                    self.quotas.note(managed.outermost, topic, &managed.path, now);
                }
            }
        }
        self.quotas.changes(now).into_iter().for_each(|alert| self.alerts.record(alert));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_that_asks_too_much_is_told_of_once_while_it_lasts() {
        let mut watch = QuotaWatch::default();
        let (tenant, at) = (CgroupId(7), |seconds| Micros::secs(seconds));
        let mut begun = 0;
        for second in 0..100 {
            watch.note(tenant, QuotaTopic::Cgroups, "/docker/7", at(second));
            let alerts = watch.changes(at(second));
            assert!(alerts.iter().all(Alert::is_active));
            begun += alerts.len();
        }
        assert_eq!((begun, watch.of(tenant).len(), watch.of(CgroupId(8)).len()), (1, 1, 0));
        assert!(watch.of(tenant)[0].starts_with("/docker/7 has more than 1000 cgroups"));
        assert_eq!(watch.changes(at(120)), []);
        let ended: Vec<Alert> = (121..150).flat_map(|second| watch.changes(at(second))).collect();
        assert_eq!(
            ended.iter().map(|alert| (alert.kind, alert.is_active())).collect::<Vec<_>>(),
            [(AlertKind::Quota, false)]
        );
        assert!(watch.of(tenant).is_empty());
    }

    #[test]
    fn what_is_said_of_a_container_ends_with_it() {
        let mut watch = QuotaWatch::default();
        watch.note(CgroupId(1), QuotaTopic::Mounts, "/a", Micros::secs(1));
        assert_eq!(watch.changes(Micros::secs(1)).len(), 1);
        assert_eq!(watch.forget(CgroupId(1), Micros::secs(2)).len(), 1);
        assert!(watch.changes(Micros::secs(3)).is_empty() && watch.of(CgroupId(1)).is_empty());
    }
}
