//! What a container's user set, where something of ours is in its place: views and governors know only that.

use elbowroom_linux::memory::UserLimits;
use elbowroom_types::memory::Order;
use elbowroom_types::sample::{Event, Group, GroupId, Limits};
use elbowroom_types::unit::{Bytes, Limit};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// What is known of all groups that something of ours was ordered for.
#[derive(Default)]
pub(super) struct Masks {
    groups: BTreeMap<GroupId, Mask>,
}

#[derive(Default)]
struct Mask {
    /// As the sensor told it last.
    raw: Option<Group>,
    /// Its limits as they were given on.
    given: Limits,
    /// What was there before ours.
    user: UserLimits,
    /// The last values of ours that were ordered: they may be read before it is told that they are in force.
    low: Option<Limit<Bytes>>,
    min: Option<Limit<Bytes>>,
    high: Option<Limit<Bytes>>,
    soft: Option<Limit<Bytes>>,
}

impl Masks {
    /// An event without anything of ours.
    pub(super) fn apply<'a>(&mut self, event: &'a Event) -> Cow<'a, Event> {
        match event {
            Event::Group(group) if group.container.is_some() => {
                let mask = self.groups.entry(group.id).or_default();
                let limits = mask.limits(&group.limits);
                mask.raw = Some(group.clone());
                mask.given = limits;
                match limits == group.limits {
                    true => Cow::Borrowed(event),
                    false => Cow::Owned(Event::Group(Group { limits, ..group.clone() })),
                }
            }
            Event::Gone(id) => {
                self.groups.remove(id);
                Cow::Borrowed(event)
            }
            event => Cow::Borrowed(event),
        }
    }

    /// A container as the sensor told it last.
    pub(super) fn raw(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(&id)?.raw.as_ref()
    }

    /// An order is given away.
    pub(super) fn ordered(&mut self, order: &Order) {
        match order {
            Order::Protect(protect) => {
                let mask = self.groups.entry(protect.group).or_default();
                (mask.low, mask.min) = (Some(Limit::At(protect.low)), Some(Limit::At(protect.min)));
                mask.soft = Some(protect.soft);
            }
            Order::Lease(lease) => {
                self.groups.entry(lease.group).or_default().high = Some(Limit::At(lease.high))
            }
            Order::Reclaim(_) | Order::Release(_) | Order::Export(_) | Order::Alert(_) => {}
        }
    }

    /// An order was answered. The group to tell of again, where what is known of it has changed.
    pub(super) fn answered(&mut self, id: GroupId, user: UserLimits) -> Option<Event> {
        let mask = self.groups.get_mut(&id)?;
        mask.user = user;
        let raw = mask.raw.as_ref()?;
        (mask.limits(&raw.limits) != mask.given).then(|| Event::Group(raw.clone()))
    }
}

impl Mask {
    fn limits(&self, raw: &Limits) -> Limits {
        let known = self.raw.is_some();
        let pick = |raw: Option<Limit<Bytes>>,
                    user: Option<Limit<Bytes>>,
                    ours: Option<Limit<Bytes>>,
                    given| match user {
            Some(user) => Some(user),
            None if known && raw.is_some() && rounded(ours) == rounded(raw) => given,
            None => raw,
        };
        Limits {
            memory_low: pick(raw.memory_low, self.user.memory_low, self.low, self.given.memory_low),
            memory_min: pick(raw.memory_min, self.user.memory_min, self.min, self.given.memory_min),
            memory_high: pick(raw.memory_high, self.user.memory_high, self.high, self.given.memory_high),
            memory_soft: pick(raw.memory_soft, self.user.memory_soft, self.soft, self.given.memory_soft),
            ..*raw
        }
    }
}

/// As the kernel keeps it: whole pages.
fn rounded(limit: Option<Limit<Bytes>>) -> Option<Limit<u64>> {
    Some(match limit? {
        Limit::At(bytes) => Limit::At(bytes.get() >> 12),
        Limit::Max => Limit::Max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::label::Labels;
    use elbowroom_types::memory::Protect;
    use elbowroom_types::sample::{Container, Engine};
    use elbowroom_types::unit::Micros;

    const AT: fn(u64) -> Option<Limit<Bytes>> = |mib| Some(Limit::At(Bytes::mib(mib)));

    fn group(limits: Limits) -> Event {
        let container = Container {
            id: "a".into(),
            name: None,
            engine: Engine::Docker,
            pod: None,
            labels: Labels::default(),
        };
        let (id, path) = (GroupId(1), "/a".to_owned());
        Event::Group(Group { id, parent: None, path, container: Some(container), limits, populated: true })
    }

    fn low(masks: &mut Masks, mib: u64) -> Option<Limit<Bytes>> {
        match masks.apply(&group(Limits { memory_low: AT(mib), ..Limits::default() })).as_ref() {
            Event::Group(group) => group.limits.memory_low,
            other => panic!("{other:?}"),
        }
    }

    fn protect(mib: u64) -> Order {
        let (at, group, min, soft) = (Micros::ZERO, GroupId(1), Bytes::ZERO, Limit::Max);
        Order::Protect(Protect { at, group, low: Bytes::mib(mib), min, soft })
    }

    #[test]
    fn what_we_wrote_is_not_the_users_whenever_it_is_read() {
        let mut masks = Masks::default();
        assert_eq!(low(&mut masks, 10), AT(10));
        masks.ordered(&protect(500));
        assert_eq!(low(&mut masks, 500), AT(10), "read before it was told that it is in force");
        assert_eq!(
            masks.answered(GroupId(1), UserLimits { memory_low: AT(10), ..UserLimits::default() }),
            None
        );
        assert_eq!(low(&mut masks, 500), AT(10));
        assert_eq!(
            masks.answered(GroupId(1), UserLimits::default()),
            None,
            "released: it is read again soon"
        );
        assert_eq!(low(&mut masks, 10), AT(10));
        assert_eq!(low(&mut masks, 30), AT(30), "the user's own");
    }
}
