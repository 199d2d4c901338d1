//! What a container's user set, where something of ours is in its place: views and governors know only that.

use elbowroom_linux::memory::UserLimits;
use elbowroom_types::id::CgroupId;
use elbowroom_types::memory::{MemoryOrder, OrderCompletion, OrderKind};
use elbowroom_types::sample::{CgroupProperties, CgroupSettings, HostEvent};
use elbowroom_types::unit::{Bytes, Limit};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// What is known of all groups that something of ours was ordered for.
#[derive(Default)]
pub(super) struct UserLimitOverlay {
    groups: BTreeMap<CgroupId, GroupOverlay>,
}

#[derive(Default)]
struct GroupOverlay {
    /// As the sensor told it last.
    raw: Option<CgroupProperties>,
    /// Its limits as they were given on.
    published: CgroupSettings,
    /// What was there before ours.
    user: UserLimits,
    /// The last values of ours that were ordered: they may be read before it is told that they are in force.
    low: Option<Limit<Bytes>>,
    min: Option<Limit<Bytes>>,
    soft: Option<Limit<Bytes>>,
    /// Memory of it is reclaimed now, for which `memory.high` may be lower for a moment (before Linux 5.19).
    is_reclaimed: bool,
}

impl UserLimitOverlay {
    /// An event without anything of ours.
    pub(super) fn apply<'a>(&mut self, event: &'a HostEvent) -> Cow<'a, HostEvent> {
        match event {
            HostEvent::Group(group) if group.container.is_some() => {
                let mask = self.groups.entry(group.id).or_default();
                let limits = mask.limits(&group.limits);
                mask.raw = Some(group.clone());
                mask.published = limits;
                match limits == group.limits {
                    true => Cow::Borrowed(event),
                    false => Cow::Owned(HostEvent::Group(CgroupProperties { limits, ..group.clone() })),
                }
            }
            HostEvent::Gone(id) => {
                self.groups.remove(id);
                Cow::Borrowed(event)
            }
            event => Cow::Borrowed(event),
        }
    }

    /// A container as the sensor told it last.
    pub(super) fn raw(&self, id: CgroupId) -> Option<&CgroupProperties> {
        self.groups.get(&id)?.raw.as_ref()
    }

    /// An order is given away.
    pub(super) fn on_order(&mut self, order: &MemoryOrder) {
        match order {
            MemoryOrder::Protect(protect) => {
                let mask = self.groups.entry(protect.group).or_default();
                (mask.low, mask.min) = (Some(Limit::At(protect.low)), Some(Limit::At(protect.min)));
                mask.soft = Some(protect.soft);
            }
            MemoryOrder::Reclaim(reclaim) => {
                self.groups.entry(reclaim.group).or_default().is_reclaimed = true;
            }
            MemoryOrder::ViewCeiling(_) | MemoryOrder::Alert(_) => {}
        }
    }

    /// An order was answered. The group to tell of again, where what is known of it has changed.
    pub(super) fn on_reply(&mut self, done: &OrderCompletion, user: UserLimits) -> Option<HostEvent> {
        let mask = self.groups.get_mut(&done.group)?;
        mask.user = user;
        mask.is_reclaimed &= done.what != OrderKind::Reclaim;
        let raw = mask.raw.as_ref()?;
        (mask.limits(&raw.limits) != mask.published).then(|| HostEvent::Group(raw.clone()))
    }
}

impl GroupOverlay {
    fn limits(&self, raw: &CgroupSettings) -> CgroupSettings {
        let known = self.raw.is_some();
        let pick = |raw: Option<Limit<Bytes>>,
                    user: Option<Limit<Bytes>>,
                    ours: Option<Limit<Bytes>>,
                    given| match user {
            Some(user) => Some(user),
            None if known && raw.is_some() && page_aligned(ours) == page_aligned(raw) => given,
            None => raw,
        };
        CgroupSettings {
            memory_high: if known && self.is_reclaimed {
                self.published.memory_high
            } else {
                raw.memory_high
            },
            memory_low: pick(raw.memory_low, self.user.memory_low, self.low, self.published.memory_low),
            memory_min: pick(raw.memory_min, self.user.memory_min, self.min, self.published.memory_min),
            memory_soft: pick(raw.memory_soft, self.user.memory_soft, self.soft, self.published.memory_soft),
            ..*raw
        }
    }
}

/// As the kernel keeps it: whole pages.
fn page_aligned(limit: Option<Limit<Bytes>>) -> Option<Limit<u64>> {
    Some(match limit? {
        Limit::At(bytes) => Limit::At(bytes.get() / rustix::param::page_size() as u64),
        Limit::Max => Limit::Max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::container::{ContainerEngine, ContainerIdentity};
    use elbowroom_types::label::ContainerLabels;
    use elbowroom_types::memory::{OrderOutcome, ReclaimProtection, ReclaimRequest};
    use elbowroom_types::unit::Micros;

    const AT: fn(u64) -> Option<Limit<Bytes>> = |mib| Some(Limit::At(Bytes::mib(mib)));

    fn group(limits: CgroupSettings) -> HostEvent {
        let container = ContainerIdentity {
            id: "a".into(),
            name: None,
            engine: ContainerEngine::Docker,
            pod: None,
            labels: ContainerLabels::default(),
        };
        let (id, path) = (CgroupId(1), "/a".to_owned());
        HostEvent::Group(CgroupProperties {
            id,
            parent: None,
            path,
            container: Some(container),
            limits,
            populated: true,
            made_by_user: false,
        })
    }

    fn low(masks: &mut UserLimitOverlay, mib: u64) -> Option<Limit<Bytes>> {
        match masks
            .apply(&group(CgroupSettings { memory_low: AT(mib), ..CgroupSettings::default() }))
            .as_ref()
        {
            HostEvent::Group(group) => group.limits.memory_low,
            other => panic!("{other:?}"),
        }
    }

    fn protect(mib: u64) -> MemoryOrder {
        let (at, group, min, soft) = (Micros::ZERO, CgroupId(1), Bytes::ZERO, Limit::Max);
        MemoryOrder::Protect(ReclaimProtection { at, group, low: Bytes::mib(mib), min, soft })
    }

    fn done(what: OrderKind) -> OrderCompletion {
        let (outcome, reclaimed) = (OrderOutcome::Done, Bytes::ZERO);
        OrderCompletion { now: Micros::ZERO, group: CgroupId(1), what, outcome, reclaimed }
    }

    #[test]
    fn a_limit_that_is_lowered_for_a_moment_is_not_the_users() {
        let mut masks = UserLimitOverlay::default();
        let high = |masks: &mut UserLimitOverlay, memory_high| match masks
            .apply(&group(CgroupSettings { memory_high, ..CgroupSettings::default() }))
            .as_ref()
        {
            HostEvent::Group(group) => group.limits.memory_high,
            other => panic!("{other:?}"),
        };
        assert_eq!(high(&mut masks, Some(Limit::Max)), Some(Limit::Max));
        let (at, amount, keep, group) = (Micros::ZERO, Bytes::mib(8), Bytes::ZERO, CgroupId(1));
        let order = ReclaimRequest { at, group, amount, keep, swap: false, dead: false, saving: false };
        masks.on_order(&MemoryOrder::Reclaim(order));
        assert_eq!(masks.on_reply(&done(OrderKind::Protect), UserLimits::default()), None);
        assert_eq!(high(&mut masks, AT(30)), Some(Limit::Max), "read while the kernel reclaims");
        let told = masks.on_reply(&done(OrderKind::Reclaim), UserLimits::default());
        assert!(told.is_some(), "it may be the user's after all");
        assert_eq!(high(&mut masks, AT(30)), AT(30));
    }

    #[test]
    fn what_we_wrote_is_not_the_users_whenever_it_is_read() {
        let mut masks = UserLimitOverlay::default();
        assert_eq!(low(&mut masks, 10), AT(10));
        masks.on_order(&protect(500));
        assert_eq!(low(&mut masks, 500), AT(10), "read before it was told that it is in force");
        assert_eq!(
            masks.on_reply(
                &done(OrderKind::Protect),
                UserLimits { memory_low: AT(10), ..UserLimits::default() }
            ),
            None
        );
        assert_eq!(low(&mut masks, 500), AT(10));
        assert_eq!(
            masks.on_reply(&done(OrderKind::Protect), UserLimits::default()),
            None,
            "released: it is read again soon"
        );
        assert_eq!(low(&mut masks, 10), AT(10));
        assert_eq!(low(&mut masks, 30), AT(30), "the user's own");
    }
}
