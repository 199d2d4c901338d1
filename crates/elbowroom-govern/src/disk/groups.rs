//! The cgroups of the machine as far as disks are concerned: which are governed, what they claim, how long they waited.

use super::constants::LifelineConstants;
use crate::SERVICE_CGROUPS;
use elbowroom_types::claim::Claim;
use elbowroom_types::container::{ContainerEngine, claim_for, display_name};
use elbowroom_types::id::CgroupId;
use elbowroom_types::io::CgroupIo;
use elbowroom_types::sample::CgroupProperties;
use elbowroom_types::unit::{Bytes, Micros};
use std::collections::BTreeMap;

/// All cgroups, by identity.
#[derive(Debug, Default)]
pub(super) struct Groups {
    by_id: BTreeMap<CgroupId, DiskCgroupState>,
}

#[derive(Debug)]
struct DiskCgroupState {
    parent: Option<CgroupId>,
    container: Option<Box<DiskContainer>>,
}

/// A container.
#[derive(Debug)]
pub(super) struct DiskContainer {
    name: String,
    /// What it was promised.
    pub(super) claim: Claim,
    /// Why it is never limited, where that is so.
    pub(super) exempt_reason: Option<&'static str>,
    /// Dirty and written-back page cache.
    pub(super) dirty: Option<Bytes>,
    /// Which part of the last period at least one of its tasks waited for I/O; `None` where the kernel does not count it.
    pub(super) io_stall: Option<f64>,
    stall_totals: Option<(Micros, Micros)>,
    /// Which part of the period its requests spent at disks, one after the other, and whether it was at a limit anywhere.
    disk_time: f64,
    at_limit: bool,
}

impl DiskContainer {
    /// Whether it waited for I/O for much of the period, or the kernel does not count that.
    pub(super) fn may_wait(&self, k: &LifelineConstants) -> bool {
        self.io_stall.is_none_or(|stalled| stalled > k.blocked)
    }

    /// Whether it waited for I/O that neither a disk nor a limit was busy with: for a lock that another container holds.
    pub(super) fn is_blocked(&self, k: &LifelineConstants) -> bool {
        !self.at_limit && self.io_stall.is_some_and(|stalled| stalled - self.disk_time > k.blocked)
    }
}

impl Groups {
    /// Takes in a cgroup that is new or has changed.
    pub(super) fn upsert(&mut self, group: &CgroupProperties, claims: &[Claim]) {
        let before = self.by_id.remove(&group.id).and_then(|known| known.container);
        let container = group.container.as_ref().map(|container| {
            let exempt_reason = (container.engine == ContainerEngine::Plain
                && SERVICE_CGROUPS.contains(&group.path.as_str()))
            .then_some("the machine's own services run in it, and all containers wait for those");
            let (dirty, stalled, waited) =
                before.map_or((None, None, None), |known| (known.dirty, known.io_stall, known.stall_totals));
            let claim = claim_for(claims, container);
            let name = display_name(container);
            Box::new(DiskContainer {
                name,
                claim,
                exempt_reason,
                dirty,
                io_stall: stalled,
                stall_totals: waited,
                disk_time: 0.0,
                at_limit: false,
            })
        });
        self.by_id.insert(group.id, DiskCgroupState { parent: group.parent, container });
    }

    /// Takes out a cgroup and everything below it; which those were.
    pub(super) fn remove(&mut self, id: CgroupId) -> Vec<CgroupId> {
        let mut gone = vec![id];
        let mut next = 0;
        while let Some(parent) = gone.get(next).copied() {
            let below =
                self.by_id.iter().filter(|(_, known)| known.parent == Some(parent)).map(|(id, _)| *id);
            gone.extend(below.filter(|id| !gone.contains(id)).collect::<Vec<_>>());
            next += 1;
        }
        gone.retain(|id| self.by_id.remove(id).is_some());
        gone
    }

    /// The container that is governed as `id`: one inside another is governed with the outer one, whose counters include it;
    /// so do limits on v2. On v1 they do not (block/blk-throttle.c, `throtl_pd_init`: a flat hierarchy).
    pub(super) fn is_governed(&self, id: CgroupId) -> bool {
        let Some(DiskCgroupState { container: Some(_), parent }) = self.by_id.get(&id) else { return false };
        let mut above = *parent;
        // A parent that is its own ancestor cannot be; the count ends the walk where events say so.
        for _ in 0..self.by_id.len() {
            match above.and_then(|id| self.by_id.get(&id)) {
                None => return true,
                Some(known) if known.container.is_some() => return false,
                Some(known) => above = known.parent,
            }
        }
        false
    }

    pub(super) fn get(&self, id: CgroupId) -> Option<&DiskContainer> {
        self.by_id.get(&id)?.container.as_deref()
    }

    /// What people call it.
    pub(super) fn name(&self, id: CgroupId) -> &str {
        self.get(id).map_or("a container that is gone", |member| &member.name)
    }

    /// Takes in what was measured of containers.
    pub(super) fn record_stalls(&mut self, named: &[CgroupIo]) {
        for io in named {
            if let Some(member) = self.by_id.get_mut(&io.group).and_then(|known| known.container.as_mut()) {
                member.dirty = io.dirty;
                member.stall_totals =
                    io.stalled.map(|now| (now, member.stall_totals.map_or(now, |(_, base)| base)));
            }
        }
    }

    /// Takes in what explains that a container waited: its requests at a disk, a limit.
    pub(super) fn record_io_time(&mut self, id: CgroupId, served: f64, bound: bool) {
        if let Some(member) = self.by_id.get_mut(&id).and_then(|known| known.container.as_mut()) {
            member.disk_time += served;
            member.at_limit |= bound;
        }
    }

    /// Ends a period of this many seconds; `None` where there is nothing to compare with.
    pub(super) fn end_period(&mut self, seconds: Option<f64>) {
        for member in self.by_id.values_mut().filter_map(|known| known.container.as_mut()) {
            member.io_stall = member.stall_totals.map(|(now, base)| {
                let part = now.saturating_sub(base).get() as f64 / 1e6;
                seconds.map_or(0.0, |seconds| (part / seconds).clamp(0.0, 1.0))
            });
            member.stall_totals = member.stall_totals.map(|(now, _)| (now, now));
            (member.disk_time, member.at_limit) = (0.0, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::container::ContainerIdentity;
    use elbowroom_types::label::ContainerLabels;
    use elbowroom_types::sample::CgroupSettings;

    fn group(id: u64, parent: Option<u64>, container: bool) -> CgroupProperties {
        CgroupProperties {
            id: CgroupId(id),
            parent: parent.map(CgroupId),
            path: format!("/{id}"),
            container: container.then(|| ContainerIdentity {
                id: format!("{id:064}"),
                name: None,
                engine: ContainerEngine::Docker,
                pod: None,
                labels: ContainerLabels::default(),
            }),
            limits: CgroupSettings::default(),
            populated: true,
            made_by_user: false,
        }
    }

    fn groups(all: &[(u64, Option<u64>, bool)]) -> Groups {
        let mut groups = Groups::default();
        for (id, parent, container) in all {
            groups.upsert(&group(*id, *parent, *container), &[]);
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
        let check = |id, expect| assert_eq!(groups.is_governed(CgroupId(id)), expect, "{id}");
        check(1, false);
        check(2, true);
        check(4, false);
        check(5, true);
        check(6, false);
    }

    #[test]
    fn what_is_below_a_cgroup_goes_with_it() {
        let mut groups = groups(&[(1, None, false), (2, Some(1), true), (3, Some(2), true), (4, None, true)]);
        assert_eq!(groups.remove(CgroupId(1)), [1, 2, 3].map(CgroupId));
        assert!(groups.is_governed(CgroupId(4)));
        assert_eq!(groups.remove(CgroupId(1)), []);
    }

    #[test]
    fn a_circle_of_parents_ends() {
        let mut groups = groups(&[(1, Some(2), false), (2, Some(1), false), (3, Some(1), true)]);
        assert!(!groups.is_governed(CgroupId(3)));
        assert_eq!(groups.remove(CgroupId(1)).len(), 3);
    }

    #[test]
    fn a_container_that_is_not_named_did_not_wait() {
        let mut groups = groups(&[(1, None, true)]);
        let io =
            |ms| CgroupIo { group: CgroupId(1), stalled: Some(Micros::millis(ms)), dirty: None, io: vec![] };
        let mut check = |named: &[CgroupIo], expect| {
            groups.record_stalls(named);
            groups.end_period(Some(2.0));
            assert_eq!(groups.get(CgroupId(1)).and_then(|member| member.io_stall), expect);
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
        slice.container.as_mut().unwrap().engine = ContainerEngine::Plain;
        groups.upsert(&slice, &[]);
        assert!(groups.get(CgroupId(1)).unwrap().exempt_reason.is_some());
    }
}
