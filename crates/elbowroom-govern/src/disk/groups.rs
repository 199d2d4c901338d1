//! The cgroups of the machine as far as disks are concerned: which are governed, what they claim, how long they waited.

use crate::SERVICES;
use elbowroom_types::claim::{Claim, claim, name};
use elbowroom_types::sample::{Engine, Group, GroupId, GroupIo};
use elbowroom_types::unit::{Bytes, Micros};
use std::collections::BTreeMap;

/// A container that waits for this part of the time without a reason is blocked.
const BLOCKED: f64 = 0.3;

/// All cgroups, by identity.
#[derive(Debug, Default)]
pub(super) struct Groups {
    all: BTreeMap<GroupId, Known>,
}

#[derive(Debug)]
struct Known {
    parent: Option<GroupId>,
    container: Option<Box<Member>>,
}

/// A container.
#[derive(Debug)]
pub(super) struct Member {
    name: String,
    /// What it was promised.
    pub(super) claim: Claim,
    /// Why it is never limited, where that is so.
    pub(super) hands_off: Option<&'static str>,
    /// Dirty and written-back page cache.
    pub(super) dirty: Option<Bytes>,
    /// Which part of the last period at least one of its tasks waited for I/O; `None` where the kernel does not count it.
    pub(super) stalled: Option<f64>,
    waited: Option<(Micros, Micros)>,
    /// Which part of the period its requests spent at disks, one after the other, and whether it was at a limit anywhere.
    served: f64,
    bound: bool,
}

impl Member {
    /// Whether it waited for I/O that neither a disk nor a limit was busy with: for a lock that somebody else holds.
    pub(super) fn blocked(&self) -> bool {
        !self.bound && self.stalled.is_some_and(|stalled| stalled - self.served > BLOCKED)
    }
}

impl Groups {
    /// Takes in a cgroup that is new or has changed.
    pub(super) fn put(&mut self, group: &Group, claims: &[Claim]) {
        let before = self.all.remove(&group.id).and_then(|known| known.container);
        let container = group.container.as_ref().map(|container| {
            let hands_off = (container.engine == Engine::Plain && SERVICES.contains(&group.path.as_str()))
                .then_some("the machine's own services run in it, and everybody waits for those");
            let (dirty, stalled, waited) =
                before.map_or((None, None, None), |known| (known.dirty, known.stalled, known.waited));
            let claim = claim(claims, container);
            let name = name(container);
            Box::new(Member { name, claim, hands_off, dirty, stalled, waited, served: 0.0, bound: false })
        });
        self.all.insert(group.id, Known { parent: group.parent, container });
    }

    /// Takes out a cgroup and everything below it; which those were.
    pub(super) fn remove(&mut self, id: GroupId) -> Vec<GroupId> {
        let mut gone = vec![id];
        let mut next = 0;
        while let Some(parent) = gone.get(next).copied() {
            let below = self.all.iter().filter(|(_, known)| known.parent == Some(parent)).map(|(id, _)| *id);
            gone.extend(below.filter(|id| !gone.contains(id)).collect::<Vec<_>>());
            next += 1;
        }
        gone.retain(|id| self.all.remove(id).is_some());
        gone
    }

    /// The container that is governed as `id`: one inside another is governed with the outer one, whose counters include it;
    /// so do limits on v2. On v1 they do not (block/blk-throttle.c, `throtl_pd_init`: a flat hierarchy).
    pub(super) fn governed(&self, id: GroupId) -> bool {
        let Some(Known { container: Some(_), parent }) = self.all.get(&id) else { return false };
        let mut above = *parent;
        // A parent that is its own ancestor cannot be; the count ends the walk where events say so.
        for _ in 0..self.all.len() {
            match above.and_then(|id| self.all.get(&id)) {
                None => return true,
                Some(known) if known.container.is_some() => return false,
                Some(known) => above = known.parent,
            }
        }
        false
    }

    pub(super) fn get(&self, id: GroupId) -> Option<&Member> {
        self.all.get(&id)?.container.as_deref()
    }

    /// What people call it.
    pub(super) fn name(&self, id: GroupId) -> &str {
        self.get(id).map_or("a container that is gone", |member| &member.name)
    }

    /// Takes in what was measured of containers.
    pub(super) fn note(&mut self, named: &[GroupIo]) {
        for io in named {
            if let Some(member) = self.all.get_mut(&io.group).and_then(|known| known.container.as_mut()) {
                member.dirty = io.dirty;
                member.waited = io.stalled.map(|now| (now, member.waited.map_or(now, |(_, base)| base)));
            }
        }
    }

    /// Takes in what explains that a container waited: its requests at a disk, a limit.
    pub(super) fn explain(&mut self, id: GroupId, served: f64, bound: bool) {
        if let Some(member) = self.all.get_mut(&id).and_then(|known| known.container.as_mut()) {
            member.served += served;
            member.bound |= bound;
        }
    }

    /// Ends a period of this many seconds; `None` where there is nothing to compare with.
    pub(super) fn settle(&mut self, seconds: Option<f64>) {
        for member in self.all.values_mut().filter_map(|known| known.container.as_mut()) {
            member.stalled = member.waited.map(|(now, base)| {
                let part = now.saturating_sub(base).get() as f64 / 1e6;
                seconds.map_or(0.0, |seconds| (part / seconds).clamp(0.0, 1.0))
            });
            member.waited = member.waited.map(|(now, _)| (now, now));
            (member.served, member.bound) = (0.0, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::label::Labels;
    use elbowroom_types::sample::{Container, Limits};

    fn group(id: u64, parent: Option<u64>, container: bool) -> Group {
        Group {
            id: GroupId(id),
            parent: parent.map(GroupId),
            path: format!("/{id}"),
            container: container.then(|| Container {
                id: format!("{id:064}"),
                name: None,
                engine: Engine::Docker,
                pod: None,
                labels: Labels::default(),
            }),
            limits: Limits::default(),
            populated: true,
        }
    }

    fn groups(all: &[(u64, Option<u64>, bool)]) -> Groups {
        let mut groups = Groups::default();
        for (id, parent, container) in all {
            groups.put(&group(*id, *parent, *container), &[]);
        }
        groups
    }

    #[test]
    fn only_outermost_containers_are_governed() {
        let groups = groups(&[
            (1, None, false),
            (2, Some(1), true),
            (3, Some(2), false),
            (4, Some(3), true),
            (5, Some(99), true),
        ]);
        let check = |id, expect| assert_eq!(groups.governed(GroupId(id)), expect, "{id}");
        check(1, false);
        check(2, true);
        check(4, false);
        check(5, true);
        check(6, false);
    }

    #[test]
    fn what_is_below_a_cgroup_goes_with_it() {
        let mut groups = groups(&[(1, None, false), (2, Some(1), true), (3, Some(2), true), (4, None, true)]);
        assert_eq!(groups.remove(GroupId(1)), [1, 2, 3].map(GroupId));
        assert!(groups.governed(GroupId(4)));
        assert_eq!(groups.remove(GroupId(1)), []);
    }

    #[test]
    fn a_circle_of_parents_ends() {
        let mut groups = groups(&[(1, Some(2), false), (2, Some(1), false), (3, Some(1), true)]);
        assert!(!groups.governed(GroupId(3)));
        assert_eq!(groups.remove(GroupId(1)).len(), 3);
    }

    #[test]
    fn a_container_that_is_not_named_did_not_wait() {
        let mut groups = groups(&[(1, None, true)]);
        let io =
            |ms| GroupIo { group: GroupId(1), stalled: Some(Micros::millis(ms)), dirty: None, io: vec![] };
        let mut check = |named: &[GroupIo], expect| {
            groups.note(named);
            groups.settle(Some(2.0));
            assert_eq!(groups.get(GroupId(1)).and_then(|member| member.stalled), expect);
        };
        check(&[], None);
        check(&[io(5000)], Some(0.0));
        check(&[io(6000)], Some(0.5));
        check(&[], Some(0.0));
        check(&[io(1000)], Some(0.0));
        check(&[io(9000)], Some(1.0));
    }

    #[test]
    fn a_slice_of_the_machine_is_watched_only() {
        let mut groups = Groups::default();
        let mut slice = group(1, None, true);
        slice.path = "/system.slice".into();
        slice.container.as_mut().unwrap().engine = Engine::Plain;
        groups.put(&slice, &[]);
        assert!(groups.get(GroupId(1)).unwrap().hands_off.is_some());
    }
}
